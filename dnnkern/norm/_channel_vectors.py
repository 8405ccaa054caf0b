"""Operands of a program that lie as the arrays of channels side by side do: a thread loads those of all its channels together, as it loads
x's, and with those of its other rows in flight. What lies otherwise the program loads element by element."""
import functools
from typing import Callable, NamedTuple

from ..device import cuda, device_function, f32, i32, i64
from ..device.groups import access_words, make_reader
from ..device.program_operands import loaded_type
from ..device.unroll import unrolled
from ..device.vec import advance
from ._channel_program import make_functions


class Vector(NamedTuple):
    """An operand that is loaded by vectors: its number among the program's, its dtype, and the 32-bit words of an access."""
    number: int
    dtype: str
    words: int


def vectors_of(problem, view, count):
    """The `Vector`s of a problem's program, where a thread has `count` neighbouring channels."""
    program = problem.program
    if program is None or view.pixels:
        return ()
    found = []
    for k, ((dtype, access), steps, t) in enumerate(zip(program.operands[:program.inputs], view.extras, problem.extras)):
        if access == "matrix" and steps.column == 1 and dtype != "float64":
            words = access_words(t, count, (steps.batch[0] * (view.images > 1), steps.row * (view.values > 1)))
            if words:
                found.append(Vector(k, dtype, words))
    return tuple(found)


class Rows(NamedTuple):
    """What `make_rows` makes.

    Attributes
    ----------
    length : int
        32-bit words of a local array, for all rows in flight.
    fetch : device function ``fetch(buffer, image, row, channel, end, operands)``
        The operands of the thread's channels from `channel` on, and of its rows from `row` on that are before `end`.
    run : device function ``run(values, buffer, u, image, row, channel, operands, extents)``
        The program of the channels of row u in flight, which is number `row`, in place.
    """
    length: int
    fetch: Callable
    run: Callable


@functools.cache
def make_rows(program, vectors, compute, result, elements, units, height, pixels):
    """`Rows` of a program whose `vectors` are loaded together, for a result that is rounded to the dtype `result`; of `units` rows in
    flight of `elements` channels, `height` apart."""
    if not vectors:
        _, of_channels, _ = make_functions(program, compute, result, elements, pixels)

        @device_function
        def run_each(values, buffer, u, image, row, channel, operands, extents):
            of_channels(0, (values, image, row, channel, operands, extents))
        return Rows(1, device_function(_nothing), run_each)
    from ..device.program import make_cast, make_program, positions_of
    from ..device.program_batches import make_moved
    moved, positions = make_moved(program, 1), positions_of(program)
    fetch_all, unpack_all, joined, length = device_function(_nothing), device_function(_nothing), device_function(_alone), 0
    counts = {"float32": 0, "int32": 0}
    for number, dtype, words in vectors:
        kind = loaded_type(dtype)
        reader = make_reader(dtype, elements, words, compute="int32" if kind == "int32" else None)
        fetch_all = _with_fetch(fetch_all, reader, positions[number], length, units, height)
        unpack_all = _with_unpack(unpack_all, reader, kind == "int32", counts[kind], length)
        joined = _with_value(joined, kind == "int32", counts[kind])
        counts[kind] += elements
        length += units * reader[1]
    program_of = make_program(program, compute, short=result in ("float16", "bfloat16"), given=tuple(v.number for v in vectors))
    cast = make_cast(program.types(compute)[program.result], compute)
    FLOATS, INTEGERS = max(1, counts["float32"]), max(1, counts["int32"])

    @device_function
    def of_channel(k, s):
        values, floats, integers, row, channel, e = s
        values[k] = cast(program_of(joined(values[k], floats, integers, k), row, channel + k, e))
    of_channels = unrolled(elements, of_channel)

    @device_function
    def fetch(buffer, image, row, channel, end, operands):
        fetch_all(buffer, moved(operands, (image,)), row, channel, end)

    @device_function
    def run(values, buffer, u, image, row, channel, operands, extents):
        floats, integers = cuda.local.array(FLOATS, f32), cuda.local.array(INTEGERS, i32)
        unpack_all(floats, integers, buffer, u)
        of_channels(0, (values, floats, integers, row, channel, moved(operands, (image,))))
    return Rows(length, fetch, run)


def _nothing(*arguments):
    return


def _alone(value, floats, integers, k):
    return (value,)


def _with_fetch(before, reader, AT, START, units, height):
    _, length, read, _ = reader
    S = AT + 1

    @device_function
    def fetch(buffer, e, row, channel, end):
        before(buffer, e, row, channel, end)
        p = advance(e[AT], i64(row) * e[S] + channel)
        for u in range(units):
            read(buffer, START + u * length, advance(p, u * height * e[S]), 0, row + u * height < end)
    return fetch


def _with_unpack(before, reader, integral, FIRST, START):
    _, length, _, unpack = reader

    @device_function
    def unpack_all(floats, integers, buffer, u):
        before(floats, integers, buffer, u)
        unpack(integers if integral else floats, FIRST, buffer, START + u * length)
    return unpack_all


def _with_value(before, integral, FIRST):
    """The tuple `before`, and one value more."""
    if integral:
        def values(value, floats, integers, k):
            return before(value, floats, integers, k) + (integers[FIRST + k],)
    else:
        def values(value, floats, integers, k):
            return before(value, floats, integers, k) + (floats[FIRST + k],)
    return device_function(values)

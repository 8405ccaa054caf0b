"""Operands of a program that a thread moves by vectors: those of all its neighbouring elements together, side outputs too.
Kernels of channels side by side and of rows share this."""
import functools
from typing import Callable, NamedTuple

from ..device import cuda, device_function, f32, i32, i64, u8, u32
from ..device.groups import access_words, make_reader, make_word_writer, make_writer
from ..device.program_operands import loaded_type
from ..device.unroll import unrolled
from ..device.vec import advance, as_u32

STORED = ("float32", "float16", "bfloat16", "bool")
"""Types of side outputs that are stored together."""


class Vector(NamedTuple):
    """An operand that is moved by vectors: its number among the program's, its dtype, and the 32-bit words of an access, 0 for bytes of
    bits."""
    number: int
    dtype: str
    words: int


def vectors_among(program, tensors, all_steps, count, apart_of, columns=False):
    """The `Vector`s of a program whose threads have `count` neighbouring elements of a row; ``apart_of(steps)`` are the strides between
    threads' first elements in an operand with these `Steps`. `columns`: also those by column, where a thread has one row in flight."""
    found = []
    for k, ((dtype, access), steps, t) in enumerate(zip(program.operands, all_steps, tensors)):
        if steps.column != 1:
            continue
        if access == "bits" and not any(n % 8 for n in (count, *apart_of(steps))):
            found.append(Vector(k, dtype, 0))
        elif (access == "matrix" or columns and access == "column") and (dtype != "float64" if k < program.inputs else dtype in STORED):
            words = access_words(t, count, apart_of(steps))
            if words:
                found.append(Vector(k, dtype, words))
    return tuple(found)


def lacks_bits(program, vectors):
    """Whether some bits that a program stores are not those of a thread's bytes."""
    numbers = {v.number for v in vectors}
    return program is not None and any(access == "bits" and k >= program.inputs and k not in numbers
                                       for k, (_, access) in enumerate(program.operands))


class Rows(NamedTuple):
    """What `make_rows` makes.

    Attributes
    ----------
    length : int
        32-bit words of a local array, for all rows in flight.
    fetch : device function ``fetch(buffer, image, row, channel, end, operands)``
        The operands of the thread's channels from `channel` on, and of its rows from `row` on that are before `end`.
    run : device function ``run(values, buffer, u, image, row, channel, operands, extents)``
        The program of the channels of row u in flight, which is number `row`, in place; stores its side outputs.
    """
    length: int
    fetch: Callable
    run: Callable


@functools.cache
def make_vector_rows(program, vectors, compute, result, elements, units, height, dims):
    """`Rows` of a program whose `vectors` are moved together, for a result that is rounded to the dtype `result`; of `units` rows in
    flight of `elements` channels, `height` apart. `dims`: 1 where the operands have strides along images, else 0."""
    from ..device.program import make_cast, make_program, positions_of
    from ..device.program_batches import make_moved
    moved, positions = make_moved(program, dims), positions_of(program)
    given = tuple(v for v in vectors if v.number < program.inputs)
    kept = tuple(v for v in vectors if v.number >= program.inputs)
    fetch_all, unpack_all, joined, length = device_function(nothing), device_function(nothing), _start(given), 0
    counts = {"float32": 0, "int32": 0}
    for number, dtype, words in given:
        kind = loaded_type(dtype)
        reader = _bit_reader(elements) if not words else make_reader(dtype, elements, words, compute="int32" if kind == "int32" else None)
        fetch_all = _with_fetch(fetch_all, reader, positions[number], length, units, height, program.operands[number][1])
        unpack_all = _with_unpack(unpack_all, reader, kind == "int32", counts[kind], length)
        joined = _with_value(joined, kind == "int32", counts[kind])
        counts[kind] += elements
        length += units * reader[1]
    keep, store_all = device_function(nothing), device_function(nothing)
    for k, (number, dtype, words) in enumerate(kept):
        kind = loaded_type(dtype)
        keep = _with_keep(keep, k + 1, kind == "int32", counts[kind])
        put = make_writer(dtype, elements, words) if kind == "float32" else _truth_writer(elements, words)
        store_all = _with_store(store_all, put, kind == "int32", counts[kind], positions[number], program.operands[number][1])
        counts[kind] += elements
    program_of = make_program(program, compute, short=result in ("float16", "bfloat16"), given=tuple(v.number for v in given),
                              kept=tuple(v.number - program.inputs for v in kept))
    cast = make_cast(program.types(compute)[program.result], compute)
    FLOATS, INTEGERS, KEPT = max(1, counts["float32"]), max(1, counts["int32"]), bool(kept)

    @device_function
    def of_channel(k, s):
        values, floats, integers, row, channel, e = s
        found = program_of(joined(values[k], floats, integers, k), row, channel + k, e)
        if KEPT:
            values[k] = cast(found[0])
            keep(found, floats, integers, k)
        else:
            values[k] = cast(found)
    of_channels = unrolled(elements, of_channel)

    @device_function
    def fetch(buffer, image, row, channel, end, operands):
        fetch_all(buffer, moved(operands, (image,)), row, channel, end)

    @device_function
    def run(values, buffer, u, image, row, channel, operands, extents):
        floats, integers, e = cuda.local.array(FLOATS, f32), cuda.local.array(INTEGERS, i32), moved(operands, (image,))
        unpack_all(floats, integers, buffer, u)
        of_channels(0, (values, floats, integers, row, channel, e))
        store_all(floats, integers, e, row, channel)
    return Rows(max(1, length), fetch, run)


def nothing(*arguments):
    return


def _start(given):
    """What the program takes: a value, or a tuple of one that more are added to."""
    if given:
        return device_function(lambda value, floats, integers, k: (value,))
    return device_function(lambda value, floats, integers, k: value)


def _bit_reader(elements):
    """As `make_reader`'s, of bytes that have 8 elements each; values are 1 or 0."""
    COUNT = elements // 8

    @device_function
    def read(buffer, k, p, i, ok):
        for b in range(COUNT):
            buffer[k + b] = 0
            if ok:
                buffer[k + b] = p[i + b]

    @device_function
    def unpack(values, k, buffer, j):
        for v in range(elements):
            values[k + v] = 1 if buffer[j + (v >> 3)] & u32(1 << (v & 7)) else 0
    return u32, COUNT, read, unpack


@functools.cache
def _truth_writer(elements, words):
    """As `make_writer`'s, of values that are 1 or 0: bytes by so many 32-bit words, or bits where there are no words."""
    COUNT, PER, SHIFT = (elements // 4, 4, 8) if words else (elements // 8, 8, 1)
    put_words = make_word_writer(COUNT, words) if words else None

    @device_function
    def packed(values, k):
        word = u32(0)
        for v in range(PER):
            word |= u32(values[k + v]) << u32(v * SHIFT)
        return word
    if words:
        @device_function
        def put(p, i, values, k):
            buffer = cuda.local.array(COUNT, u32)
            for w in range(COUNT):
                buffer[w] = packed(values, k + w * PER)
            put_words(as_u32(advance(p, i)), buffer)
    else:
        @device_function
        def put(p, i, values, k):
            for b in range(COUNT):
                p[i + b] = u8(packed(values, k + b * PER))
    return put


def _make_address(AT, access):
    """Device function ``address(e, row, channel)``: where the elements of an operand begin that lie side by side along channels."""
    S, U = AT + 1, AT + 3
    if access == "bits":
        def address(e, row, channel):
            return advance(e[AT], (i64(row) * e[S] + channel + e[U]) >> 3)
    elif access == "matrix":
        def address(e, row, channel):
            return advance(e[AT], i64(row) * e[S] + channel)
    else:
        def address(e, row, channel):
            return advance(e[AT], channel)
    return device_function(address)


def _with_fetch(before, reader, AT, START, units, height, access):
    _, length, read, _ = reader
    S, SHIFT, address, STEPS = AT + 1, 3 if access == "bits" else 0, _make_address(AT, access), units > 1

    @device_function
    def fetch(buffer, e, row, channel, end):
        before(buffer, e, row, channel, end)
        p = address(e, row, channel)
        for u in range(units):
            q = advance(p, u * height * e[S] >> SHIFT) if STEPS else p
            read(buffer, START + u * length, q, 0, row + u * height < end)
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


def _with_keep(before, K, integral, FIRST):
    """Keep the program's value number K of channel k as well."""
    if integral:
        def keep(found, floats, integers, k):
            before(found, floats, integers, k)
            integers[FIRST + k] = found[K]
    else:
        def keep(found, floats, integers, k):
            before(found, floats, integers, k)
            floats[FIRST + k] = found[K]
    return device_function(keep)


def _with_store(before, put, integral, FIRST, AT, access):
    """Store a side output's values of a row as well."""
    address = _make_address(AT, access)
    if integral:
        def store(floats, integers, e, row, channel):
            before(floats, integers, e, row, channel)
            put(address(e, row, channel), 0, integers, FIRST)
    else:
        def store(floats, integers, e, row, channel):
            before(floats, integers, e, row, channel)
            put(address(e, row, channel), 0, floats, FIRST)
    return device_function(store)

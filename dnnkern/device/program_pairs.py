"""A program of two neighbouring columns at once, whose side outputs leave by one store for both."""
import functools

from . import device_function
from .convert import element
from .program import _values_of, make_narrow, positions_of
from .program_operands import handed_over
from .vec import advance, as_u16, as_u32, store2


@functools.cache
def make_pair_program(program, accumulator="float32", short=None, given=(), boxed=None, aside=False):
    """Device function ``run(first, second, m, n, e)`` -> the results of columns n and n + 1, as `program.make_program`'s of ``first, m, n``
    and ``second, m, n + 1``. Numbers of stores that are `given` have both columns in one word: rows and columns beyond the matrix are not
    stored, and it has an even number of columns. The store number `boxed` is somebody else's; `aside`, its values are what `run` gives, and
    nothing is stored."""
    types, shift, inputs = program.types(accumulator), not program.accumulators, program.inputs
    values = _values_of(program, types, iter(positions_of(program)), short, handed_over(program, given))
    RESULT, store = program.stores[boxed - inputs][0] + shift if aside else program.result + shift, None
    for number, (value, dtype, _) in enumerate(program.stores, inputs):
        if aside or number == boxed:
            continue
        make = _with_word if number in given else _with_both
        store = make(store, value + shift, types[value], dtype, positions_of(program)[number])

    STORES = store is not None

    @device_function
    def run(first, second, m, n, e):
        row = min(m, e[0] - 1)
        v, w = values(first, row, min(n, e[1] - 1), e), values(second, row, min(n + 1, e[1] - 1), e)
        if STORES and m < e[0] and n < e[1]:
            store(v, w, m, n, e)
        return v[RESULT], w[RESULT]
    return run


def _after(before, store):
    if before is None:
        return store

    @device_function
    def stores(v, w, m, n, e):
        before(v, w, m, n, e)
        store(v, w, m, n, e)
    return stores


def _with_both(before, VALUE, source, dtype, AT):
    """The stores `before`, which may be None, and one of both columns more, element by element."""
    S, T, narrow = AT + 1, AT + 2, make_narrow(source, dtype)

    @device_function
    def store(v, w, m, n, e):
        e[AT][m * e[S] + n * e[T]] = narrow(v[VALUE])
        if n + 1 < e[1]:
            e[AT][m * e[S] + (n + 1) * e[T]] = narrow(w[VALUE])
    return _after(before, store)


def _with_word(before, VALUE, source, dtype, AT):
    """The same as one store of neighbouring elements."""
    S, narrow, pack = AT + 1, make_narrow(source, dtype), None
    if dtype in ("float16", "bfloat16"):
        pack = element(dtype).pack
        if source != "float32":
            raise TypeError(f"program: a side output of {dtype} in pairs is of float32, not {source}")

    if pack is not None:
        @device_function
        def store(v, w, m, n, e):
            as_u32(advance(e[AT], m * e[S] + n))[0] = pack(v[VALUE], w[VALUE])
    elif element(dtype if dtype != "bool" else "uint8").storage.itemsize == 1:
        @device_function
        def store(v, w, m, n, e):
            as_u16(advance(e[AT], m * e[S] + n))[0] = narrow(v[VALUE]) & 255 | (narrow(w[VALUE]) & 255) << 8
    else:
        @device_function
        def store(v, w, m, n, e):
            store2(advance(e[AT], m * e[S] + n), 0, (narrow(v[VALUE]), narrow(w[VALUE])))
    return _after(before, store)

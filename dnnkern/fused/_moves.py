"""How a thread holds chunks of several arrays: words of all inputs, loaded together; values of a chunk; results, stored by up to 16 bytes.

A thread has some lanes, chunks of neighbours (`engine.lanes`). A `config` has what these functions are made for: ``program``, whose loads
by matrix and index are the arrays, and whose stores the results; ``chunks``; ``lanes``; ``dims``, the form's dimensions; ``plain``, whether
a result is an operand; ``indices``, of each array its stride along the row if it is an index, else None; ``arrays``, how many there are.
"""
from ..device import cuda, device_function, i32, u32
from ..device.pointwise import TYPES
from ..device.program import loaded_type
from ..device.program_results import make_results
from ..device.unroll import unrolled
from ..device.vec import advance
from ..engine.lanes import make_input, make_output
from ..engine.vectors import word_of
from ..host.dtypes import ITEMSIZE
from ._arrays import joined, make_loads, make_offset

POINTERS, AT, STRIDES, FIRSTS, STEPS, NUMBERS = range(6)  # of `e`, what a thread is told


class Plan:
    """Where a thread's values are: words of the inputs in one local array, values of a chunk in one array a type. With `some` only those
    lanes are loaded whole that exist, see `make_input`."""

    def __init__(self, config, some=False):
        program, chunks, self.some = config.program, config.chunks, some
        self.words, self.values, self.inputs, self.at = 0, dict.fromkeys(TYPES, 0), [], []
        k = 0
        for dtype, access in program.loads:
            if access not in ("matrix", "index"):
                continue
            kind, moves = loaded_type(dtype), None
            if access == "matrix":
                moves = make_input(dtype, chunks.units[k], 1 if chunks.once[k] else config.lanes, chunks.elements, config.plain,
                                   "int32" if kind == "int32" else None, self.words, some)
                self.words += moves[0]
            self.inputs.append((moves, kind, self.values[kind]))
            self.values[kind] += chunks.elements
            k += 1
        self.results, found = [], dict.fromkeys(TYPES, 0)
        for _, dtype, _ in program.stores:
            kind = loaded_type(dtype)
            moves = make_output(dtype, chunks.units[k], chunks.elements, "int32" if kind == "int32" else None)
            self.results.append((moves, kind, found[kind]))
            found[kind] += chunks.elements
            k += 1
        self.stored = found


def make_base(config, K, P):
    """Device function: the pointer to an array's element that lanes count from; of an index its value there."""
    offset = make_offset(K, config.arrays, config.dims)
    if config.indices[K] is not None:
        @device_function
        def base(e):
            return i32(e[FIRSTS][K] + offset(e[AT], e[STRIDES]))
        return base
    dtype = dtypes_of(config.program)[K]
    SCALE = word_of(ITEMSIZE[dtype])[2]

    @device_function
    def base(e):
        return advance(e[POINTERS][P], (e[FIRSTS][K] + offset(e[AT], e[STRIDES])) * SCALE)
    return base


def dtypes_of(program):
    """Of the arrays that are addressed."""
    return tuple(dtype for dtype, access in program.loads if access in ("matrix", "index")) + tuple(s[1] for s in program.stores)


def all_loads(config, plan, bases, whole):
    """Device function ``load(words, e, shift, first, last)`` of all inputs."""
    def nothing(words, e, shift, first, last):
        return

    def with_input(before, K, load):
        where = bases[K]
        if whole and not plan.some:
            @device_function
            def more(words, e, shift, first, last):
                before(words, e, shift, first, last)
                load(words, where(e), e[STEPS][K], shift)
        else:
            @device_function
            def more(words, e, shift, first, last):
                before(words, e, shift, first, last)
                load(words, where(e), e[STEPS][K], shift, first, last)
        return more
    found = device_function(nothing)
    for k, (moves, _, _) in enumerate(plan.inputs):
        if moves is not None:
            found = with_input(found, k, moves[1 if whole else 2])
    return found


def all_takes(config, plan):
    """Device function ``take(values, words, e, lane, shift)``: a lane's values of all inputs."""
    length = config.chunks.elements
    PIECE = max(2 * length, 2)

    def nothing(values, words, e, lane, shift):
        return

    def with_input(before, moves, kind, START):
        widen, T, V = moves[3], TYPES[kind], tuple(TYPES).index(kind)

        @device_function
        def more(values, words, e, lane, shift):
            before(values, words, e, lane, shift)
            piece, some = cuda.local.array(PIECE, u32), cuda.local.array(length, T)
            widen(some, words, lane, piece)
            for n in range(length):
                values[V][START + n] = some[n]
        return more

    def with_index(before, K, START, ALONG):
        V = tuple(TYPES).index("int32")
        where = make_base(config, K, 0)

        @device_function
        def more(values, words, e, lane, shift):
            before(values, words, e, lane, shift)
            index = where(e) + lane * i32(e[STEPS][K]) + shift[lane] * ALONG
            for n in range(length):
                values[V][START + n] = index + n * ALONG
        return more
    found = device_function(nothing)
    for k, (moves, kind, start) in enumerate(plan.inputs):
        found = with_index(found, k, start, config.indices[k]) if moves is None else with_input(found, moves, kind, start)
    return found


def one_number(K):
    """Device function: a load by "value", where that is one for all elements of a chunk."""
    @device_function
    def value(values, e, n):
        return e[NUMBERS][K]
    return value


def make_values(program, plan, number=one_number):
    """Device function ``values_of(values, e, n)``: the stores' values of element n of a chunk, from the values of the inputs; ``number(K)``
    makes the function that loads number K."""
    results, kinds = make_results(program), tuple(TYPES)

    def of_array(k, dtype, access):
        _, kind, START = plan.inputs[k]
        V = kinds.index(kind)

        @device_function
        def value(values, e, n):
            return values[V][START + n]
        return value

    loaded = joined(make_loads(program, of_array, lambda K, dtype: number(K)))

    @device_function
    def values_of(values, e, n):
        return results(loaded(values, e, n))
    return values_of


def make_each(config, plan):
    """Device function ``each(values, stored, e)``: the program of all elements of a chunk, by calls with constant indices: a loop with a
    long body would not be unrolled, and its arrays not be registers. One function is compiled for all elements."""
    values_of, keep = make_values(config.program, plan), make_keep(plan)

    @device_function
    def one(n, s):
        values, stored, e = s
        keep(stored, values_of(values, e, n), n)
    run = unrolled(config.chunks.elements, one)

    @device_function
    def each(values, stored, e):
        run(0, (values, stored, e))
    return each


def make_keep(plan, first=0):
    """Device function ``keep(stored, results, n)``: the results of element n, number `first` on, in the arrays that are stored."""
    keep = None
    for j, (_, kind, start) in enumerate(plan.results, first):
        keep = _with_kept(keep, j, tuple(TYPES).index(kind), start)
    return keep


def _with_kept(before, J, V, START):
    """The results `before`, and one more, in the arrays that are stored."""
    if before is None:
        @device_function
        def first(stored, results, n):
            stored[V][START + n] = results[J]
        return first

    @device_function
    def more(stored, results, n):
        before(stored, results, n)
        stored[V][START + n] = results[J]
    return more


def all_stores(config, plan, bases, parts=True):
    """Device function ``put(stored, e, lane, shift, first, last, whole)`` of all outputs; without `parts` every chunk is whole."""
    length, first_output = config.chunks.elements, len(plan.inputs)

    def nothing(stored, e, lane, shift, first, last, whole):
        return

    def with_output(before, moves, kind, START, K):
        WORDS, pack, store_whole, store_part = moves
        T, V, where, SCALE = TYPES[kind], tuple(TYPES).index(kind), bases[K], word_of(ITEMSIZE[dtypes_of(config.program)[K]])[2]

        @device_function
        def more(stored, e, lane, shift, first, last, whole):
            before(stored, e, lane, shift, first, last, whole)
            some, made = cuda.local.array(length, T), cuda.local.array(WORDS, u32)
            for n in range(length):
                some[n] = stored[V][START + n]
            pack(made, some)
            at = advance(where(e), (lane * e[STEPS][K] + shift[lane]) * SCALE)
            if whole or not parts:
                store_whole(made, at)
            else:
                store_part(made, at, first[lane], last[lane])
        return more
    found = device_function(nothing)
    for j, (moves, kind, start) in enumerate(plan.results):
        found = with_output(found, moves, kind, start, first_output + j)
    return found

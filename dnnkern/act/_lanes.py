"""What a thread does to its lanes (`engine.lanes`): a function of up to three values, of one or two results."""
import functools
from dataclasses import dataclass

from ..device import cuda, device_function, i64, u32
from ..device.convert import element, short_of
from ..device.pointwise import TYPES, Function, make_function
from ..device.vec import advance
from ..engine.lanes import make_chunks, make_input, make_output, stored
from ..engine.vectors import word_of
from ..host.dtypes import ITEMSIZE
from ..host.launch import Argument
from ._offsets import ARRAYS, INPUTS


@dataclass(frozen=True)
class Work:
    """What a thread's lanes are: closure constants of a kernel.

    Attributes
    ----------
    function : Function
    compute : str
    dtypes : tuple of str
        Of the inputs, then of the outputs.
    units : tuple of int
        Bytes of an access to each of these; 0 for an input that has one value for a whole row.
    once : tuple of bool
        Whether an input is the same for all lanes of a thread.
    lanes, elements : int
        Chunks of a thread, elements of a chunk.
    align : int
        Elements of the first output that are one unit: its chunks begin at multiples. 0 where each row is known to begin at one.
    plain : bool
        Loads are ordinary ones: an output is an input.
    """
    function: Function
    compute: str
    dtypes: tuple
    units: tuple
    once: tuple
    lanes: int
    elements: int
    align: int
    plain: bool

    @property
    def inputs(self):
        return len(self.once)

    @property
    def blocks(self):
        """Blocks of 256 threads a multiprocessor that registers are bounded for: 64 a thread, 40 where a thread holds little, 128 where it
        holds much."""
        held = self.lanes * self.elements
        if self.compute == "float64" or held > 16 or held * self.inputs > 32:
            return 2
        return 6 if held * self.inputs <= 8 else 4


def make_work(problem, lanes, rows_stride=None) -> Work:
    """The work of a problem's threads; `rows_stride`: the strides from lane to lane, where lanes are rows."""
    form, chunks = problem.form, make_chunks(problem.form, problem.in_place, rows_stride)
    return Work(problem.function, problem.compute, tuple(a.dtype for a in form.arrays), chunks.units, chunks.once, lanes, chunks.elements,
                chunks.align, bool(problem.in_place))


def pointer_arguments(problem) -> tuple:
    """The five pointers: inputs, then outputs, to the words of `word_of`; a missing one is the first output."""
    form = problem.form
    found = [Argument(word_of(a.itemsize)[1] + "*", a.name) for a in form.arrays]
    inputs, outputs = found[:form.inputs], found[form.inputs:]
    return (*inputs, *outputs[:1] * (INPUTS - len(inputs)), *outputs, *outputs[:1] * (ARRAYS - INPUTS - len(outputs)))


def scalar_arguments(problem) -> tuple:
    """Kernel parameters alpha and beta; numbers that no function reads where the operation has none."""
    return tuple(Argument(problem.compute, name if name in problem.scalars else 0.0) for name in ("alpha", "beta"))


def _nothing(*_):
    return None


def _make_each(apply, inputs, results, scaled, length, compute, result_types):
    """Device function ``each(a, b, c, y, z, scalars)``: the function of all elements of a chunk, by calls with constant indices: a loop
    with a long body would not be unrolled, and its arrays not be registers."""
    T = TYPES[compute]
    R, S = (TYPES[t] for t in (*result_types, *result_types[:1])[:2])
    HAS_B, HAS_C, TWO, SCALED = inputs > 1, inputs > 2, results > 1, scaled

    def of_one(n):
        @device_function
        def one(a, b, c, y, z, scalars):
            p, q = T(0), T(0)
            if HAS_B:
                p = T(b[n])
            if HAS_C:
                q = T(c[n])
            if TWO:
                r, s = apply(T(a[n]), p, q)
                y[n], z[n] = R(r), S(s)
            elif SCALED:
                y[n] = R(apply(T(a[n]), p, scalars))
            else:
                y[n] = R(apply(T(a[n]), p, q))
        return one

    def of_range(start, count):
        if count == 1:
            return of_one(start)
        low, high = of_range(start, count // 2), of_range(start + count // 2, count - count // 2)

        @device_function
        def both(a, b, c, y, z, scalars):
            low(a, b, c, y, z, scalars)
            high(a, b, c, y, z, scalars)
        return both
    return of_range(0, length)


@functools.cache
def make_lanes(work):
    """Device function ``run(a, b, c, y, z, steps, shift, first, last, scalars)``: the whole work of a thread.

    Lane k's chunk of an array begins ``k * step + shift[k]`` elements after its pointer; elements ``first[k]`` to ``last[k] - 1`` of it
    exist. Inputs with one value a row are ``k * step`` elements after theirs. `scalars` are (alpha, beta) of functions that have them.
    """
    inputs, results, length, LANES = work.inputs, work.function.results, work.elements, work.lanes
    apply = make_function(work.function, work.compute, short_of(*work.dtypes[inputs:]))
    values = [TYPES[element(stored(d)).compute] for d in work.dtypes]
    read = [make_input(work.dtypes[k], work.units[k], 1 if work.once[k] else LANES, length, work.plain) for k in range(inputs)]
    read += [(1, _nothing, _nothing, _nothing)] * (INPUTS - inputs)
    (A_WORDS, a_whole, a_part, a_take), (B_WORDS, b_whole, b_part, b_take), (C_WORDS, c_whole, c_part, c_take) = read
    write = [make_output(d, u, length) for d, u in zip(work.dtypes[inputs:], work.units[inputs:])]
    Y_WORDS, y_pack, y_whole, y_part = write[0]
    Z_WORDS, z_pack, z_whole, z_part = write[-1]
    A, B, C = (*values[:inputs], *values[:1] * INPUTS)[:INPUTS]
    Y, Z = values[inputs], values[-1]
    each = _make_each(apply, inputs, results, work.function.is_scaled, length, work.compute,
                      [element(stored(d)).compute for d in work.dtypes[inputs:]])
    HAS_B, HAS_C, TWO = inputs > 1, inputs > 2, results > 1
    PIECE = max(length * 2, 2)
    Y_SCALE, Z_SCALE = (word_of(ITEMSIZE[d])[2] for d in (work.dtypes[inputs], work.dtypes[-1]))

    def of_lane(k):
        @device_function
        def lane(a_words, b_words, c_words, y, z, steps, shift, first, last, whole, scalars):
            a, b, c = cuda.local.array(length, A), cuda.local.array(length, B), cuda.local.array(length, C)
            results, more = cuda.local.array(length, Y), cuda.local.array(length, Z)
            piece, made, made_too = cuda.local.array(PIECE, u32), cuda.local.array(Y_WORDS, u32), cuda.local.array(Z_WORDS, u32)
            a_take(a, a_words, k, piece)
            if HAS_B:
                b_take(b, b_words, k, piece)
            if HAS_C:
                c_take(c, c_words, k, piece)
            each(a, b, c, results, more, scalars)
            y_pack(made, results)
            y_at = advance(y, i64(k * steps.y + shift[k]) * Y_SCALE)
            if whole:
                y_whole(made, y_at)
            else:
                y_part(made, y_at, first[k], last[k])
            if TWO:
                z_pack(made_too, more)
                z_at = advance(z, i64(k * steps.z + shift[k]) * Z_SCALE)
                if whole:
                    z_whole(made_too, z_at)
                else:
                    z_part(made_too, z_at, first[k], last[k])
        return lane

    def of_lanes(start, count):
        if count == 1:
            return of_lane(start)
        low, high = of_lanes(start, count // 2), of_lanes(start + count // 2, count - count // 2)

        @device_function
        def both(a_words, b_words, c_words, y, z, steps, shift, first, last, whole, scalars):
            low(a_words, b_words, c_words, y, z, steps, shift, first, last, whole, scalars)
            high(a_words, b_words, c_words, y, z, steps, shift, first, last, whole, scalars)
        return both
    lanes = of_lanes(0, LANES)

    @device_function
    def run(a, b, c, y, z, steps, shift, first, last, scalars):
        a_words, b_words, c_words = cuda.local.array(A_WORDS, u32), cuda.local.array(B_WORDS, u32), cuda.local.array(C_WORDS, u32)
        whole = True
        for k in range(LANES):
            whole = whole and first[k] <= 0 and last[k] >= length
        if whole:
            a_whole(a_words, a, steps.a, shift)
            if HAS_B:
                b_whole(b_words, b, steps.b, shift)
            if HAS_C:
                c_whole(c_words, c, steps.c, shift)
        else:
            a_part(a_words, a, steps.a, shift, first, last)
            if HAS_B:
                b_part(b_words, b, steps.b, shift, first, last)
            if HAS_C:
                c_part(c_words, c, steps.c, shift, first, last)
        lanes(a_words, b_words, c_words, y, z, steps, shift, first, last, whole, scalars)
    return run

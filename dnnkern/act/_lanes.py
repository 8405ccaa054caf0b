"""What a thread does: a few chunks of neighbouring elements, loaded together, computed in registers, stored in units of up to 16 bytes.

A thread has some *lanes*, chunks of `elements` elements. For each lane the kernel says where it begins and which of its elements exist;
all lanes are loaded before anything is computed. If every element of every lane exists, accesses are in the units of the `Work`; else
elements are loaded and stored one by one, as many in flight, each under its condition.

The first output leads: chunks begin where it is aligned, whatever the address of its rows (`lead`). Units of the other arrays are the
largest to which they are then aligned as well. An input that has one value for a whole row is loaded once a lane, or once.
"""
import functools
import math
from dataclasses import dataclass

from ..device import cuda, device_function, i32, i64, u32
from ..device.convert import element
from ..device.pointwise import TYPES, Function, make_function
from ..device.vec import address, advance
from ..engine.pack_words import make_pack
from ..engine.values import make_unpack, make_words
from ..engine.vectors import make_unit_moves, word_of
from ..host.dtypes import ITEMSIZE
from ..host.launch import Argument
from ._form import Form
from ._offsets import ARRAYS, INPUTS

UNITS = (16, 8, 4)


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


def chunk_length(sizes):
    """Elements of a chunk, of the bytes of an element of each array that lies along the row: 16 bytes of the narrowest, 32 of the widest
    at most, and 16 at least.

    >>> [chunk_length(sizes) for sizes in ((4, 4), (2, 2, 2), (4, 1), (8, 8), (1, 1))]
    [4, 8, 8, 2, 16]
    """
    wide, narrow = max(sizes), min(sizes)
    return max(16 // wide, min(32 // wide, 16 // narrow))


def rows_refusal(form: Form) -> str | None:
    """Why the rows of a form cannot be cut into chunks."""
    if not form.size:
        return "there are no elements"
    last = form.dims[-1].strides
    for a, s in zip(form.arrays[:form.inputs], last):
        if s not in (0, 1):
            return f"{a.name} has the stride {s} along the dimension that is contiguous in the result; expected 1, or 0"
    if any(s != 1 for s in last[form.inputs:]):
        return f"the result has the stride {last[form.inputs]} along its innermost dimension; expected 1"
    return None


def make_work(problem, lanes, rows_stride=None) -> Work:
    """The work of a problem's threads; `rows_stride`: the strides from lane to lane, where lanes are rows."""
    form = problem.form
    last, leader = form.dims[-1].strides, form.arrays[form.inputs]
    along = [a.itemsize for a, s in zip(form.arrays, last) if s]
    length = chunk_length(along)
    align = min(16, length * leader.itemsize) // leader.itemsize
    outer = [d.strides for d in form.dims[:-1]]
    static = leader.alignment >= align * leader.itemsize and all(s[form.inputs] % align == 0 for s in outer)
    units = []
    for k, a in enumerate(form.arrays):
        if not last[k]:
            units.append(0)
        elif k == form.inputs:
            units.append(align * a.itemsize)
        else:
            units.append(_unit(a, leader, [(s[k], s[form.inputs]) for s in outer], length, static, a.name in problem.in_place))
    once = [not last[k] if rows_stride is None else not rows_stride[k] and (static or not last[k]) for k in range(form.inputs)]
    return Work(problem.function, problem.compute, tuple(a.dtype for a in form.arrays), tuple(units), tuple(once), lanes, length,
                0 if static else align, bool(problem.in_place))


def _unit(a, leader, strides, length, static, same):
    """Bytes of an access to an array whose chunks begin where the leader's do."""
    size = a.itemsize
    if static:
        multiple = math.gcd(a.alignment, *(s * size for s, _ in strides))
    elif same:
        multiple = 16
    elif size == leader.itemsize:
        p, q = a.alignment, leader.alignment  # the addresses differ by a multiple of this
        apart = min(16, 2 * p) if p == q else min(p, q)
        multiple = math.gcd(apart, *((s - t) * size for s, t in strides))
    else:
        multiple = size
    return next((u for u in UNITS if u > size and multiple % u == 0 and u <= length * size), size)


def pointer_arguments(problem) -> tuple:
    """The five pointers: inputs, then outputs, to the words of `word_of`; a missing one is the first output."""
    form = problem.form
    found = [Argument(word_of(a.itemsize)[1] + "*", a.name) for a in form.arrays]
    inputs, outputs = found[:form.inputs], found[form.inputs:]
    return (*inputs, *outputs[:1] * (INPUTS - len(inputs)), *outputs, *outputs[:1] * (ARRAYS - INPUTS - len(outputs)))


def scalar_arguments(problem) -> tuple:
    """Kernel parameters alpha and beta; numbers that no function reads where the operation has none."""
    return tuple(Argument(problem.compute, name if name in problem.scalars else 0.0) for name in ("alpha", "beta"))


def _dtype(name):
    return "uint8" if name == "bool" else name


def _nothing(*_):
    return None


@functools.cache
def _make_input(dtype, unit, copies, length, plain):
    """Of one input: the words a thread holds; ``load_whole(words, p, step, shift)`` and ``load_part(words, p, step, shift, first, last)``
    of all lanes; ``take(values, words, lane, piece)``, the lane's values."""
    size, name = ITEMSIZE[dtype], _dtype(dtype)
    SCALE = word_of(size)[2]
    load_one, _, _, _, ONE = make_unit_moves(size, size, plain)
    if unit == 0:
        widen, _ = make_words(name, size)

        @device_function
        def load_whole(words, p, step, shift):
            for lane in range(copies):
                load_one(words, lane * ONE, advance(p, i64(lane * step) * SCALE), 1)

        @device_function
        def load_part(words, p, step, shift, first, last):
            for lane in range(copies):
                load_one(words, lane * ONE, advance(p, i64(lane * step) * SCALE), first[lane] < last[lane])

        @device_function
        def take(values, words, lane, piece):
            widen(values, words, (lane if copies > 1 else 0) * ONE)
            for n in range(1, length):
                values[n] = values[0]
        return copies * ONE, load_whole, load_part, take
    load, _, _, _, LOADED = make_unit_moves(unit, size, plain)
    gather, _ = make_pack(size, length)
    unpack, _ = make_unpack(name, length)
    LOADS, WORDS, STEP = length * size // unit, length * size // 4, unit * SCALE // size
    SINGLE = unit < 4
    PARTS = length * ONE

    @device_function
    def load_whole(words, p, step, shift):
        piece, parts = cuda.local.array(WORDS, u32), cuda.local.array(PARTS, u32)
        for lane in range(copies):
            at = advance(p, i64(lane * step + shift[lane]) * SCALE)
            if SINGLE:
                for n in range(length):
                    load_one(parts, n, advance(at, n), 1)
                gather(parts, piece)
                for w in range(WORDS):
                    words[lane * WORDS + w] = piece[w]
            else:
                for n in range(LOADS):
                    load(words, lane * WORDS + n * LOADED, advance(at, n * STEP), 1)

    @device_function
    def load_part(words, p, step, shift, first, last):
        piece, parts = cuda.local.array(WORDS, u32), cuda.local.array(PARTS, u32)
        for lane in range(copies):
            at = advance(p, i64(lane * step + shift[lane]) * SCALE)
            for n in range(length):
                load_one(parts, n * ONE, advance(at, n * SCALE), first[lane] <= n and n < last[lane])
            if ONE > 1:
                for w in range(WORDS):
                    words[lane * WORDS + w] = parts[w]
            else:
                gather(parts, piece)
                for w in range(WORDS):
                    words[lane * WORDS + w] = piece[w]

    @device_function
    def take(values, words, lane, piece):
        start = (lane if copies > 1 else 0) * WORDS
        for w in range(WORDS):
            piece[w] = words[start + w]
        unpack(values, piece)
    return copies * WORDS, load_whole, load_part, take


@functools.cache
def _make_output(dtype, unit, length):
    """Of one output: the words of a chunk, ``put(words, values)``, ``store_whole(words, p)`` and ``store_part(words, p, first, last)``."""
    size, name = ITEMSIZE[dtype], _dtype(dtype)
    SCALE = word_of(size)[2]
    _, store_one, _, _, ONE = make_unit_moves(size, size)
    _, store, _, _, STORED = make_unit_moves(unit, size)
    _, pack = make_unpack(name, length)
    STORES, WORDS, STEP = length * size // unit, length * size // 4, unit * SCALE // size
    SINGLE, PER, BITS = unit < 4, max(4 // size, 1), 8 * size
    MASK = (1 << min(BITS, 32)) - 1

    @device_function
    def part(one, words, n):
        if PER > 1:
            one[0] = (words[n // PER] >> u32(n % PER * BITS)) & MASK
        else:
            for k in range(ONE):
                one[k] = words[n * ONE + k]

    @device_function
    def store_whole(words, p):
        one = cuda.local.array(2, u32)
        if SINGLE:
            for n in range(length):
                part(one, words, n)
                store_one(advance(p, n), one, 0)
        else:
            for n in range(STORES):
                store(advance(p, n * STEP), words, n * STORED)

    @device_function
    def store_part(words, p, first, last):
        one = cuda.local.array(2, u32)
        for n in range(length):
            if first <= n and n < last:
                part(one, words, n)
                store_one(advance(p, n * SCALE), one, 0)
    return WORDS, pack, store_whole, store_part


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
    apply = make_function(work.function, work.compute, all(ITEMSIZE[d] <= 2 for d in work.dtypes[inputs:]))
    values = [TYPES[element(_dtype(d)).compute] for d in work.dtypes]
    read = [_make_input(work.dtypes[k], work.units[k], 1 if work.once[k] else LANES, length, work.plain) for k in range(inputs)]
    read += [(1, _nothing, _nothing, _nothing)] * (INPUTS - inputs)
    (A_WORDS, a_whole, a_part, a_take), (B_WORDS, b_whole, b_part, b_take), (C_WORDS, c_whole, c_part, c_take) = read
    write = [_make_output(d, u, length) for d, u in zip(work.dtypes[inputs:], work.units[inputs:])]
    Y_WORDS, y_pack, y_whole, y_part = write[0]
    Z_WORDS, z_pack, z_whole, z_part = write[-1]
    A, B, C = (*values[:inputs], *values[:1] * INPUTS)[:INPUTS]
    Y, Z = values[inputs], values[-1]
    each = _make_each(apply, inputs, results, work.function.is_scaled, length, work.compute,
                      [element(_dtype(d)).compute for d in work.dtypes[inputs:]])
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


@functools.cache
def make_lead(work):
    """Device function ``lead(row)``: elements before a row's first one, from the last place where a chunk may begin."""
    size, scale = ITEMSIZE[work.dtypes[work.inputs]], work.align
    if not scale:
        @device_function
        def lead(row):
            return 0
    else:
        SHIFT, MASK = size.bit_length() - 1, scale - 1

        @device_function
        def lead(row):
            return i32((address(row, 0) >> SHIFT) & MASK)
    return lead

"""Three launches per list: moments and sums of squares, norms, parameters.

The first and the last have a block per chunk of 1024 elements, which finds its arrays as those of the other steps do. The first writes the
moments and leaves two numbers a block: sums of squares of the parameters and of the direction in which they are to go. Between them a block
a parameter adds these up. The last computes the direction again from the moments, which costs less than to keep it: ten accesses an
element, where seven would do without norms.
"""
import functools

from ..device import cuda, device_function, f32, f64, i32, i64, jit, u32, u64
from ..device.index import ceil_div
from ..dispatch import Algorithm
from ..engine.cost import LAUNCH, Cost, memory_seconds
from ..host.launch import Argument, Launch
from ._columns import COLUMNS, number_arguments
from ._moves import ROW, THREADS, Config, make_moves, tables_of
from ._norms import TYPES, make_sum, ratio_launch, ratios_of, workspace_bytes
from ._rule import make_arithmetic
from ._tables import MOST_CHUNKS, unpack

CONFIG = Config(4)
CHUNK, E = CONFIG.chunk, CONFIG.elements
FOUR, THREE = 4 * E, 3 * E
MASTER = COLUMNS - 1


def supports(problem):
    """Parameters whose arrays have the same layout, without gaps."""
    apart = sorted(set(problem.filled) - set(problem.flat))
    if apart:
        return f"the arrays of parameter {apart[0]} have gaps, or lie differently"
    chunks = sum(_counts(problem))
    return None if chunks <= MOST_CHUNKS // 2 else f"{chunks} chunks; expected {MOST_CHUNKS // 2} at most"


def _counts(problem):
    return [ceil_div(problem.params[k].size, CHUNK) for k in problem.flat]


def workspace(problem, device, config):
    """Two numbers a chunk, one a parameter."""
    return workspace_bytes(problem, sum(_counts(problem)), len(problem.flat))


def estimate(problem, device, config):
    """Parameters and moments are read twice."""
    names = "m", "v", "master" if problem.master is not None else "params"
    again = sum(t.nbytes for name, tensors in problem.lists for t in tensors if name in names)
    return 3 * LAUNCH + Cost(memory=memory_seconds(problem.bytes + again, device))


# ---- kernels

@functools.cache
def _moments_body(kind, compute):
    """Device function ``body(where, aligned, first, left, factor, numbers, count) -> (p_squares, d_squares)`` of a thread."""
    T, N, value = kind.scalar, TYPES[compute], 0 if kind.dtypes[MASTER] is None else MASTER
    (fetch, unpack, load), (put, store), RAW = make_moves(CONFIG, kind, (value, 1, 2, 3), ((2, 2), (3, 3)))
    step, direction, _ = kind.rule.make((), kind.flags, T)
    SCALED, prepare = kind.scaled, kind.prepare()

    @device_function
    def body(where, aligned, first, left, factor, numbers, count):
        thread, values, raw = cuda.threadIdx.x, cuda.local.array(FOUR, T), cuda.local.array(RAW, u32)
        n = prepare(numbers, count)
        whole = aligned and left >= CHUNK
        if whole:
            fetch(values, raw, where, first, thread, left)
            unpack(values, raw, where, first, thread, left)
        else:
            load(values, raw, where, first, thread, left)
        p_squares, d_squares = T(0), T(0)
        for q in range(E):
            p, g = values[q], values[E + q]
            if SCALED:
                g = T(g * T(factor))
            m, v = step(g, values[2 * E + q], values[3 * E + q], n)
            values[2 * E + q], values[3 * E + q] = m, v
            if whole or thread + q * THREADS < left:
                d = direction(p, m, v, n)
                p_squares, d_squares = T(p_squares + p * p), T(d_squares + d * d)
        if whole:
            put(values, raw, where, first, thread, left)
        else:
            store(values, raw, where, first, thread, left)
        return N(p_squares), N(d_squares)
    return body


@functools.cache
def _move_body(kind, compute):
    """Device function ``body(where, aligned, first, left, ratio, numbers, count)``, which gives nothing of interest."""
    T, N, value = kind.scalar, TYPES[compute], 0 if kind.dtypes[MASTER] is None else MASTER
    (fetch, unpack, load), (put, store), RAW = make_moves(CONFIG, kind, (value, 2, 3), tuple((0, c) for c in dict.fromkeys((value, 0))))
    (_, direction, _), prepare = kind.rule.make((), kind.flags, T), kind.prepare()

    @device_function
    def body(where, aligned, first, left, ratio, numbers, count):
        thread, values, raw = cuda.threadIdx.x, cuda.local.array(THREE, T), cuda.local.array(RAW, u32)
        n = prepare(numbers, count)
        whole = aligned and left >= CHUNK
        if whole:
            fetch(values, raw, where, first, thread, left)
            unpack(values, raw, where, first, thread, left)
        else:
            load(values, raw, where, first, thread, left)
        for q in range(E):
            values[q] = T(values[q] - n.lr * T(ratio) * direction(values[q], values[E + q], values[2 * E + q], n))
        if whole:
            put(values, raw, where, first, thread, left)
        else:
            store(values, raw, where, first, thread, left)
        return N(0), N(0)
    return body


def _or(before, this, body):
    @device_function
    def run(kind, where, aligned, first, left, number, numbers, count):
        if kind == this:
            a, b = body(where, aligned, first, left, number, numbers, count)
        else:
            a, b = before(kind, where, aligned, first, left, number, numbers, count)
        return a, b
    return run


def make_visit(bodies):
    """Device function ``visit(row, chunk, table, number, numbers, count)``: a chunk of a parameter, by the body of its kind."""
    only = bodies[0]

    @device_function
    def run(kind, where, aligned, first, left, number, numbers, count):
        return only(where, aligned, first, left, number, numbers, count)
    for this, body in enumerate(bodies[1:], 1):
        run = _or(run, this, body)

    @device_function
    def visit(row, chunk, table, number, numbers, count):
        at, first, where = row * ROW, i64(chunk) * CHUNK, cuda.local.array(COLUMNS, u64)
        left, (code, _) = i64(table[at]) - first, unpack(table[at + 1])
        for c in range(COLUMNS):
            where[c] = table[at + 2 + c]
        return run(code >> 1, where, code & 1, first, i32(min(left, CHUNK)), number, numbers, count)
    return visit


@functools.cache
def moments_kernel(kinds, numbers, skips):
    """The moments of a chunk per block, and its sums of squares."""
    S, SCALED, COUNTED = {"float32": f32, "float64": f64}[numbers], kinds[0].scaled, kinds[0].counted
    visit, total, (inverse, _) = make_visit([_moments_body(kind, numbers) for kind in kinds]), make_sum(numbers), make_arithmetic(S)

    @jit(launch_bounds=(THREADS, 4))
    def lamb_chunks(chunks, table, partials, grad_scale, found_inf, step, n0, n1, n2, n3, n4, n5, n6, n7):
        scratch, other = cuda.shared.array(16, S), cuda.shared.array(16, S)
        block = cuda.blockIdx.x
        word, factor, go, count = chunks[block], S(1), True, S(0)
        if COUNTED:
            count = S(step[0])
        if skips:
            go = found_inf[0] == 0
        if SCALED:
            factor = inverse(S(grad_scale[0]))
        if go:
            row, chunk = unpack(word)
            p, d = visit(row, chunk, table, factor, (n0, n1, n2, n3, n4, n5, n6, n7), count)
            p, d = total(p, scratch), total(d, other)
            if cuda.threadIdx.x == 0:
                partials[block] = p
                partials[i64(cuda.gridDim.x) + block] = d
    return lamb_chunks


@functools.cache
def move_kernel(kinds, numbers, skips):
    """The parameters of a chunk per block."""
    visit, COUNTED = make_visit([_move_body(kind, numbers) for kind in kinds]), kinds[0].counted
    S = {"float32": f32, "float64": f64}[numbers]

    @jit(launch_bounds=(THREADS, 4))
    def lamb_chunks_move(chunks, table, ratios, found_inf, step, n0, n1, n2, n3, n4, n5, n6, n7):
        word, go, count = chunks[cuda.blockIdx.x], True, S(0)
        if COUNTED:
            count = S(step[0])
        if skips:
            go = found_inf[0] == 0
        if go:
            row, chunk = unpack(word)
            visit(row, chunk, table, ratios[row], (n0, n1, n2, n3, n4, n5, n6, n7), count)
    return lamb_chunks_move


# ---- launches

def build(problem, device, config):
    """Moments, norms, parameters."""
    kinds, count, tables = tables_of(problem, CONFIG)
    scale, *numbers = number_arguments(problem)
    key = kinds, problem.compute, problem.found_inf is not None
    partials, ratios = Argument(f"{problem.compute}*", "workspace"), ratios_of(problem, count)
    return (Launch(moments_kernel(*key), (count, 1, 1), (THREADS, 1, 1), (*tables, partials, scale, *numbers)),
            ratio_launch(problem, _counts(problem)),
            Launch(move_kernel(*key), (count, 1, 1), (THREADS, 1, 1), (*tables, ratios, *numbers)))


ALGORITHM = Algorithm(op="lamb_step", name="chunks", supports=supports, workspace=workspace, estimate=estimate, build=build)

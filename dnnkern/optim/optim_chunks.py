"""One launch per list: a block per chunk, and a table on the device that says where the arrays are.

Block number i reads word i of a constant table, which parameter and which chunk of it are its own, and that parameter's row of another:
its size, and the address of each of its arrays. The latter is small, and is all that is sent to the device when arrays are elsewhere than
before. Two dependent reads, which hit the L2 nearly always, and nothing to search for: the other blocks of a multiprocessor have their
loads in flight meanwhile.

A thread then loads its four or eight elements of every array, by 16 bytes where the elements have as many, computes, and stores. Arrays
that are not aligned, and the last chunk of a parameter, go element by element, neighbours by neighbouring threads. Lists of mixed dtypes
branch by the parameter's kind; all threads of a block agree. Parameters whose arrays have gaps or lie differently have launches of their
own, those of `naive`.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, device_function, f32, f64, i32, i64, jit, u32, u64
from ..device.index import ceil_div
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, Cost, memory_seconds, tail
from ..host.launch import Launch
from . import optim_naive
from ._columns import COLUMNS, number_arguments
from ._moves import ROW, THREADS, Config, make_moves, tables_of
from ._rule import OPS, make_arithmetic
from ._tables import MOST_CHUNKS, unpack

COST = constants("optim/chunks")


@dataclass(frozen=True)
class Compiled:
    """What a kernel is compiled for: elements a thread, the kinds of parameters, the type of the numbers, whether steps may be skipped, and
    how many blocks a multiprocessor has room for."""
    config: Config
    kinds: tuple
    scalar: str
    skips: bool
    room: int

    @property
    def blocks(self):
        """How many blocks a multiprocessor is to hold: their registers are bounded to what that leaves them, and all fit."""
        if self.config.elements == 8:  # of five arrays, all of them in registers, 80 are not enough
            return 2 if any(None not in kind.dtypes[2:-1] for kind in self.kinds) else 3
        if self.scalar == "float64":
            return min(4, self.room)
        columns = max(sum(d is not None for d in kind.dtypes) for kind in self.kinds)
        return min(8 if len(self.kinds) == 1 and columns <= 4 else 6, self.room)


def supports(problem):
    """Everything, if one parameter at least lies in memory without gaps."""
    if not problem.flat:
        return f"all of {problem.count} parameters have arrays with gaps, or that lie differently"
    chunks = sum(ceil_div(problem.params[k].size, Config(4).chunk) for k in problem.flat)
    return None if chunks <= MOST_CHUNKS else f"{chunks} chunks; expected {MOST_CHUNKS} at most"


def workspace(problem, device, config):
    """None."""
    return 0


def configs(problem, device):
    """Four elements a thread, or eight, which are too many registers of float64."""
    return [Config(4)] if problem.scalar_type == "float64" else [Config(4), Config(8)]


def estimate(problem, device, config):
    """The bytes, and a launch for each parameter that has one of its own. Eight elements suit arrays of 16-bit numbers alone."""
    apart = set(problem.filled) - set(problem.flat)
    chunks = sum(ceil_div(problem.params[k].size, config.chunk) for k in problem.flat)
    narrow = all(t.itemsize == 2 for k in problem.flat for t in problem.arrays(k))
    misfit = 1.0 if narrow == (config.elements == 8) else COST.misfit
    work = Cost(memory=memory_seconds(problem.bytes, device)).slowed(slower=misfit, tail=tail(chunks, COST.blocks, device))
    return LAUNCH + work + sum(optim_naive.launch_cost(problem, k, device) for k in apart)


# ---- the kernel

@functools.cache
def make_body(config, kind):
    """``body(table, row, aligned, first, left, scale, numbers, step)``: a chunk of a parameter of this kind, from element `first` on, of
    which `left` exist. Its addresses are the words of the table from `row` on."""
    E, T, update, prepare, SCALED = config.elements, kind.scalar, kind.update(), kind.prepare(), kind.scaled
    last = COLUMNS - 1
    value = 0 if kind.dtypes[last] is None else last  # the column that is the parameter's value
    read = [value, 1] + [c for c in range(2, last) if kind.dtypes[c] is not None]
    written = [(0, c) for c in dict.fromkeys((value, 0))] + [(j, c) for j, c in enumerate(read) if j > 1]
    (fetch, unpack, load), (put, store), RAW = make_moves(config, kind, tuple(read), tuple(written))
    HAS_A, HAS_B, HAS_C = (kind.dtypes[c] is not None for c in range(2, last))
    A = 2 * E
    B = A + HAS_A * E
    C = B + HAS_B * E
    VALUES = len(read) * E

    @device_function
    def body(table, row, aligned, first, left, scale, numbers, step):
        thread = cuda.threadIdx.x
        where, values, raw = cuda.local.array(COLUMNS, u64), cuda.local.array(VALUES, T), cuda.local.array(RAW, u32)
        for c in range(COLUMNS):
            where[c] = table[row + c]
        n = prepare(numbers, step)
        whole = aligned and left >= THREADS * E
        if whole:
            fetch(values, raw, where, first, thread, left)
            unpack(values, raw, where, first, thread, left)
        else:
            load(values, raw, where, first, thread, left)
        for q in range(E):
            g, x, y, z = values[E + q], T(0), T(0), T(0)
            if SCALED:
                g = T(g * T(scale))
            if HAS_A:
                x = values[A + q]
            if HAS_B:
                y = values[B + q]
            if HAS_C:
                z = values[C + q]
            value, x, y, z = update(values[q], g, x, y, z, n)
            values[q] = value
            if HAS_A:
                values[A + q] = x
            if HAS_B:
                values[B + q] = y
            if HAS_C:
                values[C + q] = z
        if whole:
            put(values, raw, where, first, thread, left)
        else:
            store(values, raw, where, first, thread, left)
    return body


def _or(before, number, body):
    @device_function
    def either(kind, table, row, aligned, first, left, scale, numbers, step):
        if kind == number:
            body(table, row, aligned, first, left, scale, numbers, step)
        else:
            before(kind, table, row, aligned, first, left, scale, numbers, step)
    return either


def make_bodies(bodies):
    """Device function ``run(kind, ...)`` that calls body number `kind`."""
    first = bodies[0]

    @device_function
    def run(kind, table, row, aligned, first_element, left, scale, numbers, step):
        first(table, row, aligned, first_element, left, scale, numbers, step)
    for number, body in enumerate(bodies[1:], 1):
        run = _or(run, number, body)
    return run


@functools.cache
def kernel(compiled):
    """A step on all chunks of a list."""
    config, CHUNK, SKIPS, BLOCKS = compiled.config, compiled.config.chunk, compiled.skips, compiled.blocks
    S, SCALED = {"float32": f32, "float64": f64}[compiled.scalar], compiled.kinds[0].scaled
    (inverse, _), COUNTED = make_arithmetic(S), compiled.kinds[0].counted
    run = make_bodies([make_body(config, kind) for kind in compiled.kinds])

    @jit(launch_bounds=(THREADS, BLOCKS))
    def optim_chunks(chunks, table, grad_scale, found_inf, step, n0, n1, n2, n3, n4, n5, n6, n7):
        row, chunk = unpack(chunks[cuda.blockIdx.x])
        row, first = row * ROW, i64(chunk) * CHUNK
        go = True
        if SKIPS:
            go = found_inf[0] == 0
        scale, count = S(1), S(0)
        if COUNTED:
            count = S(step[0])
        if SCALED:
            scale = inverse(S(grad_scale[0]))
        left, (code, _) = i64(table[row]) - first, unpack(table[row + 1])
        if go:
            run(code >> 1, table, row + 2, code & 1, first, i32(min(left, CHUNK)), scale,
                (n0, n1, n2, n3, n4, n5, n6, n7), count)
    return optim_chunks


# ---- launches

def build(problem, device, config):
    """One launch for all parameters without gaps, and one for each of the others."""
    kinds, chunks, tables = tables_of(problem, config)
    compiled = Compiled(config, kinds, problem.scalar_type, problem.found_inf is not None, device.threads_per_sm // THREADS)
    arguments = (*tables, *number_arguments(problem))
    apart = sorted(set(problem.filled) - set(problem.flat))
    return (Launch(kernel(compiled), (chunks, 1, 1), (THREADS, 1, 1), arguments),
            *(optim_naive.launch_of(problem, k) for k in apart))


ALGORITHMS = tuple(Algorithm(op=op, name="chunks", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs)
                   for op in OPS)

"""Two launches per list: sums of squares of runs of chunks, a run a block; then every block adds these up for itself.

Blocks find their arrays as those of the steps do, in a constant table of chunks and one of addresses. In the first launch there are as many
blocks as are resident, and each walks a run of chunks of 4096 elements, with up to 64 bytes per thread in flight; it leaves two numbers. So
few of them are left that each block of the second launch can add all up: it reads five numbers a thread from the L2, meets its threads
once, and knows the norm. Where nothing is to be scaled it then leaves; else it scales its chunk. To know the norm is one block's work
alone.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, device_function, i32, i64, jit, u32
from ..device.convert import element
from ..device.groups import make_reader, make_writer
from ..device.index import ceil_div
from ..device.vec import advance
from ..dispatch import Algorithm
from ..engine.cost import LAUNCH, Cost, memory_seconds
from ..host.launch import Argument, Launch
from ..host.table import Table
from ._norm_problem import OPS
from ._norms import THREADS, TYPES, bytes_of, final_launch, make_factor, make_report, make_sum, make_total, optional
from ._rule import make_arithmetic
from ._tables import MOST_CHUNKS, POINTERS, address_table, chunk_words, unpack

ELEMENTS = 16
CHUNK = THREADS * ELEMENTS
ROW = 3


@dataclass(frozen=True)
class Config:
    """Element types by kind, what is computed in, dtype of the norm, whether gradients are scaled, whether it is told if they are finite,
    and blocks of the first launch that are resident."""
    dtypes: tuple
    compute: str
    norm: str
    scaled: bool
    reports: bool
    resident: int


def supports(problem):
    """Arrays without gaps, one of which has elements."""
    apart = sorted(set(problem.filled) - set(problem.flat))
    if apart:
        return f"grads[{apart[0]}] has gaps: shape {problem.grads[apart[0]].shape}, strides {problem.grads[apart[0]].strides}"
    if not problem.filled:
        return "no array has elements"
    count = _chunks(problem)
    return None if count <= MOST_CHUNKS else f"{count} chunks; expected {MOST_CHUNKS} at most"


def _chunks(problem):
    return sum(ceil_div(problem.grads[k].size, CHUNK) for k in problem.flat)


def _resident(problem, device):
    """Blocks of the first launch for each multiprocessor, all there at once: as many as registers and threads leave room for."""
    return min(4 if problem.compute == "float64" else 6, device.threads_per_sm // THREADS)


def _runs(problem, device):
    """(chunks of a run, runs)."""
    chunks = _chunks(problem)
    length = ceil_div(chunks, _resident(problem, device) * device.sms)
    return length, ceil_div(chunks, length)


def workspace(problem, device, config):
    """Two numbers a run."""
    return bytes_of(_runs(problem, device)[1], problem.compute)


def estimate(problem, device, config):
    """The bytes, of which the L2 keeps some from one launch to the other, and two launches."""
    return 2 * LAUNCH + Cost(memory=memory_seconds(problem.bytes, device))


# ---- kernels

def _parts(dtype, constant):
    """What makes a pointer, and device functions that bring a thread's elements of a chunk to values and back."""
    T, per = TYPES[element(dtype).compute], 16 // element(dtype).storage.itemsize
    loads, as_pointer, load_one, store_one = ELEMENTS // per, POINTERS[dtype], element(dtype).load, element(dtype).store
    _, LENGTH, read, convert = make_reader(dtype, per, 4, constant)
    write, WORDS = make_writer(dtype, per, 4), loads * LENGTH

    @device_function
    def fetch(values, p, aligned, left):
        thread = cuda.threadIdx.x
        if aligned and left >= CHUNK:
            raw = cuda.local.array(WORDS, u32)
            for u in range(loads):
                read(raw, u * LENGTH, p, (thread + u * THREADS) * per, 1)
            for u in range(loads):
                convert(values, u * per, raw, u * LENGTH)
        else:
            for q in range(ELEMENTS):
                i, value = thread + q * THREADS, T(0)
                if i < left:
                    value = T(load_one(p, i))
                values[q] = value

    @device_function
    def put(values, p, aligned, left):
        thread = cuda.threadIdx.x
        if aligned and left >= CHUNK:
            for u in range(loads):
                write(p, (thread + u * THREADS) * per, values, u * per)
        else:
            for q in range(ELEMENTS):
                i = thread + q * THREADS
                if i < left:
                    store_one(p, i, values[q])
    return as_pointer, fetch, put


def _squares_of(dtype, compute):
    T, V = TYPES[compute], TYPES[element(dtype).compute]
    as_pointer, fetch, _ = _parts(dtype, True)

    @device_function
    def body(address, first, aligned, left, scale, squares, rest):
        values = cuda.local.array(ELEMENTS, V)
        fetch(values, advance(as_pointer(address), first), aligned, left)
        for q in range(ELEMENTS):
            value = T(T(values[q]) * scale)
            squares = T(squares + value * value)
            rest = T(rest + value * T(0))
        return squares, rest
    return body


def _scaled_of(dtype, compute):
    T, V = TYPES[compute], TYPES[element(dtype).compute]
    as_pointer, fetch, put = _parts(dtype, False)

    @device_function
    def body(address, first, aligned, left, factor, squares, rest):
        values, p = cuda.local.array(ELEMENTS, V), advance(as_pointer(address), first)
        fetch(values, p, aligned, left)
        for q in range(ELEMENTS):
            values[q] = V(T(values[q]) * factor)
        put(values, p, aligned, left)
        return squares, rest
    return body


def _any(bodies):
    """Device function ``run(kind, ...)`` that gives what body number `kind` gives."""
    only = bodies[0]

    @device_function
    def run(kind, address, first, aligned, left, number, squares, rest):
        return only(address, first, aligned, left, number, squares, rest)
    for number, body in enumerate(bodies[1:], 1):
        run = _or(run, number, body)
    return run


def _or(before, this, body):
    @device_function
    def run(kind, address, first, aligned, left, number, squares, rest):
        if kind == this:
            squares, rest = body(address, first, aligned, left, number, squares, rest)
        else:
            squares, rest = before(kind, address, first, aligned, left, number, squares, rest)
        return squares, rest
    return run


def make_visit(bodies):
    """Device function ``visit(word, table, number, squares, rest)`` of a chunk, given by its word."""
    run = _any(bodies)

    @device_function
    def visit(word, table, number, squares, rest):
        row, chunk = unpack(word)
        row, first = row * ROW, i64(chunk) * CHUNK
        left, (code, _) = i64(table[row]) - first, unpack(table[row + 1])
        return run(code >> 1, table[row + 2], first, code & 1, i32(min(left, CHUNK)), number, squares, rest)
    return visit


@functools.cache
def partial_kernel(config):
    """The sum of squares of a run of chunks per block."""
    T, compute = TYPES[config.compute], config.compute
    visit, total, RESIDENT = make_visit([_squares_of(d, compute) for d in config.dtypes]), make_sum(compute), config.resident
    scale_of, _ = make_factor(compute, config.scaled)

    @jit(launch_bounds=(THREADS, RESIDENT))
    def grads_chunks(chunks, table, partials, count, length, grad_scale):
        scratch, other = cuda.shared.array(16, T), cuda.shared.array(16, T)
        block, runs = cuda.blockIdx.x, cuda.gridDim.x
        scale, squares, rest = scale_of(grad_scale), T(0), T(0)
        for c in range(block * length, min(block * length + length, count)):
            squares, rest = visit(chunks[c], table, scale, squares, rest)
        squares, rest = total(squares, scratch), total(rest, other)
        if cuda.threadIdx.x == 0:
            partials[block] = squares
            partials[runs + block] = rest
    return grads_chunks


@functools.cache
def clip_kernel(config):
    """A chunk per block, scaled by what all partials say."""
    T, compute = TYPES[config.compute], config.compute
    visit, total = make_visit([_scaled_of(d, compute) for d in config.dtypes]), make_total(compute)
    (scale_of, factor_of), report = make_factor(compute, config.scaled), make_report(config.norm, config.reports)
    _, root = make_arithmetic(T)

    @jit(launch_bounds=(THREADS, 4))
    def clip_chunks(chunks, table, partials, count, norm, grad_scale, found_inf, max_norm):
        scratch, other = cuda.shared.array(16, T), cuda.shared.array(16, T)
        word, scale = chunks[cuda.blockIdx.x], scale_of(grad_scale)
        size = root(total(partials, 0, count, scratch))
        if cuda.blockIdx.x == 0:
            rest = total(partials, count, count, other)
            if cuda.threadIdx.x == 0:
                report(size, rest, norm, found_inf)
        factor = factor_of(size, max_norm, scale)
        if factor != T(1):
            visit(word, table, factor, T(0), T(0))
    return clip_chunks


# ---- launches

def build(problem, device, config):
    """Partials, and one block or a block per chunk."""
    kinds = {}
    rows = [(problem.grads[k].size, 2 * kinds.setdefault(problem.grads[k].dtype, len(kinds)) + (problem.grads[k].alignment >= 16))
            for k in problem.flat]
    config = Config(tuple(kinds), problem.compute, problem.norm_dtype, problem.grad_scale is not None, problem.found_inf is not None,
                    _resident(problem, device))
    words = chunk_words([size for size, _ in rows], CHUNK)
    length, runs = _runs(problem, device)
    tables = (Argument("uint64*", None, spec=Table(words)),
              Argument("uint64*", None, spec=address_table(rows, [[f"grads{k}"] for k in problem.flat])))
    partials, scale = Argument(f"{problem.compute}*", "workspace"), optional(problem, "grad_scale")
    first = Launch(partial_kernel(config), (runs, 1, 1), (THREADS, 1, 1),
                   (*tables, partials, Argument("int32", len(words)), Argument("int32", length), scale))
    if not problem.clips:
        return first, final_launch(problem, runs)
    arguments = (*tables, partials, Argument("int32", runs), Argument(f"{problem.norm_dtype}*", "out"), scale,
                 optional(problem, "found_inf"), Argument(problem.compute, "max_norm"))
    return first, Launch(clip_kernel(config), (len(words), 1, 1), (THREADS, 1, 1), arguments)


ALGORITHMS = tuple(Algorithm(op=op, name="chunks", supports=supports, workspace=workspace, estimate=estimate, build=build) for op in OPS)

"""Rows that begin anywhere: 16 bytes of y a thread, whatever they are in x.

The fastest dimension of y is cut at its multiples of 16 bytes, so that all stores but those at the two ends of a row are of 16 bytes. Where
x is contiguous along it too, a chunk is two aligned loads, shifted in registers (`_shift`): of two neighbouring threads the second load of
one is the first of the other, so the L1 has it. Ends of rows, and rows along which x has steps or runs backwards, are gathered by
elements, all of them loaded before the first is stored. `copy` is better where everything is aligned, `tiled` where neighbours of y are far
apart in x.
"""
import functools
import math
from dataclasses import dataclass

from ..device import cuda, i32, i64, u32, u64
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.vec import address, advance
from ..dispatch import Algorithm
from ..host.launch import Argument, Launch
from ._estimate import LAUNCH, divisions_seconds, moved_seconds, sector_waste, tail
from ._offsets import LIMIT, make_offsets, offset_arguments
from ._pack_words import make_pack
from ._problem import MOVES, Dim
from ._shift import WORDS, make_shift
from ._units import make_unit_moves, word_of

THREADS = 256


@dataclass(frozen=True)
class Config:
    """Bytes of an element, whether rows are contiguous in x, chunks a thread, dimensions, 64-bit offsets."""
    itemsize: int
    dense: bool
    chunks: int
    dims: int
    wide: bool

    @property
    def elements(self):
        """Elements of a chunk."""
        return 16 // self.itemsize

    def __str__(self):
        return f"{self.chunks} chunk{'s' * (self.chunks > 1)}"


def _counted(form):
    """The dimensions of the grid's chunks, the last of them chunks of a row, which move nothing."""
    *outer, last = form.dims
    chunks = ceil_div(last.size + 16 // form.itemsize - 1, 16 // form.itemsize)
    return (*outer, Dim(chunks, 0, 0))


def _count(form):
    return math.prod(d.size for d in _counted(form))


def supports(problem):
    """Rows that are contiguous in y."""
    form = problem.canonical
    if form.dims[-1].y != 1:
        return f"no dimension is contiguous in y: the least stride is {form.dims[-1].y}"
    if max(_count(form), form.dims[-1].size + 32) >= LIMIT - 2 ** 20:
        return f"{_count(form)} chunks, rows of {form.dims[-1].size} elements; expected fewer than 2**31 - 2**20 of either"
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def configs(problem, device):
    """Two chunks a thread where a row may be two loads, and one."""
    form = problem.canonical
    dense = form.dims[-1].x == 1
    return [Config(form.itemsize, dense, n, len(form.dims), form.is_wide) for n in ((2, 1) if dense else (1,))]


def estimate(problem, device, config):
    """Sectors, the instructions of chunks, and rows whose ends are gathered; a gathered element is a load of its own."""
    form = problem.canonical
    last, count = form.dims[-1], _count(form)
    spread = 1 if config.dense else min(max(abs(last.x), 1) * config.itemsize, 32) / config.itemsize
    run = last.size * config.itemsize
    moved = moved_seconds(problem.read_bytes * max(spread, sector_waste(run, config.itemsize))
                          + problem.y.nbytes * sector_waste(run, config.itemsize), device)
    gathered = min(count, 32 * 2 * count // _counted(form)[-1].size) if config.dense else count  # a warp waits for its slowest lane
    issue = divisions_seconds(count, 60 + 12 * config.dims, device) + divisions_seconds(gathered, 8 * config.elements, device)
    lines = 0 if config.dense else count * config.elements / 8 / (device.sms * device.clock_hz)
    few = 1.03 if config.chunks == 1 else 1.0
    return LAUNCH + max(moved * few, issue, lines) * tail(ceil_div(count, THREADS * config.chunks), 8, device)


@functools.cache
def kernel(config):
    """y[...] = x[...], `chunks` chunks a thread."""
    size, N, V, DENSE = config.itemsize, config.chunks, config.elements, config.dense
    SCALE, LOG = word_of(size)[2], size.bit_length() - 1
    load_one, store_one, _, _, ONE = make_unit_moves(size, size)
    _, store, _, _, _ = make_unit_moves(16, size)
    fetch, shift = make_shift(size)
    pack, _ = make_pack(size, V)
    offsets, Int = make_offsets(config.dims, config.wide), i64 if config.wide else i32
    HELD, PARTS, SPAN = N * WORDS, V * ONE, THREADS * config.chunks

    @cuda.jit(launch_bounds=(THREADS, 4))
    def transpose_rows(x, y, count, row, chunks, step, low, high, x_first, y_first, divisors, strides):
        words, skews = cuda.local.array(HELD, u32), cuda.local.array(N, i32)
        begins, x_ats, y_ats = cuda.local.array(N, i32), cuda.local.array(N, Int), cuda.local.array(N, Int)
        index0 = i32(i32(cuda.blockIdx.x) * i32(SPAN) + i32(cuda.threadIdx.x))
        x, y = advance(x, i64(x_first * SCALE)), advance(y, i64(y_first * SCALE))
        for n in range(N):
            index = i32(index0 + n * THREADS)
            x_at, y_at = offsets(index, divisors, strides)
            _, chunk = divide_remainder(index, chunks)
            lead = i32(i32(u64(address(advance(y, Int(y_at * SCALE)), 0)) & u64(15)) >> LOG)
            begin = i32(i32(chunk * V) - lead)
            begins[n], x_ats[n], y_ats[n] = begin if index < count else row, x_at, y_at
            if DENSE:
                at = i64(i64(x_at) + begin)
                skews[n] = fetch(words, n * WORDS, advance(x, i64(at * SCALE)), i64(at - low), i64(high - at),
                                 index < count and begin >= 0 and i32(begin + V) <= row)
            else:
                skews[n] = i32(-1)
        for n in range(N):
            begin, x_at, y_at = begins[n], x_ats[n], y_ats[n]
            y_here = advance(y, i64((i64(y_at) + begin) * SCALE))
            if skews[n] >= 0:
                shift(words, n * WORDS, skews[n])
                store(y_here, words, n * WORDS)
            elif begin < row:
                parts = cuda.local.array(PARTS, u32)
                for v in range(V):
                    i = i32(begin + v)
                    load_one(parts, v * ONE, advance(x, Int(Int(x_at + Int(i) * step) * SCALE)), i32(i >= 0 and i < row))
                if begin >= 0 and i32(begin + V) <= row:
                    pack(parts, words)
                    store(y_here, words, 0)
                else:
                    for v in range(V):
                        if i32(begin + v) >= 0 and i32(begin + v) < row:
                            store_one(advance(y_here, v * SCALE), parts, v * ONE)
    return transpose_rows


def build(problem, device, config, source=("x", 0), target=("y", 0)):
    """One launch. `source` and `target` are the names of the two pointers and byte offsets to them."""
    form, dims = problem.canonical, _counted(problem.canonical)
    _, name, _ = word_of(form.itemsize)
    low, high = (v // form.itemsize - form.x_first for v in problem.x.extent)
    arguments = (Argument(name + "*", source[0], offset=source[1]), Argument(name + "*", target[0], offset=target[1]),
                 Argument("int32", _count(form)), Argument("int32", form.dims[-1].size), Argument("uint32x3", divisor(dims[-1].size)),
                 Argument("int64" if config.wide else "int32", form.dims[-1].x), Argument("int64", low), Argument("int64", high),
                 Argument("int64", form.x_first), Argument("int64", form.y_first), *offset_arguments(dims, config.wide))
    return (Launch(kernel(config), (ceil_div(_count(form), THREADS * config.chunks), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHMS = tuple(Algorithm(op=op, name="rows", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs)
                   for op in MOVES)

"""Runs of elements that are 16 to 32 bytes on the wider side.

A thread converts from 2 to 16 neighbours: as many as are 16 bytes on the narrower side, or 32 on the wider one if that is less. It loads
them in units of up to 16 bytes, unpacks, scales and rounds them in registers, and stores them in such units; a run at the end of a row,
which has fewer, goes one by one. Where rows are not aligned to 16 bytes the units are smaller, on that side alone. It is bound by memory:
float32 to bfloat16 takes 3 instructions per element.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, i64, jit, u32
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.vec import advance
from ..dispatch import Algorithm
from ..engine.ahead import make_follow
from ..engine.constants import constants
from ..engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap, sector_waste, tail
from ..engine.offsets import LIMIT, make_offsets, offset_arguments
from ..engine.pack_words import make_pack
from ..engine.values import COMPUTE, element, make_convert, make_unpack, make_words
from ..engine.vectors import UNITS, make_unit_moves, word_of
from ..host.canonical import Dim
from ..host.dtypes import ITEMSIZE
from ..host.launch import Argument, Launch

COST = constants("transform/cast_vector")

THREADS = 256


@dataclass(frozen=True)
class Config:
    """Element types, whether there is a scale, bytes of a unit of either side, dimensions, 64-bit offsets."""
    x_dtype: str
    y_dtype: str
    scaled: bool
    unit_x: int
    unit_y: int
    dims: int
    wide: bool

    @property
    def elements(self):
        """Elements of a run."""
        return run_length(ITEMSIZE[self.x_dtype], ITEMSIZE[self.y_dtype])

    def __str__(self):
        return f"units {self.unit_x} and {self.unit_y}"


def run_length(one, other):
    """Elements of a run, from the bytes of an element of either type."""
    wide, narrow = max(one, other), min(one, other)
    return max(16 // wide, min(32 // wide, 16 // narrow))


def _runs(problem):
    """Dimensions with runs in place of the elements of the last one."""
    *rest, last = problem.canonical.dims
    n = run_length(problem.x.itemsize, problem.y.itemsize)
    return (*rest, Dim(ceil_div(last.size, n), n, n))


def _unit(tensor, first, strides, n):
    """The largest unit to which every run of n elements is aligned."""
    size, offset = tensor.itemsize, first * tensor.itemsize
    alignment = min(tensor.alignment, offset & -offset or 16)
    fits = (u for u in UNITS if size < u <= n * size and u >= 4 and all(v % u == 0 for v in (alignment, *(s * size for s in strides))))
    return next(fits, size)


def supports(problem):
    """Rows that are contiguous in both arrays."""
    last = problem.canonical.dims[-1]
    if (last.x, last.y) != (1, 1):
        return f"the dimension that is contiguous in y has strides {last.y} in y and {last.x} in x; expected 1 in both"
    if max(last.size + 32, _count(problem) + 2 ** 20) >= LIMIT:
        return f"{_count(problem)} runs, rows of {last.size} elements; expected fewer than 2**31 - 2**20 of either"
    return None


def _count(problem):
    count = 1
    for d in _runs(problem):
        count *= d.size
    return count


def workspace(problem, device, config):
    """None."""
    return 0


def _config(problem):
    form = problem.canonical
    *rest, _ = form.dims
    n = run_length(problem.x.itemsize, problem.y.itemsize)
    return Config(problem.x.dtype, problem.y.dtype, problem.scale, _unit(problem.x, form.x_first, [d.x for d in rest], n),
                  _unit(problem.y, form.y_first, [d.y for d in rest], n), len(form.dims), form.is_wide)


def estimate(problem, device, config):
    """Sectors, and what short units and dimensions cost."""
    config, row = _config(problem), problem.canonical.dims[-1].size
    nbytes = sum(t.nbytes * sector_waste(row * t.itemsize, unit) for t, unit in ((problem.x, config.unit_x), (problem.y, config.unit_y)))
    units = sum(config.elements * t.itemsize / unit for t, unit in ((problem.x, config.unit_x), (problem.y, config.unit_y)))
    a_thread = COST.thread + COST.dimension * config.dims + COST.element * config.elements + COST.access * units
    work = overlap(memory=memory_seconds(nbytes, device), issue=issue_seconds(_count(problem), a_thread, device))
    return LAUNCH + work.slowed(tail=tail(ceil_div(_count(problem), THREADS), COST.blocks, device))


@functools.cache
def kernel(config, dependent):
    """y[...] = scale * x[...], a run a thread."""
    size_x, size_y, N = ITEMSIZE[config.x_dtype], ITEMSIZE[config.y_dtype], config.elements
    SCALE_X, SCALE_Y = word_of(size_x)[2], word_of(size_y)[2]
    load, _, _, _, LOADED = make_unit_moves(config.unit_x, size_x)
    _, store, _, _, STORED = make_unit_moves(config.unit_y, size_y)
    load_one, _, _, _, _ = make_unit_moves(size_x, size_x)
    _, store_one, _, _, _ = make_unit_moves(size_y, size_y)
    widen, _ = make_words(config.x_dtype, size_x)
    _, narrow = make_words(config.y_dtype, size_y)
    unpack, _ = make_unpack(config.x_dtype, N)
    _, pack = make_unpack(config.y_dtype, N)
    gather, _ = make_pack(size_x, N)
    X, Y = COMPUTE[element(config.x_dtype).compute], COMPUTE[element(config.y_dtype).compute]
    LOADS, STORES = N * size_x // config.unit_x, N * size_y // config.unit_y
    IN_X, IN_Y = config.unit_x * SCALE_X // size_x, config.unit_y * SCALE_Y // size_y   # of the pointer's type in a unit
    SINGLE_X, SINGLE_Y = config.unit_x < 4, config.unit_y < 4
    PARTS, WORDS_X, WORDS_Y = LOADS * LOADED, N * size_x // 4, N * size_y // 4
    convert, offsets = make_convert(config.x_dtype, config.y_dtype, config.scaled), make_offsets(config.dims, config.wide)

    begin = make_follow(dependent)

    @jit(launch_bounds=(THREADS, 4))
    def cast_vector(x, y, count, row, runs, x_first, y_first, divisors, strides, scale):
        begin()
        index = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if index < count:
            values = cuda.local.array(N, X)
            results = cuda.local.array(N, Y)
            parts = cuda.local.array(PARTS, u32)
            words = cuda.local.array(WORDS_X, u32)
            made = cuda.local.array(WORDS_Y, u32)
            one = cuda.local.array(2, u32)
            x_at, y_at = offsets(index, divisors, strides)
            x, y = advance(x, x_first + i64(x_at) * SCALE_X), advance(y, y_first + i64(y_at) * SCALE_Y)
            _, run = divide_remainder(index, runs)
            left = row - run * N
            if left >= N:
                for n in range(LOADS):
                    load(parts, n * LOADED, advance(x, n * IN_X), 1)
                if SINGLE_X:
                    gather(parts, words)
                    unpack(values, words)
                else:
                    unpack(values, parts)
                for n in range(N):
                    results[n] = convert(values[n], scale)
                if SINGLE_Y:
                    for n in range(N):
                        results[0] = results[n]
                        narrow(one, results)
                        store_one(advance(y, n), one, 0)
                else:
                    pack(made, results)
                    for n in range(STORES):
                        store(advance(y, n * IN_Y), made, n * STORED)
            else:
                for n in range(left):
                    load_one(one, 0, advance(x, n * SCALE_X), 1)
                    widen(values, one, 0)
                    results[0] = convert(values[0], scale)
                    narrow(one, results)
                    store_one(advance(y, n * SCALE_Y), one, 0)
    return cast_vector


def build(problem, device, config, source=("x", 0), target=("y", 0)):
    """One launch."""
    form, config, runs = problem.canonical, _config(problem), _runs(problem)
    arguments = (*(Argument(word_of(t.itemsize)[1] + "*", name, offset=offset)
                   for t, (name, offset) in ((problem.x, source), (problem.y, target))),
                 Argument("int32", _count(problem)), Argument("int32", form.dims[-1].size), Argument("uint32x3", divisor(runs[-1].size)),
                 *(Argument("int64", first * word_of(t.itemsize)[2])
                   for first, t in ((form.x_first, problem.x), (form.y_first, problem.y))),
                 *offset_arguments(runs, config.wide), Argument(problem.compute, "scale" if problem.scale else 1.0))
    dependent = device.capability >= (9, 0)
    return (Launch(kernel(config, dependent), (ceil_div(_count(problem), THREADS), 1, 1), (THREADS, 1, 1), arguments,
                   dependent=dependent),)


ALGORITHM = Algorithm(op="cast", name="vector", supports=supports, workspace=workspace, estimate=estimate, build=build)

"""Sixteen bytes a store, one or two calls of Philox a thread.

A thread owns as many neighbours as are 16 bytes, four at least: 8 elements of 16 bits, 4 floats. Where y is not aligned to 16 bytes its
accesses are shorter; a run at the end of a row, which has fewer elements, goes one by one. A call of Philox is some fifty instructions for
four elements: 32-bit elements are bound by memory, 16-bit ones by instructions.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, f32, jit, u32
from ..device.convert import element
from ..device.groups import access_words, make_writer, scalar_of
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.philox import make_word
from ..device.vec import advance
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap, tail
from ..engine.dropout_bits import draw
from ..engine.offsets import LIMIT, make_offsets, offset_arguments
from ..host import seeds
from ..host.canonical import Dim
from ..host.launch import Argument, Launch
from ._random_numbers import make_fill
from ._random_problem import GROUP

COST = constants("dropout/vector")

THREADS = 256


@dataclass(frozen=True)
class Config:
    """Element type, distribution, elements a thread, words of an access, dimensions, 64-bit offsets; whether the seed and the offset are
    read from memory."""
    dtype: str
    distribution: str
    run: int
    words: int
    dims: int
    wide: bool
    seed_array: bool
    offset_array: bool

    def __str__(self):
        return f"{self.run} elements, {4 * self.words} bytes"


def supports(problem):
    """Rows that are contiguous, of whole runs where there are several."""
    last, run = problem.dims[-1], _run(problem)
    if last.y != 1:
        return f"the last dimension has stride {last.y}; expected 1"
    if len(problem.dims) > 1 and last.size % run:
        return f"rows of {last.size} elements are apart; expected a multiple of {run}"
    groups = _count(problem) * (run // GROUP)
    return None if groups + 2 ** 20 < LIMIT else f"{groups} groups of four elements; expected fewer than 2**31 - 2**20"


def workspace(problem, device, config):
    """None."""
    return 0


def _run(problem):
    return max(GROUP, 16 // problem.y.itemsize)


def _count(problem):
    return ceil_div(problem.size, _run(problem))


def _config(problem):
    run = _run(problem)
    return Config(problem.dtype, problem.distribution, run, access_words(problem.y, run, [d.y for d in problem.dims[:-1]]),
                  len(problem.dims), problem.is_wide, *seeds.reads(problem))


def estimate(problem, device, config):
    """Bytes, or the instructions: of calls of Philox, of elements and of accesses."""
    config = _config(problem)
    accesses = config.run * problem.y.itemsize / (4 * config.words or problem.y.itemsize)
    a_thread = (COST.thread + COST.dimension * config.dims + COST.philox * config.run / GROUP + COST.element * config.run
                + COST.access * accesses)
    work = overlap(memory=memory_seconds(problem.bytes, device), issue=issue_seconds(_count(problem), a_thread, device))
    return LAUNCH + work.slowed(tail=tail(ceil_div(_count(problem), THREADS), COST.blocks, device))


@functools.cache
def kernel(config):
    """y, a run a thread."""
    put, fill, store, T = (make_writer(config.dtype, config.run, config.words), make_fill(config.distribution),
                           element(config.dtype).store, scalar_of(config.dtype))
    seed_of, offset_of, offsets = make_word(config.seed_array), make_word(config.offset_array), make_offsets(config.dims, config.wide)
    RUN, GROUPS, ROWS = config.run, config.run // GROUP, config.dims > 1

    @jit(launch_bounds=(THREADS, 4))
    def random_fill_vector(y, count, whole, rest, runs, divisors, strides, seed, offset, first, second):
        index = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if index < count:
            words, values, results = cuda.local.array(4, u32), cuda.local.array(RUN, f32), cuda.local.array(RUN, T)
            for g in range(GROUPS):
                draw(words, 0, seed_of(seed), offset_of(offset), index * GROUPS + g)
                fill(values, g * GROUP, words, first, second)
            for k in range(RUN):
                results[k] = values[k]
            _, at = offsets(index, divisors, strides)
            y, run = advance(y, at), index
            if ROWS:
                _, run = divide_remainder(index, runs)
            if run < whole:
                put(y, 0, results, 0)
            else:
                for k in range(RUN):
                    if k < rest:
                        store(y, k, results[k])
    return random_fill_vector


def build(problem, device, config):
    """One launch."""
    config = _config(problem)
    *outer, last = problem.dims
    runs = (*outer, Dim(ceil_div(last.size, config.run), config.run, config.run))
    extents = (Argument("int32", n) for n in (_count(problem), *divmod(last.size, config.run)))
    numbers = (Argument("float32", name) for name in ("first", "second"))
    arguments = (Argument(element(problem.dtype).pointer, "y"), *extents, Argument("uint32x3", divisor(runs[-1].size)),
                 *offset_arguments(runs, config.wide), *seeds.arguments(problem), *numbers)
    return (Launch(kernel(config), (ceil_div(_count(problem), THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHM = Algorithm(op="random_fill", name="vector", supports=supports, workspace=workspace, estimate=estimate, build=build)

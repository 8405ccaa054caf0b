"""Sixteen bytes a load, one or two calls of Philox a thread.

A thread owns as many neighbours as are two loads of 16 bytes, eight at least: 16 elements of 16 bits, 8 floats. All loads are in flight
before the random bits are drawn, which takes some fifty instructions for eight elements, twenty of them at half rate, and is hidden by
them. With all that is done to an element they are sixteen in 16-bit types, where a copy leaves time for some twenty-seven. Where an array
is not aligned to 16 bytes its accesses are shorter, on that side alone. A run at the end of a row, which has fewer elements, goes one by
one.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, i32, i64, jit, u8, u32
from ..device.convert import element
from ..device.groups import access_words, make_reader, make_writer, scalar_of
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.philox import make_word
from ..device.vec import advance
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap, tail
from ..engine.dropout_bits import GROUP, bit_of, draw, is_kept, make_kept
from ..engine.offsets import LIMIT, make_offsets, offset_arguments
from ..host import seeds
from ..host.canonical import Dim
from ..host.launch import Argument, Launch

COST = constants("dropout/vector")

THREADS = 256


@dataclass(frozen=True)
class Config:
    """Element type, elements a thread, words of an access of either array, dimensions, 64-bit offsets, whether both arrays are one;
    whether the seed and the offset are read from memory."""
    dtype: str
    run: int
    x_words: int
    y_words: int
    dims: int
    wide: bool
    in_place: bool
    seed_array: bool = False
    offset_array: bool = False

    @property
    def groups(self):
        """Bytes of the mask a thread."""
        return self.run // GROUP

    def __str__(self):
        return f"{self.run} elements, {4 * self.x_words} and {4 * self.y_words} bytes"


def supports(problem):
    """Rows that are contiguous in both arrays, of whole runs where there are several."""
    last, run = problem.dims[-1], _run(problem)
    if (last.x, last.y) != (1, 1):
        return f"the last dimension has strides {last.x} and {last.y}; expected 1 in both arrays"
    if len(problem.dims) > 1 and last.size % run:
        return f"rows of {last.size} elements are apart; expected a multiple of {run}"
    return None if _count(problem) + 2 ** 20 < LIMIT else f"{_count(problem)} runs; expected fewer than 2**31 - 2**20"


def workspace(problem, device, config):
    """None."""
    return 0


def _run(problem):
    return max(GROUP, 32 // problem.source.itemsize)


def _count(problem):
    return ceil_div(problem.size, _run(problem))


def _config(problem):
    run, outer = _run(problem), problem.dims[:-1]
    return Config(problem.dtype, run, access_words(problem.source, run, [d.x for d in outer]),
                  access_words(problem.result, run, [d.y for d in outer]), len(problem.dims), problem.is_wide, problem.in_place,
                  *seeds.reads(problem))


def estimate(problem, device, config):
    """Bytes, or the instructions: of calls of Philox, at its rate, of elements and of accesses."""
    config = _config(problem)
    accesses = sum(config.run * problem.source.itemsize / (4 * words or problem.source.itemsize)
                   for words in (config.x_words, config.y_words))
    random = COST.philox * config.groups if problem.op == "dropout_fwd" else 0
    a_thread = COST.thread + COST.dimension * config.dims + random + COST.element * config.run + COST.access * accesses
    work = overlap(memory=memory_seconds(problem.bytes, device), issue=issue_seconds(_count(problem), a_thread, device))
    return LAUNCH + work.slowed(tail=tail(ceil_div(_count(problem), THREADS), COST.blocks, device))


def _parts(config):
    """What kernels of both directions are made of."""
    SCALAR, LENGTH, fetch, unpack = make_reader(config.dtype, config.run, config.x_words, not config.in_place)
    put, kept, T = make_writer(config.dtype, config.run, config.y_words), make_kept(config.dtype), scalar_of(config.dtype)
    return SCALAR, LENGTH, fetch, unpack, put, kept, T, element(config.dtype).load, element(config.dtype).store


@functools.cache
def forward_kernel(config):
    """y and mask from x, a run a thread."""
    SCALAR, LENGTH, fetch, unpack, put, kept, T, load, store = _parts(config)
    RUN, GROUPS, offsets = config.run, config.groups, make_offsets(config.dims, config.wide)
    seed_of, offset_of = make_word(config.seed_array), make_word(config.offset_array)
    WORDS, ROWS, Int = 4 * GROUPS, config.dims > 1, i64 if config.wide else i32

    @jit(launch_bounds=(THREADS, 4))
    def dropout_fwd_vector(x, y, mask, count, row, runs, divisors, strides, seed, offset, threshold, factor):
        index = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if index < count:
            buffer, values, words = cuda.local.array(LENGTH, SCALAR), cuda.local.array(RUN, T), cuda.local.array(WORDS, u32)
            x_at, y_at = offsets(index, divisors, strides)
            x, y = advance(x, i64(x_at)), advance(y, i64(y_at))
            run = index
            if ROWS:
                _, run = divide_remainder(index, runs)
            left, group, bits = min(Int(row - Int(run) * Int(RUN)), Int(RUN)), i64(index) * GROUPS, u32(0)
            whole = left >= RUN
            if whole:
                fetch(buffer, 0, x, 0, 1)
            for g in range(GROUPS):
                draw(words, 4 * g, seed_of(seed), offset_of(offset), group + g)
            if whole:
                unpack(values, 0, buffer, 0)
                for k in range(RUN):
                    keep = is_kept(words, k, threshold)
                    values[k] = kept(values[k], factor, keep)
                    if keep:
                        bits = bits | u32(1 << k)
                put(y, 0, values, 0)
            else:
                for k in range(RUN):
                    if k < left:
                        keep = is_kept(words, k, threshold)
                        store(y, k, kept(load(x, k), factor, keep))
                        if keep:
                            bits = bits | u32(1 << k)
            for g in range(GROUPS):
                if g * GROUP < left:
                    mask[group + g] = u8((bits >> u32(8 * g)) & 255)
    return dropout_fwd_vector


@functools.cache
def backward_kernel(config):
    """dx from dy and mask, a run a thread."""
    SCALAR, LENGTH, fetch, unpack, put, kept, T, load, store = _parts(config)
    RUN, GROUPS, offsets = config.run, config.groups, make_offsets(config.dims, config.wide)
    ROWS, Int = config.dims > 1, i64 if config.wide else i32

    @jit(launch_bounds=(THREADS, 4))
    def dropout_bwd_vector(dy, dx, mask, count, row, runs, divisors, strides, factor):
        index = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if index < count:
            buffer, values, bits = cuda.local.array(LENGTH, SCALAR), cuda.local.array(RUN, T), cuda.local.array(GROUPS, u32)
            dy_at, dx_at = offsets(index, divisors, strides)
            dy, dx = advance(dy, i64(dy_at)), advance(dx, i64(dx_at))
            run = index
            if ROWS:
                _, run = divide_remainder(index, runs)
            left, group = min(Int(row - Int(run) * Int(RUN)), Int(RUN)), i64(index) * GROUPS
            if left >= RUN:
                fetch(buffer, 0, dy, 0, 1)
                for g in range(GROUPS):
                    bits[g] = u32(mask[group + g])
                unpack(values, 0, buffer, 0)
                for k in range(RUN):
                    values[k] = kept(values[k], factor, bit_of(bits[k >> 3], k & 7))
                put(dx, 0, values, 0)
            else:
                for k in range(left):
                    word = u32(mask[group + (k >> 3)])
                    store(dx, k, kept(load(dy, k), factor, bit_of(word, k & 7)))
    return dropout_bwd_vector


def build(problem, device, config):
    """One launch."""
    config, forward = _config(problem), problem.op == "dropout_fwd"
    *outer, last = problem.dims
    runs = (*outer, Dim(ceil_div(last.size, config.run), config.run, config.run))
    numbers = ("threshold", "factor") if forward else ("factor",)
    arguments = (*(Argument(element(problem.dtype).pointer, name) for name in (("x", "y") if forward else ("dy", "dx"))),
                 Argument("uint8*", "mask"), Argument("int32", _count(problem)), Argument("int64" if config.wide else "int32", last.size),
                 Argument("uint32x3", divisor(runs[-1].size)), *offset_arguments(runs, config.wide),
                 *(seeds.arguments(problem) if forward else ()),
                 *(Argument(problem.scalar_types.get(name, problem.compute), name) for name in numbers))
    kernel = (forward_kernel if forward else backward_kernel)(config)
    return (Launch(kernel, (ceil_div(_count(problem), THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHMS = tuple(Algorithm(op=op, name="vector", supports=supports, workspace=workspace, estimate=estimate, build=build)
                   for op in ("dropout_fwd", "dropout_bwd"))

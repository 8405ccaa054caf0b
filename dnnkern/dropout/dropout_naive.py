"""One thread a byte of the mask: eight elements, one after the other.

Straight from the definition, for any strides and any number of elements; each coordinate costs a division of 64-bit integers.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, i64, jit, u8, u32
from ..device.convert import element
from ..device.philox import make_word
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
from ..engine.dropout_bits import GROUP, bit_of, draw, is_kept, make_kept
from ..engine.offsets import make_offsets64, offset_arguments64
from ..host import seeds
from ..host.launch import Argument, Launch

COST = constants("dropout/naive")

THREADS = 256


@dataclass(frozen=True)
class Config:
    """Element type, number of dimensions, whether the seed and the offset are read from memory."""
    dtype: str
    dims: int
    seed_array: bool = False
    offset_array: bool = False


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """A 32-byte sector an access where the elements of neighbouring threads are that far apart, and the divisions."""
    last = problem.dims[-1]
    spread = sum(min(32, max(abs(s), 1) * GROUP * problem.source.itemsize) for s in (last.x, last.y))
    issue = issue_seconds(problem.size, COST.thread + COST.dimension * len(problem.dims), device)
    return LAUNCH + overlap(issue=issue, memory=memory_seconds(problem.size * spread + problem.mask.nbytes, device))


@functools.cache
def forward_kernel(config):
    """y and mask from x."""
    load, store, kept = element(config.dtype).load, element(config.dtype).store, make_kept(config.dtype)
    offsets, seed_of, offset_of = make_offsets64(config.dims), make_word(config.seed_array), make_word(config.offset_array)

    @jit(launch_bounds=THREADS)
    def dropout_fwd_naive(x, y, mask, elements, sizes, strides, seed, offset, threshold, factor):
        group = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        first = group * GROUP
        if first < elements:
            words, bits = cuda.local.array(4, u32), u32(0)
            draw(words, 0, seed_of(seed), offset_of(offset), group)
            for k in range(GROUP):
                if first + k < elements:
                    keep = is_kept(words, k, threshold)
                    x_at, y_at = offsets(first + k, sizes, strides)
                    store(y, y_at, kept(load(x, x_at), factor, keep))
                    if keep:
                        bits = bits | u32(1 << k)
            mask[group] = u8(bits)
    return dropout_fwd_naive


@functools.cache
def backward_kernel(config):
    """dx from dy and mask."""
    load, store, kept = element(config.dtype).load, element(config.dtype).store, make_kept(config.dtype)
    offsets = make_offsets64(config.dims)

    @jit(launch_bounds=THREADS)
    def dropout_bwd_naive(dy, dx, mask, elements, sizes, strides, factor):
        group = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        first = group * GROUP
        if first < elements:
            bits = u32(mask[group])
            for k in range(min(elements - first, GROUP)):
                dy_at, dx_at = offsets(first + k, sizes, strides)
                store(dx, dx_at, kept(load(dy, dy_at), factor, bit_of(bits, k)))
    return dropout_bwd_naive


def build(problem, device, config):
    """One launch."""
    forward = problem.op == "dropout_fwd"
    kernel = forward_kernel(Config(problem.dtype, len(problem.dims), *seeds.reads(problem))) if forward else \
        backward_kernel(Config(problem.dtype, len(problem.dims)))
    numbers = ("threshold", "factor") if forward else ("factor",)
    arguments = (*(Argument(element(problem.dtype).pointer, name) for name in (("x", "y") if forward else ("dy", "dx"))),
                 Argument("uint8*", "mask"), Argument("int64", problem.size), *offset_arguments64(problem.dims),
                 *(seeds.arguments(problem) if forward else ()),
                 *(Argument(problem.scalar_types.get(name, problem.compute), name) for name in numbers))
    return (Launch(kernel, (-(-problem.mask.size // THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHMS = tuple(Algorithm(op=op, name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build)
                   for op in ("dropout_fwd", "dropout_bwd"))

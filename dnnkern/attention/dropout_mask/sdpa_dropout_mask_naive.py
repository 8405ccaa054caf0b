"""One thread per eight keys of a row, the words of one call of Philox.

Any strides, any number of elements: the bits are those that the attention kernels draw again and do not store.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, i64, jit
from ...device.convert import element
from ...device.index import ceil_div, divided
from ...device.philox import make_stream_seed, philox
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
from ...engine.dropout_bits import bit_of
from ...host import seeds
from ...host.launch import Argument, Launch
from .._parameters import Strides
from .._scores import kept_of_eight
from ._problem import GROUP, OP

COST = constants("attention/dropout_mask")

THREADS = 256


@dataclass(frozen=True)
class Config:
    """Element type; whether the seed and the offset are read from memory."""
    dtype: str
    seed_array: bool
    offset_array: bool


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def threads_of(problem):
    """Groups of all rows."""
    b, h, s, n = problem.y.shape
    return b * h * s * ceil_div(n, GROUP)


def estimate(problem, device, config):
    """A sector an access where neighbouring elements are apart; the instructions of Philox."""
    spread = min(32, max(abs(problem.y.strides[-1]), 1) * problem.y.itemsize)
    issue = issue_seconds(threads_of(problem), COST.thread + COST.element * GROUP, device)
    return LAUNCH + overlap(issue=issue, memory=memory_seconds(problem.size * spread, device))


@functools.cache
def kernel(config):
    """y, eight keys a thread."""
    store, seed_of = element(config.dtype).store, make_stream_seed(config.seed_array, config.offset_array)

    @jit(launch_bounds=THREADS)
    def sdpa_dropout_mask_naive(y, threads, heads, rows, keys, groups, strides, seed, offset, threshold):
        index = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if index < threads:
            line, group = divided(index, groups)
            head, i = divided(line, rows)
            b, h = divided(head, heads)
            bits = kept_of_eight(philox(seed_of(seed, offset), (head << 32) + i, group), threshold)
            at = b * strides.batch + h * strides.head + i * strides.row
            for k in range(GROUP):
                j = group * GROUP + k
                if j < keys:
                    store(y, at + j * strides.column, 1 if bit_of(bits, k) else 0)
    return sdpa_dropout_mask_naive


def build(problem, device, config):
    """One launch."""
    p, (_, heads, rows, keys) = problem, problem.y.shape
    threads, config = threads_of(p), Config(p.dtype, *seeds.reads(p))
    numbers = (Argument("int64", n) for n in (threads, heads, rows, keys, ceil_div(keys, GROUP)))
    arguments = (Argument(element(p.dtype).pointer, "y"), *numbers, Argument(Strides, p.y.strides), *seeds.arguments(p),
                 Argument("uint32", "threshold"))
    return (Launch(kernel(config), (ceil_div(threads, THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHM = Algorithm(op=OP, name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build)

"""One thread per four elements, the words of one call of Philox, one after the other.

Straight from the definition, for any strides and any number of elements; each coordinate costs a division of 64-bit integers.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, f32, i64, jit, u32
from ..device.convert import element
from ..device.philox import make_word
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
from ..engine.dropout_bits import draw
from ..engine.offsets import make_offsets64, offset_arguments64
from ..host import seeds
from ..host.launch import Argument, Launch
from ._random_numbers import make_fill
from ._random_problem import GROUP

COST = constants("dropout/naive")

THREADS = 256


@dataclass(frozen=True)
class Config:
    """Element type, distribution, number of dimensions, whether the seed and the offset are read from memory."""
    dtype: str
    distribution: str
    dims: int
    seed_array: bool
    offset_array: bool


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """A 32-byte sector an access where the elements of neighbouring threads are that far apart, and the divisions."""
    spread = min(32, max(abs(problem.dims[-1].y), 1) * GROUP * problem.y.itemsize)
    issue = issue_seconds(problem.size, COST.thread + COST.dimension * len(problem.dims), device)
    return LAUNCH + overlap(issue=issue, memory=memory_seconds(problem.size * spread, device))


@functools.cache
def kernel(config):
    """y, four elements a thread."""
    store, fill, offsets = element(config.dtype).store, make_fill(config.distribution), make_offsets64(config.dims)
    seed_of, offset_of = make_word(config.seed_array), make_word(config.offset_array)

    @jit(launch_bounds=THREADS)
    def random_fill_naive(y, elements, sizes, strides, seed, offset, first, second):
        group = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        begin = group * GROUP
        if begin < elements:
            words, values = cuda.local.array(4, u32), cuda.local.array(4, f32)
            draw(words, 0, seed_of(seed), offset_of(offset), group)
            fill(values, 0, words, first, second)
            for k in range(GROUP):
                if begin + k < elements:
                    _, at = offsets(begin + k, sizes, strides)
                    store(y, at, values[k])
    return random_fill_naive


def build(problem, device, config):
    """One launch."""
    compiled = kernel(Config(problem.dtype, problem.distribution, len(problem.dims), *seeds.reads(problem)))
    arguments = (Argument(element(problem.dtype).pointer, "y"), Argument("int64", problem.size), *offset_arguments64(problem.dims),
                 *seeds.arguments(problem), *(Argument("float32", name) for name in ("first", "second")))
    groups = -(-problem.size // GROUP)
    return (Launch(compiled, (-(-groups // THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHM = Algorithm(op="random_fill", name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build)

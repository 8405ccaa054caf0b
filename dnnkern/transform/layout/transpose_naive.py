"""One thread per element of y, straight from the definition.

Element i of y, counted in the order in which y lies in memory, comes from the offset in x that its coordinates give. Stores are coalesced;
loads are not, unless the fastest dimension stays the fastest. Any strides, broadcast and negative ones included, any number of elements.
Each coordinate costs a division of 64-bit integers: it is what the others are compared with, and what is left for arrays that are neither
contiguous along anything nor worth more.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, i64, jit
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
from ...engine.offsets import make_offsets64, offset_arguments64
from ...host.launch import Argument, Launch
from .._problem import MOVES

COST = constants("transform/naive")

THREADS = 256


@dataclass(frozen=True)
class Config:
    """Number of dimensions."""
    dims: int


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """A 32-byte sector a load where neighbours of y are apart in x, and the divisions, which precede it."""
    form = problem.canonical
    spread = min(32, max(abs(form.dims[-1].x), 1) * form.itemsize) // form.itemsize
    divisions = issue_seconds(form.size, COST.dimension * len(form.dims), device)
    return LAUNCH + overlap(
        issue=divisions, memory=memory_seconds(problem.read_bytes * spread + problem.y.nbytes, device), exposed=COST.exposed)


@functools.cache
def kernel(config):
    """y[...] = x[...], an element a thread."""
    offsets = make_offsets64(config.dims)

    @jit(launch_bounds=THREADS)
    def transpose_naive(x, y, elements, x_first, y_first, sizes, strides):
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < elements:
            x_at, y_at = offsets(i, sizes, strides)
            y[y_first + y_at] = x[x_first + x_at]
    return transpose_naive


def build(problem, device, config, source=("x", 0), target=("y", 0)):
    """One launch. `source` and `target` are the names of the two pointers and byte offsets to them."""
    form = problem.canonical
    pointer = {1: "uint8*", 2: "uint16*", 4: "uint32*", 8: "uint64*"}[form.itemsize]
    arguments = (Argument(pointer, source[0], offset=source[1]), Argument(pointer, target[0], offset=target[1]),
                 Argument("int64", form.size), Argument("int64", form.x_first), Argument("int64", form.y_first),
                 *offset_arguments64(form.dims))
    return (Launch(kernel(Config(len(form.dims))), (-(-form.size // THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHMS = tuple(Algorithm(op=op, name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build)
                   for op in MOVES)

"""One thread per element.

Element i of y, counted in the order in which y lies in memory, is read, converted and written on its own. Any strides, any number of
elements; each coordinate costs a division of 64-bit integers.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, i64, jit
from ..device.convert import element
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
from ..engine.offsets import make_offsets64, offset_arguments64
from ..engine.values import make_convert
from ..host.launch import Argument, Launch

COST = constants("transform/naive")

THREADS = 256


@dataclass(frozen=True)
class Config:
    """Element types, whether there is a scale, number of dimensions."""
    x_dtype: str
    y_dtype: str
    scaled: bool
    dims: int


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """A 32-byte sector a load where neighbours of y are apart in x, and the divisions."""
    form = problem.canonical
    spread = min(32, max(abs(form.dims[-1].x), 1) * problem.x.itemsize) // problem.x.itemsize
    divisions = issue_seconds(form.size, COST.cast + COST.dimension * len(form.dims), device)
    return LAUNCH + overlap(issue=divisions, memory=memory_seconds(problem.x.nbytes * spread + problem.y.nbytes, device))


@functools.cache
def kernel(config):
    """y[...] = scale * x[...], an element a thread."""
    load, store = element(config.x_dtype).load, element(config.y_dtype).store
    convert, offsets = make_convert(config.x_dtype, config.y_dtype, config.scaled), make_offsets64(config.dims)

    @jit(launch_bounds=THREADS)
    def cast_naive(x, y, elements, x_first, y_first, sizes, strides, scale):
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < elements:
            x_at, y_at = offsets(i, sizes, strides)
            store(y, y_first + y_at, convert(load(x, x_first + x_at), scale))
    return cast_naive


def build(problem, device, config, source=("x", 0), target=("y", 0)):
    """One launch."""
    form = problem.canonical
    arguments = (*(Argument(element(t.dtype).pointer, name, offset=offset)
                   for t, (name, offset) in ((problem.x, source), (problem.y, target))),
                 Argument("int64", form.size), Argument("int64", form.x_first), Argument("int64", form.y_first),
                 *offset_arguments64(form.dims), Argument(problem.compute, "scale" if problem.scale else 1.0))
    config = Config(problem.x.dtype, problem.y.dtype, problem.scale, len(form.dims))
    return (Launch(kernel(config), (-(-form.size // THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHM = Algorithm(op="cast", name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build)

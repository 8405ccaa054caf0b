"""One thread per element of dx, which adds up its copies in dy: the element itself, and those of the borders that it fills.

Along a dimension an element of an edge has a run of copies, an element near a border that reflects has one image or two; the copies are
what these leave in combination. So each sum has one owner: no atomics, always the same order. Any strides, any number of elements; each
coordinate costs two divisions of 64-bit integers.
"""
import functools
from dataclasses import dataclass
from typing import NamedTuple

from ...device import cuda, f32, f64, i64, jit
from ...device.convert import element
from ...device.index import offset64
from ...device.vec import advance
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
from ...host.launch import Argument, Launch
from ._borders import make_copies

COST = constants("transform/naive")

THREADS = 256


@dataclass(frozen=True)
class Config:
    """Element type, what is beyond borders, number of dimensions."""
    dtype: str
    mode: str
    dims: int


class First(NamedTuple):
    """Of the first elements in either array."""
    x: i64
    y: i64


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """The divisions."""
    divisions = issue_seconds(problem.dx.size, 2 * COST.pad * len(problem.form.dims), device)
    return LAUNCH + overlap(issue=divisions, memory=memory_seconds(problem.bytes, device))


@functools.cache
def kernel(config):
    """dx[j] = the sum of the elements of dy that are copies of x[j]."""
    e, (count, copy_of) = element(config.dtype), make_copies(config.mode)
    load, store, Total, DIMS = e.load, e.store, {"float32": f32, "float64": f64}[e.compute], config.dims

    @jit(launch_bounds=THREADS)
    def pad_bwd_naive(dy, dx, elements, first, sizes, inner, before, x_strides, y_strides):
        rest = offset64(cuda.blockIdx.x, THREADS) + cuda.threadIdx.x
        if rest < elements:
            position, copies = cuda.local.array(DIMS, i64), cuda.local.array(DIMS, i64)
            x_at, combinations = first.x, 1
            for k in range(DIMS):
                d, n = DIMS - 1 - k, rest
                rest = n // inner[d]
                j = n - rest * inner[d]
                position[d], copies[d] = j, count(j, before[d], inner[d], sizes[d])
                combinations *= copies[d]
                x_at += j * x_strides[d]
            total = Total(0)
            for c in range(combinations):
                y_at, left = first.y, c
                for k in range(DIMS):
                    d, n = DIMS - 1 - k, left
                    left = n // copies[d]
                    y_at += copy_of(n - left * copies[d], position[d], before[d], inner[d], sizes[d]) * y_strides[d]
                total += load(advance(dy, y_at), 0)
            store(advance(dx, x_at), 0, total)
    return pad_bwd_naive


def build(problem, device, config):
    """One launch."""
    form, pointer, elements = problem.form, element(problem.dx.dtype).pointer, problem.dx.size
    columns = zip(*((d.size, d.inner, d.before, d.x, d.y) for d in form.dims))
    arguments = (Argument(pointer, "dy"), Argument(pointer, "dx"), Argument("int64", elements),
                 Argument(First, First(form.x_first, form.y_first)), *(Argument(f"int64x{len(form.dims)}", values) for values in columns))
    config = Config(problem.dx.dtype, problem.mode, len(form.dims))
    return (Launch(kernel(config), (-(-elements // THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHM = Algorithm(op="pad_bwd", name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build)

"""One thread per element.

Element i of the results, counted in the order in which the first of them lies in memory, is computed on its own. Any strides, any dtype,
any number of elements; each coordinate costs a division of 64-bit integers.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, i64, jit
from ..device.program import Program, element_of
from ..device.program_results import make_results
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
from ..host.launch import Argument, Launch
from ._arrays import (coordinate_argument, make_coordinates, make_element_loads, make_element_stores, number_arguments, stride_argument,
                      struct_argument)
from ._estimate import instructions

COST = constants("fused/naive")

THREADS = 256


@dataclass(frozen=True)
class Config:
    """The program, the number of arrays that are addressed, and of dimensions."""
    program: Program
    arrays: int
    dims: int


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """A 32-byte sector a load where neighbours of the result are apart in an array, the divisions, and the functions."""
    form, total = problem.form, 0
    for k, a in enumerate(form.arrays):
        if a.name:
            total += a.tensor.nbytes * min(32, max(abs(form.dims[-1].strides[k]), 1) * a.itemsize) // a.itemsize
    each = COST.thread + len(form.dims) * (COST.dimension + COST.array * len(form.arrays)) + instructions(problem.program)
    return LAUNCH + overlap(issue=issue_seconds(form.size, each, device), memory=memory_seconds(total, device),
                            waits=each * COST.alone / device.clock_hz)


@functools.cache
def kernel(config):
    """y0[...], y1[...] = program(x0[...], x1[...]), an element a thread."""
    program, arrays, dims = config.program, config.arrays, config.dims
    coordinates, results = make_coordinates(dims, any_size=True), make_results(program)
    loaded, store = make_element_loads(program, program, arrays, dims), make_element_stores(program, arrays, dims)

    @jit(launch_bounds=THREADS)
    def fused_pointwise_naive(pointers, elements, firsts, sizes, strides, numbers):
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < elements:
            at, e = coordinates(i, sizes), (pointers, firsts, numbers)
            store(results(loaded(at, strides, e)), at, strides, e)
    return fused_pointwise_naive


def build(problem, device, config):
    """One launch."""
    form = problem.form
    pointers = [Argument(element_of(a.dtype).pointer, a.name) for a in form.arrays if a.name]
    arguments = (struct_argument([a.type for a in pointers], pointers), Argument("int64", form.size),
                 Argument(f"int64x{len(form.arrays)}", tuple(a.first for a in form.arrays)),
                 coordinate_argument([d.size for d in form.dims], any_size=True), stride_argument(form.dims, True),
                 number_arguments(problem))
    config = Config(problem.program, len(form.arrays), len(form.dims))
    return (Launch(kernel(config), (-(-form.size // THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHM = Algorithm(op="fused_pointwise", name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      programs=True)

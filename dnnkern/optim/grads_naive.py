"""One thread per stretch of 256 elements, a launch per array; one block adds up.

For arrays that lie in any way; each coordinate costs a division of 64-bit integers. What clips reads the norm from memory, one thread an
element, a launch per array again.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, i64, jit
from ..device.convert import element
from ..device.rows import make_row_offsets64, row_arguments64
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, SECTOR, Cost, issue_seconds, memory_seconds, overlap
from ..host.launch import Argument, Launch
from ._norm_problem import OPS
from ._norms import THREADS, TYPES, bytes_of, final_launch, make_factor, optional

COST = constants("optim/grads_naive")

STRETCH = 256


@dataclass(frozen=True)
class Config:
    """Element type, what is computed in, dtype of the norm, number of dimensions, whether gradients are divided by a scale."""
    dtype: str
    compute: str
    norm: str
    dims: int
    scaled: bool


def supports(problem):
    """Whatever has a number of partials that fits."""
    count = _partials(problem)
    return None if count < 2 ** 31 - THREADS else f"{count} stretches; expected fewer than 2**31 - {THREADS}"


def _stretches(problem, k):
    return -(-problem.grads[k].size // STRETCH)


def _partials(problem):
    return sum(_stretches(problem, k) for k in problem.filled)


def workspace(problem, device, config):
    """Two numbers a stretch."""
    return bytes_of(max(_partials(problem), 1), problem.compute)


def estimate(problem, device, config):
    """A sector an element, one launch after the other; and one block that adds up."""
    passes, cost = 3 if problem.clips else 1, LAUNCH + Cost(reduction=_partials(problem) / THREADS * COST.turn)
    for k in problem.filled:
        t = problem.grads[k]
        issue = issue_seconds(t.size, COST.thread + COST.dimension * len(problem.dims(k)), device)
        cost += LAUNCH + overlap(issue=issue, memory=memory_seconds(passes * t.size * SECTOR, device))
    return cost


def bound(problem, device):
    """Its launches."""
    return len(problem.filled) * LAUNCH


@functools.cache
def partial_kernel(config):
    """Sums of the squares of stretches of one array."""
    load, T, row_offsets = element(config.dtype).load, TYPES[config.compute], make_row_offsets64(config.dims, 1)
    scale_of, _ = make_factor(config.compute, config.scaled)

    @jit(launch_bounds=THREADS)
    def grads_naive(g, partials, elements, first, partials_of_all, sizes, strides, grad_scale):
        stretch = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        begin = stretch * STRETCH
        if begin < elements:
            scale, squares, rest = scale_of(grad_scale), T(0), T(0)
            for i in range(begin, min(begin + STRETCH, elements)):
                at = row_offsets(i, sizes, strides)
                value = T(T(load(g, at[0])) * scale)
                squares = T(squares + value * value)
                rest = T(rest + value * T(0))
            partials[first + stretch] = squares
            partials[first + stretch + partials_of_all] = rest
    return grads_naive


@functools.cache
def clip_kernel(config):
    """One array scaled."""
    load, store, T = element(config.dtype).load, element(config.dtype).store, TYPES[config.compute]
    row_offsets = make_row_offsets64(config.dims, 1)
    scale_of, factor_of = make_factor(config.compute, config.scaled)

    @jit(launch_bounds=THREADS)
    def clip_naive(g, elements, sizes, strides, norm, grad_scale, max_norm):
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < elements:
            at = row_offsets(i, sizes, strides)
            factor = factor_of(T(norm[0]), max_norm, scale_of(grad_scale))
            store(g, at[0], T(T(load(g, at[0])) * factor))
    return clip_naive


def build(problem, device, config):
    """A launch per array, one more, and a launch per array."""
    launches, after, first, count = [], [], 0, _partials(problem)
    for k in problem.filled:
        t = problem.grads[k]
        sizes, strides = row_arguments64(problem.dims(k), 1)
        config = Config(t.dtype, problem.compute, problem.norm_dtype, len(sizes), problem.grad_scale is not None)
        g, scale = Argument(element(t.dtype).pointer, f"grads{k}"), optional(problem, "grad_scale")
        dims = Argument(f"int64x{len(sizes)}", sizes), Argument(f"int64x{len(strides)}", strides)
        stretches = _stretches(problem, k)
        launches.append(Launch(partial_kernel(config), (-(-stretches // THREADS), 1, 1), (THREADS, 1, 1),
                               (g, Argument(f"{problem.compute}*", "workspace"), Argument("int64", t.size), Argument("int64", first),
                                Argument("int64", count), *dims, scale)))
        first += stretches
        if problem.clips:
            after.append(Launch(clip_kernel(config), (-(-t.size // THREADS), 1, 1), (THREADS, 1, 1),
                                (g, Argument("int64", t.size), *dims, Argument(f"{problem.norm_dtype}*", "out"), scale,
                                 Argument(problem.compute, "max_norm"))))
    return (*launches, final_launch(problem, count), *after)


ALGORITHMS = tuple(Algorithm(op=op, name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build, bound=bound)
                   for op in OPS)

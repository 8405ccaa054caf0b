"""Norms of many arrays: partial sums of squares, and what becomes of them, the norm of gradients or the ratios of LAMB.

A partial has two numbers: a sum of squares, and for the norm of gradients a number that is 0 as long as everything was finite, else NaN,
for LAMB the sum of squares of the direction. The first numbers of all partials come first, then the second ones. The 256 threads of a
block add them up, in one order.
"""
import functools

import numpy as np

from ..device import cuda, device_function, f32, f64, i32, jit
from ..device.block import make_block_reduce
from ..device.warp import add
from ..host.dtypes import ITEMSIZE
from ..host.launch import Argument, Launch
from ..host.table import Table
from ._rule import make_arithmetic, rule_of
from ._tables import unpack

THREADS = 256
TYPES = {"float32": f32, "float64": f64}


def bytes_of(partials, compute):
    """Bytes of this many partials."""
    return 2 * partials * ITEMSIZE[compute]


@functools.cache
def make_sum(compute):
    """Device function ``sum(value, scratch)`` of a block's numbers. `scratch` has 16 elements and is used once."""
    reduce = make_block_reduce(add, THREADS)

    @device_function
    def total(value, scratch):
        return reduce(value, scratch, 0)
    return total


@functools.cache
def make_total(compute):
    """Device function ``total(partials, first, count, scratch)``: the sum of `count` numbers from `first` on, in every thread of a block.
    `scratch` has 16 elements and is used once."""
    T = TYPES[compute]
    sum_of = make_sum(compute)

    @device_function
    def total(partials, first, count, scratch):
        some = T(0)
        for k in range(cuda.threadIdx.x, count, THREADS):
            some = T(some + partials[first + k])
        return sum_of(some, scratch)
    return total


@functools.cache
def make_report(norm_dtype, reports):
    """Device function ``report(size, rest, norm, found_inf)`` for one thread: writes the norm, and whether something was not finite."""
    N = TYPES[norm_dtype]

    @device_function
    def report(size, rest, norm, found_inf):
        norm[0] = N(size)
        if reports:
            found_inf[0] = f32(0) if rest == rest else f32(1)
    return report


@functools.cache
def make_factor(compute, scaled):
    """Device functions ``scale(grad_scale)``, what gradients are multiplied by before they are squared, and ``factor(norm, max_norm,
    scale)``, what clips them."""
    T = TYPES[compute]
    inverse, _ = make_arithmetic(T)

    @device_function
    def scale(grad_scale):
        if scaled:
            return T(inverse(T(grad_scale[0])))
        return T(1)

    @device_function
    def factor(norm, max_norm, scale):
        part, size = T(1), T(norm + T(1e-6))
        if not size <= max_norm:
            part = T(max_norm * inverse(size))
        return T(part * scale)
    return scale, factor


@functools.cache
def final_kernel(compute, norm_dtype, reports):
    """One block: the norm of all partials."""
    total, report, T = make_total(compute), make_report(norm_dtype, reports), TYPES[compute]
    _, root = make_arithmetic(T)

    @jit(launch_bounds=THREADS)
    def grad_norm_total(partials, count, norm, found_inf):
        scratch, other = cuda.shared.array(16, T), cuda.shared.array(16, T)
        squares, rest = total(partials, 0, count, scratch), total(partials, count, count, other)
        if cuda.threadIdx.x == 0:
            report(root(squares), rest, norm, found_inf)
    return grad_norm_total


def optional(problem, name):
    """The kernel parameter of an array of one number, which may be missing."""
    return Argument("uint64", 0) if getattr(problem, name) is None else Argument("float32*", name)


def final_launch(problem, partials):
    """The launch that makes the norm of this many partials in the workspace."""
    kernel = final_kernel(problem.compute, problem.norm_dtype, problem.found_inf is not None)
    arguments = (Argument(f"{problem.compute}*", "workspace"), Argument("int32", partials), Argument(f"{problem.norm_dtype}*", "out"),
                 optional(problem, "found_inf"))
    return Launch(kernel, (1, 1, 1), (THREADS, 1, 1), arguments)


# ---- LAMB: between its other two launches, how far the step of each parameter goes

@functools.cache
def ratio_kernel(compute):
    """One block per parameter: sums of the squares of parameters and directions, and the quotient of their norms."""
    total, T = make_total(compute), TYPES[compute]
    _, _, ratio = rule_of("lamb_step").make((), (), T)

    @jit(launch_bounds=THREADS)
    def lamb_ratios(parts, partials, partials_of_all, ratios):
        scratch, other = cuda.shared.array(16, T), cuda.shared.array(16, T)
        first, count = unpack(parts[cuda.blockIdx.x])
        count = i32(count)
        p = total(partials, first, count, scratch)
        d = total(partials, partials_of_all + first, count, other)
        if cuda.threadIdx.x == 0:
            ratios[cuda.blockIdx.x] = ratio(p, d)
    return lamb_ratios


def ratio_launch(problem, counts):
    """The launch for parameters with so many partials each, which follow each other in the workspace; the quotients come after all."""
    firsts = np.cumsum(counts) - counts
    words = (firsts + (np.array(counts, np.int64) << 32)).astype(np.uint64)
    compute, total = problem.compute, int(sum(counts))
    arguments = (Argument("uint64*", None, spec=Table(words)), Argument(f"{compute}*", "workspace"), Argument("int32", total),
                 ratios_of(problem, total))
    return Launch(ratio_kernel(compute), (len(counts), 1, 1), (THREADS, 1, 1), arguments)


def ratios_of(problem, partials):
    """The kernel parameter of the quotients."""
    return Argument(f"{problem.compute}*", "workspace", bytes_of(partials, problem.compute))


def workspace_bytes(problem, partials, parameters):
    """Bytes of two numbers a partial, and one a parameter."""
    return bytes_of(partials, problem.compute) + parameters * ITEMSIZE[problem.compute]

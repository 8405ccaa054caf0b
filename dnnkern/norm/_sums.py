"""Sums of the rows of matrices: what blocks have left of dgamma and dbeta in a workspace, added in a fixed order.

The workspace holds [blocks][1 or 2][length] partial sums. Threads of a block have 8 or 32 neighbouring columns side by side and divide
the rows, eight loads in flight in each; what they have meets in shared memory.
"""
import functools

from ..device import cuda, f32, f64, i32, i64, jit
from ..device.convert import element
from ..device.dependent import wait_for_previous_grid
from ..device.index import ceil_div
from ..device.vec import advance, load1_nc_if
from ..host.launch import Argument, Launch

THREADS, FLIGHT = 256, 8
WIDE = 4096  # columns from which 32 of them for a block keep enough blocks busy


@functools.cache
def kernel(gamma, beta, real, across, dependent):
    """dgamma and, in the blocks of the second row of the grid, dbeta."""
    Real, HEIGHT, SHIFT = f64 if real == "float64" else f32, THREADS // across, across.bit_length() - 1
    store_gamma, store_beta = element(gamma).store, element(beta).store

    @jit(launch_bounds=THREADS)
    def norm_bwd_sums(partial, dgamma, dbeta, rows, length, pitch, gamma_step, beta_step):
        shared, some = cuda.shared.array(THREADS, Real), cuda.local.array(FLIGHT, Real)
        thread, which = cuda.threadIdx.x, cuda.blockIdx.y
        column = cuda.blockIdx.x * across + (thread & (across - 1))
        inside = column < length
        if dependent:
            wait_for_previous_grid()
        p = advance(partial, i64(which) * length + column)
        total = Real(0)
        for row in range(thread >> SHIFT, rows, FLIGHT * HEIGHT):
            for u in range(FLIGHT):
                r = row + u * HEIGHT
                some[u] = load1_nc_if(p, r * pitch, i32(inside and r < rows))
            for u in range(FLIGHT):
                total += some[u]
        shared[thread] = total
        cuda.syncthreads()
        if thread < across and inside:
            total = shared[thread]
            for y in range(1, HEIGHT):
                total += shared[thread + y * across]
            if which == 0:
                store_gamma(dgamma, column * gamma_step, total)
            else:
                store_beta(dbeta, column * beta_step, total)
    return norm_bwd_sums


def sums_launch(problem, slots, steps, dependent):
    """Of `slots` rows of partial sums; `steps` are the element strides of dgamma and dbeta."""
    p, length = problem, problem.form.length
    names = ["dgamma"] + ["dbeta"] * (p.dbeta is not None)
    across = 32 if length >= WIDE else 8
    types = [getattr(p, name).dtype for name in (names * 2)[:2]]
    arguments = (Argument(f"{p.compute}*", "workspace"),
                 *(Argument(element(getattr(p, name).dtype).pointer, name) for name in (names * 2)[:2]), Argument("int32", slots),
                 Argument("int32", length), Argument("int64", len(names) * length), *(Argument("int64", s) for s in steps))
    return Launch(kernel(*types, p.compute, across, dependent), (ceil_div(length, across), len(names), 1), (THREADS, 1, 1), arguments,
                  dependent=dependent)

"""The launch between LAMB's other two: of each parameter's partial sums, how far its step goes."""
import functools

import numpy as np

from ..device import cuda, i32, jit
from ..host.launch import Argument, Launch
from ..host.table import Table
from ._rule import rule_of
from ._tables import unpack
from ._totals import THREADS, TYPES, make_total


@functools.cache
def ratio_kernel(compute):
    """A block a parameter: sums of the squares of parameters and directions, and the quotient of their norms."""
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
    return Argument(f"{problem.compute}*", "workspace", 2 * partials * (8 if problem.compute == "float64" else 4))


def workspace_bytes(problem, partials, parameters):
    """Bytes of two numbers a partial, and one a parameter."""
    return (2 * partials + parameters) * (8 if problem.compute == "float64" else 4)

"""One thread per element, one launch per parameter.

Straight from the definition, for arrays that lie in any way; each coordinate costs a division of 64-bit integers.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, i64, jit
from ..device.convert import element
from ..device.rows import make_row_offsets64, row_arguments64
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
from ..host.launch import Argument, Launch
from ._columns import Kind, columns_of, kind_of_columns, missing, number_arguments
from ._rule import OPS, make_arithmetic

COST = constants("optim/naive")

THREADS = 256


@dataclass(frozen=True)
class Config:
    """What is computed, the number of arrays and of dimensions, whether a step may be skipped."""
    kind: Kind
    arrays: int
    dims: int
    skips: bool


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def launch_cost(problem, k, device):
    """A launch, and 32-byte sectors where neighbours are apart."""
    dims, spread = problem.dims(k), 0
    for j, t in enumerate(problem.arrays(k)):
        step = abs(dims[-1].strides[j]) if dims else 1
        spread += t.nbytes // t.itemsize * min(32, max(1, step) * t.itemsize)
    issue = issue_seconds(problem.params[k].size, COST.thread + COST.dimension * len(dims), device)
    return LAUNCH + overlap(issue=issue, memory=memory_seconds(2 * spread, device))


def estimate(problem, device, config):
    """One launch after the other."""
    return sum(launch_cost(problem, k, device) for k in problem.filled)


def bound(problem, device):
    """Its launches."""
    return len(problem.filled) * LAUNCH


def make_column(dtype):
    """Device functions ``load(p, i)`` and ``store(p, i, value)`` of a column, which do nothing where it is missing."""
    e = element(dtype or "float32")
    return e.load, e.store


@functools.cache
def kernel(config):
    """One parameter's step."""
    kind, ARRAYS, T = config.kind, config.arrays, config.kind.scalar
    update, row_offsets, SCALED, SKIPS = kind.update(), make_row_offsets64(config.dims, ARRAYS), kind.scaled, config.skips
    (inverse, _), prepare, COUNTED = make_arithmetic(T), kind.prepare(), kind.counted
    HAS_A, HAS_B, HAS_C, MASTER = (d is not None for d in kind.dtypes[2:])
    A, B = 2, 2 + HAS_A
    C, M = B + HAS_B, ARRAYS - 1
    (load_p, store_p), (load_g, _), (load_a, store_a), (load_b, store_b), (load_c, store_c), (load_m, store_m) = map(
        make_column, kind.dtypes)

    @jit(launch_bounds=THREADS)
    def optim_naive(p, g, a, b, c, master, elements, sizes, strides, grad_scale, found_inf, step, n0, n1, n2, n3, n4, n5, n6, n7):
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        go = i < elements
        if SKIPS:
            go = go and found_inf[0] == 0
        if go:
            at = row_offsets(i, sizes, strides)
            gradient, x, y, z = T(load_g(g, at[1])), T(0), T(0), T(0)
            if SCALED:
                gradient = T(gradient * inverse(T(grad_scale[0])))
            if HAS_A:
                x = T(load_a(a, at[A]))
            if HAS_B:
                y = T(load_b(b, at[B]))
            if HAS_C:
                z = T(load_c(c, at[C]))
            if MASTER:
                value = T(load_m(master, at[M]))
            else:
                value = T(load_p(p, at[0]))
            count = T(0)
            if COUNTED:
                count = T(step[0])
            numbers = prepare((n0, n1, n2, n3, n4, n5, n6, n7), count)
            value, x, y, z = update(value, gradient, x, y, z, numbers)
            store_p(p, at[0], value)
            if HAS_A:
                store_a(a, at[A], x)
            if HAS_B:
                store_b(b, at[B], y)
            if HAS_C:
                store_c(c, at[C], z)
            if MASTER:
                store_m(master, at[M], value)
    return optim_naive


def launch_of(problem, k):
    """The launch of parameter k."""
    columns, dims = columns_of(problem, k), problem.dims(k)
    arrays = sum(c is not None for c in columns)
    sizes, strides = row_arguments64(dims, arrays)
    config = Config(kind_of_columns(problem, columns), arrays, len(sizes), problem.found_inf is not None)
    pointers = [Argument(element(c[1].dtype).pointer, c[0]) if c else missing() for c in columns]
    arguments = (*pointers, Argument("int64", problem.params[k].size), Argument(f"int64x{len(sizes)}", sizes),
                 Argument(f"int64x{len(strides)}", strides), *number_arguments(problem))
    return Launch(kernel(config), (-(-problem.params[k].size // THREADS), 1, 1), (THREADS, 1, 1), arguments)


def build(problem, device, config):
    """A launch a parameter."""
    return tuple(launch_of(problem, k) for k in problem.filled)


ALGORITHMS = tuple(Algorithm(op=op, name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build, bound=bound)
                   for op in OPS)

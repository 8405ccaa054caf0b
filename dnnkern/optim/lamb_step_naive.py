"""One thread a stretch of 256 elements for the moments and sums of squares, then one a parameter's element; two launches a parameter.

For arrays that lie in any way; each coordinate costs a division of 64-bit integers.
"""
import functools

from ..device import cuda, i64, jit
from ..device.convert import element
from ..device.rows import make_row_offsets64, row_arguments64
from ..dispatch import Algorithm
from ..engine.cost import LAUNCH
from ..host.launch import Argument, Launch
from . import optim_naive
from ._columns import columns_of, kind_of_columns, missing, number_arguments
from ._norms import TYPES, ratio_launch, ratios_of, workspace_bytes
from ._rule import make_arithmetic
from .optim_naive import Config, make_column

GRADS, FIRST, SECOND = 1, 2, 3  # columns: the gradient, both moments
THREADS = 256
STRETCH = 256


def supports(problem):
    """Whatever has a number of partials that fits."""
    count = sum(_counts(problem))
    return None if count < 2 ** 31 - THREADS else f"{count} stretches; expected fewer than 2**31 - {THREADS}"


def _counts(problem):
    return [-(-problem.params[k].size // STRETCH) for k in problem.filled]


def workspace(problem, device, config):
    """Two numbers a stretch, one a parameter."""
    return workspace_bytes(problem, sum(_counts(problem)), len(problem.filled))


def estimate(problem, device, config):
    """Twice that of other steps."""
    return 2 * sum(optim_naive.launch_cost(problem, k, device) for k in problem.filled)


def bound(problem, device):
    """Its launches."""
    return 2 * len(problem.filled) * LAUNCH


@functools.cache
def moments_kernel(config, numbers):
    """One parameter's moments, and sums of squares of stretches."""
    kind, ARRAYS, T, N = config.kind, config.arrays, config.kind.scalar, TYPES[numbers]
    row_offsets, SCALED, SKIPS, MASTER = make_row_offsets64(config.dims, ARRAYS), kind.scaled, config.skips, kind.dtypes[-1] is not None
    (inverse, _), M, prepare, COUNTED = make_arithmetic(T), ARRAYS - 1, kind.prepare(), kind.counted
    advance, direction, _ = kind.rule.make((), kind.flags, T)
    (load_p, _), (load_g, _), (load_a, store_a), (load_b, store_b), _, (load_m, _) = map(make_column, kind.dtypes)

    @jit(launch_bounds=THREADS)
    def lamb_naive(p, g, a, b, master, elements, sizes, strides, partials, first, partials_of_all, grad_scale, found_inf, step, n0, n1, n2,
                   n3, n4, n5, n6, n7):
        stretch = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        begin = stretch * STRETCH
        go = begin < elements
        if SKIPS:
            go = go and found_inf[0] == 0
        if go:
            p_squares, d_squares = T(0), T(0)
            count = T(0)
            if COUNTED:
                count = T(step[0])
            numbers = prepare((n0, n1, n2, n3, n4, n5, n6, n7), count)
            for i in range(begin, min(begin + STRETCH, elements)):
                at = row_offsets(i, sizes, strides)
                gradient = T(load_g(g, at[GRADS]))
                if SCALED:
                    gradient = T(gradient * inverse(T(grad_scale[0])))
                if MASTER:
                    value = T(load_m(master, at[M]))
                else:
                    value = T(load_p(p, at[0]))
                x, y = advance(gradient, T(load_a(a, at[FIRST])), T(load_b(b, at[SECOND])), numbers)
                store_a(a, at[FIRST], x)
                store_b(b, at[SECOND], y)
                d = direction(value, x, y, numbers)
                p_squares, d_squares = T(p_squares + value * value), T(d_squares + d * d)
            partials[first + stretch] = N(p_squares)
            partials[first + stretch + partials_of_all] = N(d_squares)
    return lamb_naive


@functools.cache
def move_kernel(config, numbers):
    """One parameter moves."""
    kind, ARRAYS, T, MASTER = config.kind, config.arrays, config.kind.scalar, config.kind.dtypes[-1] is not None
    row_offsets, SKIPS, M = make_row_offsets64(config.dims, ARRAYS), config.skips, ARRAYS - 1
    prepare, COUNTED = kind.prepare(), kind.counted
    _, direction, _ = kind.rule.make((), kind.flags, T)
    (load_p, store_p), _, (load_a, _), (load_b, _), _, (load_m, store_m) = map(make_column, kind.dtypes)

    @jit(launch_bounds=THREADS)
    def lamb_naive_move(p, a, b, master, elements, sizes, strides, ratios, number, found_inf, step, n0, n1, n2, n3, n4, n5, n6, n7):
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        go = i < elements
        if SKIPS:
            go = go and found_inf[0] == 0
        if go:
            at = row_offsets(i, sizes, strides)
            count = T(0)
            if COUNTED:
                count = T(step[0])
            numbers = prepare((n0, n1, n2, n3, n4, n5, n6, n7), count)
            if MASTER:
                value = T(load_m(master, at[M]))
            else:
                value = T(load_p(p, at[0]))
            d = direction(value, T(load_a(a, at[FIRST])), T(load_b(b, at[SECOND])), numbers)
            value = T(value - numbers.lr * T(ratios[number]) * d)
            store_p(p, at[0], value)
            if MASTER:
                store_m(master, at[M], value)
    return lamb_naive_move


def build(problem, device, config):
    """A launch a parameter, one for the norms, and a launch a parameter."""
    counts, first, before, after = _counts(problem), 0, [], []
    total, (scale, *numbers) = sum(counts), number_arguments(problem)
    partials, ratios = Argument(f"{problem.compute}*", "workspace"), ratios_of(problem, total)
    for number, (k, count) in enumerate(zip(problem.filled, counts)):
        columns, size = columns_of(problem, k), problem.params[k].size
        arrays = sum(c is not None for c in columns)
        sizes, strides = row_arguments64(problem.dims(k), arrays)
        config = Config(kind_of_columns(problem, columns), arrays, len(sizes), problem.found_inf is not None)
        p, g, a, b, _, master = (Argument(element(c[1].dtype).pointer, c[0]) if c else missing() for c in columns)
        dims = (Argument("int64", size), Argument(f"int64x{len(sizes)}", sizes), Argument(f"int64x{len(strides)}", strides))
        before.append(Launch(moments_kernel(config, problem.compute), (-(-count // THREADS), 1, 1), (THREADS, 1, 1),
                             (p, g, a, b, master, *dims, partials, Argument("int64", first), Argument("int64", total), scale, *numbers)))
        after.append(Launch(move_kernel(config, problem.compute), (-(-size // THREADS), 1, 1), (THREADS, 1, 1),
                            (p, a, b, master, *dims, ratios, Argument("int32", number), *numbers)))
        first += count
    return (*before, ratio_launch(problem, counts), *after)


ALGORITHM = Algorithm(op="lamb_step", name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build, bound=bound)

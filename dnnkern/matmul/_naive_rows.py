"""Programs that reduce rows, one thread per row: what `matmul_naive` launches for them.

The thread walks over its row once for each level and once for the results, computes each element's product anew, and reduces stretches of
256 elements by themselves first, which loses less to rounding.
"""
import functools
from typing import NamedTuple

from ..device import cuda, device_function, i32, i64, jit
from ..device.convert import SCALARS
from ..device.epilogue import AllParams, make_epilogue
from ..device.program_batches import make_placed
from ..device.vec import advance
from ..engine.batch import make_batch_offsets
from ..engine.row_levels import make_element, make_end, make_next, make_sides, make_start, states_of, walks_of
from ..engine.row_tiles import stored_spec

STRETCH = 256


class Row(NamedTuple):
    """What a thread needs of its row: row m of n columns, the arguments of `dot` but for the right operand, and where that and the result
    lie."""
    m: i32
    n: i32
    k: i64
    a: object
    a_step: i64
    b: object
    b_step: i64
    b_column: i64
    scale_stride: object
    made_a: object
    made_b: object
    y: object
    y_column: i64
    e: object


@functools.cache
def row_kernel(config, dot):
    """All results of a row of a matrix, one thread each; `dot` is as `matmul_naive.kernel` has it."""
    THREADS, program, compute = config.threads, config.epilogue.program, config.epilogue.compute
    placed_a, placed_b = (make_placed(made and made.program, config.batch_dims) for made in (config.made_a, config.made_b))
    batch_offsets, placed = make_batch_offsets(config.batch_dims), make_placed(program, config.batch_dims)
    start, walks, end = make_start(program, compute), walks_of(program, compute, False), make_end(program, compute)
    run = device_function(lambda row: start(row.e.extras, row.m))
    for level, walk in enumerate(walks[:-1]):
        run = _with_level(run, config.epilogue, walk, make_next(program, compute, level), dot)
    finish = _make_last(config.epilogue, walks[-1], dot)

    @jit(launch_bounds=THREADS)
    def matmul_naive_rows(a, b, y, M, N, K, rows, a_stride, b_stride, y_stride, batch_sizes, batch_strides, scale_a, scale_b, scale_stride,
                          alpha, beta, bias, bias_stride, c, c_row_stride, c_column_stride, other_batch_strides, bias_row_stride,
                          bias_column_stride, extras, made_a, made_b):
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < rows:
            z = i // M
            m = i - z * M
            a_at, b_at, c_at, y_at = batch_offsets(z, batch_sizes, batch_strides)
            _, _, bias_at, _ = batch_offsets(z, batch_sizes, other_batch_strides)
            e = AllParams(alpha, beta, bias, bias_stride, advance(c, c_at), c_row_stride, c_column_stride, advance(bias, bias_at),
                          bias_row_stride, bias_column_stride, scale_a, scale_b, scale_stride.a_row, scale_stride.b_column,
                          placed(extras, z, batch_sizes))
            row = Row(m, N, K, advance(a, a_at + m * a_stride.m), a_stride.k, advance(b, b_at), b_stride.k, b_stride.n, scale_stride,
                      placed_a(made_a, z, batch_sizes), placed_b(made_b, z, batch_sizes), advance(y, y_at + m * y_stride.m), y_stride.n, e)
            values = run(row)
            finish(row, values)
            end(values, e.extras, m)
    return matmul_naive_rows


def _make_values(spec, walk, dot):
    """Device function ``values(row, n, known)``: what a walk makes of column n; its side outputs are stored."""
    element, sides, SIDES = make_element(spec, walk), make_sides(spec.program, walk), bool(walk.sides)

    @device_function
    def values(row, n, known):
        x = dot(row.a, row.a_step, advance(row.b, n * row.b_column), row.b_step, row.k, row.m, n, row.e.scale_a, row.e.scale_b,
                row.scale_stride, row.made_a, row.made_b)
        found = element(x, row.e, row.m, n, known)
        if SIDES:
            sides(found, row.e.extras, row.m, n)
        return found
    return values


def _with_level(before, spec, walk, following, dot):
    """Device function ``run(row)``: the row's values after another level."""
    values, states, T = _make_values(spec, walk, dot), states_of(walk, spec.compute), SCALARS[spec.compute]
    SIZE, begin, push, merge, finish = states.size, states.begin, states.push, states.merge, states.finish

    @device_function
    def run(row):
        known = before(row)
        total, part = cuda.local.array(SIZE, T), cuda.local.array(SIZE, T)
        begin(total)
        for first in range(0, row.n, STRETCH):
            begin(part)
            for n in range(first, min(first + STRETCH, row.n)):
                push(part, values(row, n, known), 0)
            merge(total, part)
        return known + following(known + finish(total, T(1) / T(row.n)))
    return run


def _make_last(spec, walk, dot):
    """Device function ``finish(row, known)``: the results of the row."""
    values, LAST, narrow = _make_values(spec, walk, dot), len(walk.program.stores) - 1, make_epilogue(stored_spec(spec))

    @device_function
    def finish(row, known):
        for n in range(row.n):
            row.y[n * row.y_column] = narrow(values(row, n, known)[LAST], row.m, n, row.e)
    return finish

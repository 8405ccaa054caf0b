"""The kernel and the launches around a gathered product, whatever multiplies: where a block's tile lies, where its sums go."""
from dataclasses import replace

from ...device import cuda, device_function, i64, jit, u32
from ...device.convert import element
from ...device.index import ceil_div, divide_remainder, divisor
from ...device.vec import advance, shared_address
from ...engine.simt import locate, locate_arguments
from ...host.launch import Argument, Launch
from . import make_gather
from .plan import operand_arguments, sizes
from .store import pitch_of, sum_launch


def gathers_left(output):
    """Whether the gathered operand is the left one."""
    return not (output.swap or output.op == "conv_bwd_filter")


def range_of(k, bk, ranges):
    """(elements of k in a range, a multiple of a stage's `bk`; number of ranges)."""
    each = max(ceil_div(ceil_div(k, bk), ranges), 1) * bk
    return each, max(ceil_div(k, each), 1)


def share_of(view):
    """Of the multiply-adds of the products: classes have fewer taps than the most on average."""
    return view.problem.flops / 2 / max(view.rows * view.columns * view.k * view.products, 1)


def make_kernel(config, product, table_at):
    """Kernel of one tile of one group and class a block, or of its part in a range of k where `config.partial`.

    `product` is a tile engine's, whose loaders take (operand, row, last row, table, first, end of k, problem, class); the table lies at
    byte `table_at` of the dynamic shared memory.
    """
    tile, output = config.tile, config.output
    BM, BN, TABLE, source_left = tile.bm, tile.bn, table_at, gathers_left(output)
    functions = make_gather(output.op, output.channel_inner, output.has_classes)
    setup, source_base, plain_base = functions.setup, functions.source_base, functions.plain_base

    @device_function
    def multiply(source, plain, m, n, first, end, row, column, v, geo, shared, state):
        table = shared + TABLE
        p, q = advance(source, source_base(v, geo)), advance(plain, plain_base(v, geo))
        a = (p if source_left else q, row, m - 1, table, first, end, v, geo)
        b = (q if source_left else p, column, n - 1, table, first, end, v, geo)
        product(a, b, first, end, m, row, column, shared, state)

    if config.partial:
        @jit(launch_bounds=(tile.threads, tile.blocks))
        def conv_gathered_partial(source, plain, sums, m, n, range_k, pitch, products, shape, window, source_strides, plain_strides,
                                  pixel_divisors, tap_divisors, classes, class_divisors, tiles, band_tiles, tiles_m, last_rows):
            shared = cuda.shared.array(0, u32)
            z, block = divide_remainder(cuda.blockIdx.x, tiles)
            row, column = locate(block, band_tiles, tiles_m, last_rows)
            v = (shape, window, source_strides, plain_strides, pixel_divisors, tap_divisors, classes, class_divisors)
            geo = setup(z, v)
            s = cuda.blockIdx.y
            first = min(s * range_k, geo[1])
            end = min(first + range_k, geo[1])
            at = (i64(s) * products + z) * m * pitch
            multiply(source, plain, m, n, first, end, row * BM, column * BN, v, geo, shared_address(shared, 0),
                     (n, pitch, sums, at))
        return conv_gathered_partial

    @jit(launch_bounds=(tile.threads, tile.blocks))
    def conv_gathered(source, plain, y, m, n, shape, window, source_strides, plain_strides, pixel_divisors, tap_divisors, classes,
                      class_divisors, to, res, tiles, band_tiles, tiles_m, last_rows, alpha, beta, bias, bias_stride, prior, row_stride,
                      column_stride, residual, residual_row, residual_column):
        shared = cuda.shared.array(0, u32)
        z, block = divide_remainder(cuda.blockIdx.x, tiles)
        row, column = locate(block, band_tiles, tiles_m, last_rows)
        v = (shape, window, source_strides, plain_strides, pixel_divisors, tap_divisors, classes, class_divisors)
        geo = setup(z, v)
        epilogue = (alpha, beta, bias, bias_stride, prior, row_stride, column_stride, residual, residual_row, residual_column)
        multiply(source, plain, m, n, 0, geo[1], row * BM, column * BN, v, geo, shared_address(shared, 0),
                 (m, n, y, v, geo, to, res, epilogue))
    return conv_gathered


def launches(view, config, kernel, shared, each, ranges):
    """One launch of ``kernel(config)``, a block a tile; or the products over ranges of `each` elements of k, then their sum."""
    problem, tile = view.problem, config.tile
    m, n = sizes(view, config.output.swap)
    tiles_m, tiles_n = ceil_div(m, tile.bm), ceil_div(n, tile.bn)
    place = (Argument("uint32x3", divisor(tiles_m * tiles_n)), *locate_arguments(tiles_m, tiles_n))
    extents = (Argument("int32", m), Argument("int32", n))
    if ranges > 1:
        config = replace(config, partial=True)
        arguments = (*operand_arguments(view), Argument(f"{problem.compute}*", "workspace"), *extents, Argument("int32", each),
                     Argument("int32", pitch_of(n, problem.compute)), Argument("int32", view.products), *view.arguments(), *place)
    else:
        arguments = (*operand_arguments(view), Argument(element(problem.output.dtype).pointer, problem.output_name), *extents,
                     *view.arguments(), *view.output_arguments(), *place, *problem.epilogue_arguments())
    product = Launch(kernel(config), (tiles_m * tiles_n * view.products, ranges, 1), (tile.threads, 1, 1), arguments, shared=shared)
    return (product, sum_launch(view, config.output, m, n, ranges)) if ranges > 1 else (product,)

"""The kernel and the launches around a gathered product, for either main loop: which tile a block computes, and where it is stored."""
from dataclasses import replace

from ...device import cuda, device_function, i64, jit, u32
from ...device.convert import element
from ...device.epilogue import ProgramParams
from ...device.index import Divisor, ceil_div, divide_remainder, divisor
from ...device.scheduler import locate_in_bands
from ...device.vec import advance, shared_address
from ...engine.simt import band_arguments
from ...engine.tile_states import Reducing, reduces, states_argument, with_finish
from ...host.launch import Argument, Launch
from .._states import states_of
from . import make_gather
from .plan import operand_arguments, sizes
from .store import Destination, pitch_of, program_argument_of, sum_launch
from .table import Operand


def gathers_left(output):
    """Whether the source is the left operand."""
    return not (output.swap or output.op == "conv_bwd_filter")


def range_of(k, bk, ranges):
    """(elements of k in a slice, a multiple of a stage's `bk`; number of slices)."""
    each = max(ceil_div(ceil_div(k, bk), ranges), 1) * bk
    return each, max(ceil_div(k, each), 1)


def share_of(view):
    """Useful fraction of the products' multiply-adds: most residue classes have fewer taps than the largest."""
    return view.problem.flops / 2 / max(view.rows * view.columns * view.k * view.products, 1)


def make_kernel(config, main_loop, table_at):
    """Kernel with one block per tile, group and residue class; or per K slice of them where `config.partial`.

    The loaders of `main_loop` take an `Operand`; the table begins at byte `table_at` of the dynamic shared memory.
    """
    tile, output = config.tile, config.output
    BM, BN, TABLE, source_left, REDUCES = tile.bm, tile.bn, table_at, gathers_left(output), reduces(output.epilogue)
    functions = make_gather(output.op, output.channel_inner, output.has_classes)
    setup, source_base, plain_base = functions.setup, functions.source_base, functions.plain_base

    @device_function
    def multiply(source, plain, m, n, first, end, row, column, g, product, shared, destination):
        table = shared + TABLE
        source, plain = advance(source, source_base(g, product)), advance(plain, plain_base(g, product))
        a = Operand(source if source_left else plain, row, m - 1, table, first, end, g, product)
        b = Operand(plain if source_left else source, column, n - 1, table, first, end, g, product)
        main_loop(a, b, first, end, m, row, column, shared, destination)

    if config.partial:
        @jit(launch_bounds=(tile.threads, tile.blocks))
        def conv_gathered_partial(source, plain, sums, m, n, slice_k, pitch, products, g, tiles, band_tiles, tiles_m, last_rows):
            shared = cuda.shared.array(0, u32)
            z, block = divide_remainder(cuda.blockIdx.x, tiles)
            row, column = locate_in_bands(block, band_tiles, tiles_m, last_rows)
            product = setup(z, g)
            s = cuda.blockIdx.y
            first = min(s * slice_k, product.k)
            end = min(first + slice_k, product.k)
            at = (i64(s) * products + z) * m * pitch
            multiply(source, plain, m, n, first, end, row * BM, column * BN, g, product, shared_address(shared, 0),
                     (n, pitch, sums, at))
        return conv_gathered_partial

    @jit(launch_bounds=(tile.threads, tile.blocks))
    def conv_gathered(source, plain, y, m, n, g, layout, residual_stride, tiles, band_tiles, tiles_m, last_rows, alpha, beta, bias,
                      bias_stride, prior, row_stride, column_stride, residual, residual_row, residual_column, extras, states):
        shared = cuda.shared.array(0, u32)
        z, block = divide_remainder(cuda.blockIdx.x, tiles)
        row, column = locate_in_bands(block, band_tiles, tiles_m, last_rows)
        product = setup(z, g)
        epilogue = ProgramParams(alpha, beta, bias, bias_stride, prior, row_stride, column_stride, residual, residual_row, residual_column,
                                 extras)
        to = Destination(m, n, y, g, product, layout, residual_stride, epilogue)
        multiply(source, plain, m, n, 0, product.k, row * BM, column * BN, g, product, shared_address(shared, 0),
                 (to, Reducing(n, to, z, states)) if REDUCES else to)
    return conv_gathered


def launches(view, config, kernel, shared, each, ranges):
    """One launch of ``kernel(config)``, one block per tile; or one of `ranges` K slices of `each` elements, then their sum."""
    problem, tile = view.problem, config.tile
    m, n = sizes(view, config.output.swap)
    tiles_m, tiles_n = ceil_div(m, tile.bm), ceil_div(n, tile.bn)
    tiles = (Argument(Divisor, divisor(tiles_m * tiles_n)), *band_arguments(tiles_m, tiles_n))
    extents = (Argument("int32", m), Argument("int32", n))
    if ranges > 1:
        config = replace(config, partial=True)
        arguments = (*operand_arguments(view), Argument(f"{problem.compute}*", "workspace"), *extents, Argument("int32", each),
                     Argument("int32", pitch_of(n, problem.compute)), Argument("int32", view.products), *view.arguments(), *tiles)
    else:
        arguments = (*operand_arguments(view), Argument(element(problem.output.dtype).pointer, problem.output_name), *extents,
                     *view.arguments(), *view.output_arguments(), *tiles, *problem.epilogue_arguments(),
                     program_argument_of(view, config.output), states_argument(states_of(problem), tile.bm, tile.bn))
    product = Launch(kernel(config), (tiles_m * tiles_n * view.products, ranges, 1), (tile.threads, 1, 1), arguments, shared=shared)
    if ranges > 1:
        return product, sum_launch(view, config.output, m, n, ranges)
    return with_finish((product,), states_of(problem), tile.bm, tile.bn)

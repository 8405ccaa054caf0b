"""Backward filter on Hopper's tensor cores: an implicit matrix product over pixels with split-K.

dw[k, tap, c] is the sum over pixels of dy[pixel, k] * x[pixel of the tap, c]:

    dy --TMA: boxes of 64 pixels by 64 filters-------> ring of stages in --+
    x  --TMA, im2col mode: 64 pixels by 64 channels--> shared memory     --+--wgmma--> float32 --> dw, or partial sums --> second launch

The main loop is `engine.hopper`'s; both operands are contiguous along rows and columns rather than along k, the pixels (`_filter_wgmma`). A
filter has few tiles, so several blocks share a tile, each with a slice of the pixels. Their float32 partial sums in the workspace are
[slice][group][k][tap][c]; a second launch (`engine.split_k`) adds the slices in a fixed order, scales, adds dw's former value and rounds.
Filters with enough tiles are stored directly.

x and dy have contiguous channels; any filter, stride up to 8, dilation, padding, groups. It wins with some 32 channels and filters or more;
with fewer, boxes of x are narrow and tiles mostly empty. Otherwise the second pass limits it: a third of the time for small images.

An image that a program makes is made in the stages (`_filter_made`), once for each tap.
"""
import functools
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..device import cuda, device_function, jit, u32
from ..device.epilogue import EpilogueSpec
from ..device.index import ceil_div
from ..device.tma import tensor_map_address
from ..device.vec import shared_address
from ..dispatch import Algorithm, Note
from ..engine.constants import constants
from ..engine.cost import Cost, contend, overlap
from ..engine.functions import steps_instructions
from ..engine.hopper import ROW, Tile, make_product
from ..engine.hopper_plan import (TILES, MatmulOutput, Specialisation, even_ranges, locate_arguments, make_sink, output_arguments,
                                  product_seconds, steps_of, store_argument, stored_by_tma, sum_seconds, tile_count, y_argument)
from ..engine.hopper_stores import make_boxed_store
from ..engine.programs import NOTHING
from ..engine.roles import Roles, store_width
from ..engine.scales import Scales
from ..engine.split_k import sum_launch, sums_bytes, sums_refusal
from ..host.launch import Argument, Launch
from ..host.tensor import Tensor
from ._prologue import making_of_image, prologue_refusal
from ._filter_wgmma import (WIDTHS, gradient, image_map, make_filter_loader, make_filter_locate, named, padded, pixel_stride,
                            place_arguments, shape_of, spatial_dims, types_refusal)
from ._taps import skipped_bytes

COST = constants("conv/filter_wgmma")

LEAST_STEPS = 2  # of a slice of the pixels
MOST_WORKSPACE = 1 << 28


@dataclass(frozen=True)
class Config:
    """Tile (filters by columns), channels of a box of x, slices of the pixels; one slice is stored directly where dw is a matrix."""
    tile: Tile
    width: int
    ranges: int

    def __post_init__(self):
        if self.tile.bn % max(self.width, 64) or self.tile.cluster > 1 or self.width not in WIDTHS or self.ranges < 1:
            raise ValueError(f"tile {self.tile} of boxes of {self.width} channels, {self.ranges} slices; expected whole boxes, no cluster, "
                             "one slice or more")

    def __str__(self):
        return f"{self.tile} {self.width} channels" + (f" {self.ranges} slices" if self.ranges > 1 else "")


class _Sizes(NamedTuple):
    """What `product_seconds` asks of a problem."""
    a: Tensor
    bytes: int


def supports(problem):
    """16-bit types, contiguous channels, alignment and strides as TMA requires."""
    p = problem
    reason = types_refusal(p)
    if reason:
        return reason
    pixel = pixel_stride(p)
    if pixel is None or pixel <= 0 or pixel % 8:
        return f"dy has strides {p.y.strides}; its pixels have to be evenly spaced by a multiple of 16 bytes"
    reason = prologue_refusal(p)
    if reason or p.prologue_a is not None and (p.x.itemsize != 2 or p.c % 8):
        return reason or f"{p.c} channels of {p.x.dtype}; an image is made of multiples of 8 channels of 16 bits, in place"
    if p.pixels >= 2 ** 31 - 256:
        return f"{p.pixels} pixels; the most is 2**31 - 257"
    try:
        image_map(p, WIDTHS[0])
    except ValueError as error:
        return str(error)
    return sums_refusal(_sums(p, padded(p.c_group, WIDTHS[0])))


def _sums(problem, pitch):
    """dw for `sum_launch`: rows of a tap's channels, `pitch` apart in the workspace."""
    p = problem
    k, c, t, r, s = p.w_strides
    dims = []
    for n, stride in ((p.k, k), (p.filter[0], t), (p.filter[1], r), (p.filter[2], s)):
        if n > 1:
            if dims and dims[-1][1] == n * stride and len(dims) > 1:
                dims[-1] = dims[-1][0] * n, stride
            else:
                dims.append((n, stride))
    rows, step = dims.pop() if len(dims) > (p.k > 1) else (1, 0)
    return _roles(p, rows, p.c_group, (step, c), tuple((n, (0, 0, stride, stride)) for n, stride in dims), pitch)


def _roles(problem, m, n, strides, batch, pitch=0):
    p = problem
    return Roles(m=m, n=n, k=p.pixels, a=p.y, b=p.x, y=p.w, names=("y", "x"), a_strides=(1, 0), b_strides=(0, 1), y_strides=strides,
                 c_strides=strides, batch=batch, epilogue=p.epilogue, bias_stride=0, scales=Scales(), pitch=pitch)


def _matrix(problem):
    """dw as a matrix (k, taps * channels) for each group; None where its strides are not those of a matrix."""
    p = problem
    k, c, t, r, s = p.w_strides
    inner = [(n, stride) for n, stride in zip((*p.filter, p.c_group), (t, r, s, c)) if n > 1]
    expected = 1
    for n, stride in reversed(inner):
        if stride != expected:
            return None
        expected *= n
    step = p.k_group * k
    batch = ((p.groups, (0, 0, step, step)),) if p.groups > 1 else ()
    return _roles(p, p.k_group, p.taps * p.c_group, (k, 1), batch)


def _widths(problem):
    """Channels of a box: the width with the least padding per tap, and the widest."""
    best = min(WIDTHS, key=lambda w: (padded(problem.c_group, w), -w))
    return (best,) if best == WIDTHS[0] else (best, WIDTHS[0])


def configs(problem, device):
    """For each tile one slice, and as many as fill the device once and twice."""
    steps, found = steps_of(problem.pixels, 2), {}
    for width in _widths(problem):
        shape = shape_of(problem, width)
        for tile in TILES:
            if tile.cluster > 1 or tile.bn % 64 or problem.prologue_a is not None and not _makes(width, tile):
                continue
            found[Config(tile, width, 1)] = None
            for waves in (1, 2):
                ranges = waves * device.sms * tile.blocks // tile_count(shape, tile)
                ranges = even_ranges(steps, max(1, min(ranges, steps // LEAST_STEPS)))
                if ranges > 1 and _sums_bytes(problem, width, ranges) <= MOST_WORKSPACE:
                    found[Config(tile, width, ranges)] = None
    return list(found)


def _makes(width, tile):
    from ._filter_made import pieces_of  # programs are imported where there is one
    return pieces_of(width, tile)


def _sums_bytes(problem, width, ranges):
    return sums_bytes(_sums(problem, padded(problem.c_group, width)), ranges)


def _is_direct(problem, config):
    """Whether tiles are stored to dw directly."""
    return config.ranges == 1 and padded(problem.c_group, config.width) == problem.c_group and _matrix(problem) is not None


def workspace(problem, device, config):
    """A float32 partial sum for each element of the padded filter and each slice."""
    return 0 if _is_direct(problem, config) else _sums_bytes(problem, config.width, config.ranges)


def estimate(problem, device, config):
    """The product, with as many tiles as there are ranges of them, or what its stages take to come from the L2; then a launch that reads
    what the first wrote."""
    shape, tile = shape_of(problem, config.width), config.tile
    across, down = ceil_div(shape.n, tile.bn), ceil_div(shape.m, tile.bm)
    tiles, steps = tile_count(shape, tile) * config.ranges, ceil_div(steps_of(problem.pixels, 2), config.ranges)
    slower = 1 + COST.narrow * (64 // config.width - 1)  # more and shorter copies
    if problem.filter[0] > 1 and tile.bm == 64:
        slower *= COST.planes
    # tiles of a slice read the same pixels at about the same time
    step = (tile.bm + tile.bn) * ROW
    read = step * steps * tiles / (across * down) ** 0.5 / (COST.l2 * device.sms * device.clock_hz)
    arrives = step * tile.blocks * steps * ceil_div(tiles, device.sms * tile.blocks) / COST.arrives
    sizes = _Sizes(problem.x, problem.bytes - skipped_bytes(problem))
    product = product_seconds(sizes, tile, device, tiles, steps).slowed(slower=slower)
    if problem.prologue_a is not None:
        box = COST.box + COST.function * steps_instructions(problem.prologue_a.program)
        stage = (COST.stage + ceil_div(tile.bn, config.width) * box) * tile.blocks / device.clock_hz
        product = contend(2, product, Cost(issue=stage * steps * ceil_div(tiles, device.sms * tile.blocks)))
    work = overlap(product, Cost(launch=COST.start, l2=max(read, arrives)))
    return work if _is_direct(problem, config) else work + sum_seconds(workspace(problem, device, config), device)


def _product(tile, dtype, width, dims, sink, made):
    remake = None
    if made is not None:
        from ._filter_made import make_remake  # programs are imported where there is one
        remake = make_remake(tile, width, dims, *made)
    return make_product(tile, make_filter_loader(tile, dtype, width, dims), make_filter_locate(tile, width), sink, remake=remake)


@functools.cache
def kernel(special, width, dims, made=None):
    """Sums over all pixels, stored to dw. `made`: what the image is made of, with the operands that come in pairs of channels."""
    tile = special.tile
    product = _product(tile, special.operands[0], width, dims, make_sink(special), made)

    @jit(launch_bounds=(tile.threads, tile.blocks))
    def conv_bwd_filter_wgmma(dy, x, dw_map, tiles, per_matrix, ranges, band_tiles, super_rows, last_rows, a_batched, b_batched, steps,
                              each, columns, window, y, y_row, y_column, y_batch, m, n, scale_a, scale_b, scale_strides, c_batch, alpha,
                              beta, bias, bias_stride, c, c_row_stride, c_column_stride, extras, image, operands):
        shared = cuda.shared.array(0, u32)
        product(tensor_map_address(dy), tensor_map_address(x), tensor_map_address(dw_map), shared_address(shared, 0), tiles,
                ((per_matrix, ranges, band_tiles, super_rows, last_rows, a_batched, b_batched, steps, each),
                 columns, window),
                MatmulOutput(y, y_row, y_column, y_batch, m, n, scale_a, scale_b, scale_strides, c_batch, alpha, beta, bias, bias_stride, c,
                             c_row_stride, c_column_stride, extras), None, (image, operands))
    return conv_bwd_filter_wgmma


@functools.cache
def partial_kernel(tile, dtype, width, dims, made=None):
    """Sums over one slice of the pixels, to matrix number ``slice * groups + group`` of the workspace. `made`: as `kernel` has it."""
    store = make_boxed_store(tile, EpilogueSpec(accumulator="float32", output="float32"))

    @device_function
    def sink(acc, first, offset, sums_map, staging, tile, thread, barrier, out):
        m, n, groups = out
        z = tile.k_slice * groups + tile.z
        store(acc, first, sums_map, staging, tile.row + offset, tile.column, z, thread, barrier, m, n, (), (), ())
    product = _product(tile, dtype, width, dims, sink, made)

    @jit(launch_bounds=(tile.threads, tile.blocks))
    def conv_bwd_filter_wgmma_partial(dy, x, sums, m, n, groups, tiles, per_matrix, ranges, band_tiles, super_rows, last_rows, a_batched,
                                      b_batched, steps, each, columns, window, image, operands):
        shared = cuda.shared.array(0, u32)
        product(tensor_map_address(dy), tensor_map_address(x), tensor_map_address(sums), shared_address(shared, 0), tiles,
                ((per_matrix, ranges, band_tiles, super_rows, last_rows, a_batched, b_batched, steps, each),
                 columns, window), (m, n, groups), None, (image, operands))
    return conv_bwd_filter_wgmma_partial


def _made(p):
    """What the kernels are made for, and their two parameters: the image's extents, and its program's operands."""
    making = making_of_image(p)
    if making is None:
        return None, (NOTHING, NOTHING)
    from ..engine.hopper_made import paired  # programs are imported where there is one
    from ._filter_made import Image
    return (making.made, paired(making)), (Argument(Image, Image(p.n, *p.image, p.c)), making.argument(0))


def build(problem, device, config):
    """One launch that stores dw, or partial sums over slices of the pixels and their reduction."""
    p, tile, width = problem, config.tile, config.width
    shape, dy, dims = shape_of(p, width), gradient(p), spatial_dims(p)
    ranges = even_ranges(steps_of(p.pixels, 2), config.ranges)  # an empty slice would leave its sums unwritten
    tiles, place = locate_arguments(shape, tile, dy, dy, ranges)
    columns, window = place_arguments(p, width)
    dy_map, x_map = dy.argument(64, 0), Argument("tensormap", "x", spec=image_map(p, width))
    place = (Argument("int32", tiles), *place, columns, window)
    grid, block = (min(tiles, device.sms * tile.blocks), 1, 1), (tile.threads, 1, 1)
    made, image = _made(p)
    if _is_direct(p, config):
        parts = _matrix(p)
        by_tma = stored_by_tma(parts)
        special = Specialisation(tile, (p.dtype, p.dtype, "mn", "mn"), parts.epilogue, by_tma, not by_tma and store_width(parts, 2) == 2)
        output = named((*((y_argument(parts),) if by_tma else ()), *output_arguments(parts)))
        arguments = (dy_map, x_map, *(output[:1] if by_tma else (x_map,)), *place, *output[by_tma:], *image)
        return (Launch(kernel(special, width, dims, made), grid, block, arguments, shared=tile.shared, dependent=True),)
    sums = store_argument("workspace", "float32", (ranges * p.groups, shape.m, shape.n), (shape.m * shape.n, shape.n, 1))
    arguments = (dy_map, x_map, sums, *(Argument("int32", v) for v in (shape.m, shape.n, p.groups)), *place, *image)
    product = Launch(partial_kernel(tile, p.dtype, width, dims, made), grid, block, arguments, shared=tile.shared, dependent=True)
    total = sum_launch(_sums(p, padded(p.c_group, width)), ranges, dependent=True)
    return product, replace(total, arguments=named(total.arguments))


ALGORITHM = Algorithm(op="conv_bwd_filter", name="implicit_gemm_wgmma", supports=supports, workspace=workspace, estimate=estimate,
                      build=build, configs=configs, notes=Note.TENSOR_CORE, prologues=True, arch="sm_90a")

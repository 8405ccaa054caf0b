"""Backward filter on Hopper's tensor cores with few channels: x is loaded once for all taps of a row of the filter.

`implicit_gemm_wgmma` loads a pixel of x for every tap. With 64 filters there are too few products for what it loads: it is limited by the
L2. Here a tile is all taps of 64 channels by 64 filters, and the taps along w share a slab of pixels in shared memory (`kernel`): for 3x3,
three slabs of 66 pixels replace nine boxes of 64. Blocks have slices of the pixels; their partial sums in the workspace are
[slice][group][64 channels][tap][channel][k], and a second launch adds them in a fixed order, as in `implicit_gemm_wgmma`.

For stride 1, channels in multiples of 64, two to four taps along w. It wins with 64 to 128 channels and filters. With more,
`implicit_gemm_wgmma` is as fast and wastes no pixels: rows here are as wide as x's with its padding. In that padding dy counts as zero, so
an infinite or NaN x also reaches taps that do not cover it.
"""
import functools
import math
from dataclasses import dataclass, replace

from ...device import cuda, device_function, jit, u32
from ...device.epilogue import EpilogueSpec
from ...device.index import ceil_div
from ...device.tma import tensor_map_address
from ...device.vec import shared_address
from ...dispatch import Algorithm, Note
from ...engine.constants import constants
from ...engine.cost import Cost, overlap
from ...engine.hopper import make_product
from ...engine.hopper_plan import even_ranges, locate_arguments, steps_of, store_argument, tile_count, waves_of
from ...engine.hopper_stores import make_boxed_store
from ...engine.roles import Roles
from ...engine.scales import Scales
from ...engine.split_k import pitch_of, sum_launch, sums_bytes, sums_refusal
from ...host.launch import Argument, Launch
from .._filter_wgmma import PIXELS, gradient, named, spatial_dims, types_refusal
from .kernel import CHANNELS, SlabTile, lines_of, make_slab_loader, make_slab_locate, slab_arguments, slab_maps, slab_shape

COST, L2 = constants("conv/slabs"), constants("conv/filter_wgmma")

LEAST_STEPS = 2  # of a slice of the pixels
MOST_WORKSPACE = 1 << 28


@dataclass(frozen=True)
class Config:
    """Tile, and slices of the pixels."""
    tile: SlabTile
    ranges: int

    def __post_init__(self):
        if self.ranges < 1:
            raise ValueError(f"{self.ranges} slices of the pixels; the least is 1")

    def __str__(self):
        return f"{self.tile} {self.ranges} slices"


def _tiles(problem):
    """The tiles whose accumulators and slabs fit."""
    found, (_, _, taps) = [], problem.filter
    for lines in range(min(3, lines_of(problem)), 0, -1):
        for columns in (64, 128):
            try:
                found.append(SlabTile(lines * taps * CHANNELS, columns, lines=lines, taps=taps, dilation=problem.dilations[2]))
            except ValueError:
                continue
    return found


def supports(problem):
    """16-bit types, contiguous channels in multiples of 64, stride 1, at least two taps along w, accumulators that fit the registers."""
    p = problem
    reason = types_refusal(p)
    if reason:
        return reason
    if p.strides != (1, 1, 1):
        return f"stride {p.stride}: neighbouring taps of neighbouring windows read the same pixels only with stride 1"
    if p.c_group % CHANNELS:
        return f"{p.c_group} channels per group; expected a multiple of {CHANNELS}"
    if p.filter[2] < 2 or p.flip:
        return "the taps of a row are read backwards" if p.flip else "one tap along w: nothing to share"
    if not _tiles(p):
        return f"{p.filter[2]} taps along w with dilation {p.dilations[2]} fit no tile"
    if slab_shape(p).k >= 2 ** 31 - 256:
        return f"{slab_shape(p).k} pixels with their padding; the most is 2**31 - 257"
    try:
        slab_maps(p, PIXELS)
    except ValueError as error:
        return str(error)
    return sums_refusal(_sums(p))


def _sums(problem):
    """dw for `sum_launch`: rows of 64 channels, columns of filters."""
    p = problem
    k, c, *taps = p.w_strides
    dims = [(n, s) for n, s in ((p.groups, p.k_group * k), (p.c_group // CHANNELS, CHANNELS * c)) if n > 1]
    along = [(n, s) for n, s in zip(p.filter, taps) if n > 1]
    while len(along) > 1 and along[-2][1] == along[-1][0] * along[-1][1]:
        (n, _), (m, s) = along[-2:]
        along[-2:] = [(n * m, s)]
    return Roles(m=CHANNELS, n=p.k_group, k=p.pixels, a=p.x, b=p.y, y=p.w, names=("x", "y"), a_strides=(0, 1), b_strides=(1, 0),
                 y_strides=(c, k), c_strides=(c, k), batch=tuple((n, (0, 0, s, s)) for n, s in (*dims, *along)), epilogue=p.epilogue,
                 bias_stride=0, scales=Scales())


def configs(problem, device):
    """For each tile as many slices as fill the device once and twice."""
    shape, found = slab_shape(problem), {}
    steps = steps_of(shape.k, 2)
    for tile in _tiles(problem):
        for waves in (1, 2):
            ranges = waves * device.sms // tile_count(shape, tile)
            ranges = even_ranges(steps, max(1, min(ranges, steps // LEAST_STEPS)))
            if not found or sums_bytes(_sums(problem), ranges) <= MOST_WORKSPACE:
                found[Config(tile, ranges)] = None
    return list(found)


def workspace(problem, device, config):
    """A float32 partial sum for each element of dw and each slice."""
    return sums_bytes(_sums(problem), config.ranges)


def estimate(problem, device, config):
    """The slowest of tensor cores, shared memory and the L2 for each step; then a launch that reads what the first wrote."""
    shape, tile = slab_shape(problem), config.tile
    steps, tiles = ceil_div(steps_of(shape.k, 2), config.ranges), tile_count(shape, tile) * config.ranges
    products = 4 * tile.lines * tile.taps  # of 64 rows, bn columns and 16 pixels
    alone = 1.0 if tile.lines > 1 else COST.one_group  # one warpgroup waits for its own products
    times = waves_of(tiles, device.sms) * steps * alone / device.clock_hz
    work = overlap(math=times * (products * tile.bn / 2), shared=times * ((products * (2048 + tile.bn * 32) + tile.stage) / 128),
                   l2=times * (tile.stage / L2.l2), memory=problem.bytes / device.bandwidth)
    slower = COST.slower + COST.twice * math.log2(max(1.0, problem.k_group * problem.c_group / CHANNELS ** 2))
    reduction = COST.sum_bytes * workspace(problem, device, config) / device.bandwidth
    return (Cost(launch=COST.start, reduction=reduction) + work).slowed(slower=slower)


@functools.cache
def kernel(tile, dtype, dims):
    """Sums over one slice of the pixels, to matrix number ``slice * matrices + z`` of the workspace."""
    store = make_boxed_store(tile, EpilogueSpec(accumulator="float32", output="float32"))

    @device_function
    def sink(acc, first, offset, sums_map, staging, tile, thread, barrier, out):
        m, n, matrices = out
        z = tile.k_slice * matrices + tile.z
        store(acc, first, sums_map, staging, tile.row + offset, tile.column, z, thread, barrier, m, n, (), (), ())
    product = make_product(tile, make_slab_loader(tile, dtype, dims), make_slab_locate(tile), sink)

    @jit(launch_bounds=(tile.threads, tile.blocks))
    def conv_bwd_filter_slabs_wgmma(x, dy, sums, m, n, matrices, tiles, per_matrix, ranges, band_tiles, super_rows, last_rows, a_batched,
                                    b_batched, steps, each, parts, window):
        shared = cuda.shared.array(0, u32)
        product(tensor_map_address(x), tensor_map_address(dy), tensor_map_address(sums), shared_address(shared, 0), tiles,
                ((per_matrix, ranges, band_tiles, super_rows, last_rows, a_batched, b_batched, steps, each),
                 parts, window), (m, n, matrices))
    return conv_bwd_filter_slabs_wgmma


def build(problem, device, config):
    """Partial sums over slices of the pixels, then their reduction."""
    p, tile, shape = problem, config.tile, slab_shape(problem)
    ranges = even_ranges(steps_of(shape.k, 2), config.ranges)  # an empty slice would leave its sums unwritten
    operand, sums = gradient(p), _sums(p)
    tiles, place = locate_arguments(shape, tile, operand, operand, ranges)
    parts, window = slab_arguments(p)
    x_map, dy_map = (Argument("tensormap", name, spec=spec) for name, spec in zip("xy", slab_maps(p, tile.pixels)))
    pitch = pitch_of(sums)
    sums_map = store_argument("workspace", "float32", (ranges * shape.batch_size, shape.m, pitch), (shape.m * pitch, pitch, 1))
    arguments = (x_map, dy_map, sums_map, *(Argument("int32", v) for v in (shape.m, pitch, shape.batch_size, tiles)), *place, parts, window)
    product = Launch(kernel(tile, p.dtype, spatial_dims(p)), (min(tiles, device.sms), 1, 1), (tile.threads, 1, 1), arguments,
                     shared=tile.shared, dependent=True)
    total = sum_launch(sums, ranges, dependent=True)
    return product, replace(total, arguments=named(total.arguments))


ALGORITHM = Algorithm(op="conv_bwd_filter", name="slabs_wgmma", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs, notes=Note.TENSOR_CORE, arch="sm_90a")

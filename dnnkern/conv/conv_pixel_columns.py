"""1x1 filters with pixels as the product's columns: tiles of any number of pixels, so that their count fits the multiprocessors.

    w [output channels, c] --TMA--+--> ring in shared memory --wgmma--> sums [output channels, pixels]
    x [pixels, c] ----------TMA---+                                      --stmatrix, transposed--> [pixels, output channels] --TMA--> y

Rows of a tile are a multiple of 64, columns of 16. `pointwise` has pixels as rows: 64x2048x7x7 to 512 channels are 100 tiles of 128x128 for
132 multiprocessors. Here they are 132 tiles of 128 channels by 96 pixels. A thread's sums are of neighbouring pixels, results have
neighbouring channels: each 8x8 of them is transposed on its way to shared memory.

Backward data is the same with the filter contiguous along its rows. It has no epilogue, and it loses wherever there are many tiles.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, device_function, jit, u32
from ..device.barrier import barrier_sync
from ..device.convert import element
from ..device.index import ceil_div
from ..device.mbarrier import fence_async_shared
from ..device.stmatrix import stmatrix_x4_trans
from ..device.tma import bulk_commit, make_bulk_wait_read, make_tma_store, tensor_map_address
from ..device.unroll import unrolled
from ..device.vec import shared_address
from ..dispatch import Algorithm, Note
from ..engine.constants import constants
from ..engine.cost import Cost, overlap
from ..engine.hopper import GROUP, ROW, Tile, make_matrix_loader, make_product
from ..engine.hopper_plan import locate_arguments, make_locate, make_operand, slots_of, steps_of
from ..engine.plan import collapsed
from ..host.launch import Argument, Launch
from ..host.memo import remembered
from ..host.tensormap import TensorMap
from ._filter_wgmma import Shape
from ._taps import roles

COST, WGMMA = constants("conv/pixel_columns"), constants("engine/hopper")

ROWS, COLUMNS = (64, 128), range(64, 257, 16)
MOST = 3  # configurations


@dataclass(frozen=True)
class Config:
    """A tile: output channels by pixels."""
    tile: Tile

    def __str__(self):
        return str(self.tile)


def _pixels(p, strides, extents):
    """Elements from one pixel to the next where all are evenly spaced, else None."""
    n, _, *spatial = strides
    return collapsed((p.n, *extents), (n, *spatial))


@remembered
def _operands(p):
    """(the filter, the image) as operands of the product."""
    source, strides, extents, _, _, _ = roles(p)
    k, c = p.w_strides[:2]
    forward = p.op == "conv_fwd"
    rows, depth, across, along = (p.k, p.c, k, c) if forward else (p.c, p.k, c, k)
    pixels = p.pixels
    return (make_operand("w", p.w, rows, depth, (0, across, along), 1, None),
            make_operand("x" if forward else "y", source, pixels, depth, (0, _pixels(p, strides, extents), strides[1]), 1, None))


def supports(problem):
    """16-bit floats, one group, stride 1, arrays as TMA reads and writes them, no epilogue."""
    p = problem
    if p.dtype not in ("float16", "bfloat16") or p.w.dtype != p.dtype or p.output.dtype != p.dtype:
        return f"{p.dtype}, filter {p.w.dtype}, result {p.output.dtype}; expected one 16-bit float"
    if not p.is_pointwise or p.groups > 1:
        return f"{p.taps} taps, stride {p.stride}, padding {p.padding}, {p.groups} groups; expected one of each, and no padding"
    if p.bias or p.residual or p.beta or p.scaled or p.program is not None or p.prologue_a is not None or p.activation.mode != "identity":
        return "an epilogue; it has none"
    if not (p.x.size and p.w.size and p.y.size):
        return "an operand is empty"
    _, strides, extents, result, result_strides, result_extents = roles(p)
    if _pixels(p, strides, extents) is None or _pixels(p, result_strides, result_extents) is None:
        return f"pixels are not evenly spaced: {p.x.strides}, {p.y.strides}"
    if any(x.packed for x in _operands(p)) or _operands(p)[1].major != "k":
        return "channels have to be contiguous and pixels aligned to 16 bytes, and the filter in one of its dimensions"
    step = _pixels(p, result_strides, result_extents)
    if result_strides[1] != 1 or result.alignment < 16 or p.pixels > 1 and (step <= 0 or step * result.itemsize % 16):
        return f"the result's channels have to be contiguous and pixels aligned to 16 bytes: {result}"
    if max(p.pixels, p.c, p.k) >= 2 ** 31 - 256:
        return f"{p.pixels} pixels; the most is 2**31 - 257"
    return None


def _shape(p):
    """`Shape` of the product."""
    w, x = _operands(p)
    return Shape(w.extent, x.extent, w.k, 1)


def configs(problem, device):
    """The tiles of least estimate: pixels that leave no multiprocessor idle."""
    tiles = [Tile(bm, bn, cluster) for bm in ROWS for bn in COLUMNS for cluster in (1, 2)]
    found = [Config(t) for t in tiles if t.bn * ROW <= t.buffers * GROUP]
    return sorted(found, key=lambda c: estimate(problem, device, c))[:MOST]


def workspace(problem, device, config):
    """None."""
    return 0


def _tiles(p, tile):
    shape = _shape(p)
    return ceil_div(shape.m, tile.bm * tile.cluster) * ceil_div(shape.n, tile.bn)


def estimate(problem, device, config):
    """Waves of tiles: the tensor cores' time, or what arrives in a multiprocessor, or the memory's."""
    p, tile = problem, config.tile
    waves = ceil_div(_tiles(p, tile), slots_of(tile, device))
    step = max((tile.bm + tile.bn) * ROW / COST.arrives, tile.bm * tile.bn * COST.product) + COST.step
    lines = sum(rows * operand.crosses for rows, operand in zip((tile.bm, tile.bn / tile.cluster), _operands(p)))
    step = max(step, ROW * lines * min(_tiles(p, tile) * tile.cluster, device.sms) / WGMMA.crossing)
    further = COST.further
    if tile.cluster > 1:  # pixels come from the L2 once; of a tile's end all blocks wait for each other
        step, further = step * COST.shared, further * COST.together
    work = ((waves - 1) * further + waves * steps_of(_shape(p).k, 2) * step) * WGMMA.clock / device.clock_hz
    return Cost(launch=COST.start) + overlap(exposed=WGMMA.exposed, math=work, memory=p.bytes / (WGMMA.bandwidth * device.bandwidth))


@functools.cache
def _make_sink(tile, dtype):
    """The sink of `engine.hopper.make_product`: 64 channels of all pixels of a tile, transposed."""
    pack, store, all_free = element(dtype).pack, make_tma_store(2), make_bulk_wait_read(0)

    @device_function
    def put(j, s):
        """16 pixels of 16 channels."""
        acc, first, at, swizzled = s
        k = first + 8 * j
        stmatrix_x4_trans(at + u32(j * 16 * ROW) + swizzled, pack(acc[k], acc[k + 1]), pack(acc[k + 2], acc[k + 3]),
                          pack(acc[k + 4], acc[k + 5]), pack(acc[k + 6], acc[k + 7]))
    put_all = unrolled(tile.bn // 16, put)

    @device_function
    def sink(acc, first, offset, y_map, staging, tile, thread, barrier, out):
        lane, warp = thread & 31, thread >> 5
        if thread == 0:
            all_free()
        barrier_sync(barrier, 128)
        # lane 8 q + r has pixel r of eight; q & 1 is which eight of 16 channels, q >> 1 which eight of 16 pixels
        pixel, piece = ((lane >> 4) << 3) + (lane & 7), warp * 2 + ((lane >> 3) & 1)
        put_all(0, (acc, first, staging, u32(pixel * ROW + ((piece ^ (lane & 7)) << 4))))
        fence_async_shared()
        barrier_sync(barrier, 128)
        if thread == 0:
            store(y_map, staging, tile.row + offset, tile.column)
            bulk_commit()
    return sink


@functools.cache
def kernel(tile, dtype, major):
    """The whole product, one persistent launch."""
    product = make_product(tile, make_matrix_loader(tile, dtype, dtype, major, "k"), make_locate(tile), _make_sink(tile, dtype),
                           cooperative=tile.cluster > 1)

    @jit(launch_bounds=(tile.threads, tile.blocks))
    def conv_pixel_columns(w, x, y, tiles, per_matrix, ranges, band_tiles, super_rows, last_rows, a_batched, b_batched, steps, each):
        shared = cuda.shared.array(0, u32)
        y_map = tensor_map_address(y)
        product(tensor_map_address(w), tensor_map_address(x), y_map, shared_address(shared, 0), tiles,
                (per_matrix, ranges, band_tiles, super_rows, last_rows, a_batched, b_batched, steps, each), 0, y_map)
    return conv_pixel_columns


def build(problem, device, config):
    """One launch."""
    p, tile, (w, x) = problem, config.tile, _operands(problem)
    _, _, _, result, strides, extents = roles(p)
    tiles, located = locate_arguments(_shape(p), tile, w, x)
    step = _pixels(p, strides, extents) if p.pixels > 1 else 8
    y = Argument("tensormap", p.output_name, spec=TensorMap(result.dtype, (p.pixels, w.extent), (step, 1), (tile.bn, 64), ROW))
    return (Launch(kernel(tile, p.dtype, w.major), (min(tiles, slots_of(tile, device)) * tile.cluster, 1, 1), (tile.threads, 1, 1),
                   (w.argument(tile.bm, 0), x.argument(tile.bn // tile.cluster, 0), y, Argument("int32", tiles), *located),
                   shared=tile.shared, cluster=(tile.cluster, 1, 1), dependent=True),)


ALGORITHMS = tuple(Algorithm(op=op, name="pixel_columns", supports=supports, workspace=workspace, estimate=estimate, build=build,
                             configs=configs, notes=Note.TENSOR_CORE, arch="sm_90a") for op in ("conv_fwd", "conv_bwd_data"))

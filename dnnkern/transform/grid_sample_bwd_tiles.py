"""The image's gradient by tiles of 16 by 16 pixels, a thread a pixel, which gathers: no atomics, sums in the order of the grid's places.

Which places lie near a pixel a grid does not say. A first launch finds the box in the image that each tile of 16 by 16 places covers. A
block of the second, a tile of pixels and some channels, looks at all these boxes, and at the places in those that touch it; the ones that
lie within a pixel of its tile go to shared memory, in order, and every thread adds up those that count for its own. So the work follows
from how smooth a grid is: places at random make every block look at all of them. A third launch is the gradient by the grid.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, device_function, i32, i64, u32
from ..device.block import make_block_reduce
from ..device.convert import element
from ..device.fastmath import maximum, minimum
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.warp import ballot
from ..dispatch import Algorithm
from ..host.dtypes import ITEMSIZE
from ..host.launch import Argument, Launch
from . import _grid_gradient
from ._estimate import LAUNCH, divisions_seconds, moved_seconds
from ._values import COMPUTE
from .grid_sample_naive import Config as Kind
from .grid_sample_naive import config_of, make_corners

SIDE, THREADS, LIMIT = 16, 256, 2 ** 31 - 2 ** 20
WARPS, FAR = THREADS // 32, 3e9


@dataclass(frozen=True)
class Config:
    """What the kernel is compiled for, and channels of a block."""
    kind: Kind
    channels: int

    def __str__(self):
        return f"{self.channels} channels"


def _tiles(extents):
    """(tiles along the height, along the width) of (D, H, W)."""
    return ceil_div(extents[1], SIDE), ceil_div(extents[2], SIDE)


def supports(problem):
    """Images of two dimensions, counters of 32 bits."""
    p = problem
    if p.dims != 2:
        return f"images of {p.dims} dimensions; expected two"
    if not p.dx.size or not p.dgrid.size:
        return "there are no pixels or no places"
    (rows, columns), groups = _tiles(p.image), ceil_div(p.channels, 4)
    if max(rows * columns * groups * p.x.shape[0], p.dgrid.size, *p.image) >= LIMIT or max(p.image) >= 2 ** 23:
        return f"images {p.image}, {p.x.shape[0]} of {p.channels} channels; expected fewer tiles than 2**31 - 2**20, extents below 2**23"
    return _grid_gradient.supports(p)


def _boxes(problem):
    rows, columns = _tiles(problem.out)
    return problem.x.shape[0] * rows * columns


def workspace(problem, device, config):
    """Four numbers for each tile of places."""
    return _boxes(problem) * 4 * ITEMSIZE[problem.compute]


def configs(problem, device):
    """Few channels where there are few tiles, more where there are many."""
    most = (4, 8) if problem.compute == "float64" else (4, 8, 16)
    return [Config(config_of(problem), n) for n in sorted({min(n, problem.channels) for n in most})]


def estimate(problem, device, config):
    """Of each block the boxes, and the places of those that a smooth grid makes it look at; fitted to H200. The gradient by the grid."""
    p, (rows, columns) = problem, _tiles(problem.image)
    boxes, blocks = _boxes(p) // max(1, p.x.shape[0]), rows * columns * p.x.shape[0] * ceil_div(p.channels, config.channels)
    near = min(boxes, 4 + 2 * ceil_div(boxes, rows * columns))
    each = boxes / THREADS * 60 + near * (1000 + 5 * THREADS / 2) + config.channels * 880
    issue = divisions_seconds(blocks * THREADS * each, 1, device)
    moved = moved_seconds(p.dy.nbytes + p.dx.nbytes, device)
    return 2 * LAUNCH + max(moved, issue / min(1.0, blocks / (4 * device.sms))) + _grid_gradient.seconds(p, device)


@functools.cache
def box_kernel(kind):
    """The least and the greatest place of a tile of the grid, along the width and the height of the image."""
    where, T = make_corners(kind).where, COMPUTE[kind.compute]
    least, most, SCRATCH = make_block_reduce(minimum, THREADS), make_block_reduce(maximum, THREADS), 2 * WARPS

    @cuda.jit(launch_bounds=THREADS)
    def grid_sample_boxes(grid, boxes, rows, columns, height, width, sizes, grid_strides):
        scratch, thread = cuda.shared.array(SCRATCH, T), i32(cuda.threadIdx.x)
        rest, column = divide_remainder(i32(cuda.blockIdx.x), columns)
        n, row = divide_remainder(rest, rows)
        p, q = i32(row * SIDE + (thread >> 4)), i32(column * SIDE + (thread & 15))
        low_w, high_w, low_h, high_h = T(FAR), T(-FAR), T(FAR), T(-FAR)
        if p < height and q < width:
            at = i64(i64(n) * grid_strides[0] + i64(p) * grid_strides[2] + i64(q) * grid_strides[3])
            w, h, _, _, _, _ = where(grid, at, grid_strides[4], sizes)
            low_w, high_w, low_h, high_h = w, w, h, h
        low_w, high_w = least(low_w, scratch, i32(0)), most(high_w, scratch, i32(1))
        low_h, high_h = least(low_h, scratch, i32(0)), most(high_h, scratch, i32(1))
        if thread == 0:
            to = i64(4 * i64(cuda.blockIdx.x))
            boxes[to] = low_w
            boxes[i64(to + 1)] = high_w
            boxes[i64(to + 2)] = low_h
            boxes[i64(to + 3)] = high_h
    return grid_sample_boxes


@device_function
def placed(hit, counts):
    """(how many threads before this one have a hit, how many of the block have one); a barrier, and one must lie between two calls."""
    thread = i32(cuda.threadIdx.x)
    mask = ballot(hit)
    before = i32(cuda.popc(u32(mask & u32(u32(u32(1) << u32(thread & 31)) - u32(1)))))
    if i32(thread & 31) == 0:
        counts[i32(thread >> 5)] = i32(cuda.popc(mask))
    cuda.syncthreads()
    total = i32(0)
    for k in range(WARPS):
        if k < i32(thread >> 5):
            before = i32(before + counts[k])
        total = i32(total + counts[k])
    return before, total


@functools.cache
def kernel(config):
    """The gradient of a tile of pixels in some channels."""
    kind, CHANNELS = config.kind, config.channels
    where, tent = make_corners(kind).where, make_corners(kind).tent
    load, store, T = element(kind.dtype).load, element(kind.dtype).store, COMPUTE[kind.compute]

    @cuda.jit(launch_bounds=(THREADS, 3))
    def grid_sample_tiles(dy, grid, boxes, dx, tiles, channels, rows, columns, groups, place_columns, height, width, sizes, dy_strides,
                          grid_strides, dx_strides):
        near, counts = cuda.shared.array(THREADS, i32), cuda.shared.array(WARPS, i32)
        places_w, places_h, places = cuda.shared.array(THREADS, T), cuda.shared.array(THREADS, T), cuda.shared.array(THREADS, i64)
        total = cuda.local.array(CHANNELS, T)
        thread = i32(cuda.threadIdx.x)
        rest, column = divide_remainder(i32(cuda.blockIdx.x), columns)
        rest, row = divide_remainder(rest, rows)
        n, group = divide_remainder(rest, groups)
        first_h, first_w, c0 = i32(row * SIDE), i32(column * SIDE), i32(group * i32(CHANNELS))
        h, w = i32(first_h + (thread >> 4)), i32(first_w + (thread & 15))
        above, below, left, right = T(first_h - 1), T(first_h + SIDE), T(first_w - 1), T(first_w + SIDE)
        for k in range(CHANNELS):
            total[k] = T(0)
        for first in range(i32(0), i32(tiles), i32(THREADS)):
            tile, hit = i32(first + thread), i32(0)
            if tile < tiles:
                at = i64(4 * i64(i64(n) * i64(tiles) + i64(tile)))
                if boxes[at] < right and boxes[i64(at + 1)] > left and boxes[i64(at + 2)] < below and boxes[i64(at + 3)] > above:
                    hit = i32(1)
            before, found = placed(hit, counts)
            if hit:
                near[before] = tile
            cuda.syncthreads()
            for j in range(found):
                tile_row, tile_column = divide_remainder(near[j], place_columns)
                p, q, hit = i32(tile_row * SIDE + (thread >> 4)), i32(tile_column * SIDE + (thread & 15)), i32(0)
                there_w, there_h = T(0), T(0)
                if p < height and q < width:
                    at = i64(i64(n) * grid_strides[0] + i64(p) * grid_strides[2] + i64(q) * grid_strides[3])
                    there_w, there_h, _, _, _, _ = where(grid, at, grid_strides[4], sizes)
                    if there_w < right and there_w > left and there_h < below and there_h > above:
                        hit = i32(1)
                before, count = placed(hit, counts)
                if hit:
                    places_w[before] = there_w
                    places_h[before] = there_h
                    places[before] = i64(i64(p) * dy_strides[3] + i64(q) * dy_strides[4])
                cuda.syncthreads()
                for e in range(count):
                    share = tent(places_h[e], h)
                    if share > T(0):
                        share = T(share * tent(places_w[e], w))
                        if share > T(0):
                            at = i64(i64(n) * dy_strides[0] + i64(c0) * dy_strides[1] + places[e])
                            for k in range(CHANNELS):
                                if i32(c0 + k) < channels:
                                    total[k] = T(total[k] + share * T(load(dy, i64(at + k * dy_strides[1]))))
                cuda.syncthreads()
        if h < sizes[1] and w < sizes[2]:
            to = i64(i64(n) * dx_strides[0] + i64(c0) * dx_strides[1] + i64(h) * dx_strides[3] + i64(w) * dx_strides[4])
            for k in range(CHANNELS):
                if i32(c0 + k) < channels:
                    store(dx, i64(to + k * dx_strides[1]), total[k])
    return grid_sample_tiles


def build(problem, device, config):
    """Three launches."""
    p, kind = problem, config.kind
    pointer, numbers = element(p.x.dtype).pointer, element(p.grid.dtype).pointer
    boxes, (rows, columns), (place_rows, place_columns) = Argument(f"{p.compute}*", "workspace"), _tiles(p.image), _tiles(p.out)
    groups, grid_strides = ceil_div(p.channels, config.channels), Argument("int64x5", p.grid_strides(p.grid))
    extents = Argument("int32", p.out[1]), Argument("int32", p.out[2]), Argument("int32x3", p.image)
    find = (Argument(numbers, "grid"), boxes, Argument("uint32x3", divisor(place_rows)), Argument("uint32x3", divisor(place_columns)),
            *extents, grid_strides)
    gather = (Argument(pointer, "dy"), Argument(numbers, "grid"), boxes, Argument(pointer, "dx"),
              Argument("int32", place_rows * place_columns), Argument("int32", p.channels), Argument("uint32x3", divisor(rows)),
              Argument("uint32x3", divisor(columns)), Argument("uint32x3", divisor(groups)), Argument("uint32x3", divisor(place_columns)),
              *extents, Argument("int64x5", p.strides_of(p.dy)), grid_strides, Argument("int64x5", p.strides_of(p.dx)))
    blocks = rows * columns * groups * p.x.shape[0]
    return (Launch(box_kernel(kind), (_boxes(p), 1, 1), (THREADS, 1, 1), find),
            Launch(kernel(config), (blocks, 1, 1), (THREADS, 1, 1), gather), _grid_gradient.launch(p, device))


ALGORITHM = Algorithm(op="grid_sample_bwd", name="tiles", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs)

"""The gradient of the grid: one thread per position, or several lanes that have its channels among them.

What a pixel round the position gives is a sum over the channels of its value times dy, whatever the slopes: a multiplication and an
addition for each. Slopes, shares and which pixels lie in the image come in once, at the end; a pixel outside is read where the image ends,
so that no load waits for a question.
"""
import functools

from ...device import cuda, device_function, i32, i64, jit
from ...device.convert import element
from ...device.index import divide_remainder, divisor
from ...device.vec import advance
from ...device.warp import shuffle_xor
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
from ...engine.strides import extents, grid_strides, image_strides
from ...engine.values import COMPUTE
from ...host.launch import Argument, Launch
from ._channels import make_channels, make_pixel, share_of, tile_of
from .grid_sample_naive import config_of, make_corners

COST = constants("transform/grid_gradient")

THREADS, CHANNELS = 128, 4


def grid_share(problem, device):
    """The `Share` of a position: lanes enough to fill the device."""
    positions = max(1, problem.grid.size // problem.dims)
    lanes = 1
    while lanes < 32 and positions * lanes < 512 * device.sms:
        lanes *= 2
    most = CHANNELS if problem.dims == 2 and problem.compute == "float32" else CHANNELS // 2
    return share_of((problem.dy, problem.x), most, lanes)


def supports(problem):
    """Counters of 32 bits, or why not."""
    p = problem
    if p.grid.size >= 2 ** 31 - 2 ** 20 or max(p.image) >= 2 ** 23:
        return f"{p.grid.size} coordinates for images {p.image}; expected fewer than 2**31 - 2**20, extents below 2**23"
    return None


def seconds(problem, device):
    """Time of the launch: bytes, or what a position takes and each of its channels, of which a load is mostly the L1's time."""
    p, share = problem, grid_share(problem, device)
    positions, taps = p.grid.size // p.dims, 2 ** p.dims if p.mode == "bilinear" else 0
    a_load = COST.load + COST.address / share.channels if share.unit else COST.load_first
    issue = issue_seconds(positions * (COST.output + p.channels * (1 + taps) * a_load), 1, device)
    return LAUNCH + overlap(issue=issue, memory=memory_seconds(p.bytes - p.dx.nbytes, device))


@functools.cache
def kernel(kind, share, tile, wide):
    """The gradient of the positions of a tile of the grid. `wide`: offsets of 64 bits."""
    corners, T, Int = make_corners(kind), COMPUTE[kind.compute], i64 if wide else i32
    where, split, store = corners.where, corners.split, element(kind.grid).store
    fetch, pixel = make_channels(kind.dtype, kind.compute, share, wide)[0], make_pixel(share, tile)
    DIMS, BILINEAR, K, LANES, STEP = kind.dims, kind.mode == "bilinear", share.channels, share.lanes, share.step
    CORNERS = 2 ** DIMS
    HELD = CORNERS * K

    @device_function
    def inside(i, size):
        return i32(i >= 0 and i < size)

    @device_function
    def clamped(i, size):
        return max(0, min(i, size - 1))

    @jit(launch_bounds=(THREADS, 5))
    def grid_sample_dgrid(dy, x, grid, dgrid, tile_rows, tile_columns, rows, columns, height, channels, sizes, dy_stride, x_stride,
                          grid_stride, dgrid_stride):
        sums, values, given = cuda.local.array(CORNERS, T), cuda.local.array(HELD, T), cuda.local.array(K, T)
        one, offsets, slopes = cuda.local.array(K, T), cuda.local.array(CORNERS, Int), cuda.local.array(3, T)
        n, row, q, first = pixel(cuda.blockIdx.x, tile_rows, tile_columns)
        ok = row < rows and q < columns
        if not ok:  # lanes meet below
            row, q = 0, 0
        o, p = divide_remainder(row, height)
        slopes[0], slopes[1], slopes[2] = T(0), T(0), T(0)
        if BILINEAR:
            at = n * grid_stride.n + o * grid_stride.d + p * grid_stride.h + q * grid_stride.w
            w, h, d, w_slope, h_slope, d_slope = where(grid, at, grid_stride, sizes)
            w0, w_share = split(w)
            h0, h_share = split(h)
            d0, d_share = split(d)
            for k in range(CORNERS):
                at_w, at_h = clamped(w0 + (k & 1), sizes.w), clamped(h0 + (k >> 1 & 1), sizes.h)
                offsets[k] = at_h * x_stride.h + at_w * x_stride.w
                if DIMS > 2:
                    offsets[k] = offsets[k] + clamped(d0 + (k >> 2), sizes.d) * x_stride.d
                sums[k] = T(0)
            here = n * dy_stride.n + o * dy_stride.d + p * dy_stride.h + q * dy_stride.w
            image = n * x_stride.n
            for c in range(first, channels, STEP):
                left = channels - c
                fetch(given, advance(dy, here + c * dy_stride.c), dy_stride.c, left)
                for j in range(CORNERS):
                    fetch(one, advance(x, image + c * x_stride.c + offsets[j]), x_stride.c, left)
                    for k in range(K):
                        values[j * K + k] = one[k]
                for k in range(K):
                    for j in range(CORNERS):
                        sums[j] = T(sums[j] + given[k] * values[j * K + k])
            for k in range(CORNERS):
                lane = 1
                while lane < LANES:
                    sums[k] = T(sums[k] + shuffle_xor(sums[k], lane))
                    lane = lane * 2
            for k in range(CORNERS):
                there = inside(w0 + (k & 1), sizes.w) & inside(h0 + (k >> 1 & 1), sizes.h)
                if DIMS > 2:
                    there = there & inside(d0 + (k >> 2), sizes.d)
                value = sums[k] if there else T(0)
                in_w = w_share if k & 1 else T(T(1) - w_share)
                in_h = h_share if k >> 1 & 1 else T(T(1) - h_share)
                in_d = T(1)
                if DIMS > 2:
                    in_d = d_share if k >> 2 else T(T(1) - d_share)
                    slopes[2] = T(slopes[2] + T(value * T(in_w * in_h)) * (T(1) if k >> 2 else T(-1)))
                slopes[0] = T(slopes[0] + T(value * T(in_h * in_d)) * (T(1) if k & 1 else T(-1)))
                slopes[1] = T(slopes[1] + T(value * T(in_w * in_d)) * (T(1) if k >> 1 & 1 else T(-1)))
            slopes[0], slopes[1], slopes[2] = T(slopes[0] * w_slope), T(slopes[1] * h_slope), T(slopes[2] * d_slope)
        if ok and first == 0:
            to = n * dgrid_stride.n + o * dgrid_stride.d + p * dgrid_stride.h + q * dgrid_stride.w
            for k in range(DIMS):
                store(dgrid, to + k * dgrid_stride.coordinate, slopes[k])
    return grid_sample_dgrid


def launch(problem, device):
    """The launch of the gradient by the grid."""
    p, share = problem, grid_share(problem, device)
    tile = tile_of(THREADS // share.lanes, p.out)
    tile_rows, tile_columns = tile.counts(p.out)
    pointer, numbers = element(p.x.dtype).pointer, element(p.grid.dtype).pointer
    arguments = (Argument(pointer, "dy"), Argument(pointer, "x"), Argument(numbers, "grid"), Argument(numbers, "dgrid"),
                 Argument("uint32x3", divisor(tile_rows)), Argument("uint32x3", divisor(tile_columns)),
                 Argument("int32", p.out[0] * p.out[1]), Argument("int32", p.out[2]), Argument("uint32x3", divisor(p.out[1])),
                 Argument("int32", p.channels), extents(p.image, False), image_strides(p.strides_of(p.dy), p.is_wide),
                 image_strides(p.strides_of(p.x), p.is_wide), grid_strides(p.grid_strides(p.grid)),
                 grid_strides(p.grid_strides(p.dgrid), p.is_wide))
    blocks = p.x.shape[0] * tile_rows * tile_columns
    return Launch(kernel(config_of(p), share, tile, p.is_wide), (blocks, 1, 1), (THREADS, 1, 1), arguments)

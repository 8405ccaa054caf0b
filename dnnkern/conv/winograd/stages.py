"""The transform kernels of the non-fused Winograd algorithm: patches of an image to matrices, products to outputs.

One thread per channel and tile. The matrices are [matrix][tile][channel] or [matrix][channel][tile], in the order of the image, so that
global reads and writes are coalesced. Where the two orders differ, eight neighbouring threads have neighbouring channels, which is one
32-byte sector.
"""
import functools
from dataclasses import dataclass
from typing import NamedTuple

from ...device import cuda, device_function, f32, i32, i64, jit, u32
from ...device.convert import element
from ...device.epilogue import EpilogueSpec, ResidualParams, make_epilogue
from ...device.index import Divisor, ceil_div, divide_remainder, divisor
from ...device.unroll import unrolled
from ...device.vec import advance, as_u32, load1_nc_if, store2, store4
from ...host.launch import Argument, Launch
from .._parameters import PlaneStrides
from .problem import channels_last
from .transforms import make_square

THREADS = 128


class MatrixStrides(NamedTuple):
    """Of the matrices, in elements."""
    matrix: i64
    tile: i64
    channel: i64


class RowStrides(NamedTuple):
    """Of a row of outputs along channels and w, and of the residual along w, in elements."""
    c: i64
    w: i64
    residual_w: i64


@dataclass(frozen=True)
class Matrices:
    """[matrix][tile][channel] or [matrix][channel][tile] of float32 at byte `offset` of the workspace; both extents multiples of four.

    Attributes
    ----------
    count : int
        Matrices.
    tiles, channels : int
    last : bool
        Whether channels are the contiguous dimension.
    offset : int
    """
    count: int
    tiles: int
    channels: int
    last: bool
    offset: int = 0

    @property
    def plane(self):
        """Elements of a matrix."""
        return self.tiles * self.channels

    @property
    def nbytes(self):
        return 4 * self.count * self.plane

    @property
    def strides(self):
        return MatrixStrides(self.plane, self.channels, 1) if self.last else MatrixStrides(self.plane, 1, self.tiles)

    def order(self, last):
        """(neighbouring threads along channels, threads in all) for an image with channels last, or not."""
        fast = (self.channels if last else 8) if self.last else (8 if last else 1)
        return fast, ceil_div(self.channels, fast) * fast * self.tiles


@dataclass(frozen=True)
class Tiles:
    """Numbers of tiles: in all, per image and per row; and the first tile of the launch."""
    total: int
    per_image: int
    per_row: int
    first: int = 0

    def arguments(self):
        """first, total, per_image, per_row."""
        return (Argument("int32", self.first), Argument("int32", self.total), Argument(Divisor, divisor(self.per_image)),
                Argument(Divisor, divisor(self.per_row)))


@device_function
def tile_and_channel(i, fast, tiles):
    """(tile, channel) of thread i: `fast` neighbouring channels, then all tiles, then the next channels; both are divisors."""
    rest, low = divide_remainder(i, fast)
    high, t = divide_remainder(rest, tiles)
    return t, high * i32(fast.d) + low


@dataclass(frozen=True)
class PatchConfig:
    """Transform of a line, extents of a patch before and after it, pixels from patch to patch, type, whether a row is contiguous."""
    line: object
    size: int
    n: int
    step: int
    dtype: str
    row: int


@functools.cache
def patch_kernel(config):
    """Transform one patch and channel into its element of each matrix; zeros for tiles and channels past the last."""
    L, N, STEP, row = config.size, config.n, config.step, config.row
    SIZE = N * N
    widen = element(config.dtype).widen
    transform = make_square(config.line, N, L, N)

    @device_function
    def load_pixel(s, state):
        values, r, line, w, W, stride, in_row = state
        ok = 1 if in_row and 0 <= w + s and w + s < W else 0
        values[r * N + s] = widen(load1_nc_if(line, i64(s) if row else s * stride.w, ok))
    load_row = unrolled(L, load_pixel)

    @device_function
    def load_line(r, state):
        values, x, h, w, H, W, stride, exists = state
        load_row(0, (values, r, advance(x, r * stride.h), w, W, stride, exists and 0 <= h + r and h + r < H))
    load_all = unrolled(L, load_line)

    @device_function
    def store_one(j, state):
        values, v, to, plane = state
        v[to + j * plane] = values[j]
    store_all = unrolled(SIZE, store_one)

    @jit(launch_bounds=(THREADS, 4))
    def conv_winograd_patches(x, v, count, fast, tiles, first, total, per_image, per_row, C, padded, H, W, pad_h, pad_w, stride,
                              v_stride):
        i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if i < count:
            t, c = tile_and_channel(i, fast, tiles)
            n, rest = divide_remainder(first + t, per_image)
            p, q = divide_remainder(rest, per_row)
            h, w = p * STEP - pad_h, q * STEP - pad_w
            x = advance(x, n * stride.n + c * stride.c + h * stride.h + w * stride.w)
            exists = first + t < total and c < C
            values = cuda.local.array(SIZE, f32)
            load_all(0, (values, x, h, w, H, W, stride, exists))
            transform(values)
            if c < padded:
                store_all(0, (values, v, t * v_stride.tile + c * v_stride.channel, v_stride.matrix))
    return conv_winograd_patches


def patch_launch(problem, name, plane, channels, line, size, n, step, matrices, tiles):
    """The launch that transforms patches of `size` x `size` pixels, `step` apart, of array `name` to `matrices`.

    `plane` is (h, w), (pad_h, pad_w) and the `PlaneStrides`.
    """
    extents, pads, strides = plane
    tensor = getattr(problem, name)
    fast, count = matrices.order(channels_last(strides))
    arguments = (Argument(element(tensor.dtype).pointer, name), Argument("float32*", "workspace", offset=matrices.offset),
                 Argument("int32", count), Argument(Divisor, divisor(fast)), Argument(Divisor, divisor(matrices.tiles)),
                 *tiles.arguments(), *(Argument("int32", v) for v in (channels, matrices.channels, *extents, *pads)),
                 Argument(PlaneStrides, strides), Argument(MatrixStrides, matrices.strides))
    config = PatchConfig(line, size, n, step, tensor.dtype, int(strides.w == 1))
    return Launch(patch_kernel(config), (ceil_div(count, THREADS), 1, 1), (THREADS, 1, 1), arguments)


@functools.cache
def make_row_store(spec, count, vector):
    """Device function ``store(v, k, channel, q, Q, y, at, residual_at, stride, e)``: v[k:k+count] to neighbouring pixels of one channel
    from q on, those below Q.

    `at` and `residual_at` are the element offsets of the first pixel's channel 0; `stride` is a `RowStrides`. With `vector` the pixels are
    one store: y is contiguous and aligned, and `count` divides Q.
    """
    epilogue, halves = make_epilogue(spec), spec.output in ("float16", "bfloat16")

    @device_function
    def one(x, j, channel, at, residual_at, stride, e):
        alpha, beta, bias, bias_stride, prior, row, column, residual, residual_row, residual_column = e
        e = ResidualParams(alpha, beta, bias, bias_stride, advance(prior, at + j * stride.w), row, column,
                           advance(residual, residual_at + j * stride.residual_w), residual_row, residual_column)
        return epilogue(x, 0, channel, e)

    if not vector:
        @device_function
        def store(v, k, channel, q, Q, y, at, residual_at, stride, e):
            for j in range(count):
                if q + j < Q:
                    y[at + channel * stride.c + j * stride.w] = one(v[k + j], j, channel, at, residual_at, stride, e)
    elif halves:
        @device_function
        def store(v, k, channel, q, Q, y, at, residual_at, stride, e):
            to = as_u32(advance(y, at + channel * stride.c))
            for j in range(count // 2):
                low = one(v[k + 2 * j], 2 * j, channel, at, residual_at, stride, e)
                high = one(v[k + 2 * j + 1], 2 * j + 1, channel, at, residual_at, stride, e)
                to[j] = low | (u32(high) << 16)
    elif count == 2:
        @device_function
        def store(v, k, channel, q, Q, y, at, residual_at, stride, e):
            first, second = (one(v[k], 0, channel, at, residual_at, stride, e), one(v[k + 1], 1, channel, at, residual_at, stride, e))
            store2(advance(y, at + channel * stride.c), 0, (first, second))
    else:
        @device_function
        def store(v, k, channel, q, Q, y, at, residual_at, stride, e):
            first, second = (one(v[k], 0, channel, at, residual_at, stride, e), one(v[k + 1], 1, channel, at, residual_at, stride, e))
            third, fourth = (one(v[k + 2], 2, channel, at, residual_at, stride, e),
                             one(v[k + 3], 3, channel, at, residual_at, stride, e))
            store4(advance(y, at + channel * stride.c), 0, (first, second, third, fourth))
    return store


def row_vector(tensor, strides, extent, count):
    """Whether `count` neighbouring pixels of a row of `tensor` are one vector store; `strides` are `PlaneStrides`."""
    width = count * tensor.itemsize
    return (count in (2, 4) and tensor.itemsize in (2, 4) and strides.w == 1 and tensor.alignment % min(width, 16) == 0
            and extent % count == 0 and all(s % count == 0 for s in strides[:3]))


@dataclass(frozen=True)
class ResultConfig:
    """Transform of a line, products and results along it, whether a row of results is one store, epilogue."""
    line: object
    n: int
    m: int
    vector: int
    epilogue: EpilogueSpec


@functools.cache
def result_kernel(config):
    """The outputs of one tile and channel from its element of each matrix."""
    N, M = config.n, config.m
    SIZE = N * N
    transform = make_square(config.line, N, N, M)
    store = make_row_store(config.epilogue, M, bool(config.vector))

    @device_function
    def load_one(j, state):
        values, v, at, plane = state
        values[j] = v[at + j * plane]
    load_all = unrolled(SIZE, load_one)

    @device_function
    def store_line(r, state):
        values, k, p, q, P, Q, y, y_at, residual_at, stride, residual_stride, e = state
        if p + r < P:
            store(values, r * N, k, q, Q, y, y_at + r * stride.h, residual_at + r * residual_stride.h,
                  RowStrides(stride.c, stride.w, residual_stride.w), e)
    store_lines = unrolled(M, store_line)

    @jit(launch_bounds=(THREADS, 4))
    def conv_winograd_results(v, y, count, fast, tiles, first, total, per_image, per_row, K, P, Q, y_first, v_stride, stride,
                              residual_stride, alpha, beta, bias, bias_stride, prior, row, column, residual, residual_row,
                              residual_column):
        i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if i < count:
            t, k = tile_and_channel(i, fast, tiles)
            if first + t < total and k < K:
                values = cuda.local.array(SIZE, f32)
                load_all(0, (values, v, t * v_stride.tile + k * v_stride.channel, v_stride.matrix))
                transform(values)
                n, rest = divide_remainder(first + t, per_image)
                p, q = divide_remainder(rest, per_row)
                p, q = p * M, q * M
                y_at = y_first + n * stride.n + p * stride.h + q * stride.w
                residual_at = n * residual_stride.n + p * residual_stride.h + q * residual_stride.w
                e = ResidualParams(alpha, beta, bias, bias_stride, prior, row, column, residual, residual_row, residual_column)
                store_lines(0, (values, k, p, q, P, Q, y, y_at, residual_at, stride, residual_stride, e))
    return conv_winograd_results


def result_launch(problem, name, channels, extents, strides, residual_strides, line, n, m, matrices, tiles, first=0):
    """The launch that computes array `name`, of extents (h, w), from the products in `matrices`.

    `strides` and `residual_strides` are `PlaneStrides`; they begin at element `first` of the array.
    """
    tensor = getattr(problem, name)
    fast, count = matrices.order(channels_last(strides))
    vector = first == 0 and row_vector(tensor, strides, extents[1], m)
    arguments = (Argument("float32*", "workspace", offset=matrices.offset), problem.pointer(name), Argument("int32", count),
                 Argument(Divisor, divisor(fast)), Argument(Divisor, divisor(matrices.tiles)), *tiles.arguments(),
                 *(Argument("int32", v) for v in (channels, *extents)), Argument("int64", first), Argument(MatrixStrides, matrices.strides),
                 Argument(PlaneStrides, strides), Argument(PlaneStrides, residual_strides),
                 *problem.epilogue_arguments((0, strides.c), (0, residual_strides.c)))
    return Launch(result_kernel(ResultConfig(line, n, m, int(vector), problem.epilogue)), (ceil_div(count, THREADS), 1, 1),
                  (THREADS, 1, 1), arguments)

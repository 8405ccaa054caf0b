"""The transforms of the Winograd algorithms that keep them in the workspace: patches of an image to matrices, sums to results.

A thread takes one channel of one tile. The matrices lie as [matrix][tile][channel] or [matrix][channel][tile], as the image does, so that
neighbouring threads read and write neighbours; where the two differ, eight threads are neighbours along channels, which is one sector of
32 bytes.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, device_function, f32, i32, i64, jit, u32
from ...device.convert import element
from ...device.epilogue import EpilogueSpec, ResidualParams, make_epilogue
from ...device.index import ceil_div, divide_remainder, divisor
from ...device.unroll import unrolled
from ...device.vec import advance, as_u32, load1_nc_if, store2, store4
from ...host.launch import Argument, Launch
from .transforms import make_square

THREADS = 128


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
        """Along (matrix, tile, channel)."""
        return (self.plane, self.channels, 1) if self.last else (self.plane, 1, self.tiles)

    def order(self, last):
        """(threads that are neighbours along channels, threads in all) beside an image with channels last, or not."""
        fast = (self.channels if last else 8) if self.last else (8 if last else 1)
        return fast, ceil_div(self.channels, fast) * fast * self.tiles


@dataclass(frozen=True)
class Tiles:
    """The tiles of images: how many, in all, in an image and in a row of it, and which one the launch begins with."""
    total: int
    per_image: int
    per_row: int
    first: int = 0

    def arguments(self):
        """first, total, per_image, per_row."""
        return (Argument("int32", self.first), Argument("int32", self.total), Argument("uint32x3", divisor(self.per_image)),
                Argument("uint32x3", divisor(self.per_row)))


@device_function
def place_of(i, fast, tiles):
    """(tile, channel) of thread i: `fast` channels are neighbours, then all tiles; both are divisors."""
    rest, low = divide_remainder(i, fast)
    high, t = divide_remainder(rest, tiles)
    return t, high * i32(fast[0]) + low


@dataclass(frozen=True)
class PatchConfig:
    """Transform of a line, extent of a patch before and after it, pixels from patch to patch, type, whether a row is contiguous."""
    line: object
    size: int
    n: int
    step: int
    dtype: str
    row: int


@functools.cache
def patch_kernel(config):
    """The matrices' elements of one patch and channel; zeros for tiles and channels beyond the last."""
    L, N, STEP, row = config.size, config.n, config.step, config.row
    SIZE = N * N
    widen = element(config.dtype).widen
    transform = make_square(config.line, N, L, N)

    @device_function
    def load_pixel(s, state):
        values, r, line, w, W, sw, in_row = state
        ok = 1 if in_row and 0 <= w + s and w + s < W else 0
        values[r * N + s] = widen(load1_nc_if(line, i64(s) if row else s * sw, ok))
    load_row = unrolled(L, load_pixel)

    @device_function
    def load_line(r, state):
        values, x, h, w, H, W, sh, sw, there = state
        load_row(0, (values, r, advance(x, r * sh), w, W, sw, there and 0 <= h + r and h + r < H))
    load_all = unrolled(L, load_line)

    @device_function
    def store_one(j, state):
        values, v, to, plane = state
        v[to + j * plane] = values[j]
    store_all = unrolled(SIZE, store_one)

    @jit(launch_bounds=(THREADS, 4))
    def conv_winograd_patches(x, v, count, fast, tiles, first, total, per_image, per_row, C, padded, H, W, pad_h, pad_w, strides,
                              v_strides):
        i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if i < count:
            t, c = place_of(i, fast, tiles)
            n, rest = divide_remainder(first + t, per_image)
            p, q = divide_remainder(rest, per_row)
            h, w = p * STEP - pad_h, q * STEP - pad_w
            sn, sc, sh, sw = strides
            x = advance(x, n * sn + c * sc + h * sh + w * sw)
            there = first + t < total and c < C
            values = cuda.local.array(SIZE, f32)
            load_all(0, (values, x, h, w, H, W, sh, sw, there))
            transform(values)
            if c < padded:
                plane, st, sc_v = v_strides
                store_all(0, (values, v, t * st + c * sc_v, plane))
    return conv_winograd_patches


def patch_launch(problem, name, plane, channels, line, size, n, step, matrices, tiles):
    """The launch that transforms patches of `size` x `size` pixels, `step` apart, of array `name` to `matrices`.

    `plane` is (h, w), (pad_h, pad_w) and the element strides along (n, channel, h, w).
    """
    extents, pads, strides = plane
    tensor = getattr(problem, name)
    fast, count = matrices.order(strides[1] == 1 and strides[3] != 1)
    arguments = (Argument(element(tensor.dtype).pointer, name), Argument("float32*", "workspace", offset=matrices.offset),
                 Argument("int32", count), Argument("uint32x3", divisor(fast)), Argument("uint32x3", divisor(matrices.tiles)),
                 *tiles.arguments(), *(Argument("int32", v) for v in (channels, matrices.channels, *extents, *pads)),
                 Argument("int64x4", strides), Argument("int64x3", matrices.strides))
    config = PatchConfig(line, size, n, step, tensor.dtype, int(strides[3] == 1))
    return Launch(patch_kernel(config), (ceil_div(count, THREADS), 1, 1), (THREADS, 1, 1), arguments)


@functools.cache
def make_row_store(spec, count, vector):
    """Device function ``store(v, k, channel, q, Q, y, at, residual_at, strides, e)``: v[k:k+count], neighbouring pixels of one channel
    from q on, those below Q.

    `at` and `residual_at` are the element offsets of the first pixel's channel 0, `strides` those along the channel and along w of y, and
    along w of the residual. With `vector` the pixels are one store: y is contiguous and aligned there, and `count` divides Q.
    """
    epilogue, halves = make_epilogue(spec), spec.output in ("float16", "bfloat16")

    @device_function
    def one(x, j, channel, at, residual_at, strides, e):
        alpha, beta, bias, bias_stride, prior, row, column, residual, residual_row, residual_column = e
        _, sq, rq = strides
        return epilogue(x, 0, channel, ResidualParams(alpha, beta, bias, bias_stride, advance(prior, at + j * sq), row, column,
                                                      advance(residual, residual_at + j * rq), residual_row, residual_column))

    if not vector:
        @device_function
        def store(v, k, channel, q, Q, y, at, residual_at, strides, e):
            for j in range(count):
                if q + j < Q:
                    y[at + channel * strides[0] + j * strides[1]] = one(v[k + j], j, channel, at, residual_at, strides, e)
    elif halves:
        @device_function
        def store(v, k, channel, q, Q, y, at, residual_at, strides, e):
            to = as_u32(advance(y, at + channel * strides[0]))
            for j in range(count // 2):
                low = one(v[k + 2 * j], 2 * j, channel, at, residual_at, strides, e)
                high = one(v[k + 2 * j + 1], 2 * j + 1, channel, at, residual_at, strides, e)
                to[j] = low | (u32(high) << 16)
    elif count == 2:
        @device_function
        def store(v, k, channel, q, Q, y, at, residual_at, strides, e):
            first, second = (one(v[k], 0, channel, at, residual_at, strides, e), one(v[k + 1], 1, channel, at, residual_at, strides, e))
            store2(advance(y, at + channel * strides[0]), 0, (first, second))
    else:
        @device_function
        def store(v, k, channel, q, Q, y, at, residual_at, strides, e):
            first, second = (one(v[k], 0, channel, at, residual_at, strides, e), one(v[k + 1], 1, channel, at, residual_at, strides, e))
            third, fourth = (one(v[k + 2], 2, channel, at, residual_at, strides, e),
                             one(v[k + 3], 3, channel, at, residual_at, strides, e))
            store4(advance(y, at + channel * strides[0]), 0, (first, second, third, fourth))
    return store


def row_vector(tensor, strides, extent, count):
    """Whether `count` neighbouring pixels of a row of `tensor` are one store; `strides` are those along (n, channel, h, w)."""
    width = count * tensor.itemsize
    return (count in (2, 4) and tensor.itemsize in (2, 4) and strides[3] == 1 and tensor.alignment % min(width, 16) == 0
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
    """The results of one tile and channel from its sums in the matrices."""
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
        values, k, p, q, P, Q, y, to, residual_to, sp, rp, strides, e = state
        if p + r < P:
            store(values, r * N, k, q, Q, y, to + r * sp, residual_to + r * rp, strides, e)
    store_lines = unrolled(M, store_line)

    @jit(launch_bounds=(THREADS, 4))
    def conv_winograd_results(v, y, count, fast, tiles, first, total, per_image, per_row, K, P, Q, y_first, v_strides, strides,
                              residual_strides, alpha, beta, bias, bias_stride, prior, row, column, residual, residual_row,
                              residual_column):
        i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if i < count:
            t, k = place_of(i, fast, tiles)
            if first + t < total and k < K:
                plane, st, sk_v = v_strides
                at = t * st + k * sk_v
                values = cuda.local.array(SIZE, f32)
                load_all(0, (values, v, at, plane))
                transform(values)
                n, rest = divide_remainder(first + t, per_image)
                p, q = divide_remainder(rest, per_row)
                p, q = p * M, q * M
                sn, sk, sp, sq = strides
                rn, _, rp, rq = residual_strides
                to = y_first + n * sn + p * sp + q * sq
                residual_to = n * rn + p * rp + q * rq
                e = ResidualParams(alpha, beta, bias, bias_stride, prior, row, column, residual, residual_row, residual_column)
                store_lines(0, (values, k, p, q, P, Q, y, to, residual_to, sp, rp, (sk, sq, rq), e))
    return conv_winograd_results


def result_launch(problem, name, channels, extents, strides, residual_strides, line, n, m, matrices, tiles, first=0):
    """The launch that makes the results of array `name`, `extents` (h, w) of each image and channel, from the sums in `matrices`.

    `strides` and `residual_strides` are those along (n, channel, h, w), `first` the element of the array that they count from.
    """
    tensor = getattr(problem, name)
    fast, count = matrices.order(strides[1] == 1 and strides[3] != 1)
    vector = first == 0 and row_vector(tensor, strides, extents[1], m)
    arguments = (Argument("float32*", "workspace", offset=matrices.offset), problem.pointer(name), Argument("int32", count),
                 Argument("uint32x3", divisor(fast)), Argument("uint32x3", divisor(matrices.tiles)), *tiles.arguments(),
                 *(Argument("int32", v) for v in (channels, *extents)), Argument("int64", first), Argument("int64x3", matrices.strides),
                 Argument("int64x4", strides), Argument("int64x4", residual_strides),
                 *problem.epilogue_arguments((0, strides[1]), (0, residual_strides[1])))
    return Launch(result_kernel(ResultConfig(line, n, m, int(vector), problem.epilogue)), (ceil_div(count, THREADS), 1, 1),
                  (THREADS, 1, 1), arguments)

"""Fragments of a tile of scores, or of a box of columns of a gradient, by keys, on their way through shared memory.

Each eight columns and eight rows of them are a matrix; a tile lies there by its columns, which are keys: 128 bytes each, 64 queries or
columns of a gradient, swizzled as TMA does it.
"""
import functools
from typing import Callable, NamedTuple

from ....device import cuda, device_function, f32, u16, u32
from ....device.barrier import barrier_sync
from ....device.convert import element
from ....device.groups import make_word_writer
from ....device.ldmatrix import ldmatrix_x4_trans
from ....device.stmatrix import stmatrix_x4_trans
from ....device.unroll import unrolled
from ....device.vec import advance, as_u32, load_shared_4u32
from ....engine.hopper import ROW
from ..._wgmma import COLUMNS


class Fragments(NamedTuple):
    """Device functions.

    store(x, first, factor, to, thread)
        The elements from `first` on, times a factor, rounded.
    store_parts(x, to, rest, thread)
        Elements rounded, and what they lost by that.
    dscores(dp, delta, p_at, rest_at, thread)
        dp becomes ds, but for the scale: p (dp - delta).
    write_dk, write_dv(0, (acc, factor, through, name, out, strides, first_key, keys, thread))
        A gradient, box after box of columns, through memory of one tile; its warpgroup meets at barrier `name`.
    """
    store: Callable
    store_parts: Callable
    dscores: Callable
    write_dk: Callable
    write_dv: Callable


@functools.cache
def make_fragments(config) -> Fragments:
    """Of a configuration."""
    of_dtype, HEIGHT, SCORES = element(config.kind.dtype), config.shape.own, config.shape.own // 2
    both, apart = of_dtype.pack, of_dtype.unpack
    # What a small number loses in float16 is itself too small for float16.
    LARGER, SMALLER = (f32(2048), f32(1 / 2048)) if config.kind.dtype == "float16" else (f32(1), f32(1))

    @device_function
    def position(thread):
        """Where the lane's row of the first four matrices is: 128 bytes a key, swizzled. The next four are 16 keys further."""
        key, half = (thread.lane >> 4) * 8 + (thread.lane & 7), thread.lane >> 3 & 1
        return u32(key * ROW + (((2 * thread.warp + half) ^ (key & 7)) << 4))

    @device_function
    def store_tile(x, first, factor, to, thread):
        """x[first:first + SCORES] times a factor, rounded."""
        own = to + position(thread)
        for i in range(HEIGHT // 16):
            k = first + 8 * i
            stmatrix_x4_trans(own, both(x[k] * factor, x[k + 1] * factor), both(x[k + 2] * factor, x[k + 3] * factor),
                              both(x[k + 4] * factor, x[k + 5] * factor), both(x[k + 6] * factor, x[k + 7] * factor))
            own = own + 16 * ROW

    @device_function
    def parts(a, b):
        """A word of two numbers, and one of what they lost, `LARGER` times."""
        word = both(a, b)
        low, high = apart(word)
        return word, both((a - low) * LARGER, (b - high) * LARGER)

    @device_function
    def store_parts(x, to, rest, thread):
        """x rounded, and what it lost by that."""
        own, own_rest = to + position(thread), rest + position(thread)
        for i in range(HEIGHT // 16):
            k = 8 * i
            a, of_a = parts(x[k], x[k + 1])
            b, of_b = parts(x[k + 2], x[k + 3])
            c, of_c = parts(x[k + 4], x[k + 5])
            d, of_d = parts(x[k + 6], x[k + 7])
            stmatrix_x4_trans(own, a, b, c, d)
            stmatrix_x4_trans(own_rest, of_a, of_b, of_c, of_d)
            own, own_rest = own + 16 * ROW, own_rest + 16 * ROW

    @device_function
    def dscores(dp, delta, p_at, rest_at, thread):
        """dp becomes ds, but for the scale: p (dp - delta)."""
        words, others = cuda.local.array(4, u32), cuda.local.array(4, u32)
        own, own_rest = p_at + position(thread), rest_at + position(thread)
        for i in range(HEIGHT // 16):
            ldmatrix_x4_trans(words, 0, own)
            ldmatrix_x4_trans(others, 0, own_rest)
            own, own_rest = own + 16 * ROW, own_rest + 16 * ROW
            for n in range(4):
                k, d, (low, high), (of_low, of_high) = 8 * i + 2 * n, delta[n & 1], apart(words[n]), apart(others[n])
                dp[k], dp[k + 1] = (low + of_low * SMALLER) * (dp[k] - d), (high + of_high * SMALLER) * (dp[k + 1] - d)

    def make_write(boxes, columns, words):
        """Device function ``write(0, (acc, factor, through, name, out, strides, first_key, keys, thread))``: box after box of columns
        through memory of one tile, at which barrier `name`'s warpgroup meets."""
        put = make_word_writer(4, words) if words else None

        @device_function
        def put_chunk(o, step, column, chunk):
            if words:
                if column < columns:
                    buffer = cuda.local.array(4, u32)
                    for i in range(4):
                        buffer[i] = chunk[i]
                    put(as_u32(advance(o, column)), buffer)
            else:
                for i in range(4):
                    if column + 2 * i < columns:
                        o[(column + 2 * i) * step] = u16(chunk[i] & 0xFFFF)
                    if column + 2 * i + 1 < columns:
                        o[(column + 2 * i + 1) * step] = u16(chunk[i] >> 16)

        @device_function
        def write_box(b, s):
            acc, factor, through, name, out, strides, first_key, keys, thread = s
            store_tile(acc, b * SCORES, factor, through, thread)
            barrier_sync(name, 128)
            for part in range(thread.number, HEIGHT * 8, 128):
                key, chunk = part >> 3, part & 7
                if first_key + key < keys:
                    of_key = load_shared_4u32(through + u32(key * ROW + ((chunk ^ (key & 7)) << 4)))
                    put_chunk(advance(out, (first_key + key) * strides.row), strides.column, b * COLUMNS + chunk * 8, of_key)
            barrier_sync(name, 128)
        return unrolled(boxes, write_box)
    write_dk, write_dv = (make_write(*of) for of in zip(config.boxes, (config.d, config.e), config.words))
    return Fragments(store_tile, store_parts, dscores, write_dk, write_dv)

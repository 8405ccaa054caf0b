"""What kernels of tiles are made of: values in shared memory, and the weights of a position as they lie side by side."""
import functools
from typing import Callable, NamedTuple

from ...device import cuda, device_function, u32
from ...device.fastmath import rcp
from ...engine.values import COMPUTE, make_unpack, make_words
from ...engine.vectors import make_unit_moves
from ...host.dtypes import ITEMSIZE
from ._filters import NORMALISED, make_filter
from .resample_chunks import make_take


class Shared(NamedTuple):
    """Accesses of shared memory at a byte `at`, `base` being the address of the array `memory`.

    get(values, k, memory, base, at)
        values[k] = a value.
    put(memory, base, at, values)
        Several values, side by side.
    get_row(values, memory, base, at)
        A row of weights.
    """
    get: Callable
    put: Callable
    get_row: Callable


@functools.cache
def make_shared(compute, count, padded):
    """`Shared` with `count` values to put and rows of `padded`."""
    BYTES, T = ITEMSIZE[compute], COMPUTE[compute]
    UNIT = min(16, count * BYTES)
    (widen, _), (unpack, _) = make_words(compute, BYTES), make_unpack(compute, 16 // BYTES)
    _, pack = make_take(compute, UNIT // BYTES)
    _, _, load, _, ONE = make_unit_moves(BYTES, BYTES)
    _, _, _, store, WORDS = make_unit_moves(UNIT, BYTES)
    _, _, load_vector, _, FOUR = make_unit_moves(16, BYTES)
    SIDE, HELD = UNIT // BYTES, 16 // BYTES

    @device_function
    def get(values, k, memory, base, at):
        words, value = cuda.local.array(ONE, u32), cuda.local.array(1, T)
        load(words, 0, memory, base, at)
        widen(value, words, 0)
        values[k] = value[0]

    @device_function
    def put(memory, base, at, values):
        words, some = cuda.local.array(WORDS, u32), cuda.local.array(SIDE, T)
        for v in range(0, count, SIDE):
            for k in range(SIDE):
                some[k] = values[v + k]
            pack(words, some)
            store(memory, base, at + v * BYTES, words, 0)

    @device_function
    def get_row(values, memory, base, at):
        words, some = cuda.local.array(FOUR, u32), cuda.local.array(HELD, T)
        for v in range(0, padded, HELD):
            load_vector(words, 0, memory, base, at + v * BYTES)
            unpack(some, words)
            for k in range(HELD):
                values[v + k] = some[k]
    return Shared(get, put, get_row)


@functools.cache
def _bilinear(compute):
    """``taps`` and ``weight`` of two pixels, as `_filters` has them."""
    T = COMPUTE[compute]

    @device_function
    def taps(i, axis):
        n = i * axis.a + axis.b
        first = n // axis.d if n > 0 else 0
        return first, first + 2

    @device_function
    def weight(i, j, axis, inverse):
        n = i * axis.a + axis.b
        n = n if n > 0 else 0
        distance = n - j * axis.d
        if distance < 0:
            return T(T(n - (j - 1) * axis.d) * inverse)
        # past the last pixel is the last pixel
        return T(1) if j == axis.inner - 1 else T(T(1) - T(T(distance) * inverse))
    return taps, weight


@functools.cache
def make_weights(kind, compute, same, K):
    """Device functions ``begin(i, axis)``, the first of the K pixels of position i, and ``weigh(weights, first, i, axis, inverse)``."""
    T, DIVIDED, DOUBLE = COMPUTE[compute], kind in NORMALISED, compute == "float64"
    taps, weight = _bilinear(compute) if kind == "bilinear" else make_filter(kind, compute)[::2]

    @device_function
    def begin(i, axis):
        if same:
            return i
        first, _ = taps(i, axis)
        last = axis.inner - K
        return first if first < last else last

    @device_function
    def weigh(weights, first, i, axis, inverse):
        if same:
            weights[0] = T(1)
        else:
            start, end = taps(i, axis)
            whole = T(0)
            for k in range(K):
                j = first + k
                weights[k] = weight(i, j, axis, inverse) if j >= start and j < end else T(0)
                whole = T(whole + weights[k])
            if DIVIDED:
                one = T(T(1) / whole) if DOUBLE else rcp(whole)
                for k in range(K):
                    weights[k] = T(weights[k] * one)
    return begin, weigh

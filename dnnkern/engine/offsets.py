"""Where an element lies in two arrays, from its flat index: what all kernels that move elements share."""
import functools

from ..device import device_function, i32, i64
from ..device.index import divide_remainder, divisor
from ..host.launch import Argument

LIMIT = 2 ** 31


@functools.cache
def make_offsets(dims, wide):
    """Device function ``offsets(index, divisors, strides) -> (x, y)``: element offsets of index `index` over `dims` dimensions, the
    last one fastest; int64 if `wide`, else int32. `divisors` and `strides` are `offset_arguments`.
    """
    Int = i64 if wide else i32

    @device_function
    def offsets(index, divisors, strides):
        i = Int(index)
        return Int(i * strides[0]), Int(i * strides[1])
    for d in range(1, dims):
        offsets = _with_dimension(offsets, d, Int)
    return offsets


def _with_dimension(outer, d, Int):
    SIZE, MULTIPLIER, SHIFT, X, Y = 3 * d, 3 * d + 1, 3 * d + 2, 2 * d, 2 * d + 1

    @device_function
    def offsets(index, divisors, strides):
        rest, i = divide_remainder(index, (divisors[SIZE], divisors[MULTIPLIER], divisors[SHIFT]))
        x, y = outer(rest, divisors, strides)
        return Int(x + Int(i) * strides[X]), Int(y + Int(i) * strides[Y])
    return offsets


def offset_arguments(dims, wide, scale=1):
    """Kernel parameters `divisors` and `strides` of `make_offsets`, strides times `scale`; for no dimensions those of one of size 1."""
    numbers = [v for d in dims for v in divisor(d.size)] or divisor(1)
    strides = [s * scale for d in dims for s in (d.x, d.y)] or (0, 0)
    return (Argument(f"uint32x{len(numbers)}", tuple(numbers)), Argument(f"int{64 if wide else 32}x{len(strides)}", tuple(strides)))


@functools.cache
def make_offsets64(dims):
    """The same for an int64 index of any size, by division: ``offsets(index, sizes, strides)``; slow, and without limits."""
    @device_function
    def offsets(index, sizes, strides):
        i = index
        return i * strides[0], i * strides[1]
    for d in range(1, dims):
        offsets = _with_dimension64(offsets, d)
    return offsets


def _with_dimension64(outer, d):
    D, X, Y = d, 2 * d, 2 * d + 1

    @device_function
    def offsets(index, sizes, strides):
        rest = index // sizes[D]
        x, y = outer(rest, sizes, strides)
        i = index - rest * sizes[D]
        return x + i * strides[X], y + i * strides[Y]
    return offsets


def offset_arguments64(dims):
    """Kernel parameters `sizes` and `strides` of `make_offsets64`."""
    return (Argument(f"int64x{len(dims)}", tuple(d.size for d in dims)),
            Argument(f"int64x{2 * len(dims)}", tuple(s for d in dims for s in (d.x, d.y))))

"""Where an element of y comes from if x has borders round it: beyond them is a value, the nearest element of x, or its mirror image."""
import functools

from ...device import device_function, i32, i64
from ...device.index import divide_remainder, divisor
from ...engine.offsets import make_offsets
from ...host.launch import Argument

MODES = ("constant", "edge", "reflect")


@functools.cache
def make_locate(mode, wide=False):
    """Device function ``locate(i, before, inner) -> (inside, j)``: element i of y is element j of x along a dimension, if it is inside.

    None is "constant" with nothing beyond the borders.
    """
    Int = i64 if wide else i32
    if mode == "edge":
        @device_function
        def locate(i, before, inner):
            return True, Int(min(max(Int(i - before), Int(0)), Int(inner - 1)))
    elif mode == "reflect":
        @device_function
        def locate(i, before, inner):
            j = Int(i - before)
            j = Int(-j) if j < 0 else j
            return True, Int(2 * (inner - 1) - j) if j >= inner else j
    else:
        @device_function
        def locate(i, before, inner):
            j = Int(i - before)
            inside = j >= 0 and j < inner
            return inside, j if inside else Int(0)
    return locate


@functools.cache
def make_copies(mode):
    """Device functions of the elements of y that are copies of element j of x along a dimension of `size` elements in y.

    count(j, before, inner, size)
        How many there are.
    copy_of(k, j, before, inner, size)
        The k-th of them.
    """
    if mode == "edge":
        @device_function
        def count(j, before, inner, size):
            return 1 + (before if j == 0 else 0) + (size - inner - before if j == inner - 1 else 0)

        @device_function
        def copy_of(k, j, before, inner, size):
            return k if j == 0 else before + j + k
    elif mode == "reflect":
        @device_function
        def is_before(j, before):
            return j > 0 and j <= before

        @device_function
        def count(j, before, inner, size):
            return 1 + (1 if is_before(j, before) else 0) + (1 if j < inner - 1 and before + 2 * (inner - 1) - j < size else 0)

        @device_function
        def copy_of(k, j, before, inner, size):
            nth = k if is_before(j, before) else k + 1
            return before - j if nth == 0 else before + j if nth == 1 else before + 2 * (inner - 1) - j
    else:
        @device_function
        def count(j, before, inner, size):
            return 1

        @device_function
        def copy_of(k, j, before, inner, size):
            return before + j
    return count, copy_of


@functools.cache
def make_inside_offsets(dims, wide, mode, any_size=False):
    """Device function ``offsets(index, divisors, borders, strides) -> (inside, x, y)``: as `make_offsets` and `make_offsets64`, and whether
    the element is one of x's. `borders` are (before, inner) of each dimension."""
    if mode is None:
        plain = make_offsets(dims, wide)

        @device_function
        def offsets(index, divisors, borders, strides):
            x, y = plain(index, divisors, strides)
            return True, x, y
        return offsets
    Int, locate = i64 if wide else i32, make_locate(mode, any_size)

    @device_function
    def offsets(index, divisors, borders, strides):
        inside, j = locate(index, borders[0], borders[1])
        return inside, Int(Int(j) * strides[0]), Int(Int(index) * strides[1])
    for d in range(1, dims):
        offsets = _with_dimension(offsets, d, Int, locate, any_size)
    return offsets


def _with_dimension(outer, d, Int, locate, any_size):
    SIZE, MULTIPLIER, SHIFT, X, Y = 3 * d, 3 * d + 1, 3 * d + 2, 2 * d, 2 * d + 1
    if any_size:
        @device_function
        def divide(index, sizes):
            rest = index // sizes[d]
            return rest, index - rest * sizes[d]
    else:
        @device_function
        def divide(index, divisors):
            return divide_remainder(index, (divisors[SIZE], divisors[MULTIPLIER], divisors[SHIFT]))

    @device_function
    def offsets(index, divisors, borders, strides):
        rest, i = divide(index, divisors)
        there, x, y = outer(rest, divisors, borders, strides)
        inside, j = locate(i, borders[X], borders[Y])
        return there and inside, Int(x + Int(j) * strides[X]), Int(y + Int(i) * strides[Y])
    return offsets


def border_arguments(outer, chunks, wide):
    """Kernel parameters `divisors`, `borders` and `strides` of `make_inside_offsets` for the outer dimensions of a form, and after them
    `chunks` chunks of a row, which move nothing."""
    sizes, strides = [*(d.size for d in outer), chunks], [v for d in outer for v in (d.x, d.y)] + [0, 0]
    borders = [v for d in outer for v in (getattr(d, "before", 0), getattr(d, "inner", d.size))] + [0, chunks]
    divisors = [v for n in sizes for v in divisor(n)]
    return (Argument(f"uint32x{len(divisors)}", tuple(divisors)), Argument(f"int32x{len(borders)}", tuple(borders)),
            Argument(f"int{64 if wide else 32}x{len(strides)}", tuple(strides)))


def border_arguments64(dims):
    """The same for all dimensions of a form and an index of any size."""
    sizes, borders = tuple(d.size for d in dims), tuple(v for d in dims for v in (d.before, d.inner))
    strides = tuple(v for d in dims for v in (d.x, d.y))
    return tuple(Argument(f"int64x{len(values)}", values) for values in (sizes, borders, strides))

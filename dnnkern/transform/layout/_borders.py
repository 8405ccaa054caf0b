"""Where an element of y comes from if x has borders round it: beyond them is a value, the nearest element of x, or its mirror image."""
import functools

from ...device import device_function, i32, i64
from ...device.index import divide_remainder, divisor, quotient
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
def make_reach(mode, elements):
    """Device function of the borders of a row of y that hold copies of a few neighbours in x, if `mode` is not "constant"::

        first, after, second, end = reach(begin, before, inner, size)

    Of the elements in the leading border those from `first` on before `after`, of those in the trailing one those from `second` on before
    `end`, and no others, are copies of elements `begin` to `begin + elements`.
    """
    if mode == "edge":
        @device_function
        def reach(begin, before, inner, size):
            after = before if begin <= 0 and begin + elements > 0 else 0
            return 0, after, before + inner, size if begin + elements >= inner else before + inner
    else:
        @device_function
        def clipped(i, least, most):
            return least if i < least else most if i > most else i

        @device_function
        def reach(begin, before, inner, size):
            near, far, rest = before - begin + 1, before + 2 * (inner - 1) - begin + 1, before + inner
            return (clipped(near - elements, 0, before), clipped(near, 0, before), clipped(far - elements, rest, size),
                    clipped(far, rest, size))
    return reach


@functools.cache
def make_row_copies(dims, wide, mode):
    """Device functions of the rows of x, numbered over `dims` dimensions, one at least, and of the rows of y that are copies of them::

        x, y, copies = row_of(row, divisors, borders, strides)
        y = copy_of_row(k, row, divisors, borders, strides)

    The first gives offsets of a row in x and of the same row within y's borders, and how many copies it has, itself among them; the second
    the offset of the k-th of these. The last three are those of `copy_arguments`.
    """
    Int, (count, copy_of) = i64 if wide else i32, make_copies(mode)

    @device_function
    def divide(row, divisors):
        return 0, row

    @device_function
    def outside(row, divisors, borders, strides):
        return Int(0), Int(0), 1

    @device_function
    def copy_outside(k, row, divisors, borders, strides):
        return Int(0)
    functions = outside, copy_outside
    for d in range(dims):
        functions = _with_row_dimension(*functions, divide if d == 0 else _make_divide(d), d, Int, count, copy_of)
    return functions


def _make_divide(d):
    SIZE, MULTIPLIER, SHIFT = 3 * d, 3 * d + 1, 3 * d + 2

    @device_function
    def divide(index, divisors):
        return divide_remainder(index, (divisors[SIZE], divisors[MULTIPLIER], divisors[SHIFT]))
    return divide


def _with_row_dimension(outer, outer_copy, divide, d, Int, count, copy_of):
    BEFORE, INNER, SIZE, X, Y = 3 * d, 3 * d + 1, 3 * d + 2, 2 * d, 2 * d + 1

    @device_function
    def row_of(row, divisors, borders, strides):
        rest, j = divide(row, divisors)
        x, y, copies = outer(rest, divisors, borders, strides)
        before = borders[BEFORE]
        x, y = Int(x + Int(j) * strides[X]), Int(y + Int(before + j) * strides[Y])
        return x, y, copies * count(j, before, borders[INNER], borders[SIZE])

    @device_function
    def copy_of_row(k, row, divisors, borders, strides):
        rest, j = divide(row, divisors)
        before, inner, size = borders[BEFORE], borders[INNER], borders[SIZE]
        copies = count(j, before, inner, size)
        left = quotient(k, copies)
        y = outer_copy(left, rest, divisors, borders, strides)
        return Int(y + Int(copy_of(k - left * copies, j, before, inner, size)) * strides[Y])
    return row_of, copy_of_row


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
    X, Y = 2 * d, 2 * d + 1
    if any_size:
        @device_function
        def divide(index, sizes):
            rest = index // sizes[d]
            return rest, index - rest * sizes[d]
    else:
        divide = _make_divide(d)

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


def copy_arguments(outer, wide):
    """Kernel parameters `divisors`, `borders` and `strides` of `make_row_copies` for dimensions of a form."""
    divisors, borders = [v for d in outer for v in divisor(d.inner)], [v for d in outer for v in (d.before, d.inner, d.size)]
    strides = [v for d in outer for v in (d.x, d.y)]
    return (Argument(f"uint32x{len(divisors)}", tuple(divisors)), Argument(f"int32x{len(borders)}", tuple(borders)),
            Argument(f"int{64 if wide else 32}x{len(strides)}", tuple(strides)))

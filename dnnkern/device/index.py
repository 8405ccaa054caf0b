"""Index arithmetic: division by run-time invariants without dividing, flat index to coordinates, 64-bit offsets.

A GPU has no integer division: 32-bit it costs about 25 instructions, and Numba's ``//`` on 32-bit integers is a 64-bit one. The host turns
each divisor into three numbers, and the kernel divides with a multiplication and a shift::

    Argument(Divisor, divisor(width))                        # host

    @cuda.jit(launch_bounds=256)
    def kernel(x, w, n):
        row, column = divide_remainder(i32(cuda.blockIdx.x * 256 + cuda.threadIdx.x), w)
"""
from typing import NamedTuple

from . import device_function, i32, i64, instruction, u32

LIMIT = 2 ** 31


class Divisor(NamedTuple):
    """What `divide` needs of a divisor: the type of a kernel parameter, made by `divisor`."""
    d: u32
    multiplier: u32
    shift: u32


def divisor(d):
    """The `Divisor` for `divide`: exact for every dividend from 0 to 2**31 - 1. Host function.

    With 2**(l-1) < d <= 2**l the multiplier is 2**(31+l)/d rounded up, by less than one, so 2n * multiplier >> 32 + l exceeds n/d by less
    than n / 2**(31+l) < 1/d, which never carries the quotient to the next integer.

    >>> divisor(7)
    Divisor(d=7, multiplier=2454267027, shift=3)
    """
    d = int(d)
    if not 1 <= d < LIMIT:
        raise ValueError(f"divisor: {d} is outside 1 .. 2**31 - 1")
    shift = (d - 1).bit_length()
    return Divisor(d, ((1 << 31 + shift) + d - 1) // d, shift)


def ceil_div(a, b):
    """a/b rounded up, a >= 0, b > 0. Host function; in kernels `ceil_divide`."""
    return -(-a // b)


_quotient = instruction("{ .reg .u32 t; add.u32 t, $1, $1; mul.hi.u32 t, t, $2; shr.u32 $0, t, $3; }", ("int32",), ("uint32",) * 3,
                        pure=True, twin=lambda n, multiplier, shift: (2 * n * multiplier >> 32) >> shift)
_divide = instruction("div.u32 $0, $1, $2;", ("int32",), ("uint32", "uint32"), pure=True, twin=lambda a, b: a // b)


@device_function
def divide(n, d):
    """n // d[0] for 0 <= n < 2**31 and `d` from `divisor`; int32."""
    return _quotient(u32(n), u32(d[1]), u32(d[2]))


@device_function
def divide_remainder(n, d):
    """(n // d[0], n % d[0]) for 0 <= n < 2**31 and `d` from `divisor`; both int32."""
    q = _quotient(u32(n), u32(d[1]), u32(d[2]))
    return q, n - q * i32(d[0])


funnel_shift = instruction("shf.r.wrap.b32 $0, $1, $2, $3;", ("uint32",), ("uint32",) * 3, pure=True,
                           twin=lambda low, high, bits: (int(high) << 32 | int(low)) >> (int(bits) & 31) & 0xFFFFFFFF)
"""``funnel_shift(low, high, bits)``: 32 bits of the 64 of two words, from bit `bits` on, 0 to 31."""


@device_function
def ceil_divide(a, b):
    """a/b rounded up, as int32, for a >= 0, b > 0, a + b <= 2**32: one 32-bit division, for once a block rather than once an element."""
    return _divide(u32(a + b - 1), u32(b))


@device_function
def quotient(a, b):
    """a // b, as int32, for 0 <= a and 0 < b known only on the device: one 32-bit division, of about 20 instructions."""
    return _divide(u32(a), u32(b))


@device_function
def unflatten2(i, d1):
    """(i0, i1) of a flat index into extents (any, d1); the extents that divide come from `divisor`."""
    return divide_remainder(i, d1)


@device_function
def unflatten3(i, d1, d2):
    """(i0, i1, i2) of a flat index into extents (any, d1, d2)."""
    rest, i2 = divide_remainder(i, d2)
    i0, i1 = divide_remainder(rest, d1)
    return i0, i1, i2


@device_function
def unflatten4(i, d1, d2, d3):
    """(i0, i1, i2, i3) of a flat index into extents (any, d1, d2, d3)."""
    rest, i3 = divide_remainder(i, d3)
    rest, i2 = divide_remainder(rest, d2)
    i0, i1 = divide_remainder(rest, d1)
    return i0, i1, i2, i3


@device_function
def offset64(i, stride):
    """i * stride as int64, the factors widened first: an int32 product of two int32 wraps beyond 2**31 elements."""
    return i64(i64(i) * i64(stride))


@device_function
def divmod_unsigned(i, n):
    """(i // n, i % n) as int32 for 0 <= i < 2**31 and a constant n: without the sign a multiplication and a shift."""
    q = i32(u32(i) // u32(n))
    return q, i - q * n


@device_function
def divided(i, n):
    """(i // n, i % n)"""
    rest = i // n
    return rest, i - rest * n

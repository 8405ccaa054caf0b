"""Where the numbers of a grid lie in an image, and what pixels round a position count there."""
import functools
from typing import Callable, NamedTuple

from ...device import device_function, i32
from ...device.fastmath import fabs, floor, fma, fmax, fmin, rcp, rint
from ...engine.values import COMPUTE


class Positions(NamedTuple):
    """Device functions of a mode, a padding mode and a type.

    locate(g, n) -> (position, slope)
        Where the number g of a grid lies along a dimension of n pixels, and how that changes with g. Behind the image by a pixel and more
        it lies just there: no pixel counts. What is not a number lies before the image.
    split(position) -> (first, share)
        The pixel before a position, and what the next one counts; with "nearest" the nearest one, and 0.
    tent(position, i)
        What pixel i counts at the position.
    """
    locate: Callable
    split: Callable
    tent: Callable


@functools.cache
def make_positions(mode, padding, corners, compute) -> Positions:
    """The device functions."""
    T, NEAREST = COMPUTE[compute], mode == "nearest"
    CLIPPED, REFLECTED = padding != "zeros", padding == "reflection"

    @device_function
    def inverse(x):
        if compute == "float64":
            return T(1) / x
        return rcp(x)

    @device_function
    def locate(g, n):
        size = T(n)
        if corners:
            slope = T(T(size - T(1)) * T(0.5))
            position = T(T(g + T(1)) * slope)
        else:
            slope = T(size * T(0.5))
            position = T(T(T(T(g + T(1)) * size) - T(1)) * T(0.5))
        if REFLECTED:
            low, span = (T(0), T(size - T(1))) if corners else (T(-0.5), size)
            if span <= T(0):
                position, slope = T(0), T(0)
            else:
                away = T(position - low)
                if away < T(0):
                    slope = T(-slope)
                away = fabs(away)
                turns = floor(T(away * inverse(span)))  # one more or less where a mirror is: the position is the same
                rest = fma(T(-turns), span, away)
                if T(turns - T(T(2) * floor(T(turns * T(0.5))))) == T(0):
                    position = T(rest + low)
                else:
                    position = T(T(span - rest) + low)
                    slope = T(-slope)
        if CLIPPED:
            if not (position > T(0) and position < T(size - T(1))):
                slope = T(0)
            position = fmin(fmax(position, T(0)), T(size - T(1)))
        else:
            position = fmin(fmax(position, T(-2)), T(size + T(1)))
        return position, slope

    @device_function
    def split(position):
        if NEAREST:
            return i32(rint(position)), T(0)
        first = floor(position)
        return i32(first), T(position - first)

    @device_function
    def tent(position, i):
        if NEAREST:
            return T(1) if i32(rint(position)) == i else T(0)
        return fmax(T(T(1) - fabs(T(position - T(i)))), T(0))
    return Positions(locate, split, tent)

"""Where the numbers of a grid lie in an image, and what pixels round a place count there."""
import functools
from typing import Callable, NamedTuple

from ...device import device_function, i32
from ...device.fastmath import fabs, floor, fma, fmax, fmin, rcp, rint
from ...engine.values import COMPUTE


class Places(NamedTuple):
    """Device functions of a mode, a padding mode and a type.

    locate(g, n) -> (place, slope)
        Where the number g of a grid lies along a dimension of n pixels, and how that changes with g. Behind the image by a pixel and more
        it lies just there: no pixel counts. What is not a number lies before the image.
    split(place) -> (first, share)
        The pixel before a place, and what the next one counts; with "nearest" the nearest one, and 0.
    tent(place, i)
        What pixel i counts at the place.
    """
    locate: Callable
    split: Callable
    tent: Callable


@functools.cache
def make_places(mode, padding, corners, compute) -> Places:
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
            place = T(T(g + T(1)) * slope)
        else:
            slope = T(size * T(0.5))
            place = T(T(T(T(g + T(1)) * size) - T(1)) * T(0.5))
        if REFLECTED:
            low, span = (T(0), T(size - T(1))) if corners else (T(-0.5), size)
            if span <= T(0):
                place, slope = T(0), T(0)
            else:
                away = T(place - low)
                if away < T(0):
                    slope = T(-slope)
                away = fabs(away)
                turns = floor(T(away * inverse(span)))  # one more or less where a mirror is: the place is the same
                rest = fma(T(-turns), span, away)
                if T(turns - T(T(2) * floor(T(turns * T(0.5))))) == T(0):
                    place = T(rest + low)
                else:
                    place = T(T(span - rest) + low)
                    slope = T(-slope)
        if CLIPPED:
            if not (place > T(0) and place < T(size - T(1))):
                slope = T(0)
            place = fmin(fmax(place, T(0)), T(size - T(1)))
        else:
            place = fmin(fmax(place, T(-2)), T(size + T(1)))
        return place, slope

    @device_function
    def split(place):
        if NEAREST:
            return i32(rint(place)), T(0)
        first = floor(place)
        return i32(first), T(place - first)

    @device_function
    def tent(place, i):
        if NEAREST:
            return T(1) if i32(rint(place)) == i else T(0)
        return fmax(T(T(1) - fabs(T(place - T(i)))), T(0))
    return Places(locate, split, tent)

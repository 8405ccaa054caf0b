"""A pair rotated by an angle: what both algorithms of rotary embeddings share."""
import functools

from ...device import device_function, f32, f64
from ...device.convert import element


@functools.cache
def make_rotate(dtype, forward):
    """Device function ``rotate(a, b, c, s)``: the pair (a, b) rotated by the angle whose cosine and sine are c and s, backward back."""
    T = f64 if element(dtype).compute == "float64" else f32

    @device_function
    def rotate(a, b, c, s):
        if forward:
            return T(T(a * c) - T(b * s)), T(T(b * c) + T(a * s))
        return T(T(a * c) + T(b * s)), T(T(b * c) - T(a * s))
    return rotate

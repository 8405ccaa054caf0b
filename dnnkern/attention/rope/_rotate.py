"""A pair turned by an angle: what both algorithms of rotary embeddings share."""
import functools

from ...device import device_function, f32, f64
from ...device.convert import element


@functools.cache
def make_turn(dtype, forward):
    """Device function ``turn(a, b, c, s)``: the pair (a, b) turned by the angle whose cosine and sine are c and s; backward turned back."""
    T = f64 if element(dtype).compute == "float64" else f32

    @device_function
    def turn(a, b, c, s):
        if forward:
            return T(T(a * c) - T(b * s)), T(T(b * c) + T(a * s))
        return T(T(a * c) + T(b * s)), T(T(b * c) - T(a * s))
    return turn

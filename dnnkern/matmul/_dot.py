"""The sum over k of one element of a product, straight from global memory: what one thread of the naive algorithms does."""
import functools

from ..device import device_function, f32, f64, i32, i64
from ..device.convert import element
from ..engine.scales import BLOCK, make_block_factor


@functools.cache
def make_dot(dtype_a, dtype_b, accumulator, scale_a=None, scale_b=None):
    """Device function ``dot(a, sak, b, sbk, k, m, n, scales)``: the sum of a[i*sak] * b[i*sbk] for i below k.

    Types by name, scales as in `_scales.Scales`. `m` and `n` are where the element lies in the arrays of ``scales = (scale_a, scale_b,
    strides)``; they are used where there are scales by block, which multiply the sum over each block.
    """
    integers = accumulator == "int32"
    Total = {"int32": i32, "float64": f64, "float32": f32}[accumulator]
    load_a, load_b = (device_function(_load_integer) if integers else element(d).load for d in (dtype_a, dtype_b))
    by_block = "block" in (scale_a, scale_b)
    factor = make_block_factor(scale_a, scale_b) if by_block else None

    @device_function
    def plain(a, sak, b, sbk, first, last):
        acc = Total(0)
        for i in range(first, last):
            acc = Total(acc + load_a(a, i * sak) * load_b(b, i * sbk))
        return acc

    @device_function
    def dot(a, sak, b, sbk, k, m, n, scales):
        if by_block:
            acc = Total(0)
            for first in range(i64(0), k, i64(BLOCK)):
                part = plain(a, sak, b, sbk, first, min(first + BLOCK, k))
                acc = Total(acc + part * factor(m, n, first >> 7, scales[0], scales[1], scales[2]))
        else:
            acc = plain(a, sak, b, sbk, i64(0), k)
        return acc
    return dot


def _load_integer(p, i):
    return i32(p[i])

"""``reduce_window`` of maxima and sums, and the gradient of maxima, as pooling."""
import math
from typing import NamedTuple

from jax._src.lax import lax

from ._refused import Refused, run


class _Images(NamedTuple):
    """How an operand of any rank is images: (N, *spatial, C), or (1, N, *spatial) where no dimension comes after the windows'."""
    first: int
    last: int
    layout: str

    def of(self, x):
        """The operand, or what has its rank, as images."""
        lead, inside, trail = x.shape[:self.first], x.shape[self.first:self.last], x.shape[self.last:]
        if self.layout == "NHWC":
            return x.reshape(math.prod(lead), *inside, math.prod(trail))
        return x.reshape(1, math.prod(lead), *inside)

    def cut(self, values):
        """Those of the dimensions that windows extend in."""
        return tuple(values[self.first:self.last])


def _images(shape, window, strides, padding, base_dilation=None, window_dilation=None):
    if base_dilation is not None and set(base_dilation) != {1}:
        raise Refused(f"base_dilation {tuple(base_dilation)}")
    used = [i for i, (n, s, p) in enumerate(zip(window, strides, padding)) if n != 1 or s != 1 or tuple(p) != (0, 0)]
    if not used:
        raise Refused("windows of one element")
    first, last = used[0], used[-1] + 1
    if last - first > 3:
        raise Refused(f"windows in {last - first} dimensions")
    if any(low < 0 or high < 0 for low, high in padding):
        raise Refused(f"padding {tuple(padding)}")
    return _Images(first, last, "NHWC" if last < len(shape) else "NCHW")


def _how(images, window, strides, padding, window_dilation=None):
    return {"window": images.cut(window), "stride": images.cut(strides), "padding": images.cut(padding), "layout": images.layout,
            "dilation": images.cut(window_dilation or (1,) * len(window))}


def maximum(name, x, result, *, window_dimensions, window_strides, padding, base_dilation, window_dilation):
    """A function of the operand of ``reduce_window_max``."""
    images = _images(x.shape, window_dimensions, window_strides, padding, base_dilation)
    how = _how(images, window_dimensions, window_strides, padding, window_dilation)
    return lambda x: run(name, "max_pool_fwd", {"x": images.of(x)}, **how).reshape(result.shape)


def total(name, x, result, *, window_dimensions, window_strides, padding, base_dilation, window_dilation):
    """A function of the operand of ``reduce_window_sum``: an average whose divisor is 1."""
    images = _images(x.shape, window_dimensions, window_strides, padding, base_dilation)
    how = _how(images, window_dimensions, window_strides, padding, window_dilation)
    return lambda x: run(name, "avg_pool_fwd", {"x": images.of(x)}, divisor=1, **how).reshape(result.shape)


def maximum_gradient(name, dy, x, result, *, select_prim, window_dimensions, window_strides, padding):
    """A function of the operands of ``select_and_scatter_add``: the maxima are searched once more, since JAX keeps no positions."""
    if select_prim is not lax.ge_p:
        raise Refused(f"select {select_prim}")
    images = _images(x.shape, window_dimensions, window_strides, padding)
    how = _how(images, window_dimensions, window_strides, padding)

    def ours(dy, x):
        x = images.of(x)
        _, index = run(name, "max_pool_fwd", {"x": x}, return_index=True, **how)
        return run(name, "max_pool_bwd", {"dy": images.of(dy), "index": index}, x_shape=x.shape, **how).reshape(result.shape)
    return ours

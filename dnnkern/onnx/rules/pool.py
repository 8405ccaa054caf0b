"""Pooling."""
import math

import numpy as np

from .._errors import Refused
from .._table import rule
from .._values import FLOATS, Value
from .pointwise import number, only
from .product import window_of


def _window(node, x):
    """(window, keywords) of a pooling node."""
    window = tuple(node.attribute("kernel_shape"))
    strides, dilations, padding = window_of(node, x, window)
    return window, {"stride": strides, "padding": padding, "dilation": dilations, "ceil_mode": bool(node.attribute("ceil_mode", 0))}


@rule("AveragePool", (1, 7, 10, 11, 19, 22), "`avg_pool_fwd`")
def average(node, x):
    """In one to three dimensions."""
    only((x,), FLOATS)
    window, keywords = _window(node, x)
    return node.call("avg_pool_fwd", x, window, count_include_pad=bool(node.attribute("count_include_pad", 0)), **keywords)


@rule("MaxPool", (1, 8, 10, 11, 12, 22), "`max_pool_fwd`")
def maximum(node, x):
    """Integers as floats, which hold them exactly."""
    window, keywords = _window(node, x)
    if x.dtype in ("int8", "uint8"):
        if node.is_wanted(1):
            raise Refused(f"indices of {x.dtype}")
        y = node.call("max_pool_fwd", node.call("cast", x, "float32"), window, **keywords)
        return node.call("cast", y, x.dtype)
    only((x,), FLOATS)
    if not node.is_wanted(1):
        return node.call("max_pool_fwd", x, window, **keywords)
    if node.attribute("storage_order", 0) or x.size >= 2 ** 31:
        raise Refused("indices in the order of columns" if x.size < 2 ** 31 else "indices of 2**31 elements and more")
    y, index = node.call("max_pool_fwd", x, window, return_index=True, index_dtype="int32", **keywords)
    images, plane = math.prod(x.shape[:2]), math.prod(x.shape[2:])
    first = node.once("first", (), dict).setdefault(
        x.shape, Value((np.arange(images, dtype=np.int32) * np.int32(plane)).reshape(*x.shape[:2], *[1] * (x.ndim - 2))))
    return y, node.call("reduce", node.call("binary", index, first, "add"), "add", axes=())


@rule("GlobalAveragePool", (1, 22), "`avg_pool_fwd`")
@rule("GlobalMaxPool", (1, 22), "`max_pool_fwd`")
def whole(node, x):
    """Of the whole image."""
    only((x,), FLOATS)
    return node.call("avg_pool_fwd" if node.op == "GlobalAveragePool" else "max_pool_fwd", x, None)


@rule("LpPool", (2, 11, 18, 22), "`avg_pool_fwd`, `unary`, `binary`")
def norm_of_windows(node, x):
    """The root of sums of powers."""
    only((x,), FLOATS)
    p = int(node.attribute("p", 2))
    window, keywords = _window(node, x)
    powers = node.call("unary", x, "abs") if p % 2 else x
    if p == 2:
        powers = node.call("binary", x, x, "mul")
    elif p > 2:
        powers = node.call("binary", powers, number(node, float(p), x.dtype), "pow")
    y = node.call("avg_pool_fwd", powers, window, divisor=1, **keywords)
    if p == 1:
        return y
    return node.call("unary", y, "sqrt") if p == 2 else node.call("binary", y, number(node, 1 / p, x.dtype), "pow")


@rule("GlobalLpPool", (2, 22), "`reduce`")
def norm_of_images(node, x):
    """Of the whole image."""
    only((x,), FLOATS)
    p = int(node.attribute("p", 2))
    if p not in (1, 2):
        raise Refused(f"p = {p}")
    return node.call("reduce", x, f"norm{p}", axes=tuple(range(2, x.ndim)), keepdims=True)

"""Linear quantization to 8 bits."""
import numpy as np

from .._errors import Refused
from .._table import rule
from .._values import Value
from .pointwise import EIGHT, number, only, type_named
from .product import window_of

VERSIONS = 10, 13, 19, 21, 23, 24, 25, 28


def _aligned(node, x, *vectors):
    """(x, scale, zero point) whose shapes broadcast: by tensor, along an axis, or by blocks along it, which become a dimension of x."""
    axis, block = node.attribute("axis", 1), node.attribute("block_size", 0)
    if block:
        axis %= x.ndim
        if x.shape[axis] % block:
            raise Refused(f"blocks of {block} of {x.shape[axis]}")
        x = x.reshape(*x.shape[:axis], x.shape[axis] // block, block, *x.shape[axis + 1:])
        return x, *(v if v is None else v.reshape(*v.shape[:axis + 1], 1, *v.shape[axis + 1:]) for v in vectors)
    return x, *(v if v is None else v.reshape() if v.size == 1 else v.reshape(*v.shape, *[1] * (x.ndim - 1 - axis % x.ndim))
                for v in vectors)


@rule("QuantizeLinear", VERSIONS, "`binary`, `cast`")
def quantize(node, x, scale, zero=None):
    """Rounded to integers first, then moved by the zero point, which may be odd."""
    only((x, scale), ("float32", "float16", "bfloat16"))
    dtype = zero.dtype if zero is not None else type_named(node, "output_dtype", "uint8")
    if dtype not in ("int8", "uint8", *EIGHT) or dtype in EIGHT and not node.attribute("saturate", 1) or node.attribute("precision", 0):
        raise Refused(f"dtype {dtype}, or its saturation or precision")
    shape = x.shape
    x, scale, point = _aligned(node, x, scale, zero)
    if scale.dtype != x.dtype:
        raise Refused(f"scales of {scale.dtype}")
    y = node.call("binary", x, scale, "div")
    if dtype in EIGHT:
        return node.call("cast", y, dtype).reshape(*shape)
    y = node.call("cast", node.call("cast", y, "int32"), "float32")
    y = y if point is None else node.call("binary", y, node.call("cast", point, "float32"), "add")
    return node.call("cast", y, dtype).reshape(*shape)


@rule("DequantizeLinear", VERSIONS, "`cast`, `binary`")
def dequantize(node, x, scale, zero=None):
    """(x - zero) scale."""
    only((scale,), ("float32", "float16", "bfloat16"))
    only((x,), ("int8", "uint8", "int32", *EIGHT))
    if type_named(node, "output_dtype", scale.dtype) != scale.dtype:
        raise Refused("output_dtype")
    shape = x.shape
    x, scale, zero = _aligned(node, x, scale, zero)
    y = node.call("cast", x, "float32")
    y = y if zero is None or x.dtype in EIGHT else node.call("binary", y, node.call("cast", zero, "float32"), "sub")
    y = node.call("binary", y, scale if scale.dtype == "float32" else node.call("cast", scale, "float32"), "mul")
    return (y if scale.dtype == "float32" else node.call("cast", y, scale.dtype)).reshape(*shape)


@rule("MatMulInteger", (10,), "`cast`, `binary`, `matmul`")
def integer_product(node, a, b, zero_a=None, zero_b=None):
    """In float64, which holds the sums exactly."""
    wide = []
    for x, zero, is_rows in ((a, zero_a, True), (b, zero_b, False)):
        only((x,), ("int8", "uint8"))
        x = node.call("cast", x, "float64")
        if zero is not None:
            zero = node.call("cast", zero, "float64")
            zero = zero.reshape(zero.size, 1) if is_rows and zero.ndim == 1 and zero.size > 1 else zero
            x = node.call("binary", x, zero, "sub")
        wide.append(x)
    return node.call("cast", node.call("matmul", *wide), "int32")


@rule("ConvInteger", (10,), "`cast`, `binary`, `conv_fwd`")
def integer_convolution(node, x, w, zero_x=None, zero_w=None):
    """In float64, which holds the sums exactly; the padding is the zero point."""
    wide = []
    for t, zero in ((x, zero_x), (w, zero_w)):
        only((t,), ("int8", "uint8"))
        t = node.call("cast", t, "float64")
        if zero is not None:
            zero = node.call("cast", zero, "float64")
            t = node.call("binary", t, zero.reshape(zero.size, *[1] * (t.ndim - 1)) if zero.size > 1 else zero.reshape(), "sub")
        wide.append(t)
    strides, dilations, padding = window_of(node, x, w.shape[2:])
    y = node.call("conv_fwd", *wide, stride=strides, padding=padding, dilation=dilations, groups=node.attribute("group", 1))
    return node.call("cast", y, "int32")


@rule("DynamicQuantizeLinear", (11,), "`reduce`, `binary`, `cast`")
def quantize_by_range(node, x):
    """uint8, with a scale from the least to the largest element, 0 included."""
    only((x,), ("float32",))
    low, high = (min(float(node.call("reduce", x, "min").host()), 0.0), max(float(node.call("reduce", x, "max").host()), 0.0))
    scale = np.float32((np.float32(high) - np.float32(low)) / np.float32(255))
    point = np.uint8(np.clip(np.round(np.float32(-low) / scale), 0, 255)) if scale else np.uint8(0)
    y = node.call("binary", x, number(node, float(scale) or 1.0, "float32"), "div")
    y = node.call("cast", node.call("cast", y, "int32"), "float32")
    y = node.call("cast", node.call("binary", y, number(node, float(point), "float32"), "add"), "uint8")
    return y, Value(np.array(scale)), Value(np.array(point))

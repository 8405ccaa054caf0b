"""The problem of im2col and col2im: each window of an image as a row or a column of a matrix.

In canonical form an image has three spatial dimensions; missing ones lead, with extent 1. Element (n, c, tap, l) of the columns is the
element of channel c of image n that tap number `tap` = (t, r, s) of the window at output pixel `l` = (o, p, q) reads:
``x[n, c, o * stride - padding + t * dilation, ...]``, or 0 in the padding.
"""
import functools
import math
from dataclasses import dataclass

from ...host.canonical import check_output
from ...host.choices import one_of
from ...host.tensor import Tensor
from ...host.window import LAYOUTS, Windows, check_rank, check_shape, output_extents, pad_pairs, per_dimension
from .._problem import check_moved

SUMMED = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8", "int32")


@dataclass(frozen=True)
class WindowProblem(Windows):
    """im2col (x to columns) or col2im (columns to x): all but the addresses.

    Attributes
    ----------
    op : "im2col" or "col2im"
    x : Tensor
        The image, (N, C, spatial...) or (N, spatial..., C).
    columns : Tensor
        (N, C * taps, pixels) for NCHW, (N * pixels, taps * C) for NHWC.
    window, stride, dilation : tuple of int
        One entry per spatial dimension.
    padding : tuple of (int, int)
        Leading and trailing.
    layout : "NCHW" or "NHWC"
    """
    op: str
    x: Tensor
    columns: Tensor
    window: tuple
    stride: tuple
    padding: tuple
    dilation: tuple
    layout: str = "NCHW"
    scalar_type = "float32"
    flops = 0

    def __post_init__(self):
        expected = columns_shape(self.op, self.x.shape, self.window, self.stride, self.padding, self.dilation, self.layout)
        given, moved = (self.x, self.columns) if self.op == "col2im" else (self.columns, self.x)
        if self.columns.shape != expected:
            role = "out" if self.op == "im2col" else "columns"
            raise ValueError(f"{self.op}: {role} has shape {self.columns.shape}; an image of {self.x.shape} gives {expected} (layout "
                             f"{self.layout}, window {self.window}, stride {self.stride}, padding {self.padding}, dilation "
                             f"{self.dilation})")
        check_output(self.op, given, given.shape, moved.dtype)

    # ---- the canonical form

    @functools.cached_property
    def out(self):
        """(O, P, Q): extents of the output."""
        return self.three(output_extents(self.image[3 - len(self.window):], self.window, self.stride, self.padding, self.dilation), 1)

    @property
    def pixels(self):
        return math.prod(self.out)

    @property
    def tap_count(self):
        return math.prod(self.taps)

    @functools.cached_property
    def columns_strides(self):
        """Element strides of columns along (n, c, tap, pixel)."""
        s = self.columns.strides
        if self.layout == "NCHW":
            return s[0], self.tap_count * s[1], s[1], s[2]
        return self.pixels * s[0], s[1], self.c * s[1], s[0]

    @property
    def is_wide(self):
        """Whether an offset in an array, counted in words of up to 4 bytes, needs 64 bits."""
        return any(max(map(abs, t.extent)) // min(t.itemsize, 4) >= 2 ** 31 for t in (self.x, self.columns))

    @property
    def axes(self):
        """Along d, h and w: extent, outputs, taps, stride, dilation and leading padding."""
        return tuple(zip(self.image, self.out, self.taps, self.steps, self.dilations, self.before))

    @property
    def outputs(self):
        return (self.columns if self.op == "im2col" else self.x,)

    @property
    def is_empty(self):
        return self.outputs[0].size == 0

    @property
    def compute(self):
        """Type of the accumulators."""
        return "float64" if self.op == "col2im" and self.x.dtype in ("float64", "int32") else "float32"

    @property
    def bytes(self):
        """Bytes of memory traffic: the image once, the columns once."""
        return self.x.nbytes + self.columns.nbytes

    def __str__(self):
        def text(values):
            return str(values[0]) if len(set(values)) == 1 else "x".join(map(str, values))
        words = [f"{self.op} {'x'.join(map(str, self.x.shape))} {self.x.dtype} {self.layout} window {'x'.join(map(str, self.window))}"]
        words += [f"{name} {text(v)}" for name, v in (("stride", self.stride), ("dilation", self.dilation)) if set(v) != {1}]
        if set(self.padding) != {(0, 0)}:
            words.append("padding " + text([str(a) if a == b else f"{a}:{b}" for a, b in self.padding]))
        return " ".join(words)


def columns_shape(op, shape, window, stride, padding, dilation, layout):
    """Shape of the columns of an image; ValueError where the window does not fit into it."""
    image = shape[2:] if layout == "NCHW" else shape[1:-1]
    found = output_extents(image, window, stride, padding, dilation)
    if min(found) < 1:
        spans = tuple(d * (w - 1) + 1 for w, d in zip(window, dilation))
        padded = tuple(n + a + b for n, (a, b) in zip(image, padding))
        raise ValueError(f"{op}: the window of {spans} (window {window}, dilation {dilation}) does not fit the padded image of {padded}")
    taps, pixels, channels = math.prod(window), math.prod(found), shape[1 if layout == "NCHW" else -1]
    return (shape[0], channels * taps, pixels) if layout == "NCHW" else (shape[0] * pixels, taps * channels)


# ---- calls

def make_window_problem(op, tensors, out, x_shape, window, stride, padding, dilation, layout):
    """`WindowProblem` of a call; `x_shape` is None for im2col."""
    (given,) = tensors
    one_of(op, "layout", layout, LAYOUTS)
    if given is None:
        raise TypeError(f"{op}: {'x' if op == 'im2col' else 'columns'}: got NoneType; expected an array")
    if op == "im2col":
        check_moved(op, given)
        shape = given.shape
    else:
        if given.dtype not in SUMMED:
            raise TypeError(f"{op}: columns is {given.dtype}; expected one of {', '.join(SUMMED)}")
        shape = check_shape(op, "x_shape", x_shape)
    dims = check_rank(op, "x" if op == "im2col" else "x_shape", shape)
    window = per_dimension(op, "window", window, dims)
    stride, dilation = per_dimension(op, "stride", stride, dims), per_dimension(op, "dilation", dilation, dims)
    padding = pad_pairs(op, padding, dims)
    matrix = columns_shape(op, shape, window, stride, padding, dilation, layout)
    wanted = matrix if op == "im2col" else shape
    if out is not None:
        check_output(op, out, wanted, given.dtype)
    result = out if out is not None else Tensor.packed(wanted, given.dtype)
    x, columns = (given, result) if op == "im2col" else (result, given)
    return WindowProblem(op, x, columns, window, stride, padding, dilation, layout)


def make_im2col_problem(tensors, out, window, stride, padding, dilation, layout, aliases):
    """`WindowProblem` of a call of im2col."""
    return make_window_problem("im2col", tensors, out, None, window, stride, padding, dilation, layout)


def make_col2im_problem(tensors, out, x_shape, window, stride, padding, dilation, layout, aliases):
    """`WindowProblem` of a call of col2im."""
    return make_window_problem("col2im", tensors, out, x_shape, window, stride, padding, dilation, layout)

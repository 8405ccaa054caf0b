"""From the arrays and keywords of a call to its problem."""
from types import SimpleNamespace

from ..host.choices import activation_of, dtype_of, one_of
from ..host.last import CALL_LAYOUTS, of_images
from ..host.products import default_output
from ..host.tensor import Tensor
from ..host.window import check_rank, check_shape, pad_pairs, per_dimension
from ._bias_problem import ConvBiasProblem
from ._geometry import ROLES, TRANSPOSED, Shape, check_words, out_extents, positive, shape_of, sizes_of
from ._problem import ConvProblem, checked


@of_images
def make_fwd(tensors, out, stride, padding, dilation, groups, layout, mode, activation, math, out_dtype, scaled, beta, aliases=()):
    """`ConvProblem` of a conv_fwd; `scaled` and `beta` say whether alpha is not 1 and beta is not 0."""
    x, w, bias, residual, prior = tensors
    roles = ROLES["conv_fwd"]
    f = roles.function
    _require(f, x=x, w=w)
    check_words(f, layout, mode, CALL_LAYOUTS)
    dims = check_rank(f, "x", x.shape)
    if w.ndim != x.ndim:
        raise ValueError(f"{f}: w has shape {w.shape}, x {x.shape}; expected as many dimensions")
    _check_out(f, out, out_dtype, beta, prior)
    y = out
    if y is None:
        image, taps = shape_of(x.shape, layout), shape_of(w.shape, layout)
        extents = out_extents(roles, image.spatial, taps.spatial, per_dimension(f, "stride", stride, dims), pad_pairs(f, padding, dims),
                              per_dimension(f, "dilation", dilation, dims))
        y = Tensor.packed(sizes_of(Shape(image.outer, taps.outer, extents), layout), _result_dtype(f, out_dtype, x.dtype))
    return ConvProblem("conv_fwd", x, w, y, bias, residual, stride, padding, dilation, groups, layout, mode, activation_of(f, activation),
                       bool(scaled), bool(beta), math)


@of_images
def make_bwd_data(tensors, out, x_shape, stride, padding, dilation, groups, layout, mode, math, scaled, beta, aliases=()):
    """`ConvProblem` of a conv_bwd_data."""
    dy, w, _, _, prior = tensors
    f = "conv_bwd_data"
    _require(f, dy=dy, w=w)
    check_words(f, layout, mode, CALL_LAYOUTS)
    x_shape = check_shape(f, "x_shape", x_shape)
    check_rank(f, "x_shape", x_shape)
    _check_out(f, out, None, beta, prior, x_shape, "x_shape is")
    dx = out or Tensor.packed(x_shape, dy.dtype)
    return ConvProblem(f, dx, w, dy, None, None, stride, padding, dilation, groups, layout, mode, scaled=bool(scaled), beta=bool(beta),
                       math=math)


@of_images
def make_bwd_filter(tensors, out, w_shape, stride, padding, dilation, groups, layout, mode, math, scaled, beta, aliases=()):
    """`ConvProblem` of a conv_bwd_filter."""
    x, dy, prior = tensors
    f = "conv_bwd_filter"
    _require(f, x=x, dy=dy)
    check_words(f, layout, mode, CALL_LAYOUTS)
    w_shape = check_shape(f, "w_shape", w_shape)
    _check_out(f, out, None, beta, prior, w_shape, "w_shape is")
    dw = out or Tensor.packed(w_shape, x.dtype)
    return ConvProblem(f, x, dw, dy, None, None, stride, padding, dilation, groups, layout, mode, scaled=bool(scaled), beta=bool(beta),
                       math=math)


@of_images
def make_transposed(tensors, out, stride, padding, output_padding, dilation, groups, layout, activation, math, out_dtype, scaled, beta,
                    aliases=()):
    """`ConvProblem`, in the direction conv_bwd_data, of a conv_transpose_fwd: its x is dy there, its y dx."""
    x, w, bias, residual, prior = tensors
    f = TRANSPOSED.function
    _require(f, x=x, w=w)
    one_of(f, "layout", layout, CALL_LAYOUTS)
    dims = check_rank(f, "x", x.shape)
    if w.ndim != x.ndim:
        raise ValueError(f"{f}: w has shape {w.shape}, x {x.shape}; expected as many dimensions")
    image, taps = shape_of(x.shape, layout), shape_of(w.shape, layout)
    if taps.outer != image.channels:
        raise ValueError(f"{f}: w has {taps.outer} input channels, x gives {image.channels}")
    groups = positive(f, "groups", groups)
    strides, pads = per_dimension(f, "stride", stride, dims), pad_pairs(f, padding, dims)
    dilations, extra = per_dimension(f, "dilation", dilation, dims), per_dimension(f, "output_padding", output_padding, dims, 0)
    extents = []
    for size, r, s, (before, after), d, more in zip(image.spatial, taps.spatial, strides, pads, dilations, extra):
        if more >= s:
            raise ValueError(f"{f}: output_padding {more} is not below the stride {s}")
        extents.append((size - 1) * s + d * (r - 1) + 1 + more - before - after)
    shape = Shape(image.outer, taps.channels * groups, tuple(extents))
    if min(extents) < 1:
        raise ValueError(f"{f}: x of shape {x.shape} and w of shape {w.shape} give spatial extents {tuple(extents)}; expected 1 at least")
    shape = sizes_of(shape, layout)
    _check_out(f, out, out_dtype, beta, prior, shape, "the result has")
    y = out or Tensor.packed(shape, _result_dtype(f, out_dtype, x.dtype))
    fields = dict(op="conv_bwd_data", x=y, w=w, y=x, bias=bias, residual=residual, stride=strides, padding=pads, dilation=dilations,
                  groups=groups, layout=layout, mode="cross_correlation", activation=activation_of(f, activation), scaled=bool(scaled),
                  beta=bool(beta), math=math)
    checked(SimpleNamespace(**fields), TRANSPOSED)  # under this function's names for them
    return ConvProblem(**fields)


@of_images
def make_bwd_bias(tensors, out, layout, aliases=()):
    """`ConvBiasProblem` of a conv_bwd_bias."""
    dy, = tensors
    f = "conv_bwd_bias"
    _require(f, dy=dy)
    one_of(f, "layout", layout, CALL_LAYOUTS)
    check_rank(f, "dy", dy.shape)
    db = out if out is not None else Tensor.packed((shape_of(dy.shape, layout).channels,), dy.dtype)
    return ConvBiasProblem(dy, db, layout)


def _require(function, **tensors):
    for name, t in tensors.items():
        if t is None:
            raise TypeError(f"{function}: {name}: got NoneType; expected an array")


def _result_dtype(function, out_dtype, dtype):
    return default_output(dtype) if out_dtype is None else dtype_of(function, "out_dtype", out_dtype)


def _check_out(function, out, out_dtype, beta, prior, shape=None, reason=None):
    """Whether `out` is what was asked for; `shape` is None where the problem itself checks it."""
    if beta and prior is None:
        raise ValueError(f"{function}: beta is not 0, which adds to out; expected an out")
    if out is None:
        return
    if out_dtype is not None and out.dtype != (wanted := dtype_of(function, "out_dtype", out_dtype)):
        raise TypeError(f"{function}: out is {out.dtype}, out_dtype asks for {wanted}")
    if shape is not None and out.shape != shape:
        raise ValueError(f"{function}: out has shape {out.shape}, {reason} {shape}")

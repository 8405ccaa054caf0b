"""Convolutions in one, two and three dimensions, their gradients, and transposed convolutions."""
from ..host.front import Operation, public
from ..host.scalars import integer, ints, number
from ..host.window import steps
from ._bias_problem import ConvBiasProblem
from ._calls import make_bwd_bias, make_bwd_data, make_bwd_filter, make_fwd, make_transposed
from ._problem import ConvProblem

__all__ = ["ConvBiasProblem", "ConvProblem", "conv_bwd_bias", "conv_bwd_data", "conv_bwd_filter", "conv_fwd", "conv_transpose_fwd"]

# Operands are named by their roles in the forward direction, in every direction; `prior` is the output, passed again where beta reads it.
_SCALARS = ("alpha", "beta")
FORWARD = Operation("conv_fwd", operands=("x", "w", "bias", "residual", "prior"), labels=("x", "w", "bias", "residual", "out"),
                    outputs=("y",), scalars=_SCALARS, problem=make_fwd, in_place=frozenset({"prior"}))
BACKWARD_DATA = Operation("conv_bwd_data", operands=("y", "w", "bias", "residual", "prior"),
                          labels=("dy", "w", "bias", "residual", "out"), outputs=("x",), scalars=_SCALARS, problem=make_bwd_data,
                          in_place=frozenset({"prior"}))
TRANSPOSED = Operation("conv_bwd_data", operands=BACKWARD_DATA.operands, labels=FORWARD.labels, outputs=("x",), scalars=_SCALARS,
                       problem=make_transposed, in_place=frozenset({"prior"}), function="conv_transpose_fwd")
BACKWARD_FILTER = Operation("conv_bwd_filter", operands=("x", "y", "prior"), labels=("x", "dy", "out"), outputs=("w",), scalars=_SCALARS,
                            problem=make_bwd_filter, in_place=frozenset({"prior"}))
BACKWARD_BIAS = Operation("conv_bwd_bias", operands=("dy",), outputs=("db",), problem=make_bwd_bias)


@public
def conv_fwd(x, w, bias=None, *, stride=1, padding=0, dilation=1, groups=1, layout="NCHW", mode="cross_correlation", activation=None,
             residual=None, alpha=1.0, beta=0.0, math=None, out_dtype=None, out=None, workspace=None, stream=None, **choice):
    """Convolution with a fused epilogue: ``y = activation(alpha * conv(x, w) + beta * out + residual + bias)``.

    ``conv(x, w)[n, k, p, q] = sum over c, r, s of x[n, c, p*stride - pad + r*dilation, ...] * w[k, c, r, s]`` with zeros outside x; in one,
    two or three spatial dimensions.

    Parameters
    ----------
    x : array (N, C, *spatial), or (N, *spatial, C) with layout "NHWC"
    w : array (K, C/groups, *filter), or (K, *filter, C/groups) with layout "NHWC"
        float64, float32, float16, bfloat16 or int8, the same for both, or float8_e4m3fn and float8_e5m2 in any combination. Arbitrary
        strides.
    bias : array (K,)
    stride, dilation : int or tuple of int
        One value, or one per spatial dimension.
    padding : int, tuple of int, or tuple of (before, after)
        Zeros around x; one value, or one per spatial dimension.
    groups : int
        Divides C and K; filters of a group cover only its channels. groups=C is depthwise.
    layout : "NCHW", "NHWC" or "channels_last"
        Channels first or last, for any number of spatial dimensions. "channels_last": sizes as in "NCHW"; what is allocated lies in memory
        as with "NHWC", which for arrays of NumPy, CuPy and PyTorch can be said.
    mode : "cross_correlation" or "convolution"
        "convolution" flips the filter.
    activation : str or Activation
        A mode of `activation_fwd` with its default parameters, or ``device.activation.Activation(mode, ...)``.
    residual : array of y's shape
    alpha, beta : float
        If beta is not 0, `out` is read and must be given.
    math : None, "tf32" or "fast"
        None: float32 accumulation of unrounded inputs. "tf32": float32 inputs may be rounded to TF32. "fast": anything within ten times the
        error of None.
    out_dtype : dtype
        Default: the operands', int32 for int8, bfloat16 for 8-bit floats. int8 and 8-bit float results saturate.
    out : array of y's shape
        Output, written and returned; arbitrary strides. Overlap with an operand is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    y : array (N, K, *out) or (N, *out, K), of x's framework
        ``out = (in + before + after - dilation*(filter - 1) - 1) // stride + 1``. Accumulated in float32 (float64 for float64, int32 for
        int8), rounded once.

    Raises
    ------
    ValueError
        Shapes that do not match, a window larger than the padded image, a beta without out, an `out` that overlaps an operand.
    TypeError
        Unsupported dtypes, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic. Mirrors cudnnConvolutionBiasActivationForward, and conv_fprop of cuDNN's graphs with pointwise fusion.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x, w = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4), np.ones((1, 1, 3, 3), np.float32)
    >>> dnnkern.conv_fwd(x, w, np.array([-60], np.float32), activation="relu")
    array([[[[ 0.,  0.],
             [21., 30.]]]], dtype=float32)
    """
    f = "conv_fwd"
    alpha, beta = number(f, "alpha", alpha), number(f, "beta", beta)
    if beta != 0:
        operands = x, w, bias, residual, out
    elif residual is not None:
        operands = x, w, bias, residual
    else:
        operands = (x, w) if bias is None else (x, w, bias)
    parameters = (*steps(f, stride, padding, dilation), integer(f, "groups", groups, 1), layout, mode, activation, math, out_dtype,
                  alpha != 1, beta != 0)
    return FORWARD.call(operands, out, parameters, (alpha, beta), workspace, stream, choice)


@public
def conv_bwd_data(dy, w, x_shape, *, stride=1, padding=0, dilation=1, groups=1, layout="NCHW", mode="cross_correlation", alpha=1.0,
                  beta=0.0, math=None, out=None, workspace=None, stream=None, **choice):
    """Backward data: the gradient of a convolution with respect to x, ``dx = alpha * (transposed conv)(dy, w) + beta * out``.

    Parameters
    ----------
    dy : array of the forward's y's shape
    w : array (K, C/groups, *filter) or (K, *filter, C/groups)
        The forward's. float64, float32, float16 or bfloat16, as dy.
    x_shape : tuple of int
        Shape of the forward's x, which with stride > 1 is ambiguous otherwise.
    stride, padding, dilation, groups, layout, mode
        As in the forward call.
    alpha, beta, math, out, workspace, stream, algo, allow, workspace_limit, exclude
        As in `conv_fwd`. `out` may have another dtype than dy, for example float32 with 16-bit dy and w.

    Returns
    -------
    dx : array of shape `x_shape`, of dy's framework

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `conv_fwd`; also ValueError if `x_shape` does not match dy. 8-bit types have no backward: TypeError.

    Notes
    -----
    Deterministic. Mirrors cudnnConvolutionBackwardData and conv_dgrad of cuDNN's graphs.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> dy, w = np.ones((1, 1, 2), np.float32), np.array([[[1, 2, 3]]], np.float32)
    >>> dnnkern.conv_bwd_data(dy, w, (1, 1, 4))
    array([[[1., 3., 5., 3.]]], dtype=float32)
    """
    f = "conv_bwd_data"
    alpha, beta = number(f, "alpha", alpha), number(f, "beta", beta)
    operands = (dy, w) if beta == 0 else (dy, w, None, None, out)
    parameters = (ints(f, "x_shape", x_shape), *steps(f, stride, padding, dilation), integer(f, "groups", groups, 1), layout, mode, math,
                  alpha != 1, beta != 0)
    return BACKWARD_DATA.call(operands, out, parameters, (alpha, beta), workspace, stream, choice)


@public
def conv_bwd_filter(x, dy, w_shape, *, stride=1, padding=0, dilation=1, groups=1, layout="NCHW", mode="cross_correlation", alpha=1.0,
                    beta=0.0, math=None, out=None, workspace=None, stream=None, **choice):
    """Backward filter: the gradient of a convolution with respect to w, ``dw = alpha * correlation(x, dy) + beta * out``.

    Parameters
    ----------
    x : array (N, C, *spatial) or (N, *spatial, C)
        The forward's. float64, float32, float16 or bfloat16, as dy.
    dy : array of the forward's y's shape
    w_shape : tuple of int
        Shape of the forward's w.
    stride, padding, dilation, groups, layout, mode
        As in the forward call.
    alpha, beta, math, out, workspace, stream, algo, allow, workspace_limit, exclude
        As in `conv_fwd`. beta = 1 accumulates gradients in `out`, which may have another dtype than x, for example float32 with 16-bit x
        and dy.

    Returns
    -------
    dw : array of shape `w_shape`, of x's framework
        Zeros (plus ``beta * out``) for an empty batch.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `conv_fwd`. 8-bit types have no backward: TypeError.

    Notes
    -----
    Deterministic. Mirrors cudnnConvolutionBackwardFilter and conv_wgrad of cuDNN's graphs.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x, dy = np.array([[[1, 2, 3, 4]]], np.float32), np.ones((1, 1, 2), np.float32)
    >>> dnnkern.conv_bwd_filter(x, dy, (1, 1, 3))
    array([[[3., 5., 7.]]], dtype=float32)
    """
    f = "conv_bwd_filter"
    alpha, beta = number(f, "alpha", alpha), number(f, "beta", beta)
    operands = (x, dy) if beta == 0 else (x, dy, out)
    parameters = (ints(f, "w_shape", w_shape), *steps(f, stride, padding, dilation), integer(f, "groups", groups, 1), layout, mode, math,
                  alpha != 1, beta != 0)
    return BACKWARD_FILTER.call(operands, out, parameters, (alpha, beta), workspace, stream, choice)


@public
def conv_bwd_bias(dy, *, layout="NCHW", out=None, workspace=None, stream=None, **choice):
    """The gradient of a convolution with respect to its bias: dy summed over images and pixels.

    Parameters
    ----------
    dy : array (N, K, *spatial), or (N, *spatial, K) with layout "NHWC"
        float64, float32, float16 or bfloat16; arbitrary strides.
    layout : "NCHW", "NHWC" or "channels_last"
    out : array (K,)
        Written and returned; may have another dtype than dy.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `conv_fwd`.

    Returns
    -------
    db : array (K,), of dy's framework
        Summed in float32 (float64 for float64), rounded once.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `conv_fwd`.

    Notes
    -----
    Deterministic. Mirrors cudnnConvolutionBackwardBias.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> dnnkern.conv_bwd_bias(np.arange(12, dtype=np.float32).reshape(2, 2, 3))
    array([24., 42.], dtype=float32)
    """
    return BACKWARD_BIAS.call((dy,), out, (layout,), (), workspace, stream, choice)


@public
def conv_transpose_fwd(x, w, bias=None, *, stride=1, padding=0, output_padding=0, dilation=1, groups=1, layout="NCHW", activation=None,
                       residual=None, alpha=1.0, beta=0.0, math=None, out_dtype=None, out=None, workspace=None, stream=None, **choice):
    """Transposed convolution: ``y = activation(alpha * convT(x, w) + beta * out + residual + bias)``.

    convT is `conv_bwd_data` with x as dy: every element of x adds a multiple of the filter to y, at steps of `stride`.

    Parameters
    ----------
    x : array (N, C_in, *spatial), or (N, *spatial, C_in) with layout "NHWC"
    w : array (C_in, C_out/groups, *filter), or (C_in, *filter, C_out/groups) with layout "NHWC"
        float64, float32, float16 or bfloat16, the same for both.
    bias : array (C_out,)
    stride, dilation : int or tuple of int
    padding : int, tuple of int, or tuple of (before, after)
        Cropped from the result.
    output_padding : int or tuple of int
        Added to the result's trailing edges; less than the stride.
    groups, layout, activation, residual, alpha, beta, math, out_dtype, out, workspace, stream, allow,
    workspace_limit, exclude
        As in `conv_fwd`.
    algo : str
        Name of an algorithm of conv_bwd_data, which computes it.

    Returns
    -------
    y : array (N, C_out, *out) or (N, *out, C_out), of x's framework
        ``out = (in - 1)*stride + dilation*(filter - 1) + 1 + output_padding - before - after``.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `conv_fwd`.

    Notes
    -----
    Deterministic. Mirrors torch.nn.functional.conv_transpose2d; in cuDNN it is also the backward of a convolution.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x, w = np.array([[[1, 10]]], np.float32), np.array([[[1, 2, 3]]], np.float32)
    >>> dnnkern.conv_transpose_fwd(x, w, stride=2)
    array([[[ 1.,  2., 13., 20., 30.]]], dtype=float32)
    """
    f = "conv_transpose_fwd"
    alpha, beta = number(f, "alpha", alpha), number(f, "beta", beta)
    if beta != 0:
        operands = x, w, bias, residual, out
    elif residual is not None:
        operands = x, w, bias, residual
    else:
        operands = (x, w) if bias is None else (x, w, bias)
    stride, padding, dilation = steps(f, stride, padding, dilation)
    parameters = (stride, padding, ints(f, "output_padding", output_padding), dilation, integer(f, "groups", groups, 1), layout, activation,
                  math, out_dtype, alpha != 1, beta != 0)
    return TRANSPOSED.call(operands, out, parameters, (alpha, beta), workspace, stream, choice)

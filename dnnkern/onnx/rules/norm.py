"""Normalizations and softmax."""
import math

import numpy as np

from .._errors import Refused
from .._table import rule
from .._values import FLOATS, Value
from .pointwise import number, only


@rule("BatchNormalization", (7, 9, 14, 15), "`batch_norm_infer`, `batch_norm_train_fwd`")
def batch(node, x, scale, bias, mean, variance):
    """Inference; with `training_mode` the batch's statistics, and running ones whose variance is the biased one."""
    only((x, scale, bias, mean, variance), FLOATS)
    eps = float(node.attribute("epsilon", 1e-5))
    if not node.attribute("training_mode", 0):
        mode = "spatial" if node.attribute("spatial", 1) else "per_activation"
        return node.call("batch_norm_infer", x, scale, bias, mean, variance, eps=eps, mode=mode)
    old = float(node.attribute("momentum", 0.9))
    means, variances = node.call("cast", mean, mean.dtype), node.call("cast", variance, variance.dtype)  # updated in place
    y, *_ = node.call("batch_norm_train_fwd", x, scale, bias, means, variances, momentum=1 - old, eps=eps)
    n = x.size // x.shape[1]
    if n > 1:
        less = node.call("binary", variances, number(node, (n - 1) / n, variance.dtype), "mul")
        rest = node.call("binary", variance, number(node, old / n, variance.dtype), "mul")
        variances = node.call("binary", less, rest, "add")
    return y, means, variances


@rule("LayerNormalization", (17,), "`layer_norm_fwd`")
def layer(node, x, scale, bias=None):
    """Also its mean and the reciprocal deviation."""
    only((x, scale, bias), FLOATS)
    axis = node.attribute("axis", -1) % x.ndim
    fits = scale.shape == x.shape[axis:] and (bias is None or bias.shape == scale.shape)
    y, mean, rstd = node.call("layer_norm_fwd", x, *((scale, bias) if fits else ()), axis=axis, eps=float(node.attribute("epsilon", 1e-5)))
    if not fits:
        y = node.call("binary", y, scale, "mul")
        y = y if bias is None else node.call("binary", y, bias, "add")
    shape = (*x.shape[:axis], *[1] * (x.ndim - axis))
    return y, mean.reshape(*shape), rstd.reshape(*shape)


@rule("RMSNormalization", (23,), "`rms_norm_fwd`")
def root_mean_square(node, x, scale):
    """Over the dimensions from `axis` on."""
    only((x, scale), FLOATS)
    axis = node.attribute("axis", -1) % x.ndim
    fits = scale.shape == x.shape[axis:]
    y, _ = node.call("rms_norm_fwd", x, *((scale,) if fits else ()), axis=axis, eps=float(node.attribute("epsilon", 1e-5)))
    return y if fits else node.call("binary", y, scale, "mul")


@rule("InstanceNormalization", (6, 22), "`instance_norm_fwd`")
def instance(node, x, scale, bias):
    """By image and channel."""
    only((x, scale, bias), FLOATS)
    return node.call("instance_norm_fwd", x, scale, bias, eps=float(node.attribute("epsilon", 1e-5)))[0]


@rule("GroupNormalization", (18, 21), "`group_norm_fwd`")
def group(node, x, scale, bias):
    """Of opset 18 scale and bias are by group."""
    only((x, scale, bias), FLOATS)
    groups = node.attribute("num_groups")
    if node.version == 18:
        times = x.shape[1] // groups
        scale, bias = node.once("by channel", (scale, bias), lambda: [Value(np.repeat(v.host(), times)) for v in (scale, bias)])
    return node.call("group_norm_fwd", x, scale, bias, groups, eps=float(node.attribute("epsilon", 1e-5)))[0]


@rule("LpNormalization", (1, 22), "`reduce`, `binary`")
def by_norm(node, x):
    """Divided by the norm along an axis; 0 where that is 0."""
    only((x,), FLOATS)
    norm = node.call("reduce", x, f"norm{node.attribute('p', 2)}", axes=node.attribute("axis", -1), keepdims=True)
    is_zero = node.call("binary", norm, number(node, 0.0, x.dtype), "cmp_eq")
    return node.call("binary", x, node.call("binary", number(node, 1.0, x.dtype), norm, "binary_select", mask=is_zero), "div")


@rule("MeanVarianceNormalization", (9, 13), "`reduce`, `binary`, `unary`")
def mean_variance(node, x):
    """Mean 0 and variance 1 over the axes."""
    only((x,), FLOATS)
    axes = node.attribute("axes", [0, 2, 3])
    centred = node.call("binary", x, node.call("reduce", x, "avg", axes=axes, keepdims=True), "sub")
    squares = node.call("binary", centred, centred, "mul")
    deviation = node.call("unary", node.call("reduce", squares, "avg", axes=axes, keepdims=True), "sqrt")
    return node.call("binary", centred, node.call("binary", deviation, number(node, 1e-9, x.dtype), "add"), "div")


@rule("LRN", (1, 13), "`lrn_fwd`")
def local_response(node, x):
    """ONNX's windows of an even size have one channel more after than before; here it is before, so channels are reversed."""
    only((x,), FLOATS)
    size = node.attribute("size")
    keywords = {"size": size, "alpha": float(node.attribute("alpha", 1e-4)), "beta": float(node.attribute("beta", 0.75)),
                "k": float(node.attribute("bias", 1.0))}

    def reversed_(x):
        return node.call("strided_slice", x, (None,) * x.ndim, (None,) * x.ndim, (1, -1, *[1] * (x.ndim - 2)))
    return node.call("lrn_fwd", x, **keywords) if size % 2 else reversed_(node.call("lrn_fwd", reversed_(x), **keywords))


@rule("Softmax LogSoftmax", (1, 11, 13), "`softmax_fwd`")
def softmax(node, x):
    """Along an axis; before opset 13 over all dimensions from the axis on."""
    only((x,), FLOATS)
    log, axis = node.op == "LogSoftmax", node.attribute("axis", -1 if node.version >= 13 else 1) % max(x.ndim, 1)
    if node.version >= 13:
        return node.call("softmax_fwd", x, axis=axis, log=log)
    rows = x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))
    return node.call("softmax_fwd", rows, log=log).reshape(*x.shape)


@rule("Hardmax", (1, 11, 13), "`argreduce`, `unary`, `binary`, `cast`")
def hardmax(node, x):
    """1 at the first maximum along an axis, else 0."""
    only((x,), FLOATS)
    axis = node.attribute("axis", -1 if node.version >= 13 else 1) % x.ndim
    if node.version < 13 and axis != x.ndim - 1:
        raise Refused("several dimensions as one")
    _, index = node.call("argreduce", x, "max", axis=axis, keepdims=True)
    hit = node.call("binary", node.call("unary", x, "gen_index", axis=axis), index, "cmp_eq")
    return node.call("cast", hit.viewed("uint8"), x.dtype)

"""The fused graphs of cuDNN's samples: values against float64, and in how many steps they run.

Each pattern is written once, by `Both`: as nodes of a graph and as NumPy arrays of float64.
"""
import numpy as np
import pytest
from graph_patterns import EPSILON, TRAINING, Both
from graphs import T, channels_last

import dnnkern.graph as cudnn

PATTERNS = {}
"""Name -> (function that makes the pattern of a `Both`, operations of the steps, launches of all of them)."""


def pattern(*steps, launches=None, io=T.HALF):
    """Decorate a function that makes a pattern."""
    def define(function):
        PATTERNS[function.__name__] = function, list(steps), launches, io
        return function
    return define


# ---- normalizations

def image(both, order=channels_last, **more):
    return both.input((3, 8, 4, 5), order=order, **more)


@pattern("batch_norm_train_fwd", launches=3)
def batchnorm_relu(b):
    y, *_ = b.batchnorm(image(b), b.weight(8), b.weight(8))
    b.output(b.relu(y))


@pattern("batch_norm_train_fwd", launches=3)
def batchnorm_add_relu_with_statistics(b):
    running = b.weight(8), b.weight(8, low=0.5)
    y, *statistics = b.batchnorm(image(b), b.weight(8), b.weight(8), running)
    b.output(b.relu(b.binary("add", y, image(b))))
    b.output(*statistics, dtype=T.FLOAT)


@pattern("batch_norm_train_fwd", launches=3)
def batchnorm_add_of_planes(b):
    y, *_ = b.batchnorm(image(b, np.asarray), b.weight(8), b.weight(8))
    b.output(b.binary("add", image(b, np.asarray), y))


@pattern("batch_norm_train_fwd", launches=3)
def batchnorm_whose_result_is_an_output_too(b):
    y, *_ = b.batchnorm(image(b), b.weight(8), b.weight(8))
    b.output(y)
    b.output(b.relu(b.binary("mul", y, image(b))))


@pattern("batch_norm_train_fwd", launches=3, io=T.FLOAT)
def batchnorm_of_floats_to_half(b):
    y, *_ = b.batchnorm(image(b), b.weight(8), b.weight(8))
    b.output(b.swish(y), dtype=T.HALF)


@pattern("batch_norm_train_fwd", launches=3)
def batchnorm_add_relu_scale_gate(b):
    """The kernel's own addition and activation, and a program after them, with a side output that is rounded before it goes on."""
    y, *statistics = b.batchnorm(image(b), b.weight(8), b.weight(8))
    hot = b.relu(b.binary("add", y, image(b)))
    scaled = b.rounded(b.binary("scale", hot, b.weight(8)))
    b.output(scaled)
    b.output(b.binary("mul", b.swish(scaled), image(b)))
    b.output(*statistics[:2], dtype=T.FLOAT)


@pattern("batch_norm_train_fwd", launches=3)
def batchnorm_of_planes_scaled_by_images(b):
    """An operand of one element for each image, one of one for each pixel, and a number of each execution; no addition of its own."""
    y, *_ = b.batchnorm(image(b, np.asarray), b.weight(8), b.weight(8))
    y = b.binary("mul", b.binary("mul", b.swish(y), b.input((3, 1, 1, 1))), b.number(0.5))
    b.output(b.binary("add", y, b.input((1, 1, 4, 5), T.FLOAT)), dtype=T.FLOAT)


@pattern("batch_norm_train_fwd", launches=3)
def batchnorm_add_relu_with_a_mask(b):
    """What is added is the kernel's own, relu and the mask are a program's."""
    y, *_ = b.batchnorm(image(b), b.weight(8), b.weight(8))
    total = b.binary("add", y, image(b))
    b.output(b.relu(total))
    b.output(b.node("cmp_gt", lambda v, w: v > w, total, b.number(0.0)), dtype=T.BOOLEAN)


@pattern("batch_norm_train_fwd", "fused_pointwise", launches=4)
def batchnorm_whose_statistic_goes_on(b):
    x = image(b)
    y, mean, *_ = b.batchnorm(x, b.weight(8), b.weight(8))
    b.output(b.relu(b.binary("add", y, b.binary("mul", x, mean))))


@pattern("fused_pointwise", launches=1)
def batchnorm_inference_relu(b):
    x, mean, rstd, scale, bias = image(b), b.weight(8), b.weight(8, low=0.5), b.weight(8), b.weight(8)
    y = b.node("batchnorm_inference", lambda x, m, r, s, c: (x - m) * r * s + c, x, mean, rstd, scale, bias)
    b.output(b.relu(y))


@pattern("group_norm_fwd", launches=1)
def instancenorm_swish(b):
    x, scale, bias, epsilon = image(b, np.asarray), b.weight(8), b.weight(8), b.number(EPSILON)
    v = b.values[x]
    mean, var = v.mean((2, 3), keepdims=True), v.var((2, 3), keepdims=True)
    y, *_ = b.known(b.graph.instancenorm(TRAINING, x, scale, bias, epsilon),
                    ((v - mean) / np.sqrt(var + b.values[epsilon]) * b.values[scale] + b.values[bias], mean, var))
    b.output(b.swish(y))


@pattern("group_norm_fwd", launches=1)
def groupnorm_add_swish_mul(b):
    """Planes: a group is read once, whatever comes after it."""
    x, scale, bias, epsilon = image(b, np.asarray), b.weight(8), b.weight(8), b.number(EPSILON)
    v = b.values[x].reshape(3, 2, -1)
    n = ((v - v.mean(-1, keepdims=True)) / np.sqrt(v.var(-1, keepdims=True) + b.values[epsilon])).reshape(3, 8, 4, 5)
    y, *_ = b.known(b.graph.groupnorm(TRAINING, x, scale, bias, epsilon, 2), (n * b.values[scale] + b.values[bias],) * 3)
    total = b.binary("add", y, image(b, np.asarray))
    b.output(total, dtype=T.FLOAT)
    b.output(b.binary("mul", b.swish(total), b.weight(8)))


@pattern("group_norm_fwd", launches=3)
def instancenorm_add_relu_of_channels_last(b):
    x, scale, bias, epsilon = image(b), b.weight(8), b.weight(8), b.number(EPSILON)
    v = b.values[x]
    mean, var = v.mean((2, 3), keepdims=True), v.var((2, 3), keepdims=True)
    y, *_ = b.known(b.graph.instancenorm(TRAINING, x, scale, bias, epsilon),
                    ((v - mean) / np.sqrt(var + b.values[epsilon]) * b.values[scale] + b.values[bias], mean, var))
    b.output(b.relu(b.binary("add", y, image(b))))


@pattern("rms_norm_fwd", launches=1)
def rmsnorm_swish_mul(b):
    y, _ = b.rows("rmsnorm", b.input((6, 40, 1, 1)), b.weight(40, io=T.HALF))
    b.output(b.binary("mul", b.swish(y), b.input((6, 40, 1, 1))))


@pattern("layer_norm_fwd", launches=1)
def layernorm_with_weights_of_another_type(b):
    y, *statistics = b.rows("layernorm", b.input((6, 40, 1, 1), T.FLOAT), b.weight(40, io=T.HALF), b.weight(40, io=T.HALF))
    b.output(y, dtype=T.BFLOAT16)
    b.output(*statistics, dtype=T.FLOAT)


@pattern("layer_norm_fwd", launches=1)
def layernorm_add_gelu_with_side_outputs(b):
    """The normalized values and the sum are outputs as well; the sum is rounded to half before it goes on."""
    y, *statistics = b.rows("layernorm", b.input((6, 40, 1, 1)), b.weight(40), b.weight(40))
    b.output(*statistics, y, dtype=T.FLOAT)
    total = b.rounded(b.binary("add", y, b.input((6, 40, 1, 1))))
    b.output(total)
    b.output(b.binary("mul", b.swish(total), b.weight(40)))


@pattern("layer_norm_fwd", launches=1)
def layernorm_of_images_add_relu(b):
    """Rows of three dims, channels last, and a number that is given at each execution."""
    x, w, c = (b.input(shape, order=channels_last) for shape in ((3, 8, 4, 5), (1, 8, 4, 5), (1, 8, 4, 5)))
    v, epsilon = b.values[x], b.number(EPSILON)
    mean, var = v.mean((1, 2, 3), keepdims=True), v.var((1, 2, 3), keepdims=True)
    y, *_ = b.known(b.graph.layernorm(TRAINING, x, w, c, epsilon),
                    ((v - mean) / np.sqrt(var + b.values[epsilon]) * b.values[w] + b.values[c], mean, var))
    scaled = b.binary("mul", y, b.number(0.5))
    b.output(b.relu(b.binary("add", scaled, b.input((3, 8, 4, 5), order=channels_last))))


@pattern("rms_norm_fwd", "fused_pointwise", launches=2)
def rmsnorm_whose_statistic_goes_on(b):
    """What reads a statistic is another kernel's."""
    x = b.input((6, 40, 1, 1))
    y, rstd = b.rows("rmsnorm", x, b.weight(40))
    b.output(b.binary("add", y, b.binary("mul", x, rstd)))


@pattern("fused_pointwise", "layer_norm_fwd", launches=2)
def layernorm_of_a_sum_then_gelu(b):
    """A virtual FLOAT sum, HALF weights, a HALF result."""
    x = b.binary("add", b.input((6, 40, 1, 1)), b.input((6, 40, 1, 1)))
    y, *_ = b.rows("layernorm", x, b.weight(40, io=T.HALF), b.weight(40, io=T.HALF))
    b.output(b.swish(y))


@pattern("fused_pointwise", "layer_norm_fwd", launches=2)
def layernorm_with_zero_centred_gamma(b):
    one = b.graph.tensor_scalar(1.0, cudnn.scalar_type.COMPILE_TIME_CONST)
    b.values[one] = np.ones(())
    y, *_ = b.rows("layernorm", b.input((6, 40, 1, 1)), b.binary("add", b.weight(40), one), b.weight(40))
    b.output(y)


@pattern("layer_norm_fwd", "fused_pointwise", launches=2)
def adaptive_layernorm(b):
    x, scale, bias = (b.input(dim) for dim in ((3, 5, 16), (3, 1, 16), (3, 1, 16)))
    epsilon, v = b.number(EPSILON), b.values[x]
    mean, var = v.mean(2, keepdims=True), v.var(2, keepdims=True)
    y, *_ = b.known(b.graph.adalayernorm(TRAINING, x, scale, bias, epsilon),
                    ((v - mean) / np.sqrt(var + b.values[epsilon].item()) * b.values[scale] + b.values[bias], mean, var))
    b.output(y)


@pattern("softmax_fwd", launches=1, io=T.FLOAT)
def softmax_to_half(b):
    def softmax(v):
        e = np.exp(v - v.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)
    b.output(b.node("softmax", softmax, b.input((4, 9, 24), low=-4, high=4), axis=-1), dtype=T.HALF)


# ---- statistics of channels

@pattern("fused_pointwise", launches=1, io=T.FLOAT)
def bn_finalize(b):
    x, count = b.random.uniform(-1, 1, (3, 8, 4, 5)), b.number(60)
    total, square = (b.given(v.sum((0, 2, 3)).astype(np.float32).reshape(1, 8, 1, 1)) for v in (x, x * x))
    scale, bias, mean, var, epsilon, momentum = (b.weight(8), b.weight(8), b.weight(8), b.weight(8, low=0.5), b.number(EPSILON),
                                                 b.number(0.25))
    found = b.graph.bn_finalize(total, square, scale, bias, epsilon, count, mean, var, momentum)
    m = b.values[total] / 60
    v = b.values[square] / 60 - m * m
    rstd = 1 / np.sqrt(v + b.values[epsilon])
    eq = b.values[scale] * rstd
    b.known(found, (eq, b.values[bias] - m * eq, m, rstd, 0.75 * b.values[mean] + 0.25 * m,
                    0.75 * b.values[var] + 0.25 * v * 60 / 59))
    b.output(*found)


@pattern("batch_norm_bwd", "fused_pointwise", launches=3)
def dbn_weight(b):
    x, dy, mean, rstd, scale = image(b), image(b), b.weight(8), b.weight(8, low=0.5), b.weight(8)
    found = b.graph.dbn_weight(dy, x, mean, rstd, scale)
    v, d, m, r, s = (b.values[t] for t in (x, dy, mean, rstd, scale))
    dscale, dbias = (d * (v - m) * r).sum((0, 2, 3), keepdims=True), d.sum((0, 2, 3), keepdims=True)
    eq_x = -s * r * dscale * r / 60
    b.known(found, (dscale, dbias, s * r, eq_x, -(s * r * dbias / 60 + eq_x * m)))
    b.output(*found)


@pattern("batch_norm_train_fwd", "fused_pointwise", launches=3)
def genstats(b):
    x = image(b)
    total, square = b.known(b.graph.genstats(x), [v.sum((0, 2, 3), keepdims=True) for v in (b.values[x], b.values[x] ** 2)])
    b.output(total, square)


# ---- normalizations with masks and gradients

@pattern("layer_norm_fwd", launches=1)
def layernorm_clamped_relu_with_a_mask(b):
    y, *_ = b.rows("layernorm", b.input((6, 40, 1, 1)), b.weight(40), b.weight(40))
    low, high = b.number(0.1), b.number(0.9)
    clamped = b.node("relu", lambda v: np.clip(v, 0.125, 0.75), y, lower_clip=0.125, upper_clip=0.75)
    above = b.node("cmp_gt", lambda v, w: v > w, y, low)
    mask = b.node("logical_and", np.logical_and, above, b.node("cmp_lt", lambda v, w: v < w, y, high))
    for t in (above, mask):
        t.set_data_type(T.BOOLEAN)
    b.graph.nodes[-2].outputs["OUT_0"].set_data_type(T.BOOLEAN)
    b.output(clamped)
    b.output(mask, dtype=T.BOOLEAN)


@pattern("fused_pointwise", "layer_norm_bwd")
def masked_gradient_of_layernorm(b):
    dy, x, scale, mean, rstd = b.input((6, 40, 1, 1)), b.input((6, 40, 1, 1)), b.weight(40), b.input((6, 1, 1, 1), T.FLOAT), b.input(
        (6, 1, 1, 1), T.FLOAT, low=0.5)
    mask = b.given(b.random.random((6, 40, 1, 1)) < 0.5)
    masked = b.rounded(b.binary("mul", dy, mask))
    d, v, m, r, s = (b.values[t] for t in (masked, x, mean, rstd, scale))
    n, g = (v - m) * r, d * s
    results = b.known(b.graph.layernorm_backward(masked, x, scale, mean, rstd), (
        r * (g - g.mean(1, keepdims=True) - n * (g * n).mean(1, keepdims=True)), (d * n).sum(0, keepdims=True), d.sum(0, keepdims=True)))
    b.output(results[0])
    b.output(*results[1:], dtype=T.FLOAT)


@pattern("fused_pointwise", "batch_norm_bwd")
def batchnorm_gradient_behind_relu_and_add(b):
    """The gradient past relu, by its mask, which is the other branch's as well."""
    dy, x, scale, mean, rstd = image(b), image(b), b.weight(8), b.weight(8), b.weight(8, low=0.5)
    mask = b.given(channels_last(b.random.random((3, 8, 4, 5)) < 0.5))
    other = b.rounded(b.binary("mul", dy, mask))
    d, v, m, r, s = (b.values[t] for t in (other, x, mean, rstd, scale))
    n, g, axes = (v - m) * r, d * s, (0, 2, 3)
    results = b.known(b.graph.batchnorm_backward(other, x, scale, mean, rstd), (
        r * (g - g.mean(axes, keepdims=True) - n * (g * n).mean(axes, keepdims=True)), (d * n).sum(axes, keepdims=True),
        d.sum(axes, keepdims=True)))
    b.output(other, results[0])
    b.output(*results[1:], dtype=T.FLOAT)


@pattern("fused_pointwise", "batch_norm_bwd", "fused_pointwise")
def batchnorm_inference_drelu_dbn(b):
    """The argument of relu anew, the gradient past it, and what batch normalization's gradients are made of."""
    dy, x, mean, rstd, scale, bias = image(b), image(b), b.weight(8), b.weight(8, low=0.5), b.weight(8), b.weight(8)
    y = b.node("batchnorm_inference", lambda x, m, r, s, c: (x - m) * r * s + c, x, mean, rstd, scale, bias)
    dz = b.rounded(b.node("relu_backward", lambda d, v: d * (v > 0), dy, y))
    d, v, m, r = (b.values[t] for t in (dz, x, mean, rstd))
    found = b.graph.dbn_weight(dz, x, mean, rstd, scale)
    b.known(found[:2], ((d * (v - m) * r).sum((0, 2, 3), keepdims=True), d.sum((0, 2, 3), keepdims=True)))
    b.output(dz)
    b.output(*found[:2])


# ---- convolutions

def convolved(x, w, padding=1, stride=1):
    """(N, C, H, W) by (K, C, R, S), in float64."""
    x = np.pad(x, ((0, 0), (0, 0), (padding,) * 2, (padding,) * 2))
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))[:, :, ::stride, ::stride]
    return np.einsum("nchwrs,kcrs->nkhw", windows, w)


def filters(b, order=channels_last, **more):
    return b.input((6, 8, 3, 3), order=order, low=-0.25, high=0.25, **more)


def conv(b, x, w):
    return b.node("conv_fprop", convolved, x, w, padding=[1, 1], stride=[1, 1], dilation=[1, 1])


@pattern("conv_fwd")
def conv_scale_bias_relu(b):
    y = b.binary("scale", conv(b, image(b), filters(b)), b.weight(6))
    b.output(b.relu(b.binary("bias", y, b.weight(6))))


@pattern("conv_fwd")
def conv_bias_relu_of_planes(b):
    y = conv(b, image(b, np.asarray), filters(b, np.asarray))
    b.output(b.relu(b.binary("bias", y, b.weight(6))))


@pattern("fused_pointwise", "conv_fwd", "batch_norm_train_fwd", "fused_pointwise")
def scale_bias_relu_conv_genstats(b):
    x = b.rounded(b.relu(b.binary("bias", b.binary("scale", image(b), b.weight(8)), b.weight(8))))
    y = conv(b, x, filters(b))
    b.output(y)
    rounded = b.values[y].astype(np.float16).astype(float)
    b.output(*b.known(b.graph.genstats(y), [v.sum((0, 2, 3), keepdims=True) for v in (rounded, rounded ** 2)]))


@pattern("conv_fwd", "transpose")
def conv_concatenate(b):
    x = image(b)
    y = conv(b, x, filters(b)).set_data_type(T.HALF)
    b.output(b.node("concatenate", lambda v, w: np.concatenate([v, w], 1), [y, x], 1))


@pattern()
def conv_of_int8(b):
    y = conv(b, image(b, io=T.INT8), b.input((6, 8, 3, 3), T.INT8, channels_last))
    b.output(b.binary("mul", y, b.number(0.125)), dtype=T.FLOAT)


@pattern()
def conv_of_fp8_scale_amax(b):
    y = conv(b, image(b, io=T.FP8_E4M3), filters(b, io=T.FP8_E4M3))
    y = b.rounded(b.binary("mul", y, b.number(0.5)))
    top = b.node("reduction", lambda v: np.abs(v).max(keepdims=True), y, cudnn.reduction_mode.AMAX)
    b.output(top.set_dim([1, 1, 1, 1]).set_stride([1, 1, 1, 1]), dtype=T.FLOAT)
    b.output(y)


def gradient_of_image(d, w):
    """Of `convolved` with padding 1: the convolution of the loss with the filters, turned."""
    return convolved(d, w.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1])


def dgrad(b):
    dx = b.node("conv_dgrad", gradient_of_image, b.input((3, 6, 4, 5), order=channels_last), filters(b), padding=[1, 1], stride=[1, 1],
                dilation=[1, 1])
    return dx.set_dim([3, 8, 4, 5]).set_stride([160, 1, 40, 8])


@pattern("conv_bwd_data")
def conv_dgrad_drelu(b):
    b.output(b.node("relu_backward", lambda d, v: d * (v > 0), dgrad(b), image(b)))


@pattern("conv_bwd_data", "batch_norm_bwd", "fused_pointwise")
def conv_dgrad_drelu_dbn_weight(b):
    dz = b.rounded(b.node("relu_backward", lambda d, v: d * (v > 0), dgrad(b), image(b)))
    x, mean, rstd, scale = image(b), b.weight(8), b.weight(8, low=0.5), b.weight(8)
    found = b.graph.dbn_weight(dz, x, mean, rstd, scale)
    d, v, m, r = (b.values[t] for t in (dz, x, mean, rstd))
    b.known(found[:2], ((d * (v - m) * r).sum((0, 2, 3), keepdims=True), d.sum((0, 2, 3), keepdims=True)))
    b.output(dz)
    b.output(*found[:2])


@pattern("fused_pointwise", "conv_bwd_filter")
def scale_bias_relu_wgrad(b):
    x = b.rounded(b.relu(b.binary("bias", b.binary("scale", image(b), b.weight(8)), b.weight(8))))

    def gradient(v, d):
        v = np.pad(v, ((0, 0), (0, 0), (1, 1), (1, 1)))
        return np.einsum("nchwrs,nkrs->kchw", np.lib.stride_tricks.sliding_window_view(v, (4, 5), (2, 3)), d)
    dw = b.node("conv_wgrad", gradient, x, b.input((3, 6, 4, 5), order=channels_last), padding=[1, 1], stride=[1, 1], dilation=[1, 1])
    b.output(dw.set_dim([6, 8, 3, 3]).set_stride([72, 1, 24, 8]), dtype=T.FLOAT)


# ---- products

@pattern("unary", "matmul")
def matmul_of_absolute_values(b):
    a = b.node("abs", np.abs, b.input((2, 6, 16))).set_data_type(T.HALF)
    b.output(b.node("matmul", np.matmul, a, b.input((2, 16, 8), low=-0.25, high=0.25)))


@pattern("matmul")
def matmul_scale_bias_relu(b):
    y = b.node("matmul", np.matmul, b.input((2, 6, 16)), b.input((2, 16, 8), low=-0.25, high=0.25))
    b.output(b.relu(b.binary("bias", b.binary("scale", y, b.input((1, 1, 8))), b.input((1, 1, 8)))))


@pattern("fused_pointwise", "matmul", io=T.BFLOAT16)
def matmul_of_int8_and_bfloat16(b):
    a = b.node("identity", np.asarray, b.input((2, 6, 16), T.INT8)).set_data_type(T.BFLOAT16)
    b.output(b.node("matmul", np.matmul, a, b.input((2, 16, 8), low=-0.25, high=0.25)), dtype=T.FLOAT)


@pattern("matmul")
def matmul_of_int8(b):
    b.output(b.node("matmul", np.matmul, b.input((2, 6, 16), T.INT8), b.input((2, 16, 8), T.INT8)), dtype=T.INT32)


@pattern()
def matmul_of_fp8_scale_amax(b):
    y = b.node("matmul", np.matmul, b.input((2, 6, 16), T.FP8_E4M3), b.input((2, 16, 8), T.FP8_E4M3))
    y = b.rounded(b.binary("mul", y, b.number(0.5, 3)))
    top = b.node("reduction", lambda v: np.abs(v).max(keepdims=True), y, cudnn.reduction_mode.AMAX)
    b.output(top.set_dim([1, 1, 1]).set_stride([1, 1, 1]), dtype=T.FLOAT)
    b.output(y)


@pattern("matmul")
def matmul_of_a_slice(b):
    a = b.node("slice", lambda v: v[:, 1:7:2], b.input((2, 8, 16)), (slice(None), slice(1, 7, 2), slice(None)))
    b.output(b.node("matmul", np.matmul, a, b.input((2, 16, 8), low=-0.25, high=0.25)))


# ---- moves, reductions, scalars

@pattern("fused_pointwise")
def reshape_relu(b):
    y = b.node("reshape", lambda v: v.reshape(4, 10, 6), b.input((4, 5, 12)), reshape_mode=cudnn.reshape_mode.LOGICAL)
    b.output(b.relu(b.binary("add", y.set_dim([4, 10, 6]).set_stride([60, 6, 1]), b.input((4, 10, 6)))).set_stride([60, 6, 1]))


@pattern("binary")
def transpose_bias(b):
    y = b.node("transpose", lambda v: v.transpose(0, 2, 1), b.input((4, 5, 12)), [0, 2, 1])
    b.output(b.binary("bias", y, b.input((1, 1, 5))).set_stride([60, 5, 1]))


@pattern("transpose")
def slice_with_steps(b):
    b.output(b.node("slice", lambda v: v[1:3, ::2], b.input((4, 5, 12)), (slice(1, 3), slice(None, None, 2), slice(None))))


@pattern()
def reduction_amax_cast(b):
    x = b.input((4, 5, 12), T.FLOAT)
    total = b.node("reduction", lambda v: v.sum(2, keepdims=True), x, cudnn.reduction_mode.ADD).set_dim([4, 5, 1]).set_stride([5, 1, 1])
    top = b.node("reduction", lambda v: np.abs(v).max(keepdims=True), total, cudnn.reduction_mode.AMAX)
    b.output(top.set_dim([1, 1, 1]).set_stride([1, 1, 1]), dtype=T.FLOAT)
    b.output(b.node("identity", np.asarray, total), dtype=T.HALF)


@pattern("fused_pointwise")
def comparisons_and(b):
    x, y = b.input((4, 5, 12)), b.input((4, 5, 12))
    first, second = b.node("cmp_gt", np.greater, x, y), b.node("cmp_lt", np.less, x, b.number(0.5, 3))
    for t in (first, second):
        t.set_data_type(T.BOOLEAN)
    b.output(b.node("logical_and", np.logical_and, first, second), dtype=T.BOOLEAN)


@pattern("fused_pointwise")
def scalars(b):
    constant = b.graph.tensor_scalar(0.25, cudnn.scalar_type.COMPILE_TIME_CONST)
    b.values[constant] = np.float64(0.25)
    b.output(b.binary("mul", b.binary("add", b.input((4, 5, 12)), b.number(0.5, 3)), constant))


@pattern("avg_pool_fwd")
def average_pooling(b):
    mode, padding = cudnn.resampling_mode.AVGPOOL_INCLUDE_PADDING, cudnn.padding_mode.ZERO_PAD
    y, _ = b.graph.resample(x := image(b), mode, padding, [2, 2], [2, 2])
    b.values[y] = b.values[x][:, :, :, :4].reshape(3, 8, 2, 2, 2, 2).mean((3, 5))
    b.output(y)


@pattern("max_pool_fwd")
def max_pooling_with_indices(b):
    y, index = b.graph.resample(x := image(b), cudnn.resampling_mode.MAXPOOL, cudnn.padding_mode.NEG_INF_PAD, [2, 2], [2, 2],
                                generate_index=True)
    blocks = b.values[x][:, :, :, :4].reshape(3, 8, 2, 2, 2, 2).transpose(0, 1, 2, 4, 3, 5).reshape(3, 8, 2, 2, 4)
    best, (i, j) = blocks.argmax(-1), np.mgrid[:2, :2]
    b.known((y, index), (blocks.max(-1), (2 * i + best // 2) * 5 + 2 * j + best % 2))
    b.output(y)
    b.output(index)


@pytest.mark.parametrize("name", PATTERNS)
def test_pattern(name):
    function, steps, launches, io = PATTERNS[name]
    both = Both(io)
    function(both)
    both.check(steps, launches)

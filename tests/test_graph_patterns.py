"""The fused graphs of cuDNN's samples: values against float64, and in how many steps they run.

Each pattern is written once, by `Both`: as nodes of a graph and as NumPy arrays of float64.
"""
import numpy as np
import pytest
from graph_patterns import Patterns, image
from graphs import T, channels_last

import dnnkern.graph as cudnn

pattern = Patterns()


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


@pattern("conv_fwd", launches=2)
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


def dbn_weight_of(b, dz):
    """All results of `dbn_weight`, of a gradient and another image."""
    x, mean, rstd, scale = image(b), b.weight(8), b.weight(8, low=0.5), b.weight(8)
    found = b.graph.dbn_weight(dz, x, mean, rstd, scale, name="dbn")
    d, v, m, r, s = (b.values[t] for t in (dz, x, mean, rstd, scale))
    dscale, dbias, count = (d * (v - m) * r).sum((0, 2, 3), keepdims=True), d.sum((0, 2, 3), keepdims=True), d.size // d.shape[1]
    eq_x = -s * r * dscale * r / count
    return b.known(found, (dscale, dbias, s * r, eq_x, -(s * r * dbias / count + eq_x * m)))


def drelu_of_dgrad(b):
    return b.rounded(b.node("relu_backward", lambda d, v: d * (v > 0), dgrad(b), image(b)))


@pattern("conv_bwd_data", launches=2)
def conv_dgrad_drelu_dbn_weight(b):
    """The sums are the convolution's kernel's, of what it stores."""
    dz = drelu_of_dgrad(b)
    b.output(dz, *dbn_weight_of(b, dz)[:2])


@pattern("conv_bwd_data", "fused_pointwise", launches=3)
def conv_dgrad_drelu_dbn_weight_and_what_follows_from_its_sums(b):
    """One small kernel more; the gradient itself is nobody's."""
    b.output(*dbn_weight_of(b, drelu_of_dgrad(b)))


@pattern("conv_bwd_data", "fused_pointwise", launches=3)
def conv_dgrad_dbn_weight_of_coefficients_alone(b):
    b.output(*dbn_weight_of(b, b.rounded(dgrad(b)))[2:])


@pattern("fused_pointwise", "conv_bwd_filter")
def scale_bias_relu_wgrad(b):
    x = b.rounded(b.relu(b.binary("bias", b.binary("scale", image(b), b.weight(8)), b.weight(8))))

    def gradient(v, d):
        v = np.pad(v, ((0, 0), (0, 0), (1, 1), (1, 1)))
        return np.einsum("nchwrs,nkrs->kchw", np.lib.stride_tricks.sliding_window_view(v, (4, 5), (2, 3)), d)
    dw = b.node("conv_wgrad", gradient, x, b.input((3, 6, 4, 5), order=channels_last), padding=[1, 1], stride=[1, 1], dilation=[1, 1])
    b.output(dw.set_dim([6, 8, 3, 3]).set_stride([72, 1, 24, 8]), dtype=T.FLOAT)


# ---- products

@pattern("matmul")
def matmul_of_absolute_values(b):
    a = b.node("abs", np.abs, b.input((2, 6, 16))).set_data_type(T.HALF)
    b.output(b.node("matmul", np.matmul, a, b.input((2, 16, 8), low=-0.25, high=0.25)))


@pattern("matmul")
def matmul_scale_bias_relu(b):
    y = b.node("matmul", np.matmul, b.input((2, 6, 16)), b.input((2, 16, 8), low=-0.25, high=0.25))
    b.output(b.relu(b.binary("bias", b.binary("scale", y, b.input((1, 1, 8))), b.input((1, 1, 8)))))


@pattern("matmul", io=T.BFLOAT16)
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


@pytest.mark.parametrize("name", pattern)
def test_pattern(name):
    pattern.check(name)

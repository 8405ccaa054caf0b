"""The fused graphs of cuDNN's samples whose anchor is a normalization or a softmax; as `test_graph_patterns`."""
import numpy as np
import pytest
from graph_patterns import EPSILON, TRAINING, Patterns, image
from graphs import T, channels_last

import dnnkern.graph as cudnn

pattern = Patterns()


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


@pattern("batch_norm_train_fwd", "fused_pointwise", launches=2, io=T.FLOAT)
def batchnorm_of_floats_to_half(b):
    """Of so few pixels each is one launch, and faster than three of one kernel with the program."""
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


@pattern("layer_norm_fwd", launches=1)
def layernorm_with_zero_centred_gamma(b):
    one = b.graph.tensor_scalar(1.0, cudnn.scalar_type.COMPILE_TIME_CONST)
    b.values[one] = np.ones(())
    y, *_ = b.rows("layernorm", b.input((6, 40, 1, 1)), b.binary("add", b.weight(40), one), b.weight(40))
    b.output(y)


def adaptive(b, shape=(3, 5, 16)):
    n, _, c = shape
    x, scale, bias = (b.input(dim) for dim in (shape, (n, 1, c), (n, 1, c)))
    epsilon, v = b.number(EPSILON), b.values[x]
    mean, var = v.mean(2, keepdims=True), v.var(2, keepdims=True)
    y, *_ = b.known(b.graph.adalayernorm(TRAINING, x, scale, bias, epsilon),
                    ((v - mean) / np.sqrt(var + b.values[epsilon].item()) * b.values[scale] + b.values[bias], mean, var))
    return y


@pattern("rms_norm_fwd", launches=1)
def rmsnorm_with_zero_centred_gamma_of_half_then_swish(b):
    """1 + gamma is rounded to half before it is used; elements past a multiple of 16 bytes."""
    gamma = b.rounded(b.binary("add", b.weight(37), b.number(1.0)))
    y, _ = b.rows("rmsnorm", b.input((6, 37, 1, 1)), gamma)
    b.output(b.swish(y))


@pattern("layer_norm_fwd", launches=1)
def layernorm_whose_bias_is_made(b):
    """The scale stays the kernel's own."""
    y, *_ = b.rows("layernorm", b.input((6, 40, 1, 1)), b.weight(40, io=T.HALF), b.binary("mul", b.weight(40), b.weight(40)))
    b.output(y)


@pattern("layer_norm_fwd", launches=1)
def adaptive_layernorm(b):
    b.output(adaptive(b))


@pattern("layer_norm_fwd", launches=1)
def adaptive_layernorm_of_odd_rows_then_gate(b):
    """Scales of samples, a gate of samples and a residual, along two dimensions of rows; edges of 16 bytes."""
    y = adaptive(b, (2, 7, 37))
    b.output(b.binary("add", b.binary("mul", y, b.input((2, 1, 37))), b.input((2, 7, 37))))


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


def _gradient(b, dy, x, scale=None, mean=None, rstd=None):
    """batchnorm_backward of a gradient that other nodes make, and its results."""
    scale, mean, rstd = scale or b.weight(8), mean or b.weight(8), rstd or b.weight(8, low=0.5)
    d, v, m, r, s = (b.values[t] for t in (dy, x, mean, rstd, scale))
    n, g, axes = (v - m) * r, d * s, (0, 2, 3)
    results = b.known(b.graph.batchnorm_backward(dy, x, scale, mean, rstd), (
        r * (g - g.mean(axes, keepdims=True) - n * (g * n).mean(axes, keepdims=True)), (d * n).sum(axes, keepdims=True),
        d.sum(axes, keepdims=True)))
    b.output(results[0])
    b.output(*results[1:], dtype=T.FLOAT)
    return results


def _mask(b, order=channels_last):
    return b.given(order(b.random.random((3, 8, 4, 5)) < 0.5))


@pattern("batch_norm_bwd", launches=3)
def batchnorm_gradient_behind_relu_and_add(b):
    """The gradient past relu, by its mask, which is the other branch's as well: stored by the pass that gives DX."""
    other = b.rounded(b.binary("mul", image(b), _mask(b)))
    _gradient(b, other, image(b))
    b.output(other)


@pattern("batch_norm_bwd", launches=3)
def batchnorm_gradient_behind_a_mask_of_planes(b):
    other = b.rounded(b.binary("mul", _mask(b, np.asarray), image(b, np.asarray)))
    _gradient(b, other, image(b, np.asarray))
    b.output(other)


@pattern("batch_norm_bwd", launches=3)
def batchnorm_gradient_behind_relu_of_its_result(b):
    """relu's gradient by its result is the kernel's own."""
    dy, y = image(b), b.given(np.maximum(b.values[image(b)], 0).astype(np.float16))
    other = b.node("relu_backward", lambda d, v: d * (v > 0), dy, y)
    other.set_data_type(T.HALF)
    _gradient(b, other, image(b))
    b.output(other)


@pattern("batch_norm_bwd", launches=3)
def batchnorm_gradient_behind_gradients_and_relu_computed_anew(b):
    """What relu was of is computed anew from the same arrays; what the sums are of is not rounded."""
    x, mean, rstd, scale, bias = image(b), b.weight(8), b.weight(8, low=0.5), b.weight(8), b.weight(8)
    y = b.node("batchnorm_inference", lambda x, m, r, s, c: (x - m) * r * s + c, x, mean, rstd, scale, bias)
    total = b.binary("add", b.binary("mul", image(b), b.number(0.5)), image(b))
    _gradient(b, b.node("relu_backward", lambda d, v: d * (v > 0), total, y), x, scale, mean, rstd)


@pattern("fused_pointwise", "batch_norm_bwd", launches=4)
def batchnorm_gradient_behind_what_is_needed_before_it(b):
    """The sum in front of the mask is a result: a kernel of its own makes both."""
    total = b.rounded(b.binary("add", image(b), image(b)))
    _gradient(b, b.rounded(b.binary("mul", total, _mask(b))), image(b))
    b.output(total)


@pattern("group_norm_bwd", launches=4)
def instancenorm_gradient_behind_swish(b):
    x, dy, z = image(b), image(b), image(b)
    mean, rstd, scale = b.input((3, 8, 1, 1), T.FLOAT), b.input((3, 8, 1, 1), T.FLOAT, low=0.5), b.weight(8)

    def slope(d, v):
        s = 1 / (1 + np.exp(-v))
        return d * (s + v * s * (1 - s))
    past = b.node("swish_backward", slope, dy, z)
    d, v, m, r, s = (b.values[t] for t in (past, x, mean, rstd, scale))
    n, g, axes = (v - m) * r, d * s, (2, 3)
    results = b.known(b.graph.instancenorm_backward(past, x, scale, mean, rstd), (
        r * (g - g.mean(axes, keepdims=True) - n * (g * n).mean(axes, keepdims=True)), (d * n).sum((0, 2, 3), keepdims=True),
        d.sum((0, 2, 3), keepdims=True)))
    b.output(results[0])
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


@pattern("rms_norm_fwd", launches=1)
def rmsnorm_scaled_to_fp8(b):
    y, _ = b.rows("rmsnorm", b.input((6, 40, 1, 1)), b.weight(40, io=T.HALF))
    b.output(b.binary("mul", y, b.number(4.0)), dtype=T.FP8_E4M3)


@pattern("layer_norm_fwd", launches=1)
def layernorm_add_and_its_sum_scaled_to_fp8(b):
    y, *_ = b.rows("layernorm", b.input((6, 40, 1, 1)), b.weight(40), b.weight(40))
    total = b.rounded(b.binary("add", y, b.input((6, 40, 1, 1))))
    b.output(total)
    b.output(b.binary("mul", total, b.number(0.5)), dtype=T.FP8_E4M3)


@pytest.mark.parametrize("name", pattern)
def test_pattern(name):
    pattern.check(name)

"""The fused graphs of cuDNN's samples: values against float64, and in how many steps they run.

Each pattern is written once, by `Both`: as nodes of a graph and as NumPy arrays of float64.
"""
import numpy as np
import pytest
from graphs import DTYPE, T, array_of, channels_last, execute, like, new_graph

import dnnkern.graph as cudnn
from dnnkern.host.dtypes import ROUNDOFF, numpy_dtype

TRAINING = cudnn.norm_forward_phase.TRAINING
EPSILON = 1e-3


class Both:
    """A graph, and the float64 values of its tensors: {tensor: array}."""

    def __init__(self, io=T.HALF, intermediate=T.FLOAT):
        self.graph, self.io, self.random = new_graph(io, intermediate), io, np.random.default_rng(7)
        self.pack, self.values, self.results = {}, {}, []

    def input(self, shape, io=None, order=np.asarray, low=-1.0, high=1.0):
        """A tensor of random values; integers are from -8 to 8."""
        dtype = numpy_dtype(DTYPE[io or self.io])
        values = self.random.integers(-8, 9, shape) if dtype.kind in "iu" else self.random.uniform(low, high, shape)
        return self.given(order(values.astype(dtype)))

    def given(self, array):
        t = like(self.graph, array)
        self.pack[t], self.values[t] = array, array.astype(float)
        return t

    def weight(self, channels, rank=4, low=-1.0, high=1.0, io=T.FLOAT):
        """(1, C, 1, ..)"""
        return self.input((1, channels, *(1,) * (rank - 2)), io, low=low, high=high)

    def number(self, value):
        t = self.graph.tensor([1, 1, 1, 1], [1, 1, 1, 1], T.FLOAT, is_pass_by_value=True)
        self.pack[t], self.values[t] = np.full((1, 1, 1, 1), value, np.float32), np.float64(np.float32(value))
        return t

    def node(self, method, value, *operands, **more):
        """One node with one result, and its value: a function of those of the operands."""
        t = getattr(self.graph, method)(*operands, **more)
        self.values[t] = value(*[self.values[o] for o in operands if o is not None])
        return t

    def known(self, tensors, values):
        """Results of a node with several."""
        self.values.update((t, np.asarray(v, float)) for t, v in zip(tensors, values) if t is not None)
        return tensors

    def output(self, *tensors, dtype=None):
        for t in tensors:
            t.set_output(True)
            if dtype is not None:
                t.set_data_type(dtype)
            self.results.append(t)

    # ---- functions

    def relu(self, x):
        return self.node("relu", lambda v: np.maximum(v, 0), x)

    def swish(self, x):
        return self.node("swish", lambda v: v / (1 + np.exp(-v)), x)

    def binary(self, name, a, b):
        return self.node(name, {"add": np.add, "mul": np.multiply, "sub": np.subtract, "bias": np.add, "scale": np.multiply}[name], a, b)

    # ---- normalizations

    def batchnorm(self, x, scale, bias, running=()):
        axes, v = (0, *range(2, self.values[x].ndim)), self.values[x]
        mean, var = v.mean(axes, keepdims=True), v.var(axes, keepdims=True)
        epsilon, momentum = self.number(EPSILON), self.number(0.25) if running else None
        outs = self.graph.batchnorm(x, scale, bias, *(running or (None, None)), epsilon, momentum)
        rstd, count = 1 / np.sqrt(var + self.values[epsilon]), v.size // v.shape[1]
        moved = [0.75 * self.values[t] + 0.25 * new for t, new in zip(running, (mean, var * count / (count - 1)))]
        return self.known(outs, ((v - mean) * rstd * self.values[scale] + self.values[bias], mean, rstd, *moved))

    def rows(self, method, x, scale, bias=None):
        """Layer or RMS normalization of (N, C, 1, 1), training."""
        v = self.values[x]
        mean = v.mean(1, keepdims=True) if method != "rmsnorm" else 0.0
        epsilon = self.number(EPSILON)
        rstd = 1 / np.sqrt(((v - mean) ** 2).mean(1, keepdims=True) + self.values[epsilon])
        outs = getattr(self.graph, method)(TRAINING, x, scale, bias, epsilon)
        y = (v - mean) * rstd * self.values[scale] + (0 if bias is None else self.values[bias])
        return self.known(outs, (y, mean, rstd) if method != "rmsnorm" else (y, rstd))

    # ---- running

    def check(self, steps=None, launches=None, factor=4.0):
        """Build and run it; results are within roundings of their types. `steps` are the operations of the plan's steps."""
        self.graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        ops = [part.op for part in self.graph.explain().parts]
        assert steps is None or ops == steps, str(self.graph.explain())
        if launches is not None:
            assert count_launches(self.graph) == launches, str(self.graph.explain())
        arrays = {t: array_of(t) for t in self.results}
        execute(self.graph, {**self.pack, **arrays})
        for t, got in arrays.items():
            want = self.values[t]
            bound = factor * max(ROUNDOFF.get(got.dtype.name, 0), 2.0 ** -24 * 16) * max(np.abs(want).max(), 1e-3)
            worst = np.abs(got.astype(float) - want).max()
            assert got.shape == want.shape and worst <= bound, (t.get_name(), worst, bound)


def count_launches(graph):
    """Kernels of the plan that runs."""
    plan = graph._engines.first()
    return sum(len(a.build(step.problem, plan.device, a.config)) for step, a in zip(plan.steps, plan.algorithms) if a)


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


@pattern("batch_norm_train_fwd", "fused_pointwise", launches=4)
def batchnorm_whose_result_is_an_output_too(b):
    y, *_ = b.batchnorm(image(b), b.weight(8), b.weight(8))
    b.output(y)
    b.output(b.relu(b.binary("mul", y, image(b))))


@pattern("batch_norm_train_fwd", launches=3, io=T.FLOAT)
def batchnorm_of_floats_to_half(b):
    y, *_ = b.batchnorm(image(b), b.weight(8), b.weight(8))
    b.output(b.swish(y), dtype=T.HALF)


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


@pattern("rms_norm_fwd", "fused_pointwise", launches=2)
def rmsnorm_swish_mul(b):
    y, _ = b.rows("rmsnorm", b.input((6, 40, 1, 1)), b.weight(40, io=T.HALF))
    b.output(b.binary("mul", b.swish(y), b.input((6, 40, 1, 1))))


@pattern("layer_norm_fwd", launches=1)
def layernorm_with_weights_of_another_type(b):
    y, *statistics = b.rows("layernorm", b.input((6, 40, 1, 1), T.FLOAT), b.weight(40, io=T.HALF), b.weight(40, io=T.HALF))
    b.output(y, dtype=T.BFLOAT16)
    b.output(*statistics, dtype=T.FLOAT)


@pattern("fused_pointwise", "layer_norm_fwd", "fused_pointwise", launches=3)
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


@pytest.mark.parametrize("name", PATTERNS)
def test_pattern(name):
    function, steps, launches, io = PATTERNS[name]
    both = Both(io)
    function(both)
    both.check(steps, launches)

"""Normalizations of graphs and their gradients: values against float64, inference, refusals."""
import numpy as np
import pytest
from graphs import DTYPE, T, channels_last, close, like, new_graph, run

import dnnkern.graph as cudnn
from dnnkern.host.dtypes import numpy_dtype

TRAINING, INFERENCE = cudnn.norm_forward_phase.TRAINING, cudnn.norm_forward_phase.INFERENCE
EPSILON = 1e-3


def draw(shape, seed, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def number(graph, value):
    """A tensor passed by value, and its number for the pack."""
    t = graph.tensor([1, 1, 1, 1], [1, 1, 1, 1], T.FLOAT, is_pass_by_value=True)
    return t, np.full((1, 1, 1, 1), value, np.float32)


class Case:
    """x of these dims with weights and statistics over axes; references in float64."""

    def __init__(self, dim, axes, weight, io=T.FLOAT, order=np.asarray, rms=False):
        dtype = numpy_dtype(DTYPE[io])
        self.x, self.dy = (order(draw(dim, k).astype(dtype)) for k in (1, 2))
        self.scale, self.bias = draw(weight, 3) + np.float32(1), draw(weight, 4)
        self.axes, x = axes, self.x.astype(float)
        self.mean = x.mean(axes, keepdims=True) * (not rms)
        self.var = ((x - self.mean) ** 2).mean(axes, keepdims=True)
        self.rstd = 1 / np.sqrt(self.var + EPSILON)
        self.hat = (x - self.mean) * self.rstd
        self.y = self.hat * self.scale + self.bias
        g, self.rms = self.dy.astype(float) * self.scale, rms
        shift = 0 if rms else g.mean(axes, keepdims=True)
        self.dx = self.rstd * (g - shift - self.hat * (g * self.hat).mean(axes, keepdims=True))
        self.others = tuple(k for k, (n, m) in enumerate(zip(dim, weight)) if m == 1)
        self.dscale = (self.dy.astype(float) * self.hat).sum(self.others, keepdims=True)
        self.dbias = self.dy.astype(float).sum(self.others, keepdims=True)


ROWS = {"matrix": ((6, 40, 1, 1), (1,), (1, 40, 1, 1)), "tokens": ((2, 5, 24), (2,), (1, 1, 24)),
        "images": ((3, 4, 2, 5), (1, 2, 3), (1, 4, 2, 5))}


@pytest.mark.parametrize("io", [T.FLOAT, T.BFLOAT16])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("method", ["layernorm", "rmsnorm"])
def test_rows(method, rows, io):
    c, rms = Case(*ROWS[rows], io=io, rms=method == "rmsnorm"), method == "rmsnorm"
    graph = new_graph(io)
    x, dy, scale, bias = (like(graph, array) for array in (c.x, c.dy, c.scale, c.bias))
    epsilon, value = number(graph, EPSILON)
    y, *statistics = getattr(graph, method)(norm_forward_phase=TRAINING, input=x, scale=scale, bias=bias, epsilon=epsilon)
    for t in (y, *statistics):
        t.set_output(True)
    for t in statistics:
        t.set_data_type(T.FLOAT)
    if rms:
        results = graph.rmsnorm_backward(dy, x, scale, statistics[-1], has_dbias=True)
    else:
        results = graph.layernorm_backward(dy, x, scale, *statistics)
    for t in results[1:]:
        t.set_data_type(T.FLOAT)
    for t in results:
        t.set_output(True)
    got = run(graph, {x: c.x, dy: c.dy, scale: c.scale, bias: c.bias, epsilon: value}, [y, *statistics, *results])
    assert statistics[-1].get_dim() == list(c.rstd.shape) and results[1].get_dim() == list(c.scale.shape)
    close(got[0], c.y, scale=np.maximum(np.abs(c.y), 4))
    close(got[-4], c.rstd, factor=16)
    if not rms:
        close(got[1], c.mean, factor=16, scale=1)
    for have, want in zip(got[-3:], (c.dx, c.dscale, c.dbias)):
        close(have, want, factor=16, scale=10)


def test_inference_returns_no_statistics():
    c = Case(*ROWS["matrix"])
    graph = new_graph()
    x, scale, bias = (like(graph, array) for array in (c.x, c.scale, c.bias))
    epsilon, value = number(graph, EPSILON)
    y, mean, rstd = graph.layernorm(INFERENCE, x, scale, bias, epsilon)
    z, nothing = graph.rmsnorm(INFERENCE, x, scale, epsilon=epsilon)
    assert mean is rstd is nothing is None
    y.set_output(True), z.set_output(True)
    got = run(graph, {x: c.x, scale: c.scale, bias: c.bias, epsilon: value}, [y, z])
    close(got[0], c.y, scale=np.maximum(np.abs(c.y), 4))
    close(got[1], c.x.astype(float) / np.sqrt((c.x.astype(float) ** 2).mean(1, keepdims=True) + EPSILON) * c.scale, scale=4)


def test_adaptive_layer_norm():
    c = Case((3, 5, 16), (2,), (3, 1, 16))
    graph = new_graph()
    x, dy, scale, bias = (like(graph, array) for array in (c.x, c.dy, c.scale, c.bias))
    epsilon, value = number(graph, EPSILON)
    y, mean, rstd = graph.adalayernorm(TRAINING, x, scale, bias, epsilon)
    results = graph.adalayernorm_backward(dy, x, scale, mean, rstd)
    for t in (y, mean, rstd, *results):
        t.set_output(True)
    got = run(graph, {x: c.x, dy: c.dy, scale: c.scale, bias: c.bias, epsilon: value}, [y, mean, rstd, *results])
    assert mean.get_dim() == [3, 5, 1] and results[1].get_dim() == [3, 1, 16]
    for have, want in zip(got, (c.y, c.mean, c.rstd, c.dx, c.dscale, c.dbias)):
        close(have, want, factor=16, scale=10)


@pytest.mark.parametrize("io, order", [(T.FLOAT, np.asarray), (T.HALF, channels_last)])
def test_instance_norm(io, order):
    c = Case((2, 6, 4, 5), (2, 3), (1, 6, 1, 1), io, order)
    graph = new_graph(io)
    x, dy, scale, bias = (like(graph, array) for array in (c.x, c.dy, c.scale, c.bias))
    epsilon, value = number(graph, EPSILON)
    y, mean, rstd = graph.instancenorm(TRAINING, x, scale, bias, epsilon)
    for t in (mean, rstd):
        t.set_output(True).set_data_type(T.FLOAT)
    results = graph.instancenorm_backward(dy, x, scale, mean, rstd)
    for t in (y.set_output(True), *results):
        t.set_output(True)
    got = run(graph, {x: c.x, dy: c.dy, scale: c.scale, bias: c.bias, epsilon: value}, [y, mean, rstd, *results])
    assert mean.get_dim() == [2, 6, 1, 1] and y.get_stride() == x.get_stride()
    for have, want, size in zip(got, (c.y, c.mean, c.rstd, c.dx, c.dscale, c.dbias), (4, 1, 4, 10, 10, 20)):
        close(have, want, factor=16, scale=size)


def test_group_norm():
    x, dy, scale, bias = draw((2, 6, 3, 3), 1), draw((2, 6, 3, 3), 2), draw((1, 6, 1, 1), 3), draw((1, 6, 1, 1), 4)
    graph = new_graph()
    tx, tdy, ts, tb = (like(graph, array) for array in (x, dy, scale, bias))
    epsilon, value = number(graph, EPSILON)
    y, mean, rstd = graph.groupnorm(TRAINING, tx, ts, tb, epsilon, num_groups=2)
    results = graph.groupnorm_backward(tdy, tx, ts, mean, rstd, 2)
    for t in (y, *results):
        t.set_output(True)
    got = run(graph, {tx: x, tdy: dy, ts: scale, tb: bias, epsilon: value}, [y, *results])
    g = x.astype(float).reshape(2, 2, -1)
    r = 1 / np.sqrt(g.var(-1, keepdims=True) + EPSILON)
    hat = ((g - g.mean(-1, keepdims=True)) * r)
    d = (dy.astype(float) * scale).reshape(2, 2, -1)
    dx = r * (d - d.mean(-1, keepdims=True) - hat * (d * hat).mean(-1, keepdims=True))
    hat = hat.reshape(x.shape)
    for have, want in zip(got, (hat * scale + bias, dx.reshape(x.shape), (dy * hat).sum((0, 2, 3), keepdims=True),
                                dy.astype(float).sum((0, 2, 3), keepdims=True))):
        close(have, want, factor=16, scale=10)


@pytest.mark.parametrize("order", [np.asarray, channels_last])
def test_batch_norm(order):
    """Training moves the running statistics, whose variance is of n - 1; they may be the same memory before and after."""
    c = Case((3, 4, 5, 2), (0, 2, 3), (1, 4, 1, 1), order=order)
    before_mean, before_var = draw((1, 4, 1, 1), 5), np.abs(draw((1, 4, 1, 1), 6)) + np.float32(1)
    graph = new_graph()
    x, dy, scale, bias, rm, rv = (like(graph, array) for array in (c.x, c.dy, c.scale, c.bias, before_mean, before_var))
    (epsilon, value), (momentum, weight) = number(graph, EPSILON), number(graph, 0.25)
    outs = graph.batchnorm(x, scale, bias, rm, rv, epsilon, momentum)
    results = graph.batchnorm_backward(dy, x, scale, outs[1], outs[2])
    for t in (*outs, *results):
        t.set_output(True)
    pack = {x: c.x, dy: c.dy, scale: c.scale, bias: c.bias, rm: before_mean, rv: before_var, epsilon: value, momentum: weight}
    got = run(graph, pack, [*outs, *results])
    count = c.x.size // 4
    expected = (c.y, c.mean, c.rstd, 0.75 * before_mean + 0.25 * c.mean, 0.75 * before_var + 0.25 * c.var * count / (count - 1),
                c.dx, c.dscale, c.dbias)
    for have, want in zip(got, expected):
        close(have, want, factor=16, scale=4)
    from graphs import array_of, execute
    arrays = {t: array_of(t) for t in (*outs, *results)}
    arrays[outs[3]], arrays[outs[4]] = pack[rm], pack[rv]
    execute(graph, {**pack, **arrays})
    close(before_mean, expected[3], factor=16, scale=4)
    close(before_var, expected[4], factor=16, scale=4)


def test_batch_norm_inference_and_without_running_statistics():
    c = Case((3, 4, 5, 2), (0, 2, 3), (1, 4, 1, 1), T.HALF)
    mean, rstd = c.mean.astype(np.float32), c.rstd.astype(np.float32)
    graph = new_graph(T.HALF)
    x, scale, bias, tm, tr = (like(graph, array) for array in (c.x, c.scale, c.bias, mean, rstd))
    epsilon, value = number(graph, EPSILON)
    y = graph.batchnorm_inference(x, tm, tr, scale, bias).set_output(True)
    trained, _, _, running, variance = graph.batchnorm(x, scale, bias, epsilon=epsilon)
    assert running is variance is None
    trained.set_output(True)
    got = run(graph, {x: c.x, scale: c.scale, bias: c.bias, tm: mean, tr: rstd, epsilon: value}, [y, trained])
    close(got[0], c.y, scale=np.maximum(np.abs(c.y), 4))
    close(got[1], c.y, scale=4)


def test_an_intermediate_float_result_is_not_rounded_to_the_input_type():
    c = Case(*ROWS["matrix"], io=T.HALF)
    graph = new_graph(T.HALF)
    x, scale, bias = (like(graph, array) for array in (c.x, c.scale, c.bias))
    epsilon, value = number(graph, EPSILON)
    y, _, _ = graph.layernorm(INFERENCE, x, scale, bias, epsilon)
    z = graph.identity(y).set_output(True).set_data_type(T.FLOAT)
    got, = run(graph, {x: c.x, scale: c.scale, bias: c.bias, epsilon: value}, [z])
    close(got, c.y, factor=16, scale=4)


def test_trap_11_strides_of_extent_1_are_noise():
    c = Case(*ROWS["matrix"])
    graph = new_graph()
    x = graph.tensor([6, 40, 1, 1], [40, 1, 7, 99])
    scale, bias = (graph.tensor([1, 40, 1, 1], [3, 1, 1, 5]) for _ in range(2))
    epsilon, value = number(graph, EPSILON)
    y = graph.layernorm(INFERENCE, x, scale, bias, epsilon)[0].set_output(True).set_stride([40, 1, 1, 1])
    got, = run(graph, {x: c.x, scale: c.scale, bias: c.bias, epsilon: value}, [y])
    close(got, c.y, scale=4)


def test_trap_12_variances_are_of_all_values():
    x = np.array([[0, 0, 2, 2]], np.float32).reshape(1, 4, 1, 1)
    graph = new_graph()
    tx = graph.tensor([1, 4, 1, 1], [4, 1, 1, 1])
    ones = graph.tensor([1, 4, 1, 1], [4, 1, 1, 1])
    epsilon, value = number(graph, 0)
    y, mean, rstd = graph.layernorm(TRAINING, tx, ones, ones, epsilon)
    y.set_output(True), rstd.set_output(True)
    got = run(graph, {tx: x, ones: np.ones_like(x), epsilon: value}, [y, rstd])
    assert got[1].item() == 1.0


def test_refusals():
    graph = new_graph()
    x, scale = graph.tensor([2, 8, 3, 3], [72, 1, 24, 8]), graph.tensor([1, 4, 1, 1], [4, 1, 1, 1], name="scale")
    epsilon, _ = number(graph, EPSILON)
    for make, message in (
            (lambda: graph.layernorm(TRAINING, x, scale, scale, epsilon), "port SCALE.*'scale'.*1 or X's"),
            (lambda: graph.batchnorm(x, scale, scale, epsilon=epsilon), r"port SCALE.*expected \(1, 8, 1, 1\)"),
            (lambda: graph.groupnorm(TRAINING, x, None, None, epsilon, 3), "a multiple of 3 groups"),
            (lambda: graph.instancenorm_backward(x, x, None), "without MEAN and INV_VARIANCE"),
            (lambda: graph.batchnorm(x, None, None, epsilon=epsilon, peer_stats=[scale]), "peer_stats")):
        graph.nodes.clear()
        make()[0].set_output(True)
        with pytest.raises((ValueError, RuntimeError), match=message):
            graph.validate()
    with pytest.raises(RuntimeError, match="in_running_mean, in_running_var and momentum together"):
        graph.batchnorm(x, scale, scale, scale, None, epsilon)
    with pytest.raises(RuntimeError, match="NOT_SET; expected INFERENCE or TRAINING"):
        graph.layernorm(cudnn.norm_forward_phase.NOT_SET, x, scale, scale, epsilon)
    graph.nodes.clear()
    z = graph.tensor([1, 8, 3, 3], [72, 1, 24, 8])
    graph.layernorm(TRAINING, z, graph.tensor([1, 8, 1, 1], [8, 1, 1, 1]), None, graph.tensor([1], [1], name="eps"))[0].set_output(True)
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="port EPSILON.*'eps'.*on the device.*passed by value"):
        graph.build([cudnn.heur_mode.A])

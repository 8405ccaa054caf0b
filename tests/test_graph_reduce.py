"""Reductions, statistics of channels and softmax of graphs: values, inference, refusals."""
import numpy as np
import pytest
from graphs import T, channels_last, close, like, new_graph, run

import dnnkern.graph as cudnn

M = cudnn.reduction_mode
REFERENCE = {"ADD": np.sum, "MUL": np.prod, "MIN": np.min, "MAX": np.max, "AVG": np.mean,
             "AMAX": lambda x, axes, keepdims: np.abs(x).max(axes, keepdims=keepdims),
             "NORM1": lambda x, axes, keepdims: np.abs(x).sum(axes, keepdims=keepdims),
             "NORM2": lambda x, axes, keepdims: np.sqrt((x * x).sum(axes, keepdims=keepdims)),
             "MUL_NO_ZEROS": lambda x, axes, keepdims: np.where(x == 0, 1, x).prod(axes, keepdims=keepdims)}


def draw(shape, seed, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("mode", REFERENCE)
def test_modes(mode):
    x = draw((2, 5, 3, 4), 1)
    x[0, 0] = 0
    graph = new_graph()
    t = like(graph, x)
    y = graph.reduction(input=t, mode=M[mode]).set_output(True).set_dim([2, 1, 1, 4])
    got, = run(graph, {t: x}, [y])
    assert y.get_stride() == [4, 1, 4, 1] and y.get_data_type() is T.FLOAT
    close(got, REFERENCE[mode](x.astype(float), (1, 2), keepdims=True), factor=16, scale=10)


@pytest.mark.parametrize("io, out", [(T.HALF, T.FLOAT), (T.HALF, T.HALF), (T.BFLOAT16, T.FLOAT), (T.DOUBLE, T.DOUBLE), (T.INT8, T.INT32),
                                     (T.INT8, T.FLOAT), (T.INT32, T.HALF)])
def test_types(io, out):
    from graphs import DTYPE

    from dnnkern.host.dtypes import numpy_dtype
    x = np.random.default_rng(2).integers(-5, 6, (3, 40)).astype(numpy_dtype(DTYPE[io]))
    graph = new_graph(io)
    t = like(graph, x)
    y = graph.reduction(t, M.ADD).set_output(True).set_dim([3, 1]).set_data_type(out)
    got, = run(graph, {t: x}, [y])
    np.testing.assert_array_equal(got.astype(float), x.astype(float).sum(1, keepdims=True))


def test_without_dims_nothing_is_reduced():
    """MAX of one element is itself, AMAX and the norms its absolute value."""
    x = draw((2, 3), 3)
    graph = new_graph()
    t = like(graph, x)
    results = [graph.reduction(t, mode).set_output(True) for mode in (M.MAX, M.AMAX, M.NORM1, M.NORM2)]
    got = run(graph, {t: x}, results)
    np.testing.assert_array_equal(got[0], x)
    for have in got[1:]:
        np.testing.assert_array_equal(have, np.abs(x))


def test_sums_of_halves_that_no_half_holds():
    x = np.full((1, 4096), 1, np.float16)
    x[0, 0] = 2
    graph = new_graph(T.HALF)
    t = like(graph, x)
    y = graph.reduction(t, M.ADD).set_output(True).set_dim([1, 1]).set_data_type(T.FLOAT)
    assert run(graph, {t: x}, [y])[0].item() == 4097


@pytest.mark.parametrize("order", [np.asarray, channels_last])
def test_statistics_become_a_batch_normalization(order):
    """genstats, bn_finalize, and dbn_weight with what they are for: x * eq_scale + eq_bias, dy * eq_scale_dy + x * eq_scale_x + eq_bias."""
    x, dy = order(draw((3, 4, 5, 2), 1) + 2), order(draw((3, 4, 5, 2), 2))
    scale, bias, rm, rv = (draw((1, 4, 1, 1), k) + np.float32(2) for k in (3, 4, 5, 6))
    graph = new_graph()
    tx, tdy, ts, tb, tm, tv = (like(graph, array) for array in (x, dy, scale, bias, rm, rv))
    numbers = [graph.tensor([1, 1, 1, 1], [1, 1, 1, 1], T.FLOAT, is_pass_by_value=True) for _ in range(3)]
    total, square = graph.genstats(tx)
    finalized = graph.bn_finalize(total, square, ts, tb, numbers[0], numbers[1], tm, tv, numbers[2])
    weights = graph.dbn_weight(tdy, tx, finalized[2], finalized[3], ts)
    y = graph.add(graph.mul(tx, finalized[0]), finalized[1]).set_output(True)
    dx = graph.add(graph.add(graph.mul(tdy, weights[2]), graph.mul(tx, weights[3])), weights[4]).set_output(True)
    outs = [total, square, *finalized[2:], *weights[:2], y, dx]
    for t in outs:
        t.set_output(True)
    pack = {tx: x, tdy: dy, ts: scale, tb: bias, tm: rm, tv: rv, numbers[0]: 1e-3, numbers[1]: 30.0, numbers[2]: 0.5}
    got = run(graph, pack, outs)
    f, axes = x.astype(float), (0, 2, 3)
    mean, var = f.mean(axes, keepdims=True), f.var(axes, keepdims=True)
    rstd = 1 / np.sqrt(var + 1e-3)
    hat, g = (f - mean) * rstd, dy.astype(float) * scale
    assert total.get_dim() == [1, 4, 1, 1] and total.get_data_type() is T.FLOAT
    expected = (f.sum(axes, keepdims=True), (f * f).sum(axes, keepdims=True), mean, rstd, 0.5 * rm + 0.5 * mean,
                0.5 * rv + 0.5 * var * 30 / 29, (dy * hat).sum(axes, keepdims=True), dy.astype(float).sum(axes, keepdims=True),
                hat * scale + bias, rstd * (g - g.mean(axes, keepdims=True) - hat * (g * hat).mean(axes, keepdims=True)))
    for have, want in zip(got, expected):
        close(have, want, factor=32, scale=np.maximum(np.abs(want), 10))


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("io", [T.FLOAT, T.HALF])
def test_softmax(axis, io):
    from graphs import DTYPE
    x, dy = draw((2, 7, 5), 1, DTYPE[io]), draw((2, 7, 5), 2, DTYPE[io])
    graph = new_graph(io)
    tx, tdy = like(graph, x), like(graph, dy)
    y = graph.softmax(tx, axis=axis)
    dx = graph.softmax_backward(tdy, y, axis=axis).set_output(True)
    y.set_output(True).set_data_type(T.FLOAT)
    got = run(graph, {tx: x, tdy: dy}, [y, dx])
    e = np.exp(x.astype(float) - x.astype(float).max(axis, keepdims=True))
    p = e / e.sum(axis, keepdims=True)
    close(got[0], p, factor=16, scale=1)
    close(got[1], p * (dy - (dy * p).sum(axis, keepdims=True)), factor=16, scale=1)


def test_refusals():
    graph = new_graph()
    x = graph.tensor([2, 4], [4, 1], name="x")
    graph.reduction(x, M.ADD, name="sum").set_output(True).set_dim([2, 3])
    with pytest.raises(ValueError, match=r"reduction node 'sum': port Y.*\(2, 3\).*1 or X's"):
        graph.validate()
    graph = new_graph()
    graph.softmax(graph.tensor([2, 4], [4, 1], name="x"), axis=2).set_output(True)
    with pytest.raises(ValueError, match="softmax node '0': port X.*axis 2 of 2 dims"):
        graph.validate()
    with pytest.raises(RuntimeError, match="mode is NOT_SET"):
        graph.reduction(x, M.NOT_SET)
    with pytest.raises(TypeError, match="reduction node .*: mode.*reduction_mode.ADD"):
        graph.reduction(x, "SUM")
    with pytest.raises(RuntimeError, match="together, or none"):
        graph.bn_finalize(x, x, x, x, x, x, x)

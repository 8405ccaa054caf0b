"""Reductions among pointwise nodes: softmax, norms, scaled casts and chains with sums, spelled out of nodes, as one kernel; and the same
one node a kernel."""
import numpy as np
import pytest
from graph_patterns import Patterns, image
from graphs import T, close, like, new_graph, run

import dnnkern.graph as cudnn
from dnnkern import dispatch
from dnnkern.graph import _engines, _partition

pattern, columns = Patterns(), Patterns()
MODES = {"ADD": np.sum, "AVG": np.mean, "MAX": np.max, "MIN": np.min,
         "AMAX": lambda v, axis, keepdims: np.abs(v).max(axis, keepdims=keepdims),
         "NORM2": lambda v, axis, keepdims: np.sqrt((v * v).sum(axis, keepdims=keepdims))}


def reduce(b, mode, x, *axes):
    """A reduction of a `Both`'s tensor over axes, -1 by default."""
    v = b.values[x]
    found = MODES[mode](v, axis=axes or (-1,), keepdims=True)
    y = b.graph.reduction(x, cudnn.reduction_mode[mode]).set_dim(list(found.shape)).set_stride([s // 8 for s in found.strides])
    b.values[y] = found
    return y


def one(b, name, x):
    return b.node(name, {"exp": np.exp, "rsqrt": lambda v: v ** -0.5}[name], x)


def two(b, name, x, y):
    return b.node(name, {"div": np.divide, "max": np.maximum, "sub": np.subtract, "mul": np.multiply, "add": np.add}[name], x, y)


def softmax_of(b, x, *axes):
    e = one(b, "exp", two(b, "sub", x, reduce(b, "MAX", x, *axes)))
    return two(b, "div", e, reduce(b, "ADD", e, *axes))


@pattern("fused_reduction", launches=1)
def softmax(b):
    b.output(softmax_of(b, b.input((3, 5, 72))))


@pattern("fused_reduction", launches=1, io=T.FLOAT)
def softmax_over_two_axes_of_odd_rows(b):
    b.output(softmax_of(b, b.input((4, 3, 7)), 1, 2))


@pattern("fused_reduction", launches=1)
def causal_softmax_with_its_maximum(b):
    x = b.input((2, 9, 24))
    row, column = (b.node("gen_index", lambda v, a=axis: np.indices(v.shape)[a], x, axis=axis) for axis in (1, 2))
    for t in (row, column):
        t.set_data_type(T.INT32)
    keep = b.node("cmp_ge", lambda v, w: v >= w, row, column).set_data_type(T.BOOLEAN)
    hidden = b.node("binary_select", lambda v, w, m: np.where(m, v, w), x, b.number(-1e4, 3), keep)
    top = reduce(b, "MAX", hidden)
    e = one(b, "exp", two(b, "sub", hidden, top))
    b.output(two(b, "div", e, reduce(b, "ADD", e)))
    b.output(top, dtype=T.FLOAT)


@pattern("fused_reduction", launches=1)
def rms_norm(b):
    x, gamma = b.input((6, 1, 40)), b.input((1, 1, 40), T.FLOAT)
    rstd = one(b, "rsqrt", two(b, "add", reduce(b, "AVG", two(b, "mul", x, x)), b.number(1e-3, 3)))
    b.output(two(b, "mul", two(b, "mul", x, rstd), gamma))
    b.output(rstd, dtype=T.FLOAT)


@pattern("fused_reduction", launches=1)
def layer_norm(b):
    x, gamma, beta = b.input((3, 4, 56)), b.input((1, 1, 56), T.FLOAT), b.input((1, 1, 56), T.FLOAT)
    mean = reduce(b, "AVG", x)
    d = two(b, "sub", x, mean)
    rstd = one(b, "rsqrt", two(b, "add", reduce(b, "AVG", two(b, "mul", d, d)), b.number(1e-3, 3)))
    b.output(two(b, "add", two(b, "mul", two(b, "mul", d, rstd), gamma), beta))
    b.output(mean, rstd, dtype=T.FLOAT)


@pattern("fused_reduction", launches=1, io=T.FLOAT)
def divided_by_its_norm(b):
    x = b.input((7, 2, 33))
    b.output(two(b, "div", x, reduce(b, "NORM2", x)))


@pattern("fused_reduction", launches=1, io=T.BFLOAT16)
def scaled_by_its_largest_magnitude(b):
    """Rows to a narrower type, each with its scale."""
    x = b.input((2, 8, 64))
    scale = two(b, "div", reduce(b, "AMAX", x), b.number(448.0, 3))
    b.output(two(b, "div", x, scale), dtype=T.FLOAT)
    b.output(scale, dtype=T.FLOAT)


@pattern("fused_reduction", "reduce", launches=2)
def chain_with_sums_of_rows_and_of_columns(b):
    x, y = b.input((1, 6, 24)), b.input((1, 1, 24))
    hot = b.rounded(b.relu(two(b, "add", two(b, "mul", x, y), x)))
    b.output(hot)
    b.output(reduce(b, "ADD", hot), reduce(b, "AMAX", hot), dtype=T.FLOAT)
    b.output(reduce(b, "ADD", hot, 1), dtype=T.FLOAT)


@pattern("fused_reduction", launches=1)
def operands_of_rows_and_functions_of_results(b):
    x, row = b.input((5, 3, 40)), b.input((5, 3, 1), T.FLOAT)
    scaled = two(b, "mul", x, row)
    total = two(b, "mul", reduce(b, "ADD", scaled), row)
    b.output(two(b, "sub", scaled, two(b, "max", total, b.number(0.5, 3))))


@pattern("fused_reduction", launches=1)
def two_reductions_of_one_tensor(b):
    x = b.input((9, 1, 48))
    b.output(reduce(b, "ADD", x), reduce(b, "NORM2", x), reduce(b, "MIN", x), dtype=T.FLOAT)


@pattern("fused_reduction", launches=1, io=T.FLOAT)
def halves_of_rows(b):
    """Rows that are parts of longer ones, and broadcast along the outer dims."""
    x = b.given(np.random.default_rng(1).standard_normal((4, 3, 80)).astype(np.float32)[..., 8:40])
    b.output(softmax_of(b, two(b, "add", x, b.input((1, 3, 1)))))


@pattern("fused_reduction", launches=1, io=T.BFLOAT16)
def all_of_a_tensor_scaled_by_its_largest_magnitude(b):
    x = b.input((2, 30, 40))
    top = reduce(b, "AMAX", x, 0, 1, 2)
    b.output(two(b, "div", x, top), dtype=T.FLOAT)
    b.output(top, dtype=T.FLOAT)


# columns: a launch for each level's walk, one that finishes it, and one for results that read the last level's


@columns("fused_reduction", launches=2)
def channels_last_with_their_sums(b):
    x, scale, bias, other = image(b), b.weight(8), b.weight(8), image(b)
    y = b.rounded(b.relu(two(b, "add", two(b, "add", two(b, "mul", x, scale), bias), other)))
    b.output(y)
    b.known(sums := b.graph.genstats(y), [v.sum((0, 2, 3), keepdims=True) for v in (b.values[y], b.values[y] ** 2)])
    b.output(*sums, dtype=T.FLOAT)


@columns("fused_reduction", launches=2, io=T.BFLOAT16)
def gradient_of_a_bias_behind_relu(b):
    """The gradient of what relu was given is stored as well."""
    dy, y = b.input((1, 70, 24)), b.input((1, 70, 24))
    dx = b.node("relu_backward", lambda d, v: d * (v > 0), dy, y)
    b.output(dx)
    b.output(reduce(b, "ADD", dx, 1), dtype=T.FLOAT)


@columns("fused_reduction", launches=5, io=T.FLOAT)
def batch_norm_of_channels_last(b):
    """Two levels."""
    x, gamma, beta = image(b), b.weight(8), b.weight(8)
    mean = reduce(b, "AVG", x, 0, 2, 3)
    d = two(b, "sub", x, mean)
    rstd = one(b, "rsqrt", two(b, "add", reduce(b, "AVG", two(b, "mul", d, d), 0, 2, 3), b.number(1e-3)))
    b.output(two(b, "add", two(b, "mul", two(b, "mul", d, rstd), gamma), beta))
    b.output(mean, rstd)


@columns("fused_reduction", launches=3)
def columns_scaled_by_their_largest_magnitude(b):
    """Odd columns of batches; a result that reads no reduction beside one that does."""
    x = b.input((3, 11, 19))
    hot = b.rounded(b.relu(x))
    top = reduce(b, "AMAX", hot, 1)
    b.output(hot)
    b.output(two(b, "div", hot, two(b, "max", top, b.number(0.25, 3))), dtype=T.FLOAT)
    b.output(top, dtype=T.FLOAT)


@pytest.mark.parametrize("name", pattern)
def test_pattern(name):
    pattern.check(name)


@pytest.fixture
def as_if_large(monkeypatch):
    """The first cut, without the naive algorithm: what is predicted to take the least time of many elements."""
    monkeypatch.setattr(_engines, "cuts", lambda spec: _partition.cuts(spec)[:1])
    naive = dispatch.named("fused_reduction", "naive")
    dispatch.unregister(naive)
    yield
    dispatch.register(naive)


@pytest.mark.parametrize("name", columns)
def test_columns(name, as_if_large):
    columns.check(name)


@pytest.mark.parametrize("name", [*pattern, *columns])
def test_one_node_a_kernel_computes_the_same(name, monkeypatch):
    monkeypatch.setattr(_engines, "cuts", lambda spec: [_partition.one_by_one(spec)])
    function, _, _, io = {**pattern, **columns}[name]
    from graph_patterns import Both
    both = Both(io)
    function(both)
    both.check()
    assert "fused_reduction" not in [step.op for step in both.graph._engines.steps]


def test_nan_and_infinity():
    """A row with a NaN, one with an infinity, one of minus infinities: as the nodes one by one."""
    x = np.random.default_rng(0).standard_normal((5, 1, 40)).astype(np.float32)
    x[0, 0, 3], x[1, 0, 7], x[2], x[3, 0, 1] = np.nan, np.inf, -np.inf, -np.inf
    found, ops = [], []
    for cuts in (_partition.cuts, lambda spec: [_partition.one_by_one(spec)]):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_engines, "cuts", cuts)
            graph = new_graph()
            t = like(graph, x)
            top = graph.reduction(t, cudnn.reduction_mode.MAX).set_dim([5, 1, 1]).set_stride([1, 1, 1])
            e = graph.exp(graph.sub(t, top))
            total = graph.reduction(e, cudnn.reduction_mode.ADD).set_dim([5, 1, 1]).set_stride([1, 1, 1])
            y = graph.div(e, total).set_output(True)
            top.set_output(True), total.set_output(True)
            found.append(run(graph, {t: x}, [y, top, total]))
            ops.append({step.op for step in graph._engines.steps})
    assert ops[0] == {"fused_reduction"} and "fused_reduction" not in ops[1]
    for fused, apart in zip(*found):
        close(fused, apart, factor=16)
    assert np.isnan(found[0][0][:3]).all() and np.isfinite(found[0][0][3:]).all()


def test_integers_are_reduced_apart(as_if_large):
    """What the family's kernels do not take: each node keeps its kernel, and the reasons are told."""
    graph = new_graph()
    t, n = graph.tensor([6, 5, 8], [40, 8, 1], name="x"), graph.tensor([4, 8], [8, 1], T.INT32, name="n")
    mean = graph.reduction(t, cudnn.reduction_mode.AVG, name="mean").set_dim([1, 5, 8]).set_stride([40, 8, 1])
    graph.sub(t, mean, name="centred").set_output(True)
    count = graph.reduction(n, cudnn.reduction_mode.ADD, name="count").set_dim([4, 1]).set_stride([1, 1]).set_data_type(T.INT32)
    graph.relu(count, name="some").set_output(True)
    graph.build()
    found = graph.explain()
    assert [part.op for part in found.parts] == ["fused_reduction", "reduce", "fused_pointwise"]
    assert found.parts[0].algorithm == "columns", str(found)
    assert ("count", "some", "a reduction of INT32") in found.apart, found.apart

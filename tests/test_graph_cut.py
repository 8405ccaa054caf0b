"""The cut: what runs in one kernel, what does not, and that both compute the same."""
import numpy as np
import pytest
from graphs import T, close, like, new_graph, run

import dnnkern.graph as cudnn
from dnnkern.graph import _engines, _partition


def draw(shape, seed, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def parts(graph):
    """Operations of each part of the cut with the fewest."""
    graph.build()
    return [[node.op for node in part] for part in _partition.cuts(graph.spec)[0]]


def kernels(graph):
    """Operations of the plan, one a step."""
    graph.build()
    return [step.op for step in _engines.Engines(graph.spec).steps]


def test_an_epilogue_with_a_side_output_is_one_part():
    graph = new_graph()
    a, b, v, r = (draw(shape, k) for k, shape in enumerate(((2, 9, 7), (2, 7, 12), (1, 1, 12), (2, 9, 12))))
    ta, tb, tv, tr = (like(graph, array) for array in (a, b, v, r))
    z = graph.bias(graph.matmul(ta, tb), tv).set_output(True)
    y = graph.add(graph.relu(z), tr).set_output(True)
    mask = graph.cmp_gt(z, tr).set_output(True).set_data_type(T.BOOLEAN)
    assert list(map(sorted, parts(graph))) == [["add", "bias", "cmp_gt", "matmul", "relu"]] and kernels(graph) == ["matmul"]
    got = run(graph, {ta: a, tb: b, tv: v, tr: r}, [z, y, mask])
    expected = a.astype(float) @ b + v
    close(got[0], expected, factor=16, scale=10)
    close(got[1], np.maximum(expected, 0) + r, factor=16, scale=10)
    assert (got[2] != (expected > r)).mean() < 0.01


def test_rounding_of_what_is_in_between():
    """A type set on a virtual tensor rounds there, in a kernel too."""
    a, b = draw((1, 8, 16), 1, np.float16), draw((1, 16, 8), 2, np.float16)
    results = []
    for kind in (T.HALF, T.FLOAT):
        graph = new_graph(T.HALF)
        ta, tb = (like(graph, array) for array in (a, b))
        c = graph.matmul(ta, tb).set_data_type(kind)
        y = graph.mul(graph.sub(c, graph.identity(c).set_data_type(T.HALF)), c).set_output(True).set_data_type(T.FLOAT)
        assert kernels(graph) == ["matmul"]
        results.append(run(graph, {ta: a, tb: b}, [y])[0])
    assert not results[0].any() and results[1].any()


def test_what_feeds_an_anchor_is_not_in_its_part():
    graph = new_graph()
    x = draw((1, 8, 8), 1)
    t = like(graph, x)
    hot = graph.relu(t)
    y = graph.add(graph.matmul(hot, t), hot).set_output(True)
    assert parts(graph) == [["relu"], ["matmul", "add"]]
    close(run(graph, {t: x}, [y])[0], np.maximum(x, 0).astype(float) @ x + np.maximum(x, 0), factor=16, scale=10)


def test_no_part_waits_for_itself():
    """add reads exp and a sum of what exp is made of: both around a reduction, which is no pointwise node."""
    graph = new_graph()
    x = draw((4, 6, 8), 1)
    t = like(graph, x)
    e = graph.exp(graph.neg(t))
    s = graph.reduction(e, cudnn.reduction_mode.ADD).set_dim([4, 6, 1]).set_stride([6, 1, 1])
    y = graph.add(graph.mul(e, s), t).set_output(True)
    assert parts(graph) == [["neg", "exp"], ["reduction"], ["mul", "add"]]
    expected = np.exp(-x.astype(float))
    close(run(graph, {t: x}, [y])[0], expected * expected.sum(2, keepdims=True) + x, factor=64, scale=10)


def test_two_anchors_are_two_parts():
    graph = new_graph()
    x = draw((1, 8, 8), 1)
    t = like(graph, x)
    first, second = graph.matmul(t, t), graph.matmul(t, t)
    y = graph.add(graph.relu(first), second).set_output(True)
    assert parts(graph) == [["matmul", "relu"], ["matmul", "add"]]
    product = x.astype(float) @ x
    close(run(graph, {t: x}, [y])[0], np.maximum(product, 0) + product, factor=32, scale=20)


def test_numbers_and_positions():
    """Numbers are read at each execution, constants are in the program, positions along an axis are counted."""
    graph = new_graph()
    x = draw((2, 5, 7), 1)
    t = like(graph, x)
    factor = graph.tensor([1, 1, 1], [1, 1, 1], T.FLOAT, is_pass_by_value=True)
    row = graph.gen_index(t, axis=1).set_data_type(T.INT32)
    column = graph.gen_index(t, axis=2).set_data_type(T.INT32)
    keep = graph.cmp_ge(row, column).set_data_type(T.BOOLEAN)
    y = graph.binary_select(graph.mul(t, factor), graph.tensor_scalar(-1e4, cudnn.scalar_type.COMPILE_TIME_CONST), keep).set_output(True)
    assert kernels(graph) == ["fused_pointwise"]
    for value in (2.0, -0.5):
        got, = run(graph, {t: x, factor: value}, [y])
        np.testing.assert_array_equal(got, np.where(np.arange(5)[:, None] >= np.arange(7), x * np.float32(value), np.float32(-1e4)))


def test_a_part_that_no_kernel_runs_is_split():
    """Seventeen arrays are more than a kernel takes."""
    graph = new_graph()
    arrays = [draw((3, 8), k) for k in range(18)]
    tensors = [like(graph, array) for array in arrays]
    y = tensors[0]
    for t in tensors[1:]:
        y = graph.add(y, t)
    y.set_output(True)
    assert kernels(graph) == ["fused_pointwise"] * 2
    close(run(graph, dict(zip(tensors, arrays)), [y])[0], sum(a.astype(float) for a in arrays), factor=32, scale=10)


@pytest.mark.parametrize("kind", [np.int32, np.int8, np.uint8])
def test_integers(kind):
    graph = new_graph(T.FLOAT)
    x, z = (np.random.default_rng(k).integers(0, 100, (4, 9)).astype(kind) for k in (1, 2))
    t, u = (like(graph, array) for array in (x, z))
    y = graph.max(graph.min(t, u).set_data_type(t.get_data_type()), graph.identity(u).set_data_type(t.get_data_type()))
    y.set_output(True).set_data_type(t.get_data_type())
    got, = run(graph, {t: x, u: z}, [y])
    np.testing.assert_array_equal(got, np.maximum(np.minimum(x, z), z))


ONE = ("relu", "gelu", "gelu_approx_tanh", "tanh", "sigmoid", "swish", "elu", "softplus", "neg", "abs", "exp", "erf", "ceil", "floor",
       "sin", "cos", "reciprocal", "logical_not", "identity")
TWO = ("add", "mul", "sub", "div", "max", "min", "mod", "cmp_lt", "cmp_eq", "add_square", "logical_and", "relu_backward", "gelu_backward",
       "gelu_approx_tanh_backward", "tanh_backward", "sigmoid_backward", "swish_backward", "elu_backward", "softplus_backward")


@pytest.mark.parametrize("name", ONE + TWO)
def test_cut_and_uncut_are_the_same(name, monkeypatch):
    """Every mode behind a product, in its kernel and one by one."""
    a, b, other = draw((1, 6, 5), 1), draw((1, 5, 8), 2), draw((1, 6, 8), 3)
    found = []
    for cuts in (_partition.cuts, lambda spec: [_partition.one_by_one(spec)]):
        monkeypatch.setattr(_engines, "cuts", cuts)
        graph = new_graph()
        ta, tb, to = (like(graph, array) for array in (a, b, other))
        c = graph.matmul(ta, tb)
        y = graph.mul(getattr(graph, name)(*(c, to)[:1 + (name in TWO)]), to).set_output(True)
        assert kernels(graph)[0] == "matmul" and (len(kernels(graph)) == 1) == (not found)
        found.append(run(graph, {ta: a, tb: b, to: other}, [y])[0])
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-5)

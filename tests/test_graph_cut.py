"""The cut: what runs in one kernel, what does not, and that both compute the same."""
import numpy as np
import pytest
from graphs import T, array_of, channels_last, close, execute, like, new_graph, run

import dnnkern.graph as cudnn
from dnnkern.device import HOST_MEMORY
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
    """add reads exp and a sum of what exp is made of: both around a reduction, which is no pointwise node. Where reductions are in parts,
    all of it is one."""
    graph = new_graph()
    x = draw((4, 6, 8), 1)
    t = like(graph, x)
    e = graph.exp(graph.neg(t))
    s = graph.reduction(e, cudnn.reduction_mode.ADD).set_dim([4, 6, 1]).set_stride([6, 1, 1])
    y = graph.add(graph.mul(e, s), t).set_output(True)
    assert parts(graph) == [["neg", "exp", "reduction", "mul", "add"]] and kernels(graph) == ["fused_reduction"]
    nodes = [node for (node,) in _partition.one_by_one(graph.spec)]
    apart = _partition.joined(graph.spec, nodes)
    assert [[node.op for node in part] for part in apart] == [["neg", "exp"], ["reduction"], ["mul", "add"]]
    expected = np.exp(-x.astype(float))
    close(run(graph, {t: x}, [y])[0], expected * expected.sum(2, keepdims=True) + x, factor=64, scale=10)


def test_two_anchors_are_two_parts():
    graph = new_graph()
    x = draw((1, 8, 8), 1)
    t = like(graph, x)
    first, second = graph.matmul(t, t), graph.matmul(graph.transpose(t, [0, 2, 1]), t)
    y = graph.add(graph.relu(first), second).set_output(True)
    assert parts(graph) == [["matmul", "relu"], ["matmul", "add"]]
    expected = np.maximum(x.astype(float) @ x, 0) + x.astype(float).swapaxes(1, 2) @ x
    close(run(graph, {t: x}, [y])[0], expected, factor=32, scale=20)


def test_neighbours_of_one_tensor_are_one_part():
    """Both halves of a rotation, of which neither reads the other's result: one kernel, and in place."""
    graph = new_graph()
    a, b, cos, sin = (draw(shape, k) for k, shape in enumerate(((2, 5, 8), (2, 5, 8), (1, 5, 8), (1, 5, 8))))
    ta, tb, tc, ts = (like(graph, array) for array in (a, b, cos, sin))
    first = graph.sub(graph.mul(ta, tc), graph.mul(tb, ts)).set_output(True)
    second = graph.add(graph.mul(tb, tc), graph.mul(ta, ts)).set_output(True)
    assert len(parts(graph)) == 1 and kernels(graph) == ["fused_pointwise"]
    expected = a * cos - b * sin, b * cos + a * sin
    for got, wanted in zip(run(graph, {ta: a, tb: b, tc: cos, ts: sin}, [first, second]), expected):
        close(got, wanted, factor=16, scale=10)
    if HOST_MEMORY:
        x, y = a.copy(), b.copy()
        graph.execute({ta: x, tb: y, tc: cos, ts: sin, first: x, second: y}, np.empty(graph.get_workspace_size(), np.uint8))
        close(x, expected[0], factor=16, scale=10)
        close(y, expected[1], factor=16, scale=10)


@pytest.mark.skipif(not HOST_MEMORY, reason="buffers are NumPy's")
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_rotation_in_place_of_halves_of_rows(dtype):
    """As cuDNN's own example of rotary embeddings has it: both halves of the first 32 of 128 elements, which lie between each other."""
    x, cos, sin = draw((6, 5, 128), 1, dtype), draw((1, 5, 32), 2), draw((1, 5, 32), 3)
    graph = new_graph(like(new_graph(), x).get_data_type())
    halves = [array[..., part] for array in (x, cos, sin) for part in (slice(16), slice(16, 32))]
    x1, x2, cos1, cos2, sin1, sin2 = tensors = [like(graph, array) for array in halves]
    y1 = graph.sub(graph.mul(x1, cos1), graph.mul(x2, sin1)).set_output(True)
    y2 = graph.add(graph.mul(x2, cos2), graph.mul(x1, sin2)).set_output(True)
    assert kernels(graph) == ["fused_pointwise"]
    graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    before, wide = x.copy(), x.astype(np.float64)
    a, b = wide[..., :16], wide[..., 16:32]
    for index in range(graph.get_execution_plan_count()):
        graph.build_plan_at_index(index)
        x[...] = before
        graph.execute_plan_at_index({**dict(zip(tensors, halves)), y1: halves[0], y2: halves[1]},
                                    np.empty(graph.get_workspace_size_plan_at_index(index), np.uint8), index)
        close(x[..., :16], a * cos[..., :16] - b * sin[..., :16], scale=10)
        close(x[..., 16:32], b * cos[..., 16:] + a * sin[..., 16:], scale=10)
        assert (x[..., 32:] == before[..., 32:]).all()


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("direction", ["conv_fprop", "conv_dgrad"])
def test_behind_a_convolution(direction, last, monkeypatch):
    """conv, scale and bias by channel, ReLU and add, as cuDNN's own example has them: one kernel, and the same one by one."""
    arrange = channels_last if last else np.asarray
    x, other = (arrange(draw((2, 8, 5, 6), k)) for k in (1, 2))
    w, scale, bias = arrange(draw((8, 8, 3, 3), 3)), draw((1, 8, 1, 1), 4), draw((1, 8, 1, 1), 5)
    found = []
    for cuts in (_partition.cuts, lambda spec: [_partition.one_by_one(spec)]):
        monkeypatch.setattr(_engines, "cuts", cuts)
        graph = new_graph()
        tx, to, tw, ts, tb = (like(graph, array) for array in (x, other, w, scale, bias))
        c = getattr(graph, direction)(tx, tw, padding=[1, 1], stride=[1, 1], dilation=[1, 1])
        if direction == "conv_dgrad":
            c.set_dim([2, 8, 5, 6])
        scaled = graph.bias(graph.scale(c, ts), tb).set_output(True)
        y = graph.add(graph.relu(scaled), to).set_output(True)
        assert (len(kernels(graph)) == 1) == (not found)
        found.append(run(graph, {tx: x, to: other, tw: w, ts: scale, tb: bias}, [scaled, y]))
    for one, two in zip(*found):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("taps", [1, 3])
@pytest.mark.parametrize("direction", ["conv_fprop", "conv_dgrad", "conv_wgrad"])
def test_positions_behind_a_convolution(direction, taps, last):
    """Each axis' positions in the convolution's kernel, by every plan."""
    arrange, pad = channels_last if last else np.asarray, taps // 2
    shapes = {"conv_fprop": ((2, 6, 5, 7), (10, 6, taps, taps)), "conv_dgrad": ((2, 10, 5, 7), (10, 6, taps, taps)),
              "conv_wgrad": ((2, 6, 5, 7), (2, 10, 5, 7))}
    a, b = (arrange(draw(shape, k)) for k, shape in enumerate(shapes[direction]))
    graph = new_graph()
    ta, tb = like(graph, a), like(graph, b)
    c = getattr(graph, direction)(ta, tb, padding=[pad, pad], stride=[1, 1], dilation=[1, 1])
    if direction != "conv_fprop":
        c.set_dim([2, 6, 5, 7] if direction == "conv_dgrad" else [10, 6, taps, taps])
    plain = graph.mul(c, c).set_output(True)
    y = c
    for axis, method in enumerate(("add", "sub", "mul", "add")):
        y = getattr(graph, method)(y, graph.gen_index(c, axis=axis).set_data_type(T.INT32))
    y.set_output(True)
    assert kernels(graph) == [{"conv_fprop": "conv_fwd", "conv_dgrad": "conv_bwd_data", "conv_wgrad": "conv_bwd_filter"}[direction]]
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.build_plans(cudnn.build_plan_policy.ALL)
    n, k, h, w = np.indices(y.get_dim())
    for plan in range(graph.get_execution_plan_count()):
        square, got = array_of(plain), array_of(y)
        execute(graph, {ta: a, tb: b, plain: square, y: got}, plan)
        root = got.astype(float) - w
        with np.errstate(divide="ignore", invalid="ignore"):
            root = np.where(h > 0, root / h, np.nan) - n + k
        np.testing.assert_allclose(np.where(h > 0, root ** 2, square), square, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(got[h == 0], w[h == 0])


@pytest.mark.parametrize("length", [24, 45, 1100])
def test_behind_a_softmax(length):
    """Its result as it is, and scaled, masked and rounded to half: one kernel, by every plan."""
    x, mask = draw((2, 3, 5, length), 1), (draw((2, 3, 5, length), 2) > 0).astype(np.int8)
    graph = new_graph()
    tx, tm = like(graph, x), like(graph, mask)
    weights = graph.softmax(tx).set_output(True)
    half = graph.mul(graph.mul(weights, tm), graph.tensor_scalar(2.0, cudnn.scalar_type.COMPILE_TIME_CONST)).set_output(True)
    half.set_data_type(T.HALF)
    assert kernels(graph) == ["softmax_fwd"]
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.build_plans(cudnn.build_plan_policy.ALL)
    e = np.exp(x.astype(float) - x.max(-1, keepdims=True))
    expected = e / e.sum(-1, keepdims=True)
    for plan in range(graph.get_execution_plan_count()):
        first, second = array_of(weights), array_of(half)
        execute(graph, {tx: x, tm: mask, weights: first, half: second}, plan)
        close(first, expected, factor=64)
        close(second, 2 * expected * mask, factor=2, scale=1)


def test_nodes_of_one_name():
    """Names tell nothing apart: what a part's nodes read of each other is not stored."""
    graph = new_graph()
    x = draw((3, 9), 1)
    y = t = like(graph, x)
    for _ in range(4):
        y = graph.neg(graph.abs(y, name="same"), name="same")
    y.set_output(True)
    assert kernels(graph) == ["fused_pointwise"] and graph.explain().workspace == 0
    np.testing.assert_array_equal(run(graph, {t: x}, [y])[0], -np.abs(x))


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


# ---- what explains it


def explained(kept=(1, 8, 1)):
    """A sum of a product's result over its columns, or over its rows, by which the result is scaled."""
    graph = new_graph()
    x = graph.tensor([1, 8, 8], [64, 8, 1], name="x")
    hot = graph.relu(x, name="hot")
    product = graph.bias(graph.matmul(hot, x, name="mm"), hot, name="sum")
    graph.mul(product, graph.reduction(product, cudnn.reduction_mode.ADD, name="total").set_dim(kept).set_stride([8, 1, 1]),
              name="scaled").set_output(True)
    graph.build()
    return graph.explain()


def test_explanation():
    found = explained()
    assert [set(part.nodes) for part in found.parts] == [{"hot"}, {"mm"}, {"sum", "total", "scaled"}]
    assert [part.bytes for part in found.parts] == [512, 768, 768]
    assert all(part.algorithm and part.seconds > 0 for part in found.parts) and found.seconds == sum(p.seconds for p in found.parts)
    reasons = {(a, b): why for a, b, why in found.apart}
    assert reasons["hot", "mm"] == "what a product makes of its operands is not stored"
    assert reasons["mm", "sum"] == "no kernel runs them together"
    assert reasons["hot", "sum"] == "what a product makes of its operands is not stored"
    assert all(name for part in found.parts for name, _ in part.others) and found.workspace > 0
    assert sum(cut.chosen for cut in found.cuts) == 1
    assert found.cuts[-1].text == "hot | mm | sum | total | scaled"
    chosen = next(cut for cut in found.cuts if cut.chosen)
    assert chosen.text == " | ".join(" + ".join(part.nodes) for part in found.parts)
    assert chosen.bytes == sum(part.bytes for part in found.parts)
    assert chosen.seconds == found.seconds == min(cut.seconds for cut in found.cuts) and chosen.bytes < found.cuts[-1].bytes


def test_nodes_without_names_are_told_by_operation():
    graph = new_graph()
    x = graph.tensor([1, 8, 8], [64, 8, 1], name="x")
    graph.relu(graph.matmul(x, x)).set_output(True)
    graph.build()
    assert graph.explain().parts[0].nodes == ("matmul 0", "relu 1") and graph.explain().edges == (("matmul 0", "relu 1"),)


def test_nodes_of_one_name_are_told_apart():
    graph = new_graph()
    x = graph.tensor([1, 8, 8], [64, 8, 1], name="x")
    hot = graph.relu(graph.matmul(x, x, name="n"), name="n (2)")
    graph.mul(graph.softmax(hot, name="n"), hot, name="n").set_output(True)
    graph.build()
    found = graph.explain()
    assert [part.nodes for part in found.parts] == [("n", "n (2)"), ("n (3)", "n (4)")]
    assert set(found.edges) == {("n", "n (2)"), ("n (2)", "n (3)"), ("n (3)", "n (4)"), ("n (2)", "n (4)")}
    assert ("n (2)", "n (3)", "softmax takes its operands from memory") in found.apart and '"n" -> "n (2)";' in found.dot()


def test_an_edge_through_a_view_is_explained():
    graph = new_graph()
    x = graph.tensor([1, 8, 8], [64, 8, 1], name="x")
    turned = graph.transpose(graph.matmul(x, x, name="mm"), [0, 2, 1])
    graph.exp(turned, name="exp").set_output(True)
    graph.build()
    found = graph.explain()
    assert found.edges == (("mm", "exp"),) and found.apart == (("mm", "exp", "a view of a result is read from memory"),)


def test_why_what_is_reduced_of_rows_is_read_by_another_kernel():
    """A tile has all columns of a row where that fits, never all rows."""
    found = explained((1, 1, 8))
    assert found.parts[-1].nodes == ("scaled",) and {"mm", "sum"} <= set(found.parts[1].nodes)
    assert ("total", "scaled", "what is reduced is there when the kernel has ended") in found.apart


def test_explanation_as_text():
    found = explained()
    text = str(found)
    assert text.startswith("graph ") and "3 steps" in text and "moves" in text and "sum + total" in text and "apart because" in text
    assert "(chosen)" in text and "hot | mm | sum | total | scaled" in text
    drawing = found.drawing().splitlines()
    assert sum(line.startswith("+") for line in drawing) == 6 and "| sum" in found.drawing()
    dot = found.dot()
    assert '"mm" -> "sum";' in dot and dot.count("subgraph") == 3


def test_explanation_as_a_picture(monkeypatch):
    import shutil
    if shutil.which("dot"):
        assert explained().svg().lstrip().startswith("<?xml")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(RuntimeError, match="Graphviz's program dot is not installed"):
        explained().svg()


@pytest.mark.parametrize("make, reason", [
    (lambda g, x, y: g.add(g.matmul(x, y), g.matmul(y, x)), "two products with different A"),
    (lambda g, x, y: g.mul(g.reduction(x, mode=cudnn.reduction_mode.ADD), y), "a reduction over no axes"),
    (lambda g, x, y: g.mul(g.add(x, y), g.neg(g.tensor([1, 1, 8], [8, 8, 1], name="row"))), "dims (1, 1, 8) and (1, 8, 8)")])
def test_reasons(make, reason):
    graph = new_graph()
    make(graph, *(graph.tensor([1, 8, 8], [64, 8, 1], name=name) for name in "xy")).set_output(True)
    graph.build()
    assert reason in [why for _, _, why in graph.explain().apart]


def test_what_is_predicted_to_be_faster_apart(monkeypatch):
    graph = new_graph()
    x = graph.tensor([2, 8, 8], [64, 8, 1], name="x")
    graph.neg(graph.softmax(x, axis=2, name="soft"), name="minus").set_output(True)
    cost = _engines.Cut.cost.fget
    monkeypatch.setattr(_engines.Cut, "cost", property(lambda self: -cost(self)))
    graph.build()
    found = graph.explain()
    assert found.apart == (("soft", "minus", "kernels of their own are predicted to take less time"),) and len(found.parts) == 2


def test_a_node_of_several_types_is_one_kernel():
    """Without conversions into the workspace: integers divided into halves, a number that is read at each call."""
    from graphs import execute, like
    a = np.array([[1, 2, 7, 9]], np.int8)
    graph = new_graph(T.INT8)
    t, number = like(graph, a), graph.tensor([1, 1], [1, 1], T.FLOAT, is_pass_by_value=True)
    y = graph.div(t, number).set_output(True).set_data_type(T.HALF)
    graph.build([cudnn.heur_mode.A])
    assert len(graph._candidate.steps) == 1 and graph.get_workspace_size() == 0
    got = np.empty((1, 4), np.float16)
    execute(graph, {t: a, number: np.array([[2.0]], np.float32), y: got})
    np.testing.assert_array_equal(got, (a / 2).astype(np.float16))


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("method", ["batchnorm", "groupnorm", "instancenorm"])
def test_behind_a_normalization_by_channels(method, last):
    """Its result as it is, then an addition, ReLU, a scale by channel and one by image: in the pass that writes, by every plan."""
    arrange, phase = channels_last if last else np.asarray, cudnn.norm_forward_phase.TRAINING
    x, other = (arrange(draw((2, 8, 5, 6), k)) for k in (1, 2))
    scale, bias, gate, level = (draw(shape, k) for k, shape in enumerate(((1, 8, 1, 1), (1, 8, 1, 1), (1, 8, 1, 1), (2, 1, 1, 1)), 3))
    graph = new_graph()
    tx, to, ts, tb, tg, tl = (like(graph, array) for array in (x, other, scale, bias, gate, level))
    epsilon = graph.tensor_scalar(1e-3, cudnn.scalar_type.COMPILE_TIME_CONST)
    if method == "batchnorm":
        y, *_ = graph.batchnorm(tx, ts, tb, epsilon=epsilon)
    else:
        y, *_ = getattr(graph, method)(phase, tx, ts, tb, epsilon, *(2,) * (method == "groupnorm"))
    y.set_output(True)
    z = graph.mul(graph.scale(graph.relu(graph.add(y, to)), tg), tl).set_output(True)
    assert kernels(graph) == ["batch_norm_train_fwd" if method == "batchnorm" else "group_norm_fwd"]
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.build_plans(cudnn.build_plan_policy.ALL)
    groups = x.astype(float).reshape({"batchnorm": (2, 8, 1, 30), "groupnorm": (2, 2, 4, 30), "instancenorm": (2, 8, 1, 30)}[method])
    axes = (0, 2, 3) if method == "batchnorm" else (2, 3)
    normal = (groups - groups.mean(axes, keepdims=True)) / np.sqrt(groups.var(axes, keepdims=True) + 1e-3)
    plain = normal.reshape(x.shape) * scale + bias
    for plan in range(graph.get_execution_plan_count()):
        pack = {tx: x, to: other, ts: scale, tb: bias, tg: gate, tl: level, y: array_of(y), z: array_of(z)}
        execute(graph, pack, plan)
        close(pack[y], plain, factor=16, scale=4)
        close(pack[z], np.maximum(plain + other, 0) * gate * level, factor=32, scale=10)


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("method", ["batchnorm", "groupnorm"])
def test_positions_behind_a_normalization_by_channels(method, last):
    """Each axis' positions, and an operand of one element for each height, in the kernel that writes, by every plan."""
    arrange, phase = channels_last if last else np.asarray, cudnn.norm_forward_phase.TRAINING
    x, heights, ones = arrange(draw((2, 8, 5, 7), 1)), draw((1, 1, 5, 1), 2), np.ones((1, 8, 1, 1), np.float32)
    graph = new_graph()
    tx, th, ts = (like(graph, array) for array in (x, heights, ones))
    epsilon = graph.tensor_scalar(1e-3, cudnn.scalar_type.COMPILE_TIME_CONST)
    c = graph.batchnorm(tx, ts, ts, epsilon=epsilon)[0] if method == "batchnorm" else graph.groupnorm(phase, tx, ts, ts, epsilon, 4)[0]
    y = graph.mul(c, th)
    for axis, scale in enumerate((1.0, 10.0, 100.0, 1000.0)):
        number = graph.tensor_scalar(scale, cudnn.scalar_type.COMPILE_TIME_CONST)
        y = graph.add(y, graph.mul(graph.gen_index(c, axis=axis).set_data_type(T.INT32), number))
    y.set_output(True)
    assert kernels(graph) == ["batch_norm_train_fwd" if method == "batchnorm" else "group_norm_fwd"]
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.build_plans(cudnn.build_plan_policy.ALL)
    v = x.astype(float).reshape((2, 8, 1, 35) if method == "batchnorm" else (2, 4, 2, 35))
    axes = (0, 2, 3) if method == "batchnorm" else (2, 3)
    normal = ((v - v.mean(axes, keepdims=True)) / np.sqrt(v.var(axes, keepdims=True) + 1e-3)).reshape(x.shape) + 1
    n, k, h, w = np.indices(x.shape)
    for plan in range(graph.get_execution_plan_count()):
        got = array_of(y)
        execute(graph, {tx: x, th: heights, ts: ones, y: got}, plan)
        close(got, normal * heights + n + 10 * k + 100 * h + 1000 * w, factor=16, scale=7000)

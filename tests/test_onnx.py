"""`dnnkern.onnx`: models beside ONNX's reference evaluator in float64, what is fused, what stays in memory, and what is wrong with models.

ONNX's own tests of backends are in test_cpu_onnx_backend.py.
"""
import gc
import os

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx.reference import ReferenceEvaluator  # noqa: E402
from onnx_models import TEXTS, parsed, small  # noqa: E402

import dnnkern.onnx  # noqa: E402
from dnnkern import dispatch  # noqa: E402
from dnnkern.device import DEVICE, HOST_MEMORY, cuda  # noqa: E402
from dnnkern.onnx import ModelError, _values  # noqa: E402
from dnnkern.onnx._fuse import Group  # noqa: E402
from dnnkern.onnx._node import Node  # noqa: E402
from dnnkern.onnx._values import Value  # noqa: E402

EPS = {"float64": 1e-12, "float32": 2e-6, "float16": 4e-3}


@pytest.fixture(autouse=True)
def simplest():
    with dispatch.prefer("naive"):
        yield


def assert_close(found, expected, eps=2e-6):
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected):
        assert mine.shape == theirs.shape
        mine, theirs = np.asarray(mine, np.float64), np.asarray(theirs, np.float64)
        assert np.abs(theirs).max(initial=0) > 0, "nothing to compare"
        np.testing.assert_allclose(mine, theirs, rtol=eps, atol=eps * np.abs(theirs).max())


def check(text, inputs, opset=21, weights=None, eps=2e-6, ours=True, fuse=True):
    """Results of a model beside those of ONNX's evaluator, on float64 where there are floats; returns the report."""
    given = {"inputs": inputs, "weights": weights or {}}
    wide = {key: {n: x.astype(np.float64) if x.dtype == np.float32 else x for n, x in of.items()} for key, of in given.items()}
    exact = "roi" in text or "scales" in text  # these stay float32
    expected = ReferenceEvaluator(parsed(text, opset, weights if exact else wide["weights"], "float32" if exact else "float64")).run(
        None, inputs if exact else wide["inputs"])
    prepared = dnnkern.onnx.prepare(parsed(text, opset, weights), fuse=fuse)
    assert_close(prepared.run(inputs), expected, eps)
    report = prepared.report()
    if ours:
        assert [(row.op, row.reason) for row in report if row.by == "host"] == []
    return report


def floats(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


# ---- models

@pytest.mark.parametrize("name", TEXTS)
def test_models(name):
    model, inputs = small(name)
    wide, doubles = small(name, "float64")
    if name == "unet":  # whose evaluator takes scales in float32
        doubles["x"] = inputs["x"].astype(np.float64)
    expected = ReferenceEvaluator(wide).run(None, {key: inputs[key].astype(x.dtype) for key, x in doubles.items()})
    prepared = dnnkern.onnx.prepare(model)
    assert_close(prepared.run(inputs), expected, 5e-6)
    rows = prepared.report()
    assert all(row.by == "dnnkern" and row.runs == 1 for row in rows), [row for row in rows if row.by != "dnnkern"]
    assert any(row.fused for row in rows)
    again = prepared.run(inputs)
    unfused = dnnkern.onnx.prepare(model, fuse=False)
    for one, other, plain in zip(prepared.run(inputs), again, unfused.run(inputs)):
        assert (one == other).all()
        assert_close([one], [plain], 5e-6)
    assert not any(row.fused for row in unfused.report())


@pytest.mark.sized
@pytest.mark.parametrize("name, dtype", [("resnet", "float64"), ("bert", "float16")])
def test_models_in_other_dtypes(name, dtype):
    model, inputs = small(name, dtype)
    wide, _ = small(name, "float64")
    if dtype == "float16":  # the same weights
        for narrow, weight in zip(model.graph.initializer, wide.graph.initializer):
            x = onnx.numpy_helper.to_array(narrow)
            weight.CopyFrom(onnx.numpy_helper.from_array(x.astype(np.float64) if x.dtype.kind == "f" else x, narrow.name))
    expected = ReferenceEvaluator(wide).run(None, {key: x.astype(np.float64) if x.dtype.kind == "f" else x for key, x in inputs.items()})
    prepared = dnnkern.onnx.prepare(model)
    found = prepared.run(inputs)
    assert found[0].dtype == dtype
    assert_close(found, expected, EPS[dtype])
    assert any("graph" in row.calls for row in prepared.report())


def test_open_extents_have_a_graph_for_each_size():
    model, inputs = small("resnet")
    prepared, evaluator = dnnkern.onnx.prepare(model), ReferenceEvaluator(model)
    for n in (1, 3):
        x = floats(n, 3, 9, 9)
        assert_close(prepared.run([x]), evaluator.run(None, {"x": x}), 2e-5)
    groups = [unit for unit in prepared.program.units if isinstance(unit, Group)]
    assert groups and all(len(group.plans) == 2 for group in groups)
    assert [i.dims for i in prepared.inputs] == [("N", 3, 9, 9)]


# ---- fusion

def fused(report):
    return {tuple(sorted((row.name, *row.fused))) for row in report if row.fused}


def test_a_product_takes_what_follows_it():
    weights = {"w": floats(5, 7), "b": floats(7), "c": floats(3, 1, 7, seed=1)}
    text = "f (float[3, 4, 5] x) => (float[3, 4, 7] y) { a = MatMul (x, w) b0 = Add (a, b) c0 = Mul (c, b0) y = Relu (c0) }"
    assert fused(check(text, {"x": floats(3, 4, 5)}, weights=weights)) == {("a", "b0", "c0", "y")}


@pytest.mark.parametrize("attributes", ["", "transA = 1", "transB = 1", "alpha = 0.5, beta = 2.0, transA = 1, transB = 1", "beta = 0.0"])
@pytest.mark.parametrize("c", [(7,), (4, 1), (1, 7), (4, 7)])
def test_gemm(attributes, c):
    a, b = floats(*((5, 4) if "transA" in attributes else (4, 5))), floats(*((7, 5) if "transB" in attributes else (5, 7)), seed=1)
    text = f"f (float[A, B] x, float[C, D] z) => (float[4, 7] y) {{ a = Gemm <{attributes}> (x, z, c) y = Tanh (a) }}".replace("<>", "")
    report = check(text, {"x": a, "z": b}, weights={"c": floats(*c, seed=2)})
    assert fused(report) == {("a", "y")}
    assert fused(check(text.replace("y = Tanh (a)", "y = Identity (a)"), {"x": a, "z": b}, weights={"c": floats(*c, seed=2)})) in (
        set(), {("a", "y")})


def test_a_convolution_takes_normalization_sum_and_activation():
    weights = {"w": floats(4, 2, 3, 3), "b": floats(4, seed=1), "s": floats(4, seed=2), "o": floats(4, seed=3), "m": floats(4, seed=4),
               "v": np.abs(floats(4, seed=5)) + 0.1}
    text = """f (float[2, 4, 5, 6] x, float[2, 4, 3, 6] r) => (float[2, 4, 3, 6] y) {
        a = Conv <group = 2, pads = [0, 0, 1, 3], strides = [2, 1], dilations = [1, 2]> (x, w, b)
        c = BatchNormalization <epsilon = 0.01> (a, s, o, m, v)
        d = Sum (r, c, r)
        y = LeakyRelu <alpha = 0.2> (d) }"""
    inputs = {"x": floats(2, 4, 5, 6), "r": floats(2, 4, 3, 6, seed=6)}
    text = text.replace("2, 4, 3, 6", "2, 4, 2, 5")
    inputs["r"] = floats(2, 4, 2, 5, seed=6)
    assert fused(check(text, inputs, weights=weights)) == {("a", "c", "d", "y")}


@pytest.mark.parametrize("sizes", [(7,), (5, 6), (3, 4, 5)])
def test_convolutions_of_all_ranks(sizes):
    n = len(sizes)
    inputs, weights = {"x": floats(2, 3, *sizes)}, {"w": floats(4, 3, *[2] * n), "b": floats(4, seed=1)}
    shape = ", ".join(str(size - 1) for size in sizes)
    text = f"f (float[2, 3, {', '.join(map(str, sizes))}] x) => (float[2, 4, {shape}] y) {{ a = Conv (x, w, b) y = Sigmoid (a) }}"
    assert fused(check(text, inputs, weights=weights)) == {("a", "y")}


@pytest.mark.parametrize("a, b", [((2, 1, 3, 4), (5, 4, 6)), ((3, 4), (2, 4, 6)), ((2, 3, 4), (4, 6)), ((3, 4), (4, 6))])
def test_products_whose_batches_broadcast(a, b):
    y = (*np.broadcast_shapes(a[:-2], b[:-2]), 3, 6)
    text = f"f (float[{', '.join(map(str, a))}] x, float[{', '.join(map(str, b))}] z) => (float[{', '.join(map(str, y))}] y) " \
        "{ a = MatMul (x, z) y = Swish <alpha = 0.5> (a) }"
    assert fused(check(text, {"x": floats(*a), "z": floats(*b, seed=1)}, opset=24)) == {("a", "y")}


def test_groups_of_bfloat16():
    text = "f (bfloat16[3, 4] x) => (bfloat16[3, 5] y) { a = MatMul (x, w) b = Add (a, c) y = Tanh (b) }"
    bfloat16 = onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16)
    x, w, c = (floats(*shape, seed=k).astype(bfloat16) for k, shape in enumerate([(3, 4), (4, 5), (5,)]))
    prepared = dnnkern.onnx.prepare(parsed(text, weights={"w": w, "c": c}))
    y = prepared.run([x]).y
    x, w, c = (t.astype(np.float64) for t in (x, w, c))
    assert y.dtype == bfloat16 and fused(prepared.report()) == {("a", "b", "y")}
    np.testing.assert_allclose(y.astype(np.float64), np.tanh(x @ w + c), rtol=2 ** -8)


def test_gelu_of_plain_operations_is_one_group():
    weights = {"root": np.array(2 ** 0.5, np.float32), "one": np.array(1, np.float32), "half": np.array(0.5, np.float32)}
    text = "f (float[3, 5] x) => (float[3, 5] y) { a = Div (x, root) b = Erf (a) c = Add (b, one) d = Mul (x, c) y = Mul (d, half) }"
    assert fused(check(text, {"x": floats(3, 5)}, weights=weights)) == {("a", "b", "c", "d", "y")}


@pytest.mark.parametrize("text, groups", [
    ("y, float[3, 4] a) { a = MatMul (x, w) y = Relu (a) }", set()),                                  # a is a result
    ("y) { a = MatMul (x, w) b = Relu (a) c = Softmax (a) y = Add (b, c) }", {("b", "y")}),             # a is read outside
    ("y) { a = MatMul (x, w) b = Relu (a) c = Neg (a) d = Softmax (x) y = Sum (b, c, d) }", {("a", "b", "c", "y")}),
    ("y) { a = Relu (x) b = Softmax (a) c = Neg (b) y = Exp (c) }", {("c", "y")})])
def test_groups_end_where_others_read(text, groups):
    report = check(f"f (float[3, 4] x) => (float[3, 4] {text}", {"x": floats(3, 4)}, weights={"w": floats(4, 4, seed=1)})
    assert fused(report) == groups


def test_a_group_without_a_graph_runs_node_by_node():
    text = "f (float[3, 4] x) => (float[2, 3, 4] y) { a = Relu (x) y = Add (a, z) }"  # more dimensions than the first
    report = check(text, {"x": floats(3, 4)}, weights={"z": floats(2, 1, 1, seed=1)})
    assert fused(report) == set() and [row.calls for row in report] == [("activation_fwd",), ("binary",)]
    assert "expected 2 dimensions" in report[0].reason


# ---- memory

def test_weights_are_uploaded_once(monkeypatch):
    counted, uploaded = [], _values.uploaded
    monkeypatch.setattr(_values, "uploaded", lambda x: counted.append(x.shape) or uploaded(x))
    model, inputs = small("resnet")
    prepared = dnnkern.onnx.prepare(model)
    assert sorted(counted) == sorted(tuple(t.dims) for t in model.graph.initializer)
    prepared.run(inputs)
    counted.clear()
    prepared.run(inputs)
    assert counted == [inputs["x"].shape]


def test_values_are_freed_after_their_last_reader(monkeypatch):
    alive, run = [], Node.run

    def counting(self, scope):
        alive.append(sum(isinstance(o, Value) for o in gc.get_objects()))
        return run(self, scope)
    monkeypatch.setattr(Node, "run", counting)
    chain = "\n".join(f"a{k + 1} = Softmax (a{k})" for k in range(9))
    prepared = dnnkern.onnx.prepare(parsed(f"f (float[2, 3] a0) => (float[2, 3] a9) {{ {chain} }}"), fuse=False)
    gc.collect()
    prepared.run([floats(2, 3)])
    assert max(alive) - alive[0] <= 1, alive


def test_groups_keep_nothing_of_a_run():
    def values():
        gc.collect()
        return sum(isinstance(o, Value) for o in gc.get_objects())
    prepared = dnnkern.onnx.prepare(small("resnet")[0])
    before = values()
    results = prepared.run([floats(2, 3, 9, 9)])
    made = sum(len(plan.made_of) for unit in prepared.program.units if isinstance(unit, Group) for plan in unit.plans.values())
    assert made == 3 and values() - before == made and results.y.shape == (2, 5)


def test_device_arrays_in_and_out():
    prepared = dnnkern.onnx.prepare(parsed("f (float[N] x) => (float[N] y) { y = Relu (x) }"))
    x = floats(6)
    found = prepared.run([cuda.to_device(x)], numpy=False).y
    assert hasattr(found, "copy_to_host") and (found.copy_to_host() == np.maximum(x, 0)).all()
    strided = cuda.to_device(floats(6, 2))[:, 1]
    assert (prepared.run([strided]).y == np.maximum(strided.copy_to_host(), 0)).all()


# ---- ONNX's interface

def test_the_interface_of_backends():
    assert issubclass(dnnkern.onnx.Backend, onnx.backend.base.Backend)
    ours, other = ("CPU", "CUDA") if HOST_MEMORY else ("CUDA", "CPU")
    assert [dnnkern.onnx.supports_device(d) for d in (ours, f"{ours}:0", f"{ours}:99", other, "TPU", "CPU:x")] == [True, True, *[False] * 4]
    model, inputs = small("lstm")
    results = dnnkern.onnx.run_model(model, inputs, ours)
    assert results.h is results["h"] and results[1] is results.h
    assert isinstance(dnnkern.onnx.prepare(model), onnx.backend.base.BackendRep)
    assert dnnkern.onnx.is_compatible(model) and not dnnkern.onnx.is_compatible(b"x")
    node = onnx.helper.make_node("Clip", ["x", "", "top"], ["y"])
    assert dnnkern.onnx.run_node(node, [np.array([-3, 3], np.float32), np.array(1, np.float32)]).y.tolist() == [-3, 1]
    old = onnx.helper.make_node("Clip", ["x"], ["y"], max=1.0)
    assert dnnkern.onnx.run_node(old, [np.array([-3, 3], np.float32)], opset_version=6).y.tolist() == [-3, 1]
    with pytest.raises(ModelError, match=f"device '{other}'; expected '{ours}'.* this process runs on {DEVICE}"):
        dnnkern.onnx.prepare(model, other)


def test_reports_before_and_after_a_run():
    text = "f (float[3, 3] x) => (float y) { a = Relu (x) b = Neg (a) y = Det (b) }"
    prepared = dnnkern.onnx.prepare(parsed(text))
    assert [(r.name, r.by, r.calls, r.fused, r.reason, r.runs) for r in prepared.report()] == [
        ("a", "dnnkern", ("activation_fwd",), ("b",), None, 0), ("b", "dnnkern", ("unary",), ("a",), None, 0),
        ("y", "host", (), (), "no call computes it", 0)]
    prepared.run([floats(3, 3)])
    assert [(r.by, r.calls, r.runs) for r in prepared.report()] == [("dnnkern", ("graph",), 1)] * 2 + [("host", (), 1)]


# ---- operators whose cases in ONNX leave something out

def test_gather_of_indices_that_only_the_device_has():
    text = """f (float[4, 5] x, float[6, 4, 3] v) => (float[6, 5, 3] z, float[5, 4, 3] u, int64[5] i) {
        i = ArgMin <axis = 0, keepdims = 0> (x)
        z = Gather <axis = 1> (v, i)
        u = Gather (v, i)
    }"""
    check(text, {"x": floats(4, 5), "v": floats(6, 4, 3, seed=1)})
    ids = np.array([[-1, 0], [2, -4]])
    for axis, shape in ((0, (2, 2, 3, 5)), (1, (4, 2, 2, 5)), (-1, (4, 3, 2, 2))):
        x = floats(4, 3, 5)
        i = ids if axis == 0 else np.where(ids == -4, -3, ids)
        found = dnnkern.onnx.run_node(onnx.helper.make_node("Gather", ["x", "i"], ["y"], axis=axis), [x, i]).y
        assert found.shape == shape and (found == np.take(x, i, axis)).all()
        bits = np.random.default_rng(1).integers(0, 9, (4, 3, 5))
        found = dnnkern.onnx.run_node(onnx.helper.make_node("Gather", ["x", "i"], ["y"], axis=axis), [bits > 4, i]).y
        assert (found == np.take(bits > 4, i, axis)).all()


def test_negative_indices_on_the_device():
    prepared = dnnkern.onnx.prepare(parsed("f (float[3, 4] x, int64[N] i) => (float[N, 4] y, float[3, N] z) "
                                           "{ y = Gather (x, i) z = Gather <axis = 1> (x, i) }"))
    x, i = floats(3, 4), np.array([-1, 0, -3, 2])
    y, z = prepared.run({"x": x, "i": cuda.to_device(i)})
    assert (y == x[i]).all() and (z == np.take(x, i, 1)).all()


@pytest.mark.parametrize("equation, shapes", [
    ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]), ("bqhd,bkhd->bhqk", [(2, 3, 2, 4), (2, 5, 2, 4)]), ("ij,kl->ijkl", [(2, 3), (4, 5)]),
    ("ijk->kj", [(2, 3, 4)]), ("ij,ij->i", [(3, 4), (3, 4)]), ("ij,j", [(3, 4), (4,)]), ("i,i", [(5,), (5,)]),
    ("ab,cd->", [(2, 3), (4, 5)])])
def test_einsum(equation, shapes):
    operands = {name: floats(*shape, seed=k) for k, (name, shape) in enumerate(zip("xz", shapes))}
    found = dnnkern.onnx.run_node(onnx.helper.make_node("Einsum", list(operands), ["y"], equation=equation), list(operands.values())).y
    assert_close([found], [np.einsum(equation, *(x.astype(np.float64) for x in operands.values()))])


@pytest.mark.parametrize("p", [1, 2])
def test_global_norms_of_images(p):
    x = floats(2, 3, 4, 5)
    found = dnnkern.onnx.run_node(onnx.helper.make_node("GlobalLpPool", ["x"], ["y"], p=p), [x]).y
    assert_close([found], [(np.abs(x.astype(np.float64)) ** p).sum((2, 3), keepdims=True) ** (1 / p)])


@pytest.mark.parametrize("size", [2, 3, 4])
def test_windows_of_lrn(size):
    x = floats(2, 7, 3, 1)
    found = dnnkern.onnx.run_node(onnx.helper.make_node("LRN", ["x"], ["y"], size=size, alpha=0.3, beta=0.6, bias=1.5), [x]).y
    wide, before = x.astype(np.float64), (size - 1) // 2
    sums = np.stack([(wide[:, max(0, c - before):c - before + size] ** 2).sum(1) for c in range(7)], 1)
    assert_close([found], [wide / (1.5 + 0.3 / size * sums) ** 0.6])


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("layout", [0, 1])
def test_recurrent_networks(op, direction, layout):
    d, gates, options = 2 if direction == "bidirectional" else 1, {"LSTM": 4, "GRU": 3, "RNN": 1}[op], {}
    if op == "GRU":
        options["linear_before_reset"] = 1
    x = floats(4, 3, 2)  # steps, samples, inputs
    w, r, b, h = floats(d, gates * 5, 2), floats(d, gates * 5, 5, seed=1), floats(d, gates * 10, seed=2), floats(d, 3, 5, seed=3)
    lengths = np.array([4, 1, 3], np.int32)
    given = [x.swapaxes(0, 1) if layout else x, w, r, b, lengths, h.swapaxes(0, 1) if layout else h]
    names = ["x", "w", "r", "b", "n", "h"]
    node = onnx.helper.make_node(op, names, ["y", "last"], hidden_size=5, direction=direction, layout=layout, **options)
    y, last = dnnkern.onnx.run_node(node, given)
    y, last = (y.transpose(1, 2, 0, 3), last.swapaxes(0, 1)) if layout else (y, last)
    expected, states = np.zeros((4, d, 3, 5)), np.zeros((d, 3, 5))
    for k in range(d):
        backwards = direction == "reverse" or k == 1
        for n, steps in enumerate(lengths):
            rows, states[k, n] = sequence(op, x[:steps, n][::-1 if backwards else 1], w[k], r[k], b[k], h[k, n])
            expected[:steps, k, n] = rows[::-1 if backwards else 1]
    assert_close([y, last], [expected, states], 3e-6)


def sequence(op, x, w, r, b, h):
    """States of one sequence, in float64, by ONNX's formulas and order of gates."""
    x, w, r, b, h = (t.astype(np.float64) for t in (x, w, r, b, h))
    n, c, rows = h.size, 0.0, []
    wb, rb = b[:len(b) // 2], b[len(b) // 2:]

    def sigmoid(t):
        return 1 / (1 + np.exp(-t))
    for step in x:
        a, u = w @ step + wb, r @ h + rb
        if op == "RNN":
            h = np.tanh(a + u)
        elif op == "LSTM":
            i, o, f = (sigmoid((a + u)[k * n:(k + 1) * n]) for k in range(3))
            c = f * c + i * np.tanh((a + u)[3 * n:])
            h = o * np.tanh(c)
        else:
            z, s = (sigmoid((a + u)[k * n:(k + 1) * n]) for k in range(2))
            h = (1 - z) * np.tanh(a[2 * n:] + s * u[2 * n:]) + z * h
        rows.append(h)
    return np.array(rows), h


def test_normalization_by_the_statistics_of_the_batch():
    x, weights = floats(3, 4, 5), [floats(4, seed=k) for k in range(3)] + [np.abs(floats(4, seed=4)) + 0.2]
    node = onnx.helper.make_node("BatchNormalization", ["x", "s", "o", "m", "v"], ["y", "rm", "rv"], training_mode=1, momentum=0.7)
    y, mean, variance = dnnkern.onnx.run_node(node, [x, *weights])
    wide, (s, o, m, v) = x.astype(np.float64), (t.astype(np.float64) for t in weights)
    batch = wide.mean((0, 2)), wide.var((0, 2))
    normal = (wide - batch[0][:, None]) / np.sqrt(batch[1][:, None] + 1e-5)
    assert_close([y, mean, variance], [normal * s[:, None] + o[:, None], 0.7 * m + 0.3 * batch[0], 0.7 * v + 0.3 * batch[1]])


def test_branches_and_loops_run_on_our_functions():
    text = """f (bool c, int64 n, float[3] x) => (float[3] y, float[M, 3] z) {
        y0 = If (c) <then_branch = g () => (float[3] t) { t = Relu (x) }, else_branch = h () => (float[3] e) { e = Neg (x) }>
        y, z = Loop (n, , y0) <body = b (int64 i, bool g0, float[3] s) => (bool g1, float[3] s1, float[3] s2) {
            g1 = Identity (g0) s1 = Add (s, x) s2 = Exp (s1) }>
    }"""
    for c in (True, False):
        prepared = dnnkern.onnx.prepare(parsed(text))
        x = floats(3)
        y, z = prepared.run({"c": np.array(c), "n": np.array(4), "x": x})
        wide = x.astype(np.float64)
        first = np.maximum(wide, 0) if c else -wide
        assert_close([y, z], [first + 4 * wide, np.exp(first + np.arange(1, 5)[:, None] * wide)])
        ran = {row.op: row.calls for row in prepared.report() if row.runs and row.by == "dnnkern"}
        assert ran["Exp"] == ("unary",) or "graph" in ran["Exp"]
        assert ("Relu" if c else "Neg") in ran


def test_scans_run_on_our_functions():
    text = """f (float[3] s, float[2, 4, 3] x) => (float[3] t, float[3, 4] y) {
        t, y = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1], scan_output_axes = [1],
                     scan_output_directions = [1], body = b (float[3] s0, float[2, 3] r) => (float[3] s1, float[3] o) {
            two = Constant <value_ints = [0]> () m = ReduceMax <keepdims = 0> (r, two) s1 = Add (s0, m) o = Tanh (s1) }> (s, x)
    }"""
    s, x = floats(3), floats(2, 4, 3)
    prepared = dnnkern.onnx.prepare(parsed(text))
    t, y = prepared.run([s, x])
    states = s + np.cumsum(x.astype(np.float64).max(0)[::-1], 0)
    assert_close([t, y], [states[-1], np.tanh(states[::-1]).T])
    assert {row.by for row in prepared.report()} == {"dnnkern"}


def test_functions_of_the_model():
    text = """f (float[3] x) => (float[3] y) { y = my.twice (x) }
        <domain: "my", opset_import: ["": 21]> twice (a) => (b) { b = Add (a, a) }"""
    model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 21, "my": 1]>\n' + text)
    assert dnnkern.onnx.run_model(model, [np.array([1, 2, 3], np.float32)]).y.tolist() == [2, 4, 6]


@pytest.mark.parametrize("batch, shape", [(0, (2, 2)), (0, (2, 3, 1)), (1, (3, 2)), (1, (3, 2, 1)), (2, (3, 4, 2, 1))])
def test_several_indices_each(batch, shape):
    x, rng = floats(3, 4, 5), np.random.default_rng(2)
    i = rng.integers(-3, 3, shape)
    found = dnnkern.onnx.run_node(onnx.helper.make_node("GatherND", ["x", "i"], ["y"], batch_dims=batch), [x, i]).y
    pairs = zip(x.reshape(-1, *x.shape[batch:]), i.reshape(-1, *shape[batch:]))
    expected = np.stack([one[tuple(np.moveaxis(of, -1, 0))] for one, of in pairs])
    expected = expected.reshape(*x.shape[:batch], *expected.shape[1:])
    assert found.shape == expected.shape and (found == expected).all()
    with pytest.raises(ModelError, match="GatherND.*: got indices out of the extents"):
        dnnkern.onnx.run_node(onnx.helper.make_node("GatherND", ["x", "i"], ["y"]), [x, np.array([[3]])])


@pytest.mark.parametrize("upper", [0, 1])
def test_triangles(upper):
    x = floats(2, 4, 5)
    for k in (-2, 0, 3):
        found = dnnkern.onnx.run_node(onnx.helper.make_node("Trilu", ["x", "k"], ["y"], upper=upper), [x, np.array(k)]).y
        assert (found == (np.triu if upper else np.tril)(x, k)).all()


def test_random_numbers():
    run = dnnkern.onnx.run_node
    normal = onnx.helper.make_node("RandomNormal", [], ["y"], shape=[40, 50], mean=3.0, scale=2.0, seed=1.5)
    y = run(normal, []).y
    assert y.dtype == np.float32 and abs(y.mean() - 3) < 0.2 and abs(y.std() - 2) < 0.2 and (run(normal, []).y == y).all()
    uniform = onnx.helper.make_node("RandomUniformLike", ["x"], ["y"], low=-1.0, high=2.0)
    y = run(uniform, [y]).y
    assert -1 <= y.min() < -0.9 and 1.9 < y.max() <= 2 and abs(y.mean() - 0.5) < 0.1 and (run(uniform, [y]).y != y).any()
    p = np.repeat(np.array([0, 0.25, 1], np.float32), 2000).reshape(3, 2000)
    y = run(onnx.helper.make_node("Bernoulli", ["p"], ["y"], dtype=onnx.TensorProto.BOOL, seed=3.0), [p]).y
    assert y.dtype == bool and np.allclose(y.mean(1), [0, 0.25, 1], atol=0.04) and 0.2 < y[1].mean() < 0.3
    doubles = onnx.helper.make_node("RandomUniform", [], ["y"], shape=[3], dtype=onnx.TensorProto.DOUBLE)
    assert run(doubles, []).y.dtype == np.float64


def test_quantization_by_blocks():
    x, scale, zero = floats(4, 6), np.abs(floats(2, 6, seed=1)) * 0.02 + 0.001, np.array([[3] * 6, [-5] * 6], np.int8)
    names = ["x", "s", "z"]
    quantized = dnnkern.onnx.run_node(onnx.helper.make_node("QuantizeLinear", names, ["y"], axis=0, block_size=2), [x, scale, zero]).y
    wide = np.rint(x.astype(np.float64) / scale.repeat(2, 0)) + zero.repeat(2, 0)
    assert quantized.dtype == np.int8 and (quantized == np.clip(wide, -128, 127)).all()
    assert quantized.min() == -128 or quantized.max() == 127
    back = dnnkern.onnx.run_node(onnx.helper.make_node("DequantizeLinear", names, ["y"], axis=0, block_size=2), [quantized, scale, zero]).y
    assert_close([back], [(quantized.astype(np.float64) - zero.repeat(2, 0)) * scale.repeat(2, 0)])


def test_integers_and_booleans_move_and_compare():
    x = np.array([[3, 1], [2, 5]], np.int64)

    def run(op, inputs, **attributes):
        return dnnkern.onnx.run_node(onnx.helper.make_node(op, list("abcdef"[:len(inputs)]), ["y"], **attributes), inputs).y
    assert (run("Transpose", [x]) == x.T).all() and (run("Concat", [x > 2, x < 2], axis=1) == np.hstack([x > 2, x < 2])).all()
    assert (run("ReduceSum", [x], keepdims=0) == x.sum()).all() and run("ArgMax", [x.astype(np.int32)], axis=1).tolist() == [[0], [1]]
    assert (run("Xor", [x > 2, x < 5]) == ((x > 2) ^ (x < 5))).all() and (run("Equal", [x > 2, x < 5]) == ((x > 2) == (x < 5))).all()
    assert run("Add", [np.array([127], np.int8), np.array([1], np.int8)]).tolist() == [-128]
    assert run("Div", [np.array([7, -7], np.int32), np.array([2, 2], np.int32)]).tolist() == [3, -3]
    assert run("Tile", [x > 2, np.array([2, 3])]).tolist() == np.tile(x > 2, (2, 3)).tolist()
    assert run("Pad", [x, np.array([-1, 1, 0, 0]), np.array(7)]).tolist() == [[7, 2, 5]]
    assert run("Slice", [x, np.array([-100]), np.array([-1000]), np.array([0]), np.array([-1])]).shape == (0, 2)


# ---- bad input

def broken(change):
    model, _ = small("resnet")
    change(model)
    return model


def set_op(model, op="Reluu", domain=""):
    model.graph.node[2].op_type, model.graph.node[2].domain = op, domain
    if domain:
        model.opset_import.append(onnx.helper.make_opsetid(domain, 1))


@pytest.mark.parametrize("change, message", [
    (set_op, r"node 'c' \(Reluu\): there is no operator 'Reluu' in opset 21 of domain 'ai.onnx'; expected one of ONNX "),
    (lambda m: set_op(m, "Relu", "com.mine"), r"node 'c' \(com.mine.Relu\): there is no operator 'Relu' in opset 1 of domain 'com.mine'"),
    (lambda m: setattr(m.opset_import[0], "version", 999), r"resnet: got opset 999 of domain 'ai.onnx'; expected 1 to \d+ \(onnx "),
    (lambda m: m.ClearField("opset_import"), "resnet: got no opset_import; expected the opset of domain 'ai.onnx'"),
    (lambda m: m.ClearField("graph"), "got a file without a graph; expected an ONNX model"),
    (lambda m: m.graph.node[3].input.__setitem__(0, "nowhere"), "resnet: got a model that ONNX's checker refuses: .*nowhere"),
    (lambda m: m.graph.initializer[0].dims.__setitem__(0, 5), "resnet: got a model that ONNX's checker refuses: .*w0"),
    (lambda m: m.graph.node[0].attribute[0].ints.pop(), r"node 'a' \(Conv\): got x float32 \(2, 3, 9, 9\)"),
    (lambda m: m.graph.node[11].attribute[0].__setattr__("i", 0),
     r"node 'y' \(Gemm\): got k float32 \(2, 4\), w3 float32 \(5, 4\), b3 float32 \(5,\); ONNX's evaluator: .*dnnkern: matmul: ")])
def test_models_that_cannot_run(change, message):
    with pytest.raises(ModelError, match=message) as caught:
        dnnkern.onnx.prepare(broken(change)).run([floats(2, 3, 9, 9)])
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    model, inputs = small("unet")
    path = str(tmp_path / "model.onnx")
    onnx.save_model(small("unet")[0], path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    expected = dnnkern.onnx.run_model(model, inputs).y
    assert (dnnkern.onnx.run_model(path, inputs).y == expected).all()
    os.remove(tmp_path / "weights.bin")
    with pytest.raises(ModelError, match=rf"{path}: got external data in weights.bin, which is missing; expected it in {tmp_path}"):
        dnnkern.onnx.prepare(path)
    with pytest.raises(ModelError, match="nothing.onnx: No such file or directory; expected a file of an ONNX model"):
        dnnkern.onnx.prepare(str(tmp_path / "nothing.onnx"))
    with pytest.raises(ModelError, match="Is a directory"):
        dnnkern.onnx.prepare(tmp_path)
    with pytest.raises(ModelError, match="model: got 9 bytes that are no ONNX model"):
        dnnkern.onnx.prepare(b"not this!")
    with pytest.raises(ModelError, match="got a file without a graph"):
        dnnkern.onnx.prepare(b"")
    with pytest.raises(TypeError, match="prepare: model is int; expected an onnx.ModelProto, bytes or a path"):
        dnnkern.onnx.prepare(3)


@pytest.mark.parametrize("inputs, message", [
    ([], r"run: got 0 inputs; expected 2: ids int64 \(N, S\), mask float32 \(N, 1, 1, S\)"),
    ({"ids": 0, "masks": 0}, "run: got inputs ids, masks; expected ids, mask"),
    ([np.zeros((2, 5), np.int32), np.zeros((2, 1, 1, 5), np.float32)], r"input 'ids': got int32 \(2, 5\); expected int64 \(N, S\)"),
    ([np.zeros((2, 5, 1), int), np.zeros((2, 1, 1, 5), np.float32)], r"input 'ids': got int64 \(2, 5, 1\); expected int64 \(N, S\)"),
    ([np.zeros((2, 5), int), np.zeros((3, 1, 1, 5), np.float32)],
     r"input 'mask': got float32 \(3, 1, 1, 5\); expected float32 \(N, 1, 1, S\), with N = 2, S = 5"),
    ([np.full((2, 5), 11), np.zeros((2, 1, 1, 5), np.float32)], r"node 'e' \(Gather\): got index 11 into 11 slices; expected -11 to 10"),
    ([np.zeros((2, 7), int), np.zeros((2, 1, 1, 7), np.float32)],
     r"node 'x' \(Add\): got e float32 \(2, 7, 8\), positions float32 \(1, 5, 8\)")])
def test_inputs_that_do_not_fit(inputs, message):
    prepared = dnnkern.onnx.prepare(small("bert")[0])
    with pytest.raises(ModelError, match=message):
        prepared.run(inputs)


def test_damaged_files_raise_one_error():
    """Whatever bytes are lost or changed: a model that runs, or `ModelError`."""
    data, counts = small("lstm")[0].SerializeToString(), [0, 0]
    x, rng = floats(4, 3, 3), np.random.default_rng(20)
    for k in range(120):
        damaged = bytearray(data)
        at = int(rng.integers(len(data)))
        if k % 3 == 0:
            del damaged[at:]
        elif k % 3 == 1:
            del damaged[at:at + int(rng.integers(1, 9))]
        else:
            for n in rng.integers(len(data), size=3):
                damaged[n] = rng.integers(256)
        try:
            dnnkern.onnx.prepare(bytes(damaged)).run([x])
            counts[0] += 1
        except ModelError as error:
            assert "\n" not in str(error) and str(error)
            counts[1] += 1
    assert min(counts) > 10, counts


def test_a_message_names_what_both_said():
    model = parsed("f (float[2, 3] x) => (float[3, 2] y) { y = Transpose <perm = [0, 5]> (x) }")
    with pytest.raises(ModelError, match=r"node 'y' \(Transpose\): got x float32 \(2, 3\); ONNX's evaluator: .*dnnkern: transpose: axes"):
        dnnkern.onnx.prepare(model).run([floats(2, 3)])

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

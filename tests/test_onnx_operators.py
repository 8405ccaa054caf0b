"""Operators of `dnnkern.onnx` whose cases in ONNX leave something out, beside NumPy in float64; subgraphs, functions, integers."""
import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx_models import parsed  # noqa: E402
from test_onnx import assert_close, check, floats, simplest  # noqa: E402, F401 (the last one is a fixture)

import dnnkern.onnx  # noqa: E402
from dnnkern.device import cuda  # noqa: E402
from dnnkern.onnx import ModelError  # noqa: E402


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

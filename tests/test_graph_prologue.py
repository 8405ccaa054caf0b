"""Prologues of graphs: pointwise nodes in front of a product, run as its kernel loads its operands."""
import numpy as np
import pytest
from graphs import T, array_of, execute, like, new_graph

import dnnkern.graph as cudnn
from dnnkern.graph import _engines
from dnnkern.graph._lower import lower
from dnnkern.graph._partition import cuts
from dnnkern.graph.ops import OPERATIONS
from dnnkern.host.dtypes import numpy_dtype

BF16 = numpy_dtype("bfloat16")


def rng():
    return np.random.default_rng(20)


def normal(*shape, dtype=BF16):
    return rng().standard_normal(shape).astype(dtype)


def whole(dtype, *shape):
    return rng().integers(-9, 10, shape).astype(dtype)


def int8_by_bfloat16(graph):
    """int8 in front of a product of bfloat16; bias and ReLU behind it."""
    a, b, bias = whole(np.int8, 2, 13, 24), normal(2, 24, 9), normal(1, 1, 9)
    ta, tb, tbias = (like(graph, x) for x in (a, b, bias))
    y = graph.relu(graph.bias(graph.matmul(graph.identity(ta).set_data_type(T.BFLOAT16), tb), tbias))
    return {ta: a, tb: b, tbias: bias}, y, np.maximum(a.astype(float) @ b.astype(float) + bias.astype(float), 0)


def scale_bias_relu(graph):
    """Scale and bias along k, ReLU, of the left operand; nothing behind."""
    a, b, scale, bias = normal(1, 17, 24), normal(1, 24, 8), normal(1, 1, 24, dtype=np.float32), normal(1, 1, 24, dtype=np.float32)
    ta, tb, ts, tbias = (like(graph, x) for x in (a, b, scale, bias))
    made = graph.relu(graph.bias(graph.scale(ta, ts), tbias)).set_data_type(T.BFLOAT16)
    exact = np.maximum(a.astype(np.float32) * scale + bias, 0).astype(BF16)
    return {ta: a, tb: b, ts: scale, tbias: bias}, graph.matmul(made, tb), exact.astype(float) @ b.astype(float)


def both(graph):
    """Both operands, transposed in memory, the right one scaled by column and by a number; a matrix behind."""
    a, b, scale, more = normal(3, 10, 16).swapaxes(1, 2), whole(np.int8, 1, 12, 10).swapaxes(1, 2), normal(1, 1, 12), normal(3, 16, 12)
    number = np.full((1, 1, 1), 0.5, np.float32)
    ta, tb, ts, tm = (like(graph, x) for x in (a, b, scale, more))
    tn = graph.tensor([1, 1, 1], [1, 1, 1], T.FLOAT, is_pass_by_value=True)
    left = graph.neg(ta).set_data_type(T.BFLOAT16)
    right = graph.mul(graph.mul(tb, tn), ts).set_data_type(T.BFLOAT16)
    exact = (b.astype(np.float32) * 0.5 * scale.astype(np.float32)).astype(BF16)
    return ({ta: a, tb: b, ts: scale, tm: more, tn: number}, graph.add(graph.matmul(left, right), tm),
            -a.astype(float) @ exact.astype(float) + more.astype(float))


def index_of_k(graph):
    """What the program makes depends on where an element is: a triangle of the left operand."""
    a, b = normal(1, 14, 14), normal(1, 14, 6)
    ta, tb = like(graph, a), like(graph, b)
    row, column = (graph.gen_index(ta, axis=axis).set_data_type(T.INT32) for axis in (1, 2))
    zero = graph.tensor_scalar(0.0, cudnn.scalar_type.COMPILE_TIME_CONST)
    low = graph.binary_select(ta, zero, graph.cmp_ge(row, column).set_data_type(T.BOOLEAN)).set_data_type(T.BFLOAT16)
    return {ta: a, tb: b}, graph.matmul(low, tb), np.tril(a.astype(float)) @ b.astype(float)


def convolution(graph):
    """Scale, bias, ReLU of an image with padding, channels last; scale and ReLU behind."""
    x, w = normal(2, 5, 4, 8).transpose(0, 3, 1, 2), normal(16, 3, 3, 8).transpose(0, 3, 1, 2)
    scale, bias, after = (normal(1, c, 1, 1, dtype=np.float32) for c in (8, 8, 16))
    tx, tw, ts, tb, ta = (like(graph, array) for array in (x, w, scale, bias, after))
    made = graph.relu(graph.bias(graph.scale(tx, ts), tb)).set_data_type(T.BFLOAT16)
    y = graph.relu(graph.scale(graph.conv_fprop(made, tw, padding=[1, 1]), ta))
    exact = np.maximum(x.astype(np.float32) * scale + bias, 0).astype(BF16).astype(float)
    padded, found = np.pad(exact, ((0, 0), (0, 0), (1, 1), (1, 1))), np.zeros((2, 16, 5, 4))
    for r in range(3):
        for s in range(3):
            found += np.einsum("nchw,kc->nkhw", padded[:, :, r:r + 5, s:s + 4], w[:, :, r, s].astype(float))
    return {tx: x, tw: w, ts: scale, tb: bias, ta: after}, y, np.maximum(found * after, 0)


def filter_gradient(graph):
    """The same image in front of the gradient of its filters."""
    x, d = normal(2, 5, 4, 8).transpose(0, 3, 1, 2), normal(2, 5, 4, 16).transpose(0, 3, 1, 2)
    scale, bias = (normal(1, 8, 1, 1, dtype=np.float32) for _ in range(2))
    tx, td, ts, tb = (like(graph, array) for array in (x, d, scale, bias))
    made = graph.relu(graph.bias(graph.scale(tx, ts), tb)).set_data_type(T.BFLOAT16)
    y = graph.conv_wgrad(made, td, padding=[1, 1]).set_dim([16, 8, 3, 3]).set_stride([72, 1, 24, 8])
    exact = np.maximum(x.astype(np.float32) * scale + bias, 0).astype(BF16).astype(float)
    padded, found = np.pad(exact, ((0, 0), (0, 0), (1, 1), (1, 1))), np.zeros((16, 8, 3, 3))
    for r in range(3):
        for s in range(3):
            found[:, :, r, s] = np.einsum("nchw,nkhw->kc", padded[:, :, r:r + 5, s:s + 4], d.astype(float))
    return {tx: x, td: d, ts: scale, tb: bias}, y, found


GRAPHS = int8_by_bfloat16, scale_bias_relu, both, index_of_k, convolution, filter_gradient


@pytest.mark.parametrize("make", GRAPHS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("cut", ["made as it is loaded", "made before"])
def test_values(make, cut, monkeypatch):
    graph = new_graph(T.BFLOAT16)
    pack, y, expected = make(graph)
    y.set_output(True).set_data_type(T.FLOAT)
    graph.validate()
    found = cuts(graph.spec)
    assert len(found[0]) == 1, "all in one part"
    monkeypatch.setattr(_engines, "cuts", lambda spec: found[:1] if cut == "made as it is loaded" else found[1:])
    graph.build([cudnn.heur_mode.A])
    assert (len(graph._candidate.steps) == 1) == (cut == "made as it is loaded")
    out = array_of(y)
    execute(graph, {**pack, y: out})
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("make", GRAPHS, ids=lambda f: f.__name__)
def test_one_kernel_without_workspace(make):
    """Where an algorithm has both: `naive` and `mma` alike run the prologue."""
    graph = new_graph(T.BFLOAT16)
    _, y, _ = make(graph)
    y.set_output(True)
    graph.validate()
    (step,), temporaries = lower(graph.spec, cuts(graph.spec)[0], OPERATIONS)
    assert not temporaries and len(step.nodes) == len(graph.nodes) and step.problem.prologue_a is not None


def reasons(graph):
    graph.validate()
    return [len(parts) for parts in cuts(graph.spec)]


def test_what_is_used_elsewhere_is_stored():
    graph = new_graph(T.BFLOAT16)
    x, w = graph.tensor([1, 8, 8], [64, 8, 1]), graph.tensor([1, 8, 8], [64, 8, 1])
    hot = graph.relu(x).set_data_type(T.BFLOAT16)
    graph.add(graph.matmul(hot, w), hot).set_output(True)
    assert reasons(graph) == [2, 3]


def test_an_output_is_stored():
    graph = new_graph(T.BFLOAT16)
    x, w = graph.tensor([1, 8, 8], [64, 8, 1]), graph.tensor([1, 8, 8], [64, 8, 1])
    hot = graph.relu(x).set_output(True).set_data_type(T.BFLOAT16)
    graph.matmul(hot, w).set_output(True)
    assert reasons(graph) == [2]


def test_one_tensor_as_both_operands_is_made_once():
    graph = new_graph(T.BFLOAT16)
    x = graph.tensor([1, 8, 8], [64, 8, 1])
    hot = graph.relu(x).set_data_type(T.BFLOAT16)
    graph.matmul(hot, hot).set_output(True)
    assert reasons(graph) == [2]


def test_a_broadcast_operand_is_made_before():
    """No whole array is loaded: the part is split, and runs."""
    graph = new_graph(T.BFLOAT16)
    column, row, w = graph.tensor([1, 8, 1], [8, 1, 1]), graph.tensor([1, 1, 8], [8, 8, 1]), graph.tensor([1, 8, 8], [64, 8, 1])
    y = graph.matmul(graph.add(column, row).set_data_type(T.BFLOAT16), w).set_output(True).set_data_type(T.FLOAT)
    graph.validate()
    assert [len(lower(graph.spec, parts, OPERATIONS)[0]) for parts in cuts(graph.spec)] == [2, 2]
    graph.build([cudnn.heur_mode.A])
    c, r, b = normal(1, 8, 1), normal(1, 1, 8), normal(1, 8, 8)
    out = array_of(y)
    execute(graph, {column: c, row: r, w: b, y: out})
    exact = (c.astype(np.float32) + r.astype(np.float32)).astype(BF16).astype(float) @ b.astype(float)
    np.testing.assert_allclose(out, exact, rtol=1e-5, atol=1e-4)

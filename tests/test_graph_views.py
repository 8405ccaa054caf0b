"""Transposes, slices and reshapes that move nothing."""
import numpy as np
import pytest
from graphs import close, like, new_graph, run

import dnnkern.graph as cudnn
from dnnkern.device import HOST_MEMORY


def test_views_move_nothing():
    """A transpose, slices and a reshape of an input, and a transpose of an intermediate result, are strides of what reads them."""
    x, w = np.arange(2 * 6 * 8, dtype=np.float32).reshape(2, 6, 8) / 50, np.ones((2, 6, 5), np.float32)
    w[:, 1:4] = 0.5
    graph = new_graph()
    tx, tw = like(graph, x), like(graph, w)
    part = graph.slice(tx, [slice(None), slice(None), slice(1, 8, 3)])
    y = graph.matmul(graph.transpose(part, [0, 2, 1]), tw)
    z = graph.softmax(graph.transpose(y, [0, 2, 1]), 2).set_output(True)
    flat = graph.relu(graph.reshape(tx, reshape_mode=cudnn.reshape_mode.LOGICAL).set_dim([12, 8])).set_output(True)
    got = run(graph, {tx: x, tw: w}, [z, flat])
    assert [step.op for step in graph._candidate.steps if step.op in ("transpose", "strided_slice")] == []
    product = (x[:, :, 1::3].transpose(0, 2, 1).astype(float) @ w).transpose(0, 2, 1)
    e = np.exp(product - product.max(2, keepdims=True))
    close(got[0], e / e.sum(2, keepdims=True), factor=64, scale=1)
    np.testing.assert_array_equal(got[1], x.reshape(12, 8))


def test_a_view_of_a_square_result_is_not_read_in_its_own_kernel():
    """y + y.T: the sum waits for all of y, whether a product or pointwise nodes make it."""
    x = np.arange(25, dtype=np.float32).reshape(1, 5, 5) / 10
    for make in (lambda g, t: g.relu(t), lambda g, t: g.matmul(t, t)):
        graph = new_graph()
        t = like(graph, x)
        y = make(graph, t)
        z = graph.add(y, graph.transpose(y, [0, 2, 1])).set_output(True)
        got, = run(graph, {t: x}, [z])
        expected = x.astype(float) if len(graph.nodes) and graph.nodes[0].operation.name == "relu" else x.astype(float) @ x
        close(got, expected + expected.transpose(0, 2, 1), factor=64, scale=50)


def test_an_output_over_an_input_that_is_read_through_a_view_takes_a_copy():
    if not HOST_MEMORY:
        pytest.skip("arrays of the host")
    x = np.arange(25, dtype=np.float32).reshape(1, 5, 5)
    graph = new_graph()
    t = like(graph, x)
    y = graph.add(t, graph.transpose(t, [0, 2, 1])).set_output(True)
    graph.build([cudnn.heur_mode.A])
    with pytest.raises(RuntimeError, match="256 of them for copies of the tensor of uid 1"):
        graph.execute({t: x, y: x}, None)

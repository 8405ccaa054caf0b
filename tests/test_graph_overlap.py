"""Results over operands that are still needed: a copy in the workspace, where no kernel reads before it writes."""
import numpy as np
import pytest
from graphs import close, like, new_graph

import dnnkern.graph as cudnn
from dnnkern.device import HOST_MEMORY, cuda

A = [cudnn.heur_mode.A]


def draw(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def softmax(x):
    return np.exp(x.astype(float)) / np.exp(x.astype(float)).sum(-1, keepdims=True)


def two_readers(x):
    """-x and softmax(x): two kernels, of which the first may write over x."""
    graph = new_graph()
    a = like(graph, x).set_name("x")
    y, z = graph.neg(a).set_output(True).set_name("y"), graph.softmax(a, x.ndim - 1).set_output(True).set_name("z")
    graph.build(A)
    return graph, a, y, z


def execute(graph, pack, size):
    """On the device, with a workspace of so many bytes."""
    if HOST_MEMORY:
        return graph.execute(pack, np.full(size, 0xFF, np.uint8))
    sent = {id(array): (array, cuda.to_device(array)) for array in pack.values()}
    graph.execute({key: sent[id(array)][1] for key, array in pack.items()}, cuda.to_device(np.zeros(size, np.uint8)) if size else None)
    for array, there in sent.values():
        there.copy_to_host(array)


@pytest.mark.parametrize("over", ["y", "z"])
def test_a_result_over_what_another_kernel_reads(over):
    x = draw(6, 40)
    graph, a, y, z = two_readers(x)
    size = graph.get_workspace_size_with_copies()
    assert size - graph.get_workspace_size() == 1024, "960 bytes, in multiples of 256"
    first, second = x.copy(), np.empty_like(x)
    execute(graph, {a: first, y: first if over == "y" else second, z: second if over == "y" else first}, size)
    minus, soft = (first, second) if over == "y" else (second, first)
    np.testing.assert_array_equal(minus, -x)
    close(soft, softmax(x), factor=64)
    assert graph.get_workspace_size() == size - 1024, "that of calls whose buffers are apart"


def test_with_less_workspace_nothing_is_written():
    if not HOST_MEMORY:
        pytest.skip("buffers of the host")
    x = draw(6, 40)
    graph, a, y, z = two_readers(x)
    need, buffer, other = graph.get_workspace_size_with_copies(), x.copy(), np.zeros_like(x)
    pack = {a: buffer, y: buffer, z: other}
    message = f"the plan needs {need} bytes .1024 of them for copies of tensor 'x' .uid 1., of which a result overlaps"
    for bad in (None, np.empty(need - 1, np.uint8)):
        with pytest.raises(RuntimeError, match=f"INVALID_VALUE: execute: .*{message}"):
            graph.execute(pack, bad)
    with pytest.raises(RuntimeError, match=f"the workspace is an address, of unknown size; expected an array of {need} bytes"):
        graph.execute(pack, np.empty(need, np.uint8).ctypes.data)
    np.testing.assert_array_equal(buffer, x)
    assert not other.any()
    graph.execute(pack, np.empty(need, np.uint8))
    np.testing.assert_array_equal(buffer, -x)


@pytest.mark.parametrize("first", [1, 3, -5])
def test_a_result_a_few_elements_further(first):
    """Which no kernel can compute in place: it would read what it has written."""
    if not HOST_MEMORY:
        pytest.skip("buffers of the host")
    graph = new_graph()
    x = graph.tensor([6, 16], [16, 1], name="x").set_alignment(4)
    y = graph.neg(x).set_output(True).set_name("y").set_alignment(4)
    graph.build(A)
    memory = draw(112)
    start, end = max(-first, 0), max(first, 0)
    before, workspace = memory.copy(), np.empty(graph.get_workspace_size_with_copies(), np.uint8)
    graph.execute({x: memory[start:], y: memory[end:]}, workspace)
    expected = before.copy()
    expected[end:end + 96] = -before[start:start + 96]
    np.testing.assert_array_equal(memory, expected)


def test_several_operands_and_a_chain():
    """Both operands of a product lie under results that are written before it."""
    x, w = draw(1, 8, 8), draw(1, 8, 8) + 1
    graph = new_graph()
    a, b = like(graph, x), like(graph, w)
    first, second = graph.softmax(a, 2).set_output(True), graph.softmax(b, 2).set_output(True)
    y = graph.matmul(graph.matmul(first, second), graph.add(a, b)).set_output(True)
    graph.build(A)
    one, two, out = x.copy(), w.copy(), np.empty_like(x)
    execute(graph, {a: one, b: two, first: one, second: two, y: out}, graph.get_workspace_size_with_copies())
    close(one, softmax(x), factor=64)
    close(two, softmax(w), factor=64)
    close(out, softmax(x) @ softmax(w) @ (x.astype(float) + w), factor=256, scale=10)


def test_the_last_result_over_a_first_operand():
    """Through a view, and by a kernel that takes whole rows."""
    x = draw(1, 8, 8)
    graph = new_graph()
    a = like(graph, x)
    y = graph.add(a, graph.transpose(a, [0, 2, 1])).set_output(True)
    graph.build(A)
    buffer = x.copy()
    execute(graph, {a: buffer, y: buffer}, graph.get_workspace_size_with_copies())
    np.testing.assert_array_equal(buffer, x + x.transpose(0, 2, 1))


def test_two_results_must_be_apart():
    x = draw(6, 40)
    graph, a, y, z = two_readers(x)
    out = np.zeros_like(x)
    with pytest.raises(ValueError, match="INVALID_VARIANT_PACK: tensor '[yz]'.* is written while tensor '[yz]'.*buffers that are apart"):
        execute(graph, {a: x, y: out, z: out}, graph.get_workspace_size_with_copies())
    assert not out.any()


def test_plans_with_copies_are_kept(monkeypatch):
    from dnnkern.graph import _plan
    x = draw(6, 40)
    graph, a, y, z = two_readers(x)
    loaded, load = [], _plan.load
    monkeypatch.setattr(_plan, "load", lambda *given: loaded.append(1) or load(*given))
    for _ in range(3):
        buffer = x.copy()
        execute(graph, {a: buffer, y: buffer, z: np.empty_like(x)}, graph.get_workspace_size_with_copies())
        np.testing.assert_array_equal(buffer, -x)
    assert len(loaded) == 1


def test_the_wrapper_takes_a_larger_workspace():
    if not HOST_MEMORY:
        pytest.skip("arrays of the host")
    x = draw(6, 40)
    with cudnn.Graph(inputs=["minus::input"], outputs=["minus::OUT_0", "soft::Y"]) as g:
        g.neg(x, name="minus").set_output(True)
        g.softmax(x, 1, name="soft").set_output(True)
    buffer = x.copy()
    minus, soft = g(buffer, {"minus::OUT_0": buffer})
    assert minus is buffer
    np.testing.assert_array_equal(minus, -x)
    close(soft, softmax(x), factor=64)
    buffer = x.copy()
    with pytest.raises(RuntimeError, match="bytes .1024 of them for copies of"):
        g(buffer, {"minus::OUT_0": buffer}, workspace=np.empty(1, np.uint8))
    np.testing.assert_array_equal(buffer, x)


@pytest.mark.parametrize("method", ["rope", "rope_backward"])
def test_rotary_embeddings_in_place(method):
    """No copy: the kernel reads before it writes."""
    x, angles = draw(2, 3, 5, 8), np.tile(draw(5, 1, 1, 4), 2)
    graph = new_graph()
    a, freqs = like(graph, x).set_name("x"), like(graph, angles)
    y = getattr(graph, method)(a, freqs).set_output(True)
    graph.build(A)
    apart, over = np.empty_like(x), x.copy()
    execute(graph, {a: x, freqs: angles, y: apart}, graph.get_workspace_size())
    execute(graph, {a: over, freqs: angles, y: over}, graph.get_workspace_size())
    np.testing.assert_array_equal(over, apart)
    low, high, t = x[..., :4].astype(float), x[..., 4:].astype(float), angles[:, 0, 0, :4] * (1 if method == "rope" else -1)
    close(over, np.concatenate([low * np.cos(t) - high * np.sin(t), high * np.cos(t) + low * np.sin(t)], -1), scale=4)

"""Bad input of graphs: each raises what cuDNN would, with names, before anything is launched or written."""
import numpy as np
import pytest
from graphs import T, new_graph

import dnnkern.graph as cudnn
from dnnkern.device import HOST_MEMORY

A = [cudnn.heur_mode.A]


def built():
    graph = new_graph()
    x = graph.tensor([4, 8], [8, 1], name="x", uid=11)
    y = graph.softmax(graph.neg(x, name="minus")).set_output(True).set_name("y").set_uid(12)
    graph.build(A)
    return graph, x, y


def test_a_cycle():
    """Results are made after their operands; outputs that the caller makes can close a cycle all the same."""
    from dnnkern.graph._infer import GraphNode
    from dnnkern.graph.ops import OPERATIONS
    graph = new_graph()
    x = graph.tensor([4, 8], [8, 1], name="x")
    y = graph.abs(x, name="first")
    graph.nodes.append(GraphNode(graph, OPERATIONS["neg"], "second", {"IN_0": y}, {"OUT_0": x}, {}, T.NOT_SET))
    x._producer = graph.nodes[-1]
    with pytest.raises(RuntimeError, match="cycle: abs node 'first', neg node 'second'"):
        graph.validate()


def test_a_tensor_of_another_graph():
    other = new_graph().tensor([4], [1], name="theirs")
    with pytest.raises(RuntimeError, match="neg node 'mine': port IN_0: tensor 'theirs' belongs to another graph"):
        new_graph().neg(other, name="mine")


def test_a_virtual_tensor_nobody_makes():
    graph = new_graph()
    graph.neg(graph.tensor([4], [1], is_virtual=True, name="ghost")).set_output(True)
    with pytest.raises(RuntimeError, match="tensor 'ghost' is virtual, and no operation makes it"):
        graph.validate()


def test_by_value_and_virtual():
    graph = new_graph()
    graph.neg(graph.tensor([1], [1], is_virtual=True, is_pass_by_value=True, name="both")).set_output(True)
    with pytest.raises(RuntimeError, match="tensor 'both' is passed by value and virtual at once"):
        graph.validate()


def test_a_type_that_nothing_sets():
    graph = cudnn.pygraph(compute_data_type=T.FLOAT)
    graph.neg(graph.tensor([4], [1], name="x")).set_output(True)
    with pytest.raises(ValueError, match="ATTRIBUTE_NOT_SET: tensor 'x': its data type is not set"):
        graph.validate()


@pytest.mark.parametrize("dim, stride, message", [([4, 2], [1], "1 strides"), ([-1], [1], "negative"), ([1] * 9, [1] * 9, "8 at most")])
def test_dims_and_strides(dim, stride, message):
    with pytest.raises(RuntimeError, match=message):
        new_graph().tensor(dim, stride, name="x")
    with pytest.raises(TypeError, match="'x'.*sequence of ints"):
        new_graph().tensor(["a"], [1], name="x")


@pytest.mark.parametrize("stride", [[2, 1], [0, 1], [4, 4]])
def test_results_whose_elements_share_addresses(stride):
    graph = new_graph()
    graph.neg(graph.tensor([2, 4], [4, 1]), name="minus").set_output(True).set_stride(stride)
    with pytest.raises(ValueError, match="neg node 'minus': port OUT_0.*expected no two elements at one address"):
        graph.validate()


def test_a_duplicate_uid():
    graph = new_graph()
    y = graph.neg(graph.tensor([4], [1], name="x", uid=3), name="minus").set_output(True).set_name("y").set_uid(3)
    with pytest.raises(RuntimeError, match="uid 3 is that of tensor 'y' and of tensor 'x'"):
        graph.validate()
    y.set_uid(4)
    graph.validate()


def test_an_empty_graph():
    graph = cudnn.pygraph("nothing")
    graph.tensor([4], [1], T.FLOAT)
    for call in (graph.validate, graph.build_operation_graph, graph.key, lambda: graph.build(A)):
        with pytest.raises(RuntimeError, match="INVALID_VALUE: graph 'nothing' has no operations"):
            call()
    assert "nodes" in repr(graph)


@pytest.mark.parametrize("call, message", [
    (lambda g, x: g.relu(x, negative_slope="a", name="act"), "relu node 'act': negative_slope is 'a'; expected a number"),
    (lambda g, x: g.gen_index(x, axis=1.5, name="where"), "gen_index node 'where': .*float"),
    (lambda g, x: g.transpose(x, 3, name="turn"), "transpose node 'turn': permutation is 3"),
    (lambda g, x: g.conv_fprop(x, x, padding=[0.5], name="conv"), "conv_fprop node 'conv': pre_padding is"),
    (lambda g, x: g.reduction(x, "SUMMARY", name="sum"), "reduction node 'sum': mode: got 'SUMMARY'"),
    (lambda g, x: g.concatenate(7, 0, name="both"), "concatenate node 'both': "),
    (lambda g, x: g.slice(x, [2], name="part"), "slice node 'part': slices has 2"),
    (lambda g, x: g.neg(name="minus"), "neg node 'minus': missing a required argument: 'input'; it takes input"),
    (lambda g, x: g.neg(x, 1, 2, 3), "neg node '0': too many positional arguments; it takes input"),
    (lambda g, x: g.neg(x, compute_data_type="SHORT", name="minus"), "neg node 'minus': .*SHORT")])
def test_arguments_are_refused_with_the_name_of_the_node(call, message):
    graph = new_graph()
    x = graph.tensor([4, 8], [8, 1])
    with pytest.raises(TypeError, match=message):
        call(graph, x)
    assert not graph.nodes


@pytest.mark.parametrize("call, error, message", [
    (lambda g, x: g.matmul(x, x, padding=1.0, name="mm"), RuntimeError, "INVALID_VALUE: matmul node 'mm': padding is 1.0"),
    (lambda g, x: g.concatenate([], 0, name="none"), RuntimeError, "INVALID_VALUE: concatenate node 'none': inputs is empty"),
    (lambda g, x: g.relu(x, upper_clip=float("nan"), name="act"), RuntimeError, "INVALID_VALUE: relu node 'act': upper_clip is nan")])
def test_values_are_refused_with_the_name_of_the_node(call, error, message):
    graph = new_graph()
    with pytest.raises(error, match=message):
        call(graph, graph.tensor([4, 8], [8, 1]))


@pytest.mark.parametrize("make, message", [
    (lambda g: g.matmul(g.tensor([1, 4, 8], [32, 8, 1]), g.tensor([1, 7, 4], [28, 4, 1], name="w"), name="mm"),
     r"SHAPE_DEDUCTION_FAILED: matmul node 'mm': port B \(tensor 'w'\): got K = 7 .*expected 8"),
    (lambda g: g.add(g.tensor([4, 8], [8, 1]), g.tensor([3, 8], [8, 1]), name="sum"), "SHAPE_DEDUCTION_FAILED: add node 'sum'"),
    (lambda g: g.conv_fprop(g.tensor([1, 8, 4, 4], [128, 1, 32, 8]), g.tensor([8, 8, 5, 5], [200, 1, 40, 8]), name="conv"),
     "SHAPE_DEDUCTION_FAILED: conv_fprop node 'conv'.*1 at least"),
    (lambda g: g.conv_dgrad(g.tensor([1, 8, 4, 4], [128, 1, 32, 8]), g.tensor([8, 8, 1, 1], [8, 1, 8, 8]), name="back"),
     "ATTRIBUTE_NOT_SET: conv_dgrad node 'back': port DX.*set_dim"),
    (lambda g: g.neg(g.tensor([4], [1]).set_dim([4, 2]), name="minus"), "got 1 strides .1,. of 2 dims")])
def test_dims_that_do_not_fit_or_are_unset(make, message):
    graph = new_graph()
    make(graph).set_output(True)
    with pytest.raises((ValueError, RuntimeError), match=message):
        graph.validate()


def test_arguments():
    graph = new_graph()
    with pytest.raises(TypeError, match="neg node '0': .*it takes input, compute_data_type, name"):
        graph.neg()
    with pytest.raises(TypeError, match="neg node '0': port IN_0: got int"):
        graph.neg(3)
    with pytest.raises(TypeError, match=r"modes is <heur_mode.A.*expected a list"):
        graph.create_execution_plans(cudnn.heur_mode.A)
    with pytest.raises(TypeError, match="heur_mode.A"):
        graph.create_execution_plans(["Z"])
    with pytest.raises(TypeError, match="io_data_type.*'quarter'"):
        cudnn.pygraph(io_data_type="quarter")


def test_execute_before_build():
    graph = new_graph()
    graph.neg(graph.tensor([4], [1]))
    for call in (lambda: graph.execute({}, None), lambda: graph._execute_with_ptrs([], 0, None), graph.serialize):
        with pytest.raises(RuntimeError, match="call build first|call create_execution_plans"):
            call()
    for call in (graph.get_engine_count, lambda: graph.create_execution_plans(A)):
        with pytest.raises(RuntimeError, match="call build_operation_graph first"):
            call()


@pytest.mark.parametrize("index", [-1, 99])
def test_a_plan_index_out_of_range(index):
    graph, x, y = built()
    for call in (graph.get_plan_name_at_index, graph.build_plan_at_index, graph.get_workspace_size_plan_at_index,
                 lambda i: graph.execute_plan_at_index({}, None, i)):
        with pytest.raises(RuntimeError, match=f"index {index} of"):
            call(index)


def test_a_pack_that_misses_a_tensor():
    graph, x, y = built()
    if HOST_MEMORY:
        out = np.zeros((4, 8), np.float32)
        with pytest.raises(ValueError, match=r"INVALID_VARIANT_PACK: tensor 'x' \(uid 11\) has no buffer"):
            graph.execute({y: out}, np.empty(graph.get_workspace_size(), np.uint8))
        assert not out.any()
    with pytest.raises(ValueError, match="got list; expected a dict"):
        graph.execute([], None)


def test_buffers():
    if not HOST_MEMORY:
        pytest.skip("buffers of the host")
    graph, x, y = built()
    a, out, workspace = np.ones((4, 8), np.float32), np.zeros((4, 8), np.float32), np.empty(graph.get_workspace_size(), np.uint8)
    with pytest.raises(ValueError, match=r"tensor 'x' \(uid 11\): its buffer has 64 bytes; expected 128 at least"):
        graph.execute({x: a[:2], y: out}, workspace)
    frozen = out.copy()
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="tensor 'y'.*read-only"):
        graph.execute({x: a, y: frozen}, workspace)
    with pytest.raises(ValueError, match="tensor 'x'.*null address"):
        graph.execute({x: 0, y: out}, workspace)
    with pytest.raises(ValueError, match="tensor 'x'.*expected a multiple of 16"):
        graph.execute({x: np.ones(40, np.float32)[1:], y: out}, workspace)
    with pytest.raises(ValueError, match="tensor 'x'.*got str"):
        graph.execute({x: "memory", y: out}, workspace)
    for bad, message in ((None, "got no workspace; the plan needs 256 bytes"), (workspace[:-1], "255 bytes"), (0, "no workspace")):
        with pytest.raises(RuntimeError, match=message):
            graph.execute({x: a, y: out}, bad)
    assert not out.any()


def test_a_destroyed_handle():
    graph, x, y = built()
    handle = cudnn.create_handle()
    cudnn.destroy_handle(handle)
    for call in (lambda: graph.execute({}, None, handle=handle), lambda: cudnn.destroy_handle(handle),
                 lambda: cudnn.set_stream(handle, 0), lambda: cudnn.pygraph().deserialize(handle, graph.serialize())):
        with pytest.raises(RuntimeError, match=f"HANDLE_ERROR: handle {handle} does not exist, or was destroyed"):
            call()


def test_a_handle_destroyed_after_the_build():
    handle = cudnn.create_handle()
    graph = cudnn.pygraph(io_data_type=T.FLOAT, handle=handle)
    x = graph.tensor([4, 8], [8, 1])
    y = graph.neg(x).set_output(True)
    graph.build(A)
    cudnn.destroy_handle(handle)
    a, out = np.ones((4, 8), np.float32), np.zeros((4, 8), np.float32)
    with pytest.raises(RuntimeError, match=f"HANDLE_ERROR: handle {handle} does not exist"):
        graph.execute({x: a, y: out}, None)
    assert not out.any()
    if HOST_MEMORY:
        graph.execute({x: a, y: out}, None, handle=cudnn.create_handle())
        assert (out == -1).all()


def test_another_device(monkeypatch):
    """Buffers and a workspace that are on another device than the plan is for."""
    from dataclasses import replace
    if not HOST_MEMORY:
        pytest.skip("buffers of the host")
    graph, x, y = built()
    plan = graph._candidate
    a, out, workspace = np.ones((4, 8), np.float32), np.zeros((4, 8), np.float32), np.empty(graph.get_workspace_size(), np.uint8)
    monkeypatch.setattr(plan, "device", replace(plan.device, index=1))
    with pytest.raises(ValueError, match=r"INVALID_VARIANT_PACK: tensor 'x' \(uid 11\): its buffer is on device 0; expected device 1"):
        graph.execute({x: a, y: out}, workspace)
    with pytest.raises(RuntimeError, match="INVALID_VALUE: execute: the workspace is on device 0; the plan is for 1"):
        graph.execute({x: a.ctypes.data, y: out.ctypes.data}, workspace)
    assert not out.any()


def test_a_name_of_two_tensors_is_no_key():
    graph = new_graph()
    a, b = (graph.tensor([8], [1], name="same") for _ in range(2))
    graph.sub(a, b).set_output(True).set_name("y")
    graph.build(A)
    one, two, out = np.full(8, 3, np.float32), np.full(8, 1, np.float32), np.zeros(8, np.float32)
    workspace = np.empty(graph.get_workspace_size(), np.uint8)
    with pytest.raises(ValueError, match=f"the name 'same' is that of the tensors of uids {a.get_uid()}, {b.get_uid()}"):
        graph.execute({"same": one, "y": out}, workspace)
    assert not out.any()
    if HOST_MEMORY:
        graph.execute({a: one, b.get_uid(): two, "y": out}, workspace)
        assert (out == 2).all()


@pytest.mark.skipif(not HOST_MEMORY, reason="buffers are NumPy's")
def test_between_each_other_and_one_element_too_far():
    """Halves of rows are apart; moved by one element they are not."""
    graph = new_graph()
    x = graph.tensor([4, 4], [8, 1], name="x").set_alignment(4)
    y = graph.neg(x).set_output(True).set_name("y").set_dim([4, 4]).set_stride([8, 1]).set_alignment(4)
    graph.build(A)
    memory = np.arange(36, dtype=np.float32)
    before, workspace = memory.copy(), np.empty(graph.get_workspace_size(), np.uint8)
    for first in (1, 3):
        with pytest.raises(RuntimeError, match="copies of tensor 'x' .uid 1., of which a result overlaps"):
            graph.execute({x: memory, y: memory[first:]}, workspace)
    assert (memory == before).all()
    graph.execute({x: memory, y: memory[4:]}, workspace)
    rows = before[:32].reshape(4, 8)
    assert (memory[:32].reshape(4, 8) == np.concatenate([rows[:, :4], -rows[:, :4]], 1)).all() and (memory[32:] == before[32:]).all()

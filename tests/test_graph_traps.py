"""The lines of the list of traps in the notes on graphs, in their order."""
import inspect

import numpy as np
import pytest
from graphs import T, array_of, close, draw, execute, like, linear, new_graph, run, values

import dnnkern.graph as cudnn
from dnnkern.device import HOST_MEMORY

A = [cudnn.heur_mode.A]


def test_trap_1_channels_last_torch_tensors_need_no_copy():
    torch = pytest.importorskip("torch")
    graph = new_graph()
    device = "cpu" if HOST_MEMORY else "cuda"
    image = graph.tensor_like(torch.empty(2, 8, 4, 4, device=device).to(memory_format=torch.channels_last))
    matrix = graph.tensor_like(torch.empty(3, 4, 5, device=device))
    assert (image.get_dim(), image.get_stride()) == ([2, 8, 4, 4], [128, 1, 32, 8])
    assert (matrix.get_dim(), matrix.get_stride()) == ([3, 4, 5], [20, 5, 1])


def test_trap_2_a_first_result_that_nobody_takes_is_an_output():
    x = draw((1, 4, 4), 1, np.float16)
    graph = cudnn.pygraph(intermediate_data_type=T.FLOAT, compute_data_type=T.FLOAT)
    t = like(graph, x)
    y = graph.neg(graph.abs(t))
    got, = run(graph, {t: x}, [y])
    assert not y.get_is_virtual() and y.get_data_type() is T.FLOAT
    np.testing.assert_array_equal(got, -np.abs(x).astype(np.float32))
    plain = cudnn.pygraph()
    z = plain.neg(like(plain, x))
    plain.validate()
    assert z.get_data_type() is T.HALF


def test_trap_3_arrays_of_one_element_are_numbers():
    graph = new_graph()
    assert graph.tensor_like(np.array([[2.0]], np.float32)).get_is_pass_by_value()
    if HOST_MEMORY:
        assert not graph.tensor_like(np.zeros((2, 2), np.float32)).get_is_pass_by_value()
    else:
        with pytest.raises(RuntimeError, match="in host memory"):
            graph.tensor_like(np.zeros((2, 2), np.float32))


def test_trap_4_packs_hold_buffers_not_tensors():
    graph, a, b, bias, y = linear()
    graph.build(A)
    x, w, v, expected = values()
    result = np.empty(expected.size, np.float32)
    execute(graph, {a.get_uid(): x.reshape(-1), "b": w.view(np.uint8).reshape(-1), bias: v.reshape(3, 4), "y": result, None: x})
    close(result.reshape(expected.shape), expected, factor=16, scale=10)
    with pytest.raises(ValueError, match=r"INVALID_VARIANT_PACK: tensor 'bias' \(uid 4\) has no buffer.*48 bytes"):
        execute(graph, {a: x, b: w, y: result})


def test_trap_4_tensors_with_gradients_and_dlpack_objects():
    torch = pytest.importorskip("torch")
    if not HOST_MEMORY:
        pytest.skip("tensors of the CPU")
    graph, a, b, bias, y = linear()
    graph.build(A)
    x, w, v, expected = values()

    class Exported:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **keywords):
            return self.array.__dlpack__(**keywords)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()
    result = torch.empty(expected.shape)
    with pytest.raises(ValueError, match="tensor 'a'.*got Exported, which is no NumPy array and no torch tensor"):
        graph.execute({a: Exported(x), b: w, bias: v, y: result}, np.empty(graph.get_workspace_size(), np.uint8))
    graph.execute({a: torch.tensor(x, requires_grad=True), b: torch.tensor(w), bias: torch.tensor(v), y: result},
                  torch.empty(graph.get_workspace_size(), dtype=torch.uint8))
    close(result.numpy(), expected, factor=16, scale=10)


def test_trap_6_a_type_on_a_virtual_tensor_rounds_there():
    x = np.array([[1 + 2.0 ** -12, 3.0]], np.float32)
    graph = new_graph()
    t = like(graph, x)
    y = graph.mul(graph.identity(t).set_data_type(T.HALF), graph.tensor_scalar(2.0)).set_output(True)
    got, = run(graph, {t: x}, [y])
    np.testing.assert_array_equal(got, [[2.0, 6.0]])


def test_trap_6_an_intermediate_float_is_no_half_on_the_way_to_a_product():
    """A scale in front of a product of halves: its FLOAT result has bits that halves and bfloat16 have not, and TF32 neither."""
    x = (1 + np.arange(64).reshape(1, 8, 8) / 1024).astype(np.float16)
    w = np.eye(8, dtype=np.float16)[None]
    graph = new_graph(T.HALF)
    a, b = like(graph, x), like(graph, w)
    y = graph.matmul(graph.mul(a, graph.tensor_scalar(1 + 2.0 ** -13, cudnn.scalar_type.COMPILE_TIME_CONST)), b)
    y.set_output(True).set_data_type(T.FLOAT)
    got, = run(graph, {a: x, b: w}, [y])
    np.testing.assert_array_equal(got, x.astype(np.float32) * np.float32(1 + 2.0 ** -13))


def test_trap_8_relu_and_nan():
    x = np.array([[np.nan, -4.0, 8.0]], np.float32)
    graph = new_graph()
    t = like(graph, x)
    y, z = graph.relu(t, negative_slope=0.5, lower_clip=-2.0).set_output(True), graph.max(t, graph.tensor_scalar(0.0)).set_output(True)
    got = run(graph, {t: x}, [y, z])
    np.testing.assert_array_equal(got[0], [[np.nan, -3.0, 8.0]])
    np.testing.assert_array_equal(got[1], [[np.nan, 0.0, 8.0]])


def test_trap_9_empty_dims():
    graph = new_graph()
    x = graph.tensor([0, 4], [4, 1])
    y = graph.relu(graph.neg(x)).set_output(True)
    graph.build(A)
    assert graph.get_workspace_size() == 0
    execute(graph, {x: np.empty((0, 4), np.float32), y: np.empty((0, 4), np.float32)})


def test_trap_13_operations_are_methods():
    from dnnkern.graph.ops import OPERATIONS
    graph = new_graph()
    for name, operation in OPERATIONS.items():
        method = getattr(graph, name)
        assert inspect.ismethod(method) and method.__doc__ and method.__name__ == name
        assert list(inspect.signature(method).parameters) == list(operation.signature.parameters)[1:]
    assert str(inspect.signature(graph.matmul)).startswith("(A, B, padding=0.0, compute_data_type=")


def test_trap_7_products_of_mixed_types_and_scales_by_value():
    """int8 times bfloat16, and 8-bit floats with scales that multiply the result."""
    import ml_dtypes
    a, b = np.random.default_rng(1).integers(-9, 9, (2, 5, 8)).astype(np.int8), draw((1, 8, 6), 2).astype(ml_dtypes.bfloat16)
    graph = new_graph(T.BFLOAT16)
    ta, tb = like(graph, a), like(graph, b)
    y = graph.matmul(graph.identity(ta).set_data_type(T.BFLOAT16), tb).set_output(True).set_data_type(T.FLOAT)
    z = graph.matmul(ta, tb).set_output(True).set_data_type(T.FLOAT)
    got = run(graph, {ta: a, tb: b}, [y, z])
    for have in got:
        close(have, a.astype(float) @ b.astype(float), factor=16, scale=50)
    p, q = draw((1, 4, 16), 3).astype(ml_dtypes.float8_e4m3fn), draw((1, 16, 4), 4).astype(ml_dtypes.float8_e4m3fn)
    graph = new_graph(T.FP8_E4M3)
    tp, tq = like(graph, p), like(graph, q)
    scales = [graph.tensor([1, 1, 1], [1, 1, 1], T.FLOAT, is_pass_by_value=True) for _ in range(2)]
    y = graph.mul(graph.mul(graph.matmul(tp, tq), scales[0]), scales[1]).set_output(True).set_data_type(T.FLOAT)
    got, = run(graph, {tp: p, tq: q, scales[0]: 0.5, scales[1]: 3.0}, [y])
    close(got, 1.5 * (p.astype(float) @ q.astype(float)), factor=32, scale=10)


def test_trap_9_more_than_2_to_the_31_elements():
    graph = new_graph(T.HALF)
    x = graph.tensor([3, 2 ** 15, 2 ** 16], [2 ** 31, 2 ** 16, 1])
    w = graph.tensor([1, 2 ** 16, 8], [2 ** 19, 8, 1])
    y = graph.softmax(graph.matmul(x, w), 2).set_output(True)
    graph.build()
    graph.create_execution_plans(A)
    assert y.get_stride() == [2 ** 18, 8, 1] and graph.get_workspace_size() >= 4 * 3 * 2 ** 18
    z = graph.neg(x).set_output(True)
    graph.build()
    graph.create_execution_plans(A)
    assert z.get_stride()[0] == 2 ** 31


def test_trap_10_rows_past_a_length_are_zero():
    q = draw((2, 1, 6, 8), 1)
    lengths = np.array([6, 2], np.int32).reshape(2, 1, 1, 1)
    graph = new_graph()
    tq, tl = like(graph, q), like(graph, lengths)
    o = graph.sdpa(tq, tq, tq, is_inference=True, use_padding_mask=True, seq_len_q=tl, seq_len_kv=tl)[0].set_output(True)
    got, = run(graph, {tq: q, tl: lengths}, [o])
    assert not got[1, :, 2:].any() and got[1, :, :2].all()


def test_trap_14_streams_of_executions(monkeypatch):
    """The handle of the call, else the graph's, whatever was current when it was built; nothing else is asked of the device."""
    graph, a, b, bias, y = linear()
    own, other = cudnn.create_handle(), cudnn.create_handle()
    cudnn.set_stream(own, 11), cudnn.set_stream(other, 12)
    graph.handle = own
    graph.build(A)
    streams = []

    class Recorded:
        def execute(self, values, stream):
            streams.append(stream)
    plan = graph._candidate
    slots = plan.executable(frozenset(), None)[1]
    monkeypatch.setattr(plan, "executable", lambda aliases, bound: (Recorded(), slots))
    x, w, v, expected = values()
    pack = {a: x, b: w, bias: v, y: array_of(y)}
    if not HOST_MEMORY:
        pytest.skip("arrays of the host")
    workspace = np.empty(graph.get_workspace_size(), np.uint8)
    graph.execute(pack, workspace)
    graph.execute(pack, workspace, handle=other)
    cudnn.set_stream(own, 13)
    graph.execute(pack, workspace)
    assert streams == [11, 12, 13]

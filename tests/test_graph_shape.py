"""reshape, transpose, slice and concatenate of graphs: values, inference, refusals."""
import numpy as np
import pytest
from graphs import T, channels_last, execute, like, new_graph, run

import dnnkern.graph as cudnn
from dnnkern.device import HOST_MEMORY


def draw(shape, seed, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("order", [np.asarray, channels_last])
@pytest.mark.parametrize("stride", [None, [12, 120, 1], [1, 10, 2]])
def test_reshape(order, stride):
    x = order(draw((2, 3, 4, 5), 1))
    graph = new_graph()
    t = like(graph, x)
    y = graph.reshape(t, reshape_mode=cudnn.reshape_mode.LOGICAL).set_output(True)
    y.set_dim([10, 1, 12] if stride != [1, 10, 2] else [2, 12, 5])
    if stride:
        y.set_stride(stride)
    got, = run(graph, {t: x}, [y])
    np.testing.assert_array_equal(got, x.reshape(got.shape))
    assert stride or y.get_stride()[1] == 1


def test_transpose():
    x = draw((2, 3, 4), 2)
    graph = new_graph()
    t = like(graph, x)
    y = graph.transpose(t, permutation=[2, 0, 1]).set_output(True)
    packed = graph.transpose(t, [1, 2, 0]).set_output(True).set_stride([8, 2, 1])
    got = run(graph, {t: x}, [y, packed])
    assert y.get_dim() == [4, 2, 3] and y.get_stride() == [1, 12, 4]
    np.testing.assert_array_equal(got[0], x.transpose(2, 0, 1))
    np.testing.assert_array_equal(got[1], x.transpose(1, 2, 0))


def test_slice():
    x = draw((5, 6, 4), 3)
    graph = new_graph()
    t = like(graph, x)
    taken = (slice(1, 5, 2), slice(None), slice(-3, -1))
    y = graph.slice(t, list(taken)).set_output(True)
    relu = graph.relu(graph.slice(t, slices=[slice(0, 2)])).set_output(True)
    got = run(graph, {t: x}, [y, relu])
    assert y.get_dim() == [2, 6, 2] and y.get_stride() == [48, 4, 1]
    np.testing.assert_array_equal(got[0], x[taken])
    np.testing.assert_array_equal(got[1], np.maximum(x[:2], 0))


def test_concatenate():
    parts = [channels_last(draw((2, n, 3, 2), n)) for n in (4, 1, 3)]
    graph = new_graph()
    tensors = [like(graph, p) for p in parts]
    y = graph.concatenate(inputs=tensors, axis=1).set_output(True)
    other = graph.concatenate([tensors[0], graph.neg(tensors[0])], axis=-1).set_output(True)
    got = run(graph, dict(zip(tensors, parts)), [y, other])
    assert y.get_dim() == [2, 8, 3, 2] and y.get_stride()[1] == 1
    np.testing.assert_array_equal(got[0], np.concatenate(parts, 1))
    np.testing.assert_array_equal(got[1], np.concatenate([parts[0], -parts[0]], -1))


def test_types_stay_whatever_the_intermediate_type_is():
    x = draw((2, 4), 4, np.float16)
    graph = new_graph(T.HALF, T.FLOAT)
    t = like(graph, x)
    moved = graph.transpose(graph.slice(t, [slice(0, 1)]), [1, 0])
    y = graph.concatenate([moved, moved], 0).set_output(True)
    got, = run(graph, {t: x}, [y])
    assert moved.get_data_type() is T.HALF and got.dtype == np.float16
    np.testing.assert_array_equal(got, np.concatenate([x[:1].T] * 2))


@pytest.mark.parametrize("dtype", [bool, np.int8, np.int64, np.float64])
def test_elements_of_every_type(dtype):
    x = (draw((3, 5), 5) * 9).astype(dtype)
    graph = cudnn.pygraph()
    t = like(graph, x)
    y = graph.transpose(t, [1, 0]).set_output(True).set_stride([3, 1])
    got, = run(graph, {t: x}, [y])
    np.testing.assert_array_equal(got, x.T)


@pytest.mark.parametrize("make, message", [
    (lambda g, x: g.reshape(x, name="r").set_output(True).set_dim([3, 3]), r"reshape node 'r': port Y.*9 elements.*8"),
    (lambda g, x: g.reshape(x, name="r").set_output(True), "ATTRIBUTE_NOT_SET: reshape node 'r': port Y.*set_dim"),
    (lambda g, x: g.transpose(x, [0, 0]).set_output(True), r"transpose node '0': port X.*\(0, 0\).*each of 2 axes once"),
    (lambda g, x: g.slice(x, [slice(None, None, -1)]).set_output(True), "slice node '0': port X.*a step of -1"),
    (lambda g, x: g.slice(x, [slice(1)]).set_output(True).set_data_type(T.HALF), "port Y.*HALF; expected FLOAT"),
    (lambda g, x: g.concatenate([x, g.tensor([2, 3], [3, 1])], 0).set_output(True), r"port X_1.*\(2, 3\).*but for axis 0")])
def test_refusals(make, message):
    graph = new_graph()
    make(graph, graph.tensor([2, 4], [4, 1], name="x"))
    with pytest.raises(ValueError, match=message):
        graph.validate()


@pytest.mark.skipif(not HOST_MEMORY, reason="arrays are copied to a GPU one by one")
@pytest.mark.parametrize("index", [0, 1])
def test_concatenation_in_place(index):
    """The tensor in place is not copied; its buffer has to be that part of the result's."""
    x, z, graph = draw((2, 4, 5), 1), draw((2, 3, 5), 2), new_graph()
    strides = [35, 5, 1]
    tensors = [graph.tensor(v.shape, strides if k == index else [s // 4 for s in v.strides], T.FLOAT) for k, v in enumerate((x, z))]
    y = graph.concatenate(tensors, 1, in_place_index=index).set_output(True).set_stride(strides)
    graph.build([cudnn.heur_mode.A])
    whole = np.concatenate([x, z], 1)
    expected, part = whole.copy(), whole[:, :4] if index == 0 else whole[:, 4:]
    (whole[:, 4:] if index == 0 else whole[:, :4])[...] = np.nan
    pack = {tensors[0]: x, tensors[1]: z, y: whole, tensors[index]: part}
    execute(graph, pack)
    np.testing.assert_array_equal(whole, expected)
    assert len(graph.explain().parts) == 1 and not graph.get_workspace_size()
    with pytest.raises(ValueError, match="INVALID_VARIANT_PACK: .*since it is in place"):
        execute(graph, {**pack, tensors[index]: np.empty((2, 7, 5), np.float32)[:, :4]})


def test_results_are_written_into_a_concatenation():
    """Two results and a tensor: one copy; a result that others read is read there."""
    x, z, graph = draw((2, 4, 5), 1), draw((2, 3, 5), 2), new_graph()
    tx, tz = (like(graph, v) for v in (x, z))
    hot, low = graph.relu(tx), graph.neg(tz)
    y = graph.concatenate([hot, tz, low], 1).set_output(True)
    more = graph.reduction(hot, cudnn.reduction_mode.ADD).set_dim([2, 4, 1]).set_stride([4, 1, 1]).set_output(True)
    got = run(graph, {tx: x, tz: z}, [y, more])
    np.testing.assert_array_equal(got[0], np.concatenate([np.maximum(x, 0), z, -z], 1))
    np.testing.assert_allclose(got[1], np.maximum(x, 0).sum(2, keepdims=True), rtol=1e-5)
    assert [part.op for part in graph.explain().parts].count("transpose") == 1

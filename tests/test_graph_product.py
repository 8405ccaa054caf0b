"""matmul and convolutions of graphs: values, inference, refusals."""
import numpy as np
import pytest
from graphs import T, channels_last, close, like, new_graph, run

import dnnkern.graph as cudnn


def draw(shape, seed, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("a, b", [((3, 17, 24), (3, 24, 9)), ((1, 17, 24), (3, 24, 9)), ((2, 1, 5, 8), (1, 3, 8, 7)), ((6, 8), (8, 5))])
def test_matmul(a, b):
    x, w = draw(a, 1), draw(b, 2)
    graph = new_graph()
    tx, tw = like(graph, x), like(graph, w)
    y = graph.matmul(A=tx, B=tw).set_output(True)
    got, = run(graph, {tx: x, tw: w}, [y])
    expected = x.astype(float) @ w
    assert y.get_dim() == list(expected.shape) and y.get_stride()[-1] == 1
    close(got, expected, factor=16, scale=10)


def test_matmul_of_transposed_operands_and_a_result_with_strides():
    x, w = draw((2, 24, 17), 1).transpose(0, 2, 1), draw((2, 9, 24), 2).transpose(0, 2, 1)
    graph = new_graph()
    tx, tw = like(graph, x), like(graph, w)
    y = graph.matmul(tx, tw).set_output(True).set_stride([17 * 9, 1, 17])
    got, = run(graph, {tx: x, tw: w}, [y])
    close(got, x.astype(float) @ w, factor=16, scale=10)


@pytest.mark.parametrize("io", [T.HALF, T.BFLOAT16, T.DOUBLE])
def test_bias_and_relu_in_types(io):
    from graphs import DTYPE

    from dnnkern.host.dtypes import numpy_dtype
    dtype = numpy_dtype(DTYPE[io])
    x, w, v = (draw(shape, k).astype(dtype) for k, shape in enumerate([(1, 20, 16), (1, 16, 12), (1, 1, 12)]))
    graph = new_graph(io, T.DOUBLE if io is T.DOUBLE else T.FLOAT, T.DOUBLE if io is T.DOUBLE else T.FLOAT)
    tx, tw, tv = (like(graph, array) for array in (x, w, v))
    y = graph.relu(graph.bias(graph.matmul(tx, tw), tv)).set_output(True)
    got, = run(graph, {tx: x, tw: w, tv: v}, [y])
    assert got.dtype == dtype
    close(got, np.maximum(x.astype(float) @ w.astype(float) + v.astype(float), 0), scale=10)


def test_conv_in_both_layouts_and_groups():
    x, w = draw((2, 6, 7, 5), 3), draw((4, 3, 3, 2), 4)
    expected = convolution(x, w, (1, 0), (1, 1), (2, 1), (1, 2), 2)
    for order in (np.asarray, channels_last):
        graph = new_graph()
        tx, tw = like(graph, order(x)), like(graph, order(w))
        y = graph.conv_fprop(image=tx, weight=tw, pre_padding=[1, 0], post_padding=[1, 1], stride=[2, 1], dilation=[1, 2]).set_output(True)
        got, = run(graph, {tx: order(x), tw: order(w)}, [y])
        assert y.get_dim() == list(expected.shape) and y.get_stride()[1] == 1
        close(got, expected, factor=16, scale=10)


def convolution(x, w, before, after, stride, dilation, groups):
    """float64, from the definition."""
    x = np.pad(x.astype(float), [(0, 0), (0, 0), *zip(before, after)])
    n, c, *_ = x.shape
    k, cg, *taps = w.shape
    extents = [(e - d * (t - 1) - 1) // s + 1 for e, t, s, d in zip(x.shape[2:], taps, stride, dilation)]
    y = np.zeros((n, k, *extents))
    for index in np.ndindex(*taps):
        taken = [slice(i * d, i * d + (e - 1) * s + 1, s) for i, d, e, s in zip(index, dilation, extents, stride)]
        window = x[(slice(None), slice(None), *taken)]
        for g in range(groups):
            own = slice(g * k // groups, (g + 1) * k // groups)
            y[:, own] += np.einsum("nc...,kc->nk...", window[:, g * cg:(g + 1) * cg], w[(own, slice(None), *index)].astype(float))
    return y


@pytest.mark.parametrize("rank, io", [(1, T.FLOAT), (2, T.HALF), (3, T.FLOAT)])
def test_gradients_of_a_convolution(rank, io):
    """<dy, conv(x, w)> = <dgrad(dy, w), x> = <wgrad(x, dy), w>, and each gradient against sums of shifted products."""
    from graphs import DTYPE
    dtype = np.dtype(DTYPE[io])
    extents = (5, 4, 3)[:rank]
    x, w = channels_last(draw((2, 8, *extents), 5).astype(dtype)), channels_last(draw((4, 8, *(3, 2, 1)[:rank]), 6).astype(dtype))
    pads, ones = (1, 1, 0)[:rank], (1,) * rank
    y = convolution(x, w, pads, pads, ones, ones, 1)
    dy = channels_last(draw(y.shape, 7).astype(dtype))
    graph = new_graph(io)
    tx, tw, tdy = (like(graph, array) for array in (x, w, dy))
    dx = graph.conv_dgrad(loss=tdy, filter=tw, padding=list(pads)).set_output(True).set_dim(list(x.shape))
    dw = graph.conv_wgrad(image=tx, loss=tdy, padding=list(pads)).set_output(True).set_dim(list(w.shape)).set_data_type(T.FLOAT)
    got_dx, got_dw = run(graph, {tx: x, tw: w, tdy: dy}, [dx, dw])
    assert dx.get_stride()[1] == 1 and dw.get_stride()[1] == 1 and got_dw.dtype == np.float32
    expected_dx, expected_dw = np.zeros(x.shape), np.zeros(w.shape)
    for expected, of in ((expected_dx, x), (expected_dw, w)):
        for index in np.ndindex(*of.shape) if of.size < 200 else []:
            unit = np.zeros(of.shape)
            unit[index] = 1
            expected[index] = (dy.astype(float) * convolution(*((unit, w) if of is x else (x, unit)), pads, pads, ones, ones, 1)).sum()
    inner = (dy.astype(float) * y).sum()
    bound = 64 * (2.0 ** -11 if io is T.HALF else 2.0 ** -20) * np.sqrt(y.size) * 10
    assert abs((got_dx.astype(float) * x.astype(float)).sum() - inner) < bound
    assert abs((got_dw.astype(float) * w.astype(float)).sum() - inner) < bound
    if expected_dw.any():
        close(got_dw, expected_dw, scale=100)
    if expected_dx.any():
        close(got_dx, expected_dx, scale=20)


def test_an_intermediate_float_between_products_is_not_rounded():
    """2049 is no half; the second product of a chain reads it as a float all the same."""
    x = np.full((1, 2, 8), 2049 / 8 * 8 / 2049, np.float16)
    w = np.full((1, 8, 8), 1, np.float16)
    w[0, 0, :] = 2042
    graph = new_graph(T.HALF)
    tx, tw = like(graph, x), like(graph, w)
    first = graph.matmul(tx, tw)  # 2042 + 7
    y = graph.matmul(first, tw).set_output(True).set_data_type(T.FLOAT)
    got, = run(graph, {tx: x, tw: w}, [y])
    np.testing.assert_array_equal(got, (x.astype(float) @ w.astype(float)) @ w.astype(float))


def test_dims_that_do_not_fit():
    graph = new_graph()
    graph.matmul(graph.tensor([1, 4, 8], [32, 8, 1], name="a"), graph.tensor([1, 7, 4], [28, 4, 1], name="b"), name="mm").set_output(True)
    with pytest.raises(ValueError, match=r"matmul node 'mm': port B \(tensor 'b'\): got K = 7 .*expected 8"):
        graph.validate()
    graph = new_graph()
    graph.conv_fprop(graph.tensor([1, 6, 4, 4], [96, 1, 24, 6]), graph.tensor([4, 4, 3, 3], [36, 1, 12, 4]), padding=[0, 0], stride=[1, 1],
                     dilation=[1, 1], name="conv").set_output(True)
    with pytest.raises(ValueError, match="conv_fprop node 'conv': port W.*4 channels of a filter.*a divisor of the image's 6"):
        graph.validate()
    graph = new_graph()
    y = graph.matmul(graph.tensor([1, 4, 8], [32, 8, 1]), graph.tensor([1, 8, 4], [32, 4, 1])).set_output(True).set_dim([1, 4, 5])
    with pytest.raises(ValueError, match=r"port C.*got dims \(1, 4, 5\); expected \(1, 4, 4\)"):
        graph.validate()
    assert y.get_dim() == [1, 4, 5]


@pytest.mark.parametrize("method", ["conv_dgrad", "conv_wgrad"])
def test_gradients_need_their_dims(method):
    graph = new_graph()
    first = graph.tensor([1, 4, 4, 4], [64, 1, 16, 4])
    getattr(graph, method)(first, graph.tensor([4, 4, 1, 1], [4, 1, 4, 4]), padding=[0, 0], stride=[1, 1], dilation=[1, 1]).set_output(True)
    with pytest.raises(ValueError, match=f"ATTRIBUTE_NOT_SET: {method}.*set_dim"):
        graph.validate()


def test_refusals():
    graph = new_graph()
    x = graph.tensor([1, 4, 4, 4], [64, 1, 16, 4], T.FP8_E8M0, name="scales")
    graph.conv_fprop(x, x, padding=[0, 0]).set_output(True)
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="conv_fprop node '0': cast: x is float8_e8m0fnu"):
        graph.build([cudnn.heur_mode.A])
    with pytest.raises(TypeError, match="padding and pre_padding"):
        graph.conv_fprop(x, x, padding=[0, 0], pre_padding=[0, 0])
    with pytest.raises(RuntimeError, match="matmul node '1': padding is 1.0"):
        graph.matmul(x, x, padding=1.0)

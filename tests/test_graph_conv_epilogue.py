"""What a convolution's kernels do after it by themselves: bias, residual and activation of a graph's nodes, of every algorithm."""
import numpy as np
import pytest
from graphs import T, channels_last, close, like, new_graph, run
from test_graph_product import convolution, draw

import dnnkern.graph as cudnn
from dnnkern.graph import _engines, _partition

SIZE, CHANNELS = (1, 8, 5, 4), 8
EXTRAS = [("bias",), ("relu",), ("residual", "relu"), ("residual", "bias", "relu"), ("bias", "residual", "relu")]


def steps(graph):
    """Those of the plan with the least predicted time."""
    graph.build()
    return _engines.Engines(graph.spec).steps


def expected_of(direction, x, w, groups):
    """The convolution, or its gradient, of 3x3 with a padding of 1, in float64."""
    if direction == "conv_dgrad":
        w = w[:, :, ::-1, ::-1]
        w = w if groups > 1 else w.transpose(1, 0, 2, 3)
    return convolution(x, w, (1, 1), (1, 1), (1, 1), (1, 1), groups)


def built(direction, groups, arrange, io=T.FLOAT):
    """(graph, {tensor: array}, the convolution, what it is in float64)"""
    dtype = np.float16 if io is T.HALF else np.float32
    x, w = arrange(draw(SIZE, 1, dtype)), arrange(draw((CHANNELS, CHANNELS // groups, 3, 3), 2, dtype))
    graph = new_graph(io)
    tx, tw = like(graph, x), like(graph, w)
    y = getattr(graph, direction)(tx, tw, padding=[1, 1], stride=[1, 1], dilation=[1, 1])
    if direction == "conv_dgrad":
        y.set_dim(SIZE)
    return graph, {tx: x, tw: w}, y, expected_of(direction, x, w, groups)


def followed(graph, pack, y, expected, nodes, arrange, dtype=np.float32):
    """(the last tensor, what it is)"""
    for node in nodes:
        if node == "relu":
            y, expected = graph.relu(y), np.maximum(expected, 0)
        else:
            other = arrange(draw(SIZE if node == "residual" else (1, CHANNELS, 1, 1), 3 + len(node), dtype))
            t = like(graph, other)
            pack[t] = other
            y, expected = (graph.add if node == "residual" else graph.bias)(y, t), expected + other
    return y, expected


@pytest.mark.parametrize("groups, last", [(1, True), (CHANNELS, True), (CHANNELS, False)])
@pytest.mark.parametrize("direction", ["conv_fprop", "conv_dgrad"])
@pytest.mark.parametrize("nodes", EXTRAS, ids="-".join)
def test_own(nodes, direction, groups, last):
    arrange = channels_last if last else np.asarray
    graph, pack, y, expected = built(direction, groups, arrange)
    y, expected = followed(graph, pack, y, expected, nodes, arrange)
    y.set_output(True)
    only, = steps(graph)
    p = only.problem
    assert p.program is None and (p.bias is not None, p.residual is not None) == ("bias" in nodes, "residual" in nodes)
    assert p.activation.mode == ("relu" if "relu" in nodes else "identity")
    close(run(graph, pack, [y])[0], expected, factor=32, scale=10)


@pytest.mark.parametrize("direction", ["conv_fprop", "conv_dgrad"])
def test_a_residual_and_a_result_in_other_orders(direction):
    """Of halves, with a bias of floats: one rounding."""
    graph, pack, y, expected = built(direction, CHANNELS, channels_last, T.HALF)
    y, expected = followed(graph, pack, y, expected, ("residual",), np.asarray, np.float16)
    y, expected = followed(graph, pack, y, expected, ("bias", "relu"), np.asarray)
    y.set_output(True).set_dim(SIZE).set_stride([160, 20, 4, 1])
    only, = steps(graph)
    assert only.problem.program is None and only.problem.bias.dtype == "float32" and only.problem.residual.dtype == "float16"
    got, = run(graph, pack, [y])
    assert got.dtype == np.float16
    close(got, expected, scale=10)


def test_an_activation_with_parameters():
    graph, pack, y, expected = built("conv_fprop", CHANNELS, channels_last)
    y = graph.relu(y, negative_slope=0.25, upper_clip=1.5).set_output(True)
    only, = steps(graph)
    assert only.problem.program is None and only.problem.activation["negative_slope"] == 0.25
    close(run(graph, pack, [y])[0], np.minimum(np.where(expected > 0, expected, expected / 4), 1.5), factor=32, scale=10)


@pytest.mark.parametrize("io", [T.FLOAT, T.HALF])
@pytest.mark.parametrize("direction", ["conv_fprop", "conv_dgrad", "conv_wgrad"])
def test_an_identity_is_no_kernel(direction, io):
    """What is converted after a convolution is written so at once."""
    if direction == "conv_wgrad":
        dtype = np.float16 if io is T.HALF else np.float32
        x, dy = channels_last(draw(SIZE, 1, dtype)), channels_last(draw(SIZE, 2, dtype))
        graph = new_graph(io)
        tx, tdy = like(graph, x), like(graph, dy)
        y = graph.conv_wgrad(image=tx, loss=tdy, padding=[1, 1], stride=[1, 1], dilation=[1, 1]).set_dim([CHANNELS, 1, 3, 3])
        padded, pack = np.pad(x.astype(float), [(0, 0), (0, 0), (1, 1), (1, 1)]), {tx: x, tdy: dy}
        rows, columns = range(3), range(3)
        expected = np.array([[[(padded[:, c, r:r + SIZE[2], s:s + SIZE[3]] * dy[:, c]).sum() for s in columns] for r in rows]
                             for c in range(CHANNELS)])[:, None]
    else:
        graph, pack, y, expected = built(direction, CHANNELS, channels_last, io)
    y = graph.identity(graph.identity(y)).set_output(True).set_data_type(T.FLOAT)
    only, = steps(graph)
    assert only.problem.program is None and only.problem.output.dtype == "float32"
    close(run(graph, pack, [y])[0], expected, factor=64, scale=20)


def _rounded(graph, pack, y, expected):
    y.set_data_type(T.HALF)
    return graph.relu(y), np.maximum(expected, 0)


def _after_an_activation(graph, pack, y, expected):
    return followed(graph, pack, y, expected, ("relu", "residual"), channels_last)


def _twice(graph, pack, y, expected):
    return followed(graph, pack, y, expected, ("residual", "residual"), channels_last)


def _by_pixel(graph, pack, y, expected):
    other = draw((1, 1, *SIZE[2:]), 5)
    t = like(graph, other)
    pack[t] = other
    return graph.add(y, t), expected + other


def _stored(graph, pack, y, expected):
    y.set_output(True)
    pack[y] = np.empty_like(channels_last(expected.astype(np.float32)))
    return graph.relu(y), np.maximum(expected, 0)


def _by_itself(graph, pack, y, expected):
    return graph.add(y, y), expected * 2


@pytest.mark.parametrize("make", [_rounded, _after_an_activation, _twice, _by_pixel, _stored, _by_itself])
def test_not_own(make):
    """Programs, or kernels of their own, and the same values."""
    graph, pack, y, expected = built("conv_fprop", 1, channels_last)
    y, expected = make(graph, pack, y, expected)
    y.set_output(True).set_data_type(T.FLOAT)
    found = steps(graph)
    assert len(found) > 1 or found[0].problem.program is not None
    tolerance = 2.0 ** -10 if make is _rounded else 2.0 ** -18
    np.testing.assert_allclose(run(graph, pack, [y])[0], expected, rtol=tolerance, atol=tolerance * 10)


@pytest.mark.parametrize("nodes", [("bias",), ("residual",), ("bias", "residual", "relu")], ids="-".join)
@pytest.mark.parametrize("direction", ["conv_fprop", "conv_dgrad"])
def test_depthwise_kernels_have_it(direction, nodes):
    """No image of floats between a large depthwise convolution and what follows it, on another device than the one at hand."""
    graph = cudnn.pygraph(io_data_type=T.BFLOAT16, intermediate_data_type=T.FLOAT, compute_data_type=T.FLOAT, sm_version=90)

    def image():
        return graph.tensor(dim=(64, 96, 56, 56), stride=(301056, 1, 5376, 96), data_type=T.BFLOAT16)
    w = graph.tensor(dim=(96, 1, 7, 7), stride=(49, 1, 7, 1), data_type=T.BFLOAT16)
    y = getattr(graph, direction)(image(), w, padding=[3, 3], stride=[1, 1], dilation=[1, 1])
    if direction == "conv_dgrad":
        y.set_dim((64, 96, 56, 56))
    for node in nodes:
        if node == "relu":
            y = graph.relu(y)
        elif node == "bias":
            y = graph.bias(y, graph.tensor(dim=(1, 96, 1, 1), stride=(96, 1, 1, 1), data_type=T.BFLOAT16))
        else:
            y = graph.add(y, image())
    y.set_output(True)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A])
    name = graph.get_plan_name_at_index(0)
    assert "depthwise[rows" in name and " | " not in name, name


def test_cut_apart_it_is_the_same(monkeypatch):
    results = []
    for cuts in (_partition.cuts, lambda spec: [_partition.one_by_one(spec)]):
        monkeypatch.setattr(_engines, "cuts", cuts)
        graph, pack, y, expected = built("conv_fprop", CHANNELS, channels_last)
        y, expected = followed(graph, pack, y, expected, ("residual", "bias", "relu"), channels_last)
        y.set_output(True)
        assert len(steps(graph)) == (4 if results else 1)
        results += run(graph, pack, [y])
    np.testing.assert_array_equal(*results)

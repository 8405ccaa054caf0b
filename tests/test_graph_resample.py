"""Pooling, resampling, grouped products and random numbers of graphs: values, inference, refusals."""
import numpy as np
import pytest
from graphs import DTYPE, T, array_of, channels_last, close, execute, like, new_graph, run

import dnnkern
import dnnkern.graph as cudnn
from dnnkern import dispatch
from dnnkern.device import cuda
from dnnkern.host.dtypes import numpy_dtype

R, P = cudnn.resampling_mode, cudnn.padding_mode


def draw(shape, seed, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def windows(x, window, stride, padding, fill):
    """(N, C, P, Q, taps) of float64, the padding `fill`."""
    x = np.pad(x.astype(float), [(0, 0), (0, 0), *((p, p) for p in padding)], constant_values=fill)
    view = np.lib.stride_tricks.sliding_window_view(x, window, (2, 3))[:, :, ::stride[0], ::stride[1]]
    return view.reshape(*view.shape[:4], -1)


@pytest.mark.parametrize("order", [np.asarray, channels_last])
@pytest.mark.parametrize("mode", ["MAXPOOL", "AVGPOOL_EXCLUDE_PADDING", "AVGPOOL_INCLUDE_PADDING"])
def test_pooling_and_its_gradient(mode, order):
    x = order(draw((2, 8, 7, 6), 1))
    is_max = mode == "MAXPOOL"
    how = dict(resampling_mode=R[mode], padding_mode=P.NEG_INF_PAD if is_max else P.ZERO_PAD, window=[3, 2], stride=[2, 2],
               pre_padding=[1, 0], post_padding=[1, 0])
    seen = windows(x, (3, 2), (2, 2), (1, 0), -np.inf if is_max else 0 if mode.endswith("INCLUDE_PADDING") else np.nan)
    expected = seen.max(-1) if is_max else np.nanmean(seen, -1)
    dy = order(draw(expected.shape, 2))
    graph = new_graph()
    tx, tdy = like(graph, x), like(graph, dy)
    y, index = graph.resample(tx, generate_index=is_max, **how)
    dx = graph.resample_backward(tdy, tx, **how).set_output(True)
    outs = [y.set_output(True), dx]
    if is_max:
        outs += [index.set_output(True), graph.resample_backward(tdy, index, **how).set_output(True).set_dim(list(x.shape))]
    got = run(graph, {tx: x, tdy: dy}, outs)
    assert y.get_dim() == list(expected.shape) and y.get_stride()[1] == 1
    close(got[0], expected, scale=4)
    # the gradient is linear in dy, and the sum over windows of what each of them reads
    probe = x.astype(float)
    if is_max:
        assert got[2].dtype == np.int32
        flat = x.reshape(2, 8, -1)
        np.testing.assert_array_equal(np.take_along_axis(flat, got[2].reshape(2, 8, -1), -1).reshape(expected.shape), got[0])
        np.testing.assert_array_equal(got[1], got[3])
        close((got[1].astype(float) * probe).sum(), (dy.astype(float) * expected).sum(), factor=256, scale=100)
    else:
        close((got[1].astype(float) * probe).sum(), (dy.astype(float) * expected).sum(), factor=256, scale=100)


@pytest.mark.parametrize("algo", ["naive", "elements", "channels"])
@pytest.mark.parametrize("order", [np.asarray, channels_last])
@pytest.mark.parametrize("mode", ["MAXPOOL", "AVGPOOL_EXCLUDE_PADDING"])
def test_pooling_runs_the_nodes_behind_it(mode, order, algo):
    """One kernel, with a side output of another type, and the index of the maximum, which is of the image."""
    is_max, io = mode == "MAXPOOL", T.BFLOAT16
    x, more, scale = (order(draw(shape, k).astype(numpy_dtype("bfloat16"))) for k, shape in enumerate(
        ((2, 8, 7, 5), (2, 8, 4, 3), (1, 8, 1, 1))))
    graph = new_graph(io)
    tx, tmore, tscale = (like(graph, a) for a in (x, more, scale))
    y, index = graph.resample(tx, R[mode], P.NEG_INF_PAD if is_max else P.ZERO_PAD, [3, 2], [2, 2], [1, 0], [1, 1], generate_index=is_max)
    scaled = graph.mul(y, tscale).set_output(True).set_data_type(T.FLOAT)
    column = graph.gen_index(y, axis=1).set_data_type(T.INT32)
    out = graph.min(graph.relu(graph.add(scaled, tmore)), column).set_output(True)
    results = [out, scaled, *([index.set_output(True)] if is_max else [])]
    for t in results:
        t.set_stride([s // 2 for s in more.strides])
    with dispatch.prefer(algo):
        got = run(graph, {tx: x, tmore: more, tscale: scale}, results)
    ran, = graph.explain().parts
    assert ran.algorithm == (algo if algo != "channels" or order is channels_last else ran.algorithm) and len(ran.nodes) == 6
    x, more, scale = (a.astype(float) for a in (x, more, scale))
    view = np.pad(x, [(0, 0), (0, 0), (1, 1), (0, 1)], constant_values=-np.inf if is_max else np.nan)
    view = np.lib.stride_tricks.sliding_window_view(view, (3, 2), (2, 3))[:, :, ::2, ::2].reshape(2, 8, 4, 3, 6)
    pooled = view.max(-1) if is_max else np.nanmean(view, -1)
    close(got[1], pooled * scale, dtype="float32", scale=4)
    expected = np.minimum(np.maximum(pooled * scale + more, 0), np.arange(8).reshape(1, 8, 1, 1))
    close(got[0].astype(float), expected, dtype="bfloat16", scale=4)
    if is_max:
        flat = x.reshape(2, 8, -1)
        np.testing.assert_array_equal(np.take_along_axis(flat, got[2].reshape(2, 8, -1), -1).reshape(pooled.shape), pooled)


def test_why_pooling_is_apart():
    """From a convolution, whose result is in memory; from what makes its image; and of what reads the index."""
    graph = new_graph(T.BFLOAT16)
    x, w = (graph.tensor(dim, [dim[1] * dim[2] * dim[3], 1, dim[3] * dim[1], dim[1]]) for dim in ([2, 16, 8, 8], [16, 16, 3, 3]))
    conv = graph.relu(graph.conv_fprop(x, w, padding=[1, 1], stride=[1, 1], dilation=[1, 1], name="conv"), name="relu")
    y, index = graph.resample(conv, R.MAXPOOL, P.NEG_INF_PAD, [2, 2], [2, 2], generate_index=True, name="pool")
    graph.conv_fprop(graph.neg(y, name="neg"), w, padding=[1, 1], stride=[1, 1], dilation=[1, 1], name="next").set_output(True)
    graph.add(index, index, name="twice").set_output(True)
    graph.build([cudnn.heur_mode.A])
    reasons = {(row[0], row[1]): row[2] for row in graph.explain().apart}
    assert "resample takes its operands from memory" in reasons["relu", "pool"]
    assert "the index of resample is read from memory" in reasons["pool", "twice"]
    assert [p.nodes for p in graph.explain().parts[:2]] == [("conv", "relu"), ("pool", "neg")]


@pytest.mark.parametrize("mode", ["NEAREST", "BILINEAR"])
def test_resampling(mode):
    x, dy = draw((1, 2, 3, 4), 1), draw((1, 2, 6, 8), 2)
    graph = new_graph()
    tx, tdy = like(graph, x), like(graph, dy)
    y = graph.resample(tx, R[mode], P.EDGE_VAL_PAD)[0].set_output(True).set_dim([1, 2, 6, 8])
    dx = graph.resample_backward(tdy, tx, R[mode], P.EDGE_VAL_PAD).set_output(True)
    got = run(graph, {tx: x, tdy: dy}, [y, dx])
    expected = x.astype(float)
    for axis, n in ((2, 6), (3, 8)):
        if mode == "NEAREST":
            expected = np.repeat(expected, 2, axis)
            continue
        at = np.clip((np.arange(n) + 0.5) / 2 - 0.5, 0, None)
        low = np.floor(at).astype(int)
        high, part = np.minimum(low + 1, expected.shape[axis] - 1), np.moveaxis(np.zeros(n)[None] + (at - low), -1, -1)
        part = part.reshape([-1 if k == axis else 1 for k in range(4)])
        expected = np.take(expected, low, axis) * (1 - part) + np.take(expected, high, axis) * part
    close(got[0], expected, factor=16, scale=4)
    close((got[1].astype(float) * x).sum(), (dy * expected).sum(), factor=256, scale=20)


@pytest.mark.parametrize("io", [T.FLOAT, T.BFLOAT16])
def test_mixture_of_experts(io):
    from dnnkern.host.dtypes import numpy_dtype
    dtype = numpy_dtype(DTYPE[io])
    token, weight = draw((1, 11, 8), 1).astype(dtype), draw((3, 8, 6), 2).astype(dtype)
    first = np.array([0, 4, 4], np.int32).reshape(3, 1, 1)
    graph = new_graph(io)
    tt, tw, tf = (like(graph, array) for array in (token, weight, first))
    y = graph.moe_grouped_matmul(tt, tw, tf).set_output(True)
    got, = run(graph, {tt: token, tw: weight, tf: first}, [y])
    assert y.get_dim() == [1, 11, 6]
    rows = token[0].astype(float)
    close(got[0], np.concatenate([rows[:4] @ weight[0].astype(float), rows[4:] @ weight[2].astype(float)]), factor=8, scale=8)


def test_experts_of_several_samples():
    """Offsets of two samples for each of three experts, one of which has no row; every plan."""
    token, weight = draw((1, 19, 8), 1), draw((3, 8, 6), 2)
    first = np.array([0, 4, 4, 7, 9, 15], np.int32).reshape(6, 1, 1)
    graph = new_graph()
    tt, tw, tf = (like(graph, array) for array in (token, weight, first))
    y = graph.moe_grouped_matmul(tt, tw, tf, name="moe").set_output(True)
    assert y.get_name() == "moe::Output"
    graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.build_plans(cudnn.build_plan_policy.ALL)
    ends = [*first.ravel()[1:], 19]
    want = np.concatenate([token[0, a:b].astype(float) @ weight[g % 3] for g, (a, b) in enumerate(zip(first.ravel(), ends))])
    for plan in range(graph.get_execution_plan_count()):
        got = array_of(y)
        execute(graph, {tt: token, tw: weight, tf: first, y: got}, plan)
        close(got[0], want, factor=8, scale=8)


@pytest.mark.parametrize("io", [T.FLOAT, T.BFLOAT16])
@pytest.mark.parametrize("mode", ["GATHER", "SCATTER"])
def test_grouped_matmul_of_routed_tokens(mode, io):
    """Six tokens, two experts of three for each: rows are sorted by expert."""
    dtype, random = numpy_dtype(DTYPE[io]), np.random.default_rng(4)
    experts = np.array([random.permutation(3)[:2] for _ in range(6)])
    order = np.argsort(experts.reshape(-1), kind="stable")
    index, ks = ((order // 2).astype(np.int32).reshape(1, 12, 1), (order % 2).astype(np.int32).reshape(1, 12, 1))
    first = np.searchsorted(experts.reshape(-1)[order], range(3)).astype(np.int32).reshape(3, 1, 1)
    token, weight = draw((1, 6 if mode == "GATHER" else 12, 8), 1).astype(dtype), draw((3, 8, 5), 2).astype(dtype)
    graph = new_graph(io)
    tt, tw, tf, ti, tk = (like(graph, array) for array in (token, weight, first, index, ks))
    y = graph.moe_grouped_matmul(tt, tw, tf, ti, tk, mode=cudnn.moe_grouped_matmul_mode[mode], top_k=2).set_output(True)
    got, = run(graph, {tt: token, tw: weight, tf: first, ti: index, tk: ks}, [y])
    x, w, want = token[0].astype(float), weight.astype(float), np.zeros((12, 5))
    for r in range(12):
        expert = experts.reshape(-1)[order[r]]
        row = (x[index[0, r, 0]] if mode == "GATHER" else x[r]) @ w[expert]
        want[r if mode == "GATHER" else index[0, r, 0] * 2 + ks[0, r, 0]] = row
    assert y.get_dim() == [1, 12, 5]
    close(got[0], want, factor=8, scale=8)


def backward(mode, io, dtype):
    """A layer of routed experts, forward by one node, and its gradients by nodes: (results, their definitions)."""
    random, top_k, tokens = np.random.default_rng(5), 2, 6
    experts = np.array([random.permutation(3)[:top_k] for _ in range(tokens)]).reshape(-1)
    order = np.argsort(experts, kind="stable")
    rows, first = experts[order], np.searchsorted(experts[order], range(3)).astype(np.int32).reshape(3, 1, 1)
    index, ks = ((order // top_k).astype(np.int32).reshape(1, 12, 1), (order % top_k).astype(np.int32).reshape(1, 12, 1))
    token = draw((1, tokens if mode == "GATHER" else 12, 8), 1).astype(dtype)
    weight, dout = draw((3, 8, 5), 2).astype(dtype), draw((1, 12, 5), 3).astype(dtype)
    graph = new_graph(io)
    tt, tw, td, tf, ti, tk = (like(graph, array) for array in (token, weight, dout, first, index, ks))
    modes = cudnn.moe_grouped_matmul_mode
    dw = graph.moe_grouped_matmul_bwd(td, tt, tf, token_index=ti, token_ks=tk, mode=modes[mode], top_k=top_k, name="dw").set_output(True)
    transposed = graph.tensor([3, 5, 8], [40, 1, 5], like(graph, weight).get_data_type())
    pack = {tt: token, tw: weight, td: dout, tf: first, ti: index, tk: ks, transposed: weight}
    x, d, w = token[0].astype(float), dout[0].astype(float), weight.astype(float)
    at = order if mode == "SCATTER" else np.arange(12)  # where a row's result is
    of = order // top_k if mode == "GATHER" else np.arange(12)  # whose product it is
    want_w, want_x = np.zeros((3, 8, 5)), np.zeros(x.shape)
    for r in range(12):
        want_w[rows[r]] += np.outer(x[of[r]], d[at[r]])
        want_x[of[r]] += d[at[r]] @ w[rows[r]].T
    if mode == "NONE":
        dx = graph.moe_grouped_matmul(td, transposed, tf)
    elif mode == "GATHER":  # scattered by token, and added up
        each = graph.moe_grouped_matmul(td, transposed, tf, ti, tk, mode=modes.SCATTER, top_k=top_k).set_data_type(T.FLOAT)
        each = graph.reshape(each).set_dim([1, tokens, top_k, 8]).set_stride([96, 16, 8, 1])
        dx = graph.reduction(each, cudnn.reduction_mode.ADD).set_dim([1, tokens, 1, 8]).set_stride([48, 8, 8, 1])
    else:  # gathered from where the forward scattered
        from_rows = graph.tensor([1, 12, 1], [12, 1, 1], T.INT32)
        pack[from_rows] = order.astype(np.int32).reshape(1, 12, 1)
        dx = graph.moe_grouped_matmul(td, transposed, tf, from_rows, mode=modes.GATHER)
    return graph, pack, [dw, dx.set_output(True)], [want_w, want_x]


@pytest.mark.parametrize("io", [T.FLOAT, T.BFLOAT16])
@pytest.mark.parametrize("mode", ["NONE", "GATHER", "SCATTER"])
def test_gradients_of_routed_tokens(mode, io):
    """Weights by `moe_grouped_matmul_bwd`; tokens by the forward's node, with weights that are transposed in memory."""
    graph, pack, results, wanted = backward(mode, io, numpy_dtype(DTYPE[io]))
    found = run(graph, pack, results)
    assert results[0].get_dim() == [3, 8, 5] and results[0].get_stride() == [40, 1, 8]
    for got, want in zip(found, wanted):
        close(got.astype(float).reshape(want.shape), want, dtype=DTYPE[io], factor=8, scale=16)


D = cudnn.rng_distribution


@pytest.mark.parametrize("distribution, numbers, mean, deviation", [
    (D.BERNOULLI, {"bernoulli_probability": 0.75}, 0.75, 0.1875 ** 0.5),
    (D.UNIFORM, {"uniform_minimum": -1.0, "uniform_maximum": 3.0}, 1.0, 4 / 12 ** 0.5),
    (D.NORMAL, {"normal_mean": 2.0, "normal_standard_deviation": 0.5}, 2.0, 0.5)])
def test_random_numbers(distribution, numbers, mean, deviation):
    """The numbers of `random_fill`, in one step, of a seed by value or on the device."""
    graph = new_graph()
    seed, offset = graph.tensor([1], [1], T.INT64, is_pass_by_value=True), graph.tensor([1], [1], T.INT64)
    y = graph.rng([40, 100], seed, offset, distribution, **numbers).set_output(True)
    made = [run(graph, {seed: np.array([word]), offset: np.array([3])}, [y])[0] for word in (5, 5, 6)]
    assert abs(made[0].mean() - mean) < 4 * deviation / 4000 ** 0.5 and abs(made[0].std() - deviation) < 0.05 * deviation
    np.testing.assert_array_equal(made[0], made[1])
    assert (made[0] != made[2]).any() and len(graph.explain().parts) == 1
    names = {"bernoulli_probability": "p", "uniform_minimum": "low", "uniform_maximum": "high", "normal_mean": "mean",
             "normal_standard_deviation": "std"}
    filled = dnnkern.random_fill(cuda.to_device(np.empty((40, 100), np.float32)), distribution.name.lower(), 5, offset=3,
                                 **{names[name]: value for name, value in numbers.items()})
    np.testing.assert_array_equal(made[0], filled.copy_to_host())


@pytest.mark.parametrize("make, message", [
    (lambda g, x: g.resample(x, R.MAXPOOL, P.ZERO_PAD, [2, 2], [2, 2], [1, 1], [1, 1]), "MAXPOOL with ZERO_PAD; expected NEG_INF_PAD"),
    (lambda g, x: g.resample(x, R.MAXPOOL, P.NEG_INF_PAD, [9, 2]), r"windows \(9, 2\)"),
    (lambda g, x: g.resample(x, R.BILINEAR, P.ZERO_PAD), "ATTRIBUTE_NOT_SET.*set_dim"),
    (lambda g, x: [g.moe_grouped_matmul(x, x, x)], "moe_grouped_matmul node '0': port Token.*expected 3 of them"),
    (lambda g, x: [g.moe_grouped_matmul(g.tensor([1, 4, 4], [16, 4, 1]), g.tensor([3, 4, 4], [16, 4, 1]), g.tensor([4, 1, 1], [1, 1, 1]))],
     r"port FirstTokenOffset.*dims \(4, 1, 1\); expected \(3, 1, 1\), or so many"),
    (lambda g, x: [g.moe_grouped_matmul(*[g.tensor([1, 4, 4], [16, 4, 1])] * 2, g.tensor([1, 1, 1], [1, 1, 1]),
                                        mode=cudnn.moe_grouped_matmul_mode.GATHER)], r"TokenIndex: got none; expected a tensor \(1, rows"),
    (lambda g, x: [g.moe_grouped_matmul(*[g.tensor([1, 4, 4], [16, 4, 1])] * 2, g.tensor([1, 1, 1], [1, 1, 1]),
                                        *[g.tensor([1, 4, 1], [4, 1, 1], T.INT32)] * 2,
                                        mode=cudnn.moe_grouped_matmul_mode.SCATTER)], "top_k 0; expected 1 at least")])
def test_refusals(make, message):
    graph = new_graph()
    make(graph, graph.tensor([1, 4, 4, 4], [64, 1, 16, 4], name="x"))[0].set_output(True)
    with pytest.raises((ValueError, RuntimeError), match=message):
        graph.validate()


@pytest.mark.parametrize("numbers, message", [
    ({"bernoulli_probability": 1.5}, "bernoulli_probability is 1.5; expected 0 to 1"),
    ({"uniform_minimum": 2.0}, "uniform_maximum is 1.0; expected uniform_minimum, 2.0"),
    ({"normal_standard_deviation": -1.0}, "normal_standard_deviation is -1.0; expected 0 at least")])
def test_distributions_are_checked(numbers, message):
    graph = new_graph()
    x = graph.tensor([1], [1], T.INT64)
    with pytest.raises(RuntimeError, match=message):
        graph.rng([4], x, x, D.UNIFORM, **numbers)

"""`execute` with other shapes than a graph was built with: one build, many shapes."""
import numpy as np
import pytest
from graphs import T, channels_last, close, draw, execute, like, new_graph

import dnnkern.graph as cudnn
from dnnkern.device import HOST_MEMORY
from dnnkern.graph import _override
from dnnkern.graph._errors import InvalidValue, WorkspaceTooSmall

A, FALLBACK = [cudnn.heur_mode.A], [cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK]
on_host = pytest.mark.skipif(not HOST_MEMORY, reason="passes NumPy arrays")


def graph_of(io=T.FLOAT):
    return cudnn.pygraph(io_data_type=io, intermediate_data_type=T.FLOAT, compute_data_type=T.FLOAT, is_override_shape_enabled=True)


def strides(array):
    return [s // array.itemsize for s in array.strides]


def run(graph, pack, index=None, workspace=None):
    """Execute with the shapes of all arrays of {tensor: array}."""
    uids = [t if isinstance(t, int) else t.get_uid() for t in pack]
    shapes, steps = [list(a.shape) for a in pack.values()], [strides(a) for a in pack.values()]

    class Overridden:
        get_workspace_size = staticmethod(lambda: graph.get_workspace_size() if workspace is None else workspace)

        @staticmethod
        def execute(given, space):
            if index is None:
                graph.execute(given, space, override_uids=uids, override_shapes=shapes, override_strides=steps)
            else:
                graph.execute_plan_at_index(given, space, index, None, uids, shapes, steps)
    execute(Overridden, pack)


class Linear:
    """relu(a @ b + bias)"""

    def __init__(self, m=4, n=6, k=8, modes=A, **more):
        self.graph = graph_of(**more)
        self.a, self.b = self.graph.tensor([1, m, k], [m * k, k, 1], name="a"), self.graph.tensor([1, k, n], [k * n, n, 1], name="b")
        self.bias = self.graph.tensor([1, 1, n], [n, n, 1], name="bias")
        self.y = self.graph.relu(self.graph.bias(self.graph.matmul(self.a, self.b), self.bias)).set_output(True).set_name("y")
        self.graph.build(modes)

    def pack(self, m, n, k, batch=1):
        self.arrays = draw((batch, m, k), m), draw((batch, k, n), n), draw((1, 1, n), k)
        self.result = np.full((batch, m, n), np.nan, np.float32)
        return dict(zip((self.a, self.b, self.bias, self.y), (*self.arrays, self.result)))

    def check(self):
        a, b, bias = (array.astype(float) for array in self.arrays)
        close(self.result, np.maximum(a @ b + bias, 0), factor=64, scale=8)


def test_other_shapes():
    case = Linear()
    for sizes in ((4, 6, 8), (7, 6, 8), (4, 6, 8), (3, 11, 5), (16, 1, 3), (2, 6, 8, 3)):
        run(case.graph, case.pack(*sizes))
        case.check()
    assert len(case.graph._shapes) == 5, "the same shapes are one"
    pack = case.pack(4, 6, 8)
    execute(case.graph, pack)
    case.check()


def test_every_plan():
    case = Linear(modes=FALLBACK)
    case.graph.build_plans(cudnn.build_plan_policy.ALL)
    assert case.graph.get_execution_plan_count() > 2
    for index in range(case.graph.get_execution_plan_count()):
        run(case.graph, case.pack(5, 7, 9), index, workspace=1 << 16)
        case.check()


def test_the_plans_algorithms_stay():
    case = Linear(modes=FALLBACK)
    index = next(k for k in range(9) if case.graph.get_plan_name_at_index(k).startswith("matmul_tiled"))
    case.graph.build_plan_at_index(index)
    run(case.graph, case.pack(5, 7, 9))
    case.check()
    (runner,) = case.graph._shapes.values()
    assert runner.plan.identity == case.graph._candidate.identity and runner.plan.name.startswith("matmul_tiled")


def test_what_the_plans_algorithm_cannot_do_another_does(monkeypatch):
    monkeypatch.setattr(_override, "_suits", lambda *given: False)
    case = Linear()
    run(case.graph, case.pack(5, 7, 9))
    case.check()


def test_lists_tuples_and_arrays_are_the_same():
    case = Linear()
    pack = case.pack(5, 6, 8)
    uids, shapes = (case.a.get_uid(), case.y.get_uid()), ((1, 5, 8), (1, 5, 6))
    for kind in (list, tuple, np.array):
        execute(_given(case.graph, kind(uids), [kind(s) for s in shapes], kind([kind((40, 8, 1)), kind((30, 6, 1))])), pack)
        case.check()
    assert len(case.graph._shapes) == 1


def _given(graph, *overrides):
    return type("Given", (), {"get_workspace_size": staticmethod(graph.get_workspace_size),
                              "execute": staticmethod(lambda pack, workspace: graph.execute(pack, workspace, None, *overrides))})


def test_results_that_are_inferred_follow():
    """Results of which neither dims nor strides were set need no override."""
    case = Linear()
    pack = case.pack(9, 6, 8)
    execute(_given(case.graph, [case.a.get_uid()], [(1, 9, 8)], [(72, 8, 1)]), pack)
    case.check()


def test_other_strides_in_the_same_order():
    case = Linear()
    pack = case.pack(5, 6, 8)
    wide = np.full((1, 5, 16), np.nan, np.float32)
    wide[..., :8] = pack[case.a]
    pack[case.a] = wide[..., :8]
    run(case.graph, pack)
    case.check()


def test_an_empty_list_changes_nothing():
    case = Linear()
    pack = case.pack(4, 6, 8)
    execute(_given(case.graph, [], [], []), pack)
    case.check()


def test_no_elements():
    case = Linear()
    run(case.graph, case.pack(0, 6, 8))
    case.check()
    run(case.graph, case.pack(5, 6, 8))
    case.check()


@pytest.mark.parametrize("last", [True, False])
def test_convolutions(last):
    arrange = channels_last if last else np.asarray
    graph = graph_of()
    x, w = arrange(draw((1, 4, 5, 5), 1)), arrange(draw((6, 2, 3, 3), 2))
    tx, tw, ts = like(graph, x), like(graph, w), graph.tensor([1, 6, 1, 1], [6, 1, 1, 1])
    y = graph.relu(graph.mul(graph.conv_fprop(tx, tw, padding=[1, 1], stride=[1, 1], dilation=[1, 1]), ts)).set_output(True)
    y.set_dim([1, 6, 5, 5]).set_stride(strides(arrange(np.empty((1, 6, 5, 5), np.float32))))
    graph.build(A)
    for n, h, width in ((2, 7, 4), (1, 3, 9)):
        x, scale = arrange(draw((n, 4, h, width), h)), draw((1, 6, 1, 1), n)
        result = arrange(np.full((n, 6, h, width), np.nan, np.float32))
        run(graph, {tx: x, tw: w, ts: scale, y: result}, workspace=1 << 20)
        padded = np.pad(x.astype(float), [(0, 0), (0, 0), (1, 1), (1, 1)])
        expected = np.zeros(result.shape)
        for group in range(2):
            for r in range(3):
                for s in range(3):
                    expected[:, 3 * group:3 * group + 3] += np.einsum(
                        "nchw,kc->nkhw", padded[:, 2 * group:2 * group + 2, r:r + h, s:s + width],
                        w[3 * group:3 * group + 3, :, r, s].astype(float))
        close(result, np.maximum(expected * scale, 0), factor=64, scale=8)
    dense = arrange(draw((6, 4, 3, 3), 3))
    with pytest.raises(InvalidValue, match="conv_fprop node .*the shapes make 1 groups; expected 2, which the graph was built with"):
        run(graph, {tx: x, tw: dense, ts: scale, y: result}, workspace=1 << 20)


def test_reductions_slices_views_and_results_in_the_middle():
    """A product's largest elements by row, and a part of it that ends where the product does."""
    graph = graph_of()
    a, b = graph.tensor([1, 4, 8], [32, 8, 1]), graph.tensor([1, 8, 6], [48, 6, 1])
    c = graph.matmul(a, b)
    top = graph.reduction(c, cudnn.reduction_mode.MAX).set_dim([1, 4, 1]).set_stride([4, 1, 1])
    shifted = graph.sub(c, top).set_output(True)
    part = graph.slice(graph.transpose(c, [0, 2, 1]), [slice(None), slice(2, None), slice(0, 3)])
    half = graph.mul(part, part).set_output(True).set_stride([12, 3, 1])
    graph.build(A)
    for m, n in ((4, 6), (9, 5), (5, 12)):
        x, w = draw((1, m, 8), m), draw((1, 8, n), n)
        one, two = np.full((1, m, n), np.nan, np.float32), np.full((1, n - 2, 3), np.nan, np.float32)
        run(graph, {a: x, b: w, shifted: one, half: two}, workspace=1 << 16)
        product = x.astype(float) @ w
        close(one, product - product.max(2, keepdims=True), factor=64, scale=16)
        close(two, product.transpose(0, 2, 1)[:, 2:, :3] ** 2, factor=256, scale=64)


def test_normalizations_and_softmax():
    graph = graph_of()
    x, scale, bias = (graph.tensor(dim, [*np.cumprod([1, *dim[:0:-1]])[::-1].tolist()]) for dim in
                      ([3, 16, 1, 1], [1, 16, 1, 1], [1, 16, 1, 1]))
    epsilon = graph.tensor_scalar(1e-5, cudnn.scalar_type.COMPILE_TIME_CONST)
    y, mean, rstd = graph.layernorm(cudnn.norm_forward_phase.TRAINING, x, scale, bias, epsilon)
    for t in (y, mean, rstd):
        t.set_output(True)
    graph.build(A)
    for rows, columns in ((5, 16), (2, 40)):
        array, weight, shift = draw((rows, columns, 1, 1), 1), draw((1, columns, 1, 1), 2), draw((1, columns, 1, 1), 3)
        results = [np.full(shape, np.nan, np.float32) for shape in ((rows, columns, 1, 1), *((rows, 1, 1, 1),) * 2)]
        run(graph, {x: array, scale: weight, bias: shift, **dict(zip((y, mean, rstd), results))}, workspace=1 << 16)
        wide = array.astype(float)
        expected = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
        close(results[0], expected * weight + shift, factor=64, scale=8)
        close(results[1], wide.mean(1, keepdims=True), factor=64, scale=1)


@pytest.mark.parametrize("memory", ["BHSD", "THD"])
def test_attention_over_other_lengths(memory):
    """Ragged queries, whose strides may be those of their memory: tokens, heads, elements."""
    heads, d, dtype = 2, 8, np.float16
    graph = graph_of(T.HALF)
    q = graph.tensor([2, heads, 4, d], [heads * d, d, heads * d, 1], name="q")
    k, v = (graph.tensor([2, heads, 4, d], [heads * 4 * d, d, heads * d, 1], name=name) for name in "kv")
    offsets = graph.tensor([3, 1, 1, 1], [1, 1, 1, 1], T.INT32)
    lengths = [graph.tensor([2, 1, 1, 1], [1, 1, 1, 1], T.INT32) for _ in range(2)]
    q.set_ragged_offset(offsets)
    o, _ = graph.sdpa(q, k, v, attn_scale=0.5, is_inference=True, use_padding_mask=True, seq_len_q=lengths[0], seq_len_kv=lengths[1])
    o.set_output(True).set_dim([2, heads, 4, d]).set_stride([heads * d, d, heads * d, 1]).set_ragged_offset(offsets)
    graph.build(A)
    for queries, keys in (((2, 3), (5, 7)), ((6, 1), (3, 3))):
        most, longest, total = max(queries), max(keys), sum(queries)
        tokens = draw((total, heads, d), 1).astype(dtype)
        kv = [draw((2, longest, heads, d), s).astype(dtype) for s in (2, 3)]
        found = np.zeros((total, heads, d), dtype)
        given = {q: tokens, k: kv[0].transpose(0, 2, 1, 3), v: kv[1].transpose(0, 2, 1, 3), o: found,
                 offsets: np.array([0, queries[0], total], np.int32) * heads * d,
                 **{t: np.array(n, np.int32).reshape(2, 1, 1, 1) for t, n in zip(lengths, (queries, keys))}}
        step = [heads * d, d, heads * d, 1] if memory == "BHSD" else strides(tokens)
        execute(_given(graph, [t.get_uid() for t in (q, k, v, o)],
                       [(2, heads, most, d), *(a.transpose(0, 2, 1, 3).shape for a in kv), (2, heads, most, d)],
                       [step, *(strides(a.transpose(0, 2, 1, 3)) for a in kv), step]), given)
        for b, first in enumerate((0, queries[0])):
            rows = tokens[first:first + queries[b]].astype(float)
            scores = np.einsum("qhd,khd->hqk", rows, kv[0][b, :keys[b]].astype(float)) * 0.5
            weights = np.exp(scores - scores.max(2, keepdims=True))
            expected = np.einsum("hqk,khd->qhd", weights / weights.sum(2, keepdims=True), kv[1][b, :keys[b]].astype(float))
            np.testing.assert_allclose(found[first:first + queries[b]], expected, atol=5e-3)


# ---- what is refused, before anything is launched

@pytest.mark.parametrize("change, error, match", [
    (lambda c: ([c.a.get_uid()], [(1, 5, 8)], []), RuntimeError, "got 1 override_uids, 1 override_shapes and 0 override_strides"),
    (lambda c: (None, [(1, 5, 8)], [(40, 8, 1)]), RuntimeError, "got 0 override_uids, 1 override_shapes and 1 override_strides"),
    (lambda c: ([99], [(1, 5, 8)], [(40, 8, 1)]), RuntimeError, "override_uids has 99, which no tensor has"),
    (lambda c: ([c.a.get_uid()] * 2, [(1, 5, 8)] * 2, [(40, 8, 1)] * 2), RuntimeError, "which comes twice"),
    (lambda c: ([c.a.get_uid()], [(5, 8)], [(8, 1)]), RuntimeError, r"tensor 'a' \(uid \d+\): got shape \(5, 8\).*expected 3 of each"),
    (lambda c: ([c.a.get_uid()], [(1, 5, 8)], [(8, 1)]), RuntimeError, r"got shape \(1, 5, 8\) and strides \(8, 1\)"),
    (lambda c: ([c.a.get_uid()], [(1, 5, 8)], [(40, 1, 5)]), RuntimeError, r"got strides \(40, 1, 5\).*in the order of \(32, 8, 1\)"),
    (lambda c: ([c.a.get_uid()], [(1, 5, 9)], [(45, 9, 1)]), ValueError, "execute: with the shapes of override_uids .*matmul node"),
    (lambda c: ([c.a.get_uid()], [(1, -5, 8)], [(40, 8, 1)]), RuntimeError, "expected no negative values"),
    (lambda c: ([c.a.get_uid()], [(1, 5.5, 8)], [(40, 8, 1)]), TypeError, "expected a sequence of ints"),
    (lambda c: (c.a.get_uid(), [(1, 5, 8)], [(40, 8, 1)]), TypeError, "override_uids=.*expected three lists"),
    (lambda c: ([c.a.get_uid()], [(1, 50, 8)], [(400, 8, 1)]), ValueError, "INVALID_VARIANT_PACK: tensor 'a' .*its buffer has"),
])
@on_host
def test_refused(change, error, match, monkeypatch):
    case = Linear()
    pack = case.pack(5, 6, 8)
    with pytest.raises(error, match=match):
        case.graph.execute(pack, None, None, *change(case))
    assert np.isnan(case.result).all()
    run(case.graph, pack)
    case.check()


@on_host
def test_a_graph_that_takes_no_shapes():
    graph = new_graph()
    x = graph.tensor([2, 3], [3, 1])
    y = graph.relu(x).set_output(True)
    graph.build(A)
    given, result = draw((4, 3), 1), np.full((4, 3), np.nan, np.float32)
    with pytest.raises(InvalidValue, match="takes no override_uids; expected pygraph.is_override_shape_enabled=True"):
        graph.execute({x: given, y: result}, None, None, [x.get_uid()], [(4, 3)], [(3, 1)])
    assert np.isnan(result).all()


@on_host
def test_a_number_has_no_shape():
    graph = graph_of()
    x, number = graph.tensor([2, 3], [3, 1]), graph.tensor([1, 1], [1, 1], is_pass_by_value=True)
    y = graph.mul(x, number).set_output(True)
    graph.build(A)
    with pytest.raises(InvalidValue, match="which is passed by value"):
        graph.execute({x: draw((2, 3), 1), number: 2.0, y: draw((2, 3), 1)}, None, None, [number.get_uid()], [(1, 1)], [(1, 1)])


@on_host
def test_more_workspace_than_was_promised():
    """An array that has enough is taken, an address never, since nobody knows how much there is."""
    graph = graph_of()
    x = graph.tensor([1, 4, 16], [64, 16, 1], name="x")
    y = graph.softmax(graph.softmax(x, 2), 2).set_output(True)
    graph.build(A)
    promised = graph.get_workspace_size()
    given, result = draw((1, 40, 16), 1), np.full((1, 40, 16), np.nan, np.float32)
    overrides = [x.get_uid()], [(1, 40, 16)], [(640, 16, 1)]
    need, small, enough = 40 * 16 * 4, np.empty(promised, np.uint8), np.empty(40 * 16 * 4, np.uint8)
    assert 0 < promised < need
    for wrong, match in ((None, "got no workspace"), (small, f"has {promised} bytes; the plan needs {need}"),
                         (enough.ctypes.data, f"is an address.*expected an array of {need}")):
        with pytest.raises(WorkspaceTooSmall, match=f"{match}.*for these shapes; the {promised} of get_workspace_size"):
            graph.execute({x: given, y: result}, wrong, None, *overrides)
        assert np.isnan(result).all()
    graph.execute({x: given, y: result}, enough, None, *overrides)
    e = np.exp(given.astype(float))
    e = np.exp(e / e.sum(2, keepdims=True))
    close(result, e / e.sum(2, keepdims=True), factor=64)
    few, result = draw((1, 2, 16), 1), np.full((1, 2, 16), np.nan, np.float32)
    graph.execute({x: few, y: result}, small.ctypes.data, None, [x.get_uid()], [(1, 2, 16)], [(32, 16, 1)])
    assert not np.isnan(result).any()


def test_a_result_whose_dims_were_set_has_to_be_given():
    graph = graph_of()
    x = graph.tensor([2, 3, 4], [12, 4, 1])
    y = graph.reshape(x).set_output(True).set_dim([6, 4]).set_stride([4, 1]).set_name("flat")
    graph.build(A)
    given, result = draw((5, 3, 4), 1), np.full((15, 4), np.nan, np.float32)
    if HOST_MEMORY:
        with pytest.raises(ValueError, match="tensor 'flat'.*got dims"):
            graph.execute({x: given, y: result}, None, None, [x.get_uid()], [(5, 3, 4)], [(12, 4, 1)])
    run(graph, {x: given, y: result})
    np.testing.assert_array_equal(result, given.reshape(15, 4))


def test_of_a_serialized_graph():
    case = Linear()
    other = cudnn.pygraph()
    other.deserialize(case.graph.serialize())
    assert other.is_override_shape_enabled
    run(other, {t.get_uid(): array for t, array in case.pack(7, 5, 3).items()})
    case.check()


def test_shapes_that_are_remembered_are_bounded(monkeypatch):
    monkeypatch.setattr(_override, "REMEMBERED", 3)
    case = Linear()
    for m in range(1, 8):
        run(case.graph, case.pack(m, 6, 8))
        case.check()
    assert 0 < len(case.graph._shapes) <= 3


@pytest.mark.parametrize("seed", range(12))
def test_what_is_inferred_of_the_same_shapes_is_the_same(seed):
    """Of random graphs: dims, types and strides of all that has a buffer."""
    from test_graph_random import Random
    graph = Random(seed).graph
    graph.validate()
    spec = graph._spec
    made = _override.respecified(cudnn.pygraph, spec, {})
    assert made.nodes == spec.nodes
    for t, new in zip(sorted(spec.tensors, key=lambda t: t.uid), sorted(made.tensors, key=lambda t: t.uid)):
        assert (t.uid, t.dim, t.dtype, t.virtual) == (new.uid, new.dim, new.dtype, new.virtual)
        assert t.virtual or t == new


@pytest.mark.parametrize("serialized", [False, True])
def test_a_node_that_is_spelled_out(serialized):
    """`dbn_weight`, whose sums are the convolution's kernel's: its uids, other shapes, serialized or not."""
    graph = graph_of()
    dim = [2, 4, 3, 5]
    stride = [60, 1, 20, 4]
    x, z = graph.tensor(dim, stride, name="x"), graph.tensor(dim, stride, name="z")
    w = graph.tensor([4, 4, 1, 1], [4, 1, 4, 4], name="w")
    mean, rstd, scale = (graph.tensor([1, 4, 1, 1], [4, 1, 4, 4]) for _ in range(3))
    results = graph.dbn_weight(graph.conv_fprop(x, w), z, mean, rstd, scale)
    for t in results:
        t.set_output(True)
    graph.build(A)
    assert [part.op for part in graph.explain().parts] == ["conv_fwd", "fused_pointwise"]
    uids = [t.get_uid() for t in (x, w, z, mean, rstd, scale, *results)]
    if serialized:
        data, graph = graph.serialize(), graph_of()
        graph.deserialize(data)
    for n in (2, 3):
        xs, zs = (channels_last(draw((n, 4, 3, 5), k)) for k in (1, 2))
        ws, small = channels_last(draw((4, 4, 1, 1), 3)), [draw((1, 4, 1, 1), k) for k in (4, 5, 6)]
        found = [np.full((1, 4, 1, 1), np.nan, np.float32) for _ in results]
        run(graph, dict(zip(uids, (xs, ws, zs, *small, *found))), workspace=1 << 14)
        (m, r, s), v = (a.astype(float) for a in small), zs.astype(float)
        d = np.einsum("nchw,kc->nkhw", xs.astype(float), ws[:, :, 0, 0].astype(float))
        dscale, dbias, count = (d * (v - m) * r).sum((0, 2, 3), keepdims=True), d.sum((0, 2, 3), keepdims=True), n * 15
        eq_x = -s * r * dscale * r / count
        for have, want in zip(found, (dscale, dbias, s * r, eq_x, -(s * r * dbias / count + eq_x * m)), strict=True):
            close(have, want, factor=64, scale=32)

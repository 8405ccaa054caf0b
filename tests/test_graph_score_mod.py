"""`score_mod` and `score_mod_bprop` of attention in graphs: values against float64, the window found in them, launches, refusals."""
import numpy as np
import pytest
from graph_patterns import count_launches
from graphs import T, array_of, close, draw, execute, like, new_graph, run

import dnnkern.graph as cudnn
from dnnkern.device import HOST_MEMORY

B, H, G, S, N, D, E = 2, 4, 2, 9, 13, 8, 16
SCALE, CAP = 0.5, 0.75
ROW, COLUMN = np.arange(S)[:, None], np.arange(N)[None]
DOCUMENTS = np.random.default_rng(8).integers(0, 3, (B, 1, S, 1)).astype(np.int32), np.arange(N).reshape(1, 1, 1, N).repeat(B, 0) % 3


def number(graph, value):
    """A number that belongs to the graph."""
    return graph.tensor_scalar(value, cudnn.scalar_type.COMPILE_TIME_CONST)


def indices(graph, scores):
    """Tensors of each query's and each key's index."""
    return (graph.gen_index(scores, axis).set_data_type(T.INT32) for axis in (2, 3))


class Mod:
    """A modifier: `build(graph, scores)`, whose inputs are in `pack`, {tensor: array}; `value(scores)` -> (the result, its derivative);
    `bprop(graph, gradient)`; the window that is found, and the functions of the program that is left."""
    window, program, bprop = (-1, -1), "", None

    def __init__(self, graph):
        self.graph, self.pack = graph, {}

    def read(self, array):
        t = like(self.graph, array)
        self.pack[t] = array
        return t

    def by_value(self, value):
        t = self.graph.tensor([1, 1, 1, 1], [1, 1, 1, 1], T.FLOAT, is_pass_by_value=True)
        self.pack[t] = np.full((1, 1, 1, 1), value, np.float32)
        return t


class SoftCap(Mod):
    """By a number that is known at execution only."""
    program = "div+tanh+mul"

    def build(self, graph, scores):
        self.cap = self.by_value(CAP)
        self.level = graph.div(a=scores, b=self.cap)
        return graph.mul(a=graph.tanh(self.level), b=self.cap)

    def bprop(self, graph, gradient):
        """Of a tensor that the forward callable made."""
        return graph.tanh_backward(gradient, self.level)

    def value(self, x):
        return CAP * np.tanh(x / CAP), 1 - np.tanh(x / CAP) ** 2


class Causal(Mod):
    window = -1, 0

    def build(self, graph, scores):
        row, column = indices(graph, scores)
        mask = graph.cmp_ge(row, column).set_data_type(T.BOOLEAN)
        return graph.binary_select(scores, number(graph, -float("inf")), mask)

    def value(self, x):
        return np.where(COLUMN <= ROW, x, -np.inf), 1


class CappedCausal(SoftCap):
    """A cap, then a mask, backward too."""
    window = -1, 0

    def build(self, graph, scores):
        return Causal.build(self, graph, super().build(graph, scores))

    def bprop(self, graph, gradient):
        row, column = indices(graph, gradient)
        mask = graph.cmp_gt(column, row).set_data_type(T.INT32)
        return graph.binary_select(number(graph, 0.0), super().bprop(graph, gradient), mask)

    def value(self, x):
        y, derivative = super().value(x)
        return np.where(COLUMN <= ROW, y, -np.inf), derivative


class Window(Mod):
    """i - 3 < j <= i + 2, by two masks of which one is what is left out, filled with a finite number."""
    window = 2, 2

    def build(self, graph, scores):
        row, column = indices(graph, scores)
        behind = graph.cmp_lt(graph.sub(row, number(graph, 3)).set_data_type(T.INT32), column).set_data_type(T.BOOLEAN)
        before = graph.cmp_gt(graph.sub(column, row).set_data_type(T.INT32), number(graph, 2)).set_data_type(T.BOOLEAN)
        inner = graph.binary_select(number(graph, -2e9), scores, before)
        return graph.identity(graph.binary_select(inner, number(graph, -float("inf")), behind))

    def value(self, x):
        return np.where((COLUMN > ROW - 3) & (COLUMN <= ROW + 2), x, -np.inf), 1


class Alibi(Mod):
    """Minus a head's slope times a distance, causal by one `logical_and` of two comparisons; the slopes are an operand of heads alone."""
    window, program, slopes = (5, 0), "sub+mul+add", draw((1, H, 1, 1), 7) ** 2

    def build(self, graph, scores):
        row, column = indices(graph, scores)
        distance = graph.sub(column, row, compute_data_type=T.INT32)
        scores = graph.add(scores, graph.mul(distance, self.read(self.slopes)))
        near = graph.cmp_le(graph.sub(row, column).set_data_type(T.INT32), number(graph, 5)).set_data_type(T.BOOLEAN)
        mask = graph.logical_and(graph.cmp_le(column, row).set_data_type(T.BOOLEAN), near).set_data_type(T.BOOLEAN)
        return graph.binary_select(scores, number(graph, -float("inf")), mask)

    def value(self, x):
        return np.where((COLUMN <= ROW) & (COLUMN >= ROW - 5), x + self.slopes * (COLUMN - ROW), -np.inf), 1


class Documents(Mod):
    """Of equal integers of query and key; masked by a number that is known at execution only."""
    program = "cmp_eq+binary_select"

    def build(self, graph, scores):
        mask = graph.cmp_eq(*map(self.read, (DOCUMENTS[0], DOCUMENTS[1].astype(np.int32)))).set_data_type(T.BOOLEAN)
        return graph.binary_select(scores, self.by_value(-float("inf")), mask)

    def value(self, x):
        return np.where(DOCUMENTS[0] == DOCUMENTS[1], x, -np.inf), 1


class Biases(Mod):
    """One operand of each broadcast, one of them halved by a number of the graph; batch and head by their indices."""
    shapes = (B, H, S, N), (1, H, S, N), (B, 1, 1, N), (S, 1), (1, 1, 1, 1), (B, H, 1, 1)
    arrays = [draw(shape, k) for k, shape in enumerate(shapes)]
    program = "mul+add+add+add+add+mul+add+add+add+add"

    def build(self, graph, scores):
        batch, head = (graph.gen_index(scores, axis).set_data_type(T.INT32) for axis in (0, 1))
        scores = graph.add(graph.add(scores, graph.mul(batch, number(graph, 0.25))), head)
        for k, t in enumerate(map(self.read, self.arrays)):
            scores = graph.add(scores, graph.mul(t, number(graph, 0.5)) if k == 2 else t)
        return scores

    def value(self, x):
        for k, array in enumerate(self.arrays):
            x = x + array * (0.5 if k == 2 else 1)
        return x + 0.25 * np.arange(B).reshape(B, 1, 1, 1) + np.arange(H).reshape(1, H, 1, 1), 1


class Arrow(Mod):
    """The first two queries and keys, and next to the diagonal: `logical_or`, which is no window."""
    program = "cmp_lt+cmp_lt+logical_or+sub+abs+cmp_le+logical_or+binary_select"

    def build(self, graph, scores):
        row, column = indices(graph, scores)
        first = [graph.cmp_lt(t, number(graph, 2), compute_data_type=T.BOOLEAN).set_data_type(T.INT32) for t in (row, column)]
        mask = graph.logical_or(*first, compute_data_type=T.BOOLEAN).set_data_type(T.INT32)
        apart = graph.abs(graph.sub(row, column).set_data_type(T.INT32)).set_data_type(T.INT32)
        near = graph.cmp_le(apart, number(graph, 1)).set_data_type(T.INT32)
        return graph.binary_select(scores, self.by_value(-1e9), graph.logical_or(mask, near).set_data_type(T.INT32))

    def value(self, x):
        return np.where((ROW < 2) | (COLUMN < 2) | (abs(ROW - COLUMN) <= 1), x, -np.inf), 1


MODS = {made.__name__: made for made in (SoftCap, Causal, CappedCausal, Window, Alibi, Documents, Biases, Arrow)}


def operands(dtype):
    return draw((B, H, S, D), 1, dtype), draw((B, G, N, D), 2, dtype), draw((B, G, N, E), 3, dtype)


def reference(mod, q, k, v):
    """(o, lse, probabilities, the derivative of scores by the scaled products, k, v of each head) in float64."""
    q, k, v = (t.astype(float) for t in (q, k, v))
    k, v = (np.repeat(t, H // G, axis=1) for t in (k, v))
    x, derivative = mod.value(SCALE * q @ k.transpose(0, 1, 3, 2))
    top = x.max(-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    p = np.exp(x - top)
    total = p.sum(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(total > 0, p / total, 0) @ v, top + np.log(total), np.where(total > 0, p / total, 0), derivative, k, v


def problem(graph):
    """That of the one launch, or group of launches, that a graph is."""
    part, = graph.explain().parts
    return part.problem


@pytest.mark.parametrize("name", MODS)
def test_forward(name):
    q, k, v = operands(np.float32)
    graph = new_graph()
    mod, (tq, tk, tv) = MODS[name](graph), (like(graph, array) for array in (q, k, v))
    o, stats = graph.sdpa(tq, tk, tv, generate_stats=True, attn_scale=SCALE, score_mod=mod.build)
    o.set_output(True), stats.set_output(True)
    got = run(graph, {tq: q, tk: k, tv: v, **mod.pack}, [o, stats])
    expected, lse, *_ = reference(mod, q, k, v)
    close(got[0], expected, factor=128, scale=2)
    close(got[1], lse, factor=128, scale=8)
    text = problem(graph)
    assert (f"score_mod {mod.program}" in text) if mod.program else "score_mod" not in text, text
    left, right = mod.window
    band = "" if mod.window == (-1, -1) else " causal" if mod.window == (-1, 0) else f" window {left},{right}"
    assert band in text and ("causal" in text or "window" in text) == (band != ""), text
    assert count_launches(graph) == 1


@pytest.mark.parametrize("name", MODS)
def test_backward(name):
    q, k, v = operands(np.float32)
    graph = new_graph()
    mod = MODS[name](graph)
    expected, lse, p, derivative, wide_k, wide_v = reference(mod, q, k, v)
    o, stats, do = expected.astype(np.float32), lse.astype(np.float32), draw((B, H, S, E), 6)
    tensors = [like(graph, array) for array in (q, k, v, o, do, stats)]
    results = graph.sdpa_backward(*tensors, attn_scale=SCALE, score_mod=mod.build, score_mod_bprop=mod.bprop)
    for t in results:
        t.set_output(True)
    got = run(graph, {**dict(zip(tensors, (q, k, v, o, do, stats))), **mod.pack}, results)
    ds = p * (do.astype(float) @ wide_v.transpose(0, 1, 3, 2) - (do * expected).sum(-1, keepdims=True)) * derivative * SCALE
    dk, dv = ds.transpose(0, 1, 3, 2) @ q, p.transpose(0, 1, 3, 2) @ do
    shared = [t.reshape(B, G, H // G, N, -1).sum(2) for t in (dk, dv)]
    for have, want in zip(got, (ds @ wide_k, *shared)):
        close(have, want, factor=128, scale=10)
    assert ("causal" in problem(graph)) == (mod.window == (-1, 0))


@pytest.mark.parametrize("io", [T.HALF, T.BFLOAT16, T.DOUBLE])
def test_types(io):
    """On tensor cores, and in float64."""
    from graphs import DTYPE

    from dnnkern.host.dtypes import numpy_dtype
    q, k, v = operands(numpy_dtype(DTYPE[io]))
    kind = T.DOUBLE if io is T.DOUBLE else T.FLOAT
    graph = new_graph(io, kind, kind)
    mod, (tq, tk, tv) = CappedCausal(graph), (like(graph, array) for array in (q, k, v))
    o, _ = graph.sdpa(tq, tk, tv, is_inference=True, attn_scale=SCALE, score_mod=mod.build)
    o.set_output(True)
    got, = run(graph, {tq: q, tk: k, tv: v, **mod.pack}, [o])
    close(got, reference(mod, q, k, v)[0], factor=16, scale=2)


def capped(seed=1, rows=S, **options):
    """(graph, mod, pack, o) of attention with `CappedCausal`."""
    q, k, v = draw((B, H, rows, D), seed), *operands(np.float32)[1:]
    graph = cudnn.pygraph(io_data_type=T.FLOAT, intermediate_data_type=T.FLOAT, compute_data_type=T.FLOAT, **options)
    mod, (tq, tk, tv) = CappedCausal(graph), (like(graph, array) for array in (q, k, v))
    o, _ = graph.sdpa(tq, tk, tv, is_inference=True, attn_scale=SCALE, score_mod=mod.build)
    o.set_output(True)
    return graph, mod, {tq: q, tk: k, tv: v, **mod.pack}, o


@pytest.mark.parametrize("name, by_program", [("CappedCausal", True), ("Causal", False), ("Documents", True)])
def test_a_bias_is_added_afterwards(name, by_program):
    """As cuDNN's order is; where only a window is left of the callable the bias is the family's own."""
    q, k, v = operands(np.float32)
    bias, graph = draw((1, H, S, N), 11), new_graph()
    mod, (tq, tk, tv, tb) = MODS[name](graph), (like(graph, array) for array in (q, k, v, bias))

    class Biased(MODS[name]):
        def value(self, x):
            y, derivative = super().value(x)
            return y + bias, derivative
    expected, lse, p, derivative, wide_k, wide_v = reference(Biased(graph), q, k, v)
    o, _ = graph.sdpa(tq, tk, tv, is_inference=True, attn_scale=SCALE, bias=tb, score_mod=mod.build)
    o.set_output(True)
    got, = run(graph, {tq: q, tk: k, tv: v, tb: bias, **mod.pack}, [o])
    close(got, expected, factor=128, scale=2)
    assert (" bias " in problem(graph)) != by_program and count_launches(graph) == 1
    graph, do = new_graph(), draw((B, H, S, E), 6)
    mod, given = MODS[name](graph), (q, k, v, expected.astype(np.float32), do, lse.astype(np.float32), bias)
    *tensors, tb = (like(graph, array) for array in given)
    results = graph.sdpa_backward(*tensors, attn_scale=SCALE, bias=tb, score_mod=mod.build, score_mod_bprop=mod.bprop)
    for t in results:
        t.set_output(True)
    dq, _, dv = run(graph, {**dict(zip((*tensors, tb), given)), **mod.pack}, results)
    ds = p * (do.astype(float) @ wide_v.transpose(0, 1, 3, 2) - (do * expected).sum(-1, keepdims=True)) * derivative * SCALE
    close(dq, ds @ wide_k, factor=128, scale=10)
    close(dv, (p.transpose(0, 1, 3, 2) @ do).reshape(B, G, H // G, N, -1).sum(2), factor=128, scale=10)


def test_as_data():
    """JSON both ways; equal callables make equal graphs; a serialized one runs in place of it."""
    (graph, _, pack, o), (same, *_) = capped(), capped(2)
    expected, = run(graph, pack, [o])
    same.validate()
    assert type(graph.spec).from_json(graph.spec.to_json()) == graph.spec and same.key() == graph.key()
    other = new_graph()
    other.deserialize(graph.serialize())
    got = array_of(o)
    named = {t.get_uid(): array for t, array in {**pack, o: got}.items()}
    execute(other, {other.query_tensor_attributes_of_uid(uid): array for uid, array in named.items()})
    assert np.array_equal(got, expected)


def test_other_shapes():
    """What runs inside has the dims of the scores."""
    if not HOST_MEMORY:
        pytest.skip("arrays of the host")
    graph, mod, pack, o = capped(is_override_shape_enabled=True)
    graph.build([cudnn.heur_mode.A])
    (tq, *_), rows = pack, 5
    q = draw((B, H, rows, D), 9)
    got = np.full((B, H, rows, E), np.nan, np.float32)
    shapes = [(B, H, rows, n) for n in (D, E)]
    workspace = np.empty(1 << 20, np.uint8)
    graph.execute({**pack, tq: q, o: got}, workspace, override_uids=[tq.get_uid(), o.get_uid()], override_shapes=shapes,
                  override_strides=[(H * rows * n, rows * n, n, 1) for *_, n in shapes])
    whole = np.zeros((B, H, S, D), np.float32)
    whole[:, :, :rows] = q
    close(got, reference(mod, whole, *list(pack.values())[1:3])[0][:, :, :rows], factor=128, scale=2)


def test_pages():
    """Lengths are the pages'; the callable may read them too."""
    q, k, v = operands(np.float32)
    rows, keys = np.full((B, 1, 1, 1), S, np.int32), np.array([13, 7], np.int32).reshape(B, 1, 1, 1)
    table = np.array([5, 0, 3, 1, 4, 2, 6, 7], np.int32).reshape(B, 1, 4, 1)
    pages = [np.zeros((8, G, 4, n), np.float32) for n in (D, E)]
    for b in range(B):
        for j in range(N):
            for to, x in zip(pages, (k, v)):
                to[table[b, 0, j // 4, 0], :, j % 4] = x[b, :, j]
    graph = new_graph()
    tq, tk, tv, tt, tr, tn = (like(graph, array) for array in (q, *pages, table, rows, keys))

    def build(graph, scores):
        mask = graph.cmp_lt(graph.gen_index(scores, 3).set_data_type(T.INT32), tn).set_data_type(T.BOOLEAN)
        return graph.binary_select(graph.mul(scores, scores), number(graph, -1e9), mask)
    o, _ = graph.sdpa(tq, tk, tv, is_inference=True, attn_scale=SCALE, seq_len_q=tr, seq_len_kv=tn, paged_attention_k_table=tt,
                      paged_attention_v_table=tt, paged_attention_max_seq_len_kv=N, score_mod=build)
    o.set_output(True)
    got, = run(graph, {tq: q, tk: pages[0], tv: pages[1], tt: table, tr: rows, tn: keys}, [o])

    class Squares(Mod):
        def value(self, x):
            return np.where(COLUMN < keys, x * x, -np.inf), 2 * x
    close(got, reference(Squares(graph), q, k, v)[0], factor=512, scale=2)


def test_a_view_and_a_result_are_operands():
    """A transposed tensor is read where it lies; what another node makes is there before."""
    q, k, v = operands(np.float32)
    bias, number_of = draw((1, H, N, S), 4), draw((1, 1, 1, N), 5)
    graph = new_graph()
    tq, tk, tv, tb, tn = (like(graph, array) for array in (q, k, v, bias, number_of))
    turned, squares = graph.transpose(tb, [0, 1, 3, 2]), graph.mul(tn, tn)
    o, _ = graph.sdpa(tq, tk, tv, is_inference=True, attn_scale=SCALE,
                      score_mod=lambda graph, scores: graph.add(graph.add(scores, turned), squares))
    o.set_output(True)
    got, = run(graph, {tq: q, tk: k, tv: v, tb: bias, tn: number_of}, [o])

    class Sums(Mod):
        def value(self, x):
            return x + bias.transpose(0, 1, 3, 2) + number_of ** 2, 1
    close(got, reference(Sums(graph), q, k, v)[0], factor=512, scale=2)


def _graph():
    graph, (q, k, v) = new_graph(), operands(np.float32)
    tensors = dict(zip("qkv", (like(graph, array) for array in (q, k, v))))
    return graph, tensors, like(graph, draw((B, H, S, 1), 1)).set_name("extra")


def _forward(function, **more):
    graph, tensors, extra = _graph()
    given = {name: t(graph, extra) if callable(t) else t for name, t in more.items()}
    graph.sdpa(**tensors, is_inference=True, score_mod=function(graph, extra) if function else None, **given)[0].set_output(True)
    graph.validate()


def _backward(function, bprop, bias=False):
    graph, tensors, extra = _graph()
    o = graph.tensor((B, H, S, E), (H * S * E, S * E, E, 1))
    more = {name: graph.tensor((1, H, S, N), (H * S * N, S * N, N, 1)) for name in ("bias", "dBias")} if bias else {}
    for t in graph.sdpa_backward(*tensors.values(), o, o, extra, score_mod=function, score_mod_bprop=bprop, **more):
        t.set_output(True)
    graph.validate()


def _other(graph, extra):
    other = new_graph()
    return lambda graph, scores: graph.add(scores, other.tensor((1, 1, 1, 1), (1, 1, 1, 1)))


def _others_result(graph, extra):
    other = new_graph()
    return lambda graph, scores: other.tensor((B, H, S, N), (1, 1, 1, 1))


def _kept(graph, extra):
    """A tensor from inside is read outside."""
    def keep(graph, scores):
        kept.append(graph.exp(scores))
        return kept[0]
    kept = []
    graph.sdpa(extra, extra, extra, is_inference=True, score_mod=keep)[0].set_output(True)
    graph.neg(kept[0]).set_output(True)
    return lambda graph, scores: scores


def _with_result(graph, extra):
    extra.set_output(True)
    return lambda graph, scores: graph.add(scores, extra)


@pytest.mark.parametrize("call, error, message", [
    (lambda: _forward(lambda *_: 3), TypeError, "sdpa node '0': score_mod: got int; expected a callable"),
    (lambda: _forward(lambda *_: lambda graph, scores: None), TypeError, "score_mod: got NoneType of the callable; expected a tensor"),
    (lambda: _forward(_other), RuntimeError, "add node '0': port IN_1: tensor .* belongs to another graph"),
    (lambda: _forward(_others_result), RuntimeError, "sdpa node '0': score_mod: tensor .* belongs to another graph"),
    (lambda: _forward(lambda _, extra: lambda graph, scores: extra), RuntimeError, "score_mod: got tensor 'extra' .*expected one that it"),
    (lambda: _forward(lambda *_: lambda graph, scores: graph.matmul(scores, scores)), cudnn.cudnnGraphNotSupportedError,
     "score_mod: matmul node '0' is no pointwise operation"),
    (lambda: _forward(lambda *_: lambda graph, scores: graph.neg(scores).set_output(True)), cudnn.cudnnGraphNotSupportedError,
     "score_mod: neg node '0': port OUT_0 .* is an output"),
    (lambda: _forward(lambda _, extra: lambda graph, scores: graph.neg(extra)), RuntimeError,
     r"score_mod: got a tensor of dims \(2, 4, 9, 1\) of the callable; expected the scores' \(2, 4, 9, 13\)"),
    (lambda: _forward(lambda *_: lambda graph, scores: graph.add(scores, graph.tensor((3, 1, 1, 1, 1), (1,) * 5))),
     ValueError, r"add node '0'.*dims \(3, 2, 4, 9, 13\); expected some that broadcast to the scores' \(2, 4, 9, 13\)"),
    (lambda: _forward(_kept), RuntimeError, "neg node '1': port IN_0 .* exists only inside sdpa node"),
    (lambda: _forward(_with_result, generate_stats=None, score_max=lambda _, extra: extra), RuntimeError,
     "add node '0': port IN_1 .*'extra'.* is a result of sdpa node '0', which it runs inside"),
    (lambda: _forward(lambda *_: lambda graph, scores: scores, use_causal_mask=True), cudnn.cudnnGraphNotSupportedError,
     "sdpa node '0': got score_mod and a causal mask or a band; expected one of them"),
    (lambda: _forward(lambda *_: lambda graph, scores: scores, use_alibi_mask=True), cudnn.cudnnGraphNotSupportedError,
     "got score_mod and use_alibi_mask"),
    (lambda: _backward(lambda graph, scores: scores, None, bias=True), cudnn.cudnnGraphNotSupportedError, "got score_mod and dBias"),
    (lambda: _forward(lambda *_: lambda graph, scores: scores, use_padding_mask=True, seq_len_q=lambda _, extra: extra,
                      seq_len_kv=lambda _, extra: extra), cudnn.cudnnGraphNotSupportedError, "got score_mod and use_padding_mask"),
    (lambda: _backward(None, lambda graph, gradient: gradient), RuntimeError, "got score_mod_bprop without score_mod; expected both"),
    (lambda: _backward(lambda graph, scores: graph.tanh(scores), None), RuntimeError, "got score_mod without score_mod_bprop; expected"),
    (lambda: _backward(lambda graph, scores: graph.add(scores, scores), None), RuntimeError, "got score_mod without score_mod_bprop"),
    (lambda: _backward(lambda graph, scores: scores, 5), TypeError, "score_mod_bprop: got int; expected a callable"),
])
def test_bad_input(call, error, message):
    """Before anything is launched, with the node and the argument."""
    with pytest.raises(error, match=message):
        call()


def test_a_callable_that_raises_leaves_no_nodes():
    graph, tensors, _ = _graph()

    def fail(graph, scores):
        graph.neg(scores)
        raise KeyError("of the caller's")
    with pytest.raises(KeyError, match="of the caller's"):
        graph.sdpa(**tensors, is_inference=True, score_mod=fail)
    assert not graph.nodes

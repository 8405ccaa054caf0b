"""Attention and rotary embeddings of graphs: values against float64, inference, refusals."""
import numpy as np
import pytest
from graphs import DTYPE, T, array_of, close, execute, like, new_graph, run

import dnnkern.graph as cudnn
from dnnkern.host.dtypes import numpy_dtype

B, H, G, S, N, D, E = 2, 4, 2, 9, 13, 8, 16


def draw(shape, seed, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def reference(q, k, v, scale=1.0, bias=0.0, allowed=True, sink=None, alibi=False):
    """(o, lse, probabilities) in float64; `allowed` is where a query attends to a key."""
    q, k, v = (t.astype(float) for t in (q, k, v))
    k, v = (np.repeat(t, q.shape[1] // k.shape[1], axis=1) for t in (k, v))
    scores = scale * q @ k.transpose(0, 1, 3, 2) + bias
    scores = np.where(allowed, scores, -np.inf)
    whole = scores if sink is None else np.concatenate([scores, np.broadcast_to(sink, (*scores.shape[:3], 1))], -1)
    top = whole.max(-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    total = np.exp(whole - top).sum(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = np.where(total > 0, np.exp(scores - top) / total, 0)
        return p @ v, top + np.log(total), p


def operands(io=T.FLOAT):
    dtype = numpy_dtype(DTYPE[io])
    return draw((B, H, S, D), 1, dtype), draw((B, G, N, D), 2, dtype), draw((B, G, N, E), 3, dtype)


ROW, COLUMN = np.arange(S)[:, None], np.arange(N)[None]
BANDS = {"none": ({}, np.ones((S, N), bool)), "causal": ({"use_causal_mask": True}, COLUMN <= ROW),
         "bottom_right": ({"use_causal_mask_bottom_right": True}, COLUMN <= ROW + N - S),
         "window": ({"use_causal_mask": True, "sliding_window_length": 3}, (COLUMN <= ROW) & (COLUMN > ROW - 3)),
         "band": ({"diagonal_band_left_bound": 2, "diagonal_band_right_bound": 1,
                   "diagonal_alignment": cudnn.diagonal_alignment.BOTTOM_RIGHT},
                  (COLUMN <= ROW + N - S + 1) & (COLUMN > ROW + N - S - 2))}


@pytest.mark.parametrize("band", BANDS)
def test_bands(band):
    options, allowed = BANDS[band]
    q, k, v = operands()
    graph = new_graph()
    tq, tk, tv = (like(graph, array) for array in (q, k, v))
    o, stats = graph.sdpa(q=tq, k=tk, v=tv, generate_stats=True, attn_scale=0.5, **options)
    o.set_output(True), stats.set_output(True)
    got = run(graph, {tq: q, tk: k, tv: v}, [o, stats])
    assert o.get_dim() == [B, H, S, E] and stats.get_dim() == [B, H, S, 1] and stats.get_data_type() is T.FLOAT
    expected, lse, _ = reference(q, k, v, 0.5, allowed=allowed)
    close(got[0], expected, factor=64, scale=2)
    close(got[1], lse, factor=64, scale=4)


@pytest.mark.parametrize("io", [T.HALF, T.BFLOAT16])
def test_types_and_strides(io):
    """Dims (B, H, S, D) in memory as (B, S, H, D)."""
    q, k, v = (np.ascontiguousarray(t.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for t in operands(io))
    graph = new_graph(io)
    tq, tk, tv = (like(graph, array) for array in (q, k, v))
    o, stats = graph.sdpa(tq, tk, tv, is_inference=True, attn_scale=1 / np.sqrt(D))
    assert stats is None
    o.set_output(True).set_stride([S * H * E, E, H * E, 1])
    got, = run(graph, {tq: q, tk: k, tv: v}, [o])
    close(got, reference(q, k, v, 1 / np.sqrt(D))[0], factor=8, scale=2)


def test_bias_lengths_sink_and_a_scale_by_value():
    q, k, v = operands()
    bias, sink = draw((1, H, S, N), 4), draw((1, H, 1, 1), 5)
    rows, keys = np.array([9, 4], np.int32).reshape(B, 1, 1, 1), np.array([13, 6], np.int32).reshape(B, 1, 1, 1)
    graph = new_graph()
    tq, tk, tv, tb, ts, tr, tn = (like(graph, array) for array in (q, k, v, bias, sink, rows, keys))
    scale = graph.tensor([1, 1, 1, 1], [1, 1, 1, 1], T.FLOAT, is_pass_by_value=True)
    o, stats = graph.sdpa(tq, tk, tv, generate_stats=True, attn_scale=scale, bias=tb, use_padding_mask=True, seq_len_q=tr, seq_len_kv=tn,
                          sink_token=ts)
    o.set_output(True), stats.set_output(True)
    pack = {tq: q, tk: k, tv: v, tb: bias, ts: sink, tr: rows, tn: keys}
    allowed = (ROW < rows) & (COLUMN < keys)
    graph.build([cudnn.heur_mode.A])
    for value in (0.5, 0.25, 0.5):
        got = array_of(o), array_of(stats)
        execute(graph, {**pack, scale: np.full((1, 1, 1, 1), value, np.float32), o: got[0], stats: got[1]})
        expected, lse, _ = reference(q, k, v, value, bias, allowed, sink)
        valid = np.broadcast_to(ROW < rows, expected.shape)
        close(got[0], np.where(valid, expected, 0), factor=64, scale=2)
        close(got[1][valid[..., :1]], lse[valid[..., :1]], factor=64, scale=4)


def test_gradients():
    q, k, v = operands()
    do, bias, sink = draw((B, H, S, E), 6), draw((1, H, S, N), 4), draw((1, H, 1, 1), 5)
    expected, lse, p = reference(q, k, v, 0.5, bias, COLUMN <= ROW + N - S, sink)
    o, stats = expected.astype(np.float32), lse.astype(np.float32)
    graph = new_graph()
    tq, tk, tv, to, tdo, tl, tb, ts = (like(graph, array) for array in (q, k, v, o, do, stats, bias, sink))
    dbias, dsink = graph.tensor_like(tb).set_output(True), graph.tensor_like(ts).set_output(True)
    results = graph.sdpa_backward(tq, tk, tv, to, tdo, tl, attn_scale=0.5, bias=tb, dBias=dbias, use_causal_mask_bottom_right=True,
                                  sink_token=ts, dSink_token=dsink)
    assert len(results) == 3
    for t in results:
        t.set_output(True)
    got = run(graph, {tq: q, tk: k, tv: v, to: o, tdo: do, tl: stats, tb: bias, ts: sink}, [*results, dbias, dsink])
    wide = [np.repeat(t.astype(float), H // G, axis=1) for t in (k, v)]
    dp = do.astype(float) @ wide[1].transpose(0, 1, 3, 2)
    inner = (do * expected).sum(-1, keepdims=True)
    ds = p * (dp - inner)
    dk, dv = 0.5 * ds.transpose(0, 1, 3, 2) @ q, p.transpose(0, 1, 3, 2) @ do
    shared = [t.reshape(B, G, H // G, N, -1).sum(2) for t in (dk, dv)]
    dsunk = -(np.exp(sink - lse) * inner).sum((0, 2), keepdims=True)
    for have, want in zip(got, (0.5 * ds @ wide[0], *shared, ds.sum(0, keepdims=True), dsunk)):
        close(have, want, factor=64, scale=10)


def test_dropout_is_the_same_forward_and_backward():
    """With v and do of ones dv sums the weights that were kept, as o does."""
    q, k, _ = operands()
    v = np.ones((B, G, N, E), np.float32)
    seed, offset = np.array([[7]], np.int64), np.array([[3]], np.int64)
    graph = new_graph()
    tq, tk, tv = (like(graph, array) for array in (q, k, v))
    words = [graph.tensor([1, 1, 1, 1], [1, 1, 1, 1], T.INT64, name=name) for name in ("seed", "offset")]
    o, stats = graph.sdpa(tq, tk, tv, generate_stats=True, dropout=(0.25, *words))
    graph_do = like(graph, np.ones((B, H, S, E), np.float32))
    results = graph.sdpa_backward(tq, tk, tv, o, graph_do, stats, dropout=(0.25, *words))
    for t in (o, results[2]):
        t.set_output(True)
    pack = {tq: q, tk: k, tv: v, words[0]: seed, words[1]: offset, graph_do: np.ones((B, H, S, E), np.float32)}
    got = run(graph, pack, [o, results[2]])
    assert len(np.unique(np.round(got[0], 4))) > 4  # weights are missing
    close(got[1].sum((2, 3)), got[0].reshape(B, G, H // G, S, E).sum((2, 3, 4)), factor=256, scale=100)


@pytest.mark.parametrize("kind, by_value", [(T.FLOAT, ()), (T.BOOLEAN, ("seed",)), (T.HALF, ("seed", "offset"))])
def test_rng_dump(kind, by_value):
    """The mask that the weights were multiplied by, of both directions, from the definition; of seeds by value or on the device."""
    from cases._sdpa import keeps
    q, k, _ = operands()
    v = np.broadcast_to(np.eye(N, dtype=np.float32), (B, G, N, N)).copy()  # o is the weights
    graph = new_graph()
    tq, tk, tv, tdo = (like(graph, array) for array in (q, k, v, np.ones((B, H, S, N), np.float32)))
    words = [graph.tensor([1, 1, 1, 1], [1, 1, 1, 1], T.INT64, name=name, is_pass_by_value=name in by_value) for name in ("seed", "offset")]
    dumps = [graph.tensor([B, H, S, N], stride, kind) for stride in ([H * S * N, S * N, N, 1], [H * S * N, N, H * N, 1])]
    o, stats = graph.sdpa(tq, tk, tv, generate_stats=True, dropout=(0.25, *words), rng_dump=dumps[0])
    plain, _ = graph.sdpa(tq, tk, tv, is_inference=True)
    found = graph.sdpa_backward(tq, tk, tv, o, tdo, stats, dropout=(0.25, *words), rng_dump=dumps[1])
    results = [t.set_output(True) for t in (o, plain, found[0])]
    inputs = {tq: q, tk: k, tv: v, tdo: np.ones((B, H, S, N), np.float32)}
    for seed, offset in ((7, 3), (7, 4), (-2, 3)):
        pack = {**inputs, words[0]: np.array([seed]), words[1]: np.array([offset])}
        got = run(graph, pack, [*dumps, *results])
        kept = np.array([keeps((H, S, N), b, 0.25, seed % 2 ** 64, offset) for b in range(B)])
        for dump in got[:2]:
            assert (dump.astype(float) == kept).all()
        close(got[2], got[3] * kept / 0.75, factor=16)


@pytest.mark.parametrize("stats", [False, True])
def test_the_largest_score_and_the_sum_of_exponentials(stats):
    q, k, v = operands()
    sink = draw((1, H, 1, 1), 5)
    graph = new_graph()
    tq, tk, tv, ts = (like(graph, array) for array in (q, k, v, sink))
    largest, total = (graph.tensor([B, H, S, 1], [H * S, S, 1, 1], T.FLOAT).set_output(True) for _ in range(2))
    o, lse = graph.sdpa(tq, tk, tv, generate_stats=stats, attn_scale=0.5, use_causal_mask=True, sink_token=ts, score_max=largest,
                        score_sum_exp=total)
    results = [o.set_output(True), largest, total, *([lse.set_output(True)] if stats else ())]
    assert (lse is not None) == stats
    got = run(graph, {tq: q, tk: k, tv: v, ts: sink}, results)
    expected, sums, _ = reference(q, k, v, 0.5, allowed=COLUMN <= ROW, sink=sink)
    wide = np.repeat(k.astype(float), H // G, axis=1)
    scores = np.where(COLUMN <= ROW, 0.5 * q.astype(float) @ wide.transpose(0, 1, 3, 2), -np.inf)
    top = np.maximum(scores.max(-1, keepdims=True), sink)
    for have, want in zip(got, (expected, top, np.exp(scores - top).sum(-1, keepdims=True) + np.exp(sink - top), sums)):
        close(have, want, factor=64, scale=4)


def test_block_mask():
    rows, keys = 130, 260
    q, k, v = draw((1, 2, rows, D), 1), draw((1, 1, keys, D), 2), draw((1, 1, keys, D), 3)
    bits = np.array([[[[0b101], [0b110]], [[0b011], [0b000]]]], np.uint8)
    graph = new_graph()
    tq, tk, tv, tm = (like(graph, array) for array in (q, k, v, bits))
    o, _ = graph.sdpa(tq, tk, tv, is_inference=True, attn_scale=0.5, block_mask=tm)
    got, = run(graph, {tq: q, tk: k, tv: v, tm: bits}, [o.set_output(True)])
    i, j = np.arange(rows)[:, None] // 128, np.arange(keys)[None] // 128
    allowed = (bits[0, :, :, 0][:, i] >> j & 1).astype(bool)
    close(got, reference(q, k, v, 0.5, allowed=allowed)[0], factor=64, scale=2)
    assert not got[0, 1, 128:].any() and got[0, 0, 128:].any()


@pytest.mark.parametrize("by_value", [True, False])
def test_dropout_by_a_mask(by_value):
    q, k, v = operands()
    keep, scale = (np.random.default_rng(4).random((B, H, S, N)) < 0.7).astype(np.float32), np.full((1, 1, 1, 1), 1.5, np.float32)
    do = draw((B, H, S, E), 6)
    _, _, p = reference(q, k, v, 0.5)
    used, wide = 1.5 * keep * p, [np.repeat(t.astype(float), H // G, axis=1) for t in (k, v)]
    expected = used @ wide[1]
    _, lse, _ = reference(q, k, v, 0.5)
    o, stats = expected.astype(np.float32), lse.astype(np.float32)
    graph = new_graph()
    tq, tk, tv, to, tdo, tl, tm = (like(graph, array) for array in (q, k, v, o, do, stats, keep))
    factor = graph.tensor([1, 1, 1, 1], [1, 1, 1, 1], T.FLOAT, is_pass_by_value=by_value)
    made, _ = graph.sdpa(tq, tk, tv, is_inference=True, attn_scale=0.5, dropout=(tm, factor))
    results = graph.sdpa_backward(tq, tk, tv, to, tdo, tl, attn_scale=0.5, dropout=(tm, factor, factor))
    for t in (made, *results):
        t.set_output(True)
    got = run(graph, {tq: q, tk: k, tv: v, to: o, tdo: do, tl: stats, tm: keep, factor: scale}, [made, *results])
    ds = p * (1.5 * keep * (do.astype(float) @ wide[1].transpose(0, 1, 3, 2)) - (do * expected).sum(-1, keepdims=True))
    dk, dv = 0.5 * ds.transpose(0, 1, 3, 2) @ q, used.transpose(0, 1, 3, 2) @ do
    shared = [t.reshape(B, G, H // G, N, -1).sum(2) for t in (dk, dv)]
    for have, want in zip(got, (expected, 0.5 * ds @ wide[0], *shared)):
        close(have, want, factor=64, scale=10)


@pytest.mark.parametrize("partial", [False, True])
def test_rope(partial):
    x = draw((B, H, S, D), 1)
    size = 4 if partial else D
    half = draw((S, 1, 1, size // 2), 2)
    freqs = np.concatenate([half, half], -1)
    graph = new_graph()
    tx, tf = like(graph, x), like(graph, freqs)
    y = graph.rope(tx, tf, rope_dim=size)
    back = graph.rope_backward(y, tf, rope_dim=size).set_output(True)
    y.set_output(True)
    got = run(graph, {tx: x, tf: freqs}, [y, back])
    a, b, rest = x[..., :size // 2].astype(float), x[..., size // 2:size].astype(float), x[..., size:]
    c, s = (f(half[:, 0, 0].astype(float)) for f in (np.cos, np.sin))
    close(got[0], np.concatenate([a * c - b * s, b * c + a * s, rest], -1), factor=16, scale=4)
    close(got[1], x, factor=16, scale=4)


def test_refusals():
    graph = new_graph()
    q = graph.tensor([B, H, S, D], [H * S * D, S * D, D, 1], name="q")
    k = graph.tensor([B, 3, S, D], [3 * S * D, S * D, D, 1], name="k")
    short = graph.tensor([B, H, S, 2], [H * S * 2, S * 2, 2, 1], T.FLOAT)
    words = graph.tensor([1, 1, 1, 1], [1, 1, 1, 1], T.INT64)
    for function in (graph.sdpa, graph.sdpa_backward):
        for dropout in (None, (q, words)):
            with pytest.raises(RuntimeError, match=rf"{function.__name__}.*rng_dump with dropout=.*expected \(probability, seed, offset\)"):
                function(**dict.fromkeys(("q", "k", "v"), q), rng_dump=q, dropout=dropout,
                         **({"is_inference": True} if function == graph.sdpa else dict.fromkeys(("o", "dO", "stats"), q)))
    for both in ({}, {"generate_stats": True, "is_inference": False}):
        with pytest.raises(RuntimeError, match="expected exactly one of them"):
            graph.sdpa(q, q, q, **both)
    with pytest.raises(RuntimeError, match="use_padding_mask without seq_len_q"):
        graph.sdpa(q, q, q, is_inference=True, use_padding_mask=True)
    with pytest.raises(RuntimeError, match=r"dropout=.*expected \(probability, seed, offset\) or \(mask, scale\)"):
        graph.sdpa(q, q, q, is_inference=True, dropout=(0.5, 1, 2))
    for options, message in (({"k": k, "v": k}, "port K.*'k'.*3 heads; expected a divisor of Q's 4"),
                             ({"block_mask": q}, r"port Block_mask.*dims.*; expected \(2, 4, 1, 1\)"),
                             ({"score_max": short}, r"port Max.*dims.*; expected \(2, 4, 9, 1\)"),
                             ({"dropout": (k, q)}, "port Dropout_mask.*some that broadcast to"),
                             ({"dropout": (0.5, words, words), "rng_dump": graph.tensor_like(short)},
                              r"port RNG_DUMP.*dims.*; expected \(2, 4, 9, 9\)")):
        graph.nodes.clear()
        graph.sdpa(**{"q": q, "k": q, "v": q, "is_inference": True, **options})[0].set_output(True)
        with pytest.raises((ValueError, RuntimeError), match=message):
            graph.validate()

"""Attention of graphs where sequences are ragged and where keys lie in pages: values against float64, inference, refusals."""
import numpy as np
import pytest
from graphs import DTYPE, T, array_of, close, execute, like, new_graph
from test_graph_attention import draw, reference

import dnnkern.graph as cudnn
from dnnkern.host.dtypes import numpy_dtype

B, H, G, S, N, D, E = 3, 4, 2, 6, 8, 8, 16
ROWS, KEYS = np.array([4, 6, 1], np.int32), np.array([8, 3, 5], np.int32)
ALLOWED = (np.arange(S)[:, None] < ROWS[:, None, None]) & (np.arange(N) < KEYS[:, None, None])
BELOW = np.arange(N) <= np.arange(S)[:, None] + (KEYS - ROWS)[:, None, None]
MARK = 77.0


class Ragged:
    """An array (rows, heads, elements) with the sequences of `lengths`, gaps between them, and its tensor and offsets."""

    def __init__(self, graph, lengths, most, heads, elements, dtype, gap, seed, kind=np.int64):
        starts = np.concatenate([[0], np.cumsum(lengths + gap)])
        self.lengths, self.starts = lengths, starts
        self.array = draw((starts[-1], heads, elements), seed, dtype)
        self.offsets = (starts * heads * elements).astype(kind).reshape(-1, 1, 1, 1)
        strides, kind = [most * heads * elements, elements, heads * elements, 1], {name: t for t, name in DTYPE.items()}
        self.tensor = graph.tensor([B, heads, most, elements], strides, kind[np.dtype(dtype).name])
        self.at = like(graph, self.offsets)
        self.tensor.set_ragged_offset(self.at)
        self.most = most

    @property
    def pack(self):
        return {self.tensor: self.array, self.at: self.offsets}

    def apart(self):
        """As (B, heads, rows, elements), zero past the lengths."""
        found = np.zeros((B, self.array.shape[1], self.most, self.array.shape[2]))
        for b, (start, n) in enumerate(zip(self.starts, self.lengths)):
            found[b, :, :n] = self.array[start:start + n].transpose(1, 0, 2)
        return found

    def assert_untouched(self):
        """Between and after the sequences."""
        rest = np.ones(len(self.array), bool)
        for start, n in zip(self.starts, self.lengths):
            rest[start:start + n] = False
        assert rest.any() and (self.array[rest] == MARK).all()


def lengths(graph):
    """(tensors of the lengths, what the variant pack has of them)."""
    arrays = ROWS.reshape(B, 1, 1, 1), KEYS.reshape(B, 1, 1, 1)
    tensors = [like(graph, a) for a in arrays]
    return {"use_padding_mask": True, "seq_len_q": tensors[0], "seq_len_kv": tensors[1]}, dict(zip(tensors, arrays))


def result(graph, t, heads, elements, dtype, gap, of=ROWS, most=S, kind=np.int64):
    """A ragged output, full of marks."""
    made = Ragged(graph, of, most, heads, elements, dtype, gap, 0, kind)
    made.array[...] = MARK
    t.set_output(True).set_dim(made.tensor.get_dim()).set_stride(made.tensor.get_stride()).set_ragged_offset(made.at)
    made.tensor = t
    return made


@pytest.mark.parametrize("io, kind", [(T.FLOAT, np.int64), (T.HALF, np.int32), (T.BFLOAT16, np.int64)])
def test_ragged(io, kind):
    graph, dtype = new_graph(io), numpy_dtype(DTYPE[io])
    q, k, v = (Ragged(graph, *sizes, dtype, gap, gap + 5, kind) for gap, sizes in enumerate(
        ((ROWS, S, H, D), (KEYS, N, G, D), (KEYS, N, G, E))))
    options, pack = lengths(graph)
    o, stats = graph.sdpa(q.tensor, k.tensor, v.tensor, generate_stats=True, attn_scale=0.5, use_causal_mask_bottom_right=True, **options)
    o, stats = result(graph, o, H, E, dtype, 2, kind=kind), result(graph, stats, H, 1, np.float32, 1, kind=kind)
    graph.build([cudnn.heur_mode.A])
    execute(graph, {**pack, **q.pack, **k.pack, **v.pack, **o.pack, **stats.pack})
    there = (ALLOWED & BELOW)[:, None]
    expected, lse, _ = reference(q.apart(), k.apart(), v.apart(), 0.5, allowed=there)
    valid = (np.arange(S) < ROWS[:, None])[:, None, :, None]
    close(o.apart(), np.where(valid, expected, 0), DTYPE[io], factor=64 if io is T.FLOAT else 8, scale=2)
    got, lse = stats.apart(), np.where(valid, lse, 0)
    close(np.where(np.isfinite(lse), got, 0), np.where(np.isfinite(lse), lse, 0), "float32", factor=64, scale=4)
    o.assert_untouched(), stats.assert_untouched()


def test_gradients_of_ragged_tensors():
    """do has offsets of its own, dv other ones than v, and k and dk are not ragged."""
    graph, dtype = new_graph(), np.float32
    q, v = Ragged(graph, ROWS, S, H, D, dtype, 1, 5), Ragged(graph, KEYS, N, G, E, dtype, 0, 7)
    o, do, stats = Ragged(graph, ROWS, S, H, E, dtype, 0, 8), Ragged(graph, ROWS, S, H, E, dtype, 3, 9), Ragged(
        graph, ROWS, S, H, 1, dtype, 1, 10)
    k = draw((B, G, N, D), 6)
    tk = like(graph, k)
    options, pack = lengths(graph)
    there = ALLOWED[:, None]
    expected, lse, p = reference(q.apart(), k, v.apart(), 0.5, allowed=there)
    for b in range(B):
        o.array[o.starts[b]:][:ROWS[b]] = expected[b, :, :ROWS[b]].transpose(1, 0, 2)
        stats.array[stats.starts[b]:][:ROWS[b]] = lse[b, :, :ROWS[b]].transpose(1, 0, 2)
    results = graph.sdpa_backward(q.tensor, tk, v.tensor, o.tensor, do.tensor, stats.tensor, attn_scale=0.5, **options)
    dq, dv = result(graph, results[0], H, D, dtype, 2), result(graph, results[2], G, E, dtype, 1, KEYS, N)
    dk = results[1].set_output(True)
    graph.build([cudnn.heur_mode.A])
    got = array_of(dk)
    execute(graph, {**pack, tk: k, dk: got, **{key: a for x in (q, v, o, do, stats, dq, dv) for key, a in x.pack.items()}})
    p = np.where(np.arange(S)[:, None] < ROWS[:, None, None, None], p, 0)
    wide = [np.repeat(t.astype(float), H // G, axis=1) for t in (k, v.apart())]
    dp = do.apart() @ wide[1].transpose(0, 1, 3, 2)
    ds = p * (dp - (do.apart() * np.where(p.any(-1, keepdims=True), expected, 0)).sum(-1, keepdims=True))
    shared = [t.reshape(B, G, H // G, N, -1).sum(2) for t in (0.5 * ds.transpose(0, 1, 3, 2) @ q.apart(),
                                                              p.transpose(0, 1, 3, 2) @ do.apart())]
    for have, want in ((dq.apart(), 0.5 * ds @ wide[0]), (got, shared[0]), (dv.apart(), shared[1])):
        close(have, want, "float32", factor=64, scale=10)
    dq.assert_untouched(), dv.assert_untouched()


def pages(seed, size, heads, elements, dtype):
    """(pages, table of the sequences, the keys of each sequence in their order)."""
    count = -(-N // size)
    held = draw((B * count + 2, heads, size, elements), seed, dtype)
    table = np.random.default_rng(seed).permutation(B * count + 2)[:B * count].reshape(B, 1, count, 1).astype(np.int32)
    whole = held[table[:, 0, :, 0]].transpose(0, 2, 1, 3, 4).reshape(B, heads, count * size, elements)
    return held, table, whole[:, :, :N]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("chunked", [False, True])
def test_pages(size, chunked):
    """With padded queries, and with ragged ones: chunked prefill."""
    graph, dtype = new_graph(T.HALF), np.float16
    (k, of_k, keys), (v, of_v, values) = pages(2, size, G, D, dtype), pages(3, size, G, E, dtype)
    options, pack = lengths(graph)
    if chunked:
        ragged = Ragged(graph, ROWS, S, H, D, dtype, 1, 1)
        q, tq, pack = ragged.apart(), ragged.tensor, {**pack, **ragged.pack}
    else:
        q = draw((B, H, S, D), 1, dtype)
        tq = like(graph, q)
        pack[tq] = q
    tk, tv, table_k, table_v = (like(graph, x) for x in (k, v, of_k, of_v))
    o, _ = graph.sdpa(tq, tk, tv, is_inference=True, attn_scale=0.5, use_causal_mask_bottom_right=True, paged_attention_k_table=table_k,
                      paged_attention_v_table=table_v, paged_attention_max_seq_len_kv=N, **options)
    o.set_output(True)
    graph.build([cudnn.heur_mode.A])
    assert o.get_dim() == [B, H, S, E]
    got = array_of(o)
    execute(graph, {**pack, tk: k, tv: v, table_k: of_k, table_v: of_v, o: got})
    expected, _, _ = reference(q, keys, values, 0.5, allowed=(ALLOWED & BELOW)[:, None])
    valid = (np.arange(S) < ROWS[:, None])[:, None, :, None]
    close(got, np.where(valid, expected, 0), factor=8, scale=2)


def test_refusals():
    graph = new_graph()
    options, _ = lengths(graph)
    q, k, v = (Ragged(graph, *sizes, np.float32, 0, 1) for sizes in ((ROWS, S, H, D), (KEYS, N, G, D), (KEYS, N, G, E)))
    graph.sdpa(q.tensor, k.tensor, v.tensor, is_inference=True)[0].set_output(True)
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="port Q.*a ragged offset without use_padding_mask"):
        graph.validate()
    graph.nodes.clear()
    graph.sdpa(q.tensor, k.tensor, v.tensor, is_inference=True, **options)[0].set_output(True)
    q.tensor.set_ragged_offset(graph.tensor([B, 1, 1, 1], [1, 1, 1, 1], T.INT32))
    with pytest.raises(ValueError, match=r"port Q.*a ragged offset of dims \(3, 1, 1, 1\); expected \(4, 1, 1, 1\)"):
        graph.validate()
    graph = new_graph()
    options, _ = lengths(graph)
    tq = graph.tensor([B, H, S, D], [H * S * D, S * D, D, 1], name="q")
    pages_k, pages_v = (graph.tensor([9, G, 4, n], [G * 4 * n, 4 * n, n, 1]) for n in (D, E))
    table, short = (graph.tensor([B, 1, n, 1], [n, n, 1, 1], T.INT32, name="table") for n in (2, 1))
    for tables, most, given, message in (((table, short), None, options, "port V.*heads and keys as K's"),
                                         ((table, table), 9, options, "port Page_table_K.*2 pages of 4 keys; expected room for.*=9"),
                                         ((table, table), 8, {}, "port Page_table_K.*no seq_len_kv; expected use_padding_mask")):
        graph.nodes.clear()
        graph.sdpa(tq, pages_k, pages_v, is_inference=True, paged_attention_k_table=tables[0], paged_attention_v_table=tables[1],
                   paged_attention_max_seq_len_kv=most, **given)[0].set_output(True)
        with pytest.raises((ValueError, RuntimeError), match=message):
            graph.validate()

"""Operators of PyTorch that call graphs: values and gradients against PyTorch's own in float64, offsets, fake results, refusals."""
import subprocess
import sys

import pytest

from dnnkern.device import HOST_MEMORY

torch = pytest.importorskip("torch")

from dnnkern.graph.experimental.ops import moe_grouped_matmul, scaled_dot_product_attention, sdpa  # noqa: E402

DEVICE = "cpu" if HOST_MEMORY else "cuda"
B, H, G, S, N, D = 2, 4, 2, 5, 7, 8


def draw(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64).to(DEVICE, dtype)


def allowed(rows=None, keys=None, alignment=0, left=-1, right=-1):
    """Where queries attend to keys, (B, 1, S, N)."""
    i, j = torch.arange(S)[:, None], torch.arange(N)
    rows, keys = (torch.full((B,), n) if x is None else x.cpu().flatten() for n, x in ((S, rows), (N, keys)))
    own = i + ((keys - rows)[:, None, None] if alignment else torch.zeros(B, 1, 1, dtype=torch.int64))
    there = (i < rows[:, None, None]) & (j < keys[:, None, None])
    there = there & ((j <= own + right) if right >= 0 else True) & ((j > own - left) if left >= 0 else True)
    return there[:, None].to(DEVICE)


def reference(q, k, v, scale, there):
    """By PyTorch's own operators, in float64; rows that attend to nothing are 0."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = (scale * q @ k.transpose(2, 3)).masked_fill(~there, float("-inf"))
    return torch.softmax(scores, -1).nan_to_num(0.0) @ v


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("how", [{}, {"is_causal": True}, {"right_bound": 1, "left_bound": 3, "diagonal_alignment": 1},
                                 {"seq_len_q": (5, 2), "seq_len_kv": (7, 4), "is_causal": True, "diagonal_alignment": 1}])
def test_values_and_gradients(how, dtype):
    how = {name: torch.tensor(x, dtype=torch.int32, device=DEVICE).view(-1, 1, 1, 1) if isinstance(x, tuple) else x
           for name, x in how.items()}
    given = [draw(B, heads, n, D, dtype=dtype, seed=s).transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
             for s, (heads, n) in enumerate(((H, S), (G, N), (G, N)))]
    o = scaled_dot_product_attention(*given, enable_gqa=True, scale=0.4, **how)
    weights = draw(B, H, S, D, seed=9)
    (o.float() * weights).sum().backward()
    exact = [x.detach().double().requires_grad_() for x in given]
    there = allowed(how.get("seq_len_q"), how.get("seq_len_kv"), how.get("diagonal_alignment", 0), how.get("left_bound", -1),
                    0 if how.get("is_causal") else how.get("right_bound", -1))
    want = reference(*exact, 0.4, there)
    (want * weights.double()).sum().backward()
    bound = 1e-5 if dtype is torch.float32 else 5e-2
    torch.testing.assert_close(o.double(), want, rtol=bound, atol=bound)
    for x, y in zip(given, exact):
        assert x.grad.dtype is dtype and x.grad.shape == x.shape
        torch.testing.assert_close(x.grad.double(), y.grad, rtol=bound, atol=2 * bound)


def test_offsets():
    """Sequences one after the other in the memory of q, and of k and v."""
    rows, keys = torch.tensor((5, 2), dtype=torch.int32), torch.tensor((4, 7), dtype=torch.int32)

    def ragged(heads, n, seed):
        memory = draw(B, n, heads, D, seed=seed)
        return memory.transpose(1, 2).requires_grad_()

    def offsets(lengths, heads):
        ends = torch.cumsum(lengths, 0) * heads * D
        return torch.cat([torch.zeros(1), ends]).to(DEVICE, torch.int32).view(-1, 1, 1, 1)

    def apart(x, lengths, n):
        """(B, heads, n, D) of the packed rows of x, differentiable."""
        packed, found, at = x.transpose(1, 2).reshape(-1, x.shape[1], D), [], 0
        for length in lengths.tolist():
            found.append(torch.nn.functional.pad(packed[at:at + length], (0, 0, 0, 0, 0, n - length)))
            at += length
        return torch.stack(found).transpose(1, 2)
    q, k, v = ragged(H, S, 1), ragged(G, N, 2), ragged(G, N, 3)
    lengths = {"seq_len_q": rows.to(DEVICE).view(-1, 1, 1, 1), "seq_len_kv": keys.to(DEVICE).view(-1, 1, 1, 1)}
    o = scaled_dot_product_attention(q, k, v, enable_gqa=True, scale=0.4, cumulative_seq_len_q=offsets(rows, H),
                                     cumulative_seq_len_kv=offsets(keys, G), **lengths)
    weights = draw(B, H, S, D, seed=9)
    (apart(o, rows, S) * weights).sum().backward()
    exact = [x.detach().double().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in (q, k, v)]
    want = reference(apart(exact[0], rows, S), apart(exact[1], keys, N), apart(exact[2], keys, N), 0.4, allowed(rows, keys))
    (want * weights.double()).sum().backward()
    torch.testing.assert_close(apart(o, rows, S).double(), want, rtol=1e-5, atol=1e-5)
    for x, y in zip((q, k, v), exact):
        torch.testing.assert_close(x.grad.double(), y.grad, rtol=1e-5, atol=2e-5)


def test_the_operators_keep_the_rules_of_pytorch():
    """Schema, fake results, autograd's registration, and tracing with symbolic sizes."""
    q, k, v = (draw(1, 2, n, D, seed=n).requires_grad_() for n in (3, 4, 4))
    torch.library.opcheck(torch.ops.dnnkern_graph.sdpa.default, (q, k, v, 0.5, True), test_utils=("test_schema", "test_faketensor"))
    first = torch.tensor((0, 2), dtype=torch.int32, device=DEVICE).view(2, 1, 1)
    arguments = draw(1, 5, 4), draw(2, 4, 3), first
    torch.library.opcheck(torch.ops.dnnkern_graph.moe_grouped_matmul.default, arguments, test_utils=("test_schema", "test_faketensor"))


def test_graphs_are_kept():
    from importlib import import_module
    module = import_module("dnnkern.graph.experimental.ops.sdpa")
    q = draw(1, 2, 3, D)
    form = (q, q, q, q, q.new_empty((1, 2, 3, 1))), (None,) * 4, 0.5, False, 0, -1, -1
    graph, _ = module._forward(*form)
    assert module._forward(*form)[0] is graph and module._forward(*form[:2], 0.25, *form[3:])[0] is not graph


def test_products_of_experts():
    token, weight = draw(1, 9, 4), draw(3, 4, 6)
    first = torch.tensor((0, 4, 4), dtype=torch.int32, device=DEVICE).view(3, 1, 1)
    y = moe_grouped_matmul(token, weight, first)
    want = torch.cat([token[0, :4].double() @ weight[0].double(), token[0, 4:].double() @ weight[2].double()])
    torch.testing.assert_close(y[0].double(), want, rtol=1e-5, atol=1e-5)


def test_products_of_gathered_and_of_scattered_rows():
    token, weight = draw(1, 4, 4), draw(2, 4, 3)
    first = torch.tensor((0, 3), dtype=torch.int32, device=DEVICE).view(2, 1, 1)
    index = torch.tensor((2, 0, 3, 1, 3, 0), dtype=torch.int32, device=DEVICE).view(1, 6, 1)
    rows = token[0, index.flatten().long()]
    want = torch.cat([rows[:3].double() @ weight[0].double(), rows[3:].double() @ weight[1].double()])
    y = moe_grouped_matmul(token, weight, first, token_index=index, mode="gather")
    torch.testing.assert_close(y[0].double(), want, rtol=1e-5, atol=1e-5)
    pairs = torch.tensor((0, 1), dtype=torch.int32, device=DEVICE), torch.tensor((1, 0), dtype=torch.int32, device=DEVICE)
    token_of, slot = torch.cat([pairs[0], pairs[1], pairs[0]]), torch.tensor((0, 0, 1, 1, 2, 2), dtype=torch.int32, device=DEVICE)
    y = moe_grouped_matmul(rows[None], weight, first, token_of.view(1, 6, 1), slot.view(1, 6, 1), "scatter", 3)
    torch.testing.assert_close(y[0, (token_of * 3 + slot).long()].double(), want, rtol=1e-5, atol=1e-5)


def test_refusals():
    q, k = draw(1, 4, 3, D), draw(1, 2, 3, D)
    with pytest.raises(ValueError, match="query has 4 heads, key has 2; expected the same, or enable_gqa=True"):
        scaled_dot_product_attention(q, k, k)
    for how in ({"attn_mask": q}, {"dropout_p": 0.5}):
        with pytest.raises(NotImplementedError, match="scaled_dot_product_attention: (attn_mask is Tensor|dropout_p=0.5)"):
            scaled_dot_product_attention(q, q, q, **how)
    offsets = torch.zeros(2, 1, 1, 1, dtype=torch.int32, device=DEVICE)
    with pytest.raises(ValueError, match="expected both"):
        scaled_dot_product_attention(q, q, q, cumulative_seq_len_q=offsets)
    with pytest.raises(NotImplementedError, match="heads of 8 and 4 elements"):
        scaled_dot_product_attention(q, q, q[..., :4], cumulative_seq_len_q=offsets, cumulative_seq_len_kv=offsets)
    with pytest.raises(ValueError, match="mode='all'; expected 'none', 'gather', 'scatter'"):
        moe_grouped_matmul(q, k, offsets, mode="all")
    with pytest.raises(ValueError, match="mode='scatter' without token_ks"):
        moe_grouped_matmul(q, k, offsets, mode="scatter", token_index=offsets)
    assert sdpa.scaled_dot_product_attention is scaled_dot_product_attention


def test_graphs_alone_do_not_import_pytorch():
    subprocess.run([sys.executable, "-c", "import sys, dnnkern.graph; sys.exit('torch' in sys.modules)"], check=True)

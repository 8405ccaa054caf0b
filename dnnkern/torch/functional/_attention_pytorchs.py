"""Attention by PyTorch's functions, for what an operator has no rule for: second derivatives, functorch's gradients, other devices."""
import torch

from .._tensors import computed


def _slopes(heads):
    """Of ALiBi."""
    power = 1 << (heads.bit_length() - 1)
    found = [2.0 ** (-8 * (h + 1) / power) for h in range(power)]
    return found + [2.0 ** (-8 * (h + 1) / (2 * power)) for h in range(0, 2 * (heads - power), 2)]


def composition(query, key, value, *, scale=None, causal=False, align="top_left", window=(-1, -1), bias=None, mask=None, alibi=False,
                seq_len_q=None, seq_len_kv=None, cu_seqlens_q=None, cu_seqlens_kv=None, dropout=0.0, seed=None, softcap=0.0, sink=None,
                layout="BHSD", return_lse=False):
    """As `functional.attention`; not with dropout or packed sequences."""
    if dropout or layout == "THD":
        what = "dropout" if dropout else "packed sequences"
        raise NotImplementedError(f"attention: {what} in second derivatives, torch.func or on another device; expected none")
    dtype = computed(query)
    q, k, v = [t.to(dtype) if layout == "BHSD" else t.transpose(1, 2).to(dtype) for t in (query, key, value)]
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    (b, h, s, d), n = q.shape, k.shape[2]
    scores = (q @ k.mT) * (d ** -0.5 if scale is None else scale)
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    scores = scores if bias is None else scores + bias.to(dtype)
    i, j = torch.arange(s, device=q.device)[:, None], torch.arange(n, device=q.device)
    rows = torch.full((b,), s, device=q.device) if seq_len_q is None else seq_len_q.clamp(0, s)
    keys = torch.full((b,), n, device=q.device) if seq_len_kv is None else seq_len_kv.clamp(0, n)
    pos = i + (keys - rows)[:, None, None] if align == "bottom_right" else i.expand(b, s, 1)
    if alibi:
        scores = scores - torch.tensor(_slopes(h), dtype=dtype, device=q.device)[:, None, None] * (j - pos).abs()[:, None]
    allowed = (j < keys[:, None, None]) & (i < rows[:, None, None])
    for holds, condition in ((causal, j <= pos), (window[0] >= 0, j >= pos - window[0]), (window[1] >= 0, j <= pos + window[1])):
        allowed = allowed & condition if holds else allowed
    allowed = allowed[:, None] if mask is None else allowed[:, None] & mask
    scores = scores.masked_fill(~allowed, float("-inf"))
    some = (scores > float("-inf")).any(-1, keepdim=True)
    safe = scores.masked_fill(~some, 0.0)  # whose gradient is no NaN
    with_sink = safe if sink is None else torch.cat([safe, sink.to(dtype)[None, :, None, None].expand(b, h, s, 1)], -1)
    lse = torch.logsumexp(with_sink, -1, keepdim=True)
    o = torch.where(some, torch.exp(safe - lse), 0.0) @ v
    o = (o if layout == "BHSD" else o.transpose(1, 2)).to(query.dtype)
    return (o, torch.where(some, lse, float("-inf")).squeeze(-1)) if return_lse else o


def composition_of_decode(query, key_cache, value_cache, seq_len_kv, *, page_table=None, cu_seqlens_q=None, scale=None, window=(-1, -1),
                          bias=None, softcap=0.0, sink=None, layout="BHSD", return_lse=False):
    """As `functional.attention_decode`; not with packed sequences."""
    def whole(cache):
        if page_table is None:
            return cache
        pages = cache[page_table.long()]  # (B, P, G, n, D), or (B, P, n, G, D)
        return pages.transpose(1, 2).flatten(2, 3) if layout == "BHSD" else pages.flatten(1, 2)
    return composition(query, whole(key_cache), whole(value_cache), scale=scale, causal=True, align="bottom_right", window=window,
                       bias=bias, seq_len_kv=seq_len_kv, softcap=softcap, sink=sink, layout=layout, return_lse=return_lse)

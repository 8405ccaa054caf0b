"""Scaled dot-product attention and its gradients as operators of PyTorch, ``dnnkern_graph::sdpa`` and ``sdpa_bwd``."""
import math
from typing import Optional, Tuple

import torch
from torch import Tensor

from ..._enums import diagonal_alignment as alignment
from ..._wrapper import graph_cache
from ._graphs import MODES, form, like, new_graph, run

OPTIONAL = ("seq_len_q", "seq_len_kv", "cumulative_seq_len_q", "cumulative_seq_len_kv")


def _band(is_causal, diagonal_alignment, left_bound, right_bound):
    """Keywords of the graph's operations."""
    right = 0 if is_causal and right_bound < 0 else right_bound
    return {"diagonal_alignment": alignment.BOTTOM_RIGHT if diagonal_alignment else alignment.TOP_LEFT,
            "diagonal_band_left_bound": left_bound if left_bound >= 0 else None, "diagonal_band_right_bound": right if right >= 0 else None}


def _lengths(graph, tensors, arrays):
    """(keywords of the lengths, {tensor of the graph: name}); the offsets are set on q, k, v and what lies as they do."""
    found = [like(graph, t, name) for name, t in zip(OPTIONAL, tensors)]
    q, kv, of_q, of_kv = found
    for name, t in arrays.items():
        offsets = of_kv if name in ("k", "v", "dk", "dv") else of_q
        if offsets is not None:
            t.set_ragged_offset(offsets)
    return {"use_padding_mask": q is not None or kv is not None, "seq_len_q": q, "seq_len_kv": kv}, found


def _key(tensors, lengths, *options):
    return tuple(map(form, (*tensors, *lengths))), options


@graph_cache(_key)
def _forward(tensors, lengths, scale, *band):
    q, k, v, o, stats = tensors
    graph = new_graph(q.dtype)
    given = [like(graph, t, name) for name, t in zip("qkv", tensors)]
    keywords, found = _lengths(graph, lengths, dict(zip("qkv", given)))
    made, sums = graph.sdpa(*given, generate_stats=True, attn_scale=scale, **keywords, **_band(*band))
    made.set_output(True).set_dim(list(o.shape)).set_stride(list(o.stride()))
    if found[2] is not None:
        made.set_ragged_offset(found[2])
    sums.set_output(True).set_data_type(stats.dtype)
    graph.build(MODES)
    return graph, (*given, made, sums, *found)


@graph_cache(_key)
def _backward(tensors, lengths, scale, *band):
    do, q, k, v, o, stats, *gradients = tensors
    graph = new_graph(q.dtype)
    given = dict(zip(("do", "q", "k", "v", "o", "stats"), (like(graph, t, name) for t, name in zip(
        tensors, ("do", "q", "k", "v", "o", "stats")))))
    ragged = {name: t for name, t in given.items() if name != "stats"}
    keywords, found = _lengths(graph, lengths, ragged)
    order = ("q", "k", "v", "o", "do", "stats")
    results = graph.sdpa_backward(*(given[name] for name in order), attn_scale=scale, **keywords, **_band(*band))
    for t, like_it, offsets in zip(results, gradients, (found[2], found[3], found[3])):
        t.set_output(True).set_dim(list(like_it.shape)).set_stride(list(like_it.stride()))
        if offsets is not None:
            t.set_ragged_offset(offsets)
    graph.build(MODES)
    return graph, (*given.values(), *results, *found)


def _results(q, v, cumulative_seq_len_q):
    """(o, statistics) of a call; o of ragged queries lies as they do, and is zero where nothing is written."""
    shape = (*q.shape[:3], v.shape[3])
    stats = q.new_empty((*q.shape[:3], 1), dtype=torch.float64 if q.dtype is torch.float64 else torch.float32)
    if cumulative_seq_len_q is None:
        return q.new_empty(shape), stats
    return torch.empty_strided(shape, q.stride(), dtype=q.dtype, device=q.device).zero_(), stats


def _check_ragged(q, k, v, cumulative_seq_len_q, cumulative_seq_len_kv):
    """One tensor of offsets is that of q and o, another that of k and v."""
    if (cumulative_seq_len_q is None) != (cumulative_seq_len_kv is None):
        raise ValueError("scaled_dot_product_attention: one of cumulative_seq_len_q and cumulative_seq_len_kv; expected both")
    if cumulative_seq_len_q is not None and q.shape[3] != v.shape[3]:
        raise NotImplementedError(f"scaled_dot_product_attention: offsets with heads of {q.shape[3]} and {v.shape[3]} elements; expected "
                                  "the same, since the offsets are those of keys and values alike")


@torch.library.custom_op("dnnkern_graph::sdpa", mutates_args=())
def sdpa(q: Tensor, k: Tensor, v: Tensor, attn_scale: float, is_causal: bool = False, diagonal_alignment: int = 0, left_bound: int = -1,
         right_bound: int = -1, seq_len_q: Optional[Tensor] = None, seq_len_kv: Optional[Tensor] = None,
         cumulative_seq_len_q: Optional[Tensor] = None, cumulative_seq_len_kv: Optional[Tensor] = None) -> Tuple[Tensor, Tensor]:
    """(o, statistics) of a graph."""
    _check_ragged(q, k, v, cumulative_seq_len_q, cumulative_seq_len_kv)
    o, stats = _results(q, v, cumulative_seq_len_q)
    tensors, lengths = (q, k, v, o, stats), (seq_len_q, seq_len_kv, cumulative_seq_len_q, cumulative_seq_len_kv)
    graph, keys = _forward(tensors, lengths, attn_scale, is_causal, diagonal_alignment, left_bound, right_bound)
    run(graph, dict(zip(keys, (*tensors, *lengths))))
    return o, stats


@sdpa.register_fake
def _(q, k, v, attn_scale, is_causal=False, diagonal_alignment=0, left_bound=-1, right_bound=-1, seq_len_q=None, seq_len_kv=None,
      cumulative_seq_len_q=None, cumulative_seq_len_kv=None):
    return _results(q, v, cumulative_seq_len_q)


def _empty_gradients(q, k, v, is_ragged):
    """dq, dk, dv; of ragged tensors as they lie, zero where nothing is written."""
    if not is_ragged:
        return tuple(map(torch.empty_like, (q, k, v)))
    return tuple(torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device).zero_() for t in (q, k, v))


@torch.library.custom_op("dnnkern_graph::sdpa_bwd", mutates_args=())
def sdpa_bwd(do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, stats: Tensor, attn_scale: float, is_causal: bool = False,
             diagonal_alignment: int = 0, left_bound: int = -1, right_bound: int = -1, seq_len_q: Optional[Tensor] = None,
             seq_len_kv: Optional[Tensor] = None, cumulative_seq_len_q: Optional[Tensor] = None,
             cumulative_seq_len_kv: Optional[Tensor] = None) -> Tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv) of a graph."""
    gradients = _empty_gradients(q, k, v, cumulative_seq_len_q is not None)
    tensors, lengths = (do, q, k, v, o, stats, *gradients), (seq_len_q, seq_len_kv, cumulative_seq_len_q, cumulative_seq_len_kv)
    graph, keys = _backward(tensors, lengths, attn_scale, is_causal, diagonal_alignment, left_bound, right_bound)
    run(graph, dict(zip(keys, (*tensors, *lengths))))
    return gradients


@sdpa_bwd.register_fake
def _(do, q, k, v, o, stats, attn_scale, is_causal=False, diagonal_alignment=0, left_bound=-1, right_bound=-1, seq_len_q=None,
      seq_len_kv=None, cumulative_seq_len_q=None, cumulative_seq_len_kv=None):
    return _empty_gradients(q, k, v, cumulative_seq_len_q is not None)


def _save(ctx, inputs, output):
    q, k, v, *options = inputs
    ctx.save_for_backward(q, k, v, *output, *options[5:])
    ctx.options = options[:5]


def _gradient(ctx, do, _):
    q, k, v, o, stats, *lengths = ctx.saved_tensors
    if lengths[2] is None:
        do = do.contiguous()
    elif do.stride() != o.stride():  # the offsets are those of o
        do = torch.empty_strided(o.shape, o.stride(), dtype=o.dtype, device=o.device).copy_(do)
    return (*sdpa_bwd(do, q, k, v, o, stats, *ctx.options, *lengths), *(None,) * 9)


sdpa.register_autograd(_gradient, setup_context=_save)


def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False, *,
                                 diagonal_alignment=0, left_bound=-1, right_bound=-1, seq_len_q=None, seq_len_kv=None,
                                 cumulative_seq_len_q=None, cumulative_seq_len_kv=None):
    """``torch.nn.functional.scaled_dot_product_attention`` by a graph's `sdpa`, with autograd and for `torch.compile`.

    Parameters
    ----------
    query, key, value : torch.Tensor (B, H, S, D), (B, G, N, D), (B, G, N, E)
        Of one type; arbitrary strides.
    attn_mask, dropout_p
        None and 0.
    is_causal : bool
        Query i attends only to keys up to its own position.
    scale : float, optional
        Default: ``1 / sqrt(D)``.
    enable_gqa : bool
        Whether G may be a divisor of H.
    diagonal_alignment : int
        The position of query i: 0, i; 1, ``i + N - S`` with each sequence's lengths.
    left_bound, right_bound : int
        A query attends to keys less than so many to the left, and at most so many to the right; -1: all.
    seq_len_q, seq_len_kv : torch.Tensor (B, 1, 1, 1), int32, optional
        Lengths of the sequences; rows past them are 0.
    cumulative_seq_len_q, cumulative_seq_len_kv : torch.Tensor (B + 1, 1, 1, 1), int32, optional
        The element of q, and of k and v, at which each sequence begins (`set_ragged_offset`); with the lengths, and D = E.

    Returns
    -------
    torch.Tensor (B, H, S, E)

    Raises
    ------
    NotImplementedError
        A mask or dropout.
    ValueError
        G is not H without `enable_gqa`.
    cudnnGraphNotSupportedError
        Shapes or types that no kernel takes.

    Examples
    --------
    >>> import torch
    >>> q = torch.ones(1, 2, 3, 4, requires_grad=True)
    >>> o = scaled_dot_product_attention(q, q, torch.arange(3.0).expand(1, 2, 4, 3).transpose(2, 3), is_causal=True)
    >>> o[0, 0, :, 0].tolist()
    [0.0, 0.5, 1.0]
    >>> o.sum().backward()
    """
    f = "scaled_dot_product_attention"
    if attn_mask is not None:
        raise NotImplementedError(f"{f}: attn_mask is {type(attn_mask).__name__}; expected None")
    if dropout_p != 0:
        raise NotImplementedError(f"{f}: dropout_p={dropout_p}; expected 0")
    if not enable_gqa and query.shape[1] != key.shape[1]:
        raise ValueError(f"{f}: query has {query.shape[1]} heads, key has {key.shape[1]}; expected the same, or enable_gqa=True")
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    o, _ = sdpa(query, key, value, scale, is_causal, diagonal_alignment, left_bound, right_bound, seq_len_q, seq_len_kv,
                cumulative_seq_len_q, cumulative_seq_len_kv)
    return o

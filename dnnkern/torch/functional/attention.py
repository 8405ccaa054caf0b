"""Attention with every option of this library's, and of the last queries to paged caches."""
import torch

import dnnkern

from .._above import gradients, needs_gradient
from .._operator import operator
from .._rules import LOW, folded, in_dtype
from .._table import Refused
from .._tensors import computed, one_dtype
from ._attention_pytorchs import composition, composition_of_decode
from ._front import public

_NAMES = ("bias", "sink", "mask", "seed", "seq_len_q", "seq_len_kv", "cu_seqlens_q", "cu_seqlens_kv", "scale", "causal", "align", "left",
          "right", "alibi", "dropout", "softcap", "layout")
_SCHEMA = ("Tensor? bias, Tensor? sink, Tensor? mask, Tensor? seed, Tensor? seq_len_q, Tensor? seq_len_kv, Tensor? cu_seqlens_q, "
           "Tensor? cu_seqlens_kv, float? scale, bool causal, str align, int left, int right, bool alibi, float dropout, float softcap, "
           "str layout")
LAYOUTS = "BHSD", "BSHD", "THD"


def _options(values):
    given = dict(zip(_NAMES, values, strict=True))
    given["window"] = given.pop("left"), given.pop("right")
    return {**given, "seed": 0 if given["seed"] is None else given["seed"]}


def _fake(q, k, v, *options):
    shape, layout = (*q.shape[:-1], v.shape[-1]), options[-1]
    o = torch.empty_like(q) if v.shape[-1] == q.shape[-1] else q.new_empty(shape)
    rows = {"BHSD": lambda b, h, s: (b, h, s), "BSHD": lambda b, s, h: (b, h, s), "THD": lambda t, h: (h, t)}[layout](*q.shape[:-1])
    return o, q.new_empty(rows, dtype=computed(q))


def _run(q, k, v, *options):
    return dnnkern.sdpa_fwd(q, k, v, **_options(options), return_lse=True, out=_fake(q, k, v, *options))


def _fake_gradients(dy, q, k, v, o, lse, of_bias, of_sink, bias, sink, *options):
    more = *([torch.empty_like(bias)] if of_bias else []), *([torch.empty_like(sink)] if of_sink else [])
    return [torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), *more]


def _run_gradients(dy, q, k, v, o, lse, of_bias, of_sink, *options):
    out = tuple(_fake_gradients(dy, q, k, v, o, lse, of_bias, of_sink, *options))
    return list(dnnkern.sdpa_bwd(dy, q, k, v, o, lse, **_options(options), bias_gradient=of_bias, sink_gradient=of_sink, out=out))


_gradients = operator("sdpa_gradients(Tensor dy, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, bool of_bias, bool of_sink, "
                      f"{_SCHEMA}) -> Tensor[]", _run_gradients, _fake_gradients, "attention backward")


def _gradient(dy, wanted, q, k, v, bias, sink, mask, seed, seq_len_q, seq_len_kv, cu_seqlens_q, cu_seqlens_kv, scale, causal, align, left,
              right, alibi, dropout, softcap, layout, y0, y1):
    options = (mask, seed, seq_len_q, seq_len_kv, cu_seqlens_q, cu_seqlens_kv, scale, causal, align, left, right, alibi, dropout, softcap,
               layout)
    if torch.is_grad_enabled():
        given = _options((None, None, *options))
        names = "bias", "sink"
        return gradients(lambda q, k, v, *more: composition(q, k, v, **{**given, **dict(zip(names, more))}), (q, k, v, bias, sink), dy)
    found = iter(_gradients(dy, q, k, v, y0, y1, wanted[3], wanted[4], bias, sink, *options))
    return [next(found) for _ in range(3)] + [next(found) if w else None for w in wanted[3:5]]


def _foldable(given, which):
    """Whether samples of several calls may be samples of one: the options are the same for each, and what broadcasts still does."""
    several = [given[n] for n in ("seq_len_q", "seq_len_kv")]
    return given["layout"] != "THD" and not given["dropout"] and all(t is None for t in several) and all(
        given[n] is None or given[n].dim() < 4 for n in ("bias", "mask"))


_attention = operator(f"sdpa(Tensor q, Tensor k, Tensor v, {_SCHEMA}) -> (Tensor, Tensor)", _run, _fake, "attention", _gradient,
                      cast=(LOW, "q", "k", "v"), batch=folded("q", "k", "v", when=_foldable))


def _check(name, q, k, v, layout, dims):
    if layout not in LAYOUTS:
        raise ValueError(f"{name}: layout is {layout!r}; expected one of {', '.join(LAYOUTS)}")
    for word, t, n in zip(("query", "key", "value"), (q, k, v), dims):
        if t.dim() != n:
            raise ValueError(f"{name}: {word} has shape {tuple(t.shape)}; expected {n} dimensions with layout {layout!r}")
    one_dtype(q)
    if 0 in q.shape or 0 in k.shape or 0 in v.shape:
        raise Refused("no elements")


def _seed(name, seed, p, device):
    """A seed on the device; drawn from PyTorch's generator if there is none."""
    if not p:
        return None
    if seed is None:
        return torch.empty((), dtype=torch.int64, device=device).random_()
    if isinstance(seed, torch.Tensor):
        if seed.dtype is not torch.int64 or seed.numel() != 1:
            raise ValueError(f"{name}: seed is {seed.dtype} of shape {tuple(seed.shape)}; expected an int, or one int64")
        return seed
    return torch.full((), seed, dtype=torch.int64, device=device)


@public(composition)
def attention(query, key, value, *, scale=None, causal=False, align="top_left", window=(-1, -1), bias=None, mask=None, alibi=False,
              seq_len_q=None, seq_len_kv=None, cu_seqlens_q=None, cu_seqlens_kv=None, dropout=0.0, seed=None, softcap=0.0, sink=None,
              layout="BHSD", return_lse=False):
    """``softmax(scale * query @ key.T, capped, biased, masked) @ value`` per head, one kernel forward and no scores in memory.

    Parameters
    ----------
    query : Tensor (B, H, S, D); with layout "BSHD" (B, S, H, D), with "THD" (T, H, D)
        float64, float32, float16 or bfloat16; arbitrary strides.
    key, value : Tensor (B, G, N, D), (B, G, N, E)
        In the same layout. G divides H: ``h * G // H`` serves head h of query.
    scale : float, optional
        Default: ``1 / sqrt(D)``.
    causal : bool
        Query i attends to keys up to pos(i).
    align : "top_left" or "bottom_right"
        pos(i): i, or ``i + N - S`` with each sequence's own lengths.
    window : (int, int)
        How many keys to the left and to the right of pos(i) a query attends to; -1: all.
    bias : Tensor, optional
        Added to scores; broadcasts to (B, H, S, N); query's dtype, or float32 with 16-bit ones. It has a gradient. Not with "THD".
    mask : Tensor of bool, optional
        True where a query may attend to a key; as bias.
    alibi : bool
        Subtract ``2 ** (-8 * (h + 1) / H) * |j - pos(i)|``.
    seq_len_q, seq_len_kv : Tensor (B,) of int32, optional
        Valid rows and keys of each sequence. Not with "THD".
    cu_seqlens_q, cu_seqlens_kv : Tensor (B + 1,) of int32
        With "THD": offsets of the sequences, from 0 to the end of the last one.
    dropout : float
        In [0, 1): probabilities are dropped with this probability, the others divided by ``1 - dropout``.
    seed : int or Tensor of one int64, optional
        Of dropout. Default: drawn from PyTorch's generator.
    softcap : float
        Scores become ``softcap * tanh(score / softcap)``; 0: off.
    sink : Tensor (H,), optional
        Logit of each head in the softmax's denominator. It has a gradient.
    layout : "BHSD", "BSHD" or "THD"
    return_lse : bool

    Returns
    -------
    o : Tensor (B, H, S, E), in query's layout
        With query's strides where E is D, otherwise packed. 0 for a query that attends to no key.
    lse : Tensor (B, H, S), with "THD" (H, T), with `return_lse`
        The log-sum-exp of each row, without a gradient; float32 (float64 for float64).

    Raises
    ------
    ValueError, TypeError
        Shapes, layouts, dtypes and options that do not fit, by name.

    Examples
    --------
    >>> import torch
    >>> from dnnkern.torch import functional
    >>> q = k = torch.eye(3).reshape(1, 1, 3, 3)
    >>> v = torch.arange(3.0).reshape(1, 1, 3, 1)
    >>> functional.attention(q, k, v, scale=1.0, causal=True).flatten()
    tensor([0.0000, 0.7311, 1.3642])
    """
    query, key, value = in_dtype((query, key, value))  # not what is added in float32
    _check("attention", query, key, value, layout, [3 if layout == "THD" else 4] * 3)
    if not 0 <= dropout < 1:
        raise ValueError(f"attention: dropout is {dropout}; expected 0 or more and less than 1")
    if key.dtype is not query.dtype or value.dtype is not query.dtype:
        raise TypeError(f"attention: key is {key.dtype}, value {value.dtype}; expected query's, {query.dtype}")
    given = bias, sink, mask, _seed("attention", seed, dropout, query.device), seq_len_q, seq_len_kv, cu_seqlens_q, cu_seqlens_kv
    o, lse = _attention(query, key, value, *given, scale, causal, align, *window, alibi, dropout, softcap, layout)
    return (o, lse) if return_lse else o


# ---- decoding

_DECODE = ("seq_len_kv", "page_table", "cu_seqlens_q", "bias", "sink", "scale", "left", "right", "softcap", "layout")


def _run_decode(q, k, v, *values):
    given = dict(zip(_DECODE, values, strict=True))
    window = given.pop("left"), given.pop("right")
    return dnnkern.sdpa_decode(q, k, v, **given, window=window, return_lse=True, out=_fake(q, k, v, *values))


_decode = operator(
    "sdpa_decode(Tensor q, Tensor k, Tensor v, Tensor seq_len_kv, Tensor? page_table, Tensor? cu_seqlens_q, Tensor? bias, Tensor? sink, "
    "float? scale, int left, int right, float softcap, str layout) -> (Tensor, Tensor)", _run_decode, _fake, "attention_decode",
    cast=(LOW, "q", "k", "v"))


@public(composition_of_decode)
def attention_decode(query, key_cache, value_cache, seq_len_kv, *, page_table=None, cu_seqlens_q=None, scale=None, window=(-1, -1),
                     bias=None, softcap=0.0, sink=None, layout="BHSD", return_lse=False):
    """Attention of the last queries of sequences to a cache of keys and values, which may be in pages. It has no gradient.

    It is `attention` with causal=True and align="bottom_right".

    Parameters
    ----------
    query : Tensor (B, H, S, D); with layout "BSHD" (B, S, H, D), with "THD" (T, H, D)
        The last S queries of each sequence, most often one.
    key_cache, value_cache : Tensor (B, G, N, D), (B, G, N, E)
        In the same layout, "BSHD" beside "THD"; with a page table (pages, G, keys of a page, D). The new keys are among them.
    seq_len_kv : Tensor (B,) of int32
        Keys of each sequence.
    page_table : Tensor (B, P) of int32, optional
        Key j of sequence b is key ``j % keys of a page`` of page ``page_table[b, j // keys of a page]``.
    cu_seqlens_q : Tensor (B + 1,) of int32
        With "THD": offsets of the sequences' queries.
    scale, window, bias, softcap, sink, layout, return_lse
        As in `attention`.

    Returns
    -------
    o[, lse] : Tensor
        As in `attention`.

    Raises
    ------
    ValueError, TypeError
        As `attention`; a query, cache, bias or sink that needs a gradient.

    Examples
    --------
    >>> import torch
    >>> from dnnkern.torch import functional
    >>> k, v = torch.zeros(2, 1, 2, 1), torch.tensor([1.0, 2, 3, 4]).reshape(2, 1, 2, 1)  # two pages of two keys
    >>> length, table = torch.tensor([3], dtype=torch.int32), torch.tensor([[1, 0]], dtype=torch.int32)
    >>> functional.attention_decode(torch.ones(1, 1, 1, 1), k, v, length, page_table=table).flatten()
    tensor([2.6667])
    """
    dims = (3, 4, 4) if layout == "THD" else (4, 4, 4)
    query, key_cache, value_cache = in_dtype((query, key_cache, value_cache))
    _check("attention_decode", query, key_cache, value_cache, layout, dims)
    if needs_gradient(query, key_cache, value_cache, bias, sink):
        raise ValueError("attention_decode: an argument needs a gradient, which decoding has not; expected torch.no_grad(), or attention")
    o, lse = _decode(query, key_cache, value_cache, seq_len_kv, page_table, cu_seqlens_q, bias, sink, scale, *window, softcap, layout)
    return (o, lse) if return_lse else o

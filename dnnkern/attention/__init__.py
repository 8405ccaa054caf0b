"""Attention: scaled dot products, their softmax and what it weighs, and the gradients."""
import functools

from ..engine.dropout_bits import drawn
from ..host import seeds
from ..host.front import Operation, public
from ..host.scalars import flag, ints, number, shares
from ._calls import BACKWARD_MORE, FORWARD_MORE, STATS, longest, make_backward, make_forward
from ._checks import SCALES, check_lengths
from ._problem import OPTIONAL, SdpaGradientProblem, SdpaProblem
from .decode._problem import DecodeProblem, check_cache, make_decode
from .dropout_mask._problem import DropoutMaskProblem, make_dropout_mask
from .rope._problem import RopeProblem, make_rope

__all__ = ["DecodeProblem", "DropoutMaskProblem", "RopeProblem", "SdpaGradientProblem", "SdpaProblem", "rope_bwd", "rope_fwd", "sdpa_bwd",
           "sdpa_decode", "sdpa_dropout_mask", "sdpa_fwd"]


_NONE, _ONE = 0, 1.0  # the longest sequences and dropout_scale where none are given


def _bound(make, *first, **given):
    """A maker of problems with some arguments given, which still says where it is from."""
    return functools.wraps(make)(functools.partial(make, *first, **given))


# The operation with all outputs comes first: it is what `find` takes for problems of either kind.
_FORWARD = {"operands": ("q", "k", "v", *OPTIONAL, *SCALES, *seeds.ARRAYS, *FORWARD_MORE),
            "labels": ("q", "k", "v", *OPTIONAL, *SCALES, "seed", "offset", *FORWARD_MORE),
            "scalars": ("seed", "offset"), "check_values": check_lengths}
_BACKWARD = {**_FORWARD, "operands": ("do", "q", "k", "v", "o", "lse", *OPTIONAL, *seeds.ARRAYS, *BACKWARD_MORE),
             "labels": ("do", "q", "k", "v", "o", "lse", *OPTIONAL, "seed", "offset", *BACKWARD_MORE)}
SDPA_FWD, *_others = (
    Operation("sdpa_fwd", outputs=("o", *("lse",) * lse, *STATS * stats), problem=_bound(make_forward, with_lse=lse, with_stats=stats),
              **_FORWARD) for lse, stats in ((True, True), (True, False), (False, True), (False, False)))
_with_all, _with_lse, _with_stats, _alone = (operation.call for operation in (SDPA_FWD, *_others))
SDPA_BWD, *_others = (
    Operation("sdpa_bwd", outputs=("dq", "dk", "dv", *("dbias",) * of_bias, *("dsink",) * of_sink),
              problem=_bound(make_backward, with_dbias=of_bias, with_dsink=of_sink), **_BACKWARD)
    for of_bias, of_sink in ((True, True), (True, False), (False, True), (False, False)))
_with_both, _with_dbias, _with_dsink, _with_neither = (operation.call for operation in (SDPA_BWD, *_others))
_DECODE = {"operands": ("q", "k_cache", "v_cache", "seq_len_kv", "page_table", "sink", "bias", "cu_seqlens_q", "scale_k", "scale_v"),
           "check_values": check_cache}
SDPA_DECODE = Operation("sdpa_decode", outputs=("o", "lse"), problem=_bound(make_decode, with_lse=True), **_DECODE)
_decode_with_lse = SDPA_DECODE.call
_decode = Operation("sdpa_decode", outputs=("o",), problem=_bound(make_decode, with_lse=False), **_DECODE).call
_dropout_mask = Operation("sdpa_dropout_mask", operands=("x", *seeds.ARRAYS), outputs=("y",), labels=("x", "seed", "offset"),
                          scalars=("seed", "offset", "threshold"), problem=make_dropout_mask, in_place=frozenset({"x"})).call
ROPE_FWD = Operation("rope_fwd", operands=("x", "cos", "sin"), outputs=("y",), problem=_bound(make_rope, "rope_fwd"),
                     in_place=frozenset({"x"}))
_rope = ROPE_FWD.call
ROPE_BWD = Operation("rope_bwd", operands=("dy", "cos", "sin"), outputs=("dx",), problem=_bound(make_rope, "rope_bwd"),
                     in_place=frozenset({"dy"}))
_rope_bwd = ROPE_BWD.call


@public
def sdpa_fwd(q, k, v, *, scale=None, causal=False, align="top_left", window=(-1, -1), bias=None, alibi=False, seq_len_q=None,
             seq_len_kv=None, cu_seqlens_q=None, cu_seqlens_kv=None, dropout=0.0, seed=0, softcap=0.0, sink=None, mask=None,
             layout="BHSD", return_lse=False, out_dtype=None, scale_q=None, scale_k=None, scale_v=None, offset=0, ragged_q=None,
             ragged_k=None, ragged_v=None, ragged_o=None, ragged_lse=None, page_table_k=None, page_table_v=None, max_seq_len_q=_NONE,
             max_seq_len_kv=_NONE, block_mask=None, dropout_mask=None, dropout_scale=_ONE, return_stats=False, out=None, workspace=None,
             stream=None, **choice):
    """Scaled dot-product attention: ``o = softmax(scale * q @ k.T, capped, biased, masked) @ v`` per head; scores stay on chip.

    Parameters
    ----------
    q : array (B, H, S, D)
        Queries, with layout "BSHD" (B, S, H, D), with "THD" (T, H, D): sequences concatenated. float64, float32, float16,
        bfloat16, float8_e4m3fn or float8_e5m2; arbitrary strides.
    k, v : array (B, G, N, D), (B, G, N, E)
        Keys and values of q's dtype, in the same layout. G divides H: heads ``h * G // H`` of k and v serve head h of q. E may differ
        from D.
    scale : float, optional
        Softmax scale; default ``1 / sqrt(D)``.
    causal : bool
        Query i attends only to keys j <= pos(i).
    align : "top_left" or "bottom_right"
        pos(i), the key position of query i: i, or ``i + N - S`` with each sequence's own lengths.
    window : (int, int)
        How many keys to the left and right of pos(i) a query attends to; -1: all.
    bias : array, optional
        Added to scores: two to four dimensions that broadcast to (B, H, S, N); q's dtype, or float32 with 16-bit ones; float32,
        bfloat16 or float16 beside 8-bit ones. Not with "THD".
    alibi : bool
        Subtract ``m * |j - pos(i)|`` from scores, with ``m = 2 ** (-8 * (h + 1) / H)`` for head h. If H is not a power of two: the slopes
        of the next lower power, then every other slope of twice as many.
    seq_len_q, seq_len_kv : int32 array (B,), optional
        Valid rows and keys of each sequence; the others are padding. Not with "THD".
    cu_seqlens_q, cu_seqlens_kv : int32 array (B + 1,)
        With "THD": offsets of the sequences, beginning with 0, and the end of the last one.
    dropout : float
        In [0, 1): probabilities are dropped with this probability, rounded to a multiple of 2**-16 below 1; the others are divided by
        1 - dropout.
    seed, offset : int, or int64 array of one element
        64 bits, for dropout. An array is on q's device and read by the kernel: a replayed CUDA graph uses a new mask once it has changed.
        The mask is a function of seed, offset and the indices of sequence, head, row and key: for independent masks use different
        offsets.
    softcap : float
        Scores become ``softcap * tanh(score / softcap)``, before the bias; 0: off.
    sink : array (H,), optional
        Per-head attention-sink logit, added to the softmax's denominator; dtypes as for a bias.
    mask : bool array, optional
        True where a query may attend to a key; causal, window and lengths must allow it too. Two to four dimensions that broadcast to
        (B, H, S, N). Not with "THD".
    layout : "BHSD", "BSHD" or "THD"
    return_lse : bool
        Also return the log-sum-exp, for `sdpa_bwd`.
    out_dtype : dtype
        Default: q's. For 8-bit operands bfloat16 (the default), float16, float32, float8_e4m3fn or float8_e5m2; the last two saturate.
    scale_q, scale_k, scale_v : float32 array of one element, optional
        Positive scales of 8-bit operands: the result is the attention of ``scale_q * q``, ``scale_k * k`` and ``scale_v * v``. None: 1.
    ragged_q, ragged_k, ragged_v, ragged_o, ragged_lse : int32 or int64 array (B + 1,), optional
        With "THD", instead of `cu_seqlens_q` and `cu_seqlens_kv`: the element of an array at which each sequence begins, multiples of its
        stride of rows. The lengths are `seq_len_q` and `seq_len_kv`, sequences may be in any order and have gaps between them. An array
        without offsets has the shape that "BSHD" gives it; lse without them (B, H, S). What is past a length is not written.
    page_table_k, page_table_v : int32 array (B, P), optional
        k, v have pages: key j of sequence b is key ``j % n`` of page ``page_table_k[b, j // n]``, with n keys of a page and `seq_len_kv`
        keys of a sequence. k is then (pages, G, n, D), with "BSHD" and "THD" (pages, n, G, D).
    max_seq_len_q, max_seq_len_kv : int
        S and N with ragged arrays and with pages: bounds of the lengths. 0: as many rows as the arrays have room for.
    block_mask : uint8 array (B, H, ceil(S / 128), ceil(N / 1024)), optional
        A bit for each block of 128 queries and 128 keys, lowest first: 1 where its queries may attend to its keys. Not with packed
        sequences.
    dropout_mask : array, optional
        Instead of `dropout`: probabilities are multiplied by it and by `dropout_scale`. Shapes and dtypes as of a bias.
    dropout_scale : float
    return_stats : bool
        Also return the largest score of each row, the sink among them, and the sum of exponentials relative to it; `ragged_lse` is theirs,
        too.
    out : array, or with `return_lse` or `return_stats` a tuple (o[, lse][, score_max, score_sum_exp])
        Output, written and returned; arbitrary strides. Overlap with an operand is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    o : array (B, H, S, E), in q's layout, of q's framework, and of its dtype or `out_dtype`
    lse : array (B, H, S), with "THD" (H, T), with `return_lse`
        float32 (float64 for float64), in every layout; includes the sink.
    score_max, score_sum_exp : arrays as lse, with `return_stats`
        lse is ``score_max + log(score_sum_exp)``; -inf and 0 of a row that attends to no key.

    Raises
    ------
    ValueError
        Shapes that do not match, head counts that do not divide, an invalid probability or window, an unknown alignment or layout, an
        `out` that overlaps an operand; with ``DNNKERN_CHECK=values`` a length or offset past its tensor.
    TypeError
        Unsupported dtypes, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Scores are scaled, capped, biased and masked in this order, in float32 (float64 for float64). A query that attends to no key, or
    whose scores are all -inf (in float32 also: all below -6.9e8, but by `naive`), has result 0 and lse -inf, even with a sink; so has a
    row that belongs to no sequence. Lengths past a tensor are clamped: nothing outside the arrays is read. Deterministic.
    Mirrors cuDNN's SDPA and
    ``torch.nn.functional.scaled_dot_product_attention``. With 8-bit floats an algorithm on tensor cores (``Note.TENSOR_CORE``) may round
    probabilities to e4m3, whose smallest is 2**-16 of the largest, and add up to 128 products at once with 13 bits.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> q = k = np.eye(3, dtype=np.float32).reshape(1, 1, 3, 3)
    >>> v = np.arange(3, dtype=np.float32).reshape(1, 1, 3, 1)
    >>> dnnkern.sdpa_fwd(q, k, v, scale=1.0).round(3).ravel()
    array([0.636, 1.   , 1.364], dtype=float32)
    >>> o, lse = dnnkern.sdpa_fwd(q, k, v, scale=1.0, causal=True, return_lse=True)
    >>> print(o.round(3).ravel(), lse.round(3).ravel())
    [0.    0.731 1.364] [1.    1.313 1.551]
    """
    operands = q, k, v, bias, seq_len_q, seq_len_kv, cu_seqlens_q, cu_seqlens_kv, sink
    arrays, words = seeds.split("sdpa_fwd", seed, offset, stream=True)
    with_lse, with_stats = flag("sdpa_fwd", "return_lse", return_lse), flag("sdpa_fwd", "return_stats", return_stats)
    if not (ragged_q is ragged_k is ragged_v is ragged_o is ragged_lse is page_table_k is page_table_v is block_mask is dropout_mask
            is None):
        of_stats = (ragged_lse if with_stats else None,) * 2
        more = (ragged_q, ragged_k, ragged_v, ragged_o, ragged_lse if with_lse or not with_stats else None, page_table_k, page_table_v,
                block_mask, dropout_mask, *of_stats)
        operands += mask, scale_q, scale_k, scale_v, *(arrays or (None, None)), *more
    elif arrays or scale_q is not None or scale_k is not None or scale_v is not None:
        operands += mask, scale_q, scale_k, scale_v, *arrays
    elif mask is not None:
        operands += mask,
    parameters = out_dtype, *_score_parameters("sdpa_fwd", scale, causal, align, window, alibi, dropout, softcap), layout
    if not (max_seq_len_q is max_seq_len_kv is _NONE and dropout_mask is None and dropout_scale is _ONE):
        parameters += *longest("sdpa_fwd", max_seq_len_q, max_seq_len_kv), number("sdpa_fwd", "dropout_scale", dropout_scale)
    call = (_alone, _with_stats, _with_lse, _with_all)[2 * with_lse + with_stats]
    return call(operands, out, parameters, words, workspace, stream, choice)


@public
def sdpa_bwd(do, q, k, v, o, lse, *, scale=None, causal=False, align="top_left", window=(-1, -1), bias=None, bias_gradient=True,
             alibi=False, seq_len_q=None, seq_len_kv=None, cu_seqlens_q=None, cu_seqlens_kv=None, dropout=0.0, seed=0, softcap=0.0,
             sink=None, sink_gradient=False, mask=None, layout="BHSD", offset=0, ragged_q=None, ragged_k=None, ragged_v=None,
             ragged_o=None, ragged_lse=None, max_seq_len_q=_NONE, max_seq_len_kv=_NONE, dropout_mask=None, dropout_scale=_ONE, out=None,
             workspace=None, stream=None, **choice):
    """The gradients of `sdpa_fwd` with respect to q, k, v, the bias and the sink.

    Parameters
    ----------
    do : array of o's shape and dtype
        Gradient of o.
    q, k, v
        As passed to `sdpa_fwd`, like scale, causal, align, window, bias, alibi, the lengths or offsets, dropout, its mask, seed, softcap,
        sink, mask, layout and offset. A seed or offset in memory must still hold the value that forward read. Gradients begin where their
        arrays do: ``ragged_o`` is do's too, ``ragged_q`` dq's.
    o, lse : array
        As returned by `sdpa_fwd`.
    bias_gradient : bool
        Whether to compute the bias's gradient.
    sink_gradient : bool
        Whether to compute the sink's gradient.
    out : tuple (dq, dk, dv[, dbias][, dsink])
        Output, written and returned; arbitrary strides. Overlap with an operand is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    dq, dk, dv : arrays of the shapes and dtype of q, k, v
        Computed in float32 (float64 for float64) and rounded once, from the given o: see Notes. For grouped heads, summed over the group.
    dbias : array of the bias's shape and dtype
        Summed over the dimensions in which the bias broadcasts.
    dsink : array (H,) of the sink's dtype
        ``-sum(exp(sink - lse) * sum(do * o))`` over all rows of a head.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `sdpa_fwd`.

    Notes
    -----
    Deterministic, in memory proportional to the rows. The dropout mask is regenerated from the seed. Queries that attend to no key have
    gradient 0, and so have keys that no query attends to.

    The derivative of the softmax is ``ds = p * (dp - delta)``, where ``delta = sum(do * o)`` of a row uses the rounded o. Let u be
    half the distance from 1 to the dtype's next number (2**-8 for bfloat16, 2**-11 for float16), delta is off by at most
    ``e = u * sum(abs(do * o))``, dq by ``scale * e * (p @ abs(k))`` and dk by ``scale * (p * e).T @ abs(q)``. That is large
    compared with the gradients where scores saturate, since dp and delta cancel there. PyTorch's flash attention has the same error,
    its "math" algorithm, which keeps all probabilities, a smaller one. With tensor cores p and ds are also rounded to the dtype before
    they are multiplied.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> q = k = np.eye(2, dtype=np.float32).reshape(1, 1, 2, 2)
    >>> v = np.arange(2, dtype=np.float32).reshape(1, 1, 2, 1)
    >>> o, lse = dnnkern.sdpa_fwd(q, k, v, scale=1.0, return_lse=True)
    >>> dq, dk, dv = dnnkern.sdpa_bwd(np.ones_like(o), q, k, v, o, lse, scale=1.0)
    >>> print(dq.round(3).ravel(), dv.round(3).ravel())
    [-0.197  0.197 -0.197  0.197] [1. 1.]
    """
    operands = do, q, k, v, o, lse, bias, seq_len_q, seq_len_kv, cu_seqlens_q, cu_seqlens_kv, sink
    arrays, words = seeds.split("sdpa_bwd", seed, offset, stream=True)
    if not (ragged_q is ragged_k is ragged_v is ragged_o is ragged_lse is dropout_mask is None):
        more = ragged_q, ragged_k, ragged_v, ragged_o, ragged_lse, ragged_o, ragged_q, ragged_k, ragged_v, dropout_mask
        operands += mask, *(arrays or (None, None)), *more
    elif arrays or mask is not None:
        operands += mask, *arrays
    parameters = *_score_parameters("sdpa_bwd", scale, causal, align, window, alibi, dropout, softcap), layout
    if not (max_seq_len_q is max_seq_len_kv is _NONE and dropout_mask is None and dropout_scale is _ONE):
        parameters += *longest("sdpa_bwd", max_seq_len_q, max_seq_len_kv), number("sdpa_bwd", "dropout_scale", dropout_scale)
    with_dbias = flag("sdpa_bwd", "bias_gradient", bias_gradient) and bias is not None
    with_dsink = flag("sdpa_bwd", "sink_gradient", sink_gradient)
    call = (_with_neither, _with_dsink, _with_dbias, _with_both)[2 * with_dbias + with_dsink]
    return call(operands, out, parameters, words, workspace, stream, choice)


def _score_parameters(f, scale, causal, align, window, alibi, dropout, softcap):
    """The options that modify scores, as parameters of a call."""
    if scale is not None:
        scale = number(f, "scale", scale)
    return (scale, flag(f, "causal", causal), align, ints(f, "window", window), flag(f, "alibi", alibi), number(f, "dropout", dropout),
            number(f, "softcap", softcap))


@public
def sdpa_decode(q, k_cache, v_cache, seq_len_kv, *, page_table=None, cu_seqlens_q=None, scale=None, window=(-1, -1), bias=None,
                softcap=0.0, sink=None, layout="BHSD", return_lse=False, scale_k=None, scale_v=None, out=None,
                workspace=None, stream=None, **choice):
    """Attention of the last rows of sequences to a key-value cache: `sdpa_fwd` with causal=True and align="bottom_right".

    Parameters
    ----------
    q : array (B, H, S, D)
        The last S queries of each sequence, most often one; with layout "BSHD" (B, S, H, D), with "THD" (T, H, D), those of all sequences
        concatenated, any number of each. float64, float32, float16 or bfloat16; arbitrary strides.
    k_cache, v_cache : array (B, G, N, D), (B, G, N, E)
        Of q's dtype, or float8_e4m3fn or float8_e5m2, in the same layout, "BSHD" beside "THD", the new keys and values among them. G
        divides H. With a page table, (pages, G, keys of a page, D).
    seq_len_kv : int32 array (B,)
        Number of keys of each sequence.
    page_table : int32 array (B, P), optional
        Key j of sequence b is key ``j % keys of a page`` of page ``page_table[b, j // keys of a page]``.
    cu_seqlens_q : int32 array (B + 1,)
        With "THD": offsets of the sequences' queries, beginning with 0, and the end of the last one.
    scale : float, optional
        Softmax scale; default ``1 / sqrt(D)``.
    bias : array, optional
        Added to scores: two to four dimensions that broadcast to (B, H, S, N), N being the keys that the cache has room for; q's dtype,
        or float32 with 16-bit ones. Not with "THD".
    window : (int, int)
        How many keys before its own position a query attends to; -1: all. It attends to none after it, whatever the second number is.
    softcap, sink
        As in `sdpa_fwd`.
    layout : "BHSD", "BSHD" or "THD"
    scale_k, scale_v : float32 array of one element, optional
        Positive scales of 8-bit caches: the result is attention to ``scale_k * k_cache`` and ``scale_v * v_cache``. None: 1.
    return_lse : bool
        Also return the log-sum-exp, with which results for parts of the keys can be merged.
    out : array, or with `return_lse` a tuple (o, lse)
        Output, written and returned; arbitrary strides. Overlap with an operand is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    o : array (B, H, S, E), in q's layout, of q's dtype and framework
        Computed in float32 (float64 for float64) and rounded once. A row that attends to no key is 0.
    lse : array (B, H, S), with "THD" (H, T), with `return_lse`
        float32 (float64 for float64); includes the sink. -inf for a row that attends to no key.

    Raises
    ------
    ValueError
        Shapes that do not match, head counts that do not divide, an invalid window, an unknown layout, an `out` that overlaps an operand;
        with ``DNNKERN_CHECK=values`` a length past the cache, or a used page index out of range.
    TypeError
        Unsupported dtypes, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic. Lengths past the cache are clamped, and so are offsets and page indices: nothing outside the arrays is read. A packed
    row that belongs to no sequence is 0.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> k = np.zeros((2, 1, 2, 1), np.float32)                            # two pages of two keys
    >>> v = np.array([1, 2, 3, 4], np.float32).reshape(2, 1, 2, 1)
    >>> length, table = np.array([3], np.int32), np.array([[1, 0]], np.int32)
    >>> dnnkern.sdpa_decode(np.ones((1, 1, 1, 1), np.float32), k, v, length, page_table=table).round(3).ravel()
    array([2.667], dtype=float32)
    """
    operands = q, k_cache, v_cache, seq_len_kv, page_table, sink
    if bias is not None or cu_seqlens_q is not None or scale_k is not None or scale_v is not None:
        operands += bias, cu_seqlens_q, scale_k, scale_v
    f = "sdpa_decode"
    scale = None if scale is None else number(f, "scale", scale)
    parameters = scale, ints(f, "window", window), number(f, "softcap", softcap), layout
    call = _decode_with_lse if flag(f, "return_lse", return_lse) else _decode
    return call(operands, out, parameters, (), workspace, stream, choice)


@public
def sdpa_dropout_mask(x, p, seed, *, offset=0, out=None, workspace=None, stream=None, **choice):
    """Fill an array with the dropout mask of `sdpa_fwd` and `sdpa_bwd`, in place: 1 where a probability is kept, else 0.

    Parameters
    ----------
    x : array (B, H, S, N)
        Sequences, heads of q, queries and keys; float64, float32, float16 or bfloat16; arbitrary strides but 0. Of packed or ragged
        sequences S and N are at least the longest one's.
    p : float
        As passed to `sdpa_fwd` as dropout.
    seed, offset : int, or int64 array of one element
        As in `sdpa_fwd`.
    out : array
        Written and returned instead of x, with its shape and dtype; arbitrary strides. May be exactly x; other overlap is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    x : array
        The same object, or `out`.

    Raises
    ------
    ValueError
        An array of other than four dimensions, a probability outside [0, 1), a seed or an offset of more than 64 bits, an `out` of another
        shape or that partly overlaps x.
    TypeError
        Unsupported dtypes, a seed or offset that is neither an integer nor an int64 array, objects that are not device arrays, an immutable
        array.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic. An element is a function of seed, offset and its indices alone, also where a query does not attend to the key. Mirrors
    the `rng_dump` of cuDNN's attention.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> rows = np.zeros((1, 1, 2, 1), np.float32)
    >>> v = np.eye(4, dtype=np.float32).reshape(1, 1, 4, 4)
    >>> o = dnnkern.sdpa_fwd(rows, np.zeros((1, 1, 4, 1), np.float32), v, dropout=0.5, seed=7)      # all probabilities are 1 / 4
    >>> mask = dnnkern.sdpa_dropout_mask(np.empty((1, 1, 2, 4), np.float32), 0.5, seed=7)
    >>> bool((o == mask / 4 / (1 - 0.5)).all())
    True
    """
    threshold, _ = drawn(*shares("sdpa_dropout_mask", p=p))
    arrays, words = seeds.split("sdpa_dropout_mask", seed, offset, stream=True)
    return _dropout_mask((x, *arrays), out, (), (*words, threshold), workspace, stream, choice)


@public
def rope_fwd(x, cos, sin, *, interleaved=False, out=None, workspace=None, stream=None, **choice):
    """Rotary embedding: rotates pairs of elements of each row, ``(a, b) -> (a * cos - b * sin, b * cos + a * sin)``.

    Parameters
    ----------
    x : array (..., D)
        float64, float32, float16 or bfloat16; up to eight dimensions, arbitrary strides.
    cos, sin : array (..., R / 2)
        Cosines and sines of the angles; they broadcast to x's leading dimensions. x's dtype, or float32 with 16-bit ones. For queries (B,
        H, S, D) the angles of positions are (S, R / 2), for (B, S, H, D) they are (S, 1, R / 2). The first R elements of a row are rotated,
        the others copied.
    interleaved : bool
        Pairs are elements 2 k and 2 k + 1, instead of k and ``k + R / 2``.
    out : array of x's shape and dtype
        Output, written and returned; arbitrary strides. May be exactly x.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    y : array of x's shape, dtype and framework
        Computed in float32 (float64 for float64) and rounded once.

    Raises
    ------
    ValueError
        Angles of a shape that does not broadcast, or for more elements than a row has, an `out` of another shape or that overlaps an
        operand.
    TypeError
        Unsupported dtypes, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic. RoFormer (Su et al., 2021).

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x = np.array([[1, 2, 3, 4, 5]], np.float32)
    >>> quarter = np.array([0, 0], np.float32), np.array([1, 1], np.float32)
    >>> dnnkern.rope_fwd(x, *quarter)
    array([[-3., -4.,  1.,  2.,  5.]], dtype=float32)
    >>> dnnkern.rope_fwd(x, *quarter, interleaved=True)
    array([[-2.,  1., -4.,  3.,  5.]], dtype=float32)
    """
    return _rope((x, cos, sin), out, (flag("rope_fwd", "interleaved", interleaved),), (), workspace, stream, choice)


@public
def rope_bwd(dy, cos, sin, *, interleaved=False, out=None, workspace=None, stream=None, **choice):
    """The gradient of `rope_fwd`, the inverse rotation: ``(a, b) -> (a * cos + b * sin, b * cos - a * sin)``.

    Parameters
    ----------
    dy : array (..., D)
        Gradient of the result; dtypes and strides as in `rope_fwd` x.
    cos, sin, interleaved
        As passed to `rope_fwd`.
    out : array of dy's shape and dtype
        Output, written and returned; arbitrary strides. May be exactly dy.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    dx : array of dy's shape, dtype and framework

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `rope_fwd`.

    Notes
    -----
    Deterministic.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> dnnkern.rope_bwd(np.array([[-3, -4, 1, 2, 5]], np.float32), np.zeros(2, np.float32), np.ones(2, np.float32))
    array([[1., 2., 3., 4., 5.]], dtype=float32)
    """
    return _rope_bwd((dy, cos, sin), out, (flag("rope_bwd", "interleaved", interleaved),), (), workspace, stream, choice)

"""Problems of attention and of its gradient from calls of the public functions."""
import math
import operator

from ..host import seeds
from ..host.choices import dtype_of, one_of
from ..host.dtypes import compute_dtype
from ..host.products import FLOATS, FP8, default_output
from ..host.scalars import integer
from ..host.tensor import Tensor
from ._checks import SCALES, check_number, present
from ._layout import LAYOUTS, PAGES, RAGGED, RAGGED_GRADIENTS, RAGGED_STATS, sizes_of
from ._problem import ALIGNMENTS, OPTIONAL, SdpaGradientProblem, SdpaProblem

FORWARD_MORE = (*RAGGED, *PAGES, "block_mask", "dropout_mask", *RAGGED_STATS)
BACKWARD_MORE = (*RAGGED, *RAGGED_GRADIENTS, "dropout_mask")
"""Operands that come last in a call, of those that few calls have."""
STATS = ("score_max", "score_sum_exp")


def normal_window(op, window, causal):
    """(left, right) with the bound that causal is."""
    if not isinstance(causal, bool):
        raise TypeError(f"{op}: causal={causal!r}; expected True or False")
    try:
        left, right = (operator.index(w) for w in window)
    except (TypeError, ValueError):
        raise TypeError(f"{op}: window={window!r}; expected a pair of integers, -1 for no bound") from None
    if min(left, right) < -1:
        raise ValueError(f"{op}: window={window!r}; expected -1 for no bound, or how many keys")
    return left, 0 if causal else right


def longest(op, rows, keys):
    """The longest sequences of rows and of keys, as integers."""
    return integer(op, "max_seq_len_q", rows), integer(op, "max_seq_len_kv", keys)


def normal_options(op, q, k, more, scale, causal, align, window, alibi, dropout, softcap, layout, max_seq_len_q=0, max_seq_len_kv=0,
                   dropout_scale=1.0):
    """The options of a call as the fields of a problem; `more` are the operands by name that say how arrays lie."""
    one_of(op, "layout", layout, LAYOUTS)
    one_of(op, "align", align, ALIGNMENTS)
    ragged = any(more.get(name) is not None for name in RAGGED)
    for name, t in (("q", q), ("k", k)):
        its = "BSHD" if ragged and more.get(f"ragged_{name}") is None else layout
        if t.ndim != len(its):
            raise ValueError(f"{op}: {name} has shape {t.shape}; expected {len(its)} dimensions, {its}")
    left, right = normal_window(op, window, causal)
    matters = left >= 0 or right >= 0 or alibi is True
    given = {"scale": scale, "dropout": dropout, "softcap": softcap, "dropout_scale": dropout_scale}
    for name, value in given.items():
        if value is not None or name != "scale":
            check_number(op, name, value)
    return {"scale": float(scale) if scale is not None else 1 / math.sqrt(max(q.shape[-1], 1)), "left": left, "right": right,
            "align": align if matters else "top_left", "alibi": alibi, "dropout": float(dropout),
            "softcap": float(softcap), "layout": layout, "max_seq_len_q": max_seq_len_q, "max_seq_len_kv": max_seq_len_kv,
            "dropout_scale": float(dropout_scale)}


def result_shapes(q, v, layout, seq_len_q, more, most):
    """Shapes of o, and of lse and of each of `STATS`, of a forward call that is given none; `most` are the queries of the longest ragged
    sequence."""
    ragged = [more.get(f"ragged_{name}") is not None for name in ("q", "o", "lse", *STATS)]
    if layout != "THD" or not any(more.get(name) is not None for name in RAGGED):
        batch, heads, rows, _ = sizes_of(q.shape, layout)
        return (*q.shape[:-1], *v.shape[-1:]), ((heads, rows) if layout == "THD" else (batch, heads, rows),) * 3
    batch, heads, rows, _ = sizes_of(q.shape, "THD" if ragged[0] else "BSHD")
    if ragged[0]:
        batch, all_rows, rows = seq_len_q.shape[0] if seq_len_q is not None and seq_len_q.ndim else 0, rows, most or rows
    else:
        all_rows = batch * rows
    return ((all_rows, heads, v.shape[-1]) if ragged[1] else (batch, rows, heads, v.shape[-1]),
            [(heads, all_rows) if there else (batch, heads, rows) for there in ragged[2:]])


def make_forward(tensors, out, out_dtype, *options, with_lse, with_stats=False, aliases):
    """The problem of a forward call, of `tensors` q, k, v, those of `OPTIONAL`, of `SCALES`, of `seeds.ARRAYS` and of `FORWARD_MORE`, the
    last of which may be left out; `out` is o, or (o[, lse][, score_max, score_sum_exp])."""
    op, count = "sdpa_fwd", 3 + len(OPTIONAL)
    q, k, v = tensors[:3]
    present(op, ("q", "k", "v"), (q, k, v))
    more = dict(zip((*SCALES, *seeds.ARRAYS, *FORWARD_MORE), tensors[count:]))
    fields = {**normal_options(op, q, k, more, *options), **more}
    wanted = None if out_dtype is None else dtype_of(op, "out_dtype", out_dtype)
    wanted_stats = dict.fromkeys(STATS)
    if out is not None:
        given = iter(out if with_lse or with_stats else (out,))
        o, lse = next(given), next(given) if with_lse else None
        wanted_stats.update(zip(STATS, given))
        if wanted is not None and o.dtype != wanted:
            raise TypeError(f"{op}: out (o) is {o.dtype}, out_dtype asks for {wanted}")
    else:
        of_o, of_lse = result_shapes(q, v, fields["layout"], tensors[4], more, fields["max_seq_len_q"])
        o, lse = Tensor.packed(of_o, wanted or default_output(q.dtype)), None
        compute = compute_dtype(q.dtype) if q.dtype in (*FLOATS, *FP8) else "float32"
        if with_lse:
            lse = Tensor.packed(of_lse[0], compute)
        if with_stats:
            wanted_stats = {name: Tensor.packed(shape, compute) for name, shape in zip(STATS, of_lse[1:])}
    return SdpaProblem(*tensors[:count], o, lse, **fields, **wanted_stats)


def make_backward(tensors, out, *options, with_dbias, with_dsink, aliases):
    """The problem of a backward call, of `tensors` do, q, k, v, o, lse, those of `OPTIONAL` and, if given, of `seeds.ARRAYS` and of
    `BACKWARD_MORE`; `out` is (dq, dk, dv[, dbias][, dsink])."""
    op, count = "sdpa_bwd", 6 + len(OPTIONAL)
    present(op, ("do", "q", "k", "v", "o", "lse"), tensors)
    _, q, k, v, *_ = tensors
    more = dict(zip((*seeds.ARRAYS, *BACKWARD_MORE), tensors[count:]))
    fields = {**normal_options(op, q, k, more, *options), **more}
    wanted = True, True, True, with_dbias, with_dsink
    if with_dsink and tensors[11] is None:
        raise ValueError(f"{op}: sink_gradient=True without a sink; expected one")
    if out is None:
        out = (Tensor.packed(t.shape, t.dtype) for t, there in zip((q, k, v, tensors[6], tensors[11]), wanted) if there)
    given = iter(out)
    found = SdpaGradientProblem(*tensors[:count], *(next(given) if there else None for there in wanted), **fields)
    for name, of in (("do", "o"), ("dq", "q"), ("dk", "k"), ("dv", "v")):
        t, like = found.array(name), getattr(found, of)
        if found.offsets(f"ragged_{of}") is not None and t.strides[0] != like.strides[0]:
            raise ValueError(f"{op}: {name} has a stride of rows of {t.strides[0]}, {of} of {like.strides[0]}; expected the same, since "
                             f"ragged_{of} is of both")
    return found

"""The problems of scaled dot-product attention and its gradient: validation, shapes, and what algorithms ask."""
import functools
import math
import operator
from dataclasses import dataclass

import numpy as np

from ..host import seeds
from ..host.choices import dtype_of, one_of
from ..host.dtypes import compute_dtype
from ..host.products import FLOATS, FP8, OUTPUTS, default_output
from ..host.tensor import Tensor
from ._checks import SCALES, check_bias, check_broadcast, check_factors, check_number, check_sink, expect, present

LAYOUTS = ("BHSD", "BSHD", "THD")
ALIGNMENTS = ("top_left", "bottom_right")
UNBOUNDED = 1 << 30
STEPS = 1 << 16
"""Probabilities of dropout are multiples of one over this: an element is kept or not by 16 random bits."""
OPTIONAL = ("bias", "seq_len_q", "seq_len_kv", "cu_seqlens_q", "cu_seqlens_kv", "sink", "mask")


class _Attention:
    """What attention and its gradient share."""
    scalar_type = "float32"
    scalar_types = {"seed": "uint64", "offset": "uint64"}

    def _check(self):
        self._check_operands()
        self._check_lengths()
        self._check_added()
        self._check_numbers()
        seeds.check(self.op, self.seed_array, self.offset_array)
        expect(self.op, "lse" if not self.is_forward else "out (lse)", self.lse, (self.compute,), self.lse_shape)
        expect(self.op, "out (o)" if self.is_forward else "o", self.o, self.o_dtypes, self.o_shape)
        for out in self.outputs:
            if out.size and any(s == 0 for n, s in zip(out.shape, out.strides) if n > 1):
                raise ValueError(f"{self.op}: out has shape {out.shape} and strides {out.strides}; several elements share one address")

    def _check_operands(self):
        op, q, k, v = self.op, self.q, self.k, self.v
        one_of(op, "layout", self.layout, LAYOUTS)
        for name, t in (("q", q), ("k", k), ("v", v)):
            if t.dtype not in self.dtypes:
                raise TypeError(f"{op}: {name} is {t.dtype}; expected one of {', '.join(self.dtypes)}")
            if t.ndim != len(self.layout):
                raise ValueError(f"{op}: {name} has shape {t.shape}; expected {len(self.layout)} dimensions, {self.layout}")
            if t.dtype != q.dtype:
                raise TypeError(f"{op}: {name} is {t.dtype}, q is {q.dtype}; expected the same dtype")
        if not self.packed and not self.sizes(q)[0] == self.sizes(k)[0] == self.sizes(v)[0]:
            raise ValueError(f"{op}: q, k and v have batches of {self.sizes(q)[0]}, {self.sizes(k)[0]} and {self.sizes(v)[0]}; expected "
                             "the same")
        if self.sizes(k)[1:3] != self.sizes(v)[1:3]:
            raise ValueError(f"{op}: k has shape {k.shape}, v has {v.shape} ({self.layout}); expected the same heads and keys")
        if self.heads % max(self.kv_heads, 1) or self.heads and not self.kv_heads:
            raise ValueError(f"{op}: q has {self.heads} heads, k and v have {self.kv_heads}; expected a divisor")
        if self.sizes(k)[3] != self.d or not self.d:
            raise ValueError(f"{op}: q has {self.d} elements a head, k has {self.sizes(k)[3]}; expected the same, one at least")

    def _check_lengths(self):
        for name in ("seq_len_q", "seq_len_kv", "cu_seqlens_q", "cu_seqlens_kv"):
            t, packs = getattr(self, name), name.startswith("cu")
            if t is None:
                if packs and self.packed:
                    raise ValueError(f"{self.op}: layout 'THD' without {name}; expected the sequences' offsets")
                continue
            if packs != self.packed:
                raise ValueError(f"{self.op}: {name} with layout {self.layout!r}; expected {'it with THD only' if packs else 'cu_seqlens'}")
            if t.dtype != "int32":
                raise TypeError(f"{self.op}: {name} is {t.dtype}; expected int32")
            wanted = f"({self.batch + 1},)" if packs else f"({self.batch},)"
            if t.ndim != 1 or packs and not t.size or t.shape[0] != self.batch + packs:
                raise ValueError(f"{self.op}: {name} has shape {t.shape}; expected {wanted if t.ndim == 1 and t.size else '(B + 1,)'}")

    def _check_added(self):
        full = (self.batch, self.heads, self.rows, self.keys)
        for name, t in (("bias", self.bias), ("mask", self.mask)):
            if t is not None and self.packed:
                raise ValueError(f"{self.op}: {name} with layout 'THD'; expected it with BHSD and BSHD only")
        check_bias(self, full)
        if self.mask is not None and self.mask.dtype != "bool":
            raise TypeError(f"{self.op}: mask is {self.mask.dtype}; expected bool, True where a query attends to a key; what is added to "
                            "scores is a bias")
        check_broadcast(self.op, "mask", self.mask, full)
        check_sink(self)

    def _check_numbers(self):
        op = self.op
        if self.align not in ALIGNMENTS:
            raise ValueError(f"{op}: align={self.align!r}; expected one of {', '.join(map(repr, ALIGNMENTS))}")
        if not isinstance(self.alibi, bool):
            raise TypeError(f"{op}: alibi={self.alibi!r}; expected True or False")
        check_number(op, "scale", self.scale)
        check_number(op, "softcap", self.softcap)
        check_number(op, "dropout", self.dropout)
        if self.softcap < 0:
            raise ValueError(f"{op}: softcap={self.softcap}; expected 0 for none, or a positive number")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"{op}: dropout={self.dropout}; expected a probability from 0 to below 1")
        for name, bound in (("left", self.left), ("right", self.right)):
            if not -1 <= bound < UNBOUNDED:
                raise ValueError(f"{op}: window has {bound} on the {name}; expected -1 for no bound, or 0 to {UNBOUNDED - 1}")

    # ---- what algorithms ask

    @property
    def is_forward(self):
        return self.op.endswith("fwd")

    @property
    def packed(self):
        """Whether sequences lie one behind the other."""
        return self.layout == "THD"

    def sizes(self, t):
        """(batch, heads, rows, elements) of a tensor in this layout; packed the batch is 1 and the rows are those of all sequences."""
        return (1, *sizes_of(t.shape, self.layout)[1:]) if self.packed else sizes_of(t.shape, self.layout)

    def strides(self, t):
        """Element strides along batch, heads, rows and elements."""
        return sizes_of(t.strides, self.layout)

    @property
    def batch(self):
        """Number of sequences."""
        if self.packed:
            cu = self.cu_seqlens_q if self.cu_seqlens_q is not None else self.cu_seqlens_kv
            return cu.shape[0] - 1 if cu is not None and cu.ndim else 0
        return self.sizes(self.q)[0]

    @property
    def heads(self):
        return self.sizes(self.q)[1]

    @property
    def kv_heads(self):
        return self.sizes(self.k)[1]

    @property
    def group(self):
        """Heads of q that share a head of k and v."""
        return self.heads // max(self.kv_heads, 1)

    @property
    def rows(self):
        """Queries of a sequence, packed those of all."""
        return self.sizes(self.q)[2]

    @property
    def keys(self):
        """Keys of a sequence, packed those of all."""
        return self.sizes(self.k)[2]

    @property
    def d(self):
        return self.sizes(self.q)[3]

    @property
    def dv(self):
        return self.sizes(self.v)[3]

    @property
    def o_shape(self):
        return (*self.q.shape[:-1], self.v.shape[-1])

    @property
    def lse_shape(self):
        return (self.heads, self.rows) if self.packed else (self.batch, self.heads, self.rows)

    @property
    def lse_strides(self):
        """Element strides of lse along batch, heads and rows."""
        if self.lse is None:
            return 0, 0, 0
        return (0, *self.lse.strides) if self.packed else self.lse.strides

    @property
    def images(self):
        """Batches of arrays: 1 where sequences are packed."""
        return 1 if self.packed else self.batch

    @property
    def bounds(self):
        """How many keys to the left and right of its own place a row sees at most."""
        return tuple(UNBOUNDED if b < 0 else b for b in (self.left, self.right))

    @property
    def dtype(self):
        return self.q.dtype

    @property
    def dtypes(self):
        """What q, k and v may be."""
        return (*FLOATS, *FP8) if self.is_forward else FLOATS

    @property
    def o_dtypes(self):
        """What o may be."""
        return OUTPUTS[self.dtype] if self.dtype in FP8 else (self.dtype,)

    @property
    def compute(self):
        """Type of scores, exponentials and sums."""
        return compute_dtype(self.dtype)

    @property
    def threshold(self):
        """Random words whose upper half is below this one's drop an element."""
        return min(math.floor(self.dropout * STEPS + 0.5), STEPS - 1) << 16

    @property
    def factor(self):
        """What elements that are kept are multiplied by."""
        return 1 / (1 - self.dropout)

    @property
    def is_empty(self):
        return not any(t.size for t in self.outputs)

    @functools.cached_property
    def pairs(self):
        """Pairs of a row and a key that it sees, of one head, at full lengths; packed sequences count as equally long."""
        count = max(self.batch, 1) if self.packed else 1
        rows, keys = -(-self.rows // count), -(-self.keys // count)
        left, right = self.bounds
        own = np.arange(rows, dtype=np.int64) + (keys - rows if self.align == "bottom_right" else 0)
        seen = np.minimum(own + right + 1, keys) - np.maximum(own - left, 0)
        return int(np.maximum(seen, 0).sum()) * (self.batch if not self.packed else count)

    @property
    def flops(self):
        """Of the products: two forward, five backward."""
        forward = 2 * self.pairs * self.heads * (self.d + self.dv)
        return forward if self.is_forward else 2 * self.pairs * self.heads * (3 * self.d + 2 * self.dv)

    @property
    def bytes(self):
        """Bytes that must move: each distinct element read, each written."""
        given = (self.q, self.k, self.v, self.bias, self.mask, *(() if self.is_forward else (self.do, self.o, self.lse)))
        return sum(t.nbytes for t in (*given, *self.outputs) if t is not None)

    def operand_values(self, name):
        """Full lengths, offsets of equally long sequences, sums of exponentials as of normal scores, factors of 1."""
        if name in SCALES:
            return 1.0
        if name in ("seq_len_q", "seq_len_kv"):
            return self.rows if name.endswith("q") else self.keys
        if name.startswith("cu_seqlens"):
            return np.linspace(0, self.rows if name.endswith("_q") else self.keys, self.batch + 1).astype(np.int64)
        if name == "lse":
            return math.log(max(self.keys, 1)) + 0.6
        return None

    @property
    def words(self):
        """The options, for people."""
        found = f" causal {self.align}" if (self.left, self.right) == (-1, 0) else ""
        if (self.left, self.right) != (-1, -1) and not found:
            found = f" window {self.left},{self.right} {self.align}"
        for name in OPTIONAL:
            t = getattr(self, name)
            if t is not None and not name.startswith("cu"):
                found += f" {name}" + f" {t.shape}" * (name in ("bias", "mask"))
        found += "".join(f" {name}" for name in SCALES if getattr(self, name, None) is not None)
        found += " alibi" * self.alibi + f" softcap {self.softcap:g}" * (self.softcap > 0)
        return found + (f" dropout {self.dropout:g}" * (self.dropout > 0)) + seeds.in_words(self)

    def __str__(self):
        b = f"b{self.batch} " + (f"h{self.heads}" if self.group == 1 else f"h{self.heads}:{self.kv_heads}")
        s = f"{'t' if self.packed else 's'}{self.rows}" + f":{self.keys}" * (self.keys != self.rows)
        d = f"d{self.d}" + f":{self.dv}" * (self.dv != self.d)
        strided = "".join(f", {name} strides {t.strides}" for name, t in (("q", self.q), ("k", self.k), ("v", self.v)) if not t.is_packed)
        out = f" -> {self.o.dtype}" * (self.o.dtype != self.dtype)
        return f"{self.op} {b} {s} {d} {self.dtype} {self.layout}{out}{self.words}{strided}"


@dataclass(frozen=True)
class SdpaProblem(_Attention):
    """softmax(scale * q @ k.T, capped, biased and masked) @ v, of 8-bit floats times their factors.

    Attributes
    ----------
    q, k, v : Tensor
    bias, seq_len_q, seq_len_kv, cu_seqlens_q, cu_seqlens_kv, sink, mask : Tensor or None
    o : Tensor
    lse : Tensor or None
    scale : float
    left, right : int
        Keys beside a row's own place that it sees; -1: all. Causal is right=0.
    align : str
        Where a row's own place is; "top_left" where that makes no difference.
    alibi : bool
    dropout, softcap : float
    layout : str
    scale_q, scale_k, scale_v : Tensor or None
    seed_array, offset_array : Tensor or None
        Where dropout's seed and offset are read from; None: they are numbers of the call.
    """
    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    seq_len_q: Tensor | None
    seq_len_kv: Tensor | None
    cu_seqlens_q: Tensor | None
    cu_seqlens_kv: Tensor | None
    sink: Tensor | None
    mask: Tensor | None
    o: Tensor
    lse: Tensor | None
    scale: float
    left: int = -1
    right: int = -1
    align: str = "top_left"
    alibi: bool = False
    dropout: float = 0.0
    softcap: float = 0.0
    layout: str = "BHSD"
    scale_q: Tensor | None = None
    scale_k: Tensor | None = None
    scale_v: Tensor | None = None
    seed_array: Tensor | None = None
    offset_array: Tensor | None = None
    op = "sdpa_fwd"

    def __post_init__(self):
        self._check()
        check_factors(self, zip(SCALES, (self.q, self.k, self.v)))

    @property
    def outputs(self):
        return (self.o,) if self.lse is None else (self.o, self.lse)

    @property
    def loose(self):
        """How far results may be from those of `naive`, beside the largest: probabilities may be rounded to e4m3."""
        return 2.0 ** -4 if self.dtype in FP8 else 0.0


@dataclass(frozen=True)
class SdpaGradientProblem(_Attention):
    """The gradients of `SdpaProblem` by q, k, v and, where `dbias` and `dsink` are there, by the bias and by the sink.

    Attributes
    ----------
    do, q, k, v, o, lse : Tensor
    bias, seq_len_q, seq_len_kv, cu_seqlens_q, cu_seqlens_kv, sink, mask : Tensor or None
    dq, dk, dv : Tensor
        The last one is `dv_out`: `dv` is the size of v's heads.
    dbias, dsink : Tensor or None
    scale, left, right, align, alibi, dropout, softcap, layout, seed_array, offset_array
        As the forward problem's.
    """
    do: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    lse: Tensor
    bias: Tensor | None
    seq_len_q: Tensor | None
    seq_len_kv: Tensor | None
    cu_seqlens_q: Tensor | None
    cu_seqlens_kv: Tensor | None
    sink: Tensor | None
    mask: Tensor | None
    dq: Tensor
    dk: Tensor
    dv_out: Tensor
    dbias: Tensor | None
    dsink: Tensor | None
    scale: float
    left: int = -1
    right: int = -1
    align: str = "top_left"
    alibi: bool = False
    dropout: float = 0.0
    softcap: float = 0.0
    layout: str = "BHSD"
    seed_array: Tensor | None = None
    offset_array: Tensor | None = None
    op = "sdpa_bwd"

    def __post_init__(self):
        self._check()
        expect(self.op, "do", self.do, (self.dtype,), self.o_shape)
        for name, like in (("dq", self.q), ("dk", self.k), ("dv", self.v), ("dbias", self.bias), ("dsink", self.sink)):
            if (out := self._gradients[name]) is not None:
                expect(self.op, f"out ({name})", out, (like.dtype,), like.shape)

    @property
    def _gradients(self):
        return {"dq": self.dq, "dk": self.dk, "dv": self.dv_out, "dbias": self.dbias, "dsink": self.dsink}

    @property
    def outputs(self):
        return tuple(t for t in self._gradients.values() if t is not None)

    @property
    def output_names(self):
        """Of those of the operation that there are."""
        return tuple(name for name, t in self._gradients.items() if t is not None)


# ---- problems from calls

def sizes_of(values, layout):
    """Values along the dimensions of a layout, in the order batch, heads, rows, elements; packed 0 for the batch."""
    if layout == "BHSD":
        return tuple(values)
    if layout == "BSHD":
        return values[0], values[2], values[1], values[3]
    return 0, values[1], values[0], values[2]


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


def normal_options(op, q, k, scale, causal, align, window, alibi, dropout, softcap, layout):
    """The options of a call as the fields of a problem."""
    one_of(op, "layout", layout, LAYOUTS)
    one_of(op, "align", align, ALIGNMENTS)
    for name, t in (("q", q), ("k", k)):
        if t.ndim != len(layout):
            raise ValueError(f"{op}: {name} has shape {t.shape}; expected {len(layout)} dimensions, {layout}")
    left, right = normal_window(op, window, causal)
    matters = left >= 0 or right >= 0 or alibi is True
    given = {"scale": scale, "dropout": dropout, "softcap": softcap}
    for name, value in given.items():
        if value is not None or name != "scale":
            check_number(op, name, value)
    return {"scale": float(scale) if scale is not None else 1 / math.sqrt(max(q.shape[-1], 1)), "left": left, "right": right,
            "align": align if matters else "top_left", "alibi": alibi, "dropout": float(dropout),
            "softcap": float(softcap), "layout": layout}


def make_forward(tensors, out, out_dtype, *options, with_lse, aliases):
    """The problem of a forward call, of `tensors` q, k, v, those of `OPTIONAL`, of `SCALES` and of `seeds.ARRAYS`, the last of which may be
    left out; `out` is o, or (o, lse)."""
    op, count = "sdpa_fwd", 3 + len(OPTIONAL)
    q, k, v = tensors[:3]
    present(op, ("q", "k", "v"), (q, k, v))
    fields = {**normal_options(op, q, k, *options), **dict(zip((*SCALES, *seeds.ARRAYS), tensors[count:]))}
    wanted = None if out_dtype is None else dtype_of(op, "out_dtype", out_dtype)
    if out is not None:
        o, lse = out if with_lse else (out, None)
        if wanted is not None and o.dtype != wanted:
            raise TypeError(f"{op}: out (o) is {o.dtype}, out_dtype asks for {wanted}")
    else:
        o, lse = Tensor.packed((*q.shape[:-1], *v.shape[-1:]), wanted or default_output(q.dtype)), None
        if with_lse:
            batch, heads, rows, _ = sizes_of(q.shape, fields["layout"])
            compute = compute_dtype(q.dtype) if q.dtype in (*FLOATS, *FP8) else "float32"
            lse = Tensor.packed((heads, rows) if fields["layout"] == "THD" else (batch, heads, rows), compute)
    return SdpaProblem(*tensors[:count], o, lse, **fields)


def make_backward(tensors, out, *options, with_dbias, with_dsink, aliases):
    """The problem of a backward call, of `tensors` do, q, k, v, o, lse, those of `OPTIONAL` and, if given, of `seeds.ARRAYS`; `out` is
    (dq, dk, dv[, dbias][, dsink])."""
    op, count = "sdpa_bwd", 6 + len(OPTIONAL)
    present(op, ("do", "q", "k", "v", "o", "lse"), tensors)
    _, q, k, v, *_ = tensors
    fields = {**normal_options(op, q, k, *options), **dict(zip(seeds.ARRAYS, tensors[count:]))}
    wanted = True, True, True, with_dbias, with_dsink
    if with_dsink and tensors[11] is None:
        raise ValueError(f"{op}: sink_gradient=True without a sink; expected one")
    if out is None:
        out = (Tensor.packed(t.shape, t.dtype) for t, there in zip((q, k, v, tensors[6], tensors[11]), wanted) if there)
    given = iter(out)
    return SdpaGradientProblem(*tensors[:count], *(next(given) if there else None for there in wanted), **fields)

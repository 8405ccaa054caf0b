"""The problems of scaled dot-product attention and its gradient: validation, shapes, and what algorithms ask."""
import functools
import math
from dataclasses import dataclass

import numpy as np

from ..host import seeds
from ..host.choices import one_of
from ..host.dtypes import compute_dtype
from ..host.products import FLOATS, FP8, OUTPUTS
from ..host.tensor import Tensor
from ._checks import (AMAX, FACTORS, SCALES, check_beside, check_bias, check_block_mask, check_broadcast, check_factors, check_number,
                      check_quantization, check_sink, expect)
from ._layout import LAYOUTS, PAGES, ROW_NUMBERS, Layout
from ._score_mod import WithScoreMod

ALIGNMENTS = ("top_left", "bottom_right")
UNBOUNDED = 1 << 30
STEPS = 1 << 16
"""Probabilities of dropout are multiples of one over this: an element is kept or not by 16 random bits."""
OPTIONAL = ("bias", "seq_len_q", "seq_len_kv", "cu_seqlens_q", "cu_seqlens_kv", "sink", "mask")


class _Attention(Layout, WithScoreMod):
    """What attention and its gradient share."""
    scalar_type = "float32"

    @functools.cached_property
    def scalar_types(self):
        """{scalar: type} of dropout's numbers, and of a score_mod's."""
        return {"seed": "uint64", "offset": "uint64", **WithScoreMod.scalar_types.func(self)}

    def _check(self):
        self._check_operands()
        self._check_lengths()
        self._check_added()
        self._check_numbers()
        self._check_score_mod()
        seeds.check(self.op, self.seed_array, self.offset_array)
        self.expect_row_numbers("lse" if not self.is_forward else "out (lse)", self.lse, self.ragged_lse is not None, self.heads, self.rows)
        self.expect_rows("o", self.o, self.o_dtypes, self.heads, self.rows, self.dv, "out (o)" if self.is_forward else "o")
        for out in self.outputs:
            out.check_addresses(self.op)

    def _check_operands(self):
        op, q, k, v = self.op, self.q, self.k, self.v
        one_of(op, "layout", self.layout, LAYOUTS)
        for name, t in (("q", q), ("k", k), ("v", v)):
            if t.dtype not in self.dtypes:
                raise TypeError(f"{op}: {name} is {t.dtype}; expected one of {', '.join(self.dtypes)}")
            layout = "BSHD" if self.ragged and self.offsets(f"ragged_{name}") is None else self.layout
            if t.ndim != len(layout):
                raise ValueError(f"{op}: {name} has shape {t.shape}; expected {len(layout)} dimensions, {layout}")
            if t.dtype != q.dtype:
                raise TypeError(f"{op}: {name} is {t.dtype}, q is {q.dtype}; expected the same dtype")
        self._check_memory()
        batches = [self.batch if paged else self.sizes(t)[0] for t, paged in zip((q, k, v), (False, *self.paged))]
        if not self.packed and {self.batch, *batches} != {self.batch}:
            raise ValueError(f"{op}: q, k and v have batches of {batches[0]}, {batches[1]} and {batches[2]}; expected "
                             + ("the same" if not self.ragged else f"{self.batch}, that of seq_len_q"))
        if self.sizes(k)[1] != self.sizes(v)[1] or self._keys_of("k") != self._keys_of("v"):
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
                    raise ValueError(f"{self.op}: layout 'THD' without {name}; expected the sequences' offsets, or ragged ones")
                continue
            if packs and self.ragged:
                raise ValueError(f"{self.op}: {name} beside ragged offsets; expected one of them")
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
        check_block_mask(self)
        if (t := self.dropout_mask) is not None:
            if self.packed or self.dropout:
                raise ValueError(f"{self.op}: dropout_mask with {'packed sequences' if self.packed else f'dropout={self.dropout}'}; "
                                 "expected it alone, with padded or ragged ones")
            check_beside(self, "dropout_mask", t)
            check_broadcast(self.op, "dropout_mask", t, full)

    def _check_numbers(self):
        op = self.op
        if self.align not in ALIGNMENTS:
            raise ValueError(f"{op}: align={self.align!r}; expected one of {', '.join(map(repr, ALIGNMENTS))}")
        if not isinstance(self.alibi, bool):
            raise TypeError(f"{op}: alibi={self.alibi!r}; expected True or False")
        check_number(op, "scale", self.scale)
        check_number(op, "softcap", self.softcap)
        check_number(op, "dropout", self.dropout)
        check_number(op, "dropout_scale", self.dropout_scale)
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
    def group(self):
        """Heads of q that share a head of k and v."""
        return self.heads // max(self.kv_heads, 1)

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
        return self.dropout_scale if self.dropout_mask is not None else 1 / (1 - self.dropout)

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
        given = (self.q, self.k, self.v, self.bias, self.mask, self.dropout_mask, *self.extra_tensors.values(),
                 *(() if self.is_forward else (self.do, self.o, self.lse)))
        return sum(self._nbytes(t) for t in (*given, *self.outputs) if t is not None)

    def _nbytes(self, t):
        """Those of an array, of a ragged one at full lengths at most: how long its memory is need not be known."""
        if not self.ragged or t.ndim > 3:
            return t.nbytes
        rows = max(self.rows, self.keys) * self.batch
        return min(t.nbytes, rows * t.itemsize * (t.shape[1] * t.shape[2] if t.ndim == 3 else self.heads))

    def operand_values(self, name):
        """Full lengths, offsets of equally long sequences, sums of exponentials as of normal scores, factors of 1."""
        if name in (*SCALES, *FACTORS):
            return 1.0
        if name in ("seq_len_q", "seq_len_kv"):
            return self.rows if name.endswith("q") else self.keys
        if name.startswith("cu_seqlens"):
            return np.linspace(0, self.rows if name.endswith("_q") else self.keys, self.batch + 1).astype(np.int64)
        if name.startswith("ragged"):
            array = self.array(name.removeprefix("ragged_"))
            rows, step = (array.shape[-1], array.strides[-1]) if name in ROW_NUMBERS else (array.shape[0], array.strides[0])
            return np.minimum(np.arange(self.batch + 1) * (self.keys if name[-1] in "kv" else self.rows), rows) * step
        if name in PAGES:
            table, pages = getattr(self, name), getattr(self, name[-1]).shape[0]
            return np.random.default_rng(5).permutation(max(table.size, 1))[:table.size].reshape(table.shape) % max(pages, 1)
        if name == "lse":
            return math.log(max(self.keys, 1)) + 0.6
        return None

    @property
    def words(self):
        """The options, for people."""
        found = f" causal {self.align}" if (self.left, self.right) == (-1, 0) else ""
        if (self.left, self.right) != (-1, -1) and not found:
            found = f" window {self.left},{self.right} {self.align}"
        for name in (*OPTIONAL, "block_mask", "dropout_mask", "score_max", "score_sum_exp"):
            t = getattr(self, name, None)
            if t is not None and not name.startswith("cu"):
                found += f" {name}" + f" {t.shape}" * (name in ("bias", "mask"))
        names = *SCALES, *FACTORS, *AMAX, *self.ragged_names, *PAGES
        found += "".join(f" {name}" for name in names if getattr(self, name, None) is not None)
        found += " alibi" * self.alibi + f" softcap {self.softcap:g}" * (self.softcap > 0)
        found += f" score_mod {self.score_mod}" if self.score_mod is not None else ""
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
    ragged_q, ragged_k, ragged_v, ragged_o, ragged_lse : Tensor or None
        Where each sequence begins in an array, in elements; None: the array has a dimension of sequences.
    page_table_k, page_table_v : Tensor or None
        Pages of each sequence's keys and values.
    max_seq_len_q, max_seq_len_kv : int
        Queries and keys of the longest sequence where arrays are ragged or have pages; 0: as many as there is room for.
    block_mask : Tensor or None
        A bit for each block of 128 queries and 128 keys.
    dropout_mask : Tensor or None
        What probabilities are multiplied by, with `dropout_scale`.
    score_max, score_sum_exp : Tensor or None
        Results: the largest score of a row, and the sum of exponentials relative to it.
    ragged_score_max, ragged_score_sum_exp : Tensor or None
    scale_s, descale_s, scale_o : Tensor or None
        Factors of 8-bit probabilities, and of the result (see `_quantization`).
    amax_s, amax_o : Tensor or None
        Results: the largest probability, and the largest magnitude of the result before `scale_o`.
    score_mod : Program or None
        What scaled products become scores by, without a bias, ALiBi and a cap (see `_score_mod`).
    extras : tuple of Tensor
        Its operands, which broadcast to (B, H, S, N).
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
    ragged_q: Tensor | None = None
    ragged_k: Tensor | None = None
    ragged_v: Tensor | None = None
    ragged_o: Tensor | None = None
    ragged_lse: Tensor | None = None
    page_table_k: Tensor | None = None
    page_table_v: Tensor | None = None
    max_seq_len_q: int = 0
    max_seq_len_kv: int = 0
    block_mask: Tensor | None = None
    dropout_mask: Tensor | None = None
    ragged_score_max: Tensor | None = None
    ragged_score_sum_exp: Tensor | None = None
    score_max: Tensor | None = None
    score_sum_exp: Tensor | None = None
    scale_s: Tensor | None = None
    descale_s: Tensor | None = None
    scale_o: Tensor | None = None
    amax_s: Tensor | None = None
    amax_o: Tensor | None = None
    dropout_scale: float = 1.0
    score_mod: object = None
    extras: tuple = ()
    op = "sdpa_fwd"

    def __post_init__(self):
        self._check()
        check_factors(self, zip(SCALES, (self.q, self.k, self.v)))
        check_quantization(self)
        for name in ("score_max", "score_sum_exp"):
            self.expect_row_numbers(f"out ({name})", getattr(self, name), self.offsets(f"ragged_{name}") is not None, self.heads, self.rows)

    @property
    def _results(self):
        return {"o": self.o, "lse": self.lse, "score_max": self.score_max, "score_sum_exp": self.score_sum_exp,
                "amax_s": self.amax_s, "amax_o": self.amax_o}

    @functools.cached_property
    def extra_names(self):
        """With the operands and results of quantization, which the public function has not."""
        operands, outputs, scalars = super().extra_names or ((), (), ())
        return ((*operands, *(name for name in FACTORS if getattr(self, name) is not None)),
                (*outputs, *(name for name in AMAX if getattr(self, name) is not None)), scalars)

    @property
    def outputs(self):
        return tuple(t for t in self._results.values() if t is not None)

    @property
    def output_names(self):
        """Of those of the operation that there are."""
        return tuple(name for name, t in self._results.items() if t is not None)

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
    scale, left, right, align, alibi, dropout, softcap, layout, seed_array, offset_array, max_seq_len_q, max_seq_len_kv
        As the forward problem's.
    ragged_q, ragged_k, ragged_v, ragged_o, ragged_lse, ragged_do, ragged_dq, ragged_dk, ragged_dv : Tensor or None
        As the forward problem's; gradients begin where they say.
    dropout_mask : Tensor or None
    dropout_scale : float
    score_mod, score_mod_bprop : Program or None
        What scaled products become scores by; of (the derivative by a score, the scaled product) the derivative by that, None where they
        are the same.
    extras : tuple of Tensor
        The operands of the one and of the other.
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
    ragged_q: Tensor | None = None
    ragged_k: Tensor | None = None
    ragged_v: Tensor | None = None
    ragged_o: Tensor | None = None
    ragged_lse: Tensor | None = None
    ragged_do: Tensor | None = None
    ragged_dq: Tensor | None = None
    ragged_dk: Tensor | None = None
    ragged_dv: Tensor | None = None
    max_seq_len_q: int = 0
    max_seq_len_kv: int = 0
    dropout_mask: Tensor | None = None
    dropout_scale: float = 1.0
    score_mod: object = None
    score_mod_bprop: object = None
    extras: tuple = ()
    op = "sdpa_bwd"

    def __post_init__(self):
        self._check()
        self.expect_rows("do", self.do, (self.dtype,), self.heads, self.rows, self.dv)
        for name, heads, rows, elements in (("dq", self.heads, self.rows, self.d), ("dk", self.kv_heads, self.keys, self.d),
                                            ("dv", self.kv_heads, self.keys, self.dv)):
            self.expect_rows(name, self._gradients[name], (self.dtype,), heads, rows, elements, f"out ({name})")
        for name, like in (("dbias", self.bias), ("dsink", self.sink)):
            if (out := self._gradients[name]) is not None:
                expect(self.op, f"out ({name})", out, (like.dtype,), like.shape)

    def of_tensors(self, tensors, **more):
        """The same problem with other tensors, by their names in launches."""
        return super().of_tensors({"dv_out" if name == "dv" else name: t for name, t in tensors.items()}, **more)

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

"""The problem of attention to a cache: few rows of each sequence, its last ones, and keys that may lie in pages."""
import math
from dataclasses import dataclass

import numpy as np

from ...device.index import LIMIT
from ...host.choices import one_of
from ...host.dtypes import compute_dtype
from ...host.products import FLOATS, FP8
from ...host.tensor import Tensor
from .._checks import check_bias, check_factor_values, check_factors, check_number, check_offsets, check_pages, check_sink, expect, present
from .._calls import normal_window
from .._layout import sizes_of
from .._problem import UNBOUNDED

CACHES = {"BHSD": "BHSD", "BSHD": "BSHD", "THD": "BSHD"}
"""The layout of the caches by that of the queries."""


@dataclass(frozen=True)
class DecodeProblem:
    """softmax(scale * q @ k.T, capped, biased and masked) @ v with the keys of a cache.

    Attributes
    ----------
    q, k_cache, v_cache : Tensor
    seq_len_kv : Tensor
    page_table, sink, bias, cu_seqlens_q, scale_k, scale_v : Tensor or None
    o : Tensor
    lse : Tensor or None
    scale : float
    left : int
        Keys before a row's own place that it sees; -1: all.
    softcap : float
    layout : str
    """
    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    seq_len_kv: Tensor
    page_table: Tensor | None
    sink: Tensor | None
    bias: Tensor | None
    cu_seqlens_q: Tensor | None
    scale_k: Tensor | None
    scale_v: Tensor | None
    o: Tensor
    lse: Tensor | None
    scale: float
    left: int = -1
    softcap: float = 0.0
    layout: str = "BHSD"
    op = "sdpa_decode"
    scalar_type = "float32"

    def __post_init__(self):
        op, q, k, v = self.op, self.q, self.k_cache, self.v_cache
        if q.dtype not in FLOATS:
            raise TypeError(f"{op}: q is {q.dtype}; expected one of {', '.join(FLOATS)}")
        if k.dtype not in (q.dtype, *FP8):
            raise TypeError(f"{op}: k_cache is {k.dtype}, q is {q.dtype}; expected the same dtype, or {' or '.join(FP8)}")
        if v.dtype != k.dtype:
            raise TypeError(f"{op}: v_cache is {v.dtype}, k_cache is {k.dtype}; expected the same dtype")
        check_factors(self, (("scale_k", k), ("scale_v", v)))
        if self.sizes(k)[:3] != self.sizes(v)[:3]:
            raise ValueError(f"{op}: k_cache has shape {k.shape}, v_cache has {v.shape} ({CACHES[self.layout]}); expected the same but for "
                             "the last dimension")
        if self.heads % max(self.kv_heads, 1) or self.heads and not self.kv_heads:
            raise ValueError(f"{op}: q has {self.heads} heads, the caches have {self.kv_heads}; expected a divisor")
        if k.shape[-1] != self.d or not self.d:
            raise ValueError(f"{op}: q has {self.d} elements a head, k_cache has {k.shape[-1]}; expected the same, one at least")
        if self.page_table is None and k.shape[0] != self.batch:
            raise ValueError(f"{op}: {'cu_seqlens_q' if self.packed else 'q'} has a batch of {self.batch}, the caches of {k.shape[0]}; "
                             "expected the same, or a page_table")
        for name, t, wanted in (("seq_len_kv", self.seq_len_kv, "(B,)"), ("page_table", self.page_table, "(B, pages of a sequence)")):
            if t is None:
                continue
            if t.dtype != "int32":
                raise TypeError(f"{op}: {name} is {t.dtype}; expected int32")
            if t.ndim != wanted.count(",") + (name == "page_table") or t.shape[0] != self.batch:
                raise ValueError(f"{op}: {name} has shape {t.shape}; expected {wanted} with B={self.batch}")
        if self.capacity >= LIMIT:
            raise ValueError(f"{op}: {self.capacity} keys of a sequence; expected fewer than 2**31")
        if self.bias is not None and self.packed:
            raise ValueError(f"{op}: bias with layout 'THD'; expected it with BHSD and BSHD only")
        check_bias(self, (self.batch, self.heads, self.rows, self.capacity))
        check_sink(self)
        check_number(op, "scale", self.scale)
        check_number(op, "softcap", self.softcap)
        if self.softcap < 0:
            raise ValueError(f"{op}: softcap={self.softcap}; expected 0 for none, or a positive number")
        if not -1 <= self.left < UNBOUNDED:
            raise ValueError(f"{op}: window has {self.left} on the left; expected -1 for no bound, or 0 to {UNBOUNDED - 1}")
        expect(op, "out (o)", self.o, (self.dtype,), (*q.shape[:-1], self.dv))
        expect(op, "out (lse)", self.lse, (self.compute,), self.lse_shape)
        for out in self.outputs:
            out.check_addresses(op)

    # ---- what algorithms ask

    def strides(self, t):
        """Element strides along batch (pages), heads, rows and elements; of packed queries 0 for the batch."""
        return sizes_of(t.strides, self.layout if t.ndim == 3 else CACHES[self.layout])

    def sizes(self, t):
        """Extents along batch (pages), heads, rows and elements; of packed queries 0 for the batch."""
        return sizes_of(t.shape, self.layout if t.ndim == 3 else CACHES[self.layout])

    packed = property(lambda self: self.layout == "THD")
    batch = property(lambda self: self.cu_seqlens_q.shape[0] - 1 if self.packed else self.q.shape[0])
    images = property(lambda self: 1 if self.packed else self.batch)
    heads = property(lambda self: self.sizes(self.q)[1])
    kv_heads = property(lambda self: self.sizes(self.k_cache)[1])
    d = property(lambda self: self.q.shape[-1])
    dv = property(lambda self: self.v_cache.shape[-1])
    dtype = property(lambda self: self.q.dtype)
    outputs = property(lambda self: (self.o,) if self.lse is None else (self.o, self.lse))
    is_empty = property(lambda self: not any(t.size for t in self.outputs))
    lse_shape = property(lambda self: (self.heads, self.rows) if self.packed else (self.batch, self.heads, self.rows))

    @property
    def rows(self):
        """Queries of a sequence, packed those of all."""
        return self.sizes(self.q)[2]

    @property
    def lse_strides(self):
        """Element strides of lse along batch, heads and rows."""
        if self.lse is None:
            return 0, 0, 0
        return (0, *self.lse.strides) if self.packed else self.lse.strides

    @property
    def group(self):
        """Heads of q that share a head of the caches."""
        return self.heads // max(self.kv_heads, 1)

    @property
    def page(self):
        """Keys of a page; without pages of a sequence."""
        return self.sizes(self.k_cache)[2]

    @property
    def pages(self):
        return self.k_cache.shape[0]

    @property
    def capacity(self):
        """Keys that a sequence can have."""
        if self.page_table is None:
            return self.page
        return self.page_table.shape[1] * self.page if self.pages else 0

    @property
    def bounds(self):
        """How many keys to the left and right of its own place a row sees at most."""
        return UNBOUNDED if self.left < 0 else self.left, 0

    @property
    def compute(self):
        """Type of scores, exponentials and sums."""
        return compute_dtype(self.dtype)

    @property
    def seen(self):
        """Keys of a sequence that are read, where the cache is full."""
        return self.capacity if self.left < 0 else min(self.capacity, self.left + self.rows)

    @property
    def flops(self):
        return 2 * self.images * self.heads * self.rows * self.seen * (self.d + self.dv)

    @property
    def bytes(self):
        """Bytes that must move: of full caches the keys that are seen."""
        return self.batch * self.kv_heads * self.seen * (self.d + self.dv) * self.k_cache.itemsize + sum(
            t.nbytes for t in (self.q, self.bias, *self.outputs) if t is not None)

    def operand_values(self, name):
        """Full caches, pages in a disorder, equally long packed sequences, factors of 1."""
        if name in ("scale_k", "scale_v"):
            return 1.0
        if name == "cu_seqlens_q":
            return np.linspace(0, self.rows, self.batch + 1).astype(np.int64)
        if name == "seq_len_kv":
            return self.capacity
        if name == "page_table":
            order = np.random.default_rng(5).permutation(max(self.page_table.size, 1))
            return order[:self.page_table.size].reshape(self.page_table.shape) % max(self.pages, 1)
        return None

    def __str__(self):
        heads = f"h{self.heads}" if self.group == 1 else f"h{self.heads}:{self.kv_heads}"
        paged = "" if self.page_table is None else f" pages of {self.page}"
        d = f"d{self.d}" + f":{self.dv}" * (self.dv != self.d)
        more = f" window {self.left}" * (self.left >= 0) + f" softcap {self.softcap:g}" * (self.softcap > 0)
        more += f" cache {self.k_cache.dtype}" * (self.k_cache.dtype != self.dtype)
        more += "".join(f" {name}" for name in ("scale_k", "scale_v") if getattr(self, name) is not None)
        more += f" bias {self.bias.shape}" if self.bias is not None else ""
        more += " sink" * (self.sink is not None) + " lse" * (self.lse is not None)
        s = f"{'t' if self.packed else 's'}{self.rows}:{self.capacity}"
        return f"{self.op} b{self.batch} {heads} {s} {d} {self.dtype} {self.layout}{paged}{more}"


def make_decode(tensors, out, scale, window, softcap, layout, *, with_lse, aliases):
    """`DecodeProblem` of a call; `out` is o, or (o, lse)."""
    op = "sdpa_decode"
    present(op, ("q", "k_cache", "v_cache", "seq_len_kv"), tensors)
    one_of(op, "layout", layout, CACHES)
    (q, k, v), cu = tensors[:3], tensors[7]
    for name, t, its in (("q", q, layout), ("k_cache", k, CACHES[layout]), ("v_cache", v, CACHES[layout])):
        if t.ndim != len(its):
            raise ValueError(f"{op}: {name} has shape {t.shape}; expected {len(its)} dimensions, {its}")
    if (cu is None) == (layout == "THD"):
        raise ValueError(f"{op}: layout 'THD' without cu_seqlens_q; expected the sequences' offsets" if cu is None else
                         f"{op}: cu_seqlens_q with layout {layout!r}; expected it with THD only")
    if cu is not None and cu.dtype != "int32":
        raise TypeError(f"{op}: cu_seqlens_q is {cu.dtype}; expected int32")
    if cu is not None and (cu.ndim != 1 or not cu.size):
        raise ValueError(f"{op}: cu_seqlens_q has shape {cu.shape}; expected (B + 1,)")
    left, _ = normal_window(op, window, True)
    for name, value in (("scale", scale), ("softcap", softcap)):
        if value is not None or name != "scale":
            check_number(op, name, value)
    if out is not None:
        o, lse = out if with_lse else (out, None)
    else:
        o, lse = Tensor.packed((*q.shape[:-1], v.shape[-1]), q.dtype), None
        if with_lse:
            compute = compute_dtype(q.dtype) if q.dtype in FLOATS else "float32"
            lse = Tensor.packed(sizes_of(q.shape, layout)[layout == "THD":3], compute)
    scale = float(scale) if scale is not None else 1 / math.sqrt(max(q.shape[-1], 1))
    return DecodeProblem(*tensors, o, lse, scale, left, float(softcap), layout)


def check_cache(problem, arrays):
    """ValueError where a length is beyond the cache, an offset beyond the queries, a page that is used none of the cache, or a factor
    not positive; waits for the device."""
    from ...host.check import to_host
    check_factor_values(problem, arrays)
    lengths = to_host(arrays["seq_len_kv"])
    wrong = np.flatnonzero((lengths < 0) | (lengths > problem.capacity))
    if wrong.size:
        raise ValueError(f"{problem.op}: seq_len_kv[{wrong[0]}] is {lengths[wrong[0]]}; expected 0 to {problem.capacity}")
    if arrays.get("cu_seqlens_q") is not None:
        check_offsets(problem.op, "cu_seqlens_q", to_host(arrays["cu_seqlens_q"]), problem.rows)
    if arrays.get("page_table") is None or not problem.page:
        return
    check_pages(problem.op, "page_table", to_host(arrays["page_table"]), lengths, problem.page, problem.pages)

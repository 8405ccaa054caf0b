"""The cases of attention to a cache: the definition is that of attention to the keys that the pages name, in their order."""
from dataclasses import dataclass, field

import numpy as np

from . import LARGEST, Case, coherent, lay, rounded, rounding_error
from ._cross_entropy import SHORT, in_mode
from ._sdpa import Forward, canonical, native


@dataclass(frozen=True)
class Decode(Case):
    """One call; `lengths` are those of the keys, `page` the keys of a page, 0 for none, of which there are `pages` in the cache and `table`
    in a row of the table; `counts` are the queries of each sequence, of packed ones, of which there are `rows` in all; layouts are keywords
    of `lay` by operand."""
    id: str
    heads: int
    kv_heads: int
    rows: int
    lengths: tuple
    d: int
    e: int
    dtype: str = "float32"
    capacity: int = 0
    page: int = 0
    pages: int = 0
    table: int = 0
    scale: float | None = None
    window: tuple = (-1, -1)
    softcap: float = 0.0
    sink: str = ""
    bias: tuple | None = None
    bias_dtype: str = ""
    counts: tuple = ()
    cache: str = ""
    scales: tuple = ()
    order: str = "BHSD"
    trivial: bool = False
    wanted: bool = False
    layout: dict = field(default_factory=dict, hash=False)
    op, exact = "sdpa_decode", False

    @property
    def batch(self):
        return len(self.lengths)

    @property
    def most(self):
        """Keys that a sequence can have."""
        return self.table * self.page if self.page else self.capacity

    @property
    def whole(self):
        """Attention to all keys that the cache could hold."""
        packed = self.order == "THD"
        rows, of_rows = (max(self.counts, default=0), self.counts) if packed else (self.rows, None)
        return Forward(self.id, self.batch, self.heads, self.kv_heads, rows, self.most, self.d, self.e, self.dtype, scale=self.scale,
                       causal=True, align="bottom_right", window=(self.window[0], -1), of_rows=of_rows, of_keys=self.lengths,
                       softcap=self.softcap, sink=self.sink, bias=self.bias)

    @property
    def work(self):
        return 3 * max(self.most, 1) * (2 * self.d + self.e) * self.outputs()["o"].size

    def place(self, name, images, heads, rows, elements):
        shape = (images, heads, rows, elements) if self.order == "BHSD" else (images, rows, heads, elements)
        if name in ("q", "o") and self.order == "THD":
            shape = rows, heads, elements
        return lay(shape, self.cache or self.dtype if name in ("k", "v") else self.dtype, **self.layout.get(name, {}))

    def inputs(self):
        images, keys = (self.pages, self.page) if self.page else (self.batch, self.capacity)
        return {"q": self.place("q", self.batch, self.heads, self.rows, self.d),
                "k_cache": self.place("k", images, self.kv_heads, keys, self.d),
                "v_cache": self.place("v", images, self.kv_heads, keys, self.e),
                "seq_len_kv": lay((self.batch,), "int32", **self.layout.get("lengths", {})),
                "page_table": lay((self.batch, self.table), "int32", **self.layout.get("table", {})) if self.page else None,
                "sink": lay((self.heads,), self.sink) if self.sink else None,
                "bias": lay(self.bias, self.bias_dtype or self.dtype, **self.layout.get("bias", {})) if self.bias else None,
                "cu_seqlens_q": lay((self.batch + 1,), "int32", **self.layout.get("offsets", {})) if self.order == "THD" else None,
                **{name: lay((1,), "float32") if name in self.scales else None for name in ("scale_k", "scale_v")}}

    def outputs(self):
        found = {"o": self.place("o", self.batch, self.heads, self.rows, self.e)}
        if self.wanted:
            compute = "float64" if self.dtype == "float64" else "float32"
            shape = (self.heads, self.rows) if self.order == "THD" else (self.batch, self.heads, self.rows)
            found["lse"] = lay(shape, compute, **self.layout.get("lse", {}))
        return found

    def problem(self):
        from dnnkern.attention.decode._problem import make_decode
        from dnnkern.host.tensor import Tensor
        given, out = (tuple(p and Tensor(p.shape, p.strides, p.dtype, p.alignment) for p in places.values())
                      for places in (self.inputs(), self.outputs()))
        return make_decode(given, out if self.wanted else out[0], self.scale, self.window, self.softcap, self.order, with_lse=self.wanted,
                           aliases=frozenset())

    def call(self, arrays, out=None, **tail):
        from dnnkern import sdpa_decode
        out = out[0] if isinstance(out, tuple) and not self.wanted else out
        return sdpa_decode(arrays["q"], arrays["k_cache"], arrays["v_cache"], arrays["seq_len_kv"], page_table=arrays["page_table"],
                           scale=self.scale, window=self.window, softcap=self.softcap, sink=arrays["sink"], layout=self.order,
                           bias=arrays["bias"], cu_seqlens_q=arrays["cu_seqlens_q"], scale_k=arrays["scale_k"], scale_v=arrays["scale_v"],
                           return_lse=self.wanted, out=out, **tail)

    def values(self, mode):
        """Normal numbers; what lies behind the lengths is not of interest, and the pages are in any order, some of them shared."""
        rng, found = np.random.default_rng(list(self.id.encode())), {}
        for name, p in self.inputs().items():
            if name == "seq_len_kv":
                found[name] = np.array(self.lengths, float)
            elif name == "page_table" and p is not None:
                found[name] = rng.integers(0, max(self.pages, 1), p.shape).astype(float)
            elif name == "cu_seqlens_q" and p is not None:
                found[name] = np.concatenate([[0], np.cumsum(self.counts)]).astype(float)
            elif name in self.scales:
                found[name] = rounded(rng.uniform(0.5, 2, p.shape), "float32")
            elif p is not None:
                found[name] = coherent(rounded(rng.standard_normal(p.shape) + 0.25 * (name == "v_cache"), p.dtype), p)
        return in_mode(found, mode)

    def gathered(self, values, name):
        """The keys or values of each sequence, in their order."""
        x = canonical(values[name], "BHSD" if self.order == "BHSD" else "BSHD")
        if not self.page:
            return x
        table = values["page_table"].astype(int)
        return x[table].transpose(0, 2, 1, 3, 4).reshape(self.batch, self.kv_heads, self.most, x.shape[-1])

    def sequences(self):
        """(number, its first query, how many) of packed sequences."""
        return zip(range(self.batch), np.cumsum((0, *self.counts)), self.counts)

    def apart(self, q):
        """Packed queries as (batch, heads, rows, elements)."""
        found = np.zeros((self.batch, self.heads, max(self.counts, default=0), self.d))
        for b, first, n in self.sequences():
            found[b, :, :n] = q[first:first + n].transpose(1, 0, 2)
        return found

    def together(self, x, nothing):
        """The other way round, with heads first; rows of no sequence hold `nothing`."""
        found = np.full((self.heads, self.rows, *x.shape[3:]), float(nothing))
        for b, first, n in self.sequences():
            found[:, first:first + n] = x[b, :, :n]
        return found

    def reference(self, values, tensor_cores=False):
        q, given = values["q"], {n: self.gathered(values, f"{n}_cache") for n in ("k", "v")}
        given = {n: x * values.get("scale_" + n, 1) for n, x in given.items()}
        given["q"] = self.apart(q) if self.order == "THD" else canonical(q, self.order)
        given.update({name: values.get(name) for name in ("sink", "bias")})
        (o, error), (lse, lse_error), *_ = self.whole.forward(given, tensor_cores)
        if self.order == "THD":
            o, error, lse, lse_error = (self.together(y, nothing) for y, nothing in ((o, 0), (error, 0), (lse, -np.inf), (lse_error, 0)))
            o, error = (y.transpose(1, 0, 2) for y in (o, error))
        else:
            o, error = (native(y, self.order) for y in (o, error))
        found, bound = {"o": o, "lse": lse}, {"o": error + rounding_error(o, self.dtype), "lse": lse_error}
        return ({name: y[name] for name in self.outputs()} for y in (found, bound))


def table():
    """All small cases."""
    def case(name, heads, kv_heads, rows, lengths, d, e=None, dtype="float32", **more):
        found.append(Decode(f"{name}-{len(lengths)}x{heads}x{rows}x{max(lengths, default=0)}x{d}-{SHORT[dtype]}", heads, kv_heads, rows,
                            lengths, d, d if e is None else e, dtype, **more))

    found = []
    for dtype in SHORT:
        case("plain", 4, 2, 1, (7, 0, 12), 8, dtype=dtype, capacity=12)
        case("paged", 4, 1, 1, (9, 3), 8, dtype=dtype, page=4, pages=7, table=3)
        case("rows", 2, 2, 3, (10, 2), 8, 5, dtype, capacity=11, order="BSHD")
        case("paged-rows", 4, 2, 2, (10, 5), 16, 8, dtype, page=3, pages=5, table=4, order="BSHD", window=(3, -1),
             wanted=True)
        case("sink-and-cap", 4, 2, 1, (6, 9), 4, dtype=dtype, capacity=9, softcap=2.0, sink=dtype, wanted=True)
    for n in (1, 63, 64, 65, 127, 129):
        case("length", 2, 1, 1, (n,), 8, dtype=("float32", "bfloat16")[n % 2], capacity=n + n % 3, wanted=n > 64)
        case("length-paged", 1, 1, 1, (n,), 4, dtype=("float16", "float32")[n % 2], page=16, pages=9, table=9)
    for d, e in ((1, 1), (3, 17), (40, 24), (64, 64), (128, 128), (333, 130)):
        case("width", 4, 1, 1, (5,), d, e, ("float32", "bfloat16")[d % 2], capacity=6)
    for d, e in ((576, 512), (1152, 640)):
        case("wide", 1, 1, 1, (3,), d, e, capacity=3)
    case("window", 2, 2, 1, (9, 4), 8, capacity=9, window=(4, -1))
    case("window-of-itself", 2, 1, 1, (9, 4), 8, capacity=9, window=(0, 5))
    for k, dtype in enumerate(SHORT):
        case("biased", 4, 2, 2, (12, 5), 8, dtype=dtype, capacity=12, bias=((2, 4, 2, 12), (2, 12), (2, 1, 1, 12), (4, 1, 12))[k],
             bias_dtype=("", "", "float32", "")[k], wanted=k > 1)
        case("packed", 4, 2, 6, (9, 3, 0, 6), 8, dtype=dtype, page=4, pages=7, table=3, counts=(1, 3, 0, 2), order="THD", wanted=k % 2 == 0)
    e4m3, e5m2 = LARGEST
    for k, dtype in enumerate(SHORT):
        case("bytes", 4, 2, 2, (12, 5, 0), 16, 32, dtype, capacity=12, cache=(e4m3, e5m2)[k % 2], scales=("scale_k", "scale_v")[:k],
             wanted=k == 1)
    case("bytes-paged", 4, 1, 1, (33, 17), 32, 16, "bfloat16", page=16, pages=5, table=3, cache=e4m3, scales=("scale_k", "scale_v"),
         sink="bfloat16", softcap=2.0, window=(20, -1), order="BSHD")
    case("bytes-packed", 4, 2, 4, (12, 5), 8, dtype="float16", capacity=12, cache=e4m3, scales=("scale_v",), counts=(1, 3), order="THD")
    case("bytes-odd", 2, 1, 1, (7,), 5, 3, capacity=9, cache=e5m2, scales=("scale_k",), bias=(1, 9))
    case("biased-paged", 4, 1, 1, (33, 17), 16, 8, "float16", page=16, pages=5, table=3, bias=(2, 4, 1, 48), sink="float16", softcap=2.0)
    case("biased-window", 3, 1, 3, (40, 20), 8, dtype="bfloat16", capacity=40, bias=(2, 3, 3, 40), window=(9, -1), order="BSHD",
         layout={"bias": {"order": (0, 1, 3, 2)}})
    case("packed-rows-left", 2, 1, 7, (5, 6), 4, 3, capacity=8, counts=(2, 3), order="THD", wanted=True, window=(2, -1), sink="float32")
    case("packed-nothing", 2, 1, 4, (), 4, capacity=8, counts=(), order="THD", wanted=True, trivial=True)
    case("packed-strided", 2, 2, 4, (5, 6), 4, capacity=8, counts=(1, 3), order="THD", wanted=True,
         layout={"q": {"step": 2}, "o": {"order": (1, 0, 2)}, "lse": {"order": (1, 0)}, "offsets": {"step": 2}, "k": {"gap": 3}})
    case("many-heads", 16, 1, 1, (9,), 8, dtype="bfloat16", capacity=9)
    case("heads-of-three", 6, 2, 1, (9,), 8, capacity=9, scale=0.5)
    case("pages-of-one", 2, 1, 1, (5, 2), 8, dtype="float16", page=1, pages=4, table=6)
    case("one-page", 2, 1, 1, (5, 2), 8, page=32, pages=1, table=1)
    case("no-lengths", 2, 1, 1, (0, 0), 8, capacity=4, trivial=True, wanted=True)
    case("halves-lse", 4, 1, 2, (33, 0, 17), 16, 8, "float16", page=16, pages=4, table=3, wanted=True, sink="float16")
    case("no-room", 2, 1, 1, (0,), 8, capacity=0, trivial=True)
    case("no-pages", 2, 1, 1, (0,), 8, page=4, pages=0, table=0, trivial=True)
    case("no-batch", 2, 1, 1, (), 8, capacity=4)
    case("strided", 2, 1, 2, (6, 4), 4, capacity=7, layout={"q": {"step": 2}, "k": {"gap": 3}, "v": {"order": (0, 2, 1, 3)},
                                                            "o": {"gap": 1}, "lengths": {"step": 2}, "lse": {"step": 3}}, wanted=True)
    case("misaligned", 2, 1, 1, (6, 4), 8, dtype="bfloat16", capacity=7, layout={name: {"misaligned": 1} for name in ("q", "k", "v", "o")})
    case("backwards", 2, 2, 1, (6, 4), 4, capacity=7, layout={"q": {"flip": (3,)}, "k": {"flip": (2,)}, "v": {"flip": (1,)}})
    case("table-apart", 2, 1, 1, (6, 4), 8, page=2, pages=5, table=4, layout={"table": {"gap": 3}, "lengths": {"flip": (0,)}})
    case("cache-apart", 2, 1, 1, (6, 4), 8, dtype="float16", page=4, pages=3, table=2,
         layout={"k": {"gap": 8}, "v": {"order": (0, 2, 1, 3)}})
    return found


def large():
    """Cases for a GPU."""
    found = []
    for dtype in SHORT:
        for name, heads, kv, lengths, d, more in (
                ("cache", 32, 8, (1024, 700, 1, 0, 513), 128, {"capacity": 1024}), ("one", 8, 8, (8192,), 64, {"capacity": 8192}),
                ("paged", 32, 8, (1000, 2047, 33), 128, {"page": 64, "pages": 100, "table": 32}),
                ("wide", 8, 1, (300, 500), 256, {"capacity": 512}),
                ("bytes", 32, 8, (1024, 700, 1, 0), 128, {"page": 64, "pages": 40, "table": 16, "cache": "float8_e4m3fn",
                                                          "scales": ("scale_k", "scale_v")}),
                ("biased", 32, 8, (1024, 1000), 128, {"capacity": 1024, "bias": (2, 32, 1, 1024)}),
                ("tall", 128, 1, (1024, 0, 777), 128, {"capacity": 1024, "wanted": True}),
                ("windowed", 8, 2, (4000, 3), 64, {"capacity": 4096, "window": (512, -1), "wanted": True})):
            sizes = f"{len(lengths)}x{heads}x{max(lengths)}x{d}"
            found.append(Decode(f"{name}-{sizes}-{SHORT[dtype]}", heads, kv, 1, lengths, d, d, dtype, **more))
    for name, rows, more in (("latent", 1, {"capacity": 2100}), ("latent-paged", 1, {"page": 64, "pages": 70, "table": 33}),
                             ("latent-rows", 2, {"page": 16, "pages": 140, "table": 132, "window": (1000, -1)})):
        found.append(Decode(f"{name}-4x128x{rows}x2100x576-bf16", 128, 1, rows, (2100, 1, 0, 1300), 576, 512, "bfloat16", **more))
    return found

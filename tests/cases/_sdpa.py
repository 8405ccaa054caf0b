"""What the cases of attention and of its gradient share: the definition in float64, and how far rounding may lead from it."""
import dataclasses
import math
from dataclasses import dataclass, field

import numpy as np

from . import LARGEST, ROUNDOFF, Case, coherent, lay, rounded, rounding_error
from ._cross_entropy import SHORT, growth, in_mode
from ._dropout import philox
from ._score_mods import SCORE_MODS

OPTIONAL = ("bias", "seq_len_q", "seq_len_kv", "cu_seqlens_q", "cu_seqlens_kv", "sink", "mask")
SCALES = ("scale_q", "scale_k", "scale_v")
FACTORS, AMAX = ("scale_s", "descale_s", "scale_o"), ("amax_s", "amax_o")
RAGGED = ("ragged_q", "ragged_k", "ragged_v", "ragged_o", "ragged_lse")
PAGES = ("page_table_k", "page_table_v")
OF_KEYS = ("k", "v", "dk", "dv")
NAMES = {**SHORT, "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}


def canonical(x, layout):
    """An array as (batch, heads, rows, elements); packed sequences are one of a batch."""
    return x if layout == "BHSD" else x.transpose(0, 2, 1, 3) if layout == "BSHD" else x.transpose(1, 0, 2)[None]


def native(x, layout):
    """The other way round."""
    return x if layout == "BHSD" else x.transpose(0, 2, 1, 3) if layout == "BSHD" else x[0].transpose(1, 0, 2)


def slopes(heads):
    """ALiBi's slopes, from the paper's own program."""
    def of_power(n):
        return [2.0 ** (-8 * (k + 1) / n) for k in range(n)]
    power = 2 ** int(math.log2(heads))
    return np.array(of_power(power) + of_power(2 * power)[0::2][:heads - power])


def keeps(shape, batch, p, seed, offset):
    """Whether the probabilities (heads, rows, keys) of a sequence are kept."""
    heads, rows, keys = shape
    seed = (seed + offset * 0x9E3779B97F4A7C15) % 2 ** 64
    threshold = min(math.floor(p * 2 ** 16 + 0.5), 2 ** 16 - 1)
    words = np.array([[[philox(seed, (batch * heads + h) << 32 | i, g) for g in range(-(-keys // 8))] for i in range(rows)]
                      for h in range(heads)], np.uint32).reshape(heads, rows, 4 * -(-keys // 8))
    return words.view("<u2")[:, :, :keys] >= threshold


@dataclass(frozen=True)
class Sdpa(Case):
    """One call; `lengths` are those of the rows and keys of each sequence, None for all; layouts are keywords of `lay` by operand; `scales`
    are those of `SCALES` that 8-bit floats have; `read` are which of seed and offset are in memory; `ragged` is the dtype of offsets of
    ragged arrays, all but the `dense` ones; `page` are the keys of a page, of which there are `pages`, and `table` in a row of a table;
    `blocks`: there is a block mask; `keep` is the shape of a dropout mask; `stats`: the largest score and the sum are results, too;
    `modifier` is a name of `SCORE_MODS`; `quantized` are those of `FACTORS` and `AMAX` that 8-bit floats have."""
    id: str
    batch: int
    heads: int
    kv_heads: int
    rows: int
    keys: int
    d: int
    e: int
    dtype: str = "float32"
    scale: float | None = None
    causal: bool = False
    align: str = "top_left"
    window: tuple = (-1, -1)
    bias: tuple | None = None
    bias_dtype: str = ""
    alibi: bool = False
    of_rows: tuple | None = None
    of_keys: tuple | None = None
    dropout: float = 0.0
    seed: int = 20
    offset: int = 0
    read: tuple = ()
    softcap: float = 0.0
    sink: str = ""
    mask: tuple | None = None
    order: str = "BHSD"
    wanted: bool = True
    of_sink: bool = False
    trivial: bool = False
    large: float = 1.0
    layout: dict = field(default_factory=dict, hash=False)
    out_dtype: str | None = None
    scales: tuple = ()
    ragged: str = ""
    dense: tuple = ()
    page: int = 0
    pages: int = 0
    table: int = 0
    blocks: bool = False
    keep: tuple | None = None
    keep_scale: float = 1.0
    stats: bool = False
    modifier: str = ""
    quantized: tuple = ()
    exact = False

    @property
    def packed(self):
        return self.order == "THD" and not self.ragged

    @property
    def compute(self):
        return "float64" if self.dtype == "float64" else "float32"

    @property
    def o_dtype(self):
        return self.out_dtype or ("bfloat16" if self.dtype in LARGEST else self.dtype)

    @property
    def unit(self):
        return ROUNDOFF[self.compute]

    @property
    def factor(self):
        return self.scale if self.scale is not None else 1 / math.sqrt(self.d)

    @property
    def work(self):
        """Each element of a result costs a row of products."""
        return 3 * max(self.keys, 1) * (2 * self.d + self.e) * sum(p.size for p in self.outputs().values())

    # ---- ragged arrays and pages

    def is_ragged(self, name):
        """Whether an array of the problem has offsets."""
        name = name if name == "lse" else name[-1]
        absent = name == "lse" and self.op == "sdpa_fwd" and not self.wanted
        return bool(self.ragged) and name not in self.dense and not absent and not (self.page and name in ("k", "v"))

    def starts(self, name):
        """The rows at which sequences begin in a ragged array, and how many it has. Where results are written there are no gaps, and in
        the values the last sequence is the first."""
        lengths = np.array(self.of_keys if name in OF_KEYS else self.of_rows, int)
        written = name in ("o", "lse") if self.op == "sdpa_fwd" else name[-1] in "qkv"
        room, backwards = lengths + (0 if written else len(name.removeprefix("d"))), -1 if name[-1] == "v" else 1
        ends = np.cumsum(room[::backwards])[::backwards]
        return ends - room, int(room.sum())

    def apart(self, name, x, values):
        """An array as (batch, heads, rows, elements); packed sequences are one of a batch. Those of ragged arrays and of pages one by
        one."""
        if self.page and name in ("k", "v"):
            x = canonical(x, "BHSD" if self.order == "BHSD" else "BSHD")[values["page_table_" + name].astype(int)]
            x = x.transpose(0, 2, 1, 3, 4).reshape(self.batch, self.kv_heads, -1, x.shape[-1])
            return x[:, :, :self.keys]
        if not self.is_ragged(name):
            return canonical(x, "BSHD" if self.ragged else self.order)
        lengths, most = (self.of_keys, self.keys) if name in OF_KEYS else (self.of_rows, self.rows)
        found = np.zeros((self.batch, x.shape[1], most, x.shape[2]))
        for b, (start, n) in enumerate(zip(self.starts(name)[0], lengths)):
            found[b, :, :n] = x[start:start + n].transpose(1, 0, 2)
        return found

    def together(self, name, x):
        """The other way round."""
        if not self.is_ragged(name):
            return native(x, "BSHD" if self.ragged else self.order)
        starts, rows = self.starts(name)
        found = np.zeros((rows, x.shape[1], x.shape[3]))
        for b, (start, n) in enumerate(zip(starts, self.of_keys if name in OF_KEYS else self.of_rows)):
            found[start:start + n] = x[b, :, :n].transpose(1, 0, 2)
        return found

    def of_rows_apart(self, x):
        """lse as (batch, heads, rows)."""
        return self.apart("lse", x.T[..., None], None)[..., 0] if self.is_ragged("lse") else x[None] if self.packed else x

    def of_rows_together(self, x):
        """The other way round."""
        return self.together("lse", x[..., None])[..., 0].T if self.is_ragged("lse") else x[0] if self.packed else x

    def memory(self):
        """Places of offsets and of page tables."""
        found = {name: self.place("offsets", (self.batch + 1,), self.ragged) for name in RAGGED if self.is_ragged(name[7:])}
        return {**found, **{name: self.place("table", (self.batch, self.table), "int32") for name in PAGES if self.page}}

    def memory_values(self, name, place):
        """Those of offsets, or of a page table."""
        if name in PAGES:
            return np.random.default_rng(list(name.encode())).integers(0, self.pages, place.shape).astype(float)
        array = name[7:]
        starts, rows = self.starts(array)
        strides = self.place(array, self.shapes[array], "float32").strides
        return np.append(starts, rows) * float(strides[-1 if array == "lse" else 0])

    def shape_of(self, heads, rows, elements):
        return {"BHSD": (self.batch, heads, rows, elements), "BSHD": (self.batch, rows, heads, elements),
                "THD": (rows, heads, elements)}[self.order]

    def place(self, name, shape, dtype):
        return lay(shape, dtype, **self.layout.get(name, {}))

    @property
    def shapes(self):
        q, k, v, o = ((self.heads, self.rows, self.d), (self.kv_heads, self.keys, self.d), (self.kv_heads, self.keys, self.e),
                      (self.heads, self.rows, self.e))
        found = {name: self.shape_of(*s) for name, s in (("q", q), ("k", k), ("v", v), ("o", o))}
        found["lse"] = (self.heads, self.rows) if self.packed else (self.batch, self.heads, self.rows)
        for name in found:
            if self.is_ragged(name):
                total = self.starts(name)[1]
                found[name] = (self.heads, total) if name == "lse" else (total, *found[name][1:])
            elif self.ragged and name != "lse":
                found[name] = (self.batch, *found[name])
            if self.page and name in ("k", "v"):
                heads, elements = self.kv_heads, found[name][-1]
                found[name] = (self.pages, *((heads, self.page) if self.order == "BHSD" else (self.page, heads)), elements)
        return found

    def common(self):
        """Places of the operands that both directions have."""
        found = {name: self.place(name, self.shapes[name], self.dtype) for name in ("q", "k", "v")}
        found.update(dict.fromkeys(OPTIONAL))
        if self.bias is not None:
            found["bias"] = self.place("bias", self.bias, self.bias_dtype or self.dtype)
        for name, lengths in (("q", self.of_rows), ("kv", self.of_keys)):
            if self.packed:
                found["cu_seqlens_" + name] = self.place("lengths", (self.batch + 1,), "int32")
            elif lengths is not None:
                found["seq_len_" + name] = self.place("lengths", (self.batch,), "int32")
        if self.sink:
            found["sink"] = self.place("sink", (self.heads,), self.sink)
        if self.mask is not None:
            found["mask"] = self.place("mask", self.mask, "bool")
        found.update({name: self.place(name, (1,), "float32") for name in (*self.scales, *self.quantized) if name not in AMAX})
        found.update({name: self.place(name, (1,), "int64") for name in self.read})
        if self.blocks:
            found["block_mask"] = self.place("block_mask", (self.batch, self.heads, -(-self.rows // 128), -(-self.keys // 1024)), "uint8")
        if self.keep is not None:
            found["dropout_mask"] = self.place("dropout_mask", self.keep, self.bias_dtype or self.dtype)
        if self.modifier:
            found.update(SCORE_MODS[self.modifier].places(self.sizes, self.op == "sdpa_bwd", self.layout))
        return {**found, **self.memory()}

    @property
    def sizes(self):
        """Of scores."""
        return dict(zip("bhij", (self.batch, self.heads, self.rows, self.keys)))

    def with_more(self, problem):
        """The problem with the modifier, factors and maxima, which no public function takes."""
        if self.quantized:
            tensors = self.tensors()
            problem = dataclasses.replace(problem, **{name: tensors[name] for name in self.quantized})
        if not self.modifier:
            return problem
        parts = SCORE_MODS[self.modifier].parts(self.compute, self.sizes, self.tensors(), self.op == "sdpa_bwd")
        return dataclasses.replace(problem, **parts)

    def call_with_more(self, arrays, out, tail):
        """A call of the problem, which is no public function's."""
        numbers = SCORE_MODS[self.modifier].numbers(self.op == "sdpa_bwd") if self.modifier else ()
        return self.call_problem(arrays, out, (self.seed, self.offset, *numbers), tail)

    def tensors(self):
        """Descriptors of operands and results by name."""
        from dnnkern.host.tensor import Tensor
        return {name: p and Tensor(p.shape, p.strides, p.dtype, p.alignment) for name, p in {**self.inputs(), **self.outputs()}.items()}

    @property
    def options(self):
        return (self.scale, self.causal, self.align, self.window, self.alibi, self.dropout, self.softcap, self.order, *self.most,
                self.keep_scale)

    @property
    def most(self):
        """Bounds of the lengths."""
        return (self.rows if self.is_ragged("q") else 0, self.keys if self.is_ragged("k") or self.page else 0)

    def keywords(self, arrays, out, tail):
        """Those of the public functions."""
        return {"scale": self.scale, "causal": self.causal, "align": self.align, "window": self.window, "alibi": self.alibi,
                "dropout": self.dropout, "softcap": self.softcap, "layout": self.order, "out": out,
                "seed": arrays.get("seed", self.seed), "offset": arrays.get("offset", self.offset),
                "max_seq_len_q": self.most[0], "max_seq_len_kv": self.most[1], **{name: arrays[name] for name in OPTIONAL},
                **{name: arrays[name] for name in (*self.memory(), "block_mask", "dropout_mask") if name in arrays},
                "dropout_scale": self.keep_scale, **tail}

    def common_values(self):
        """Normal numbers."""
        rng, found = np.random.default_rng(list(self.id.encode())), {}
        for name, p in self.common().items():
            if p is None:
                continue
            if self.modifier and name in SCORE_MODS[self.modifier].own(True):
                found[name] = SCORE_MODS[self.modifier].operand_value(rng, p)
                continue
            if name.startswith(("seq", "cu")):
                lengths = self.of_rows if name.endswith("_q") else self.of_keys
                found[name] = np.concatenate([[0], np.cumsum(lengths)])[-p.size:] if self.packed else np.array(lengths, float)
                continue
            if name in RAGGED or name in PAGES:
                found[name] = self.memory_values(name, p)
                continue
            if name == "block_mask":
                bits = rng.integers(0, 256, p.shape)
                bits[:, :, 0] |= 1  # some queries attend to the first keys
                found[name] = bits.astype(float)
                continue
            if name == "dropout_mask":
                found[name] = coherent(rounded((rng.random(p.shape) < 0.7) * rng.uniform(0.5, 1.5, p.shape), p.dtype), p)
                continue
            if name in self.read:
                found[name] = np.array([getattr(self, name)], float)
                continue
            if name == "mask":  # two of three, and the first row of it no key
                value = (rng.random(p.shape) < 2 / 3).astype(float)
                value.reshape(-1, *p.shape[-2:])[0, :1] = 0
                found[name] = coherent(value, p)
                continue
            value = self.large * rng.standard_normal(p.shape) + (0.25 if name == "v" else 0)
            if name in SCALES + FACTORS:
                value = rng.uniform(0.5, 2, p.shape)
            found[name] = coherent(rounded(value, p.dtype), p)
        return found

    # ---- the definition

    def sequences(self):
        """(number, image, its rows, its keys) of each sequence, as slices."""
        row = key = 0
        for b in range(self.batch):
            rows = self.rows if self.of_rows is None else self.of_rows[b]
            keys = self.keys if self.of_keys is None else self.of_keys[b]
            yield b, 0 if self.packed else b, slice(row, row + rows), slice(key, key + keys)
            if self.packed:
                row, key = row + rows, key + keys

    def scores(self, q, k, values, b):
        """(scores of heads x rows x keys with -inf where a row does not see a key, their derivatives by the products of q and k, a bound
        of their error) of a sequence."""
        product, size = q @ k.transpose(0, 2, 1) * self.factor, np.abs(q) @ np.abs(k).transpose(0, 2, 1) * abs(self.factor)
        x, derivative, error = product, np.ones(product.shape), self.unit * (growth(self.d) + 6) * size
        if self.softcap:
            level = np.tanh(x / self.softcap)
            x, derivative = self.softcap * level, 1 - level ** 2
        error = error + 8 * self.unit * np.abs(x)
        if self.modifier:
            x, derivative, error = SCORE_MODS[self.modifier].apply(x, error, self.unit, values, b)
        bias, mask = (None if values.get(name) is None else np.broadcast_to(values[name], (self.batch, self.heads, self.rows, self.keys))[
            b, :, :x.shape[1], :x.shape[2]] for name in ("bias", "mask"))
        if bias is not None:
            x, error = x + bias, error + 6 * self.unit * np.abs(np.where(np.isfinite(bias), bias, 0))
        rows, keys = x.shape[1:]
        own = np.arange(rows)[:, None] + (keys - rows if self.align == "bottom_right" else 0)
        distance = np.arange(keys) - own
        if self.alibi:
            lost = slopes(self.heads)[:, None, None] * np.abs(distance)
            x, error = x - lost, error + 16 * self.unit * lost
        left, right = self.window[0], 0 if self.causal else self.window[1]
        hidden = (distance > right if right >= 0 else False) | (distance < -left if left >= 0 else False)
        if mask is not None:
            hidden = hidden | ~mask.astype(bool)
        if self.blocks:
            bits = np.unpackbits(values["block_mask"][b].astype(np.uint8), axis=-1, bitorder="little").astype(bool)
            hidden = hidden | ~bits.repeat(128, 1).repeat(128, 2)[:, :rows, :keys]
        return np.where(hidden, -np.inf, x), derivative * self.factor, np.where(np.isfinite(x), error, 0)

    def operands(self, values, b, image, rows, keys):
        """(q, k, v) of a sequence, each by head of q."""
        q, k, v = (self.apart(name, values[name], values)[image] * values.get("scale_" + name, 1) for name in ("q", "k", "v"))
        share = self.heads // max(self.kv_heads, 1)
        return q[:, rows], np.repeat(k[:, keys], share, 0), np.repeat(v[:, keys], share, 0)

    def kept(self, x, b, values):
        """What probabilities are multiplied by in dropout."""
        if self.keep is not None:
            full = np.broadcast_to(values["dropout_mask"], (self.batch, self.heads, self.rows, self.keys))
            return self.keep_scale * full[b, :, :x.shape[1], :x.shape[2]]
        return keeps(x.shape, b, self.dropout, self.seed, self.offset) / (1 - self.dropout) if self.dropout else np.ones(x.shape)

    def forward(self, values, tensor_cores=False):
        """((o, its bound), (lse, its bound), ...) in the shapes of the results; tensor cores have probabilities rounded to 16 bits, beside
        8-bit floats to e4m3, the largest as 2**7 at least, and add products of those with 13 bits."""
        images = 1 if self.packed else self.batch
        o, o_error = np.zeros((2, images, self.heads, self.rows, self.e))
        lse, lse_error = np.full((images, self.heads, self.rows), -np.inf), np.zeros((images, self.heads, self.rows))
        tops, sums, top_error, sum_error = lse.copy(), *np.zeros((3, images, self.heads, self.rows))
        unit, half, least, eighth, cut = self.unit, 0, 0, 0, 0
        largest, largest_error = np.zeros((2, 1))
        if tensor_cores and self.dtype in LARGEST:
            eighth, least, cut = ROUNDOFF["float8_e4m3fn"], 2.0 ** -17 / (1 - self.dropout), 2.0 ** -13
        if tensor_cores and self.dtype in ("float16", "bfloat16"):
            half, least = ROUNDOFF[self.dtype], 2.0 ** -24 * (self.dtype == "float16")
        for b, image, rows, keys in self.sequences():
            q, k, v = self.operands(values, b, image, rows, keys)
            x, _, error = self.scores(q, k, values, b)
            if cut:
                sizes = np.abs(q) @ np.abs(k).transpose(0, 2, 1) * abs(self.factor)
                error = np.where(np.isfinite(x), error + cut * -(-self.d // 32) * sizes, 0)
            top = x.max(2, initial=-np.inf)
            seen = top > -np.inf
            if self.sink:
                top = np.maximum(top, values["sink"][:, None])
            level = np.where(seen, top, 0)[..., None]
            p, many = np.exp(x - level), growth(max(x.shape[2], 1)) + 16
            total = p.sum(2) + (seen * np.exp(values["sink"][:, None] - level[..., 0]) if self.sink else 0)
            p = p / np.where(total > 0, total, 1)[..., None]
            used = p * self.kept(x, b, values)
            o[image, :, rows] = used @ v
            error = error + unit * (12 + 4 * np.where(np.isfinite(x), np.abs(x - level) + np.abs(x), 0))
            bound = used * (error + (p * error).sum(2, keepdims=True) + unit * many)
            largest = np.maximum(largest, np.abs(used).max(initial=0))
            largest_error = np.maximum(largest_error, bound.max(initial=0))
            o_error[image, :, rows] = ((used * error) @ np.abs(v) + (p * error).sum(2)[..., None] * np.abs(used @ v)
                                       + (unit * many + half + 4 * cut) * (used @ np.abs(v)) + least * np.abs(v).sum(1, keepdims=True))
            if eighth:  # errors of random signs
                o_error[image, :, rows] += eighth * np.minimum(used @ np.abs(v), 6 * np.sqrt(used ** 2 @ v ** 2))
            if self.sink:
                o_error[image, :, rows] += 16 * unit * np.abs(used @ v) * (1 + np.abs(values["sink"][:, None] - level[..., 0])[..., None])
            with np.errstate(divide="ignore"):
                lse[image, :, rows] = np.where(seen, np.log(total) + level[..., 0], -np.inf)
            most = np.where(seen, np.abs(top), 0)
            tops[image, :, rows], sums[image, :, rows] = np.where(seen, top, -np.inf), total
            top_error[image, :, rows] = np.where(seen, error.max(2, initial=0), 0) + unit * most
            sum_error[image, :, rows] = total * ((p * error).sum(2) + 2 * top_error[image, :, rows] + unit * (many + 4 * most))
            lse_error[image, :, rows] = (p * error).sum(2) + unit * (many + 4 * most + 4 * np.abs(np.where(seen, np.log(total + ~seen), 0)))
        return (tuple(self.together("o", y) for y in (o, o_error)),
                *(tuple(map(self.of_rows_together, pair)) for pair in ((lse, lse_error), (tops, top_error), (sums, sum_error))),
                (largest, largest_error))


class Forward(Sdpa):
    """The result and the logarithms of the sums of exponentials."""
    op = "sdpa_fwd"

    def inputs(self):
        return self.common()

    def outputs(self):
        found = {"o": self.place("o", self.shapes["o"], self.o_dtype)}
        if self.wanted:
            found["lse"] = self.place("lse", self.shapes["lse"], self.compute)
        if self.stats:
            found.update({name: self.place(name, self.shapes["lse"], self.compute) for name in ("score_max", "score_sum_exp")})
        found.update({name: self.place(name, (1,), "float32") for name in AMAX if name in self.quantized})
        return found

    def problem(self):
        from dnnkern.attention._calls import make_forward
        t = self.tensors()
        out = tuple(t[name] for name in self.outputs() if name not in AMAX)
        more = *RAGGED, *PAGES, "block_mask", "dropout_mask", *("ragged_lse",) * 2 * self.stats
        given = tuple(t.get(name) for name in ("q", "k", "v", *OPTIONAL, *SCALES, "seed", "offset", *more))
        return self.with_more(make_forward(given, out if len(out) > 1 else out[0], self.out_dtype, *self.options, with_lse=self.wanted,
                                           with_stats=self.stats, aliases=frozenset()))

    def call(self, arrays, out=None, **tail):
        from dnnkern import sdpa_fwd
        if self.modifier or self.quantized:
            return self.call_with_more(arrays, out, tail)
        scales = {name: arrays[name] for name in self.scales}
        return sdpa_fwd(arrays["q"], arrays["k"], arrays["v"], return_lse=self.wanted, return_stats=self.stats,
                        out_dtype=self.out_dtype, **scales, **self.keywords(arrays, out, tail))

    def values(self, mode):
        return in_mode(self.common_values(), mode)

    def reference(self, values, tensor_cores=False):
        pairs = dict(zip(("o", "lse", "score_max", "score_sum_exp", "amax_s"), self.forward(values, tensor_cores)))
        found, bound = ({name: pair[k] for name, pair in pairs.items()} for k in range(2))
        factor = values.get("scale_s", 1) * values.get("descale_s", 1)
        found["o"], bound["o"] = found["o"] * factor, bound["o"] * factor
        found["amax_o"], bound["amax_o"] = (np.abs(y["o"]).max(initial=0, keepdims=True).reshape(1) for y in (found, bound))
        bound["o"] = values.get("scale_o", 1) * (bound["o"] + 4 * self.unit * np.abs(found["o"]))
        found["o"] = values.get("scale_o", 1) * found["o"]
        bound["o"] = bound["o"] + rounding_error(found["o"], self.o_dtype)
        return ({name: y[name] for name in self.outputs()} for y in (found, bound))

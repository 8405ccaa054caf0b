"""What the cases of dropout and its gradient share; Philox written from its definition, with Python's integers."""
import functools
import math
from dataclasses import dataclass, field

import numpy as np

from . import ROUNDOFF, Case, coherent, lay, rounded, rounding_error

SHORT = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}


@functools.cache
def philox(seed, subsequence, offset):
    """Four words."""
    mask = 0xFFFFFFFF
    c, k = [offset & mask, offset >> 32, subsequence & mask, subsequence >> 32], [seed & mask, seed >> 32]
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [q >> 32 ^ c[1] ^ k[0], q & mask, p >> 32 ^ c[3] ^ k[1], p & mask]
        k = [k[0] + 0x9E3779B9 & mask, k[1] + 0xBB67AE85 & mask]
    return tuple(c)


def keep_bits(count, p, seed, offset):
    """Whether each of `count` elements is kept."""
    words = np.array([philox(seed & 2 ** 64 - 1, g, offset & 2 ** 64 - 1) for g in range(-(-count // 8))], np.uint32)
    halves = np.ascontiguousarray(words.reshape(-1, 4)).view("<u2").reshape(-1)[:count]
    return halves >= min(math.floor(p * 2 ** 16 + 0.5), 2 ** 16 - 1)


@dataclass(frozen=True)
class Dropout(Case):
    """One call; layouts are keywords of `lay` by operand; `read` are which of seed and offset are in memory."""
    id: str
    shape: tuple
    dtype: str = "float32"
    p: float = 0.5
    seed: int = 20
    offset: int = 0
    same: bool = False
    layout: dict = field(default_factory=dict, hash=False)
    read: tuple = ()

    @property
    def exact(self):
        """Whether 1 / (1 - p) is a small integer."""
        return self.p in (0, 0.5, 0.75)

    @property
    def trivial(self):
        return self.p == 0 or self.p > 0.75

    def place(self, name):
        return lay(self.shape, self.dtype, **self.layout.get("x" if self.same else name, {}))

    @property
    def bits(self):
        return lay((-(-math.prod(self.shape) // 8),), "uint8", **self.layout.get("mask", {}))

    @property
    def work(self):
        return 12 * math.prod(self.shape)

    @property
    def keep(self):
        return keep_bits(math.prod(self.shape), self.p, self.seed, self.offset).reshape(self.shape)

    def tensors(self):
        """Descriptors of the operands, and of the results."""
        from dnnkern.host.tensor import Tensor
        return [[Tensor(p.shape, p.strides, p.dtype, p.alignment) for p in some.values()] for some in (self.inputs(), self.outputs())]

    def numbers(self, mode, place):
        """Values of the array that is dropped from."""
        rng = np.random.default_rng(list(self.id.encode()))
        x = rng.integers(1, 9, self.shape) if mode == "exact" else rounded(rng.standard_normal(self.shape) + 3, self.dtype)
        return coherent(np.asarray(x, np.float64), place)

    def scaled(self, x):
        """The result, and the bound of its error: 1 / (1 - p) is rounded, then a product."""
        y = np.where(self.keep, x / (1 - self.p), 0.0)
        unit = ROUNDOFF["float64" if self.dtype == "float64" else "float32"]
        return y, 0 * y if self.exact and np.array_equal(x, np.rint(x)) else 2 * unit * np.abs(y) + rounding_error(y, self.dtype)


class Forward(Dropout):
    """``y, mask = dropout(x)``."""
    op = "dropout_fwd"

    def inputs(self):
        return {"x": self.place("x"), **{name: lay((1,), "int64") for name in self.read}}

    def outputs(self):
        return {"y": self.place("y"), "mask": self.bits}

    def in_place(self):
        return {"y": "x"} if self.same else {}

    def problem(self):
        from dnnkern.dropout._problem import make_forward
        from dnnkern.host.tensor import Tensor
        (x, *_), outputs = self.tensors()
        arrays = (Tensor.packed((1,), "int64") if name in self.read else None for name in ("seed", "offset"))
        return make_forward((x, *arrays), outputs, frozenset({"x"} if self.same else ()))

    def call(self, arrays, out=None, **tail):
        from dnnkern import dropout_fwd
        return dropout_fwd(arrays["x"], self.p, arrays.get("seed", self.seed), offset=arrays.get("offset", self.offset), out=out, **tail)

    def values(self, mode):
        return {"x": self.numbers(mode, self.place("x")), **{name: np.array([getattr(self, name)], float) for name in self.read}}

    def reference(self, values, tensor_cores=False):
        y, error = self.scaled(values["x"])
        mask = np.packbits(self.keep.reshape(-1), bitorder="little").astype(np.float64)
        return {"y": y, "mask": mask}, {"y": error, "mask": np.zeros(mask.shape)}


class Backward(Dropout):
    """``dx = dropout_bwd(dy, mask)``."""
    op = "dropout_bwd"

    def inputs(self):
        return {"dy": self.place("dy"), "mask": self.bits}

    def place(self, name):
        return super().place({"dy": "x", "dx": "y"}[name])

    def outputs(self):
        return {"dx": self.place("dx")}

    def in_place(self):
        return {"dx": "dy"} if self.same else {}

    def problem(self):
        from dnnkern.dropout._problem import make_backward
        inputs, (dx,) = self.tensors()
        return make_backward(inputs, dx, frozenset({"dy"} if self.same else ()))

    def call(self, arrays, out=None, **tail):
        from dnnkern import dropout_bwd
        return dropout_bwd(arrays["dy"], arrays["mask"], self.p, out=out[0] if isinstance(out, tuple) else out, **tail)

    def values(self, mode):
        """The bits behind the last element are set: nobody reads them."""
        mask = np.packbits(self.keep.reshape(-1), bitorder="little")
        if mask.size and math.prod(self.shape) % 8:
            mask[-1] |= 0xFF << math.prod(self.shape) % 8 & 0xFF
        return {"dy": self.numbers(mode, self.place("dy")), "mask": mask.astype(np.float64)}

    def reference(self, values, tensor_cores=False):
        dx, error = self.scaled(values["dy"])
        return {"dx": dx}, {"dx": error}

    def gradient(self, values):
        """Of the sum of dy * y by each element of x: y is linear in x, so that a difference of any width is the gradient."""
        if math.prod(self.shape) > 40 or not math.prod(self.shape):
            return []
        dy, step = values["dy"], 1.0
        x = np.random.default_rng(1).standard_normal(self.shape)
        numeric = np.empty(self.shape)
        for at in np.ndindex(*self.shape):
            moved = [np.array(x) for _ in range(2)]
            moved[0][at] += step
            moved[1][at] -= step
            numeric[at] = np.sum(dy * (self.scaled(moved[0])[0] - self.scaled(moved[1])[0])) / (2 * step)
        return [(self.scaled(dy)[0], numeric, 1e-9 * (1 + np.abs(numeric)))]


def table(kind):
    """The cases of a direction."""
    def case(name, shape, dtype="float32", **more):
        found.append(kind(f"{name}-{SHORT[dtype]}", shape, dtype, **more))

    found = []
    for dtype in SHORT:
        case("vector-211", (211,), dtype, p=0.25)
        case("matrix-9x64", (9, 64), dtype)
        case("in-place-700", (700,), dtype, p=0.1, same=True)
        case("misaligned-5x45", (5, 45), dtype, layout={"x": {"misaligned": 1}, "y": {"misaligned": 3}, "mask": {"misaligned": 1}})
        case("rows-apart-4x96", (4, 96), dtype, p=0.75, layout={"x": {"gap": 16}, "y": {"gap": 3}})
    for n in (1, 7, 8, 9, 15, 16, 17, 31, 32, 33):
        case(f"edge-{n}", (n,), ("bfloat16", "float32")[n % 2], seed=n)
    case("empty", (0,))
    case("empty-4x0", (4, 0))
    case("scalar", (), seed=5)
    case("nothing-dropped-300", (300,), p=0.0)
    case("nearly-all-dropped-600", (600,), p=0.99)
    case("large-seed-100", (100,), seed=2 ** 63 + 12345, offset=2 ** 40 + 7)
    case("negative-seed-100", (100,), "float16", seed=-3, offset=-1)
    if kind.op == "dropout_fwd":
        case("seed-read-300", (300,), seed=-9, read=("seed",))
        case("offset-read-5x64", (5, 64), "bfloat16", offset=2 ** 40 + 7, read=("offset",))
        case("both-read-40", (40,), "float64", offset=5, read=("seed", "offset"))
    case("odd-rows-apart-6x19", (6, 19), layout={"x": {"gap": 2}, "y": {"gap": 1}})
    case("transposed-12x20", (12, 20), layout={"x": {"order": (1, 0)}})
    case("both-transposed-12x16", (12, 16), "bfloat16", layout={"x": {"order": (1, 0)}, "y": {"order": (1, 0)}})
    case("backwards-6x18", (6, 18), "float16", layout={"x": {"flip": (0, 1)}, "y": {"flip": (0,)}})
    case("broadcast-6x20", (6, 20), layout={"x": {"expand": (0,)}})
    case("steps-5x12", (5, 12), "float64", layout={"x": {"step": 2}, "y": {"step": 3}})
    case("rank-8", (2, 1, 3, 2, 1, 2, 2, 3), "float16", layout={"y": {"order": (0, 3, 2, 1, 4, 5, 6, 7)}})
    return found


def large(kind):
    """GPU: shapes with many blocks."""
    return [kind(f"{name}-{SHORT[dtype]}", shape, dtype, p, layout=layout) for dtype in ("bfloat16", "float32")
            for name, shape, p, layout in (("100003", (100003,), 0.1, {}), ("129x1024", (129, 1024), 0.5, {"x": {"gap": 8}}))]


def beyond(kind):
    """GPU: more than 2**31 elements."""
    return [kind("2**31-bf16", (2 ** 31 + 4099,), "bfloat16")]


def check_beyond_int32(case, algo, allow):
    """The last elements have the bits that belong to their numbers, and every element is what its bit says."""
    import torch
    n, step = case.shape[0], 1 << 27
    x = torch.full(case.shape, 3.0, dtype=torch.bfloat16, device="cuda")
    y, mask = torch.empty_like(x), torch.empty(case.bits.shape, dtype=torch.uint8, device="cuda")
    if case.op == "dropout_fwd":
        case.call({"x": x}, (y, mask), algo=algo, allow=allow)
        last = 64 + n % 8
        words = np.array([philox(case.seed, g, case.offset) for g in range((n - last) // 8, -(-n // 8))], np.uint32)
        want = (np.ascontiguousarray(words).view("<u2").reshape(-1)[:last] >= 1 << 15).astype(np.uint8)
        assert np.array_equal(np.unpackbits(mask[-(-last // 8):].cpu().numpy(), bitorder="little")[:last], want)
    else:
        mask.random_(0, 256)
        case.call({"dy": x, "mask": mask}, y, algo=algo, allow=allow)
    shifts = torch.arange(8, device="cuda", dtype=torch.uint8)
    for first in range(0, n, step):
        bits = mask[first // 8:-(-min(first + step, n) // 8)]
        want = (bits[:, None] >> shifts & 1).view(-1)[:min(step, n - first)].to(torch.bfloat16) * 6
        assert torch.equal(y[first:first + step], want), f"{case.id}, {algo}: wrong from element {first} on"

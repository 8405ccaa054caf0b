"""Cases of random_fill: numbers that are a function of seed, offset and position."""
import math
from dataclasses import dataclass, field

import numpy as np

from . import Case, lay, rounding_error
from ._dropout import SHORT, philox


@dataclass(frozen=True)
class Random(Case):
    """One call; `layout` are keywords of `lay` for the array; `same` is "" where the result is another array, which lies so too; `read` are
    which of seed and offset are in memory."""
    id: str
    shape: tuple
    dtype: str = "float32"
    distribution: str = "uniform"
    numbers: dict = field(default_factory=dict, hash=False)
    seed: int = 20
    offset: int = 0
    same: str = "x"
    layout: dict = field(default_factory=dict, hash=False)
    read: tuple = ()
    op, exact = "random_fill", False

    @property
    def trivial(self):
        return self.distribution == "bernoulli"

    def inputs(self):
        return {"x": lay(self.shape, self.dtype, **self.layout), **{name: lay((1,), "int64") for name in self.read}}

    def outputs(self):
        return {"y": lay(self.shape, self.dtype, **self.layout)}

    def in_place(self):
        return {"y": self.same} if self.same else {}

    @property
    def work(self):
        return 20 * math.prod(self.shape)

    def problem(self):
        from dnnkern.dropout._random_problem import make_random
        from dnnkern.host.tensor import Tensor
        x, y = (Tensor(p.shape, p.strides, p.dtype, p.alignment) for p in (self.inputs()["x"], self.outputs()["y"]))
        arrays = (Tensor.packed((1,), "int64") if name in self.read else None for name in ("seed", "offset"))
        return make_random((x, *arrays), y, self.distribution, frozenset({self.same} - {""}))

    def call(self, arrays, out=None, **tail):
        from dnnkern import random_fill
        return random_fill(arrays["x"], self.distribution, arrays.get("seed", self.seed), offset=arrays.get("offset", self.offset),
                           out=out[0] if isinstance(out, tuple) else out, **self.numbers, **tail)

    def values(self, mode):
        return {"x": np.full(self.shape, 3.0), **{name: np.array([getattr(self, name)], float) for name in self.read}}

    def reference(self, values, tensor_cores=False):
        """From the definition in float64. A logarithm, its root, a cosine and a multiplication round to float32."""
        count, mask = math.prod(self.shape), 2 ** 64 - 1
        words = [philox(self.seed & mask, g, self.offset & mask) for g in range(-(-count // 4))]
        u = ((np.array(words, np.uint64).reshape(-1, 4) >> np.uint64(8)).astype(float) + 1) / 2 ** 24
        if self.distribution == "normal":
            radius, angle = np.sqrt(-2 * np.log(u[:, ::2])), 2 * np.pi * u[:, 1::2]
            z, mean, std = np.stack([radius * np.cos(angle), radius * np.sin(angle)], -1), self.numbers.get("mean", 0.0), self.numbers.get(
                "std", 1.0)
            y, error = mean + std * z, 2.0 ** -24 * (np.abs(mean) + std * (16 * radius[..., None] + 16 + 0 * z))
        elif self.distribution == "uniform":
            low, high = self.numbers.get("low", 0.0), self.numbers.get("high", 1.0)
            y = low + (high - low) * u
            error = 2.0 ** -22 * (abs(low) + abs(high)) + 0 * y
        else:
            y = (u <= self.numbers.get("p", 0.5)).astype(float)
            error = 0 * y
        y, error = (v.reshape(-1)[:count].reshape(self.shape) for v in (y, error))
        return {"y": y}, {"y": error + rounding_error(y, self.dtype)}


def _cases():
    def case(name, shape, dtype="float32", distribution="uniform", **more):
        found.append(Random(f"{name}-{distribution}-{SHORT[dtype]}", shape, dtype, distribution, **more))

    found = []
    for dtype in SHORT:
        case("vector-211", (211,), dtype, numbers={"low": -2.0, "high": 3.0})
        case("vector-212", (212,), dtype, "normal", numbers={"mean": 1.5, "std": 0.5})
        case("matrix-9x64", (9, 64), dtype, "bernoulli", numbers={"p": 0.25})
        case("misaligned-5x45", (5, 45), dtype, "normal", layout={"misaligned": 1})
        case("rows-apart-4x96", (4, 96), dtype, layout={"gap": 16})
    for n in (0, 1, 3, 4, 5, 7, 8, 9, 17):
        case(f"edge-{n}", (n,), ("bfloat16", "float32")[n % 2], "normal", seed=n)
    case("scalar", (), seed=5)
    case("elsewhere-6x9", (6, 9), same="")
    case("never", (40,), "float16", "bernoulli", numbers={"p": 0.0})
    case("always", (40,), "float64", "bernoulli", numbers={"p": 1.0})
    case("large-seed-100", (100,), distribution="normal", seed=2 ** 63 + 12345, offset=2 ** 40 + 7)
    case("negative-seed-100", (100,), "float16", seed=-3, offset=-1)
    case("seed-read-300", (300,), seed=-9, read=("seed",))
    case("both-read-40", (40,), "float64", "normal", offset=5, read=("seed", "offset"))
    case("odd-rows-apart-6x19", (6, 19), layout={"gap": 1})
    case("transposed-12x20", (12, 20), "bfloat16", "normal", layout={"order": (1, 0)})
    case("backwards-6x18", (6, 18), layout={"flip": (0, 1)})
    case("steps-5x12", (5, 12), "float16", "normal", layout={"step": 2})
    return found


CASES = _cases()

LARGE = [Random(f"{name}-{distribution}-{SHORT[dtype]}", shape, dtype, distribution) for dtype in ("bfloat16", "float32")
         for name, shape, distribution in (("100003", (100003,), "uniform"), ("129x1024", (129, 1024), "normal"))]

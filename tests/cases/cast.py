"""Cases of cast: ``y = dtype(scale * x)``."""
import math
from dataclasses import dataclass, field

import numpy as np

from . import EXACT, LARGEST, RANGE, ROUNDOFF, Case, coherent, lay, rounded, rounding_error, saturated
from .transpose import SHORT

DTYPES = tuple(SHORT)
WHOLE = ("int8", "int32")


@dataclass(frozen=True)
class Cast(Case):
    """One call; layouts are keywords of `lay` for "x" and "y"."""
    id: str
    shape: tuple
    x_dtype: str
    y_dtype: str
    scale: float = 1.0
    layout: dict = field(default_factory=dict, hash=False)
    op = "cast"

    def inputs(self):
        return {"x": lay(self.shape, self.x_dtype, **self.layout.get("x", {}))}

    def outputs(self):
        return {"y": lay(self.shape, self.y_dtype, **self.layout.get("y", {}))}

    @property
    def work(self):
        return 4 * math.prod(self.shape)

    def problem(self):
        from dnnkern.host.tensor import Tensor
        from dnnkern.transform._cast_problem import make_cast_problem
        x, y = (Tensor(p.shape, p.strides, p.dtype, p.alignment) for p in (self.inputs()["x"], self.outputs()["y"]))
        return make_cast_problem((x,), y, self.y_dtype, self.scale != 1, frozenset())

    def call(self, arrays, out=None, **tail):
        from dnnkern import cast
        return cast(arrays["x"], self.y_dtype, scale=self.scale, out=out[0] if isinstance(out, tuple) else out, **tail)

    def values(self, mode):
        """In exact mode integers that y holds, scaled too; else numbers over several magnitudes, some beyond the range of y."""
        rng, place = np.random.default_rng(list(self.id.encode())), self.inputs()["x"]
        if mode == "exact":
            bound = max(2, min(EXACT[self.x_dtype], EXACT[self.y_dtype], 2 ** 20) // max(1, abs(self.scale)))
            x = rng.integers(-bound // 2, bound // 2 + 1, self.shape) * (2 if abs(self.scale) < 1 else 1)
        elif self.x_dtype in WHOLE:
            low, high = RANGE[self.x_dtype]
            x = rng.integers(low, high + 1, self.shape) // 2 ** rng.integers(0, 8 if self.x_dtype == "int8" else 31, self.shape)
        else:
            reach = min(np.log2(LARGEST.get(self.x_dtype, 2.0 ** 14)) - 1, 10)
            x = rng.standard_normal(self.shape) * 2.0 ** rng.uniform(-6, reach, self.shape)
            x = rounded(saturated(x, self.x_dtype), self.x_dtype)
        if self.y_dtype == "float16":  # infinities are tested apart
            x = np.clip(x, -2 ** 14, 2 ** 14)
        return {"x": coherent(np.asarray(x, np.float64), place)}

    def reference(self, values, tensor_cores=False):
        y = self.scale * values["x"]
        wide = "float64" in (self.x_dtype, self.y_dtype) or "int32" in (self.x_dtype, self.y_dtype)
        product = 0.0 if self.scale == 1 else ROUNDOFF["float64" if wide else "float32"]
        error = product * np.abs(y) + rounding_error(y, self.y_dtype)
        return {"y": saturated(y, self.y_dtype)}, {"y": error}


def _cases():
    def case(name, shape, x_dtype, y_dtype, **more):
        found.append(Cast(f"{name}-{SHORT[y_dtype]}-from-{SHORT[x_dtype]}", shape, x_dtype, y_dtype, **more))

    found = []
    for k, x_dtype in enumerate(DTYPES):
        for y_dtype in DTYPES:
            case("vector-101", (101,), x_dtype, y_dtype)
        y_dtype = DTYPES[(k + 3) % len(DTYPES)]
        case("scaled-7x18", (7, 18), x_dtype, y_dtype, scale=0.5)
        case("strided-9x10", (9, 10), x_dtype, y_dtype, layout={"x": {"step": 2, "gap": 1}, "y": {"gap": 3}})
        case("misaligned-5x32", (5, 32), x_dtype, y_dtype, layout={"x": {"misaligned": 1}, "y": {"misaligned": 3}})
        case("rows-apart-6x32", (6, 32), x_dtype, y_dtype, scale=2.0, layout={"x": {"gap": 16}, "y": {"gap": 16}})
    for n in (0, 1, 15, 16, 17, 31, 32, 33):
        case(f"edge-{n}", (n,), "float32", "bfloat16")
    case("scalar", (), "float32", "float16", scale=3.0)
    case("rank-8", (2, 1, 3, 2, 1, 2, 3, 4), "float16", "float32", layout={"y": {"order": (0, 3, 2, 1, 4, 5, 6, 7)}})
    case("odd-rows-5x7", (5, 7), "float32", "float16", layout={"x": {"gap": 1}})
    case("transposed-12x13", (12, 13), "bfloat16", "float32", layout={"x": {"order": (1, 0)}})
    case("both-transposed-12x16", (12, 16), "float32", "bfloat16", layout={"x": {"order": (1, 0)}, "y": {"order": (1, 0)}})
    case("negative-6x8", (6, 8), "float32", "int8", layout={"x": {"flip": (0, 1)}, "y": {"flip": (0,)}})
    case("broadcast-6x32", (6, 32), "float16", "float32", layout={"x": {"expand": (0,)}})
    case("unit-8-misaligned-3x32", (3, 32), "float32", "bfloat16", layout={"x": {"misaligned": 2}, "y": {"misaligned": 4}})
    return found


CASES = _cases()

LARGE = [Cast(f"{name}-{SHORT[y]}-from-{SHORT[x]}", shape, x, y, scale)
         for x, y, scale in (("float32", "bfloat16", 1.0), ("bfloat16", "float32", 1.0), ("float16", "float8_e4m3fn", 0.25),
                             ("float8_e5m2", "float32", 2.0), ("float32", "int8", 10.0), ("float64", "float16", 1.0),
                             ("int32", "bfloat16", 0.5))
         for name, shape in (("1000003", (1000003,)), ("1025x4096", (1025, 4096)), ("64x63x65", (64, 63, 65)))]

"""Cases of reduce: ``y[kept] = mode over axes of x``."""
import math
from dataclasses import dataclass, field

import numpy as np

from . import EXACT, RANGE, ROUNDOFF, Case, coherent, lay, rounded, rounding_error

SHORT = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}
INTEGERS = {"int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8", "uint8": "u8", "bool": "b"}
OF_INTEGERS = ("add", "mul", "min", "max", "amax", "norm1", "mul_no_zeros", "sum_square")
MODES = ("add", "mul", "min", "max", "amax", "avg", "norm1", "norm2", "mul_no_zeros", "sum_square", "logsumexp")
NAMES = {**SHORT, **INTEGERS}
SUMS = {"add": lambda x: x, "avg": lambda x: x, "norm1": np.abs, "sum_square": np.square, "norm2": np.square}
OVER_NOTHING = {"mul": 1.0, "mul_no_zeros": 1.0, "min": np.inf, "max": -np.inf, "logsumexp": -np.inf}


@dataclass(frozen=True)
class Reduce(Case):
    """One call; layouts are keywords of `lay` for "x" and "y"."""
    id: str
    shape: tuple
    axes: object
    mode: str = "add"
    dtype: str = "float32"
    keepdims: bool = False
    layout: dict = field(default_factory=dict, hash=False)
    out_dtype: str | None = None
    op = "reduce"

    @property
    def _axes(self):
        given = range(len(self.shape)) if self.axes is None else (self.axes,) if isinstance(self.axes, int) else self.axes
        return tuple(a % len(self.shape) for a in given)

    @property
    def length(self):
        """Elements of a result."""
        return math.prod(self.shape[a] for a in self._axes)

    @property
    def result_shape(self):
        if self.keepdims:
            return tuple(1 if a in self._axes else n for a, n in enumerate(self.shape))
        return tuple(n for a, n in enumerate(self.shape) if a not in self._axes)

    @property
    def y_dtype(self):
        return self.out_dtype or ("int64" if self.dtype in INTEGERS and self.mode not in ("min", "max") else self.dtype)

    def inputs(self):
        return {"x": lay(self.shape, self.dtype, **self.layout.get("x", {}))}

    def outputs(self):
        return {"y": lay(self.result_shape, self.y_dtype, **self.layout.get("y", {}))}

    @property
    def work(self):
        return math.prod(self.shape) + math.prod(self.result_shape)

    @property
    def exact(self):
        return self.mode not in ("avg", "norm2", "logsumexp") or not self.length

    @property
    def trivial(self):
        return not self.length or self.y_dtype == "bool"

    def _tensors(self):
        from dnnkern.host.tensor import Tensor
        return {name: Tensor(p.shape, p.strides, p.dtype, p.alignment) for name, p in (*self.inputs().items(), *self.outputs().items())}

    def problem(self):
        from dnnkern.reduce._problem import make_problem
        tensors = self._tensors()
        return make_problem((tensors["x"],), tensors["y"], self.mode, self.axes, self.keepdims, self.out_dtype, frozenset())

    def call(self, arrays, out=None, **tail):
        from dnnkern import reduce
        return reduce(arrays["x"], self.mode, axes=self.axes, keepdims=self.keepdims, out_dtype=self.out_dtype,
                      out=out[0] if isinstance(out, tuple) else out, **tail)

    def values(self, mode):
        """Small integers whose results the type holds; or normal numbers, for products such as multiply to about 1."""
        rng, place = np.random.default_rng(list(self.id.encode())), self.inputs()["x"]
        long = max(self.length, 1)
        if self.dtype in INTEGERS:
            return {"x": coherent(self._integers(rng, long), place)}
        if self.mode in ("mul", "mul_no_zeros"):
            if mode == "exact":
                x = rng.choice([-1.0, 1.0], self.shape) * np.where(rng.random(self.shape) < min(0.3, 3 / long), 2.0, 1.0)
            else:
                x = rounded(rng.choice([-1.0, 1.0], self.shape) * np.exp(rng.standard_normal(self.shape) / math.sqrt(long)), self.dtype)
            if self.mode == "mul_no_zeros":
                x = np.where(rng.random(self.shape) < 0.2, 0.0, x)
        elif mode == "exact":
            budget = min(EXACT[self.dtype], 2 ** 24)
            top = 100 if self.mode in ("min", "max", "amax") else max(1, min(4, math.isqrt(budget // long)))
            x = rng.integers(-top, top + 1, self.shape).astype(np.float64)
            if top == 1 and self.mode in SUMS:
                x[rng.random(self.shape) > budget / long / 4] = 0
        else:
            x = rounded(rng.standard_normal(self.shape) + 0.25, self.dtype)
        return {"x": coherent(np.asarray(x, np.float64), place)}

    def _integers(self, rng, long):
        """Of the type's whole range, unless results would not be exact in float64."""
        low, high = RANGE.get(self.dtype, (-2 ** 53, 2 ** 53))
        if self.mode in ("mul", "mul_no_zeros"):
            x = rng.choice([-1.0, 1.0], self.shape) * np.where(rng.random(self.shape) < min(0.3, 8 / long), 3.0, 1.0)
            if self.mode == "mul_no_zeros":
                x = np.where(rng.random(self.shape) < 0.2, 0.0, x)
            return np.clip(x, low, high)
        if self.mode not in ("min", "max"):
            most = 2 ** 52 // long
            most = math.isqrt(most) if self.mode == "sum_square" else most
            if self.out_dtype == "int32":
                most = 2 ** 30 // long
            low, high = max(low, -most), min(high, most)
        x, rare = rng.integers(low, high + 1, self.shape), rng.random(self.shape) < 1 / long
        if self.dtype == "bool" and self.mode in ("min", "max"):  # so that not all results are the same
            x = rare if self.mode == "max" else ~rare
        return np.where(rare & (low < 0), low, x).astype(np.float64)

    def _over(self, function, x):
        return function(x, axis=self._axes, keepdims=self.keepdims)

    def reference(self, values, tensor_cores=False):
        x, n, eps = values["x"], self.length, ROUNDOFF["float64" if self.dtype == "float64" else "float32"]
        if not n:
            y = np.full(self.result_shape, OVER_NOTHING.get(self.mode, 0.0))
            if self.dtype in INTEGERS:
                y = np.clip(y, *RANGE[self.dtype])
            return {"y": y}, {"y": np.zeros(y.shape)}
        long, error = min(n, 8 * n ** 0.5), 0.0
        if self.mode in SUMS:
            y = self._over(np.sum, SUMS[self.mode](x))
            error = eps * (long + 2) * self._over(np.sum, np.abs(SUMS[self.mode](x)))
            if self.mode == "avg":
                y, error = y / n, error / n
            elif self.mode == "norm2":
                y, error = np.sqrt(y), eps * (long + 8) * np.sqrt(y)
        elif self.mode in ("mul", "mul_no_zeros"):
            y = self._over(np.prod, np.where(x == 0, 1.0, x) if self.mode == "mul_no_zeros" else x)
            error = eps * (n + 2) * np.abs(y)
        elif self.mode == "logsumexp":
            top = x.max(axis=self._axes, keepdims=True)
            y = np.log(np.sum(np.exp(x - top), axis=self._axes, keepdims=True)) + top
            y = y.reshape(self.result_shape)
            error = eps * (64 + long + 4 * np.abs(y))
        else:
            y = self._over({"min": np.min, "max": np.max, "amax": np.max}[self.mode], np.abs(x) if self.mode == "amax" else x)
            return {"y": y}, {"y": np.zeros(np.shape(y))}
        if self.dtype in INTEGERS:
            return {"y": np.asarray(y)}, {"y": np.zeros(np.shape(y))}
        return {"y": np.asarray(y)}, {"y": np.asarray(error + rounding_error(y, self.y_dtype))}


def _cases():
    def case(name, shape, axes, mode="add", dtype="float32", **more):
        text = "all" if axes is None else "".join(map(str, (axes,) if isinstance(axes, int) else axes)) or "none"
        found.append(Reduce(f"{name}-{'x'.join(map(str, shape)) or 'scalar'}-{text}-{mode}-{NAMES[dtype]}", shape, axes, mode, dtype,
                            **more))

    found = []
    for k, mode in enumerate(MODES):
        for j, dtype in enumerate(SHORT):
            case("rows", (5, 96), 1, mode, dtype)
            case("columns", (24, 40), 0, mode, dtype)
            if (k + j) % 2:
                case("long", (4200,), None, mode, dtype)
            else:
                case("long-columns", (4100, 3), 0, mode, dtype)
        dtype = list(SHORT)[k % 4]
        case("channels", (3, 4, 5, 7), (0, 2, 3), mode, dtype)
        case("odd", (4, 37), 1, mode, dtype, layout={"x": {"misaligned": 1}, "y": {"misaligned": 3}})
        case("nothing", (3, 0), 1, mode, dtype)
    for dtype in SHORT:
        case("ragged", (3, 531), 1, "add", dtype, layout={"x": {"misaligned": 3}})
        case("ragged-apart", (2, 5, 77), 2, "max", dtype, layout={"x": {"gap": 5}}, keepdims=True)
        case("ragged-long", (2, 4099), 1, "add", dtype)
        case("middle", (3, 10, 16), 1, "norm2", dtype)
        case("outer-and-inner", (4, 6, 16), (0, 2), "sum_square", dtype, keepdims=True)
        case("planes", (2, 3, 7, 7), (2, 3), "avg", dtype)
        case("strided", (6, 40), 1, "add", dtype, layout={"x": {"step": 2}})
        case("transposed", (40, 9), 1, "add", dtype, layout={"x": {"order": (1, 0)}})
        case("negative", (6, 40), 1, "add", dtype, layout={"x": {"flip": (0, 1)}, "y": {"flip": (0,)}})
        case("misaligned-columns", (30, 20), 0, "min", dtype, layout={"x": {"misaligned": 1}})
        case("to-columns-apart", (9, 6, 8), 0, "amax", dtype, layout={"y": {"order": (1, 0), "gap": 2}})
    for n in (0, 1, 2, 3, 7, 8, 31, 33, 64, 127, 257, 1030):
        case("edge", (3, n), 1, "add", "float32" if n % 2 else "bfloat16")
        case("edge", (n, 3), 0, "mul" if n < 100 else "add", "float16" if n % 2 else "float32")
        case("edge-all", (n,), None, "logsumexp" if n % 2 else "add", "bfloat16" if n % 2 else "float64")
    case("scalar", (), None, "norm2", "float64")
    case("none", (4, 30), (), "sum_square", "float16")
    case("ones", (1, 1, 1), (0, 2), "add", "bfloat16", keepdims=True)
    case("no-results", (0, 5), 1, "add")
    case("no-results", (4, 0, 5), (0, 2), "max", "float16")
    case("negative-axes", (3, 4, 50), (-1, 0), "norm1", "float16")
    case("broadcast", (6, 32), 0, "add", "float16", layout={"x": {"expand": (0,)}})
    case("broadcast", (6, 32), 1, "norm1", "float32", layout={"x": {"expand": (1,)}})
    case("broadcast-results", (6, 32), 1, "add", "bfloat16", layout={"x": {"expand": (0,)}})
    case("rank-8", (2, 1, 3, 2, 1, 2, 3, 4), (0, 3, 5, 7), "add", "float32", keepdims=True)
    case("rank-8", (2, 2, 3, 2, 1, 2, 3, 4), (1, 2, 6), "max", "bfloat16")
    case("batches-of-columns", (3, 20, 24), 1, "logsumexp", "float32", layout={"x": {"gap": 8}})
    case("wide-columns", (3, 1100), 0, "add", "float32")
    case("wide-columns", (5, 2100), 0, "max", "float16")
    case("long-columns", (4500, 24), 0, "add", "bfloat16")
    case("long-columns-batches", (2, 4100, 4), 1, "norm2", "float16", keepdims=True)
    case("long-planes", (3, 2, 40, 36), (0, 2, 3), "add", "bfloat16")
    case("long-planes-odd", (17, 2, 17, 15), (0, 2, 3), "avg", "float16", layout={"y": {"step": 2}})
    case("row-of-a-block", (2, 2050), 1, "logsumexp", "float32")
    case("row-of-a-block", (2, 4090), 1, "mul", "float64")
    for k, mode in enumerate(OF_INTEGERS):
        for j, dtype in enumerate(INTEGERS):
            name, shape, axis = (("rows", (5, 96), 1), ("columns", (24, 48), 0), ("odd-rows", (4, 37), 1))[(k + j) % 3]
            case(name, shape, axis, mode, dtype)
    for j, dtype in enumerate(INTEGERS):
        mode, other = OF_INTEGERS[j], OF_INTEGERS[7 - j]
        case("long", (4200,), None, mode, dtype)
        case("long-columns", (4100, 3), 0, other, dtype)
        case("channels", (3, 4, 5, 7), (0, 2, 3), other, dtype, keepdims=True)
        case("misaligned", (3, 531), 1, mode, dtype, layout={"x": {"misaligned": 3}, "y": {"misaligned": 1}})
        case("strided", (6, 40), 1, other, dtype, layout={"x": {"step": 2, "flip": (0,)}, "y": {"step": 2}})
        case("scalar", (), None, mode, dtype)
        if dtype != "int64":
            case("nothing", (3, 0), 1, ("min", "max", "add")[j % 3], dtype)
            case("to-int32", (5, 70), j % 2, ("add", "norm1", "amax")[j % 3], dtype, out_dtype="int32")
    for k, dtype in enumerate(("float16", "bfloat16")):
        for j, mode in enumerate(MODES):
            name, shape, axis = (("rows", (5, 96), 1), ("columns", (24, 40), 0), ("long", (4200,), None))[(k + j) % 3]
            case(f"{name}-to-float32", shape, axis, mode, dtype, out_dtype="float32")
    return found


CASES = _cases()
LARGE = [Reduce(f"{name}-{mode}-{SHORT[dtype]}", shape, axes, mode, dtype)
         for dtype in SHORT for name, shape, axes, mode in (
             ("rows-4097x4099", (4097, 4099), 1, "add"), ("rows-100003x70", (100003, 70), 1, "logsumexp"),
             ("columns-5003x4096", (5003, 4096), 0, "norm2"), ("columns-100003x24", (100003, 24), 0, "add"),
             ("all-7000003", (7000003,), None, "amax"), ("channels-32x64x56x57", (32, 64, 56, 57), (0, 2, 3), "avg"))]
BEYOND_INT32 = [Reduce("2**31-all-add-bf16", (2 ** 31 + 3,), None, "add", "bfloat16"),
                Reduce("2**31-rows-add-bf16", (4097, 2 ** 19 + 1), 1, "add", "bfloat16"),
                Reduce("2**31-columns-add-bf16", (2 ** 19 + 1, 4097), 0, "add", "bfloat16")]
"""x has more than 2**31 elements."""


def check_beyond_int32(case, algo, allow):
    """Elements of which each result has at most 256 that are not 0, so that it is exact, against PyTorch's sums in float64."""
    import torch
    if algo == "naive" and case.length > 10 ** 8:
        return
    generator = torch.Generator("cuda").manual_seed(7)
    x = torch.zeros(case.shape, dtype=torch.bfloat16, device="cuda")
    flat, count = x.view(-1), 100 * math.prod(case.result_shape)
    at = torch.randint(0, flat.numel(), (count,), generator=generator, device="cuda")
    flat[at] = 1
    flat[-1] = 1
    y = torch.full(case.result_shape, 99, dtype=torch.bfloat16, device="cuda")
    case.call({"x": x}, y, algo=algo, allow=allow)
    dims = case._axes
    where = torch.nonzero(x)
    want = torch.zeros(case.result_shape, dtype=torch.float64, device="cuda")
    kept = [a for a in range(x.ndim) if a not in dims]
    if kept:
        want.index_put_(tuple(where[:, a] for a in kept), torch.ones(len(where), dtype=torch.float64, device="cuda"), accumulate=True)
    else:
        want += len(where)
    assert torch.equal(y.double(), want), f"{case.id}, {algo}: wrong"

"""Cases of grouped_matmul: ``y[rows] = activation(alpha * (scale_a * a)[rows] @ (scale_b * b)[g] + bias[g])`` for each group's rows."""
from dataclasses import dataclass, field

import numpy as np
from activations import ACTIVATIONS

from . import EXACT, LARGEST, RANGE, ROUNDOFF, Case, coherent, lay, rounded, rounding_error, saturated
from .matmul import BLOCK, DTYPES, SHORT


@dataclass(frozen=True)
class GroupedMatmul(Case):
    """One call; `sizes` are the rows of the groups. Layouts are keywords of `lay` by operand."""
    id: str
    sizes: tuple
    n: int
    k: int
    dtype: str = "float32"
    out_dtype: str | None = None
    tb: bool = False
    bias: bool = False
    bias_dtype: str | None = None
    alpha: float = 1.0
    activation: str | None = None
    math: str | None = None
    layout: dict = field(default_factory=dict, hash=False)
    dtype_b: str | None = None
    scale_a: str | None = None   # "tensor" (1,), "row" (M, 1), "block" (M, K/128)
    scale_b: str | None = None   # "tensor" (1,), "column" (G, 1, N), "block" (G, K/128, N/128)
    op = "grouped_matmul"

    @property
    def m(self):
        return sum(self.sizes)

    @property
    def y_dtype(self):
        return self.out_dtype or ("int32" if self.dtype == "int8" else "bfloat16" if self.dtype in LARGEST else self.dtype)

    def inputs(self):
        g, m, n, k = len(self.sizes), self.m, self.n, self.k
        blocks = -(-k // BLOCK)
        scale_a = {None: None, "tensor": (1,), "row": (m, 1), "block": (m, blocks)}[self.scale_a]
        scale_b = {None: None, "tensor": (1,), "column": (g, 1, n), "block": (g, blocks, -(-n // BLOCK))}[self.scale_b]
        addend = "float32" if self.y_dtype in ("int8", "int32") or self.y_dtype in LARGEST else self.y_dtype
        shapes = {"a": ((m, k), self.dtype), "b": ((g, n, k) if self.tb else (g, k, n), self.dtype_b or self.dtype),
                  "group_offsets": ((g + 1,), "int32"), "bias": ((g, n) if self.bias else None, self.bias_dtype or addend),
                  "scale_a": (scale_a, "float32"), "scale_b": (scale_b, "float32")}
        return {name: shape and lay(shape, dtype, **self.layout.get(name, {})) for name, (shape, dtype) in shapes.items()}

    def outputs(self):
        return {"y": lay((self.m, self.n), self.y_dtype, **self.layout.get("y", {}))}

    @property
    def work(self):
        return self.m * self.n * (self.k + 8)

    # ---- the library's side

    def problem(self):
        from dnnkern.host.tensor import Tensor
        from dnnkern.matmul._grouped_problem import make_problem
        tensors = [p and Tensor(p.shape, p.strides, p.dtype, p.alignment) for p in (*self.inputs().values(), self.outputs()["y"])]
        return make_problem(tuple(tensors[:-1]), tensors[-1], self.tb, self.activation, self.math, self.out_dtype, self.alpha != 1,
                            aliases=frozenset())

    def call(self, arrays, out=None, **tail):
        from dnnkern import grouped_matmul
        out = out[0] if isinstance(out, tuple) else out
        return grouped_matmul(arrays["a"], arrays["b"], arrays["group_offsets"], bias=arrays["bias"], alpha=self.alpha, transpose_b=self.tb,
                              activation=self.activation, math=self.math, out_dtype=self.out_dtype, scale_a=arrays["scale_a"],
                              scale_b=arrays["scale_b"], out=out, **tail)

    # ---- data

    @property
    def exact(self):
        return ACTIVATIONS[self.activation or "identity"][2]

    @property
    def trivial(self):
        return self.k == 0 and not self.bias

    def values(self, mode):
        rng = np.random.default_rng(list(self.id.encode()))
        make = self._exact_values if mode == "exact" else self._float_values
        values = {name: p and make(rng, name, p) for name, p in self.inputs().items() if name != "group_offsets"}
        values["group_offsets"] = np.concatenate(([0.0], np.cumsum(self.sizes)))
        return {name: p and coherent(values[name], p) for name, p in self.inputs().items()}

    def _exact_values(self, rng, name, place):
        """Integers so small that all sums are exact in accumulator and output; half of what the output can hold is for the products.

        Where K is longer than that allows, the first matrices' elements are zero but for as many of every row as it does.
        """
        budget = min(EXACT[self.y_dtype], 2 ** 24) / (2 ** ((self.scale_a is not None) + (self.scale_b is not None)))
        if name.startswith("scale"):
            return rng.integers(1, 3, place.shape).astype(np.float64)
        if name == "bias":
            return rng.integers(-2, 3, place.shape).astype(np.float64)
        top = max([t for t in (1, 2, 3, 4) if t * t * self.k * max(abs(self.alpha), 1) <= budget / 2], default=1)
        x = rng.integers(-top, top + 1, place.shape).astype(np.float64)
        most = int(budget / 2 / max(abs(self.alpha), 1))
        if name == "a" and self.k > 16:
            x = np.where(rng.random(x.shape) < 0.25, -np.abs(x), np.abs(x))  # leaning to one sign keeps sums away from zero
        if name == "a" and top == 1 and most < self.k:
            x[np.argsort(np.argsort(rng.random(x.shape), axis=1), axis=1) >= most] = 0
        return x

    def _float_values(self, rng, name, place):
        """Normal numbers with an offset, scaled so that results are of order 1 to 10 and of both signs."""
        if place.dtype in RANGE:
            bound = {"float16": 15, "int8": 6}.get(self.y_dtype, 127)
            return rng.integers(-bound, bound + 1, place.shape).astype(np.float64)
        if name.startswith("scale"):
            return rounded(rng.uniform(0.5, 2, place.shape), place.dtype)
        x = rng.standard_normal(place.shape)
        if name == "a":
            x = (x + 0.5) / max(self.k, 1) ** 0.5
        elif name == "b":
            k = np.arange(self.k)
            offset = np.where(k % 3 == 1, -0.5, 0.5)
            x = x + (offset if self.tb else offset[:, None])
        return rounded(x, place.dtype)

    # ---- the definition

    def reference(self, values, tensor_cores=False):
        a, b = values["a"], np.swapaxes(values["b"], 1, 2) if self.tb else values["b"]
        scale_a, scale_b, bias = values["scale_a"], values["scale_b"], values["bias"]
        if self.scale_a == "block":
            scale_a = np.repeat(scale_a, BLOCK, 1)[:, :self.k]
        if self.scale_b == "block":
            scale_b = np.repeat(np.repeat(scale_b, BLOCK, 1)[:, :self.k], BLOCK, 2)[:, :, :self.n]
        a, b = a if scale_a is None else a * scale_a, b if scale_b is None else b * scale_b
        product, magnitude, addend = (np.zeros((self.m, self.n)) for _ in range(3))
        first = 0
        for g, size in enumerate(self.sizes):
            rows = slice(first, first + size)
            product[rows], magnitude[rows] = a[rows] @ b[g], np.abs(a[rows]) @ np.abs(b[g])
            if bias is not None:
                addend[rows] = bias[g]
            first += size
        u = ROUNDOFF["float64" if self.dtype == "float64" else "float32"]
        error = 0.0 if self.dtype == "int8" else u * min(self.k, 8 * self.k ** 0.5)
        if self.math == "tf32" and self.dtype == "float32":
            error += 2 * ROUNDOFF["tf32"]
        if tensor_cores and self.dtype.startswith("float8"):
            error += 4 * 2.0**-13  # four sums of 32 products to each float32 addition, cut off after 13 bits
        z = self.alpha * product + addend
        bound = abs(self.alpha) * error * magnitude
        if self.dtype != "int8" or self.alpha != 1 or bias is not None or self.y_dtype != "int32":
            bound = bound + 4 * u * (np.abs(self.alpha * product) + np.abs(addend))
        function, slope, is_exact = ACTIVATIONS[self.activation or "identity"]
        y = function(z)
        bound = slope * bound + (0 if is_exact else 8 * u * (1 + np.abs(z))) + rounding_error(y, self.y_dtype)
        return {"y": saturated(y, self.y_dtype)}, {"y": bound}


def _cases():
    def case(name, sizes, n, k, dtype="float32", **more):
        found.append(GroupedMatmul(f"{name}-{SHORT[dtype]}", sizes, n, k, dtype, **more))

    found = []
    for dtype in DTYPES:
        case("ragged-3-0-17-1-30x19x21", (3, 0, 17, 1, 30), 19, 21, dtype)
        case("ragged-3-0-17-1-30x19x21-nt", (3, 0, 17, 1, 30), 19, 21, dtype, tb=True)
        case("even-16x32x32-nt-bias-relu", (16, 16), 32, 32, dtype, tb=True, bias=True, activation="relu")
        case("misaligned-9-7x16x16", (9, 7), 16, 16, dtype, layout={x: {"misaligned": 1} for x in "aby"})
    e4m3, e5m2 = "float8_e4m3fn", "float8_e5m2"
    # sizes of groups
    case("one-group-33x17x20", (33,), 17, 20)
    case("all-in-the-first-33x17x20", (33, 0, 0), 17, 20)
    case("all-in-the-last-33x17x20", (0, 0, 33), 17, 20, "bfloat16")
    case("all-in-the-middle-20x17x8", (0, 20, 0, 0), 17, 8, "float16")
    case("groups-of-1x18x12", (1,) * 7, 18, 12)
    case("groups-of-0-and-1x18x12", (0, 1, 1, 0, 0, 1), 18, 12, "bfloat16")
    case("40-groups-5x6", tuple(k % 3 for k in range(40)), 5, 6)
    case("70-groups-mostly-empty-5x6", (0,) * 33 + (2,) + (0,) * 30 + (3, 0, 0, 0, 1, 0), 5, 6, "bfloat16")
    case("tile-edges-15-16-17-1x16x16", (15, 16, 17, 1), 16, 16)
    case("tile-edges-64-1-63x8x16-nt", (64, 1, 63), 8, 16, "bfloat16", tb=True)
    case("no-rows", (0, 0), 5, 6)
    case("no-groups", (), 5, 6)
    case("no-columns", (2, 3), 0, 6)
    case("no-k-bias", (2, 3), 5, 0, bias=True)
    case("one-1x1x1", (1,), 1, 1)
    case("long-3-4x5x1030", (3, 4), 5, 1030, "bfloat16")
    # memory
    case("strided-9-14x15x16", (9, 14), 15, 16, layout={"a": {"gap": 5}, "b": {"step": 2}, "y": {"gap": 3}, "bias": {"gap": 2}}, bias=True)
    case("column-major-9-14x15x16", (9, 14), 15, 16, "bfloat16", layout={"a": {"order": (1, 0)}, "b": {"order": (2, 0, 1)},
                                                                         "y": {"order": (1, 0)}, "bias": {"order": (1, 0)}}, bias=True)
    case("negative-strides-9-14x15x16", (9, 14), 15, 16, layout={"a": {"flip": (0,)}, "b": {"flip": (0, 1, 2)}, "y": {"flip": (1,)},
                                                                 "group_offsets": {"flip": (0,), "step": 3}})
    case("expanded-b-5-6x7x8", (5, 6), 7, 8, layout={"b": {"expand": (0,)}})
    # epilogue, types
    case("alpha-bias-gelu-9-14x15x16", (9, 14), 15, 16, "bfloat16", alpha=2.0, bias=True, bias_dtype="float32", activation="gelu")
    case("alpha-0-4-5x6x7", (4, 5), 6, 7, alpha=0.0, bias=True)
    for dtype, out in (("float64", "float32"), ("float32", "bfloat16"), ("bfloat16", "float32"), ("float16", "float32"), ("int8", "int8"),
                       ("int8", "float32"), (e4m3, "float32"), (e4m3, e4m3)):
        case(f"to-{SHORT[out]}-6-3x24x16", (6, 3), 24, 16, dtype, out_dtype=out)
    case("dequantised-6-3x24x16", (6, 3), 24, 16, "int8", out_dtype="float32", alpha=0.5, bias=True, activation="relu")
    case("tf32-16-16x16x24", (16, 16), 16, 24, math="tf32")
    case("e5m2-9-14x15x16", (9, 14), 15, 16, e5m2)
    case("b-e5m2-16-16x16x64-nt", (16, 16), 16, 64, e4m3, dtype_b=e5m2, tb=True)
    # scales
    case("scale-tensor-6-3x24x32-nt", (6, 3), 24, 32, e4m3, tb=True, scale_a="tensor", scale_b="tensor")
    case("scale-row-column-6-3x24x32-nt", (6, 3), 24, 32, e4m3, tb=True, scale_a="row", scale_b="column", bias=True, activation="relu")
    case("scale-column-0-6-3x24x32", (0, 6, 3), 24, 32, e5m2, out_dtype="float32", scale_b="column")
    case("scale-block-2-3x9x260-nt", (2, 3), 9, 260, e4m3, tb=True, scale_a="block", scale_b="block")
    case("scale-block-5-0-3x136x512-nt", (5, 0, 3), 136, 512, e4m3, tb=True, scale_a="block", scale_b="block", bias=True)
    case("scale-block-5-40x16x384-nt", (5, 40), 16, 384, e5m2, tb=True, out_dtype="float32", scale_a="block", scale_b="column",
         layout={"scale_a": {"order": (1, 0)}, "y": {"order": (1, 0)}})
    case("scale-block-1-0-1x130x20", (1, 0, 1), 130, 20, e4m3, scale_a="row", scale_b="block", alpha=2.0)
    return found


CASES = _cases()

LARGE = [GroupedMatmul(f"{name}-{SHORT[dtype]}", sizes, n, k, dtype, **more) for dtype in DTYPES for name, sizes, n, k, more in (
    ("ragged-257-0-1-511-64x511x257", (257, 0, 1, 511, 64), 511, 257, {}),
    ("64-groups-512x512-nt-bias", tuple(37 * g % 101 for g in range(64)), 512, 512, {"tb": True, "bias": True}))]
"""Small cases run on a GPU as well."""

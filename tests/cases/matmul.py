"""Cases of matmul: ``y = program(activation(alpha * (scale_a * a) @ (scale_b * b) + beta * c + bias))``."""
import math
from dataclasses import dataclass, field, replace

import numpy as np
from activations import ACTIVATIONS

from . import EXACT, LARGEST, RANGE, ROUNDOFF, Case, Place, coherent, lay, rounded, rounding_error, saturated
from ._matmul_large import check_beyond_int32  # noqa: F401
from ._programs import OF_PRODUCTS, PROGRAMS

BLOCK = 128  # of scales by block: elements of a along k, of b along both


@dataclass(frozen=True)
class Matmul(Case):
    """One call. `m`, `n` or both are 0 dimensions ("vector" operands) where `vectors` says so; layouts are keywords of `lay` by operand."""
    id: str
    m: int
    n: int
    k: int
    dtype: str = "float32"
    out_dtype: str | None = None
    vectors: str = ""            # of "a" and "b": the operands that are 1-D
    batch_a: tuple = ()
    batch_b: tuple = ()
    ta: bool = False
    tb: bool = False
    bias: object = None          # "column" (N,), "column2d" (1, N), "row" (M, 1), or a shape
    bias_dtype: str | None = None
    c: object = None             # None, "full", "in place", or a shape that broadcasts
    c_dtype: str | None = None
    alpha: float = 1.0
    beta: float = 1.0
    activation: str | None = None
    math: str | None = None
    layout: dict = field(default_factory=dict, hash=False)
    wide_values: bool = False    # int8: values so large that many int8 results saturate
    dtype_b: str | None = None
    scale_a: str | None = None   # "tensor" (1,), "number" (), "row" (M, 1), "block" (M, K/128)
    scale_b: str | None = None   # the same with "column" (1, N), "block" (K/128, N/128)
    program: str | None = None   # one of `PROGRAMS`
    batched: bool = False        # its operands differ from matrix to matrix
    op = "matmul"

    # ---- shapes

    @property
    def y_dtype(self):
        return self.out_dtype or ("int32" if self.dtype == "int8" else "bfloat16" if self.dtype in LARGEST else self.dtype)

    @property
    def batch(self):
        return np.broadcast_shapes(self.batch_a, self.batch_b)

    def inputs(self):
        a = (self.k,) if "a" in self.vectors else self.batch_a + ((self.k, self.m) if self.ta else (self.m, self.k))
        b = (self.k,) if "b" in self.vectors else self.batch_b + ((self.n, self.k) if self.tb else (self.k, self.n))
        bias = {None: None, "column": (self.n,), "column2d": (1, self.n), "row": (self.m, 1)}.get(self.bias, self.bias)
        places = {"a": self._lay("a", a, self.dtype), "b": self._lay("b", b, self.dtype_b or self.dtype),
                  "bias": bias and self._lay("bias", bias, self.bias_dtype or self._float_output())}
        if self.c is None:
            places["c"] = None
        elif self.c == "in place":
            places["c"] = self.outputs()["y"]
        else:
            places["c"] = self._lay("c", self._y_shape() if self.c == "full" else self.c, self.c_dtype or self._float_output())
        blocks = -(-self.k // BLOCK)
        for name, by, shapes in (("scale_a", self.scale_a, {"row": (self.m, 1), "block": (self.m, blocks)}),
                                 ("scale_b", self.scale_b, {"column": (1, self.n), "block": (blocks, -(-self.n // BLOCK))})):
            places[name] = by and self._lay(name, {"tensor": (1,), "number": (), **shapes}[by], "float32")
        if self.fused:
            shape = self._y_shape()
            batch = shape[:-2] if self.batched else ()
            shapes = {"scalar": (1,), "row": (*batch, self.m, 1), "column": (*batch, 1, self.n), "matrix": shape}
            places |= {name: self._lay(name, shape, dtype) for name, (dtype, shape) in self.fused.places(self.y_dtype, shapes.get).items()}
        return places

    @property
    def fused(self):
        return (PROGRAMS | OF_PRODUCTS).get(self.program)

    @property
    def compute(self):
        """Of the program."""
        return "float64" if self.dtype == "float64" else "float32"

    def outputs(self):
        places = {"y": self._lay("y", self._y_shape(), self.y_dtype)}
        for k in range(1, self.fused.sides + 1 if self.fused else 1):
            places[f"y{k}"] = self._lay(f"y{k}", self._y_shape(), self.fused.side_dtype(self.compute))
        return places

    def in_place(self):
        return {"y": "c"} if self.c == "in place" else {}

    def _float_output(self):
        return "float32" if self.y_dtype == "int8" or self.y_dtype in LARGEST else self.y_dtype

    def _y_shape(self):
        return self.batch + (() if "a" in self.vectors else (self.m,)) + (() if "b" in self.vectors else (self.n,))

    def _lay(self, name, shape, dtype) -> Place:
        return lay(shape, dtype, **self.layout.get(name, {}))

    @property
    def work(self):
        return math.prod(self.batch) * self.m * self.n * (self.k + 8)

    # ---- the library's side

    def problem(self):
        from dnnkern.host.tensor import Tensor
        from dnnkern.matmul._problem import make_problem

        def tensor(p):
            return p and Tensor(p.shape, p.strides, p.dtype, p.alignment)

        places = self.inputs()
        reads_c = self.c is not None and self.beta != 0
        tensors = {name: tensor(p) for name, p in places.items() if name != "c" or reads_c}
        y, *sides = map(tensor, self.outputs().values())
        plain = make_problem(tuple(map(tensors.get, ("a", "b", "bias", "c", "scale_a", "scale_b"))), y, self.ta,
                             self.tb, self.activation, self.math, self.out_dtype, self.alpha != 1,
                             self.beta != 1 if reads_c else None, aliases=frozenset({"c"} if reads_c and self.c == "in place" else ()))
        if not self.fused:
            return plain
        program, extras = self.fused.problem_parts(self.compute, self.y_dtype, tensors, sides, y.shape)
        return replace(plain, program=program, extras=extras)

    def call(self, arrays, out=None, **tail):
        from dnnkern import matmul
        if self.fused:
            return self.call_problem(arrays, out, (self.alpha, self.beta, *self.fused.numbers), tail)
        out = out[0] if isinstance(out, tuple) else out
        return matmul(arrays["a"], arrays["b"], bias=arrays["bias"], c=arrays["c"], alpha=self.alpha, beta=self.beta, transpose_a=self.ta,
                      transpose_b=self.tb, activation=self.activation, math=self.math, out_dtype=self.out_dtype,
                      scale_a=arrays.get("scale_a"), scale_b=arrays.get("scale_b"), out=out, **tail)

    # ---- data

    @property
    def exact(self):
        if self.fused and not self.fused.exact:
            return False
        return ACTIVATIONS[self.activation or "identity"][2] and not (self.y_dtype in LARGEST and abs(self.alpha) > 8)

    @property
    def trivial(self):
        return self.k == 0 and self.bias is None and self.c is None

    def values(self, mode):
        rng = np.random.default_rng(list(self.id.encode()))
        values = self._exact_values(rng) if mode == "exact" else self._float_values(rng)
        return {name: None if p is None else coherent(values[name], p) for name, p in self.inputs().items()}

    def _exact_values(self, rng):
        """Integers so small that sums of all their products, in any order and split anyhow, are exact in accumulator and output.

        The budget is what the output can hold; a half goes to the products, an eighth each to c and bias. Where K is longer than the
        products' budget, rows of a have as many nonzeros as it allows, at random places; for long K a leans to one sign, which keeps the
        results from gathering round zero.
        """
        places = self.inputs()
        budget = min(EXACT[self.y_dtype], EXACT["int32" if self.dtype == "int8" else self.dtype if self.dtype == "float64" else "float32"],
                     EXACT.get(self.bias_dtype, 2 ** 60), EXACT.get(self.c_dtype, 2 ** 60), 2 ** 24)
        products = budget // 2 / max(abs(self.alpha), 1) / 2 ** ((self.scale_a is not None) + (self.scale_b is not None))
        limit = 127 if self.dtype == "int8" else 4
        top = 1
        while self.k and (top + 1) ** 2 * self.k <= products and top < limit:
            top += 1
        if self.wide_values:
            top, products = 8, 2 ** 31
        nonzeros = int(products // top ** 2)

        def integers(name, bound):
            return None if places[name] is None else rng.integers(-bound, bound + 1, places[name].shape).astype(np.float64)

        a = integers("a", top)
        if nonzeros < self.k:
            axis = 0 if a.ndim == 1 else -2 if self.ta else -1
            rank = np.argsort(np.argsort(rng.random(a.shape), axis=axis), axis=axis)
            a[rank >= nonzeros] = 0
        scales = {name: places[name] and rng.integers(1, 3, places[name].shape).astype(np.float64) for name in ("scale_a", "scale_b")}
        values = {**scales, "a": a, "b": integers("b", top), "bias": integers("bias", max(1, min(budget // 8, 50))),
                  "c": integers("c", max(1, min(int(budget // 8 / max(abs(self.beta), 1)), 50)))}
        if self.fused:
            values |= self.fused.exact_values(rng, places)
        if self.k > 16:
            values["a"] = np.where(rng.random(a.shape) < 0.25, -np.abs(a), np.abs(a))
        return values

    def _float_values(self, rng):
        """Normal numbers with an offset, scaled so that results are of order 1 to 10 and of both signs."""
        values = self.fused.float_values(rng, self.inputs()) if self.fused else {}
        for name, place in self.inputs().items():
            if name in values:
                continue
            if place is None:
                values[name] = None
            elif name.startswith("scale"):
                values[name] = rounded(rng.uniform(0.5, 2, place.shape), "float32")
            elif place.dtype in RANGE:
                bound = {"float16": 15, "int8": 6}.get(self.y_dtype, 127)
                values[name] = rng.integers(-bound, bound + 1, place.shape).astype(np.float64)
            else:
                x = rng.standard_normal(place.shape)
                if name == "a":
                    x = (x + 0.5) / max(self.k, 1) ** 0.5
                elif name == "b":
                    axis = 0 if x.ndim == 1 else -2 if self.tb else -1
                    offset = np.where(np.arange(x.shape[axis]) % 3 == 1, -0.5, 0.5) if x.ndim > 1 else 0.5
                    x = x + (offset[:, None] if axis == -2 else offset)
                values[name] = rounded(x, place.dtype)
        return values

    # ---- the definition

    def reference(self, values, tensor_cores=False):
        a, b = self._matrices(values)
        product, magnitude = _product(a, b), _product(np.abs(a), np.abs(b))
        accumulator = ROUNDOFF["float64" if self.dtype == "float64" else "float32"]
        # any order of summation, errors of random sign
        error = 0.0 if self.dtype == "int8" else accumulator * min(self.k, 8 * self.k ** 0.5)
        if self.math == "tf32" and self.dtype == "float32":
            error += 2 * ROUNDOFF["tf32"]
        if tensor_cores and self.dtype.startswith("float8"):
            error += 4 * 2.0**-13  # four sums of 32 products to each float32 addition, cut off after 13 bits
        if self.math == "fast":
            error *= 10
        z, bound = self.alpha * product, abs(self.alpha) * error * magnitude
        sizes = np.abs(z)
        for factor, addend in ((self.beta, self._addend("c", values)), (1.0, self._addend("bias", values))):
            if addend is not None and factor:
                z = z + factor * addend
                sizes = sizes + np.abs(factor * addend)
        plain = self.alpha == 1 and values["c"] is None and values["bias"] is None
        if not (plain and self.dtype == "int8" and self.y_dtype == "int32"):
            bound = bound + 4 * accumulator * sizes
        function, slope, is_exact = ACTIVATIONS[self.activation or "identity"]
        y = function(z)
        bound = slope * bound
        if not is_exact:
            bound = bound + 8 * accumulator * (1 + np.abs(z))
        results, shape = {"y": (y, bound)}, self._y_shape()
        if self.fused:
            results["y"], sides = self.fused.reference(y, bound, values, accumulator)
            results |= {f"y{k}": side for k, side in enumerate(sides, 1)}
        dtypes = {name: place.dtype for name, place in self.outputs().items()}
        return ({name: saturated(y, dtypes[name]).reshape(shape) for name, (y, _) in results.items()},
                {name: (bound + rounding_error(y, dtypes[name])).reshape(shape) for name, (y, bound) in results.items()})

    def _matrices(self, values):
        a, b = values["a"], values["b"]
        a = a[None, :] if a.ndim == 1 else np.swapaxes(a, -1, -2) if self.ta else a
        b = b[:, None] if b.ndim == 1 else np.swapaxes(b, -1, -2) if self.tb else b
        scale_a, scale_b = values["scale_a"], values["scale_b"]
        if self.scale_a == "block":
            scale_a = np.repeat(scale_a, BLOCK, 1)[:, :self.k]
        if self.scale_b == "block":
            scale_b = np.repeat(np.repeat(scale_b, BLOCK, 0)[:self.k], BLOCK, 1)[:, :self.n]
        return a if scale_a is None else a * scale_a, b if scale_b is None else b * scale_b

    def _addend(self, name, values):
        """c or bias as an array of shape (..., M, N)."""
        x = values[name]
        if x is None:
            return None
        if name == "c":
            x = np.broadcast_to(x, self._y_shape())
            return x.reshape(self.batch + (self.m, self.n))
        return x


def _product(a, b):
    if a.shape[-2] * b.shape[-1] * b.shape[-2] <= 1 << 24:
        return np.einsum("...mk,...kn->...mn", a, b)
    return np.matmul(a, b)


SHORT = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int8": "i8", "int32": "i32", "float8_e4m3fn": "e4m3",
         "float8_e5m2": "e5m2"}
DTYPES = ("float64", "float32", "float16", "bfloat16", "int8", "float8_e4m3fn")


def _cases():
    def case(name, m, n, k, dtype="float32", **more):
        found.append(Matmul(f"{name}-{SHORT[dtype]}", m, n, k, dtype, **more))

    found = []
    for dtype in DTYPES:
        for ta in (False, True):
            for tb in (False, True):
                case(f"33x31x37-{'nt'[ta]}{'nt'[tb]}", 33, 31, 37, dtype, ta=ta, tb=tb)
        case("32x32x32", 32, 32, 32, dtype)
        case("64x64x16-nt-bias-relu", 64, 64, 16, dtype, tb=True, bias="column", activation="relu")
        case("1x1x1", 1, 1, 1, dtype)
        case("row-1x67x130", 1, 67, 130, dtype)
        case("column-67x1x130-tt", 67, 1, 130, dtype, ta=True, tb=True)
        case("batch3-17x19x23-broadcast-a", 17, 19, 23, dtype, batch_a=(1,), batch_b=(3,))
        case("misaligned-32x32x32", 32, 32, 32, dtype, layout={x: {"misaligned": 1} for x in "aby"})
        case("long-5x7x1030", 5, 7, 1030, dtype)
        case("epilogue-24x40x16", 24, 40, 16, dtype, alpha=2.0, beta=-3.0, c="full", bias="row", bias_dtype=None, activation="relu")
    # edges of the sizes: of warps, of tiles, primes
    for m, n, k in ((0, 5, 7), (5, 0, 7), (5, 7, 0), (1, 33, 31), (31, 1, 32), (31, 33, 1), (2, 3, 5), (63, 5, 64), (65, 63, 9),
                    (64, 65, 33), (127, 9, 8), (128, 8, 12), (129, 7, 16), (9, 127, 13), (8, 129, 4), (13, 128, 31), (7, 11, 257)):
        case(f"edge-{m}x{n}x{k}", m, n, k)
    case("edge-65x66x33-tn", 65, 66, 33, "bfloat16", ta=True)
    case("edge-66x34x65-nt", 66, 34, 65, "float16", tb=True)
    case("empty-k-bias-c", 6, 7, 0, "bfloat16", bias="column", c="full", beta=2.0)
    case("empty-batch", 4, 4, 4, batch_a=(0,), batch_b=(1,))
    for rows in range(1, 9):
        case(f"skinny-{rows}x96x64", rows, 96, 64, "bfloat16" if rows % 2 else "float32", tb=rows > 4)
    for columns in (2, 4, 8):
        case(f"skinny-96x{columns}x64", 96, columns, 64, "float16", ta=columns == 4)
    case("split-3x5x1031", 3, 5, 1031)
    case("split-16x16x2048-bias", 16, 16, 2048, "bfloat16", out_dtype="float32", bias="column")
    case("split-17x9x1500-in-place", 17, 9, 1500, "float16", c="in place", beta=2.0, activation="relu")
    # one dimension
    for dtype in ("float32", "bfloat16"):
        case("vector-matrix-45x70", 1, 45, 70, dtype, vectors="a")
        case("matrix-vector-45x70", 45, 1, 70, dtype, vectors="b")
        case("dot-131", 1, 1, 131, dtype, vectors="ab")
    case("vector-batch-matrix", 1, 9, 11, vectors="a", batch_b=(2, 3))
    case("batch-matrix-vector-c", 8, 1, 11, vectors="b", batch_a=(3,), c="full", beta=0.5)
    case("matrix-t-vector-bias-row", 37, 1, 20, vectors="b", ta=True, bias="row")
    # programs
    for program in PROGRAMS:
        for dtype in ("float64", "float32", "bfloat16", "float16"):
            case(f"program-{program}-48x40x64", 48, 40, 64, dtype, program=program, tb=dtype == "bfloat16")
        case(f"program-{program}-tn-33x31x37", 33, 31, 37, "bfloat16", program=program, ta=True, out_dtype="float32", alpha=2.0)
        if program != "triangle":
            case(f"program-{program}-row-1x67x130", 1, 67, 130, "float16", program=program)
        case(f"program-{program}-long-5x7x1030", 5, 7, 1030, program=program)
        case(f"program-{program}-by-columns-66x34x64", 66, 34, 64, "float16", program=program, layout={"y": {"order": (1, 0)}})
    case("program-chain-batch3-17x19x23", 17, 19, 23, batch_a=(3,), batch_b=(3,), program="chain", batched=True, bias="column")
    case("program-chain-batch2x3-65x24x32", 65, 24, 32, "bfloat16", batch_a=(2, 3), batch_b=(3,), program="chain", batched=True)
    case("program-two-inputs-batch-not-mergeable", 6, 5, 7, "float64", batch_a=(2, 3), batch_b=(2, 3), program="two-inputs", batched=True,
         layout={"a": {"order": (1, 0, 2, 3)}})
    case("program-triangle-batch4-24x16x8", 24, 16, 8, "float16", batch_a=(4,), batch_b=(4,), program="triangle", c="full", beta=2.0)
    case("program-kept-70x136x24", 70, 136, 24, "bfloat16", program="kept", tb=True)
    case("program-kept-batch3-17x24x16", 17, 24, 16, "float16", batch_a=(3,), batch_b=(3,), batched=True, program="kept")
    for program in ("chain", "two-inputs"):
        case(f"program-{program}-deep-130x264x512", 130, 264, 512, "bfloat16", program=program, tb=True)
    case("program-two-inputs-33x31x64", 33, 31, 64, "int8", program="two-inputs", out_dtype="float32", tb=True)
    case("program-chain-33x31x64", 33, 31, 64, "int8", program="chain", out_dtype="float32", tb=True)
    # batches
    case("batch4-16x16x16", 16, 16, 16, "float16", batch_a=(4,), batch_b=(4,))
    case("batch-2x3-broadcast-both", 9, 10, 11, batch_a=(2, 1), batch_b=(1, 3))
    case("batch-rank-differs", 9, 10, 11, "bfloat16", batch_a=(2, 3), batch_b=(3,))
    case("batch-b-matrix", 20, 12, 8, batch_a=(5,))
    case("batch-not-mergeable", 6, 5, 7, "float64", batch_a=(2, 3), batch_b=(2, 3), layout={"a": {"order": (1, 0, 2, 3)}})
    case("batch-four-dims", 4, 5, 6, batch_a=(2, 1, 3, 1), batch_b=(1, 2, 1, 2), c=(2, 1, 3, 2, 1, 5), beta=2.0)
    case("batch-inner", 12, 13, 14, batch_a=(3,), batch_b=(3,),
         layout={"a": {"order": (1, 0, 2)}, "b": {"order": (1, 2, 0)}, "y": {"order": (1, 2, 0)}})
    case("batch-expanded", 8, 9, 10, "bfloat16", batch_a=(3,), batch_b=(3,), layout={"b": {"expand": (0,)}})
    # two tiles of the tensor cores' smallest, with a k that can be divided
    case("two-tiles-8x72x264", 8, 72, 264, "bfloat16", bias="column", activation="gelu")
    case("two-tiles-70x9x272-nt", 70, 9, 272, "float16", tb=True, c="full", beta=2.0)
    case("two-batches-8x8x296-tn", 8, 8, 296, "bfloat16", ta=True, batch_a=(2,), batch_b=(2,), bias="row")
    case("two-tiles-9x80x544-nt", 9, 80, 544, "int8", tb=True)
    case("two-tiles-8x70x140-nt", 8, 70, 140, tb=True, math="tf32", alpha=0.5)
    case("two-tiles-5x66x528-nt", 5, 66, 528, "float8_e4m3fn", tb=True, scale_a="row", scale_b="column", bias="column")
    # memory
    case("strided-35x33x34", 35, 33, 34, layout={"a": {"gap": 5}, "b": {"step": 2}, "y": {"gap": 3}})
    case("strided-bf16-rows", 32, 40, 24, "bfloat16", layout={"a": {"gap": 8}, "b": {"gap": 16}, "y": {"gap": 8}})
    case("odd-rows-bf16", 32, 40, 24, "bfloat16", layout={"a": {"gap": 1}, "b": {"gap": 3}})
    case("column-major", 34, 35, 36, layout={"a": {"order": (1, 0)}, "b": {"order": (1, 0)}, "y": {"order": (1, 0)}})
    case("negative-strides", 18, 19, 20, layout={"a": {"flip": (0,)}, "b": {"flip": (0, 1)}, "y": {"flip": (1,)}})
    case("negative-strides-addends", 18, 19, 20, layout={"c": {"flip": (0, 1)}, "bias": {"flip": (0,)}}, c="full", bias="column")
    case("misaligned-a-only", 32, 32, 16, "float16", layout={"a": {"misaligned": 1}})
    case("misaligned-b-3", 32, 32, 16, "bfloat16", tb=True, layout={"b": {"misaligned": 3}})
    case("misaligned-addends", 32, 32, 16, layout={"c": {"misaligned": 1}, "bias": {"misaligned": 3}}, c="full", bias="column")
    case("expanded-a", 20, 21, 22, layout={"a": {"expand": (0,)}})
    # c, bias, alpha, beta
    case("c-in-place", 33, 20, 12, c="in place", beta=0.5)
    case("c-in-place-bf16", 32, 32, 16, "bfloat16", c="in place", beta=2.0)
    case("c-in-place-strided", 20, 20, 8, c="in place", layout={"y": {"gap": 4}})
    case("c-row", 20, 24, 8, c=(24,), beta=2.0)
    case("c-column", 20, 24, 8, c=(20, 1), beta=-1.0)
    case("c-scalar", 20, 24, 8, c=(1, 1))
    case("c-batch", 10, 12, 8, batch_a=(2,), batch_b=(2,), c=(2, 1, 12))
    case("c-f32-bf16", 20, 24, 8, "bfloat16", c="full", c_dtype="float32")
    case("beta-0", 20, 24, 8, c="full", beta=0.0)
    case("beta-0-in-place", 20, 24, 8, c="in place", beta=0.0)
    case("alpha", 20, 24, 8, "bfloat16", alpha=-2.0)
    case("alpha-0", 20, 24, 8, alpha=0.0, bias="column")
    case("bias-2d", 20, 24, 8, "float16", bias="column2d")
    case("bias-row-batch", 20, 24, 8, batch_a=(2,), batch_b=(1,), bias="row")
    for dtype in DTYPES:
        case("bias-batch-row-9x16x24", 9, 16, 24, dtype, batch_a=(2,), batch_b=(2,), bias=(2, 9, 1), activation="relu")
        case("bias-batch-column-16x24x32-nt", 16, 24, 32, dtype, tb=True, batch_a=(3,), batch_b=(1,), bias=(3, 1, 24), alpha=2.0)
    case("bias-batch-and-c", 10, 12, 8, batch_a=(2, 3), batch_b=(2, 3), bias=(3, 10, 1), c="full", beta=2.0, activation="tanh")
    case("bias-batch-and-c-in-place", 8, 16, 12, "bfloat16", batch_a=(3,), batch_b=(3,), bias=(3, 1, 16), bias_dtype="float32",
         c="in place")
    case("bias-batch-broadcast", 6, 5, 7, batch_a=(2, 3), batch_b=(3,), bias=(2, 1, 1, 5))
    case("bias-batch-strided", 6, 8, 16, "bfloat16", batch_a=(4,), batch_b=(4,), bias=(4, 6, 1),
         layout={"bias": {"order": (1, 0, 2), "flip": (0,)}})
    case("bias-batch-f32-bf16-tn", 32, 16, 40, "bfloat16", ta=True, batch_a=(2,), batch_b=(2,), bias=(2, 32, 1), bias_dtype="float32",
         activation="gelu")
    case("bias-batch-skinny-3x40x96", 3, 40, 96, "bfloat16", batch_a=(2,), batch_b=(2,), bias=(2, 1, 40))
    case("bias-batch-split-5x8x1040", 5, 8, 1040, "float16", batch_a=(2,), batch_b=(2,), bias=(2, 5, 1))
    case("bias-batch-of-one", 9, 10, 12, batch_a=(2,), batch_b=(2,), bias=(1, 1, 10), c="full")
    case("bias-batch-columns-stored", 24, 32, 16, "bfloat16", batch_a=(2,), batch_b=(2,), bias=(2, 1, 32),
         layout={"y": {"order": (0, 2, 1)}})
    case("bias-batch-vector", 1, 9, 11, vectors="a", batch_b=(2, 3), bias=(2, 1, 1, 9))
    case("bias-f32-bf16", 20, 24, 8, "bfloat16", bias="column", bias_dtype="float32")
    case("bias-square", 24, 24, 8, bias="row", alpha=2.0)
    case("epilogue-all-bf16", 33, 34, 16, "bfloat16", alpha=2.0, beta=-3.0, c="full", bias="column", activation="gelu")
    case("epilogue-all-batch", 9, 10, 12, batch_a=(2,), batch_b=(2,), alpha=0.5, beta=2.0, c=(9, 10), bias="row", activation="tanh")
    for k, activation in enumerate(ACTIVATIONS):
        case(f"{activation.replace('_', '-')}", 18, 20, 16, ("float32", "bfloat16", "float16", "float64")[k % 4], activation=activation,
             bias="column")
    # output types, math
    for dtype, out in (("float64", "float32"), ("float32", "float16"), ("float32", "bfloat16"), ("float16", "float32"),
                       ("float16", "bfloat16"), ("bfloat16", "float32"), ("bfloat16", "float16"), ("int8", "int8"), ("int8", "float32"),
                       ("int8", "float16"), ("int8", "bfloat16")):
        case(f"to-{SHORT[out]}-20x24x16", 20, 24, 16, dtype, out_dtype=out)
    case("saturates", 20, 24, 16, "int8", out_dtype="int8", wide_values=True)
    case("int8-dequantised", 20, 24, 33, "int8", out_dtype="float32", alpha=0.5, bias="column", activation="relu")
    case("int8-c-i32", 20, 24, 33, "int8", c="full", c_dtype="int32")
    # 8-bit floats and their scales
    e4m3, e5m2 = "float8_e4m3fn", "float8_e5m2"
    case("32x32x32", 32, 32, 32, e5m2)
    case("33x31x37-nt", 33, 31, 37, e5m2, tb=True)
    case("misaligned-b-5", 32, 32, 16, e5m2, tb=True, layout={"b": {"misaligned": 5}})
    case("16x16x64-nt-b-e5m2", 16, 16, 64, e4m3, dtype_b=e5m2, tb=True)
    case("16x16x64-tn-b-e4m3", 16, 16, 64, e5m2, dtype_b=e4m3, ta=True)
    for out in ("float32", "float16", e4m3, e5m2):
        case(f"to-{SHORT[out]}-20x24x16", 20, 24, 16, e4m3, out_dtype=out)
    case("to-e4m3-boxes-34x144x16-nt", 34, 144, 16, e4m3, out_dtype=e4m3, tb=True, alpha=0.5)  # 16 columns into the second of TMA
    case("program-chain-to-e5m2-boxes-34x144x16-nt", 34, 144, 16, e4m3, out_dtype=e5m2, tb=True, program="chain")
    case("saturates", 12, 20, 16, e4m3, out_dtype=e4m3, alpha=300.0)
    case("saturates-to-e5m2", 12, 20, 16, e5m2, out_dtype=e5m2, alpha=30000.0, bias="column")
    case("scale-tensor-32x32x64-nt", 32, 32, 64, e4m3, tb=True, scale_a="tensor", scale_b="number")
    case("scale-tensor-a-17x18x19", 17, 18, 19, e5m2, out_dtype="float32", scale_a="number", alpha=2.0, bias="row")
    case("scale-row-column-33x31x20-nt", 33, 31, 20, e4m3, tb=True, scale_a="row", scale_b="column", activation="relu")
    case("scale-column-16x32x48", 16, 32, 48, e4m3, out_dtype="float16", scale_b="column", c="full", beta=2.0)
    case("scale-row-tensor-32x16x32", 32, 16, 32, e5m2, dtype_b=e4m3, scale_a="row", scale_b="tensor", bias="column")
    for rows in (1, 2, 3, 4, 5, 7, 8):
        case(f"scale-skinny-{rows}x40x96-{'nt'[rows % 2]}", rows, 40, 96, (e4m3, e5m2)[rows % 3 == 0], tb=rows % 2 == 1, scale_a="row",
             scale_b="column", dtype_b=(e4m3, e5m2)[rows % 4 == 0])
    case("skinny-70x3x64-tn", 70, 3, 64, e4m3, ta=True, scale_a="row", scale_b="tensor", bias="column")
    case("scale-long-k-4x5x520", 4, 5, 520, e4m3, scale_a="row", scale_b="column", bias="column", activation="relu")
    case("scale-block-5x9x260", 5, 9, 260, e4m3, scale_a="block", scale_b="block")
    case("scale-block-16x16x256-nt", 16, 16, 256, e4m3, tb=True, out_dtype="float32", scale_a="block", scale_b="block", bias="column",
         activation="gelu")
    case("scale-block-2x130x20", 2, 130, 20, e4m3, scale_a="row", scale_b="block", alpha=2.0)
    case("scale-block-a-3x5x300", 3, 5, 300, e5m2, scale_a="block", scale_b="column")
    case("scale-block-b-3x5x129-tensor", 3, 5, 129, e4m3, scale_a="tensor", scale_b="block", ta=True)
    case("scale-block-strided-4x6x150", 4, 6, 150, e4m3, scale_a="block", scale_b="block",
         layout={"scale_a": {"order": (1, 0), "gap": 1}, "scale_b": {"step": 2, "flip": (0,)}})
    case("scale-block-long-9x7x2560-nt", 9, 7, 2560, e4m3, tb=True, scale_a="block", scale_b="block")  # four of a's at a time, 20 steps
    case("scale-block-long-3x5x2200", 3, 5, 2200, e4m3, scale_a="block", scale_b="block")
    case("scale-block-columns-10x4x2300-nt", 10, 4, 2300, e4m3, tb=True, scale_a="block", scale_b="block",
         layout={"scale_a": {"order": (1, 0)}})
    case("scale-expanded-9x10x16", 9, 10, 16, e4m3, scale_a="row", scale_b="column", layout={"scale_a": {"expand": (0,)}})
    case("scale-batch-6x7x16", 6, 7, 16, e4m3, batch_a=(3,), batch_b=(1,), scale_a="row", scale_b="column")
    case("scale-batch-block-6x7x140", 6, 7, 140, e4m3, batch_a=(2,), batch_b=(2,), scale_a="block", scale_b="block")
    case("scale-vector-matrix-45x70", 1, 45, 70, e4m3, vectors="a", scale_a="row", scale_b="column")
    case("scale-empty-k", 6, 7, 0, e4m3, scale_a="block", scale_b="block", bias="column")
    case("tf32", 32, 32, 24, math="tf32")
    case("fast-32x32x24", 32, 32, 24, math="fast")
    case("fast", 32, 32, 24, "bfloat16", math="fast")
    from ._matmul_dual import duals
    from ._matmul_prologues import prologues
    from ._matmul_reductions import reductions
    from ._matmul_rows import rows
    return found + list(prologues()) + list(reductions()) + list(duals()) + list(rows())


CASES = _cases()

LARGE = [Matmul(f"{name}-{SHORT[dtype]}", m, n, k, dtype, **more) for dtype in DTYPES for name, m, n, k, more in (
    ("257x511x1023", 257, 511, 1023, {}),
    ("257x511x1023-tt", 257, 511, 1023, {"ta": True, "tb": True}),
    ("1024x1024x1024-bias-relu", 1024, 1024, 1024, {"bias": "column", "activation": "relu", "tb": True}),
    ("batch6-255x129x200", 255, 129, 200, {"batch_a": (6,), "batch_b": (6,), "c": "full", "beta": 2.0}),
    ("batch6-256x136x200-bias", 256, 136, 200, {"batch_a": (6,), "batch_b": (6,), "bias": (6, 1, 136), "activation": "relu"}),
    ("batch6-255x129x200-bias-row", 255, 129, 200, {"batch_a": (6,), "batch_b": (6,), "bias": (6, 255, 1)}),
    ("split-64x96x65536", 64, 96, 65536, {}),
    ("gemv-4099x1x2053", 4099, 1, 2053, {}),
    ("gemv-t-1x4099x2053", 1, 4099, 2053, {"tb": True}),
    ("skinny-7x3001x1111", 7, 3001, 1111, {}))]
LARGE += [Matmul("odd-4095x4093x1021-bf16", 4095, 4093, 1021, "bfloat16", tb=True), Matmul("odd-4095x4093x1021-f32", 4095, 4093, 1021)]
"""Small cases run on a GPU as well."""

BEYOND_INT32 = [Matmul("rows-2**28-bf16", 2 ** 28 + 33, 8, 8, "bfloat16"),
                Matmul("rows-2**28-i8", 2 ** 28 + 33, 8, 8, "int8", out_dtype="int8"),
                Matmul("batch-2**21-bf16", 32, 32, 32, "bfloat16", batch_a=(2 ** 21 + 3,), batch_b=(1,))]
"""a and y have more than 2**31 elements: operands are made and results checked on the GPU, by `check_beyond_int32`."""

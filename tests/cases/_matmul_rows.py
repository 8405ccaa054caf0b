"""Cases of products whose program reduces each row of the result: softmax, norms, and what is exact, each with its definition."""
from dataclasses import dataclass, fields, replace

import numpy as np

from . import ROUNDOFF, coherent, rounded, rounding_error
from ._programs import _program, _step
from .matmul import Matmul

EPSILON = 1e-3


def _reduction(mode, value, compute):
    from dnnkern.device.program_reduction import Reduction
    return Reduction(mode, value, None, compute)


def _softmax(compute, dtype):
    """A number scales the scores, a row is masked by what is added; the logarithm of the sum is stored."""
    steps = (_step("mul", 0, 1, compute=compute), _step("add", 3, 2, compute=compute), _reduction("max", 4, compute),
             _step("sub", 4, 5, compute=compute), _step("exp", 6, compute=compute), _reduction("add", 7, compute),
             _step("div", 7, 8, compute=compute), _step("log", 8, compute=compute), _step("add", 10, 5, compute=compute))
    return _program(((compute, "value"), (dtype, "matrix")), steps, ((11, compute, "row"),), 9)


def _plain_softmax(compute, dtype):
    steps = (_step("mul", 0, 1, compute=compute), _reduction("max", 2, compute), _step("sub", 2, 3, compute=compute),
             _step("exp", 4, compute=compute), _reduction("add", 5, compute), _step("div", 5, 6, compute=compute))
    return _program(((compute, "value"),), steps)


def _layer_norm(compute, dtype):
    """A bias and a residual in front, their sum stored; weights of columns; mean and reciprocal deviation stored."""
    loads = ((dtype, "column"), (dtype, "matrix"), (compute, "column"), (compute, "column"), (compute, EPSILON))
    steps = (_step("add", 0, 1, compute=compute), _step("add", 6, 2, compute=compute), _reduction("avg", 7, compute),
             _step("sub", 7, 8, compute=compute), _step("mul", 9, 9, compute=compute), _reduction("avg", 10, compute),
             _step("add", 11, 5, compute=compute), _step("rsqrt", 12, compute=compute), _step("mul", 9, 13, compute=compute),
             _step("mul", 14, 3, compute=compute), _step("add", 15, 4, compute=compute))
    return _program(loads, steps, ((8, compute, "row"), (7, compute, "matrix"), (13, compute, "row")), 16)


def _rms_norm(compute, dtype):
    """A scale of each row in front, weights of columns."""
    loads = ((compute, "row"), (dtype, "column"), (compute, EPSILON))
    steps = (_step("mul", 0, 1, compute=compute), _step("mul", 4, 4, compute=compute), _reduction("avg", 5, compute),
             _step("add", 6, 3, compute=compute), _step("rsqrt", 7, compute=compute), _step("mul", 4, 8, compute=compute),
             _step("mul", 9, 2, compute=compute))
    return _program(loads, steps, (), 10)


def _centred(compute, dtype):
    """What is left of a row's largest element, which is stored, with the sum of magnitudes, and the elements before."""
    steps = (_step("add", 0, 1, compute=compute), _reduction("max", 2, compute), _reduction("norm1", 2, compute),
             _step("sub", 2, 3, compute=compute))
    return _program(((dtype, "column"),), steps, ((2, compute, "matrix"), (3, compute, "row"), (4, compute, "row")), 5)


@dataclass(frozen=True)
class Rows:
    """A program: how it is made; its operands' (dtype or None for the result's, by); its stores' "matrix" or "row"; numbers."""
    make: object
    operands: tuple
    sides: tuple = ()
    numbers: tuple = ()

    @property
    def names(self):
        return [f"x{k}" for k in range(len(self.numbers), len(self.numbers) + len(self.operands))]


ROWS = {"plain-softmax": Rows(_plain_softmax, (), (), (2.0,)), "softmax": Rows(_softmax, ((None, "matrix"),), ("row",), (0.5,)),
        "layer-norm": Rows(_layer_norm, ((None, "column"), (None, "matrix"), ("wide", "column"), ("wide", "column")),
                           ("row", "matrix", "row")),
        "rms-norm": Rows(_rms_norm, (("wide", "row"), (None, "column"))),
        "centred": Rows(_centred, ((None, "column"),), ("matrix", "row", "row"))}


@dataclass(frozen=True)
class RowMatmul(Matmul):
    """A product and a program of `ROWS`."""
    staged: str = "softmax"

    @property
    def of(self):
        return ROWS[self.staged]

    @property
    def exact(self):
        return self.staged == "centred"

    def values(self, mode):
        return super().values(mode if self.exact else "float")

    def _shape(self, by):
        return {"row": (*self.batch, self.m, 1), "column": (1, self.n), "matrix": self._y_shape()}[by]

    def inputs(self):
        places = super().inputs()
        for name, (dtype, by) in zip(self.of.names, self.of.operands):
            places[name] = self._lay(name, self._shape(by), self.compute if dtype else self.y_dtype)
        return places

    def outputs(self):
        return super().outputs() | {f"y{k}": self._lay(f"y{k}", self._shape(by), self.compute) for k, by in enumerate(self.of.sides, 1)}

    def problem(self):
        from dnnkern.host.tensor import Tensor

        def tensor(p):
            return Tensor(p.shape, p.strides, p.dtype, p.alignment)
        places, (_, *sides) = self.inputs(), map(tensor, self.outputs().values())
        plain = Matmul(**{f.name: getattr(self, f.name) for f in fields(Matmul)}).problem()
        numbers = tuple(Tensor((), (), self.compute) for _ in self.of.numbers)
        extras = (*numbers, *(tensor(places[name]) for name in self.of.names), *sides)
        return replace(plain, program=self.of.make(self.compute, self.y_dtype), extras=extras)

    def call(self, arrays, out=None, **tail):
        return self.call_problem(arrays, out, (self.alpha, self.beta, *self.of.numbers), tail)

    def _exact_values(self, rng):
        return super()._exact_values(rng) | {"x0": rng.integers(1, 4, (1, self.n)).astype(np.float64)}

    def _float_values(self, rng):
        places = self.inputs()
        own = {name: coherent(rounded(rng.standard_normal(places[name].shape), places[name].dtype), places[name]) for name in self.of.names}
        return super()._float_values(rng) | own

    def reference(self, values, tensor_cores=False):
        plain = Matmul(**{f.name: getattr(self, f.name) for f in fields(Matmul)} | {"out_dtype": "float64"})
        results, bounds = plain.reference(values, tensor_cores)
        roundoff = ROUNDOFF["float64" if self.dtype == "float64" else "float32"]
        v, bound, x = results["y"], bounds["y"], [values[name] for name in self.of.names]
        define = getattr(self, f"_{self.staged.replace('-', '_')}")
        found = define(v, bound, x, 32 * roundoff)
        dtypes = {name: place.dtype for name, place in self.outputs().items()}
        return ({name: y for name, (y, _) in found.items()},
                {name: np.broadcast_to(e, y.shape) + rounding_error(y, dtypes[name]) for name, (y, e) in found.items()})

    def _plain_softmax(self, v, bound, x, roundoff):
        return {"y": self._softmax(4 * v, 4 * bound, [0], roundoff)["y"]}

    @staticmethod
    def _softmax(v, bound, x, roundoff):
        s = v * 0.5 + x[0]
        top = s.max(-1, keepdims=True)
        e = np.exp(s - top)
        total, worst = e.sum(-1, keepdims=True), (0.5 * bound + roundoff * (1 + np.abs(s))).max(-1, keepdims=True)
        y = e / total
        return {"y": (y, y * 4 * worst + 1e-30), "y1": (np.log(total) + top, 4 * worst + roundoff * np.abs(top))}

    @staticmethod
    def _layer_norm(v, bound, x, roundoff):
        s = v + x[0] + x[1]
        bound = bound + roundoff * (1 + np.abs(s))
        worst = bound.max(-1, keepdims=True)
        mean = s.mean(-1, keepdims=True)
        d = s - mean
        rstd = (np.mean(d * d, -1, keepdims=True) + EPSILON) ** -0.5
        y = d * rstd * x[2] + x[3]
        error = np.abs(x[2]) * 4 * worst * rstd * (1 + np.abs(d) * rstd) + roundoff * (np.abs(y) + np.abs(x[3]))
        return {"y": (y, error), "y1": (mean, worst), "y2": (s, bound), "y3": (rstd, 4 * worst * rstd ** 2 + roundoff * rstd)}

    @staticmethod
    def _rms_norm(v, bound, x, roundoff):
        s = v * x[0]
        worst = (bound * np.abs(x[0]) + roundoff * np.abs(s)).max(-1, keepdims=True)
        rstd = (np.mean(s * s, -1, keepdims=True) + EPSILON) ** -0.5
        y = s * rstd * x[1]
        return {"y": (y, np.abs(x[1]) * 4 * worst * rstd * (1 + np.abs(s) * rstd) + roundoff * np.abs(y))}

    @staticmethod
    def _centred(v, bound, x, roundoff):
        s = v + x[0]
        top, exact = s.max(-1, keepdims=True), not bound.any()
        bound = 0 if exact else bound + roundoff * (1 + np.abs(s))
        worst = np.max(bound, -1, keepdims=True) if not exact else 0
        y = {"y": (s - top, bound + worst), "y1": (s, bound), "y2": (top, worst)}
        return y | {"y3": (np.abs(s).sum(-1, keepdims=True), s.shape[-1] * worst)}


def rows():
    """The cases."""
    def case(name, m, n, k, dtype="bfloat16", **more):
        return RowMatmul(f"rows-{name}-{m}x{n}x{k}", m, n, k, dtype, **more)
    for program in ROWS:
        yield case(f"{program}-nt", 37, 40, 24, tb=True, staged=program, out_dtype="float32" if program == "centred" else None)
        yield case(f"{program}-f32", 9, 13, 20, "float32", staged=program)
    # rows of whole tiles, of one column more, of less than a tile
    yield case("centred-whole", 70, 64, 40, "float16", tb=True, staged="centred", out_dtype="float32")
    yield case("centred-odd", 66, 129, 33, "float16", staged="centred", out_dtype="float32")
    yield case("softmax-batch3", 65, 72, 16, "float16", batch_a=(3,), batch_b=(3,))
    yield case("layer-norm-wide", 20, 250, 24, staged="layer-norm", tb=True)  # tiles of 256 have no registers for it
    yield case("rms-norm-wide", 20, 256, 24, staged="rms-norm", tb=True)
    yield case("layer-norm-batch2x3", 9, 24, 16, "float16", batch_a=(2, 3), batch_b=(3,), staged="layer-norm", bias="column", alpha=2.0)
    yield case("layer-norm-f64", 18, 40, 24, "float64", staged="layer-norm")
    yield case("rms-norm-tf32", 34, 24, 40, "float32", staged="rms-norm", math="tf32")
    yield case("rms-norm-e4m3", 24, 48, 64, "float8_e4m3fn", tb=True, staged="rms-norm")
    yield case("centred-two-columns", 70, 2, 24, staged="centred", out_dtype="float32")
    yield case("centred-few", 70, 9, 24, staged="centred", out_dtype="float32")
    yield case("centred-one-row", 1, 100, 40, staged="centred", out_dtype="float32")
    yield case("centred-by-columns", 40, 24, 32, tb=True, staged="centred", out_dtype="float32", layout={"y": {"order": (1, 0)}})
    yield case("softmax-strided", 33, 26, 16, layout={"y": {"gap": 3}, "y1": {"step": 2}, "x1": {"order": (1, 0)}})
    yield case("layer-norm-misaligned", 16, 24, 40, staged="layer-norm", layout={"x1": {"misaligned": 1}, "y1": {"flip": (0,)}})

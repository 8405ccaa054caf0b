"""Cases of dual products: a program over ``a @ b`` and ``a @ b_dual``, each with its definition."""
from dataclasses import dataclass, fields, replace

import numpy as np
from activations import ACTIVATIONS

from . import RANGE, ROUNDOFF, coherent, rounded, rounding_error, saturated
from .matmul import Matmul, _product


@dataclass(frozen=True)
class Dual:
    """A program over two products.

    Attributes
    ----------
    gate : str
        What is done to the first, an activation.
    join : "mul" or "sub"
    biases, matrix : bool
        Whether each product has a bias by column added, and the result a matrix.
    sides : bool
        Whether both, biases and all, are stored as well.
    """
    gate: str
    join: str = "mul"
    biases: bool = False
    matrix: bool = False
    sides: bool = False

    @property
    def names(self):
        return ("x0", "x1") * self.biases + (f"x{2 * self.biases}",) * self.matrix

    def make(self, compute, dtype):
        """The `Program` of values computed in a type, of operands and side outputs of a dtype."""
        from dnnkern.device.pointwise import Function
        from dnnkern.device.program import Program, Step
        loads = ((dtype, "column"),) * (2 * self.biases) + ((dtype, "matrix"),) * self.matrix
        steps, first = [], 2 + len(loads)

        def step(mode, *inputs):
            steps.append(Step(Function.of(mode), inputs, None, compute))
            return first + len(steps) - 1
        g, u = (step("add", 0, 2), step("add", 1, 3)) if self.biases else (0, 1)
        last = step(self.join, step(self.gate, g), u)
        if self.matrix:
            step("add", last, 1 + len(loads))
        return Program(loads, steps, ((g, dtype, "matrix"), (u, dtype, "matrix")) * self.sides, accumulators=2)


DUALS = {"swiglu": Dual("swish"), "geglu-biases": Dual("gelu", biases=True), "reglu-stored": Dual("relu", sides=True),
         "swiglu-matrix": Dual("swish", matrix=True), "swiglu-all": Dual("swish", biases=True, matrix=True, sides=True),
         "difference": Dual("relu", "sub", sides=True)}


@dataclass(frozen=True)
class DualMatmul(Matmul):
    """A product of one left operand and two right ones; `dual` is a name of `DUALS`."""
    dual: str = "swiglu"

    @property
    def of(self):
        return DUALS[self.dual]

    @property
    def exact(self):
        return self.of.join == "sub"

    def values(self, mode):
        return super().values(mode if self.exact else "float")

    def inputs(self):
        places = super().inputs()
        places["b_dual"] = self._lay("b_dual", places["b"].shape, self.dtype_b or self.dtype)
        shape = self._y_shape()
        for k, name in enumerate(self.of.names):
            places[name] = self._lay(name, (1, self.n) if self.of.biases and k < 2 else shape, self.y_dtype)
        return places

    def outputs(self):
        return super().outputs() | {name: self._lay(name, self._y_shape(), self.y_dtype) for name in ("y1", "y2") * self.of.sides}

    def problem(self):
        from dnnkern.host.tensor import Tensor

        def tensor(p):
            return Tensor(p.shape, p.strides, p.dtype, p.alignment)
        places, (_, *sides) = self.inputs(), map(tensor, self.outputs().values())
        plain = Matmul(**{f.name: getattr(self, f.name) for f in fields(Matmul)}).problem()
        extras = (*(tensor(places[name]) for name in self.of.names), *sides)
        return replace(plain, b_dual=tensor(places["b_dual"]), program=self.of.make(self.compute, self.y_dtype), extras=extras)

    def call(self, arrays, out=None, **tail):
        return self.call_problem(arrays, out, (1.0, 1.0), tail)

    def _exact_values(self, rng):
        values = super()._exact_values(rng)
        top = int(np.abs(values["b"]).max(initial=1))
        return values | {"b_dual": rng.integers(-top, top + 1, values["b"].shape).astype(np.float64)}

    def _float_values(self, rng):
        values = super()._float_values(rng)
        for name in self.of.names:
            values[name] = coherent(rounded(rng.standard_normal(self.inputs()[name].shape), self.y_dtype), self.inputs()[name])
        if self.dtype not in RANGE:  # others than b has
            values["b_dual"] = coherent(rounded(-values["b"] + rng.standard_normal(values["b"].shape), self.dtype_b or self.dtype),
                                        self.inputs()["b_dual"])
        return values

    def reference(self, values, tensor_cores=False):
        accumulator = ROUNDOFF["float64" if self.dtype == "float64" else "float32"]
        error = 0.0 if self.dtype == "int8" else accumulator * min(self.k, 8 * self.k ** 0.5)
        error += 2 * ROUNDOFF["tf32"] * (self.math == "tf32") + 4 * 2.0**-13 * (tensor_cores and self.dtype.startswith("float8"))
        x, exact, of = [values[name] for name in self.of.names], self.of.join == "sub" and self.dtype != "int8", self.of
        found = []
        for k, name in enumerate(("b", "b_dual")):
            a, b = self._matrices({**values, "b": values[name]})
            product, magnitude = _product(a, b), _product(np.abs(a), np.abs(b))
            if of.biases:
                product, magnitude = product + x[k], magnitude + np.abs(x[k])
            found.append((product, error * magnitude + 2 * accumulator * np.abs(product)))
        (g, g_bound), (u, u_bound) = found
        function, slope, _ = ACTIVATIONS[of.gate]
        gate, gate_bound = function(g), slope * g_bound + (0 if exact else 8 * accumulator * (1 + np.abs(g)))
        if of.join == "sub":
            y, bound = gate - u, gate_bound + u_bound
        else:
            y, bound = gate * u, gate_bound * np.abs(u) + np.abs(gate) * u_bound + gate_bound * u_bound
        if of.matrix:
            y = y + x[-1]
        bound = bound + 4 * accumulator * (np.abs(y) + np.abs(x[-1] if x else 0))
        results = {"y": (y, bound)} | ({"y1": found[0], "y2": found[1]} if of.sides else {})
        shape, dtypes = self._y_shape(), {name: place.dtype for name, place in self.outputs().items()}
        return ({name: saturated(z, dtypes[name]).reshape(shape) for name, (z, _) in results.items()},
                {name: (e + rounding_error(z, dtypes[name])).reshape(shape) for name, (z, e) in results.items()})


def duals():
    """The cases."""
    def case(name, m, n, k, dtype="bfloat16", **more):
        return DualMatmul(f"dual-{name}-{m}x{n}x{k}", m, n, k, dtype, **more)
    for dual in DUALS:
        yield case(f"{dual}-nt", 36, 40, 32, tb=True, dual=dual)
    for dual in ("swiglu", "swiglu-all"):  # more columns than a tile has of results
        yield case(f"{dual}-nn", 20, 136, 24, "float16", dual=dual)
    yield case("swiglu-odd-nt", 33, 31, 37, tb=True)
    yield case("swiglu-tn", 72, 72, 40, ta=True, out_dtype="float32")
    yield case("difference-tt", 34, 30, 24, "float32", ta=True, tb=True, dual="difference")
    yield case("difference-f64", 18, 20, 24, "float64", dual="difference")
    yield case("difference-int8", 24, 48, 64, "int8", tb=True, dual="difference", out_dtype="float32")
    yield case("swiglu-e4m3", 24, 48, 64, "float8_e4m3fn", tb=True)
    yield case("swiglu-tf32", 24, 48, 40, "float32", tb=True, math="tf32")
    yield case("swiglu-batch3", 20, 40, 32, tb=True, batch_a=(3,), batch_b=(3,))
    yield case("geglu-batch2x3-b", 9, 24, 16, batch_a=(2, 1), batch_b=(1, 3), dual="geglu-biases")
    yield case("difference-k0", 5, 8, 0, dual="difference")
    yield case("swiglu-skinny", 3, 160, 128, tb=True)
    yield case("difference-by-rows", 40, 24, 32, tb=True, dual="difference", layout={"y": {"order": (1, 0)}})
    # halves of one weight, and a second weight that lies otherwise
    yield case("swiglu-packed-halves", 16, 64, 64, tb=True, layout={x: {"gap": 64} for x in ("b", "b_dual")})
    yield case("swiglu-misaligned", 16, 24, 40, tb=True, layout={"b_dual": {"misaligned": 1}})
    yield case("swiglu-orders", 16, 24, 40, layout={"b_dual": {"order": (1, 0)}})

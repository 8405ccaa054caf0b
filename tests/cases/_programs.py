"""Programs of pointwise functions after an anchor's result, each with its definition: what matmul's and convolution's cases share."""
from dataclasses import dataclass
from typing import Callable

import numpy as np
from activations import ACTIVATIONS

from . import RANGE, coherent, lay, rounded


@dataclass(frozen=True)
class Fused:
    """A program over the result ``acc`` (rows, columns) of an anchor.

    Attributes
    ----------
    operands : tuple of (dtype or None, by, least)
        Of each operand in memory: its dtype, None for the result's, and along what it varies: "scalar", "row", "column", "matrix". Exact
        values are the integers from `least` to 1. They are called x0 and so on, or x2 and so on after `first` = 2 others.
    make : callable(compute, operand dtypes, side dtype) -> Program
    value : callable(acc, operands) -> (result, side outputs)
    slope : callable(operands) -> the most that the results change with acc
    exact : bool
        Whether integers give exact results, of a magnitude up to 4 more.
    sides : int
        Side outputs; of float32, or float64 where that is computed in; `halves`: of float16.
    numbers : tuple
        The run-time numbers.
    first : int
        Operands before those in memory.
    """
    operands: tuple
    make: Callable
    value: Callable
    slope: Callable
    exact: bool = True
    sides: int = 0
    numbers: tuple = ()
    first: int = 0
    halves: bool = False

    @property
    def names(self):
        return [f"x{k}" for k in range(self.first, self.first + len(self.operands))]

    def places(self, dtype, shape_of):
        """{name: (dtype, shape)} of the operands beside a result of this dtype; ``shape_of(by)`` is the shape of one that varies so."""
        return {name: (own or dtype, shape_of(by)) for name, (own, by, _) in zip(self.names, self.operands)}

    def side_dtype(self, compute):
        return "float16" if self.halves else "float64" if compute == "float64" else "float32"

    def problem_parts(self, compute, dtype, tensors, sides, shape):
        """(program, extras) of the library's problem: of tensors by name, and of the side outputs' tensors."""
        from dnnkern.host.tensor import Tensor
        program = self.make(compute, [own or dtype for own, _, _ in self.operands], self.side_dtype(compute))
        extras, indices = [], [(1, 0), (0, 1)]
        for k, (kind, access) in enumerate(program.operands[:program.inputs]):
            if access == "index":
                extras.append(Tensor(shape, (0,) * (len(shape) - 2) + indices.pop(0), "int32"))
            else:
                extras.append(Tensor((), (), kind) if access == "value" else tensors[f"x{k}"])
        return program, (*extras, *sides)

    def exact_values(self, rng, places):
        return {name: coherent(rng.integers(least, 2, places[name].shape).astype(np.float64), places[name])
                for name, (_, _, least) in zip(self.names, self.operands)}

    def float_values(self, rng, places):
        """Of the size of what they are added to or multiplied with, those of one element positive."""
        found = {}
        for name in self.names:
            x, dtype = rng.standard_normal(places[name].shape), places[name].dtype
            x = np.abs(x) + 0.5 if x.size == 1 else np.rint(2 * x) if dtype in RANGE else x
            found[name] = coherent(rounded(x, dtype), places[name])
        return found

    def reference(self, acc, bound, values, roundoff):
        """(result, side outputs), each with its bound, of an anchor's result with its own bound."""
        x = [values[name] for name in self.names]
        y, sides = self.value(acc, x)
        sizes = 8 * roundoff * (2 + np.abs(acc) + sum(map(np.abs, x)) + np.abs(y)) * (1 + self.slope(x))
        bound = self.slope(x) * bound + (0 if self.exact and not bound.any() else sizes)
        return (y, bound), [(s, np.broadcast_to(bound, s.shape)) for s in sides]


class Programmed:
    """What cases of normalisations with a program share: `program` is a name of `PROGRAMS`, `wide` the type that is computed in."""

    @property
    def fused(self):
        return PROGRAMS.get(self.program) or OF_GRADIENTS.get(self.program)

    def lay_operands(self, shapes, layout):
        """{name: Place} of the program's operands, whose shapes are by what they vary along."""
        if not self.fused:
            return {}
        places = self.fused.places(self.to or self.dtype, shapes.get)
        return {name: lay(tuple(shape), dtype, **layout.get(name, {})) for name, (dtype, shape) in places.items()}

    def lay_sides(self, layout):
        """{name: Place} of what the program stores."""
        sides = range(1, self.fused.sides + 1 if self.fused else 1)
        return {f"y{k}": lay(self.shape, self.fused.side_dtype(self.wide), **layout.get(f"y{k}", {})) for k in sides}


def _step(mode, *inputs, compute, **parameters):
    from dnnkern.device.pointwise import Function
    from dnnkern.device.program import Step
    return Step(Function.of(mode, **parameters), inputs, None, compute)


def _program(*args):
    from dnnkern.device.program import Program
    return Program(*args)


def _bias_gelu(compute, dtypes, side):
    return _program(((dtypes[0], "column"),), (_step("bias", 0, 1, compute=compute), _step("gelu", 2, compute=compute)))


def _two_inputs(compute, dtypes, side):
    loads = (dtypes[0], "row"), (dtypes[1], "matrix")
    return _program(loads, (_step("scale", 0, 1, compute=compute), _step("add", 3, 2, compute=compute),
                            _step("relu", 4, compute=compute)))


def _chain(compute, dtypes, side):
    """Six functions, and what the second gives kept beside."""
    loads = (dtypes[0], "column"), (dtypes[1], "matrix"), (dtypes[2], "scalar"), (side, 2)
    steps = (_step("mul", 0, 1, compute=compute), _step("add", 5, 2, compute=compute), _step("mul", 6, 3, compute=compute),
             _step("max", 7, 2, compute=compute), _step("add", 8, 4, compute=compute), _step("neg", 9, compute=compute))
    return _program(loads, steps, ((6, side, "matrix"),))


def _chain_value(acc, x):
    second = acc * x[0] + x[1]
    return -(np.maximum(second * x[2], x[1]) + 2), (second,)


def _triangle(compute, dtypes, side):
    """What is not below the diagonal, times a number given at the launch; elsewhere the row's own."""
    loads = ("int32", "index"), ("int32", "index"), (compute, "value"), (dtypes[0], "row")
    steps = _step("cmp_ge", 1, 2, compute="int32"), _step("mul", 0, 3, compute=compute), _step("binary_select", 6, 4, 5, compute=compute)
    return _program(loads, steps)


def _triangle_value(acc, x):
    rows, columns = np.arange(acc.shape[-2])[:, None], np.arange(acc.shape[-1])
    return np.where(rows >= columns, -acc, x[0]), ()


def _masked(compute, dtypes, side):
    return _program(((dtypes[0], "matrix"),), (_step("mul", 0, 1, compute=compute),))


PROGRAMS = {
    "bias-gelu": Fused(((None, "column", -1),), _bias_gelu, lambda acc, x: (ACTIVATIONS["gelu"][0](acc + x[0]), ()), lambda x: 1.13, False),
    "two-inputs": Fused((("float32", "row", -1), (None, "matrix", -1)), _two_inputs,
                        lambda acc, x: (np.maximum(acc * x[0] + x[1], 0), ()), lambda x: np.abs(x[0])),
    "chain": Fused((("float32", "column", -1), (None, "matrix", -1), ("float32", "scalar", 1)), _chain, _chain_value,
                   lambda x: np.abs(x[0]) * np.maximum(np.abs(x[2]), 1), sides=1),
    "triangle": Fused(((None, "row", -1),), _triangle, _triangle_value, lambda x: 1.0, numbers=(-1.0,), first=3),
}
"""Name -> program."""


def _kept(compute, dtypes, side):
    """A bias, what that gives kept beside, and ReLU."""
    steps = _step("add", 0, 1, compute=compute), _step("relu", 2, compute=compute)
    return _program(((dtypes[0], "column"),), steps, ((2, side, "matrix"),))


OF_PRODUCTS = {"kept": Fused((("float32", "column", -1),), _kept, lambda acc, x: (np.maximum(acc + x[0], 0), (acc + x[0],)), lambda x: 1.0,
                             sides=1, halves=True)}
"""More of them, for products alone: no other array is read, so that what is kept leaves as the result does."""
OF_GRADIENTS = {"masked": Fused((("uint8", "matrix", 0),), _masked, lambda acc, x: (acc * x[0], ()), lambda x: np.abs(x[0]))}
"""More of them, of what a gradient takes."""

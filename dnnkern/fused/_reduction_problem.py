"""Pointwise programs with reductions of rows: the problem."""
import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

from ..engine.form import Dim, Form, Operand, canonical, spread
from ..host.canonical import check_output, normal_axes
from ..host.tensor import Tensor
from ._problem import ARRAYS, DIMS, OfArrays, broadcast
from ._staged import StagedProgram

OP = "fused_reduction"


class RowForms(NamedTuple):
    """What kernels address. ``form`` has the arrays of elements, inputs before outputs, whose last ``row`` dimensions are the row's, and
    the others, ``outer``, number the rows; ``rows`` has the arrays of rows, likewise, along the outer dimensions alone."""
    form: Form
    outer: int
    rows: Form

    @property
    def count(self):
        """Of rows."""
        return math.prod(d.size for d in self.form.dims[:self.outer])

    @property
    def length(self):
        """Elements of a row."""
        return math.prod(d.size for d in self.form.dims[self.outer:])


@dataclass(frozen=True)
class FusedReductionProblem(OfArrays):
    """``y0, y1, ... = program(x0, x1, ...)`` with reductions along axes: all but addresses and numbers.

    Attributes
    ----------
    program : StagedProgram
    inputs : tuple of Tensor
        The arrays, in the order of the loads by ``matrix`` and by ``row``.
    outputs : tuple of Tensor
        The results, in the order of the stores: of the shape, or by ``row`` of size 1 along the axes.
    shape : tuple of int
        That of the elements, to which the inputs broadcast.
    axes : tuple of int
        What is reduced, ascending.
    index_axes : tuple of int
        Of the loads by ``index``, in their order.
    """
    program: StagedProgram
    inputs: tuple
    outputs: tuple
    shape: tuple
    axes: tuple
    index_axes: tuple = ()
    op = OP
    scalar_type = "float32"

    def __post_init__(self):
        for name in ("inputs", "outputs", "shape", "axes", "index_axes"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        p = self.program
        if not isinstance(p, StagedProgram):
            raise TypeError(f"{OP}: program: got {type(p).__name__}; expected a StagedProgram")
        for name, what, wanted in (("inputs", "loads by 'matrix' or 'row'", self.loads("matrix", "row")), ("outputs", "stores", p.stores),
                                   ("index_axes", "loads by 'index'", self.loads("index"))):
            if len(getattr(self, name)) != len(wanted):
                raise ValueError(f"{OP}: {len(getattr(self, name))} {name} for a program with {len(wanted)} {what}")
        if not self.loads("matrix"):
            raise ValueError(f"{OP}: program has no load by 'matrix'; expected one at least")
        if len(self.inputs) + len(self.outputs) > ARRAYS:
            raise ValueError(f"{OP}: {len(self.inputs)} inputs and {len(self.outputs)} outputs; expected at most {ARRAYS} arrays")
        if len(self.shape) > DIMS:
            raise ValueError(f"{OP}: elements of shape {self.shape}; expected {DIMS} dimensions at most")
        for name, axes in (("axes", self.axes), ("index_axes", self.index_axes)):
            if any(not 0 <= a < len(self.shape) for a in axes) or name == "axes" and (not axes or list(axes) != sorted(set(axes))):
                raise ValueError(f"{OP}: {name}={axes} of elements of shape {self.shape}; expected axes" + ", ascending" * (name == "axes"))
        for name, t, (dtype, access) in zip(self.names, (*self.inputs, *self.outputs), self._accesses):
            if t.dtype != dtype:
                raise TypeError(f"{OP}: {name} is {t.dtype}, the program has {dtype} there")
            shape = self.row_shape if access == "row" else self.shape
            if name[0] == "x" and (t.ndim > len(shape) or any(n not in (1, m) for n, m in zip(reversed(t.shape), reversed(shape)))):
                raise ValueError(f"{OP}: {name} has shape {t.shape}, which does not broadcast to {shape}")
            if name[0] == "y" and t.shape != shape:
                raise ValueError(f"{OP}: {name} has shape {t.shape}; expected {shape}")
            if name[0] == "y":
                t.check_addresses(OP, name)

    @property
    def _accesses(self):
        """(dtype, access) of each array."""
        return *self.loads("matrix", "row"), *((dtype, access) for _, dtype, access in self.program.stores)

    @property
    def row_shape(self):
        """Of a row's values."""
        return tuple(1 if k in self.axes else n for k, n in enumerate(self.shape))

    @property
    def compute(self):
        """The widest type that values are computed in."""
        return "float64" if "float64" in self.program.types else "float32"

    @functools.cached_property
    def forms(self):
        """`RowForms`. The arrays of elements are in the order of the program's loads by matrix and index, then the results; an index is an
        array in no memory, whose offsets it is."""
        shape, names, arrays, axes = self.shape, iter(self.names), iter(self.arrays), iter(self.index_axes)
        found = {"matrix": [], "row": []}, {"matrix": [], "row": []}
        for _, access in self.program.loads:
            if access in ("matrix", "row"):
                found[0][access].append(spread(next(names), next(arrays), shape))
            elif access == "index":
                axis = next(axes)
                found[0]["matrix"].append(Operand("", Tensor(shape, tuple(int(d == axis) for d in range(len(shape))), "int32")))
        for _, _, access in self.program.stores:
            found[1][access].append(spread(next(names), next(arrays), shape))
        inputs, outputs, row_inputs, row_outputs = found[0]["matrix"], found[1]["matrix"], found[0]["row"], found[1]["row"]
        leader = outputs[:1] or [next((a for a in inputs if a.name and all(a.tensor.strides[k] for k in self.axes if shape[k] > 1)),
                                      inputs[0])]
        outer = _along([*leader, *inputs, *outputs, *row_inputs, *row_outputs], [k for k in range(len(shape)) if k not in self.axes])
        row = _along([*leader, *inputs, *outputs], self.axes)
        count = 1 + len(inputs) + len(outputs)
        firsts = [a.first + b.first for a, b in zip(outer.arrays, row.arrays)]
        dims = (*(Dim(d.size, d.strides[1:count]) for d in outer.dims), *(Dim(d.size, d.strides[1:]) for d in row.dims))
        whole = [Operand(a.name, a.tensor, first) for a, first in zip((*inputs, *outputs), firsts[1:])]
        of_rows = [Operand(a.name, a.tensor, b.first) for a, b in zip((*row_inputs, *row_outputs), outer.arrays[count:])]
        return RowForms(Form(dims, tuple(whole), len(inputs)), len(outer.dims),
                        Form(tuple(Dim(d.size, d.strides[count:]) for d in outer.dims), tuple(of_rows), len(row_inputs)))

    @property
    def is_empty(self):
        return not any(t.size for t in self.outputs)

    @property
    def words(self):
        """Shape, axes, dtypes, functions."""
        axes = ",".join(map(str, self.axes))
        return f"{'x'.join(map(str, self.shape))} axes {axes} {'/'.join(dict.fromkeys(t.dtype for t in self.arrays))} {self.program}"

    def __str__(self):
        text = f"{self.op} {self.words}"
        for name, t, (_, access) in zip(self.names, self.arrays, self._accesses):
            shape = self.row_shape if access == "row" else self.shape
            text += f" {name} {list(t.shape)}" if t.shape != shape else "" if t.is_packed else f" {name} strides {t.strides}"
        return text


def _along(operands, axes):
    """The form of arrays along some of their axes; the first one leads."""
    some = [Operand(a.name, Tensor(tuple(a.tensor.shape[k] for k in axes), tuple(a.tensor.strides[k] for k in axes), a.dtype,
                                   a.tensor.alignment)) for a in operands]
    form = canonical((), some)
    return Form(form.dims, form.arrays, 0)


def make_fused_reduction(tensors, outs, program, axes, index_axes, aliases):
    """`FusedReductionProblem` of a call."""
    outs = outs if outs is None or isinstance(outs, tuple) else (outs,)
    for k, t in enumerate(tensors):
        if t is None:
            raise TypeError(f"{OP}: inputs[{k}]: got NoneType; expected an array")
    shape = broadcast(tensors, OP)
    axes = normal_axes(axes, len(shape), OP)
    index_axes = tuple(axis + len(shape) if -len(shape) <= axis < 0 else axis for axis in index_axes)
    row_shape = tuple(1 if k in axes else n for k, n in enumerate(shape))
    shapes = [row_shape if access == "row" else shape for _, _, access in program.stores]
    for k, (t, wanted, (_, dtype, _)) in enumerate(zip(outs or (), shapes, program.stores)):
        name = f"out[{k}]" if len(outs) > 1 else "out"
        check_output(OP, t, wanted, dtype, name)
    if outs is None:
        outs = tuple(Tensor.packed(wanted, dtype) for wanted, (_, dtype, _) in zip(shapes, program.stores))
    return FusedReductionProblem(program, tensors, outs, shape, axes, index_axes)


__all__ = ["FusedReductionProblem", "RowForms", "make_fused_reduction"]

"""Pointwise programs over arrays of any shape: the problem."""
import functools
from dataclasses import dataclass

from ..device.program import Program, loaded_type
from ..device.program_operands import DTYPES
from ..engine.form import Operand, canonical, spread
from ..host.canonical import check_output
from ..host.tensor import Tensor

ARRAYS, DIMS = 16, 8
ACCESSES = "matrix", "value", "index"


class OfArrays:
    """What problems with a program whose loads and stores are `inputs` and `outputs` have in common; a mixin."""

    def __getattr__(self, name):
        """The arrays are the operands x0, x1, ..."""
        if name[:1] == "x" and name[1:].isdecimal() and int(name[1:]) < len(self.inputs):
            return self.inputs[int(name[1:])]
        raise AttributeError(name)

    def loads(self, *accesses) -> tuple:
        """The program's loads of these kinds."""
        return tuple(load for load in self.program.loads if load[1] in accesses)

    @functools.cached_property
    def names(self):
        """Of the arrays, as launches call them."""
        return (*(f"x{k}" for k in range(len(self.inputs))), *(f"y{k}" for k in range(len(self.outputs))))

    @property
    def arrays(self):
        return *self.inputs, *self.outputs

    @property
    def scalars(self):
        """Names of the run-time numbers."""
        return tuple(f"s{k}" for k in range(len(self.loads("value"))))

    @property
    def scalar_types(self):
        """{name: type} of the run-time numbers."""
        return dict(zip(self.scalars, (loaded_type(dtype) for dtype, _ in self.loads("value"))))

    @property
    def bytes(self):
        """Bytes that must move: each distinct element read, each written."""
        return sum(t.nbytes for t in self.arrays)

    @property
    def flops(self):
        return 0


@dataclass(frozen=True)
class FusedProblem(OfArrays):
    """``y0, y1, ... = program(x0, x1, ...)``, element by element: all but addresses and numbers.

    Attributes
    ----------
    program : Program
        Without accumulators. Its loads are by ``matrix``, an array that broadcasts to the shape of the results; by ``value``, a number that
        is given at each call; by ``index``, the position along an axis; or constants. Its stores are the results.
    inputs : tuple of Tensor
        The arrays, in the order of the loads.
    outputs : tuple of Tensor
        The results, of one shape.
    axes : tuple of int
        Of the loads by ``index``, in their order.
    in_place : tuple of str
        "x0", ...: the inputs that are exactly an output.
    """
    program: Program
    inputs: tuple
    outputs: tuple
    axes: tuple = ()
    in_place: tuple = ()
    op = "fused_pointwise"
    scalar_type = "float32"

    def __post_init__(self):
        for name in ("inputs", "outputs", "axes", "in_place"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        p = self.program
        if not isinstance(p, Program):
            raise TypeError(f"fused_pointwise: program: got {type(p).__name__}; expected a Program")
        if p.accumulators:
            raise ValueError(f"fused_pointwise: program has {p.accumulators} accumulators; expected none: its arrays are loads by 'matrix'")
        for dtype, access in p.loads:
            if isinstance(access, str) and access not in ACCESSES:
                raise ValueError(f"fused_pointwise: program has a load by {access!r}; expected one of {', '.join(ACCESSES)}, or a "
                                 "number")
        self._check_count("inputs", self.inputs, "loads by 'matrix'", self.loads("matrix"))
        self._check_count("outputs", self.outputs, "stores", p.stores)
        self._check_count("axes", self.axes, "loads by 'index'", self.loads("index"))
        if not self.outputs:
            raise ValueError("fused_pointwise: program stores nothing; expected a result")
        if len(self.inputs) + len(self.outputs) > ARRAYS:
            raise ValueError(f"fused_pointwise: {len(self.inputs)} inputs and {len(self.outputs)} outputs; expected at most {ARRAYS} "
                             "arrays")
        self._check_shapes()
        for (dtype, _), t, name in zip((*self.loads("matrix"), *(s[1:] for s in p.stores)), (*self.inputs, *self.outputs), self.names):
            if t.dtype != dtype:
                raise TypeError(f"fused_pointwise: {name} is {t.dtype}, the program has {dtype} there")
        if set(self.in_place) - set(self.names[:len(self.inputs)]):
            raise ValueError(f"fused_pointwise: in_place={self.in_place}; expected some of {self.names[:len(self.inputs)]}")

    def _check_count(self, name, given, what, wanted):
        if len(given) != len(wanted):
            raise ValueError(f"fused_pointwise: {len(given)} {name} for a program with {len(wanted)} {what}")

    def _check_shapes(self):
        shape = self.shape
        if len(shape) > DIMS:
            raise ValueError(f"fused_pointwise: results of shape {shape}; expected {DIMS} dimensions at most")
        for name, t in zip(self.names[len(self.inputs):], self.outputs):
            if t.shape != shape:
                raise ValueError(f"fused_pointwise: {name} has shape {t.shape}, y0 has {shape}; expected the same")
            t.check_addresses("fused_pointwise", name)
        for name, t in zip(self.names, self.inputs):
            if t.ndim > len(shape) or any(n not in (1, m) for n, m in zip(reversed(t.shape), reversed(shape))):
                raise ValueError(f"fused_pointwise: {name} has shape {t.shape}, which does not broadcast to {shape}")
        if any(not 0 <= axis < len(shape) for axis in self.axes):
            raise ValueError(f"fused_pointwise: axes={self.axes} of results of shape {shape}")

    @property
    def shape(self):
        """Of the results."""
        return self.outputs[0].shape

    @property
    def compute(self):
        """The widest type that values are computed in."""
        return "float64" if "float64" in self.program.types() else "float32"

    @functools.cached_property
    def form(self):
        """The loads from memory and of indices, in their order, and the results: what kernels address. An index is an array in no memory,
        whose offsets it is."""
        shape, inputs = self.shape, []
        names, arrays, axes = iter(self.names), iter(self.inputs), iter(self.axes)
        for _, access in self.program.loads:
            if access == "matrix":
                inputs.append(spread(next(names), next(arrays), shape))
            elif access == "index":
                axis = next(axes)
                inputs.append(Operand("", Tensor(shape, tuple(int(d == axis) for d in range(len(shape))), "int32")))
        outputs = [spread(name, t, shape) for name, t in zip(self.names[len(self.inputs):], self.outputs)]
        return canonical(inputs, outputs)

    @property
    def is_empty(self):
        return self.outputs[0].size == 0

    @property
    def words(self):
        """Shape, dtypes, functions."""
        return f"{'x'.join(map(str, self.shape)) or 'scalar'} {'/'.join(dict.fromkeys(t.dtype for t in self.arrays))} {self.program}"

    def __str__(self):
        text = f"{self.op} {self.words}"
        for name, t in zip(self.names, self.arrays):
            text += f" {name} {list(t.shape)}" if t.shape != self.shape else "" if t.is_packed else f" {name} strides {t.strides}"
        return text


def make_fused(tensors, outs, program, axes, aliases):
    """`FusedProblem` of a call."""
    outs = outs if outs is None or isinstance(outs, tuple) else (outs,)
    for k, t in enumerate(tensors):
        if t is None:
            raise TypeError(f"fused_pointwise: inputs[{k}]: got NoneType; expected an array")
    shape = broadcast(tensors)
    for k, (t, (_, dtype, _)) in enumerate(zip(outs or (), program.stores)):
        name = f"out[{k}]" if len(outs) > 1 else "out"
        check_output("fused_pointwise", t, shape, dtype, name)
    if outs is None:
        outs = tuple(Tensor.packed(shape, dtype) for _, dtype, _ in program.stores)
    ndim = outs[0].ndim
    axes = tuple(axis + ndim if -ndim <= axis < 0 else axis for axis in axes)
    return FusedProblem(program, tensors, outs, axes, tuple(f"x{k}" for k in range(len(tensors)) if f"x{k}" in aliases))


def broadcast(tensors, op="fused_pointwise"):
    """The shape that arrays have together, as NumPy broadcasts."""
    ndim, found = max((t.ndim for t in tensors), default=0), []
    for sizes in zip(*((1,) * (ndim - t.ndim) + t.shape for t in tensors)):
        wanted = {n for n in sizes if n != 1} or {1}
        if len(wanted) > 1:
            raise ValueError(f"{op}: the shapes of " + ", ".join(f"inputs[{k}] {t.shape}" for k, t in enumerate(tensors))
                             + " do not broadcast")
        found += wanted
    return tuple(found)


__all__ = ["DTYPES", "FusedProblem", "broadcast", "make_fused"]

"""The problem of a concatenation: several arrays, one after the other along an axis."""
import functools
from dataclasses import dataclass, replace

from ...host.canonical import Canonical, canonical, check_output, sizes_text
from ...host.tensor import Tensor
from ...host.window import integer
from .._problem import Moves, check_moved

MOST_ARRAYS = 128


@dataclass(frozen=True)
class Box(Moves):
    """x copied to the part of y that begins at element `y_first`; the tensor `y` has the shape of x, and the alignment of the array that it
    is a part of."""
    x: Tensor
    y: Tensor
    y_first: int
    op = "box"

    @functools.cached_property
    def canonical(self) -> Canonical:
        """The elements as they are."""
        return canonical(self.x.shape, self.x.strides, self.y.strides, self.x.itemsize, 0, self.y_first)


@dataclass(frozen=True)
class ConcatProblem:
    """``y = numpy.concatenate(arrays, axis)``: all but the addresses.

    Attributes
    ----------
    arrays : tuple of Tensor
    y : Tensor
    axis : int
        Counted from 0.
    """
    arrays: tuple
    y: Tensor
    axis: int
    op = "concat"
    compute = "float32"  # bits are moved: no kernel computes in float64
    scalar_type = "float32"
    flops = 0

    def __post_init__(self):
        check_output("concat", self.y, concat_shape(self.arrays, self.axis), self.arrays[0].dtype)

    def __getattr__(self, name):
        """The arrays are the operands x0, x1, ...; those beyond the last one are missing."""
        if name in OPERANDS:
            number = int(name[1:])
            return self.arrays[number] if number < len(self.arrays) else None
        raise AttributeError(name)

    @functools.cached_property
    def boxes(self):
        """(name of the operand, `Box`) of each array that has elements."""
        found, begin = [], 0
        for name, x in zip(OPERANDS, self.arrays):
            if x.size:
                found.append((name, Box(x, replace(self.y, shape=x.shape), begin * self.y.strides[self.axis])))
            begin += x.shape[self.axis]
        return tuple(found)

    @property
    def outputs(self):
        return (self.y,)

    @property
    def is_empty(self):
        return self.y.size == 0

    @property
    def bytes(self):
        """Bytes that must move: each distinct element read, each written."""
        return sum(x.nbytes for x in self.arrays) + self.y.nbytes

    def __str__(self):
        named = [*zip(OPERANDS, self.arrays), ("y", self.y)]
        strided = "".join(f" {name} strides {t.strides}" for name, t in named if not t.is_packed)
        return f"concat {','.join(sizes_text(x.shape) for x in self.arrays)} {self.y.dtype} {self.axis}{strided}"


OPERANDS = tuple(f"x{k}" for k in range(MOST_ARRAYS))
LABELS = tuple(f"arrays[{k}]" for k in range(MOST_ARRAYS))


def concat_shape(arrays, axis):
    """The shape of the result; an error where the arrays do not fit together."""
    first = arrays[0]
    for label, x in zip(LABELS, arrays):
        check_moved("concat", x, label)
        if x.dtype != first.dtype:
            raise TypeError(f"concat: {label} is {x.dtype}, arrays[0] is {first.dtype}; expected the same dtype")
        if not 0 <= axis < x.ndim:
            raise ValueError(f"concat: axis {axis} of {label}, which has shape {x.shape}")
        if len(x.shape) != len(first.shape) or any(n != m for k, (n, m) in enumerate(zip(x.shape, first.shape)) if k != axis):
            raise ValueError(f"concat: {label} has shape {x.shape}, arrays[0] has {first.shape}; expected the same but along axis {axis}")
    return (*first.shape[:axis], sum(x.shape[axis] for x in arrays), *first.shape[axis + 1:])


def make_concat_problem(tensors, out, count, axis, aliases):
    """`ConcatProblem` of a call with `count` arrays."""
    arrays = tensors[:count]
    for label, x in zip(LABELS, arrays):
        check_moved("concat", x, label)
    axis = integer("concat", "axis", axis, -arrays[0].ndim)
    axis += arrays[0].ndim if axis < 0 else 0
    shape = concat_shape(arrays, axis)
    return ConcatProblem(arrays, out if out is not None else Tensor.packed(shape, arrays[0].dtype), axis)

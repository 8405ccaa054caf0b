"""Rows that are moved: validation."""
from dataclasses import dataclass

from ...host.canonical import check_output
from ...host.tensor import Tensor
from .._problem import DTYPES


@dataclass(frozen=True)
class RowsProblem:
    """``y[target[i]] = x[source[i]]``: all but the addresses.

    Attributes
    ----------
    x : Tensor (S, K)
    source, target : Tensor (n,) or None
        int32; None: i.
    y : Tensor (T, K)
    """
    x: Tensor
    source: Tensor | None
    target: Tensor | None
    y: Tensor
    op, flops, compute, scalar_type = "move_rows", 0, "float32", "float32"

    def __post_init__(self):
        op, x, n = self.op, self.x, self.count
        if x.dtype not in DTYPES:
            raise TypeError(f"{op}: x is {x.dtype}; expected one of {', '.join(DTYPES)}")
        if x.ndim != 2:
            raise ValueError(f"{op}: x has shape {x.shape}; expected two dimensions, rows and their elements")
        for name, t in (("source", self.source), ("target", self.target)):
            if t is None:
                continue
            if t.dtype != "int32":
                raise TypeError(f"{op}: {name} is {t.dtype}; expected int32")
            if t.shape != (n,):
                raise ValueError(f"{op}: {name} has shape {t.shape}; expected {(n,)}")
        if self.y.ndim != 2:
            raise ValueError(f"{op}: out has shape {self.y.shape}; expected two dimensions")
        check_output(op, self.y, (self.y.shape[0], x.shape[1]), x.dtype)
        if self.source is None and n > x.shape[0]:
            raise ValueError(f"{op}: target has {n} rows, x {x.shape[0]}; expected no more than x has")
        if self.target is None and self.y.shape[0] != n:
            raise ValueError(f"{op}: out has {self.y.shape[0]} rows; expected {n}")

    @property
    def count(self):
        """Rows that are moved."""
        some = self.source or self.target or self.x
        return some.shape[0]

    @property
    def dtype(self):
        return self.x.dtype

    @property
    def outputs(self):
        return (self.y,)

    @property
    def is_empty(self):
        return not self.count * self.x.shape[1]

    @property
    def bytes(self):
        """Bytes that must move: each row read and written."""
        return 2 * self.count * self.x.shape[1] * self.x.itemsize + sum(t.nbytes for t in (self.source, self.target) if t is not None)

    def operand_values(self, name):
        """Rows to measure with are there, each once."""
        if name not in ("source", "target"):
            return None
        import numpy as np
        most = (self.x if name == "source" else self.y).shape[0]
        return (np.random.default_rng(1).permutation(max(most, self.count))[:self.count] % max(most, 1)).astype(np.int32)

    def __str__(self):
        rows, length = self.x.shape
        words = "".join(f" {name}" for name in ("source", "target") if getattr(self, name) is not None)
        strided = "".join(f" {name} strides {t.strides}" for name, t in (("x", self.x), ("y", self.y)) if not t.is_packed)
        return f"{self.op} {rows}x{length} {self.dtype} to {self.y.shape[0]}, {self.count} rows by{words or ' position'}{strided}"


def make_rows(tensors, out, rows, aliases):
    """`RowsProblem` of a call."""
    x, source, target = tensors
    if x is None:
        raise TypeError("move_rows: x: got NoneType; expected an array")
    if x.ndim != 2:
        raise ValueError(f"move_rows: x has shape {x.shape}; expected two dimensions, rows and their elements")
    for name, t in (("source", source), ("target", target)):
        if t is not None and t.ndim != 1:
            raise ValueError(f"move_rows: {name} has shape {t.shape}; expected one dimension")
    count = (source or target or x).shape[:1]
    if out is None:
        out = Tensor.packed((*(count if rows is None else (rows,)), x.shape[1]), x.dtype)
    return RowsProblem(x, source, target, out)


def check_rows(problem, arrays):
    """Raise where a number of a row is out of range."""
    for name, t in (("source", problem.x), ("target", problem.y)):
        found = arrays.get(name)
        if found is not None and found.size and not (0 <= int(found.min()) and int(found.max()) < t.shape[0]):
            raise ValueError(f"move_rows: {name} has rows from {int(found.min())} to {int(found.max())}; expected 0 to {t.shape[0] - 1}")

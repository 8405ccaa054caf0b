"""The problems of embeddings: rows of a table taken by index, and the gradient of the table.

Positions are numbered in the order of the indices' elements, the last dimension fastest. Neighbouring dimensions along which an index and
its row are as far apart as one merged dimension would have them are one.
"""
import functools
import math
from dataclasses import dataclass

import numpy as np

from ..device.rows import Dim
from ..host.dtypes import compute_dtype
from ..host.products import FLOATS
from ..host.scalars import shown
from ..host.tensor import Tensor

INDICES = ("int32", "int64")
MOST_DIMENSIONS = 7  # of the indices: results have one more


class _Embedding:
    """What both directions share: a `table` (rows, columns), `indices`, and a row of `columns` for each of them."""
    scalar_type = "float32"
    flops = 0

    def _check(self, name, each_name, out):
        table, each = self.table, self.each
        expected = (*self.indices.shape, table.shape[-1]) if table.ndim == 2 else ()
        if table.ndim != 2:
            raise ValueError(f"{self.op}: {name} has shape {table.shape}; expected (rows, columns)")
        for label, tensor in ((name, table), (each_name, each)):
            if tensor.dtype not in FLOATS:
                raise TypeError(f"{self.op}: {label} is {tensor.dtype}; expected one of {', '.join(FLOATS)}")
        if each.dtype != table.dtype:
            label, other = (each_name, name) if self.is_forward else (name, each_name)
            raise TypeError(f"{self.op}: {label} is {self.outputs[0].dtype}, {other} is {self.dtype}; expected the same dtype")
        if each.shape != expected:
            raise ValueError(f"{self.op}: {each_name} has shape {each.shape}; expected {expected}, that of the indices and a row of {name}")
        out.check_addresses(self.op)

    @property
    def is_forward(self):
        return self.op.endswith("fwd")

    @property
    def columns(self):
        return self.table.shape[1]

    @property
    def positions(self):
        """How many indices there are."""
        return self.indices.size

    @functools.cached_property
    def outer(self):
        """The dimensions of the positions, in order, with the element strides of indices and of rows."""
        found = []
        for size, *strides in zip(self.indices.shape, self.indices.strides, self.each.strides):
            if size == 1:
                continue
            if found and found[-1].strides == tuple(s * size for s in strides):
                found[-1] = Dim(found[-1].size * size, tuple(strides))
            else:
                found.append(Dim(size, tuple(strides)))
        return tuple(found)

    @property
    def steps(self):
        """Element strides of indices and of rows from one position to the next, or None where these differ."""
        return None if len(self.outer) > 1 else self.outer[0].strides if self.outer else (0, 0)

    @property
    def compute(self):
        """Type of sums."""
        return compute_dtype(self.dtype)

    @property
    def is_empty(self):
        return self.outputs[0].size == 0

    def operand_values(self, name):
        """Indices to measure on: of words of a language, whose frequency is inverse to their rank, in any order."""
        if name != "indices":
            return None
        rng, rows = np.random.default_rng(3), self.table.shape[0]
        ranks = np.minimum(np.exp(rng.uniform(0, math.log(max(rows, 1)), self.indices.shape)), rows - 1).astype(np.int64)
        return ranks * 7919 % rows if rows % 7919 else ranks

    def _words(self):
        shape = "x".join(map(str, self.indices.shape)) or "scalar"
        named = ("indices", self.indices), ("table", self.table), ("rows", self.each)
        strided = "".join(f", {name} strides {t.strides}" for name, t in named if not t.is_packed)
        return f"{self.op} {shape} {self.indices.dtype} of {self.table.shape[0]}x{self.columns} {self.dtype}{strided}"


@dataclass(frozen=True)
class EmbeddingProblem(_Embedding):
    """``y[p] = weight[indices[p]]``.

    Attributes
    ----------
    weight, indices, y : Tensor
    """
    weight: Tensor
    indices: Tensor
    y: Tensor
    op = "embedding_fwd"

    def __post_init__(self):
        self._check("weight", "out", self.y)

    @property
    def table(self):
        return self.weight

    @property
    def each(self):
        return self.y

    @property
    def dtype(self):
        return self.weight.dtype

    @property
    def outputs(self):
        return (self.y,)

    @property
    def bytes(self):
        """Bytes that must move: each row that may be asked for once, each result."""
        return min(self.weight.nbytes, self.y.nbytes) + self.y.nbytes + self.indices.nbytes

    def __str__(self):
        return self._words()


@dataclass(frozen=True)
class EmbeddingGradientProblem(_Embedding):
    """``dweight[v] = sum over p with indices[p] == v of dy[p]``.

    Attributes
    ----------
    dy, indices, dweight : Tensor
    padding_idx : int
        The row whose gradient is 0; -1 for none.
    scale_grad_by_freq : bool
        Whether a row is divided by how often its index occurs.
    """
    dy: Tensor
    indices: Tensor
    dweight: Tensor
    padding_idx: int = -1
    scale_grad_by_freq: bool = False
    op = "embedding_bwd"

    def __post_init__(self):
        self._check("out", "dy", self.dweight)

    @property
    def table(self):
        return self.dweight

    @property
    def each(self):
        return self.dy

    @property
    def dtype(self):
        return self.dy.dtype

    @property
    def outputs(self):
        return (self.dweight,)

    @property
    def bytes(self):
        """Bytes that must move: each distinct element read, each written."""
        return self.dy.nbytes + self.indices.nbytes + self.dweight.nbytes

    def __str__(self):
        padding = f" padding {self.padding_idx}" if self.padding_idx >= 0 else ""
        return self._words() + padding + " by frequency" * self.scale_grad_by_freq


def _present(op, names, tensors):
    for name, tensor in zip(names, tensors):
        if tensor is None:
            raise TypeError(f"{op}: {name}: got NoneType; expected an array")


def _check_indices(op, indices):
    if indices.dtype not in INDICES:
        raise TypeError(f"{op}: indices is {indices.dtype}; expected int32 or int64")
    if indices.ndim > MOST_DIMENSIONS:
        raise ValueError(f"{op}: indices has {indices.ndim} dimensions (shape {indices.shape}); expected up to {MOST_DIMENSIONS}")


def make_forward(tensors, out, aliases):
    """The problem of a forward call."""
    op, (weight, indices) = "embedding_fwd", tensors
    _present(op, ("weight", "indices"), tensors)
    _check_indices(op, indices)
    columns = weight.shape[-1:]  # none of a weight without dimensions, which the problem refuses
    return EmbeddingProblem(weight, indices, out if out is not None else Tensor.packed((*indices.shape, *columns), weight.dtype))


def make_backward(tensors, out, num_embeddings, padding_idx, scale_grad_by_freq, aliases):
    """The problem of a backward call."""
    op, (dy, indices) = "embedding_bwd", tensors
    _present(op, ("dy", "indices"), tensors)
    _check_indices(op, indices)
    if not dy.ndim:
        raise ValueError(f"{op}: dy has no dimensions; expected those of the indices and a row")
    row = -1
    if padding_idx is not None:
        if not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(f"{op}: padding_idx={shown(padding_idx)} with num_embeddings={num_embeddings}; expected None or a row, "
                             f"{-num_embeddings} to {num_embeddings - 1}")
        row = padding_idx % num_embeddings
    if out is not None and out.shape != (num_embeddings, dy.shape[-1]):
        raise ValueError(f"{op}: out has shape {out.shape}; expected {(num_embeddings, dy.shape[-1])}")
    dweight = out if out is not None else Tensor.packed((num_embeddings, dy.shape[-1]), dy.dtype)
    return EmbeddingGradientProblem(dy, indices, dweight, row, scale_grad_by_freq)


def check_rows(problem, arrays):
    """ValueError where an index is no row of the table; waits for the device."""
    from ..host.check import to_host
    indices, rows = to_host(arrays["indices"]), problem.table.shape[0]
    wrong = (indices < 0) | (indices >= rows)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise ValueError(f"{problem.op}: indices{list(at) if at else ''} is {indices[at]}; expected a row of the table, 0 to {rows - 1}")

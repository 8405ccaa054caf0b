"""The gradient of a grouped product's matrices: a product over the rows of each group.

Algorithms receive ``y[g, m, n] = sum_k a[m, k] * b[k, n]`` over the rows k from offsets[g] to offsets[g+1] - 1, where row m of a is
column m of the tokens; a group without rows has zeros. Only the kernels read the offsets.
"""
import functools
from dataclasses import dataclass, replace

from ..device import device_function
from ..device.epilogue import EpilogueSpec
from ..device.index import ceil_div
from ..engine.roles import Roles
from ..engine.scales import Scales
from ..host.canonical import check_output
from ..host.choices import dtype_of, one_of
from ..host.dtypes import compute_dtype
from ..host.launch import Argument
from ..host.products import FLOATS, MATH, OUTPUTS
from ..host.tensor import Tensor

OP = "grouped_matmul_bwd_weights"


@dataclass(frozen=True)
class GroupedWeightsProblem:
    """``db[g] = a[o[g]:o[g+1]].T @ dy[o[g]:o[g+1]]`` for every group g: everything but addresses and values.

    Attributes
    ----------
    a : Tensor (M, K)
    dy : Tensor (M, N)
    group_offsets : Tensor (G + 1,), int32
    db : Tensor (G, K, N)
    math : None, "tf32" or "fast"
    """
    a: Tensor
    dy: Tensor
    group_offsets: Tensor
    db: Tensor
    math: str | None = None
    op = OP

    def __post_init__(self):
        check_operands(self.a, self.dy, self.group_offsets)
        one_of(OP, "math", self.math, MATH)
        if self.db.dtype not in OUTPUTS[self.a.dtype]:
            raise TypeError(f"{OP}: out (or out_dtype) is {self.db.dtype}; expected one of {', '.join(OUTPUTS[self.a.dtype])} for "
                            f"{self.a.dtype} operands")
        check_output(OP, self.db, (self.group_offsets.shape[0] - 1, self.a.shape[1], self.dy.shape[1]), self.db.dtype)

    @property
    def rows(self):
        """Rows of a and dy; those of all groups are at most as many."""
        return self.a.shape[0]

    @property
    def groups(self):
        return self.db.shape[0]

    @property
    def dtype_a(self):
        return self.a.dtype

    @property
    def compute(self):
        """Type of the accumulator."""
        return compute_dtype(self.a.dtype)

    @property
    def scalar_type(self):
        return self.compute

    @functools.cached_property
    def parts(self) -> Roles:
        """As the tile kernels take it: the matrices of db are a batch, stored by rows where they are by either. Groups begin at any row, so
        an operand that is contiguous along rows is aligned to elements."""
        def ragged(t):
            return replace(t, alignment=min(t.alignment, t.itemsize)) if t.strides[0] == 1 and self.rows > 1 else t
        wide = any(abs(edge) // t.itemsize >= 2 ** 31 for t in (self.a, self.dy, self.db) for edge in t.extent)
        spec = EpilogueSpec(bias_dtype=self.db.dtype, accumulator=self.compute, output=self.db.dtype, wide=wide)
        left, right, (group, row, column) = ("a", self.a), ("dy", self.dy), self.db.strides
        if column != 1 and row == 1:
            left, right, row, column = right, left, column, row
        return Roles(m=left[1].shape[1], n=right[1].shape[1], k=self.rows, a=ragged(left[1]), b=ragged(right[1]), y=self.db,
                     names=(left[0], right[0]), a_strides=left[1].strides[::-1], b_strides=right[1].strides, y_strides=(row, column),
                     c_strides=(0, 0), batch=((self.groups, (0, 0, 0, group if self.groups > 1 else 0)),), epilogue=spec, bias_stride=0,
                     scales=Scales())

    @property
    def likely_rows(self):
        """Rows of a group where all have about as many."""
        return ceil_div(self.rows, max(self.groups, 1))

    @property
    def outputs(self):
        return (self.db,)

    @property
    def is_empty(self):
        return not self.db.size

    @property
    def flops(self):
        return 2 * self.rows * self.a.shape[1] * self.dy.shape[1]

    @property
    def bytes(self):
        """Bytes that must move: each array once."""
        return sum(t.nbytes for t in (self.a, self.dy, self.group_offsets, self.db))

    def group_arguments(self):
        """The kernel parameters group_offsets, its stride, and the stride of db along groups."""
        return (Argument("int32*", "group_offsets"), Argument("int64", self.group_offsets.strides[0]),
                Argument("int64", self.parts.batch[0][1][3]))

    def operand_values(self, name):
        """What to measure on: offsets as of a router that sends each row to some group at random; None for other operands."""
        if name != "group_offsets":
            return None
        import numpy as np
        sizes = np.random.default_rng(20).multinomial(self.rows, [1 / self.groups] * self.groups) if self.groups else ()
        return np.concatenate(([0], np.cumsum(sizes, dtype=np.int64))).astype(np.int32)

    def __str__(self):
        text = f"{OP} {self.groups} groups of {self.a.shape[1]}x{self.dy.shape[1]}x{self.rows} {self.a.dtype}"
        return text + (f" -> {self.db.dtype}" if self.db.dtype != self.a.dtype else "") + (f" math={self.math}" if self.math else "")


@device_function
def rows_of(group, offsets, stride, rows):
    """(first, end) of a group's rows; whatever the offsets hold they lie within `rows`."""
    first, end = offsets[group * stride], offsets[(group + 1) * stride]
    first = min(max(first, 0), rows)
    return first, min(max(end, first), rows)


def check_operands(a, dy, offsets):
    """ValueError or TypeError unless these descriptors fit, naming the sizes."""
    for name, t, rank, shape in (("a", a, 2, "(M, K)"), ("dy", dy, 2, "(M, N)"), ("group_offsets", offsets, 1, "(G + 1,)")):
        if t is None:
            raise TypeError(f"{OP}: {name}: got NoneType; expected an array")
        if t.ndim != rank:
            raise ValueError(f"{OP}: {name} has shape {t.shape}; expected {shape}")
    if offsets.dtype != "int32":
        raise TypeError(f"{OP}: group_offsets is {offsets.dtype}; expected int32")
    if not offsets.shape[0]:
        raise ValueError(f"{OP}: group_offsets has shape (0,); expected one more than there are groups")
    for name, t in (("a", a), ("dy", dy)):
        if t.dtype not in FLOATS:
            raise TypeError(f"{OP}: {name} is {t.dtype}; expected one of {', '.join(FLOATS)}")
    if a.dtype != dy.dtype:
        raise TypeError(f"{OP}: a is {a.dtype} and dy is {dy.dtype}; expected the same dtype")
    if a.shape[0] != dy.shape[0]:
        raise ValueError(f"{OP}: a has {a.shape[0]} rows (shape {a.shape}), dy {dy.shape[0]} (shape {dy.shape}); expected the same")
    if a.shape[0] >= 2 ** 31 - 2 ** 16:
        raise ValueError(f"{OP}: a has {a.shape[0]} rows; expected fewer than 2**31 - 2**16")


def make_weights(tensors, out, math, out_dtype, aliases):
    """`GroupedWeightsProblem` of a call."""
    check_operands(*tensors)
    a, dy, offsets = tensors
    wanted = dtype_of(OP, "out_dtype", out_dtype) if out_dtype is not None else a.dtype if out is None else out.dtype
    if out is not None and out.dtype != wanted:
        raise TypeError(f"{OP}: out is {out.dtype}, out_dtype asks for {wanted}")
    shape = offsets.shape[0] - 1, a.shape[1], dy.shape[1]
    return GroupedWeightsProblem(a, dy, offsets, out if out is not None else Tensor.packed(shape, wanted), math)


def check_weights_offsets(problem, arrays):
    """ValueError where the offsets do not ascend within the rows; waits for the device."""
    from ..host.check import to_host
    offsets = to_host(arrays["group_offsets"])
    if offsets[0] < 0 or (offsets[1:] < offsets[:-1]).any() or offsets[-1] > problem.rows:
        raise ValueError(f"{OP}: group_offsets is {offsets.tolist()}; expected them ascending from 0 to the {problem.rows} rows of a")

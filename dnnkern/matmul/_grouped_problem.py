"""The grouped product: rows of a in groups, each with a matrix of its own; what a mixture of experts multiplies.

Algorithms receive ``y[m, n] = epilogue(sum_k a[m, k] * b[g, k, n])`` for the rows m from offsets[g] to offsets[g+1] - 1, with element
strides for every index. Only the kernels read the offsets: the host knows how many rows and groups there are at most.
"""
import functools
from dataclasses import dataclass

import numpy as np

from ..device.convert import element
from ..device.epilogue import Activation, EpilogueSpec
from ..engine.scales import Scales, scales_of
from ..host.choices import activation_of, dtype_of, one_of
from ..host.dtypes import compute_dtype
from ..host.launch import Argument
from ..host.products import MATH, check_addend, check_dtypes, default_output
from ..host.tensor import Tensor

OP = "grouped_matmul"


@dataclass(frozen=True)
class GroupedMatmulProblem:
    """``y[o[g]:o[g+1]] = activation(alpha * a[o[g]:o[g+1]] @ b[g] + bias[g])`` for every group g: everything but addresses and values.

    Attributes
    ----------
    a : Tensor (M, K)
    b : Tensor (G, K, N), or (G, N, K) with `transpose_b`
    group_offsets : Tensor (G + 1,), int32
    y : Tensor (M, N)
    bias : Tensor (G, N) or None
    transpose_b : bool
    activation : Activation
    scaled : bool
        alpha is not 1.
    math : None, "tf32" or "fast"
    scale_a, scale_b : Tensor or None
        Of 8-bit floating operands, see `engine.scales`; by column or block scale_b has a matrix for each group.
    """
    a: Tensor
    b: Tensor
    group_offsets: Tensor
    y: Tensor
    bias: Tensor | None = None
    transpose_b: bool = False
    activation: Activation = Activation()
    scaled: bool = False
    math: str | None = None
    scale_a: Tensor | None = None
    scale_b: Tensor | None = None

    def __post_init__(self):
        check_operands(self.a, self.b, self.group_offsets, self.transpose_b)
        check_dtypes(OP, self.a, self.b, self.y)
        one_of(OP, "math", self.math, MATH)
        if self.y.shape != (self.m_total, self.n):
            raise ValueError(f"{OP}: out has shape {self.y.shape}, the product has {(self.m_total, self.n)}")
        self.y.check_addresses(OP)
        check_addend(OP, "bias", self.bias, self.a.dtype)
        if self.bias is not None and self.bias.shape != (self.groups, self.n):
            raise ValueError(f"{OP}: bias has shape {self.bias.shape}; expected {(self.groups, self.n)}, a row for each group")
        self.scales  # validates them

    # ---- the canonical form

    @property
    def op(self):
        return OP

    @property
    def m_total(self):
        """Rows of a and y; those of all groups are at most as many."""
        return self.a.shape[0]

    @property
    def k(self):
        return self.a.shape[1]

    @property
    def n(self):
        return self.b.shape[1 if self.transpose_b else 2]

    @property
    def groups(self):
        return self.b.shape[0]

    @property
    def a_strides(self):
        """Element strides of a along (m, k)."""
        return self.a.strides

    @property
    def b_strides(self):
        """Element strides of b along (k, n)."""
        return self.b.strides[:0:-1] if self.transpose_b else self.b.strides[1:]

    @property
    def b_group_stride(self):
        """Element stride of b from group to group."""
        return self.b.strides[0] if self.groups > 1 else 0

    @property
    def y_strides(self):
        """Element strides of y along (m, n)."""
        return self.y.strides

    @property
    def bias_strides(self):
        """Element strides of bias along (groups, n)."""
        return self.bias.strides if self.bias else (0, 0)

    @functools.cached_property
    def scales(self) -> Scales:
        """How the operands are scaled; `scale_b` of group g is `scale_group_stride` * g elements on."""
        return scales_of(OP, self.a, self.b, self.scale_a, self.scale_b, self.m_total, self.n, self.k, lead=(self.groups,))

    @property
    def scale_group_stride(self):
        return self.scale_b.strides[0] if self.scales.b in ("column", "block") and self.groups > 1 else 0

    # ---- what is computed

    @property
    def compute(self):
        """Type of the accumulator."""
        return compute_dtype(self.a.dtype)

    @property
    def scalar_type(self):
        """Kernel type of alpha."""
        return "float64" if self.epilogue.compute == "float64" else "float32"

    @functools.cached_property
    def epilogue(self) -> EpilogueSpec:
        """The epilogue of one group's product; scales by block are the main loop's."""
        return EpilogueSpec(alpha=self.scaled, bias="column" if self.bias else None,
                            bias_dtype=self.bias.dtype if self.bias else self.y.dtype, activation=self.activation,
                            accumulator=self.compute, output=self.y.dtype, scales=self.scales.in_epilogue, wide=self.is_wide)

    @functools.cached_property
    def is_wide(self):
        """Whether an element offset inside some operand does not fit 32 bits."""
        return any(abs(edge) // t.itemsize >= 2 ** 31 for t in self._tensors for edge in t.extent)

    @property
    def _tensors(self):
        return tuple(t for t in (self.a, self.b, self.group_offsets, self.y, self.bias, self.scale_a, self.scale_b) if t)

    @property
    def outputs(self):
        return (self.y,)

    @property
    def is_empty(self):
        """Whether there is nothing to write: no elements, or no groups they could belong to."""
        return self.y.size == 0 or self.groups == 0

    @property
    def flops(self):
        return 2 * self.m_total * self.n * self.k

    @property
    def bytes(self):
        """Bytes that must move at least, if every group has rows."""
        return sum(t.nbytes for t in self._tensors)

    def offset_arguments(self) -> tuple:
        """The kernel parameters group_offsets and its stride."""
        return Argument("int32*", "group_offsets"), Argument("int64", self.group_offsets.strides[0])

    def epilogue_arguments(self) -> tuple:
        """The kernel parameters alpha, bias, and its strides along groups and n."""
        return (Argument(self.scalar_type, "alpha"), Argument(element(self.epilogue.bias_dtype).pointer, "bias"),
                *(Argument("int64", s) for s in self.bias_strides))

    def operand_values(self, name):
        """What to measure on: offsets as a router gives them that sends each row to some group at random; None for other operands."""
        if name != "group_offsets":
            return None
        import numpy as np
        sizes = np.random.default_rng(20).multinomial(self.m_total, [1 / self.groups] * self.groups) if self.groups else ()
        return np.concatenate(([0], np.cumsum(sizes, dtype=np.int64))).astype(np.int32)

    def __str__(self):
        text = f"{OP} {self.groups} groups of {self.m_total}x{self.n}x{self.k} {self.a.dtype}"
        text += (f" x {self.b.dtype}" if self.b.dtype != self.a.dtype else "") + f" n{'t' if self.transpose_b else 'n'}"
        if self.y.dtype != self.a.dtype:
            text += f" -> {self.y.dtype}"
        parts = ((str(self.scales), self.scale_a or self.scale_b), ("bias", self.bias),
                 (self.activation.mode, self.activation.mode != "identity"))
        extras = [name for name, present in parts if present]
        return text + (f" + {', '.join(extras)}" if extras else "") + (f" math={self.math}" if self.math else "")


def check_operands(a, b, offsets, transpose_b):
    """ValueError or TypeError unless these descriptors can be multiplied, naming the sizes."""
    shapes = ("a", a, 2, "(M, K)"), ("b", b, 3, "(G, N, K)" if transpose_b else "(G, K, N)"), ("group_offsets", offsets, 1, "(G + 1,)")
    for name, t, rank, shape in shapes:
        if t.ndim != rank:
            raise ValueError(f"{OP}: {name} has shape {t.shape}; expected {shape}")
    if offsets.dtype != "int32":
        raise TypeError(f"{OP}: group_offsets is {offsets.dtype}; expected int32")
    k_b = b.shape[2 if transpose_b else 1]
    if a.shape[1] != k_b:
        raise ValueError(f"{OP}: a gives K={a.shape[1]} (shape {a.shape}), b gives K={k_b} (shape {b.shape}"
                         f"{', transposed' if transpose_b else ''})")
    if offsets.shape != (b.shape[0] + 1,):
        raise ValueError(f"{OP}: group_offsets has shape {offsets.shape}; expected {(b.shape[0] + 1,)}, one more than b has groups")
    if a.shape[0] >= 2 ** 31:
        raise ValueError(f"{OP}: a has {a.shape[0]} rows; int32 offsets count to 2**31 - 1")


def make_problem(tensors, out, transpose_b, activation, math, out_dtype, scaled, aliases):
    """`GroupedMatmulProblem` of a call; `scaled` says whether alpha differs from 1."""
    a, b, offsets, bias, scale_a, scale_b = tensors
    for name, t in (("a", a), ("b", b), ("group_offsets", offsets)):
        if t is None:
            raise TypeError(f"{OP}: {name}: got NoneType; expected an array")
    check_operands(a, b, offsets, transpose_b)
    check_dtypes(OP, a, b, None)
    if out_dtype is not None:
        wanted = dtype_of(OP, "out_dtype", out_dtype)
    else:
        wanted = default_output(a.dtype) if out is None else out.dtype
    if out is not None and out.dtype != wanted:
        raise TypeError(f"{OP}: out is {out.dtype}, out_dtype asks for {wanted}")
    y = out if out is not None else Tensor.packed((a.shape[0], b.shape[1 if transpose_b else 2]), wanted)
    return GroupedMatmulProblem(a=a, b=b, group_offsets=offsets, y=y, bias=bias, transpose_b=bool(transpose_b),
                                activation=activation_of(OP, activation), scaled=bool(scaled), math=math, scale_a=scale_a, scale_b=scale_b)


def check_offsets(problem, arrays):
    """ValueError where the offsets do not ascend within the rows; waits for the device."""
    from ..host.check import to_host
    offsets = to_host(arrays["group_offsets"])
    if offsets[0] < 0:
        raise ValueError(f"{OP}: group_offsets begins with {offsets[0]}; expected 0 or more")
    for g in range(problem.groups):
        if offsets[g + 1] < offsets[g]:
            raise ValueError(f"{OP}: group_offsets[{g + 1}] is {offsets[g + 1]}, group_offsets[{g}] {offsets[g]}; expected them ascending")
    if offsets[-1] > problem.m_total:
        raise ValueError(f"{OP}: group_offsets ends with {offsets[-1]}; a has {problem.m_total} rows")


def rows_of_no_group(problem, arrays):
    """What is not written, as `host.front.Operation` wants it: the rows before the first offset, and from the last one on; waits for the
    device."""
    from ..host.check import to_host
    rows, offsets = np.arange(problem.m_total), to_host(arrays["group_offsets"])
    return {"y": (rows < offsets[0]) | (rows >= offsets[-1])}

"""The matrix-product problem: validation, shapes, and the canonical form that algorithms read.

Algorithms receive ``y[z, m, n] = epilogue(sum_k a[z, m, k] * b[z, k, n])`` with element strides for every index, whatever the operands'
shapes, transpositions and broadcasts were; `z` runs over at most a few merged batch dimensions.
"""
import functools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..device.epilogue import Activation, EpilogueSpec
from ..engine.programs import Steps, WithPrologues, check_access, operand_names
from ..engine.roles import epilogue_arguments
from ..engine.scales import Scales, scales_of
from ..host.choices import activation_of, dtype_of, one_of
from ..host.dtypes import compute_dtype
from ..host.launch import Argument
from ..host.products import MATH, check_addend, check_dtypes, default_output
from ..host.tensor import Tensor

if TYPE_CHECKING:
    from ..device.program import Program
    from ..engine.prologues import Prologue


@dataclass(frozen=True)
class BatchDim:
    """One merged batch dimension: its size and the element strides of the operands along it (0 where one is broadcast); `c` is the
    addend's, `bias` that of a bias for each matrix beside it, `extras` those of the operands of the program and of the prologues, `b_dual`
    the second right operand's."""
    size: int
    a: int
    b: int
    c: int
    y: int
    bias: int = 0
    extras: tuple = ()
    b_dual: int = 0

    def steps_into(self, inner):
        """Whether this dimension and the one inside it are one in every operand."""
        strides, inside = ((d.a, d.b, d.c, d.y, d.bias, d.b_dual, *d.extras) for d in (self, inner))
        return all(s == inner.size * t for s, t in zip(strides, inside))


@dataclass(frozen=True)
class MatmulProblem(WithPrologues):
    """``y = program(activation(alpha * prologue_a(a) @ prologue_b(b) + beta * c + bias))``: everything but the addresses and the values of
    alpha and beta. With `b_dual` it is ``y = program(a @ b, a @ b_dual)``, a dual product, SwiGLU's say.

    Attributes
    ----------
    a, b, y, bias, c : Tensor or None
        Operands as the caller gave them; bias and c may be missing.
    transpose_a, transpose_b : bool
        The last two dimensions of the operand are swapped.
    activation : Activation
    scaled : bool
        alpha is not 1.
    beta : bool
        beta is not 1 (a beta of 0 is a missing c).
    math : None, "tf32" or "fast"
    in_place : bool
        c is exactly y.
    scale_a, scale_b : Tensor or None
        Of 8-bit floating operands, see `engine.scales`.
    program : Program or None
        What becomes of each element before it is rounded, see `device.program`; rows and columns are those of the last two dimensions of y.
    extras : tuple of Tensor
        The program's operands, those that are read broadcasting to y, see `engine.programs`.
    prologue_a, prologue_b : Prologue or None
        What the operands are made of as they are loaded, see `engine.prologues`.
    b_dual : Tensor or None
        A second right operand, of b's shape and dtype: the program then has two accumulators, and there is nothing besides.
    """
    a: Tensor
    b: Tensor
    y: Tensor
    bias: Tensor | None = None
    c: Tensor | None = None
    transpose_a: bool = False
    transpose_b: bool = False
    activation: Activation = Activation()
    scaled: bool = False
    beta: bool = False
    math: str | None = None
    in_place: bool = False
    scale_a: Tensor | None = None
    scale_b: Tensor | None = None
    program: "Program | None" = None
    extras: tuple = ()
    prologue_a: "Prologue | None" = None
    prologue_b: "Prologue | None" = None
    b_dual: Tensor | None = None

    def __post_init__(self):
        object.__setattr__(self, "extras", tuple(self.extras))
        for name, t in (("a", self.a), ("b", self.b)):
            if t.ndim == 0:
                raise ValueError(f"matmul: {name} has no dimensions; expected one at least")
        self.check_prologues("matmul")
        check_dtypes("matmul", self.operand("a"), self.operand("b"), self.y)
        one_of("matmul", "math", self.math, MATH)
        for name, t, swap in (("a", self.a, self.transpose_a), ("b", self.b, self.transpose_b)):
            if t.ndim == 1 and swap:
                raise ValueError(f"matmul: transpose_{name} needs a matrix, {name} has shape {t.shape}")
        expected = self.shape_of(self.a, self.b, self.transpose_a, self.transpose_b)
        if self.y.shape != expected:
            raise ValueError(f"matmul: out has shape {self.y.shape}, the product has {expected}")
        self.y.check_addresses("matmul")
        for name, t in (("bias", self.bias), ("c", self.c)):
            check_addend("matmul", name, t, self.dtype_a)
        if self.bias is not None and not self._fits_bias(self.bias.shape):
            more = f", or one of these two for each matrix of the batch {self.batch_shape}" if self.batch_shape else ""
            raise ValueError(f"matmul: bias has shape {self.bias.shape}; expected ({self.n},) or (1, {self.n}) by column, or ({self.m}, 1) "
                             f"by row{more}")
        if self.c is not None and not _broadcasts(self.c.shape, self.y.shape):
            raise ValueError(f"matmul: c has shape {self.c.shape}, which does not broadcast to the output's {self.y.shape}")
        self.scales  # validates them
        self._check_dual()
        self.check_program("matmul", self.y.shape, self._matrix_axes[1])
        if self.program is not None:
            for name, (_, by), steps in zip(operand_names(self.program), self.program.operands, self.extra_steps):
                check_access("matmul", name, by, steps)
            self.check_reductions("matmul", self.y.shape, *self._matrix_axes, self.epilogue.compute)

    def _check_dual(self):
        """Raise unless a second right operand is one, and the program has all that is done to both products."""
        if self.b_dual is None:
            return
        for what, got, expected in (("shape", self.b_dual.shape, self.b.shape), ("dtype", self.b_dual.dtype, self.b.dtype)):
            if got != expected:
                raise ValueError(f"matmul: b_dual has {what} {got}; expected b's, {expected}")
        given = {"bias": self.bias, "c": self.c, "alpha": self.scaled, "activation": self.activation.mode != "identity",
                 "scale_a": self.scale_a, "scale_b": self.scale_b, "prologue_a": self.prologue_a, "prologue_b": self.prologue_b,
                 "reductions": self.reductions}
        beside = ", ".join(name for name, value in given.items() if value)
        if beside:
            raise ValueError(f"matmul: {beside} beside b_dual; expected a program of both products, and nothing else")
        if self.program is None:
            raise ValueError("matmul: b_dual without a program; expected one of two accumulators")

    @staticmethod
    def shape_of(a, b, transpose_a=False, transpose_b=False):
        """Shape of the product; ValueError where the operands do not fit, naming the sizes."""
        rows = a.shape[-2:][::-1] if transpose_a else a.shape[-2:]
        columns = b.shape[-2:][::-1] if transpose_b else b.shape[-2:]
        k_a, k_b = rows[-1], columns[0]
        if k_a != k_b:
            raise ValueError(f"matmul: a gives K={k_a} (shape {a.shape}{', transposed' if transpose_a else ''}), b gives K={k_b} "
                             f"(shape {b.shape}{', transposed' if transpose_b else ''})")
        batch_a, batch_b = a.shape[:-2], b.shape[:-2]
        rank = max(len(batch_a), len(batch_b))
        batch = []
        for p, q in zip((1,) * (rank - len(batch_a)) + batch_a, (1,) * (rank - len(batch_b)) + batch_b):
            if p != q and 1 not in (p, q):
                raise ValueError(f"matmul: the batch dimensions of a {batch_a} and b {batch_b} do not broadcast")
            batch.append(q if p == 1 else p)
        return tuple(batch) + rows[:-1] + columns[1:]

    # ---- the canonical form

    @property
    def op(self):
        return "matmul"

    @property
    def accumulators(self):
        """Of the program: one for each right operand."""
        return 1 if self.b_dual is None else 2

    @functools.cached_property
    def extra_names(self):
        """As `WithPrologues`', the second right operand in front."""
        names = WithPrologues.extra_names.func(self)
        return names if self.b_dual is None else (("b_dual", *names[0]), *names[1:])

    @functools.cached_property
    def m(self):
        return 1 if self.a.ndim == 1 else self.a.shape[-1 if self.transpose_a else -2]

    @functools.cached_property
    def n(self):
        return 1 if self.b.ndim == 1 else self.b.shape[-2 if self.transpose_b else -1]

    @functools.cached_property
    def k(self):
        return self.a.shape[-2 if self.transpose_a else -1]

    @functools.cached_property
    def a_strides(self):
        """Element strides of a along (m, k)."""
        if self.a.ndim == 1:
            return 0, self.a.strides[0]
        return self.a.strides[-2:][::-1] if self.transpose_a else self.a.strides[-2:]

    @functools.cached_property
    def b_strides(self):
        """Element strides of b along (k, n)."""
        return self._right_strides(self.b)

    @functools.cached_property
    def b_dual_strides(self):
        """The same of b_dual."""
        return self._right_strides(self.b_dual)

    def _right_strides(self, b):
        if b.ndim == 1:
            return b.strides[0], 0
        return b.strides[-2:][::-1] if self.transpose_b else b.strides[-2:]

    def _matrix_strides(self, strides):
        """Strides of an array shaped like y along (m, n), and of its batch dimensions."""
        strides = list(strides)
        n = 0 if self.b.ndim == 1 else strides.pop()
        m = 0 if self.a.ndim == 1 else strides.pop()
        return (m, n), tuple(strides)

    @functools.cached_property
    def y_strides(self):
        """Element strides of y along (m, n)."""
        return self._matrix_strides(self.y.strides)[0]

    @functools.cached_property
    def batch_shape(self):
        """Batch dimensions of y."""
        return self.y.shape[:len(self.y.shape) - (self.a.ndim > 1) - (self.b.ndim > 1)]

    @property
    def _matrix_axes(self):
        """The axes of y that are its rows, and those that are its columns."""
        rank, has_columns = self.y.ndim, self.b.ndim > 1
        return (rank - 1 - has_columns,) * (self.a.ndim > 1), (rank - 1,) * has_columns

    def _fits_bias(self, shape):
        return shape == (self.n,) or shape[-2:] in ((1, self.n), (self.m, 1)) and _broadcasts(shape[:-2], self.batch_shape)

    @functools.cached_property
    def bias_by(self):
        """None, "row" or "column"."""
        if self.bias is None:
            return None
        return "row" if self.bias.shape[-2:] == (self.m, 1) != (1, self.n) else "column"

    @functools.cached_property
    def has_batched_bias(self):
        """Whether there is a bias for each matrix: an addend that broadcasts to y, as c is."""
        return self.bias is not None and any(n != 1 for n in self.bias.shape[:-2])

    @functools.cached_property
    def bias_stride(self):
        """Element stride of a bias that all matrices share along its one direction."""
        if self.bias is None or self.has_batched_bias:
            return 0
        return self.bias.strides[-2 if self.bias_by == "row" else -1]

    @functools.cached_property
    def bias_strides(self):
        """((m, n), batch dimensions of y): element strides of a bias for each matrix."""
        return _broadcast_strides(self.bias, (self.m, self.n))[-2:], _broadcast_strides(self.bias, self.batch_shape, drop=2)

    @property
    def addend_name(self):
        """Which array epilogues read as c: "c", or "bias" where there is one for each matrix and no c."""
        return "bias" if self.has_batched_bias and self.c is None else "c"

    @property
    def has_two_addends(self):
        """Whether there is a bias for each matrix and c: epilogues read it as their residual."""
        return self.has_batched_bias and self.c is not None

    @property
    def addend(self):
        """The array of that name, or None."""
        return getattr(self, self.addend_name)

    @functools.cached_property
    def c_strides(self):
        """Element strides of the addend along (m, n); 0 where it is broadcast."""
        if self.addend_name == "bias":
            return self.bias_strides[0]
        return self._matrix_strides(_broadcast_strides(self.c, self.y.shape))[0] if self.c else (0, 0)

    @functools.cached_property
    def extra_steps(self) -> tuple:
        """The strides of each of the program's operands along (m, n), and along the batch dimensions of y."""
        strides = (self._matrix_strides(_broadcast_strides(t, self.y.shape)) for t in self.extras)
        return tuple(Steps(*of_matrix, batch) for of_matrix, batch in strides)

    @functools.cached_property
    def batch(self) -> tuple:
        """Batch dimensions, outermost first: those of size 1 dropped, neighbours merged where every operand steps evenly through both."""
        shape = self.batch_shape
        a = _broadcast_strides(self.a, shape, drop=2)
        b, b_dual = (_broadcast_strides(t, shape, drop=2) for t in (self.b, self.b_dual or self.b))
        if self.addend_name == "bias":
            c = self.bias_strides[1]
        else:
            c = self._matrix_strides(_broadcast_strides(self.c, self.y.shape))[1] if self.c else (0,) * len(shape)
        y = self._matrix_strides(self.y.strides)[1]
        bias = self.bias_strides[1] if self.has_two_addends else (0,) * len(shape)
        extras = tuple(zip(*(steps.batch for steps in self.extra_steps), *self.prologue_batches)) or ((),) * len(shape)
        merged = []
        for dim in (BatchDim(*v) for v in zip(shape, a, b, c, y, bias, extras, b_dual)):
            if dim.size == 1:
                continue
            last = merged[-1] if merged else None
            if last and last.steps_into(dim):
                merged[-1] = replace(dim, size=last.size * dim.size)
            else:
                merged.append(dim)
        return tuple(merged)

    @functools.cached_property
    def batch_size(self):
        return math.prod(d.size for d in self.batch)

    # ---- what is computed

    @property
    def compute(self):
        """Type of the accumulator."""
        return compute_dtype(self.dtype_a)

    @property
    def scalar_type(self):
        """Kernel type of alpha and beta."""
        return "float64" if self.epilogue.compute == "float64" else "float32"

    @functools.cached_property
    def scales(self) -> Scales:
        """How the operands are scaled."""
        return scales_of("matmul", self.operand("a"), self.operand("b"), self.scale_a, self.scale_b, self.m, self.n, self.k)

    @functools.cached_property
    def epilogue(self) -> EpilogueSpec:
        """The epilogue, with 64-bit offsets where 32 bits could overflow; scales by block are the main loop's, all others are in it."""
        return EpilogueSpec(alpha=self.scaled, beta=self.beta and self.c is not None, bias=None if self.has_batched_bias else self.bias_by,
                            bias_dtype=self.bias.dtype if self.bias else self.y.dtype, c=self.addend.dtype if self.addend else None,
                            residual=self.bias.dtype if self.has_two_addends else None,
                            activation=self.activation, accumulator=self.compute, output=self.y.dtype, scales=self.scales.in_epilogue,
                            wide=self.is_wide, program=self.program)

    @functools.cached_property
    def is_wide(self):
        """Whether an element offset inside some operand does not fit 32 bits."""
        return any(abs(edge) // t.itemsize >= 2 ** 31 for t in self._tensors for edge in t.extent)

    @functools.cached_property
    def _tensors(self):
        return tuple(t for t in (self.a, self.b, self.b_dual, self.y, self.bias, self.c, self.scale_a, self.scale_b,
                                 *self.extra_tensors.values()) if t)

    @functools.cached_property
    def operand_steps(self) -> tuple:
        """`extra_steps` along the dimensions of `batch`."""
        return tuple(steps._replace(batch=tuple(d.extras[k] for d in self.batch)) for k, steps in enumerate(self.extra_steps))

    @functools.cached_property
    def reduced_values(self) -> tuple:
        """The `Reduced` of each of the program's reductions."""
        return self.reduced(*self._matrix_axes, self.operand_steps)

    @property
    def outputs(self):
        return (self.y, *self.side_outputs)

    @property
    def is_empty(self):
        return self.y.size == 0

    @functools.cached_property
    def flops(self):
        return 2 * self.batch_size * self.m * self.n * self.k * self.accumulators

    @functools.cached_property
    def bytes(self):
        """Bytes that must move at least."""
        return sum(t.nbytes for t in self._tensors)

    def epilogue_arguments(self) -> tuple:
        """The kernel parameters of `EpilogueParams` but for the program's; those of scales are `scales.arguments()`."""
        return epilogue_arguments(self.epilogue, self.bias_stride, self.c_strides, self.addend_name)

    def batch_arguments(self) -> tuple:
        """Kernel parameters `sizes` and `strides` of the batch dimensions, for `_batch.make_batch_offsets`; none without a batch."""
        if not self.batch:
            return Argument("int64x1", (1,)), Argument("int64x4", (0, 0, 0, 0))
        sizes = tuple(d.size for d in self.batch)
        strides = tuple(s for d in self.batch for s in (d.a, d.b, d.c, d.y))
        return Argument(f"int64x{len(sizes)}", sizes), Argument(f"int64x{len(strides)}", strides)

    def __str__(self):
        text = f"matmul {self.batch_size}x" if self.batch_size > 1 else "matmul "
        a, b = (t.dtype if of not in self.prologues else f"{t.dtype} {self.prologues[of].program} to {self.prologues[of].dtype}"
                for of, t in (("a", self.a), ("b", self.b)))
        text += f"{self.m}x{self.n}x{self.k} {a}" + (f" x {b}" if a != b else "")
        text += f" {'t' if self.transpose_a else 'n'}{'t' if self.transpose_b else 'n'}"
        if self.y.dtype != self.dtype_a:
            text += f" -> {self.y.dtype}"
        bias = f"bias by {'batch and ' * self.has_batched_bias}{self.bias_by}"
        parts = (("dual", self.b_dual), (str(self.scales), self.scale_a or self.scale_b), (bias, self.bias), ("c", self.c),
                 (self.activation.mode, self.activation.mode != "identity"), (f"program {self.program}", self.program))
        extras = [name for name, present in parts if present]
        return text + (f" + {', '.join(extras)}" if extras else "") + (f" math={self.math}" if self.math else "")


def _broadcasts(shape, target):
    return len(shape) <= len(target) and all(p in (1, q) for p, q in zip(reversed(shape), reversed(target)))


def _broadcast_strides(t, shape, drop=0):
    """Strides of `t` (without its last `drop` dimensions) along `shape`, 0 where it is broadcast."""
    sizes, strides = (t.shape[:-drop], t.strides[:-drop]) if drop else (t.shape, t.strides)
    missing = len(shape) - len(sizes)
    return (0,) * missing + tuple(0 if n == 1 else s for n, s in zip(sizes, strides))


def make_problem(tensors, out, transpose_a, transpose_b, activation, math, out_dtype, scaled, beta, aliases):
    """`MatmulProblem` of a call; `scaled` and `beta` say whether alpha and beta differ from 1."""
    a, b, bias, c, scale_a, scale_b = tensors
    for name, t in (("a", a), ("b", b)):
        if t is None:
            raise TypeError(f"matmul: {name}: got NoneType; expected an array")
        if t.ndim == 0:
            raise ValueError(f"matmul: {name} has no dimensions; expected one at least")
    check_dtypes("matmul", a, b, None)
    if out_dtype is not None:
        wanted = dtype_of("matmul", "out_dtype", out_dtype)
    else:
        wanted = default_output(a.dtype) if out is None else out.dtype
    if out is not None and out.dtype != wanted:
        raise TypeError(f"matmul: out is {out.dtype}, out_dtype asks for {wanted}")
    y = out if out is not None else Tensor.packed(MatmulProblem.shape_of(a, b, transpose_a, transpose_b), wanted)
    return MatmulProblem(a=a, b=b, y=y, bias=bias, c=c, transpose_a=bool(transpose_a), transpose_b=bool(transpose_b),
                         activation=activation_of("matmul", activation), scaled=bool(scaled),
                         beta=bool(beta) and c is not None, math=math, in_place="c" in aliases and c is not None,
                         scale_a=scale_a, scale_b=scale_b)

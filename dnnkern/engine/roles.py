"""Who plays which part: the product as it is, or transposed, and how each operand can be read.

y = a b is also yT = bT aT. The tile kernels store rows of y, so where y is contiguous along m they compute the transposed product: the
operands change places, and with them the epilogue's rows and columns.
"""
import functools
from dataclasses import dataclass, replace

from ..device.convert import element
from ..host.launch import Argument
from ..host.memo import remembered
from .loaders import ALONG_K, ALONG_ROWS, STRIDED
from .programs import NOTHING


@dataclass(frozen=True)
class Roles:
    """A `MatmulProblem` with its operands in their parts; names are the plan's, strides count elements.

    `ragged`: rows come in groups of any sizes, so that a tile can reach over the end of one wherever it lies. `pitch`: elements of a row of
    partial sums, where a loader pads it. `addend`: the array that the epilogue reads as c. `operand_steps`: the `Steps` of the program's
    operands. `making`: the `Making` of a and of b, None where they are loaded as they are. `reduced`: the `Reduced` of each of the
    program's reductions, whose states are of tiles of rows, or of `row_tiles` parts.
    """
    m: int
    n: int
    k: int
    a: object
    b: object
    y: object
    names: tuple
    a_strides: tuple
    b_strides: tuple
    y_strides: tuple
    c_strides: tuple
    batch: tuple
    epilogue: object
    bias_stride: int
    scales: object
    ragged: bool = False
    pitch: int = 0
    addend: str = "c"
    operand_steps: tuple = ()
    making: tuple = (None, None)
    reduced: tuple = ()
    row_tiles: int = 0

    @property
    def dtype(self):
        return self.a.dtype

    @functools.cached_property
    def batch_size(self):
        size = 1
        for sizes, _ in self.batch:
            size *= sizes
        return size

    def operand_arguments(self):
        """Pointers to the left and the right operand."""
        return tuple(Argument(element(t.dtype).pointer, name) for t, name in zip((self.a, self.b), self.names))

    def making_arguments(self):
        """The kernel parameters with the operands of the prologues of the left and the right operand."""
        return tuple(NOTHING if making is None else making.argument(len(self.batch)) for making in self.making)

    def batch_arguments(self):
        """`sizes` and `strides` for `_batch.make_batch_offsets`."""
        sizes = tuple(size for size, _ in self.batch) or (1,)
        strides = tuple(s for _, four in self.batch for s in four) or (0, 0, 0, 0)
        return Argument(f"int64x{len(sizes)}", sizes), Argument(f"int64x{len(strides)}", strides)

    def epilogue_arguments(self):
        """The epilogue's tuple as kernel parameters, but for the scales."""
        return epilogue_arguments(self.epilogue, self.bias_stride, self.c_strides, self.addend)


def _making(problem):
    from .prologues import making_of
    return making_of(problem, "a"), making_of(problem, "b")


@remembered
def roles(problem, swap=False) -> Roles:
    """The problem's parts; with `swap` those of the transposed product."""
    batch = tuple((d.size, (d.b, d.a, d.c, d.y) if swap else (d.a, d.b, d.c, d.y)) for d in problem.batch)
    making = _making(problem) if getattr(problem, "prologues", None) else (None, None)
    reduced = getattr(problem, "reduced_values", ())
    common = dict(making=making[::-1] if swap else making,
                  k=problem.k, y=problem.y, batch=batch, bias_stride=problem.bias_stride, addend=problem.addend_name)
    if not swap:
        return Roles(m=problem.m, n=problem.n, a=problem.a, b=problem.b, names=("a", "b"), a_strides=problem.a_strides,
                     b_strides=problem.b_strides, y_strides=problem.y_strides, c_strides=problem.c_strides, epilogue=problem.epilogue,
                     scales=problem.scales, operand_steps=problem.operand_steps, reduced=reduced, **common)
    scales = problem.scales.swapped()
    bias, program = {"row": "column", "column": "row", None: None}[problem.epilogue.bias], problem.epilogue.program
    return Roles(m=problem.n, n=problem.m, a=problem.b, b=problem.a, names=("b", "a"), a_strides=problem.b_strides[::-1],
                 b_strides=problem.a_strides[::-1], y_strides=problem.y_strides[::-1], c_strides=problem.c_strides[::-1],
                 epilogue=replace(problem.epilogue, bias=bias, scales=scales.in_epilogue, program=program and program.transposed()),
                 scales=scales, operand_steps=tuple(steps.transposed() for steps in problem.operand_steps),
                 reduced=tuple(of.transposed() for of in reduced), **common)


@remembered
def stored_by_rows(problem) -> Roles:
    """The parts in which y is contiguous along its columns, if it is along either; a program that reduces rows has them as they are."""
    by_columns = problem.y_strides[1] != 1 and problem.y_strides[0] == 1 and problem.m > 1
    return roles(problem, by_columns and not has_row_steps(problem.epilogue))


def has_row_steps(spec):
    """Whether an `EpilogueSpec`'s program reduces each row."""
    return spec.program is not None and bool(spec.program.row_steps)


def widest(limit, tensor, contiguous, extents, strides):
    """Most elements, at most `limit`, that one access can take everywhere; 1 unless `contiguous`.

    A power of two that divides the address, `extents` (of the contiguous dimension), and `strides` (of all others).
    """
    width = limit if contiguous else 1
    while width > 1 and (tensor.alignment % (width * tensor.itemsize) or any(v % width for v in (*extents, *strides))):
        width //= 2
    return width


def operand_strides(parts, which):
    """(extent along m or n, stride along it, stride along k, strides of the batch) of operand "a" or "b"."""
    if which == "a":
        return parts.m, parts.a_strides[0], parts.a_strides[1], tuple(four[0] for _, four in parts.batch)
    return parts.n, parts.b_strides[1], parts.b_strides[0], tuple(four[1] for _, four in parts.batch)


@remembered
def access(parts, which, limit):
    """(order, elements of one access) with which an operand is best read; a dimension of size 1 has any stride."""
    tensor = parts.a if which == "a" else parts.b
    extent, across, along, batch = operand_strides(parts, which)
    if extent > 1 and across == 1:
        return ALONG_ROWS, widest(limit, tensor, True, (extent,), batch + ((along,) if parts.k > 1 else ()))
    return ALONG_K if along == 1 else STRIDED, widest(limit, tensor, along == 1, (parts.k,), batch + ((across,) if extent > 1 else ()))


def store_width(parts, limit):
    """Elements of y that one store can take: `limit` or 1."""
    y, (row, column) = parts.y, parts.y_strides
    strides = tuple(four[3] for _, four in parts.batch) + ((row,) if parts.m > 1 else ())
    width = min(limit, 16 // y.itemsize)
    return limit if widest(width, y, column == 1, (parts.n,), strides) == limit else 1


def epilogue_arguments(spec, bias_stride, c_strides=(0, 0), addend="c"):
    """The kernel parameters alpha to c_column_stride of an epilogue's tuple; `addend` names the array that it reads as c."""
    given = {"alpha": "alpha", "beta": "beta", "bias": "bias", "bias_stride": bias_stride, "c": addend, "c_row_stride": c_strides[0],
             "c_column_stride": c_strides[1]}
    return tuple(Argument(kind, given[name]) for name, kind in spec.arguments[:len(given)])

"""Reductions of an anchor's result by the tiles of its kernel (`device.program.Program.reductions`), and the launch that ends them.

A kernel writes the states of each tile to the workspace: those of its columns (over rows), of its rows (over columns), or one (over all).
Elements past the edges of the result are no tile's. The second launch merges the states of all tiles in a fixed order.

A state of matrix z and tile t lies at ``z * matrix + t * tile + position`` of a plane; there are planes of ``splits * outputs`` numbers as
`_stages` has them. Where each matrix has results of its own the tiles are the splits, else the matrices are too.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, device_function, i64, jit
from ..device.convert import SCALARS, element
from ..device.epilogue import make_epilogue
from ..device.index import ceil_div
from ..device.program_operands import operands_class
from ..engine.fold import make_fold
from ..engine.offsets import offset_arguments
from ..engine.programs import Reduced
from ..host.canonical import Dim
from ..host.dtypes import ITEMSIZE
from ..host.launch import Argument, Launch
from ._stages import finish_across, finish_threads, make_finish

MEMBERS = 4
"""Of a reduction in the parameter `states` of a kernel: the states, and how far it is from matrix to matrix, tile to tile, between
planes."""
FINISHED = 7
"""Of one in that of the second launch."""


@dataclass(frozen=True)
class Partial:
    """The states of one reduction in the workspace: `results` of a tile in a line, `first` bytes before them; see the module."""
    reduced: Reduced
    compute: str
    results: int
    outputs: int
    splits: int
    matrix: int
    tile: int
    count: int
    first: int

    @property
    def nbytes(self):
        """Bytes, to the next multiple of 16."""
        numbers = self.outputs * self.splits * make_fold(self.reduced.mode, self.compute).parts
        return ceil_div(numbers * ITEMSIZE[self.compute], 16) * 16


def partials_of(parts, bm, bn, first=0) -> list:
    """The `Partial` of each reduction of a product's `Roles`, or of what has these of them, in tiles of bm x bn; `first` bytes of the
    workspace are another's."""
    found, compute = [], parts.epilogue.program.reduced_type(parts.epilogue.compute)
    tiles_m, tiles_n = parts.row_tiles or ceil_div(parts.m, bm), ceil_div(parts.n, bn)
    for of in parts.reduced:
        results, tiles, count = {"rows": (parts.n, tiles_m, parts.m), "columns": (parts.m, tiles_n, parts.n),
                                 "all": (1, tiles_m * tiles_n, parts.m * parts.n)}[of.over]
        if of.by_matrix:
            outputs, splits, matrix = parts.batch_size * results, tiles, results
        else:
            outputs, splits, matrix, count = results, parts.batch_size * tiles, tiles * results, parts.batch_size * count
        found.append(Partial(of, compute, results, outputs, splits, matrix, outputs, count, first))
        first += found[-1].nbytes
    return found


def states_argument(parts, bm, bn, first=0):
    """The kernel parameter `states`: `MEMBERS` of each reduction."""
    members = [a for p in partials_of(parts, bm, bn, first) for a in (
        Argument(f"{p.compute}*", "workspace", p.first), *(Argument("int64", v) for v in (p.matrix, p.tile, p.outputs * p.splits)))]
    kind = operands_class(tuple(a.type for a in members))
    return Argument(kind, kind(*members))


# ---- tiles of one element

@functools.cache
def make_single(spec):
    """Device function ``single(acc, m, n, e, (row, column, z, columns), states)``: the states of the tile that is an element in one of so
    many columns of matrix z; its program calls it (m, n)."""
    reduced, put = make_epilogue(spec, "reduced"), None
    for k, (_, mode, over, _) in enumerate(spec.program.reductions):
        put = _with_single(put, k, make_fold(mode, spec.program.reduced_type(spec.compute)), over)

    @device_function
    def single(acc, m, n, e, where, states):
        row, column, z, columns = where
        put(reduced(acc, m, n, e), row, column, i64(z), columns, states)
    return single


def _with_single(before, K, fold, over):
    """The states `before`, which may be None, and one more."""
    AT, MATRIX, TILE, PLANE = (MEMBERS * K + j for j in range(MEMBERS))
    lift, put, BY_ROWS, BY_COLUMNS = fold.lift, fold.put, over == "rows", over == "columns"

    @device_function
    def last(v, m, n, z, columns, states):
        tile, position = (m, n) if BY_ROWS else (n, m) if BY_COLUMNS else (i64(m) * columns + n, 0)
        put(states[AT], states[AT], z * states[MATRIX] + tile * states[TILE] + position, states[PLANE], lift(v[K], 0))
    if before is None:
        return last

    @device_function
    def both(v, m, n, z, columns, states):
        before(v, m, n, z, columns, states)
        last(v, m, n, z, columns, states)
    return both


# ---- the second launch

def after(before, last):
    """Device function of one tuple: `before`, which may be None, then `last`."""
    if before is None:
        return last

    @device_function
    def both(s):
        before(s)
        last(s)
    return both


@functools.cache
def finish_kernel(kinds, threads, dependent):
    """The results of all reductions, whose (mode, dtype, compute type, kept dimensions, results side by side in a block) are `kinds`; those
    of number k are of the blocks (x, k)."""
    run, NUMBERS, T = None, 1, SCALARS[kinds[0][2]]
    for k, (mode, out, compute, kept, across) in enumerate(kinds):
        finish, numbers, _ = make_finish(mode, out, compute, kept, across, threads, dependent)
        run, NUMBERS = _with_finish(run, k, finish, across), max(NUMBERS, numbers)

    @jit(launch_bounds=threads)
    def reduce_tiles(e):
        run(cuda.shared.array(NUMBERS, T), cuda.blockIdx.y, e)
    return reduce_tiles


def _with_finish(before, K, finish, ACROSS):
    PARTIAL, Y, OUTPUTS, SPLITS, DIVISORS, STRIDES, FACTOR = (FINISHED * K + j for j in range(FINISHED))

    @device_function
    def last(numbers, number, e):
        if number == K and cuda.blockIdx.x * ACROSS < e[OUTPUTS]:
            finish(numbers, numbers, e[PARTIAL], e[PARTIAL], e[Y], e[Y], e[OUTPUTS], e[SPLITS], e[DIVISORS], e[STRIDES], e[FACTOR])
    if before is None:
        return last

    @device_function
    def both(numbers, number, e):
        before(numbers, number, e)
        last(numbers, number, e)
    return both


def finish_launch(parts, bm, bn, dependent=False, first=0):
    """The second launch; `dependent`: prepared while the first runs."""
    members, kinds, blocks, threads = [], [], 1, 0
    partials = partials_of(parts, bm, bn, first)
    for p in partials:
        name, mode, over, dtype, by_matrix, steps, rows = p.reduced
        dims = [Dim(size, step, 0) for (size, _), step in zip(parts.batch, steps.batch)] if by_matrix else []
        if over == "columns" and rows:
            dims += [Dim(size, step, 0) for size, step in rows]
        elif over != "all":
            dims.append(Dim(p.results, steps.column if over == "rows" else steps.row, 0))
        members += [Argument(f"{p.compute}*", "workspace", p.first), Argument(element(dtype, p.compute).pointer, name),
                    Argument("int32", p.outputs), Argument("int32", p.splits), *offset_arguments(dims, True),
                    Argument(p.compute, 1 / p.count)]
        kinds.append((mode, dtype, p.compute, len(dims), finish_across(p.outputs)))
        blocks, threads = max(blocks, ceil_div(p.outputs, kinds[-1][-1])), max(threads, finish_threads(p.outputs, p.splits))
    kind = operands_class(tuple(a.type for a in members))
    return Launch(finish_kernel(tuple(kinds), threads, dependent), (blocks, len(partials), 1), (threads, 1, 1),
                  (Argument(kind, kind(*members)),), dependent=dependent)

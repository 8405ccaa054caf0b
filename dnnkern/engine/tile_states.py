"""Reductions of a program by the tiles of an anchor's kernel: what the kernel and `reduce._tiles` know of each other.

Algorithms and main loops need no more than this where there are none; what reduces is imported where there are some.
"""
import functools
from dataclasses import replace
from typing import Callable, NamedTuple

from ..device import device_function, i32
from ..device.index import ceil_div
from .cost import LAUNCH, Cost
from .loaders import log2
from .programs import NOTHING


class Fragment(NamedTuple):
    """How the elements of a tile of bm x bn lie in its threads.

    Attributes
    ----------
    bm, bn, threads : int
    rows, columns : int
        Of a thread.
    row_layers, column_layers : int
        Warps that share columns, and rows.
    row, column : device function (k, lane)
        Where the lane's row or column number k is among its warp's.
    owns : device function (k, warp)
        Whether the warp at a `WarpAt` has the row.
    edge : bool
        Whether a tile may reach over the last column.
    """
    bm: int
    bn: int
    threads: int
    rows: int
    columns: int
    row_layers: int
    column_layers: int
    row: Callable
    column: Callable
    owns: Callable
    edge: bool


class WarpAt(NamedTuple):
    """Of a warp in its tile: its first row and column, its number among those with the same columns, and among those with the same rows,
    and its slice."""
    row: i32
    column: i32
    row_layer: i32
    column_layer: i32
    slice: i32


class Reducing(NamedTuple):
    """What reductions need of the kernel: columns of the result, the epilogue's operands, the matrix, and the parameter `states`."""
    n: i32
    e: object
    z: i32
    states: object


def mma_fragment(tile, row_of, spread, edge):
    """The `Fragment` of an `engine.ampere.MmaTile`; slices have rows of their own, of all the warp's columns."""
    RUN, SHIFT, SLICES = 2 * spread, log2(2 * spread), tile.slices
    return Fragment(tile.bm, tile.bn, tile.threads, tile.warp_m // 8, tile.warp_n // 4, tile.warps_m * SLICES, tile.warps_n,
                    device_function(lambda k, lane: row_of(k, lane >> 2)),
                    device_function(lambda k, lane: (k >> SHIFT) * 4 * RUN + (lane & 3) * RUN + (k & (RUN - 1))),
                    device_function(lambda k, warp: SLICES == 1 or k >> 1 & (SLICES - 1) == warp.slice), edge)


def reduces(spec):
    """Whether an `EpilogueSpec`'s program has reductions."""
    return spec.program is not None and bool(spec.program.reductions)


@device_function
def _as_it_is(row, e):
    return row, e


def fragment_reductions(spec, of_row=_as_it_is):
    """What `make_mma_product` takes as `reductions`, None where there are none; device function ``of_row(row, e)`` -> (the row's number and
    the operands as the epilogue takes them), of a row of the product and what `Reducing` has as `e`."""
    if not reduces(spec):
        return None
    from ..reduce._fragments import make_reductions
    return functools.partial(make_reductions, spec, of_row)


def warp_bytes(spec, bm, bn, threads, row_layers, column_layers):
    """Bytes of shared memory that the states of all warps of a tile take, see `Fragment`."""
    if not reduces(spec):
        return 0
    from ..reduce._fragments import shared_bytes
    return shared_bytes(spec, bm, bn, threads, row_layers, column_layers)


WARP_ROWS, WARP_COLUMNS, KEPT_COLUMNS = 16, 16, 32
"""Of the tiles of warpgroups, of what a warp reduces at a time, and of what its lanes keep states in one register. See `reduce._warps`."""


class WarpRows(NamedTuple):
    """Of a lane's two rows, as the program counts them and within the result, whether they are there; the number of the warp's tile, and
    whether the result has one."""
    low: i32
    high: i32
    has_low: bool
    has_high: bool
    tile: i32
    exists: bool


class KeptStates(NamedTuple):
    """States that the threads of a block keep from tile to tile, and write once; all its tiles have the same columns.

    Attributes
    ----------
    count, type
        Of the local array `own` of a thread.
    start : ``start((own,))``
    finish : ``finish(own, tile, group, thread, scratch, out)``
        By all warpgroups, after their last tiles: the states of the block, whose first tile is `tile`. `scratch` is a shared address of
        memory that no warpgroup reads or writes any more when all are here.
    """
    count: int
    type: object
    start: Callable
    finish: Callable


MOST_KEPT = 16  # numbers of a thread: two of each of its columns in tiles of 256 columns
BESIDE = 96     # sums of a thread that keeps numbers while it reads another matrix; of more some are spilled


def kept_numbers(parts, bn):
    """Numbers that a thread keeps of a product's reductions, in tiles of `bn` columns. Host function."""
    if not parts.reduced:
        return 0
    from .fold import make_fold
    compute = parts.epilogue.program.reduced_type(parts.epilogue.compute)
    each = {"rows": ceil_div(bn, KEPT_COLUMNS), "columns": 0, "all": 1}
    return sum(each[of.over] * make_fold(of.mode, compute).parts for of in parts.reduced)


def keeping(parts, tile, slots):
    """The parts of a product, in as many `row_tiles` as blocks keep states of the same columns in, where `slots` blocks or clusters run
    at once; as they are, if that would take another wave of tiles, or there is nothing to keep, or too much. Host function."""
    if parts.batch_size != 1 or tile.bn % KEPT_COLUMNS or not 0 < kept_numbers(parts, tile.bn) <= MOST_KEPT:
        return parts
    if tile.sums > BESIDE and _reads_a_matrix(parts.epilogue):
        return parts
    columns = ceil_div(parts.n, tile.bn)
    tiles = columns * ceil_div(parts.m, tile.bm * tile.cluster)
    most = min(tiles, slots)
    rows = most // columns
    if rows == 0 or ceil_div(tiles, rows * columns) > ceil_div(tiles, most):
        return parts
    return replace(parts, row_tiles=rows * tile.cluster)


def _reads_a_matrix(spec):
    return bool(spec.c or spec.residual) or any(access == "matrix" for _, access in spec.program.operands[:spec.program.inputs])


def blocks_of(parts, tile, tiles, slots):
    """How many blocks take `tiles` tiles, of a product's parts as `keeping` leaves them. Host function."""
    if parts.row_tiles:
        return parts.row_tiles * ceil_div(parts.n, tile.bn)
    return min(tiles, slots) * tile.cluster


def single_states(spec):
    """`reduce._tiles.make_single` of an `EpilogueSpec`, None where there are no reductions."""
    if not reduces(spec):
        return None
    from ..reduce._tiles import make_single
    return make_single(spec)


def states_refusal(parts, bm, bn):
    """Why the states of tiles of bm x bn cannot be counted, or None."""
    nbytes = states_bytes(parts, bm, bn)
    return f"partial reductions of {nbytes} bytes; expected less than 2**31" if nbytes >= 2 ** 31 else None


def states_bytes(parts, bm, bn):
    """Bytes of the workspace that the states of tiles of bm x bn take."""
    if not parts.reduced:
        return 0
    from ..reduce._tiles import partials_of
    return sum(p.nbytes for p in partials_of(parts, bm, bn))


def states_seconds(nbytes, device):
    """Time of the launch that merges states of so many bytes, written and read; 0 without any."""
    return LAUNCH + Cost(reduction=2 * nbytes / device.bandwidth) if nbytes else 0.0


def stored_first_refusal(problem):
    """Why a kernel that stores results before it reduces them cannot take a problem's reductions, or None."""
    if problem.reductions and problem.in_place:
        return "reductions where c is y, or beta: what the output held is read when it has been stored"
    return None


def states_argument(parts, bm, bn, first=0):
    """The kernel parameter `states`; `first` bytes of the workspace are another's."""
    if not parts.reduced:
        return NOTHING
    from ..reduce._tiles import states_argument as argument
    return argument(parts, bm, bn, first)


def with_finish(launches, parts, bm, bn, dependent=False, first=0):
    """The launches, and the one that ends the reductions where there are some; `dependent` (sm_90): prepared while those run."""
    if not parts.reduced:
        return launches
    from ..reduce._tiles import finish_launch
    return (*launches, finish_launch(parts, bm, bn, dependent, first))

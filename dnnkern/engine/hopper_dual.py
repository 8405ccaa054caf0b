"""Dual products in the Hopper main loop: a stage has columns of two right operands, one after the other.

A tile of bn columns is bn / 2 of each operand's, and one wgmma multiplies both. Of each 8 columns a thread's fragment has the same two, so
that the sums of a column by the one operand and by the other are in one thread, a constant number of accumulators apart
(`stores.make_epilogue_of`): the epilogue meets both without a shuffle, and y's tile is half as wide as the products'.
"""
import functools
from dataclasses import replace
from typing import NamedTuple

from ..device import device_function, i32, u32
from .hopper import ITEMSIZE, ROW, Loader, make_matrix_copy
from .hopper_plan import make_locate


class DualTile(NamedTuple):
    """A `hopper_plan.WorkTile` over all of k, its first column being y's, and the map of the second right operand."""
    k_begin: i32
    k_end: i32
    row: i32
    column: i32
    z_a: i32
    z_b: i32
    z: i32
    b_dual: object


def b_rows(tile):
    """Columns of a right operand that a block loads at a time."""
    return tile.bn // max(tile.cluster, 2)


@functools.cache
def make_dual_locate(tile):
    """Device function ``locate(t, rank, (b_dual, of_results))``: the `DualTile` number t; `of_results` are
    `hopper_plan.locate_arguments`."""
    located = make_locate(replace(tile, bn=tile.bn // 2))

    @device_function
    def locate(t, rank, given):
        b_dual, of_results = given
        tile = located(t, rank, of_results)
        return DualTile(tile.k_begin, tile.k_end, tile.row, tile.column, tile.z_a, tile.z_b, tile.z, b_dual)
    return locate


@functools.cache
def make_dual_loader(tile, dtype, b_dtype, a_major, b_major):
    """`hopper.Loader` of a matrix and two right ones, as `hopper.make_matrix_loader`'s, of `DualTile`s. The first half of a cluster's
    blocks loads the first operand's columns for all, the second half the second's."""
    BK, HALF, COUNT, MULTICAST = ROW // ITEMSIZE[dtype], tile.cluster // 2, b_rows(tile), tile.cluster > 1
    if b_major != "k" and COUNT % 64:
        raise ValueError(f"tile {tile}: operands contiguous along n come in boxes of 64 columns; a block loads {COUNT}")
    load_a, load_b = make_matrix_copy(a_major, tile.bm), make_matrix_copy(b_major, COUNT, tile.cluster)

    @device_function
    def load(to_a, to_b, a_map, b_map, bar, tile, rank, k):
        at = k * BK
        load_a(to_a, a_map, bar, at, tile.row, tile.z_a)
        if MULTICAST:
            own = b_map if rank < HALF else tile.b_dual
            load_b(to_b + u32(rank) * (COUNT * ROW), own, bar, at, tile.column + (rank & (HALF - 1)) * COUNT, tile.z_b)
        else:
            load_b(to_b, b_map, bar, at, tile.column, tile.z_b)
            load_b(to_b + u32(COUNT * ROW), tile.b_dual, bar, at, tile.column, tile.z_b)
    return Loader(load, a_major, b_major, dtype, b_dtype, (tile.bm + tile.bn) * ROW)

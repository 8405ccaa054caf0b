"""The group of a row or a tile: kernels find it in the offsets, which only the device reads.

Whatever the offsets hold, results lie within the arrays; rows may belong to no group.
"""
import functools
import math
from dataclasses import replace

from ..device import cuda, device_function, i32, u32
from ..device.warp import ballot, broadcast, lane_id, scan_sum
from ..engine.roles import Roles


def group_roles(problem) -> Roles:
    """The problem as the tile kernels take it: the groups are a batch of b's. A tile begins at any row of a, which counts as aligned to
    that."""
    a = problem.a
    if problem.a_strides[0] == 1 and problem.m_total > 1:  # groups of rows begin inside a's contiguous dimension
        a = replace(a, alignment=min(a.alignment, a.itemsize))
    return Roles(m=problem.m_total, n=problem.n, k=problem.k, a=a, b=problem.b, y=problem.y, names=("a", "b"), a_strides=problem.a_strides,
                 b_strides=problem.b_strides, y_strides=problem.y_strides, c_strides=(0, 0),
                 batch=((problem.groups, (0, problem.b_group_stride, 0, 0)),), epilogue=problem.epilogue,
                 bias_stride=problem.bias_strides[1], scales=problem.scales, ragged=True)


def most_tiles(problem, bm):
    """The most tiles of `bm` rows that groups can need: each group begins a tile of its own and may leave its last one unfilled."""
    return (problem.m_total + min(problem.groups, problem.m_total) * (bm - 1)) // bm


def likely_tiles(problem, bm):
    """Tiles of `bm` rows where each row chooses its group at random, so that groups' sizes are about normal."""
    groups = max(min(problem.groups, problem.m_total), 1)
    rows = problem.m_total / groups
    deviation, each, edge = math.sqrt(2 * rows), 1.0, bm  # a group has one tile, and a further one for each edge that it reaches over
    while edge < rows + 4 * deviation:
        each += 0.5 * math.erfc((edge - rows) / deviation)
        edge += bm
    return min(most_tiles(problem, bm), math.ceil(groups * each))


@device_function
def group_of(row, offsets, stride, groups):
    """The group that has this row, by bisection; `groups` where none has. `stride` is that of the offsets, in elements."""
    low, high = i32(0), groups
    while low < high:
        middle = (low + high) >> 1
        if offsets[(middle + 1) * stride] > row:
            high = middle
        else:
            low = middle + 1
    if low < groups:
        if offsets[low * stride] > row:
            low = groups
    return low


@functools.cache
def make_find_tile(bm):
    """Device function ``find(tile, offsets, stride, groups, rows) -> (group, start, end, number)``: whose tile `tile` of `bm` rows is.

    Tiles are counted group by group; the group has the rows from `start` to before `end`, its first tile has the number `number`. The group
    is -1 where there are fewer tiles. All lanes of a warp call it with the same arguments and get the same answer: each lane counts the
    tiles of one group of 32. `stride` is that of the offsets, `rows` are those of a.
    """
    @device_function
    def clamped(offset, rows):
        return 0 if offset < 0 else rows if offset > rows else offset

    @device_function
    def find(tile, offsets, stride, groups, rows):
        lane = lane_id()
        group, first, end, number = i32(-1), i32(0), i32(0), i32(0)
        before, base = i32(0), i32(0)
        while base < groups:
            g = base + lane
            start, stop, tiles = i32(0), i32(0), i32(0)
            if g < groups:
                start = clamped(offsets[g * stride], rows)
                stop = clamped(offsets[(g + 1) * stride], rows)
                if stop > start:
                    tiles = (stop - start - 1) // bm + 1
            upto = scan_sum(tiles)
            mine = tile - before - (upto - tiles)
            hit = ballot(1 if u32(mine) < u32(tiles) else 0)
            if hit != 0:
                lane_of = i32(cuda.ffs(hit) - 1)
                group, first, end = base + lane_of, broadcast(start, lane_of), broadcast(stop, lane_of)
                number = tile - broadcast(mine, lane_of)
                base = groups
            else:
                before = before + broadcast(upto, 31)
                base = base + 32
        return group, first, end, number
    return find

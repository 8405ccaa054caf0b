"""A tile's states from the registers of warpgroups, 64 rows at a time, without shared memory: tiles of `ROWS` rows, those of a warp.

The sums are a fragment of wgmma (`engine.hopper_stores`). A warp takes 16 of its columns at a time: each lane reduces the two rows that it
has of four columns, then lanes exchange states, half as many each time, until each has those of one column: its state for the workspace.
Chunks of columns take turns with the stores (`engine.hopper_stores`), so that what both compute is computed once, and kept for no longer.

Where blocks have the same columns in all their tiles, warps keep the states of columns and of everything from tile to tile: of two lanes
with the same column one keeps it, the other the one 16 columns on, in a register for each part and 32 columns. At the end they leave them
in shared memory, and the block writes one state of each column.
"""
import functools
from typing import Callable, NamedTuple

from ..device import cuda, device_function, i32, i64, u32
from ..device.barrier import barrier_sync
from ..device.convert import SCALARS
from ..device.epilogue import make_epilogue
from ..device.unroll import unrolled
from ..device.vec import shared_address
from ..engine.fold import make_fold
from ..engine.tile_states import KEPT_COLUMNS, WARP_COLUMNS, KeptStates, Reducing, WarpRows
from ..engine.tile_states import WARP_ROWS as ROWS
from ..host.dtypes import ITEMSIZE
from ._tiles import MEMBERS, after

CHUNK = WARP_COLUMNS // 8  # of 8 columns
MEET = 15  # barrier of all warps that keep states


@device_function
def rows_of(row, lane, m):
    """The `WarpRows` of a warp's 16 rows from `row` on, of `m`."""
    low = row + (lane >> 2)
    return WarpRows(min(low, m - 1), min(low + 8, m - 1), low < m, low + 8 < m, row // ROWS, row < m)


class WarpReductions(NamedTuple):
    """A thread's part of the reductions of 64 rows.

    Attributes
    ----------
    count, type
        Of the local array `own` of states that it keeps from one chunk of columns to the next.
    begin : ``begin((own,))``
    chunk : ``chunk(k, s)``
        Chunk number k of `CHUNK` * 8 columns. `s` is (sums, number of the first of them, own, `WarpRows`, the tile's first column, lane,
        `engine.tile_states.Reducing`).
    rest : ``rest(s)``
        The columns that are no whole chunk.
    end : ``end(s)``
        The states of rows, or of everything.
    start : ``start((own,))``
        Of a warp that keeps states: before its first rows.
    finish : ``finish(own, tile, column, thread, scratch, state)``
        After the last rows of all warps, by all their threads: their states are those of tile `tile`, whose first column is `column`.
        `scratch` is the address of shared memory that is free when all are here.
    """
    count: int
    type: object
    begin: Callable
    chunk: Callable
    rest: Callable
    end: Callable
    start: Callable
    finish: Callable


@functools.cache
def make_warp_reductions(spec, bn, keeps=0) -> WarpReductions:
    """`WarpReductions` of an `EpilogueSpec` for tiles of `bn` columns; `keeps`: how many warps keep states, whose tiles all have the same
    columns, a multiple of 32."""
    compute, reductions = spec.program.reduced_type(spec.compute), spec.program.reductions
    T, leave, write, scratch = SCALARS[compute], None, None, 0
    folds = [make_fold(mode, spec.program.reduced_type(spec.compute)) for _, mode, _, _ in reductions]
    begin = end = rest = start = device_function(_nothing)
    own, blocks, lines, kept = 1, bn // 8, bn // KEPT_COLUMNS, []
    for k, (fold, (_, _, over, _)) in enumerate(zip(folds, reductions)):
        if over != "rows":
            count = 2 if over == "columns" else 1
            first = _begin(fold, own, count)
            if keeps and over == "all":
                start, leave = after(start, first), after(leave, _leave_one(fold, own, scratch, keeps))
                write = after(write, _write_kept(fold, k, scratch, keeps, 1, bn))
                scratch += keeps * fold.parts
            else:
                begin, end = after(begin, first), after(end, _end(fold, k, over, own, count, bn))
            own += count * fold.parts
    for k, (fold, (_, _, over, _)) in enumerate(zip(folds, reductions)):
        kept.append(own if keeps and over == "rows" else 0)
        if kept[k]:
            start, leave = after(start, _begin(fold, own, lines)), after(leave, _leave(fold, own, scratch, keeps, bn))
            write = after(write, _write_kept(fold, k, scratch, keeps, bn, bn))
            own, scratch = own + lines * fold.parts, scratch + keeps * bn * fold.parts
    done = blocks - blocks % CHUNK
    if blocks % CHUNK:
        rest = after(rest, _moved(_chunk(spec, folds, T, 1, kept, 0), done))
    finish = _finish(leave, write, T, ITEMSIZE[compute], 32 * keeps) if leave else device_function(_nothing_kept)
    return WarpReductions(own, T, begin, _chunk(spec, folds, T, CHUNK, kept, lines), rest, end, start, finish)


def _nothing(s):
    pass


def _nothing_kept(own, tile, column, thread, address, state):
    pass


def _moved(chunk, BLOCK):
    """Device function of the tuple alone: the chunk from that block of 8 columns on."""
    @device_function
    def moved(s):
        acc, first, own, rows, column, lane, state = s
        chunk(0, (acc, first + 4 * BLOCK, own, rows, column + 8 * BLOCK, lane, state))
    return moved


def _begin(fold, FIRST, COUNT):
    """The states of nothing, first in an array of one tuple."""
    put, empty = fold.put, fold.empty

    @device_function
    def begin(s):
        for k in range(COUNT):
            put(s[0], s[0], FIRST + k, COUNT, empty())
    return begin


def _chunk(spec, folds, T, BLOCKS, kept, LINES):
    """Device function ``chunk(k, s)``: number k of so many blocks of 8 columns; the states of `LINES` lines of 32 columns
    are `kept` from number kept[k] on, or are not."""
    reduced, COLUMNS = make_epilogue(spec, "reduced"), 2 * BLOCKS
    begin = push = write = None
    MINE, OWN = 0, 1
    for k, (fold, (_, _, over, _)) in enumerate(zip(folds, spec.program.reductions)):
        if over == "rows":
            push = after(push, _push(fold, k, MINE, COLUMNS, over))
            last = _keep(fold, MINE, COLUMNS, kept[k], LINES) if kept[k] else _write(fold, k, MINE, COLUMNS)
            begin, write = after(begin, _begin(fold, MINE, COLUMNS)), after(write, last)
            MINE += COLUMNS * fold.parts
        else:
            push = after(push, _push(fold, k, OWN, 2 if over == "columns" else 1, over))
            OWN += (2 if over == "columns" else 1) * fold.parts
    SIZE = max(MINE, 1)

    @device_function
    def element(i, s):
        acc, at, mine, own, rows, column, lane, state = s
        c = column + (i >> 2) * 8 + (lane & 3) * 2 + (i & 1)
        if i >> 1 & 1:
            r, there = rows.high, rows.has_high
        else:
            r, there = rows.low, rows.has_low
        v = reduced(acc[at + i], r, min(c, state.n - 1), state.e)
        push((mine, own, 2 * (i >> 2) + (i & 1), i >> 1 & 1, v, there and c < state.n))
    elements = unrolled(4 * BLOCKS, element)

    @device_function
    def chunk(k, s):
        acc, first, own, rows, column, lane, state = s
        mine = cuda.local.array(SIZE, T)
        if begin is not None:
            begin((mine,))
        elements(0, (acc, first + k * (4 * BLOCKS), mine, own, rows, column + k * (8 * BLOCKS), lane, state))
        if write is not None:
            write((mine, own, k, rows, column + k * (8 * BLOCKS), lane, state))
    return chunk


def _push(fold, K, FIRST, COUNT, over):
    """One element more, if it is inside: chosen, without branches."""
    put, get, push, BY_ROWS, BY_COLUMNS = fold.put, fold.get, fold.push, over == "rows", over == "columns"

    @device_function
    def push_to(states, at, value, inside):
        before = get(states, states, at, COUNT)
        put(states, states, at, COUNT, _either(inside, before, push(before, value, 0)))

    @device_function
    def one(s):
        mine, own, column, row, v, inside = s
        if BY_ROWS:
            push_to(mine, FIRST + column, v[K], inside)
        else:
            push_to(own, FIRST + (row if BY_COLUMNS else 0), v[K], inside)
    return one


@device_function
def _either(second, a, b):
    if second:
        return b
    return a


def _share(fold, FIRST, COUNT):
    """Device function ``share(mine, lane)``: the state of one column; lanes with the same columns share these."""
    put, get, merge, swap = fold.put, fold.get, fold.merge, fold.swap
    STEPS = COUNT.bit_length() - 1

    @device_function
    def halve(step, s):
        mine, lane = s
        half, second = COUNT >> (step + 1), lane >> (4 - step) & 1
        for i in range(half):
            low, high = get(mine, mine, FIRST + i, COUNT), get(mine, mine, FIRST + i + half, COUNT)
            put(mine, mine, FIRST + i, COUNT, merge(_either(second, low, high), swap(_either(second, high, low), 16 >> step)))
    halvings = unrolled(STEPS, halve)

    @device_function
    def share(mine, lane):
        halvings(0, (mine, lane))
        found = get(mine, mine, FIRST, COUNT)
        for step in range(STEPS, 3):
            found = merge(found, swap(found, 16 >> step))
        return found
    return share


def _column(COUNT):
    """Device function ``column_of(lane)``: (the lane's column of `COUNT` that four lanes share, whether it is the first with it)."""
    STEPS = COUNT.bit_length() - 1
    SHIFT, SAME = 5 - STEPS, ((1 << (3 - STEPS)) - 1) << 2

    @device_function
    def column_of(lane):
        number = lane >> SHIFT
        return (number >> 1) * 8 + (lane & 3) * 2 + (number & 1), lane & SAME == 0
    return column_of


def _write(fold, K, FIRST, COUNT):
    """Each lane writes the state of a column."""
    AT, MATRIX, TILE, PLANE = (MEMBERS * K + j for j in range(MEMBERS))
    share, column_of, put = _share(fold, FIRST, COUNT), _column(COUNT), fold.put

    @device_function
    def write(s):
        mine, own, k, rows, column, lane, state = s
        found = share(mine, lane)
        c, first = column_of(lane)
        if first and rows.exists and column + c < state.n:
            to = i64(state.z) * state.states[MATRIX] + i64(rows.tile) * state.states[TILE]
            put(state.states[AT], state.states[AT], to + (column + c), state.states[PLANE], found)
    return write


def _keep(fold, FIRST, COUNT, KEPT, LINES):
    """Of two lanes with the same column one keeps its state: the second that of every second chunk."""
    share, put, get, merge = _share(fold, FIRST, COUNT), fold.put, fold.get, fold.merge

    @device_function
    def keep(s):
        mine, own, k, rows, column, lane, state = s
        before = get(own, own, KEPT + (k >> 1), LINES)
        put(own, own, KEPT + (k >> 1), LINES, _either(lane >> 2 & 1 == k & 1, before, merge(before, share(mine, lane))))
    return keep


def _leave(fold, KEPT, FIRST, WARPS, BN):
    """The states of columns that each lane has kept, to shared memory, from number `FIRST` on: warp by warp."""
    put, get, column_of, LINES, PLANE = fold.put, fold.get, _column(WARP_COLUMNS // 4), BN // KEPT_COLUMNS, WARPS * BN

    @device_function
    def one(k, s):
        own, scratch, at, warp, lane = s
        c, _ = column_of(lane)
        c = c + (lane >> 2 & 1) * WARP_COLUMNS
        put(scratch, scratch, at + (FIRST + k * KEPT_COLUMNS) + warp * BN + c, PLANE, get(own, own, KEPT + k, LINES))
    all_of_them = unrolled(LINES, one)
    return device_function(lambda s: all_of_them(0, s))


def _leave_one(fold, KEPT, FIRST, WARPS):
    """The state of everything that the lanes of a warp have kept, to shared memory."""
    put, get, merge, swap = fold.put, fold.get, fold.merge, fold.swap

    @device_function
    def leave(s):
        own, scratch, at, warp, lane = s
        found = get(own, own, KEPT, 1)
        for step in range(5):
            found = merge(found, swap(found, 16 >> step))
        if lane == 0:
            put(scratch, scratch, at + FIRST + warp, WARPS, found)
    return leave


def _write_kept(fold, K, FIRST, WARPS, LENGTH, BN):
    """The states of all warps as one, to the workspace: of each column, or of everything, which is one of `LENGTH`."""
    AT, MATRIX, TILE, PLANE = (MEMBERS * K + j for j in range(MEMBERS))
    put, get, merge = fold.put, fold.get, fold.merge

    @device_function
    def write(s):
        scratch, at, tile, column, thread, state = s
        to, there = column, state.n - column
        if LENGTH == 1:
            tile, to, there = tile * ((state.n + (BN - 1)) // BN) + column // BN, 0, 1
        first = i64(state.z) * state.states[MATRIX] + i64(tile) * state.states[TILE]
        for c in range(thread, min(LENGTH, there), 32 * WARPS):
            found = get(scratch, scratch, at + FIRST + c, WARPS * LENGTH)
            for warp in range(1, WARPS):
                found = merge(found, get(scratch, scratch, at + (FIRST + warp * LENGTH) + c, WARPS * LENGTH))
            put(state.states[AT], state.states[AT], first + (to + c), state.states[PLANE], found)
    return write


def _finish(leave, write, T, ITEM, THREADS):
    """`WarpReductions.finish` of so many threads."""
    @device_function
    def finish(own, tile, column, thread, address, state):
        scratch = cuda.shared.array(0, T)
        at = i32(address - shared_address(scratch, 0)) // ITEM
        barrier_sync(u32(MEET), u32(THREADS))
        leave((own, scratch, at, thread >> 5, thread & 31))
        barrier_sync(u32(MEET), u32(THREADS))
        write((scratch, at, tile, column, thread, state))
    return finish


@functools.cache
def make_kept_states(spec, tile, find) -> KeptStates:
    """See `engine.tile_states.kept_states`."""
    found, BM = make_warp_reductions(spec, tile.bn, 4 * tile.consumers), tile.bm
    finish_states = found.finish

    @device_function
    def finish(own, first_tile, group, thread, scratch, out):
        z, n, states = find(first_tile, out)
        finish_states(own, first_tile.row // BM, first_tile.column, group * 128 + thread, scratch, Reducing(n, (), z, states))
    return KeptStates(found.count, found.type, found.start, finish)


def _end(fold, K, over, FIRST, COUNT, BN):
    """The states of rows, or of everything."""
    AT, MATRIX, TILE, PLANE = (MEMBERS * K + j for j in range(MEMBERS))
    put, get, merge, swap, BY_COLUMNS = fold.put, fold.get, fold.merge, fold.swap, over == "columns"
    HIGHEST, STEPS, OTHERS = (2, 2, 3) if BY_COLUMNS else (16, 5, 31)

    @device_function
    def end(s):
        _, _, own, rows, column, lane, state = s
        tile = column // BN
        if not BY_COLUMNS:
            tile = rows.tile * ((state.n + (BN - 1)) // BN) + tile
        to = i64(state.z) * state.states[MATRIX] + i64(tile) * state.states[TILE]
        for k in range(COUNT):
            found = get(own, own, FIRST + k, COUNT)
            for step in range(STEPS):
                found = merge(found, swap(found, HIGHEST >> step))
            at, there = 0, rows.exists
            if BY_COLUMNS:
                at, there = (rows.high, rows.has_high) if k == 1 else (rows.low, rows.has_low)
            if lane & OTHERS == 0 and there:
                put(state.states[AT], state.states[AT], to + at, state.states[PLANE], found)
    return end

"""A tile's states from the registers of warpgroups, 64 rows at a time, without shared memory: tiles of `ROWS` rows, those of a warp.

The sums are a fragment of wgmma (`engine.hopper_stores`). A warp takes 16 of its columns at a time: each lane reduces the two rows that it
has of four columns, then lanes exchange states, half as many each time, until each has those of one column: its state for the workspace.
Chunks of columns take turns with the stores (`engine.hopper_stores`), so that what both compute is computed once, and kept for no longer.

A kernel whose warps keep their columns from tile to tile has them keep the states of columns and of everything, too, and write them once.
"""
import functools
from typing import Callable, NamedTuple

from ..device import cuda, device_function, i64
from ..device.convert import SCALARS
from ..device.epilogue import make_epilogue
from ..device.unroll import unrolled
from ..engine.fold import make_fold
from ..engine.tile_states import WARP_COLUMNS, WarpRows
from ..engine.tile_states import WARP_ROWS as ROWS
from ._tiles import MEMBERS, after

CHUNK = WARP_COLUMNS // 8  # of 8 columns


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
    start, finish : ``start((own,))``, ``finish(s)``
        Of a warp that keeps states: before its first rows, and after its last.
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
def make_warp_reductions(spec, bn, keeps=False) -> WarpReductions:
    """`WarpReductions` of an `EpilogueSpec` for tiles of `bn` columns; `keeps`: all tiles of a warp have the same columns, a multiple of
    16, and `WarpRows.tile` is the warp's number among all."""
    T, reductions = SCALARS[spec.program.reduced_type(spec.compute)], spec.program.reductions
    folds = [make_fold(mode, spec.program.reduced_type(spec.compute)) for _, mode, _, _ in reductions]
    begin = end = rest = start = finish = device_function(_nothing)
    own, blocks, kept = 1, bn // 8, []
    for k, (fold, (_, _, over, _)) in enumerate(zip(folds, reductions)):
        if over != "rows":
            count = 2 if over == "columns" else 1
            first, last = _begin(fold, own, count), _end(fold, k, over, own, count, bn)
            if keeps and over == "all":
                start, finish = after(start, first), after(finish, last)
            else:
                begin, end = after(begin, first), after(end, last)
            own += count * fold.parts
    for k, (fold, (_, _, over, _)) in enumerate(zip(folds, reductions)):
        kept.append(own if keeps and over == "rows" else 0)
        if kept[k]:
            start, finish = after(start, _begin(fold, own, blocks // CHUNK)), after(finish, _write_kept(fold, k, own, blocks // CHUNK))
            own += blocks // CHUNK * fold.parts
    done = blocks - blocks % CHUNK
    if blocks % CHUNK:
        rest = after(rest, _moved(_chunk(spec, folds, T, 1, kept, 0), done))
    return WarpReductions(own, T, begin, _chunk(spec, folds, T, CHUNK, kept, blocks // CHUNK), rest, end, start, finish)


def _nothing(s):
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


def _chunk(spec, folds, T, BLOCKS, kept, CHUNKS):
    """Device function ``chunk(k, s)``: number k of so many blocks of 8 columns; where the states of `CHUNKS` of them are `kept`, or 0."""
    reduced, COLUMNS = make_epilogue(spec, "reduced"), 2 * BLOCKS
    begin = push = write = None
    MINE, OWN = 0, 1
    for k, (fold, (_, _, over, _)) in enumerate(zip(folds, spec.program.reductions)):
        if over == "rows":
            push = after(push, _push(fold, k, MINE, COLUMNS, over))
            last = _keep(fold, MINE, COLUMNS, kept[k], CHUNKS) if kept[k] else _write(fold, k, MINE, COLUMNS)
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


def _put_column(fold, K, COUNT):
    """Device function ``put_column(found, rows, column, lane, state)``: the state of the lane's column of `COUNT` that four lanes share,
    to the workspace."""
    AT, MATRIX, TILE, PLANE = (MEMBERS * K + j for j in range(MEMBERS))
    STEPS, put = COUNT.bit_length() - 1, fold.put
    SHIFT, SAME = 5 - STEPS, ((1 << (3 - STEPS)) - 1) << 2

    @device_function
    def put_column(found, rows, column, lane, state):
        number = lane >> SHIFT
        c = column + (number >> 1) * 8 + (lane & 3) * 2 + (number & 1)
        if lane & SAME == 0 and rows.exists and c < state.n:
            to = i64(state.z) * state.states[MATRIX] + i64(rows.tile) * state.states[TILE]
            put(state.states[AT], state.states[AT], to + c, state.states[PLANE], found)
    return put_column


def _write(fold, K, FIRST, COUNT):
    """Each lane writes the state of a column."""
    share, put_column = _share(fold, FIRST, COUNT), _put_column(fold, K, COUNT)

    @device_function
    def write(s):
        mine, own, k, rows, column, lane, state = s
        put_column(share(mine, lane), rows, column, lane, state)
    return write


def _keep(fold, FIRST, COUNT, KEPT, CHUNKS):
    """Each lane keeps the state of a column."""
    share, put, get, merge = _share(fold, FIRST, COUNT), fold.put, fold.get, fold.merge

    @device_function
    def keep(s):
        mine, own, k, rows, column, lane, state = s
        put(own, own, KEPT + k, CHUNKS, merge(get(own, own, KEPT + k, CHUNKS), share(mine, lane)))
    return keep


def _write_kept(fold, K, KEPT, CHUNKS):
    """The states that each lane has kept, one of a chunk's columns."""
    put_column, get = _put_column(fold, K, 2 * CHUNK), fold.get

    @device_function
    def one(k, s):
        _, _, own, rows, column, lane, state = s
        put_column(get(own, own, KEPT + k, CHUNKS), rows, column + k * (8 * CHUNK), lane, state)
    all_of_them = unrolled(CHUNKS, one)
    return device_function(lambda s: all_of_them(0, s))


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

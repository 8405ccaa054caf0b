"""A tile's states from the registers of warpgroups, 64 rows at a time, without shared memory: tiles of `ROWS` rows, those of a warp.

The sums are a fragment of wgmma (`engine.hopper_stores`). A warp takes 16 of its columns at a time: each lane reduces the two rows that it
has of four columns, then lanes exchange states, half as many each time, until each has those of one column: its state for the workspace.
Chunks of columns take turns with the stores (`engine.hopper_stores`), so that what both compute is computed once, and kept for no longer.
"""
import functools
from typing import Callable, NamedTuple

from ..device import cuda, device_function, i64
from ..device.convert import SCALARS
from ..device.epilogue import make_epilogue
from ..device.unroll import unrolled
from ..engine.fold import make_fold
from ..engine.tile_states import WARP_ROWS as ROWS
from ._tiles import MEMBERS

CHUNK = 2  # of 8 columns


class WarpReductions(NamedTuple):
    """A thread's part of the reductions of 64 rows.

    Attributes
    ----------
    count, type
        Of the local array `own` of states that it keeps from one chunk of columns to the next.
    begin : ``begin((own,))``
    chunk : ``chunk(k, s)``
        Chunk number k of `CHUNK` * 8 columns. `s` is (sums, number of the first of them, own, the warp's first row, the tile's first
        column, lane, rows of the result, `engine.tile_states.Reducing`).
    rest : ``rest(s)``
        The columns that are no whole chunk.
    end : ``end(s)``
        The states of rows, or of everything.
    """
    count: int
    type: object
    begin: Callable
    chunk: Callable
    rest: Callable
    end: Callable


@functools.cache
def make_warp_reductions(spec, bn) -> WarpReductions:
    """`WarpReductions` of an `EpilogueSpec` for tiles of `bn` columns."""
    T, reductions = SCALARS[spec.program.reduced_type(spec.compute)], spec.program.reductions
    folds = [make_fold(mode, spec.program.reduced_type(spec.compute)) for _, mode, _, _ in reductions]
    begin = end = rest = device_function(_nothing)
    own, blocks = 1, bn // 8
    for k, (fold, (_, _, over, _)) in enumerate(zip(folds, reductions)):
        if over != "rows":
            count = 2 if over == "columns" else 1
            begin, end = _after(begin, _begin(fold, own, count)), _after(end, _end(fold, k, over, own, count, bn))
            own += count * fold.parts
    done = blocks - blocks % CHUNK
    if blocks % CHUNK:
        rest = _after(rest, _moved(_chunk(spec, folds, T, 1), done))
    return WarpReductions(own, T, begin, _chunk(spec, folds, T, CHUNK), rest, end)


def _nothing(s):
    pass


def _moved(chunk, BLOCK):
    """Device function of the tuple alone: the chunk from that block of 8 columns on."""
    @device_function
    def moved(s):
        acc, first, own, row, column, lane, m, state = s
        chunk(0, (acc, first + 4 * BLOCK, own, row, column + 8 * BLOCK, lane, m, state))
    return moved


def _after(before, last):
    """Device function of one tuple: `before`, which may be None, then `last`."""
    if before is None:
        return last

    @device_function
    def both(s):
        before(s)
        last(s)
    return both


def _begin(fold, FIRST, COUNT):
    """The states of nothing, first in an array of one tuple."""
    put, empty = fold.put, fold.empty

    @device_function
    def begin(s):
        for k in range(COUNT):
            put(s[0], s[0], FIRST + k, COUNT, empty())
    return begin


def _chunk(spec, folds, T, BLOCKS):
    """Device function ``chunk(k, s)``: number k of so many blocks of 8 columns."""
    reduced, COLUMNS = make_epilogue(spec, "reduced"), 2 * BLOCKS
    begin = push = write = None
    MINE, OWN = 0, 1
    for k, (fold, (_, _, over, _)) in enumerate(zip(folds, spec.program.reductions)):
        if over == "rows":
            push = _after(push, _push(fold, k, MINE, COLUMNS, over))
            begin, write = _after(begin, _begin(fold, MINE, COLUMNS)), _after(write, _write(fold, k, MINE, COLUMNS))
            MINE += COLUMNS * fold.parts
        else:
            push = _after(push, _push(fold, k, OWN, 2 if over == "columns" else 1, over))
            OWN += (2 if over == "columns" else 1) * fold.parts
    SIZE = max(MINE, 1)

    @device_function
    def element(i, s):
        acc, at, mine, own, row, column, lane, m, state = s
        r, c = row + (lane >> 2) + (i >> 1 & 1) * 8, column + (i >> 2) * 8 + (lane & 3) * 2 + (i & 1)
        v = reduced(acc[at + i], min(r, m - 1), min(c, state.n - 1), state.e)
        push((mine, own, 2 * (i >> 2) + (i & 1), i >> 1 & 1, v, r < m and c < state.n))
    elements = unrolled(4 * BLOCKS, element)

    @device_function
    def chunk(k, s):
        acc, first, own, row, column, lane, m, state = s
        mine = cuda.local.array(SIZE, T)
        if begin is not None:
            begin((mine,))
        elements(0, (acc, first + k * (4 * BLOCKS), mine, own, row, column + k * (8 * BLOCKS), lane, m, state))
        if write is not None:
            write((mine, row, column + k * (8 * BLOCKS), lane, m, state))
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


def _write(fold, K, FIRST, COUNT):
    """Lanes with the same columns share these, then each writes the state of its own."""
    AT, MATRIX, TILE, PLANE = (MEMBERS * K + j for j in range(MEMBERS))
    put, get, merge, swap = fold.put, fold.get, fold.merge, fold.swap
    STEPS = COUNT.bit_length() - 1
    SHIFT, SAME = 5 - STEPS, ((1 << (3 - STEPS)) - 1) << 2

    @device_function
    def halve(step, s):
        mine, lane = s
        half, second = COUNT >> (step + 1), lane >> (4 - step) & 1
        for i in range(half):
            low, high = get(mine, mine, FIRST + i, COUNT), get(mine, mine, FIRST + i + half, COUNT)
            put(mine, mine, FIRST + i, COUNT, merge(_either(second, low, high), swap(_either(second, high, low), 16 >> step)))
    halvings = unrolled(STEPS, halve)

    @device_function
    def write(s):
        mine, row, column, lane, m, state = s
        halvings(0, (mine, lane))
        found = get(mine, mine, FIRST, COUNT)
        for step in range(STEPS, 3):
            found = merge(found, swap(found, 16 >> step))
        number = lane >> SHIFT
        c = column + (number >> 1) * 8 + (lane & 3) * 2 + (number & 1)
        if lane & SAME == 0 and row < m and c < state.n:
            to = i64(state.z) * state.states[MATRIX] + i64(row // ROWS) * state.states[TILE]
            put(state.states[AT], state.states[AT], to + c, state.states[PLANE], found)
    return write


def _end(fold, K, over, FIRST, COUNT, BN):
    """The states of rows, or of everything."""
    AT, MATRIX, TILE, PLANE = (MEMBERS * K + j for j in range(MEMBERS))
    put, get, merge, swap, BY_COLUMNS = fold.put, fold.get, fold.merge, fold.swap, over == "columns"
    HIGHEST, STEPS, OTHERS = (2, 2, 3) if BY_COLUMNS else (16, 5, 31)

    @device_function
    def end(s):
        _, _, own, row, column, lane, m, state = s
        tile = column // BN
        if not BY_COLUMNS:
            tile = row // ROWS * ((state.n + (BN - 1)) // BN) + tile
        to = i64(state.z) * state.states[MATRIX] + i64(tile) * state.states[TILE]
        for k in range(COUNT):
            found = get(own, own, FIRST + k, COUNT)
            for step in range(STEPS):
                found = merge(found, swap(found, HIGHEST >> step))
            r = row + (lane >> 2) + 8 * k if BY_COLUMNS else row
            if lane & OTHERS == 0 and r < m:
                put(state.states[AT], state.states[AT], to + (r if BY_COLUMNS else 0), state.states[PLANE], found)
    return end

"""A tile's states from the registers of its threads, where these hold fragments of mma.sync or wgmma.

Of such a fragment the lanes that differ in bits 2 to 4 share their columns, those that differ in bits 0 and 1 their rows. Each thread
reduces its own elements as they come by, lanes exchange states by shuffles, warps leave theirs in shared memory, and the block's threads
write those of the tile to the workspace (`_tiles`): every state in a fixed order.
"""
from typing import Callable, NamedTuple

from ..device import cuda, device_function, i64
from ..device.convert import SCALARS
from ..device.epilogue import make_epilogue
from ..device.unroll import unrolled
from ..engine.fold import make_fold
from ..host.dtypes import ITEMSIZE
from ._tiles import MEMBERS, after


class FragmentReductions(NamedTuple):
    """A thread's part of the reductions.

    Attributes
    ----------
    count, type
        Of the local array `own` of its states.
    start : ``start(own)``
    add : ``add(own, i, j, acc, row, column, state)``
        The sum `acc`, number i among the thread's rows and j among its columns; a row that is there. `state` is a `Reducing`.
    meet : ``meet(own, warp, row0, column0, rows, state)``
        The states of the tile at (row0, column0) are written; by all threads of the block, once.
    """
    count: int
    type: object
    start: Callable
    add: Callable
    meet: Callable


class _Lines(NamedTuple):
    """A reduction's states: of a thread, of the tile and its layers in shared memory, and where they begin in either."""
    over: str
    fold: object
    own: int
    count: int
    length: int
    layers: int
    shared: int

    @property
    def plane(self):
        return self.length * self.layers


def shared_bytes(spec, bm, bn, threads, row_layers, column_layers):
    """Bytes of shared memory that the states of all warps take."""
    numbers = _lines(spec.program, spec.compute, bm, bn, threads, 1, 1, row_layers, column_layers)[2]
    return numbers * ITEMSIZE[spec.program.reduced_type(spec.compute)]


def _lines(program, compute, bm, bn, threads, rows, columns, row_layers, column_layers):
    """(the `_Lines` of each reduction, numbers of a thread, numbers of shared memory)"""
    found, own, shared = [], 0, 0
    for _, mode, over, _ in program.reductions:
        fold = make_fold(mode, program.reduced_type(compute))
        count, length, layers = {"rows": (columns, bn, row_layers), "columns": (rows, bm, column_layers),
                                 "all": (1, 1, threads // 32)}[over]
        found.append(_Lines(over, fold, own, count, length, layers, shared))
        own, shared = own + count * fold.parts, shared + length * layers * fold.parts
    return found, own, shared


def make_reductions(spec, of_row, fragment) -> FragmentReductions:
    """`FragmentReductions` of an `EpilogueSpec`'s reductions for a `Fragment`; `of_row`: see `engine.tile_states.fragment_reductions`."""
    f = fragment
    T = SCALARS[spec.program.reduced_type(spec.compute)]
    lines, OWN, SHARED = _lines(spec.program, spec.compute, f.bm, f.bn, f.threads, f.rows, f.columns, f.row_layers, f.column_layers)
    reduced, EDGE = make_epilogue(spec, "reduced"), f.edge
    begin = push = leave = write = None
    for k, of in enumerate(lines):
        begin, push = after(begin, _begin(of)), after(push, _push(of, k))
        leave, write = after(leave, _leave(of, f)), after(write, _write(of, k, f))

    @device_function
    def start(own):
        begin((own,))

    @device_function
    def add(own, i, j, acc, row, column, state):
        if not EDGE or column < state.n:
            r, e = of_row(row, state.e)
            push((own, i, j, reduced(acc, r, column, e)))

    @device_function
    def meet(own, warp, row0, column0, rows, state):
        scratch = cuda.shared.array(SHARED, T)
        leave((own, scratch, warp, cuda.threadIdx.x & 31))
        cuda.syncthreads()
        write((scratch, row0, column0, rows, state))
    return FragmentReductions(OWN, T, start, add, meet)


def _begin(of):
    """The states of nothing."""
    FIRST, COUNT = of.own, of.count
    put, empty = of.fold.put, of.fold.empty

    @device_function
    def one(k, own):
        put(own, own, FIRST + k, COUNT, empty())
    all_of_them = unrolled(COUNT, one)
    return device_function(lambda s: all_of_them(0, s[0]))


def _push(of, K):
    """One element more."""
    FIRST, COUNT, BY_ROWS, BY_COLUMNS = of.own, of.count, of.over == "rows", of.over == "columns"
    put, get, push = of.fold.put, of.fold.get, of.fold.push

    @device_function
    def one(s):
        own, i, j, v = s
        at = FIRST + (j if BY_ROWS else i if BY_COLUMNS else 0)
        put(own, own, at, COUNT, push(get(own, own, at, COUNT), v[K], 0))
    return one


def _leave(of, f):
    """The states of a warp, to shared memory."""
    FIRST, COUNT, BASE, LENGTH, PLANE = of.own, of.count, of.shared, of.length, of.plane
    put, get, merge, swap, row, column, owns = of.fold.put, of.fold.get, of.fold.merge, of.fold.swap, f.row, f.column, f.owns
    BY_ROWS, BY_COLUMNS = of.over == "rows", of.over == "columns"
    # lanes with the same line differ in these bits, from the highest down
    HIGHEST, STEPS, OTHERS = (16, 3, 28) if BY_ROWS else (2, 2, 3) if BY_COLUMNS else (16, 5, 31)

    @device_function
    def one(k, s):
        own, scratch, warp, lane = s
        state = get(own, own, FIRST + k, COUNT)
        for step in range(STEPS):
            state = merge(state, swap(state, HIGHEST >> step))
        if BY_ROWS:
            layer, position, mine = warp.row_layer, warp.column + column(k, lane), True
        elif BY_COLUMNS:
            layer, position, mine = warp.column_layer, warp.row + row(k, lane), owns(k, warp)
        else:
            layer, position, mine = cuda.threadIdx.x >> 5, 0, True
        if lane & OTHERS == 0 and mine:
            put(scratch, scratch, BASE + layer * LENGTH + position, PLANE, state)
    all_of_them = unrolled(COUNT, one)
    return device_function(lambda s: all_of_them(0, s))


def _write(of, K, f):
    """The states of the tile, to the workspace."""
    AT, MATRIX, TILE, TO_PLANE = (MEMBERS * K + j for j in range(MEMBERS))
    BASE, LENGTH, LAYERS, PLANE, THREADS, BM, BN = of.shared, of.length, of.layers, of.plane, f.threads, f.bm, f.bn
    put, get, merge, BY_ROWS, BY_COLUMNS = of.fold.put, of.fold.get, of.fold.merge, of.over == "rows", of.over == "columns"

    @device_function
    def write(s):
        scratch, row0, column0, rows, state = s
        states, tile_m, tile_n = state.states, row0 // BM, column0 // BN
        if BY_ROWS:
            tile, first, end = tile_m, column0, state.n
        elif BY_COLUMNS:
            tile, first, end = tile_n, row0, rows
        else:
            tile, first, end = tile_m * ((state.n + (BN - 1)) // BN) + tile_n, 0, 1
        to = i64(state.z) * states[MATRIX] + i64(tile) * states[TILE]
        for c in range(cuda.threadIdx.x, LENGTH, THREADS):
            if first + c < end:
                found = get(scratch, scratch, BASE + c, PLANE)
                for layer in range(1, LAYERS):
                    found = merge(found, get(scratch, scratch, BASE + layer * LENGTH + c, PLANE))
                put(states[AT], states[AT], to + (first + c), states[TO_PLANE], found)
    return write

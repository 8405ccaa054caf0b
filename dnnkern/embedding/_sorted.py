"""The positions of each row of the table, in order: one launch that sorts all indices.

A block owns some rows. It reads all indices twice: first it counts those of each of its rows, and those of lower rows, which is where its
part of the sorted list begins; then it takes its own in order, a stretch of all at a time, and appends them to those it has. Within a
stretch, votes and sums of warps say how many come before; one warp then finds the rank among equal indices by votes. Additions of integers
are the only atomics, and no rank depends on their order, so the list depends on the indices alone.

Blocks are about as many as multiprocessors, each of which reads the indices at the L1's rate: 16384 take a few microseconds, a million some
hundred. It needs no list sorted by anything else, and nothing of another block.
"""
import functools
import math

from ..device import cuda, device_function, i32, i64, jit
from ..device.block import add, make_block_reduce
from ..device.index import ceil_div
from ..device.warp import ballot, lane_id, scan_sum, warp_id
from ..engine.ahead import make_follow
from ..engine.constants import constants
from ..engine.cost import LAUNCH, Cost
from ..engine.ranks import before, count_lanes, make_peers
from ..host.launch import Argument, Launch

COST = constants("embedding/sorted_list")

SORT, ITEMS = 512, 4
CHUNK, WARPS, MOST_SHIFT = SORT * ITEMS, SORT // 32, 12


def shift_of(rows, device):
    """A block has 2**shift rows: one block for each multiprocessor, as far as its counters suffice."""
    return min(MOST_SHIFT, max(0, math.ceil(math.log2((rows + 1) / device.sms))))


def _blocks(rows, shift):
    """One row more than there are: where the last one ends."""
    return ceil_div(rows + 1, 1 << shift)


def seconds(problem, device):
    """Instructions of each index in each block, twice."""
    rows, positions = problem.table.shape[0], problem.positions
    shift = shift_of(rows, device)
    waves = ceil_div(_blocks(rows, shift), device.sms)
    return LAUNCH + Cost(issue=waves * positions * COST.index / device.clock_hz, waits=2 * ceil_div(positions, CHUNK) * COST.chunk)


@functools.cache
def make_key(index_dtype):
    """Device function ``key(indices, i, positions, step, rows, padding)``: the row of position i; -1 past the end, for an index that is no
    row, and for the padding row."""
    Index = i64 if index_dtype == "int64" else i32

    @device_function
    def key(indices, i, positions, step, rows, padding):
        found = Index(-1)
        if i < positions:
            found = indices[i * step]
        return i32(found) if found >= 0 and found < rows and found != padding else -1
    return key


@functools.cache
def kernel(index_dtype, shift, dependent):
    """Where rows begin in the sorted list; its positions and their rows."""
    key, peers, ROWS, TOTALS = make_key(index_dtype), make_peers(shift), 1 << shift, 2 * WARPS
    reduce, begin, OWN = make_block_reduce(add, SORT), make_follow(dependent), 32 * ITEMS

    @jit(launch_bounds=SORT)
    def embedding_sort(indices, starts, order, keys, positions, rows, padding, step):
        begin()
        counters, totals = cuda.shared.array(ROWS, i32), cuda.shared.array(TOTALS, i32)
        list_row, list_position = cuda.shared.array(CHUNK, i32), cuda.shared.array(CHUNK, i32)
        found, ranks = cuda.local.array(ITEMS, i32), cuda.local.array(ITEMS, i32)
        thread, low, below = cuda.threadIdx.x, cuda.blockIdx.x << shift, 0
        for r in range(thread, ROWS, SORT):
            counters[r] = 0
        cuda.syncthreads()
        # count the positions of each row, and of lower ones
        for first in range(0, positions, CHUNK):
            for k in range(ITEMS):
                found[k] = key(indices, first + k * SORT + thread, positions, step, rows, padding)
            for k in range(ITEMS):
                row = found[k] - low
                if found[k] >= 0 and row < 0:
                    below = below + 1
                if row >= 0 and row < ROWS:
                    cuda.atomic.add(counters, row, 1)
        carry = reduce(below, totals, 0)
        cuda.syncthreads()
        # counts become where rows begin
        for first in range(0, ROWS, SORT):
            r, count = first + thread, 0
            if r < ROWS:
                count = counters[r]
            sums, whole = scan_sum(count), 0
            if lane_id() == 31:
                totals[warp_id()] = sums
            cuda.syncthreads()
            sums = carry + sums - count
            for w in range(WARPS):
                if w < warp_id():
                    sums = sums + totals[w]
                whole = whole + totals[w]
            carry = carry + whole
            if r < ROWS:
                counters[r] = sums
                if low + r <= rows:
                    starts[low + r] = sums
            cuda.syncthreads()
        # positions to their rows, in order: a warp has neighbours
        for first in range(0, positions, CHUNK):
            own, mine = first + warp_id() * OWN + lane_id(), 0
            for k in range(ITEMS):
                found[k] = key(indices, own + 32 * k, positions, step, rows, padding) - low
            for k in range(ITEMS):
                mask = ballot(1 if found[k] >= 0 and found[k] < ROWS else 0)
                ranks[k] = mine + before(mask)
                mine = mine + count_lanes(mask)
            if lane_id() == 0:
                totals[warp_id()] = mine
            cuda.syncthreads()
            earlier, count = 0, 0
            for w in range(WARPS):
                if w < warp_id():
                    earlier = earlier + totals[w]
                count = count + totals[w]
            for k in range(ITEMS):
                if found[k] >= 0 and found[k] < ROWS:
                    list_row[earlier + ranks[k]] = found[k]
                    list_position[earlier + ranks[k]] = own + 32 * k
            cuda.syncthreads()
            if warp_id() == 0:
                for t in range(0, count, 32):
                    i, row, to = t + lane_id(), 0, 0
                    ok = 1 if i < count else 0
                    if ok:
                        row = list_row[i]
                        to = counters[row]
                    same = peers(row, ok)
                    rank = before(same)
                    cuda.syncwarp()
                    if ok:
                        if rank == 0:
                            counters[row] = to + count_lanes(same)
                        order[to + rank] = list_position[i]
                        keys[to + rank] = low + row
                    cuda.syncwarp()
    return embedding_sort


def launch(problem, device, starts, order, keys):
    """The launch; `starts`, `order` and `keys` are the list's arguments."""
    rows, shift = problem.table.shape[0], shift_of(problem.table.shape[0], device)
    arguments = (Argument(f"{problem.indices.dtype}*", "indices"), starts, order, keys, Argument("int32", problem.positions),
                 Argument("int32", rows), Argument("int32", problem.padding_idx), Argument("int64", problem.steps[0]))
    dependent = device.capability >= (9, 0)
    return Launch(kernel(problem.indices.dtype, shift, dependent), (_blocks(rows, shift), 1, 1), (SORT, 1, 1), arguments,
                  dependent=dependent)

"""Numbers of a block in order: a stable sort in shared memory, five bits a pass.

A warp has neighbours, 32 of them at a time; votes say which lanes have the same digit, and the first of them leaves how many these are.
Sums over all that was left, digit by digit and warp by warp, are where each goes. Every counter has one writer, and barriers lie between.
"""
import functools

from ..device import cuda, device_function, i32
from ..device.warp import lane_id, scan_sum, warp_id
from ..engine.ranks import before, count_lanes, make_peers

THREADS, ITEMS = 256, 4
WARPS, TILE, TILE_BITS = THREADS // 32, THREADS * ITEMS, 10
DIGIT = 5  # bits: as many digits as lanes, so that a thread has ITEMS counters
LAST = 0x7FFFFFFF  # comes after everything, or with it


@device_function
def block_sums(value, totals):
    """(the sum of earlier threads' values, that of all); `totals`: WARPS numbers, free again."""
    sums, earlier, whole = scan_sum(value), 0, 0
    if lane_id() == 31:
        totals[warp_id()] = sums
    cuda.syncthreads()
    for w in range(WARPS):
        if w < warp_id():
            earlier = earlier + totals[w]
        whole = whole + totals[w]
    cuda.syncthreads()
    return earlier + sums - value, whole


@functools.cache
def make_sort(first, bits):
    """Device function ``sort(entries, counters, totals)``: TILE numbers of shared memory by `bits` bits from bit `first` on.

    `counters`: TILE numbers, `totals`: WARPS, both in shared memory. Threads meet at the end; not at the beginning.
    """
    peers, PASSES, MASK = make_peers(DIGIT), -(-bits // DIGIT), (1 << DIGIT) - 1

    @device_function
    def sort(entries, counters, totals):
        held, targets = cuda.local.array(ITEMS, i32), cuda.local.array(ITEMS, i32)
        thread, own = cuda.threadIdx.x, warp_id() * (32 * ITEMS) + lane_id()
        for p in range(PASSES):
            low = first + p * DIGIT
            for k in range(ITEMS):
                counters[k * THREADS + thread] = 0
            cuda.syncthreads()
            for k in range(ITEMS):
                held[k] = entries[own + 32 * k]
            for k in range(ITEMS):
                digit = (held[k] >> low) & MASK
                same = peers(digit, 1)
                rank, at = before(same), digit * 32 + warp_id() * ITEMS + k
                if rank == 0:
                    counters[at] = count_lanes(same)
                targets[k] = at << DIGIT | rank
            cuda.syncthreads()
            total = 0
            for k in range(ITEMS):
                total = total + counters[thread * ITEMS + k]
            run, _ = block_sums(total, totals)
            for k in range(ITEMS):
                count = counters[thread * ITEMS + k]
                counters[thread * ITEMS + k] = run
                run = run + count
            cuda.syncthreads()
            for k in range(ITEMS):
                entries[counters[targets[k] >> DIGIT] + (targets[k] & MASK)] = held[k]
            cuda.syncthreads()
    return sort

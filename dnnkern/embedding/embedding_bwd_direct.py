"""One launch, for few positions: a block owns some rows of the table, looks at all indices, and writes its rows.

Most blocks find no position of theirs, and only write zeros. The others sort what they found, by comparing each with all, and add up
the gradients of a row in order, eight in flight of a thread's 16 bytes.
"""
import functools
from dataclasses import replace

from ..device import cuda, i32, jit
from ..device.convert import element
from ..device.groups import make_writer
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.vec import advance
from ..device.warp import ballot, lane_id, warp_id
from ..dispatch import Algorithm
from ..engine.ahead import make_follow
from ..engine.constants import constants
from ..engine.cost import LAUNCH, Cost, memory_seconds, overlap
from ..engine.offsets import LIMIT
from ..engine.ranks import before, count_lanes
from ..engine.values import COMPUTE
from ..host.launch import Argument, Launch
from ._sorted import make_key
from .embedding_bwd_sorted import FLIGHT, make_config, make_gather
from .embedding_fwd_rows import refusal

COST = constants("embedding/bwd_direct")

THREADS, WARPS = 256, 8
BITS, MOST_ROWS, BLOCK_BYTES = 10, 1024, 32768
MOST = 1 << BITS  # positions


def supports(problem):
    """Contiguous columns, positions at even steps, few of them."""
    if reason := refusal(problem):
        return reason
    p = problem
    if p.positions > MOST:
        return f"{p.positions} positions; expected up to {MOST}"
    if p.table.shape[0] * (p.columns // make_config(p).columns) >= LIMIT - 2 ** 20:
        return f"a table of {p.table.shape[0]} rows of {p.columns}; expected fewer than 2**31 - 2**20 pieces of 16 bytes"
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def _rows(problem):
    """Of a block: 32 KB of the table, as far as its counters suffice."""
    return max(1, min(MOST_ROWS, BLOCK_BYTES // (problem.columns * problem.table.itemsize)))


def estimate(problem, device, config):
    """Bytes; beside them what a block waits for, and the gathering of a frequent row, which has a share of all positions."""
    p = problem
    alone = COST.wait * p.positions * COST.frequent / FLIGHT + COST.look * p.positions
    blocks = ceil_div(p.table.shape[0], _rows(p))
    looking = COST.block * ceil_div(p.positions, THREADS) * ceil_div(blocks, 8 * device.sms)
    return LAUNCH + overlap(memory=memory_seconds(p.bytes, device) / COST.rate, waits=COST.start + alone) + Cost(waits=looking)


@functools.cache
def kernel(config, index_dtype, rows_of_block, dependent):
    """dweight[v] = the sum of its positions' gradients."""
    Total, V = COMPUTE[element(config.dtype).compute], config.columns
    key, gather, put, begin = make_key(index_dtype), make_gather(config), make_writer(config.dtype, V, config.words), make_follow(dependent)
    ROWS, BY_FREQUENCY = rows_of_block, config.by_frequency

    @jit(launch_bounds=(THREADS, 4))
    def embedding_bwd_direct(dy, indices, dweight, positions, rows, padding, chunks, pieces, step, dy_step, row_step):
        begin()
        found, ordered, order = cuda.shared.array(MOST, i32), cuda.shared.array(MOST, i32), cuda.shared.array(MOST, i32)
        begins, ends, totals = cuda.shared.array(ROWS, i32), cuda.shared.array(ROWS, i32), cuda.shared.array(WARPS, i32)
        thread, low, count = cuda.threadIdx.x, cuda.blockIdx.x * ROWS, 0
        for r in range(thread, ROWS, THREADS):
            begins[r] = 0
            ends[r] = 0
        for first in range(0, positions, THREADS):
            row = key(indices, first + thread, positions, step, rows, padding) - low
            ok = 1 if row >= 0 and row < ROWS else 0
            mask = ballot(ok)
            if lane_id() == 0:
                totals[warp_id()] = count_lanes(mask)
            cuda.syncthreads()
            at = count + before(mask)
            for w in range(WARPS):
                if w < warp_id():
                    at = at + totals[w]
                count = count + totals[w]
            if ok:
                found[at] = row << BITS | (first + thread)
            cuda.syncthreads()
        for i in range(thread, count, THREADS):
            mine, rank = found[i], 0
            for k in range(count):
                if found[k] < mine:
                    rank = rank + 1
            ordered[rank] = mine
            order[rank] = mine & (MOST - 1)
        cuda.syncthreads()
        for i in range(thread, count, THREADS):
            row = ordered[i] >> BITS
            if i == 0 or ordered[max(i - 1, 0)] >> BITS != row:
                begins[row] = i
            if i == count - 1 or ordered[min(i + 1, MOST - 1)] >> BITS != row:
                ends[row] = i + 1
        cuda.syncthreads()
        total = cuda.local.array(V, Total)
        for i in range(thread, pieces, THREADS):
            row, chunk = divide_remainder(i, chunks)
            if low + row < rows:
                begin_of, end = begins[row], ends[row]
                for v in range(V):
                    total[v] = Total(0)
                if begin_of < end:
                    gather(total, advance(dy, chunk * V), order, begin_of, end, dy_step)
                    if BY_FREQUENCY:
                        for v in range(V):
                            total[v] = total[v] / Total(end - begin_of)
                put(advance(dweight, (low + row) * row_step + chunk * V), 0, total, 0)
    return embedding_bwd_direct


def build(problem, device, config):
    """One launch."""
    p, config, pointer, rows = problem, replace(make_config(problem), slice_bits=0), element(problem.dtype).pointer, _rows(problem)
    chunks, dependent = p.columns // config.columns, device.capability >= (9, 0)
    arguments = (Argument(pointer, "dy"), Argument(f"{p.indices.dtype}*", "indices"), Argument(pointer, "dweight"),
                 Argument("int32", p.positions), Argument("int32", p.table.shape[0]), Argument("int32", p.padding_idx),
                 Argument("uint32x3", divisor(chunks)), Argument("int32", rows * chunks), Argument("int64", p.steps[0]),
                 Argument("int64", p.steps[1]), Argument("int64", p.table.strides[0]))
    return (Launch(kernel(config, p.indices.dtype, rows, dependent), (ceil_div(p.table.shape[0], rows), 1, 1), (THREADS, 1, 1), arguments,
                   dependent=dependent),)


ALGORITHM = Algorithm(op="embedding_bwd", name="direct", supports=supports, workspace=workspace, estimate=estimate, build=build)

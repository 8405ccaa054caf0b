"""The positions of a grid in the order of the cells of the image that they lie in: what the gradient of a pixel gathers, found once for all
channels.

A cell is what lies between neighbouring pixels, or with "nearest" round one. The pixels that count for a position are its cell's corners,
so a pixel's positions are those of the cells that it is a corner of, two neighbours in each row of cells: one run of a sorted list.
Sorting is stable, by counting, in two steps: positions to buckets of 2**shift cells, parts of the grid counting apart; then a warp sorts a
bucket. Ranks come from votes and prefix sums, never from the order in which additions happen to arrive, so a list depends on the grid
alone. Positions for which no pixel counts are left out.
"""
import functools
import math
from dataclasses import dataclass

from ...device import cuda, device_function, i32, jit
from ...device.convert import element
from ...device.index import ceil_div, divide_remainder, divisor
from ...device.warp import broadcast, lane_id, scan_sum, warp_id
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
from ...engine.ranks import before, count_lanes, make_peers
from ...engine.strides import extents, grid_strides
from ...engine.values import COMPUTE
from ...host.dtypes import ITEMSIZE
from ...host.launch import Argument, Launch
from .grid_sample_naive import config_of, make_corners

COST = constants("transform/grid_cells")

THREADS, SPREAD, ITEMS, SCAN, AHEAD, TOGETHER = 256, 128, 8, 512, 8, 4
CHUNK, MOST_BUCKETS, MOST_PARTS = SPREAD * ITEMS, 2048, 64
LEAST_SHIFT, MOST_SHIFT = 7, 13


def corners_of(mode):
    """Cells that a pixel is a corner of, along a dimension, and how many more cells than pixels there are."""
    return (2, 1) if mode == "bilinear" else (1, 0)


@dataclass(frozen=True)
class Cells:
    """Of a problem: images, positions of each, cells of each, which lie in buckets of 2**shift; parts of the positions that are counted
    apart."""
    images: int
    positions: int
    count: int
    shift: int
    part: int

    @property
    def buckets(self):
        """One cell more than there are: where the last one ends."""
        return ceil_div(self.count + 1, 1 << self.shift)

    @property
    def bits(self):
        """Of a bucket's number."""
        return max(1, (self.buckets - 1).bit_length())

    @property
    def parts(self):
        return ceil_div(self.positions, self.part)


def cells_of(problem):
    """The `Cells` of a gradient's problem; their buckets may be too many (`refusal`)."""
    p, more = problem, corners_of(problem.mode)[1]
    count = math.prod(n + more for n in p.image[3 - p.dims:])
    shift = min(MOST_SHIFT, max(LEAST_SHIFT, math.ceil(math.log2((count + 1) / MOST_BUCKETS))))
    positions = math.prod(p.out)
    return Cells(p.x.shape[0], positions, count, shift, CHUNK * max(1, ceil_div(positions, CHUNK * MOST_PARTS)))


def refusal(problem):
    """Why the positions cannot be sorted, or None."""
    cells = cells_of(problem)
    if cells.buckets > MOST_BUCKETS:
        return f"images {problem.image} have {cells.count} cells; expected fewer than {MOST_BUCKETS << MOST_SHIFT}"
    most = cells.images * max(cells.positions, cells.count + 1, cells.parts * cells.buckets)
    reach = sum((n - 1) * abs(s) for n, s in zip(problem.out, problem.strides_of(problem.dy)[2:]))
    if max(most, reach) >= 2 ** 31 - 2 ** 20 or max(problem.image) >= 2 ** 23:
        return (f"{cells.images} images {problem.image}, of {cells.positions} positions: {max(most, reach)} of something; "
                "expected fewer than 2**31 - 2**20, extents below 2**23")
    return None


def _layout(problem):
    """({name: offset}, bytes) of what lies in the workspace."""
    cells, size, at, found = cells_of(problem), ITEMSIZE[problem.compute], 0, {}
    every = cells.images * cells.positions
    sizes = {"counts": 4 * cells.images * cells.parts * cells.buckets, "buckets": 4 * cells.images * (cells.buckets + 1),
             "order": 4 * every, "starts": 4 * cells.images * (cells.count + 1), "offsets": 4 * every}
    sizes.update({f"{name}_{axis}": size * every for name in ("located", "sorted") for axis in "whd"[:problem.dims]})
    for name, nbytes in sizes.items():
        found[name], at = at, at + ceil_div(nbytes, 256) * 256
    return found, at


def workspace(problem):
    """Bytes."""
    return _layout(problem)[1]


def seconds(problem, device):
    """Time of the four launches: instructions of a position, which is computed once and found again three times, and bytes."""
    cells, p = cells_of(problem), problem
    every = cells.images * cells.positions
    a_position = p.dims * (p.grid.itemsize + COST.sort_values * ITEMSIZE[p.compute]) + COST.sort_numbers
    moved = every * a_position + COST.cell * cells.images * cells.count
    return 4 * LAUNCH + overlap(memory=memory_seconds(moved, device), issue=issue_seconds(every, COST.output, device))


@functools.cache
def make_cell(kind):
    """Device function ``cell(w, h, d, sizes)``: the number of the cell that a position lies in, -1 where no pixel counts for it."""
    split, more, DIMS = make_corners(kind).split, corners_of(kind.mode)[1], kind.dims

    @device_function
    def cell(w, h, d, sizes):
        first, _ = split(w)
        cell_w, cells_w = first + more, sizes.w + more
        first, _ = split(h)
        cell_h, cells_h = first + more, sizes.h + more
        found = -1
        if cell_w >= 0 and cell_w < cells_w and cell_h >= 0 and cell_h < cells_h:
            found = cell_h * cells_w + cell_w
            if DIMS > 2:
                first, _ = split(d)
                cell_d = first + more
                if cell_d >= 0 and cell_d < sizes.d + more:
                    found += cell_d * cells_h * cells_w
                else:
                    found = -1
        return found
    return cell


@functools.cache
def locate_kernel(kind, shift, bits):
    """Where positions lie, and how many of a part of the grid lie in each bucket."""
    where, cell, HELD, DIMS = make_corners(kind).where, make_cell(kind), 1 << bits, kind.dims

    @jit(launch_bounds=(THREADS, 4))
    def grid_sample_locate(grid, at_w, at_h, at_d, counts, positions, parts, part_positions, buckets, height, width, sizes, grid_stride):
        counters, thread = cuda.shared.array(HELD, i32), cuda.threadIdx.x
        n, part = divide_remainder(cuda.blockIdx.x, parts)
        for b in range(thread, buckets, THREADS):
            counters[b] = 0
        cuda.syncthreads()
        first = part * part_positions
        for i in range(first + thread, min(first + part_positions, positions), THREADS):
            row, q = divide_remainder(i, width)
            o, p = divide_remainder(row, height)
            at = n * grid_stride.n + o * grid_stride.d + p * grid_stride.h + q * grid_stride.w
            w, h, d, _, _, _ = where(grid, at, grid_stride, sizes)
            to = n * positions + i
            at_w[to] = w
            at_h[to] = h
            if DIMS > 2:
                at_d[to] = d
            found = cell(w, h, d, sizes)
            if found >= 0:
                cuda.atomic.add(counters, found >> shift, 1)
        cuda.syncthreads()
        to = cuda.blockIdx.x * buckets
        for b in range(thread, buckets, THREADS):
            counts[to + b] = counters[b]
    return grid_sample_locate


@functools.cache
def starts_kernel():
    """Where the buckets of an image begin, and in each the part's positions: counts become sums of those before."""
    WARPS = SCAN // 32

    @jit(launch_bounds=SCAN)
    def grid_sample_starts(counts, starts, parts, buckets):
        totals, held, thread = cuda.shared.array(WARPS, i32), cuda.local.array(AHEAD, i32), cuda.threadIdx.x
        image, carry = cuda.blockIdx.x * (parts * buckets), 0
        to = cuda.blockIdx.x * (buckets + 1)
        for first in range(0, buckets, SCAN):
            b, total = first + thread, 0
            if b < buckets:
                for part in range(0, parts, AHEAD):
                    for k in range(AHEAD):
                        held[k] = 0
                        if part + k < parts:
                            held[k] = counts[image + (part + k) * buckets + b]
                    for k in range(AHEAD):
                        if part + k < parts:
                            counts[image + (part + k) * buckets + b] = total
                        total = total + held[k]
            sums = scan_sum(total)
            if lane_id() == 31:
                totals[warp_id()] = sums
            cuda.syncthreads()
            sums, whole = sums - total, 0
            for k in range(WARPS):
                if k < warp_id():
                    sums = sums + totals[k]
                whole = whole + totals[k]
            cuda.syncthreads()
            if b < buckets:
                starts[to + b] = carry + sums
            carry = carry + whole
        if thread == 0:
            starts[to + buckets] = carry
    return grid_sample_starts


@functools.cache
def spread_kernel(kind, shift, bits):
    """The numbers of positions to their buckets, in order: a block has a part of the grid, a warp neighbours of it."""
    cell, peers, HELD, WARPS, DIMS = make_cell(kind), make_peers(bits), 1 << bits, SPREAD // 32, kind.dims
    ALL, OWN, T = WARPS * HELD, 32 * ITEMS, COMPUTE[kind.compute]

    @jit(launch_bounds=(SPREAD, 4))
    def grid_sample_spread(at_w, at_h, at_d, counts, starts, order, positions, parts, part_positions, buckets, sizes):
        counters, base, thread = cuda.shared.array(ALL, i32), cuda.shared.array(HELD, i32), cuda.threadIdx.x
        found, ranks = cuda.local.array(ITEMS, i32), cuda.local.array(ITEMS, i32)
        n, part = divide_remainder(cuda.blockIdx.x, parts)
        image, mine = n * positions, warp_id() * HELD
        for b in range(thread, buckets, SPREAD):
            base[b] = counts[cuda.blockIdx.x * buckets + b] + starts[n * (buckets + 1) + b]
        begin = part * part_positions
        end = min(begin + part_positions, positions)
        for first in range(begin, end, CHUNK):
            for b in range(thread, buckets, SPREAD):
                for k in range(WARPS):
                    counters[b + k * HELD] = 0
            cuda.syncthreads()
            own = first + warp_id() * OWN + lane_id()
            for k in range(ITEMS):
                i, bucket = own + 32 * k, -1
                if i < end:
                    at, d = image + i, T(0)
                    if DIMS > 2:
                        d = at_d[at]
                    bucket = cell(at_w[at], at_h[at], d, sizes) >> shift
                same, counted = peers(bucket, i32(bucket >= 0)), 0
                rank = before(same)
                if bucket >= 0:
                    counted = counters[mine + bucket]
                cuda.syncwarp()
                if bucket >= 0 and rank == 0:
                    counters[mine + bucket] = counted + count_lanes(same)
                cuda.syncwarp()
                found[k], ranks[k] = bucket, counted + rank
            cuda.syncthreads()
            for b in range(thread, buckets, SPREAD):
                run = base[b]
                for k in range(WARPS):
                    counted = counters[b + k * HELD]
                    counters[b + k * HELD] = run
                    run = run + counted
                base[b] = run
            cuda.syncthreads()
            for k in range(ITEMS):
                if found[k] >= 0:
                    order[image + counters[mine + found[k]] + ranks[k]] = own + 32 * k
            cuda.syncthreads()
    return grid_sample_spread


def _bucket_warps(shift):
    """Warps of a block whose counters of cells fit 16 KB, or one."""
    return max(1, min(8, 1 << max(0, 12 - shift)))


@functools.cache
def order_kernel(kind, shift):
    """One bucket per warp: where its cells begin, and its positions in the order of their cells, with where they lie in dy."""
    cell, peers, CELLS, WARPS, DIMS = make_cell(kind), make_peers(shift), 1 << shift, _bucket_warps(shift), kind.dims
    ALL, LOW, T, STEP = WARPS * CELLS, (1 << shift) - 1, COMPUTE[kind.compute], 32 * TOGETHER

    @jit(launch_bounds=32 * WARPS)
    def grid_sample_order(at_w, at_h, at_d, order, buckets_at, starts, offsets, to_w, to_h, to_d, jobs, buckets, positions, cells, height,
                          width, sizes, dy_stride):
        counters, lane = cuda.shared.array(ALL, i32), lane_id()
        lows, numbers = cuda.local.array(TOGETHER, i32), cuda.local.array(TOGETHER, i32)
        ws, hs, ds = cuda.local.array(TOGETHER, T), cuda.local.array(TOGETHER, T), cuda.local.array(TOGETHER, T)
        job, mine = cuda.blockIdx.x * WARPS + warp_id(), warp_id() * CELLS
        if job < jobs:
            n, bucket = divide_remainder(job, buckets)
            image, at = n * positions, n * i32(buckets[0] + 1) + bucket
            begin, end = image + buckets_at[at], image + buckets_at[at + 1]
            for k in range(0, CELLS, 32):
                counters[mine + k + lane] = 0
            cuda.syncwarp()
            for first in range(begin, end, STEP):
                for k in range(TOGETHER):
                    t, lows[k] = first + 32 * k + lane, -1
                    if t < end:
                        at, d = image + order[t], T(0)
                        if DIMS > 2:
                            d = at_d[at]
                        lows[k] = cell(at_w[at], at_h[at], d, sizes) & LOW
                for k in range(TOGETHER):
                    if lows[k] >= 0:
                        cuda.atomic.add(counters, mine + lows[k], 1)
            cuda.syncwarp()
            run = begin
            for k in range(0, CELLS, 32):
                count, number = counters[mine + k + lane], (bucket << shift) + k + lane
                sums = scan_sum(count)
                counters[mine + k + lane] = run + sums - count
                if number <= cells:
                    starts[n * (cells + 1) + number] = run + sums - count
                run = run + broadcast(sums, 31)
            cuda.syncwarp()
            for first in range(begin, end, STEP):
                for k in range(TOGETHER):
                    t, lows[k], numbers[k], ds[k] = first + 32 * k + lane, -1, 0, T(0)
                    ws[k], hs[k] = T(0), T(0)
                    if t < end:
                        numbers[k] = order[t]
                        at = image + numbers[k]
                        ws[k], hs[k] = at_w[at], at_h[at]
                        if DIMS > 2:
                            ds[k] = at_d[at]
                        lows[k] = cell(ws[k], hs[k], ds[k], sizes) & LOW
                for k in range(TOGETHER):
                    same, to = peers(lows[k], i32(lows[k] >= 0)), 0
                    rank = before(same)
                    if lows[k] >= 0:
                        to = counters[mine + lows[k]]
                    cuda.syncwarp()
                    if lows[k] >= 0 and rank == 0:
                        counters[mine + lows[k]] = to + count_lanes(same)
                    cuda.syncwarp()
                    if lows[k] >= 0:
                        to = to + rank
                        row, q = divide_remainder(numbers[k], width)
                        o, p = divide_remainder(row, height)
                        offsets[to] = o * dy_stride.d + p * dy_stride.h + q * dy_stride.w
                        to_w[to] = ws[k]
                        to_h[to] = hs[k]
                        if DIMS > 2:
                            to_d[to] = ds[k]
    return grid_sample_order


def list_arguments(problem):
    """Kernel parameters of the sorted list: where each cell begins in it, positions in dy, and where they lie along w, h and d."""
    layout, T = _layout(problem)[0], f"{problem.compute}*"
    return (Argument("int32*", "workspace", layout["starts"]), Argument("int32*", "workspace", layout["offsets"]),
            *(Argument(T, "workspace", layout.get(f"sorted_{axis}", layout["sorted_h"])) for axis in "whd"))


def launches(problem):
    """The four of them; `workspace` bytes of the workspace are taken."""
    p, cells, layout, kind = problem, cells_of(problem), _layout(problem)[0], config_of(problem)
    located = [Argument(f"{p.compute}*", "workspace", layout.get(f"located_{axis}", layout["located_h"])) for axis in "whd"]
    counts, buckets_at, order = (Argument("int32*", "workspace", layout[name]) for name in ("counts", "buckets", "order"))
    positions, buckets, part = Argument("int32", cells.positions), Argument("int32", cells.buckets), Argument("int32", cells.part)
    parts, sizes = Argument("uint32x3", divisor(cells.parts)), extents(p.image, False)
    divisors = [Argument("uint32x3", divisor(n)) for n in p.out[1:]]
    locate = (Argument(element(p.grid.dtype).pointer, "grid"), *located, counts, positions, parts, part, buckets, *divisors, sizes,
              grid_strides(p.grid_strides(p.grid)))
    starts = (counts, buckets_at, Argument("int32", cells.parts), buckets)
    spread = (*located, counts, buckets_at, order, positions, parts, part, buckets, sizes)
    jobs, warps = cells.images * cells.buckets, _bucket_warps(cells.shift)
    sort = (*located, order, buckets_at, *list_arguments(p), Argument("int32", jobs), Argument("uint32x3", divisor(cells.buckets)),
            positions, Argument("int32", cells.count), *divisors, sizes, extents(p.strides_of(p.dy)[2:], False))
    blocks = cells.images * cells.parts
    return (Launch(locate_kernel(kind, cells.shift, cells.bits), (blocks, 1, 1), (THREADS, 1, 1), locate),
            Launch(starts_kernel(), (cells.images, 1, 1), (SCAN, 1, 1), starts),
            Launch(spread_kernel(kind, cells.shift, cells.bits), (blocks, 1, 1), (SPREAD, 1, 1), spread),
            Launch(order_kernel(kind, cells.shift), (ceil_div(jobs, warps), 1, 1), (32 * warps, 1, 1), sort))

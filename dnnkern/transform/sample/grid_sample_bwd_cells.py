"""The image's gradient by sorted positions: a thread per pixel and some of its channels, which gathers; no atomics, and sums of one order.

Four short launches sort the positions of each image by the cell of pixels they lie in (`_cells`), once for all channels. A pixel then knows
which positions it counts for, two runs of a list in two dimensions, four in three, one with "nearest"; a share is computed once for all
channels that a thread has at a time. Neighbouring pixels read neighbouring positions as far as the grid leaves them neighbours; whatever
the grid is like, nobody looks at positions for which he does not count.

A pixel of many positions, as at a border that everything outside is brought back to, waits until the others of its warp are done: then all
lanes share its list, in turns, and a fixed tree of shuffles adds up what they have.
"""
import functools
import math
from dataclasses import dataclass

from ...device import cuda, device_function, i32, i64, jit, u32
from ...device.convert import element
from ...device.index import ceil_div, divide_remainder, divisor
from ...device.vec import advance
from ...device.warp import ballot, broadcast, lane_id, shuffle_xor
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, occupied, overlap
from ...engine.strides import extents, image_strides
from ...engine.values import COMPUTE
from ...host.launch import Argument, Launch
from . import _cells, _grid_gradient
from ._channels import Share, Tile, make_channels, make_pixel, share_of, tile_of
from .grid_sample_naive import Config as Kind
from .grid_sample_naive import config_of, make_corners

COST = constants("transform/grid_gather")

THREADS, LONG, NOWHERE = 256, 96, -2 ** 31


@dataclass(frozen=True)
class Config:
    """What the kernel is compiled for, what threads have of a pixel, and how often a block's threads take as many channels again."""
    kind: Kind
    share: Share
    turns: int

    def __str__(self):
        return f"{self.share.channels} channels"


def supports(problem):
    """Positions and cells whose numbers fit 32 bits, images whose cells fit the buckets."""
    p = problem
    if not p.dx.size or not p.dgrid.size:
        return "there are no pixels or no places"
    blocks = p.x.shape[0] * p.channels * math.prod(Tile(16, 16).counts(p.image))
    if blocks >= 2 ** 31:
        return f"{blocks} tiles of 16 by 16 pixels in all channels; expected fewer than 2**31"
    return _grid_gradient.supports(p) or _cells.refusal(p)


def workspace(problem, device, config):
    """The sorted positions, and what sorting needs."""
    return _cells.workspace(problem)


def _grid(problem, share):
    """(tile, tiles along rows, along the width)."""
    tile = tile_of(THREADS // share.lanes, problem.image)
    return (tile, *tile.counts(problem.image))


def _config(problem, device, channels):
    """Turns as long as there are blocks enough left."""
    share = share_of((problem.dy, problem.dx), channels)
    (_, rows, columns), steps = _grid(problem, share), ceil_div(problem.channels, share.step)
    tiles = rows * columns * problem.x.shape[0]
    return Config(config_of(problem), share, max(1, min(4, steps, tiles * steps // (12 * device.sms))))


def configs(problem, device):
    """Channels of a thread at a time, where these are not 16 bytes of neighbours."""
    most = (8, 4) if problem.compute == "float64" else (16, 8, 32, 4)
    return list(dict.fromkeys(_config(problem, device, n) for n in most))


def estimate(problem, device, config):
    """For each position that a pixel gathers what finding it takes, and for each channel a load, mostly the L1's time; sorting, and the
    gradient by the grid. Counted, then fitted roughly to an H200 as a whole (docs/notes/grids.md); channels that are neighbours were not
    timed."""
    p, share, dims = problem, config.share, problem.dims
    taps, positions = (2 ** dims if p.mode == "bilinear" else 1), p.grid.size // dims
    a_load = COST.load + COST.address / share.channels if share.unit else COST.load_first
    channels = ceil_div(p.channels, share.step) * share.step  # of whole shares
    work = COST.work * taps * positions * channels * (COST.find / share.channels + a_load)
    work += p.dx.size * (COST.element + COST.find / (share.channels * config.turns))
    _, rows, columns = _grid(p, share)
    blocks = rows * columns * p.x.shape[0] * ceil_div(p.channels, share.step * config.turns)
    warps = COST.few_warps if _blocks_resident(config.kind, share) < 3 and taps > 1 else 1.0  # too few to have the L1 busy all the time
    gather = issue_seconds(work, 1, device) * warps / occupied(blocks, COST.enough, device)
    return (LAUNCH + _cells.seconds(p, device) + overlap(
        issue=gather, memory=memory_seconds(p.dy.nbytes + p.dx.nbytes, device), exposed=COST.exposed)
            + _grid_gradient.seconds(p, device))


def _blocks_resident(kind, share):
    """Of a multiprocessor: sums in registers."""
    words = share.channels * (2 if kind.compute == "float64" else 1)
    return 4 if words <= 8 else 3 if words <= 16 else 2


@functools.cache
def kernel(kind, share, tile, wide):
    """The gradient of a tile of pixels in some channels. `wide`: offsets of 64 bits."""
    tent, T, Int = make_corners(kind).tent, COMPUTE[kind.compute], i64 if wide else i32
    (fetch, put), pixel = make_channels(kind.dtype, kind.compute, share, wide), make_pixel(share, tile)
    BILINEAR, DIMS, K, LANES, LANE_BITS, STEP = (kind.mode == "bilinear", kind.dims, share.channels, share.lanes, share.lane_bits,
                                                 share.step)
    (SPAN, MORE), RUNS, GROUPS = _cells.corners_of(kind.mode), _cells.corners_of(kind.mode)[0] ** (kind.dims - 1), 32 // share.lanes
    DEEP = DIMS > 2

    @device_function
    def run(starts, begins, ends, image, r, d, h, w, sizes):
        row = h + (r & 1)
        if DEEP:
            row = row + (d + (r >> 1)) * (sizes.h + MORE)
        at = image + row * (sizes.w + MORE) + w
        before = ends[r - 1] if r else 0
        begin = starts[at]
        begins[r] = begin - before  # so that entry t of all runs together is at t + begins[r]
        ends[r] = before + (starts[at + SPAN] - begin)

    @device_function
    def add(total, dy, offsets, at_w, at_h, at_d, begins, ends, first, count, step, d, h, w, channel, left):
        values = cuda.local.array(K, T)
        t = first
        while t < count:  # a range whose step is no constant would divide
            i = t + begins[0]
            for r in range(1, RUNS):
                if t >= ends[r - 1]:
                    i = t + begins[r]
            t = t + step
            at, share = offsets[i], T(1)
            if BILINEAR:
                share = T(tent(at_h[i], h) * tent(at_w[i], w))
                if DEEP:
                    share = T(share * tent(at_d[i], d))
            if share > T(0) and at != NOWHERE:  # NOTE: always; else the load of `at` would sink below the question, and wait for its answer
                fetch(values, advance(dy, Int(at)), channel, left)
                for k in range(K):
                    total[k] = T(total[k] + share * values[k])

    @jit(launch_bounds=(THREADS, _blocks_resident(kind, share)))
    def grid_sample_cells(dy, starts, offsets, at_w, at_h, at_d, dx, tile_rows, tile_columns, rows, columns, height, groups, turns, cells,
                          channels, sizes, dy_stride, dx_stride):
        total, begins, ends = cuda.local.array(K, T), cuda.local.array(RUNS, i32), cuda.local.array(RUNS, i32)
        other_begins, other_ends = cuda.local.array(RUNS, i32), cuda.local.array(RUNS, i32)
        rest, row, w, lane_first = pixel(cuda.blockIdx.x, tile_rows, tile_columns)
        n, group = divide_remainder(rest, groups)
        ok = row < rows and w < columns
        if not ok:  # lanes meet below
            row, w = 0, 0
        d, h = divide_remainder(row, height)
        for r in range(RUNS):
            run(starts, begins, ends, n * (cells + 1), r, d, h, w, sizes)
        count = ends[RUNS - 1] if ok else 0
        many = count > LONG and GROUPS > 1
        own = 0 if many else count
        to = n * dx_stride.n + d * dx_stride.d + h * dx_stride.h + w * dx_stride.w
        dy = advance(dy, n * dy_stride.n)
        first = group * (turns * STEP)
        for c in range(first + lane_first, min(first + turns * STEP, channels + lane_first), STEP):
            left = channels - c
            here = advance(dy, c * dy_stride.c)
            for k in range(K):
                total[k] = T(0)
            add(total, here, offsets, at_w, at_h, at_d, begins, ends, 0, own, 1, d, h, w, dy_stride.c, left)
            if ok and not many:
                put(advance(dx, to + c * dx_stride.c), total, dx_stride.c, left)
            if GROUPS > 1:
                waiting = ballot(i32(many))
                while waiting != 0:
                    who = i32(cuda.ffs(waiting)) - 1
                    waiting = waiting & ~(u32(2 ** LANES - 1) << u32(who))
                    for r in range(RUNS):
                        other_begins[r], other_ends[r] = broadcast(begins[r], who), broadcast(ends[r], who)
                    other_d, other_h, other_w = broadcast(d, who), broadcast(h, who), broadcast(w, who)
                    for k in range(K):
                        total[k] = T(0)
                    add(total, here, offsets, at_w, at_h, at_d, other_begins, other_ends, lane_id() >> LANE_BITS, other_ends[RUNS - 1],
                        GROUPS, other_d, other_h, other_w, dy_stride.c, left)
                    for k in range(K):
                        lane = LANES
                        while lane < 32:
                            total[k] = T(total[k] + shuffle_xor(total[k], lane))
                            lane = lane * 2
                    if lane_id() >> LANE_BITS == who >> LANE_BITS:
                        put(advance(dx, to + c * dx_stride.c), total, dx_stride.c, left)
    return grid_sample_cells


def build(problem, device, config):
    """Six launches: four that sort, the gradient by the image, that by the grid."""
    p, pointer, share = problem, element(problem.x.dtype).pointer, config.share
    tile, tile_rows, tile_columns = _grid(p, share)
    groups = ceil_div(p.channels, share.step * config.turns)
    arguments = (Argument(pointer, "dy"), *_cells.list_arguments(p), Argument(pointer, "dx"), Argument("uint32x3", divisor(tile_rows)),
                 Argument("uint32x3", divisor(tile_columns)), Argument("int32", p.image[0] * p.image[1]), Argument("int32", p.image[2]),
                 Argument("uint32x3", divisor(p.image[1])), Argument("uint32x3", divisor(groups)), Argument("int32", config.turns),
                 Argument("int32", _cells.cells_of(p).count), Argument("int32", p.channels), extents(p.image, False),
                 image_strides(p.strides_of(p.dy), p.is_wide), image_strides(p.strides_of(p.dx), p.is_wide))
    blocks = tile_rows * tile_columns * groups * p.x.shape[0]
    gather = Launch(kernel(config.kind, share, tile, p.is_wide), (blocks, 1, 1), (THREADS, 1, 1), arguments)
    return (*_cells.launches(p), gather, _grid_gradient.launch(p, device))


ALGORITHM = Algorithm(op="grid_sample_bwd", name="cells", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs)

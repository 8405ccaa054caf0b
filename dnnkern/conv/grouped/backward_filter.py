"""Backward filter of many small groups on tensor cores: x and dy pass through shared memory once, several groups share a product.

Each group's dw is a product of K/G x (taps C/G), summed over all pixels: a small result from all of x and dy. Counted for 64 images of 128
channels, 56 x 56, in 32 groups, 3 x 3 (*predicted* for 132 multiprocessors at 1.755 GHz, not measured):

    memory       103 MB, x and dy once                                         25 us
    tensor core  1.8 Gflop of the problem, 5.6 by mma.sync                     13 us
    shared       86 cycles to load 42 products' operands                       12 us, and 4 to write the tiles
    issue        100 instructions for 42 products                               4 us, and 5 to 9 for the copies

Two groups of four fill half of the 8 x 8 channels of a product, and the third tap of a row half of a product. That wastes two thirds of the
tensor cores, and still takes half the time of the memory; unpacking groups would move more than it saves. Memory must never wait: the next
tiles are in flight while one is multiplied, and copies to shared memory bypass registers. A row of dy is loaded once for all taps, and a
row of x once for all rows of dy that it multiplies (`filter_kernel`): tap by tap, shared memory would take 22 us instead of 12.

Blocks divide the channels and the tiles, and large filters. Warps with different pixels write partial sums to the workspace, which a second
launch adds in a fixed order. Rows of the last tile past the image count as zeros of dy: an infinite or NaN x there reaches taps that do not
cover it.

Channels last, 16-bit types, equal groups; any strides, dilation and padding. It should win from 2 to 16 channels per group; groups of 32
are limited by their products.
"""
import math
from dataclasses import dataclass

from ...device.convert import element
from ...device.groups import access_words
from ...device.index import Divisor, ceil_div, divisor
from ...dispatch import Algorithm, Note
from ...engine.ampere_cost import sum_seconds
from ...engine.constants import constants
from ...engine.cost import Cost, overlap
from ...engine.strides import Extents32
from ...host.launch import Argument, Launch
from .._gather import view_of
from .._gather.store import output_of, pitch_of, sum_launch, sums_bytes
from .._parameters import PixelStrides
from .._taps import Axis, small_groups_refusal
from .filter_kernel import UNIT, Body, Window, filter_kernel

COST = constants("conv/grouped_filter")

MOST_SUMS = 112      # accumulators of a thread
MOST_PRODUCTS = 256  # that are unrolled


@dataclass(frozen=True)
class Config:
    """Channels of a block; the most rows and columns of dy in a tile; approximate warps; tiles in shared memory; blocks per multiprocessor.

    `taps`: a block has as many rows of the filter as its registers hold (2), one row (1), or a single tap (0).
    """
    channels: int
    rows: int
    columns: int
    warps: int
    stages: int
    blocks: int
    taps: int = 2

    def __post_init__(self):
        if self.channels not in (32, 64) or self.stages < 2:
            raise ValueError(f"{self.channels} channels, {self.stages} stages; expected 32 or 64 channels, at least 2 stages")

    def __str__(self):
        part = ("", " by rows", " by taps")[2 - self.taps]
        return f"{self.channels} channels {self.rows}x{self.columns} w{self.warps} s{self.stages} b{self.blocks}{part}"


CONFIGS = (Config(64, 7, 28, 16, 3, 1), Config(64, 7, 14, 8, 3, 2), Config(32, 7, 28, 8, 2, 2), Config(64, 7, 28, 8, 3, 1),
           Config(64, 7, 14, 8, 2, 2), Config(64, 7, 14, 8, 2, 3), Config(32, 7, 14, 4, 2, 5), Config(32, 7, 14, 4, 3, 3),
           Config(32, 8, 32, 8, 2, 2), Config(32, 4, 28, 8, 2, 3), Config(64, 4, 14, 8, 2, 3), Config(32, 4, 14, 4, 2, 4),
           Config(32, 2, 28, 8, 2, 2), Config(64, 7, 14, 8, 2, 1), Config(32, 4, 16, 4, 2, 2, 1), Config(32, 1, 32, 4, 2, 4, 1))
LAST = Config(32, 1, 16, 4, 2, 1, 0)  # which supports everything


def supports(problem):
    """Equal groups of a power of two channels, channels last, 16-bit floats."""
    p, refusal = problem, small_groups_refusal(problem)
    if refusal:
        return refusal
    if p.x_strides[1] != 1 or p.y_strides[1] != 1:
        return f"channels are not contiguous: strides {p.x_strides[1]}, {p.y_strides[1]}"
    for name, strides in (("x", p.x_strides), ("dy", p.y_strides)):
        tensor = p.x if name == "x" else p.y
        if access_words(tensor, 8, (strides[0], *strides[2:])) != 4:
            return f"rows of channels of {name} are not aligned to 16 bytes: strides {strides}, address {tensor.alignment}"
    most = max(map(max, p.strides, p.dilations))
    if most * max(p.filter) + max(p.pads_before) >= 2 ** 20:
        return f"strides {p.strides}, dilation {p.dilations}, padding {p.pads_before}; the limit of the window is 2**20"
    margin = 2 * most * max(p.filter) + max(p.pads_before) + 64 * max(p.strides)
    planes = (p.x_strides, p.image), (p.y_strides, p.out)
    reach = max(abs(h) * (n[1] + margin) + abs(w) * (n[2] + margin) for (_, _, _, h, w), n in planes)
    if max(reach, *map(abs, p.x_strides + p.y_strides), p.pixels + 2 ** 16) >= 2 ** 31:
        return f"a plane spans {reach} elements, there are {p.pixels} pixels; the limit is 2**31"
    extent = sum((n - 1) * abs(s) for n, s in zip((p.k, p.c_group, *p.filter), p.w_strides)) + 1
    if max(extent, p.k * (p.c_group * p.taps + 4)) >= 2 ** 31:
        return f"dw spans {extent} elements; the limit is 2**31"
    return None


def _even(total, most):
    """`total` in equal parts of at most `most`."""
    return ceil_div(total, ceil_div(total, max(most, 1)))


def _step(*distances):
    """(common step of the distances that are not None, the distances in such steps)."""
    step = math.gcd(*(d for d in distances if d is not None)) or 1
    return step, *(1 if d is None else d // step for d in distances)


def _tile(problem, config):
    """(the kernel's `Body`, rows and columns of the image between those that are read): rows and columns of dy in equal parts, and as many
    taps as there are accumulators for."""
    p = problem
    side = 1 if p.c_group <= 8 else 2
    taps = _even(p.filter[2] if config.taps else 1, MOST_SUMS // (2 if side == 1 else 8))
    lines = _even(p.filter[1] if config.taps > 1 else 1, MOST_SUMS // (4 * side * ceil_div(taps * side, 2)))
    rows, columns = _even(p.out[1], config.rows), _even(p.out[2], config.columns)
    halves = 2 if rows > 1 and ceil_div(columns, 8) % 2 else 1  # which leaves fewer columns of products empty
    if halves == 2:
        rows = _even(p.out[1], config.rows + config.rows % 2)
    step_h, down, line = _step(p.strides[1] if rows > 1 else None, p.dilations[1] if lines > 1 else None)
    step_w, *apart = _step(p.strides[2] if columns > 1 else None, p.dilations[2] if taps > 1 else None)
    units = config.channels // (16 if p.c_group == 16 else 8)
    warps = max(1, min(config.warps // units, ceil_div(columns, UNIT // halves)))
    axis = Axis(lines, down, line, 0, 0, ceil_div(rows, halves))
    body = Body(p.dtype, p.c_group, config.channels, axis, halves, columns, taps, tuple(apart), warps, config.stages, config.blocks,
                view_of(p).channel_inner)
    return body, (step_h, step_w)


def _registers(body):
    """Of a thread, about."""
    return body.sums + 2 * body.side * body.rows.tile + 64


def _fits(body, device):
    shared, most = body.stages * body.bytes, min(65536 // (body.threads * body.blocks) // 8 * 8, 255)
    return (body.x_rows <= 62 and body.products <= MOST_PRODUCTS and _registers(body) <= most and shared <= device.shared_per_block
            and body.blocks * (shared + 1024) <= device.shared_per_sm and body.threads <= 1024)


def _counts(problem, body):
    """(slices of channels, parts of the filter along t, r, s, tiles down and across a plane, tiles in all)"""
    p, down, across = problem, ceil_div(problem.out[1], body.down), ceil_div(problem.out[2], body.columns)
    parts = p.filter[0], ceil_div(p.filter[1], body.rows.taps), ceil_div(p.filter[2], body.taps)
    return ceil_div(p.c, body.channels), parts, down, across, p.n * p.out[0] * down * across


def _ranges(problem, device, config):
    """Slices of the tiles: as many as blocks fit on the device, fewer where their partial sums would be half of what is read."""
    body, _ = _tile(problem, config)
    slices, parts, _, _, tiles = _counts(problem, body)
    each = slices * math.prod(parts)
    light = problem.bytes // (2 * body.warps * _sums_bytes(problem, 1))
    ranges = min(device.sms * config.blocks // each, max(light, device.sms // each), tiles)
    return _even_ranges(tiles, max(ranges, 1))


def _even_ranges(tiles, ranges):
    """The least number of slices whose longest is as short."""
    return ceil_div(tiles, ceil_div(tiles, ranges))


def _sums_bytes(problem, ranges):
    view = view_of(problem)
    return sums_bytes(view.products, view.rows, view.columns, ranges, "float32")


def configs(problem, device):
    """Those that fit, the fastest first, one for each tile."""
    found = {}
    for config in CONFIGS:
        body, _ = _tile(problem, config)
        if (config.channels == 32 or problem.c > 32) and _fits(body, device):
            found.setdefault(body, config)
    return sorted(found.values(), key=lambda config: estimate(problem, device, config)) or [LAST]


def workspace(problem, device, config):
    """Partial sums of every slice and of the warps that divide its pixels."""
    return _sums_bytes(problem, _ranges(problem, device, config) * _tile(problem, config)[0].warps)


def estimate(problem, device, config):
    """The busiest multiprocessor's products, of half the rate that wgmma has, its shared memory, its instructions; or the L2, the memory,
    or what is on its way in a latency; then the sum."""
    p, (body, _) = problem, _tile(problem, config)
    rows = body.rows
    slices, parts, _, _, tiles = _counts(p, body)
    ranges = _ranges(p, device, config)
    blocks = slices * math.prod(parts) * ranges
    turns, busiest = ceil_div(tiles, ranges), ceil_div(blocks, device.sms)
    units = body.y_columns // body.across * body.units
    copies = body.bytes / body.pitch * body.channels * 2
    loads = rows.loads * body.pairs + rows.tile
    mma = units * body.products * COST.product
    shared = units * (4 * rows.loads * body.pairs + 2 * body.side * rows.tile) + copies / 128
    issue = (units * (body.products + loads + COST.unit) + body.threads / 32 * COST.thread + copies / 512 * COST.copies) / 4
    alone = ceil_div(body.y_columns // body.across, body.warps) * (body.products * COST.alone_product + COST.alone_rows) + COST.alone_tile
    times = turns * busiest * COST.slower / device.clock_hz
    # x between tiles is read once for each, from the L2; halves of 64 bytes of a line by different blocks
    read = blocks * turns * copies * (1.0 if body.channels == 64 else COST.lines)
    under_way = min(busiest, config.blocks) * (config.stages - 1) * copies * min(blocks, device.sms)
    work = overlap(math=times * mma, shared=times * shared, issue=times * issue,
                   waits=turns * ceil_div(busiest, config.blocks) * alone / device.clock_hz, l2=read / (COST.l2 * device.bandwidth),
                   memory=p.bytes / (COST.rate * device.bandwidth), latency=read * COST.latency / under_way)
    return ((Cost(launch=COST.start) + work).slowed(slower=COST.unmeasured) + sum_seconds(workspace(p, device, config), device))


def build(problem, device, config):
    """Partial sums, then their reduction."""
    p, view, (body, steps) = problem, view_of(problem), _tile(problem, config)
    slices, parts, down, across, tiles = _counts(p, body)
    ranges = _ranges(p, device, config)
    pointer = element(p.dtype).pointer
    strides = [Argument(PixelStrides, PixelStrides(v[0], *v[2:])) for v in (p.x_strides, p.y_strides)]
    divisors = (Argument(Divisor, divisor(v)) for v in (slices, parts[2], parts[1], parts[0], across, down, p.out[0]))
    arguments = (Argument(pointer, "x"), Argument(pointer, "y"), Argument("float32*", "workspace"), Argument("int32", tiles),
                 Argument("int32", ranges), *divisors, Argument("int32", p.c),
                 Argument("int32x3", p.filter), *(Argument(Extents32, Extents32(*v)) for v in (p.image, p.out)),
                 Argument(Window, Window(p.strides, p.pads_before, p.dilations)), Argument("int32x2", steps), *strides,
                 Argument("int32", pitch_of(view.columns, "float32")))
    partial = Launch(filter_kernel(body), (slices * math.prod(parts) * ranges, 1, 1), (body.threads, 1, 1), arguments,
                     shared=body.stages * body.bytes)
    return partial, sum_launch(view, output_of(view, False, 4), view.rows, view.columns, ranges * body.warps)


ALGORITHM = Algorithm(op="conv_bwd_filter", name="grouped", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs, notes=Note.TENSOR_CORE, arch="sm_80+")

"""The direct convolution of the textbook: an image tile with its halo in shared memory, several filters per thread in registers.

A block takes a tile of output pixels and eight filters::

    image (global)            shared memory                registers of a thread
    +------------+   a few    +---------------+  1 element per pixel
    | tile with  | channels   | tile + halo   | ------------+
    | its halo   | ---------> +---------------+             x---> acc[pixels][filters]
    +------------+            | filters       | ------------+
                              +---------------+  8 elements, a broadcast

The halo is what the filter reaches over beyond the tile. Each image element is read once per tap from shared memory, where `naive` reads it
once per tap and filter from the caches. A multiply-add costs an eighth of a read of the image; the filter's elements are the same for all
threads, one read for all. Arithmetic is exact as in `naive`, and arrays may have arbitrary strides.

- Backward data: the tile is one of dy, with zeros between its elements where the stride was, and the filter is rotated by 180 degrees.
- Backward filter: threads own channels and taps instead of pixels, and the eight filters' elements of dy are the broadcast. Blocks divide
  the pixels; a second launch adds their partial sums in a fixed order.

It wins with few channels, where a matrix product has nothing to reuse, and where the image is too small for the tiles of one.
"""
from dataclasses import dataclass

from ...device.index import ceil_div, divisor
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import Cost, issue_seconds, occupied, overlap
from ...engine.strides import ImageStrides
from ...host.launch import Argument, Launch
from ...host.memo import remembered
from .._parameters import FilterStrides, OutputStrides
from .kernel import Body, FilterDivisors, Origin, Sizes, SlideBlocks, SumBlocks, partial_sum_kernel, reduce_kernel, slide_kernel

COST = constants("conv/direct")

SHARED = 46 * 1024
REDUCE_THREADS = 128


@dataclass(frozen=True)
class Config:
    """Threads of a block (rows, columns), pixels and filters per thread, channels in shared memory at a time."""
    th: int
    tw: int
    pixels: int
    filters: int
    channels: int

    def __str__(self):
        return f"{self.th * self.pixels}x{self.tw} k{self.filters} c{self.channels}"


def _item(p):
    return 8 if p.dtype == "float64" else 4


def _body(p, config):
    forward, last = p.op == "conv_fwd", (p.y_strides if p.op == "conv_bwd_data" else p.x_strides)[1] == 1
    a, b = {"conv_fwd": (p.x, p.w), "conv_bwd_data": (p.y, p.w), "conv_bwd_filter": (p.x, p.y)}[p.op]
    return Body(a.dtype, b.dtype, config.th, config.tw, config.pixels, config.filters, config.channels, p.filter, p.strides, p.dilations,
                int(not forward and p.op == "conv_bwd_data"), int(p.flip), int(last), p.epilogue)


def _shared(p, config):
    """Bytes of shared memory of a block: the source's tile, and filters, or the tile of dy."""
    body = _body(p, config)
    second = config.th * config.tw if p.op == "conv_bwd_filter" else config.channels * p.filter[1] * p.filter[2]
    return (config.channels * body.plane + second * config.filters) * _item(p)


def supports(problem):
    """Whatever has a tile that fits into shared memory, and offsets of 32 bits within it."""
    p = problem
    if not (p.x.size and p.y.size and p.w.size):
        return "an operand is empty"
    if p.op == "conv_bwd_filter" and p.filter[1] * p.filter[2] > 256:
        return f"{p.filter[1]}x{p.filter[2]} taps; a block has 256 threads, one per tap"
    if not _fitting(p):
        least = Config(1, 32, 1, 4, 1)
        return f"the smallest tile and its halo take {_shared(p, least)} bytes of shared memory; there are {SHARED}"
    if max(p.x.size, p.y.size) >= 2 ** 31 or p.w.size >= 2 ** 31 or max(p.dilations) * max(p.filter) + max(p.pads_before) >= 2 ** 20:
        return f"{max(p.x.size, p.y.size, p.w.size)} elements, padding {max(p.pads_before)}; limits are 2**31 and 2**20"
    return None


@remembered
def _fitting(p):
    """Configurations whose tiles fit into shared memory."""
    sum_ = p.op == "conv_bwd_filter"
    depth = p.k_group if p.op == "conv_bwd_data" else p.c_group
    width = (p.image if p.op == "conv_bwd_data" else p.out)[2]
    found = []
    taps = p.filter[1] * p.filter[2]
    shapes = (8, 16, 2, 8), (4, 32, 2, 8), (8, 16, 1, 8), (4, 32, 1, 8), (1, 128, 1, 8), (16, 8, 1, 4), (1, 32, 1, 4)
    for th, tw, pixels, filters in shapes:
        if sum_ and (pixels > 1 or th * tw > 128):
            continue
        most = max(1, 256 // taps) if sum_ else 8
        for channels in (min(most, depth), min(4, most, depth), 1):
            config = Config(th, tw, pixels, filters, channels)
            if _shared(p, config) <= SHARED and (tw <= 2 * width or tw <= 32):
                found.append(config)
                break
    return found


def configs(problem, device):
    """Tiles of every shape that fits."""
    return _fitting(problem)


def _geometry(p, config):
    """(output tiles along w, h, d; blocks of filters; channels of source and result in a group; extents of source and result)."""
    backward = p.op == "conv_bwd_data"
    source, result = (p.out, p.image) if backward else (p.image, p.out)
    channels = (p.k_group, p.c_group) if backward else (p.c_group, p.k_group)
    tiles = ceil_div(result[2], config.tw), ceil_div(result[1], config.th * config.pixels), result[0]
    return tiles, ceil_div(channels[1], config.filters), channels, source, result


def _threads(p, config):
    """Of a block: one per pixel of a tile, or one per channel and tap."""
    if p.op == "conv_bwd_filter":
        return -(-config.channels * p.filter[1] * p.filter[2] // 32) * 32
    return config.th * config.tw


def _splits(p, device, config):
    (tw, th, o), parts, (cs, _), _, _ = _geometry(p, config)
    blocks = parts * p.groups * ceil_div(cs, config.channels) * p.filter[0]
    return max(1, min(p.n * tw * th * o, ceil_div(4 * device.sms, blocks)))


def workspace(problem, device, config):
    """The partial sums of the filter's gradient."""
    if problem.op != "conv_bwd_filter":
        return 0
    return _splits(problem, device, config) * problem.k * problem.c_group * problem.taps * _item(problem)


def estimate(problem, device, config):
    """Products, and the accesses of shared memory that they need; bringing tiles in; blocks that fill the machine."""
    p = problem
    (tw, th, o), parts, (cs, _), _, _ = _geometry(p, config)
    body, sum_ = _body(p, config), p.op == "conv_bwd_filter"
    pixels = p.n * o * tw * th * config.th * config.tw * config.pixels
    products = pixels * parts * config.filters * cs * p.taps * p.groups
    stuffed = p.strides[1] * p.strides[2] if p.op == "conv_bwd_data" else 1
    steps = products * (1 + COST.pixel / config.pixels + COST.filter / config.filters) * (2 if p.dtype == "float64" else 1)
    staged = p.n * o * tw * th * p.groups * parts * cs * p.filter[0] * body.plane * COST.stage
    tiles = p.n * o * tw * th * p.groups * parts
    blocks = tiles if not sum_ else COST.blocks * device.sms
    begun = 0 if sum_ else tiles * config.th * config.tw * COST.thread
    slower = COST.slower * (COST.forward if p.op == "conv_fwd" else 1) * (1 if stuffed == 1 else COST.strided)
    slower /= occupied(blocks, COST.enough, device)
    rounds = ceil_div(cs, config.channels) * p.filter[0] if not sum_ else 0  # a block waits for each of a thread's loads
    waits = rounds * ceil_div(config.channels * body.plane, config.th * config.tw) * COST.load
    math = slower * issue_seconds(steps + staged, 1, device) + issue_seconds(begun, 1, device)
    return Cost(launch=COST.start * (1 + sum_)) + overlap(math=math, waits=waits, memory=p.bytes / (COST.rate * device.bandwidth))


def build(problem, device, config):
    """One launch; for the filter's gradient two."""
    p, body = problem, _body(problem, config)
    (tw, th, o), parts, (cs, kr), source, result = _geometry(p, config)
    sizes = Sizes(cs, kr, *source, *result)
    epilogue = p.epilogue_arguments((0, p.output_strides[1]), (0, p.residual_strides[1]))

    def structure(value):
        return Argument(type(value), value)

    if p.op == "conv_bwd_filter":
        splits, slices = _splits(p, device, config), ceil_div(cs, config.channels) * p.filter[0]
        elements, partial = p.k * p.c_group * p.taps, Argument(f"{p.compute}*", "workspace")
        blocks = SumBlocks(*map(divisor, (tw, th, o, parts, slices, p.groups)))
        threads = _threads(p, config)
        first = Launch(partial_sum_kernel(body, threads), (parts * slices * p.groups * splits, 1, 1), (threads, 1, 1), (
            p.pointer("x"), p.pointer("y"), partial, structure(sizes), structure(blocks), Argument("int32", p.n * o * th * tw),
            Argument("int32", splits), structure(Origin(*(-v for v in p.pads_before))), structure(ImageStrides(*p.x_strides)),
            structure(OutputStrides(*p.y_strides)), Argument("int64", elements)))
        extents = FilterDivisors(*map(divisor, (*p.filter[::-1], p.c_group)))
        second = Launch(reduce_kernel(p.epilogue, REDUCE_THREADS), (ceil_div(elements, REDUCE_THREADS), 1, 1), (REDUCE_THREADS, 1, 1), (
            partial, p.pointer("w"), Argument("int32", elements), Argument("int32", splits), structure(extents),
            structure(FilterStrides(*p.w_strides)), *epilogue))
        return first, second
    backward = p.op == "conv_bwd_data"
    names, strides = (("y", "x"), (p.y_strides, p.x_strides)) if backward else (("x", "y"), (p.x_strides, p.y_strides))
    origin = Origin(*(-v for v in p.pads_before))
    if backward:
        reach = [before - (r - 1) * d for before, r, d in zip(p.pads_before, p.filter, p.dilations)]
        origin = Origin(p.pads_before[0], reach[1], reach[2])
    blocks = SlideBlocks(*map(divisor, (tw, th, o, parts, p.groups)))
    source_strides, result_strides, residual_strides = (ImageStrides(*v) for v in (*strides, p.residual_strides))
    structures = sizes, blocks, origin, source_strides, FilterStrides(*p.w_strides), result_strides, residual_strides
    arguments = (p.pointer(names[0]), p.pointer("w"), p.pointer(names[1]), *map(structure, structures), *epilogue)
    return (Launch(slide_kernel(body), (p.n * o * th * tw * p.groups * parts, 1, 1), (body.threads, 1, 1), arguments),)


ALGORITHMS = tuple(Algorithm(op=op, name="direct", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs)
                   for op in ("conv_fwd", "conv_bwd_data", "conv_bwd_filter"))

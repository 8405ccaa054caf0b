"""The direct convolution of the textbook: a tile of the image with its rim in shared memory, several filters a thread in registers.

The step from `naive` to products of matrices. A block takes a tile of pixels and eight filters; channel by channel it brings the tile, with
the rim that the filter reaches over, into shared memory, where each element is read once a tap instead of from the caches once a tap and
filter. A thread keeps its pixels' sums for all eight filters: a multiply-add then costs an eighth of a read of the image, and the filter's
elements are the same for all threads, one read for all. Everything is computed in the exact types, from arrays with any strides.

For the gradient of x the tile is one of dy, with zeros between its elements where the stride was, and the filter is turned round. For that
of the filter, threads own channels and taps instead of pixels, and the eight filters' elements of dy are what all of them read; blocks
divide the pixels, and a second launch adds their sums in a fixed order.

It wins with few channels, where products of matrices have nothing to reuse, and where the image is too small for their tiles.
"""
from dataclasses import dataclass

from ...device.index import ceil_div, divisor
from ...dispatch import Algorithm
from ...host.launch import Argument, Launch
from .kernel import Body, slide_kernel, sum_kernel, total_kernel

SHARED = 46 * 1024
TOTALLERS = 128


@dataclass(frozen=True)
class Config:
    """Threads side by side, rows of them that a thread has, filters of a thread, channels in shared memory at a time."""
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
    """Bytes of a block: the source's tile, and filters, or the tile of dy."""
    body = _body(p, config)
    second = config.th * config.tw if p.op == "conv_bwd_filter" else config.channels * p.filter[1] * p.filter[2]
    return (config.channels * body.plane + second * config.filters) * _item(p)


def supports(problem):
    """Whatever has a tile that fits into shared memory, and counters of 32 bits."""
    p = problem
    if not (p.x.size and p.y.size and p.w.size):
        return "an operand is empty"
    if p.op == "conv_bwd_filter" and p.filter[1] * p.filter[2] > 256:
        return f"{p.filter[1]}x{p.filter[2]} taps; a block has 256 threads, one a tap"
    if not _fitting(p):
        least = Config(1, 32, 1, 4, 1)
        return f"the least tile takes {_shared(p, least)} bytes of shared memory for its rim; there are {SHARED}"
    if max(p.x.size, p.y.size) >= 2 ** 31 or p.w.size >= 2 ** 31 or max(p.dilations) * max(p.filter) + max(p.pads_before) >= 2 ** 20:
        return f"{max(p.x.size, p.y.size, p.w.size)} elements, padding {max(p.pads_before)}; counters end at 2**31 and 2**20"
    return None


def _fitting(p):
    """Configurations whose tiles fit."""
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
    """(images' tiles along w, h, planes; blocks of filters; channels of source and result in a group; extents of source and result)."""
    backward = p.op == "conv_bwd_data"
    source, result = (p.out, p.image) if backward else (p.image, p.out)
    channels = (p.k_group, p.c_group) if backward else (p.c_group, p.k_group)
    tiles = ceil_div(result[2], config.tw), ceil_div(result[1], config.th * config.pixels), result[0]
    return tiles, ceil_div(channels[1], config.filters), channels, source, result


def _threads(p, config):
    """Of a block: side by side, or one a channel and tap."""
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
    steps = products * (1 + 0.6 / config.pixels + 2 / config.filters) * (2 if p.dtype == "float64" else 1)
    staged = p.n * o * tw * th * p.groups * parts * cs * p.filter[0] * body.plane * 30
    blocks = p.n * o * tw * th * p.groups * parts if not sum_ else 4 * device.sms
    busy = min(1.0, blocks / (2 * device.sms))
    time = 1.3 * (steps + staged) / (128 * device.sms * device.clock_hz * busy)
    return 5e-6 * (1 + sum_) + max(time * (1 if stuffed == 1 else 1.1), p.bytes / (0.6 * device.bandwidth))


def build(problem, device, config):
    """One launch; for the filter's gradient two."""
    p, body = problem, _body(problem, config)
    (tw, th, o), parts, (cs, kr), source, result = _geometry(p, config)
    sizes = Argument("int32x8", (cs, kr, *source, *result))

    def divisors(*values):
        flat = [v for value in values for v in divisor(value)]
        return Argument(f"uint32x{len(flat)}", tuple(flat))

    epilogue = p.epilogue_arguments((0, p.output_strides[1]), (0, p.residual_strides[1]))
    if p.op == "conv_bwd_filter":
        splits, slabs = _splits(p, device, config), ceil_div(cs, config.channels) * p.filter[0]
        elements, partial = p.k * p.c_group * p.taps, Argument(f"{p.compute}*", "workspace")
        window = tuple(-v for v in p.pads_before)
        threads = _threads(p, config)
        first = Launch(sum_kernel(body, threads), (parts * slabs * p.groups * splits, 1, 1), (threads, 1, 1), (
            p.pointer("x"), p.pointer("y"), partial, sizes, divisors(tw, th, o, parts, slabs, p.groups),
            Argument("int32", p.n * o * th * tw), Argument("int32", splits), Argument("int32x3", window), Argument("int64x5", p.x_strides),
            Argument("int64x5", p.y_strides), Argument("int64", elements)))
        second = Launch(total_kernel(p.epilogue, TOTALLERS), (ceil_div(elements, TOTALLERS), 1, 1), (TOTALLERS, 1, 1), (
            partial, p.pointer("w"), Argument("int32", elements), Argument("int32", splits),
            divisors(p.filter[2], p.filter[1], p.filter[0], p.c_group), Argument("int64x5", p.w_strides), *epilogue))
        return first, second
    backward = p.op == "conv_bwd_data"
    names, strides = (("y", "x"), (p.y_strides, p.x_strides)) if backward else (("x", "y"), (p.x_strides, p.y_strides))
    window = tuple(-v for v in p.pads_before)
    if backward:
        reach = [before - (r - 1) * d for before, r, d in zip(p.pads_before, p.filter, p.dilations)]
        window = p.pads_before[0], reach[1], reach[2]
    arguments = (p.pointer(names[0]), p.pointer("w"), p.pointer(names[1]), sizes, divisors(tw, th, o, parts, p.groups),
                 Argument("int32x3", window), Argument("int64x5", strides[0]), Argument("int64x5", p.w_strides),
                 Argument("int64x5", strides[1]), Argument("int64x5", p.residual_strides), *epilogue)
    return (Launch(slide_kernel(body), (p.n * o * th * tw * p.groups * parts, 1, 1), (body.threads, 1, 1), arguments),)


ALGORITHMS = tuple(Algorithm(op=op, name="direct", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs)
                   for op in ("conv_fwd", "conv_bwd_data", "conv_bwd_filter"))

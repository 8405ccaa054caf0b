"""Depthwise convolutions at memory bandwidth: a window of the image slides over a tile of the result in registers.

Each channel has its own filters, so there is no matrix product for tensor cores and only a few multiply-adds per element. What counts is to
read and write each element once, with few instructions. Two data paths:

- By rows (`rows`): channels last, two dimensions, sm_90+. TMA copies row after row to a ring in shared memory, with zeros in the padding.
  A thread owns four channels of a strip of pixels and slides down the image: it converts each element once and adds it to all output rows
  that read it. Many rows are in flight at no cost in registers.
- By tiles (`kernel`): everything else. Channels last, a thread owns up to 16 bytes of neighbouring channels and a tile of pixels; the
  filters of a block's channels are in shared memory. Channels first, a thread owns a tile of one channel, and a load is 16 bytes of a row.
  It walks down the rows of its window, issues the loads of the next row before the arithmetic of this one, and adds each row to all outputs
  that read it. Neighbouring threads have neighbouring tiles, whose overlap hits the L1. With large filters a tile has one row and the
  kernel loops over the filter's rows: unrolled, they would compile for minutes.

Backward data is the same computation with other taps: which output and tap read which source element is a table that the compiler unrolls,
for any stride and dilation. Backward filter (`filter_kernel`) walks over the same windows with an accumulator per tap; blocks write partial
sums to the workspace, and a second launch adds them in a fixed order. Of small images a thread has all of a channel (`filter_images`).

Rows that are not aligned have narrower loads; several filters per channel (a multiplier) are read one element at a time. It loses where
groups have more than one channel: `grouped` and the implicit GEMMs compute those.
"""
from dataclasses import dataclass

from ...device.groups import access_words
from ...device.index import Divisor, ceil_div, divisor
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import Cost, issue_seconds, overlap
from ...engine.strides import Extents32
from ...host.dtypes import ITEMSIZE
from ...host.launch import Argument, Launch
from .._parameters import PixelStrides
from .._taps import Axis, make_axis, roles
from .filter_images import ImagesConfig, image_configs, image_estimate, image_workspace, images_launch
from .filter_kernel import (ELEMENTS, REDUCE_WARPS, FilterTaps, GradientStrides, RowStrides, channels_sums_kernel, planes_sums_kernel,
                            reduce_kernel)
from .kernel import Body, ChannelStrides, Window, channels_kernel, planes_kernel
from .rows_plan import RowsConfig, rest, row_configs, row_estimate, row_launch, row_sums_launch, row_workspace

COST, FILTER = constants("conv/depthwise"), constants("conv/depthwise_filter")

FLOATS = ("float64", "float32", "float16", "bfloat16")
MOST_TAPS, MOST_SHARED = 32, 40 * 1024
UNROLLED = 300, 1000  # multiply-adds of a tile that are unrolled, of planes and of channels: the compiler's time grows with their square
THREADS = 128


@dataclass(frozen=True)
class Config:
    """A thread's tile.

    Attributes
    ----------
    channels : int
        1: a load is `vector` channels of a pixel; 0: `vector` pixels of a channel.
    vector : int
    th, tw : int
        Pixels of a tile. With one row, the kernel loops over the filter's rows instead of unrolling them.
    blocks : int
        Per multiprocessor.
    """
    channels: int
    vector: int
    th: int
    tw: int
    blocks: int

    def __str__(self):
        return f"{'nhwc' if self.channels else 'nchw'} v{self.vector} {self.th}x{self.tw} b{self.blocks}"


def supports(problem):
    """One channel per group, and extents below 2**31."""
    p = problem
    if p.c_group != 1:
        return f"groups of {p.c_group} channels; depthwise convolutions have one"
    if p.dtype not in FLOATS or p.op != "conv_bwd_filter" and p.w.dtype != p.dtype:  # a filter's gradient may be of another float
        return f"{p.dtype} x {p.w.dtype}; it supports {', '.join(FLOATS)}"
    if p.filter[2] > MOST_TAPS:
        return f"{p.filter[2]} taps along w; the unrolled loop has at most {MOST_TAPS}"
    if not (p.x.size and p.y.size and p.w.size):
        return "an operand is empty"
    _, _, t, r, s = p.w_strides
    if p.filter[0] > 1 and t != p.filter[1] * p.filter[2] * s or p.filter[1] > 1 and r != p.filter[2] * s:
        return f"the filter's taps are not evenly spaced: strides {t}, {r}, {s}"
    _, source_strides, source, _, result_strides, result = roles(p)
    planes = [(source_strides, source), (result_strides, result), (p.residual_strides, result)]
    reach = max(abs(sh) * (sizes[1] + 64) + abs(sw) * (sizes[2] + 64) for (_, _, _, sh, sw), sizes in planes)
    if max(reach, p.k * abs(p.w_strides[0]) + p.taps * abs(s), p.taps * p.k, abs(p.bias_stride) * max(p.c, p.k)) >= 2 ** 31:
        return f"a plane or the filter spans {max(reach, p.w.size)} elements; the limit is 2**31"
    if max(p.dilations) * max(p.filter) + max(p.pads_before) >= 2 ** 20:
        return f"dilation {max(p.dilations)}, padding {max(p.pads_before)}; the limit of the unrolled window is 2**20"
    if not (filter_configs if p.op == "conv_bwd_filter" else configs)(p, None):
        return (f"{p.filter[1]}x{p.filter[2]} taps, dilation {p.dilations[1]}x{p.dilations[2]}, stride {p.strides[1]}x{p.strides[2]} and "
                f"{p.output.size} results: no tile fits the registers and 2**31 tiles")
    return None


def _axes(p, config):
    """(rows, columns, dynamic, shift of rows, shift of columns) of the window."""
    backward = int(p.op == "conv_bwd_data")
    r, s = p.filter[1:]
    dynamic = int(config.th == 1 and r > 1)
    rows, shift_h = Axis(1, 1, 1, 0, 0, 1), 0
    if not dynamic:
        rows, shift_h = make_axis(r, p.strides[1], p.dilations[1], p.pads_before[1], backward, config.th)
    columns, shift_w = make_axis(s, p.strides[2], p.dilations[2], p.pads_before[2], backward, config.tw,
                                 1 if config.channels else config.vector)
    return rows, columns, dynamic, shift_h, shift_w


def _vectors(p):
    """Vector lengths of both kinds of loads: channels of a pixel, which are stored together too, and pixels of a channel."""
    source, strides, extents, _, result_strides, _ = roles(p)
    beside = strides[1] == result_strides[1] == 1 and (not p.residual or p.residual_strides[1] == 1)
    most = 16 // source.itemsize
    last, first = [], []
    v = most
    while v > 1:
        if p.k == p.c and beside and p.c % v == 0 and access_words(source, v, rest(strides, True)):
            last.append(v)
        if strides[-1] == 1 and extents[2] % v == 0 and access_words(source, v, rest(strides, False)):
            first.append(v)
        v //= 2
    return last, first


def _put(p, config):
    """Elements of the result that are stored together."""
    _, _, _, result, strides, extents = roles(p)
    if config.channels:
        return config.vector
    put = min(config.tw, 16 // result.itemsize)
    beside = strides[-1] == 1 and (not p.residual or p.residual_strides[-1] == 1)
    while put > 1 and (not beside or config.tw % put or extents[2] % put
                       or not access_words(result, put, rest(strides, False))):
        put -= 1
    return put


def configs(problem, device):
    """By rows where TMA applies, then tiles of one to four rows; wide loads first."""
    p = problem
    _, _, _, _, _, (depth, height, width) = roles(p)
    backward = p.op == "conv_bwd_data"
    step_h, step_w = (p.strides[1], p.strides[2]) if backward else (1, 1)
    last, first = _vectors(p)
    found = []

    def add(channels, vector, th, tw):
        config = Config(channels, vector, th, tw, 1)
        rows, columns, dynamic, _, _ = _axes(p, config)
        work = th * tw * columns.taps * rows.taps * (vector if channels else 1)
        size = 2 if p.dtype == "float64" else 1
        across = vector if channels else 1
        registers = size * across * (th * tw + columns.taps) + size * columns.groups * vector
        registers += 0 if channels else size * rows.taps * columns.taps
        registers += 2 * columns.groups * max(1, vector * p.x.itemsize // 4) + 24 * (p.dilations[2] > 1)
        tiles = p.n * p.c * p.k_group * depth * ceil_div(height, th) * ceil_div(width, tw)
        fits = work <= UNROLLED[channels] and registers <= 190 and columns.groups <= 62 and rows.groups <= 40 and tiles < 2 ** 31 - 2 ** 20
        if fits and (channels, vector, th, tw) not in {(c.channels, c.vector, c.th, c.tw) for c in found}:
            found.append(Config(channels, vector, th, tw, max(1, min(8, 512 // (registers + 56)))))

    for vector in last[:2]:
        for th, tw in ((4, 4), (2, 4), (2, 2), (1, 4), (1, 2)):
            if th == 1 or th < 2 * height:
                add(1, vector, ceil_div(th, step_h) * step_h if th > 1 else 1, ceil_div(tw, step_w) * step_w)
    for vector in first[:1] or ([] if found else [1]):
        wide = (4, vector), (2, 2 * vector), (2, vector), (1, 2 * vector), (1, vector)
        for th, tw in wide if vector > 1 else ((4, 4), (2, 2), (1, 2), (1, 1)):
            if th > 1 and (th >= 2 * height or (th, tw) == (2, vector) and found):
                continue
            if not backward and tw * p.strides[2] % vector == 0:
                add(0, vector, th, tw)
            elif backward:
                add(0, vector, ceil_div(th, step_h) * step_h if th > 1 else 1, ceil_div(tw, step_w * vector) * step_w * vector)
    if not found:
        add(0, 1, 1, step_w)
    return row_configs(p, device) + found


def workspace(problem, device, config):
    """None."""
    return 0


def _narrow(nbytes):
    """Share of the memory's rate that accesses of so many bytes have."""
    return 1.0 if nbytes == 16 else COST.bytes_8 if nbytes == 8 else COST.narrow


def _latency(config):
    """How much longer arithmetic takes with few warps, which hide less latency."""
    return (4 / min(4, config.blocks)) ** 0.5 if config.channels else 1.0


def estimate(problem, device, config):
    """Bytes at a rate that narrow accesses lower, or loads served by the L1, or arithmetic and conversions; launches."""
    if isinstance(config, RowsConfig):
        return row_estimate(problem, device, config)
    p = problem
    source, _, _, result, _, extents = roles(p)
    rows, columns, dynamic, _, _ = _axes(p, config)
    across = config.vector if config.channels else 1
    tiles = p.n * (p.c if p.op == "conv_bwd_data" else p.k) * extents[0] * ceil_div(extents[1], config.th) * ceil_div(extents[2], config.tw)
    threads = tiles / across
    size = 2 if p.dtype == "float64" else 1
    depth = p.filter[0] * (p.filter[1] if dynamic else 1)
    loads = threads * depth * rows.loads * columns.loads

    products = config.th * config.tw * rows.taps * columns.taps * across * size
    products /= rows.stride * columns.stride if columns.backward else 1
    a_step = products + rows.loads * columns.loads * (COST.load + config.vector) + rows.taps * columns.taps * across
    steps = threads * (COST.thread + depth * a_step)
    l1 = loads * max(4, config.vector * source.itemsize) / (COST.l1 * device.sms * device.clock_hz)
    halo = 1 + COST.halo * (p.filter[1] - 1) / max(1, config.th) if not dynamic else COST.dynamic_halo
    rate = COST.channels if config.channels else COST.planes * _narrow(config.vector * source.itemsize)
    memory = (p.bytes + (halo - 1) * source.nbytes) / (rate * device.bandwidth)
    return Cost(launch=COST.start) + overlap(memory=memory, l1=l1, issue=COST.slower * _latency(config) * issue_seconds(steps, 1, device))


def _int(value):
    return Argument("int32", value)


def build(problem, device, config):
    """One launch."""
    if isinstance(config, RowsConfig):
        return (row_launch(problem, device, config),)
    p = problem
    source, source_strides, source_sizes, result, result_strides, result_sizes = roles(p)
    backward = int(p.op == "conv_bwd_data")
    names = ("y", "x") if backward else ("x", "y")
    rows, columns, dynamic, shift_h, shift_w = _axes(p, config)
    put = _put(p, config)
    steps, result_steps = rest(source_strides, config.channels), rest(result_strides, config.channels)
    words = access_words(source, config.vector, steps) if config.vector > 1 else 0
    put_words = access_words(result, put, result_steps) if put > 1 else 0
    residual_words = 0
    if p.residual and put > 1:
        residual_words = access_words(p.residual, put, rest(p.residual_strides, config.channels))
    across = _across(p, config) if config.channels else 1
    body = Body(p.dtype, p.w.dtype, rows, columns, dynamic, p.strides[0], p.strides[1], backward, int(p.flip), config.vector, put, words,
                put_words, residual_words, source_strides[-1], result_strides[-1], p.residual_strides[-1], across, p.k_group, p.epilogue,
                THREADS, config.blocks)
    tiles_w, tiles_h = ceil_div(result_sizes[2], config.tw), ceil_div(result_sizes[1], config.th)
    window = Window(p.pads_before[0], p.dilations[0], p.pads_before[1], p.dilations[1], shift_h, shift_w)
    n, c, d, h, w = source_strides
    rn, rc, rd, rh, rw = result_strides
    en, ec, ed, eh, ew = p.residual_strides
    channels = p.c if backward else p.k
    tiles = p.n * result_sizes[0] * tiles_h * tiles_w
    taps = (Argument(Divisor, divisor(p.taps)),) if config.channels else ()
    common = (p.pointer(names[0]), p.pointer("w"), p.pointer(names[1]), p.pointer("residual"), p.pointer("bias"))
    sizes = (_int(p.filter[0]), _int(p.filter[1]), *taps, Argument(Window, window), Argument(Extents32, Extents32(*source_sizes)),
             Argument(Extents32, Extents32(*result_sizes)), Argument(PixelStrides, PixelStrides(n, d, h, w)),
             Argument(PixelStrides, PixelStrides(rn, rd, rh, rw)), Argument(PixelStrides, PixelStrides(en, ed, eh, ew)))
    tail = (Argument("int32", p.bias_stride), Argument(p.scalar_type, "alpha"), Argument(p.scalar_type, "beta"),
            Argument("int32", p.w_strides[0]), Argument("int32", p.w_strides[-1] if p.taps > 1 else 1))
    grids = tuple(Argument(Divisor, divisor(v)) for v in (tiles_w, tiles_h, result_sizes[0]))
    if config.channels:
        parts = ceil_div(p.c, across * config.vector)
        lanes = THREADS // across
        rounds = max(1, min(4, tiles * parts // (lanes * 6 * config.blocks * device.sms)))
        arguments = (*common, _int(tiles), _int(rounds), Argument(Divisor, divisor(parts)), *grids, _int(channels), *sizes, *tail)
        return (Launch(channels_kernel(body, p.taps), (ceil_div(tiles, lanes * rounds) * parts, 1, 1), (THREADS, 1, 1), arguments),)
    total = tiles * channels
    first = int(rw == 1 or abs(rw) <= abs(rc))
    arguments = (*common, _int(total), _int(first), *grids, Argument(Divisor, divisor(channels)), *sizes,
                 Argument(ChannelStrides, ChannelStrides(c, rc, ec)), *tail)
    return (Launch(planes_kernel(body), (ceil_div(total, THREADS), 1, 1), (THREADS, 1, 1), arguments),)


def _across(p, config):
    """Groups of channels in a block: all if they are few, else a divisor of their number; as the filters fit into shared memory."""
    groups = p.c // config.vector
    most = min(32, MOST_SHARED // (p.taps * config.vector * (8 if p.dtype == "float64" else 4)))
    if groups <= most:
        return groups
    return max((a for a in range(1, most + 1) if groups % a == 0 and (a >= 4 or most < 4)), default=max(1, min(8, most)))


# ---- backward filter

SUMS = 80  # registers of a thread's accumulators


def _filter_rows(p, config):
    """Rows of the filter whose accumulators fit into a thread's registers."""
    each = p.filter[2] * (config.vector if config.channels else 1)
    size = 2 if p.dtype == "float64" else 1
    return max(1, min(p.filter[1], SUMS // (each * size), UNROLLED[config.channels] // (each * config.th * config.tw)))


def _filter_axes(p, config):
    rows, shift_h = make_axis(_filter_rows(p, config), p.strides[1], p.dilations[1], p.pads_before[1], 0, config.th)
    columns, shift_w = make_axis(p.filter[2], p.strides[2], p.dilations[2], p.pads_before[2], 0, config.tw,
                                 1 if config.channels else config.vector)
    return rows, columns, shift_h, shift_w


def _filter_put(p, config):
    """Elements of dy that are loaded together."""
    if config.channels:
        return config.vector
    put = min(config.tw, 16 // p.y.itemsize)
    while put > 1 and (p.y_strides[-1] != 1 or config.tw % put or p.out[2] % put or not access_words(p.y, put, rest(p.y_strides, False))):
        put -= 1
    return put


def filter_configs(problem, device):
    """By rows where TMA applies, then tiles of one to four rows; wide loads first."""
    p, size = problem, 2 if problem.dtype == "float64" else 1
    last, first = _vectors(p)
    last = [v for v in last if p.y_strides[1] == 1 and access_words(p.y, v, rest(p.y_strides, True))]
    found = []

    def add(channels, vector, th, tw):
        config = Config(channels, vector, th, tw, 1)
        rows, columns, _, _ = _filter_axes(p, config)
        across = vector if channels else 1
        work = th * tw * columns.taps * rows.taps * across
        registers = size * (across * (th * tw + rows.taps * columns.taps) + columns.groups * vector)
        registers += 2 * columns.groups * max(1, vector * p.x.itemsize // 4) + 24 * (p.dilations[2] > 1)
        fits = work <= UNROLLED[channels] and registers <= 190 and rows.groups <= 40 and size * across * columns.taps <= SUMS
        if fits and columns.groups <= 62:
            found.append(Config(channels, vector, th, tw, max(1, min(8, 512 // (registers + 24)))))

    for vector in last[:2] + last[2:] * (not last[:2]):
        for th, tw in ((2, 4), (2, 2), (1, 4), (1, 2)):
            add(1, vector, th, tw)
    for vector in first[:1] or ([] if found else [1]):
        for th, tw in ((4, vector), (2, 2 * vector), (1, 2 * vector), (1, vector)) if vector > 1 else ((2, 4), (2, 2), (1, 2)):
            if tw * p.strides[2] % vector == 0 and (th == 1 or th < 2 * p.out[1]):
                add(0, vector, th, tw)
    if not found:
        add(0, 1, 1, 1)
    return image_configs(p) + row_configs(p, device) + found


def _division(p, device, config):
    """(groups of channels in a block, blocks for all channels, parts of the filter's taps, tiles, splits)."""
    across = _across(p, config) if config.channels else 1
    parts = ceil_div(p.c, across * config.vector) if config.channels else p.k
    slabs = p.filter[0] * ceil_div(p.filter[1], _filter_rows(p, config))
    tiles = p.n * p.out[0] * ceil_div(p.out[1], config.th) * ceil_div(p.out[2], config.tw)
    lanes = THREADS // across if config.channels else THREADS
    splits = min(ceil_div(tiles, 2 * lanes), ceil_div(config.blocks * device.sms, parts * slabs))
    return across, parts, slabs, tiles, max(1, splits)


def filter_workspace(problem, device, config):
    """The partial sums of all splits."""
    if isinstance(config, ImagesConfig):
        return image_workspace(problem, device, config)
    if isinstance(config, RowsConfig):
        return row_workspace(problem, device, config)
    return _division(problem, device, config)[-1] * problem.k * problem.taps * ITEMSIZE[problem.compute]


def filter_estimate(problem, device, config):
    """Bytes at a rate that narrow accesses lower, or the arithmetic, over the multiprocessors that have blocks; two launches."""
    if isinstance(config, ImagesConfig):
        return image_estimate(problem, device, config)
    if isinstance(config, RowsConfig):
        return row_estimate(problem, device, config)
    p = problem
    rows, columns, _, _ = _filter_axes(p, config)
    _, parts, slabs, tiles, splits = _division(p, device, config)
    across = config.vector if config.channels else 1
    threads = tiles * p.k / across * slabs
    size = 2 if p.dtype == "float64" else 1
    steps = threads * (COST.filter_thread + config.th * config.tw * rows.taps * columns.taps * across * size
                       + (rows.loads * columns.loads + config.th * config.tw / (1 if config.channels else max(1, config.vector)))
                       * (COST.load + config.vector))
    narrow = _narrow(config.vector * p.x.itemsize)
    if not config.channels and p.x_strides[-1] != 1:
        narrow /= 4
    busy = min(1.0, parts * slabs * splits / (device.sms * config.blocks))
    bytes_ = p.bytes * (1 + FILTER.slab * (slabs - 1))
    if config.channels:  # bounded by the loads in flight, and by the pixels that neighbours read again
        again = FILTER.own + FILTER.load * rows.loads * columns.loads / (config.th * config.tw)
        memory = bytes_ * again / (FILTER.channels * device.bandwidth)
    else:
        memory = bytes_ / (FILTER.planes * narrow * device.bandwidth)
    sums = FILTER.sum_launch + splits * p.k * p.taps * 8 / device.bandwidth + splits / REDUCE_WARPS * FILTER.turn
    work = overlap(memory=memory, issue=COST.slower * _latency(config) * issue_seconds(steps, 1, device))
    return Cost(launch=COST.start, reduction=sums) + work.slowed(idle=1 / busy)


def filter_build(problem, device, config):
    """Partial sums, and their reduction."""
    if isinstance(config, ImagesConfig):
        splits, first = images_launch(problem, device, config)
    elif isinstance(config, RowsConfig):
        splits, first = row_sums_launch(problem, device, config)
    else:
        splits, first = _sums_launch(problem, device, config)
    return first, _reduce_launch(problem, splits, isinstance(config, RowsConfig))


def _sums_launch(p, device, config):
    """(splits, the launch of the partial sums)."""
    rows, columns, shift_h, shift_w = _filter_axes(p, config)
    across, parts, slabs, tiles, splits = _division(p, device, config)
    put = _filter_put(p, config)
    words = access_words(p.x, config.vector, rest(p.x_strides, config.channels)) if config.vector > 1 else 0
    put_words = access_words(p.y, put, rest(p.y_strides, config.channels)) if put > 1 else 0
    body = Body(p.dtype, p.dtype, rows, columns, 0, p.strides[0], p.strides[1], 0, int(p.flip), config.vector, put, words, put_words, 0,
                p.x_strides[-1], p.y_strides[-1], 0, across, p.k_group, p.epilogue, THREADS, config.blocks)
    tiles_w, tiles_h = ceil_div(p.out[2], config.tw), ceil_div(p.out[1], config.th)
    n, c, d, h, _ = p.x_strides
    yn, yk, yo, yp, _ = p.y_strides
    partial = Argument(f"{p.compute}*", "workspace")
    head = (p.pointer("x"), p.pointer("y"), partial, _int(tiles), _int(splits), Argument(Divisor, divisor(parts)),
            Argument(Divisor, divisor(slabs)), Argument(Divisor, divisor(slabs // p.filter[0])),
            *(Argument(Divisor, divisor(v)) for v in (tiles_w, tiles_h, p.out[0])))
    window = Window(p.pads_before[0], p.dilations[0], p.pads_before[1], p.dilations[1], shift_h, shift_w)
    tail = (_int(p.k * p.taps), Argument(FilterTaps, FilterTaps(p.taps, p.filter[1] * p.filter[2])), Argument(Window, window),
            Argument(Extents32, Extents32(*p.image)), Argument(Extents32, Extents32(*p.out)), Argument(RowStrides, RowStrides(n, d, h)),
            Argument(RowStrides, RowStrides(yn, yo, yp)))
    if config.channels:
        first = Launch(channels_sums_kernel(body), (parts * slabs * splits, 1, 1), (THREADS, 1, 1), (*head, _int(p.c), *tail))
    else:
        first = Launch(planes_sums_kernel(body), (parts * slabs * splits, 1, 1), (THREADS, 1, 1),
                       (*head, *tail, Argument(GradientStrides, GradientStrides(c, yk))))
    return splits, first


def _reduce_launch(p, splits, dependent):
    """The launch that adds the partial sums; `dependent`: it may begin before the previous launch ends."""
    arguments = (Argument(f"{p.compute}*", "workspace"), p.pointer("w"), _int(p.k * p.taps), _int(splits),
                 Argument(Divisor, divisor(p.taps)), _int(p.w_strides[0]), _int(p.w_strides[-1] if p.taps > 1 else 1),
                 Argument(p.scalar_type, "alpha"), Argument(p.scalar_type, "beta"))
    warps = min(REDUCE_WARPS, splits)
    return Launch(reduce_kernel(p.epilogue, warps, dependent), (ceil_div(p.k * p.taps, ELEMENTS), 1, 1), (ELEMENTS * warps, 1, 1),
                  arguments, dependent=dependent)


ALGORITHMS = tuple(Algorithm(op=op, name="depthwise", supports=supports, workspace=workspace, estimate=estimate, build=build,
                             configs=configs) for op in ("conv_fwd", "conv_bwd_data"))
ALGORITHMS += (Algorithm(op="conv_bwd_filter", name="depthwise", supports=supports, workspace=filter_workspace, estimate=filter_estimate,
                         build=filter_build, configs=filter_configs),)

"""Each pixel gathers its copies from the columns, in chunks of channels where they are last.

A thread takes 16 bytes of the channels of a pixel, or with channels first a few neighbouring pixels of a channel, and walks over the
rows of the window. Of a row it loads at once what every tap holds for its pixels, 0 where no output reads the pixel by that tap, and adds
it up in the order of the taps: loads are in flight together though sums are in order. The output of a tap follows by one multiplication
(`device.index`), and by none at stride 1. Each element of the columns is read once, coalesced either way. No atomics, since every pixel
knows where its copies are.
"""
import functools
from dataclasses import dataclass
from typing import NamedTuple

from ...device import cuda, device_function, f32, f64, i32, i64, jit, u32
from ...device.convert import element
from ...device.index import Divisor, ceil_div, divide_remainder, divisor, unflatten4
from ...device.vec import advance
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap, tail
from ...engine.offsets import LIMIT
from ...engine.pack_words import make_pack
from ...engine.strides import image_strides
from ...engine.values import make_words
from ...engine.vectors import make_unit_moves, unit_of, word_of
from ...host.dtypes import ITEMSIZE
from ...host.launch import Argument, Launch
from ._axes import columns_strides, image_offset

COST = constants("transform/col2im_gather")

THREADS = 256
MOST_LOADS = 24  # in flight: the taps of a row of the window, for each of a thread's pixels
MOST_BYTES = {1: 4, 2: 8, 4: 16, 8: 16}  # of neighbouring pixels per thread: four, or two of 8 bytes


@dataclass(frozen=True)
class Config:
    """Element type, bytes per thread, taps of a row, whether its stride is not 1, channels last, 64-bit offsets."""
    dtype: str
    unit: int
    taps: int
    strided: bool
    channels_last: bool
    wide: bool

    @property
    def elements(self):
        return self.unit // ITEMSIZE[self.dtype]

    @property
    def batch(self):
        """Taps in flight: the row in as few equal parts as possible."""
        most = max(1, MOST_LOADS // (max(self.unit // 4, 1) if self.channels_last else self.elements))
        return ceil_div(self.taps, ceil_div(self.taps, most))


def unit_bytes(problem):
    """Bytes of a thread."""
    itemsize = problem.x.itemsize
    if problem.layout == "NCHW":
        if problem.x_strides[-1] != 1:
            return itemsize
        largest = min(problem.x.alignment, MOST_BYTES[itemsize])
        return unit_of(largest, problem.image[2], *problem.x_strides[:4], itemsize=itemsize)
    if problem.x_strides[1] != 1 or problem.columns_strides[1] != 1:
        return itemsize
    strides = (*problem.x_strides[2:], problem.x_strides[0], problem.columns_strides[0], *problem.columns_strides[2:])
    unit = unit_of(min(problem.x.alignment, problem.columns.alignment), problem.c, *strides, itemsize=itemsize)
    return unit if unit == 16 else itemsize


def supports(problem):
    """Sizes that fit 32-bit indices."""
    reach = max(n + b + d * t for n, b, d, t in zip(problem.image, problem.before, problem.dilations, problem.taps))
    if max(problem.x.size + 2 ** 20, reach) >= LIMIT:
        return f"x has {problem.x.size} elements, the window spans {reach} pixels; expected fewer than 2**31 - 2**20"
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """The bytes, or the instructions: of a row of the window, of a tap, of an element of it."""
    unit = unit_bytes(problem)
    units, per = problem.x.size * problem.x.itemsize // unit, unit // problem.x.itemsize
    each = (COST.tap + COST.element * per if problem.layout == "NHWC"
            else (COST.stride_1 if problem.steps[2] == 1 else COST.strided) * per)
    a_thread = COST.thread + problem.taps[0] * problem.taps[1] * (COST.row + problem.taps[2] * each)
    work = overlap(issue=issue_seconds(units, a_thread, device), memory=memory_seconds(problem.bytes, device))
    return LAUNCH + work.slowed(tail=tail(ceil_div(units, THREADS), COST.blocks, device))


class Axis(NamedTuple):
    """The window along one dimension: extents of window and output; its dilation; the padding before the image; and what `divide` divides
    by, the extent of the image in units of a thread and the stride. Multiplier and shift of a divisor lie at a multiple of 8 bytes."""
    taps: i32
    by_extent: Divisor
    outputs: i32
    by_stride: Divisor
    dilation: i32
    padding: i32


class Axes(NamedTuple):
    """Depth, height and width."""
    d: Axis
    h: Axis
    w: Axis


@functools.cache
def kernel(config):
    """`unit` bytes of x per thread."""
    itemsize = ITEMSIZE[config.dtype]
    LAST = config.channels_last
    loaded = config.unit if LAST else itemsize
    load, _, _, _, WORDS = make_unit_moves(loaded, itemsize)
    _, store, _, _, STORED = make_unit_moves(config.unit, itemsize)
    widen, narrow = make_words(config.dtype, loaded)
    Total = {"float32": f32, "float64": f64}[element(config.dtype).compute]
    V, PIXELS = (config.elements, 1) if LAST else (1, config.elements)  # elements per load, pixels per thread
    ELEMENTS, S, BATCH = config.elements, config.taps, config.batch
    BATCHES, LOADED, NARROWED = ceil_div(S, BATCH), BATCH * PIXELS * WORDS, PIXELS * WORDS
    pack, PACKED = make_pack(itemsize, PIXELS) if not LAST else (None, STORED)

    @device_function
    def output_of(pixel, tap, axis):
        """The output that reads a pixel by a tap, and whether there is one."""
        distance = pixel + axis.padding - tap * axis.dilation
        reached = distance >= 0
        output, rest = divide_remainder(distance if reached else 0, axis.by_stride)
        return output, reached and rest == 0 and output < axis.outputs

    @device_function
    def output_at_stride_1(pixel, tap, axis):
        output = pixel + axis.padding - tap * axis.dilation
        return output, output >= 0 and output < axis.outputs
    output_of_w = output_of if config.strided else output_at_stride_1

    @jit(launch_bounds=(THREADS, 3))
    def col2im_gather(columns, x, threads, channels, axes, x_stride, stride):
        index = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if index < threads:
            total = cuda.local.array(ELEMENTS, Total)
            values = cuda.local.array(V, Total)
            words = cuda.local.array(LOADED, u32)
            c = 0
            if LAST:
                index, c = divide_remainder(index, channels)
            n, d, h, w = unflatten4(index, axes.d.by_extent, axes.h.by_extent, axes.w.by_extent)
            w = w * PIXELS
            if not LAST:
                n, c = divide_remainder(n, channels)
            matrix = advance(columns, i64(n) * stride.n + c * i64(stride.c))
            for v in range(ELEMENTS):
                total[v] = Total(0)
            for t in range(axes.d.taps):
                o, reads_d = output_of(d, t, axes.d)
                for r in range(axes.h.taps):
                    p, reads_h = output_of(h, r, axes.h)
                    reads_row = reads_d and reads_h
                    tap, row = (t * axes.h.taps + r) * S, (o * axes.h.outputs + p) * axes.w.outputs
                    for b in range(BATCHES):
                        # load a batch of taps
                        for k in range(BATCH):
                            s = b * BATCH + k
                            for j in range(PIXELS):
                                q, reads_w = output_of_w(w + j, s, axes.w)
                                at = (tap + s) * stride.tap + (row + q) * stride.pixel
                                load(words, (k * PIXELS + j) * WORDS, advance(matrix, at), reads_row and reads_w and s < S)
                        # add them up
                        for k in range(BATCH):
                            for j in range(PIXELS):
                                widen(values, words, (k * PIXELS + j) * WORDS)
                                for v in range(V):
                                    total[j * V + v] += values[v]
            # write back
            result = cuda.local.array(PACKED, u32)
            if LAST:
                narrow(result, total)
            else:
                one = cuda.local.array(WORDS, u32)
                parts = cuda.local.array(NARROWED, u32)
                for j in range(PIXELS):
                    values[0] = total[j]
                    narrow(one, values)
                    for part in range(WORDS):
                        parts[j * WORDS + part] = one[part]
                pack(parts, result)
            store(advance(x, n * x_stride.n + c * x_stride.c + image_offset(d, h, w, x_stride)), result, 0)
    return col2im_gather


def build(problem, device, config, source=("columns", 0), target=("x", 0)):
    """One launch. `source` and `target`: the names of the two pointers, and byte offsets to them."""
    unit, itemsize, wide = unit_bytes(problem), problem.x.itemsize, problem.is_wide
    _, name, scale = word_of(itemsize)
    per, threads = unit // itemsize, problem.x.size * itemsize // unit
    last = problem.layout == "NHWC"
    config = Config(problem.x.dtype, unit, problem.taps[2], problem.steps[2] != 1, last, wide)
    extents = problem.image if last else (*problem.image[:2], problem.image[2] // per)
    axes = Axes(*(Axis(taps, divisor(n), outputs, divisor(step), dilation, padding)
                  for n, (_, outputs, taps, step, dilation, padding) in zip(extents, problem.axes)))
    x_stride, stride = image_strides(problem.x_strides, wide, scale), columns_strides(problem, scale, wide)
    if last:  # a chunk of channels is `per` elements
        x_stride, stride = (Argument(a.type, a.value._replace(c=a.value.c * per)) for a in (x_stride, stride))
    arguments = (Argument(name + "*", source[0], offset=source[1]), Argument(name + "*", target[0], offset=target[1]),
                 Argument("int32", threads), Argument(Divisor, divisor(problem.c // per if last else problem.c)),
                 Argument(Axes, axes), x_stride, stride)
    return (Launch(kernel(config), (ceil_div(threads, THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHM = Algorithm(op="col2im", name="gather", supports=supports, workspace=workspace, estimate=estimate, build=build)

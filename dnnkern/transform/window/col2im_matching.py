"""As `gather`, of strided windows: only the taps whose outputs there are.

With a stride of s, one tap in s of a row reads a given pixel: those that are the pixel's distance from the border modulo s, and their
outputs go down by one from tap to tap. So a thread divides once for each of its pixels and dimensions, and not for every tap::

    7 taps, stride 2, padding 3     pixel 4: 4 + 3 = 3 * 2 + 1     taps 1, 3, 5 of outputs 3, 2, 1

`gather` loads for all 49 taps of 7x7, most of them nothing; here they are 16 at most. Sums are in the order of the taps, the same as there.
"""
import functools
from dataclasses import dataclass
from typing import NamedTuple

from ...device import cuda, f32, f64, i32, jit, u32
from ...device.convert import element
from ...device.index import Divisor, ceil_div, divide_remainder, divisor, unflatten4
from ...device.vec import advance
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap, tail
from ...engine.pack_words import make_pack
from ...engine.strides import image_strides
from ...engine.values import make_words
from ...engine.vectors import make_unit_moves, word_of
from ...host.dtypes import ITEMSIZE
from ...host.launch import Argument, Launch
from . import col2im_gather
from ._axes import columns_strides, image_offset
from .col2im_gather import THREADS, unit_bytes

COST = constants("transform/col2im_gather")


@dataclass(frozen=True)
class Config(col2im_gather.Config):
    """Of `gather`, whose `taps` are those of a row that read a pixel; and all taps of a row."""
    row: int = 0


def supports(problem):
    """Strides, no dilation."""
    if all(step == 1 for step in problem.steps):
        return "the stride is 1: every tap reads every pixel"
    if any(d > 1 and t > 1 for d, t in zip(problem.dilations, problem.taps)):
        return f"dilation {problem.dilation}; expected 1"
    return col2im_gather.supports(problem)


def workspace(problem, device, config):
    """None."""
    return 0


def _matching(problem):
    """Taps along each dimension that read a pixel."""
    return tuple(ceil_div(taps, step) for taps, step in zip(problem.taps, problem.steps))


def estimate(problem, device, config):
    """The bytes, or the instructions: of a row of the window, of a tap, of an element of it; and a margin."""
    unit, (deep, high, wide) = unit_bytes(problem), _matching(problem)
    units, per = problem.x.size * problem.x.itemsize // unit, unit // problem.x.itemsize
    each = COST.tap + COST.element * per if problem.layout == "NHWC" else COST.matching * per
    work = overlap(issue=issue_seconds(units, COST.thread + deep * high * (COST.row + wide * each), device),
                   memory=memory_seconds(problem.bytes, device))
    return LAUNCH + work.slowed(tail=tail(ceil_div(units, THREADS), COST.blocks, device), slower=COST.slower)


class Axis(NamedTuple):
    """The window along one dimension: taps; what `divide` divides by, the extent of the image in units of a thread and the stride; outputs;
    the stride; the padding before the image. Multiplier and shift of a divisor lie at a multiple of 8 bytes."""
    taps: i32
    by_extent: Divisor
    outputs: i32
    by_stride: Divisor
    stride: i32
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
    ELEMENTS, S, BATCH = config.elements, config.row, config.batch
    BATCHES, LOADED, NARROWED = ceil_div(config.taps, BATCH), BATCH * PIXELS * WORDS, PIXELS * WORDS
    pack, PACKED = make_pack(itemsize, PIXELS) if not LAST else (None, STORED)

    @jit(launch_bounds=(THREADS, 3))
    def col2im_matching(columns, x, threads, channels, axes, x_stride, stride):
        index = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if index < threads:
            total = cuda.local.array(ELEMENTS, Total)
            values = cuda.local.array(V, Total)
            words = cuda.local.array(LOADED, u32)
            outputs, taps = cuda.local.array(PIXELS, i32), cuda.local.array(PIXELS, i32)
            c = 0
            if LAST:
                index, c = divide_remainder(index, channels)
            n, d, h, w = unflatten4(index, axes.d.by_extent, axes.h.by_extent, axes.w.by_extent)
            w = w * PIXELS
            if not LAST:
                n, c = divide_remainder(n, channels)
            matrix = advance(columns, n * stride.n + c * stride.c)
            for v in range(ELEMENTS):
                total[v] = 0.0
            # the first tap that reads a pixel, and its output
            o, t = divide_remainder(d + axes.d.padding, axes.d.by_stride)
            p0, r0 = divide_remainder(h + axes.h.padding, axes.h.by_stride)
            for j in range(PIXELS):
                outputs[j], taps[j] = divide_remainder(w + j + axes.w.padding, axes.w.by_stride)
            while t < axes.d.taps:  # NOTE: a range with a step divides
                p, r = p0, r0
                while r < axes.h.taps:
                    reads_row = o >= 0 and o < axes.d.outputs and p >= 0 and p < axes.h.outputs
                    tap, row = (t * axes.h.taps + r) * S, (o * axes.h.outputs + p) * axes.w.outputs
                    for b in range(BATCHES):
                        # load a batch of taps
                        for k in range(BATCH):
                            for j in range(PIXELS):
                                s, q = taps[j] + (b * BATCH + k) * axes.w.stride, outputs[j] - (b * BATCH + k)
                                at = (tap + s) * stride.tap + (row + q) * stride.pixel
                                load(words, (k * PIXELS + j) * WORDS, advance(matrix, at),
                                     reads_row and s < S and q >= 0 and q < axes.w.outputs)
                        # add them up
                        for k in range(BATCH):
                            for j in range(PIXELS):
                                widen(values, words, (k * PIXELS + j) * WORDS)
                                for v in range(V):
                                    total[j * V + v] += values[v]
                    p, r = p - 1, r + axes.h.stride
                o, t = o - 1, t + axes.d.stride
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
    return col2im_matching


def build(problem, device, config, source=("columns", 0), target=("x", 0)):
    """One launch. `source` and `target`: the names of the two pointers, and byte offsets to them."""
    unit, itemsize, last = unit_bytes(problem), problem.x.itemsize, problem.layout == "NHWC"
    _, name, scale = word_of(itemsize)
    per, threads = unit // itemsize, problem.x.size * itemsize // unit
    config = Config(problem.x.dtype, unit, _matching(problem)[2], True, last, problem.is_wide, problem.taps[2])
    extents = problem.image if last else (*problem.image[:2], problem.image[2] // per)
    axes = Axes(*(Axis(taps, divisor(n), outputs, divisor(step), step, padding)
                  for n, (_, outputs, taps, step, _, padding) in zip(extents, problem.axes)))
    x_stride, stride = image_strides(problem.x_strides, problem.is_wide, scale), columns_strides(problem, scale, True)
    if last:  # a chunk of channels is `per` elements
        x_stride, stride = (Argument(a.type, a.value._replace(c=a.value.c * per)) for a in (x_stride, stride))
    arguments = (Argument(name + "*", source[0], offset=source[1]), Argument(name + "*", target[0], offset=target[1]),
                 Argument("int32", threads), Argument(Divisor, divisor(problem.c // per if last else problem.c)),
                 Argument(Axes, axes), x_stride, stride)
    return (Launch(kernel(config), (ceil_div(threads, THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHM = Algorithm(op="col2im", name="matching", supports=supports, workspace=workspace, estimate=estimate, build=build)

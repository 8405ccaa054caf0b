"""A thread computes 16 bytes of the columns, whatever elements of x they are.

Packed columns are one array of elements that consists of runs, along which x has a constant stride: a row of outputs where channels come
first; the channels of one tap where they come last; or all taps of a row of the window, if those are contiguous in x. A thread takes V
elements: up to 16 bytes, and at most as many as a run has, so they belong to two runs at most. It finds by multiplications (`device.index`)
where in x its run begins and which part of the run is within the image, does the same for the next run if it reaches into it, and loads the
elements one by one, all of them before the first is used. Loads of neighbouring threads lie in the same lines, which the L1 has after the
first of them; stores are as in a copy.

It takes any layout, window, and strides of x: three channels, rows of 7 pixels. `tiled` is better where it can move 16 bytes at once or use
an element for several taps.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, device_function, i32, i64, jit, u32
from ...device.index import Divisor, ceil_div, divide, divide_remainder, divisor, unflatten3, unflatten4
from ...device.vec import advance
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap, tail
from ...engine.offsets import LIMIT
from ...engine.pack_words import make_pack
from ...engine.strides import image_strides
from ...engine.vectors import UNITS, make_unit_moves, word_of
from ...host.launch import Argument, Launch
from ._axes import axes_argument, image_offset, source

COST = constants("transform/im2col_gather")

THREADS = 256

ROW, CHANNELS_OF_TAP, TAPS_OF_ROW = 0, 1, 2
"""Runs: a row of outputs; the channels of one tap; the taps of a row of the window with their channels."""


@dataclass(frozen=True)
class Config:
    """Bytes of an element and of a store, the kind of runs, 64-bit offsets."""
    itemsize: int
    unit: int
    runs: int
    wide: bool

    @property
    def elements(self):
        return self.unit // self.itemsize


def _runs(problem):
    """(the kind of runs, their length in elements)."""
    if problem.layout == "NCHW":
        return ROW, problem.out[2]
    contiguous = problem.dilations[2] == 1 and problem.x_strides[-1] == problem.c * problem.x_strides[1]
    return (TAPS_OF_ROW, problem.taps[2] * problem.c) if contiguous else (CHANNELS_OF_TAP, problem.c)


def _unit(problem):
    itemsize, run = problem.x.itemsize, _runs(problem)[1]
    fits = (u for u in UNITS if u > itemsize and u >= 4 and u <= run * itemsize and problem.columns.alignment % u == 0
            and problem.columns.size * itemsize % u == 0)
    return next(fits, itemsize)


def supports(problem):
    """Packed columns."""
    if not problem.columns.is_packed:
        return f"columns has shape {problem.columns.shape} and strides {problem.columns.strides}; expected packed columns"
    if problem.columns.size >= LIMIT - 2 ** 20:
        return f"columns has {problem.columns.size} elements; expected fewer than 2**31 - 2**20"
    reach = max(n + d * (t - 1) + b for n, t, d, b in zip(problem.image, problem.taps, problem.dilations, problem.before))
    if reach >= 2 ** 30:
        return f"the window spans {reach} pixels; expected fewer than 2**30"
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """Instructions of elements and stores; a load of a warp takes as many cycles of the L1 as it meets lines of 128 bytes."""
    elements, unit, (_, run) = problem.columns.size, _unit(problem), _runs(problem)
    held = unit // problem.x.itemsize
    # a warp computes the next run for all of its threads if one of them reaches into it
    split = min(1.0, 32 * held / run) if run % held else 0.0
    issue = issue_seconds(elements, COST.element + (COST.store + COST.split * split) / held, device)
    lines = elements / 32 * max(1.0, unit / 4) / (device.sms * device.clock_hz)
    stores = memory_seconds(problem.bytes, device) * max(1.0, (4 / unit) ** 0.5)
    waves = tail(ceil_div(elements, COST.tile), COST.blocks, device)
    return LAUNCH + overlap(issue=issue, l1=lines, memory=stores).slowed(slower=COST.slower, tail=waves)


@functools.cache
def make_run(runs, wide):
    """``run(number, channels, axes, x_stride, by_stride) -> (offset, first, end)`` of a run in x.

    Its element j is at ``offset + j * run_stride`` if ``first <= j < end``, else in the padding.
    """
    Int = i64 if wide else i32

    @device_function
    def run(number, channels, axes, x_stride, by_stride):
        c, q, s, CHANNELS = 0, 0, 0, i32(channels.d)
        if runs == ROW:
            rest, o, p = unflatten3(number, axes.d.by_outputs, axes.h.by_outputs)
            rest, t, r, s = unflatten4(rest, axes.d.by_taps, axes.h.by_taps, axes.w.by_taps)
            n, c = divide_remainder(rest, channels)
        elif runs == CHANNELS_OF_TAP:
            rest, t, r, s = unflatten4(number, axes.d.by_taps, axes.h.by_taps, axes.w.by_taps)
            n, o, p, q = unflatten4(rest, axes.d.by_outputs, axes.h.by_outputs, axes.w.by_outputs)
        else:
            rest, t, r = unflatten3(number, axes.d.by_taps, axes.h.by_taps)
            n, o, p, q = unflatten4(rest, axes.d.by_outputs, axes.h.by_outputs, axes.w.by_outputs)
        d, h, w = source(o, t, axes.d), source(p, r, axes.h), source(q, s, axes.w)
        at = Int(n * x_stride.n + c * x_stride.c + image_offset(d, h, w, x_stride))
        rows_inside = d >= 0 and d < axes.d.extent and h >= 0 and h < axes.h.extent
        first, end = 0, 0
        if runs == ROW:
            if rows_inside and w < axes.w.extent:
                first, end = 0, divide(axes.w.extent - w - 1, by_stride) + 1
                if w < 0:
                    first = divide(axes.w.stride - 1 - w, by_stride)
        elif runs == CHANNELS_OF_TAP:
            if rows_inside and w >= 0 and w < axes.w.extent:
                end = CHANNELS
        elif rows_inside:
            first, end = -w * CHANNELS, (axes.w.extent - w) * CHANNELS
        return at, first, end
    return run


@functools.cache
def kernel(config):
    """`unit` bytes of the columns per thread."""
    _, _, SCALE = word_of(config.itemsize)
    load, _, _, _, WORDS = make_unit_moves(config.itemsize, config.itemsize)
    _, store, _, _, _ = make_unit_moves(config.unit, config.itemsize)
    V, LOADED = config.elements, config.elements * WORDS
    pack, PACKED = make_pack(config.itemsize, V)
    run = make_run(config.runs, config.wide)

    @jit(launch_bounds=(THREADS, 4))
    def im2col_gather(x, columns, threads, length, axes, x_stride, channels, run_stride, by_stride):
        index = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if index < threads:
            parts = cuda.local.array(LOADED, u32)
            words = cuda.local.array(PACKED, u32)
            LENGTH, element = i32(length.d), index * V
            number, j0 = divide_remainder(element, length)
            at, first, end = run(number, channels, axes, x_stride, by_stride)
            next_at, next_first, next_end = at, first, end
            if j0 + V > LENGTH:
                next_at, next_first, next_end = run(number + 1, channels, axes, x_stride, by_stride)
            # load the elements
            for v in range(V):
                j, start, low, high = j0 + v, at, first, end
                if j >= LENGTH:
                    j, start, low, high = j - LENGTH, next_at, next_first, next_end
                load(parts, v * WORDS, advance(x, start + j * run_stride), j >= low and j < high)
            # write back
            pack(parts, words)
            store(advance(columns, i64(element) * SCALE), words, 0)
    return im2col_gather


def build(problem, device, config, source=("x", 0), target=("columns", 0)):
    """One launch. `source` and `target`: the names of the two pointers, and byte offsets to them."""
    itemsize, unit, wide = problem.x.itemsize, _unit(problem), problem.is_wide
    runs, length = _runs(problem)
    _, name, scale = word_of(itemsize)
    threads = problem.columns.size * itemsize // unit
    run_stride = problem.steps[2] * problem.x_strides[-1] if runs == ROW else problem.x_strides[1]
    arguments = (Argument(name + "*", source[0], offset=source[1]), Argument(name + "*", target[0], offset=target[1]),
                 Argument("int32", threads), Argument(Divisor, divisor(length)), axes_argument(problem),
                 image_strides(problem.x_strides, wide, scale), Argument(Divisor, divisor(problem.c)),
                 Argument("int64" if wide else "int32", run_stride * scale),
                 Argument(Divisor, divisor(problem.steps[2])))
    config = Config(itemsize, unit, runs, wide)
    return (Launch(kernel(config), (ceil_div(threads, THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHM = Algorithm(op="im2col", name="gather", supports=supports, workspace=workspace, estimate=estimate, build=build)

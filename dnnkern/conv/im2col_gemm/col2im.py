"""The last pass of a convolution by columns: what several columns say of an element, added in a fixed order, and its epilogue.

In conv_bwd_data the products leave, for each tap of the window, what it adds to the pixel it saw. A thread owns an element of dx, or 16
bytes of neighbouring channels, walks through the taps, finds the place from which each saw its pixel, and adds what lies there: no atomics,
and the same order in every run. A row of taps is loaded before it is added, so several loads are in flight. With a window of one tap it is
the epilogue alone, for products whose result has to be scaled, shifted or moved in a way that they cannot do themselves.

Sums come in the accumulator's type, channels last or, in rows of pixels, first; the result may have any strides.
"""
import functools
import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from ...device import cuda, device_function, f32, f64, i32, i64, jit
from ...device.epilogue import EpilogueSpec, ResidualParams
from ...device.index import ceil_div, divide_remainder, divisor
from ...device.vec import advance, load1_nc_if_into, load2_nc_if_into, load4_nc_if_into
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
from ...engine.stores import make_group_store
from ...host.dtypes import ITEMSIZE
from ...host.launch import Argument, Launch

COST = constants("conv/col2im")

THREADS = 256
MOST_LOADS = 8  # under way at once
LIMIT = 2 ** 31 - 2 ** 20


class Window(NamedTuple):
    """Taps, strides, padding before and dilation of the window along d, h, w, and its places."""
    taps: tuple = (1, 1, 1)
    strides: tuple = (1, 1, 1)
    before: tuple = (0, 0, 0)
    dilations: tuple = (1, 1, 1)
    places: tuple | None = None


@dataclass(frozen=True)
class Sums:
    """Where the sums lie and what they are sums of.

    Attributes
    ----------
    strides : tuple
        In elements, along (outer, group, channel within it, tap, place).
    window : Window
        `places` are the result's own extents where the window has one tap.
    last : bool
        Neighbouring channels are neighbours in memory; else neighbouring places.
    """
    strides: tuple
    window: Window
    last: bool


@dataclass(frozen=True)
class Target:
    """The array that is computed: outer extent, groups, channels of each, spatial extents; strides along (outer, channel, d, h, w) of it
    and of the residual; bytes to which it is aligned."""
    outer: int
    groups: int
    channels: int
    extents: tuple
    strides: tuple
    residual_strides: tuple
    alignment: int

    @property
    def size(self):
        return self.outer * self.groups * self.channels * math.prod(self.extents)


@dataclass(frozen=True)
class Config:
    """What the kernel is compiled for.

    Attributes
    ----------
    epilogue : EpilogueSpec
    vector : int
        Neighbours a thread owns, channels or pixels.
    last : bool
        They are channels, and threads are neighbours along them.
    packed : bool
        Neighbours are one store.
    single : bool
        The window has one tap, stride 1 and no padding.
    taps : int
        Along a row of the window.
    strided : bool
        Whether the window's stride along a row is not 1.
    wide : bool
        64-bit offsets.
    """
    epilogue: EpilogueSpec
    vector: int
    last: bool
    packed: bool
    single: bool
    taps: int
    strided: bool
    wide: bool

    @property
    def batch(self):
        """Taps loaded at once: the row in as few equal parts as can be."""
        return ceil_div(self.taps, ceil_div(self.taps, max(1, MOST_LOADS // self.vector)))


def config_of(problem, sums, target, wide):
    """The configuration for a conv problem's epilogue on these sums."""
    spec = problem.epilogue
    whole = 16 // ITEMSIZE[spec.accumulator]
    inner, taps = (target.channels, 1) if sums.last else (target.extents[2], math.prod(sums.window.taps))
    outer, group, channel, tap, place = sums.strides
    step, others = (channel, (outer, group, tap, place)) if sums.last else (place, (outer, group, channel))
    vector = whole if taps == 1 and step == 1 and all(v % whole == 0 for v in (inner, *others)) else 1
    sides = target.strides[:1] + (target.strides[2:] if sums.last else target.strides[1:4])
    result = target.strides[1 if sums.last else 4]
    packed = vector > 1 and result == 1 and target.alignment >= min(16, vector * ITEMSIZE[spec.output]) and all(
        v % vector == 0 for n, v in zip(_sizes(target, sums.last), sides) if n > 1)
    bias = spec.bias and ("column" if sums.last else "row")
    w = sums.window
    return Config(replace(spec, bias=bias), vector, sums.last, packed, w == Window(), w.taps[2], w.strides[2] != 1, wide)


def _sizes(target, last):
    """Extents along the dimensions that are not the fastest."""
    return (target.outer, *target.extents) if last else (target.outer, target.groups * target.channels, *target.extents[:2])


def seconds(problem, sums, target, config, device):
    """The bytes, or the instructions: of a thread, of a row of taps, of a tap and element."""
    t, r, s = sums.window.taps
    places = sums.window.places or target.extents
    read = target.outer * target.groups * target.channels * math.prod(places) * t * r * s
    spec = problem.epilogue
    addends = sum(ITEMSIZE[d] for d in (spec.output, spec.c, spec.residual) if d)
    moved = memory_seconds(read * ITEMSIZE[spec.accumulator] + target.size * addends, device)
    a_thread = COST.thread + COST.element * config.vector
    a_thread += t * r * (COST.row + s * (COST.tap + COST.strided * config.strided + config.vector))
    return LAUNCH + overlap(memory=moved, issue=issue_seconds(target.size / config.vector, a_thread, device))


@functools.cache
def kernel(config):
    """`vector` elements of the result a thread."""
    V, LAST, S, STRIDED, BATCH, ONE = config.vector, config.last, config.taps, config.strided, config.batch, config.single
    BATCHES, LOADED = ceil_div(S, BATCH), BATCH * V
    Total = {"float32": f32, "float64": f64, "int32": i32}[config.epilogue.accumulator]
    Int = i64 if config.wide else i32
    load = {1: load1_nc_if_into, 2: load2_nc_if_into, 4: load4_nc_if_into}[V]
    store = make_group_store(config.epilogue, V, config.packed)

    @device_function
    def place(pixel, before, tap, dilation, count, step):
        """The place from which a tap sees a pixel, and whether there is one among `count`."""
        seen = pixel + before - tap * dilation
        inside = seen >= 0
        q, rest = divide_remainder(seen if inside else 0, step)
        return q, inside and rest == 0 and q < count

    @device_function
    def place_by_one(pixel, before, tap, dilation, count, step):
        """`place` for a stride of 1."""
        q = pixel + before - tap * dilation
        return q, q >= 0 and q < count
    place_w = place if STRIDED else place_by_one

    @jit(launch_bounds=(THREADS, 4))
    def conv_col2im(sums, y, count, inner, channels, group, extents, steps, taps, places, dilations, before, strides, y_strides,
                    residual_strides, alpha, beta, bias, bias_stride, prior, prior_row, prior_column, residual, residual_row,
                    residual_column):
        index = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if index < count:
            total = cuda.local.array(V, Total)
            values = cuda.local.array(LOADED, Total)
            index, fast = divide_remainder(index, inner)   # channels, or pixels of a row
            fast = fast * V
            if LAST:
                c = fast
                index, w = divide_remainder(index, (extents[6], extents[7], extents[8]))
            else:
                w = fast
            index, h = divide_remainder(index, (extents[3], extents[4], extents[5]))
            index, d = divide_remainder(index, (extents[0], extents[1], extents[2]))
            n = index
            if not LAST:
                n, c = divide_remainder(index, channels)
            g, c_group = divide_remainder(c, group)
            matrix = advance(sums, n * strides[0] + g * strides[1] + c_group * strides[2])
            if ONE:
                at = Int(Int((d * places[1] + h) * places[2] + w) * Int(strides[4]))
                load(total, 0, advance(matrix, at), 0, 1)
            else:
                for v in range(V):
                    total[v] = Total(0)
                for t in range(taps[0]):
                    o, o_seen = place(d, before[0], t, dilations[0], places[0], (steps[0], steps[1], steps[2]))
                    for r in range(taps[1]):
                        p, p_seen = place(h, before[1], r, dilations[1], places[1], (steps[3], steps[4], steps[5]))
                        row_seen = o_seen and p_seen
                        tap, row = (t * taps[1] + r) * S, (o * places[1] + p) * places[2]
                        for b in range(BATCHES):
                            for k in range(BATCH):
                                s = b * BATCH + k
                                q, seen = place_w(w, before[2], s, dilations[2], places[2], (steps[6], steps[7], steps[8]))
                                at = Int(Int(tap + s) * Int(strides[3]) + Int(row + q) * Int(strides[4]))
                                load(values, k * V, advance(matrix, at), 0, i32(row_seen and seen and s < S))
                            for k in range(BATCH):
                                for v in range(V):
                                    total[v] = Total(total[v] + values[k * V + v])
            pixel = n * y_strides[0] + d * y_strides[2] + h * y_strides[3]
            addend = n * residual_strides[0] + d * residual_strides[2] + h * residual_strides[3]
            if LAST:
                pixel, addend = pixel + w * y_strides[4], addend + w * residual_strides[4]
                row, column, edge = i32(0), c, i32(channels[0])
                at, step = pixel + c * y_strides[1], y_strides[1]
            else:
                row, column, edge = c, w, i32(extents[6])
                at, step = pixel + c * y_strides[1] + w * y_strides[4], y_strides[4]
            e = ResidualParams(alpha, beta, bias, bias_stride, advance(prior, pixel), prior_row, prior_column, advance(residual, addend),
                               residual_row, residual_column)
            store(total, 0, row, column, edge, y, at, step, e)
    return conv_col2im


def col2im_launch(problem, sums, target, config, source, first=0):
    """The launch that adds the sums at `source` (a pointer's name and bytes behind it) and stores the result, which begins with the
    output's entry number `first` along its outer dimension."""
    w, spec = sums.window, config.epilogue
    vector, extents = config.vector, target.extents
    all_channels = target.groups * target.channels
    inner = (all_channels if sums.last else extents[2]) // vector
    count = target.size // vector
    divisors = (tuple(v for n in sizes for v in divisor(n)) for sizes in (extents, w.strides))
    channel, across = target.strides[1], target.strides[4]
    addends = (problem.epilogue_arguments((0, channel), (0, target.residual_strides[1])) if sums.last else
               problem.epilogue_arguments((channel, across), (target.residual_strides[1], target.residual_strides[4])))
    offset = first * target.strides[0] * problem.output.itemsize
    shifts = {4: offset, 7: first * target.residual_strides[0] * problem.residual.itemsize if problem.residual else 0}
    addends = tuple(replace(a, offset=a.offset + shifts.get(k, 0)) for k, a in enumerate(addends))
    arguments = (Argument(spec.accumulator + "*", source.name, offset=source.offset),
                 replace(problem.pointer(problem.output_name), offset=offset), Argument("int32", count),
                 Argument("uint32x3", divisor(inner)), Argument("uint32x3", divisor(all_channels)),
                 Argument("uint32x3", divisor(target.channels)), *(Argument("uint32x9", d) for d in divisors),
                 *(Argument("int32x3", v) for v in (w.taps, w.places or extents, w.dilations, w.before)),
                 Argument("int64x5", sums.strides), Argument("int64x5", target.strides), Argument("int64x5", target.residual_strides),
                 *addends)
    return Launch(kernel(config), (ceil_div(count, THREADS), 1, 1), (THREADS, 1, 1), arguments)

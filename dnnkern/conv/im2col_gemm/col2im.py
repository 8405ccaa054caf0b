"""The last pass of a convolution by im2col and GEMM: col2im, which adds the columns of each output element, and the epilogue.

In backward data the products give, for each tap of the window, what it adds to the pixel that it read. One thread per element of dx, or
per 16 bytes of neighbouring channels, walks over the taps, finds the output position from which each reads its pixel, and adds that
column's element: a gather, without atomics and in a fixed order. A row of taps is loaded before it is added, so several loads are in
flight. With one tap it is only the epilogue, for products that cannot scale, add or store with the result's strides themselves.

Columns have the accumulator's type, channels last or first; the result may have arbitrary strides.
"""
import functools
import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from ...device import cuda, device_function, f32, f64, i32, i64, jit
from ...device.epilogue import EpilogueSpec, ResidualParams
from ...device.index import Divisor, ceil_div, divide_remainder, divisor
from ...device.vec import advance, load1_nc_if_into, load2_nc_if_into, load4_nc_if_into
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
from ...engine.stores import make_group_store
from ...engine.strides import Extents32, ImageStrides
from ...host.dtypes import ITEMSIZE
from ...host.launch import Argument, Launch

COST = constants("conv/col2im")

THREADS = 256
MOST_LOADS = 8  # in flight
LIMIT = 2 ** 31 - 2 ** 20


class Window(NamedTuple):
    """Taps, strides, leading padding and dilation of the window along d, h, w, and its output positions."""
    taps: tuple = (1, 1, 1)
    strides: tuple = (1, 1, 1)
    padding: tuple = (0, 0, 0)
    dilations: tuple = (1, 1, 1)
    positions: tuple | None = None


class ColumnStrides(NamedTuple):
    """Of the columns along (outer, group, channel within it, tap, position), in elements."""
    outer: i64
    group: i64
    channel: i64
    tap: i64
    position: i64


class SpatialDivisors(NamedTuple):
    """Along d, h, w."""
    d: Divisor
    h: Divisor
    w: Divisor


@dataclass(frozen=True)
class Sums:
    """The columns in memory, and their window.

    Attributes
    ----------
    strides : ColumnStrides
    window : Window
        `positions` are the result's own extents where the window has one tap.
    last : bool
        Neighbouring channels are contiguous in memory; else neighbouring positions.
    """
    strides: ColumnStrides
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
    strides: ImageStrides
    residual_strides: ImageStrides
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
        Neighbouring channels or pixels per thread.
    last : bool
        They are channels, and neighbouring threads have neighbouring channels.
    packed : bool
        They are one vector store.
    single : bool
        The window has one tap, stride 1 and no padding.
    taps : int
        Along a row of the window.
    strided : bool
        The window's stride along a row is not 1.
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
        """Taps loaded at once: the row in as few equal parts as possible."""
        return ceil_div(self.taps, ceil_div(self.taps, max(1, MOST_LOADS // self.vector)))


def config_of(problem, sums, target, wide):
    """The configuration for a conv problem's epilogue on these columns."""
    spec = problem.epilogue
    whole = 16 // ITEMSIZE[spec.accumulator]
    inner = target.channels if sums.last else target.extents[2]
    apart = not sums.last and sums.window != Window()  # pixels side by side read positions that are not
    outer, group, channel, tap, position = sums.strides
    step, others = (channel, (outer, group, tap, position)) if sums.last else (position, (outer, group, channel))
    vector = whole if not apart and step == 1 and all(v % whole == 0 for v in (inner, *others)) else 1
    y = target.strides
    sides = (y.n, y.d, y.h, y.w) if sums.last else (y.n, y.c, y.d, y.h)
    result = y.c if sums.last else y.w
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
    positions = sums.window.positions or target.extents
    read = target.outer * target.groups * target.channels * math.prod(positions) * t * r * s
    spec = problem.epilogue
    addends = sum(ITEMSIZE[d] for d in (spec.output, spec.c, spec.residual) if d)
    moved = memory_seconds(read * ITEMSIZE[spec.accumulator] + target.size * addends, device)
    a_thread = COST.thread + COST.element * config.vector
    a_thread += t * r * (COST.row + s * (COST.tap + COST.strided * config.strided + config.vector))
    return LAUNCH + overlap(memory=moved, issue=issue_seconds(target.size / config.vector, a_thread, device))


@functools.cache
def kernel(config):
    """`vector` elements of the result per thread."""
    V, LAST, S, STRIDED, BATCH, ONE = config.vector, config.last, config.taps, config.strided, config.batch, config.single
    BATCHES, LOADED = ceil_div(S, BATCH), BATCH * V
    Total = {"float32": f32, "float64": f64, "int32": i32}[config.epilogue.accumulator]
    Int = i64 if config.wide else i32
    load = {1: load1_nc_if_into, 2: load2_nc_if_into, 4: load4_nc_if_into}[V]
    store = make_group_store(config.epilogue, V, config.packed)

    @device_function
    def find_position(pixel, padding, tap, dilation, count, stride):
        """The output position from which a tap reads a pixel, and whether one of `count` does."""
        v = pixel + padding - tap * dilation
        inside = v >= 0
        q, rest = divide_remainder(v if inside else 0, stride)
        return q, inside and rest == 0 and q < count

    @device_function
    def find_position_unit(pixel, padding, tap, dilation, count, stride):
        """`find_position` for stride 1."""
        q = pixel + padding - tap * dilation
        return q, q >= 0 and q < count
    find_position_w = find_position if STRIDED else find_position_unit

    @jit(launch_bounds=(THREADS, 4))
    def conv_col2im(sums, y, count, inner, channels, group, extents, window_strides, taps, positions, dilations, padding, stride, y_stride,
                    residual_stride, alpha, beta, bias, bias_stride, prior, prior_row, prior_column, residual, residual_row,
                    residual_column):
        index = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if index < count:
            total = cuda.local.array(V, Total)
            values = cuda.local.array(LOADED, Total)
            index, fast = divide_remainder(index, inner)   # channels, or pixels of a row
            fast = fast * V
            if LAST:
                c = fast
                index, w = divide_remainder(index, extents.w)
            else:
                w = fast
            index, h = divide_remainder(index, extents.h)
            index, d = divide_remainder(index, extents.d)
            n = index
            if not LAST:
                n, c = divide_remainder(index, channels)
            g, c_group = divide_remainder(c, group)
            matrix = advance(sums, n * stride.outer + g * stride.group + c_group * stride.channel)

            # add the columns
            if ONE:
                at = Int((d * positions.h + h) * positions.w + w) * Int(stride.position)
                load(total, 0, advance(matrix, at), 0, 1)
            else:
                for v in range(V):
                    total[v] = Total(0)
                for t in range(taps.d):
                    o, o_exists = find_position(d, padding.d, t, dilations.d, positions.d, window_strides.d)
                    for r in range(taps.h):
                        p, p_exists = find_position(h, padding.h, r, dilations.h, positions.h, window_strides.h)
                        row_exists = o_exists and p_exists
                        tap, row = (t * taps.h + r) * S, (o * positions.h + p) * positions.w
                        for b in range(BATCHES):
                            for k in range(BATCH):
                                s = b * BATCH + k
                                q, exists = find_position_w(w, padding.w, s, dilations.w, positions.w, window_strides.w)
                                at = Int(tap + s) * Int(stride.tap) + Int(row + q) * Int(stride.position)
                                load(values, k * V, advance(matrix, at), 0, i32(row_exists and exists and s < S))
                            for k in range(BATCH):
                                for v in range(V):
                                    total[v] = Total(total[v] + values[k * V + v])

            # epilogue and store
            y_at = n * y_stride.n + d * y_stride.d + h * y_stride.h
            residual_at = n * residual_stride.n + d * residual_stride.d + h * residual_stride.h
            if LAST:
                y_at, residual_at = y_at + w * y_stride.w, residual_at + w * residual_stride.w
                row, column, edge = 0, c, i32(channels.d)
                at, step = y_at + c * y_stride.c, y_stride.c
            else:
                row, column, edge = c, w, i32(extents.w.d)
                at, step = y_at + c * y_stride.c + w * y_stride.w, y_stride.w
            e = ResidualParams(alpha, beta, bias, bias_stride, advance(prior, y_at), prior_row, prior_column,
                               advance(residual, residual_at), residual_row, residual_column)
            store(total, 0, row, column, edge, y, at, step, e)
    return conv_col2im


def col2im_launch(problem, sums, target, config, source, first=0):
    """The launch that adds the columns at `source` (a pointer's name and an offset in bytes) and stores the result, from entry `first` of
    the output along its outer dimension."""
    w, spec = sums.window, config.epilogue
    vector, extents = config.vector, target.extents
    all_channels = target.groups * target.channels
    inner = (all_channels if sums.last else extents[2]) // vector
    count = target.size // vector
    divisors = (SpatialDivisors(*map(divisor, sizes)) for sizes in (extents, w.strides))
    y, residual = target.strides, target.residual_strides
    addends = (problem.epilogue_arguments((0, y.c), (0, residual.c)) if sums.last else
               problem.epilogue_arguments((y.c, y.w), (residual.c, residual.w)))
    offset = first * y.n * problem.output.itemsize
    shifts = {4: offset, 7: first * residual.n * problem.residual.itemsize if problem.residual else 0}
    addends = tuple(replace(a, offset=a.offset + shifts.get(k, 0)) for k, a in enumerate(addends))
    arguments = (Argument(spec.accumulator + "*", source.name, offset=source.offset),
                 replace(problem.pointer(problem.output_name), offset=offset), Argument("int32", count),
                 *(Argument(Divisor, divisor(v)) for v in (inner, all_channels, target.channels)),
                 *(Argument(SpatialDivisors, d) for d in divisors),
                 *(Argument(Extents32, Extents32(*v)) for v in (w.taps, w.positions or extents, w.dilations, w.padding)),
                 Argument(ColumnStrides, sums.strides), Argument(ImageStrides, y), Argument(ImageStrides, residual), *addends)
    return Launch(kernel(config), (ceil_div(count, THREADS), 1, 1), (THREADS, 1, 1), arguments)

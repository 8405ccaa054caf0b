"""Which source positions a tile of outputs reads, known when a kernel is compiled.

Along one axis, output ``j`` of a tile and tap ``t`` read source position ``i`` of the tile's window where ``a*j + b*t + c == e*i``: forward
``i = j*stride + t*dilation - padding``; backward, where it is an integer, ``i = (j + padding - t*dilation) / stride``. The window begins at
``tile_origin * advance + shift`` in the source, and tiles begin at multiples of the stride, so the pairs are the same in every tile:
kernels unroll them and need no test of divisibility.
"""
import functools
from dataclasses import dataclass

from ..device import device_function
from ..device.unroll import unrolled

SMALL_GROUPS = (2, 4, 8, 16, 32)  # channels of groups that share one tensor-core instruction with other groups


@dataclass(frozen=True)
class Axis:
    """One axis of a window. `vector` source elements are one load, so windows begin and end at multiples of it."""
    taps: int
    stride: int
    dilation: int
    phase: int
    backward: int
    tile: int
    vector: int = 1

    @property
    def relation(self):
        """(a, b, c, e) of ``a*j + b*t + c == e*i``."""
        if self.backward:
            return 1, -self.dilation, self.phase, self.stride
        return self.stride, self.dilation, self.phase, 1

    @functools.cached_property
    def _positions(self):
        a, b, c, e = self.relation
        sums = (a * j + b * t + c for j in range(self.tile) for t in range(self.taps))
        return sorted({s // e for s in sums if s % e == 0})

    @property
    def first(self):
        """The window's first position, a multiple of `vector`."""
        return self._positions[0] // self.vector * self.vector

    @property
    def groups(self):
        """Vectors of source elements from the first position to the last."""
        return (self._positions[-1] - self.first) // self.vector + 1

    @property
    def used(self):
        """Bit mask of the vectors that some output needs."""
        return sum(1 << g for g in {(i - self.first) // self.vector for i in self._positions})

    @property
    def loads(self):
        return self.used.bit_count()

    @property
    def advance(self):
        """(numerator, denominator): source positions from one output to the next."""
        return (1, self.stride) if self.backward else (self.stride, 1)


def skipped_bytes(problem):
    """Of x, those that no window reads: pixels between the taps of a filter that is smaller than its stride."""
    if problem.op == "conv_bwd_data":
        return 0.0
    covered = 1.0
    for taps, stride in zip(problem.filter, problem.strides):
        covered *= min(1.0, taps / stride)
    return (1.0 - covered) * problem.x.nbytes


def make_axis(taps, stride, dilation, padding, backward, tile, vector=1):
    """(axis, shift): the shift of the windows is a kernel parameter, so that kernels depend on the padding as little as possible.

    Backward, `tile` has to be a multiple of the stride; windows with vector loads begin at multiples of `vector`.
    """
    if backward:
        shift = padding // stride // vector * vector
        return Axis(taps, stride, dilation, padding - shift * stride, 1, tile, vector), shift
    shift = -padding // vector * vector
    return Axis(taps, stride, dilation, -padding - shift, 0, tile, vector), shift


@functools.cache
def make_source(stride, backward):
    """Device function ``source(o, t, padding, dilation)``: the source position of output `o` and tap `t`, negative where none exists."""
    @device_function
    def source(o, t, padding, dilation):
        if backward:
            u = o + padding - t * dilation
            if stride == 1 or u < 0:
                return u
            v = u // stride
            return v if v * stride == u else -1
        return o * stride - padding + t * dilation
    return source


def roles(p):
    """(source, its strides, its extents, result, its strides, its extents) of a kernel that slides a window. Host function."""
    if p.op == "conv_bwd_data":
        return p.y, p.y_strides, p.out, p.x, p.x_strides, p.image
    return p.x, p.x_strides, p.image, p.y, p.y_strides, p.out


def small_groups_refusal(p):
    """Why a kernel that computes several small groups per tensor-core instruction does not support `p`, or None. Host function."""
    if p.dtype not in ("float16", "bfloat16") or p.op != "conv_bwd_filter" and p.w.dtype != p.dtype:
        return f"{p.dtype}; it supports float16 and bfloat16"
    if p.c_group != p.k_group or p.c_group not in SMALL_GROUPS:
        return f"groups of {p.c_group} channels and {p.k_group} filters; it takes equal ones of {', '.join(map(str, SMALL_GROUPS))}"
    if p.c % 8:
        return f"{p.c} channels, no multiple of 8"
    if not (p.x.size and p.y.size and p.w.size):
        return "an operand is empty"
    return None


@functools.cache
def make_multiply_row(columns, across, gradient):
    """Device function ``multiply_row(0, (acc, values, taps, j, first))``: add a source row times taps to row j of the tile's outputs.

    `values` are the row's pixels, `across` channels each; `taps[first * across:]` the filter's taps along it. With `gradient` the two
    change roles: `taps` are pixels of dy, and `acc` accumulates the filter's taps.
    """
    S, TW, (AW, BW, CW, EW), W0 = columns.taps, columns.tile, columns.relation, columns.first

    @device_function
    def pair(k, s):
        acc, values, taps, j, first = s
        jw, t = k // S, k % S
        total = AW * jw + BW * t + CW
        if total % EW == 0:
            at = total // EW - W0
            for v in range(across):
                if gradient:
                    acc[(first + t) * across + v] += values[at * across + v] * taps[(j * TW + jw) * across + v]
                else:
                    acc[(j * TW + jw) * across + v] += values[at * across + v] * taps[(first + t) * across + v]
    return unrolled(TW * S, pair)

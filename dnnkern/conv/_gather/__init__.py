"""A convolution as a matrix product whose operands are gathered: what a row, a column and an element of k are, in every direction.

One operand, the `source`, is read at ``pixel + tap``; the other, the `plain` one, is a matrix as it is stored. In each group

===============  =======================  ===============================  ==========================  ==========================
                 pixels                   taps and channels of the source  plain operand               k of the product
===============  =======================  ===============================  ==========================  ==========================
conv_fwd         of y                     x, all channels of the group     w, rows are filters         taps and channels
conv_bwd_data    of x in a residue class  dy, all filters of the group     w, rows are channels        taps and channels
conv_bwd_filter  of y                     x, all channels of the group     dy, rows are filters        pixels
===============  =======================  ===============================  ==========================  ==========================

A pixel is an offset and a mask with one bit for each tap along d, h and w that reads inside the image. A tap with its channel is an offset
and its three bits. The element exists if the mask has all three bits; otherwise it is padding and a zero. So the main loops neither divide
nor compare coordinates. What belongs to k is computed once for all threads of a block and kept in shared memory (`table`).

Backward data with a stride: pixels of x whose coordinates have the same remainders modulo the strides are read by the same taps. Each such
residue class is a convolution of dy without stride, with a subset of the taps. All classes are computed as if as large as the first; pixels
past the edge of x are not stored.
"""
import functools
import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

from ...device import device_function, i32, i64, u32
from ...device.index import Divisor, ceil_div, divide_remainder, divisor, quotient
from ...host.launch import Argument
from ...host.memo import remembered

EXISTS, NEVER = 0x80000000, 0x40000000
MASK_BITS = 30


class Three(NamedTuple):
    """A number for each spatial dimension."""
    d: i32
    h: i32
    w: i32


class Shape(NamedTuple):
    """Pixels of a class, all images together; channels of the source; rows of the plain operand."""
    pixels: i32
    channels: i32
    plain_rows: i32


class Window(NamedTuple):
    """A pixel and a tap read the source at ``pixel * mult + base + tap * step``, if that is within its extents; `taps` of the largest
    class."""
    mult: Three
    base: Three
    step: Three
    extent: Three
    taps: Three


class SourceStrides(NamedTuple):
    """Of the source, in elements."""
    n: i32
    channel: i32
    d: i32
    h: i32
    w: i32
    group: i32


class PlainStrides(NamedTuple):
    """Of w by (row, channel, tap), of dy by (row, n, pixel), in elements; `base`: offset of the first element of a group."""
    row: i32
    channel: i32
    d: i32
    h: i32
    w: i32
    group: i32
    base: i32


class PixelDivisors(NamedTuple):
    """Extents of a class of pixels."""
    w: Divisor
    h: Divisor
    d: Divisor


class TapDivisors(NamedTuple):
    """Channels, and taps along each dimension: of the largest residue class, then of the smallest."""
    channels: Divisor
    w: Divisor
    h: Divisor
    d: Divisor
    least_w: Divisor
    least_h: Divisor
    least_d: Divisor


class ResidueAxis(NamedTuple):
    """One dimension of the residue classes: stride, leading padding and dilation of the convolution, gcd of stride and dilation, taps from
    one tap of a class to the next, the inverse of dilation / gcd modulo that, taps of the filter, and stride of a tap in w."""
    stride: i32
    padding: i32
    dilation: i32
    gcd: i32
    step: i32
    inverse: i32
    taps: i32
    tap_stride: i32


class Residues(NamedTuple):
    """The residue classes, and the divisors that turn a class's number into its residues."""
    d: ResidueAxis
    h: ResidueAxis
    w: ResidueAxis
    classes: Divisor
    stride_w: Divisor
    stride_h: Divisor


class Gather(NamedTuple):
    """What the kernels of a gathered product know of it; made by `View.arguments`."""
    shape: Shape
    window: Window
    source: SourceStrides
    plain: PlainStrides
    pixels: PixelDivisors
    taps: TapDivisors
    residues: Residues


class Product(NamedTuple):
    """One product, of a group and a residue class: its k, bases of the window, offset of the plain operand, residues of its pixels, and the
    numbers of taps; made in kernels by `setup`."""
    group: i32
    k: i32
    base: Three
    plain_offset: i32
    residue: Three
    taps_w: Divisor
    taps_h: Divisor
    taps_d: Divisor


class OutputLayout(NamedTuple):
    """Strides of the output by (n, channel, d, h, w), for dw by (k, c, t, r, s), and of a group; output positions from one pixel of a class
    to the next; extents; offset of the first element."""
    n: i32
    channel: i32
    d: i32
    h: i32
    w: i32
    group: i32
    mult: Three
    extent: Three
    base: i32


class ResidualStrides(NamedTuple):
    """Of the residual, as the output's."""
    n: i32
    channel: i32
    d: i32
    h: i32
    w: i32
    group: i32


@dataclass(frozen=True)
class Axis:
    """One spatial dimension: coordinates of the source are ``pixel * mult + base + tap * step``; `taps` of the largest residue class."""
    pixels: int
    mult: int
    base: int
    step: int
    image: int
    taps: int
    tap_stride: int


@dataclass(frozen=True)
class View:
    """A problem as a product of gathered matrices, for all groups and residue classes; strides count elements.

    Rows of the product are pixels, or filters in backward filter. `source` and `plain` name the operands. Strides of the source are (outer,
    channel, d, h, w), where the channel is the one summed over, or that of a column of dw; `plain_*` are those of w by (row, channel, tap)
    or of dy by (row, n, pixel).
    """
    problem: object
    source: str
    plain: str
    axes: tuple
    channels: int
    rows: int
    columns: int
    k: int
    source_strides: tuple
    source_group: int
    plain_row: int
    plain_channel: int
    plain_taps: tuple
    plain_group: int
    plain_base: int
    output_channel: int
    channel_inner: bool

    @property
    def has_classes(self):
        return self.problem.op == "conv_bwd_data" and self.problem.strides != (1, 1, 1)

    @property
    def classes(self):
        return math.prod(self.problem.strides) if self.has_classes else 1

    @property
    def pixels(self):
        """Of a residue class, all images together."""
        return self.problem.n * math.prod(a.pixels for a in self.axes)

    @property
    def products(self):
        """Number of products: groups times residue classes."""
        return self.problem.groups * self.classes

    def arguments(self):
        """The kernel parameter of class `Gather`."""
        p, axes = self.problem, self.axes
        window = Window(*(Three(*(getattr(a, name) for a in axes)) for name in ("mult", "base", "step", "image", "taps")))
        least = [p.filter[d] // self._class_step(d) if self.has_classes else a.taps for d, a in enumerate(axes)]
        taps = [a.taps for a in axes[::-1]] + least[::-1]
        shape = Shape(self.pixels, self.channels, self.rows if p.op == "conv_bwd_filter" else self.columns)
        gather = Gather(shape, window, SourceStrides(*self.source_strides, self.source_group),
                        PlainStrides(self.plain_row, self.plain_channel, *self.plain_taps, self.plain_group, self.plain_base),
                        PixelDivisors(*(divisor(max(a.pixels, 1)) for a in axes[::-1])),
                        TapDivisors(*(divisor(max(n, 1)) for n in (self.channels, *taps))),
                        Residues(*map(self._residues, range(3)), divisor(self.classes),
                                 *map(divisor, p.strides[:0:-1] if self.has_classes else (1, 1))))
        return (Argument(Gather, gather),)

    def output_arguments(self):
        """The kernel parameters of classes `OutputLayout` and `ResidualStrides`."""
        p = self.problem
        mult = p.strides if self.has_classes else (1, 1, 1)
        extents = p.image if p.op == "conv_bwd_data" else p.out
        per_group = p.k_group if p.op != "conv_bwd_data" else p.c_group
        by = 0 if p.op == "conv_bwd_filter" else 1
        sign = -1 if p.flip and p.op == "conv_bwd_filter" else 1
        outer, channel, *spatial = p.output_strides
        base = sum((size - 1) * s for size, s in zip(p.filter, spatial)) if sign < 0 else 0
        output = OutputLayout(outer, channel, *(sign * s for s in spatial), per_group * p.output_strides[by], Three(*mult),
                              Three(*extents), base)
        residual = p.residual_strides
        return Argument(OutputLayout, output), Argument(ResidualStrides, ResidualStrides(*residual, per_group * residual[1]))

    def _class_step(self, d):
        return self.problem.strides[d] // math.gcd(self.problem.strides[d], self.problem.dilations[d])

    def _residues(self, d):
        """The `ResidueAxis` of a dimension."""
        p = self.problem
        if not self.has_classes:
            return ResidueAxis(1, 0, 1, 1, 1, 0, 1, 0)
        stride, dilation, step = p.strides[d], p.dilations[d], self._class_step(d)
        common = math.gcd(stride, dilation)
        inverse = pow(dilation // common, -1, step) if step > 1 else 0
        return ResidueAxis(stride, p.pads_before[d], dilation, common, step, inverse, p.filter[d], self.plain_taps[d] // step)


@remembered
def view_of(problem):
    """The `View` of a problem."""
    p = problem
    sign = -1 if p.flip else 1
    taps = tuple(sign * s for s in p.w_strides[2:])
    first = sum((size - 1) * s for size, s in zip(p.filter, p.w_strides[2:]) if size) if p.flip else 0
    w_k, w_c = p.w_strides[:2]
    group_w = p.k_group * w_k
    if p.op == "conv_bwd_data":
        axes = []
        for d in range(3):
            stride, dilation = p.strides[d], p.dilations[d]
            common = math.gcd(stride, dilation)
            axes.append(Axis(ceil_div(p.image[d], stride), 1, p.pads_before[d] if stride == 1 else 0, -(dilation // common), p.out[d],
                             ceil_div(p.filter[d], stride // common), taps[d] * (stride // common)))
        strided = p.strides != (1, 1, 1)
        if strided:  # the base of a class is computed in the kernel
            axes = [Axis(a.pixels, 1, 0, a.step, a.image, a.taps, a.tap_stride) for a in axes]
        pixels = p.n * math.prod(a.pixels for a in axes)
        return View(p, "y", "w", tuple(axes), p.k_group, pixels, p.c_group, p.k_group * math.prod(a.taps for a in axes), p.y_strides,
                    p.k_group * p.y_strides[1], w_c, w_k, tuple(a.tap_stride for a in axes), group_w, first, p.x_strides[1],
                    p.y_strides[1] == 1)
    axes = tuple(Axis(p.out[d], p.strides[d], -p.pads_before[d], p.dilations[d], p.image[d], p.filter[d], taps[d]) for d in range(3))
    inner = p.x_strides[1] == 1
    source = dict(source="x", axes=axes, channels=p.c_group, source_strides=p.x_strides, source_group=p.c_group * p.x_strides[1])
    if p.op == "conv_fwd":
        return View(p, rows=p.pixels, columns=p.k_group, k=p.c_group * p.taps, plain="w", plain_row=w_k, plain_channel=w_c,
                    plain_taps=taps, plain_group=group_w, plain_base=first, output_channel=p.y_strides[1], channel_inner=inner, **source)
    y_n, y_k, *y = p.y_strides
    return View(p, rows=p.k_group, columns=p.c_group * p.taps, k=p.pixels, plain="y", plain_row=y_k, plain_channel=y_n,
                plain_taps=tuple(y), plain_group=p.k_group * y_k, plain_base=0, output_channel=w_k, channel_inner=_columns_inner(p),
                **source)


def _columns_inner(p):
    """Whether neighbouring columns of dw are channels: as in dw's layout, else as in x's."""
    if p.c_group > 1 and p.w_strides[1] == 1:
        return True
    if p.taps > 1 and any(n > 1 and s == 1 for n, s in zip(p.filter, p.w_strides[2:])):
        return False
    return p.x_strides[1] == 1


def refusal(problem):
    """Why a problem cannot be gathered, or None."""
    if problem.is_wide:
        return "an operand has elements beyond offset 2**31; offsets of the gathered matrices have 32 bits"
    if problem.program is not None and problem.op == "conv_bwd_filter" and problem.flip:
        return "runs no program after the gradient of a rotated filter"
    view = view_of(problem)
    bits = sum(a.taps for a in view.axes)
    if bits > MASK_BITS:
        return f"the filter {'x'.join(map(str, problem.filter))} has {bits} taps along its dimensions, masks have {MASK_BITS} bits"
    if max(view.rows, view.columns, view.k) >= 2 ** 31 - 2 ** 16:
        return f"a product of {view.rows}x{view.columns}x{view.k}; each must be below 2**31 - 2**16"
    if max(problem.strides) >= 2 ** 15:
        return f"strides are {problem.strides}; the residues of x count to 2**15"
    tiles = ceil_div(view.rows, 16) * ceil_div(view.columns, 16) * view.products
    if tiles >= 2 ** 31:
        return f"{tiles} tiles of 16x16; a grid counts to 2**31"
    return None


@functools.cache
def make_gather(op, channel_inner, has_classes):
    """Device functions by name; `g` is a `Gather`, `product` a `Product`.

    setup(z, g)             the `Product` of number z
    pixel(i, g)             (n, d, h, w) of pixel i
    row(i, g, product)      a row (of dw: a column) of the source: (offset, mask or bits)
    entry(i, g, product)    element i of k: (offset, bits or mask, offset in the plain operand); bit 31 is set
    column(i, g, product)   column i of dw: (tap d, h, w, channel)
    """
    by_pixel = op == "conv_bwd_filter"

    @device_function
    def one_residue(c, axis):
        """(taps, base, first tap) of residue `c`."""
        v = c + axis.padding
        q = quotient(v, axis.gcd)
        first = q - quotient(q, axis.step) * axis.step
        first = first * axis.inverse
        first = first - quotient(first, axis.step) * axis.step
        has_taps = q * axis.gcd == v and first < axis.taps
        count = quotient(axis.taps - first + axis.step - 1, axis.step) if has_taps else 0
        ahead = v - first * axis.dilation
        base = quotient(ahead, axis.stride) if ahead >= 0 else -quotient(-ahead, axis.stride)
        return count, base, first

    @device_function
    def pick(count, most, least):
        """The divisor by `count` taps, which is that of the largest or of the smallest class."""
        if i32(most.d) == count:
            return most
        return least

    @device_function
    def setup(z, g):
        taps = g.taps
        if has_classes:
            residues = g.residues
            group, c = divide_remainder(z, residues.classes)
            c, c2 = divide_remainder(c, residues.stride_w)
            c0, c1 = divide_remainder(c, residues.stride_h)
            n0, b0, f0 = one_residue(c0, residues.d)
            n1, b1, f1 = one_residue(c1, residues.h)
            n2, b2, f2 = one_residue(c2, residues.w)
            at = g.plain.base + f0 * residues.d.tap_stride + (f1 * residues.h.tap_stride + f2 * residues.w.tap_stride)
            k = n0 * n1 * (n2 * g.shape.channels)
            return Product(group, k, Three(b0, b1, b2), at, Three(c0, c1, c2), pick(n2, taps.w, taps.least_w),
                           pick(n1, taps.h, taps.least_h), pick(n0, taps.d, taps.least_d))
        k = g.shape.pixels if by_pixel else g.window.taps.d * g.window.taps.h * (g.window.taps.w * g.shape.channels)
        return Product(z, k, g.window.base, g.plain.base, Three(0, 0, 0), taps.w, taps.h, taps.d)

    @device_function
    def pixel(i, g):
        rest, w = divide_remainder(i, g.pixels.w)
        rest, h = divide_remainder(rest, g.pixels.h)
        n, d = divide_remainder(rest, g.pixels.d)
        return n, d, h, w

    @device_function
    def mask(first, step, extent, taps, shift):
        """Bits of the taps along one dimension that read inside the image."""
        word = u32(0)
        for t in range(taps):
            at = first + t * step
            if 0 <= at and at < extent:
                word = word | (1 << u32(shift + t))
        return word

    @device_function
    def of_pixel(i, g, product):
        """(offset, mask, n, d, h, w)"""
        mult, step, extent, taps = g.window.mult, g.window.step, g.window.extent, g.window.taps
        n, d, h, w = pixel(i, g)
        u0, u1, u2 = d * mult.d + product.base.d, h * mult.h + product.base.h, w * mult.w + product.base.w
        offset = n * g.source.n + u0 * g.source.d + (u1 * g.source.h + u2 * g.source.w)
        word = (mask(u0, step.d, extent.d, taps.d, 0) | mask(u1, step.h, extent.h, taps.h, taps.d)
                | mask(u2, step.w, extent.w, taps.w, taps.d + taps.h))
        return offset, word | EXISTS, n, d, h, w

    @device_function
    def tap(i, g, product):
        """(t, r, s, channel) of element i of taps and channels."""
        if channel_inner:
            i, channel = divide_remainder(i, g.taps.channels)
        i, s = divide_remainder(i, product.taps_w)
        if channel_inner:
            t, r = divide_remainder(i, product.taps_h)
        else:
            i, r = divide_remainder(i, product.taps_h)
            channel, t = divide_remainder(i, product.taps_d)
        return t, r, s, channel

    @device_function
    def of_tap(i, g, product):
        """(offset, bits, offset in the plain operand) of a tap and channel."""
        source, plain, step, taps = g.source, g.plain, g.window.step, g.window.taps
        t, r, s, channel = tap(i, g, product)
        offset = t * step.d * source.d + r * step.h * source.h + (s * step.w * source.w + channel * source.channel)
        bits = (1 << u32(t)) | (1 << u32(taps.d + r)) | (1 << u32(taps.d + taps.h + s))
        at = t * plain.d + r * plain.h + (s * plain.w + channel * plain.channel) if not by_pixel else 0
        return offset, bits | EXISTS, at

    if by_pixel:
        @device_function
        def row(i, g, product):
            if i < g.window.taps.d * g.window.taps.h * g.window.taps.w * g.shape.channels:
                offset, bits, _ = of_tap(i, g, product)
                return offset, bits
            return 0, u32(NEVER)

        @device_function
        def entry(i, g, product):
            plain = g.plain
            offset, word, n, d, h, w = of_pixel(i, g, product)
            return offset, word, n * plain.channel + d * plain.d + (h * plain.h + w * plain.w)
    else:
        @device_function
        def row(i, g, product):
            if i < g.shape.pixels:
                offset, word, _, _, _, _ = of_pixel(i, g, product)
                return offset, word
            return 0, u32(0)
        entry = of_tap

    @device_function
    def source_base(g, product):
        return i64(product.group) * g.source.group

    @device_function
    def plain_base(g, product):
        return i64(product.group) * g.plain.group + product.plain_offset
    return SimpleNamespace(setup=setup, pixel=pixel, row=row, entry=entry, column=tap, source_base=source_base, plain_base=plain_base)

"""A convolution as a product of matrices whose elements are gathered: what a row, a column and a step of k mean, in every direction.

One operand is read at ``pixel + tap``, the `source`; the other, the `plain` one, is a matrix. In each group

===============  =======================  ===============================  ==========================  ==========================
                 pixels                   taps and channels of the source  plain operand               the product sums over
===============  =======================  ===============================  ==========================  ==========================
conv_fwd         of y                     x, all channels of the group     w, rows are filters         taps and channels
conv_bwd_data    of x in a residue class  dy, all filters of the group     w, rows are channels        taps and channels
conv_bwd_filter  of y                     x, all channels of the group     dy, rows are filters        pixels
===============  =======================  ===============================  ==========================  ==========================

A pixel is an offset and a mask with a bit for each tap along d, h and w that lies in the image; a tap with its channel is an offset and its
three bits. An element is there if the mask has all three, so the main loops neither divide nor compare coordinates. What goes along k is
computed once for all threads of a block and kept in shared memory as `entry` says.

Pixels of x whose coordinates leave the same remainders modulo the strides are read by the same taps: each such class is a convolution of dy
without stride, with every so many taps. All classes are taken to be as large as the first; what lies beyond the image is not stored.
"""
import functools
import math
from dataclasses import dataclass
from types import SimpleNamespace

from ...device import device_function, i32, i64, u32
from ...device.index import ceil_div, divide_remainder, divisor, quotient
from ...host.launch import Argument

EXISTS, NEVER = 0x80000000, 0x40000000
MASK_BITS = 30


@dataclass(frozen=True)
class Axis:
    """One spatial dimension: coordinates of the source are ``pixel * mult + base + tap * step``; `taps` is the most a class has."""
    pixels: int
    mult: int
    base: int
    step: int
    image: int
    taps: int
    tap_stride: int


@dataclass(frozen=True)
class View:
    """A problem as a product of gathered matrices, for all groups and classes; strides count elements.

    `rows` and `columns` of the product have the pixels as rows where there are some, and filters as rows of a filter's gradient. `source`
    and `plain` name the operands; strides are (outer, channel, d, h, w), the source's channel being the one that is summed over or that
    belongs to a column of the filter's gradient, `plain_*` those of w by (row, channel, tap) or of dy by (row, n, pixel).
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
        """Of a class, all images together."""
        return self.problem.n * math.prod(a.pixels for a in self.axes)

    @property
    def products(self):
        """How many products there are: groups times classes."""
        return self.problem.groups * self.classes

    def arguments(self):
        """Kernel parameters (see `make_gather`), and those of the output."""
        p, axes = self.problem, self.axes
        window = [getattr(a, name) for name in ("mult", "base", "step", "image", "taps") for a in axes]
        least = [p.filter[d] // self._class_step(d) if self.has_classes else a.taps for d, a in enumerate(axes)]
        tap_counts = [a.taps for a in axes[::-1]] + least[::-1]
        divisors = [x for n in (self.channels, *tap_counts) for x in divisor(max(n, 1))]
        pixel_divisors = [x for a in axes[::-1] for x in divisor(max(a.pixels, 1))]
        sn, sc, *s = self.source_strides
        source = (sn, sc, *s, self.source_group)
        plain = (self.plain_row, self.plain_channel, *self.plain_taps, self.plain_group, self.plain_base)
        classes = [v for d in range(3) for v in self._class(d)]
        class_divisors = [x for n in (self.classes, *(p.strides[:0:-1] if self.has_classes else (1, 1))) for x in divisor(n)]
        return (Argument("int32x3", (self.pixels, self.channels, self.rows if p.op == "conv_bwd_filter" else self.columns)),
                Argument("int32x15", tuple(window)), Argument("int32x6", source), Argument("int32x7", plain),
                Argument("uint32x9", tuple(pixel_divisors)), Argument("uint32x21", tuple(divisors)), Argument("int32x24", tuple(classes)),
                Argument("uint32x9", tuple(class_divisors)))

    def output_arguments(self):
        """Strides of the output by (n, channel, d, h, w, group), for a filter's gradient (k, c, t, r, s, group), coordinates a pixel apart,
        extents; then the residual's strides."""
        p = self.problem
        mult = p.strides if self.has_classes else (1, 1, 1)
        extents = p.image if p.op == "conv_bwd_data" else p.out
        per_group = p.k_group if p.op != "conv_bwd_data" else p.c_group
        by = 0 if p.op == "conv_bwd_filter" else 1
        sign = -1 if p.flip and p.op == "conv_bwd_filter" else 1
        outer, channel, *spatial = p.output_strides
        output = (outer, channel, *(sign * s for s in spatial), per_group * p.output_strides[by])
        first = sum((size - 1) * s for size, s in zip(p.filter, spatial)) if sign < 0 else 0
        residual = p.residual_strides
        return (Argument("int32x13", (*output, *mult, *extents, first)), Argument("int32x6", (*residual, per_group * residual[1])))

    def _class_step(self, d):
        return self.problem.strides[d] // math.gcd(self.problem.strides[d], self.problem.dilations[d])

    def _class(self, d):
        """stride, padding, dilation, their gcd, step from tap to tap, the inverse that finds the first tap, taps and their stride."""
        p = self.problem
        if not self.has_classes:
            return (1, 0, 1, 1, 1, 0, 1, 0)
        stride, dilation, step = p.strides[d], p.dilations[d], self._class_step(d)
        common = math.gcd(stride, dilation)
        inverse = pow(dilation // common, -1, step) if step > 1 else 0
        return (stride, p.pads_before[d], dilation, common, step, inverse, p.filter[d], self.plain_taps[d] // step)


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
    """Whether neighbouring columns of a filter's gradient are channels: as the gradient lies in memory, else as x does."""
    if p.c_group > 1 and p.w_strides[1] == 1:
        return True
    if p.taps > 1 and any(n > 1 and s == 1 for n, s in zip(p.filter, p.w_strides[2:])):
        return False
    return p.x_strides[1] == 1


def refusal(problem):
    """Why a problem cannot be gathered, or None."""
    if problem.is_wide:
        return "an operand has elements beyond offset 2**31; offsets of the gathered matrices have 32 bits"
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
    """Device functions by name; `v` is the tuple of the parameters that `View.arguments` makes, `geo` what `setup` returns.

    setup(z, v)             product z: (group, length of k, bases of d h w, offset of the plain operand, class along d h w, divisors)
    pixel(i, v)             (n, d, h, w) of pixel i
    row(i, v, geo)          a row (of the filter's gradient: a column) of the source: (offset, mask or bits)
    entry(i, v, geo)        element i along k: (offset, bits or mask, offset in the plain operand); bit 31 is set
    column(i, v, geo)       column i of the filter's gradient: (tap d, h, w, channel)
    """
    by_pixel = op == "conv_bwd_filter"

    @device_function
    def one_class(c, classes, d):
        """(taps, base, first tap) of residue `c`."""
        stride, pad, dilation = classes[8 * d], classes[8 * d + 1], classes[8 * d + 2]
        common, step, inverse, filters = classes[8 * d + 3], classes[8 * d + 4], classes[8 * d + 5], classes[8 * d + 6]
        v = c + pad
        q = quotient(v, common)
        first = q - quotient(q, step) * step
        first = first * inverse
        first = first - quotient(first, step) * step
        here = q * common == v and first < filters
        count = quotient(filters - first + step - 1, step) if here else 0
        ahead = v - first * dilation
        base = quotient(ahead, stride) if ahead >= 0 else -quotient(-ahead, stride)
        return count, base, first

    @device_function
    def three(t, k):
        return t[k], t[k + 1], t[k + 2]

    @device_function
    def pick(count, t, k):
        """The divisor by `count`, which is the most or the least of a class."""
        if i32(t[k]) == count:
            return t[k], t[k + 1], t[k + 2]
        return t[k + 9], t[k + 10], t[k + 11]

    @device_function
    def setup(z, v):
        shape, window, source, plain, pixel_divisors, tap_divisors, classes, class_divisors = v
        if has_classes:
            group, c = divide_remainder(z, three(class_divisors, 0))
            c, c2 = divide_remainder(c, three(class_divisors, 3))
            c0, c1 = divide_remainder(c, three(class_divisors, 6))
            n0, b0, f0 = one_class(c0, classes, 0)
            n1, b1, f1 = one_class(c1, classes, 1)
            n2, b2, f2 = one_class(c2, classes, 2)
            at = plain[6] + f0 * classes[7] + (f1 * classes[15] + f2 * classes[23])
            k = n0 * n1 * (n2 * shape[1])
            return (group, k, b0, b1, b2, at, c0, c1, c2, pick(n2, tap_divisors, 3), pick(n1, tap_divisors, 6), pick(n0, tap_divisors, 9))
        k = shape[0] if by_pixel else window[12] * window[13] * (window[14] * shape[1])
        zero = 0
        return (z, k, window[3], window[4], window[5], plain[6], zero, zero, zero, three(tap_divisors, 3),
                three(tap_divisors, 6), three(tap_divisors, 9))

    @device_function
    def pixel(i, v):
        divisors = v[4]
        rest, c = divide_remainder(i, three(divisors, 0))
        rest, b = divide_remainder(rest, three(divisors, 3))
        n, a = divide_remainder(rest, three(divisors, 6))
        return n, a, b, c

    @device_function
    def mask(u, step, extent, taps, shift):
        word = u32(0)
        for t in range(taps):
            at = u + t * step
            if 0 <= at and at < extent:
                word = word | (1 << u32(shift + t))
        return word

    @device_function
    def of_pixel(i, v, geo):
        """(offset, mask, n, d, h, w)"""
        window, source = v[1], v[2]
        n, a, b, c = pixel(i, v)
        u0, u1, u2 = a * window[0] + geo[2], b * window[1] + geo[3], c * window[2] + geo[4]
        offset = n * source[0] + u0 * source[2] + (u1 * source[3] + u2 * source[4])
        word = u32(mask(u0, window[6], window[9], window[12], 0) | mask(u1, window[7], window[10], window[13], window[12])
                   | mask(u2, window[8], window[11], window[14], window[12] + window[13]))
        return offset, word | EXISTS, n, a, b, c

    @device_function
    def tap(i, v, geo):
        """(tap d, h, w, channel) of element i of taps and channels."""
        _, _, _, _, _, _, _, _, _, d2, d1, d0 = geo
        if channel_inner:
            i, channel = divide_remainder(i, three(v[5], 0))
        i, c = divide_remainder(i, d2)
        if channel_inner:
            a, b = divide_remainder(i, d1)
        else:
            i, b = divide_remainder(i, d1)
            channel, a = divide_remainder(i, d0)
        return a, b, c, channel

    @device_function
    def of_tap(i, v, geo):
        """(offset, bits, offset in the plain operand) of a tap and channel."""
        window, source, plain = v[1], v[2], v[3]
        a, b, c, channel = tap(i, v, geo)
        offset = i32(a * window[6] * source[2] + b * window[7] * source[3]
                     + (c * window[8] * source[4] + channel * source[1]))
        bits = (1 << u32(a)) | (1 << u32(window[12] + b)) | (1 << u32(window[12] + window[13] + c))
        at = a * plain[2] + b * plain[3] + (c * plain[4] + channel * plain[1]) if not by_pixel else 0
        return offset, bits | EXISTS, at

    if by_pixel:
        @device_function
        def row(i, v, geo):
            if i < window_taps(v) * v[0][1]:
                offset, bits, _ = of_tap(i, v, geo)
                return offset, bits
            return i32(0), u32(NEVER)

        @device_function
        def entry(i, v, geo):
            plain = v[3]
            offset, word, n, a, b, c = of_pixel(i, v, geo)
            return offset, word, n * plain[1] + a * plain[2] + (b * plain[3] + c * plain[4])
    else:
        @device_function
        def row(i, v, geo):
            if i < v[0][0]:
                offset, word, _, _, _, _ = of_pixel(i, v, geo)
                return offset, word
            return i32(0), u32(0)
        entry = of_tap

    @device_function
    def window_taps(v):
        window = v[1]
        return window[12] * window[13] * window[14]

    @device_function
    def source_base(v, geo):
        return i64(geo[0]) * v[2][5]

    @device_function
    def plain_base(v, geo):
        return i64(geo[0]) * v[3][5] + geo[5]
    return SimpleNamespace(setup=setup, pixel=pixel, row=row, entry=entry, column=tap, source_base=source_base, plain_base=plain_base)

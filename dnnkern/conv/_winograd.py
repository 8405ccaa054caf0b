"""What the Winograd algorithms share: the correlation that a direction is, the transforms, and what they refuse.

F(m, r) computes m neighbouring results of a filter of r taps from n = m + r - 1 inputs with n multiplications::

    y = A^T [(G g) * (B^T d)]                      in one dimension, * element by element
    Y = A^T [(G g G^T) * (B^T d B)] A              in two

A filter is a polynomial g, the results those of the product with d at n points: G evaluates at the points, A^T and B^T are the transposes
of evaluation and of interpolation. With the points 0, 1, -1 and infinity all entries are 0, 1, -1 and 1/2, so that small integers stay
exact; with 2 and -2 in addition they have thirds, and rounding is about ten times as large. docs/notes/winograd.md derives them.

The device functions here transform one line of a local array in place, `step` elements apart.
"""
import functools
from dataclasses import dataclass

from ..device import device_function, f32, i32
from ..device.index import ceil_div
from ..host.dtypes import ITEMSIZE
from ..matmul._tile import unrolled


@dataclass(frozen=True)
class Correlation:
    """conv_fwd or conv_bwd_data as one thing: ``target[n, k, p, q] = sum source[n, c, p - pad + r, q - pad + s] * w[k, c, r, s]``.

    conv_bwd_data is a correlation of dy with the filter rotated by half a turn, its two channel dimensions exchanged, and the padding
    taps - 1 - padding, which may be negative.

    Attributes
    ----------
    source, target : str
        Names of the arrays, as the problem has them.
    n, c, k : int
        Images, channels summed over, channels of the target.
    image, out : tuple of int
        Extents (h, w) of source and target.
    taps : tuple of int
    pads : tuple of int
        Before the image along h and w.
    source_strides, target_strides, residual_strides : tuple of int
        Along (n, channel, h, w), in elements.
    w_strides : tuple of int
        Along (k, c, r, s).
    w_first : int
        Element of w that is (0, 0, 0, 0) here.
    """
    source: str
    target: str
    n: int
    c: int
    k: int
    image: tuple
    out: tuple
    taps: tuple
    pads: tuple
    source_strides: tuple
    target_strides: tuple
    residual_strides: tuple
    w_strides: tuple
    w_first: int


def plane_of(five):
    """Strides along (n, channel, h, w)."""
    return five[0], five[1], five[3], five[4]


def correlation(problem) -> Correlation:
    """The correlation that a problem, conv_fwd or conv_bwd_data, is."""
    p, taps = problem, problem.filter[1:]
    sk, sc, _, sr, ss = p.w_strides
    forward = p.op == "conv_fwd"
    first = 0
    if p.flip == forward:  # rotated
        first, sr, ss = (taps[0] - 1) * sr + (taps[1] - 1) * ss, -sr, -ss
    pads = p.pads_before[1:]
    if forward:
        return Correlation("x", "y", p.n, p.c, p.k, p.image[1:], p.out[1:], taps, pads, plane_of(p.x_strides), plane_of(p.y_strides),
                           plane_of(p.residual_strides), (sk, sc, sr, ss), first)
    pads = tuple(r - 1 - pad for r, pad in zip(taps, pads))
    return Correlation("y", "x", p.n, p.k, p.c, p.out[1:], p.image[1:], taps, pads, plane_of(p.y_strides), plane_of(p.x_strides),
                       plane_of(p.residual_strides), (sc, sk, sr, ss), first)


def refusal(problem, taps, dtypes):
    """Why tiles cannot compute a problem with one of the filters `taps`, or None."""
    p = problem
    if p.dtype not in dtypes:
        return f"dtype {p.dtype}; the transforms are for {', '.join(dtypes)}"
    if p.image[0] != 1 or p.filter[0] != 1 or any(p.pads[0]):
        return f"three dimensions: the image's depth is {p.image[0]}, the filter's {p.filter[0]}, the padding {p.pads[0]}"
    if p.filter[1:] not in taps:
        return f"the filter is {p.filter[1]}x{p.filter[2]}; the transforms are for {' and '.join(f'{r}x{s}' for r, s in taps)}"
    for name, values in (("stride", p.strides), ("dilation", p.dilations)):
        if values != (1, 1, 1):
            return f"{name} {values[1]}x{values[2]}; tiles overlap only with 1"
    if p.groups != 1:
        return f"{p.groups} groups; the products are over all channels"
    if p.op != "conv_bwd_filter" and (p.c if p.op == "conv_fwd" else p.k) == 0:
        return "no channels to sum over"
    if p.c * p.k >= 2 ** 31:
        return f"the filter has {p.c * p.k} pairs of channels; they are counted to 2**31"
    if max(*p.image, *p.out, p.c, p.k) >= 2 ** 30 or p.pixels >= 2 ** 31 or p.n * p.image[1] * p.image[2] >= 2 ** 31:
        return f"{p.pixels} pixels, extents {p.image[1:]} and {p.out[1:]}, {p.c} and {p.k} channels; tiles are counted to 2**31"
    return None


def tile_grid(extents, m):
    """Tiles of m x m along h and w."""
    return tuple(ceil_div(e, m) for e in extents)


def channels_last(strides):
    """Whether neighbours in memory are channels, not pixels; `strides` along (n, channel, h, w)."""
    return strides[1] == 1 and strides[3] != 1


def spread(items):
    """(total bytes, offsets) of workspace pieces of so many bytes, each in whole lines of 256."""
    offsets, at = [], 0
    for size in items:
        offsets.append(at)
        at += ceil_div(size, 256) * 256
    return at, offsets


def float_bytes(count):
    """Bytes of so many float32."""
    return count * ITEMSIZE["float32"]


# ---- transforms of one line


@device_function
def data4(v, at, step):
    """B^T of F(2, 3) and F(3, 2): four inputs."""
    d0, d1, d2, d3 = v[at], v[at + step], v[at + 2 * step], v[at + 3 * step]
    v[at], v[at + step], v[at + 2 * step], v[at + 3 * step] = d0 - d2, d1 + d2, d2 - d1, d1 - d3


@device_function
def filter3_4(v, at, step):
    """G of F(2, 3): three taps to four."""
    g0, g1, g2 = v[at], v[at + step], v[at + 2 * step]
    half = f32(f32(0.5) * f32(g0 + g2))
    v[at + step], v[at + 2 * step], v[at + 3 * step] = half + f32(0.5) * g1, half - f32(0.5) * g1, g2


@device_function
def filter2_4(v, at, step):
    """G of F(3, 2): two taps to four."""
    g0, g1 = v[at], v[at + step]
    v[at + step], v[at + 2 * step], v[at + 3 * step] = f32(0.5) * f32(g0 + g1), f32(0.5) * f32(g0 - g1), g1


@device_function
def result4_2(v, at, step):
    """A^T of F(2, 3): four products to two results."""
    m0, m1, m2, m3 = v[at], v[at + step], v[at + 2 * step], v[at + 3 * step]
    v[at], v[at + step] = m0 + m1 + m2, m1 - m2 - m3


@device_function
def result4_3(v, at, step):
    """A^T of F(3, 2): four products to three results."""
    m0, m1, m2, m3 = v[at], v[at + step], v[at + 2 * step], v[at + 3 * step]
    both = f32(m1 + m2)
    v[at], v[at + step], v[at + 2 * step] = m0 + both, m1 - m2, both - m3


@device_function
def data6(v, at, step):
    """B^T of F(4, 3), F(2, 5) and F(3, 4): six inputs."""
    d0, d1, d2, d3, d4, d5 = v[at], v[at + step], v[at + 2 * step], v[at + 3 * step], v[at + 4 * step], v[at + 5 * step]
    even, odd = f32(d4 - f32(4) * d2), f32(d3 - f32(4) * d1)
    near, far = f32(d4 - d2), f32(f32(2) * f32(d3 - d1))
    v[at] = f32(4) * d0 - f32(5) * d2 + d4
    v[at + step], v[at + 2 * step] = even + odd, even - odd
    v[at + 3 * step], v[at + 4 * step] = near + far, near - far
    v[at + 5 * step] = f32(4) * d1 - f32(5) * d3 + d5


@device_function
def filter3_6(v, at, step):
    """G of F(4, 3): three taps to six."""
    g0, g1, g2 = v[at], v[at + step], v[at + 2 * step]
    sixth = f32(f32(-1 / 6) * f32(g0 + g2))
    wide, odd = f32(f32(1 / 24) * g0 + f32(1 / 6) * g2), f32(f32(1 / 12) * g1)
    v[at], v[at + step], v[at + 2 * step] = f32(0.25) * g0, sixth - f32(1 / 6) * g1, sixth + f32(1 / 6) * g1
    v[at + 3 * step], v[at + 4 * step], v[at + 5 * step] = wide + odd, wide - odd, g2


@device_function
def filter4_6(v, at, step):
    """G of F(3, 4): four taps to six."""
    g0, g1, g2, g3 = v[at], v[at + step], v[at + 2 * step], v[at + 3 * step]
    even, odd = f32(f32(-1 / 6) * f32(g0 + g2)), f32(f32(1 / 6) * f32(g1 + g3))
    wide, far = f32(f32(1 / 24) * g0 + f32(1 / 6) * g2), f32(f32(1 / 12) * g1 + f32(1 / 3) * g3)
    v[at], v[at + step], v[at + 2 * step] = f32(0.25) * g0, even - odd, even + odd
    v[at + 3 * step], v[at + 4 * step], v[at + 5 * step] = wide + far, wide - far, g3


@device_function
def filter5_6(v, at, step):
    """G of F(2, 5): five taps to six."""
    g0, g1, g2, g3, g4 = v[at], v[at + step], v[at + 2 * step], v[at + 3 * step], v[at + 4 * step]
    even, odd = f32(f32(-1 / 6) * f32(g0 + g2 + g4)), f32(f32(1 / 6) * f32(g1 + g3))
    wide, far = f32(f32(1 / 24) * g0 + f32(1 / 6) * g2 + f32(2 / 3) * g4), f32(f32(1 / 12) * g1 + f32(1 / 3) * g3)
    v[at], v[at + step], v[at + 2 * step] = f32(0.25) * g0, even - odd, even + odd
    v[at + 3 * step], v[at + 4 * step], v[at + 5 * step] = wide + far, wide - far, g4


@device_function
def result6_4(v, at, step):
    """A^T of F(4, 3): six products to four results."""
    m0, m1, m2, m3, m4, m5 = v[at], v[at + step], v[at + 2 * step], v[at + 3 * step], v[at + 4 * step], v[at + 5 * step]
    near, far, odd, wide = f32(m1 + m2), f32(m3 + m4), f32(m1 - m2), f32(m3 - m4)
    v[at], v[at + step] = m0 + near + far, odd + f32(2) * wide
    v[at + 2 * step], v[at + 3 * step] = near + f32(4) * far, odd + f32(8) * wide + m5


@device_function
def result6_3(v, at, step):
    """A^T of F(3, 4): six products to three results."""
    m0, m1, m2, m3, m4, m5 = v[at], v[at + step], v[at + 2 * step], v[at + 3 * step], v[at + 4 * step], v[at + 5 * step]
    near, far = f32(m1 + m2), f32(m3 + m4)
    v[at], v[at + step] = m0 + near + far, f32(m1 - m2) + f32(2) * f32(m3 - m4)
    v[at + 2 * step] = near + f32(4) * far + m5


@device_function
def result6_2(v, at, step):
    """A^T of F(2, 5): six products to two results."""
    m0, m1, m2, m3, m4, m5 = v[at], v[at + step], v[at + 2 * step], v[at + 3 * step], v[at + 4 * step], v[at + 5 * step]
    v[at], v[at + step] = m0 + f32(m1 + m2) + f32(m3 + m4), f32(m1 - m2) + f32(2) * f32(m3 - m4) + m5


@dataclass(frozen=True)
class Transform:
    """F(m x m, r x r): results and taps along each direction, and the device functions of one line."""
    m: int
    r: int
    data: object
    filter: object
    result: object

    @property
    def n(self):
        """Inputs along each direction."""
        return self.m + self.r - 1

    def __str__(self):
        return f"F({self.m}x{self.m},{self.r}x{self.r})"


F2X3, F3X2 = Transform(2, 3, data4, filter3_4, result4_2), Transform(3, 2, data4, filter2_4, result4_3)
F4X3, F2X5 = Transform(4, 3, data6, filter3_6, result6_4), Transform(2, 5, data6, filter5_6, result6_2)
F3X4 = Transform(3, 4, data6, filter4_6, result6_3)


@functools.cache
def make_square(line, size, columns, rows):
    """Device function ``square(v)``: `line` down the first `columns` columns of the matrix v[i*size + j], then along its first `rows`
    rows."""
    @device_function
    def column(j, v):
        line(v, j, size)

    @device_function
    def row(i, v):
        line(v, i32(i * size), 1)
    all_columns, all_rows = unrolled(columns, column), unrolled(rows, row)

    @device_function
    def square(v):
        all_columns(i32(0), v)
        all_rows(i32(0), v)
    return square

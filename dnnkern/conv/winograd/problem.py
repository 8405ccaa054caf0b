"""What the Winograd algorithms share beside the transforms (`transforms`): the correlation that a direction is, and refusals."""
from dataclasses import dataclass
from typing import NamedTuple

from ...device import i64
from ...device.index import ceil_div
from ...host.dtypes import ITEMSIZE
from .._parameters import PlaneStrides


class TapStrides(NamedTuple):
    """Of a filter [k, c, r, s] without depth, in elements."""
    k: i64
    c: i64
    r: i64
    s: i64


@dataclass(frozen=True)
class Correlation:
    """conv_fwd or conv_bwd_data as one thing: ``target[n, k, p, q] = sum source[n, c, p - pad + r, q - pad + s] * w[k, c, r, s]``.

    conv_bwd_data is a correlation of dy with the filter rotated by 180 degrees, its two channel dimensions exchanged, and the padding
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
        Leading padding along h and w.
    source_strides, target_strides, residual_strides : PlaneStrides
    w_strides : TapStrides
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
    source_strides: PlaneStrides
    target_strides: PlaneStrides
    residual_strides: PlaneStrides
    w_strides: TapStrides
    w_first: int


def plane_of(five):
    """Strides along (n, channel, h, w) of those along (n, channel, d, h, w)."""
    n, c, _, h, w = five
    return PlaneStrides(n, c, h, w)


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
                           plane_of(p.residual_strides), TapStrides(sk, sc, sr, ss), first)
    pads = tuple(r - 1 - pad for r, pad in zip(taps, pads))
    return Correlation("y", "x", p.n, p.k, p.c, p.out[1:], p.image[1:], taps, pads, plane_of(p.y_strides), plane_of(p.x_strides),
                       plane_of(p.residual_strides), TapStrides(sc, sk, sr, ss), first)


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
    """Whether channels are contiguous in memory, not pixels."""
    return strides.c == 1 and strides.w != 1


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

"""Kernel parameters that most convolutions share."""
from typing import NamedTuple

from ..device import i64


class FilterStrides(NamedTuple):
    """Of w[k, c, t, r, s], in elements."""
    k: i64
    c: i64
    t: i64
    r: i64
    s: i64


class OutputStrides(NamedTuple):
    """Of y[n, k, o, p, q], in elements."""
    n: i64
    k: i64
    o: i64
    p: i64
    q: i64


class PlaneStrides(NamedTuple):
    """Of an image [n, c, h, w] without depth, in elements."""
    n: i64
    c: i64
    h: i64
    w: i64


class PixelStrides(NamedTuple):
    """Of an image [n, d, h, w] whose channels are contiguous or taken one by one, in elements."""
    n: i64
    d: i64
    h: i64
    w: i64

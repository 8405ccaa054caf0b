"""Kernel parameters that most products share."""
from typing import NamedTuple

from ..device import i64


class AStrides(NamedTuple):
    """Of a[m, k], in elements."""
    m: i64
    k: i64


class BStrides(NamedTuple):
    """Of b[k, n], in elements."""
    k: i64
    n: i64


class GroupStrides(NamedTuple):
    """Of b[g, k, n], in elements; g last."""
    k: i64
    n: i64
    g: i64


class YStrides(NamedTuple):
    """Of y[m, n], in elements."""
    m: i64
    n: i64

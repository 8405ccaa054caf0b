"""Kernel parameters that `naive` and `window` of local response normalisation share."""
from typing import NamedTuple

from ..device import i64


class ForwardSteps(NamedTuple):
    """Element strides along the channels."""
    x: i64
    y: i64


class BackwardSteps(NamedTuple):
    """Element strides along the channels."""
    dy: i64
    x: i64
    y: i64
    dx: i64

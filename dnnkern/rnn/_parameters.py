"""Kernel parameters of a layer that all algorithms share: where its matrices and kept values begin, and strides.

The kernel of a direction takes its own offsets by ``at = offsets.backwards if which else offsets.forwards``, and then ``at.w_hh``.
"""
import functools
from dataclasses import dataclass
from typing import NamedTuple

from ..device import i64
from ..engine.embed import Place
from ..host.launch import Argument
from ._network import pointer

PARTS = "w_ih", "w_hh", "b_ih", "b_hh", "w_hr"
KEPT = "gates", "cells", "hidden", "projected"


@dataclass(frozen=True)
class Kind:
    """What kernels over a layer are compiled for: the cell, and which parts there are."""
    cell: str
    dtype: str
    compute: str
    clip: tuple | None
    skip: bool
    given: tuple       # matrices and biases
    present: tuple     # optional arrays
    projected: bool


def kind_of(problem, layer):
    """The kind of a layer."""
    p, spec = problem, problem.spec
    present = tuple(name for name in ("h0", "c0", "dhn", "dcn", "lengths", "reserve") if getattr(p, name, None) is not None)
    return Kind(spec.cell, p.dtype, p.compute, spec.clip, spec.input_mode == "skip" and layer == 0,
                tuple(name for name in PARTS if spec.matrix(name, layer, 0)), present, bool(spec.proj_size))


class LineStrides(NamedTuple):
    """Of x[t, n, channel], or of what a layer gives."""
    t: i64
    n: i64
    channel: i64


class SumStrides(NamedTuple):
    """Of the products of the input[direction, t, n]; a row of gates each."""
    direction: i64
    t: i64
    n: i64


class StateStrides(NamedTuple):
    """Of a state[layer and direction, n, unit]."""
    layer: i64
    n: i64
    unit: i64


@functools.cache
def _tuple_of(name, fields, kind):
    return NamedTuple(name, [(field, kind) for field in fields])


@functools.cache
def direction_offsets(fields):
    """A NamedTuple of offsets of these names."""
    return _tuple_of("DirectionOffsets", fields, i64)


class SlotOffsets(NamedTuple):
    """Offsets of the first slot (a direction, or a layer), of the second, and what lies between two later layers in the weights, in the
    reserve and between layers."""
    first: direction_offsets((*PARTS[1:], *KEPT))
    second: direction_offsets((*PARTS[1:], *KEPT))
    weights_apart: i64
    reserve_apart: i64
    between_apart: i64


def offsets(problem, layer, names=PARTS, kept=KEPT):
    """Where the matrices of both directions begin in the weights, and their kept values in the reserve, in elements; 0 for none."""
    p, spec, kind = problem, problem.spec, direction_offsets((*names, *kept))
    both = _tuple_of("Offsets", ("forwards", "backwards"), kind)
    found = []
    for direction in range(2):
        direction = min(direction, spec.directions - 1)
        matrices = [spec.matrix(name, layer, direction) for name in names]
        regions = [p.region(name, layer, direction) for name in kept]
        found.append(kind(*(m.first if m else 0 for m in matrices), *((at or 0) // p.x.itemsize for at in regions)))
    return Argument(both, both(*found))


def optional(problem, name, dtype, substitute):
    """The pointer of an array that may be missing: then that of another, which nothing reads."""
    return pointer(Place(name if getattr(problem, name, None) is not None else substitute), dtype)


def line_strides(strides):
    """The kernel parameter of the strides of lines."""
    return Argument(LineStrides, LineStrides(*strides))


def state_strides(problem, *names):
    """Strides of these states by name, 0 of one that is missing."""
    kind = _tuple_of("States", names, StateStrides)
    arrays = [getattr(problem, name, None) for name in names]
    return Argument(kind, kind(*(StateStrides(*(t.strides if t is not None else (0, 0, 0))) for t in arrays)))

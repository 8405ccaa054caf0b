"""The operands of a program for one matrix of a batch."""
import functools

from . import device_function
from .index import divided
from .program_operands import MEMBERS, _bounds, has_strides
from .vec import advance


@functools.cache
def make_placed(program, dims):
    """Device function ``placed(e, z, sizes)``: the operands for matrix z of a batch of `dims` dimensions, whose sizes are a tuple.

    In `e` an operand with strides, but for a value, has `dims` strides along the batch after its members; what is returned is without.
    """
    move, coordinates = make_moved(program, dims), _coordinates(dims)

    @device_function
    def placed(e, z, sizes):
        return move(e, coordinates(z, sizes))
    return placed


@functools.cache
def make_moved(program, dims):
    """Device function ``moved(e, coordinates)``: the operands for these coordinates along `dims` dimensions, see `make_placed`."""
    if not dims or program is None or not program.operands:
        return device_function(_unmoved)
    at, parts = _bounds(program), device_function(_both_bounds) if program.stores else None
    for _, access in program.operands:
        parts, at = _with_part(parts, access, at, dims), at + len(MEMBERS[access]) + (dims if has_strides(access) else 0)
    return parts


def _unmoved(e, coordinates):
    return e


def _both_bounds(e, c):
    return e[0], e[1]


def _coordinates(dims):
    """Device function ``coordinates(z, sizes)``: the indices along each dimension of a batch."""
    @device_function
    def coordinates(z, sizes):
        return (z,)
    for d in range(1, dims):
        coordinates = _with_coordinate(coordinates, d)
    return coordinates


def _with_coordinate(outer, D):
    @device_function
    def coordinates(z, sizes):
        rest, i = divided(z, sizes[D])
        return outer(rest, sizes) + (i,)
    return coordinates


def _with_part(before, access, AT, dims):
    """The operands `before`, and one more, moved along the batch."""
    members = len(MEMBERS[access])
    shift, S, T, U = _shift(AT + members, dims), AT + 1, AT + 2, AT + 3
    if not has_strides(access):
        def part(e, c):
            return (e[AT],)
    elif access == "index":
        def part(e, c):
            return e[AT], e[S], e[T] + shift(e, c)
    elif access == "bits":
        def part(e, c):
            return e[AT], e[S], e[T], e[U] + shift(e, c)
    elif members == 2:
        def part(e, c):
            return advance(e[AT], shift(e, c)), e[S]
    else:
        def part(e, c):
            return advance(e[AT], shift(e, c)), e[S], e[T]
    part = device_function(part)
    if before is None:
        return part

    @device_function
    def parts(e, c):
        return before(e, c) + part(e, c)
    return parts


def _shift(AT, dims):
    """Device function: elements that coordinates along the batch are."""
    @device_function
    def shift(e, c):
        return c[0] * e[AT]
    for d in range(1, dims):
        shift = _with_shift(shift, d, AT + d)
    return shift


def _with_shift(outer, D, AT):
    @device_function
    def shift(e, c):
        return outer(e, c) + c[D] * e[AT]
    return shift

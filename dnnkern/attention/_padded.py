"""Copies of the operands whose rows TMA cannot read, in the workspace, with rows that it can: what `flash_wgmma_padded` does first.

A row of heads of 53 elements begins where the one before it ends, at a multiple of 2 bytes. Its copy begins 56 elements after that of the
one before; what lies between is not read, since tensor maps have the array's own sizes. The copies are moved as any array is
(`engine.moves`), the launches after them are those of another algorithm for the problem with these arrays.
"""
import math
from dataclasses import replace
from typing import NamedTuple

from ..device.index import ceil_div
from ..engine.cost import Cost
from ..engine.moves import transpose_launches, transpose_seconds
from ..host.memo import remembered
from ..host.tensor import Tensor
from ._checks import broadcast_strides
from ._mask_tiles import mask_tiles
from ._wgmma import COST, addressable

ALIGNMENT = 256  # bytes of the beginning of a copy in the workspace


class Copy(NamedTuple):
    """An operand, what is read of it, and the copy."""
    name: str
    given: Tensor
    made: Tensor

    @property
    def nbytes(self):
        """Bytes of the copy, with what lies between its rows."""
        t = self.made
        return ceil_div(t.strides[0] * t.shape[0] * t.itemsize, ALIGNMENT) * ALIGNMENT


def apart(t):
    """A tensor's copy whose rows are multiples of 16 bytes."""
    unit = 16 // t.itemsize
    sizes = (*t.shape[1:-1], ceil_div(t.shape[-1], unit) * unit)
    return Tensor(t.shape, (*(math.prod(sizes[k:]) for k in range(len(sizes))), 1), t.dtype)


def copy_of_mask(t):
    """That of a mask, as bytes; dimensions along which it is the same are of one element."""
    shape = tuple(n if s else 1 for n, s in zip(t.shape, broadcast_strides(t)[4 - t.ndim:]))
    return Copy("mask", Tensor(shape, t.strides, "uint8", t.alignment), apart(Tensor.packed(shape, "uint8")))


@remembered
def copies_of(problem):
    """Those that TMA needs: of q, k, v, do, and of a mask."""
    p, found = problem, []
    if p.ragged or p.paged != (False, False):
        return ()
    for name in ("q", "k", "v") + ("do",) * (not p.is_forward):
        t = getattr(p, name)
        if t.size and not addressable(p, t):
            found.append(Copy(name, t, apart(t)))
    if p.mask is not None and p.mask.size and not mask_tiles(p):
        found.append(copy_of_mask(p.mask))
    return tuple(found)


@remembered
def padded(problem):
    """The problem with these copies for operands."""
    return replace(problem, **{c.name: replace(c.made, dtype=getattr(problem, c.name).dtype) for c in copies_of(problem)})


def refusal(problem, algorithm):
    """Why there is nothing to copy, or the algorithm cannot solve the problem with copies; None if it can."""
    p = problem
    if not copies_of(p):
        return "no rows that TMA takes only as copies: ragged, in pages, or 16 bytes, or multiples, apart already"
    return algorithm.supports(padded(p))


def copied_bytes(problem):
    """Bytes of the workspace for the copies."""
    return sum(c.nbytes for c in copies_of(problem))


def begin_of_copies(nbytes):
    """Where the copies begin after so many bytes of the workspace."""
    return ceil_div(nbytes, ALIGNMENT) * ALIGNMENT


def copy_seconds(problem, device):
    """Predicted time of the copies."""
    return Cost(pack=sum(float(transpose_seconds(c.given, c.made, tuple(range(c.made.ndim)), device)) for c in copies_of(problem)))


def slowed(cost):
    """The prediction of a kernel on copies."""
    return cost.slowed(slower=COST.padded)


def with_copies(problem, device, begin, launches):
    """The launches that copy to the workspace from byte `begin` on, and those given, which read the copies."""
    moves, begins = (), {}
    for c in copies_of(problem):
        moves += tuple(transpose_launches(c.given, c.made, tuple(range(c.made.ndim)), device, (c.name, 0), ("workspace", begin)))
        begins[c.name] = begin
        begin += c.nbytes

    def moved(argument):
        if not argument.is_dynamic or argument.value not in begins:
            return argument
        return replace(argument, value="workspace", offset=argument.offset + begins[argument.value])
    return moves + tuple(replace(launch, arguments=tuple(map(moved, launch.arguments))) for launch in launches)

"""Programs that reduce each row of a product's result (`device.program.Program.row_steps`): what main loops and `row_levels` know of
each other.

A tile has all columns of its rows. When its products are done, the program runs over the accumulators, level by level, and leaves its
result in them; then they are stored as those of a plain product. Main loops need no more than this, and what computes is imported where
there is such a program.
"""
from typing import Callable, NamedTuple

from ..device import device_function
from ..device.epilogue import EpilogueSpec
from .cost import Cost, issue_seconds
from .roles import has_row_steps
from .tile_states import Fragment


class RowFragment(NamedTuple):
    """The accumulators of a thread: how they lie in the tile, and which is that of its row `i` and column `j`, device function ``at(i, j)``
    of constants."""
    tile: Fragment
    at: Callable


def warpgroup_fragment(bn, edge):
    """The `RowFragment` of the 64 rows of a warpgroup, whose first row is a warp's."""
    whole = Fragment(64, bn, 128, 2, bn // 4, 4, 1, device_function(lambda k, lane: (lane >> 2) + 8 * k),
                     device_function(lambda k, lane: (k >> 1) * 8 + (lane & 3) * 2 + (k & 1)), None, edge)
    return RowFragment(whole, device_function(lambda i, j: (j >> 1) * 4 + 2 * i + (j & 1)))


def stored_spec(spec):
    """The `EpilogueSpec` of what is stored after the program has run: of accumulators as they are."""
    return EpilogueSpec(accumulator=spec.compute, output=spec.output, wide=spec.wide) if has_row_steps(spec) else spec


def make_row_levels(spec, fragment):
    """`row_levels.make_levels`."""
    from .row_levels import make_levels
    return make_levels(spec, fragment)


def row_refusal(parts, widths):
    """Why tiles of these numbers of columns cannot run a program that reduces rows, or None; None as well without one."""
    spec = parts.epilogue
    if not has_row_steps(spec):
        return None
    if parts.n > widths[-1]:
        return f"rows of {parts.n} columns that a program reduces; a tile has {widths[-1]} at most"
    if parts.n > widths[-2] and not _is_light(parts, widths[-1]):
        return (f"rows of {parts.n} columns and a program that reads arrays; beside the accumulators of {widths[-1]} columns registers are "
                f"left for arrays of {widths[-1]} columns alone")
    types = spec.program.types(spec.compute)
    kinds = {spec.compute, types[spec.program.result], *(step.compute for step in spec.program.row_steps)}
    if len(kinds) > 1 or spec.accumulator == "int32":
        return f"a program that reduces rows, of values of {' and '.join(sorted(kinds))}; expected the accumulators' type alone"
    return None


def _is_light(parts, bn):
    """Whether a program reads no array, or columns that a tile of `bn` has exactly, so that no index is clamped."""
    program = parts.epilogue.program
    read = {access for _, access in program.operands[:program.inputs]} - {"value", "scalar", "row"}
    return not read or read == {"column"} and parts.n == bn


def row_seconds(spec, tile, waves, device):
    """Time in which the program runs over the accumulators of so many waves of an `engine.hopper.Tile`: the tensor cores wait meanwhile,
    but for those of tiles that alternate; a scheduler needs two warps to issue at each clock."""
    if not has_row_steps(spec):
        return 0.0
    from .row_levels import instructions
    elements, warps = waves * device.sms * tile.blocks * tile.bm * tile.bn, tile.consumers * tile.blocks
    shown = 0.5 if tile.ping_pong else max(1.0, 2 / warps)
    return Cost(issue=shown * issue_seconds(elements, instructions(spec), device))

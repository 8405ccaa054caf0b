"""What estimates of products by wgmma count beside the tiles' times: results that do not leave through TMA, operands of columns that begin
anywhere, the sum of K slices."""
from dataclasses import dataclass

from ..engine.constants import constants
from ..engine.cost import Cost
from ..engine.hopper import ROW
from ..engine.hopper_plan import Config, Specialisation, waves_of
from ..engine.scales import FP8

COST, GROUPS = constants("matmul/wgmma"), constants("matmul/grouped")
SHALLOW = 3  # stages of a ring that does not fill while a tile is stored


@dataclass(frozen=True)
class InLines(Config):
    """A tile whose results leave a row at a time (`engine.hopper_lines`)."""

    def __str__(self):
        return f"{self.tile} in lines"


@dataclass(frozen=True)
class LineSpecialisation(Specialisation):
    """What a kernel is compiled for, of such a tile."""


def aside_of(config, device, tiles, width):
    """Seconds of results that do not leave through TMA, by a configuration: from registers, `width` neighbours at a time, or in lines."""
    if isinstance(config, InLines):
        return Cost(aside=waves_of(tiles, device.sms * config.tile.blocks) * COST.line * config.tile.sums)
    return straight_seconds(config.tile, device, tiles, width)


def slower_of(config):
    """Times as long as counted, by how results leave."""
    return COST.in_lines if isinstance(config, InLines) else 1.0


def straight_seconds(tile, device, tiles, width):
    """Of results that threads store from registers, `width` neighbours at a time: a tile's end, which hides nothing but where tiles take
    turns. Each store of a warp reaches parts of eight rows."""
    waves = waves_of(tiles, device.sms * tile.blocks) * (COST.turns if tile.ping_pong else 1.0)
    return Cost(aside=waves * COST.straight * tile.sums / width)


def shallow_seconds(tile, device, tiles):
    """Of tiles whose ring is too short for the sums of one group to hide the end of another's."""
    return Cost(waves=(tile.blocks == 1 and tile.stages <= SHALLOW) * GROUPS.shallow * waves_of(tiles, device.sms))


def longer_step(operands):
    """``longer(tile, microseconds)`` of `hopper_plan.product_seconds`, None where no step is longer: lines of b that run along its columns
    and begin anywhere in the L2's are each read by two tiles; one warpgroup alone hides less of the second sums of 8-bit floats."""
    a, b = operands
    columns, floats = b.major != "k" and a.crosses and b.crosses, a.tensor.dtype in FP8
    if not (columns or floats):
        return None

    def longer(tile, step):
        step *= COST.one_group if floats and tile.consumers == 1 else 1.0
        return max(step, 1e6 * ROW * (tile.bm + tile.bn / tile.cluster) / COST.columns) if columns else step
    return longer

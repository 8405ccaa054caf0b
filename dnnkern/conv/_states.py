"""Reductions of a convolution's result (`device.program.Program.reductions`): what `engine.tile_states` asks of one whose rows are pixels,
in their order, and whose columns are the channels of a group."""
from dataclasses import dataclass

from ..host.memo import remembered


@dataclass(frozen=True)
class PixelStates:
    """Pixels, channels of a group, groups, the epilogue, and the reductions, as in `engine.roles.Roles`."""
    m: int
    n: int
    batch: tuple
    epilogue: object
    reduced: tuple
    row_tiles: int = 0

    @property
    def batch_size(self):
        return self.batch[0][0] if self.batch else 1


@remembered
def states_of(problem, row_tiles=0):
    """The `PixelStates` of conv_fwd and conv_bwd_data; `row_tiles`: in how many parts all pixels are reduced, if these are no tiles."""
    batch = ((problem.groups, ()),) if problem.groups > 1 else ()
    return PixelStates(*problem.gemm[:2], batch, problem.epilogue, problem.reduced_values, row_tiles)

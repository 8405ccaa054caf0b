"""The gradients of float32 from bfloat16 products of Hopper's tensor cores, as exact as float32's: `flash_wgmma`'s kernel, six products in
place of each.

- A launch splits q, k, v and do, each number into three bfloat16 whose sum it is (`_pieces`), and TMA brings tiles of those. p and ds are
  split in registers; of ds all three pieces pass through shared memory for dq.
- The products of pieces are steps of one sum, the smallest first. Tensor cores round towards zero whenever they add, so sums of many
  tiles would lose more than float32's do: what a tile adds to dk and dv begins from zero, a box of columns at a time, and registers add it.
- Six products take as long as everything else that a step does takes six times over: one warpgroup of 64 keys keeps tensor cores busy, and
  has registers for fragments of three pieces. dv is multiplied while ds is split. With heads beyond 64 elements, or options that take
  registers, tiles have 32 rows; with both they do not fit.
"""
from ...device.index import ceil_div
from ...dispatch import Algorithm, Note
from ...engine.constants import constants
from ...engine.cost import Cost
from .. import _pieces
from .._wgmma import COLUMNS, Shape, read_seconds, refusal
from . import flash_wgmma as base
from .flash_wgmma.workspace import countable, workspace_of

COST, WGMMA = constants("attention/bf16x6"), constants("attention/wgmma")

WIDEST = 128
CHOICES = (("", (Shape(1, 64, 0), Shape(1, 32, 0))),)


def splits_of(problem, device, config):
    """Pieces of what passes through TMA, after what `flash_wgmma` keeps in the workspace."""
    begin = ceil_div(base.workspace(problem, device, config), 16) * 16
    return _pieces.splits_of(problem, [name for name, _ in base.tiles_by_name(config.shape)], begin)


def supports(problem):
    """float32, arbitrary strides; wide heads without options that take registers."""
    p = problem
    reason = refusal(p, ("float32",), (), packed=True) or countable(p) or _pieces.countable(_pieces.splits_of(p, ("q", "k", "v", "do")))
    if reason:
        return reason
    if max(p.d, p.dv) > WIDEST:
        return f"heads of {p.d} and {p.dv} elements; expected {WIDEST} at most"
    if not p.rows:
        return "no rows"
    if not configs(p, None):
        return f"heads of {p.d} and {p.dv} elements with a bias, ALiBi, a cap or dropout; expected {COLUMNS} at most"
    return None


def configs(problem, device):
    """Tiles whose fragments fit registers."""
    return base.configs(problem, device, choices=CHOICES)


def workspace(problem, device, config):
    """What `flash_wgmma` needs, and the pieces."""
    return splits_of(problem, device, config)[-1].end


def estimate(problem, device, config):
    """The kernel's, and the pieces to be written and read."""
    cost = base.estimate(problem, device, config).slowed(slower=COST.narrow if config.transposed else 1)
    return Cost(pack=WGMMA.launch + read_seconds(_pieces.moved_bytes(splits_of(problem, device, config)), device)) + cost


def build(problem, device, config):
    """The pieces, and `flash_wgmma`'s launches."""
    p, splits = problem, splits_of(problem, device, config)
    maps = [split.map(height) for split, (_, height) in zip(splits, base.tiles_by_name(config.shape))]
    space = workspace_of(p, config.shape.width, config.ordered)
    return (_pieces.split_launch(splits), *base.around(p, device, space, [base.main_launch(p, device, config, space, maps)]))


ALGORITHM = Algorithm(op="sdpa_bwd", name="flash_wgmma_bf16x6", supports=supports, workspace=workspace, configs=configs,
                      estimate=estimate, build=build, notes=Note.TENSOR_CORE, arch="sm_90a")

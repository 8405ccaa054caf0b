"""The gradients of wide heads on Hopper's tensor cores, five products: one warpgroup has the probabilities and dv, the other dk and dq.

    k, v stay | q, do pass --> s = q k' --> p, in shared memory --> dv' += do' p
                               dp = do v', p --> ds, in shared memory --> dk' += q' ds,  dq' = k' ds'

- Sums of dk and dv are transposed, columns by keys: so a tile may have any multiple of 16 keys that registers hold, not of 64 for each
  warpgroup, and all operands but the sums lie in shared memory. With p goes what it lost when it was rounded: ds is as exact as if it were
  made of the unrounded one.
- The warpgroup of the probabilities is a step ahead of the other one: one's exponentials lie beside the other's products.
- Two blocks of a cluster have neighbouring tiles of keys and see the same queries: each loads half of them, for both. They exchange ds, and
  each has half of the columns of dq, for the keys of both: half as much is read and half as much is added.
- dq is added from registers, 16 bytes at a time, to the workspace of `flash_wgmma`, whose launches before and after, and order of additions
  these are. Two threads of the producers wait for the turn, and say that it is over.
"""
from ....device.convert import element
from ....device.groups import access_words
from ....device.index import ceil_div
from ....dispatch import Algorithm, Note
from ....engine.constants import constants
from ....engine.cost import Cost, memory_seconds, overlap
from ....host.launch import Argument, Launch
from ..._flash import tiles_of
from ..._modifiers import is_adjusted
from ..._parameters import Strides, kind_of, softmax_scale
from ..._wgmma import COLUMNS, addressable, array_map, read_seconds, refusal
from .._delta import RowStats
from .._dsink import dsink_launches, dsink_seconds
from ..flash_wgmma import goes_down, order_argument
from ..flash_wgmma.dq import dq_launch
from ..flash_wgmma.parameters import Heads, Sizes
from ..flash_wgmma.preprocess import preprocess_launch
from ..flash_wgmma.workspace import countable, workspace_of
from .config import KEYS, PIECE, THREADS, Config, Shape
from .kernel import kernel

COST, ROLES, WGMMA = constants("attention/wgmma_bwd"), constants("attention/wgmma_roles"), constants("attention/wgmma")


def supports(problem):
    """16-bit rows that TMA can read, and scores that are scaled products."""
    p = problem
    reason = refusal(p) or countable(p)
    if reason:
        return reason
    if is_adjusted(p) or p.dropout or p.documents:
        return "a bias, ALiBi, a cap, a score_mod, dropout, or an extreme scale; expected none"
    if p.seq_len_q is not None or p.seq_len_kv is not None:
        return "lengths of sequences; expected none"
    if not addressable(p, p.do):
        return f"do has strides {p.do.strides} and alignment {p.do.alignment}: TMA takes rows that lie 16 bytes, or multiples, apart"
    if not p.rows:
        return "no rows"
    return None


def words_of(problem, t):
    """Words of 32 bits by which eight neighbours of a result are stored, 0 where they are by elements."""
    steps = problem.strides(t)
    return access_words(t, 8, steps[:-1]) if steps[-1] == 1 and t.shape[-1] % 8 == 0 else 0


def blocks_of(problem):
    """How many blocks share queries. One has enough keys of heads of up to three boxes, and waits for nobody."""
    return 2 if ceil_div(problem.d, COLUMNS) > 3 else 1


def configs(problem, device):
    """The most keys whose fragments fit registers, and whose tiles fit shared memory."""
    p, words, blocks = problem, tuple(words_of(problem, t) for t in (problem.dk, problem.dv_out)), blocks_of(problem)
    for keys in KEYS:
        try:
            return [Config(kind_of(p), p.d, p.dv, Shape(blocks * keys, blocks), True, p.left >= 0, p.right >= 0, words)]
        except ValueError:
            continue
    return []


def workspace(problem, device, config):
    """That of `flash_wgmma` with tiles of 32 queries."""
    return workspace_of(problem, PIECE, config.ordered).bytes


def estimate(problem, device, config):
    """Steps of a block, by what its products and copies take of shared memory's rate."""
    p, s, (d, e) = problem, config.shape, config.boxes
    spread = (s.height + s.width) / 2 * (p.left >= 0 or p.right >= 0)
    queries = min(p.pairs / max(p.batch * p.keys, 1) + spread, p.rows)  # of a key
    blocks = p.batch * p.kv_heads * ceil_div(p.keys, s.height) * s.blocks
    steps = p.group * (queries / s.width + 0.5 * bool(spread))
    rows = 8 * (d + e) * max(s.own / 2, 16 + s.own / 4)  # s, dp, dv, dk: 64 queries, or columns, by the block's keys, 16 of k at a time
    of_dq = 32 * s.height / 16 * d / s.blocks + 2 * s.width * 256 * d / s.blocks / 128
    cycles = rows + of_dq + (6 * config.box + sum(config.passing)) / 128 + COST.step
    cycle = max(blocks * steps / device.sms, steps) / (WGMMA.clock * device.clock_hz)
    work = overlap(Cost(math=cycle * cycles * (ROLES.pair if s.blocks > 1 else 1)), memory=memory_seconds(p.bytes, device))
    around = p.batch * p.heads * p.rows * (4 * p.dv + COST.dq_ordered * p.d)
    return Cost(launch=4 * WGMMA.launch, memory=read_seconds(around, device)) + dsink_seconds(p, device) + work


def build(problem, device, config):
    """lse and delta, the kernel, dq, and the sink's gradient."""
    p, s, space, pointer = problem, config.shape, workspace_of(problem, PIECE, config.ordered), element(problem.dtype).pointer
    heights = ("k", s.own), ("v", s.own), ("q", s.width), ("do", s.width)
    maps = [array_map(p, name, getattr(p, name), height) for name, height in heights]
    stores = [x for name, t in (("dk", p.dk), ("dv", p.dv_out)) for x in (Argument(pointer, name), Argument(Strides, p.strides(t)))]
    tiles = tiles_of(p, p.keys, s.height)
    arguments = (*maps, *stores, Argument("float32*", "workspace", 0), Argument("float32*", "workspace", space.dq),
                 Argument("uint32*", "workspace", space.counts), Argument("uint32*", "workspace", space.ticket),
                 Argument(Sizes, (p.rows, p.keys, space.rows, space.tiles, p.batch)), order_argument(p, config, device),
                 Argument(Heads, (p.group, p.heads)), Argument("int32x2", p.bounds), Argument("float32", softmax_scale(p)))
    main = Launch(kernel(config, goes_down(p, config, device)), (p.images * p.kv_heads * tiles * s.blocks, 1, 1), (THREADS, 1, 1),
                  arguments, shared=config.shared, cluster=(s.blocks, 1, 1))
    return (preprocess_launch(p, space), main, dq_launch(p, space),
            *dsink_launches(p, RowStats(0, space.rows, space.width, space.bytes)))


ALGORITHM = Algorithm(op="sdpa_bwd", name="flash_wgmma_roles", supports=supports, workspace=workspace, configs=configs, estimate=estimate,
                      build=build, notes=Note.TENSOR_CORE, arch="sm_90a")

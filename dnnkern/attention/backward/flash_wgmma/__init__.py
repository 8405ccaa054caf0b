"""The gradients on Hopper's tensor cores, each product once: a block has a tile of keys, which tiles of queries pass.

    k, v stay | q, do pass --> s = k q', dp = v do' --> p, ds in registers --> dv += p do, dk += ds q
                                                        ds in shared memory --> dq += ds' k

- k and v stay in shared memory; a thread loads q, do, and their rows' lse and delta into a ring through TMA, and warpgroups of 64 keys
  multiply (wgmma). The probabilities are computed while dp is multiplied, and the part of dq leaves while dk is.
- ds is a left operand in registers for dk. For dq its sum goes over the keys of all warpgroups, so it passes through shared memory, in two
  buffers that alternate; each warpgroup then has some columns, or queries, of what this tile of keys adds to dq.
- Accumulators of wide heads leave a thread registers for tiles of 32 queries only, fewer than a product has. There the part of dq is
  computed as its transpose, k' ds, columns by queries, and warpgroups have boxes of 64 columns. Of the widest heads a launch before
  computes dv alone, and one dk and dq: six products.
- dq is accumulated in the workspace, in float32, by bulk copies that add, which threads of the producer's warpgroup issue: 16 bytes per
  thread in the order of registers; two of them alternate. A last launch rounds it (`dq`).
- `flash_wgmma` adds in one order, from the last keys to the first: what is added to a tile of queries waits until the tiles of keys after
  have been added. Blocks take tiles of keys in that order from a counter, so that each waits only for blocks that have begun. With a causal
  mask a block begins with the queries beside its keys, which those before are the last to reach: none has to wait. Without one they begin
  with the same queries, follow a step after one another, and later ones find that order. Where the first keys' blocks, the longest, would
  end last, all of this is the other way round, `down`, and the longest of all heads come first. `flash_wgmma_atomic` adds as it comes.
- A 16-bit bias of every query and key comes by tiles with those of q, to where ds will be: each thread has read its part of the one
  before it writes the other. Images that share a bias are worked on together.
- Packed sequences have tiles of keys and of queries of their own, counted like any others: more than there may be, and a block without one
  leaves. TMA reads past the end of a sequence, into the next one: that is set to zero in shared memory, and its lse is infinite.
- The bias's gradient is computed by launches of its own (`_dbias`), which take lse and delta from the workspace.

`kernel` has the steps of the consumers, `producer` the other warpgroup, `tiles` the order; `preprocess` and `dq` are the launches around.
"""
from ....device.convert import element
from ....device.index import ceil_div
from ....dispatch import Algorithm, Note
from ....engine.constants import constants
from ....engine.cost import Cost, memory_seconds, overlap
from ....host.launch import Argument, Launch
from ..._flash import tiles_of
from ..._fragments import stored_in_pairs
from ..._mask_tiles import mask_map, mask_tiles
from ..._modifiers import is_adjusted
from ..._parameters import Strides, added_arguments, kind_of, number_arguments, sequence_arguments
from ..._score_mod import document_bytes, document_launches
from ..._wgmma import Shape, addressable, array_map, bias_map, is_by_head, is_by_tiles, of_a_sequence, order_of, read_seconds, refusal
from .._dbias import dbias_launches, dbias_seconds, sums_bytes
from .._delta import RowStats
from .._dsink import dsink_launches, dsink_seconds
from .config import WIDE, Config
from .dq import dq_launch
from .kernel import kernel
from .parameters import Heads, Sizes
from .preprocess import preprocess_launch
from .workspace import countable, workspace_of

COST, ROLES, WGMMA = constants("attention/wgmma_bwd"), constants("attention/wgmma_roles"), constants("attention/wgmma")

CHOICES = (("", (Shape(2, 128, 0), Shape(2, 64, 0), Shape(1, 64, 0))), ("", (WIDE,)), ("dk", (WIDE,)), ("dk", (Shape(1, 32, 0),)))
"""What the kernel sums up and its shapes; the first that fit are the configurations."""


def supports(problem):
    """16-bit rows that TMA can read."""
    p = problem
    reason = refusal(p, packed=True, masked=True) or countable(p)
    if reason:
        return reason
    if not addressable(p, p.do):
        return f"do has strides {p.do.strides} and alignment {p.do.alignment}: TMA takes rows that lie 16 bytes, or multiples, apart"
    if not p.rows:
        return "no rows"
    return None


def is_staged(problem):
    """Whether tiles of the bias come through TMA: to where ds of 16 bits will lie, and to be added before any cap."""
    p = problem
    return p.dtype != "float32" and is_by_tiles(p, p.bias) and p.bias.itemsize == 2 and not p.softcap


def configs(problem, device, ordered=True, choices=CHOICES):
    """Shapes whose fragments fit registers and whose rings fit shared memory; those of wide heads where there are no others."""
    p, found, staged = problem, [], is_staged(problem)
    pairs, adjusted = tuple(stored_in_pairs(p, t) for t in (p.dk, p.dv_out)), is_adjusted(p, bias=False) if staged else is_adjusted(p)
    for only, shapes in choices:
        for shape in shapes:
            try:
                found.append(Config(kind_of(p), p.d, p.dv, shape, ordered, p.left >= 0, p.right >= 0, adjusted, pairs, staged,
                                    is_by_head(p), only, mask_tiles(p)))
            except ValueError:
                continue
        if found:
            break
    return found


def workspace(problem, device, config):
    """That of `workspace`, what the bias's gradient needs, and the bits of a mask by documents."""
    width = config.shape.width
    return documents_at(problem, device, workspace_of(problem, width, config.ordered)) + document_bytes(problem)


def documents_at(problem, device, space):
    """Where those bits begin."""
    return space.bytes + sums_bytes(problem, space.width, device)


def estimate(problem, device, config):
    """Steps of the kernel: products, and the instructions for ds, which they overlap in part; before and after it, what it reads.
    Packed sequences count as equally long."""
    p, s = problem, config.shape
    rows, keys = of_a_sequence(p, p.rows), of_a_sequence(p, p.keys)
    spread = (s.height + s.width) / 2 * (p.left >= 0 or p.right >= 0)
    queries = min(p.pairs / max(p.batch * keys, 1) + spread, rows)  # of a key
    blocks = p.batch * p.kv_heads * ceil_div(keys, s.height)
    steps = p.group * (queries / s.width + 0.5 * bool(spread))
    times = 2 if config.only else 1  # that scores are computed
    products = 2 * s.height * s.width * ((2 + times) * 16 * config.steps[0] + 2 * 16 * config.steps[1]) / 4096 * len(config.products)
    of_bias = WGMMA.staged if config.staged else COST.bias
    issues = (COST.score + COST.split * config.split + of_bias * bool(config.kind.bias) + COST.alibi * p.alibi
              + COST.softcap * (p.softcap > 0) + COST.dropout * (p.dropout > 0) + WGMMA.mask_tile * (p.mask is not None)
              + p.score_instructions)
    cycle = max(blocks * steps / device.sms, steps) / (WGMMA.clock * device.clock_hz)  # of each step
    if config.transposed and not config.split:
        cycle *= ROLES.narrow
    work = Cost(math=cycle * products, waits=cycle * times * COST.step, issue=cycle * issues * s.height * s.width / 128)
    work = overlap(work, waits=cycle * COST.order * config.ordered, memory=memory_seconds(p.bytes, device))
    ends = Cost(waves=COST.block * times * max(1.0, blocks / device.sms))
    around = p.batch * p.heads * rows * (4 * p.dv + (COST.dq_ordered if config.ordered else COST.dq) * p.d)
    cost = (Cost(launch=4 * WGMMA.launch, memory=read_seconds(around, device)) + dbias_seconds(p, s.width, device)
            + dsink_seconds(p, device) + work + ends)
    return cost.slowed(slower=WGMMA.masked) if config.mask else cost


def has_long_blocks(problem, config, device):
    """Whether a block of the first keys, which with a causal mask the most queries attend to, is long beside the work of a multiprocessor:
    then it must not begin last."""
    p, s = problem, config.shape
    steps = p.group * p.kv_heads * p.pairs / (s.width * s.height)
    longest = p.group * ceil_div(min(of_a_sequence(p, p.rows), p.bounds[0] + s.height), s.width)
    return p.right >= 0 and longest > 0.5 * steps / device.sms


def goes_down(problem, config, device):
    """Whether the first keys come first. Blocks wait for each other then until they are a step apart, if additions have an order."""
    return not config.ordered or has_long_blocks(problem, config, device)


def order_argument(problem, config, device):
    """Kernel parameter `order` of tiles of keys: those of as many heads as fill the device form a section, or those of all heads where the
    longest blocks of all must come first; and in it tiles with the same keys of all heads follow one another."""
    p, tiles, lines = problem, tiles_of(problem, problem.keys, config.shape.height), problem.images * problem.kv_heads
    section = lines if has_long_blocks(p, config, device) else min(lines, ceil_div(device.sms, tiles))
    return order_of(lines, max(1, section), tiles, p.images if config.by_head else p.kv_heads, 1)


def build(problem, device, config):
    """lse and delta, the kernel, or one for dv and one for the others, dq, and the bias's gradient."""
    p, space, mains = problem, workspace_of(problem, config.shape.width, config.ordered), []
    for ticket, c in enumerate((config.of_dv, config) if config.only else (config,)):
        maps = [array_map(p, name, getattr(p, name), height) for name, height in tiles_by_name(c.shape)]
        mains.append(main_launch(p, device, c, space, maps, ticket))
    return around(p, device, space, mains)


def tiles_by_name(shape):
    """(name, rows of a tile) of what the kernel reads through TMA, in its order."""
    return ("k", shape.height), ("v", shape.height), ("q", shape.width), ("do", shape.width)


def around(problem, device, space, mains):
    """The launches of the kernels, those before and those after them."""
    launches = (*document_launches(problem, documents_at(problem, device, space)), preprocess_launch(problem, space), *mains,
                dq_launch(problem, space))
    stats = RowStats(0, space.rows, space.width, space.bytes)
    return launches + dbias_launches(problem, device, stats) + dsink_launches(problem, stats)


def main_launch(problem, device, config, space, maps, ticket=0):
    """The launch of a kernel, which counts tiles of keys by the ticket of this number."""
    p, s, pointer = problem, config.shape, element(problem.dtype).pointer

    def in_space(kind, offset):
        return Argument(kind, "workspace", offset)
    stores = [x for name, t in (("dk", p.dk), ("dv", p.dv_out)) for x in (Argument(pointer, name), Argument(Strides, p.strides(t)))]
    of_bias, rows = maps[0], min(s.width, 64)
    if config.by_tiles:
        of_bias = bias_map("bias", p.bias, rows) if config.staged else mask_map(p, rows, 64)
    arguments = (*maps, of_bias, *stores, in_space("float32*", 0), in_space("float32*", space.dq), in_space("uint32*", space.counts),
                 in_space("uint32*", space.ticket + 4 * ticket), Argument(Sizes, (p.rows, p.keys, space.rows, space.tiles, p.batch)),
                 order_argument(p, config, device), Argument(Heads, (p.group, p.heads)), *sequence_arguments(p),
                 *added_arguments(p, documents_at(p, device, space)), *number_arguments(p))
    blocks = p.images * p.kv_heads * tiles_of(p, p.keys, s.height)
    return Launch(kernel(config, goes_down(p, config, device)), (blocks, 1, 1), (s.threads, 1, 1), arguments, shared=config.shared)


ALGORITHM = Algorithm(op="sdpa_bwd", name="flash_wgmma", supports=supports, workspace=workspace, configs=configs, estimate=estimate,
                      build=build, notes=Note.TENSOR_CORE, arch="sm_90a", programs=True)

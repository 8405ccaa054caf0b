"""Flash attention on Hopper's tensor cores: a warp feeds tiles of q, k and v through TMA, warpgroups multiply, scores stay in registers.

    producer (one thread)   q tile; k and v tile by tile, from the last keys to the first, into two rings
                               | TMA, full and empty barriers (`device.pipeline`)
    consumers               each warpgroup has 64 queries:
                               s = q k' (wgmma) -> mask -> online softmax in registers -> 16 bits, wgmma's left operand
                               acc += p v (wgmma) -> after the last tile divided by row_sum -> shared memory -> TMA -> o

- p v of a tile of keys runs while the next tile's exponentials are computed: a step of a warpgroup issues both products, waits for the
  scores, takes their exponentials, and only then waits for p v. Two or three warpgroups fill each other's gaps.
- Accumulators are rescaled only where a score exceeds the reference maximum by 2**8 (`_fragments`), hardly ever.
- Tiles of keys that no query of a tile attends to are skipped, and masks are applied only in tiles that are partly masked.
- Persistent blocks. Where tiles have different numbers of keys the longest come first, from a dynamic tile scheduler: a counter, which a
  first launch sets to zero. Which block has a tile makes no difference to its result.
- A bias with an element per query and key comes through TMA with the tiles of k; heads of sequences that share one are worked on together.
  So do the bytes of a boolean mask, or one line of them where all queries have the same.
- Of packed sequences TMA reads past the end of a sequence, into the next one: masks hide its keys, its values are cleared in shared memory,
  and threads store the results, since they know where its rows end.

It wins from a few hundred keys on; `flash_mma` has the same idea for other devices, other strides, and masks beside a bias. Masked keys
take no part, but values of a tile that are not finite reach all its rows: 0 times them is NaN. Sources: FlashAttention-3 (Shah et al.,
2024) for the overlap, FlashAttention-4 for the lazy rescaling.
"""
from ....dispatch import Algorithm, Note
from ....host.launch import Argument, Launch
from ..._fragments import stored_in_pairs
from ..._mask_tiles import mask_map, mask_tiles
from ..._modifiers import is_adjusted
from ..._parameters import RowStrides, Strides, added_arguments, kind_of, number_arguments, sequence_arguments
from ..._score_mod import document_bytes, document_launches
from ..._scores import LOG2E
from ..._wgmma import (COST, Config, Shape, array_map, bias_map, is_by_head, is_by_tiles, is_uneven, order_argument, refusal, stored_by_tma,
                       tile_count, tile_seconds)
from .._parts import Sizes
from .kernel import counter_kernel, kernel

SHAPES = (Shape(3, 80, 64), Shape(3, 128, 48), Shape(2, 128, 48, held=True), Shape(2, 128, 48), Shape(2, 80, 48), Shape(2, 64, 32),
          Shape(1, 64, 32))

DOCUMENTS = 16
"""Where their bits begin in the workspace, after the counter."""


def supports(problem):
    """16-bit elements, rows that TMA can read."""
    return refusal(problem, packed=True, masked=True)


def configs(problem, device):
    """Shapes whose fragments fit registers and whose rings fit shared memory."""
    p, found, by_tma, staged = problem, [], stored_by_tma(problem), is_by_tiles(problem, problem.bias)
    pairs, adjusted = stored_in_pairs(p, p.o) and not by_tma, is_adjusted(p, bias=False) if staged else is_adjusted(p)
    for shape in SHAPES:
        drawn = is_uneven(p) and tile_count(p, shape.height) > device.sms
        try:
            found.append(Config(kind_of(p), p.d, p.dv, shape, p.left >= 0, p.right >= 0, adjusted, p.lse is not None, drawn, by_tma,
                                pairs, staged, is_by_head(p), mask_tiles(p)))
        except ValueError:
            continue
    return found


def workspace(problem, device, config):
    """The counter of a dynamic tile scheduler, and the bits of a mask by documents."""
    return DOCUMENTS + document_bytes(problem) if problem.documents else 4 * config.drawn


def estimate(problem, device, config):
    """Steps of the busiest block."""
    cost = tile_seconds(problem, config, device, staged=config.staged)
    return cost.slowed(slower=COST.masked) if config.mask else cost


def build(problem, device, config):
    """Launches that find the blocks of documents, and set the counter, where there are some, and as many blocks as the device holds, or as
    there are tiles."""
    p, s = problem, config.shape
    tiles = tile_count(p, s.height)
    q, counter = array_map(p, "q", p.q, s.height), Argument("uint32*", "workspace" if config.drawn else "q")
    bias, bias_strides, _, mask_strides, *of_sink = added_arguments(p, DOCUMENTS)
    # either a bias has tiles, or a mask
    of_bias = bias_map("bias", p.bias, s.height) if config.staged else mask_map(p, s.height, s.width) if config.mask else q
    bounds, scale, *others = number_arguments(p)
    if not config.adjusted and not config.staged:
        scale = Argument("float32", p.scale * LOG2E)
    arguments = (q, array_map(p, "k", p.k, s.width), array_map(p, "v", p.v, s.width),
                 array_map(p, "o", p.o, 64) if config.by_tma else q, Argument("uint16*", "o"), Argument(Strides, p.strides(p.o)),
                 Argument("float32*", "lse" if p.lse else "o"), Argument(RowStrides, p.lse_strides), counter, *of_sink,
                 Argument("int32", tiles), order_argument(p, s.height, config.by_head),
                 Argument(Sizes, (p.batch, p.heads, p.rows, p.keys)), *sequence_arguments(p), bias, of_bias,
                 mask_strides if config.mask else bias_strides, bounds, scale, *others)
    main = Launch(kernel(config), (min(tiles, device.sms), 1, 1), (s.threads, 1, 1), arguments, shared=config.shared, dependent=True)
    if not config.drawn:
        return *document_launches(p, DOCUMENTS), main
    return *document_launches(p, DOCUMENTS), Launch(counter_kernel(), (1, 1, 1), (32, 1, 1), (counter,), dependent=True), main


ALGORITHM = Algorithm(op="sdpa_fwd", name="flash_wgmma", supports=supports, workspace=workspace, configs=configs, estimate=estimate,
                      build=build, notes=Note.TENSOR_CORE, arch="sm_90a", programs=True)

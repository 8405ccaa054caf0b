"""`split_kv` on Hopper's tensor cores, for many rows and wide heads: 64 rows that share a head of the cache are a block's tile of queries.

    producer (one lane)      keys, box by box of 64 columns, and a step later their values, by pieces of 32 keys, through TMA into two rings
    first warpgroup, lead    s = q k' (wgmma) -> softmax in registers -> 16 bits, in the order in which wgmma takes them from there
                             -> acc of the first columns += p v (wgmma)
    second, follow, of       acc of the other columns += p v, with p through shared memory
    wide values

- A step takes 64 keys. The products of its values run while the scores of the next one are computed and become probabilities.
- Boxes go back to the producer one by one, as soon as they are multiplied: queries of 576 elements leave memory for little more than one
  tile of keys and of values, and of these nearly all is always in flight.
- Accumulators of 512 columns are two warpgroups' registers. The first one alone has scores; it publishes a tile of probabilities, and by
  what rows have to be rescaled.
- Of values of up to 256 columns one warpgroup has all, and a multiprocessor has two blocks where they fit.
- The reference maximum may lag behind row_max by 2**8 (`_fragments`): accumulators are hardly ever rescaled.
- Keys are cut into ranges, whose parts a second launch merges, where one each would leave multiprocessors without work.

Values of keys that a sequence does not have, or that are before every row's window, are set to zero in shared memory: what they are must
not matter, and 0 times NaN is NaN. Probabilities are rounded to 16 bits, as those of `sdpa_fwd` on tensor cores are. Sources: FlashMLA
(DeepSeek, 2025) for two warpgroups that share the columns of the accumulators, FlashAttention-4's lazy rescaling.
"""
from dataclasses import replace

from ....device.convert import element
from ....device.index import LIMIT, Divisor, ceil_div, divisor
from ....dispatch import Algorithm, Note
from ....engine.constants import constants
from ....engine.cost import Cost, overlap
from ....host.launch import Argument, Launch
from ..._parameters import Strides
from ..._scores import LOG2E
from ..._wgmma import COLUMNS, addressable, array_map
from .._parameters import cache_arguments, lines_of, lse_argument, page_argument, shape_argument, sink_arguments, tiles_of
from .._ranges import merge_launch, merge_seconds, parts_bytes, refusal
from .config import CHUNK, HEIGHT, PIECE, WIDTH, configs, words_of
from .kernel import kernel

COST = constants("attention/decode_wgmma")

WIDEST_KEY, WIDEST_VALUE, LEAST_PAGE = 576, 512, 16


def supports(problem):
    """Halves that TMA can read, in pages of whole boxes."""
    p = problem
    if reason := refusal(p, bias=False):
        return reason
    if p.dtype not in ("float16", "bfloat16"):
        return f"{p.dtype}; expected float16 or bfloat16"
    if not p.capacity or p.capacity >= LIMIT // 2:
        return f"{p.capacity} keys of a sequence; expected 1 to 2**30 - 1"
    if p.d > WIDEST_KEY or p.dv > WIDEST_VALUE or p.d % CHUNK or p.dv % CHUNK or not p.dv:
        return f"heads of {p.d} and {p.dv} elements; expected multiples of {CHUNK}, {WIDEST_KEY} and {WIDEST_VALUE} at most"
    for name, t in (("k_cache", p.k_cache), ("v_cache", p.v_cache)):
        if not addressable(p, t):
            return f"{name} has strides {t.strides} and alignment {t.alignment}: TMA takes rows that lie 16 bytes, or multiples, apart"
    if p.q.strides[-1] != 1 or not words_of(p):
        return f"{p.q}; expected rows of whole words of four bytes"
    if p.page_table is not None and (p.page % LEAST_PAGE or p.page % WIDTH and WIDTH % p.page):
        return f"pages of {p.page} keys; expected {LEAST_PAGE}, {2 * LEAST_PAGE} or a multiple of {WIDTH}"
    elements = p.batch * p.kv_heads * (p.group * p.rows + HEIGHT) * 2 * max(p.d, p.dv, 1024)
    return None if elements < LIMIT else f"{p.batch} sequences of {p.heads} heads; expected fewer than 2**31 elements of tiles"


def workspace(problem, device, config):
    """What ranges leave, where there are several."""
    return parts_bytes(problem, config.parts, config.splits)


def estimate(problem, device, config):
    """Steps of the busiest multiprocessor: their products, or their bytes, from memory for one tile of rows and from the L2 for others."""
    p, c = problem, config
    blocks, slots = lines_of(p, HEIGHT) * c.splits, c.blocks * device.sms
    waves, busy = ceil_div(blocks, slots), min(blocks, slots)
    steps = ceil_div(ceil_div(p.seen, WIDTH), c.splits)
    products = 2 * HEIGHT * WIDTH * (COLUMNS * c.boxes[0] + p.dv) / 4096 * ceil_div(busy, device.sms)
    moved, each = WIDTH * (p.d + p.dv) * p.q.itemsize * busy, waves * steps
    work = overlap(math=each * (products + COST.step) / (COST.clock * device.clock_hz),
                   memory=each * (moved / tiles_of(p, HEIGHT) / min(COST.rate * device.bandwidth, COST.most)),
                   l2=each * (moved / (COST.l2 * device.bandwidth)))
    return Cost(launch=COST.launch, waves=waves * COST.block, reduction=merge_seconds(p, c.parts, c.splits, device)) + work


def build(problem, device, config):
    """One launch, or two."""
    p, pointer, splits = problem, element(problem.dtype).pointer, config.splits
    rows = config.page or WIDTH
    *strides, bounds, scale, softcap = cache_arguments(p)
    if not config.adjusted:
        scale = Argument("float32", p.scale * LOG2E)
    arguments = (Argument(pointer, "q"), array_map(p, "k_cache", p.k_cache, rows), array_map(p, "v_cache", p.v_cache, min(rows, PIECE)),
                 Argument(pointer, "o"), lse_argument(p), Argument(f"{p.compute}*", "workspace"), Argument("int32*", "seq_len_kv"),
                 Argument("int32*", "page_table"), sink_arguments(p)[0], shape_argument(p, HEIGHT), page_argument(p),
                 Argument(Divisor, divisor(splits)), *(Argument(Strides, p.strides(t)) for t in (p.q, p.o)), *strides, bounds, scale,
                 softcap)
    launch = Launch(kernel(replace(config, splits=min(splits, 2))), (lines_of(p, HEIGHT) * splits, 1, 1), (config.threads, 1, 1), arguments,
                    shared=config.shared, dependent=True)
    return (launch, merge_launch(p, config.parts, splits, True)) if splits > 1 else (launch,)


ALGORITHM = Algorithm(op="sdpa_decode", name="split_kv_wgmma", supports=supports, workspace=workspace, configs=configs, estimate=estimate,
                      build=build, notes=Note.TENSOR_CORE, arch="sm_90a")

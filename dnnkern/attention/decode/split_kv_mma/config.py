"""What the kernel of `sdpa_decode_split_kv_mma` is compiled for, how blocks share the keys, and how long that takes."""
from dataclasses import dataclass, replace

from ....device.groups import access_words
from ....device.index import ceil_div
from ....engine.constants import constants
from ....engine.cost import Cost
from ..._parameters import Kind
from .._parameters import decode_kind, lines_of, tiles_of
from .._ranges import Parts, merge_seconds

COST = constants("attention/decode_mma")

LANES, KEYS, EIGHT = 32, 16, 8
CHUNK = 8  # elements in 16 bytes
RAW_WORDS = 64  # of a thread's keys and values under way
ROOMY = 10  # twelfths of a wave that leave places in which blocks that merge can begin
SHARES = (7, ROOMY, 12, 24, 48)  # of a wave, in twelfths
BLOCKS = {8: (2, 4, 8), 12: (3, 4, 6, 12)}  # warps of a block, by those of a multiprocessor


@dataclass(frozen=True)
class Config:
    """What kernels are compiled for: whether all rows see the same keys, and only the last ones; 32-bit words of an access to q, k and v,
    sizes of the heads, eights of rows of a tile, warps of a multiprocessor and of a block. Into how many ranges the keys are cut,
    whether lse is an output, and whether the blocks that have the ranges are a cluster, which merges what they leave."""
    kind: Kind
    paged: bool
    alike: bool
    windowed: bool
    words: tuple
    d: int
    e: int
    eights: int
    resident: int
    warps: int
    splits: int
    lse: bool
    clustered: bool = False

    @property
    def threads(self):
        return LANES * self.warps

    @property
    def blocks(self):
        """Of a multiprocessor."""
        return self.resident // self.warps

    @property
    def k_chunks(self):
        """A thread's 16 bytes of a row of K, which four threads share."""
        return ceil_div(self.d, 4 * CHUNK)

    @property
    def v_chunks(self):
        """Of a row of V, which eight share."""
        return ceil_div(self.e, EIGHT * CHUNK)

    @property
    def raw(self):
        """A thread's words of 16 keys and their values."""
        return 8 * self.k_chunks + 16 * self.v_chunks

    @property
    def overlaps(self):
        """Whether the next keys are loaded while values are weighed, and the next values while keys are multiplied; otherwise a thread has
        registers for either."""
        return self.raw <= RAW_WORDS

    @property
    def tiles(self):
        """Of 16 keys that a warp takes at a time."""
        return 1 << (max(1, RAW_WORDS // self.raw).bit_length() - 1)

    @property
    def rows(self):
        return EIGHT * self.eights

    @property
    def width(self):
        return EIGHT * CHUNK * self.v_chunks

    @property
    def parts(self):
        """What its ranges leave."""
        return Parts(self.kind, self.rows, self.width, self.e, self.lse)

    @property
    def pitch(self):
        """Elements from a row of a warp's sums in shared memory to the next, in other banks."""
        return self.width + 4

    @property
    def meeting(self):
        """Bytes of shared memory in which the warps of a block meet."""
        return 4 * self.warps * self.rows * (self.pitch + 2)

    @property
    def merging(self):
        """Bytes of shared memory before those that the blocks of a cluster write to each other: with the queries."""
        return self.meeting + 16 * LANES * self.eights * self.k_chunks

    @property
    def share(self):
        """Columns of a row that a block of a cluster merges."""
        return 4 * ceil_div(self.width // 4, self.splits)

    @property
    def shared(self):
        """Bytes of shared memory: for a cluster with each block's share of all sums, and its largest scores and sums of exponentials."""
        return self.merging + (4 * self.splits * self.rows * (self.share + 2) if self.clustered else 0)

    def __str__(self):
        together = " in a cluster" if self.clustered else ""
        return f"{self.rows} rows, {self.warps} warps of {self.tiles * KEYS} keys, {self.splits} ranges{together}"


def words_of(problem):
    """32-bit words of an access to q, k and v."""
    return tuple(access_words(t, CHUNK, problem.strides(t)[:-1]) for t in (problem.q, problem.k_cache, problem.v_cache))


def configs(problem, device):
    """One range, and of blocks of more than the fewest warps as many as fill the device in part, wholly, or more than once, as long as each
    warp has some keys. Two ranges of large blocks may be a cluster; small ones, and three blocks or more, leave places that no cluster
    fits."""
    p = problem
    whole = Config(decode_kind(p), p.page_table is not None, p.rows == 1, p.left >= 0, words_of(p), p.d, p.dv, 1, 8, 8, 1,
                   p.lse is not None)
    if p.group * p.rows > EIGHT and whole.overlaps:
        whole = replace(whole, eights=2)
    elif whole.overlaps and not (whole.paged and whole.tiles > 1) and device.capability >= (9, 0):  # 168 registers are enough
        whole = replace(whole, resident=12)
    fewest, *several = BLOCKS[whole.resident]
    found, lines = {replace(whole, warps=warps) for warps in (fewest, 4)}, lines_of(p, whole.rows)
    for warps in several:
        slots, most = whole.resident // warps * device.sms, max(1, min(1024, p.seen // (warps * KEYS)))
        found |= {replace(whole, warps=warps, splits=min(most, splits)) for share in SHARES
                  if (splits := slots * share // (12 * lines))}
        if device.capability >= (9, 0) and 2 * warps >= whole.resident and most > 1:
            found.add(replace(whole, warps=warps, splits=2, clustered=True))
    return sorted(found, key=lambda c: (c.warps, c.splits, c.clustered))


def estimate(problem, device, config):
    """Bytes at the rate at which memory is read, those of the last blocks at what these have under way; each wave of blocks has a beginning
    and an end; and the merge."""
    p = problem
    blocks, slots = lines_of(p, config.rows) * config.splits, config.blocks * device.sms
    each = p.bytes * tiles_of(p, config.rows) / blocks  # tiles of the same keys take as long each, wherever these come from
    (whole, rest), waves = divmod(blocks, slots), ceil_div(blocks, slots)
    most, alone = COST.rate * device.bandwidth, config.threads * 4 * config.raw * config.tiles / COST.latency
    moved = sum(n * each * (most ** -COST.power + (n * alone / turns) ** -COST.power) ** (1 / COST.power)
                for n, turns in ((whole * slots, whole), (rest, 1)) if n)
    empty = -ceil_div(ceil_div(p.seen, config.splits), KEYS) % (config.warps * config.tiles) / (config.warps * config.tiles)
    reduction = 0.0
    if config.splits > 1 and config.clustered:
        reduction = COST.cluster_meeting
    elif config.splits > 1:
        reduction = merge_seconds(p, config.parts, config.splits, device) - (COST.beside if blocks * 12 <= slots * ROOMY else 0)
    return Cost(launch=COST.launch, waves=waves * COST.wave + empty * COST.turn, waits=config.warps * COST.meeting, reduction=reduction,
                memory=moved, tail=moved * COST.skew / waves)

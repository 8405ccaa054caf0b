"""Attention on Hopper's tensor cores: which operands TMA can read, what lies where in shared memory, the order of tiles, their costs."""
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..device import i32
from ..device.index import LIMIT, Divisor, ceil_div, divisor
from ..device.registers import check_register_budget
from ..engine.constants import constants
from ..engine.cost import Cost, overlap
from ..engine.hopper import ROW, SHARED_LIMIT
from ..host.dtypes import ITEMSIZE
from ..host.launch import Argument
from ..host.tensormap import TensorMap
from ._flash import WIDEST, tiles_of
from ._flash import refusal as refusal_of_options
from ._mask_tiles import mask_bytes, mask_tiles
from ._parameters import Kind

COST = constants("attention/wgmma")

COLUMNS = 64        # of a box: rows of 128 bytes, the widest swizzle
ALIGNMENT = 1024    # of boxes: the swizzle's pattern repeats there
BARRIERS = 256      # bytes set apart for barriers and tile numbers
MOST_STAGES = 4
HELD = {"matrix": 12, "row": 6, "column": 6, "index": 2}
"""About how many registers an operand of a score_mod takes by its access: address, strides, values in flight."""
SECTION_BYTES = 32 << 20
"""Of keys and values that heads which are worked on at once may have: they are to stay in the L2."""


@dataclass(frozen=True)
class Shape:
    """A block's tile: `groups` warpgroups of 64 rows, `width` keys at a time, of which `first` are looked at first; whether q is held in
    registers."""
    groups: int
    width: int
    first: int
    held: bool = False

    @property
    def height(self):
        return 64 * self.groups

    @property
    def threads(self):
        """Of the producer's warpgroup and the others."""
        return 128 * (1 + self.groups)

    @property
    def registers(self):
        """(of a producer thread, of a consumer thread)."""
        return {1: (40, 240), 2: (40, 232), 3: (32, 160)}[self.groups]

    def __str__(self):
        return f"{self.height}x{self.width}" + " q held" * self.held


@dataclass(frozen=True)
class Config:
    """The options, sizes of heads, and a shape; whether the window has a left and a right bound, whether scores are more than scaled
    products, a bias that is `staged` left out, whether blocks draw their tiles from a counter, whether o leaves through shared memory and
    TMA, packed by 16 bytes of a thread, or from registers, by pairs or single elements; whether tiles of the bias come through TMA, and
    whether images of a head come one after the other; what tiles of a boolean mask are of (`_mask_tiles`)."""
    kind: Kind
    d: int
    e: int
    shape: Shape
    left: bool
    right: bool
    adjusted: bool
    lse: bool
    drawn: bool
    by_tma: bool
    pairs: bool
    staged: bool = False
    by_head: bool = False
    mask: str = ""

    def __post_init__(self):
        s = self.shape
        check_register_budget(s.threads, ((128, s.registers[0]), (128 * s.groups, s.registers[1])))
        if self.kind.dropout and s.width % 32:
            raise ValueError(f"tile {s}: with dropout expected a multiple of 32 keys")
        if self.staged and s.width % (ROW // ITEMSIZE[self.kind.bias]):
            raise ValueError(f"tile {s}: with a bias of {self.kind.bias} expected a multiple of {ROW // ITEMSIZE[self.kind.bias]} keys")
        if self.mask == "rows" and s.width % 64:
            raise ValueError(f"tile {s}: with a mask of rows and keys expected 64 or 128 keys")
        if self.live > s.registers[1]:
            raise ValueError(f"tile {s} of heads of {self.d} and {self.e}: a thread needs {self.live} registers, it has {s.registers[1]}")
        if self.stages < 2:
            raise ValueError(f"tile {s} of heads of {self.d} and {self.e}: {SHARED_LIMIT} bytes of shared memory hold {self.stages} "
                             "stages; the least is 2")

    @property
    def steps(self):
        """Of 16 elements of a row of q and k."""
        return ceil_div(self.d, 16)

    @property
    def columns(self):
        """Of the sums: e in whole groups of 8."""
        return ceil_div(self.e, 8) * 8

    @property
    def live(self):
        """About how many registers each thread needs."""
        s = self.shape
        return s.width // 2 + self.columns // 2 + s.width // 4 + 4 * self.steps * s.held + 32 + (
            60 if self.kind.bias and not self.staged else 24 * (self.adjusted or self.staged or self.kind.dropout or self.mask != "")
            + sum(HELD.get(access, 1) for access in self.kind.accesses))

    @property
    def boxes(self):
        """Boxes of 64 columns of q and k, and of v and o."""
        return ceil_div(self.d, COLUMNS), ceil_div(self.e, COLUMNS)

    @property
    def stage(self):
        """Bytes of a tile of k and of one of v."""
        return tuple(n * self.shape.width * ROW for n in self.boxes)

    @property
    def bias_stage(self):
        """Bytes of a tile of the bias."""
        return self.shape.height * self.shape.width * ITEMSIZE[self.kind.bias] if self.staged else 0

    @property
    def mask_stage(self):
        """Bytes of a tile of the mask."""
        return mask_bytes(self.mask, self.shape.height, self.shape.width)

    @property
    def tiles(self):
        """Bytes of the tile of q and of that of o."""
        return self.boxes[0] * self.shape.height * ROW, self.boxes[1] * self.shape.height * ROW * self.by_tma

    def _fitting(self, tiles):
        return min((SHARED_LIMIT - ALIGNMENT - BARRIERS - tiles) // (sum(self.stage) + self.bias_stage + self.mask_stage),
                   MOST_STAGES)

    @property
    def apart(self):
        """Whether o has memory of its own, not q's."""
        return self._fitting(sum(self.tiles)) >= 2

    @property
    def stages(self):
        return self._fitting(sum(self.tiles) if self.apart else max(self.tiles))

    @property
    def places(self):
        """Bytes before the tile of o, the ring of k, that of v, and the barriers."""
        of_q, of_o = self.tiles
        k = of_q + of_o if self.apart else max(of_q, of_o)
        v = k + self.stages * self.stage[0]
        return of_q if self.apart else 0, k, v, v + self.stages * (self.stage[1] + self.bias_stage + self.mask_stage)

    @property
    def bias_place(self):
        """Bytes before the ring of the bias."""
        return self.places[2] + self.stages * self.stage[1]

    @property
    def mask_place(self):
        """Bytes before the ring of the mask."""
        return self.bias_place + self.stages * self.bias_stage

    @property
    def shared(self):
        """Dynamic shared memory, bytes."""
        return self.places[3] + BARRIERS + ALIGNMENT

    def __str__(self):
        return str(self.shape) + " drawn" * self.drawn


def addressable(problem, t):
    """Whether TMA can read rows of q, k or v: 16 bytes, or a multiple, from one to the next along every dimension."""
    *steps, step = problem.strides(t)
    *sizes, size = problem.sizes(t)
    return (t.alignment % 16 == 0 and (step == 1 or size == 1)
            and all(n == 1 or s > 0 and s * t.itemsize % 16 == 0 and s * t.itemsize < 2 ** 40 for s, n in zip(steps, sizes)))


def is_by_tiles(problem, t):
    """Whether TMA can read tiles of a bias, or None: there is one for each row and key, those of a row side by side."""
    p = problem
    if t is None or t.shape[-2:] != (p.rows, p.keys) or t.alignment % 16:
        return False
    *steps, step = t.strides
    return (step == 1 or p.keys == 1) and all(n == 1 or s > 0 and s * t.itemsize % 16 == 0 and s * t.itemsize < 2 ** 40
                                              for s, n in zip(steps, t.shape))


def bias_map(name, t, height):
    """Kernel parameter: the tensor map of a bias, or its gradient, that moves by tiles, of `height` rows by 128 bytes."""
    missing = 4 - t.ndim
    strides = (16,) * missing + tuple(s if n > 1 else 16 for s, n in zip(t.strides[:-1], t.shape))
    box = 1, 1, height, ROW // t.itemsize
    return Argument("tensormap", name, spec=TensorMap(t.dtype, (1,) * missing + t.shape, (*strides, 1), box, 128, l2_promotion=256))


def array_map(problem, name, t, height):
    """Kernel parameter: the tensor map of q, k, v or o, of `height` rows by 128 bytes."""
    sizes, strides = problem.sizes(t), problem.strides(t)
    strides = tuple(s if n > 1 else 16 for s, n in zip(strides[:3], sizes[:3]))
    return Argument("tensormap", name, spec=TensorMap(t.dtype, sizes, (*strides, 1), (1, 1, height, ROW // t.itemsize), 128,
                                                      l2_promotion=256))


def refusal(problem, dtypes=("float16", "bfloat16"), by_tma=("q", "k", "v"), packed=False, masked=False):
    """Why this way of attention, of which TMA reads some operands, and which may know packed sequences, and masks, cannot solve a problem,
    or None."""
    p = problem
    if p.dtype not in dtypes:
        return f"dtype {p.dtype}; expected {' or '.join(dtypes)}"
    if p.packed and not packed:
        return "packed sequences: a box of TMA reaches into the next one"
    if reason := refusal_of_options(p):
        return reason
    if p.ragged or p.paged != (False, False):
        return f"{'ragged sequences' if p.ragged else 'keys in pages'}: TMA takes a stride of batches"
    if p.mask is not None and not (masked and p.bias is None and mask_tiles(p)):
        return f"mask {p.mask}; expected none{', or one without a bias, whose rows TMA can read, 16 bytes, or multiples, apart' * masked}"
    if max(p.d, p.dv) > WIDEST or not p.dv:
        return f"heads of {p.d} and {p.dv} elements; expected 1 to {WIDEST}"
    if not p.keys:
        return "no keys"
    for name in by_tma:
        if not addressable(p, t := getattr(p, name)):
            return f"{name} has strides {t.strides} and alignment {t.alignment}: TMA takes rows that lie 16 bytes, or multiples, apart"
    tiles = tile_count(p, 64)
    return None if tiles < LIMIT else f"{tiles} tiles of 64 rows; expected fewer than 2**31"


def stored_by_tma(problem):
    """Whether TMA can write o: it writes 16 bytes at a time, those past the end of a row too."""
    return addressable(problem, problem.o) and problem.dv % 8 == 0


# ---- the order of tiles

def is_uneven(problem):
    """Whether some tiles of rows see fewer keys than others."""
    p = problem
    return (p.left >= 0 or p.right >= 0 or p.packed or p.seq_len_q is not None or p.seq_len_kv is not None
            or p.documents is not None)


def is_by_head(problem):
    """Whether images of a head come one after the other: they read the same bias, which is read from memory once then."""
    t = problem.bias
    return t is not None and t.ndim > 2 and t.shape[-3] > 1 and (t.ndim == 3 or t.shape[0] == 1)


class Order(NamedTuple):
    """The order of tiles (`device.scheduler.make_longest_first`), as divisors but for `last` and `tiles`.

    Heads of all images form sections, of `heads` each, of `rest` in section number `last`; `per_section` tiles. A head has `tiles`, an
    image `inner` heads (with `by_head`: a head is in `inner` images), and `group` heads share one of k and v.
    """
    per_section: Divisor
    heads: Divisor
    rest: Divisor
    last: i32
    inner: Divisor
    group: Divisor
    tiles: i32


def order_of(lines, heads, tiles, inner, group):
    """Kernel parameter: the order of the tiles of so many heads of all images, in sections of `heads`."""
    sections = max(1, ceil_div(lines, heads))
    rest = max(1, lines - (sections - 1) * heads)
    order = Order(divisor(heads * tiles), divisor(heads), divisor(rest), sections - 1, divisor(inner), divisor(group), tiles)
    return Argument(Order, order)


def tile_count(problem, height):
    """Tiles of all heads; of packed sequences those that any lengths may need."""
    return problem.images * problem.heads * tiles_of(problem, problem.rows, height)


def of_a_sequence(problem, count):
    """Rows or keys of a sequence; of packed ones, which may have any lengths, as if they were equally long."""
    return ceil_div(count, max(problem.batch, 1)) if problem.packed else count


def order_argument(problem, height, by_head=False):
    """Kernel parameter `order` of tiles of queries. Where tiles have different numbers of keys a section's keys and values stay in the L2
    together; otherwise it is one head."""
    p = problem
    lines, keys = p.images * p.heads, of_a_sequence(p, p.keys)
    fitting = SECTION_BYTES * p.group // (keys * (p.d + p.dv) * p.k.itemsize) if is_uneven(p) else 1
    return order_of(lines, max(1, min(lines, fitting)), tiles_of(p, p.rows, height), p.batch if by_head else p.heads, p.group)


# ---- what it should take


def _steps(problem, height, width):
    """(steps of a tile of rows, those of them that are masked), on average; packed sequences count as equally long."""
    p = problem
    rows, keys, (left, right) = of_a_sequence(p, p.rows), of_a_sequence(p, p.keys), p.bounds
    start = np.arange(0, max(rows, 1), height, dtype=np.int64)
    ends = (start, np.minimum(start + height, rows) - 1)
    own = keys - rows if p.align == "bottom_right" else 0
    (first, every_begin), (every_end, last) = zip(*((begin, np.maximum(begin, np.minimum(i + own + right + 1, keys)))
                                                    for i in ends for begin in (np.maximum(i + own - left, 0),)))
    steps = -(-np.maximum(np.minimum(last, keys) - first, 1) // width)
    before = np.minimum(-(-np.maximum(every_begin - first, 0) // width), steps)
    whole = np.clip((every_end - first) // width - before, 0, steps - before)
    return float(steps.mean()), float((steps - whole).mean())


def tile_seconds(problem, config, device, itemsize=2, staged=False, more=0, times=1):
    """Predicted time: steps of the block with the most of them, each `more` cycles longer. Tensor cores take 4096 bytes of products a cycle
    and multiprocessor; each product is computed so many `times`. `staged`: tiles of the bias come through TMA."""
    p, s = problem, config.shape
    products = times * itemsize * s.height * s.width * (config.steps * 32 // itemsize + config.columns) / 4096
    step = max(COST.product * products + COST.exponential * s.height * s.width / 16 + COST.step, products + COST.least) + more
    issues = ((COST.staged if staged else COST.bias) * bool(config.kind.bias) + COST.alibi * p.alibi + COST.softcap * (p.softcap > 0)
              + COST.dropout * (p.dropout > 0) + (COST.mask_tile if p.mask is not None else 0) + p.score_instructions)
    steps, masked = _steps(p, s.height, s.width)
    issue = (steps * issues + masked * (COST.mask + COST.left * (p.left >= 0))) * s.height * s.width / 128
    tiles = p.batch * p.heads * ceil_div(of_a_sequence(p, p.rows), s.height)
    busiest = (tiles / max(min(tiles, device.sms), 1) + COST.dynamic * (tiles > device.sms) if config.drawn
               else ceil_div(tiles, device.sms))
    times = busiest / (COST.clock * device.clock_hz)
    gaps = times * COST.gaps[s.groups] * (1 - COST.held * config.steps * s.held)
    work = Cost(math=gaps * (steps * step), issue=gaps * issue, waves=times * COST.tile)
    return Cost(launch=COST.launch * (1 + COST.dynamic * config.drawn)) + overlap(work, memory=read_seconds(p.bytes, device))


def read_seconds(nbytes, device):
    """Predicted time of bytes, at the share of the memory's rate that these kernels reach."""
    return nbytes / (COST.rate * device.bandwidth)

"""The bias's gradient: its launches after those of the other gradients (`_dbias_wgmma`, `_dbias_mma`, in float32 `_dbias_simt`).

dbias is the sum of ds = p (do v' - delta) over what shares an element of the bias, and all of ds is computed again from q, k, do and v:
nothing of the size queries x keys is kept. A block has a tile of the gradient. Where there are fewer tiles than a device holds blocks, each
one's items are split into ranges, whose sums, float32, a second launch adds up; there are a few tiles of them for each multiprocessor,
however long sequences are.
"""
import functools
import math
from dataclasses import dataclass, replace

from ...device import cuda, f32, i64, jit
from ...device.convert import element
from ...device.groups import access_words
from ...device.index import LIMIT, Divisor, ceil_div, divide_remainder, divisor
from ...engine.constants import constants
from ...engine.cost import LAUNCH, Cost, issue_seconds, memory_seconds, overlap
from ...host.dtypes import ITEMSIZE
from ...host.launch import Argument, Launch
from ...host.tensor import packed_strides
from .._checks import broadcast_strides
from .._mma import STEP, Source, mma_rate, source_of
from .._modifiers import is_adjusted
from .._parameters import Kind, RowStrides, Strides, added_arguments, kind_of, number_arguments, sequence_arguments
from .._simt import source_of as simt_source_of
from ..sdpa_naive import bias_launch
from . import _dbias_simt as simt
from . import _dbias_wgmma as hopper
from ._dbias_items import GROUP, Extent, Items
from ._dbias_mma import kernel
from ._delta import Sizes, delta_launch

COST = constants("attention/dbias")

MOST_STEPS = 4  # of 16 columns of a part
MOST_STAGES = 3
ADDERS = 128  # threads of a block of the second launch


@dataclass(frozen=True)
class Shape:
    """Warps of a block, along rows and along keys; each has 32 rows and `keys` keys."""
    lines: int
    columns: int
    keys: int

    @property
    def height(self):
        return 32 * self.lines

    @property
    def width(self):
        return self.keys * self.columns

    @property
    def count(self):
        """Threads."""
        return 32 * self.lines * self.columns

    @property
    def blocks(self):
        """Of a multiprocessor."""
        return 256 // self.count

    @property
    def pitch(self):
        """Floats from one row of the tile to the next when it leaves."""
        return self.width + 4


SHAPES = (Shape(4, 2, 48), Shape(2, 2, 48), Shape(2, 1, 48))
CROWDED = (Shape(4, 2, 32), Shape(2, 2, 32), Shape(2, 1, 32))  # with all options a thread has registers for no more


@dataclass(frozen=True)
class Parts:
    """How rows of so many elements come: `count` parts of `width` columns, of the last one `rest` elements."""
    elements: int

    @property
    def steps(self):
        return max(ceil_div(self.elements, STEP), 1)

    @property
    def count(self):
        return ceil_div(self.steps, MOST_STEPS)

    @property
    def width(self):
        return ceil_div(self.steps, self.count) * STEP

    @property
    def rest(self):
        return self.elements - (self.count - 1) * self.width

    @property
    def pitch(self):
        """Bytes of a row in shared memory."""
        return Source(self.width, False).pitch


@dataclass(frozen=True)
class Config:
    """The options, how arrays are read, whether the window has a left and a right bound, whether scores are more than scaled products and
    the bias; a shape and the stages of its ring; where lse and deltas are (`_dbias_mma.make_stats`); what the result is: its dtype,
    the 32-bit words of stores to it, and whether it is a sum over rows and over keys."""
    kind: Kind
    q: Source
    k: Source
    do: Source
    v: Source
    left: bool
    right: bool
    adjusted: bool
    shape: Shape
    stages: int
    stats: int
    out: str
    words: int
    over_rows: bool
    over_keys: bool

    @property
    def of_x(self):
        return Parts(self.q.elements)

    @property
    def of_y(self):
        return Parts(self.v.elements)

    @property
    def plain(self):
        """The options of scores before the bias is added."""
        return replace(self.kind, bias="")

    @property
    def masked(self):
        """Whether there may be tiles in which no query attends to a key."""
        return self.left or self.right or self.kind.limits_rows or self.kind.limits_keys

    @property
    def stage(self):
        """Bytes."""
        return (self.shape.height + self.shape.width) * max(self.of_x.pitch, self.of_y.pitch)

    @property
    def bias_at(self):
        """Bytes before the bias: the ring, where the tile lies in the end."""
        return max(self.stages * self.stage, 4 * self.shape.pitch * self.shape.height)

    @property
    def bias_bytes(self):
        """Of a fragment of all threads."""
        return self.shape.keys // 2 * ITEMSIZE[self.kind.bias] * self.shape.count

    @property
    def shared(self):
        """Dynamic shared memory, bytes."""
        return self.bias_at + 2 * self.bias_bytes


@dataclass(frozen=True)
class Work:
    """The work of a problem: the gradient's shape in four dimensions, its tiles along them, the items of a tile along images,
    heads, rows and keys, `each` of which a block takes, in `parts` ranges."""
    shape: tuple
    tiles: tuple
    items: tuple
    each: int

    @property
    def count(self):
        b, h, i, j = self.items
        return b * h * i * j

    @property
    def parts(self):
        return ceil_div(self.count, self.each)

    @property
    def blocks(self):
        b, h, i, j = self.tiles
        return b * h * i * j * self.parts

    @property
    def elements(self):
        """Of the gradient, up to a multiple of 16 bytes of float32."""
        b, h, i, j = self.shape
        return ceil_div(b * h * i * j, 4) * 4


def work_of(problem, shape, device):
    """The work by tiles of a shape."""
    p = problem
    of, full = (1,) * (4 - p.dbias.ndim) + p.dbias.shape, (p.batch, p.heads, p.rows, p.keys)
    size = (1, 1, shape.height, shape.width)
    tiles = tuple(ceil_div(n, s) for n, s in zip(of, size))
    items = tuple(ceil_div(m, s) if n < m else 1 for n, m, s in zip(of, full, size))
    whole, slots = Work(of, tiles, items, max(1, items[0] * items[1] * items[2] * items[3])), device.sms * shape.blocks
    if whole.blocks >= slots:
        return whole
    return replace(whole, each=ceil_div(whole.count, min(whole.count, ceil_div(2 * slots, whole.blocks))))


def _configs(problem, shape, width, *result):
    """Those of a shape; on tensor cores with as many stages as there may be."""
    p, arrays = problem, (problem.q, problem.k, problem.do, problem.v)
    kind, left, right = kind_of(p), p.left >= 0, p.right >= 0
    if p.dtype == "float32":
        return [simt.Config(kind, *(simt_source_of(x, p.strides(x)) for x in arrays), left, right, shape, width, *result)]
    sources, adjusted = [source_of(x, p.strides(x)) for x in arrays], is_adjusted(p, bias=False)
    return [Config(kind, *sources, left, right, adjusted, shape, stages, width, *result) for stages in range(MOST_STAGES, 1, -1)]


@functools.cache
def plan_of(problem, width, device):
    """(configuration, work) of a problem, or None: float64, ragged, tiles that cannot be counted, or none. Shapes that shared memory does
    not hold are left out, and those that a problem fills no half of."""
    p, t = problem, problem.dbias
    if p.dtype == "float64" or p.ragged or not t.size or not p.rows or not p.keys:
        return None
    strides, shapes = broadcast_strides(t), CROWDED if p.mask is not None and p.dropout and is_adjusted(p, bias=False) else SHAPES
    if p.dtype == "float32":
        shapes = simt.SHAPES
    for shape in shapes:
        if shape is not shapes[-1] and (2 * p.rows <= shape.height or 2 * p.keys <= shape.width):
            continue
        work = work_of(p, shape, device)
        over = tuple(n < m for n, m in zip(work.shape[2:], (p.rows, p.keys)))
        out, words = t.dtype, access_words(t, GROUP, strides[:-1]) if strides[-1] == 1 and t.shape[-1] % GROUP == 0 else 0
        if work.parts > 1:
            out, words = "float32", 0 if work.shape[3] % GROUP else 4
        for config in _configs(p, shape, width, out, words, *over):
            if config.shared <= device.shared_per_block and max(work.blocks, work.count, work.elements * (work.parts > 1)) < LIMIT:
                return config, work
    return None


def sums_bytes(problem, width, device):
    """Bytes of the sums of ranges of items."""
    if problem.dbias is None or hopper.config_of(problem, width, device):
        return 0
    plan = plan_of(problem, width, device)
    if plan is None or plan[1].parts == 1:
        return 0
    return 4 * plan[1].parts * plan[1].elements


def dbias_seconds(problem, width, device):
    """Two products, and the instructions for probabilities; `width` as `RowStats` says."""
    p = problem
    if p.dbias is None:
        return 0
    moved, config = memory_seconds(2 * p.dbias.nbytes, device), hopper.config_of(p, width, device)
    if config is not None:
        return overlap(hopper.seconds_of(p, config, device), memory=moved)
    steps = p.pairs * p.heads * (p.d + p.dv)
    if plan_of(p, width, device) is None:
        return LAUNCH + Cost(issue=issue_seconds(steps, COST.naive, device))
    if p.dtype == "float32":
        return LAUNCH + overlap(math=2 * steps / (COST.float32 * device.fp32_rate), memory=moved)
    rate = mma_rate(device) * COST.rate
    columns = sum(max(ceil_div(n, STEP), 1) * STEP for n in (p.d, p.dv))
    issues = COST.score + COST.alibi * p.alibi + COST.softcap * (p.softcap > 0) + COST.dropout * (p.dropout > 0)
    pairs = p.pairs * p.heads
    return LAUNCH + overlap(Cost(math=pairs * columns / rate, issue=issue_seconds(pairs, issues, device)), memory=moved)


def dbias_launches(problem, device, stats):
    """The launches of the bias's gradient: one, or two, or, where there is no plan, `naive`'s with `stats` as it orders them."""
    p, t = problem, problem.dbias
    if t is None or not t.size:
        return ()
    config = hopper.config_of(p, stats.width, device)
    if config is not None:
        return (hopper.launch_of(p, config, stats, device),)
    plan = plan_of(p, stats.width, device)
    if plan is None:
        return ((delta_launch(p),) if stats.width and p.rows else ()) + (bias_launch(p),)
    config, work = plan
    several = work.parts > 1
    strides = (*packed_strides((1, *work.shape))[1:],) if several else broadcast_strides(t)
    to = Argument("float32*", "workspace", stats.end) if several else Argument(element(t.dtype).pointer, "dbias")
    b, h, i, j = work.tiles
    divisors = (j, i, h, b, work.items[3], work.items[2], work.items[1], p.group)
    arguments = (*(Argument(element(p.dtype).pointer, name) for name in ("q", "k", "v", "do")), to, Argument("float32*", "lse"),
                 Argument("float32*", "workspace", stats.begin), Argument(Sizes, (p.rows, p.keys, p.heads, stats.rows)),
                 Argument(Extent, work.shape[2:]), Argument(Items, (work.each, work.count)),
                 *(Argument(Divisor, divisor(n)) for n in divisors), Argument("int64", work.elements),
                 *(Argument(Strides, p.strides(x)) for x in (p.q, p.k, p.v, p.do)), Argument(Strides, strides),
                 Argument(RowStrides, p.lse_strides), *sequence_arguments(p), *added_arguments(p), *number_arguments(p))
    made = (simt.kernel if p.dtype == "float32" else kernel)(config)
    main = Launch(made, (work.blocks, 1, 1), (config.shape.count, 1, 1), arguments, shared=config.shared)
    if not several:
        return (main,)
    size = math.prod(work.shape)
    arguments = (to, Argument(element(t.dtype).pointer, "dbias"), Argument("int32", size), Argument("int32", work.elements),
                 Argument("int32", work.parts), *(Argument(Divisor, divisor(n)) for n in work.shape[:0:-1]),
                 Argument(Strides, broadcast_strides(t)))
    return main, Launch(sum_kernel(t.dtype), (ceil_div(size, ADDERS), 1, 1), (ADDERS, 1, 1), arguments)


@functools.cache
def sum_kernel(dtype):
    """An element of the gradient a thread: the sum of those of the ranges."""
    store = element(dtype).store

    @jit(launch_bounds=(ADDERS, 4))
    def sdpa_dbias_sums(sums, dbias, size, step, parts, of_keys, of_rows, of_heads, strides):
        index = cuda.blockIdx.x * ADDERS + cuda.threadIdx.x
        if index < size:
            total = f32(0)
            for part in range(parts):
                total = total + sums[i64(part) * step + index]
            rest, j = divide_remainder(index, of_keys)
            rest, i = divide_remainder(rest, of_rows)
            b, h = divide_remainder(rest, of_heads)
            store(dbias, b * strides.batch + h * strides.head + i * strides.row + j * strides.column, total)
    return sdpa_dbias_sums

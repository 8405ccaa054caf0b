"""What the kernel of `flash_wgmma`, backward, is compiled for, and what lies where in shared memory.

Of float32 each tile is `PIECES` tiles of bfloat16, one after the other, and each product the sum of `PRODUCTS` (`_pieces`).
"""
from dataclasses import dataclass, replace
from typing import NamedTuple

from ....device.index import ceil_div
from ....device.registers import check_register_budget
from ....engine.hopper import ROW, SHARED_LIMIT
from ..._parameters import Kind
from ..._pieces import PIECES, PRODUCTS, TYPE
from ..._wgmma import ALIGNMENT, BARRIERS, COLUMNS, Shape
from .._heads import HeadSizes
from .workspace import columns_of

WIDE = Shape(2, 32, 0)
MOST_STAGES = 3
MOST_LIVE = 240  # registers of a thread, counted as `Config.live` does


class Layout(NamedTuple):
    """Shared memory, bytes from where it begins: k; v; the ring of q and do; the stage of its own that do may have; the tiles of ds, before
    them of the bias; the part of dq; lse and delta of the ring's stages; the barriers."""
    v: int
    ring: int
    do: int
    ds: int
    dq: int
    stats: int
    barriers: int


@dataclass(frozen=True)
class Config(HeadSizes):
    """The options, sizes of heads, and a shape; whether additions to dq have an order; whether the window has a left and a right bound,
    whether scores are more than scaled products, a bias that is `staged` left out, and whether dk and dv are stored by pairs; whether tiles
    of the bias come through TMA, and whether images of a head come one after the other; "dk", with dq, or "dv" where a launch of its own
    sums up the other; what a boolean mask is of (`_mask_tiles`), whose tiles of rows come as those of the bias."""
    kind: Kind
    d: int
    e: int
    shape: Shape
    ordered: bool
    left: bool
    right: bool
    adjusted: bool
    pairs: tuple
    staged: bool
    by_head: bool
    only: str = ""
    mask: str = ""

    def __post_init__(self):
        s, (producer, consumer) = self.shape, self.registers
        check_register_budget(s.threads, ((128, producer), (128 * s.groups, consumer)))
        if self.live > MOST_LIVE:
            raise ValueError(f"tile {s} of heads of {self.d} and {self.e}: a thread needs {self.live} registers, it has {MOST_LIVE}")
        if self.stages < 2:
            raise ValueError(f"tile {s} of heads of {self.d} and {self.e}: {SHARED_LIMIT} bytes of shared memory hold {self.stages} "
                             "stages; the least is 2")

    @property
    def registers(self):
        """(of a producer thread, of a consumer thread)."""
        return {1: (40, 256 if self.split else 248), 2: (24, 240)}[self.shape.groups]

    @property
    def split(self):
        """Whether elements are float32."""
        return self.kind.dtype == "float32"

    @property
    def dtype(self):
        """Of what is multiplied."""
        return TYPE if self.split else self.kind.dtype

    @property
    def pieces(self):
        return PIECES if self.split else 1

    @property
    def products(self):
        """Pieces of the left and the right operand that are multiplied."""
        return PRODUCTS if self.split else ((0, 0),)

    @property
    def columns(self):
        """Of dk and dv in registers: d and e in whole groups of 8, of float32 beyond a box in whole boxes."""
        return tuple(ceil_div(n, unit) * unit for n in (self.d, self.e) for unit in (COLUMNS if self.split and n > COLUMNS else 8,))

    @property
    def serial(self):
        """Whether there are so many accumulators of float32 that products wait for one another."""
        return self.split and max(self.d, self.e) > COLUMNS

    @property
    def gemm_columns(self):
        """Columns of dk and of dv that a product has, of float32 those of a box."""
        return tuple(min(n, COLUMNS) if self.split else n for n in self.columns)

    @property
    def of_dv(self):
        """The configuration of the launch that computes dv: v and dp do not take part, and leave registers and memory for more queries, if
        no option takes them."""
        try:
            return replace(self, only="dv", shape=Shape(2, 64, 0))
        except ValueError:
            return replace(self, only="dv", shape=WIDE)

    @property
    def stats_rows(self):
        """Queries whose lse lie together, followed by their deltas."""
        return WIDE.width if self.only else self.shape.width

    @property
    def acc_columns(self):
        """Columns of dk and of dv that there are."""
        return self.columns[0] * (self.only != "dv"), self.columns[1] * (self.only != "dk")

    @property
    def transposed(self):
        """Whether the part of dq is computed as its transpose, columns by rows: a product has 64 rows at least."""
        return self.shape.width < 64

    @property
    def ds_line(self):
        """Bytes of a line of ds in shared memory, which has a key's queries, and of its swizzle."""
        return min(2 * self.shape.width, ROW)

    @property
    def dq_parts(self):
        """What a warpgroup has of a tile's part of dq: of each (blocks of 64 rows before, columns before, columns)."""
        groups, columns = self.shape.groups, ceil_div(self.d, 8) * 8
        if self.shape.width == 64 * groups:
            return tuple((g, 0, columns) for g in range(groups))
        each = min(ceil_div(self.boxes[0], groups) * COLUMNS, columns)
        return tuple((0, g * each, max(0, min(each, columns - g * each))) for g in range(groups))

    @property
    def live(self):
        """About how many registers each thread needs: while scores become ds, or while its products are in flight."""
        sums, width = sum(self.acc_columns) // 2, self.shape.width
        k = self.kind
        part = max(n for _, _, n in self.dq_parts) * min(width, 64) // 128 * (self.only != "dv")
        if self.split:
            words, options = width // 4 * PIECES, k.dropout or k.softcap or self.serial and self.adjusted
            return sums + max(self.gemm_columns) // 2 + words + max(words + width // 4, part) + 16 * options + 22
        read = bool(k.bias) and not self.staged
        options = (16 + 16 * read if self.transposed else 20) if read or k.dropout else 8 * (self.adjusted or self.mask != "")
        scores = width + 32 + options + 8 * (k.bends and width != 64)
        scores += 5 * (width > 64) * sum(access in ("row", "column", "matrix") for access in k.accesses)
        products = width // 2 + part + 30
        return sums + max(scores, products)

    @property
    def resident(self):
        """Bytes of the tiles of k and v, which stay; dv takes none of v."""
        tile = self.pieces * self.shape.height * ROW
        return self.boxes[0] * tile, self.boxes[1] * tile * (self.only != "dv")

    @property
    def passing(self):
        """Bytes of the tiles of q and do, which pass."""
        return tuple(n * self.pieces * self.shape.width * ROW for n in self.boxes)

    @property
    def stats(self):
        """Bytes of a stage's lse and delta."""
        return 8 * self.shape.width

    @property
    def by_tiles(self):
        """Whether tiles of a bias, or of a mask, come to where ds will be."""
        return self.staged or self.mask == "rows"

    @property
    def ds(self):
        """Bytes of a tile of ds, and before it of the bias, or the mask."""
        return self.pieces * self.shape.width * self.shape.height * 2 * (self.only != "dv" or self.by_tiles)

    @property
    def dq(self):
        """Bytes of a tile's part of dq."""
        return 4 * self.shape.width * columns_of(self.d, self.shape.width) * (self.only != "dv")

    def _ring(self, ds_buffers):
        return SHARED_LIMIT - ALIGNMENT - BARRIERS - sum(self.resident) - ds_buffers * self.ds - self.dq

    @property
    def ds_buffers(self):
        """Tiles of ds: one is written while another may still be read, if there are two."""
        return 1 if self.split and self._ring(2) < 2 * (sum(self.passing) + self.stats) else 2

    @property
    def ring(self):
        """Bytes of shared memory for the ring of q and do."""
        return self._ring(self.ds_buffers)

    @property
    def single_do(self):
        """Whether do has one stage only: where dv does not need it, which reads it last, and two stages of both do not fit."""
        return self.only == "dk" and self.ring < 2 * (sum(self.passing) + self.stats)

    @property
    def stage(self):
        """Bytes of a stage, without its lse and delta."""
        return self.passing[0] + self.passing[1] * (not self.single_do)

    @property
    def stages(self):
        return min((self.ring - self.passing[1] * self.single_do) // (self.stage + self.stats), MOST_STAGES)

    @property
    def layout(self):
        ring = sum(self.resident)
        do = ring + self.stages * self.stage
        ds = do + self.passing[1] * self.single_do
        dq = ds + self.ds_buffers * self.ds
        stats = dq + self.dq
        return Layout(self.resident[0], ring, do, ds, dq, stats, stats + self.stages * self.stats)

    @property
    def shared(self):
        """Dynamic shared memory, bytes."""
        return self.layout.barriers + BARRIERS + ALIGNMENT

    def __str__(self):
        return str(self.shape) + " dv before" * (self.only == "dk")

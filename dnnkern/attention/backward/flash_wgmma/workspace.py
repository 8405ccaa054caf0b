"""What gradients by tiles of keys keep in the workspace: lse and delta of each query, and dq while it is added up.

For each head of each image there are queries up to a whole number of tiles (`tiles.padding`), those of each packed sequence
(`tiles.make_rows`)::

    stats        float32, of each tile of queries their lse, as powers of two, then their deltas; of rows that do not exist what gives 0
    dq           float32, dq but for the scale: blocks of 64 rows by 8 columns, of 2 KB, by rows and columns; in a block the four floats
                 of each thread of a warpgroup as wgmma leaves them (`device.wgmma.accumulator_place`)
    counts       uint32, of each tile of queries how many tiles of keys have been added to it
    ticket       uint32, how many tiles of keys have been taken

So a warpgroup's fragment goes to memory as it is in registers, 16 bytes per thread; four lanes' pieces are eight neighbours of two rows.

Tiles of fewer queries than a product has, 64, are transposed: fragments of columns by rows. A block is what a warp has of one, 16 columns
by 8 rows, of 512 bytes; those of the first columns come first. Of eight lanes' pieces 8 bytes each are eight neighbours of two rows.
"""
from dataclasses import dataclass
from typing import NamedTuple

from ....device import i32
from ....device.index import LIMIT, ceil_div
from ..._flash import tiles_of
from .tiles import padding

MOST_ROWS = 128     # of a tile
NO_TILES = 1 << 30  # a ticket past all tiles


class RowSizes(NamedTuple):
    """Queries and keys of an array, the queries of a head in the workspace, elements of a row of what is read or written, and sequences."""
    rows: i32
    keys: i32
    padded: i32
    columns: i32
    batch: i32


@dataclass(frozen=True)
class Workspace:
    """Bytes before each of its parts; tiles of queries have `width`. dq begins from zero unless the first tile of keys is `stored`."""
    lines: int
    rows: int
    columns: int
    width: int
    stored: bool

    @property
    def tiles(self):
        """Of queries of a head."""
        return self.rows // self.width

    @property
    def transposed(self):
        return self.width < 64

    @property
    def dq(self):
        """After lse and delta."""
        return 8 * self.lines * self.rows

    @property
    def counts(self):
        return self.dq + 4 * self.lines * self.rows * self.columns

    @property
    def ticket(self):
        return self.counts + 4 * ceil_div(self.lines * self.tiles, 4) * 4

    @property
    def bytes(self):
        return self.ticket + 16

    @property
    def cleared(self):
        """(first byte, 16-byte vectors) of what is zero before the kernel begins."""
        begin = self.counts if self.stored else self.dq
        return begin, (self.bytes - begin) // 16


def workspace_of(problem, width, stored):
    """The workspace of a problem."""
    p, pad = problem, padding(width)
    return Workspace(p.images * p.heads, tiles_of(p, p.rows, pad) * pad, columns_of(p.d, width), width, stored)


def columns_of(d, width):
    """Columns of dq of heads of d elements: whole blocks."""
    block = 16 if width < 64 else 8
    return ceil_div(d, block) * block


def countable(problem):
    """Why dq cannot be counted by 32-bit integers, or None."""
    p = problem
    groups = p.images * p.heads * tiles_of(p, p.rows, MOST_ROWS) * MOST_ROWS * (columns_of(p.d, 32) // 8)
    return None if groups < LIMIT else f"dq of {groups} groups of 8 elements; expected fewer than 2**31"

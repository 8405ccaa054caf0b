"""What the kernel of `flash_wgmma_roles` is compiled for, and what lies where in shared memory."""
from dataclasses import dataclass
from typing import NamedTuple

from ....device.index import ceil_div
from ....device.registers import check_register_budget
from ....engine.hopper import ROW, SHARED_LIMIT
from ..._parameters import Kind
from ..._wgmma import ALIGNMENT, BARRIERS, COLUMNS
from .._heads import HeadSizes
from ..flash_wgmma.workspace import columns_of

THREADS = 384
PIECE = 32  # queries of a tile of the workspace
KEYS = 128, 112, 96, 80, 64  # of a block


@dataclass(frozen=True)
class Shape:
    """A tile: `height` keys of as many `blocks`, `width` queries at a time."""
    height: int
    blocks: int
    width: int = 64

    @property
    def own(self):
        """Keys of a block."""
        return self.height // self.blocks

    def __str__(self):
        return f"{self.height}x{self.width}" + " by two blocks" * (self.blocks > 1)


class Layout(NamedTuple):
    """Shared memory, bytes from where it begins: k; v; columns of the other block's k; the rings of q and of do; the buffers of
    probabilities; of what they lost when they were rounded, which may be that of ds; ds; that of the other block; lse and delta of the
    stages of q; the barriers."""
    v: int
    other_k: int
    q: int
    do: int
    p: int
    rest: int
    ds: int
    other_ds: int
    stats: int
    barriers: int


@dataclass(frozen=True)
class Config(HeadSizes):
    """The options, sizes of heads, and a shape; whether additions to dq have an order, whether the window has a left and a right bound;
    words of 32 bits by which dk and dv are stored, 0 where it is by elements."""
    kind: Kind
    d: int
    e: int
    shape: Shape
    ordered: bool
    left: bool
    right: bool
    words: tuple
    by_head: bool = False

    def __post_init__(self):
        producer, other = self.registers
        check_register_budget(THREADS, ((128, producer), (256, other)))
        if self.shape.blocks > 1 and self.boxes[0] < 2:
            raise ValueError(f"heads of {self.d} elements: two blocks have a box of {COLUMNS} columns of dq each; expected more")
        if self.live > other:
            raise ValueError(f"tile {self.shape} of heads of {self.d} and {self.e}: a thread needs {self.live} registers, it has {other}")
        if self.stages is None:
            raise ValueError(f"tile {self.shape} of heads of {self.d} and {self.e} takes more than {SHARED_LIMIT} bytes of shared memory")

    @property
    def registers(self):
        """(of a producer thread, of another one)."""
        return (40, 232) if self.shape.blocks > 1 else (24, 240)

    @property
    def live(self):
        """About how many registers each thread needs: sums and a fragment of scores, or of two blocks one of each box of dq."""
        own, pair = self.shape.own // 2, self.shape.blocks > 1
        beside = max(own + COLUMNS // 2, self.dq_boxes * COLUMNS // 2) if pair else own
        return max(self.boxes[0] * own + beside, (self.boxes[1] + 1) * own) + 40

    @property
    def box(self):
        """Bytes of a box of keys, and of a tile of probabilities or ds."""
        return self.shape.own * ROW

    @property
    def dq_boxes(self):
        """Boxes of columns of dq that the first block has, at least as many as the second; one block has all."""
        return ceil_div(self.boxes[0], self.shape.blocks)

    @property
    def exchanged(self):
        """Tiles and boxes of k that are there for the other block."""
        return 1 + self.dq_boxes if self.shape.blocks > 1 else 0

    @property
    def passing(self):
        """Bytes of the tiles of q and do."""
        return tuple(n * self.shape.width * ROW for n in self.boxes)

    @property
    def stats(self):
        """Bytes of a stage's lse and delta."""
        return 8 * self.shape.width

    @property
    def dq_blocks(self):
        """Blocks of 16 columns of dq (`flash_wgmma.workspace`)."""
        return columns_of(self.d, PIECE) // 16

    @property
    def stages(self):
        """(stages of q, of do, buffers of probabilities, of what they lost, which is that of ds if there is none); None where there is no
        memory for the least. What is left goes to the latter first, since the warpgroup of the probabilities waits for ds otherwise."""
        q, do = self.passing
        left = SHARED_LIMIT - ALIGNMENT - BARRIERS - (sum(self.boxes) + 1 + self.exchanged) * self.box - 2 * (q + self.stats)
        counts = [1, 1, 0]
        left -= do + self.box
        if left < 0:
            return None
        for k, nbytes in ((2, self.box), (1, self.box), (0, do)):
            if left >= nbytes:
                left, counts[k] = left - nbytes, counts[k] + 1
        return 2, *counts

    @property
    def layout(self):
        of_q, of_do, of_p, of_rest = self.stages
        pair, other_k = self.shape.blocks > 1, sum(self.boxes) * self.box
        q = other_k + pair * self.dq_boxes * self.box
        do = q + of_q * self.passing[0]
        p = do + of_do * self.passing[1]
        rest = p + of_p * self.box
        ds = rest + of_rest * self.box
        other_ds = ds + self.box
        stats = other_ds + pair * self.box
        return Layout(self.boxes[0] * self.box, other_k, q, do, p, rest, ds, other_ds, stats, stats + of_q * self.stats)

    @property
    def shared(self):
        """Dynamic shared memory, bytes."""
        return self.layout.barriers + BARRIERS + ALIGNMENT

    def __str__(self):
        return str(self.shape)

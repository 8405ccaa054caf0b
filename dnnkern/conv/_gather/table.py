"""Offsets and bits of the elements of k, computed once for all threads of a block and kept in shared memory.

An entry has four words: offset in the source, bits or mask, offset in the plain operand, bits or mask again. It serves `grain` elements of
k: channels of one tap. The table has two halves of `group` stages each. When the main loop begins to copy the first stage of one half, all
threads fill the other half with the stages that follow.
"""
from dataclasses import dataclass
from typing import NamedTuple

from ...device import device_function, i32, u32, u64
from ...device.vec import store_shared_4u32
from ...engine.loaders import log2
from . import NEVER, Gather, Product

LEAST_GROUP = 4  # more stages than the prologue of a main loop copies


class Operand(NamedTuple):
    """One operand of a gathered product, as loaders take it: its pointer, first row of the tile, last row of the matrix, shared address of
    the table, the elements of k from `first` to `end`, and the product."""
    pointer: u64
    row: i32
    last_row: i32
    table: u32
    first: i32
    end: i32
    gather: Gather
    product: Product


@dataclass(frozen=True)
class Table:
    """Of a block of `threads` whose stages have `bk` elements of k; `by_pixel`: they are pixels."""
    bk: int
    grain: int
    threads: int
    by_pixel: bool

    @property
    def entries(self):
        """Of a stage."""
        return self.bk // self.grain

    @property
    def group(self):
        return max(LEAST_GROUP, self.threads // self.entries)

    @property
    def bytes(self):
        return 2 * self.group * self.entries * 16

    def functions(self, entry):
        """Device functions ``begin(s, tid)``, which fills both halves, ``ahead(stage, s, tid)``, which fills the next half at a half's
        first stage, and ``at(stage, k, s)``: the address of the entry of element `k` of a stage. `s` is the `Operand`."""
        BK, SHE, SHG, GROUP = self.bk, log2(self.entries), log2(self.grain), self.group
        ENTRIES, MASK = GROUP * self.entries, 2 * GROUP - 1
        PER, THREADS, NOTHING = max(1, ENTRIES // self.threads), self.threads, 0 if self.by_pixel else NEVER
        idle, SHH = ENTRIES < self.threads, log2(GROUP)

        @device_function
        def fill(half, s, tid):
            left = ((s.end - s.first + BK - 1) & (BK - 1)) + 1  # of the first stage
            for x in range(PER):
                e = tid + x * THREADS
                stage, i = half * GROUP + (e >> SHE), (e & ((1 << SHE) - 1)) << SHG
                k = s.first + i if stage == 0 else s.first + left + (stage - 1) * BK + i
                offset, word, plain = entry(k, s.gather, s.product)
                if k >= s.end or stage == 0 and i >= left:
                    offset, word, plain = 0, u32(NOTHING), 0
                if not idle or e < ENTRIES:
                    store_shared_4u32(s.table + u32((((half & 1) << (SHH + SHE)) + e) * 16), offset, word, plain, word)

        @device_function
        def begin(s, tid):
            fill(0, s, tid)
            fill(1, s, tid)

        @device_function
        def ahead(stage, s, tid):
            if stage & (GROUP - 1) == 0:
                fill((stage >> SHH) + 1, s, tid)

        @device_function
        def at(stage, k, s):
            return s.table + u32((((stage & MASK) << SHE) + (k >> SHG)) * 16)
        return begin, ahead, at

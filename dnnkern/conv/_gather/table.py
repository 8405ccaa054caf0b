"""What goes along k of a gathered product, computed once for all threads of a block and kept in shared memory.

An entry is four words: offset in the source, bits or mask, offset in the plain operand, bits or mask again. It stands for `grain` elements
of k: neighbours in both operands, or in one and `plain_step` apart in the other. The table is two halves of `group` stages; when the main
loop begins to copy the first stage of a half, all threads fill the other with the stages behind it.

The state of an operand is (p, row, last, table, first, end, v, geo): its pointer, the tile's first row, the last row there is, the table's
shared address, the range of k, and what `_gather.make_gather` wants.
"""
from dataclasses import dataclass

from ...device import device_function, i32, u32
from ...device.vec import store_shared_4u32
from ...engine.loaders import log2
from . import NEVER

LEAST_GROUP = 4  # more stages than the prologue of a main loop copies


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
        """Device functions ``fill(half, s, tid)``, ``begin(s, tid)`` for the first two, and ``at(stage, k, s)``: the address of the entry
        of element `k` of a stage."""
        BK, SHE, SHG, GROUP = self.bk, log2(self.entries), log2(self.grain), self.group
        ENTRIES, MASK = GROUP * self.entries, 2 * GROUP - 1
        PER, THREADS, NOTHING = max(1, ENTRIES // self.threads), self.threads, 0 if self.by_pixel else NEVER
        idle, SHH = ENTRIES < self.threads, log2(GROUP)

        @device_function
        def fill(half, s, tid):
            _, _, _, table, first, end, v, geo = s
            left = ((end - first + BK - 1) & (BK - 1)) + 1  # of the first stage
            for x in range(PER):
                e = tid + x * THREADS
                stage, i = half * GROUP + (e >> SHE), (e & ((1 << SHE) - 1)) << SHG
                k = first + i if stage == 0 else first + left + (stage - 1) * BK + i
                offset, word, plain = entry(k, v, geo)
                if k >= end or stage == 0 and i >= left:
                    offset, word, plain = i32(0), u32(NOTHING), i32(0)
                if not idle or e < ENTRIES:
                    to = table + u32((((half & 1) << (SHH + SHE)) + e) * 16)
                    store_shared_4u32(to, u32(offset), word, u32(plain), word)

        @device_function
        def begin(s, tid):
            fill(0, s, tid)
            fill(1, s, tid)

        @device_function
        def ahead(stage, s, tid):
            """What the copies of a stage in the main loop have to do for the table."""
            if stage & (GROUP - 1) == 0:
                fill((stage >> SHH) + 1, s, tid)

        @device_function
        def at(stage, k, s):
            return s[3] + u32((((stage & MASK) << SHE) + (k >> SHG)) * 16)
        return begin, ahead, at

"""Dual products in the Ampere main loop: the loader of a stage that has rows of two right operands.

Of the columns that a warp reads the first half is the first operand's and the second half the second's, each half those of the same columns
of y, so that a lane has both sums of a column.
"""
from ..device import device_function, u64
from ..device.fastmath import minimum
from ..device.vec import address
from .ampere_loaders import CopyLoader
from .loaders import ALONG_K, log2


class DualCopyLoader(CopyLoader):
    """`CopyLoader` of two matrices with the same strides; the second's pointer is the last of the state, (p, row, last, stride_row,
    stride_k, p_dual)."""

    def functions(self):
        """The device functions start, part, whole, put, advance."""
        _, part, whole, put, _ = super().functions()
        N, C, item, edge, along_k = self.share.lines, self.share.pieces, self.stored.item, self.edge, self.stored.order == ALONG_K
        SHIFT, BEFORE = log2(self.stored.warp_rows) - 1, 0 if along_k else self.vector - 1
        MASK = (1 << SHIFT) - 1
        line, byte, _, _ = self.share.functions()

        @device_function
        def start(at, s, first, tid):
            p, row0, last, stride_row, stride_k, p_dual = s
            origin = row0 * stride_row + first * stride_k
            from_b, from_dual = address(p, origin), address(p_dual, origin)
            for n in range(N):
                for c in range(C):
                    row, k = line(tid, n), byte(tid, c) // item
                    if not along_k:
                        row, k = k, row
                    base = from_dual if (row >> SHIFT) & 1 else from_b
                    row = (row >> (SHIFT + 1) << SHIFT) + (row & MASK)
                    if edge:
                        row = minimum(row, last - row0 - BEFORE)
                    at[n * C + c] = base + u64((row * stride_row + k * stride_k) * item)

        @device_function
        def advance(at, s, count):
            _, _, _, _, stride_k, _ = s
            for n in range(N * C):
                at[n] = at[n] + u64(count * stride_k * item)
        return start, part, whole, put, advance

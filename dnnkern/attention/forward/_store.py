"""Results of few bits to memory, eight columns of a row by a thread: the lanes of a quad, each of which has two of every eight, exchange
what they have of 32. Those of a thread by itself are half a sector a row, in four times as many instructions."""
import functools

from ...device import cuda, device_function, u32
from ...device.convert import element
from ...device.vec import advance, as_u32, store2_from, store4_from
from ...device.warp import shuffle_xor
from ...host.dtypes import ITEMSIZE


def stored_in_groups(problem, t):
    """Whether eight neighbours of a result of 8 or 16 bits lie side by side, and aligned, in all rows."""
    *steps, step = problem.strides(t)
    return t.itemsize < 4 and t.alignment % (8 * t.itemsize) == 0 and step == 1 and all(s % 8 == 0 for s in (*steps, t.shape[-1]))


@functools.cache
def make_group_store(dtype, columns, elements):
    """Device function as `_fragments.make_store`'s, of results of which `stored_in_groups` holds."""
    pack, WIDE, GROUPS = element(dtype).pack, ITEMSIZE[dtype] == 2, columns // 8

    @device_function
    def two(a, b):
        return pack(a, b) if WIDE else pack(a, b, a, b)

    @device_function
    def exchange(words, k, other, mask, upper):
        """Of two words the one that belongs to the lane whose number differs in a bit of the mask."""
        got = shuffle_xor(words[k] if upper else words[other], mask)
        words[k], words[other] = (got, words[other]) if upper else (words[k], got)

    @device_function
    def store(sums, factors, o, o_strides, row, rows, column):
        words, lane = cuda.local.array(4, u32), column >> 1
        for h in range(2):
            at = advance(o, (row + 8 * h) * o_strides.row)
            for i in range((GROUPS + 3) // 4):
                for g in range(4):
                    words[g], k = 0, 4 * (4 * i + g) + 2 * h
                    if 4 * i + g < GROUPS:
                        if factors[h] != 0:
                            words[g] = two(sums[k] * factors[h], sums[k + 1] * factors[h])
                exchange(words, 0, 1, 1, lane & 1 != 0)
                exchange(words, 2, 3, 1, lane & 1 != 0)
                exchange(words, 0, 2, 2, lane & 2 != 0)
                exchange(words, 1, 3, 2, lane & 2 != 0)
                first = 8 * (4 * i + lane)
                if row + 8 * h < rows and first < elements:
                    to = as_u32(advance(at, first))
                    if WIDE:
                        store4_from(to, 0, words, 0)
                    else:
                        for k in range(2):
                            words[k] = words[2 * k] & 0xFFFF | words[2 * k + 1] << 16
                        store2_from(to, 0, words, 0)
    return store

"""Exponentials that do not wait for the largest score: those of a tile by the reference maxima that there are, which hardly ever are too
low, and only then looked at; the other layout and state are `_fragments`'.

Largest scores are as many instructions as exponentials, and none of these can begin before. What is looked at here is sums of two
neighbours, which row sums want anyway, half as many, and not before the last.
"""
import functools

from ...device import device_function, f32
from ...device.fastmath import ex2, fma, fmax
from .._scores import NEG_INF

LIMIT = 448.0
"""Of the sum of two exponentials: what e4m3 can hold of one. Of two that are as large as the reference maximum says it is 256."""


@functools.cache
def make_attempt(width, tail, raised):
    """Device functions.

    attempt(x, row_max, ref_max, sums, scale, slack)
        The scores of a tile become exponentials, 2**raised times as large as `ref_max` says, but for the last `tail` keys; `sums` are the
        rows' of them. Whether a reference maximum is missing, or too low for these or for the others, which the slack says.
    finish(x, ref_max, row_sum, sums, scale)
        The others, after which row_sum is that of all.
    """
    groups, ends = (width - tail) // 16, width // 8
    if tail % 16 or not 0 <= tail < width or width % 16:
        raise ValueError(f"tile of {width} keys, of which {tail} are last; expected multiples of 16, and some before the last")

    @device_function
    def of_row(x, h, ref_max, scale):
        offset, even, odd, top = raised - ref_max[h], f32(0), f32(0), f32(0)
        for m in range(groups):
            k = 8 * m + 2 * h
            x[k], x[k + 1] = ex2(fma(x[k], scale, offset)), ex2(fma(x[k + 1], scale, offset))
            x[k + 4], x[k + 5] = ex2(fma(x[k + 4], scale, offset)), ex2(fma(x[k + 5], scale, offset))
            a, b = x[k] + x[k + 1], x[k + 4] + x[k + 5]
            top = fmax(fmax(top, a), b)
            even, odd = even + a, odd + b
        return even + odd, top

    @device_function
    def largest(x, h):
        a = b = f32(NEG_INF)
        for j in range(2 * groups, ends, 2):
            a = fmax(fmax(a, x[4 * j + 2 * h]), x[4 * j + 2 * h + 1])
            b = fmax(fmax(b, x[4 * j + 4 + 2 * h]), x[4 * j + 5 + 2 * h])
        return fmax(a, b)

    @device_function
    def attempt(x, row_max, ref_max, sums, scale, slack):
        sums[0], top = of_row(x, 0, ref_max, scale)
        sums[1], other = of_row(x, 1, ref_max, scale)
        again = fmax(top, other) > f32(LIMIT) or row_max[0] == f32(NEG_INF) or row_max[1] == f32(NEG_INF)
        if tail > 0:
            again = again or largest(x, 0) > row_max[0] + slack or largest(x, 1) > row_max[1] + slack
        return again

    @device_function
    def finish(x, ref_max, row_sum, sums, scale):
        for h in range(2):
            offset, even, odd = raised - ref_max[h], row_sum[h], sums[h]
            if tail > 0:
                for j in range(2 * groups, ends):
                    k = 4 * j + 2 * h
                    x[k], x[k + 1] = ex2(fma(x[k], scale, offset)), ex2(fma(x[k + 1], scale, offset))
                    even, odd = even + x[k], odd + x[k + 1]
            row_sum[h] = even + odd
    return attempt, finish

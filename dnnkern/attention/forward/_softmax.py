"""`_fragments.make_online_softmax` for products whose exponentials the units for these should begin at once: scores are scaled, and the
reference maximum subtracted, as they come, before anything is known of the largest; only where that is too large they are corrected.

So all that the exponentials of a part of the tile wait for is a vote, and beside them the scores of the next part are scaled and compared.
"""
import functools

from ...device import cuda, device_function, f32
from ...device.fastmath import ex2, fma, fmax
from ...device.warp import any_lane
from .._fragments import quad_max, scale_rows
from .._scores import LOWEST, NEG_INF


@functools.cache
def make_early_softmax(width, first, raised, slack, exact=False):
    """Device function ``online_softmax(x, most, limit, ref_max, row_sum, rescale, scale)``.

    As in `_fragments`, with two differences: `limit`, where that has `row_max`, is what scaled scores may exceed the reference maximum by,
    `raised` more, -inf where there is none; of `exact` most[2] and most[3] are largest scores times `scale`.
    """
    ends = (0, *(first if isinstance(first, tuple) else (first,)), width)
    if any(b - a < 16 or b % 8 for a, b in zip(ends, ends[1:])):
        raise ValueError(f"tile of {width} keys, of which {first} first; expected multiples of 8, 16 at least in each part")

    HIGHEST = raised + slack

    @device_function
    def raise_reference(limit, ref_max, row_sum, rescale, most, by):
        """To the maxima of the quads; `by` becomes by how much, `most` what exponentials by the former references are multiplied by."""
        for h in range(2):
            by[h], factor, top = f32(0), f32(1), quad_max(most[h]) - raised
            if limit[h] == NEG_INF:
                if top + ref_max[h] >= LOWEST:
                    by[h], limit[h] = top, f32(HIGHEST)
            else:
                by[h] = fmax(top, by[h])
                factor = ex2(-by[h])
            ref_max[h] = ref_max[h] + by[h]
            row_sum[h] = row_sum[h] * factor
            rescale[h] = rescale[h] * factor
            most[h] = factor

    def make_part(low, high):
        """Of the columns 8 low to 8 high."""
        @device_function
        def scaled(x, h, scale, offset):
            """Scores less the reference maximum; the largest."""
            a = b = f32(NEG_INF)
            for j in range(low, high):
                k = 4 * j + 2 * h
                x[k], x[k + 1] = fma(x[k], scale, offset), fma(x[k + 1], scale, offset)
                if (j - low) % 2:
                    b = fmax(fmax(b, x[k]), x[k + 1])
                else:
                    a = fmax(fmax(a, x[k]), x[k + 1])
            return fmax(a, b)

        @device_function
        def begin(x, most, limit, ref_max, row_sum, rescale, scale):
            by = cuda.local.array(2, f32)
            for h in range(2):
                most[h] = scaled(x, h, scale, raised - ref_max[h])
                if exact:
                    most[2 + h] = fmax(most[2 + h], most[h] + ref_max[h] - raised)
            if any_lane(most[0] > limit[0] or most[1] > limit[1]):
                raise_reference(limit, ref_max, row_sum, rescale, most, by)
                if low > 0:
                    scale_rows(x, low, most)
                for j in range(low, high):
                    for k in range(4):
                        x[4 * j + k] = x[4 * j + k] - by[k // 2]

        @device_function
        def exponentials(x, row_sum, h):
            even, odd = row_sum[h], f32(0)
            for j in range(low, high):
                k = 4 * j + 2 * h
                x[k], x[k + 1] = ex2(x[k]), ex2(x[k + 1])
                even, odd = even + x[k], odd + x[k + 1]
            row_sum[h] = even + odd

        @device_function
        def end(x, row_sum):
            exponentials(x, row_sum, 0)
            exponentials(x, row_sum, 1)
        return begin, end
    parts = [make_part(a // 8, b // 8) for a, b in zip(ends, ends[1:])]
    (begin_first, end_first), (begin_middle, end_middle), (begin_last, end_last) = parts[0], parts[1], parts[-1]
    MIDDLE = len(parts) > 2

    @device_function
    def online_softmax(x, most, limit, ref_max, row_sum, rescale, scale):
        rescale[0], rescale[1] = f32(1), f32(1)
        begin_first(x, most, limit, ref_max, row_sum, rescale, scale)
        end_first(x, row_sum)
        if MIDDLE:
            begin_middle(x, most, limit, ref_max, row_sum, rescale, scale)
            end_middle(x, row_sum)
        begin_last(x, most, limit, ref_max, row_sum, rescale, scale)
        end_last(x, row_sum)
    return online_softmax

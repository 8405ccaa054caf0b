"""The softmax of scores that tensor cores left in registers: what the algorithms with wgmma and with mma.sync share.

A thread has parts of two rows, r and r + 8, of a tile of scores (`device.wgmma.accumulator_place`, `device.mma`)::

    x[4 j + 2 h + e] = score of row r + 8 h and key 8 j + column + e         h, e < 2;  column = 2 (lane % 4)

and the four lanes of a quad have those rows together. Rounded to 16 bits in pairs, in this order, they are the left operand of the
product with v: no score passes through shared memory.

Of each of its two rows a thread keeps, in arrays of two: `row_max`, a score that the largest one so far exceeds by `SLACK` at most, once
scaled; `ref_max`, the reference maximum: that score scaled, 0 where there is none; `row_sum`, the thread's part of the sum of exponentials
of score - ref_max. Exponentials are powers of two: `scale` has the factor log2(e) in it, and is positive.
"""
import functools
from typing import Callable, NamedTuple

from ..device import cuda, device_function, f32, i32, i64, u16, u32
from ..device.atomic import raise_u32
from ..device.convert import element
from ..device.fastmath import ex2, fabs, fma, fmax, lg2, maximum, rcp
from ..device.numeric import bfloat162_to_floats, float_bits, floats_to_bfloat162, floats_to_e4m3x4
from ..device.vec import advance, as_u32, load_shared_u32, pin, store2
from ..device.warp import add, any_lane, make_reduce
from ._scores import LN2, LOG2E, LOWEST, NEG_INF

SLACK = 8.0
"""Probabilities may grow to 2**SLACK before sums are scaled down: neither float32 sums nor 16-bit floats lose anything by that, and of
random scores hardly any tile changes them."""

quad_max, quad_sum = make_reduce(fmax, 4), make_reduce(add, 4)


@functools.cache
def make_online_softmax(width, first, raised=0.0, exact=False):
    """Device function ``online_softmax(x, most, row_max, ref_max, row_sum, rescale, scale, slack)`` -> whether accumulators have to be
    scaled, by `rescale`.

    The scores of a tile of `width` keys become exponentials of score - ref_max. The reference maximum rises only where a score exceeds it
    by the slack, SLACK / scale. The maxima of the first `first` keys come first, then those of the others: exponentials of the first,
    which the special function units compute, are in flight meanwhile; lanes exchange nothing unless some reference rises. Exponentials
    and row_sum are 2**raised times as large as ref_max says. `most` is scratch; `exact`: most[2] and most[3] become the
    largest of the thread's scores so far.
    """
    @device_function
    def keep_largest(most):
        for h in range(2):
            most[2 + h] = fmax(most[2 + h], most[h])

    @device_function
    def raise_reference(row_max, ref_max, row_sum, rescale, most, scale):
        """To the maxima of the quads; `most` becomes what exponentials by the former references are multiplied by."""
        for h in range(2):
            new_max = quad_max(fmax(row_max[h], most[h]))
            new_ref = new_max * scale
            if new_ref < f32(LOWEST):
                new_max, new_ref = f32(NEG_INF), f32(0)
            factor = ex2(fma(row_max[h], scale, -new_ref))
            row_max[h], ref_max[h] = new_max, new_ref
            row_sum[h] = row_sum[h] * factor
            rescale[h] = rescale[h] * factor
            most[h] = factor

    def part(low, high):
        """Of the columns 8 low to 8 high."""
        @device_function
        def largest(x, h):
            a = fmax(x[4 * low + 2 * h], x[4 * low + 2 * h + 1])
            b = fmax(x[4 * low + 4 + 2 * h], x[4 * low + 4 + 2 * h + 1])
            for j in range(low + 2, high):
                if (j - low) % 2:
                    b = fmax(fmax(b, x[4 * j + 2 * h]), x[4 * j + 2 * h + 1])
                else:
                    a = fmax(fmax(a, x[4 * j + 2 * h]), x[4 * j + 2 * h + 1])
            return fmax(a, b)

        @device_function
        def exponentials(x, ref_max, row_sum, h, scale):
            offset, even, odd = -ref_max[h] if raised == 0 else raised - ref_max[h], row_sum[h], f32(0)
            for j in range(low, high):
                x[4 * j + 2 * h] = ex2(fma(x[4 * j + 2 * h], scale, offset))
                x[4 * j + 2 * h + 1] = ex2(fma(x[4 * j + 2 * h + 1], scale, offset))
                even = even + x[4 * j + 2 * h]
                odd = odd + x[4 * j + 2 * h + 1]
            row_sum[h] = even + odd
        return largest, exponentials
    if not 16 <= first <= width - 16 or first % 8 or width % 8:
        raise ValueError(f"tile of {width} keys, of which {first} first; expected multiples of 8, 16 at least in each part")
    largest_first, first_exponentials = part(0, first // 8)
    largest_last, last_exponentials = part(first // 8, width // 8)
    EARLIER = first // 8

    @device_function
    def online_softmax(x, most, row_max, ref_max, row_sum, rescale, scale, slack):
        rescale[0], rescale[1], rescaled = f32(1), f32(1), False
        most[0], most[1] = largest_first(x, 0), largest_first(x, 1)
        if exact:
            keep_largest(most)
        if any_lane(most[0] > row_max[0] + slack or most[1] > row_max[1] + slack):
            raise_reference(row_max, ref_max, row_sum, rescale, most, scale)
            rescaled = True
        first_exponentials(x, ref_max, row_sum, 0, scale)
        first_exponentials(x, ref_max, row_sum, 1, scale)
        most[0], most[1] = largest_last(x, 0), largest_last(x, 1)
        if exact:
            keep_largest(most)
        if any_lane(most[0] > row_max[0] + slack or most[1] > row_max[1] + slack):
            raise_reference(row_max, ref_max, row_sum, rescale, most, scale)
            scale_rows(x, EARLIER, most)
            rescaled = True
        last_exponentials(x, ref_max, row_sum, 0, scale)
        last_exponentials(x, ref_max, row_sum, 1, scale)
        return rescaled
    return online_softmax


@device_function
def scale_rows(x, groups, factors):
    """The first `groups` times 8 columns of a fragment, row by row."""
    for j in range(groups):
        x[4 * j] = x[4 * j] * factors[0]
        x[4 * j + 1] = x[4 * j + 1] * factors[0]
        x[4 * j + 2] = x[4 * j + 2] * factors[1]
        x[4 * j + 3] = x[4 * j + 3] * factors[1]


@functools.cache
def make_normalize(sink):
    """Device function ``normalize(ref_max, row_sum, sink_logit)`` -> (what the accumulators of a row are multiplied by, its lse), 0 and
    -inf where the row attends to nothing. `sink`: the logit is one more score, of every row that attends to a key."""
    @device_function
    def normalize(ref_max, row_sum, sink_logit):
        factor, lse = f32(0), f32(NEG_INF)
        if row_sum != 0:
            factor = f32(1)
            if sink:
                sink_score = sink_logit * LOG2E
                new_max = fmax(ref_max, sink_score)
                factor = ex2(ref_max - new_max)
                row_sum = row_sum * factor + ex2(sink_score - new_max)
                ref_max = new_max
            factor = factor * rcp(row_sum)
            lse = (ref_max + lg2(row_sum)) * LN2
        return factor, lse
    return normalize


@functools.cache
def make_normalize_rows(sink):
    """Device function ``normalize_rows(ref_max, row_sum, factors, sink_logit)``: `make_normalize` of a thread's two rows; `row_sum` becomes
    lse."""
    normalize = make_normalize(sink)

    @device_function
    def normalize_rows(ref_max, row_sum, factors, sink_logit):
        for h in range(2):
            factors[h], row_sum[h] = normalize(ref_max[h], quad_sum(row_sum[h]), sink_logit)
    return normalize_rows


@functools.cache
def make_pack(dtype, count):
    """Device function ``pack(words, x)``: x[:2 * count] rounded to 16 bits in pairs."""
    both = element(dtype).pack

    @device_function
    def pack(words, x):
        for i in range(count):
            words[i] = both(x[2 * i], x[2 * i + 1])
    return pack


@functools.cache
def make_pack_bytes(count):
    """Device function ``pack(words, x)``: x[:4 * count] rounded to e4m3, four to a word, in the order of keys of `_transposed`."""

    @device_function
    def pack(words, x):
        for i in range(count):
            k = 8 * (i // 2) + 2 * (i % 2)
            words[i] = floats_to_e4m3x4(x[k], x[k + 1], x[k + 4], x[k + 5])
    return pack


@device_function
def split(a, b):
    """(high, middle, low): words of the pieces of two numbers, those of `a` in the low 16 bits."""
    high = floats_to_bfloat162(a, b)
    of_a, of_b = bfloat162_to_floats(high)
    a, b = a - of_a, b - of_b
    middle = floats_to_bfloat162(a, b)
    of_a, of_b = bfloat162_to_floats(middle)
    return high, middle, floats_to_bfloat162(a - of_a, b - of_b)


@functools.cache
def make_split(count):
    """Device function ``split(words, x)``: the pieces of x[:2 * count] in pairs, `count` words of each, the high ones first: left operands
    of products, as `_fragments.make_pack` makes them."""
    @device_function
    def split_all(words, x):
        for i in range(count):
            words[i], words[count + i], words[2 * count + i] = split(x[2 * i], x[2 * i + 1])
    return split_all


@functools.cache
def make_row_words(dtype, count):
    """Device function ``row_words(x, j, factors)`` -> the words of rows r and r + 8, columns 8 j and on, times their factors; 0 stays 0
    whatever x is."""
    both = element(dtype).pack

    @device_function
    def row_words(x, j, factors):
        low, high = u32(0), u32(0)
        if factors[0] != 0:
            low = both(x[4 * j] * factors[0], x[4 * j + 1] * factors[0])
        if factors[1] != 0:
            high = both(x[4 * j + 2] * factors[1], x[4 * j + 3] * factors[1])
        return low, high
    return row_words


@functools.cache
def make_store_rows(dtype, columns, elements, pairs):
    """Device function ``store(sums, factors, upper, lower, step, has_upper, has_lower, column)``: rows r and r + 8, if there are such, to
    where `upper` and `lower` point; `columns` there are in the fragment, `elements` of them are stored, `step` elements apart or as words
    of two where there are `pairs`."""
    row_words = make_row_words(dtype, columns // 2)

    @device_function
    def put(o, step, column, word):
        if pairs:
            if column < elements:
                as_u32(advance(o, i64(column)))[0] = word
        else:
            if column < elements:
                o[column * step] = u16(word & 0xFFFF)
            if column + 1 < elements:
                o[(column + 1) * step] = u16(word >> 16)

    @device_function
    def store(sums, factors, upper, lower, step, has_upper, has_lower, column):
        for j in range(columns // 8):
            low, high = row_words(sums, j, factors)
            if has_upper:
                put(upper, step, column + 8 * j, low)
            if has_lower:
                put(lower, step, column + 8 * j, high)
    return store


@functools.cache
def make_store(dtype, columns, elements, pairs):
    """Device function ``store(sums, factors, o, o_strides, row, rows, column)``: `make_store_rows` of rows `row` and `row` + 8 of o, if
    they are below `rows`."""
    store_rows = make_store_rows(dtype, columns, elements, pairs)

    @device_function
    def store(sums, factors, o, o_strides, row, rows, column):
        at = advance(o, row * o_strides.row)
        below = advance(at, 8 * o_strides.row)
        store_rows(sums, factors, at, below, o_strides.column, row < rows, row + 8 < rows, column)
    return store


@functools.cache
def make_single_store(dtype, columns, elements, pairs):
    """`make_store` for other types than those of 16 bits: floats by two, if `pairs`, others element by element."""
    put, PAIRS = element(dtype).store, pairs and dtype == "float32"

    @device_function
    def scaled(sums, k, factor):
        """0 whatever the sums of a row that attends to nothing are."""
        return sums[k] * factor if factor != 0 else f32(0)

    @device_function
    def store(sums, factors, o, o_strides, row, rows, column):
        for h in range(2):
            if row + 8 * h < rows:
                at = advance(o, (row + 8 * h) * o_strides.row)
                for j in range(columns // 8):
                    k, first = 4 * j + 2 * h, column + 8 * j
                    low, high = scaled(sums, k, factors[h]), scaled(sums, k + 1, factors[h])
                    if PAIRS:
                        if first < elements:
                            store2(at, first, (low, high))
                    else:
                        if first < elements:
                            put(at, first * o_strides.column, low)
                        if first + 1 < elements:
                            put(at, (first + 1) * o_strides.column, high)
    return store


def stored_in_pairs(problem, t):
    """Whether two neighbours of a result lie side by side, and aligned, in all rows."""
    *steps, step = problem.strides(t)
    return t.alignment % (2 * t.itemsize) == 0 and step == 1 and all(s % 2 == 0 for s in (*steps, t.shape[-1]))


# ---- factors of probabilities and of the result, and largest magnitudes (`_quantization`)

class Factors(NamedTuple):
    """Device functions.

    of_result(quantization)
        What P @ v is multiplied by to be O.
    of_output(quantization)
        What O is multiplied by.
    raise_to(amax, value)
        An element of memory becomes the larger of it and the magnitude of a number.
    raise_by_warp(quantization, maxima)
        Those that there are, by the two numbers of each lane of a warp, all of which call it.
    reset(quantization)
        The maxima become zero.
    """
    of_result: Callable
    of_output: Callable
    raise_to: Callable
    raise_by_warp: Callable
    reset: Callable


@functools.cache
def make_factors(there) -> Factors:
    """The functions for the operands and results of a problem (`_quantization.Quantized`)."""
    SCALE_S, DESCALE_S, SCALE_O, AMAX_S, AMAX_O = there
    warp_maximum = make_reduce(maximum)

    @device_function
    def of_result(quantization):
        factor = f32(1)
        if SCALE_S:
            factor = factor * quantization.scale_s[0]
        if DESCALE_S:
            factor = factor * quantization.descale_s[0]
        return factor

    @device_function
    def of_output(quantization):
        return quantization.scale_o[0] if SCALE_O else f32(1)

    @device_function
    def raise_to(amax, value):
        raise_u32(amax, float_bits(fabs(value)))

    @device_function
    def raise_one(amax, value):
        largest = warp_maximum(value)
        if cuda.threadIdx.x & 31 == 0:
            raise_to(amax, largest)

    @device_function
    def raise_by_warp(quantization, maxima):
        if AMAX_S:
            raise_one(quantization.amax_s, maxima[0])
        if AMAX_O:
            raise_one(quantization.amax_o, maxima[1])

    @device_function
    def reset(quantization):
        if AMAX_S:
            quantization.amax_s[0] = u32(0)
        if AMAX_O:
            quantization.amax_o[0] = u32(0)
    return Factors(of_result, of_output, raise_to, raise_by_warp, reset)


@functools.cache
def make_row_maxima(there, sums):
    """Device functions for a thread's two rows of a fragment, whose accumulators are `sums` numbers.

    largest_probabilities(most, ref_max, factors, scale)
        most[2] and most[3], the thread's largest scores, become the rows' largest probabilities.
    raise_maxima(maxima, acc, most, factors, row, rows)
        (P, O) of all tiles so far, by the rows below `rows`; `factors` are what accumulators are multiplied by.
    """
    AMAX_S, AMAX_O = there.amax_s, there.amax_o

    @device_function
    def largest_probabilities(most, ref_max, factors, scale):
        if AMAX_S:
            for r in range(2):
                most[2 + r] = ex2(fma(quad_max(most[2 + r]), scale, -ref_max[r])) * factors[r]

    @device_function
    def magnitude(acc, r):
        largest = f32(0)
        for j in range(sums // 4):
            largest = maximum(largest, maximum(fabs(acc[4 * j + 2 * r]), fabs(acc[4 * j + 2 * r + 1])))
        return largest

    @device_function
    def raise_maxima(maxima, acc, most, factors, row, rows):
        for r in range(2):
            if row + 8 * r < rows and factors[r] != 0:
                if AMAX_S:
                    maxima[0] = maximum(maxima[0], most[2 + r])
                if AMAX_O:
                    maxima[1] = maximum(maxima[1], magnitude(acc, r) * fabs(factors[r]))
    return largest_probabilities, raise_maxima


# ---- tiles of a boolean mask in shared memory (`_mask_tiles`)

@device_function
def byte_of(shift):
    """A byte of a word, which `hide` looks at."""
    return u32(0xFF << shift)


@device_function
def hide(x, k, at, offset, byte):
    """Score number k takes no part where that byte of a word of a mask in shared memory is 0."""
    if load_shared_u32(at + u32(offset)) & byte == 0:
        x[k] = f32(NEG_INF)


@functools.cache
def make_apply_mask_tile(width, way):
    """Device function ``apply_mask_tile(x, at, row, lane)``: scores whose byte is 0 take no part. `at` is where the tile begins in shared
    memory: by "rows" of `width` bytes, swizzled over them, of which `row` is the first of the warp's 16; by "keys" one line for all."""
    LOG_ROWS, BY_ROWS = 1 if width == 64 else 0, way == "rows"  # rows of 128 bytes, over which the swizzle goes on

    @device_function
    def apply_mask_tile(x, at, row, lane):
        # a word is four neighbouring keys', two of them the thread's
        line, offset = row + (lane >> 2), (lane & 2) * 2
        if BY_ROWS:
            offset = offset + line * width + (line >> LOG_ROWS & width // 16 - 1) * 16
        byte = byte_of((lane & 1) * 16)
        for j in range(width // 8):
            for h in range(2):
                own = (offset ^ j // 2 * 16) + j % 2 * 8 + h * 8 * width if BY_ROWS else offset + j * 8
                hide(x, 4 * j + 2 * h, at, own, byte)
                hide(x, 4 * j + 2 * h + 1, at, own, byte << 8)
    return apply_mask_tile


@functools.cache
def make_apply_mask_tile_transposed(width, box):
    """Device function ``apply_mask_tile(x, at, warp, thread_lane)`` for a transposed tile, whose rows are a warpgroup's 64 keys and whose
    columns are queries: the mask lies by queries, 64 bytes each, swizzled over them, and `box` bytes from 64 queries to the next."""
    hold = pin(1)

    @device_function
    def apply_mask_tile(x, at, warp, thread_lane):
        # what follows from the lane is computed in each step: kept, it would spill
        held = cuda.local.array(1, i32)
        held[0] = thread_lane
        hold(held)
        lane = held[0]
        # a warp's 16 keys are one piece of each query; a thread has a byte of a word, and the one 8 bytes after it
        pair = lane & 3
        own, byte = pair * 128 + (warp ^ pair) * 16 + (lane >> 2 & 4), byte_of((lane >> 2 & 3) * 8)
        for j in range(width // 8):
            for e in range(2):
                for h in range(2):
                    hide(x, 4 * j + 2 * h + e, at, own + j // 8 * box + j % 8 * 512 + e * 64 + h * 8, byte)
    return apply_mask_tile


@functools.cache
def make_apply_mask_of_keys_transposed(width, permits):
    """Device function ``apply_mask_of_keys(x, mask, at, key, last_key, step)`` for a transposed tile: rows take no part where the mask does
    not permit key r (`_scores.Terms.permits`); the head's bytes begin at `at`, `step` bytes apart."""
    @device_function
    def apply_mask_of_keys(x, mask, at, key, last_key, step):
        for h in range(2):
            if not permits(mask, at + min(key + 8 * h, last_key) * step):
                for j in range(width // 8):
                    for e in range(2):
                        x[4 * j + 2 * h + e] = f32(NEG_INF)
    return apply_mask_of_keys

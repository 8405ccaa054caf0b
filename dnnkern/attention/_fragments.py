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
from dataclasses import replace

from ..device import cuda, device_function, f32, i32, i64, u16, u32
from ..device.convert import element
from ..device.fastmath import ex2, fabs, fma, fmax, lg2, rcp, tanh
from ..device.ldmatrix import ldmatrix_x4, ldmatrix_x4_trans
from ..device.philox import philox
from ..device.vec import advance, as_u32, load_shared_2f32, store2
from ..device.warp import add, any_lane, make_reduce, shuffle_xor
from ._flash import LN2, LOG2E
from ._scores import NEG_INF, make_terms

SLACK = 8.0
"""Probabilities may grow to 2**SLACK before sums are scaled down: neither float32 sums nor 16-bit floats lose anything by that, and of
random scores hardly any tile changes them."""

quad_max, quad_sum = make_reduce(fmax, 4), make_reduce(add, 4)


@functools.cache
def make_online_softmax(width, first, raised=0.0):
    """Device function ``online_softmax(x, most, row_max, ref_max, row_sum, rescale, scale, slack)`` -> whether accumulators have to be
    scaled, by `rescale`.

    The scores of a tile of `width` keys become exponentials of score - ref_max. The reference maximum rises only where a score exceeds it
    by the slack, SLACK / scale. The maxima of the first `first` keys come first, then those of the others: exponentials of the first,
    which the special function units compute, are in flight meanwhile; lanes exchange nothing unless some reference rises. Exponentials
    and row_sum are 2**raised times as large as ref_max says. `most` is scratch.
    """
    @device_function
    def raise_reference(row_max, ref_max, row_sum, rescale, most, scale):
        """To the maxima of the quads; `most` becomes what exponentials by the former references are multiplied by."""
        for h in range(2):
            new_max = quad_max(fmax(row_max[h], most[h]))
            new_ref = f32(0) if new_max == NEG_INF else new_max * scale
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
        if any_lane(most[0] > row_max[0] + slack or most[1] > row_max[1] + slack):
            raise_reference(row_max, ref_max, row_sum, rescale, most, scale)
            rescaled = True
        first_exponentials(x, ref_max, row_sum, 0, scale)
        first_exponentials(x, ref_max, row_sum, 1, scale)
        most[0], most[1] = largest_last(x, 0), largest_last(x, 1)
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


TANH_LIMIT = 0.75
T1, T2, T3, T4, T5 = -0.33332958817481995, 0.1332540661096573, -0.053344424813985825, 0.019582897424697876, -0.004716250114142895
"""tanh(y) = y (1 + T1 y**2 + T2 y**4 ...) up to this |y|: minimax, relative error 2**-22.5 with float32's rounding."""


@functools.cache
def make_cap(width):
    """Device function ``cap(x, scale, softcap)``: products become scores with a cap, which few of them come near: where all of a warp are
    below three quarters of it a polynomial is tanh, with no exponential and no division."""
    @device_function
    def cap(x, scale, softcap):
        most = f32(0)
        for k in range(width // 2):
            x[k] = x[k] * scale
            most = fmax(most, fabs(x[k]))
        if any_lane(most > TANH_LIMIT):
            for k in range(width // 2):
                x[k] = softcap * tanh(x[k])
        else:
            for k in range(width // 2):
                square = x[k] * x[k]
                series = fma(fma(fma(f32(T5), square, f32(T4)), square, f32(T3)), square, f32(T2))
                x[k] = x[k] * softcap * fma(fma(series, square, f32(T1)), square, f32(1))
    return cap


@functools.cache
def make_adjust(kind, width):
    """Device function ``adjust(x, row, own, at, column, last_row, last_key, scale, slope, softcap, bias, bias_at, bias_strides)``: products
    become scores with a cap, a bias and ALiBi.

    `bias_at` is where the head's bias begins; beyond the last row and key it is not read.
    """
    score, cap, BIAS = make_terms(replace(kind, softcap=False)).score, make_cap(width), bool(kind.bias)
    CAPPED, MORE = kind.softcap, not kind.softcap or bool(kind.bias) or kind.alibi

    @device_function
    def add(x, row, own, at, column, last_row, last_key, scale, slope, softcap, bias, bias_at, bias_strides):
        for h in range(2):
            before, line = at + column - own - 8 * h, i64(0)
            if BIAS:
                line = bias_at + min(row + 8 * h, last_row) * bias_strides.row
            for j in range(width // 8):
                for e in range(2):
                    where = line
                    if BIAS:
                        where = line + min(at + column + 8 * j + e, last_key) * bias_strides.column
                    x[4 * j + 2 * h + e] = score(x[4 * j + 2 * h + e], before + 8 * j + e, slope, bias, where, scale, softcap)

    @device_function
    def adjust(x, row, own, at, column, last_row, last_key, scale, slope, softcap, bias, bias_at, bias_strides):
        factor = scale
        if CAPPED:
            cap(x, scale, softcap)
            factor = f32(1)
        if MORE:
            add(x, row, own, at, column, last_row, last_key, factor, slope, softcap, bias, bias_at, bias_strides)
    return adjust


@functools.cache
def make_add_bias(dtype, width, box):
    """Device function ``add(x, at, row, lane, scale)``: products become scores with a tile of a bias in shared memory, which lies in boxes
    of `box` bytes with rows of 128, swizzled; `row` is the first of the warp's 16."""
    unpack = element(dtype).unpack

    @device_function
    def add_halves(x, at, row, lane, scale):
        words, mine = cuda.local.array(4, u32), row + (lane & 15)
        for i in range(width // 16):
            piece = u32((i % 4 * 2 + (lane >> 4)) ^ (mine & 7)) * 16
            ldmatrix_x4(words, 0, at + u32(i // 4 * box) + u32(mine * 128) + piece)
            for k in range(4):
                low, high = unpack(words[k])
                x[8 * i + 2 * k] = fma(x[8 * i + 2 * k], scale, low)
                x[8 * i + 2 * k + 1] = fma(x[8 * i + 2 * k + 1], scale, high)

    @device_function
    def add_floats(x, at, row, lane, scale):
        line = lane >> 2
        for j in range(width // 8):
            piece = u32(i32(j % 4 * 2 + (lane >> 1 & 1)) ^ line) * 16 + u32(lane & 1) * 8
            for h in range(2):
                low, high = load_shared_2f32(at + u32(j // 4 * box) + u32(i32(row + line + 8 * h) * 128) + piece)
                x[4 * j + 2 * h] = fma(x[4 * j + 2 * h], scale, low)
                x[4 * j + 2 * h + 1] = fma(x[4 * j + 2 * h + 1], scale, high)
    return add_floats if dtype == "float32" else add_halves


@functools.cache
def make_add_turned_bias(dtype, width, box):
    """Device function ``add(x, at, warp, lane, scale)``: products of a tile whose rows are keys and whose columns are rows become scores
    with a 16-bit bias, which lies in shared memory as rows of 128 bytes, swizzled, of a warpgroup's 64 keys, `box` bytes from 64 rows to
    the next."""
    unpack = element(dtype).unpack

    @device_function
    def add(x, at, warp, lane, scale):
        words, row = cuda.local.array(4, u32), (lane >> 4) * 8 + (lane & 7)
        piece = u32((warp * 2 + (lane >> 3 & 1)) ^ (lane & 7)) * 16
        own = at + u32(row * 128) + piece
        for i in range(width // 16):
            ldmatrix_x4_trans(words, 0, own + u32(i // 4 * box + i % 4 * 2048))
            for k in range(4):
                low, high = unpack(words[k])
                x[8 * i + 2 * k] = fma(x[8 * i + 2 * k], scale, low)
                x[8 * i + 2 * k + 1] = fma(x[8 * i + 2 * k + 1], scale, high)
    return add


@functools.cache
def make_apply_dropout(width):
    """Device function ``apply_dropout(x, seed, head, row, at, lane, threshold, factor)``: probabilities of a tile of `width` keys, the
    first of which, `at`, is a multiple of 8, become 0 or the factor's multiple, as `Terms.kept` specifies.

    Four random words are eight keys' of a row, and a thread of the quad needs one of them: each makes those of every fourth eight keys, and
    they are exchanged.
    """
    @device_function
    def pick(k, words):
        low = words[1] if k & 1 else words[0]
        high = words[3] if k & 1 else words[2]
        return high if k & 2 else low

    @device_function
    def apply_dropout(x, seed, head, row, at, lane, threshold, factor):
        own = lane & 3
        for h in range(2):
            line = (i64(head) << 32) + (row + 8 * h)
            for first in range(0, width // 8, 4):
                words = philox(seed, line, i64((at >> 3) + first + own))
                got = (pick(own, words), shuffle_xor(pick(own ^ 1, words), 1), shuffle_xor(pick(own ^ 2, words), 2),
                       shuffle_xor(pick(own ^ 3, words), 3))  # of the eight keys number own ^ 0, 1, 2, 3
                for s in range(4):
                    if first + s < width // 8:
                        word, k = pick(own ^ s, got), 4 * (first + s) + 2 * h
                        x[k] = x[k] * factor if word << 16 >= threshold else f32(0)
                        x[k + 1] = x[k + 1] * factor if word >= threshold else f32(0)
    return apply_dropout


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
def make_pack_bytes(dtype, count):
    """Device function ``pack(words, x)``: x[:4 * count] rounded to 8-bit floats, four to a word, in the order of keys of `_transposed`."""
    four = element(dtype).pack

    @device_function
    def pack(words, x):
        for i in range(count):
            k = 8 * (i // 2) + 2 * (i % 2)
            words[i] = four(x[k], x[k + 1], x[k + 4], x[k + 5])
    return pack


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


def is_adjusted(problem):
    """Whether scores are more than products times a positive number, which their maximum and their exponentials go by."""
    return problem.bias is not None or is_bent(problem)


def is_bent(problem):
    """Whether they are but for the bias."""
    p = problem
    return p.alibi or p.softcap > 0 or not 2.0 ** -60 < p.scale < 2.0 ** 60

"""Score modifiers: from products of queries and keys, as tensor cores leave them in registers, to scores.

    scale -> cap -> bias -> ALiBi          `make_adjust`; a bias of tiles in shared memory: `make_add_bias`
    masks                                  causal and window, lengths, boolean: masked scores become -inf
    dropout                                of probabilities, by Philox

A thread has parts of two rows, as `_fragments` describes. In a transposed tile the rows are keys and the columns queries.
"""
import functools
from dataclasses import replace
from typing import NamedTuple

from ..device import cuda, device_function, f32, i32, i64, u8, u32
from ..device.convert import element
from ..device.fastmath import TANH_LIMIT, ex2, fabs, fma, fmax, tanh, tanh_ratio
from ..device.index import ceil_div
from ..device.ldmatrix import ldmatrix_x4, ldmatrix_x4_trans
from ..device.philox import philox
from ..device.program_operands import make_position
from ..device.unroll import unrolled
from ..device.vec import load_shared_2f32
from ..device.warp import FULL, any_lane, shuffle_sync, shuffle_xor
from ._scores import LOG2E, NEG_INF, kept_of_eight, make_terms


def is_adjusted(problem, bias=True):
    """Whether scores are more than products times a positive number, which their maximum and their exponentials go by; `bias`: whether a
    bias counts."""
    p = problem
    return bias and p.bias is not None or p.alibi or p.softcap > 0 or p.score_mod is not None or not 2.0 ** -60 < p.scale < 2.0 ** 60


class Scoring(NamedTuple):
    """What products of a head of a sequence become scores with: how far queries are shifted among the keys, ALiBi's slope, the bias and
    where the head's begins, the last row and key, beyond which it is not read, scale and cap."""
    shift: i32
    slope: f32
    bias: object
    bias_at: i64
    bias_strides: object
    last_row: i32
    last_key: i32
    scale: f32
    softcap: f32


class Dropout(NamedTuple):
    """Of a head of all sequences': the seed of the random words, the threshold that they are compared with, the factor of what is kept."""
    seed: object
    head: i32
    threshold: u32
    factor: f32


# ---- cap, bias, ALiBi

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
                ratio = tanh_ratio(x[k])
                x[k] = x[k] * softcap * ratio
    return cap


# ---- a score_mod: each score by constant indices, since its program may be long

def levels_of(kind):
    """The `device.program_levels.Levels` of a `score_mod`; None without one that has them."""
    if kind.score_mod is None:
        return None
    from ..device.program_levels import make_levels
    return make_levels(kind.score_mod, kind.score_mod_bprop, kind.compute, kind.indices)


@functools.cache
def make_tile_levels(kind, width, transposed):
    """Device function ``levels(x, line, at, last_row, last_key, scale, operands)``: products become the tanh that scores are functions of.
    `line` is query r and `at` the key of the thread's first column, transposed key r and the query."""
    from ..device.program_levels import make_tanh_of_all
    argument, position_of, tanh_of_all = levels_of(kind).argument, make_position(transposed), make_tanh_of_all(width // 2)

    @device_function
    def of_one(k, s):
        x, most, line, at, last_row, last_key, scale, operands = s
        position = position_of(line + 4 * (k & 2), at, 8 * (k >> 2) + (k & 1), last_row, last_key)
        x[k] = argument(x[k] * scale, operands, position)
        most[k & 1] = fmax(most[k & 1], fabs(x[k]))
    arguments = unrolled(width // 2, of_one)

    @device_function
    def levels(x, line, at, last_row, last_key, scale, operands):
        most = cuda.local.array(2, f32)
        most[0] = most[1] = f32(0)
        arguments(0, (x, most, line, at, last_row, last_key, scale, operands))
        tanh_of_all(x, most)
    return levels


@functools.cache
def make_modify(kind, width, transposed):
    """Device function ``modify(x, products, line, at, last_row, last_key, scale, operands)``: products become scores by a `score_mod`.
    `products` get what `make_bend` takes: the scaled ones, or tanh where scores are functions of that. `line` and `at` as there."""
    terms, KEPT, position_of, parts = make_terms(kind), kind.bends, make_position(transposed), levels_of(kind)
    LEVELED, levels, resumed = parts is not None, parts and make_tile_levels(kind, width, transposed), parts and parts.resumed

    @device_function
    def of_one(k, s):
        x, products, line, at, last_row, last_key, scale, operands = s
        position, product = position_of(line + 4 * (k & 2), at, 8 * (k >> 2) + (k & 1), last_row, last_key), x[k]
        if LEVELED:
            x[k] = resumed(product, operands, position)
        else:
            x[k], product = terms.score_and_derivative(product, 0, f32(0), operands, position, scale, f32(0))
        if KEPT:
            products[k] = product
    scores = unrolled(width // 2, of_one)

    @device_function
    def modify(x, products, line, at, last_row, last_key, scale, operands):
        if LEVELED:
            levels(x, line, at, last_row, last_key, scale, operands)
        scores(0, (x, products, line, at, last_row, last_key, scale, operands))
    return modify


@functools.cache
def make_bend(kind, width, transposed):
    """Device function ``bend(0, (ds, products, line, at, last_row, last_key, operands))``: derivatives by scores of `make_modify` become
    those by the scaled products, where they are others."""
    position_of, gradient = make_position(transposed), (levels_of(kind) or make_terms(kind)).gradient

    @device_function
    def of_one(k, s):
        ds, products, line, at, last_row, last_key, operands = s
        position = position_of(line + 4 * (k & 2), at, 8 * (k >> 2) + (k & 1), last_row, last_key)
        ds[k] = gradient(ds[k], products[k], operands, position)
    return unrolled(width // 2, of_one) if kind.score_mod_bprop is not None else same_derivatives


@device_function
def same_derivatives(first, s):
    """Those by the scores and those by the products are the same."""


@functools.cache
def make_adjust(kind, width):
    """Device function ``adjust(x, row, own, at, column, last_row, last_key, scale, slope, softcap, bias, bias_at, bias_strides)``: products
    become scores with a cap, a bias and ALiBi.

    `bias_at` is where the head's bias begins, `bias` may be a `score_mod`'s operands of the head; beyond the last row and key neither is
    read.
    """
    if kind.score_mod is not None:
        modify = make_modify(kind, width, False)

        @device_function
        def adjust_by_program(x, row, own, at, column, last_row, last_key, scale, slope, softcap, bias, bias_at, bias_strides):
            modify(x, x, row, at + column, last_row, last_key, scale, bias)
        return adjust_by_program
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
def make_adjust_with_derivatives(kind, width, transposed):
    """Device function ``adjust(x, derivatives, line, at, column, scoring)``: `make_adjust` of a tile that may be transposed; with a cap
    `derivatives` get those of the scores by the products, but for the scale; with a program that has derivatives of its own, the scaled
    products. `line` is query r and `at` the first key, transposed key r and the first query; `scoring` is a `Scoring`."""
    terms, BIAS, CAPPED = make_terms(kind), bool(kind.bias), kind.softcap
    if kind.score_mod is not None:
        modify = make_modify(kind, width, transposed)

        @device_function
        def adjust_by_program(x, derivatives, line, at, column, scoring):
            modify(x, derivatives, line, at + column, scoring.last_row, scoring.last_key, scoring.scale, scoring.bias)
        return adjust_by_program

    @device_function
    def adjust(x, derivatives, line, at, column, scoring):
        strides = scoring.bias_strides
        for j in range(width // 8):
            for h in range(2):
                for e in range(2):
                    k, where = 4 * j + 2 * h + e, i64(0)
                    row, key = line + 8 * h, at + column + 8 * j + e
                    if transposed:
                        row, key = key, row
                    if BIAS:
                        where = scoring.bias_at + min(row, scoring.last_row) * strides.row + min(key, scoring.last_key) * strides.column
                    x[k], derivative = terms.score_and_derivative(x[k], key - row - scoring.shift, scoring.slope, scoring.bias, where,
                                                                  scoring.scale, scoring.softcap)
                    if CAPPED:
                        derivatives[k] = derivative
    return adjust


@functools.cache
def make_capped(kind, width, stats_of, share):
    """Device function ``capped(0, (x, dp, stats, first_row, first_key, column, scoring, kept, factor))`` of a transposed tile of scores
    whose derivatives take the products, with a cap or a `score_mod`: x are products, -inf where a query does not attend to a key, and
    become p, after dropout; dp becomes ds, but for the scale.

    ``stats_of(stats, j, column)`` gives (lse, delta), two of each, of columns 8 j + column and the next one, ``share(k, kept, factor)``
    what dropout makes of probability k.
    """
    if kind.score_mod is not None:
        return make_capped_by_program(kind, width, stats_of, share)
    terms, BIAS = make_terms(kind), bool(kind.bias)

    @device_function
    def of_one(k, step, key, lse, delta, arguments):
        x, dp, stats, first_row, first_key, column, scoring, kept, factor = arguments
        row = first_row + column + step
        bias_at, strides = scoring.bias_at, scoring.bias_strides
        if BIAS:
            bias_at = bias_at + min(row, scoring.last_row) * strides.row + min(key, scoring.last_key) * strides.column
        score, derivative = terms.score_and_derivative(x[k], key - row - scoring.shift, scoring.slope, scoring.bias, bias_at, scoring.scale,
                                                       scoring.softcap)
        p = f32(0) if x[k] == NEG_INF else ex2(fma(score, f32(LOG2E), -lse))
        part = share(k, kept, factor)
        dp[k] = terms.gradient(p * fma(dp[k], part, -delta), derivative, scoring.bias, bias_at)
        x[k] = p * part

    @device_function
    def columns(j, arguments):
        x, dp, stats, first_row, first_key, column, scoring, kept, factor = arguments
        lse, delta = stats_of(stats, j, column)
        for h in range(2):
            for e in range(2):
                of_one(4 * j + 2 * h + e, 8 * j + e, first_key + 8 * h, lse[e], delta[e], arguments)
    return unrolled(width // 8, columns)


@functools.cache
def make_capped_by_program(kind, width, stats_of, share):
    """`make_capped` with a `score_mod`; where scores are functions of one tanh x are that, as `make_tile_levels` leaves it, and -inf."""
    terms, position_of, parts = make_terms(kind), make_position(True), levels_of(kind)
    LEVELED, resumed, gradient = parts is not None, parts and parts.resumed, (parts or terms).gradient

    @device_function
    def of_one(k, step, key, lse, delta, arguments):
        x, dp, stats, first_row, first_key, column, scoring, kept, factor = arguments
        at = position_of(key, first_row + column, step, scoring.last_row, scoring.last_key)
        product = x[k] if x[k] != NEG_INF else f32(0)  # 0 times infinity is no derivative
        if LEVELED:
            score = resumed(product, scoring.bias, at)
        else:
            score, product = terms.score_and_derivative(product, 0, f32(0), scoring.bias, at, scoring.scale, f32(0))
        p = f32(0) if x[k] == NEG_INF else ex2(fma(score, f32(LOG2E), -lse))
        part = share(k, kept, factor)
        dp[k] = gradient(p * fma(dp[k], part, -delta), product, scoring.bias, at)
        x[k] = p * part

    @device_function
    def columns(j, arguments):
        x, dp, stats, first_row, first_key, column, scoring, kept, factor = arguments
        lse, delta = stats_of(stats, j, column)
        of_one(4 * j, 8 * j, first_key, lse[0], delta[0], arguments)
        of_one(4 * j + 1, 8 * j + 1, first_key, lse[1], delta[1], arguments)
        of_one(4 * j + 2, 8 * j, first_key + 8, lse[0], delta[0], arguments)
        of_one(4 * j + 3, 8 * j + 1, first_key + 8, lse[1], delta[1], arguments)
    return unrolled(width // 8, columns)


@functools.cache
def make_add_bias(dtype, width, box):
    """Device function ``add(x, at, row, lane, scale)``: products become scores with a tile of a bias in shared memory, which lies in boxes
    of `box` bytes with rows of 128, swizzled; `row` is the first of the warp's 16."""
    unpack = element(dtype).unpack

    @device_function
    def add_16bit(x, at, row, lane, scale):
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
    return add_floats if dtype == "float32" else add_16bit


@functools.cache
def make_add_bias_transposed(dtype, width, box):
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


# ---- masks

@functools.cache
def make_apply_mask(width, left, right):
    """Device function ``apply_mask(x, own, at, column, keys, bounds)``: scores of keys that a query does not attend to: -inf.

    `own` is the position of query r among the keys of its sequence, `at` the tile's first key, `keys` how many there are; `left` and
    `right` specify which of the bounds there are.
    """
    keep = make_keep(width, left)

    @device_function
    def apply_mask(x, own, at, column, keys, bounds):
        before = at + column
        end0 = keys - before
        end1, begin0 = end0, i32(0)
        if right:
            last = own - before + bounds[1]
            end0, end1 = min(end0, last + 1), min(end1, last + 9)
        if left:
            begin0 = own - before - bounds[0]
        keep(x, begin0, end0, begin0 + 8, end1)
    return apply_mask


@functools.cache
def make_apply_mask_transposed(width, left, right):
    """Device function ``apply_mask(x, own, at, column, exist, bounds)`` for a transposed tile, whose rows are keys and whose columns are
    queries: `own` is the query at the position of key r, `at` the tile's first query, `exist` how many keys there are from key r on."""
    keep = make_keep(width, right)

    @device_function
    def apply_mask(x, own, at, column, exist, bounds):
        before = own - at - column
        end0, end1, begin0 = i32(width), i32(width), i32(0)
        if left:
            end0 = before + bounds[0] + 1
            end1 = end0 + 8
        if right:
            begin0 = before - bounds[1]
        if exist <= 0:
            end0 = 0
        if exist <= 8:
            end1 = 0
        keep(x, begin0, end0, begin0 + 8, end1)
    return apply_mask


@functools.cache
def make_keep(width, begins):
    """Device function ``keep(x, begin0, end0, begin1, end1)``: what is outside of these columns becomes -inf, in the thread's two rows."""
    @device_function
    def keep(x, begin0, end0, begin1, end1):
        for j in range(width // 8):
            for e in range(2):
                if 8 * j + e >= end0 or (begins and 8 * j + e < begin0):
                    x[4 * j + e] = f32(NEG_INF)
                if 8 * j + e >= end1 or (begins and 8 * j + e < begin1):
                    x[4 * j + 2 + e] = f32(NEG_INF)
    return keep


@functools.cache
def make_apply_boolean_mask(width, transposed=False):
    """Device function ``apply_boolean_mask(x, line, at, column, last_row, last_key, mask, mask_at, mask_strides)``: scores of masked
    pairs become -inf. `line` is query r and `at` the first key, in a transposed tile key r and the first query; `mask_at` is where the
    head's mask begins."""
    @device_function
    def apply_boolean_mask(x, line, at, column, last_row, last_key, mask, mask_at, mask_strides):
        for j in range(width // 8):
            for h in range(2):
                for e in range(2):
                    row, key = line + 8 * h, at + column + 8 * j + e
                    if transposed:
                        row, key = key, row
                    here = min(row, last_row) * mask_strides.row + min(key, last_key) * mask_strides.column
                    if mask[i64(mask_at + here)] == u8(0):
                        x[4 * j + 2 * h + e] = f32(NEG_INF)
    return apply_boolean_mask


# ---- dropout

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


def words_of_bits(width):
    """Words that hold a bit for each of a thread's elements."""
    return ceil_div(width, 64)


@device_function
def bit_of(k):
    """Of element k in its word: each row of a fragment has 16 bits, each 32 columns 8 of them."""
    return u32(((k & 2) << 3) + ((k & 28) >> 1) + (k & 1))


@functools.cache
def make_draw_transposed(width):
    """Device function ``draw(kept, dropout, key, row, lane)``: which probabilities of a transposed tile dropout keeps, as `Terms.kept`
    specifies: a bit for each, 32 to a word, in the order of `bit_of`. `key` is key r, `row` the tile's first query.

    Eight keys of a query have their random words together, and the eight lanes that have these keys of a tile need the same: each draws
    those of every eighth query, a bit for each key, and the bits are exchanged.
    """
    WORDS = words_of_bits(width)

    @device_function
    def draw(kept, dropout, key, row, lane):
        own, t = lane >> 2, lane & 3
        for word in range(WORDS):
            drawn = u32(0)
            for h in range(2):
                group = i64((key + 8 * h) >> 3)
                for half in range(2 if width > 64 * word + 32 else 1):
                    query = row + 64 * word + 32 * half + 8 * (own >> 1) + 2 * t + (own & 1)
                    four = philox(dropout.seed, (i64(dropout.head) << 32) + query, group)
                    drawn = drawn | (kept_of_eight(four, dropout.threshold) << u32(8 * (2 * h + half)))
            kept[word] = u32(0)
            for source in range(8):
                bits = (shuffle_sync(u32(FULL), drawn, 4 * source + t) >> u32(own)) & 0x01010101
                kept[word] = kept[word] | (bits << u32(source))
    return draw

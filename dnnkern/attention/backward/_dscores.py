"""Derivatives of the scores that tensor cores left in registers: what the gradient's kernels make of two products of tiles.

Of a tile x is the product of q and k, y that of do and v, as fragments (`_fragments`). With the level of a row, the logarithm of its sum of
exponentials, and its delta, sum(do * o),

    p = exp(score - level)          ds = p * (y - delta)

x becomes p, after dropout, and y ds, by the product but for the scale. In a turned tile the rows are keys and the columns rows: levels and
deltas are those of columns, and come from shared memory.
"""
import functools
import math

from ...device import device_function, f32, i64, u32
from ...device.fastmath import ex2, fma
from ...device.index import ceil_div
from ...device.philox import philox
from ...device.unroll import unrolled
from ...device.vec import load_shared_2f32
from ...device.warp import FULL, shuffle_sync
from .._scores import LOG2E, NEG_INF, kept_of_eight, make_terms

WIDEST_DROPPED = 32
"""Columns of a tile with dropout: with more, loops have too many instructions to be unrolled, and arrays leave registers."""


@device_function
def row_level(lse, at, exists):
    """The level of a row, of powers of two; one that makes its probabilities 0 where it sees nothing."""
    level = f32(math.inf)
    if exists:
        value = lse[at]
        if value != NEG_INF:
            level = value * LOG2E
    return level


@functools.cache
def make_slopes(kind, width, turned):
    """Device functions of tiles with `width` columns: ``adjust(x, derivatives, line, at, column, scoring)``, by which products become
    scores with a cap, a bias and ALiBi, and ``slopes(x, y, levels, deltas, derivatives, line, at, column, softmax_scale, dropping)``.

    `line` is the row, turned the key, of the fragment's row r; `at` is the key, turned the row, of column 0; `levels` and `deltas` are
    arrays for the thread's two rows, turned the shared addresses of those of column 0. `derivatives` has an element for each of x where
    there is a cap.
    """
    terms, BIAS, CAPPED, DROPOUT = make_terms(kind), bool(kind.bias), kind.softcap, kind.dropout

    @device_function
    def places(line, at):
        """(row, key)."""
        if turned:
            return at, line
        return line, at

    @device_function
    def adjust(x, derivatives, line, at, column, scoring):
        shift, slope, bias, bias_at, strides, last_row, last_key, scale, softcap = scoring
        for j in range(width // 8):
            for h in range(2):
                for e in range(2):
                    k, where = 4 * j + 2 * h + e, i64(0)
                    row, key = places(line + 8 * h, at + column + 8 * j + e)
                    if BIAS:
                        where = bias_at + min(row, last_row) * strides.row + min(key, last_key) * strides.column
                    x[k], derivative = terms.score_and_derivative(x[k], key - row - shift, slope, bias, where, scale, softcap)
                    if CAPPED:
                        derivatives[k] = derivative

    @device_function
    def slopes(x, y, levels, deltas, derivatives, line, at, column, softmax_scale, dropping):
        seed, head, threshold, factor = dropping
        for j in range(width // 8):
            if turned:
                level_pair = load_shared_2f32(levels + u32(4 * (8 * j + column)))
                delta_pair = load_shared_2f32(deltas + u32(4 * (8 * j + column)))
            for h in range(2):
                for e in range(2):
                    k, share = 4 * j + 2 * h + e, f32(1)
                    if turned:
                        level, delta = level_pair[e], delta_pair[e]
                    else:
                        level, delta = levels[h], deltas[h]
                    if DROPOUT:
                        row, key = places(line + 8 * h, at + column + 8 * j + e)
                        share = terms.kept(f32(1), seed, head, row, key, threshold, factor)
                    p = ex2(fma(x[k], softmax_scale, -level))
                    value = p * fma(y[k], share, -delta)
                    if CAPPED:
                        value = value * derivatives[k]
                    x[k], y[k] = p * share, value
    return adjust, slopes


@functools.cache
def make_turned_steps(kind, width, together):
    """Device functions of a turned tile, in two steps between which the product of do and v may still be under way:
    ``exponentials(x, levels, column, softmax_scale)``, x becomes p, and ``slopes(x, y, deltas, column, kept, factor)``; with a cap, whose
    derivative takes the score, one step, ``capped(x, y, levels, deltas, line, at, column, scoring, kept, factor)``.

    Of `together` rows first the levels, then the deltas lie in shared memory, then those of the next as many.

    With a cap x are the products, -inf where a row does not see a key. Otherwise `adjust` of `make_slopes` made scores of them. With
    dropout `kept` is what `make_turned_kept` found.
    """
    terms, BIAS, DROPOUT = make_terms(kind), bool(kind.bias), kind.dropout

    @device_function
    def place(j, column):
        """Bytes before the numbers of a fragment's columns 8 j + column and the next one."""
        return u32(4 * (8 * j + 8 * j // together * together + column))

    @device_function
    def share(k, kept, factor):
        if DROPOUT:
            return factor if (kept[k >> 5] >> _bit(k)) & 1 else f32(0)
        return f32(1)

    @device_function
    def exponentials(x, levels, column, softmax_scale):
        for j in range(width // 8):
            pair = load_shared_2f32(levels + place(j, column))
            for h in range(2):
                for e in range(2):
                    x[4 * j + 2 * h + e] = ex2(fma(x[4 * j + 2 * h + e], softmax_scale, -pair[e]))

    @device_function
    def slopes(x, y, deltas, column, kept, factor):
        for j in range(width // 8):
            pair = load_shared_2f32(deltas + place(j, column))
            for h in range(2):
                for e in range(2):
                    k = 4 * j + 2 * h + e
                    if DROPOUT:
                        part = share(k, kept, factor)
                        y[k] = x[k] * fma(y[k], part, -pair[e])
                        x[k] = x[k] * part
                    else:
                        y[k] = x[k] * (y[k] - pair[e])

    @device_function
    def capped_columns(j, s):
        x, y, levels, deltas, line, at, column, scoring, kept, factor = s
        shift, slope, bias, bias_at, strides, last_row, last_key, scale, softcap = scoring
        level_pair = load_shared_2f32(levels + place(j, column))
        delta_pair = load_shared_2f32(deltas + place(j, column))
        for h in range(2):
            for e in range(2):
                k, where = 4 * j + 2 * h + e, i64(0)
                row, key = at + column + 8 * j + e, line + 8 * h
                if BIAS:
                    where = bias_at + min(row, last_row) * strides.row + min(key, last_key) * strides.column
                score, derivative = terms.score_and_derivative(x[k], key - row - shift, slope, bias, where, scale, softcap)
                p = f32(0) if x[k] == NEG_INF else ex2(fma(score, f32(LOG2E), -level_pair[e]))
                part = share(k, kept, factor)
                y[k] = p * fma(y[k], part, -delta_pair[e]) * derivative
                x[k] = p * part
    columns = unrolled(width // 8, capped_columns)

    @device_function
    def capped(x, y, levels, deltas, line, at, column, scoring, kept, factor):
        columns(0, (x, y, levels, deltas, line, at, column, scoring, kept, factor))
    return exponentials, slopes, capped


@device_function
def _bit(k):
    """Of element k of a turned tile in its word: each row of a fragment has 16 bits, each 32 columns 8 of them."""
    return u32(((k & 2) << 3) + ((k & 28) >> 1) + (k & 1))


@functools.cache
def make_turned_kept(width):
    """Device function ``find(kept, dropping, line, at, lane)``: which probabilities of a turned tile dropout keeps, as `Terms.kept` says:
    a bit for each element, 32 to a word, in the order of `_bit`.

    Eight keys of a row have their random words together, and the eight lanes that have these keys of a tile need the same: each draws
    those of every eighth row, a bit for each key, and the bits are exchanged.
    """
    MASKS = ceil_div(width, 64)

    @device_function
    def find(kept, dropping, line, at, lane):
        seed, head, threshold, _ = dropping
        own, t = lane >> 2, lane & 3
        for word in range(MASKS):
            drawn = u32(0)
            for h in range(2):
                group = i64((line + 8 * h) >> 3)
                for half in range(2 if width > 64 * word + 32 else 1):
                    row = at + 64 * word + 32 * half + 8 * (own >> 1) + 2 * t + (own & 1)
                    four = philox(seed, (i64(head) << 32) + row, group)
                    drawn = drawn | (kept_of_eight(four, threshold) << u32(8 * (2 * h + half)))
            kept[word] = u32(0)
            for source in range(8):
                bits = (shuffle_sync(u32(FULL), drawn, 4 * source + t) >> u32(own)) & 0x01010101
                kept[word] = kept[word] | (bits << u32(source))
    return find

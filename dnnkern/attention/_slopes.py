"""Derivatives of the scores that tensor cores left in registers: what the gradient's kernels make of two products of tiles.

Of a tile x is the product of q and k, y that of do and v, as fragments (`_fragments`). With the level of a row, the logarithm of its sum of
exponentials, and its delta, sum(do * o),

    p = exp(score - level)          ds = p * (y - delta)

x becomes p, after dropout, and y ds, by the product but for the scale. In a turned tile the rows are keys and the columns rows: levels and
deltas are those of columns, and come from shared memory.
"""
import functools
import math

from ..device import device_function, f32, i32, i64, u32
from ..device.fastmath import ex2, fma
from ..device.vec import load_shared_2f32
from ._flash import LOG2E
from ._scores import NOTHING, make_terms

WIDEST_DROPPED = 32
"""Columns of a tile with dropout: with more, loops have too many instructions to be unrolled, and arrays leave registers."""


@device_function
def row_level(lse, at, exists):
    """The level of a row, of powers of two; one that makes its probabilities 0 where it sees nothing."""
    level = f32(math.inf)
    if exists:
        value = lse[at]
        if value != f32(NOTHING):
            level = f32(value * f32(LOG2E))
    return level


@functools.cache
def make_slopes(kind, width, turned):
    """Device functions of tiles with `width` columns: ``adjust(x, derivatives, line, at, column, scoring)``, by which products become
    scores with a cap, a bias and ALiBi, and ``slopes(x, y, levels, deltas, derivatives, line, at, column, steepness, dropping)``.

    `line` is the row, turned the key, of the fragment's row r; `at` is the key, turned the row, of column 0; `levels` and `deltas` are
    arrays for the thread's two rows, turned the shared addresses of those of column 0. `derivatives` has an element for each of x where
    there is a cap.
    """
    terms, BIAS, CAPPED, DROPOUT = make_terms(kind), bool(kind.bias), kind.softcap, kind.dropout

    @device_function
    def places(line, at):
        """(row, key)."""
        if turned:
            return i32(at), i32(line)
        return i32(line), i32(at)

    @device_function
    def adjust(x, derivatives, line, at, column, scoring):
        shift, slope, bias, bias_at, strides, last_row, last_key, scale, softcap = scoring
        for j in range(width // 8):
            for h in range(2):
                for e in range(2):
                    k, where = 4 * j + 2 * h + e, i64(0)
                    row, key = places(i32(line + 8 * h), i32(at + column + 8 * j + e))
                    if BIAS:
                        where = i64(bias_at + i64(min(row, last_row)) * strides[2] + i64(min(key, last_key)) * strides[3])
                    x[k], derivative = terms.slanted(x[k], i32(key - row - shift), slope, bias, where, scale, softcap)
                    if CAPPED:
                        derivatives[k] = derivative

    @device_function
    def slopes(x, y, levels, deltas, derivatives, line, at, column, steepness, dropping):
        seed, head, threshold, factor = dropping
        for j in range(width // 8):
            if turned:
                level_pair = load_shared_2f32(u32(levels + u32(4 * (8 * j + column))))
                delta_pair = load_shared_2f32(u32(deltas + u32(4 * (8 * j + column))))
            for h in range(2):
                for e in range(2):
                    k, share = 4 * j + 2 * h + e, f32(1)
                    if turned:
                        level, delta = level_pair[e], delta_pair[e]
                    else:
                        level, delta = levels[h], deltas[h]
                    if DROPOUT:
                        row, key = places(i32(line + 8 * h), i32(at + column + 8 * j + e))
                        share = terms.kept(f32(1), seed, head, row, key, threshold, factor)
                    p = ex2(fma(x[k], steepness, f32(-level)))
                    value = f32(p * fma(y[k], share, f32(-delta)))
                    if CAPPED:
                        value = f32(value * derivatives[k])
                    x[k], y[k] = f32(p * share), value
    return adjust, slopes

"""Masks of scores that are fragments in registers (`_fragments`): causal and window, lengths, boolean. Masked scores become -inf."""
import functools

from ..device import device_function, f32, i32, i64, u8
from ._scores import NEG_INF


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

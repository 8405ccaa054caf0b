"""Where rows lie, which sequence a tile belongs to, which keys a query attends to, and what a score is: what all algorithms of attention
compute alike."""
import functools
import math
from typing import Callable, NamedTuple

from ..device import device_function, f32, i32, i64, u8, u32
from ..device.convert import element
from ..device.fastmath import exp2, fabs, tanh
from ..device.index import Divisor, divide_remainder, divisor
from ..device.philox import make_stream_seed, philox
from ..device.program_operands import MEMBERS, Position
from ..device.vec import advance
from ..engine.document_blocks import make_is_there
from ._score_mod import joined

NEG_INF = -float("inf")
LOG2E, LN2 = 1.4426950408889634, 0.6931471805599453
LOWEST = -1e9
"""A row whose scores times log2(e) are all less attends to nothing, as if they were -inf: programs mask with such numbers. The difference
of a score and the maximum, which is one fma, would be the maximum's own rounding."""


class Terms(NamedTuple):
    """Device functions of a `Kind`.

    find(t, offsets, step, batch)
        The packed sequence that row t may belong to: the last one that begins there or before.
    lengths(b, sequences, rows, keys)
        (first row, rows, first key, keys) of sequence b, never outside the arrays, of `Sequences`.
    shift(rows, keys)
        Query i has position i + shift among the keys.
    key_range(i, rows, keys, bounds)
        Keys (first, end) that query i of a sequence attends to; none if there is no such query.
    query_range(j, rows, keys, bounds)
        Queries (first, end) that attend to key j of a sequence.
    slope(h, heads)
        ALiBi's for a head; 0 without.
    score(dot, distance, slope, bias, at, scale, softcap)
        The score of a product of a row and a key that is `distance` after the row's own position; the bias's element is at `at`.
    score_and_derivative(dot, ...)
        (the score, its derivative by the product but for `scale`, which with a cap is a multiple of the cap; with a `score_mod` what that
        was computed of).
    of_head(bias, image, h)
        The bias as the others take it; of a `score_mod` its operands, which kernels are given for a bias.
    where(at, i, j)
        What the others take for `at` of query i and key j: that, the index of the bias's element; with a `score_mod` a
        `Position`.
    gradient(ds, derivative, bias, at)
        The derivative of the loss by the product but for `scale`, of that by the score and of what `score_and_derivative` gave beside it.
    permits(mask, at)
        Whether the mask, whose element is at `at`, lets a row attend to a key; True without a mask.
    seed_of(seed, offset)
        The seed of dropout's random words, from what kernels are given; `kept` and others take it.
    skips(), is_there(operands, image, row, rows, column, columns)
        Whether a mask by documents leaves tiles out; whether it leaves something of a tile (`engine.document_blocks`).
    kept(p, seed, head, i, j, threshold, factor)
        A probability after dropout: 0 or a multiple of it; `head` is that of all sequences.
    """
    find: Callable
    lengths: Callable
    shift: Callable
    key_range: Callable
    query_range: Callable
    slope: Callable
    score: Callable
    score_and_derivative: Callable
    of_head: Callable
    where: Callable
    gradient: Callable
    permits: Callable
    seed_of: Callable
    skips: Callable
    is_there: Callable
    kept: Callable


@device_function
def between(value, low, high):
    """A 32-bit integer clipped to a range."""
    return min(max(value, low), high)


@device_function
def find(t, offsets, step, batch):
    low, high = i32(0), batch
    while high - low > 1:
        middle = (low + high) >> 1
        if offsets[middle * step] <= t:
            low = middle
        else:
            high = middle
    return low


@functools.cache
def make_lengths(kind):
    """`Terms.lengths`."""
    ROWS, KEYS, PACKED = kind.limits_rows, kind.limits_keys, kind.packed

    @device_function
    def limited(lengths, step, b, most):
        first, count = i32(0), i32(0)
        if PACKED:
            first = between(lengths[b * step], 0, most)
            count = between(lengths[(i64(b) + 1) * step], first, most) - first
        else:
            count = between(lengths[b * step], 0, most)
        return first, count

    @device_function
    def lengths(b, sequences, rows, keys):
        row, key, count, many = i32(0), i32(0), i32(rows), i32(keys)
        if ROWS:
            row, count = limited(sequences.rows, sequences.row_step, b, i32(rows))
        if KEYS:
            key, many = limited(sequences.keys, sequences.key_step, b, i32(keys))
        return row, count, key, many
    return lengths


@device_function
def load_row_lse(lse, at, exists):
    """lse of a row as a power of two; one that makes its probabilities 0 where it attends to nothing."""
    value = f32(math.inf)
    if exists:
        own = lse[at]
        if own != NEG_INF:
            value = own * LOG2E
    return value


@device_function
def kept_of_eight(words, threshold):
    """Of four random words, a half for each of eight neighbouring keys, which are kept: bit k is that of key k."""
    bits = u32(0)
    for k in range(4):
        if words[k] << 16 >= threshold:
            bits = bits | u32(1 << 2 * k)
        if words[k] >= threshold:
            bits = bits | u32(2 << 2 * k)
    return bits


@functools.cache
def make_terms(kind) -> Terms:
    """Device functions of a kind."""
    T, BOTTOM, ALIBI, SOFTCAP, DROPOUT = kind.real, kind.bottom, kind.alibi, kind.softcap, kind.dropout
    BIAS, MASK, MODIFIED, modifier = bool(kind.bias), kind.mask, kind.score_mod is not None, make_score_mod(kind)
    modify, load_bias, SKIPS = modifier.modify, element(kind.bias or kind.dtype).load, kind.documents >= 0

    @device_function
    def shift(rows, keys):
        return keys - rows if BOTTOM else 0

    @device_function
    def key_range(i, rows, keys, bounds):
        first, last = i32(0), i32(0)
        if i >= 0 and i < rows:
            own = i + shift(rows, keys)
            first = max(own - bounds[0], 0)
            last = max(first, min(own + bounds[1] + 1, keys))
        return first, last

    @device_function
    def query_range(j, rows, keys, bounds):
        first, last = i32(0), i32(0)
        if j >= 0 and j < keys:
            own = j - shift(rows, keys)
            first = max(own - bounds[1], 0)
            last = max(first, min(own + bounds[0] + 1, rows))
        return first, last

    @device_function
    def slope(h, heads):
        value = T(0)
        if ALIBI:
            # those of the largest power of two; the others are every other one of twice as many
            power, part = i32(1), T(8)
            while power * 2 <= i32(heads):
                power, part = power * 2, T(part * T(0.5))
            step = i32(h + 1)
            if h >= power:
                step, part = 2 * i32(h - power) + 1, T(part * T(0.5))
            value = exp2(-T(T(step) * part))
        return value

    @device_function
    def score_and_derivative(dot, distance, slope, bias, at, scale, softcap):
        x, derivative = T(dot * scale), T(1)
        if SOFTCAP:
            level = tanh(x)
            x, derivative = T(softcap * level), T(softcap * T(T(1) - T(level * level)))
        if BIAS:
            x = T(x + T(load_bias(bias, at)))
        if ALIBI:
            x = T(x - T(slope * fabs(T(distance))))
        if MODIFIED:
            x, derivative = modify(x, bias, at), x
        return x, derivative

    @device_function
    def score(dot, distance, slope, bias, at, scale, softcap):
        x, _ = score_and_derivative(dot, distance, slope, bias, at, scale, softcap)
        return x

    @device_function
    def of_bias(at, i, j):
        return at

    @device_function
    def of_pair(at, i, j):
        return Position(i, j, i, j, i32(0), i32(0))

    @device_function
    def permits(mask, at):
        if MASK:
            return mask[at] != u8(0)
        return True

    @device_function
    def kept(p, seed, head, i, j, threshold, factor):
        if DROPOUT:
            a, b, c, d = philox(seed, (i64(head) << 32) + i, i64(j >> 3))
            word, pair = a, (j >> 1) & 3
            if pair == 1:
                word = b
            if pair == 2:
                word = c
            if pair == 3:
                word = d
            if j & 1 == 0:
                word = word << 16
            p = T(p * factor) if word >= threshold else T(0)
        return p
    return Terms(find, make_lengths(kind), shift, key_range, query_range, slope, score, score_and_derivative, modifier.of_head,
                 of_pair if MODIFIED else of_bias, modifier.gradient, permits,
                 make_stream_seed(kind.seed_array, kind.offset_array), device_function(lambda: SKIPS), make_is_there(kind.documents), kept)


# ---- a score_mod

class ScoreMod(NamedTuple):
    """Device functions of a `Kind`.

    of_head(operands, image, head)
        The operands, or the bias, for a head of an image.
    modify(x, operands, at)
        The score of a scaled product at a `Position`.
    gradient(ds, x, operands, at)
        The derivative by that, of the derivative by the score.
    """
    of_head: Callable
    modify: Callable
    gradient: Callable


same_operands, same_score = device_function(lambda operands, image, head: operands), device_function(lambda x, operands, at: x)
same_gradient = device_function(lambda ds, x, operands, at: ds)


@functools.cache
def make_score_mod(kind) -> ScoreMod:
    """The functions of a kind; without a program scores stay as they are, and derivatives are multiplied."""
    T, score_mod, bprop = kind.real, kind.score_mod, kind.score_mod_bprop

    @device_function
    def times(ds, derivative, operands, at):
        return T(ds * derivative)
    if score_mod is None:
        return ScoreMod(same_operands, same_score, times)
    from ..device.program_affine import make_at_position
    from ..device.program_batches import make_moved
    move, count = make_moved(joined(score_mod, bprop), 2), len(score_mod.operands)
    run = make_at_position(score_mod, kind.compute, kind.indices[:count], 0)

    @device_function
    def of_head(operands, image, head):
        return move(operands, (image, head))

    @device_function
    def modify(x, operands, at):
        return run((x,), operands, at)
    if bprop is None:
        return ScoreMod(of_head, modify, same_gradient)
    run_back = make_at_position(bprop, kind.compute, kind.indices[count:], sum(len(MEMBERS[access]) for _, access in score_mod.operands))

    @device_function
    def gradient(ds, x, operands, at):
        return run_back((ds, x), operands, at)
    return ScoreMod(of_head, modify, gradient)


# ---- tiles

@functools.cache
def make_tile(packed, height):
    """Device function ``tile_of(image, tile, offsets, step, batch, count)`` -> (sequence, row that its tile begins with). What lies past
    the packed sequences is one more.

    Packed sequence b has the tiles from ``offset[b] // height + b`` on: never fewer than it needs, and found without a look at the others.
    """
    SIZE, MULTIPLIER, SHIFT = divisor(height)

    @device_function
    def begins(b, offsets, step, count):
        whole, _ = divide_remainder(between(offsets[b * step], 0, count), (SIZE, MULTIPLIER, SHIFT))
        return whole + b

    @device_function
    def tile_of(image, tile, offsets, step, batch, count):
        if not packed:
            return image, tile * height
        low, high = i32(0), batch + 1
        while high - low > 1:
            middle = (low + high) >> 1
            if begins(middle, offsets, step, count) <= tile:
                low = middle
            else:
                high = middle
        return low, (tile - begins(low, offsets, step, count)) * height
    return tile_of


@functools.cache
def make_extent(kind):
    """Device function ``extent(b, sequences, batch, rows, keys)`` -> (first row, rows, first key, keys) of a sequence, or of what lies
    behind the packed ones."""
    lengths, PACKED = make_terms(kind).lengths, kind.packed

    @device_function
    def extent(b, sequences, batch, rows, keys):
        first_row, count, first_key, many = i32(0), rows, i32(0), keys
        if not PACKED or b < batch:
            first_row, count, first_key, many = lengths(b, sequences, rows, keys)
        else:
            first_row = between(sequences.rows[b * sequences.row_step], 0, rows)
            first_key = between(sequences.keys[b * sequences.key_step], 0, keys)
            count, many = rows - first_row, keys - first_key
        return first_row, count, first_key, many
    return extent


@functools.cache
def make_attends(kind):
    """Device function ``attends(i, j, shift, keys, bounds)``: whether query i, which exists, attends to key j of its sequence."""
    @device_function
    def attends(i, j, shift, keys, bounds):
        distance = j - (i + shift)
        return j < keys and distance <= bounds[1] and distance >= -bounds[0]
    return attends


# ---- block masks

LOG_BLOCK = 7  # of queries, and keys, of a block, which has a bit


@device_function
def is_block_there(block_mask, at, j, strides):
    """Whether the block of key j, of those whose bytes begin at `at`, takes part."""
    return (block_mask[at + (j >> LOG_BLOCK + 3) * strides.column] >> ((j >> LOG_BLOCK) & 7)) & 1 != 0


@functools.cache
def make_next_tile(masked):
    """Device function ``next_tile(j, end, block_mask, at, strides)``: the first tile of keys from j on that takes part; `end` or more where
    there is none. Tiles are parts of blocks."""
    @device_function
    def next_tile(j, end, block_mask, at, strides):
        if masked:
            while j < end and not is_block_there(block_mask, at, j, strides):
                j = ((j >> LOG_BLOCK) + 1) << LOG_BLOCK
        return j
    return next_tile


# ---- addresses

class PageSteps(NamedTuple):
    """Strides of the keys and elements of a sequence, its row of the page table, the stride of that, keys of a page, pages, and their
    stride."""
    row: i64
    column: i64
    table: object
    of_page: i64
    page: Divisor
    pages: i32
    stride: i64


class Memory(NamedTuple):
    """Device functions.

    rows_at(strides, image, count)
        Elements before the first row of an image, which has `count`, of an array of queries.
    keys_at(strides, image, count)
        The same of an array of keys or values; 0 of one in pages.
    steps(strides, image)
        The strides of keys and of elements, as `key_at` and loaders take them.
    key_at(j, steps)
        Elements from there to key j.
    rows_of(x, strides, image, head, first, count), keys_of(...)
        Where row `first` of a head of such arrays lies.
    written(strides, count, most)
        Of how many rows of an array results are written: those of the sequence where what lies past its end may be another's, otherwise
        `most`.
    """
    rows_at: Callable
    keys_at: Callable
    steps: Callable
    key_at: Callable
    rows_of: Callable
    keys_of: Callable
    written: Callable


@device_function
def stride_of_batch(strides, image, count):
    return image * strides.batch


@device_function
def strides_of_keys(strides, image):
    return strides.row, strides.column


@device_function
def stride_of_key(j, steps):
    return j * steps[0]


@device_function
def ragged_begin(strides, image, count):
    """So far that `count` rows lie in the array, whatever the offsets say."""
    at = image * strides.batch
    if strides.limit >= 0:
        room = (strides.limit - count) * strides.row
        at = min(max(strides.offsets[image * strides.step], min(room, 0)), max(room, 0))
    return at


@device_function
def all_written(strides, count, most):
    return most


@device_function
def ragged_written(strides, count, most):
    return count if strides.limit >= 0 else most


@device_function
def of_pages(strides, image, count):
    return 0


@device_function
def page_steps(strides, image):
    row = strides.table
    if strides.pages > 0:
        row = advance(strides.table, image * strides.of_batch)
    stride = strides.batch if strides.pages > 0 else image * strides.batch
    return PageSteps(strides.row, strides.column, row, strides.of_page, strides.page, strides.pages, stride)


@device_function
def paged_key(j, steps):
    at = steps.stride + j * steps.row
    if steps.pages > 0:
        number, row = divide_remainder(j, steps.page)
        held = min(max(steps.table[number * steps.of_page], 0), steps.pages - 1)
        at = held * steps.stride + row * steps.row
    return at


@functools.cache
def make_of(at):
    """`Memory.rows_of`, from `rows_at`."""
    @device_function
    def of(x, strides, image, head, first, count):
        return advance(x, at(strides, image, count) + head * strides.head + first * strides.row)
    return of


@functools.cache
def make_memory(ragged, paged) -> Memory:
    """The functions for the fields of a `Kind`."""
    rows_at, written = (ragged_begin, ragged_written) if ragged else (stride_of_batch, all_written)
    keys_at, steps, key_at = (of_pages, page_steps, paged_key) if paged else (rows_at, strides_of_keys, stride_of_key)
    return Memory(rows_at, keys_at, steps, key_at, make_of(rows_at), make_of(keys_at), written)

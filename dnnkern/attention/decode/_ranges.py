"""Ranges of the keys of a sequence: which keys each has, what it leaves of every row, and the launch that merges that.

The workspace holds sums [tile][range][row][width], then largest scores and then sums of exponentials [tile][range][row].
"""
import functools
from typing import NamedTuple
from dataclasses import dataclass

from ...device import cuda, device_function, i32, i64, jit
from ...device.convert import element
from ...device.dependent import launch_dependent_grids, wait_for_previous_grid
from ...device.fastmath import maximum
from ...device.groups import make_reader
from ...device.index import Divisor, ceil_div, divide_remainder, divisor
from ...device.warp import add, make_reduce
from ...engine.constants import constants
from ...engine.cost import memory_seconds
from ...host.dtypes import ITEMSIZE
from ...host.launch import Argument, Launch
from .._flash import make_powers
from .._parameters import Kind, RowStrides, Strides
from .._scores import NEG_INF
from .sdpa_decode_naive import lse_argument

COST = constants("attention/merge")

LANES, MOST_WARPS = 32, 8
AHEAD = 4  # ranges of a warp whose sums are under way together


class Sizes(NamedTuple):
    """Keys that the cache has room for, query heads per head of k and v, queries of all of these, pages."""
    capacity: i32
    group: i32
    rows: i32
    pages: i32


@dataclass(frozen=True)
class Parts:
    """What ranges leave: `rows` of a tile, `width` sums of each, of which `e` are an output's; whether lse is an output, too."""
    kind: Kind
    rows: int
    width: int
    e: int
    lse: bool


def refusal(problem, bias=True, of_bytes=False):
    """What keeps tiles of the rows that share a head of the cache from a problem, or None; `bias`: they take one; `of_bytes`: caches of
    8-bit floats, too."""
    if problem.packed:
        return "packed queries; expected as many of each sequence"
    if problem.bias is not None and not bias:
        return "a bias; expected none"
    if problem.k_cache.dtype != problem.dtype and not of_bytes:
        return f"caches of {problem.k_cache.dtype}; expected {problem.dtype}"
    return None


def tiles_of(problem, rows):
    """Tiles of so many rows that share a head of the cache."""
    return ceil_div(problem.group * problem.rows, rows)


def lines_of(problem, rows):
    """Tiles of all sequences and heads of the cache."""
    return problem.batch * problem.kv_heads * tiles_of(problem, rows)


def parts_bytes(problem, parts, splits):
    """Workspace for what ranges leave; none where one range has all keys."""
    return ITEMSIZE[problem.compute] * lines_of(problem, parts.rows) * splits * parts.rows * (parts.width + 2) if splits > 1 else 0


def merge_seconds(problem, parts, splits, device):
    """About how long the merge takes, whose launch waits where the ranges' ends."""
    if splits == 1:
        return 0.0
    many = problem.group * problem.rows
    moved = 2 * parts_bytes(problem, parts, splits) * many // (tiles_of(problem, parts.rows) * parts.rows)  # of rows that there are
    return COST.launch + ceil_div(splits, AHEAD * MOST_WARPS) * COST.turn + memory_seconds(moved, device)


@functools.cache
def make_range(step):
    """Device function ``range_of(split, splits, oldest, keys)`` -> (first, behind the last) of the keys of a range, of `oldest` to `keys`.
    Ranges begin at multiples of `step` and are as long as each other, however few keys a sequence has of those that it could have."""
    @device_function
    def range_of(split, splits, oldest, keys):
        base = oldest & -step
        whole, left = divide_remainder(keys - base, splits)
        width = (i64(whole) + (step if left else step - 1)) & -step
        first = min(base + split * width, keys)
        return i32(first), i32(min(first + width, keys))
    return range_of


@functools.cache
def make_joined(kind):
    """Device function ``joined(values, at, step, row_max, top_at, row_sum, total_at, own_step, count)`` -> (top, total, sum) of `count`
    parts, each with a largest score, a sum of exponentials by it, and a sum that they weigh."""
    powers, T = make_powers(kind.compute), kind.real

    @device_function
    def joined(values, at, step, row_max, top_at, row_sum, total_at, own_step, count):
        top, total, value = T(NEG_INF), T(0), T(0)
        for part in range(count):
            top = maximum(top, T(row_max[top_at + part * own_step]))
        level = powers.level(top)
        for part in range(count):
            own = T(row_max[top_at + part * own_step])
            if own != T(NEG_INF):
                fall = powers.fall(powers.level(own), level)
                total = T(total + T(row_sum[total_at + part * own_step]) * fall)
                value = T(value + T(values[at + part * step]) * fall)
        return top, total, value
    return joined


@functools.cache
def make_places(parts):
    """Device functions ``sum_at(part, r, column)`` and ``score_at(part, count, r)`` -> (of the largest score, of the sum of exponentials):
    where in the workspace range number `part` of `count` leaves row r."""
    ROWS, WIDTH = parts.rows, parts.width
    ITEM = ROWS * WIDTH

    @device_function
    def sum_at(part, r, column):
        return part * ITEM + (r * WIDTH + column)

    @device_function
    def score_at(part, count, r):
        at = count * ITEM + part * ROWS + r
        return at, at + count * ROWS
    return sum_at, score_at


@functools.cache
def make_result(parts):
    """Device function ``result(o, b, g, row, many, column, top, total, value, ...)``: an element of o from a sum and that of the
    exponentials, 0 for a row that attends to nothing; with the first one lse."""
    kind, T, E, WITH_LSE = parts.kind, parts.kind.real, parts.e, parts.lse
    powers, SINK, store = make_powers(kind.compute), bool(kind.sink), element(kind.dtype).store
    load_sink = element(kind.sink or kind.dtype).load

    @device_function
    def result(o, b, g, row, many, column, top, total, value, group, per, o_strides, sink, sink_step, lse, lse_strides):
        if row < many and column < E:
            member, i = divide_remainder(row, per)
            h, most = i64(g * group + member), top
            if SINK and top != T(NEG_INF):
                own = T(load_sink(sink, h * sink_step))
                most = maximum(top, own)
                level = powers.level(most)
                fall = powers.fall(powers.level(top), level)
                total, value = T(T(total * fall) + powers.rise(own, level)), T(value * fall)
            if total != T(0):
                value = T(value * powers.inverse(total))
            else:
                value = T(0)
            store(o, b * o_strides.batch + h * o_strides.head + i * o_strides.row + column * o_strides.column, value)
            if WITH_LSE and column == 0:
                logarithm = T(NEG_INF)
                if total != T(0):
                    logarithm = powers.total(powers.level(most), total)
                lse[b * lse_strides.batch + h * lse_strides.head + i * lse_strides.row] = logarithm
    return result


@functools.cache
def merge_kernel(parts, warps, dependent):
    """A row a block, 16 bytes of it a lane; its warps share the ranges, several of each under way, and meet in shared memory."""
    kind, T, THREADS, WARPS = parts.kind, parts.kind.real, LANES * warps, warps
    powers, result, ROWS, WIDTH = make_powers(kind.compute), make_result(parts), parts.rows, parts.width
    VECTOR = 16 // ITEMSIZE[kind.compute]
    sum_at, score_at = make_places(parts)
    ITEM, SPAN, STEP, DEPENDENT = ROWS * WIDTH, LANES * VECTOR, AHEAD * warps, dependent
    SCRATCH, SIZE, MULTIPLIER, SHIFT = warps * SPAN, *divisor(ROWS)
    RAW, LENGTH, fetch, unpack = make_reader(kind.compute, VECTOR, 4, constant=False)
    BUFFER = AHEAD * LENGTH
    reduce_top, reduce_total = make_reduce(maximum), make_reduce(add)

    @jit(launch_bounds=(THREADS, 4))
    def sdpa_decode_merge(partial, o, lse, sink, rows, across, lines, tiles, heads_of, per, sizes, splits, o_strides, sink_step,
                          lse_strides):
        scratch = cuda.shared.array(SCRATCH, T)
        thread = cuda.threadIdx.x
        lane, warp = thread % LANES, thread // LANES
        rest, portion = divide_remainder(cuda.blockIdx.x, across)
        place_of, row = divide_remainder(rest, rows)
        b, g = divide_remainder(place_of, heads_of)
        tile, r = divide_remainder(row, (SIZE, MULTIPLIER, SHIFT))
        column = portion * SPAN + lane * VECTOR
        part, count = i64(place_of * i32(tiles[0]) + tile) * splits, i64(lines.d) * splits
        at = sum_at(part, r, column)
        top_at, total_at = score_at(part, count, r)
        raw, values, sums = cuda.local.array(BUFFER, RAW), cuda.local.array(VECTOR, T), cuda.local.array(VECTOR, T)
        owns = cuda.local.array(AHEAD, T)
        for e in range(VECTOR):
            sums[e] = T(0)
        if DEPENDENT:
            wait_for_previous_grid()
            launch_dependent_grids()
        for u in range(AHEAD):
            s = warp + u * WARPS
            fetch(raw, u * LENGTH, partial, at + i64(s) * ITEM, i32(s < splits and column < WIDTH))
            owns[u] = T(partial[top_at + i64(s if s < splits else 0) * ROWS])

        # what all ranges are measured by, the same in every warp
        top, total = T(NEG_INF), T(0)
        for s in range(lane, splits, LANES):
            own, part_total = T(partial[top_at + i64(s) * ROWS]), T(partial[total_at + i64(s) * ROWS])
            if own != T(NEG_INF):
                most = maximum(top, own)
                level = powers.level(most)
                if top != T(NEG_INF):
                    total = T(total * powers.fall(powers.level(top), level))
                total = T(total + part_total * powers.fall(powers.level(own), level))
                top = most
        most = reduce_top(top)
        level = powers.level(most)
        if top != T(NEG_INF):
            total = T(total * powers.fall(powers.level(top), level))
        total = reduce_total(total)
        for start in range(warp, splits, STEP):
            for u in range(AHEAD):
                if start + u * WARPS < splits and owns[u] != T(NEG_INF):
                    fall = powers.fall(powers.level(owns[u]), level)
                    unpack(values, 0, raw, u * LENGTH)
                    for e in range(VECTOR):
                        sums[e] = T(sums[e] + values[e] * fall)
                s = start + u * WARPS + STEP
                fetch(raw, u * LENGTH, partial, at + i64(s) * ITEM, i32(s < splits and column < WIDTH))
                owns[u] = T(partial[top_at + i64(s if s < splits else 0) * ROWS])
        for e in range(VECTOR):
            scratch[warp * SPAN + lane * VECTOR + e] = sums[e]
        cuda.syncthreads()
        for place in range(thread, SPAN, THREADS):
            value = T(0)
            for w in range(WARPS):
                value = T(value + scratch[w * SPAN + place])
            result(o, b, g, row, sizes.rows, portion * SPAN + place, most, total, value, sizes.group, per, o_strides, sink,
                   sink_step, lse, lse_strides)
    return sdpa_decode_merge


def shape_arguments(problem, rows):
    """Kernel parameters `lines`, `tiles`, `heads_of`, `per`, `sizes`: divisors, and `Sizes`."""
    p = problem
    return (*(Argument(Divisor, divisor(n)) for n in (lines_of(p, rows), tiles_of(p, rows), p.kv_heads, p.rows)),
            Argument(Sizes, (p.capacity, p.group, p.group * p.rows, p.pages)))


def sink_arguments(problem):
    """Kernel parameters `sink` and `sink_step`."""
    p = problem
    pointer = element((p.sink or p.q).dtype).pointer
    return Argument(pointer, "sink"), Argument("int64", p.sink.strides[0] if p.sink is not None else 0)


def merge_launch(problem, parts, splits, dependent):
    """The launch that makes o of what `splits` ranges have left; `dependent` (sm_90) lets it begin while they are at work."""
    p, many = problem, problem.group * problem.rows
    warps = min(MOST_WARPS, 1 << max(ceil_div(splits, AHEAD) - 1, 0).bit_length())
    across = ceil_div(parts.width, LANES * 16 // ITEMSIZE[p.compute])
    sink, sink_step = sink_arguments(p)
    arguments = (Argument(f"{p.compute}*", "workspace"), Argument(element(p.dtype).pointer, "o"), lse_argument(p), sink,
                 Argument(Divisor, divisor(many)), Argument(Divisor, divisor(across)), *shape_arguments(p, parts.rows),
                 Argument("int32", splits), Argument(Strides, p.strides(p.o)), sink_step, Argument(RowStrides, p.lse_strides))
    return Launch(merge_kernel(parts, warps, dependent), (p.batch * p.kv_heads * many * across, 1, 1), (LANES * warps, 1, 1), arguments,
                  dependent=dependent)

"""Split-KV: the keys of a sequence cut into ranges, what a range leaves of every row, and the launch that merges that.

The workspace holds accumulators [tile][range][row][width], then row_max and then row_sum [tile][range][row].
"""
import functools
from dataclasses import dataclass
from typing import NamedTuple

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
from .._parameters import Kind, RowStrides, Sequences, Strides
from .._scores import NEG_INF, make_terms
from ._parameters import Outputs, lines_of, lse_argument, shape_argument, sink_arguments, tiles_of

COST = constants("attention/merge")

LANES, MOST_WARPS = 32, 8
AHEAD = 4  # ranges of a warp whose accumulators are in flight together


@dataclass(frozen=True)
class Parts:
    """What ranges leave: `rows` of a tile, `width` accumulators of each, of which `e` are an output's; whether lse is an output, too."""
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


def parts_bytes(problem, parts, splits):
    """Workspace for what ranges leave; none where one range has all keys."""
    return ITEMSIZE[problem.compute] * lines_of(problem, parts.rows) * splits * parts.rows * (parts.width + 2) if splits > 1 else 0


def merge_seconds(problem, parts, splits, device):
    """Predicted time of the merge, whose launch waits for the ranges."""
    if splits == 1:
        return 0.0
    rows = problem.group * problem.rows
    moved = 2 * parts_bytes(problem, parts, splits) * rows // (tiles_of(problem, parts.rows) * parts.rows)  # of rows that exist
    return COST.launch + ceil_div(splits, AHEAD * MOST_WARPS) * COST.turn + memory_seconds(moved, device)


class Range(NamedTuple):
    """The keys of a block: those from `begin` to `end` of the `keys` of its sequence, of which `oldest` is the first that any query attends
    to."""
    keys: i32
    oldest: i32
    begin: i32
    end: i32


@functools.cache
def make_range(kind, step):
    """Device function ``range_of(split, splits, b, shape, lengths)`` -> `Range` number `split` of sequence b. Ranges begin at multiples of
    `step` and are equally long, however few keys a sequence has of those that it could have."""
    terms = make_terms(kind)

    @device_function
    def range_of(split, splits, b, shape, lengths):
        queries = i32(shape.queries.d)
        _, _, _, keys = terms.lengths(b, Sequences(lengths.keys, lengths.keys, 0, lengths.step), queries, shape.capacity)
        oldest, _ = terms.key_range(0, queries, keys, lengths.bounds)
        base = oldest & -step
        whole, left = divide_remainder(keys - base, splits)
        width = (i64(whole) + (step if left else step - 1)) & -step
        begin = min(base + split * width, keys)
        return Range(keys, oldest, i32(begin), i32(min(begin + width, keys)))
    return range_of


@functools.cache
def make_merge(kind):
    """Device function ``merge(data, at, step, max_at, sum_at, row_step, count)`` -> (row_max, row_sum, value) of `count` parts in shared
    memory, each with a row_max, a sum of exponentials relative to it, and an element of the values that these weigh."""
    powers, T = make_powers(kind.compute), kind.real

    @device_function
    def merge(data, at, step, max_at, sum_at, row_step, count):
        row_max, row_sum, value = T(NEG_INF), T(0), T(0)
        for part in range(count):
            row_max = maximum(row_max, T(data[max_at + part * row_step]))
        level = powers.level(row_max)
        for part in range(count):
            own = T(data[max_at + part * row_step])
            if own != T(NEG_INF):
                fall = powers.fall(powers.level(own), level)
                row_sum = T(row_sum + T(data[sum_at + part * row_step]) * fall)
                value = T(value + T(data[at + part * step]) * fall)
        return row_max, row_sum, value
    return merge


@functools.cache
def make_places(parts):
    """Device functions ``values_at(part, r, column)`` and ``scores_at(part, count, r)`` -> (of row_max, of row_sum): where in the workspace
    range number `part` of `count` leaves row r."""
    ROWS, WIDTH = parts.rows, parts.width
    ITEM = ROWS * WIDTH

    @device_function
    def values_at(part, r, column):
        return part * ITEM + (r * WIDTH + column)

    @device_function
    def scores_at(part, count, r):
        at = count * ITEM + part * ROWS + r
        return at, at + count * ROWS
    return values_at, scores_at


@functools.cache
def make_store_output(parts):
    """Device function ``store_output(outputs, shape, b, g, row, column, row_max, row_sum, value)``: an element of o, 0 for a row that
    attends to no key; with the first one lse. `row` is one of those that share head g of sequence b's cache."""
    kind, T, E, WITH_LSE = parts.kind, parts.kind.real, parts.e, parts.lse
    powers, SINK, store = make_powers(kind.compute), bool(kind.sink), element(kind.dtype).store
    load_sink = element(kind.sink or kind.dtype).load

    @device_function
    def store_output(outputs, shape, b, g, row, column, row_max, row_sum, value):
        if row < shape.rows and column < E:
            member, i = divide_remainder(row, shape.queries)
            h, most = i64(g * shape.group + member), row_max
            if SINK and row_max != T(NEG_INF):
                sink_logit = T(load_sink(outputs.sink, h * outputs.sink_step))
                most = maximum(row_max, sink_logit)
                level = powers.level(most)
                fall = powers.fall(powers.level(row_max), level)
                row_sum, value = T(T(row_sum * fall) + powers.rise(sink_logit, level)), T(value * fall)
            if row_sum != T(0):
                value = T(value * powers.inverse(row_sum))
            else:
                value = T(0)
            strides = outputs.o_strides
            store(outputs.o, b * strides.batch + h * strides.head + i * strides.row + column * strides.column, value)
            if WITH_LSE and column == 0:
                lse = T(NEG_INF)
                if row_sum != T(0):
                    lse = powers.total(powers.level(most), row_sum)
                outputs.lse[b * outputs.lse_strides.batch + h * outputs.lse_strides.head + i * outputs.lse_strides.row] = lse
    return store_output


@functools.cache
def merge_kernel(parts, warps, dependent):
    """A row per block, 16 bytes of it per lane; its warps share the ranges, several of each in flight, and meet in shared memory."""
    kind, T, THREADS, WARPS = parts.kind, parts.kind.real, LANES * warps, warps
    powers, store_output, ROWS, WIDTH = make_powers(kind.compute), make_store_output(parts), parts.rows, parts.width
    VECTOR = 16 // ITEMSIZE[kind.compute]
    values_at, scores_at = make_places(parts)
    ITEM, SPAN, STEP, DEPENDENT, BY_ROWS = ROWS * WIDTH, LANES * VECTOR, AHEAD * warps, dependent, divisor(ROWS)
    SCRATCH = warps * SPAN
    RAW, LENGTH, fetch, unpack = make_reader(kind.compute, VECTOR, 4, constant=False)
    BUFFER = AHEAD * LENGTH
    reduce_max, reduce_sum = make_reduce(maximum), make_reduce(add)

    @device_function
    def merged(row_max, row_sum, other_max, other_sum):
        """(row_max, row_sum) of two parts, the other of which has keys."""
        most = maximum(row_max, other_max)
        level = powers.level(most)
        if row_max != T(NEG_INF):
            row_sum = T(row_sum * powers.fall(powers.level(row_max), level))
        return most, T(row_sum + other_sum * powers.fall(powers.level(other_max), level))

    @jit(launch_bounds=(THREADS, 4))
    def sdpa_decode_merge(partial, o, lse, sink, rows, across, shape, splits, o_strides, sink_step, lse_strides):
        scratch = cuda.shared.array(SCRATCH, T)
        thread = cuda.threadIdx.x
        lane, warp = thread % LANES, thread // LANES
        rest, portion = divide_remainder(cuda.blockIdx.x, across)
        head, row = divide_remainder(rest, rows)
        b, g = divide_remainder(head, shape.kv_heads)
        tile, r = divide_remainder(row, BY_ROWS)
        column = portion * SPAN + lane * VECTOR
        part, count = i64(head * i32(shape.tiles.d) + tile) * splits, i64(shape.all_tiles.d) * splits
        at = values_at(part, r, column)
        max_at, sum_at = scores_at(part, count, r)
        raw, values, acc = cuda.local.array(BUFFER, RAW), cuda.local.array(VECTOR, T), cuda.local.array(VECTOR, T)
        own_max = cuda.local.array(AHEAD, T)
        for e in range(VECTOR):
            acc[e] = T(0)
        if DEPENDENT:
            wait_for_previous_grid()
            launch_dependent_grids()
        for u in range(AHEAD):
            s = warp + u * WARPS
            fetch(raw, u * LENGTH, partial, at + i64(s) * ITEM, s < splits and column < WIDTH)
            own_max[u] = T(partial[max_at + i64(s if s < splits else 0) * ROWS])

        # the row's maximum and sum over all ranges, the same in every warp
        row_max, row_sum = T(NEG_INF), T(0)
        for s in range(lane, splits, LANES):
            other_max, other_sum = T(partial[max_at + i64(s) * ROWS]), T(partial[sum_at + i64(s) * ROWS])
            if other_max != T(NEG_INF):
                row_max, row_sum = merged(row_max, row_sum, other_max, other_sum)
        most = reduce_max(row_max)
        level = powers.level(most)
        if row_max != T(NEG_INF):
            row_sum = T(row_sum * powers.fall(powers.level(row_max), level))
        row_sum = reduce_sum(row_sum)

        # the values
        for start in range(warp, splits, STEP):
            for u in range(AHEAD):
                if start + u * WARPS < splits and own_max[u] != T(NEG_INF):
                    fall = powers.fall(powers.level(own_max[u]), level)
                    unpack(values, 0, raw, u * LENGTH)
                    for e in range(VECTOR):
                        acc[e] = T(acc[e] + values[e] * fall)
                s = start + u * WARPS + STEP
                fetch(raw, u * LENGTH, partial, at + i64(s) * ITEM, s < splits and column < WIDTH)
                own_max[u] = T(partial[max_at + i64(s if s < splits else 0) * ROWS])
        for e in range(VECTOR):
            scratch[warp * SPAN + lane * VECTOR + e] = acc[e]
        cuda.syncthreads()
        outputs = Outputs(o, o_strides, sink, sink_step, lse, lse_strides)
        for index in range(thread, SPAN, THREADS):
            value = T(0)
            for w in range(WARPS):
                value = T(value + scratch[w * SPAN + index])
            store_output(outputs, shape, b, g, row, portion * SPAN + index, most, row_sum, value)
    return sdpa_decode_merge


def merge_launch(problem, parts, splits, dependent):
    """The launch that makes o of what `splits` ranges have left; `dependent` (sm_90) lets it begin while they are at work."""
    p, rows = problem, problem.group * problem.rows
    warps = min(MOST_WARPS, 1 << max(ceil_div(splits, AHEAD) - 1, 0).bit_length())
    across = ceil_div(parts.width, LANES * 16 // ITEMSIZE[p.compute])
    sink, sink_step = sink_arguments(p)
    arguments = (Argument(f"{p.compute}*", "workspace"), Argument(element(p.dtype).pointer, "o"), lse_argument(p), sink,
                 Argument(Divisor, divisor(rows)), Argument(Divisor, divisor(across)), shape_argument(p, parts.rows),
                 Argument("int32", splits), Argument(Strides, p.strides(p.o)), sink_step, Argument(RowStrides, p.lse_strides))
    return Launch(merge_kernel(parts, warps, dependent), (p.batch * p.kv_heads * rows * across, 1, 1), (LANES * warps, 1, 1), arguments,
                  dependent=dependent)

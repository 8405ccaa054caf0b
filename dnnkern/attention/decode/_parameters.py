"""Parameters of the kernels of `sdpa_decode`, and what all of them are compiled for."""
from typing import NamedTuple

from ...device import i32, i64
from ...device.convert import element
from ...device.index import Divisor, ceil_div, divisor
from ...host.launch import Argument
from .._checks import broadcast_strides
from .._parameters import Kind, RowStrides, Strides, softmax_scale


class TableStrides(NamedTuple):
    """Of the page table."""
    batch: i64
    page: i64


class Paging(NamedTuple):
    """The page table and its strides, keys of a page as a divisor, and how many pages there are."""
    table: object
    strides: TableStrides
    page: Divisor
    pages: i32


class Lengths(NamedTuple):
    """Keys of each sequence: an array, its stride, and how many keys to the left and right of its own position a query attends to."""
    keys: object
    step: i64
    bounds: object


class Shape(NamedTuple):
    """The problem as split-KV has it: the query rows of the heads that share a head of the cache are cut into tiles.

    Tiles of all sequences and heads, tiles of a head of the cache, heads of the cache, queries of a sequence, all as divisors; keys that
    the cache has room for, query heads per head of the cache, rows of these (heads times queries), pages.
    """
    all_tiles: Divisor
    tiles: Divisor
    kv_heads: Divisor
    queries: Divisor
    capacity: i32
    group: i32
    rows: i32
    pages: i32


class Scoring(NamedTuple):
    """What products become scores with."""
    scale: object
    softcap: object
    bias: object
    bias_strides: Strides


class Outputs(NamedTuple):
    """o, the sinks that its rows' denominators include, and lse."""
    o: object
    o_strides: Strides
    sink: object
    sink_step: i64
    lse: object
    lse_strides: RowStrides


def tiles_of(problem, rows):
    """Tiles of so many rows that share a head of the cache."""
    return ceil_div(problem.group * problem.rows, rows)


def lines_of(problem, rows):
    """Tiles of all sequences and heads of the cache."""
    return problem.batch * problem.kv_heads * tiles_of(problem, rows)


def decode_kind(problem) -> Kind:
    """The kind of a problem: rows are the last ones of their sequence, whose lengths are known on the device."""
    p = problem
    bias, sink = (t.dtype if t is not None else "" for t in (p.bias, p.sink))
    return Kind(p.dtype, bias, sink, limits_keys=True, bottom=True, softcap=p.softcap > 0)


def scaled(problem):
    """Whether the keys and the values have a factor."""
    return problem.scale_k is not None, problem.scale_v is not None


def operand_arguments(problem):
    """Kernel parameters `q`, `k`, `v` and `o`."""
    return tuple(Argument(element(t.dtype).pointer, name) for name, t in (
        ("q", problem.q), ("k_cache", problem.k_cache), ("v_cache", problem.v_cache), ("o", problem.o)))


def lse_argument(problem):
    """Kernel parameter `lse`; without one it is not written."""
    return Argument(f"{problem.compute}*", "lse" if problem.lse is not None else "o")


def sink_arguments(problem):
    """Kernel parameters `sink` and `sink_step`."""
    p = problem
    pointer = element((p.sink or p.q).dtype).pointer
    return Argument(pointer, "sink"), Argument("int64", p.sink.strides[0] if p.sink is not None else 0)


def cache_arguments(problem):
    """Kernel parameters `key_step`, `table_strides`, `sink_step`, `lse_strides`, `bounds`, `scale` and `softcap`."""
    p = problem
    table = p.page_table.strides if p.page_table is not None else (0, 0)
    return (Argument("int64", p.seq_len_kv.strides[0]), Argument(TableStrides, table), sink_arguments(p)[1],
            Argument(RowStrides, p.lse_strides), Argument("int32x2", p.bounds), Argument(p.compute, softmax_scale(p)),
            Argument(p.compute, p.softcap))


def factor_arguments():
    """Kernel parameters `scale_k` and `scale_v`, null where there is none."""
    return Argument("float32*", "scale_k"), Argument("float32*", "scale_v")


def bias_arguments(problem):
    """Kernel parameters `bias` and `bias_strides`."""
    t = problem.bias
    return Argument(element((t or problem.q).dtype).pointer, "bias"), Argument(Strides, broadcast_strides(t))


def shape_argument(problem, rows):
    """Kernel parameter `shape`, for tiles of so many rows."""
    p = problem
    return Argument(Shape, Shape(*(divisor(n) for n in (lines_of(p, rows), tiles_of(p, rows), p.kv_heads, p.rows)),
                                 p.capacity, p.group, p.group * p.rows, p.pages))


def page_argument(problem):
    """Kernel parameter `page`: its keys, as a divisor."""
    return Argument(Divisor, divisor(max(problem.page, 1)))

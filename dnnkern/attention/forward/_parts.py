"""What the parts of the kernels by wgmma, forward, pass to each other."""
from typing import NamedTuple

from ...device import f32, i32, u32, u64
from ...device.pipeline import Barriers


class Sizes(NamedTuple):
    """Sequences, query heads, queries and keys of an array."""
    batch: i32
    heads: i32
    rows: i32
    keys: i32


class Work(NamedTuple):
    """What locates a tile by its number: how many tiles there are, their `_wgmma.Order`, lengths of sequences, sizes, window,
    a `score_mod`'s operands."""
    tiles: i32
    order: object
    sequences: object
    sizes: Sizes
    bounds: object
    operands: object


class Maps(NamedTuple):
    """Addresses of tensor maps."""
    q: u64
    k: u64
    v: u64
    o: u64
    bias: u64


class Shared(NamedTuple):
    """Shared memory: where it begins, the barriers of each ring, and the scheduler's channel."""
    base: u32
    q: Barriers
    k: Barriers
    v: Barriers
    tile: u32


class Span(NamedTuple):
    """The keys of a tile of queries.

    `first_row` and `first_key` begin the sequence in the array; it has `rows` and `keys`, and query i has position ``i + shift``. The tile
    attends to keys from `begin` on, in `count` tiles; all its queries attend to those from `full_begin` to `full_end`.
    """
    first_row: i32
    first_key: i32
    rows: i32
    keys: i32
    shift: i32
    begin: i32
    count: i32
    full_begin: i32
    full_end: i32


class Query(NamedTuple):
    """The first of a thread's two queries, the other is 8 after it: its index in the sequence, its position among the keys, its head of all
    sequences', the head's ALiBi slope, where the head's bias begins."""
    row: i32
    position: i32
    head: i32
    slope: f32
    bias_at: object


class Scoring(NamedTuple):
    """What products become scores with."""
    scale: f32
    softcap: f32
    bias: object
    bias_strides: object


class Dropout(NamedTuple):
    """The seed of the random words, the threshold that they are compared with, the factor of what is kept."""
    seed: object
    threshold: u32
    factor: f32


class Softmax(NamedTuple):
    """The state of a thread's two rows (`_fragments`), arrays of two; `most` is scratch."""
    row_max: object
    ref_max: object
    row_sum: object
    rescale: object
    most: object


class Outputs(NamedTuple):
    """o, its tensor map, and lse."""
    map: u64
    o: object
    o_strides: object
    lse: object
    lse_strides: object


class Thread(NamedTuple):
    """Of a consumer: its warpgroup, its number there, its warp and lane, the first of its two rows of a tile, its first column."""
    group: i32
    number: i32
    warp: i32
    lane: i32
    row: i32
    column: i32

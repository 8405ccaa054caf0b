"""What the parts of the kernel of `flash_wgmma`, backward, pass to each other."""
from typing import NamedTuple

from ....device import f32, i32, u32, u64
from ....device.pipeline import Barriers


class Sizes(NamedTuple):
    """Queries and keys of an array; queries of a head in the workspace, and tiles of them; sequences."""
    rows: i32
    keys: i32
    padded: i32
    tiles: i32
    batch: i32


class Heads(NamedTuple):
    """Query heads of a head of k and v, and of an image."""
    group: i32
    all: i32


class Work(NamedTuple):
    """What locates a tile by its number: sizes, heads, the tiles' `_wgmma.Order`, lengths of sequences, window, operands of a
    `score_mod`."""
    sizes: Sizes
    heads: Heads
    order: object
    sequences: object
    bounds: object
    operands: object


class Tile(NamedTuple):
    """A block's tile of keys: its sequence, which has `rows` and `keys`, head of k and v, first query head, first key.

    Its steps go through tiles of queries from `begin` to `end`. The sequence begins at `first_row` and `first_key` of the arrays, and at
    `first_padded` of the workspace's queries.
    """
    sequence: i32
    kv_head: i32
    head: i32
    key: i32
    begin: i32
    end: i32
    rows: i32
    keys: i32
    first_row: i32
    first_key: i32
    first_padded: i32


class Maps(NamedTuple):
    """Addresses of tensor maps."""
    k: u64
    v: u64
    q: u64
    do: u64
    bias: u64


class Shared(NamedTuple):
    """Shared memory: where it begins; the barriers of `producer.Pipes`; where the block's tile is published."""
    base: u32
    kv: Barriers
    q: Barriers
    do: Barriers
    dq: Barriers
    dq_free: Barriers
    bias: Barriers
    tile: u32


class Added(NamedTuple):
    """The workspace of dq: what is added to, and how many tiles of keys have been added to each tile of queries."""
    dq: object
    counts: object


class Options(NamedTuple):
    """What products become scores with, and dropout's seed, the threshold of its random words, the factor of what is kept."""
    scale: f32
    softcap: f32
    bias: object
    bias_strides: object
    mask: object
    mask_strides: object
    seed: object
    threshold: u32
    factor: f32


class Outputs(NamedTuple):
    """dk and dv."""
    dk: object
    dk_strides: object
    dv: object
    dv_strides: object


class Step(NamedTuple):
    """A step of a consumer: its tile's first query, and the shared addresses of the tiles of q and do, and of ds, before it of the bias."""
    row: i32
    q: u32
    do: u32
    ds: u32


class Thread(NamedTuple):
    """Of a consumer: its warpgroup, its number there, its warp and lane, its first column."""
    group: i32
    number: i32
    warp: i32
    lane: i32
    column: i32

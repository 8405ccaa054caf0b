"""What the parts of the kernel of `split_kv_wgmma` pass to each other."""
from typing import NamedTuple

from ....device import i32, i64, u32, u64
from ....device.pipeline import Barriers


class Maps(NamedTuple):
    """Addresses of tensor maps."""
    k: u64
    v: u64


class Shared(NamedTuple):
    """Shared memory: where it begins, and the barriers of boxes of keys, pieces of values, and the probabilities that `lead` passes on."""
    base: u32
    k: Barriers
    v: Barriers
    p: Barriers


class Tile(NamedTuple):
    """A tile of rows: sequence, head of the cache, first row; its range's number of all, and how many there are."""
    b: i32
    g: i32
    row0: i32
    part: i64
    parts: i64


class Span(NamedTuple):
    """The keys of a block: `count` steps from key `first` on. Some query attends to those from `begin` to `end` of `keys`, all queries to
    those from `full_begin` to `full_end`."""
    first: i32
    count: i32
    begin: i32
    end: i32
    keys: i32
    full_begin: i32
    full_end: i32


class Thread(NamedTuple):
    """Of a consumer: its number in its warpgroup, its warp and lane, the first of its two rows of a tile (the other is 8 after it) and of
    those that share the head, its first column, and where the factors of its rows are exchanged."""
    number: i32
    warp: i32
    lane: i32
    row: i32
    head_row: i32
    column: i32
    factors_at: u32


class Softmax(NamedTuple):
    """The state of a thread's two rows (`_fragments`), arrays of two, and the keys from `begins` to `ends` that they attend to."""
    row_max: object
    ref_max: object
    row_sum: object
    rescale: object
    most: object
    begins: object
    ends: object

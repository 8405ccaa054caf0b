"""What the parts of the kernel of `split_kv_mma` pass to each other."""
from typing import NamedTuple

from ....device import i32


class Tile(NamedTuple):
    """A block's range, its tile of rows, that tile's head of all sequences' caches, and its first row."""
    split: i32
    number: i32
    head: i32
    row0: i32


class Span(NamedTuple):
    """The keys of a block that some query attends to, from `begin` to `end` of `keys`; a warp's first key, its turns, and the key that its
    first turn begins with."""
    keys: i32
    begin: i32
    end: i32
    first: i32
    turns: i32
    start: i32


class Cache(NamedTuple):
    """Keys and values."""
    k: object
    v: object
    k_strides: object
    v_strides: object


class Cursor(NamedTuple):
    """Where a thread loads from, arrays: `own` its number and its head of all sequences' caches; the page of each tile in flight, and the
    first key there. What follows from `own` is computed again in each turn, for want of registers."""
    own: object
    pages: object
    rows: object


class Rows(NamedTuple):
    """A thread's rows, arrays: row_max so far and with the next tile, row_sum, the keys from `begins` to `ends` that they attend to, less
    the thread's own key of a tile; in shared memory, where the biases of the tile's rows begin."""
    row_max: object
    new_max: object
    row_sum: object
    begins: object
    ends: object
    bias_at: object


class Fragments(NamedTuple):
    """A warp's operands in registers, arrays: keys and values in flight, queries of one step, a left operand, probabilities as the sum of
    two 16-bit numbers, scores [key][row], accumulators [element][row]."""
    k: object
    v: object
    q: object
    left: object
    high: object
    low: object
    scores: object
    acc: object

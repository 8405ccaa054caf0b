"""What the parts of the kernel of `flash_wgmma_roles` pass to each other, beside what those of `flash_wgmma` do."""
from typing import NamedTuple

from ....device import i32, u32, u64
from ....device.pipeline import Barriers


class Maps(NamedTuple):
    """Addresses of tensor maps."""
    k: u64
    v: u64
    q: u64
    do: u64


class Shared(NamedTuple):
    """Shared memory: where it begins; the barriers of `producer.Pipes`; where the block's tile is published."""
    base: u32
    kv: Barriers
    q: Barriers
    do: Barriers
    p: Barriers
    rest: Barriers
    given: Barriers
    taken: Barriers
    empty: Barriers
    turn: Barriers
    added: Barriers
    tile: u32


class Thread(NamedTuple):
    """Of a warpgroup: its number there, its warp and lane, its first column of eight."""
    number: i32
    warp: i32
    lane: i32
    column: i32

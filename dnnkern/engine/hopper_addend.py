"""An array of the result's shape in the ring of the Hopper main loop: the producer loads its part of a tile, by TMA, as further stages of
the tile, while the warpgroups still multiply; the epilogue finds it in shared memory.

Boxes are those in which results leave, 64 rows by 128 bytes. Box number i of a warpgroup's, all columns of its first 64 rows, then of the
next, is in the tile's further stage ``i // per_stage``, after the boxes of the warpgroups before it in the same stage.
"""
import functools
from typing import NamedTuple

from ..device import device_function, u32
from ..device.index import ceil_div
from ..device.pipeline import make_pipeline
from ..device.tma import tma_load_3d
from ..device.unroll import unrolled
from .hopper import GROUP, ROW


class AddendStages(NamedTuple):
    """What `hopper.make_product` needs to know of them.

    count : int
        Stages of a tile.
    load : device function (part, (state, ring, bars, map, tile))
        Acquire and fill stage `part` of them; `state` is the producer's at the first.
    """
    count: int
    load: object


def boxes_of(tile, itemsize):
    """(boxes of a warpgroup's in a stage, in all)."""
    return tile.stage // GROUP // tile.sharing, tile.groups * ceil_div(tile.bn * itemsize, ROW)


def stages_of(tile, itemsize=2):
    """Further stages of a tile."""
    per_stage, boxes = boxes_of(tile, itemsize)
    return ceil_div(boxes, per_stage)


def fits_ring(tile, tensor, strides):
    """Whether an array that may be staged (`staged_addend`) can come through the ring: TMA's strides are positive, a stage is left for the
    next tile's operands, and both sides of the ring are in the same order of tiles. `strides` along rows, columns and batch. Host function.
    """
    row, _, *others = strides
    return not tile.ping_pong and tile.stages > stages_of(tile, tensor.itemsize) and all(s > 0 for s in (row, *others))


@functools.cache
def _make_boxes(tile):
    """The ring, and a device function ``box_at(ring, own, number)``, the address of a box of the stage of state `own`."""
    STAGE, pipe = tile.stage, make_pipeline(tile.stages, consumers=tile.sharing, cluster=tile.cluster)

    @device_function
    def box_at(ring, own, number):
        return ring + own.stage * STAGE + u32(number) * GROUP
    return pipe, box_at


@functools.cache
def make_addend_stages(tile, corner, itemsize=2):
    """`AddendStages` of elements of so many bytes; `corner` is a device function (tile) -> (row, column, matrix)."""
    (PER_STAGE, ALL), COUNT, WIDTH = boxes_of(tile, itemsize), stages_of(tile, itemsize), ROW // itemsize
    GROUPS, BOXES, SHARING = tile.groups, ALL // tile.groups, tile.sharing
    pipe, box_at = _make_boxes(tile)

    @device_function
    def load(part, s):
        state, ring, bars, addend_map, where = s
        row, column, z = corner(where)
        own = pipe.advance(state, part)
        pipe.producer_acquire(bars, own)
        first = part * PER_STAGE
        bar = pipe.producer_expect(bars, own, min(PER_STAGE, ALL - first) * (SHARING * GROUP))
        for warpgroup in range(SHARING):
            for k in range(PER_STAGE):
                box = first + k
                if box < ALL:
                    tma_load_3d(box_at(ring, own, warpgroup * PER_STAGE + k), addend_map, bar, column + box % BOXES * WIDTH,
                                row + (warpgroup * GROUPS + box // BOXES) * 64, z)
    return AddendStages(COUNT, unrolled(COUNT, load))


@functools.cache
def make_addend_box(tile, itemsize=2):
    """Device functions `arrive` and `leave`, of a warpgroup's box of the array: (stages, number) -> its address, once it is there, and
    (stages, number, thread), after a barrier of those who have read it. `stages` are (state, ring, bars, warpgroup)."""
    PER_STAGE, ALL = boxes_of(tile, itemsize)
    pipe, box_at = _make_boxes(tile)

    @device_function
    def arrive(stages, box):
        state, ring, bars, warpgroup = stages
        own = pipe.advance(state, box // PER_STAGE)
        if box % PER_STAGE == 0:
            pipe.consumer_wait(bars, own)
        return box_at(ring, own, warpgroup * PER_STAGE + box % PER_STAGE)

    @device_function
    def leave(stages, box, thread):
        state, ring, bars, warpgroup = stages
        if box % PER_STAGE == PER_STAGE - 1 or box == ALL - 1:
            pipe.consumer_release(bars, pipe.advance(state, box // PER_STAGE), thread)
    return arrive, leave

"""The producers' warpgroup of `flash_wgmma`, backward: a thread that loads k, v, q and do, one that loads tiles of the bias, and two that
add to dq."""
import functools
from typing import Callable, NamedTuple

from ....device import device_function, i64, u32
from ....device.grid import add_released
from ....device.index import ceil_div, divide_remainder, divisor
from ....device.mbarrier import fence_async_global
from ....device.pipeline import Pipeline, make_pipeline
from ....device.tma import bulk_commit, bulk_load, bulk_reduce_add_f32, bulk_store, make_bulk_wait, make_bulk_wait_read, tma_load_4d
from ....device.vec import address, advance
from ....engine.hopper import ROW
from ..._wgmma import COLUMNS
from .tiles import make_tiles, make_turns


class Pipes(NamedTuple):
    """Between the producers and the consumers, in the order of their barriers.

    kv
        The tiles of k and v, which stay: nobody frees them.
    q
        Stages of q, do, lse and delta, which every warp releases.
    dq, dq_free
        The part of dq, of which two threads take every other one: so there are two full barriers, and one that either thread arrives at.
    do
        do where it has one stage of its own.
    bias
        Tiles of the bias, which come to the two buffers of ds.
    """
    kv: Pipeline
    q: Pipeline
    dq: Pipeline
    dq_free: Pipeline
    do: Pipeline
    bias: Pipeline


@functools.cache
def make_pipes(config) -> Pipes:
    """Of a configuration."""
    warps = 4 * config.shape.groups
    return Pipes(kv=make_pipeline(1, consumers=0), q=make_pipeline(config.stages, consumers=warps),
                 dq=make_pipeline(2, consumers=0, producers=warps), dq_free=make_pipeline(1, consumers=0),
                 do=make_pipeline(1, consumers=warps), bias=make_pipeline(2, consumers=warps))


@functools.cache
def make_addresses(config):
    """Device functions ``do_at(base, q_at)``, where do of a stage is, and ``ds_at(base, stage)``, where ds of a step is, and before it the
    bias."""
    at, SINGLE_DO, Q_BYTES, DS_BYTES, DS_BUFFERS = config.layout, config.single_do, config.passing[0], config.ds, config.ds_buffers
    DO_AT, DS_AT = at.do, at.ds

    @device_function
    def do_at(base, q_at):
        return base + DO_AT if SINGLE_DO else q_at + Q_BYTES

    @device_function
    def ds_at(base, stage):
        return base + DS_AT + stage * DS_BYTES if DS_BUFFERS == 2 else base + DS_AT
    return do_at, ds_at


class Producers(NamedTuple):
    """Device functions of one thread each.

    load(maps, shared, tile, stats, work)
        k and v, and q, do, lse and delta of each step.
    load_bias(map, strides, shared, tile, work)
        A tile of the bias, or of the mask, of each step, as soon as ds of two steps before has been multiplied.
    add_to_dq(shared, tile, added, work, own)
        Adds every other part of dq, from number `own` on: until an addition has come through and been announced, the other thread has begun
        the next one.
    """
    load: Callable
    load_bias: Callable
    add_to_dq: Callable


@functools.cache
def make_producers(config, down) -> Producers:
    """Of a configuration, from the last keys to the first or `down` the other way round."""
    kind, s, at, tiles = config.kind, config.shape, config.layout, make_tiles(config, down)
    HEIGHT, WIDTH, GROUPS, PACKED, OF_DK = s.height, s.width, s.groups, kind.packed, config.only != "dv"
    kv_pipe, q_pipe, dq_pipe, dq_free_pipe, do_pipe, bias_pipe = make_pipes(config)
    do_at, ds_at = make_addresses(config)

    # ---- k, v, q, do

    (Q_BOXES, V_BOXES), KV_BOX, Q_BOX, PIECES = config.boxes, HEIGHT * ROW, WIDTH * ROW, config.pieces
    V_AT, RING_AT, STATS_AT, RESIDENT = at.v, at.ring, at.stats, sum(config.resident)
    STAGE, STATS, DO_BYTES, SINGLE_DO = config.stage, config.stats, config.passing[1], config.single_do

    @device_function
    def load_boxes(to, boxes, box, array, bar, row, h, image, images):
        """A tile of k, v, q or do."""
        for piece in range(PIECES):
            for b in range(boxes):
                tma_load_4d(to + u32((piece * boxes + b) * box), array, bar, b * COLUMNS, row, h, image + piece * images)

    @device_function
    def load(maps, shared, tile, stats, work):
        base = shared.base
        image, images = 0 if PACKED else tile.sequence, 1 if PACKED else work.sizes.batch
        bar = kv_pipe.producer_expect(shared.kv, kv_pipe.producer_start(), RESIDENT)
        load_boxes(base, Q_BOXES, KV_BOX, maps.k, bar, tile.first_key + tile.key, tile.kv_head, image, images)
        if OF_DK:
            load_boxes(base + V_AT, V_BOXES, KV_BOX, maps.v, bar, tile.first_key + tile.key, tile.kv_head, image, images)
        q_state, do_state, row, member = q_pipe.producer_start(), do_pipe.producer_start(), tile.begin, 0
        while tiles.is_left(row, tile) and member < work.heads.group:
            h = tile.head + member
            line = (image * work.heads.all + h) * i64(work.sizes.padded) + (tile.first_padded + row)
            q_pipe.producer_acquire(shared.q, q_state)
            q_at = base + RING_AT + q_state.stage * STAGE
            bar = q_pipe.producer_expect(shared.q, q_state, STAGE + STATS)
            load_boxes(q_at, Q_BOXES, Q_BOX, maps.q, bar, tile.first_row + row, h, image, images)
            bulk_load(base + STATS_AT + q_state.stage * STATS, address(stats, 2 * line), STATS, bar)
            if SINGLE_DO:
                do_pipe.producer_acquire(shared.do, do_state)
                bar = do_pipe.producer_expect(shared.do, do_state, DO_BYTES)
                do_state = do_pipe.next(do_state)
            load_boxes(do_at(base, q_at), V_BOXES, Q_BOX, maps.do, bar, tile.first_row + row, h, image, images)
            q_state = q_pipe.next(q_state)
            row, member = tiles.next(row, member, tile, shared.tile, work)

    # ---- the bias, or the mask

    BIAS_BOX, BIAS_BOXES, DS_BOX = 64 * config.ds_line, ceil_div(WIDTH, 64), HEIGHT * config.ds_line
    TILE_BYTES = config.ds if config.staged else HEIGHT * WIDTH  # of a mask a byte for each query and key

    @device_function
    def load_bias(array, strides, shared, tile, work):
        image, state, row, member = tile.sequence if strides.batch else 0, bias_pipe.producer_start(), tile.begin, 0
        while tiles.is_left(row, tile) and member < work.heads.group:
            h, to = tile.head + member if strides.head else 0, ds_at(shared.base, state.stage)
            bias_pipe.producer_acquire(shared.bias, state)
            bar = bias_pipe.producer_expect(shared.bias, state, TILE_BYTES)
            for b in range(BIAS_BOXES):
                for g in range(GROUPS):
                    tma_load_4d(to + u32(b * DS_BOX + g * BIAS_BOX), array, bar, tile.key + 64 * g, row + 64 * b, h, image)
            state = bias_pipe.next(state)
            row, member = tiles.next(row, member, tile, shared.tile, work)

    # ---- dq

    BY_WIDTH, BY_HEIGHT, ORDERED, wait_for_turn = divisor(WIDTH), divisor(HEIGHT), config.ordered, make_turns(config, down)
    DQ_AT, DQ_BYTES = at.dq, config.dq
    source_free, drained = make_bulk_wait_read(0), make_bulk_wait(0)

    @device_function
    def add_to_dq(shared, tile, added, work, own):
        image = 0 if PACKED else tile.sequence
        mine, _ = divide_remainder(tile.key, BY_HEIGHT)
        first, _ = divide_remainder(tile.first_padded, BY_WIDTH)
        first = (image * work.heads.all + tile.head) * work.sizes.tiles + first  # of all tiles of queries the first one of these heads'
        step, source, row, member = u32(0), shared.base + DQ_AT, tile.begin, 0
        while tiles.is_left(row, tile) and member < work.heads.group:
            if step & 1 == own:
                n, _ = divide_remainder(row, BY_WIDTH)
                n = first + member * work.sizes.tiles + n
                dq_pipe.consumer_wait(shared.dq, dq_pipe.state_at(step))
                to = address(added.dq, n * i64(DQ_BYTES // 4))
                if ORDERED and not wait_for_turn(advance(added.counts, i64(n)), row, tile, mine, work):
                    bulk_store(to, source, DQ_BYTES)
                else:
                    bulk_reduce_add_f32(to, source, DQ_BYTES)
                bulk_commit()
                source_free()
                dq_free_pipe.producer_commit(shared.dq_free, dq_free_pipe.producer_start())
                if ORDERED:
                    drained()
                    fence_async_global()
                    add_released(advance(added.counts, i64(n)), 1)
            step = step + 1
            row, member = tiles.next(row, member, tile, shared.tile, work)
        drained()
    return Producers(load, load_bias, add_to_dq)

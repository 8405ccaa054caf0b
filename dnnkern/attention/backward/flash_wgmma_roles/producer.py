"""The producers' warpgroup of `flash_wgmma_roles`: a thread that loads, and two that take turns in adding to dq."""
import functools
from typing import Callable, NamedTuple

from ....device import device_function, i64, u32
from ....device.grid import add_released
from ....device.index import divide_remainder, divisor
from ....device.pipeline import Pipeline, make_pipeline
from ....device.tma import bulk_load, make_tma_load, tma_load_4d
from ....device.vec import address, advance
from ....engine.hopper import ROW
from ..._wgmma import COLUMNS
from ..flash_wgmma.tiles import make_tiles, make_turns
from .config import PIECE

WARPS = 8  # that multiply


class Pipes(NamedTuple):
    """Between the producers and the others, and between those, in the order of their barriers.

    kv
        k, then v, which stay: nobody frees them.
    q, do
        Stages of q, lse and delta, and of do, which every warp of both warpgroups releases.
    p
        Probabilities, from one warpgroup to the other. Both release them.
    rest
        What probabilities lost when they were rounded, from one warpgroup to the other. Where that lies where ds will, it says when ds has
        been multiplied.
    given, taken, empty
        ds from the other block, whose barrier the copy completes; that the other one has got this block's; that it has multiplied it.
    turn, added
        That it is a block's turn to add to a tile of dq, and that it has. Two threads take every other step: each has stages of its own.
    """
    kv: Pipeline
    q: Pipeline
    do: Pipeline
    p: Pipeline
    rest: Pipeline
    given: Pipeline
    taken: Pipeline
    empty: Pipeline
    turn: Pipeline
    added: Pipeline


@functools.cache
def make_pipes(config) -> Pipes:
    """Of a configuration."""
    of_q, of_do, of_p, _ = config.stages
    blocks = config.shape.blocks
    return Pipes(kv=make_pipeline(2, consumers=0), q=make_pipeline(of_q, consumers=WARPS, cluster=blocks),
                 do=make_pipeline(of_do, consumers=WARPS, cluster=blocks),
                 p=make_pipeline(of_p, consumers=WARPS, producers=WARPS // 2),
                 rest=make_pipeline(1, consumers=WARPS // 2), given=make_pipeline(1, consumers=0), taken=make_pipeline(1, consumers=0),
                 empty=make_pipeline(1, consumers=0, producers=WARPS // 2),
                 turn=make_pipeline(2, consumers=0), added=make_pipeline(2, consumers=0, producers=WARPS // 2))


@functools.cache
def make_boxes(config):
    """Device functions ``boxes_of(rank)``: (the first, how many) boxes of columns of dq a block has; and ``box_at(address, b)``, where box
    number b of a tile of k or v is."""
    FIRSTS, ALL, BOX = config.dq_boxes, config.boxes[0], config.box

    @device_function
    def boxes_of(rank):
        return rank * FIRSTS, min(ALL - rank * FIRSTS, FIRSTS)

    @device_function
    def box_at(address, b):
        return address + u32(b * BOX)
    return boxes_of, box_at


class Producers(NamedTuple):
    """Device functions of one thread each.

    load(maps, shared, tile, rank, stats, work)
        k and v, and q, do, lse and delta of each step. Of two blocks each loads every other box of q and do, for both.
    take_turns(shared, tile, rank, counts, work, own)
        Waits for the turn to add to a tile of dq, and says that it has been added, of every other step, from number `own` on.
    """
    load: Callable
    take_turns: Callable


@functools.cache
def make_producers(config, down) -> Producers:
    """Of a configuration, from the last keys to the first or `down` the other way round."""
    s, at, tiles, pipes = config.shape, config.layout, make_tiles(config, down), make_pipes(config)
    kv_pipe, q_pipe, do_pipe, turn_pipe, added_pipe = pipes.kv, pipes.q, pipes.do, pipes.turn, pipes.added
    (Q_BOXES, V_BOXES), BOX, PASSING_BOX, STATS = config.boxes, config.box, s.width * ROW, config.stats
    V_AT, Q_AT, DO_AT, STATS_AT, (Q_BYTES, DO_BYTES) = at.v, at.q, at.do, at.stats, config.passing
    OTHER_K_AT, PAIR, OWN, load_for_both = at.other_k, s.blocks > 1, s.own, make_tma_load(4, multicast=True)
    boxes_of, box_at = make_boxes(config)

    @device_function
    def load_boxes(to, boxes, array, bar, row, h, image):
        for b in range(boxes):
            tma_load_4d(box_at(to, b), array, bar, b * COLUMNS, row, h, image)

    @device_function
    def load_passing(to, boxes, which, array, bar, row, h, image):
        for b in range(boxes):
            if PAIR:
                if b & 1 == which:
                    load_for_both(to, array, bar, b * COLUMNS, row, h, image, 3)
            else:
                tma_load_4d(to, array, bar, b * COLUMNS, row, h, image)
            to = to + PASSING_BOX

    @device_function
    def load(maps, shared, tile, rank, stats, work):
        base, image, kv_state, own_key = shared.base, tile.sequence, kv_pipe.producer_start(), tile.key + rank * OWN
        if tiles.is_left(tile.begin, tile):  # where no query attends to the keys nobody would wait for them
            bar = kv_pipe.producer_expect(shared.kv, kv_state, Q_BOXES * BOX)
            load_boxes(base, Q_BOXES, maps.k, bar, own_key, tile.kv_head, image)
        kv_state = kv_pipe.next(kv_state)
        q_state, do_state, row, member = q_pipe.producer_start(), do_pipe.producer_start(), tile.begin, 0
        while tiles.is_left(row, tile) and member < work.heads.group:
            h = tile.head + member
            line = (image * work.heads.all + h) * i64(work.sizes.padded) + row
            q_pipe.producer_acquire(shared.q, q_state)
            bar = q_pipe.producer_expect(shared.q, q_state, Q_BYTES + STATS)
            load_passing(base + Q_AT + q_state.stage * Q_BYTES, Q_BOXES, rank, maps.q, bar, row, h, image)
            bulk_load(base + STATS_AT + q_state.stage * STATS, address(stats, 2 * line), STATS, bar)
            if kv_state.stage == 1:  # after what the first product takes
                first, boxes = boxes_of(rank)
                bar = kv_pipe.producer_expect(shared.kv, kv_state, (V_BOXES + (boxes if PAIR else 0)) * BOX)
                load_boxes(base + V_AT, V_BOXES, maps.v, bar, own_key, tile.kv_head, image)
                if PAIR:
                    for b in range(boxes):
                        tma_load_4d(box_at(base + OTHER_K_AT, b), maps.k, bar, (first + b) * COLUMNS, tile.key + (1 - rank) * OWN,
                                    tile.kv_head, image)
                kv_state = kv_pipe.next(kv_state)
            do_pipe.producer_acquire(shared.do, do_state)
            bar = do_pipe.producer_expect(shared.do, do_state, DO_BYTES)
            load_passing(base + DO_AT + do_state.stage * DO_BYTES, V_BOXES, 1 - rank, maps.do, bar, row, h, image)
            q_state, do_state = q_pipe.next(q_state), do_pipe.next(do_state)
            row, member = tiles.next(row, member, tile, shared.tile, work)

    BY_PIECE, BY_HEIGHT, wait_for_turn = divisor(PIECE), divisor(s.height), make_turns(config, down)

    @device_function
    def take_turns(shared, tile, rank, counts, work, own):
        mine, _ = divide_remainder(tile.key, BY_HEIGHT)
        first = (tile.sequence * work.heads.all + tile.head) * work.sizes.tiles  # of all tiles of dq the first one of these heads'
        step, row, member = u32(0), tile.begin, 0
        while tiles.is_left(row, tile) and member < work.heads.group:
            if step & 1 == own:
                n, _ = divide_remainder(row, BY_PIECE)
                count, state = advance(counts, i64(first + member * work.sizes.tiles + n + rank)), turn_pipe.state_at(step)
                wait_for_turn(count, row, tile, mine, work)
                turn_pipe.producer_commit(shared.turn, state)
                added_pipe.consumer_wait(shared.added, state)
                add_released(count, 1)
                if not PAIR:
                    add_released(advance(count, 1), 1)
            step = step + 1
            row, member = tiles.next(row, member, tile, shared.tile, work)
    return Producers(load, take_turns)

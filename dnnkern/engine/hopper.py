"""The Hopper main loop: one producer warp fills a ring of stages through TMA, warpgroups multiply out of it, blocks are persistent.

    producer (one lane)        empty[s] -> expect bytes on full[s] -> TMA a, b into stage s
    consumers (warpgroups)     full[s] -> wgmma over the stage's k -> the previous stage is free: arrive on its empty[s]
                               -> after the last step: the epilogue, through shared memory and TMA or straight to y
                               while the producer already fills the ring for the next tile

A loader defines what a stage holds and a sink what becomes of a tile; matmul, grouped matmul and convolution bring theirs. Both are
captured as device functions in a closure and cost no call. Block (or cluster) i takes tiles i, i + blocks, ...

Ping-pong: each warpgroup has whole tiles of its own, every other one. While one runs the epilogue of its tile, the other multiplies. It
begins once the first has waited for its last stage, since a phase's parity cannot tell a stage from the same one two rounds later.

Blocks of a cluster are neighbours along m: each loads its own rows of a and a share of b, which TMA multicasts to all of them. A stage is
free once the consumers of every block of the cluster have read it, since any of the blocks may overwrite it.

The layout of a stage: rows of 128 bytes, 8 rows per atom of the 128-byte swizzle. An operand contiguous along k ("k") is a column of atoms.
One contiguous along m or n ("mn", 16-bit types only) consists of boxes of 64 elements by all of the stage's k, 8192 bytes each: both kinds
step by 8192 bytes every 64 rows of a tile. A loader may have narrower boxes of b, swizzled by the bytes of their rows.

Sources: CUTLASS 3's warp-specialised persistent kernels and the DeepGEMM scheduler, for the ideas.
"""
import functools
from dataclasses import dataclass
from typing import NamedTuple

from ..device import cuda, device_function, f32, i32, u32
from ..device.barrier import barrier_arrive, barrier_sync
from ..device.cluster import cluster_arrive_relaxed, cluster_rank, cluster_wait
from ..device.dependent import launch_dependent_grids, wait_for_previous_grid
from ..device.mbarrier import fence_mbarrier_init
from ..device.pipeline import make_pipeline
from ..device.registers import check_register_budget, make_register_claim, make_register_release
from ..device.scheduler import make_static
from ..device.tma import make_bulk_wait, make_tma_load, prefetch_tensor_map
from ..device.unroll import unrolled
from ..device.warp import elect, uniform
from ..device.wgmma import descriptor, make_wgmma, make_wgmma_wait, matrix_descriptor
from .hopper_promoted import make_promoted, promoted_fits
from .scales import FP8

ROW = 128           # bytes of k in a stage: the widest swizzle
GROUP = 8192        # bytes of 64 rows of a stage
SHARED_LIMIT = 232448
BARRIERS = 1280     # bytes set apart for barriers and for aligning the ring
MOST_STAGES = 16
REMAKING = 5        # the barrier of threads that make an operand in its stage; those below are of epilogues and of tiles that alternate
ITEMSIZE = {"bfloat16": 2, "float16": 2, "tf32": 4, "float8_e4m3fn": 1, "float8_e5m2": 1, "int8": 1}


@dataclass(frozen=True)
class Tile:
    """Shape of a block's tile and how warpgroups share it.

    Attributes
    ----------
    bm, bn : int
        64, 128, 192 or 256 rows; a multiple of 8 columns. Up to 192 rows a warpgroup takes 64, of 256 rows it takes 128.
    cluster : int
        Blocks along m that share b.
    blocks : int
        Blocks per multiprocessor.
    ping_pong : bool
        Two warpgroups take every other tile each, instead of a part of each tile.
    """
    bm: int = 128
    bn: int = 256
    cluster: int = 1
    blocks: int = 1
    ping_pong: bool = False

    def __post_init__(self):
        if self.bm not in (64, 128, 192, 256):
            raise ValueError(f"tile of {self.bm} rows; expected 64, 128, 192 or 256")
        if self.bn % 8 or not 8 <= self.bn <= 256:
            raise ValueError(f"tile of {self.bn} columns; expected a multiple of 8 up to 256")
        if self.cluster not in (1, 2, 4, 8) or self.blocks not in (1, 2):
            raise ValueError(f"tile {self}: {self.cluster} blocks a cluster, expected 1, 2, 4 or 8, and {self.blocks} a multiprocessor, "
                             "expected 1 or 2")
        if self.bn % (8 * self.cluster):
            raise ValueError(f"{self.cluster} blocks cannot share {self.bn} columns of b evenly in groups of 8")
        producer, consumer = self.registers
        if consumer < self.sums + 24:
            raise ValueError(f"tile {self}: a thread keeps {self.sums} sums and needs 24 registers more; 65536 registers for {self.blocks} "
                             f"blocks of {self.threads} threads leave it {consumer}")
        check_register_budget(self.threads, ((128, producer), (128 * self.consumers, consumer)), self.blocks)
        if self.stages < 2:
            raise ValueError(f"tile {self}: {SHARED_LIMIT} bytes of shared memory hold {self.blocks} blocks with {self.stages} stages of "
                             f"{self.stage} bytes; the least is 2")

    @property
    def consumers(self):
        """Warpgroups that multiply."""
        return 2 if self.bm == 256 or self.ping_pong else self.bm // 64

    @property
    def sharing(self):
        """Those of them that work on one tile."""
        return 1 if self.ping_pong else self.consumers

    @property
    def groups(self):
        """64-row groups a warpgroup works on."""
        return self.bm // 64 // self.sharing

    @property
    def sums(self):
        """Accumulators of a thread."""
        return self.groups * self.bn // 2

    @property
    def a_bytes(self):
        """Of a stage."""
        return self.bm * ROW

    @property
    def a_steps(self):
        """Bytes of a from the rows of one warpgroup to the next one's, and from one of a warpgroup's 64 rows to the next."""
        return 0 if self.ping_pong else self.groups * GROUP, GROUP

    @property
    def threads(self):
        return 128 * (1 + self.consumers)

    @property
    def stage(self):
        """Bytes: b in whole boxes of 64 columns."""
        return self.a_bytes + (self.bn + -self.bn % 64) * ROW

    @property
    def boxes(self):
        """Boxes of 64 columns in which results leave."""
        return -(-self.bn // 64)

    @property
    def buffers(self):
        """Buffers for such boxes, for each warpgroup; a divisor of `boxes`."""
        return self.boxes if self.boxes < 4 else 2

    @property
    def stages(self):
        """Of the ring: as many as fit."""
        rest = SHARED_LIMIT // self.blocks - (self.blocks > 1) * 1024 - BARRIERS - self.consumers * self.buffers * GROUP
        return min(rest // self.stage, MOST_STAGES)

    @property
    def shared(self):
        """Dynamic shared memory, bytes."""
        return self.stages * self.stage + self.consumers * self.buffers * GROUP + BARRIERS

    @property
    def registers(self):
        """(of a producer thread, of a consumer thread), within what a multiprocessor has."""
        producer = 40 if self.consumers < 3 else 24
        consumer = (65536 // self.blocks - 128 * producer) // (128 * self.consumers) // 8 * 8
        return producer, min(consumer, 240)

    def __str__(self):
        return f"{self.bm}x{self.bn}" + (f" cluster {self.cluster}" if self.cluster > 1 else "") + (
            f" {self.blocks} blocks/SM" if self.blocks > 1 else "") + (" ping-pong" if self.ping_pong else "")


class Loader(NamedTuple):
    """What a stage holds.

    load : device function (to_a, to_b, a_map, b_map, bar, tile, rank, k)
        Issue the copies of step `k` of `tile`, all counted on `bar`; called by one thread.
    a_major, b_major : "k" or "mn"
    dtype, b_dtype : str
        As `device.wgmma` calls them.
    bytes : int
        What lands on `bar`, from all blocks of the cluster.
    first, after : device functions (tile, k) -> state and (state, tile) -> state, optional
        What `load` gets in the place of k: the state of the tile's first step, and of the step after one. Counters that go on from step
        to step cost less than the divisions that would find them anew.
    b_width : 64, 32, 16 or 8
        Columns of a box of b, where it is contiguous along n.
    """
    load: object
    a_major: str
    b_major: str
    dtype: str
    b_dtype: str
    bytes: int
    first: object = None
    after: object = None
    b_width: int = 64


def boxes_descriptor(width):
    """Constant of an operand contiguous along m or n, in boxes of `width` elements by 64 of k; a step of 16 of k is `2 * width`."""
    if width == 8:  # not swizzled: the roles of the two offsets change
        return matrix_descriptor(128, 1024, 0)
    return matrix_descriptor(width * ROW, width * 16, 2 * width)


@functools.cache
def make_matrix_copy(major, count, cluster=1):
    """Device function ``load(to, map, bar, at, first, z)``: `count` rows of a or columns of b from number `first` on, in a stage's k from
    element `at` on, for all blocks of a cluster."""
    BY_K, BOXES, MULTICAST, MASK = major == "k", -(-count // 64), cluster > 1, (1 << cluster) - 1
    one, multicast = make_tma_load(3), make_tma_load(3, multicast=True)

    @device_function
    def copy(to, map, bar, c0, c1, z):
        if MULTICAST:
            multicast(to, map, bar, c0, c1, z, u32(MASK))
        else:
            one(to, map, bar, c0, c1, z)

    @device_function
    def load(to, map, bar, at, first, z):
        if BY_K:
            copy(to, map, bar, at, first, z)
        else:
            for box in range(BOXES):
                copy(to + u32(box * GROUP), map, bar, first + box * 64, at, z)
    return load


@functools.cache
def make_matrix_loader(tile, dtype, b_dtype, a_major, b_major):
    """`Loader` of two matrices through maps of rank three (batch, rows, columns), at `row`, `column`, `z_a` and `z_b` of a tile."""
    BK, SHARE, B_BY_K = ROW // ITEMSIZE[dtype], tile.bn // tile.cluster, b_major == "k"
    if tile.cluster > 1 and not B_BY_K and SHARE % 64:
        raise ValueError(f"b contiguous along n is shared in boxes of 64 columns; {SHARE} are no multiple")
    load_a, load_b = make_matrix_copy(a_major, tile.bm), make_matrix_copy(b_major, SHARE, tile.cluster)

    @device_function
    def load(to_a, to_b, a_map, b_map, bar, tile, rank, k):
        at = k * BK
        load_a(to_a, a_map, bar, at, tile.row, tile.z_a)
        load_b(to_b + u32(rank) * (SHARE * ROW), b_map, bar, at, tile.column + rank * SHARE, tile.z_b)
    return Loader(load, a_major, b_major, dtype, b_dtype, (tile.bm + (tile.bn if B_BY_K else tile.bn + -tile.bn % 64)) * ROW)


@functools.cache
def make_product(tile, loader, locate, sink, accumulator="float32", factors=None, cooperative=False, addend=None, ahead=None, made=None,
                 remake=None, keeps=None):
    """Device function ``product(a_map, b_map, y_map, shared, tiles, place, out, addend_map, operands)`` that a kernel's every thread calls
    once.

    Parameters
    ----------
    tile : Tile
    loader : Loader
    locate : device function (t, rank, place) -> tile
        What tile number t is: a NamedTuple with its first step of k, `k_begin`, and the one after its last, `k_end`; the other fields are
        the loader's and the sink's. A tile that ends where it begins is passed over, one that ends before it begins is the last.
    sink : device function (acc, first, offset, y_map, staging, tile, thread, barrier, out, [stages, group, columns])
        What becomes of acc[first: first + bn / 2], the fragment of the 64 rows from row `offset` of the tile on; called by a warpgroup,
        `thread` being 0 to 127.
    accumulator : "float32" or "int32"
    factors : hopper_promoted.Factors, optional
    cooperative : bool
        All lanes of a warp call `locate` together. Otherwise one lane of the producer warp does everything, which spares it the moves
        between a lane's registers and the warp's (`elect`): loads are issued in a tenth of the instructions.
    addend : hopper_addend.AddendStages, optional
        Further stages of each tile, of the array at `addend_map`, which the sink gets as `stages` with the number of its 64 rows among the
        warpgroup's, and frees.
    ahead : (int, device function (words, tile, thread, out)), optional
        So many words, which a thread loads to the local array `words` while the tile's last products are computed; the sink gets them as
        `columns`.
    made : hopper_made.MadeRows, optional
        How a is made in registers, with `operands`.
    remake : device function (b, tile, k, group, thread, operands), optional
        Makes b of what the stage of step k has of it, in its place, at the shared address `b`, by all warpgroups that share a tile, which
        then meet: while the tensor cores work on the step before.
    keeps : tile_states.KeptStates, optional
        States that threads keep from tile to tile, which the sink gets as `own`.

    Notes
    -----
    `shared` is the address of the dynamic shared memory, `Tile.shared` bytes; `place` and `out` are tuples handed to `locate` and `sink`.
    """
    STAGES, STAGE, A_BYTES, CLUSTER, SHARING, GROUPS = tile.stages, tile.stage, tile.a_bytes, tile.cluster, tile.sharing, tile.groups
    SUMS, PER_GROUP, STAGING, PING_PONG = tile.sums, tile.bn // 2, tile.stages * tile.stage, tile.ping_pong
    STAGING_SHARE, BARS, BYTES = tile.buffers * GROUP, STAGING + tile.consumers * tile.buffers * GROUP, loader.bytes
    KEEP, TAKE = tile.registers
    A_SHARE, A_GROUP = tile.a_steps
    MADE, FIRST_ROW = made is not None, 0 if PING_PONG else 64 * GROUPS
    READERS = 31 if MADE else 127  # of the threads that free a stage: each warp reads the rows that it makes
    if MADE:
        A_SHARE = A_SHARE // ROW * made.pitch
    schedule = make_static(CLUSTER)
    by_k, width = matrix_descriptor(16, 1024, 128), loader.b_width
    A_CONST = by_k if loader.a_major == "k" else boxes_descriptor(64)
    B_CONST = by_k if loader.b_major == "k" else boxes_descriptor(width)
    multiply = make_wgmma(tile.bn, loader.dtype, loader.b_dtype, steps=4, tiles=GROUPS, a_major=loader.a_major, b_major=loader.b_major,
                          a_step=2 if loader.a_major == "k" else 128, b_step=2 if loader.b_major == "k" else 2 * width,
                          a_tile=A_GROUP // 16)
    wait_all, wait_older = make_wgmma_wait(0, SUMS), make_wgmma_wait(4 if MADE else 1, 0)
    release_registers, claim_registers = make_register_release(KEEP), make_register_claim(TAKE)
    drain, pipe = make_bulk_wait(0), make_pipeline(STAGES, consumers=128 // (READERS + 1) * SHARING, cluster=CLUSTER)
    load, first_of, after, STATE = loader.load, loader.first, loader.after, loader.first is not None
    scalar = i32 if accumulator == "int32" else f32
    PROMOTED = loader.dtype in FP8
    FURTHER, load_addend = (addend.count, addend.load) if addend else (0, None)
    WORDS, load_ahead = ahead or (0, None)
    first_rows, rows_after = (made.rows.first, made.rows.after) if MADE else (None, None)
    OWN, T_OWN, start_states, finish_states = keeps or (0, u32, None, None)
    made_ahead, multiply_made, KEPT, COLUMNS = (made.ahead, made.multiply, made.rows.kept, made.words) if MADE else (None, None, 0, 0)
    make_b = remake or device_function(lambda b, tile, k, group, thread, operands: None)
    if PROMOTED and not promoted_fits(tile):
        raise ValueError(f"tile {tile}: 8-bit floats take {2 * SUMS} accumulators of one group and 32 registers; there are {TAKE}")

    @device_function
    def begin_step(acc, stages, state, tile, k):
        mine, ring, group, thread, operands = stages
        at = state.stage * STAGE
        make_b(ring + at + A_BYTES, tile, k, group, thread, operands)
        multiply(acc, descriptor(A_CONST, mine + at), descriptor(B_CONST, ring + at + A_BYTES), 0)
    sum_steps = make_promoted(SUMS, pipe, begin_step, wait_all, factors) if PROMOTED else None

    @device_function
    def produce(a_map, b_map, addend_map, ring, bars, tiles, first, rank, place):
        state, t, leads = pipe.producer_start(), first, elect()
        if cooperative or leads:
            while t < tiles:
                tile = locate(t, rank, place)
                begin, end = tile.k_begin, tile.k_end
                if cooperative:
                    begin, end = uniform(begin), uniform(end)
                if end < begin:
                    t = tiles
                if STATE:
                    step = first_of(tile, begin)
                for k in range(begin, end):
                    if leads:
                        pipe.producer_acquire(bars, state)
                        bar = pipe.producer_expect(bars, state, u32(BYTES))
                        at = ring + state.stage * STAGE
                        if STATE:
                            load(at, at + A_BYTES, a_map, b_map, bar, tile, rank, step)
                        else:
                            load(at, at + A_BYTES, a_map, b_map, bar, tile, rank, k)
                    if STATE:
                        step = after(step, tile)
                    state = pipe.next(state)
                if FURTHER and end > begin:
                    if leads:
                        load_addend(0, (state, ring, bars, addend_map, tile))
                    state = pipe.advance(state, FURTHER)
                t = schedule.next(t, None)
            if CLUSTER > 1 and leads:  # the block must not end while another may still arrive on its barriers
                pipe.producer_tail(bars, state)

    @device_function
    def sink_group(g, s):
        acc, group, y_map, staging, tile, thread, out, stages, columns, own = s
        part, barrier = g * 64 if PING_PONG else (group * GROUPS + g) * 64, u32(group + 1)
        if OWN:
            sink(acc, g * PER_GROUP, part, y_map, staging, tile, thread, barrier, out, stages, g, columns, own)
        elif FURTHER or WORDS:
            sink(acc, g * PER_GROUP, part, y_map, staging, tile, thread, barrier, out, stages, g, columns)
        else:
            sink(acc, g * PER_GROUP, part, y_map, staging, tile, thread, barrier, out)
    sink_all = unrolled(GROUPS, sink_group)

    @device_function
    def consume(y_map, ring, bars, tiles, first, rank, place, group, thread, out, operands, own=None):
        acc = cuda.local.array(SUMS, scalar)
        state, t, turn = pipe.consumer_start(), first, i32(1)
        handed = group > 0
        top = group * FIRST_ROW
        mine = ring + u32(group) * A_SHARE
        staging = ring + STAGING + u32(group) * STAGING_SHARE
        if PROMOTED:
            total = cuda.local.array(SUMS, scalar)
        columns = cuda.local.array(max(WORDS, 1), u32)
        kept, made_columns = cuda.local.array(max(KEPT, 1), u32), cuda.local.array(max(COLUMNS, 1), u32)
        while t < tiles:
            tile = locate(t, rank, place)
            begin, end = uniform(tile.k_begin), uniform(tile.k_end)
            if end < begin:
                t = tiles
            t = schedule.next(t, None)
            if PING_PONG:
                turn = turn ^ 1
                if turn != group:  # the other warpgroup's tile: its steps go by
                    if end > begin:
                        state = pipe.advance(state, end - begin)
                    continue
                if handed:
                    barrier_sync(u32(3 + group), u32(256))
                handed = True
            before = pipe.consumer_start()  # nothing is in flight
            if PROMOTED:
                for i in range(SUMS):
                    total[i] = f32(0)
            if MADE:
                rows = first_rows(tile, top + ((thread >> 5) << 4) + ((thread & 31) >> 2), operands, kept)
            if PROMOTED:
                state = sum_steps(acc, total, state, bars, begin, end, (mine, ring, group, thread, operands), tile,
                                  top + ((thread >> 5) << 4) + ((thread & 31) >> 2), thread, out)
            else:
                for k in range(begin, end):
                    if MADE:
                        made_ahead(made_columns, rows, thread)
                    pipe.consumer_wait(bars, state)
                    at = state.stage * STAGE
                    make_b(ring + at + A_BYTES, tile, k, group, thread, operands)
                    if MADE:
                        multiply_made(acc, mine + at, descriptor(B_CONST, ring + at + A_BYTES), i32(k != begin), thread, rows, kept,
                                      made_columns)
                        rows = rows_after(rows, tile)
                    else:
                        multiply(acc, descriptor(A_CONST, mine + at), descriptor(B_CONST, ring + at + A_BYTES), i32(k != begin))
                    if k > begin:
                        wait_older(acc)
                        if MADE:
                            cuda.syncwarp()
                        pipe.consumer_release(bars, before, thread & READERS)
                    before, state = state, pipe.next(state)
            if PING_PONG and t < tiles:
                barrier_arrive(u32(4 - group), u32(256))
            if WORDS and end > begin:
                load_ahead(columns, tile, thread, out)
            if end > begin and PROMOTED:
                sink_all(0, (total, group, y_map, staging, tile, thread, out, (state, ring, bars, group), columns, own))
            elif end > begin:
                wait_all(acc)
                if MADE:
                    cuda.syncwarp()
                pipe.consumer_release(bars, before, thread & READERS)
                sink_all(0, (acc, group, y_map, staging, tile, thread, out, (state, ring, bars, group), columns, own))
            if FURTHER and end > begin:
                state = pipe.advance(state, FURTHER)

    @device_function
    def consume_and_keep(y_map, ring, bars, tiles, first, rank, place, group, thread, out, operands):
        own = cuda.local.array(OWN, T_OWN)
        start_states((own,))
        consume(y_map, ring, bars, tiles, first, rank, place, group, thread, out, operands, own)
        finish_states(own, locate(first, rank, place), group, thread, ring, out)
    work = consume_and_keep if OWN else consume

    @device_function
    def product(a_map, b_map, y_map, shared, tiles, place, out, addend_map=None, operands=None):
        ring = (shared + 1023) & 0xFFFFFC00
        bars = pipe.barriers(ring + BARS)
        tid = cuda.threadIdx.x
        if tid == 0:
            prefetch_tensor_map(a_map)
            prefetch_tensor_map(b_map)
            pipe.init(bars)
            fence_mbarrier_init()
        if CLUSTER > 1:
            cluster_arrive_relaxed()
            cluster_wait()
            rank = uniform(cluster_rank())
        else:
            cuda.syncthreads()
            rank = 0
        first = schedule.first()
        launch_dependent_grids()  # what follows may set up its barriers while this grid still works
        wait_for_previous_grid()
        role = uniform(tid >> 7)
        if role == 0:
            release_registers()
            if tid < 32:
                produce(a_map, b_map, addend_map, ring, bars, tiles, first, rank, place)
        else:
            claim_registers()
            thread = tid & 127
            work(y_map, ring, bars, tiles, first, rank, place, role - 1, thread, out, operands)
            if thread == 0:
                drain()
    return product

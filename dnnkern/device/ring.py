"""Rows that stream through shared memory: a ring that bulk copies fill, and sums that blocks send each other a step before they use them.

A cluster of blocks, with an equal share of the columns each, goes through rows for good. Shares lie in a ring of *stages*, a
step's rows each, which one thread fills by bulk copies as they become free, so that memory is busy whatever the other threads do. A
*step* has two halves: threads reduce the newest rows, and send their block's sums to all blocks of the cluster; then they finish the rows
of the step before, whose sums have come meanwhile and which are still in the ring. There is one barrier of the block a step, before the
send; behind it everyone is done with the stage of two steps ago, and it is filled again.

Unit u of a block's share is the thread's number ``u % threads``: `Ring.units` of 16 bytes for each thread.

Host functions
    `rings`           the rings that a device has room for
    `make_ring`       the device functions of a `Ring`
    `make_turns`      those of the sums alone

>>> ring = Ring(threads=256, units=4, inputs=1, rows=1, stages=6, cluster=8, resident=2, whole=True)
>>> ring.stage_bytes, ring.shared_bytes
(16384, 98304)
"""
import functools
import itertools
from dataclasses import dataclass, replace
from typing import Callable, NamedTuple

from . import cuda, device_function, i32, u32, u64
from .cluster import cluster_arrive_relaxed, cluster_rank, cluster_wait, remote_address, store_async_f32
from .index import ceil_div
from .mbarrier import fence_mbarrier_init
from .pipeline import Pipeline, make_pipeline
from .rows import make_row_offsets
from .tma import bulk_load
from .vec import address, load_shared_4u32, shared_address

TURNS = 4                          # sets of slots and barriers: a block may be two steps ahead of what another has read
STATIC = 4096                      # bytes of shared memory for everything but the ring, and what the system takes
UNITS = 8                          # of a thread at most
CLUSTERS = 4, 8                    # blocks whose sums go by st.async: with one or two a GPU met an illegal instruction; why is not known
LEAST, MOST = 4, 12                # stages: two are in use
FLIGHT = 65536                     # bytes of a multiprocessor's rings that should be under way
SIXTEEN = (9, 0), (10, 0), (10, 3)  # compute capabilities of devices with clusters of sixteen blocks


@dataclass(frozen=True)
class Ring:
    """How blocks go through rows.

    Attributes
    ----------
    threads : int
        Of a block.
    units : int
        Of 16 bytes that a thread has of a row.
    inputs : int
        Arrays that are read: 1 or 2.
    rows : int
        Of a step.
    stages : int
        Of the ring, a step's rows each.
    cluster : int
        Blocks that share a row.
    resident : int
        Blocks of a multiprocessor.
    whole : bool
        Every thread has all of its units.
    """
    threads: int
    units: int
    inputs: int
    rows: int
    stages: int
    cluster: int
    resident: int
    whole: bool

    @property
    def chunk_bytes(self):
        """Of a share of a row of an array."""
        return 16 * self.units * self.threads

    @property
    def stage_bytes(self):
        return self.chunk_bytes * self.inputs * self.rows

    @property
    def shared_bytes(self):
        return self.stage_bytes * self.stages

    def __str__(self):
        steps = f", {self.rows} rows" * (self.rows > 1) + f", ring of {self.stages}"
        return f"{self.threads} threads x {self.cluster} blocks, {self.units} x 16 bytes{steps}, {self.resident} a multiprocessor"


def cluster_sizes(device):
    """Blocks of the clusters that a device has for sums sent so. Host function."""
    return CLUSTERS + ((16,) if device.capability in SIXTEEN else ())


def rings(rows, count, inputs, device):
    """The rings for `rows` rows of `count` units, half of whose threads at least have work; no more stages than steps. Host function."""
    found = []
    for cluster in cluster_sizes(device):
        share = ceil_div(count, cluster)
        for threads in (64, 128, 256, 512):
            units = ceil_div(share, threads)
            if units > (UNITS if threads > 64 else 1) or share <= threads * units // 2 and (cluster, threads) != (CLUSTERS[0], 64):
                continue
            for resident, step in itertools.product((1, 2, 3, 4), (1, 2)):
                stage = 16 * units * threads * inputs * step
                room = min(device.shared_per_block, device.shared_per_sm // resident) - STATIC
                stages = min(MOST, room // stage)
                if resident * threads <= 1024 and stages >= LEAST and (stages - 2) * resident * stage >= FLIGHT:
                    ring = Ring(threads, units, inputs, step, stages, cluster, resident, units * threads * cluster == count)
                    steps = ceil_div(rows, clusters(ring, device, rows) * step)
                    found.append(replace(ring, stages=min(stages, max(LEAST, steps))))
    return found


def clusters(ring, device, rows):
    """How many go through `rows` rows: all that run at once. Host function."""
    return max(1, min(device.clusters(ring.cluster, ring.resident), ceil_div(rows, ring.rows)))


class RingFunctions(NamedTuple):
    """Device functions of a `Ring`; `bars` are the barriers of `pipe`, `met` those of `turns`, `slots` a shared array of ``TURNS * values *
    cluster`` float32.

    pipe : Pipeline
        Of the ring. A barrier of the block says that a stage has been read.
    turns : Pipeline
        As `make_turns`'s.
    prepare(bars, met)
        All threads of the cluster; before all else. It arrives at the cluster's barrier, for which they must wait (`cluster_wait`) before
        the first send; thread ``threads - 32``, which alone calls `start`, may do so earlier.
    start(base, bars, state, p, q, row, step, rows, begin, count, divisors, strides)
        One thread: the copies of rows `row`, ``row + step``, ..., below `rows`, `count` units from number `begin` on, of the arrays p and,
        where there are two, q, to the stage of that state; `base` is the shared address of the ring.
    fetch(words, j, at, k, a, c)
        Unit c of this thread, of row k of array a, as ``words[j:j + 4]``; `at`: the stage's shared address, 16 bytes on a thread.
    send(sums, slots, met, turn), wait(met, turn)
        As `make_turns`'s.
    leave()
        All threads of the cluster; behind all else.
    """
    pipe: Pipeline
    turns: Pipeline
    prepare: Callable
    start: Callable
    fetch: Callable
    send: Callable
    wait: Callable
    leave: Callable


@functools.cache
def make_turns(values, cluster):
    """A `Pipeline` of `TURNS` stages, whose barriers are `met`, and device functions ``send(sums, slots, met, turn)``, of a local array of
    `values` float32, by the threads of one warp: to all blocks of the cluster; and ``wait(met, turn) -> place``, by all threads:
    ``slots[place + values * k + v]`` is number v of block k. `turn` counts the calls."""
    SENT, turns = values * cluster, make_pipeline(TURNS, consumers=0)

    @device_function
    def send(sums, slots, met, turn):
        thread, state = cuda.threadIdx.x, turns.state_at(u32(turn))
        if thread < cluster:
            if thread == 0:
                turns.producer_expect(met, state, u32(4 * SENT))
            to = remote_address(shared_address(slots, i32(state.stage) * SENT + cluster_rank() * values), u32(thread))
            bar = remote_address(turns.full_barrier(met, state), u32(thread))
            for v in range(values):
                store_async_f32(to + u32(4 * v), sums[v], bar)

    @device_function
    def wait(met, turn):
        state = turns.state_at(u32(turn))
        turns.consumer_wait(met, state)
        return i32(state.stage) * SENT
    return turns, send, wait


@functools.cache
def make_ring(ring, values, dims, arrays) -> RingFunctions:
    """The device functions for sums of `values` numbers a step, and rows of `dims` dimensions of `arrays` arrays, the inputs first."""
    ROWS, CHUNK, STAGE = ring.rows, ring.chunk_bytes, ring.stage_bytes
    INPUTS, LINE, LAST = ring.inputs, 16 * ring.threads, ring.threads - 32
    row_offsets = make_row_offsets(dims, arrays)
    pipe, (turns, send, wait) = make_pipeline(ring.stages, consumers=0), make_turns(values, ring.cluster)

    @device_function
    def prepare(bars, met):
        if cuda.threadIdx.x == LAST:
            pipe.init(bars)
            turns.init(met)
            fence_mbarrier_init()
        cluster_arrive_relaxed()

    @device_function
    def leave():
        cluster_arrive_relaxed()
        cluster_wait()

    @device_function
    def start(base, bars, state, p, q, row, step, rows, begin, count, divisors, strides):
        if row < rows and count > 0:
            to, first = base + state.stage * STAGE, u64(begin) * 16
            there, nbytes = i32(1), u32(count) * 16
            for k in range(1, ROWS):
                there = there + 1 if row + k * step < rows else there
            bar = pipe.producer_expect(bars, state, u32(there * count) * (16 * INPUTS))
            for k in range(ROWS):
                n = row + k * step
                if n < rows:
                    offsets = row_offsets(n, divisors, strides)
                    bulk_load(to, address(p, offsets[0]) + first, nbytes, bar)
                    if INPUTS == 2:
                        bulk_load(to + CHUNK, address(q, offsets[1]) + first, nbytes, bar)
                to = to + INPUTS * CHUNK

    @device_function
    def fetch(words, j, at, k, a, c):
        place = at + u32((k * INPUTS + a) * CHUNK + c * LINE)
        words[j], words[j + 1], words[j + 2], words[j + 3] = load_shared_4u32(place)
    return RingFunctions(pipe, turns, prepare, start, fetch, send, wait, leave)

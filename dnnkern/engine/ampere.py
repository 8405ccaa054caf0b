"""The Ampere main loop: a ring of stages filled by cp.async, fragments by ldmatrix, products by mma.sync.

    global memory -- loaders --> ring of `stages` stages -- readers --> fragments, two steps of k -- mma.sync --> accumulators --> sink

- A loader defines what a stage holds (`engine.ampere_loaders`), a sink what becomes of the accumulators. matmul, grouped matmul and
  convolution bring theirs, captured as device functions in a closure.
- Everything is counted in bytes of k, so the loop is the same for 16-bit elements, bytes, tf32 and float64;
  `engine.ampere_fragments` has the rest.
- Fragments are loaded one step of k ahead of their use, into the other half of a double buffer. All indices are constants once unrolled.
- The copies of a stage are issued during the first step of another one, into the slot that the last barrier freed. That barrier comes
  before the last step of a stage, whose products cover the loads of the next stage's first fragments. Row by row, for the long products of
  float64, it comes before the last two rows, and only the fragments of 16 rows and those of the right operand are double-buffered.
- The stage with the remainder of k comes first, padded with zeros: the loop has no tail.
- `slices` warps share one sub-tile, each with its own part of the k of a stage; they add up their accumulators through shared memory at
  the end. A tile with few rows keeps many loads in flight that way, without a second launch.

Sources: CUTLASS's multistage pipelines, for the ideas.
"""
import functools
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..device import cuda, device_function, f32, f64, i32, i64, u32, u64
from ..device.cp_async import commit_copies, wait_copies
from ..device.mma import make_mma
from ..device.unroll import unrolled
from ..device.vec import load_shared_2f64, load_shared_4f32, load_shared_4u32, store_shared_2f64, store_shared_4f32, store_shared_4u32
from .ampere_fragments import make_reader, row_in_warp
from .loaders import ALONG_K, log2
from .tile_states import WarpAt, mma_fragment, warp_bytes


@dataclass(frozen=True)
class MmaTile:
    """Tile of a block and how the work is shared.

    Attributes
    ----------
    bm, bn : int
        Rows and columns of y; powers of two.
    depth : int
        Bytes of k in a stage.
    warps_m, warps_n, slices : int
        The warps' grid over the tile, and over the steps of a stage.
    stages : int
        Of the ring.
    blocks : int
        Blocks meant to fit on a multiprocessor.
    by_row : int
        1 where fragments of the left operand are loaded 16 rows ahead of their use instead of a step of k, which saves registers.
    mma_m, mma_k : int
        Shape of a float64 mma; 0 where there is only one.
    """
    bm: int
    bn: int
    depth: int = 64
    warps_m: int = 2
    warps_n: int = 2
    slices: int = 1
    stages: int = 3
    blocks: int = 1
    by_row: int = 0
    mma_m: int = 0
    mma_k: int = 0

    def __post_init__(self):
        for name in ("bm", "bn", "depth", "warps_m", "warps_n", "slices"):
            value = getattr(self, name)
            if value < 1 or value & value - 1:
                raise ValueError(f"{self}: {name}={value} is no power of two")
        if self.warp_m < 16 or self.warp_n < 8 or self.threads > 1024:
            raise ValueError(f"{self}: a warp computes {self.warp_m}x{self.warp_n}, at least 16x8; a block has {self.threads} threads, at "
                             "most 1024")
        if self.stages < 2:
            raise ValueError(f"{self}: a ring has at least 2 stages")
        if self.steps * self.slices * self.step_bytes != self.depth or self.steps > 1 and self.steps % 2:
            raise ValueError(f"{self}: {self.depth} bytes of k make {self.depth // self.step_bytes} steps of {self.step_bytes}, "
                             f"{self.slices} slices need an even number each, or one")
        if self.by_row and (not self.mma_m or self.warp_m < 32 or self.steps < 2):
            raise ValueError(f"{self}: row by row is for float64, at least 32 rows of a warp and 2 steps")

    @property
    def warp_m(self):
        return self.bm // self.warps_m

    @property
    def warp_n(self):
        return self.bn // self.warps_n

    @property
    def threads(self):
        return 32 * self.warps_m * self.warps_n * self.slices

    @property
    def units(self):
        """Steps of fragments in a step of the loop: 2 for the float64 mma with 16 k."""
        return 2 if self.mma_k == 16 else 1

    @property
    def step_bytes(self):
        """Bytes of k in a step of the loop."""
        return 64 * self.units if self.mma_m else 32

    @property
    def steps(self):
        """Steps of a stage that a slice takes."""
        return self.depth // (self.step_bytes * self.slices)

    @property
    def stage(self):
        """Bytes of a stage."""
        return (self.bm + self.bn) * self.depth

    def __str__(self):
        text = f"{self.bm}x{self.bn}x{self.depth}B w{self.warps_m}x{self.warps_n}"
        text += f"x{self.slices}" * (self.slices > 1) + f" s{self.stages}" + " rows" * self.by_row
        return text + f" m{self.mma_m}k{self.mma_k}" * bool(self.mma_m)


def alignment_of(left, right):
    """Bytes to which the ring is aligned: xor exchanges places within a line, and within the 128 bytes of all banks."""
    return max(128, left.line, right.line)


def shared_bytes(tile, left, right):
    """Dynamic shared memory of a block: the ring and what aligns it, or the accumulators that slices exchange."""
    exchange = (tile.slices - 1) * tile.bm * tile.bn * (8 if tile.mma_m else 4)
    return max(tile.stages * stage_bytes(tile, left, right), exchange) + alignment_of(left, right) - 16


def reduced_bytes(tile, spec):
    """Static shared memory of the reductions of an epilogue's program."""
    return warp_bytes(spec, tile.bm, tile.bn, tile.threads, tile.warps_m * tile.slices, tile.warps_n)


def stage_bytes(tile, left, right):
    """Bytes from one stage to the next."""
    align = alignment_of(left, right)
    return -(-tile.stage // align) * align


def registers_needed(tile, loaders):
    """About how many registers a thread needs: accumulators, sets of fragments, what the loaders keep, and a few."""
    words = 2 if tile.mma_m else 1
    sums = tile.warp_m * tile.warp_n // 32 * words
    sets = 2 if tile.steps > 1 else 1
    fragments = tile.units * words * (sets * tile.warp_n // 4 + (8 if tile.by_row else sets * tile.warp_m // 4))
    return sums + fragments + sum(loader.registers for loader in loaders) + 26


def run_of(right):
    """Neighbouring columns of y that a lane holds."""
    return 2 * right.spread


@functools.cache
def _multiply(dtype, mma_m, mma_k):
    """Device function ``multiply(acc, i, fa, j, fb, k)``: a tile of 16x8 += the fragments of one step."""
    mma = make_mma(dtype, mma_m or None, mma_k or None)
    if mma_m == 8:
        @device_function
        def multiply(acc, i, fa, j, fb, k):
            for slot in range(2):
                for half in range(2):
                    mma(acc, i + 2 * half, fa, j + 2 * slot + half, fb, k + slot)
    elif mma_k == 4:
        @device_function
        def multiply(acc, i, fa, j, fb, k):
            for slot in range(2):
                mma(acc, i, fa, j + 2 * slot, fb, k + slot)
    else:
        return mma
    return multiply


class Thread(NamedTuple):
    """The first row and column of a thread's warp in the block's tile, its slice, and the byte offsets of its fragments in a stage."""
    row: i32
    column: i32
    slice: i32
    from_a: u32
    from_b: u32


class Copies(NamedTuple):
    """What a thread copies to shared memory, of both operands: the operands' states, arrays of the addresses that it copies from, arrays of
    words that wait in registers, and the thread's number."""
    a: object
    b: object
    at_a: object
    at_b: object
    held_a: object
    held_b: object
    tid: i32


def make_mma_product(tile, left, right, left_loader, right_loader, sink, edge, reductions=None, dual=False):
    """Device function ``product(a, b, first, end, rows, row0, column0, shared, state)``: the tile at (row0, column0) over first <= k < end.

    Parameters
    ----------
    tile : MmaTile
    left, right : Stored
        How the operands' stages lie in shared memory.
    left_loader, right_loader : object
        As `engine.ampere_loaders` describes; `a` and `b` are their states.
    sink : device function (acc, e, row, column, state)
        Takes acc[e:e + run_of(right)], neighbouring columns from (row, column) on.
    edge : bool
        Whether a tile may reach beyond `rows` of y; those are left out. Columns are the sink's to check.
    reductions : callable(Fragment) -> FragmentReductions, optional
        Of the tile, see `engine.tile_states`; `state` is then the sink's and a `Reducing`.
    dual : bool
        The right stage is of two operands, see `engine.ampere_dual`: columns are those of half the tile, and the sums of the second operand
        come after the run.

    Notes
    -----
    `shared` is the address of the dynamic shared memory, `shared_bytes` of it. Every thread of the block calls product once.
    """
    double, words = tile.mma_m > 0, left.dtype == "int8"
    T, Acc = (f64, f64) if double else (u32, i32 if words else f32)
    U, SLICES, STEPS, STAGES = tile.units, tile.slices, tile.steps, tile.stages
    MI, NI = tile.warp_m // 16, tile.warp_n // 8
    A_STEP, B_STEP = 4 * U, 2 * U  # fragments of a tile of 16 rows, of 8 columns
    FA, FB, NACC = MI * A_STEP, NI * B_STEP, MI * NI * 4
    SETS, BY_ROW = 2 if STEPS > 1 else 1, tile.by_row
    FA2, FB2 = 2 * A_STEP if BY_ROW else SETS * FA, SETS * FB
    WM, WN, SHM, SHN, SHT = tile.warp_m, tile.warp_n, log2(tile.warps_m), log2(tile.warps_n), log2(tile.warps_m * tile.warps_n)
    SUB = tile.threads // SLICES  # threads of a slice
    BK, SHK, AHEAD = left.k, log2(left.k), STAGES - 1
    RIGHT, STAGE, ALIGN = left.bytes, stage_bytes(tile, left, right), alignment_of(left, right)
    RING = STAGES * STAGE
    PN, RUN = right.spread, run_of(right)
    SHP, SHI = log2(PN), log2(MI)
    RUNS, HELD = (NI >> SHP) // (1 + dual), RUN * (1 + dual)
    NA, HA, NB, HB = left_loader.places, left_loader.words, right_loader.places, right_loader.words
    PlaceA, PlaceB = ({"int32": i32, "int64": i64, "uint64": u64}[loader.place] for loader in (left_loader, right_loader))
    wait, wait_all = wait_copies(AHEAD - 1), wait_copies(0)
    multiply = _multiply(left.dtype, tile.mma_m, tile.mma_k)
    a_origin, a_load = make_reader(replace(left, warp_rows=16) if BY_ROW else left, U)
    b_origin, b_load = make_reader(right, U)
    a_start, a_part, a_whole, a_put, a_advance = left_loader.functions()
    b_start, b_part, b_whole, b_put, b_advance = right_loader.functions()
    row_of = row_in_warp(left)
    load_group = load_shared_2f64 if double else load_shared_4u32 if words else load_shared_4f32
    store_group = store_shared_2f64 if double else store_shared_4u32 if words else store_shared_4f32
    GROUP = 2 if double else 4
    PARTS = 4 // GROUP  # accesses of 16 bytes for the four accumulators of a tile of 16x8
    ROW_TILE = 16 * (left.line if left.order == ALONG_K else left.item)  # bytes to the next 16 rows
    UNITS = STEPS * MI
    REDUCES, OWN, Own = reductions is not None, 1, Acc
    if REDUCES:
        OWN, Own, start_states, add_states, meet_states = reductions(mma_fragment(tile, row_of, PN, edge))
    else:
        start_states = add_states = meet_states = None

    @device_function
    def load_a(fa, half, at, step):
        for u in range(U):
            a_load(fa, half * FA + 4 * u, at, step * U + u)

    @device_function
    def load_b(fb, half, at, step):
        for u in range(U):
            b_load(fb, half * FB + 2 * u, at, step * U + u)

    @device_function
    def load_row(fa, half, at, step, i):
        for u in range(U):
            a_load(fa, half * A_STEP + 4 * u, at + u32(i * ROW_TILE), step * U + u)

    @device_function
    def multiply_row(i, s):
        acc, fa, j_a, fb, j_b = s
        for j in range(NI):
            multiply(acc, (i * NI + j) * 4, fa, j_a + (0 if BY_ROW else i * A_STEP), fb, j_b + j * B_STEP)
    multiply_rows = unrolled(MI, multiply_row)

    @device_function
    def issue(copies, write, ok):
        """A whole stage to the shared address `write`."""
        a_whole(copies.at_a, copies.held_a, write, copies.a, copies.tid, ok)
        b_whole(copies.at_b, copies.held_b, write + RIGHT, copies.b, copies.tid, ok)

    @device_function
    def issue_part(copies, write, count):
        """A stage with only the first `count` of its k."""
        a_part(copies.at_a, copies.held_a, write, copies.a, copies.tid, count)
        b_part(copies.at_b, copies.held_b, write + RIGHT, copies.b, copies.tid, count)

    @device_function
    def commit(copies, write):
        """The stage issued last is a group of copies, with what waited in registers."""
        a_put(copies.at_a, copies.held_a, write, copies.a, copies.tid)
        b_put(copies.at_b, copies.held_b, write + RIGHT, copies.b, copies.tid)
        commit_copies()

    @device_function
    def advance(copies, count):
        a_advance(copies.at_a, copies.a, count)
        b_advance(copies.at_b, copies.b, count)

    @device_function
    def close(copies, write):
        """The stage issued last is a group of copies; the next one to be read is there, and none reads the present one any more."""
        commit(copies, write)
        wait()
        cuda.syncthreads()

    @device_function
    def step(kk, s):
        acc, fa, fb, read_a, read_b, copies, write, ok = s
        load_a(fa, (kk + 1) & 1, read_a, kk + 1)
        load_b(fb, (kk + 1) & 1, read_b, kk + 1)
        if kk == 0:
            issue(copies, write, ok)
        multiply_rows(0, (acc, fa, (kk & 1) * FA, fb, (kk & 1) * FB))
    all_but_last = unrolled(STEPS - 1, step) if STEPS > 1 else None

    @device_function
    def unit(x, s):
        """Row by row: the products of 16 rows in one step, and the loads of the next ones."""
        acc, fa, fb, read_a, read_b, next_a, next_b, copies, write, ok = s
        kk, i = x >> SHI, x & (MI - 1)
        if x < UNITS - 1:
            load_row(fa, (x + 1) & 1, read_a, (x + 1) >> SHI, (x + 1) & (MI - 1))
        else:
            load_row(fa, 0, next_a, 0, 0)
        if i == 0 and kk < STEPS - 1:
            load_b(fb, (kk + 1) & 1, read_b, kk + 1)
        if x == 0:
            issue(copies, write, ok)
        if x == UNITS - 2:
            close(copies, write)
            load_b(fb, 0, next_b, 0)
        multiply_row(i, (acc, fa, (x & 1) * A_STEP, fb, (kk & 1) * FB))
    all_units = unrolled(UNITS, unit) if BY_ROW else None

    @device_function
    def first_fragments(fa, fb, read_a, read_b):
        if BY_ROW:
            load_row(fa, 0, read_a, 0, 0)
            load_b(fb, 0, read_b, 0)
        elif STEPS > 1:
            load_a(fa, 0, read_a, 0)
            load_b(fb, 0, read_b, 0)

    @device_function
    def stage(acc, fa, fb, read_a, read_b, next_a, next_b, copies, write, ok):
        """The products of a stage, the copies of another, and the first fragments of the next."""
        if BY_ROW:
            all_units(0, (acc, fa, fb, read_a, read_b, next_a, next_b, copies, write, ok))
        elif STEPS > 1:
            all_but_last(0, (acc, fa, fb, read_a, read_b, copies, write, ok))
            close(copies, write)
            first_fragments(fa, fb, next_a, next_b)
            multiply_rows(0, (acc, fa, i32(FA), fb, i32(FB)))
        else:
            load_a(fa, 0, read_a, 0)
            load_b(fb, 0, read_b, 0)
            issue(copies, write, ok)
            multiply_rows(0, (acc, fa, i32(0), fb, i32(0)))
            close(copies, write)

    @device_function
    def spread(i, s):
        """The accumulators of 16 rows go to boxes in shared memory, but for the slice that finishes them."""
        acc, slice_, box = s
        p = i & (SLICES - 1)
        if slice_ != p:
            slot = slice_ if slice_ < p else slice_ - 1
            o = box + u32(i * (SLICES - 1) + slot) * (NI * 4 * SUB * 16 // GROUP)
            for j in range(NI):
                for h in range(PARTS):
                    e = (i * NI + j) * 4 + h * GROUP
                    to = o + u32((j * PARTS + h) * SUB * 16)
                    if double:
                        store_group(to, acc[e], acc[e + 1])
                    else:
                        store_group(to, acc[e], acc[e + 1], acc[e + 2], acc[e + 3])
    spread_all = unrolled(MI, spread)

    @device_function
    def collect(i, s):
        """The other slices' accumulators of 16 rows are added, one slice after another."""
        acc, box = s
        for x in range(SLICES - 1):
            for j in range(NI):
                for h in range(PARTS):
                    e = (i * NI + j) * 4 + h * GROUP
                    more = load_group(box + u32(((i * (SLICES - 1) + x) * NI * PARTS + j * PARTS + h) * SUB * 16))
                    for g in range(GROUP):
                        acc[e + g] = Acc(acc[e + g] + Acc(more[g]))

    @device_function
    def add_one(e, s):
        own, i, J, run, row, column, state = s
        add_states(own, i, J * RUN + e, run[e], row, column + e, state)
    add_run = unrolled(RUN, add_one) if REDUCES else None

    @device_function
    def finish_run(J, s):
        acc, run, own, i, first, row, column, state = s
        for e in range(RUN):
            run[e] = acc[first + (J * PN + (e & (PN - 1))) * 4 + (e >> SHP)]
            if dual:
                run[RUN + e] = acc[first + ((J + RUNS) * PN + (e & (PN - 1))) * 4 + (e >> SHP)]
        if REDUCES:
            add_run(0, (own, i, J, run, row, column + J * 8 * PN, state[1]))
            sink(run, 0, row, column + J * 8 * PN, state[0])
        else:
            sink(run, 0, row, column + J * 8 * PN, state)
    finish_row = unrolled(RUNS, finish_run)

    @device_function
    def finish_half(half, s):
        acc, run, own, i, lane, row0, column0, rows, state = s
        row = row0 + row_of(2 * i + half, lane >> 2)
        if not edge or row < rows:
            finish_row(0, (acc, run, own, 2 * i + half, i * NI * 4 + 2 * half, row, column0 + (lane & 3) * RUN, state))
    finish_both = unrolled(2, finish_half)

    @device_function
    def finish(i, s):
        acc, run, own, slice_, box, lane, row0, column0, rows, state = s
        if SLICES == 1 or slice_ == i & (SLICES - 1):
            if SLICES > 1:
                collect(i, (acc, box))
            finish_both(0, (acc, run, own, i, lane, row0, column0, rows, state))
    finish_all = unrolled(MI, finish)

    @device_function
    def thread_of(tid):
        lane, warp = tid & 31, tid >> 5
        row, column = (warp & ((1 << SHM) - 1)) * WM, ((warp >> SHM) & ((1 << SHN) - 1)) * WN
        k_slice = warp >> SHT
        return Thread(row, column, k_slice, a_origin(lane, row, k_slice * (STEPS * U)),
                      b_origin(lane, column, k_slice * (STEPS * U)) + RIGHT)

    @device_function
    def finish_tile(acc, run, thread, box, tid, row0, column0, rows, state):
        own = cuda.local.array(OWN, Own)
        if REDUCES:
            start_states(own)
        column = thread.column >> 1 if dual else thread.column
        finish_all(0, (acc, run, own, thread.slice, box, tid & 31, row0 + thread.row, column0 + column, rows, state))
        if REDUCES:
            warp = WarpAt(thread.row, thread.column, (tid >> 5 & ((1 << SHM) - 1)) + (thread.slice << SHM),
                          tid >> (5 + SHM) & ((1 << SHN) - 1), thread.slice)
            meet_states(own, warp, row0, column0, rows, state[1])

    @device_function
    def product(a, b, first, end, rows, row0, column0, shared, state):
        tid = cuda.threadIdx.x
        ring, thread = (shared + (ALIGN - 1)) & (0x100000000 - ALIGN), thread_of(tid)
        copies = Copies(a, b, cuda.local.array(NA, PlaceA), cuda.local.array(NB, PlaceB), cuda.local.array(HA, u32),
                        cuda.local.array(HB, u32), tid)
        a_start(copies.at_a, a, first, tid)
        b_start(copies.at_b, b, first, tid)
        left_over = end - first
        count = (left_over + (BK - 1)) >> SHK
        left_over = left_over - (count - 1) * BK
        # prologue: the stage with the remainder, then whole ones
        issue_part(copies, ring, left_over)
        commit(copies, ring)
        advance(copies, left_over)
        write = ring + STAGE
        for s in range(1, AHEAD):
            issue(copies, write, 1 if s < count else 0)
            commit(copies, write)
            advance(copies, BK)
            write = write + STAGE
        acc, run = cuda.local.array(NACC, Acc), cuda.local.array(HELD, Acc)
        fa, fb = cuda.local.array(FA2, T), cuda.local.array(FB2, T)
        for i in range(NACC):
            acc[i] = Acc(0)
        wait()
        cuda.syncthreads()
        read, last = ring, ring + RING
        first_fragments(fa, fb, read + thread.from_a, read + thread.from_b)
        while count > 0:
            ok = 1 if count > AHEAD else 0
            after = read + STAGE
            after = ring if after == last else after
            stage(acc, fa, fb, read + thread.from_a, read + thread.from_b, after + thread.from_a, after + thread.from_b, copies, write, ok)
            advance(copies, BK)
            read = after
            write = write + STAGE
            write = ring if write == last else write
            count = count - 1
        box = ring + u32((tid & (SUB - 1)) * 16)
        if SLICES > 1:
            wait_all()
            cuda.syncthreads()
            spread_all(0, (acc, thread.slice, box))
            cuda.syncthreads()
        finish_tile(acc, run, thread, box, tid, row0, column0, rows, state)
    return product

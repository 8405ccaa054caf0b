"""The GEMM main loop on CUDA cores: a block computes a tile of y, each thread tm x tn of it in registers.

    global memory -- loaders --> ring of `stages` stages in shared memory -- 16-byte loads --> fragments -- fma --> accumulators
                                 a and b as [k][row]

- A warp is a grid of lanes_m x 32/lanes_m threads. A thread's rows come in groups of 16 bytes, and neighbouring threads have neighbouring
  groups: a fragment load has no bank conflicts and serves several lanes at once (broadcast).
- Fragments are loaded one step of k ahead of their use, into the other half of a double buffer. All indices are constants once unrolled.
- `slices` warps share one sub-tile, each with its own part of the k of a stage; they add up their accumulators at the end. Small products
  fill the multiprocessors that way, with the operand traffic of a big tile.
- With `early` the barrier at the end of a stage comes that many steps sooner, where arithmetic is left to cover it; the ring then needs
  one stage more.
- The stage with the remainder of k comes first, padded with zeros: the loop has no tail.
"""
import functools
from dataclasses import dataclass
from typing import NamedTuple

from ..device import cuda, device_function, f32, f64, i32, i64, u32, u64
from ..device.cp_async import commit_copies, wait_copies
from ..device.dot import make_outer
from ..device.scheduler import in_bands
from ..device.unroll import unrolled
from ..device.vec import (address, load_shared_2f64, load_shared_4f32, load_shared_4u32, store_shared_2f64, store_shared_4f32,
                          store_shared_4u32)
from ..host.launch import Argument
from .loaders import AsyncLoader, StagedLoader, log2

HALVES = ("float16", "bfloat16")


@dataclass(frozen=True)
class Tile:
    """Block tile bm x bn x bk, thread tile tm x tn, and how warps share it; `blocks` should fit on a multiprocessor."""
    bm: int
    bn: int
    bk: int
    tm: int
    tn: int
    lanes_m: int = 4
    slices: int = 1
    stages: int = 3
    early: int = 0
    blocks: int = 2

    def __post_init__(self):
        wm, wn = self.tm * self.lanes_m, self.tn * 32 // self.lanes_m
        if self.bm % wm or self.bn % wn or self.bk % self.slices or not 32 <= self.threads <= 1024:
            raise ValueError(f"{self}: a warp covers {wm}x{wn}, the block has {self.threads} threads")
        if self.stages < 2 + bool(self.early) or self.early >= self.bk // self.slices:
            raise ValueError(f"{self}: needs {2 + bool(self.early)} stages, early below {self.bk // self.slices}")

    @property
    def warps_m(self):
        return self.bm // (self.tm * self.lanes_m)

    @property
    def warps_n(self):
        return self.bn * self.lanes_m // (self.tn * 32)

    @property
    def threads(self):
        return self.warps_m * self.warps_n * self.slices * 32

    def __str__(self):
        text = f"{self.bm}x{self.bn}x{self.bk} t{self.tm}x{self.tn} s{self.stages}"
        return text + f"e{self.early}" * bool(self.early) + f" {self.slices} slices" * (self.slices > 1)


@dataclass(frozen=True)
class Operands:
    """How the two operands are read: element type, (order, elements per access) of each, and whether tiles can reach past an edge."""
    dtype: str
    a: tuple
    b: tuple
    edge: int

    @property
    def item(self):
        """Bytes of an element in shared memory; int8 is stored as words of four k."""
        return 8 if self.dtype == "float64" else 4

    @property
    def group(self):
        """Elements in 16 bytes of shared memory."""
        return 16 // self.item


def shared_bytes(tile, operands):
    """Dynamic shared memory per block: the ring, or the accumulators that slices exchange."""
    loaders = _loaders(tile, operands)
    ring = _stages(tile, operands) * tile.bk * operands.item * (loaders[0].pitch + loaders[1].pitch)
    return max(ring, (tile.slices - 1) * tile.bm * tile.bn * operands.item)


def registers_needed(tile, operands):
    """About how many registers a thread needs: accumulators, two sets of fragments, 64-bit addresses, and a few."""
    loaders = _loaders(tile, operands)
    values = tile.tm * tile.tn + 2 * (tile.tm + tile.tn)
    return values * operands.item // 4 + 2 * (loaders[0].places + loaders[1].places) + (20 if operands.item == 8 else 14)


def _stages(tile, operands):
    return 2 if operands.dtype in HALVES else tile.stages


@functools.cache
def _loaders(tile, operands):
    kind, what = (StagedLoader, operands.dtype) if operands.dtype in HALVES else (AsyncLoader, operands.item)
    return (kind(tile.bm, tile.bk, tile.threads, what, *operands.a, operands.edge),
            kind(tile.bn, tile.bk, tile.threads, what, *operands.b, operands.edge))


def make_product(tile, operands, sink):
    """Device function ``product(a, b, (sam, sak, sbk, sbn), m, n, k_first, k, m0, n0, s0, s)``: the tile at (m0, n0) over k_first .. k-1.

    Strides, m, n and k are in elements as shared memory holds them (int8: words of four); `a` and `b` point at the matrices, `s0` is the
    shared address of the ring. Results go to the device function ``sink(acc, e, row, column, s)``, which stores acc[e:e+group], a group of
    neighbouring columns from (row, column) on.
    """
    la, lb = _loaders(tile, operands)
    tile_product = make_tile_product(tile, operands, _OfMatrix(la, operands), _OfMatrix(lb, operands), sink)

    @device_function
    def product(a, b, strides, m, n, k_first, k, m0, n0, s0, state):
        sam, sak, sbk, sbn = strides
        tile_product((a, m0, m - 1, sam, sak), (b, n0, n - 1, sbn, sbk), k_first, k, m, m0, n0, s0, state)
    return product


class _OfMatrix:
    """A loader of `engine.loaders` as `make_tile_product` wants it; the state is (p, row, last, stride, stride_k): pointer, the tile's
    first row, the matrix's last, strides in elements."""

    def __init__(self, loader, operands):
        self.loader, self.staged, self.item = loader, operands.dtype in HALVES, operands.item
        self.pitch, self.places, self.words = loader.pitch, loader.places, loader.words
        self.place = "int64" if self.staged else "uint64"

    def functions(self):
        """The device functions start, place, part, whole, put, advance."""
        staged, ITEM = self.staged, self.item
        init, place, first, issue, put, step_on = self.loader.functions()

        @device_function
        def start(at, s, k_first, tid):
            p, row, last, stride, stride_k = s
            base = row * stride + k_first * stride_k
            if staged:
                init(at, base, last - row, stride, stride_k, tid)
            else:
                init(at, address(p, 0) + u64(base * ITEM), last - row, stride, stride_k, tid)

        @device_function
        def part(at, hold, to, s, tid, left):
            p, _, _, _, stride_k = s
            first(at, hold, p, to, stride_k, tid, left)

        @device_function
        def whole(at, hold, to, s, tid, ok):
            p, _, _, _, stride_k = s
            issue(at, hold, p, to, stride_k, ok)

        @device_function
        def advance(at, s, count):
            _, _, _, _, stride_k = s
            step_on(at, count * stride_k)
        return start, place, part, whole, put, advance


class Copies(NamedTuple):
    """What a thread copies to shared memory, of both operands: the operands' states, arrays of the addresses that it copies from, arrays of
    words that wait in registers, and the byte offsets of its first element in a stage."""
    a: object
    b: object
    source_a: object
    source_b: object
    held_a: object
    held_b: object
    to_a: u32
    to_b: u32


class Fragments(NamedTuple):
    """A thread's accumulators and fragments, arrays."""
    acc: object
    a: object
    b: object


class Thread(NamedTuple):
    """A thread's first row and column of the block's tile, its slice, and the byte offsets of its first fragments in a stage."""
    row: i32
    column: i32
    slice: i32
    from_a: u32
    from_b: u32


def make_tile_product(tile, operands, la, lb, sink):
    """Device function ``product(a, b, k_first, k, m, m0, n0, smem, state)``: the tile at (m0, n0) over k_first .. k-1 by any two loaders.

    A loader has `pitch`, `places` of the type `place`, and `words`, as those of `engine.loaders`. Its device functions share the thread's
    local arrays; `s` is the operand's state, here `a` or `b`, which only the loader reads:

        start(at, s, k_first, tid)          the addresses that the thread copies from
        place(tid)                          byte offset of the thread's first element in a stage
        part(at, hold, to, s, tid, rest)    a stage with only the first `rest` of its k; the others become zero
        whole(at, hold, to, s, tid, ok)     a whole stage; nothing, or zeros, if `ok` is zero
        put(hold, to)                       stores to shared memory what those two left in registers
        advance(at, s, count)               `count` k on
    """
    double, words = operands.dtype == "float64", operands.dtype == "int8"
    T, Acc = (f64, f64) if double else (u32, i32) if words else (f32, f32)
    ITEM, G = operands.item, operands.group
    staged, edge = operands.dtype in HALVES, bool(operands.edge)
    LANES_M, TM, TN, BK, SLICES = tile.lanes_m, tile.tm, tile.tn, tile.bk, tile.slices
    LANES_N, GROUPS_M, GROUPS_N, STEPS = 32 // LANES_M, TM // G, TN // G, BK // SLICES
    SUB = tile.threads // SLICES  # threads per slice
    stages, early = _stages(tile, operands), 0 if staged else tile.early
    AHEAD = stages - 2 if early else stages - 1
    PITCH_A, PITCH_B = la.pitch, lb.pitch
    STAGE_A = PITCH_A * BK * ITEM
    STAGE = STAGE_A + PITCH_B * BK * ITEM

    # ---- which part of the tile a thread has

    LOG_WARPS_M, LOG_WARPS_N, LOG_WARPS = log2(tile.warps_m), log2(tile.warps_n), log2(tile.warps_m * tile.warps_n)

    @device_function
    def thread_of(tid):
        """Neighbouring lanes share rows and columns in turn, so that a quarter-warp's loads touch few different 16 bytes."""
        lane, warp = tid & 31, tid >> 5
        if LANES_M == 4:
            lane_n, lane_m = (lane >> 1) & 7, ((lane >> 4) << 1) | (lane & 1)
        else:
            lane_m, lane_n = (lane >> 1) & 7, ((lane >> 4) << 1) | (lane & 1)
        row = (warp & ((1 << LOG_WARPS_M) - 1)) * (TM * LANES_M) + lane_m * G
        column = ((warp >> LOG_WARPS_M) & ((1 << LOG_WARPS_N) - 1)) * (TN * LANES_N) + lane_n * G
        k_slice = warp >> LOG_WARPS
        return Thread(row, column, k_slice, u32(row * ITEM) + u32(k_slice * (STEPS * PITCH_A * ITEM)),
                      u32(column * ITEM) + u32(k_slice * (STEPS * PITCH_B * ITEM)) + STAGE_A)

    # ---- from global to shared memory

    a_start, a_place, a_part, a_whole, a_put, a_advance = la.functions()
    b_start, b_place, b_part, b_whole, b_put, b_advance = lb.functions()

    @device_function
    def start(copies, k_first, tid):
        a_start(copies.source_a, copies.a, k_first, tid)
        b_start(copies.source_b, copies.b, k_first, tid)

    @device_function
    def issue_part(copies, to, tid, rest):
        """A stage with only the first `rest` of its k."""
        a_part(copies.source_a, copies.held_a, copies.to_a + to, copies.a, tid, rest)
        b_part(copies.source_b, copies.held_b, copies.to_b + to, copies.b, tid, rest)

    @device_function
    def issue(copies, to, tid, ok):
        a_whole(copies.source_a, copies.held_a, copies.to_a + to, copies.a, tid, ok)
        b_whole(copies.source_b, copies.held_b, copies.to_b + to, copies.b, tid, ok)

    @device_function
    def put(copies, to):
        a_put(copies.held_a, copies.to_a + to)
        b_put(copies.held_b, copies.to_b + to)

    @device_function
    def advance(copies, count):
        a_advance(copies.source_a, copies.a, count)
        b_advance(copies.source_b, copies.b, count)

    # ---- from shared memory to accumulators

    wait, wait_all = wait_copies(AHEAD - 1), wait_copies(0)
    outer = make_outer(TM, TN, bytes4=words)
    load_shared = load_shared_2f64 if double else load_shared_4u32 if words else load_shared_4f32
    store_shared = store_shared_2f64 if double else store_shared_4u32 if words else store_shared_4f32

    @device_function
    def load_group(buffer, i, at):
        if G == 4:
            buffer[i], buffer[i + 1], buffer[i + 2], buffer[i + 3] = load_shared(at)
        else:
            buffer[i], buffer[i + 1] = load_shared(at)

    @device_function
    def store_group(at, buffer, i):
        if G == 4:
            store_shared(at, buffer[i], buffer[i + 1], buffer[i + 2], buffer[i + 3])
        else:
            store_shared(at, buffer[i], buffer[i + 1])

    @device_function
    def load_fragments(fragments, half, read_a, read_b, kk):
        for c in range(GROUPS_M):
            load_group(fragments.a, half * TM + G * c, read_a + u32((kk * PITCH_A + c * LANES_M * G) * ITEM))
        for c in range(GROUPS_N):
            load_group(fragments.b, half * TN + G * c, read_b + u32((kk * PITCH_B + c * LANES_N * G) * ITEM))

    @device_function
    def step(kk, s):
        fragments, read_a, read_b, copies, write, tid, ok = s
        load_fragments(fragments, (kk + 1) & 1, read_a, read_b, kk + 1)
        if kk == 0:
            issue(copies, write, tid, ok)
        if early and kk == STEPS - 1 - early:
            commit_copies()
            wait()
            cuda.syncthreads()
        outer(fragments.acc, fragments.a, (kk & 1) * TM, fragments.b, (kk & 1) * TN)
    steps = unrolled(STEPS - 1, step)

    # ---- slices add up their accumulators; results

    LOG_G, ROWS = log2(G), TM // SLICES  # rows of the thread's tile that each slice stores

    @device_function
    def exchange(p, s):
        """Accumulators of the rows that slice p stores, to its boxes in shared memory; one box for each other slice."""
        acc, k_slice, box = s
        if k_slice != p:
            slot = k_slice if k_slice < p else k_slice - 1
            o = box + (u32(p * (SLICES - 1)) + u32(slot)) * (ROWS * GROUPS_N * SUB * 16)
            for i in range(ROWS):
                for c in range(GROUPS_N):
                    store_group(o + u32((i * GROUPS_N + c) * SUB * 16), acc, (p * ROWS + i) * TN + c * G)

    @device_function
    def finish_row(r, s):
        acc, row0, column0, m, state = s
        row = row0 + ((r >> LOG_G) * (LANES_M * G) + (r & (G - 1)))
        if not edge or row < m:
            for c in range(GROUPS_N):
                sink(acc, r * TN + c * G, row, column0 + c * (LANES_N * G), state)
    finish_rows = unrolled(ROWS, finish_row)

    @device_function
    def finish(p, s):
        acc, more, k_slice, box, row0, column0, m, state = s
        if SLICES == 1 or k_slice == p:
            if SLICES > 1:
                o = box + u32(p * ((SLICES - 1) * ROWS * GROUPS_N * SUB * 16))
                for x in range(SLICES - 1):
                    for i in range(ROWS):
                        for c in range(GROUPS_N):
                            load_group(more, 0, o + u32(((x * ROWS + i) * GROUPS_N + c) * SUB * 16))
                            for g in range(G):
                                acc[(p * ROWS + i) * TN + c * G + g] += Acc(more[g])
            finish_rows(p * ROWS, (acc, row0, column0, m, state))
    exchange_all, finish_all = unrolled(SLICES, exchange), unrolled(SLICES, finish)

    # ---- the tile

    PlaceA, PlaceB = ({"int64": i64, "uint64": u64, "int32": i32}[loader.place] for loader in (la, lb))
    NA, NB, HA, HB, ACCS, FA, FB = la.places, lb.places, la.words, lb.words, TM * TN, 2 * TM, 2 * TN
    LOG_BK, RING = log2(BK), stages * STAGE

    @device_function
    def product(a, b, k_first, k, m, m0, n0, smem, state):
        tid = cuda.threadIdx.x
        thread = thread_of(tid)
        copies = Copies(a, b, cuda.local.array(NA, PlaceA), cuda.local.array(NB, PlaceB), cuda.local.array(HA, u32),
                        cuda.local.array(HB, u32), a_place(tid), b_place(tid) + STAGE_A)
        start(copies, k_first, tid)
        rest = k - k_first
        count = (rest + (BK - 1)) >> LOG_BK
        rest = rest - (count - 1) * BK

        # prologue: fill the ring, the stage with the remainder of k first
        issue_part(copies, smem, tid, rest)
        put(copies, smem)
        commit_copies()
        advance(copies, rest)
        write = smem + STAGE
        for s in range(1, AHEAD):
            issue(copies, write, tid, 1 if s < count else 0)
            commit_copies()
            advance(copies, BK)
            write = write + STAGE

        # main loop
        fragments = Fragments(cuda.local.array(ACCS, Acc), cuda.local.array(FA, T), cuda.local.array(FB, T))
        for i in range(ACCS):
            fragments.acc[i] = Acc(0)
        wait()
        cuda.syncthreads()
        read, end = smem, smem + RING
        load_fragments(fragments, 0, read + thread.from_a, read + thread.from_b, 0)
        while count > 0:
            ok = 1 if count > AHEAD else 0
            steps(0, (fragments, read + thread.from_a, read + thread.from_b, copies, write, tid, ok))
            if early == 0:
                put(copies, write)
                commit_copies()
                wait()
                cuda.syncthreads()
            read = read + STAGE
            read = smem if read == end else read
            load_fragments(fragments, STEPS & 1, read + thread.from_a, read + thread.from_b, 0)
            outer(fragments.acc, fragments.a, ((STEPS - 1) & 1) * TM, fragments.b, ((STEPS - 1) & 1) * TN)
            advance(copies, BK)
            write = write + STAGE
            write = smem if write == end else write
            count = count - 1

        # add up the slices' accumulators, store
        more, box = cuda.local.array(G, T), smem + u32((tid & (SUB - 1)) * 16)
        if SLICES > 1:
            wait_all()
            cuda.syncthreads()
            exchange_all(0, (fragments.acc, thread.slice, box))
            cuda.syncthreads()
        finish_all(0, (fragments.acc, more, thread.slice, box, m0 + thread.row, n0 + thread.column, m, state))
    return product


def band_arguments(rows, columns, order=in_bands):
    """Kernel parameters of `locate_in_bands`, or of another `order`: of a matrix of so many tiles. Host function."""
    per_band, rows, last_rows = order(rows, columns)
    return Argument("uint32x3", per_band), Argument("int32", rows), Argument("uint32x3", last_rows)

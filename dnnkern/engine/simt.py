"""The main loop of the products on ordinary arithmetic units: a block computes a tile of y, a thread tm x tn of it in registers.

    global -- loaders --> ring of `stages` stages in shared memory, a and b as [k][row] -- 16 bytes a load --> fragments -- fma --> acc

- A warp is a grid of lanes_m x 32/lanes_m threads; a thread's rows come in groups of 16 bytes, the groups of neighbouring threads next to
  each other: a fragment load is free of bank conflicts and serves several lanes at once (broadcast).
- Fragments are loaded one step of k ahead of their use, into the other half of a double buffer; all indices are constants after unrolling.
- `slices` warps share one sub-tile: each takes every so many steps of a stage, and they add up their accumulators at the end. Small
  products so fill the machine with warps that big tiles would leave idle, at the operand traffic of the big tile.
- With `early` the barrier at the end of a stage moves that many steps before the end, where there is arithmetic left to cover it: the ring
  then needs one stage more.
- The stage with the remainder of k comes first, zero-filled: the loop has no tail.
"""
import functools
from dataclasses import dataclass

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
    """Block tile bm x bn x bk, thread tile tm x tn, and how the work is shared; `blocks` are meant to fit on a multiprocessor."""
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
    """How the two operands are read: element type, (order, elements of one access) of each, and whether tiles can reach over an edge."""
    dtype: str
    a: tuple
    b: tuple
    edge: int

    @property
    def item(self):
        """Bytes of an element in shared memory; int8 lies there in words of four k."""
        return 8 if self.dtype == "float64" else 4

    @property
    def group(self):
        """Elements in 16 bytes of shared memory."""
        return 16 // self.item


def shared_bytes(tile, operands):
    """Dynamic shared memory of a block: the ring, or the accumulators that slices exchange."""
    loaders = _loaders(tile, operands)
    ring = _stages(tile, operands) * tile.bk * operands.item * (loaders[0].pitch + loaders[1].pitch)
    return max(ring, (tile.slices - 1) * tile.bm * tile.bn * operands.item)


def registers_needed(tile, operands):
    """About how many registers a thread needs: accumulators, two sets of fragments, 64-bit places, and a few."""
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


def make_tile_product(tile, operands, la, lb, sink):
    """Device function ``product(a, b, k_first, k, m, m0, n0, s0, state)``: the tile at (m0, n0) over k_first .. k-1 by any two loaders.

    A loader knows `pitch`, `places` of the type `place`, and `words`, as those of `engine.loaders`; its device functions share the thread's
    local arrays, and `s` is the operand's state, here `a` or `b`, which only the loader understands:

        start(at, s, k_first, tid)          what the thread copies from
        place(tid)                          byte offset of the thread's first element in a stage
        part(at, hold, to, s, tid, left)    a stage of which only the first `left` k are there; the others become zero
        whole(at, hold, to, s, tid, ok)     a whole stage; nothing, or zeros, where `ok` is zero
        put(hold, to)                       what those two left in registers goes to shared memory
        advance(at, s, count)               `count` k on
    """
    double, words = operands.dtype == "float64", operands.dtype == "int8"
    T, Acc = (f64, f64) if double else (u32, i32) if words else (f32, f32)
    ITEM, G = operands.item, operands.group
    staged, edge = operands.dtype in HALVES, bool(operands.edge)
    LM, TM, TN, BK, SLICES = tile.lanes_m, tile.tm, tile.tn, tile.bk, tile.slices
    LN, WM, WN, CM, CN = 32 // LM, TM * LM, TN * 32 // LM, TM // G, TN // G
    SHM, SHN, SHT = log2(tile.warps_m), log2(tile.warps_n), log2(tile.warps_m * tile.warps_n)
    SHK, SHG = log2(BK), log2(G)
    SUB = tile.threads // SLICES  # threads of a slice
    stages, early = _stages(tile, operands), 0 if staged else tile.early
    AHEAD = stages - 2 if early else stages - 1
    KS = BK // SLICES
    PA, PB, NA, NB, HA, HB = la.pitch, lb.pitch, la.places, lb.places, la.words, lb.words
    PlaceA, PlaceB = ({"int64": i64, "uint64": u64, "int32": i32}[loader.place] for loader in (la, lb))
    SA = PA * BK * ITEM
    STAGE = SA + PB * BK * ITEM
    RING = stages * STAGE
    NACC, FA, FB = TM * TN, 2 * TM, 2 * TN
    PORTION = TM // SLICES  # rows of the thread's tile that a slice finishes
    wait, wait_all = wait_copies(AHEAD - 1), wait_copies(0)
    outer = make_outer(TM, TN, bytes4=words)
    load_shared = load_shared_2f64 if double else load_shared_4u32 if words else load_shared_4f32
    store_shared = store_shared_2f64 if double else store_shared_4u32 if words else store_shared_4f32
    a_start, a_place, a_part, a_whole, a_put, a_advance = la.functions()
    b_start, b_place, b_part, b_whole, b_put, b_advance = lb.functions()

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
    def load_fragments(fa, fb, half, ra, rb, kk):
        for c in range(CM):
            load_group(fa, half * TM + G * c, ra + u32((kk * PA + c * LM * G) * ITEM))
        for c in range(CN):
            load_group(fb, half * TN + G * c, rb + u32((kk * PB + c * LN * G) * ITEM))

    @device_function
    def step(kk, s):
        acc, fa, fb, ra, rb, at_a, at_b, hold_a, hold_b, a, b, wa, wb, tid, ok = s
        load_fragments(fa, fb, (kk + 1) & 1, ra, rb, kk + 1)
        if kk == 0:
            a_whole(at_a, hold_a, wa, a, tid, ok)
            b_whole(at_b, hold_b, wb, b, tid, ok)
        if early and kk == KS - 1 - early:
            commit_copies()
            wait()
            cuda.syncthreads()
        outer(acc, fa, (kk & 1) * TM, fb, (kk & 1) * TN)
    steps = unrolled(KS - 1, step)

    @device_function
    def spread(p, s):
        """Accumulators of the rows that slice p finishes go to its boxes; a box holds one slice's."""
        acc, slice_, box = s
        if slice_ != p:
            slot = slice_ if slice_ < p else slice_ - 1
            o = box + (u32(p * (SLICES - 1)) + u32(slot)) * (PORTION * CN * SUB * 16)
            for i in range(PORTION):
                for c in range(CN):
                    store_group(o + u32((i * CN + c) * SUB * 16), acc, (p * PORTION + i) * TN + c * G)

    @device_function
    def finish_row(r, s):
        acc, row0, column0, m, state = s
        row = row0 + ((r >> SHG) * (LM * G) + (r & (G - 1)))
        if not edge or row < m:
            for c in range(CN):
                sink(acc, r * TN + c * G, row, column0 + c * (LN * G), state)
    finish_rows = unrolled(PORTION, finish_row)

    @device_function
    def finish(p, s):
        acc, more, slice_, box, row0, column0, m, state = s
        if SLICES == 1 or slice_ == p:
            if SLICES > 1:
                o = box + u32(p * ((SLICES - 1) * PORTION * CN * SUB * 16))
                for x in range(SLICES - 1):
                    for i in range(PORTION):
                        for c in range(CN):
                            load_group(more, 0, o + u32(((x * PORTION + i) * CN + c) * SUB * 16))
                            for g in range(G):
                                acc[(p * PORTION + i) * TN + c * G + g] += Acc(more[g])
            finish_rows(p * PORTION, (acc, row0, column0, m, state))
    spread_all, finish_all = unrolled(SLICES, spread), unrolled(SLICES, finish)

    @device_function
    def product(a, b, k_first, k, m, m0, n0, s0, state):
        tid = cuda.threadIdx.x
        lane, warp = tid & 31, tid >> 5
        # neighbouring lanes share rows and columns alternately: a quarter-warp's loads then touch few different 16 bytes
        if LM == 4:
            ln, lm = (lane >> 1) & 7, ((lane >> 4) << 1) | (lane & 1)
        else:
            lm, ln = (lane >> 1) & 7, ((lane >> 4) << 1) | (lane & 1)
        wm = (warp & ((1 << SHM) - 1)) * WM + lm * G
        wn = ((warp >> SHM) & ((1 << SHN) - 1)) * WN + ln * G
        slice_ = warp >> SHT
        fragment_a = u32(wm * ITEM) + u32(slice_ * (KS * PA * ITEM))
        fragment_b = u32(wn * ITEM) + u32(slice_ * (KS * PB * ITEM)) + SA
        at_a, at_b = cuda.local.array(NA, PlaceA), cuda.local.array(NB, PlaceB)
        hold_a, hold_b = cuda.local.array(HA, u32), cuda.local.array(HB, u32)
        a_start(at_a, a, k_first, tid)
        b_start(at_b, b, k_first, tid)
        da, db = a_place(tid), b_place(tid) + SA
        left = k - k_first
        count = (left + (BK - 1)) >> SHK
        left = left - (count - 1) * BK
        # prologue: the stage with the remainder, then whole ones
        a_part(at_a, hold_a, da + s0, a, tid, left)
        b_part(at_b, hold_b, db + s0, b, tid, left)
        a_put(hold_a, da + s0)
        b_put(hold_b, db + s0)
        commit_copies()
        a_advance(at_a, a, left)
        b_advance(at_b, b, left)
        write = s0 + STAGE
        for s in range(1, AHEAD):
            ok = 1 if s < count else 0
            a_whole(at_a, hold_a, da + write, a, tid, ok)
            b_whole(at_b, hold_b, db + write, b, tid, ok)
            commit_copies()
            a_advance(at_a, a, BK)
            b_advance(at_b, b, BK)
            write = write + STAGE
        acc, fa, fb = cuda.local.array(NACC, Acc), cuda.local.array(FA, T), cuda.local.array(FB, T)
        for i in range(NACC):
            acc[i] = Acc(0)
        wait()
        cuda.syncthreads()
        read, end = s0, s0 + RING
        load_fragments(fa, fb, 0, read + fragment_a, read + fragment_b, 0)
        while count > 0:
            ok = 1 if count > AHEAD else 0
            steps(0, (acc, fa, fb, read + fragment_a, read + fragment_b, at_a, at_b, hold_a, hold_b, a, b, write + da,
                      write + db, tid, ok))
            if early == 0:
                a_put(hold_a, write + da)
                b_put(hold_b, write + db)
                commit_copies()
                wait()
                cuda.syncthreads()
            read = read + STAGE
            read = s0 if read == end else read
            load_fragments(fa, fb, KS & 1, read + fragment_a, read + fragment_b, 0)
            outer(acc, fa, ((KS - 1) & 1) * TM, fb, ((KS - 1) & 1) * TN)
            a_advance(at_a, a, BK)
            b_advance(at_b, b, BK)
            write = write + STAGE
            write = s0 if write == end else write
            count = count - 1
        more, box = cuda.local.array(G, T), s0 + u32((tid & (SUB - 1)) * 16)
        if SLICES > 1:
            wait_all()
            cuda.syncthreads()
            spread_all(0, (acc, slice_, box))
            cuda.syncthreads()
        finish_all(0, (acc, more, slice_, box, m0 + wm, n0 + wn, m, state))
    return product


def band_arguments(rows, columns):
    """Kernel parameters of `locate_in_bands`: of a matrix of so many tiles. Host function."""
    per_band, rows, last_rows = in_bands(rows, columns)
    return Argument("uint32x3", per_band), Argument("int32", rows), Argument("uint32x3", last_rows)

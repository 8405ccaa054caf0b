"""Kernels of channels whose values stay in shared memory between the sums and the elementwise pass. See `resident`.

A group of blocks has the channels of `tile.width` bytes, each of its blocks an equal part of their values. TMA brings chunks of rows to
slots; a thread has 16 bytes of every so many-th row, in both passes the same channels. Where a block's chunks outnumber its slots, the
first keep theirs and the others take turns in the last few. The second pass goes from the last chunk to the first: what comes again is what
was read last, which the L2 still has.

A group is a cluster, which exchanges sums through shared memory; or, as not all multiprocessors fit into clusters, blocks of a cooperative
launch, which exchange them through global memory.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, device_function, f32, i64, jit, u32
from ...device.block import add as plus
from ...device.cluster import cluster_arrive_relaxed, cluster_sync, cluster_wait, remote_address, store_remote_f32
from ...device.convert import element
from ...device.dependent import launch_dependent_grids, wait_for_previous_grid
from ...device.epilogue import Activation, activation_function
from ...device.grid import announce, await_blocks
from ...device.groups import make_reader, make_writer
from ...device.index import ceil_div
from ...device.mbarrier import fence_async_shared, fence_mbarrier_init, mbarrier_arrive_expect, mbarrier_init, mbarrier_wait
from ...device.tma import EVICT_FIRST, EVICT_NORMAL, make_tma_load, prefetch_tensor_map, tensor_map_address
from ...device.vec import advance, load_shared_4u32, shared_address
from ...device.warp import make_reduce, shuffle_xor
from ...host.dtypes import ITEMSIZE
from .._moments import make_inverses, make_merge, make_pool

CHUNK = 16384  # bytes of an array in a slot
FLIGHT = 80 * 1024  # bytes that are to be in flight
CLEARING = 128  # threads that clear counters


@dataclass(frozen=True)
class Tile:
    """What both kernels are compiled for: bytes of a row that a group has, blocks of a group, threads, arrays that are read, slots, and
    whether a group is no cluster."""
    dtype: str
    width: int
    group: int
    threads: int
    arrays: int
    slots: int
    apart: int = 0

    def __str__(self):
        return f"{self.width} bytes x{self.group} blocks{' apart' * self.apart} s{self.slots}"

    @property
    def cluster(self):
        """Blocks of a cluster."""
        return 1 if self.apart else self.group

    @property
    def vector(self):
        """Channels of a thread."""
        return 16 // ITEMSIZE[self.dtype]

    @property
    def span(self):
        """Channels of a group."""
        return self.width // ITEMSIZE[self.dtype]

    @property
    def across(self):
        """Threads of a row."""
        return self.width // 16

    @property
    def rows(self):
        """Of a chunk."""
        return CHUNK // self.width

    @property
    def boxes(self):
        """Copies of a chunk of an array, of as many rows as TMA takes."""
        return ceil_div(self.rows, 256)

    @property
    def units(self):
        """Rows of a chunk that a thread has."""
        return CHUNK // 16 // self.threads

    @property
    def turns(self):
        """Slots whose chunks are replaced."""
        return min(ceil_div(FLIGHT, self.arrays * CHUNK), self.slots)

    @property
    def kept(self):
        """Slots with a chunk of their own."""
        return self.slots - self.turns

    @property
    def shared(self):
        """Bytes of dynamic shared memory."""
        return self.slots * self.arrays * CHUNK + 128


@dataclass(frozen=True)
class Forward:
    """What the forward kernel is compiled for: dtypes of gamma, beta and the running statistics and where they go, "" where there is
    none."""
    tile: Tile
    gamma: str
    beta: str
    running: tuple
    activation: Activation


@dataclass(frozen=True)
class Backward:
    """What the kernel of gradients is compiled for: dtypes of gamma, dgamma, dbeta."""
    tile: Tile
    gamma: str
    weights: tuple


def _make_ring(tile):
    """Device functions ``begin(maps, ring, bars, first, start, chunks)``; ``await_chunk(bars, chunk)``, its slot; ``refill(maps, ring,
    bars, first, start, chunk, more, chunks)``: when all threads have read a chunk, its slot gets chunk `more`, which may be none of the
    ring's; with `chunks` as 0 nothing is read again. The L2 keeps what is, rather than what is not.

    The first chunks have slots of their own, the others share the last slots: by turns, so that of two that follow each other in a slot one
    has an odd number there, in both directions.
    """
    SLOTS, ARRAYS, ROWS, BOXES, BOX = tile.slots, tile.arrays, tile.rows, tile.boxes, CHUNK // tile.boxes
    BOX_ROWS, BYTES, SLOT = tile.rows // tile.boxes, tile.arrays * CHUNK, tile.arrays * CHUNK
    TURNS, KEPT, copy = tile.turns, tile.kept, make_tma_load(2, hint=True)

    @device_function
    def slot_of(chunk):
        return chunk if chunk < KEPT else KEPT + (chunk - KEPT) % TURNS

    @device_function
    def load(maps, ring, bars, first, start, chunk, chunks):
        slot, policy = slot_of(chunk), EVICT_FIRST
        if KEPT <= chunk and chunk + TURNS < chunks:
            policy = EVICT_NORMAL
        bar = bars + u32(8 * slot)
        mbarrier_arrive_expect(bar, BYTES)
        for a in range(ARRAYS):
            for box in range(BOXES):
                copy(ring + u32(slot * SLOT + a * CHUNK + box * BOX), maps[a], bar, first, start + chunk * ROWS + box * BOX_ROWS, policy)

    @device_function
    def begin(maps, ring, bars, first, start, chunks):
        """By all threads."""
        if cuda.threadIdx.x == 0:
            for s in range(SLOTS):
                mbarrier_init(bars + u32(8 * s), 1)
            fence_mbarrier_init()
        launch_dependent_grids()
        wait_for_previous_grid()
        if cuda.threadIdx.x == 0:
            for s in range(SLOTS):
                if s < chunks:
                    load(maps, ring, bars, first, start, s, chunks)
        cuda.syncthreads()

    @device_function
    def refill(maps, ring, bars, first, start, chunk, more, chunks):
        if chunk >= KEPT and more >= KEPT:
            fence_async_shared()  # order these reads before TMA's writes
            cuda.syncthreads()
            if cuda.threadIdx.x == 0:
                load(maps, ring, bars, first, start, more, chunks)

    @device_function
    def await_chunk(bars, chunk):
        slot = slot_of(chunk)
        mbarrier_wait(bars + u32(8 * slot), u32((chunk - KEPT) // TURNS & 1) if chunk >= KEPT else u32(0))
        return slot
    return begin, refill, await_chunk


def _make_exchange(tile, combine, pool):
    """Device functions ``exchange(a, b, n, sums, parts, far, came, strip, rank, tx)``: all threads' numbers of their channels, as those of
    a block, to all blocks of the group, and ``total(parts, far, strip, channel)``: the group's, in the order of its blocks; ``combine`` as
    in `_moments`, ``pool(a, b, n)`` of as many lanes as there are warps. `sums` are 3 numbers a channel and warp, `parts`, or `far` in
    global memory, a channel and block; `came` counts blocks that have brought theirs, for each strip of channels."""
    ACROSS, E, WARPS, SPAN, GROUP, APART = tile.across, tile.vector, tile.threads // 32, tile.span, tile.group, tile.apart > 0
    STEPS, CLUSTER, CHANNELS = (32 // tile.across).bit_length() - 1, tile.cluster > 1, tile.threads // (tile.threads // 32)

    @device_function
    def exchange(a, b, n, sums, parts, far, came, strip, rank, tx):
        thread = cuda.threadIdx.x
        lane, warp = thread & 31, thread >> 5
        for e in range(E):
            count = n
            for s in range(STEPS):
                other = ACROSS << s
                a[e], b[e], count = combine(a[e], b[e], count, shuffle_xor(a[e], other), shuffle_xor(b[e], other),
                                            shuffle_xor(count, other))
            if lane < ACROSS:
                at = 3 * ((tx * E + e) * WARPS + warp)
                sums[at] = a[e]
                sums[at + 1] = b[e]
                sums[at + 2] = count
        cuda.syncthreads()
        if CLUSTER:
            cluster_wait()  # all blocks have begun
        share = thread & (WARPS - 1)  # of a channel that so many lanes have together
        for channel in range(thread // WARPS, SPAN, CHANNELS):
            at = 3 * (channel * WARPS + share)
            p, q, m = pool(sums[at], sums[at + 1], sums[at + 2])
            if CLUSTER and share < GROUP:  # to a block each
                other = remote_address(shared_address(parts, 3 * (rank * SPAN + channel)), u32(share))
                store_remote_f32(other, p)
                store_remote_f32(other + u32(4), q)
                store_remote_f32(other + u32(8), m)
            elif APART and share == 0:
                at = 3 * ((strip * GROUP + rank) * SPAN + channel)
                far[at] = p
                far[at + 1] = q
                far[at + 2] = m
            elif GROUP == 1 and share == 0:
                at = 3 * channel
                parts[at], parts[at + 1], parts[at + 2] = p, q, m
        if CLUSTER:
            cluster_sync()
        elif APART:
            announce(advance(came, strip))
            await_blocks(advance(came, strip), u32(GROUP))
        else:
            cuda.syncthreads()

    @device_function
    def total(parts, far, strip, channel):
        if APART:
            parts = advance(far, 3 * (strip * GROUP * SPAN))
        at = 3 * channel
        p, q, m = parts[at], parts[at + 1], parts[at + 2]
        for block in range(1, GROUP):
            at = 3 * (block * SPAN + channel)
            p, q, m = combine(p, q, m, parts[at], parts[at + 1], parts[at + 2])
        return p, q, m
    return exchange, total


@functools.cache
def clear_kernel():
    """Counters of blocks at 0; the launch that counts with them sets up its barriers meanwhile."""
    @jit(launch_bounds=(CLEARING, 1))
    def channel_norm_resident_clear(came, strips):
        launch_dependent_grids()
        wait_for_previous_grid()
        for strip in range(cuda.threadIdx.x, strips, CLEARING):
            came[strip] = 0
    return channel_norm_resident_clear


@functools.cache
def forward_kernel(config):
    """y, mean and rstd, and the running statistics."""
    tile = config.tile
    E, UNITS, THREADS, SLOT, SPAN, ACROSS, SLOTS = (tile.vector, tile.units, tile.threads, tile.arrays * CHUNK, tile.span, tile.across,
                                                    tile.slots)
    ROWS, GROUP, CLUSTER, LENGTH, HEIGHT = tile.rows, tile.group, tile.cluster, 4, tile.threads // tile.across
    TURNS = tile.turns
    _, _, _, unpack = make_reader(tile.dtype, E, 4)
    put, act = make_writer(tile.dtype, E, 4), activation_function(config.activation, "float32")
    merge, (inverse, inverse_root) = make_merge(f32), make_inverses(f32)
    begin, refill, await_chunk = _make_ring(tile)
    exchange, total = _make_exchange(tile, merge, make_pool(f32, THREADS // 32))
    SCALED, SHIFTED = config.gamma != "", config.beta != ""
    load_gamma, load_beta = element(config.gamma or tile.dtype).load, element(config.beta or tile.dtype).load
    mean_dtype, var_dtype, next_mean_dtype, next_var_dtype = config.running
    RUNNING_MEAN, RUNNING_VAR = mean_dtype != "", var_dtype != ""
    load_mean, load_var = element(mean_dtype or "float32").load, element(var_dtype or "float32").load
    store_mean, store_var = element(next_mean_dtype or "float32").store, element(next_var_dtype or "float32").store
    SUMS, PARTS, TABLE = 3 * SPAN * THREADS // 32, 3 * SPAN * tile.cluster, 3 * SPAN

    @jit(launch_bounds=(THREADS, 1))
    def channel_norm_resident(x_map, y, gamma, beta, mean, rstd, running_mean, running_var, next_mean, next_var, eps, momentum, rows, share,
                              y_step, gamma_step, beta_step, mean_step, rstd_step, running_mean_step, running_var_step,
                              next_mean_step, next_var_step, far, came):
        shared, barriers = cuda.shared.array(0, u32), cuda.shared.array(SLOTS, i64)
        sums, parts, table = cuda.shared.array(SUMS, f32), cuda.shared.array(PARTS, f32), cuda.shared.array(TABLE, f32)
        raw, values = cuda.local.array(UNITS * LENGTH, u32), cuda.local.array(E, f32)
        a, b, first = cuda.local.array(E, f32), cuda.local.array(E, f32), cuda.local.array(E, f32)
        maps = (tensor_map_address(x_map),)
        ring, bars = (shared_address(shared, 0) + 127) & 0xFFFFFF80, shared_address(barriers, 0)
        thread, rank, strip = cuda.threadIdx.x, cuda.blockIdx.x % GROUP, cuda.blockIdx.x // GROUP
        tx, ty = thread & (ACROSS - 1), thread // ACROSS
        channel, start = strip * SPAN, rank * share
        own = min(share, rows - start)  # values of this block
        chunks = max(0, own + (ROWS - 1)) // ROWS
        if thread == 0:
            prefetch_tensor_map(maps[0])
        begin(maps, ring, bars, channel, start, chunks)
        if CLUSTER > 1:
            cluster_arrive_relaxed()
        own_mean, own_var, weight, shift = f32(0), f32(0), f32(1), f32(0)
        if thread < SPAN:  # what is wanted later is on its way meanwhile
            at = channel + thread
            if RUNNING_MEAN and rank == 0:
                own_mean = f32(load_mean(running_mean, at * running_mean_step))
            if RUNNING_VAR and rank == 0:
                own_var = f32(load_var(running_var, at * running_var_step))
            if SCALED:
                weight = f32(load_gamma(gamma, at * gamma_step))
            if SHIFTED:
                shift = f32(load_beta(beta, at * beta_step))
        # sums of distances to the thread's first value: one of the values itself costs no digits
        n = f32(0)
        for e in range(E):
            a[e], b[e], first[e] = f32(0), f32(0), f32(0)
        for chunk in range(chunks):
            at = ring + u32(await_chunk(bars, chunk) * SLOT + 16 * thread)
            left = own - chunk * ROWS - ty
            for u in range(UNITS):
                k = u * LENGTH
                raw[k], raw[k + 1], raw[k + 2], raw[k + 3] = load_shared_4u32(at + u32(u * (16 * THREADS)))
            if chunk == 0:
                unpack(first, 0, raw, 0)
            for u in range(UNITS):
                if u * HEIGHT < left:
                    unpack(values, 0, raw, u * LENGTH)
                    n += f32(1)
                    for e in range(E):
                        d = values[e] - first[e]
                        a[e] += d
                        b[e] += d * d
            refill(maps, ring, bars, channel, start, chunk, chunk + TURNS if chunk + TURNS < chunks else -1, chunks)
        part = inverse(n) if n > f32(0) else f32(0)
        for e in range(E):
            d = a[e] * part
            b[e] = max(b[e] - a[e] * d, f32(0))
            a[e] = first[e] + d
        exchange(a, b, n, sums, parts, far, came, strip, rank, tx)
        if thread < SPAN:
            p, q, m = total(parts, far, strip, thread)
            at = channel + thread
            r = inverse_root(q * inverse(m) + eps)
            table[thread] = p
            table[thread + SPAN] = r * weight
            table[thread + 2 * SPAN] = shift
            if rank == 0:
                mean[at * mean_step] = p
                rstd[at * rstd_step] = r
                if RUNNING_MEAN:
                    store_mean(next_mean, at * next_mean_step, (f32(1) - momentum) * own_mean + momentum * p)
                if RUNNING_VAR:
                    var = q * inverse(m - f32(1)) if m > f32(1) else f32(0)
                    store_var(next_var, at * next_var_step, (f32(1) - momentum) * own_var + momentum * var)
        cuda.syncthreads()
        for e in range(E):
            first[e], a[e], b[e] = table[tx * E + e], table[tx * E + e + SPAN], table[tx * E + e + 2 * SPAN]
        y = advance(y, start * i64(y_step) + (channel + tx * E))
        for chunk in range(chunks - 1, -1, -1):
            at = ring + u32(await_chunk(bars, chunk) * SLOT + 16 * thread)
            row = chunk * ROWS + ty
            to = advance(y, row * y_step)
            for u in range(UNITS):
                k = u * LENGTH
                raw[k], raw[k + 1], raw[k + 2], raw[k + 3] = load_shared_4u32(at + u32(u * (16 * THREADS)))
            for u in range(UNITS):
                if row + u * HEIGHT < own:
                    unpack(values, 0, raw, u * LENGTH)
                    for e in range(E):
                        values[e] = act((values[e] - first[e]) * a[e] + b[e])
                    put(to, 0, values, 0)
                to = advance(to, HEIGHT * y_step)
            refill(maps, ring, bars, channel, start, chunk, chunk - TURNS, 0)
    return channel_norm_resident


@functools.cache
def backward_kernel(config):
    """dx, dgamma and dbeta."""
    tile = config.tile
    E, UNITS, THREADS, SLOT, SPAN, ACROSS, SLOTS = (tile.vector, tile.units, tile.threads, tile.arrays * CHUNK, tile.span, tile.across,
                                                    tile.slots)
    ROWS, GROUP, CLUSTER, LENGTH, HEIGHT = tile.rows, tile.group, tile.cluster, 4, tile.threads // tile.across
    TURNS = tile.turns
    _, _, _, unpack = make_reader(tile.dtype, E, 4)
    put = make_writer(tile.dtype, E, 4)
    begin, refill, await_chunk = _make_ring(tile)

    @device_function
    def add(a, b, n, a2, b2, n2):
        return a + a2, b + b2, n
    whole = make_reduce(plus, THREADS // 32)

    @device_function
    def pool(a, b, n):
        return whole(a), whole(b), n
    exchange, total = _make_exchange(tile, add, pool)
    SCALED, load_gamma = config.gamma != "", element(config.gamma or tile.dtype).load
    store_gamma, store_beta = (element(dtype).store for dtype in config.weights)
    SUMS, PARTS, TABLE = 3 * SPAN * THREADS // 32, 3 * SPAN * tile.cluster, 4 * SPAN

    @device_function
    def fetch(raw, at):
        for u in range(2 * UNITS):
            k = u * LENGTH
            raw[k], raw[k + 1], raw[k + 2], raw[k + 3] = load_shared_4u32(at + u32(u // UNITS * CHUNK + u % UNITS * (16 * THREADS)))

    @jit(launch_bounds=(THREADS, 1))
    def channel_norm_resident_gradient(dy_map, x_map, dx, gamma, mean, rstd, dgamma, dbeta, portion, rows, share, dx_step, gamma_step,
                                       mean_step, rstd_step, dgamma_step, dbeta_step, far, came):
        shared, barriers = cuda.shared.array(0, u32), cuda.shared.array(SLOTS, i64)
        sums, parts, table = cuda.shared.array(SUMS, f32), cuda.shared.array(PARTS, f32), cuda.shared.array(TABLE, f32)
        raw, values, dz = cuda.local.array(2 * UNITS * LENGTH, u32), cuda.local.array(E, f32), cuda.local.array(E, f32)
        a, b, means = cuda.local.array(E, f32), cuda.local.array(E, f32), cuda.local.array(E, f32)
        outer = cuda.local.array(E, f32)
        maps = tensor_map_address(dy_map), tensor_map_address(x_map)
        ring, bars = (shared_address(shared, 0) + 127) & 0xFFFFFF80, shared_address(barriers, 0)
        thread, rank, strip = cuda.threadIdx.x, cuda.blockIdx.x % GROUP, cuda.blockIdx.x // GROUP
        tx, ty = thread & (ACROSS - 1), thread // ACROSS
        channel, start = strip * SPAN, rank * share
        own = min(share, rows - start)  # values of this block
        chunks = max(0, own + (ROWS - 1)) // ROWS
        if thread == 0:
            prefetch_tensor_map(maps[0])
            prefetch_tensor_map(maps[1])
        begin(maps, ring, bars, channel, start, chunks)
        if CLUSTER > 1:
            cluster_arrive_relaxed()
        center, spread, weight = f32(0), f32(0), f32(1)
        if thread < SPAN:  # what is wanted later is on its way meanwhile
            at = channel + thread
            center, spread = mean[at * mean_step], rstd[at * rstd_step]
            if SCALED:
                weight = f32(load_gamma(gamma, at * gamma_step))
        for e in range(E):
            a[e], b[e], means[e] = f32(0), f32(0), mean[(channel + tx * E + e) * mean_step]
        for chunk in range(chunks):
            fetch(raw, ring + u32(await_chunk(bars, chunk) * SLOT + 16 * thread))
            left = own - chunk * ROWS - ty
            for u in range(UNITS):
                if u * HEIGHT < left:
                    unpack(dz, 0, raw, u * LENGTH)
                    unpack(values, 0, raw, (UNITS + u) * LENGTH)
                    for e in range(E):
                        a[e] += dz[e]
                        b[e] += dz[e] * (values[e] - means[e])
            refill(maps, ring, bars, channel, start, chunk, chunk + TURNS if chunk + TURNS < chunks else -1, chunks)
        exchange(a, b, f32(0), sums, parts, far, came, strip, rank, tx)
        if thread < SPAN:
            p, q, _ = total(parts, far, strip, thread)
            at = channel + thread
            q = q * spread
            # dx = outer * dz + inner * (x - mean) + shift
            table[thread] = center
            table[thread + SPAN] = spread * weight
            table[thread + 2 * SPAN] = f32(-spread) * (spread * (q * weight * portion))
            table[thread + 3 * SPAN] = f32(-spread) * (p * weight * portion)
            if rank == 0:
                store_beta(dbeta, at * dbeta_step, p)
                store_gamma(dgamma, at * dgamma_step, q)
        cuda.syncthreads()
        for e in range(E):
            at = tx * E + e
            outer[e], a[e], b[e] = table[at + SPAN], table[at + 2 * SPAN], table[at + 3 * SPAN]
        dx = advance(dx, start * i64(dx_step) + (channel + tx * E))
        for chunk in range(chunks - 1, -1, -1):
            fetch(raw, ring + u32(await_chunk(bars, chunk) * SLOT + 16 * thread))
            row = chunk * ROWS + ty
            to = advance(dx, row * dx_step)
            for u in range(UNITS):
                if row + u * HEIGHT < own:
                    unpack(dz, 0, raw, u * LENGTH)
                    unpack(values, 0, raw, (UNITS + u) * LENGTH)
                    for e in range(E):
                        values[e] = dz[e] * outer[e] + ((values[e] - means[e]) * a[e] + b[e])
                    put(to, 0, values, 0)
                to = advance(to, HEIGHT * dx_step)
            refill(maps, ring, bars, channel, start, chunk, chunk - TURNS, 0)
    return channel_norm_resident_gradient

"""The simulator's engine: launches, schedules, barriers, warp collectives, atomics, deadlocks."""
import numpy as np
import pytest

from dnnkern.device.sim import Deadlock, Misuse, Pointer, STATS, config, cuda, current, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64

SCHEDULES = ("fifo", "lifo", "random")


@pytest.fixture(autouse=True)
def settings():
    old = dict(vars(config))
    config.spin_limit = 5000
    yield
    vars(config).update(old)


@pytest.fixture(params=SCHEDULES)
def schedule(request):
    config.policy = request.param


@cuda.jit(device=True, forceinline=True)
def warp_sum(v):
    for o in (16, 8, 4, 2, 1):
        v += cuda.shfl_xor_sync(0xFFFFFFFF, v, o)
    return v


@pytest.mark.parametrize("cast, bits, signed", [(i8, 8, 1), (u8, 8, 0), (i16, 16, 1), (u16, 16, 0), (i32, 32, 1), (u32, 32, 0),
                                                (i64, 64, 1), (u64, 64, 0)])
def test_integer_casts(cast, bits, signed):
    for x in (0, 1, -1, 2 ** (bits - 1) - 1, 2 ** (bits - 1), 2 ** bits - 1, 2 ** bits, 3 * 2 ** bits + 5, -2 ** (bits - 1) - 1):
        want = (x + 2 ** (bits - 1)) % 2 ** bits - 2 ** (bits - 1) if signed else x % 2 ** bits
        assert cast(x) == want and type(cast(x)) is int
    assert cast(f32(7.9)) == 7 and (not signed or cast(-7.9) == -7)
    assert cast.dtype.itemsize * 8 == bits


def test_coordinates(schedule):
    @cuda.jit
    def k(out):
        i, j, m = cuda.grid(3)
        ni, nj, nm = cuda.gridsize(3)
        assert (ni, nj, nm) == (4, 6, 4) and cuda.gridsize(1) == 4 and cuda.grid(2) == (i, j) and cuda.grid(1) == i
        t, b, d, g = cuda.threadIdx, cuda.blockIdx, cuda.blockDim, cuda.gridDim
        assert (i, j, m) == (b.x * d.x + t.x, b.y * d.y + t.y, b.z * d.z + t.z) and (g.x, g.y, g.z) == (2, 2, 2)
        me = current()
        assert me.tid == t.x + 2 * (t.y + 3 * t.z) and me.lane == cuda.laneid == me.tid % 32 and cuda.warpsize == 32
        assert me.warp.id == 0 and me.block.n == 12
        out[i, j, m] += 1
    out = np.zeros((4, 6, 4), np.int32)
    k[(2, 2, 2), (2, 3, 2)](out)
    assert (out == 1).all()
    assert STATS["blocks"] == 8 and STATS["threads"] == 96


def test_block_votes(schedule):
    @cuda.jit
    def k(out):
        t = cuda.threadIdx.x
        out[t, 0] = cuda.syncthreads_count(t % 3 == 0)
        out[t, 1] = cuda.syncthreads_and(t < 40)
        out[t, 2] = cuda.syncthreads_and(t < 39)
        out[t, 3] = cuda.syncthreads_or(t == 7)
        out[t, 4] = cuda.syncthreads_or(t == 40)
    out = np.zeros((40, 5), np.int32)
    k[1, 40](out)
    assert (out == [14, 1, 0, 1, 0]).all()


def test_warp_collectives(schedule):
    @cuda.jit
    def k(out):
        t = cuda.threadIdx.x
        lane = cuda.laneid
        full = 0xFFFFFFFF
        out[t, 0] = cuda.shfl_sync(full, t, 3)
        out[t, 1] = cuda.shfl_up_sync(full, t, 2)
        out[t, 2] = cuda.shfl_down_sync(full, t, 2)
        out[t, 3] = cuda.shfl_xor_sync(full, t, 5)
        out[t, 4] = cuda.ballot_sync(full, lane % 2)
        out[t, 5] = cuda.all_sync(full, lane >= 0)
        out[t, 6] = cuda.any_sync(full, lane == 40)
        out[t, 7] = cuda.eq_sync(full, t // 32)
        out[t, 8] = cuda.match_any_sync(full, lane % 4)
        mask, same = cuda.match_all_sync(full, lane)
        out[t, 9] = mask + same
        half = 0xFFFF if lane < 16 else 0xFFFF0000
        out[t, 10] = cuda.shfl_sync(half, t, 1 if lane < 16 else 17)
        out[t, 11] = cuda.lanemask_lt()
        out[t, 12] = cuda.activemask()
        out[t, 13] = warp_sum(t)
    out = np.zeros((64, 14), np.int64)
    k[1, 64](out)
    t = np.arange(64)
    lane, base = t % 32, t // 32 * 32
    assert (out[:, 0] == base + 3).all() and (out[:, 3] == (t ^ 5)).all()
    assert (out[:, 1] == np.where(lane < 2, t, t - 2)).all() and (out[:, 2] == np.where(lane > 29, t, t + 2)).all()
    assert (out[:, 4] == 0xAAAAAAAA).all() and (out[:, 5:8] == [1, 0, 1]).all()
    assert (out[:, 8] == 0x11111111 << lane % 4).all() and (out[:, 9] == 0).all()
    assert (out[:, 10] == base + np.where(lane < 16, 1, 17)).all()
    assert (out[:, 11] == (1 << lane) - 1).all() and (out[:, 12] == 0xFFFFFFFF).all()
    assert (out[:, 13] == np.where(t < 32, 496, 1520)).all()


def test_part_warp_and_lanes_that_returned(schedule):
    @cuda.jit
    def k(out):
        t = cuda.threadIdx.x
        if t >= 37:
            return
        out[t] = cuda.shfl_down_sync(0xFFFFFFFF, t, 1) if t < 32 else cuda.ballot_sync(0xFFFFFFFF, True)
    out = np.zeros(37, np.int64)
    k[1, 40](out)
    assert (out[:31] == np.arange(1, 32)).all() and out[31] == 31 and (out[32:] == 0x1F).all()


def test_shuffle_errors(schedule):
    @cuda.jit
    def own_mask(x):
        cuda.shfl_sync(0xFFFFFFFE, 1, 1)

    @cuda.jit
    def absent_source(x):
        cuda.shfl_sync(0xFF if cuda.laneid < 8 else 0xFFFFFF00, 1, 9)

    @cuda.jit
    def masks_differ(x):
        cuda.syncwarp(0xFFFFFFFF if cuda.laneid < 8 else 0xFFFFFF00)
        cuda.syncthreads()

    @cuda.jit
    def lane_missing(x):
        if cuda.laneid != 5:
            cuda.ballot_sync(0xFFFFFFFF, True)
        else:
            cuda.syncthreads()
    for k, error, text in ((own_mask, Misuse, "lane 0 is not in its own mask 0xfffffffe"),
                           (absent_source, Misuse, "which does not take part"),
                           (masks_differ, (Misuse, Deadlock), "syncwarp: lane .* gives mask|8 threads 0-7: syncwarp .* have not arrived"),
                           (lane_missing, Deadlock, r"31 threads 0-4, 6-31: ballot_sync of warp 0, .* lanes \[5\] have not arrived")):
        with pytest.raises(error, match=text):
            k.simulate(1, 32, [0])


def test_divergent_syncthreads(schedule):
    @cuda.jit
    def k(x):
        if cuda.threadIdx.x < 32:
            cuda.syncthreads()
        else:
            cuda.syncthreads()
    with pytest.raises(Misuse, match="threads wait in another one"):
        k.simulate(1, 64, [0])


def test_returned_threads_do_not_hold_up_a_barrier(schedule):
    @cuda.jit
    def k(y):
        s = cuda.shared.array(20, f32)
        t = cuda.threadIdx.x
        if t >= 20:
            return
        s[t] = t
        cuda.syncthreads()
        y[t] = s[19 - t]
    y = np.zeros(20, np.float32)
    k[1, 32](y)
    assert (y == np.arange(20)[::-1]).all()


def test_deadlock_report_is_folded_and_exact(schedule):
    @cuda.jit
    def k(x):
        t = cuda.threadIdx.x
        if t < 40:
            cuda.syncthreads()
        elif t < 64:
            cuda.syncwarp()
    with pytest.raises(Deadlock) as e:
        k.simulate(2, 64, [0])
    text = str(e.value)
    assert "40 threads 0-39: syncthreads: 40 of 64 threads arrived at line" in text
    assert "24 threads 40-63: syncwarp of warp 1, mask 0xffffffff: lanes [0, 1, 2, 3, 4, 5, 6, 7] have not arrived" in text
    assert "block (0, 0, 0)" in text and len(text.splitlines()) <= 7


def test_grid_sync(schedule):
    @cuda.jit
    def k(x, y):
        grid = cuda.cg.this_grid()
        i, n = cuda.grid(1), cuda.gridsize(1)
        for step in range(3):
            y[i] = x[n - 1 - i] + 1
            grid.sync()
            x[i] = y[i]
            grid.sync()
    for launch in (lambda x, y: k[10, 32](x, y), lambda x, y: k.simulate(10, 32, [Pointer(x), Pointer(y)], cooperative=True)):
        x, y = np.arange(320), np.zeros(320, np.int64)
        launch(x, y)
        assert (x == np.arange(320)[::-1] + 3).all()
    with pytest.raises(Misuse, match="grid sync in kernel k, whose launch is not cooperative"):
        k.simulate(10, 32, [Pointer(x), Pointer(y)])


def test_grid_sync_with_blocks_that_returned(schedule):
    @cuda.jit
    def k(x):
        if cuda.blockIdx.x % 2:
            return
        cuda.cg.this_grid().sync()
        x[cuda.grid(1)] = 1
    x = np.zeros(6, np.int32)
    k[6, 1](x)
    assert (x == [1, 0, 1, 0, 1, 0]).all()


def test_flags_between_blocks_need_residency(schedule):
    @cuda.jit
    def k(flag, out):
        b = cuda.blockIdx.x
        if b == 0:
            while cuda.atomic.add(flag, 0, 0) < cuda.gridDim.x - 1:
                cuda.nanosleep(100)
            out[0] = 1
        else:
            cuda.atomic.add(flag, 0, 1)
    out = np.zeros(1, np.int32)
    k.simulate(100, 1, [Pointer(np.zeros(1, np.int32)), Pointer(out)])
    assert out[0] == 1
    config.resident_limit = 1
    config.resident_blocks = 1
    with pytest.raises(Deadlock, match="only poll(.|\n)*thread 0: .*\n  99 blocks have not started"):
        k.simulate(100, 1, [Pointer(np.zeros(1, np.int32)), Pointer(out)])


def test_spin_lock(schedule):
    @cuda.jit
    def k(lock, total):
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.threadfence()
        total[0] += 1
        cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)
    total = np.zeros(1, np.int32)
    k.simulate(3, 40, [Pointer(np.zeros(1, np.int32)), Pointer(total)])
    assert total[0] == 120


def test_a_lock_never_given_back_is_a_deadlock(schedule):
    @cuda.jit
    def k(lock):
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
    with pytest.raises(Deadlock, match=r"only poll(.|\n)*polls argument lock\[0\], which is 1"):
        k.simulate(1, 33, [Pointer(np.zeros(1, np.int32))])


@pytest.mark.parametrize("kind", ["pointer", "array", "shared", "local"])
def test_atomics(kind, schedule):
    operations = [("add", 5, 3, 8), ("add", 0xFFFFFFFF, 2, 1), ("sub", 5, 6, 0xFFFFFFFF), ("and_", 12, 10, 8), ("or_", 12, 10, 14),
                  ("xor", 12, 10, 6), ("inc", 3, 4, 4), ("inc", 4, 4, 0), ("dec", 3, 4, 2), ("dec", 0, 4, 4), ("dec", 9, 4, 4),
                  ("exch", 3, 9, 9), ("max", 3, 9, 9), ("min", 3, 9, 3)]

    @cuda.jit
    def k(values, olds, which, old, val):
        a = values
        if kind == "shared":
            a = cuda.shared.array(4, u32)
        if kind == "local":
            a = cuda.local.array(4, u32)
        a[2] = old
        olds[0] = getattr(cuda.atomic, operations[which][0])(a, 2, val)
        olds[1] = cuda.atomic.cas(a, 2, a[2], a[2])
        values[2] = a[2]
    for which, (_, old, val, new) in enumerate(operations):
        values, olds = np.zeros(4, np.uint32), np.zeros(2, np.uint32)
        k.simulate(1, 1, [Pointer(values) if kind == "pointer" else values, Pointer(olds), which, old, val])
        assert (olds[0], values[2]) == (old, new) and olds[1] == new


def test_float_atomics_and_compare_and_swap(schedule):
    @cuda.jit
    def k(x, y, lock):
        i = cuda.threadIdx.x
        cuda.atomic.add(x, (0, 1), f32(0.5))
        cuda.atomic.max(y, 0, f64(i))
        if cuda.atomic.compare_and_swap(lock, 0, 1) == 0:
            cuda.atomic.add(x, (1, 0), f32(1))
    x, y, lock = np.zeros((2, 2), np.float32), np.zeros(1), np.zeros(1, np.int32)
    k[2, 40](x, y, lock)
    assert (x == [[0, 40], [1, 0]]).all() and y[0] == 39 and lock[0] == 1
    with pytest.raises(Misuse, match="atomic operation on a list"):
        cuda.jit(lambda: cuda.atomic.add([1], 0, 1))[1, 1]()


def test_integer_functions_and_fma():
    @cuda.jit
    def k(out, z):
        out[0], out[1], out[2], out[3] = cuda.popc(0xF0F0), cuda.popc(-1), cuda.clz(1), cuda.clz(0)
        out[4], out[5], out[6], out[7] = cuda.ffs(8), cuda.ffs(0), cuda.brev(1), cuda.brev(3 << 40)
        out[8], out[9] = cuda.selp(True, 1, 2), cuda.selp(False, 1, 2)
        z[0] = cuda.fma(f32(1 + 2 ** -12), f32(1 + 2 ** -12), f32(-1 - 2 ** -11))
    out, z = np.zeros(10, np.uint64), np.zeros(1, np.float32)
    k[1, 1](out, z)
    assert out.tolist() == [8, 32, 31, 32, 4, 0, 1 << 31, 3 << 22, 1, 2] and z[0] == np.float32(2.0 ** -24)


def test_seeds_repeat_and_differ():
    @cuda.jit
    def k(order, n):
        order[cuda.atomic.add(n, 0, 1)] = cuda.threadIdx.x

    def run(policy, seed=0):
        config.policy, config.seed = policy, seed
        order = np.zeros(64, np.int32)
        k.simulate(1, 64, [Pointer(order), Pointer(np.zeros(1, np.int32))])
        assert sorted(order) == list(range(64))
        return order.tolist()
    assert run("fifo") == list(range(64)) and run("lifo") == list(range(64))[::-1]
    assert run("random", 1) == run("random", 1) != run("random", 2)
    config.policy = "sometimes"
    with pytest.raises(Misuse, match="config.policy is 'sometimes'"):
        k[1, 1](np.zeros(1), np.zeros(1, np.int32))


def test_clusters_are_resident_together(schedule):
    config.resident_blocks = 1

    @cuda.jit
    def k(flags, out):
        b = cuda.blockIdx.x
        cuda.atomic.exch(flags, b, 1)
        while cuda.atomic.add(flags, b ^ 3, 0) == 0:
            pass
        out[b] = len(current().block.cluster)
    config.resident_limit = 4
    out = np.zeros(8, np.int32)
    k.simulate(8, 1, [Pointer(np.zeros(8, np.int32)), Pointer(out)], cluster=4)
    assert (out == 4).all()


def test_current_outside_a_kernel():
    with pytest.raises(Misuse, match="no simulated kernel is running"):
        current()

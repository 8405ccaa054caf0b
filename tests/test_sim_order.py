"""The simulator's order tracking: what is a race and what is not, whatever the schedule."""
import numpy as np
import pytest

from dnnkern.device.sim import Pointer, Race, config, cuda, current, f32, f64, i32, order, u8, u16, u64
from dnnkern.device.sim.kernel import Allocation
from dnnkern.device.sim.shadow import COMPACT, History, Shadow


@pytest.fixture(params=["fifo", "lifo", "random"], autouse=True)
def schedule(request):
    old = dict(vars(config))
    config.policy = request.param
    yield
    vars(config).update(old)


def passes(body, *args, grid=1, block=64, **options):
    cuda.jit(body).simulate(grid, block, args, **options)


def races(body, text, *args, grid=1, block=64, **options):
    with pytest.raises(Race, match=text) as e:
        passes(body, *args, grid=grid, block=block, **options)
    assert f"in kernel {body.__name__}, noticed when thread" in e.value.__notes__[0]


def sync(kind):
    """A barrier, or nothing."""
    if kind == "block":
        cuda.syncthreads()
    elif kind == "warp":
        cuda.syncwarp()
    elif kind == "shuffle":
        cuda.shfl_xor_sync(0xFFFFFFFF, 0, 1)
    elif kind == "vote":
        cuda.syncthreads_or(0)
    elif kind == "fence":
        cuda.threadfence()


@pytest.mark.parametrize("kind", ["block", "vote", "warp", "shuffle", "fence", "none"])
@pytest.mark.parametrize("distance", [1, 32])
@pytest.mark.parametrize("first, second", [
    ("write", "read"), ("read", "write"), ("write", "write"), ("write", "atomic"), ("atomic", "write"), ("atomic", "read"),
    ("read", "atomic"), ("read", "read"), ("atomic", "atomic")])
def test_pairs_of_accesses(kind, distance, first, second):
    def access(s, how, i):
        if how == "write":
            s[i] = 1
        elif how == "read":
            s[i]
        else:
            cuda.atomic.add(s, i, 1)

    def k():
        s = cuda.shared.array(64, i32)
        t = cuda.threadIdx.x
        access(s, first, t)
        sync(kind)
        access(s, second, t ^ distance)
    ordered = kind in ("block", "vote") or kind == "warp" and distance == 1
    if ordered or {first, second} in ({"read"}, {"atomic"}):
        passes(k)
    else:
        races(k, "and nothing orders the two: a sync" + ("threads" if distance == 32 else "(warp or|threads)"))


def test_message_names_array_index_threads_and_remedy():
    def k():
        tile = cuda.shared.array((8, 8), f32)
        if cuda.threadIdx.x == 5:
            tile[2, 3] = 1
        if cuda.threadIdx.x == 40:
            tile[2, 3]
    races(k, r"^shared array tile\[2, 3\] \(address 0x45c\): thread 40 reads it and thread 5 writes it, and nothing orders the two: "
             "a syncthreads is missing between them")

    def g(x):
        if cuda.threadIdx.x == 0:
            x[2 + cuda.blockIdx.x] = 1
            x[3] = 2
    races(g, r"^argument x\[3\] \(address 0x[0-9a-f]+\): thread 0 writes it and thread 0 of block \(\d, 0, 0\) writes it, and nothing "
             "orders the two: between blocks it takes a grid sync, or threadfence", np.zeros(8, np.float32), grid=2)


@pytest.mark.parametrize("dtype, other", [(u8, u8), (u16, u16), (i32, u8), (f64, u16), (u64, i32)])
def test_accesses_are_told_apart_to_the_byte(dtype, other):
    size, small = dtype.dtype.itemsize if dtype is not f64 else 8, other.dtype.itemsize

    def neighbours(shift):
        s, b = cuda.shared.array(0, dtype), cuda.shared.array(0, other)
        if cuda.threadIdx.x == 0:
            s[4] = 1
        elif cuda.threadIdx.x == 1:
            b[(4 * size + shift) // small] = 1
    for shift in range(-2 * small, size + 2 * small, small):
        if 0 <= shift < size:
            races(neighbours, "dynamic shared array", shift, shared=64)
        else:
            passes(neighbours, shift, shared=64)


def test_neighbouring_elements_of_many_threads():
    def k(x):
        s, h = cuda.shared.array(64, u16), cuda.shared.array((64, 3), u8)
        t = cuda.threadIdx.x
        for step in range(3):
            s[t] = step
            h[t, step] += t
            x[t] = s[t]
    passes(k, np.zeros(64, np.uint8))


def test_augmented_assignment_slices_and_vectors_are_tracked():
    def augmented():
        s = cuda.shared.array(4, i32)
        s[0] += 1

    def sliced():
        s = cuda.shared.array((64, 4), i32)
        s[cuda.threadIdx.x, :] = 0
        for v in s[63 - cuda.threadIdx.x, 1:3]:
            v + 1

    def vectors(p):
        p.store(4 * (cuda.threadIdx.x // 2), [1, 2, 3, 4], 16)

    def vector_reads(p):
        p[cuda.threadIdx.x] = 1
        p.load(4 * (cuda.threadIdx.x // 4), 4, 16)
    races(augmented, r"shared array s\[0\]")
    races(sliced, r"shared array s\[\d+, [12]\]")
    races(vectors, r"argument p\[\d+\]", Pointer(np.zeros(128, np.int32)))
    races(vector_reads, r"argument p\[\d+\]", Pointer(np.zeros(64, np.float32)))


def test_a_barrier_of_one_warp_does_not_help_another():
    def k(right):
        s = cuda.shared.array(64, i32)
        t = cuda.threadIdx.x
        s[t] = t
        cuda.syncwarp()
        s[t ^ 1]
        if right:
            cuda.syncthreads()
        s[t ^ 33]
    passes(k, True)
    races(k, "a syncthreads is missing", False)


def test_syncwarp_of_some_lanes():
    def k(mask):
        s = cuda.shared.array(32, i32)
        t = cuda.threadIdx.x
        if t < 8:
            s[t] = t
            cuda.syncwarp(mask)
            s[7 - t]
    passes(k, 0xFF, block=32)

    def halves():
        s = cuda.shared.array(32, i32)
        t = cuda.threadIdx.x
        s[t] = t
        cuda.syncwarp(0xFFFF if t < 16 else 0xFFFF0000)
        s[31 - t]
    races(halves, "a syncwarp or syncthreads is missing", block=32)


def test_writes_after_reads_of_many():
    """Every thread reads an element, then one writes it: the reads of all are remembered, not only the last."""
    def k(x, who, kind):
        t = cuda.threadIdx.x
        if t != who:
            x[5]
        sync(kind)
        if t == 40:
            x[5] = 1
    for kind in ("block", "warp"):
        for space in (np.zeros(8, np.int32), Pointer(np.zeros(8, np.int32))):
            if kind == "block":
                passes(k, space, 3, kind)
            else:
                races(k, r"argument x\[5\].*thread \d+ reads it", space, 3, kind)

    def only_one(x):
        t = cuda.threadIdx.x
        if t in (7, 41, 44):
            x[5]
        cuda.syncwarp()
        if t == 40:
            x[5] = 1
    races(only_one, "thread 40 writes it and thread 7 reads it", np.zeros(8, np.int32))


def test_blocks_are_not_ordered_by_running_one_after_the_other():
    def k(x):
        if cuda.threadIdx.x == 0:
            x[cuda.blockIdx.x] = 1
            x[0]
    config.resident_blocks = 1
    races(k, r"argument x\[0\]", np.zeros(4, np.int32), grid=4)

    def reads_then_write(x):
        x[cuda.threadIdx.x]
        if cuda.blockIdx.x == 3:
            cuda.syncthreads()
            x[63 - cuda.threadIdx.x] = 1
    races(reads_then_write, r"argument x\[\d+\].*reads it", np.zeros(64, np.int32), grid=4)


def handshake(release, acquire, scope="device", same_block=False):
    """Block (thread) 0 passes data on through a flag; `release` and `acquire` say whether the fences are there."""
    fence = cuda.threadfence if scope == "device" else cuda.threadfence_block

    def k(data, flag):
        me = cuda.threadIdx.x if same_block else cuda.blockIdx.x
        if me == 0:
            data[0] = 42
            if release:
                fence()
            cuda.atomic.exch(flag, 0, 1)
        elif me == 33:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            if acquire:
                fence()
            data[1] = data[0] + 1
    return k, (1, 34) if same_block else (34, 1)


@pytest.mark.parametrize("same_block", [False, True])
@pytest.mark.parametrize("scope", ["device", "block"])
@pytest.mark.parametrize("release", [True, False])
@pytest.mark.parametrize("acquire", [True, False])
def test_flag_with_fences(release, acquire, scope, same_block):
    k, (grid, block) = handshake(release, acquire, scope, same_block)
    data = np.zeros(2, np.int32)
    args = Pointer(data), Pointer(np.zeros(1, np.int32))
    if release and acquire and (scope == "device" or same_block):
        passes(k, *args, grid=grid, block=block)
        assert data.tolist() == [42, 43]
    else:
        races(k, r"argument data\[0\]", *args, grid=grid, block=block)


def test_fences_order_nothing_through_different_elements():
    def k(data, flags):
        if cuda.blockIdx.x == 0:
            data[0] = 1
            cuda.threadfence()
            cuda.atomic.exch(flags, 0, 1)
        else:
            cuda.atomic.add(flags, 1, 0)
            cuda.threadfence()
            data[0]
    races(k, r"argument data\[0\]", np.zeros(1, np.int32), np.zeros(2, np.int32), grid=2, block=1)


def last_block(data, partial, counter, out, fences, who_fences):
    """All blocks write a partial sum; whoever comes last adds them up."""
    s = cuda.shared.array(1, i32)
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    partial[b * cuda.blockDim.x + t] = data[b * cuda.blockDim.x + t] * 2
    if who_fences == "all" and "release" in fences:
        cuda.threadfence()
    cuda.syncthreads()
    if t == 0:
        if who_fences == "one" and "release" in fences:
            cuda.threadfence()
        s[0] = cuda.atomic.add(counter, 0, 1) == cuda.gridDim.x - 1
        if who_fences == "one" and "acquire" in fences:
            cuda.threadfence()
    cuda.syncthreads()
    if s[0]:
        if who_fences == "all" and "acquire" in fences:
            cuda.threadfence()
        total = f32(0)
        for i in range(cuda.gridDim.x):
            total += partial[i * cuda.blockDim.x + t]
        out[t] = total


@pytest.mark.parametrize("who_fences", ["one", "all"])
@pytest.mark.parametrize("fences", ["release acquire", "release", "acquire", ""])
def test_last_block_pattern(fences, who_fences):
    data, out = np.arange(5 * 40, dtype=np.float32), np.zeros(40, np.float32)
    args = Pointer(data), Pointer(np.zeros(200, np.float32)), Pointer(np.zeros(1, np.int32)), Pointer(out), fences, who_fences
    if fences == "release acquire":
        passes(last_block, *args, grid=5, block=40)
        assert (out == 2 * data.reshape(5, 40).sum(0)).all()
    else:
        races(last_block, r"argument partial\[\d+\].*between blocks it takes", *args, grid=5, block=40)


def test_knowledge_is_passed_on():
    """Block 0 to 1 to 2, each by fence and flag: 2 may read what 0 wrote."""
    def k(data, flags, broken):
        b = cuda.blockIdx.x
        if b:
            while cuda.atomic.add(flags, b - 1, 0) == 0:
                pass
            if not (broken and b == 2):
                cuda.threadfence()
        data[b] = b
        if b == 2:
            data[3] = data[0]
        cuda.threadfence()
        cuda.atomic.exch(flags, b, 1)
    passes(k, np.zeros(4, np.int32), np.zeros(3, np.int32), False, grid=3, block=1)
    races(k, r"argument data\[0\]", np.zeros(4, np.int32), np.zeros(3, np.int32), True, grid=3, block=1)


def test_grid_sync_orders_all():
    def k(x, right):
        i, n = cuda.grid(1), cuda.gridsize(1)
        x[i] = i
        if right:
            cuda.cg.this_grid().sync()
        else:
            cuda.syncthreads()
        v = x[n - 1 - i]
        cuda.cg.this_grid().sync()
        x[i] = v
    passes(k, np.zeros(160, np.int32), True, grid=5, block=32, cooperative=True)
    races(k, "between blocks it takes a grid sync", np.zeros(160, np.int32), False, grid=5, block=32, cooperative=True)


def test_switches():
    def k(x):
        s = cuda.shared.array(1, i32)
        s[0] = 1
        x[0] = 1
    config.track_global = False
    races(k, r"shared array s\[0\]", np.zeros(1))
    config.track_shared = False
    passes(k, np.zeros(1))
    config.track_global = True
    races(k, r"argument x\[0\]", np.zeros(1))


def test_logs_of_returned_threads_are_examined_in_time(monkeypatch):
    monkeypatch.setattr(order, "EXAMINE_AT", 100)

    def k(x, y, last):
        i = cuda.grid(1)
        assert sum(len(t.reads) for t in current().block.threads) < 200
        for j in range(20):
            x[j]
        y[i if i < 99 else last] = 1
    passes(k, np.zeros(20), np.zeros(100), 99, grid=1, block=100)
    races(k, r"argument y\[7\]", np.zeros(20), np.zeros(100), 7, grid=1, block=100)


class Knows:
    """Stands for `Knowledge`: 4 agents of block 0 know of all before `times[tid][agent]`."""
    block, stride, floor, oldest = 0, 100, 0, 0

    def __init__(self, times):
        self.times = np.array(times)

    def agents(self, tids):
        return tids

    same = agents

    def agent(self, tid):
        return tid

    def unknown(self, tids, agents, times):
        return self.times[tids, agents] < times

    def name(self, agent):
        return f"agent {agent}"

    def remedy(self, tid, agent):
        return "?"


def test_history_compacts_without_forgetting():
    rng = np.random.default_rng(0)
    history, written = History(64), np.zeros(64, np.int64)
    latest = np.zeros((64, 4), np.int64)
    nobody = Knows(np.zeros((4, 4), int))
    for now in range(1, 200):
        cells, tids = rng.integers(0, 64, 1500), rng.integers(0, 4, 1500)
        history.compact(written, 0)
        history.add(cells, tids, nobody, now)
        latest[cells, tids] = now
    assert history.listed < COMPACT + 64 * 4 + 1500
    for cell in range(0, 64, 7):
        for agent in range(4):
            times = np.tile(latest[cell], (4, 1))
            assert history.conflict(np.array([cell]), np.array([3]), Knows(times)) is None
            times[:, agent] -= 1
            found = history.conflict(np.array([cell]), np.array([3]), Knows(times))
            assert found == ((0, agent) if agent != 3 else None)


def test_shadow_against_a_model():
    """Random accesses of four agents, in random order of knowledge, against a list of all that happened."""
    rng = np.random.default_rng(1)
    verdicts = {True: 0, False: 0}
    for trial in range(150):
        shadow, events = Shadow(Allocation(np.zeros(16, np.uint8), 1, 0)), []
        times = np.zeros((4, 4), int)
        for now in range(1, 12):
            shadow.buffer.views = [("x", np.dtype("i4"), 0, (4,))]
            tid, how, n = int(rng.integers(4)), rng.choice(["write", "read", "update"]), int(rng.integers(1, 3))
            cells = rng.choice(4, n, replace=False)
            times[tid] = np.maximum(times[tid], times[int(rng.integers(4))]) if rng.random() < 0.85 else times[tid]
            clash = any(c in cells and a != tid and times[tid, a] < when and not how == kind in ("read", "update")
                        for c, a, kind, when in events)
            try:
                getattr(shadow, how)(cells, np.full(n, tid), Knows(times), now)
                assert not clash
            except Race:
                assert clash
            verdicts[clash] += 1
            if clash:
                break
            events += [(c, tid, how, now) for c in cells]
            times[tid, tid] = now
    assert min(verdicts.values()) > 50


def test_random_kernels_against_the_definition():
    """Kernels of random accesses and barriers: a race is raised if and only if two accesses conflict and no barrier of both is between."""
    rng = np.random.default_rng(2)
    threads, verdicts = 40, {True: 0, False: 0}

    def k(x, accesses, barriers, space):
        s = x if space == "global" else cuda.shared.array(1500, i32)
        t = cuda.threadIdx.x
        for step, kind in enumerate(barriers):
            for how, i in accesses[step][t]:
                if how == "read":
                    s[i]
                elif how == "write":
                    s[i] = t
                else:
                    cuda.atomic.add(s, i, 1)
            sync(kind)

    def ordered(barriers, step, other, a, b):
        between = barriers[min(step, other):max(step, other)]
        return a == b or "block" in between or "warp" in between and a // 32 == b // 32
    for trial in range(60):
        barriers = [str(rng.choice(["block", "warp", "warp", "shuffle"])) for _ in range(5)]
        accesses = [[[(str(rng.choice(["read", "read", "write", "atomic"])), int(rng.integers(1500))) for _ in range(rng.integers(2))]
                     for _ in range(threads)] for _ in barriers]
        flat = [(step, t, how, i) for step, row in enumerate(accesses) for t, mine in enumerate(row) for how, i in mine]
        clash = any(i == j and (how, other) not in (("read", "read"), ("atomic", "atomic")) and not ordered(barriers, p, q, a, b)
                    for n, (p, a, how, i) in enumerate(flat) for q, b, other, j in flat[:n])
        for space in ("shared", "global"):
            run = cuda.jit(k).simulate
            args = 1, threads, [Pointer(np.zeros(1500, np.int32)), accesses, barriers, space]
            if clash:
                with pytest.raises(Race):
                    run(*args)
            else:
                run(*args)
        verdicts[clash] += 1
    assert min(verdicts.values()) > 10

"""Rings and their barriers: states over several rounds, stages that wait for all who read them, clusters; in the simulator and on a GPU."""
import numpy as np
import pytest
from kit import launch, needs

from dnnkern.device import cuda, f32, i32, i64, jit, u32
from dnnkern.device.barrier import barrier_arrive, barrier_sync
from dnnkern.device.cluster import cluster_rank, cluster_sync
from dnnkern.device.mbarrier import fence_mbarrier_init
from dnnkern.device.pipeline import make_pipeline
from dnnkern.device.tma import bulk_load, make_tma_load, tensor_map_address
from dnnkern.device.vec import address, shared_address
from dnnkern.host.tensormap import TensorMap

pytestmark = needs(9)
USES = 23


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5])
def test_states(stages):
    """`next`, `advance` and `state_at` agree with a division over several rounds, of consumers and of the producer."""
    pipe = make_pipeline(stages)

    @jit(launch_bounds=32)
    def kernel(y, skip):
        if cuda.threadIdx.x == 0:
            consumer, producer, skipping = pipe.consumer_start(), pipe.producer_start(), pipe.consumer_start()
            for k in range(USES):
                at = pipe.state_at(u32(k))
                y[8 * k], y[8 * k + 1] = i32(consumer.stage), i32(consumer.phase)
                y[8 * k + 2], y[8 * k + 3] = i32(producer.stage), i32(producer.phase)
                y[8 * k + 4], y[8 * k + 5] = i32(at.stage), i32(at.phase)
                y[8 * k + 6], y[8 * k + 7] = i32(skipping.stage), i32(skipping.phase)
                consumer, producer, skipping = pipe.next(consumer), pipe.next(producer), pipe.advance(skipping, u32(skip))

    for skip in (0, 1, 2, 7):
        y = np.full((USES, 8), -1, np.int32)
        launch(kernel, 1, 32, y.reshape(-1), skip)
        uses = np.arange(USES)
        stage, phase = uses % stages, uses // stages % 2
        skipped = uses * skip
        wanted = [stage, phase, stage, 1 - phase, stage, phase, skipped % stages, skipped // stages % 2]
        assert (y == np.stack(wanted, 1)).all()


def test_barriers_follow_one_another():
    """Full barriers, then empty ones; a ring behind another one begins where that ends."""
    first, second = make_pipeline(3, consumers=2), make_pipeline(2, consumers=0)
    assert (first.bytes, second.bytes) == (48, 16)
    assert second.producer_acquire is None and second.producer_tail is None and second.consumer_release is None

    @jit(launch_bounds=32)
    def kernel(y):
        if cuda.threadIdx.x == 0:
            a, b = first.barriers(u32(1024)), second.barriers(u32(1024 + 48))
            state = first.next(first.consumer_start())
            y[0], y[1], y[2], y[3] = i32(a.full), i32(a.empty), i32(b.full), i32(first.full_barrier(a, state))

    y = np.zeros(4, np.int32)
    launch(kernel, 1, 32, y)
    assert y.tolist() == [1024, 1048, 1072, 1032]


@pytest.mark.parametrize("stages, consumers, producers, cluster", [(0, 1, 1, 1), (2, -1, 1, 1), (2, 1, 0, 1), (2, 1, 1, 3)])
def test_rings_that_cannot_be(stages, consumers, producers, cluster):
    with pytest.raises(ValueError, match=f"pipeline of {stages} stages, {consumers} consumers, {producers} producers, {cluster} blocks"):
        make_pipeline(stages, consumers, producers, cluster)


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_copies_and_two_warps_that_read_them(stages):
    """A thread copies, two warps read each stage in another order than it was written."""
    pipe, steps = make_pipeline(stages, consumers=2), 7
    words, bars_at = 64 * stages, 2 * stages

    @jit(launch_bounds=96)
    def kernel(x, y):
        ring, room = cuda.shared.array(words, f32, alignment=16), cuda.shared.array(bars_at, i64)
        t, bars = cuda.threadIdx.x, pipe.barriers(shared_address(room, 0))
        if t == 0:
            pipe.init(bars)
            fence_mbarrier_init()
        cuda.syncthreads()
        if t == 64:
            state = pipe.producer_start()
            for k in range(steps):
                pipe.producer_acquire(bars, state)
                bar = pipe.producer_expect(bars, state, u32(256))
                bulk_load(shared_address(ring, 64 * state.stage), address(x, 64 * k), u32(256), bar)
                state = pipe.next(state)
        elif t < 64:
            state, total = pipe.consumer_start(), f32(0)
            for k in range(steps):
                pipe.consumer_wait(bars, state)
                total = total * f32(2) + ring[64 * i32(state.stage) + (63 - t)]
                cuda.syncwarp()
                pipe.consumer_release(bars, state, t & 31)
                state = pipe.next(state)
            y[t] = total

    x, y = np.arange(64 * steps, dtype=np.float32), np.zeros(64, np.float32)
    launch(kernel, 1, 96, x, y)
    assert (y == (x.reshape(steps, 64)[:, ::-1] * 2.0 ** np.arange(steps - 1, -1, -1)[:, None]).sum(0)).all()


def test_consumers_that_take_turns():
    """Each of two warps consumes runs of three stages and passes over the other's; what threads write is committed by each of them."""
    pipe = make_pipeline(4, consumers=1, producers=32)

    @jit(launch_bounds=96)
    def kernel(y):
        ring, room = cuda.shared.array(128, i32), cuda.shared.array(8, i64)
        t, bars = cuda.threadIdx.x, pipe.barriers(shared_address(room, 0))
        lane, warp = t & 31, t >> 5
        if t == 0:
            pipe.init(bars)
            fence_mbarrier_init()
        cuda.syncthreads()
        if warp == 2:
            state = pipe.producer_start()
            for k in range(18):
                pipe.producer_acquire(bars, state)
                ring[32 * i32(state.stage) + lane] = 100 * k + lane
                pipe.producer_commit(bars, state)
                state = pipe.next(state)
        else:
            state = pipe.consumer_start()
            if warp == 1:
                state = pipe.advance(state, u32(3))
            for run in range(warp, 6, 2):
                if run > 0:
                    barrier_sync(u32(1 + warp), u32(64))  # the other warp has seen its last stage full
                total = 0
                for k in range(3):
                    pipe.consumer_wait(bars, state)
                    total += ring[32 * i32(state.stage) + (31 - lane)]
                    cuda.syncwarp()
                    pipe.consumer_release(bars, state, lane)
                    state = pipe.next(state)
                if run < 5:
                    barrier_arrive(u32(2 - warp), u32(64))
                y[32 * run + lane] = total
                state = pipe.advance(state, u32(3))

    y = np.zeros((6, 32), np.int32)
    launch(kernel, 1, 96, y.reshape(-1))
    assert (y == 300 * (3 * np.arange(6)[:, None] + 1) + 3 * (31 - np.arange(32))).all()


def test_blocks_fill_each_others_stages():
    """Each of two blocks copies a half of every stage to both: a stage is free when the consumers of both have read it."""
    pipe, load, steps = make_pipeline(2, consumers=1, cluster=2), make_tma_load(2, multicast=True), 6

    @jit(launch_bounds=64)
    def kernel(x, y, nbytes):
        ring, room = cuda.shared.array(512, f32, alignment=128), cuda.shared.array(4, i64)
        t, rank, bars = cuda.threadIdx.x, cluster_rank(), pipe.barriers(shared_address(room, 0))
        if t == 0:
            pipe.init(bars)
            fence_mbarrier_init()
        cluster_sync()
        if t == 32:
            state = pipe.producer_start()
            for k in range(steps):
                pipe.producer_acquire(bars, state)
                bar = pipe.producer_expect(bars, state, u32(2 * nbytes))
                to = shared_address(ring, 256 * state.stage + u32(128 * rank))
                load(to, tensor_map_address(x), bar, 0, 8 * k + 4 * rank, u32(3))
                state = pipe.next(state)
            pipe.producer_tail(bars, state)
        elif t < 32:
            state, total = pipe.consumer_start(), f32(0)
            for k in range(steps):
                pipe.consumer_wait(bars, state)
                at = 256 * i32(state.stage)
                for c in range(8):
                    total = total + f32(k + 1) * ring[at + 32 * c + (31 - t)]
                cuda.syncwarp()
                pipe.consumer_release(bars, state, t)
                state = pipe.next(state)
            y[32 * rank + t] = total
        cluster_sync()

    x, y = np.arange(8 * steps * 32, dtype=np.float32).reshape(8 * steps, 32), np.zeros((2, 32), np.float32)
    spec = TensorMap("float32", x.shape, (32, 1), box=(4, 32))
    launch(kernel, 2, 64, (x, spec), y.reshape(-1), spec.nbytes, cluster=2)
    wanted = (x.reshape(steps, 8, 32)[:, :, ::-1].sum(1) * np.arange(1, steps + 1)[:, None]).sum(0)
    assert (y == wanted).all()

"""A ring of copies, and named ways to break it by one edit: the exact one passes, every broken one is noticed."""
import numpy as np
from mutants import Wrong, check, check_broken, listed, schedule  # noqa: F401

from dnnkern.device import cuda, f32, i32, i64, u32
from dnnkern.device.mbarrier import fence_mbarrier_init
from dnnkern.device.pipeline import make_pipeline
from dnnkern.device.sim import Deadlock, Misuse, Pointer, Race
from dnnkern.device.tma import bulk_load
from dnnkern.device.vec import address, shared_address

pipe = make_pipeline(3, consumers=2)


def streams(x, y):
    """A thread copies, two warps read."""
    ring = cuda.shared.array(192, f32, alignment=16)
    room = cuda.shared.array(6, i64)
    t, bars = i32(cuda.threadIdx.x), pipe.barriers(shared_address(room, 0))
    if t == 0:
        pipe.init(bars)
        fence_mbarrier_init()
    cuda.syncthreads()  # known
    if t == 64:
        state = pipe.producer_start()
        for k in range(7):
            pipe.producer_acquire(bars, state)
            bar = pipe.producer_expect(bars, state, u32(256))
            bulk_load(shared_address(ring, 64 * state.stage), address(x, 64 * k), u32(256), bar)
            state = pipe.next(state)  # of the producer
    elif t < 64:
        state, total = pipe.consumer_start(), f32(0)
        for k in range(7):
            pipe.consumer_wait(bars, state)
            total += ring[64 * i32(state.stage) + (63 - t)]
            cuda.syncwarp()  # all lanes have read
            pipe.consumer_release(bars, state, t & 31)
            state = pipe.next(state)
        y[t] = total


def run_streams(kernel):
    x, y = np.arange(1, 449, dtype=np.float32), np.zeros(64, np.float32)
    kernel.simulate(1, 96, [Pointer(x), Pointer(y)])
    return y, x.reshape(7, 64)[:, ::-1].sum(0)


READ = "total += ring[64 * i32(state.stage) + (63 - t)]"
STREAMS = {
    "not initialised": ("pipe.init(bars)", "pass", Misuse, "there is no mbarrier at 0x"),
    "no barrier after the initialisation": ("cuda.syncthreads()  # known", "pass", (Race, Misuse),
                                            "nothing orders that after its initialisation|there is no mbarrier"),
    "read before it is full": ("pipe.consumer_wait(bars, state)", "pass", (Race, Misuse, Deadlock), r"ring\[|room\["),
    "overwritten before it was read": ("pipe.producer_acquire(bars, state)", "pass", (Race, Misuse, Deadlock), r"ring\[|room\["),
    "released before it was read": (f"{READ}\n            cuda.syncwarp()  # all lanes have read\n"
                                    "            pipe.consumer_release(bars, state, t & 31)",
                                    f"pipe.consumer_release(bars, state, t & 31)\n            {READ}", Race, r"shared array ring\["),
    "released before all lanes have read": ("cuda.syncwarp()  # all lanes have read", "pass", Race, r"shared array ring\["),
    "never released": ("pipe.consumer_release(bars, state, t & 31)", "pass", Deadlock, r"room\[3\].*2 of 2 arrivals pending"),
    "released by one warp": ("pipe.consumer_release(bars, state, t & 31)", "pipe.consumer_release(bars, state, t)", Deadlock,
                             "1 of 2 arrivals pending"),
    "released by every lane": ("pipe.consumer_release(bars, state, t & 31)", "pipe.consumer_release(bars, state, 0)",
                               (Race, Misuse, Deadlock), r"ring\[|room\["),
    "the producer begins as a consumer": ("pipe.producer_start()", "pipe.consumer_start()", Deadlock, r"parity 0 on .*room\[3\]"),
    "consumers begin as a producer": ("pipe.consumer_start()", "pipe.producer_start()", (Race, Deadlock), r"ring\[|room\["),
    "the producer stays": ("state = pipe.next(state)  # of the producer", "pass", (Race, Misuse, Deadlock), r"ring\[|room\["),
    "consumers skip": ("pipe.consumer_release(bars, state, t & 31)\n            state = pipe.next(state)",
                       "pipe.consumer_release(bars, state, t & 31)\n            state = pipe.advance(state, u32(2))",
                       (Race, Misuse, Deadlock), r"ring\[|room\["),
    "fewer bytes than are copied": ("state, u32(256))", "state, u32(240))", Misuse, "16 bytes more than expected"),
    "more bytes than are copied": ("state, u32(256))", "state, u32(272))", Deadlock, "16 bytes outstanding"),
    "another stage's bytes": ("64 * state.stage)", "64 * (state.stage ^ 1))", (Race, Misuse, Wrong, IndexError), "."),
}
CASES = {streams: (run_streams, STREAMS)}


def test_exact():
    check(streams, run_streams)


@listed(CASES)
def test_broken(function, name):
    check_broken(CASES, function, name)

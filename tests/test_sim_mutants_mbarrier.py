"""mbarriers between threads, and named ways to break each kernel by one edit: the exact ones pass, every broken one is noticed."""
import numpy as np
import pytest
from mutants import Wrong, check, check_broken, listed, schedule  # noqa: F401

from dnnkern.device import cuda, f32, i32, i64, u32
from dnnkern.device.cluster import cluster_rank, cluster_sync, remote_address, store_remote_f32
from dnnkern.device.cp_async import copy_async4
from dnnkern.device.mbarrier import (fence_mbarrier_init, mbarrier_arrive, mbarrier_arrive_copies,  # noqa: F401
                                     mbarrier_arrive_remote, mbarrier_free_remote, mbarrier_init, mbarrier_invalidate, mbarrier_test,
                                     mbarrier_wait, mbarrier_wait_cluster)
from dnnkern.device.sim import Deadlock, Misuse, Pointer, Race
from dnnkern.device.vec import address, shared_address


def to_and_fro(y):
    """Two warps hand one buffer to each other."""
    s = cuda.shared.array(32, i32)
    bars = cuda.shared.array(2, i64)
    t = i32(cuda.threadIdx.x)
    full, empty, lane = shared_address(bars, 0), shared_address(bars, 1), t & 31
    if t == 0:
        mbarrier_init(full, u32(32))
        mbarrier_init(empty, u32(32))  # of the reader
    cuda.syncthreads()  # known
    total = 0
    for k in range(4):
        if t < 32:
            mbarrier_wait(empty, u32(k & 1 ^ 1))
            s[lane] = 10 ** k * (lane % 7 + 1)
            mbarrier_arrive(full)
        else:
            mbarrier_wait(full, u32(k & 1))
            total += s[31 - lane]
            mbarrier_arrive(empty)
    if t >= 32:
        y[lane] = total


def run_to_and_fro(kernel):
    y = np.zeros(32, np.int32)
    kernel.simulate(1, 64, [Pointer(y)])
    return y, 1111 * ((31 - np.arange(32)) % 7 + 1)


TO_AND_FRO = {
    "not initialised": ("mbarrier_init(empty, u32(32))", "pass", Misuse, "there is no mbarrier at 0x4.. *; initialised are 0x4"),
    "no barrier after the initialisation": ("cuda.syncthreads()  # known", "pass", (Race, Misuse),
                                            "nothing orders that after its initialisation: a syncthreads|there is no mbarrier"),
    "initialised by everybody": ("if t == 0:", "if t < 2:", Misuse, "is a barrier already"),
    "more arrivals than come": ("mbarrier_init(full, u32(32))", "mbarrier_init(full, u32(33))", Deadlock,
                                r"bars\[0\].*phase 0 in progress, 1 of 33 arrivals pending"),
    "fewer arrivals than come": ("mbarrier_init(full, u32(32))", "mbarrier_init(full, u32(16))", (Race, Misuse, Deadlock),
                                 r"shared array s\[|ahead"),
    "fewer arrivals of the reader": ("mbarrier_init(empty, u32(32))", "mbarrier_init(empty, u32(31))", (Race, Misuse, Deadlock),
                                     r"shared array s\[|ahead"),
    "written before it was read": ("mbarrier_wait(empty, u32(k & 1 ^ 1))", "pass", (Race, Misuse, Deadlock), r"shared array s\[|ahead"),
    "read before it was written": ("mbarrier_wait(full, u32(k & 1))", "pass", (Race, Misuse), r"shared array s\[|runs ahead"),
    "writer begins with the wrong parity": ("u32(k & 1 ^ 1)", "u32(k & 1)", Deadlock,
                                            r"mbarrier_wait parity 0 on mbarrier shared array bars\[1\].*32 of 32 arrivals pending"),
    "reader begins with the wrong parity": ("mbarrier_wait(full, u32(k & 1))", "mbarrier_wait(full, u32(k & 1 ^ 1))", (Race, Deadlock),
                                            r"shared array s\[|parity 1 on mbarrier shared array bars\[0\]"),
    "parity never flips": ("mbarrier_wait(full, u32(k & 1))", "mbarrier_wait(full, u32(0))", (Race, Misuse, Deadlock), r"s\[|bars\["),
    "no parity": ("mbarrier_wait(full, u32(k & 1))", "mbarrier_wait(full, u32(k))", Misuse, "parity 2; expected 0 or 1"),
    "read after it was given back": ("total += s[31 - lane]\n            mbarrier_arrive(empty)",
                                     "mbarrier_arrive(empty)\n            total += s[31 - lane]", Race, r"shared array s\["),
    "announced before it was written": ("s[lane] = 10 ** k * (lane % 7 + 1)\n            mbarrier_arrive(full)",
                                        "mbarrier_arrive(full)\n            s[lane] = 10 ** k * (lane % 7 + 1)", Race, r"shared array s\["),
    "a lane does not arrive": ("mbarrier_arrive(full)", "lane and mbarrier_arrive(full)", Deadlock, "1 of 32 arrivals pending"),
    "a lane arrives twice": ("mbarrier_arrive(full)", "(mbarrier_arrive(full), lane or mbarrier_arrive(full))", (Race, Misuse),
                             r"s\[|bars\["),
    "a barrier under the data": ("full, empty, lane = shared_address(bars, 0)", "full, empty, lane = shared_address(s, 0)", (Race, Misuse),
                                 r"shared array s\[[01]\]|overwritten"),
    "misaligned": ("shared_address(bars, 1)", "shared_address(bars, 0) + 4", Misuse, "8 bytes at 0x4.* misaligned"),
    "polled instead, once": ("mbarrier_wait(full, u32(k & 1))", "mbarrier_test(full, u32(k & 1))", (Race, Misuse), r"s\[|runs ahead"),
}


def to_the_neighbour(y):
    """Each block writes into its neighbour's memory and arrives there."""
    s = cuda.shared.array(32, f32)
    bars = cuda.shared.array(1, i64)
    t, rank, bar = i32(cuda.threadIdx.x), cluster_rank(), shared_address(bars, 0)
    if t == 0:
        mbarrier_init(bar, u32(32))
        fence_mbarrier_init()
    cluster_sync()  # ready
    store_remote_f32(remote_address(shared_address(s, t), rank ^ 1), f32(100 * rank + t))
    mbarrier_arrive_remote(bar, rank ^ 1)
    mbarrier_wait_cluster(bar, 0)
    y[32 * rank + t] = s[31 - t]
    cluster_sync()  # done


def run_to_the_neighbour(kernel):
    y = np.zeros((2, 32), np.float32)
    kernel.simulate(2, 32, [Pointer(y)], cluster=2)
    return y, [100 + np.arange(31, -1, -1), np.arange(31, -1, -1)]


TO_THE_NEIGHBOUR = {
    "arrives at itself": ("mbarrier_arrive_remote(bar, rank ^ 1)", "mbarrier_arrive_remote(bar, rank)", Race, r"shared array s\[\d+\]"),
    "arrives at block 0": ("mbarrier_arrive_remote(bar, rank ^ 1)", "mbarrier_arrive_remote(bar, 0)", (Deadlock, Race, Misuse),
                           r"32 of 32 arrivals pending|runs ahead|ends|shared array s"),
    "waits in the scope of its block": ("mbarrier_wait_cluster(bar, 0)", "mbarrier_wait(bar, 0)", Race, r"shared array s\[\d+\]"),
    "releases nothing": ("mbarrier_arrive_remote(bar, rank ^ 1)", "mbarrier_free_remote(bar, rank ^ 1)", Race, r"shared array s\[\d+\]"),
    "arrives before it writes": (
        "store_remote_f32(remote_address(shared_address(s, t), rank ^ 1), f32(100 * rank + t))\n    mbarrier_arrive_remote(bar, rank ^ 1)",
        "mbarrier_arrive_remote(bar, rank ^ 1)\n    store_remote_f32(remote_address(shared_address(s, t), rank ^ 1), f32(100 * rank + t))",
        Race, "s"),
    "the neighbour has not started": ("cluster_sync()  # ready", "cuda.syncthreads()", (Race, Misuse), "cluster barrier|no mbarrier"),
    "initialisation not fenced": ("fence_mbarrier_init()", "pass", Race, "a fence_mbarrier_init is missing"),
    "does not wait": ("mbarrier_wait_cluster(bar, 0)", "pass", Race, r"shared array s\[\d+\]"),
}


def copies_arrive(x, y):
    """A warp copies by cp.async and goes on, the other waits."""
    s = cuda.shared.array(64, f32, alignment=16)
    bars = cuda.shared.array(1, i64)
    t, bar = i32(cuda.threadIdx.x), shared_address(bars, 0)
    if t == 0:
        mbarrier_init(bar, u32(32))
    cuda.syncthreads()
    if t < 32:
        copy_async4(shared_address(s, t), address(x, t), 0, 4)
        copy_async4(shared_address(s, 32 + t), address(x, 32 + t), 0, 4)  # second
        mbarrier_arrive_copies(bar)
    else:
        mbarrier_wait(bar, 0)
        y[t - 32] = s[95 - t] + s[t - 32]


def run_copies_arrive(kernel):
    x, y = np.arange(1, 65, dtype=np.float32), np.zeros(32, np.float32)
    kernel.simulate(1, 64, [Pointer(x), Pointer(y)])
    return y, x[:31:-1] + x[:32]


COPIES_ARRIVE = {
    "not waited for": ("mbarrier_wait(bar, 0)", "pass", (Race, Misuse), r"shared array s\[\d+\]|under way"),
    "arrives itself": ("mbarrier_arrive_copies(bar)", "mbarrier_arrive(bar)", Wrong, None),
    "arrives before the second copy": (
        "copy_async4(shared_address(s, 32 + t), address(x, 32 + t), 0, 4)  # second\n        mbarrier_arrive_copies(bar)",
        "mbarrier_arrive_copies(bar)\n        copy_async4(shared_address(s, 32 + t), address(x, 32 + t), 0, 4)", (Race, Wrong),
        r"shared array s\[\d+\]"),
    "reads its own copy": ("mbarrier_arrive_copies(bar)", "mbarrier_arrive_copies(bar); f32(s[t])", Race, r"shared array s\[\d+\]"),
    "writes behind it": ("mbarrier_arrive_copies(bar)", "mbarrier_arrive_copies(bar); s[t] = f32(0)", Race, r"shared array s\[\d+\]"),
    "writes the source": ("mbarrier_arrive_copies(bar)", "mbarrier_arrive_copies(bar); x[t] = f32(0)", Race, r"argument x\[\d+\]"),
    "arrives too often": ("mbarrier_arrive_copies(bar)", "mbarrier_arrive_copies(bar); mbarrier_arrive_copies(bar)", (Misuse, Race),
                          r"bars\[0\]"),
    "a lane stays away": ("mbarrier_arrive_copies(bar)", "t and mbarrier_arrive_copies(bar)", Deadlock, "32 of 32 arrivals pending"),
}


def reused(y):
    """A barrier's memory, and a copy's."""
    bars = cuda.shared.array(1, i64)
    t, bar = i32(cuda.threadIdx.x), shared_address(bars, 0)
    for k in range(2):
        if t == 0:
            mbarrier_init(bar, u32(32))
        cuda.syncwarp()
        mbarrier_arrive(bar)
        mbarrier_wait(bar, 0)
        cuda.syncwarp()  # done
        if t == 0:
            mbarrier_invalidate(bar)
            bars[0] = i64(7 + k)
            y[k] = i32(bars[0])


def run_reused(kernel):
    y = np.zeros(2, np.int32)
    kernel.simulate(1, 32, [Pointer(y)])
    return y, [7, 8]


REUSED = {
    "still a barrier": ("mbarrier_invalidate(bar)", "pass", Misuse, r"overwritten|is a barrier already"),
    "others still wait": ("cuda.syncwarp()  # done", "pass", (Race, Misuse), "no mbarrier|overwritten|is missing between them"),
    "no barrier any more": ("y[k] = i32(bars[0])", "mbarrier_test(bar, 0)", Misuse, "there is no mbarrier"),
}

CASES = {to_and_fro: (run_to_and_fro, TO_AND_FRO), to_the_neighbour: (run_to_the_neighbour, TO_THE_NEIGHBOUR),
         copies_arrive: (run_copies_arrive, COPIES_ARRIVE), reused: (run_reused, REUSED)}


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_exact(function):
    check(function, CASES[function][0])


@listed(CASES)
def test_broken(function, name):
    check_broken(CASES, function, name)

"""mbarriers and bulk copies, and named ways to break each kernel by one edit: the exact ones pass, every broken one is noticed."""
import numpy as np
import pytest
from mutants import Wrong, check, check_broken, listed, schedule  # noqa: F401

from dnnkern.device import cuda, f32, i32, i64, u32
from dnnkern.device.cluster import cluster_rank, cluster_sync
from dnnkern.device.mbarrier import (fence_async, fence_async_shared, fence_mbarrier_init, mbarrier_arrive,  # noqa: F401
                                     mbarrier_arrive_expect, mbarrier_free_remote, mbarrier_init, mbarrier_wait)
from dnnkern.device.sim import Deadlock, Map, Misuse, Pointer, Race
from dnnkern.device.tma import (bulk_commit, bulk_load, bulk_reduce_add_f32, bulk_store, make_bulk_wait,  # noqa: F401
                                make_bulk_wait_read, make_tma_load, tensor_map_address, tma_load_2d, tma_load_3d, tma_load_im2col_4d,
                                tma_reduce_add_2d, tma_store_2d)
from dnnkern.device.vec import address, shared_address
from dnnkern.host.tensormap import Im2colMap, TensorMap

WORDS, STAGES, STEPS = 64, 2, 5  # of a box of 8 x 8 floats; of a ring; of its use
BYTES = 4 * WORDS
drain, drain_read, drain_read_but_one = make_bulk_wait(0), make_bulk_wait_read(0), make_bulk_wait_read(1)
multicast_2d = make_tma_load(2, multicast=True)


def box_map(x, swizzle=0):
    """A map of boxes of 8 rows, 8 columns wide or as wide as the swizzle."""
    return Map(Pointer(x), TensorMap("float32", x.shape, (x.shape[1], 1), (8, swizzle // 4 or 8), swizzle))


def ring(x, y):
    """A producer thread, a warp of consumers, stages in between."""
    s = cuda.shared.array(STAGES * WORDS, f32, alignment=128)
    bars = cuda.shared.array(2 * STAGES, i64)
    t, at = i32(cuda.threadIdx.x), tensor_map_address(x)
    full, empty = shared_address(bars, 0), shared_address(bars, STAGES)
    if t == 0:
        for k in range(STAGES):
            mbarrier_init(full + 8 * k, u32(1))
            mbarrier_init(empty + 8 * k, u32(32))
        fence_mbarrier_init()
    cuda.syncthreads()
    if t == 0:
        for k in range(STEPS):
            i, parity = k % STAGES, k // STAGES & 1
            mbarrier_wait(empty + 8 * i, parity ^ 1)
            mbarrier_arrive_expect(full + 8 * i, BYTES)
            tma_load_2d(shared_address(s, i * WORDS), at, full + 8 * i, 0, 8 * k)
    elif t >= 32:
        for k in range(STEPS):
            i, parity = k % STAGES, k // STAGES & 1
            mbarrier_wait(full + 8 * i, parity)
            for j in range(t - 32, WORDS, 32):
                y[k * WORDS + j] = s[i * WORDS + j] + f32(1)
            mbarrier_arrive(empty + 8 * i)


def run_ring(kernel):
    x, y = np.arange(8 * STEPS * 16, dtype=np.float32).reshape(-1, 16), np.zeros((STEPS * 8, 8), np.float32)
    kernel.simulate(1, 64, [box_map(x), Pointer(y)])
    return y, x[:, :8] + 1


RING = {
    "full not waited for": ("mbarrier_wait(full + 8 * i, parity)", "pass", (Race, Misuse), r"shared array s\[|runs ahead"),
    "empty not waited for": ("mbarrier_wait(empty + 8 * i, parity ^ 1)", "pass", (Race, Misuse),
                             r"shared array s\[|started in phase|pending"),
    "producer begins with the wrong parity": ("parity ^ 1)", "parity)", Deadlock,
                                              r"mbarrier_wait parity 0 on mbarrier shared array bars\[2\]"),
    "consumers' parity never flips": ("mbarrier_wait(full + 8 * i, parity)", "mbarrier_wait(full + 8 * i, 0)", (Race, Misuse),
                                      r"s\[|bars\["),
    "producer's parity never flips": ("mbarrier_wait(empty + 8 * i, parity ^ 1)", "mbarrier_wait(empty + 8 * i, 1)",
                                      (Race, Misuse, Deadlock), r"s\[|bars\["),
    "too many bytes expected": ("(full + 8 * i, BYTES)", "(full + 8 * i, BYTES + 16)", Deadlock,
                                "0 of 1 arrivals pending, 16 bytes outstanding"),
    "too few bytes expected": ("(full + 8 * i, BYTES)", "(full + 8 * i, BYTES - 16)", Misuse,
                               "16 bytes more than expected have landed in phase 0"),
    "no bytes expected": ("mbarrier_arrive_expect(full + 8 * i, BYTES)", "mbarrier_arrive(full + 8 * i)", (Race, Misuse), r"s\[|in phase"),
    "expected for another stage": ("mbarrier_arrive_expect(full + 8 * i", "mbarrier_arrive_expect(full + 8 * (i ^ 1)",
                                   (Deadlock, Misuse, Race), "bytes outstanding|more than expected|in phase"),
    "signalled at another stage": ("at, full + 8 * i,", "at, full + 8 * (i ^ 1),", (Deadlock, Misuse, Race), "outstanding|in phase|s"),
    "initialisation not fenced": ("fence_mbarrier_init()", "pass", Race, "a fence_mbarrier_init is missing"),
    "stage given back too early": ("mbarrier_wait(full + 8 * i, parity)",
                                   "mbarrier_wait(full + 8 * i, parity); mbarrier_arrive(empty + 8 * i)", (Race, Misuse, Deadlock),
                                   r"shared array s\[|ahead"),
    "stage given back by one lane for all": ("mbarrier_init(empty + 8 * k, u32(32))", "mbarrier_init(empty + 8 * k, u32(1))",
                                             (Race, Misuse, Deadlock), r"shared array s\[|ahead"),
    "stage never given back": ("mbarrier_arrive(empty + 8 * i)", "pass", Deadlock, r"bars\[2\].*32 of 32 arrivals pending"),
    "all lanes load": ("if t == 0:\n        for k in range(STEPS):", "if t < 32:\n        for k in range(STEPS):", (Race, Misuse),
                       r"shared array s\[|arrivals|outstanding|bytes more"),
    "one copy more than anybody waits for": ("if t == 0:\n        for k in range(STEPS):", "if t == 0:\n        for k in range(STEPS + 1):",
                                             Misuse,
                                             "ends while a copy of 256 bytes of tensor map x to mbarrier shared array .* is under way"),
    "coordinates exchanged": ("full + 8 * i, 0, 8 * k)", "full + 8 * i, 8 * k, 0)", Wrong, None),
    "begins between two pieces of 16 bytes": ("full + 8 * i, 0, 8 * k)", "full + 8 * i, 6, 8 * k)", Misuse, "begin 24 bytes into a row"),
    "coordinates of another rank": ("tma_load_2d(", "tma_load_3d(", Misuse, "tensor map x is a tiled map of rank 2"),
    "destination misaligned": ("shared_address(s, i * WORDS)", "shared_address(s, i * WORDS + 4)", Misuse, "are not aligned to 128 bytes"),
    "destination outside": ("shared_address(s, i * WORDS)", "shared_address(s, i * WORDS) + 0x10000", Misuse, "or outside the block's"),
    "both stages at one place": ("shared_address(s, i * WORDS)", "shared_address(s, 0)", (Race, Wrong), r"shared array s\["),
    "barriers where a stage is": ("full, empty = shared_address(bars, 0)", "full, empty = shared_address(s, 0)", (Race, Misuse),
                                  r"shared array s\[[0-3]\]|has overwritten"),
    "not a map": ("tensor_map_address(x)", "address(y, 0)", Misuse, "expected tensor_map_address"),
    "a parity for a barrier": ("mbarrier_wait(full + 8 * i, parity)", "mbarrier_wait(full + 8 * STAGES * 2 + 8 * i, parity)", Misuse,
                               "there is no mbarrier at"),
}


def epilogue(x, y):
    """Two boxes through one staging buffer."""
    s = cuda.shared.array(WORDS, f32, alignment=128)
    t, at = i32(cuda.threadIdx.x), tensor_map_address(y)
    for k in range(3):
        if t == 0:
            drain_read()  # the store before
        cuda.syncthreads()  # has read it
        for j in range(t, WORDS, 64):
            s[j] = x[k * WORDS + j]
        fence_async_shared()
        cuda.syncthreads()  # staged
        if t == 0:
            tma_store_2d(at, shared_address(s, 0), 8, 8 * k)
            bulk_commit()
    if t == 0:
        drain_read()  # the last


def run_epilogue(kernel):
    x, y = np.arange(3 * WORDS, dtype=np.float32), np.zeros((24, 16), np.float32)
    kernel.simulate(1, 64, [Pointer(x), box_map(y)])
    return y, np.hstack([np.zeros((24, 8)), x.reshape(24, 8)])


EPILOGUE = {
    "no fence": ("fence_async_shared()", "pass", Race, "a fence_async is missing"),
    "fence before the writes": ("for j in range(t, WORDS, 64):\n            s[j] = x[k * WORDS + j]\n        fence_async_shared()",
                                "fence_async_shared()\n        for j in range(t, WORDS, 64):\n            s[j] = x[k * WORDS + j]", Race,
                                "a fence_async is missing"),
    "one thread fences for itself before the barrier": ("fence_async_shared()", "t or fence_async_shared()", Race,
                                                        "a fence_async is missing"),
    "no barrier before the store": ("cuda.syncthreads()  # staged", "pass", (Race, Misuse),
                                    r"shared array s\[\d+\].*bulk store of thread 0 reads it|nothing has written"),
    "a fence is no barrier for others": ("cuda.syncthreads()  # staged", "cuda.syncwarp()", (Race, Misuse),
                                         r"has not synchronised with that thread|nothing has written|make_bulk_wait_read"),
    "staging used again at once": ("drain_read()  # the store before", "pass", Race, r"bulk store of thread 0.*make_bulk_wait_read"),
    "staging used again one store early": ("drain_read()  # the store before", "drain_read_but_one()", Race, "make_bulk_wait_read"),
    "only one thread knows that it was read": ("cuda.syncthreads()  # has read it", "pass", Race, r"shared array s\["),
    "not committed": ("bulk_commit()", "pass", (Race, Misuse), r"make_bulk_wait_read|returns with a bulk store that it has not committed"),
    "exit before the store has read": ("drain_read()  # the last", "pass", Misuse, "returns with a bulk store that it has not waited for"),
    "exit one store early": ("drain_read()  # the last", "drain_read_but_one()", Misuse,
                             "returns with a bulk store that it has not waited for"),
    "somebody else waits": ("if t == 0:\n        drain_read()", "if t == 1:\n        drain_read()", Misuse, "has not waited for"),
    "source misaligned": ("shared_address(s, 0)", "shared_address(s, 16)", Misuse, "not aligned to 128 bytes or outside"),
    "a part nobody wrote": ("range(t, WORDS, 64)", "range(t, WORDS - 8, 64)", Misuse,
                            r"reads shared array s\[56\].*which nothing has written"),
    "stored where the one before is": ("8, 8 * k)", "8, 8 * (k // 2))", Race, r"argument|make_bulk_wait"),
    "an address for a map": ("tma_store_2d(at,", "tma_store_2d(address(x, 0),", Misuse, "expected tensor_map_address"),
    "all threads store": ("if t == 0:\n            tma_store_2d", "if t < 2:\n            tma_store_2d", (Race, Misuse),
                          "bulk store|has not"),
}


def through_global(x, y):
    """Boxes stored to global memory, read again by copies and by threads."""
    s = cuda.shared.array(WORDS, f32, alignment=128)
    back = cuda.shared.array(WORDS, f32, alignment=128)
    bars = cuda.shared.array(1, i64)
    t, full = i32(cuda.threadIdx.x), shared_address(bars, 0)
    x[64 + t] = f32(t)
    fence_async()  # global
    if t == 0:
        mbarrier_init(full, u32(1))
        fence_mbarrier_init()
    cuda.syncthreads()
    if t == 0:
        mbarrier_arrive_expect(full, BYTES)
        bulk_load(shared_address(s, 0), address(x, 64), BYTES, full)
        mbarrier_wait(full, 0)  # first
        bulk_store(address(x, 0), shared_address(s, 0), BYTES)
        bulk_reduce_add_f32(address(x, 128), shared_address(s, 0), BYTES)
        bulk_commit()
        drain()  # complete
        mbarrier_arrive_expect(full, BYTES)
        bulk_load(shared_address(back, 0), address(x, 0), BYTES, full)
    cuda.syncthreads()  # told
    mbarrier_wait(full, 1)
    y[t] = back[t] + x[t] + x[128 + t]


def run_through_global(kernel):
    x, y = np.ones(192, np.float32), np.zeros(64, np.float32)
    kernel.simulate(1, 64, [Pointer(x), Pointer(y)])
    return y, 3 * np.arange(64) + 1


THROUGH_GLOBAL = {
    "written but not fenced": ("fence_async()  # global", "pass", Race, r"argument x\[\d+\].*a fence_async is missing"),
    "fenced for shared memory only": ("fence_async()  # global", "fence_async_shared()", Race,
                                      r"argument x\[\d+\].*a fence_async is missing"),
    "load not waited for": ("mbarrier_wait(full, 0)  # first", "pass", (Race, Misuse), r"shared array s\[|pending"),
    "complete was not waited for": ("drain()  # complete", "drain_read()", Race, r"argument x\[\d+\].*make_bulk_wait\)"),
    "nothing was waited for": ("drain()  # complete", "pass", (Race, Misuse), r"argument x\[\d+\].*make_bulk_wait\)|has not waited"),
    "only one thread knows": ("cuda.syncthreads()  # told", "pass", (Race, Misuse), r"argument x\[\d+\]|shared array back\[|runs ahead"),
    "second load not waited for": ("mbarrier_wait(full, 1)", "pass", (Race, Misuse), r"shared array back\[|under way"),
    "stored over what is still loaded": ("bulk_load(shared_address(s, 0), address(x, 64)",
                                         "bulk_load(shared_address(back, 0), address(x, 64)", (Misuse, Race),
                                         r"shared array s\[0\].*which nothing has written|shared array"),
    "added to where it is stored": ("address(x, 128), shared", "address(x, 0), shared", Race, r"argument x\[0\].*updates it atomically"),
    "bytes no multiple of 16": ("bulk_load(shared_address(s, 0), address(x, 64), BYTES",
                                "bulk_load(shared_address(s, 0), address(x, 64), BYTES - 8", Misuse,
                                "248 bytes at global address .* expected multiples of 16"),
    "misaligned in global memory": ("address(x, 128)", "address(x, 127)", Misuse, "expected multiples of 16"),
    "beyond the end": ("address(x, 128), shared", "address(x, 144), shared", Misuse, "64 bytes behind its memory"),
    "no memory there": ("bulk_store(address(x, 0)", "bulk_store(64", Misuse, "no memory at global address 0x40"),
    "misaligned in shared memory": ("bulk_store(address(x, 0), shared_address(s, 0)", "bulk_store(address(x, 0), shared_address(s, 2)",
                                    Misuse, "not aligned to 16 bytes"),
}


def cluster_ring(x, y):
    """Each block of a pair loads half of a tile for both."""
    s = cuda.shared.array(STAGES * 2 * WORDS, f32, alignment=128)
    bars = cuda.shared.array(2 * STAGES, i64)
    t, rank, at = i32(cuda.threadIdx.x), cluster_rank(), tensor_map_address(x)
    full, empty = shared_address(bars, 0), shared_address(bars, STAGES)
    if t == 0:
        for k in range(STAGES):
            mbarrier_init(full + 8 * k, u32(1))
            mbarrier_init(empty + 8 * k, u32(2))
        fence_mbarrier_init()
    cluster_sync()  # ready
    if t == 0:
        for k in range(STEPS):
            i, parity = k % STAGES, k // STAGES & 1
            mbarrier_wait(empty + 8 * i, parity ^ 1)
            mbarrier_arrive_expect(full + 8 * i, 2 * BYTES)
            multicast_2d(shared_address(s, (2 * i + rank) * WORDS), at, full + 8 * i, 8 * rank, 8 * k, u32(3))
    elif t >= 32:
        for k in range(STEPS):
            i, parity = k % STAGES, k // STAGES & 1
            mbarrier_wait(full + 8 * i, parity)
            for j in range(t - 32, 2 * WORDS, 32):
                y[(rank * STEPS + k) * 2 * WORDS + j] = s[i * 2 * WORDS + j]
            cuda.syncwarp()
            if t < 34:
                mbarrier_free_remote(empty + 8 * i, t - 32)
    cluster_sync()  # done


def run_cluster_ring(kernel):
    x, y = np.arange(8 * STEPS * 16, dtype=np.float32).reshape(-1, 16), np.zeros((2, STEPS, 2, 8, 8), np.float32)
    kernel.simulate(2, 64, [box_map(x), Pointer(y)], cluster=2)
    return y, np.stack([x.reshape(STEPS, 8, 2, 8).transpose(0, 2, 1, 3)] * 2)


CLUSTER_RING = {
    "mask without the other block": ("8 * k, u32(3))", "8 * k, u32(1 << rank))", Deadlock, r"bars\[0\].*256 bytes outstanding"),
    "mask of the other block only": ("8 * k, u32(3))", "8 * k, u32(2 >> rank))", Deadlock, r"bars\[0\].*256 bytes outstanding"),
    "mask of block 0": ("8 * k, u32(3))", "8 * k, u32(1))", Deadlock, "512 bytes outstanding"),
    "mask beyond the cluster": ("8 * k, u32(3))", "8 * k, u32(7))", Misuse, "mask 0x7 in a cluster of 2 blocks"),
    "no mask": ("8 * k, u32(3))", "8 * k, u32(0))", Misuse, "mask 0x0"),
    "both load the same half": ("(2 * i + rank) * WORDS", "2 * i * WORDS", Race, r"shared array s\[\d+\].*of block \(\d, 0, 0\)"),
    "expects its own half only": ("2 * BYTES)", "BYTES)", (Misuse, Race), "in phase|more than expected|shared array s"),
    "others are not ready": ("cluster_sync()  # ready", "cuda.syncthreads()", (Race, Misuse), "a cluster barrier is missing|no mbarrier"),
    "initialisation not fenced": ("fence_mbarrier_init()", "pass", Race, "a fence_mbarrier_init is missing"),
    "waits for its own consumers only": ("mbarrier_init(empty + 8 * k, u32(2))", "mbarrier_init(empty + 8 * k, u32(1))",
                                         (Race, Misuse, Deadlock), r"shared array s\[|ahead"),
    "stage given back to its own block only": ("if t < 34:\n                mbarrier_free_remote(empty + 8 * i, t - 32)",
                                               "if t < 34:\n                mbarrier_free_remote(empty + 8 * i, rank)",
                                               (Race, Misuse, Deadlock), r"shared array s\[|runs ahead|ends while|pending"),
    "stage given back to the other only": ("mbarrier_free_remote(empty + 8 * i, t - 32)",
                                           "t - 32 == rank or mbarrier_free_remote(empty + 8 * i, t - 32)", Deadlock,
                                           r"bars\[2\].*1 of 2 arrivals pending"),
    "arrives at a rank there is not": ("mbarrier_free_remote(empty + 8 * i, t - 32)", "mbarrier_free_remote(empty + 8 * i, t - 31)", Misuse,
                                       "rank 2 in a cluster of 2 blocks"),
    "lanes still read": ("cuda.syncwarp()", "pass", Race, r"shared array s\[\d+\]"),
    "empty not waited for": ("mbarrier_wait(empty + 8 * i, parity ^ 1)", "pass", (Race, Misuse), r"shared array s\[|pending|in phase"),
    "a block ends before the other has arrived": ("cluster_sync()  # done", "pass", Race,
                                                  "which ends, and nothing orders the two|has ended"),
}


def additions(y):
    """Blocks add to the same box."""
    s = cuda.shared.array(WORDS, f32, alignment=128)
    t, at = i32(cuda.threadIdx.x), tensor_map_address(y)
    for j in range(t, WORDS, 32):
        s[j] = f32(j + cuda.blockIdx.x)
    fence_async_shared()
    cuda.syncwarp()
    if t == 0:
        tma_reduce_add_2d(at, shared_address(s, 0), 0, 0)
        bulk_commit()
        drain_read()


def run_additions(kernel, blocks=3):
    y = np.ones((8, 8), np.float32)
    kernel.simulate(blocks, 32, [box_map(y)])
    return y.reshape(-1), 1 + 3 * np.arange(WORDS) + 3


ADDITIONS = {
    "stored instead": ("tma_reduce_add_2d", "tma_store_2d", Race, r"argument y\[\d+\]"),
    "no fence": ("fence_async_shared()", "pass", Race, "a fence_async is missing"),
    "no barrier": ("cuda.syncwarp()", "pass", (Race, Misuse), r"shared array s\[\d+\]"),
    "exit before it has read": ("drain_read()", "pass", Misuse, "has not waited for"),
    "changed before it has read": ("drain_read()", "s[0] = f32(0); drain_read()", Race, r"shared array s\[0\].*make_bulk_wait_read"),
}


def swizzled(x, y):
    """A swizzled box, read where its 16-byte pieces lie."""
    s = cuda.shared.array(256, f32, alignment=1024)
    bars = cuda.shared.array(1, i64)
    t, full = i32(cuda.threadIdx.x), shared_address(bars, 0)
    if t == 0:
        mbarrier_init(full, u32(1))
        fence_mbarrier_init()
        mbarrier_arrive_expect(full, 1024)
        tma_load_2d(shared_address(s, 0), tensor_map_address(x), full, 0, 0)
    cuda.syncthreads()
    mbarrier_wait(full, 0)
    for row in range(8):
        y[32 * row + t] = s[32 * row + ((t >> 2) ^ row) * 4 + (t & 3)]


def run_swizzled(kernel):
    x, y = np.arange(256, dtype=np.float32).reshape(8, 32), np.zeros((8, 32), np.float32)
    kernel.simulate(1, 32, [box_map(x, 128), Pointer(y)])
    return y, x


SWIZZLED = {
    "read without the swizzle": ("((t >> 2) ^ row)", "(t >> 2)", Wrong, None),
    "read by another swizzle": ("((t >> 2) ^ row)", "((t >> 2) ^ (row >> 1))", Wrong, None),
    "a place that is not where the pattern begins": ("cuda.shared.array(256, f32, alignment=1024)",
                                                     "cuda.shared.array(256, f32, alignment=128)", Wrong, None),
}


def pixels(x, y):
    """A column of pixels for one tap of a 3 x 3 filter."""
    s = cuda.shared.array(128, f32, alignment=128)
    bars = cuda.shared.array(1, i64)
    t, full = i32(cuda.threadIdx.x), shared_address(bars, 0)
    if t == 0:
        mbarrier_init(full, u32(1))
        fence_mbarrier_init()
        mbarrier_arrive_expect(full, 512)
        tma_load_im2col_4d(shared_address(s, 0), tensor_map_address(x), full, 0, -1, -1, 0, 2, 1)
    cuda.syncthreads()
    mbarrier_wait(full, 0)
    for k in range(t, 128, 32):
        y[k] = s[k]


def run_pixels(kernel):
    x, y = np.arange(1, 4 * 6 * 8 + 1, dtype=np.float32).reshape(1, 4, 6, 8), np.zeros((16, 8), np.float32)
    kernel.simulate(1, 32, [Map(Pointer(x), Im2colMap("float32", x.shape, (192, 48, 8, 1), (-1, -1), (-1, -1), 8, 16)), Pointer(y)])
    return y, np.pad(x[0], ((0, 1), (0, 1), (0, 0)))[:, 1:7].reshape(-1, 8)[:16]


PIXELS = {
    "offsets exchanged": ("0, 2, 1)", "0, 1, 2)", Wrong, None),
    "begins outside the box of pixels": ("0, -1, -1, 0,", "0, -2, -1, 0,", Misuse, "not in the box of pixels: 6 from -1 on"),
    "negative offset": ("0, 2, 1)", "0, -1, 1)", Misuse, r"offsets \[-1, 1\]; expected 0 to 255"),
    "a tiled copy": ("tma_load_im2col_4d", "tma_load_2d", Misuse, "tensor map x is an im2col map of rank 4"),
    "bytes of the pixels inside only": ("(full, 512)", "(full, 448)", Misuse, "64 bytes more than expected"),
}


CASES = {ring: (run_ring, RING), epilogue: (run_epilogue, EPILOGUE), through_global: (run_through_global, THROUGH_GLOBAL),
         cluster_ring: (run_cluster_ring, CLUSTER_RING), additions: (run_additions, ADDITIONS), swizzled: (run_swizzled, SWIZZLED),
         pixels: (run_pixels, PIXELS)}


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_exact(function):
    check(function, CASES[function][0])


@listed(CASES)
def test_broken(function, name):
    check_broken(CASES, function, name)

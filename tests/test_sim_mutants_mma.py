"""Kernels of warp-wide matrix instructions, named barriers and clusters, and named ways to break them: see `mutants`."""
import ml_dtypes
import numpy as np
import pytest
from mutants import Wrong, check, check_broken, listed, schedule  # noqa: F401

from dnnkern.device import cuda, f32, i32, u32
from dnnkern.device.barrier import barrier_arrive, barrier_sync
from dnnkern.device.cluster import (cluster_arrive, cluster_arrive_relaxed, cluster_rank, cluster_size, cluster_sync,  # noqa: F401
                                    cluster_wait, load_remote_f32, remote_address, store_remote_f32)
from dnnkern.device.ldmatrix import ldmatrix_x2, ldmatrix_x2_trans, ldmatrix_x4  # noqa: F401
from dnnkern.device.mma import make_mma
from dnnkern.device.numeric import floats_to_bfloat162
from dnnkern.device.sim import Deadlock, Misuse, Pointer, Race
from dnnkern.device.stmatrix import stmatrix_x2, stmatrix_x2_trans  # noqa: F401
from dnnkern.device.vec import shared_address

mma = make_mma("bfloat16")
K = 48


def gemm(x, y, z):
    """z [32, 8] = x [32, K] y [K, 8] of bfloat16: two warps of 16 rows, tiles of 16 along k."""
    a = cuda.shared.array(32 * 8, u32, alignment=16)
    b = cuda.shared.array(16 * 4, u32, alignment=16)
    fa, fb, acc = cuda.local.array(4, u32), cuda.local.array(2, u32), cuda.local.array(4, f32)
    t = i32(cuda.threadIdx.x)
    warp, lane = i32(t // 32), i32(t % 32)
    for e in range(4):
        acc[e] = f32(0)
    for k in range(K // 16):
        for i in range(4):
            a[i32(t + 64 * i)] = x[i32((t // 8 + 8 * i) * (K // 2) + 8 * k + t % 8)]
        b[t] = y[i32(64 * k + t)]
        cuda.syncthreads()  # filled
        ldmatrix_x4(fa, 0, shared_address(a, i32((16 * warp + lane % 16) * 8 + lane // 16 * 4)))
        ldmatrix_x2_trans(fb, 0, shared_address(b, i32(lane % 16 * 4)))
        mma(acc, 0, fa, 0, fb, 0)
        cuda.syncthreads()  # used
    for e in range(4):
        z[i32((16 * warp + lane // 4 + 8 * (e // 2)) * 8 + 2 * (lane % 4) + e % 2)] = acc[e]


def run_gemm(kernel):
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-4, 5, shape).astype(ml_dtypes.bfloat16) for shape in ((32, K), (K, 8)))
    z = np.full((32, 8), np.nan, np.float32)
    kernel.simulate(1, 64, [Pointer(x.view(np.uint32)), Pointer(y.view(np.uint32)), Pointer(z)])
    return z, x.astype(np.float32) @ y.astype(np.float32)


GEMM = {
    "tile not waited for": ("cuda.syncthreads()  # filled", "pass", Race, r"shared array [ab]\[\d+\].*is missing between them"),
    "only the own warp waited for": ("cuda.syncthreads()  # filled", "cuda.syncwarp()", Race, r"shared array [ab]\[\d+\].*a syncthreads"),
    "tile filled again too early": ("cuda.syncthreads()  # used", "pass", Race, r"shared array [ab]\[\d+\]"),
    "rows of half the tile": ("lane % 16) * 8", "lane % 8) * 8", Wrong, None),
    "second half of k left out": ("lane // 16 * 4", "0", Wrong, None),
    "matrices in another order": ("lane % 16) * 8 + lane // 16 * 4", "lane // 16 * 8 + lane % 8) * 8 + lane % 16 // 8 * 4", Wrong, None),
    "rows beyond the arrays": ("(16 * warp + lane %", "(17 * warp + 24 + lane %", Misuse, "ldmatrix_x4: the row .* outside the block's"),
    "rows at a multiple of 4 only": ("lane // 16 * 4))", "lane // 16 * 3))", Misuse, "ldmatrix_x4: the row .* of lane 16, is misaligned"),
    "B not transposed": ("ldmatrix_x2_trans(fb", "ldmatrix_x2(fb", Wrong, None),
    "half of A": ("ldmatrix_x4(fa", "ldmatrix_x2(fa", Wrong, None),
    "31 lanes load": ("ldmatrix_x4(fa", "if lane != 7: ldmatrix_x4(fa", Misuse, "lane . of warp . is here, while lanes"),
    "31 lanes multiply": ("mma(acc", "if lane != 7: mma(acc", (Deadlock, Misuse), r"lanes \[7\] have not arrived|while lanes"),
    "lanes multiply in two places": ("mma(acc", "if lane < 16: mma(acc, 0, fa, 0, fb, 0)\n        else: mma(acc",
                                     Misuse, "executes such an instruction as one"),
    "a lane has gone": ("    warp, lane =", "    if t == 40: return\n    warp, lane =", Misuse, r"lanes \[8\] of warp 1 have returned"),
    "operands exchanged": ("fa, 0, fb, 0)", "fb, 0, fa, 0)", Misuse, "elements 0 .. 3 of a local array of 2"),
    "fragment from its second word on": ("fa, 0, fb, 0)", "fa, 1, fb, 0)", Misuse, "elements 1 .. 4 of a local array of 4"),
    "accumulator not cleared": ("acc[e] = f32(0)", "pass", Wrong, None),
    "accumulator's rows alternate": ("(e // 2)) * 8 + 2 * (lane % 4) + e % 2", "(e % 2)) * 8 + 2 * (lane % 4) + e // 2", Wrong, None),
    "accumulator of another type": ("cuda.local.array(4, f32)", "cuda.local.array(4, i32)", Misuse, "local array of float32 is expected"),
    "both warps the same rows": ("x4(fa, 0, shared_address(a, i32((16 * warp + ", "x4(fa, 0, shared_address(a, i32((", Wrong, None),
}


def transposed(x, y):
    """y [8, 64] = x [64, 8] transposed, in bfloat16: each of four warps through a tile of its own, twice."""
    tile = cuda.shared.array(4 * 64, u32, alignment=16)
    t = i32(cuda.threadIdx.x)
    warp, lane = i32(t // 32), i32(t % 32)
    for k in range(2):
        row = i32(16 * warp + lane // 4)
        w0 = floats_to_bfloat162(x[i32(8 * row + 2 * (lane % 4))], x[i32(8 * row + 2 * (lane % 4) + 1)])
        w1 = floats_to_bfloat162(x[i32(8 * row + 64 + 2 * (lane % 4))], x[i32(8 * row + 64 + 2 * (lane % 4) + 1)])
        at = shared_address(tile, i32(64 * warp + lane % 8 * 8 + lane // 8 % 2 * 4))
        stmatrix_x2_trans(at, w0, w1)
        cuda.syncwarp()  # stored
        for i in range(2):
            y[i32(256 * k + (lane // 8 + 4 * i) * 32 + 8 * warp + lane % 8)] = tile[i32(64 * warp + lane + 32 * i)]
        cuda.syncwarp()  # read


def run_transposed(kernel):
    x = np.arange(512, dtype=np.float32).reshape(64, 8) % 251
    y = np.zeros((2, 8, 64), ml_dtypes.bfloat16)
    kernel.simulate(1, 128, [Pointer(x), Pointer(y.view(np.uint32))])
    return y.astype(np.float32), np.stack([x.T, x.T])


STORE = {
    "store not waited for": ("cuda.syncwarp()  # stored", "pass", Race, r"shared array tile\[\d+\].*a syncwarp"),
    "shuffle for syncwarp": ("cuda.syncwarp()  # stored", "cuda.shfl_sync(0xFFFFFFFF, w0, 0)", Race, r"shared array tile\[\d+\]"),
    "stored again too early": ("cuda.syncwarp()  # read", "pass", Race, r"shared array tile\[\d+\]"),
    "not transposed": ("stmatrix_x2_trans(at", "stmatrix_x2(at", Wrong, None),
    "words exchanged": ("at, w0, w1", "at, w1, w0", Wrong, None),
    "one row twice": ("lane // 8 % 2 * 4", "0", Misuse, r"stmatrix_x2_trans: lanes \[0, 8\] give the same row"),
    "rows of 12 bytes": ("lane // 8 % 2 * 4", "lane // 8 % 2 * 3", Misuse, "of lane 8, is misaligned"),
    "one tile for all": ("tile, i32(64 * warp + lane % 8 * 8", "tile, i32(lane % 8 * 8", (Race, Wrong), None),
    "tile too small": ("cuda.shared.array(4 * 64", "cuda.shared.array(4 * 63", Misuse, "outside the block's"),
    "some lanes": ("stmatrix_x2_trans(at, w0, w1)", "if lane < 24: stmatrix_x2_trans(at, w0, w1)", Deadlock, "stmatrix_x2_trans of warp"),
}

FULL, EMPTY, STEPS = 1, 2, 3


def pipeline(x, y):
    """A group of two warps fills a tile, another one reads it backwards."""
    tile = cuda.shared.array(64, f32)
    t = i32(cuda.threadIdx.x)
    if t < 64:
        for k in range(STEPS):
            barrier_sync(EMPTY, 128)  # wait
            tile[t] = x[i32(64 * k + t)]
            barrier_arrive(FULL, 128)  # filled
    else:
        barrier_arrive(EMPTY, 128)  # first
        for k in range(STEPS):
            barrier_sync(FULL, 128)  # wait for it
            y[i32(64 * k + t - 64)] = tile[127 - t]
            if k < STEPS - 1:
                barrier_arrive(EMPTY, 128)  # read


def run_pipeline(kernel):
    x, y = np.arange(64 * STEPS, dtype=np.float32), np.zeros((STEPS, 64), np.float32)
    kernel.simulate(1, 128, [Pointer(x), Pointer(y)])
    return y, x.reshape(STEPS, 64)[:, ::-1]


PIPELINE = {
    "nobody waits for the readers": ("barrier_sync(EMPTY, 128)  # wait", "barrier_arrive(EMPTY, 128)", (Race, Misuse),
                                     r"shared array tile\[\d+\]|a second time"),
    "nobody waits for the tile": ("barrier_sync(FULL, 128)  # wait for it", "barrier_arrive(FULL, 128)", (Race, Misuse, Deadlock),
                                  r"shared array tile\[\d+\]|a second time"),
    "announced before it is filled": ("tile[t] = x[i32(64 * k + t)]\n            barrier_arrive(FULL, 128)  # filled",
                                      "barrier_arrive(FULL, 128)\n            tile[t] = x[i32(64 * k + t)]",
                                      Race, r"shared array tile\[\d+\]"),
    "count of the own group": ("barrier_sync(FULL, 128)  # wait for it", "barrier_sync(FULL, 64)", (Misuse, Race),
                               r"comes for \d+ threads to barrier 1|shared array tile"),
    "count of another group more": ("barrier_sync(FULL, 128)  # wait for it", "barrier_sync(FULL, 192)",
                                    Misuse, "up to the 128 of the block"),
    "count of half a warp": ("barrier_sync(FULL, 128)  # wait for it", "barrier_sync(FULL, 112)", Misuse, "a multiple of 32"),
    "another barrier": ("barrier_arrive(FULL, 128)  # filled", "barrier_arrive(FULL + 2, 128)", (Deadlock, Misuse),
                        "barrier 1: 64 of 128 threads have arrived|a second time"),
    "the same barrier for both": ("barrier_arrive(EMPTY, 128)  # read", "barrier_arrive(FULL, 128)", (Deadlock, Misuse, Race), None),
    "barrier 16": ("barrier_sync(EMPTY, 128)  # wait", "barrier_sync(16, 128)", Misuse, "barrier 16; a block has 0 to 15"),
    "readers say nothing": ("barrier_arrive(EMPTY, 128)  # read", "pass", Deadlock, "barrier 2: 64 of 128 threads have arrived"),
    "nobody begins": ("barrier_arrive(EMPTY, 128)  # first", "pass", Deadlock, "barrier 2: 64 of 128 threads have arrived"),
    "syncthreads for one side": ("barrier_sync(EMPTY, 128)  # wait", "cuda.syncthreads()", Deadlock, "syncthreads"),
    "a lane stays away": ("barrier_sync(FULL, 128)  # wait for it", "if t != 70: barrier_sync(FULL, 128)", (Misuse, Race, Deadlock),
                          r"while lanes|lanes \[6\] have not arrived|tile"),
    "a warp reads too early": ("barrier_sync(FULL, 128)  # wait for it", "if t < 96: barrier_sync(FULL, 128)", (Race, Deadlock, Misuse),
                               r"tile\[\d+\]|barrier"),
}


def ring(x, y, z):
    """y: the right neighbour's part of x backwards; z: the left one's; blocks are a cluster."""
    tile = cuda.shared.array(64, f32)
    box = cuda.shared.array(64, f32)
    t = i32(cuda.threadIdx.x)
    at = i32(64 * cuda.blockIdx.x + t)
    rank, size = cluster_rank(), cluster_size()
    cluster_arrive_relaxed()  # started
    tile[t] = x[at]
    cluster_wait()  # all have
    cluster_arrive()  # written
    box[t] = f32(-1)
    cluster_wait()  # may be read
    y[at] = load_remote_f32(remote_address(shared_address(tile, 63 - t), i32((rank + 1) % size)))
    cluster_sync()  # box is there
    store_remote_f32(remote_address(shared_address(box, t), i32((rank + 1) % size)), tile[t])
    cluster_sync()  # nobody leaves
    z[at] = box[t]


def run_ring(kernel):
    x, y, z = np.arange(512, dtype=np.float32), np.zeros((2, 4, 64), np.float32), np.zeros((2, 4, 64), np.float32)
    kernel.simulate(8, 64, [Pointer(x), Pointer(y), Pointer(z)], cluster=4)
    parts = x.reshape(2, 4, 64)
    return np.stack([y, z]), np.stack([np.roll(parts, -1, 1)[:, :, ::-1], np.roll(parts, 1, 1)])


RING = {
    "no barrier at all before the first access": ("cluster_arrive_relaxed()  # started", "pass", Misuse, "cluster_arrive must come first"),
    "relaxed arrival after the tile is written": ("cluster_arrive()  # written", "cluster_arrive_relaxed()",
                                                  Race, r"shared array tile\[\d+\].*of block.*cluster barrier"),
    "not waited": ("cluster_wait()  # may be read", "pass", Misuse, "cluster_wait must come in between"),
    "waited twice": ("cluster_wait()  # may be read", "cluster_wait(); cluster_wait()", Misuse, "cluster_arrive must come first"),
    "block barrier for the cluster's": ("cluster_sync()  # box is there", "cuda.syncthreads()", Race, r"shared array box\[\d+\].*of block"),
    "box cleared after the barrier": ("cluster_sync()  # box is there", "cluster_sync(); box[t] = f32(-1)",
                                      Race, r"shared array box\[\d+\]"),
    "tile written after the arrival": ("tile[t] = x[at]\n    cluster_wait()  # all have\n    cluster_arrive()  # written",
                                       "cluster_wait()\n    cluster_arrive()\n    tile[t] = x[at]", Race, r"shared array tile\[\d+\]"),
    "box read too early": ("cluster_sync()  # nobody leaves", "cuda.syncthreads()",
                           Race, r"shared array box\[\d+\]|which has ended|which ends"),
    "blocks leave while they are read": ("cluster_sync()  # nobody leaves\n    z[at] = box[t]", "z[at] = f32(0)",
                                         Race, "which has ended|which ends|shared array box"),
    "some blocks stay away": ("cluster_sync()  # nobody leaves", "if rank > 0: cluster_sync()", (Race, Deadlock), None),
    "rank beyond the cluster": ("i32((rank + 1) % size)), tile[t])", "i32(rank + 1)), tile[t])", Misuse, "rank 4 in a cluster of 4 blocks"),
    "rank in the grid": ("i32((rank + 1) % size)), tile[t])", "i32((cuda.blockIdx.x + 1) % 8)), tile[t])",
                         Misuse, r"rank \d in a cluster of 4 blocks"),
    "the wrong neighbour": ("63 - t), i32((rank + 1) % size)", "63 - t), i32((rank + size - 1) % size)", Wrong, None),
    "an address of its own": ("load_remote_f32(remote_address(shared_address(tile, 63 - t), i32((rank + 1) % size)))",
                              "load_remote_f32(shared_address(tile, 63 - t))", (Wrong, Race), None),
    "beyond the arrays": ("shared_address(tile, 63 - t)", "u32(shared_address(box, 63 - t) + u32(256))", Misuse, "outside its"),
    "an address between words": ("shared_address(tile, 63 - t)", "u32(shared_address(tile, 63 - t) + u32(2))", Misuse, "misaligned"),
    "half a warp arrives": ("cluster_arrive()  # written", "if t % 32 < 16: cluster_arrive()",
                            (Misuse, Deadlock), "while lanes|have not arrived"),
    "one warp waits for the others only": ("cluster_sync()  # box is there", "if t < 32: cluster_sync()", (Race, Deadlock, Misuse), None),
}

CASES = {gemm: (run_gemm, GEMM), transposed: (run_transposed, STORE), pipeline: (run_pipeline, PIPELINE), ring: (run_ring, RING)}


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_exact(function):
    check(function, CASES[function][0])


@listed(CASES)
def test_broken(function, name):
    check_broken(CASES, function, name)

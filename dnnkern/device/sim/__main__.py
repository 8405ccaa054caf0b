"""python -m dnnkern.device.sim: what things cost on this machine, best of several runs."""
import time

import numpy as np

from . import STATS, Pointer, config, cuda, f32

T = 16


@cuda.jit
def gemm(a, b, c, n):
    sa, sb = cuda.shared.array((T, T), f32), cuda.shared.array((T, T), f32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.blockIdx.y * T + ty, cuda.blockIdx.x * T + tx
    acc = f32(0)
    for t in range(n // T):
        sa[ty, tx] = a[row * n + t * T + tx]
        sb[ty, tx] = b[(t * T + ty) * n + col]
        cuda.syncthreads()
        for k in range(T):
            acc += sa[ty, k] * sb[k, tx]
        cuda.syncthreads()
    c[row * n + col] = acc


@cuda.jit
def nothing(x):
    pass


@cuda.jit
def barriers(x):
    for _ in range(20):
        cuda.syncthreads()


@cuda.jit
def warp_barriers(x):
    s = cuda.shared.array(256, f32)
    t = cuda.threadIdx.x
    for _ in range(20):
        s[t] = 1
        cuda.syncwarp()


@cuda.jit
def shuffles(x):
    for _ in range(20):
        cuda.shfl_xor_sync(0xFFFFFFFF, 1, 1)


@cuda.jit
def atomics(x):
    for _ in range(20):
        cuda.atomic.add(x, 0, 1)


@cuda.jit
def copies(x):
    i = cuda.grid(1)
    for k in range(20):
        x[i] = x[i]


def best(run, repeats=7):
    """Least seconds of a run."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def main():
    a, b = np.random.default_rng(0).standard_normal((2, 64, 64)).astype(np.float32)
    c = np.zeros_like(a)
    for shared, everything in ((True, True), (True, False), (False, False)):
        config.track_shared, config.track_global = shared, everything
        seconds = best(lambda: gemm.simulate((4, 4), (T, T), [Pointer(a), Pointer(b), Pointer(c), 64]))
        print(f"GEMM 64x64x64, 16 blocks of 16x16; shared memory tracked: {shared}, global: {everything}{seconds:10.3f} s")
    assert abs(c - a @ b).max() < 1e-4
    print(f"    {dict(STATS)}")
    config.track_shared = config.track_global = True
    x = np.zeros(1024, np.float32)
    empty = best(lambda: nothing.simulate(4, 256, [Pointer(x)]))
    print(f"{'a thread that does nothing':50s}{empty / 1024 * 1e6:10.2f} us")
    for kernel, what in ((barriers, "syncthreads, of 256 threads"), (warp_barriers, "syncwarp and a shared store"), (shuffles, "shuffle"),
                         (atomics, "atomic add"), (copies, "global load and store")):
        seconds = best(lambda: kernel.simulate(4, 256, [Pointer(x)])) - empty
        print(f"{what + ', a thread':50s}{seconds / 1024 / 20 * 1e6:10.2f} us")


if __name__ == "__main__":
    main()

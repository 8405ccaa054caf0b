"""Real algorithms, and named ways to break each by one edit of its source: the exact ones pass, every broken one is noticed."""
from functools import partial

import numpy as np
import pytest
from mutants import Wrong, check, check_broken, listed, schedule  # noqa: F401

from dnnkern.device.sim import Deadlock, Misuse, Pointer, Race, cuda, f32, i32

T = 8


def gemm(a, b, c, n):
    sa = cuda.shared.array((T, T), f32)
    sb = cuda.shared.array((T, T), f32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.blockIdx.y * T + ty, cuda.blockIdx.x * T + tx
    acc = f32(0)
    for t in range(n // T):
        sa[ty, tx] = a[row * n + t * T + tx]
        sb[ty, tx] = b[(t * T + ty) * n + col]
        cuda.syncthreads()  # filled
        for k in range(T):
            acc += sa[ty, k] * sb[k, tx]
        cuda.syncthreads()  # used
    c[row * n + col] = acc


def run_gemm(kernel, n=2 * T):
    rng = np.random.default_rng(0)
    a, b = rng.integers(-4, 5, (2, n, n)).astype(np.float32)
    c = np.full((n, n), np.nan, np.float32)
    kernel.simulate((n // T, n // T), (T, T), [Pointer(a), Pointer(b), Pointer(c), n])
    return c, a @ b


GEMM = {
    "no barrier before the tile is used": ("cuda.syncthreads()  # filled", "pass",
                                           Race, r"shared array s[ab]\[\d, \d\].*syncwarp or syncthr|"
                                           r"shared array s[ab]\[\d, \d\].*a syncthreads is missing"),
    "no barrier before the tile is filled again": ("cuda.syncthreads()  # used", "pass", Race, "shared array s[ab]"),
    "syncwarp for syncthreads": ("cuda.syncthreads()  # filled", "cuda.syncwarp()", Race, "a syncthreads is missing between them"),
    "barrier for some threads only": ("cuda.syncthreads()  # filled", "if ty < 4: cuda.syncthreads()", (Misuse, Race, Deadlock),
                                      "wait in another one|shared array s[ab]"),
    "barrier in the divergent inner loop": ("acc += sa", "if k <= ty: cuda.syncthreads()\n            acc += sa",
                                            Misuse, "wait in another one"),
    "tile stored one column to the right": ("sa[ty, tx] =", "sa[ty, tx + 1] =",
                                            Misuse, r"shared array sa: index \(\d, 8\) is outside .*\(8, 8\)"),
    "tile too small": ("sb = cuda.shared.array((T, T), f32)", "sb = cuda.shared.array((T, T - 1), f32)",
                       Misuse, r"shared array sb: index \(\d, 7\)"),
    "operand read beyond its end": ("b[(t * T + ty) * n + col]", "b[(t * T + ty + 1) * n + col]",
                                    Misuse, "argument b: index 25[6-9]|2[67]. is read"),
    "all rows write one output": ("c[row * n + col]", "c[col]", Race, r"argument c\[\d+\].*writes it"),
    "operand transposed": ("sa[ty, k] *", "sa[k, ty] *", Wrong, None),
}


def gemm_double_buffered(a, b, c, n):
    sa = cuda.shared.array((2, T, T), f32)
    sb = cuda.shared.array((2, T, T), f32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.blockIdx.y * T + ty, cuda.blockIdx.x * T + tx
    acc = f32(0)
    sa[0, ty, tx] = a[row * n + tx]
    sb[0, ty, tx] = b[ty * n + col]
    cuda.syncthreads()  # first
    for t in range(n // T):
        if t + 1 < n // T:
            sa[(t + 1) % 2, ty, tx] = a[row * n + (t + 1) * T + tx]
            sb[(t + 1) % 2, ty, tx] = b[((t + 1) * T + ty) * n + col]
        for k in range(T):
            acc += sa[t % 2, ty, k] * sb[t % 2, k, tx]
        cuda.syncthreads()  # next
    c[row * n + col] = acc


GEMM2 = {
    "first tile not waited for": ("cuda.syncthreads()  # first", "pass", Race, r"shared array s[ab]\[0, \d, \d\]"),
    "next tile not waited for": ("cuda.syncthreads()  # next", "pass", Race, r"shared array s[ab]\[[01], \d, \d\]"),
    "one buffer only": ("sb[(t + 1) % 2, ty, tx]", "sb[t % 2, ty, tx]", Race, r"shared array sb\[0, \d, \d\]"),
    "three stages in two buffers": ("acc += sa[t % 2,", "acc += sa[t % 3,", Misuse, r"shared array sa: index \(2, \d, \d\) is outside"),
    "no tile ahead": ("if t + 1 < n // T:", "if False:", Wrong, None),
    "one tile too many": ("if t + 1 < n // T:", "if True:", Misuse, "argument [ab]: index .* is read"),
}


def shuffle_reduce(x, y):
    s = cuda.shared.array(4, f32)
    t = cuda.threadIdx.x
    v = x[cuda.blockIdx.x * 128 + t]
    for o in (16, 8, 4, 2, 1):
        v += cuda.shfl_down_sync(0xFFFFFFFF, v, o)
    if t % 32 == 0:
        s[t // 32] = v
    cuda.syncthreads()
    if t < 32:
        v = s[t] if t < 4 else f32(0)
        for o in (2, 1):
            v += cuda.shfl_down_sync(0xFFFFFFFF, v, o)
        if t == 0:
            y[cuda.blockIdx.x] = v


def run_shuffle_reduce(kernel):
    x, y = np.arange(256, dtype=np.float32), np.full(2, np.nan, np.float32)
    kernel.simulate(2, 128, [Pointer(x), Pointer(y)])
    return y, x.reshape(2, 128).sum(1)


SHUFFLE = {
    "no barrier": ("cuda.syncthreads()", "pass", Race, r"shared array s\[\d\]"),
    "a lane stays away": ("v += cuda.shfl_down_sync(0xFFFFFFFF, v, o)\n    if",
                          "v += cuda.shfl_down_sync(0xFFFFFFFF, v, o) if t != 5 else 0\n    if",
                          Deadlock, r"shfl_down_sync of warp 0, .* lanes \[5\] have not arrived"),
    "mask without the upper half": ("0xFFFFFFFF, v, o)\n    if", "0xFFFF, v, o)\n    if", Misuse,
                                    "not in its own mask 0x0000ffff|does not take part"),
    "mask of the lanes that hold values": ("0xFFFFFFFF, v, o)\n        if", "0xF, v, o)\n        if", Misuse, "not in its own mask"),
    "half the warp in the second stage": ("if t < 32:", "if t < 4:", Misuse, "reads lane ., which does not take part"),
    "scratch for too few warps": ("cuda.shared.array(4, f32)", "cuda.shared.array(3, f32)",
                                  Misuse, "shared array s: index 3 is outside its shape"),
    "all lanes store": ("if t % 32 == 0:", "if True:", Race, r"shared array s\[\d\].*syncwarp"),
    "first stage too short": ("(16, 8, 4, 2, 1)", "(8, 4, 2, 1)", Wrong, None),
    "all threads write the result": ("if t == 0:", "if t >= 0:", Race, r"argument y\[\d\]"),
}


def transpose(x, y, n):
    s = cuda.shared.array((T, T + 1), f32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    bx, by = cuda.blockIdx.x * T, cuda.blockIdx.y * T
    if by + ty < n and bx + tx < n:
        s[ty, tx] = x[(by + ty) * n + bx + tx]
    cuda.syncthreads()
    if bx + ty < n and by + tx < n:
        y[(bx + ty) * n + by + tx] = s[tx, ty]


def run_transpose(kernel):
    n = 13
    x, y = np.arange(n * n, dtype=np.float32).reshape(n, n), np.full((n, n), np.nan, np.float32)
    kernel.simulate((2, 2), (T, T), [Pointer(x), Pointer(y), n])
    return y, x.T


TRANSPOSE = {
    "no barrier": ("cuda.syncthreads()", "pass", Race, r"shared array s\[\d, \d\]"),
    "barrier in one arm": ("cuda.syncthreads()", "if tx < 4:\n        cuda.syncthreads()\n    else:\n        cuda.syncthreads()", Misuse,
                           "threads wait in another one"),
    "no edge test of the load": ("if by + ty < n and bx + tx < n:", "if True:", Misuse, r"argument x: index \d+ is read"),
    "no edge test of the store": ("if bx + ty < n and by + tx < n:", "if True:",
                                  (Misuse, Race), r"argument y: index \d+ is written|argument y\[\d+\]"),
    "blocks not exchanged": ("y[(bx + ty) * n + by + tx]", "y[(by + ty) * n + bx + tx]", (Wrong, Misuse, Race), None),
}


def scan(x, y):
    s = cuda.shared.array((2, 64), i32)
    t = cuda.threadIdx.x
    s[0, t] = x[t]
    cuda.syncthreads()  # loaded
    for step in range(6):
        o = 1 << step
        v = s[step % 2, t]
        if t >= o:
            v += s[step % 2, t - o]
        s[(step + 1) % 2, t] = v
        cuda.syncthreads()  # stepped
    y[t] = s[0, t]


def run_scan(kernel):
    x, y = np.arange(64, dtype=np.int32) % 7, np.zeros(64, np.int32)
    kernel.simulate(1, 64, [Pointer(x), Pointer(y)])
    return y, np.cumsum(x)


SCAN = {
    "load not waited for": ("cuda.syncthreads()  # loaded", "cuda.syncwarp()", Race, r"shared array s\[0, \d+\]"),
    "step not waited for": ("cuda.syncthreads()  # stepped", "cuda.syncwarp()", Race, r"shared array s\[[01], \d+\]"),
    "in place": ("s[(step + 1) % 2, t] = v", "s[step % 2, t] = v", Race, r"shared array s\[0, \d+\]"),
    "only the adding threads meet": ("cuda.syncthreads()  # stepped", "if t >= o: cuda.syncthreads()", (Race, Misuse, Deadlock), None),
    "reads below the array": ("if t >= o:", "if t >= o - 1:", Wrong, None),
}


def histogram(x, counts, n):
    s = cuda.shared.array(16, i32)
    t = cuda.threadIdx.x
    if t < 16:
        s[t] = 0
    cuda.syncthreads()  # cleared
    i = cuda.grid(1)
    while i < n:
        cuda.atomic.add(s, x[i], 1)
        i += cuda.gridsize(1)
    cuda.syncthreads()  # counted
    if t < 16:
        cuda.atomic.add(counts, t, s[t])


def run_histogram(kernel):
    x = np.random.default_rng(1).integers(0, 16, 300).astype(np.int32)
    counts = np.zeros(16, np.int32)
    kernel.simulate(3, 64, [Pointer(x), Pointer(counts), 300])
    return counts, np.bincount(x, minlength=16)


HISTOGRAM = {
    "not cleared": ("s[t] = 0", "pass", Wrong, None),
    "clearing not waited for": ("cuda.syncthreads()  # cleared", "cuda.syncwarp()", Race, "updates it atomically"),
    "counting not waited for": ("cuda.syncthreads()  # counted", "pass", Race, r"shared array s\[\d+\].*updates it atomically"),
    "plain add in shared memory": ("cuda.atomic.add(s, x[i], 1)", "s[x[i]] += 1", Race, r"shared array s\[\d+\]"),
    "plain add to the result": ("cuda.atomic.add(counts, t, s[t])", "counts[t] += s[t]", Race, r"argument counts\[\d+\].*between blocks"),
    "a bin short": ("cuda.shared.array(16, i32)", "cuda.shared.array(15, i32)", Misuse, "shared array s: index 15 is outside"),
}


def last_block_reduce(x, partial, counter, y):
    s = cuda.shared.array(64, f32)
    last = cuda.shared.array(1, i32)
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    s[t] = x[b * 64 + t]
    cuda.syncthreads()
    for step in range(6):
        o = 32 >> step
        if t < o:
            s[t] += s[t + o]
        cuda.syncthreads()
    if t == 0:
        partial[b] = s[0]
        cuda.threadfence()  # release
        ticket = cuda.atomic.add(counter, 0, 1)
        cuda.threadfence()  # acquire
        last[0] = ticket == cuda.gridDim.x - 1
    cuda.syncthreads()  # told
    if last[0] and t == 0:
        total = f32(0)
        for i in range(cuda.gridDim.x):
            total += partial[i]
        y[0] = total
        counter[0] = 0


def run_last_block_reduce(kernel):
    x, partial, counter = np.arange(384, dtype=np.float32), np.full(6, np.nan, np.float32), np.zeros(1, np.int32)
    y = np.full(2, np.nan, np.float32)
    for k in range(2):
        kernel.simulate(6, 64, [Pointer(x), Pointer(partial), Pointer(counter), Pointer(y[k:])])
    return y, [x.sum()] * 2


LAST_BLOCK = {
    "no fence before the ticket": ("cuda.threadfence()  # release", "pass",
                                   Race, r"argument (partial|counter)\[\d\].*threadfence then an atomic"),
    "no fence after the ticket": ("cuda.threadfence()  # acquire", "pass", Race, r"argument (partial|counter)\[\d\].*threadfence"),
    "fence within the block": ("cuda.threadfence()  # release", "cuda.threadfence_block()", Race, r"argument (partial|counter)\[\d\]"),
    "counter not reset": ("counter[0] = 0", "pass", Wrong, None),
    "ticket by plain add": ("ticket = cuda.atomic.add(counter, 0, 1)", "ticket = counter[0]; counter[0] += 1",
                            Race, r"argument counter\[0\]"),
    "everybody is last": ("last[0] and", "", Race, r"argument (partial|y|counter)\["),
    "flag not waited for": ("cuda.syncthreads()  # told", "pass", Race, r"shared array last\[0\]"),
    "one too many": ("32 >> step", "64 >> step", Misuse, "shared array s: index (64|127|..?.?) is outside"),
}


def grid_reduce(x, partial, y, n):
    grid = cuda.cg.this_grid()
    i, size = cuda.grid(1), cuda.gridsize(1)
    v = f32(0)
    for k in range(i, n, size):
        v += x[k]
    partial[i] = v
    grid.sync()  # filled
    o = size // 2
    while o:
        if i < o:
            partial[i] += partial[i + o]
        grid.sync()  # halved
        o //= 2
    if i == 0:
        y[0] = partial[0]


def run_grid_reduce(kernel):
    x, y = np.arange(200, dtype=np.float32), np.full(1, np.nan, np.float32)
    kernel.simulate(4, 16, [Pointer(x), Pointer(np.full(64, np.nan, np.float32)), Pointer(y), 200], cooperative=True)
    return y, [x.sum()]


GRID = {
    "block barrier for the grid's": ("grid.sync()  # filled", "cuda.syncthreads()",
                                     Race, r"argument partial\[\d+\].*between blocks it takes a grid"),
    "no barrier between the halvings": ("grid.sync()  # halved", "pass", Race, r"argument partial\[\d+\]"),
    "some blocks only": ("grid.sync()  # filled", "if cuda.blockIdx.x < 3: grid.sync()", Misuse,
                         "grid sync at line .* wait in another one"),
    "fence for the barrier": ("grid.sync()  # filled", "cuda.threadfence()", Race, r"argument partial\[\d+\]"),
    "leaves the loop too early": ("while o:", "while o > 1:", Wrong, None),
}


def warp_reduce(x, y):
    s = cuda.shared.array((2, 32), f32)
    t = cuda.threadIdx.x
    w, lane = t // 32, t % 32
    s[w, lane] = x[t]
    cuda.syncwarp()  # filled
    for step in range(5):
        o = 16 >> step
        v = s[w, lane + o] if lane < o else f32(0)
        cuda.syncwarp()  # read
        s[w, lane] += v
        cuda.syncwarp()  # written
    if lane == 0:
        y[w] = s[w, 0]


def run_warp_reduce(kernel):
    x, y = np.arange(64, dtype=np.float32), np.full(2, np.nan, np.float32)
    kernel.simulate(1, 64, [Pointer(x), Pointer(y)])
    return y, x.reshape(2, 32).sum(1)


WARP = {
    "fill not waited for": ("cuda.syncwarp()  # filled", "pass",
                            Race, r"shared array s\[[01], \d+\].*a syncwarp or syncthreads is missing"),
    "read not waited for": ("cuda.syncwarp()  # read", "pass", Race, r"shared array s\[[01], \d+\]"),
    "write not waited for": ("cuda.syncwarp()  # written", "pass", Race, r"shared array s\[[01], \d+\]"),
    "shuffle for syncwarp": ("cuda.syncwarp()  # written", "cuda.shfl_sync(0xFFFFFFFF, v, 0)", Race, r"shared array s\[[01], \d+\]"),
    "half the lanes": ("cuda.syncwarp()  # filled", "cuda.syncwarp(0xFFFF if lane < 16 else 0xFFFF0000)", (Race, Misuse),
                       r"shared array s\[[01], \d+\]|gives mask"),
    "only active lanes meet": ("cuda.syncwarp()  # read", "if lane < o: cuda.syncwarp()", (Deadlock, Race), "syncwarp"),
    "one row for both warps": ("s[w, lane] = x[t]", "s[0, lane] = x[t]", Race, r"shared array s\[0, \d+\].*a syncthreads is missing"),
    "beyond the row": ("lane + o] if lane < o", "lane + o + 16] if lane < o",
                       Misuse, r"shared array s: index \([01], (32|47|..)\) is outside"),
}


def turnstile(x, turn, y):
    """Blocks add to y one after the other, in order: serial split-K."""
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    if t == 0:
        while cuda.atomic.add(turn, 0, 0) != b:
            cuda.nanosleep(20)
        cuda.threadfence()  # acquire
    cuda.syncthreads()  # open
    y[t] = y[t] + x[b * 32 + t]
    cuda.syncthreads()  # done
    if t == 0:
        cuda.threadfence()  # release
        cuda.atomic.exch(turn, 0, (b + 1) % cuda.gridDim.x)


def run_turnstile(kernel):
    x, y, turn = np.arange(128, dtype=np.float32), np.zeros(32, np.float32), np.zeros(1, np.int32)
    for _ in range(2):
        kernel.simulate(4, 32, [Pointer(x), Pointer(turn), Pointer(y)])
    return y, 2 * x.reshape(4, 32).sum(0)


TURNSTILE = {
    "no fence on the way in": ("cuda.threadfence()  # acquire", "pass", Race, r"argument y\[\d+\]"),
    "no fence on the way out": ("cuda.threadfence()  # release", "pass", Race, r"argument y\[\d+\]"),
    "others do not wait": ("cuda.syncthreads()  # open", "pass", Race, r"argument y\[\d+\]"),
    "others have not finished": ("cuda.syncthreads()  # done", "pass", Race, r"argument y\[\d+\]"),
    "flag not reset": ("(b + 1) % cuda.gridDim.x", "b + 1", Deadlock, r"nanosleep|polls argument turn\[0\], which is 4"),
    "turn not passed on": ("cuda.atomic.exch(turn, 0, (b + 1) % cuda.gridDim.x)", "pass", Deadlock, "which is 0|nanosleep"),
    "all at once": ("while cuda.atomic.add(turn, 0, 0) != b:", "while cuda.atomic.add(turn, 0, 0) < 0:", Race, r"argument y\[\d+\]"),
}

CASES = {gemm: (run_gemm, GEMM), gemm_double_buffered: (partial(run_gemm, n=3 * T), GEMM2), shuffle_reduce: (run_shuffle_reduce, SHUFFLE),
         transpose: (run_transpose, TRANSPOSE), scan: (run_scan, SCAN), histogram: (run_histogram, HISTOGRAM),
         last_block_reduce: (run_last_block_reduce, LAST_BLOCK), grid_reduce: (run_grid_reduce, GRID), warp_reduce: (run_warp_reduce, WARP),
         turnstile: (run_turnstile, TURNSTILE)}


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_exact(function):
    check(function, CASES[function][0])


@listed(CASES)
def test_broken(function, name):
    check_broken(CASES, function, name)

"""Kernels on a warpgroup's tensor cores, and named ways to break each by one edit: the exact ones pass, every broken one is noticed.

As in test_sim_mutants: a mutant is (text, replacement, what notices it, words of the message); `Wrong` stands for a result that differs.
"""
import inspect
import textwrap

import ml_dtypes
import numpy as np
import pytest

from dnnkern.device import convert, cuda, f32, i32, i64, u32
from dnnkern.device.mbarrier import fence_async, fence_mbarrier_init, mbarrier_arrive, mbarrier_arrive_expect, mbarrier_init, mbarrier_wait
from dnnkern.device.registers import make_register_claim, make_register_release
from dnnkern.device.sim import Deadlock, Misuse, Pointer, Race, config
from dnnkern.device.tma import bulk_load
from dnnkern.device.vec import address, as_u32, load4, pin, shared_address, store4
from dnnkern.device.wgmma import accumulator_place, descriptor, make_wgmma, make_wgmma_wait, matrix_descriptor

BF16 = ml_dtypes.bfloat16
N = 32
ROWS, SUMS, WORDS = 128 + N, N // 2, (128 + N) * 32
K = matrix_descriptor(16, 1024, 128)
K_64 = matrix_descriptor(16, 1024, 64)
K_0 = matrix_descriptor(16, 1024, 0)
K_512 = matrix_descriptor(16, 512, 128)
mma, wait, wait_1, wait_of_half, wait_of_none = (make_wgmma(N, "bfloat16"), *(
    make_wgmma_wait(*of) for of in ((0, SUMS), (1, SUMS), (0, SUMS // 2), (0, 0))))
mma_far, mma_wide, mma_fp16 = make_wgmma(N, "bfloat16", a_step=4), make_wgmma(2 * N, "bfloat16"), make_wgmma(N, "float16")


class Wrong(Exception):
    """The kernel ran and its result is not the right one."""


def gemm(a, b, c, k):
    """c = a b^T: two warpgroups with 64 rows of a each, the same b; tiles of 64 columns, swizzled as they are stored."""
    s = cuda.shared.array(WORDS, u32, alignment=1024)
    base = shared_address(s, 0)
    t = i32(cuda.threadIdx.x)
    acc = cuda.local.array(SUMS, f32)
    other = cuda.local.array(SUMS, f32)
    for block in range(k // 64):
        for q in range(t, ROWS * 8, 256):
            row, piece = q >> 3, q & 7
            if row < 128:
                words = load4(as_u32(a), i32((row * k + block * 64) // 2 + piece * 4))
            else:
                words = load4(as_u32(b), i32(((row - 128) * k + block * 64) // 2 + piece * 4))
            store4(s, i32(row * 32 + (piece ^ row & 7) * 4), words)
        fence_async()
        cuda.syncthreads()  # filled
        left, right = u32(base + (t >> 7) * 8192), u32(base + 16384)
        mma(acc, descriptor(K, left), descriptor(K, right), i32(block > 0))
        wait(acc)
        cuda.syncthreads()  # used
    row, column = accumulator_place(N, t & 127, np.arange(SUMS))
    for i in range(SUMS):
        c[((t >> 7) * 64 + row[i]) * N + column[i]] = acc[i]
        other[i] = acc[i]


def small(*shape):
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(BF16)


def run_gemm(function, k=128):
    a, b, c = small(128, k), small(N, k), np.full((128, N), np.nan, np.float32)
    cuda.jit(launch_bounds=256)(function).simulate(1, 256, [Pointer(a.view(np.uint16)), Pointer(b.view(np.uint16)), Pointer(c), k])
    return c, a.astype(np.float64) @ b.astype(np.float64).T


GEMM = {
    "no fence": ("fence_async()", "pass", Race, "a product of warpgroup . reads it and thread .* writes it.*a fence_async is missing"),
    "one thread fences for all": ("fence_async()", "if t == 0: fence_async()", Race, "a fence_async is missing|not synchronised"),
    "no barrier before the product": ("cuda.syncthreads()  # filled", "pass", Race, "a product of warpgroup . reads it and thread"),
    "no barrier before the next tile": ("cuda.syncthreads()  # used", "pass", Race, "a wgmma wait of warpgroup . is missing|"
                                        "a product of warpgroup"),
    "no wait": ("wait(acc)", "pass", Race, "and a product of warpgroup . reads it.*wait"),
    "wait for the product before": ("wait(acc)", "wait_1(acc)", Race, "and a product of warpgroup . reads it.*wait"),
    "sums not handed out": ("wait(acc)", "wait_of_none(acc)", Wrong, None),
    "half of the sums handed out": ("wait(acc)", "wait_of_half(acc)", Misuse, "8 accumulators are handed out, the product has 16"),
    "other sums handed out": ("wait(acc)", "wait(other)", Wrong, None),
    "one warp does not wait": ("wait(acc)", "if t >> 5 != 2: wait(acc)", (Deadlock, Misuse, Race), "96 of the 128|diverged|wait"),
    "sums used early": ("wait(acc)", "acc[3] = acc[3] * f32(1)\n        wait(acc)", Misuse, "wrote accumulator 3 while the tensor cores"),
    "sums set to zero behind the product": ("wait(acc)", "acc[5] = f32(0)\n        wait(acc)", Misuse, "wrote accumulator 5"),
    "sums kept in two arrays": ("mma(acc,", "mma(other if t == 37 else acc,", (Misuse, Wrong), "another accumulator"),
    "first product adds": ("i32(block > 0)", "i32(1)", Wrong, None),
    "no product adds": ("i32(block > 0)", "i32(0)", Wrong, None),
    "some threads add": ("i32(block > 0)", "i32(t > 9)", Misuse, "warpgroup 0 diverged: .* accumulating"),
    "a warp's own descriptor": ("descriptor(K, left)", "descriptor(K, u32(left + 1024 * (t >> 5 == 1)))", Misuse, "warpgroup 0 diverged"),
    "a warp skips a tile": ("mma(acc,", "if block or t >> 5 != 6: mma(acc,", (Misuse, Deadlock), "warpgroup 1 diverged|of the 128 threads"),
    "a warp leaves": ("acc = cuda.local", "if t >> 5 == 5: return\n    acc = cuda.local", (Deadlock, Race, Misuse),
                      "96 of the 128|product|shared"),
    "stride of another swizzle": ("descriptor(K, left)", "descriptor(K_512, left)", Wrong, None),
    "another swizzle": ("descriptor(K, right)", "descriptor(K_64, right)", Wrong, None),
    "no swizzle in the descriptor": ("descriptor(K, left)", "descriptor(K_0, left)", Wrong, None),
    "no swizzle in the stores": ("(piece ^ row & 7)", "piece", Wrong, None),
    "operand 16 bytes on": ("u32(base + 16384)", "u32(base + 16400)", Misuse, "needs 32 bytes of a row.* 16 are left"),
    "operand a row on": ("u32(base + 16384)", "u32(base + 16512)", Misuse, "outside the block's|nothing has written"),
    "operands exchanged": ("left, right =", "right, left =", Misuse, "outside the block's"),
    "descriptor of an address too large": ("descriptor(K, left)", "K | left >> 3", Misuse, "outside|within which"),
    "step of 64 bytes": ("mma(acc,", "mma_far(acc,", Wrong, None),
    "another type": ("mma(acc,", "mma_fp16(acc,", Wrong, None),
    "more columns than sums": ("mma(acc,", "mma_wide(acc,", Misuse, "a local array of at least 32 float32, got float32"),
    "shared memory aligned to 16 bytes": ("alignment=1024", "alignment=16", Misuse, "16 are left|outside"),
    "shared memory aligned to 128 bytes": ("s = cuda.shared.array(WORDS, u32, alignment=1024)", "x = cuda.shared.array(96, u32, "
                                           "alignment=1024)\n    s = cuda.shared.array(WORDS, u32)", Wrong, None),
    "part of the tile not stored": ("range(t, ROWS * 8, 256)", "range(t, ROWS * 8 - 64, 256)", Misuse, "which nothing has written"),
    "sums in shared memory": ("acc = cuda.local.array(SUMS, f32)", "acc = cuda.shared.array(SUMS, f32)", Misuse, "expected a local array"),
}

SCORES = 32  # columns of the first product, depth of the second
first, second = make_wgmma(SCORES, "bfloat16", steps=2), make_wgmma(N, "bfloat16", steps=2, a="registers", b_major="mn", b_step=64)
second_k_major = make_wgmma(N, "bfloat16", steps=2, a="registers", b_step=64)
first_done, both_done, first_under_way = make_wgmma_wait(1, SCORES // 2), make_wgmma_wait(0, SUMS), make_wgmma_wait(2, SCORES // 2)
K_32_BYTES = matrix_descriptor(16, 512, 64)
V = matrix_descriptor(2048, 512, 64)
V_SWAPPED, V_NEAR = matrix_descriptor(512, 2048, 64), matrix_descriptor(1024, 256, 64)
AT_K, AT_V = 64 * 64, 64 * 64 + 2 * SCORES * 64
ATTENTION_WORDS = (AT_V + SCORES * 64) // 4
pack = convert.element("bfloat16").pack_chunk
held = pin(SCORES // 2)


def attention(image, c):
    """c = sum of (q k_i^T) v over two k: P of one round is multiplied while S of the next is."""
    s = cuda.shared.array(ATTENTION_WORDS, u32, alignment=1024)
    base = shared_address(s, 0)
    t = i32(cuda.threadIdx.x)
    for q in range(t, ATTENTION_WORDS, 128):
        s[q] = image[q]
    fence_async()
    cuda.syncthreads()
    score, total = cuda.local.array(SCORES // 2, f32), cuda.local.array(SUMS, f32)
    p = cuda.local.array(SCORES // 4, u32)
    q, k, v = descriptor(K_32_BYTES, base), u32(base + AT_K), descriptor(V, u32(base + AT_V))
    first(score, q, descriptor(K_32_BYTES, k), i32(0))
    first_now = make_wgmma_wait(0, SCORES // 2)
    first_now(score)
    for j in range(SCORES // 16):
        pack(p, 4 * j, score, 8 * j)
    first(score, q, descriptor(K_32_BYTES, u32(k + SCORES * 64)), i32(0))  # the next S
    second(total, p, v, i32(0))  # O
    first_done(score)
    held(score)
    both_done(total)
    for j in range(SCORES // 16):
        pack(p, 4 * j, score, 8 * j)
    for i in range(SUMS):
        total[i] = total[i] * f32(2)
    second(total, p, v, i32(1))
    both_done(total)  # the last
    row, column = accumulator_place(N, t, np.arange(SUMS))
    for i in range(SUMS):
        c[row[i] * N + column[i]] = total[i]


def swizzled(matrix, span=64):
    """Bytes of a matrix of `span` bytes a row as a tensor map with that swizzle stores it."""
    rows = np.ascontiguousarray(matrix).view(np.uint8).reshape(-1, span // 16, 16)
    line, piece = np.ogrid[:len(rows), :span // 16]
    out = np.empty_like(rows)
    out[line, piece ^ {64: line // 2 % 4, 128: line % 8}[span]] = rows
    return out.ravel()


def run_attention(function):
    q, k, v = small(64, 32) // 2, small(2 * SCORES, 32) // 2, small(SCORES, N)
    q, k = q.astype(BF16), k.astype(BF16)
    image = np.concatenate([swizzled(q), swizzled(k), swizzled(v)])
    c = np.full((64, N), np.nan, np.float32)
    cuda.jit(launch_bounds=128)(function).simulate(1, 128, [Pointer(image.view(np.uint32)), Pointer(c)])
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    older, newer = q @ k[:SCORES].T, q @ k[SCORES:].T
    assert np.abs(older).max() < 256 > np.abs(newer).max()  # exact in bfloat16
    return c, 2 * older @ v + newer @ v


ATTENTION = {
    "P made too early": ("both_done(total)\n    for j", "for j", Misuse, "wrote registers of A before the wait|wrote accumulator"),
    "sums scaled before the wait": ("    first_done(score)\n", "    total[1] = total[1] * f32(2)\n    first_done(score)\n", Misuse,
                                    "wrote accumulator 1"),
    "the first S not waited for": ("first_now(score)", "pass", Wrong, None),
    "next S not waited for": ("first_done(score)", "pass", Wrong, None),
    "S read while under way": ("first_done(score)", "first_under_way(score)", Wrong, None),
    "one wait for both, that hands out O only": ("    first_done(score)\n    held(score)\n", "", Wrong, None),
    "last O not waited for": ("both_done(total)  # the last", "pass", Misuse, "returns while products of warpgroup 0 are under way"),
    "V's offsets exchanged": ("descriptor(V, u32", "descriptor(V_SWAPPED, u32", Misuse, "outside the block's"),
    "V's offset between eights of k": ("descriptor(V, u32", "descriptor(V_NEAR, u32", Wrong, None),
    "V not transposed": ("second(total, p, v, i32(0))", "second_k_major(total, p, v, i32(0))", Misuse, "outside the block's"),
    "V at the wrong place": ("descriptor(V, u32(base + AT_V))", "descriptor(V, u32(base + AT_V - 1024))", Wrong, None),
    "a warp leaves a product out": ("second(total, p, v, i32(0))  # O", "if t >= 32: second(total, p, v, i32(0))", (Misuse, Deadlock),
                                    "diverged|of the 128 threads"),
    "P of floats": ("p = cuda.local.array(SCORES // 4, u32)", "p = cuda.local.array(SCORES // 4, i32)", Misuse, "of at least 8 uint32"),
    "no fence": ("fence_async()", "pass", Race, "a fence_async is missing"),
    "Q rewritten before the wait": ("    first_done(score)\n", "    s[t] = 0\n    first_done(score)\n", Race,
                                    "a product of warpgroup 0 reads it and thread .* writes it"),
    "V rewritten before the wait": ("held(score)", "s[AT_V // 4 + t] = 0", Race, "product of warpgroup 0 reads it"),
}

STAGES, STAGE = 2, (128 + N) * 128
RING_WORDS = STAGES * STAGE // 4
release, claim = make_register_release(40), make_register_claim(232)
release_24, claim_240, claim_too_late = make_register_release(24), make_register_claim(240), make_register_claim(160)
older_done = make_wgmma_wait(1, 0)


def ring(image, c, blocks):
    """c = a b^T: a producer thread copies tiles of a and b, swizzled already, two warpgroups multiply them, one product under way."""
    s = cuda.shared.array(RING_WORDS, u32, alignment=1024)
    bars = cuda.shared.array(2 * STAGES, i64)
    base, full, empty = shared_address(s, 0), shared_address(bars, 0), shared_address(bars, STAGES)
    t = i32(cuda.threadIdx.x)
    if t == 0:
        for i in range(STAGES):
            mbarrier_init(u32(full + 8 * i), u32(1))
            mbarrier_init(u32(empty + 8 * i), u32(256))
        fence_mbarrier_init()
    cuda.syncthreads()
    if t < 128:
        release()
        if t == 0:
            for k in range(blocks):
                i = k % STAGES
                mbarrier_wait(u32(empty + 8 * i), u32(k // STAGES & 1 ^ 1))
                mbarrier_arrive_expect(u32(full + 8 * i), u32(STAGE))
                bulk_load(u32(base + i * STAGE), address(image, i32(k * STAGE // 4)), u32(STAGE), u32(full + 8 * i))
    else:
        claim()
        acc = cuda.local.array(SUMS, f32)
        for k in range(blocks):
            i = k % STAGES
            mbarrier_wait(u32(full + 8 * i), u32(k // STAGES & 1))
            a = u32(base + i * STAGE + ((t >> 7) - 1) * 8192)
            mma(acc, descriptor(K, a), descriptor(K, u32(base + i * STAGE + 16384)), i32(k > 0))
            older_done(acc)
            if k > 0:
                mbarrier_arrive(u32(empty + 8 * ((k - 1) % STAGES)))
        wait(acc)
        row, column = accumulator_place(N, t & 127, np.arange(SUMS))
        for j in range(SUMS):
            c[((t >> 7) * 64 - 64 + row[j]) * N + column[j]] = acc[j]


def run_ring(function, blocks=5):
    a, b, c = small(128, 64 * blocks), small(N, 64 * blocks), np.full((128, N), np.nan, np.float32)
    tiles = [swizzled(x[:, 64 * k:64 * k + 64], 128) for k in range(blocks) for x in (a, b)]
    image = np.concatenate(tiles).view(np.uint32)
    cuda.jit(launch_bounds=(384, 1))(function).simulate(1, 384, [Pointer(image), Pointer(c), blocks])
    return c, a.astype(np.float64) @ b.astype(np.float64).T


RING = {
    "full not waited for": ("mbarrier_wait(u32(full", "(u32(full", Race, "product of warpgroup . reads it.* mbarrier"),
    "full waited for by one warp": ("mbarrier_wait(u32(full", "if t >> 5 & 3 == 0: mbarrier_wait(u32(full", (Race, Misuse),
                                    "product of warpgroup|nothing has|mbarrier"),
    "stage given back under the product": ("(k - 1) % STAGES)", "k % STAGES)", (Race, Deadlock), "product of warpgroup|mbarrier"),
    "product not waited for": ("older_done(acc)", "pass", Race, "product of warpgroup . reads it"),
    "last product not waited for": ("wait(acc)\n        row", "row", Misuse, "returns while products of warpgroup . are under way"),
    "empty not waited for": ("mbarrier_wait(u32(empty", "(u32(empty", (Race, Misuse), "product|mbarrier|phase"),
    "no registers given": ("        release()\n", "        pass\n", Deadlock, r"setmaxnreg.inc 232 .*128 \* 64 = 8192 more, 0 are free"),
    "budget overdrawn": ("claim()", "claim_240()", Deadlock, "setmaxnreg.inc 240 of warpgroup [12]: it has 168 of the 168"),
    "a warp claims nothing": ("claim()", "if t >> 5 != 6: claim()", (Deadlock, Misuse), "96 of its 128 threads arrived|of the 128 threads"),
    "one thread gives registers": ("        release()\n        if t == 0:", "        if t == 0:\n            release()", Deadlock,
                                   "setmaxnreg.dec 40 of warpgroup 0: 1 of its 128 threads arrived"),
    "a warp gives more": ("        release()\n", "        release() if t >= 32 else release_24()\n", Misuse, "all must execute the same"),
    "registers claimed twice, less": ("acc = cuda", "claim_too_late()\n        acc = cuda", Misuse, "has 232 registers a thread already"),
}

CASES = {gemm: (run_gemm, GEMM), attention: (run_attention, ATTENTION), ring: (run_ring, RING)}


@pytest.fixture(params=["fifo", "lifo", "random"], autouse=True)
def schedule(request):
    old = dict(vars(config))
    config.policy, config.seed, config.spin_limit = request.param, 11, 5000
    yield
    vars(config).update(old)


def check(function, run):
    got, want = run(function)
    if not (got == want).all():
        raise Wrong


def edited(function, old, new):
    """`function` with one piece of its source replaced."""
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{source.count(old)} places in {function.__name__} read {old!r}"
    scope = dict(globals())
    exec(compile(source.replace(old, new), f"<broken {function.__name__}>", "exec"), scope)
    return scope[function.__name__]


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_exact(function):
    check(function, CASES[function][0])


MUTANTS = [(f, name) for f, (_, mutants) in CASES.items() for name in mutants]


@pytest.mark.parametrize("function, name", MUTANTS, ids=[f"{f.__name__}: {n}" for f, n in MUTANTS])
def test_broken(function, name):
    run, mutants = CASES[function]
    old, new, error, text = mutants[name]
    with pytest.raises(error, match=text):
        check(edited(function, old, new), run)

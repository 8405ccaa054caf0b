"""Products of a warpgroup against NumPy, in the simulator and on a GPU: types, layouts in shared memory, A from registers, pipelines."""
import ml_dtypes
import numpy as np
import pytest
from kit import launch

from dnnkern.device import SIMULATED, cuda, f32, i32, u32
from dnnkern.device.mbarrier import fence_async
from dnnkern.device.vec import shared_address
from dnnkern.device.wgmma import accumulator_place, descriptor, make_wgmma, make_wgmma_wait, matrix_descriptor, operand_place

NUMPY = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "tf32": np.float32, "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
         "float8_e5m2": ml_dtypes.float8_e5m2, "int8": np.int8, "uint8": np.uint8}
SIZE = {name: np.dtype(t).itemsize for name, t in NUMPY.items()}


class Layout:
    """A matrix of `rows` by `steps` * 32 bytes in shared memory: `place` is the first byte of each element, [rows, k]."""

    def __init__(self, rows, steps, size, major="k", swizzle=128):
        r, k = np.ogrid[:rows, :steps * 32 // size]
        self.shape = rows, steps * 32 // size
        self.leading = 16
        if major == "k" and not swizzle:  # 8 rows of 16 bytes, then the next 16 bytes of k, then the next 8 rows
            self.leading, self.stride, self.step = 128, 256 * steps, 256
            self.place = r // 8 * self.stride + k * size // 16 * 128 + r % 8 * 16 + k * size % 16
        elif major == "k":  # boxes of `swizzle` bytes of k
            byte = k * size
            piece = byte % swizzle // 16 ^ self._pattern(r, swizzle)
            self.place = byte // swizzle * (rows * swizzle) + r * swizzle + piece * 16 + byte % 16
            self.stride, self.step = 8 * swizzle, 32 if steps * 32 <= swizzle else rows * swizzle
            if steps * 32 > swizzle > 32:
                self.step = tuple(32 * s // swizzle * rows * swizzle + 32 * s % swizzle for s in range(steps))
        elif not swizzle:  # 8 k of 16 bytes of rows, then the next 8 rows, then the next 8 of k
            self.stride, self.leading = 128, 16 * rows
            self.place = k // 8 * self.leading + r // 8 * 128 + k % 8 * 16 + r % 8 * size
            self.step = 2 * self.leading
        else:  # boxes of `swizzle` bytes of rows
            byte, depth = r * size, self.shape[1]
            piece = byte % swizzle // 16 ^ self._pattern(k, swizzle)
            self.leading, self.stride, self.step = depth * swizzle, 8 * swizzle, 16 * swizzle
            self.place = byte // swizzle * self.leading + k * swizzle + piece * 16 + byte % 16
        self.nbytes = -(-(int(self.place.max()) + size) // 1024) * 1024
        self.constant = matrix_descriptor(self.leading, self.stride, swizzle)

    @staticmethod
    def _pattern(line, swizzle):
        """What the pieces of line number `line` of a box are xored with."""
        return {128: line % 8, 64: line // 2 % 4, 32: line // 4 % 2}[swizzle]

    def bytes(self, matrix):
        """Shared memory with `matrix` in it; what lies between its elements is NaN."""
        out = np.full(self.nbytes, 0xFF, np.uint8)
        elements = np.ascontiguousarray(matrix).view(np.uint8).reshape(*matrix.shape, -1)
        out[self.place[:, :, None] + np.arange(elements.shape[2])] = elements
        return out


def kernel_of(mma, ka, kb, b_at, words, count, dtype, fragment=0, threads=128):
    """Kernel: acc (+)= A B with both in shared memory as they are in `image`, or A's words in `fragments`."""
    scalar = i32 if "int" in dtype else f32
    wait = make_wgmma_wait(0, count)

    @cuda.jit(launch_bounds=threads)
    def kernel(image, fragments, sums, out, accumulate):
        s = cuda.shared.array(words, u32, alignment=1024)
        t = i32(cuda.threadIdx.x)
        for k in range(t, words, threads):
            s[k] = image[k]
        fence_async()
        cuda.syncthreads()
        base = shared_address(s, 0)
        acc = cuda.local.array(count, scalar)
        for k in range(count):
            acc[k] = sums[i32(t * count + k)]
        if fragment:
            a = cuda.local.array(fragment, u32)
            for k in range(fragment):
                a[k] = fragments[i32(t * fragment + k)]
            mma(acc, a, descriptor(kb, u32(base + b_at)), accumulate)
        else:
            mma(acc, descriptor(ka, base), descriptor(kb, u32(base + b_at)), accumulate)
        wait(acc)
        for k in range(count):
            out[i32(t * count + k)] = acc[k]
    return kernel


def small(rng, shape, dtype):
    """Integers that every type has, and whose products add up exactly."""
    return rng.integers(0 if dtype == "uint8" else -3, 4, shape).astype(NUMPY[dtype])


def pieces_of(step):
    """Bytes, or those of each step, in units of 16."""
    return tuple(nbytes // 16 for nbytes in step) if isinstance(step, tuple) else step // 16


def multiply(a, b, *, n, dtype, b_dtype=None, sums=None, registers=False, left=None, right=None, **options):
    """[rows, n] sums of the kernel for A [rows, k] and B [n, k], from `sums` on, or from zero over sums that are NaN."""
    tiles, held, steps = len(a) // 64, *(x.shape[1] * SIZE[dtype] // 32 for x in (a, b))
    left = left or Layout(len(a), held, SIZE[dtype], options.get("a_major", "k"))
    right = right or Layout(n, steps, SIZE[dtype], options.get("b_major", "k"))
    count, kind = tiles * n // 2, np.int32 if "int" in dtype else np.float32
    a_tile = int(left.place[64, 0]) // 16 if tiles > 1 else 0
    mma = make_wgmma(n, dtype, b_dtype, steps=steps, tiles=tiles, a="registers" if registers else "shared",
                     a_step=pieces_of(left.step), b_step=pieces_of(right.step), a_tile=a_tile, **options)
    image = np.concatenate([left.bytes(a), right.bytes(b)]).view(np.uint32)
    thread, k = np.ogrid[:128, :count]
    rows, columns = accumulator_place(n, thread, k)
    fragments = words_of(a, dtype, held) if registers else np.zeros(1, np.uint32)
    before = np.full((128, count), -1 if kind is np.int32 else np.nan, kind)
    if sums is not None:
        before = sums.astype(kind)[rows, columns]
    out = np.zeros((128, count), kind)
    kernel = kernel_of(mma, left.constant, right.constant, left.nbytes, len(image), count, dtype, fragments.size // 128)
    launch(kernel, 1, 128, image, fragments, np.ascontiguousarray(before), out, 0 if sums is None else 1)
    result = np.full((len(a), n), 7e7, kind)
    result[rows, columns] = out
    return result


def words_of(a, dtype, steps):
    """[128, words] A in registers."""
    thread, word, part = np.ogrid[:128, :len(a) // 64 * steps * 4, :4 // SIZE[dtype]]
    rows, columns = operand_place(dtype, steps, thread, word, part)
    return np.ascontiguousarray(a[rows, columns]).view(np.uint32)[:, :, 0].copy()


def check(rng, n, dtype, b_dtype=None, steps=4, tiles=1, **options):
    """Exact, from zero and from earlier sums."""
    depth = steps * 32 // SIZE[dtype]
    a, b = small(rng, (64 * tiles, depth), dtype), small(rng, (n, depth), b_dtype or dtype)
    want = a.astype(np.float64) @ b.astype(np.float64).T
    assert np.abs(want).max() > 20
    assert (multiply(a, b, n=n, dtype=dtype, b_dtype=b_dtype, **options) == want).all()
    sums = rng.integers(-500, 500, want.shape)
    assert (multiply(a, b, n=n, dtype=dtype, b_dtype=b_dtype, sums=sums, **options) == want + sums).all()


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.mark.parametrize("registers", [False, True], ids=["shared", "registers"])
@pytest.mark.parametrize("dtype, b_dtype", [
    ("bfloat16", None), ("float16", None), ("tf32", None), ("float8_e4m3fn", None), ("float8_e5m2", None), ("float8_e4m3fn", "float8_e5m2"),
    ("float8_e5m2", "float8_e4m3fn"), ("int8", None), ("uint8", None), ("int8", "uint8"), ("uint8", "int8")])
def test_types(rng, dtype, b_dtype, registers):
    check(rng, 64, dtype, b_dtype, registers=registers)


@pytest.mark.parametrize("dtype, n", [("bfloat16", n) for n in (8, 16, 40, 96, 136, 200, 256)]
                         + [("int8", n) for n in (8, 24, 48, 224, 256)] + [("tf32", 72), ("float8_e4m3fn", 248)])
def test_widths(rng, dtype, n):
    check(rng, n, dtype)


@pytest.mark.parametrize("registers", [False, True], ids=["shared", "registers"])
@pytest.mark.parametrize("dtype, n, steps", [("bfloat16", 128, 4), ("tf32", 24, 2), ("int8", 96, 4), ("float8_e5m2", 8, 1)])
def test_two_tiles(rng, dtype, n, steps, registers):
    check(rng, n, dtype, steps=steps, tiles=2, registers=registers)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_steps(rng, steps):
    check(rng, 32, "bfloat16", steps=steps)


LAYOUTS = [("k", 0), ("k", 32), ("k", 64), ("k", 128), ("mn", 0), ("mn", 32), ("mn", 64), ("mn", 128)]


def steps_of(major, swizzle):
    """Those of one box where steps are at one distance."""
    return 2 if (major, swizzle) == ("k", 64) else 4


@pytest.mark.parametrize("steps, registers", [(5, False), (8, False), (8, True), (16, False)])
def test_k_goes_on_in_other_boxes(rng, steps, registers):
    check(rng, 48, "float16", steps=steps, registers=registers)
    with pytest.raises(ValueError, match="not for 4 steps"):
        make_wgmma(64, "float16", b_step=(0, 2, 4))


@pytest.mark.parametrize("major, swizzle", LAYOUTS)
@pytest.mark.parametrize("n", [96, 128])
def test_layouts_of_b(rng, n, major, swizzle):
    steps = steps_of(major, swizzle)
    check(rng, n, "float16", steps=steps, right=Layout(n, steps, 2, major, swizzle), b_major=major)
    if major == "k":
        check(rng, n, "int8", steps=steps, right=Layout(n, steps, 1, major, swizzle))


@pytest.mark.parametrize("major, swizzle", LAYOUTS)
@pytest.mark.parametrize("tiles", [1, 2])
def test_layouts_of_a(rng, tiles, major, swizzle):
    steps = steps_of(major, swizzle)
    check(rng, 32, "bfloat16", steps=steps, tiles=tiles, left=Layout(64 * tiles, steps, 2, major, swizzle), a_major=major)
    if major == "k":
        check(rng, 32, "tf32", steps=steps, tiles=tiles, left=Layout(64 * tiles, steps, 4, major, swizzle))


def test_both_transposed_and_registers_with_transposed_b(rng):
    check(rng, 64, "bfloat16", a_major="mn", b_major="mn")
    check(rng, 64, "bfloat16", b_major="mn", registers=True)


@pytest.mark.parametrize("tiles", [1, 2])
def test_steps_share_words_of_a(rng, tiles):
    few, b, order = small(rng, (64 * tiles, 32), "bfloat16"), small(rng, (48, 64), "bfloat16"), (1, 0, 0, 1)
    want = np.concatenate([few[:, 16 * g:16 * g + 16] for g in order], 1).astype(np.float64) @ b.astype(np.float64).T
    assert (multiply(few, b, n=48, dtype="bfloat16", registers=True, a_words=order) == want).all()
    with pytest.raises(ValueError, match="not for 4 steps"):
        make_wgmma(64, "bfloat16", a="registers", a_words=(0, 1))


def kernel_at(mma, wait, ka, a_at, kb, b_at, words, count):
    """Kernel: A B from zero, the operands `a_at` and `b_at` bytes into the image."""
    @cuda.jit(launch_bounds=128)
    def kernel(image, out):
        s = cuda.shared.array(words, u32, alignment=1024)
        t = i32(cuda.threadIdx.x)
        for k in range(t, words, 128):
            s[k] = image[k]
        fence_async()
        cuda.syncthreads()
        base = shared_address(s, 0)
        acc = cuda.local.array(count, f32)
        mma(acc, descriptor(ka, u32(base + a_at)), descriptor(kb, u32(base + b_at)), i32(0))
        wait(acc)
        for k in range(count):
            out[i32(t * count + k)] = acc[k]
    return kernel


def test_window_of_rows(rng):
    """A tile may start at any row of another one: the swizzle goes by the address."""
    slab, shift, n = Layout(72, 4, 2), 5, 32
    a, b = small(rng, (72, 64), "bfloat16"), small(rng, (n, 64), "bfloat16")
    right = Layout(n, 4, 2)
    image = np.concatenate([slab.bytes(a), right.bytes(b)]).view(np.uint32)
    kernel = kernel_at(make_wgmma(n, "bfloat16"), make_wgmma_wait(0, n // 2), slab.constant, 128 * shift, right.constant, slab.nbytes,
                       len(image), n // 2)
    out = np.zeros((128, n // 2), np.float32)
    launch(kernel, 1, 128, image, out)
    rows, columns = accumulator_place(n, *np.ogrid[:128, :n // 2])
    assert (out == (a[shift:shift + 64].astype(np.float64) @ b.astype(np.float64).T)[rows, columns]).all()


def test_three_windows_in_one_product(rng):
    """MN-major with 128 bytes to the next 64 columns: they are the same slab, one line of k on."""
    slab, taps = Layout(64, 2, 2, "mn"), 3
    pixels = small(rng, (64, 32), "bfloat16")
    a = small(rng, (64, 16), "bfloat16")
    left = Layout(64, 1, 2)
    image = np.concatenate([left.bytes(a), slab.bytes(pixels)]).view(np.uint32)
    n = 64 * taps
    mma, wait = make_wgmma(n, "bfloat16", steps=1, b_major="mn"), make_wgmma_wait(0, n // 2)
    kernel = kernel_at(mma, wait, left.constant, 0, matrix_descriptor(128, 1024, 128), left.nbytes, len(image), n // 2)
    out = np.zeros((128, n // 2), np.float32)
    launch(kernel, 1, 128, image, out)
    b = np.concatenate([pixels[:, tap:tap + 16] for tap in range(taps)])  # [3 * 64 columns, 16 of k]
    rows, columns = accumulator_place(n, *np.ogrid[:128, :n // 2])
    assert (out == (a.astype(np.float64) @ b.astype(np.float64).T)[rows, columns]).all()


@pytest.mark.parametrize("swizzle, base", [(128, 3), (64, 1), (64, 6), (32, 5)])
def test_base_offset(rng, swizzle, base):
    """A tile whose swizzle was counted from its own first row, at `base` times 128 bytes, says so in bits 49 to 51."""
    steps = swizzle // 32
    a, b = small(rng, (64, 16 * steps), "bfloat16"), small(rng, (16, 16 * steps), "bfloat16")
    left, right = Layout(64, steps, 2, "k", swizzle), Layout(16, steps, 2, "k", swizzle)
    image = np.concatenate([np.zeros(128 * base, np.uint8), left.bytes(a), np.zeros(1024 - 128 * base, np.uint8), right.bytes(b)])
    mma, wait = make_wgmma(16, "bfloat16", steps=steps), make_wgmma_wait(0, 8)
    kernel = kernel_at(mma, wait, left.constant | base << 49, 128 * base, right.constant, 1024 + left.nbytes, image.size // 4, 8)
    out = np.zeros((128, 8), np.float32)
    launch(kernel, 1, 128, image.view(np.uint32), out)
    assert (out == (a.astype(np.float64) @ b.astype(np.float64).T)[accumulator_place(16, *np.ogrid[:128, :8])]).all()


def pipeline(stages, wait_older):
    """Kernel of two warpgroups: rows of A times B^T over several stages in shared memory, the products of two stages under way."""
    mma, done = make_wgmma(32, "bfloat16"), make_wgmma_wait(0, 16)
    older, k_major = make_wgmma_wait(1, 0), Layout(128, 4, 2).constant
    words = stages * (128 + 32) * 32
    b_at = stages * 16384

    @cuda.jit(launch_bounds=256)
    def kernel(image, out):
        s = cuda.shared.array(words, u32, alignment=1024)
        t = i32(cuda.threadIdx.x)
        for k in range(t, words, 256):
            s[k] = image[k]
        fence_async()
        cuda.syncthreads()
        base = shared_address(s, 0)
        group = t >> 7
        acc = cuda.local.array(16, f32)
        for k in range(stages):
            a, b = u32(base + k * 16384 + group * 8192), u32(base + b_at + k * 4096)
            mma(acc, descriptor(k_major, a), descriptor(k_major, b), i32(k > 0))
            if wait_older:
                older(acc)
        done(acc)
        for k in range(16):
            out[i32(t * 16 + k)] = acc[k]
    return kernel


@pytest.mark.parametrize("wait_older", [False, True])
def test_groups_under_way(rng, wait_older):
    stages = 2
    a, b = small(rng, (128, stages * 64), "bfloat16"), small(rng, (32, stages * 64), "bfloat16")
    parts = [Layout(len(x), 4, 2).bytes(x[:, 64 * k:64 * k + 64]) for x in (a, b) for k in range(stages)]
    out = np.zeros((2, 128, 16), np.float32)
    launch(pipeline(stages, wait_older), 1, 256, np.concatenate(parts).view(np.uint32), out)
    rows, columns = accumulator_place(32, *np.ogrid[:128, :16])
    want = a.astype(np.float64) @ b.astype(np.float64).T
    for group in range(2):
        assert (out[group] == want[64 * group:64 * group + 64][rows, columns]).all()


def test_two_accumulators_and_a_product_of_a_product(rng):
    """The shape of attention: S = A B, and while O += P C runs on the older S, the next S."""
    wait_s, wait_o = make_wgmma_wait(1, 16), make_wgmma_wait(0, 8)
    a, b, c = small(rng, (64, 16), "float16"), small(rng, (32, 16), "float16"), small(rng, (16, 32), "float16")
    left, right, value = Layout(64, 1, 2, "k", 32), Layout(32, 1, 2, "k", 32), Layout(16, 2, 2, "mn", 0)
    image = np.concatenate([left.bytes(a), right.bytes(b), value.bytes(c)]).view(np.uint32)
    p = small(rng, (64, 32), "float16")
    words, b_at, c_at = len(image), left.nbytes, left.nbytes + right.nbytes
    ka, kb, kc = left.constant, right.constant, value.constant
    first = make_wgmma(32, "float16", steps=1)
    second = make_wgmma(16, "float16", steps=2, a="registers", b_major="mn", b_step=value.step // 16)

    @cuda.jit(launch_bounds=128)
    def kernel(image, fragments, scores, out):
        s = cuda.shared.array(words, u32, alignment=1024)
        t = i32(cuda.threadIdx.x)
        for k in range(t, words, 128):
            s[k] = image[k]
        fence_async()
        cuda.syncthreads()
        base = shared_address(s, 0)
        score, total, weights = cuda.local.array(16, f32), cuda.local.array(8, f32), cuda.local.array(8, u32)
        for k in range(8):
            weights[k] = fragments[i32(t * 8 + k)]
        first(score, descriptor(ka, base), descriptor(kb, u32(base + b_at)), i32(0))
        second(total, weights, descriptor(kc, u32(base + c_at)), i32(0))
        wait_s(score)
        for k in range(16):
            scores[i32(t * 16 + k)] = score[k]
        wait_o(total)
        for k in range(8):
            out[i32(t * 8 + k)] = total[k]

    scores, out = np.zeros((128, 16), np.float32), np.zeros((128, 8), np.float32)
    launch(kernel, 1, 128, image, words_of(p, "float16", 2), scores, out)
    a, b, c, p = (x.astype(np.float64) for x in (a, b, c, p))
    assert (scores == (a @ b.T)[accumulator_place(32, *np.ogrid[:128, :16])]).all()
    assert (out == (p @ c.T)[accumulator_place(16, *np.ogrid[:128, :8])]).all()


@pytest.mark.parametrize("registers", [False, True], ids=["shared", "registers"])
def test_tf32_drops_13_bits(rng, registers):
    a, b = np.zeros((64, 8), np.float32), np.zeros((8, 8), np.float32)
    a[:, 3], b[:, 3] = rng.normal(size=64), rng.normal(size=8)
    cut = [(x.view(np.uint32) & 0xFFFFE000).view(np.float32).astype(np.float64) for x in (a, b)]
    assert (cut[0] != a).any() and (cut[1] != b).any()
    got = multiply(a, b, n=8, dtype="tf32", registers=registers)
    assert (got == cut[0] @ cut[1].T).all()  # one product a sum, of 11 bits by 11


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_random_values(rng, dtype):
    a, b = rng.normal(size=(64, 64)).astype(NUMPY[dtype]), rng.normal(1, 1, size=(64, 64)).astype(NUMPY[dtype])
    wide = a.astype(np.float64), b.astype(np.float64)
    got = multiply(a, b, n=64, dtype=dtype)
    bound = 64 * 2.0 ** -23 * (np.abs(wide[0]) @ np.abs(wide[1]).T)  # every addition may lose a unit of float32, truncated
    assert (np.abs(got - wide[0] @ wide[1].T) <= bound).all()


def test_integers_wrap():
    a, b = np.full((64, 32), 127, np.int8), np.full((8, 32), 127, np.int8)
    sums = np.full((64, 8), 2 ** 31 - 32 * 127 ** 2)
    assert (multiply(a, b, n=8, dtype="int8", sums=sums) == -2 ** 31).all()


@pytest.mark.parametrize("n, tiles", [(8, 1), (64, 1), (24, 3), (256, 1)])
def test_every_sum_has_one_place(n, tiles):
    rows, columns = np.broadcast_arrays(*accumulator_place(n, *np.ogrid[:128, :tiles * n // 2]))
    assert sorted(zip(rows.ravel(), columns.ravel())) == [(r, c) for r in range(64 * tiles) for c in range(n)]
    assert accumulator_place(n, 37, 0) == (16 + 1, 2) and accumulator_place(n, 37, 3) == (16 + 9, 3)


@pytest.mark.parametrize("dtype, steps", [("tf32", 1), ("bfloat16", 2), ("int8", 3)])
def test_every_operand_has_one_place(dtype, steps):
    depth = steps * 32 // SIZE[dtype]
    rows, k = np.broadcast_arrays(*operand_place(dtype, steps, *np.ogrid[:128, :8 * steps, :4 // SIZE[dtype]]))
    assert sorted(zip(rows.ravel(), k.ravel())) == [(r, c) for r in range(128) for c in range(depth)]


def test_descriptors():
    assert matrix_descriptor(16, 1024, 128) == 1 << 16 | 64 << 32 | 1 << 62
    assert matrix_descriptor(8192, 512, 64) == 512 << 16 | 32 << 32 | 2 << 62
    assert matrix_descriptor(0, 256, 32) == 16 << 32 | 3 << 62 and matrix_descriptor(128, 256, 0) == 8 << 16 | 16 << 32
    for bad in [(8, 1024, 128), (16, 1 << 18, 128), (-16, 1024, 128), (16, 1024, 96)]:
        with pytest.raises(ValueError, match="matrix_descriptor"):
            matrix_descriptor(*bad)


@pytest.mark.parametrize("arguments, options, text", [
    ((12, "bfloat16"), {}, "m64n12, bfloat16: n is a multiple of 8 from 8 to 256$"),
    ((264, "bfloat16"), {}, "m64n264"),
    ((40, "int8"), {}, "m64n40, int8: n is .* for integers above 32 a multiple of 16"),
    ((64, "float32"), {}, "dtypes are bfloat16, float16, tf32"),
    ((64, "bfloat16", "float16"), {}, "bfloat16 x float16: only the two kinds of fp8"),
    ((64, "float8_e4m3fn", "int8"), {}, "may be mixed"),
    ((64, "tf32"), {"b_major": "mn"}, "only 16-bit operands may be MN-major"),
    ((64, "int8"), {"a_major": "mn"}, "only 16-bit operands may be MN-major"),
    ((64, "bfloat16"), {"a": "registers", "a_major": "mn"}, "A in registers has no major dimension"),
    ((64, "bfloat16"), {"a": "global"}, "a='global' is 'shared' or 'registers'"),
    ((64, "bfloat16"), {"b_major": "n"}, "b_major='n' are 'k' or 'mn'"),
    ((256, "bfloat16"), {"tiles": 2}, r"2 tiles of 4 steps take 2 \* 256 / 2 accumulators"),
    ((64, "bfloat16"), {"steps": 0}, "0 steps")])
def test_refusals(arguments, options, text):
    with pytest.raises(ValueError, match=text):
        make_wgmma(*arguments, **options)


def test_wait_refuses():
    for pending, count in ((8, 64), (-1, 64), (0, 256), (0, -1)):
        with pytest.raises(ValueError, match="make_wgmma_wait"):
            make_wgmma_wait(pending, count)


@pytest.mark.skipif(not SIMULATED, reason="only the simulator notices")
def test_misuse():
    from dnnkern.device.sim import Deadlock, Misuse
    mma, wait, k_major = make_wgmma(8, "bfloat16", steps=1), make_wgmma_wait(0, 4), matrix_descriptor(16, 256, 32)

    def kernel_for(threads, size, above=0):
        @cuda.jit(launch_bounds=256)
        def kernel(x):
            s = cuda.shared.array(1024, u32, alignment=1024)
            t = i32(cuda.threadIdx.x)
            for k in range(t, 1024, threads):
                s[k] = u32(0)
            fence_async()
            cuda.syncthreads()
            acc = cuda.local.array(size, f32)
            if t < threads - above:
                mma(acc, descriptor(k_major, shared_address(s, 0)), descriptor(k_major, u32(shared_address(s, 0) + 2048)), i32(0))
                wait(acc)
            x[t] = acc[0]
        return kernel, threads

    def run(kernel, threads):
        x = np.ones(threads, np.float32)
        launch(kernel, 1, threads, x)
        return x
    assert (run(*kernel_for(128, 4)) == 0).all()
    with pytest.raises(Misuse, match="a warpgroup has 128 threads; the block of 160 has 32 from thread 128 on"):
        run(*kernel_for(160, 4))
    with pytest.raises(Deadlock, match=r"96 threads 0-95: wgmma wait: 96 of the 128 threads of warpgroup 0 arrived"):
        run(*kernel_for(128, 4, above=32))
    with pytest.raises(Misuse, match="expected a local array of at least 4 float32, got float32 .3,."):
        run(*kernel_for(128, 3))

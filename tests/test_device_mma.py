"""Products of fragments: every instruction on small integers, where every sum is exact; rounding; operands by way of ldmatrix."""
import ml_dtypes
import numpy as np
import pytest
from kit import launch, needs

from dnnkern.device import SIMULATED, cuda, f32, f64, i32, u32
from dnnkern.device.ldmatrix import ldmatrix_x2, ldmatrix_x2_trans, ldmatrix_x4, ldmatrix_x4_trans
from dnnkern.device.mma import FRAGMENTS, make_mma
from dnnkern.device.vec import shared_address

NUMPY = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "tf32": np.float32, "int8": np.int8, "uint8": np.uint8,
         "float8_e4m3fn": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2, "float64": np.float64}
CAST = {"float32": f32, "float64": f64, "int32": i32, "uint32": u32}
CAPABILITY = {"float8_e4m3fn": (8, 9), "float8_e5m2": (8, 9)}
SHAPES = [pytest.param(f, id=f"{f.dtype}-m{f.m}n{f.n}k{f.k}",
                       marks=needs(*((9, 0) if f.dtype == "float64" and f.m == 16 else CAPABILITY.get(f.dtype, (8, 0)))))
          for f in FRAGMENTS.values()]
simulated = pytest.mark.skipif(not SIMULATED, reason="only the simulator notices")


def by_lane(matrix, place, words, f, per_word):
    """The array [lane, word] of the local arrays that hold a matrix, by a function (lane, element) -> (row, column)."""
    elements = np.array([[matrix[place(lane, e)] for e in range(words * per_word)] for lane in range(32)], matrix.dtype)
    return elements.view(np.uint32) if f.dtype != "float64" and per_word * matrix.itemsize == 4 and place != f.acc else elements


def product(f, a, b, c):
    """c + a b by one instruction."""
    (nc, na, nb), (tc, ta, tb) = f.words, (CAST[s] for s in f.scalars)
    mma, size_a, size_acc = make_mma(f.dtype, f.m, f.k), na + 1, nc + 2

    @cuda.jit(launch_bounds=32)
    def kernel(x, y, z):
        t = i32(cuda.threadIdx.x)
        fa, fb, acc = cuda.local.array(size_a, ta), cuda.local.array(nb, tb), cuda.local.array(size_acc, tc)
        for k in range(na):
            fa[k + 1] = x[i32(t * na + k)]
        for k in range(nb):
            fb[k] = y[i32(t * nb + k)]
        for k in range(nc):
            acc[k + 2] = z[i32(t * nc + k)]
        mma(acc, 2, fa, 1, fb, 0)
        for k in range(nc):
            z[i32(t * nc + k)] = acc[k + 2]
    z = by_lane(c.astype(f.scalars[0]), f.acc, nc, f, 1)
    launch(kernel, 1, 32, by_lane(a, f.a, na, f, f.per_word), by_lane(b, f.b, nb, f, f.per_word), z)
    out = np.full(c.shape, -77, z.dtype)
    for lane in range(32):
        for e in range(nc):
            out[f.acc(lane, e)] = z[lane, e]
    return out


def integers(f, seed):
    rng, low = np.random.default_rng(seed), 0 if f.dtype == "uint8" else -4
    a, b = (rng.integers(low, 5, shape).astype(NUMPY[f.dtype]) for shape in ((f.m, f.k), (f.k, f.n)))
    return a, b, rng.integers(-9, 10, (f.m, f.n))


@pytest.mark.parametrize("f", SHAPES)
def test_every_shape_is_exact_on_integers(f):
    a, b, c = integers(f, 1)
    np.testing.assert_array_equal(product(f, a, b, c), c + a.astype(np.int64) @ b.astype(np.int64))


@pytest.mark.parametrize("f", SHAPES)
def test_fragments_cover_each_matrix_once(f):
    """No element is missing and none is held twice."""
    nc, na, nb = f.words
    for place, count, shape in ((f.a, na * f.per_word, (f.m, f.k)), (f.b, nb * f.per_word, (f.k, f.n)), (f.acc, nc, (f.m, f.n))):
        assert {place(lane, e) for lane in range(32) for e in range(count)} == set(np.ndindex(shape))
        assert 32 * count == shape[0] * shape[1]


@pytest.mark.parametrize("f", [s for s in SHAPES if s.values[0].dtype not in ("int8", "uint8", "float64")])
def test_sums_are_of_float32(f):
    """Products are exact, sums good to float32, not to the operands' type; infinities and NaN come through."""
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((f.m, f.k), (f.k, f.n)))
    if f.dtype == "tf32":
        a, b = ((x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for x in (a, b))
    a, b = a.astype(NUMPY[f.dtype]), b.astype(NUMPY[f.dtype])
    c = rng.standard_normal((f.m, f.n)).astype(np.float32)
    exact, size = c + a.astype(np.float64) @ b.astype(np.float64), np.abs(c) + np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    assert (np.abs(product(f, a, b, c) - exact) <= size * (2 ** -12 if f.per_word == 4 else 2 ** -19)).all()
    a[1, 2] = np.nan
    c[3, 4] = np.inf
    got = product(f, a, b, c)
    assert np.isnan(got[1]).all() and np.isfinite(got[0]).all() and got[3, 4] == np.inf


def test_tf32_reads_19_bits():
    f = FRAGMENTS["tf32", 16, 8]
    a, b = np.full((16, 8), 1 + 2 ** -10 + 2 ** -11, np.float32), np.zeros((8, 8), np.float32)
    b[0] = 1 + 2 ** -11 + 2 ** -23
    np.testing.assert_array_equal(product(f, a, b, np.zeros((16, 8))), np.full((16, 8), 1 + 2 ** -10, np.float32))


def test_integer_sums_wrap():
    f = FRAGMENTS["int8", 16, 32]
    a, b = np.ones((16, 32), np.int8), np.ones((32, 8), np.int8)
    np.testing.assert_array_equal(product(f, a, b, np.full((16, 8), 2 ** 31 - 1)), np.full((16, 8), -2 ** 31 + 31))


def _through_shared(f, a_trans, b_trans):
    """Kernel: one product whose operands come by ldmatrix from tiles [m][k] and [n][k]; where ``trans`` from [k][m] and [k][n]."""
    mma, words_a, words_b, T = make_mma(f.dtype), f.m * f.k // f.per_word, f.k * f.n // f.per_word, CAST[f.scalars[0]]
    load_a, load_b = ldmatrix_x4_trans if a_trans else ldmatrix_x4, ldmatrix_x2_trans if b_trans else ldmatrix_x2
    row_a, row_b = (f.m if a_trans else f.k) // f.per_word, (f.n if b_trans else f.k) // f.per_word

    @cuda.jit(launch_bounds=32)
    def kernel(x, y, z):
        a, b = cuda.shared.array(words_a, u32, alignment=16), cuda.shared.array(words_b, u32, alignment=16)
        fa, fb, acc = cuda.local.array(4, u32), cuda.local.array(2, u32), cuda.local.array(4, T)
        t = i32(cuda.threadIdx.x)
        for k in range(t, words_a, 32):
            a[k] = x[k]
        for k in range(t, words_b, 32):
            b[k] = y[k]
        cuda.syncwarp()
        low, high = i32(t % 16 // 8), i32(t // 16)
        if a_trans:  # matrices in the order rows 0-7 and 8-15, then the same 16 bytes further along k
            load_a(fa, 0, shared_address(a, i32((t % 8 + 8 * high) * row_a + 4 * low)))
        else:
            load_a(fa, 0, shared_address(a, i32(t % 16 * row_a + 4 * high)))
        if b_trans:
            load_b(fb, 0, shared_address(b, i32(t % 16 * row_b)))
        else:
            load_b(fb, 0, shared_address(b, i32(t % 8 * row_b + 4 * low)))
        for e in range(4):
            acc[e] = T(0)
        mma(acc, 0, fa, 0, fb, 0)
        for e in range(4):
            z[i32((t // 4 + 8 * (e // 2)) * 8 + 2 * (t % 4) + e % 2)] = acc[e]
    return kernel


@pytest.mark.parametrize("dtype, a_trans, b_trans", [(d, p, q) for d in ("bfloat16", "float16") for p in (0, 1) for q in (0, 1)]
                         + [("tf32", 0, 0), ("int8", 0, 0), pytest.param("float8_e4m3fn", 0, 0, marks=needs(8, 9))])
def test_operands_by_ldmatrix(dtype, a_trans, b_trans):
    f = next(s for s in FRAGMENTS.values() if s.dtype == dtype)
    a, b, _ = integers(f, 3)
    z = np.full((16, 8), -1, f.scalars[0])
    x, y = (a.T if a_trans else a), (b if b_trans else b.T)
    launch(_through_shared(f, bool(a_trans), bool(b_trans)), 1, 32, *(np.ascontiguousarray(v).view(np.uint32) for v in (x, y)), z)
    np.testing.assert_array_equal(z, a.astype(np.int64) @ b.astype(np.int64))


def test_unknown_instructions():
    for arguments in (("float32",), ("float64", 16, 32), ("bfloat16", 8)):
        with pytest.raises(ValueError, match="make_mma: no instruction for"):
            make_mma(*arguments)


@simulated
@pytest.mark.parametrize("dtype, types, sizes, first, text", [
    ("bfloat16", (f32, u32, u32), (4, 4, 2), 1, r"elements 1 \.\. 4 of a local array of 4"),
    ("bfloat16", (f32, f32, u32), (4, 4, 2), 0, "local array of uint32 is expected, not one of float32"),
    ("int8", (f32, u32, u32), (4, 4, 2), 0, "local array of int32 is expected, not one of float32"),
    ("float64", (f64, f64, u32), (4, 4, 2), 0, "local array of float64 is expected, not one of uint32")])
def test_refused(dtype, types, sizes, first, text):
    from dnnkern.device.sim import Misuse
    (tc, ta, tb), (nc, na, nb), mma = types, sizes, make_mma(dtype)

    @cuda.jit(launch_bounds=32)
    def kernel():
        mma(cuda.local.array(nc, tc), first, cuda.local.array(na, ta), 0, cuda.local.array(nb, tb), 0)
    with pytest.raises(Misuse, match=text):
        launch(kernel, 1, 32)

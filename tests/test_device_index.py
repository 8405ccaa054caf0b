"""`dnnkern.device.index`: division against Python's on edge and random divisors, coordinates against NumPy's."""
import numpy as np
import pytest
from kit import launch

from dnnkern.device import cuda, i32, i64, u32
from dnnkern.device.index import (LIMIT, ceil_div, ceil_divide, divide, divide_remainder, divisor, funnel_shift, offset64, unflatten2,
                                  unflatten3, unflatten4)

EDGES = sorted({d for k in range(32) for d in (2**k - 1, 2**k, 2**k + 1) if 0 < d < LIMIT} | {7, 10, 28, 56, 112, 641, 1000003})


def _dividends(d):
    """0, the ends, and numbers on both sides of multiples of d: where a quotient can be wrong."""
    multiples = [q * d for q in (1, 2, 3, 1000, (LIMIT - 1) // d // 2, (LIMIT - 1) // d)]
    n = {0, 1, LIMIT - 1, LIMIT - 2} | {m + k for m in multiples for k in (-1, 0, 1)}
    return np.array(sorted(v for v in n if 0 <= v < LIMIT), np.int32)


@cuda.jit(launch_bounds=32)
def _divide(n, q, q2, r, count, d0, d1, d2):
    d = (d0, d1, d2)
    for i in range(i32(cuda.threadIdx.x), count, 32):
        q[i] = divide(n[i], d)
        a, b = divide_remainder(n[i], d)
        q2[i] = a
        r[i] = b


def test_divide_at_the_edges():
    rng = np.random.default_rng(13)
    for d in EDGES + rng.integers(1, LIMIT, 20).tolist() + rng.integers(1, 5000, 20).tolist():
        n = _dividends(d)
        q, q2, r = np.full_like(n, -1), np.full_like(n, -1), np.full_like(n, -1)
        launch(_divide, 1, 32, n, q, q2, r, len(n), *(np.uint32(v) for v in divisor(d)))
        np.testing.assert_array_equal(q, n // d, err_msg=f"d={d}")
        np.testing.assert_array_equal(q2, n // d, err_msg=f"d={d}")
        np.testing.assert_array_equal(r, n % d, err_msg=f"d={d}")


def test_the_magic_numbers_of_many_divisors():
    rng = np.random.default_rng(14)
    for d in EDGES + rng.integers(1, LIMIT, 300).tolist():
        _, multiplier, shift = divisor(d)
        assert 0 < multiplier < 2**32 and 0 <= shift < 32
        ends = np.unique(np.concatenate([_dividends(d), rng.integers(0, LIMIT, 200)])).astype(np.uint64)
        q = (ends * np.uint64(2) * np.uint64(multiplier) >> np.uint64(32)) >> np.uint64(shift)
        np.testing.assert_array_equal(q, ends // np.uint64(d), err_msg=f"d={d}")


@pytest.mark.parametrize("d", [0, -3, LIMIT])
def test_divisor_refuses(d):
    with pytest.raises(ValueError, match=r"outside 1 .. 2\*\*31 - 1"):
        divisor(d)


@cuda.jit(launch_bounds=128)
def _unflatten(y, a0, a1, a2, b0, b1, b2, c0, c1, c2):
    i = i32(cuda.threadIdx.x)
    a, b, c = (a0, a1, a2), (b0, b1, b2), (c0, c1, c2)
    p, q = unflatten2(i, c)
    y[i] = i32(p * 100 + q)
    p, q, r = unflatten3(i, b, c)
    y[i32(128 + i)] = i32(p * 10000 + q * 100 + r)
    p, q, r, s = unflatten4(i, a, b, c)
    y[i32(256 + i)] = i32(p * 1000000 + q * 10000 + r * 100 + s)


def test_unflatten():
    y, i = np.zeros(384, np.int32), np.arange(128)
    launch(_unflatten, 1, 128, y, *(np.uint32(v) for d in (3, 5, 7) for v in divisor(d)))
    p, q = np.unravel_index(i, (19, 7))
    np.testing.assert_array_equal(y[:128], p * 100 + q)
    p, q, r = np.unravel_index(i, (4, 5, 7))
    np.testing.assert_array_equal(y[128:256], p * 10000 + q * 100 + r)
    p, q, r, s = np.unravel_index(i, (2, 3, 5, 7))
    np.testing.assert_array_equal(y[256:], p * 1000000 + q * 10000 + r * 100 + s)


@cuda.jit(launch_bounds=32)
def _wide(y, z, stride):
    i = i32(cuda.threadIdx.x)
    y[i] = i64(offset64(i32(i + 1000), stride) - offset64(i, stride))
    z[i] = ceil_divide(i, i32(5))


def test_wide_offsets_and_ceil_divide():
    y, z = np.zeros(32, np.int64), np.zeros(32, np.int32)
    launch(_wide, 1, 32, y, z, 2**31 - 1)
    np.testing.assert_array_equal(y, np.full(32, 1000 * (2**31 - 1)))
    np.testing.assert_array_equal(z, [ceil_div(i, 5) for i in range(32)])
    assert [ceil_div(n, 4) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]


def test_funnel_shift():
    @cuda.jit(launch_bounds=32)
    def kernel(low, high, y):
        t = i32(cuda.threadIdx.x)
        y[t] = funnel_shift(low[t], high[t], u32(t))
    low, high = np.random.default_rng(0).integers(0, 2 ** 32, (2, 32), dtype=np.uint32)
    y = np.zeros(32, np.uint32)
    launch(kernel, 1, 32, low, high, y)
    assert [int(v) for v in y] == [(int(h) << 32 | int(w)) >> bits & 0xFFFFFFFF for bits, (w, h) in enumerate(zip(low, high))]

"""`dnnkern.device.block`: block reductions of every kind, several in a row on one scratch array, at every block size that differs."""
import numpy as np
import pytest
from kit import launch

from dnnkern.device import SIMULATED, cuda, f32, f64, i32
from dnnkern.device.block import (add, make_block_broadcast, make_block_reduce, make_block_reduce_pair, merge_moments, merge_softmax,
                                  merge_sums)
from dnnkern.device.fastmath import maximum, minimum

CALLS = 3


def _reduce_kernel(combine, threads, scalar):
    reduce, size = make_block_reduce(combine, threads), 2 * (threads // 32)

    @cuda.jit(launch_bounds=threads)
    def kernel(x, y):
        scratch = cuda.shared.array(size, scalar)
        t = i32(cuda.threadIdx.x)
        for k in range(CALLS):
            y[i32(k * threads + t)] = reduce(x[i32(k * threads + t)], scratch, i32(k & 1))
    return kernel


@pytest.mark.parametrize("threads", [32, 64, 96, 128, 256, 352])
@pytest.mark.parametrize("combine, expected", [(add, np.sum), (maximum, np.max), (minimum, np.min)])
def test_reduce(threads, combine, expected):
    x = np.random.default_rng(9).integers(-1000, 1000, CALLS * threads).astype(np.float32)
    y = np.zeros_like(x)
    launch(_reduce_kernel(combine, threads, f32), 1, threads, x, y)
    np.testing.assert_array_equal(y.reshape(CALLS, threads), np.repeat(expected(x.reshape(CALLS, threads), axis=1)[:, None], threads, 1))


@pytest.mark.parametrize("scalar, dtype", [(f64, "float64"), (i32, "int32")])
def test_reduce_of_other_types(scalar, dtype):
    x = np.random.default_rng(10).integers(-10**6, 10**6, CALLS * 128).astype(dtype)
    y = np.zeros_like(x)
    launch(_reduce_kernel(add, 128, scalar), 1, 128, x, y)
    np.testing.assert_array_equal(y.reshape(CALLS, 128)[:, 77], x.reshape(CALLS, 128).sum(1))


def test_all_threads_get_the_same_bits_twice():
    x = np.random.default_rng(11).standard_normal(CALLS * 96).astype(np.float32)
    first, second = np.zeros_like(x), np.zeros_like(x)
    for y in (first, second):
        launch(_reduce_kernel(add, 96, f32), 1, 96, x, y)
    np.testing.assert_array_equal(first.view(np.uint32), second.view(np.uint32))
    assert all(len(np.unique(row)) == 1 for row in first.view(np.uint32).reshape(CALLS, 96))
    np.testing.assert_allclose(first.reshape(CALLS, 96)[:, 0], x.reshape(CALLS, 96).sum(1), rtol=1e-5, atol=1e-5)


def _pair_kernel(merge, threads, width):
    reduce, size = make_block_reduce_pair(merge, threads, width), 4 * (threads // 32)

    @cuda.jit(launch_bounds=threads)
    def kernel(x, start, y, z):
        scratch = cuda.shared.array(size, f32)
        t = i32(cuda.threadIdx.x)
        for k in range(CALLS):
            at = i32(k * threads + t)
            a, b = reduce(x[at], start[at], f32(1), scratch, i32(k & 1))
            y[at] = a
            z[at] = b
    return kernel


@pytest.mark.parametrize("threads, width", [(32, None), (128, None), (256, None), (64, 4), (64, 16), (64, 32)])
@pytest.mark.parametrize("merge", [merge_sums, merge_moments, merge_softmax])
def test_reduce_pair(merge, threads, width):
    group = width or threads
    x = (np.random.default_rng(12).standard_normal(CALLS * threads) * 2 + 100).astype(np.float32)
    start = np.full_like(x, 0 if merge is merge_moments else 1)
    y, z = np.zeros_like(x), np.zeros_like(x)
    launch(_pair_kernel(merge, threads, width), 1, threads, x, start, y, z)
    rows = x.reshape(-1, group).astype(np.float64)
    a, b = {merge_sums: lambda: (rows.sum(1), np.full(len(rows), group)),
            merge_moments: lambda: (rows.mean(1), ((rows - rows.mean(1, keepdims=True))**2).sum(1)),
            merge_softmax: lambda: (rows.max(1), np.exp(rows - rows.max(1, keepdims=True)).sum(1))}[merge]()
    np.testing.assert_allclose(y.reshape(-1, group), np.repeat(a[:, None], group, 1), rtol=1e-6)
    np.testing.assert_allclose(z.reshape(-1, group), np.repeat(b[:, None], group, 1), rtol=1e-5)


def test_softmax_merge_of_nothing_and_of_nan():
    x = np.full(CALLS * 32, -np.inf, np.float32)
    x[32] = 3
    x[64:] = np.arange(32)
    x[70] = np.nan
    start = np.where(np.isneginf(x), 0, 1).astype(np.float32)
    y, z = np.zeros_like(x), np.zeros_like(x)
    launch(_pair_kernel(merge_softmax, 32, None), 1, 32, x, start, y, z)
    assert np.isneginf(y[:32]).all() and (z[:32] == 0).all()
    assert (y[32:64] == 3).all() and (z[32:64] == 1).all()
    assert np.isnan(y[64:]).all() and np.isnan(z[64:]).all()


def test_broadcast():
    broadcast = make_block_broadcast(96)

    @cuda.jit(launch_bounds=96)
    def kernel(x, y):
        scratch = cuda.shared.array(2, f32)
        t = i32(cuda.threadIdx.x)
        for k in range(CALLS):
            y[i32(96 * k + t)] = broadcast(x[t], i32(31 * k + 5), scratch, i32(k & 1))
    x, y = np.arange(96, dtype=np.float32), np.zeros(96 * CALLS, np.float32)
    launch(kernel, 1, 96, x, y)
    np.testing.assert_array_equal(y, np.repeat([5, 36, 67], 96))


@pytest.mark.skipif(not SIMULATED, reason="a GPU does not notice")
def test_the_simulator_notices_that_the_halves_do_not_alternate():
    from dnnkern.device.sim import Race
    reduce = make_block_reduce(add, 64)

    @cuda.jit(launch_bounds=64)
    def kernel(x, y):
        scratch = cuda.shared.array(4, f32)
        t = i32(cuda.threadIdx.x)
        y[t] = reduce(reduce(x[t], scratch, i32(0)), scratch, i32(0))
    with pytest.raises(Race):
        launch(kernel, 1, 64, np.ones(64, np.float32), np.zeros(64, np.float32))


def test_sizes_are_checked():
    with pytest.raises(ValueError, match="48 threads"):
        make_block_reduce(add, 48)
    with pytest.raises(ValueError, match="96 threads"):
        make_block_reduce_pair(merge_sums, 96)

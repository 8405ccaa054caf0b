"""`dnnkern.device.vec`: what the accesses move, their alignment, and that a refused one touches nothing."""
import numpy as np
import pytest
from kit import launch

from dnnkern.device import SIMULATED, cuda, f32, f64, i32, u32, vec
from dnnkern.device.vec import (address, advance, as_f32, as_i8, as_u32, as_u64, load1_nc_if, load2, load4, load4_if, load4_into, load4_nc,
                                load4_nc_if, load4_nc_if_into, load4_nc_into, pin, shared_address, store4, store4_cs, store4_cs_from,
                                store4_from)

THREADS = 32
ELEMENTS = 4 * THREADS


def _copy(load, store, count):
    @cuda.jit(launch_bounds=THREADS)
    def kernel(x, y):
        i = i32(cuda.threadIdx.x * count)
        store(y, i, load(x, i))
    return kernel


def _copy_by_buffer(load_into, store_from, count, scalar):
    size = 2 * count

    @cuda.jit(launch_bounds=THREADS)
    def kernel(x, y):
        buffer = cuda.local.array(size, scalar)
        i = i32(cuda.threadIdx.x * count)
        load_into(buffer, count, x, i)
        store_from(y, i, buffer, count)
    return kernel


NAMES = [("load2", "store2", 2), ("load4", "store4", 4), ("load2_nc", "store2_cs", 2), ("load4_nc", "store4_cs", 4),
         ("load1_nc", "store1_cs", 1)]
DTYPES = ["float32", "uint32", "int32", "float64", "uint64", "uint16"]


@pytest.mark.parametrize("load, store, count, dtype", [(*n, d) for n in NAMES for d in DTYPES if np.dtype(d).itemsize * n[2] <= 16])
def test_copy(load, store, count, dtype):
    x = np.random.default_rng(0).integers(1, 60000, THREADS * count).astype(dtype)
    y = np.zeros_like(x)
    launch(_copy(getattr(vec, load), getattr(vec, store), count), 1, THREADS, x, y)
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("load_into, store_from, count, dtype", [
    ("load4_into", "store4_from", 4, "float32"), ("load4_nc_into", "store4_cs_from", 4, "uint32"),
    ("load2_into", "store2_from", 2, "float64"), ("load2_nc_into", "store2_cs_from", 2, "uint32"),
    ("load1_nc_into", "store1_cs_from", 1, "uint32")])
def test_copy_through_a_local_array(load_into, store_from, count, dtype):
    x = np.random.default_rng(1).integers(1, 2**31, THREADS * count).astype(dtype)
    y = np.zeros_like(x)
    scalar = {"float32": f32, "float64": f64, "uint32": u32}[dtype]
    launch(_copy_by_buffer(getattr(vec, load_into), getattr(vec, store_from), count, scalar), 1, THREADS, x, y)
    np.testing.assert_array_equal(x, y)


@cuda.jit(launch_bounds=THREADS)
def guarded(x, y, z, w, n):
    t = i32(cuda.threadIdx.x)
    i = i32(4 * t)
    ok = i < n
    buffer = cuda.local.array(4, f32)
    store4(y, i, load4_if(x, i, ok))
    store4(z, i, load4_nc_if(x, i, ok))
    load4_nc_if_into(buffer, 0, x, i, ok)
    buffer[0] = f32(buffer[0] + load1_nc_if(x, i, ok))
    store4_from(w, i, buffer, 0)


def test_predicated_loads_read_nothing_past_the_end_and_give_zero():
    n = 20
    x = np.arange(1, n + 1, dtype=np.float32)
    y, z, w = (np.full(4 * THREADS, np.nan, np.float32) for _ in range(3))
    launch(guarded, 1, THREADS, x, y, z, w, n)
    expected = np.concatenate([x, np.zeros(4 * THREADS - n, np.float32)])
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(z, expected)
    expected[::4] *= 2
    np.testing.assert_array_equal(w, expected)


@cuda.jit(launch_bounds=THREADS)
def reinterpret(halves, bytes_, marks, words, longs, floats):
    t = i32(cuda.threadIdx.x)
    a, b, c, d = load4(as_u32(halves), i32(4 * t))
    store4(words, i32(4 * t), (a, b, c, d))
    as_u64(longs)[t] = load2(as_u64(halves), i32(2 * t))[1]
    floats[t] = as_f32(bytes_)[i32(t + 1)]
    as_i8(marks)[i32(4 * t)] = -1
    advance(words, i32(4 * THREADS))[t] = advance(advance(as_u32(halves), 5), i32(t) - 5)[0]


def test_pointers_to_other_types_and_arithmetic():
    halves = np.random.default_rng(2).integers(0, 2**16, 8 * THREADS).astype(np.uint16)
    values = np.arange(THREADS + 1, dtype=np.float32)
    words, longs, floats = np.zeros(5 * THREADS, np.uint32), np.zeros(THREADS, np.uint64), np.zeros(THREADS, np.float32)
    marks = np.zeros(4 * THREADS, np.uint8)
    launch(reinterpret, 1, THREADS, halves, values.view(np.uint8), marks, words, longs, floats)
    np.testing.assert_array_equal(words[:4 * THREADS], halves.view(np.uint32))
    np.testing.assert_array_equal(words[4 * THREADS:], halves.view(np.uint32)[:THREADS])
    np.testing.assert_array_equal(longs, halves.view(np.uint64)[1::2])
    np.testing.assert_array_equal(floats, values[1:])
    np.testing.assert_array_equal(marks.reshape(-1, 4), np.full((THREADS, 4), [255, 0, 0, 0]))


@cuda.jit(launch_bounds=THREADS)
def addresses(x, y):
    t = i32(cuda.threadIdx.x)
    y[t] = address(x, t) - address(x, 0)


def test_address_counts_bytes():
    y = np.zeros(THREADS, np.uint64)
    launch(addresses, 1, THREADS, np.zeros(THREADS, np.float32), y)
    np.testing.assert_array_equal(y, 4 * np.arange(THREADS))


@cuda.jit(launch_bounds=THREADS)
def through_shared(x, y, z):
    tile = cuda.shared.array(ELEMENTS, f32, alignment=16)
    t = i32(cuda.threadIdx.x)
    store4(tile, i32(4 * t), load4_nc(x, i32(4 * t)))
    cuda.syncthreads()
    store4(y, i32(4 * t), load4(tile, i32(4 * (THREADS - 1 - t))))
    at = shared_address(tile, i32(4 * (THREADS - 1 - t)))
    a, b, c, d = vec.load_shared_4f32(at)
    store4(z, i32(4 * t), (a, b, c, d))
    cuda.syncthreads()
    p, q = vec.load_shared_2u32(shared_address(tile, i32(4 * t + 2)))
    cuda.syncthreads()
    vec.store_shared_2u32(shared_address(tile, i32(4 * t)), q, p)
    vec.store_shared_f32(shared_address(tile, i32(4 * t + 2)), f32(t))
    vec.store_shared_u32(shared_address(tile, i32(4 * t + 3)), vec.load_shared_u32(shared_address(tile, i32(4 * t))))
    cuda.syncthreads()
    store4(z, i32(4 * (THREADS + t)), load4(tile, i32(4 * t)))


def test_shared_memory_by_index_and_by_address():
    x = np.random.default_rng(3).standard_normal(4 * THREADS).astype(np.float32)
    y, z = np.zeros_like(x), np.zeros(8 * THREADS, np.float32)
    launch(through_shared, 1, THREADS, x, y, z)
    reversed_ = x.reshape(THREADS, 4)[::-1]
    np.testing.assert_array_equal(y.reshape(THREADS, 4), reversed_)
    np.testing.assert_array_equal(z[:4 * THREADS].reshape(THREADS, 4), reversed_)
    last = z[4 * THREADS:].reshape(THREADS, 4)
    rows = x.reshape(THREADS, 4)
    np.testing.assert_array_equal(last, np.stack([rows[:, 3], rows[:, 2], np.arange(THREADS), rows[:, 3]], 1).astype(np.float32))


_pin = pin(4)


@cuda.jit(launch_bounds=THREADS)
def pinned(x, y):
    words = cuda.local.array(4, u32)
    i = i32(4 * cuda.threadIdx.x)
    load4_into(words, 0, x, i)
    _pin(words)
    store4_from(y, i, words, 0)


def test_pin_changes_nothing():
    x = np.arange(4 * THREADS, dtype=np.uint32)
    y = np.zeros_like(x)
    launch(pinned, 1, THREADS, x, y)
    np.testing.assert_array_equal(x, y)


@pytest.mark.skipif(not SIMULATED, reason="a GPU stops the context at a misaligned address")
@pytest.mark.parametrize("kernel", [
    _copy(load4, store4, 4), _copy(load4_nc, store4_cs, 4), _copy_by_buffer(load4_nc_into, store4_cs_from, 4, f32)])
@pytest.mark.parametrize("bad", ["load", "store"])
def test_misaligned_access_raises(kernel, bad):
    from dnnkern.device.sim import Misuse
    whole = np.zeros(4 * THREADS + 4, np.float32)
    aligned, shifted = whole[:4 * THREADS], whole.copy()[1:4 * THREADS + 1]
    with pytest.raises(Misuse, match="not aligned to 16 bytes"):
        launch(kernel, 1, THREADS, *((shifted, aligned) if bad == "load" else (aligned, shifted)))


@pytest.mark.skipif(not SIMULATED, reason="a GPU reads past the end")
@pytest.mark.parametrize("dtype, load, store", [("float32", load4, store4), ("uint32", load4, store4_cs)])
def test_access_across_the_end_raises(dtype, load, store):
    from dnnkern.device.sim import Misuse
    with pytest.raises(Misuse):
        launch(_copy(load, store, 4), 1, THREADS, np.zeros(4 * THREADS - 2, dtype), np.zeros(4 * THREADS, dtype))


@pytest.mark.skipif(not SIMULATED, reason="a GPU drops it")
def test_prefetch_past_the_end_raises():
    from dnnkern.device.sim import Misuse

    @cuda.jit(launch_bounds=THREADS)
    def kernel(x, n):
        vec.prefetch_l2(advance(x, i32(cuda.threadIdx.x + n)))
    launch(kernel, 1, THREADS, np.zeros(THREADS, np.float32), 0)
    with pytest.raises(Misuse):
        launch(kernel, 1, THREADS, np.zeros(THREADS, np.float32), 1)


@pytest.mark.skipif(not SIMULATED, reason="a GPU stops the context at a misaligned address")
def test_misaligned_shared_address_raises():
    from dnnkern.device.sim import Misuse

    @cuda.jit(launch_bounds=THREADS)
    def kernel(y):
        tile = cuda.shared.array(ELEMENTS, f32, alignment=16)
        tile[i32(cuda.threadIdx.x)] = f32(0)
        cuda.syncthreads()
        y[i32(cuda.threadIdx.x)] = vec.load_shared_4f32(shared_address(tile, 1))[0]
    with pytest.raises(Misuse, match="misaligned"):
        launch(kernel, 1, THREADS, np.zeros(THREADS, np.float32))


@cuda.jit(launch_bounds=THREADS)
def turned(x, y):
    tile = cuda.shared.array(ELEMENTS, u32, alignment=16)
    t = i32(cuda.threadIdx.x)
    a, b, c, d = load4(x, i32(4 * t))
    vec.store_shared_u32x4(shared_address(tile, i32(4 * t)), (b, c, d, a))
    cuda.syncthreads()
    store4(y, i32(4 * t), vec.load_shared_u32x4(shared_address(tile, i32(4 * (THREADS - 1 - t)))))


def test_four_words_of_shared_memory_as_a_tuple():
    x = np.arange(ELEMENTS, dtype=np.uint32)
    y = np.zeros_like(x)
    launch(turned, 1, THREADS, x, y)
    np.testing.assert_array_equal(y.reshape(THREADS, 4), np.roll(x.reshape(THREADS, 4), -1, axis=1)[::-1])

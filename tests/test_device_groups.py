"""Groups of elements, of every width and dtype, there and back; what is not loaded is 0."""
import numpy as np
import pytest
from cases import ITEMSIZE, numpy_dtype
from kit import launch

from dnnkern.device import cuda, f32, f64, i32, i64, u32
from dnnkern.device.convert import element
from dnnkern.device.groups import access_words, make_flight, make_reader, make_word_writer, make_writer, scalar_of
from dnnkern.device.vec import advance
from dnnkern.host.tensor import Tensor

DTYPES = ("float64", "float32", "float16", "bfloat16")


@pytest.mark.parametrize("dtype, words", [(d, w) for d in (*DTYPES, "float8_e4m3fn", "float8_e5m2") for w in (0, 1, 2, 4)
                                          if w == 0 or w == 4 or ITEMSIZE[d] <= 2 or ITEMSIZE[d] == 4 and w < 4])
def test_flights_bring_elements(dtype, words):
    flight, T = make_flight(dtype, words, 3), f64 if dtype == "float64" else f32
    SCALAR, LENGTH, VECTOR, fetch, values = flight.scalar, flight.length, flight.vector, flight.fetch, flight.values
    assert VECTOR == max(1, 4 * words // ITEMSIZE[dtype])
    load, store = element(dtype).load, element("float64" if dtype == "float64" else "float32").store

    @cuda.jit(launch_bounds=32)
    def read(x, y, n):
        buffer, some = cuda.local.array(LENGTH, SCALAR), cuda.local.array(VECTOR, T)
        for u in range(3):
            k = i32(3 * i32(cuda.threadIdx.x) + u)
            fetch(buffer, u, x, i64(k) * VECTOR, k < n)
        for u in range(3):
            values(some, buffer, u)
            for v in range(VECTOR):
                store(y, i32((3 * i32(cuda.threadIdx.x) + u) * VECTOR + v), some[v])
        if cuda.threadIdx.x == 0:
            store(y, i32(96 * VECTOR), load(x, 0))
    count = 77
    values_of = np.random.default_rng(1).integers(-8, 9, count * VECTOR).astype(np.float64)
    x = values_of.astype(numpy_dtype(dtype)).view(element(dtype).storage)
    y = np.full(96 * VECTOR + 1, 99, np.float64 if dtype == "float64" else np.float32)
    launch(read, 1, 32, x, y, count)
    assert np.array_equal(y[:count * VECTOR], values_of) and not y[count * VECTOR:-1].any() and y[-1] == values_of[0]


@pytest.mark.parametrize("constant", (True, False), ids=("constant", "written"))
@pytest.mark.parametrize("dtype, count, words", [
    ("float64", 2, 4), ("float64", 3, 0), ("float32", 4, 4), ("float32", 6, 2), ("float32", 3, 1), ("float32", 3, 0), ("float16", 8, 4),
    ("bfloat16", 12, 2), ("bfloat16", 6, 1), ("float16", 5, 0)])
def test_groups_go_through_registers(dtype, count, words, constant):
    RAW, LENGTH, fetch, unpack = make_reader(dtype, count, words, constant)
    put, T = make_writer(dtype, count, words), scalar_of(dtype)

    @cuda.jit(launch_bounds=32)
    def double(x, y, n, first):
        raw, values = cuda.local.array(LENGTH, RAW), cuda.local.array(count, T)
        t = i32(cuda.threadIdx.x)
        fetch(raw, 0, x, i64(first + t * count), t < n)
        unpack(values, 0, raw, 0)
        for v in range(count):
            values[v] = values[v] * T(2)
        put(y, i32(t * count), values, 0)
    some, first = 20, 16
    numbers = np.random.default_rng(2).integers(1, 9, first + 32 * count).astype(np.float64)
    storage = element(dtype).storage
    x, y = numbers.astype(numpy_dtype(dtype)).view(storage), np.full(32 * count, 99).astype(numpy_dtype(dtype)).view(storage)
    launch(double, 1, 32, x, y, some, first)
    got = y.view(numpy_dtype(dtype)).astype(np.float64)
    assert np.array_equal(got[:some * count], 2 * numbers[first:first + some * count]) and not got[some * count:].any()


@pytest.mark.parametrize("length, words", ((4, 4), (8, 4), (6, 2), (3, 1)))
def test_words_are_written(length, words):
    put = make_word_writer(length, words)

    @cuda.jit(launch_bounds=32)
    def count_up(y):
        buffer, t = cuda.local.array(length, u32), i32(cuda.threadIdx.x)
        for k in range(length):
            buffer[k] = u32(t * length + k)
        put(advance(y, i32(t * length)), buffer)
    y = np.full(32 * length + 1, 7, np.uint32)
    launch(count_up, 1, 32, y)
    assert np.array_equal(y[:-1], np.arange(32 * length)) and y[-1] == 7


@pytest.mark.parametrize("dtype, alignment, count, steps, words", [
    ("float16", 16, 8, (8, 64), 4), ("float16", 16, 8, (8, 62), 1), ("float16", 8, 8, (8,), 2), ("float16", 16, 4, (64,), 2),
    ("float16", 2, 8, (8,), 0), ("float16", 16, 3, (3,), 0), ("float32", 4, 4, (4,), 1),
    ("float64", 16, 2, (2,), 4), ("float64", 8, 2, (2,), 0)])
def test_words_of_an_access(dtype, alignment, count, steps, words):
    assert access_words(Tensor((1024,), (1,), dtype, alignment), count, steps) == words

"""Loads that are under way together, of every width and dtype: the elements come back, and what is not loaded is 0."""
import numpy as np
import pytest
from cases import ITEMSIZE, numpy_dtype
from kit import launch

from dnnkern.device import cuda, f32, f64, i32, i64
from dnnkern.device.convert import element
from dnnkern.device.flight import make_flight

DTYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "int8")


@pytest.mark.parametrize("dtype, words", [(d, w) for d in DTYPES for w in (0, 1, 2, 4)
                                          if w == 0 or w == 4 or ITEMSIZE[d] == 2 or ITEMSIZE[d] == 4 and w < 4])
def test_elements_come_back(dtype, words):
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

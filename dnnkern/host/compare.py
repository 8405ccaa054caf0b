"""The largest difference of two results: on the device, where a copy to the host would take longer than what is measured."""
import functools

import numpy as np

from ..device import cuda, device_function, f64, i64, jit
from . import driver, raw
from .dtypes import STORAGE
from .launch import Argument, Executable, Launch

BLOCKS, THREADS = 512, 256
_BYTES = "bool", "float8_e8m0fnu"  # compared as the numbers that their bytes are


@functools.cache
def kernel(dtype):
    """Each thread writes its largest ``|x - y|`` and its largest ``|y|``; NaN in one of the two alone is an infinite difference."""
    from ..device.convert import element
    INFINITE = np.inf

    @device_function
    def number(x, i):
        return x[i]
    load = number if dtype in (STORAGE[dtype], *_BYTES) else element(dtype).load

    @jit(launch_bounds=256)
    def largest(x, y, n, differences, magnitudes):
        thread = i64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        step = i64(cuda.gridDim.x) * cuda.blockDim.x
        worst, scale = f64(0), f64(0)
        i = thread
        while i < n:
            p, q = f64(load(x, i)), f64(load(y, i))
            if p != q:
                d = abs(f64(p - q))
                if d != d:  # a NaN is there; two of them agree
                    d = f64(0) if p != p and q != q else f64(INFINITE)
                if d > worst:
                    worst = d
            magnitude = abs(q)
            if scale < magnitude < INFINITE:
                scale = magnitude
            i += step
        differences[thread] = worst
        magnitudes[thread] = scale
    return largest


def largest_difference(x, y, count, dtype, index) -> tuple:
    """(largest ``|x - y|``, largest finite ``|y|``) of two flat arrays of `count` elements at addresses x and y, on the current device."""
    executable = _executable(dtype, index)
    found = np.empty((2, BLOCKS * THREADS))
    address = driver.cuMemAlloc(found.nbytes)
    try:
        executable.execute((x, y, address, address + found.nbytes // 2, count), 0)
        driver.cuMemcpyDtoH(found.ctypes.data, address, found.nbytes)
    finally:
        raw.cuMemFree(address)
    return float(found[0].max()), float(found[1].max())


@functools.cache
def _executable(dtype, index):
    pointer = STORAGE[dtype] + "*"
    arguments = (Argument(pointer, "x"), Argument(pointer, "y"), Argument("int64", "count"), Argument("float64*", "differences"),
                 Argument("float64*", "magnitudes"))
    parameters = (("x", "pointer"), ("y", "pointer"), ("differences", "pointer"), ("magnitudes", "pointer"), ("count", "int64"))
    return Executable([Launch(kernel(dtype), (BLOCKS, 1, 1), (THREADS, 1, 1), arguments)], parameters, index)


def largest_difference_on_host(x, y) -> tuple:
    """The same of two NumPy arrays."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    with np.errstate(invalid="ignore"):
        difference = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(x - y))
    difference[np.isnan(difference)] = np.inf
    finite = np.abs(y[np.isfinite(y)])
    return float(difference.max(initial=0.0)), float(finite.max(initial=0.0))

"""The driver's functions on the path of a call, by their own names, through ctypes, which costs half of cuda.bindings' calls.

Pointers are addresses, results statuses. A function is bound at its first use, so that compiling needs no driver.
"""
import ctypes
import functools
import sys

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_size_t
_TYPES = {"cuLaunchKernelEx": [_POINTER] * 4, "cuStreamIsCapturing": [_POINTER] * 2,
          "cuCtxGetCurrent": [_POINTER], "cuCtxSetCurrent": [_POINTER], "cuMemFreeAsync": [_POINTER] * 2,
          "cuMemAllocFromPoolAsync": [_POINTER, _SIZE, _POINTER, _POINTER]}


@functools.cache
def _library():
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


def __getattr__(name):
    if name not in _TYPES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    function = getattr(_library(), name)
    function.argtypes = _TYPES[name]
    globals()[name] = function
    return function

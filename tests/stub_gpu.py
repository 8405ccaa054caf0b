"""A GPU that does nothing, for processes that import this first: a driver that knows an H200 and takes every launch for done.

With `compiling` the functions of `cuda.bindings.driver` are replaced; without, the module is, so that whoever imports the compilers fails.
"""
import importlib.machinery
import sys
import types

import numpy as np

_NUMBERS = {"COMPUTE_CAPABILITY_MAJOR": 9, "COMPUTE_CAPABILITY_MINOR": 0, "MULTIPROCESSOR_COUNT": 132, "L2_CACHE_SIZE": 60 << 20,
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448, "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 233472,
            "MAX_REGISTERS_PER_MULTIPROCESSOR": 65536, "CLOCK_RATE": 1980000, "MEMORY_CLOCK_RATE": 2619000, "GLOBAL_MEMORY_BUS_WIDTH": 6144}


class _Names:
    """An enumeration of which every name is a member, its own value."""

    def __getattr__(self, name):
        return name


def _attribute(which, device):
    return 0, _NUMBERS[getattr(which, "name", which).removeprefix("CU_DEVICE_ATTRIBUTE_")]


_RESULTS = {"cuInit": (0,), "cuDeviceGetCount": (0, 1), "cuDeviceGet": (0, 0), "cuDeviceGetName": (0, b"NVIDIA H200\0"),
            "cuDeviceTotalMem": (0, 140 << 30), "cuPointerGetAttribute": (0, 0), "cuCtxSetCurrent": (0,), "cuKernelSetAttribute": (0,)}


def _function(name):
    return _attribute if name == "cuDeviceGetAttribute" else lambda *given: _RESULTS.get(name, (0, 1))


class _Driver(types.ModuleType):
    CUdevice_attribute = CUfunction_attribute = CUpointer_attribute = _Names()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _function(name)


class _Raw:
    """libcuda, through ctypes: every function succeeds."""

    def __getattr__(self, name):
        setattr(self, name, lambda *given: 0)
        return getattr(self, name)


def install(compiling):
    """Put it in a GPU's place."""
    if compiling:
        from cuda.bindings import driver
        for name, value in list(vars(driver).items()):
            if name.startswith("cu") and callable(value) and not isinstance(value, type):
                setattr(driver, name, _function(name))
    else:
        made = [types.ModuleType("cuda"), types.ModuleType("cuda.bindings"), _Driver("cuda.bindings.driver")]
        for module in made:
            module.__spec__, module.__path__ = importlib.machinery.ModuleSpec(module.__name__, None), []
            sys.modules[module.__name__] = module
        made[1].driver = made[2]
    from dnnkern.host import raw
    library = _Raw()
    raw._library = lambda: library


class Array:
    """An array that says it is on the GPU."""

    def __init__(self, *shape):
        self.memory = np.zeros(shape, np.float32)
        self.__cuda_array_interface__ = {**self.memory.__array_interface__, "version": 3, "stream": None}

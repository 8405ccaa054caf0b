"""A GPU that is not there: calls run as on a device, up to the driver, whose functions do nothing and succeed.

What the host spends on a call can be counted and timed so without a GPU, kernels are neither compiled nor run. Arrays lie on the host:
torch's CPU tensors, and Numba's device arrays at addresses that nothing reads.
"""
import contextlib
import ctypes
import dataclasses
import itertools
import types
from unittest import mock

from dnnkern import dispatch, warming
from dnnkern.graph import _arrays as graph_arrays
from dnnkern.graph import _cuda_graph, _engines, _execute
from dnnkern.host import arrays, device, executable, front, launch, lists, memory, raw


class _Context:
    """What an array asks Numba's."""
    device = types.SimpleNamespace(id=0)


_CONTEXT, _ALLOCATED = _Context(), []
_GPUS = [types.SimpleNamespace(get_primary_context=lambda: _CONTEXT)]
_ON_EVERY_CALL = "cuLaunchKernelEx", "cuGraphLaunch", "cuStreamIsCapturing", "cuMemFreeAsync"
_HANDLES = "cuCtxGetCurrent", "cuDevicePrimaryCtxRetain", "cuStreamCreate", "cuGraphInstantiateWithFlags"
_ADDRESSES = itertools.count(0x7F0000000000, 0x100000)


@contextlib.contextmanager
def pretended_gpu(index=0):
    """Within, front ends bind and run their calls as on a GPU with the simulator's numbers."""
    pretended = dataclasses.replace(device._SIMULATOR, name="a GPU that is not there")
    with contextlib.ExitStack() as stack:
        def change(module, **names):
            for name, value in names.items():
                stack.enter_context(mock.patch.object(module, name, value))
        for module in (arrays, device, front, graph_arrays, _cuda_graph, _engines, _execute, lists, warming):
            change(module, HOST_MEMORY=False)
        with contextlib.suppress(ImportError):
            *classes, _ = memory.numba_classes()
            change(memory, numba_classes=lambda: (*classes, _GPUS), _CONTEXTS={0: _CONTEXT})
        change(executable, SIMULATED=False, DEVICE="cuda")
        change(front, device_of=lambda index: pretended)
        change(front.Operation, _executable=_executable)
        for module in (dispatch, _engines):
            change(module, device_of=lambda index=0: pretended, current_device=lambda: 0)
        change(_engines, device_count=lambda: 1)
        change(launch, device=lambda index: pretended, Function=_Function, compile_kernel=lambda *ignored: None)
        functions = dict.fromkeys(raw.FUNCTIONS, lambda *ignored: 0)
        functions.update({name: _nothing(raw.types_of(name)) for name in _ON_EVERY_CALL})
        functions.update(dict.fromkeys(_HANDLES, _handle), cuMemAllocFromPoolAsync=_allocate)
        stack.enter_context(mock.patch.dict(vars(raw), functions))
        device.primary_context.cache_clear()
        for known in (arrays._NAMED, arrays.KIND_OF_TYPE):
            stack.enter_context(mock.patch.dict(known))
        for found in [t for t, kind in arrays.KIND_OF_TYPE.items() if kind.name in ("torch", "numba")]:
            del arrays.KIND_OF_TYPE[found]
        with contextlib.suppress(ImportError):
            arrays._NAMED["torch"] = _Torch()
        dispatch.choices_changed()
        try:
            yield
        finally:
            device.primary_context.cache_clear()
            dispatch.choices_changed()


def numba_array(shape, dtype="float32"):
    """A Numba device array at an address of its own, as Numba allocates it: with a reference to its memory, whose context is a proxy."""
    import math
    import weakref

    import numpy as np
    from cuda.bindings.driver import CUdeviceptr
    from numba.cuda.cudadrv.devicearray import DeviceNDArray
    from numba.cuda.cudadrv.driver import AutoFreePointer

    from dnnkern.host.tensor import packed_strides
    dtype = np.dtype(dtype)
    pointer = CUdeviceptr(next(_ADDRESSES))
    memory = AutoFreePointer(weakref.proxy(_CONTEXT), pointer, math.prod(shape) * dtype.itemsize, finalizer=_freed)
    _ALLOCATED.append(memory)
    return DeviceNDArray(shape, tuple(s * dtype.itemsize for s in packed_strides(shape)), dtype, gpu_data=memory.own())


def _freed():
    """Nothing is."""


def _executable(self, problem, algorithm, device, stream, kind, given):
    """`Operation._executable`, which remembers nothing beyond this."""
    return executable.make_executable(self, problem, algorithm, device, given, called=True)


class _Function:
    """A loaded kernel."""
    handle = kernel = 0x1000

    def __init__(self, *ignored):
        pass


def _nothing(types):
    """A function in C of such arguments that returns 0, bound as the driver's are: of its first two, which differ, it says that they do."""
    function = ctypes.CDLL(None)["pthread_equal"]
    function.argtypes = types
    return function


def _handle(at, *ignored):
    at._obj.value = 0x1000
    return 0


def _allocate(at, *ignored):
    at._obj.value = next(_ADDRESSES)
    return 0


class _Torch(arrays.Torch):
    """torch's tensors on the CPU, as if they were on a GPU."""
    where = "cpu"

    def __init__(self):
        super().__init__()
        self.current = lambda device: 0

    def _check_device(self, a):
        if a.device.type != "cpu":
            raise TypeError(f"got a torch tensor on {a.device}; expected one on the CPU")

    def empty(self, shape, dtype, device, stream):
        return self.torch.empty(shape, dtype=getattr(self.torch, dtype))

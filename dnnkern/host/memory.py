"""The library's device memory: a stream-ordered pool for outputs and workspaces of frameworks without an allocator.

Memory is freed after the work on its stream, which must still exist then: asked about a stream that has been destroyed the driver may
answer with an error, or end the process.
"""
import contextlib
import ctypes
import functools
import weakref

from . import raw
from .device import check, on_device

_NOT_CAPTURING = 0  # CU_STREAM_CAPTURE_STATUS_NONE
_STREAMS = weakref.WeakValueDictionary()  # the objects of streams that were given as objects, by handle


@functools.cache
def _pool(index):
    """Handle of the device's default memory pool, told to keep what it has."""
    from cuda.bindings import driver
    pool = check(driver.cuDeviceGetDefaultMemPool(check(driver.cuDeviceGet(index))))
    threshold = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    check(driver.cuMemPoolSetAttribute(pool, threshold, driver.cuuint64_t(2 ** 64 - 1)))
    return int(pool)


def is_capturing(stream) -> bool:
    """Whether a CUDA graph is being captured on this stream."""
    found = ctypes.c_int()
    status = raw.cuStreamIsCapturing(stream, ctypes.byref(found))
    if status:
        raw.failed(status)
    return found.value != _NOT_CAPTURING


def allocate(nbytes, index, stream) -> int:
    """Address of `nbytes` bytes that are valid on the stream from here on; RuntimeError while it is being captured."""
    found = ctypes.c_size_t()
    with on_device(index):
        if is_capturing(stream):
            raise RuntimeError("a CUDA graph is being captured: memory from the library's pool would belong to the graph; "
                               "pass out= (and workspace=), or use torch tensors")
        status = raw.cuMemAllocFromPoolAsync(ctypes.byref(found), max(nbytes, 1), _pool(index), stream)
        if status:
            raw.failed(status)
    return found.value


def introduce(stream, handle):
    """Let memory allocated on a stream from now on keep the stream's object, whose end may be the stream's."""
    with contextlib.suppress(TypeError):  # objects without weak references
        _STREAMS[handle] = stream


def free(address, index, stream, owner=None):
    """Free memory after the work that is on the stream now; `owner` only keeps the stream alive."""
    try:
        from cuda.bindings import driver
        with on_device(index):
            if driver.cuMemFreeAsync(address, stream)[0] != 0:
                driver.cuMemFreeAsync(address, 0)
    except (ImportError, TypeError):  # the interpreter is shutting down: the driver frees everything
        pass


def numba_array(shape, dtype, index, stream):
    """A packed Numba device array in the pool."""
    import math

    from cuda.bindings import driver
    from numba import cuda
    from numba.cuda.cudadrv.devicearray import DeviceNDArray
    from numba.cuda.cudadrv.driver import MemoryPointer

    from .tensor import packed_strides
    strides = tuple(s * dtype.itemsize for s in packed_strides(shape))
    nbytes = math.prod(shape) * dtype.itemsize
    with cuda.gpus[index]:
        context = cuda.current_context()
        address = allocate(nbytes, index, stream)
        give_back = functools.partial(free, address, index, stream, _STREAMS.get(stream))
        memory = MemoryPointer(context, driver.CUdeviceptr(address), nbytes, finalizer=give_back)
        return DeviceNDArray(shape, strides, dtype, gpu_data=memory)

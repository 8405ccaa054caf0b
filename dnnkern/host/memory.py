"""The library's device memory: a stream-ordered pool for outputs and workspaces of frameworks without an allocator.

Memory is freed after the work on its stream, which must still exist then: asked about a stream that has been destroyed the driver may
answer with an error, or end the process.
"""
import contextlib
import ctypes
import functools
import weakref

from . import driver, raw
from .device import on_device
from .driver import failed

_STREAMS = weakref.WeakValueDictionary()  # the objects of streams that were given as objects, by handle


@functools.cache
def _pool(index):
    """Handle of the device's default memory pool, told to keep what it has."""
    pool = driver.cuDeviceGetDefaultMemPool(driver.cuDeviceGet(index))
    driver.cuMemPoolSetAttribute(pool, raw.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, ctypes.byref(ctypes.c_uint64(2 ** 64 - 1)))
    return pool


def is_capturing(stream) -> bool:
    """Whether a CUDA graph is being captured on this stream."""
    found = ctypes.c_int()
    status = raw.cuStreamIsCapturing(stream, ctypes.byref(found))
    if status:
        failed(status)
    return found.value != raw.CU_STREAM_CAPTURE_STATUS_NONE


@contextlib.contextmanager
def outside_captures():
    """Within, the thread may allocate and copy although it is capturing a stream: what it does is no part of the graph."""
    mode = ctypes.c_int(raw.CU_STREAM_CAPTURE_MODE_RELAXED)
    driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))  # which is the one before from here on
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


def allocate(nbytes, index, stream) -> int:
    """Address of `nbytes` bytes that are valid on the stream from here on; RuntimeError while it is being captured."""
    found = ctypes.c_size_t()
    with on_device(index):
        if is_capturing(stream):
            raise RuntimeError("a CUDA graph is being captured: memory from the library's pool would belong to the graph; "
                               "pass out= (and workspace=), or use torch tensors")
        status = raw.cuMemAllocFromPoolAsync(ctypes.byref(found), max(nbytes, 1), _pool(index), stream)
        if status:
            failed(status)
    return found.value


def introduce(stream, handle):
    """Let memory allocated on a stream from now on keep the stream's object, whose end may be the stream's."""
    with contextlib.suppress(TypeError):  # objects without weak references
        _STREAMS[handle] = stream


def free(address, index, stream, owner=None):
    """Free memory after the work that is on the stream now; `owner` only keeps the stream alive."""
    try:
        with on_device(index):
            if raw.cuMemFreeAsync(address, stream) != 0:
                raw.cuMemFreeAsync(address, 0)
    except (TypeError, AttributeError):  # the interpreter is shutting down: the driver frees everything
        pass


# ---- Numba's arrays

_CONTEXTS = {}  # Numba's objects of the primary contexts, ready for use, by device


@functools.cache
def numba_classes():
    """Numba's classes of an array, of memory and of a reference to it, cuda.bindings' of an address, and Numba's devices."""
    from cuda.bindings.driver import CUdeviceptr
    from numba.cuda import gpus
    from numba.cuda.cudadrv.devicearray import DeviceNDArray
    from numba.cuda.cudadrv.driver import MemoryPointer, OwnedPointer
    return DeviceNDArray, MemoryPointer, OwnedPointer, CUdeviceptr, gpus


def numba_array(shape, dtype, index, stream):
    """A packed Numba device array in the pool."""
    array, pointer, _, address_type, gpus = numba_classes()
    if 0 in shape:  # Numba asks for the current context
        with gpus[index]:
            return _unplaced(shape, dtype)
    context, attributes = _CONTEXTS.get(index), _attributes(shape, dtype)
    if context is None or gpus[index].get_primary_context() is not context:
        context = _numba_context(index)
    address, nbytes = allocate(attributes["alloc_size"], index, stream), attributes["alloc_size"]
    give_back = functools.partial(free, address, index, stream, _STREAMS.get(stream))
    found = array.__new__(array)
    found.__dict__.update(attributes)
    found.gpu_data = pointer(context, address_type(address), nbytes, finalizer=give_back)
    return found


def _numba_context(index):
    from numba.cuda import current_context, gpus
    with gpus[index]:
        context = _CONTEXTS[index] = current_context()
    return context


@functools.lru_cache(1024)
def _attributes(shape, dtype):
    """What Numba's constructor gives a packed array, but for the memory. It takes longer than a launch, and all of it may be shared, as
    arrays and their copies by `bind` do."""
    return {name: value for name, value in vars(_unplaced(shape, dtype)).items() if name != "gpu_data"}


def _unplaced(shape, dtype):
    """An array as Numba makes it, at address 0."""
    from .tensor import packed_strides
    array, pointer, _, address_type, _ = numba_classes()
    strides = tuple(s * dtype.itemsize for s in packed_strides(shape))
    return array(shape, strides, dtype, gpu_data=pointer(None, address_type(0), 0))

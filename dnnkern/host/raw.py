"""The driver's functions by their own names, through ctypes: a call costs half of one of cuda.bindings, and importing that takes longer
than all else of a first call.

Pointers are addresses, results statuses; `driver` has the same functions with results and errors. A function is bound at its first use, so
that compiling needs no driver.
"""
import ctypes
import functools
import sys

_INT, _UINT, _WORD, _FLOAT = ctypes.c_int, ctypes.c_uint, ctypes.c_uint64, ctypes.c_float
_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_size_t
_MAP = [None, _POINTER, _INT, _UINT, *[_POINTER] * 3]  # of tensor maps: where it goes, type, rank, address, extents, strides

# What a function gives by its first argument, a pointer to it, or None for one that does not; then the types of all others. A handle is a
# size, for which ctypes gives integers.
FUNCTIONS = {
    "cuInit": (None, _UINT), "cuGetErrorName": (None, _INT, _POINTER), "cuGetErrorString": (None, _INT, _POINTER),
    "cuDeviceGet": (_INT, _INT), "cuDeviceGetCount": (_INT,), "cuDeviceGetAttribute": (_INT, _INT, _INT),
    "cuDeviceGetName": (None, _POINTER, _INT, _INT), "cuDeviceTotalMem": (_SIZE, _INT), "cuDeviceGetDefaultMemPool": (_SIZE, _INT),
    "cuDevicePrimaryCtxRetain": (_SIZE, _INT), "cuCtxGetCurrent": (_SIZE,), "cuCtxSetCurrent": (None, _POINTER),
    "cuCtxGetDevice": (_INT,), "cuCtxSynchronize": (None,), "cuPointerGetAttribute": (_INT, _INT, _POINTER),
    "cuLibraryLoadData": (_SIZE, *[_POINTER] * 3, _UINT, *[_POINTER] * 2, _UINT), "cuLibraryGetKernel": (_SIZE, *[_POINTER] * 2),
    "cuLibraryGetGlobal": (_SIZE, *[_POINTER] * 3),
    "cuKernelSetAttribute": (None, _INT, _INT, _POINTER, _INT), "cuKernelGetFunction": (_SIZE, _POINTER),
    "cuLaunchKernelEx": (None, *[_POINTER] * 4),
    "cuTensorMapEncodeTiled": (*_MAP, *[_POINTER] * 2, *[_INT] * 4),
    "cuTensorMapEncodeIm2col": (*_MAP, *[_POINTER] * 2, *[_UINT] * 2, _POINTER, *[_INT] * 4),
    "cuMemAlloc": (_SIZE, _SIZE), "cuMemFree": (None, _POINTER), "cuMemAllocFromPoolAsync": (_SIZE, _SIZE, *[_POINTER] * 2),
    "cuMemFreeAsync": (None, *[_POINTER] * 2), "cuMemPoolSetAttribute": (None, _POINTER, _INT, _POINTER),
    "cuMemcpyHtoD": (None, *[_POINTER] * 2, _SIZE), "cuMemcpyDtoH": (None, *[_POINTER] * 2, _SIZE),
    "cuMemcpyHtoDAsync": (None, *[_POINTER] * 2, _SIZE, _POINTER), "cuMemcpyDtoDAsync": (None, *[_POINTER] * 2, _SIZE, _POINTER),
    "cuMemsetD8": (None, _POINTER, ctypes.c_ubyte, _SIZE), "cuMemsetD8Async": (None, _POINTER, ctypes.c_ubyte, _SIZE, _POINTER),
    "cuStreamCreate": (_SIZE, _UINT), "cuStreamDestroy": (None, _POINTER), "cuStreamSynchronize": (None, _POINTER),
    "cuStreamIsCapturing": (None, *[_POINTER] * 2), "cuStreamBeginCapture": (None, _POINTER, _INT),
    "cuStreamEndCapture": (None, *[_POINTER] * 2), "cuThreadExchangeStreamCaptureMode": (None, _POINTER),
    "cuEventCreate": (_SIZE, _UINT), "cuEventDestroy": (None, _POINTER), "cuEventRecord": (None, *[_POINTER] * 2),
    "cuEventSynchronize": (None, _POINTER), "cuEventElapsedTime": (_FLOAT, *[_POINTER] * 2),
    "cuGraphInstantiateWithFlags": (_SIZE, _POINTER, _WORD), "cuGraphLaunch": (None, *[_POINTER] * 2), "cuGraphDestroy": (None, _POINTER),
    "cuGraphExecDestroy": (None, _POINTER),
    "cuStreamBeginCaptureToGraph": (None, *[_POINTER] * 4, _SIZE, _INT), "cuGraphGetNodes": (None, *[_POINTER] * 3),
    "cuGraphGetEdges": (None, *[_POINTER] * 5), "cuGraphNodeGetType": (None, *[_POINTER] * 2),
    "cuGraphKernelNodeGetParams": (None, *[_POINTER] * 2), "cuGraphKernelNodeSetParams": (None, *[_POINTER] * 2),
}
# What is "..._v2" in the library, and by the header.
_SECOND = {"cuDeviceTotalMem", "cuMemAlloc", "cuMemFree", "cuMemcpyHtoD", "cuMemcpyDtoH", "cuMemcpyHtoDAsync", "cuMemcpyDtoDAsync",
           "cuMemsetD8", "cuStreamDestroy", "cuStreamBeginCapture", "cuEventDestroy", "cuGraphGetEdges", "cuGraphKernelNodeGetParams",
           "cuGraphKernelNodeSetParams"}

CU_DEVICE_ATTRIBUTE_CLOCK_RATE = 13
CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16
CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE = 36
CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH = 37
CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 38
CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75
CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76
CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 81
CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR = 82
CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97
CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14
CU_GRAPH_NODE_TYPE_KERNEL = 0
CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2
CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4
CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6
CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4
CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9
CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1
CU_STREAM_CAPTURE_MODE_RELAXED = 2
CU_STREAM_CAPTURE_STATUS_NONE = 0
CU_STREAM_NON_BLOCKING = 1
CUDA_ERROR_INVALID_CONTEXT = 201
CUDA_ERROR_INVALID_HANDLE = 400


@functools.cache
def _library():
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


def symbol(name) -> str:
    """What the library calls a function."""
    return name + "_v2" * (name in _SECOND)


def types_of(name) -> list:
    """The types of a function's arguments."""
    result, *others = FUNCTIONS[name]
    return [_POINTER, *others] if result is not None else others


def __getattr__(name):
    if name not in FUNCTIONS:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    function = getattr(_library(), symbol(name))
    function.argtypes = types_of(name)
    globals()[name] = function
    return function

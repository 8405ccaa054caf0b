"""XLA's foreign functions from Python alone: the structures of its C interface (``xla/ffi/api/c_api.h``), and the one handler that computes
every call of this library.

A call arrives with the addresses of its buffers, a text that says what to compute, and on a GPU XLA's stream, on which kernels are launched
without waiting for them. An exception becomes an error of XLA's: one that left the handler would end the process.
"""
import ctypes
import functools
import math
import struct
import threading

import numpy as np

from ..device import HOST_MEMORY, SIMULATED
from ..host.dtypes import numpy_dtype
from ._call import parsed

TARGET = "dnnkern"
PLATFORM = "cpu" if HOST_MEMORY else "cuda"
"""JAX's name of the platform whose arrays this library's device computes with."""

_MAJOR, _MINOR = 0, 1  # the oldest version of the interface that has all that is used here
_EXECUTE, _METADATA = 3, 1
_INTERNAL = 13
_DTYPES = {1: "bool", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "uint8", 7: "uint16", 8: "uint32", 9: "uint64", 10: "float16",
           11: "float32", 12: "float64", 16: "bfloat16", 19: "float8_e5m2", 20: "float8_e4m3fn"}

# Structures are read as words of eight bytes, all of one at once: fields of `ctypes.Structure` take several times as long.
_FRAME = struct.Struct("21Q")
"""size, extension, api, context, stage; (size, extension, count, kinds, values) of operands, and of results; (size, extension, count,
kinds, names, values) of attributes."""
_BUFFER = struct.Struct("6Q")
"""size, extension, dtype, data, rank, dims."""
_BYTES = struct.Struct("2Q")
"""data, length."""
_HALF = (1 << 32) - 1  # an int of C in a word
_FUNCTIONS = 48  # where the table of XLA's functions begins in its interface
_ERROR_CREATE, _STREAM_GET, _DEVICE_ORDINAL_GET = 0, 4, 17
_Function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_at = ctypes.string_at


class _Metadata(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("version_size", ctypes.c_size_t), ("version_extension", ctypes.c_void_p),
                ("major", ctypes.c_int), ("minor", ctypes.c_int), ("traits", ctypes.c_uint32)]


class _Extension(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("kind", ctypes.c_int), ("next", ctypes.c_void_p), ("metadata", ctypes.c_void_p)]


class _ErrorCreate(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("extension", ctypes.c_void_p), ("message", ctypes.c_char_p), ("code", ctypes.c_int)]


class _Get(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("extension", ctypes.c_void_p), ("context", ctypes.c_void_p), ("found", ctypes.c_uint64)]


def _of_xla(api, index, argument):
    """Call a function of XLA's interface: the address of an error, or None."""
    table = ctypes.cast(api + _FUNCTIONS, ctypes.POINTER(ctypes.c_void_p))
    argument.size = ctypes.sizeof(argument)
    return _Function(table[index])(ctypes.addressof(argument))


def _words(address, count):
    return struct.unpack(f"{count}Q", _at(address, 8 * count)) if count else ()


@functools.lru_cache(maxsize=4096)
def _memory(dtype, dims):
    """(shape, NumPy dtype, type of so many bytes or None) of a buffer."""
    shape, dtype = struct.unpack(f"{len(dims) // 8}q", dims), numpy_dtype(_DTYPES[dtype])
    size = math.prod(shape) * dtype.itemsize
    return shape, dtype, ctypes.c_char * size if size else None


def _on_host(dtype, data, dims, device):
    """A buffer as a NumPy array of the same memory."""
    shape, dtype, memory = _memory(dtype, dims)
    return np.empty(shape, dtype) if memory is None else np.ndarray(shape, dtype, memory.from_address(data))


def _on_gpu(dtype, data, dims, device):
    """A buffer as an array that the front end takes."""
    from ._buffers import DeviceBuffer
    return DeviceBuffer(struct.unpack(f"{len(dims) // 8}q", dims), _DTYPES[dtype], data, device)


_array = _on_host if HOST_MEMORY else _on_gpu


def _arrays(count, values, device):
    made = []
    for address in _words(values, count):
        _, _, dtype, data, rank, dims = _BUFFER.unpack(_at(address, _BUFFER.size))
        made.append(_array(dtype & _HALF, data, _at(dims, 8 * rank) if rank else b"", device))
    return made


def _stream(api, context):
    """(stream, index of the device) of a call on a GPU."""
    stream, ordinal = _Get(context=context), _Get(context=context)
    for index, argument in ((_STREAM_GET, stream), (_DEVICE_ORDINAL_GET, ordinal)):
        if _of_xla(api, index, argument):
            raise RuntimeError("XLA does not tell on what stream and device the call is")
    return stream.found, ordinal.found & _HALF


# XLA calls from several threads at once; the simulator computes one kernel at a time.
_one_at_a_time = threading.Lock() if SIMULATED else None


def _compute(api, context, operands, results, text):
    stream, device = (None, 0) if HOST_MEMORY else _stream(api, context)
    call = parsed(_at(*_BYTES.unpack(_at(text, _BYTES.size))))
    operands, results = _arrays(*operands, device), _arrays(*results, device)
    if _one_at_a_time is None:
        call.run(operands, results, stream)
    else:
        with _one_at_a_time:
            call.run(operands, results, stream)


def _answer(extension):
    """Tell XLA what version of its interface this is."""
    extension = _Extension.from_address(extension)
    if extension.kind == _METADATA:
        metadata = _Metadata.from_address(extension.metadata)
        metadata.major, metadata.minor, metadata.traits = _MAJOR, _MINOR, 0


@_Function
def _handler(address):
    api = None
    try:
        _, extension, api, context, stage, *buffers = _FRAME.unpack(_at(address, _FRAME.size))
        if extension:
            _answer(extension)
        elif stage & _HALF == _EXECUTE:
            _, _, operands, _, first, _, _, results, _, written, _, _, _, _, _, values = buffers
            _compute(api, context, (operands, first), (results, written), *_words(values, 1))
        return None
    except BaseException as error:  # whatever it is: it must not leave
        try:
            message = f"dnnkern.jax: {type(error).__name__}: {error}"
            return _of_xla(api, _ERROR_CREATE, _ErrorCreate(message=message.encode(errors="replace"), code=_INTERNAL))
        except BaseException:
            return None


def register():
    """Give XLA the handler, for the platform of this library's device."""
    import jax
    address = ctypes.cast(_handler, ctypes.c_void_p).value
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(address), platform="cpu" if HOST_MEMORY else "CUDA")

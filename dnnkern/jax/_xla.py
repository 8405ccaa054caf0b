"""XLA's foreign functions from Python alone: the structures of its C interface (``xla/ffi/api/c_api.h``), and the one handler that computes
every call of this library.

A call arrives with the addresses of its buffers, a text that says what to compute, and on a GPU XLA's stream, on which kernels are launched
without waiting for them. An exception becomes an error of XLA's: one that left the handler would end the process.
"""
import ctypes
import threading

import numpy as np

from ..device import HOST_MEMORY, SIMULATED
from ._call import parsed

TARGET = "dnnkern"
PLATFORM = "cpu" if HOST_MEMORY else "cuda"
"""JAX's name of the platform whose arrays this library's device computes with."""

_MAJOR, _MINOR = 0, 1  # the oldest version of the interface that has all that is used here
_EXECUTE, _METADATA = 3, 1
_INTERNAL = 13
_FUNCTIONS = 48  # where the table of XLA's functions begins in its interface
_ERROR_CREATE, _STREAM_GET, _DEVICE_ORDINAL_GET = 0, 4, 17
_DTYPES = {1: "bool", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "uint8", 7: "uint16", 8: "uint32", 9: "uint64", 10: "float16",
           11: "float32", 12: "float64", 16: "bfloat16", 19: "float8_e5m2", 20: "float8_e4m3fn"}




def _structure(name, *fields):
    """A structure, which begins as all of them do."""
    return type(name, (ctypes.Structure,), {"_fields_": [("size", ctypes.c_size_t), ("extension", ctypes.c_void_p), *fields]})


_I64, _POINTER = ctypes.c_int64, ctypes.c_void_p
_Version = _structure("_Version", ("major", ctypes.c_int), ("minor", ctypes.c_int))
_Extension = type("_Extension", (ctypes.Structure,), {"_fields_": [
    ("size", ctypes.c_size_t), ("kind", ctypes.c_int), ("next", _POINTER), ("metadata", _POINTER)]})
_Metadata = type("_Metadata", (ctypes.Structure,), {"_fields_": [
    ("size", ctypes.c_size_t), ("version", _Version), ("traits", ctypes.c_uint32)]})
_Buffer = _structure("_Buffer", ("dtype", ctypes.c_int), ("data", _POINTER), ("rank", _I64), ("dims", ctypes.POINTER(_I64)))
_Buffers = _structure("_Buffers", ("count", _I64), ("kinds", _POINTER), ("values", ctypes.POINTER(ctypes.POINTER(_Buffer))))
_Bytes = type("_Bytes", (ctypes.Structure,), {"_fields_": [("data", _POINTER), ("length", ctypes.c_size_t)]})
_Attributes = _structure("_Attributes", ("count", _I64), ("kinds", _POINTER), ("names", ctypes.POINTER(ctypes.POINTER(_Bytes))),
                         ("values", ctypes.POINTER(ctypes.POINTER(_Bytes))))
_Frame = _structure("_Frame", ("api", _POINTER), ("context", _POINTER), ("stage", ctypes.c_int), ("operands", _Buffers),
                    ("results", _Buffers), ("attributes", _Attributes))
_ErrorCreate = _structure("_ErrorCreate", ("message", ctypes.c_char_p), ("code", ctypes.c_int))
_StreamGet = _structure("_StreamGet", ("context", _POINTER), ("stream", _POINTER))
_OrdinalGet = _structure("_OrdinalGet", ("context", _POINTER), ("ordinal", ctypes.c_int32))
_Function = ctypes.CFUNCTYPE(_POINTER, _POINTER)


def _of_xla(frame, index, argument):
    """Call a function of XLA's interface."""
    table = ctypes.cast(frame.api + _FUNCTIONS, ctypes.POINTER(_POINTER))
    return _Function(table[index])(ctypes.addressof(argument))


def _error(frame, message):
    """An error for XLA."""
    argument = _ErrorCreate(ctypes.sizeof(_ErrorCreate), None, message.encode(errors="replace"), _INTERNAL)
    return _of_xla(frame, _ERROR_CREATE, argument)


def _on_host(buffer, stream, device):
    """A buffer as a NumPy array of the same memory."""
    from ..host.dtypes import numpy_dtype
    shape, dtype = tuple(buffer.dims[:buffer.rank]), numpy_dtype(_DTYPES[buffer.dtype])
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, (ctypes.c_char * size).from_address(buffer.data))


def _on_gpu(buffer, stream, device):
    """A buffer as an array that the front end takes."""
    from ._buffers import DeviceBuffer
    return DeviceBuffer(tuple(buffer.dims[:buffer.rank]), _DTYPES[buffer.dtype], buffer.data or 0, device)


def _stream(frame):
    """(stream, index of the device) of a call on a GPU."""
    stream = _StreamGet(ctypes.sizeof(_StreamGet), None, frame.context, None)
    ordinal = _OrdinalGet(ctypes.sizeof(_OrdinalGet), None, frame.context, 0)
    for index, argument in ((_STREAM_GET, stream), (_DEVICE_ORDINAL_GET, ordinal)):
        if _of_xla(frame, index, argument):
            raise RuntimeError("XLA does not tell on what stream and device the call is")
    return stream.stream or 0, ordinal.ordinal


_array = _on_host if HOST_MEMORY else _on_gpu
# XLA calls from several threads at once; the simulator computes one kernel at a time.
_one_at_a_time = threading.Lock() if SIMULATED else None


def _arrays(buffers, stream, device):
    return [_array(buffers.values[i].contents, stream, device) for i in range(buffers.count)]


def _compute(frame):
    text = frame.attributes.values[0].contents
    call = parsed(ctypes.string_at(text.data, text.length).decode())
    stream, device = (None, 0) if HOST_MEMORY else _stream(frame)
    operands, results = _arrays(frame.operands, stream, device), _arrays(frame.results, stream, device)
    if _one_at_a_time is None:
        call.run(operands, results, stream)
    else:
        with _one_at_a_time:
            call.run(operands, results, stream)


@ctypes.CFUNCTYPE(_POINTER, ctypes.POINTER(_Frame))
def _handler(pointer):
    frame = None
    try:
        frame = pointer.contents
        if frame.extension:
            extension = _Extension.from_address(frame.extension)
            if extension.kind == _METADATA:
                metadata = _Metadata.from_address(extension.metadata)
                metadata.version.major, metadata.version.minor, metadata.traits = _MAJOR, _MINOR, 0
                return None
        if frame.stage == _EXECUTE:
            _compute(frame)
        return None
    except BaseException as error:  # whatever it is: it must not leave
        try:
            return _error(frame, f"dnnkern.jax: {type(error).__name__}: {error}")
        except BaseException:
            return None


def register():
    """Give XLA the handler, for the platform of this library's device."""
    import jax
    address = ctypes.cast(_handler, _POINTER).value
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(address), platform=PLATFORM if HOST_MEMORY else "CUDA")

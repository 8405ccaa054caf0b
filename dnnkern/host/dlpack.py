"""DLPack by hand: read any producer's array in place, and hand device memory to a consumer (JAX) that takes nothing else.

The structures are those of the DLPack specification. Producers are asked for versioned capsules (1.0), which say what is read-only, and
may give unversioned ones; consumers get unversioned ones, which every framework accepts.
"""
import ctypes

from ..device import HOST_MEMORY
from .dtypes import ITEMSIZE
from .tensor import packed_strides

_CUDA, _HOST = 2, (1, 3)  # types of devices; host memory is the CPU's, or pinned


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]


class _Versioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
                ("flags", ctypes.c_uint64), ("tensor", _Tensor)]


_VERSION, _VERSIONED, _READ_ONLY = (1, 1), b"dltensor_versioned", 1
_CODES = {(2, 64): "float64", (2, 32): "float32", (2, 16): "float16", (4, 16): "bfloat16", (0, 8): "int8", (1, 8): "uint8",
          (0, 16): "int16", (1, 16): "uint16", (0, 32): "int32", (1, 32): "uint32", (0, 64): "int64", (1, 64): "uint64", (6, 8): "bool",
          (10, 8): "float8_e4m3fn", (12, 8): "float8_e5m2", (14, 8): "float8_e8m0fnu"}
_OF_NAME = {name: code for code, name in _CODES.items()}

# Prototypes of our own: those of `ctypes.pythonapi` are shared, and others set them (`jax.ffi.pycapsule` lets PyCapsule_New take no None)
_get_pointer, _is, _new = (ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi)) for name, result, *arguments in (
    ("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p),
    ("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p),
    ("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)))


def _unpacked(a):
    """(capsule, `_Tensor`, flags): the structure lives as long as the capsule."""
    try:
        capsule = a.__dlpack__(max_version=_VERSION)
    except TypeError:  # a producer of before 1.0 has no such argument
        capsule = a.__dlpack__()
    if not _is(capsule, _VERSIONED):
        return capsule, ctypes.cast(_get_pointer(capsule, b"dltensor"), ctypes.POINTER(_Managed)).contents.tensor, 0
    managed = ctypes.cast(_get_pointer(capsule, _VERSIONED), ctypes.POINTER(_Versioned)).contents
    if managed.major != _VERSION[0]:
        raise TypeError(f"got {type(a).__name__} of DLPack version {managed.major}.{managed.minor}; expected {_VERSION[0]}")
    return capsule, managed.tensor, managed.flags


def is_read_only(a) -> bool:
    """Whether a producer forbids that its array is written; unversioned capsules cannot say so."""
    return bool(_unpacked(a)[2] & _READ_ONLY)


def read(a):
    """((shape, byte strides, dtype name, device), address) of a DLPack producer; TypeError where a GPU cannot read it."""
    device_type, index = a.__dlpack_device__()
    if HOST_MEMORY:
        raise TypeError(f"got {type(a).__name__}, which is no NumPy array and no torch tensor; without a GPU those alone are arrays: "
                        "numpy.from_dlpack(x) or torch.from_dlpack(x) makes one of the same memory")
    if device_type != _CUDA:
        where = "in host memory" if device_type in _HOST else f"on DLPack's device type {int(device_type)}"
        raise TypeError(f"got {type(a).__name__} {where}; expected an array on a CUDA device")
    _capsule, tensor, _ = _unpacked(a)
    name = _CODES.get((tensor.code, tensor.bits))
    if name is None or tensor.lanes != 1:
        raise TypeError(f"got {type(a).__name__} with DLPack type code {tensor.code} of {tensor.bits} bits; no dtype of dnnkern")
    shape = tuple(tensor.shape[:tensor.ndim])
    strides = tuple(tensor.strides[:tensor.ndim]) if tensor.strides else packed_strides(shape)
    return (shape, tuple(s * ITEMSIZE[name] for s in strides), name, index), (tensor.data or 0) + tensor.byte_offset


class Exporter:
    """Device memory as a DLPack producer, packed or with `strides` in elements; `owner` lives until the consumer lets go."""

    def __init__(self, address, shape, dtype, device, owner, strides=None):
        self.address, self.shape, self.dtype, self.device, self.owner = address, shape, dtype, device, owner
        self.strides = packed_strides(shape) if strides is None else strides

    def __dlpack_device__(self):
        return _CUDA, self.device

    def __dlpack__(self, stream=None, **_):
        """A capsule. The memory is complete already, so no stream has to wait."""
        managed = _Managed()
        ndim = len(self.shape)
        shape, strides = (ctypes.c_int64 * ndim)(*self.shape), (ctypes.c_int64 * ndim)(*self.strides)
        code, bits = _OF_NAME[self.dtype]
        managed.tensor = _Tensor(self.address, _CUDA, self.device, ndim, code, bits, 1, shape, strides, 0)
        key = ctypes.addressof(managed)

        def release(_):
            _alive.pop(key, None)
        managed.deleter = _Deleter(release)
        _alive[key] = managed, shape, strides, self.owner
        return _new(key, b"dltensor", None)


_alive = {}
"""Exported tensors a consumer still holds, by address of their structure."""

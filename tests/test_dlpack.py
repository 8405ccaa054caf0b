"""Arrays of other frameworks, read through DLPack: NumPy's in host memory stand for those on a device."""
import ctypes

import numpy as np
import pytest

from dnnkern.device import SIMULATED
from dnnkern.host import dlpack
from dnnkern.host.arrays import kind_named

pytestmark = pytest.mark.skipif(not SIMULATED, reason="host logic")


@pytest.fixture(autouse=True)
def host(monkeypatch):
    """The host's memory counts as a GPU's."""
    monkeypatch.setattr(dlpack, "HOST_MEMORY", False)
    monkeypatch.setattr(dlpack, "_CUDA", 1)


class Producer:
    """Of an array, by capsules of DLPack 1 or, `old`, of before."""

    def __init__(self, array, old=False):
        self.array, self.old, self.asked = array, old, []

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options):
        self.asked.append(options)
        if self.old and options:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        return self.array.__dlpack__(**options)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8", "uint16", "int64", "bool"])
def test_an_array_is_read_in_place(dtype, old):
    whole = np.arange(120).reshape(4, 5, 6).astype(dtype)
    for a in (whole, whole.transpose(2, 0, 1), whole[1:, ::2, 3], whole[:, ::-1], whole[0, 0, 0:1], whole[:0]):
        producer = Producer(a, old)
        (shape, strides, name, device), address = dlpack.read(producer)
        assert (shape, name, device) == (a.shape, dtype, 0) and producer.asked == [{"max_version": (1, 1)}, {}][:1 + old]
        assert address == a.__array_interface__["data"][0]
        if a.size:
            ends = [s * (n - 1) for n, s in zip(shape, strides)]
            first, last = address + sum(e for e in ends if e < 0), address + sum(e for e in ends if e > 0)
            memory = (ctypes.c_char * (last - first + a.itemsize)).from_address(first)
            np.testing.assert_array_equal(np.ndarray(shape, dtype, memory, address - first, strides), a)


def test_what_is_read_only():
    kind = kind_named("interface")
    a = np.ones((2, 3), np.float32)
    assert not kind.read_only(Producer(a)) and not kind.read_only(Producer(a, old=True))
    a.flags.writeable = False
    assert kind.read_only(Producer(a)) is True
    assert dlpack.read(Producer(a))[0] == ((2, 3), (12, 4), "float32", 0)
    with pytest.raises(BufferError):  # a producer of before 1.0 has no other way
        dlpack.read(Producer(a, old=True))


def test_a_version_that_nobody_knows_is_refused(monkeypatch):
    monkeypatch.setattr(dlpack, "_VERSION", (0, 9))
    with pytest.raises(TypeError, match="got Producer of DLPack version 1\\.\\d; expected"):
        dlpack.read(Producer(_Versioned(np.ones(3))))


class _Versioned:
    """Gives capsules of version 1 whatever is asked for."""

    def __init__(self, array):
        self.array, self.__dlpack_device__ = array, array.__dlpack_device__

    def __dlpack__(self, **_):
        return self.array.__dlpack__(max_version=(1, 1))


def test_prototypes_that_others_share_do_not_matter(monkeypatch):
    """`jax.ffi.pycapsule` changes that of `ctypes.pythonapi.PyCapsule_New` for the whole process."""
    from dnnkern.host.dlpack import Exporter, _unpacked
    for name in ("PyCapsule_New", "PyCapsule_GetPointer", "PyCapsule_IsValid"):
        monkeypatch.setattr(getattr(ctypes.pythonapi, name), "argtypes", (ctypes.c_void_p, ctypes.CFUNCTYPE(None), ctypes.CFUNCTYPE(None)))
        monkeypatch.setattr(getattr(ctypes.pythonapi, name), "restype", None)
    owner = np.zeros((2, 3), np.uint16)
    capsule, tensor, flags = _unpacked(Exporter(owner.ctypes.data, (2, 3), "bfloat16", 5, owner, (-3, 1)))
    assert (tensor.data, tensor.device_id, tensor.code, tensor.bits, flags) == (owner.ctypes.data, 5, 4, 16, 0)
    assert tensor.shape[:2] == [2, 3] and tensor.strides[:2] == [-3, 1] and capsule is not None

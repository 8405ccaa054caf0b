"""Memory of a device that is NumPy's, in the simulator and on the processor: numba.cuda's host functions, and arrays over addresses."""
import time

import numpy as np

POISON = 0xFF  # NaN in every float format, -1 or the largest value as an integer


class DeviceArray(np.ndarray):
    """What the host functions give for memory on the device; slices of it, and results of calls that take it, are such arrays too."""

    def copy_to_host(self, ary=None, stream=0):
        """The values as a plain array, or in the one given."""
        if ary is None:
            return np.array(self)
        ary[...] = self
        return ary

    def copy_to_device(self, ary, stream=0):
        """Take the values of an array."""
        self[...] = ary


class Stream:
    """Launches are synchronous, so a stream does nothing."""
    handle = 0

    def synchronize(self):
        """Nothing is left to wait for."""


class Event:
    """A moment of the wall's clock."""

    def __init__(self, timing=True):
        self.time = None

    def record(self, stream=0):
        """Now."""
        self.time = time.perf_counter()

    def synchronize(self):
        """Nothing is left to wait for."""

    def query(self):
        """Whether what came before is done: it is."""
        return True

    def elapsed_time(self, other):
        """Milliseconds until another event."""
        return 1e3 * (other.time - self.time)


class HostFunctions:
    """Those of numba.cuda that programs call between launches; `dtype` makes a NumPy dtype of a type of kernels."""
    dtype = staticmethod(np.dtype)

    @staticmethod
    def to_device(obj, stream=0, copy=True, to=None):
        """A copy of a host array that kernels take."""
        if to is None:
            return np.array(obj).view(DeviceArray)
        to[...] = obj
        return to

    @classmethod
    def device_array(cls, shape, dtype=np.float64, strides=None, order="C", stream=0):
        """New memory, full of NaN."""
        return poisoned(shape, cls.dtype(dtype), order=order).view(DeviceArray)

    @staticmethod
    def device_array_like(ary, stream=0):
        """New memory of an array's shape and dtype, full of NaN."""
        return poisoned(ary.shape, ary.dtype).view(DeviceArray)

    @staticmethod
    def stream():
        """A stream."""
        return Stream()

    @staticmethod
    def default_stream():
        """The stream of calls that name none."""
        return Stream()

    @staticmethod
    def event(timing=True):
        """An event."""
        return Event(timing)

    @staticmethod
    def synchronize():
        """Launches are synchronous: nothing is left to wait for."""

    @staticmethod
    def is_available():
        """Whether kernels can run: they can."""
        return True


def poisoned(shape, dtype, byte=POISON, order="C"):
    """A new ndarray of such bytes."""
    out = np.empty(shape, dtype, order)
    out.reshape(-1, order="A").view(np.uint8).fill(byte)
    return out


class _Bytes:
    """Bytes of the host's memory, for NumPy: `owner` lives as long as an array over them."""

    def __init__(self, address, size, owner, readonly):
        self.owner = owner
        self.__array_interface__ = {"version": 3, "shape": (size,), "typestr": "|u1", "data": (address, readonly)}


def bytes_at(address, size, owner, readonly=False):
    """`size` bytes from an address of the host's on, as a flat uint8 array that keeps their `owner` alive."""
    return np.asarray(_Bytes(address, size, owner, readonly))

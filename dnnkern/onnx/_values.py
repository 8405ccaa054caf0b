"""Values of a model's tensors: on the device, on the host, or on both."""
import math

import numpy as np
import onnx

from ..device import HOST_MEMORY, cuda
from ..host.arrays import View, view
from ..host.dtypes import ITEMSIZE, STORAGE

FLOATS = ("float64", "float32", "float16", "bfloat16")


class Value:
    """A tensor, or what else ONNX passes from node to node.

    Parameters
    ----------
    host : numpy.ndarray, list (a sequence) or None (an empty optional), optional
    device : device array, packed
    is_shape : bool
        Integers that say shapes, axes and such: what only reads them runs on the host.

    Attributes
    ----------
    is_tensor : bool
    """
    __slots__ = "_host", "_device", "is_shape", "is_tensor"

    def __init__(self, host=None, device=None, is_shape=False):
        self._host, self._device, self.is_shape = host, device, is_shape
        self.is_tensor = device is not None or isinstance(host, np.ndarray)

    @property
    def shape(self):
        """A tuple."""
        return tuple((self._host if self._device is None else self._device).shape)

    @property
    def ndim(self):
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self):
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def dtype(self):
        """The dtype's name; of strings "object"."""
        return np.dtype((self._host if self._device is None else self._device).dtype).name

    @property
    def on_host(self):
        """Whether its values are known without asking the device."""
        return self._host is not None or not self.is_tensor

    def host(self):
        """The values in NumPy; a sequence as a list."""
        if self._host is None and self._device is not None:
            self._host = self._device.copy_to_host().reshape(self.shape)  # views of one element come with a dimension
        return self._host

    def device(self):
        """The device array, uploaded at the first call."""
        if self._device is None:
            self._device = uploaded(self._host)
        return self._device

    def forget_host(self):
        """Keep what is on the device alone."""
        if self._device is not None:
            self._host = None

    def ints(self):
        """The values as a list of ints."""
        return [int(n) for n in np.asarray(self.host()).reshape(-1)]

    def reshape(self, *shape):
        """The same memory with another shape."""
        if self._device is None:
            return Value(self._host.reshape(shape), is_shape=self.is_shape)
        host = None if self._host is None else self._host.reshape(shape)
        return Value(host, _reshaped(self._device, shape), self.is_shape)

    def viewed(self, dtype):
        """The same memory with another dtype of the same size."""
        return self if dtype == self.dtype else Value(device=view(self.device(), dtype))

    def describe(self):
        """For messages: float32 (2, 3)."""
        if not self.is_tensor:
            return "nothing" if self._host is None else "a sequence"
        return f"{self.dtype} {self.shape}"


def uploaded(array):
    """A device array of NumPy's values; TypeError of a dtype that devices have not."""
    array = np.ascontiguousarray(array).reshape(np.shape(array))
    name = array.dtype.name
    if name not in ITEMSIZE:
        raise TypeError(f"dtype {name}; expected one of {', '.join(ITEMSIZE)}")
    if HOST_MEMORY or not (name == "bfloat16" or name.startswith("float8")):
        return cuda.to_device(array)
    return view(cuda.to_device(array.view(STORAGE[name])), name)


def empty(shape, dtype):
    """A new device array."""
    name = np.dtype(dtype).name
    if HOST_MEMORY or not (name == "bfloat16" or name.startswith("float8")):
        return cuda.device_array(tuple(shape), np.dtype(dtype))
    return view(cuda.device_array(tuple(shape), np.dtype(STORAGE[name])), name)


def _reshaped(array, shape):
    if 0 in shape:  # Numba's arrays without elements have no other shape
        return empty(shape, array.dtype)
    return View(array.array.reshape(shape), array.dtype_name) if isinstance(array, View) else array.reshape(shape)


def _is_plain(x):
    """Whether a device array is packed and begins at a multiple of 16 bytes, as those that are made here are."""
    from ..host.arrays import kind_of
    (shape, strides, _, _), address = kind_of(x).describe(x)
    size = np.dtype(x.dtype).itemsize
    packed = tuple(size * math.prod(shape[k + 1:]) for k in range(len(shape)))
    return address % 16 == 0 and all(s == p for n, s, p in zip(shape, strides, packed) if n > 1)


def as_value(x, is_shape=False):
    """A `Value` of what a caller gives: an array of the host or of the device, a number, a sequence, or None."""
    if isinstance(x, Value):
        return x
    if x is None or isinstance(x, (list, tuple)) and not (x and isinstance(x[0], (int, float))):
        return Value(None if x is None else list(x))
    if isinstance(x, onnx.TensorProto):
        x = onnx.numpy_helper.to_array(x)
    if isinstance(x, np.ndarray) and not hasattr(x, "copy_to_host"):
        return Value(x.astype(object) if x.dtype.kind == "U" else x, is_shape=is_shape)
    if hasattr(x, "copy_to_host"):
        return Value(device=x) if _is_plain(x) else Value(x.copy_to_host())
    if not HOST_MEMORY and hasattr(x, "__cuda_array_interface__"):
        return as_value(cuda.as_cuda_array(x))
    return Value(np.asarray(x), is_shape=is_shape)

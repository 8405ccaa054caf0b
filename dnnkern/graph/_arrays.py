"""What callers put into variant packs: arrays of any framework, DLPack objects, raw addresses, and numbers passed by value."""
import ctypes
import math

import numpy as np

from ..device import HOST_MEMORY
from ..host.arrays import kind_of
from ..host.dtypes import dtype_name, numpy_dtype
from ._enums import DTYPE
from ._errors import InvalidValue


def described(x, what):
    """(dims, strides in elements, dtype, whether it is a number passed by value) of an array."""
    if on_host(x):
        shape, dtype = tuple(x.shape), dtype_name(x.dtype)
        strides = x.stride() if hasattr(x, "untyped_storage") else tuple(s // x.dtype.itemsize for s in x.strides)
        by_value = math.prod(shape) == 1
        if not HOST_MEMORY and not by_value:
            raise InvalidValue(f"{what}: got an array of shape {shape} in host memory; expected one on the device, or a single number")
    else:
        try:
            t = kind_of(x).tensor(x)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{what}: {error}") from None
        shape, strides, dtype, by_value = t.shape, t.strides, t.dtype, HOST_MEMORY and t.size == 1
    if any(s < 0 for s in strides):
        raise InvalidValue(f"{what}: got strides {tuple(strides)}; expected no negative ones")
    return shape or (1,), tuple(strides) or (1,), dtype, by_value


def on_host(x):
    """Whether it is a NumPy array or a torch tensor of the CPU's."""
    return isinstance(x, np.ndarray) or hasattr(x, "untyped_storage") and x.device.type == "cpu"


def number(x, dtype, what):
    """The number that a pack has for a tensor passed by value: a Python float, an array of one element in host memory, or the address of
    one, as an int."""
    if isinstance(x, (float, np.generic)) or isinstance(x, bool):
        return x.item() if isinstance(x, np.generic) else x
    if isinstance(x, int):
        if not x:
            raise InvalidValue(f"{what}: got a null address")
        kind = numpy_dtype(DTYPE[dtype])
        return np.frombuffer((ctypes.c_char * kind.itemsize).from_address(x), kind)[0].item()
    if hasattr(x, "untyped_storage"):
        if x.numel() == 1 and x.device.type == "cpu":
            return x.item()
    elif HOST_MEMORY or isinstance(x, np.ndarray):
        view = x if isinstance(x, np.ndarray) else kind_of(x).host_view(x).view(numpy_dtype(dtype_name(x.dtype)))
        if view.size == 1:
            return view.reshape(-1)[0].item()
    raise InvalidValue(f"{what}: got {type(x).__name__} {tuple(getattr(x, 'shape', ()))}; expected one number in host memory")


def reach(x):
    """Bytes from an array's first element to the end of its last."""
    t = kind_of(x).tensor(x)
    return t.extent[1]

"""Arrays of every framework in, arrays of the same kind out.

One `Kind` a framework. `describe` is on the path of every call: a hashable description in the framework's own objects, and the address.
`tensor` turns the same array into a `Tensor`; it runs once for each new description.
"""
import math
import sys

import numpy as np

from ..device import HOST_MEMORY
from ..device.host_memory import DeviceArray
from . import driver
from .choices import dtype_of
from .dtypes import ITEMSIZE, STORAGE, dtype_name, numpy_dtype
from .last import to_first
from .tensor import Tensor


_NULL = "null"  # in a key: the array before it has no memory, for want of elements, or because it was taken away


class Kind:
    """Reads and creates arrays of one framework."""
    name = None
    finishes = False
    to_first = None
    """A function that views an array with channels last as one with channels first; None where arrays are packed."""
    data_ptr = None
    """A function of C that returns an array's address, where arrays of this kind have guards."""

    def read_only(self, a) -> bool:
        """Whether an array must not be written."""
        return False

    def describe(self, a):
        """((shape, strides, dtype, device), address), in the cheapest representation."""
        raise TypeError(f"{type(a).__name__} is not an array")

    def describe_call(self, key, arrays):
        """Append a description of a call's arrays to `key`; returns their addresses, 0 for None.

        `arrays` may be of several kinds; the first is of this one. A kind whose calls must be fast does it without a call an array.
        """
        addresses, bits = [], 0
        for a in arrays:
            if a is None:
                key.append(None)
                addresses.append(0)
            else:
                description, address = kind_of(a).describe(a)
                key.append(description)
                if not address:
                    key.append(_NULL)
                addresses.append(address)
                bits |= address
        if bits & 15:
            key += [alignment(address) for address in addresses]
        return addresses

    def addresses(self, arrays):
        """The arrays' addresses; kinds may be mixed."""
        return [kind_of(a).describe(a)[1] for a in arrays]

    def guard(self, arrays):
        """``check(*arrays)``: whether each is, but for its address, what it is now; None where nobody can tell, or such arrays never
        change."""

    def tensor(self, a) -> Tensor:
        """The array's descriptor; TypeError if it cannot be used on this device."""
        (shape, strides, dtype, _), address = self.describe(a)
        name = dtype_name(dtype)
        size = ITEMSIZE[name]
        if address % size or any(s % size for n, s in zip(shape, strides) if n > 1):
            raise ValueError(f"got {name} at address {address:#x} with strides of {strides} bytes; elements must be aligned to their size")
        return Tensor(tuple(shape), tuple(s // size for s in strides), name, alignment(address))

    def device(self, a) -> int:
        """Index of the CUDA device that holds the array; 0 in the simulator."""
        return self.describe(a)[0][3]

    def bound(self, problem):
        """Called with the problem of a call whose first array is of this kind, before anything is chosen, checked or run."""

    def stream(self, device) -> int:
        """Handle of the framework's current stream."""
        return 0

    def empty(self, shape, dtype, device, stream):
        """A new packed array on the stream."""
        raise NotImplementedError

    def finish(self, a, stream):
        """If `finishes` is set: converts an array from `empty` for the caller, once the work that fills it is on the stream."""
        return a

    def host_view(self, a) -> np.ndarray:
        """Simulator: the array's own memory as NumPy, in its storage dtype."""
        raise TypeError(f"{type(a).__name__}: the simulator reads NumPy and CPU arrays")


def alignment(address):
    """Largest power of two up to 16 that divides an address."""
    return address & -address if address & 15 else 16


class NumPy(Kind):
    """Host arrays: those of the processor and the simulator; refused on a GPU."""
    name = "numpy"

    def describe(self, a):
        return (a.shape, a.strides, a.dtype, 0), a.__array_interface__["data"][0]

    def guard(self, arrays):
        known = [self.describe(a)[0] for a in arrays]
        return lambda *now: [kind_of(a).describe(a)[0] for a in now] == known

    def tensor(self, a):
        if not HOST_MEMORY:
            raise TypeError("got a NumPy array, which lives on the host; expected a device array (Numba, CuPy, PyTorch, JAX)")
        if "numpy.ma" in sys.modules and isinstance(a, np.ma.MaskedArray):  # importing it takes longer than all else of a call
            raise TypeError("got a masked array, whose mask would be ignored; expected a plain one (.filled(value) or .data)")
        return super().tensor(a)

    def read_only(self, a):
        return not a.flags.writeable

    def empty(self, shape, dtype, device, stream):
        return np.empty(shape, numpy_dtype(dtype))

    def to_first(self, a):
        return a.transpose(to_first(range(a.ndim)))

    def host_view(self, a):
        return np.asarray(a).view(STORAGE[dtype_name(a.dtype)])  # without the ways of a subclass


class OnDevice(NumPy):
    """Arrays of `dnnkern.device.cuda`'s host functions without a GPU."""

    def empty(self, shape, dtype, device, stream):
        return super().empty(shape, dtype, device, stream).view(DeviceArray)


_NEGATIVE = "got a torch tensor whose memory holds the negatives of its values; expected x.resolve_neg()"


class Torch(Kind):
    """torch.Tensor; on a GPU in torch's caching allocator and on its current stream, else on the CPU."""
    name, where = "torch", "cpu" if HOST_MEMORY else "cuda"

    def __init__(self):
        import torch
        self.torch = torch
        self.dtypes = {}
        self.plain = torch.Tensor, torch.nn.Parameter  # whose attributes are C's
        self.data_ptr = torch.Tensor.data_ptr
        self.current = getattr(torch._C, "_cuda_getCurrentRawStream", None)

    def describe(self, a):
        if a.is_neg():
            raise TypeError(_NEGATIVE)
        return (a.shape, a.stride(), a.dtype, a.get_device()), a.data_ptr()

    def describe_call(self, key, arrays):
        addresses, bits, tensor = [], 0, self.torch.Tensor
        for a in arrays:
            if type(a) is tensor:
                if a.is_neg():  # or it would be found as the tensor that it is a view of
                    raise TypeError(_NEGATIVE)
                address = a.data_ptr()
                key += a.shape, a.stride(), a.dtype, a.get_device()
            elif a is None:
                address = 0
                key.append(None)
            else:
                description, address = kind_of(a).describe(a)
                key.append(description)
            if not address and a is not None:
                key.append(_NULL)
            addresses.append(address)
            bits |= address
        if bits & 15:
            key += [alignment(address) for address in addresses]
        return addresses

    def guard(self, arrays):
        from .guards import make_guard
        if all(type(a) in self.plain for a in arrays):
            return make_guard(arrays)

    def addresses(self, arrays):
        try:
            return list(map(self.data_ptr, arrays))
        except TypeError:  # other frameworks' streams
            return super().addresses(arrays)

    def _check_device(self, a):
        if a.is_cuda == HOST_MEMORY or a.device.type not in ("cuda", "cpu"):
            raise TypeError(f"got a torch tensor on {a.device}; expected one on {'the CPU' if HOST_MEMORY else 'a CUDA device'}")

    def tensor(self, a):
        self._check_device(a)
        if a.layout is not self.torch.strided or a.is_nested:
            raise TypeError(f"got a {'nested ' * a.is_nested}torch tensor of layout {a.layout}; expected a strided one")
        if a.is_neg():
            raise TypeError(_NEGATIVE)
        self._check_memory(a, a.data_ptr())
        return Tensor(tuple(a.shape), tuple(a.stride()), dtype_name(a.dtype), alignment(a.data_ptr()))

    def _check_memory(self, a, there):
        if a.numel() and not there:
            raise ValueError(f"got a torch tensor of shape {tuple(a.shape)} without memory: its storage has been resized to 0 bytes, or it "
                             "is a fake one")

    def device(self, a):
        return max(a.get_device(), 0)

    def stream(self, device):
        return 0 if HOST_MEMORY else self.current(device)

    def empty(self, shape, dtype, device, stream):
        torch_dtype = self.dtypes.get(dtype)
        if torch_dtype is None:
            torch_dtype = self.dtypes[dtype] = getattr(self.torch, dtype)
        if HOST_MEMORY:
            return self.torch.empty(shape, dtype=torch_dtype)
        if stream == self.current(device):
            return self.torch.empty(shape, dtype=torch_dtype, device=device)
        with self.torch.cuda.stream(self.torch.cuda.ExternalStream(stream, device=device)):
            return self.torch.empty(shape, dtype=torch_dtype, device=device)

    def to_first(self, a):
        return a.permute(to_first(range(a.dim())))

    def host_view(self, a):
        # Not Tensor.numpy(): it makes the storage non-resizable, and loses the memory around a view.
        from ..device.host_memory import bytes_at
        self.tensor(a)  # a tensor without memory describes itself as one of the CPU's
        name, storage = dtype_name(a.dtype), a.untyped_storage()
        size = ITEMSIZE[name]
        self._check_memory(a, storage.nbytes())
        memory = bytes_at(storage.data_ptr(), storage.nbytes(), storage)
        return np.ndarray(tuple(a.shape), STORAGE[name], memory, a.storage_offset() * size, tuple(s * size for s in a.stride()))


class CuPy(Kind):
    """cupy.ndarray, in CuPy's memory pool and on its current stream."""
    name = "cupy"

    def __init__(self):
        import cupy
        self.cupy = cupy

    def describe(self, a):
        data = a.data
        return (a.shape, a.strides, a.dtype, data.device_id), data.ptr

    def stream(self, device):
        return self.cupy.cuda.get_current_stream(device).ptr

    def empty(self, shape, dtype, device, stream):
        with self.cupy.cuda.Device(device), self.cupy.cuda.ExternalStream(stream, device):
            return self.cupy.empty(shape, numpy_dtype(dtype))

    to_first = NumPy.to_first


class Numba(Kind):
    """numba.cuda device arrays; outputs from the library's stream-ordered pool. In the simulator Numba's own fake arrays."""
    name = "numba"

    def describe(self, a):
        if HOST_MEMORY:
            return (a.shape, a._ary.strides, a.dtype, 0), a._ary.__array_interface__["data"][0]
        data = a.gpu_data
        return (a.shape, a.strides, a.dtype, data.context.device.id), data.device_ctypes_pointer.value or 0

    def addresses(self, arrays):
        from .memory import numba_classes
        try:
            *_, reference, _, _ = numba_classes()
            return [a.gpu_data.device_ctypes_pointer.value if type(a.gpu_data) is reference else int(a.gpu_data.device_pointer)
                    for a in arrays]
        except (AttributeError, TypeError):  # the simulator's, views, other frameworks'
            return super().addresses(arrays)

    def empty(self, shape, dtype, device, stream):
        if HOST_MEMORY:
            from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray
            return FakeCUDAArray(np.empty(shape, numpy_dtype(dtype)))
        from .memory import numba_array
        if STORAGE[dtype] == dtype or dtype == "float16":
            return numba_array(shape, numpy_dtype(dtype), device, stream)
        return View(numba_array(shape, np.dtype(STORAGE[dtype]), device, stream), dtype)

    def read_only(self, a):
        return HOST_MEMORY and not a._ary.flags.writeable

    def host_view(self, a):
        return a._ary.view(STORAGE[dtype_name(a.dtype)])


class View:
    """A device array whose elements are read as another dtype of the same size; made by `dnnkern.view`."""
    __slots__ = "array", "dtype_name", "__weakref__"

    def __init__(self, array, name):
        self.array, self.dtype_name = array, name

    shape = property(lambda self: self.array.shape)
    strides = property(lambda self: self.array.strides)
    ndim = property(lambda self: len(self.array.shape))
    dtype = property(lambda self: numpy_dtype(self.dtype_name))
    __cuda_array_interface__ = property(lambda self: self.array.__cuda_array_interface__)

    def copy_to_host(self):
        """The values, as NumPy with the viewed dtype (ml_dtypes for bfloat16 and fp8)."""
        return np.ascontiguousarray(self.array.copy_to_host()).view(self.dtype)

    def __repr__(self):
        return f"dnnkern.view({self.array!r}, {self.dtype_name!r})"


class Viewed(Kind):
    """`View` objects: the array beneath with another dtype."""
    name = "numba"

    def describe(self, a):
        (shape, strides, _, device), address = kind_of(a.array).describe(a.array)
        return (shape, strides, a.dtype_name, device), address

    def read_only(self, a):
        return kind_of(a.array).read_only(a.array)

    def stream(self, device):
        return 0

    def empty(self, shape, dtype, device, stream):
        return kind_named("numba").empty(shape, dtype, device, stream)

    def host_view(self, a):
        inner = kind_of(a.array)
        return inner.host_view(a.array).view(STORAGE[a.dtype_name])


class Jax(Kind):
    """jax.Array: always packed, immutable; outputs come back through DLPack."""
    name = "jax"
    finishes = True

    def describe(self, a):
        shape = a.shape
        itemsize = a.dtype.itemsize
        strides = [itemsize] * len(shape)
        for i in range(len(shape) - 2, -1, -1):
            strides[i] = strides[i + 1] * max(shape[i + 1], 1)
        if a.is_deleted():
            raise ValueError("got a JAX array that has been deleted or donated")
        a.block_until_ready()  # JAX's streams are private: nothing else orders our launch after its work
        device = next(iter(a.devices()))
        return (shape, tuple(strides), a.dtype, device.id if device.platform == "gpu" else 0), a.unsafe_buffer_pointer()

    def tensor(self, a):
        platform = next(iter(a.devices())).platform
        if (platform == "cpu") != HOST_MEMORY:
            raise TypeError(f"got a JAX array on {platform}; expected one on {'the CPU' if HOST_MEMORY else 'a GPU'}")
        return super().tensor(a)

    def read_only(self, a):
        return True

    def empty(self, shape, dtype, device, stream):
        return kind_named("numpy" if HOST_MEMORY else "numba").empty(shape, dtype, device, stream)

    def finish(self, a, stream):
        import jax
        if HOST_MEMORY:
            return jax.numpy.asarray(a)
        from .dlpack import Exporter
        driver.cuStreamSynchronize(stream)  # JAX's streams do not wait for ours
        (shape, _, dtype, device), address = kind_of(a).describe(a)
        return jax.dlpack.from_dlpack(Exporter(address, shape, dtype_name(dtype), device, a))

    def host_view(self, a):
        return np.asarray(a).view(STORAGE[dtype_name(a.dtype)])


class Interface(Kind):
    """Anything else with __cuda_array_interface__ or DLPack: read in place, results come out as Numba device arrays."""
    name = "interface"

    def describe(self, a):
        if hasattr(a, "__cuda_array_interface__"):
            face = a.__cuda_array_interface__
            shape, dtype = face["shape"], np.dtype(face["typestr"])
            strides = face.get("strides") or _byte_strides(shape, dtype.itemsize)
            return (shape, tuple(strides), dtype, pointer_device(face["data"][0])), face["data"][0]
        from .dlpack import read
        return read(a)

    def read_only(self, a):
        if hasattr(a, "__cuda_array_interface__"):
            return a.__cuda_array_interface__["data"][1]
        from .dlpack import is_read_only
        return is_read_only(a)

    def empty(self, shape, dtype, device, stream):
        return kind_named("numba").empty(shape, dtype, device, stream)


def _byte_strides(shape, itemsize):
    return tuple(itemsize * math.prod(shape[i + 1:]) for i in range(len(shape)))


def pointer_device(address) -> int:
    """Index of the device that owns an address."""
    from .device import pointer_device as owner
    return owner(address)


_NAMED = {}
KIND_OF_TYPE = {}
_CLASSES = {"numpy": NumPy, "torch": Torch, "cupy": CuPy, "numba": Numba, "jax": Jax, "interface": Interface, "view": Viewed,
            "device": OnDevice}


def kind_named(name) -> Kind:
    """The one `Kind` object of a framework."""
    kind = _NAMED.get(name)
    if kind is None:
        kind = _NAMED[name] = _CLASSES[name]()
    return kind


def kind_of(a) -> Kind:
    """The framework of an array; TypeError if it is not an array."""
    kind = KIND_OF_TYPE.get(type(a))
    if kind is None:
        kind = KIND_OF_TYPE[type(a)] = kind_named(_name_of(a))
    return kind


def _name_of(a):
    if isinstance(a, View):
        return "view"
    if isinstance(a, np.ndarray):
        return "device" if isinstance(a, DeviceArray) else "numpy"
    roots = {c.__module__.split(".")[0] for c in type(a).__mro__}
    if "torch" in roots:
        return "torch"
    if "cupy" in roots:
        return "cupy"
    if "numba" in roots and (hasattr(a, "gpu_data") or hasattr(a, "_ary")):
        return "numba"
    if roots & {"jax", "jaxlib"}:
        return "jax"
    if hasattr(a, "__cuda_array_interface__") or hasattr(a, "__dlpack__"):
        return "interface"
    raise TypeError(f"got {type(a).__name__}; expected a device array (Numba, CuPy, PyTorch, JAX, or anything with "
                    "__cuda_array_interface__ or __dlpack__)")


def view(a, dtype):
    """Read a device array's elements as another dtype of the same size.

    Parameters
    ----------
    a : array
        A Numba (or other) device array, say of uint16; a NumPy array in the simulator.
    dtype : str or dtype
        "bfloat16", "float8_e4m3fn", ...: what the bits mean.

    Returns
    -------
    array
        Same memory. NumPy, CuPy and PyTorch arrays come back as arrays of their own; Numba's, which have no such dtype, as a thin wrapper
        that every function of this library takes.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> float(dnnkern.view(np.array([0x3F80], np.uint16), "bfloat16")[0])
    1.0
    """
    name = dtype_of("view", "dtype", dtype)
    try:
        kind = kind_of(a)
        have = kind.tensor(a).dtype
    except (TypeError, ValueError) as error:
        raise type(error)(f"view: a: {error}") from None
    if ITEMSIZE[have] != ITEMSIZE[name]:
        raise TypeError(f"view: a is {have}, of {ITEMSIZE[have]} bytes, dtype is {name}, of {ITEMSIZE[name]}; expected the same")
    if kind.name == "torch":
        return a.view(getattr(kind.torch, name))
    if kind.name in ("numpy", "cupy"):
        return a.view(numpy_dtype(name))
    return View(a.array if isinstance(a, View) else a, name)

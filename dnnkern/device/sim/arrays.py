"""Memory a kernel can index: a buffer of bytes, and the arrays and pointers that look into it.

Every access is bounds-checked, appended to the running thread's log and done; what the logs say is examined when the thread
synchronises (see `order`). So that an access costs one small Python frame, an array object belongs to one thread and keeps that thread's
lists of reads and writes. An entry is the element's number in its buffer plus the buffer's code (`Buffer.code`).

Integer elements are read through a memoryview, which yields Python ints, others through NumPy, which yields NumPy scalars.
"""
import operator

import numpy as np

from .errors import Misuse
from .scalars import as_dtype, converter

POISON = 0xFF  # NaN in every float format, -1 or the largest value as an integer
CODE_SHIFT = 40


class Buffer:
    """The bytes of one memory: a block's shared memory, or an allocation the host passed to the kernel."""

    def __init__(self, raw, index, base):
        self.raw, self.index, self.base = raw, index, base
        self.size = len(raw)
        self.shadow = None
        self._views = {}

    def elements(self, dtype):
        """All whole elements of `dtype` from the first byte on, as a memoryview (integers) or an ndarray."""
        view = self._views.get(dtype)
        if view is None:
            whole = self.raw[:self.size // dtype.itemsize * dtype.itemsize].view(dtype)
            view = self._views[dtype] = memoryview(whole) if dtype.kind in "iu" else whole
        return view

    def code(self, dtype):
        """What an element number is offset by in the logs: the buffer's index and the logarithm of the element size."""
        return (self.index * 8 + dtype.itemsize.bit_length() - 1) << CODE_SHIFT

    def place(self, byte):
        """Words for the address `byte`."""
        return f"{self.base + byte:#x}"


class View:
    """What arrays and pointers have in common: a typed window of a buffer, in the hands of one thread.

    Attributes
    ----------
    buffer : Buffer
    dtype : numpy.dtype
    start : int
        Element of the buffer that index 0 is.
    """
    __slots__ = "buffer", "dtype", "data", "reads", "writes", "start", "code", "convert", "thread", "name"

    def _bind(self, buffer, dtype, start, thread, name):
        self.buffer, self.dtype, self.start, self.thread, self.name = buffer, dtype, start, thread, name
        self.data = buffer.elements(dtype)
        self.convert = converter(dtype)
        self.code = buffer.code(dtype)
        if thread is None:
            self.reads = self.writes = None
        else:
            self.reads, self.writes = thread.reads, thread.writes
        return self

    @property
    def address(self):
        """Address of element 0: 32-bit in the shared window, 64-bit and simulated in global memory."""
        return self.buffer.base + self.start * self.dtype.itemsize

    def _put(self, k, value):
        """Store what the fast path could not: convert as C does."""
        if not self.buffer.raw.flags.writeable:
            raise Misuse(f"{self._title()} is written, but the array it came from is read-only")
        self.data[k] = self.convert(value)

    def _title(self):
        return self.name

    def _vector(self, k, n, align, what):
        address = self.buffer.base + k * self.dtype.itemsize
        if address % align:
            raise Misuse(f"{what} of {n} elements at {self._title()}: address {address:#x} is not aligned to {align} bytes")

    def _load(self, k, n):
        self.reads.extend(range(k + self.code, k + self.code + n))
        values = self.data[k:k + n]
        return values.tolist() if type(values) is memoryview else list(values)

    def _store(self, k, values):
        self.writes.extend(range(k + self.code, k + self.code + len(values)))
        data, convert = self.data, self.convert
        for value in values:
            data[k] = convert(value)
            k += 1


def _no(i, n, title):
    raise Misuse(f"{title}: index {i} is outside 0 .. {n - 1}")


class Array(View):
    """An array of any rank; negative indices count from the end, as in Numba."""
    __slots__ = "shape", "strides", "extent", "stride", "extent1", "stride1"

    def _shape(self, shape, strides):
        self.shape, self.strides = shape, strides
        self.extent, self.stride = (shape[0], strides[0]) if shape else (0, 0)
        if len(shape) > 1:
            self.extent1, self.stride1 = shape[1], strides[1]
        return self

    ndim = property(lambda self: len(self.shape))
    size = property(lambda self: int(np.prod(self.shape)))
    itemsize = property(lambda self: self.dtype.itemsize)

    def __len__(self):
        return self.extent

    def __iter__(self):
        return (self[i] for i in range(self.extent))

    def __getitem__(self, key):
        k = self.locate(key)
        if type(k) is Array or isinstance(k, Array):
            return k
        self.reads.append(k + self.code)
        return self.data[k]

    def __setitem__(self, key, value):
        k = self.locate(key)
        if isinstance(k, Array):
            k.fill(value)
            return
        self.writes.append(k + self.code)
        self._put(k, value)

    def locate(self, key):
        """Element number in the buffer of a full index, or the sub-array that a partial index or a slice selects."""
        key = key if isinstance(key, tuple) else (key,)
        if Ellipsis in key:
            at = key.index(Ellipsis)
            key = key[:at] + (slice(None),) * (len(self.shape) - len(key) + 1) + key[at + 1:]
        if len(key) > len(self.shape):
            raise Misuse(f"{self._title()} has {len(self.shape)} dimensions, {len(key)} indices given")
        start, shape, strides = self.start, [], []
        for i, n, s in zip(key + (slice(None),) * (len(self.shape) - len(key)), self.shape, self.strides):
            if isinstance(i, slice):
                first, stop, step = i.indices(n)
                start += first * s
                shape.append(len(range(first, stop, step)))
                strides.append(step * s)
                continue
            i = operator.index(i)
            if not -n <= i < n:
                raise Misuse(f"{self._title()}: index {key if len(key) > 1 else key[0]} is outside its shape {self.shape}")
            start += (i if i >= 0 else i + n) * s
        if not shape:
            return start
        return array(self.buffer, self.dtype, start, tuple(shape), tuple(strides), self.thread, self.name)

    def fill(self, value):
        """Store one value, or an array of this shape, element by element."""
        each = np.broadcast_to(np.array(list(value) if isinstance(value, Array) else value), self.shape)
        for index in np.ndindex(*self.shape):
            self[index if len(index) > 1 else index[0]] = each[index].item()

    def _contiguous(self, key, n, what):
        k = self.locate(key)
        last = (self.start + sum((e - 1) * s for e, s in zip(self.shape, self.strides)))
        if isinstance(k, Array) or self.strides[-1] != 1 or k + n - 1 > last:
            raise Misuse(f"{what} of {n} elements at {self._title()}[{key}]: outside its shape {self.shape}, or not contiguous")
        return k

    def load(self, key, n, align):
        """List of the `n` elements from `key` on, in one access of `align` bytes' alignment."""
        k = self._contiguous(key, n, "load")
        self._vector(k, n, align, "load")
        return self._load(k, n)

    def store(self, key, values, align):
        """Write the elements from `key` on, in one access of `align` bytes' alignment."""
        k = self._contiguous(key, len(values), "store")
        self._vector(k, len(values), align, "store")
        self._store(k, values)


class Array1(Array):
    """Rank 1, the fast way."""
    __slots__ = ()

    def __getitem__(self, i):
        try:
            if 0 <= i < self.extent:
                k = i * self.stride + self.start
                self.reads.append(k + self.code)
                return self.data[k]
        except TypeError:
            pass
        return Array.__getitem__(self, i)

    def __setitem__(self, i, value):
        try:
            if 0 <= i < self.extent:
                k = i * self.stride + self.start
                self.data[k] = value
                self.writes.append(k + self.code)
                return
        except (TypeError, ValueError, OverflowError):
            pass
        Array.__setitem__(self, i, value)


class Array2(Array):
    """Rank 2, the fast way."""
    __slots__ = ()

    def __getitem__(self, key):
        try:
            i, j = key
            if 0 <= i < self.extent and 0 <= j < self.extent1:
                k = i * self.stride + j * self.stride1 + self.start
                self.reads.append(k + self.code)
                return self.data[k]
        except TypeError:
            pass
        return Array.__getitem__(self, key)

    def __setitem__(self, key, value):
        try:
            i, j = key
            if 0 <= i < self.extent and 0 <= j < self.extent1:
                k = i * self.stride + j * self.stride1 + self.start
                self.data[k] = value
                self.writes.append(k + self.code)
                return
        except (TypeError, ValueError, OverflowError):
            pass
        Array.__setitem__(self, key, value)


def array(buffer, dtype, start, shape, strides, thread, name):
    """An array over `buffer` for `thread`; `start` and `strides` count elements."""
    kind = {1: Array1, 2: Array2}.get(len(shape), Array)
    return kind()._bind(buffer, dtype, start, thread, name)._shape(shape, strides)


def packed_strides(shape):
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


class Pointer(View):
    """A kernel's flat pointer: elements of one type, counted from a first one, over the whole allocation behind an array.

    Parameters
    ----------
    array : ndarray
        Element 0 is its first element. Indices may reach, forwards and backwards, all memory of the array that owns it, no more.
    dtype : optional
        Element type; halves, bfloat16 and 8-bit floats are by default the unsigned integers of their size.
    offset : int
        Elements of `dtype` to add.
    """
    __slots__ = "count", "source", "shift"

    def __init__(self, array, dtype=None, offset=0):
        self.source, byte = memory_of(array)
        self.dtype = as_dtype(dtype) if dtype is not None else storage(array.dtype)
        self.name, self.buffer, self.thread = "Pointer", None, None
        self.start, self.shift = divmod(byte + offset * self.dtype.itemsize, self.dtype.itemsize)

    def attach(self, buffer, name):
        """Give the pointer its place in a launch."""
        self.count = buffer.size // self.dtype.itemsize
        return self._copy(buffer, self.dtype, self.start, self.shift, None, name)

    def _copy(self, buffer, dtype, start, shift, thread, name):
        p = Pointer.__new__(Pointer)
        p.source, p.shift = self.source, shift
        p._bind(buffer, dtype, start, thread, name)
        p.count = len(p.data) if not shift else 0
        return p

    def of_thread(self, thread):
        return self._copy(self.buffer, self.dtype, self.start, self.shift, thread, self.name)

    def _title(self):
        return f"argument {self.name}"

    @property
    def address(self):
        return (self.buffer.base if self.buffer else 0) + self.start * self.dtype.itemsize + self.shift

    def __getitem__(self, i):
        k = i + self.start
        if 0 <= k < self.count:
            self.reads.append(k + self.code)
            return self.data[k]
        self._refuse(i, "read")

    def __setitem__(self, i, value):
        k = i + self.start
        if 0 <= k < self.count:
            self.writes.append(k + self.code)
            try:
                self.data[k] = value
            except (TypeError, ValueError, OverflowError):
                self._put(k, value)
        else:
            self._refuse(i, "written")

    def _refuse(self, i, what):
        if self.shift:
            raise Misuse(f"{self._title()}: index {i} is {what} through a pointer at {self.address:#x}, which is not aligned to the "
                         f"{self.dtype.itemsize} bytes of {self.dtype}")
        raise Misuse(f"{self._title()}: index {i} is {what}, its memory has the indices {-self.start} .. {self.count - self.start - 1} "
                     f"of {self.dtype}")

    def __add__(self, n):
        return self._copy(self.buffer, self.dtype, self.start + n, self.shift, self.thread, self.name)

    __radd__ = __add__

    def __sub__(self, n):
        return self + -n

    def view(self, dtype):
        """The same address as a pointer to another type."""
        dtype = as_dtype(dtype)
        start, shift = divmod(self.start * self.dtype.itemsize + self.shift, dtype.itemsize)
        return self._copy(self.buffer, dtype, start, shift, self.thread, self.name)

    def locate(self, i):
        """Element number in the buffer of index `i`."""
        k = i + self.start
        if not 0 <= k < self.count:
            self._refuse(i, "accessed")
        return k

    def load(self, i, n, align):
        """List of the elements i .. i+n-1, in one access of `align` bytes' alignment."""
        k = self.locate(i)
        self._vector(k, n, align, "load")
        self.locate(i + n - 1)
        return self._load(k, n)

    def store(self, i, values, align):
        """Write elements i, i+1, ..., in one access of `align` bytes' alignment."""
        k = self.locate(i)
        self._vector(k, len(values), align, "store")
        self.locate(i + len(values) - 1)
        self._store(k, values)


def memory_of(array):
    """All bytes of the allocation that `array` looks into, as a flat uint8 array, and where in it its first element is."""
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    if owner.base is not None:
        try:  # memory of a bytes-like object
            whole = np.frombuffer(owner.base, np.uint8)
        except (TypeError, ValueError, BufferError):
            whole = owner
        if whole.ctypes.data <= owner.ctypes.data < whole.ctypes.data + whole.nbytes:
            owner = whole
    if owner.flags.f_contiguous and not owner.flags.c_contiguous:
        owner = owner.T
    if not owner.flags.c_contiguous:
        raise Misuse(f"the array that owns the memory (shape {owner.shape}, strides {owner.strides}) is not contiguous")
    byte = array.__array_interface__["data"][0] - owner.__array_interface__["data"][0] if array.size else 0
    return owner.reshape(-1).view(np.uint8).view(np.ndarray), byte


def storage(dtype):
    """Type in which a kernel sees elements of `dtype`: its own, or unsigned integers for the floats that Python has no scalar for."""
    if dtype.kind == "V" or dtype == np.float16 or dtype.kind not in "biufc":
        return np.dtype(f"u{dtype.itemsize}")
    return dtype


def poisoned(shape, dtype):
    """A new ndarray of 0xFF bytes."""
    out = np.empty(shape, dtype)
    out.reshape(-1).view(np.uint8).fill(POISON)
    return out

"""Memory a kernel can index: a buffer of bytes, and the arrays that look into it (pointers: see `pointer`).

An access is bounds-checked, appended to the running thread's log and done; what the logs say is examined when the thread synchronises (see
`order`). So that an access costs one small Python frame, an array object belongs to one thread and holds that thread's lists of reads and
writes; what all threads share is its `Layout`. A log entry is the element's number in its buffer plus a code that tells buffer and element
size (`Buffer.code`); entries of a block's own shared memory are small integers, the ones Python is quickest with.

Integer elements are read through a memoryview, which yields Python ints, others through NumPy, which yields NumPy scalars.
"""
import functools
import operator
from collections import deque

import numpy as np

from ..host_memory import POISON, poisoned
from .errors import Misuse
from .integers import view
from .names import PartName
from .scalars import converter

SHARED_SHIFT = 18  # a block's own shared memory has less than 2**18 bytes
GLOBAL_SHIFT = 40


class Buffer:
    """The bytes of one memory, the first at address `base`: a block's shared memory (`index` 0), or an allocation of the host's."""

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
        """What turns an element number into a log entry."""
        size_log = dtype.itemsize.bit_length() - 1
        return (self.index * 8 + size_log) << GLOBAL_SHIFT if self.index else size_log << SHARED_SHIFT


class Layout:
    """What an array is to all threads: element `start` of `buffer` on, with `shape` and `strides` in elements."""
    __slots__ = "buffer", "dtype", "start", "shape", "strides", "name", "convert", "data", "code", "kind"

    def __init__(self, buffer, dtype, start, shape, strides, name):
        self.buffer, self.dtype, self.start, self.shape, self.strides, self.name = buffer, dtype, start, shape, strides, name
        self.convert, self.data, self.code = converter(dtype), buffer.elements(dtype), buffer.code(dtype)
        self.kind = Array
        if strides == (1,) or len(shape) == 2 and strides == packed_strides(shape):
            self.kind = Matrix if len(shape) == 2 else Vector
            self.data = self.data[start:start + shape[0] * strides[0]]
            self.code += start
        self.kind = view(self.kind, dtype)

    def of_thread(self, thread):
        """The array in the hands of `thread`."""
        view = self.kind()
        view.layout, view.thread, view.data, view.code = self, thread, self.data, self.code
        view.reads, view.writes = thread.reads, thread.writes
        view.bound()
        return view


class View:
    """A typed window of a buffer in the hands of one thread."""
    __slots__ = "layout", "thread", "data", "reads", "writes", "code"

    buffer = property(lambda self: self.layout.buffer)
    dtype = property(lambda self: self.layout.dtype)
    convert = property(lambda self: self.layout.convert)

    @property
    def title(self):
        """Words for the array, for messages."""
        return self.layout.name

    def get(self, k):
        """Element number `k` of the buffer."""
        self.reads.append(k + self.buffer.code(self.dtype))
        return self.buffer.elements(self.dtype)[k]

    def put(self, k, value):
        """Store to element number `k` of the buffer, converting as C does."""
        if not self.buffer.raw.flags.writeable:
            raise Misuse(f"{self.title} is written, but the array it came from is read-only")
        self.writes.append(k + self.buffer.code(self.dtype))
        self.buffer.elements(self.dtype)[k] = self.convert(value)

    def _check_vector(self, k, n, align, what):
        address = self.buffer.base + k * self.dtype.itemsize
        if address % align:
            raise Misuse(f"{what} of {n} elements at {self.title}: address {address:#x} is not aligned to {align} bytes")

    def load_at(self, k, n, align):
        """List of `n` elements from element number `k` of the buffer on, in one aligned access."""
        self._check_vector(k, n, align, "load")
        entry = k + self.buffer.code(self.dtype)
        self.reads.extend(range(entry, entry + n))
        values = self.buffer.elements(self.dtype)[k:k + n]
        return values.tolist() if type(values) is memoryview else list(values)

    def store_at(self, k, values, align):
        """Write `values` from element number `k` of the buffer on, in one aligned access."""
        self._check_vector(k, len(values), align, "store")
        for i, value in enumerate(values):
            self.put(k + i, value)


class Array(View):
    """An array of any rank and strides; negative indices count from the end, as in Numba."""
    __slots__ = ()

    shape = property(lambda self: self.layout.shape)
    strides = property(lambda self: self.layout.strides)
    ndim = property(lambda self: len(self.layout.shape))
    size = property(lambda self: int(np.prod(self.layout.shape)))
    itemsize = property(lambda self: self.layout.dtype.itemsize)

    @property
    def address(self):
        """Address of element 0: in the shared window 32-bit, in global memory 64-bit and simulated."""
        return self.buffer.base + self.layout.start * self.itemsize

    def bound(self):
        """Called when the view has got its thread: fills what only a fast subclass keeps."""

    def __len__(self):
        return self.layout.shape[0]

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key):
        k = self.locate(key)
        return self.get(k) if type(k) is int else k

    def __setitem__(self, key, value):
        k = self.locate(key)
        if type(k) is int:
            self.put(k, value)
        else:
            k.fill(value)

    def locate(self, key):
        """Element number in the buffer of a full index, or the sub-array that a partial index or a slice selects."""
        shape, strides, start = self.layout.shape, self.layout.strides, self.layout.start
        key = key if type(key) is tuple else (key,)
        if len(key) == len(shape):
            try:
                for i, n, s in zip(key, shape, strides):
                    if not 0 <= i < n:
                        break
                    start += i * s
                else:
                    return int(start)
            except TypeError:
                pass
        return self._select(key)

    def _select(self, key):
        shape, strides, start = self.layout.shape, self.layout.strides, self.layout.start
        given = key if len(key) != 1 else key[0]
        if Ellipsis in key:
            at = key.index(Ellipsis)
            key = key[:at] + (slice(None),) * (len(shape) - len(key) + 1) + key[at + 1:]
        if len(key) > len(shape):
            raise Misuse(f"{self.title} has {len(shape)} dimensions, {len(key)} indices are given")
        extents, steps = [], []
        for i, n, s in zip(key + (slice(None),) * (len(shape) - len(key)), shape, strides):
            if isinstance(i, slice):
                first, stop, step = i.indices(n)
                start += first * s
                extents.append(len(range(first, stop, step)))
                steps.append(step * s)
                continue
            i = operator.index(i)
            if not -n <= i < n:
                raise Misuse(f"{self.title}: index {given} is outside its shape {shape}")
            start += (i if i >= 0 else i + n) * s
        if len(key) == len(shape) and not extents:
            return int(start)
        name = PartName(self.layout.name, given)
        return Layout(self.buffer, self.dtype, start, tuple(extents), tuple(steps), name).of_thread(self.thread)

    def fill(self, value):
        """Store one value, or an array of this shape, element by element."""
        each = np.broadcast_to(np.array(list(value) if isinstance(value, Array) else value), self.shape)
        for index in np.ndindex(*self.shape):
            self.put(self.locate(index), each[index].item())

    def _run(self, key, n, what):
        """Element number of `key`, if `n` consecutive ones are inside the array's last dimension."""
        k = self.locate(key)
        last = key[-1] if type(key) is tuple else key
        if type(k) is not int or self.strides[-1] != 1 or last % self.shape[-1] + n > self.shape[-1]:
            raise Misuse(f"{what} of {n} elements at {self.title}[{key}]: not inside the last dimension of its shape {self.shape}")
        return k

    def load(self, key, n, align):
        """List of the `n` elements from `key` on, in one access aligned to `align` bytes."""
        return self.load_at(self._run(key, n, "load"), n, align)

    def store(self, key, values, align):
        """Write the elements from `key` on, in one access aligned to `align` bytes."""
        self.store_at(self._run(key, len(values), "store"), values, align)


class Vector(Array):
    """A packed array of rank 1, quickly."""
    __slots__ = ("extent",)

    def bound(self):
        self.extent = self.layout.shape[0]

    def __getitem__(self, i):
        try:
            if 0 <= i < self.extent:
                self.reads.append(i + self.code)
                return self.data[i]
        except TypeError:
            pass
        return Array.__getitem__(self, i)

    def __setitem__(self, i, value):
        try:
            if 0 <= i < self.extent:
                self.data[i] = value
                self.writes.append(i + self.code)
                return
        except (TypeError, ValueError, OverflowError):
            pass
        Array.__setitem__(self, i, value)


class Matrix(Array):
    """A packed array of rank 2, quickly."""
    __slots__ = "rows", "columns"

    def bound(self):
        self.rows, self.columns = self.layout.shape

    def __getitem__(self, key):
        try:
            i, j = key
            if 0 <= i < self.rows and 0 <= j < self.columns:
                k = i * self.columns + j
                self.reads.append(k + self.code)
                return self.data[k]
        except (TypeError, ValueError):
            pass
        return Array.__getitem__(self, key)

    def __setitem__(self, key, value):
        try:
            i, j = key
            if 0 <= i < self.rows and 0 <= j < self.columns:
                k = i * self.columns + j
                self.data[k] = value
                self.writes.append(k + self.code)
                return
        except (TypeError, ValueError, OverflowError):
            pass
        Array.__setitem__(self, key, value)


def packed_strides(shape):
    """Strides in elements of a C-contiguous array."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


_local_template = functools.lru_cache(maxsize=1000)(poisoned)  # a copy takes a third of the time


class Nobody:
    """Stands for a thread where accesses are nobody else's business: its logs keep nothing."""
    reads = writes = deque(maxlen=0)


def local_array(shape, dtype, name, byte=POISON):
    """A thread's own array: an ndarray, but of integers an `Array`, so that they are Python ints and wrap when stored."""
    memory = _local_template(shape, dtype, byte).copy()
    if dtype.kind not in "iu":
        return memory
    flat = memory.reshape(-1)
    buffer = Buffer(flat.view(np.uint8), 0, 0)
    buffer.local = flat
    return Layout(buffer, dtype, 0, memory.shape, packed_strides(memory.shape), name).of_thread(Nobody)

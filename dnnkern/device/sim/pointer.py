"""`Pointer`: a kernel's flat pointer, over the whole allocation behind an array."""
import itertools

import numpy as np

from ..host_memory import bytes_at
from .arrays import Buffer, Nobody, View
from .errors import Misuse
from .integers import view
from .scalars import as_dtype, converter

_addresses, _free_addresses = {}, itertools.count(0x7F0000000000, 1 << 38)  # shared by threads that call: no step of them can be halved


class Target:
    """What a pointer of one type is to all threads: the elements of an allocation."""
    __slots__ = "buffer", "dtype", "name", "convert", "data", "code", "count", "others", "kind"

    def __init__(self, buffer, dtype, name, others=None):
        self.buffer, self.dtype, self.name = buffer, dtype, name
        self.convert, self.data, self.code = converter(dtype), buffer.elements(dtype), buffer.code(dtype)
        self.count, self.kind = len(self.data), view(Pointer, dtype)
        self.others = {} if others is None else others
        self.others[dtype] = self

    def of(self, dtype):
        """The same memory as elements of another type."""
        return self.others.get(dtype) or Target(self.buffer, dtype, self.name, self.others)


class Pointer(View):
    """A flat pointer: elements of one type, counted from a first one, over the whole allocation behind an array.

    Parameters
    ----------
    array : ndarray
        Element 0 is its first element. Indices may reach, forwards and backwards, all memory of the array that owns it, and no more.
    dtype : optional
        Element type; by default the array's, for halves, bfloat16 and 8-bit floats the unsigned integers of their size.
    offset : int
        Elements of `dtype` to add.
    """
    __slots__ = "start", "shift", "count"

    def __init__(self, array, dtype=None, offset=0):
        source, byte = memory_of(array)
        dtype = as_dtype(dtype) if dtype is not None else storage(array.dtype)
        start, shift = divmod(byte + offset * dtype.itemsize, dtype.itemsize)
        self._set(Target(Buffer(source, 1, address_of(source)), dtype, "pointer"), start, shift, Nobody)

    def _set(self, target, start, shift, thread):
        self.layout, self.start, self.shift, self.thread = target, start, shift, thread
        self.count = 0 if shift else target.count
        self.data, self.code, self.reads, self.writes = target.data, target.code, thread.reads, thread.writes

    def of_launch(self, buffer, name):
        """Function that gives a thread this pointer, as the argument `name` of a launch that knows its memory as `buffer`."""
        target, start, shift = Target(buffer, self.dtype, name), self.start, self.shift
        return lambda thread: point(target, start, shift, thread)

    @property
    def title(self):
        """Words for the pointer, for messages."""
        return f"argument {self.layout.name}"

    @property
    def address(self):
        """Simulated 64-bit address."""
        return self.buffer.base + self.start * self.dtype.itemsize + self.shift

    def __getitem__(self, i):
        k = i + self.start
        if 0 <= k < self.count:
            self.reads.append(k + self.code)
            return self.data[k]
        self._refuse(i, "read")

    def __setitem__(self, i, value):
        k = i + self.start
        if 0 <= k < self.count:
            try:
                self.data[k] = value
                self.writes.append(k + self.code)
            except (TypeError, ValueError, OverflowError):
                self.put(k, value)
        else:
            self._refuse(i, "written")

    def _refuse(self, i, what):
        dtype = self.dtype
        if self.shift:
            raise Misuse(f"{self.title}: index {i} is {what} through a pointer to {self.address:#x}, which is not aligned to the "
                         f"{dtype.itemsize} bytes of {dtype}")
        raise Misuse(f"{self.title}: index {i} is {what}, its memory has the indices {-self.start} .. {self.layout.count - self.start - 1} "
                     f"of {dtype}")

    def locate(self, i):
        """Element number in the allocation of index `i`."""
        k = i + self.start
        if not 0 <= k < self.count:
            self._refuse(i, "accessed")
        return k

    def load(self, i, n, align):
        """List of the elements i .. i+n-1, in one access aligned to `align` bytes."""
        self.locate(i + n - 1)
        return self.load_at(self.locate(i), n, align)

    def store(self, i, values, align):
        """Write elements i, i+1, ..., in one access aligned to `align` bytes."""
        self.locate(i + len(values) - 1)
        self.store_at(self.locate(i), values, align)

    def __add__(self, n):
        return point(self.layout, self.start + n, self.shift, self.thread)

    __radd__ = __add__

    def __sub__(self, n):
        return point(self.layout, self.start - n, self.shift, self.thread)

    def view(self, dtype):
        """The same address as a pointer to another type."""
        target = self.layout.of(as_dtype(dtype))
        start, shift = divmod(self.start * self.dtype.itemsize + self.shift, target.dtype.itemsize)
        return point(target, start, shift, self.thread)


class Addresses:
    """A kernel's argument: `words`, a pointer to 64-bit words, among which are addresses in the memory behind `pointers`. Kernels may make
    pointers of them."""

    def __init__(self, words, pointers):
        self.words, self.pointers = words, pointers


def at_address(address, dtype, thread):
    """A pointer to elements of `dtype`, in the hands of `thread`, made of an address in the memory behind its launch's arguments."""
    launch, address = thread.block.launch, int(address)
    memory = next((m for m in launch.memories[1:] if m.base <= address < m.base + max(m.size, 1)), None)
    if memory is None:
        raise Misuse(f"a pointer to {dtype} is made of {address:#x}; none of the arguments has memory there")
    targets = memory.__dict__.setdefault("targets", {})
    target = targets.get(dtype) or Target(memory, dtype, f"{memory.views[0][0]} (by its address)", targets)
    return point(target, *divmod(address - memory.base, dtype.itemsize), thread)


def point(target, start, shift, thread):
    """A pointer to element `start` of `target`, plus `shift` bytes, in the hands of `thread`."""
    p = Pointer.__new__(target.kind)
    p._set(target, start, shift, thread)
    return p


def memory_of(array):
    """All bytes of the allocation that `array` looks into, as a flat uint8 array, and where in it its first element is.

    An allocation is all that the array at the end of the chain of bases spans, gaps included, whatever the order of its dimensions; or the
    whole of the bytes-like object (bytes, mmap, shared memory) that lies beneath.
    """
    owner = array
    while True:
        base = owner.base
        if not isinstance(base, np.ndarray):
            base = getattr(base, "base", None)  # as_strided puts an object of its own in between
            if not isinstance(base, np.ndarray):
                break
        owner = base
    first = array.__array_interface__["data"][0]
    low = high = owner.__array_interface__["data"][0]
    if owner.size:
        low += sum((n - 1) * s for n, s in zip(owner.shape, owner.strides) if s < 0)
        high += sum((n - 1) * s for n, s in zip(owner.shape, owner.strides) if s > 0) + owner.itemsize
    readonly = not owner.flags.writeable
    if owner.base is not None:
        try:
            whole = np.frombuffer(owner.base, np.uint8)
        except (TypeError, ValueError, BufferError):
            pass
        else:
            start = whole.__array_interface__["data"][0]
            if start <= low <= high <= start + whole.size:  # only looked at: whoever closes it must find no export of ours
                owner, low, high, readonly = owner.base, start, start + whole.size, not whole.flags.writeable
    return bytes_at(low, high - low, owner, readonly), first - low if array.size else 0


def address_of(source):
    """A 64-bit address for an allocation, given its bytes: aligned as cudaMalloc does, the same as long as the allocation lives."""
    key = source.__array_interface__["data"][0], source.size
    return _addresses.get(key) or _addresses.setdefault(key, next(_free_addresses))


def storage(dtype):
    """Type in which a kernel sees elements of `dtype`: its own, or unsigned integers for floats of 16 and 8 bits."""
    if dtype == np.float16 or dtype.kind not in "biufc":
        return np.dtype(f"u{dtype.itemsize}")
    return dtype

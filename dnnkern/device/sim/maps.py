"""Tensor maps: the boxes of an array that bulk copies move, and runs of bytes that they move without a map.

What a copy moves is a `Box` or a `Run`: `rows` of `width` bytes as they lie in shared memory, of which the ones in the array are `length`
bytes from each of the bytes `starts` of `memory` on.
"""
import numpy as np

from .errors import Misuse

_BITS = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
ADDED = {"float32": np.float32, "int32": np.int32, "uint32": np.uint32, "uint64": np.uint64, "float16": np.float16}


class Map:
    """A kernel's argument: the tensor map of the array that begins at `pointer`, as `spec` describes it."""

    def __init__(self, pointer, spec):
        self.pointer, self.spec = pointer, spec

    def of_launch(self, memory, name):
        """What the kernel gets, where `memory` is the array's allocation."""
        return BoundMap(memory, self.pointer.address - memory.base, self.spec, name)


class BoundMap:
    """A tensor map in a kernel."""

    def __init__(self, memory, first, spec, name):
        self.memory, self.first, self.spec, self.title = memory, first, spec, f"tensor map {name}"
        spec.check_address(memory.base + first)
        self.bits = _BITS[spec.itemsize]
        self.strides = tuple(s * spec.itemsize for s in spec.strides)
        end = first + sum((n - 1) * s for n, s in zip(spec.shape, self.strides)) + spec.itemsize
        if end > memory.size:
            raise Misuse(f"{self.title}: an array of shape {spec.shape} and strides {spec.strides} ends {end - memory.size} bytes "
                         "behind its memory")
        self.tensor = np.ndarray(spec.shape, self.bits, memory.raw, first, self.strides)

    def numbers(self):
        """NumPy dtype of elements that are added to."""
        name = self.spec.dtype
        if name == "bfloat16":
            import ml_dtypes
            return np.dtype(ml_dtypes.bfloat16)
        if name not in ADDED:
            raise Misuse(f"{self.title}: {name} is not added to; it is one of bfloat16, {', '.join(ADDED)}")
        return np.dtype(ADDED[name])

    def tile(self, coordinates):
        """The box at coordinates, innermost first."""
        inside, selected, offsets = [], [], [np.array([self.first])]
        for c, n, extent, step, stride in zip(reversed(coordinates), self.spec.shape, self.spec.counts, self.spec.every, self.strides):
            low = min(max(0, -(c // step)), extent)  # the first of the box's elements at or behind coordinate 0
            high = max(low, min(extent, -((c - n) // step)))
            inside.append(slice(low, high))
            selected.append(slice(c + low * step, c + (high - 1) * step + 1, step) if low < high else slice(0, 0))
            offsets.append((c + np.arange(low, high) * step) * stride)
        starts = offsets[0]
        for along in offsets[1:-1]:
            starts = (starts[:, None] + along).ravel()
        inner = offsets[-1]
        length = len(inner) * self.spec.itemsize
        return Box(self, tuple(inside), tuple(selected), starts + inner[0] if length else starts[:0], length)

    def pixels(self, coordinates, offsets):
        """Pixels from base coordinates on, innermost first, each read at an offset along the dimensions of the image."""
        spec = self.spec
        sizes, lower, upper, steps = spec.shape[-2:0:-1], spec.lower[::-1], spec.upper[::-1], spec.every[-2:0:-1]
        counts = [(n - 1 + u - low) // step + 1 for n, low, u, step in zip(sizes, lower, upper, steps)]
        at, span = np.arange(spec.pixels), 1
        for c, low, step, count in zip(coordinates[1:-1], lower, steps, counts):
            k, rest = divmod(c - low, step)
            if rest or not 0 <= k < count:
                raise Misuse(f"{self.title}: base coordinates {coordinates[1:-1]} are not in the box of pixels: {count} from {low} "
                             f"on in steps of {step}")
            at, span = at + k * span, span * count
        inside, index = np.ones(spec.pixels, bool), []
        for n, low, step, count, offset in zip(sizes, lower, steps, counts, offsets):
            position = low + at % count * step + offset
            inside &= (position >= 0) & (position < n)
            index.append(position)
            at = at // count
        image = at + coordinates[-1]
        inside &= (image >= 0) & (image < spec.shape[0])
        index = [i[inside] for i in (image, *reversed(index))]
        first, last = max(coordinates[0], 0), min(coordinates[0] + spec.channels, spec.shape[-1])
        if first >= last:
            inside[:] = False
            index, last = [i[:0] for i in index], first
        starts = self.first + first * spec.itemsize + sum((i * s for i, s in zip(index, self.strides)), np.zeros(len(index[0]), np.int64))
        into = np.flatnonzero(inside), slice(first - coordinates[0], last - coordinates[0])
        return Box(self, into, (*index, slice(first, last)), starts, max(last - first, 0) * spec.itemsize)


class Box:
    """A box of a map; `inside` selects its elements that are in the array, `selected` the array's."""

    def __init__(self, of, inside, selected, starts, length):
        self.of, self.inside, self.selected, self.starts, self.length = of, inside, selected, starts, length
        self.memory, self.title, self.swizzle = of.memory, of.title, of.spec.swizzle
        self.nbytes = int(np.prod(of.spec.counts)) * of.spec.itemsize

    def read(self):
        """The bytes, zero outside the array."""
        out = np.zeros(self.of.spec.counts, self.of.bits)
        out[self.inside] = self.of.tensor[self.selected]
        return out.reshape(-1).view(np.uint8)

    def write(self, data):
        """Replace the array's part."""
        self.of.tensor[self.selected] = data.view(self.of.bits).reshape(self.of.spec.counts)[self.inside]

    def add(self, data):
        """Add to the array's part."""
        dtype = self.of.numbers()
        before = self.of.tensor[self.selected].view(dtype)
        self.of.tensor[self.selected] = (before + data.view(dtype).reshape(self.of.spec.counts)[self.inside]).view(self.of.bits)


class Run:
    """Consecutive bytes of an allocation."""
    swizzle = 0

    def __init__(self, launch, address, nbytes, what):
        if nbytes <= 0 or nbytes % 16 or address % 16:
            raise Misuse(f"{what}: {nbytes} bytes at global address {address:#x}; expected multiples of 16")
        self.memory = next((m for m in launch.memories[1:] if m.base <= address < m.base + m.size), None)
        if self.memory is None:
            raise Misuse(f"{what}: there is no memory at global address {address:#x}")
        byte = address - self.memory.base
        if byte + nbytes > self.memory.size:
            raise Misuse(f"{what}: {nbytes} bytes from {self.memory.describe(byte)} on end {byte + nbytes - self.memory.size} "
                         "bytes behind its memory")
        self.starts, self.length, self.nbytes, self.title = np.array([byte]), nbytes, nbytes, self.memory.describe(byte)

    @property
    def _bytes(self):
        return self.memory.raw[self.starts[0]:self.starts[0] + self.nbytes]

    def read(self):
        """The bytes."""
        return self._bytes.copy()

    def write(self, data):
        """Replace the bytes."""
        self._bytes[:] = data

    def add(self, data):
        """Add float32 values."""
        self._bytes.view(np.float32)[:] += data.view(np.float32)


def swizzled(address, nbytes, swizzle):
    """Where in shared memory the 16-byte pieces of `nbytes` from `address` on lie, counted from there."""
    piece = (address >> 4) + np.arange(nbytes >> 4)
    return (piece ^ (piece >> 3 & (swizzle >> 4) - 1) if swizzle else piece) - (address >> 4)

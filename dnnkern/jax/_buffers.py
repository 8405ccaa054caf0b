"""XLA's buffers on a GPU as arrays of the front end."""
from ..host.arrays import KIND_OF_TYPE, Kind, kind_named
from ..host.dtypes import ITEMSIZE
from ..host.tensor import packed_strides


class DeviceBuffer:
    """A packed array at an address, which lives as long as XLA's call."""
    __slots__ = "shape", "strides", "dtype", "address", "device"

    def __init__(self, shape, dtype, address, device):
        self.shape, self.dtype, self.address, self.device = shape, dtype, address, device
        size = ITEMSIZE[dtype]
        self.strides = tuple(size * s for s in packed_strides(shape))

    @property
    def ndim(self):
        return len(self.shape)


class _Buffers(Kind):
    name = "XLA"

    def describe(self, a):
        return (a.shape, a.strides, a.dtype, a.device), a.address

    def empty(self, shape, dtype, device, stream):
        """A workspace, which is given back in the stream's order; results are XLA's."""
        return kind_named("numba").empty(shape, dtype, device, stream)


KIND_OF_TYPE[DeviceBuffer] = _Buffers()

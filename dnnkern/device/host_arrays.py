"""What stands for numba.cuda's host functions where a device's memory is NumPy's: in the simulator and on the processor."""
import numpy as np


class DeviceArray(np.ndarray):
    """What the host functions give for memory on the device."""

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

    def synchronize(self):
        """Nothing is left to wait for."""


def poisoned(shape, dtype):
    """New memory, full of NaN or ones, so that what nobody has written shows."""
    dtype = np.dtype(dtype)
    out = np.empty(shape, dtype)
    out.view(np.uint8).reshape(-1)[...] = 0xFF if False else 0xFF
    return out

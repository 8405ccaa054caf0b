"""What lets programs on Numba's arrays run on the processor unchanged: numba.cuda's host functions, which need a driver, and launches by
``kernel[grid, block](...)``. Both are replaced in numba.cuda itself, where without a GPU they could only raise."""
from ..host_memory import HostFunctions

__all__ = ["install"]


class _Functions(HostFunctions):
    @staticmethod
    def dtype(kind):
        """NumPy's dtype of a cast, of a type of Numba's, or of whatever NumPy takes for one."""
        from .._numba import SCALARS
        kind = getattr(kind, "made", kind)
        return HostFunctions.dtype(next((name for name, scalar in SCALARS.items() if scalar is kind), kind))


class _Configured:
    """A kernel with its grid: called with its arguments it runs to its end."""

    def __init__(self, kernel, grid, block, stream=0, sharedmem=0):
        self.kernel, self.grid, self.block, self.sharedmem = kernel, grid, block, sharedmem

    def __call__(self, *args):
        from .launch import launch_arrays
        launch_arrays(self.kernel, self.grid, self.block, args, self.sharedmem)


def _configured(kernel, given):
    if not isinstance(given, tuple) or not 2 <= len(given) <= 4:
        raise ValueError(f"{kernel.py_func.__name__}[...]: expected [grid, block], and a stream and bytes of shared memory after them")
    return _Configured(kernel, *given)


def install():
    """Replace them, once a process."""
    from numba.cuda.dispatcher import CUDADispatcher

    from .._numba import cuda
    for name in ("to_device", "device_array", "device_array_like", "stream", "default_stream", "event", "synchronize", "is_available"):
        setattr(cuda, name, getattr(_Functions, name))
    CUDADispatcher.__getitem__ = _configured

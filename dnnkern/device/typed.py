"""`device_function` with the types of `dnnkern.device.jit`, for as long as `dnnkern.device`'s own has Numba's."""
from . import cuda
from ._typed import mark

__all__ = ["device_function"]


def device_function(function):
    """Decorator for a function that kernels call: always inlined, its numbers typed as in `jit`."""
    return cuda.jit(mark(function), device=True, forceinline=True)

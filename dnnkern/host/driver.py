"""The driver's functions (`raw`) as Python has functions: ``driver.cuMemAlloc(nbytes)`` returns the address, and raises `CudaError` where
there is none.
"""
import ctypes

from . import raw


class CudaError(RuntimeError):
    """A CUDA driver call failed."""


class NoDriver(CudaError):
    """There is no CUDA driver, or an older one without the function."""


def failed(status):
    """Raise CudaError, in the driver's own words, for a status that is not 0."""
    name, text = ctypes.c_char_p(), ctypes.c_char_p()
    raw.cuGetErrorName(status, ctypes.byref(name))
    raw.cuGetErrorString(status, ctypes.byref(text))
    raise CudaError(f"{name.value.decode() if name.value else status}: {text.value.decode() if text.value else 'unknown error'}")


def __getattr__(name):
    if name not in raw.FUNCTIONS:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    kind = raw.FUNCTIONS[name][0]

    def call(*given):
        found = None if kind is None else kind()
        try:
            function = getattr(raw, name)
        except (OSError, AttributeError) as error:
            raise NoDriver(f"{name} cannot be called: {error}") from None
        status = function(*given) if found is None else function(ctypes.byref(found), *given)
        if status:
            failed(status)
        return None if found is None else found.value
    globals()[name] = call
    return call

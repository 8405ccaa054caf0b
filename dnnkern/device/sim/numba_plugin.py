"""Run programs written for `from numba import cuda` in this simulator. The one place here that imports numba."""
from .api import Cuda, cuda
from .errors import Misuse
from .kernel import Kernel, device_function

_HOST = ("to_device", "device_array", "device_array_like", "stream", "synchronize", "is_available")


class NumbaKernel(Kernel):
    """A kernel that takes what Numba's host functions give: fake device arrays, and In, Out and InOut of arrays."""

    def simulate(self, grid, block, args, **options):
        return super().simulate(grid, block, [_plain(a) for a in args], **options)


def _plain(value):
    value = getattr(value, "value", value) if type(value).__name__ in ("In", "Out", "InOut") else value
    return getattr(value, "_ary", value)


def _jit(func_or_sig=None, device=False, **options):
    if callable(func_or_sig):
        return device_function(func_or_sig) if device else NumbaKernel(func_or_sig, options)
    return lambda function: _jit(function, device=device, **options)


def install():
    """Make numba.cuda, which must be in simulator mode, run kernels here.

    Kernels decorated afterwards with `numba.cuda.jit` run in this simulator, with all that it notices; Numba's own functions for memory,
    streams and events stay. Calling it again changes nothing.

    Raises
    ------
    Misuse
        numba.cuda was imported for the hardware: NUMBA_ENABLE_CUDASIM=1 has to be set before its first import.
    """
    from numba import cuda as module
    from numba.cuda.core import config
    if not config.ENABLE_CUDASIM:
        raise Misuse("install: numba.cuda was imported for the hardware; set NUMBA_ENABLE_CUDASIM=1 before its first import")
    names = [n for n in vars(Cuda) if not n.startswith("_") and n not in _HOST]
    dynamic = {n: property(lambda _, n=n: getattr(cuda, n)) for n in names if isinstance(vars(Cuda)[n], property)}
    if not isinstance(vars(type(module)).get("threadIdx"), property):
        for n in dynamic:
            module.__dict__.pop(n, None)
        module.__class__ = type("module", (type(module),), dynamic)
    for n in names:
        if n not in dynamic:
            setattr(module, n, getattr(cuda, n))
    module.jit = _jit

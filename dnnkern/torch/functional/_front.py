"""How a function replaces one of ``torch.nn.functional``."""
import functools
import time

import torch

from ... import NotSupported
from .._above import is_pytorchs
from .._overrides import _TRACED
from .._status import record
from .._table import Refused
from .._tensors import FLOATS, KEY

NAMES = {}
"""Every function, by its name."""
_TAKEN = _TRACED | {torch.Size}
_ERRORS = Refused, NotSupported, ValueError, TypeError
_compiling, _clock = torch.compiler.is_compiling, time.perf_counter_ns
_DEVICE = KEY.lower()
_autocast, _autocast_dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
LOW, FLOAT32 = "low", "float32"
"""What autocast does to arguments: rounds them to its dtype, or makes them float32."""


def replaces(theirs, cast=None, name=None):
    """Decorator: the function, with the arguments of PyTorch's function `theirs`, replaces it where it does not raise `Refused`.

    `cast` is what autocast does, None for nothing.
    """
    def decorate(function):
        named = name or theirs.__name__

        def compute(*args, **more):
            if cast and _autocast(_DEVICE):
                args, more = in_dtype(args, cast), dict(zip(more, in_dtype(more.values(), cast)))
            return function(*args, **more)

        @functools.wraps(theirs, ("__doc__",), ())
        def call(*args, **more):
            if _compiling():
                try:
                    return compute(*args, **more)
                except Refused:
                    return theirs(*args, **more)
            if not (_TAKEN.issuperset(map(type, args)) and _TAKEN.issuperset(map(type, more.values()))) or is_pytorchs() or not (
                    args and isinstance(args[0], torch.Tensor) and args[0].device.type == _DEVICE):
                return theirs(*args, **more)
            try:
                return compute(*args, **more)
            except _ERRORS as error:
                why = str(error)
            start = _clock()  # PyTorch says what is wrong with a call that is wrong
            result = theirs(*args, **more)
            record(named).refuse(why, _clock() - start)
            return result
        call.__name__ = call.__qualname__ = named
        call.__doc__ = f"As ``torch.nn.functional.{named}``."
        call.theirs = theirs
        NAMES[named] = call
        return call
    return decorate


def in_dtype(args, cast=LOW):
    """Arguments as autocast passes them on, where it is on."""
    if not _autocast(_DEVICE):
        return args
    dtype = _autocast_dtype(_DEVICE) if cast is LOW else torch.float32
    return [_as(dtype, a) for a in args]


def _as(dtype, a):
    """An argument in a dtype; float64 and integers as they are."""
    if isinstance(a, torch.Tensor):
        return a.to(dtype) if a.dtype in FLOATS and a.dtype is not torch.float64 else a
    return [_as(dtype, t) for t in a] if isinstance(a, (list, tuple)) and a and isinstance(a[0], torch.Tensor) else a


def each(value, dims):
    """One entry a dimension."""
    value = (value,) * dims if isinstance(value, int) else tuple(value)
    return value if len(value) == dims else value * dims if len(value) == 1 else refuse(f"{len(value)} values for {dims} dimensions")


def refuse(why):
    """Raise `Refused`, in an expression."""
    raise Refused(why)

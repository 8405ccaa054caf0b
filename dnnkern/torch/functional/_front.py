"""How a function replaces one of ``torch.nn.functional``, or stands beside them."""
import functools
import time

import torch

from ... import NotSupported
from .._above import is_derived, is_pytorchs
from .._overrides import _TRACED
from .._rules import FLOAT32, LOW, in_dtype  # noqa: F401 (for the functions)
from .._status import record
from .._table import Refused
from .._tensors import KEY

NAMES = {}
"""Every function of PyTorch's, by its name."""
OWN = {}
"""Every function that PyTorch lacks, by its name."""
_TAKEN = _TRACED | {torch.Size}
_ERRORS = Refused, NotSupported, ValueError, TypeError
_compiling, _clock = torch.compiler.is_compiling, time.perf_counter_ns
_DEVICE = KEY.lower()
_autocast = torch.is_autocast_enabled


def replaces(theirs, cast=None, name=None, composition=None, doc=None):
    """Decorator: the function, with the arguments of PyTorch's function `theirs`, replaces it where it does not raise `Refused`.

    `cast` is what autocast does, None for nothing. A function that takes ``residual`` and ``activation`` besides has a `composition` of
    PyTorch's functions with the same arguments, which is taken in place of `theirs` where one of both is given, and a docstring.
    """
    def decorate(function):
        named = name or theirs.__name__
        fused = composition and own(composition, cast, named)(function)

        def compute(*args, **more):
            if cast and _autocast(_DEVICE):
                args, more = in_dtype(args, cast), dict(zip(more, in_dtype(more.values(), cast)))
            return function(*args, **more)

        @functools.wraps(theirs, ("__doc__",), ())
        def call(*args, **more):
            if fused and (more.get("residual") is not None or more.get("activation")):
                return fused(*args, **more)
            if _compiling():
                try:
                    return compute(*args, **more)
                except Refused:
                    return instead(*args, **more)
            if not (_TAKEN.issuperset(map(type, args)) and _TAKEN.issuperset(map(type, more.values()))) or is_pytorchs() or not (
                    args and isinstance(args[0], torch.Tensor) and args[0].device.type == _DEVICE):
                return instead(*args, **more)
            try:
                return compute(*args, **more)
            except _ERRORS as error:
                why = str(error)
            start = _clock()  # PyTorch says what is wrong with a call that is wrong
            result = instead(*args, **more)
            record(named).refuse(why, _clock() - start)
            return result
        instead = composition or theirs
        call.__name__ = call.__qualname__ = named
        call.__doc__ = doc or f"As ``torch.nn.functional.{named}``."
        call.theirs = theirs
        NAMES[named] = call
        return call
    return decorate


def own(composition, cast=None, name=None):
    """Decorator: a function that PyTorch lacks, which is a `composition` of PyTorch's functions with the same arguments where the function
    raises `Refused`, for tensors on other devices, subclasses, and inside of functorch's transforms other than `torch.vmap`.

    What is wrong with a call is said by the function, under its own name.
    """
    def decorate(function):
        named = name or function.__name__

        def compute(*args, **more):
            if cast and _autocast(_DEVICE):
                args, more = in_dtype(args, cast), dict(zip(more, in_dtype(more.values(), cast)))
            return function(*args, **more)

        @functools.wraps(function)
        def call(*args, **more):
            if _compiling():
                try:
                    return compute(*args, **more)
                except (Refused, NotSupported):
                    return composition(*args, **more)
            first = args[0] if args else next(iter(more.values()), None)
            if not isinstance(first, torch.Tensor):
                raise TypeError(f"{named}: the first argument is {type(first).__name__}; expected a tensor")
            if not (_TAKEN.issuperset(map(type, args)) and _TAKEN.issuperset(map(type, more.values()))) or is_derived() or (
                    first.device.type != _DEVICE):
                return composition(*args, **more)
            try:
                return compute(*args, **more)
            except (Refused, NotSupported) as error:
                why = str(error)
            except (ValueError, TypeError) as error:
                said = str(error)
                if said.startswith(f"{named}: ") or type(error) not in (ValueError, TypeError):
                    raise
                raise type(error)(f"{named}: {said}") from error
            start = _clock()
            result = composition(*args, **more)
            record(named).refuse(why, _clock() - start)
            return result
        call.__name__ = call.__qualname__ = named
        return call
    return decorate


def public(composition, cast=None):
    """Decorator: as `own`, and the function is one of `dnnkern.torch.functional`."""
    def decorate(function):
        call = OWN[function.__name__] = own(composition, cast)(function)
        return call
    return decorate


def each(value, dims):
    """One entry a dimension."""
    value = (value,) * dims if isinstance(value, int) else tuple(value)
    return value if len(value) == dims else value * dims if len(value) == 1 else refuse(f"{len(value)} values for {dims} dimensions")


def refuse(why):
    """Raise `Refused`, in an expression."""
    raise Refused(why)

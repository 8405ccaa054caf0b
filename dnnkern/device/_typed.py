"""Marks: of functions whose numbers are typed as `dnnkern.device.jit` says, of NamedTuple classes that are held field by field, and of what
kernels name in place of objects of Numba's."""
import types


def mark(function):
    """A marked copy of a Python function: who else compiles the same function gets it as it was."""
    copy = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__, copy.__annotations__ = function.__kwdefaults__, function.__annotations__
    copy.__qualname__, copy.__module__, copy.__doc__ = function.__qualname__, function.__module__, function.__doc__
    copy.__dict__.update(function.__dict__, typed=True)
    return copy


def is_typed(function) -> bool:
    """Whether a Python function has been marked."""
    return getattr(function, "typed", False) is True


class Light:
    """Base of what kernels name in place of an object of Numba's (`_light`)."""


_by_field = set()


def by_field(kind):
    """Decorator of a NamedTuple class of numbers: kernels keep each field of a variable as if it were a variable of its own."""
    _by_field.add(kind)
    return kind


def is_by_field(kind) -> bool:
    """Whether a class has been marked so."""
    return kind in _by_field

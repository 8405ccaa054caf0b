"""Words of callers: one of several, a dtype, an activation; other values are errors that list the expected ones."""
from .dtypes import ITEMSIZE, dtype_name
from .scalars import shown
from .suggest import meant


def one_of(function, name, value, allowed):
    """One of the words `allowed`, which may include None.

    >>> one_of("f", "mode", "log", ("accurate", "log"))
    'log'
    >>> one_of("f", "mode", "logs", ("accurate", "log"))
    Traceback (most recent call last):
    ValueError: f: mode='logs'; expected one of 'accurate', 'log'; did you mean 'log'?
    """
    may_be = value is None or isinstance(value, str)  # other objects may not be hashable or comparable
    if may_be and value in allowed:
        return value
    hint, error = meant(value, [a for a in allowed if a is not None]), ValueError if may_be else TypeError
    raise error(f"{function}: {name}={shown(value)}; expected one of {', '.join(map(repr, allowed))}{hint}")


def dtype_of(function, name, value, allowed=ITEMSIZE) -> str:
    """Name of a dtype given as a name, a NumPy dtype or scalar type, or a torch dtype.

    >>> dtype_of("f", "out_dtype", "bf16")
    'bfloat16'
    >>> dtype_of("f", "out_dtype", "int64", ("float32", "float16"))
    Traceback (most recent call last):
    TypeError: f: out_dtype='int64'; expected one of 'float32', 'float16'
    """
    try:
        found = dtype_name(value)
    except TypeError:
        found = None
    if found in allowed:
        return found
    raise TypeError(f"{function}: {name}={shown(value)}; expected one of {', '.join(map(repr, allowed))}{meant(value, allowed)}")


def activation_of(function, value):
    """An `Activation`, from one, a mode's name, or None, the identity."""
    from ..device.activation import MODES, Activation
    if value is None or isinstance(value, Activation):
        return Activation.of(value)
    return Activation(one_of(function, "activation", value, MODES))

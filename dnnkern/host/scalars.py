"""Numbers, flags and sizes of callers: converted and checked in one module, at every call.

`1`, `1.0` and `True` are one key of a dict, so what a cached call is looked up by must not hold one for another: a parameter that is a
number goes through `number`, one that is an int through `integer`, one that is a flag through `flag`, and one of an int or several through
`ints`. What already has the right type costs a comparison.
"""
import math
import numbers
import operator
import reprlib

import numpy as np

LARGEST = 2 ** 31 - 1
_INFINITY = math.inf


def shown(value) -> str:
    """The value for a message, in one short line."""
    try:
        if not isinstance(value, type) and getattr(value, "shape", ()) != ():
            return f"<{type(value).__name__} of shape {tuple(value.shape)}>"
        return " ".join(reprlib.repr(value).split())
    except Exception:  # an int of thousands of digits, or an object whose repr fails
        return f"<{type(value).__name__}>"


def number(function, name, value) -> float:
    """A real number: Python's, NumPy's, or an array on the host without dimensions.

    >>> number("f", "alpha", np.float32(0.5)), number("f", "alpha", np.array(2))
    (0.5, 2.0)
    >>> number("f", "alpha", "1")
    Traceback (most recent call last):
    TypeError: f: alpha='1'; expected a real number
    """
    if type(value) is float:
        return value
    if not _is_real(value):
        raise TypeError(f"{function}: {name}={shown(value)}; expected a real number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{function}: {name}={shown(value)}; expected a number that float64 can hold") from None
    except RuntimeError:  # a tensor without data
        raise TypeError(f"{function}: {name}={shown(value)}; expected a real number") from None


def _is_real(value):
    if isinstance(value, (bool, np.bool_)):
        return False
    if isinstance(value, numbers.Real):
        return True
    dtype = getattr(value, "dtype", None)
    if dtype is None or getattr(value, "shape", None) != () or hasattr(value, "__cuda_array_interface__"):
        return False
    return str(dtype).removeprefix("torch.").startswith(("float", "bfloat", "int", "uint"))


def at_least(function, low=0.0, **given) -> list:
    """The numbers, finite and not below the least."""
    for name, value in given.items():
        if type(value) is not float:
            value = given[name] = number(function, name, value)
        if not low <= value < _INFINITY:
            raise ValueError(f"{function}: {name}={value}; expected a finite number, {low:g} or more")
    return [*given.values()]


def shares(function, **given) -> list:
    """The numbers, from 0 to below 1."""
    for name, value in given.items():
        if type(value) is not float:
            value = given[name] = number(function, name, value)
        if not 0 <= value < 1:
            raise ValueError(f"{function}: {name}={value}; expected a number from 0 to below 1")
    return [*given.values()]


def integer(function, name, value, least=-2 ** 63, most=2 ** 63 - 1) -> int:
    """An int, of `least` or more and `most` or less; a bool is none."""
    if type(value) is not int:
        try:
            if isinstance(value, (bool, np.bool_)):
                raise TypeError
            value = operator.index(value)
        except TypeError:
            raise TypeError(f"{function}: {name}={shown(value)}; expected an integer") from None
    if value < least:
        raise ValueError(f"{function}: {name} is {shown(value)}; expected {least} or more")
    if value > most:
        raise ValueError(f"{function}: {name} is {shown(value)}; expected {most} or less")
    return value


def word(function, name, value) -> int:
    """An integer of 64 bits, as an unsigned one."""
    if type(value) is int and 0 <= value < 2 ** 64:
        return value
    value = integer(function, name, value, -math.inf, math.inf)
    if not -2 ** 63 <= value < 2 ** 64:
        raise ValueError(f"{function}: {name}={shown(value)}; expected an integer of 64 bits")
    return value & (2 ** 64 - 1)


def flag(function, name, value) -> bool:
    """True or False; NumPy's, too."""
    if value is True or value is False:
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    raise TypeError(f"{function}: {name}={shown(value)}; expected True or False")


def ints(function, name, value, depth=2):
    """An int of 64 bits, None, or a sequence of them, or of such sequences, as tuples.

    >>> ints("f", "padding", [1, np.array([0, 2])])
    (1, (0, 2))
    """
    if value is None or type(value) is int and -2 ** 63 <= value < 2 ** 63:
        return value
    if type(value) is tuple:
        for v in value:
            if type(v) is not int or not -2 ** 63 <= v < 2 ** 63:
                break
        else:
            return value
    if depth and hasattr(value, "__len__") and not isinstance(value, (str, bytes, dict, set)) and getattr(value, "shape", None) != ():
        return tuple([ints(function, f"{name}[{k}]", v, depth - 1) for k, v in enumerate(value)])
    return integer(function, name, value)

"""Types of kernel parameters that are values: a scalar ("int32"), some of one type ("int64x3"), or a NamedTuple class.

The annotations of such a class are casts (`i32` ... `f64`), names as above, or such classes again::

    class Window(NamedTuple):
        taps: i32
        strides: "int64x3"

A kernel gets its fields one by one, in order, and sees the tuple: ``window.strides[0]``.
"""
import functools
from collections import namedtuple

CODE = {"float32": "f", "float64": "d", "int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "int64": "q",
        "uint64": "Q"}
"""{scalar type: its letter in `struct`}."""


def is_structure(kind) -> bool:
    """Whether a parameter's type is a NamedTuple class."""
    return isinstance(kind, type) and hasattr(kind, "_fields")


@functools.cache
def fields(kind) -> tuple:
    """((name, type), ...) of a NamedTuple class."""
    return tuple((name, _annotated(kind, name)) for name in kind._fields)


def _annotated(kind, field):
    given = getattr(kind, "__annotations__", {}).get(field)
    if is_structure(given):
        return given
    name = getattr(given, "__forward_arg__", given)  # typing's own of a name in quotes
    if not isinstance(name, str):
        name = getattr(given, "name", None) or getattr(given, "__name__", None)  # a cast: Numba's type, or the simulator's function
    scalar, x, count = str(name).removesuffix("*").partition("x")
    if scalar not in CODE or x and not count.isdecimal():
        raise TypeError(f"{kind.__qualname__}.{field}: {name!r}; expected a cast such as i32, a name such as 'int64x3', or a NamedTuple "
                        "class of these")
    return name


def rebuilt(kind, value, convert):
    """The value with ``convert(scalar type, number)`` for each number."""
    if is_structure(kind):
        return kind(*(rebuilt(t, v, convert) for (_, t), v in zip(fields(kind), value, strict=True)))
    scalar, x, count = kind.partition("x")
    if not x:
        return convert(scalar, value)
    if len(value) != int(count):
        raise ValueError(f"{value} as {kind}: {len(value)} numbers, expected {count}")
    return tuple(convert(scalar, v) for v in value)


def flattened(kind, value) -> list:
    """[(scalar type, number), ...] of a value: what a launch passes."""
    found = []
    rebuilt(kind, value, lambda scalar, v: found.append((scalar, v)))
    return found


def structure(name, types):
    """A NamedTuple class of members of these types, pointers ("float32*") among them, for kernels that find them by their positions.

    A kernel gets any number of operands of any types as one parameter that way, of none too.
    """
    made = namedtuple(name, [f"at{k}" for k in range(len(types))])
    made.__annotations__ = dict(zip(made._fields, types))
    return made


def described(kind) -> str:
    """Text of a type, the same for those of which kernels compile to the same code."""
    if is_structure(kind):
        return f"({','.join(f'{name} {described(t)}' for name, t in fields(kind))})"
    return kind


def is_mapped(a) -> bool:
    """Whether an argument of `launch_once` is an array and what describes its tensor map."""
    return isinstance(a, tuple) and not is_structure(type(a))


def constant_type(a):
    """Type of a parameter that `launch_once` passes as a constant."""
    if is_structure(type(a)):
        return type(a)
    return str(a.dtype) if hasattr(a, "dtype") else "float32" if isinstance(a, float) else "int32"


def kernel_name(kernel):
    """A kernel's name in messages."""
    return getattr(kernel, "__name__", None) or repr(kernel)

"""What `window`, `stride`, `padding` and `dilation` of a call may be: one int for all spatial dimensions, or an entry for each."""
import operator

LAYOUTS = ("NCHW", "NHWC")


def integer(function, name, value, least):
    """The value as an int of `least` or more."""
    try:
        n = operator.index(value)
    except TypeError:
        raise TypeError(f"{function}: {name} holds {value!r}; expected an int") from None
    if isinstance(value, bool):
        raise TypeError(f"{function}: {name} holds {value!r}; expected an int")
    if n < least:
        raise ValueError(f"{function}: {name} is {n}; expected {least} or more")
    return n


def per_dimension(function, name, value, dims, least=1) -> tuple:
    """One int for each of `dims` spatial dimensions, given as an int or a sequence."""
    if not hasattr(value, "__len__"):
        return (integer(function, name, value, least),) * dims
    if len(value) != dims:
        raise ValueError(f"{function}: {name}={value!r} has {len(value)} entries; expected an int or one entry for each of {dims} spatial "
                         f"dimension{'s' * (dims > 1)}")
    return tuple(integer(function, name, v, least) for v in value)


def pad_pairs(function, value, dims) -> tuple:
    """((before, after), ...) for each of `dims` spatial dimensions, given as an int, one int a dimension, or pairs.

    In one dimension (before, after) is the pair itself.

    >>> pad_pairs("f", (1, (0, 2)), 2)
    ((1, 1), (0, 2))
    >>> pad_pairs("f", (3, 0), 1)
    ((3, 0),)
    """
    if not hasattr(value, "__len__"):
        value = (value,) * dims
    elif dims == 1 and len(value) == 2 and not any(hasattr(v, "__len__") for v in value):
        value = (value,)
    if len(value) != dims:
        raise ValueError(f"{function}: padding={value!r} has {len(value)} entries; expected an int or one entry, an int or a pair "
                         f"(before, after), for each of {dims} spatial dimension{'s' * (dims > 1)}")
    return tuple(per_dimension(function, "padding", v, 2, 0) for v in value)


def hashable(value):
    """Sequences within sequences as tuples, so that a call can be remembered by its parameters; anything else as it is."""
    try:
        hash(value)
    except TypeError:
        return tuple(map(hashable, value)) if hasattr(value, "__len__") else value
    return value


def check_layout(function, layout):
    """ValueError unless the layout is a known one."""
    if layout not in LAYOUTS:
        raise ValueError(f"{function}: layout={layout!r}; expected one of {', '.join(map(repr, LAYOUTS))}")


def check_rank(function, name, shape) -> int:
    """Number of spatial dimensions of an image of this shape; ValueError unless it is 1 to 3."""
    if not 3 <= len(shape) <= 5:
        raise ValueError(f"{function}: {name} has shape {tuple(shape)}; expected 3, 4 or 5 dimensions (1 to 3 spatial ones)")
    return len(shape) - 2


def check_shape(function, name, shape) -> tuple:
    """A shape that the caller gave."""
    if not hasattr(shape, "__len__"):
        raise TypeError(f"{function}: {name} is {shape!r}; expected a tuple of ints")
    return tuple(integer(function, name, n, 0) for n in shape)

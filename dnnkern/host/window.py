"""`window`, `stride`, `padding` and `dilation` of a call: one int for all spatial dimensions, or an entry for each.

And what follows from them: output extents, and a call's sizes in the three dimensions of kernels.
"""
import functools

from .last import LAYOUTS  # noqa: F401 (where families look for it)
from .scalars import LARGEST, integer, ints

AXES = "dhw"


def per_dimension(function, name, value, dims, least=1) -> tuple:
    """One int for each of `dims` spatial dimensions, given as an int or a sequence."""
    if not hasattr(value, "__len__"):
        return (integer(function, name, value, least, LARGEST),) * dims
    if len(value) != dims:
        raise ValueError(f"{function}: {name}={value!r} has {len(value)} entries; expected an int or one entry for each of {dims} spatial "
                         f"dimension{'s' * (dims > 1)}")
    return tuple(integer(function, name, v, least, LARGEST) for v in value)


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


def windows(function, window, stride, padding, dilation) -> tuple:
    """The four as parameters of a call."""
    return ints(function, "window", window), *steps(function, stride, padding, dilation)


def steps(function, stride, padding, dilation) -> tuple:
    """The three as parameters of a call."""
    return ints(function, "stride", stride), ints(function, "padding", padding), ints(function, "dilation", dilation)


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


def output_extents(image, window, stride, padding, dilation, ceil_mode=False):
    """Number of window positions along each dimension; 0 or less if the window does not fit.

    With `ceil_mode` the last window may extend past the padded image, but windows that would start in the trailing padding do not count.

    >>> output_extents((6,), (3,), (2,), ((0, 1),), (1,)), output_extents((6,), (3,), (2,), ((0, 0),), (1,), ceil_mode=True)
    ((3,), (3,))
    """
    found = []
    for n, w, s, (a, b), d in zip(image, window, stride, padding, dilation):
        count = (n + a + b - d * (w - 1) - 1 + (s - 1 if ceil_mode else 0)) // s + 1
        found.append(min(count, -(-(n + a) // s)) if ceil_mode else count)
    return tuple(found)


class Windows:
    """Problems of a window on images, in canonical form: three spatial dimensions, whatever the image had; missing ones lead, of extent 1.

    They have `x`, the image (N, C, spatial...) or (N, spatial..., C), `window`, `stride`, `padding`, `dilation` and `layout`.
    """

    @functools.cached_property
    def n(self):
        return self.x.shape[0]

    @functools.cached_property
    def c(self):
        return self.x.shape[1 if self.layout == "NCHW" else -1]

    def three(self, values, missing):
        """A value for each of the three dimensions."""
        return (missing,) * (3 - len(self.window)) + tuple(values)

    def spatial(self, values):
        """Those of an image's values, one a dimension, that belong to spatial dimensions."""
        return tuple(values[2:] if self.layout == "NCHW" else values[1:-1])

    def strides_of(self, tensor):
        """Element strides of an image along (n, c, d, h, w)."""
        s = tensor.strides
        return s[0], s[1 if self.layout == "NCHW" else -1], *self.three(self.spatial(s), 0)

    @functools.cached_property
    def image(self):
        """(D, H, W)."""
        return self.three(self.spatial(self.x.shape), 1)

    @functools.cached_property
    def taps(self):
        """(T, R, S), the window's extents."""
        return self.three(self.window, 1)

    @functools.cached_property
    def steps(self):
        """Strides of the window along (D, H, W)."""
        return self.three(self.stride, 1)

    @functools.cached_property
    def before(self):
        """Padding before (D, H, W)."""
        return self.three((p[0] for p in self.padding), 0)

    @functools.cached_property
    def dilations(self):
        return self.three(self.dilation, 1)

    @functools.cached_property
    def x_strides(self):
        """Element strides of x along (n, c, d, h, w)."""
        return self.strides_of(self.x)

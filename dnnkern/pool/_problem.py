"""The pooling problem: the maximum or the average over each window of an image, or the gradient of that.

One dataclass serves all four operations. In canonical form an image has three spatial dimensions; missing ones lead, with extent 1.
Tap t of output p reads pixel ``p * stride - padding + t * dilation``. Adaptive windows differ in size: for n pixels and m outputs,
window p goes from ``floor(p * n / m)`` to ``ceil((p + 1) * n / m)``. Where m divides n they have one size, and become ordinary windows.
"""
import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..engine.programs import WithProgram, broadcast_strides, reaches_far
from ..engine.strides import image_strides
from ..host.choices import one_of
from ..host.last import CALL_LAYOUTS
from ..host.products import alike
from ..host.tensor import Tensor
from ..host.window import AXES, Windows, check_rank, check_shape, output_extents, pad_pairs, per_dimension

if TYPE_CHECKING:
    from ..device.program import Program

DTYPES = ("float64", "float32", "float16", "bfloat16")
OPS = ("max_pool_fwd", "max_pool_bwd", "avg_pool_fwd", "avg_pool_bwd")
INDEX_DTYPES = ("int32", "int64")
NO_PIXEL = -1  # the index of a maximum over no pixels


@dataclass(frozen=True)
class PoolProblem(WithProgram, Windows):
    """max_pool_fwd, max_pool_bwd, avg_pool_fwd or avg_pool_bwd: all but the addresses.

    Attributes
    ----------
    op : str
    x : Tensor
        The image, or its gradient: (N, C, spatial...) or (N, spatial..., C).
    y : Tensor
        One value per window, or its gradient.
    index : Tensor or None
        int32 or int64, of y's shape: positions of the maxima.
    window, stride, dilation : tuple of int
        One entry per spatial dimension. For adaptive windows, `window` is the largest extent and the others are 1.
    padding : tuple of (int, int)
        Leading and trailing.
    ceil_mode : bool
        Whether y includes windows that extend past the padded image.
    count_include_pad : bool
        Whether an average counts the padding.
    layout : "NCHW" or "NHWC"
    adaptive : bool
    divisor : int or None
        Of all averages, whatever taps count.
    program : Program or None
        Forward: what becomes of each element of y before it is rounded, see `device.program`.
    extras : tuple of Tensor
        The program's operands, those that are read broadcasting to y, see `engine.programs`.
    """
    op: str
    x: Tensor
    y: Tensor
    index: Tensor | None
    window: tuple
    stride: tuple
    padding: tuple
    dilation: tuple
    ceil_mode: bool = False
    count_include_pad: bool = False
    layout: str = "NCHW"
    adaptive: bool = False
    divisor: int | None = None
    program: "Program | None" = None
    extras: tuple = ()
    scalar_type = "float32"
    flops = 0

    def __post_init__(self):
        one_of("PoolProblem", "op", self.op, OPS)
        moved = self.spatial(self.y.shape)
        if self.adaptive:
            expected = output_shape(self.x.shape, moved, self.layout)
        else:
            found = output_extents(self.spatial(self.x.shape), self.window, self.stride, self.padding, self.dilation, self.ceil_mode)
            expected = output_shape(self.x.shape, found, self.layout)
        if self.y.shape != expected:
            raise ValueError(f"{self.op}: y has shape {self.y.shape}; expected {expected}")
        if self.index is not None and (self.index.shape != self.y.shape or self.index.dtype not in INDEX_DTYPES):
            raise ValueError(f"{self.op}: index is {self.index}; expected int32 or int64 of shape {self.y.shape}")
        if self.program is not None and not (self.is_forward and self.y.dtype in alike(self.x.dtype)):
            raise TypeError(f"{self.op}: a program beside {self.x.dtype} and {self.y.dtype}; expected one forward, and a result that is "
                            "computed as x is")
        object.__setattr__(self, "extras", tuple(self.extras))
        self.check_program(self.op, self.y.shape)
        if self.reductions:
            raise ValueError(f"{self.op}: a program that reduces; expected one that only stores")

    @functools.cached_property
    def out(self):
        """(O, P, Q): extents of the output."""
        return self.three(self.spatial(self.y.shape), 1)

    @functools.cached_property
    def y_strides(self):
        """Element strides of y along (n, c, o, p, q)."""
        return self.strides_of(self.y)

    @functools.cached_property
    def index_strides(self):
        """Element strides of the index along (n, c, o, p, q)."""
        return self.strides_of(self.index) if self.index is not None else (0,) * 5

    @functools.cached_property
    def counted(self):
        """((low, high), ...): pixels that an average counts, along each dimension; with a divisor, what its factors are instead."""
        if self.divisor is not None:
            return (0, 1), (0, 1), (0, self.divisor)
        if not self.count_include_pad:
            return tuple((0, n) for n in self.image)
        after = self.three((p[1] for p in self.padding), 0)
        return tuple((-b, n + a) for n, b, a in zip(self.image, self.before, after))

    @property
    def is_max(self):
        return self.op.startswith("max")

    @property
    def is_forward(self):
        return self.op.endswith("fwd")

    @property
    def dy(self):
        """y of the backward operations, by the name of their operand."""
        return self.y

    @property
    def index_dtype(self):
        """int32 or int64, or None without an index."""
        return self.index.dtype if self.index is not None else None

    @property
    def pixels(self):
        """Of an image."""
        return math.prod(self.image)

    @property
    def tap_count(self):
        return math.prod(self.taps)

    @property
    def tensors(self):
        return (self.x, self.y) if self.index is None else (self.x, self.y, self.index)

    @property
    def is_wide(self):
        """Whether an offset in an array, counted in words of up to 4 bytes, needs 64 bits."""
        return any(max(map(abs, t.extent)) // min(t.itemsize, 4) >= 2 ** 31 for t in self.tensors)

    @property
    def axes(self):
        """Along d, h and w: extent, outputs, taps, stride, dilation, leading padding, and both ends of what an average counts."""
        low, high = zip(*self.counted)
        return tuple(zip(self.image, self.out, self.taps, self.steps, self.dilations, self.before, low, high))

    def addresses(self) -> tuple:
        """Kernel parameters: element strides of x, y and the index."""
        return tuple(map(image_strides, (self.x_strides, self.y_strides, self.index_strides)))

    def operand_values(self, name):
        """An index to measure on: the middle of each window, or the pixel nearest to it."""
        if name != "index":
            return None
        import numpy as np
        axes = []
        for n, m, step, before, d, taps in zip(self.image, self.out, self.steps, self.before, self.dilations, self.taps):
            p = np.arange(m)
            middle = (2 * p + 1) * n // (2 * m) if self.adaptive else p * step - before + taps // 2 * d
            axes.append(np.clip(middle, 0, n - 1))
        o, p, q = np.ix_(*axes)
        flat = ((o * self.image[1] + p) * self.image[2] + q).reshape(self.spatial(self.y.shape))
        return flat[None, None] if self.layout == "NCHW" else flat[None, ..., None]

    @functools.cached_property
    def extra_strides(self):
        """Element strides of the program's operands along (n, c, o, p, q) of y."""
        return tuple(self.strides_of(Tensor(self.y.shape, broadcast_strides(t, self.y.shape), t.dtype)) for t in self.extras)

    @property
    def wide(self):
        """Whether offsets in the program's operands need 64 bits."""
        channel = self.y.shape[1 if self.layout == "NCHW" else -1]
        return reaches_far(self.extra_strides, (self.y.shape[0], channel, *self.out))

    @property
    def outputs(self):
        if self.is_forward:
            return (self.y, *(() if self.index is None else (self.index,)), *self.side_outputs)
        return (self.x,)

    @property
    def output_names(self):
        """Those of `outputs`, of a problem with a program."""
        return ("y", *("index",) * (self.index is not None), *self.extra_names[1]) if self.program is not None else None

    @property
    def is_empty(self):
        return self.outputs[0].size == 0

    @property
    def compute(self):
        """Type of the accumulators."""
        return "float64" if self.x.dtype == "float64" else "float32"

    @property
    def bytes(self):
        """Bytes of memory traffic if everything moves once."""
        return sum(t.nbytes for t in (*self.tensors, *self.extra_tensors.values()))

    def __str__(self):
        def text(values):
            return str(values[0]) if len(set(values)) == 1 else "x".join(map(str, values))
        words = [f"{self.op} {'x'.join(map(str, self.x.shape))} {self.x.dtype} {self.layout}"]
        if self.adaptive:
            words.append(f"to {'x'.join(map(str, self.spatial(self.y.shape)))}")
        else:
            words.append(f"window {'x'.join(map(str, self.window))} stride {text(self.stride)}")
        if set(self.dilation) != {1}:
            words.append(f"dilation {text(self.dilation)}")
        if set(self.padding) != {(0, 0)}:
            words.append("padding " + text([str(a) if a == b else f"{a}:{b}" for a, b in self.padding]))
        flags = (("ceil", self.ceil_mode), ("counting padding", self.count_include_pad), (f"divisor {self.divisor}", self.divisor),
                 ("with index", self.index_dtype == "int32" and self.is_forward), ("with int64 index", self.index_dtype == "int64"))
        return " ".join(words + [word for word, given in flags if given] + [f"program {self.program}"] * (self.program is not None))


def output_shape(shape, extents, layout):
    """Shape of y for an image of this shape and these spatial extents of the output."""
    return (*shape[:2], *extents) if layout == "NCHW" else (shape[0], *extents, shape[-1])


def adaptive_window(n, m):
    """Largest extent of m adaptive windows over n pixels.

    With n and m divided by their common divisor, window p has ceil((r + n) / m) pixels for r = p * n mod m, and r takes all values below m.
    """
    common = math.gcd(m, n)
    return -(-(n + m - common) // m)


# ---- calls

def _check_image(function, name, tensor):
    if tensor is None:
        raise TypeError(f"{function}: {name}: got NoneType; expected an array")
    if tensor.dtype not in DTYPES:
        raise TypeError(f"{function}: {name} is {tensor.dtype}; expected one of {', '.join(DTYPES)}")


def _check_output(function, name, tensor, shape, *dtypes):
    if tensor.dtype not in dtypes:
        raise TypeError(f"{function}: {name} is {tensor.dtype}; expected {' or '.join(dtypes)}")
    if tensor.shape != shape:
        raise ValueError(f"{function}: {name} has shape {tensor.shape}; expected {shape}")


def _check_flag(function, name, value):
    if not isinstance(value, bool):
        raise TypeError(f"{function}: {name} is {value!r}; expected True or False")


def _problem(op, function, given, index, out, shape, want_index, geometry, layout):
    """`PoolProblem` of a call, after all checks. `geometry(dims, image)` -> (fields of the problem, extents of the output).

    `want_index`: False, a dtype, or True for that of out's index, int32 without out.
    """
    one_of(function, "layout", layout, CALL_LAYOUTS)
    forward = op.endswith("fwd")
    _check_image(function, "x" if forward else "dy", given)
    shape = given.shape if forward else check_shape(function, "x_shape", shape)
    dims = check_rank(function, "x" if forward else "x_shape", shape)
    image = tuple(shape[2:] if layout == "NCHW" else shape[1:-1])
    fields, found = geometry(dims, image)
    y_shape, is_max = output_shape(shape, found, layout), op.startswith("max")
    if forward:
        outs = out if isinstance(out, tuple) else (out,)
        x, y = given, outs[0] if out is not None else Tensor.packed(y_shape, given.dtype)
        index_dtypes = INDEX_DTYPES if want_index is True else (want_index,)
        index = (outs[1] if out is not None else Tensor.packed(y_shape, index_dtypes[0])) if want_index else None
        _check_output(function, "out", y, y_shape, given.dtype)
        if index is not None:
            _check_output(function, "out, the index," if out is not None else "index", index, y_shape, *index_dtypes)
        for tensor in (y, index) if index is not None else (y,):
            tensor.check_addresses(function)
    else:
        y, x = given, out if out is not None else Tensor.packed(shape, given.dtype)
        _check_output(function, "dy", y, y_shape, given.dtype)
        if is_max:
            if index is None:
                raise TypeError(f"{function}: index: got NoneType; expected an array")
            _check_output(function, "index", index, y_shape, *INDEX_DTYPES)
        _check_output(function, "out", x, shape, given.dtype)
        x.check_addresses(function)
    if is_max and math.prod(image) >= 2 ** 31 and (index is None or index.dtype == "int32"):
        raise ValueError(f"{function}: {'x' if forward else 'x_shape'} has an image of {math.prod(image)} pixels; the int32 index "
                         "holds fewer than 2**31")
    return PoolProblem(op=op, x=x, y=y, index=index, layout=layout, **fields)


def _windows(function, window, stride, padding, dilation, ceil_mode, count_include_pad, divisor):
    """The geometry of windows of one size."""
    def geometry(dims, image):
        for name, value in (("ceil_mode", ceil_mode), ("count_include_pad", count_include_pad)):
            _check_flag(function, name, value)
        taps = per_dimension(function, "window", image if window is None else window, dims)
        steps = taps if stride is None else per_dimension(function, "stride", stride, dims)
        pads, dilations = pad_pairs(function, padding, dims), per_dimension(function, "dilation", dilation, dims)
        found = output_extents(image, taps, steps, pads, dilations, ceil_mode)
        for axis, count, n, r, d, (before, after) in zip(AXES[-dims:], found, image, taps, dilations, pads):
            if count < 1:
                raise ValueError(f"{function}: the window spans {d * (r - 1) + 1} along {axis} ({r} taps, dilation {d}), the padded image "
                                 f"has {n + before + after} ({before} + {n} + {after})")
        return dict(window=taps, stride=steps, padding=pads, dilation=dilations, ceil_mode=ceil_mode,
                    count_include_pad=count_include_pad, divisor=divisor), found
    return geometry


def _adaptive(function, output_size):
    """The geometry of adaptive windows: of one size where the outputs divide the image."""
    def geometry(dims, image):
        sizes = output_size
        if hasattr(sizes, "__len__") and len(sizes) == dims:
            sizes = tuple(n if m is None else m for m, n in zip(sizes, image))
        found = per_dimension(function, "output_size", sizes, dims)
        if 0 in image:
            raise ValueError(f"{function}: {'x' if function.endswith('fwd') else 'x_shape'} has an image of {'x'.join(map(str, image))}; "
                             "every adaptive window needs a pixel")
        even = all(n % m == 0 for n, m in zip(image, found))
        window = tuple(n // m for n, m in zip(image, found)) if even else tuple(map(adaptive_window, image, found))
        ones = (1,) * dims
        return dict(window=window, stride=window if even else ones, padding=((0, 0),) * dims, dilation=ones, adaptive=not even), found
    return geometry


def make_forward(op, want_index, tensors, out, window, stride, padding, dilation, ceil_mode, count_include_pad, divisor, layout, aliases):
    """`PoolProblem` of a call of max_pool_fwd or avg_pool_fwd."""
    geometry = _windows(op, window, stride, padding, dilation, ceil_mode, count_include_pad, divisor)
    return _problem(op, op, tensors[0], None, out, None, want_index, geometry, layout)


def make_backward(op, tensors, out, x_shape, window, stride, padding, dilation, ceil_mode, count_include_pad, divisor, layout, aliases):
    """`PoolProblem` of a call of max_pool_bwd or avg_pool_bwd."""
    geometry = _windows(op, window, stride, padding, dilation, ceil_mode, count_include_pad, divisor)
    return _problem(op, op, tensors[0], tensors[1] if op == "max_pool_bwd" else None, out, x_shape, False, geometry, layout)


def make_adaptive_forward(op, want_index, tensors, out, output_size, layout, aliases):
    """`PoolProblem` of a call of adaptive_max_pool_fwd or adaptive_avg_pool_fwd."""
    function = f"adaptive_{op}"
    return _problem(op, function, tensors[0], None, out, None, want_index, _adaptive(function, output_size), layout)


def make_adaptive_backward(op, tensors, out, x_shape, layout, aliases):
    """`PoolProblem` of a call of adaptive_max_pool_bwd or adaptive_avg_pool_bwd; dy's shape gives the number of windows."""
    function, dy = f"adaptive_{op}", tensors[0]
    one_of(function, "layout", layout, CALL_LAYOUTS)
    _check_image(function, "dy", dy)
    dims = check_rank(function, "dy", dy.shape)
    if check_rank(function, "x_shape", check_shape(function, "x_shape", x_shape)) != dims:
        raise ValueError(f"{function}: dy has shape {dy.shape}, x_shape is {tuple(x_shape)}; expected as many dimensions")
    found = tuple(dy.shape[2:] if layout == "NCHW" else dy.shape[1:-1])
    if 0 in found:
        raise ValueError(f"{function}: dy has shape {dy.shape}; expected one window at least along each spatial dimension")
    index = tensors[1] if op == "max_pool_bwd" else None
    return _problem(op, function, dy, index, out, x_shape, False, _adaptive(function, found), layout)


def check_index(problem, arrays):
    """ValueError where an index is neither a pixel of the image nor -1; waits for the device."""
    from ..host.check import to_host
    values, pixels = to_host(arrays["index"]), problem.pixels
    if values.size and not (NO_PIXEL <= values.min() and values.max() < pixels):
        raise ValueError(f"{problem.op}: index holds {values.min()} to {values.max()}; expected pixels of the image, 0 to {pixels - 1}")

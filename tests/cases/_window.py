"""Cases of im2col and col2im: a window on images, and what it sees, as matrices."""
import itertools
import math
from dataclasses import dataclass, field

import numpy as np

from . import EXACT, Case, coherent, lay, rounded, rounding_error, saturated
from .transpose import DTYPES, SHORT


@dataclass(frozen=True)
class Window(Case):
    """One call; `shape` is (N, C, spatial...) for both layouts. `place` has keywords of `lay` for "x" and "columns"."""
    op: str
    id: str
    shape: tuple
    window: tuple
    dtype: str = "float32"
    stride: tuple = ()
    padding: tuple = ()      # a number or a pair for each dimension
    dilation: tuple = ()
    layout: str = "NCHW"
    place: dict = field(default_factory=dict, hash=False)

    @property
    def dims(self):
        return len(self.shape) - 2

    @property
    def geometry(self):
        """(window, stride, pairs of padding, dilation), an entry a dimension."""
        ones = (1,) * self.dims
        pads = tuple(p if isinstance(p, tuple) else (p, p) for p in self.padding or (0,) * self.dims)
        return self.window, self.stride or ones, pads, self.dilation or ones

    @property
    def x_shape(self):
        n, c, *image = self.shape
        return self.shape if self.layout == "NCHW" else (n, *image, c)

    @property
    def out(self):
        window, stride, pads, dilation = self.geometry
        return tuple((size + before + after - (w - 1) * d - 1) // s + 1
                     for size, w, s, (before, after), d in zip(self.shape[2:], window, stride, pads, dilation))

    @property
    def columns_shape(self):
        n, c = self.shape[:2]
        taps, places = math.prod(self.window), math.prod(self.out)
        return (n, c * taps, places) if self.layout == "NCHW" else (n * places, taps * c)

    def _places(self):
        return {"x": lay(self.x_shape, self.dtype, **self.place.get("x", {})),
                "columns": lay(self.columns_shape, self.dtype, **self.place.get("columns", {}))}

    def inputs(self):
        name = "x" if self.op == "im2col" else "columns"
        return {name: self._places()[name]}

    def outputs(self):
        name = "columns" if self.op == "im2col" else "x"
        return {name: self._places()[name]}

    @property
    def trivial(self):
        return 0 in self.shape

    @property
    def work(self):
        return math.prod(self.columns_shape)

    def problem(self):
        from dnnkern.host.tensor import Tensor
        from dnnkern.transform.window._problem import make_col2im_problem, make_im2col_problem
        x, columns = (Tensor(p.shape, p.strides, p.dtype, p.alignment) for p in self._places().values())
        parameters = *self._parameters(), self.layout, frozenset()
        if self.op == "im2col":
            return make_im2col_problem((x,), columns, *parameters)
        return make_col2im_problem((columns,), x, self.x_shape, *parameters)

    def _parameters(self):
        return self.window, self.stride or 1, self.padding or 0, self.dilation or 1

    def call(self, arrays, out=None, **tail):
        from dnnkern import col2im, im2col
        out = out[0] if isinstance(out, tuple) else out
        window, stride, padding, dilation = self._parameters()
        more = dict(stride=stride, padding=padding, dilation=dilation, layout=self.layout, out=out, **tail)
        if self.op == "im2col":
            return im2col(arrays["x"], window, **more)
        return col2im(arrays["columns"], self.x_shape, window, **more)

    def values(self, mode):
        """For col2im in exact mode integers so small that the sums, of as many elements as the window has taps at most, are exact."""
        rng, (name, place) = np.random.default_rng(list(self.id.encode())), next(iter(self.inputs().items()))
        bound = min(EXACT[self.dtype], 100)
        if self.op == "col2im":
            bound = max(1, bound // math.prod(-(-w // s) for w, s in zip(self.window, self.geometry[1])))
        if mode == "exact" or not self.dtype.startswith(("float", "bfloat")):
            x = rng.integers(-bound, bound + 1, place.shape).astype(np.float64)
        else:
            x = rounded(rng.standard_normal(place.shape) + 0.5, self.dtype)
        return {name: coherent(x, place)}

    def _views(self, x):
        """Of a padded image (N, C, spatial...): what each tap sees of it, a view of shape (N, C, places...)."""
        window, stride, _, dilation = self.geometry
        for tap in itertools.product(*map(range, window)):
            at = tuple(slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, s, n in zip(tap, dilation, stride, self.out))
            yield x[(slice(None), slice(None), *at)]

    def reference(self, values, tensor_cores=False):
        (n, c, *image), pads = self.shape, self.geometry[2]
        padded = [(0, 0), (0, 0), *pads]
        if self.op == "im2col":
            x = values["x"] if self.layout == "NCHW" else np.moveaxis(values["x"], -1, 1)
            seen = np.stack([v.reshape(n, c, math.prod(self.out)) for v in self._views(np.pad(x, padded))], 2)   # [n, c, tap, place]
            y = seen if self.layout == "NCHW" else seen.transpose(0, 3, 2, 1)
            y = y.reshape(self.columns_shape)
            return {"columns": y}, {"columns": np.zeros(y.shape)}
        taps, places = math.prod(self.window), math.prod(self.out)
        columns = values["columns"]
        seen = columns.reshape(n, c, taps, places) if self.layout == "NCHW" else columns.reshape(n, places, taps, c).transpose(0, 3, 2, 1)
        total, size = (np.zeros([length + before + after for length, (before, after) in zip((n, c, *image), padded)]) for _ in range(2))
        for image_of, source in ((total, seen), (size, np.abs(seen))):
            for k, view in enumerate(self._views(image_of)):
                view += source[:, :, k].reshape(view.shape)
        inner = (slice(None), slice(None), *(slice(before, before + length) for length, (before, _) in zip(image, pads)))
        total, size = total[inner], size[inner]
        if self.layout == "NHWC":
            total, size = np.moveaxis(total, 1, -1), np.moveaxis(size, 1, -1)
        unit = 2.0 ** -53 if self.dtype in ("float64", "int32") else 2.0 ** -24
        error = (taps + 1) * unit * size + rounding_error(total, self.dtype)
        return {"x": saturated(total, self.dtype)}, {"x": error}


def cases(op) -> list:
    """The cases of an operation."""
    def case(name, shape, window, dtype="float32", **more):
        window = (window,) * (len(shape) - 2) if isinstance(window, int) else window
        for layout in more.pop("layouts", ("NCHW", "NHWC")):
            found.append(Window(op, f"{name}-{layout}-{SHORT[dtype]}", shape, window, dtype, layout=layout, **more))

    found = []
    for dtype in DTYPES:
        case("3x3", (2, 3, 6, 7), 3, dtype, padding=(1, 1))
        case("3x3-16-channels", (1, 16, 5, 8), 3, dtype, padding=(1, 1))
        case("2x2-stride-2", (2, 5, 6, 8), 2, dtype, stride=(2, 2))
        case("misaligned", (1, 16, 4, 8), (2, 3), dtype, padding=(0, 1), place={"x": {"misaligned": 1}, "columns": {"misaligned": 3}})
        case("1d", (2, 4, 19), 4, dtype, padding=((3, 0),))
    case("first-layer", (1, 3, 13, 14), 7, "float16", stride=(2, 2), padding=(3, 3))
    case("1x1", (2, 8, 5, 5), 1, "bfloat16")
    case("1x1-stride-3", (2, 3, 7, 8), 1, stride=(3, 3))
    case("5x3", (1, 2, 9, 8), (5, 3), "bfloat16", padding=(2, 1))
    case("dilated", (1, 4, 9, 10), 3, "float16", dilation=(2, 3), padding=(2, 3))
    case("dilated-strided", (1, 8, 11, 12), 3, dilation=(2, 2), stride=(2, 3), padding=(1, 2))
    case("uneven-padding", (2, 3, 5, 6), (3, 2), "float16", padding=((0, 2), (1, 0)))
    case("padding-beyond-the-window", (1, 2, 4, 4), 2, padding=(5, 3))
    case("stride-beyond-the-window", (1, 3, 9, 11), 2, "bfloat16", stride=(4, 3))
    case("one-place", (3, 5, 4, 3), (4, 3), "float16")
    case("3d", (1, 2, 4, 5, 6), (2, 3, 2), padding=(1, 1, 0))
    case("3d-strided-16-channels", (1, 16, 4, 3, 4), 2, "float16", stride=(2, 1, 2), padding=(0, 1, 1), dilation=(1, 2, 1))
    case("1d-long-window", (1, 2, 40), 19, padding=(9,))
    case("1d-window-of-70", (1, 1, 80), 70, "bfloat16")
    case("wide-rows-32", (1, 2, 3, 32), 3, "float16", padding=(1, 1))
    case("wide-rows-33", (1, 2, 3, 33), 3, "int8", padding=(1, 1))
    case("channels-31", (1, 31, 3, 4), 2)
    case("channels-32", (1, 32, 3, 4), 2, "int8")
    case("zero-batch", (0, 3, 4, 4), 3)
    case("zero-channels", (2, 0, 4, 4), 2)
    case("strided-x", (2, 4, 5, 6), 2, "float16", place={"x": {"step": 2, "gap": 1}})
    case("strided-columns", (2, 4, 5, 6), 2, "bfloat16", place={"columns": {"step": 2, "gap": 3}})
    case("rows-apart", (2, 8, 5, 8), 3, "float16", padding=(1, 1), place={"x": {"gap": 8}, "columns": {"gap": 8}})
    case("negative", (2, 4, 5, 6), 2, place={"x": {"flip": (1, 3)}, "columns": {"flip": (0,)}})
    case("other-order", (1, 8, 4, 5), 3, "float16", padding=(1, 1), place={"x": {"order": (0, 2, 3, 1)}, "columns": {"order": (1, 0)}},
         layouts=("NHWC",))
    case("other-order", (2, 8, 5, 6), 3, "float16", padding=(1, 1), place={"x": {"order": (0, 2, 3, 1)}}, layouts=("NCHW",))
    if op == "im2col":
        case("broadcast", (3, 4, 5, 6), 2, place={"x": {"expand": (0,)}})
        case("empty-image-in-padding", (2, 3, 0, 4), 2, padding=(2, 0))
    return found


def large(op) -> list:
    """Larger ones, for a GPU."""
    return [Window(op, f"{name}-{layout}-{SHORT[dtype]}", shape, window, dtype, layout=layout, **more)
            for dtype in ("float32", "bfloat16", "int8") for layout in ("NCHW", "NHWC") for name, shape, window, more in (
                ("8x64x56x56", (8, 64, 56, 56), (3, 3), {"padding": (1, 1)}),
                ("4x3x224x224", (4, 3, 224, 224), (7, 7), {"padding": (3, 3), "stride": (2, 2)}),
                ("16x200x7x7", (16, 200, 7, 7), (3, 3), {"padding": (1, 1)}),
                ("4x33x41x43", (4, 33, 41, 43), (2, 5), {"padding": ((0, 3), 2), "stride": (3, 1), "dilation": (2, 3)}),
                ("2x32x16x28x28", (2, 32, 16, 28, 28), (3, 3, 3), {"padding": (1, 1, 1)}),
                ("8x64x4096", (8, 64, 4096), (3,), {"padding": (1,)}))]

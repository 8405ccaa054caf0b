"""Cases of pooling: maxima and averages over windows, adaptive ones too, and their gradients."""
import functools
import itertools
import math
from dataclasses import dataclass, field

import numpy as np

from . import EXACT, Case, coherent, lay, rounded, rounding_error
from .transpose import SHORT

DTYPES = ("float64", "float32", "float16", "bfloat16")


def axis_windows(n, window, stride, before, after, dilation, ceil_mode):
    """[(taps within the image, taps within the padded image)], place by place; positions in the image, from the definition."""
    found, place = [], 0
    while True:
        first = place * stride - before
        last = first + (window - 1) * dilation
        if ceil_mode and (last - (n + after - 1) >= stride or first >= n) or not ceil_mode and last >= n + after:
            return found
        taps = [first + t * dilation for t in range(window)]
        found.append(([t for t in taps if 0 <= t < n], sum(t < n + after for t in taps)))
        place += 1


def adaptive_windows(n, m):
    """The same for m adaptive windows over n pixels."""
    spans = [list(range(math.floor(p * n / m), math.ceil((p + 1) * n / m))) for p in range(m)]
    return [(span, len(span)) for span in spans]


@dataclass(frozen=True)
class Pool(Case):
    """One call; `shape` is (N, C, spatial...) for both layouts. `place` has keywords of `lay` for "x", "y" and "index"."""
    op: str
    id: str
    shape: tuple
    window: tuple             # adaptive: the number of places
    dtype: str = "float32"
    stride: tuple = None
    padding: tuple = 0        # a number or a pair for each dimension
    dilation: tuple = 1
    ceil_mode: bool = False
    count_include_pad: bool = False
    layout: str = "NCHW"
    adaptive: bool = False
    index: str = "int32"      # its dtype; None: no index
    divisor: int = None
    place: dict = field(default_factory=dict, hash=False)

    @property
    def dims(self):
        return len(self.shape) - 2

    @property
    def is_max(self):
        return self.op.startswith("max")

    @property
    def is_forward(self):
        return self.op.endswith("fwd")

    @functools.cached_property
    def windows(self):
        """For each dimension [(taps within the image, taps within the padded image)]."""
        def each(v):
            return v if isinstance(v, tuple) else (v,) * self.dims
        if self.adaptive:
            return [adaptive_windows(n, m) for n, m in zip(self.shape[2:], each(self.window))]
        window = self.shape[2:] if self.window is None else each(self.window)
        pads = [p if isinstance(p, tuple) else (p, p) for p in each(self.padding)]
        return [axis_windows(n, w, s, a, b, d, self.ceil_mode) for n, w, s, (a, b), d in
                zip(self.shape[2:], window, window if self.stride is None else each(self.stride), pads, each(self.dilation))]

    def _ordered(self, sizes):
        n, c, *image = sizes
        return (n, c, *image) if self.layout == "NCHW" else (n, *image, c)

    @property
    def y_sizes(self):
        return (*self.shape[:2], *(len(w) for w in self.windows))

    def _places(self):
        x, y = self._ordered(self.shape), self._ordered(self.y_sizes)
        places = {"x": lay(x, self.dtype, **self.place.get("x", {})), "y": lay(y, self.dtype, **self.place.get("y", {}))}
        if self.is_max and (self.index or not self.is_forward):
            places["index"] = lay(y, self.index or "int32", **self.place.get("index", {}))
        return places

    def inputs(self):
        places = self._places()
        if self.is_forward:
            return {"x": places["x"]}
        return {"dy": places["y"], **({"index": places["index"]} if self.is_max else {})}

    def outputs(self):
        places = self._places()
        if not self.is_forward:
            return {"dx": places["x"]}
        return {name: places[name] for name in ("y", "index") if name in places}

    @property
    def trivial(self):
        return 0 in self.shape or not self.is_forward and (self.is_max or math.prod(self.y_sizes) < 8)

    @property
    def exact(self):
        """Averages are exact where every divisor is a power of two."""
        return self.is_max or all(n & (n - 1) == 0 for n in self._counts().flat)

    @property
    def work(self):
        return math.prod(self.y_sizes) * math.prod(max((len(t) for t, _ in w), default=0) for w in self.windows)

    def _geometry(self):
        more = {} if self.is_max else {"count_include_pad": self.count_include_pad, "divisor": self.divisor}
        return dict(stride=self.stride, padding=self.padding, dilation=self.dilation, ceil_mode=self.ceil_mode, **more)

    def problem(self):
        from dnnkern.host.tensor import Tensor
        from dnnkern.pool import _problem
        t = {name: Tensor(p.shape, p.strides, p.dtype, p.alignment) for name, p in self._places().items()}
        geometry = ("stride", "padding", "dilation", "ceil_mode", "count_include_pad")
        rest = self.window, *(self._geometry().get(k, False) for k in geometry), self.divisor
        if self.is_forward:
            out, with_index = (t["y"], t["index"]) if "index" in t else t["y"], "index" in t
            if self.adaptive:
                return _problem.make_adaptive_forward(self.op, with_index, (t["x"],), out, self.window, self.layout, frozenset())
            return _problem.make_forward(self.op, with_index, (t["x"],), out, *rest, self.layout, frozenset())
        given, shape = (t["y"], t.get("index")), self._ordered(self.shape)
        if self.adaptive:
            return _problem.make_adaptive_backward(self.op, given, t["x"], shape, self.layout, frozenset())
        return _problem.make_backward(self.op, given, t["x"], shape, *rest, self.layout, frozenset())

    def call(self, arrays, out=None, **tail):
        import dnnkern
        function = getattr(dnnkern, ("adaptive_" if self.adaptive else "") + self.op)
        operands = [arrays[name] for name in self.inputs()]
        if not self.is_forward:
            operands.append(self._ordered(self.shape))
        if not self.adaptive or self.is_forward:
            operands.append(self.window)
        if not self.adaptive:
            tail.update(self._geometry())
        if self.is_forward and self.is_max:
            tail["return_index"] = self.index is not None
            if self.index == "int64":
                tail["index_dtype"] = self.index
        return function(*operands, layout=self.layout, out=out, **tail)

    # ---- values and references; inside, channels are first and everything is float64

    def _first(self, x):
        return x if self.layout == "NCHW" else np.moveaxis(x, -1, 1)

    def _back(self, x):
        return x if self.layout == "NCHW" else np.moveaxis(x, 1, -1)

    def _image(self, mode):
        """x, in the layout's order."""
        rng, shape = np.random.default_rng(list(self.id.encode())), self._ordered(self.shape)
        if mode == "exact":
            overlap = math.prod(max((len(t) for t, _ in w), default=1) for w in self.windows)
            bound = max(1, min(EXACT[self.dtype] // max(1, overlap), 100))
            if self.is_max:  # so few values that the largest is often there twice, and not the largest of all
                bound = min(EXACT[self.dtype], overlap + 3)
            return rng.integers(-bound, bound + 1, shape).astype(np.float64)
        return rounded(rng.standard_normal(shape) + 0.5, self.dtype)

    def values(self, mode):
        if self.is_forward:
            return {"x": coherent(self._image(mode), self._places()["x"])}
        rng, place = np.random.default_rng([7, *self.id.encode()]), self._places()["y"]
        if mode == "exact":
            overlap = math.prod(math.ceil(len(self.windows[k]) * max((len(t) for t, _ in self.windows[k]), default=1)
                                          / max(1, self.shape[2 + k])) + 1 for k in range(self.dims))
            bound = max(1, min(EXACT[self.dtype] // max(1, overlap * int(self._counts().max(initial=1))), 100))
            dy = rng.integers(-bound, bound + 1, place.shape).astype(np.float64)
        else:
            dy = rounded(rng.standard_normal(place.shape) + 0.5, self.dtype)
        if not self.is_max:
            return {"dy": coherent(dy, place)}
        _, index = self.maxima(self._first(self._image(mode)))
        return {"dy": coherent(dy, place), "index": self._back(index)}

    def _all_places(self):
        return itertools.product(*(range(len(w)) for w in self.windows))

    def maxima(self, x):
        """(maximum, index) of x; -inf and -1 over no pixels."""
        y, index = np.full(self.y_sizes, -np.inf), np.full(self.y_sizes, -1.0)
        flat = np.arange(math.prod(self.shape[2:])).reshape(self.shape[2:])
        for place in self._all_places():
            taps = np.ix_(*(w[p][0] for w, p in zip(self.windows, place)))
            where = flat[taps].ravel()
            if where.size:
                seen = x[(slice(None), slice(None), *taps)].reshape(*self.shape[:2], where.size)
                best = np.argmax(seen, -1)
                y[(..., *place)] = np.take_along_axis(seen, best[..., None], -1)[..., 0]
                index[(..., *place)] = where[best]
        return y, index

    def _counts(self):
        """What the sum of each place is divided by."""
        if self.divisor is not None:
            return np.full(tuple(map(len, self.windows)), self.divisor)
        counts = [np.array([padded if self.count_include_pad else len(inside) for inside, padded in w], int) for w in self.windows]
        return functools.reduce(np.multiply.outer, counts)

    def averages(self, x):
        """Sums over the windows, divided."""
        total, counts = np.zeros(self.y_sizes), self._counts()
        for place in self._all_places():
            taps = np.ix_(*(w[p][0] for w, p in zip(self.windows, place)))
            total[(..., *place)] = x[(slice(None), slice(None), *taps)].sum(tuple(range(2, 2 + self.dims)))
        return np.where(counts > 0, total / np.maximum(counts, 1), 0.0)

    def spread(self, dy):
        """The gradient of `averages`."""
        dx, counts = np.zeros(self.shape), self._counts()
        for place in self._all_places():
            taps = np.ix_(*(w[p][0] for w, p in zip(self.windows, place)))
            part = dy[(..., *place)] / max(counts[place], 1)
            dx[(slice(None), slice(None), *taps)] += part[(..., *[None] * self.dims)]
        return dx

    def scatter(self, dy, index):
        """The gradient of `maxima`."""
        pixels = math.prod(self.shape[2:])
        dx = np.zeros((*self.shape[:2], pixels + 1))  # the last one is nowhere
        n, c = np.indices(self.shape[:2])
        for place in self._all_places():
            dx[n, c, index[(..., *place)].astype(int)] += dy[(..., *place)]
        return dx[..., :pixels].reshape(self.shape)

    def reference(self, values, tensor_cores=False):
        unit, terms = 2.0 ** -53 if self.dtype == "float64" else 2.0 ** -24, self.work // max(1, math.prod(self.y_sizes)) + 4
        if self.is_forward:
            x = self._first(values["x"])
            if self.is_max:
                y, index = map(self._back, self.maxima(x))
                found = {"y": y, "index": index} if self.index else {"y": y}
                return found, {name: np.zeros(v.shape) for name, v in found.items()}
            y, size = self._back(self.averages(x)), self._back(self.averages(np.abs(x)))
            return {"y": y}, {"y": terms * unit * size + rounding_error(y, self.dtype)}
        dy = self._first(values["dy"])
        if self.is_max:
            index = self._first(values["index"])
            dx, size = self._back(self.scatter(dy, index)), self._back(self.scatter(np.abs(dy), index))
        else:
            dx, size = self._back(self.spread(dy)), self._back(self.spread(np.abs(dy)))
        return {"dx": dx}, {"dx": terms * unit * size + rounding_error(dx, self.dtype)}

    def gradient(self, values):
        """Derivatives of ``sum(dy * y)`` along random directions, by the gradient and by differences of the forward's reference."""
        if self.is_forward or self.trivial and 0 in self.shape:
            return []
        rng, dy = np.random.default_rng(3), self._first(values["dy"])
        x = rng.permutation(math.prod(self.shape)).reshape(self.shape) / 16.0  # no two are equal
        forward = (lambda v: self.maxima(v)[0]) if self.is_max else self.averages
        if self.is_max:
            dx = self.scatter(dy, self.maxima(x)[1])
        else:
            dx = self.reference(values)[0]["dx"]
            dx = self._first(dx)
        found, step = [], 2.0 ** -10
        for _ in range(4):
            v = rng.uniform(-1, 1, self.shape)
            above, below = forward(x + step * v), forward(x - step * v)
            slope = np.where(np.isfinite(above), (above - np.where(np.isfinite(above), below, 0)) / (2 * step), 0.0)
            found.append((np.sum(dx * v), np.sum(dy * slope), 1e-9 * (1 + np.abs(dy).sum())))
        return [tuple(np.asarray(column) for column in row) for row in found]


def cases(op) -> list:
    """The cases of an operation."""
    def case(name, shape, window, dtype="float32", **more):
        for layout in more.pop("layouts", ("NCHW", "NHWC")):
            found.append(Pool(op, f"{name}-{layout}-{SHORT[dtype]}", shape, window, dtype, layout=layout, **more))

    found, is_max, is_forward = [], op.startswith("max"), op.endswith("fwd")
    for dtype in DTYPES:
        case("3x3-s2-p1", (2, 3, 9, 8), 3, dtype, stride=2, padding=1)
        case("3x3-s2-p1-16-channels", (1, 16, 8, 10), 3, dtype, stride=2, padding=1)
        case("2x2", (2, 5, 6, 8), 2, dtype)
        case("2x2-32-channels", (1, 32, 4, 6), 2, dtype)
        case("misaligned", (1, 16, 6, 8), (2, 3), dtype, stride=1, padding=(0, 1),
             place={"x": {"misaligned": 1}, "y": {"misaligned": 3}, "index": {"misaligned": 1}})
        case("1d", (2, 4, 19), 4, dtype, stride=2, padding=((1, 2),))
        case("adaptive", (1, 16, 7, 10), (3, 4), dtype, adaptive=True)
        case("global", (2, 24, 7, 7), None, dtype)
    case("3x3-s1-p1", (1, 8, 7, 16), 3, "float16", stride=1, padding=1)
    case("3x3-s2-ceil", (1, 4, 8, 11), 3, "bfloat16", stride=2, ceil_mode=True)
    case("2x2-ceil", (1, 8, 7, 9), 2, ceil_mode=True)
    case("ceil-drops-what-starts-in-the-padding", (1, 2, 5, 6), 2, stride=2, padding=1, ceil_mode=True)
    case("ceil-drops-several", (1, 2, 3, 4), 1, "float16", stride=1, padding=((0, 3), (2, 4)), ceil_mode=True)
    case("ceil-window-beyond-the-image", (1, 3, 3, 4), 5, stride=4, ceil_mode=True)
    case("5x5-s3", (1, 3, 14, 13), 5, "float16", stride=3, padding=2)
    case("13x13-s1", (1, 8, 13, 14), 13, "bfloat16", stride=1, padding=6, layouts=("NHWC",))
    case("13x13-s1", (1, 1, 13, 16), 13, "bfloat16", stride=1, padding=6, layouts=("NCHW",))
    case("dilated", (1, 8, 9, 10), 3, "float16", stride=1, padding=(2, 3), dilation=(2, 3))
    case("dilated-strided", (1, 4, 11, 12), 3, stride=(2, 3), padding=1, dilation=2)
    case("uneven-padding", (2, 3, 5, 6), (3, 2), "float16", stride=1, padding=((0, 2), (1, 0)))
    case("padding-beyond-the-window", (1, 8, 4, 4), 2, padding=(5, 3))
    case("stride-beyond-the-window", (1, 8, 9, 11), 2, "bfloat16", stride=(4, 3))
    case("3d", (1, 2, 4, 5, 6), (2, 3, 2), stride=1, padding=(1, 1, 0))
    case("3d-s2-16-channels", (1, 16, 4, 3, 4), 2, "float16")
    case("1d-long-window", (2, 2, 40), 19, stride=1, padding=9)
    case("1d-window-of-70", (1, 1, 80), 70, "bfloat16", stride=1)
    case("rows-of-32", (1, 2, 6, 32), 3, "float16", stride=2, padding=1)
    case("rows-of-33", (1, 2, 5, 33), 3, "bfloat16", stride=2, padding=1)
    case("rows-of-64-s1", (1, 1, 4, 64), 3, stride=1, padding=1)
    case("channels-31", (1, 31, 3, 4), 2, stride=1)
    case("channels-100", (1, 100, 3, 4), 2, "float16", stride=1)
    case("1x1", (2, 8, 5, 5), 1)
    case("one-pixel", (3, 5, 1, 1), 1, "float16")
    case("global-large", (2, 8, 16, 17), None, "float16")
    case("global-odd", (1, 3, 5, 41), None)
    case("global-planes-of-9216-bytes", (1, 2, 48, 48), None)
    case("global-1d-odd-5000", (1, 1, 5000), None, "float16")
    case("zero-batch", (0, 3, 4, 4), 3)
    case("zero-channels", (2, 0, 4, 4), 2)
    case("strided", (2, 4, 6, 6), 2, "float16", place={"x": {"step": 2, "gap": 1}, "y": {"step": 3}, "index": {"gap": 2}})
    case("rows-apart", (2, 8, 6, 8), 2, "float16", place={"x": {"gap": 8}, "y": {"gap": 8}, "index": {"gap": 8}})
    case("negative", (2, 8, 6, 8), 2, place={"x": {"flip": (1, 3)}, "y": {"flip": (0,)}, "index": {"flip": (2,)}})
    case("other-order", (1, 8, 4, 6), 2, "float16", place={"x": {"order": (0, 2, 3, 1)}})
    case("adaptive-more-than-pixels", (1, 8, 3, 4), (5, 7), "float16", adaptive=True)
    case("adaptive-1d", (2, 3, 13), 5, adaptive=True)
    case("adaptive-3d", (1, 8, 3, 5, 4), (2, 3, 3), "bfloat16", adaptive=True)
    case("adaptive-even", (1, 8, 6, 8), (3, 2), adaptive=True)
    if is_max and is_forward:
        for dtype in DTYPES:
            case("no-index-3x3-s2-p1", (1, 16, 9, 8), 3, dtype, stride=2, padding=1, index=None)
        case("no-index-padding-beyond-the-window", (1, 8, 4, 4), 2, "float16", padding=(5, 3), index=None)
        case("no-index-adaptive", (1, 8, 7, 10), (3, 4), "bfloat16", adaptive=True, index=None)
        case("no-index-global", (2, 24, 7, 7), None, index=None)
    if is_max:
        for dtype in DTYPES:
            case("int64-3x3-s2-p1", (1, 16, 9, 8), 3, dtype, stride=2, padding=1, index="int64")
            case("int64-global", (2, 24, 7, 7), None, dtype, index="int64")
        case("int64-3x3-s1-p1", (1, 8, 7, 16), 3, "float16", stride=1, padding=1, index="int64")
        case("int64-2x2", (2, 5, 6, 8), 2, index="int64")
        case("int64-misaligned", (1, 16, 6, 8), (2, 3), "bfloat16", stride=1, padding=(0, 1), index="int64",
             place={"x": {"misaligned": 1}, "y": {"misaligned": 3}, "index": {"misaligned": 1}})
        case("int64-strided", (2, 4, 6, 6), 2, index="int64", place={"index": {"gap": 2, "flip": (2,)}})
        case("int64-padding-beyond-the-window", (1, 8, 4, 4), 2, padding=(5, 3), index="int64")
        case("int64-adaptive", (1, 16, 7, 10), (3, 4), "float16", adaptive=True, index="int64")
        case("int64-3d", (1, 2, 4, 5, 6), (2, 3, 2), stride=1, padding=(1, 1, 0), index="int64")
        case("int64-1d-window-of-70", (1, 1, 80), 70, "bfloat16", stride=1, index="int64")
        case("int64-global-odd", (1, 3, 5, 41), None, index="int64")
    if not is_max:
        for dtype in DTYPES:
            case("counting-3x3-s2-p1", (1, 16, 9, 8), 3, dtype, stride=2, padding=1, count_include_pad=True)
        case("counting-ceil", (1, 8, 8, 9), 3, stride=2, padding=1, ceil_mode=True, count_include_pad=True)
        case("counting-uneven-ceil", (1, 3, 8, 9), 4, "float16", stride=3, padding=((0, 2), (3, 1)), ceil_mode=True, count_include_pad=True)
        case("counting-2x2", (1, 8, 6, 6), 2, "bfloat16", padding=1, count_include_pad=True)
        for dtype in DTYPES:
            case("divisor-3x3-s2-p1", (1, 16, 9, 8), 3, dtype, stride=2, padding=1, divisor=7)
        case("divisor-1", (1, 8, 6, 6), 2, "bfloat16", padding=1, divisor=1)
        case("divisor-global", (2, 24, 7, 7), None, divisor=32)
        case("divisor-3d", (1, 4, 4, 5, 6), (2, 3, 2), "float16", stride=1, padding=(1, 1, 0), ceil_mode=True, divisor=5)
        case("divisor-large", (1, 3, 8), 3, "float64", stride=1, divisor=2 ** 31 - 1)
        case("divisor-dilated", (1, 8, 8, 9), 2, stride=2, padding=(1, 2), dilation=(3, 2), count_include_pad=True, divisor=3)
        case("counting-dilated", (1, 8, 8, 9), 2, stride=2, padding=(1, 2), dilation=(3, 2), count_include_pad=True, ceil_mode=True)
    if is_forward:
        case("global-of-16637-pixels", (1, 3, 131, 127), None, "float16", layouts=("NHWC",))
        case("broadcast", (3, 8, 5, 6), 2, place={"x": {"expand": (0,)}})
    return found


def large(op) -> list:
    """Larger ones, for a GPU."""
    return [Pool(op, f"{name}-{layout}-{SHORT[dtype]}", shape, window, dtype, layout=layout, **more)
            for dtype in ("float32", "bfloat16") for layout in ("NCHW", "NHWC") for name, shape, window, more in (
                ("8x64x112x112", (8, 64, 112, 112), 3, {"stride": 2, "padding": 1}),
                ("4x200x27x29", (4, 200, 27, 29), 3, {"stride": 2, "ceil_mode": True}),
                ("4x512x13x13", (4, 512, 13, 13), 5, {"stride": 1, "padding": 2}),
                ("16x2048x7x7", (16, 2048, 7, 7), None, {}),
                ("2x64x100x130", (2, 64, 100, 130), (7, 9), {"adaptive": True}),
                ("2x32x16x28x28", (2, 32, 16, 28, 28), 2, {}),
                ("8x64x4096", (8, 64, 4096), 3, {"stride": 2, "padding": 1}))]

"""Cases of resampled images and of their gradients."""
import functools
import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from . import ROUNDOFF, Case, coherent, lay, rounded, rounding_error
from .transpose import SHORT as ALL

SHORT = {dtype: ALL[dtype] for dtype in ("float64", "float32", "float16", "bfloat16")}
MODES = (("nearest", False), ("bilinear", False), ("bilinear", True))
FILTERED = (("area", False, False), ("bicubic", False, False), ("bicubic", True, False), ("bilinear", False, True),
            ("bicubic", False, True))
"""(mode, corners, antialias) of the modes that weigh more than two pixels in a dimension."""


def keys(x, a):
    """Keys' cubic at a distance."""
    x = abs(x)
    if x < 1:
        return (a + 2) * x ** 3 - (a + 3) * x ** 2 + 1
    return a * x ** 3 - 5 * a * x ** 2 + 8 * a * x - 4 * a if x < 2 else 0


@functools.cache
def shares(n, m, mode, corners, antialias=False):
    """The matrix (m, n) that takes n pixels to m, from the definition."""
    found = np.zeros((m, n))
    for i in range(m):
        if mode == "nearest":
            found[i, i * n // m] = 1
            continue
        if mode == "nearest-exact":
            found[i, (2 * i + 1) * n // (2 * m)] = 1
            continue
        if mode == "area":
            found[i, i * n // m:-(-(i + 1) * n // m)] = 1 / (-(-(i + 1) * n // m) - i * n // m)
            continue
        if antialias:
            center, wide = Fraction((2 * i + 1) * n, 2 * m), max(Fraction(n, m), Fraction(1))
            distances = [abs(j + Fraction(1, 2) - center) / wide for j in range(n)]
            weights = [max(1 - x, 0) if mode == "bilinear" else keys(x, Fraction(-1, 2)) for x in distances]
            found[i] = [float(w / sum(weights)) for w in weights]
            continue
        if mode == "bicubic":
            at = Fraction(i * (n - 1), max(m - 1, 1)) if corners else Fraction((2 * i + 1) * n, 2 * m) - Fraction(1, 2)
            for j in range(math.floor(at) - 1, math.floor(at) + 3):
                found[i, min(max(j, 0), n - 1)] += float(keys(j - at, Fraction(-3, 4)))
            continue
        at = Fraction(i * (n - 1), max(m - 1, 1)) if corners else Fraction((2 * i + 1) * n, 2 * m) - Fraction(1, 2)
        at = max(at, Fraction(0))
        first = math.floor(at)
        found[i, first] += float(1 - (at - first))
        found[i, min(first + 1, n - 1)] += float(at - first)
    return found


@dataclass(frozen=True)
class Resample(Case):
    """One call; `shape` is (N, C, spatial...) whatever the layout, `places` are keywords of `lay` for "x", "y", "dy", "dx"."""
    op: str
    id: str
    shape: tuple
    size: tuple
    dtype: str = "float32"
    mode: str = "nearest"
    corners: bool = False
    layout: str = "NCHW"
    places: dict = field(default_factory=dict, hash=False)
    antialias: bool = False

    @property
    def is_forward(self):
        return self.op == "resample_fwd"

    @property
    def matrices(self):
        """One a spatial dimension."""
        return [shares(n, m, self.mode, self.corners, self.antialias) for n, m in zip(self.shape[2:], self.size)]

    @property
    def exact(self):
        """Whether all shares are quarters, or less often halved."""
        if self.mode in ("area", "bicubic") or self.antialias:
            return False
        quarters = all(np.array_equal(4 * w, np.rint(4 * w)) for w in self.matrices)
        return self.mode.startswith("nearest") or quarters and (self.is_forward or len(self.size) < 3)

    @property
    def trivial(self):
        return 0 in (*self.shape, *self.size) or math.prod(self.size) == 1

    def _laid(self, name, shape):
        shape = shape if self.layout == "NCHW" else (shape[0], *shape[2:], shape[1])
        return {name: lay(shape, self.dtype, **self.places.get(name, {}))}

    def inputs(self):
        return self._laid("x", self.shape) if self.is_forward else self._laid("dy", (*self.shape[:2], *self.size))

    def outputs(self):
        return self._laid("y", (*self.shape[:2], *self.size)) if self.is_forward else self._laid("dx", self.shape)

    @property
    def _arguments(self):
        wanted = self.size if self.is_forward else self.outputs()["dx"].shape
        return wanted, self.mode, self.corners, self.layout, self.antialias

    @property
    def work(self):
        total = math.prod(self.shape[:2]) * max(math.prod(self.shape[2:]), math.prod(self.size))
        if self.mode in ("area", "bicubic") or self.antialias:
            return 30 * total * math.prod(int((w != 0).sum(1).max(initial=1)) for w in self.matrices)
        return (30 if self.mode == "bilinear" else 8) * total

    def problem(self):
        from dnnkern.host.tensor import Tensor
        from dnnkern.transform.sample._resample_problem import make_resample
        given, out = (Tensor(p.shape, p.strides, p.dtype, p.alignment) for p in (*self.inputs().values(), *self.outputs().values()))
        return make_resample(self.op, (given,), out, *self._arguments, frozenset())

    def call(self, arrays, out=None, **tail):
        import dnnkern
        wanted, mode, corners, layout, antialias = self._arguments
        (given,) = arrays.values()
        return getattr(dnnkern, self.op)(given, wanted, mode=mode, align_corners=corners, layout=layout, antialias=antialias,
                                         out=out[0] if isinstance(out, tuple) else out, **tail)

    def values(self, mode):
        rng, ((name, place),) = np.random.default_rng(list(self.id.encode())), self.inputs().items()
        bound = 4 if self.is_forward else 2
        exact = mode == "exact"
        x = rng.integers(-bound, bound + 1, place.shape).astype(np.float64) if exact else rng.standard_normal(place.shape) + 0.5
        return {name: coherent(rounded(x, self.dtype), place)}

    def _spread(self, x, matrices):
        """Every matrix applied along its dimension of an array in the case's layout."""
        first = 2 if self.layout == "NCHW" else 1
        for axis, w in enumerate(matrices, first):
            x = np.moveaxis(np.tensordot(w, x, (1, axis)), 0, axis)
        return x

    def reference(self, values, tensor_cores=False):
        matrices = self.matrices if self.is_forward else [w.T for w in self.matrices]
        ((_, x),), (name,) = values.items(), self.outputs()
        y, present = self._spread(x, matrices), [(w != 0).astype(float) for w in matrices]
        terms = 8 + math.prod(int(w.sum(1).max(initial=0)) for w in present)
        unit = ROUNDOFF["float64" if self.dtype == "float64" else "float32"]
        if self.mode == "bicubic":  # weights are sums of terms that cancel
            terms *= 4
        return {name: y}, {name: terms * unit * self._spread(np.abs(x), present) + rounding_error(y, self.dtype)}

    def gradient(self, values):
        """Derivatives of ``sum(dy * y)`` along random directions, by the gradient and by differences of the forward's reference."""
        if self.is_forward or self.trivial:
            return []
        rng, dy, found = np.random.default_rng(3), values["dy"], []
        dx, shape, h = self.reference(values)[0]["dx"], self.outputs()["dx"].shape, 2.0 ** -10
        for _ in range(2):
            x, v = rng.standard_normal((2, *shape))
            numeric = np.sum(dy * (self._spread(x + h * v, self.matrices) - self._spread(x - h * v, self.matrices))) / (2 * h)
            found.append((np.sum(dx * v), numeric, 1e-9 * (1 + np.abs(dy).sum())))
        return found


def resample_cases(op):
    """All cases of an operation."""
    def case(name, shape, size, dtype="float32", mode="bilinear", corners=False, layout="NCHW", antialias=False, **places):
        word = ("corners" if mode == "bilinear" else f"{mode}-corners") if corners else mode + "-antialias" * antialias
        found.append(Resample(op, f"{name}-{word}-{layout.lower()}-{SHORT[dtype]}", shape, size, dtype, mode, corners, layout, places,
                              antialias))

    found, dtypes = [], tuple(SHORT)
    x, y = ("x", "y") if op == "resample_fwd" else ("dx", "dy")
    for layout in ("NCHW", "NHWC"):
        for k, (mode, corners) in enumerate(MODES):
            for j, dtype in enumerate(dtypes):
                case("twice-2x8x5x6", (2, 8, 5, 6), (10, 12), dtype, mode, corners, layout)
                shape, size = (((1, 8, 7, 9), (5, 16)), ((2, 16, 6, 4), (3, 2)), ((1, 3, 5, 5), (11, 3)), ((1, 8, 4, 9), (4, 17)))[j]
                case(f"odd-{'x'.join(map(str, shape[2:]))}", shape, size, dtype, mode, corners, layout)
            case("line", (2, 8, 13), (29,), dtypes[k], mode, corners, layout)
            case("volume", (1, 4, 2, 3, 4), (4, 5, 8), dtypes[(k + 2) % 4], mode, corners, layout)
            case("volume-halved", (1, 8, 4, 2, 6), (2, 2, 3), dtypes[(k + 1) % 4], mode, corners, layout)
            case("same-size", (1, 8, 5, 6), (5, 6), dtypes[(k + 3) % 4], mode, corners, layout)
            case("to-one-pixel", (2, 16, 4, 5), (1, 1), dtypes[k], mode, corners, layout)
            case("of-one-pixel", (2, 8, 1, 1), (3, 4), dtypes[k + 1], mode, corners, layout)
            case("far-apart", (1, 8, 2, 3), (2, 40), dtypes[k], mode, corners, layout)
            case("to-nothing", (2, 3, 4, 5), (0, 5), mode=mode, corners=corners, layout=layout)
        case("of-no-images", (0, 3, 4, 5), (8, 10), layout=layout)
        case("misaligned", (1, 8, 4, 5), (8, 10), "float16", layout=layout, **{x: {"misaligned": 1}, y: {"misaligned": 3}})
        case("gaps", (1, 6, 4, 5), (8, 10), layout=layout, **{x: {"gap": 2}, y: {"gap": 6}})
        case("strided", (1, 6, 4, 5), (8, 10), "bfloat16", layout=layout, **{x: {"step": 2}, y: {"step": 3, "gap": 1}})
        case("backwards", (1, 8, 4, 5), (8, 10), layout=layout, **{x: {"flip": (1, 2)}, y: {"flip": (2, 3)}})
        last = {"order": (0, 2, 3, 1) if layout == "NCHW" else (0, 3, 1, 2)}
        case("as-the-other-layout", (1, 16, 4, 5), (8, 10), "float16", layout=layout, **{x: last, y: last})
        case("mixed-layouts", (1, 8, 4, 5), (8, 10), "float16", layout=layout, **{x: last})
        for k, dtype in enumerate(dtypes):
            shape, size = (((2, 8, 5, 6), (10, 12)), ((1, 8, 7, 9), (5, 16)), ((2, 16, 6, 4), (3, 2)), ((1, 3, 5), (11,)))[k]
            case("exactly", shape, size, dtype, "nearest-exact", layout=layout)
        for k, (mode, corners, antialias) in enumerate(FILTERED):
            more = {"mode": mode, "corners": corners, "antialias": antialias, "layout": layout}
            for j, dtype in enumerate(dtypes):
                shapes = ((1, 8, 7, 9), (5, 16)), ((2, 3, 6, 4), (3, 2)), ((1, 3, 5, 5), (11, 3)), ((1, 8, 4, 9), (8, 18))
                shape, size = shapes[(j + k) % 4]
                case(f"filtered-{'x'.join(map(str, shape[2:]))}", shape, size, dtype, **more)
            case("filtered-line", (2, 4, 13), (5 + 3 * k,), dtypes[k % 4], **more)
            case("filtered-volume", (1, 2, 2, 4, 3), (3, 2, 4), dtypes[(k + 2) % 4], **more)
            case("filtered-same-size", (1, 4, 5, 6), (5, 6), dtypes[(k + 1) % 4], **more)
            case("filtered-to-one-pixel", (2, 16, 4, 5), (1, 1), dtypes[(k + 3) % 4], **more)
            case("filtered-of-one-pixel", (2, 8, 1, 1), (3, 4), dtypes[k % 4], **more)
            case("filtered-to-nothing", (2, 3, 4, 5), (0, 5), **more)
            case("filtered-far-apart", (1, 4, 2, 40), (9, 3), dtypes[(k + 2) % 4], **more)
            laid = {x: {"gap": 2, "flip": (2,)}, y: {"step": 2}}
            case("filtered-strided", (1, 3, 4, 5), (8, 3), dtypes[(k + 1) % 4], **more, **laid)
        given = x if op == "resample_fwd" else y
        case("broadcast", (3, 8, 4, 5), (8, 10), layout=layout, **{given: {"expand": (0,)}})
    return found


def large_cases(op):
    """Those for a GPU."""
    modes = (*((*mode, False) for mode in MODES), *FILTERED)
    return [Resample(op, f"{name}-{mode}{corners:d}{'a' * antialias}-{layout.lower()}-{SHORT[dtype]}", shape, size, dtype, mode, corners,
                     layout, antialias=antialias)
            for dtype in SHORT for mode, corners, antialias in modes for layout in ("NCHW", "NHWC") for name, shape, size in (
                ("twice-4x64x56x56", (4, 64, 56, 56), (112, 112)), ("odd-3x17x100x77", (3, 17, 100, 77), (61, 201)),
                ("half-4x32x112x112", (4, 32, 112, 112), (56, 56)))]


def beyond_int32(op):
    """More than 2**31 elements of the larger image, checked on the GPU by `check_beyond_int32`: each pixel becomes two by two."""
    return [Resample(op, f"2**31-nearest-{layout.lower()}-bf16", (67, 64, 256, 512), (512, 1024), "bfloat16", "nearest", False, layout)
            for layout in ("NCHW", "NHWC")]


def check_beyond_int32(case, algo, allow):
    """Every element compared with torch's, an image at a time."""
    import torch

    from .transpose import random_bytes
    given, wanted = (p.shape for p in (*case.inputs().values(), *case.outputs().values()))
    if case.is_forward:
        x = torch.randint(-100, 101, given, device="cuda", dtype=torch.int8).to(torch.bfloat16)
    else:
        x = random_bytes(torch, given, "bfloat16").clamp_(-4, 4)
    y = torch.full(wanted, 101, dtype=x.dtype, device="cuda")
    case.call({"x": x}, y, algo=algo, allow=allow)
    rows = 1 if case.layout == "NHWC" else 2
    for n in range(len(x)):
        if case.is_forward:
            want = x[n].repeat_interleave(2, rows - 1).repeat_interleave(2, rows)
        else:
            h, w = y.shape[rows], y.shape[rows + 1]
            want = x[n].float().unflatten(rows - 1, (h, 2)).sum(rows).unflatten(rows, (w, 2)).sum(rows + 1).to(x.dtype)
        assert torch.equal(y[n], want), f"{case.id}, {algo}: wrong in image {n}"

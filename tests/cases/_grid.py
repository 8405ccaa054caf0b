"""What the cases of sampled images, of affine grids and of their gradients share."""
import itertools
import math
from dataclasses import dataclass, field

import numpy as np

from . import ROUNDOFF, Case, coherent, lay, rounded, rounding_error
from ._resample import SHORT


def place(g, n, padding, corners):
    """Where numbers of a grid lie along a dimension of n pixels, from the definition; and how that changes with them."""
    at, slope = (g + 1) / 2 * (n - 1) if corners else ((g + 1) * n - 1) / 2, np.full(g.shape, ((n - 1) if corners else n) / 2)
    if padding == "reflection":
        low, span = (0.0, n - 1.0) if corners else (-0.5, float(n))
        if span <= 0:
            return np.zeros(g.shape), np.zeros(g.shape)
        turns = np.floor((at - low) / span)
        back = turns % 2 == 1
        at = np.where(back, span * (turns + 1) - (at - low), at - low - span * turns) + low
        slope = np.where(back, -slope, slope)
    if padding != "zeros":
        slope = np.where((at > 0) & (at < n - 1), slope, 0)
        at = np.clip(at, 0, n - 1)
    return at, slope


def flat(x):
    """All pixels of a channel in a row."""
    return x.reshape(*x.shape[:2], math.prod(x.shape[2:]))


@dataclass(frozen=True)
class _Sample(Case):
    """One call; `shape` is (N, C, spatial...), `size` the grid's; layouts are keywords of `lay` by operand."""
    id: str
    shape: tuple
    size: tuple
    dtype: str = "float32"
    mode: str = "bilinear"
    padding: str = "zeros"
    corners: bool = False
    grid: str = ""
    layout: dict = field(default_factory=dict, hash=False)
    wide: float = 1.5

    @property
    def dims(self):
        return len(self.size)

    @property
    def unit(self):
        return ROUNDOFF["float64" if self.dtype == "float64" else "float32"]

    @property
    def exact(self):
        """With integers in the grid places are at halves of pixels, along two dimensions."""
        return self.dims == 2

    @property
    def quarters(self):
        """Whether a grid can name quarters of pixels exactly."""
        steps = [n - 1 if self.corners else n for n in self.shape[2:]]
        return all(n and n & (n - 1) == 0 and n <= 8 for n in steps)

    @property
    def parameters(self):
        return self.mode, self.padding, self.corners

    def place_of(self, name, shape, dtype):
        return lay(shape, dtype, **self.layout.get(name, {}))

    def common(self):
        """Places of the image and of the grid."""
        return {"x": self.place_of("x", self.shape, self.dtype),
                "grid": self.place_of("grid", (self.shape[0], *self.size, self.dims), self.grid or self.dtype)}

    def tensors(self):
        """Descriptors of operands and results by name."""
        from dnnkern.host.tensor import Tensor
        return {name: Tensor(p.shape, p.strides, p.dtype, p.alignment) for name, p in {**self.inputs(), **self.outputs()}.items()}

    def values(self, mode):
        """Integers; or a grid of quarters of a pixel where the nearest pixel is asked for, so that none is half-way, else any grid."""
        rng, found = np.random.default_rng(list(self.id.encode())), {}
        for name, p in self.inputs().items():
            if mode == "exact":
                value = rng.integers(*((-1, 2) if name == "grid" else (-2, 3)), p.shape).astype(float)
            elif name == "grid" and self.mode == "nearest" and self.quarters:
                value = np.zeros(p.shape)
                for k, n in enumerate(reversed(self.shape[2:])):
                    at = rng.integers(-1, n + 1, p.shape[:-1]) + rng.choice([0.25, -0.25], p.shape[:-1])
                    value[..., k] = 2 * at / (n - 1) - 1 if self.corners else (2 * at + 1) / n - 1
            elif name == "grid":
                value = rng.uniform(-self.wide, self.wide, p.shape)
            else:
                value = rng.standard_normal(p.shape) + 0.5
            found[name] = coherent(rounded(value, p.dtype), p)
        return found

    # ---- the definition

    def places(self, grid):
        """[(places, slopes)] along d, h, w or h, w."""
        return [place(grid[..., self.dims - 1 - k], n, self.padding, self.corners) for k, n in enumerate(self.shape[2:])]

    def shares(self, grid):
        """(what each pixel counts at each place: (N, places, pixels); that by the place along each dimension)."""
        (n, places), found, slopes = (len(grid), math.prod(self.size)), [], []
        for size, (at, slope) in zip(self.shape[2:], self.places(grid)):
            at, slope = at.reshape(n, places, 1), slope.reshape(n, places, 1)
            pixels = np.arange(size)
            if self.mode == "nearest":
                found.append((np.rint(at) == pixels).astype(float))
                slopes.append(np.zeros(found[-1].shape))
            else:
                found.append(np.maximum(1 - np.abs(at - pixels), 0))
                first = np.floor(at)
                slopes.append(slope * ((pixels == first + 1) * 1.0 - (pixels == first)))
        whole = self._outer(found)
        by_place = [self._outer([slopes[j] if j == k else found[j] for j in range(self.dims)]) for k in range(self.dims)]
        return whole, by_place

    def _outer(self, factors):
        n, places = factors[0].shape[:2]
        whole = factors[0]
        for f in factors[1:]:
            whole = (whole[..., None] * f[:, :, None, :]).reshape(n, places, whole.shape[2] * f.shape[2])
        return whole

    def sample(self, x, grid):
        """The images at the grid's places."""
        share, _ = self.shares(grid)
        return np.einsum("ncx,npx->ncp", flat(x), share).reshape(*x.shape[:2], *self.size)

    @property
    def place_error(self):
        """Of a place along any dimension, in pixels."""
        return self.unit * 8 * (self.wide + 2) * max(self.shape[2:])


class SampleForward(_Sample):
    """Images at the places of a grid."""
    op = "grid_sample_fwd"

    @property
    def work(self):
        return 80 * math.prod((*self.shape[:2], *self.size))

    def inputs(self):
        return self.common()

    def outputs(self):
        return {"y": self.place_of("y", (*self.shape[:2], *self.size), self.dtype)}

    def problem(self):
        from dnnkern.transform.sample._grid_problem import make_sample
        t = self.tensors()
        return make_sample((t["x"], t["grid"]), t["y"], *self.parameters, frozenset())

    def call(self, arrays, out=None, **tail):
        from dnnkern import grid_sample_fwd
        return grid_sample_fwd(arrays["x"], arrays["grid"], mode=self.mode, padding_mode=self.padding, align_corners=self.corners,
                               out=out[0] if isinstance(out, tuple) else out, **tail)

    def reference(self, values, tensor_cores=False):
        y, most = self.sample(values["x"], values["grid"]), np.abs(values["x"]).max(initial=0)
        error = 0 if self.mode == "nearest" else self.place_error * 2 * self.dims * most
        return {"y": y}, {"y": error + 16 * self.unit * most + rounding_error(y, self.dtype)}


class SampleBackward(_Sample):
    """The gradients by images and grid."""
    op = "grid_sample_bwd"
    trivial = True  # nearest pixels' grids, and pixels that no place is near

    @property
    def work(self):
        return 12 * math.prod(self.shape) * math.prod(self.size)

    def inputs(self):
        return {"dy": self.place_of("dy", (*self.shape[:2], *self.size), self.dtype), **self.common()}

    def outputs(self):
        found = self.common()
        grid = found["grid"]
        return {"dx": self.place_of("dx", self.shape, self.dtype), "dgrid": self.place_of("dgrid", grid.shape, grid.dtype)}

    def problem(self):
        from dnnkern.transform.sample._grid_problem import make_sample_gradient
        t = self.tensors()
        return make_sample_gradient((t["dy"], t["x"], t["grid"]), (t["dx"], t["dgrid"]), *self.parameters, frozenset())

    @property
    def exact(self):
        """Sums of a few quarters of quarters, but not their products with slopes, in 16 bits."""
        return self.dims == 2 and self.dtype in ("float32", "float64") and not self.grid

    def call(self, arrays, out=None, **tail):
        from dnnkern import grid_sample_bwd
        return grid_sample_bwd(arrays["dy"], arrays["x"], arrays["grid"], mode=self.mode, padding_mode=self.padding,
                               align_corners=self.corners, out=out, **tail)

    def gradients(self, values):
        """(dx, dgrid, sums of what they are made of without signs)."""
        dy, x, grid = values["dy"], values["x"], values["grid"]
        share, by_place = self.shares(grid)
        flat_dy, flat_x = flat(dy), flat(x)
        dx = np.einsum("ncp,npx->ncx", flat_dy, share).reshape(x.shape)
        near = np.einsum("ncp,npx->ncx", np.abs(flat_dy), (share > 0) * 1.0).reshape(x.shape)
        steps = [np.einsum("ncp,ncx,npx->np", flat_dy, flat_x, s) for s in reversed(by_place)]
        size = np.einsum("ncp,ncx->np", np.abs(flat_dy), np.abs(flat_x).max(-1, keepdims=True, initial=0)) * max(self.shape[2:])
        return dx, np.stack(steps, -1).reshape(grid.shape), near, np.repeat(size[..., None], self.dims, -1).reshape(grid.shape)

    def reference(self, values, tensor_cores=False):
        dx, dgrid, near, size = self.gradients(values)
        places = 0 if self.mode == "nearest" else self.place_error * 2 * self.dims
        many = self.unit * (math.prod(self.size) + 8)
        return {"dx": dx, "dgrid": dgrid}, {
            "dx": (places + many) * (near + np.abs(values["dy"]).max(initial=0)) + rounding_error(dx, self.dtype),
            "dgrid": (places * 2 + self.unit * (8 * self.shape[1] + 32)) * size * (self.mode == "bilinear")
            + rounding_error(dgrid, self.grid or self.dtype)}

    @property
    def gradient(self):
        return self._differences if math.prod(self.shape) <= 150 and math.prod(self.size) <= 20 else None

    def _differences(self, values):
        """d(sum of y * dy), by differences in float64, of the image and of the grid."""
        if self.mode == "nearest" or not math.prod(self.shape):
            return
        rng = np.random.default_rng(3)
        values = {**values, "grid": rng.uniform(-1.4, 1.4, values["grid"].shape)}
        dx, dgrid, _, _ = self.gradients(values)
        for name, analytic in (("x", dx), ("grid", dgrid)):
            v = rng.uniform(-1, 1, analytic.shape)
            step = 1e-7
            above, below = ({**values, name: values[name] + s * v} for s in (step, -step))
            change = self.sample(above["x"], above["grid"]) - self.sample(below["x"], below["grid"])
            numeric = (change * values["dy"]).sum() / (2 * step)
            yield np.asarray((analytic * v).sum()), np.asarray(numeric), np.asarray(1e-4 * (1 + np.abs(values["dy"]).sum()))


def sample_cases(kind):
    """The cases of a direction."""
    def case(name, shape, size, dtype="float32", **more):
        found.append(kind(f"{name}-{'x'.join(map(str, shape))}-{SHORT[dtype]}", shape, size, dtype, **more))

    found, dtypes = [], tuple(SHORT)
    ways = itertools.product(("bilinear", "nearest"), ("zeros", "border", "reflection"), (False, True))
    for k, (mode, padding, corners) in enumerate(ways):
        word, side = f"{mode}-{padding}" + "-corners" * corners, (5, 9) if corners else (4, 8)
        for j in range(2):
            case(f"{word}", (2, 3, *side), (5, 7), dtypes[(k + 2 * j) % 4], mode=mode, padding=padding, corners=corners)
    for k, dtype in enumerate(dtypes):
        case("odd", (1, 5, 7, 6), (4, 9), dtype, padding=("zeros", "border")[k % 2])
        case("volume", (1, 2, 3, 4, 3), (2, 3, 2), dtype, padding=("zeros", "border", "reflection")[k % 3])
        case("several-tiles", (1, 2, 20, 18), (18, 3), dtype, wide=1.0)
    case("volume-nearest", (1, 2, 2, 3, 4), (3, 2, 2), "float16", mode="nearest")
    case("one-pixel", (1, 15, 1, 1), (2, 1), padding="reflection", corners=True)
    case("many-channels", (1, 37, 4, 4), (3, 3), "bfloat16")
    case("outside", (1, 2, 4, 8), (4, 4), wide=2.0)
    case("far-outside", (1, 2, 4, 8), (4, 4), padding="border", wide=1000.0)
    case("far-outside-reflected", (1, 2, 4, 8), (4, 4), padding="reflection", wide=40.0)
    case("all-at-the-border", (1, 1, 5, 5), (16, 17), padding="border", wide=30.0)
    case("grid-of-float32", (2, 3, 4, 8), (3, 5), "bfloat16", grid="float32")
    case("no-images", (0, 3, 4, 4), (2, 2))
    case("no-channels", (2, 0, 4, 4), (2, 3))
    case("no-places", (2, 3, 4, 4), (0, 3))
    case("channels-last", (2, 8, 4, 8), (4, 4), "float16", layout={name: {"order": (0, 2, 3, 1)} for name in ("x", "y", "dx", "dy")})
    case("eight-channels", (2, 16, 4, 8), (5, 7), "bfloat16", padding="border")
    case("volume-eight-channels", (1, 16, 3, 4, 3), (2, 3, 4), "float16", padding="reflection")
    case("volume-last", (1, 8, 2, 3, 4), (3, 2, 2), "bfloat16", mode="nearest", layout={"x": {"order": (0, 2, 3, 4, 1)}})
    case("strided", (2, 3, 4, 8), (3, 4), layout={"x": {"step": 2}, "grid": {"step": 2, "gap": 1}, "y": {"gap": 2}, "dx": {"gap": 1},
                                                  "dgrid": {"step": 3}, "dy": {"gap": 2}})
    case("backwards", (1, 3, 4, 8), (3, 4),
         layout={"x": {"flip": (1, 3)}, "grid": {"flip": (1,)}, "y": {"flip": (2,)}, "dx": {"flip": (2,)}})
    case("one-image-many-times", (3, 2, 4, 4), (3, 4), layout={"x": {"expand": (0,)}})
    return found


def sample_large(kind):
    """Cases for a GPU; the reference is a matrix of places by pixels."""
    found = [kind(f"larger-{mode}-{padding}-{SHORT[dtype]}", (2, 19, 40, 37), (33, 50), dtype, mode=mode, padding=padding, wide=1.2)
             for dtype in SHORT for mode, padding in (("bilinear", "zeros"), ("bilinear", "reflection"), ("nearest", "border"))
             if mode == "bilinear" or dtype in ("float32", "float64")]
    return found + [kind(f"larger-volume-{SHORT[dtype]}", (2, 24, 9, 10, 11), (5, 8, 33), dtype, wide=1.2) for dtype in SHORT]


# ---- affine grids

@dataclass(frozen=True)
class _Affine(Case):
    """One call; `shape` is that of the images."""
    id: str
    shape: tuple
    dtype: str = "float32"
    corners: bool = False
    layout: dict = field(default_factory=dict, hash=False)
    exact = False

    @property
    def dims(self):
        return len(self.shape) - 2

    @property
    def unit(self):
        return ROUNDOFF["float64" if self.dtype == "float64" else "float32"]

    def laid(self, name):
        """Place of theta or the grid, or of the gradient of either."""
        n, d = self.shape[0], self.dims
        shape = (n, d, d + 1) if name.endswith("theta") else (n, *self.shape[2:], d)
        return {name: lay(shape, self.dtype, **self.layout.get(name.removeprefix("d"), {}))}

    def tensors(self):
        """Descriptors of the operand and the result."""
        from dnnkern.host.tensor import Tensor
        return [Tensor(p.shape, p.strides, p.dtype, p.alignment) for p in (*self.inputs().values(), *self.outputs().values())]

    def values(self, mode):
        rng, ((name, p),) = np.random.default_rng(list(self.id.encode())), self.inputs().items()
        value = rng.integers(-3, 4, p.shape).astype(float) if mode == "exact" else rng.standard_normal(p.shape) + 0.25
        return {name: coherent(rounded(value, self.dtype), p)}

    @property
    def bases(self):
        """(spatial..., dims + 1): x, y, (z,) 1 of each place."""
        lines = []
        for n in self.shape[2:]:
            i = np.arange(n)
            lines.append((2 * i / (n - 1) - 1 if n > 1 else 0.0 * i) if self.corners else (2 * i + 1) / max(n, 1) - 1)
        found = np.meshgrid(*lines, indexing="ij")[::-1]
        return np.stack((*found, np.ones(self.shape[2:])), -1)


class AffineForward(_Affine):
    """Places that an affine map gives."""
    op = "affine_grid_fwd"

    @property
    def work(self):
        return 30 * math.prod((self.shape[0], *self.shape[2:], self.dims))

    def inputs(self):
        return self.laid("theta")

    def outputs(self):
        return self.laid("grid")

    def problem(self):
        from dnnkern.transform.sample._grid_problem import make_affine
        theta, grid = self.tensors()
        return make_affine((theta,), grid, self.shape, self.corners, frozenset())

    def call(self, arrays, out=None, **tail):
        from dnnkern import affine_grid_fwd
        out = out[0] if isinstance(out, tuple) else out
        return affine_grid_fwd(arrays["theta"], self.shape, align_corners=self.corners, out=out, **tail)

    def reference(self, values, tensor_cores=False):
        grid = np.einsum("nkj,...j->n...k", values["theta"], self.bases)
        size = np.einsum("nkj,...j->n...k", np.abs(values["theta"]), np.ones(self.bases.shape))
        return {"grid": grid}, {"grid": 8 * self.unit * size + rounding_error(grid, self.dtype)}


class AffineBackward(_Affine):
    """The gradient by the map."""
    op = "affine_grid_bwd"

    @property
    def work(self):
        return 10 * math.prod((self.shape[0], *self.shape[2:], self.dims))

    def inputs(self):
        return self.laid("dgrid")

    def outputs(self):
        return self.laid("dtheta")

    def problem(self):
        from dnnkern.transform.sample._grid_problem import make_affine_gradient
        dgrid, dtheta = self.tensors()
        return make_affine_gradient((dgrid,), dtheta, self.corners, frozenset())

    def call(self, arrays, out=None, **tail):
        from dnnkern import affine_grid_bwd
        return affine_grid_bwd(arrays["dgrid"], align_corners=self.corners, out=out[0] if isinstance(out, tuple) else out, **tail)

    def _sums(self, dgrid, bases):
        n, d = self.shape[0], self.dims
        places = math.prod(self.shape[2:])
        return np.einsum("npk,pj->nkj", dgrid.reshape(n, places, d), bases.reshape(places, d + 1))

    def reference(self, values, tensor_cores=False):
        dtheta = self._sums(values["dgrid"], self.bases)
        size = self._sums(np.abs(values["dgrid"]), np.ones(self.bases.shape))
        many = min(math.prod(self.shape[2:]), 8 * math.prod(self.shape[2:]) ** 0.5 + 8) + 8
        return {"dtheta": dtheta}, {"dtheta": self.unit * many * size + rounding_error(dtheta, self.dtype)}

    def gradient(self, values):
        """The map is linear: the derivative along a direction is what the direction itself is mapped to."""
        if not math.prod(self.shape[2:]):
            return
        v = np.random.default_rng(3).standard_normal((self.shape[0], self.dims, self.dims + 1))
        numeric = (np.einsum("nkj,...j->n...k", v, self.bases) * values["dgrid"]).sum()
        yield np.asarray((self.reference(values)[0]["dtheta"] * v).sum()), np.asarray(numeric), np.asarray(1e-9 * (1 + np.abs(numeric)))


def affine_cases(kind):
    """The cases of a direction."""
    def case(name, shape, dtype="float32", **more):
        word = "-corners" * more.get("corners", False)
        found.append(kind(f"{name}-{'x'.join(map(str, shape))}{word}-{SHORT[dtype]}", shape, dtype, **more))

    found = []
    for dtype in SHORT:
        for corners in (False, True):
            case("images", (2, 3, 5, 7), dtype, corners=corners)
            case("volumes", (2, 1, 3, 2, 4), dtype, corners=corners)
    case("one-pixel", (3, 1, 1, 1), corners=True)
    case("a-line", (1, 1, 1, 40), "float16", corners=True)
    case("many-places", (1, 2, 33, 31))
    case("no-samples", (0, 1, 3, 4))
    case("no-places", (2, 1, 0, 4))
    case("strided", (2, 1, 4, 5), layout={"theta": {"step": 2, "gap": 1}, "grid": {"step": 3}})
    case("backwards", (2, 1, 4, 5), "bfloat16", layout={"theta": {"flip": (1,)}, "grid": {"flip": (1, 2)}})
    return found


def affine_large(kind):
    """Cases for a GPU."""
    return [kind(f"large-{SHORT[dtype]}", (5, 3, 300, 401), dtype) for dtype in SHORT]

"""What the cases of local response normalisation share."""
import math
from dataclasses import dataclass, field

import numpy as np

from . import ROUNDOFF, Case, coherent, lay, rounded, rounding_error
from ._softmax import SHORT


@dataclass(frozen=True)
class Lrn(Case):
    """One call; `places` are keywords of `lay` by array."""
    id: str
    shape: tuple
    dtype: str = "float32"
    layout: str = "NCHW"
    size: int = 5
    alpha: float = 0.5
    beta: float = 0.75
    k: float = 1.0
    places: dict = field(default_factory=dict, hash=False)
    exact = False

    @property
    def axis(self):
        return 1 if self.layout == "NCHW" else len(self.shape) - 1

    @property
    def work(self):
        return (40 + 8 * self.size * (1 if self.op == "lrn_fwd" else self.size)) * math.prod(self.shape)

    @property
    def trivial(self):
        return not math.prod(self.shape)

    def place(self, name):
        return lay(self.shape, self.dtype, **self.places.get(name, {}))

    def inputs(self):
        return {name: self.place(name) for name in self.names}

    def outputs(self):
        return {name: self.place(name) for name in self.results}

    def problem(self):
        from dnnkern.host.tensor import Tensor
        from dnnkern.norm import _lrn_problem

        def tensor(p):
            return Tensor(p.shape, p.strides, p.dtype, p.alignment)
        make = _lrn_problem.make_lrn_forward if self.op == "lrn_fwd" else _lrn_problem.make_lrn_backward
        (out,) = self.outputs().values()
        return make(tuple(map(tensor, self.inputs().values())), tensor(out), self.size, self.layout, frozenset())

    def call(self, arrays, out=None, **tail):
        import dnnkern
        return getattr(dnnkern, self.op)(*(arrays[name] for name in self.names), size=self.size, alpha=self.alpha, beta=self.beta, k=self.k,
                                         layout=self.layout, out=out, **tail)

    def values(self, mode):
        rng, found = np.random.default_rng(list(self.id.encode())), {}
        for name in self.names:
            place = self.place(name)
            if name == "y":
                v = self.power(found["x"], -self.beta) * found["x"] if mode == "float" else np.rint(found["x"] / 2)
            else:
                v = 2 * rng.standard_normal(self.shape) + 0.25 if place.size else np.zeros(self.shape)
            found[name] = coherent(rounded(np.rint(v) if mode == "exact" else v, place.dtype), place)
        return found

    # ---- definitions

    def window(self, v, before, behind):
        """Sums over channels from ``c - before`` to ``c + behind``."""
        moved = np.moveaxis(v, self.axis, 0)
        total = np.zeros_like(moved)
        for j in range(-before, behind + 1):
            low, high = max(0, -j), min(len(moved), len(moved) - j)
            if low < high:
                total[low:high] += moved[low + j:high + j]
        return np.moveaxis(total, 0, self.axis)

    def s(self, x):
        return self.k + self.alpha / self.size * self.window(x * x, self.size // 2, (self.size - 1) // 2)

    def power(self, x, exponent):
        return self.s(x) ** exponent

    def error(self, x):
        """Relative, of a power of s."""
        unit = ROUNDOFF["float64" if self.dtype == "float64" else "float32"]
        return unit * (16 + abs(self.beta) * (4 * (self.size + 4) + 4 * np.abs(np.log2(self.s(x)))))


class Forward(Lrn):
    """y."""
    op, names, results = "lrn_fwd", ("x",), ("y",)

    def reference(self, values, tensor_cores=False):
        x = values["x"]
        y = x * self.power(x, -self.beta)
        return {"y": y}, {"y": np.abs(y) * self.error(x) + rounding_error(y, self.dtype)}


class Backward(Lrn):
    """dx."""
    op, names, results = "lrn_bwd", ("dy", "x", "y"), ("dx",)

    def parts(self, values):
        """(the part by the own channel, that by the others' sums, their magnitudes)."""
        dy, x, y = values["dy"], values["x"], values["y"]
        factor = 2 * self.alpha * self.beta / self.size * x
        shares = dy * y / self.s(x)
        around = (self.size - 1) // 2, self.size // 2
        return dy * self.power(x, -self.beta), factor * self.window(shares, *around), np.abs(factor) * self.window(np.abs(shares), *around)

    def reference(self, values, tensor_cores=False):
        own, others, size = self.parts(values)
        dx = own - others
        error = (np.abs(own) + size) * self.window(self.error(values["x"]), self.size, self.size)
        return {"dx": dx}, {"dx": error + rounding_error(dx, self.dtype)}

    @property
    def gradient(self):
        return self.differences if 0 < math.prod(self.shape) <= 100 else None

    def differences(self, values):
        """d sum(y * dy), by differences in float64."""
        x, dy, step = np.random.default_rng(3).standard_normal(self.shape) + 0.3, values["dy"], 1e-5

        def loss():
            return (x * self.power(x, -self.beta) * dy).sum()
        own, others, _ = self.parts({"x": x, "dy": dy, "y": x * self.power(x, -self.beta)})
        numeric = np.zeros(self.shape)
        for at in np.ndindex(self.shape):
            x[at] += step
            high = loss()
            x[at] -= 2 * step
            numeric[at] = (high - loss()) / (2 * step)
            x[at] += step
        yield own - others, numeric, 2e-7 * (1 + np.abs(numeric))


def table(kind):
    """The cases of an operation; shapes are (N, C, spatial...) for every layout."""
    found = []

    def case(name, shape, dtype="float32", *, layout="NCHW", whole=None, **more):
        stored = shape if layout == "NCHW" else (shape[0], *shape[2:], shape[1])
        places = {n: whole for n in ("x", "y", "dy", "dx") if whole}
        found.append(kind(f"{name}-{'x'.join(map(str, shape))}-{SHORT[dtype]}", stored, dtype, layout, places=places, **more))
    for dtype in SHORT:
        case("planes", (2, 11, 4, 6), dtype)
        case("last", (2, 24, 3, 5), dtype, layout="NHWC")
        case("odd", (3, 7, 3, 5), dtype, size=3, beta=0.5)
        case("odd-last", (2, 21, 3, 3), dtype, layout="NHWC", k=2.0)
        case("misaligned", (2, 16, 3, 8), dtype, layout="NHWC", whole={"misaligned": 1})
    case("even", (2, 9, 4), "float32", size=4)
    case("even-last", (2, 24, 4), "bfloat16", layout="NHWC", size=6)
    case("one", (2, 9, 8), "float16", size=1)
    case("wide", (2, 6, 8), "float32", size=15)
    case("wide-last", (2, 32, 3), "bfloat16", layout="NHWC", size=9)
    case("one-channel", (3, 1, 8), "float32")
    case("matrix", (5, 24), "float32", beta=1.0)
    case("three-dimensions", (2, 8, 2, 3, 4), "float16")
    case("small-factor", (2, 16, 8), "float32", alpha=1e-4)
    case("large", (2, 16, 8), "float32", alpha=3e4, layout="NHWC")
    case("empty", (2, 0, 3), "float32")
    case("strided", (3, 6, 3, 4), "float32", whole={"step": 2})
    case("negative", (2, 6, 3, 4), "bfloat16", whole={"flip": (1, 3)})
    case("rows-apart", (2, 16, 4), "bfloat16", layout="NHWC", whole={"gap": 8})
    case("stored-last", (2, 8, 3, 4), "float32", whole={"order": (0, 2, 3, 1)})
    case("tiny", (2, 4, 3), "float64", size=3)
    case("tiny-even", (1, 6, 2), "float64", size=4, layout="NHWC")
    return found


def large(kind):
    """Cases for a GPU."""
    return [kind(f"{layout}-{'x'.join(map(str, shape))}-{SHORT[dtype]}", shape, dtype, layout)
            for dtype in SHORT for layout, shape in (("NCHW", (16, 96, 55, 55)), ("NHWC", (16, 55, 55, 96)), ("NHWC", (5, 27, 27, 250)))]

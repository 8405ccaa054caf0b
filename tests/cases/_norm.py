"""What the cases of layer and RMS normalisation share."""
import math
from dataclasses import dataclass, field, replace

import numpy as np

from dnnkern.host.products import FP8

from . import ROUNDOFF, Case, coherent, lay, rounded, rounding_error
from ._programs import PROGRAMS, Programmed
from ._softmax import OTHERS, SHORT


def normalised(x, axes, eps, layer):
    """(n, mean, rstd) in float64."""
    mean = x.mean(axes, keepdims=True) if layer else np.zeros([1 if a in axes else n for a, n in enumerate(x.shape)])
    rstd = 1 / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + eps)
    return (x - mean) * rstd, mean, rstd


@dataclass(frozen=True)
class Norm(Programmed, Case):
    """One call; layouts are keywords of `lay` by array. `missing` names the operands that are left out; `extra`: with what is optional, a
    residual and its sum, or dbeta of RMS normalisation; `dsummed`: with the gradient of such a sum; `to`: y's dtype, if not x's;
    `program`: one of `PROGRAMS`, of y."""
    id: str
    shape: tuple
    dtype: str = "float32"
    axis: int = -1
    weights: str | None = None
    missing: tuple = ()
    layout: dict = field(default_factory=dict, hash=False)
    around: float = 0.0
    eps: float = 1e-3
    extra: bool = False
    dsummed: bool = False
    to: str | None = None
    program: str | None = None
    layer = True
    exact = False
    optional = ()

    @property
    def names(self):
        """Of operands."""
        return tuple(n for n in self.operands if (self.extra or n not in self.optional) and (self.dsummed or n != "dsummed"))

    @property
    def results(self):
        """Names of outputs."""
        return self.written if self.extra else tuple(n for n in self.written if n not in self.optional)

    @property
    def start(self):
        return self.axis % len(self.shape)

    @property
    def axes(self):
        return tuple(range(self.start, len(self.shape)))

    @property
    def length(self):
        return math.prod(self.shape[self.start:])

    @property
    def rows(self):
        return math.prod(self.shape[:self.start])

    @property
    def wide(self):
        return "float64" if self.dtype == "float64" else "float32"

    @property
    def unit(self):
        return ROUNDOFF[self.wide]

    @property
    def work(self):
        return 12 * math.prod(self.shape)

    def place(self, name):
        """Where an array lies, None if it is left out."""
        if name in self.missing:
            return None
        shape, dtype = self.shape, self.dtype
        if name in ("gamma", "beta", "dgamma", "dbeta"):
            shape, dtype = self.shape[self.start:], self.weights or self.dtype
        elif name in ("mean", "rstd"):
            shape, dtype = self.shape[:self.start], self.wide
        elif name == "y":
            dtype = self.to or dtype
        return lay(shape, dtype, **self.layout.get(name, {}))

    def extra_places(self):
        """Of the program's operands."""
        shapes = {"scalar": (1,), "column": self.shape[self.start:], "matrix": self.shape,
                  "row": (*self.shape[:self.start], *(1,) * len(self.axes))}
        return self.lay_operands(shapes, self.layout)

    def inputs(self):
        return {name: self.place(name) for name in self.names} | self.extra_places()

    def outputs(self):
        return {name: self.place(name) for name in self.results} | self.lay_sides(self.layout)

    def problem(self):
        from dnnkern.host.tensor import Tensor
        from dnnkern.norm import _problem

        def tensor(p):
            return None if p is None else Tensor(p.shape, p.strides, p.dtype, p.alignment)
        make = f"make_{self.op.split('_')[0]}_{'forward' if self.op.endswith('fwd') else 'backward'}" + self.maker * self.extra
        results = [tensor(self.place(name)) for name in self.results]
        given = list(results)
        if self.to in FP8:  # of a program alone
            given[0] = replace(given[0], dtype=self.dtype)
        plain = getattr(_problem, make)(tuple(tensor(self.place(name)) for name in self.names), tuple(given), self.axis, frozenset())
        if not self.fused:
            return plain
        extras = {name: tensor(p) for name, p in self.extra_places().items()}
        sides = [tensor(p) for p in list(self.outputs().values())[len(self.results):]]
        program, extras = self.fused.problem_parts(self.wide, self.to or self.dtype, extras, sides, self.shape)
        return replace(plain, y=results[0], program=program, extras=extras)

    def call(self, arrays, out=None, **tail):
        import dnnkern
        if self.fused:
            return self.call_problem(arrays, out, (self.eps, *self.fused.numbers), tail)
        names = [name for name in self.names if name not in ("residual", "dsummed")]
        return getattr(dnnkern, self.op)(*(arrays[name] for name in names), axis=self.axis, out=out, **self.keywords(arrays), **tail)

    def values(self, mode):
        """Statistics that backward operations get are those of x."""
        rng = np.random.default_rng(list(self.id.encode()))
        places = {name: self.place(name) for name in ("dy", "x", "gamma", "beta", "residual", "dsummed") if name in self.names}
        found = {}
        for name, place in places.items():
            if place is not None:
                v = np.zeros(place.shape)
                if mode == "exact":
                    v = rng.integers(-4, 5, place.shape).astype(np.float64)
                elif v.size:
                    v = rng.standard_normal(place.shape) + {"x": self.around, "gamma": 1.0}.get(name, 0.25)
                found[name] = coherent(rounded(v, place.dtype), place)
        if self.fused:
            found |= (self.fused.exact_values if mode == "exact" else self.fused.float_values)(rng, self.extra_places())
        if "rstd" in self.names:
            _, mean, rstd = normalised(found["x"], self.axes, self.eps, self.layer)
            outer = self.shape[:self.start]
            if mode == "exact":
                mean, rstd = np.zeros(outer), np.ones(outer)
            found["rstd"] = rounded(rstd.reshape(outer), self.wide)
            if self.layer:
                found["mean"] = rounded(mean.reshape(outer), self.wide)
        return found

    def growth(self, n):
        """Bound of the relative error of a sum of n numbers to the sum of their magnitudes, in roundoffs."""
        return min(n, 8 * n ** 0.5 + 8)

    def spread(self, v):
        """Statistics along x's rows."""
        return v.reshape(self.shape[:self.start] + (1,) * len(self.axes))


class Forward(Norm):
    """y and the statistics."""
    optional, maker = ("residual", "summed"), "_residual"

    def keywords(self, arrays):
        return {"eps": self.eps} | ({"residual": arrays["residual"]} if self.extra else {})

    def reference(self, values, tensor_cores=False):
        """The sum of x and a residual, of which only the kernels' rounding is asked, is exact as far as halves go."""
        x, ones = values["x"], np.ones(self.shape[self.start:])
        if self.extra:
            total = x + values["residual"]
            x = rounded(total, self.dtype)
        if not x.size:
            zeros = {name: np.zeros(p.shape) for name, p in self.outputs().items()}
            return zeros, zeros
        gamma, beta = values.get("gamma", ones), values.get("beta", 0 * ones)
        n, mean, rstd = normalised(x, self.axes, self.eps, self.layer)
        y, u = n * gamma + beta, self.unit
        shift = u * (self.growth(self.length) + 2) * np.abs(x).mean(self.axes, keepdims=True) * self.layer
        scale = u * (self.growth(self.length) + 16) + (shift * rstd) ** 2 + 2 * shift * rstd * u
        if self.layer:
            scale = scale + 2 * u * np.abs(x).max(self.axes, keepdims=True) * rstd / self.length ** 0.5
        error = np.abs(gamma) * (shift * rstd + np.abs(n) * (scale + 4 * u) + u * np.abs(x) * rstd * self.layer) + 4 * u * np.abs(beta)
        outer = self.shape[:self.start]
        found = {"y": (y, error), "mean": (mean.reshape(outer), shift.reshape(outer)),
                 "rstd": (rstd.reshape(outer), (rstd * scale).reshape(outer))}
        if self.extra:
            found["summed"] = total, 0 * total
        found = {name: found[name] for name in self.results}
        if self.fused:
            found["y"], sides = self.fused.reference(*found["y"], values, self.unit)
            found |= {f"y{k}": side for k, side in enumerate(sides, 1)}
        dtypes = {name: place.dtype for name, place in self.outputs().items()}
        return ({name: v for name, (v, _) in found.items()},
                {name: e + rounding_error(v, dtypes[name]) for name, (v, e) in found.items()})


class Backward(Norm):
    """dx, and the sums over rows."""
    optional, maker = (), "_beta"

    def keywords(self, arrays):
        return ({"has_beta": True} if self.extra else {}) | ({"dsummed": arrays["dsummed"]} if self.dsummed else {})

    def gradients(self, values):
        """{name: (value, sum of magnitudes)}."""
        dy, x, outer = values["dy"], values["x"], tuple(range(self.start))
        gamma, rstd = values.get("gamma", np.ones(self.shape[self.start:])), self.spread(values["rstd"])
        mean = self.spread(values["mean"]) if self.layer else 0 * rstd
        n, g = (x - mean) * rstd, dy * gamma
        part = n * (g * n).mean(self.axes, keepdims=True)
        sizes = np.abs(n) * np.abs(g * n).mean(self.axes, keepdims=True) + np.abs(g)
        if self.layer:
            part = part + g.mean(self.axes, keepdims=True)
            sizes = sizes + np.abs(g).mean(self.axes, keepdims=True)
        added = values.get("dsummed", 0.0)
        found = {"dx": (rstd * (g - part) + added, rstd * sizes + np.abs(added)),
                 "dgamma": ((dy * n).sum(outer), np.abs(dy * n).sum(outer)),
                 "dbeta": (dy.sum(outer), np.abs(dy).sum(outer))}
        return {name: found[name] for name in self.results}

    def reference(self, values, tensor_cores=False):
        if not math.prod(self.shape):
            zeros = {name: np.zeros(p.shape) for name, p in self.outputs().items()}
            return zeros, zeros
        found = self.gradients(values)
        error = {"dx": self.unit * (self.growth(self.length) + 16), "dgamma": self.unit * (self.growth(self.rows) + 8),
                 "dbeta": self.unit * (self.growth(self.rows) + 8)}
        return ({name: v for name, (v, _) in found.items()},
                {name: error[name] * size + rounding_error(v, self.place(name).dtype) for name, (v, size) in found.items()})

    @property
    def trivial(self):
        return not math.prod(self.shape)

    @property
    def gradient(self):
        return self._differences if 0 < math.prod(self.shape) <= 40 else None

    def _differences(self, values):
        """d sum(y * dy), by differences in float64."""
        rng, dy, step = np.random.default_rng(3), values["dy"], 1e-5
        at = {"dx": rng.standard_normal(self.shape), "dgamma": rng.standard_normal(self.shape[self.start:])}
        at["dbeta"] = np.zeros(at["dgamma"].shape)

        def loss():
            y = normalised(at["dx"], self.axes, self.eps, self.layer)[0] * at["dgamma"] + at["dbeta"]
            return (y * dy).sum() + (at["dx"] * values.get("dsummed", 0.0)).sum()
        _, mean, rstd = normalised(at["dx"], self.axes, self.eps, self.layer)
        outer = self.shape[:self.start]
        given = {"dy": dy, "x": at["dx"], "gamma": at["dgamma"], "mean": mean.reshape(outer), "rstd": rstd.reshape(outer)}
        given |= {"dsummed": values["dsummed"]} if self.dsummed else {}
        analytic = self.gradients(given)
        for name in self.results:
            numeric = np.zeros(at[name].shape)
            for k in np.ndindex(numeric.shape):
                at[name][k] += step
                high = loss()
                at[name][k] -= 2 * step
                numeric[k] = (high - loss()) / (2 * step)
                at[name][k] += step
            yield analytic[name][0], numeric, 1e-7 * (1 + np.abs(numeric))


def table(kind):
    """The cases of an operation."""
    def case(name, shape, dtype="float32", **more):
        layout = more.pop("layout", {})
        if "all" in layout:
            layout = dict.fromkeys(("x", "dy", "y", "dx", "residual", "summed"), layout["all"]) | layout
        found.append(kind(f"{name}-{'x'.join(map(str, shape))}-{SHORT[dtype]}", shape, dtype, layout=layout, **more))

    found, backward = [], issubclass(kind, Backward)
    for dtype in SHORT:
        weights = "float32" if dtype.endswith("16") else None
        case("rows", (7, 32), dtype)
        case("odd", (3, 77), dtype, weights=weights)
        case("long", (2, 1031), dtype)
        case("two-dimensions", (5, 4, 24), dtype, axis=-2, weights=weights)
        case("misaligned", (4, 40), dtype, layout={name: {"misaligned": 1} for name in ("x", "dy", "y", "dx", "gamma", "dgamma")})
        if kind.optional:
            case("extra", (5, 72), dtype, weights=weights, extra=True)
    for dtype, to in OTHERS:
        case(f"weights-{SHORT[to]}", (5, 72), dtype, weights=to)
        case(f"weights-{SHORT[to]}-odd", (4, 77), dtype, weights=to)
    for n in (1, 2, 3, 5, 8, 17, 33, 64):
        case("edge", (3, n), "float32" if n % 2 else "bfloat16", eps=0.5)
    case("around-10000", (3, 96), around=1e4)
    case("no-gamma", (6, 20), missing=("gamma",) if backward else ("gamma", "beta"))
    if not backward:
        for dtype, to in OTHERS:
            case(f"to-{SHORT[to]}", (5, 72), dtype, to=to)
            case(f"to-{SHORT[to]}-odd", (4, 77), dtype, to=to, weights=to, extra=True)
            case(f"to-{SHORT[to]}-long", (2, 1031), dtype, to=to)
            case(f"to-{SHORT[to]}-strided", (6, 18), dtype, to=to, layout={"y": {"step": 3, "gap": 1}})
        case("to-f32-misaligned", (5, 48), "bfloat16", to="float32", layout={"y": {"misaligned": 1}})
        case("to-f32-apart", (5, 48), "float16", to="float32", layout={"all": {"gap": 1}})
        for program in PROGRAMS:
            case(f"program-{program}", (7, 40), "bfloat16", weights="float32", program=program)
            case(f"program-{program}-odd", (4, 77), program=program)
        case("program-chain-long", (2, 1031), "float16", program="chain")
        case("program-chain-to-f32", (6, 72), "bfloat16", to="float32", program="chain", extra=True)
        for k, dtype in enumerate(("bfloat16", "float32")):
            for to in ("float8_e4m3fn", "float8_e5m2")[:2 - k]:
                case(f"program-two-inputs-to-{to[7:]}", (6, 72), dtype, to=to, program="two-inputs")
                case(f"program-two-inputs-to-{to[7:]}-odd", (4, 77), dtype, to=to, program="two-inputs")
        case("program-two-inputs-to-e4m3fn-long", (2, 1031), "float16", to="float8_e4m3fn", program="two-inputs")
        case("program-two-inputs", (5, 36), "float64", program="two-inputs")
        case("program-chain-two-dimensions", (3, 4, 24), axis=-2, program="chain")
        case("program-chain-apart", (5, 48), "float16", program="chain",
             layout={"x1": {"gap": 3}, "y1": {"order": (1, 0)}, "x0": {"step": 2}})
        case("program-two-inputs-outer", (2, 3, 24), "bfloat16", program="two-inputs", layout={"x1": {"order": (1, 0, 2)}})
        case("program-chain-outer-odd", (2, 2, 37), program="chain", layout={"x1": {"order": (1, 0, 2)}, "y1": {"order": (1, 0, 2)}})
        case("no-beta", (6, 20), "bfloat16", missing=("beta",))
        case("beta-alone", (6, 20), "float16", missing=("gamma",))
    if kind.optional:
        case("extra-odd", (5, 77), "bfloat16", extra=True)
        case("extra-long", (2, 1031), extra=True, around=0 if backward else 100)
        case("extra-strided", (6, 18), "float16", extra=True, layout={"x": {"step": 2}, "residual": {"flip": (1,)}, "summed": {"gap": 3},
                                                                      "dy": {"gap": 3}, "dbeta": {"step": 2}})
        case("extra-apart", (5, 48), "bfloat16", extra=True, layout={"all": {"gap": 3}})
        case("extra-misaligned", (5, 48), extra=True, layout={"residual": {"misaligned": 1}, "dbeta": {"misaligned": 1}})
    if backward:
        for dtype in SHORT:
            case("dsummed", (5, 72), dtype, dsummed=True, weights="float32" if dtype == "float16" else None)
            case("dsummed-odd", (6, 77), dtype, dsummed=True)
        case("dsummed-tiny", (3, 7), "float64", dsummed=True)
        case("dsummed-long", (3, 2063), "float32", dsummed=True)
        case("dsummed-long", (2, 4128), "bfloat16", dsummed=True)
        case("dsummed-strided", (6, 18), "float16", dsummed=True, layout={"dsummed": {"step": 2, "flip": (0,)}, "x": {"gap": 2}})
        case("dsummed-misaligned", (5, 48), "bfloat16", dsummed=True, layout={"dsummed": {"misaligned": 1}})
        case("dsummed-broadcast", (4, 3, 16), axis=1, dsummed=True, missing=("gamma",), layout={"dsummed": {"expand": (0,)}})
        case("dsummed-many-rows", (70, 24), "bfloat16", dsummed=True)
    case("vector", (130,), "float16")
    case("many-rows", (70, 4), "bfloat16")
    case("empty", (0, 5))
    case("all-dimensions", (2, 3, 5), axis=0)
    case("strided", (6, 18), layout={"x": {"step": 2}, "dy": {"step": 2}, "y": {"step": 3, "gap": 1}, "dx": {"gap": 2},
                                     "gamma": {"step": 2}, "beta": {"step": 3}, "dgamma": {"step": 2}, "mean": {"step": 2},
                                     "rstd": {"step": 3}})
    case("rows-apart", (5, 48), "bfloat16", layout={"all": {"gap": 8}})
    case("rows-apart-odd", (5, 48), "float16", layout={"all": {"gap": 1}})
    case("stored-transposed", (4, 3, 8), axis=1, layout={"all": {"order": (2, 0, 1)}, "gamma": {"order": (1, 0)}})
    case("negative", (6, 24), layout={"x": {"flip": (0, 1)}, "dy": {"flip": (1,)}, "y": {"flip": (0,)}, "gamma": {"flip": (0,)}})
    case("broadcast-rows", (4, 24), layout={"x": {"expand": (0,)}, "dy": {"expand": (0,)}})
    case("broadcast-gamma", (5, 3, 8), axis=1, layout={"gamma": {"expand": (0,)}})
    return found


def large(kind):
    """Cases for a GPU."""
    return [kind(f"{'x'.join(map(str, shape))}-{SHORT[dtype]}", shape, dtype) for dtype in SHORT
            for shape in ((1025, 1000), (513, 4096), (65, 12288), (9, 65536), (70001, 48))]

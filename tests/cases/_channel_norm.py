"""What the cases of batch, group and instance normalisation share."""
import math
from dataclasses import dataclass, field, replace

import numpy as np
from activations import ACTIVATIONS, SLOPES

from . import ROUNDOFF, Case, coherent, lay, rounded, rounding_error
from ._programs import PROGRAMS, Programmed
from ._softmax import OTHERS, SHORT

BY_RESULT = {None: 1.0, "relu": 0.0, "leaky_relu": 0.01}
"""Activations whose gradient follows from y, and their slopes below 0."""


@dataclass(frozen=True)
class ChannelNorm(Programmed, Case):
    """One call; layouts are keywords of `lay` by array. `missing` names operands that are left out, `dresidual` too; `to`: dtype
    of a result y, if not x's; `program`: one of `PROGRAMS`, of y, whose rows are images and pixels, its columns channels."""
    id: str
    shape: tuple
    dtype: str = "float32"
    layout: str = "NCHW"
    mode: str = "spatial"
    groups: int | None = None
    weights: str | None = None
    missing: tuple = ()
    places: dict = field(default_factory=dict, hash=False)
    activation: str | None = None
    around: float = 0.0
    eps: float = 1e-3
    momentum: float = 0.25
    instance: bool = False
    to: str | None = None
    frozen: bool = False
    program: str | None = None
    exact = False

    @property
    def wide(self):
        return "float64" if self.dtype == "float64" else "float32"

    @property
    def unit(self):
        return ROUNDOFF[self.wide]

    @property
    def channel(self):
        return 1 if self.layout == "NCHW" else len(self.shape) - 1

    @property
    def channels(self):
        return self.shape[self.channel]

    @property
    def axes(self):
        """What a mean is of, among (n, g, c, s)."""
        return (2, 3) if self.groups else (0,) if self.mode == "per_activation" else (0, 3)

    @property
    def weight_axes(self):
        """What a weight is of."""
        return (0,) if self.mode == "per_activation" else (0, 3)

    @property
    def length(self):
        return math.prod(self.canon(np.empty(self.shape)).shape[a] for a in self.axes)

    @property
    def work(self):
        return 16 * math.prod(self.shape)

    @property
    def size(self):
        return math.prod(self.shape)

    @property
    def trivial(self):
        return not self.size or self.length == 1  # one value is its own mean

    def nothing(self):
        """The reference of arrays without elements."""
        zeros = {name: np.zeros(p.shape) for name, p in self.outputs().items()}
        return zeros, zeros

    # ---- arrays as (n, g, c, s)

    def canon(self, v, kind="whole"):
        """An array as (n, g, c, s), those of size 1 that it has not."""
        groups = self.groups or self.channels
        if kind == "whole" or self.mode == "per_activation":
            v = np.moveaxis(v if kind == "whole" else v[None], self.channel, 1)
            return v.reshape(v.shape[0], groups, self.channels // max(groups, 1), -1 if v.size else math.prod(v.shape[2:]))
        if kind == "statistic" and self.groups:
            return v[:, :, None, None]
        return v.reshape(1, groups, -1 if v.size else 1, 1)

    def plain(self, v, kind="whole"):
        """The way back."""
        shape = self.place_shape(kind)
        if kind == "whole" or self.mode == "per_activation":
            shape = shape if kind == "whole" else (1, *shape)
            moved = (shape[0], shape[self.channel], *(n for k, n in enumerate(shape) if k not in (0, self.channel)))
            v = np.moveaxis(v.reshape(moved), 1, self.channel)
            return v if kind == "whole" else v[0]
        return v.reshape(shape)

    def place_shape(self, kind):
        if kind == "whole":
            return self.shape
        if kind == "statistic" and self.groups:
            return self.shape[0], self.groups
        return self.shape[1:] if self.mode == "per_activation" else (self.channels,)

    def kind(self, name):
        if name in ("x", "y", "dy", "dx", "residual", "dresidual"):
            return "whole"
        return "weight" if name in ("gamma", "beta", "dgamma", "dbeta") else "statistic"

    def place(self, name):
        """Where an array lies, None if it is left out."""
        name = name.removeprefix("next_")
        if name in self.missing:
            return None
        dtype = self.dtype if self.kind(name) == "whole" else self.weights or self.dtype
        if name == "rstd" or name == "mean" and "var" not in self.names:
            dtype = self.wide
        if name == "y" and "y" in self.results:
            dtype = self.to or dtype
        return lay(self.place_shape(self.kind(name)), dtype, **self.places.get(name, {}))

    def extra_places(self):
        """Of the program's operands."""
        shapes = {"scalar": (1,), "matrix": self.shape, "column": [n if k == self.channel else 1 for k, n in enumerate(self.shape)],
                  "row": [1 if k == self.channel else n for k, n in enumerate(self.shape)]}
        return self.lay_operands(shapes, self.places)

    def side_places(self):
        """Of what the program stores."""
        return self.lay_sides(self.places)

    def inputs(self):
        return {name: self.place(name) for name in self.names} | self.extra_places()

    def outputs(self):
        there = {name: p for name in (*self.results, *self.in_place()) if (p := self.place(name)) is not None}
        moved = {name: there.pop(name) for name in self.in_place()}
        return there | self.side_places() | moved

    def in_place(self):
        names = [name for name in self.names if name.startswith("running") and name not in self.missing]
        return {f"next_{name}": name for name in names}

    def problem(self):
        from dnnkern.host.tensor import Tensor

        def tensor(p):
            return None if p is None else Tensor(p.shape, p.strides, p.dtype, p.alignment)
        outs = tuple(tensor(p) for name, p in self.outputs().items() if name in self.results)
        plain = self.make(tuple(tensor(self.place(name)) for name in self.names), outs)
        if not self.fused:
            return plain
        extras = {name: tensor(p) for name, p in self.extra_places().items()}
        sides = list(map(tensor, self.side_places().values()))
        program, extras = self.fused.problem_parts(self.wide, self.to or self.dtype, extras, sides, self.shape)
        return replace(plain, program=program, extras=extras)

    def call_fused(self, arrays, out, tail):
        """Run the problem with its program as what makes such problems does."""
        from dnnkern.registry import operation_of
        if isinstance(out, tuple):
            out = out[:len(out) - len(self.in_place())]
        scalars = [getattr(self, name) for name in operation_of(self.op).scalars]
        return self.call_problem(arrays, out, (*scalars, *self.fused.numbers), tail)

    def values(self, mode):
        """Statistics and y that backward operations get are those of x."""
        rng = np.random.default_rng(list(self.id.encode()))
        found = {}
        for name in self.names:
            place = self.place(name)
            if place is not None and name not in ("y", "rstd") and not (name == "mean" and "rstd" in self.names):
                v = rng.standard_normal(place.shape) if place.size else np.zeros(place.shape)
                v = v + {"x": self.around, "mean": self.around, "gamma": 1.0}.get(name, 0.25)
                if mode == "exact":
                    v = np.rint(2 * v)
                if name.endswith("var"):
                    v = (mode != "exact") / 2 + v * v
                found[name] = coherent(rounded(v, place.dtype), place)
        if "rstd" in self.names:
            x = self.canon(found["x"])
            mean, rstd = self.statistics(x)
            if mode == "exact":
                mean, rstd = 0 * mean, 0 * rstd + 1
            z = (x - mean) * rstd
            found["mean"], found["rstd"] = (rounded(self.plain(v, "statistic"), self.wide) for v in (mean, rstd))
            if "y" not in self.missing:
                if "gamma" in found:
                    z = z * self.canon(found["gamma"], "weight")
                y = self.plain(np.rint(self.activated(z)) if mode == "exact" else self.activated(z + 0.1))
                found["y"] = coherent(rounded(y, self.dtype), self.place("y"))
        if self.fused:
            found |= (self.fused.exact_values if mode == "exact" else self.fused.float_values)(rng, self.extra_places())
        return found

    # ---- definitions

    def statistics(self, x):
        """(mean, rstd)."""
        if not x.size:
            shape = [1 if a in self.axes else n for a, n in enumerate(x.shape)]
            return np.zeros(shape), np.zeros(shape)
        mean = x.mean(self.axes, keepdims=True)
        return mean, 1 / np.sqrt(((x - mean) ** 2).mean(self.axes, keepdims=True) + self.eps)

    def activated(self, z):
        return ACTIVATIONS[self.activation or "identity"][0](z)

    def steepest(self):
        """The largest slope of the activation."""
        return ACTIVATIONS[self.activation or "identity"][1]

    def rounding(self, z):
        """What computing the activation at z, or its slope, may be off by."""
        return 0.0 if self.activation in BY_RESULT else 32 * self.unit * (1 + np.abs(z))

    def given_gradient(self, values):
        """dy past the program, and its error."""
        if not self.fused:
            return self.canon(values["dy"]), 0.0
        (dy, error), _ = self.fused.reference(values["dy"], self.unit * np.abs(values["dy"]), values, self.unit)
        return self.canon(dy), self.canon(np.broadcast_to(error, self.shape))

    def past(self, values, x, mean, rstd, gamma):
        """dy past the program and the activation, and its error: the activation's argument is computed anew where its slope does not
        follow from y."""
        (dy, given), u = self.given_gradient(values), self.unit
        if self.activation in BY_RESULT:
            slope = 1.0 if self.activation is None else np.where(self.canon(values["y"]) > 0, 1.0, BY_RESULT[self.activation])
            return dy * slope, 0.0 * dy + given
        z = (x - mean) * rstd * gamma + self.given(values, "beta", 0.0)
        error = 8 * u * (np.abs(gamma) * rstd * (np.abs(x) + np.abs(mean)) + np.abs(z))  # slopes change by less than two over a unit
        return dy * SLOPES[self.activation](z), np.abs(dy) * (2 * error + self.rounding(z)) + 2 * given

    def growth(self, n):
        """Bound of the relative error of a sum of n numbers to the sum of their magnitudes, in roundoffs."""
        return min(n, 8 * n ** 0.5 + 8)

    def given(self, values, name, default):
        """An operand as (n, g, c, s)."""
        return self.canon(values[name], self.kind(name)) if name in values else default

    def bounded(self, found, values=None):
        """`found` {name: (value, error)} as a reference and its bounds, rounded to what the outputs hold; y past the program, whose
        operands are in `values`."""
        found = {name: pair for name, pair in found.items() if name in self.outputs()}
        kinds = {name: self.kind(name.removeprefix("next_")) for name in found}
        one = {name: self.plain(np.broadcast_to(v, self._full(kinds[name])), kinds[name]) for name, (v, _) in found.items()}
        two = {name: self.plain(np.broadcast_to(e, self._full(kinds[name])), kinds[name]) for name, (_, e) in found.items()}
        if self.fused and "y" in one:
            (one["y"], two["y"]), sides = self.fused.reference(one["y"], two["y"], values, self.unit)
            for k, side in enumerate(sides, 1):
                one[f"y{k}"], two[f"y{k}"] = side
        return one, {name: e + rounding_error(one[name], self.outputs()[name].dtype) for name, e in two.items()}

    def _full(self, kind):
        return self.canon(np.empty(self.place_shape(kind)), kind).shape

    def error_of(self, x, mean, rstd):
        """(of the mean, relative one of rstd)."""
        u = self.unit
        shift = u * (self.growth(self.length) + 2) * np.abs(x).mean(self.axes, keepdims=True)
        scale = u * (self.growth(self.length) + 16) + (shift * rstd) ** 2 + 2 * shift * rstd * u
        return shift, scale + 2 * u * np.abs(x).max(self.axes, keepdims=True) * rstd / self.length ** 0.5

    def forward(self, values):
        """{name: (value, bound)} of y, the statistics, and what runs along."""
        x, u = self.canon(values["x"]), self.unit
        gamma, beta = self.given(values, "gamma", 1.0), self.given(values, "beta", 0.0)
        residual = self.given(values, "residual", 0.0)
        mean, rstd = self.statistics(x)
        shift, scale = self.error_of(x, mean, rstd)
        return {"y": self.result(x, mean, rstd, gamma, beta, residual, shift, scale), "mean": (mean, shift), "rstd": (rstd, rstd * scale),
                **self.running(values, x, mean, rstd, shift, scale, u)}

    def result(self, x, mean, rstd, gamma, beta, residual, shift, scale):
        u, n = self.unit, (x - mean) * rstd
        error = np.abs(gamma) * (shift * rstd + np.abs(n) * (scale + 4 * u) + u * (np.abs(x) + np.abs(mean)) * rstd)
        error = error + 4 * u * (np.abs(beta) + np.abs(residual) + np.abs(n * gamma))
        z = n * gamma + beta + residual
        return self.activated(z), self.steepest() * error + self.rounding(z)

    def running(self, values, x, mean, rstd, shift, scale, u):
        if not self.in_place():
            return {}
        var = x.var(self.axes, keepdims=True) * self.length / max(1, self.length - 1)
        found, p = {}, self.momentum
        for name, now, error in (("running_mean", mean, shift), ("running_var", var, 4 * scale * (var + self.eps))):
            if name in values:
                old = self.canon(values[name], "statistic")
                found[f"next_{name}"] = (1 - p) * old + p * now, p * error + 8 * u * (np.abs(old) + np.abs(now))
        return found

    def gradients(self, values):
        """{name: (value, sum of magnitudes, the same of errors of the activation's slope)}."""
        x, gamma = self.canon(values["x"]), self.given(values, "gamma", 1.0)
        mean, rstd = self.canon(values["mean"], "statistic"), self.canon(values["rstd"], "statistic")
        dz, error = self.past(values, x, mean, rstd, gamma)
        n, g = (x - mean) * rstd, dz * gamma

        def average(v):
            return v.mean(self.axes, keepdims=True)

        def magnitudes(dz):
            g = np.abs(dz * gamma)
            return {"dx": rstd * (g + average(g) + np.abs(n) * average(np.abs(g * n))),
                    "dgamma": np.abs(dz * n).sum(self.weight_axes, keepdims=True),
                    "dbeta": np.abs(dz).sum(self.weight_axes, keepdims=True), "dresidual": np.abs(dz)}
        found = {"dx": rstd * (g - average(g) - n * average(g * n)), "dgamma": (dz * n).sum(self.weight_axes, keepdims=True),
                 "dbeta": dz.sum(self.weight_axes, keepdims=True), "dresidual": dz}
        if self.frozen:
            found["dx"] = rstd * g
        sizes, errors = magnitudes(dz), magnitudes(error)
        return {name: (v, sizes[name], errors[name]) for name, v in found.items()}

    def backward(self, values):
        """{name: (value, bound)}."""
        rows = math.prod(self.canon(np.empty(self.shape)).shape[a] for a in self.weight_axes)
        units = {"dx": self.growth(self.length) + 16, "dgamma": self.growth(rows) + 8, "dbeta": self.growth(rows) + 8, "dresidual": 2}
        return {name: (v, self.unit * units[name] * size + error) for name, (v, size, error) in self.gradients(values).items()}

    def differences(self, values):
        """d sum(y * dy), by differences in float64, of the dy that a program leaves."""
        rng, dy, step = np.random.default_rng(3), self.given_gradient(values)[0], 1e-5
        at = {name: rng.standard_normal(self.place_shape(kind)) + 0.3 for name, kind in (
            ("dx", "whole"), ("dgamma", "weight"), ("dbeta", "weight"), ("dresidual", "whole"))}
        if "gamma" in self.missing:
            at["dgamma"] = np.ones_like(at["dgamma"])
        if self.activation not in BY_RESULT and "beta" in self.missing:
            at["dbeta"] = np.zeros_like(at["dbeta"])
        if self.activation not in BY_RESULT:  # what is recomputed has no residual
            at["dresidual"] = np.zeros_like(at["dresidual"])

        constants = self.statistics(self.canon(at["dx"].copy()))

        def forward():
            x = self.canon(at["dx"])
            mean, rstd = constants if self.frozen else self.statistics(x)
            z = (x - mean) * rstd * self.canon(at["dgamma"], "weight") + self.canon(at["dbeta"], "weight") + self.canon(at["dresidual"])
            return self.activated(z), mean, rstd
        y, mean, rstd = forward()
        given = {**values, "x": at["dx"], "gamma": at["dgamma"], "mean": self.plain(mean, "statistic"),
                 "rstd": self.plain(rstd, "statistic"), "y": self.plain(y), "beta": at["dbeta"]}
        analytic = self.gradients(given)
        for name in self.results:
            if name in self.missing:
                continue
            numeric = np.zeros(at[name].shape)
            for k in np.ndindex(numeric.shape):
                at[name][k] += step
                high = (forward()[0] * dy).sum()
                at[name][k] -= 2 * step
                numeric[k] = (high - (forward()[0] * dy).sum()) / (2 * step)
                at[name][k] += step
            yield self.plain(analytic[name][0], self.kind(name)), numeric, 2e-7 * (1 + np.abs(numeric))


def table(case):
    """Calls ``case(name, shape, dtype, **keywords)`` for what every operation is tried on; shapes are (N, C, spatial...) for every
    layout."""
    for dtype in SHORT:
        weights = "float32" if dtype.endswith("16") else None
        case("planes", (2, 4, 4, 6), dtype, activation="relu", residual=True)
        case("last", (3, 16, 3, 5), dtype, layout="NHWC", weights=weights, activation="relu", residual=True)
        case("odd", (3, 6, 5, 7), dtype, weights=weights)
        case("odd-last", (2, 22, 5, 7), dtype, layout="NHWC")
        case("misaligned", (2, 8, 3, 8), dtype, layout="NHWC", whole={"misaligned": 1})
    case("one-dimension", (3, 4, 9), "bfloat16", activation="leaky_relu")
    case("three-dimensions", (2, 6, 2, 3, 4), "float16", layout="NHWC", activation="relu")
    case("long", (2, 2, 1031), "float32")
    case("long-last", (2, 8, 517), "bfloat16", layout="NHWC")
    case("wide-last", (2, 264, 6), "float16", layout="NHWC", weights="float32")
    case("one-pixel", (19, 12, 1, 1), "float32", activation="relu")
    case("one-image", (1, 4, 8, 8), "bfloat16", residual=True)
    case("around-10000", (4, 4, 5, 6), "float32", around=1e4)
    case("around-10000-last", (4, 4, 5, 6), "float32", layout="NHWC", around=1e4)
    case("no-weights", (3, 4, 4, 4), "float32", missing=("gamma", "beta"))
    case("no-weights-last", (3, 8, 4, 4), "bfloat16", layout="NHWC", missing=("gamma",), activation="relu")
    case("many-channels", (2, 70, 3, 3), "float16")
    case("images-apart", (3, 4, 3, 8), "bfloat16", whole={"flip": (0,)})
    case("rows-apart", (3, 4, 3, 6), "float32", whole={"gap": 2})
    case("pixels-apart", (2, 8, 3, 4), "float16", layout="NHWC", whole={"gap": 8}, activation="relu", residual=True)
    case("pixels-apart-odd", (2, 8, 3, 4), "float16", layout="NHWC", whole={"gap": 1})
    case("stored-last", (2, 6, 3, 4), "float32", whole={"order": (0, 2, 3, 1)}, activation="relu")
    case("stored-first", (2, 6, 3, 4), "float32", layout="NHWC", whole={"order": (0, 3, 1, 2)})
    case("strided", (3, 4, 3, 4), "float32", whole={"step": 2}, weight={"step": 2})
    case("negative", (2, 4, 3, 4), "float32", whole={"flip": (1, 3)}, weight={"flip": (0,)})
    for k, dtype in enumerate(SHORT):
        weights, (one, other) = "float32" if dtype == "bfloat16" else None, (("swish", "gelu"), ("mish", "swish"))[k % 2]
        case("recomputed", (2, 4, 4, 6), dtype, activation=one, weights=weights)
        case("recomputed-odd", (3, 6, 5, 7), dtype, activation=other)
        case("recomputed-last", (3, 16, 3, 5), dtype, layout="NHWC", activation=other, weights=weights)
        case("recomputed-odd-last", (2, 6, 5, 7), dtype, layout="NHWC", activation=one)
    case("recomputed-around-10000", (2, 4, 5, 6), "float32", activation="gelu_tanh", around=1e4)
    case("recomputed-no-weights", (3, 4, 4, 4), "float32", missing=("gamma", "beta"), activation="swish")
    case("recomputed-no-gamma-last", (3, 8, 4, 4), "bfloat16", layout="NHWC", missing=("gamma",), activation="tanh")
    case("recomputed-strided", (3, 4, 3, 4), "float32", whole={"step": 2}, weight={"step": 2}, activation="softplus")
    for n in (1, 7, 8, 9, 31, 33, 64):
        case("edge", (2, n, 3), "bfloat16" if n % 2 else "float32", layout="NHWC")
        case("edge-first", (2, 3, n), "bfloat16" if n % 2 else "float32")


def results(case):
    """The same with results of other dtypes than x's."""
    for dtype, to in OTHERS:
        case(f"to-{SHORT[to]}", (2, 4, 4, 6), dtype, to=to, activation="relu", residual=True)
        case(f"to-{SHORT[to]}-last", (3, 16, 3, 5), dtype, to=to, layout="NHWC", weights=to, activation="relu", residual=True)
        case(f"to-{SHORT[to]}-odd", (3, 6, 5, 7), dtype, to=to)
        case(f"to-{SHORT[to]}-odd-last", (2, 22, 5, 7), dtype, to=to, layout="NHWC", activation="swish")
        case(f"to-{SHORT[to]}-strided", (3, 4, 3, 4), dtype, to=to, places={"y": {"step": 2}})
    case("to-f32-long", (1, 2, 1031), "bfloat16", to="float32")
    case("to-f32-misaligned", (2, 8, 3, 8), "float16", to="float32", layout="NHWC", places={"y": {"misaligned": 1}})


def programs(case):
    """The same with programs; operands and side outputs are "x0" and so on, "y1"."""
    for program in PROGRAMS:
        case(f"program-{program}", (2, 4, 4, 6), "bfloat16", weights="float32", program=program)
        case(f"program-{program}-last", (3, 16, 3, 5), "float32", layout="NHWC", program=program)
        case(f"program-{program}-odd", (3, 6, 5, 7), "float32", program=program)
        case(f"program-{program}-odd-last", (2, 22, 7), "float16", layout="NHWC", program=program)
        case(f"program-{program}-one-dimension", (2, 3, 40), "float16", program=program)
    case("program-chain-after", (2, 4, 4, 6), "float16", activation="relu", residual=True, program="chain")
    case("program-chain-after-last", (3, 16, 3, 5), "bfloat16", layout="NHWC", activation="relu", residual=True, program="chain")
    case("program-chain-to-f32", (2, 4, 4, 6), "bfloat16", to="float32", program="chain")
    case("program-chain-to-f32-last", (3, 16, 3, 5), "float16", to="float32", layout="NHWC", program="chain", activation="swish")
    case("program-chain-long", (2, 2, 1031), "bfloat16", program="chain")
    case("program-chain-long-last", (2, 8, 517), "float16", layout="NHWC", program="chain")
    case("program-two-inputs", (3, 4, 5, 6), "float64", program="two-inputs")
    case("program-chain-last", (2, 6, 3, 4), "float64", layout="NHWC", program="chain")
    case("program-two-inputs-missing", (3, 8, 4, 4), "float32", missing=("gamma", "beta"), program="two-inputs")
    case("program-chain-apart", (3, 8, 3, 4), "float32", program="chain",
         places={"x1": {"gap": 3}, "y1": {"order": (0, 2, 3, 1)}, "x0": {"step": 2}})
    case("program-chain-apart-last", (3, 8, 3, 4), "bfloat16", layout="NHWC", program="chain",
         places={"x1": {"order": (0, 3, 1, 2)}, "y1": {"gap": 1}})
    case("program-two-inputs-images", (3, 4, 3, 8), "float16", program="two-inputs", places={"x0": {"expand": (0,)}})
    case("program-two-inputs-image-means", (3, 4, 3, 8), "float16", program="two-inputs", places={"x0": {"expand": (2, 3)}})


def prologues(case):
    """Programs of dy."""
    for program in ("bias-gelu", "two-inputs", "masked"):
        case(f"program-{program}", (2, 4, 4, 6), "bfloat16", weights="float32", program=program)
        case(f"program-{program}-last", (3, 16, 3, 5), "float16", layout="NHWC", program=program, residual=True)
        case(f"program-{program}-odd", (3, 6, 5, 7), "float32", program=program, residual=True)
        case(f"program-{program}-odd-last", (2, 22, 7), "float16", layout="NHWC", program=program, activation="relu")
    case("program-masked-swish", (2, 4, 4, 6), "float16", activation="swish", program="masked")
    case("program-masked-swish-last", (3, 16, 3, 5), "bfloat16", layout="NHWC", activation="swish", program="masked")
    case("program-two-inputs", (3, 4, 5, 6), "float64", program="two-inputs")
    case("program-masked-apart", (3, 8, 3, 4), "float32", program="masked", places={"x0": {"gap": 3}})
    case("program-masked-apart-last", (3, 8, 3, 4), "bfloat16", layout="NHWC", program="masked", places={"x0": {"order": (0, 3, 1, 2)}})
    case("program-two-inputs-images", (3, 4, 3, 8), "float16", program="two-inputs", places={"x0": {"expand": (0,)}})


WHOLES = ("x", "y", "dy", "dx", "residual", "dresidual")
WEIGHTS = ("gamma", "beta", "dgamma", "dbeta", "mean", "rstd", "var", "running_mean", "running_var")


def cases_of(kind, optional, common=True, **always):
    """(cases of an operation, what adds one): `kind` is a subclass of `ChannelNorm`, `optional` the operands and results it may lack;
    `common`: those of `table` are there already."""
    found = []

    def case(name, shape, dtype="float32", *, layout="NCHW", residual=False, running=True, missing=(), whole=None, weight=None, places=None,
             **more):
        there = {"residual": residual, "dresidual": residual, "running_mean": running, "running_var": running}
        if "dy" in kind.names:
            activation = more.get("activation")
            there.update(y=activation is not None and activation in BY_RESULT, beta=activation not in BY_RESULT)
        there.update(dict.fromkeys(missing, False))
        gone = tuple(n for n in optional if not there.get(n, True))
        places = {**{n: whole for n in WHOLES if whole}, **{n: weight for n in WEIGHTS if weight}, **(places or {})}
        stored = shape if layout == "NCHW" else (shape[0], *shape[2:], shape[1])
        found.append(kind(f"{name}-{'x'.join(map(str, shape))}-{SHORT[dtype]}", stored, dtype, layout, missing=gone, places=places,
                          **{key: v(shape) if callable(v) else v for key, v in always.items()} | more))
    if common:
        table(case)
        for dtype, to in OTHERS:
            case(f"weights-{SHORT[to]}", (2, 4, 4, 6), dtype, weights=to)
            case(f"weights-{SHORT[to]}-last", (3, 16, 3, 5), dtype, layout="NHWC", weights=to)
        if "y" in kind.results:
            results(case)
            programs(case)
        elif kind.op != "batch_norm_bwd_apply":
            prologues(case)
    return found, case

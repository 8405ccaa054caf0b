"""Cases of activations and their gradients."""
import math
from dataclasses import dataclass

import numpy as np
from activations import ACTIVATIONS, SLOPES

from . import ROUNDOFF, lay, rounding_error
from ._pointwise import EMPTY, FLOATS, LAYOUTS, SHORT, Pointwise, over, tail_error

# name -> (mode, parameters, function, derivative), beside the defaults
PARAMETRISED = {
    "relu6": ("relu", {"upper_clip": 6.0}, lambda x: np.clip(x, 0, 6), lambda x: np.where((x > 0) & (x < 6), 1.0, 0.0)),
    "relu-bent": ("relu", {"negative_slope": 0.5, "lower_clip": -2, "upper_clip": 3},
                  lambda x: np.minimum(np.where(x > -2, x, -2 + 0.5 * (x + 2)), 3),
                  lambda x: np.where(x >= 3, 0.0, np.where(x > -2, 1.0, 0.5))),
    "leaky-quarter": ("leaky_relu", {"negative_slope": 0.25}, lambda x: np.where(x > 0, x, 0.25 * x),
                      lambda x: np.where(x > 0, 1.0, 0.25)),
    "elu-steep": ("elu", {"alpha": 2.5}, lambda x: np.where(x > 0, x, 2.5 * np.expm1(np.minimum(x, 0))),
                  lambda x: np.where(x > 0, 1.0, 2.5 * np.exp(np.minimum(x, 0)))),
    "celu-wide": ("celu", {"alpha": 2}, lambda x: np.where(x > 0, x, 2 * np.expm1(np.minimum(x, 0) / 2)),
                  lambda x: np.where(x > 0, 1.0, np.exp(np.minimum(x, 0) / 2))),
    "selu-own": ("selu", {"alpha": 0.5, "gamma": 2}, lambda x: 2 * np.where(x > 0, x, 0.5 * np.expm1(np.minimum(x, 0))),
                 lambda x: 2 * np.where(x > 0, 1.0, 0.5 * np.exp(np.minimum(x, 0)))),
    "hard-sigmoid-keras": ("hard_sigmoid", {"alpha": 0.2, "beta": 0.4}, lambda x: np.clip(0.2 * x + 0.4, 0, 1),
                           lambda x: np.where((0.2 * x + 0.4 > 0) & (0.2 * x + 0.4 < 1), 0.2, 0.0)),
    "softplus-sharp": ("softplus", {"beta": 3}, lambda x: np.logaddexp(0, 3 * x) / 3, lambda x: 1 / (1 + np.exp(-3 * x))),
    "swish-own": ("swish", {"beta": 1.5}, lambda x: x / (1 + np.exp(-1.5 * x)),
                  lambda x: (1 + np.exp(-1.5 * x) * (1 + 1.5 * x)) / (1 + np.exp(-1.5 * x)) ** 2),
}
SIMPLE = ("identity", "relu", "prelu", "relu6", "relu-bent", "leaky-quarter")
"""Exact on integers, or on multiples."""
STEPS = {"relu6": 2, "relu-bent": 2, "leaky-quarter": 4}


@dataclass(frozen=True)
class Activation(Pointwise):
    """`mode` is an activation's name, or one of `PARAMETRISED`; `slope` the shape of prelu's, `slope_dtype` its dtype if not x's."""
    slope: tuple | None = None
    slope_dtype: str | None = None
    op: str = "activation_fwd"

    @property
    def exact(self):
        return self.mode in SIMPLE

    @property
    def trivial(self):
        return len(self.shape) == 1 and self.shape[0] < 40 and self.mode == "relu"

    def _own(self, names):
        found = {name: self.place(name, self.shape, self.dtype) for name in names}
        found["slope"] = None if self.slope is None else lay(self.slope, self.slope_dtype or self.dtype, **self.layout.get("slope", {}))
        return found

    def definition(self):
        """(name of the mode, parameters, function, derivative)"""
        if self.mode in PARAMETRISED:
            return PARAMETRISED[self.mode]
        return self.mode, {}, ACTIVATIONS[self.mode][0], SLOPES[self.mode]

    @property
    def keywords(self):
        return {} if self.mode == "prelu" else dict(self.definition()[1])

    @property
    def word(self):
        return "prelu" if self.mode == "prelu" else self.definition()[0]

    def problem(self):
        from dnnkern.act._problem import make_activation
        tensors, out = self.tensors()
        return make_activation(self.op, tensors, out, self.word, tuple(self.keywords.items()), aliases=self.aliases)

    def values(self, mode):
        found = {name: p and self.random(mode, name, p) for name, p in self.inputs().items()}
        if mode == "exact":  # so that results are integers, on all sides of the kinks
            found["x"] = STEPS.get(self.mode, 1) * found["x"]
        return {name: x for name, x in found.items() if x is not None}

    def call(self, arrays, out=None, **tail):
        import dnnkern
        given = [arrays[name] for name in self.inputs() if name != "slope"]
        if arrays["slope"] is not None:
            tail["slope"] = arrays["slope"]
        return getattr(dnnkern, self.op)(*given, self.word, out=out, **self.keywords, **tail)


class Forward(Activation):
    """``y = f(x)``"""

    def inputs(self):
        return self._own(("x",))

    def reference(self, values, tensor_cores=False):
        x = values["x"]
        if self.mode == "prelu":
            y = np.where(x > 0, x, values["slope"] * x)
            return self.bounded(y, np.abs(y))
        y = self.definition()[2](x)
        return self.bounded(y, 16 * (1 + np.abs(y) + 3 * np.abs(x)) + np.minimum(np.abs(x), 1e4) * tail_error(self.mode, self.dtype, x))


class Backward(Activation):
    """``dx = dy f'(x)``"""

    @property
    def result(self):
        return "dx", self.shape, self.dtype

    def inputs(self):
        return self._own(("dy", "x"))

    def reference(self, values, tensor_cores=False):
        dy, x = values["dy"], values["x"]
        slope = np.where(x > 0, 1.0, values["slope"]) if self.mode == "prelu" else self.definition()[3](x)
        error = 32 * (1 + np.abs(slope) + 0.1 * np.abs(x)) + tail_error(self.mode, self.dtype, x, gradient=True)
        return self.bounded(dy * slope, np.abs(dy) * error)

    def gradient(self, values):
        """Against central differences; what they say of a kink is left out."""
        dy, x, step = values["dy"], values["x"], 1e-6
        forward = (lambda v: np.where(v > 0, v, values["slope"] * v)) if self.mode == "prelu" else self.definition()[2]
        low, middle, high = forward(x - step), forward(x), forward(x + step)
        bent = np.abs(low - 2 * middle + high) / step
        analytic = self.reference(values)[0]["dx"]
        return [(analytic, dy * (high - low) / (2 * step), np.abs(dy) * (1e-6 + 4 * bent) + 1e-9)]


class SlopeBackward(Backward):
    """``dx = dy f'(x)``, and ``dslope``, the sum of dy x where x <= 0."""

    def _slope(self):
        return lay(self.slope, self.slope_dtype or self.dtype, **self.layout.get("dslope", {}))

    def outputs(self):
        return {**super().outputs(), "dslope": self._slope()}

    def problem(self):
        from dnnkern.act._problem import make_activation
        (*tensors, dx), dslope = self.tensors()
        return make_activation(self.op, tensors, (dx, dslope), self.word, (), True, aliases=self.aliases)

    def values(self, mode):
        """Small, so that sums of a few dozen fit every type."""
        if mode == "float":
            return super().values(mode)
        bounds = {"dy": (-1, 1), "x": (-3, 2), "slope": (-4, 4)}
        return {name: self.random(mode, name, p, *bounds[name]) for name, p in self.inputs().items()}

    def call(self, arrays, out=None, **tail):
        return super().call(arrays, out, slope_gradient=True, **tail)

    def _sums(self, parts):
        lead = len(self.shape) - len(self.slope)
        axes = tuple(d for d in range(len(self.shape)) if d < lead or self.slope[d - lead] == 1)
        return parts.sum(axes).reshape(self.slope)

    def reference(self, values, tensor_cores=False):
        (y, bound), place = super().reference(values), self._slope()
        parts = np.where(values["x"] > 0, 0.0, values["dy"] * values["x"])
        count = math.prod(self.shape) // max(1, math.prod(self.slope))
        sums, unit = self._sums(parts), ROUNDOFF["float64" if self.double else "float32"]
        error = unit * (count + 1) * self._sums(np.abs(parts)) + rounding_error(sums, place.dtype)
        return {**y, "dslope": sums}, {**bound, "dslope": error}

    def gradient(self, values):
        """Of the slope: the function is linear in it. One element of it at a time."""
        found, reference, step = super().gradient(values), self.reference(values)[0]["dslope"], 0.5
        x, dy, numeric = values["x"], values["dy"], np.zeros(self.slope)
        for at in np.ndindex(*self.slope):
            moved = [np.where(x > 0, x, (values["slope"] + sign * step * self._one(at)) * x) for sign in (1, -1)]
            numeric[at] = (dy * (moved[0] - moved[1])).sum() / (2 * step)
        return [*found, (reference, numeric, 1e-9 * (1 + np.abs(numeric)))]

    def _one(self, at):
        one = np.zeros(self.slope)
        one[at] = 1
        return one


def slope_cases():
    """The gradient of slopes of every shape, in every type, of any strides."""
    found = []
    for k, (name, shape, slope, layout) in enumerate((
            ("channels", (2, 5, 12), (5, 1), {}), ("channels-odd", (2, 5, 7), (5, 1), {"x": {"gap": 1}}), ("columns", (6, 24), (24,), {}),
            ("columns-odd", (6, 21), (21,), {}), ("one", (4, 30), (1,), {}), ("no-axis", (50,), (), {}), ("all", (3, 17), (3, 17), {}),
            ("apart", (2, 3, 4, 5), (3, 1, 5), {}), ("strided", (4, 9), (4, 1), {"slope": {"gap": 3}, "dslope": {"gap": 2}}),
            ("channels-last", (2, 6, 3, 4), (6, 1, 1), {name: {"order": (0, 2, 3, 1)} for name in ("x", "dy", "y")}),
            ("backwards", (4, 10), (10,), {"y": {"flip": (0, 1)}, "dslope": {"flip": (0,)}}), ("long", (3, 4500), (3, 1), {}),
            ("tall", (2100, 5), (5,), {}))):
        if math.prod(shape) > 1000:  # sums that only wide types hold
            kinds = (("float32", None), ("float64", None))
        else:
            kinds = ((FLOATS[k % 4], None), ("bfloat16" if k % 4 != 3 else "float32", None), (("bfloat16", "float16")[k % 2], "float32"))
        for dtype, wide in kinds:
            found.append(SlopeBackward(f"dslope-{'wide-' if wide else ''}{name}-{SHORT[dtype]}", shape, dtype, "prelu", op="activation_bwd",
                                       slope=slope, slope_dtype=wide, layout=layout))
    for same in ("dy", "x"):
        found.append(SlopeBackward(f"dslope-in-place-{same}-f32", (2, 5, 12), "float32", "prelu", op="activation_bwd", slope=(5, 1),
                                   same=same))
    return found


def cases(kind, op):
    """All cases of one direction."""
    def case(name, shape, dtype, mode, **more):
        found.append(kind(f"{name}-{SHORT[dtype]}", shape, dtype, mode, op=op, **more))

    found, back = [], op == "activation_bwd"
    for name, shape, layout, dtype in over(LAYOUTS, ("float32", "bfloat16", "float16", "float64")):
        case(name, shape, dtype, "leaky-quarter" if len(name) % 2 else "swish", layout=layout)
    for k, mode in enumerate((*ACTIVATIONS, *PARAMETRISED)):
        for dtype in (FLOATS[k % 4], FLOATS[(k + 1 + k // 4) % 4]):
            case(f"vector-{mode}-101", (101,), dtype, mode)
    for k, (name, shape, slope, more) in enumerate((
            ("channels", (2, 5, 12), (5, 1), {}), ("channels-odd", (2, 5, 7), (5, 1), {"layout": {"x": {"gap": 1}}}),
            ("columns", (6, 24), (24,), {}), ("columns-odd", (6, 21), (21,), {}), ("one-slope", (4, 30), (1,), {}),
            ("no-axis", (50,), (), {}), ("all", (3, 17), (3, 17), {}),
            ("slope-strided", (4, 9), (4, 1), {"layout": {"slope": {"gap": 3}}}))):
        for dtype in (FLOATS[k % 4], "bfloat16" if k % 4 != 3 else "float32"):
            case(f"prelu-{name}", shape, dtype, "prelu", slope=slope, **more)
        case(f"prelu-wide-{name}", shape, ("bfloat16", "float16")[k % 2], "prelu", slope=slope, slope_dtype="float32", **more)
    for k, (name, shape, layout) in enumerate((("matrix", (5, 24), {}), ("rows", (5, 19), {"y": {"gap": 2}}), ("run", (77,), {}),
                                               ("misaligned", (77,), {"y": {"misaligned": 3}}))):
        for dtype in (FLOATS[k % 4], FLOATS[(k + 2) % 4]):
            case(f"in-place-{name}", shape, dtype, "relu6" if back else "elu", layout=layout, same="dy" if back and k % 2 else "x")
    for name, (shape, layout) in EMPTY.items():
        case(name, shape, "float32", "gelu")
    return list({c.id: c for c in found}.values())


def large(kind, op):
    """For a GPU."""
    return [kind(f"{name}-{mode}-{SHORT[dtype]}", shape, dtype, mode, op=op)
            for name, shape in (("1000003", (1000003,)), ("1023x1025", (1023, 1025)))
            for mode, dtype in (("gelu", "bfloat16"), ("relu", "float32"), ("mish", "float16"), ("tanh", "float64"))]

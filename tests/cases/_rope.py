"""What the cases of rotary embeddings and of their gradient share."""
import math
from dataclasses import dataclass, field

import numpy as np

from . import ROUNDOFF, Case, coherent, lay, rounded, rounding_error
from ._cross_entropy import SHORT


@dataclass(frozen=True)
class Rope(Case):
    """One call; `angles` is the shape of cos and sin; layouts are keywords of `lay` by operand."""
    id: str
    shape: tuple
    angles: tuple
    dtype: str = "float32"
    angle_dtype: str = ""
    interleaved: bool = False
    same: bool = False
    layout: dict = field(default_factory=dict, hash=False)

    @property
    def unit(self):
        return ROUNDOFF["float64" if self.dtype == "float64" else "float32"]

    @property
    def work(self):
        return 30 * math.prod(self.shape)

    def place(self, name):
        if name in ("cos", "sin"):
            return lay(self.angles, self.angle_dtype or self.dtype, **self.layout.get(name, {}))
        return lay(self.shape, self.dtype, **self.layout.get("x" if self.same else name.removeprefix("d"), {}))

    def inputs(self):
        return {name: self.place(name) for name in (self.given, "cos", "sin")}

    def outputs(self):
        return {self.result: self.place(self.result)}

    def in_place(self):
        return {self.result: self.given} if self.same else {}

    def problem(self):
        from dnnkern.attention.rope._problem import make_rope
        from dnnkern.host.tensor import Tensor
        *given, out = (Tensor(p.shape, p.strides, p.dtype, p.alignment) for p in (*self.inputs().values(), *self.outputs().values()))
        return make_rope(self.op, tuple(given), out, self.interleaved, frozenset({self.given} if self.same else ()))

    def call(self, arrays, out=None, **tail):
        import dnnkern
        out = out[0] if isinstance(out, tuple) else out
        return getattr(dnnkern, self.op)(arrays[self.given], arrays["cos"], arrays["sin"], interleaved=self.interleaved, out=out, **tail)

    def values(self, mode):
        rng, found = np.random.default_rng(list(self.id.encode())), {}
        for name, p in self.inputs().items():
            value = rng.integers(-3, 4, p.shape).astype(float) if mode == "exact" else rng.standard_normal(p.shape)
            found[name] = coherent(rounded(value, p.dtype), p)
        return found

    def turned(self, values):
        """(the rows turned by the matrix of the definition, the sum of what each element is made of without signs)."""
        x, pairs, sign = values[self.given], self.angles[-1], 1 if self.op == "rope_fwd" else -1
        cos, sin = (np.broadcast_to(values[name], (*x.shape[:-1], pairs)) for name in ("cos", "sin"))
        y, size = x.copy(), np.zeros(x.shape)
        if self.interleaved:
            first, second = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
        else:
            first, second = slice(0, pairs), slice(pairs, 2 * pairs)
        a, b = x[..., first], x[..., second]
        y[..., first], y[..., second] = a * cos - sign * b * sin, b * cos + sign * a * sin
        size[..., first] = size[..., second] = np.abs(a * cos) + np.abs(b * sin) + np.abs(b * cos) + np.abs(a * sin)
        return y, size

    def reference(self, values, tensor_cores=False):
        y, size = self.turned(values)
        return {self.result: y}, {self.result: 3 * self.unit * size + (size > 0) * rounding_error(y, self.dtype)}


class Forward(Rope):
    """Turned."""
    op, given, result = "rope_fwd", "x", "y"


class Backward(Rope):
    """Turned back."""
    op, given, result = "rope_bwd", "dy", "dx"

    @property
    def gradient(self):
        return self._differences if 0 < math.prod(self.shape) <= 600 else None

    def _differences(self, values):
        """d(sum of y * dy) along a direction of x: linear, so that one difference is exact."""
        rng = np.random.default_rng(3)
        x, v = rng.standard_normal((2, *self.shape))
        forward = Forward(*(getattr(self, name) for name in self.__dataclass_fields__))
        above, below = (forward.turned({**values, "x": x + s * v})[0] for s in (0.5, -0.5))
        numeric = ((above - below) * values["dy"]).sum()
        yield np.asarray((self.turned(values)[0] * v).sum()), np.asarray(numeric), np.asarray(1e-10 * (1 + np.abs(numeric)))


def table(kind):
    """The cases of a direction."""
    def case(name, shape, angles, dtype="float32", **more):
        layout = more.pop("layout", {})
        found.append(kind(f"{name}-{'x'.join(map(str, shape))}-{SHORT[dtype]}", shape, angles, dtype, layout=layout, **more))

    found = []
    for dtype in SHORT:
        for interleaved in (False, True):
            word = "neighbours" if interleaved else "halves"
            case(word, (2, 3, 5, 32), (5, 16), dtype, interleaved=interleaved)
            case(f"{word}-odd", (2, 7, 3, 14), (7, 1, 7), dtype, interleaved=interleaved, angle_dtype="float32" if "16" in dtype else "")
            case(f"{word}-some", (3, 4, 48), (4, 8), dtype, interleaved=interleaved)
            case(f"{word}-some-odd", (3, 4, 21), (3, 4, 5), dtype, interleaved=interleaved)
            case(f"{word}-in-place", (3, 4, 64), (3, 1, 32), dtype, interleaved=interleaved, same=True, angle_dtype="" if interleaved else
                 "float64" if dtype == "float64" else "float32")
    case("one-row", (16,), (8,))
    case("one-pair", (5, 2), (5, 1), "bfloat16")
    case("all-alike", (5, 3, 8), (4,), "float16")
    case("no-pairs", (5, 8), (5, 0))
    case("no-rows", (0, 8), (4,))
    case("one-element", (5, 1), (5, 0), "float64")
    case("many-rows", (300, 8), (300, 4), "bfloat16")
    case("five-dimensions", (2, 2, 2, 3, 8), (2, 1, 3, 4), "float16", interleaved=True)
    case("rows-apart", (4, 6, 32), (6, 16), "bfloat16", layout={name: {"gap": 8} for name in ("x", "y", "cos", "sin")})
    case("rows-apart-odd", (4, 6, 32), (6, 16), "float16", layout={"x": {"gap": 3}, "y": {"gap": 1}, "cos": {"gap": 2}})
    case("misaligned", (4, 6, 32), (6, 16), "bfloat16", layout={name: {"misaligned": 1} for name in ("x", "sin")})
    case("misaligned-out", (4, 6, 32), (6, 16), layout={"y": {"misaligned": 2}}, interleaved=True)
    case("heads-outside", (2, 5, 3, 16), (5, 1, 8), "bfloat16", layout={"x": {"order": (0, 2, 1, 3)}})
    case("strided", (4, 6, 8), (6, 4), layout={"x": {"step": 2}, "y": {"gap": 1}, "cos": {"step": 3}})
    case("strided-angles", (4, 6, 8), (6, 4), "float16", layout={"sin": {"step": 2}})
    case("backwards", (4, 6, 8), (6, 4), layout={"x": {"flip": (0, 2)}, "y": {"flip": (1,)}, "cos": {"flip": (0,)}})
    case("transposed", (4, 6, 8), (6, 4), "float64", layout={name: {"order": (0, 2, 1)} for name in ("x", "y")})
    return found


def large(kind):
    """Cases for a GPU."""
    return [kind(f"{name}-{'x'.join(map(str, shape))}-{SHORT[dtype]}", shape, angles, dtype, interleaved=name == "interleaved")
            for dtype in SHORT for name in ("heads", "interleaved")
            for shape, angles in (((4, 8, 1023, 128), (1023, 64)), ((2, 777, 32, 64), (777, 1, 32)), ((1001, 80), (1001, 20)))]

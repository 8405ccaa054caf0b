"""What the cases of both softmaxes share."""
import math
from dataclasses import dataclass, field, replace

import numpy as np

from . import ROUNDOFF, Case, coherent, lay, rounded, rounding_error
from ._programs import PROGRAMS

SHORT = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}
OTHERS = ("float32", "float16"), ("bfloat16", "float32"), ("float16", "bfloat16")
"""Pairs of dtypes of operands and results."""


def softmax(x, axis, log=False):
    """The definition, in float64."""
    d = x - x.max(axis, keepdims=True)
    return d - np.log(np.exp(d).sum(axis, keepdims=True)) if log else np.exp(d) / np.exp(d).sum(axis, keepdims=True)


@dataclass(frozen=True)
class Rows(Case):
    """One call; layouts are keywords of `lay` by operand."""
    id: str
    shape: tuple
    dtype: str = "float32"
    axis: int = -1
    log: bool = False
    layout: dict = field(default_factory=dict, hash=False)
    around: float = 0.0
    to: str | None = None
    program: str | None = None   # one of `PROGRAMS`, of y

    def place(self, name):
        return lay(self.shape, self.to or self.dtype if name == "y" else self.dtype, **self.layout.get(name, {}))

    @property
    def length(self):
        return self.shape[self.axis]

    @property
    def work(self):
        return 6 * math.prod(self.shape)

    def tensors(self):
        """Descriptors of the operands and of the result."""
        from dnnkern.host.tensor import Tensor
        return [Tensor(p.shape, p.strides, p.dtype, p.alignment) for p in (*self.inputs().values(), *self.outputs().values())]

    @property
    def unit(self):
        """Roundoff of the arithmetic."""
        return ROUNDOFF["float64" if self.dtype == "float64" else "float32"]

    @property
    def growth(self):
        """Bound of the relative error of a sum of positive numbers, in roundoffs, whatever the order."""
        return min(self.length, 8 * self.length ** 0.5 + 8)


class Forward(Rows):
    """``y = softmax(x)``."""
    op = "softmax_fwd"
    exact = False

    @property
    def fused(self):
        return PROGRAMS.get(self.program)

    @property
    def wide(self):
        return "float64" if self.dtype == "float64" else "float32"

    def extra_places(self):
        """Of the program's operands."""
        if not self.fused:
            return {}
        column = [1] * len(self.shape)
        column[self.axis] = self.length
        row = [1 if m > 1 else n for n, m in zip(self.shape, column)] if self.length > 1 else list(self.shape)
        shapes = {"scalar": (1,), "column": tuple(column), "matrix": self.shape, "row": tuple(row)}
        places = self.fused.places(self.to or self.dtype, shapes.get)
        return {name: lay(shape, dtype, **self.layout.get(name, {})) for name, (dtype, shape) in places.items()}

    def inputs(self):
        return {"x": self.place("x"), **self.extra_places()}

    def outputs(self):
        sides = range(1, self.fused.sides + 1 if self.fused else 1)
        return {"y": self.place("y"),
                **{f"y{k}": lay(self.shape, self.fused.side_dtype(self.wide), **self.layout.get(f"y{k}", {})) for k in sides}}

    def problem(self):
        from dnnkern.host.tensor import Tensor
        from dnnkern.softmax._problem import make_forward

        def tensor(p):
            return Tensor(p.shape, p.strides, p.dtype, p.alignment)
        y, *sides = map(tensor, self.outputs().values())
        plain = make_forward((tensor(self.place("x")),), y, self.axis, self.log, frozenset())
        if not self.fused:
            return plain
        extras = {name: tensor(p) for name, p in self.extra_places().items()}
        program, extras = self.fused.problem_parts(self.wide, self.to or self.dtype, extras, sides, self.shape)
        return replace(plain, program=program, extras=extras)

    def call(self, arrays, out=None, **tail):
        from dnnkern import softmax_fwd
        if self.fused:
            from dnnkern.registry import operation_of
            problem = self.problem()
            operation = operation_of(self.op).of(problem)
            return operation.call(tuple(arrays.get(name) for name in operation.operands), out, (problem,), self.fused.numbers,
                                  tail.pop("workspace", None), tail.pop("stream", None), tail)
        return softmax_fwd(arrays["x"], axis=self.axis, log=self.log, out=out[0] if isinstance(out, tuple) else out, **tail)

    def values(self, mode):
        rng, place, fused = np.random.default_rng(list(self.id.encode())), self.place("x"), self.fused
        if mode == "exact":
            found = {"x": coherent(rng.integers(-8, 9, self.shape).astype(np.float64), place)}
            return found | (fused.exact_values(rng, self.extra_places()) if fused else {})
        found = {"x": coherent(rounded(2 * rng.standard_normal(self.shape) + self.around, self.dtype), place)}
        return found | (fused.float_values(rng, self.extra_places()) if fused else {})

    def reference(self, values, tensor_cores=False):
        """An exponential loses its argument's roundoff, and a few of its own; so does each merge of partial sums."""
        if not math.prod(self.shape):
            return {"y": values["x"]}, {"y": values["x"]}
        x = values["x"]
        d = np.abs(x - x.max(self.axis, keepdims=True))
        y, total = softmax(x, self.axis, self.log), self.unit * (self.growth + 16 + 4 * d.max(self.axis, keepdims=True))
        if self.log:
            error = total + 4 * self.unit * (d + np.abs(y)) + 0 * x
        else:
            error = (total + self.unit * (8 + 4 * d)) * y
        if not self.fused:
            return {"y": y}, {"y": error + rounding_error(y, self.to or self.dtype)}
        (y, error), sides = self.fused.reference(y, error, values, self.unit)
        found = {"y": (y, error + rounding_error(y, self.to or self.dtype))}
        found |= {f"y{k}": (v, e + rounding_error(v, self.fused.side_dtype(self.wide))) for k, (v, e) in enumerate(sides, 1)}
        return {name: v for name, (v, _) in found.items()}, {name: e for name, (_, e) in found.items()}


class Backward(Rows):
    """The gradient of softmax."""
    op = "softmax_bwd"

    @property
    def exact(self):
        return not self.log

    def inputs(self):
        return {"dy": self.place("dy"), "y": self.place("y")}

    def outputs(self):
        return {"dx": self.place("dx")}

    def problem(self):
        from dnnkern.softmax._problem import make_backward
        dy, y, dx = self.tensors()
        return make_backward((dy, y), dx, self.axis, self.log, frozenset())

    def call(self, arrays, out=None, **tail):
        from dnnkern import softmax_bwd
        return softmax_bwd(arrays["dy"], arrays["y"], axis=self.axis, log=self.log, out=out[0] if isinstance(out, tuple) else out, **tail)

    def values(self, mode):
        """In exact mode few and small integers, so that the results fit every dtype."""
        rng, places = np.random.default_rng(list(self.id.encode())), self.inputs()
        if mode == "exact":
            top = 4 if self.length <= 32 else 1
            y, dy = rng.integers(-1, 2, self.shape).astype(np.float64), rng.integers(-top, top + 1, self.shape).astype(np.float64)
            dy[rng.random(self.shape) > 128 / max(self.length, 128)] = 0
        else:
            y = softmax(2 * rng.standard_normal(self.shape), self.axis, self.log) if math.prod(self.shape) else np.zeros(self.shape)
            y, dy = rounded(y, self.dtype), rounded(rng.standard_normal(self.shape) + 0.25, self.dtype)
        return {"dy": coherent(dy, places["dy"]), "y": coherent(y, places["y"])}

    def _gradient(self, dy, y):
        if self.log:
            return dy - np.exp(y) * dy.sum(self.axis, keepdims=True)
        return y * (dy - (y * dy).sum(self.axis, keepdims=True))

    def reference(self, values, tensor_cores=False):
        dy, y = values["dy"], values["y"]
        dx = self._gradient(dy, y)
        scale, part = (np.exp(y), dy) if self.log else (np.abs(y), y * dy)
        total = np.abs(part).sum(self.axis, keepdims=True)
        error = self.unit * ((self.growth + 8 + 4 * np.abs(y)) * scale * total + 4 * (scale + self.log) * np.abs(dy))
        return {"dx": dx}, {"dx": error + rounding_error(dx, self.dtype)}

    @property
    def gradient(self):
        return self._differences if 0 < math.prod(self.shape) <= 60 else None

    def _differences(self, values):
        """d sum(softmax(x) * dy) / dx, by differences in float64."""
        rng, dy, step = np.random.default_rng(3), values["dy"], 1e-5
        x = rng.standard_normal(self.shape)
        numeric = np.zeros(self.shape)
        for at in np.ndindex(self.shape):
            high, low = x.copy(), x.copy()
            high[at] += step
            low[at] -= step
            numeric[at] = ((softmax(high, self.axis, self.log) - softmax(low, self.axis, self.log)) * dy).sum() / (2 * step)
        yield self._gradient(dy, softmax(x, self.axis, self.log)), numeric, 1e-8 * (1 + np.abs(numeric))


def table(kind):
    """The cases of a direction."""
    def case(name, shape, dtype="float32", **more):
        layout = more.pop("layout", {})
        if "all" in layout:
            layout = dict.fromkeys(("x", "dy", "y", "dx"), layout["all"])
        found.append(kind(f"{name}-{'x'.join(map(str, shape))}-{SHORT[dtype]}", shape, dtype, layout=layout, **more))

    found = []
    for k, dtype in enumerate(SHORT):
        case("rows", (7, 32), dtype)
        case("rows-log", (5, 80), dtype, log=True)
        case("odd", (3, 77), dtype)
        case("long", (2, 1536), dtype, log=bool(k % 2))
        case("long-odd", (2, 1031), dtype)
        case("columns", (3, 20, 32), dtype, axis=1, log=bool(k % 2))
        case("columns-odd", (2, 9, 5), dtype, axis=1)
        case("misaligned", (4, 40), dtype, layout={"all": {"misaligned": 1}})
        case("longer", (1, 4700), dtype)
    for dtype, to in OTHERS * (kind is Forward):
        case(f"to-{SHORT[to]}", (5, 72), dtype, to=to)
        case(f"to-{SHORT[to]}-odd", (3, 77), dtype, to=to, log=True)
        case(f"to-{SHORT[to]}-columns", (3, 20, 32), dtype, to=to, axis=1)
        case(f"to-{SHORT[to]}-columns-odd", (2, 9, 5), dtype, to=to, axis=1)
        case(f"to-{SHORT[to]}-longer", (1, 4700), dtype, to=to)
    for program in PROGRAMS if kind is Forward else ():
        case(f"program-{program}", (7, 40), "bfloat16", program=program)
        case(f"program-{program}-odd", (4, 77), program=program, log=program == "chain")
        case(f"program-{program}-longer", (1, 4700) if program != "triangle" else (40, 500), "float16", program=program)
    if kind is Forward:
        case("program-chain-long", (2, 1536), program="chain")
        case("program-chain-to-f32", (6, 72), "bfloat16", to="float32", program="chain")
        case("program-two-inputs-f64", (5, 36), "float64", program="two-inputs")
        case("program-chain-columns", (3, 20, 32), "float16", axis=1, program="chain")
        case("program-chain-apart", (5, 48), "float16", program="chain",
             layout={"x1": {"gap": 3}, "y1": {"order": (1, 0)}, "x0": {"step": 2}})
        case("program-two-inputs-outer", (2, 3, 24), "bfloat16", program="two-inputs", layout={"x1": {"order": (1, 0, 2)}})
    for n in (1, 2, 3, 4, 5, 8, 9, 16, 17, 31, 33, 64, 65):
        case("edge", (3, n), "float32" if n % 2 else "bfloat16")
    case("around-10000", (3, 96), around=1e4)
    case("around-10000-log", (3, 96), around=1e4, log=True)
    case("vector", (130,), "float16")
    case("one-row-many", (40, 4), "float16")
    case("empty", (0, 5))
    case("empty-rows", (5, 0), "bfloat16")
    case("first-axis", (11, 40), axis=0)
    case("first-axis-log", (70, 6), "bfloat16", axis=0, log=True)
    case("channels-nchw", (2, 10, 5, 7), "float16", axis=1)
    case("axis-of-rank-5", (2, 3, 4, 5, 6), axis=2)
    case("negative-axis", (2, 6, 8), "bfloat16", axis=-2)
    case("strided", (6, 18), layout={"x": {"step": 2}, "dy": {"step": 2}, "y": {"step": 3, "gap": 1}, "dx": {"gap": 2}})
    case("rows-apart", (5, 48), "bfloat16", layout={"all": {"gap": 8}})
    case("rows-apart-odd", (5, 48), "float16", layout={"all": {"gap": 1}})
    case("rows-apart-unlike", (5, 48), "float16", layout={"x": {"gap": 1}, "dy": {"gap": 8}, "y": {"gap": 3}})
    case("stored-transposed", (12, 24), layout={"all": {"order": (1, 0)}})
    case("one-stored-transposed", (12, 24), "bfloat16", layout={"x": {"order": (1, 0)}, "y": {"order": (1, 0)}})
    case("negative", (6, 24), layout={"x": {"flip": (0, 1)}, "dy": {"flip": (1,)}, "y": {"flip": (0,)}})
    case("broadcast-rows", (4, 24), layout={"x": {"expand": (0,)}, "dy": {"expand": (0,)}})
    case("broadcast-dy", (4, 3, 40), "bfloat16", layout={"dy": {"expand": (1,)}, "x": {"expand": (1,)}})
    case("heads", (2, 3, 4, 20), "bfloat16", layout={"all": {"order": (0, 2, 1, 3)}})
    case("channels-nhwc-as-nchw", (2, 16, 3, 5), "float16", axis=1, layout={"all": {"order": (0, 2, 3, 1)}})
    case("columns-gap", (2, 12, 24), "float16", axis=1, layout={"all": {"gap": 8}})
    case("columns-misaligned", (2, 12, 24), axis=1, layout={"all": {"misaligned": 1}})
    case("columns-long", (1, 150, 8), "bfloat16", axis=1)
    return found


def large(kind):
    """Cases for a GPU."""
    sizes = (("rows", (4097, 1000), -1), ("rows", (513, 4096), -1), ("rows", (65, 12288), -1), ("rows", (9, 65536), -1),
             ("rows", (3, 131072), -1), ("rows", (2, 300001), -1), ("short", (70001, 48), -1), ("columns", (8, 64, 3136), 1),
             ("columns", (2, 5000, 200), 1), ("one", (1, 1000003), -1))
    return [kind(f"{name}-{'x'.join(map(str, shape))}-{SHORT[dtype]}", shape, dtype, axis, bool(k % 2))
            for k, dtype in enumerate(SHORT) for name, shape, axis in sizes]


def beyond(kind):
    """More than 2**31 elements."""
    return [kind("rows-2**31-bf16", (2 ** 17 + 3, 2 ** 14 + 8), "bfloat16"),
            kind("columns-2**31-bf16", (2 ** 14, 129, 1024), "bfloat16", 1)]


def check_beyond_int32(case, algo, allow):
    """Every element compared with torch's float32 result, some of the first dimension at a time."""
    import torch
    generator = torch.Generator("cuda").manual_seed(7)
    arrays = {}
    for name in case.inputs():
        arrays[name] = torch.empty(case.shape, dtype=torch.bfloat16, device="cuda")
        for part in arrays[name].view(-1).split(1 << 26):
            part.copy_(torch.randn(part.shape, generator=generator, device="cuda"))
    out = torch.full(case.shape, float("nan"), dtype=torch.bfloat16, device="cuda")
    assert out.numel() > 2 ** 31
    case.call(arrays, out, algo=algo, allow=allow)
    step = max(1, (1 << 26) // out[0].numel())
    for first in range(0, len(out), step):
        part = {name: x[first:first + step].float() for name, x in arrays.items()}
        if case.op == "softmax_fwd":
            want = torch.softmax(part["x"], case.axis)
        else:
            want = part["y"] * (part["dy"] - (part["y"] * part["dy"]).sum(case.axis, keepdim=True))
        torch.testing.assert_close(out[first:first + step].float(), want, rtol=1e-2, atol=1e-2 if case.op == "softmax_bwd" else 1e-7)

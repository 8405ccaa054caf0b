"""What the cases of mse_loss and of its gradient share."""
import math
from dataclasses import dataclass, field

import numpy as np

from . import ROUNDOFF, Case, coherent, lay, rounded, rounding_error
from ._cross_entropy import SHORT, growth


@dataclass(frozen=True)
class _Mse(Case):
    """One call; layouts are keywords of `lay` by operand."""
    id: str
    shape: tuple
    dtype: str = "float32"
    reduction: str = "mean"
    layout: dict = field(default_factory=dict, hash=False)
    short: bool = False  # each loss is of x's dtype

    @property
    def compute(self):
        return "float64" if self.dtype == "float64" else "float32"

    @property
    def unit(self):
        return ROUNDOFF[self.compute]

    @property
    def divisor(self):
        """What the sum is divided by."""
        return math.prod(self.shape) if self.reduction == "mean" else 1

    @property
    def exact(self):
        divides = self.divisor & (self.divisor - 1) == 0 and self.divisor > 0
        return self.reduction == "none" or divides and 36 * math.prod(self.shape) <= 2 ** 24  # the largest square is 36

    @property
    def loss_shape(self):
        return self.shape if self.reduction == "none" else ()

    @property
    def loss_dtype(self):
        return self.dtype if self.short else self.compute

    def place(self, name, shape, dtype):
        return lay(shape, dtype, **self.layout.get(name, {}))

    def operands(self):
        """Places of x and target."""
        return {name: self.place(name, self.shape, self.dtype) for name in ("x", "target")}

    def values(self, mode):
        """Differences that every dtype squares exactly, or any."""
        rng = np.random.default_rng(list(self.id.encode()))
        found = {}
        for name, place in self.inputs().items():
            if mode == "exact":
                value = rng.integers(-3, 4, place.shape).astype(np.float64)
            else:
                value = rounded(rng.standard_normal(place.shape) + 0.25, place.dtype)
            if name == "dloss":
                value = value * self.divisor if mode == "float" else rng.integers(1, 4, place.shape) * float(max(1, self.divisor))
            found[name] = coherent(rounded(value, place.dtype), place) if np.ndim(value) else rounded(value, place.dtype)
        return found

    def tensors(self):
        """Descriptors of operands and results by name."""
        from dnnkern.host.tensor import Tensor
        return {name: Tensor(p.shape, p.strides, p.dtype, p.alignment) for name, p in {**self.inputs(), **self.outputs()}.items()}


class Forward(_Mse):
    """The loss."""
    op = "mse_loss_fwd"

    @property
    def work(self):
        return 4 * (1 + math.prod(self.loss_shape))

    def inputs(self):
        return self.operands()

    def outputs(self):
        return {"loss": self.place("loss", self.loss_shape, self.loss_dtype)}

    def problem(self):
        from dnnkern.loss._mse_problem import make_mse_forward
        t = self.tensors()
        return make_mse_forward((t["x"], t["target"]), t["loss"], self.reduction, frozenset())

    def call(self, arrays, out=None, **tail):
        from dnnkern import mse_loss_fwd
        return mse_loss_fwd(arrays["x"], arrays["target"], reduction=self.reduction, out=out[0] if isinstance(out, tuple) else out, **tail)

    def reference(self, values, tensor_cores=False):
        squares = (values["x"] - values["target"]) ** 2
        if self.reduction == "none":
            return {"loss": squares}, {"loss": 4 * self.unit * squares + rounding_error(squares, self.loss_dtype) * self.short}
        with np.errstate(divide="ignore", invalid="ignore"):
            loss = np.asarray(squares.sum() / np.float64(self.divisor))
        return {"loss": loss}, {"loss": self.unit * (growth(squares.size) + 8) * np.abs(loss) if squares.size else np.zeros(())}


class Backward(_Mse):
    """The gradient by x."""
    op = "mse_loss_bwd"

    @property
    def work(self):
        return 6 * math.prod(self.shape)

    def inputs(self):
        return {"dloss": self.place("dloss", self.loss_shape, self.loss_dtype), **self.operands()}

    def outputs(self):
        return {"dx": self.place("dx", self.shape, self.dtype)}

    def problem(self):
        from dnnkern.loss._mse_problem import make_mse_backward
        t = self.tensors()
        return make_mse_backward((t["dloss"], t["x"], t["target"]), t["dx"], self.reduction, frozenset())

    def call(self, arrays, out=None, **tail):
        from dnnkern import mse_loss_bwd
        return mse_loss_bwd(arrays["dloss"], arrays["x"], arrays["target"], reduction=self.reduction,
                            out=out[0] if isinstance(out, tuple) else out, **tail)

    def slope(self, values):
        """The gradient."""
        return 2 * values["dloss"] / max(1, self.divisor) * (values["x"] - values["target"])

    def reference(self, values, tensor_cores=False):
        dx = self.slope(values)
        return {"dx": dx}, {"dx": 6 * self.unit * np.abs(dx) + rounding_error(dx, self.dtype)}

    @property
    def gradient(self):
        return self._differences if 0 < math.prod(self.shape) <= 60 else None

    def _differences(self, values):
        """A parabola's slope is the symmetric difference."""
        d = values["x"] - values["target"]
        numeric = values["dloss"] / self.divisor * ((d + 1) ** 2 - (d - 1) ** 2) / 2
        yield self.slope(values), numeric, 1e-12 * (1 + np.abs(numeric))


def table(kind):
    """The cases of a direction."""
    def case(name, shape, dtype="float32", **more):
        found.append(kind(f"{name}-{'x'.join(map(str, shape))}-{SHORT[dtype]}", shape, dtype, **more))

    found = []
    for dtype in SHORT:
        case("none", (5, 33), dtype, reduction="none")
        case("none-short", (5, 35), dtype, reduction="none", short=True)
        case("sum", (4, 40), dtype, reduction="sum")
        case("mean", (2, 3, 50), dtype)
        case("mean-power-of-two", (8, 64), dtype)
        case("misaligned", (130,), dtype, reduction="none", layout={"x": {"misaligned": 1}, "dx": {"misaligned": 1}})
        case("strided", (6, 18), dtype, reduction="sum", layout={"x": {"step": 2}, "dx": {"gap": 2}})
    for n in (1, 2, 7, 8, 9, 31, 257):
        case("edge", (n,), "bfloat16" if n % 2 else "float32", reduction="sum")
    case("scalar", (), reduction="none")
    case("nothing-sum", (0, 3), reduction="sum")
    case("nothing-none", (3, 0), "float16", reduction="none")
    case("stored-transposed", (12, 24), "float16", layout={name: {"order": (1, 0)} for name in ("x", "target", "dx", "loss", "dloss")},
         reduction="none")
    case("one-stored-transposed", (12, 24), layout={"target": {"order": (1, 0)}})
    case("backwards", (5, 12), layout={"x": {"flip": (0, 1)}, "dx": {"flip": (0,)}}, reduction="none")
    case("broadcast-target", (5, 12), "bfloat16", layout={"target": {"expand": (0,)}}, reduction="sum")
    case("several-turns", (3, 3001), "bfloat16", reduction="sum")
    return found


def large(kind):
    """Cases for a GPU."""
    return [kind(f"{reduction}-{'x'.join(map(str, shape))}-{SHORT[dtype]}", shape, dtype, reduction)
            for dtype in SHORT for reduction, shape in (("mean", (1000003,)), ("sum", (4096, 1024)), ("none", (3, 333333)))]

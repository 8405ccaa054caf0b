"""What the cases of nll_loss and of its gradient share."""
import numpy as np

from . import rounding_error
from ._cross_entropy import SHORT, Labelled, growth, in_mode


class _Nll(Labelled):
    """Without smoothing or probabilities."""

    @property
    def exact(self):
        return self.reduction != "mean"

    @property
    def parameters(self):
        return self.ignore, self.reduction

    def scores(self):
        """Places of the operands that both directions have."""
        found = self.common()
        return {"logp": found["logits"], "targets": found["targets"], "weight": found["weight"]}

    def scores_values(self):
        """Logarithms that are no probabilities' in particular."""
        found = self.common_values()
        return {"logp": -np.abs(found.pop("logits")), **found}

    def keywords(self, arrays, out, tail):
        return {"weight": arrays["weight"], "ignore_index": self.ignore, "reduction": self.reduction,
                "out": out[0] if isinstance(out, tuple) else out, **tail}

    def losses(self, x, values):
        """The rows' losses."""
        return -(self.aims(values)[0] * x).sum(self.axis)


class Forward(_Nll):
    """The loss."""
    op = "nll_loss_fwd"

    @property
    def work(self):
        return 20 * (1 + int(np.prod(self.rows_shape)))

    def inputs(self):
        return self.scores()

    def outputs(self):
        return {"loss": self.place("loss", self.loss_shape, self.compute)}

    def problem(self):
        from dnnkern.loss._problem import make_nll_forward
        t = self.tensors()
        return make_nll_forward((t["logp"], t["targets"], t["weight"]), t["loss"], *self.parameters, frozenset())

    def call(self, arrays, out=None, **tail):
        from dnnkern import nll_loss_fwd
        return nll_loss_fwd(arrays["logp"], arrays["targets"], **self.keywords(arrays, out, tail))

    def values(self, mode):
        return in_mode(self.scores_values(), mode)

    def reference(self, values, tensor_cores=False):
        rows, counts = self.losses(values["logp"], values), self.aims(values)[1]
        if not rows.size:
            empty = np.zeros(self.loss_shape) if self.reduction != "mean" else np.full((), np.nan)
            return {"loss": empty}, {"loss": np.zeros(())}
        if self.reduction == "none":
            return {"loss": rows}, {"loss": 4 * self.unit * np.abs(rows)}
        with np.errstate(divide="ignore", invalid="ignore"):
            loss = rows.sum() / self.divisor(counts)
            error = 2 * self.unit * (growth(rows.size) + 8) * np.abs(rows).sum() / self.divisor(counts)
        return {"loss": np.asarray(loss)}, {"loss": error}


class Backward(_Nll):
    """The gradient by the logarithms."""
    op = "nll_loss_bwd"
    trivial = True

    def inputs(self):
        return {"dloss": self.place("dloss", self.loss_shape, self.compute), **self.scores()}

    def outputs(self):
        return {"dlogp": self.place("dlogits", self.shape, self.dtype)}

    def problem(self):
        from dnnkern.loss._problem import make_nll_backward
        t = self.tensors()
        return make_nll_backward(tuple(t[name] for name in ("dloss", "logp", "targets", "weight")), t["dlogp"], *self.parameters,
                                 frozenset())

    def call(self, arrays, out=None, **tail):
        from dnnkern import nll_loss_bwd
        return nll_loss_bwd(arrays["dloss"], arrays["logp"], arrays["targets"], **self.keywords(arrays, out, tail))

    def values(self, mode):
        dloss = np.random.default_rng(11).integers(1, 9, self.loss_shape) * 2.0 ** (3 if self.reduction == "mean" else 0)
        return in_mode({**self.scores_values(), "dloss": np.asarray(dloss)}, mode)

    def slopes(self, values):
        """The gradient."""
        aims, counts = self.aims(values)
        with np.errstate(divide="ignore", invalid="ignore"):
            g = np.broadcast_to(values["dloss"] / self.divisor(counts), self.rows_shape)
        return -np.expand_dims(g, self.axis) * aims

    def reference(self, values, tensor_cores=False):
        dx = self.slopes(values) if values["logp"].size else values["logp"]
        many = growth(int(np.prod(self.rows_shape))) + 8
        return {"dlogp": dx}, {"dlogp": many * self.unit * np.abs(dx) + (0 if self.exact else rounding_error(dx, self.dtype))
                               + rounding_error(dx, self.dtype)}

    @property
    def gradient(self):
        return self._differences if 0 < np.prod(self.shape) <= 60 else None

    def _differences(self, values):
        """The loss is linear: differences have no error but that of rounding."""
        x, numeric, (_, counts) = values["logp"], np.zeros(self.shape), self.aims(values)
        for at in np.ndindex(self.shape):
            high = x.copy()
            high[at] += 1
            change = self.losses(high, values) - self.losses(x, values)
            numeric[at] = (np.broadcast_to(values["dloss"], self.rows_shape) * change).sum() / self.divisor(counts)
        yield self.slopes(values), numeric, 1e-9 * (1 + np.abs(numeric))


def table(kind):
    """The cases of a direction."""
    def case(name, shape, dtype="float32", **more):
        found.append(kind(f"{name}-{'x'.join(map(str, shape))}-{SHORT[dtype]}", shape, dtype, **more))

    found = []
    for dtype in SHORT:
        case("rows", (6, 40), dtype)
        case("rows-odd-sum", (3, 77), dtype, reduction="sum", targets="int32")
        case("weighted-none", (4, 41), dtype, weight=dtype, reduction="none")
        case("weighted-sum", (5, 24), dtype, weight=dtype, reduction="sum")
        case("pixels", (2, 5, 4, 8), dtype, reduction="none")
        case("pixels-odd", (2, 4, 3, 3), dtype, reduction="sum")
        case("long", (1, 4700), dtype, reduction="sum")
    for n in (1, 2, 3, 8, 9, 33):
        case("edge", (3, n), "float32" if n % 2 else "bfloat16", reduction="sum" if n % 2 else "mean")
    case("one-row", (60,), "float16", targets="int32")
    case("many-rows", (150, 4), "float16", ignore=2, reduction="sum")
    case("weighted-rows", (40, 9), weight="float32", ignore=2)
    case("several-blocks", (33, 700), "bfloat16")
    case("no-rows-sum", (0, 5), reduction="sum")
    case("no-rows-none", (0, 5), "bfloat16", reduction="none")
    case("weights-of-float32", (6, 24), "bfloat16", weight="float32", layout={"weight": {"step": 2}})
    case("pixels-channels-last", (2, 16, 3, 5), "float16", layout={"logits": {"order": (0, 2, 3, 1)}, "dlogits": {"order": (0, 2, 3, 1)}})
    case("strided", (6, 18), layout={"logits": {"step": 2}, "dlogits": {"gap": 2}, "targets": {"step": 2}}, reduction="none")
    case("misaligned", (4, 40), "bfloat16", layout={"dlogits": {"misaligned": 1}, "targets": {"misaligned": 1}})
    case("negative", (6, 24), layout={"logits": {"flip": (0, 1)}, "targets": {"flip": (0,)}, "dlogits": {"flip": (0,)}}, reduction="sum")
    return found


def large(kind):
    """Cases for a GPU."""
    return [kind(f"{name}-{'x'.join(map(str, shape))}-{SHORT[dtype]}", shape, dtype, weight=dtype if name == "rows" else "")
            for dtype in SHORT for name, shape in (("rows", (4097, 1000)), ("long", (65, 50257)), ("short", (70001, 10)),
                                                   ("pixels", (8, 21, 64, 64)), ("one", (1, 1000003)))]

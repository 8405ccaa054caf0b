"""What the cases of batch normalisation share."""
import numpy as np

from . import lay
from ._channel_norm import ChannelNorm, cases_of
from ._softmax import SHORT


class BatchNorm(ChannelNorm):
    """`maker` names what makes problems of tensors."""

    def make(self, tensors, outs):
        from dnnkern.norm import _batch_problem, _parts_problem
        more = (self.dresidual,) if "dy" in self.names else ()
        make = getattr(_parts_problem if self.maker == "make_apply" else _batch_problem, self.maker + "_frozen" * self.frozen)
        return make(tensors, outs, self.mode, self.layout, self.activation, *more, frozenset())

    @property
    def dresidual(self):
        return "dresidual" not in self.missing

    def call(self, arrays, out=None, **tail):
        import dnnkern
        if self.fused:
            return self.call_fused(arrays, out, tail)
        split = {"batch_norm_train_fwd": ("residual",), "batch_norm_infer": ("residual",), "batch_norm_bwd": ("y", "beta"),
                 "batch_norm_bwd_apply": ("y", "beta")}[self.op]
        operands = [arrays[name] for name in self.names if name not in split]
        given = {"eps": self.eps} if "dy" not in self.names else {"residual": self.dresidual}
        if self.op == "batch_norm_bwd":
            given["frozen"] = self.frozen
        if self.op == "batch_norm_train_fwd":
            given["momentum"] = self.momentum
        if isinstance(out, tuple):
            out = out[:len(out) - len(self.in_place())]
        return getattr(dnnkern, self.op)(*operands, mode=self.mode, layout=self.layout, activation=self.activation, out=out,
                                         **{name: arrays[name] for name in split}, **given, **tail)


class Train(BatchNorm):
    """y, the statistics, and the running ones."""
    op, maker, results = "batch_norm_train_fwd", "make_batch_train", ("y", "mean", "rstd")
    names = ("x", "gamma", "beta", "running_mean", "running_var", "residual")

    def reference(self, values, tensor_cores=False):
        if not self.size:
            return self.nothing()
        return self.bounded(self.forward(values), values)


class Infer(BatchNorm):
    """y by given statistics."""
    op, maker, results = "batch_norm_infer", "make_batch_infer", ("y",)
    names = ("x", "gamma", "beta", "mean", "var", "residual")

    def reference(self, values, tensor_cores=False):
        if not self.size:
            return self.nothing()
        x, mean, var = self.canon(values["x"]), self.canon(values["mean"], "statistic"), self.canon(values["var"], "statistic")
        gamma, beta = self.given(values, "gamma", 1.0), self.given(values, "beta", 0.0)
        rstd = 1 / (var + self.eps) ** 0.5
        y = self.result(x, mean, rstd, gamma, beta, self.given(values, "residual", 0.0), 0.0, 4 * self.unit)
        return self.bounded({"y": y}, values)


class Backward(BatchNorm):
    """dx, dgamma, dbeta, and dresidual."""
    op, maker, results = "batch_norm_bwd", "make_batch_backward", ("dx", "dgamma", "dbeta", "dresidual")
    names = ("dy", "x", "gamma", "mean", "rstd", "y", "beta")

    def reference(self, values, tensor_cores=False):
        if not self.size:
            return self.nothing()
        return self.bounded(self.backward(values))

    @property
    def gradient(self):
        return self.differences if 0 < self.size <= 200 else None


class Apply(BatchNorm):
    """dx and dresidual from sums of a larger batch, in two parts."""
    op, maker, results = "batch_norm_bwd_apply", "make_apply", ("dx", "dresidual")
    names = ("dy", "x", "gamma", "mean", "rstd", "dgamma", "dbeta", "counts", "y", "beta")

    def kind(self, name):
        return "statistic" if name in ("dgamma", "dbeta") else super().kind(name)

    def place(self, name):
        if name == "counts":
            return lay((2,), "int32", **self.places.get(name, {}))
        if name in ("dgamma", "dbeta"):
            return lay(self.place_shape("statistic"), self.wide, **self.places.get(name, {}))
        return super().place(name)

    def values(self, mode):
        found = super().values(mode)
        found["counts"] = np.array([self.length, 3.0])
        return found

    def reference(self, values, tensor_cores=False):
        if not self.size:
            return self.nothing()
        x, gamma = self.canon(values["x"]), self.given(values, "gamma", 1.0)
        mean, rstd, dgamma, dbeta = (self.canon(values[name], "statistic") for name in ("mean", "rstd", "dgamma", "dbeta"))
        dz, error = self.past(values, x, mean, rstd, gamma)
        n, count = (x - mean) * rstd, values["counts"].sum()
        dx = gamma * rstd * (dz - (dbeta + n * dgamma) / count)
        far = (np.abs(x) + np.abs(mean)) * rstd
        size = np.abs(gamma) * rstd * (np.abs(dz) + (np.abs(dbeta) + far * np.abs(dgamma)) / count)
        return self.bounded({"dx": (dx, 16 * self.unit * size + np.abs(gamma) * rstd * error),
                             "dresidual": (dz, 2 * self.unit * np.abs(dz) + error)})


def table(kind):
    """The cases of an operation."""
    optional = ("gamma", "y", "beta", "dresidual") if "dy" in kind.names else ("gamma", "beta", "running_mean", "running_var", "residual")
    found, case = cases_of(kind, tuple(n for n in optional if n in kind.names or n == "dresidual"))
    for dtype in SHORT:
        case("activations", (5, 4, 3, 2), dtype, mode="per_activation", activation="relu")
        case("activations-last", (4, 6, 2, 4), dtype, layout="NHWC", mode="per_activation", weights="float32" if "16" in dtype else None)
    case("empty", (2, 0, 3, 3), "float32")
    case("matrix", (12, 24), "bfloat16", activation="relu", residual=True)
    case("matrix-odd", (9, 21), "float32", layout="NHWC")
    case("matrix-activations", (9, 8), "float32", mode="per_activation")
    case("one-value", (1, 24), "float32", activation="relu")
    case("nothing-runs", (3, 4, 5), "float32", running=False)
    case("mean-runs", (3, 8, 5), "float16", layout="NHWC", missing=("running_var",))
    case("tiny", (2, 2, 3, 2), "float64", activation="leaky_relu", residual=True)
    case("tiny-last", (2, 3, 4), "float64", layout="NHWC", activation="relu")
    case("tiny-activations", (4, 3, 2), "float64", mode="per_activation")
    if "y" in kind.results:
        case("program-chain-activations", (5, 4, 3, 2), mode="per_activation", program="chain")
        case("program-bias-gelu-empty", (2, 0, 3, 3), program="bias-gelu")
        case("program-two-inputs-matrix", (12, 24), "bfloat16", program="two-inputs")
        case("program-chain-nothing-runs", (3, 4, 5), running=False, program="chain")
    case("tiny-swish", (2, 2, 3, 2), "float64", activation="swish")
    case("tiny-gelu-activations", (4, 3, 2), "float64", mode="per_activation", activation="gelu")
    if kind is Backward:
        for dtype in SHORT:
            case("frozen", (2, 4, 4, 6), dtype, frozen=True)
            case("frozen-last", (3, 16, 3, 5), dtype, layout="NHWC", activation="relu", residual=True, frozen=True)
        case("frozen-relu-residual", (3, 6, 5, 7), "float16", activation="relu", residual=True, frozen=True)
        case("frozen-swish", (3, 6, 5, 7), "bfloat16", activation="swish", frozen=True)
        case("frozen-gelu-last", (2, 24, 5, 7), layout="NHWC", activation="gelu", frozen=True)
        case("frozen-activations", (9, 8), mode="per_activation", frozen=True)
        case("tiny-frozen", (2, 2, 3, 2), "float64", activation="leaky_relu", residual=True, frozen=True)
        case("tiny-frozen-swish", (2, 2, 3, 2), "float64", activation="swish", frozen=True)
    return found


def large(kind):
    """Cases for a GPU."""
    optional = ("residual", "dresidual", "y") + ("beta",) * (kind is Backward)
    found, case = cases_of(kind, tuple(n for n in optional if n in kind.names or n == "dresidual"), common=False)
    for dtype in SHORT:
        for layout in ("NCHW", "NHWC"):
            case(f"{layout}", (16, 64, 56, 57), dtype, layout=layout, activation="relu", residual=True)
            case(f"{layout}", (9, 256, 14, 14), dtype, layout=layout)
            case(f"{layout}", (33, 1000, 7, 7), dtype, layout=layout, activation="relu")
    return found

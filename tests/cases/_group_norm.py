"""What the cases of group and instance normalisation share."""
from ._channel_norm import ChannelNorm, cases_of
from ._softmax import SHORT


class GroupNorm(ChannelNorm):
    """`maker` names what makes problems of tensors; `instance` calls the function of that name."""

    def make(self, tensors, outs):
        from dnnkern.norm import _group_problem
        return getattr(_group_problem, self.maker)(tensors, outs, self.groups, self.layout, self.activation, frozenset())

    def call(self, arrays, out=None, **tail):
        import dnnkern
        if self.fused:
            return self.call_fused(arrays, out, tail)
        function = getattr(dnnkern, self.op.replace("group", "instance") if self.instance else self.op)
        split = ("y", "beta") if self.op.endswith("bwd") else ()
        operands = [arrays[name] for name in self.names if name not in split]
        given = {"eps": self.eps} if self.op.endswith("fwd") else {}
        if not self.instance:
            operands.append(self.groups)
        given |= {name: arrays[name] for name in split}
        return function(*operands, layout=self.layout, activation=self.activation, out=out, **given, **tail)


class Forward(GroupNorm):
    """y and the statistics."""
    op, maker, results = "group_norm_fwd", "make_group_forward", ("y", "mean", "rstd")
    names = ("x", "gamma", "beta")

    def reference(self, values, tensor_cores=False):
        if not self.size:
            return self.nothing()
        return self.bounded(self.forward(values), values)


class Backward(GroupNorm):
    """dx, dgamma, dbeta."""
    op, maker, results = "group_norm_bwd", "make_group_backward", ("dx", "dgamma", "dbeta")
    names = ("dy", "x", "gamma", "mean", "rstd", "y", "beta")

    def reference(self, values, tensor_cores=False):
        if not self.size:
            return self.nothing()
        return self.bounded(self.backward(values))

    @property
    def gradient(self):
        return self.differences if 0 < self.size <= 200 else None


def _groups(shape):
    return next(g for g in (4, 3, 2, 1) if shape[1] % g == 0)


def table(kind):
    """The cases of an operation."""
    found, case = cases_of(kind, ("gamma", "y", "beta") if kind is Backward else ("gamma", "beta"), groups=_groups)
    for dtype in SHORT:
        case("instances", (3, 4, 5, 6), dtype, groups=4, instance=True)
        case("instances-last", (2, 8, 3, 5), dtype, layout="NHWC", groups=8, instance=True, weights="float32" if "16" in dtype else None)
        case("layer", (3, 8, 2, 6), dtype, groups=1)
    case("layer-last", (3, 24, 4), "bfloat16", layout="NHWC", groups=1)
    case("empty", (0, 4, 3, 3), "float32")
    case("matrix", (12, 24), "bfloat16", activation="relu")
    case("matrix-last", (9, 21), "float32", layout="NHWC")
    case("statistics-apart", (3, 8, 5), "float32", weight={"step": 2, "gap": 1})
    case("statistics-across", (3, 8, 5), "float32", layout="NHWC", places={"mean": {"order": (1, 0)}, "rstd": {"flip": (1,)}})
    case("tiny", (2, 4, 3, 2), "float64", activation="leaky_relu")
    case("tiny-last", (2, 6, 4), "float64", layout="NHWC", activation="relu")
    case("tiny-instances", (2, 3, 4), "float64", groups=3, instance=True)
    case("tiny-swish", (2, 4, 3, 2), "float64", activation="swish")
    case("tiny-mish-last", (2, 6, 4), "float64", layout="NHWC", activation="mish", missing=("gamma", "beta"))
    case("tiny-instances-gelu", (2, 3, 4), "float64", groups=3, instance=True, activation="gelu")
    if kind is Forward:  # more than the registers of 64 threads hold
        case("long", (1, 4, 45, 40), "float32", groups=2, activation="relu")
        case("long", (2, 2, 61, 67), "bfloat16", groups=2)
        case("long", (1, 4, 46, 45), "float16", groups=2)
        case("long", (1, 2, 25, 33), "float64", groups=2)
        case("slices-last", (1, 8, 10, 15), "float32", layout="NHWC", groups=2, activation="relu")
        case("slices-last", (2, 16, 9, 17), "bfloat16", layout="NHWC", groups=2)
        case("slices-last", (1, 16, 11, 13), "float16", layout="NHWC", groups=2)
        case("program-chain-long", (1, 4, 45, 40), "float32", groups=2, activation="relu", program="chain")
        case("program-two-inputs-long", (2, 2, 61, 67), "bfloat16", groups=2, program="two-inputs")
        case("program-bias-gelu-instances", (3, 4, 5, 6), "float16", groups=4, instance=True, program="bias-gelu")
        case("program-chain-instances-last", (2, 8, 3, 5), "bfloat16", layout="NHWC", groups=8, instance=True, program="chain")
    return found


def large(kind):
    """Cases for a GPU."""
    found, case = cases_of(kind, ("y", "beta") if kind is Backward else (), common=False,
                           groups=lambda shape: 32 if shape[1] % 32 == 0 else 8)
    for dtype in SHORT:
        for layout in ("NCHW", "NHWC"):
            case(f"{layout}", (8, 128, 56, 57), dtype, layout=layout, activation="relu")
            case(f"{layout}", (17, 256, 14, 14), dtype, layout=layout)
            case(f"{layout}", (5, 1000, 7, 7), dtype, layout=layout, activation="relu")
            case(f"{layout}-swish", (8, 128, 56, 57), dtype, layout=layout, activation="swish")
            case(f"{layout}-gelu", (5, 1000, 7, 7), dtype, layout=layout, activation="gelu")
    return found

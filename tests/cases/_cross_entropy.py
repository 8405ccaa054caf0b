"""What the cases of cross-entropy and of its gradient share: the definition in float64, and how far rounding may lead from it."""
import math
from dataclasses import dataclass, field

import numpy as np

from . import ROUNDOFF, Case, coherent, lay, rounded, rounding_error

SHORT = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def growth(n):
    """Bound of the relative error of a sum of n numbers of one sign, in roundoffs, whatever the order."""
    return min(n, 8 * n ** 0.5 + 8)


def in_mode(values, mode):
    """Integers where the mode wants them, though no result is exact."""
    return {name: np.rint(v) for name, v in values.items()} if mode == "exact" else values


def log_sum(x, axis):
    """The logarithm of the sum of exponentials."""
    m = x.max(axis, keepdims=True, initial=-np.inf)
    m = np.where(np.isfinite(m), m, 0)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(x - m).sum(axis)) + m.squeeze(axis)


@dataclass(frozen=True)
class Labelled(Case):
    """One call; layouts are keywords of `lay` by operand."""
    id: str
    shape: tuple
    dtype: str = "float32"
    targets: str = "int64"
    weight: str = ""
    smoothing: float = 0.0
    ignore: int = -100
    reduction: str = "mean"
    layout: dict = field(default_factory=dict, hash=False)
    around: float = 0.0
    exact = False

    @property
    def axis(self):
        return min(1, len(self.shape) - 1)

    @property
    def classes(self):
        return self.shape[self.axis]

    @property
    def rows_shape(self):
        return self.shape[:self.axis] + self.shape[self.axis + 1:]

    @property
    def soft(self):
        return self.targets == "soft"

    @property
    def compute(self):
        return "float64" if self.dtype == "float64" else "float32"

    @property
    def unit(self):
        return ROUNDOFF[self.compute]

    @property
    def loss_shape(self):
        return self.rows_shape if self.reduction == "none" else ()

    @property
    def work(self):
        return 6 * math.prod(self.shape)

    def place(self, name, shape, dtype):
        return lay(shape, dtype, **self.layout.get(name, {}))

    def common(self):
        """Places of the operands that both directions have."""
        target = (self.shape, self.dtype) if self.soft else (self.rows_shape, self.targets)
        return {"logits": self.place("logits", self.shape, self.dtype), "targets": self.place("targets", *target),
                "weight": self.place("weight", (self.classes,), self.weight) if self.weight else None}

    def tensors(self):
        """Descriptors of operands and results by name."""
        from dnnkern.host.tensor import Tensor
        return {name: p and Tensor(p.shape, p.strides, p.dtype, p.alignment) for name, p in {**self.inputs(), **self.outputs()}.items()}

    @property
    def parameters(self):
        return self.ignore, self.smoothing, self.reduction

    def keywords(self, arrays, out, tail):
        """Those of the public function."""
        return {"weight": arrays["weight"], "ignore_index": self.ignore, "label_smoothing": self.smoothing, "reduction": self.reduction,
                "out": out, **tail}

    def common_values(self):
        """Logits, targets of which one in five is ignored, but not the first, weights."""
        rng, places = np.random.default_rng(list(self.id.encode())), self.common()
        found = {"logits": rounded(2 * rng.standard_normal(self.shape) + self.around, self.dtype)}
        if self.soft:
            found["targets"] = rounded(rng.random(self.shape) / max(1, self.classes / 4), self.dtype)
        else:
            labels = rng.integers(0, self.classes, self.rows_shape).astype(np.float64)
            ignored = (rng.random(self.rows_shape) < 0.2) & (np.arange(labels.size).reshape(self.rows_shape) > 0)
            found["targets"] = np.where(ignored, self.ignore, labels)
        if self.weight:
            found["weight"] = rounded(rng.uniform(0.25, 1.75, self.classes), self.weight)
        return {name: coherent(value, places[name]) if value.ndim else value for name, value in found.items()}

    # ---- the definition

    def aims(self, values):
        """(what each logarithm of a probability counts in the loss, of the logits' shape; the weight of each row's label)."""
        shape = [1] * len(self.shape)
        shape[self.axis] = self.classes
        weight = (values["weight"] if self.weight else np.ones(self.classes)).reshape(shape)
        if self.soft:
            return weight * ((1 - self.smoothing) * values["targets"] + self.smoothing / self.classes), np.ones(self.rows_shape)
        labels, kept = np.expand_dims(values["targets"], self.axis), np.expand_dims(values["targets"] != self.ignore, self.axis)
        hot = (np.arange(self.classes).reshape(shape) == labels) & kept
        aims = weight * ((1 - self.smoothing) * hot + self.smoothing / self.classes * kept)
        return aims, (weight * hot).sum(self.axis)

    def divisor(self, counts):
        """What the sum of the rows' losses is divided by."""
        if self.reduction != "mean":
            return 1.0
        return math.prod(self.rows_shape) if self.soft else counts.sum()

    def losses(self, x, values):
        """The rows' losses."""
        aims, _ = self.aims(values)
        return -(aims * (x - np.expand_dims(log_sum(x, self.axis), self.axis))).sum(self.axis)


class Forward(Labelled):
    """The loss and the logarithm of each row's sum of exponentials."""
    op = "cross_entropy_fwd"

    @property
    def work(self):
        """Rows are short, and most threads add up what few rows left."""
        return 60 * (1 + math.prod(self.rows_shape))

    def inputs(self):
        return self.common()

    def outputs(self):
        return {"loss": self.place("loss", self.loss_shape, self.compute), "lse": self.place("lse", self.rows_shape, self.compute)}

    def problem(self):
        from dnnkern.loss._problem import make_forward
        t = self.tensors()
        return make_forward((t["logits"], t["targets"], t["weight"]), (t["loss"], t["lse"]), *self.parameters, frozenset())

    def call(self, arrays, out=None, **tail):
        from dnnkern import cross_entropy_fwd
        return cross_entropy_fwd(arrays["logits"], arrays["targets"], **self.keywords(arrays, out, tail))

    def values(self, mode):
        return in_mode(self.common_values(), mode)

    def reference(self, values, tensor_cores=False):
        """An exponential loses its argument's roundoff, and a few of its own; so does each merge of partial sums. Sums over classes are
        of differences to the first logit."""
        x, axis, unit, n = values["logits"], self.axis, self.unit, growth(self.classes)
        if not math.prod(self.rows_shape):
            loss = np.zeros(self.loss_shape) if self.reduction != "mean" else np.full((), np.nan)
            return {"loss": loss, "lse": np.zeros(self.rows_shape)}, {"loss": np.zeros(()), "lse": np.zeros(())}
        aims, counts = self.aims(values)
        lse, top, first = log_sum(x, axis), x.max(axis), np.take(x, 0, axis)
        lse_error = unit * (n + 16 + 4 * (top[..., None] - np.moveaxis(x, axis, -1)).max(-1) + 4 * np.abs(lse - top))
        d = np.abs(x - np.expand_dims(lse, axis)) + np.abs(np.expand_dims(top - lse, axis)) + np.abs(x - np.expand_dims(first, axis))
        d = d + np.abs(np.expand_dims(lse - first, axis))
        rows, error = self.losses(x, values), (aims * (np.expand_dims(lse_error, axis) + unit * (n + 16) * d)).sum(axis)
        loss = rows
        if self.reduction != "none":
            many = growth(rows.size) + 8
            loss, error = rows.sum() / self.divisor(counts), (error.sum() + 2 * unit * many * np.abs(rows).sum()) / self.divisor(counts)
        error = error + 4 * unit * np.abs(loss)
        return {"loss": np.asarray(loss), "lse": lse}, {"loss": error, "lse": lse_error + 4 * unit * (np.abs(lse) + np.abs(top))}


class Backward(Labelled):
    """The gradient by the logits."""
    op = "cross_entropy_bwd"

    def inputs(self):
        found = self.common()
        return {"dloss": self.place("dloss", self.loss_shape, self.compute), "logits": found["logits"], "targets": found["targets"],
                "lse": self.place("lse", self.rows_shape, self.compute), "weight": found["weight"]}

    def outputs(self):
        return {"dlogits": self.place("dlogits", self.shape, self.dtype)}

    def problem(self):
        from dnnkern.loss._problem import make_backward
        t = self.tensors()
        return make_backward(tuple(t[name] for name in ("dloss", "logits", "targets", "lse", "weight")), t["dlogits"], *self.parameters,
                             frozenset())

    def call(self, arrays, out=None, **tail):
        from dnnkern import cross_entropy_bwd
        out = out[0] if isinstance(out, tuple) else out
        return cross_entropy_bwd(arrays["dloss"], arrays["logits"], arrays["targets"], arrays["lse"], **self.keywords(arrays, out, tail))

    def values(self, mode):
        found, places = self.common_values(), self.inputs()
        rng = np.random.default_rng(11)
        lse = log_sum(found["logits"], self.axis) if math.prod(self.rows_shape) else np.zeros(self.rows_shape)
        dloss = rounded(rng.standard_normal(self.loss_shape) + 8, self.compute) * 2.0 ** (3 if self.reduction == "mean" else 0)
        found = {**found, "lse": coherent(rounded(lse, self.compute), places["lse"]), "dloss": coherent(dloss, places["dloss"])}
        return in_mode(found, mode)

    def slopes(self, x, lse, values):
        """(the gradient, the sum of what it is made of without signs)."""
        aims, counts = self.aims(values)
        g = np.expand_dims(np.broadcast_to(values["dloss"] / self.divisor(counts), self.rows_shape), self.axis)
        grown = g * aims.sum(self.axis, keepdims=True) * np.exp(x - np.expand_dims(lse, self.axis))
        return grown - g * aims, np.abs(grown) + np.abs(g * aims)

    def reference(self, values, tensor_cores=False):
        x, lse = values["logits"], values["lse"]
        if not x.size:
            return {"dlogits": x}, {"dlogits": x}
        dx, size = self.slopes(x, lse, values)
        factor = growth(self.classes) + growth(math.prod(self.rows_shape)) + 24 + 4 * np.abs(x - np.expand_dims(lse, self.axis))
        return {"dlogits": dx}, {"dlogits": self.unit * factor * size + rounding_error(dx, self.dtype)}

    @property
    def gradient(self):
        return self._differences if 0 < math.prod(self.shape) <= 60 else None

    def _differences(self, values):
        """d(loss * dloss) / dlogits, by differences in float64."""
        _, counts = self.aims(values)
        x, step = values["logits"], 1e-5
        numeric = np.zeros(self.shape)

        def total(x):
            return (np.broadcast_to(values["dloss"], self.rows_shape) * self.losses(x, values)).sum() / self.divisor(counts)
        for at in np.ndindex(self.shape):
            high, low = x.copy(), x.copy()
            high[at] += step
            low[at] -= step
            numeric[at] = (total(high) - total(low)) / (2 * step)
        yield self.slopes(x, log_sum(x, self.axis), values)[0], numeric, 1e-7 * (1 + np.abs(numeric))


def table(kind):
    """The cases of a direction."""
    def case(name, shape, dtype="float32", **more):
        layout = more.pop("layout", {})
        if "all" in layout:
            layout = dict.fromkeys(("logits", "dlogits"), layout["all"])
        found.append(kind(f"{name}-{'x'.join(map(str, shape))}-{SHORT[dtype]}", shape, dtype, layout=layout, **more))

    found = []
    for dtype in SHORT:
        case("rows", (5, 64), dtype)
        case("rows-odd-sum", (3, 77), dtype, reduction="sum", targets="int32")
        case("rows-weighted-smooth", (4, 41), dtype, weight=dtype, smoothing=0.125)
        case("soft", (4, 48), dtype, targets="soft")
        case("soft-odd-smooth-weighted", (3, 37), dtype, targets="soft", weight=dtype, smoothing=0.25, reduction="none")
        case("long-smooth", (2, 1536), dtype, smoothing=0.1)
        case("long-odd", (2, 1031), dtype, reduction="none")
        case("longer", (1, 4700), dtype, reduction="sum")
        case("pixels", (2, 5, 4, 8), dtype, reduction="none")
        case("pixels-odd-smooth", (2, 4, 3, 3), dtype, smoothing=0.1, weight=dtype)
    for n in (1, 2, 3, 4, 5, 8, 9, 16, 17, 31, 33, 65):
        case("edge", (3, n), "float32" if n % 2 else "bfloat16", reduction="none" if n % 2 else "sum", smoothing=0.5 if n % 3 else 0.0)
    case("around-1000", (3, 96), around=1e3)
    case("around-minus-1000", (3, 300), around=-1e3)
    case("around-minus-1000-pixels", (2, 9, 8), around=-1e3)
    case("around-1000-smooth", (3, 96), around=1e3, smoothing=0.1, reduction="none")
    case("only-smoothing", (3, 20), smoothing=1.0)
    case("one-row", (60,), "float16", targets="int32")
    case("one-row-soft", (20,), targets="soft", smoothing=0.1)
    case("many-rows", (150, 4), "float16", ignore=2)
    case("ignored-class", (40, 6), ignore=3, smoothing=0.1)
    case("weights-of-float32", (6, 24), "bfloat16", weight="float32")
    case("weights-strided", (6, 24), weight="float32", smoothing=0.2, layout={"weight": {"step": 3}})
    case("weights-backwards", (6, 24), "float16", weight="float16", layout={"weight": {"flip": (0,)}})
    case("no-rows-sum", (0, 5), reduction="sum")
    case("no-rows-none", (0, 5), "bfloat16", reduction="none")
    case("no-pixels", (3, 5, 0), "float16", reduction="none")
    case("pixels-soft", (1, 5, 3, 16), "bfloat16", targets="soft", smoothing=0.1)
    case("pixels-channels-last", (2, 16, 3, 5), "float16", layout={"all": {"order": (0, 2, 3, 1)}})
    case("pixels-many-classes", (1, 40, 24), "bfloat16", reduction="none")
    case("volumes", (2, 3, 2, 3, 8), smoothing=0.1, layout={"targets": {"order": (0, 3, 1, 2)}})
    case("strided", (6, 18), layout={"logits": {"step": 2}, "dlogits": {"gap": 2}, "targets": {"step": 2}, "lse": {"step": 3}})
    case("rows-apart", (5, 48), "bfloat16", layout={"all": {"gap": 8}}, reduction="none")
    case("rows-apart-odd", (5, 48), "float16", layout={"all": {"gap": 1}})
    case("rows-apart-unlike", (5, 48), "float16", targets="soft",
         layout={"logits": {"gap": 1}, "targets": {"gap": 8}, "dlogits": {"gap": 3}})
    case("misaligned", (4, 40), "bfloat16", layout={"all": {"misaligned": 1}, "targets": {"misaligned": 1}})
    case("misaligned-one", (4, 40), layout={"logits": {"misaligned": 1}, "loss": {"step": 2}, "dloss": {"step": 2}}, reduction="none")
    case("stored-transposed", (12, 24), layout={"all": {"order": (1, 0)}}, smoothing=0.1)
    case("negative", (6, 24), layout={"logits": {"flip": (0, 1)}, "targets": {"flip": (0,)}, "dlogits": {"flip": (0,)}})
    case("one-row-many-times", (4, 24), layout={"logits": {"expand": (0,)}}, reduction="none")
    case("one-target-for-all", (4, 24), "float16", layout={"targets": {"expand": (0,)}})
    return found


def large(kind):
    """Cases for a GPU."""
    sizes = (("rows", (4097, 1000), {}), ("rows", (513, 4096), {"smoothing": 0.1}), ("rows", (65, 50257), {}), ("rows", (9, 128256), {}),
             ("rows", (2, 300001), {"reduction": "none"}), ("short", (70001, 10), {}), ("pixels", (8, 21, 64, 64), {"smoothing": 0.1}),
             ("soft", (257, 5000), {"targets": "soft"}), ("pixels-soft", (2, 21, 64, 64), {"targets": "soft"}), ("one", (1, 1000003), {}))
    found = []
    for dtype in SHORT:
        for name, shape, more in sizes:
            weight = dtype if more.get("smoothing") else ""
            found.append(kind(f"{name}-{'x'.join(map(str, shape))}-{SHORT[dtype]}", shape, dtype, weight=weight, **more))
    return found


def beyond(kind):
    """More than 2**31 elements."""
    return [kind("rows-2**31-bf16", (2 ** 17 + 3, 2 ** 14 + 8), "bfloat16", smoothing=0.1, reduction="none"),
            kind("pixels-2**31-bf16", (2 ** 10, 129, 2 ** 14), "bfloat16", reduction="none")]


def check_beyond_int32(case, algo, allow):
    """Every element compared with torch's float32 result, some of the first dimension at a time."""
    import torch
    import torch.nn.functional as F
    generator = torch.Generator("cuda").manual_seed(7)
    logits = torch.empty(case.shape, dtype=torch.bfloat16, device="cuda")
    for part in logits.view(-1).split(1 << 26):
        part.copy_(torch.randn(part.shape, generator=generator, device="cuda"))
    targets = torch.randint(0, case.classes, case.rows_shape, generator=generator, device="cuda")
    assert logits.numel() > 2 ** 31
    step = max(1, (1 << 26) // logits[0].numel())
    shares = range(0, len(logits), step)
    arrays = {"logits": logits, "targets": targets, "weight": None}
    if case.op.endswith("fwd"):
        loss, lse = case.call(arrays, algo=algo, allow=allow)
        for k in shares:
            part = logits[k:k + step].float()
            want = F.cross_entropy(part, targets[k:k + step], label_smoothing=case.smoothing, reduction="none")
            torch.testing.assert_close(loss[k:k + step], want, rtol=1e-3, atol=1e-3)
            torch.testing.assert_close(lse[k:k + step], part.logsumexp(1), rtol=1e-4, atol=1e-4)
        return
    arrays["lse"] = torch.cat([logits[k:k + step].float().logsumexp(1) for k in shares])
    arrays["dloss"] = torch.ones(case.rows_shape, device="cuda")
    out = case.call(arrays, algo=algo, allow=allow)
    for k in shares:
        part = logits[k:k + step].float().requires_grad_()
        F.cross_entropy(part, targets[k:k + step], label_smoothing=case.smoothing, reduction="sum").backward()
        torch.testing.assert_close(out[k:k + step].float(), part.grad, rtol=1e-2, atol=1e-3)

"""What the cases of the CTC loss and of its gradient share: the recursions of the definition, in float64."""
import math
from dataclasses import dataclass, field

import numpy as np

from . import ROUNDOFF, Case, lay, rounded, rounding_error
from ._cross_entropy import SHORT, growth, in_mode, log_sum


def extended(labels, blank):
    """The labels with blanks before, between and behind."""
    found = np.full(2 * len(labels) + 1, blank)
    found[1::2] = labels
    return found


def alignments(logp, labels, blank):
    """(logarithms of probabilities of alignments up to and with each state of each step, those of what is behind it)."""
    states, steps = extended(labels, blank), len(logp)
    ahead, behind = (np.full((steps, len(states)), -np.inf) for _ in range(2))
    for t in range(steps):
        for s, c in enumerate(states):
            if t == 0:
                before = [0.0] if s < 2 else []
            else:
                before = [ahead[t - 1, k] for k in (s, s - 1) if k >= 0]
                before += [ahead[t - 1, s - 2]] if s > 1 and states[s - 2] != c else []
            ahead[t, s] = logp[t, c] + (np.logaddexp.reduce(before) if before else -np.inf)
    for t in reversed(range(steps)):
        for s, c in enumerate(states):
            if t == steps - 1:
                after = [0.0] if s >= len(states) - 2 else []
            else:
                after = [behind[t + 1, k] + logp[t + 1, states[k]] for k in (s, s + 1) if k < len(states)]
                if s + 2 < len(states) and states[s + 2] != c:
                    after.append(behind[t + 1, s + 2] + logp[t + 1, states[s + 2]])
            behind[t, s] = np.logaddexp.reduce(after) if after else -np.inf
    return ahead, behind


def sample(x, labels, blank, normalized=False):
    """(the loss of a sample, its alignments ahead, the gradient by its logits)."""
    logp = x if normalized else x - log_sum(x, 1)[:, None]
    ahead, behind = alignments(logp, labels, blank)
    if not len(x):
        return 0.0 if not len(labels) else np.inf, ahead, np.zeros_like(x)
    total = np.logaddexp.reduce(ahead[-1, -2:])
    gradient = np.exp(logp)
    with np.errstate(invalid="ignore"):
        for s, c in enumerate(extended(labels, blank)):
            gradient[:, c] -= np.exp(ahead[:, s] + behind[:, s] - total)
    return -total, ahead, gradient


@dataclass(frozen=True)
class _Ctc(Case):
    """One call: `inputs_of` and `targets_of` are the samples' lengths, None for the longest."""
    id: str
    shape: tuple
    labels: int
    dtype: str = "float32"
    inputs_of: tuple = None
    targets_of: tuple = None
    index: str = "int64"
    blank: int = 0
    zero_infinity: bool = False
    normalized: bool = False
    classes_used: int = 0
    layout: dict = field(default_factory=dict, hash=False)
    exact = False

    @property
    def compute(self):
        return "float64" if self.dtype == "float64" else "float32"

    @property
    def unit(self):
        return ROUNDOFF[self.compute]

    @property
    def samples(self):
        return self.shape[1]

    @property
    def states(self):
        return 2 * self.labels + 1

    @property
    def input_lengths(self):
        return np.array(self.inputs_of if self.inputs_of is not None else (self.shape[0],) * self.samples)

    @property
    def target_lengths(self):
        return np.array(self.targets_of if self.targets_of is not None else (self.labels,) * self.samples)

    def place(self, name, shape, dtype):
        return lay(shape, dtype, **self.layout.get(name, {}))

    def common(self):
        """Places of the operands that both directions have."""
        lengths = (self.samples,), self.index
        return {"logits": self.place("logits", self.shape, self.dtype),
                "targets": self.place("targets", (self.samples, self.labels), self.index),
                "input_lengths": self.place("input_lengths", *lengths), "target_lengths": self.place("target_lengths", *lengths)}

    def saved(self):
        """Place of what is kept for the gradient."""
        return self.place("saved", (self.samples, self.shape[0], self.states + (not self.normalized)), self.compute)

    def loss(self):
        """Place of the loss or its gradient."""
        return self.place("loss", (self.samples,), self.compute)

    def tensors(self):
        """Descriptors of operands and results by name."""
        from dnnkern.host.tensor import Tensor
        return {name: Tensor(p.shape, p.strides, p.dtype, p.alignment) for name, p in {**self.inputs(), **self.outputs()}.items()}

    def common_values(self):
        """Labels with repetitions, and far fewer different ones than there are classes."""
        rng = np.random.default_rng(list(self.id.encode()))
        used = min(self.classes_used or 3, self.shape[2] - 1)
        labels = rng.integers(0, max(used, 1), (self.samples, self.labels))
        labels = labels + (labels >= self.blank) if used else labels
        return {"logits": rounded(rng.standard_normal(self.shape), self.dtype), "targets": labels.astype(np.float64),
                "input_lengths": self.input_lengths.astype(np.float64), "target_lengths": self.target_lengths.astype(np.float64)}

    def solve(self, x, values):
        """({loss, saved, gradient} of the definition, bound of the errors of logarithms of each sample)."""
        steps, samples, _ = self.shape
        loss, gradient, errors = np.zeros(samples), np.zeros(self.shape), np.zeros(samples)
        saved = np.full(self.saved().shape, -np.inf)
        for n in range(samples):
            t, count = int(self.input_lengths[n]), int(self.target_lengths[n])
            own = x[:t, n]
            loss[n], ahead, gradient[:t, n] = sample(own, values["targets"][n, :count].astype(int), self.blank, self.normalized)
            saved[n, :t, :ahead.shape[1]] = ahead
            if not self.normalized:
                saved[n, :, -1] = log_sum(x[:, n], 1)
            finite = np.abs(ahead[np.isfinite(ahead)])
            largest = finite.max() if finite.size else 0
            each = 32 + growth(self.shape[2]) + 8 * largest / max(1, t) ** 0.5 + 8 * np.abs(x[:, n]).max(initial=0)
            errors[n] = self.unit * (t + 2) * each
        return loss, saved, gradient, errors


class Forward(_Ctc):
    """The loss, and what is kept."""
    op = "ctc_loss_fwd"

    @property
    def work(self):
        return 15 * math.prod(self.shape[:2]) * self.states

    def inputs(self):
        return self.common()

    def outputs(self):
        return {"loss": self.loss(), "saved": self.saved()}

    def problem(self):
        from dnnkern.loss._ctc_problem import make_ctc_forward
        t = self.tensors()
        return make_ctc_forward(tuple(t[name] for name in self.inputs()), (t["loss"], t["saved"]), self.blank, self.zero_infinity,
                                self.normalized, frozenset())

    def call(self, arrays, out=None, **tail):
        from dnnkern import ctc_loss_fwd
        return ctc_loss_fwd(*(arrays[name] for name in self.inputs()), blank=self.blank, zero_infinity=self.zero_infinity,
                            normalized=self.normalized, out=out, **tail)

    def values(self, mode):
        return in_mode(self.common_values(), mode)

    def reference(self, values, tensor_cores=False):
        loss, saved, _, errors = self.solve(values["logits"], values)
        if self.zero_infinity:
            loss = np.where(loss == np.inf, 0, loss)
        return {"loss": loss, "saved": saved}, {"loss": errors, "saved": errors[:, None, None] + np.zeros(saved.shape)}


class Backward(_Ctc):
    """The gradient by the logits."""
    op = "ctc_loss_bwd"
    trivial = True  # behind the inputs' ends

    @property
    def work(self):
        return 15 * math.prod(self.shape[:2]) * self.states

    def inputs(self):
        return {"dloss": self.loss(), **self.common(), "saved": self.saved()}

    def outputs(self):
        return {"dlogits": self.place("dlogits", self.shape, self.dtype)}

    def problem(self):
        from dnnkern.loss._ctc_problem import make_ctc_backward
        t = self.tensors()
        return make_ctc_backward(tuple(t[name] for name in self.inputs()), t["dlogits"], self.blank, self.zero_infinity,
                                 self.normalized, frozenset())

    def call(self, arrays, out=None, **tail):
        from dnnkern import ctc_loss_bwd
        return ctc_loss_bwd(*(arrays[name] for name in self.inputs()), blank=self.blank, zero_infinity=self.zero_infinity,
                            normalized=self.normalized, out=out[0] if isinstance(out, tuple) else out, **tail)

    def values(self, mode):
        found = self.common_values()
        dloss = rounded(np.random.default_rng(5).standard_normal(self.samples) + 3, self.compute)
        _, saved, _, _ = self.solve(found["logits"], found)
        return in_mode({**found, "dloss": dloss, "saved": rounded(saved, self.compute)}, mode)

    def reference(self, values, tensor_cores=False):
        loss, _, gradient, errors = self.solve(values["logits"], values)
        gone = (loss == np.inf)[None, :, None]
        gradient = np.where(gone, 0.0, gradient) * values["dloss"][None, :, None]
        size = np.abs(values["dloss"])[None, :, None] * np.where(gone, 0.0, 1.0)
        return {"dlogits": gradient}, {"dlogits": 6 * errors[None, :, None] * size + rounding_error(gradient, self.dtype)}

    @property
    def gradient(self):
        return self._differences if math.prod(self.shape) <= 150 else None

    def _differences(self, values):
        """d(sum of loss * dloss) / dlogits, by differences in float64."""
        x, step, numeric = values["logits"], 1e-5, np.zeros(self.shape)
        loss, _, gradient, _ = self.solve(x, values)
        kept = np.isfinite(loss)

        def total(x):
            return (np.where(kept, self.solve(x, values)[0], 0) * values["dloss"]).sum()
        for at in np.ndindex(self.shape):
            high, low = x.copy(), x.copy()
            high[at] += step
            low[at] -= step
            numeric[at] = (total(high) - total(low)) / (2 * step)
        if self.normalized:  # then it is by what log-softmax was taken of: a step's probabilities are not in the loss
            within = np.arange(self.shape[0])[:, None] < self.input_lengths
            gradient = gradient - np.where(within[:, :, None], np.exp(x), 0)
        analytic = np.where(kept[None, :, None], gradient * values["dloss"][None, :, None], 0)
        yield analytic, numeric, 1e-7 * (1 + np.abs(numeric))


def table(kind):
    """The cases of a direction."""
    def case(name, shape, labels, dtype="float32", **more):
        found.append(kind(f"{name}-{'x'.join(map(str, (*shape, labels)))}-{SHORT[dtype]}", shape, labels, dtype, **more))

    found, backward = [], kind is Backward
    for dtype in SHORT:
        case("plain", (7, 2, 5), 3, dtype)
        case("lengths", (9, 3, 6), 4, dtype, inputs_of=(9, 6, 3), targets_of=(4, 0, 2), index="int32")
        case("blank-last", (8, 2, 4), 3, dtype, blank=3)
    case("normalized", (9, 3, 6), 4, inputs_of=(9, 6, 0), targets_of=(4, 0, 2), zero_infinity=True, normalized=True)
    case("normalized", (7, 2, 5), 3, "bfloat16", normalized=True)
    case("one-step", (1, 3, 4), 1, targets_of=(1, 0, 1))
    case("one-class", (4, 2, 1), 0)
    case("empty-targets", (5, 2, 4), 0)
    case("repeated", (9, 2, 3), 4, classes_used=1)
    case("no-steps", (6, 3, 4), 2, inputs_of=(0, 6, 0), targets_of=(0, 2, 0))
    case("long-target", (40, 1, 9), 18, classes_used=8)
    case("longer-target", (75, 1, 5), 35, classes_used=4)
    case("many-classes", (6, 1, 150), 2, "bfloat16", classes_used=140)
    case("too-long-zero", (5, 3, 4), 4, inputs_of=(5, 3, 5), targets_of=(2, 4, 1), zero_infinity=True)
    case("no-samples", (5, 0, 4), 2)
    case("batch-first", (6, 3, 5), 2, "float16", layout={name: {"order": (1, 0, 2)} for name in ("logits", "dlogits")})
    case("strided", (6, 2, 5), 2, layout={"logits": {"step": 2, "gap": 1}, "dlogits": {"gap": 3}, "targets": {"step": 3},
                                          "saved": {"gap": 2}, "loss": {"step": 2}, "input_lengths": {"step": 2}})
    case("backwards", (6, 2, 5), 2, layout={"logits": {"flip": (0, 2)}, "saved": {"flip": (1,)}, "target_lengths": {"flip": (0,)}})
    if not backward:
        case("too-long", (5, 3, 4), 4, inputs_of=(5, 3, 0), targets_of=(2, 4, 1))
    return found


def large(kind):
    """Cases for a GPU."""
    return [kind(f"speech-{'x'.join(map(str, (*shape, labels)))}-{SHORT[dtype]}", shape, labels, dtype, classes_used=shape[2] - 1)
            for dtype in SHORT for shape, labels in (((100, 3, 32), 30), ((64, 5, 1000), 12), ((300, 1, 40), 140))]

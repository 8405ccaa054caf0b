"""The problems of connectionist temporal classification: validation, shapes, and what is checked of labels and lengths."""
import operator
from dataclasses import dataclass

import numpy as np

from ..host.dtypes import compute_dtype
from ..host.products import FLOATS
from ..host.tensor import Tensor
from ._problem import LABELS, expect, present

LIMIT = 2 ** 31 - 2 ** 20


class _Ctc:
    """What both directions share: logits (T, N, C), targets (N, L), two lengths for each of N samples."""
    scalar_type = "float32"

    def _check(self):
        if self.logits.dtype not in FLOATS:
            raise TypeError(f"{self.op}: logits is {self.logits.dtype}; expected one of {', '.join(FLOATS)}")
        if self.logits.ndim != 3:
            raise ValueError(f"{self.op}: logits has shape {self.logits.shape}; expected (T, N, C)")
        if not self.classes:
            raise ValueError(f"{self.op}: logits has shape {self.logits.shape}, no class; expected one at least")
        for name in ("targets", "input_lengths", "target_lengths"):
            t = getattr(self, name)
            if t.dtype not in LABELS:
                raise TypeError(f"{self.op}: {name} is {t.dtype}; expected int32 or int64")
        if self.targets.ndim != 2 or self.targets.shape[0] != self.samples:
            raise ValueError(f"{self.op}: targets has shape {self.targets.shape}; expected labels of N={self.samples} samples, (N, L)")
        for name in ("input_lengths", "target_lengths"):
            if getattr(self, name).shape != (self.samples,):
                raise ValueError(f"{self.op}: {name} has shape {getattr(self, name).shape}; expected one a sample, ({self.samples},)")
        if not 0 <= self.blank < self.classes:
            raise ValueError(f"{self.op}: blank={self.blank}; expected a class, 0 to {self.classes - 1}")
        for name in ("zero_infinity", "normalized"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{self.op}: {name}={getattr(self, name)!r}; expected True or False")
        if max(self.steps * self.samples, self.steps * self.states, self.classes) >= LIMIT:
            raise ValueError(f"{self.op}: {self.steps} steps of {self.samples} samples, {self.states} states, {self.classes} classes; "
                             f"expected products below {LIMIT}")
        saved = (self.samples, self.steps, self.columns)
        expect(self.op, "out (saved)" if self.is_forward else "saved", self.saved, self.compute, saved)
        loss = ("out (loss)", self.loss) if self.is_forward else ("dloss", self.dloss)
        expect(self.op, *loss, self.compute, (self.samples,))
        if not self.is_forward:
            expect(self.op, "out", self.dlogits, self.dtype, self.logits.shape)
        for out in self.outputs:
            out.check_addresses(self.op)

    @property
    def is_forward(self):
        return self.op.endswith("fwd")

    @property
    def steps(self):
        """Of the longest input."""
        return self.logits.shape[0]

    @property
    def samples(self):
        return self.logits.shape[1]

    @property
    def classes(self):
        return self.logits.shape[2]

    @property
    def labels(self):
        """Of the longest target."""
        return self.targets.shape[1]

    @property
    def states(self):
        """Labels, and a blank before, between and after them."""
        return 2 * self.labels + 1

    @property
    def columns(self):
        """Of `saved`: the states, and the logarithm of a step's sum."""
        return saved_columns(self.labels, self.normalized)

    @property
    def dtype(self):
        return self.logits.dtype

    @property
    def compute(self):
        """Type of logarithms of probabilities."""
        return compute_dtype(self.dtype)

    @property
    def is_empty(self):
        return not any(t.size for t in self.outputs)

    @property
    def flops(self):
        return 20 * self.steps * self.samples * self.states

    @property
    def bytes(self):
        """Bytes that must move: each distinct element read, each written."""
        inputs = (self.logits, self.targets) if self.is_forward else (self.logits, self.targets, self.saved)
        return sum(t.nbytes for t in (*inputs, *self.outputs))

    def operand_values(self, name):
        """Lengths that fit, labels other than blank; backward nothing that overflows in what is made of it."""
        if name == "input_lengths":
            return self.steps
        if name == "target_lengths":
            return min(self.labels, self.steps // 2)
        if name == "targets":
            labels = np.random.default_rng(3).integers(0, max(1, self.classes - 1), self.targets.shape)
            return labels + (labels >= self.blank) if self.classes > 1 else labels
        if name == "saved":
            values = np.zeros(self.columns)
            if not self.normalized:
                values[-1] = np.log(self.classes) + 0.6
            return np.broadcast_to(values, self.saved.shape)
        return None

    def __str__(self):
        shape = "x".join(map(str, (*self.logits.shape, self.labels)))
        strided = "".join(f", {name} strides {getattr(self, name).strides}" for name in ("logits", "targets")
                          if not getattr(self, name).is_packed)
        return f"{self.op} {shape} {self.dtype} {self.targets.dtype} targets" + " zero_infinity" * self.zero_infinity + (
            " normalized" * self.normalized) + strided


@dataclass(frozen=True)
class CtcProblem(_Ctc):
    """The negative logarithm of the probability of all alignments of a target with its input.

    Attributes
    ----------
    logits, targets, input_lengths, target_lengths, loss, saved : Tensor
    blank : int
    zero_infinity : bool
    normalized : bool
        Whether the logits are logarithms of probabilities, which are taken as they are.
    """
    logits: Tensor
    targets: Tensor
    input_lengths: Tensor
    target_lengths: Tensor
    loss: Tensor
    saved: Tensor
    blank: int = 0
    zero_infinity: bool = False
    normalized: bool = False
    op = "ctc_loss_fwd"

    def __post_init__(self):
        self._check()

    @property
    def outputs(self):
        return self.loss, self.saved


@dataclass(frozen=True)
class CtcGradientProblem(_Ctc):
    """The gradient of `CtcProblem` by the logits.

    Attributes
    ----------
    dloss, logits, targets, input_lengths, target_lengths, saved, dlogits : Tensor
    blank : int
    zero_infinity : bool
    normalized : bool
        Whether the logits are logarithms of probabilities, which are taken as they are.
    """
    dloss: Tensor
    logits: Tensor
    targets: Tensor
    input_lengths: Tensor
    target_lengths: Tensor
    saved: Tensor
    dlogits: Tensor
    blank: int = 0
    zero_infinity: bool = False
    normalized: bool = False
    op = "ctc_loss_bwd"

    def __post_init__(self):
        self._check()

    @property
    def outputs(self):
        return (self.dlogits,)


def saved_columns(labels, normalized):
    """Columns of `saved`."""
    return 2 * labels + (1 if normalized else 2)


def _blank(op, blank):
    try:
        return operator.index(blank)
    except TypeError:
        raise TypeError(f"{op}: blank={blank!r}; expected an integer") from None


def make_ctc_forward(tensors, out, blank, zero_infinity, normalized, aliases):
    """The problem of a forward call; `out` is (loss, saved)."""
    op = "ctc_loss_fwd"
    present(op, ("logits", "targets", "input_lengths", "target_lengths"), tensors)
    logits, targets, *_ = tensors
    if logits.ndim != 3 or targets.ndim != 2:
        raise ValueError(f"{op}: logits has shape {logits.shape}, targets {targets.shape}; expected (T, N, C) and (N, L)")
    compute = compute_dtype(logits.dtype) if logits.dtype in FLOATS else "float32"
    steps, samples, _ = logits.shape
    shape = samples, steps, saved_columns(targets.shape[1], normalized)
    loss, saved = out if out is not None else (Tensor.packed((samples,), compute), Tensor.packed(shape, compute))
    return CtcProblem(*tensors, loss, saved, _blank(op, blank), zero_infinity, normalized)


def make_ctc_backward(tensors, out, blank, zero_infinity, normalized, aliases):
    """The problem of a backward call; `out` is dlogits."""
    op = "ctc_loss_bwd"
    present(op, ("dloss", "logits", "targets", "input_lengths", "target_lengths", "saved"), tensors)
    logits = tensors[1]
    dlogits = out if out is not None else Tensor.packed(logits.shape, logits.dtype)
    return CtcGradientProblem(*tensors, dlogits, _blank(op, blank), zero_infinity, normalized)


def check_sequences(problem, arrays):
    """ValueError where a length does not fit or a label is no class, or blank; waits for the device."""
    from ..host.check import to_host
    for name, most in (("input_lengths", problem.steps), ("target_lengths", problem.labels)):
        lengths = to_host(arrays[name])
        wrong = np.flatnonzero((lengths < 0) | (lengths > most))
        if wrong.size:
            raise ValueError(f"{problem.op}: {name}[{wrong[0]}] is {lengths[wrong[0]]}; expected 0 to {most}")
    lengths, labels = to_host(arrays["target_lengths"]), to_host(arrays["targets"])
    used = np.arange(problem.labels) < lengths[:, None]
    wrong = np.argwhere(used & ((labels < 0) | (labels >= problem.classes) | (labels == problem.blank)))
    if wrong.size:
        n, k = (int(i) for i in wrong[0])
        raise ValueError(f"{problem.op}: targets[{n}, {k}] is {labels[n, k]}; expected a class, 0 to {problem.classes - 1}, other than "
                         f"blank={problem.blank}")

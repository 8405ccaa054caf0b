"""The problems of losses over classes: validation, shapes, and the rows of scores that algorithms read."""
import functools
import math
import operator
from dataclasses import dataclass

import numpy as np

from ..device.rows import RowForm, row_form, row_vector
from ..host.choices import one_of
from ..host.dtypes import compute_dtype
from ..host.products import FLOATS
from ..host.tensor import Tensor

MOST_DIMENSIONS = 8
REDUCTIONS = ("mean", "sum", "none")
LABELS = ("int32", "int64")
NONE = frozenset()


class Classes:
    """What losses over classes and their gradients share: scores of classes along axis 1, or the only one, and a target for each row."""
    scalar_type = "float32"

    def _check(self, name, gradient=None):
        scores = getattr(self, name)
        if scores.dtype not in FLOATS:
            raise TypeError(f"{self.op}: {name} is {scores.dtype}; expected one of {', '.join(FLOATS)}")
        if not 1 <= scores.ndim <= MOST_DIMENSIONS:
            raise ValueError(f"{self.op}: {name} has {scores.ndim} dimensions (shape {scores.shape}); expected 1 to {MOST_DIMENSIONS}")
        if not self.classes:
            raise ValueError(f"{self.op}: {name} has shape {scores.shape}, no class along axis {self.axis}; expected one at least")
        self._check_targets(name)
        self._check_weight(name)
        one_of(self.op, "reduction", self.reduction, REDUCTIONS)
        check_share(self.op, self.label_smoothing)
        if self.is_soft and self.ignore_index >= 0:
            raise ValueError(f"{self.op}: ignore_index={self.ignore_index} with targets that are probabilities; it is for class indices")
        rows = self.targets_shape
        if self.is_forward:
            expect(self.op, "out (loss)", self.loss, self.compute, () if self.reduction != "none" else rows)
        else:
            expect(self.op, "dloss", self.dloss, self.compute, () if self.reduction != "none" else rows)
            expect(self.op, "out", gradient, scores.dtype, scores.shape)
        if self.lse is not None:
            expect(self.op, "out (lse)" if self.is_forward else "lse", self.lse, self.compute, rows)
        for out in self.outputs:
            out.check_addresses(self.op)

    def _check_targets(self, name):
        scores, targets = getattr(self, name), self.targets
        if targets.dtype in LABELS:
            if targets.shape != self.targets_shape:
                raise ValueError(f"{self.op}: targets has shape {targets.shape}, {name} {scores.shape}; expected class indices of shape "
                                 f"{self.targets_shape}")
        elif targets.dtype not in FLOATS or not self.may_be_soft:
            more = f", or {scores.dtype} for probabilities" if self.may_be_soft else ""
            raise TypeError(f"{self.op}: targets is {targets.dtype}; expected int32 or int64{more}")
        elif targets.dtype != scores.dtype:
            raise TypeError(f"{self.op}: targets is {targets.dtype}, {name} is {scores.dtype}; expected the same dtype, or class indices")
        elif targets.shape != scores.shape:
            raise ValueError(f"{self.op}: targets has shape {targets.shape}, {name} {scores.shape}; expected probabilities of that shape")

    def _check_weight(self, name):
        if self.weight is None:
            return
        if self.weight.dtype not in (self.dtype, self.compute):
            raise TypeError(f"{self.op}: weight is {self.weight.dtype}, {name} is {self.dtype}; expected {self.dtype}"
                            + f" or {self.compute}" * (self.compute != self.dtype))
        if self.weight.shape != (self.classes,):
            raise ValueError(f"{self.op}: weight has shape {self.weight.shape}; expected one for each class, ({self.classes},)")

    # ---- what algorithms ask

    @property
    def is_forward(self):
        return self.op.endswith("fwd")

    @property
    def axis(self):
        """Of the classes."""
        return min(1, self.scores.ndim - 1)

    @property
    def classes(self):
        return self.scores.shape[self.axis]

    @property
    def targets_shape(self):
        """Shape of what there is one of for each row."""
        return self.scores.shape[:self.axis] + self.scores.shape[self.axis + 1:]

    @property
    def rows(self):
        return math.prod(self.targets_shape)

    @property
    def is_soft(self):
        """Whether targets are probabilities."""
        return self.targets.dtype not in LABELS

    @property
    def dtype(self):
        return self.scores.dtype

    @property
    def compute(self):
        """Type of exponentials, sums and losses."""
        return compute_dtype(self.dtype)

    @property
    def keep(self):
        """Share of the target itself."""
        return 1.0 - self.label_smoothing

    @property
    def share(self):
        """Share of each class."""
        return self.label_smoothing / self.classes

    @property
    def whole(self):
        """Names of the arrays that have an element for each class of each row, read or written row by row."""
        names = () if self.lse is None and not self.is_forward else ("scores", "targets") if self.is_soft else ("scores",)
        return names if self.is_forward else (*names, "gradient")

    @functools.cached_property
    def strides(self):
        """{array: element strides along the dimensions of the scores}; 0 along classes where a row has one element, and where all rows
        share one."""
        found = {name: getattr(self, name).strides for name in self.whole}
        for name in ("targets", "lse", "loss", "dloss"):
            t = getattr(self, name, None)
            if name not in found and t is not None:
                steps = t.strides if t.shape == self.targets_shape else (0,) * (self.scores.ndim - 1)
                found[name] = (*steps[:self.axis], 0, *steps[self.axis:])
        return found

    @functools.cached_property
    def form(self) -> RowForm:
        """The rows of all arrays; these in the order of `places_of`."""
        return row_form(self.scores.shape, (self.axis,), *(self.strides[name] for name in self.places_of))

    @property
    def places_of(self):
        """Names of the arrays, in the form's order: what is written last decides the order of the rows."""
        return tuple(sorted(self.strides, key=lambda name: name in self.whole))

    def step(self, name):
        """Element stride of an array along the classes."""
        return self.form.row[0].strides[self.places_of.index(name)]

    @functools.cached_property
    def vector(self):
        """(bytes of a vector of the arrays in `whole`, whether rows have unaligned edges)."""
        at = [self.places_of.index(name) for name in self.whole]
        parts = (tuple(type(d)(d.size, tuple(d.strides[k] for k in at)) for d in dims) for dims in (self.form.row, self.form.outer))
        return row_vector(RowForm(*parts), [getattr(self, name) for name in self.whole])

    @property
    def is_empty(self):
        return not any(t.size for t in self.outputs)

    @property
    def flops(self):
        return 4 * self.scores.size if self.lse is not None else 0

    def operand_values(self, name):
        """Labels within the classes, weights that are positive, sums of exponentials as of normal logits."""
        rng = np.random.default_rng(3)
        if name == "targets" and not self.is_soft:
            return rng.integers(0, self.classes, self.targets.shape)
        if name == "lse":
            return math.log(self.classes) + 0.6
        if name == "weight" and self.weight.dtype in ("float32", "float64"):
            return rng.uniform(0.5, 1.5, self.classes)
        return None

    def __str__(self):
        shape = "x".join(map(str, self.scores.shape))
        strided = "".join(f", {name} strides {t.strides}" for name, t in self.named if t is not None and not t.is_packed)
        smooth = f" smoothing {self.label_smoothing:g}" * (self.label_smoothing > 0)
        return (f"{self.op} {shape} {self.dtype} {'soft' if self.is_soft else self.targets.dtype} targets {self.reduction}"
                + " weighted" * (self.weight is not None) + smooth + strided)


@dataclass(frozen=True)
class CrossEntropyProblem(Classes):
    """Cross-entropy of softmax(logits) with targets, and the logarithms of the sums of exponentials.

    Attributes
    ----------
    logits, targets : Tensor
    weight : Tensor or None
    loss, lse : Tensor
    ignore_index : int
    label_smoothing : float
    reduction : str
    """
    logits: Tensor
    targets: Tensor
    weight: Tensor | None
    loss: Tensor
    lse: Tensor
    ignore_index: int = -100
    label_smoothing: float = 0.0
    reduction: str = "mean"
    op = "cross_entropy_fwd"
    may_be_soft = True

    def __post_init__(self):
        self._check("logits")

    @property
    def scores(self):
        return self.logits

    @property
    def named(self):
        return (("logits", self.logits), ("targets", self.targets), ("weight", self.weight), ("loss", self.loss), ("lse", self.lse))

    @property
    def outputs(self):
        return self.loss, self.lse

    @property
    def bytes(self):
        """Bytes that must move: each distinct element read, each written."""
        return sum(t.nbytes for t in (self.logits, self.targets, *self.outputs))


@dataclass(frozen=True)
class CrossEntropyGradientProblem(Classes):
    """The gradient of `CrossEntropyProblem` by its logits.

    Attributes
    ----------
    dloss, logits, targets, lse : Tensor
    weight : Tensor or None
    dlogits : Tensor
    ignore_index, label_smoothing, reduction
        As the forward problem's.
    """
    dloss: Tensor
    logits: Tensor
    targets: Tensor
    lse: Tensor
    weight: Tensor | None
    dlogits: Tensor
    ignore_index: int = -100
    label_smoothing: float = 0.0
    reduction: str = "mean"
    op = "cross_entropy_bwd"
    may_be_soft = True

    def __post_init__(self):
        self._check("logits", self.dlogits)

    @property
    def scores(self):
        return self.logits

    @property
    def gradient(self):
        return self.dlogits

    @property
    def named(self):
        return (("dloss", self.dloss), ("logits", self.logits), ("targets", self.targets), ("lse", self.lse), ("weight", self.weight),
                ("dlogits", self.dlogits))

    @property
    def outputs(self):
        return (self.dlogits,)

    @property
    def bytes(self):
        """Bytes that must move: each distinct element read, each written."""
        return sum(t.nbytes for t in (self.dloss, self.logits, self.targets, self.lse, self.dlogits))


@dataclass(frozen=True)
class NllProblem(Classes):
    """The negative logarithms of the targets' probabilities, weighted.

    Attributes
    ----------
    logp, targets : Tensor
    weight : Tensor or None
    loss : Tensor
    ignore_index : int
    reduction : str
    """
    logp: Tensor
    targets: Tensor
    weight: Tensor | None
    loss: Tensor
    ignore_index: int = -100
    reduction: str = "mean"
    op = "nll_loss_fwd"
    may_be_soft, label_smoothing, lse = False, 0.0, None

    def __post_init__(self):
        self._check("logp")

    @property
    def scores(self):
        return self.logp

    @property
    def named(self):
        return ("logp", self.logp), ("targets", self.targets), ("weight", self.weight), ("loss", self.loss)

    @property
    def outputs(self):
        return (self.loss,)

    @property
    def bytes(self):
        """Bytes that must move: of each row one element."""
        return self.rows * self.logp.itemsize + self.targets.nbytes + self.loss.nbytes


@dataclass(frozen=True)
class NllGradientProblem(Classes):
    """The gradient of `NllProblem` by the logarithms of probabilities, of which only shape and dtype count.

    Attributes
    ----------
    dloss, logp, targets : Tensor
    weight : Tensor or None
    dlogp : Tensor
    ignore_index, reduction
        As the forward problem's.
    """
    dloss: Tensor
    logp: Tensor
    targets: Tensor
    weight: Tensor | None
    dlogp: Tensor
    ignore_index: int = -100
    reduction: str = "mean"
    op = "nll_loss_bwd"
    may_be_soft, label_smoothing, lse = False, 0.0, None

    def __post_init__(self):
        self._check("logp", self.dlogp)

    @property
    def scores(self):
        return self.logp

    @property
    def gradient(self):
        return self.dlogp

    @property
    def named(self):
        return (("dloss", self.dloss), ("logp", self.logp), ("targets", self.targets), ("weight", self.weight), ("dlogp", self.dlogp))

    @property
    def outputs(self):
        return (self.dlogp,)

    @property
    def bytes(self):
        """Bytes that must move: each distinct element read, each written."""
        return sum(t.nbytes for t in (self.dloss, self.targets, self.dlogp))


# ---- what is checked, and problems from calls

def expect(op, name, t, dtype, shape):
    """Raise unless a tensor has this dtype and shape."""
    if t.dtype != dtype:
        raise TypeError(f"{op}: {name} is {t.dtype}; expected {dtype}")
    if t.shape != shape:
        raise ValueError(f"{op}: {name} has shape {t.shape}; expected {shape}")


def check_share(op, smoothing):
    """Raise unless it is a number from 0 to 1."""
    if isinstance(smoothing, bool) or not isinstance(smoothing, (int, float)):
        raise TypeError(f"{op}: label_smoothing={smoothing!r}; expected a number from 0 to 1")
    if not 0 <= smoothing <= 1:
        raise ValueError(f"{op}: label_smoothing={smoothing!r}; expected a number from 0 to 1")


def present(op, names, tensors):
    """TypeError where an operand is None that may not be."""
    for name, t in zip(names, tensors):
        if t is None:
            raise TypeError(f"{op}: {name}: got NoneType; expected an array")


def normal_ignore(op, value):
    """ignore_index as an int."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{op}: ignore_index={value!r}; expected an integer") from None
    if not -2 ** 63 <= number < 2 ** 63:
        raise ValueError(f"{op}: ignore_index={value}; expected a 64-bit integer")
    return number


def loss_shape(op, scores, reduction):
    """Shape of the losses of these scores; that of a row's, and what is expected of wrong parameters comes later."""
    one_of(op, "reduction", reduction, REDUCTIONS)
    if not scores.ndim:
        raise ValueError(f"{op}: {'logits' if op.startswith('cross') else 'logp'} has no dimensions; expected 1 to {MOST_DIMENSIONS}")
    axis = min(1, scores.ndim - 1)
    rows = scores.shape[:axis] + scores.shape[axis + 1:]
    return (() if reduction != "none" else rows), rows


def make_forward(tensors, out, ignore_index, label_smoothing, reduction, aliases):
    """The problem of a forward call; `out` is (loss, lse)."""
    op = "cross_entropy_fwd"
    logits, targets, weight = tensors
    present(op, ("logits", "targets"), (logits, targets))
    shape, rows = loss_shape(op, logits, reduction)
    compute = compute_dtype(logits.dtype) if logits.dtype in FLOATS else "float32"
    loss, lse = out if out is not None else (Tensor.packed(shape, compute), Tensor.packed(rows, compute))
    return CrossEntropyProblem(logits, targets, weight, loss, lse, normal_ignore(op, ignore_index), label_smoothing, reduction)


def make_backward(tensors, out, ignore_index, label_smoothing, reduction, aliases):
    """The problem of a backward call; `out` is dlogits."""
    op = "cross_entropy_bwd"
    dloss, logits, targets, lse, weight = tensors
    present(op, ("dloss", "logits", "targets", "lse"), (dloss, logits, targets, lse))
    dlogits = out if out is not None else Tensor.packed(logits.shape, logits.dtype)
    loss_shape(op, logits, reduction)
    return CrossEntropyGradientProblem(dloss, logits, targets, lse, weight, dlogits, normal_ignore(op, ignore_index), label_smoothing,
                                       reduction)


def make_nll_forward(tensors, out, ignore_index, reduction, aliases):
    """The problem of a forward call of nll_loss."""
    op = "nll_loss_fwd"
    logp, targets, weight = tensors
    present(op, ("logp", "targets"), (logp, targets))
    shape, _ = loss_shape(op, logp, reduction)
    compute = compute_dtype(logp.dtype) if logp.dtype in FLOATS else "float32"
    return NllProblem(logp, targets, weight, out if out is not None else Tensor.packed(shape, compute), normal_ignore(op, ignore_index),
                      reduction)


def make_nll_backward(tensors, out, ignore_index, reduction, aliases):
    """The problem of a backward call of nll_loss."""
    op = "nll_loss_bwd"
    dloss, logp, targets, weight = tensors
    present(op, ("dloss", "logp", "targets"), (dloss, logp, targets))
    loss_shape(op, logp, reduction)
    dlogp = out if out is not None else Tensor.packed(logp.shape, logp.dtype)
    return NllGradientProblem(dloss, logp, targets, weight, dlogp, normal_ignore(op, ignore_index), reduction)


def check_labels(problem, arrays):
    """ValueError where a target is neither a class nor ignored; waits for the device."""
    from ..host.check import to_host
    if problem.is_soft:
        return
    labels = to_host(arrays["targets"])
    wrong = ((labels < 0) | (labels >= problem.classes)) & (labels != problem.ignore_index)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise ValueError(f"{problem.op}: targets{list(at) if at else ''} is {labels[at]}; expected a class, 0 to {problem.classes - 1}, or "
                         f"ignore_index={problem.ignore_index}")

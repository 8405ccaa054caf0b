"""What all algorithms of losses over classes compute of an element, of a row and of a target, in float32 or float64."""
import functools
import math
from dataclasses import dataclass
from typing import Callable, NamedTuple

from ..device import device_function, f32, f64, i64
from ..device.convert import element
from ..device.fastmath import ex2, exp, exp_fast, fabs, fma, maximum, rcp

IGNORED, INVALID = -1, -2  # labels that are no class
# Names of the arrays that a row has offsets in.
FORWARD, BACKWARD = ("scores", "targets", "loss", "lse"), ("dloss", "scores", "targets", "lse", "gradient")
NEGATIVE_INFINITY, LOG2E = -math.inf, 1.4426950408889634
FAR = 2.0 ** 30  # scores beyond it are 64 apart or equal


@dataclass(frozen=True)
class Kind:
    """What kernels are compiled for, of the problem.

    Attributes
    ----------
    dtype : str
        Of the scores.
    labels : str
        dtype of class indices; "" for probabilities.
    weight : str
        dtype of the classes' weights; "" for none.
    smooth : bool
        Whether every class has a share of the target.
    each : bool
        Whether every row has a loss of its own, to be written or whose gradient is given.
    mean : bool
        Whether losses are divided by the sum of the labels' weights.
    reads : bool
        Whether the gradient depends on the scores.
    """
    dtype: str
    labels: str
    weight: str
    smooth: bool
    each: bool
    mean: bool
    reads: bool = True

    @property
    def compute(self):
        return element(self.dtype).compute

    @property
    def real(self):
        """Type to compute with."""
        return f64 if self.compute == "float64" else f32

    @property
    def soft(self):
        return not self.labels

    @property
    def shares(self):
        """Whether the loss has a part of every class."""
        return self.smooth or self.soft


def kind_of(problem) -> Kind:
    """The kind of a problem."""
    soft = problem.is_soft
    return Kind(problem.dtype, "" if soft else problem.targets.dtype, problem.weight.dtype if problem.weight is not None else "",
                problem.label_smoothing > 0, problem.reduction == "none", problem.reduction == "mean" and not soft,
                problem.lse is not None)


class Terms(NamedTuple):
    """Device functions of a `Kind`.

    power(d)
        exp(d). In float32 two instructions: a difference loses nothing in them that its rounding has not lost.
    shift(m)
        A maximum, or its level, but 0 for -inf: where nothing is there yet to be summed.
    scale(m)
        What scores are multiplied by below a maximum m: in float32 log2(e), so that `rise` is two instructions and one rounding. Where m is
        so large that the rounding of its level, m times the scale, would count, 1, which is exact: others are too far below to count.
    rise(x, s, low)
        exp(x - m), by the scale s and the level of m.
    drop(m, s, low)
        What a sum of `rise` below m is multiplied by where scale and level become these of a greater maximum.
    settle(m, total)
        The sum of exp(x - m) from that of `rise`, which is larger or smaller by the rounding of the level.
    merge(m, total, m2, total2, n)
        Two maxima, and sums of powers below them.
    anchor(x)
        x, but 0 where it is not finite: what to subtract from scores before they are summed.
    label(targets, at, classes, ignore)
        The class of a row, `IGNORED` or `INVALID`, as int64.
    weigh(weight, i)
        Element i of the weights; 1 without weights.
    aim(t, w, keep, share)
        What the logarithm of a class's probability counts in the loss, t being the target's probability and w the weight.
    conclude(label, distance, shared, aimed, sum_aimed, w, keep, share)
        The loss of a row. `distance` is what the label's logit lacks to the logarithm of the sum of exponentials, `shared` what the anchor
        lacks; `aimed` and `sum_aimed` are the sum of `aim` over the classes, and that of its products with scores above the anchor.
    """
    power: Callable
    shift: Callable
    scale: Callable
    rise: Callable
    drop: Callable
    settle: Callable
    merge: Callable
    anchor: Callable
    label: Callable
    weigh: Callable
    aim: Callable
    conclude: Callable


@functools.cache
def make_inverse(compute):
    """Device function ``inverse(x)``: 1 / x, in float32 one instruction."""
    @device_function
    def inverse(x):
        if compute == "float64":
            return 1 / x
        return rcp(x)
    return inverse


@functools.cache
def make_terms(kind) -> Terms:
    """The device functions of a kind."""
    Real, power = kind.real, exp if kind.compute == "float64" else exp_fast
    WEIGHTED, SMOOTH, SOFT = bool(kind.weight), kind.smooth, kind.soft
    load_weight = element(kind.weight or kind.dtype).load

    @device_function
    def shift(m):
        return Real(0) if m == Real(NEGATIVE_INFINITY) else m

    if kind.compute == "float64":
        @device_function
        def scale(m):
            return Real(1)

        @device_function
        def rise(x, s, low):
            return exp(x - low)

        @device_function
        def drop(m, s, low):
            return exp(m - low)

        @device_function
        def settle(m, total):
            return total
    else:
        @device_function
        def scale(m):
            return Real(LOG2E) if fabs(m) < Real(FAR) else Real(1)

        @device_function
        def rise(x, s, low):
            return ex2(fma(x, s, Real(-low)))

        @device_function
        def drop(m, s, low):
            level_error = fma(m, s, Real(-(m * s)))  # so that a product which the compiler does not round is as if it were
            return ex2(fma(m, s, Real(-low)) - level_error) if m > Real(NEGATIVE_INFINITY) else Real(0)

        @device_function
        def settle(m, total):
            s = scale(m)
            return total * ex2(fma(-m, s, m * s)) if fabs(m) < Real(math.inf) else total

    @device_function
    def merge(m, total, m2, total2, n):
        top = maximum(m, m2)
        low = shift(top)
        return top, total * power(m - low) + total2 * power(m2 - low)

    @device_function
    def anchor(x):
        return x if fabs(x) < Real(math.inf) else Real(0)

    @device_function
    def label(targets, at, classes, ignore):
        target = i64(targets[at])
        found = i64(INVALID)
        if target >= 0 and target < classes:
            found = target
        if target == ignore:
            found = i64(IGNORED)
        return found

    @device_function
    def weigh(weight, i):
        if WEIGHTED:
            return Real(load_weight(weight, i))
        return Real(1)

    @device_function
    def aim(t, w, keep, share):
        q = w
        if SOFT:
            q = t
            if SMOOTH:
                q = keep * t + share
            if WEIGHTED:
                q = q * w
        return q

    @device_function
    def conclude(label, distance, shared, aimed, sum_aimed, w, keep, share):
        if SOFT:
            return aimed * shared - sum_aimed
        loss = w * distance
        if SMOOTH:
            loss = keep * loss + share * (aimed * shared - sum_aimed)
        if label == IGNORED:
            loss = Real(0)
        elif label < 0:
            loss = Real(math.nan)
        return loss
    return Terms(power, shift, scale, rise, drop, settle, merge, anchor, label, weigh, aim, conclude)


@functools.cache
def make_slope(kind):
    """Device function ``slope(label, g, w, aimed, keep, share)`` -> (probability, target, each): the gradient of a row is
    ``probability * softmax(x)``, minus `target` at the label, minus `each` times `aim`; `g` is that of the row's loss, `w` the label's
    weight, `aimed` the sum of `aim` over the classes. Where scores are not read, `probability` is itself what every class has: 0, or NaN.
    """
    Real, SOFT, SMOOTH, READS = kind.real, kind.soft, kind.smooth, kind.reads

    @device_function
    def slope(label, g, w, aimed, keep, share):
        target, each, probability = Real(0), Real(0), Real(0)
        if SOFT:
            each = g
            probability = g * aimed
        else:
            if label == IGNORED:
                g = Real(0)
                w = Real(0)
            elif label < 0:
                g = Real(math.nan)
            target = g * w
            if SMOOTH:
                target = target * keep
                each = g * share
            if READS:
                probability = target
                if SMOOTH:
                    probability = target + each * aimed
            elif label == INVALID:
                probability = g
        return probability, target, each
    return slope

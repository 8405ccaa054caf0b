"""What algorithms of connectionist temporal classification share: states, sums of logarithms, the normalisation of logits.

A target of L labels has 2 L + 1 states, a blank before, between and after the labels: state s is blank where s is even, else label s // 2.
An alignment begins in one of the first two states, ends in one of the last two, and from step to step stays, goes on, or skips a blank
between different labels. Probabilities are logarithms throughout.
"""
import functools
import math
from typing import Callable, NamedTuple

from ..device import cuda, device_function, f32, f64, i32, i64, jit
from ..device.convert import element
from ..device.fastmath import exp, exp_fast, log, log_fast, maximum
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.warp import add, make_reduce
from ..host.launch import Argument, Launch

NOTHING = -math.inf
TYPES = {"float32": f32, "float64": f64}
THREADS = 128


class Sums(NamedTuple):
    """Device functions for one type.

    add2(a, b), add3(a, b, c)
        Logarithm of a sum of exponentials; -inf is nothing.
    power(d)
        exp(d).
    ending(row, step, states)
        The logarithm of the probability of all alignments, from a sample's last row of states.
    length(lengths, at, most)
        (a length within 0 .. most, whether it was).
    label(targets, at, step, s, classes, blank)
        The class of state s, -1 for a label that is none.
    """
    add2: Callable
    add3: Callable
    power: Callable
    ending: Callable
    length: Callable
    label: Callable


@functools.cache
def make_sums(compute) -> Sums:
    """The device functions of "float32" or "float64"."""
    Real, power, logarithm = (f64, exp, log) if compute == "float64" else (f32, exp_fast, log_fast)

    @device_function
    def shift(m):
        return Real(0) if m == Real(NOTHING) else m

    @device_function
    def add2(a, b):
        low = shift(maximum(a, b))
        return low + logarithm(power(a - low) + power(b - low))

    @device_function
    def add3(a, b, c):
        low = shift(maximum(maximum(a, b), c))
        return low + logarithm(power(a - low) + power(b - low) + power(c - low))

    @device_function
    def ending(row, step, states):
        found = row[(states - 1) * step]
        if states > 1:
            found = add2(found, row[(states - 2) * step])
        return found

    @device_function
    def length(lengths, at, most):
        given = i64(lengths[at])
        found = 0
        if given > most:
            found = most
        elif given > 0:
            found = i32(given)
        return found, given >= 0 and given <= most

    @device_function
    def label(targets, at, step, s, classes, blank):
        found = blank
        if s & 1:
            given = i64(targets[at + (s >> 1) * step])
            found = -1
            if given >= 0 and given < classes:
                found = i32(given)
        return found
    return Sums(add2, add3, power, ending, length, label)


class LogitStrides(NamedTuple):
    """Of logits[t, n, class], and of their gradient."""
    t: i64
    n: i64
    c: i64


class TargetStrides(NamedTuple):
    """Of targets[n, label]."""
    n: i64
    label: i64


class SavedStrides(NamedTuple):
    """Of saved[n, t, state]."""
    n: i64
    t: i64
    state: i64


class NormaliseStrides(NamedTuple):
    logits: LogitStrides
    saved: SavedStrides


class Strides(NamedTuple):
    """`loss` is also the stride of its gradient."""
    logits: LogitStrides
    targets: TargetStrides
    input_lengths: i64
    target_lengths: i64
    saved: SavedStrides
    loss: i64
    dlogits: LogitStrides


@functools.cache
def normalise_kernel(dtype, lanes):
    """The logarithm of the sum of exponentials of each step of each sample, `lanes` threads per row."""
    load, compute = element(dtype).load, element(dtype).compute
    Real, power = TYPES[compute], exp if compute == "float64" else exp_fast
    widest, whole, LOG = make_reduce(maximum, lanes), make_reduce(add, lanes), lanes.bit_length() - 1

    @jit(launch_bounds=THREADS)
    def ctc_normalise(logits, saved, rows, by_samples, classes, states, strides):
        thread = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        row, lane = i32(thread >> LOG), i32(thread) & (lanes - 1)
        n = classes if row < rows else 0
        t, sample = divide_remainder(row, by_samples)
        at = t * strides.logits.t + sample * strides.logits.n
        m = Real(NOTHING)
        for c in range(lane, n, lanes):
            m = maximum(m, load(logits, at + c * strides.logits.c))
        m = widest(m)
        low, total = Real(0) if m == Real(NOTHING) else m, Real(0)
        for c in range(lane, n, lanes):
            total += power(load(logits, at + c * strides.logits.c) - low)
        total = whole(total)
        if n > 0 and lane == 0:
            saved[sample * strides.saved.n + t * strides.saved.t + states * strides.saved.state] = low + log(total)
    return ctc_normalise


def normalise_launches(problem, lanes):
    """The launch that leaves them in the last column of `saved`; none where logits are normalized, or there are no steps."""
    p = problem
    if p.normalized or not p.steps:
        return ()
    kernel = normalise_kernel(p.dtype, lanes)
    arguments = (Argument(element(p.dtype).pointer, "logits"), Argument(f"{p.compute}*", "saved"), Argument("int32", p.steps * p.samples),
                 Argument("uint32x3", divisor(p.samples)), Argument("int32", p.classes), Argument("int32", p.states),
                 Argument(NormaliseStrides, NormaliseStrides(LogitStrides(*p.logits.strides), SavedStrides(*p.saved.strides))))
    return (Launch(kernel, (ceil_div(p.steps * p.samples * lanes, THREADS), 1, 1), (THREADS, 1, 1), arguments),)


def sequence_arguments(problem):
    """Kernel parameters `logits`, `targets`, `input_lengths`, `target_lengths`, `saved`."""
    p = problem
    return (Argument(element(p.dtype).pointer, "logits"), Argument(f"{p.targets.dtype}*", "targets"),
            Argument(f"{p.input_lengths.dtype}*", "input_lengths"), Argument(f"{p.target_lengths.dtype}*", "target_lengths"),
            Argument(f"{p.compute}*", "saved"))


def count_arguments(problem):
    """Kernel parameters `steps`, `samples`, `classes`, `states`, `blank` and `strides`."""
    p = problem
    loss, last = (p.loss, (0, 0, 0)) if p.is_forward else (p.dloss, p.dlogits.strides)
    strides = Strides(LogitStrides(*p.logits.strides), TargetStrides(*p.targets.strides), *p.input_lengths.strides,
                      *p.target_lengths.strides, SavedStrides(*p.saved.strides), *loss.strides, LogitStrides(*last))
    return (Argument("int32", p.steps), Argument("int32", p.samples), Argument("int32", p.classes), Argument("int32", p.states),
            Argument("int32", p.blank), Argument(Strides, strides))

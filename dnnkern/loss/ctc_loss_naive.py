"""One thread per sample walks steps and states; backward one thread per element of the gradient adds up the states of its class.

Straight from Graves's recursions (Graves, Fernandez, Gomez and Schmidhuber, "Connectionist temporal classification", 2006), for labels of
any length. The samples' threads wait for memory at every state.
"""
import functools
import math

from ..device import cuda, i32, i64, jit
from ..device.convert import element
from ..device.index import ceil_div
from ..device.vec import advance
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, Cost, issue_seconds
from ..host.dtypes import ITEMSIZE
from ..host.launch import Argument, Launch
from ._ctc import NOTHING, THREADS, TYPES, count_arguments, make_sums, normalise_launches, sequence_arguments

COST = constants("loss/ctc_naive")

WARP = 32


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """Backward a number for each state of each step, and a row of them for each sample."""
    return 0 if problem.is_forward else problem.samples * (problem.steps + 1) * problem.states * ITEMSIZE[problem.compute]


def estimate(problem, device, config):
    """Each state of each step waits for memory."""
    waves = -(-problem.samples // (COST.resident * device.sms))
    own = 0.0 if problem.is_forward else issue_seconds(problem.logits.size * problem.states, COST.element, device)
    return 2 * LAUNCH + Cost(waits=waves * problem.steps * problem.states * COST.state, issue=own)


@functools.cache
def forward_kernel(dtype, normalized):
    """Logarithms of the probabilities of the alignments up to each state of each step, and of all."""
    load, compute = element(dtype).load, element(dtype).compute
    Real, do = TYPES[compute], make_sums(compute)
    add3, ending, length, label = do.add3, do.ending, do.length, do.label

    @jit(launch_bounds=WARP)
    def ctc_fwd_naive(logits, targets, input_lengths, target_lengths, saved, loss, steps, samples, classes, states, blank, strides, zero):
        n = cuda.blockIdx.x * WARP + cuda.threadIdx.x
        if n < samples:
            times, fits = length(input_lengths, n * strides.input_lengths, steps)
            count, fits_too = length(target_lengths, n * strides.target_lengths, states >> 1)
            own, first = 2 * count + 1, n * strides.targets.n
            x, row = advance(logits, n * strides.logits.n), advance(saved, n * strides.saved.n)
            for t in range(steps):
                lse = Real(0)
                if not normalized:
                    lse = row[states * strides.saved.state]
                for s in range(states):
                    value = Real(NOTHING)
                    if t < times and s < own:
                        c = label(targets, first, strides.targets.label, s, classes, blank)
                        if c < 0:
                            value = Real(math.nan)
                        else:
                            score = load(x, t * strides.logits.t + c * strides.logits.c) - lse
                            a, b, d = Real(NOTHING), Real(NOTHING), Real(NOTHING)
                            if t == 0:
                                if s < 2:
                                    a = Real(0)
                            else:
                                old = advance(row, -strides.saved.t)
                                a = old[s * strides.saved.state]
                                if s > 0:
                                    b = old[(s - 1) * strides.saved.state]
                                if s > 1:
                                    if label(targets, first, strides.targets.label, s - 2, classes, blank) != c:
                                        d = old[(s - 2) * strides.saved.state]
                            value = score + add3(a, b, d)
                    row[s * strides.saved.state] = value
                row = advance(row, strides.saved.t)
            total = Real(0) if own == 1 else Real(NOTHING)
            if times > 0:
                total = ending(advance(saved, n * strides.saved.n + (times - 1) * strides.saved.t), strides.saved.state, own)
            value = Real(-total)
            if zero:
                if value == Real(math.inf):
                    value = Real(0)
            if not (fits and fits_too):
                value = Real(math.nan)
            loss[n * strides.loss] = value
    return ctc_fwd_naive


@functools.cache
def backward_kernel(dtype, normalized):
    """The probability of being in each state at each step, given the target, from the alignments after it."""
    load, compute = element(dtype).load, element(dtype).compute
    Real, do = TYPES[compute], make_sums(compute)
    add3, power, ending, length, label = do.add3, do.power, do.ending, do.length, do.label

    @jit(launch_bounds=WARP)
    def ctc_bwd_naive(logits, targets, input_lengths, target_lengths, saved, steps, samples, classes, states, blank, strides, behind,
                      occupied):
        n = cuda.blockIdx.x * WARP + cuda.threadIdx.x
        if n < samples:
            times, _ = length(input_lengths, n * strides.input_lengths, steps)
            count, _ = length(target_lengths, n * strides.target_lengths, states >> 1)
            own, first = 2 * count + 1, n * strides.targets.n
            x, alpha = advance(logits, n * strides.logits.n), advance(saved, n * strides.saved.n)
            beta = advance(behind, n * i64(states))
            total = Real(0)
            if times > 0:
                total = ending(advance(alpha, (times - 1) * strides.saved.t), strides.saved.state, own)
            for k in range(times):
                t = times - 1 - k
                row = advance(alpha, t * strides.saved.t)
                lse = Real(0)
                if not normalized:
                    lse = row[states * strides.saved.state]
                into = advance(occupied, (n * i64(steps) + t) * states)
                for s in range(own):
                    c = label(targets, first, strides.targets.label, s, classes, blank)
                    a, b, d = Real(NOTHING), Real(NOTHING), Real(NOTHING)
                    if k == 0:
                        if s >= own - 2:
                            a = Real(0)
                    else:
                        a = beta[s]
                        if s + 1 < own:
                            b = beta[s + 1]
                        if s + 2 < own:
                            if label(targets, first, strides.targets.label, s + 2, classes, blank) != c:
                                d = beta[s + 2]
                    rest, score = add3(a, b, d), Real(math.nan)
                    into[s] = power(row[s * strides.saved.state] + rest - total)
                    if c >= 0:
                        score = load(x, t * strides.logits.t + c * strides.logits.c) - lse
                    beta[s] = rest + score
    return ctc_bwd_naive


@functools.cache
def gradient_kernel(dtype, normalized):
    """An element of the gradient: the class's probability less that of its states given the target."""
    load, store, compute = element(dtype).load, element(dtype).store, element(dtype).compute
    Real, do = TYPES[compute], make_sums(compute)
    power, ending, length, label = do.power, do.ending, do.length, do.label

    @jit(launch_bounds=THREADS)
    def ctc_gradient_naive(logits, targets, input_lengths, target_lengths, saved, dloss, dlogits, steps, samples, classes, states, blank,
                           strides, occupied, zero):
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < steps * i64(samples) * classes:
            row = i // classes
            c = i32(i - row * classes)
            t = i32(row // samples)
            n = i32(row - t * i64(samples))
            times, fits = length(input_lengths, n * strides.input_lengths, steps)
            count, fits_too = length(target_lengths, n * strides.target_lengths, states >> 1)
            value = Real(0)
            if t < times:
                own, alpha = 2 * count + 1, advance(saved, n * strides.saved.n)
                total = ending(advance(alpha, (times - 1) * strides.saved.t), strides.saved.state, own)
                if not zero or total != Real(NOTHING):
                    lse = Real(0)
                    if not normalized:
                        lse = alpha[t * strides.saved.t + states * strides.saved.state]
                    x = load(logits, t * strides.logits.t + n * strides.logits.n + c * strides.logits.c)
                    value = power(x - lse)
                    own_row = advance(occupied, (n * i64(steps) + t) * states)
                    for s in range(own):
                        if label(targets, n * strides.targets.n, strides.targets.label, s, classes, blank) == c:
                            value = value - own_row[s]
                    value = value * dloss[n * strides.loss]
                    if total == Real(NOTHING) or total != total:
                        value = Real(math.nan)
            if not (fits and fits_too):
                value = Real(math.nan)
            store(dlogits, t * strides.dlogits.t + n * strides.dlogits.n + c * strides.dlogits.c, value)
    return ctc_gradient_naive


def build(problem, device, config):
    """Forward the normalisation and the samples; backward the samples and the elements."""
    p, numbers = problem, f"{problem.compute}*"
    samples = (ceil_div(p.samples, WARP), 1, 1), (WARP, 1, 1)
    zero = Argument("int32", int(p.zero_infinity))
    if p.is_forward:
        walk = Launch(forward_kernel(p.dtype, p.normalized), *samples,
                      (*sequence_arguments(p), Argument(numbers, "loss"), *count_arguments(p), zero))
        return *normalise_launches(p, 1), walk
    size = ITEMSIZE[p.compute]
    occupied = Argument(numbers, "workspace", p.samples * p.states * size)
    walk = Launch(backward_kernel(p.dtype, p.normalized), *samples,
                  (*sequence_arguments(p), *count_arguments(p), Argument(numbers, "workspace"), occupied))
    arguments = (*sequence_arguments(p), Argument(numbers, "dloss"), Argument(element(p.dtype).pointer, "dlogits"), *count_arguments(p),
                 occupied, zero)
    return walk, Launch(gradient_kernel(p.dtype, p.normalized), (ceil_div(p.dlogits.size, THREADS), 1, 1), (THREADS, 1, 1), arguments)


ALGORITHMS = tuple(Algorithm(op=op, name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build)
                   for op in ("ctc_loss_fwd", "ctc_loss_bwd"))

"""One block per sample, a state or a few per thread: steps follow each other by one barrier, through two rows of states in shared memory.

The recursion is a chain of as many steps as the input has, so that nothing counts but the time of a step. What a thread reads of the next
few steps is in flight while it computes these, and not touched before; what it leaves for the gradient is written on the way.

Backward a sample's block turns the recursion round and leaves the probability of each state at each step; then one block per step and
sample writes the row of the gradient: all classes first, then the blank and the labels, each by the thread that has its first occurrence
and follows the others, in their order.
"""
import functools
import math
from dataclasses import dataclass

from ..device import cuda, device_function, i32, i64, jit
from ..device.block import add, make_block_reduce
from ..device.convert import element
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.vec import advance
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, Cost, memory_seconds
from ..host.dtypes import ITEMSIZE
from ..host.launch import Argument, Launch
from ._ctc import NOTHING, TYPES, count_arguments, make_sums, normalise_launches, sequence_arguments

COST = constants("loss/ctc_block")

MOST_THREADS, MOST_HELD, SHARED = {"float32": 1024, "float64": 512}, 8, 64 << 10
AHEAD = {1: 8, 2: 4, 4: 2, 8: 1}  # states of a thread -> steps whose scores it loads at once


@dataclass(frozen=True)
class Config:
    """What the kernels over samples are compiled for: `held` states of a thread."""
    dtype: str
    threads: int
    held: int
    normalized: bool

    @property
    def ahead(self):
        """Steps whose scores are loaded at once."""
        return max(1, AHEAD[self.held] // (2 if self.dtype == "float64" else 1))

    def __str__(self):
        return f"{self.threads} threads, {self.held} states"


def supports(problem):
    """States that a block holds."""
    most = min(MOST_THREADS[problem.compute] * MOST_HELD, SHARED // 2 // ITEMSIZE[problem.compute] - 2)
    if problem.states > most:
        return f"{problem.states} states; a block holds {most}"
    if not problem.steps:
        return "there are no steps"
    return None


def _config(problem):
    most = MOST_THREADS[problem.compute]
    held = next(h for h in AHEAD if problem.states <= h * most)
    return Config(problem.dtype, min(most, 32 * ceil_div(ceil_div(problem.states, held), 32)), held, problem.normalized)


def _columns(problem):
    """Threads of a row of the gradient."""
    return 32 * min(8, ceil_div(max(problem.classes, problem.labels), 64))


def workspace(problem, device, config):
    """Backward a number for each state of each step, and for each label where the next one like it is and whether it is the first."""
    if problem.is_forward:
        return 0
    return problem.samples * (problem.steps * problem.states * ITEMSIZE[problem.compute] + 8 * problem.labels)


def estimate(problem, device, config):
    """The chain of steps, for as many samples as there are multiprocessors at once; and bytes."""
    config = _config(problem)
    resident = max(1, COST.resident // config.threads) * device.sms
    chain = problem.steps * COST.step * (1 + COST.state * (config.held - 1)) * ceil_div(problem.samples, resident)
    states = problem.samples * problem.steps * problem.states * ITEMSIZE[problem.compute]
    moved = memory_seconds(2 * problem.logits.nbytes + (1 if problem.is_forward else 3) * states, device)
    return 2 * LAUNCH + Cost(waits=chain, memory=moved)


@functools.cache
def make_chunk(config):
    """Device functions of a thread's states at the next steps from t on, forwards or backwards.

    fetch(scores, lses, x, row, t, toward, times, classes_of, strides, states)
        Scores, NaN for a label that is no class, and the logarithms of the steps' sums.
    reached(found, row, t, times, own, strides)
        Backwards: how probable the alignments up to there are.
    take(scores, later, lses)
        Scores less these logarithms: what waits for the loads.
    """
    load, compute = element(config.dtype).load, element(config.dtype).compute
    Real, THREADS, HELD, AHEAD_OF, normalized = TYPES[compute], config.threads, config.held, config.ahead, config.normalized

    @device_function
    def fetch(scores, lses, x, row, t, toward, times, classes_of, strides, states):
        for j in range(AHEAD_OF):
            at = t + toward * j
            if at >= 0 and at < times:
                lses[j] = Real(0) if normalized else row[at * strides.saved.t + states * strides.saved.state]
                for k in range(HELD):
                    score = Real(math.nan)
                    if classes_of[k] >= 0:
                        score = Real(load(x, at * strides.logits.t + classes_of[k] * strides.logits.c))
                    scores[j * HELD + k] = score

    @device_function
    def reached(found, row, t, times, own, strides):
        thread = cuda.threadIdx.x
        for j in range(AHEAD_OF):
            at = t - j
            if at >= 0 and at < times:
                for k in range(HELD):
                    s = thread + k * THREADS
                    if s < own:
                        found[j * HELD + k] = row[at * strides.saved.t + s * strides.saved.state]

    @device_function
    def take(scores, later, lses):
        for j in range(AHEAD_OF):
            for k in range(HELD):
                scores[j * HELD + k] = later[j * HELD + k] - lses[j]
    return fetch, reached, take


@functools.cache
def forward_kernel(config):
    """Logarithms of the probabilities of the alignments up to each state of each step, and of all."""
    compute = element(config.dtype).compute
    Real, do, (fetch, _, take) = TYPES[compute], make_sums(compute), make_chunk(config)
    add2, add3, length, label = do.add2, do.add3, do.length, do.label
    THREADS, HELD, AHEAD_OF = config.threads, config.held, config.ahead
    SCORES = HELD * AHEAD_OF

    @jit(launch_bounds=(THREADS, 1))
    def ctc_fwd_block(logits, targets, input_lengths, target_lengths, saved, loss, steps, samples, classes, states, blank, strides, zero):
        line = cuda.shared.array(0, Real)
        scores, later, lses = cuda.local.array(SCORES, Real), cuda.local.array(SCORES, Real), cuda.local.array(AHEAD_OF, Real)
        classes_of, skips = cuda.local.array(HELD, i32), cuda.local.array(HELD, i32)
        thread, n, width = cuda.threadIdx.x, cuda.blockIdx.x, states + 2
        times, fits = length(input_lengths, n * strides.input_lengths, steps)
        count, fits_too = length(target_lengths, n * strides.target_lengths, states >> 1)
        own, first = 2 * count + 1, n * strides.targets.n
        x, row = advance(logits, n * strides.logits.n), advance(saved, n * strides.saved.n)
        # state s lies at s + 2, after two that never are; before the first step all is in the first state
        if thread < 2:
            line[thread] = Real(NOTHING)
            line[width + thread] = Real(NOTHING)
        for k in range(HELD):
            s = thread + k * THREADS
            classes_of[k] = -1
            skips[k] = 0
            if s < own:
                classes_of[k] = label(targets, first, strides.targets.label, s, classes, blank)
                if s > 1:
                    if label(targets, first, strides.targets.label, s - 2, classes, blank) != classes_of[k]:
                        skips[k] = 1
            if s < states:
                line[s + 2] = Real(0) if s == 0 else Real(NOTHING)
        fetch(later, lses, x, row, 0, 1, times, classes_of, strides, states)
        cuda.syncthreads()
        for begin in range(0, times, AHEAD_OF):
            take(scores, later, lses)
            fetch(later, lses, x, row, begin + AHEAD_OF, 1, times, classes_of, strides, states)
            for j in range(AHEAD_OF):
                t = begin + j
                if t < times:
                    old = (t & 1) * width
                    new = width - old
                    for k in range(HELD):
                        s = thread + k * THREADS
                        if s < states:
                            value = Real(NOTHING)
                            if s < own:
                                d = Real(NOTHING)
                                if skips[k]:
                                    d = line[old + s]
                                value = scores[j * HELD + k] + add3(line[old + s + 2], line[old + s + 1], d)
                                line[new + s + 2] = value
                            row[t * strides.saved.t + s * strides.saved.state] = value
                    cuda.syncthreads()
        for t in range(times, steps):
            for k in range(HELD):
                s = thread + k * THREADS
                if s < states:
                    row[t * strides.saved.t + s * strides.saved.state] = Real(NOTHING)
        if thread == 0:
            last = (times & 1) * width + own + 1
            total = line[last]
            if own > 1:
                total = add2(total, line[last - 1])
            value = Real(-total)
            if zero:
                if value == Real(math.inf):
                    value = Real(0)
            if not (fits and fits_too):
                value = Real(math.nan)
            loss[n * strides.loss] = value
    return ctc_fwd_block


@functools.cache
def backward_kernel(config):
    """The probability of being in each state at each step, given the target; and chains of labels that are alike."""
    compute = element(config.dtype).compute
    Real, do, (fetch, reached, take) = TYPES[compute], make_sums(compute), make_chunk(config)
    add3, power, ending, length, label = do.add3, do.power, do.ending, do.length, do.label
    THREADS, HELD, AHEAD_OF = config.threads, config.held, config.ahead
    SCORES = HELD * AHEAD_OF

    @jit(launch_bounds=(THREADS, 1))
    def ctc_bwd_block(logits, targets, input_lengths, target_lengths, saved, steps, samples, classes, states, blank, strides, occupied,
                      follow, leads):
        line = cuda.shared.array(0, Real)
        scores, later, lses = cuda.local.array(SCORES, Real), cuda.local.array(SCORES, Real), cuda.local.array(AHEAD_OF, Real)
        before, coming = cuda.local.array(SCORES, Real), cuda.local.array(SCORES, Real)
        classes_of, skips = cuda.local.array(HELD, i32), cuda.local.array(HELD, i32)
        thread, n, width = cuda.threadIdx.x, cuda.blockIdx.x, states + 2
        times, _ = length(input_lengths, n * strides.input_lengths, steps)
        count, _ = length(target_lengths, n * strides.target_lengths, states >> 1)
        own, first = 2 * count + 1, n * strides.targets.n
        x, row = advance(logits, n * strides.logits.n), advance(saved, n * strides.saved.n)
        into = advance(occupied, n * i64(steps) * states)
        next_of, lead_of = advance(follow, n * i64(states >> 1)), advance(leads, n * i64(states >> 1))
        # state s lies at s, before two that never are; after the last step all is in the last state
        for k in range(HELD):
            s = thread + k * THREADS
            classes_of[k] = -1
            skips[k] = 0
            if s < own:
                classes_of[k] = label(targets, first, strides.targets.label, s, classes, blank)
                if s + 2 < own:
                    if label(targets, first, strides.targets.label, s + 2, classes, blank) != classes_of[k]:
                        skips[k] = 1
        for s in range(thread, width, THREADS):
            line[s] = Real(0) if s == own - 1 else Real(NOTHING)
            line[width + s] = Real(NOTHING)
        fetch(later, lses, x, row, times - 1, -1, times, classes_of, strides, states)
        reached(coming, row, times - 1, times, own, strides)
        for j in range(thread, count, THREADS):
            lead_of[j] = 1
        total = Real(0)
        if times > 0:
            total = ending(advance(row, (times - 1) * strides.saved.t), strides.saved.state, own)
        cuda.syncthreads()
        for j in range(thread, count, THREADS):
            c, i = label(targets, first, strides.targets.label, 2 * j + 1, classes, blank), j + 1
            while i < count and label(targets, first, strides.targets.label, 2 * i + 1, classes, blank) != c:
                i = i + 1
            next_of[j] = i
            if i < count:
                lead_of[i] = 0
        for begin in range(0, times, AHEAD_OF):
            take(scores, later, lses)
            for k in range(SCORES):
                before[k] = coming[k]
            fetch(later, lses, x, row, times - 1 - begin - AHEAD_OF, -1, times, classes_of, strides, states)
            reached(coming, row, times - 1 - begin - AHEAD_OF, times, own, strides)
            for j in range(AHEAD_OF):
                t = times - 1 - begin - j
                if t >= 0:
                    old = ((begin + j) & 1) * width
                    new = width - old
                    for k in range(HELD):
                        s = thread + k * THREADS
                        if s < own:
                            d = Real(NOTHING)
                            if skips[k]:
                                d = line[old + s + 2]
                            rest = add3(line[old + s], line[old + s + 1], d)
                            line[new + s] = rest + scores[j * HELD + k]
                            into[t * i64(states) + s] = power(before[j * HELD + k] + rest - total)
                    cuda.syncthreads()
    return ctc_bwd_block


@functools.cache
def gradient_kernel(dtype, threads, normalized):
    """A row of the gradient, one block per step of a sample."""
    load, store, compute = element(dtype).load, element(dtype).store, element(dtype).compute
    Real, do, reduce = TYPES[compute], make_sums(compute), make_block_reduce(add, threads)
    power, ending, length, label = do.power, do.ending, do.length, do.label
    SCRATCH = threads // 16

    @jit(launch_bounds=threads)
    def ctc_gradient_rows(logits, targets, input_lengths, target_lengths, saved, dloss, dlogits, steps, samples, classes, states, blank,
                          strides, occupied, follow, leads, zero, by_samples):
        scratch, thread = cuda.shared.array(SCRATCH, Real), cuda.threadIdx.x
        t, n = divide_remainder(cuda.blockIdx.x, by_samples)
        times, fits = length(input_lengths, n * strides.input_lengths, steps)
        count, fits_too = length(target_lengths, n * strides.target_lengths, states >> 1)
        x = advance(logits, t * strides.logits.t + n * strides.logits.n)
        y = advance(dlogits, t * strides.dlogits.t + n * strides.dlogits.n)
        row, first = advance(saved, n * strides.saved.n), n * strides.targets.n
        g, lse = Real(0), Real(0)
        if t < times:
            if not normalized:
                lse = row[t * strides.saved.t + states * strides.saved.state]
            total = ending(advance(row, (times - 1) * strides.saved.t), strides.saved.state, 2 * count + 1)
            g = dloss[n * strides.loss]
            if total != total or total == Real(NOTHING) and not zero:
                g = Real(math.nan)
            elif total == Real(NOTHING):
                g = Real(0)
        if not (fits and fits_too):
            g = Real(math.nan)
        if g == Real(0) or g != g:  # the same everywhere, whatever the logits are
            for c in range(thread, classes, threads):
                store(y, c * strides.dlogits.c, g)
        else:
            for c in range(thread, classes, threads):
                value = power(load(x, c * strides.logits.c) - lse)
                store(y, c * strides.dlogits.c, g * value)
            state = advance(occupied, (n * i64(steps) + t) * states)
            blanks = Real(0)
            for s in range(thread, 2 * count + 1, threads):
                if label(targets, first, strides.targets.label, s, classes, blank) == blank:
                    blanks += state[s]
            blanks = reduce(blanks, scratch, 0)
            if thread == 0:
                value = power(load(x, blank * strides.logits.c) - lse)
                store(y, blank * strides.dlogits.c, g * (value - blanks))
            labels = n * i64(states >> 1)
            for j in range(thread, count, threads):
                c = label(targets, first, strides.targets.label, 2 * j + 1, classes, blank)
                if c >= 0 and c != blank and leads[labels + j]:
                    value, k = power(load(x, c * strides.logits.c) - lse), j
                    inside = Real(0)
                    while k < count:
                        inside += state[2 * k + 1]
                        k = follow[labels + k]
                    store(y, c * strides.dlogits.c, g * (value - inside))
    return ctc_gradient_rows


def build(problem, device, config):
    """Forward the normalisation and the samples; backward the samples and the rows of the gradient."""
    p, config, numbers, size = problem, _config(problem), f"{problem.compute}*", ITEMSIZE[problem.compute]
    grid, block, shared = (p.samples, 1, 1), (config.threads, 1, 1), 2 * (p.states + 2) * size
    zero = Argument("int32", int(p.zero_infinity))
    if p.is_forward:
        walk = (*sequence_arguments(p), Argument(numbers, "loss"), *count_arguments(p), zero)
        return *normalise_launches(p, 32), Launch(forward_kernel(config), grid, block, walk, shared=shared)
    states, labels = p.samples * p.steps * p.states * size, 4 * p.samples * p.labels
    kept = Argument(numbers, "workspace"), Argument("int32*", "workspace", states), Argument("int32*", "workspace", states + labels)
    walk = (*sequence_arguments(p), *count_arguments(p), *kept)
    rows = (*sequence_arguments(p), Argument(numbers, "dloss"), Argument(element(p.dtype).pointer, "dlogits"), *count_arguments(p), *kept,
            zero, Argument("uint32x3", divisor(p.samples)))
    threads = _columns(p)
    return (Launch(backward_kernel(config), grid, block, walk, shared=shared),
            Launch(gradient_kernel(p.dtype, threads, p.normalized), (p.steps * p.samples, 1, 1), (threads, 1, 1), rows))


ALGORITHMS = tuple(Algorithm(op=op, name="block", supports=supports, workspace=workspace, estimate=estimate, build=build)
                   for op in ("ctc_loss_fwd", "ctc_loss_bwd"))

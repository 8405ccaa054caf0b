"""A thread has several channels of its own and, in registers, those that their windows reach: x is read about once.

Channels last, a thread owns 16 bytes of channels and loads as many units on both sides as a window reaches. Channels first, it owns a few
channels of neighbouring pixels and loads the channels before and after. What neighbours load twice comes from the cache. All loads are
in flight before the first is used; sums are made of each window anew, so that nothing cancels. Backward, the window of x is twice as wide.
"""
import functools
import math
from dataclasses import dataclass

from ..device import cuda, device_function, f32, jit
from ..device.convert import element
from ..device.fastmath import ex2, exp, lg2, log
from ..device.groups import access_words, make_reader, make_writer, scalar_of
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.rows import RowForm, make_row_offsets, row_arguments
from ..device.vec import advance
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
from ..host.launch import Argument, Launch
from ._channel_view import MOST
from ._lrn_problem import OPS
from ._lrn_steps import BackwardSteps, ForwardSteps
from ._moments import make_inverses

COST = constants("norm/lrn_window")

THREADS = 128
LARGEST = 9  # size that registers hold
OWN = {"lrn_fwd": 8, "lrn_bwd": 4}  # channels of a thread, channels first, for windows of five


@dataclass(frozen=True)
class Config:
    """What the kernels are compiled for.

    Attributes
    ----------
    dtype : str
    last : bool
        Channels lie side by side, else pixels.
    count, words : int
        Elements of a load, and 32-bit words of its accesses, 0: element by element.
    own : int
        Loads that a thread has results for.
    before, after : int
        Channels of a window beside its own.
    dims : int
        Dimensions besides the channels, and besides the pixels where these lie side by side; 1 at least.
    """
    dtype: str
    last: bool
    count: int
    words: int
    own: int
    before: int
    after: int
    dims: int

    @property
    def channels(self):
        """Of a load."""
        return self.count if self.last else 1

    @property
    def lanes(self):
        """Pixels of a load."""
        return 1 if self.last else self.count

    def lead(self, reach):
        """Loads before the first own one that hold so many channels."""
        return ceil_div(reach, self.channels)

    def __str__(self):
        return f"{self.own} x {self.count} {'channels' if self.last else 'pixels'} a thread"


def _config(problem):
    """The configuration, or why there is none."""
    form, tensors = problem.form, [t for _, t in problem.arrays]
    (channel,), size = form.row, problem.x.itemsize
    if problem.size > LARGEST:
        return f"windows of {problem.size} channels; registers hold {LARGEST}"
    if problem.x.size >= MOST:
        return f"{problem.x.size} elements; expected fewer than {MOST}"
    last = set(channel.strides) == {1} or channel.size == 1
    if not last and set(form.outer[-1].strides) != {1}:
        return "neither channels nor pixels lie side by side in all arrays"
    pixels = 2 if problem.op == "lrn_bwd" and problem.size > 7 else 4
    count = math.gcd(16 // size, channel.size) if last else math.gcd(min(pixels, 16 // size), form.outer[-1].size)
    others = form.outer if last else (channel, *form.outer[:-1])
    words = min(access_words(t, count, [d.strides[k] for d in others if d.size > 1]) for k, t in enumerate(tensors))
    own = 1 if last else max(1, OWN[problem.op] * 5 // max(5, problem.size) // (1 + (problem.compute == "float64")))
    return Config(problem.dtype, last, count, words, own, problem.before, problem.after,
                  max(1, len(form.outer) - (not last)))


def supports(problem):
    """Small windows; channels or pixels side by side."""
    if not problem.x.size:
        return "x has no elements"
    config = _config(problem)
    return config if isinstance(config, str) else None


def workspace(problem, device, config):
    """None."""
    return 0


def configs(problem, device):
    """One."""
    return [_config(problem)]


def estimate(problem, device, config):
    """Bytes, what neighbours load twice from the cache; a window's instructions per element."""
    narrow = {4: 1.0, 2: COST.words_2, 1: COST.words_1, 0: COST.element_rate}[config.words]
    reach = problem.before if problem.op == "lrn_fwd" else 2 * problem.before
    twice = 1 + COST.twice * 2 * config.lead(reach) / config.own
    windows = problem.size * (1 if problem.op == "lrn_fwd" else COST.bwd)
    issue = issue_seconds(problem.x.size, COST.element + COST.window * windows, device)
    return LAUNCH + overlap(memory=memory_seconds(problem.bytes, device) * twice / narrow, issue=issue)


def _make_power(Real):
    """Device function ``power(s, exponent)``."""
    if Real is f32:
        @device_function
        def power(s, exponent):
            return ex2(exponent * lg2(s))
        return power

    @device_function
    def power(s, exponent):
        return exp(exponent * log(s))
    return power


def _make_load(config, reach):
    """(rows, base, device function ``load(values, p, step, channel, channels)``): values[(base + i) * lanes + v] is channel number i of
    the thread's, pixel v; `reach` channels on both sides are there as well, zeros beyond the image's."""
    COUNT, CHANNELS, LEAD = config.count, config.channels, config.lead(reach)
    ROWS = config.own + 2 * LEAD
    SCALAR, LENGTH, fetch, unpack = make_reader(config.dtype, COUNT, config.words)
    RAW = ROWS * LENGTH

    @device_function
    def load(values, p, step, channel, channels):
        raw = cuda.local.array(RAW, SCALAR)
        for t in range(ROWS):
            at = channel + (t - LEAD) * CHANNELS
            fetch(raw, t * LENGTH, advance(p, at * step), 0, at >= 0 and at < channels)
        for t in range(ROWS):
            unpack(values, t * COUNT, raw, t * LENGTH)
    return ROWS * COUNT, LEAD * CHANNELS, load


def _make_position(config, arrays):
    """Device function ``position(units, groups, chunks, divisors, strides) -> (channel, there, offsets, pixel)`` of the thread: its first
    channel, if there is one, the offsets of its row of pixels in the arrays, and how many elements after these its pixels are."""
    row_offsets, LAST, STEP, LANES = make_row_offsets(config.dims, arrays), config.last, config.own * config.channels, config.lanes

    @device_function
    def position(units, groups, chunks, divisors, strides):
        k = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        there = k < units
        rest, pixel = k if there else 0, 0
        if not LAST:
            rest, group = divide_remainder(rest, groups)
            pixel = group * LANES
        row, chunk = divide_remainder(rest, chunks)
        return chunk * STEP, there, row_offsets(row, divisors, strides), pixel
    return position


@functools.cache
def forward_kernel(config):
    """y."""
    Real, LANES, CHANNELS, OWN_LOADS = scalar_of(config.dtype), config.lanes, config.channels, config.own
    COUNT, BEFORE, SIZE = config.count, config.before, config.before + config.after + 1
    LENGTH, BASE, load = _make_load(config, config.before)
    put, position, power = make_writer(config.dtype, COUNT, config.words), _make_position(config, ("x", "y")), _make_power(Real)

    @jit(launch_bounds=(THREADS, 4))
    def lrn_fwd_window(x, y, alpha, beta, k, share, units, groups, chunks, channels, steps, divisors, strides):
        values, result = cuda.local.array(LENGTH, Real), cuda.local.array(COUNT, Real)
        channel, there, offsets, pixel = position(units, groups, chunks, divisors, strides)
        load(values, advance(x, offsets.x + pixel), steps.x, channel, channels if there else 0)
        scale, q = alpha * share, advance(y, offsets.y + pixel)
        for t in range(OWN_LOADS):
            for i in range(CHANNELS):
                for v in range(LANES):
                    s = Real(0)
                    for j in range(SIZE):
                        w = values[(BASE + t * CHANNELS + i + j - BEFORE) * LANES + v]
                        s += w * w
                    own = values[(BASE + t * CHANNELS + i) * LANES + v]
                    result[i * LANES + v] = own * power(k + scale * s, Real(-beta))
            at = channel + t * CHANNELS
            if there and at < channels:
                put(advance(q, at * steps.y), 0, result, 0)
    return lrn_fwd_window


@functools.cache
def backward_kernel(config):
    """dx."""
    Real, LANES, CHANNELS, OWN_LOADS = scalar_of(config.dtype), config.lanes, config.channels, config.own
    COUNT, BEFORE, AFTER, SIZE = config.count, config.before, config.after, config.before + config.after + 1
    X_LENGTH, X_BASE, load_x = _make_load(config, BEFORE + AFTER)
    LENGTH, BASE, load = _make_load(config, BEFORE)
    put, position, power = make_writer(config.dtype, COUNT, config.words), _make_position(config, ("dy", "x", "y", "dx")), _make_power(Real)
    OWN_CHANNELS, (inverse, _) = OWN_LOADS * CHANNELS, make_inverses(Real)
    MINE, COVERED = OWN_CHANNELS * LANES, OWN_CHANNELS + SIZE - 1
    SHARES = COVERED * LANES

    @jit(launch_bounds=(THREADS, 3))
    def lrn_bwd_window(dy, x, y, dx, alpha, beta, k, share, units, groups, chunks, channels, steps, divisors, strides):
        xs, dys, ys = cuda.local.array(X_LENGTH, Real), cuda.local.array(LENGTH, Real), cuda.local.array(LENGTH, Real)
        own, s = cuda.local.array(MINE, Real), cuda.local.array(SHARES, Real)
        result = cuda.local.array(COUNT, Real)
        channel, there, offsets, pixel = position(units, groups, chunks, divisors, strides)
        last = channels if there else 0
        load_x(xs, advance(x, offsets.x + pixel), steps.x, channel, last)
        load(dys, advance(dy, offsets.dy + pixel), steps.dy, channel, last)
        load(ys, advance(y, offsets.y + pixel), steps.y, channel, last)
        scale, q = alpha * share, advance(dx, offsets.dx + pixel)
        for i in range(COVERED):
            for v in range(LANES):
                total = Real(0)
                for j in range(SIZE):
                    w = xs[(X_BASE + i - AFTER + j - BEFORE) * LANES + v]
                    total += w * w
                s[i * LANES + v] = k + scale * total
        for i in range(OWN_CHANNELS):
            for v in range(LANES):
                own[i * LANES + v] = dys[(BASE + i) * LANES + v] * power(s[(AFTER + i) * LANES + v], Real(-beta))
        # of each channel in whose window an own one is; where there is no channel s may be 0
        for i in range(COVERED):
            at = channel + (i - AFTER)
            for v in range(LANES):
                product = dys[(BASE + i - AFTER) * LANES + v] * ys[(BASE + i - AFTER) * LANES + v]
                s[i * LANES + v] = product * inverse(s[i * LANES + v]) if at >= 0 and at < last else Real(0)
        factor = Real(2) * scale * beta
        for t in range(OWN_LOADS):
            for i in range(CHANNELS):
                for v in range(LANES):
                    total = Real(0)
                    for j in range(SIZE):
                        total += s[(t * CHANNELS + i + j) * LANES + v]
                    mine = xs[(X_BASE + t * CHANNELS + i) * LANES + v]
                    result[i * LANES + v] = own[(t * CHANNELS + i) * LANES + v] - factor * mine * total
            at = channel + t * CHANNELS
            if at < last:
                put(advance(q, at * steps.dx), 0, result, 0)
    return lrn_bwd_window


def build(problem, device, config):
    """One launch."""
    p, (channel,), outer = problem, problem.form.row, problem.form.outer
    groups = 1 if config.last else outer[-1].size // config.count
    others = outer if config.last else outer[:-1]
    chunks = ceil_div(channel.size, config.own * config.channels)
    divisors, strides = row_arguments(RowForm((channel,), others))
    steps = ForwardSteps if p.op == "lrn_fwd" else BackwardSteps
    units = RowForm((channel,), others).rows * chunks * groups
    arguments = (*(Argument(element(p.dtype).pointer, name) for name, _ in p.arrays),
                 *(Argument(p.compute, name) for name in ("alpha", "beta", "k")), Argument(p.compute, 1.0 / p.size),
                 Argument("int32", units), *(Argument("uint32x3", divisor(n)) for n in (groups, chunks)),
                 Argument("int32", channel.size), Argument(steps, steps(*channel.strides)),
                 Argument(f"uint32x{len(divisors)}", divisors), Argument(f"int64x{len(strides)}", strides))
    kernel = (forward_kernel if p.op == "lrn_fwd" else backward_kernel)(config)
    return (Launch(kernel, (ceil_div(units, THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHMS = tuple(Algorithm(op=op, name="window", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs)
                   for op in OPS)

"""One thread per element, straight from the definition: it reads its window, backward the windows of all that see it. Any strides."""
import functools
from dataclasses import dataclass

from ..device import cuda, device_function, f32, f64, i64, jit
from ..device.convert import element
from ..device.fastmath import exp, log
from ..device.rows import make_row_offsets64, row_arguments64
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
from ..host.launch import Argument, Launch
from ._lrn_problem import OPS
from ._lrn_steps import BackwardSteps, ForwardSteps

COST = constants("norm/lrn_naive")

THREADS = 128


@dataclass(frozen=True)
class Config:
    """dtype, dimensions besides the channels, whether neighbouring threads have neighbouring channels, and the window."""
    dtype: str
    dims: int
    across: bool
    before: int
    after: int


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """Bytes, and a window's instructions per element; backward its square."""
    reads = problem.size if problem.op == "lrn_fwd" else problem.size ** 2
    return LAUNCH + overlap(memory=2 * memory_seconds(problem.bytes, device),
                            issue=issue_seconds(problem.x.size, COST.element + COST.window * reads, device))


def _make_sum(config, Real):
    """Device function ``s(x, first, c, channels, step, scale, k)`` of channel c."""
    load, BEFORE, AFTER = element(config.dtype).load, config.before, config.after

    @device_function
    def s(x, first, c, channels, step, scale, k):
        total = Real(0)
        low = c - BEFORE if c > BEFORE else i64(0)
        high = c + AFTER + 1 if c + AFTER + 1 < channels else channels
        for j in range(low, high):
            v = load(x, first + j * step)
            total += v * v
        return k + scale * total
    return s


def _make_position(config, arrays):
    """Device function ``position(channels, outer, sizes, strides) -> (channel, offsets of channel 0 in the arrays)`` of the thread; the
    channel is -1 past the end."""
    row_offsets, ACROSS = make_row_offsets64(config.dims, arrays), config.across

    @device_function
    def position(channels, outer, sizes, strides):
        k = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if ACROSS:
            o = k // channels
            c = k - o * channels
        else:
            c = k // outer
            o = k - c * outer
        there = k < channels * outer
        return c if there else i64(-1), row_offsets(o, sizes, strides)
    return position


@functools.cache
def forward_kernel(config):
    """y, an element a thread."""
    e = element(config.dtype)
    load, store, Real = e.load, e.store, f64 if config.dtype == "float64" else f32
    s_of, position = _make_sum(config, Real), _make_position(config, ("x", "y"))

    @jit(launch_bounds=THREADS)
    def lrn_fwd_naive(x, y, alpha, beta, k, share, channels, outer, steps, sizes, strides):
        c, first = position(channels, outer, sizes, strides)
        if c >= 0:
            s = s_of(x, first.x, c, channels, steps.x, alpha * share, k)
            store(y, first.y + c * steps.y, load(x, first.x + c * steps.x) * exp(Real(-beta) * log(s)))
    return lrn_fwd_naive


@functools.cache
def backward_kernel(config):
    """dx, an element a thread."""
    e = element(config.dtype)
    load, store, Real = e.load, e.store, f64 if config.dtype == "float64" else f32
    s_of, position, BEFORE, AFTER = _make_sum(config, Real), _make_position(config, ("dy", "x", "y", "dx")), config.before, config.after

    @jit(launch_bounds=THREADS)
    def lrn_bwd_naive(dy, x, y, dx, alpha, beta, k, share, channels, outer, steps, sizes, strides):
        c, first = position(channels, outer, sizes, strides)
        if c >= 0:
            scale, total = alpha * share, Real(0)
            low = c - AFTER if c > AFTER else i64(0)
            high = c + BEFORE + 1 if c + BEFORE + 1 < channels else channels
            for j in range(low, high):
                s = s_of(x, first.x, j, channels, steps.x, scale, k)
                total += load(dy, first.dy + j * steps.dy) * load(y, first.y + j * steps.y) / s
            s = s_of(x, first.x, c, channels, steps.x, scale, k)
            own = load(dy, first.dy + c * steps.dy) * exp(Real(-beta) * log(s))
            others = Real(2) * scale * beta * load(x, first.x + c * steps.x)
            store(dx, first.dx + c * steps.dx, own - others * total)
    return lrn_bwd_naive


def build(problem, device, config):
    """One launch."""
    p, (channel,), outer = problem, problem.form.row, problem.form.outer
    across = abs(channel.strides[-1]) <= abs(outer[-1].strides[-1])
    config = Config(p.dtype, len(outer), across, p.before, p.after)
    sizes, strides = row_arguments64(outer, len(p.arrays))
    steps = ForwardSteps if p.op == "lrn_fwd" else BackwardSteps
    arguments = (*(Argument(element(p.dtype).pointer, name) for name, _ in p.arrays),
                 *(Argument(p.compute, name) for name in ("alpha", "beta", "k")), Argument(p.compute, 1.0 / p.size),
                 Argument("int64", channel.size), Argument("int64", p.form.rows), Argument(steps, steps(*channel.strides)),
                 Argument(f"int64x{len(sizes)}", sizes), Argument(f"int64x{len(strides)}", strides))
    kernel = (forward_kernel if p.op == "lrn_fwd" else backward_kernel)(config)
    return (Launch(kernel, (-(-p.x.size // THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHMS = tuple(Algorithm(op=op, name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build) for op in OPS)

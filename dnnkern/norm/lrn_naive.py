"""One thread an element, straight from the definition: it reads its window, backward the windows of all that see it. Any strides."""
import functools
from dataclasses import dataclass

from ..device import cuda, device_function, f32, f64, i64, jit
from ..device.convert import element
from ..device.fastmath import exp, log
from ..device.rows import make_row_places64, row_arguments64
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
from ..host.launch import Argument, Launch
from ._lrn_problem import OPS

COST = constants("norm/lrn_naive")

THREADS = 128


@dataclass(frozen=True)
class Config:
    """dtype, dimensions besides the channels, whether neighbouring threads have neighbouring channels, and the window."""
    dtype: str
    dims: int
    across: bool
    behind: int
    ahead: int


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """Bytes, and a window's instructions an element; backward its square."""
    reads = problem.size if problem.op == "lrn_fwd" else problem.size ** 2
    return LAUNCH + overlap(memory=2 * memory_seconds(problem.bytes, device),
                            issue=issue_seconds(problem.x.size, COST.element + COST.window * reads, device))


def _make_sum(config, Real):
    """Device function ``s(x, first, c, channels, step, scale, k)`` of channel c."""
    load, BEHIND, AHEAD = element(config.dtype).load, config.behind, config.ahead

    @device_function
    def s(x, first, c, channels, step, scale, k):
        total = Real(0)
        low = c - BEHIND if c > BEHIND else i64(0)
        high = c + AHEAD + 1 if c + AHEAD + 1 < channels else channels
        for j in range(low, high):
            v = load(x, first + j * step)
            total = Real(total + v * v)
        return Real(k + scale * total)
    return s


def _make_thread(config, arrays):
    """Device function ``thread(channels, outer, sizes, strides, first) -> channel, below 0 if there is none``."""
    places, ACROSS = make_row_places64(config.dims, arrays), config.across

    @device_function
    def thread(channels, outer, sizes, strides, first):
        k = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if k >= channels * outer:
            return i64(-1)
        if ACROSS:
            o = k // channels
            c = k - o * channels
        else:
            c = k // outer
            o = k - c * outer
        places(o, sizes, strides, first)
        return c
    return thread


@functools.cache
def forward_kernel(config):
    """y, an element a thread."""
    e = element(config.dtype)
    load, store, Real = e.load, e.store, f64 if config.dtype == "float64" else f32
    s_of, thread = _make_sum(config, Real), _make_thread(config, 2)

    @jit(launch_bounds=THREADS)
    def lrn_fwd_naive(x, y, alpha, beta, k, share, channels, outer, steps, sizes, strides):
        first = cuda.local.array(2, i64)
        c = thread(channels, outer, sizes, strides, first)
        if c >= 0:
            s = s_of(x, first[0], c, channels, steps[0], Real(alpha * share), k)
            store(y, first[1] + c * steps[1], Real(load(x, first[0] + c * steps[0]) * exp(Real(Real(-beta) * log(s)))))
    return lrn_fwd_naive


@functools.cache
def backward_kernel(config):
    """dx, an element a thread."""
    e = element(config.dtype)
    load, store, Real = e.load, e.store, f64 if config.dtype == "float64" else f32
    s_of, thread, BEHIND, AHEAD = _make_sum(config, Real), _make_thread(config, 4), config.behind, config.ahead

    @jit(launch_bounds=THREADS)
    def lrn_bwd_naive(dy, x, y, dx, alpha, beta, k, share, channels, outer, steps, sizes, strides):
        first = cuda.local.array(4, i64)
        c = thread(channels, outer, sizes, strides, first)
        if c >= 0:
            scale, total = Real(alpha * share), Real(0)
            low = c - AHEAD if c > AHEAD else i64(0)
            high = c + BEHIND + 1 if c + BEHIND + 1 < channels else channels
            for j in range(low, high):
                s = s_of(x, first[1], j, channels, steps[1], scale, k)
                total = Real(total + load(dy, first[0] + j * steps[0]) * load(y, first[2] + j * steps[2]) / s)
            s = s_of(x, first[1], c, channels, steps[1], scale, k)
            own = Real(load(dy, first[0] + c * steps[0]) * exp(Real(Real(-beta) * log(s))))
            others = Real(Real(Real(2) * scale) * beta) * load(x, first[1] + c * steps[1])
            store(dx, first[3] + c * steps[3], Real(own - others * total))
    return lrn_bwd_naive


def build(problem, device, config):
    """One launch."""
    p, (channel,), outer = problem, problem.form.row, problem.form.outer
    across = abs(channel.strides[-1]) <= abs(outer[-1].strides[-1])
    config = Config(p.dtype, len(outer), across, p.behind, p.ahead)
    sizes, strides = row_arguments64(outer, len(p.arrays))
    arguments = (*(Argument(element(p.dtype).pointer, name) for name, _ in p.arrays),
                 *(Argument(p.compute, name) for name in ("alpha", "beta", "k")), Argument(p.compute, 1.0 / p.size),
                 Argument("int64", channel.size), Argument("int64", p.form.rows), Argument(f"int64x{len(p.arrays)}", channel.strides),
                 Argument(f"int64x{len(sizes)}", sizes), Argument(f"int64x{len(strides)}", strides))
    kernel = (forward_kernel if p.op == "lrn_fwd" else backward_kernel)(config)
    return (Launch(kernel, (-(-p.x.size // THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHMS = tuple(Algorithm(op=op, name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build) for op in OPS)

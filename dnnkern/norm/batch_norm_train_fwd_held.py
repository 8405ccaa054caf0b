"""Pixels side by side, channels that shared memory holds: a block has all values of a channel, and reads them from memory once.

    x --16 bytes--> registers --> shared memory --> mean --> squared distances to it --> y

`planes` has three launches and reads x twice, the second time from memory where the L2 does not hold it. Here a block loads its channel's
planes of all images, adds them up on the way, and keeps them as they are; then it goes through shared memory for the variance, and once
more for the results. No thread reads what another has written, so only the sums meet: two barriers. It loses with few channels, which
leave multiprocessors idle.
"""
import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..device import cuda, f32, jit, u32
from ..device.block import add, make_block_reduce
from ..device.convert import element
from ..device.epilogue import activation_function
from ..device.groups import access_words, make_reader, make_writer
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.vec import advance
from ..dispatch import Algorithm
from ..engine.ahead import make_follow
from ..engine.constants import constants
from ..engine.cost import LAUNCH, Cost, contend, issue_seconds, memory_seconds
from ..host.launch import Argument, Launch
from ._channel_view import View, view_alone, view_of
from ._moments import make_inverses

if TYPE_CHECKING:
    from ..device.epilogue import Activation

COST = constants("norm/held")

LOADS = 4             # of a thread in flight
RESERVED = 2048       # bytes of shared memory beside the channel's
MOST = 220 << 10      # bytes of a channel
LEAST, LARGEST = 128, 512  # threads of a block
REGISTERS = 48        # of a thread


@dataclass(frozen=True)
class Config:
    """Type of the elements, elements of an access, threads of a block, blocks of a multiprocessor; dtypes of gamma and beta, "" where there
    is none, of the running mean and variance and of where they are written; the activation."""
    dtype: str
    vector: int
    threads: int
    blocks: int
    gamma: str
    beta: str
    running: tuple
    activation: "Activation"

    @property
    def words(self):
        """Of an access."""
        return self.vector * element(self.dtype).storage.itemsize // 4


def _vector(p, view):
    """Elements of an access, of 16 bytes, 8 or 4; 0 where some would be single."""
    vector = math.gcd(16 // p.x.itemsize, view.values)
    nbytes = vector * p.x.itemsize
    for name in ("x", "y"):
        image, channel, _ = view.whole[name]
        steps = [s for s, n in ((image, view.images), (channel, view.channels)) if n > 1]
        if nbytes < 4 or 4 * access_words(p.tensor(name), vector, steps) != nbytes:
            return 0
    return vector


def supports(problem):
    """Planes of whole accesses of up to 32 bits, nothing besides: no residual, no program."""
    p = problem
    view = view_alone(p)
    if not isinstance(view, View):
        return view
    if p.has_residual or p.program is not None or p.y is None or p.result:
        return "a residual, a program, a result of another type, or no y; it computes y of x alone"
    for name in ("x", "y"):
        if view.whole[name][2] != 1 and view.values > 1:
            return f"values of a channel are {view.whole[name][2]} elements apart in {name}; expected them side by side"
    if (nbytes := view.images * view.values * p.x.itemsize) > MOST:
        return f"{nbytes} bytes of a channel; expected at most {MOST}"
    if not _vector(p, view):
        return f"{view.values} values of {p.x.itemsize} bytes of an image's channel, or steps between them, are no multiples of 4 bytes"
    return None


def fits(problem, device):
    """Shared memory of a block."""
    view = view_of(problem)
    need = view.images * view.values * problem.x.itemsize + RESERVED
    return f"{need} bytes of shared memory; the device has {device.shared_per_block}" if need > device.shared_per_block else None


def workspace(problem, device, config):
    """None."""
    return 0


def _config(p, device):
    view = view_of(p)
    vector, nbytes = _vector(p, view), view.images * view.values * p.x.itemsize
    vectors = view.images * view.values // vector
    threads = max(LEAST, min(LARGEST, 1 << (max(1, vectors // LOADS) - 1).bit_length()))
    blocks = max(1, min(65536 // (REGISTERS * threads), device.shared_per_sm // (nbytes + RESERVED)))
    running = "running_mean", "running_var", p.moved("mean"), p.moved("var")
    return Config(p.dtype, vector, threads, blocks, p.dtype_of("gamma"), p.dtype_of("beta"),
                  tuple(map(p.dtype_of, running)), p.activation)


def estimate(problem, device, config):
    """Bytes, or instructions; what the blocks of a wave wait."""
    config, view = _config(problem, device), view_of(problem)
    waves = ceil_div(view.channels, config.blocks * device.sms)
    idle = max(1.0, device.sms / (COST.most * view.channels))
    moved = Cost(memory=memory_seconds(problem.bytes, device)).slowed(idle=idle)
    work = issue_seconds(problem.x.size, COST.element + COST.access / config.vector, device) * max(1.0, device.sms / view.channels)
    return LAUNCH + (contend(4, moved, issue=work) + Cost(waits=waves * COST.wait)).slowed(slower=COST.slower)


@functools.cache
def kernel(config, dependent):
    """y, mean and rstd of a channel, and the running statistics."""
    V, THREADS, WORDS = config.vector, config.threads, config.words
    Raw, LENGTH, fetch, unpack = make_reader(config.dtype, V, WORDS)
    put, act = make_writer(config.dtype, V, WORDS), activation_function(config.activation, "float32")
    reduce, (inverse, inverse_root) = make_block_reduce(add, THREADS), make_inverses(f32)
    SCALED, SHIFTED, BUFFER, SCRATCH = config.gamma != "", config.beta != "", LOADS * LENGTH, 2 * THREADS // 32
    load_gamma, load_beta = element(config.gamma or config.dtype).load, element(config.beta or config.dtype).load
    mean_dtype, var_dtype, next_mean_dtype, next_var_dtype = config.running
    RUNNING_MEAN, RUNNING_VAR = mean_dtype != "", var_dtype != ""
    load_mean, load_var = element(mean_dtype or "float32").load, element(var_dtype or "float32").load
    store_mean, store_var = element(next_mean_dtype or "float32").store, element(next_var_dtype or "float32").store
    wait = make_follow(dependent)

    @jit(launch_bounds=(THREADS, config.blocks))
    def channel_norm_held(x, y, gamma, beta, mean, rstd, running_mean, running_var, next_mean, next_var, eps, momentum, vectors, pieces,
                          count, x_image, x_channel, y_image, y_channel, gamma_step, beta_step, mean_step, rstd_step, running_mean_step,
                          running_var_step, next_mean_step, next_var_step):
        wait()
        held, scratch = cuda.shared.array(0, u32), cuda.shared.array(SCRATCH, f32)
        raw, values = cuda.local.array(BUFFER, Raw), cuda.local.array(V, f32)
        t, c = cuda.threadIdx.x, cuda.blockIdx.x
        x, y = advance(x, c * x_channel), advance(y, c * y_channel)
        weight, shift, total = f32(1), f32(0), f32(0)
        if SCALED:
            weight = load_gamma(gamma, c * gamma_step)
        if SHIFTED:
            shift = load_beta(beta, c * beta_step)
        # from memory, to keep; a word of all vectors lies side by side, so that threads meet in no bank
        for first in range(t, vectors, LOADS * THREADS):
            for k in range(LOADS):
                v = first + k * THREADS
                image, at = divide_remainder(v if v < vectors else 0, pieces)
                fetch(raw, k * LENGTH, x, image * x_image + at * V, v < vectors)
            for k in range(LOADS):
                v = first + k * THREADS
                if v < vectors:
                    for w in range(WORDS):
                        held[w * vectors + v] = raw[k * LENGTH + w]
                    unpack(values, 0, raw, k * LENGTH)
                    for e in range(V):
                        total += values[e]
        part = inverse(count)
        m = reduce(total, scratch, 0) * part
        squares = f32(0)
        for v in range(t, vectors, THREADS):
            for w in range(WORDS):
                raw[w] = held[w * vectors + v]
            unpack(values, 0, raw, 0)
            for e in range(V):
                d = values[e] - m
                squares += d * d
        squares = reduce(squares, scratch, 1)
        r = inverse_root(squares * part + eps)
        if t == 0:
            mean[c * mean_step] = m
            rstd[c * rstd_step] = r
            if RUNNING_MEAN:
                own = load_mean(running_mean, c * running_mean_step)
                store_mean(next_mean, c * next_mean_step, (1.0 - momentum) * own + momentum * m)
            if RUNNING_VAR:
                own = load_var(running_var, c * running_var_step)
                var = squares * inverse(count - 1.0) if count > 1.0 else f32(0)
                store_var(next_var, c * next_var_step, (1.0 - momentum) * own + momentum * var)
        weight = weight * r
        for v in range(t, vectors, THREADS):
            for w in range(WORDS):
                raw[w] = held[w * vectors + v]
            unpack(values, 0, raw, 0)
            for e in range(V):
                values[e] = act((values[e] - m) * weight + shift)
            image, at = divide_remainder(v, pieces)
            put(advance(y, image * y_image + at * V), 0, values, 0)
    return channel_norm_held


def build(problem, device, config):
    """One launch."""
    p, view, config = problem, view_of(problem), _config(problem, device)
    values = view.images * view.values

    def step(name):
        return Argument("int64", view.weight[name] if name in view.weight else view.statistic.get(name, (0, 0))[1])
    running = "running_mean", "running_var", p.moved("mean"), p.moved("var")
    steps = tuple(Argument("int64", s) for name in ("x", "y") for s in view.whole[name][:2])
    arguments = (p.pointer("x"), p.pointer("y"), p.pointer("gamma"), p.pointer("beta"), Argument("float32*", "mean"),
                 Argument("float32*", "rstd"), *(p.pointer(name, "mean") for name in running), Argument("float32", "eps"),
                 Argument("float32", "momentum"), Argument("int32", values // config.vector),
                 Argument("uint32x3", divisor(view.values // config.vector)), Argument("float32", float(values)), *steps,
                 *map(step, ("gamma", "beta", "mean", "rstd", *running)))
    dependent = device.capability >= (9, 0)
    return (Launch(kernel(config, dependent), (view.channels, 1, 1), (config.threads, 1, 1), arguments, shared=values * p.x.itemsize,
                   dependent=dependent),)


ALGORITHM = Algorithm(op="batch_norm_train_fwd", name="held", supports=supports, fits=fits, workspace=workspace, estimate=estimate,
                      build=build)

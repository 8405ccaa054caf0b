"""One thread per channel: it walks over images and pixels and adds.

It supports everything; faster algorithms are tested against it. With channels last the threads of a warp read neighbouring elements; with
channels first each walks along its own rows. Each row is summed separately first, which loses less to rounding. Best for few pixels.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, f32, f64, i64, jit
from ..device.convert import element
from ..device.index import ceil_div
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import Cost, overlap
from ..host.launch import Argument, Launch
from ._parameters import OutputStrides

COST = constants("conv/bias_naive")


@dataclass(frozen=True)
class Config:
    """Types of dy and db."""
    dtype: str
    output: str
    threads: int = 128


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """A load at a time in each thread, of half a memory latency."""
    waves = ceil_div(problem.k, COST.resident * device.sms)
    return Cost(launch=COST.start) + overlap(waits=waves * problem.pixels * COST.load / device.clock_hz,
                                             memory=problem.bytes / device.bandwidth)


@functools.cache
def kernel(config):
    """db[k] = the sum of dy[n, k, o, p, q]."""
    THREADS = config.threads
    Total = f64 if config.dtype == "float64" else f32
    load, store = element(config.dtype).load, element(config.output).store

    @jit(launch_bounds=THREADS)
    def conv_bwd_bias_naive(dy, db, images, channels, depth, height, width, y_stride, stride):
        k = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if k < channels:
            total = Total(0)
            for n in range(images):
                for o in range(depth):
                    for p in range(height):
                        row, part = n * y_stride.n + k * y_stride.k + o * y_stride.o + p * y_stride.p, Total(0)
                        for q in range(width):
                            part = Total(part + Total(load(dy, row + q * y_stride.q)))
                        total = Total(total + part)
            store(db, k * stride, total)
    return conv_bwd_bias_naive


def build(problem, device, config):
    """One launch."""
    config = Config(problem.dy.dtype, problem.db.dtype)
    arguments = (Argument(element(problem.dy.dtype).pointer, "dy"), Argument(element(problem.db.dtype).pointer, "db"),
                 *(Argument("int64", v) for v in (problem.n, problem.k, *problem.out)),
                 Argument(OutputStrides, OutputStrides(*problem.dy_strides)), Argument("int64", problem.db.strides[0]))
    return (Launch(kernel(config), (ceil_div(problem.k, config.threads), 1, 1), (config.threads, 1, 1), arguments),)


ALGORITHM = Algorithm(op="conv_bwd_bias", name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build)

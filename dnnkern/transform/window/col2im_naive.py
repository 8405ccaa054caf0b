"""One thread an element of the image, straight from the definition.

The thread walks through the taps of the window in their order and adds, for each, the element of the columns in which it sees this pixel,
if there is one: pixel h is what tap r sees from place p where ``p * stride = h + before - r * dilation``. So each sum has one owner: no
atomics, always the same order. Any strides; a division of 64-bit integers for each tap and dimension.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, f32, f64, i64, jit
from ...device.convert import element
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
from ...host.launch import Argument, Launch

COST = constants("transform/col2im_naive")

THREADS = 256


@dataclass(frozen=True)
class Config:
    """Element type, whether channels are last."""
    dtype: str
    channels_last: bool


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """The divisions."""
    return LAUNCH + overlap(issue=issue_seconds(problem.x.size, COST.element + COST.tap * problem.tap_count, device),
                            memory=memory_seconds(problem.bytes, device))


@functools.cache
def kernel(config):
    """x[n, c, d, h, w] = the sum of the columns' elements that see it."""
    e = element(config.dtype)
    load, store, Total = e.load, e.store, {"float32": f32, "float64": f64}[e.compute]
    CHANNELS_LAST = config.channels_last

    @jit(launch_bounds=(THREADS, 2))
    def col2im_naive(columns, x, elements, channels, g, x_strides, strides):
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < elements:
            c = i64(0)
            if CHANNELS_LAST:
                rest = i64(i // channels)
                c, i = i64(i - rest * channels), rest
            rest = i // g[2]
            w, i = i - rest * g[2], rest
            rest = i // g[1]
            h, i = i - rest * g[1], rest
            rest = i // g[0]
            d, n = i - rest * g[0], rest
            if not CHANNELS_LAST:
                n = rest // channels
                c = rest - n * channels
            total, at = Total(0), n * strides[0] + c * strides[1]
            for t in range(g[3]):
                od = d + g[15] - t * g[12]
                o = od // g[9]
                for r in range(g[4]):
                    ph = h + g[16] - r * g[13]
                    p = ph // g[10]
                    for s in range(g[5]):
                        qw = w + g[17] - s * g[14]
                        q = qw // g[11]
                        seen = o >= 0 and o < g[6] and p >= 0 and p < g[7] and q >= 0 and q < g[8]
                        if seen and o * g[9] == od and p * g[10] == ph and q * g[11] == qw:
                            tap, pixel = (t * g[4] + r) * g[5] + s, (o * g[7] + p) * g[8] + q
                            total = Total(total + load(columns, at + tap * strides[2] + pixel * strides[3]))
            store(x, n * x_strides[0] + c * x_strides[1] + d * x_strides[2] + h * x_strides[3] + w * x_strides[4], total)
    return col2im_naive


def build(problem, device, config, source=("columns", 0), target=("x", 0)):
    """One launch. `source` and `target` are the names of the two pointers and byte offsets to them."""
    pointer = element(problem.x.dtype).pointer
    arguments = (Argument(pointer, source[0], offset=source[1]), Argument(pointer, target[0], offset=target[1]),
                 Argument("int64", problem.x.size), Argument("int64", problem.c), *problem.geometry(),
                 Argument("int64x5", problem.x_strides), Argument("int64x4", problem.columns_strides))
    grid = -(-problem.x.size // THREADS), 1, 1
    return (Launch(kernel(Config(problem.x.dtype, problem.layout == "NHWC")), grid, (THREADS, 1, 1), arguments),)


ALGORITHM = Algorithm(op="col2im", name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build)

"""One thread per element of the image, straight from the definition.

The thread walks over the taps of the window in order. For each it adds the element of the columns that is a copy of its pixel, if there is
one: tap r of output p reads pixel h where ``p * stride = h + padding - r * dilation``. So each sum has one owner: no atomics, always the
same order. Arbitrary strides; a 64-bit division for each tap and dimension.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, f32, f64, i64, jit
from ...device.convert import element
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
from ...host.launch import Argument, Launch
from .im2col_naive import window_arguments

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
    """x[n, c, d, h, w] = the sum of its copies in the columns."""
    e = element(config.dtype)
    load, store, Total = e.load, e.store, {"float32": f32, "float64": f64}[e.compute]
    CHANNELS_LAST = config.channels_last

    @jit(launch_bounds=(THREADS, 2))
    def col2im_naive(columns, x, elements, channels, axes, x_stride, stride):
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < elements:
            c = i64(0)
            if CHANNELS_LAST:
                rest = i // channels
                c, i = i - rest * channels, rest
            rest = i // axes.w.extent
            w, i = i - rest * axes.w.extent, rest
            rest = i // axes.h.extent
            h, i = i - rest * axes.h.extent, rest
            rest = i // axes.d.extent
            d, n = i - rest * axes.d.extent, rest
            if not CHANNELS_LAST:
                n = rest // channels
                c = rest - n * channels
            total, at = Total(0), n * stride.n + c * stride.c
            for t in range(axes.d.taps):
                d_from = d + axes.d.padding - t * axes.d.dilation
                o = d_from // axes.d.stride
                for r in range(axes.h.taps):
                    h_from = h + axes.h.padding - r * axes.h.dilation
                    p = h_from // axes.h.stride
                    for s in range(axes.w.taps):
                        w_from = w + axes.w.padding - s * axes.w.dilation
                        q = w_from // axes.w.stride
                        is_output = (o >= 0 and o < axes.d.outputs and p >= 0 and p < axes.h.outputs
                                     and q >= 0 and q < axes.w.outputs)
                        if (is_output and o * axes.d.stride == d_from and p * axes.h.stride == h_from
                                and q * axes.w.stride == w_from):
                            tap, pixel = (t * axes.h.taps + r) * axes.w.taps + s, (o * axes.h.outputs + p) * axes.w.outputs + q
                            total += load(columns, at + tap * stride.tap + pixel * stride.pixel)
            store(x, n * x_stride.n + c * x_stride.c + d * x_stride.d + h * x_stride.h + w * x_stride.w, total)
    return col2im_naive


def build(problem, device, config, source=("columns", 0), target=("x", 0)):
    """One launch. `source` and `target`: the names of the two pointers, and byte offsets to them."""
    pointer = element(problem.x.dtype).pointer
    arguments = (Argument(pointer, source[0], offset=source[1]), Argument(pointer, target[0], offset=target[1]),
                 Argument("int64", problem.x.size), Argument("int64", problem.c), *window_arguments(problem))
    grid = -(-problem.x.size // THREADS), 1, 1
    return (Launch(kernel(Config(problem.x.dtype, problem.layout == "NHWC")), grid, (THREADS, 1, 1), arguments),)


ALGORITHM = Algorithm(op="col2im", name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build)

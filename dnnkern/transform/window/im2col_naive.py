"""One thread an element of the columns, straight from the definition.

Thread i takes element i in the columns' own order, finds image, channel, tap and pixel by eight divisions of 64-bit integers, and copies
the element of x that the tap sees there, or writes the padding's 0. Any strides of either array, any number of elements; stores are
coalesced where the columns are packed.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, device_function, i64, jit
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
from ...host.launch import Argument, Launch

COST = constants("transform/im2col_naive")

THREADS = 256


@dataclass(frozen=True)
class Config:
    """Whether channels are last."""
    channels_last: bool


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """The divisions."""
    return LAUNCH + overlap(issue=issue_seconds(problem.columns.size, COST.element, device), memory=memory_seconds(problem.bytes, device))


@functools.cache
def make_coordinates(channels_last):
    """Device function: (n, c, t, r, s, o, p, q) of a flat index; extents as in `WindowProblem.geometry`."""
    @device_function
    def three(i, a, b, c):
        rest = i // c
        last = i - rest * c
        i = rest // b
        middle = rest - i * b
        rest = i // a
        return rest, i - rest * a, middle, last

    @device_function
    def coordinates(i, channels, g):
        if channels_last:
            rest = i64(i // channels)
            c = i64(i - rest * channels)
            rest, t, r, s = three(rest, g[3], g[4], g[5])
            n, o, p, q = three(rest, g[6], g[7], g[8])
        else:
            rest, o, p, q = three(i, g[6], g[7], g[8])
            rest, t, r, s = three(rest, g[3], g[4], g[5])
            n = rest // channels
            c = rest - n * channels
        return n, c, t, r, s, o, p, q
    return coordinates


@functools.cache
def kernel(config):
    """columns[n, c, tap, pixel] = x[n, c, ...] or 0."""
    coordinates = make_coordinates(config.channels_last)

    @jit(launch_bounds=THREADS)
    def im2col_naive(x, columns, elements, channels, g, x_strides, strides):
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < elements:
            n, c, t, r, s, o, p, q = coordinates(i, channels, g)
            d, h, w = o * g[9] + t * g[12] - g[15], p * g[10] + r * g[13] - g[16], q * g[11] + s * g[14] - g[17]
            tap, pixel = (t * g[4] + r) * g[5] + s, (o * g[7] + p) * g[8] + q
            to = n * strides[0] + c * strides[1] + tap * strides[2] + pixel * strides[3]
            if d >= 0 and d < g[0] and h >= 0 and h < g[1] and w >= 0 and w < g[2]:
                columns[to] = x[n * x_strides[0] + c * x_strides[1] + d * x_strides[2] + h * x_strides[3] + w * x_strides[4]]
            else:
                columns[to] = 0
    return im2col_naive


def build(problem, device, config, source=("x", 0), target=("columns", 0)):
    """One launch. `source` and `target` are the names of the two pointers and byte offsets to them."""
    pointer = {1: "uint8*", 2: "uint16*", 4: "uint32*", 8: "uint64*"}[problem.x.itemsize]
    arguments = (Argument(pointer, source[0], offset=source[1]), Argument(pointer, target[0], offset=target[1]),
                 Argument("int64", problem.columns.size), Argument("int64", problem.c), *problem.geometry(),
                 Argument("int64x5", problem.x_strides), Argument("int64x4", problem.columns_strides))
    grid = -(-problem.columns.size // THREADS), 1, 1
    return (Launch(kernel(Config(problem.layout == "NHWC")), grid, (THREADS, 1, 1), arguments),)


ALGORITHM = Algorithm(op="im2col", name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build)

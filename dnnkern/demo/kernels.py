"""The demo's own four kernels, for what products and convolutions cannot do: softmax cross-entropy, the gradient of ReLU, momentum of the
gradients that come without, a step of the weights."""
import functools

import numpy as np

from ..device import SIMULATED, cuda, f32, i32
from ..device.fastmath import exp, log, maximum
from ..device.warp import lane_id, make_reduce, reduce_sum, warp_id
from ..host.arrays import kind_of
from ..host.launch import Argument, Executable, Launch, SimulatedExecutable

THREADS = 128
ROWS = THREADS // 32
reduce_max = make_reduce(maximum)


@cuda.jit(launch_bounds=THREADS)
def softmax_cross_entropy(logits, targets, losses, gradient, rows, classes):
    """A warp a row, a lane a class: losses[r] = log(sum exp(logits[r])) - logits[r, target]; gradient = softmax - onehot."""
    row = i32(cuda.blockIdx.x * ROWS + warp_id())
    if row < rows:
        lane = lane_id()
        i = i32(row * classes + lane)
        target = i32(targets[row])
        x = f32(-np.inf)
        if lane < classes:
            x = f32(logits[i])
        largest = reduce_max(x)
        e = exp(f32(x - largest))
        total = reduce_sum(e)
        if lane < classes:
            onehot = f32(0)
            if lane == target:
                onehot = f32(1)
                losses[row] = f32(log(total) - f32(x - largest))
            gradient[i] = f32(e / total - onehot)


@cuda.jit(launch_bounds=THREADS)
def relu_gradient(h, dh, n):
    """dh[i] is kept where relu let something through, else 0; in place."""
    i = i32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
    if i < n:
        if h[i] <= f32(0):
            dh[i] = f32(0)


@cuda.jit(launch_bounds=THREADS)
def add_momentum(velocity, gradient, n, momentum, scale):
    """velocity = momentum * velocity + scale * gradient."""
    i = i32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
    if i < n:
        velocity[i] = f32(momentum * velocity[i] + scale * gradient[i])


@cuda.jit(launch_bounds=THREADS)
def step(w, velocity, n, rate):
    """w -= rate * velocity, in place."""
    i = i32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
    if i < n:
        w[i] = f32(w[i] - rate * velocity[i])


@functools.lru_cache(maxsize=None)
def _executable(kernel, grid, types, constants, device):
    """One launch of a kernel whose pointers are given at each execution."""
    names = [str(k) for k in range(len(types))]
    arguments = tuple(Argument(t + "*", name) for t, name in zip(types, names)) + tuple(Argument(t, v) for t, v in constants)
    launch = Launch(kernel, (grid, 1, 1), (THREADS, 1, 1), arguments)
    return (SimulatedExecutable if SIMULATED else Executable)([launch], [(name, "pointer") for name in names], device)


def run(kernel, grid, arrays, constants):
    """Launch on packed arrays of any framework, on its current stream; `constants` are ((type, value), ...)."""
    kinds = [kind_of(a) for a in arrays]
    device = kinds[0].device(arrays[0])
    types = tuple(kind.tensor(a).dtype for kind, a in zip(kinds, arrays))
    values = [kind.host_view(a) if SIMULATED else kind.describe(a)[1] for kind, a in zip(kinds, arrays)]
    _executable(kernel, grid, types, constants, device).execute(values, kinds[0].stream(device))

"""The transformed filter, G g G^T for every pair of channels, in the workspace.

Its layout is [block of k][block of c][matrix][c][k], padded with zeros: the main loop reads each step as one contiguous piece. With one
block as large as the filter that is [matrix][c][k].
"""
import functools
from dataclasses import dataclass

from ...device import cuda, device_function, f32, i32, i64, jit
from ...device.convert import element
from ...device.index import Divisor, ceil_div, divide_remainder, divisor
from ...device.unroll import unrolled
from ...host.launch import Argument, Launch
from .problem import TapStrides
from .transforms import Transform, make_square

THREADS = 128
PER = 4  # filters per thread; neighbouring threads have neighbouring k


@dataclass(frozen=True)
class Config:
    """Transform, element type of the filter."""
    transform: Transform
    dtype: str


@functools.cache
def kernel(config):
    """A thread transforms the filters of one c and k, k + quarter, ..."""
    N, R = config.transform.n, config.transform.r
    SIZE = N * N
    load = element(config.dtype).load
    transform = make_square(config.transform.filter, N, R, N)

    @device_function
    def load_tap(j, state):
        v, w, at, stride, inside = state
        r, s = j // R, j % R
        v[r * N + s] = load(w, at + r * stride.r + s * stride.s) if inside else f32(0)

    @device_function
    def store_one(j, state):
        v, u, to, plane = state
        u[to + j * plane] = v[j]
    load_all, store_all = unrolled(R * R, load_tap), unrolled(SIZE, store_one)

    @jit(launch_bounds=THREADS)
    def conv_winograd_filter(w, u, count, quarter, bk, bc, blocks_c, K, C, first, stride):
        i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if i < count:
            c, low = divide_remainder(i, quarter)
            cb, c_in = divide_remainder(c, bc)
            plane = bk.d * i64(bc.d)
            v = cuda.local.array(SIZE, f32)
            for part in range(PER):
                k = low + part * i32(quarter.d)
                kb, k_in = divide_remainder(k, bk)
                inside = k < K and c < C
                at = first + k * stride.k + c * stride.c
                load_all(0, (v, w, at, stride, inside))
                transform(v)
                to = (kb * blocks_c + cb) * SIZE * plane + c_in * i64(bk.d) + k_in
                store_all(0, (v, u, to, plane))
    return conv_winograd_filter


def filter_launch(problem, c, transform, blocks, offset=0, name="w"):
    """The launch that transforms filter `name` to byte `offset` of the workspace, in blocks of (k, c); the first is a multiple of four.

    `c` has `k`, `c`, `w_first` and `w_strides`, as `Correlation`.
    """
    bk, bc = blocks
    padded_k, padded_c = ceil_div(c.k, bk) * bk, ceil_div(c.c, bc) * bc
    count = padded_k // PER * padded_c
    tensor = getattr(problem, name)
    arguments = (Argument(element(tensor.dtype).pointer, name), Argument("float32*", "workspace", offset=offset), Argument("int32", count),
                 *(Argument(Divisor, divisor(d)) for d in (padded_k // PER, bk, bc)), Argument("int64", padded_c // bc),
                 Argument("int32", c.k), Argument("int32", c.c), Argument("int64", c.w_first), Argument(TapStrides, c.w_strides))
    return Launch(kernel(Config(transform, tensor.dtype)), (ceil_div(count, THREADS), 1, 1), (THREADS, 1, 1), arguments)

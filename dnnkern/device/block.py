"""Reductions and broadcasts over a thread block: inside warps by shuffles, between warps through shared memory behind one barrier.

Each function is made for a block size and takes ``scratch``, a shared array the caller declares, and ``half``. One barrier is enough only
if the next call does not overwrite what slow threads still read: so successive calls on one scratch must pass 0, 1, 0, 1, ... as `half`.
All threads of the block call it, and all get the same bits; the order of operations depends on the block size alone.

>>> total = make_block_reduce(add, 256)                                    # doctest: +SKIP
>>> @cuda.jit(launch_bounds=256)                                           # doctest: +SKIP
... def sums(x, y):
...     scratch = cuda.shared.array(16, f32)                               # 2 halves of 8 warps
...     s = total(x[cuda.blockIdx.x * 256 + cuda.threadIdx.x], scratch, i32(0))
...     if cuda.threadIdx.x == 0:
...         y[cuda.blockIdx.x] = s
"""
import math

from . import cuda, device_function, f32, i32
from .fastmath import exp, maximum
from .warp import add, make_reduce, shuffle_xor  # noqa: F401


_NOTHING = -math.inf


def _warps(threads, what):
    if threads % 32 or not 32 <= threads <= 1024:
        raise ValueError(f"{what}: {threads} threads, expected a multiple of 32 up to 1024")
    return threads // 32


def make_block_reduce(combine, threads):
    """Device function ``reduce(value, scratch, half)``: `combine` of all threads' values, in every thread.

    `combine(a, b)` must give the same for (b, a), in the type of its operands: `add`, `maximum`, `minimum`. `scratch`: 2 * threads / 32
    elements of that type.
    """
    warps = _warps(threads, "make_block_reduce")
    butterfly = warps & (warps - 1) == 0
    in_warp = make_reduce(combine)
    across = make_reduce(combine, warps) if butterfly else in_warp

    @device_function
    def reduce(value, scratch, half):
        value = in_warp(value)
        base = half * warps
        lane = cuda.threadIdx.x & 31
        if lane == 0:
            scratch[base + (cuda.threadIdx.x >> 5)] = value
        cuda.syncthreads()
        if butterfly:
            value = across(scratch[base + (lane & (warps - 1))])
        else:
            value = scratch[base]
            for w in range(1, warps):
                value = combine(value, scratch[i32(base + w)])
        return value
    return reduce


def make_block_reduce_pair(merge, threads, width=None):
    """Device function ``reduce(a, b, n, scratch, half)`` giving the merged (a, b) of the block, or of groups of `width` <= 32 lanes.

    ``merge(a, b, a2, b2, n)`` combines two partial results, each over `n` elements (a float). `threads / 32` must be a power of two.
    `scratch`: 4 * threads / 32 elements; not used where `width` is given.
    """
    warps = _warps(threads, "make_block_reduce_pair")
    if warps & (warps - 1) or width is not None and width not in (1, 2, 4, 8, 16, 32):
        raise ValueError(f"make_block_reduce_pair: {threads} threads, width {width}: warps and width must be powers of two")
    steps, warp_steps = (width or 32).bit_length() - 1, 0 if width else warps.bit_length() - 1
    between = width is None and warps > 1

    @device_function
    def reduce(a, b, n, scratch, half):
        for s in range(steps):
            other = 1 << s
            a, b = merge(a, b, shuffle_xor(a, other), shuffle_xor(b, other), n)
            n = n + n
        if between:
            base = half * (2 * warps)
            lane = cuda.threadIdx.x & 31
            if lane == 0:
                at = base + 2 * (cuda.threadIdx.x >> 5)
                scratch[at] = a
                scratch[at + 1] = b
            cuda.syncthreads()
            at = base + 2 * (lane & (warps - 1))
            a = scratch[at]
            b = scratch[at + 1]
            for s in range(warp_steps):
                other = 1 << s
                a, b = merge(a, b, shuffle_xor(a, other), shuffle_xor(b, other), n)
                n = n + n
        return a, b
    return reduce


def make_block_broadcast(threads):
    """Device function ``broadcast(value, source, scratch, half)``: thread `source`'s value in every thread. `scratch`: 2 elements."""
    _warps(threads, "make_block_broadcast")

    @device_function
    def broadcast(value, source, scratch, half):
        if i32(cuda.threadIdx.x) == i32(source):
            scratch[i32(half)] = value
        cuda.syncthreads()
        return scratch[i32(half)]
    return broadcast


# ---- merges for make_block_reduce_pair

@device_function
def merge_sums(a, b, a2, b2, n):
    """Two sums side by side."""
    return a + a2, b + b2


@device_function
def merge_moments(a, b, a2, b2, n):
    """a: mean of n values, b: sum of their squared deviations (Chan, Golub, LeVeque: no cancellation, whatever the mean)."""
    d = a2 - a
    return (a + a2) * f32(0.5), b + b2 + d * d * (n * f32(0.5))


@device_function
def merge_softmax(a, b, a2, b2, n):
    """a: maximum, b: sum of exp(x - a). A part with no element is (-inf, 0)."""
    m = maximum(a, a2)
    if m == _NOTHING:
        return m, b + b2
    return m, b * exp(a - m) + b2 * exp(a2 - m)

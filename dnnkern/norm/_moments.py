"""Means and squared distances to them, of parts, as of the whole: Chan, Golub and LeVeque's formula."""
import functools

from ..device import cuda, device_function, f32
from ..device.block import add
from ..device.fastmath import rcp, rsqrt, sqrt
from ..device.warp import make_reduce, shuffle_xor


@functools.cache
def make_inverses(Real):
    """Device functions ``inverse(v)`` and ``inverse_root(v)``: in float32 one instruction each, good to an ulp or two."""
    if Real is f32:
        return rcp, rsqrt

    @device_function
    def inverse(v):
        return Real(1) / v

    @device_function
    def inverse_root(v):
        return Real(1) / sqrt(v)
    return inverse, inverse_root


@functools.cache
def make_merge(Real):
    """Device function ``merge(a, b, n, a2, b2, n2)``: means, sums of squared distances and counts of two parts, as of both."""
    inverse, _ = make_inverses(Real)

    @device_function
    def merge(a, b, n, a2, b2, n2):
        count = n + n2
        part = inverse(count) if count > Real(0) else Real(0)
        d = a2 - a
        return a + d * (n2 * part), b + b2 + d * d * (n * n2 * part), count
    return merge


@functools.cache
def make_sum(Real):
    """Device function of `make_merge`'s arguments: two sums; the third number is nothing."""
    @device_function
    def combine(a, b, n, a2, b2, n2):
        return a + a2, b + b2, n
    return combine


@functools.cache
def make_meeting(combine, lanes):
    """Device function ``meet(a, b, n, scratch)``: three numbers of each of `lanes` neighbouring threads as those of all, in their first.

    ``combine(a, b, n, a2, b2, n2)`` is of two threads. Up to 32 lanes meet by shuffles; more, a whole block, in `scratch`, of 3 numbers a
    warp.
    """
    STEPS, WARPS = min(lanes, 32).bit_length() - 1, lanes // 32

    @device_function
    def meet(a, b, n, scratch):
        for s in range(STEPS):
            other = 1 << s
            a, b, n = combine(a, b, n, shuffle_xor(a, other), shuffle_xor(b, other), shuffle_xor(n, other))
        if WARPS > 1:
            thread = cuda.threadIdx.x
            at = 3 * (thread >> 5)
            if thread & 31 == 0:
                scratch[at] = a
                scratch[at + 1] = b
                scratch[at + 2] = n
            cuda.syncthreads()
            if thread == 0:
                for w in range(1, WARPS):
                    a, b, n = combine(a, b, n, scratch[3 * w], scratch[3 * w + 1], scratch[3 * w + 2])
        return a, b, n
    return meet


@functools.cache
def make_join(Real, elements, layer=True):
    """Device function ``join(values, a, b, before, share)``: mean and sum of squared distances of `before` values, and of `elements` more,
    which are `share` of all. Without `layer` there is no mean, and `b` sums squares."""
    PART = 1 / elements

    @device_function
    def join(values, a, b, before, share):
        mean = Real(0)
        if layer:
            for e in range(elements):
                mean += values[e]
            mean = mean * Real(PART)
        for e in range(elements):
            d = values[e] - mean
            b += d * d
        if layer:
            d = mean - a
            a, b = a + d * share, b + d * d * (before * share)
        return a, b
    return join


@functools.cache
def make_pool(Real, lanes, layer=True, even=False):
    """Device function ``pool(a, b, n)``: means, sums of squared distances and counts of aligned groups of `lanes` lanes, as of all, in
    every lane: one sum for the mean, then one for the squares. Without `layer` there are no means, and `b` alone counts. `even`: all lanes
    have the same count, which is not 0."""
    whole, (inverse, _) = make_reduce(add, lanes), make_inverses(Real)
    SHARE = 1 / lanes

    @device_function
    def pool(a, b, n):
        if layer:
            count = n
            if even:
                n, mean = count * Real(lanes), whole(a) * Real(SHARE)
            else:
                n = whole(count)
                mean = whole(a * count) * inverse(n) if n > Real(0) else Real(0)
            d = a - mean
            a, b = mean, b + d * d * count
        return a, whole(b), n
    return pool


@functools.cache
def make_block_pool(Real, warps, layer=True):
    """Device function ``pool(a, b, n, scratch)``: `make_pool` over the warps of a block, in every thread; `scratch` is a shared array of 3
    numbers per warp, which nothing else uses until the next barrier."""
    whole = make_pool(Real, warps, layer)

    @device_function
    def pool(a, b, n, scratch):
        if warps > 1:
            thread = cuda.threadIdx.x
            at = 3 * (thread >> 5)
            if thread & 31 == 0:
                scratch[at] = a
                scratch[at + 1] = b
                scratch[at + 2] = n
            cuda.syncthreads()
            at = 3 * (thread & (warps - 1))
            a, b, n = whole(scratch[at], scratch[at + 1], scratch[at + 2])
        return a, b, n
    return pool

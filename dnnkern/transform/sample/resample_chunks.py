"""A thread makes a chunk: of a pixel's channels where these are contiguous, else of pixels of a row; of a gradient always of channels.

Channels share their pixel's position: a thread loads up to 16 bytes of each of the pixels round it, all of a plane's before the first is
used, and stores as many. Pixels of a row share the rows that they lie between: what a position costs is computed once for the row, and per
pixel only along it; their elements are loaded one by one, out of lines that neighbours have in the L1, and stored 16 bytes at once.

Of a gradient the positions that a pixel is a part of are a few in a row, known without a search. Which they are, and what they count, is
computed once for all channels of a thread: those of 16 bytes, loaded at two positions at a time; or up to 16 that lie apart, one by one,
which neighbouring threads, neighbouring pixels, load and store side by side.

Where a position lies follows by multiplications alone (`_taps`).
"""
import functools
import math
from dataclasses import dataclass

from ...device import cuda, device_function, i32, i64, jit, u32
from ...device.convert import element
from ...device.index import ceil_div
from ...device.vec import advance
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap, sector_waste, tail
from ...engine.offsets import LIMIT
from ...engine.strides import image_strides
from ...engine.values import COMPUTE, make_unpack, make_words
from ...engine.vectors import make_unit_moves, unit_of, word_of
from ...host.dtypes import ITEMSIZE
from ...host.launch import Argument, Launch
from ._channels import Share, make_channels
from ._resample_problem import RESAMPLES
from ._taps import axes_arguments, extents_argument, make_mix, make_reach, make_source, make_weight, unflatten

COST = constants("transform/resample_chunks")

THREADS, MOST_APART, FEW = 256, 16, 2 ** 17


@dataclass(frozen=True)
class Config:
    """Direction, element type, what it is computed in, mode, spatial dimensions, whether a chunk is of contiguous channels, its elements,
    bytes of a store (and, of channels, of a load), 64-bit offsets, whether every chunk is whole."""
    forward: bool
    dtype: str
    compute: str
    mode: str
    dims: int
    channels: bool
    elements: int
    unit: int
    wide: bool
    whole: bool = True

    @property
    def taps(self):
        """Dimensions along which a position lies between two pixels."""
        return self.dims if self.mode == "bilinear" else 0


def _apart(problem):
    """Channels of a thread where they lie apart: as many as sums have registers for, fewer where threads are few."""
    elements = min(MOST_APART, max(1, problem.c)) if problem.compute == "float32" else min(MOST_APART // 2, max(1, problem.c))
    elements = ceil_div(problem.c, ceil_div(problem.c, elements)) if problem.c else 1
    while elements > 1 and problem.n * math.prod(problem.image) * ceil_div(problem.c, elements) < FEW:
        elements = ceil_div(elements, 2)
    return elements


def _config(problem):
    size, channels = problem.x.itemsize, problem.x_strides[1] == problem.y_strides[1] == 1 and problem.c > 1
    alignment = min(problem.x.alignment, problem.y.alignment)
    common = dict(forward=problem.is_forward, dtype=problem.x.dtype, compute=problem.compute, mode=problem.pixels, dims=len(problem.window),
                  wide=problem.is_wide)
    strides = [s for all_of in (problem.x_strides, problem.y_strides) for s in (all_of[0], *all_of[2:])]
    unit = unit_of(alignment, problem.c, *strides, itemsize=size) if channels else size
    if unit > size or problem.layout == "NHWC":
        return Config(channels=True, elements=unit // size, unit=unit, **common)
    if not problem.is_forward:
        elements = _apart(problem)
        return Config(channels=False, elements=elements, unit=size, whole=problem.c % elements == 0, **common)
    if problem.y_strides[-1] != 1:
        return Config(channels=False, elements=1, unit=size, **common)
    aligned = unit_of(problem.y.alignment, *problem.y_strides[:4], itemsize=size) == 16
    return Config(channels=False, elements=16 // size, unit=16 if aligned else size, **common)


def _sizes(problem, config):
    """What a thread's index counts within an image: pixels, then chunks of channels; or channels and rows, then chunks of pixels; or chunks
    of channels that lie apart, then pixels."""
    image = problem.out if problem.is_forward else problem.image
    if config.channels:
        return (*image, problem.c // config.elements)
    if not config.forward:
        return (ceil_div(problem.c, config.elements), *image)
    return (problem.c, *image[:2], ceil_div(image[2], config.elements))


def supports(problem):
    """One pixel or two in each dimension, and sizes whose products fit 32 bits."""
    if problem.filter:
        return f"mode is {problem.mode!r}{' with antialias' * problem.antialias}; expected one or two pixels in each dimension"
    count = problem.n * math.prod(_sizes(problem, _config(problem)))
    if count >= LIMIT - 2 ** 20:
        return f"{count} chunks; expected fewer than 2**31 - 2**20"
    reach = max(max((a.outer + 32) * a.a, (a.inner + 2) * a.d) + abs(a.b) + a.a for a in problem.axes)
    if reach >= LIMIT:
        return f"extents {problem.image} and {problem.out} have products of {reach}; expected fewer than 2**31"
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """Bytes, in sectors; the loads of a chunk, and what a position costs."""
    config = _config(problem)
    count, size = problem.n * math.prod(_sizes(problem, config)), problem.x.itemsize
    run = problem.c if config.channels else problem.outputs[0].shape[-1]
    moved = memory_seconds(problem.bytes * sector_waste(run * size, size), device)
    taps = 2 ** config.taps
    if not problem.is_forward:
        taps = math.prod(max(1, (1 + (config.taps > 0)) * axis.outer / axis.inner) for axis in problem.axes)
    an_element = (COST.channels_tap * taps if config.channels else COST.element + COST.tap * taps if config.forward
                  else COST.element_bwd + COST.tap_bwd * taps)
    a_chunk = COST.chunk + COST.dimension * config.dims + an_element * config.elements
    a_chunk += 0 if problem.is_forward else COST.chunk_tap * taps
    exposed = COST.exposed if config.forward and config.taps and not config.channels else 0.0  # taps are loads, one after the other
    work = overlap(memory=moved, issue=issue_seconds(count, a_chunk, device), exposed=exposed)
    return LAUNCH + work.slowed(tail=tail(ceil_div(count, THREADS), COST.blocks, device))


@functools.cache
def make_take(dtype, elements):
    """Device functions ``take(values, words, k)`` and ``put(words, values)`` of a chunk of elements, whose words begin at k."""
    if elements == 1:
        return make_words(dtype, ITEMSIZE[dtype])
    unpack, pack = make_unpack(dtype, elements)
    WORDS = elements * ITEMSIZE[dtype] // 4

    @device_function
    def take(values, words, k):
        piece = cuda.local.array(WORDS, u32)
        for w in range(WORDS):
            piece[w] = words[k + w]
        unpack(values, piece)
    return take, pack


@functools.cache
def forward_channels(config):
    """y[...] = resample(x)[...], a chunk of channels a thread."""
    size, V, TAPS = ITEMSIZE[config.dtype], config.elements, config.taps
    T = COMPUTE[config.compute]
    load, store, _, _, W = make_unit_moves(config.unit, size)
    take, put = make_take(config.dtype, V)
    source, mix, HELD = make_source(config.mode, config.compute), make_mix(config.compute), 4 * W

    @device_function
    def plane(result, x, stride, h0, h1, h_share, w0, w1, w_share):
        words, a, b, c = cuda.local.array(HELD, u32), cuda.local.array(V, T), cuda.local.array(V, T), cuda.local.array(V, T)
        load(words, 0, advance(x, h0 * stride.h + w0 * stride.w), 1)
        if TAPS:
            load(words, W, advance(x, h0 * stride.h + w1 * stride.w), 1)
        if TAPS > 1:
            load(words, 2 * W, advance(x, h1 * stride.h + w0 * stride.w), 1)
            load(words, 3 * W, advance(x, h1 * stride.h + w1 * stride.w), 1)
        take(result, words, 0)
        if TAPS:
            take(a, words, W)
            for v in range(V):
                result[v] = mix(result[v], a[v], w_share)
        if TAPS > 1:
            take(b, words, 2 * W)
            take(c, words, 3 * W)
            for v in range(V):
                result[v] = mix(result[v], mix(b[v], c[v], w_share), h_share)

    @jit(launch_bounds=(THREADS, 2))
    def resample_channels(x, y, axes, inverse_d, inverse_h, inverse_w, count, extents, x_stride, y_stride):
        index = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if index < count:
            result, other, made = cuda.local.array(V, T), cuda.local.array(V, T), cuda.local.array(W, u32)
            n, o, p, q, chunk = unflatten(index, extents)
            d0, d1, d_share = source(o, axes.d, inverse_d)
            h0, h1, h_share = source(p, axes.h, inverse_h)
            w0, w1, w_share = source(q, axes.w, inverse_w)
            x = advance(x, n * x_stride.n + chunk * V * x_stride.c)
            near = advance(x, d0 * x_stride.d)
            plane(result, near, x_stride, h0, h1, h_share, w0, w1, w_share)
            if TAPS > 2:
                far = advance(x, d1 * x_stride.d)
                plane(other, far, x_stride, h0, h1, h_share, w0, w1, w_share)
                for v in range(V):
                    result[v] = mix(result[v], other[v], d_share)
            put(made, result)
            at = n * y_stride.n + chunk * V * y_stride.c + o * y_stride.d + p * y_stride.h + q * y_stride.w
            store(advance(y, at), made, 0)
    return resample_channels


@functools.cache
def forward_pixels(config):
    """y[...] = resample(x)[...], a chunk of pixels of a row a thread."""
    size, V, TAPS, Int = ITEMSIZE[config.dtype], config.elements, config.taps, i64 if config.wide else i32
    SCALE, T, WHOLE = word_of(size)[2], COMPUTE[config.compute], config.unit > size
    load, store_one, _, _, ONE = make_unit_moves(size, size)
    _, store, _, _, _ = make_unit_moves(config.unit, size)
    take, put_one = make_words(config.dtype, size)
    _, put = make_take(config.dtype, V)
    source, mix = make_source(config.mode, config.compute), make_mix(config.compute)
    HELD, WORDS = V * ONE, max(V * size // 4, 1)

    @device_function
    def row(result, x, first, second, shares):
        words, more, one = cuda.local.array(HELD, u32), cuda.local.array(HELD, u32), cuda.local.array(2, T)
        for v in range(V):
            load(words, v * ONE, advance(x, first[v]), 1)
        if TAPS:
            for v in range(V):
                load(more, v * ONE, advance(x, second[v]), 1)
        for v in range(V):
            take(one, words, v * ONE)
            result[v] = one[0]
            if TAPS:
                take(one, more, v * ONE)
                result[v] = mix(result[v], one[0], shares[v])

    @device_function
    def plane(result, x, at0, at1, h_share, first, second, shares):
        other = cuda.local.array(V, T)
        row(result, advance(x, at0), first, second, shares)
        if TAPS > 1:
            row(other, advance(x, at1), first, second, shares)
            for v in range(V):
                result[v] = mix(result[v], other[v], h_share)

    @jit(launch_bounds=(THREADS, 2 if TAPS > 2 and V == 4 else 3))  # two planes of four float32: of 80 registers 2 words are spilled
    def resample_pixels(x, y, axes, inverse_d, inverse_h, inverse_w, count, extents, x_stride, y_stride):
        index = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if index < count:
            result, other, made, one = cuda.local.array(V, T), cuda.local.array(V, T), cuda.local.array(WORDS, u32), cuda.local.array(1, T)
            first, second, shares = cuda.local.array(V, Int), cuda.local.array(V, Int), cuda.local.array(V, T)
            n, c, o, p, chunk = unflatten(index, extents)
            q = chunk * V
            left = axes.w.outer - q
            d0, d1, d_share = source(o, axes.d, inverse_d)
            h0, h1, h_share = source(p, axes.h, inverse_h)
            for v in range(V):
                w0, w1, shares[v] = source(q + v if v < left else q, axes.w, inverse_w)
                first[v], second[v] = w0 * x_stride.w, w1 * x_stride.w
            x = advance(x, n * x_stride.n + c * x_stride.c)
            at0, at1 = h0 * x_stride.h, h1 * x_stride.h
            plane(result, advance(x, d0 * x_stride.d), at0, at1, h_share, first, second, shares)
            if TAPS > 2:
                plane(other, advance(x, d1 * x_stride.d), at0, at1, h_share, first, second, shares)
                for v in range(V):
                    result[v] = mix(result[v], other[v], d_share)
            y = advance(y, n * y_stride.n + c * y_stride.c + o * y_stride.d + p * y_stride.h + q * y_stride.w)
            if WHOLE and left >= V:
                put(made, result)
                store(y, made, 0)
            else:
                for v in range(V):
                    if v < left:
                        one[0] = result[v]
                        put_one(made, one)
                        store_one(advance(y, v * SCALE), made, 0)
    return resample_pixels


@functools.cache
def backward_channels(config):
    """dx[...] = the gradient, a chunk of contiguous channels a thread."""
    size, V, T = ITEMSIZE[config.dtype], config.elements, COMPUTE[config.compute]
    load, store, _, _, W = make_unit_moves(config.unit, size)
    take, put = make_take(config.dtype, V)
    reach, weight, HELD = make_reach(config.mode), make_weight(config.mode, config.compute), 2 * W

    @device_function
    def add(total, words, k, share):
        values = cuda.local.array(V, T)
        take(values, words, k)
        for v in range(V):
            total[v] = T(total[v] + share * values[v]) if share != 0 else total[v]

    @jit(launch_bounds=(THREADS, 3))
    def resample_gradient(dy, dx, axes, inverse_d, inverse_h, inverse_w, count, extents, dy_stride, dx_stride):
        index = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if index < count:
            total, words, made = cuda.local.array(V, T), cuda.local.array(HELD, u32), cuda.local.array(W, u32)
            n, d, h, w, chunk = unflatten(index, extents)
            c = chunk * V
            o0, o1 = reach(d, axes.d)
            p0, p1 = reach(h, axes.h)
            q0, q1 = reach(w, axes.w)
            for v in range(V):
                total[v] = T(0)
            dy = advance(dy, n * dy_stride.n + c * dy_stride.c)
            for o in range(o0, o1):
                d_share = weight(o, d, axes.d, inverse_d)
                for p in range(p0, p1):
                    h_share = d_share * weight(p, h, axes.h, inverse_h)
                    row = advance(dy, o * dy_stride.d + p * dy_stride.h)
                    for q in range(q0, q1, 2):
                        more = q + 1 < q1
                        load(words, 0, advance(row, q * dy_stride.w), 1)
                        load(words, W, advance(row, (q + 1) * dy_stride.w), more)
                        add(total, words, 0, h_share * weight(q, w, axes.w, inverse_w))
                        share = h_share * weight(q + 1, w, axes.w, inverse_w)
                        add(total, words, W, share if more else T(0))
            put(made, total)
            at = n * dx_stride.n + c * dx_stride.c + d * dx_stride.d + h * dx_stride.h + w * dx_stride.w
            store(advance(dx, at), made, 0)
    return resample_gradient


@functools.cache
def backward_apart(config):
    """dx[...] = the gradient, a chunk of channels that lie apart a thread."""
    V, T = config.elements, COMPUTE[config.compute]
    fetch, put = make_channels(config.dtype, config.compute, Share(V, 1, 0, config.whole), config.wide)
    reach, weight = make_reach(config.mode), make_weight(config.mode, config.compute)

    @jit(launch_bounds=(THREADS, 3))
    def resample_gradient_apart(dy, dx, axes, inverse_d, inverse_h, inverse_w, count, channels, extents, dy_stride, dx_stride):
        index = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if index < count:
            total, values = cuda.local.array(V, T), cuda.local.array(V, T)
            n, chunk, d, h, w = unflatten(index, extents)
            first = chunk * V
            left = channels - first
            o0, o1 = reach(d, axes.d)
            p0, p1 = reach(h, axes.h)
            q0, q1 = reach(w, axes.w)
            for v in range(V):
                total[v] = T(0)
            dy = advance(dy, n * dy_stride.n + first * dy_stride.c)
            for o in range(o0, o1):
                d_share = weight(o, d, axes.d, inverse_d)
                for p in range(p0, p1):
                    h_share = d_share * weight(p, h, axes.h, inverse_h)
                    row = advance(dy, o * dy_stride.d + p * dy_stride.h)
                    for q in range(q0, q1):
                        share = h_share * weight(q, w, axes.w, inverse_w)
                        if share != 0:
                            fetch(values, advance(row, q * dy_stride.w), dy_stride.c, left)
                            for v in range(V):
                                total[v] = T(total[v] + share * values[v])
            at = n * dx_stride.n + first * dx_stride.c + d * dx_stride.d + h * dx_stride.h + w * dx_stride.w
            put(advance(dx, at), total, dx_stride.c, left)
    return resample_gradient_apart


def build(problem, device, config):
    """One launch."""
    config = _config(problem)
    if config.forward:
        kernel = forward_channels if config.channels else forward_pixels
    else:
        kernel = backward_channels if config.channels else backward_apart
    sizes, (_, name, scale) = _sizes(problem, config), word_of(problem.x.itemsize)
    pointer, channels = name + "*", ()
    if kernel is backward_apart:  # which takes elements, not their words
        pointer, scale, channels = element(problem.x.dtype).pointer, 1, (Argument("int32", problem.c),)
    count = problem.n * math.prod(sizes)
    names, strides = ("x", "y"), (problem.x_strides, problem.y_strides)
    if not config.forward:
        names, strides = ("dy", "dx"), strides[::-1]
    arguments = (*(Argument(pointer, operand) for operand in names), *axes_arguments(problem), Argument("int32", count), *channels,
                 extents_argument(sizes), *(image_strides(s, config.wide, scale) for s in strides))
    return (Launch(kernel(config), (ceil_div(count, THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHMS = tuple(Algorithm(op=op, name="chunks", supports=supports, workspace=workspace, estimate=estimate, build=build)
                   for op in RESAMPLES)

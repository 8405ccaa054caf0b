"""A few channels of an image in shared memory, pixel by pixel; threads take positions of the grid in turns, and pixels from there.

Wherever a position lies, a pixel of all the block's channels is one load of shared memory, 16 bytes at most, where the lines of the L1
that a warp's positions touch cost it a pass each. Global memory is read once and in order. What lies outside the image is one more pixel,
of zeros.
"""
import functools
import math
from dataclasses import dataclass

from ...device import cuda, device_function, i32, jit, u32
from ...device.convert import element
from ...device.index import ceil_div, divide_remainder, divisor
from ...device.vec import shared_address
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
from ...engine.strides import extents, grid_strides, image_strides
from ...engine.values import COMPUTE, make_unpack
from ...engine.vectors import make_unit_moves
from ...host.launch import Argument, Launch
from .grid_sample_naive import Config as Kind
from .grid_sample_naive import config_of, make_corners

COST = constants("transform/grid_planes")

UNITS, LIMIT = (16, 8, 4), 2 ** 31 - 2 ** 20


@dataclass(frozen=True)
class Config:
    """What the kernel is compiled for, bytes of a pixel in shared memory, threads, blocks that share the positions of an image."""
    kind: Kind
    unit: int
    threads: int
    parts: int

    def __str__(self):
        return f"{self.unit} bytes per pixel" + (f", {self.parts} parts" if self.parts > 1 else "")


def _shared(problem, unit):
    """Bytes of an image's pixels, and of the one that is outside."""
    return (math.prod(problem.image) + 1) * unit


def _channels(problem, unit):
    return unit // problem.x.itemsize


def _resident(problem, unit, device):
    """Blocks of 512 threads that a multiprocessor's shared memory has room for."""
    return min(4, device.shared_per_sm // (_shared(problem, unit) + 1024))


def _units(problem, device):
    least = max(4, problem.x.itemsize)
    most = max(least, 1 << (problem.channels * problem.x.itemsize - 1).bit_length())
    return [u for u in UNITS if least <= u <= most and _shared(problem, u) <= device.shared_per_block]


def _positions(problem):
    return math.prod(problem.out)


def supports(problem):
    """Positions within 32 bits."""
    p = problem
    if max(p.y.size, math.prod(p.image) * 16) >= LIMIT:
        return f"{p.y.size} results of images {p.image}; expected fewer results and pixels than 2**31 - 2**20"
    return None


def fits(problem, device):
    """A channel, or two of 16 bits, in shared memory."""
    if not _units(problem, device):
        least = _shared(problem, max(4, problem.x.itemsize))
        return f"images {problem.image} are {least} bytes of shared memory; the device has {device.shared_per_block}"
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def configs(problem, device):
    """Channels that fit, twice the threads where they leave no room for another block; where images and groups of channels are few, several
    blocks for the positions of each."""
    found = []
    for unit in _units(problem, device):
        blocks = problem.x.shape[0] * ceil_div(problem.channels, _channels(problem, unit))
        resident = _resident(problem, unit, device)
        threads = 1024 if resident == 1 else 512
        parts = max(1, min(ceil_div(_positions(problem), threads), resident * device.sms // blocks))
        found += [Config(config_of(problem), unit, threads, n) for n in sorted({1, parts})]
    return found


def estimate(problem, device, config):
    """Bytes, the image's again for each part, and what a pixel moved, a position, and each of its channels take, in instructions; fitted to
    H200. Multiprocessors that have most blocks, or fewer than fit."""
    p, channels = problem, _channels(problem, config.unit)
    groups, taps = ceil_div(p.channels, channels), 2 ** p.dims if p.mode == "bilinear" else 1
    blocks = p.x.shape[0] * groups * config.parts
    most = ceil_div(blocks, device.sms)  # of a multiprocessor
    rounds, resident = most * device.sms / blocks, _resident(p, config.unit, device)
    work = p.x.shape[0] * groups * (config.parts * math.prod(p.image) * (COST.pixel + COST.pixel_channel * channels)
                                    + _positions(p) * (COST.output + COST.tap * taps + channels * (COST.channel + COST.channel_tap * taps)))
    moved = memory_seconds(p.bytes + (groups - 1) * p.grid.nbytes + (config.parts - 1) * p.x.nbytes, device)
    return LAUNCH + overlap(memory=COST.slower * moved, issue=issue_seconds(work, 1, device)).slowed(
        tail=rounds, idle=max(1.0, resident / most) ** 0.5)


@functools.cache
def kernel(kind, UNIT, THREADS):
    """y at the positions of a grid, of the channels that fill so many bytes."""
    dtype, DIMS, BILINEAR = kind.dtype, kind.dims, kind.mode == "bilinear"
    corners, T = make_corners(kind), COMPUTE[kind.compute]
    where, split, mix = corners.where, corners.split, corners.mix
    load, store, CHANNELS = element(dtype).load, element(dtype).store, UNIT // element(dtype).storage.itemsize
    (unpack, pack), TOGETHER = make_unpack(dtype, CHANNELS), max(1, 16 // CHANNELS)
    HELD = CHANNELS * TOGETHER
    _, _, load_shared, store_shared, WORDS = make_unit_moves(UNIT, min(UNIT, 4))

    @device_function
    def pixel(values, memory, base, sizes, outside, d, h, w):
        words, at = cuda.local.array(WORDS, u32), outside
        if w >= 0 and w < sizes.w and h >= 0 and h < sizes.h and d >= 0 and d < sizes.d:
            at = (d * sizes.h + h) * sizes.w + w
        load_shared(words, 0, memory, base, at * UNIT)
        unpack(values, words)

    @device_function
    def row(values, memory, base, sizes, outside, d, h, w, w_share):
        right = cuda.local.array(CHANNELS, T)
        pixel(values, memory, base, sizes, outside, d, h, w)
        if BILINEAR:
            pixel(right, memory, base, sizes, outside, d, h, w + 1)
            for k in range(CHANNELS):
                values[k] = mix(values[k], right[k], w_share)

    @device_function
    def plane(values, memory, base, sizes, outside, d, h, h_share, w, w_share):
        below = cuda.local.array(CHANNELS, T)
        row(values, memory, base, sizes, outside, d, h, w, w_share)
        if BILINEAR:
            row(below, memory, base, sizes, outside, d, h + 1, w, w_share)
            for k in range(CHANNELS):
                values[k] = mix(values[k], below[k], h_share)

    @jit(launch_bounds=(THREADS, 1024 // THREADS))
    def grid_sample_planes(x, grid, y, pixels, positions, channels, groups, parts, in_height, in_width, height, width, sizes, x_stride,
                           grid_stride, y_stride):
        memory = cuda.shared.array(0, u32, alignment=16)
        values, deeper, words = cuda.local.array(CHANNELS, T), cuda.local.array(CHANNELS, T), cuda.local.array(WORDS, u32)
        held = cuda.local.array(HELD, T)
        base, thread, outside = shared_address(memory, 0), cuda.threadIdx.x, pixels
        rest, part = divide_remainder(cuda.blockIdx.x, parts)
        n, group = divide_remainder(rest, groups)
        first = group * CHANNELS
        start = n * x_stride.n + first * x_stride.c
        for begin in range(thread, pixels + 1, THREADS * TOGETHER):
            for t in range(TOGETHER):
                i = begin + t * THREADS
                row_of, w = divide_remainder(i, in_width)
                d, h = divide_remainder(row_of, in_height)
                at = start + d * x_stride.d + h * x_stride.h + w * x_stride.w
                for k in range(CHANNELS):
                    held[t * CHANNELS + k] = T(0)
                    if i < pixels and first + k < channels:
                        held[t * CHANNELS + k] = T(load(x, at + k * x_stride.c))
            for t in range(TOGETHER):
                i = begin + t * THREADS
                if i <= pixels:
                    for k in range(CHANNELS):
                        values[k] = held[t * CHANNELS + k]
                    pack(words, values)
                    store_shared(memory, base, i * UNIT, words, 0)
        cuda.syncthreads()
        i, step = part * THREADS + thread, i32(parts[0]) * THREADS
        while i < positions:  # a range whose step is no constant would divide
            row_of, q = divide_remainder(i, width)
            o, p = divide_remainder(row_of, height)
            at = n * grid_stride.n + o * grid_stride.d + p * grid_stride.h + q * grid_stride.w
            w, h, d, _, _, _ = where(grid, at, grid_stride, sizes)
            w0, w_share = split(w)
            h0, h_share = split(h)
            d0, d_share = split(d)
            plane(values, memory, base, sizes, outside, d0, h0, h_share, w0, w_share)
            if BILINEAR and DIMS > 2:
                plane(deeper, memory, base, sizes, outside, d0 + 1, h0, h_share, w0, w_share)
                for k in range(CHANNELS):
                    values[k] = mix(values[k], deeper[k], d_share)
            to = n * y_stride.n + first * y_stride.c + o * y_stride.d + p * y_stride.h + q * y_stride.w
            for k in range(CHANNELS):
                if first + k < channels:
                    store(y, to + k * y_stride.c, values[k])
            i = i + step
    return grid_sample_planes


def build(problem, device, config):
    """One launch."""
    p, pointer = problem, element(problem.x.dtype).pointer
    groups = ceil_div(p.channels, _channels(p, config.unit))
    strides = (image_strides(p.strides_of(p.x), p.is_wide), grid_strides(p.grid_strides(p.grid), p.is_wide),
               image_strides(p.strides_of(p.y), p.is_wide))
    divisors = p.image[1], p.image[2], p.out[1], p.out[2]
    arguments = (Argument(pointer, "x"), Argument(element(p.grid.dtype).pointer, "grid"), Argument(pointer, "y"),
                 Argument("int32", math.prod(p.image)), Argument("int32", _positions(p)), Argument("int32", p.channels),
                 Argument("uint32x3", divisor(groups)), Argument("uint32x3", divisor(config.parts)),
                 *(Argument("uint32x3", divisor(n)) for n in divisors), extents(p.image, False),
                 *strides)
    blocks = p.x.shape[0] * groups * config.parts
    return (Launch(kernel(config.kind, config.unit, config.threads), (blocks, 1, 1), (config.threads, 1, 1), arguments,
                   shared=_shared(p, config.unit)),)


ALGORITHM = Algorithm(op="grid_sample_fwd", name="planes", supports=supports, fits=fits, workspace=workspace, estimate=estimate,
                      build=build, configs=configs)

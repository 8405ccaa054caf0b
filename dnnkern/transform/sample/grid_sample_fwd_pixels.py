"""One thread per position of the grid, for several channels: where it lies, and what the pixels round it count, is computed once.

Neighbouring threads have neighbouring positions of a row, so that results of a channel are written side by side, and pixels are read so as
far as the grid leaves them neighbours. The pixels of all corners of a few channels are in flight together.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, device_function, i32, i64, jit
from ...device.convert import element
from ...device.index import ceil_div, divide_remainder, divisor
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, occupied, overlap, sector_waste, tail
from ...engine.strides import extents, grid_strides, image_strides
from ...engine.values import COMPUTE
from ...host.launch import Argument, Launch
from .grid_sample_naive import Config as Kind
from .grid_sample_naive import config_of, make_corners, make_find

COST = constants("transform/grid_pixels")

THREADS, TOGETHER, LIMIT = 128, 4, 2 ** 31 - 2 ** 20


@dataclass(frozen=True)
class Config:
    """What the kernel is compiled for, and channels of a thread."""
    kind: Kind
    channels: int

    def __str__(self):
        return f"{self.channels} channels"


def supports(problem):
    """Positions and channels within 32 bits."""
    p = problem
    if p.y.size >= LIMIT or max(p.image) >= 2 ** 23:
        return f"{p.y.size} results of images {p.image}; expected fewer than 2**31 - 2**20, of extents below 2**23"
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def configs(problem, device):
    """Few channels where there are few positions, many where there are many."""
    found = sorted({min(n, ceil_div(problem.channels, TOGETHER) * TOGETHER) for n in (4, 16, 64)})
    return [Config(config_of(problem), n) for n in found]


def _grid(problem, config):
    """(blocks of the positions of an image, groups of channels)."""
    return ceil_div(problem.y.size // (problem.x.shape[0] * problem.channels), THREADS), ceil_div(problem.channels, config.channels)


def estimate(problem, device, config):
    """Bytes, and what a position and each of its channels take, in instructions: fitted to H200, where what bounds it is the L1's rate."""
    p, (blocks, groups) = problem, _grid(problem, config)
    positions, taps = p.y.size // p.channels, 2 ** p.dims if p.mode == "bilinear" else 1
    a_tap = COST.channel_tap_16 if p.x.itemsize == 2 else COST.channel_tap
    issue = issue_seconds(positions * groups * (COST.thread + COST.tap * taps) + p.y.size * (COST.channel + a_tap * taps), 1, device)
    waste = sector_waste(p.x.itemsize, p.x.itemsize) if abs(p.y.strides[-1]) > 1 else 1.0
    moved = memory_seconds((p.bytes + (groups - 1) * p.grid.nbytes) * waste, device)
    return LAUNCH + overlap(memory=COST.slower * moved, issue=issue, exposed=COST.exposed).slowed(
        idle=1 / occupied(blocks * groups * p.x.shape[0] * THREADS, COST.enough, device),
        tail=tail(blocks * groups * p.x.shape[0], COST.blocks, device))


@functools.cache
def kernel(config, wide):
    """y at the positions of a grid. `wide`: offsets of 64 bits."""
    kind, CHANNELS, BILINEAR = config.kind, config.channels, config.kind.mode == "bilinear"
    corners, T, Int = make_corners(kind), COMPUTE[kind.compute], i64 if wide else i32
    where, split, mix, find = corners.where, corners.split, corners.mix, make_find(kind, Int)
    load, store, CORNERS = element(kind.dtype).load, element(kind.dtype).store, 2 ** kind.dims if BILINEAR else 1
    HELD = TOGETHER * CORNERS

    @device_function
    def mixed(values, k, w_share, h_share, d_share):
        if not BILINEAR:
            return values[k]
        near = mix(mix(values[k], values[k + 1], w_share), mix(values[k + 2], values[k + 3], w_share), h_share)
        if CORNERS > 4:
            far = mix(mix(values[k + 4], values[k + 5], w_share), mix(values[k + 6], values[k + 7], w_share), h_share)
            near = mix(near, far, d_share)
        return near

    @jit(launch_bounds=(THREADS, 4))
    def grid_sample_pixels(x, grid, y, positions, channels, blocks, groups, height, width, sizes, x_stride, grid_stride, y_stride):
        values = cuda.local.array(HELD, T)
        offsets, inside = cuda.local.array(CORNERS, Int), cuda.local.array(CORNERS, i32)
        rest, part = divide_remainder(cuda.blockIdx.x, blocks)
        n, group = divide_remainder(rest, groups)
        i = part * THREADS + cuda.threadIdx.x
        if i < positions:
            row, q = divide_remainder(i, width)
            o, p = divide_remainder(row, height)
            at = n * grid_stride.n + o * grid_stride.d + p * grid_stride.h + q * grid_stride.w
            w, h, d, _, _, _ = where(grid, at, grid_stride, sizes)
            w0, w_share = split(w)
            h0, h_share = split(h)
            d0, d_share = split(d)
            find(offsets, inside, sizes, x_stride, d0, h0, w0)
            to = n * y_stride.n + o * y_stride.d + p * y_stride.h + q * y_stride.w
            start, first = n * x_stride.n, group * CHANNELS
            for c in range(first, min(first + CHANNELS, channels), TOGETHER):
                for k in range(TOGETHER):
                    image = start + (c + k) * x_stride.c
                    for j in range(CORNERS):
                        values[k * CORNERS + j] = T(0)
                        if inside[j] and c + k < channels:
                            values[k * CORNERS + j] = T(load(x, Int(image + offsets[j])))
                for k in range(TOGETHER):
                    if c + k < channels:
                        store(y, to + (c + k) * y_stride.c, mixed(values, k * CORNERS, w_share, h_share, d_share))
    return grid_sample_pixels


def build(problem, device, config):
    """One launch."""
    p, pointer = problem, element(problem.x.dtype).pointer
    blocks, groups = _grid(p, config)
    positions = p.y.size // (p.x.shape[0] * p.channels)
    strides = (image_strides(p.strides_of(p.x), p.is_wide), grid_strides(p.grid_strides(p.grid), p.is_wide),
               image_strides(p.strides_of(p.y), p.is_wide))
    arguments = (Argument(pointer, "x"), Argument(element(p.grid.dtype).pointer, "grid"), Argument(pointer, "y"),
                 Argument("int32", positions),
                 Argument("int32", p.channels), Argument("uint32x3", divisor(blocks)), Argument("uint32x3", divisor(groups)),
                 Argument("uint32x3", divisor(p.out[1])), Argument("uint32x3", divisor(p.out[2])), extents(p.image, False),
                 *strides)
    return (Launch(kernel(config, p.is_wide), (blocks * groups * p.x.shape[0], 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHM = Algorithm(op="grid_sample_fwd", name="pixels", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs)

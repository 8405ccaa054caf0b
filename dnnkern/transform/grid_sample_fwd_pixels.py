"""One thread a place of the grid, for several channels: where it lies, and what the pixels round it count, is computed once.

Neighbouring threads have neighbouring places of a row, so that results of a channel are written side by side, and pixels are read so as far
as the grid leaves them neighbours. The pixels of all corners of a few channels are under way together.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, i32, i64
from ..device.convert import element
from ..device.index import ceil_div, divide_remainder, divisor
from ..dispatch import Algorithm
from ..host.launch import Argument, Launch
from ._estimate import LAUNCH, divisions_seconds, moved_seconds, sector_waste, tail
from ._values import COMPUTE
from .grid_sample_naive import Config as Kind
from .grid_sample_naive import config_of, make_corners

THREADS, TOGETHER, LIMIT = 128, 4, 2 ** 31 - 2 ** 20


@dataclass(frozen=True)
class Config:
    """What the kernel is compiled for, and channels of a thread."""
    kind: Kind
    channels: int

    def __str__(self):
        return f"{self.channels} channels"


def supports(problem):
    """Places and channels within 32 bits."""
    p = problem
    if p.y.size >= LIMIT or max(p.image) >= 2 ** 23:
        return f"{p.y.size} results of images {p.image}; expected fewer than 2**31 - 2**20, of extents below 2**23"
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def configs(problem, device):
    """Few channels where there are few places, many where there are many."""
    found = sorted({min(n, ceil_div(problem.channels, TOGETHER) * TOGETHER) for n in (4, 16, 64)})
    return [Config(config_of(problem), n) for n in found]


def _grid(problem, config):
    """(blocks of the places of an image, groups of channels)."""
    return ceil_div(problem.y.size // (problem.x.shape[0] * problem.channels), THREADS), ceil_div(problem.channels, config.channels)


def estimate(problem, device, config):
    """Bytes, and instructions: of a place, and of each of its channels."""
    p, (blocks, groups) = problem, _grid(problem, config)
    places, taps = p.y.size // p.channels, 2 ** p.dims if p.mode == "bilinear" else 1
    issue = divisions_seconds(places * groups * (150 + 30 * taps) + p.y.size * (6 + 6 * taps), 1, device)
    waste = sector_waste(p.x.itemsize, p.x.itemsize) if abs(p.y.strides[-1]) > 1 else 1.0
    share = min(1.0, blocks * groups * p.x.shape[0] * THREADS / (512 * device.sms))
    moved = moved_seconds((p.bytes + (groups - 1) * p.grid.nbytes) * waste, device)
    return LAUNCH + max(1.2 * moved, issue) / share * tail(blocks * groups * p.x.shape[0], 8, device)


@functools.cache
def kernel(config):
    """y at the places of a grid."""
    kind, CHANNELS = config.kind, config.channels
    corners = make_corners(kind)
    where, split, mixed = corners.where, corners.split, corners.mixed
    store, T = element(kind.dtype).store, COMPUTE[kind.compute]

    @cuda.jit(launch_bounds=(THREADS, 4))
    def grid_sample_pixels(x, grid, y, places, channels, blocks, groups, height, width, sizes, x_strides, grid_strides, y_strides):
        values = cuda.local.array(TOGETHER, T)
        rest, part = divide_remainder(i32(cuda.blockIdx.x), blocks)
        n, group = divide_remainder(rest, groups)
        i = i32(part * i32(THREADS) + i32(cuda.threadIdx.x))
        if i < places:
            row, q = divide_remainder(i, width)
            o, p = divide_remainder(row, height)
            at = i64(i64(n) * grid_strides[0] + i64(o) * grid_strides[1] + i64(p) * grid_strides[2] + i64(q) * grid_strides[3])
            w, h, d, _, _, _ = where(grid, at, grid_strides[4], sizes)
            w0, w_share = split(w)
            h0, h_share = split(h)
            d0, d_share = split(d)
            to = i64(i64(n) * y_strides[0] + i64(o) * y_strides[2] + i64(p) * y_strides[3] + i64(q) * y_strides[4])
            start, first = i64(i64(n) * x_strides[0]), i32(group * i32(CHANNELS))
            for c in range(first, min(i32(first + CHANNELS), i32(channels)), TOGETHER):
                for k in range(TOGETHER):
                    if i32(c + k) < channels:
                        image = i64(start + i64(c + k) * x_strides[1])
                        values[k] = mixed(x, image, x_strides, sizes, d0, d_share, h0, h_share, w0, w_share)
                for k in range(TOGETHER):
                    if i32(c + k) < channels:
                        store(y, i64(to + i64(c + k) * y_strides[1]), values[k])
    return grid_sample_pixels


def build(problem, device, config):
    """One launch."""
    p, pointer = problem, element(problem.x.dtype).pointer
    blocks, groups = _grid(p, config)
    places = p.y.size // (p.x.shape[0] * p.channels)
    strides = p.strides_of(p.x), p.grid_strides(p.grid), p.strides_of(p.y)
    arguments = (Argument(pointer, "x"), Argument(element(p.grid.dtype).pointer, "grid"), Argument(pointer, "y"), Argument("int32", places),
                 Argument("int32", p.channels), Argument("uint32x3", divisor(blocks)), Argument("uint32x3", divisor(groups)),
                 Argument("uint32x3", divisor(p.out[1])), Argument("uint32x3", divisor(p.out[2])), Argument("int32x3", p.image),
                 *(Argument("int64x5", s) for s in strides))
    return (Launch(kernel(config), (blocks * groups * p.x.shape[0], 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHM = Algorithm(op="grid_sample_fwd", name="pixels", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs)

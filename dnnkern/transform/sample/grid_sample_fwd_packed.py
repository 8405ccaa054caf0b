"""Images whose channels are regrouped first, 16 bytes of a pixel side by side; one thread per position and group of channels.

    x [n, c, pixels] --transpose--> workspace [n, c / 8, pixels, 8] --corners, 16 bytes each--> y [n, c, positions]

With channels first each channel of each corner is a load of its own, which the L1 answers line by line: 128 of them a position for 16
channels of a volume. Here a load brings 8 channels of 16 bits, and neighbouring pixels follow each other without a gap. The copy costs what
x takes to be read and written. An image whose channels are contiguous already is read as it is. Where channels do not fill the last group,
it has the last 8 of them, of which it stores those that no other group has.

It wins where `planes` finds no room for the pixels in shared memory: volumes, and large images with many channels.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, device_function, i32, i64, jit, u32
from ...device.convert import element
from ...device.index import ceil_div, ceil_divide, divide_remainder, divisor
from ...device.vec import advance
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, Cost, issue_seconds, memory_seconds, overlap
from ...engine.moves import transpose_launches, transpose_seconds
from ...engine.strides import extents, grid_strides, image_strides
from ...engine.values import COMPUTE, make_unpack
from ...engine.vectors import make_unit_moves
from ...host.canonical import aligned_to
from ...host.launch import Argument, Launch
from ...host.tensor import Tensor
from .grid_sample_naive import Config as Kind
from .grid_sample_naive import config_of, make_corners, make_find

COST = constants("transform/grid_packed")

UNIT, WORDS, LIMIT = 16, 4, 2 ** 31 - 2 ** 20  # bytes of a group of channels


@dataclass(frozen=True)
class Config:
    """What the kernel is compiled for, threads, groups of channels of a thread, whether a group of results is one store, whether the last
    group has channels of the one before it."""
    kind: Kind
    threads: int
    groups: int
    together: bool
    overlaps: bool = False

    def __str__(self):
        return f"{self.threads} threads of {self.groups} x {UNIT} bytes"


def _channels(problem):
    """Of a group."""
    return UNIT // problem.x.itemsize


def _groups(problem):
    return ceil_div(problem.channels, _channels(problem))


def _contiguous(tensor, problem):
    """Whether groups of channels are aligned units of 16 bytes."""
    return (problem.channels % _channels(problem) == 0 and tensor.strides[1] == 1 and tensor.alignment >= UNIT
            and not any(s % _channels(problem) for k, s in enumerate(tensor.strides) if k != 1))


def supports(problem):
    """Channels that fill a group; positions within 32 bits."""
    p = problem
    if p.channels < _channels(p):
        return f"{p.channels} channels of {p.x.dtype}; expected {_channels(p)} at least"
    if max(p.y.size, p.x.size * 2) >= LIMIT or max(p.image) >= 2 ** 23:
        return f"{p.y.size} results of images {p.image}; expected fewer results and pixels than 2**31 - 2**20, of extents below 2**23"
    return None


def _regrouped(problem):
    """((x as groups of channels, its copy, elements before their first ones), ...): whole groups and one of the last channels, where those
    do not fill one; empty where x can be read as it is."""
    p, v = problem, _channels(problem)
    if _contiguous(p.x, p):
        return ()
    n, c, *pixels = p.x.shape
    step, channel, *inner = p.x.strides
    packed_n, packed_group, *packed = Tensor.packed((n, _groups(p), *pixels, v), p.x.dtype).strides
    found = []
    for groups, first, group in ((c // v, 0, 0), (1, c - v, c // v))[:1 + (c % v > 0)]:
        shape, before = (n, groups, v, *pixels), first * channel
        alignment = aligned_to(p.x, before, p.x.itemsize)
        found.append((Tensor(shape, (step, v * channel, channel, *inner), p.x.dtype, alignment),
                      Tensor(shape, (packed_n, packed_group, packed[-1], *packed[:-1]), p.x.dtype), before, group * packed_group))
    return tuple(found)


def workspace(problem, device, config):
    """The copy of x."""
    return sum(y.nbytes for _, y, _, _ in _regrouped(problem))


def configs(problem, device):
    """One group of a thread, and two."""
    together, overlaps = _contiguous(problem.y, problem), problem.channels % _channels(problem) > 0
    return [Config(config_of(problem), threads, n, together, overlaps) for n in (1, 2)[:_groups(problem)] for threads in (128, 256)]


def _positions(problem):
    out = problem.out
    return out[0] * out[1] * out[2]


def _blocks(problem, config):
    """(blocks of the positions of an image, of groups of channels)."""
    return ceil_div(_positions(problem), config.threads), ceil_div(_groups(problem), config.groups)


@functools.lru_cache(maxsize=256)
def _copy_seconds(x, y, device):
    return transpose_seconds(x, y, tuple(range(x.ndim)), device)


def estimate(problem, device, config):
    """The copy; then bytes, or what a position, each of its loads and of their channels take, in instructions."""
    p, (_, across) = problem, _blocks(problem, config)
    taps = 2 ** p.dims if p.mode == "bilinear" else 1
    positions, groups = p.x.shape[0] * _positions(p), _groups(p)
    work = positions * (across * (COST.position + COST.tap * taps) + groups * taps * (COST.load + COST.channel * _channels(p))
                        + p.channels * COST.result)
    copy = Cost(pack=float(sum(_copy_seconds(x, y, device) for x, y, _, _ in _regrouped(p))))
    moved = memory_seconds(p.bytes + (across - 1) * p.grid.nbytes, device)
    spent = copy + LAUNCH + overlap(memory=COST.slower * moved, issue=issue_seconds(work, 1, device))
    return spent.slowed(slower=COST.overlapping) if config.overlaps else spent


@functools.cache
def kernel(config, wide):
    """y at the positions of a grid. `wide`: offsets of 64 bits."""
    kind, THREADS, GROUPS, TOGETHER = config.kind, config.threads, config.groups, config.together
    BILINEAR, DIMS, T, Int = kind.mode == "bilinear", kind.dims, COMPUTE[kind.compute], i64 if wide else i32
    corners, find, e = make_corners(kind), make_find(kind, Int), element(kind.dtype)
    where, split, store, CORNERS = corners.where, corners.split, e.store, 2 ** DIMS if BILINEAR else 1
    CHANNELS, OVERLAPS = UNIT // e.storage.itemsize, config.overlaps
    load_unit, store_unit, _, _, _ = make_unit_moves(UNIT, e.storage.itemsize)
    unpack, pack = make_unpack(kind.dtype, CHANNELS)

    @device_function
    def weigh(shares, w_share, h_share, d_share):
        """What each of the pixels round a position counts."""
        for k in range(CORNERS):
            share = T(1)
            if BILINEAR:
                share = T((w_share if k & 1 else T(T(1) - w_share)) * (h_share if k >> 1 & 1 else T(T(1) - h_share)))
                if DIMS > 2:
                    share = T(share * (d_share if k >> 2 else T(T(1) - d_share)))
            shares[k] = share

    @jit(launch_bounds=(THREADS, 768 // THREADS))
    def grid_sample_packed(x, grid, y, positions, groups, blocks, across, height, width, sizes, x_stride, grid_stride, y_stride):
        words, packed = cuda.local.array(CORNERS * WORDS, u32), cuda.local.array(WORDS, u32)
        offsets, inside = cuda.local.array(CORNERS, Int), cuda.local.array(CORNERS, i32)
        shares, values, total = cuda.local.array(CORNERS, T), cuda.local.array(CHANNELS, T), cuda.local.array(CHANNELS, T)
        rest, part = divide_remainder(cuda.blockIdx.x, blocks)
        n, several = divide_remainder(rest, across)
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
            weigh(shares, w_share, h_share, d_share)
            to = n * y_stride.n + o * y_stride.d + p * y_stride.h + q * y_stride.w
            channels = groups
            if OVERLAPS:
                groups = ceil_divide(channels, CHANNELS)
            for group in range(several * GROUPS, min(several * GROUPS + GROUPS, groups)):
                image = n * x_stride.n + group * x_stride.c  # NOTE: the stride from group to group
                for k in range(CORNERS):
                    load_unit(words, k * WORDS, advance(x, Int(image + offsets[k])), inside[k])
                for c in range(CHANNELS):
                    total[c] = T(0)
                for k in range(CORNERS):
                    for j in range(WORDS):
                        packed[j] = words[k * WORDS + j]
                    unpack(values, packed)
                    for c in range(CHANNELS):
                        total[c] = T(total[c] + T(shares[k] * values[c]))
                here = Int(to + group * CHANNELS * y_stride.c)
                if OVERLAPS:
                    # of the last group those that the one before it does not have
                    had = max(0, group * CHANNELS + CHANNELS - channels)
                    for c in range(CHANNELS):
                        if c >= had:
                            store(y, Int(here + (c - had) * y_stride.c), total[c])
                elif TOGETHER:
                    pack(packed, total)
                    store_unit(advance(y, here), packed, 0)
                else:
                    for c in range(CHANNELS):
                        store(y, Int(here + c * y_stride.c), total[c])
    return grid_sample_packed


def build(problem, device, config):
    """The copy where there is one, and a launch."""
    p, pointer, v = problem, element(problem.x.dtype).pointer, _channels(problem)
    launches, name, strides, size = (), "x", p.strides_of(p.x), p.x.itemsize
    for tensor, copy, before, after in _regrouped(p):
        name = "workspace"
        launches += transpose_launches(tensor, copy, tuple(range(tensor.ndim)), device, ("x", before * size), (name, after * size))
        n, group, _, *inner = copy.strides
        strides = (n, group, *(0,) * (3 - p.dims), *inner)
    if not launches:
        strides = (strides[0], v, *strides[2:])
    blocks, across = _blocks(p, config)
    arguments = (Argument(pointer, name), Argument(element(p.grid.dtype).pointer, "grid"), Argument(pointer, "y"),
                 Argument("int32", _positions(p)), Argument("int32", p.channels if config.overlaps else p.channels // v),
                 Argument("uint32x3", divisor(blocks)), Argument("uint32x3", divisor(across)), Argument("uint32x3", divisor(p.out[1])),
                 Argument("uint32x3", divisor(p.out[2])),
                 extents(p.image, False), image_strides(strides, p.is_wide), grid_strides(p.grid_strides(p.grid), p.is_wide),
                 image_strides(p.strides_of(p.y), p.is_wide))
    return (*launches, Launch(kernel(config, p.is_wide), (blocks * across * p.x.shape[0], 1, 1), (config.threads, 1, 1), arguments))


ALGORITHM = Algorithm(op="grid_sample_fwd", name="packed", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs)

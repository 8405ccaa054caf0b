"""The image's gradient by atomic additions: positions scatter what they have to the pixels round them, in whatever order they come.

One launch clears the sums, one thread per position and some channels of the next adds to them, a third is the gradient by the grid. The
sums are the result itself where it is of their type and one run of memory, else lie in the workspace and are converted by another launch.
What it costs follows from the positions alone, not from where they lie; but sums depend on their order, so a result is not bitwise
reproducible.

Neighbouring threads are neighbours in memory: positions along a row of the grid, or channels where these are contiguous.
"""
import functools
import math
from dataclasses import dataclass

from ...device import cuda, i64, jit
from ...device.atomic import add_f32, add_f64
from ...device.convert import element
from ...device.index import ceil_div, divide_remainder, divisor
from ...device.vec import advance
from ...dispatch import Algorithm, Note
from ...engine.constants import constants
from ...engine.cost import LAUNCH, Cost, issue_seconds, memory_seconds, overlap
from ...engine.moves import cast_launches, fill_launches
from ...engine.strides import grid_strides, image_strides
from ...engine.values import COMPUTE
from ...host.dtypes import ITEMSIZE
from ...host.launch import Argument, Launch
from ...host.tensor import Tensor
from . import _grid_gradient
from .grid_sample_naive import Config as Kind
from .grid_sample_naive import config_of, make_corners, sizes_arguments

COST = constants("transform/grid_atomic")

THREADS, LIMIT = 256, 2 ** 31 - 2 ** 20


@dataclass(frozen=True)
class Config:
    """What the kernel is compiled for; `channels` of a thread, one where neighbouring threads have neighbouring channels."""
    kind: Kind
    channels: int

    def __str__(self):
        return f"{self.channels} channels"


def _positions(problem):
    return problem.x.shape[0] * math.prod(problem.out)


def supports(problem):
    """Counters of 32 bits."""
    p = problem
    if not p.dx.size or not p.dgrid.size:
        return "there are no pixels or no places"
    if max(_positions(p) * p.channels, p.dx.size) >= LIMIT:
        return f"{_positions(p)} positions and {p.dx.size} pixels in {p.channels} channels; expected fewer of either than 2**31 - 2**20"
    return _grid_gradient.supports(p)


def sums(problem):
    """What is added to: one run of memory, in the order of the result's dimensions."""
    dx, strides, run = problem.dx, [0] * problem.dx.ndim, 1
    for k in sorted(range(dx.ndim), key=lambda k: (abs(dx.strides[k]), -k)):
        if dx.shape[k] > 1:
            strides[k], run = run, run * dx.shape[k]
    return Tensor(dx.shape, tuple(strides), problem.compute)


def in_place(problem):
    """Whether the result itself can hold the sums."""
    dx, added = problem.dx, sums(problem)
    return dx.dtype == added.dtype and all(a == b for a, b, n in zip(dx.strides, added.strides, dx.shape) if n > 1)


def workspace(problem, device, config):
    """The sums."""
    return 0 if in_place(problem) else problem.dx.size * ITEMSIZE[problem.compute]


def _across(problem):
    """Whether neighbouring threads have neighbouring channels."""
    return problem.channels > 1 and sums(problem).strides[1] == 1


def configs(problem, device):
    """One channel, or several of a position."""
    most = (1,) if _across(problem) else (4, 1, 16)
    return [Config(config_of(problem), n) for n in dict.fromkeys(min(n, problem.channels) for n in most)]


def estimate(problem, device, config):
    """Additions, of which a multiprocessor does so many a cycle whatever the channels of a thread, the copies, the gradient by the grid."""
    p, corners = problem, 2 ** problem.dims if problem.mode == "bilinear" else 1
    elements = _positions(p) * p.channels
    issue = issue_seconds(elements, COST.thread / config.channels + COST.corner * corners, device)
    additions = elements * corners / (COST.additions * device.sms * device.clock_hz)
    copies = p.dx.size * ITEMSIZE[p.compute] * (1 if in_place(p) else 3)
    return (3 * LAUNCH + overlap(issue=issue, atomics=additions) + Cost(memory=memory_seconds(copies, device))
            + _grid_gradient.seconds(p, device))


@functools.cache
def kernel(config, across):
    """Each position and some channels: what its pixels get. `across`: neighbouring threads have neighbouring channels."""
    kind, CHANNELS = config.kind, config.channels
    where, split = make_corners(kind).where, make_corners(kind).split
    load, T, add = element(kind.dtype).load, COMPUTE[kind.compute], add_f64 if kind.compute == "float64" else add_f32
    DIMS, CORNERS = kind.dims, 2 ** kind.dims if kind.mode == "bilinear" else 1

    @jit(launch_bounds=(THREADS, 4))
    def grid_sample_scatter(dy, grid, sums, threads, depth, height, width, groups, channels, sizes, out, dy_stride, grid_stride,
                            sums_stride):
        i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if i < threads:
            group = 0
            if across:
                i, group = divide_remainder(i, groups)
            i, q = divide_remainder(i, width)
            i, p = divide_remainder(i, height)
            n, o = divide_remainder(i, depth)
            if not across:
                n, group = divide_remainder(n, groups)
            at = n * grid_stride.n + o * grid_stride.d + p * grid_stride.h + q * grid_stride.w
            w, h, d, _, _, _ = where(grid, at, grid_stride, sizes)
            w0, w_share = split(w)
            h0, h_share = split(h)
            d0, d_share = split(d)
            first = i64(group) * CHANNELS
            at = n * dy_stride.n + first * dy_stride.c + o * dy_stride.d + p * dy_stride.h + q * dy_stride.w
            values = cuda.local.array(CHANNELS, T)
            for k in range(CHANNELS):
                values[k] = T(load(dy, at + k * dy_stride.c)) if first + k < channels else T(0)
            for corner in range(CORNERS):
                right, down, deep = corner & 1, corner >> 1 & 1, corner >> 2
                pixel_w, pixel_h, pixel_d = w0 + right, h0 + down, d0 + deep
                share = T(T(w_share if right else T(T(1) - w_share)) * T(h_share if down else T(T(1) - h_share)))
                if DIMS > 2:
                    share = T(share * T(d_share if deep else T(T(1) - d_share)))
                inside = (pixel_w >= 0 and pixel_w < sizes.w and pixel_h >= 0 and pixel_h < sizes.h and pixel_d >= 0
                          and pixel_d < sizes.d)
                if inside and share > T(0):
                    to = (n * sums_stride.n + first * sums_stride.c + pixel_d * sums_stride.d + pixel_h * sums_stride.h
                          + pixel_w * sums_stride.w)
                    for k in range(CHANNELS):
                        if first + k < channels:
                            add(advance(sums, to + k * sums_stride.c), T(share * values[k]))
    return grid_sample_scatter


def build(problem, device, config):
    """Three launches, or four."""
    p, pointer, direct = problem, element(problem.x.dtype).pointer, in_place(problem)
    added, position = (p.dx, ("dx", 0)) if direct else (sums(p), ("workspace", 0))
    (channels, sizes, out), groups = sizes_arguments(p), ceil_div(p.channels, config.channels)
    threads = _positions(p) * groups
    scatter = (Argument(pointer, "dy"), Argument(element(p.grid.dtype).pointer, "grid"), Argument(f"{p.compute}*", position[0]),
               Argument("int32", threads), *(Argument("uint32x3", divisor(n)) for n in (*p.out, groups)), channels, sizes, out,
               image_strides(p.strides_of(p.dy)), grid_strides(p.grid_strides(p.grid)), image_strides(p.strides_of(added)))
    return (*fill_launches(added, 0.0, device, position),
            Launch(kernel(config, _across(p)), (ceil_div(threads, THREADS), 1, 1), (THREADS, 1, 1), scatter),
            *(() if direct else cast_launches(added, p.dx, device, position, ("dx", 0))), _grid_gradient.launch(p, device))


ALGORITHM = Algorithm(op="grid_sample_bwd", name="atomic", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs, notes=Note.NONDETERMINISTIC)

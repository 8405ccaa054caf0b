"""One dimension after the other: filters are products of those of each dimension, so that a position costs the sum of their widths.

A launch takes the image along one dimension, an element a thread, neighbours in memory side by side; what it reads is shared by the threads
round it, and comes from the caches. Dimensions in which the image shrinks most come first, those in which nothing changes are left out, and
images in between lie in the workspace, packed in x's layout, in the type that is computed with.

A gradient goes the same way, from positions to pixels. What a position's weights are divided by, it would have to add up for every pixel:
a first launch does that once for every position of each dimension.
"""
import functools
import math
from dataclasses import dataclass

from ...device import cuda, jit
from ...device.convert import element
from ...device.index import ceil_div
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
from ...engine.offsets import LIMIT
from ...engine.values import COMPUTE
from ...host.dtypes import ITEMSIZE
from ...host.launch import Argument, Launch
from ._filters import NORMALISED, SUPPORT, axis_argument, inverse_argument, make_filter, sums_argument, sums_bytes, sums_launches
from ._resample_problem import RESAMPLES
from ._taps import extents_argument, unflatten

COST = constants("transform/resample_axes")

THREADS = 256
ALIGNMENT = 256


@dataclass(frozen=True)
class Pass:
    """A launch: which of the four extents after that of the images it changes, what they are after it, and where its result begins in the
    workspace, in bytes; None: it is the result. `axis` is the problem's."""
    position: int
    axis: int
    sizes: tuple
    offset: int | None


def _order(problem, values):
    """Values along (c, d, h, w) as they lie in memory, in the order of the layout."""
    c, *space = values
    return (c, *space) if problem.layout == "NCHW" else (*space, c)


def passes(problem):
    """The launches, and bytes of the workspace that they and the sums of weights take."""
    before, after = (problem.image, problem.out) if problem.is_forward else (problem.out, problem.image)
    axes = [k for k in range(3) if before[k] != after[k]] or [2]
    axes.sort(key=lambda k: after[k] / max(before[k], 1))
    if 0 in before:  # a gradient without positions: nothing is read
        axes = [before.index(0)]
    size, found, now, end = ITEMSIZE[problem.compute], [], list(before), sums_bytes(problem)
    for k in axes:
        now[k], last = after[k], k == axes[-1]
        sizes = _order(problem, (problem.c, *(after if last else now)))
        position = k + (problem.layout == "NCHW")
        found.append(Pass(position, k, sizes, None if last else end))
        if not last:
            end += -(-problem.n * math.prod(sizes) * size // ALIGNMENT) * ALIGNMENT
    return tuple(found), end


def supports(problem):
    """Modes with a filter, and sizes whose products fit 32 bits."""
    if not problem.filter:
        return f"mode is {problem.mode!r}; expected 'area', 'bicubic' or antialias"
    most = max(problem.n * math.prod(p.sizes) for p in passes(problem)[0])
    if most >= LIMIT - 2 ** 20 or problem.is_wide:
        return f"{most} elements of {problem.x} and {problem.y}; expected fewer than 2**31 - 2**20, and offsets below 2**31"
    reach = max((a.outer + 3) * a.a + (a.inner + 3) * a.d + abs(a.b) + 3 * max(a.a, a.d) for a in problem.axes)
    if reach >= LIMIT:
        return f"extents {problem.image} and {problem.out} have products of {reach}; expected fewer than 2**31"
    return None


def workspace(problem, device, config):
    """Images between the dimensions, and the sums of weights."""
    return passes(problem)[1]


def _width(problem, axis):
    """Elements that one is made of along a dimension."""
    wide = max(1, axis.inner / max(axis.outer, 1))
    pixels = 4 if problem.mode == "bicubic" and not problem.antialias else 2 * SUPPORT.get(problem.filter, 0.5) * wide + 1
    return pixels if problem.is_forward else max(1, pixels * axis.outer / max(axis.inner, 1))


def estimate(problem, device, config):
    """Bytes between the dimensions, and what weights cost."""
    cost, read = LAUNCH * (sums_bytes(problem) > 0), problem.dy.nbytes if not problem.is_forward else problem.x.nbytes
    for p in passes(problem)[0]:
        count = problem.n * math.prod(p.sizes)
        written = count * (problem.x.itemsize if p.offset is None else ITEMSIZE[problem.compute])
        issue = issue_seconds(count, COST.element + COST.tap * _width(problem, problem.axes[p.axis]), device)
        cost += LAUNCH + overlap(memory=memory_seconds(read + written, device), issue=issue)
        read = written
    return cost


@functools.cache
def pass_kernel(forward, given, made, compute, kind, position):
    """An element a thread: the mixture of those of its line, which runs along extent number `position`."""
    T, load, store = COMPUTE[compute], element(given).load, element(made).store
    f, DIVIDED = make_filter(kind, compute), kind in NORMALISED
    taps, reach, weight = f.taps, f.reach, f.weight

    @jit(launch_bounds=THREADS)
    def resample_pass(given, made, sums, count, extents, given_strides, strides, axis, inverse):
        index = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if index < count:
            n, e0, e1, e2, e3 = unflatten(index, extents)
            e = (e0, e1, e2, e3)
            own, step = e[position], given_strides[position + 1]
            at = n * given_strides[0] - own * step
            to = n * strides[0]
            for k in range(4):
                at = at + e[k] * given_strides[k + 1]
                to = to + e[k] * strides[k + 1]
            value, whole = T(0), T(0)
            first, end = taps(own, axis) if forward else reach(own, axis)
            for other in range(first, end):
                if forward:
                    share = weight(own, other, axis, inverse)
                    whole = T(whole + share)
                else:
                    share = weight(other, own, axis, inverse)
                    if DIVIDED:
                        share = T(share / sums[other])
                if share != 0:
                    value = T(value + share * T(load(given, at + other * step)))
            if forward and DIVIDED:
                value = T(value / whole)
            store(made, to, value)
    return resample_pass


def _packed(sizes):
    """Strides of images that lie packed."""
    found = [1]
    for n in sizes[:0:-1]:
        found.insert(0, found[0] * n)
    return (found[0] * sizes[0], *found)


def build(problem, device, config):
    """A launch for each dimension that changes; of a gradient those of the sums before."""
    forward, compute, found = problem.is_forward, problem.compute, passes(problem)[0]
    launches = list(sums_launches(problem, [p.axis for p in found]))
    names, ends = ("x", "y"), tuple((s[0], *_order(problem, s[1:])) for s in (problem.x_strides, problem.y_strides))
    if not forward:
        names, ends = ("dy", "dx"), ends[::-1]
    given, given_type, given_strides = Argument(element(problem.x.dtype).pointer, names[0]), problem.x.dtype, ends[0]
    for p in found:
        axis = problem.axes[p.axis]
        numbers = axis_argument(axis), inverse_argument(problem, axis)
        last, count = p.offset is None, problem.n * math.prod(p.sizes)
        made_type, strides = (problem.x.dtype, ends[1]) if last else (compute, _packed(p.sizes))
        made = Argument(element(made_type).pointer, names[1] if last else "workspace", 0 if last else p.offset)
        arguments = (given, made, sums_argument(problem, p.axis), Argument("int32", count), extents_argument(p.sizes),
                     Argument("int32x5", given_strides), Argument("int32x5", strides), *numbers)
        launches.append(Launch(pass_kernel(forward, given_type, made_type, compute, problem.filter, p.position),
                               (ceil_div(count, THREADS), 1, 1), (THREADS, 1, 1), arguments))
        given, given_type, given_strides = made, made_type, strides
    return tuple(launches)


ALGORITHMS = tuple(Algorithm(op=op, name="axes", supports=supports, workspace=workspace, estimate=estimate, build=build)
                   for op in RESAMPLES)

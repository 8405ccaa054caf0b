"""A thread makes 16 bytes of the columns, whatever elements of x they are.

Packed columns are one run of elements, which consists of runs along which x has a constant step: a row of places where channels are first,
what one tap sees where they are last, or what all taps of a row of the window see, if those lie side by side in x. A thread takes V
elements, which are up to 16 bytes and at most as many as a run has, so they belong to two runs at most. It finds by multiplications
(`device.index`) where in x its run begins and which part of it is within the image, does so for the next run if it reaches into it, and
loads the elements one by one, all of them before the first is used. Loads of neighbouring threads lie in the same lines, which the L1 has
after the first of them; stores are as in a copy.

It takes any layout, window, and strides of x: three channels, rows of 7 pixels. `tiled` is better where it can move 16 bytes at once or use
an element for several taps.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, device_function, i32, i64, jit, u32
from ...device.index import ceil_div, divide, divide_remainder, divisor
from ...device.vec import advance
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap, tail
from ...engine.offsets import LIMIT
from ...engine.pack_words import make_pack
from ...engine.vectors import UNITS, make_unit_moves, word_of
from ...host.launch import Argument, Launch

COST = constants("transform/im2col_gather")

THREADS = 256


FIRST, LAST, MERGED = 0, 1, 2  # runs: a row of places; channels; taps of a row and channels


@dataclass(frozen=True)
class Config:
    """Bytes of an element and of a store, what a run is, 64-bit offsets."""
    itemsize: int
    unit: int
    runs: int
    wide: bool

    @property
    def elements(self):
        return self.unit // self.itemsize


def _runs(problem):
    """(what a run is, its elements)."""
    if problem.layout == "NCHW":
        return FIRST, problem.out[2]
    side_by_side = problem.dilations[2] == 1 and problem.x_strides[4] == problem.c * problem.x_strides[1]
    return (MERGED, problem.taps[2] * problem.c) if side_by_side else (LAST, problem.c)


def _unit(problem):
    itemsize, run = problem.x.itemsize, _runs(problem)[1]
    fits = (u for u in UNITS if u > itemsize and u >= 4 and u <= run * itemsize and problem.columns.alignment % u == 0
            and problem.columns.size * itemsize % u == 0)
    return next(fits, itemsize)


def supports(problem):
    """Packed columns."""
    if not problem.columns.is_packed:
        return f"columns has shape {problem.columns.shape} and strides {problem.columns.strides}; expected packed ones"
    if problem.columns.size >= LIMIT - 2 ** 20:
        return f"columns has {problem.columns.size} elements; expected fewer than 2**31 - 2**20"
    reach = max(n + d * (t - 1) + b for n, t, d, b in zip(problem.image, problem.taps, problem.dilations, problem.before))
    if reach >= 2 ** 30:
        return f"the window reaches over {reach} pixels; expected fewer than 2**30"
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """Instructions of elements and stores; a load of a warp takes as many cycles of the L1 as it meets lines of 128 bytes."""
    elements, unit = problem.columns.size, _unit(problem)
    issue = issue_seconds(elements, COST.element + COST.store * problem.x.itemsize / unit, device)
    lines = elements / 32 * max(1.0, unit / 4) / (device.sms * device.clock_hz)
    stores = memory_seconds(problem.bytes, device) * max(1.0, (4 / unit) ** 0.5)
    return LAUNCH + overlap(issue=issue, l1=lines, memory=stores).slowed(tail=tail(ceil_div(elements, COST.tile), COST.blocks, device))


@functools.cache
def make_three():
    """Device function: (rest, a, b, c) of a flat index into extents (any, A, B, C), whose divisors are three in one tuple."""
    @device_function
    def three(i, d):
        rest, c = divide_remainder(i, (d[6], d[7], d[8]))
        rest, b = divide_remainder(rest, (d[3], d[4], d[5]))
        rest, a = divide_remainder(rest, (d[0], d[1], d[2]))
        return rest, a, b, c
    return three


@functools.cache
def make_run(runs, wide):
    """Device function: (offset in x, first, end) of a run: element j of it is at ``offset + j * step`` if ``first <= j < end``, else 0."""
    Int, three = i64 if wide else i32, make_three()

    @device_function
    def run(index, channels, out, taps, image, steps, dilations, before, x_strides, step_w):
        c, q = i32(0), i32(0)
        if runs == FIRST:
            rest, o, p, q = three(index, (out[0], out[1], out[2], out[3], out[4], out[5], u32(1), u32(0x80000000), u32(0)))
            rest, t, r, s = three(rest, taps)
            n, c = divide_remainder(rest, channels)
        elif runs == LAST:
            rest, t, r, s = three(index, taps)
            n, o, p, q = three(rest, out)
        else:
            rest, t, r, s = three(index, (taps[0], taps[1], taps[2], taps[3], taps[4], taps[5], u32(1), u32(0x80000000), u32(0)))
            n, o, p, q = three(rest, out)
        d = o * steps[0] + t * dilations[0] - before[0]
        h = p * steps[1] + r * dilations[1] - before[1]
        w = q * steps[2] + s * dilations[2] - before[2]
        at = Int(Int(n) * x_strides[0] + Int(c) * x_strides[1] + Int(d) * x_strides[2] + Int(h) * x_strides[3] + Int(w) * x_strides[4])
        inside = d >= 0 and d < image[0] and h >= 0 and h < image[1]
        first, end = i32(0), i32(0)
        if runs == FIRST:
            if inside and w < image[2]:
                first, end = i32(0), divide(image[2] - w - 1, step_w) + 1
                if w < 0:
                    first = divide(steps[2] - 1 - w, step_w)
        elif runs == LAST:
            if inside and w >= 0 and w < image[2]:
                end = i32(channels[0])
        elif inside:
            first, end = i32(-w * i32(channels[0])), i32(i32(image[2] - w) * i32(channels[0]))
        return at, first, end
    return run


@functools.cache
def kernel(config):
    """`unit` bytes of the columns a thread."""
    _, _, SCALE = word_of(config.itemsize)
    load, _, _, _, WORDS = make_unit_moves(config.itemsize, config.itemsize)
    _, store, _, _, _ = make_unit_moves(config.unit, config.itemsize)
    V, Int = config.elements, i64 if config.wide else i32
    LOADED = V * WORDS
    pack, PACKED = make_pack(config.itemsize, V)
    run = make_run(config.runs, config.wide)

    @jit(launch_bounds=(THREADS, 4))
    def im2col_gather(x, columns, units, length, step, channels, step_w, out, taps, image, steps, dilations, before, x_strides):
        index = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if index < units:
            parts = cuda.local.array(LOADED, u32)
            words = cuda.local.array(PACKED, u32)
            element0 = index * V
            number, j0 = divide_remainder(element0, length)
            at, first, end = run(number, channels, out, taps, image, steps, dilations, before, x_strides, step_w)
            at_next, first_next, end_next = at, first, end
            if j0 + V > i32(length[0]):
                at_next, first_next, end_next = run(number + 1, channels, out, taps, image, steps, dilations, before, x_strides,
                                                    step_w)
            for v in range(V):
                j, here, low, high = j0 + v, at, first, end
                if j >= i32(length[0]):
                    j, here, low, high = j - i32(length[0]), at_next, first_next, end_next
                load(parts, v * WORDS, advance(x, Int(here + Int(j) * step)), i32(j >= low and j < high))
            pack(parts, words)
            store(advance(columns, i64(element0) * SCALE), words, 0)
    return im2col_gather


def build(problem, device, config, source=("x", 0), target=("columns", 0)):
    """One launch. `source` and `target` are the names of the two pointers and byte offsets to them."""
    itemsize, unit, wide = problem.x.itemsize, _unit(problem), problem.is_wide
    runs, length = _runs(problem)
    _, name, scale = word_of(itemsize)
    units = problem.columns.size * itemsize // unit
    step = problem.steps[2] * problem.x_strides[4] if runs == FIRST else problem.x_strides[1]
    arguments = (Argument(name + "*", source[0], offset=source[1]), Argument(name + "*", target[0], offset=target[1]),
                 Argument("int32", units), Argument("uint32x3", divisor(length)), Argument("int64" if wide else "int32", step * scale),
                 Argument("uint32x3", divisor(problem.c)), Argument("uint32x3", divisor(problem.steps[2])),
                 *window_arguments(problem, wide, scale))
    config = Config(itemsize, unit, runs, wide)
    return (Launch(kernel(config), (ceil_div(units, THREADS), 1, 1), (THREADS, 1, 1), arguments),)


def window_arguments(problem, wide, scale):
    """Kernel parameters: divisors of the places and taps; extents of the image, strides, dilations, padding; strides of x in words."""
    divisors = (tuple(v for n in sizes for v in divisor(n)) for sizes in (problem.out, problem.taps))
    triples = problem.image, problem.steps, problem.dilations, problem.before
    return (*(Argument("uint32x9", d) for d in divisors), *(Argument("int32x3", t) for t in triples),
            Argument(f"int{64 if wide else 32}x5", tuple(s * scale for s in problem.x_strides)))


ALGORITHM = Algorithm(op="im2col", name="gather", supports=supports, workspace=workspace, estimate=estimate, build=build)

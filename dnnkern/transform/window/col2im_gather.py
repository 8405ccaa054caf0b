"""Each pixel gathers what the windows saw of it, in chunks of channels where they are last.

A thread owns 16 bytes of the channels of a pixel, or a few neighbouring pixels of a channel where channels are first, and walks through the
rows of the window. Of a row it loads, at once, what every tap of the row holds for its pixels, 0 where there is no place from which that
tap sees one, and adds it up in the order of the taps; so loads are in flight together though sums are in order. Where a tap's place lies
follows by one multiplication (`device.index`), and by none where the stride is 1. Each element of the columns is read once, coalesced
either way, and no atomics are needed, since every pixel knows where its copies are.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, device_function, f32, f64, i32, i64, jit, u32
from ...device.convert import element
from ...device.index import ceil_div, divide_remainder, divisor
from ...device.vec import advance
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap, tail
from ...engine.offsets import LIMIT
from ...engine.pack_words import make_pack
from ...engine.values import make_words
from ...engine.vectors import make_unit_moves, unit_of, word_of
from ...host.dtypes import ITEMSIZE
from ...host.launch import Argument, Launch

COST = constants("transform/col2im_gather")

THREADS = 256
MOST_LOADS = 24  # under way at once: the taps of a row of the window, of each of a thread's pixels
MOST_BYTES = {1: 4, 2: 8, 4: 16, 8: 16}  # of neighbouring pixels that a thread owns: four, or two of 8 bytes


@dataclass(frozen=True)
class Config:
    """Element type, bytes a thread owns, taps along a row, whether the window's stride along it is not 1, channels last, 64-bit offsets."""
    dtype: str
    unit: int
    taps: int
    strided: bool
    channels_last: bool
    wide: bool

    @property
    def elements(self):
        return self.unit // ITEMSIZE[self.dtype]

    @property
    def batch(self):
        """Taps loaded at once: the row in as few equal parts as can be."""
        most = max(1, MOST_LOADS // (max(self.unit // 4, 1) if self.channels_last else self.elements))
        return ceil_div(self.taps, ceil_div(self.taps, most))


def _unit(problem):
    itemsize = problem.x.itemsize
    if problem.layout == "NCHW":
        if problem.x_strides[4] != 1:
            return itemsize
        largest = min(problem.x.alignment, MOST_BYTES[itemsize])
        return unit_of(largest, problem.image[2], *problem.x_strides[:4], itemsize=itemsize)
    if problem.x_strides[1] != 1 or problem.columns_strides[1] != 1:
        return itemsize
    strides = (*problem.x_strides[2:], problem.x_strides[0], problem.columns_strides[0], *problem.columns_strides[2:])
    unit = unit_of(min(problem.x.alignment, problem.columns.alignment), problem.c, *strides, itemsize=itemsize)
    return unit if unit == 16 else itemsize


def supports(problem):
    """All that 32-bit integers can count."""
    reach = max(n + b + d * t for n, b, d, t in zip(problem.image, problem.before, problem.dilations, problem.taps))
    if max(problem.x.size + 2 ** 20, reach) >= LIMIT:
        return f"x has {problem.x.size} elements, the window reaches over {reach} pixels; expected fewer than 2**31 - 2**20"
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """The bytes, or the instructions: of a row of the window, of a tap, of an element of it."""
    unit = _unit(problem)
    units, per = problem.x.size * problem.x.itemsize // unit, unit // problem.x.itemsize
    each = (COST.tap + COST.element * per if problem.layout == "NHWC"
            else (COST.stride_1 if problem.steps[2] == 1 else COST.strided) * per)
    a_thread = COST.thread + problem.taps[0] * problem.taps[1] * (COST.row + problem.taps[2] * each)
    work = overlap(issue=issue_seconds(units, a_thread, device), memory=memory_seconds(problem.bytes, device))
    return LAUNCH + work.slowed(tail=tail(ceil_div(units, THREADS), COST.blocks, device))


@functools.cache
def kernel(config):
    """`unit` bytes of x a thread."""
    itemsize = ITEMSIZE[config.dtype]
    LAST = config.channels_last
    loaded = config.unit if LAST else itemsize
    load, _, _, _, WORDS = make_unit_moves(loaded, itemsize)
    _, store, _, _, STORED = make_unit_moves(config.unit, itemsize)
    widen, narrow = make_words(config.dtype, loaded)
    Total = {"float32": f32, "float64": f64}[element(config.dtype).compute]
    OWNED, S, STRIDED, Int = config.elements, config.taps, config.strided, i64 if config.wide else i32
    V, PIXELS = (OWNED, 1) if LAST else (1, OWNED)           # elements of a load, pixels
    BATCH = config.batch
    BATCHES, LOADED, NARROWED = ceil_div(S, BATCH), BATCH * PIXELS * WORDS, PIXELS * WORDS
    pack, PACKED = make_pack(itemsize, PIXELS) if not LAST else (None, STORED)

    @device_function
    def place(pixel, before, tap, dilation, count, step):
        """The place from which a tap sees a pixel, and whether there is one among `count`."""
        seen = pixel + before - tap * dilation
        inside = seen >= 0
        q, rest = divide_remainder(seen if inside else 0, step)
        return q, inside and rest == 0 and q < count

    @device_function
    def place_by_one(pixel, before, tap, dilation, count, step):
        """`place` for a stride of 1."""
        q = pixel + before - tap * dilation
        return q, q >= 0 and q < count
    place_w = place if STRIDED else place_by_one

    @jit(launch_bounds=(THREADS, 3))
    def col2im_gather(columns, x, count, channels, image, steps, taps, out, dilations, before, x_strides, strides):
        index = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if index < count:
            total = cuda.local.array(OWNED, Total)
            values = cuda.local.array(V, Total)
            words = cuda.local.array(LOADED, u32)
            c = 0
            if LAST:
                index, c = divide_remainder(index, channels)
            index, w = divide_remainder(index, (image[6], image[7], image[8]))
            w = w * PIXELS
            index, h = divide_remainder(index, (image[3], image[4], image[5]))
            n, d = divide_remainder(index, (image[0], image[1], image[2]))
            if not LAST:
                n, c = divide_remainder(n, channels)
            matrix = advance(columns, i64(n) * strides[0] + c * i64(strides[1]))
            for v in range(OWNED):
                total[v] = Total(0)
            for t in range(taps[0]):
                o, o_seen = place(d, before[0], t, dilations[0], out[0], (steps[0], steps[1], steps[2]))
                for r in range(taps[1]):
                    p, p_seen = place(h, before[1], r, dilations[1], out[1], (steps[3], steps[4], steps[5]))
                    row_seen = o_seen and p_seen
                    tap, pixel = (t * taps[1] + r) * S, (o * out[1] + p) * out[2]
                    for b in range(BATCHES):
                        for k in range(BATCH):
                            s = b * BATCH + k
                            for j in range(PIXELS):
                                q, seen = place_w(w + j, before[2], s, dilations[2], out[2], (steps[6], steps[7], steps[8]))
                                at = Int(Int(tap + s) * strides[2] + Int(pixel + q) * strides[3])
                                load(words, (k * PIXELS + j) * WORDS, advance(matrix, at), i32(row_seen and seen and s < S))
                        for k in range(BATCH):
                            for j in range(PIXELS):
                                widen(values, words, (k * PIXELS + j) * WORDS)
                                for v in range(V):
                                    total[j * V + v] = Total(total[j * V + v] + values[v])
            result = cuda.local.array(PACKED, u32)
            if LAST:
                narrow(result, total)
            else:
                one = cuda.local.array(WORDS, u32)
                parts = cuda.local.array(NARROWED, u32)
                for j in range(PIXELS):
                    values[0] = total[j]
                    narrow(one, values)
                    for part in range(WORDS):
                        parts[j * WORDS + part] = one[part]
                pack(parts, result)
            to = Int(Int(n) * x_strides[0] + Int(c) * x_strides[1] + Int(d) * x_strides[2] + Int(h) * x_strides[3] + Int(w) * x_strides[4])
            store(advance(x, to), result, 0)
    return col2im_gather


def build(problem, device, config, source=("columns", 0), target=("x", 0)):
    """One launch. `source` and `target` are the names of the two pointers and byte offsets to them."""
    unit, itemsize, wide = _unit(problem), problem.x.itemsize, problem.is_wide
    _, name, scale = word_of(itemsize)
    per, count = unit // itemsize, problem.x.size * itemsize // unit
    last = problem.layout == "NHWC"
    config = Config(problem.x.dtype, unit, problem.taps[2], problem.steps[2] != 1, last, wide)
    image = problem.image if last else (*problem.image[:2], problem.image[2] // per)
    divisors = (tuple(v for n in sizes for v in divisor(n)) for sizes in (image, problem.steps))
    triples = problem.taps, problem.out, problem.dilations, problem.before
    integer = "int64" if wide else "int32"
    x_strides, strides = ([s * scale for s in strides] for strides in (problem.x_strides, problem.columns_strides))
    if last:  # a chunk of channels is `per` elements
        x_strides[1], strides[1] = x_strides[1] * per, strides[1] * per
    arguments = (Argument(name + "*", source[0], offset=source[1]), Argument(name + "*", target[0], offset=target[1]),
                 Argument("int32", count), Argument("uint32x3", divisor(problem.c // per if last else problem.c)),
                 *(Argument("uint32x9", d) for d in divisors), *(Argument("int32x3", t) for t in triples),
                 Argument(f"{integer}x5", tuple(x_strides)), Argument(f"{integer}x4", tuple(strides)))
    return (Launch(kernel(config), (ceil_div(count, THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHM = Algorithm(op="col2im", name="gather", supports=supports, workspace=workspace, estimate=estimate, build=build)

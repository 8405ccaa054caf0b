"""One dimension has only a few elements, such as the three channels of a picture: no tile, registers alone.

Where a short dimension, of C elements, is contiguous in one array and a long one in the other, a thread takes P neighbours along the long
one, P elements being up to 16 bytes: all C * P elements of them. In the array where the short dimension is contiguous they are one run of C
chunks, in the other C chunks far apart. So it loads C chunks, moves their elements within registers, by indices that are all known
when the kernel is compiled, and stores C chunks. Both sides move whole sectors, though a warp's accesses to the run are C chunks apart. It
needs the long dimension to follow the short one without a gap.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, device_function, i32, i64, jit, u32
from ...device.index import ceil_div
from ...device.vec import advance
from ...dispatch import Algorithm
from ...engine.ahead import make_follow
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap, tail
from ...engine.offsets import LIMIT, make_offsets, offset_arguments
from ...engine.pack_words import make_pack
from ...engine.vectors import UNITS, make_unit_moves, unit_of, word_of
from ...host.canonical import Dim
from ...host.launch import Argument, Launch
from .._problem import MOVES
from .transpose_tiled import split

COST = constants("transform/few")

THREADS = 256
MOST = 64  # elements of a thread: more do not stay in registers


@dataclass(frozen=True)
class Config:
    """Bytes of an element and of a chunk, elements of the short dimension, whether it is contiguous in x, dimensions, 64-bit offsets."""
    itemsize: int
    unit: int
    short: int
    short_in_x: bool
    dims: int
    wide: bool

    @property
    def elements(self):
        """P."""
        return self.unit // self.itemsize

    def __str__(self):
        return f"{self.short} x {self.unit} bytes"


def _dims(problem):
    """(short, long, others, whether the short one is contiguous in x)."""
    form = problem.units
    i, j, others = split(form)
    return (i, j, others, True) if i.size < j.size else (j, i, others, False)


def _unit(problem):
    form = problem.units
    short, long, others, in_x = _dims(problem)
    steps = [v for d in others for v in (d.x, d.y)] + [short.y if in_x else short.x]
    unit = unit_of(min(problem.alignments(form)), long.size, *steps, itemsize=form.itemsize)
    fits = (u for u in UNITS if (u == form.itemsize or 4 <= u <= unit) and u // form.itemsize * short.size <= MOST)
    return next(fits, form.itemsize)


def supports(problem):
    """A short dimension that is contiguous in one array and is followed there by the long one, contiguous in the other."""
    form = problem.units
    if len(form.dims) < 2:
        return "after merging one dimension is left: there is nothing to transpose"
    short, long, others, in_x = _dims(problem)
    if short.size > MOST // 4:
        return f"the shorter of the two dimensions has {short.size} elements; expected {MOST // 4} at most"
    dense = (short.x, long.x, long.y) if in_x else (short.y, long.y, long.x)
    if dense != (1, short.size, 1):
        return (f"strides of the dimensions of {short.size} and {long.size} elements are {short.x}, {long.x} in x and {short.y}, {long.y} "
                f"in y; expected 1, {short.size} in one and the longer one's to be 1 in the other")
    if form.size >= LIMIT - 2 ** 20:
        return f"{form.size} elements; expected fewer than 2**31 - 2**20"
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def _config(problem):
    short, _, others, in_x = _dims(problem)
    return Config(problem.units.itemsize, _unit(problem), short.size, in_x, len(others) + 1, problem.units.is_wide)


def estimate(problem, device, config):
    """The bytes, more where chunks are short, or an odd number of them are stored by a thread; about four instructions per element."""
    config = _config(problem)
    threads = problem.units.size // (config.short * config.elements)
    a_thread = COST.thread + COST.dimension * config.dims + config.short * (COST.access + COST.element * config.elements)
    # sectors of which two threads store halves
    apart = COST.apart * (config.short - 2) if config.short % 2 and not config.short_in_x else 0.0
    memory = memory_seconds(problem.bytes, device) * (max(COST.slower, (COST.chunk / config.unit) ** 0.5) + apart)
    work = overlap(memory=memory, issue=issue_seconds(threads, a_thread, device))
    return LAUNCH + work.slowed(tail=tail(ceil_div(threads, THREADS), COST.blocks, device))


@functools.cache
def make_pick(itemsize, unit):
    """Device function ``pick(parts, k, words, e)``: element e of packed words, as `make_pack` takes elements, to index k."""
    if itemsize >= 4 or unit < 4:
        WORDS = max(itemsize // 4, 1)

        @device_function
        def pick(parts, k, words, e):
            for n in range(WORDS):
                parts[k * WORDS + n] = words[e * WORDS + n]
    else:
        LOG, LAST, BITS, MASK = {2: 1, 1: 2}[itemsize], 4 // itemsize - 1, 8 * itemsize, 2 ** (8 * itemsize) - 1

        @device_function
        def pick(parts, k, words, e):
            parts[k] = (words[e >> LOG] >> u32((e & LAST) * BITS)) & MASK
    return pick


@functools.cache
def kernel(config, dependent):
    """C chunks of P elements a thread."""
    _, _, SCALE = word_of(config.itemsize)
    load, store, _, _, WORDS = make_unit_moves(config.unit, config.itemsize)
    C, P, IN_X, Int = config.short, config.elements, config.short_in_x, i64 if config.wide else i32
    LOADED, PARTS, CHUNK = C * WORDS, P * max(config.itemsize // 4, 1), P * SCALE
    pick, (pack, PACKED) = make_pick(config.itemsize, config.unit), make_pack(config.itemsize, P)
    offsets = make_offsets(config.dims, config.wide)

    wait = make_follow(dependent)

    @jit(launch_bounds=(THREADS, 2))
    def transpose_few(x, y, count, x_first, y_first, apart, divisors, strides):
        wait()
        index = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if index < count:
            words = cuda.local.array(LOADED, u32)
            parts = cuda.local.array(PARTS, u32)
            made = cuda.local.array(PACKED, u32)
            x_at, y_at = offsets(index, divisors, strides)
            x, y = advance(x, x_first + x_at), advance(y, y_first + y_at)
            for c in range(C):
                load(words, c * WORDS, advance(x, Int(c * CHUNK) if IN_X else Int(Int(c) * apart)), 1)
            for c in range(C):
                for p in range(P):
                    # x is [p][c] and y [c][p], or the other way round
                    pick(parts, p, words, p * C + c if IN_X else (c * P + p) % C * P + (c * P + p) // C)
                pack(parts, made)
                store(advance(y, Int(Int(c) * apart) if IN_X else Int(c * CHUNK)), made, 0)
    return transpose_few


def build(problem, device, config, source=("x", 0), target=("y", 0)):
    """One launch. `source` and `target` are the names of the two pointers and byte offsets to them."""
    form, config = problem.units, _config(problem)
    short, long, others, in_x = _dims(problem)
    chunks = Dim(long.size // config.elements, long.x * config.elements, long.y * config.elements)
    _, name, scale = word_of(form.itemsize)
    count = form.size // (config.short * config.elements)
    arguments = (Argument(name + "*", source[0], offset=source[1]), Argument(name + "*", target[0], offset=target[1]),
                 Argument("int32", count), Argument("int64", form.x_first * scale), Argument("int64", form.y_first * scale),
                 Argument("int64" if config.wide else "int32", (short.y if in_x else short.x) * scale),
                 *offset_arguments((*others, chunks), config.wide, scale))
    dependent = device.capability >= (9, 0)
    return (Launch(kernel(config, dependent), (ceil_div(count, THREADS), 1, 1), (THREADS, 1, 1), arguments, dependent=dependent),)


ALGORITHMS = tuple(Algorithm(op=op, name="few", supports=supports, workspace=workspace, estimate=estimate, build=build)
                   for op in MOVES)

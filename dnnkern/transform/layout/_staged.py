"""A box of several dimensions through shared memory: the kernel, how a box is chosen, and what it is predicted to take.

A permutation has two orders of dimensions, by their strides in x and by those in y. A box has as many of the first dimensions of either
order as make runs of memory of some 16-byte vectors on both sides, the last of them in part (a divisor of its size, so that all boxes are
alike). All other dimensions number the boxes.

In shared memory a box lies as in one of the arrays, the *flat* one. There, vectors follow the runs, whatever dimensions they go across; in
the *cut* one a vector is some neighbours along its contiguous dimension, which are `step` bytes apart in shared memory and are moved one by
one. An additional vector after every eighth keeps lanes from the same bank where that is the better layout.
"""
import functools
import math
from dataclasses import dataclass

from ...device import cuda, device_function, jit, u32
from ...device.index import ceil_div
from ...device.vec import advance, shared_address
from ...engine.ahead import make_follow
from ...engine.constants import constants
from ...engine.cost import Cost, flight_rate, issue_seconds, memory_seconds, overlap, sector_waste, sm_issue_seconds, tail
from ...engine.offsets import LIMIT, make_offsets, offset_arguments
from ...engine.pack_words import make_pack
from ...engine.vectors import make_unit_moves, unit_of, word_of
from ...host.canonical import Dim
from ...host.launch import Argument, Launch
from .transpose_few import make_pick

COST = constants("transform/staged")

SHARED_BYTES = 40 * 1024   # of a box; with the additional vectors below 48 KB
RUNS = 64, 256             # bytes of a run that are wanted on both sides
IN_FLIGHT = 8              # vectors that a thread loads before it stores the first


@dataclass(frozen=True)
class Config:
    """Bytes of an element, of a vector of the flat array and of the cut one; elements of the box; whether x is the flat one; extents of the
    box's dimensions in the order of the cut one, their strides in shared memory; dimensions that number boxes, those of the flat array;
    bytes of the runs in x and y; 64-bit offsets."""
    itemsize: int
    flat_unit: int
    cut_unit: int
    elements: int
    x_is_flat: bool
    extents: tuple
    strides: tuple
    dims: int
    flat_dims: int
    runs: tuple
    wide: bool

    @property
    def flat_count(self):
        """Vectors of a box in the flat array."""
        return self.elements * self.itemsize // self.flat_unit

    @property
    def cut_count(self):
        """Vectors of a box in the cut array."""
        return self.elements * self.itemsize // self.cut_unit

    @property
    def step(self):
        """Bytes of shared memory between the elements of a vector of the cut array."""
        return self.strides[-1] * self.itemsize

    @property
    def threads(self):
        """As many as have two vectors each, 256 at most."""
        return min(256, max(64, ceil_div(min(self.flat_count, self.cut_count), 64) * 32))

    @functools.cached_property
    def padded(self):
        """Whether additional vectors leave fewer lanes at the same bank."""
        return self.conflicts(True) < self.conflicts(False)

    @property
    def nbytes(self):
        """Of shared memory at most."""
        return ceil_div(self.elements * self.itemsize, 128) * 144

    @property
    def blocks(self):
        """Blocks of a multiprocessor that shared memory and 64 registers per thread allow."""
        return max(1, min(220 * 1024 // (self.nbytes + 1024), 1024 // self.threads, 16))

    def conflicts(self, padded):
        """Words of the bank that most lanes of a warp meet, the first one that has vectors of the cut array."""
        banks = {}
        for lane in range(min(32, self.cut_count)):
            index, at = lane * self.cut_unit // self.itemsize, 0
            for size, stride in zip(self.extents[::-1], self.strides[::-1]):
                index, i = divmod(index, size)
                at += i * stride
            at *= self.itemsize
            word = (at + (at >> 7 << 4) * padded) >> 2
            banks.setdefault(word & 31, set()).add(word)
        return max(map(len, banks.values()))

    def __str__(self):
        return f"boxes of {self.elements}, runs of {self.runs[0]} and {self.runs[1]} bytes, units {self.units[0]} and {self.units[1]}"

    @property
    def units(self):
        """Of x and y."""
        return (self.flat_unit, self.cut_unit) if self.x_is_flat else (self.cut_unit, self.flat_unit)


@dataclass(frozen=True)
class Plan:
    """A configuration and the dimensions of its launch: those that number the boxes, those of a box in the flat array (in vectors) and
    those in the cut one (x: element offsets in it, y: in shared memory)."""
    config: Config
    outer: tuple
    flat: tuple
    cut: tuple

    @property
    def boxes(self):
        return math.prod([d.size for d in self.outer])


def staged_refusal(form):
    """Why elements of a form cannot be moved in boxes; None if they can."""
    if any(d.x <= 0 for d in form.dims):
        return f"strides of x along the dimensions are {', '.join(str(d.x) for d in form.dims)}; expected positive ones"
    first = min(form.dims, key=lambda d: d.x)
    if (first.x, form.dims[-1].y) != (1, 1):
        return f"the least strides are {first.x} in x and {form.dims[-1].y} in y; expected 1 in both"
    if first is form.dims[-1]:
        return "the dimension that is contiguous in y is so in x: its rows stay rows"
    if form.size >= LIMIT - 2 ** 20:
        return f"{form.size} elements; expected fewer than 2**31 - 2**20"
    return None


def _larger(dim, extent, itemsize, unit):
    """The next divisor of a dimension's size, of whole vectors; None after the last."""
    return next((e for e in range(extent + 1, dim.size + 1) if dim.size % e == 0 and e * itemsize % unit == 0), None)


def _run(order, extents, stride):
    """Elements of a box that are neighbours in memory, and how many dimensions of `order` they go across."""
    run = 1
    for k, d in enumerate(order):
        if stride(d) != run:
            return run, k
        run *= extents[d]
        if extents[d] < d.size:
            return run, k + 1
    return run, len(order)


def _box(form, orders, units, wanted):
    """Extents of a box whose runs have `wanted` bytes, if they can: the side with the shorter run takes more of its next dimension."""
    size, extents = form.itemsize, {d: 1 for d in form.dims}
    strides = (lambda d: d.x), (lambda d: d.y)
    open_sides = {0, 1}
    while open_sides:
        runs = {side: _run(orders[side], extents, strides[side])[0] for side in open_sides}
        side = min(open_sides, key=lambda s: (runs[s], s))
        grown = next((d for d in orders[side] if extents[d] < d.size), None)
        if runs[side] * size >= wanted or grown is None:
            open_sides.discard(side)
            continue
        inner = [s for s in (0, 1) if orders[s][0] is grown]
        more = _larger(grown, extents[grown], size, units[inner[0]] if inner else size)
        if math.prod(extents.values()) // extents[grown] * more * size > SHARED_BYTES:
            open_sides.discard(side)
            continue
        extents[grown] = more
    return extents


def plan(form, alignments, wanted):
    """The `Plan` of a form whose first elements are aligned so in x and y."""
    size = form.itemsize
    orders = sorted(form.dims, key=lambda d: d.x), sorted(form.dims, key=lambda d: d.y)
    strides = (lambda d: d.x), (lambda d: d.y)
    cut_units = [unit_of(alignments[s], orders[s][0].size, *(strides[s](d) for d in orders[s][1:]), itemsize=size) for s in (0, 1)]
    extents = _box(form, orders, cut_units, wanted)
    runs = [_run(orders[s], extents, strides[s]) for s in (0, 1)]
    flat_units = []
    for s in (0, 1):
        run, across = runs[s]
        others = [strides[s](d) for d in orders[s][across:]] + [strides[s](d) * extents[d] for d in orders[s] if extents[d] < d.size]
        flat_units.append(unit_of(alignments[s], run, *others, itemsize=size))
    cut_units = [unit_of(cut_units[s], extents[orders[s][0]], itemsize=size) for s in (0, 1)]
    # elements of the cut array are moved one by one anyhow: what counts are accesses to memory
    flat = min((0, 1), key=lambda s: (1 / flat_units[s] + 1 / cut_units[1 - s], s))
    return _planned(form, orders, strides, extents, runs, flat, flat_units[flat], cut_units[1 - flat])


def _planned(form, orders, strides, extents, runs, flat, flat_unit, cut_unit):
    size, cut = form.itemsize, 1 - flat
    positions, total = {}, 1
    for d in orders[flat]:
        positions[d] = total
        total *= extents[d]
    run, across = runs[flat]
    v, w = flat_unit // size, cut_unit // size
    flat_dims = [Dim(extents[d], strides[flat](d), 0) for d in orders[flat][across:] if extents[d] > 1]
    cut_dims = [(extents[d], strides[cut](d), positions[d]) for d in orders[cut] if extents[d] > 1 or d is orders[cut][0]]
    outer = tuple(Dim(d.size // extents[d], d.x * extents[d], d.y * extents[d]) for d in form.dims if extents[d] < d.size)
    (first, stride, position), *others = cut_dims
    config = Config(size, flat_unit, cut_unit, total, flat == 0, tuple(e for e, _, _ in reversed(cut_dims)),
                    tuple(p for _, _, p in reversed(cut_dims)), len(outer), len(flat_dims) + 1, tuple(r * size for r, _ in runs),
                    form.is_wide)
    return Plan(config, outer, (*reversed(flat_dims), Dim(run // v, v, 0)),
                (*(Dim(*d) for d in reversed(others)), Dim(first // w, stride * w, position * w)))


def staged_seconds(plan, problem_bytes, device):
    """Predicted time, `problem_bytes` being those read and written: sectors of runs that begin within one, instructions of vectors and of
    elements, elements that meet the same bank, what a thread waits for; and a margin, since it has not been measured."""
    config = plan.config
    waste = [sector_waste(run, unit) for run, unit in zip(config.runs, config.units)]
    memory = memory_seconds(sum(b * w for b, w in zip(problem_bytes, waste)), device)
    loaded = ceil_div(config.flat_count if config.x_is_flat else config.cut_count, config.threads)  # vectors of a thread
    in_flight = config.blocks * config.threads * min(IN_FLIGHT, loaded) * config.units[0]
    vectors = (config.flat_count * (COST.vector + COST.dimension * config.flat_dims)
               + config.cut_count * (COST.vector + COST.dimension * len(config.extents)) + config.elements * COST.element)
    shared = sm_issue_seconds(plan.boxes * config.elements * COST.bank, device) / device.sms
    work = overlap(memory=memory / flight_rate(in_flight, COST.in_flight), issue=issue_seconds(plan.boxes, vectors, device), shared=shared)
    idle = max(1.0, device.sms / plan.boxes)
    work = work.slowed(tail=tail(plan.boxes, config.blocks, device), idle=idle)
    return (Cost(waves=COST.start * ceil_div(loaded, IN_FLIGHT)) + work).slowed(slower=COST.slower)


def staged_bound(nbytes, device):
    """What `staged_seconds` is not below for so many bytes, read and written."""
    return (COST.start + memory_seconds(nbytes, device)) * COST.slower


@functools.cache
def make_box_moves(config):
    """Device functions ``gather(tile, base, at, words)``, a vector of the cut array from shared memory, whose first element lies at byte
    `at` of the box, and ``scatter(tile, base, at, words, k)``, the other way, from word k on; ``location(byte)`` is where a byte lies."""
    size, STEP, V, PADDED = config.itemsize, config.step, config.cut_unit // config.itemsize, config.padded
    _, _, take, put, ONE = make_unit_moves(size, size)
    pick, (pack, _) = make_pick(size, config.cut_unit), make_pack(size, V)
    PARTS, WORDS = V * ONE, max(config.cut_unit // 4, 1)

    @device_function
    def location(byte):
        return byte + ((byte >> 7) << 4) if PADDED else byte

    @device_function
    def gather(tile, base, at, words):
        parts = cuda.local.array(PARTS, u32)
        for v in range(V):
            take(parts, v * ONE, tile, base, location(at + v * STEP))
        pack(parts, words)

    @device_function
    def scatter(tile, base, at, words, k):
        own, parts = cuda.local.array(WORDS, u32), cuda.local.array(ONE, u32)
        for n in range(WORDS):
            own[n] = words[k + n]
        for v in range(V):
            pick(parts, 0, own, v)
            put(tile, base, location(at + v * STEP), parts, 0)
    return gather, scatter, location


@functools.cache
def kernel(config, dependent):
    """One box per block."""
    T, _, SCALE = word_of(config.itemsize)
    SIZE, THREADS, BLOCKS = config.nbytes * SCALE // config.itemsize, config.threads, config.blocks
    X_IS_FLAT, FLAT_UNIT, FLAT, CUT, ITEM = config.x_is_flat, config.flat_unit, config.flat_count, config.cut_count, config.itemsize
    load_flat, store_flat, fetch, stage, FLAT_WORDS = make_unit_moves(config.flat_unit, config.itemsize)
    load_cut, store_cut, _, _, CUT_WORDS = make_unit_moves(config.cut_unit, config.itemsize)
    FLAT_TURNS, CUT_TURNS = ceil_div(FLAT, THREADS), ceil_div(CUT, THREADS)
    FLAT_BATCH, CUT_BATCH = min(FLAT_TURNS, IN_FLIGHT), min(CUT_TURNS, IN_FLIGHT)
    FLAT_SPAN, CUT_SPAN = FLAT_BATCH * THREADS, CUT_BATCH * THREADS
    FLAT_HELD, CUT_HELD = FLAT_BATCH * FLAT_WORDS, CUT_BATCH * CUT_WORDS
    gather, scatter, location = make_box_moves(config)
    box, flat_offsets = make_offsets(config.dims, config.wide), make_offsets(config.flat_dims, config.wide)
    cut_offsets = make_offsets(len(config.extents), config.wide)
    wait = make_follow(dependent)

    @jit(launch_bounds=(THREADS, BLOCKS))
    def transpose_staged(x, y, x_first, y_first, box_divisors, box_strides, flat_divisors, flat_strides, cut_divisors, cut_strides):
        wait()
        tile = cuda.shared.array(SIZE, T, alignment=16)
        thread, base = cuda.threadIdx.x, shared_address(tile, 0)
        x_at, y_at = box(cuda.blockIdx.x, box_divisors, box_strides)
        x, y = advance(x, x_first + x_at), advance(y, y_first + y_at)
        if X_IS_FLAT:
            # runs in
            words = cuda.local.array(FLAT_HELD, u32)
            for first in range(0, FLAT, FLAT_SPAN):
                for n in range(FLAT_BATCH):
                    e = first + n * THREADS + thread
                    at, _ = flat_offsets(e, flat_divisors, flat_strides)
                    load_flat(words, n * FLAT_WORDS, advance(x, at), e < FLAT)
                for n in range(FLAT_BATCH):
                    e = first + n * THREADS + thread
                    if e < FLAT:
                        stage(tile, base, location(e * FLAT_UNIT), words, n * FLAT_WORDS)
            cuda.syncthreads()
            # vectors of the other array out
            made = cuda.local.array(CUT_WORDS, u32)
            for e in range(thread, CUT, THREADS):
                at, inside = cut_offsets(e, cut_divisors, cut_strides)
                gather(tile, base, inside * ITEM, made)
                store_cut(advance(y, at), made, 0)
        else:
            # vectors of the other array in
            words = cuda.local.array(CUT_HELD, u32)
            for first in range(0, CUT, CUT_SPAN):
                for n in range(CUT_BATCH):
                    at, _ = cut_offsets(first + n * THREADS + thread, cut_divisors, cut_strides)
                    load_cut(words, n * CUT_WORDS, advance(x, at), first + n * THREADS + thread < CUT)
                for n in range(CUT_BATCH):
                    e = first + n * THREADS + thread
                    if e < CUT:
                        _, inside = cut_offsets(e, cut_divisors, cut_strides)
                        scatter(tile, base, inside * ITEM, words, n * CUT_WORDS)
            cuda.syncthreads()
            # runs out
            run = cuda.local.array(FLAT_WORDS, u32)
            for e in range(thread, FLAT, THREADS):
                at, _ = flat_offsets(e, flat_divisors, flat_strides)
                fetch(run, 0, tile, base, location(e * FLAT_UNIT))
                store_flat(advance(y, at), run, 0)
    return transpose_staged


def staged_launch(plan, form, device, source, target):
    """The launch. `source` and `target` are the names of the two pointers and byte offsets to them."""
    config = plan.config
    _, name, scale = word_of(form.itemsize)

    def offsets(dims):
        return offset_arguments([Dim(d.size, d.x * scale, d.y) for d in dims], config.wide)
    arguments = (Argument(name + "*", source[0], offset=source[1]), Argument(name + "*", target[0], offset=target[1]),
                 Argument("int64", form.x_first * scale), Argument("int64", form.y_first * scale),
                 *offset_arguments(plan.outer, config.wide, scale), *offsets(plan.flat), *offsets(plan.cut))
    dependent = device.capability >= (9, 0)
    return Launch(kernel(config, dependent), (plan.boxes, 1, 1), (config.threads, 1, 1), arguments, dependent=dependent)

"""A tile through shared memory, 16 bytes at a time on both sides.

The tile has one dimension along which x is contiguous (i) and the one along which y is (j); all others number the tiles. With V elements in
16 bytes, a thread owns a square of V x V: it loads V chunks along i, one from each of V rows, transposes the square in registers
(`_micro`), and puts V chunks along j into shared memory. Read back row by row they leave in chunks along j. So every access, to global and
to shared memory, is of 16 bytes, and a thread has V loads in flight.

Chunk c of row i of the tile lies in shared memory where chunk ``c ^ (i / V % 8)`` would lie plainly: the eight lanes that store together
have eight successive squares along i, the eight that load together eight successive chunks of a row, and both meet every bank once.

Where x is not contiguous, or not aligned to 16 bytes, along i, the load is made in units that are, down to single elements, and a tile
passes through shared memory as it lay in x before squares are cut out of it. Stores shrink to smaller units likewise; both stay coalesced.
Short runs that stay together, such as eight channels of two bytes, are elements of up to 16 bytes. It loses where i or j has only a few
elements, since tiles are then mostly empty.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, device_function, i32, i64, jit, u32
from ...device.index import ceil_div, divide_remainder, divisor
from ...device.vec import advance, load_shared_4u32, shared_address, store_shared_4u32
from ...dispatch import Algorithm
from ...engine.ahead import make_follow
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap, sector_waste, tail
from ...engine.offsets import LIMIT, make_offsets, offset_arguments
from ...engine.vectors import make_unit_moves, unit_of, word_of
from ...host.launch import Argument, Launch
from .._problem import MOVES
from ._micro import make_column

COST = constants("transform/tiled")

# Chunks of 16 bytes along i and along j that a tile has. Squares of single bytes are 16 x 16 and take 64 registers: fewer threads.
TILES = {1: ((8, 8), (8, 16), (16, 8)), 2: ((16, 16), (8, 16), (16, 8), (8, 8)), 4: ((16, 16), (8, 32), (32, 8), (8, 8)),
         8: ((16, 16), (8, 32), (32, 8), (8, 8)), 16: ((16, 16), (8, 32), (32, 8), (8, 8))}
IN_FLIGHT = 8  # units that a thread loads before it stores the first, where it loads in units


@dataclass(frozen=True)
class Config:
    """Bytes of an element, of a unit in x and in y, chunks of a tile along i and j, dimensions that number tiles, 64-bit offsets."""
    itemsize: int
    unit_x: int
    unit_y: int
    chunks_i: int
    chunks_j: int
    dims: int
    wide: bool

    def __post_init__(self):
        if min(self.chunks_i, self.chunks_j) < 8 or any(c & c - 1 for c in (self.chunks_i, self.chunks_j)):
            raise ValueError(f"a tile of {self.chunks_i} x {self.chunks_j} chunks; expected powers of two, 8 or more: 8 lanes share a row")
        if self.threads > 256 or self.nbytes > 48 * 1024:
            raise ValueError(f"a tile of {self.nbytes} bytes and {self.threads} threads; expected 49152 and 256 at most")

    @property
    def side(self):
        """V: elements of a chunk."""
        return 16 // self.itemsize

    @property
    def threads(self):
        return self.chunks_i * self.chunks_j

    @property
    def nbytes(self):
        return 16 * self.side * self.threads

    @property
    def blocks(self):
        """Blocks a multiprocessor that registers are to allow: 128 registers per thread for squares of 16 x 16, else 80."""
        return 65536 // (self.threads * (128 if self.itemsize == 1 else 80))

    def __str__(self):
        return f"{self.side * self.chunks_i}x{self.side * self.chunks_j} of {self.itemsize}, units {self.unit_x} and {self.unit_y}"


def split(form):
    """(i, j, others): the dimension contiguous in x or nearest to it, the one in y, and the rest."""
    *rest, j = form.dims
    i = min(rest, key=lambda d: (abs(d.x) or 2 ** 62, -d.size))
    return i, j, tuple(d for d in rest if d is not i)


def supports(problem):
    """Two dimensions at least."""
    form = problem.units
    if len(form.dims) < 2:
        return "after merging one dimension is left: there is nothing to transpose"
    i, j, others = split(form)
    tiles = ceil_div(i.size, 8) * ceil_div(j.size, 8)
    for d in others:
        tiles *= d.size
    if max(tiles, i.size + 4096, j.size + 4096) >= LIMIT:
        return f"{i.size} x {j.size} elements in each of {tiles} tiles of 8 x 8 at least; expected fewer than 2**31"
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def configs(problem, device):
    """Square tiles, wide ones and tall ones."""
    form = problem.units
    i, j, others = split(form)
    align_x, align_y = problem.alignments(form)
    unit_x = unit_of(align_x, i.size, j.x, *(d.x for d in others), itemsize=form.itemsize) if i.x == 1 else form.itemsize
    unit_y = unit_of(align_y, j.size, i.y, *(d.y for d in others), itemsize=form.itemsize) if j.y == 1 else form.itemsize
    return [Config(form.itemsize, unit_x, unit_y, ci, cj, len(others), form.is_wide) for ci, cj in TILES[form.itemsize]]


def estimate(problem, device, config):
    """Sectors of either side, the share of the tiles that is within the arrays, and the units' instructions; or waves of blocks whose
    threads make many short accesses."""
    form = problem.units
    i, j, others = split(form)
    across, down = config.side * config.chunks_i, config.side * config.chunks_j
    tiles = ceil_div(i.size, across) * ceil_div(j.size, down)
    waste = tiles * across * down / (i.size * j.size)
    for d in others:
        tiles *= d.size
    waste_x = sector_waste(min(i.size, across) * config.itemsize if i.x == 1 else config.itemsize, config.unit_x)
    waste_y = sector_waste(min(j.size, down) * config.itemsize if j.y == 1 else config.itemsize, config.unit_y)
    memory = memory_seconds(problem.read_bytes * waste_x + problem.y.nbytes * waste_y, device) * max(1.0, COST.waste * waste)
    chunk = COST.chunk + sum(0 if u == 16 else 16 // u * COST.narrow for u in (config.unit_x, config.unit_y))
    work = overlap(memory=memory, issue=issue_seconds(tiles * config.threads * config.side, chunk, device))
    short = sum(config.side * 16 // u for u in (config.unit_x, config.unit_y) if u < 16)
    waits = COST.short * short * max(1.0, tiles / (config.blocks * device.sms))
    return LAUNCH + overlap(work.slowed(tail=tail(tiles, config.blocks, device)), waits=waits)


@functools.cache
def make_chunk_offset(side, chunks):
    """Device function ``chunk_offset(row, chunk)``: at which byte of a tile with `chunks` chunks per row one of them lies; `side` is V."""
    SHIFT = side.bit_length() - 1

    @device_function
    def chunk_offset(row, chunk):
        return (row * chunks + (chunk ^ ((row >> SHIFT) & 7))) << 4
    return chunk_offset


@functools.cache
def kernel(config, dependent):
    """One tile a block."""
    T, _, SCALE = word_of(config.itemsize)
    V, CI, CJ, THREADS = config.side, config.chunks_i, config.chunks_j, config.threads
    ACROSS, DOWN = V * CI, V * CJ                            # elements of the tile along i and j
    LOG_CI, ROW = CI.bit_length() - 1, 16 * CJ                 # bytes of a row along j
    SIZE, WORDS = config.nbytes * SCALE // config.itemsize, 4 * V
    STAGED, Int = config.unit_x < 16, i64 if config.wide else i32
    load, _, _, stage, LOADED = make_unit_moves(config.unit_x, config.itemsize)
    _, store, fetch, _, STORED = make_unit_moves(config.unit_y, config.itemsize)
    UNIT_X, UNIT_Y = config.unit_x, config.unit_y
    IN_X, IN_Y = max(UNIT_X // config.itemsize, 1), max(UNIT_Y // config.itemsize, 1)   # elements of a unit
    ROW_X, ROW_Y = 16 * CI // UNIT_X, 16 * CJ // UNIT_Y      # units of a row of the tile
    LOG_ROW_X, LOG_ROW_Y = ROW_X.bit_length() - 1, ROW_Y.bit_length() - 1
    LOADS, STORES = DOWN * ROW_X // THREADS, ACROSS * ROW_Y // THREADS
    BATCH = min(LOADS, IN_FLIGHT if UNIT_X > 1 else 2 * IN_FLIGHT)
    BATCHES, LOADED_BATCH = LOADS // BATCH, LOADED * BATCH
    column = make_column(config.itemsize)
    offsets, chunk_offset = make_offsets(config.dims, config.wide), make_chunk_offset(V, CJ)

    wait = make_follow(dependent)

    @jit(launch_bounds=(THREADS, config.blocks))
    def transpose_tiled(x, y, size_i, size_j, x_first, y_first, xi, xj, yi, yj, per_matrix, tiles_j, divisors, strides):
        wait()
        tile = cuda.shared.array(SIZE, T, alignment=16)
        words = cuda.local.array(WORDS, u32)                 # V rows [j] of four words [i]
        tid, base = cuda.threadIdx.x, shared_address(tile, 0)
        z, inside = divide_remainder(cuda.blockIdx.x, per_matrix)
        tile_i, tile_j = divide_remainder(inside, tiles_j)
        x_at, y_at = offsets(z, divisors, strides)
        i0, j0 = tile_i * ACROSS, tile_j * DOWN
        x = advance(x, x_first + x_at + i0 * i64(xi) + j0 * i64(xj))
        y = advance(y, y_first + y_at + i0 * i64(yi) + j0 * i64(yj))
        ci, cj = tid & (CI - 1), tid >> LOG_CI

        # load rows along i
        if STAGED:
            part = cuda.local.array(LOADED_BATCH, u32)
            for b in range(BATCHES):
                for n in range(BATCH):
                    e = tid + (b * BATCH + n) * THREADS
                    j, i = e >> LOG_ROW_X, (e & (ROW_X - 1)) * IN_X
                    inside_it = i32(j0 + j < size_j and i0 + i < size_i)
                    load(part, n * LOADED, advance(x, Int(Int(i) * xi + Int(j) * xj)), inside_it)
                for n in range(BATCH):
                    e = tid + (b * BATCH + n) * THREADS
                    stage(tile, base, e * UNIT_X, part, n * LOADED)
            cuda.syncthreads()
            for t in range(V):
                at = ((cj * V + t) * CI + ci) * 16
                words[4 * t], words[4 * t + 1], words[4 * t + 2], words[4 * t + 3] = load_shared_4u32(base + u32(at))
            cuda.syncthreads()
        else:
            i, j = ci * V, cj * V
            for t in range(V):
                inside_it = i32(j0 + j + t < size_j and i0 + i < size_i)
                load(words, 4 * t, advance(x, Int(Int(i * SCALE) + Int(j + t) * xj)), inside_it)

        # columns become rows along j
        slot = chunk_offset(ci * V, cj)
        for t in range(V):
            a, b, c, d = column(words, t)
            store_shared_4u32(base + u32(slot + t * ROW), a, b, c, d)
        cuda.syncthreads()

        # store rows along j
        unit = cuda.local.array(STORED, u32)
        for n in range(STORES):
            e = tid + n * THREADS
            i, u = e >> LOG_ROW_Y, e & (ROW_Y - 1)
            j = u * IN_Y
            if i0 + i < size_i and j0 + j < size_j:
                byte = u * UNIT_Y
                fetch(unit, 0, tile, base, chunk_offset(i, byte >> 4) | (byte & 15))
                store(advance(y, Int(Int(i) * yi + Int(j) * yj)), unit, 0)
    return transpose_tiled


def build(problem, device, config, source=("x", 0), target=("y", 0)):
    """One launch. `source` and `target` are the names of the two pointers and byte offsets to them."""
    form = problem.units
    i, j, others = split(form)
    _, name, scale = word_of(form.itemsize)
    tiles_i, tiles_j = ceil_div(i.size, config.side * config.chunks_i), ceil_div(j.size, config.side * config.chunks_j)
    tiles = tiles_i * tiles_j
    for d in others:
        tiles *= d.size
    integer = "int64" if config.wide else "int32"
    arguments = (Argument(name + "*", source[0], offset=source[1]), Argument(name + "*", target[0], offset=target[1]),
                 Argument("int32", i.size), Argument("int32", j.size), Argument("int64", form.x_first * scale),
                 Argument("int64", form.y_first * scale), *(Argument(integer, s * scale) for s in (i.x, j.x, i.y, j.y)),
                 Argument("uint32x3", divisor(tiles_i * tiles_j)), Argument("uint32x3", divisor(tiles_j)),
                 *offset_arguments(others, config.wide, scale))
    dependent = device.capability >= (9, 0)
    return (Launch(kernel(config, dependent), (tiles, 1, 1), (config.threads, 1, 1), arguments, dependent=dependent),)


ALGORITHMS = tuple(Algorithm(op=op, name="tiled", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs)
                   for op in MOVES)

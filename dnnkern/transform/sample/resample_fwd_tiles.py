"""Tiles of planes whose rows are contiguous, in shared memory: filters are mixed along the width first, then down the columns.

The weights are the same for all images and channels. A block has one tile of the resampled plane: it computes the weights of its rows and
columns once, and goes through many planes. Of each it loads the pixels below the tile, 16 bytes per thread, and keeps them in shared memory
in the type that is computed with. A thread owns a few columns, whose weights are in its registers, and goes down: a row of pixels is mixed
along the width once for all output rows in which it counts, and the mixtures of as many rows as the filter is high are in registers::

    global --16 bytes--> shared [rows of pixels][pixels] --KW loads--> registers [KH rows][columns] --KH weights of the row--> y

An output takes KH multiplications, and KW for each row of pixels, where it took KH * KW.

Sums that are not numbers are added up again without the pixels whose weight is 0: those do not count, even if they are infinite.
"""
import functools
from dataclasses import dataclass
from typing import NamedTuple

from ...device import cuda, device_function, i32, jit, u32
from ...device.fastmath import fma
from ...device.index import Divisor, ceil_div, divide_remainder, divisor
from ...device.vec import advance, shared_address
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, Cost, issue_seconds, memory_seconds, overlap
from ...engine.offsets import LIMIT
from ...engine.strides import image_strides
from ...engine.values import COMPUTE
from ...engine.vectors import make_unit_moves, unit_of, word_of
from ...host.dtypes import ITEMSIZE
from ...host.launch import Argument, Launch
from ._filters import SUPPORT, axis_argument, inverse_argument
from ._resample_problem import Axis
from ._tiles import make_shared, make_weights
from .resample_chunks import make_take

COST = constants("transform/resample_tiles")

THREADS, TOGETHER, MOST = 256, 4, 12


@dataclass(frozen=True)
class Config:
    """What the kernel is compiled for: element type, what is computed in, filter, pixels of it in each dimension and whether that dimension
    stays as it is; columns of a thread, and how many of them are side by side: the next ones are as far away as the first ones of all
    threads reach, so that neighbouring threads read neighbouring pixels; bytes of a load and of a store. And output rows of a thread."""
    dtype: str
    compute: str
    filter: str
    kh: int
    kw: int
    same_h: bool
    same_w: bool
    columns: int
    side: int
    loaded: int
    stored: int
    rows: int

    def __str__(self):
        return f"{self.columns} columns, {self.rows} rows"


class Sizes(NamedTuple):
    """Planes, and how many further the next one of a block is; how a plane's number, a block's and a thread's are split; output rows of a
    block and of a thread; rows of pixels in shared memory and the bytes of one; columns of a block; vectors that are loaded of
    a row; where the first rows and the pixels begin in shared memory."""
    planes: i32
    step: i32
    channels: Divisor
    depth: Divisor
    row_tiles: Divisor
    column_tiles: Divisor
    lanes: Divisor
    units: Divisor
    rows: i32
    each: i32
    pixel_rows: i32
    pitch: i32
    columns: i32
    row_units: i32
    firsts: i32
    pixels: i32


# ---- what is resampled

def _planes(problem):
    """(axes of height and width, images, channels and depth, strides of x and of y) as the kernel takes them. The channels of lines are the
    rows of a plane that keeps its height."""
    _, height, width = problem.axes
    if len(problem.window) > 1:
        return height, width, (problem.n, problem.c, problem.image[0]), problem.x_strides, problem.y_strides
    rows = Axis(problem.c, problem.c, 1, 0, 1)
    strides = ((s[0], 0, 0, s[1], s[4]) for s in (problem.x_strides, problem.y_strides))
    return rows, width, (problem.n, 1, 1), *strides


def _kind(problem):
    """The filter, of `_filters` or "bilinear"; None of the mode "nearest"."""
    return problem.filter or ("bilinear" if problem.mode == "bilinear" else None)


def _taps(problem, axis):
    """Pixels of a filter along a dimension: most that a position has."""
    n, m = axis.inner, axis.outer
    if n == m:
        return 1
    if _kind(problem) == "bilinear":
        most = 2
    elif problem.filter == "area":
        most = 1 if m % n == 0 else n // m if n % m == 0 else -(-n // m) + 1
    elif problem.antialias:
        most = -(-2 * SUPPORT[problem.filter] * max(n, m) // m)
    else:
        most = 4
    return min(most, n)


def supports(problem):
    """Filters of a few pixels, planes whose rows are contiguous, sizes whose products fit 32 bits."""
    if not _kind(problem):
        return f"mode is {problem.mode!r}; expected 'area', 'bicubic' or 'bilinear'"
    if problem.is_empty:
        return "there are no outputs"
    if problem.image[0] != problem.out[0]:
        return f"depth is {problem.image[0]} and {problem.out[0]}; expected the same"
    height, width, (n, c, d), *strides = _planes(problem)
    for name, along in zip("xy", strides):
        if along[4] != 1:
            return f"{name} has stride {along[4]} along the width; expected 1"
    for axis in (height, width):
        if _taps(problem, axis) > MOST:
            return f"a filter has {_taps(problem, axis)} pixels in one dimension; expected at most {MOST}"
        reach = (axis.outer + 3) * axis.a + (axis.inner + 3) * axis.d + abs(axis.b) + 3 * max(axis.a, axis.d)
        if reach >= LIMIT:
            return f"extents {axis.inner} and {axis.outer} have products of {reach}; expected fewer than 2**31"
    if problem.is_wide or n * c * d * height.outer * ceil_div(width.outer, 2) >= LIMIT:
        return f"offsets in {problem.x} and {problem.y}; expected fewer than 2**31"
    return None


# ---- configurations

@functools.lru_cache(maxsize=256)
def _layout(problem, config):
    """`Sizes` but for what depends on the device, and bytes of shared memory."""
    height, width, (n, c, d), *_ = _planes(problem)
    size, held = ITEMSIZE[config.compute], config.loaded // problem.x.itemsize
    lanes = ceil_div(width.outer, config.columns)
    # of an image that shrinks a row of outputs has many pixels, and tiles that are as wide as high share most of them
    lanes = ceil_div(lanes, ceil_div(lanes, THREADS if width.outer >= width.inner else THREADS // 4))
    groups = max(1, min(THREADS // lanes, ceil_div(height.outer, config.rows)))
    each = min(config.rows, ceil_div(height.outer, groups))
    rows, columns = groups * each, lanes * config.columns
    pixel_rows = min(height.inner, (rows - 1) * height.a // height.d + 1 + config.kh)
    units = min(ceil_div(width.inner, held), ceil_div((columns - 1) * width.a // width.d + 1 + config.kw + held - 1, held))
    pitch = units * held * size
    firsts = rows * _padded(config) * size
    pixels = firsts + ceil_div(rows * 4, 16) * 16
    sizes = Sizes(n * c * d, 0, divisor(c), divisor(d), divisor(ceil_div(height.outer, rows)), divisor(ceil_div(width.outer, columns)),
                  divisor(lanes), divisor(units), rows, each, pixel_rows, pitch, columns, units, firsts, pixels)
    return sizes, pixels + pixel_rows * pitch


def _padded(config):
    """Weights of a row in shared memory: 16-byte vectors."""
    held = 16 // ITEMSIZE[config.compute]
    return ceil_div(config.kh, held) * held


def configs(problem, device):
    """Columns of a thread, a word or two of the result, and its output rows: more of them share more mixtures, fewer leave room for other
    blocks."""
    height, width, _, x_strides, y_strides = _planes(problem)
    size, found = problem.x.itemsize, []
    loaded = unit_of(problem.x.alignment, width.inner, *x_strides[:4], itemsize=size)
    kh, kw = _taps(problem, height), _taps(problem, width)
    grows = width.outer >= width.inner
    for columns in (1,) if size == 8 else (2, 4) if grows and kh + kw <= MOST else (2,) if grows else (2, 1):
        side = min(columns, 2) if grows else 1
        stored = unit_of(problem.y.alignment, width.outer, *y_strides[:4], itemsize=size)
        stored = side * size if stored >= side * size else size
        for rows in (16, 32, 64) if grows else (8, 16, 32):
            config = Config(problem.x.dtype, problem.compute, _kind(problem), kh, kw, height.inner == height.outer,
                            width.inner == width.outer, columns, side, loaded, stored, rows)
            if _layout(problem, config)[1] <= device.shared_per_block and not (rows > 16 and rows >= 2 * height.outer):
                found.append(config)
    return found


def fits(problem, device):
    """The pixels below a tile in shared memory."""
    if not configs(problem, device):
        return f"pixels below 16 rows of {problem.y} take more than the {device.shared_per_block} bytes of a block's shared memory"
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def _blocks(problem, config, device):
    """(tiles of a plane, blocks for each, blocks of a multiprocessor): as many as the device holds at once, with equally many planes."""
    sizes, nbytes = _layout(problem, config)
    tiles = sizes.row_tiles.d * sizes.column_tiles.d
    resident = max(1, min(_resident(config), device.shared_per_sm // (nbytes + 1024)))
    turns = ceil_div(sizes.planes, max(1, resident * device.sms // tiles))
    return tiles, ceil_div(sizes.planes, turns), resident


def _resident(config):
    """Blocks of a multiprocessor that registers have room for."""
    held = config.columns * (config.kh + config.kw) * ITEMSIZE[config.compute] // 4
    return 4 if held <= 16 else 3 if held <= 32 else 2


def estimate(problem, device, config):
    """Bytes; instructions of a row of pixels and of an output row, for each column of a thread and for all of them together; blocks that
    are too few."""
    sizes, _ = _layout(problem, config)
    height, width, *_ = _planes(problem)
    tiles, blocks, resident = _blocks(problem, config, device)
    columns, size, turns = config.columns, problem.x.itemsize, ceil_div(sizes.planes, blocks)
    busy = ceil_div(sizes.lanes.d * (sizes.rows // sizes.each), 32) * 32
    mixed = min(height.inner, config.kh + (sizes.each - 1) * height.a / height.d)
    # of what neighbouring threads read, in banks: where an image shrinks, one is read for several
    apart = max(1.0, config.side * width.inner / width.outer)
    tap = COST.mixed_tap + COST.bank * (apart - 1)
    work = COST.start / turns + mixed * (COST.mixed + columns * (COST.mixed_column + tap * config.kw + config.kh))
    work += sizes.each * (COST.row + columns * (COST.column + COST.tap * config.kh + COST.store * size / config.stored))
    units = sizes.units.d * sizes.pixel_rows
    work = work * busy + units * (COST.load + COST.pixel * config.loaded / size)
    each = tiles * blocks / device.sms  # blocks of a multiprocessor
    some = min(1.0, each) * min(1.0, min(each, resident) * busy / COST.threads) ** 0.5
    loaded = sizes.row_tiles.d * sizes.column_tiles.d * sizes.pixel_rows * sizes.pitch / ITEMSIZE[config.compute]
    again = max(0.0, loaded / (height.inner * width.inner) - 1)  # what several tiles load, of which the L2 has some
    moved = memory_seconds(problem.x.nbytes * (1 + COST.again * again) + problem.y.nbytes, device)
    issue = issue_seconds(tiles * blocks * turns, work, device) / some
    spent = overlap(memory=COST.slower * moved, issue=COST.slower * issue)
    return LAUNCH + spent + Cost(waits=COST.turn * turns * ceil_div(tiles * blocks, resident * device.sms))


# ---- the kernel

@functools.cache
def kernel(dtype, compute, kind, KH, KW, same_h, same_w, COLUMNS, SIDE, loaded, stored, blocks):
    """y = x resampled, the tiles of a plane."""
    T, SIZE, BYTES = COMPUTE[compute], ITEMSIZE[dtype], ITEMSIZE[compute]
    PIXELS, TOGETHER_WORDS, TOGETHER_STORED = loaded // SIZE, TOGETHER * max(loaded // 4, 1), stored // SIZE
    load, _, _, _, WORDS = make_unit_moves(loaded, SIZE)
    take, _ = make_take(dtype, PIXELS)
    store, OUT = make_unit_moves(stored, SIZE)[1], max(stored // 4, 1)
    _, pack = make_take(dtype, TOGETHER_STORED)
    begin_h, weigh_h = make_weights(kind, compute, same_h, KH)
    begin_w, weigh_w = make_weights(kind, compute, same_w, KW)
    HELD = 16 // BYTES
    PADDED = -(-KH // HELD) * HELD
    shared, one = make_shared(compute, PIXELS, PADDED), make_shared(compute, 1, PADDED)
    get, put, put_one, get_row = shared.get, shared.put, one.put, shared.get_row
    _, _, load_word, store_word, _ = make_unit_moves(4, 4)
    SCALE = word_of(SIZE)[2]
    ALL, WINDOW, TABLE = COLUMNS * KW, COLUMNS * KH, PADDED * BYTES

    @device_function
    def mix_rows(fresh, memory, base, ats, further, weights):
        # a row of pixels along the width: KW of them for each column
        probe, pixels = T(0), cuda.local.array(ALL, T)
        for c in range(COLUMNS):
            value = T(0)
            for k in range(KW):
                get(pixels, c * KW + k, memory, base, ats[c] + further + k * BYTES)
                value = fma(weights[c * KW + k], pixels[c * KW + k], value)
            fresh[c], probe = value, T(probe + value)
        if probe != probe:
            for c in range(COLUMNS):
                value = T(0)
                for k in range(KW):
                    if weights[c * KW + k] != 0:
                        value = fma(weights[c * KW + k], pixels[c * KW + k], value)
                fresh[c] = value

    @device_function
    def mix_columns(results, window, weights):
        probe = T(0)
        for c in range(COLUMNS):
            value = T(0)
            for k in range(KH):
                value = fma(weights[k], window[c * KH + k], value)
            results[c], probe = value, T(probe + value)
        if probe != probe:
            for c in range(COLUMNS):
                value = T(0)
                for k in range(KH):
                    if weights[k] != 0:
                        value = fma(weights[k], window[c * KH + k], value)
                results[c] = value

    @jit(launch_bounds=(THREADS, blocks))
    def resample_tiles(x, y, sizes, axis_h, axis_w, inverse_h, inverse_w, x_stride, y_stride):
        memory = cuda.shared.array(0, u32, alignment=16)
        weights, window, row_weights = cuda.local.array(ALL, T), cuda.local.array(WINDOW, T), cuda.local.array(PADDED, T)
        words, pixels, made = cuda.local.array(TOGETHER_WORDS, u32), cuda.local.array(PIXELS, T), cuda.local.array(OUT, u32)
        some, fresh, ats = cuda.local.array(KW, T), cuda.local.array(COLUMNS, T), cuda.local.array(COLUMNS, i32)
        results, number, place = cuda.local.array(TOGETHER_STORED, T), cuda.local.array(1, u32), cuda.local.array(1, i32)
        base, thread = shared_address(memory, 0), cuda.threadIdx.x
        rest, column_tile = divide_remainder(cuda.blockIdx.x, sizes.column_tiles)
        plane, row_tile = divide_remainder(rest, sizes.row_tiles)
        group, lane = divide_remainder(thread, sizes.lanes)
        p0, q0 = row_tile * sizes.rows, column_tile * sizes.columns
        top, left = begin_h(p0, axis_h), begin_w(q0, axis_w)
        left = left - (left & (PIXELS - 1))

        # weights of the tile's rows, in shared memory, and the first row of pixels of each
        for r in range(thread, sizes.rows, THREADS):
            i = p0 + r if p0 + r < axis_h.outer else axis_h.outer - 1
            first = begin_h(i, axis_h)
            for k in range(PADDED):
                row_weights[k] = T(0)
            weigh_h(row_weights, first, i, axis_h, inverse_h)
            for k in range(PADDED):
                some[0] = row_weights[k]
                put_one(memory, base, r * TABLE + k * BYTES, some)
            number[0] = first - top
            store_word(memory, base, sizes.firsts + 4 * r, number, 0)

        # weights of the thread's columns, in registers
        q, lanes = q0 + lane * SIDE, sizes.columns // COLUMNS
        for c in range(COLUMNS):
            i = q + c // SIDE * SIDE * lanes + c % SIDE
            i = i if i < axis_w.outer else axis_w.outer - 1
            first = begin_w(i, axis_w)
            weigh_w(some, first, i, axis_w, inverse_w)
            for k in range(KW):
                weights[c * KW + k] = some[k]
            ats[c] = sizes.pixels + (first - left) * BYTES

        height = axis_h.inner - top
        height = height if height < sizes.pixel_rows else sizes.pixel_rows
        total = height * sizes.row_units
        while plane < sizes.planes:
            image, depth = divide_remainder(plane, sizes.depth)
            image, channel = divide_remainder(image, sizes.channels)

            # the pixels below the tile
            cuda.syncthreads()
            source = advance(x, image * x_stride.n + channel * x_stride.c + depth * x_stride.d + top * x_stride.h + left * SCALE)
            for start in range(thread, total, THREADS * TOGETHER):
                for t in range(TOGETHER):
                    row, unit = divide_remainder(start + t * THREADS, sizes.units)
                    ok = start + t * THREADS < total and left + unit * PIXELS < axis_w.inner
                    load(words, t * WORDS, advance(source, row * x_stride.h + unit * (PIXELS * SCALE)), ok)
                for t in range(TOGETHER):
                    row, unit = divide_remainder(start + t * THREADS, sizes.units)
                    if start + t * THREADS < total:
                        take(pixels, words, t * WORDS)
                        put(memory, base, sizes.pixels + row * sizes.pitch + unit * (PIXELS * BYTES), pixels)
            cuda.syncthreads()

            # down the thread's columns
            r = group * sizes.each
            p = p0 + r
            end = sizes.rows if r < sizes.rows and q < axis_w.outer else r
            end = r + sizes.each if r + sizes.each < end else end
            end = axis_h.outer - p0 if axis_h.outer - p0 < end else end
            result = advance(y, image * y_stride.n + channel * y_stride.c + depth * y_stride.d + p * y_stride.h + q * SCALE)
            for k in range(WINDOW):
                window[k] = T(0)
            have = 0
            while r < end:
                load_word(number, 0, memory, base, sizes.firsts + 4 * r)
                place[0] = number[0]
                first = place[0]
                have = have if have > first else first
                while have < first + KH:
                    mix_rows(fresh, memory, base, ats, have * sizes.pitch, weights)
                    for c in range(COLUMNS):
                        for k in range(KH - 1):
                            window[c * KH + k] = window[c * KH + k + 1]
                        window[c * KH + KH - 1] = fresh[c]
                    have = have + 1
                get_row(row_weights, memory, base, r * TABLE)
                mix_columns(fresh, window, row_weights)
                for c in range(0, COLUMNS, TOGETHER_STORED):
                    column = c // SIDE * SIDE * lanes + c % SIDE
                    if q + column < axis_w.outer:
                        for k in range(TOGETHER_STORED):
                            results[k] = fresh[c + k]
                        pack(made, results)
                        store(advance(result, column * SCALE), made, 0)
                result = advance(result, y_stride.h)
                r = r + 1
            plane = plane + sizes.step
    return resample_tiles


def build(problem, device, config):
    """One launch."""
    height, width, _, x_strides, y_strides = _planes(problem)
    sizes, shared = _layout(problem, config)
    tiles, blocks, _ = _blocks(problem, config, device)
    _, name, scale = word_of(problem.x.itemsize)
    c, pointer = config, name + "*"
    arguments = (Argument(pointer, "x"), Argument(pointer, "y"), Argument(Sizes, sizes._replace(step=blocks)), axis_argument(height),
                 axis_argument(width), inverse_argument(problem, height), inverse_argument(problem, width),
                 image_strides(x_strides, False, scale), image_strides(y_strides, False, scale))
    made = kernel(c.dtype, c.compute, c.filter, c.kh, c.kw, c.same_h, c.same_w, c.columns, c.side, c.loaded, c.stored, _resident(c))
    return (Launch(made, (tiles * blocks, 1, 1), (THREADS, 1, 1), arguments, shared=shared),)


ALGORITHM = Algorithm(op="resample_fwd", name="tiles", supports=supports, fits=fits, workspace=workspace, estimate=estimate, build=build,
                      configs=configs)

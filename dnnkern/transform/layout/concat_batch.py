"""Four or eight arrays a launch: the blocks of a grid are shared out among them.

Where arrays are rows that are contiguous in them and in the result, as packed ones are, they differ by a pointer and a few numbers alone. A
block finds by its number which array it copies, and picks these; from there on it is `rows`, whose stores of 16 bytes are aligned wherever
an array's part of a row begins. So small arrays do not wait for each other's launches. A block picks one of eight numbers so slowly that
four arrays a launch are better where they are large. `boxes` is for arrays that do not have the same layout.
"""
import functools

from ...device import cuda, device_function, f32, i32, i64, jit, u32
from ...device.index import ceil_div, divisor
from ...device.vec import advance
from ...dispatch import Algorithm
from ...engine.ahead import make_follow
from ...engine.constants import constants
from ...engine.cost import LAUNCH
from ...engine.offsets import LIMIT
from ...engine.vectors import word_of
from ...host.launch import Argument, Launch
from ._rows import THREADS, Config, chunk_count, chunks_of_row, make_move, rows_refusal, rows_seconds

COST = constants("transform/concat_batch")
MOST = 8


def _alignment(box):
    return box.alignments(box.canonical)[1]


def supports(problem):
    """Rows along which all arrays are contiguous, one after the other in memory or apart."""
    for name, box in problem.boxes:
        form = box.canonical
        label = f"arrays[{name[1:]}]"
        if form.dims[-1].x != 1:
            return f"{label} has the stride {form.dims[-1].x} along the dimension that is contiguous in the result; expected 1"
        if len(form.dims) > 2 or form.x_first:
            return f"{label} and its part of the result differ in {len(form.dims)} dimensions, or run backwards; expected rows of one array"
        if reason := rows_refusal(form, _alignment(box)):
            return reason
    if sum(chunk_count(box.canonical, _alignment(box)) for _, box in problem.boxes) >= LIMIT - 2 ** 20:
        return "more than 2**31 - 2**20 chunks"
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def configs(problem, device):
    """Two chunks per thread, and four arrays a launch, and one chunk and eight arrays for problems with few."""
    wide = any(box.canonical.is_wide for _, box in problem.boxes)
    return [Config(problem.y.itemsize, None, True, n, None, 2, wide) for n in (2, 1)]


def _most(config):
    """Arrays of a launch."""
    return MOST if config.chunks == 1 else MOST // 2


def estimate(problem, device, config):
    """That of the rows, without the gaps between launches."""
    seconds = sum(rows_seconds(box.canonical, _alignment(box), config, box.read_bytes, device) for _, box in problem.boxes)
    seconds = seconds * COST.bytes if problem.y.itemsize == config.chunks == 1 else seconds
    slower = COST.eight if _most(config) == MOST and len(problem.boxes) > MOST // 2 else COST.slower
    return LAUNCH * ceil_div(len(problem.boxes), _most(config)) + slower * seconds


@functools.cache
def make_pick(parts):
    """Device function ``pick(part, v)``: v[part], of the first `parts` of eight."""
    @device_function
    def pick(part, v):
        v0, v1, v2, v3, v4, v5, v6, v7 = v
        found = v0
        if parts > 1 and part == 1:
            found = v1
        if parts > 2 and part == 2:
            found = v2
        if parts > 2 and part == 3:
            found = v3
        if parts > 4 and part == 4:
            found = v4
        if parts > 4 and part == 5:
            found = v5
        if parts > 4 and part == 6:
            found = v6
        if parts > 4 and part == 7:
            found = v7
        return found
    return pick


@functools.cache
def kernel(config, parts, dependent):
    """The rows of up to `parts` arrays, `chunks` chunks per thread."""
    pick, begin, PARTS = make_pick(parts), make_follow(dependent), parts
    move, SPAN, SCALE, Int = make_move(config), THREADS * config.chunks, word_of(config.itemsize)[2], i64 if config.wide else i32

    BLOCKS = 4 if config.itemsize > 1 else 3  # chunks of 16 elements hold more

    @jit(launch_bounds=(THREADS, BLOCKS))
    def concat_batch(x0, x1, x2, x3, x4, x5, x6, x7, y, starts, counts, rows, chunks, multipliers, shifts, highs, y_firsts, x_strides,
                     y_strides):
        begin()
        block, part = cuda.blockIdx.x, 0
        for k in range(1, PARTS):
            part = part + 1 if block >= pick(k, starts) else part
        x = pick(part, (x0, x1, x2, x3, x4, x5, x6, x7))
        index0 = (block - pick(part, starts)) * SPAN + cuda.threadIdx.x
        row = pick(part, rows)
        size, multiplier, shift = pick(part, chunks), pick(part, multipliers), pick(part, shifts)
        move(x, advance(y, pick(part, y_firsts) * SCALE), index0, pick(part, counts), row, (size, multiplier, shift), 0, row, Int(1),
             i64(0), pick(part, highs), (u32(0), u32(0), u32(0), size, multiplier, shift), (0, 0, 0, 0),
             (Int(pick(part, x_strides)), Int(pick(part, y_strides)), Int(0), Int(0)), f32(0))
    return concat_batch


def build(problem, device, config):
    """A launch for each four or eight arrays."""
    most = _most(config)
    return tuple(_launch(problem.boxes[k:k + most], config, device) for k in range(0, len(problem.boxes), most))


def _launch(some, config, device):
    found, blocks = [], 0
    for _, box in some:
        form, alignment = box.canonical, _alignment(box)
        count, (size, multiplier, shift) = chunk_count(form, alignment), divisor(chunks_of_row(form, alignment))
        *outer, row = form.dims
        x_stride, y_stride = (outer[0].x, outer[0].y) if outer else (0, 0)
        high = box.x.extent[1] // form.itemsize
        found.append((blocks, count, row.size, size, multiplier, shift, high, form.y_first, x_stride, y_stride))
        blocks += ceil_div(count, THREADS * config.chunks)
    missing = (LIMIT - 1, *found[0][1:])
    columns = zip(*found, *[missing] * (MOST - len(found)))
    types = ("int32", "int32", "int32", "uint32", "uint32", "uint32", "int64", "int64", "int64", "int64")
    pointer = word_of(config.itemsize)[1] + "*"
    names = [name for name, _ in some]
    names += names[:1] * (MOST - len(names))
    arguments = (*(Argument(pointer, name) for name in (*names, "y")),
                 *(Argument(f"{kind}x{MOST}", column) for kind, column in zip(types, columns)))
    parts, dependent = 1 << (len(some) - 1).bit_length(), device.capability >= (9, 0)
    return Launch(kernel(config, parts, dependent), (blocks, 1, 1), (THREADS, 1, 1), arguments, dependent=dependent)


ALGORITHM = Algorithm(op="concat", name="batch", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs)

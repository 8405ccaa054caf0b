"""The second launch of split-K: adds the partial sums of the K slices, applies the epilogue, stores y.

The workspace holds [slice][batch][m][n], rows padded to 16 bytes, of the accumulator's type. The kernel adds the slices in a fixed order:
no atomics, so results are bitwise repeatable.

It is bound by memory. So a thread has all that it reads in flight at once: 16 bytes of each of its slices, and of the matrices that the
epilogue adds (`engine.sum_operands`). Blocks go from the end of y to its beginning: what was written last is what the L2 still has.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, device_function, f32, f64, i32, i64, jit, u32
from ..device.convert import element
from ..device.dependent import wait_for_previous_grid
from ..device.epilogue import EpilogueSpec, ScaledParams
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.program_batches import make_placed
from ..device.unroll import unrolled
from ..device.vec import advance, load2, load2_if_into, load4, load4_if_into
from ..host.dtypes import ITEMSIZE
from ..host.launch import Argument, Launch
from .batch import make_batch_offsets
from .programs import program_argument
from .roles import store_width
from .stores import make_group_store
from .sum_operands import GROUP, loaded_ahead, make_ahead

THREADS = 256
MOST_GROUPS = 16  # of threads that share the ranges


@dataclass(frozen=True)
class RangesConfig:
    """Configuration of split-K: a tile, and the number of K slices."""
    tile: object
    ranges: int

    def __post_init__(self):
        if self.ranges < 2:
            raise ValueError(f"{self.ranges} K slices; the least is 2")

    def __str__(self):
        return f"{self.tile} {self.ranges} ranges"


@dataclass(frozen=True)
class SomeRanges:
    """Configuration of an algorithm that may split k: a tile, and the number of K slices, 1 for sums as a whole."""
    tile: object
    ranges: int = 1

    def __post_init__(self):
        if not 1 <= self.ranges <= 65535:
            raise ValueError(f"{self.ranges} K slices; a grid has 1 to 65535")

    def __str__(self):
        return f"{self.tile} {self.ranges} ranges" if self.ranges > 1 else str(self.tile)


@dataclass(frozen=True)
class SumConfig:
    """Groups of threads that share the ranges, elements in 16 bytes, elements of one store, batch dimensions, epilogue, early launch, what
    is loaded before the sums are there."""
    groups: int
    vector: int
    store: int
    batch_dims: int
    epilogue: EpilogueSpec
    dependent: bool = False
    ahead: tuple = ()


def group_of(parts):
    """Accumulators in 16 bytes."""
    return 16 // ITEMSIZE[parts.epilogue.accumulator]


def pitch_of(parts):
    """Elements of a row of partial sums: whole groups of 16 bytes."""
    return parts.pitch or ceil_div(parts.n, group_of(parts)) * group_of(parts)


def elements_of(parts):
    """Elements of one range's partial sums."""
    return parts.batch_size * parts.m * pitch_of(parts)


def sums_refusal(parts):
    """Why the partial sums of a problem cannot be added, or None."""
    if elements_of(parts) >= 2 ** 31:
        return f"y has {parts.batch_size * parts.m * parts.n} elements, the sum of ranges counts to 2**31"
    return None


def sums_bytes(parts, ranges):
    """Workspace: one partial sum an element and range."""
    return ranges * elements_of(parts) * ITEMSIZE[parts.epilogue.accumulator]


def bytes_beside(problem):
    """What the launch that adds the sums of a product moves beside them: the result, c, and the program's arrays."""
    return problem.bytes - problem.a.nbytes - problem.b.nbytes


def sums_argument(parts):
    """The workspace as a kernel parameter."""
    return Argument(f"{parts.epilogue.accumulator}*", "workspace")


@functools.cache
def make_position(groups, vector):
    """Device function ``position(elements) -> (at, mine)``: a thread's first element, and whether it gets the sums of `vector` from it on.

    A block of `THREADS` threads takes THREADS / groups * vector elements; `groups` threads share the ranges of the same ones.
    """
    LANES = THREADS // groups

    @device_function
    def position(elements):
        tid = cuda.threadIdx.x
        at = ((cuda.gridDim.x - cuda.blockIdx.x - 1) * LANES + (tid & (LANES - 1))) * vector
        return at, tid < LANES and at < elements
    return position


@functools.cache
def make_add_ranges(groups, vector, Acc):
    """Device function ``add_ranges(acc, sums, elements, ranges) -> (at, mine)``: the sums over all ranges of the elements that
    `make_position` gives a thread, in threads where `mine`. `groups` is `groups_for(ranges)`."""
    LANES = THREADS // groups
    SCRATCH, SHIFT = THREADS * vector, LANES.bit_length() - 1
    LOADS = 4 if groups == MOST_GROUPS else 2  # in flight, and in all but of many ranges
    TURN, AGAIN, position = LOADS * groups, groups == MOST_GROUPS, make_position(groups, vector)
    load, load_if = (load4, load4_if_into) if vector == 4 else (load2, load2_if_into)

    @device_function
    def add_group(acc, p, i):
        if vector == 4:
            v0, v1, v2, v3 = load(p, i)
            acc[0] += v0
            acc[1] += v1
            acc[2] += v2
            acc[3] += v3
        else:
            v0, v1 = load(p, i)
            acc[0] += v0
            acc[1] += v1

    @device_function
    def fetch(k, of):
        values, sums, elements, ranges, first, at = of
        s = first + k * groups
        load_if(values, k * vector, advance(sums, s * i64(elements) + at), 0, s < ranges and at < elements)

    @device_function
    def add(k, of):
        acc, values = of
        for g in range(vector):
            acc[g] += values[k * vector + g]
    fetch_all, add_all = unrolled(LOADS, fetch), unrolled(LOADS, add)

    @device_function
    def add_ranges(acc, sums, elements, ranges):
        tid = cuda.threadIdx.x
        lane, group = tid & (LANES - 1), tid >> SHIFT
        at, mine = position(elements)
        values = cuda.local.array(LOADS * vector, Acc)
        for g in range(vector):
            acc[g] = Acc(0)
        fetch_all(0, (values, sums, elements, ranges, group, at))
        add_all(0, (acc, values))
        if AGAIN:
            s = group + TURN
            while s < ranges:
                fetch_all(0, (values, sums, elements, ranges, s, at))
                add_all(0, (acc, values))
                s += TURN
        if groups > 1:
            scratch = cuda.shared.array(SCRATCH, Acc, alignment=16)
            for g in range(vector):
                scratch[tid * vector + g] = acc[g]
            cuda.syncthreads()
            for other in range(1, groups):
                if group == 0:
                    add_group(acc, scratch, (other * LANES + lane) * vector)
        return at, mine
    return add_ranges


def groups_for(ranges):
    """Threads that share the ranges of an element."""
    return min(MOST_GROUPS, 1 << max((ranges - 1).bit_length() - 1, 0))


@functools.cache
def sum_kernel(config):
    """y = epilogue(sum over the slices): each thread of a group takes every so many slices of 16 bytes of neighbouring columns."""
    GROUPS, G, DEPENDENT, spec, ahead = config.groups, config.vector, config.dependent, config.epilogue, config.ahead
    Acc = {"float32": f32, "float64": f64, "int32": i32}[spec.accumulator]
    WORDS, read = make_ahead(spec, ahead)
    store, placed = make_group_store(spec, G, config.store > 1, ahead=ahead), make_placed(spec.program, config.batch_dims)
    batch_offsets = make_batch_offsets(config.batch_dims)
    add_ranges, position = make_add_ranges(GROUPS, G, Acc), make_position(GROUPS, G)

    @jit(launch_bounds=(THREADS, 2))
    def matmul_sum(sums, y, m, n, pitch, elements, ranges, sym, syn, sizes, strides, scale_a, scale_b, scale_strides,
                   alpha, beta, bias, bias_stride, c, c_row_stride, c_column_stride, extras):
        acc = cuda.local.array(G, Acc)
        if DEPENDENT:
            wait_for_previous_grid()
        words = cuda.local.array(WORDS, u32)
        at, mine = position(elements)
        line, column = divide_remainder(at, pitch)
        z, row = divide_remainder(line, m)
        _, _, c_at, y_at = batch_offsets(z, sizes, strides)
        e = ScaledParams(alpha, beta, bias, bias_stride, advance(c, c_at), c_row_stride, c_column_stride, scale_a, scale_b,
                         scale_strides.a_row, scale_strides.b_column, placed(extras, z, sizes))
        read(words, row, column, e, mine)
        add_ranges(acc, sums, elements, ranges)
        if mine:
            store(acc, 0, row, column, n, y, y_at + row * sym + column * syn, syn, (e, words))
    return matmul_sum


def sum_launch(parts, ranges, dependent=False, operands=None):
    """The launch that adds `ranges` partial products and stores y; `dependent` (sm_90) lets it begin while they are computed. `operands`:
    what the epilogue reads, as `sum_operands.loaded_ahead` takes it."""
    groups, group, elements = groups_for(ranges), group_of(parts), elements_of(parts)
    ahead = loaded_ahead(parts.epilogue, operands, parts.n) if operands and group == GROUP else ()
    config = SumConfig(groups, group, store_width(parts, group), len(parts.batch), parts.epilogue, dependent, ahead)
    arguments = (sums_argument(parts), Argument(element(parts.y.dtype).pointer, "y"), Argument("uint32x3", divisor(parts.m)),
                 Argument("int32", parts.n), Argument("uint32x3", divisor(pitch_of(parts))), Argument("int32", elements),
                 Argument("int32", ranges), *(Argument("int64", v) for v in parts.y_strides), *parts.batch_arguments(),
                 *parts.scales.arguments(), *parts.epilogue_arguments(), program_argument(parts, len(parts.batch)))
    return Launch(sum_kernel(config), (ceil_div(elements, THREADS // groups * group), 1, 1), (THREADS, 1, 1), arguments,
                  dependent=dependent)

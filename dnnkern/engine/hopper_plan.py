"""What the wgmma algorithms share: how operands reach TMA, which tiles there are, what they cost, and which tile a number is."""
import functools
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

from ..device import device_function, f32, i32, i64
from ..device.convert import element
from ..device.epilogue import EpilogueSpec, ScaledParams
from ..device.index import ceil_div, divisor
from ..device.program_batches import make_placed
from ..device.scheduler import in_bands, in_rows, locate_in_bands, locate_in_rows, locate_slice, slice_of_k
from ..device.vec import advance
from ..host.dtypes import ITEMSIZE as ITEMSIZE_OF
from ..host.launch import Argument
from ..host.memo import remembered
from ..host.tensormap import TensorMap
from .constants import constants
from .cost import Cost, overlap
from .hopper import ITEMSIZE, ROW, Tile, promoted_fits
from .hopper_stores import kept_states, make_boxed_store, make_direct_store
from .packing import by_rows, line_pitch_of, pack_launch, packed_bytes
from .programs import program_argument
from .roles import operand_strides
from .scales import FP8, ScaleStrides
from .simt import band_arguments
from .simt_plan import addends_refusal
from .row_tiles import make_row_levels, stored_spec, warpgroup_fragment
from .tile_states import WARP_ROWS, reduces

COST = constants("engine/hopper")
MOST_SUMS = 96  # of a thread, where the epilogue stores aside: beside more the addresses of a program's matrices are spilled
MOST_REDUCED = 128  # where they are reduced, or one matrix is stored aside

TILES = {
    Tile(128, 64): (1.87, 0.00, 0.256), Tile(128, 128): (2.72, 0.30, 0.340), Tile(128, 192): (3.16, 0.52, 0.488),
    Tile(128, 256): (3.53, 1.19, 0.641), Tile(128, 256, cluster=2): (3.69, 1.11, 0.644), Tile(128, 128, cluster=2): (2.50, 0.20, 0.354),
    Tile(256, 128): (3.49, 1.21, 0.647), Tile(256, 128, cluster=2): (3.61, 1.29, 0.657), Tile(256, 192): (3.60, 1.30, 0.989),
    Tile(64, 64): (1.78, 0.19, 0.155), Tile(64, 128): (2.07, 0.18, 0.220), Tile(64, 192): (2.39, 0.15, 0.281),
    Tile(64, 256): (2.76, 0.80, 0.350), Tile(64, 64, blocks=2): (1.83, 0.00, 0.311), Tile(64, 128, blocks=2): (2.21, 0.57, 0.461),
    Tile(128, 128, ping_pong=True): (3.00, 0.30, 0.335), Tile(64, 256, ping_pong=True): (3.00, 0.50, 0.360),
}
"""Tile -> (fixed, each further wave of tiles, each step of k) in microseconds: H200, bfloat16 "nt", least relative squares over 1 and 4
waves of 4 to 64 steps (the calibration in bench/results/h200-wgmma-variants.json), less 1.0, by which those exceeded products of the
benches; the further waves of 128x128 and 256x192, and the tile taken in turns, as products of many waves came out. Widths are multiples of
the 64 columns in which results leave."""

TIMES_OF_MATRICES = TILES | {Tile(128, 128, ping_pong=True): (3.00, 0.30, 0.350), Tile(128, 192, ping_pong=True): (3.30, 0.50, 0.480)}
"""The same of the tiles that `matmul` has, and what they take there (bench/results/h100-weak-spots-mm.jsonl)."""


@dataclass(frozen=True)
class Config:
    """A tile."""
    tile: Tile

    def __str__(self):
        return str(self.tile)


@dataclass(frozen=True)
class Specialisation:
    """What a kernel is compiled for: tile, operands as `make_matrix_loader` takes them, epilogue, how results leave, how an addend and
    the operands of columns come, whether blocks keep states of reductions from tile to tile (`tile_states.keeping`), and whether tiles
    have more columns than a result whose rows a program reduces."""
    tile: Tile
    operands: tuple
    epilogue: EpilogueSpec
    by_tma: bool
    vector: bool
    blocks: tuple = (False, False, False)  # whether a's and b's scales are by block; four of a's along k are one load
    staged: str | int | None = None
    pairs: tuple = ()
    by_ring: bool = False
    ahead: bool = False
    keeps: bool = False
    boxed: int | None = None  # the side output that leaves as the result does
    edge: bool = False

    @property
    def results(self):
        """The tile of results: of a dual product half of the columns."""
        return self.tile if not self.epilogue.is_dual else replace(self.tile, bn=self.tile.bn // 2)

    @property
    def apart(self):
        """How far a thread's sums by one right operand are from those by the other, see `stores.make_epilogue_of`."""
        return self.results.bn // 2 if self.epilogue.is_dual else 0


@dataclass(frozen=True)
class Operand:
    """How an operand reaches the tensor cores.

    Attributes
    ----------
    name : str
        The plan's name of it.
    tensor : Tensor
    extent, k : int
        Rows (a) or columns (b), and elements along k.
    strides : tuple of int
        Element strides along the batch, the rows or columns, and k.
    matrices : int
        1 where the operand is the same for the whole batch.
    major : "k" or "mn"
        How it lies, or how its copy does.
    packed : bool
        Whether it is copied to the workspace.
    """
    name: str
    tensor: object
    extent: int
    k: int
    strides: tuple
    matrices: int
    major: str
    packed: bool

    @property
    def lines(self):
        """(lines, elements of each, element strides of matrices, lines and elements) that a copy lies in."""
        batch, across, along = self.strides
        return (self.extent, self.k, self.strides) if self.major == "k" else (self.k, self.extent, (batch, along, across))

    @property
    def crosses(self):
        """Whether lines that are read in place begin anywhere in the lines of the L2, of 128 bytes."""
        return not self.packed and max(self.strides[1:]) * self.tensor.itemsize % 128 != 0

    @property
    def bytes(self):
        """Of the workspace."""
        return packed_bytes(self.matrices, *self.lines[:2], self.tensor.itemsize, line_pitch_of) if self.packed else 0

    def pack(self, offset):
        """The launch that copies it to byte `offset` of the workspace, in a tuple; none where it is read in place."""
        return (pack_launch(self.name, self.tensor, self.matrices, *self.lines, offset, pitch=line_pitch_of),) if self.packed else ()

    def argument(self, rows, offset, depth=None):
        """The tensor map of boxes of `rows` rows and 128 bytes along k, or `depth` elements, or of 64 rows and the same k."""
        batch, across, along = self.strides
        itemsize, extent, k = self.tensor.itemsize, self.extent, self.k
        bk, line = depth or ROW // itemsize, 16 // itemsize  # any stride does for a dimension of one
        if self.packed:
            lines, length, _ = self.lines
            across = along = line_pitch_of(length, itemsize)  # of which the other is 1, and not asked for
            batch = across * lines
        if self.matrices == 1:
            batch = line
        if self.major == "k":
            shape, strides, box = (self.matrices, extent, k), (batch, across if extent > 1 else line, 1), (1, rows, bk)
        else:
            shape, strides, box = (self.matrices, k, extent), (batch, along if k > 1 else line, 1), (1, bk, 64)
        spec = TensorMap("uint8" if self.tensor.dtype == "bool" else self.tensor.dtype, shape, strides, box,
                         bk * itemsize if self.major == "k" else ROW)
        return Argument("tensormap", "workspace" if self.packed else self.name, offset=offset if self.packed else 0, spec=spec)


def wgmma_dtype(dtype, math):
    """What the tensor cores call operands of a dtype; None where they cannot take them."""
    if dtype == "float32":
        return "tf32" if math == "tf32" else None
    return dtype if dtype in ITEMSIZE else None


def make_operand(name, tensor, extent, k, strides, matrices, math, anywhere=False):
    """`Operand`, packed unless TMA can address it and the tensor cores read it as it lies.

    `anywhere`: tiles begin at any row or column. Boxes begin at a multiple of 16 bytes along the contiguous dimension, all else is an
    illegal instruction: the operand, or its copy, is then contiguous along k.
    """
    batch, across, along = strides
    itemsize = tensor.itemsize
    by_k, by_mn = along == 1 or k == 1, (across == 1 or extent == 1) and not anywhere and wgmma_dtype(tensor.dtype, math) in (
        "float16", "bfloat16")
    steps = [(across, extent) if by_k else (along, k), (batch, matrices)]
    addressable = tensor.alignment % 16 == 0 and all(n == 1 or s > 0 and s * itemsize % 16 == 0 and s * itemsize < 2 ** 40
                                                     for s, n in steps)
    packed = not (addressable and (by_k or by_mn))
    return Operand(name, tensor, extent, k, strides, matrices, "k" if by_k or not by_mn else "mn", packed)


@remembered
def operands_of(parts, math):
    """The two `Operand` of a product with its parts."""
    made = []
    for which, name, tensor in zip("ab", parts.names, (parts.a, parts.b)):
        extent, across, along, batch = operand_strides(parts, which)
        stride = batch[0] if batch else 0
        made.append(make_operand(name, tensor, extent, parts.k, (stride, across, along), parts.batch_size if stride else 1, math))
    return tuple(made)


def type_refusal(problem):
    """Why the tensor cores cannot take the operands of a problem whatever its shape, or None."""
    if wgmma_dtype(problem.a.dtype, problem.math) is None:
        return f"dtype {problem.a.dtype}" + (" without math='tf32'" if problem.a.dtype == "float32" else "")
    return "K=0: there is nothing to multiply" if problem.k == 0 else None


def refusal(problem, parts):
    """Why the tensor cores cannot take a product, or None."""
    reason = type_refusal(problem) or addends_refusal(problem)
    if reason:
        return reason
    if len(parts.batch) > 1:
        return f"{len(parts.batch)} batch dimensions that do not merge, one is the most"
    if parts.scales.by_block and parts.names[0] != "a":
        return "scales by block where y is stored by columns"
    if max(parts.m, parts.n, parts.k) >= 2 ** 31 - 256:
        return f"a size of {max(parts.m, parts.n, parts.k)}; the most is 2**31 - 257"
    return None


def tiles_for(b_major, dtype, program=None, tiles=tuple(TILES)):
    """Those of the tiles that can read b as it lies, and have the registers for its type, and for the addresses of a program's matrices."""
    found = [t for t in tiles if (b_major == "k" or t.cluster == 1 or t.bn // t.cluster % 64 == 0)
             and (dtype not in FP8 or promoted_fits(t))]
    return found if program is None else [t for t in found if t.sums <= most_sums(program)]


def most_sums(program):
    """Of a thread, beside a program's operands and reductions."""
    if program is None:
        return inf
    matrices = sum(access == "matrix" for _, access in program.operands)
    if program.stores and program.inputs and matrices > 1:
        return MOST_SUMS
    return MOST_REDUCED if program.reductions or program.stores else inf


def even_ranges(steps, ranges):
    """At most so many ranges of equal length, so that none is empty."""
    return ceil_div(steps, ceil_div(steps, ranges))


def steps_of(k, itemsize):
    """Steps of the main loop: 128 bytes of k each."""
    return ceil_div(k * itemsize, ROW)


def rows_for_tma(y, strides, rows, columns, of_tile=0):
    """Whether TMA can write `rows` by `columns` elements of y, of 16 or 32 bits, or floats of 8 where tiles are whole boxes: have a
    multiple of 128 columns; `strides` are element strides along rows and columns.

    It writes 16 bytes at a time: a row that is no multiple of them would be followed by zeros, up to the next one.
    """
    row, column = strides
    fits = y.itemsize in (2, 4) or y.dtype in FP8 and of_tile and of_tile % ROW == 0
    return (fits and column == 1 and y.alignment % 16 == 0 and columns * y.itemsize % 16 == 0
            and (rows == 1 or row > 0 and row * y.itemsize % 16 == 0))


@remembered
def stored_by_tma(parts, columns=0):
    """Whether results leave through TMA, of tiles with so many columns."""
    batch = parts.batch[0][1][3] if parts.batch else 0
    return rows_for_tma(parts.y, parts.y_strides, parts.m, parts.n, columns) and batch * parts.y.itemsize % 16 == 0 and batch >= 0


def y_argument(parts):
    """The tensor map of y: boxes of 64 rows and 128 bytes."""
    batch, per = parts.batch[0][1][3] if parts.batch else 0, 16 // parts.y.itemsize
    return store_argument("y", parts.y.dtype, (parts.batch_size, parts.m, parts.n),
                          (batch or per, parts.y_strides[0] if parts.m > 1 else per, 1))


def store_argument(name, dtype, shape, strides):
    """The tensor map of (matrices, rows, columns) that `make_boxed_store` writes to."""
    return Argument("tensormap", name, spec=TensorMap(dtype, shape, strides, (1, 64, 128 // ITEMSIZE_OF[dtype]), 128))


def addend_argument(names, number, operands, shape):
    """The tensor map of an array that comes through the ring, `operands[number]` as `staged_addend` has it, or that leaves as results do;
    `names` are the plan's."""
    tensor, (row, _, *batch) = operands[number]
    per = 16 // tensor.itemsize
    strides = (*(batch or (per,)), row if shape[1] > 1 else per, 1)
    return store_argument(names.get(number) or (f"x{number}" if isinstance(number, int) else number), tensor.dtype, shape, strides)


def output_arguments(parts):
    """The kernel parameters that a `MatmulOutput` is built from."""
    y_batch, c_batch = (parts.batch[0][1][3], parts.batch[0][1][2]) if parts.batch else (0, 0)
    return (Argument(element(parts.y.dtype).pointer, "y"), *(Argument("int64", s) for s in (*parts.y_strides, y_batch)),
            Argument("int32", parts.m), Argument("int32", parts.n), *parts.scales.arguments(), Argument("int64", c_batch),
            *parts.epilogue_arguments(), program_argument(parts, 1))


class MatmulOutput(NamedTuple):
    """Where results go and what the epilogue reads: y, its strides, M and N, the scales, the stride of c along the batch, the rest."""
    y: object
    y_row: i64
    y_column: i64
    y_batch: i64
    m: i32
    n: i32
    scale_a: object
    scale_b: object
    scale_strides: ScaleStrides
    c_batch: i64
    alpha: f32
    beta: f32
    bias: object
    bias_stride: i64
    c: object
    c_row: i64
    c_column: i64
    extras: object


ReducedOutput = NamedTuple("ReducedOutput", [*MatmulOutput.__annotations__.items(), ("states", object)])
"""A `MatmulOutput` with what reductions write, see `engine.tile_states`."""


@functools.cache
def make_epilogue_params(spec):
    """Device function ``epilogue_params(out, z)``: the epilogue's parameters of a `MatmulOutput`, for matrix z of the batch."""
    placed = make_placed(spec.program, 1)

    @device_function
    def epilogue_params(out, z):
        return ScaledParams(out.alpha, out.beta, out.bias, out.bias_stride, advance(out.c, z * out.c_batch), out.c_row, out.c_column,
                            out.scale_a, out.scale_b, out.scale_strides.a_row, out.scale_strides.b_column, placed(out.extras, z, ()))
    return epilogue_params


@functools.cache
def make_sink(special):
    """The sink of `engine.hopper.make_product` that stores results at `row`, `column` and `z` of a tile; `out` is a `MatmulOutput`, or of a
    program with reductions a `ReducedOutput`."""
    tile, spec, by_tma, apart, run_rows = special.results, stored_spec(special.epilogue), special.by_tma, special.apart, None
    if spec is not special.epilogue:
        run_rows = make_row_levels(special.epilogue, warpgroup_fragment(tile.bn, special.edge))
    ROWS = run_rows is not None
    through_tma = make_boxed_store(tile, spec, staged=special.staged, pairs=special.pairs, by_ring=special.by_ring,
                                   ahead=special.ahead, keeps=special.keeps, apart=apart, boxed=special.boxed) if by_tma else None
    straight = None if by_tma else make_direct_store(tile, spec, special.vector, special.keeps, apart)
    epilogue_params, states_of = make_epilogue_params(special.epilogue), _states if reduces(spec) else _no_states

    @device_function
    def sink(acc, first, offset, y_map, staging, tile, thread, barrier, out, stages=None, group=0, columns=None, own=None):
        row, column, z = tile.row + offset, tile.column, tile.z
        e = epilogue_params(out, z)
        if ROWS:
            run_rows(acc, first, row + (thread >> 5) * WARP_ROWS, column, thread & 31, out.m, out.n, e)
        if by_tma:
            through_tma(acc, first, y_map, staging, row, column, z, thread, barrier, out.m, out.n, e, out.y, out.y_row, stages, group,
                        columns, states_of(out), own)
        else:
            straight(acc, first, row, column, thread, out.m, out.n, e, out.y, z * out.y_batch, out.y_row, out.y_column, z, states_of(out),
                     own)
    return sink


def make_kept(special):
    """`tile_states.KeptStates` for that sink, None where blocks keep none. Host function."""
    if not special.keeps:
        return None
    return kept_states(special.epilogue, special.tile, device_function(lambda tile, out: (tile.z, out.n, out.states)))


@device_function
def _states(out):
    return out.states


@device_function
def _no_states(out):
    return None


class WorkTile(NamedTuple):
    """What a block works on at a time: a tile of y, over all of k or a slice of it.

    Steps k_begin to k_end - 1 of k; the tile's first row and column; its matrix of a batch, in a and b (0 if all share one) and in y; the
    number of its slice of k.
    """
    k_begin: i32
    k_end: i32
    row: i32
    column: i32
    z_a: i32
    z_b: i32
    z: i32
    k_slice: i32


@functools.cache
def make_locate(tile, by_row=False):
    """Device function ``locate(t, rank, place)``: the `WorkTile` number t.

    Slice by slice of k within matrix by matrix, each in bands of rows of tiles, or `by_row`. `place` are `locate_arguments`.
    """
    CLUSTER, BM, BN = tile.cluster, tile.bm, tile.bn
    locate_tile = locate_in_rows if by_row else locate_in_bands

    @device_function
    def locate(t, rank, place):
        per_matrix, ranges, band_tiles, super_rows, last_rows, a_batched, b_batched, steps, each = place
        z, inside, s = locate_slice(t, per_matrix, ranges)
        r, c = locate_tile(inside, band_tiles, super_rows, last_rows)
        first, end = slice_of_k(s, steps, each)
        return WorkTile(first, end, (r * CLUSTER + rank) * BM, c * BN, z * a_batched, z * b_batched, z, s)
    return locate


def slots_of(tile, device):
    """Blocks, or clusters, of a tile that run at once."""
    return device.sms * tile.blocks // tile.cluster


def tile_count(parts, tile):
    """Tiles of all matrices; a cluster's tiles are one."""
    return ceil_div(parts.m, tile.bm * tile.cluster) * ceil_div(parts.n, tile.bn) * parts.batch_size


def locate_arguments(parts, tile, a, b, ranges=1, by_row=False):
    """(tiles, kernel parameters that make up `place`), with `ranges` ranges of k to a tile; tiles go `by_row`, see `make_locate`."""
    super_rows, tiles_n = ceil_div(parts.m, tile.bm * tile.cluster), ceil_div(parts.n, tile.bn)
    per_matrix, steps = super_rows * tiles_n, steps_of(parts.k, b.tensor.itemsize)
    arguments = (Argument("uint32x3", divisor(per_matrix)), Argument("uint32x3", divisor(ranges)),
                 *band_arguments(super_rows, tiles_n, in_rows if by_row else in_bands),
                 Argument("int32", int(a.matrices > 1)),
                 Argument("int32", int(b.matrices > 1)), Argument("int32", steps), Argument("int32", ceil_div(steps, ranges)))
    return tile_count(parts, tile) * ranges, arguments


def pack_seconds(operands, device):
    """Predicted time of copying those operands that must be: a launch each and two passes, more of those that go through shared memory and
    are not aligned, or through the rows' kernel."""
    def passes(x):
        others = [s for s, n in zip(x.strides, (x.matrices, x.extent, x.k)) if n > 1 and s != 1]
        aligned = x.tensor.alignment % 16 == 0 and all(s * x.tensor.itemsize % 16 == 0 for s in others)
        return COST.aligned if aligned else COST.by_rows if by_rows(x.matrices, *x.lines) else COST.unaligned
    return Cost(pack=sum(COST.copy + passes(x) * x.bytes / device.bandwidth for x in operands if x.packed))


def sum_seconds(nbytes, device, beside=0, row=COST):
    """Predicted time, by a row's numbers, of a launch that adds up partial results of so many bytes; `beside` are read and written too."""
    return Cost(reduction=row.sum_launch + row.sum_bytes * (nbytes + beside) / device.bandwidth)


_LEAST_FIXED = min(fixed for fixed, _, _ in TIMES_OF_MATRICES.values())
_LEAST_STEP = min(step for _, _, step in TIMES_OF_MATRICES.values())
_LEAST_RATE = min(step / (tile.bm * tile.bn * tile.blocks) for tile, (_, _, step) in TIMES_OF_MATRICES.items())


def least_memory_seconds(problem, device):
    """What products that are bound by memory take at least."""
    return problem.bytes / (max(COST.outside, COST.bandwidth) * device.bandwidth)


def least_work_seconds(elements, steps, device):
    """What so many steps of all elements take at the rate of the tile that has the highest."""
    return elements * steps * _LEAST_RATE / device.sms * 1e-6 * (COST.clock / device.clock_hz)


def least_tile_seconds(elements, steps, nbytes, device):
    """What products by any tile take at least: the steps of all elements, or the bytes at the rate of memory."""
    return _LEAST_FIXED * 1e-6 + max(least_work_seconds(elements, steps, device), nbytes / device.bandwidth)


def least_seconds(problem, parts, device, ranges=1):
    """What no tile's `product_seconds` is below, its k in up to so many ranges: all steps of all, those of a tile, or the bytes."""
    steps, squares = steps_of(parts.k, parts.a.itemsize), ceil_div(parts.m, 64) * ceil_div(parts.n, 64) * parts.batch_size
    alone = _LEAST_STEP / ranges * steps * 1e-6 * (COST.clock / device.clock_hz)
    work = max(least_work_seconds(squares * 64 ** 2, steps, device), alone) * (COST.fp8 if problem.a.dtype in FP8 else 1.0)
    return _LEAST_FIXED * 1e-6 + max(work, least_memory_seconds(problem, device))


def waves_of(tiles, slots):
    """Waves, of which one that is not full runs at a higher clock."""
    return COST.whole * ceil_div(tiles, slots) + (1 - COST.whole) * max(tiles / slots, 1.0)


def crossing_step(tile, step, tiles):
    """Microseconds of a step of so many tiles at once, of which operands' lines begin anywhere in the L2's."""
    return max(step, 1e6 * ROW * (tile.bm + tile.bn / tile.cluster) * tiles / COST.crossing)


def product_seconds(problem, tile, device, tiles, steps, rows=2 ** 31, again=0, crossing=False, covered=1.0, longer=None):
    """Predicted time of `tiles` tiles of `steps` steps of k: the tensor cores' or the memory's, and a little of the other.

    `rows` are those of a: where most of a tile's lie outside, TMA fills them with zeros, and that is slower than reading.
    `again` are the bytes of a that further columns of tiles read; `crossing`: operands' lines begin anywhere in lines of the L2;
    `covered`: how many times the columns of y the tiles have; `longer`: (tile, microseconds of a step) -> those of one that does more.
    """
    alone = Tile(tile.bm, tile.bn) if tile.blocks > 1 and tiles <= device.sms else tile
    fixed, further, step = TIMES_OF_MATRICES[alone]
    slots = device.sms * alone.blocks
    waves = waves_of(tiles, slots)
    step *= COST.fp8 if problem.a.dtype in FP8 else 1.0  # the second stage of sums
    step = crossing_step(tile, step, min(tiles, slots)) if crossing else step
    step = longer(alone, step) if longer is not None else step
    work = ((waves - 1) * further + waves * steps * step) * 1e-6 * (COST.clock / device.clock_hz)
    rate = device.bandwidth * (COST.outside if rows <= tile.bm // 2 else COST.bandwidth)
    memory = (problem.bytes + COST.again * again) * (0.5 + 0.5 * covered) / rate
    return Cost(launch=fixed * 1e-6 + (alone is not tile) * COST.smaller) + overlap(exposed=COST.exposed, math=work, memory=memory)

"""Split-K on CUDA cores over copies of operands whose rows begin anywhere: 1537x769x3001 in float32.

Where a row of float32 is no multiple of 16 bytes, the main loop of `engine.simt` copies element by element: four times the instructions, in
tiles that have the registers for as many addresses. Here `engine.packing` first copies both operands to rows of whole 16 bytes, at the
speed of memory, with zeros past the end of K and N; then the kernels of `split_k` read them 16 bytes at a time, by any tile and with any
number of ranges, one included.

It wins where operands are read many times over and tiles are few enough to want ranges. It loses for small products, to its launches.
"""
from dataclasses import dataclass, replace

from ..device.index import ceil_div, divisor
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import Cost
from ..engine.loaders import ALONG_K, ALONG_ROWS
from ..engine.packing import by_rows, pack_launch, packed_bytes, pitch_of
from ..engine.programs import read_operands
from ..engine.roles import access, stored_by_rows
from ..engine.simt import band_arguments, shared_bytes
from ..engine.simt_plan import TILES, least_seconds, legal, matrix_seconds, operands_of, product_arguments, refusal, tile_count
from ..engine.split_k import SomeRanges as Config
from ..engine.split_k import bytes_beside, sum_launch, sums_argument, sums_bytes, sums_refusal
from ..engine.split_k import pitch_of as pitch_of_sums
from ..host.launch import Argument, Launch
from .matmul_split_k import MOST_WORKSPACE, partial_kernel

COPY, SUM = constants("engine/hopper"), constants("matmul/split_k")

PER = 4  # elements of 16 bytes
LEAST_STEPS = 256  # of k in a range
BLOCKS = (1, 2, 3, 4, 6, 9)  # of a multiprocessor


@dataclass(frozen=True)
class Copy:
    """A copy of an operand: `rows` lines of `length` elements, with so many `more` lines of zeros."""
    name: str
    tensor: object
    rows: int
    length: int
    stride: int
    more: int

    @property
    def bytes(self):
        return packed_bytes(1, self.rows + self.more, self.length, 4)

    def launch(self, offset):
        return pack_launch(self.name, self.tensor, 1, self.rows, self.length, (0, self.stride, 1), offset, self.more)


def _copies(parts):
    """(the product's parts as their copies have them, the `Copy` of a and of b)."""
    found, strides, tensors, k = [], [], [], ceil_div(parts.k, PER) * PER
    for which, tensor, (across, along), extent in (("a", parts.a, parts.a_strides, parts.m),
                                                   ("b", parts.b, parts.b_strides[::-1], parts.n)):
        name = parts.names["ab".index(which)]
        if access(parts, which, PER)[0] == ALONG_K:
            found.append(Copy(name, tensor, extent, parts.k, across, 0))
            strides.append((pitch_of(parts.k, 4), 1))
        else:
            found.append(Copy(name, tensor, parts.k, extent, along, k - parts.k))
            strides.append((1, pitch_of(extent, 4)))
        tensors.append(replace(tensor, alignment=16))
    n = parts.n if strides[1][0] > 1 else ceil_div(parts.n, PER) * PER  # columns that the copy has
    return replace(parts, k=k, n=n, a=tensors[0], b=tensors[1], a_strides=strides[0], b_strides=strides[1][::-1]), found


def supports(problem):
    """float32 operands, rows of either in any distance, that are not aligned."""
    reason = refusal(problem)
    if reason:
        return reason
    if problem.a.dtype != "float32":
        return f"operands are {problem.a.dtype}; the copies are of float32"
    parts = stored_by_rows(problem)
    if parts.batch:
        return "a batch of matrices"
    of = [access(parts, which, PER) for which in "ab"]
    if of[0][1] == of[1][1] == PER:
        return "both operands are aligned to 16 bytes"
    if of[0][0] == ALONG_ROWS and parts.m % PER:
        return f"{parts.names[0]} is contiguous along {parts.m} rows of y, no multiple of {PER}"
    for copy, name in zip(_copies(parts)[1], parts.names):
        if not by_rows(1, copy.rows, copy.length, (0, copy.stride, 1)) or access(parts, "ab"[parts.names.index(name)], PER)[0] not in (
                ALONG_K, ALONG_ROWS):
            return f"{name} has no rows of neighbours"
    return sums_refusal(parts)


def _ranges(parts, tile, ranges):
    """(steps of a range, a multiple of bk; number of ranges)."""
    each = ceil_div(ceil_div(parts.k, tile.bk), ranges) * tile.bk
    return each, ceil_div(parts.k, each)


def configs(problem, device):
    """For each tile the numbers of ranges that give a multiprocessor so many `BLOCKS`."""
    parts, _ = _copies(stored_by_rows(problem))
    found = {}
    for tile in TILES:
        if legal(parts, tile, device):
            most, tiles = max(1, parts.k // LEAST_STEPS), tile_count(parts, tile)
            for blocks in BLOCKS:
                _, ranges = _ranges(parts, tile, min(max(1, blocks * device.sms // tiles), most))
                if not found or sums_bytes(parts, ranges) <= MOST_WORKSPACE:
                    found[Config(tile, ranges)] = None
    return list(found)


def workspace(problem, device, config):
    """One partial sum an element and range, and the copies."""
    parts, copies = _copies(stored_by_rows(problem))
    return _lines(sums_bytes(parts, config.ranges)) + sum(copy.bytes for copy in copies)


def _lines(nbytes):
    """Whole lines of 256 bytes."""
    return ceil_div(nbytes, 256) * 256


def _pack_seconds(copies, device):
    return Cost(pack=sum(COPY.copy + COPY.by_rows * copy.bytes / device.bandwidth for copy in copies))


def _sum_seconds(problem, parts, ranges, device):
    return Cost(reduction=SUM.sum_launch + (2 * sums_bytes(parts, ranges) + bytes_beside(problem)) / device.bandwidth)


def estimate(problem, device, config):
    """The copies, the product over one range with as many blocks as there are, and the sum."""
    parts, copies = _copies(stored_by_rows(problem))
    steps, ranges = _ranges(parts, config.tile, config.ranges)
    tiles = tile_count(parts, config.tile) * ranges
    return (_pack_seconds(copies, device) + matrix_seconds(parts, config.tile, device, tiles, steps)
            + _sum_seconds(problem, parts, ranges, device))


def bound(problem, device):
    """The copies, all steps at the best tile's rate, and the sum of one range."""
    parts, copies = _copies(stored_by_rows(problem))
    work = least_seconds(parts.dtype, problem.y.size, parts.k, device, max(1, parts.k // LEAST_STEPS))
    return _pack_seconds(copies, device) + work + _sum_seconds(problem, parts, 1, device)


def build(problem, device, config):
    """Two copies, the products over the ranges, then their sum."""
    parts, tile = stored_by_rows(problem), config.tile
    packed, copies = _copies(parts)
    operands = operands_of(packed, tile)
    steps, ranges = _ranges(packed, tile, config.ranges)
    tiles_m, tiles_n = ceil_div(packed.m, tile.bm), ceil_div(packed.n, tile.bn)
    starts = (_lines(sums_bytes(packed, ranges)), _lines(sums_bytes(packed, ranges)) + copies[0].bytes)
    arguments = (*(Argument("float32*", "workspace", offset=start) for start in starts), sums_argument(packed), *product_arguments(packed),
                 Argument("int32", steps), Argument("int32", pitch_of_sums(packed)), Argument("int32", 1), *packed.batch_arguments(),
                 Argument("uint32x3", divisor(tiles_m * tiles_n)), *band_arguments(tiles_m, tiles_n))
    partial = Launch(partial_kernel(tile, operands, 0), (tiles_m * tiles_n, ranges, 1), (tile.threads, 1, 1), arguments,
                     shared=shared_bytes(tile, operands))
    return (*(copy.launch(start) for copy, start in zip(copies, starts)), partial,
            sum_launch(parts, ranges, operands=read_operands(problem, parts)))


ALGORITHM = Algorithm(op="matmul", name="split_k_packed", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs, bound=bound, arch="sm_80+", programs=True)

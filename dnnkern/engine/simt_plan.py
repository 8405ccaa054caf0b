"""Which tiles a problem can have, what they cost, and how they read its operands."""
from ..device.index import ceil_div
from ..host.launch import Argument
from .constants import constants
from .cost import Cost, overlap
from .roles import access, operand_strides, stored_by_rows, widest
from .scales import FP8
from .simt import HALVES, Operands, Tile, registers_needed, shared_bytes

COST = constants("engine/simt")

# Tile: fixed time, time of one step of k alone on a multiprocessor, additional time for every tile a multiprocessor gets; the first in
# microseconds, the others in nanoseconds at 1.98 GHz. Fitted to float32 on an H200, docs/notes/matmul.md. Last what a processor's core
# does, in operations a nanosecond: `python -m bench.algorithms --configs blocked,implicit_gemm`, bench/results/cpu-tiles.jsonl.
TILES = {
    Tile(128, 256, 8, 16, 8, stages=4, blocks=1): (3.0, 2.0, 168.6, 15.0),
    Tile(128, 128, 16, 8, 8, stages=4, early=2): (3.0, 4.0, 85.2, 17.0),
    Tile(128, 64, 32, 16, 8, slices=4, blocks=1): (3.2, 1.0, 43.5, 11.9),
    Tile(64, 64, 32, 16, 8, slices=4): (2.6, 1.5, 23.0, 13.0),
    Tile(64, 32, 64, 8, 8, lanes_m=8, slices=8, blocks=1): (2.3, 0.9, 14.6, 11.0),
    Tile(32, 32, 32, 8, 4, slices=4, stages=4, blocks=4): (1.5, 2.4, 7.5, 10.0),
    Tile(32, 16, 64, 4, 4, lanes_m=8, slices=4): (1.2, 3.5, 5.4, 8.0),
}
TILES_F64 = {
    Tile(64, 64, 16, 8, 8, blocks=4): (3.0, 10.0, 44.0, 11.6),
    Tile(32, 32, 32, 8, 4, slices=4, blocks=3): (2.0, 4.0, 14.0, 4.7),
}


def addends_refusal(problem):
    """Why the one array of addends that epilogues move along a batch is not enough, or None."""
    return "c beside a bias for each matrix of a batch; expected one of the two" if problem.has_two_addends else None


def size_refusal(problem):
    """Why epilogues, or 32-bit numbers of rows, columns, k and tiles, cannot describe a problem, or None."""
    if problem.has_two_addends:
        return addends_refusal(problem)
    if problem.k == 0:
        return "K is 0"
    if max(problem.m, problem.n, problem.k) >= 2 ** 31 - 2 ** 16:
        return f"M, N, K = {problem.m}, {problem.n}, {problem.k}; each must be below 2**31 - 2**16"
    tiles = ceil_div(problem.m, 16) * ceil_div(problem.n, 16) * problem.batch_size
    if tiles >= 2 ** 31:
        return f"{tiles} tiles of 16x16; a grid counts to 2**31"
    return None


def refusal(problem):
    """Why tiles cannot compute a problem, or None: int8 needs words of four k in both operands."""
    if problem.a.dtype in FP8:
        return f"operands are {problem.a.dtype} and {problem.b.dtype}; the tiles multiply types of 16 bits and more, and int8"
    reason = size_refusal(problem)
    if reason:
        return reason
    return word_refusal(stored_by_rows(problem))


def word_refusal(parts):
    """Why int8 operands cannot be read in words of four k, or None; None for other types."""
    if parts.dtype == "int8":
        for which, name in zip("ab", parts.names):
            reason = _no_words(parts, which)
            if reason:
                return f"{name} is int8 {reason}; dp4a needs words of four elements along k"
    return None


def _no_words(parts, which):
    """Why an int8 operand cannot be read in words of four k, or None."""
    tensor = parts.a if which == "a" else parts.b
    extent, across, along, batch = operand_strides(parts, which)
    if along != 1:
        return f"with stride {along} along k"
    if widest(4, tensor, True, (parts.k,), batch + ((across,) if extent > 1 else ())) != 4:
        return f"aligned to {tensor.alignment} bytes, with K={parts.k}, stride {across} across k and {batch} along the batch"
    return None


def operands_of(parts, tile):
    """How a tile's loaders read the operands of a problem."""
    edge = int(parts.ragged or parts.m % tile.bm != 0 or parts.n % tile.bn != 0)
    if parts.dtype == "int8":
        return Operands("int8", (1, 1), (1, 1), edge)
    limit = 8 if parts.dtype in HALVES else 16 // parts.a.itemsize
    return Operands(parts.dtype, access(parts, "a", limit), access(parts, "b", limit), edge)


def tiles_of(problem):
    return TILES_F64 if problem.a.dtype == "float64" else TILES


def legal(parts, tile, device):
    """Whether a tile's loaders can read the operands, and the block fits: narrow copies take more registers for more places."""
    try:
        operands = operands_of(parts, tile)
        fits = registers_needed(tile, operands) <= min(65536 // (tile.threads * tile.blocks), 255)
        return fits and shared_bytes(tile, operands) <= device.shared_per_block
    except ValueError:  # the block's threads cannot share the tile in copies of this size
        return False


def steps_of(parts):
    """Steps of k a tile takes: elements, for int8 words."""
    return parts.k // 4 if parts.dtype == "int8" else parts.k


def tile_count(parts, tile):
    """Tiles of one matrix of the batch."""
    return ceil_div(parts.m, tile.bm) * ceil_div(parts.n, tile.bn)


def tile_seconds(parts, tile, device, busiest, steps):
    """Predicted time of `steps` steps of k where one multiprocessor gets `busiest` tiles; with few steps, what it takes to end them."""
    fixed, alone, each, on_processor = (TILES_F64 if parts.dtype == "float64" else TILES)[tile]
    if device.is_processor:
        return Cost(math=busiest * 2 * tile.bm * tile.bn * steps / (on_processor * 1e9))
    half = parts.dtype in HALVES
    slower = COST.half if half else 1.0  # widening, and a ring of two stages
    math = slower * steps * (alone + each * busiest) * 1e-9 * (COST.clock / device.clock_hz)
    return overlap(Cost(launch=fixed * 1e-6, math=math), waves=busiest * tile.bm * tile.bn * (COST.end_half if half else COST.end))


def matrix_seconds(parts, tile, device, tiles, steps):
    """`tile_seconds` of so many tiles of matrices: the last of an odd number of blocks, of four warps, has a multiprocessor alone, and
    smaller tiles read often what is copied element by element."""
    busiest = ceil_div(tiles, device.sms)
    if device.is_processor:
        return tile_seconds(parts, tile, device, busiest, steps)
    if tile.threads == tile.tm * tile.tn == 128 and busiest % 2:
        busiest += COST.lone
    seconds = tile_seconds(parts, tile, device, busiest, steps)
    most, factor = {"float32": (256, COST.narrow), "float16": (64, COST.narrow_half), "bfloat16": (64, COST.narrow_half)}.get(
        parts.dtype, (0, 1.0))
    narrow = tile.bn < most and any(access(parts, which, 4)[1] == 1 for which in "ab")
    return seconds.slowed(slower=factor) if narrow else seconds


def least_seconds(dtype, elements, steps, device, ranges=1):
    """What no tile's `tile_seconds` is below for so many elements of y and steps of k, in up to so many ranges: all steps of all tiles, or
    those of one."""
    if device.is_processor:
        return 0.0
    elements, steps = elements / device.sms, steps * (COST.half if dtype in HALVES else 1.0) * 1e-9 * (COST.clock / device.clock_hz)
    return min(fixed * 1e-6 + (alone / ranges + each * max(elements / (tile.bm * tile.bn), 1 / ranges)) * steps
               for tile, (fixed, alone, each, _) in (TILES_F64 if dtype == "float64" else TILES).items())


def product_arguments(parts):
    """Kernel parameters m, n, k and the operands' strides, in the units of shared memory's elements."""
    per = 4 if parts.dtype == "int8" else 1
    (sam, sak), (sbk, sbn) = parts.a_strides, parts.b_strides
    sizes = tuple(Argument("int32", v) for v in (parts.m, parts.n, parts.k // per))
    if per > 1:
        sam, sak, sbk, sbn = sam // per, 1, 1, sbn // per
    return sizes + tuple(Argument("int64", v) for v in (sam, sak, sbk, sbn))

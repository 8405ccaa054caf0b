"""Tensor cores of Hopper: TMA feeds shared memory, warpgroups multiply out of it, blocks persist over the tiles of y.

The main loop is `_engine_hopper`'s; this file says which tiles fit a problem, what they cost, and how a tile number becomes a place. Both
operands are read as they lie: 16-bit ones in any transposition, 8-bit ones and tf32 along k only. Results of 16 bits leave through
shared memory and TMA where y allows it, all others straight from registers.

It wins wherever y has enough tiles for the multiprocessors; below that the sum over k has to be divided (`wgmma_split_k`).
"""
import functools
from dataclasses import dataclass

from ..device import cuda, device_function, i32, i64, u32
from ..device.convert import element
from ..device.epilogue import EpilogueSpec
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.tma import tensor_map_address
from ..device.vec import advance, shared_address
from ..dispatch import Algorithm, Note
from ..host.launch import Argument, Launch
from ..host.tensormap import TensorMap
from ._engine_hopper import ITEMSIZE, ROW, Tile, make_matrix_loader, make_product, make_tma_sink
from ._roles import operand_strides, store_width, stored_by_rows
from ._store import make_group_store
from ._tile import BAND, locate as locate_tile

TILES = (*(Tile(128, bn) for bn in range(64, 257, 16)), *(Tile(128, bn, cluster=2) for bn in range(128, 257, 16)),
         *(Tile(256, bn) for bn in (64, 96, 128, 160, 192)), *(Tile(256, bn, cluster=2) for bn in (96, 128)), *(Tile(64, bn) for bn in range(64, 257, 32)),
         *(Tile(64, bn, blocks=2) for bn in (64, 96, 128)))


@dataclass(frozen=True)
class Config:
    """A tile."""
    tile: Tile

    def __str__(self):
        return str(self.tile)


def wgmma_dtype(problem):
    """What the tensor cores call the operands; None where they cannot take them."""
    if problem.a.dtype == "float32":
        return "tf32" if problem.math in ("tf32", "fast") else None
    return problem.a.dtype if problem.a.dtype in ITEMSIZE else None


def major(parts, which):
    """"k", "mn", or None where the operand is contiguous along neither."""
    extent, across, along, _ = operand_strides(parts, which)
    if along == 1 or parts.k == 1:
        return "k"
    return "mn" if across == 1 or extent == 1 else None


def refusal(problem, parts):
    """Why TMA and wgmma cannot take the operands, or None."""
    dtype = wgmma_dtype(problem)
    if dtype is None:
        return f"dtype {problem.a.dtype}" + (" without math='tf32'" if problem.a.dtype == "float32" else "")
    if parts.k == 0:
        return "K=0"
    if len(parts.batch) > 1:
        return f"{len(parts.batch)} batch dimensions that do not merge, one is the most"
    for which, name, tensor in zip("ab", parts.names, (parts.a, parts.b)):
        extent, across, along, batch = operand_strides(parts, which)
        kind = major(parts, which)
        if kind is None:
            return f"{name} is contiguous along neither of its dimensions"
        if kind == "mn" and ITEMSIZE[dtype] != 2:
            return f"{name} is not contiguous along k, which {dtype} must be"
        if tensor.alignment < 16:
            return f"{name} is aligned to {tensor.alignment} bytes, TMA reads from 16"
        leading = across if kind == "k" else along
        for stride, size in ((leading, extent if kind == "k" else parts.k), *((s, n) for s, (n, _) in zip(batch, parts.batch))):
            if size > 1 and stride and (stride * tensor.itemsize % 16 or not 0 < stride * tensor.itemsize < 2 ** 40):
                return f"{name} has a stride of {stride * tensor.itemsize} bytes, TMA takes multiples of 16"
    return None


def supports(problem):
    """Operands that TMA can address."""
    return refusal(problem, stored_by_rows(problem))


def configs(problem, device):
    """The tiles whose boxes the operands allow."""
    parts, found = stored_by_rows(problem), []
    for tile in TILES:
        if major(parts, "b") == "mn" and tile.cluster > 1 and tile.bn // tile.cluster % 64:
            continue
        found.append(Config(tile))
    return found


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """Waves of tiles."""
    parts, tile = stored_by_rows(problem), config.tile
    tiles = ceil_div(parts.m, tile.bm * tile.cluster) * tile.cluster * ceil_div(parts.n, tile.bn) * parts.batch_size
    waves = ceil_div(tiles, device.sms * tile.blocks)
    steps = ceil_div(parts.k * ITEMSIZE[wgmma_dtype(problem)], ROW)
    return 3e-6 + waves * tile.blocks * (steps * tile.bm * tile.bn / 32 + 1000) / device.clock_hz


@functools.cache
def make_direct_sink(spec, vector):
    """Sink of any result: pairs of columns straight from registers, each element checked against the edges."""
    store = make_group_store(spec, 2, vector)

    @device_function
    def sink(acc, first, count, row, column, thread, at, out):
        m, n, e, y, y_row, y_column = out
        lane, warp = i32(thread & 31), i32(thread >> 5)
        r0 = i32(row + warp * 16 + (lane >> 2))
        c0 = i32(column + (lane & 3) * 2)
        for j in range(count):
            c = i32(c0 + j * 8)
            if r0 < m:
                store(acc, first + 4 * j, r0, c, n, y, i64(at + i64(r0) * y_row + i64(c) * y_column), y_column, e)
            if i32(r0 + 8) < m:
                store(acc, first + 4 * j + 2, i32(r0 + 8), c, n, y, i64(at + i64(i32(r0 + 8)) * y_row + i64(c) * y_column), y_column, e)
    return sink


@functools.cache
def make_locate(tile):
    """Device function ``locate(t, rank, place)`` of `_engine_hopper.make_product`: matrix by matrix, in bands of rows of tiles."""
    CLUSTER, BM, BN = tile.cluster, tile.bm, tile.bn

    @device_function
    def locate(t, rank, place):
        per_matrix, band_tiles, super_rows, last_rows, a_batched, b_batched = place
        z, inside = divide_remainder(t, per_matrix)
        r, c = locate_tile(inside, band_tiles, super_rows, last_rows)
        return i32(i32(r * CLUSTER + rank) * BM), i32(c * BN), z, i32(z * a_batched), i32(z * b_batched)
    return locate


@functools.cache
def kernel(tile, loader_key, spec, by_tma, vector):
    """The whole product, one persistent launch."""
    loader = make_matrix_loader(tile, *loader_key)
    locate = make_locate(tile)
    COUNT = tile.bn // 8
    if by_tma:
        inner = make_tma_sink(tile, spec)

        @device_function
        def sink(acc, first, y_map, staging, row, column, z, thread, barrier, out):
            m, n, e, c_batch = out
            alpha, beta, bias, bias_stride, c, c_row, c_column = e
            inner(acc, first, y_map, staging, row, column, z, thread, barrier,
                  (m, n, (alpha, beta, bias, bias_stride, advance(c, i64(i64(z) * c_batch)), c_row, c_column)))
        product = make_product(tile, loader, locate, sink, spec.accumulator)

        @cuda.jit(launch_bounds=(tile.threads, tile.blocks))
        def matmul_wgmma(a, b, y, m, n, steps, tiles, a_batched, b_batched, c_batch, per_matrix, band_tiles, super_rows, last_rows,
                         alpha, beta, bias, bias_stride, c, c_row_stride, c_column_stride):
            shared = cuda.shared.array(0, u32)
            product(tensor_map_address(a), tensor_map_address(b), tensor_map_address(y), shared_address(shared, i32(0)), steps, tiles,
                    (per_matrix, band_tiles, super_rows, last_rows, a_batched, b_batched),
                    (m, n, (alpha, beta, bias, bias_stride, c, c_row_stride, c_column_stride), c_batch))
        return matmul_wgmma
    plain = make_direct_sink(spec, vector)

    @device_function
    def direct(acc, first, y_map, staging, row, column, z, thread, barrier, out):
        m, n, e, c_batch, y, y_row, y_column, y_batch = out
        alpha, beta, bias, bias_stride, c, c_row, c_column = e
        plain(acc, first, COUNT, row, column, thread, i64(i64(z) * y_batch),
              (m, n, (alpha, beta, bias, bias_stride, advance(c, i64(i64(z) * c_batch)), c_row, c_column), y, y_row, y_column))
    product = make_product(tile, loader, locate, direct, spec.accumulator)

    @cuda.jit(launch_bounds=(tile.threads, tile.blocks))
    def matmul_wgmma_direct(a, b, y, y_row, y_column, y_batch, m, n, steps, tiles, a_batched, b_batched, c_batch, per_matrix, band_tiles,
                            super_rows, last_rows, alpha, beta, bias, bias_stride, c, c_row_stride, c_column_stride):
        shared = cuda.shared.array(0, u32)
        at = tensor_map_address(a)
        product(at, tensor_map_address(b), at, shared_address(shared, i32(0)), steps, tiles,
                (per_matrix, band_tiles, super_rows, last_rows, a_batched, b_batched),
                (m, n, (alpha, beta, bias, bias_stride, c, c_row_stride, c_column_stride), c_batch, y, y_row, y_column, y_batch))
    return matmul_wgmma_direct


def operand_map(parts, which, tile, dtype):
    """(whether it has a batch, tensor map) of an operand: batch, then the dimension that is not contiguous, then the other."""
    tensor = parts.a if which == "a" else parts.b
    extent, across, along, batch = operand_strides(parts, which)
    rows, bk = (tile.bm if which == "a" else tile.bn // tile.cluster), ROW // ITEMSIZE[dtype]
    stride = batch[0] if batch else 0
    size = parts.batch_size if stride else 1
    line = 16 // tensor.itemsize  # any stride does for a dimension of one
    if major(parts, which) == "k":
        shape, strides, box = (size, extent, parts.k), (stride or line, across if extent > 1 else line, 1), (1, rows, bk)
    else:
        shape, strides, box = (size, parts.k, extent), (stride or line, along if parts.k > 1 else line, 1), (1, bk, 64)
    return size > 1, TensorMap(tensor.dtype, shape, strides, box, 128)


def build(problem, device, config):
    """One launch of as many blocks as the device holds, or as there are tiles."""
    parts, tile, dtype = stored_by_rows(problem), config.tile, wgmma_dtype(problem)
    itemsize = parts.y.itemsize
    y_batch = parts.batch[0][1][3] if parts.batch else 0
    c_batch = parts.batch[0][1][2] if parts.batch else 0
    by_tma = (itemsize == 2 and tile.bn >= 64 and parts.y_strides[1] == 1 and parts.n % 2 == 0 and parts.y.alignment >= 16
              and (parts.m == 1 or parts.y_strides[0] * 2 % 16 == 0 and parts.y_strides[0] > 0) and y_batch * 2 % 16 == 0 and y_batch >= 0)
    a_batched, a = operand_map(parts, "a", tile, dtype)
    b_batched, b = operand_map(parts, "b", tile, dtype)
    super_rows, tiles_n = ceil_div(parts.m, tile.bm * tile.cluster), ceil_div(parts.n, tile.bn)
    per_matrix = super_rows * tiles_n
    tiles = per_matrix * parts.batch_size
    loader_key = (dtype, dtype, major(parts, "a"), major(parts, "b"))
    vector = not by_tma and store_width(parts, 2) == 2
    common = (Argument("int32", parts.m), Argument("int32", parts.n), Argument("int32", ceil_div(parts.k * ITEMSIZE[dtype], ROW)),
              Argument("int32", tiles), Argument("int32", int(a_batched)), Argument("int32", int(b_batched)), Argument("int64", c_batch),
              Argument("uint32x3", divisor(per_matrix)), Argument("uint32x3", divisor(BAND * tiles_n)), Argument("int32", super_rows),
              Argument("uint32x3", divisor(super_rows % BAND or BAND)), *parts.epilogue_arguments())
    maps = (Argument("tensormap", parts.names[0], spec=a), Argument("tensormap", parts.names[1], spec=b))
    if by_tma:
        y = TensorMap(parts.y.dtype, (parts.batch_size, parts.m, parts.n), (y_batch or 8, parts.y_strides[0] if parts.m > 1 else 8, 1),
                      (1, 64, 64), 128)
        target = (Argument("tensormap", "y", spec=y),)
    else:
        target = (Argument(element(parts.y.dtype).pointer, "y"), *(Argument("int64", s) for s in (*parts.y_strides, y_batch)))
    blocks = min(tiles, device.sms * tile.blocks // tile.cluster) * tile.cluster
    return (Launch(kernel(tile, loader_key, parts.epilogue, bool(by_tma), vector), (blocks, 1, 1), (tile.threads, 1, 1),
                   maps + target + common, shared=tile.shared, cluster=(tile.cluster, 1, 1), dependent=True),)


ALGORITHM = Algorithm(op="matmul", name="wgmma", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs,
                      notes=Note.TENSOR_CORE, arch="sm_90a")

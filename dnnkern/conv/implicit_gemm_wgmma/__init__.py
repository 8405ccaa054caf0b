"""Implicit GEMM on Hopper's tensor cores (wgmma): convolution and backward data as one matrix product, without an im2col matrix.

    rows: output pixels     columns: output channels     k: taps, and of each 128 bytes of channels per step

    image  --TMA, im2col mode: pixels shifted by the tap--> ring of stages --+
    filter --TMA, boxes---------------------------------> in shared memory --+--wgmma--> accumulators --epilogue--> TMA or 16-byte stores

The main loop is matmul's (`engine.hopper`). The left operand of a step is one copy: TMA walks over the pixels of the image in im2col mode,
shifted by the tap's offset, with zeros in the padding. Channels that do not fill a step or a box of columns are zeros from TMA.

Backward data is the same walk over dy with the taps in the opposite order. With a stride there is one walk for each residue class, the
pixels of dx whose coordinates have the same remainders modulo the stride, all in one launch (`maps`). The filter is read in its own layout,
contiguous along columns, which tensor cores do for 16-bit types; tf32 needs a copy.

An image that a program makes passes from shared memory through registers (`made`).

Arrays that TMA cannot address, such as channels first, are transposed to the workspace by an earlier launch; outputs may have arbitrary
strides. It wins wherever channels fill a step and pixels fill the multiprocessors; it loses to `halo_wgmma` with few filters and to
`small_c` with few channels.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, device_function, jit, u32
from ...device.convert import element
from ...device.epilogue import ProgramParams
from ...device.index import ceil_div, divisor
from ...device.scheduler import in_bands, in_rows
from ...device.tma import tensor_map_address
from ...device.vec import shared_address
from ...dispatch import Algorithm, Note
from ...engine.constants import constants
from ...engine.cost import Cost, overlap
from ...engine.hopper import ROW, Tile, make_product, promoted_fits
from ...engine.hopper_addend import fits_ring, make_addend_stages
from ...engine.hopper_made import DEPTH, fits_made, made_step, make_made_rows, paired
from ...engine.hopper_columns import columns_ahead, make_columns_ahead, paired_columns
from ...engine.hopper_plan import (TILES, addend_argument, most_sums, rows_for_tma, slots_of, store_argument, tiles_for, waves_of,
                                   wgmma_dtype)
from ...engine.hopper_stores import staged_addend
from ...engine.moves import transpose_launches, transpose_seconds
from ...engine.programs import NOTHING, Steps, numbered_operands, operand_names, operands_argument
from ...engine.scales import FP8
from ...engine.tile_states import (WARP_ROWS, blocks_of, keeping, kept_numbers, states_argument, states_bytes, states_refusal,
                                   states_seconds, stored_first_refusal, with_finish)
from ...host.launch import Argument, Launch
from ...host.memo import remembered
from ...host.tensor import Tensor
from .._prologue import making_of_image, prologue_refusal
from .._states import states_of
from .._taps import skipped_bytes
from .kernel import (OutputPixels, Specialisation, TileDivisors, Walk, WalkAxis, make_epilogue_params, make_kept, make_loader, make_locate,
                     make_sink)
from .made import make_pixel_rows
from .maps import Axis, Image, make_filter, make_image, walk_of, walk_refusal

COST, WGMMA = constants("conv/implicit_wgmma"), constants("engine/hopper")

FURTHER_TILES = {Tile(192, 64): (2.0, 0.3, 0.36), Tile(192, 128): (3.2, 0.6, 0.49), Tile(256, 64): (2.6, 0.6, 0.60)}
"""Tiles only for convolutions, as in `TILES`; predicted from the bytes that pass through shared memory."""

STEPS = {Tile(64, 128): 0.250, Tile(64, 192): 0.420, Tile(64, 128, blocks=2): 0.500, Tile(128, 128): 0.370,
         Tile(128, 128, cluster=2): 0.405, Tile(128, 128, ping_pong=True): 0.368, Tile(128, 192): 0.550, Tile(128, 256): 0.675,
         Tile(128, 256, cluster=2): 0.690, Tile(192, 128): 0.550, Tile(256, 128): 0.720, Tile(256, 128, cluster=2): 0.725}
"""Microseconds of a step of such tiles where the left operand are pixels: VGG's and U-Net's layers on an H200, ResNet's on an H100
(h100-record.jsonl.gz)."""

NOWHERE = Axis(*(1,) * 3, 0, 1, 1, 0, 1, 0, 0, 0, 1, 1, 1, 0, False)  # a missing dimension
GROUPS = {"conv_fwd": "outer", "conv_bwd_data": "inner"}              # the dimension of the filter along which groups follow each other


@dataclass(frozen=True)
class Config:
    """A tile."""
    tile: Tile

    def __str__(self):
        return str(self.tile)


@dataclass(frozen=True)
class Parts:
    """A problem as the kernel sees it: axes of the walk, operands, columns of a group, channels of a group per tap."""
    axes: tuple
    image: Image
    filter: object
    columns: int
    channels: int
    pixels: int  # of a residue class

    @property
    def classes(self):
        count = 1
        for a in self.axes:
            count *= a.pitch
        return count

    @property
    def filter_offset(self):
        """Bytes from the workspace to the filter's copy."""
        return self.image.bytes


@remembered
def parts_of(problem):
    """`Parts` of a problem."""
    forward, axes = problem.op == "conv_fwd", walk_of(problem)
    pixels = problem.n
    for a in axes:
        pixels *= a.count
    channels, columns = (problem.c_group, problem.k_group) if forward else (problem.k_group, problem.c_group)
    return Parts(axes, make_image(problem, axes, "x" if forward else "y"), make_filter(problem, axes), columns, channels, pixels)


def supports(problem):
    """Types that the tensor cores support, windows that TMA can walk, groups of whole steps."""
    image, forward = (problem.x if problem.op == "conv_fwd" else problem.y), problem.op == "conv_fwd"
    if wgmma_dtype(problem.dtype, problem.math) is None:
        return f"dtype {problem.dtype}" + (" without math='tf32'" if problem.dtype == "float32" else "")
    reason = prologue_refusal(problem)
    if reason:
        return reason
    channels = problem.c_group if forward else problem.k_group
    if channels == 0:
        return "no channels: there is nothing to multiply"
    if problem.groups > 1 and channels * image.itemsize % ROW:
        return f"groups of {channels} channels of {image.itemsize} bytes; steps of {ROW} bytes would reach into the next group's"
    if problem.output.size == 0 or image.size == 0:
        return "arrays without elements"
    parts = parts_of(problem)
    reason = walk_refusal(parts.axes)
    if reason:
        return reason
    reason = _program_refusal(problem, parts)
    if reason:
        return reason
    tiles = ceil_div(parts.pixels, 64) * ceil_div(parts.columns, 64) * problem.groups * parts.classes
    if max(tiles, parts.pixels + 512, problem.c + 512, problem.k + 512) >= 2 ** 31:
        return f"{parts.pixels} pixels in each of {parts.classes} classes; the limit is 2**31 pixels and as many tiles of 64 x 64"
    return None


def configs(problem, device):
    """Every tile that supports the filter's layout, with whole boxes of results: the last box would overlap the one before.

    Two groups of 64 rows and 128 columns leave too few registers for an epilogue that reads other arrays.
    """
    found, program = tiles_for(parts_of(problem).filter.major, problem.dtype, problem.program), problem.program
    sums = most_sums(program)
    found += [t for t in FURTHER_TILES if (problem.dtype not in FP8 or promoted_fits(t)) and t.sums <= sums]
    reads = problem.beta or problem.residual or program and (
        len(program.operands) > 1 or any(access not in ("column", "value") for _, access in program.operands))
    most = 64 if reads else 128
    if (making := making_of_image(problem)) is not None:
        found = [t for t in found if fits_made(t, making, kept_numbers(_states(problem, device, t), t.bn))]
    itemsize = problem.output.itemsize if _store_of(problem) == "tma" else max(problem.output.itemsize, 2)
    return [Config(t) for t in found if t.bn * itemsize % ROW == 0 and (t.groups == 1 or t.sums <= most)]


def workspace(problem, device, config):
    """Copies of operands that TMA cannot address; partial reductions."""
    parts = parts_of(problem)
    return _copied(parts) + states_bytes(_states(problem, device, config.tile), WARP_ROWS, config.tile.bn)


def _states(problem, device, tile):
    """The `PixelStates`, of which blocks of a tile may keep states."""
    return keeping(states_of(problem), tile, slots_of(tile, device))


def estimate(problem, device, config):
    """Waves of tiles, the tensor cores' time or the memory's; the copies; half of the stores' rate straight from registers."""
    parts, tile = parts_of(problem), config.tile
    steps = _steps(problem)
    tiles = _tiles(parts, tile, problem.groups)[0] * tile.cluster
    alone = Tile(tile.bm, tile.bn) if tile.blocks > 1 and tiles <= device.sms else tile
    fixed, further, step = (FURTHER_TILES.get(alone) or TILES[alone])
    step = STEPS.get(alone, step)
    slots = device.sms * alone.blocks
    waves = waves_of(tiles, slots)
    step *= WGMMA.fp8 if problem.dtype in FP8 else 1.0  # the second stage of sums
    pixels = COST.rows + tile.bm * ROW / COST.l2 * (COST.deeper if problem.filter[0] > 1 else 1.0)
    step = max(step, alone.blocks * pixels)
    step = max(step, _crossing_step(parts, alone, min(tiles, slots)))
    if parts.channels * parts.filter.tensor.itemsize < ROW:
        step *= COST.partly
    if problem.prologue_a is not None:
        step = made_step(problem.prologue_a.program, alone, step, pixels=True)
    work = ((waves - 1) * further + waves * steps * step) * 1e-6 * (WGMMA.clock / device.clock_hz)
    _, _, _, _, across = _tiles(parts, tile, problem.groups)
    covered = across * tile.bn / parts.columns if across > 1 else 1.0  # times the channels of the result, as in `product_seconds`
    skipped, image = skipped_bytes(problem), parts.image.tensor.nbytes
    moved = (problem.bytes - skipped + WGMMA.again * (across - 1) * (image - skipped)) * (0.5 + 0.5 * covered)
    memory = moved / (WGMMA.bandwidth * device.bandwidth)
    if _store_of(problem) in ("direct", "matrix"):
        memory += problem.output.nbytes / device.bandwidth
    if tile.ping_pong and (problem.residual or problem.beta):
        memory *= COST.turns
    copies = sum(_copy_seconds(array, device) for array in (parts.image, parts.filter) if array.packed)
    states = states_bytes(_states(problem, device, tile), WARP_ROWS, tile.bn)
    finish = states_seconds(states, device)
    return (finish + Cost(pack=float(copies), launch=fixed * 1e-6 + (alone is not tile) * WGMMA.smaller)
            + overlap(exposed=WGMMA.exposed, math=work, memory=memory))


def _crossing_step(parts, tile, tiles):
    """Microseconds of a step of so many tiles at once where rows begin anywhere in the lines of the L2, which are two for each then, see
    `crossing_step`; 0 where none does."""
    image, filter = parts.image.crosses, parts.filter.crosses
    lines = tile.bm * (1 + image) + tile.bn / tile.cluster * (1 + filter) if image or filter else 0
    return 1e6 * ROW * lines / 2 * tiles / WGMMA.crossing


@remembered
def _steps(problem):
    """Of the main loop, on average over all residue classes."""
    parts, classes = parts_of(problem), [1]
    for axis in parts.axes:
        classes = [taps * axis.class_of(number)[1] for taps in classes for number in range(axis.pitch)]
    return sum(max(1, taps * _steps_per_tap(parts)) for taps in classes) / len(classes)


def _copy(array):
    """(the array, its copy, the order of dimensions), as `transform` takes them."""
    dtype = array.tensor.dtype
    return (Tensor(array.shape, array.strides, dtype, array.tensor.alignment), Tensor(array.shape, array.read_strides, dtype),
            tuple(range(len(array.shape))))


@functools.lru_cache(maxsize=256)
def _copy_seconds(array, device):
    return transpose_seconds(*_copy(array), device)


def _copied(parts):
    """Bytes of the workspace that copies take, a multiple of 16."""
    return ceil_div(parts.image.bytes + parts.filter.bytes, 16) * 16


def _steps_per_tap(parts):
    return ceil_div(parts.channels * parts.filter.tensor.itemsize, ROW)


def _tiles(parts, tile, groups):
    """(all tiles, tiles of a residue class, of a group in a class, rows of tiles, columns of tiles); a cluster counts as one."""
    rows, columns = ceil_div(parts.pixels, tile.bm * tile.cluster), ceil_div(parts.columns, tile.bn)
    return rows * columns * groups * parts.classes, rows * columns * groups, rows * columns, rows, columns


def _row_stride(problem, parts, strides):
    """Elements from one row of the product to the next in an array of the result's shape; None where rows are not evenly spaced."""
    if parts.classes > 1:
        return None
    n, _, *spatial = strides
    extents = (problem.n, *(a.out for a in parts.axes))
    dims = [(size, stride) for size, stride in zip(extents, (n, *spatial[3 - len(parts.axes):])) if size > 1]
    if any(outer[1] != inner[0] * inner[1] for outer, inner in zip(dims, dims[1:])):
        return None
    return dims[-1][1] if dims else 16 // problem.output.itemsize


@remembered
def _store_of(problem):
    """How results are stored, see `kernel`."""
    parts = parts_of(problem)
    y, strides = problem.output, problem.output_strides
    row = _row_stride(problem, parts, strides)
    same = problem.residual is None or problem.residual_strides == strides
    wide = ROW if parts.columns > 64 else 0  # of 8 bits whole boxes have 128 columns
    if row is not None and rows_for_tma(y, (row, strides[1]), parts.pixels, parts.columns, wide) and (
            problem.residual is None or _row_stride(problem, parts, problem.residual_strides) is not None):
        return "tma"
    if row is not None and problem.program is not None:
        return "matrix"
    per, sizes = 16 // y.itemsize, (problem.n, *(problem.out if problem.op == "conv_fwd" else problem.image))
    apart = [s for size, s in zip(sizes, (strides[0], *strides[2:])) if size > 1]
    if (y.itemsize in (2, 4) and strides[1] == 1 and y.alignment % 16 == 0 and parts.columns % per == 0 and same
            and not any(s % per for s in apart)
            and not (problem.beta and any(a.out % a.pitch for a in parts.axes))):  # missing rows would read what other blocks write
        return "rows"
    return "direct"


def _operands(problem, parts):
    """What epilogues read beside the accumulators, as `staged_addend` and `paired_columns` take it."""
    def strides(s):
        return _row_stride(problem, parts, s), s[1], *(parts.columns * s[1],) * (problem.groups > 1)
    bias = (0, problem.bias_stride, *(parts.columns * problem.bias_stride,) * (problem.groups > 1))
    return {"c": (problem.output, strides(problem.output_strides)), "residual": (problem.residual, strides(problem.residual_strides)),
            "bias": (problem.bias, bias), **numbered_operands(problem, _operand_steps(problem, parts))}


@functools.cache
def kernel(special):
    """All residue classes and groups, one persistent launch."""
    tile, BY_RING = special.tile, special.by_ring
    corner = device_function(lambda tile: (tile.row, tile.column, tile.group))
    loader = make_loader(special)
    if special.made is not None:
        return _made_kernel(special, loader)
    product = make_product(tile, loader, make_locate(special), make_sink(special), special.epilogue.accumulator,
                           addend=make_addend_stages(tile, corner) if special.by_ring else None,
                           ahead=make_columns_ahead(tile, special.epilogue, special.pairs, make_epilogue_params(special))
                           if special.ahead else None, keeps=make_kept(special),
                           cooperative=tile.cluster > 1)  # its lanes end together: one alone could not use the warp's registers

    @jit(launch_bounds=(tile.threads, tile.blocks))
    def conv_implicit_gemm_wgmma(image, filter, y_map, addend_map, tiles, tile_divisors, walk, y, y_column, y_group, bias_group,
                                 residual_group, m, n, pitch, extent, strides, residual_strides, alpha, beta, bias, bias_stride, prior,
                                 prior_row, prior_column, residual, residual_row, residual_column, extras, states):
        shared = cuda.shared.array(0, u32)
        pixels = OutputPixels(m, walk, pitch, extent, strides, residual_strides)
        e = ProgramParams(alpha, beta, bias, bias_stride, prior, prior_row, prior_column, residual, residual_row, residual_column, extras)
        product(tensor_map_address(image), tensor_map_address(filter), tensor_map_address(y_map), shared_address(shared, 0), tiles,
                (tile_divisors, walk), (n, y, y_column, y_group, bias_group, residual_group, pixels, e, states),
                tensor_map_address(addend_map if BY_RING else y_map))
    return conv_implicit_gemm_wgmma


def _made_kernel(special, loader):
    """The same with an image that is made."""
    tile = special.tile
    rows = make_made_rows(tile, loader, make_pixel_rows(loader, tile.groups, special.dims), special.made, special.made_pairs,
                          special.made_edge)
    product = make_product(tile, loader._replace(bytes=loader.bytes - tile.bm * (ROW - rows.pitch)), make_locate(special),
                           make_sink(special), special.epilogue.accumulator, cooperative=tile.cluster > 1, made=rows,
                           keeps=make_kept(special))

    @jit(launch_bounds=(tile.threads, tile.blocks))
    def conv_implicit_gemm_wgmma_prologue(image, filter, y_map, tiles, tile_divisors, walk, y, y_column, y_group, bias_group,
                                          residual_group, m, n, pitch, extent, strides, residual_strides, alpha, beta, bias, bias_stride,
                                          prior, prior_row, prior_column, residual, residual_row, residual_column, extras, states,
                                          operands, image_extent):
        shared = cuda.shared.array(0, u32)
        pixels = OutputPixels(m, walk, pitch, extent, strides, residual_strides)
        e = ProgramParams(alpha, beta, bias, bias_stride, prior, prior_row, prior_column, residual, residual_row, residual_column, extras)
        y_map = tensor_map_address(y_map)
        product(tensor_map_address(image), tensor_map_address(filter), y_map, shared_address(shared, 0), tiles, (tile_divisors, walk),
                (n, y, y_column, y_group, bias_group, residual_group, pixels, e, states), y_map, (operands, walk, image_extent))
    return conv_implicit_gemm_wgmma_prologue


def _walk_axis(axis):
    shift = ceil_div(axis.padding, axis.pitch)
    return WalkAxis(axis.lower, axis.step, axis.taps, axis.first_tap, axis.tap_step, axis.first_offset, axis.offset_step, axis.filter,
                    axis.dilation, shift * axis.pitch - axis.padding, shift - axis.lower, int(axis.flip))


def _arguments(problem, parts, tile, store, states):
    """The kernel's parameters after the maps."""
    tiles, per_class, per_group, rows, columns = _tiles(parts, tile, problem.groups)
    image, out = parts.image, problem.output
    axes = (*reversed(parts.axes), *(NOWHERE,) * (3 - len(parts.axes)))
    channels_end = ceil_div(image.channels * image.tensor.itemsize, ROW) * (ROW // image.tensor.itemsize)
    offset = "int64" if problem.is_wide else "int32"

    def innermost_first(strides):
        return Argument(offset + "x4", (*reversed(strides[2:]), strides[0]))

    def along_axes(strides):
        """Those of missing dimensions last."""
        kept = strides[5 - len(parts.axes):]
        return (strides[0], strides[1], *(0,) * (3 - len(kept)), *kept)

    strides, residual = along_axes(problem.output_strides), along_axes(problem.residual_strides)
    if store in ("tma", "matrix"):
        stride, other = (_row_stride(problem, parts, s) for s in (problem.output_strides, problem.residual_strides))
    else:
        stride, other = 1, 1
    other = 0 if problem.residual is None else other
    divisors = TileDivisors(divisor(per_class), divisor(per_group), *(in_rows if states.row_tiles else in_bands)(rows, columns))
    walk = Walk(parts.channels, parts.columns, channels_end, _steps_per_tap(parts), *map(_walk_axis, axes),
                *(divisor(a.count) for a in axes), *(divisor(d) for a in axes for d in (a.pitch, a.period)))
    return (Argument("int32", tiles), Argument(TileDivisors, divisors), Argument(Walk, walk),
            Argument(element(out.dtype).pointer, problem.output_name), Argument("int64", strides[1]),
            Argument("int64", parts.columns * strides[1]), Argument("int64", parts.columns * problem.bias_stride),
            Argument("int64", parts.columns * residual[1]), Argument("int32", parts.pixels), Argument("int32", parts.columns),
            Argument("int32x3", tuple(a.pitch for a in axes)), Argument("int32x3", tuple(a.out for a in axes)), innermost_first(strides),
            innermost_first(residual), *problem.epilogue_arguments((stride, strides[1]), (other, residual[1])),
            operands_argument(problem.epilogue, _operand_steps(problem, parts), parts.pixels, parts.columns, 1),
            states_argument(states, WARP_ROWS, tile.bn, _copied(parts)))


def _operand_steps(problem, parts):
    """The `Steps` of each operand of the program; the row's is None where pixels are not evenly spaced in it."""
    return [Steps(_row_stride(problem, parts, s), s[1], (parts.columns * s[1],)) for s in problem.extra_strides]


def _program_refusal(problem, parts):
    """Why a program's operands cannot be read and stored by rows that are pixels, or None."""
    if problem.program is None:
        return None
    if _store_of(problem) not in ("tma", "matrix"):
        return f"runs no program where {problem.output_name} is not stored by rows of pixels: {problem.output}"
    for name, (_, access), steps in zip(operand_names(problem.program), problem.program.operands, _operand_steps(problem, parts)):
        if steps.row is None:
            return f"the pixels of {name}, an operand of the program, are not evenly spaced"
    return stored_first_refusal(problem) or states_refusal(states_of(problem), WARP_ROWS, 32)


def build(problem, device, config):
    """Copies of operands where TMA needs them, then one persistent launch."""
    parts, tile = parts_of(problem), config.tile
    image, w, out = parts.image, parts.filter, problem.output
    store = _store_of(problem)
    launches = []
    for array, offset in ((image, 0), (w, parts.filter_offset)):
        if array.packed:
            launches += transpose_launches(*_copy(array), device, (array.name, 0), ("workspace", offset))
    rows = sum(out.itemsize * s % (2 * out.itemsize) for s in (problem.output_strides[0], *problem.output_strides[2:])) == 0
    pair = problem.output_strides[1] == 1 and parts.columns % 2 == 0 and rows and out.alignment % (2 * out.itemsize) == 0
    dtype, w_dtype = (wgmma_dtype(t, problem.math) for t in (problem.dtype, w.tensor.dtype))
    making = making_of_image(problem)
    image_map = image.argument(parts.axes, tile.bm, 0, making and DEPTH)
    y_map, addend, staged, pairs, by_ring = image_map, NOTHING, None, (), False
    if store == "tma":
        per = 16 // out.itemsize
        shape = (problem.groups, parts.pixels, parts.columns)
        row = _row_stride(problem, parts, problem.output_strides)
        y_map = store_argument(problem.output_name, out.dtype, shape,
                               (parts.columns if problem.groups > 1 else per, row if parts.pixels > 1 else per, 1))
        operands = _operands(problem, parts)
        staged, pairs = staged_addend(problem.epilogue, operands), paired_columns(problem.epilogue, operands)
        by_ring = staged is not None and making is None and fits_ring(tile, *operands[staged])
        if by_ring:
            addend = addend_argument({"c": problem.output_name}, staged, operands, shape)
    states = _states(problem, device, tile)
    special = Specialisation(tile, dtype, w_dtype, w.major, len(parts.axes), parts.classes > 1,
                             GROUPS[problem.op] if problem.groups > 1 else None, problem.epilogue, store,
                             store in ("direct", "matrix") and pair, staged, pairs, by_ring,
                             making is None and columns_ahead(tile, problem.epilogue, pairs), states.row_tiles > 0,
                             *((making.made, paired(making) if parts.channels % 2 == 0 else (), parts.channels % DEPTH != 0) if making
                               else ()))
    blocks = blocks_of(states, tile, _tiles(parts, tile, problem.groups)[0], slots_of(tile, device))
    arguments = (image_map, w.argument(tile.bn // tile.cluster, parts.filter_offset), y_map, *((addend,) if making is None else ()),
                 *_arguments(problem, parts, tile, store, states))
    if making is not None:
        extents = (*reversed(image.pixels), *(1,) * (3 - len(image.pixels)))
        arguments += making.argument(0), Argument("int32x3", extents)
    product = Launch(kernel(special), (blocks, 1, 1), (tile.threads, 1, 1), arguments, shared=tile.shared, cluster=(tile.cluster, 1, 1),
                     dependent=True)
    return with_finish((*launches, product), states, WARP_ROWS, tile.bn, True, _copied(parts))


ALGORITHMS = tuple(Algorithm(op=op, name="implicit_gemm_wgmma", supports=supports, workspace=workspace, estimate=estimate, build=build,
                             configs=configs, notes=Note.TENSOR_CORE, programs=True, prologues=op == "conv_fwd", reductions=True,
                             arch="sm_90a")
                   for op in ("conv_fwd", "conv_bwd_data"))

"""Convolutions with few filters on Hopper's tensor cores: pixels are loaded once for all taps.

`implicit_gemm_wgmma` loads a pixel from the L2 for every tap that reads it, nine times for 3x3. With 64 filters there are too few products
for that: a step of 256 pixels and 64 channels takes 0.58 us, three quarters more than its products, limited by the L2. Here a tile of the
image is loaded once with its halo, and the filters stay in shared memory (`kernel`).

Backward data is the same with dy as the image, taps in the opposite order, and the filter in its own layout. For 16-bit types, channels
last, stride 1, and filters that leave room for tiles: with 64 output channels, 3x3 taps of 128 input channels; with 32, twice as many, or
3x3x3 taps of 64. More output channels are divided among blocks. So are groups of up to 64 channels, whole blocks of 64 (`kernel`).
"""
import math
from dataclasses import dataclass, replace

from ...device.index import Divisor, ceil_div, divisor
from ...dispatch import Algorithm, Note

from ...engine.constants import constants
from ...engine.cost import Cost, overlap
from ...engine.functions import steps_instructions
from ...engine.hopper_columns import paired_columns
from ...engine.hopper_stores import staged_addend, stores_aside
from ...engine.programs import NOTHING, Steps, numbered_operands, operand_names, operands_argument
from ...engine.tile_states import states_argument, states_bytes, states_refusal, states_seconds, with_finish
from ...host.launch import Argument, Launch
from ...host.memo import remembered
from ...host.tensormap import TensorMap
from .._prologue import making_of_image, prologue_refusal
from .._states import states_of
from .._taps import roles
from .kernel import CHANNELS, WIDE, Body, GroupFilters, Source, Tiles, halo_kernel

COST, WGMMA = constants("conv/halo"), constants("engine/hopper")

SHAPES = (16, 3, 2), (8, 4, 2), (16, 4, 1), (8, 3, 2), (16, 2, 2), (16, 3, 1), (8, 2, 2), (16, 2, 1), (8, 4, 1), (8, 2, 1), (8, 1, 1)

MOST = 4           # configurations
MOST_SHARED = 232448


@dataclass(frozen=True)
class Config:
    """Columns and lines of a tile, consumer warpgroups, stages of each."""
    columns: int
    lines: int
    consumers: int
    stages: int

    def __str__(self):
        return f"{self.columns} columns {self.lines} lines x{self.consumers} s{self.stages}"


def _channels(p):
    """Channels that are summed over, of all groups of a block, and those of the result."""
    source, result = (p.c, p.k) if p.op == "conv_fwd" else (p.k, p.c)
    return (CHANNELS if p.groups > 1 else source), result


@remembered
def _body(p, config):
    total = _channels(p)[0]
    body = Body(p.dtype, p.filter, p.dilations, ceil_div(total, CHANNELS), min(4, ceil_div(total, 16)), config.columns, config.lines,
                config.consumers, config.stages, (p.op == "conv_bwd_data") != bool(p.flip), "k" if p.op == "conv_fwd" else "mn", p.epilogue,
                *_given(p), **_made(p), group=p.c_group if p.groups > 1 else 0)
    with_boxes = replace(body, by_ring=True)
    fits = body.staged is not None and _pixels_apart(_addend(p, body.staged)[2], (p.n, *roles(p)[-1])) > 0
    return with_boxes if fits and with_boxes.shared <= MOST_SHARED else body


def _made(p):
    """The fields of `Body` that say what the image is made of."""
    making = making_of_image(p)
    if making is None:
        return {}
    from ...engine.hopper_made import paired  # programs are imported where there is one
    return {"made": making.made, "made_pairs": paired(making)}


@remembered
def _given(p):
    """`staged_addend` and `paired_columns` of the epilogue."""
    residual = p.residual and (_pixels_apart(p.residual_strides, (p.n, *roles(p)[-1])), p.residual_strides[1])
    operands = {"residual": (p.residual, residual), "bias": (p.bias, (0, p.bias_stride)), **numbered_operands(p, _operand_steps(p))}
    return staged_addend(p.epilogue, operands), paired_columns(p.epilogue, operands)


def _addend(p, staged):
    """(name, tensor, strides) of the array that is staged."""
    if staged == "residual":
        return staged, p.residual, p.residual_strides
    return operand_names(p.program)[staged], p.extras[staged], p.extra_strides[staged]


def _pixels_apart(strides, sizes):
    """Elements from one pixel to the next where all pixels of all images are evenly spaced, or None."""
    n, _, d, h, w = strides
    dims = [(size, stride) for size, stride in zip(sizes, (n, d, h, w)) if size > 1]
    if any(outer[1] != inner[0] * inner[1] for outer, inner in zip(dims, dims[1:])):
        return None
    return dims[-1][1] if dims else 8


def _map_refusal(name, tensor, strides, sizes):
    """Why TMA cannot address an array of these outer extents, channels contiguous, or None."""
    n, c, *spatial = strides
    apart = [s for size, s in zip(sizes, (n, *spatial)) if size > 1]
    if c != 1 or tensor.alignment % 16 or any(s < 0 or s * tensor.itemsize % 16 for s in apart):
        return f"{name}: channels have to be contiguous and pixels aligned to 16 bytes; strides {strides}, address {tensor.alignment}"
    return None


def supports(problem):
    """16-bit types, channels last, stride 1, one group or small ones, filters that fit into shared memory."""
    p = problem
    if p.dtype not in ("float16", "bfloat16") or p.w.dtype != p.dtype or p.output.dtype not in ("float16", "bfloat16"):
        return f"{p.dtype}, filter {p.w.dtype}, result {p.output.dtype}; expected 16-bit floats"
    reason = prologue_refusal(p) or p.x.itemsize != 2 and f"an image of {p.x.dtype}, which is made of 16 bits in place"
    if reason:
        return reason
    if p.strides != (1, 1, 1):
        return f"stride {p.stride}; expected 1"
    if p.groups > 1 and (reason := _groups_refusal(p)):
        return reason
    if p.taps == 1:
        return "a filter of one tap: no pixel is read twice, and blocks of 64 channels would each read all; see implicit_gemm_wgmma"
    total, columns = _channels(p)
    if not (p.x.size and p.w.size and p.y.size):
        return "an operand is empty"
    if columns % 8 or total % 8:
        return f"{columns} output channels, {total} input channels; expected multiples of 8"
    if p.beta:
        return "beta: the part of a tile outside the output would read what other blocks write"
    source, source_strides, sizes, result, result_strides, result_sizes = roles(p)
    reason = (_map_refusal("the image", source, source_strides, (p.n, *sizes))
              or _map_refusal("the result", result, result_strides, (p.n, *result_sizes))
              or p.groups == 1 and _map_refusal("w", p.w, p.w_strides, (p.k, *p.filter)))
    if reason:
        return reason
    pixels = p.n, *result_sizes
    if p.residual and (p.residual_strides[1] != 1 or _pixels_apart(p.residual_strides, pixels) is None):
        return f"the residual's pixels are not evenly spaced: strides {p.residual_strides}"
    names = operand_names(p.program)[:len(p.program.operands)] if p.program is not None else ()
    uneven = next((name for name, steps in zip(names, _operand_steps(p)) if steps.row is None), None)
    if uneven:
        return f"the pixels of {uneven}, an operand of the program, are not evenly spaced"
    if math.prod(pixels) >= 2 ** 31 - 2 ** 16 or columns >= 2 ** 20:
        return f"{math.prod(pixels)} pixels, {columns} channels; the limits are 2**31 pixels and 2**20 channels"
    try:
        if not _fitting(p, MOST_SHARED):
            return f"filters of {'x'.join(map(str, p.filter))} taps and {total} channels leave no room for a tile in shared memory"
    except ValueError as error:
        return str(error)
    return states_refusal(states_of(p, 1), 64, 32)


def _groups_refusal(p):
    """Why groups cannot be blocks of one matrix, or None."""
    if p.c_group != p.k_group or p.c_group not in (2, 4, 8, 16, 32, 64) or p.c % CHANNELS:
        return (f"{p.groups} groups of {p.c_group} channels and {p.k_group} filters; expected equal ones of 2, 4, 8, 16, 32 or 64, and "
                f"whole blocks of {CHANNELS} channels")
    if p.prologue_a is not None or p.reductions:
        return f"{p.groups} groups beside an image that a program makes, or reductions"
    k, c, t, r, s = p.w_strides
    _, high, wide = p.filter
    if c != 1 or k % 2 or s % 2 or p.w.alignment % 4 or p.filter[0] > 1 and t != high * wide * s or high > 1 and r != wide * s:
        return f"pairs of channels, or evenly spaced taps, are not where filters of groups have them: strides {p.w_strides}"
    if p.k * abs(k) >= 2 ** 31:
        return f"{p.k} filters {k} elements apart; the limit is 2**31"
    return None


def _states(p, config, device):
    """`PixelStates` of which each block has a part."""
    return states_of(p, _blocks(p, config, device)[0])


def _operand_steps(p):
    """The `Steps` of each operand of the program; the row's is None where pixels are not evenly spaced in it."""
    return [Steps(_pixels_apart(s, (p.n, *roles(p)[-1])), s[1]) for s in p.extra_strides]


def _fitting(p, most):
    total, columns = _channels(p)
    steps = ceil_div(total, CHANNELS) * p.filter[0]
    widths = (64,) if p.groups > 1 else (64, 32)
    found = [Config(width, *shape) for width in widths if width == 32 or columns > 32 for shape in SHAPES]
    if stores_aside(p.epilogue) and p.program.inputs:  # of more the addresses of a program's matrices are spilled
        found = [c for c in found if c.lines == 8 and c.consumers <= 3]
    return [c for c in found if c.stages >= min(steps, 2) and _body(p, c).shared <= most]


def configs(problem, device):
    """Those that fit, by their estimate."""
    found = _fitting(problem, device.shared_per_block)
    return sorted(found, key=lambda c: estimate(problem, device, c))[:MOST]


def workspace(problem, device, config):
    """Partial reductions, of each warp."""
    return states_bytes(_states(problem, config, device), 64, config.columns)


def _tiles(p, config):
    """(tiles of all planes, of a plane, across a plane)."""
    _, _, _, _, _, (deep, high, wide) = roles(p)
    across = ceil_div(wide, WIDE)
    plane = ceil_div(high, config.lines) * across
    return plane * deep * p.n, plane, across


def _blocks(p, config, device):
    """(blocks per `columns` output channels, parts of the output channels)."""
    parts = ceil_div(_channels(p)[1], config.columns)
    return min(_tiles(p, config)[0], max(1, device.sms // parts)), parts


def estimate(problem, device, config):
    """Products of 64 rows as fast as the left one's rows come out of shared memory, and what a tile's pixels and results wait for."""
    p, body = problem, _body(problem, config)
    blocks, parts = _blocks(p, config, device)
    tiles = ceil_div(_tiles(p, config)[0], blocks) * ceil_div(blocks * parts, device.sms)
    boxes = p.filter[0] * body.blocks
    products = COST.product * config.lines // 8 * p.taps * body.blocks * body.steps + COST.results * config.lines * config.columns / 64
    products *= COST.planes if p.filter[0] > 1 else 1.0
    late = max(0, boxes - config.stages) * (COST.late + body.stage / COST.late_bytes)     # a consumer loads its boxes one by one
    slower = (COST.one_stage if config.stages == 1 else 1.0) + COST.consumer * (4 - config.consumers)
    times = tiles * slower / device.clock_hz
    issue = (COST.line + COST.box * boxes) * config.lines
    if p.prologue_a is not None:
        pieces = boxes * ceil_div(math.prod(body.box), 16)  # of 8 elements, a thread's
        making = pieces * (COST.piece + 8 * COST.function * steps_instructions(p.prologue_a.program))
        issue, products = issue + making, products + making  # a consumer makes its pixels before it multiplies them
    work = overlap(math=times * products, issue=times * issue,
                   waits=times * (COST.waiting * config.lines + late))
    work += Cost(waves=(COST.block + body.filters / COST.filters) / device.clock_hz)
    states = workspace(p, device, config)
    finish = states_seconds(states, device)
    return finish + Cost(launch=COST.start) + overlap(work, exposed=COST.exposed, memory=p.bytes / (WGMMA.bandwidth * device.bandwidth))


def _map(name, tensor, strides, sizes, box):
    """The tensor map of an array (images, planes, lines, columns, channels)."""
    n, _, *spatial = strides
    per = 16 // tensor.itemsize
    outer = [s if size > 1 else per for size, s in zip(sizes, (n, *spatial))]
    return Argument("tensormap", name, spec=TensorMap(tensor.dtype, sizes, (*outer, 1), box, box[-1] * tensor.itemsize))


def _group_filters(p):
    """The kernel parameter of filters that the consumers read."""
    k, _, _, _, s = p.w_strides
    return Argument(GroupFilters, GroupFilters(Argument("uint16*", "w"), k, s if p.taps > 1 else 2))


def build(problem, device, config):
    """One launch, and one that ends reductions."""
    p, body = problem, _body(problem, config)
    source, source_strides, sizes, result, result_strides, result_sizes = roles(p)
    forward, width = p.op == "conv_fwd", config.columns
    total, columns = _channels(p)
    before = [pad if forward else (taps - 1) * d - pad for pad, taps, d in zip(p.pads_before, p.filter, p.dilations)]
    tiles, of_plane, across = _tiles(p, config)
    blocks, parts = _blocks(p, config, device)
    step = _pixels_apart(p.residual_strides, (p.n, *result_sizes)) if p.residual else 0

    def map_of_results(name, tensor, strides):
        return _map(name, tensor, strides, (p.n, *result_sizes, columns), (1, 1, 8, WIDE, width))
    arguments = (_map("x" if forward else "y", source, source_strides, (p.n, *sizes, p.c if forward else p.k),
                      (1, 1, *body.box, CHANNELS)),
                 _group_filters(p) if p.groups > 1 else
                 _map("w", p.w, p.w_strides, (p.k, *p.filter, p.c), (width, 1, 1, 1, CHANNELS) if forward else (CHANNELS, 1, 1, 1, width)),
                 map_of_results(p.output_name, result, result_strides),
                 map_of_results(*_addend(p, body.staged)) if body.by_ring else NOTHING,
                 Argument("int32", tiles), Argument(Divisor, divisor(parts)),
                 Argument(Tiles, Tiles(divisor(of_plane), divisor(across), divisor(result_sizes[0]), *before)),
                 *(Argument("int32", v) for v in (columns, *result_sizes[1:])), *p.epilogue_arguments((0, 1), (step, 1)),
                 operands_argument(p.epilogue, _operand_steps(p), p.n * math.prod(result_sizes), columns),
                 Argument(Source, Source(*sizes, total)), NOTHING if p.prologue_a is None else making_of_image(p).argument(0),
                 states_argument(states := _states(p, config, device), 64, width))
    launch = Launch(halo_kernel(body), (blocks * parts, 1, 1), (body.threads, 1, 1), arguments, shared=body.shared, dependent=True)
    return with_finish((launch,), states, 64, width, True)


ALGORITHMS = tuple(Algorithm(op=op, name="halo_wgmma", supports=supports, workspace=workspace, estimate=estimate, build=build,
                             configs=configs, notes=Note.TENSOR_CORE, programs=True, prologues=op == "conv_fwd", reductions=True,
                             arch="sm_90a")
                   for op in ("conv_fwd", "conv_bwd_data"))

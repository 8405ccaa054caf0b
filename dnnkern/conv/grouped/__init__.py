"""Convolutions of many small groups on tensor cores, at memory bandwidth: several groups share one product, operands stay in registers.

With 2 to 32 channels per group there is too little arithmetic to matter for tensor cores and too much for CUDA cores: 4 channels and 3 x 3
taps take as long there as reading the image. A tensor core multiplies blocks of 16 x 16 x 8 anyway, so several groups share a product, with
zeros between them: most of its work is wasted, and it is still several times faster than memory. What counts is how operands are loaded: a
warp has 32 channels, a lane 16 bytes of them, which are fragments as they are (`kernel`). A lane walks down the rows of its window like the
depthwise kernels, a column of taps at a time, with the loads of the next column in flight.

Backward data is the same with the filters transposed and other taps. It needs channels last and 16-byte alignment. It loses to
implicit GEMMs with larger groups, which fill their tiles.
"""
from dataclasses import dataclass

from ...device.groups import access_words
from ...device.index import Divisor, ceil_div, divisor
from ...dispatch import Algorithm, Note
from ...engine.constants import constants
from ...engine.cost import Cost, overlap
from ...engine.strides import Extents32
from ...host.launch import Argument, Launch
from .._parameters import PixelStrides
from .._taps import Axis, make_axis, roles, small_groups_refusal
from .backward_filter import ALGORITHM as BACKWARD_FILTER
from .kernel import COLUMNS, SLICE, WARPS, Body, TapStrides, Window, grouped_kernel

COST = constants("conv/grouped")

SHARED = 48 * 1024


@dataclass(frozen=True)
class Config:
    """Rows of pixels per lane, whether the filter's columns are unrolled, and blocks per multiprocessor.

    With one row, the kernel loops over the filter's rows.
    """
    rows: int
    unroll: int
    blocks: int

    def __str__(self):
        return f"{self.rows} rows{' unrolled' * self.unroll} b{self.blocks}"


def _words(p):
    """32-bit words of the filter fragments of a slice of channels."""
    return p.taps * (4 if p.c_group <= 4 else 8) * 64


def supports(problem):
    """Equal groups of a power of two channels, channels last, 16-bit floats."""
    p, refusal = problem, small_groups_refusal(problem)
    if refusal:
        return refusal
    source, strides, sizes, result, result_strides, result_sizes = roles(p)
    if strides[1] != 1 or result_strides[1] != 1 or p.residual and p.residual_strides[1] != 1:
        return f"channels are not contiguous: strides {strides[1]}, {result_strides[1]}, {p.residual_strides[1]}"
    if access_words(source, 8, _steps(strides)) != 4:
        return f"rows of channels are not aligned to 16 bytes: strides {strides}, address {source.alignment}"
    if 4 * _words(p) > SHARED:
        return f"the fragments of {p.taps} taps take {4 * _words(p)} bytes of shared memory; there are {SHARED}"
    _, _, t, r, s = p.w_strides
    if p.filter[0] > 1 and t != p.filter[1] * p.filter[2] * s or p.filter[1] > 1 and r != p.filter[2] * s:
        return f"the filter's taps are not evenly spaced: strides {t}, {r}, {s}"
    planes = (strides, sizes), (result_strides, result_sizes), (p.residual_strides, result_sizes)
    reach = max(abs(h) * (n[1] + 64) + abs(w) * (n[2] + 64) for (_, _, _, h, w), n in planes)
    columns = p.n * result_sizes[0] * result_sizes[1] * (result_sizes[2] + 64)
    if max(reach, columns, abs(p.bias_stride) * p.c) >= 2 ** 31:
        return f"a plane spans {reach} elements, there are {columns} pixels; the limit is 2**31"
    if max(p.dilations) * max(p.filter) + max(p.pads_before) >= 2 ** 20:
        return f"dilation {max(p.dilations)}, padding {max(p.pads_before)}; the limit of the window is 2**20"
    return None


def _steps(strides):
    n, _, d, h, w = strides
    return n, d, h, w


def _axis(p, config):
    """(rows, dynamic, shift) of the window along h."""
    dynamic = int(config.rows == 1 and p.filter[1] > 1)
    if dynamic:
        return Axis(1, 1, 1, 0, 0, 1), 1, 0
    rows, shift = make_axis(p.filter[1], p.strides[1], p.dilations[1], p.pads_before[1], int(p.op == "conv_bwd_data"), config.rows)
    return rows, 0, shift


def configs(problem, device):
    """Two to four rows, or one."""
    p, (_, _, _, _, _, (_, height, _)) = problem, roles(problem)
    step = p.strides[1] if p.op == "conv_bwd_data" else 1
    found = []
    for wanted, unroll in ((4, 0), (2, 1), (2, 0), (3, 0)):
        rows = ceil_div(wanted, step) * step
        axis, _, _ = _axis(p, Config(rows, 0, 1))
        registers = 16 * rows + 8 * axis.loads + 2 * (4 if p.c_group <= 4 else 8) * axis.taps + 64 + 40 * unroll
        if registers <= 246 and axis.groups <= 24 and wanted <= height + 1 and p.filter[2] <= 3 + 8 * (not unroll):
            config = Config(rows, unroll, max(1, min(5, 512 // registers)))
            if config not in found:
                found.append(config)
    if p.filter[1] > 1 or not found:
        found.append(Config(1 if p.filter[1] > 1 else step, 0, 4))
    return found


def workspace(problem, device, config):
    """None."""
    return 0


def _units(p, config):
    """(slices of channels, columns of pixels)."""
    _, _, _, _, _, result = roles(p)
    return ceil_div(p.c, SLICE), p.n * result[0] * ceil_div(result[1], config.rows) * result[2]


def estimate(problem, device, config):
    """Bytes, or the L1, or the products at half the rate of wgmma; storing the fragments."""
    p = problem
    rows, dynamic, _ = _axis(p, config)
    slices, columns = _units(p, config)
    warps = slices * ceil_div(columns, COLUMNS)
    depth = p.filter[0] * p.filter[2] * (p.filter[1] if dynamic else 1)
    products = 4 if p.c_group <= 4 else 8
    pairs = config.rows * rows.taps / (rows.stride if rows.backward else 1)
    clock = device.sms * device.clock_hz
    mma = warps * depth * pairs * products * COST.product / clock
    l1 = warps * depth * (rows.loads * COST.fragment + rows.taps * products * COST.taps) / (COST.l1 * clock)
    a_step = rows.loads * (COST.row - COST.unrolled * config.unroll) + COST.step + COST.issue_product * pairs * products
    issue = warps * (COST.warp + depth * a_step) / (4 * clock) * COST.slower
    halo = 1 + COST.halo * (p.filter[1] - 1) / config.rows
    memory = (p.bytes + (halo - 1) * p.x.nbytes) / (COST.rate * device.bandwidth)
    return Cost(launch=COST.start) + overlap(math=mma, l1=l1, issue=issue, memory=memory)


def _int(value):
    return Argument("int32", value)


def build(problem, device, config):
    """One launch; blocks loop over columns to make use of their filter fragments."""
    p = problem
    source, strides, sizes, result, result_strides, result_sizes = roles(p)
    backward = int(p.op == "conv_bwd_data")
    names = ("y", "x") if backward else ("x", "y")
    rows, dynamic, shift = _axis(p, config)
    residual_words = access_words(p.residual, 8, _steps(p.residual_strides)) if p.residual else 0
    body = Body(p.dtype, p.c_group, rows, p.taps, p.filter[2], dynamic, p.strides, backward, int(p.flip),
                access_words(result, 8, _steps(result_strides)), residual_words, p.epilogue, config.unroll,
                config.blocks)
    slices, columns = _units(p, config)
    each = WARPS * COLUMNS
    turns = max(1, min(16, ceil_div(columns * slices, each * config.blocks * device.sms)))
    window = Window(p.pads_before[0], p.dilations[0], p.pads_before[1], p.dilations[1], shift, p.pads_before[2], p.dilations[2])
    k, c, _, _, s = p.w_strides
    divisors = slices, result_sizes[2], ceil_div(result_sizes[1], config.rows), result_sizes[0]
    arguments = (p.pointer(names[0]), p.pointer("w"), p.pointer(names[1]), p.pointer("residual"), p.pointer("bias"), _int(columns),
                 _int(turns), *(Argument(Divisor, divisor(v)) for v in divisors), _int(p.c), _int(p.filter[0]), _int(p.filter[1]),
                 Argument(Window, window), *(Argument(Extents32, Extents32(*v)) for v in (sizes, result_sizes)),
                 *(Argument(PixelStrides, PixelStrides(*_steps(v))) for v in (strides, result_strides, p.residual_strides)),
                 _int(p.bias_stride), Argument(p.scalar_type, "alpha"), Argument(p.scalar_type, "beta"),
                 Argument(TapStrides, TapStrides(k, c, s if p.taps > 1 else 1)))
    return (Launch(grouped_kernel(body), (ceil_div(columns, each * turns) * slices, 1, 1), (32 * WARPS, 1, 1), arguments),)


ALGORITHMS = (*(Algorithm(op=op, name="grouped", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs,
                          notes=Note.TENSOR_CORE, arch="sm_80+") for op in ("conv_fwd", "conv_bwd_data")), BACKWARD_FILTER)

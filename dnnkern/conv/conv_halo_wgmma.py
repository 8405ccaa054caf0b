"""Convolutions of few filters on Hopper's tensor cores: pixels are read once for all taps.

`implicit_gemm_wgmma` brings a pixel from the L2 for every tap that meets it, nine times for 3x3. With 64 filters there is too little to
multiply for that: a step of 256 pixels and 64 channels takes 0.58 us, three quarters more than its products, as the L2 delivers no more.
Here a tile of the image comes once, with the pixels around it, and the filters stay in shared memory (`_halo`).

conv_bwd_data is the same with dy as the image, taps in the opposite order, and the filter read as it lies. For 16-bit types, channels last,
strides of one, up to 64 channels of the result, and filters that leave room for tiles: 3x3 with 64 or 128 channels, or 5x5 with 64.
"""
import math
from dataclasses import dataclass

from ..device.index import ceil_div, divisor
from ..dispatch import Algorithm, Note
from ..host.launch import Argument, Launch
from ..host.tensormap import TensorMap
from ..matmul._wgmma import BANDWIDTH
from ._halo import CHANNELS, WIDE, Body, halo_kernel
from ._taps import roles

SHAPES = (16, 3, 2), (8, 4, 2), (16, 4, 1), (8, 3, 2), (16, 2, 2), (16, 3, 1), (16, 2, 1), (8, 4, 1), (8, 2, 1), (8, 1, 1)
UNMEASURED = 4.0   # no GPU has run it: the simulator's word is not enough to be chosen
MOST = 4           # configurations


@dataclass(frozen=True)
class Config:
    """Lines of a tile, warpgroups that multiply, stages of each."""
    lines: int
    consumers: int
    stages: int

    def __str__(self):
        return f"{self.lines} lines x{self.consumers} s{self.stages}"


def _channels(p):
    """Channels of (what is summed over, the result)."""
    return (p.c, p.k) if p.op == "conv_fwd" else (p.k, p.c)


def _body(p, config):
    return Body(p.dtype, p.filter[1:], p.dilations[1:], ceil_div(_channels(p)[0], CHANNELS), config.lines, config.consumers, config.stages,
                (p.op == "conv_bwd_data") != bool(p.flip), "k" if p.op == "conv_fwd" else "mn", p.epilogue)


def _pixels_apart(strides, sizes):
    """Elements from one pixel to the next where all pixels of all images are in one stride, or None."""
    n, _, d, h, w = strides
    dims = [(size, stride) for size, stride in zip(sizes, (n, d, h, w)) if size > 1]
    if any(outer[1] != inner[0] * inner[1] for outer, inner in zip(dims, dims[1:])):
        return None
    return dims[-1][1] if dims else 8


def _map_refusal(name, tensor, strides, sizes):
    """Why TMA cannot address an array, channels contiguous, or None."""
    n, c, _, h, w = strides
    apart = [s for size, s in zip(sizes, (n, h, w)) if size > 1]
    if c != 1 or tensor.alignment % 16 or any(s < 0 or s * tensor.itemsize % 16 for s in apart):
        return f"{name}: channels are to be contiguous and pixels aligned to 16 bytes; strides {strides}, address {tensor.alignment}"
    return None


def supports(problem):
    """16-bit types, channels last, no stride, two dimensions, few channels."""
    p = problem
    if p.dtype not in ("float16", "bfloat16") or p.w.dtype != p.dtype or p.output.dtype not in ("float16", "bfloat16"):
        return f"{p.dtype}, filter {p.w.dtype}, result {p.output.dtype}; all of them are to be 16-bit floats"
    if p.groups > 1 or p.filter[0] > 1 or p.image[0] > 1 or p.pads_before[0] or p.strides != (1, 1, 1):
        return f"{p.groups} groups, {p.filter[0]} planes of taps, stride {p.strides}; expected one group, two dimensions, strides of one"
    total, columns = _channels(p)
    if not (p.x.size and p.w.size and p.y.size):
        return "an operand is empty"
    if columns > CHANNELS or columns % 8 or total % 8:
        return f"{columns} channels of the result, {total} summed over; multiples of 8, the first up to {CHANNELS}"
    if p.beta:
        return "beta: the clipped part of a tile would read what other blocks write"
    source, source_strides, sizes, result, result_strides, result_sizes = roles(p)
    k, c, _, r, s = p.w_strides
    reason = (_map_refusal("the image", source, source_strides, (p.n, *sizes[1:]))
              or _map_refusal("the result", result, result_strides, (p.n, *result_sizes[1:]))
              or _map_refusal("w", p.w, (k, c, 0, r, s), (p.k, *p.filter[1:])))
    if reason:
        return reason
    sizes = p.n, *result_sizes
    if p.residual and (p.residual_strides[1] != 1 or _pixels_apart(p.residual_strides, sizes) is None):
        return f"the residual's pixels are not evenly spaced: strides {p.residual_strides}"
    if math.prod(sizes) >= 2 ** 31 - 2 ** 16:
        return f"{math.prod(sizes)} pixels; counters end at 2**31"
    try:
        if not _fitting(p, 232448):
            return f"filters of {p.filter[1]}x{p.filter[2]} taps and {total} channels leave no room for a tile in shared memory"
    except ValueError as error:
        return str(error)
    return None


def _fitting(p, most):
    blocks = ceil_div(_channels(p)[0], CHANNELS)
    return [c for c in (Config(*shape) for shape in SHAPES) if c.stages >= min(blocks, 2) and _body(p, c).shared <= most]


def configs(problem, device):
    """Those that fit, by their estimate."""
    found = _fitting(problem, device.shared_per_block)
    return sorted(found, key=lambda c: estimate(problem, device, c))[:MOST]


def workspace(problem, device, config):
    """None."""
    return 0


def _tiles(p, config):
    """(tiles of an image, tiles across)."""
    _, high, wide = roles(p)[5]
    across = ceil_div(wide, WIDE)
    return ceil_div(high, config.lines) * across, across


def estimate(problem, device, config):
    """What passes through shared memory: operands of the products, pixels, results; the filters first."""
    p, body = problem, _body(problem, config)
    tiles = ceil_div(_tiles(p, config)[0] * p.n, device.sms)
    products = config.lines // 8 * p.taps * body.blocks * 4            # of 64 rows, 64 columns and 16 of k: 4096 bytes, 32 cycles
    tile = products * 32 + (body.blocks * body.stage + 2 * config.lines * 1024) / 128
    alone = 1.0 if config.consumers * config.stages > 2 else 1.4
    work = (4000 + body.filters / 48 + tiles * tile * alone) / device.clock_hz
    return UNMEASURED * (2e-6 + max(work, p.bytes / (BANDWIDTH * device.bandwidth)))


def _map(name, tensor, strides, sizes, box):
    """Of an array's (images, lines, columns, channels)."""
    n, _, _, h, w = strides
    per = 16 // tensor.itemsize
    outer = [s if size > 1 else per for size, s in zip(sizes, (n, h, w))]
    return Argument("tensormap", name, spec=TensorMap(tensor.dtype, sizes, (*outer, 1), box, 128))


def build(problem, device, config):
    """One launch."""
    p, body = problem, _body(problem, config)
    source, source_strides, sizes, result, result_strides, result_sizes = roles(p)
    forward = p.op == "conv_fwd"
    total, columns = _channels(p)
    before = [pad if forward else (taps - 1) * d - pad for pad, taps, d in zip(p.pads_before[1:], p.filter[1:], p.dilations[1:])]
    k, c, _, r, s = p.w_strides
    per_image, across = _tiles(p, config)
    pixels = (p.n, *result_sizes)
    step = _pixels_apart(p.residual_strides, pixels) if p.residual else 0
    arguments = (_map("x" if forward else "y", source, source_strides, (p.n, *sizes[1:], total), (1, *body.box, CHANNELS)),
                 _map("w", p.w, (k, c, 0, r, s), (p.k, *p.filter[1:], p.c), (CHANNELS, 1, 1, CHANNELS)),
                 _map(p.output_name, result, result_strides, (p.n, *result_sizes[1:], columns), (1, 8, WIDE, CHANNELS)),
                 Argument("int32", per_image * p.n), Argument("uint32x3", divisor(per_image)), Argument("uint32x3", divisor(across)),
                 *(Argument("int32", v) for v in (*before, columns, *result_sizes[1:])), *p.epilogue_arguments((0, 1), (step, 1)))
    return (Launch(halo_kernel(body), (min(per_image * p.n, device.sms), 1, 1), (body.threads, 1, 1), arguments, shared=body.shared,
                   dependent=True),)


ALGORITHMS = tuple(Algorithm(op=op, name="halo_wgmma", supports=supports, workspace=workspace, estimate=estimate, build=build,
                             configs=configs, notes=Note.TENSOR_CORE, arch="sm_90a") for op in ("conv_fwd", "conv_bwd_data"))

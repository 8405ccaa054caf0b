"""Small groups as larger ones: filters of several groups become blocks on the diagonal of one, which an implicit GEMM takes.

    w [k, taps, c of a group] --spread, zeros between groups--> workspace [k, taps, 64] --implicit_gemm_wgmma, groups of 64 channels

`implicit_gemm_wgmma` takes groups of whole steps, 128 bytes of channels. A product of 64 columns waits for its rows of pixels anyway, so
zeros in the filter cost little. It wins with a stride, which `halo_wgmma` does not take; that one writes the zeros in shared memory, and
saves the first launch.
"""
import functools
from dataclasses import replace

from ..device import cuda, device_function, jit, u32
from ..device.dependent import launch_dependent_grids, wait_for_previous_grid
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.vec import store4
from ..dispatch import Algorithm, Note
from ..engine.constants import constants
from ..engine.cost import Cost
from ..engine.embed import Place, embedded
from ..engine.hopper import ROW
from ..host.launch import Argument, Launch
from ..host.memo import remembered
from ..host.tensor import Tensor
from . import implicit_gemm_wgmma as inner
from ._taps import small_groups_refusal

COST = constants("conv/merged_groups")

CHANNELS, THREADS = ROW // 2, 256
_INNER = {a.op: a for a in inner.ALGORITHMS}


def _bytes(p):
    """Of the filter in the workspace."""
    return p.k * p.taps * ROW


@remembered
def merged(problem):
    """The problem with groups of 64 channels, whose filter is the one in the workspace."""
    p = problem
    taps = p.filter[3 - p.spatial_dims:]
    w = Tensor.packed((p.k, *taps, CHANNELS), p.w.dtype)
    if p.layout == "NCHW":  # the channel is named second, and still is the last in memory
        w = Tensor((p.k, CHANNELS, *taps), (w.strides[0], 1, *w.strides[1:-1]), w.dtype)
    return replace(p, w=w, groups=p.c // CHANNELS)


def supports(problem):
    """Equal groups of a power of two of 16-bit channels, whole blocks of 64 channels; no program."""
    p, refusal = problem, small_groups_refusal(problem)
    if refusal:
        return refusal
    if p.c % CHANNELS:
        return f"{p.c} channels; expected whole blocks of {CHANNELS}"
    if p.program is not None or p.prologue_a is not None:
        return "runs no program: groups are not those of the caller"
    if max(p.k * p.taps * CHANNELS, *(abs(s) * n for s, n in zip(p.w_strides, (p.k, p.c_group, *p.filter)))) >= 2 ** 31:
        return f"{p.k} filters of {p.taps} taps and {CHANNELS} channels; the limit is 2**31 elements"
    return inner.supports(merged(p))


def configs(problem, device):
    """Those of the implicit GEMM, with 64 columns."""
    found = _INNER[problem.op].configs(merged(problem), device)
    return [c for c in found if c.tile.bn == CHANNELS] or found


def workspace(problem, device, config):
    """The filter, and what the implicit GEMM needs."""
    return ceil_div(_bytes(problem), 256) * 256 + inner.workspace(merged(problem), device, config)


def estimate(problem, device, config):
    """The implicit GEMM's; the launch before it."""
    cost = inner.estimate(merged(problem), device, config)
    return cost + Cost(pack=COST.spread + 2 * _bytes(problem) / device.bandwidth)


@functools.cache
def spread_kernel(group):
    """16 bytes of the merged filter, 8 channels of a tap, per thread."""
    GROUP, PIECES = group, CHANNELS // 8

    @device_function
    def number(w, at, step, row, c):
        return u32(w[at + (c & GROUP - 1) * step]) if (row ^ c) < GROUP else u32(0)  # a power of two

    @device_function
    def pair(w, at, step, row, c):
        return number(w, at, step, row, c) | number(w, at, step, row, c + 1) << u32(16)

    @jit(launch_bounds=THREADS)
    def conv_spread_groups(w, y, count, taps, r, s, k_step, c_step, t_step, r_step, s_step):
        launch_dependent_grids()
        wait_for_previous_grid()  # for the next grid, too, which waits for this one alone
        i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if i < count:
            rest, c = i // PIECES, i % PIECES * 8
            k, tap = divide_remainder(rest, taps)
            line, column = divide_remainder(tap, s)
            plane, line = divide_remainder(line, r)
            at, row = k * k_step + plane * t_step + line * r_step + column * s_step, k & CHANNELS - 1
            store4(y, i * 4, (pair(w, at, c_step, row, c), pair(w, at, c_step, row, c + 2), pair(w, at, c_step, row, c + 4),
                              pair(w, at, c_step, row, c + 6)))
    return conv_spread_groups


def _spread_launch(p):
    _, r, s = p.filter
    k, c, *taps = p.w_strides
    count = p.k * p.taps * (CHANNELS // 8)
    divisors = (Argument("uint32x3", divisor(v)) for v in (p.taps, r, s))
    return Launch(spread_kernel(p.c_group), (ceil_div(count, THREADS), 1, 1), (THREADS, 1, 1),
                  (Argument("uint16*", "w"), Argument("uint32*", "workspace"), Argument("int32", count), *divisors,
                   *(Argument("int32", v) for v in (k, c, *taps))), dependent=True)


def build(problem, device, config):
    """The filter, then the implicit GEMM."""
    p, algorithm = problem, _INNER[problem.op].bound_to(config)
    names = [name for name in ("x", "y", "bias", "residual") if getattr(p, name) is not None]
    kept = {name: Place(name) for name in names}
    kept.update(w=Place("workspace"), workspace=Place("workspace", ceil_div(_bytes(p), 256) * 256))
    return (_spread_launch(p), *embedded(algorithm, merged(p), device, kept, ("alpha", "beta")))


ALGORITHMS = tuple(Algorithm(op=op, name="merged_groups", supports=supports, workspace=workspace, estimate=estimate, build=build,
                             configs=configs, notes=Note.TENSOR_CORE, arch="sm_90a") for op in ("conv_fwd", "conv_bwd_data"))

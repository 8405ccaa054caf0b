"""One thread per element, wherever it lies; where losses are added, a few hundred elements per thread, and one number per block.

Each element's place is computed by division, for arbitrary strides and any number of elements.
"""
import functools

from ..device import cuda, f32, f64, jit
from ..device.block import add, make_block_reduce
from ..device.convert import element
from ..device.index import ceil_div
from ..device.rows import make_row_offsets64, row_arguments64
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, Cost, issue_seconds, memory_seconds, overlap
from ..host.dtypes import ITEMSIZE
from ..host.launch import Argument, Launch
from ._totals import fold_bytes, fold_launches

COST = constants("loss/mse_naive")

THREADS = 256
STRETCH = 64 * THREADS  # elements of a block whose losses are added
SCRATCH = THREADS // 16


def supports(problem):
    """Everything."""
    return None


def _blocks(problem):
    """Blocks of the launch over the elements."""
    return ceil_div(problem.x.size, STRETCH if problem.is_forward and not problem.each else THREADS)


def workspace(problem, device, config):
    """A number for each block whose losses are added, and what adding those takes."""
    blocks = _blocks(problem)
    return (blocks + fold_bytes(blocks)) * ITEMSIZE[problem.compute] if problem.is_forward and not problem.each else 0


def estimate(problem, device, config):
    """A sector for each element that is not innermost anywhere, and divisions."""
    size = problem.x.size
    moved = memory_seconds(problem.bytes if len(problem.dims) < 2 else COST.spread * size * len(problem.walked), device)
    issue = issue_seconds(size, COST.element + COST.dimension * len(problem.dims), device)
    return 2 * LAUNCH + Cost(waves=COST.block) + overlap(memory=moved / COST.rate, issue=issue)


@functools.cache
def kernel(dtype, loss_dtype, compute, each, forward, dims):
    """Losses, or gradients, of elements."""
    load, store, Real = element(dtype).load, element(dtype).store, f64 if compute == "float64" else f32
    load_loss, store_loss = element(loss_dtype).load, element(loss_dtype).store
    arrays, reduce = ("x", "target", *("loss",) * each, *("dx",) * (not forward)), make_block_reduce(add, THREADS)
    row_offsets, STEP = make_row_offsets64(dims, arrays), THREADS if forward and not each else 0

    @jit(launch_bounds=THREADS)
    def mse_loss_naive(x, target, loss, dx, size, per, scale, sizes, strides):
        scratch = cuda.shared.array(SCRATCH, Real)
        first = cuda.blockIdx.x * per
        end = min(first + per, size)
        i, total = first + cuda.threadIdx.x, Real(0)
        while i < end:
            offsets = row_offsets(i, sizes, strides)
            d = load(x, offsets.x) - load(target, offsets.target)
            if forward:
                if each:
                    store_loss(loss, offsets.loss, d * d)
                total += d * d
            else:
                g = Real(load_loss(loss, offsets.loss if each else 0))
                store(dx, offsets.dx, g * scale * d)
            i = i + THREADS
        if STEP:
            total = reduce(total, scratch, 0)
            if cuda.threadIdx.x == 0:
                store_loss(loss, cuda.blockIdx.x, total)
    return mse_loss_naive


def build(problem, device, config):
    """One launch, and where losses are added those that add up what blocks leave."""
    p, blocks, numbers = problem, _blocks(problem), element(problem.loss_dtype).pointer
    pointer, (sizes, strides) = element(p.dtype).pointer, row_arguments64(p.dims, len(p.walked))
    added = p.is_forward and not p.each
    loss = Argument(numbers, "workspace") if added else Argument(numbers, "loss" if p.is_forward else "dloss")
    dx = Argument(pointer, "x" if p.is_forward else "dx")
    arguments = (Argument(pointer, "x"), Argument(pointer, "target"), loss, dx, Argument("int64", p.x.size),
                 Argument("int64", STRETCH if added else THREADS), Argument(p.compute, p.scale), Argument(f"int64x{len(sizes)}", sizes),
                 Argument(f"int64x{len(strides)}", strides))
    launches = () if not blocks else (
        Launch(kernel(p.dtype, p.loss_dtype, p.compute, p.each, p.is_forward, len(sizes)), (blocks, 1, 1), (THREADS, 1, 1), arguments),)
    if not added:
        return launches
    return (*launches, *fold_launches(device, p.compute, 0, None, ("loss", 0), blocks, p.scale, blocks * ITEMSIZE[p.compute]))


ALGORITHMS = tuple(Algorithm(op=op, name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build)
                   for op in ("mse_loss_fwd", "mse_loss_bwd"))

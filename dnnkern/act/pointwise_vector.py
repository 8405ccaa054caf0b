"""Arrays that have the same layout: one or two chunks of 16 bytes per thread.

Where all arrays are one run of memory, in the same order, an element's place needs no arithmetic. A block takes a tile of chunks, a thread
one, of smaller types than 4 bytes perhaps two, loads them all, computes and stores them; the grid covers everything once, so the hardware
balances the blocks. The first and the last tile have elements that do not exist, and go one by one. An input may be a single value.
It is bound by memory; with two bytes per element there is time for some 27 instructions for each.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, i32, i64, jit
from ..device.index import ceil_div
from ..device.vec import advance
from ..dispatch import Algorithm
from ..engine.ahead import make_follow
from ..engine.constants import constants
from ..engine.cost import LAUNCH, Cost, memory_seconds, overlap, tail
from ..engine.lanes import make_lead, rows_refusal
from ..engine.vectors import word_of
from ..host.dtypes import ITEMSIZE
from ..host.launch import Argument, Launch
from ._estimate import kernel_issue_seconds, sector_bytes, waiting
from ._lanes import Work, make_lanes, make_work, pointer_arguments, scalar_arguments
from ._offsets import Arrays, arrays_argument, five
from ._slopes import slope_launches, slope_cost, slope_workspace
from .pointwise_naive import OPS

COST = constants("act/vector")

THREADS = 256


@dataclass(frozen=True)
class Config:
    """The work of a thread."""
    work: Work

    def __str__(self):
        return f"{self.work.lanes} chunk" + "s" * (self.work.lanes > 1)

    @property
    def blocks(self):
        """Resident ones: all that a multiprocessor has threads for, where a thread needs 32 registers; 4 MB are one wave then."""
        few = self.work.lanes * self.work.elements <= 8 and self.work.inputs <= 2 and self.work.compute != "float64"
        return 8 if few else self.work.blocks

    @property
    def tile(self):
        """Elements of a block."""
        return THREADS * self.work.lanes * self.work.elements


@dataclass(frozen=True)
class ConfigOfFewer(Config):
    """On a multiprocessor that has room for 1536 threads."""

    @property
    def blocks(self):
        return min(super().blocks, 1536 // THREADS)


def supports(problem):
    """One run of memory each."""
    form = problem.form
    if problem.function.mode == "gen_index":
        return "gen_index reads no array"
    if len(form.dims) > 1:
        return f"the arrays differ in {len(form.dims)} dimensions; expected runs of memory in the same order, or single values"
    return rows_refusal(form)


def workspace(problem, device, config):
    """None but for the gradient of a slope."""
    return slope_workspace(problem, device)


def configs(problem, device):
    """One chunk per thread, and two or four of elements of 2 bytes or fewer."""
    kind = Config if device.threads_per_sm >= 2048 else ConfigOfFewer
    return [kind(make_work(problem, n)) for n in ((1, 2, 4) if min(t.itemsize for t in problem.arrays) <= 2 else (1,))]


def estimate(problem, device, config):
    """Bytes, and the instructions of chunks."""
    blocks = ceil_div(problem.form.size, config.tile)
    moved = memory_seconds(sector_bytes(problem, config.work.units), device) * waiting(problem, config.work)
    late = Cost(waves=COST.chunk * config.work.lanes)  # a block's chunks come one after another
    busy = overlap(memory=moved, issue=kernel_issue_seconds(problem, blocks * THREADS, config.work, 0, device))
    busy = busy.slowed(tail=tail(blocks, COST.blocks, device), slower=1 + COST.slower_chunk * config.work.lanes)
    return LAUNCH + late + busy + slope_cost(problem, device)


@functools.cache
def kernel(config, dependent):
    """y[...], z[...] = f(a[...], b[...], c[...]), a tile a block."""
    work = config.work
    LANES, LENGTH, TILE = work.lanes, work.elements, config.tile
    start = make_follow(dependent)
    run, lead_of = make_lanes(work), make_lead(ITEMSIZE[work.dtypes[work.inputs]], work.align)
    unit = [bool(u) for u in work.units]
    A, B, C, Y, Z = (int(v) for v in five(unit, work.inputs))
    scales = [word_of(ITEMSIZE[d])[2] for d in work.dtypes]
    A_SCALE, B_SCALE, C_SCALE, Y_SCALE, Z_SCALE = five(scales, work.inputs)

    @jit(launch_bounds=(THREADS, config.blocks))
    def pointwise_vector(a, b, c, y, z, elements, firsts, alpha, beta):
        start()
        tile = i64(cuda.blockIdx.x) * TILE
        lead = lead_of(advance(y, firsts.y * Y_SCALE))
        begin = cuda.threadIdx.x * LENGTH - lead
        inside = i32(min(elements - tile, 2 * TILE))
        shift, first, last = cuda.local.array(LANES, i32), cuda.local.array(LANES, i32), cuda.local.array(LANES, i32)
        for k in range(LANES):
            shift[k] = begin + k * THREADS * LENGTH
            first[k] = -shift[k] if tile == 0 else 0
            last[k] = inside - shift[k]
        run(advance(a, (firsts.a + A * tile) * A_SCALE), advance(b, (firsts.b + B * tile) * B_SCALE),
            advance(c, (firsts.c + C * tile) * C_SCALE), advance(y, (firsts.y + Y * tile) * Y_SCALE),
            advance(z, (firsts.z + Z * tile) * Z_SCALE), Arrays(0, 0, 0, 0, 0), shift, first, last, (alpha, beta))
    return pointwise_vector


def build(problem, device, config):
    """One launch, and those of a slope's gradient."""
    form = problem.form
    blocks = ceil_div(form.size + max(config.work.align - 1, 0), config.tile)
    arguments = (*pointer_arguments(problem), Argument("int64", form.size),
                 arrays_argument((a.first for a in form.arrays), form.inputs), *scalar_arguments(problem))
    dependent = device.capability >= (9, 0)
    return (Launch(kernel(config, dependent), (blocks, 1, 1), (THREADS, 1, 1), arguments, dependent=dependent),
            *slope_launches(problem, device))


ALGORITHMS = tuple(Algorithm(op=op, name="vector", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs)
                   for op in OPS)

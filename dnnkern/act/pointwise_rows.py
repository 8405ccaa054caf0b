"""Rows, of which inputs may be broadcast: a chunk of neighbours of a few rows a thread.

The innermost dimension, which is contiguous in the results, is cut into chunks. A thread takes the same chunk of one, two or four rows that
follow each other: its offset costs one multiplication per dimension, not a division per element, an input that is the same for these rows
(a bias along them) is loaded once, and one that has a single value a row (a bias of channels) is one load. Rows that do not begin at a
multiple of 16 bytes begin with a short chunk, each row its own, so that what is longest moves in 16 bytes all the same.
"""
import functools
import math
from dataclasses import dataclass

from ..device import cuda, i32, jit
from ..device.index import ceil_div, divide_remainder, divisor
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
from ..engine.form import WIDE, Dim
from ._lanes import Work, make_lanes, make_work, pointer_arguments, scalar_arguments
from ._offsets import arrays_argument, five, make_offsets, offset_arguments
from ._slopes import slope_launches, slope_cost, slope_workspace
from .pointwise_naive import OPS

COST = constants("act/rows")

THREADS = 256


@dataclass(frozen=True)
class Config:
    """The work of a thread, whose lanes are rows; dimensions, 64-bit offsets."""
    work: Work
    dims: int
    wide: bool

    def __str__(self):
        return f"{self.work.lanes} row{'s' * (self.work.lanes > 1)}"


def supports(problem):
    """Rows that are contiguous in the results, and contiguous or one value in the inputs."""
    form = problem.form
    if problem.function.mode == "gen_index":
        return "gen_index reads no array"
    if reason := rows_refusal(form):
        return reason
    threads = _threads(form, make_work(problem, 1))
    if max(threads, form.dims[-1].size) >= WIDE - 2 ** 20:
        return f"{threads} chunks of rows of {form.dims[-1].size} elements; expected fewer than 2**31 - 2**20 of either"
    return None


def workspace(problem, device, config):
    """None but for the gradient of a slope."""
    return slope_workspace(problem, device)


def _rows(form):
    """The dimension whose neighbours are a thread's lanes, and those outside of it."""
    *outer, _ = form.dims
    return (outer[-1], outer[:-1]) if outer else (Dim(1, (0,) * len(form.arrays)), [])


def configs(problem, device):
    """One, two and four rows a thread, as far as there are that many."""
    form = problem.form
    row, outer = _rows(form)
    some = [n for n in (1, 2, 4) if n == 1 or row.size >= n]
    return [Config(make_work(problem, n, row.strides), len(outer) + 2, form.is_wide) for n in some]


def _counted(form, work):
    """The dimensions of the grid's threads: groups of rows instead of rows, chunks instead of elements."""
    row, outer = _rows(form)
    last = form.dims[-1]
    chunks = ceil_div(last.size + max(work.align - 1, 0), work.elements)
    groups = Dim(ceil_div(row.size, work.lanes), tuple(s * work.lanes for s in row.strides))
    return (*outer, groups, Dim(chunks, tuple(s * work.elements for s in last.strides)))


def _threads(form, work):
    return math.prod(d.size for d in _counted(form, work))


def estimate(problem, device, config):
    """Sectors, the instructions of chunks, and rows that a last group lacks."""
    form, work = problem.form, config.work
    threads = _threads(form, work)
    moved = memory_seconds(sector_bytes(problem, work.units), device) * waiting(problem, work)
    busy = overlap(memory=moved, issue=kernel_issue_seconds(problem, threads, work, config.dims, device))
    late = Cost(waves=COST.start + COST.chunk * work.lanes)
    if work.align and work.lanes == 1 and work.inputs > 2 and min(filter(None, work.units)) < 16:
        busy = busy.slowed(slower=COST.single)  # few loads are in flight
    return LAUNCH + late + busy.slowed(tail=tail(ceil_div(threads, THREADS), COST.blocks, device),
                                       slower=COST.slower + COST.slower_chunk * work.lanes) + slope_cost(problem, device)


@functools.cache
def kernel(config, dependent):
    """y[...], z[...] = f(a[...], b[...], c[...]), a chunk of some rows a thread."""
    work = config.work
    LANES, LENGTH = work.lanes, work.elements
    start = make_follow(dependent)
    run, offsets = make_lanes(work), make_offsets(config.dims, config.wide)
    lead_of = make_lead(ITEMSIZE[work.dtypes[work.inputs]], work.align)
    A_SCALE, B_SCALE, C_SCALE, Y_SCALE, Z_SCALE = five([word_of(ITEMSIZE[d])[2] for d in work.dtypes], work.inputs)
    LED = work.align > 0

    @jit(launch_bounds=(THREADS, work.blocks))
    def pointwise_rows(a, b, c, y, z, threads, row, rows, chunks, groups, firsts, steps, sizes, strides, alpha, beta):
        start()
        index = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if index < threads:
            group_index, chunk = divide_remainder(index, chunks)
            _, group = divide_remainder(group_index, groups)
            a_at, b_at, c_at, y_at, z_at = offsets(index, sizes, strides)
            y = advance(y, (firsts.y + y_at) * Y_SCALE)
            position, left = chunk * LENGTH, rows - group * LANES
            shift, first, last = cuda.local.array(LANES, i32), cuda.local.array(LANES, i32), cuda.local.array(LANES, i32)
            for k in range(LANES):
                lead = 0
                if LED:
                    lead = lead_of(advance(y, (k * steps.y - position) * Y_SCALE))
                shift[k] = -lead
                first[k] = lead - position
                last[k] = row - position + lead if k < left else first[k]
            run(advance(a, (firsts.a + a_at) * A_SCALE), advance(b, (firsts.b + b_at) * B_SCALE),
                advance(c, (firsts.c + c_at) * C_SCALE), y, advance(z, (firsts.z + z_at) * Z_SCALE), steps, shift, first, last,
                (alpha, beta))
    return pointwise_rows


def build(problem, device, config):
    """One launch, and those of a slope's gradient."""
    form = problem.form
    row, _ = _rows(form)
    dims, threads = _counted(form, config.work), _threads(form, config.work)
    arguments = (*pointer_arguments(problem), Argument("int32", threads), Argument("int32", form.dims[-1].size),
                 Argument("int32", row.size), Argument("uint32x3", divisor(dims[-1].size)), Argument("uint32x3", divisor(dims[-2].size)),
                 arrays_argument((a.first for a in form.arrays), form.inputs), arrays_argument(row.strides, form.inputs),
                 *offset_arguments(dims, form.inputs, config.wide), *scalar_arguments(problem))
    dependent = device.capability >= (9, 0)
    return (Launch(kernel(config, dependent), (ceil_div(threads, THREADS), 1, 1), (THREADS, 1, 1), arguments, dependent=dependent),
            *slope_launches(problem, device))


ALGORITHMS = tuple(Algorithm(op=op, name="rows", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs)
                   for op in OPS)

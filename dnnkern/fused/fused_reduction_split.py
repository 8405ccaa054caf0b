"""Rows of any length, each cut into parts for many blocks: a launch for each level, and one for the results.

A block walks over its part of a row, a few chunks of each thread loaded together, and writes the states of the level's reductions to the
workspace. The blocks of the next launch merge those of all parts of their row, in a fixed order, and go on with the row's values. So a row
is read once for each level, and once more where there are results of elements. For few rows, and for those that registers do not hold; no
atomics.
"""
import functools
import math
from dataclasses import dataclass

from ..device import cuda, device_function, i32, jit, u32
from ..device.index import ceil_div, divide_remainder, divisor
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, Cost, flight_rate, issue_seconds, memory_seconds, occupied, overlap
from ..engine.form import WIDE
from ..host.dtypes import ITEMSIZE
from ..host.launch import Argument, Launch
from ._arrays import coordinate_argument, make_coordinates
from ._levels import element_instructions, make_end, make_next, make_start, states_of
from .fused_reduction_rows import Config as OneRow
from .fused_reduction_rows import arguments_of, chunks_of, indices_of, leader_of, make_extents, make_walks, refusal, steps_of

COST = constants("fused/reduction_split")

THREADS, LANES, MOST_WORDS = 256, (4, 2, 1), 32
PER_MULTIPROCESSOR = (2, 8)  # blocks that are wanted
MOST_SPLITS = 1024
LEAST = 1024  # elements of a row below which there is nothing to divide


@dataclass(frozen=True)
class Config(OneRow):
    """As `rows`'s, of a part of a row; the parts of a row, and its dimensions."""
    splits: int = 1
    inner: int = 1
    keeps = False

    def __str__(self):
        return f"{self.lanes} x {self.chunks.elements} elements a load, {self.splits} split{'s' * (self.splits > 1)}"


def supports(problem):
    """Rows that are contiguous along their innermost dimension."""
    forms = problem.forms
    if problem.is_empty:
        return None
    reason = refusal(problem)
    if reason:
        return reason
    if forms.length < LEAST:
        return f"rows of {forms.length} elements; expected {LEAST} or more"
    if max(forms.length, forms.count * MOST_SPLITS) >= WIDE - 2 ** 24:
        return f"{forms.count} rows of {forms.length} elements; expected fewer than 2**21 of fewer than 2**31 - 2**24 each"
    return None


def _planes(problem):
    return sum(states.size for states in states_of(problem.program))


def workspace(problem, device, config):
    """The states of all parts."""
    return _planes(problem) * ITEMSIZE[problem.program.compute] * problem.forms.count * config.splits


def configs(problem, device):
    """As many parts as fill the device, of one load of each thread at least."""
    forms = problem.forms
    chunks, count, parts = chunks_of(forms)
    inner = len(forms.form.dims) - forms.outer
    count *= math.prod(d.size for d in forms.form.dims[forms.outer:-1])

    def make(lanes, splits):
        return Config(problem.program, chunks, lanes, THREADS, forms.outer, forms.form.is_wide, "parts" if parts else "whole",
                      leader_of(forms), indices_of(forms.form), splits, inner)
    lanes = 1 if inner > 1 else next((n for n in LANES if make(n, 1).words <= MOST_WORDS and (n == 1 or count > n * THREADS)), 1)
    wanted = (ceil_div(per * device.sms, max(forms.count, 1)) for per in PER_MULTIPROCESSOR)
    found = (max(1, min(n, ceil_div(count, THREADS * lanes), MOST_SPLITS)) for n in wanted)
    return [make(lanes, splits) for splits in dict.fromkeys(found)]


def estimate(problem, device, config):
    """Bytes of the inputs for each level, those of all arrays where elements are results, and the launches."""
    forms, levels = problem.forms, len(problem.program.stages.levels)
    read = sum(a.tensor.nbytes for a in forms.form.arrays[:forms.form.inputs] if a.name)
    full = problem.bytes if config.program.stores else 0
    blocks = forms.count * config.splits
    rate = flight_rate(config.block * config.blocks * 4 * config.words, COST.in_flight) * occupied(blocks * THREADS, 512, device)
    issue = issue_seconds(forms.form.size, element_instructions(problem.program), device)
    work = overlap(memory=memory_seconds(levels * read + full, device) / rate, issue=issue).slowed(slower=COST.slower)
    return (levels + 1) * (LAUNCH + Cost(launch=COST.alone)) + work


# ---- the kernels

@functools.cache
def kernel(config, level):
    """The states of a level's reductions of a part of a row; the results, where `level` is one more than there are."""
    staged, LANES, SPAN = config.staged, config.lanes, config.threads * config.lanes
    count, walks, final, load = make_walks(config)
    known, states, planes, scratch_size = device_function(_as_it_is), states_of(staged), 0, 0
    for k in range(level):
        known = _with_known(known, states[k], planes, states[k].meet(THREADS, scratch_size), make_next(staged, k))
        planes, scratch_size = planes + states[k].size, scratch_size + states[k].size * THREADS // 32
    ENDS = level == len(walks)
    FULL = not ENDS or len(config.program.stores) > 0
    own = states[min(level, len(states) - 1)]
    SIZE, REAL, begin, save, meet = own.size, own.type, own.begin, own.save(planes), own.meet(THREADS, 0 if ENDS else scratch_size)
    SCRATCH = scratch_size + (0 if ENDS else SIZE * THREADS // 32)
    walk = walks[min(level, len(walks) - 1)]
    inner, coordinates = make_coordinates(config.inner), make_coordinates(config.outer)
    start, end = make_start(staged, config.outer), make_end(staged, config.outer)
    STEPS, extents, DEEPEST = steps_of(config), make_extents(config), config.inner - 1
    BACK = level % 2 == 1  # from where the launch before has ended: what it has read last is in the L2

    @jit(launch_bounds=(THREADS, 1))
    def fused_reduction_split(pointers, row_pointers, partial, rows, length, chunks, per, parts, splits, inner_sizes, firsts, row_firsts,
                              sizes, strides, row_strides, numbers, factor):
        scratch, words = cuda.shared.array(SCRATCH, REAL), cuda.local.array(count, u32)
        shift, first, last = cuda.local.array(LANES, i32), cuda.local.array(LANES, i32), cuda.local.array(LANES, i32)
        state = cuda.local.array(SIZE, REAL)
        t = cuda.threadIdx.x
        row, part = divide_remainder(cuda.blockIdx.x, parts)
        at = coordinates(row, sizes)
        of_row = start(row_pointers, row_firsts, row_strides, numbers, at)
        of_row = known(of_row, partial, row * splits, splits, rows * splits, scratch, factor)
        begin(state)
        if FULL:
            start_of_part, end_of_part = part * per, min(part * per + per, chunks)
            steps = (end_of_part - start_of_part + (SPAN - 1)) // SPAN
            for k in range(steps):
                c = start_of_part + t + (steps - 1 - k if BACK else k) * SPAN
                if c < end_of_part:
                    here = inner(i32(c), inner_sizes)
                    arrays = pointers, at + here, strides, firsts, STEPS
                    extents(arrays, here[DEEPEST], length, shift, first, last)
                    load(words, arrays, shift, first, last)
                    if ENDS:
                        final(words, arrays + (of_row,), shift, first, last)
                    else:
                        walk(words, state, arrays + (of_row,), shift, first, last)
        if ENDS:
            if part == 0 and t == 0:
                end(of_row, row_pointers, row_firsts, row_strides, at)
        else:
            meet(state, scratch)
            if t == 0:
                save(partial, row * splits + part, rows * splits, state)
    return fused_reduction_split


def _as_it_is(of_row, partial, first, splits, plane, scratch, factor):
    return of_row


def _with_known(before, states, planes, meet, next_rows):
    """The row's values of one level more, from the states that all of its parts have saved."""
    SIZE, T, begin, absorb = states.size, states.type, states.begin, states.absorb(planes)

    @device_function
    def known(of_row, partial, first, splits, plane, scratch, factor):
        of_row = before(of_row, partial, first, splits, plane, scratch, factor)
        numbers = cuda.local.array(SIZE, T)
        begin(numbers)
        for s in range(cuda.threadIdx.x, splits, THREADS):
            absorb(partial, first + s, plane, numbers)
        meet(numbers, scratch)
        return next_rows(of_row, numbers, factor)
    return known


def build(problem, device, config):
    """A launch for each level, and the last one, which has one block for each row if only rows have results."""
    forms, (pointers, others) = problem.forms, arguments_of(problem, config)
    _, deepest, _ = chunks_of(forms)
    length, inner = forms.form.dims[-1].size, [*(d.size for d in forms.form.dims[forms.outer:-1]), deepest]
    count = math.prod(inner)
    span, levels = THREADS * config.lanes, len(problem.program.stages.levels)
    per = ceil_div(ceil_div(count, config.splits), span) * span
    partial = Argument(problem.program.compute + "*", "workspace")
    found = []
    for level in range(levels + 1):
        parts = config.splits if level < levels or config.program.stores else 1
        arguments = (*pointers, partial, Argument("int32", forms.count), Argument("int32", length), Argument("int32", count),
                     Argument("int32", per), Argument("uint32x3", divisor(parts)), Argument("int32", config.splits),
                     coordinate_argument(inner), *others)
        found.append(Launch(kernel(config, level), (forms.count * parts, 1, 1), (THREADS, 1, 1), arguments))
    return tuple(found)


ALGORITHM = Algorithm(op="fused_reduction", name="split", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs, programs=True, reductions=True)

"""One thread per row, level after level, straight from the definition.

The thread walks over its row once for each level and once for the full results, 256 elements at a time: each stretch is reduced by itself
first, which loses less to rounding. Any strides, any dtypes, any number of elements; each coordinate costs a division of 64-bit integers.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, device_function, i64, jit
from ..device.index import ceil_div
from ..device.program import element_of
from ..device.program_results import make_results
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
from ..host.launch import Argument, Launch
from ._arrays import (coordinate_argument, make_coordinates, make_element_loads, make_element_stores, number_arguments, stride_argument,
                      struct_argument)
from ._levels import element_instructions, factor_argument, make_end, make_next, make_start, row_arguments, states_of
from ._staged import StagedProgram

COST, WAITS = constants("fused/naive"), constants("reduce/naive")

THREADS = 128
STRETCH = 256


@dataclass(frozen=True)
class Config:
    """The program; the number of arrays of elements, of dimensions that number the rows, and of those of a row."""
    program: StagedProgram
    arrays: int
    outer: int
    row: int


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """A load at a time in each thread, with the divisions, once for each level; the last walk waits for nothing."""
    forms, levels = problem.forms, len(problem.program.stages.levels)
    each = len(forms.form.dims) * (COST.dimension + COST.array * len(forms.form.arrays))
    waves = ceil_div(max(forms.count, 1), 2048 * device.sms)
    waited = WAITS.load + WAITS.alone * (WAITS.thread + WAITS.dimension * (len(forms.form.dims) - forms.outer))
    apart = zip(forms.form.arrays, forms.form.dims[forms.outer - 1].strides)
    spread = max(min(32, max(abs(s), 1) * a.itemsize) // a.itemsize for a, s in apart)
    return LAUNCH + overlap(waits=waves * levels * forms.length * waited / device.clock_hz,
                            memory=spread * memory_seconds(problem.bytes, device),
                            issue=issue_seconds(forms.form.size, (levels + 1) * each + element_instructions(problem.program), device))


@functools.cache
def kernel(config):
    """All results of a row, one thread each."""
    program, arrays, dims = config.program, config.arrays, config.outer + config.row
    stages = program.stages
    coordinates, inner = make_coordinates(config.outer, any_size=True), make_coordinates(config.row, any_size=True)
    start, end = make_start(program, config.outer), make_end(program, config.outer)

    def with_level(before, level):
        stage, states = stages.levels[level], states_of(program)[level]
        loaded, results = make_element_loads(stage.element, stages.final, arrays, dims), make_results(stage.element)
        SIZE, T, begin, push, merge = states.size, states.type, states.begin, states.push, states.merge
        next_rows = make_next(program, level)

        @device_function
        def run(rows, at, strides, e, length, walk, factor):
            rows = before(rows, at, strides, e, length, walk, factor)
            total, part = cuda.local.array(SIZE, T), cuda.local.array(SIZE, T)
            begin(total)
            for first in range(0, length, STRETCH):
                begin(part)
                for n in range(first, min(first + STRETCH, length)):
                    push(part, results(loaded(at + inner(n, walk), strides, e + (rows,))), 0)
                merge(total, part)
            return next_rows(rows, total, factor)
        return run
    levels = device_function(_first)
    for level in range(len(stages.levels)):
        levels = with_level(levels, level)
    FULL = len(stages.final.stores) > 0
    store, loaded = make_element_stores(stages.final, arrays, dims), make_element_loads(stages.final, stages.final, arrays, dims)
    results = make_results(stages.final) if FULL else None

    @jit(launch_bounds=THREADS)
    def fused_reduction_naive(pointers, row_pointers, rows, length, firsts, row_firsts, sizes, walk, strides, row_strides, numbers, factor):
        row = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if row < rows:
            at, e = coordinates(row, sizes), (pointers, firsts)
            of_row = levels(start(row_pointers, row_firsts, row_strides, numbers, at), at, strides, e, length, walk, factor)
            if FULL:
                for n in range(length):
                    here, whole = at + inner(n, walk), e + (of_row,)
                    store(results(loaded(here, strides, whole)), here, strides, whole)
            end(of_row, row_pointers, row_firsts, row_strides, at)
    return fused_reduction_naive


def _first(rows, at, strides, e, length, walk, factor):
    return rows


def build(problem, device, config):
    """One launch."""
    forms = problem.forms
    form, outer = forms.form, forms.outer
    config = Config(problem.program, len(form.arrays), outer, len(form.dims) - outer)
    pointers = [Argument(element_of(a.dtype).pointer, a.name) for a in form.arrays if a.name]
    row_pointers, row_firsts, row_strides = row_arguments(forms)
    arguments = (struct_argument([a.type for a in pointers], pointers), row_pointers, Argument("int64", forms.count),
                 Argument("int64", forms.length), Argument(f"int64x{len(form.arrays)}", tuple(a.first for a in form.arrays)), row_firsts,
                 coordinate_argument([d.size for d in form.dims[:outer]], any_size=True),
                 coordinate_argument([d.size for d in form.dims[outer:]], any_size=True), stride_argument(form.dims, True), row_strides,
                 number_arguments(problem), factor_argument(problem))
    return (Launch(kernel(config), (max(1, ceil_div(forms.count, THREADS)), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHM = Algorithm(op="fused_reduction", name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      programs=True, reductions=True)

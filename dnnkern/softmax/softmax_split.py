"""Rows split into pieces, one block per piece: for rows of any length, and for few of them. Every row is read twice.

::

    launch 1    piece 0 -> (maximum, sum)   piece 1 -> (maximum, sum)   ...      to the workspace (backward the sum alone)
    launch 2    every block merges the pairs of its row, in the same order, and writes the results of its piece

`block` and `cluster` read a row once, but must hold it whole, and keep no more multiprocessors busy than there are rows or clusters: they
lose where rows are few and long.
"""
import functools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..device import cuda, i32, i64, jit, u32
from ..device.block import add, make_block_reduce, make_block_reduce_pair, merge_softmax
from ..device.convert import element
from ..device.fastmath import maximum
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.rows import RowLayout, make_row, make_row_offsets, row_arguments
from ..device.vec import advance, pin
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, Cost, issue_seconds, memory_seconds, narrow_rate, occupied, overlap, sector_waste
from ..engine.row_program import make_functions
from ..host.dtypes import ITEMSIZE
from ..host.launch import Argument, Launch
from ._math import arithmetic
from .rows._config import row_vectors

if TYPE_CHECKING:
    from ..device.program import Program

COST = constants("softmax/split")

ARRAYS = {2: ("x", "y"), 3: ("dy", "y", "dx")}  # names of the arrays, inputs first
THREADS, LIMIT = 256, 2 ** 31 - 2 ** 20
SCRATCH = THREADS // 8  # two pairs a warp
BLOCKS = 8  # of a multiprocessor that are worth a piece


@dataclass(frozen=True)
class Config:
    """What the kernels are compiled for: `registers` vectors per thread and input are loaded at once; `result` as `rows`' configurations
    have it, and a program and whether its operands have 64-bit strides."""
    dtype: str
    log: bool
    vector_bytes: int
    unaligned: bool
    dims: int
    registers: int
    arrays: int
    result: str = ""
    program: "Program | None" = None
    wide: bool = False

    @property
    def layout(self):
        return RowLayout(self.dtype, self.vector_bytes, THREADS, self.registers, 0, self.unaligned, self.arrays == 2, self.result)


def supports(problem):
    """Rows and counters within 32 bits."""
    form = problem.form
    if form.length >= LIMIT or form.rows * THREADS >= LIMIT:
        return f"{form.rows} rows of {form.length} elements; expected rows of fewer than 2**31 - 2**20, fewer than 2**23 - 2**12 of them"
    return problem.row_refusal


def _config(problem):
    vector_bytes, unaligned = problem.vector
    registers = 4 // (len(problem.arrays) - 1) // (1 + (problem.compute == "float64"))
    return Config(problem.dtype, problem.log, vector_bytes, unaligned, max(1, len(problem.form.outer)), registers, len(problem.arrays),
                  problem.result, problem.program, problem.wide)


def _pieces(problem, device):
    """(pieces of a row, vectors of a piece): whole rounds of a block, and no more pieces than a block has threads to merge them."""
    count, turn = row_vectors(problem), THREADS * _config(problem).registers
    wanted = max(1, min(THREADS, ceil_div(BLOCKS * device.sms, problem.form.rows), ceil_div(count, turn)))
    size = ceil_div(ceil_div(count, wanted), turn) * turn
    return ceil_div(count, size), size


def workspace(problem, device, config):
    """Two numbers a piece forward, one backward."""
    return problem.form.rows * _pieces(problem, device)[0] * ITEMSIZE[problem.compute] * (4 - len(problem.arrays))


def estimate(problem, device, config):
    """Inputs twice, the second time from the L2 where they fit it; two launches."""
    form, itemsize = problem.form, problem.arrays[0].itemsize
    pieces, _ = _pieces(problem, device)
    inputs, outputs = sum(t.nbytes for t in problem.arrays[:-1]), problem.outputs[0].nbytes
    again = COST.again if inputs + outputs < device.l2_bytes // 2 else 1.0
    share = occupied(form.rows * pieces * THREADS, COST.enough, device)
    idle = max(1.0, THREADS * _config(problem).registers / row_vectors(problem)) ** 0.5
    strided = max(sector_waste(itemsize, itemsize) if abs(s) > 1 else 1 for s in form.steps)
    each = COST.element if len(problem.arrays) == 2 else COST.element_bwd
    issue = issue_seconds(outputs // itemsize * each + COST.thread * form.rows * pieces * THREADS, 1, device)
    moved = memory_seconds(inputs * (1 + again) + outputs, device) * strided / narrow_rate(problem.vector[0], itemsize)
    return 2 * LAUNCH + Cost(launch=COST.between) + overlap(memory=moved, issue=issue).slowed(idle=idle / share)


@functools.cache
def sum_kernel(config):
    """The maximum and the sum of dy_words piece, forward; backward the sum alone."""
    layout, compute = config.layout, element(config.dtype).compute
    vec, softmax = make_row(layout), arithmetic(compute, config.log)
    Real, NOTHING = layout.real, -math.inf
    E, WORDS, EDGE_SLOTS, EDGES, REGISTERS = layout.elements, layout.words, layout.edge_slots, layout.edges, config.registers
    row_offsets, hold = make_row_offsets(config.dims, ARRAYS[config.arrays]), pin(WORDS)
    if config.arrays == 2:
        merge = make_block_reduce_pair(merge_softmax, THREADS)

        @jit(launch_bounds=(THREADS, 3))
        def softmax_fwd_pieces(x, partial, pieces, size, length, x_step, divisors, strides):
            scratch = cuda.shared.array(SCRATCH, Real)
            words, values = cuda.local.array(WORDS, u32), cuda.local.array(E, Real)
            edges = cuda.local.array(EDGE_SLOTS, Real)
            lane = cuda.threadIdx.x
            row, piece = divide_remainder(cuda.blockIdx.x, pieces)
            offsets = row_offsets(row, divisors, strides)
            x = advance(x, offsets.x)
            prologue, vectors = vec.split(x, length)
            row_max, row_sum = Real(NOTHING), Real(0)
            if piece == 0:
                vec.load_edges(edges, x, prologue, vectors, length, lane)
                for k in range(EDGES):
                    row_max = maximum(row_max, edges[k])
                for k in range(EDGES):
                    row_sum += softmax.exp(edges[k] - softmax.finite_max(row_max))
            for first in range(piece * size, min(vectors, piece * size + size), THREADS * REGISTERS):
                vec.load(words, advance(x, i64(first) * E * x_step), prologue, vectors - first, lane, x_step)
                old_max = row_max
                for c in range(REGISTERS):
                    vec.unpack(values, words, c)
                    for e in range(E):
                        row_max = maximum(row_max, values[e])
                base = softmax.finite_max(row_max)
                row_sum = row_sum * softmax.exp(old_max - base)
                hold(words)
                for c in range(REGISTERS):
                    vec.unpack(values, words, c)
                    for e in range(E):
                        row_sum += softmax.exp(values[e] - base)
            # reduce over the block
            row_max, row_sum = merge(row_max, row_sum, Real(0), scratch, 0)
            if lane == 0:
                at = 2 * i64(cuda.blockIdx.x)
                partial[at] = row_max
                partial[at + 1] = row_sum
        return softmax_fwd_pieces

    reduce = make_block_reduce(add, THREADS)

    @jit(launch_bounds=(THREADS, 3))
    def softmax_bwd_pieces(dy, y, partial, pieces, size, length, dy_step, y_step, divisors, strides):
        scratch = cuda.shared.array(SCRATCH, Real)
        dy_words, y_words = cuda.local.array(WORDS, u32), cuda.local.array(WORDS, u32)
        dy_values, y_values = cuda.local.array(E, Real), cuda.local.array(E, Real)
        dy_edges, y_edges = cuda.local.array(EDGE_SLOTS, Real), cuda.local.array(EDGE_SLOTS, Real)
        lane = cuda.threadIdx.x
        row, piece = divide_remainder(cuda.blockIdx.x, pieces)
        offsets = row_offsets(row, divisors, strides)
        dy, y = advance(dy, offsets.dy), advance(y, offsets.y)
        prologue, vectors = vec.split(dy, length)
        row_sum = Real(0)
        if piece == 0:
            vec.load_edges(dy_edges, dy, prologue, vectors, length, lane)
            vec.load_edges(y_edges, y, prologue, vectors, length, lane)
            for k in range(EDGES):
                row_sum += softmax.product(dy_edges[k], y_edges[k])
        for first in range(piece * size, min(vectors, piece * size + size), THREADS * REGISTERS):
            vec.load(dy_words, advance(dy, i64(first) * E * dy_step), prologue, vectors - first, lane, dy_step)
            vec.load(y_words, advance(y, i64(first) * E * y_step), prologue, vectors - first, lane, y_step)
            for c in range(REGISTERS):
                vec.unpack(dy_values, dy_words, c)
                vec.unpack(y_values, y_words, c)
                for e in range(E):
                    row_sum += softmax.product(dy_values[e], y_values[e])
        row_sum = reduce(row_sum, scratch, 0)
        if lane == 0:
            partial[cuda.blockIdx.x] = row_sum
    return softmax_bwd_pieces


@functools.cache
def apply_kernel(config):
    """The results of dy_words piece, from what all pieces of the row left."""
    layout, compute = config.layout, element(config.dtype).compute
    vec, softmax = make_row(layout), arithmetic(compute, config.log)
    Real, NOTHING = layout.real, -math.inf
    E, WORDS, EDGE_SLOTS, EDGES, REGISTERS = layout.elements, layout.words, layout.edge_slots, layout.edges, config.registers
    row_offsets, PROGRAM = make_row_offsets(config.dims, ARRAYS[config.arrays]), config.program is not None
    if config.arrays == 2:
        merge = make_block_reduce_pair(merge_softmax, THREADS)
        function, of_vector = make_functions(config.program, compute, config.result or config.dtype, E)

        @jit(launch_bounds=(THREADS, 3))
        def softmax_fwd_apply(x, y, partial, pieces, size, length, x_step, y_step, divisors, strides, operands):
            scratch = cuda.shared.array(SCRATCH, Real)
            words, values = cuda.local.array(WORDS, u32), cuda.local.array(E, Real)
            edges = cuda.local.array(EDGE_SLOTS, Real)
            lane = cuda.threadIdx.x
            row, piece = divide_remainder(cuda.blockIdx.x, pieces)
            count = i32(pieces[0])
            row_max, row_sum = Real(NOTHING), Real(0)
            if lane < count:
                at = 2 * (i64(row) * count + lane)
                row_max, row_sum = partial[at], partial[at + 1]
            row_max, row_sum = merge(row_max, row_sum, Real(0), scratch, 0)
            norm = softmax.normaliser(row_sum)
            offsets = row_offsets(row, divisors, strides)
            x, y = advance(x, offsets.x), advance(y, offsets.y)
            prologue, vectors = vec.split(x, length)
            if piece == 0:
                vec.load_edges(edges, x, prologue, vectors, length, lane)
                for k in range(EDGES):
                    edges[k] = softmax.result(edges[k], row_max, norm)
                    if PROGRAM:
                        edge = lane + k * THREADS
                        if edge >= prologue:
                            edge = edge + vectors * E
                        if edge < length:
                            edges[k] = function(edges[k], row, edge, operands)
                vec.write_edges(y, edges, prologue, vectors, length, lane)
            for first in range(piece * size, min(vectors, piece * size + size), THREADS * REGISTERS):
                left = vectors - first
                vec.load(words, advance(x, i64(first) * E * x_step), prologue, left, lane, x_step)
                for c in range(REGISTERS):
                    vec.unpack(values, words, c)
                    for e in range(E):
                        values[e] = softmax.result(values[e], row_max, norm)
                    if PROGRAM:
                        i = first + lane + c * THREADS
                        if i < vectors:
                            of_vector(0, (values, row, prologue + i * E, operands))
                    vec.write(advance(y, i64(first) * E * y_step), words, c, values, prologue, left, lane, y_step)
        return softmax_fwd_apply

    reduce = make_block_reduce(add, THREADS)

    @jit(launch_bounds=(THREADS, 3))
    def softmax_bwd_apply(dy, y, dx, partial, pieces, size, length, dy_step, y_step, dx_step, divisors, strides):
        scratch = cuda.shared.array(SCRATCH, Real)
        dy_words, y_words = cuda.local.array(WORDS, u32), cuda.local.array(WORDS, u32)
        dy_values, y_values = cuda.local.array(E, Real), cuda.local.array(E, Real)
        dy_edges, y_edges = cuda.local.array(EDGE_SLOTS, Real), cuda.local.array(EDGE_SLOTS, Real)
        lane = cuda.threadIdx.x
        row, piece = divide_remainder(cuda.blockIdx.x, pieces)
        count = i32(pieces[0])
        row_sum = Real(0)
        if lane < count:
            row_sum = partial[i64(row) * count + lane]
        row_sum = reduce(row_sum, scratch, 0)
        offsets = row_offsets(row, divisors, strides)
        dy, y, dx = advance(dy, offsets.dy), advance(y, offsets.y), advance(dx, offsets.dx)
        prologue, vectors = vec.split(dy, length)
        if piece == 0:
            vec.load_edges(dy_edges, dy, prologue, vectors, length, lane)
            vec.load_edges(y_edges, y, prologue, vectors, length, lane)
            for k in range(EDGES):
                dy_edges[k] = softmax.gradient(dy_edges[k], y_edges[k], row_sum)
            vec.store_edges(dx, dy_edges, prologue, vectors, length, lane)
        for first in range(piece * size, min(vectors, piece * size + size), THREADS * REGISTERS):
            left = vectors - first
            vec.load(dy_words, advance(dy, i64(first) * E * dy_step), prologue, left, lane, dy_step)
            vec.load(y_words, advance(y, i64(first) * E * y_step), prologue, left, lane, y_step)
            for c in range(REGISTERS):
                vec.unpack(dy_values, dy_words, c)
                vec.unpack(y_values, y_words, c)
                for e in range(E):
                    dy_values[e] = softmax.gradient(dy_values[e], y_values[e], row_sum)
                vec.pack(dy_words, c, dy_values)
                vec.store(advance(dx, i64(first) * E * dx_step), dy_words, c, prologue, left, lane, dx_step)
    return softmax_bwd_apply


def build(problem, device, config):
    """Two launches."""
    config, form, p = _config(problem), problem.form, problem
    pieces, size = _pieces(problem, device)
    pointer, (divisors, strides) = element(p.dtype).pointer, row_arguments(form)
    inputs = [Argument(pointer, name) for name in (("x",) if config.arrays == 2 else ("dy", "y"))]
    output = Argument(element(p.outputs[0].dtype).pointer, "y" if config.arrays == 2 else "dx")
    partial = Argument(f"{p.compute}*", "workspace")
    middle = partial, Argument("uint32x3", divisor(pieces)), Argument("int32", size), Argument("int32", form.length)
    steps = [Argument("int64", s) for s in form.steps]
    last = Argument(f"uint32x{len(divisors)}", divisors), Argument(f"int64x{len(strides)}", strides)
    grid, block = (form.rows * pieces, 1, 1), (THREADS, 1, 1)
    operands = (problem.operands_argument(),) if config.arrays == 2 else ()
    return (Launch(sum_kernel(replace(config, program=None, wide=False)), grid, block, (*inputs, *middle, *steps[:-1], *last)),
            Launch(apply_kernel(config), grid, block, (*inputs, output, *middle, *steps, *last, *operands)))


ALGORITHMS = tuple(Algorithm(op=op, name="split", supports=supports, workspace=workspace, estimate=estimate, build=build,
                             programs=op == "softmax_fwd")
                   for op in ("softmax_fwd", "softmax_bwd"))

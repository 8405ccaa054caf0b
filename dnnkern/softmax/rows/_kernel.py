"""Softmax of rows that a group of threads holds: the kernels of `warp`, `block` and `cluster`, which differ in the group's size.

::

    global memory     x[row]  | vector 0 | vector 1 | ...              read once, 16 bytes per load
                                  |          |
    registers         lane 0   words     lane 1   words  ...          packed; unpacked again in each of the three passes
                                  |  1. row maximum, per lane
                                  |  2. sum of exponentials below it, per lane
                          lanes merge their pairs (maximum, sum):      warp: shuffles; block: shared memory, one barrier;
                                  |                                    cluster: each other's shared memory, one cluster barrier
                                  |  3. exp(x - maximum) / sum
    global memory     y[row]  | vector 0 | vector 1 | ...              written once

A group within a warp reduces the maximum first, so its sums need no rescaling; larger groups merge both at once, as Milakov and
Gimelshein's online softmax does. Backward there is one sum, of y * dy. How a row is split among lanes is in `device.rows`.
"""
import functools
import math

from ...device import cuda, device_function, i32, jit, u32
from ...device.block import add, make_block_reduce, make_block_reduce_pair, merge_softmax, merge_sums
from ...device.cluster import cluster_arrive_relaxed, cluster_rank, cluster_wait
from ...device.convert import element
from ...device.fastmath import maximum
from ...device.index import ceil_div
from ...device.rows import make_cluster_pair, make_row, make_row_offsets, row_arguments
from ...device.vec import advance, pin, shared_address
from ...device.warp import make_reduce
from ...engine.ahead import make_wait
from ...engine.row_program import make_functions
from ...host.launch import Argument, Launch
from .._math import arithmetic


@functools.cache
def forward_kernel(config, dependent):
    """y = softmax(x), or its logarithm."""
    layout, softmax = config.layout, arithmetic(element(config.dtype).compute, config.log)
    row, row_offsets, hold = make_row(layout, config.threads), make_row_offsets(config.dims, ("x", "y")), pin(layout.words)
    Real, E, WORDS, VECTOR_WORDS = layout.real, layout.elements, layout.words, layout.vector_words
    REGISTERS, SHARED, EDGES, EDGE_SLOTS, NOTHING = config.registers, config.shared, layout.edges, layout.edge_slots, -math.inf
    THREADS, LANES, CLUSTER = config.threads, config.lanes, config.cluster
    ROWS, LANES_LOG, CLUSTER_LOG = THREADS // LANES, LANES.bit_length() - 1, CLUSTER.bit_length() - 1
    SCRATCH, SLOTS = 1 if LANES <= 32 else THREADS // 8, 2 * CLUSTER
    TOGETHER, PROGRAM, (wait, release) = LANES * CLUSTER, config.program is not None, make_wait(dependent)
    function, of_vector = make_functions(config.program, element(config.dtype).compute, config.result or config.dtype, E)

    if LANES <= 32:
        reduce_max, reduce_sum = make_reduce(maximum, LANES), make_reduce(add, LANES)

        @device_function
        def warp_max(row_max):
            return reduce_max(row_max)

        @device_function
        def merge_lanes(row_max, row_sum, scratch, slots):
            return row_max, reduce_sum(row_sum)
    else:
        merge_block = make_block_reduce_pair(merge_softmax, THREADS)
        merge_cluster = make_cluster_pair(merge_softmax, CLUSTER)

        @device_function
        def warp_max(row_max):
            return row_max

        @device_function
        def merge_lanes(row_max, row_sum, scratch, slots):
            row_max, row_sum = merge_block(row_max, row_sum, Real(0), scratch, 0)
            if CLUSTER > 1:
                cluster_wait()
                row_max, row_sum = merge_cluster(row_max, row_sum, Real(0), slots)
            return row_max, row_sum

    @jit(launch_bounds=(THREADS, config.blocks))
    def softmax_fwd_rows(x, y, rows, length, x_step, y_step, divisors, strides, operands):
        wait()
        dynamic = cuda.shared.array(0, u32, alignment=16)
        scratch, slots = cuda.shared.array(SCRATCH, Real), cuda.shared.array(SLOTS, Real)
        words, part = cuda.local.array(WORDS, u32), cuda.local.array(VECTOR_WORDS, u32)
        values, edges = cuda.local.array(E, Real), cuda.local.array(EDGE_SLOTS, Real)

        # the row of this group of threads
        thread = cuda.threadIdx.x
        lane = thread & (LANES - 1)
        n = cuda.blockIdx.x * ROWS + (thread >> LANES_LOG)
        if CLUSTER > 1:
            n = cuda.blockIdx.x >> CLUSTER_LOG
            lane = lane + cluster_rank() * LANES
            cluster_arrive_relaxed()
        size = length if n < rows else 0
        offsets = row_offsets(n if n < rows else 0, divisors, strides)
        x, y = advance(x, offsets.x), advance(y, offsets.y)

        # load
        prologue, vectors = row.split(x, size)
        smem, overflow = u32(0), i32(0)
        if SHARED:
            smem = shared_address(dynamic, 0) + 16 * u32(thread)
            row.copy_overflow(smem, x, prologue, vectors, lane)
        row.load(words, x, prologue, vectors, lane, x_step)
        row.load_edges(edges, x, prologue, vectors, size, lane)

        # row maximum
        row_max = Real(NOTHING)
        for c in range(REGISTERS):
            row.unpack(values, words, c)
            for e in range(E):
                row_max = maximum(row_max, values[e])
        for k in range(EDGES):
            row_max = maximum(row_max, edges[k])
        if SHARED:
            overflow = row.wait_overflow(vectors, lane)
            for c in range(overflow):
                row.load_overflow(part, smem, c)
                row.unpack(values, part, 0)
                for e in range(E):
                    row_max = maximum(row_max, values[e])
        row_max = warp_max(row_max)

        # sum of exponentials
        base, row_sum = softmax.finite_max(row_max), Real(0)
        hold(words)
        for c in range(REGISTERS):
            row.unpack(values, words, c)
            for e in range(E):
                row_sum += softmax.exp(values[e] - base)
        for k in range(EDGES):
            row_sum += softmax.exp(edges[k] - base)
        if SHARED:
            for c in range(overflow):
                row.load_overflow(part, smem, c)
                row.unpack(values, part, 0)
                for e in range(E):
                    row_sum += softmax.exp(values[e] - base)
        row_max, row_sum = merge_lanes(row_max, row_sum, scratch, slots)
        release()

        # normalise and store
        norm = softmax.normaliser(row_sum)
        hold(words)
        for c in range(REGISTERS):
            row.unpack(values, words, c)
            for e in range(E):
                values[e] = softmax.result(values[e], row_max, norm)
            if PROGRAM:
                if lane + c * TOGETHER < vectors:
                    of_vector(0, (values, n, prologue + (lane + c * TOGETHER) * E, operands))
            row.write(y, words, c, values, prologue, vectors, lane, y_step)
        for k in range(EDGES):
            edges[k] = softmax.result(edges[k], row_max, norm)
            if PROGRAM:
                at = lane + k * TOGETHER
                if at >= prologue:
                    at = at + vectors * E
                if at < size:
                    edges[k] = function(edges[k], n, at, operands)
        row.write_edges(y, edges, prologue, vectors, size, lane)
        if SHARED:
            for c in range(overflow):
                row.load_overflow(part, smem, c)
                row.unpack(values, part, 0)
                for e in range(E):
                    values[e] = softmax.result(values[e], row_max, norm)
                if PROGRAM:
                    of_vector(0, (values, n, prologue + (lane + (c + REGISTERS) * TOGETHER) * E, operands))
                row.write_overflow(y, part, c, values, prologue, vectors, lane)
    return softmax_fwd_rows


@functools.cache
def backward_kernel(config, dependent):
    """dx from dy and y."""
    layout, softmax = config.layout, arithmetic(element(config.dtype).compute, config.log)
    row, row_offsets, hold = make_row(layout, config.threads), make_row_offsets(config.dims, ("dy", "y", "dx")), pin(layout.words)
    Real, E, WORDS = layout.real, layout.elements, layout.words
    REGISTERS, EDGES, EDGE_SLOTS = config.registers, layout.edges, layout.edge_slots
    THREADS, LANES, CLUSTER = config.threads, config.lanes, config.cluster
    ROWS, LANES_LOG, CLUSTER_LOG = THREADS // LANES, LANES.bit_length() - 1, CLUSTER.bit_length() - 1
    SCRATCH, SLOTS, (wait, release) = 1 if LANES <= 32 else THREADS // 16, 2 * CLUSTER, make_wait(dependent)

    if LANES <= 32:
        reduce_sum = make_reduce(add, LANES)

        @device_function
        def merge_lanes(row_sum, scratch, slots):
            return reduce_sum(row_sum)
    else:
        reduce_block = make_block_reduce(add, THREADS)
        merge_cluster = make_cluster_pair(merge_sums, CLUSTER)

        @device_function
        def merge_lanes(row_sum, scratch, slots):
            row_sum = reduce_block(row_sum, scratch, 0)
            if CLUSTER > 1:
                cluster_wait()
                row_sum, _ = merge_cluster(row_sum, row_sum, Real(0), slots)
            return row_sum

    @jit(launch_bounds=(THREADS, config.blocks))
    def softmax_bwd_rows(dy, y, dx, rows, length, dy_step, y_step, dx_step, divisors, strides):
        wait()
        scratch, slots = cuda.shared.array(SCRATCH, Real), cuda.shared.array(SLOTS, Real)
        dy_words, y_words = cuda.local.array(WORDS, u32), cuda.local.array(WORDS, u32)
        dy_values, y_values = cuda.local.array(E, Real), cuda.local.array(E, Real)
        dy_edges, y_edges = cuda.local.array(EDGE_SLOTS, Real), cuda.local.array(EDGE_SLOTS, Real)

        # the row of this group of threads
        thread = cuda.threadIdx.x
        lane = thread & (LANES - 1)
        n = cuda.blockIdx.x * ROWS + (thread >> LANES_LOG)
        if CLUSTER > 1:
            n = cuda.blockIdx.x >> CLUSTER_LOG
            lane = lane + cluster_rank() * LANES
            cluster_arrive_relaxed()
        size = length if n < rows else 0
        offsets = row_offsets(n if n < rows else 0, divisors, strides)
        dy, y, dx = advance(dy, offsets.dy), advance(y, offsets.y), advance(dx, offsets.dx)

        # load
        prologue, vectors = row.split(dy, size)
        row.load(dy_words, dy, prologue, vectors, lane, dy_step)
        row.load(y_words, y, prologue, vectors, lane, y_step)
        row.load_edges(dy_edges, dy, prologue, vectors, size, lane)
        row.load_edges(y_edges, y, prologue, vectors, size, lane)

        # sum of y * dy (of dy, for the logarithm)
        row_sum = Real(0)
        for c in range(REGISTERS):
            row.unpack(dy_values, dy_words, c)
            row.unpack(y_values, y_words, c)
            for e in range(E):
                row_sum += softmax.product(dy_values[e], y_values[e])
        for k in range(EDGES):
            row_sum += softmax.product(dy_edges[k], y_edges[k])
        row_sum = merge_lanes(row_sum, scratch, slots)
        release()

        # gradient
        hold(dy_words)
        hold(y_words)
        for c in range(REGISTERS):
            row.unpack(dy_values, dy_words, c)
            row.unpack(y_values, y_words, c)
            for e in range(E):
                dy_values[e] = softmax.gradient(dy_values[e], y_values[e], row_sum)
            row.pack(dy_words, c, dy_values)
            row.store(dx, dy_words, c, prologue, vectors, lane, dx_step)
        for k in range(EDGES):
            dy_edges[k] = softmax.gradient(dy_edges[k], y_edges[k], row_sum)
        row.store_edges(dx, dy_edges, prologue, vectors, size, lane)
    return softmax_bwd_rows


def build(problem, device, config):
    """One launch."""
    form, names = problem.form, ("x", "y") if config.arrays == 2 else ("dy", "y", "dx")
    divisors, strides = row_arguments(form)
    arguments = (*(Argument(element(t.dtype).pointer, name) for t, name in zip(problem.arrays, names)), Argument("int32", form.rows),
                 Argument("int32", form.length), *(Argument("int64", s) for s in form.steps),
                 Argument(f"uint32x{len(divisors)}", divisors), Argument(f"int64x{len(strides)}", strides))
    arguments += (problem.operands_argument(),) if config.arrays == 2 else ()
    dependent = device.capability >= (9, 0)
    kernel = (forward_kernel if config.arrays == 2 else backward_kernel)(config, dependent)
    grid = ceil_div(form.rows, config.threads // config.lanes) * config.cluster
    return (Launch(kernel, (grid, 1, 1), (config.threads, 1, 1), arguments, shared=config.shared_bytes, cluster=(config.cluster, 1, 1),
                   dependent=dependent),)

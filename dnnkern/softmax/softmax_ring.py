"""Rows through a ring in shared memory: persistent blocks, or clusters of them, loop over the rows.

::

    global memory   row n + 3 | row n + 2 | row n + 1 | row n | row n - 1
    ring (TMA)      in flight   in flight   reduced     sums     written
                                            by threads  sent to the cluster

`block` and `cluster` hold a row, and read nothing while its threads wait for each other. Here bulk copies load later rows meanwhile
(`device.ring`), and the sums that the blocks of a cluster exchange are used one step later. Rows are read once from global memory, twice
from the ring. Wins for long rows and many of them; needs rows of whole 16-byte vectors.
"""
import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..device import cuda, device_function, f32, i64, jit, u32
from ..device.block import add
from ..device.cluster import cluster_rank, cluster_wait
from ..device.convert import element
from ..device.fastmath import maximum
from ..device.index import ceil_div
from ..device.ring import TURNS, Ring, clusters, make_ring, rings
from ..device.rows import RowLayout, make_row, make_row_offsets, row_arguments
from ..device.vec import advance, as_u32, pin, shared_address, store4_from
from ..device.warp import make_reduce
from ..dispatch import Algorithm
from ..engine.ahead import make_follow
from ..engine.constants import constants
from ..engine.cost import ring_seconds
from ..engine.programs import NOTHING
from ..engine.row_program import make_functions
from ..host.dtypes import ITEMSIZE
from ..host.launch import Argument, Launch
from ._math import arithmetic
from .rows._config import refusal, row_vectors

if TYPE_CHECKING:
    from ..device.program import Program

COST = constants("softmax/ring")

MOST = 8 * 512 * 4  # vectors of a row: blocks of a cluster, threads of a block, vectors of a thread
UNROLLED = 32       # elements of a thread that the compiler keeps in registers


@dataclass(frozen=True)
class Config:
    """What the kernel is compiled for.

    Attributes
    ----------
    dtype, log
        As the problem's.
    dims : int
        Dimensions besides the axis, 1 at least.
    ring : Ring
    program : Program or None
        Of y.
    wide : bool
        Whether its operands have 64-bit strides.
    """
    dtype: str
    log: bool
    dims: int
    ring: Ring
    program: "Program | None" = None
    wide: bool = False

    def __str__(self):
        return str(self.ring) + f", {self.program}" * (self.program is not None)


def supports(problem):
    """Rows of whole 16-byte vectors, which bulk copies can bring, and float32 sums, which blocks can exchange."""
    if problem.compute != "float32":
        return f"sums of {problem.dtype} are float64; blocks exchange float32"
    if problem.result:
        return f"the result is {problem.result}; expected x's {problem.dtype}"
    vector_bytes, unaligned = problem.vector
    if vector_bytes != 16 or unaligned:
        return f"rows begin or end off a multiple of 16 bytes; vectors are {vector_bytes} bytes{', with unaligned' * unaligned}"
    if row_vectors(problem) > MOST:
        return f"rows of {problem.form.length} elements are {row_vectors(problem)} 16-byte vectors; a cluster has {MOST}"
    return refusal(problem)


def fits(problem, device):
    """Shared memory for a ring."""
    return None if configs(problem, device) else f"rows of {problem.form.length} elements: no ring of four stages fits shared memory"


def workspace(problem, device, config):
    """None."""
    return 0


def configs(problem, device):
    """Rings with few enough elements of a thread."""
    found = rings(problem.form.rows, row_vectors(problem), len(problem.arrays) - 1, device)
    return [Config(problem.dtype, problem.log, max(1, len(problem.form.outer)), ring, problem.program, problem.wide) for ring in found
            if ring.units * 16 // ITEMSIZE[problem.dtype] <= UNROLLED]


def seconds(problem, device, config):
    """See `ring_seconds`."""
    ring, rows = config.ring, problem.form.rows
    instructions = (COST.fwd if ring.inputs == 1 else COST.bwd) * 16 // ITEMSIZE[problem.dtype]
    return ring_seconds(ring, clusters(ring, device, rows), rows, problem.bytes, instructions, device)


@functools.cache
def kernel(config):
    """y = softmax(x), or its logarithm; or dx from dy and y."""
    ring, softmax = config.ring, arithmetic("float32", config.log)
    layout = RowLayout(config.dtype, 16, ring.threads, ring.units)
    vec, Real, E = make_row(layout), f32, layout.elements
    UNITS, ROWS, STAGES, STAGE, CLUSTER, WHOLE = ring.units, ring.rows, ring.stages, ring.stage_bytes, ring.cluster, ring.whole
    BLOCK, BLOCKS, WARPS, CLUSTER_LOG = ring.threads, ring.resident, ring.threads // 32, ring.cluster.bit_length() - 1
    FORWARD, ARRAYS, VALUES = ring.inputs == 1, ring.inputs + 1, 3 - ring.inputs
    SENT, LAST, WORDS, NOTHING = VALUES * ROWS, BLOCK - 32, 4 * UNITS, -math.inf
    HALF, SLOTS = SENT * WARPS, TURNS * SENT * CLUSTER
    SCRATCH, begin_grid = 2 * HALF, make_follow(True)
    pipe, turns, prepare, start, fetch, send, wait, leave = make_ring(ring, SENT, config.dims, ARRAYS)
    row_offsets, hold = make_row_offsets(config.dims, ("a", "out") if FORWARD else ("a", "b", "out")), pin(WORDS)
    warp_max, PROGRAM = make_reduce(maximum), config.program is not None
    _, of_vector = make_functions(config.program, "float32", config.dtype, E)

    def make_merge(lanes):
        """Device function ``merge(row_max, row_sum)``: these of aligned lanes, merged in every lane; backward the sum alone."""
        reduce_max, reduce_sum = make_reduce(maximum, lanes), make_reduce(add, lanes)

        @device_function
        def merge(row_max, row_sum):
            if FORWARD:
                merged_max = reduce_max(row_max)
                row_sum, row_max = row_sum * softmax.exp(row_max - softmax.finite_max(merged_max)), merged_max
            return row_max, reduce_sum(row_sum)
        return merge
    merge_warps, merge_blocks, reduce_sum = make_merge(WARPS), make_merge(CLUSTER), make_reduce(add)

    @device_function
    def maximum_and_sum(words, values, at, k, own):
        row_max, row_sum = Real(NOTHING), Real(0)
        for c in range(UNITS):
            if WHOLE or c < own:
                fetch(words, 4 * c, at, k, 0, c)
                vec.unpack(values, words, c)
                for e in range(E):
                    row_max = maximum(row_max, values[e])
        row_max = warp_max(row_max)
        base_max = softmax.finite_max(row_max)
        hold(words)
        for c in range(UNITS):
            if WHOLE or c < own:
                vec.unpack(values, words, c)
                for e in range(E):
                    row_sum += softmax.exp(values[e] - base_max)
        return row_max, reduce_sum(row_sum)

    @device_function
    def sum_of_products(part, values, y_values, at, k, own):
        row_sum = Real(0)
        for c in range(UNITS):
            if WHOLE or c < own:
                fetch(part, 0, at, k, 0, c)
                vec.unpack(values, part, 0)
                fetch(part, 0, at, k, 1, c)
                vec.unpack(y_values, part, 0)
                for e in range(E):
                    row_sum += softmax.product(values[e], y_values[e])
        return reduce_sum(row_sum)

    @jit(launch_bounds=(BLOCK, BLOCKS))
    def softmax_ring(a, b, out, rows, vectors, share, step, steps, divisors, strides, operands):
        dynamic, scratch = cuda.shared.array(0, u32, alignment=16), cuda.shared.array(SCRATCH, Real)
        slots, landed, sent = cuda.shared.array(SLOTS, Real), cuda.shared.array(STAGES, i64), cuda.shared.array(TURNS, i64)
        words, part, sums = cuda.local.array(WORDS, u32), cuda.local.array(4, u32), cuda.local.array(SENT, Real)
        values, y_values = cuda.local.array(E, Real), cuda.local.array(E, Real)
        thread, rank = cuda.threadIdx.x, cluster_rank()
        first, stride = cuda.blockIdx.x >> CLUSTER_LOG, step * ROWS
        begin = rank * share
        count = min(max(vectors - begin, 0), share)
        own = 0
        for c in range(UNITS):
            own = c + 1 if thread + c * BLOCK < count else own
        bars, met = pipe.barriers(shared_address(landed, 0)), turns.barriers(shared_address(sent, 0))
        prepare(bars, met)
        begin_grid()
        base = shared_address(dynamic, 0)
        corner = base + 16 * u32(thread)
        # fill the ring
        if thread == LAST:
            state = pipe.producer_start()
            for s in range(STAGES):
                start(base, bars, state, a, b, first + s * stride, step, rows, begin, count, divisors, strides)
                state = pipe.next(state)
        cluster_wait()
        row, state, last, free = first, pipe.consumer_start(), pipe.consumer_start(), pipe.consumer_start()
        for turn in range(steps + 1):
            last_at = corner + last.stage * STAGE
            # reduce this step's rows, and send the sums to the cluster
            if row < rows:
                if WHOLE or count > 0:
                    pipe.consumer_wait(bars, state)
                at, half = corner + state.stage * STAGE, (turn & 1) * HALF
                for k in range(ROWS):
                    row_max, row_sum = Real(NOTHING), Real(0)
                    if ROWS == 1 or row + k * step < rows:
                        if FORWARD:
                            row_max, row_sum = maximum_and_sum(words, values, at, k, own)
                        else:
                            row_sum = sum_of_products(part, values, y_values, at, k, own)
                    if thread & 31 == 0:
                        slot = half + VALUES * (WARPS * k) + VALUES * (thread >> 5)
                        scratch[slot] = row_sum
                        if FORWARD:
                            scratch[slot + 1] = row_max
                cuda.syncthreads()
                if thread == LAST and turn >= 2:
                    start(base, bars, free, a, b, row + (STAGES - 2) * stride, step, rows, begin, count, divisors, strides)
                if thread < 32:
                    for k in range(ROWS):
                        slot = half + VALUES * (WARPS * k) + VALUES * (thread & (WARPS - 1))
                        row_max, row_sum = merge_warps(scratch[slot + 1] if FORWARD else Real(0), scratch[slot])
                        sums[k * VALUES] = row_sum
                        if FORWARD:
                            sums[k * VALUES + 1] = row_max
                    send(sums, slots, met, turn)
            # write the rows of the step before, whose sums have arrived
            if turn > 0 and row - stride < rows:
                slot = wait(met, turn - 1) + (thread & (CLUSTER - 1)) * SENT
                for k in range(ROWS):
                    line = row - stride + k * step
                    if ROWS == 1 or line < rows:
                        row_max, row_sum = merge_blocks(slots[slot + k * VALUES + 1] if FORWARD else Real(0), slots[slot + k * VALUES])
                        norm = softmax.normaliser(row_sum) if FORWARD else row_sum
                        offsets = row_offsets(line, divisors, strides)
                        q = as_u32(advance(out, offsets.out + begin * i64(E)))
                        for c in range(UNITS):
                            if WHOLE or c < own:
                                fetch(part, 0, last_at, k, 0, c)
                                vec.unpack(values, part, 0)
                                if FORWARD:
                                    for e in range(E):
                                        values[e] = softmax.result(values[e], row_max, norm)
                                    if PROGRAM:
                                        of_vector(0, (values, line, (begin + thread + c * BLOCK) * E, operands))
                                else:
                                    fetch(part, 0, last_at, k, 1, c)
                                    vec.unpack(y_values, part, 0)
                                    for e in range(E):
                                        values[e] = softmax.gradient(values[e], y_values[e], norm)
                                vec.pack(part, 0, values)
                                store4_from(q, 4 * (thread + c * BLOCK), part, 0)
            row, free, last, state = row + stride, last, state, pipe.next(state)
        leave()
    return softmax_ring


def build(problem, device, config):
    """One launch."""
    form, ring, names = problem.form, config.ring, ("x", "x", "y") if len(problem.arrays) == 2 else ("dy", "y", "dx")
    divisors, strides = row_arguments(form)
    slots, count = clusters(ring, device, form.rows), row_vectors(problem)
    steps = ceil_div(form.rows, slots * ring.rows)
    arguments = (*(Argument(element(problem.dtype).pointer, name) for name in names),
                 *(Argument("int32", n) for n in (form.rows, count, ceil_div(count, ring.cluster), slots, steps)),
                 Argument(f"uint32x{len(divisors)}", divisors), Argument(f"int64x{len(strides)}", strides),
                 problem.operands_argument() if len(problem.arrays) == 2 else NOTHING)
    return (Launch(kernel(config), (slots * ring.cluster, 1, 1), (ring.threads, 1, 1), arguments, shared=ring.shared_bytes,
                   cluster=(ring.cluster, 1, 1), dependent=True),)


ALGORITHMS = tuple(Algorithm(op=op, name="ring", supports=supports, workspace=workspace, estimate=seconds, build=build, configs=configs,
                             fits=fits, arch="sm_90+", programs=op == "softmax_fwd") for op in ("softmax_fwd", "softmax_bwd"))

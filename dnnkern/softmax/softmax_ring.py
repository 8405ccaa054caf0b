"""Rows that come through a ring in shared memory: blocks, or clusters of them, go through the rows.

`block` and `cluster` hold a row, and read nothing while its threads meet. Here bulk copies bring later rows meanwhile (`device.ring`), and
what the blocks of a cluster tell each other is a step old when it is used. Rows are read once from memory, and twice from the ring.
"""
import functools
import math
from dataclasses import dataclass

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
from ..engine.constants import constants
from ..engine.cost import ring_seconds
from ..host.dtypes import ITEMSIZE
from ..host.launch import Argument, Launch
from ._math import arithmetic
from .rows._config import refusal, row_vectors

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
    """
    dtype: str
    log: bool
    dims: int
    ring: Ring

    def __str__(self):
        return str(self.ring)


def supports(problem):
    """Rows of whole 16-byte vectors, which bulk copies can bring, and float32 sums, which blocks can exchange."""
    if problem.compute != "float32":
        return f"sums of {problem.dtype} are float64; blocks exchange float32"
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
    return [Config(problem.dtype, problem.log, max(1, len(problem.form.outer)), ring) for ring in found
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
    SCRATCH = 2 * HALF
    pipe, turns, prepare, start, fetch, send, wait, leave = make_ring(ring, SENT, config.dims, ARRAYS)
    row_offsets, hold = make_row_offsets(config.dims, ("a", "out") if FORWARD else ("a", "b", "out")), pin(WORDS)
    widest = make_reduce(maximum)

    def make_meeting(lanes):
        """Device function ``meet(m, total)``: maxima, and sums of exponentials below them, of aligned lanes as of all, in every lane;
        backward sums alone."""
        top_of, whole = make_reduce(maximum, lanes), make_reduce(add, lanes)

        @device_function
        def meet(m, total):
            if FORWARD:
                top = top_of(m)
                total, m = total * softmax.exp(m - softmax.finite_max(top)), top
            return m, whole(total)
        return meet
    in_block, in_cluster, whole = make_meeting(WARPS), make_meeting(CLUSTER), make_reduce(add)

    @device_function
    def maximum_and_sum(words, values, at, k, mine):
        m, total = Real(NOTHING), Real(0)
        for c in range(UNITS):
            if WHOLE or c < mine:
                fetch(words, 4 * c, at, k, 0, c)
                vec.unpack(values, words, c)
                for e in range(E):
                    m = maximum(m, values[e])
        m = widest(m)
        low = softmax.finite_max(m)
        hold(words)
        for c in range(UNITS):
            if WHOLE or c < mine:
                vec.unpack(values, words, c)
                for e in range(E):
                    total += softmax.exp(values[e] - low)
        return m, whole(total)

    @device_function
    def sum_of_products(part, values, others, at, k, mine):
        total = Real(0)
        for c in range(UNITS):
            if WHOLE or c < mine:
                fetch(part, 0, at, k, 0, c)
                vec.unpack(values, part, 0)
                fetch(part, 0, at, k, 1, c)
                vec.unpack(others, part, 0)
                for e in range(E):
                    total += softmax.product(values[e], others[e])
        return whole(total)

    @jit(launch_bounds=(BLOCK, BLOCKS))
    def softmax_ring(a, b, out, rows, vectors, share, step, steps, divisors, strides):
        dynamic, scratch = cuda.shared.array(0, u32, alignment=16), cuda.shared.array(SCRATCH, Real)
        slots, landed, sent = cuda.shared.array(SLOTS, Real), cuda.shared.array(STAGES, i64), cuda.shared.array(TURNS, i64)
        words, part, sums = cuda.local.array(WORDS, u32), cuda.local.array(4, u32), cuda.local.array(SENT, Real)
        values, others = cuda.local.array(E, Real), cuda.local.array(E, Real)
        thread, rank = cuda.threadIdx.x, cluster_rank()
        first, stride = cuda.blockIdx.x >> CLUSTER_LOG, step * ROWS
        begin = rank * share
        count = min(max(vectors - begin, 0), share)
        mine = 0
        for c in range(UNITS):
            mine = c + 1 if thread + c * BLOCK < count else mine
        bars, met = pipe.barriers(shared_address(landed, 0)), turns.barriers(shared_address(sent, 0))
        prepare(bars, met)
        base = shared_address(dynamic, 0)
        corner = base + 16 * u32(thread)
        if thread == LAST:
            state = pipe.producer_start()
            for s in range(STAGES):
                start(base, bars, state, a, b, first + s * stride, step, rows, begin, count, divisors, strides)
                state = pipe.next(state)
        cluster_wait()
        row, state, last, free = first, pipe.consumer_start(), pipe.consumer_start(), pipe.consumer_start()
        for turn in range(steps + 1):
            was = corner + last.stage * STAGE
            if row < rows:
                if WHOLE or count > 0:
                    pipe.consumer_wait(bars, state)
                at, half = corner + state.stage * STAGE, (turn & 1) * HALF
                for k in range(ROWS):
                    m, total = Real(NOTHING), Real(0)
                    if ROWS == 1 or row + k * step < rows:
                        if FORWARD:
                            m, total = maximum_and_sum(words, values, at, k, mine)
                        else:
                            total = sum_of_products(part, values, others, at, k, mine)
                    if thread & 31 == 0:
                        place = half + VALUES * (WARPS * k) + VALUES * (thread >> 5)
                        scratch[place] = total
                        if FORWARD:
                            scratch[place + 1] = m
                cuda.syncthreads()
                if thread == LAST and turn >= 2:
                    start(base, bars, free, a, b, row + (STAGES - 2) * stride, step, rows, begin, count, divisors, strides)
                if thread < 32:
                    for k in range(ROWS):
                        place = half + VALUES * (WARPS * k) + VALUES * (thread & (WARPS - 1))
                        m, total = in_block(scratch[place + 1] if FORWARD else Real(0), scratch[place])
                        sums[k * VALUES] = total
                        if FORWARD:
                            sums[k * VALUES + 1] = m
                    send(sums, slots, met, turn)
            if turn > 0 and row - stride < rows:
                place = wait(met, turn - 1) + (thread & (CLUSTER - 1)) * SENT
                for k in range(ROWS):
                    line = row - stride + k * step
                    if ROWS == 1 or line < rows:
                        m, total = in_cluster(slots[place + k * VALUES + 1] if FORWARD else Real(0), slots[place + k * VALUES])
                        z = softmax.normaliser(total) if FORWARD else total
                        offsets = row_offsets(line, divisors, strides)
                        q = as_u32(advance(out, offsets.out + begin * i64(E)))
                        for c in range(UNITS):
                            if WHOLE or c < mine:
                                fetch(part, 0, was, k, 0, c)
                                vec.unpack(values, part, 0)
                                if FORWARD:
                                    for e in range(E):
                                        values[e] = softmax.result(values[e], m, z)
                                else:
                                    fetch(part, 0, was, k, 1, c)
                                    vec.unpack(others, part, 0)
                                    for e in range(E):
                                        values[e] = softmax.gradient(values[e], others[e], z)
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
                 Argument(f"uint32x{len(divisors)}", divisors), Argument(f"int64x{len(strides)}", strides))
    return (Launch(kernel(config), (slots * ring.cluster, 1, 1), (ring.threads, 1, 1), arguments, shared=ring.shared_bytes,
                   cluster=(ring.cluster, 1, 1)),)


ALGORITHMS = tuple(Algorithm(op=op, name="ring", supports=supports, workspace=workspace, estimate=seconds, build=build, configs=configs,
                             fits=fits, arch="sm_90+") for op in ("softmax_fwd", "softmax_bwd"))

"""Rows that come through a ring in shared memory: blocks, or clusters of them, go through the rows and keep their columns' weights.

The other algorithms hold a row and read nothing while its threads meet; and their blocks read gamma and beta from the L2 for every row,
which for layer normalisation is twice what they read of x. Here each block has its columns for the whole kernel, gamma and beta of them in
registers, and bulk copies bring later rows while this one's moments meet (`device.ring`). Rows are read once from memory, and twice from
the ring.
"""
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ..device import cuda, device_function, f32, i32, i64, jit, u32
from ..device.cluster import cluster_rank, cluster_wait
from ..device.index import ceil_div
from ..device.ring import TURNS, Ring, clusters, make_ring, rings
from ..device.rows import Dim, RowLayout, RowForm, make_row, make_row_offsets, row_arguments
from ..device.vec import advance, as_u32, pin, shared_address, store4_from
from ..dispatch import Algorithm
from ..engine.ahead import make_follow
from ..engine.constants import constants
from ..engine.cost import ring_seconds
from ..engine.row_program import make_row_operands
from ..host.dtypes import ITEMSIZE
from ..host.launch import Argument, Launch
from ._moments import make_inverses, make_join, make_pool
from ._row_vectors import make_run, vectors_of
from ._weights import make_weights, weight_words
from .block.forward import Extras, Weights, layout, pointers, refusal, vectors

if TYPE_CHECKING:
    from ..device.program import Program

COST = constants("norm/ring")

MOST = 8 * 512 * 4  # vectors of a row: blocks of a cluster, threads of a block, vectors of a thread
UNROLLED = 128      # elements and weights of a thread that the compiler keeps in registers


@dataclass(frozen=True)
class Config:
    """What the kernel is compiled for.

    Attributes
    ----------
    dtype, gamma, beta : str
    layer, scaled, shifted : bool
        Whether there is a mean, gamma, beta.
    gamma_words, beta_words : int
        Of one load; 0: element by element.
    dims : int
        Dimensions besides the row, 1 at least.
    ring : Ring
    program : Program or None
        Of y.
    wide : bool
        Whether its operands have 64-bit strides.
    program_vectors : tuple of Vector
        Those of its operands that are moved by vectors.
    """
    dtype: str
    gamma: str
    beta: str
    layer: bool
    scaled: bool
    shifted: bool
    gamma_words: int
    beta_words: int
    dims: int
    ring: Ring
    program: "Program | None" = None
    wide: bool = False
    program_vectors: tuple = ()

    @property
    def elements(self):
        """Of a vector."""
        return 16 // ITEMSIZE[self.dtype]

    @property
    def registers_needed(self):
        """Of a thread: weights, a few vectors as packed words and as values, addresses; a program's operands."""
        wide = [ITEMSIZE[t] if words else 4 for t, words in ((self.gamma, self.gamma_words), (self.beta, self.beta_words))]
        weights = self.ring.units * self.elements * (self.scaled * wide[0] + self.shifted * wide[1]) // 4
        return weights + 8 + 2 * self.elements + 32 + (0 if self.program is None else 16 + 4 * self.program.inputs)

    def __str__(self):
        return str(self.ring) + f", {self.program}" * (self.program is not None)


def supports(problem):
    """Rows of whole 16-byte vectors, which bulk copies can bring, and float32 sums, which blocks can exchange."""
    if problem.compute != "float32":
        return f"sums of {problem.dtype} are float64; blocks exchange float32"
    if problem.residual is not None:
        return "a residual; rows come from one array"
    if problem.result:
        return f"y is {problem.result}; expected x's {problem.dtype}"
    if (reason := refusal(problem)) is not None:
        return reason
    _, vector_bytes, unaligned = layout(problem)
    if vector_bytes != 16 or unaligned:
        return f"rows begin or end off a multiple of 16 bytes; vectors are {vector_bytes} bytes{', with unaligned' * unaligned}"
    if vectors(problem) > MOST:
        return f"rows of {problem.form.length} elements are {vectors(problem)} 16-byte vectors; a cluster has {MOST}"
    return None


def fits(problem, device):
    """Shared memory for a ring."""
    return None if configs(problem, device) else f"rows of {problem.form.length} elements: no ring of four stages fits shared memory"


def workspace(problem, device, config):
    """None."""
    return 0


def configs(problem, device):
    """Rings whose blocks' registers hold their columns' weights."""
    p, order, count = problem, [name for name, _, _ in problem.arrays], 16 // problem.x.itemsize
    weights = [(t, p.form.steps[order.index(name)]) for name, t in (("gamma", p.gamma), ("beta", p.beta))]
    words = [weight_words(t, step, count, False) for t, step in weights]
    types = [p.dtype if t is None else t.dtype for t, _ in weights]
    found = [Config(p.dtype, *types, p.op == "layer_norm_fwd", p.gamma is not None, p.beta is not None, *words,
                    max(1, len(layout(p)[0].outer)), ring, p.program, p.wide, vectors_of(p, count))
             for ring in rings(p.form.rows, vectors(p), 1, device)]
    return [c for c in found if -(-c.registers_needed // 8) * 8 * c.ring.threads * c.ring.resident <= 65536
            and c.ring.units * c.elements * (1 + c.scaled + c.shifted) <= UNROLLED]


def seconds(problem, device, config):
    """See `ring_seconds`."""
    ring, rows = config.ring, problem.form.rows
    instructions = (COST.layer if config.layer else COST.rms) * config.elements
    return ring_seconds(ring, clusters(ring, device, rows), rows, problem.bytes, instructions, device)


class Block(NamedTuple):
    """A block: its number in the cluster, the vectors of a row that it has, from `begin` on, and the block of the cluster whose moments a
    thread reads, with the elements that this one has."""
    rank: i32
    begin: i32
    count: i32
    other: i32
    n_other: f32


class Vector(NamedTuple):
    """Arrays: the words of a vector, and its values."""
    words: object
    values: object


@functools.cache
def kernel(config):
    """y and the statistics."""
    ring, layout = config.ring, RowLayout(config.dtype, 16, config.ring.threads, config.ring.units)
    vec, E, Real, UNITS, ROWS, BLOCK = make_row(layout), config.elements, f32, ring.units, ring.rows, ring.threads
    WARPS, CLUSTER, WHOLE, VALUES = ring.threads // 32, ring.cluster, ring.whole, 1 + config.layer
    LAYER, SCALED, SHIFTED, SENT = config.layer, config.scaled, config.shifted, VALUES * ROWS
    pipe, turns, prepare, start, fetch, send, wait, leave = make_ring(ring, SENT, config.dims, 4)
    inverse, inverse_root = make_inverses(Real)

    @device_function
    def share_of(rank, vectors, share):
        """Vectors of a block."""
        return min(max(vectors - rank * share, 0), share)

    # ---- weights

    GAMMA, GAMMA_LENGTH, fetch_gamma, unpack_gamma = make_weights(config.gamma, E, config.gamma_words)
    BETA, BETA_LENGTH, fetch_beta, unpack_beta = make_weights(config.beta, E, config.beta_words)
    GAMMAS, BETAS = UNITS * GAMMA_LENGTH, UNITS * BETA_LENGTH
    hold_gamma, hold_beta = pin(GAMMAS), pin(BETAS)

    @device_function
    def load_weights(weights, block):
        """Those of the thread's columns; how many elements it has of a row."""
        n = 0
        for c in range(UNITS):
            i = cuda.threadIdx.x + c * BLOCK
            inside = WHOLE or i < block.count
            n = n + E if inside else n
            if SCALED:
                fetch_gamma(weights.gammas, c * GAMMA_LENGTH, weights.gamma, (block.begin + i) * E, weights.gamma_step, inside)
            if SHIFTED:
                fetch_beta(weights.betas, c * BETA_LENGTH, weights.beta, (block.begin + i) * E, weights.beta_step, inside)
        return n

    # ---- moments: of a thread, its warp, its block, the cluster

    in_warp, in_block, in_cluster = (make_pool(Real, n, LAYER, WHOLE) for n in (32, WARPS, CLUSTER))
    join = make_join(Real, E, LAYER)

    @device_function
    def share_moments(scratch, half, vector, at, block, row, step, rows, elements):
        """Mean, squared distances and count of each row, of each warp, to shared memory; `at` is the thread's first vector."""
        for k in range(ROWS):
            mean, squares, n = Real(0), Real(0), Real(elements)
            if ROWS == 1 or row + k * step < rows:
                for c in range(UNITS):
                    if WHOLE or cuda.threadIdx.x + c * BLOCK < block.count:
                        fetch(vector.words, 0, at, k, 0, c)
                        vec.unpack(vector.values, vector.words, 0)
                        mean, squares = join(vector.values, mean, squares, Real(E * c), Real(1) / Real(c + 1))
            mean, squares, n = in_warp(mean, squares, n)
            if cuda.threadIdx.x & 31 == 0:
                slot = half + 3 * (WARPS * k) + 3 * (cuda.threadIdx.x >> 5)
                scratch[slot] = mean
                scratch[slot + 1] = squares
                scratch[slot + 2] = n

    @device_function
    def send_moments(sums, scratch, half, slots, met, turn):
        """The block's, to all blocks of the cluster."""
        for k in range(ROWS):
            slot = half + 3 * (WARPS * k) + 3 * (cuda.threadIdx.x & (WARPS - 1))
            mean, squares, _ = in_block(scratch[slot], scratch[slot + 1], scratch[slot + 2])
            sums[k * VALUES] = squares
            if LAYER:
                sums[k * VALUES + 1] = mean
        send(sums, slots, met, turn)

    @device_function
    def receive_moments(slots, slot, k, block):
        """Mean and squared distances of a row."""
        mean, squares = Real(0), slots[slot + k * VALUES]
        if LAYER:
            mean = slots[slot + k * VALUES + 1]
        mean, squares, _ = in_cluster(mean, squares, block.n_other)
        return mean, squares

    # ---- the result

    PROGRAM = config.program is not None
    run_program = make_run(config.program, config.program_vectors, "float32", config.dtype, E)
    operands_of = make_row_operands(config.program, config.dims)

    @device_function
    def store_row(to, vector, weights, at, k, block, mean, rstd, extras):
        """Normalise the k-th row of a step, whose vectors are still in the ring, and store it."""
        for c in range(UNITS):
            i = cuda.threadIdx.x + c * BLOCK
            if WHOLE or i < block.count:
                fetch(vector.words, 0, at, k, 0, c)
                vec.unpack(vector.values, vector.words, 0)
                if SCALED:
                    unpack_gamma(weights.scales, weights.gammas, c * GAMMA_LENGTH)
                if SHIFTED:
                    unpack_beta(weights.shifts, weights.betas, c * BETA_LENGTH)
                for e in range(E):
                    value = (vector.values[e] - mean) * rstd if LAYER else vector.values[e] * rstd
                    if SCALED:
                        value = value * weights.scales[e]
                    if SHIFTED:
                        value += weights.shifts[e]
                    vector.values[e] = value
                if PROGRAM:
                    run_program(vector.values, extras.row, (block.begin + i) * E, extras.operands)
                vec.pack(vector.words, 0, vector.values)
                store4_from(to, 4 * i, vector.words, 0)

    # ---- the kernel

    STAGES, STAGE, BLOCKS, CLUSTER_LOG, LAST = ring.stages, ring.stage_bytes, ring.resident, ring.cluster.bit_length() - 1, BLOCK - 32
    HALF, SLOTS, row_offsets = 3 * WARPS * ROWS, TURNS * SENT * CLUSTER, make_row_offsets(config.dims, ("x", "y", "mean", "rstd"))
    SCRATCH, begin_grid = 2 * HALF, make_follow(True)

    @jit(launch_bounds=(BLOCK, BLOCKS))
    def norm_fwd_ring(x, gamma, beta, y, mean, rstd, eps, rows, length, vectors, share, step, steps, gamma_step, beta_step, divisors,
                      strides, operands):
        dynamic, scratch = cuda.shared.array(0, u32, alignment=16), cuda.shared.array(SCRATCH, Real)
        slots, landed, sent = cuda.shared.array(SLOTS, Real), cuda.shared.array(STAGES, i64), cuda.shared.array(TURNS, i64)
        weights = Weights(gamma, beta, gamma_step, beta_step, cuda.local.array(GAMMAS, GAMMA), cuda.local.array(BETAS, BETA),
                          cuda.local.array(E, Real), cuda.local.array(E, Real))
        vector, sums = Vector(cuda.local.array(4, u32), cuda.local.array(E, Real)), cuda.local.array(SENT, Real)
        thread, rank = cuda.threadIdx.x, cluster_rank()
        first, stride = cuda.blockIdx.x >> CLUSTER_LOG, step * ROWS
        begin, count = rank * share, share_of(rank, vectors, share)
        bars, met = pipe.barriers(shared_address(landed, 0)), turns.barriers(shared_address(sent, 0))
        prepare(bars, met)
        begin_grid()
        base = shared_address(dynamic, 0)
        mine = base + 16 * u32(thread)
        if thread == LAST:
            state = pipe.producer_start()
            for s in range(STAGES):
                start(base, bars, state, x, x, first + s * stride, step, rows, begin, count, divisors, strides)
                state = pipe.next(state)
        other = thread & (CLUSTER - 1)
        block = Block(rank, begin, count, other, Real(share_of(other, vectors, share) * E))
        elements, n_inverse = load_weights(weights, block), inverse(Real(length))
        cluster_wait()
        row, state, last, free = first, pipe.consumer_start(), pipe.consumer_start(), pipe.consumer_start()
        for turn in range(steps + 1):
            if row < rows:
                if WHOLE or count > 0:
                    pipe.consumer_wait(bars, state)
                half = (turn & 1) * HALF
                share_moments(scratch, half, vector, mine + state.stage * STAGE, block, row, step, rows, elements)
                cuda.syncthreads()
                if thread == LAST and turn >= 2:
                    start(base, bars, free, x, x, row + (STAGES - 2) * stride, step, rows, begin, count, divisors, strides)
                if thread < 32:
                    send_moments(sums, scratch, half, slots, met, turn)
            # the rows of the step before, whose moments have met meanwhile
            if turn > 0 and row - stride < rows:
                slot = wait(met, turn - 1) + other * SENT
                if SCALED:
                    hold_gamma(weights.gammas)
                if SHIFTED:
                    hold_beta(weights.betas)
                for k in range(ROWS):
                    line = row - stride + k * step
                    if ROWS == 1 or line < rows:
                        row_mean, squares = receive_moments(slots, slot, k, block)
                        row_rstd = inverse_root(squares * n_inverse + eps)
                        offsets = row_offsets(line, divisors, strides)
                        if thread == 0 and rank == 0:
                            if LAYER:
                                mean[offsets.mean] = row_mean
                            rstd[offsets.rstd] = row_rstd
                        to = as_u32(advance(y, offsets.y + begin * i64(E)))
                        store_row(to, vector, weights, mine + last.stage * STAGE, k, block, row_mean, row_rstd,
                                  Extras(*operands_of(line, operands, divisors)))
            row, free, last, state = row + stride, last, state, pipe.next(state)
        leave()
    return norm_fwd_ring


def build(problem, device, config):
    """One launch."""
    p, form, ring = problem, problem.form, config.ring
    order = {name: k for k, (name, _, _) in enumerate(p.arrays)}
    outer = tuple(Dim(d.size, tuple(d.strides[order.get(n, 0)] for n in ("x", "y", "mean", "rstd"))) for d in form.outer)
    divisors, strides = row_arguments(RowForm((Dim(1, (0,) * 4),), outer))
    slots, count = clusters(ring, device, form.rows), vectors(p)
    steps = ceil_div(form.rows, slots * ring.rows)
    arguments = (*pointers(p, ("x", "gamma", "beta", "y", "mean", "rstd"), {"gamma": "x", "beta": "x", "mean": "rstd"}),
                 Argument(p.compute, "eps"),
                 *(Argument("int32", n) for n in (form.rows, form.length, count, ceil_div(count, ring.cluster), slots, steps)),
                 *(Argument("int64", form.steps[order.get(name, 0)]) for name in ("gamma", "beta")),
                 Argument(f"uint32x{len(divisors)}", divisors), Argument(f"int64x{len(strides)}", strides), p.operands_argument())
    return (Launch(kernel(config), (slots * ring.cluster, 1, 1), (ring.threads, 1, 1), arguments, shared=ring.shared_bytes,
                   cluster=(ring.cluster, 1, 1), dependent=True),)


ALGORITHMS = tuple(Algorithm(op=op, name="ring", supports=supports, workspace=workspace, estimate=seconds, build=build, configs=configs,
                             fits=fits, arch="sm_90+", programs=True, bits=("loads", "stores"))
                   for op in ("layer_norm_fwd", "rms_norm_fwd"))

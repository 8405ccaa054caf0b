"""Layer and RMS normalisation, forward, one group of threads per row: the row is read once, held, and written.

`block` and `cluster` differ in the size of the group. How a row is split among its lanes is in `device.rows`.

::

    global memory    x[row] | vector 0 | vector 1 | ...       read once, 16 bytes per load
    registers        lane t: packed words                     with a residual: x + residual, which is also stored (`summed`)
                       |  mean and squared distances of each vector, merged one after another
    warp             shuffles: mean of the means, then the squares around it
    block            one barrier; cluster: the blocks' shared memory, one cluster barrier
                       |  (x - mean) * rstd * gamma + beta
    global memory    y[row] | vector 0 | vector 1 | ...       written once

Parts are merged by their means, squared distances and counts (Chan, Golub and LeVeque's formula for many parts), so nothing is lost in
rows far from 0; edges and idle threads make the counts uneven. RMS normalisation sums squares. Weights are loaded 16 bytes at a time where
they have the same phase as the rows, else element by element. Where rows are short a group loads several of them at once.
"""
import functools
from typing import NamedTuple

from ...device import cuda, device_function, i32, i64, jit, u32
from ...device.cluster import cluster_arrive_relaxed, cluster_rank, cluster_sync, cluster_wait, remote_address, store_remote_f32
from ...device.convert import element
from ...device.index import ceil_div
from ...device.rows import LIMIT, Dim, RowForm, make_row, make_row_offsets, row_arguments, row_vector
from ...device.vec import advance, pin, shared_address
from ...engine.ahead import make_wait
from ...engine.constants import constants
from ...engine.cost import LAUNCH, Cost, contend, flight_rate, issue_seconds, memory_seconds, narrow_rate, occupied, tail
from ...engine.row_program import make_functions, make_row_operands
from ...host.launch import Argument, Launch
from .._moments import make_block_pool, make_inverses, make_join, make_merge, make_pool
from .._program_vectors import lacks_bits
from .._row_vectors import make_run, vectors_of
from .._weights import make_weights, weight_words
from .forward_config import WARP, Config

COST = constants("norm/forward")

MOST_WHOLE = 4  # vectors of a thread: with more, and no branch between them, some registers are spilled
ARRAYS = "x", "residual", "y", "summed"
OFFSETS = *ARRAYS, "mean", "rstd"  # names of the arrays that a row has offsets in


def _names(problem):
    """Of arrays that are read or written row by row, in the order of the kernel's arguments."""
    return ARRAYS if problem.residual is not None else ARRAYS[::2]


@functools.lru_cache(maxsize=256)
def layout(problem):
    """(form of the arrays that are as long as x, bytes of a vector, unaligned edges)."""
    order = [name for name, _, _ in problem.arrays]
    at = [order.index(name) for name in _names(problem)]
    form = RowForm(*(tuple(Dim(d.size, tuple(d.strides[k] for k in at)) for d in dims) for dims in (problem.form.row, problem.form.outer)))
    return (form, *row_vector(form, [getattr(problem, name) for name in _names(problem)]))


def vectors(problem):
    """Vectors of a row."""
    form, vector_bytes, unaligned = layout(problem)
    per = vector_bytes // problem.x.itemsize
    return max(1, form.length // per if unaligned else ceil_div(form.length, per))


def max_vectors(lanes, problem):
    """Vectors that each thread of a block can hold."""
    return (4 if lanes == 1024 else 8) // ((1 + (problem.compute == "float64")) * (1 + (problem.residual is not None)))


def refusal(problem):
    """What keeps all from a problem; None if nothing does."""
    form = problem.form
    if len(form.row) != 1:
        return f"rows are {len(form.row)} dimensions; expected one that all arrays step evenly through"
    if form.length >= LIMIT or form.rows >= 2 ** 31 - 2 ** 20:
        return f"{form.rows} rows of {form.length} elements; expected fewer than 2**31 - 2**20, of fewer than 2**28"
    _, vector_bytes, unaligned = layout(problem)
    if lacks_bits(problem.program, program_vectors(problem)):
        return (f"the program stores bits; expected all elements of a byte in an aligned vector, which has {vector_bytes} bytes"
                f"{', with unaligned edges' * unaligned}")
    return None


def program_vectors(problem):
    """The `Vector`s of a problem's program."""
    _, vector_bytes, unaligned = layout(problem)
    return () if unaligned else vectors_of(problem, vector_bytes // problem.x.itemsize)


def make_config(problem, lanes, registers, rows=1, cluster=1, shared=0, shared_per_sm=0):
    """The configuration of a problem with this way to hold a row."""
    form, vector_bytes, unaligned = layout(problem)
    order, count = [name for name, _, _ in problem.arrays], vector_bytes // problem.x.itemsize
    weights = [(t, problem.form.steps[order.index(name)]) for name, t in (("gamma", problem.gamma), ("beta", problem.beta))]
    words = [weight_words(t, step, count, unaligned) for t, step in weights]
    types = [problem.dtype if t is None else t.dtype for t, _ in weights]
    whole = lanes <= WARP and registers <= MOST_WHOLE and not unaligned and form.length == lanes * registers * count
    return Config(problem.dtype, *types, problem.op == "layer_norm_fwd", problem.gamma is not None, problem.beta is not None,
                  problem.residual is not None, *words, vector_bytes, unaligned, max(1, len(form.outer)), lanes, registers, rows, cluster,
                  shared, shared_per_sm, problem.result, problem.program, problem.wide,
                  program_vectors(problem), whole)


def seconds(problem, device, config):
    """Bytes at the rate that those in flight sustain, the grid's last blocks, loads of single weights; or what resident blocks take one
    after another: a block loads, waits for all of its threads, computes and stores."""
    itemsize, inputs = problem.x.itemsize, 1 + config.residual
    fill = min(1.0, problem.form.length / config.layout.capacity)
    blocks = config.blocks if config.shared else min(2048 // config.threads, config.resident)
    vectors = inputs * config.rows * (config.registers + config.shared)
    flight = vectors * config.vector_bytes * config.threads * blocks * fill
    rate = (flight_rate(flight, COST.in_flight) if config.lanes <= WARP else 1.0) * narrow_rate(config.vector_bytes, itemsize)
    rate *= COST.single if config.has_single_weights else 1.0
    grid = ceil_div(problem.form.rows, config.threads // config.lanes * config.rows) * config.cluster
    share = occupied(grid * config.threads, COST.enough, device)
    end = tail(grid, blocks, device) if config.lanes > WARP else (3 + tail(grid, blocks, device)) / 4
    few = COST.few ** max(0, 3 - config.registers)  # vectors of a thread, to which instructions of its row are added
    moved = Cost(memory=memory_seconds(problem.bytes, device) / (rate * share)).slowed(tail=end)
    moved = moved.slowed(slower=few)
    if config.lanes <= WARP:
        return LAUNCH + moved.slowed(slower=COST.beyond ** max(0, vectors - 4))
    wait = COST.alone + COST.unit * vectors * fill + (COST.cluster + COST.block * config.cluster if config.cluster > 1 else 0)
    wait *= (1.0 if config.layer else COST.rms) * (COST.single_wait if config.has_single_weights else 1.0)
    if problem.program is not None and blocks == 1:
        moved = moved.slowed(lonely=COST.lonely)
    each = COST.thread + COST.edges * config.unaligned + vectors * COST.vector
    each += (config.registers + config.shared) * config.rows * config.layout.elements * (
        COST.element + COST.single_weight * config.has_single_weights)
    work = issue_seconds(grid * config.threads, each * (1.0 if config.layer else COST.rms_issue), device)
    return LAUNCH + contend(COST.power_issue, contend(COST.power, moved, waits=wait * max(1.0, grid / (device.sms * blocks))), issue=work)


def make_merge_row(config, Real):
    """Device function ``merge_row(row_mean, squares, n, scratch, slots) -> (row_mean, squares)``: mean and sum of squared distances to it,
    of the whole row in all its threads, from those of each warp and its count n; without a mean `squares` alone counts."""
    LAYER, CLUSTER = config.layer, config.cluster
    pool, (inverse, _) = make_block_pool(Real, max(1, config.lanes // WARP), config.layer), make_inverses(Real)

    @device_function
    def merge_row(row_mean, squares, n, scratch, slots):
        row_mean, squares, n = pool(row_mean, squares, n, scratch)
        if CLUSTER > 1:
            thread = cuda.threadIdx.x
            cluster_wait()
            if thread < CLUSTER:
                to = remote_address(shared_address(slots, 3 * cluster_rank()), u32(thread))
                store_remote_f32(to, row_mean)
                store_remote_f32(to + 4, squares)
                store_remote_f32(to + 8, n)
            cluster_sync()
            row_mean, squares, n = Real(0), Real(0), Real(0)
            if LAYER:
                for k in range(CLUSTER):
                    n = n + slots[3 * k + 2]
                    row_mean += slots[3 * k] * slots[3 * k + 2]
                row_mean = row_mean * inverse(n) if n > Real(0) else Real(0)
            for k in range(CLUSTER):
                squares += slots[3 * k + 1]
                if LAYER:
                    d = slots[3 * k] - row_mean
                    squares += d * d * slots[3 * k + 2]
        return row_mean, squares
    return merge_row


class Weights(NamedTuple):
    """gamma and beta: pointers, steps, arrays of what is loaded of them, and arrays of those of a vector."""
    gamma: object
    beta: object
    gamma_step: i64
    beta_step: i64
    gammas: object
    betas: object
    scales: object
    shifts: object


class Extras(NamedTuple):
    """The row of the program's operands, and these."""
    row: i32
    operands: object


class Line(NamedTuple):
    """A row: elements of its unaligned prologue, vectors, elements of it, and a thread's lane in it."""
    prologue: i32
    vectors: i32
    size: i32
    lane: i32


class Held(NamedTuple):
    """What a thread holds of its rows, arrays: words of x and of the residual, edges of both, values of a vector; where its vectors that
    registers have no room for lie in shared memory, and the words of one."""
    words: object
    residual: object
    edges: object
    residual_edges: object
    values: object
    smem: u32
    part: object


@functools.cache
def kernel(config, dependent):
    """y, the statistics, and the sum with a residual."""
    layout, x_type, Real = config.layout, element(config.dtype), config.layout.real
    vec, E, EDGES, REGISTERS, ROWS = make_row(layout, config.threads), layout.elements, layout.edges, config.registers, config.rows
    LANES, BLOCK, CLUSTER, TOGETHER = config.lanes, config.threads, config.cluster, config.lanes * config.cluster
    LAYER, SCALED, SHIFTED, RESIDUAL, SHARED, EARLY = (config.layer, config.scaled, config.shifted, config.residual, config.shared > 0,
                                                       ROWS > 1)
    WHOLE, OWN = config.whole, layout.elements * config.registers

    @device_function
    def has(line, i):
        """Whether the row has vector i, of a thread that would hold it."""
        return line.size > 0 if WHOLE else i < line.vectors

    # ---- from memory

    GAMMA, GAMMA_LENGTH, fetch_gamma, unpack_gamma = make_weights(config.gamma, E, config.gamma_words)
    BETA, BETA_LENGTH, fetch_beta, unpack_beta = make_weights(config.beta, E, config.beta_words)
    row_offsets = make_row_offsets(config.dims, OFFSETS)

    @device_function
    def load_row(held, k, x_row, x_step, residual_row, residual_step, line):
        """The k-th row of a thread."""
        if SHARED:
            vec.copy_overflow(held.smem, x_row, line.prologue, line.vectors, line.lane)
        for c in range(REGISTERS):
            i = line.lane + c * TOGETHER
            vec.load_vector(held.words, k * REGISTERS + c, advance(x_row, line.prologue), i, x_step, has(line, i))
            if RESIDUAL:
                vec.load_vector(held.residual, k * REGISTERS + c, advance(residual_row, line.prologue), i, residual_step, has(line, i))
        vec.load_edges(held.edges, x_row, line.prologue, line.vectors, line.size, line.lane)
        if RESIDUAL:
            vec.load_edges(held.residual_edges, residual_row, line.prologue, line.vectors, line.size, line.lane)

    @device_function
    def load_weights(weights, lane, length):
        """Those of all vectors of a thread."""
        for c in range(REGISTERS):
            i = (lane + c * TOGETHER) * E
            if SCALED:
                fetch_gamma(weights.gammas, c * GAMMA_LENGTH, weights.gamma, i, weights.gamma_step, i < length)
            if SHIFTED:
                fetch_beta(weights.betas, c * BETA_LENGTH, weights.beta, i, weights.beta_step, i < length)

    # ---- the moments of a row

    hold, widen, narrow = pin(ROWS * layout.words), x_type.widen, x_type.narrow
    inverse, inverse_root = make_inverses(Real)
    merge, join, TOGETHER_LOG = make_merge(Real), make_join(Real, E, LAYER), TOGETHER.bit_length() - 1

    @device_function
    def add_residual(held, others, k, summed_row, summed_step, line):
        """x + residual, which is stored, too."""
        for c in range(REGISTERS):
            vec.unpack(held.values, held.words, k * REGISTERS + c)
            vec.unpack(others, held.residual, k * REGISTERS + c)
            for e in range(E):
                held.values[e] += others[e]
            vec.pack(held.words, k * REGISTERS + c, held.values)
            i = line.lane + c * TOGETHER
            if has(line, i):
                vec.store_vector(advance(summed_row, line.prologue), i, summed_step, held.words, k * REGISTERS + c)
        for s in range(EDGES):
            held.edges[s] = Real(widen(narrow(held.edges[s] + held.residual_edges[s])))
        vec.store_edges(summed_row, held.edges, line.prologue, line.vectors, line.size, line.lane)
        hold(held.words)

    @device_function
    def moments_of(held, k, line):
        """(mean, squared distances, count) of what a thread has of a row, and how many of its vectors are in shared memory."""
        row_mean, squares, overflow = Real(0), Real(0), 0
        own = max((line.vectors - line.lane + (TOGETHER - 1)) >> TOGETHER_LOG, 0)
        for c in range(REGISTERS):
            if WHOLE or c < own:
                vec.unpack(held.values, held.words, k * REGISTERS + c)
                row_mean, squares = join(held.values, row_mean, squares, Real(E * c), Real(1) / Real(c + 1))
        if SHARED:
            overflow = vec.wait_overflow(line.vectors, line.lane)
            for c in range(overflow):
                vec.load_overflow(held.part, held.smem, c)
                vec.unpack(held.values, held.part, 0)
                before = c + REGISTERS
                row_mean, squares = join(held.values, row_mean, squares, Real(E * before), inverse(Real(before + 1)))
        n = Real(OWN if WHOLE else own * E)
        for s in range(EDGES):
            j = line.lane + s * TOGETHER
            if (j if j < line.prologue else j + line.vectors * E) < line.size:
                if LAYER:
                    row_mean, squares, n = merge(row_mean, squares, n, held.edges[s], Real(0), Real(1))
                else:
                    squares += held.edges[s] * held.edges[s]
        return row_mean, squares, n, overflow

    # ---- the result

    load_gamma, load_beta, PROGRAM = element(config.gamma).load, element(config.beta).load, config.program is not None
    function, _ = make_functions(config.program, x_type.compute, config.result or config.dtype, 1)
    run_program = make_run(config.program, config.program_vectors, x_type.compute, config.result or config.dtype, E)
    operands_of = make_row_operands(config.program, config.dims)

    @device_function
    def normalise(values, weights, extras, c, j, loaded, row_mean, row_rstd):
        """A vector, whose elements begin with the j-th of the row; its weights are those of vector c where they are `loaded`."""
        if SCALED:
            if not loaded:
                fetch_gamma(weights.gammas, 0, weights.gamma, j, weights.gamma_step, True)
            unpack_gamma(weights.scales, weights.gammas, c * GAMMA_LENGTH if loaded else 0)
        if SHIFTED:
            if not loaded:
                fetch_beta(weights.betas, 0, weights.beta, j, weights.beta_step, True)
            unpack_beta(weights.shifts, weights.betas, c * BETA_LENGTH if loaded else 0)
        for e in range(E):
            value = (values[e] - row_mean) * row_rstd
            if SCALED:
                value = value * weights.scales[e]
            if SHIFTED:
                value += weights.shifts[e]
            values[e] = value
        if PROGRAM:
            run_program(values, extras.row, j, extras.operands)

    @device_function
    def store_row(held, weights, extras, k, y_row, y_step, line, overflow, row_mean, row_rstd):
        """Normalise the k-th row of a thread and store it."""
        for c in range(REGISTERS):
            i = line.lane + c * TOGETHER
            if has(line, i):
                vec.unpack(held.values, held.words, k * REGISTERS + c)
                normalise(held.values, weights, extras, c, line.prologue + i * E, EARLY, row_mean, row_rstd)
                vec.write_vector(advance(y_row, line.prologue), i, y_step, held.words, k * REGISTERS + c, held.values)
        if SHARED:
            for c in range(overflow):
                vec.load_overflow(held.part, held.smem, c)
                vec.unpack(held.values, held.part, 0)
                j = line.prologue + (line.lane + (c + REGISTERS) * TOGETHER) * E
                normalise(held.values, weights, extras, 0, j, False, row_mean, row_rstd)
                vec.write_overflow(y_row, held.part, c, held.values, line.prologue, line.vectors, line.lane)
        for s in range(EDGES):
            j = line.lane + s * TOGETHER
            i = j if j < line.prologue else j + line.vectors * E
            if i < line.size:
                value = (held.edges[s] - row_mean) * row_rstd
                if SCALED:
                    value = value * load_gamma(weights.gamma, i * weights.gamma_step)
                if SHIFTED:
                    value += load_beta(weights.beta, i * weights.beta_step)
                if PROGRAM:
                    value = function(value, extras.row, i, extras.operands)
                held.edges[s] = value
        vec.write_edges(y_row, held.edges, line.prologue, line.vectors, line.size, line.lane)

    # ---- the kernel

    GROUPS, LOG, CLUSTER_LOG = BLOCK // LANES, LANES.bit_length() - 1, CLUSTER.bit_length() - 1
    SCRATCH, SLOTS, WORDS, MORE = 3 * (BLOCK // 32), 3 * CLUSTER, ROWS * layout.words, ROWS * layout.words if RESIDUAL else 1
    GAMMAS, BETAS = (n * (REGISTERS if EARLY else 1) for n in (GAMMA_LENGTH, BETA_LENGTH))
    EDGE_SLOTS, PART, BLOCKS = layout.edge_slots, layout.vector_words, config.blocks
    merge_warp, merge_row = make_pool(Real, min(LANES, WARP), LAYER, WHOLE), make_merge_row(config, Real)
    LENGTH_INVERSE, (wait, release) = 1 / (OWN * LANES), make_wait(dependent)

    @jit(launch_bounds=(BLOCK, BLOCKS))
    def norm_fwd_rows(x, gamma, beta, residual, y, mean, rstd, summed, eps, rows, length, x_step, residual_step, y_step, summed_step,
                      gamma_step, beta_step, divisors, strides, operands):
        wait()
        dynamic = cuda.shared.array(0, u32, alignment=16)
        scratch, slots = cuda.shared.array(SCRATCH, Real), cuda.shared.array(SLOTS, Real)
        thread = cuda.threadIdx.x
        smem = shared_address(dynamic, 0) + 16 * u32(thread) if SHARED else u32(0)
        held = Held(cuda.local.array(WORDS, u32), cuda.local.array(MORE, u32), cuda.local.array(EDGE_SLOTS, Real),
                    cuda.local.array(EDGE_SLOTS, Real), cuda.local.array(E, Real), smem, cuda.local.array(PART, u32))
        weights = Weights(gamma, beta, gamma_step, beta_step, cuda.local.array(GAMMAS, GAMMA), cuda.local.array(BETAS, BETA),
                          cuda.local.array(E, Real), cuda.local.array(E, Real))
        lane = thread & (LANES - 1)
        first = cuda.blockIdx.x * (GROUPS * ROWS) + (thread >> LOG)
        if CLUSTER > 1:
            first = cuda.blockIdx.x >> CLUSTER_LOG
            lane += cluster_rank() * LANES
            cluster_arrive_relaxed()
        # load all rows of the group
        for k in range(ROWS):
            row = first + k * GROUPS
            size = length if row < rows else 0
            offsets = row_offsets(row if row < rows else 0, divisors, strides)
            x_row, residual_row = advance(x, offsets.x), advance(residual, offsets.residual)
            prologue, vectors = vec.split(x_row, size)
            load_row(held, k, x_row, x_step, residual_row, residual_step, Line(prologue, vectors, size, lane))
        if EARLY:
            load_weights(weights, lane, length)
        for k in range(ROWS):
            row = first + k * GROUPS
            size = length if row < rows else 0
            offsets = row_offsets(row if row < rows else 0, divisors, strides)
            y_row, summed_row = advance(y, offsets.y), advance(summed, offsets.summed)
            prologue, vectors = vec.split(advance(x, offsets.x), size)
            line = Line(prologue, vectors, size, lane)
            if RESIDUAL:
                add_residual(held, weights.scales, k, summed_row, summed_step, line)
            # mean and squared distances, of the thread, of the warp and of the row
            row_mean, squares, n, overflow = moments_of(held, k, line)
            row_mean, squares, n = merge_warp(row_mean, squares, n)
            row_mean, squares = merge_row(row_mean, squares, n, scratch, slots)
            if k == ROWS - 1:
                release()
            row_rstd = Real(0)
            if size > 0:
                row_rstd = inverse_root(squares * (Real(LENGTH_INVERSE) if WHOLE else inverse(Real(size))) + eps)
                if lane == 0:
                    if LAYER:
                        mean[offsets.mean] = row_mean
                    rstd[offsets.rstd] = row_rstd
            hold(held.words)
            store_row(held, weights, Extras(*operands_of(row, operands, divisors)), k, y_row, y_step, line, overflow, row_mean, row_rstd)
    return norm_fwd_rows


def pointers(problem, names, instead):
    """A pointer argument for each name; a missing array has the place of another of its element type: {name: that one's}."""
    present = {name: t for name, t, _ in problem.arrays if t is not None}
    found = []
    for name in names:
        name = name if name in present else instead[name]
        found.append(Argument(element(present[name].dtype).pointer, name))
    return found


def build(problem, device, config):
    """One launch."""
    p, form = problem, problem.form
    order = {name: k for k, (name, _, _) in enumerate(p.arrays)}
    outer = tuple(Dim(d.size, tuple(d.strides[order.get(n, 0)] for n in OFFSETS)) for d in form.outer)
    divisors, strides = row_arguments(RowForm((Dim(1, (0,) * len(OFFSETS)),), outer))
    instead = {"gamma": "x", "beta": "x", "residual": "x", "mean": "rstd", "summed": "x"}
    steps = ("x", "residual", "y", "summed", "gamma", "beta")
    arguments = (*pointers(p, ("x", "gamma", "beta", "residual", "y", "mean", "rstd", "summed"), instead), Argument(p.compute, "eps"),
                 Argument("int32", form.rows), Argument("int32", form.length),
                 *(Argument("int64", form.steps[order.get(name, 0)]) for name in steps),
                 Argument(f"uint32x{len(divisors)}", divisors), Argument(f"int64x{len(strides)}", strides), p.operands_argument())
    grid = ceil_div(form.rows, config.threads // config.lanes * config.rows) * config.cluster
    dependent = device.capability >= (9, 0)
    return (Launch(kernel(config, dependent), (grid, 1, 1), (config.threads, 1, 1), arguments, shared=config.shared_bytes,
                   cluster=(config.cluster, 1, 1), dependent=dependent),)

"""A group of threads per row, backward: x and dy are read once, and dgamma and dbeta stay with the columns' threads.

Blocks go through the rows, each group of threads through its own, with a column for the whole kernel: partial sums of dgamma and dbeta, and
gamma, are in registers from the first row to the last. Two sums a row, after one barrier, are all that its threads tell each other. Rows
come through a ring in shared memory, by cp.async: a thread reads only what it copied itself, so that the ring needs no barrier, and later
rows are in flight while sums meet. Without it, where rows are not in phase with 16 bytes or before sm_80, they are loaded when it is their
turn.

The blocks of a cluster would wait long for each other. So they first send the sums of a step, then finish the step before, whose sums
have come meanwhile and whose rows are still in the ring.

At its end a block leaves one row of partial sums in the workspace; a second launch adds these in a fixed order (`_sums`). `block` and
`cluster` differ in who has a row: the blocks of a cluster send their sums to each other's shared memory, and arrive at barriers there.
"""
import functools
from typing import NamedTuple

from ...device import cuda, device_function, i32, i64, jit, u32
from ...device.cluster import cluster_rank, cluster_sync
from ...device.cp_async import commit_copies, copy_async16, wait_copies
from ...device.dependent import launch_dependent_grids, wait_for_previous_grid
from ...device.groups import make_writer
from ...device.index import ceil_div
from ...device.mbarrier import fence_mbarrier_init
from ...device.ring import TURNS, make_turns
from ...device.rows import Dim, RowForm, make_row, make_row_offsets, row_arguments
from ...device.vec import address, advance, load1_nc_if, load_shared_4u32, pin, shared_address
from ...device.warp import shuffle_xor
from ...engine.constants import constants
from ...engine.cost import LAUNCH, Cost, contend, flight_rate, memory_seconds, narrow_rate, overlap, sm_issue_seconds
from ...host.dtypes import ITEMSIZE
from ...host.launch import Argument, Launch
from .._sums import sums_launch
from .._weights import make_weights
from .backward_config import WARP, vectors
from .forward import pointers

COST = constants("norm/backward")


def _arrays(config):
    """Names of the arrays that a row has offsets in."""
    return ("dy", "x", "dx", "mean", "rstd", *("dsummed",) * config.added)


def groups(problem, device, config):
    """Of threads that go through the rows: (blocks or clusters, groups in each). One more than run at once would run alone."""
    each = 1 if config.cluster > 1 else config.threads // config.lanes
    most = device.clusters(config.cluster, config.blocks)
    return max(1, min(most, ceil_div(problem.form.rows, each * config.rows))), each


def workspace(problem, device, config):
    """A row of partial sums for each block or cluster."""
    return groups(problem, device, config)[0] * config.sums * problem.form.length * ITEMSIZE[problem.compute]


def seconds(problem, device, config):
    """The slowest of: bytes, at the rate that those in flight sustain; instructions; the steps of a block, with what each waits for."""
    form, itemsize = problem.form, problem.x.itemsize
    slots, each = groups(problem, device, config)
    steps = ceil_div(form.rows, slots * each * config.rows)
    # Instructions of a block's step, as compiled for sm_90a: for each element, and for each row of a thread.
    element = (COST.wide if itemsize > 2 else COST.narrow) + COST.not_kept * (not config.kept) + COST.unaligned * (config.vector_bytes < 16)
    a_row = config.layout.elements * config.registers * element + COST.row + COST.cluster_row * config.cluster
    instructions, resident = config.threads * config.rows * a_row, config.blocks
    alone = sm_issue_seconds(instructions, device) / min(1.0, config.threads / COST.alone_threads)
    waits = COST.block_wait if config.lanes > WARP else COST.warp_wait
    if config.cluster > 1:
        waits = (COST.late_wait if config.lag else COST.cluster_wait) + COST.cluster_block * config.cluster
    waits += COST.no_ring * (not config.stages)
    flight = max(1, config.stages - 1 - config.lag) * config.stage_bytes * resident
    rate = flight_rate(flight, COST.in_flight) * narrow_rate(config.vector_bytes, itemsize)
    rate *= COST.short_ring if config.stages < 4 and (resident == 1 or not config.lag) else 1.0
    rate /= COST.in_cluster if config.cluster > 1 else 1.0
    busy = min(1.0, COST.most * slots * config.cluster / device.sms)
    moved = memory_seconds(problem.bytes, device) / (rate * busy)
    issue = sm_issue_seconds(steps * resident * instructions, device) / min(COST.most_issue, resident * config.threads / COST.threads)
    left = memory_seconds(2 * workspace(problem, device, config), device) + COST.sums * moved * config.registers
    work = overlap(memory=moved, issue=issue, waits=steps * (alone + waits))
    launches = 2 * LAUNCH + Cost(launch=COST.cluster_launch) if config.cluster > 1 else 2 * LAUNCH
    return launches + Cost(reduction=left) + contend(COST.power, work, issue=issue)


def _make_totals(config, Real):
    """A cluster's `Pipeline` of `make_turns`, and device functions ``send(sums, scratch, slots, bars, turn)``, of a local array of sums of
    threads, and ``receive(sums, slots, bars, turn)``: each of them over the threads of the row, in all of these. `turn` counts the calls:
    what it writes to is not what it wrote to the last time, in a cluster the last `TURNS` - 1 times."""
    VALUES, LANES, CLUSTER = config.rows * (1 + config.layer), config.lanes, config.cluster
    STEPS, WARPS = min(LANES, WARP).bit_length() - 1, LANES // WARP
    WARP_STEPS, ACROSS, HALF, ALL = max(1, WARPS).bit_length() - 1, max(1, WARPS) - 1, VALUES * WARPS, CLUSTER == 1
    turns, send_to_all, wait_for_all = make_turns(VALUES, CLUSTER)

    @device_function
    def send(sums, scratch, slots, bars, turn):
        thread, half = cuda.threadIdx.x, turn & 1
        for s in range(STEPS):
            for v in range(VALUES):
                sums[v] += shuffle_xor(sums[v], 1 << s)
        if WARPS > 1:
            base = half * HALF
            if thread & 31 == 0:
                for v in range(VALUES):
                    scratch[base + v * WARPS + (thread >> 5)] = sums[v]
            cuda.syncthreads()
            if ALL or thread < WARP:
                for v in range(VALUES):
                    sums[v] = scratch[base + v * WARPS + (thread & ACROSS)]
                for s in range(WARP_STEPS):
                    for v in range(VALUES):
                        sums[v] += shuffle_xor(sums[v], 1 << s)
        if CLUSTER > 1:
            send_to_all(sums, slots, bars, turn)

    @device_function
    def receive(sums, slots, bars, turn):
        if CLUSTER > 1:
            base = wait_for_all(bars, turn)
            for v in range(VALUES):
                sums[v] = slots[base + v]
            for k in range(1, CLUSTER):
                for v in range(VALUES):
                    sums[v] += slots[base + k * VALUES + v]
    return turns, send, receive


class Rows(NamedTuple):
    """Which rows a group of threads has in a step: the first, how many rows apart they are, how many there are, vectors of each, and the
    thread's lane; how rows are found."""
    first: i32
    groups: i32
    rows: i32
    vectors: i32
    lane: i32
    divisors: object
    strides: object


class Statistics(NamedTuple):
    """mean and rstd, arrays: of a step's rows, of the next step's, and of the rows of the step before."""
    mean: object
    rstd: object
    next_mean: object
    next_rstd: object
    last_mean: object
    last_rstd: object


class Held(NamedTuple):
    """What a thread holds, arrays: words of dy, x and dsummed of its vectors, values of a vector of each, loaded gamma, that of a vector,
    sums of the rows, and dgamma and dbeta of its columns."""
    dy: object
    x: object
    dsummed: object
    dy_values: object
    x_values: object
    dsummed_values: object
    gammas: object
    gamma_values: object
    sums: object
    dgamma: object
    dbeta: object


@functools.cache
def kernel(config):
    """dx, and partial sums of dgamma and dbeta."""
    layout = config.layout
    vec, Real, E, REGISTERS, ROWS, KEPT = make_row(layout), layout.real, layout.elements, config.registers, config.rows, config.kept
    LANES, BLOCK, CLUSTER, TOGETHER = config.lanes, config.threads, config.cluster, config.lanes * config.cluster
    LAYER, SCALED, SHIFTED, ADDED, VALUES, LAG = (config.layer, config.scaled, config.shifted, config.added, 1 + config.layer, config.lag)
    GROUPS, CHUNK, row_offsets = BLOCK // LANES, 16 * BLOCK, make_row_offsets(config.dims, _arrays(config))

    # ---- from memory

    GAMMA, LENGTH, fetch_gamma, unpack_gamma = make_weights(config.gamma, E, config.words)
    AHEAD, GAMMAS, WORDS = max(0, config.stages - 1 - LAG), LENGTH * REGISTERS, layout.vector_words * (ROWS * REGISTERS if KEPT else 1)
    hold, hold_gamma, landed = pin(WORDS), pin(GAMMAS), wait_copies(AHEAD)

    def for_each_unit(visit):
        """Device function that calls ``visit(j, i, n, offsets, of, *operands)`` for each vector of the thread in a step: the j-th of these,
        vector i of row n, with the offsets of the row in the arrays, of the `Rows` `of`.

        NOTE: `visit` checks whether the row and the vector exist. With a flag for that some kernels take two registers more.
        """
        @device_function
        def step(of, *operands):
            for k in range(ROWS):
                n = of.first + k * of.groups
                offsets = row_offsets(n if n < of.rows else 0, of.divisors, of.strides)
                for c in range(REGISTERS):
                    i = of.lane + c * TOGETHER
                    visit(k * REGISTERS + c, i, n, offsets, of, *operands)
        return step

    @for_each_unit
    @device_function
    def start(j, i, n, offsets, of, to, dy, x):
        size, at = u32(16) if n < of.rows and i < of.vectors else u32(0), to + u32(2 * j * CHUNK)
        copy_async16(at, address(dy, offsets.dy), i64(i) * 16, size)
        copy_async16(at + CHUNK, address(x, offsets.x), i64(i) * 16, size)

    @for_each_unit
    @device_function
    def read_rows(j, i, n, offsets, of, a, dy, dy_step, b, x, x_step):
        vec.load_vector(a, j, advance(dy, offsets.dy), i, dy_step, n < of.rows and i < of.vectors)
        vec.load_vector(b, j, advance(x, offsets.x), i, x_step, n < of.rows and i < of.vectors)

    @for_each_unit
    @device_function
    def read_added(j, i, n, offsets, of, more, dsummed, dsummed_step):
        vec.load_vector(more, j, advance(dsummed, offsets.dsummed), i, dsummed_step, n < of.rows and i < of.vectors)

    @device_function
    def load_statistics(own, mean, rstd, of):
        """Those of the next step's rows."""
        for k in range(ROWS):
            n = of.first + k * of.groups
            offsets = row_offsets(n if n < of.rows else 0, of.divisors, of.strides)
            if LAYER:
                own.next_mean[k] = load1_nc_if(mean, offsets.mean, n < of.rows)
            own.next_rstd[k] = load1_nc_if(rstd, offsets.rstd, n < of.rows)

    @device_function
    def next_statistics(own, mean, rstd, of):
        """The next step's become this one's, and those after them are in flight."""
        for k in range(ROWS):
            n = of.first + k * of.groups
            offsets = row_offsets(n if n < of.rows else 0, of.divisors, of.strides)
            if LAYER:
                own.mean[k] = own.next_mean[k]
                own.next_mean[k] = load1_nc_if(mean, offsets.mean, n < of.rows)
            own.rstd[k] = own.next_rstd[k]
            own.next_rstd[k] = load1_nc_if(rstd, offsets.rstd, n < of.rows)

    @device_function
    def load_gammas(gammas, gamma, gamma_step, lane, length):
        if SCALED:
            for c in range(REGISTERS):
                i = (lane + c * TOGETHER) * E
                fetch_gamma(gammas, c * LENGTH, gamma, i, gamma_step, i < length)

    @device_function
    def fetch(a, b, j, at, unit):
        """Vector number `unit` of a stage, as words from 4 * j on."""
        at_vector = at + u32(2 * unit * CHUNK)
        a[4 * j], a[4 * j + 1], a[4 * j + 2], a[4 * j + 3] = load_shared_4u32(at_vector)
        b[4 * j], b[4 * j + 1], b[4 * j + 2], b[4 * j + 3] = load_shared_4u32(at_vector + CHUNK)

    @device_function
    def await_stage(held, at):
        """Wait for a stage, and hold it where registers have room for it."""
        landed()
        if KEPT:
            for j in range(ROWS * REGISTERS):
                fetch(held.dy, held.x, j, at, j)

    @device_function
    def unpack(held, k, c, at):
        """Vector c of row k, and its gamma, as values; where they are among the words held."""
        j = k * REGISTERS + c if KEPT else 0
        if not KEPT:
            fetch(held.dy, held.x, 0, at, k * REGISTERS + c)
        vec.unpack(held.dy_values, held.dy, j)
        vec.unpack(held.x_values, held.x, j)
        if SCALED:
            unpack_gamma(held.gamma_values, held.gammas, c * LENGTH)
        return j

    # ---- a step

    @device_function
    def add_rows(held, own, at):
        """The rows' sums of the thread's columns, and what they add to dgamma and dbeta."""
        hold_gamma(held.gammas)
        for k in range(ROWS):
            average, slope = Real(0), Real(0)
            for c in range(REGISTERS):
                unpack(held, k, c, at)
                for e in range(E):
                    d, n = held.dy_values[e], held.x_values[e]
                    if LAYER:
                        n = n - own.mean[k]
                    n = n * own.rstd[k]
                    held.dgamma[c * E + e] += d * n
                    if SHIFTED:
                        held.dbeta[c * E + e] += d
                    if SCALED:
                        d = d * held.gamma_values[e]
                    if LAYER:
                        average += d
                    slope += d * n
            held.sums[k * VALUES] = slope
            if LAYER:
                held.sums[k * VALUES + 1] = average

    @device_function
    def store_rows(held, own, at, dx, dx_step, inverse, of):
        """dx of a step's rows, from their sums."""
        if not LAG:
            hold(held.dy)
            hold(held.x)
        hold_gamma(held.gammas)
        for k in range(ROWS):
            n = of.first + k * of.groups
            offsets = row_offsets(n if n < of.rows else 0, of.divisors, of.strides)
            slope, average, scale = held.sums[k * VALUES] * inverse, Real(0), own.last_rstd[k] if LAG else own.rstd[k]
            if LAYER:
                average = held.sums[k * VALUES + 1] * inverse
            for c in range(REGISTERS):
                j = unpack(held, k, c, at)
                if ADDED:
                    vec.unpack(held.dsummed_values, held.dsummed, k * REGISTERS + c)
                for e in range(E):
                    d, v = held.dy_values[e], held.x_values[e]
                    if SCALED:
                        d = d * held.gamma_values[e]
                    if LAYER:
                        v = v - (own.last_mean[k] if LAG else own.mean[k])
                        d = d - average
                    v = v * scale
                    held.dy_values[e] = (d - v * slope) * scale
                    if ADDED:
                        held.dy_values[e] += held.dsummed_values[e]
                vec.pack(held.dy, j, held.dy_values)
                i = of.lane + c * TOGETHER
                if n < of.rows and i < of.vectors:
                    vec.store_vector(advance(dx, offsets.dx), i, dx_step, held.dy, j)

    # ---- dgamma and dbeta

    SUMS, ACROSS, itemsize = config.sums, LANES * E, 8 if config.dtype == "float64" else 4
    put = make_writer("float64" if itemsize == 8 else "float32", E, 4 if E * itemsize % 16 == 0 else 0)

    @device_function
    def gather(meet, to, own, c, length):
        """The sums of vector c that the groups of a block have, added."""
        thread = cuda.threadIdx.x
        for e in range(E):
            meet[thread * E + e] = own[c * E + e]
        cuda.syncthreads()
        for j in range(thread, ACROSS, BLOCK):
            total = meet[j]
            for g in range(1, GROUPS):
                total += meet[j + g * ACROSS]
            if j + c * ACROSS < length:
                to[j + c * ACROSS] = total
        cuda.syncthreads()

    @device_function
    def leave_columns(held, meet, partial, slot, length, lane):
        """To the workspace."""
        to = advance(partial, slot * i64(length * SUMS))
        for c in range(REGISTERS):
            if GROUPS == 1:
                i = (lane + c * TOGETHER) * E
                if i < length:
                    put(to, i, held.dgamma, c * E)
                    if SHIFTED:
                        put(advance(to, length), i, held.dbeta, c * E)
            else:
                gather(meet, to, held.dgamma, c, length)
                if SHIFTED:
                    gather(meet, advance(to, length), held.dbeta, c, length)

    # ---- the kernel

    STAGES, STAGE, RING = config.stages, config.stage_bytes, config.shared_bytes
    COLUMNS, TOTALS = E * REGISTERS, ROWS * VALUES
    SCRATCH, SLOTS, MEET = 2 * TOTALS * (BLOCK // 32), TURNS * TOTALS * CLUSTER, BLOCK * E if GROUPS > 1 else 1
    MORE, ADDED_FIRST, ADDED_LAST = layout.vector_words * ROWS * REGISTERS if ADDED else 1, ADDED and not LAG, ADDED and LAG > 0
    LOG, CLUSTER_LOG, BLOCKS, DEPENDENT = LANES.bit_length() - 1, CLUSTER.bit_length() - 1, config.blocks, config.dependent
    all_landed, (turns, send, receive) = wait_copies(0), _make_totals(config, Real)

    @jit(launch_bounds=(BLOCK, BLOCKS))
    def norm_bwd_rows(dy, x, gamma, mean, rstd, dx, partial, rows, length, vectors, groups, steps, inverse, dy_step, x_step, dx_step,
                      gamma_step, divisors, strides, dsummed, dsummed_step):
        if DEPENDENT:
            wait_for_previous_grid()
        dynamic, scratch = cuda.shared.array(0, u32, alignment=16), cuda.shared.array(SCRATCH, Real)
        slots, room, meet = cuda.shared.array(SLOTS, Real), cuda.shared.array(TURNS, i64), cuda.shared.array(MEET, Real)
        held = Held(cuda.local.array(WORDS, u32), cuda.local.array(WORDS, u32), cuda.local.array(MORE, u32), cuda.local.array(E, Real),
                    cuda.local.array(E, Real), cuda.local.array(E, Real), cuda.local.array(GAMMAS, GAMMA), cuda.local.array(E, Real),
                    cuda.local.array(TOTALS, Real), cuda.local.array(COLUMNS, Real), cuda.local.array(COLUMNS, Real))
        own = Statistics(cuda.local.array(ROWS, Real), cuda.local.array(ROWS, Real), cuda.local.array(ROWS, Real),
                         cuda.local.array(ROWS, Real), cuda.local.array(ROWS, Real), cuda.local.array(ROWS, Real))
        thread, bars = cuda.threadIdx.x, turns.barriers(shared_address(room, 0))
        lane, slot = thread & (LANES - 1), cuda.blockIdx.x
        row = slot * GROUPS + (thread >> LOG)
        if CLUSTER > 1:
            slot = slot >> CLUSTER_LOG
            row = slot
            lane += cluster_rank() * LANES
            if thread == 0:
                turns.init(bars)
                fence_mbarrier_init()
            cluster_sync()
        for j in range(COLUMNS):
            held.dgamma[j], held.dbeta[j] = Real(0), Real(0)
        stride, base = groups * ROWS, u32(0)
        if STAGES:
            base = shared_address(dynamic, 0) + 16 * u32(thread)
            for q in range(AHEAD):
                start(Rows(row + q * stride, groups, rows, vectors, lane, divisors, strides), base + u32(q * STAGE), dy, x)
                commit_copies()
        load_statistics(own, mean, rstd, Rows(row, groups, rows, vectors, lane, divisors, strides))
        load_gammas(held.gammas, gamma, gamma_step, lane, length)
        here, there, at, last = u32(0), u32(AHEAD * STAGE), u32(0), u32(0)
        for step in range(steps + LAG):
            of = Rows(row, groups, rows, vectors, lane, divisors, strides)
            if not LAG or step < steps:
                if STAGES:
                    at = base + there
                    start(Rows(row + AHEAD * stride, groups, rows, vectors, lane, divisors, strides), at, dy, x)
                    commit_copies()
                    there = there + STAGE
                    there = u32(0) if there == RING else there
                else:
                    read_rows(of, held.dy, dy, dy_step, held.x, x, x_step)
                next_statistics(own, mean, rstd, Rows(row + stride, groups, rows, vectors, lane, divisors, strides))
                at = base + here
                if STAGES:
                    await_stage(held, at)
                    here = here + STAGE
                    here = u32(0) if here == RING else here
                add_rows(held, own, at)
                if ADDED_FIRST:
                    read_added(of, held.dsummed, dsummed, dsummed_step)  # in flight while the sums meet
                send(held.sums, scratch, slots, bars, step)
            if not LAG or step > 0:
                done = Rows(row - LAG * stride, groups, rows, vectors, lane, divisors, strides)
                if ADDED_LAST:
                    read_added(done, held.dsummed, dsummed, dsummed_step)
                receive(held.sums, slots, bars, step - LAG)
                store_rows(held, own, last if LAG else at, dx, dx_step, inverse, done)
            if LAG:
                last = at
                for k in range(ROWS):
                    own.last_mean[k], own.last_rstd[k] = own.mean[k], own.rstd[k]
            row = row + stride
        if DEPENDENT:
            launch_dependent_grids()
        if STAGES:
            all_landed()
        leave_columns(held, meet, partial, slot, length, lane)
        if CLUSTER > 1:
            cluster_sync()
    return norm_bwd_rows


def build(problem, device, config):
    """Two launches."""
    p, form = problem, problem.form
    order = {name: k for k, (name, _, _) in enumerate(p.arrays)}
    wanted = _arrays(config)
    outer = tuple(Dim(d.size, tuple(d.strides[order.get(n, 0)] for n in wanted)) for d in form.outer if form.rows)
    divisors, strides = row_arguments(RowForm((Dim(1, (0,) * len(wanted)),), outer))
    slots, each = groups(p, device, config)
    arguments = (*pointers(p, ("dy", "x", "gamma", "mean", "rstd", "dx"), {"gamma": "x", "mean": "rstd"}),
                 Argument(f"{p.compute}*", "workspace"), Argument("int32", form.rows), Argument("int32", form.length),
                 Argument("int32", vectors(p)), Argument("int32", slots * each),
                 Argument("int32", ceil_div(form.rows, slots * each * config.rows)), Argument(p.compute, 1 / form.length),
                 *(Argument("int64", form.steps[order[name]]) for name in ("dy", "x", "dx", "gamma")),
                 Argument(f"uint32x{len(divisors)}", divisors), Argument(f"int64x{len(strides)}", strides),
                 *pointers(p, ("dsummed",), {"dsummed": "x"}), Argument("int64", form.steps[order["dsummed"]]))
    steps = [form.steps[order.get(name, 0)] for name in ("dgamma", "dbeta")]
    return (Launch(kernel(config), (slots * config.cluster, 1, 1), (config.threads, 1, 1), arguments, shared=config.shared_bytes,
                   cluster=(config.cluster, 1, 1), dependent=config.dependent), sums_launch(p, slots, steps, config.dependent))

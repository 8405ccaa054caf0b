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

from ...device import cuda, device_function, i32, i64, jit, u32
from ...device.cluster import cluster_rank, cluster_sync
from ...device.cp_async import commit_copies, copy_async16, wait_copies
from ...device.dependent import launch_dependent_grids
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
    busy = min(1.0, slots * config.cluster / device.sms)
    moved = memory_seconds(problem.bytes, device) / (rate * busy)
    issue = sm_issue_seconds(steps * resident * instructions, device) / min(COST.most_issue, resident * config.threads / COST.threads)
    left = memory_seconds(2 * workspace(problem, device, config), device) + COST.sums * moved * config.registers
    work = overlap(memory=moved, issue=issue, waits=steps * (alone + waits))
    return 2 * LAUNCH + Cost(reduction=left) + contend(COST.power, work, issue=issue)


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


@functools.cache
def kernel(config):
    """dx, and partial sums of dgamma and dbeta."""
    layout = config.layout
    vec, Real = make_row(layout), layout.real
    E, REGISTERS, ROWS, STAGES, KEPT = layout.elements, config.registers, config.rows, config.stages, config.kept
    LANES, BLOCK, BLOCKS, CLUSTER, TOGETHER = config.lanes, config.threads, config.blocks, config.cluster, config.lanes * config.cluster
    GROUPS, LOG, CLUSTER_LOG, VALUES, SUMS = BLOCK // LANES, LANES.bit_length() - 1, CLUSTER.bit_length() - 1, 1 + config.layer, config.sums
    WORDS, COLUMNS, TOTALS = layout.vector_words * (ROWS * REGISTERS if KEPT else 1), E * REGISTERS, ROWS * VALUES
    SCRATCH, SLOTS, MEET, ACROSS = 2 * TOTALS * (BLOCK // 32), TURNS * TOTALS * CLUSTER, BLOCK * E if GROUPS > 1 else 1, LANES * E
    LAG, AHEAD = config.lag, max(0, STAGES - 1 - config.lag)
    CHUNK, STAGE, RING = 16 * BLOCK, config.stage_bytes, config.shared_bytes
    LAYER, SCALED, SHIFTED, DEPENDENT_NEXT = config.layer, config.scaled, config.shifted, config.dependent
    GAMMA, LENGTH, fetch_gamma, unpack_gamma = make_weights(config.gamma, E, config.words)
    GAMMAS = LENGTH * REGISTERS
    ADDED = config.added
    ADDED_FIRST, ADDED_LAST = ADDED and not LAG, ADDED and LAG > 0
    MORE = layout.vector_words * ROWS * REGISTERS if ADDED else 1
    hold, hold_gamma, row_offsets = pin(WORDS), pin(GAMMAS), make_row_offsets(config.dims, _arrays(config))
    turns, send, receive = _make_totals(config, Real)
    itemsize = 8 if config.dtype == "float64" else 4
    put = make_writer("float64" if itemsize == 8 else "float32", E, 4 if E * itemsize % 16 == 0 else 0)
    landed, all_landed = wait_copies(AHEAD), wait_copies(0)

    def for_each_unit(visit):
        """Device function that calls ``visit(j, i, vectors, n, rows, offsets, *operands)`` for each vector of the thread in a step: the
        j-th of these, vector i of `vectors` in row n of `rows`, with the offsets of the row in the arrays.

        NOTE: `visit` checks whether the row and the vector exist. With a flag for that some kernels take two registers more.
        """
        @device_function
        def step(row, groups, rows, vectors, lane, divisors, strides, *operands):
            for k in range(ROWS):
                n = row + k * groups
                offsets = row_offsets(n if n < rows else 0, divisors, strides)
                for c in range(REGISTERS):
                    i = lane + c * TOGETHER
                    visit(k * REGISTERS + c, i, vectors, n, rows, offsets, *operands)
        return step

    @for_each_unit
    @device_function
    def start(j, i, vectors, n, rows, offsets, to, dy, x):
        size, at = u32(16) if n < rows and i < vectors else u32(0), to + u32(2 * j * CHUNK)
        copy_async16(at, address(dy, offsets.dy), i64(i) * 16, size)
        copy_async16(at + CHUNK, address(x, offsets.x), i64(i) * 16, size)

    @for_each_unit
    @device_function
    def read_rows(j, i, vectors, n, rows, offsets, a, dy, dy_step, b, x, x_step):
        vec.load_vector(a, j, advance(dy, offsets.dy), i, dy_step, n < rows and i < vectors)
        vec.load_vector(b, j, advance(x, offsets.x), i, x_step, n < rows and i < vectors)

    @for_each_unit
    @device_function
    def read_added(j, i, vectors, n, rows, offsets, more, dsummed, dsummed_step):
        vec.load_vector(more, j, advance(dsummed, offsets.dsummed), i, dsummed_step, n < rows and i < vectors)

    @device_function
    def fetch(a, b, j, at, vector_bytes):
        """Unit number `vector` of a stage, as words from 4 * j on."""
        at_vector = at + u32(2 * vector_bytes * CHUNK)
        a[4 * j], a[4 * j + 1], a[4 * j + 2], a[4 * j + 3] = load_shared_4u32(at_vector)
        b[4 * j], b[4 * j + 1], b[4 * j + 2], b[4 * j + 3] = load_shared_4u32(at_vector + CHUNK)

    @device_function
    def gather(meet, left, some, c, length):
        """The sums of vector c that the groups of a block have, added."""
        thread = cuda.threadIdx.x
        for e in range(E):
            meet[thread * E + e] = some[c * E + e]
        cuda.syncthreads()
        for j in range(thread, ACROSS, BLOCK):
            total = meet[j]
            for g in range(1, GROUPS):
                total += meet[j + g * ACROSS]
            if j + c * ACROSS < length:
                left[j + c * ACROSS] = total
        cuda.syncthreads()

    @jit(launch_bounds=(BLOCK, BLOCKS))
    def norm_bwd_rows(dy, x, gamma, mean, rstd, dx, partial, rows, length, vectors, groups, steps, inverse, dy_step, x_step, dx_step,
                      gamma_step, divisors, strides, dsummed, dsummed_step):
        dynamic, scratch = cuda.shared.array(0, u32, alignment=16), cuda.shared.array(SCRATCH, Real)
        slots, room, meet = cuda.shared.array(SLOTS, Real), cuda.shared.array(TURNS, i64), cuda.shared.array(MEET, Real)
        a, b, gammas = cuda.local.array(WORDS, u32), cuda.local.array(WORDS, u32), cuda.local.array(GAMMAS, GAMMA)
        gains, shifts = cuda.local.array(COLUMNS, Real), cuda.local.array(COLUMNS, Real)
        values, others, scales = cuda.local.array(E, Real), cuda.local.array(E, Real), cuda.local.array(E, Real)
        sums = cuda.local.array(TOTALS, Real)
        more, added = cuda.local.array(MORE, u32), cuda.local.array(E, Real)
        m, r, next_m, next_r = (cuda.local.array(ROWS, Real), cuda.local.array(ROWS, Real), cuda.local.array(ROWS, Real),
                                cuda.local.array(ROWS, Real))
        last_m, last_r = cuda.local.array(ROWS, Real), cuda.local.array(ROWS, Real)
        thread, bars = cuda.threadIdx.x, turns.barriers(shared_address(room, 0))
        lane, slot = thread & (LANES - 1), cuda.blockIdx.x
        first = slot * GROUPS + (thread >> LOG)
        if CLUSTER > 1:
            slot = slot >> CLUSTER_LOG
            first = slot
            lane += cluster_rank() * LANES
            if thread == 0:
                turns.init(bars)
                fence_mbarrier_init()
            cluster_sync()
        for j in range(COLUMNS):
            gains[j], shifts[j] = Real(0), Real(0)
        stride = groups * ROWS
        base = u32(0)
        if STAGES:
            base = shared_address(dynamic, 0) + 16 * u32(thread)
            for q in range(AHEAD):
                at = base + u32(q * STAGE)
                start(first + q * stride, groups, rows, vectors, lane, divisors, strides, at, dy, x)
                commit_copies()
        for k in range(ROWS):
            n = first + k * groups
            offsets = row_offsets(n if n < rows else 0, divisors, strides)
            if LAYER:
                next_m[k] = load1_nc_if(mean, offsets.mean, i32(n < rows))
            next_r[k] = load1_nc_if(rstd, offsets.rstd, i32(n < rows))
        if SCALED:
            for c in range(REGISTERS):
                i = (lane + c * TOGETHER) * E
                fetch_gamma(gammas, c * LENGTH, gamma, i, gamma_step, i < length)
        here, there, at, last, row = u32(0), u32(AHEAD * STAGE), u32(0), u32(0), first
        for step in range(steps + LAG):
            if not LAG or step < steps:
                if STAGES:
                    at = base + there
                    start(row + AHEAD * stride, groups, rows, vectors, lane, divisors, strides, at, dy, x)
                    commit_copies()
                    there = there + STAGE
                    there = u32(0) if there == RING else there
                else:
                    read_rows(row, groups, rows, vectors, lane, divisors, strides, a, dy, dy_step, b, x, x_step)
                for k in range(ROWS):
                    n = row + stride + k * groups
                    offsets = row_offsets(n if n < rows else 0, divisors, strides)
                    if LAYER:
                        m[k] = next_m[k]
                        next_m[k] = load1_nc_if(mean, offsets.mean, i32(n < rows))
                    r[k] = next_r[k]
                    next_r[k] = load1_nc_if(rstd, offsets.rstd, i32(n < rows))
                at = base + here
                if STAGES:
                    landed()
                    here = here + STAGE
                    here = u32(0) if here == RING else here
                    if KEPT:
                        for j in range(ROWS * REGISTERS):
                            fetch(a, b, j, at, j)
                hold_gamma(gammas)
                for k in range(ROWS):
                    average, slope = Real(0), Real(0)
                    for c in range(REGISTERS):
                        j = k * REGISTERS + c if KEPT else 0
                        if not KEPT:
                            fetch(a, b, 0, at, k * REGISTERS + c)
                        vec.unpack(values, a, j)
                        vec.unpack(others, b, j)
                        if SCALED:
                            unpack_gamma(scales, gammas, c * LENGTH)
                        for e in range(E):
                            d, n = values[e], others[e]
                            if LAYER:
                                n = n - m[k]
                            n = n * r[k]
                            gains[c * E + e] += d * n
                            if SHIFTED:
                                shifts[c * E + e] += d
                            if SCALED:
                                d = d * scales[e]
                            if LAYER:
                                average += d
                            slope += d * n
                    sums[k * VALUES] = slope
                    if LAYER:
                        sums[k * VALUES + 1] = average
                if ADDED_FIRST:
                    # in flight while the sums meet
                    read_added(row, groups, rows, vectors, lane, divisors, strides, more, dsummed, dsummed_step)
                send(sums, scratch, slots, bars, step)
            if not LAG or step > 0:
                if ADDED_LAST:
                    last_row = row - LAG * stride
                    read_added(last_row, groups, rows, vectors, lane, divisors, strides, more, dsummed, dsummed_step)
                receive(sums, slots, bars, step - LAG)
                if not LAG:
                    hold(a)
                    hold(b)
                hold_gamma(gammas)
                for k in range(ROWS):
                    n = row - LAG * stride + k * groups
                    offsets = row_offsets(n if n < rows else 0, divisors, strides)
                    slope, average, scale = sums[k * VALUES] * inverse, Real(0), last_r[k] if LAG else r[k]
                    if LAYER:
                        average = sums[k * VALUES + 1] * inverse
                    for c in range(REGISTERS):
                        j = k * REGISTERS + c if KEPT else 0
                        if not KEPT:
                            fetch(a, b, 0, last if LAG else at, k * REGISTERS + c)
                        vec.unpack(values, a, j)
                        vec.unpack(others, b, j)
                        if SCALED:
                            unpack_gamma(scales, gammas, c * LENGTH)
                        if ADDED:
                            vec.unpack(added, more, k * REGISTERS + c)
                        for e in range(E):
                            d, v = values[e], others[e]
                            if SCALED:
                                d = d * scales[e]
                            if LAYER:
                                v = v - (last_m[k] if LAG else m[k])
                                d = d - average
                            v = v * scale
                            values[e] = (d - v * slope) * scale
                            if ADDED:
                                values[e] += added[e]
                        vec.pack(a, j, values)
                        i = lane + c * TOGETHER
                        if n < rows and i < vectors:
                            vec.store_vector(advance(dx, offsets.dx), i, dx_step, a, j)
            if LAG:
                last = at
                for k in range(ROWS):
                    last_m[k], last_r[k] = m[k], r[k]
            row = row + stride
        if DEPENDENT_NEXT:
            launch_dependent_grids()
        if STAGES:
            all_landed()
        left = advance(partial, slot * i64(length * SUMS))
        for c in range(REGISTERS):
            if GROUPS == 1:
                i = (lane + c * TOGETHER) * E
                if i < length:
                    put(left, i, gains, c * E)
                    if SHIFTED:
                        put(advance(left, length), i, shifts, c * E)
            else:
                gather(meet, left, gains, c, length)
                if SHIFTED:
                    gather(meet, advance(left, length), shifts, c, length)
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
                   cluster=(config.cluster, 1, 1)), sums_launch(p, slots, steps, config.dependent))

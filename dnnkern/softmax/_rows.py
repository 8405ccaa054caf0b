"""Rows that are read once: the kernels, plans and estimates that `warp` and `block` share; they differ in who holds a row.

A group of threads holds a row in registers and, forward, what does not fit there in shared memory (`device.rows`). Forward, each thread
takes the maximum of what it has, and the sum of exponentials below it, and the group merges these pairs at once; a part of a warp
exchanges maxima first, and then sums of final exponentials. Backward there is one sum.
"""
import functools
import math
from dataclasses import dataclass

from ..device import cuda, device_function, i32, i64, jit, u32
from ..device.block import add, make_block_reduce, make_block_reduce_pair, merge_softmax, merge_sums
from ..device.cluster import cluster_arrive_relaxed, cluster_rank, cluster_wait
from ..device.convert import element
from ..device.fastmath import maximum
from ..device.index import ceil_div
from ..device.rows import LIMIT, Held, make_cluster_pair, make_row, make_row_places, row_arguments
from ..device.vec import advance, pin, shared_address
from ..device.warp import make_reduce
from ..engine.constants import constants
from ..engine.cost import LAUNCH, Cost, contend, flight_rate, issue_seconds, memory_seconds, narrow_rate, occupied
from ..engine.cost import overlap, sector_waste, tail
from ..host.launch import Argument, Launch
from ._math import arithmetic

COST = constants("softmax/rows")

RESIDENT = {(7, 5): 1024, (8, 0): 2048}  # threads of a multiprocessor, by compute capability, where not 1536 (8.x, 12.x) or 2048
WAITS = {2: constants("softmax/waits_fwd"), 3: constants("softmax/waits_bwd")}
"""Arrays -> what a block waits for."""
STATIC = 2048     # bytes of shared memory of a block for everything but rows, and what the system takes


@dataclass(frozen=True)
class Config:
    """What a kernel is compiled for.

    Attributes
    ----------
    dtype, log, unit, heads
        As the problem's and `Held`'s.
    dims : int
        Dimensions besides the axis, 1 at least.
    lanes : int
        Threads of a block that hold a row.
    registers, shared : int
        Units a thread.
    cluster : int
        Blocks that hold a row together.
    arrays : int
        2 forward, 3 backward.
    resident : int
        Threads that a multiprocessor of the device holds.
    shared_per_sm : int
        Bytes of its shared memory.
    """
    dtype: str
    log: bool
    unit: int
    heads: bool
    dims: int
    lanes: int
    registers: int
    shared: int
    cluster: int
    arrays: int
    resident: int
    shared_per_sm: int

    @property
    def threads(self):
        """Of a block."""
        return self.lanes if self.lanes > 32 else 128

    @property
    def held(self):
        return Held(self.dtype, self.unit, self.lanes * self.cluster, self.registers, self.shared, self.heads, self.arrays == 2)

    @property
    def shared_bytes(self):
        return self.threads * self.shared * 16

    @property
    def registers_needed(self):
        """Of a thread: packed words, values of a few units, addresses. The compiler is bound to what this leaves."""
        held, inputs = self.held, self.arrays - 1
        real = 2 if self.dtype == "float64" else 1
        values = real * held.elements * min(self.registers, 4)
        return min(255, (22 if real == 1 else 40) + inputs * (held.words + 2 * real * held.singles) + values + 8 * (self.shared > 0))

    @property
    def blocks(self):
        """Resident ones that registers and shared memory allow: the compiler's bound on registers."""
        registers = 65536 // (-(-self.registers_needed // 8) * 8 * self.threads)
        return max(1, min(16, self.resident // self.threads, registers, self.shared_per_sm // (self.shared_bytes + STATIC)))

    def __str__(self):
        where = f"{self.lanes} threads" + (f" x {self.cluster} blocks" if self.cluster > 1 else "")
        return f"{where}, {self.registers}{f' + {self.shared}' * (self.shared > 0)} x {self.unit} bytes" + ", heads" * self.heads


def refusal(problem):
    """What keeps both algorithms from a problem; None if nothing does."""
    form = problem.form
    if form.length >= LIMIT:
        return f"rows of {form.length} elements; expected fewer than 2**28"
    if form.rows >= 2 ** 31 - 2 ** 20:
        return f"{form.rows} rows; expected fewer than 2**31 - 2**20"
    return None


def units(problem):
    """Units of a row."""
    unit, heads = problem.unit
    per = unit // problem.arrays[0].itemsize
    return max(1, problem.form.length // per if heads else ceil_div(problem.form.length, per))


def most_units(lanes, problem):
    """Units that each thread of a block can hold in registers."""
    arrays, wide = len(problem.arrays) - 1, problem.compute == "float64"
    return (4 if lanes == 1024 else 8) // (arrays * (1 + wide))


def make_config(problem, device, lanes, registers, shared=0, cluster=1):
    """The configuration of a problem with this way to hold a row."""
    unit, heads = problem.unit
    resident = RESIDENT.get(device.capability, 1536 if device.capability[0] in (8, 12) else 2048)
    return Config(problem.dtype, problem.log, unit, heads, max(1, len(problem.form.outer)), lanes, registers, shared, cluster,
                  len(problem.arrays), resident, device.shared_per_sm)


def seconds(problem, device, config):
    """Bytes, or instructions, and the grid's last blocks; or what resident blocks take one after another.

    A warp copies as fast as 32 KB in flight in a multiprocessor let it. A block loads, waits, computes and stores (`WAITS`), while others
    do; so many small ones, and few of a cluster, which begin together, serve best.
    """
    form, itemsize = problem.form, problem.arrays[0].itemsize
    resident = config.blocks
    fill = form.length * itemsize / (config.held.capacity * itemsize)
    flight = (config.arrays - 1) * (config.registers + config.shared) * config.unit * config.threads * resident * min(1.0, fill)
    rate = (flight_rate(flight, COST.in_flight) if config.lanes <= 32 else 1.0) * narrow_rate(config.unit, itemsize)
    strided = max(sector_waste(itemsize, itemsize) if abs(s) > 1 else 1 for s in form.steps)
    grid = ceil_div(form.rows, config.threads // config.lanes) * config.cluster
    each = COST.element_bwd if config.arrays == 3 else COST.element if itemsize > 2 else COST.element_16
    accesses = COST.access * problem.outputs[0].size / (config.unit / itemsize) + COST.thread * form.rows * config.lanes
    issue = issue_seconds(problem.outputs[0].size * each + accesses / min(1.0, fill), 1, device)
    share = occupied(grid * config.threads, COST.enough, device)
    slower = COST.heads if config.heads else 1.0
    if config.cluster > 1 and config.arrays == 2:  # all blocks of a cluster begin and end together
        slower *= 1 + COST.cluster * config.cluster
    if config.lanes <= 32:
        slower *= COST.register ** max(0, config.registers - 4)
    work = overlap(memory=memory_seconds(problem.bytes, device) * strided / (rate * share), issue=issue)
    work = work.slowed(tail=tail(grid, resident, device), slower=slower)
    launch = LAUNCH + Cost(launch=COST.cluster_launch) if config.cluster > 1 else LAUNCH
    if config.lanes > 32:
        wait, elements = WAITS[config.arrays], form.length / (config.lanes * config.cluster)
        each = wait.alone + wait.element * elements + wait.thread * config.threads * (1 + (config.shared > 0))
        each += wait.block * config.cluster + wait.cluster_element * elements if config.cluster > 1 else 0
        work = contend(COST.power, work, waits=each * max(1.0, grid / (device.sms * resident)))
    return launch + work.slowed(slower=COST.shared if config.shared else 1.0)


@functools.cache
def forward_kernel(config):
    """y = softmax(x), or its logarithm."""
    held, compute = config.held, element(config.dtype).compute
    row_of, do = make_row(held, config.threads), arithmetic(compute, config.log)
    span, load, load_rest, unpack, pack, store, store_rest, copy, fetch, put, kept = row_of[:11]
    power, shift, finish, result = do.power, do.shift, do.finish, do.result
    Real, NOTHING = held.real, -math.inf
    E, WORDS, UNIT_WORDS, REST, SINGLES = held.elements, held.words, held.unit_words, held.rest, held.singles
    THREADS, BLOCKS, LANES, REGISTERS, SHARED, CLUSTER = (config.threads, config.blocks, config.lanes, config.registers, config.shared,
                                                          config.cluster)
    ROWS, LOG, CLUSTER_LOG, NARROW = THREADS // LANES, LANES.bit_length() - 1, CLUSTER.bit_length() - 1, LANES <= 32
    SCRATCH, SLOTS = 1 if NARROW else THREADS // 8, 2 * CLUSTER
    places, hold = make_row_places(config.dims, 2), pin(WORDS)

    if NARROW:
        widest, whole = make_reduce(maximum, LANES), make_reduce(add, LANES)

        @device_function
        def early(m):
            return widest(m)

        @device_function
        def combine(m, total, scratch, slots):
            return m, whole(total)
    else:
        merge = make_block_reduce_pair(merge_softmax, THREADS)
        exchange = make_cluster_pair(merge_softmax, CLUSTER)

        @device_function
        def early(m):
            return m

        @device_function
        def combine(m, total, scratch, slots):
            m, total = merge(m, total, Real(0), scratch, 0)
            if CLUSTER > 1:
                cluster_wait()
                m, total = exchange(m, total, Real(0), slots)
            return m, total

    @jit(launch_bounds=(THREADS, BLOCKS))
    def softmax_fwd_rows(x, y, rows, length, x_step, y_step, divisors, strides):
        dynamic = cuda.shared.array(0, u32, alignment=16)
        scratch = cuda.shared.array(SCRATCH, Real)
        slots = cuda.shared.array(SLOTS, Real)
        words = cuda.local.array(WORDS, u32)
        part = cuda.local.array(UNIT_WORDS, u32)
        values = cuda.local.array(E, Real)
        rest = cuda.local.array(REST, Real)
        offsets = cuda.local.array(2, i64)
        thread = cuda.threadIdx.x
        lane = thread & (LANES - 1)
        row = cuda.blockIdx.x * ROWS + (thread >> LOG)
        if CLUSTER > 1:
            row = cuda.blockIdx.x >> CLUSTER_LOG
            lane = lane + cluster_rank() * LANES
            cluster_arrive_relaxed()
        n = length if row < rows else 0
        places(row if row < rows else 0, divisors, strides, offsets)
        x, y = advance(x, offsets[0]), advance(y, offsets[1])
        head, units = span(x, n)
        base, count = u32(0), i32(0)
        if SHARED:
            base = u32(shared_address(dynamic, i32(0)) + u32(16) * u32(thread))
            copy(base, x, head, units, lane)
        load(words, x, head, units, lane, x_step)
        load_rest(rest, x, head, units, n, lane)
        m = Real(NOTHING)
        for c in range(REGISTERS):
            unpack(values, words, c)
            for e in range(E):
                m = maximum(m, values[e])
        for k in range(SINGLES):
            m = maximum(m, rest[k])
        if SHARED:
            count = kept(units, lane)
            for c in range(count):
                fetch(part, base, c)
                unpack(values, part, 0)
                for e in range(E):
                    m = maximum(m, values[e])
        m = early(m)
        low, total = shift(m), Real(0)
        hold(words)
        for c in range(REGISTERS):
            unpack(values, words, c)
            for e in range(E):
                total = Real(total + power(Real(values[e] - low)))
        for k in range(SINGLES):
            total = Real(total + power(Real(rest[k] - low)))
        if SHARED:
            for c in range(count):
                fetch(part, base, c)
                unpack(values, part, 0)
                for e in range(E):
                    total = Real(total + power(Real(values[e] - low)))
        m, total = combine(m, total, scratch, slots)
        z = finish(total)
        hold(words)
        for c in range(REGISTERS):
            unpack(values, words, c)
            for e in range(E):
                values[e] = result(values[e], m, z)
            pack(words, c, values)
            store(y, words, c, head, units, lane, y_step)
        for k in range(SINGLES):
            rest[k] = result(rest[k], m, z)
        store_rest(y, rest, head, units, n, lane)
        if SHARED:
            for c in range(count):
                fetch(part, base, c)
                unpack(values, part, 0)
                for e in range(E):
                    values[e] = result(values[e], m, z)
                pack(part, 0, values)
                put(y, part, c, head, units, lane)
    return softmax_fwd_rows


@functools.cache
def backward_kernel(config):
    """dx from dy and y."""
    held, compute = config.held, element(config.dtype).compute
    row_of, do = make_row(held, config.threads), arithmetic(compute, config.log)
    span, load, load_rest, unpack, pack, store, store_rest = row_of[:7]
    product, gradient, Real = do.product, do.gradient, held.real
    E, WORDS, REST, SINGLES = held.elements, held.words, held.rest, held.singles
    THREADS, BLOCKS, LANES, REGISTERS, CLUSTER = config.threads, config.blocks, config.lanes, config.registers, config.cluster
    ROWS, LOG, CLUSTER_LOG, NARROW = THREADS // LANES, LANES.bit_length() - 1, CLUSTER.bit_length() - 1, LANES <= 32
    SCRATCH, SLOTS = 1 if NARROW else THREADS // 16, 2 * CLUSTER
    places, hold = make_row_places(config.dims, 3), pin(WORDS)
    if NARROW:
        in_warp = make_reduce(add, LANES)

        @device_function
        def combine(total, scratch, slots):
            return in_warp(total)
    else:
        in_block = make_block_reduce(add, THREADS)
        exchange = make_cluster_pair(merge_sums, CLUSTER)

        @device_function
        def combine(total, scratch, slots):
            total = in_block(total, scratch, 0)
            if CLUSTER > 1:
                cluster_wait()
                total, _ = exchange(total, total, Real(0), slots)
            return total

    @jit(launch_bounds=(THREADS, BLOCKS))
    def softmax_bwd_rows(dy, y, dx, rows, length, dy_step, y_step, dx_step, divisors, strides):
        scratch = cuda.shared.array(SCRATCH, Real)
        slots = cuda.shared.array(SLOTS, Real)
        a, b = cuda.local.array(WORDS, u32), cuda.local.array(WORDS, u32)
        values, others = cuda.local.array(E, Real), cuda.local.array(E, Real)
        rest, rest2 = cuda.local.array(REST, Real), cuda.local.array(REST, Real)
        offsets = cuda.local.array(3, i64)
        thread = cuda.threadIdx.x
        lane = thread & (LANES - 1)
        row = cuda.blockIdx.x * ROWS + (thread >> LOG)
        if CLUSTER > 1:
            row = cuda.blockIdx.x >> CLUSTER_LOG
            lane = lane + cluster_rank() * LANES
            cluster_arrive_relaxed()
        n = length if row < rows else 0
        places(row if row < rows else 0, divisors, strides, offsets)
        dy, y, dx = advance(dy, offsets[0]), advance(y, offsets[1]), advance(dx, offsets[2])
        head, units = span(dy, n)
        load(a, dy, head, units, lane, dy_step)
        load(b, y, head, units, lane, y_step)
        load_rest(rest, dy, head, units, n, lane)
        load_rest(rest2, y, head, units, n, lane)
        total = Real(0)
        for c in range(REGISTERS):
            unpack(values, a, c)
            unpack(others, b, c)
            for e in range(E):
                total = Real(total + product(values[e], others[e]))
        for k in range(SINGLES):
            total = Real(total + product(rest[k], rest2[k]))
        total = combine(total, scratch, slots)
        hold(a)
        hold(b)
        for c in range(REGISTERS):
            unpack(values, a, c)
            unpack(others, b, c)
            for e in range(E):
                values[e] = gradient(values[e], others[e], total)
            pack(a, c, values)
            store(dx, a, c, head, units, lane, dx_step)
        for k in range(SINGLES):
            rest[k] = gradient(rest[k], rest2[k], total)
        store_rest(dx, rest, head, units, n, lane)
    return softmax_bwd_rows


def build(problem, device, config):
    """One launch."""
    form, names = problem.form, ("x", "y") if config.arrays == 2 else ("dy", "y", "dx")
    divisors, strides = row_arguments(form)
    arguments = (*(Argument(element(problem.dtype).pointer, name) for name in names), Argument("int32", form.rows),
                 Argument("int32", form.length), *(Argument("int64", s) for s in form.steps),
                 Argument(f"uint32x{len(divisors)}", divisors), Argument(f"int64x{len(strides)}", strides))
    kernel = (forward_kernel if config.arrays == 2 else backward_kernel)(config)
    grid = ceil_div(form.rows, config.threads // config.lanes) * config.cluster
    return (Launch(kernel, (grid, 1, 1), (config.threads, 1, 1), arguments, shared=config.shared_bytes, cluster=(config.cluster, 1, 1)),)

"""A layer forward in one launch: recurrent weights stay in registers, states go round.

A block has some hidden units of a direction, all their gates, and some sequences. Before the first step its threads load the rows of R that
belong to these units; they never leave the registers. A step: the block waits until all blocks that share its sequences have announced
their states, copies these to shared memory and multiplies; then its threads, which have the same units and sequences at every step and
so keep cell states in registers, write new states where the others will read them. Blocks of other sequences go their own pace.

Products are of two kinds. Ordinary units: a warp has some rows, its lanes share k, each sequence's sums are added up over the lanes. Or
mma: a warp has 16 rows and a part of k, as fragments; parts are added up by whoever reads the sums.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, device_function, i32, i64, u32
from ..device.cluster import cluster_arrive, cluster_wait
from ..device.convert import element
from ..device.cp_async import commit_copies, copy_async16, wait_copies
from ..device.grid import announce, await_blocks
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.ldmatrix import ldmatrix_x2, ldmatrix_x4
from ..device.mma import make_mma
from ..device.vec import address, advance, load2, load4, shared_address
from ..device.warp import shuffle_xor
from ..host.dtypes import ITEMSIZE, compute_dtype
from ..matmul._tile import unrolled
from ._cells import TYPES, make_cell
from ._spec import GATES, SLOTS

COPY = 16  # bytes of a copy to shared memory
WARP = 32


@dataclass(frozen=True)
class Config:
    """What a layer's kernel is compiled for.

    Attributes
    ----------
    cell, dtype : str
    mma : bool
        Products on tensor cores.
    inner : int
        Of a product: the size of the state.
    units, samples : int
        Of a block; units a power of two.
    lines : int
        Rows of a warp; 16 for mma.
    splits : int
        Parts of k, for mma.
    cluster : int
        Blocks that share sequences are a cluster of so many; 0: they meet in global memory.
    """
    cell: str
    dtype: str
    mma: bool
    inner: int
    units: int
    samples: int
    lines: int
    splits: int
    cluster: int

    @property
    def compute(self):
        """What is summed in."""
        return compute_dtype(self.dtype)

    @property
    def rows(self):
        """Of R, of a block; padded to whole warps."""
        return ceil_div(GATES[self.cell] * self.units, self.lines) * self.lines

    @property
    def warps(self):
        return self.rows // self.lines * self.splits

    @property
    def threads(self):
        return WARP * self.warps

    @property
    def vector(self):
        """Elements of a copy."""
        return COPY // ITEMSIZE[self.dtype]

    @property
    def steps(self):
        """Of a warp's part of k: 16 wide for mma; else a load of 16 bytes by each lane."""
        return ceil_div(self.inner, 16 * self.splits) if self.mma else ceil_div(self.inner, WARP * self.vector)

    @property
    def length(self):
        """Elements of a line of states in shared memory: all that is multiplied, and for mma 16 bytes, which spare bank conflicts."""
        return self.steps * 16 * self.splits + self.vector if self.mma else self.steps * WARP * self.vector

    @property
    def pitch(self):
        """Numbers of a row of sums."""
        return self.samples + 1

    @property
    def states_bytes(self):
        return self.samples * self.length * ITEMSIZE[self.dtype]

    @property
    def sums(self):
        """Numbers in shared memory."""
        return self.splits * self.rows * self.pitch

    @property
    def pairs(self):
        """Of a unit and a sequence, of a thread."""
        return ceil_div(self.units * self.samples, self.threads)

    @property
    def held(self):
        """Words, or numbers, of R that a thread has."""
        return 4 * self.steps if self.mma else self.lines * self.steps * self.vector

    @property
    def registers_needed(self):
        """Of a thread: what it holds, sums, a line of states, cell states and inputs, addresses."""
        size = 2 if self.dtype == "float64" else 1
        product = self.samples // 2 + 8 if self.mma else (self.lines + self.steps * self.vector) * size
        return (self.held if self.mma else self.held * size) + product + self.pairs * (8 + GATES[self.cell]) * size + 56

    def __str__(self):
        how = f"mma, k in {self.splits}" if self.mma else f"{self.lines} rows a warp"
        return f"{self.units} units, {self.samples} sequences, {how}" + f", clusters of {self.cluster}" * bool(self.cluster)


@functools.cache
def _make_gather(width, bit):
    """Device function ``gather(acc)``: each lane's sums of `width` rows are added up over the lanes that differ in the bits up to `bit`;
    acc[0] is the sum of one row, `row_of(lane)`."""
    if bit == 0:
        @device_function
        def done(acc):
            return
        return done
    half, rest = width // 2, _make_gather(max(1, width // 2), bit // 2)

    @device_function
    def gather(acc):
        if half:
            upper = i32(cuda.threadIdx.x) & i32(bit)
            for r in range(half):
                mine, other = acc[r], acc[half + r]
                if upper:
                    mine, other = other, mine
                acc[r] = mine + shuffle_xor(other, i32(bit))
        else:
            acc[0] = acc[0] + shuffle_xor(acc[0], i32(bit))
        rest(acc)
    return gather


def row_of(lane, width):
    """Which of `width` rows a lane has after `gather`."""
    row, bit = 0, WARP // 2
    while width > 1:
        width //= 2
        row += width * bool(lane & bit)
        bit //= 2
    return row


@functools.cache
def make_scalar_product(config):
    """Device functions ``fetch(held, weights, ...)`` and ``multiply(held, states, sums)`` on ordinary units."""
    e, T = element(config.dtype), TYPES[config.compute]
    load = e.load
    LINES, STEPS, VECTOR, LENGTH, SAMPLES, PITCH = config.lines, config.steps, config.vector, config.length, config.samples, config.pitch
    GATES_OF, UNIT_LOG, INNER = GATES[config.cell], config.units.bit_length() - 1, config.inner
    EACH, SPAN, LOG, STAY = STEPS * VECTOR, WARP * VECTOR, LINES.bit_length() - 1, WARP // LINES - 1
    gather = _make_gather(LINES, WARP // 2)

    @device_function
    def fetch(held, weights, at, unit_count, first):
        lane, warp = i32(i32(cuda.threadIdx.x) & 31), i32(i32(cuda.threadIdx.x) >> 5)
        for r in range(LINES):
            row = i32(warp * LINES + r)
            gate = i32(row >> UNIT_LOG)
            unit = i32(first + row - i32(gate << UNIT_LOG))
            for s in range(STEPS):
                for v in range(VECTOR):
                    k, value = i32(s * SPAN + lane * VECTOR + v), T(0)
                    if gate < GATES_OF and unit < unit_count and k < INNER:
                        value = T(load(weights, i64(at + i64(i64(gate) * i64(unit_count) + i64(unit)) * INNER + i64(k))))
                    held[r * EACH + s * VECTOR + v] = value

    @device_function
    def multiply(held, states, sums):
        acc, values = cuda.local.array(LINES, T), cuda.local.array(EACH, T)
        lane, warp = i32(i32(cuda.threadIdx.x) & 31), i32(i32(cuda.threadIdx.x) >> 5)
        own = i32(0)
        for b in range(LOG):  # `row_of`
            own = i32(own + (i32(lane >> (4 - b)) & 1) * (LINES >> (b + 1)))
        for n in range(SAMPLES):
            for s in range(STEPS):
                at = i32(n * LENGTH + s * SPAN + VECTOR * lane)
                if VECTOR == 4:
                    values[4 * s], values[4 * s + 1], values[4 * s + 2], values[4 * s + 3] = load4(states, at)
                else:
                    values[2 * s], values[2 * s + 1] = load2(states, at)
            for r in range(LINES):
                acc[r] = T(0)
                for j in range(EACH):
                    acc[r] = T(acc[r] + held[r * EACH + j] * values[j])
            gather(acc)
            if i32(lane & STAY) == 0:
                sums[i32(i32(warp * LINES + own) * PITCH + n)] = acc[0]
    return fetch, multiply


@functools.cache
def make_mma_product(config):
    """The same on tensor cores: a warp has 16 rows and a part of k."""
    mma, FRAGMENTS = make_mma(config.dtype), config.samples // 8
    STEPS, SPLITS, LENGTH, PITCH, ROWS = config.steps, config.splits, config.length, config.pitch, config.rows
    GATES_OF, UNIT_LOG, INNER, SUMS = GATES[config.cell], config.units.bit_length() - 1, config.inner, 4 * FRAGMENTS
    SPLIT_LOG = SPLITS.bit_length() - 1
    PAIRS, ODD, WORDS = FRAGMENTS // 2, FRAGMENTS % 2, 4
    T = TYPES["float32"]

    @device_function
    def fetch_step(s, places):
        held, weights, at, unit_count, first, lane, tile, part = places
        for r in range(WORDS):
            row = i32(tile * 16 + i32(lane >> 2) + 8 * (r % 2))
            gate = i32(row >> UNIT_LOG)
            unit = i32(first + row - i32(gate << UNIT_LOG))
            k = i32(i32(part * STEPS + s) * 16 + 2 * i32(lane & 3) + 8 * (r // 2))
            word = u32(0)
            if gate < GATES_OF and unit < unit_count:
                base = i64(at + i64(i64(gate) * i64(unit_count) + i64(unit)) * INNER + i64(k))
                if k < INNER:
                    word = u32(weights[base])
                if k + 1 < INNER:
                    word = u32(word | u32(u32(weights[i64(base + 1)]) << u32(16)))
            held[i32(4 * s + r)] = word
    fetch_all = unrolled(STEPS, fetch_step)

    @device_function
    def fetch(held, weights, at, unit_count, first):
        lane, warp = i32(i32(cuda.threadIdx.x) & 31), i32(i32(cuda.threadIdx.x) >> 5)
        fetch_all(i32(0), (held, weights, at, unit_count, first, lane, i32(warp >> SPLIT_LOG), i32(warp & (SPLITS - 1))))

    @device_function
    def multiply_step(s, places):
        acc, held, b, even, odd = places
        for f in range(PAIRS):
            ldmatrix_x4(b, 0, u32(even + u32(i32(s * 32 + f * (32 * LENGTH)))))
            mma(acc, 8 * f, held, i32(4 * s), b, 0)
            mma(acc, 8 * f + 4, held, i32(4 * s), b, 2)
        if ODD:
            ldmatrix_x2(b, 0, u32(odd + u32(i32(s * 32))))
            mma(acc, 8 * PAIRS, held, i32(4 * s), b, 0)
    multiply_all = unrolled(STEPS, multiply_step)

    @device_function
    def multiply(held, states, sums):
        acc, b = cuda.local.array(SUMS, T), cuda.local.array(4, u32)
        lane, warp = i32(i32(cuda.threadIdx.x) & 31), i32(i32(cuda.threadIdx.x) >> 5)
        tile, part = i32(warp >> SPLIT_LOG), i32(warp & (SPLITS - 1))
        for j in range(SUMS):
            acc[j] = T(0)
        # a lane's line of two times eight sequences, or of eight, and its half of 16 elements along k
        base = u32(shared_address(states, i32(0)) + u32(i32(i32(part * (32 * STEPS)) + 16 * i32(i32(lane >> 3) & 1))))
        even = u32(base + u32(i32(2 * LENGTH * i32(i32(lane & 7) + 8 * i32(lane >> 4)))))
        odd = u32(base + u32(i32(2 * LENGTH * i32(16 * PAIRS + i32(lane & 7)))))
        multiply_all(i32(0), (acc, held, b, even, odd))
        for f in range(FRAGMENTS):
            for r in range(4):
                line = i32(part * ROWS + tile * 16 + i32(lane >> 2) + 8 * (r // 2))
                sums[i32(line * PITCH + 8 * f + 2 * i32(lane & 3) + r % 2)] = acc[4 * f + r]
    return fetch, multiply


@functools.cache
def forward_kernel(config, kind):
    """All steps of a layer."""
    e, T, cell = element(kind.dtype), TYPES[kind.compute], make_cell(kind.cell, kind.compute, kind.clip)
    load, store, forward = e.load, e.store, cell.forward
    LSTM, GRU, SKIP = kind.cell == "lstm", kind.cell == "gru", kind.skip
    GATES_OF, SLOTS_OF = GATES[kind.cell], SLOTS[kind.cell]
    LINEAR, FIRST_BIAS, SECOND_BIAS = "w_ih" in kind.given, "b_ih" in kind.given, "b_hh" in kind.given
    H0, C0, LENGTHS, TRAINING = (name in kind.present for name in ("h0", "c0", "lengths", "reserve"))
    fetch, multiply = (make_mma_product if config.mma else make_scalar_product)(config)
    THREADS, UNITS, SAMPLES, PAIRS, SPLITS = config.threads, config.units, config.samples, config.pairs, config.splits
    ROWS, PITCH, SUMS, UNIT_LOG, CLUSTER = config.rows, config.pitch, config.sums, config.units.bit_length() - 1, config.cluster
    HELD, HELD_TYPE, ELEMENT = config.held, u32 if config.mma else T, u32 if config.mma else T
    VECTOR, INNER, LINE, TILE = config.vector, config.inner, config.length * ITEMSIZE[kind.dtype], config.states_bytes
    CHUNKS, BY_CHUNKS, INPUTS = INNER // VECTOR, divisor(INNER // VECTOR), PAIRS * GATES_OF
    COPIES, WORDS, narrow, widen, landed = SAMPLES * CHUNKS, TILE // ITEMSIZE["float32" if config.mma else kind.dtype], e.narrow, e.widen, \
        wait_copies(0)

    @cuda.jit(launch_bounds=(THREADS, 1))
    def rnn_persistent(sums, x, weights, h0, c0, lengths, states, came, y, hn, cn, reserve, steps, samples, units, layer, blocks,
                       sums_strides, x_strides, y_strides, s, offsets):
        tile, products = cuda.shared.array(0, ELEMENT, alignment=16), cuda.shared.array(SUMS, T)
        held = cuda.local.array(HELD, HELD_TYPE)
        cells, last, slots = cuda.local.array(PAIRS, T), cuda.local.array(PAIRS, T), cuda.local.array(SLOTS_OF, T)
        inputs, ends = cuda.local.array(INPUTS, T), cuda.local.array(PAIRS, i32)
        thread, block, group, which = i32(cuda.threadIdx.x), i32(cuda.blockIdx.x), i32(cuda.blockIdx.y), i32(cuda.blockIdx.z)
        first, n0 = i32(block * UNITS), i32(group * SAMPLES)
        w_hh = offsets[5] if which else offsets[0]
        b_ih, b_hh = (offsets[6], offsets[7]) if which else (offsets[1], offsets[2])
        gates_at, cells_at = (offsets[8], offsets[9]) if which else (offsets[3], offsets[4])
        H, of = i64(units), i64(i64(layer) + i64(which))
        base = shared_address(tile, i32(0))
        for j in range(thread, i32(WORDS), i32(THREADS)):  # what lies behind the states, and sequences that do not exist, stay 0
            tile[j] = ELEMENT(0)
        fetch(held, weights, w_hh, units, first)
        cuda.syncthreads()
        counter = advance(came, i64(i64(which) * i64(cuda.gridDim.y) + i64(group)))
        mine, parity = advance(states, i64(i64(which) * i64(samples) * INNER)), i64(i64(cuda.gridDim.z) * i64(samples) * INNER)
        for p in range(PAIRS):
            pair = i32(thread + p * THREADS)
            n, unit = i32(n0 + i32(pair >> UNIT_LOG)), i32(first + i32(pair & (UNITS - 1)))
            ends[p], cells[p], last[p] = i32(-1), T(0), T(0)
            if pair < UNITS * SAMPLES and n < samples and unit < units:
                ends[p] = i32(steps)
                if LENGTHS:
                    ends[p] = min(max(i32(lengths[n]), i32(0)), i32(steps))
                if H0:
                    last[p] = T(load(h0, i64(of * s[0] + i64(n) * s[1] + i64(unit) * s[2])))
                if C0:
                    cells[p] = T(load(c0, i64(of * s[3] + i64(n) * s[4] + i64(unit) * s[5])))
        for step in range(steps):
            # what this step adds from the input is under way while the others finish
            for p in range(PAIRS):
                pair = i32(thread + p * THREADS)
                n, unit = i32(n0 + i32(pair >> UNIT_LOG)), i32(first + i32(pair & (UNITS - 1)))
                if step < ends[p]:
                    t = i32(ends[p] - 1 - step) if which else i32(step)
                    at = i64(i64(which) * sums_strides[0] + i64(t) * sums_strides[1] + i64(n) * sums_strides[2] + i64(unit))
                    for g in range(GATES_OF):
                        value = T(0)
                        if LINEAR:
                            value = sums[i64(at + g * H)]
                        if SKIP:
                            value = T(load(x, i64(i64(t) * x_strides[0] + i64(n) * x_strides[1] + i64(unit) * x_strides[2])))
                        if FIRST_BIAS:
                            value = T(value + T(load(weights, i64(b_ih + g * H + i64(unit)))))
                        inputs[p * GATES_OF + g] = value
            if step > 0:
                if CLUSTER:
                    cluster_wait()
                else:
                    await_blocks(counter, u32(i32(step) * blocks))
            source = advance(mine, i64(i64(i32(step) & 1) * parity))
            for j in range(thread, i32(COPIES), i32(THREADS)):
                n, chunk = divide_remainder(j, BY_CHUNKS)
                inside = i32(n0 + n) < samples
                at = i64(i64(n0 + n) * INNER + i64(i32(chunk * VECTOR))) if inside else i64(0)
                copy_async16(u32(base + u32(i32(n * LINE + chunk * COPY))), address(source, at), i64(0), u32(COPY) if inside else u32(0))
            commit_copies()
            landed()
            cuda.syncthreads()
            multiply(held, tile, products)
            cuda.syncthreads()
            target = advance(mine, i64(i64(i32(step + 1) & 1) * parity))
            for p in range(PAIRS):
                pair = i32(thread + p * THREADS)
                sample, unit_here = i32(pair >> UNIT_LOG), i32(pair & (UNITS - 1))
                n, unit = i32(n0 + sample), i32(first + unit_here)
                if ends[p] >= 0:
                    has = step < ends[p]
                    t = i32(ends[p] - 1 - step) if which and has else i32(step)
                    line = i64(i64(t) * i64(samples) + i64(n))
                    to = i64(i64(t) * y_strides[0] + i64(n) * y_strides[1] + i64(i64(which) * H + i64(unit)) * y_strides[2])
                    h = T(0)
                    for g in range(SLOTS_OF):
                        slots[g] = T(0)
                    state = T(0)
                    if has:
                        for g in range(GATES_OF):
                            half = T(0)
                            for q in range(SPLITS):
                                half = T(half + products[i32(i32(q * ROWS + g * UNITS + unit_here) * PITCH + sample)])
                            if SECOND_BIAS:
                                half = T(half + T(load(weights, i64(b_hh + g * H + i64(unit)))))
                            if GRU and g == 2:
                                slots[2] = inputs[p * GATES_OF + 2]
                                slots[3] = half
                            else:
                                slots[g] = T(inputs[p * GATES_OF + g] + half)
                        state, h = forward(slots, cells[p] if LSTM else last[p])
                        if LSTM:
                            cells[p] = state
                    store(y, to, h)
                    if has:
                        last[p] = T(widen(narrow(h)))
                    store(target, i64(i64(n) * INNER + i64(unit)), last[p])
                    if TRAINING:
                        for g in range(SLOTS_OF):
                            store(reserve, i64(gates_at + i64(line * SLOTS_OF + g) * H + i64(unit)), slots[g])
                        if LSTM:
                            store(reserve, i64(cells_at + line * H + i64(unit)), state)
            if step + 1 < steps:
                if CLUSTER:
                    cluster_arrive()
                else:
                    announce(counter)
        for p in range(PAIRS):
            pair = i32(thread + p * THREADS)
            n, unit = i32(n0 + i32(pair >> UNIT_LOG)), i32(first + i32(pair & (UNITS - 1)))
            if ends[p] >= 0:
                store(hn, i64(of * s[6] + i64(n) * s[7] + i64(unit) * s[8]), last[p])
                if LSTM:
                    store(cn, i64(of * s[9] + i64(n) * s[10] + i64(unit) * s[11]), cells[p])
    return rnn_persistent

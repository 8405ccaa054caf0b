"""All steps of a layer in one launch: recurrent weights stay in registers, what passes from step to step is exchanged.

A block has some hidden units of a direction and some sequences. Before the first step its threads load what of R belongs to these units,
forward the rows of all their gates, backward the columns; it never leaves the registers. A step: the block waits until all blocks that
share its sequences have announced what they have, states or gradients of gates, copies these lines to shared memory and multiplies; then
its threads, which have the same units and sequences at every step and so keep cell states in registers, write new lines where the others
will read them. Blocks of other sequences go their own pace.

Products are of two kinds. Ordinary units: a warp has some rows, its lanes share k, each sequence's sums are added up over the lanes. Or
mma: a warp has 16 rows and a part of k, as fragments; parts are added up by whoever reads the sums. Of float32 they are in TF32: R is
rounded once, as it comes to the registers, lines when they are exchanged.

With a projection a step is two products, of the same threads, each with a part of its matrix in registers and lines that are exchanged
before it: forward h, then the hidden units it is of; backward the gates' gradients, then that of h.
"""
import functools

from ...device import cuda, device_function, i64, u32
from ...device.cluster import cluster_arrive, cluster_wait
from ...device.convert import element
from ...device.cp_async import commit_copies, copy_async16, wait_copies
from ...device.grid import announce, await_blocks
from ...device.index import divide_remainder, divisor
from ...device.ldmatrix import ldmatrix_x2, ldmatrix_x4, ldmatrix_x4_trans
from ...device.mma import make_mma
from ...device.numeric import bits_float, float_bits, round_tf32
from ...device.unroll import unrolled
from ...device.vec import address, load2, load4, shared_address
from ...device.warp import shuffle_xor
from ...host.dtypes import ITEMSIZE
from .._cells import TYPES
from .config import COPY, TILE, WARP


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
            upper = cuda.threadIdx.x & bit
            for r in range(half):
                mine, other = acc[r], acc[half + r]
                if upper:
                    mine, other = other, mine
                acc[r] = mine + shuffle_xor(other, bit)
        else:
            acc[0] = acc[0] + shuffle_xor(acc[0], bit)
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
def _make_place(config):
    """Device functions ``place(at, gate, unit, k, units)``, where in the weights the element k of a row is, and ``has(gate, unit, k, units,
    inner)``, whether there is one. Beside other layers the second half of a row is in W, which lies before R and is as large."""
    WIDTH, BACK, LAYERS, ROWS = config.width, config.back, config.layers, config.rows_a_unit
    SPLIT, MATRIX = config.splits_n, (config.rows_a_unit - config.splits_n) * config.width

    @device_function
    def place(at, gate, unit, k, units):
        if BACK:
            return at + k * i64(units) + unit
        which = 2 if SPLIT and gate == 3 else gate
        row = at + (which * i64(units) + unit) * WIDTH + k
        if LAYERS and k >= WIDTH:
            return row - MATRIX * i64(units) - WIDTH
        return row

    @device_function
    def has(gate, unit, k, units, inner):
        if SPLIT and (gate == 2 and k < WIDTH or gate == 3 and k >= WIDTH):
            return False
        return gate < ROWS and unit < units and k < inner
    return place, has


def make_product(config):
    """Device functions ``fetch(held, tile, weights, at, units, first, inner)``, of rows of `inner` elements, through shared memory that is
    free afterwards, and ``multiply(held, lines, sums, n)``, for the block's sequences from n on."""
    return (_make_mma_product if config.mma else _make_scalar_product)(config)


@functools.cache
def _make_scalar_product(config):
    """On ordinary units."""
    e, T = element(config.dtype), TYPES[config.compute]
    load = e.load
    LINES, STEPS, VECTOR, LENGTH, PART, PITCH = config.lines, config.steps, config.vector, config.length, config.part, config.pitch
    UNIT_LOG = config.units.bit_length() - 1
    WARPS, BEFORE, IDLE = config.warps, config.before // ITEMSIZE[config.dtype], config.threads > WARP * config.warps
    EACH, SPAN, LOG, STAY = STEPS * VECTOR, WARP * VECTOR, LINES.bit_length() - 1, WARP // LINES - 1
    gather, (place, has) = _make_gather(LINES, WARP // 2), _make_place(config)

    @device_function
    def fetch(held, tile, weights, at, unit_count, first, inner):
        lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
        if IDLE and warp >= WARPS:
            return
        for r in range(LINES):
            row = warp * LINES + r
            gate = row >> UNIT_LOG
            unit = first + row - (gate << UNIT_LOG)
            for s in range(STEPS):
                for v in range(VECTOR):
                    k, value = s * SPAN + lane * VECTOR + v, T(0)
                    if has(gate, unit, k, unit_count, inner):
                        value = T(load(weights, place(at, gate, unit, k, unit_count)))
                    held[r * EACH + s * VECTOR + v] = value

    @device_function
    def multiply(held, states, sums, before):
        acc, values = cuda.local.array(LINES, T), cuda.local.array(EACH, T)
        lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
        if IDLE and warp >= WARPS:
            return
        own = 0
        for b in range(LOG):  # `row_of`
            own = own + ((lane >> (4 - b)) & 1) * (LINES >> (b + 1))
        for n in range(PART):
            for s in range(STEPS):
                at = BEFORE + n * LENGTH + s * SPAN + VECTOR * lane
                if VECTOR == 4:
                    values[4 * s], values[4 * s + 1], values[4 * s + 2], values[4 * s + 3] = load4(states, at)
                else:
                    values[2 * s], values[2 * s + 1] = load2(states, at)
            for r in range(LINES):
                acc[r] = T(0)
                for j in range(EACH):
                    acc[r] = T(acc[r] + held[r * EACH + j] * values[j])
            gather(acc)
            if lane & STAY == 0:
                sums[(warp * LINES + own) * PITCH + before + n] = acc[0]
    return fetch, multiply


@functools.cache
def _make_rounding(count, is_tf32):
    """Device function ``round_words(words, i)`` of `count` words of fragments: to TF32; of other types nothing."""
    @device_function
    def round_words(words, i):
        if is_tf32:
            for j in range(count):
                words[i + j] = round_tf32(words[i + j])
    return round_words


@functools.cache
def _make_fragments(config):
    """Device functions ``bring_step(s, source)`` and ``fetch_step(s, state)``: a lane's copy of a step of R to its warp's ring, and the
    fragments of a step that has arrived."""
    STEPS, UNIT_LOG, UNITS, BACK, RING_STEPS = config.steps, config.units.bit_length() - 1, config.units, config.back, config.ring
    DEPTH_OF, VECTOR, TF32, (place, has) = config.depth, config.vector, config.is_tf32, _make_place(config)
    load, arrived, BY_WORDS = ldmatrix_x4_trans if BACK else ldmatrix_x4, wait_copies(RING_STEPS - 1), BACK and TF32
    WORDS = TILE // 4
    round_words = _make_rounding(4, TF32)

    @device_function
    def bring_step(s, source):
        """A lane's copy: half a row of the step, or backward of one element along k as many units. Halves are exchanged in every second
        group of four rows, which spares ldmatrix bank conflicts; backward in TF32 a line is 16 units, whose first and last eight are
        exchanged in every second pair of lines."""
        if s < STEPS:
            ring, weights, at, unit_count, first, inner, tile, part = source
            lane, k = cuda.threadIdx.x & 31, (part * STEPS + s) * DEPTH_OF
            if BY_WORDS:
                line, chunk = lane >> 2, lane & 3
                row, k, to = tile * 16 + VECTOR * chunk, k + line, 64 * line + COPY * (chunk ^ (line & 2))
            else:
                line, half = lane >> 1, lane & 1
                to = 32 * line + COPY * (half ^ ((line >> 2) & 1))
                if BACK:
                    row, k = tile * 16 + VECTOR * half, k + line
                else:
                    row, k = tile * 16 + line, k + VECTOR * half
            gate = row >> UNIT_LOG
            unit = first + (row & (UNITS - 1))
            inside = has(gate, unit, k, unit_count, inner)
            copy_async16(ring + u32(s % RING_STEPS * TILE + to),
                         address(weights, place(at, gate, unit, k, unit_count) if inside else i64(0)), i64(0),
                         u32(COPY) if inside else u32(0))
        commit_copies()

    @device_function
    def fetch_step(s, state):
        held, shared, source = state
        ring, lane, warp = source[0], cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
        arrived()
        cuda.syncwarp()
        if BY_WORDS:
            for r in range(4):
                line, unit = (lane & 3) + 4 * (r // 2), (lane >> 2) + 8 * (r % 2)
                held[4 * s + r] = shared[(warp * RING_STEPS + s % RING_STEPS) * WORDS + 16 * line + (unit ^ (4 * (line & 2)))]
        else:
            above, right = (lane >> 3) & 1, lane >> 4  # which of the four 8 x 8 the lane's address is of
            line, half = ((lane & 7) + 8 * right, above) if BACK else ((lane & 7) + 8 * above, right)
            load(held, 4 * s, ring + u32(s % RING_STEPS * TILE + 32 * line + COPY * (half ^ ((line >> 2) & 1))))
        round_words(held, 4 * s)
        cuda.syncwarp()
        bring_step(s + RING_STEPS, source)
    return bring_step, fetch_step


@functools.cache
def _make_mma_product(config):
    """On tensor cores: a warp has 16 rows and a part of k."""
    ROUNDED, ITEM = config.rounds_fragments, ITEMSIZE[config.dtype]
    mma, FRAGMENTS = make_mma("tf32" if config.is_tf32 else config.dtype), config.part // 8
    STEPS, SPLITS, LENGTH, PITCH, ROWS = config.steps, config.splits, config.length, config.pitch, config.rows
    SUMS = 4 * FRAGMENTS
    CHAINS = 2 if FRAGMENTS == 1 else 1  # of products that wait for each other
    ALL_SUMS = SUMS * CHAINS
    SPLIT_LOG, BYTES = SPLITS.bit_length() - 1, config.ring * TILE
    WARPS, BEFORE, IDLE = config.warps, config.before, config.threads > WARP * config.warps
    PAIRS, ODD, T = FRAGMENTS // 2, FRAGMENTS % 2, TYPES["float32"]
    (bring_step, fetch_step), round_pair, round_one = _make_fragments(config), _make_rounding(4, ROUNDED), _make_rounding(2, ROUNDED)
    bring_first, fetch_all = unrolled(config.ring, bring_step), unrolled(STEPS, fetch_step)

    @device_function
    def fetch(held, tile, weights, at, unit_count, first, inner):
        warp = cuda.threadIdx.x >> 5
        ring = shared_address(tile, 0) + u32(warp * BYTES)
        source = ring, weights, at, unit_count, first, inner, warp >> SPLIT_LOG, warp & (SPLITS - 1)
        if not IDLE or warp < WARPS:
            bring_first(0, source)
            fetch_all(0, (held, tile, source))
        cuda.syncthreads()

    @device_function
    def multiply_step(s, places):
        acc, held, b, even, odd = places
        for f in range(PAIRS):
            ldmatrix_x4(b, 0, even + u32(s * 32 + f * (16 * ITEM * LENGTH)))
            round_pair(b, 0)
            mma(acc, 8 * f, held, 4 * s, b, 0)
            mma(acc, 8 * f + 4, held, 4 * s, b, 2)
        if ODD:
            ldmatrix_x2(b, 0, odd + u32(s * 32))
            round_one(b, 0)
            mma(acc, 8 * PAIRS + 4 * (s & (CHAINS - 1)), held, 4 * s, b, 0)
    multiply_all = unrolled(STEPS, multiply_step)

    @device_function
    def multiply(held, states, sums, before):
        acc, b = cuda.local.array(ALL_SUMS, T), cuda.local.array(4, u32)
        lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
        tile, part = warp >> SPLIT_LOG, warp & (SPLITS - 1)
        if IDLE and warp >= WARPS:
            return
        for j in range(ALL_SUMS):
            acc[j] = T(0)
        # a lane's line of two times eight sequences, or of eight, and its half of a step
        base = shared_address(states, 0) + u32(BEFORE + part * (32 * STEPS) + 16 * ((lane >> 3) & 1))
        even = base + u32(ITEM * LENGTH * ((lane & 7) + 8 * (lane >> 4)))
        odd = base + u32(ITEM * LENGTH * (16 * PAIRS + (lane & 7)))
        multiply_all(0, (acc, held, b, even, odd))
        if CHAINS == 2:
            for j in range(SUMS):
                acc[j] = T(acc[j] + acc[SUMS + j])
        for f in range(FRAGMENTS):
            for r in range(4):
                line = part * ROWS + tile * 16 + (lane >> 2) + 8 * (r // 2)
                sums[line * PITCH + before + 8 * f + 2 * (lane & 3) + r % 2] = acc[4 * f + r]
    return fetch, multiply


@functools.cache
def make_copy(config, half=0):
    """Device functions ``clear(tile)``, once, and ``start(tile, source, first, samples)`` and ``bring`` of the same: the lines of sequences
    from `first` on are in flight to shared memory, or with what is in flight are there, when they return; a half of the line, where it has
    two. What lies after a line, and sequences that do not exist, stay 0."""
    ELEMENT, ITEM = u32 if config.mma else TYPES[config.compute], ITEMSIZE[config.dtype]
    VECTOR, WIDTH, LINE, THREADS = config.vector, config.width, config.length * ITEM, config.threads
    WORDS, CHUNKS = config.lines_end // (4 if config.mma else ITEM), divisor(WIDTH // VECTOR)
    BEFORE, COPIES, landed = config.before + half * WIDTH * ITEM, config.part * (WIDTH // VECTOR), wait_copies(0)

    @device_function
    def clear(tile):
        for j in range(cuda.threadIdx.x, WORDS, THREADS):
            tile[j] = ELEMENT(0)
        cuda.syncthreads()

    @device_function
    def start(tile, source, first, samples):
        base = shared_address(tile, 0) + BEFORE
        for j in range(cuda.threadIdx.x, COPIES, THREADS):
            n, chunk = divide_remainder(j, CHUNKS)
            inside = first + n < samples
            at = i64(first + n) * WIDTH + chunk * VECTOR if inside else i64(0)
            copy_async16(base + u32(n * LINE + chunk * COPY), address(source, at), i64(0), u32(COPY) if inside else u32(0))

    @device_function
    def bring(tile, source, first, samples):
        start(tile, source, first, samples)
        commit_copies()
        landed()
        cuda.syncthreads()
    return clear, start, bring


@functools.cache
def make_to_line(config):
    """Device function ``to_line(value)``: as it is exchanged."""
    TF32, T = config.is_tf32 and not config.rounds_fragments, TYPES[config.compute]

    @device_function
    def to_line(value):
        if TF32:
            return bits_float(round_tf32(float_bits(T(value))))
        return value
    return to_line


@functools.cache
def make_meeting(config):
    """Device functions ``tell(counter)`` and ``meet(counter, count)`` between steps: of a cluster, or by a counter in global memory."""
    if config.cluster:
        @device_function
        def tell(counter):
            cluster_arrive()

        @device_function
        def meet(counter, count):
            cluster_wait()
        return tell, meet
    return announce, await_blocks


@functools.cache
def make_pairs(config, lengths_given):
    """Device functions ``pair(p)``: (unit, sequence) of a thread's p-th pair, of the layer; and ``ends_of(ends, lengths, steps, samples,
    units)``: how many steps the sequence of each pair has, -1 where there is no such pair."""
    THREADS, UNITS, SAMPLES, PAIRS, LOG = config.threads, config.units, config.samples, config.pairs, config.units.bit_length() - 1

    @device_function
    def pair(p):
        j = cuda.threadIdx.x + p * THREADS
        return cuda.blockIdx.x * UNITS + (j & (UNITS - 1)), cuda.blockIdx.y * SAMPLES + (j >> LOG)

    @device_function
    def ends_of(ends, lengths, steps, samples, units):
        for p in range(PAIRS):
            unit, n = pair(p)
            ends[p] = -1
            if cuda.threadIdx.x + p * THREADS < UNITS * SAMPLES and n < samples and unit < units:
                ends[p] = steps
                if lengths_given:
                    ends[p] = min(max(lengths[n], 0), steps)
    return pair, ends_of

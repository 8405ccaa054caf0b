"""A block a tile of rows: the scores of a tile of keys at a time, in registers, and sums that are scaled when the largest score grows.

    q, k -- shared memory, rows of 16-byte groups --> scores in registers -- exponentials --> shared memory, v -- sums in registers --> o

- Nothing of the size rows x keys exists. Each row has its largest score so far and the sum of exponentials by it; when a tile of keys
  brings a larger score, the sums of the row are multiplied by what the exponentials become less (Milakov and Gimelshein, 2018;
  FlashAttention, Dao et al., 2022).
- Tiles of keys that no row of the block sees are left out, and keys are compared with rows only in tiles that some row sees in part. Blocks
  with the most keys come first.
- The next tile of k is under way while exponentials and sums with v are computed, that of v during the scores: float32 and float64 by
  cp.async where rows are aligned, others through registers, where they are widened. Two barriers a tile of keys.
- A row's scores lie in a part of one warp: its maximum takes shuffles, and probabilities pass through shared memory by warps alone.

Multiply-adds bound it: with 8 x 4 or 4 x 4 products a thread 16 bytes from shared memory serve 11 or 8 of them. Tensor cores have no
part in it.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, device_function, i32, i64, jit, u32
from ...device.convert import element
from ...device.cp_async import commit_copies, wait_copies
from ...device.fastmath import maximum
from ...device.index import Divisor, divide_remainder, divisor
from ...device.unroll import unrolled
from ...device.vec import advance, shared_address
from ...device.warp import add, make_reduce
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, memory_seconds, overlap
from ...host.launch import Argument, Launch
from ...host.products import FLOATS
from .._flash import blocks_seconds, fits, lines_arguments, make_powers, tiles_of
from .._parameters import Kind, RowStrides, Sequences, Strides, added_arguments, kind_of, number_arguments, sequence_arguments
from .._scores import NEG_INF, make_attends, make_extent, make_terms, make_tile
from .._simt import Source, Threads, group_of, item_of, make_loader, make_products, make_row_store, padded, pitch_of, source_of, words_of

COST = constants("attention/simt")

SHAPES = (Threads(8, 4, 16, 16), Threads(4, 4, 16, 16), Threads(4, 4, 16, 8), Threads(4, 4, 8, 8), Threads(2, 2, 16, 4),
          Threads(2, 2, 8, 4))


@dataclass(frozen=True)
class Config:
    """The options, how arrays are read and written, and who has what: `put` are the 32-bit words of a store to o."""
    kind: Kind
    q: Source
    k: Source
    v: Source
    threads: Threads
    put: int
    lse: bool

    @property
    def depth(self):
        """Columns of q's and k's tiles."""
        return padded(self.q.elements, group_of(self.kind.dtype))

    @property
    def pitch(self):
        return pitch_of(self.depth, self.kind.dtype)

    @property
    def width(self):
        """Columns of v's tile, a multiple of what the lanes have in groups of 16 bytes."""
        return padded(self.v.elements, self.threads.lanes * group_of(self.kind.dtype))

    @property
    def p_pitch(self):
        return self.threads.width + group_of(self.kind.dtype)

    @property
    def shared(self):
        """Bytes of the tiles of q, k, v and of the probabilities."""
        t = self.threads
        return item_of(self.kind.dtype) * ((t.height + t.width) * self.pitch + t.width * self.width + t.height * self.p_pitch)

    @property
    def registers(self):
        """About how many registers a thread needs."""
        t, item = self.threads, item_of(self.kind.dtype) // 4
        sums = t.rows * self.width // t.lanes
        return item * (sums + t.rows * t.columns + group_of(self.kind.dtype) * (t.rows + t.columns) + 3 * t.rows) + 48

    def __str__(self):
        return f"{self.threads.height}x{self.threads.width} by {self.threads.count} threads"


def supports(problem):
    """Heads of up to 256 elements, of 16 bits and more."""
    if problem.dtype not in FLOATS:
        return f"dtype {problem.dtype}; expected one of {', '.join(FLOATS)}"
    return fits(problem, SHAPES[-1].height)


def workspace(problem, device, config):
    """None."""
    return 0


def configs(problem, device):
    """Tiles whose sums fit registers and shared memory."""
    p, found = problem, []
    sources = [source_of(t, p.strides(t)) for t in (p.q, p.k, p.v)]
    put = words_of(p.o, p.strides(p.o))
    for threads in SHAPES:
        config = Config(kind_of(p), *sources, threads, put, p.lse is not None)
        if config.shared <= device.shared_per_block and config.registers <= 220:
            found.append(config)
    return found


def estimate(problem, device, config):
    """Multiply-adds of whole tiles, by how many warps a multiprocessor has to hide them; partial tiles at the edges."""
    p, t = problem, config.threads
    blocks = p.images * p.heads * tiles_of(p, p.rows, t.height)
    rate = (device.fp64_rate if p.compute == "float64" else device.fp32_rate) / 2
    keys = p.pairs * p.heads / max(blocks, 1) / t.height + t.width / 2  # of a block
    work = t.height * keys * (config.depth + config.width)
    # of a thread's products and loads of 16 bytes, and of the exponentials, some 20 instructions each
    loads = (t.rows + t.columns) / (t.rows * t.columns) * COST.load
    issue = 1 + loads + COST.exponentials / (config.depth + config.width) * (2 if p.dropout else 1)
    math = blocks_seconds(blocks, work * issue, t, config.shared, config.registers, rate * COST.fwd, device)
    return LAUNCH + overlap(math=math, memory=memory_seconds(p.bytes, device))


@functools.cache
def kernel(config):
    """A tile of rows of one head a block."""
    kind, t, T = config.kind, config.threads, config.kind.real
    terms, powers, attends = make_terms(kind), make_powers(kind.compute), make_attends(kind)
    extent, tile_of = make_extent(kind), make_tile(kind.packed, t.height)
    ROWS, COLUMNS, LANES, HEIGHT, WIDTH, THREADS = t.rows, t.columns, t.lanes, t.height, t.width, t.count
    G, ITEM, DEPTH, PITCH, VALUES, P_PITCH = (group_of(kind.dtype), item_of(kind.dtype), config.depth, config.pitch, config.width,
                                              config.p_pitch)
    K_AT, GROUPS, SUMS, SCORES = HEIGHT * PITCH, DEPTH // G, ROWS * VALUES // LANES, ROWS * COLUMNS
    V_AT = K_AT + WIDTH * PITCH
    P_AT = V_AT + WIDTH * VALUES
    OWN, WITH_LSE, PACKED, BIAS, MASK = VALUES // LANES, config.lse, kind.packed, bool(kind.bias), kind.mask
    load_q = make_loader(config.q, HEIGHT, DEPTH, PITCH, THREADS)
    load_k = make_loader(config.k, WIDTH, DEPTH, PITCH, THREADS)
    load_v = make_loader(config.v, WIDTH, VALUES, VALUES, THREADS)
    transposed, straight = make_products(t, kind.dtype)
    scores, weigh = transposed(0), straight(VALUES)
    most, total = make_reduce(maximum, LANES), make_reduce(add, LANES)
    store, landed = make_row_store(kind.dtype, config.v.elements, config.put, LANES, OWN), wait_copies(0)
    load_sink, SINK = element(kind.sink or kind.dtype).load, bool(kind.sink)

    @device_function
    def online_softmax(r, s):
        """Scores of a row of the thread, their maximum, the rescaled accumulators, probabilities."""
        (x, sums, row_max, row_sum, levels, memory, p_at, i0, j0, whole, lane, shift, rows, keys, bounds, slope, bias, bias_at,
         bias_strides, mask, mask_at, mask_strides, scale, softcap, seed, head, threshold, factor) = s
        i, top, row_at = i0 + r, row_max[r], bias_at + (i0 + r) * bias_strides.row
        for c in range(COLUMNS):
            j, value = j0 + c * LANES, T(NEG_INF)
            visible = whole or attends(i, j, shift, keys, bounds)
            if MASK and visible:
                visible = i < rows and terms.permits(mask, mask_at + i * mask_strides.row + j * mask_strides.column)
            if visible:
                at = row_at
                if BIAS:  # rows beyond the last are computed, too
                    at = row_at + j * bias_strides.column if i < rows else i64(0)
                value = terms.score(x[r * COLUMNS + c], j - i - shift, slope, bias, at, scale, softcap)
            x[r * COLUMNS + c] = value
            top = maximum(top, value)
        top = most(top)
        level = powers.level(top)
        if row_max[r] != T(NEG_INF):
            fall = powers.fall(levels[r], level)
            row_sum[r] = T(row_sum[r] * fall)
            for c in range(OWN):
                sums[r * OWN + c] = T(sums[r * OWN + c] * fall)
        row_max[r], levels[r] = top, level
        for c in range(COLUMNS):
            p = powers.rise(x[r * COLUMNS + c], level)
            row_sum[r] = T(row_sum[r] + p)
            memory[p_at + r * P_PITCH + lane + c * LANES] = terms.kept(p, seed, head, i, j0 + c * LANES, threshold, factor)

    @device_function
    def finish(r, s):
        """A row of the thread is divided by its sum and stored."""
        sums, row_max, row_sum, levels, i0, lane, rows, written, of_o, o_strides, lse, lse_at, lse_strides, sink, sink_at = s
        i, level, sum_ = i0 + r, levels[r], total(row_sum[r])
        if SINK and row_max[r] != T(NEG_INF):
            own = T(load_sink(sink, sink_at))
            level = powers.level(maximum(row_max[r], own))
            fall = powers.fall(levels[r], level)
            sum_ = T(T(sum_ * fall) + powers.rise(own, level))
            for c in range(OWN):
                sums[r * OWN + c] = T(sums[r * OWN + c] * fall)
        exists = i < rows and sum_ != T(0)
        share = T(0)
        if exists:
            share = powers.inverse(sum_)
        for c in range(OWN):
            sums[r * OWN + c] = T(sums[r * OWN + c] * share) if exists else T(0)
        if i < written:
            store(advance(of_o, i * o_strides.row), o_strides.column, lane, sums, r * OWN)
            if WITH_LSE and lane == 0:
                value = T(NEG_INF)
                if exists:
                    value = powers.total(level, sum_)
                lse[lse_at + i * lse_strides.row] = value
    online_softmax_all, finish_all = unrolled(ROWS, online_softmax), unrolled(ROWS, finish)

    @jit(launch_bounds=(THREADS, 1))
    def sdpa_fwd_flash_simt(q, k, v, o, lse, sizes, lines, heads_of, tiles, group_of_heads, q_strides, k_strides, v_strides, o_strides,
                            lse_strides, of_rows, of_keys, row_step, key_step, bias, bias_strides, mask, mask_strides, sink, sink_step,
                            bounds, scale, softcap, seed, offset, threshold, factor):
        memory = cuda.shared.array(0, T)
        base = shared_address(memory, 0)
        thread = cuda.threadIdx.x
        lane, line = thread % LANES, thread // LANES
        seed = terms.seed_of(seed, offset)
        rank, place = divide_remainder(cuda.blockIdx.x, lines)
        image, h = divide_remainder(place, heads_of)
        g, _ = divide_remainder(h, group_of_heads)
        batch, all_rows, all_keys = sizes[0], sizes[1], sizes[2]

        # the rows of this block, and the keys that any of them sees
        b, i0 = tile_of(image, tiles - 1 - rank, of_rows, row_step, batch, all_rows)
        first_row, rows, first_key, keys = extent(b, Sequences(of_rows, of_keys, row_step, key_step), batch, all_rows, all_keys)
        if PACKED and b == batch:
            first_key, keys = i32(0), i32(0)
        written = rows if PACKED else all_rows
        if i0 >= 0 and i0 < written:
            last_row = min(i0 + HEIGHT, rows) - 1
            first, first_end = terms.key_range(i0, rows, keys, bounds)
            last_begin, last = terms.key_range(last_row, rows, keys, bounds)
            if i0 >= rows:
                last = first
            shift, slope, head = terms.shift(rows, keys), terms.slope(h, i32(heads_of.d)), b * i32(heads_of.d) + h
            of_q = advance(q, image * q_strides.batch + h * q_strides.head + first_row * q_strides.row)
            of_k = advance(k, image * k_strides.batch + g * k_strides.head + first_key * k_strides.row)
            of_v = advance(v, image * v_strides.batch + g * v_strides.head + first_key * v_strides.row)
            q_steps, k_steps = (q_strides.row, q_strides.column), (k_strides.row, k_strides.column)
            v_steps = v_strides.row, v_strides.column
            bias_at = image * bias_strides.batch + h * bias_strides.head
            mask_at = image * mask_strides.batch + h * mask_strides.head
            a = base + u32(line * ROWS * PITCH * ITEM)
            b_at = base + u32((K_AT + lane * PITCH) * ITEM)
            v_at = base + u32((V_AT + lane * G) * ITEM)
            p_at = P_AT + line * ROWS * P_PITCH

            sums, row_max, row_sum = cuda.local.array(SUMS, T), cuda.local.array(ROWS, T), cuda.local.array(ROWS, T)
            levels, x = cuda.local.array(ROWS, T), cuda.local.array(SCORES, T)
            for c in range(SUMS):
                sums[c] = T(0)
            for r in range(ROWS):
                row_max[r], row_sum[r], levels[r] = T(NEG_INF), T(0), T(0)
            if first < last:
                load_q(base, of_q, i0, rows, q_steps, thread)
                load_k(base + K_AT * ITEM, of_k, first, keys, k_steps, thread)
                commit_copies()
                landed()
                cuda.syncthreads()
                load_v(base + V_AT * ITEM, of_v, first, keys, v_steps, thread)
                commit_copies()
            for j0 in range(first, last, WIDTH):
                for c in range(SCORES):
                    x[c] = T(0)
                scores(x, a, b_at, PITCH, GROUPS)
                landed()
                cuda.syncthreads()  # v has come, k is free
                following = j0 + WIDTH
                if following < last:
                    load_k(base + K_AT * ITEM, of_k, following, keys, k_steps, thread)
                commit_copies()

                whole = following <= first_end and j0 >= last_begin
                online_softmax_all(0, (x, sums, row_max, row_sum, levels, memory, p_at, i0 + line * ROWS, j0 + lane, whole, lane, shift,
                                       rows, keys, bounds, slope, bias, bias_at, bias_strides, mask, mask_at, mask_strides, scale, softcap,
                                       seed, head, threshold, factor))
                cuda.syncwarp()
                weigh(sums, base + u32(p_at * ITEM), P_PITCH, v_at, VALUES, WIDTH)
                landed()
                cuda.syncthreads()  # k has come, v and the probabilities are free
                if following < last:
                    load_v(base + V_AT * ITEM, of_v, following, keys, v_steps, thread)
                commit_copies()

            of_o = advance(o, image * o_strides.batch + h * o_strides.head + first_row * o_strides.row)
            lse_at = image * lse_strides.batch + h * lse_strides.head + first_row * lse_strides.row
            finish_all(0, (sums, row_max, row_sum, levels, i0 + line * ROWS, lane, rows, written, of_o, o_strides, lse, lse_at,
                           lse_strides, sink, h * sink_step))
    return sdpa_fwd_flash_simt


def build(problem, device, config):
    """One launch, a block a tile of rows."""
    p, t, pointer = problem, config.threads, element(problem.dtype).pointer
    tiles = tiles_of(p, p.rows, t.height)
    arguments = (*(Argument(pointer, name) for name in ("q", "k", "v", "o")), Argument(f"{p.compute}*", "lse" if p.lse else "o"),
                 Argument("int32x3", (p.batch, p.rows, p.keys)), *lines_arguments(p, p.heads, tiles),
                 Argument(Divisor, divisor(p.group)), *(Argument(Strides, p.strides(x)) for x in (p.q, p.k, p.v, p.o)),
                 Argument(RowStrides, p.lse_strides), *sequence_arguments(p), *added_arguments(p), *number_arguments(p))
    return (Launch(kernel(config), (tiles * p.images * p.heads, 1, 1), (t.count, 1, 1), arguments, shared=config.shared),)


ALGORITHM = Algorithm(op="sdpa_fwd", name="flash_simt", supports=supports, workspace=workspace, configs=configs, estimate=estimate,
                      build=build, arch="sm_80+")

"""The bias's gradient on Hopper's tensor cores (wgmma): persistent blocks with tiles of 128 queries, as `_dbias` describes it.

    producers (two threads)  the bias of a tile; of each image and head that shares it q, k, lse and delta, then do, v
    consumers (64 queries)   s = q k', dp = do v' (wgmma) --> p = exp(s + bias - lse), acc += p (dp - delta), in registers
                             --> at the end of a tile to where its bias was
    two more threads         from there to the gradient

- s and dp are multiplied together, and while a warpgroup computes exponentials the other one multiplies.
- q and k are one stage of a ring, do and v the next. The bias has two stages of its own, so that the next tile's is there when one ends;
  a warp reads and writes its own rows of them alone.
- Where no query of a tile attends to a key of it, its gradient is zero. Every sum has one order.
"""
import functools
from dataclasses import dataclass
from typing import NamedTuple

from ...device import cuda, device_function, f32, i32, i64, jit, u32, u64
from ...device.fastmath import ex2, fma
from ...device.index import LIMIT, Divisor, ceil_div, divide_remainder, divisor
from ...device.mbarrier import fence_async_shared, fence_mbarrier_init
from ...device.pipeline import Barriers, make_pipeline
from ...device.registers import make_register_claim, make_register_release
from ...device.stmatrix import stmatrix_x4
from ...device.tma import bulk_commit, bulk_load, make_bulk_wait, make_bulk_wait_read, tensor_map_address, tma_load_4d, tma_store_4d
from ...device.vec import address, load_shared_f32, shared_address
from ...device.warp import elect, uniform
from ...device.wgmma import descriptor, make_wgmma, make_wgmma_wait, matrix_descriptor
from ...engine.constants import constants
from ...engine.cost import Cost
from ...engine.hopper import ROW, SHARED_LIMIT
from ...host.launch import Argument, Launch
from .._fragments import make_pack
from .._modifiers import is_adjusted, make_add_bias, make_apply_mask
from .._parameters import Kind, kind_of, softmax_scale
from .._scores import LOG2E, make_terms
from .._wgmma import ALIGNMENT, BARRIERS, COLUMNS, addressable, array_map, bias_map, is_by_tiles
from ._heads import HeadSizes
from ._delta import Sizes

COST, WGMMA = constants("attention/dbias"), constants("attention/wgmma")

GROUPS, HEIGHT, MOST_STAGES = 2, 128, 4
WARPS, THREADS, REGISTERS = 4 * GROUPS, 128 * (GROUPS + 1), (24, 240)
STATS = 8 * HEIGHT  # bytes of a tile's lse and deltas


class Counts(NamedTuple):
    """Tiles of the gradient; images and heads that share each."""
    tiles: i32
    images: i32
    heads: i32


class Work(NamedTuple):
    """What locates a tile by its number: how many there are, sizes, tiles along keys, queries and heads as divisors, query heads of a head
    of k and v, window."""
    counts: Counts
    sizes: Sizes
    key_tiles: Divisor
    row_tiles: Divisor
    heads: Divisor
    group: Divisor
    bounds: object


class Maps(NamedTuple):
    """Addresses of tensor maps."""
    q: u64
    k: u64
    do: u64
    v: u64
    bias: u64
    dbias: u64


class Shared(NamedTuple):
    """Shared memory: where it begins, the barriers of the ring of pairs of tiles, of the bias, and of the gradient of warpgroup 0."""
    base: u32
    pairs: Barriers
    bias: Barriers
    done: u32


@dataclass(frozen=True)
class Config(HeadSizes):
    """The options, sizes of heads, whether the window has a left and a right bound; queries whose lse lie together, followed by their
    deltas; keys of a tile."""
    kind: Kind
    d: int
    e: int
    left: bool
    right: bool
    together: int
    width: int

    @property
    def stage(self):
        """Bytes."""
        return max(self.boxes) * (HEIGHT + self.width) * ROW

    @property
    def bias(self):
        """Bytes of a tile of the bias."""
        return 2 * HEIGHT * self.width

    @property
    def stages(self):
        return min((SHARED_LIMIT - ALIGNMENT - BARRIERS - 2 * self.bias) // (self.stage + STATS), MOST_STAGES)

    @property
    def layout(self):
        """Bytes before the tiles of the bias, lse and deltas, the barriers."""
        bias = self.stages * self.stage
        stats = bias + 2 * self.bias
        return bias, stats, stats + self.stages * STATS

    @property
    def shared(self):
        """Dynamic shared memory, bytes."""
        return self.layout[2] + BARRIERS + ALIGNMENT


def tiles_of(problem, width):
    """Tiles of the gradient along images, heads, rows and keys."""
    t = problem.dbias
    return (*((1, 1) + t.shape)[-4:-2], ceil_div(problem.rows, HEIGHT), ceil_div(problem.keys, width))


def config_of(problem, together, device):
    """The configuration for a problem whose lse and deltas are in the order of `flash_wgmma.workspace`, or None: a bias, or its gradient,
    that TMA does not take by tiles, options beside windows, or too few tiles to fill a device."""
    p = problem
    more = is_adjusted(p, bias=False) or p.dropout or any(t is not None for t in (p.mask, p.seq_len_q, p.seq_len_kv))
    if not together or p.dtype == "float32" or more:
        return None
    if not all(is_by_tiles(p, t) and t.itemsize == 2 for t in (p.bias, p.dbias)) or p.bias.dtype != p.dbias.dtype or p.keys % 8:
        return None
    if not all(addressable(p, t) for t in (p.q, p.k, p.v, p.do)):
        return None
    for width in (128, 64):
        config, (b, h, i, j) = Config(kind_of(p), p.d, p.dv, p.left >= 0, p.right >= 0, together, width), tiles_of(p, width)
        if config.stages >= 2 and device.sms <= b * h * i * j < LIMIT - device.sms and p.batch * p.heads < LIMIT:
            return config
    return None


def seconds_of(problem, config, device):
    """Predicted time: the products of each pair of tiles, and what they wait for meanwhile."""
    p = problem
    times = p.pairs * p.heads / device.sms / (WGMMA.clock * device.clock_hz)
    return Cost(launch=WGMMA.launch, math=times * (32 * sum(config.steps) / 4096), issue=times * (COST.wgmma_score / 128))


def launch_of(problem, config, stats, device):
    """The launch; `stats` locates lse and deltas."""
    p, (b, h, i, j) = problem, tiles_of(problem, config.width)
    rows = ("q", HEIGHT), ("k", config.width), ("do", HEIGHT), ("v", config.width)
    maps = (array_map(p, name, getattr(p, name), height) for name, height in rows)
    arguments = (*maps, bias_map("bias", p.bias, HEIGHT), bias_map("dbias", p.dbias, 64),
                 Argument("float32*", "workspace", stats.begin), Argument(Sizes, (p.rows, p.keys, p.heads, stats.rows)),
                 Argument(Counts, (b * h * i * j, p.batch // b, p.heads // h)),
                 *(Argument(Divisor, divisor(n)) for n in (j, i, h, p.group)), Argument("int32x2", p.bounds),
                 Argument("float32", softmax_scale(p)))
    return Launch(kernel(config), (min(b * h * i * j, device.sms), 1, 1), (THREADS, 1, 1), arguments, shared=config.shared)


@functools.cache
def kernel(config):
    """Tiles of the gradient, one after another."""
    kind, WIDTH, STAGES, STAGE = config.kind, config.width, config.stages, config.stage
    terms, MASKED = make_terms(kind), config.left or config.right
    (X_BOXES, Y_BOXES), FRAGMENT, WORDS = config.boxes, WIDTH // 2, WIDTH // 4
    BIAS_AT, STATS_AT, BARS = config.layout
    BIAS, BIAS_BOX, BIAS_BOXES, LEFT_BOX, RIGHT_BOX = config.bias, HEIGHT * ROW, WIDTH // COLUMNS, HEIGHT * ROW, WIDTH * ROW
    # a tile of the bias is free when all warpgroups' results have left from there; of each its four warps put them there
    pair_pipe, bias_pipe = make_pipeline(STAGES, consumers=WARPS), make_pipeline(2, consumers=GROUPS)
    done_pipe = make_pipeline(2, consumers=0, producers=4)

    # ---- tiles

    @device_function
    def locate(t, work):
        """(image, head, first query, first key) of tile number t of the gradient."""
        rest, key_tile = divide_remainder(t, work.key_tiles)
        rest, row_tile = divide_remainder(rest, work.row_tiles)
        b, h = divide_remainder(rest, work.heads)
        return b, h, row_tile * HEIGHT, key_tile * WIDTH

    @device_function
    def covers(i0, j0, work):
        """(whether some query of a tile attends to a key, whether one does not attend to all)."""
        some, partial = True, False
        if MASKED:
            first, first_end = terms.key_range(i0, work.sizes.rows, work.sizes.keys, work.bounds)
            last_begin, last = terms.key_range(min(i0 + HEIGHT, work.sizes.rows) - 1, work.sizes.rows, work.sizes.keys, work.bounds)
            partial = j0 + WIDTH > first_end or j0 < last_begin
            some = max(first, j0) < min(last, j0 + WIDTH)
        return some, partial

    # ---- producers

    source_free, drained = make_bulk_wait_read(0), make_bulk_wait(0)
    DONE = done_pipe.bytes

    @device_function
    def load_pair(to, boxes, left, right, bar, i0, j0, b, h, kv_head):
        for k in range(boxes):
            tma_load_4d(to + u32(k * LEFT_BOX), left, bar, k * COLUMNS, i0, h, b)
        for k in range(boxes):
            tma_load_4d(to + u32(boxes * LEFT_BOX + k * RIGHT_BOX), right, bar, k * COLUMNS, j0, kv_head, b)

    @device_function
    def load_bias(maps, shared, work):
        state, t = bias_pipe.producer_start(), cuda.blockIdx.x
        while t < work.counts.tiles:
            b, h, i0, j0 = locate(t, work)
            bias_pipe.producer_acquire(shared.bias, state)
            some, _ = covers(i0, j0, work)
            if some:
                bar = bias_pipe.producer_expect(shared.bias, state, BIAS)
                for n in range(BIAS_BOXES):
                    tma_load_4d(shared.base + u32(BIAS_AT + n * BIAS_BOX) + state.stage * BIAS, maps.bias, bar, j0 + n * COLUMNS, i0, h, b)
            else:
                bias_pipe.producer_commit(shared.bias, state)
            state = bias_pipe.next(state)
            t = t + cuda.gridDim.x

    @device_function
    def load_pairs(maps, shared, stats, work):
        """Of each image and head that shares a tile q, k, lse and delta, then do and v."""
        base, state, t = shared.base, pair_pipe.producer_start(), cuda.blockIdx.x
        while t < work.counts.tiles:
            b, first_h, i0, j0 = locate(t, work)
            some, _ = covers(i0, j0, work)
            h, end = first_h, b + work.counts.images if some else b
            while b < end:
                kv_head, _ = divide_remainder(h, work.group)
                line = i64(b * work.sizes.heads + h) * work.sizes.padded + i0
                pair_pipe.producer_acquire(shared.pairs, state)
                bar = pair_pipe.producer_expect(shared.pairs, state, u32(X_BOXES * (LEFT_BOX + RIGHT_BOX) + STATS))
                load_pair(base + state.stage * STAGE, X_BOXES, maps.q, maps.k, bar, i0, j0, b, h, kv_head)
                bulk_load(base + STATS_AT + state.stage * STATS, address(stats, 2 * line), STATS, bar)
                state = pair_pipe.next(state)
                pair_pipe.producer_acquire(shared.pairs, state)
                bar = pair_pipe.producer_expect(shared.pairs, state, u32(Y_BOXES * (LEFT_BOX + RIGHT_BOX)))
                load_pair(base + state.stage * STAGE, Y_BOXES, maps.do, maps.v, bar, i0, j0, b, h, kv_head)
                state = pair_pipe.next(state)
                h = h + 1
                if h == first_h + work.counts.heads:
                    b, h = b + 1, first_h
            t = t + cuda.gridDim.x

    @device_function
    def store_tiles(maps, shared, work, group):
        """A warpgroup's rows of each tile to the gradient."""
        done = done_pipe.barriers(shared.done + u32(group) * DONE)
        state, t = done_pipe.consumer_start(), cuda.blockIdx.x
        while t < work.counts.tiles:
            b, h, i0, j0 = locate(t, work)
            i0 = i0 + group * 64
            source = shared.base + BIAS_AT + state.stage * BIAS + u32(group) * (64 * ROW)
            done_pipe.consumer_wait(done, state)
            for n in range(BIAS_BOXES):
                if i0 < work.sizes.rows and j0 + n * COLUMNS < work.sizes.keys:
                    tma_store_4d(maps.dbias, source + u32(n * BIAS_BOX), j0 + n * COLUMNS, i0, h, b)
            bulk_commit()
            source_free()
            bias_pipe.consumer_release(shared.bias, state, 0)
            state = done_pipe.next(state)
            t = t + cuda.gridDim.x
        drained()

    # ---- consumers

    by_row, TOGETHER = matrix_descriptor(16, 1024, 128), config.together

    def of_rows(steps):
        a, b = (tuple(step // 4 * (box // 16) + step % 4 * 2 for step in range(steps)) for box in (LEFT_BOX, RIGHT_BOX))
        return make_wgmma(WIDTH, kind.dtype, steps=steps, a_step=a, b_step=b, fresh=True)
    multiply_s, multiply_dp = map(of_rows, config.steps)
    scores_first, products_done = make_wgmma_wait(1, FRAGMENT), make_wgmma_wait(0, FRAGMENT)
    add_bias, apply_mask = make_add_bias(kind.bias, WIDTH, BIAS_BOX), make_apply_mask(WIDTH, config.left, config.right)
    pack = make_pack(kind.bias, WORDS)

    @device_function
    def put_tile(acc, words, tile, group, warp, lane):
        """The warp's rows of a tile to where its bias was."""
        pack(words, acc)
        mine = group * 64 + warp * 16 + (lane & 15)
        cuda.syncwarp()
        for i in range(WIDTH // 16):
            chunk = u32((i % 4 * 2 + (lane >> 4)) ^ (mine & 7)) * 16
            stmatrix_x4(tile + u32(i // 4 * BIAS_BOX) + u32(mine * ROW) + chunk, words[4 * i], words[4 * i + 1], words[4 * i + 2],
                        words[4 * i + 3])
        fence_async_shared()

    @device_function
    def consume(shared, work, scale, group, thread):
        base, done = shared.base, done_pipe.barriers(shared.done + u32(group) * DONE)
        lane, warp = thread & 31, thread >> 5
        row, column = group * 64 + warp * 16 + (lane >> 2), (lane & 3) * 2
        shift = terms.shift(work.sizes.rows, work.sizes.keys)
        x, dp, acc = cuda.local.array(FRAGMENT, f32), cuda.local.array(FRAGMENT, f32), cuda.local.array(FRAGMENT, f32)
        words, lse, delta = cuda.local.array(WORDS, u32), cuda.local.array(2, f32), cuda.local.array(2, f32)
        own_stats = base + STATS_AT + u32(4 * (row // TOGETHER * (2 * TOGETHER) + row % TOGETHER))
        own_rows = base + u32(group) * (64 * ROW)
        state, bias_state, t = pair_pipe.consumer_start(), bias_pipe.consumer_start(), cuda.blockIdx.x
        while t < work.counts.tiles:
            _, _, i0, j0 = locate(t, work)
            some, partial = covers(i0, j0, work)
            count = work.counts.images * work.counts.heads if some else 0
            tile = base + BIAS_AT + bias_state.stage * BIAS
            for c in range(FRAGMENT):
                acc[c] = f32(0)
            bias_pipe.consumer_wait(shared.bias, bias_state)
            while count > 0:
                # s = q k', dp = do v'
                pair_pipe.consumer_wait(shared.pairs, state)
                at = state.stage * STAGE
                multiply_s(x, descriptor(by_row, own_rows + at), descriptor(by_row, base + at + X_BOXES * LEFT_BOX))
                stats, of_qk = own_stats + state.stage * STATS, state
                state = pair_pipe.next(state)
                pair_pipe.consumer_wait(shared.pairs, state)
                at = state.stage * STAGE
                multiply_dp(dp, descriptor(by_row, own_rows + at), descriptor(by_row, base + at + Y_BOXES * LEFT_BOX))
                for r in range(2):
                    lse[r] = load_shared_f32(stats + u32(32 * r))
                    delta[r] = load_shared_f32(stats + u32(32 * r + 4 * TOGETHER))

                # p = exp(s + bias - lse)
                scores_first(x)
                cuda.syncwarp()
                pair_pipe.consumer_release(shared.pairs, of_qk, lane)
                add_bias(x, tile, group * 64 + warp * 16, lane, scale)
                if MASKED and partial:
                    apply_mask(x, i0 + row + shift, j0, column, work.sizes.keys, work.bounds)
                for k in range(FRAGMENT):
                    x[k] = ex2(fma(x[k], f32(LOG2E), -lse[k // 2 % 2]))

                # dbias += p (dp - delta)
                products_done(dp)
                cuda.syncwarp()
                pair_pipe.consumer_release(shared.pairs, state, lane)
                state = pair_pipe.next(state)
                for k in range(FRAGMENT):
                    acc[k] = fma(x[k], dp[k] - delta[k // 2 % 2], acc[k])
                count = count - 1
            put_tile(acc, words, tile, group, warp, lane)
            cuda.syncwarp()
            if lane == 0:
                done_pipe.producer_commit(done, bias_state)
            bias_state = bias_pipe.next(bias_state)
            t = t + cuda.gridDim.x

    # ---- the kernel

    release_registers, claim_registers = (make(n) for make, n in zip((make_register_release, make_register_claim), REGISTERS))
    BIAS_BARS = BARS + pair_pipe.bytes
    DONE_BARS = BIAS_BARS + bias_pipe.bytes

    @jit(launch_bounds=(THREADS, 1))
    def sdpa_dbias_wgmma(q, k, do, v, bias, dbias, stats, sizes, counts, key_tiles, row_tiles, heads_of, group_of, bounds, scale):
        memory = cuda.shared.array(0, u32)
        maps = Maps(tensor_map_address(q), tensor_map_address(k), tensor_map_address(do), tensor_map_address(v), tensor_map_address(bias),
                    tensor_map_address(dbias))
        base = (shared_address(memory, 0) + (ALIGNMENT - 1)) & (0xFFFFFFFF - (ALIGNMENT - 1))
        shared = Shared(base, pair_pipe.barriers(base + BARS), bias_pipe.barriers(base + BIAS_BARS), base + DONE_BARS)
        tid = cuda.threadIdx.x
        if tid == 0:
            pair_pipe.init(shared.pairs)
            bias_pipe.init(shared.bias)
            for group in range(GROUPS):
                done_pipe.init(done_pipe.barriers(shared.done + u32(group * DONE)))
            fence_mbarrier_init()
        cuda.syncthreads()
        work = Work(counts, sizes, key_tiles, row_tiles, heads_of, group_of, bounds)
        role = uniform(tid >> 7)
        if role == 0:
            release_registers()
            if tid < 32:
                if elect():
                    load_pairs(maps, shared, stats, work)
            elif tid < 64:
                if elect():
                    load_bias(maps, shared, work)
            elif elect():
                store_tiles(maps, shared, work, (tid >> 5) - 2)
        else:
            claim_registers()
            consume(shared, work, scale, role - 1, tid & 127)
    return sdpa_dbias_wgmma

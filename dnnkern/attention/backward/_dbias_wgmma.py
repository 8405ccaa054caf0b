"""The bias's gradient on Hopper's tensor cores (wgmma): tiles of 128 rows that persistent blocks go through, as `_dbias` describes it.

    producers (two lanes)   the bias of a tile; of each image and head that shares it q, k, levels and deltas, then do, v
    consumers (64 rows)     x = q k', y = do v' (wgmma) --> p = exp(x + bias - level), sums += p (y - delta), in registers
                            --> at the end of a tile to where its bias was
    two more lanes          from there to the gradient

- x and y are multiplied together, and while a warpgroup takes exponentials the other one multiplies.
- q and k are one stage of a ring, do and v the next. The bias has two places of its own, so that the next tile's is there when one ends;
  a warp reads and writes its own rows of them alone.
- A tile of which no row sees a key has no items, and its gradient is zero. Every sum has one order.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, device_function, f32, i64, jit, u32
from ...device.fastmath import ex2, fma
from ...device.index import LIMIT, Divisor, ceil_div, divide_remainder, divisor
from ...device.mbarrier import fence_async_shared, fence_mbarrier_init
from ...device.pipeline import make_pipeline
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
from ._delta import Sizes

COST, WGMMA = constants("attention/dbias"), constants("attention/wgmma")

GROUPS, HEIGHT, MOST_STAGES = 2, 128, 4
WARPS, THREADS, REGISTERS = 4 * GROUPS, 128 * (GROUPS + 1), (40, 232)
NUMBERS = 8 * HEIGHT  # bytes of a tile's levels and deltas


@dataclass(frozen=True)
class Config:
    """The options, sizes of heads, whether the window has a left and a right bound; rows whose levels lie together, followed by their
    deltas; keys of a tile."""
    kind: Kind
    d: int
    e: int
    left: bool
    right: bool
    together: int
    width: int

    @property
    def steps(self):
        """Of 16 elements of a row of q and k, and of one of v and do."""
        return ceil_div(self.d, 16), ceil_div(self.e, 16)

    @property
    def boxes(self):
        """Boxes of 64 columns of q and k, and of v and do."""
        return ceil_div(self.d, COLUMNS), ceil_div(self.e, COLUMNS)

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
        return min((SHARED_LIMIT - ALIGNMENT - BARRIERS - 2 * self.bias) // (self.stage + NUMBERS), MOST_STAGES)

    @property
    def places(self):
        """Bytes before the tiles of the bias, the stats, the barriers."""
        bias = self.stages * self.stage
        stats = bias + 2 * self.bias
        return bias, stats, stats + self.stages * NUMBERS

    @property
    def shared(self):
        """Dynamic shared memory, bytes."""
        return self.places[2] + BARRIERS + ALIGNMENT


def tiles_of(problem, width):
    """Tiles of the gradient along images, heads, rows and keys."""
    t = problem.dbias
    return (*((1, 1) + t.shape)[-4:-2], ceil_div(problem.rows, HEIGHT), ceil_div(problem.keys, width))


def config_of(problem, together, device):
    """The configuration for a problem whose levels and deltas lie as `dq` orders them, or None: a bias, or its gradient, that TMA does not
    take by tiles, options beside windows, or too few tiles to fill a device."""
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
    """Predicted time: what each pair of tiles takes tensor cores, and what they wait for meanwhile."""
    p = problem
    times = p.pairs * p.heads / device.sms / (WGMMA.clock * device.clock_hz)
    return Cost(launch=WGMMA.launch, math=times * (32 * sum(config.steps) / 4096), issue=times * (COST.wgmma_score / 128))


def launch_of(problem, config, stats, device):
    """The launch; `stats` says where levels and deltas are."""
    p, (b, h, i, j) = problem, tiles_of(problem, config.width)
    rows = ("q", HEIGHT), ("k", config.width), ("do", HEIGHT), ("v", config.width)
    maps = (array_map(p, name, getattr(p, name), height) for name, height in rows)
    arguments = (*maps, bias_map("bias", p.bias, HEIGHT), bias_map("dbias", p.dbias, 64),
                 Argument("float32*", "workspace", stats.begin), Argument(Sizes, (p.rows, p.keys, p.heads, stats.rows)),
                 Argument("int32x3", (b * h * i * j, p.batch // b, p.heads // h)),
                 *(Argument(Divisor, divisor(n)) for n in (j, i, h, p.group)), Argument("int32x2", p.bounds),
                 Argument("float32", softmax_scale(p)))
    return Launch(kernel(config), (min(b * h * i * j, device.sms), 1, 1), (THREADS, 1, 1), arguments, shared=config.shared)


@functools.cache
def kernel(config):
    """Tiles of the gradient, one after another."""
    kind, WIDTH, STAGES, STAGE = config.kind, config.width, config.stages, config.stage
    terms, apply_mask, MASKED = make_terms(kind), make_apply_mask(WIDTH, config.left, config.right), config.left or config.right
    (X_BOXES, Y_BOXES), FRAGMENT, WORDS, TOGETHER = config.boxes, WIDTH // 2, WIDTH // 4, config.together
    BIAS_AT, NUMBERS_AT, BARS = config.places
    BIAS, BIAS_BOX, BIAS_BOXES, LEFT_BOX, RIGHT_BOX = config.bias, HEIGHT * ROW, WIDTH // COLUMNS, HEIGHT * ROW, WIDTH * ROW
    by_row = matrix_descriptor(16, 1024, 128)

    def of_rows(steps):
        a, b = (tuple(step // 4 * (box // 16) + step % 4 * 2 for step in range(steps)) for box in (LEFT_BOX, RIGHT_BOX))
        return make_wgmma(WIDTH, kind.dtype, steps=steps, a_step=a, b_step=b, fresh=True)
    score, value = map(of_rows, config.steps)
    scores_first, values_done = make_wgmma_wait(1, FRAGMENT), make_wgmma_wait(0, FRAGMENT)
    add_bias, pack = make_add_bias(kind.bias, WIDTH, BIAS_BOX), make_pack(kind.bias, WORDS)
    release_registers, claim_registers = (make(n) for make, n in zip((make_register_release, make_register_claim), REGISTERS))
    source_free, drained, pipe = make_bulk_wait_read(0), make_bulk_wait(0), make_pipeline(STAGES, consumers=WARPS)
    # a tile of the bias is free when all warpgroups' results have left from there; of each its four warps put them there
    bias_pipe, done_pipe = make_pipeline(2, consumers=GROUPS), make_pipeline(2, consumers=0, producers=4)
    BIAS_BARS = pipe.bytes
    DONE_BARS, DONE = BIAS_BARS + bias_pipe.bytes, done_pipe.bytes

    @device_function
    def place_of(t, spread):
        """(image, head, first row, first key) of a tile of the gradient."""
        of_keys, of_rows, of_heads = spread
        rest, kt = divide_remainder(t, of_keys)
        rest, rt = divide_remainder(rest, of_rows)
        b, h = divide_remainder(rest, of_heads)
        return b, h, rt * HEIGHT, kt * WIDTH

    @device_function
    def seen_of(i0, j0, sizes, bounds):
        """(whether some row of a tile sees a key, whether one does not see all)."""
        seen, some = True, False
        if MASKED:
            first, first_end = terms.key_range(i0, sizes.rows, sizes.keys, bounds)
            last_begin, last = terms.key_range(min(i0 + HEIGHT, sizes.rows) - 1, sizes.rows, sizes.keys, bounds)
            some = j0 + WIDTH > first_end or j0 < last_begin
            seen = max(first, j0) < min(last, j0 + WIDTH)
        return seen, some

    @device_function
    def load_pair(to, boxes, left, right, bar, i0, j0, b, h, g):
        for k in range(boxes):
            tma_load_4d(to + u32(k * LEFT_BOX), left, bar, k * COLUMNS, i0, h, b)
        for k in range(boxes):
            tma_load_4d(to + u32(boxes * LEFT_BOX + k * RIGHT_BOX), right, bar, k * COLUMNS, j0, g, b)

    @device_function
    def produce_bias(bias, base, bars, sizes, counts, spread, bounds):
        _, bias_bars, _ = bars
        state, t = bias_pipe.producer_start(), cuda.blockIdx.x
        while t < counts[0]:
            b, h, i0, j0 = place_of(t, spread)
            bias_pipe.producer_acquire(bias_bars, state)
            seen, _ = seen_of(i0, j0, sizes, bounds)
            if seen:
                bar = bias_pipe.producer_expect(bias_bars, state, u32(BIAS))
                for n in range(BIAS_BOXES):
                    tma_load_4d(base + u32(BIAS_AT + n * BIAS_BOX) + state.stage * BIAS, bias, bar, j0 + n * COLUMNS, i0, h, b)
            else:
                bias_pipe.producer_commit(bias_bars, state)
            state = bias_pipe.next(state)
            t = t + cuda.gridDim.x

    @device_function
    def produce(maps, base, bars, stats, sizes, counts, spread, group, bounds):
        q, k, do, v = maps
        of_pairs, _, _ = bars
        state, t = pipe.producer_start(), cuda.blockIdx.x
        while t < counts[0]:
            b, first_h, i0, j0 = place_of(t, spread)
            seen, _ = seen_of(i0, j0, sizes, bounds)
            h, end = first_h, b + counts[1] if seen else b
            while b < end:
                g, _ = divide_remainder(h, group)
                line = i64(b * sizes.heads + h) * sizes.padded + i0
                pipe.producer_acquire(of_pairs, state)
                bar = pipe.producer_expect(of_pairs, state, u32(X_BOXES * (LEFT_BOX + RIGHT_BOX) + NUMBERS))
                load_pair(base + state.stage * STAGE, X_BOXES, q, k, bar, i0, j0, b, h, g)
                bulk_load(base + NUMBERS_AT + state.stage * NUMBERS, address(stats, 2 * line), NUMBERS, bar)
                state = pipe.next(state)
                pipe.producer_acquire(of_pairs, state)
                bar = pipe.producer_expect(of_pairs, state, u32(Y_BOXES * (LEFT_BOX + RIGHT_BOX)))
                load_pair(base + state.stage * STAGE, Y_BOXES, do, v, bar, i0, j0, b, h, g)
                state = pipe.next(state)
                h = h + 1
                if h == first_h + counts[2]:
                    b, h = b + 1, first_h
            t = t + cuda.gridDim.x

    @device_function
    def leave(sums, words, tile, group, warp, lane):
        """The warp's rows of a tile to where its bias was."""
        pack(words, sums)
        mine = group * 64 + warp * 16 + (lane & 15)
        cuda.syncwarp()
        for i in range(WIDTH // 16):
            piece = u32((i % 4 * 2 + (lane >> 4)) ^ (mine & 7)) * 16
            stmatrix_x4(tile + u32(i // 4 * BIAS_BOX) + u32(mine * ROW) + piece, words[4 * i], words[4 * i + 1], words[4 * i + 2],
                        words[4 * i + 3])
        fence_async_shared()

    @device_function
    def store(array, base, bars, sizes, counts, spread, group):
        """A warpgroup's rows of each tile to the gradient."""
        _, bias_bars, done = bars
        done_bars = done_pipe.barriers(done + u32(group) * DONE)
        state, t = done_pipe.consumer_start(), cuda.blockIdx.x
        while t < counts[0]:
            b, h, i0, j0 = place_of(t, spread)
            i0 = i0 + group * 64
            source = base + BIAS_AT + state.stage * BIAS + u32(group) * (64 * ROW)
            done_pipe.consumer_wait(done_bars, state)
            for n in range(BIAS_BOXES):
                if i0 < sizes.rows and j0 + n * COLUMNS < sizes.keys:
                    tma_store_4d(array, source + u32(n * BIAS_BOX), j0 + n * COLUMNS, i0, h, b)
            bulk_commit()
            source_free()
            bias_pipe.consumer_release(bias_bars, state, 0)
            state = done_pipe.next(state)
            t = t + cuda.gridDim.x
        drained()

    @device_function
    def consume(base, bars, sizes, counts, spread, bounds, scale, group, thread):
        of_pairs, bias_bars, done = bars
        done_bars = done_pipe.barriers(done + u32(group) * DONE)
        lane, warp = thread & 31, thread >> 5
        row, column = group * 64 + warp * 16 + (lane >> 2), (lane & 3) * 2
        shift = terms.shift(sizes.rows, sizes.keys)
        x, y, sums = cuda.local.array(FRAGMENT, f32), cuda.local.array(FRAGMENT, f32), cuda.local.array(FRAGMENT, f32)
        words, levels, deltas = cuda.local.array(WORDS, u32), cuda.local.array(2, f32), cuda.local.array(2, f32)
        own_numbers = base + NUMBERS_AT + u32(4 * (row // TOGETHER * (2 * TOGETHER) + row % TOGETHER))
        own_rows = base + u32(group) * (64 * ROW)
        state, bias_state = pipe.consumer_start(), bias_pipe.consumer_start()
        t = cuda.blockIdx.x
        while t < counts[0]:
            _, _, i0, j0 = place_of(t, spread)
            seen, some = seen_of(i0, j0, sizes, bounds)
            count = counts[1] * counts[2] if seen else 0
            tile = base + BIAS_AT + bias_state.stage * BIAS
            for c in range(FRAGMENT):
                sums[c] = f32(0)
            bias_pipe.consumer_wait(bias_bars, bias_state)
            while count > 0:
                pipe.consumer_wait(of_pairs, state)
                at = state.stage * STAGE
                score(x, descriptor(by_row, own_rows + at), descriptor(by_row, base + at + X_BOXES * LEFT_BOX))
                of_x, first = own_numbers + state.stage * NUMBERS, state
                state = pipe.next(state)
                pipe.consumer_wait(of_pairs, state)
                at = state.stage * STAGE
                value(y, descriptor(by_row, own_rows + at), descriptor(by_row, base + at + Y_BOXES * LEFT_BOX))
                for r in range(2):
                    levels[r] = load_shared_f32(of_x + u32(32 * r))
                    deltas[r] = load_shared_f32(of_x + u32(32 * r + 4 * TOGETHER))
                scores_first(x)
                cuda.syncwarp()
                pipe.consumer_release(of_pairs, first, lane)
                add_bias(x, tile, group * 64 + warp * 16, lane, scale)
                if MASKED and some:
                    apply_mask(x, i0 + row + shift, j0, column, sizes.keys, bounds)
                for k in range(FRAGMENT):
                    x[k] = ex2(fma(x[k], f32(LOG2E), -levels[k // 2 % 2]))
                values_done(y)
                cuda.syncwarp()
                pipe.consumer_release(of_pairs, state, lane)
                state = pipe.next(state)
                for k in range(FRAGMENT):
                    sums[k] = fma(x[k], y[k] - deltas[k // 2 % 2], sums[k])
                count = count - 1
            leave(sums, words, tile, group, warp, lane)
            cuda.syncwarp()
            if lane == 0:
                done_pipe.producer_commit(done_bars, bias_state)
            bias_state = bias_pipe.next(bias_state)
            t = t + cuda.gridDim.x

    @jit(launch_bounds=(THREADS, 1))
    def sdpa_dbias_wgmma(q, k, do, v, bias, dbias, stats, sizes, counts, key_tiles, row_tiles, heads_of, group_of, bounds, scale):
        shared = cuda.shared.array(0, u32)
        maps = (tensor_map_address(q), tensor_map_address(k), tensor_map_address(do), tensor_map_address(v))
        of_bias, to = tensor_map_address(bias), tensor_map_address(dbias)
        base = (shared_address(shared, 0) + (ALIGNMENT - 1)) & (0xFFFFFFFF - (ALIGNMENT - 1))
        first = base + BARS
        bars = pipe.barriers(first), bias_pipe.barriers(first + BIAS_BARS), first + DONE_BARS
        tid = cuda.threadIdx.x
        if tid == 0:
            pipe.init(bars[0])
            bias_pipe.init(bars[1])
            for group in range(GROUPS):
                done_pipe.init(done_pipe.barriers(bars[2] + u32(group * DONE)))
            fence_mbarrier_init()
        cuda.syncthreads()
        spread = key_tiles, row_tiles, heads_of
        role = uniform(tid >> 7)
        if role == 0:
            release_registers()
            if tid < 32:
                if elect():
                    produce(maps, base, bars, stats, sizes, counts, spread, group_of, bounds)
            elif tid < 64:
                if elect():
                    produce_bias(of_bias, base, bars, sizes, counts, spread, bounds)
            elif elect():
                store(to, base, bars, sizes, counts, spread, (tid >> 5) - 2)
        else:
            claim_registers()
            consume(base, bars, sizes, counts, spread, bounds, scale, role - 1, tid & 127)
    return sdpa_dbias_wgmma

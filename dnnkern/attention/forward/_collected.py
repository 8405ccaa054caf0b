"""Attention on Hopper's tensor cores whose tiles of keys are summed up apart: the products of each start from zero, and threads add them
to the others in float32, which also scales the others where levels have risen. What is common to types that take it, and their kernel.

Tensor cores may add up more coarsely than float32: products of 8-bit floats with some 14 bits, others with all 24 but truncated, so that
each addition to a large sum takes up to a unit from it, always toward zero. In a tile that is a few additions, over all keys hundreds.
"""
import functools
from dataclasses import dataclass
from typing import NamedTuple

from ...device import cuda, device_function, f32, i32, i64, jit, u32
from ...device.convert import element
from ...device.dependent import launch_dependent_grids, wait_for_previous_grid
from ...device.fastmath import fma, rcp
from ...device.index import divide_remainder, divisor
from ...device.mbarrier import fence_mbarrier_init
from ...device.pipeline import make_pipeline
from ...device.registers import check_register_budget, make_register_claim, make_register_release
from ...device.scheduler import make_channel, make_dynamic, make_longest_first, make_static
from ...device.tma import bulk_load, prefetch_tensor_map, tensor_map_address, tma_load_4d
from ...device.unroll import unrolled
from ...device.vec import address, advance, pin, shared_address
from ...device.warp import elect, uniform
from ...device.wgmma import descriptor, make_wgmma_wait, matrix_descriptor
from ...engine.hopper import GROUP, ROW, SHARED_LIMIT
from ...host.launch import Argument, Launch
from .._fragments import make_normalize_rows, make_online_softmax, stored_in_pairs
from .._modifiers import is_adjusted, make_adjust, make_apply_dropout, make_apply_mask
from .._parameters import (Kind, RowStrides, Sequences, Strides, added_arguments, kind_of, number_arguments, scale_arguments, scaled,
                           sequence_arguments)
from .._scores import LOG2E, NEG_INF, make_terms
from .._wgmma import ALIGNMENT, BARRIERS, MOST_STAGES, Shape, is_uneven, order_argument, tile_count


@dataclass(frozen=True)
class Config:
    """The options, o's dtype, sizes of heads, a shape, and in how many parts the columns of a tile's sums are computed one behind the
    other; whether the window has a left and a right bound, whether scores are more than scaled products, whether lse is wanted, whether
    blocks draw their tiles from a counter, whether o is stored by pairs; which of q, k and v have a factor.

    An algorithm's own says:

    algorithm : str
    pieces : int
        Planes of q and k, which follow one another as images do; of v too, unless it is turned.
    turned : bool
        Whether tiles of v are one piece of memory each.
    raised, slack : float
        As `_fragments.make_online_softmax` has them.
    begins : int
        Tiles of keys begin with a multiple of it.
    of_bias : int
        Registers of a thread that a bias takes.
    box_columns : int
        Elements of a box's row.
    columns, words : int
        Of the sums: e in whole groups; registers of a thread that its probabilities take.
    boxes, q_bytes, stage : tuple, int, tuple
        Boxes of a row of q and k and of one of v; bytes of a tile of q, of one of k and one of v.
    of_values, part_bytes : int
        Descriptor of a tile of v without its address, what one part of the columns adds to that.
    make_products() : (multiply_k, multiply_v)
        ``multiply(sums, left, right)``, left operands being a descriptor and words, from zero.
    make_pack(), make_store()
        As in `_fragments`.
    """
    kind: Kind
    out: str
    d: int
    e: int
    shape: Shape
    parts: int
    left: bool
    right: bool
    adjusted: bool
    lse: bool
    drawn: bool
    pairs: bool
    scaled: tuple

    def __post_init__(self):
        s = self.shape
        check_register_budget(s.threads, ((128, s.registers[0]), (128 * s.groups, s.registers[1])))
        if self.live > s.registers[1]:
            raise ValueError(f"tile {s} of heads of {self.d} and {self.e}: a thread needs {self.live} registers, it has {s.registers[1]}")
        if self.stages < 2:
            raise ValueError(f"tile {s} of heads of {self.d} and {self.e}: {SHARED_LIMIT} bytes of shared memory hold {self.stages} "
                             "stages; the least is 2")

    @property
    def live(self):
        """About how many registers a thread needs."""
        sums = self.columns // 2 + self.columns // 2 // self.parts
        more = self.of_bias if self.kind.bias else 24 * (self.adjusted or self.kind.dropout)
        return self.shape.width // 2 + self.words + sums + 32 + more

    @property
    def places(self):
        """Bytes before the ring of k, that of v, and the barriers."""
        v = self.q_bytes + self.stages * self.stage[0]
        return self.q_bytes, v, v + self.stages * self.stage[1]

    @property
    def stages(self):
        return min((SHARED_LIMIT - ALIGNMENT - BARRIERS - self.q_bytes) // sum(self.stage), MOST_STAGES)

    @property
    def shared(self):
        """Dynamic shared memory, bytes."""
        return self.places[2] + BARRIERS + ALIGNMENT

    def __str__(self):
        return str(self.shape) + f" in {self.parts} parts" * (self.parts > 1) + " drawn" * self.drawn


def fitting(config, shapes, problem, device):
    """Configurations of a class, of (shape, parts), whose fragments fit registers and whose rings fit shared memory."""
    p, found = problem, []
    for shape, parts in shapes:
        drawn = is_uneven(p) and tile_count(p, shape.height) > device.sms
        try:
            found.append(config(kind_of(p), p.o.dtype, p.d, p.dv, shape, parts, p.left >= 0, p.right >= 0, is_adjusted(p),
                                p.lse is not None, drawn, stored_in_pairs(p, p.o), scaled(p)))
        except ValueError:
            continue
    return found


class Numbers(NamedTuple):
    """Lengths of sequences, queries and keys of an array, the window, sequences of an array."""
    sequences: Sequences
    rows: i32
    keys: i32
    bounds: object
    images: i32


@functools.cache
def kernel(config):
    """Tiles of 64 rows a warpgroup."""
    kind, s = config.kind, config.shape
    terms, locate = make_terms(kind), make_longest_first(s.height)
    GROUPS, WIDTH, HEIGHT, THREADS, STAGES = s.groups, s.width, s.height, s.threads, config.stages
    E, (K_BYTES, V_BYTES), Q_BYTES, (K_AT, V_AT, BARS) = config.columns, config.stage, config.q_bytes, config.places
    PIECES, (K_BOXES, V_BOXES), COLUMNS, TURNED = config.pieces, config.boxes, config.box_columns, config.turned
    DRAWN, WITH_LSE, ADJUSTED = config.drawn, config.lse, config.adjusted
    SINK, LIMITED, DROPOUT = bool(kind.sink), kind.limits_rows, kind.dropout
    OF_Q, OF_K, OF_V = config.scaled
    SCORES, SUMS, WORDS, COUNT = WIDTH // 2, E // 2, config.words, config.parts
    PART, PART_BYTES, BEGINS, RAISED, SLACK = SUMS // COUNT, config.part_bytes, config.begins, config.raised, config.slack
    Q_BOX, BOX = HEIGHT * ROW, WIDTH * ROW
    WARPS, PARTS = 4 * GROUPS, divisor(WIDTH)
    by_row, V_CONST = matrix_descriptor(16, 1024, 128), config.of_values
    multiply_k, multiply_v = config.make_products()
    scores_alone, scores_first, sums_done = make_wgmma_wait(0, SCORES), make_wgmma_wait(1, SCORES), make_wgmma_wait(0, PART)
    release_registers, claim_registers = (make(n) for make, n in zip((make_register_release, make_register_claim), s.registers))
    online_softmax, normalize_rows = make_online_softmax(WIDTH, s.first, RAISED), make_normalize_rows(SINK)
    apply_mask = make_apply_mask(WIDTH, config.left, config.right)
    adjust, apply_dropout = make_adjust(kind, WIDTH) if ADJUSTED else None, make_apply_dropout(WIDTH) if DROPOUT else None
    pack, hold_scores, store = config.make_pack(), pin(SCORES), config.make_store()
    load_sink = element(kind.sink or kind.dtype).load
    schedule, channel = make_dynamic() if DRAWN else make_static(), make_channel(WARPS)
    q_pipe, tile_pipe = make_pipeline(1, consumers=GROUPS), channel.pipe
    k_pipe = v_pipe = make_pipeline(STAGES, consumers=GROUPS)
    TILES_AT = q_pipe.bytes
    K_BARS = TILES_AT + channel.bytes
    V_BARS = K_BARS + k_pipe.bytes

    @device_function
    def extent(i0, image, numbers):
        """(rows, a row's own place less its number, keys, first key, tiles of keys, first key of all rows, behind the last key of all)."""
        bounds = numbers.bounds
        _, rows, _, keys = terms.lengths(image, numbers.sequences, numbers.rows, numbers.keys)
        first, every_end = terms.key_range(i0, rows, keys, bounds)
        first = first & -BEGINS
        every_begin, last = terms.key_range(min(i0 + HEIGHT, rows) - 1, rows, keys, bounds)
        tiles, _ = divide_remainder(max(min(last, keys) - first, 1) + (WIDTH - 1), PARTS)
        return rows, terms.shift(rows, keys), keys, first, tiles, every_begin, every_end

    @device_function
    def load_plane(to, boxes, box, array, bar, row, h, image):
        for b in range(boxes):
            tma_load_4d(to + u32(b * box), array, bar, b * COLUMNS, row, h, image)

    @device_function
    def load_tile(to, boxes, box, array, bar, row, h, image, images):
        load_plane(to, boxes, box, array, bar, row, h, image)
        if PIECES > 1:  # a loop of no turns would keep the compiler from unrolling the one around it
            for piece in range(1, PIECES):
                load_plane(to + u32(piece * boxes * box), boxes, box, array, bar, row, h, image + piece * images)

    @device_function
    def produce(q_map, k_map, v_map, turned, of_head, base, bars, tiles, order, numbers, counter):
        q_bars, tiles_at, k_bars, v_bars = bars
        q_state, k_state, v_state = q_pipe.producer_start(), k_pipe.producer_start(), v_pipe.producer_start()
        tile_state = tile_pipe.producer_start()
        (per_image, per_head), images = of_head, numbers.images
        t = schedule.first()
        while t < tiles:
            if DRAWN:  # the consumers learn this tile's number, and the next one is on its way
                tile_state = channel.send(tiles_at, tile_state, t, 0, 0)
            after = schedule.next(t, counter)
            image, h, g, i0 = locate(t, order)
            _, _, _, first, count, _, _ = extent(i0, image, numbers)
            left = count
            at = first + (count - 1) * WIDTH
            values = image * per_image + g * per_head
            while left >= 0:
                if left > 0:
                    k_pipe.producer_acquire(k_bars, k_state)
                    bar = k_pipe.producer_expect(k_bars, k_state, u32(K_BYTES))
                    load_tile(base + K_AT + k_state.stage * K_BYTES, K_BOXES, BOX, k_map, bar, at, g, image, images)
                    k_state = k_pipe.next(k_state)
                if left == count:
                    q_pipe.producer_acquire(q_bars, q_state)
                    bar = q_pipe.producer_expect(q_bars, q_state, u32(Q_BYTES))
                    load_tile(base, K_BOXES, Q_BOX, q_map, bar, i0, h, image, images)
                    q_state = q_pipe.next(q_state)
                else:  # values are needed a step later than their keys
                    v_pipe.producer_acquire(v_bars, v_state)
                    bar = v_pipe.producer_expect(v_bars, v_state, u32(V_BYTES))
                    to = base + V_AT + v_state.stage * V_BYTES
                    if TURNED:
                        bulk_load(to, address(turned, values + i64(at + WIDTH) * E), V_BYTES, bar)
                    else:
                        load_tile(to, V_BOXES, BOX, v_map, bar, at + WIDTH, g, image, images)
                    v_state = v_pipe.next(v_state)
                left, at = left - 1, at - WIDTH
            t = after
        if DRAWN:  # there are no more
            channel.send(tiles_at, tile_state, tiles, 0, 0)

    @device_function
    def to_scores(x, row, own, at, column, keys, every, numbers, scaling):
        """Of the products: what they are beside the scale, and which of them there are."""
        every_begin, every_end = every
        if ADJUSTED:
            scale, slope, softcap, bias, bias_at, bias_strides = scaling
            adjust(x, row, own, at, column, numbers.rows - 1, numbers.keys - 1, scale, slope, softcap, bias, bias_at, bias_strides)
        if at < every_begin or at + WIDTH > every_end:
            apply_mask(x, own, at, column, keys, numbers.bounds)

    @device_function
    def collect(part, sums, before, tile):
        """A tile's sums join the others, which are multiplied by what its levels fell by."""
        for j in range(PART // 4):
            for k in range(4):
                i = part * PART + 4 * j + k
                sums[i] = fma(sums[i], before[k // 2], tile[4 * j + k])

    @device_function
    def next_part(part, state):
        """The sums of one more part of the columns, in the registers of the one before."""
        sums, before, tile, words, of_values = state
        collect(part - 1, sums, before, tile)
        multiply_v(tile, words, descriptor(V_CONST, of_values + u32(part * PART_BYTES)))
        sums_done(tile)
    next_parts = unrolled(COUNT - 1, next_part) if COUNT > 1 else None

    @device_function
    def finish(sums, before, tile, words, of_values):
        """What is under way, and further parts; the last one is left to `collect`."""
        sums_done(tile)
        if COUNT > 1:
            next_parts(i32(1), (sums, before, tile, words, of_values))

    @device_function
    def consume(o, o_strides, lse, lse_strides, sink, sink_step, base, bars, tiles, order, numbers, scaling, dropping, of_v, group, thread):
        q_bars, tiles_at, k_bars, v_bars = bars
        all_rows, heads = numbers.rows, i32(order.inner.d)
        scale, softcap, bias, bias_strides = scaling
        seed, offset, threshold = dropping
        seed = terms.seed_of(seed, offset)
        softmax_scale = f32(LOG2E) if ADJUSTED else scale
        scores, sums, tile = cuda.local.array(SCORES, f32), cuda.local.array(SUMS, f32), cuda.local.array(PART, f32)
        words = cuda.local.array(WORDS, u32)
        row_max, ref_max, row_sum = cuda.local.array(2, f32), cuda.local.array(2, f32), cuda.local.array(2, f32)
        rescale, before, most = cuda.local.array(2, f32), cuda.local.array(2, f32), cuda.local.array(2, f32)
        lane, warp = thread & 31, thread >> 5
        own_row, column = group * 64 + warp * 16 + (lane >> 2), (lane & 3) * 2
        of_q = descriptor(by_row, base + u32(group) * GROUP)
        slack = SLACK * rcp(softmax_scale)
        q_state, k_state, v_state = q_pipe.consumer_start(), k_pipe.consumer_start(), v_pipe.consumer_start()
        tile_state = tile_pipe.consumer_start()
        t = schedule.first()
        while True:
            if DRAWN:
                t, _, _ = channel.receive(tiles_at, tile_state, lane)
                t = uniform(t)
                tile_state = tile_pipe.next(tile_state)
            if t >= tiles:
                break
            image, h, _, i0 = locate(t, order)
            rows, shift, keys, first, count, every_begin, every_end = extent(i0, image, numbers)
            left, every_begin, every_end = uniform(count), uniform(every_begin), uniform(every_end)
            at = first + (left - 1) * WIDTH
            row = i0 + own_row
            own = row + shift
            slope, bias_at = terms.slope(h, heads), image * bias_strides.batch + h * bias_strides.head
            scoring, every = (scale, slope, softcap, bias, bias_at, bias_strides), (every_begin, every_end)
            head = image * heads + h
            for i in range(SUMS):
                sums[i] = f32(0)
            for r in range(2):
                row_max[r], ref_max[r], row_sum[r], before[r] = f32(NEG_INF), f32(0), f32(0), f32(0)
            q_pipe.consumer_wait(q_bars, q_state)

            # the last tile of keys: nothing to add it to yet
            k_pipe.consumer_wait(k_bars, k_state)
            multiply_k(scores, of_q, descriptor(by_row, base + K_AT + k_state.stage * K_BYTES))
            scores_alone(scores)
            k_pipe.consumer_release(k_bars, k_state, thread)
            k_state = k_pipe.next(k_state)
            to_scores(scores, row, own, at, column, keys, every, numbers, scoring)
            online_softmax(scores, most, row_max, ref_max, row_sum, rescale, softmax_scale, slack)
            if DROPOUT:
                apply_dropout(scores, seed, head, row, at, lane, threshold, f32(1))
            pack(words, scores)
            left = left - 1
            while left > 0:
                at = at - WIDTH
                k_pipe.consumer_wait(k_bars, k_state)
                multiply_k(scores, of_q, descriptor(by_row, base + K_AT + k_state.stage * K_BYTES))
                v_pipe.consumer_wait(v_bars, v_state)
                of_values = base + V_AT + v_state.stage * V_BYTES
                multiply_v(tile, words, descriptor(V_CONST, of_values))
                scores_first(scores)
                k_pipe.consumer_release(k_bars, k_state, thread)
                k_state = k_pipe.next(k_state)
                to_scores(scores, row, own, at, column, keys, every, numbers, scoring)
                online_softmax(scores, most, row_max, ref_max, row_sum, rescale, softmax_scale, slack)
                if DROPOUT:
                    apply_dropout(scores, seed, head, row, at, lane, threshold, f32(1))
                finish(sums, before, tile, words, of_values)
                v_pipe.consumer_release(v_bars, v_state, thread)
                v_state = v_pipe.next(v_state)
                hold_scores(scores)  # the words were the products' until now
                pack(words, scores)
                collect(COUNT - 1, sums, before, tile)
                before[0], before[1] = rescale[0], rescale[1]
                left = left - 1

            q_pipe.consumer_release(q_bars, q_state, thread)
            q_state = q_pipe.next(q_state)
            v_pipe.consumer_wait(v_bars, v_state)
            of_values = base + V_AT + v_state.stage * V_BYTES
            multiply_v(tile, words, descriptor(V_CONST, of_values))
            sink_logit = f32(0)
            if SINK:
                sink_logit = f32(load_sink(sink, i64(i64(h) * sink_step)))
            for r in range(2):
                ref_max[r] = ref_max[r] - RAISED
            normalize_rows(ref_max, row_sum, rescale, sink_logit)
            finish(sums, before, tile, words, of_values)
            v_pipe.consumer_release(v_bars, v_state, thread)
            v_state = v_pipe.next(v_state)
            collect(COUNT - 1, sums, before, tile)
            for r in range(2):
                rescale[r] = rescale[r] * of_v
            if LIMITED:  # rows beyond the sequence's last
                if row >= rows:
                    rescale[0], row_sum[0] = f32(0), f32(NEG_INF)
                if row + 8 >= rows:
                    rescale[1], row_sum[1] = f32(0), f32(NEG_INF)
            of_o = advance(o, image * o_strides.batch + h * o_strides.head)
            store(sums, rescale, of_o, o_strides, row, all_rows, column)
            if WITH_LSE and column == 0:
                lse_at = image * lse_strides.batch + h * lse_strides.head + row * lse_strides.row
                if row < all_rows:
                    lse[lse_at] = row_sum[0]
                if row + 8 < all_rows:
                    lse[lse_at + 8 * lse_strides.row] = row_sum[1]
            if not DRAWN:
                t = schedule.next(t, None)

    def sdpa_fwd(q, k, v, turned, of_head, images, o, o_strides, lse, lse_strides, counter, sink, sink_step, tiles, order, rows,
                 keys, of_rows, of_keys, row_step, key_step, bias, bias_strides, bounds, scale, softcap, seed, offset, threshold,
                 factor, scale_q, scale_k, scale_v):
        shared = cuda.shared.array(0, u32)
        q_map, k_map, v_map = tensor_map_address(q), tensor_map_address(k), tensor_map_address(v)
        base = (shared_address(shared, 0) + (ALIGNMENT - 1)) & (0xFFFFFFFF - (ALIGNMENT - 1))
        first = base + BARS
        bars = q_pipe.barriers(first), first + TILES_AT, k_pipe.barriers(first + K_BARS), v_pipe.barriers(first + V_BARS)
        tid = cuda.threadIdx.x
        if tid == 0:
            prefetch_tensor_map(q_map)
            prefetch_tensor_map(k_map)
            if not TURNED:
                prefetch_tensor_map(v_map)
            q_pipe.init(bars[0])
            k_pipe.init(bars[2])
            v_pipe.init(bars[3])
            if DRAWN:
                channel.init(bars[1])
            fence_mbarrier_init()
        cuda.syncthreads()
        launch_dependent_grids()
        wait_for_previous_grid()
        numbers = Numbers(Sequences(of_rows, of_keys, row_step, key_step), rows, keys, bounds, images)
        role = uniform(tid >> 7)
        if role == 0:
            release_registers()
            if tid < 32:
                if elect():
                    produce(q_map, k_map, v_map, turned, of_head, base, bars, tiles, order, numbers, counter)
        else:
            claim_registers()
            of_v = factor
            if OF_Q:
                scale = scale * scale_q[0]
            if OF_K:
                scale = scale * scale_k[0]
            if OF_V:
                of_v = of_v * scale_v[0]
            consume(o, o_strides, lse, lse_strides, sink, sink_step, base, bars, tiles, order, numbers,
                    (scale, softcap, bias, bias_strides), (seed, offset, threshold), of_v, role - 1, tid & 127)
    sdpa_fwd.__name__ = sdpa_fwd.__qualname__ = f"sdpa_fwd_{config.algorithm}"
    return jit(launch_bounds=(THREADS, 1))(sdpa_fwd)


def main_launch(problem, config, device, maps, steps, counter):
    """The launch of the kernel: as many blocks as the device holds, or as there are tiles. `maps` are tensor maps of q, k and v, `steps`
    those of images and heads of values that are turned; the counter is at that byte of the workspace."""
    p, s = problem, config.shape
    tiles = tile_count(p, s.height)
    bias, bias_strides, _, _, *of_sink = added_arguments(p)
    bounds, scale, *others = number_arguments(p)
    if not config.adjusted:
        scale = Argument("float32", p.scale * LOG2E)
    arguments = (*maps, Argument("uint8*", "workspace"), Argument("int64x2", steps), Argument("int32", p.images),
                 Argument(element(p.o.dtype).pointer, "o"), Argument(Strides, p.strides(p.o)),
                 Argument("float32*", "lse" if p.lse else "o"), Argument(RowStrides, p.lse_strides),
                 Argument("uint32*", "workspace", offset=counter), *of_sink, Argument("int32", tiles), order_argument(p, s.height),
                 Argument("int32", p.rows), Argument("int32", p.keys), *sequence_arguments(p), bias, bias_strides, bounds, scale, *others,
                 *scale_arguments())
    return Launch(kernel(config), (min(tiles, device.sms), 1, 1), (s.threads, 1, 1), arguments, shared=config.shared, dependent=True)

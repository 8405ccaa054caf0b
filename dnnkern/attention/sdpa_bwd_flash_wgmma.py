"""The gradients on Hopper's tensor cores, in `flash_simt`'s order: a block a tile of rows for dq, and one of keys for dk and dv.

    rows:  q, do stay | k, v pass --> x = q k', y = do v' (wgmma) -- ds in registers --> dq += ds k (wgmma)
    keys:  k, v stay | q, do pass --> x = k q', y = v do' (wgmma) -- p, ds in registers --> dv += p do, dk += ds q (wgmma)

- Both are one kernel: two tiles stay in shared memory, a warp feeds a ring of two others through TMA, and warpgroups of 64 rows, or keys,
  multiply. What sums are made of is a left operand in registers and, as it lies, the tile that scores were made of.
- The sums of a step are under way while the scores of the next one are multiplied; two warpgroups fill the gaps that derivatives leave.
- With delta = sum(do * o) of each row, which a launch leaves in the workspace, no sum goes over more than one block: no atomics, and each
  sum has one order, for seven products instead of five. Another warp of the producer's brings levels and deltas of the rows that pass.
- The bias's gradient is `naive`'s launch.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, device_function, f32, i32, i64, u32
from ..device.barrier import barrier_sync
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.mbarrier import (fence_async_shared, fence_mbarrier_init, mbarrier_arrive, mbarrier_arrive_expect, mbarrier_init,
                               mbarrier_wait)
from ..device.registers import check_register_budget, make_register_claim, make_register_release
from ..device.tma import prefetch_tensor_map, tensor_map_address, tma_load_4d
from ..device.vec import advance, shared_address, store_shared_4u32, store_shared_f32
from ..device.warp import elect, uniform
from ..device.wgmma import descriptor, make_wgmma, make_wgmma_wait, matrix_descriptor
from ..dispatch import Algorithm, Note
from ..host.launch import Argument, Launch
from ..matmul._engine_hopper import GROUP, ROW, SHARED_LIMIT
from ..transform._estimate import divisions_seconds, moved_seconds
from ._delta import delta_launch
from ._flash import LOG2E, lines_arguments
from ._fragments import is_adjusted, make_hide, make_hide_turned, make_pack, make_store, stored_in_pairs
from ._scores import Kind, added_arguments, kind_of, make_terms, number_arguments, sequence_arguments
from ._slopes import WIDEST_DROPPED, make_slopes, row_level
from ._wgmma import ALIGNMENT, BARRIERS, CLOCK_SHARE, COLUMNS, LAUNCH, MOST_STAGES, Shape, addressable, array_map, refusal
from .sdpa_naive import bias_launch, workspace

SHAPES = (Shape(2, 64, 0), Shape(2, 48, 0), Shape(2, 32, 0), Shape(1, 64, 0), Shape(1, 32, 0))
MOST_COLUMNS = 256  # of the sums of dk and dv


@dataclass(frozen=True)
class Config:
    """The options, sizes of heads, and a shape; whether sums are under way with the next scores, or those wait for them, which takes fewer
    registers; whether the window has a left and a right bound, whether scores are more than scaled products, and whether dq, dk and dv are
    stored by pairs."""
    kind: Kind
    d: int
    e: int
    shape: Shape
    ahead: bool
    left: bool
    right: bool
    adjusted: bool
    pairs: tuple

    def __post_init__(self):
        s, (producer, consumer) = self.shape, self.registers
        if self.kind.dropout and s.width > WIDEST_DROPPED:
            raise ValueError(f"tile {s}: with dropout expected {WIDEST_DROPPED} columns at most")
        check_register_budget(s.threads, ((128, producer), (128 * s.groups, consumer)))
        if self.live > consumer:
            raise ValueError(f"tile {s} of heads of {self.d} and {self.e}: a thread needs {self.live} registers, it has {consumer}")
        if self.stages < 2:
            raise ValueError(f"tile {s} of heads of {self.d} and {self.e}: {SHARED_LIMIT} bytes of shared memory hold {self.stages} "
                             "stages; the least is 2")

    @property
    def registers(self):
        """(of a producer thread, of a consumer thread); levels and deltas take more than copies do."""
        return {1: (80, 240), 2: (72, 216)}[self.shape.groups]

    @property
    def steps(self):
        """Of 16 elements of a row of q and k, and of one of v and do."""
        return ceil_div(self.d, 16), ceil_div(self.e, 16)

    @property
    def columns(self):
        """Of the sums: d and e in whole groups of 8."""
        return ceil_div(self.d, 8) * 8, ceil_div(self.e, 8) * 8

    @property
    def live(self):
        """About how many registers a thread needs for dk and dv."""
        extra = self.shape.width // 2 * self.kind.softcap + (40 if self.kind.bias else 24 * (self.adjusted or self.kind.dropout))
        return sum(self.columns) // 2 + self.shape.width + (self.shape.width // 2 + 34 if self.ahead else 26) + extra

    @property
    def boxes(self):
        """Boxes of 64 columns of q and k, and of v and do."""
        return ceil_div(self.d, COLUMNS), ceil_div(self.e, COLUMNS)

    @property
    def resident(self):
        """Bytes of the two tiles that stay."""
        return tuple(n * self.shape.height * ROW for n in self.boxes)

    @property
    def passing(self):
        """Bytes of the two that pass."""
        return tuple(n * self.shape.width * ROW for n in self.boxes)

    @property
    def numbers(self):
        """Bytes of a stage's levels and deltas."""
        return 8 * self.shape.width

    @property
    def stages(self):
        rest = SHARED_LIMIT - ALIGNMENT - BARRIERS - sum(self.resident)
        return min(rest // (sum(self.passing) + self.numbers), MOST_STAGES)

    @property
    def places(self):
        """Bytes before the second tile that stays, the ring, the numbers, the barriers."""
        ring = sum(self.resident)
        numbers = ring + self.stages * sum(self.passing)
        return self.resident[0], ring, numbers, numbers + self.stages * self.numbers

    @property
    def shared(self):
        """Dynamic shared memory, bytes."""
        return self.places[3] + BARRIERS + ALIGNMENT

    def __str__(self):
        return str(self.shape) + " ahead" * self.ahead


def supports(problem):
    """16-bit rows that TMA can read, not packed; heads of q and v together up to 256 elements."""
    p = problem
    reason = refusal(p)
    if reason:
        return reason
    if not addressable(p, p.do):
        return f"do has strides {p.do.strides} and alignment {p.do.alignment}: TMA takes rows that lie 16 bytes, or multiples, apart"
    if not p.rows:
        return "no rows"
    if sum(ceil_div(n, 8) * 8 for n in (p.d, p.dv)) > MOST_COLUMNS:
        return f"heads of {p.d} and {p.dv} elements; expected {MOST_COLUMNS} together at most"
    return None


def configs(problem, device):
    """Shapes whose fragments fit registers and whose rings fit shared memory."""
    p, found = problem, []
    pairs = tuple(stored_in_pairs(p, t) for t in (p.dq, p.dk, p.dv_out))
    for shape in SHAPES:
        # NOTE: with more between two products than scaling and masks ptxas moves sums that are under way, and waits for each
        for ahead in (False,) if is_adjusted(p) or p.dropout else (True, False):
            try:
                found.append(Config(kind_of(p), p.d, p.dv, shape, ahead, p.left >= 0, p.right >= 0, is_adjusted(p), pairs))
            except ValueError:
                continue
    return found


def estimate(problem, device, config):
    """Steps of both kernels: products, and the instructions for derivatives, which two warpgroups overlap in part."""
    p, s = problem, config.shape
    spread = (s.height + s.width) / 2 * (p.left >= 0 or p.right >= 0)
    pairs = p.pairs / max(p.batch * p.rows, 1) + spread  # keys of a row, or the other way round
    steps = p.batch * p.heads * ceil_div(p.rows, s.height) * (min(pairs, p.keys) / s.width + 0.5)
    products = 2 * s.height * s.width * (4 * config.steps[0] + 3 * config.steps[1]) * 16 / 4096
    issues = 2 * (20 + 12 * bool(config.kind.bias) + 4 * p.alibi + 25 * (p.softcap > 0) + 80 * (p.dropout > 0))
    overlap = 0.6 if config.ahead else 0.8
    step = (products + overlap * issues * s.height * s.width / 128 + 500) * (1.3 if s.groups == 1 else 1)
    bias = divisions_seconds(p.pairs * p.heads * (p.d + p.dv), 8, device) if p.dbias is not None else 0
    waves = max(steps / device.sms, steps / max(p.batch * p.heads * ceil_div(p.rows, s.height), 1))
    return 3 * LAUNCH + bias + max(waves * step / (CLOCK_SHARE * device.clock_hz), moved_seconds(p.bytes, device))


@functools.cache
def kernel(config, turned):
    """dq of a tile of rows of one head a block; turned, dk and dv of a tile of keys of one head of theirs."""
    kind, s = config.kind, config.shape
    terms, hide = make_terms(kind), (make_hide_turned if turned else make_hide)(s.width, config.left, config.right)
    adjust, slopes = make_slopes(kind, s.width, turned)
    HEIGHT, WIDTH, THREADS, STAGES, GROUPS = s.height, s.width, s.threads, config.stages, s.groups
    (Q_STEPS, V_STEPS), (Q_COLUMNS, V_COLUMNS), (Q_BOXES, V_BOXES) = config.steps, config.columns, config.boxes
    SECOND, RING, NUMBERS, BARS = config.places
    FIRST_BYTES, STAGE, RESIDENT = config.passing[0], sum(config.passing), sum(config.resident)
    SCORES, SUMS, SUMS_V, WORDS = WIDTH // 2, Q_COLUMNS // 2, V_COLUMNS // 2 if turned else 1, WIDTH // 4
    STAY, PASS = HEIGHT * ROW, WIDTH * ROW
    AHEAD = config.ahead
    LIMITED, ADJUSTED, CAPS = kind.limits_rows if turned else kind.limits_keys, config.adjusted, SCORES if kind.softcap else 1
    BY_WIDTH = divisor(WIDTH)
    by_row, by_column = matrix_descriptor(16, 1024, 128), matrix_descriptor(PASS, 1024, 128)

    def places(steps, box):
        return tuple(step // 4 * (box // 16) + step % 4 * 2 for step in range(steps))
    score = make_wgmma(WIDTH, kind.dtype, steps=Q_STEPS, a_step=places(Q_STEPS, STAY), b_step=places(Q_STEPS, PASS))
    value = make_wgmma(WIDTH, kind.dtype, steps=V_STEPS, a_step=places(V_STEPS, STAY), b_step=places(V_STEPS, PASS))
    by_first = make_wgmma(Q_COLUMNS, kind.dtype, steps=WIDTH // 16, a="registers", b_major="mn", b_step=128)
    by_second = make_wgmma(V_COLUMNS, kind.dtype, steps=WIDTH // 16, a="registers", b_major="mn", b_step=128)
    scores_done, sums_done, values_done = (make_wgmma_wait(0, n) for n in (SCORES, SUMS, SUMS_V))
    release_registers, claim_registers = (make(n) for make, n in zip((make_register_release, make_register_claim), config.registers))
    pack = make_pack(kind.dtype, WORDS)
    store = make_store(kind.dtype, Q_COLUMNS, config.d, config.pairs[1 if turned else 0])
    store_values = make_store(kind.dtype, V_COLUMNS, config.e, config.pairs[2])

    @device_function
    def advanced(slot, phase):
        slot = u32(slot + u32(1))
        if slot == u32(STAGES):
            return u32(0), u32(phase ^ u32(1))
        return slot, phase

    @device_function
    def release(empty, slot, lane):
        """The warp has read a stage, its levels and deltas too."""
        cuda.syncwarp()
        if lane == 0:
            mbarrier_arrive(u32(empty + u32(8) * slot))

    @device_function
    def load_tile(to, boxes, box, array, bar, row, h, image):
        for b in range(boxes):
            tma_load_4d(u32(to + u32(b * box)), array, bar, i32(b * COLUMNS), row, h, image)

    @device_function
    def produce(maps, base, bars, where, members):
        resident, full, empty = bars
        stay, stay_second, passing, passing_second = maps
        image, line_head, other_head, start, first, count = where
        mbarrier_arrive_expect(resident, u32(RESIDENT))
        load_tile(base, Q_BOXES, STAY, stay, resident, start, line_head, image)
        load_tile(u32(base + u32(SECOND)), V_BOXES, STAY, stay_second, resident, start, line_head, image)
        slot, phase = u32(0), u32(1)
        for member in range(members):
            for step in range(count):
                mbarrier_wait(u32(empty + u32(8) * slot), phase)
                bar = u32(full + u32(8) * slot)
                mbarrier_arrive_expect(bar, u32(STAGE))
                to, at = u32(base + u32(RING) + slot * u32(STAGE)), i32(first + step * WIDTH)
                load_tile(to, Q_BOXES, PASS, passing, bar, at, i32(other_head + member), image)
                load_tile(u32(to + u32(FIRST_BYTES)), V_BOXES, PASS, passing_second, bar, at, i32(other_head + member), image)
                slot, phase = advanced(slot, phase)

    @device_function
    def bring_numbers(base, bars, where, members, saved, rows, lane):
        """Levels and deltas of the rows that pass."""
        _, full, empty = bars
        image, _, head, _, first, count = where
        lse, lse_strides, delta, heads, all_rows = saved
        slot, phase = u32(0), u32(1)
        for member in range(members):
            h = i32(head + member)
            lse_at = i64(i64(image) * lse_strides[0] + i64(h) * lse_strides[1])
            delta_at = i64(i64(i64(image) * heads + h) * i64(all_rows))
            for step in range(count):
                mbarrier_wait(u32(empty + u32(8) * slot), phase)
                to = u32(base + u32(NUMBERS) + slot * u32(8 * WIDTH))
                for c in range(lane, WIDTH, 32):
                    i, own = i32(first + step * WIDTH + c), f32(0)
                    level = row_level(lse, i64(lse_at + i64(i) * lse_strides[2]), i < rows)
                    if i < rows:
                        own = delta[i64(delta_at + i64(i))]
                    store_shared_f32(u32(to + u32(4 * i32(c))), level)
                    store_shared_f32(u32(to + u32(4 * WIDTH) + u32(4 * i32(c))), own)
                mbarrier_arrive(u32(full + u32(8) * slot))
                slot, phase = advanced(slot, phase)

    @device_function
    def clear_rows(to, boxes, at, end, thread):
        """Rows of a tile that passes from `end` on become zero: zero times what is there might be NaN."""
        for part in range(i32(max(i32(end - at), i32(0)) * 8 + thread), WIDTH * 8, 128 * GROUPS):
            for box in range(boxes):
                store_shared_4u32(u32(to + u32(box * PASS) + u32(i32(part) * 16)), u32(0), u32(0), u32(0), u32(0))

    @device_function
    def consume(outs, base, bars, where, members, saved, numbers, scaling, dropping, group, thread):
        resident, full, empty = bars
        image, line_head, other_head, start, first, count = where
        lse, lse_strides, delta, heads, all_rows = saved
        rows, keys, shift, bounds, every_begin, every_end = numbers
        scale, softcap, bias, bias_strides = scaling
        seed, threshold, factor = dropping
        lane, warp = i32(thread & 31), i32(thread >> 5)
        line, column = i32(start + group * 64 + warp * 16 + (lane >> 2)), i32((lane & 3) * 2)
        steepness = f32(LOG2E) if ADJUSTED else f32(scale * f32(LOG2E))
        x, y, derivatives = cuda.local.array(SCORES, f32), cuda.local.array(SCORES, f32), cuda.local.array(CAPS, f32)
        sums, values = cuda.local.array(SUMS, f32), cuda.local.array(SUMS_V, f32)
        words, words_p = cuda.local.array(WORDS, u32), cuda.local.array(WORDS if turned else 1, u32)
        levels, deltas, factors = cuda.local.array(2, f32), cuda.local.array(2, f32), cuda.local.array(2, f32)
        for c in range(SUMS):
            sums[c] = f32(0)
        for c in range(SUMS_V):
            values[c] = f32(0)
        for r in range(2):
            levels[r], deltas[r] = f32(0), f32(0)
        if not turned:
            lse_at = i64(i64(image) * lse_strides[0] + i64(line_head) * lse_strides[1])
            delta_at = i64(i64(i64(image) * heads + line_head) * i64(all_rows))
            for r in range(2):
                i = i32(line + 8 * r)
                levels[r] = row_level(lse, i64(lse_at + i64(i) * lse_strides[2]), i < rows)
                if i < rows:
                    deltas[r] = delta[i64(delta_at + i64(i))]
        end = rows if turned else keys
        slot, phase, before = u32(0), u32(0), u32(0)
        mbarrier_wait(resident, u32(0))
        mine = u32(base + u32(group) * u32(GROUP))
        a, a_second = descriptor(by_row, mine), descriptor(by_row, u32(mine + u32(SECOND)))
        for member in range(members):
            h = i32(other_head + member) if turned else line_head
            slope, head = terms.slope(h, heads), i32(image * heads + h)
            bias_at = i64(i64(image) * bias_strides[0] + i64(h) * bias_strides[1])
            scoring = (shift, slope, bias, bias_at, bias_strides, i32(rows - 1), i32(keys - 1), scale, softcap)
            for step in range(count):
                at = i32(first + step * WIDTH)
                mbarrier_wait(u32(full + u32(8) * slot), phase)
                tile = u32(base + u32(RING) + slot * u32(STAGE))
                second = u32(tile + u32(FIRST_BYTES))
                if LIMITED and i32(at + WIDTH) > end:
                    clear_rows(tile, Q_BOXES, at, end, i32(group * 128 + thread))
                    clear_rows(second, V_BOXES, at, end, i32(group * 128 + thread))
                    fence_async_shared()
                    barrier_sync(u32(1), u32(128 * GROUPS))
                score(x, a, descriptor(by_row, tile), i32(0))
                value(y, a_second, descriptor(by_row, second), i32(0))
                scores_done(x)
                scores_done(y)
                if AHEAD and (step > 0 or member > 0):  # the sums of the step before are done too
                    release(empty, before, lane)
                if ADJUSTED:
                    adjust(x, derivatives, line, at, column, scoring)
                if turned:
                    begin, _ = terms.span(i32(min(i32(at + WIDTH), rows) - 1), rows, keys, bounds)
                    _, last = terms.span(at, rows, keys, bounds)
                    if begin > start or last < i32(start + HEIGHT):
                        hide(x, i32(line - shift), at, column, i32(keys - line), bounds)
                    of_stage = u32(base + u32(NUMBERS) + slot * u32(8 * WIDTH))
                    slopes(x, y, of_stage, u32(of_stage + u32(4 * WIDTH)), derivatives, line, at, column, steepness,
                           (seed, head, threshold, factor))
                    pack(words_p, x)
                    pack(words, y)
                    by_second(values, words_p, descriptor(by_column, second), i32(1))
                else:
                    if at < every_begin or i32(at + WIDTH) > every_end:
                        hide(x, i32(line + shift), at, column, keys, bounds)
                    slopes(x, y, levels, deltas, derivatives, line, at, column, steepness, (seed, head, threshold, factor))
                    pack(words, y)
                by_first(sums, words, descriptor(by_column, tile), i32(1))
                if not AHEAD:
                    sums_done(sums)
                    if turned:
                        values_done(values)
                    release(empty, slot, lane)
                before = slot
                slot, phase = advanced(slot, phase)
        sums_done(sums)
        out, out_strides, out_second, second_strides, written = outs
        for r in range(2):
            factors[r] = scale if i32(line + 8 * r) < (keys if turned else rows) else f32(0)
        to = advance(out, i64(i64(image) * out_strides[0] + i64(line_head) * out_strides[1]))
        store(sums, factors, to, out_strides, line, written, column)
        if turned:
            values_done(values)
            for r in range(2):
                factors[r] = f32(1) if i32(line + 8 * r) < keys else f32(0)
            to = advance(out_second, i64(i64(image) * second_strides[0] + i64(line_head) * second_strides[1]))
            store_values(values, factors, to, second_strides, line, written, column)

    @cuda.jit(launch_bounds=(THREADS, 1))
    def sdpa_bwd_flash_wgmma(stay, stay_second, passing, passing_second, out, out_strides, out_second, second_strides, lse, lse_strides,
                             delta, sizes, lines, heads_of, tiles, group, group_of, of_rows, of_keys, row_step, key_step, bias,
                             bias_strides, sink, sink_step, bounds, scale, softcap, seed, threshold, factor):
        shared = cuda.shared.array(0, u32)
        maps = (tensor_map_address(stay), tensor_map_address(stay_second), tensor_map_address(passing), tensor_map_address(passing_second))
        base = u32(u32(shared_address(shared, 0) + u32(ALIGNMENT - 1)) & u32(0xFFFFFFFF - (ALIGNMENT - 1)))
        resident = u32(base + u32(BARS))
        bars = (resident, u32(resident + u32(8)), u32(resident + u32(8 + 8 * STAGES)))
        tid = i32(cuda.threadIdx.x)
        if tid == 0:
            for k in range(4):
                prefetch_tensor_map(maps[k])
            mbarrier_init(resident, u32(1))
            for stage in range(STAGES):
                mbarrier_init(u32(bars[1] + u32(8 * stage)), u32(33 if turned else 1))
                mbarrier_init(u32(bars[2] + u32(8 * stage)), u32(4 * GROUPS))
            fence_mbarrier_init()
        cuda.syncthreads()
        rank, place = divide_remainder(i32(cuda.blockIdx.x), lines)
        image, own_head = divide_remainder(place, heads_of)
        all_rows, all_keys = i32(sizes[1]), i32(sizes[2])
        _, rows, _, keys = terms.lengths(image, (of_rows, of_keys, row_step, key_step), all_rows, all_keys)
        shift, every_begin, every_end = terms.shift(rows, keys), i32(0), i32(0)
        if turned:
            start, members, heads = i32(rank * HEIGHT), i32(group), i32(i32(heads_of[0]) * i32(group))
            other_head = i32(own_head * members)
            first, _ = terms.column(start, rows, keys, bounds)
            _, last = terms.column(i32(min(i32(start + HEIGHT), keys) - 1), rows, keys, bounds)
            last = i32(min(last, rows))
            exists, written = start < keys, all_keys
        else:
            start, members, heads = i32(i32(tiles - 1 - rank) * HEIGHT), i32(1), i32(heads_of[0])
            other_head, _ = divide_remainder(own_head, group_of)
            first, every_end = terms.span(start, rows, keys, bounds)
            every_begin, last = terms.span(i32(min(i32(start + HEIGHT), rows) - 1), rows, keys, bounds)
            last = i32(min(last, keys))
            exists, written = start < rows, all_rows
        count = i32(0)
        if exists and first < last:
            count, _ = divide_remainder(i32(i32(last - first) + i32(WIDTH - 1)), BY_WIDTH)
        where = (image, own_head, other_head, start, first, uniform(count))
        saved = (lse, lse_strides, delta, heads, all_rows)
        role = uniform(i32(tid >> 7))
        if role == 0:
            release_registers()
            if tid < 32:
                if elect():
                    produce(maps, base, bars, where, members)
            elif turned and tid < 64:
                bring_numbers(base, bars, where, members, saved, rows, i32(tid & 31))
        else:
            claim_registers()
            consume((out, out_strides, out_second, second_strides, written), base, bars, where, members, saved,
                    (rows, keys, shift, bounds, every_begin, every_end), (scale, softcap, bias, bias_strides), (seed, threshold, factor),
                    i32(role - 1), i32(tid & 127))
    return sdpa_bwd_flash_wgmma


def build(problem, device, config):
    """Three launches, each where its result has elements, and that of the bias's gradient."""
    p, s = problem, config.shape
    saved = (Argument("float32*", "lse"), Argument("int64x3", p.lse_strides), Argument("float32*", "workspace"),
             Argument("int32x3", (p.batch, p.rows, p.keys)))
    common = (*sequence_arguments(p), *added_arguments(p), *number_arguments(p))

    def maps(height, *names):
        return tuple(array_map(p, name, getattr(p, name), height) for name in names)

    def launch(turned, tiles, heads, names, outs):
        stay, passing = (names[:2], names[2:])
        stores = [x for name, t in outs for x in (Argument("uint16*", name), Argument("int64x4", p.strides(t)))]
        arguments = (*maps(s.height, *stay), *maps(s.width, *passing), *stores, *saved, *lines_arguments(p, heads, tiles),
                     Argument("int32", p.group), Argument("uint32x3", divisor(p.group)), *common)
        return Launch(kernel(config, turned), (tiles * p.batch * heads, 1, 1), (s.threads, 1, 1), arguments, shared=config.shared)
    launches = (delta_launch(p),)
    if p.dq.size:
        launches += (launch(False, ceil_div(p.rows, s.height), p.heads, ("q", "do", "k", "v"), (("dq", p.dq), ("dq", p.dq))),)
    if p.dk.size or p.dv_out.size:
        launches += (launch(True, ceil_div(p.keys, s.height), p.kv_heads, ("k", "v", "q", "do"), (("dk", p.dk), ("dv", p.dv_out))),)
    if p.dbias is not None and p.dbias.size:
        launches += (bias_launch(p),)
    return launches


ALGORITHM = Algorithm(op="sdpa_bwd", name="flash_wgmma", supports=supports, workspace=workspace, configs=configs, estimate=estimate,
                      build=build, notes=Note.TENSOR_CORE, arch="sm_90a")

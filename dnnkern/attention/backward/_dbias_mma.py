"""The bias's gradient on tensor cores (mma.sync): one tile of the gradient per block, which the pairs of tiles that share it pass.

    q, k; do, v, in parts --> x = q k', y = do v' --> p = exp(x + bias - lse), acc += p (y - delta), in registers --> the tile

- A warp has 32 queries and 48 keys, as two fragments (`_fragments`), one 16 rows below the other: x, y and acc, 144 registers. All that
  passes has the same bias, so each thread reads its part once and keeps it in shared memory, for itself alone.
- An item (`_dbias_items`) has a few *steps*: parts of some columns of q and k, then of do and v. Steps pass a ring in shared memory
  (cp.async) without a stop between items.
- The tile leaves through shared memory, in whole rows, or summed over its rows or keys. Each sum has one order.
"""
import functools
from typing import NamedTuple

from ...device import cuda, device_function, f32, i64, jit, u32
from ...device.convert import element
from ...device.cp_async import commit_copies, wait_copies
from ...device.fastmath import ex2, fma
from ...device.index import divide_remainder
from ...device.ldmatrix import ldmatrix_x4
from ...device.mma import make_mma
from ...device.vec import (advance, load_shared_4f32, load_shared_4u32, shared_address, store_shared_2f32, store_shared_4f32,
                           store_shared_4u32)
from .._mma import Source, left_offset, make_loader, right_offset
from .._modifiers import make_adjust, make_apply_boolean_mask, make_apply_dropout, make_apply_mask
from .._parameters import Sequences
from .._scores import LOG2E, NEG_INF, load_row_lse, make_terms
from ._dbias_items import Work, make_items, make_store_tile


@functools.cache
def make_part_loader(source, parts, height, threads):
    """Device function ``load(to, p, part, first, left, strides, thread)``: a part of rows first, ... of those at p (`_mma`)."""
    WIDTH, LAST = parts.width, parts.count - 1
    load_whole = make_loader(Source(WIDTH, source.wide), height, threads)
    load_last = make_loader(Source(parts.rest, source.wide, WIDTH), height, threads) if parts.rest < WIDTH else load_whole
    SAME = load_last is load_whole

    @device_function
    def load(to, p, part, first, left, strides, thread):
        at, steps = advance(p, part * WIDTH * strides.column), (strides.row, strides.column)
        if not SAME and part == LAST:
            load_last(to, at, first, left, steps, thread)
        else:
            load_whole(to, at, first, left, steps, thread)
    return load


@functools.cache
def make_product(dtype, keys, steps, pitch):
    """Device function ``product(upper, lower, left, right, a, b)``: two fragments of 16 rows each += 32 rows at a times `keys` rows at b,
    as `_mma.make_gemm` does for one; `left` has eight words."""
    mma = make_mma(dtype)

    @device_function
    def product(upper, lower, left, right, a, b):
        for step in range(steps):
            ldmatrix_x4(left, 0, a + u32(32 * step))
            ldmatrix_x4(left, 4, a + u32(32 * step + 16 * pitch))
            for j in range(keys // 16):
                ldmatrix_x4(right, 0, b + u32(32 * step + 16 * j * pitch))
                for half in range(2):
                    mma(upper, 8 * j + 4 * half, left, 0, right, 2 * half)
                    mma(lower, 8 * j + 4 * half, left, 4, right, 2 * half)
    return product


@functools.cache
def make_bias(dtype, keys, threads):
    """Device functions ``keep(at, bias, bias_at, strides, row, column, last_row, last_key)``, a thread's part of a fragment of the bias
    to shared memory, 16 bytes of each thread side by side, and ``add(x, softmax_scale, at)``: x becomes scores by powers of two."""
    e, PAIRED, FRAGMENT = element(dtype), dtype != "float32", keys // 2
    load, pack, unpack = e.load, e.pack, e.unpack
    PER = 8 if PAIRED else 4  # elements of 16 bytes

    @device_function
    def keep(at, bias, bias_at, strides, row, column, last_row, last_key):
        values = cuda.local.array(FRAGMENT, f32)
        for j in range(keys // 8):
            for h in range(2):
                line = bias_at + min(row + 8 * h, last_row) * strides.row
                for e in range(2):
                    key = min(column + 8 * j + e, last_key)
                    values[4 * j + 2 * h + e] = load(bias, line + key * strides.column)
        for k in range(0, FRAGMENT, PER):
            to = at + u32(16 * threads * (k // PER))
            if PAIRED:
                store_shared_4u32(to, pack(values[k], values[k + 1]), pack(values[k + 2], values[k + 3]),
                                  pack(values[k + 4], values[k + 5]), pack(values[k + 6], values[k + 7]))
            else:
                store_shared_4f32(to, values[k], values[k + 1], values[k + 2], values[k + 3])

    @device_function
    def add(x, softmax_scale, at):
        for k in range(0, FRAGMENT, PER):
            source = at + u32(16 * threads * (k // PER))
            if PAIRED:
                words = load_shared_4u32(source)
                for w in range(4):
                    low, high = unpack(words[w])
                    x[k + 2 * w] = fma(low, f32(LOG2E), x[k + 2 * w] * softmax_scale)
                    x[k + 2 * w + 1] = fma(high, f32(LOG2E), x[k + 2 * w + 1] * softmax_scale)
            else:
                four = load_shared_4f32(source)
                for e in range(4):
                    x[k + e] = fma(four[e], f32(LOG2E), x[k + e] * softmax_scale)
    return keep, add


@functools.cache
def make_mask_rows(keys):
    """Device function ``mask_rows(x, row, rows)``: scores of rows past the last become -inf, whatever their bias is."""
    @device_function
    def mask_rows(x, row, rows):
        for k in range(keys // 2):
            if row + 8 * (k // 2 % 2) >= rows:
                x[k] = f32(NEG_INF)
    return mask_rows


@functools.cache
def make_gradient(keys, dropout):
    """Device functions of a fragment, of whose two rows `row_lse` and `deltas` begin at `first`: ``exponentials(x, row_lse, first)``,
    scores become probabilities; ``begin(y, deltas, first)``, what products of do and v are added to;
    ``accumulate(acc, p, y, deltas, first)`` adds dS. Dropout changes the products before deltas are subtracted; otherwise they begin with
    these."""
    @device_function
    def exponentials(x, row_lse, first):
        for k in range(keys // 2):
            x[k] = ex2(x[k] - row_lse[first + k // 2 % 2])

    @device_function
    def begin(y, deltas, first):
        for k in range(keys // 2):
            y[k] = f32(0) if dropout else -deltas[first + k // 2 % 2]

    @device_function
    def accumulate(acc, p, y, deltas, first):
        for k in range(keys // 2):
            acc[k] = fma(p[k], y[k] - deltas[first + k // 2 % 2] if dropout else y[k], acc[k])
    return exponentials, begin, accumulate


@functools.cache
def make_stats(width):
    """Device function ``load(row_lse, deltas, lse, lse_at, lse_step, stats, line, padded, row, rows)``: those of a thread's four rows, from
    lse and the deltas of `_delta`, `padded` per head, or, with a `width`, from the stats of `flash_wgmma.workspace`."""
    @device_function
    def load(row_lse, deltas, lse, lse_at, lse_step, stats, line, padded, row, rows):
        for r in range(4):
            i = row + 8 * r
            if width:
                at = (line * padded + (i & -width)) * 2 + (i & (width - 1))
                row_lse[r], deltas[r] = stats[at], stats[at + width]
            else:
                row_lse[r], deltas[r] = load_row_lse(lse, lse_at + i * lse_step, i < rows), f32(0)
                if i < rows:
                    deltas[r] = stats[line * padded + i]
    return load


class Operands(NamedTuple):
    """Arrays and their strides; query heads of a head of k and v, as a divisor."""
    q: object
    k: object
    do: object
    v: object
    q_strides: object
    k_strides: object
    do_strides: object
    v_strides: object
    group: object


@functools.cache
def kernel(config):
    """A tile of the gradient, or of a part of its sum, per block."""
    kind, shape, of_x, of_y = config.kind, config.shape, config.of_x, config.of_y
    terms, KEYS, HEIGHT, WIDTH = make_terms(kind), shape.keys, shape.height, shape.width
    X_PITCH, Y_PITCH, X_PARTS, PARTS = of_x.pitch, of_y.pitch, of_x.count, of_x.count + of_y.count
    STAGES, STAGE = config.stages, config.stage
    locate, key_bounds, next_item = make_items(kind, HEIGHT, WIDTH, config.masked)

    # ---- the ring of parts of operands

    load_q, load_k, load_do, load_v = (make_part_loader(source, parts, height, shape.count) for source, parts, height in (
        (config.q, of_x, HEIGHT), (config.k, of_x, WIDTH), (config.do, of_y, HEIGHT), (config.v, of_y, WIDTH)))
    landed, all_landed = wait_copies(STAGES - 2), wait_copies(0)

    @device_function
    def load_step(to, item, step, end, work, arrays, thread):
        """Issue the copies of a step of an item; gives the next one, and its item."""
        if item < end:
            b, h, i0, j0 = locate(item, work)
            kv_head, _ = divide_remainder(h, arrays.group)
            _, rows, _, keys = terms.lengths(b, work.sequences, work.rows, work.keys)
            if step < X_PARTS:
                of_q = advance(arrays.q, b * arrays.q_strides.batch + h * arrays.q_strides.head)
                load_q(to, of_q, step, i0, rows, arrays.q_strides, thread)
                of_k = advance(arrays.k, b * arrays.k_strides.batch + kv_head * arrays.k_strides.head)
                load_k(to + HEIGHT * X_PITCH, of_k, step, j0, keys, arrays.k_strides, thread)
            else:
                of_do = advance(arrays.do, b * arrays.do_strides.batch + h * arrays.do_strides.head)
                load_do(to, of_do, step - X_PARTS, i0, rows, arrays.do_strides, thread)
                of_v = advance(arrays.v, b * arrays.v_strides.batch + kv_head * arrays.v_strides.head)
                load_v(to + HEIGHT * Y_PITCH, of_v, step - X_PARTS, j0, keys, arrays.v_strides, thread)
            step = step + 1
            if step == PARTS:
                item, step = next_item(item + 1, end, work), 0
        commit_copies()
        return item, step

    @device_function
    def advance_ring(base, stage, item, step, end, work, arrays, thread):
        """Wait for the step in a stage of the ring, and issue one to the stage before it; gives what comes next there and here."""
        landed()
        cuda.syncthreads()
        before = stage - 1 if stage > 0 else STAGES - 1
        item, step = load_step(base + u32(before * STAGE), item, step, end, work, arrays, thread)
        return item, step, stage + 1 if stage < STAGES - 1 else 0

    # ---- scores and their gradient

    multiply_x, multiply_y = (make_product(kind.dtype, KEYS, of.width // 16, of.pitch) for of in (of_x, of_y))
    adjust, apply_mask = make_adjust(config.plain, KEYS), make_apply_mask(KEYS, config.left, config.right)
    apply_boolean_mask, mask_rows = make_apply_boolean_mask(KEYS), make_mask_rows(KEYS)
    (keep_bias, add_bias), load_stats = make_bias(kind.bias, KEYS, shape.count), make_stats(config.stats)
    (exponentials, begin, accumulate), apply_dropout = make_gradient(KEYS, kind.dropout), make_apply_dropout(KEYS)
    FRAGMENT, ADJUSTED, MASK, DROPOUT = KEYS // 2, config.adjusted, kind.mask, kind.dropout

    @device_function
    def finish_scores(x, x_low, row, first_key, column, i0, j0, rows, keys, shift, slope, scale, softcap, softmax_scale, bias, bias_strides,
                      bias_at, mask, mask_at, mask_strides, bounds):
        """Products of both fragments become scores by powers of two."""
        if ADJUSTED:
            adjust(x, row, row + shift, first_key, column, 0, 0, scale, slope, softcap, bias, i64(0), bias_strides)
            adjust(x_low, row + 16, row + shift + 16, first_key, column, 0, 0, scale, slope, softcap, bias, i64(0), bias_strides)
        add_bias(x, softmax_scale, bias_at)
        add_bias(x_low, softmax_scale, bias_at + BIAS_BYTES)
        if MASK:
            apply_boolean_mask(x, row, first_key, column, rows - 1, keys - 1, mask, mask_at, mask_strides)
            apply_boolean_mask(x_low, row + 16, first_key, column, rows - 1, keys - 1, mask, mask_at, mask_strides)
        _, _, last_begin, first_end = key_bounds(i0, rows, keys, bounds)
        if j0 + WIDTH > first_end or j0 < last_begin:
            apply_mask(x, row + shift, first_key, column, keys, bounds)
            apply_mask(x_low, row + shift + 16, first_key, column, keys, bounds)
        if i0 + HEIGHT > rows:
            mask_rows(x, row, rows)
            mask_rows(x_low, row + 16, rows)

    # ---- the kernel

    PITCH, COLUMNS, BIAS_AT, BIAS_BYTES = 4 * shape.pitch, shape.columns, config.bias_at, config.bias_bytes
    store_tile = make_store_tile(config.out, config.words, shape, config.over_rows, config.over_keys)

    @jit(launch_bounds=(shape.count, shape.blocks))
    def sdpa_dbias_mma(q, k, v, do, to, lse, stats, sizes, extent, items, key_tiles, row_tiles, heads_of, batches_of, key_items, row_items,
                       head_items, group, part_step, q_strides, k_strides, v_strides, do_strides, to_strides, lse_strides, of_rows, of_keys,
                       row_step, key_step, bias, bias_strides, mask, mask_strides, sink, sink_step, bounds, scale, softcap, seed, offset,
                       threshold, factor):
        memory = cuda.shared.array(0, u32)
        base = shared_address(memory, 0)
        thread = cuda.threadIdx.x
        lane, warp = thread & 31, thread >> 5
        seed = terms.seed_of(seed, offset)
        rest, key_tile = divide_remainder(cuda.blockIdx.x, key_tiles)
        rest, row_tile = divide_remainder(rest, row_tiles)
        rest, h0 = divide_remainder(rest, heads_of)
        part, b0 = divide_remainder(rest, batches_of)
        item, end = part * items.each, min(part * items.each + items.each, items.count)
        work = Work(b0, h0, row_tile, key_tile, key_items, row_items, head_items, Sequences(of_rows, of_keys, row_step, key_step),
                    sizes.rows, sizes.keys, bounds)
        arrays = Operands(q, k, do, v, q_strides, k_strides, do_strides, v_strides, group)

        item, stage = next_item(item, end, work), 0
        ahead, step = item, 0
        for slot in range(STAGES - 1):
            ahead, step = load_step(base + u32(slot * STAGE), ahead, step, end, work, arrays, thread)
        own_row, own_column = warp // COLUMNS * 32, warp % COLUMNS * KEYS
        column = (lane & 3) * 2
        down, across = own_row + (lane >> 2), own_column + column
        own_bias = base + BIAS_AT + u32(thread * 16)
        if item < end:
            head_at = b0 * bias_strides.batch + h0 * bias_strides.head
            for f in range(2):
                keep_bias(own_bias + u32(f * BIAS_BYTES), bias, head_at, bias_strides, row_tile * HEIGHT + down + 16 * f,
                          key_tile * WIDTH + across, sizes.rows - 1, sizes.keys - 1)
        a, a_y = u32(own_row * X_PITCH) + left_offset(lane, X_PITCH), u32(own_row * Y_PITCH) + left_offset(lane, Y_PITCH)
        b_x = u32((HEIGHT + own_column) * X_PITCH) + right_offset(lane, X_PITCH)
        b_y = u32((HEIGHT + own_column) * Y_PITCH) + right_offset(lane, Y_PITCH)
        softmax_scale = f32(LOG2E) if ADJUSTED else scale * LOG2E

        x, x_low, y, y_low = (cuda.local.array(FRAGMENT, f32), cuda.local.array(FRAGMENT, f32), cuda.local.array(FRAGMENT, f32),
                              cuda.local.array(FRAGMENT, f32))
        acc, acc_low = cuda.local.array(FRAGMENT, f32), cuda.local.array(FRAGMENT, f32)
        left, right = cuda.local.array(8, u32), cuda.local.array(4, u32)
        row_lse, deltas = cuda.local.array(4, f32), cuda.local.array(4, f32)
        for c in range(FRAGMENT):
            acc[c], acc_low[c] = f32(0), f32(0)
        while item < end:
            b, h, i0, j0 = locate(item, work)
            _, rows, _, keys = terms.lengths(b, work.sequences, sizes.rows, sizes.keys)
            row, first_key, shift = i0 + down, j0 + own_column, terms.shift(rows, keys)
            load_stats(row_lse, deltas, lse, b * lse_strides.batch + h * lse_strides.head, lse_strides.row, stats,
                       b * i64(sizes.heads) + h, sizes.padded, row, rows)

            # x = q k', and p = exp(x + bias - lse)
            for c in range(FRAGMENT):
                x[c], x_low[c] = f32(0), f32(0)
            for _ in range(X_PARTS):
                now = base + u32(stage * STAGE)
                ahead, step, stage = advance_ring(base, stage, ahead, step, end, work, arrays, thread)
                multiply_x(x, x_low, left, right, now + a, now + b_x)
            finish_scores(x, x_low, row, first_key, column, i0, j0, rows, keys, shift, terms.slope(h, sizes.heads), scale, softcap,
                          softmax_scale, bias, bias_strides, own_bias, mask, b * mask_strides.batch + h * mask_strides.head, mask_strides,
                          bounds)
            exponentials(x, row_lse, 0)
            exponentials(x_low, row_lse, 2)

            # y = do v', acc += p (y - delta)
            for part_y in range(PARTS - X_PARTS):
                now = base + u32(stage * STAGE)
                ahead, step, stage = advance_ring(base, stage, ahead, step, end, work, arrays, thread)
                if part_y == 0:
                    begin(y, deltas, 0)
                    begin(y_low, deltas, 2)
                multiply_y(y, y_low, left, right, now + a_y, now + b_y)
            if DROPOUT:
                head = b * sizes.heads + h
                apply_dropout(y, seed, head, row, first_key, lane, threshold, factor)
                apply_dropout(y_low, seed, head, row + 16, first_key, lane, threshold, factor)
            accumulate(acc, x, y, deltas, 0)
            accumulate(acc_low, x_low, y_low, deltas, 2)
            item = next_item(item + 1, end, work)

        all_landed()
        cuda.syncthreads()
        here = base + u32(down * PITCH) + u32(across * 4)
        for j in range(KEYS // 8):
            for h in range(2):
                k = 4 * j + 2 * h
                store_shared_2f32(here + u32(8 * h * PITCH + 32 * j), acc[k], acc[k + 1])
                store_shared_2f32(here + u32((8 * h + 16) * PITCH + 32 * j), acc_low[k], acc_low[k + 1])
        cuda.syncthreads()
        store_tile(base, advance(to, part * part_step + b0 * to_strides.batch + h0 * to_strides.head), to_strides,
                   row_tile * HEIGHT, key_tile * WIDTH, extent.rows, extent.keys, thread)
    return sdpa_dbias_mma

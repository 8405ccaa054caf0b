"""The bias's gradient on tensor cores (mma.sync): a block a tile of the gradient, which the pairs of tiles that share it pass.

    q, k; do, v, in parts --> x = q k', y = do v' --> p = exp(x + bias - level), sums += p (y - delta), in registers --> the tile

- A warp has 32 rows and 48 keys, as two fragments (`_fragments`), one 16 rows below the other: x, y and the sums, 144 registers. The same
  bias belongs to all that passes, so each thread reads its part once and keeps it in shared memory, for itself alone.
- *Items* are the pairs of a tile of rows and a tile of keys, of the images and heads that share the tile; with a bias that is the same for
  all rows, or keys, of all tiles of rows, or keys, too. Those of which no row sees a key are left out. An item is a few *steps*: parts of
  some columns of q and k, then of do and v. Steps pass a ring in shared memory (cp.async) without a stop between items.
- The tile leaves through shared memory, in whole rows, or summed over its rows or keys. Each sum has one order.
"""
import functools
from typing import NamedTuple

from ...device import cuda, device_function, f32, i32, i64, jit, u32
from ...device.convert import element
from ...device.cp_async import commit_copies, wait_copies
from ...device.fastmath import ex2, fma
from ...device.groups import make_writer
from ...device.index import divide_remainder
from ...device.ldmatrix import ldmatrix_x4
from ...device.mma import make_mma
from ...device.vec import (advance, load_shared_4f32, load_shared_4u32, load_shared_f32, shared_address, store_shared_2f32,
                           store_shared_4f32, store_shared_4u32, store_shared_f32)
from .._mma import left_offset, right_offset
from .._modifiers import make_adjust, make_apply_boolean_mask, make_apply_dropout, make_apply_mask
from .._parameters import Sequences
from .._scores import LOG2E, NEG_INF, load_row_lse, make_terms

GROUP = 8  # neighbours of a row that a thread stores


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
def make_leave_out(keys):
    """Device function ``leave_out(x, row, rows)``: scores of rows that are not there become -inf, whatever the bias there is."""
    @device_function
    def leave_out(x, row, rows):
        for k in range(keys // 2):
            if row + 8 * (k // 2 % 2) >= rows:
                x[k] = f32(NEG_INF)
    return leave_out


@functools.cache
def make_weigh(keys, dropout):
    """Device functions of a fragment, of whose two rows `levels` and `deltas` begin at `first`: ``exponentials(x, levels, first)``, scores
    become probabilities; ``begin(y, deltas, first)``, what products of do and v are added to; ``weigh(sums, p, y, deltas, first)`` adds the
    derivatives by the scores. Dropout changes the products before deltas are taken off; otherwise they begin with these."""
    @device_function
    def exponentials(x, levels, first):
        for k in range(keys // 2):
            x[k] = ex2(x[k] - levels[first + k // 2 % 2])

    @device_function
    def begin(y, deltas, first):
        for k in range(keys // 2):
            y[k] = f32(0) if dropout else -deltas[first + k // 2 % 2]

    @device_function
    def weigh(sums, p, y, deltas, first):
        for k in range(keys // 2):
            sums[k] = fma(p[k], y[k] - deltas[first + k // 2 % 2] if dropout else y[k], sums[k])
    return exponentials, begin, weigh


@functools.cache
def make_numbers(width):
    """Device function ``read(levels, deltas, lse, lse_at, lse_step, stats, line, padded, row, rows)``: those of a thread's four rows,
    from lse and the deltas of `_delta`, `padded` a head, or, with a `width`, from the stats of `dq` by tiles of so many rows."""
    @device_function
    def read(levels, deltas, lse, lse_at, lse_step, stats, line, padded, row, rows):
        for r in range(4):
            i = row + 8 * r
            if width:
                at = (line * padded + (i & -width)) * 2 + (i & (width - 1))
                levels[r], deltas[r] = stats[at], stats[at + width]
            else:
                levels[r], deltas[r] = load_row_lse(lse, lse_at + i * lse_step, i < rows), f32(0)
                if i < rows:
                    deltas[r] = stats[line * padded + i]
    return read


@functools.cache
def make_leave(out, words, shape, over_rows, over_keys):
    """Device function ``leave(base, to, strides, i0, j0, rows, keys, thread)``: the tile in shared memory to a result of so many rows and
    keys, summed up over what that is the same for."""
    HEIGHT, WIDTH, PITCH, COUNT = shape.height, shape.width, 4 * shape.pitch, shape.count
    put, store = make_writer(out, GROUP, words), element(out).store
    GROUPS = WIDTH // GROUP

    @device_function
    def along(base, count, step):
        total = f32(0)
        for k in range(count):
            total = f32(total + load_shared_f32(base + u32(k * step)))
        return total

    @device_function
    def leave_sums(base, to, strides, i0, j0, rows, keys, thread):
        if over_rows:
            if thread < WIDTH:
                total = along(base + u32(thread * 4), HEIGHT, PITCH)
                if over_keys:
                    store_shared_f32(base + u32(thread * 4), total)
                elif i32(j0 + thread) < keys:
                    store(to, i32(j0 + thread) * strides.column, total)
            if over_keys:
                cuda.syncthreads()
                if thread == 0:
                    store(to, i64(0), along(base, WIDTH, 4))
        elif thread < HEIGHT and i32(i0 + thread) < rows:
            store(to, i32(i0 + thread) * strides.row, along(base + u32(thread * PITCH), WIDTH, 4))

    @device_function
    def leave_rows(base, to, strides, i0, j0, rows, keys, thread):
        values = cuda.local.array(GROUP, f32)
        for index in range(thread, HEIGHT * GROUPS, COUNT):
            row, column = index // GROUPS, index % GROUPS * GROUP
            i, j, source = i0 + row, j0 + column, base + u32(row * PITCH) + u32(column * 4)
            if i < rows and j < keys:
                values[0], values[1], values[2], values[3] = load_shared_4f32(source)
                values[4], values[5], values[6], values[7] = load_shared_4f32(source + 16)
                at = advance(to, i * strides.row)
                if words:
                    put(at, j, values, 0)
                else:
                    for e in range(GROUP):
                        if j + e < keys:
                            store(at, (j + e) * strides.column, values[e])
    return leave_sums if over_rows or over_keys else leave_rows


class Tile(NamedTuple):
    """Of the gradient: the first image and head that share it, its tile of queries and of keys."""
    batch: i32
    head: i32
    row: i32
    key: i32


@functools.cache
def kernel(config):
    """A tile of the gradient, or of a part of its sum, a block."""
    kind, shape, of_x, of_y = config.kind, config.shape, config.of_x, config.of_y
    terms, find_hidden, KEYS = make_terms(kind), config.masked, shape.keys
    FRAGMENT = KEYS // 2
    load_q, load_k, load_do, load_v = config.loaders
    score, value = (make_product(kind.dtype, KEYS, of.width // 16, of.pitch) for of in (of_x, of_y))
    adjust, apply_mask, drop = make_adjust(config.plain, KEYS), make_apply_mask(KEYS, config.left, config.right), make_apply_dropout(KEYS)
    apply_boolean_mask, MASK = make_apply_boolean_mask(KEYS), kind.mask
    (keep, add), read_numbers = make_bias(kind.bias, KEYS, shape.count), make_numbers(config.stats)
    (exponentials, begin, weigh), leave_out = make_weigh(KEYS, kind.dropout), make_leave_out(KEYS)
    leave = make_leave(config.out, config.words, shape, config.over_rows, config.over_keys)
    HEIGHT, WIDTH, PITCH, COLUMNS = shape.height, shape.width, 4 * shape.pitch, shape.columns
    X_PARTS, PARTS, X_PITCH, Y_PITCH = of_x.count, of_x.count + of_y.count, of_x.pitch, of_y.pitch
    STAGES, STAGE, BIAS_AT, BIAS_BYTES = config.stages, config.stage, config.bias_at, config.bias_bytes
    ADJUSTED, DROPOUT = config.adjusted, kind.dropout
    landed, all_landed = wait_copies(STAGES - 2), wait_copies(0)

    @device_function
    def place_of(item, tile, spread):
        """(image, head, first row, first key) of an item."""
        of_keys, of_rows, of_heads = spread
        rest, kt = divide_remainder(item, of_keys)
        rest, rt = divide_remainder(rest, of_rows)
        b, h = divide_remainder(rest, of_heads)
        return tile.batch + b, tile.head + h, (tile.row + rt) * HEIGHT, (tile.key + kt) * WIDTH

    @device_function
    def seen_of(i0, rows, keys, bounds):
        """Keys that some row of a tile sees, first and last, and those that all of them see."""
        first, first_end = terms.key_range(i0, rows, keys, bounds)
        last_begin, last = terms.key_range(min(i0 + HEIGHT, rows) - 1, rows, keys, bounds)
        return first, min(last, keys), last_begin, first_end

    @device_function
    def find(item, end, s):
        """The first item from this one on in which a row sees a key."""
        tile, spread, sequences, sizes, bounds = s
        if find_hidden:
            hidden = item < end
            while hidden:
                b, _, i0, j0 = place_of(item, tile, spread)
                _, rows, _, keys = terms.lengths(b, sequences, sizes[0], sizes[1])
                first, last, _, _ = seen_of(i0, rows, keys, bounds)
                hidden = i0 >= rows or max(first, j0) >= min(last, j0 + WIDTH)
                if hidden:
                    item = item + 1
                    hidden = item < end
        return item

    @device_function
    def issue(to, item, step, end, s, t):
        """Brings a step of an item; gives the next one, and its item."""
        q, k, do, v, q_strides, k_strides, do_strides, v_strides, group, thread = t
        tile, spread, sequences, sizes, bounds = s
        if item < end:
            b, h, i0, j0 = place_of(item, tile, spread)
            g, _ = divide_remainder(h, group)
            _, rows, _, keys = terms.lengths(b, sequences, sizes[0], sizes[1])
            if step < X_PARTS:
                load_q(to, advance(q, b * q_strides.batch + h * q_strides.head), step, i0, rows, q_strides, thread)
                load_k(to + HEIGHT * X_PITCH, advance(k, b * k_strides.batch + g * k_strides.head), step, j0, keys,
                       k_strides, thread)
            else:
                step_y = step - X_PARTS
                load_do(to, advance(do, b * do_strides.batch + h * do_strides.head), step_y, i0, rows, do_strides, thread)
                load_v(to + HEIGHT * Y_PITCH, advance(v, b * v_strides.batch + g * v_strides.head), step_y, j0, keys,
                       v_strides, thread)
            step = step + 1
            if step == PARTS:
                item, step = find(item + 1, end, s), i32(0)
        commit_copies()
        return item, step

    @device_function
    def turn(base, stage, item, step, end, s, t):
        """Waits for the step in a stage of the ring, and brings one to the stage before it; gives what comes next there and here."""
        landed()
        cuda.syncthreads()
        before = stage - 1 if stage > 0 else STAGES - 1
        item, step = issue(base + u32(before * STAGE), item, step, end, s, t)
        return item, step, stage + 1 if stage < STAGES - 1 else 0

    @jit(launch_bounds=(shape.count, shape.blocks))
    def sdpa_dbias_mma(q, k, v, do, to, lse, stats, sizes, shape_of, counts, key_tiles, row_tiles, heads_of, batches_of, of_keys_tiles,
                       of_rows_tiles, of_heads, group, part_step, q_strides, k_strides, v_strides, do_strides, to_strides, lse_strides,
                       of_rows, of_keys, row_step, key_step, bias, bias_strides, mask, mask_strides, sink, sink_step, bounds, scale,
                       softcap, seed, offset, threshold, factor):
        memory = cuda.shared.array(0, u32)
        base = shared_address(memory, 0)
        thread = cuda.threadIdx.x
        lane, warp = thread & 31, thread >> 5
        seed = terms.seed_of(seed, offset)
        rest, kt = divide_remainder(cuda.blockIdx.x, key_tiles)
        rest, rt = divide_remainder(rest, row_tiles)
        rest, h0 = divide_remainder(rest, heads_of)
        part, b0 = divide_remainder(rest, batches_of)
        each, count = counts[0], counts[1]
        item, end = part * each, min(part * each + each, count)
        all_rows, all_keys, heads, padded = sizes
        tile = Tile(b0, h0, rt, kt)
        s = (tile, (of_keys_tiles, of_rows_tiles, of_heads), Sequences(of_rows, of_keys, row_step, key_step), (all_rows, all_keys), bounds)
        t = (q, k, do, v, q_strides, k_strides, do_strides, v_strides, group, thread)

        item, stage = find(item, end, s), i32(0)
        ahead, step = item, i32(0)
        for slot in range(STAGES - 1):
            ahead, step = issue(base + u32(slot * STAGE), ahead, step, end, s, t)
        own_row, own_column = warp // COLUMNS * 32, warp % COLUMNS * KEYS
        column = (lane & 3) * 2
        down, across = own_row + (lane >> 2), own_column + column
        bias_here = base + BIAS_AT + u32(thread * 16)
        if item < end:
            head_at = b0 * bias_strides.batch + h0 * bias_strides.head
            for f in range(2):
                keep(bias_here + u32(f * BIAS_BYTES), bias, head_at, bias_strides, rt * HEIGHT + down + 16 * f,
                     kt * WIDTH + across, all_rows - 1, all_keys - 1)
        a, a_y = u32(own_row * X_PITCH) + left_offset(lane, X_PITCH), u32(own_row * Y_PITCH) + left_offset(lane, Y_PITCH)
        b_x = u32((HEIGHT + own_column) * X_PITCH) + right_offset(lane, X_PITCH)
        b_y = u32((HEIGHT + own_column) * Y_PITCH) + right_offset(lane, Y_PITCH)
        softmax_scale = f32(LOG2E) if ADJUSTED else scale * LOG2E

        x, x_low, y, y_low = (cuda.local.array(FRAGMENT, f32), cuda.local.array(FRAGMENT, f32), cuda.local.array(FRAGMENT, f32),
                              cuda.local.array(FRAGMENT, f32))
        sums, sums_low = cuda.local.array(FRAGMENT, f32), cuda.local.array(FRAGMENT, f32)
        left, right = cuda.local.array(8, u32), cuda.local.array(4, u32)
        levels, deltas = cuda.local.array(4, f32), cuda.local.array(4, f32)
        for c in range(FRAGMENT):
            sums[c], sums_low[c] = f32(0), f32(0)
        while item < end:
            b, h, i0, j0 = place_of(item, s[0], s[1])
            _, rows, _, keys = terms.lengths(b, s[2], all_rows, all_keys)
            row, first_key, shift = i0 + down, j0 + own_column, terms.shift(rows, keys)
            read_numbers(levels, deltas, lse, b * lse_strides.batch + h * lse_strides.head, lse_strides.row, stats,
                         b * i64(heads) + h, padded, row, rows)
            for c in range(FRAGMENT):
                x[c], x_low[c] = f32(0), f32(0)
            for _ in range(X_PARTS):
                now = base + u32(stage * STAGE)
                ahead, step, stage = turn(base, stage, ahead, step, end, s, t)
                score(x, x_low, left, right, now + a, now + b_x)
            if ADJUSTED:
                slope = terms.slope(h, heads)
                adjust(x, row, row + shift, first_key, column, 0, 0, scale, slope, softcap, bias, i64(0), bias_strides)
                adjust(x_low, row + 16, row + shift + 16, first_key, column, 0, 0, scale, slope, softcap, bias,
                       i64(0), bias_strides)
            add(x, softmax_scale, bias_here)
            add(x_low, softmax_scale, bias_here + BIAS_BYTES)
            if MASK:
                mask_at = b * mask_strides.batch + h * mask_strides.head
                apply_boolean_mask(x, row, first_key, column, rows - 1, keys - 1, mask, mask_at, mask_strides)
                apply_boolean_mask(x_low, row + 16, first_key, column, rows - 1, keys - 1, mask, mask_at, mask_strides)
            _, _, last_begin, first_end = seen_of(i0, rows, keys, bounds)
            if j0 + WIDTH > first_end or j0 < last_begin:
                apply_mask(x, row + shift, first_key, column, keys, bounds)
                apply_mask(x_low, row + shift + 16, first_key, column, keys, bounds)
            if i0 + HEIGHT > rows:
                leave_out(x, row, rows)
                leave_out(x_low, row + 16, rows)
            exponentials(x, levels, 0)
            exponentials(x_low, levels, 2)
            for part_y in range(PARTS - X_PARTS):
                now = base + u32(stage * STAGE)
                ahead, step, stage = turn(base, stage, ahead, step, end, s, t)
                if part_y == 0:
                    begin(y, deltas, 0)
                    begin(y_low, deltas, 2)
                value(y, y_low, left, right, now + a_y, now + b_y)
            if DROPOUT:
                head = b * heads + h
                drop(y, seed, head, row, first_key, lane, threshold, factor)
                drop(y_low, seed, head, row + 16, first_key, lane, threshold, factor)
            weigh(sums, x, y, deltas, 0)
            weigh(sums_low, x_low, y_low, deltas, 2)
            item = find(item + 1, end, s)

        all_landed()
        cuda.syncthreads()
        here = base + u32(down * PITCH) + u32(across * 4)
        for j in range(KEYS // 8):
            for h in range(2):
                k = 4 * j + 2 * h
                store_shared_2f32(here + u32(8 * h * PITCH + 32 * j), sums[k], sums[k + 1])
                store_shared_2f32(here + u32((8 * h + 16) * PITCH + 32 * j), sums_low[k], sums_low[k + 1])
        cuda.syncthreads()
        leave(base, advance(to, part * part_step + b0 * to_strides.batch + h0 * to_strides.head), to_strides,
              rt * HEIGHT, kt * WIDTH, shape_of[0], shape_of[1], thread)
    return sdpa_dbias_mma

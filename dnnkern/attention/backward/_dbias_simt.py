"""The bias's gradient in float32, on CUDA cores: one tile of the gradient per block, which the pairs of tiles that share it pass.

    q, k --> x = q k' --> p = exp(score - lse);  do, v --> y = do v' --> acc += p (y - delta), in registers --> the tile

- Tiles of q and k, whole rows, lie in shared memory (`_simt`); those of do and v come to where they were, while x becomes p.
- Blocks of a multiprocessor hide each other's loads. The tile leaves through shared memory; each sum has one order.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, device_function, f32, i64, jit, u32
from ...device.cp_async import commit_copies, wait_copies
from ...device.index import divide_remainder
from ...device.unroll import unrolled
from ...device.vec import advance, shared_address
from .._flash import make_powers
from .._modifiers import Dropout, Scoring
from .._parameters import Kind, Sequences
from .._scores import load_row_lse, make_attends, make_terms
from .._simt import Mask, Sequence, Source, Threads, make_loader, make_products, padded, pitch_of
from ._dbias_items import Work, make_items, make_store_tile

RESIDENT = 256  # threads of a multiprocessor at least: what it has registers for with every option


@dataclass(frozen=True)
class Shape(Threads):
    """Threads of a block."""

    @property
    def blocks(self):
        """Of a multiprocessor."""
        return RESIDENT // self.count

    @property
    def pitch(self):
        """Floats from one row of the tile to the next when it leaves."""
        return self.width + 4


SHAPES = (Shape(4, 4, 16, 8), Shape(4, 4, 8, 4))


@dataclass(frozen=True)
class Config:
    """The options, how arrays are read, whether the window has a left and a right bound; a shape; where lse and deltas are (`make_stats`);
    what the result is: its dtype, the 32-bit words of stores to it, and whether it is a sum over rows and over keys."""
    kind: Kind
    q: Source
    k: Source
    do: Source
    v: Source
    left: bool
    right: bool
    shape: Shape
    stats: int
    out: str
    words: int
    over_rows: bool
    over_keys: bool

    @property
    def depth(self):
        """Columns of the tiles of q and k."""
        return padded(self.q.elements, 4)

    @property
    def width(self):
        """Columns of the tiles of do and v."""
        return padded(self.v.elements, 4)

    @property
    def masked(self):
        """Whether there may be tiles in which no query attends to a key."""
        return self.left or self.right or self.kind.limits_rows or self.kind.limits_keys

    @property
    def shared(self):
        """Dynamic shared memory, bytes: the tiles, where the gradient's lies in the end."""
        s = self.shape
        return 4 * max((s.height + s.width) * pitch_of(max(self.depth, self.width), "float32"), s.height * s.pitch)


@functools.cache
def make_stats(width):
    """Device function ``load(lse, at, stats, line, padded, i, exists)`` -> lse, as a power of two, and delta of row i, from lse and the
    deltas of `_delta`, `padded` per head, or, with a `width`, from the stats of `flash_wgmma.workspace`."""
    @device_function
    def load(lse, at, stats, line, padded, i, exists):
        row_lse, delta = load_row_lse(lse, at, exists and not width), f32(0)
        if width:
            where = (line * padded + (i & -width)) * 2 + (i & (width - 1))
            if exists:
                row_lse, delta = stats[where], stats[where + width]
        elif exists:
            delta = stats[line * padded + i]
        return row_lse, delta
    return load


@functools.cache
def kernel(config):
    """A tile of the gradient, or of a part of its sum, per block."""
    kind, t = config.kind, config.shape
    terms, attends, powers = make_terms(kind), make_attends(kind), make_powers("float32")
    ROWS, COLUMNS, LANES, HEIGHT, WIDTH, THREADS = t.rows, t.columns, t.lanes, t.height, t.width, t.count
    DEPTH, SPAN = config.depth, config.width
    X_PITCH, Y_PITCH, TILE_PITCH, SCORES = pitch_of(DEPTH, "float32"), pitch_of(SPAN, "float32"), t.pitch, ROWS * COLUMNS
    locate, key_bounds, next_item = make_items(kind, HEIGHT, WIDTH, config.masked)
    load_q, load_k = make_loader(config.q, HEIGHT, DEPTH, X_PITCH, THREADS), make_loader(config.k, WIDTH, DEPTH, X_PITCH, THREADS)
    load_do, load_v = make_loader(config.do, HEIGHT, SPAN, Y_PITCH, THREADS), make_loader(config.v, WIDTH, SPAN, Y_PITCH, THREADS)
    transposed, _ = make_products(t, "float32")
    product, landed, load_stats = transposed(0), wait_copies(0), make_stats(config.stats)
    store_tile = make_store_tile(config.out, config.words, t, config.over_rows, config.over_keys)
    MASK, DROPOUT = kind.mask, kind.dropout

    @device_function
    def probabilities(r, s):
        """A row of the thread: products become probabilities."""
        x, row_lse, i0, j0, whole, sequence, scoring, mask = s
        for c in range(COLUMNS):
            i, j, k = i0 + r, j0 + c * LANES, r * COLUMNS + c
            visible, p = i < sequence.rows and (whole or attends(i, j, sequence.shift, sequence.keys, sequence.bounds)), f32(0)
            if MASK and visible:
                visible = terms.permits(mask.data, mask.at + i * mask.strides.row + j * mask.strides.column)
            if visible:
                at = scoring.bias_at + i * scoring.bias_strides.row + j * scoring.bias_strides.column
                score = terms.score(x[k], j - i - scoring.shift, scoring.slope, scoring.bias, at, scoring.scale, scoring.softcap)
                p = powers.rise(score, row_lse[r])
            x[k] = p
    probabilities_all = unrolled(ROWS, probabilities)

    @device_function
    def accumulate(r, s):
        acc, x, y, deltas, i0, j0, dropout = s
        for c in range(COLUMNS):
            k = r * COLUMNS + c
            share = y[k]
            if DROPOUT:
                share = share * terms.kept(f32(1), dropout.seed, dropout.head, i0 + r, j0 + c * LANES, dropout.threshold, dropout.factor)
            acc[k] = acc[k] + x[k] * (share - deltas[r])
    accumulate_all = unrolled(ROWS, accumulate)

    @jit(launch_bounds=(THREADS, t.blocks))
    def sdpa_dbias_simt(q, k, v, do, to, lse, stats, sizes, extent, items, key_tiles, row_tiles, heads_of, batches_of, key_items, row_items,
                        head_items, group, part_step, q_strides, k_strides, v_strides, do_strides, to_strides, lse_strides, of_rows,
                        of_keys, row_step, key_step, bias, bias_strides, mask, mask_strides, sink, sink_step, bounds, scale, softcap, seed,
                        offset, threshold, factor):
        memory = cuda.shared.array(0, f32)
        base = shared_address(memory, 0)
        thread = cuda.threadIdx.x
        lane, line = thread % LANES, thread // LANES
        seed = terms.seed_of(seed, offset)
        rest, key_tile = divide_remainder(cuda.blockIdx.x, key_tiles)
        rest, row_tile = divide_remainder(rest, row_tiles)
        rest, h0 = divide_remainder(rest, heads_of)
        part, b0 = divide_remainder(rest, batches_of)
        item, end = part * items.each, min(part * items.each + items.each, items.count)
        work = Work(b0, h0, row_tile, key_tile, key_items, row_items, head_items, Sequences(of_rows, of_keys, row_step, key_step),
                    sizes.rows, sizes.keys, bounds)
        own = line * ROWS
        acc, x, y = cuda.local.array(SCORES, f32), cuda.local.array(SCORES, f32), cuda.local.array(SCORES, f32)
        row_lse, deltas = cuda.local.array(ROWS, f32), cuda.local.array(ROWS, f32)
        for c in range(SCORES):
            acc[c] = f32(0)

        item = next_item(item, end, work)
        while item < end:
            b, h, i0, j0 = locate(item, work)
            kv_head, _ = divide_remainder(h, group)
            _, rows, _, keys = terms.lengths(b, work.sequences, sizes.rows, sizes.keys)
            shift, lse_at = terms.shift(rows, keys), b * lse_strides.batch + h * lse_strides.head
            for r in range(ROWS):
                i = i0 + own + r
                row_lse[r], deltas[r] = load_stats(lse, lse_at + i * lse_strides.row, stats, b * i64(sizes.heads) + h, sizes.padded, i,
                                                   i < rows)

            # x = q k', and p = exp(score - lse)
            load_q(base, advance(q, b * q_strides.batch + h * q_strides.head), i0, rows, (q_strides.row, q_strides.column), thread)
            load_k(base + u32(4 * HEIGHT * X_PITCH), advance(k, b * k_strides.batch + kv_head * k_strides.head), j0, keys,
                   (k_strides.row, k_strides.column), thread)
            commit_copies()
            for c in range(SCORES):
                x[c], y[c] = f32(0), f32(0)
            landed()
            cuda.syncthreads()
            product(x, base + u32(4 * own * X_PITCH), base + u32(4 * (HEIGHT + lane) * X_PITCH), X_PITCH, DEPTH // 4)
            cuda.syncthreads()
            load_do(base, advance(do, b * do_strides.batch + h * do_strides.head), i0, rows, (do_strides.row, do_strides.column), thread)
            load_v(base + u32(4 * HEIGHT * Y_PITCH), advance(v, b * v_strides.batch + kv_head * v_strides.head), j0, keys,
                   (v_strides.row, v_strides.column), thread)
            commit_copies()
            _, _, last_begin, first_end = key_bounds(i0, rows, keys, bounds)
            whole = j0 + WIDTH <= first_end and j0 >= last_begin
            scoring = Scoring(shift, terms.slope(h, sizes.heads), bias, b * bias_strides.batch + h * bias_strides.head, bias_strides,
                              rows - 1, keys - 1, scale, softcap)
            probabilities_all(0, (x, row_lse, i0 + own, j0 + lane, whole, Sequence(rows, keys, shift, bounds), scoring,
                                  Mask(mask, b * mask_strides.batch + h * mask_strides.head, mask_strides)))

            # y = do v', acc += p (y - delta)
            landed()
            cuda.syncthreads()
            product(y, base + u32(4 * own * Y_PITCH), base + u32(4 * (HEIGHT + lane) * Y_PITCH), Y_PITCH, SPAN // 4)
            accumulate_all(0, (acc, x, y, deltas, i0 + own, j0 + lane, Dropout(seed, b * sizes.heads + h, threshold, factor)))
            cuda.syncthreads()
            item = next_item(item + 1, end, work)

        for r in range(ROWS):
            for c in range(COLUMNS):
                memory[(own + r) * TILE_PITCH + lane + c * LANES] = acc[r * COLUMNS + c]
        cuda.syncthreads()
        store_tile(base, advance(to, part * part_step + b0 * to_strides.batch + h0 * to_strides.head), to_strides,
                   row_tile * HEIGHT, key_tile * WIDTH, extent.rows, extent.keys, thread)
    return sdpa_dbias_simt

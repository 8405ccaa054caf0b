"""Tensor cores from Ampere on: a warp 16 rows, scores in registers, and the walk over tiles of keys that `flash_simt` takes.

    q, k -- shared memory (cp.async), matrix loads --> scores (mma.sync) -- exponentials in registers --> 16 bits, as the next product wants
    them on its left -- v, matrix loads --> sums (mma.sync) --> o

- A thread has parts of two rows of the scores (`_fragments`); no probability passes through shared memory.
- The next tile of k is under way while exponentials and sums are computed, that of v during the scores. Two barriers a tile of keys; blocks
  on the same multiprocessor fill each other's gaps.
- Tiles of keys that no row of the block sees are left out, and masks are applied where some row sees a part. Blocks with the most keys come
  first.

Every option, packed sequences too; rows of 16 bytes are copied asynchronously, any others element by element. 8-bit floats become float16
on their way to shared memory, exactly, and so do probabilities.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, device_function, f32, i32, jit, u32, u64
from ...device.convert import element
from ...device.cp_async import commit_copies, wait_copies
from ...device.fastmath import rcp
from ...device.index import Divisor, divisor
from ...device.vec import shared_address
from ...dispatch import Algorithm, Note
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap, sm_issue_seconds
from ...host.launch import Argument, Launch
from ...host.products import FP8
from .._addresses import row_strides_argument, strides_argument
from .._flash import fits, lines_arguments, refusal, tiles_of
from .._fragments import (SLACK, make_factors, make_normalize_rows, make_online_softmax, make_pack, make_row_maxima, make_single_store,
                          make_store, scale_rows, stored_in_pairs)
from .._mma import (Source, left_offset, make_loader, make_gemm, make_gemm_rs, mma_rate, right_offset, source_of,
                    right_offset_transposed, walk_seconds)
from .._modifiers import is_adjusted, make_adjust, make_apply_boolean_mask, make_apply_dropout, make_apply_mask
from .._parameters import (Kind, Sequences, added_arguments, block_mask_arguments, kind_of, number_arguments, scale_arguments, scaled,
                           sequence_arguments)
from .._quantization import Quantized, quantization_argument, quantized, reset_launches
from .._score_mod import document_bytes, document_launches
from .._scores import LOG2E, LOG_BLOCK, NEG_INF, is_block_there, make_memory, make_next_tile, make_terms
from ._parts import Outputs, Softmax
from ._tiles import Grid, make_locate

COST = constants("attention/mma")

DTYPES = "float16", "bfloat16", *FP8


@dataclass(frozen=True)
class Threads:
    """Of a block: `warps` of 16 rows each; `width` keys at a time; blocks a multiprocessor is to hold."""
    warps: int
    width: int
    blocks: int

    @property
    def height(self):
        return 16 * self.warps

    @property
    def count(self):
        return 32 * self.warps


SHAPES = (Threads(8, 64, 1), Threads(4, 64, 2), Threads(4, 64, 3), Threads(4, 32, 2))


@dataclass(frozen=True)
class Config:
    """The options, how arrays are read and written, and a shape; whether the window has a left and a right bound, and whether scores are
    more than scaled products; o's dtype, which of q, k and v have a factor, and which factors and maxima of `_quantization` there are."""
    kind: Kind
    q: Source
    k: Source
    v: Source
    threads: Threads
    left: bool
    right: bool
    adjusted: bool
    lse: bool
    pairs: bool
    out: str
    scaled: tuple
    quantized: Quantized

    @property
    def shared(self):
        """Bytes of the tiles of q, k and v."""
        t = self.threads
        return (t.height + t.width) * self.q.pitch + t.width * self.v.pitch

    @property
    def registers(self):
        """About how many a thread needs."""
        t = self.threads
        return t.width // 2 + t.width // 4 + self.v.width // 2 + 52 + 24 * (self.adjusted or self.kind.dropout or self.kind.mask)

    def __str__(self):
        return f"{self.threads.height}x{self.threads.width} x{self.threads.blocks}"


def supports(problem):
    """16-bit and 8-bit heads of up to 256 elements."""
    if problem.dtype not in DTYPES:
        return f"dtype {problem.dtype}; expected one of {', '.join(DTYPES)}"
    if problem.amax_s is not None and problem.dropout:
        return f"amax_s with dropout {problem.dropout:g}: the largest score may be dropped"
    return refusal(problem, "block_mask") or fits(problem, 64)


def configs(problem, device):
    """Shapes that fit registers and shared memory."""
    p, found = problem, []
    sources = [source_of(t, p.strides(t)) for t in (p.q, p.k, p.v)]
    for t in SHAPES:
        config = Config(kind_of(p), *sources, t, p.left >= 0, p.right >= 0, is_adjusted(p), p.lse is not None, stored_in_pairs(p, p.o),
                        p.o.dtype, scaled(p), quantized(p))
        if (config.shared <= device.shared_per_block and t.blocks * (config.shared + 1024) <= device.shared_per_sm
                and config.registers <= min(65536 // (t.blocks * t.count), 255)):
            found.append(config)
    return found


def lack(problem, device):
    """Why no shape fits, or None."""
    if configs(problem, device):
        return None
    return f"heads of {problem.q.shape[-1]} and {problem.v.shape[-1]}: no tile fits {device.shared_per_block} bytes of shared memory"


def workspace(problem, device, config):
    """The bits of a mask by documents."""
    return document_bytes(problem)


def estimate(problem, device, config):
    """Multiply-adds of whole tiles, and the instructions for exponentials, by how many warps a multiprocessor has."""
    p, t = problem, config.threads
    blocks = p.images * p.heads * tiles_of(p, p.rows, t.height)
    keys = p.pairs * p.heads / max(blocks, 1) / t.height + t.width / 2  # of a block
    rate = mma_rate(device)
    issues = (COST.score + COST.read * (bool(config.kind.bias) + config.kind.mask) + COST.alibi * p.alibi + COST.softcap * (p.softcap > 0)
              + COST.dropout * (p.dropout > 0) + p.score_instructions)  # of a score
    step = t.height * t.width * ((config.q.width + config.v.width) / (COST.fwd * rate / device.sms)
                                 + issue_seconds(issues, device.sms, device))
    slow = sum((COST.slow if not s.wide else COST.small if s.small else 0) * s.width for s in (config.k, config.v))
    math = walk_seconds(blocks, keys / t.width, step, t.width * sm_issue_seconds(slow, device), COST.latency, config, device)
    return LAUNCH + overlap(math=math, memory=memory_seconds(p.bytes, device))


@functools.cache
def kernel(config):
    """A tile of rows of one head a block."""
    kind, t = config.kind, config.threads
    terms, (locate, keys_of) = make_terms(kind), make_locate(kind, t.height, t.width if kind.block_mask else 8 if kind.dropout else 1)
    WIDTH, HEIGHT, THREADS = t.width, t.height, t.count
    Q_PITCH, V_PITCH, STEPS, E = config.q.pitch, config.v.pitch, config.q.width // 16, config.v.width
    K_AT = HEIGHT * Q_PITCH
    V_AT = K_AT + WIDTH * Q_PITCH
    SCORES, SUMS, WORDS = WIDTH // 2, E // 2, WIDTH // 4
    SINK, WITH_LSE, ADJUSTED, DROPOUT = bool(kind.sink), config.lse, config.adjusted, kind.dropout
    memory_of, load_q = make_memory(kind.ragged, kind.paged), make_loader(config.q, HEIGHT, THREADS)
    load_k, load_v = (make_loader(s, WIDTH, THREADS, memory_of.key_at) for s in (config.k, config.v))
    PRODUCT = "float16" if kind.dtype in FP8 else kind.dtype
    multiply, weigh = make_gemm(PRODUCT, STEPS, WIDTH, Q_PITCH), make_gemm_rs(PRODUCT, WIDTH // 16, E, V_PITCH)
    online_softmax = make_online_softmax(WIDTH, WIDTH // 2, exact=config.quantized.amax_s)
    normalize_rows, factors, MOST = make_normalize_rows(SINK), make_factors(config.quantized), 4 if config.quantized.amax_s else 2
    largest_probabilities, raise_maxima = make_row_maxima(config.quantized, SUMS)
    (SCALED_Q, SCALED_K, SCALED_V), QUANTIZED = config.scaled, any(config.quantized)
    apply_mask = make_apply_mask(WIDTH, config.left, config.right)
    adjust, apply_dropout = make_adjust(kind, WIDTH) if ADJUSTED else None, make_apply_dropout(WIDTH) if DROPOUT else None
    apply_boolean_mask, MASK = make_apply_boolean_mask(WIDTH), kind.mask
    pack = make_pack(PRODUCT, WORDS)
    store = (make_store if config.out in ("float16", "bfloat16") else make_single_store)(config.out, E, config.v.elements, config.pairs)
    load_sink, landed = element(kind.sink or kind.dtype).load, wait_copies(0)
    BLOCKS, next_tile = kind.block_mask, make_next_tile(kind.block_mask)

    @device_function
    def next_there(key, end, image, i0, operands):
        """The first tile of keys from this one on whose documents may be those of the queries; `end` or more if there is none."""
        while key < end and not terms.is_there(operands, image, i0, HEIGHT, key, WIDTH):
            key = key + WIDTH
        return key

    @device_function
    def finish(acc, softmax, row, column, outputs, tile, sink, sink_at, scale, o_scale, quantization):
        """The thread's rows are divided by their sums and stored."""
        sink_logit = f32(0)
        if SINK:
            sink_logit = f32(load_sink(sink, sink_at))
        normalize_rows(softmax.ref_max, softmax.row_sum, softmax.rescale, sink_logit)
        if SCALED_V or QUANTIZED:
            maxima = cuda.local.array(2, f32)
            maxima[0], maxima[1] = f32(0), f32(0)
            largest_probabilities(softmax.most, softmax.ref_max, softmax.rescale, scale)
            for h in range(2):
                softmax.rescale[h] = softmax.rescale[h] * o_scale
            raise_maxima(maxima, acc, softmax.most, softmax.rescale, row, tile.rows)
            factors.raise_by_warp(quantization, maxima)
            for h in range(2):
                softmax.rescale[h] = softmax.rescale[h] * factors.of_output(quantization)
        for h in range(2):
            if row + 8 * h >= tile.rows:
                softmax.rescale[h], softmax.row_sum[h] = f32(0), f32(NEG_INF)
        o = memory_of.rows_of(outputs.o, outputs.o_strides, tile.image, tile.h, tile.first_row, tile.rows)
        store(acc, softmax.rescale, o, outputs.o_strides, row, memory_of.written(outputs.o_strides, tile.rows, tile.written), column)
        if WITH_LSE and column == 0:
            lse = memory_of.rows_of(outputs.lse, outputs.lse_strides, tile.image, tile.h, tile.first_row, tile.rows)
            written = memory_of.written(outputs.lse_strides, tile.rows, tile.written)
            for h in range(2):
                if row + 8 * h < written:
                    lse[(row + 8 * h) * outputs.lse_strides.row] = softmax.row_sum[h]

    @jit(launch_bounds=(THREADS, t.blocks))
    def sdpa_fwd_flash_mma(q, k, v, o, lse, sizes, lines, heads_of, tiles, group_of_heads, q_strides, k_strides, v_strides, o_strides,
                           lse_strides, of_rows, of_keys, row_step, key_step, bias, bias_strides, mask, mask_strides, sink, sink_step,
                           bounds, scale, softcap, seed, offset, threshold, factor, block_mask, block_strides, scale_q, scale_k, scale_v,
                           quantization):
        memory = cuda.shared.array(0, u32)
        base = shared_address(memory, 0)
        thread = cuda.threadIdx.x
        lane, warp = thread & 31, thread >> 5
        seed = terms.seed_of(seed, offset)
        tile = locate(Grid(lines, heads_of, tiles, group_of_heads, sizes), Sequences(of_rows, of_keys, row_step, key_step))
        if tile.i0 >= 0 and tile.i0 < tile.written:
            span, rows, keys = keys_of(tile, bounds), tile.rows, tile.keys
            slope = terms.slope(tile.h, i32(heads_of.d))
            of_q = memory_of.rows_of(q, q_strides, tile.image, tile.h, tile.first_row, tile.rows)
            of_k = memory_of.keys_of(k, k_strides, tile.image, tile.kv_head, tile.first_key, keys)
            of_v = memory_of.keys_of(v, v_strides, tile.image, tile.kv_head, tile.first_key, keys)
            q_steps, k_steps = (q_strides.row, q_strides.column), memory_of.steps(k_strides, tile.image)
            v_steps = memory_of.steps(v_strides, tile.image)
            of_head = terms.of_head(bias, tile.image, tile.h)
            bias_at = tile.image * bias_strides.batch + tile.h * bias_strides.head
            mask_at = tile.image * mask_strides.batch + tile.h * mask_strides.head
            q_at = base + u32(warp * 16 * Q_PITCH) + left_offset(lane, Q_PITCH)
            k_at = base + K_AT + right_offset(lane, Q_PITCH)
            v_at = base + V_AT + right_offset_transposed(lane, V_PITCH)
            row, column = tile.i0 + warp * 16 + (lane >> 2), (lane & 3) * 2
            position = row + tile.shift
            o_scale = f32(1)
            if SCALED_Q:
                scale = scale * scale_q[0]
            if SCALED_K:
                scale = scale * scale_k[0]
            if SCALED_V:
                o_scale = scale_v[0]
            if QUANTIZED:
                o_scale = o_scale * factors.of_result(quantization)
            softmax_scale = f32(LOG2E) if ADJUSTED else scale
            slack = SLACK * rcp(softmax_scale)

            x, acc, words = cuda.local.array(SCORES, f32), cuda.local.array(SUMS, f32), cuda.local.array(WORDS, u32)
            left, right = cuda.local.array(4, u32), cuda.local.array(4, u32)
            softmax = Softmax(cuda.local.array(2, f32), cuda.local.array(2, f32), cuda.local.array(2, f32), cuda.local.array(2, f32),
                              cuda.local.array(MOST, f32))
            for c in range(SUMS):
                acc[c] = f32(0)
            for r in range(2):
                softmax.row_max[r], softmax.ref_max[r], softmax.row_sum[r] = f32(NEG_INF), f32(0), f32(0)
                if MOST > 2:
                    softmax.most[2 + r] = f32(NEG_INF)
            blocks_at = tile.image * block_strides.batch + tile.h * block_strides.head + (tile.i0 >> LOG_BLOCK) * block_strides.row
            first = next_tile(span.begin, span.end, block_mask, blocks_at, block_strides)
            if terms.skips():
                first = next_there(span.begin, span.end, tile.image, tile.i0, bias)
                following = first
            if first < span.end:
                load_q(base, of_q, tile.i0, rows, q_steps, thread)
                load_k(base + K_AT, of_k, first, keys, k_steps, thread)
                commit_copies()
                landed()
                cuda.syncthreads()
                load_v(base + V_AT, of_v, first, keys, v_steps, thread)
                commit_copies()
            for key in range(first, span.end, WIDTH):
                if BLOCKS:
                    if not is_block_there(block_mask, blocks_at, key, block_strides):
                        continue
                if terms.skips():
                    if key < following:
                        continue
                for c in range(SCORES):
                    x[c] = f32(0)
                multiply(x, left, right, q_at, k_at)
                landed()
                cuda.syncthreads()  # v has come, k is free
                following = next_tile(key + WIDTH, span.end, block_mask, blocks_at, block_strides)
                if terms.skips():
                    following = next_there(i32(key + WIDTH), span.end, tile.image, tile.i0, bias)
                if following < span.end:
                    load_k(base + K_AT, of_k, following, keys, k_steps, thread)
                commit_copies()

                if ADJUSTED:
                    adjust(x, row, position, key, column, rows - 1, keys - 1, scale, slope, softcap, of_head, bias_at, bias_strides)
                if MASK:
                    apply_boolean_mask(x, row, i32(key), column, rows - 1, keys - 1, mask, mask_at, mask_strides)
                if key + WIDTH > span.full_end or key < span.full_begin:
                    apply_mask(x, position, key, column, keys, bounds)
                if online_softmax(x, softmax.most, softmax.row_max, softmax.ref_max, softmax.row_sum, softmax.rescale, softmax_scale,
                                  slack):
                    scale_rows(acc, E // 8, softmax.rescale)
                if DROPOUT:
                    apply_dropout(x, seed, tile.head, row, key, lane, threshold, factor)
                pack(words, x)
                weigh(acc, words, right, v_at)
                landed()
                cuda.syncthreads()  # k has come, v is free
                if following < span.end:
                    load_v(base + V_AT, of_v, following, keys, v_steps, thread)
                commit_copies()
            finish(acc, softmax, row, column, Outputs(u64(0), o, o_strides, lse, lse_strides), tile, sink, tile.h * sink_step,
                   softmax_scale, o_scale, quantization)
    return sdpa_fwd_flash_mma


def build(problem, device, config):
    """One launch, a block for each tile of rows, after that of documents."""
    p, t = problem, config.threads
    tiles = tiles_of(p, p.rows, t.height)
    bounds, scale, *others = number_arguments(p)
    if not config.adjusted:
        scale = Argument("float32", p.scale * LOG2E)
    arguments = (*(Argument(element(getattr(p, name).dtype).pointer, name) for name in ("q", "k", "v", "o")),
                 Argument("float32*", "lse" if p.lse else "o"), Argument("int32x3", (p.batch, p.rows, p.keys)),
                 *lines_arguments(p, p.heads, tiles), Argument(Divisor, divisor(p.group)),
                 *(strides_argument(p, name) for name in ("q", "k", "v", "o")),
                 row_strides_argument(p), *sequence_arguments(p), *added_arguments(p, 0), bounds, scale, *others,
                 *block_mask_arguments(p), *scale_arguments(), quantization_argument(p))
    main = Launch(kernel(config), (tiles * p.images * p.heads, 1, 1), (t.count, 1, 1), arguments, shared=config.shared)
    return *reset_launches(p), *document_launches(p, 0), main


ALGORITHM = Algorithm(op="sdpa_fwd", name="flash_mma", supports=supports, workspace=workspace, configs=configs, estimate=estimate,
                      build=build, fits=lack, notes=Note.TENSOR_CORE, arch="sm_80+", programs=True)

"""GEMV: products with up to eight rows (or columns). Every weight is read once, by 16-byte loads, and no tile is padded.

y[m, n] = sum_k x[m, k] w[k, n] with M up to 8; with few columns instead of rows the transposed product is computed. Reading w takes all the
time, so each thread's loads are wide, independent and issued together, and the arithmetic has to fit beside them:

- w contiguous along k (`weights @ x`, linear layers): a block owns `rows` columns n, its lanes run along k, each `unroll` chunks at a
  time. A chunk of x serves all `rows`, so x costs M loads for `rows` loads of w; the sums over lanes are formed once, at the end.
- w contiguous along n: a thread owns the columns of one chunk and as many consecutive k as a chunk has elements; `lanes` neighbours make
  whole sectors, the other lanes and the warps take other k.

A chunk is one load. x and w stay packed in registers and are widened word by word, between the multiply-adds: unpacked up front they would
take the registers that loads in flight need. int8 is multiplied by dp4a; 8-bit floats, whose two operands may differ in type, become
float32 by way of float16. Wins for M or N up to 8; from 16 on tensor cores or tiles do.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, device_function, f32, f64, i32, jit, u8, u32
from ..device.convert import element
from ..device.dot import dot4
from ..device.epilogue import EpilogueSpec, ScaledParams, make_epilogue
from ..device.fastmath import minimum
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.numeric import bits_float, words_double
from ..device.program_batches import make_placed
from ..device.unroll import unrolled
from ..device.vec import advance, as_u32, load1_nc_if, load1_nc_if_into, load2_nc_if_into, load4_nc_if_into
from ..dispatch import Algorithm
from ..engine.ahead import make_begin
from ..engine.batch import make_batch_offsets
from ..engine.constants import constants
from ..engine.cost import Cost, overlap
from ..engine.programs import program_argument
from ..engine.roles import operand_strides, roles, widest
from ..engine.scales import FP8
from ..engine.simt import HALVES
from ..engine.simt_plan import addends_refusal
from ..host.launch import Argument, Launch
from ._parameters import AStrides, BStrides, YStrides
from ._reduce import make_halving

COST, MOST_ROWS = constants("matmul/gemv"), 8


@dataclass(frozen=True)
class Config:
    """m rows of x; w is read `words` 32-bit words at a time, along k or along n; x likewise, or element by element.

    rows, unroll, warps: see the module; `lanes`: neighbouring threads along n; `blocks` should fit on a multiprocessor; `whole`: no load
    reaches past the end of k; `edge`: the last block's rows reach past n; `dependent`: launched while the grid before it runs."""
    dtype: str
    dtype_w: str
    m: int
    along_k: int
    words: int
    x_packed: int
    rows: int
    unroll: int
    warps: int
    lanes: int
    blocks: int
    whole: int
    edge: int
    batch_dims: int
    epilogue: EpilogueSpec
    dependent: bool = False

    def __post_init__(self):
        if not 1 <= self.m <= MOST_ROWS or self.words not in (1, 2, 4) or not 1 <= self.warps <= 16:
            raise ValueError(f"{self.m} rows of x (1 to {MOST_ROWS}), {self.words} words (1, 2, 4), {self.warps} warps (1 to 16)")

    @property
    def elements(self):
        """Elements of a chunk."""
        return 4 * self.words // element(self.dtype).storage.itemsize


def _parts(problem):
    """The problem with its few rows as m."""
    return roles(problem, problem.m > MOST_ROWS or problem.n < problem.m)


def _weights(parts):
    """(along k, words of one load) of w; words is 0 where nothing fits."""
    extent, across, along, batch = operand_strides(parts, "b")
    itemsize, tensor = parts.b.itemsize, parts.b
    if along == 1 or parts.k == 1:
        width = widest(16 // itemsize, tensor, True, (parts.k,), batch + ((across,) if extent > 1 else ()))
        if width * itemsize >= 4:
            return 1, width * itemsize // 4
    if across == 1 and parts.dtype != "int8":
        most = 8 if parts.dtype in FP8 else 16 // itemsize  # a thread has a sum for each element of a chunk and row of x
        width = widest(most, tensor, True, (extent,), batch + ((along,) if parts.k > 1 else ()))
        if width * itemsize >= 4:
            return 0, width * itemsize // 4
    return 0, 0


def supports(problem):
    """Few rows or columns, and weights that can be read a word at a time."""
    if problem.scales.by_block:
        return f"{problem.scales}; whole rows of k are summed at once"
    if problem.has_two_addends:
        return addends_refusal(problem)
    if problem.k == 0:
        return "K is 0"
    if min(problem.m, problem.n) > MOST_ROWS:
        return f"M={problem.m} and N={problem.n}; one of them must be at most {MOST_ROWS}"
    if max(problem.m, problem.n, problem.k) >= 2 ** 30 or ceil_div(max(problem.m, problem.n), 2) * problem.batch_size >= 2 ** 31:
        return f"M, N, K, batch = {problem.m}, {problem.n}, {problem.k}, {problem.batch_size}; each is to be below 2**30, the grid 2**31"
    parts = _parts(problem)
    if not _weights(parts)[1]:
        along = "k" if parts.dtype == "int8" else "k or across it"
        return f"{parts.names[1]}, the weights, need words of four bytes contiguous along {along}: {parts.b}, M, N, K = " \
               f"{problem.m}, {problem.n}, {problem.k}"
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """The bytes of w, blocks, or arithmetic: multiply-adds, and unpacking 16-bit elements."""
    parts = _parts(problem)
    short = COST.bits16 if parts.m <= 2 else COST.several
    per = {"float64": COST.float64, "float32": COST.float32, "int8": COST.int8}.get(parts.dtype, short)
    rate = COST.rate * device.fp32_rate / 2
    # a block whose rows are short does little more than begin and end
    shape = _shape(problem, device)
    waves = ceil_div(parts.n, shape.rows) * parts.batch_size * shape.warps / (device.sms * 16) if shape.along_k else 0
    alone = parts.k * parts.b.itemsize * min(parts.n, _columns(shape)) / COST.block  # few blocks have little in flight
    arithmetic = per * parts.batch_size * parts.m * parts.n * parts.k / rate
    beside = Cost(launch=COST.start, issue=COST.exposed * arithmetic)
    return beside + overlap(memory=problem.bytes / device.bandwidth, math=arithmetic, waves=waves * COST.wave, latency=alone)


def _scalars(dtype):
    """Device function ``widen(values, i, words, j)``, values a step widens, words it takes, accumulator type."""
    if dtype == "float64":
        def widen(values, i, words, j):
            values[i] = words_double(words[j], words[j + 1])
        return device_function(widen), 1, 2, f64
    if dtype == "float32":
        def widen(values, i, words, j):
            values[i] = bits_float(words[j])
        return device_function(widen), 1, 1, f32
    unpack = element(dtype).unpack
    if dtype in FP8:
        def widen(values, i, words, j):
            values[i], values[i + 1], values[i + 2], values[i + 3] = unpack(words[j])
        return device_function(widen), 4, 1, f32

    def widen(values, i, words, j):
        values[i], values[i + 1] = unpack(words[j])
    return device_function(widen), 2, 1, f32


def _carried(n, body):
    """`unrolled` with a value that is handed on: ``value = body(k, value, s)`` for k = first, ..., first + n - 1."""
    if n == 1:
        return body
    half = n // 2
    first = _carried(half, body)
    second = first if n == 2 * half else _carried(n - half, body)

    @device_function
    def run(k, value, s):
        return second(k + half, first(k, value, s), s)
    return run


def _rows_of_x(config):
    """Device function ``load(x_words, row, x_stride, left, ok)``: a chunk of every row of x, from `row` on."""
    M, W = config.m, config.words
    load_x = _words_of_x(config)

    @device_function
    def load_row(m, row, s):
        x_words, x_stride, left, ok = s
        load_x(x_words, m * W, row, x_stride.k, left, ok)
        return advance(row, x_stride.m)
    load_rows = _carried(M, load_row)

    @device_function
    def load(x_words, row, x_stride, left, ok):
        load_rows(0, row, (x_words, x_stride, left, ok))
    return load


def _words_of_x(config):
    """Device function ``load(into, slot, p, stride, left, ok)``: a chunk of x: p[0], p[stride] ..., zero from `left` on."""
    W, E = config.words, config.elements
    load_words = {1: load1_nc_if_into, 2: load2_nc_if_into, 4: load4_nc_if_into}[W]
    short, double, single, packed = config.dtype in HALVES, config.dtype == "float64", config.dtype == "float32", bool(config.x_packed)

    @device_function
    def load(into, slot, p, stride, left, ok):
        if packed:
            load_words(into, slot, as_u32(p), 0, ok)
        elif short:
            for w in range(W):
                low = u32(load1_nc_if(p, 2 * w * stride, 1 if 2 * w < left else 0))
                high = u32(load1_nc_if(p, (2 * w + 1) * stride, 1 if 2 * w + 1 < left else 0))
                into[slot + w] = low | (high << 16)
        elif double:
            for e in range(E):
                load2_nc_if_into(into, slot + 2 * e, as_u32(advance(p, e * stride)), 0, 1 if e < left else 0)
        elif single:
            for e in range(E):
                load1_nc_if_into(into, slot + e, as_u32(advance(p, e * stride)), 0, 1 if e < left else 0)
        else:
            for w in range(W):
                word = u32(0)
                for j in range(4):
                    if 4 * w + j < left:
                        word |= u32(u8(p[(4 * w + j) * stride])) << (8 * j)
                into[slot + w] = word
    return load


def _kernel_along_k(config):
    """`rows` columns n per block, lanes along k."""
    M, R, W, U, WARPS, E = config.m, config.rows, config.words, config.unroll, config.warps, config.elements
    bytes4, WHOLE, EDGE = config.dtype == "int8", config.whole, config.edge
    widen_x, P, WQ, Acc = (None, 1, 1, i32) if bytes4 else _scalars(config.dtype)
    widen_w = None if bytes4 else _scalars(config.dtype_w)[0]
    NA = R * M
    P2, NB, NX, NW, NS, THREADS = 1 << (NA - 1).bit_length(), R * U * W, M * W, R * P, WARPS * NA, 32 * WARPS
    load_words = {1: load1_nc_if_into, 2: load2_nc_if_into, 4: load4_nc_if_into}[W]
    load_x = _rows_of_x(config)
    halve, first_of, LEFT = make_halving(P2, 5)
    epilogue, begin = make_epilogue(config.epilogue), make_begin(config.dependent)
    batch_offsets, placed = make_batch_offsets(config.batch_dims), make_placed(config.epilogue.program, config.batch_dims)

    @device_function
    def multiply(m, s):
        acc, w_values, x_values, x_words, w_words, q, u = s
        if bytes4:
            for r in range(R):
                acc[r * M + m] = dot4(x_words[m * W + q], w_words[(u * R + r) * W + q], acc[r * M + m])
        else:
            widen_x(x_values, 0, x_words, m * W + q * WQ)
            for r in range(R):
                for p in range(P):
                    acc[r * M + m] += x_values[p] * w_values[r * P + p]
    all_m = unrolled(M, multiply)

    @device_function
    def widen_row(r, s):
        w_values, w_words, q, u = s
        widen_w(w_values, r * P, w_words, (u * R + r) * W + q * WQ)
    widen_rows = unrolled(R, widen_row)

    @device_function
    def word(q, s):
        acc, w_values, x_values, x_words, w_words, u = s
        if not bytes4:
            widen_rows(0, (w_values, w_words, q, u))
        all_m(0, (acc, w_values, x_values, x_words, w_words, q, u))
    all_words = unrolled(W // WQ, word)

    @device_function
    def chunk(u, s):
        acc, w_values, x_values, x_words, w_words, x, x_stride, c, k = s
        at = (c + u * 32) * E
        ok = 1
        if not WHOLE:
            ok = 1 if at < k else 0
        load_x(x_words, advance(x, at * x_stride.k), x_stride, k - at, ok)
        all_words(0, (acc, w_values, x_values, x_words, w_words, u))
    all_chunks = unrolled(U, chunk)

    @device_function
    def load_row(r, row, s):
        w_words, u, n0, n, w_stride, ok = s
        load_words(w_words, (u * R + r) * W, as_u32(row), 0, ok)
        # NOTE: from row to row by addition; R separate offsets would be kept in 2R registers through the loop
        if not EDGE or n0 + r + 1 < n:
            row = advance(row, w_stride.n)
        return row
    load_rows = _carried(R, load_row)

    @device_function
    def load_chunk(u, s):
        w_words, w, n0, n, w_stride, c, k = s
        at = (c + u * 32) * E
        ok = 1
        if not WHOLE:
            ok = 1 if at < k else 0
        load_rows(0, advance(w, at), (w_words, u, n0, n, w_stride, ok))
    load_chunks = unrolled(U, load_chunk)

    @jit(launch_bounds=(THREADS, config.blocks))
    def matmul_gemv_k(x, w, y, n, k, x_stride, w_stride, y_stride, batch_sizes, batch_strides, groups, scale_x, scale_w, scale_stride,
                      alpha, beta, bias, bias_stride, c, c_row_stride, c_column_stride, extras):
        scratch = cuda.shared.array(NS, Acc)
        tid = cuda.threadIdx.x
        lane, warp = tid & 31, tid >> 5
        z, group = divide_remainder(cuda.blockIdx.x, groups)
        n0 = group * R
        x_at, w_at, c_at, y_at = batch_offsets(z, batch_sizes, batch_strides)
        x, w = advance(x, x_at), advance(w, w_at + n0 * w_stride.n)
        begin()
        w_words, x_words = cuda.local.array(NB, u32), cuda.local.array(NX, u32)
        acc, w_values, x_values = cuda.local.array(P2, Acc), cuda.local.array(NW, Acc), cuda.local.array(P, Acc)
        for i in range(P2):
            acc[i] = Acc(0)

        # multiply: the warps of a block interleave along k
        chunk0 = warp * (32 * U) + lane
        while (chunk0 - lane) * E < k:  # the same for the whole warp
            load_chunks(0, (w_words, w, n0, n, w_stride, chunk0, k))
            all_chunks(0, (acc, w_values, x_values, x_words, w_words, x, x_stride, chunk0, k))
            chunk0 = chunk0 + WARPS * U * 32

        # reduce across lanes, then across warps
        halve(acc, lane)
        first = first_of(lane)
        for i in range(LEFT):
            if first + i < NA:  # several lanes may hold, and store, the same sum: lane 0 of them does
                if first_of(lane - 1) != first or lane == 0:
                    scratch[warp * NA + first + i] = acc[i]
        cuda.syncthreads()
        e = tid
        while e < NA:
            total = scratch[e]
            for j in range(1, WARPS):
                total += scratch[j * NA + e]
            r = e // M
            m, column = e - r * M, n0 + r
            if column < n:
                params = ScaledParams(alpha, beta, bias, bias_stride, advance(c, c_at), c_row_stride, c_column_stride, scale_x, scale_w,
                                      scale_stride.a_row, scale_stride.b_column, placed(extras, z, batch_sizes))
                y[y_at + m * y_stride.m + column * y_stride.n] = epilogue(total, m, column, params)
            e = e + THREADS
    return matmul_gemv_k


def _kernel_along_n(config):
    """One chunk of columns and E consecutive k per thread and step."""
    M, W, WARPS, E, LANES, U = config.m, config.words, config.warps, config.elements, config.lanes, config.unroll
    (widen_x, P, WQ, Acc), widen_w = _scalars(config.dtype), _scalars(config.dtype_w)[0]
    NA, COLUMNS, BITS = M * E, LANES * E, 5 - (LANES.bit_length() - 1)
    P2, NB, NX, NW, THREADS, GROUPS = 1 << (NA - 1).bit_length(), E * U * W, M * W, P * E, 32 * WARPS, 32 * WARPS // LANES
    OUT, SHIFT = LANES * NA, LANES.bit_length() - 1
    NS, WHOLE = WARPS * OUT, config.whole
    QW = W // WQ  # widening steps of a row of w
    load_words = {1: load1_nc_if_into, 2: load2_nc_if_into, 4: load4_nc_if_into}[W]
    load_x = _rows_of_x(config)
    halve, first_of, LEFT = make_halving(P2, BITS)
    epilogue, begin = make_epilogue(config.epilogue), make_begin(config.dependent)
    batch_offsets, placed = make_batch_offsets(config.batch_dims), make_placed(config.epilogue.program, config.batch_dims)

    @device_function
    def multiply(m, s):
        acc, w_values, x_values, x_words, q = s
        widen_x(x_values, 0, x_words, m * W + q * WQ)
        for p in range(P):
            for e in range(E):
                acc[m * E + e] += x_values[p] * w_values[p * E + e]
    all_m = unrolled(M, multiply)

    @device_function
    def word(q, s):
        acc, w_values, x_values, x_words, w_words, u = s
        for p in range(P):
            for v in range(QW):
                widen_w(w_values, p * E + v * P, w_words, (u * E + q * P + p) * W + v * WQ)
        all_m(0, (acc, w_values, x_values, x_words, q))
    all_words = unrolled(E // P, word)

    @device_function
    def step(u, s):
        acc, w_values, x_values, x_words, w_words, x, x_stride, k0, k = s
        at = k0 + u * (GROUPS * E)
        ok = 1
        if not WHOLE:
            ok = 1 if at < k else 0
        load_x(x_words, advance(x, at * x_stride.k), x_stride, k - at, ok)
        all_words(0, (acc, w_values, x_values, x_words, w_words, u))
    all_steps = unrolled(U, step)

    @device_function
    def load_row(j, row, s):
        w_words, u, k0, k, w_stride = s
        ok = 1
        if not WHOLE:
            ok = 1 if k0 + u * (GROUPS * E) + j < k else 0
        load_words(w_words, (u * E + j) * W, as_u32(row), 0, ok)
        return advance(row, w_stride.k)
    load_rows = _carried(E, load_row)

    @device_function
    def load_step(u, s):
        w_words, w, k0, k, w_stride = s
        load_rows(0, advance(w, (k0 + u * (GROUPS * E)) * w_stride.k), (w_words, u, k0, k, w_stride))
    load_steps = unrolled(U, load_step)

    @jit(launch_bounds=(THREADS, config.blocks))
    def matmul_gemv_n(x, w, y, n, k, x_stride, w_stride, y_stride, batch_sizes, batch_strides, groups, scale_x, scale_w, scale_stride,
                      alpha, beta, bias, bias_stride, c, c_row_stride, c_column_stride, extras):
        scratch = cuda.shared.array(NS, Acc)
        tid = cuda.threadIdx.x
        lane, warp = tid & 31, tid >> 5
        z, group = divide_remainder(cuda.blockIdx.x, groups)
        n0 = group * COLUMNS
        group_n, group_k = tid & (LANES - 1), tid >> SHIFT
        x_at, w_at, c_at, y_at = batch_offsets(z, batch_sizes, batch_strides)
        x, w = advance(x, x_at), advance(w, w_at + minimum(n0 + group_n * E, n - E))
        begin()
        w_words, x_words = cuda.local.array(NB, u32), cuda.local.array(NX, u32)
        acc, w_values, x_values = cuda.local.array(P2, Acc), cuda.local.array(NW, Acc), cuda.local.array(P, Acc)
        for i in range(P2):
            acc[i] = Acc(0)

        # multiply: groups of lanes, and warps, interleave along k
        k0 = group_k * E
        while k0 < k:
            load_steps(0, (w_words, w, k0, k, w_stride))
            all_steps(0, (acc, w_values, x_values, x_words, w_words, x, x_stride, k0, k))
            k0 = k0 + GROUPS * E * U

        # reduce across lanes, then across warps
        halve(acc, lane)
        first = first_of(lane)
        for i in range(LEFT):
            if first + i < NA:
                if lane < LANES or first_of(lane - LANES) != first:
                    e = first + i
                    m = e // E
                    scratch[warp * OUT + m * COLUMNS + group_n * E + (e - m * E)] = acc[i]
        cuda.syncthreads()
        o = tid
        while o < OUT:
            total = scratch[o]
            for j in range(1, WARPS):
                total += scratch[j * OUT + o]
            m = o // COLUMNS
            column = n0 + (o - m * COLUMNS)
            if column < n:
                params = ScaledParams(alpha, beta, bias, bias_stride, advance(c, c_at), c_row_stride, c_column_stride, scale_x, scale_w,
                                      scale_stride.a_row, scale_stride.b_column, placed(extras, z, batch_sizes))
                y[y_at + m * y_stride.m + column * y_stride.n] = epilogue(total, m, column, params)
            o = o + THREADS
    return matmul_gemv_n


@functools.cache
def kernel(config):
    """A group of columns of y per block."""
    return (_kernel_along_k if config.along_k else _kernel_along_n)(config)


def _shape(problem, device):
    """The configuration for a problem: measured for M of 1 and for float32, for more rows of 16-bit elements by counted instructions."""
    parts = _parts(problem)
    along_k, words = _weights(parts)
    itemsize = parts.a.itemsize
    width = 4 * words // itemsize
    extent, across, along, batch = operand_strides(parts, "a")
    x_packed = int(along == 1 and widest(width, parts.a, True, (parts.k,), batch + ((across,) if extent > 1 else ())) == width)
    common = dict(dtype=parts.a.dtype, dtype_w=parts.b.dtype, m=parts.m, along_k=along_k, words=words, x_packed=x_packed,
                  batch_dims=len(parts.batch), epilogue=parts.epilogue, dependent=device.capability >= (9, 0))
    packed, fp8 = itemsize <= 2, parts.dtype in FP8
    if along_k:
        chunks = ceil_div(parts.k, 32 * width)
        rows, unroll, warps, blocks = 4, 2, 8, 2
        if parts.dtype == "float64" and parts.m > 2:
            rows, unroll, warps, blocks = 4, 1, 4, 2
        elif packed and parts.m > 2:
            rows, unroll, warps, blocks = (8, 1, 4, 3) if parts.m <= 4 else (8, 1, 4, 2) if fp8 else (8, 1, 3, 4)
        return Config(rows=rows, unroll=unroll, warps=min(warps, ceil_div(chunks, unroll)), lanes=1, blocks=blocks,
                      whole=int(parts.k % (32 * width * unroll) == 0), edge=int(parts.n % rows != 0), **common)
    lanes = 8 if parts.dtype in ("float32", "float64") or ceil_div(parts.n, 8 * width) * parts.batch_size >= device.sms else 4
    warps = 12 if packed and parts.m > 4 else 16
    warps = max(1, min(warps, ceil_div(parts.k * lanes, 32 * width)))
    return Config(rows=1, unroll=1, warps=warps, lanes=lanes, blocks=1, whole=int(parts.k % width == 0), edge=1, **common)


def _columns(config):
    """Columns of y per block."""
    return config.rows if config.along_k else config.lanes * config.elements


def build(problem, device, config):
    """One launch."""
    parts, config = _parts(problem), _shape(problem, device)
    groups = ceil_div(parts.n, _columns(config))
    arguments = (*parts.operand_arguments(), Argument(element(parts.y.dtype).pointer, "y"), Argument("int32", parts.n),
                 Argument("int32", parts.k), Argument(AStrides, AStrides(*parts.a_strides)),
                 Argument(BStrides, BStrides(*parts.b_strides)), Argument(YStrides, YStrides(*parts.y_strides)),
                 *parts.batch_arguments(), Argument("uint32x3", divisor(groups)), *parts.scales.arguments(),
                 *parts.epilogue_arguments(), program_argument(parts, len(parts.batch)))
    return (Launch(kernel(config), (groups * parts.batch_size, 1, 1), (32 * config.warps, 1, 1), arguments, dependent=config.dependent),)


ALGORITHM = Algorithm(op="matmul", name="gemv", supports=supports, workspace=workspace, estimate=estimate, build=build, programs=True)

"""A warp or a block a row: the row is read once, held in registers, and written.

32 to 1024 threads hold up to eight units of 16 bytes each (`device.rows`). Every thread finds the mean of its own elements and their
squared distances to it, and these are merged by Chan, Golub and LeVeque's formula, with the counts that heads, tails and idle threads
leave: one reduction, behind one barrier, that loses nothing in rows far from 0. RMS normalisation sums squares. gamma and beta come 16
bytes a load where they are of x's dtype and in phase with its rows, else element by element.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, device_function, f32, f64, i32, i64, u32
from ..device.convert import element
from ..device.fastmath import rcp, rsqrt, sqrt
from ..device.index import ceil_div
from ..device.rows import LIMIT, Dim, Held, RowForm, make_row, make_row_places, row_arguments, row_unit
from ..device.vec import advance, pin
from ..device.warp import broadcast, shuffle_xor
from ..dispatch import Algorithm
from ..host.launch import Argument, Launch
from ..transform._estimate import LAUNCH, moved_seconds, tail

LANES, WARP = (32, 64, 128, 256, 512, 1024), 32
THREADS = 128  # of a block whose rows have a warp each


@dataclass(frozen=True)
class Config:
    """Element types, whether there is a mean and each weight, whether weights are loaded as units, and how rows are held."""
    dtype: str
    gamma: str
    beta: str
    layer: bool
    scaled: bool
    shifted: bool
    vector: bool
    dims: int
    lanes: int
    registers: int
    unit: int
    heads: bool

    @property
    def threads(self):
        return THREADS if self.lanes == WARP else self.lanes

    @property
    def held(self):
        return Held(self.dtype, self.unit, self.lanes, self.registers, 0, self.heads)

    def __str__(self):
        return f"{self.lanes} threads, {self.registers} x {self.unit} bytes" + ", heads" * self.heads


def _pair(problem):
    """(form of x and y alone, bytes of a unit, heads)."""
    order = [name for name, _, _ in problem.arrays]
    at = order.index("x"), order.index("y")
    form = RowForm(*(tuple(Dim(d.size, tuple(d.strides[k] for k in at)) for d in dims) for dims in (problem.form.row, problem.form.outer)))
    return (form, *row_unit(form, (problem.x, problem.y)))


def _units(problem):
    form, unit, heads = _pair(problem)
    per = unit // problem.x.itemsize
    return max(1, form.length // per if heads else ceil_div(form.length, per))


def _most(lanes, problem):
    return (4 if lanes == 1024 else 8) // (2 if problem.compute == "float64" else 1)


def supports(problem):
    """Rows of one dimension that a block's registers hold."""
    form = problem.form
    if len(form.row) != 1:
        return f"rows are {len(form.row)} dimensions; expected one that all arrays step evenly through"
    most = max(lanes * _most(lanes, problem) for lanes in LANES)
    if _units(problem) > most:
        return f"rows of {form.length} elements are {_units(problem)} units of {_pair(problem)[1]} bytes; a block holds {most}"
    if form.length >= LIMIT or form.rows >= 2 ** 31 - 2 ** 20:
        return f"{form.rows} rows of {form.length} elements; expected fewer than 2**31 - 2**20, of fewer than 2**28"
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def configs(problem, device):
    """The groups of threads that hold a row and of which not half are idle."""
    (form, unit, heads), count = _pair(problem), _units(problem)
    weights = [t for t in (problem.gamma, problem.beta) if t is not None]
    vector = unit == 16 and not heads and all(t.dtype == problem.dtype and t.alignment >= 16 and t.is_packed for t in weights)
    types = [problem.dtype if t is None else t.dtype for t in (problem.gamma, problem.beta)]
    return [Config(problem.dtype, *types, problem.op == "layer_norm_fwd", problem.gamma is not None, problem.beta is not None, vector,
                   max(1, len(form.outer)), lanes, ceil_div(count, lanes), unit, heads)
            for lanes in LANES if ceil_div(count, lanes) <= _most(lanes, problem) and (lanes == WARP or count > lanes // 2)]


def estimate(problem, device, config):
    """Bytes at the rate that those in flight sustain; the grid's last blocks; loads of single weights."""
    resident = max(1, min(1024 // config.threads, 65536 // (config.threads * (40 + 12 * config.registers))))
    fill = min(1.0, problem.form.length * problem.x.itemsize / (config.lanes * config.registers * config.unit))
    flight = config.registers * config.unit * config.threads * resident * fill
    rate = min(1.0, flight / 64e3) ** 0.5 * (1.0 if config.unit == 16 else min(1.0, problem.x.itemsize / 5))
    rate *= 1.0 if config.vector or not (config.scaled or config.shifted) else 0.5
    grid = ceil_div(problem.form.rows * config.lanes, config.threads)
    share = min(1.0, grid * config.threads / (512 * device.sms))
    return LAUNCH + moved_seconds(problem.bytes, device) / (rate * share) * tail(grid, resident, device)


def _make_inverses(Real):
    """Device functions ``inverse(v)`` and ``inverse_root(v)``: in float32 one instruction each, good to an ulp or two."""
    if Real is f32:
        return rcp, rsqrt

    @device_function
    def inverse(v):
        return Real(1) / v

    @device_function
    def inverse_root(v):
        return Real(1) / sqrt(v)
    return inverse, inverse_root


def _make_merge(Real):
    """Device function ``merge(a, b, n, a2, b2, n2)``: means, sums of squared distances and counts of two parts, as of both."""
    inverse, _ = _make_inverses(Real)

    @device_function
    def merge(a, b, n, a2, b2, n2):
        count = Real(n + n2)
        part = inverse(count) if count > Real(0) else Real(0)
        d = Real(a2 - a)
        return Real(a + d * Real(n2 * part)), Real(Real(b + b2) + Real(d * d) * Real(Real(n * n2) * part)), count
    return merge


@functools.cache
def kernel(config):
    """y and the statistics, a row a group."""
    held, x_type = config.held, element(config.dtype)
    row_of = make_row(held)
    span, load, load_rest, unpack, pack, store, store_rest = row_of[:7]
    read, load_gamma, load_beta = row_of.read, element(config.gamma).load, element(config.beta).load
    Real = f64 if x_type.compute == "float64" else f32
    merge, places = _make_merge(Real), make_row_places(config.dims, 4)
    E, WORDS, PART, REST, SINGLES, REGISTERS = held.elements, held.words, held.unit_words, held.rest, held.singles, config.registers
    LANE_COUNT, BLOCK = config.lanes, config.threads
    ROWS, LOG, WARPS, SIZE = BLOCK // LANE_COUNT, LANE_COUNT.bit_length() - 1, LANE_COUNT // 32, 3 * (BLOCK // 32)
    LAYER, SCALED, SHIFTED, VECTOR = config.layer, config.scaled, config.shifted, config.vector
    hold, (inverse, inverse_root) = pin(WORDS), _make_inverses(Real)

    @cuda.jit(launch_bounds=(BLOCK, 1))
    def norm_fwd_block(x, gamma, beta, y, mean, rstd, eps, rows, length, x_step, y_step, gamma_step, beta_step, divisors, strides):
        scratch = cuda.shared.array(SIZE, Real)
        words, part = cuda.local.array(WORDS, u32), cuda.local.array(PART, u32)
        values, scales, shifts = cuda.local.array(E, Real), cuda.local.array(E, Real), cuda.local.array(E, Real)
        rest, offsets = cuda.local.array(REST, Real), cuda.local.array(4, i64)
        thread = i32(cuda.threadIdx.x)
        lane = i32(thread & i32(LANE_COUNT - 1))
        row = i32(i32(cuda.blockIdx.x) * i32(ROWS) + i32(thread >> LOG))
        size = i32(length) if row < rows else i32(0)
        places(row if row < rows else i32(0), divisors, strides, offsets)
        x, y = advance(x, offsets[0]), advance(y, offsets[1])
        head, units = span(x, size)
        load(words, x, head, units, lane, x_step)
        load_rest(rest, x, head, units, size, lane)
        a, n = Real(0), Real(0)
        for c in range(REGISTERS):
            unpack(values, words, c)
            for e in range(E):
                a = Real(a + values[e])
            if i32(lane + c * LANE_COUNT) < units:
                n = Real(n + Real(E))
        for k in range(SINGLES):
            j = i32(lane + k * LANE_COUNT)
            a = Real(a + rest[k])
            if (j if j < head else i32(j + units * E)) < size:
                n = Real(n + Real(1))
        a = Real(a * inverse(n)) if LAYER and n > Real(0) else Real(0)
        b = Real(0)
        hold(words)
        for c in range(REGISTERS):
            if i32(lane + c * LANE_COUNT) < units:
                unpack(values, words, c)
                for e in range(E):
                    d = Real(values[e] - a)
                    b = Real(b + d * d)
        for k in range(SINGLES):
            j = i32(lane + k * LANE_COUNT)
            if (j if j < head else i32(j + units * E)) < size:
                d = Real(rest[k] - a)
                b = Real(b + d * d)
        for s in range(5):
            other = i32(1 << s)
            a, b, n = merge(a, b, n, shuffle_xor(a, other), shuffle_xor(b, other), shuffle_xor(n, other))
        if WARPS == 1:
            a, b = broadcast(a, i32(0)), broadcast(b, i32(0))  # rounded in another order elsewhere
        else:
            at = i32(3 * i32(thread >> 5))
            if i32(thread & 31) == 0:
                scratch[at] = a
                scratch[i32(at + 1)] = b
                scratch[i32(at + 2)] = n
            cuda.syncthreads()
            a, b, n = scratch[0], scratch[1], scratch[2]
            for w in range(1, WARPS):
                a, b, n = merge(a, b, n, scratch[3 * w], scratch[3 * w + 1], scratch[3 * w + 2])
        r = Real(0)
        if size > 0:
            r = inverse_root(Real(Real(b * inverse(n)) + eps))
            if lane == 0:
                if LAYER:
                    mean[offsets[2]] = a
                rstd[offsets[3]] = r
        hold(words)
        for c in range(REGISTERS):
            i = i32(lane + c * LANE_COUNT)
            if i < units:
                unpack(values, words, c)
                if VECTOR:
                    if SCALED:
                        read(part, 0, gamma, i, i64(1), True)
                        unpack(scales, part, 0)
                    if SHIFTED:
                        read(part, 0, beta, i, i64(1), True)
                        unpack(shifts, part, 0)
                else:
                    for e in range(E):
                        j = i64(head + i * E + e)
                        if SCALED:
                            scales[e] = load_gamma(gamma, i64(j * gamma_step))
                        if SHIFTED:
                            shifts[e] = load_beta(beta, i64(j * beta_step))
                for e in range(E):
                    value = Real(Real(values[e] - a) * r)
                    if SCALED:
                        value = Real(value * scales[e])
                    if SHIFTED:
                        value = Real(value + shifts[e])
                    values[e] = value
                pack(words, c, values)
                store(y, words, c, head, units, lane, y_step)
        for k in range(SINGLES):
            j = i32(lane + k * LANE_COUNT)
            i = j if j < head else i32(j + units * E)
            if i < size:
                value = Real(Real(rest[k] - a) * r)
                if SCALED:
                    value = Real(value * load_gamma(gamma, i64(i64(i) * gamma_step)))
                if SHIFTED:
                    value = Real(value + load_beta(beta, i64(i64(i) * beta_step)))
                rest[k] = value
        store_rest(y, rest, head, units, size, lane)
    return norm_fwd_block


def build(problem, device, config):
    """One launch; a missing array has another's place in the arguments."""
    p, form = problem, problem.form
    order = {name: k for k, (name, _, _) in enumerate(p.arrays)}
    present = {name: t for name, t, _ in p.arrays if t is not None}

    def pointer(name, instead=""):
        name = name if name in present else instead
        return Argument(element(present[name].dtype).pointer, name)
    outer = tuple(Dim(d.size, tuple(d.strides[order.get(n, 0)] for n in ("x", "y", "mean", "rstd"))) for d in form.outer)
    divisors, strides = row_arguments(RowForm((Dim(1, (0,) * 4),), outer))
    arguments = (pointer("x"), pointer("gamma", "x"), pointer("beta", "x"), pointer("y"), pointer("mean", "rstd"), pointer("rstd"),
                 Argument(p.compute, "eps"), Argument("int32", form.rows), Argument("int32", form.length),
                 *(Argument("int64", form.steps[order[name]]) for name in ("x", "y", "gamma", "beta")),
                 Argument(f"uint32x{len(divisors)}", divisors), Argument(f"int64x{len(strides)}", strides))
    grid = ceil_div(form.rows * config.lanes, config.threads)
    return (Launch(kernel(config), (grid, 1, 1), (config.threads, 1, 1), arguments),)


ALGORITHMS = tuple(Algorithm(op=op, name="block", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs)
                   for op in ("layer_norm_fwd", "rms_norm_fwd"))

"""Rows cut into pieces, forward: blocks leave the moments of pieces, and those of a second launch merge them and write y."""
import functools

from ...device import cuda, i32, i64, jit, u32
from ...device.convert import element
from ...device.index import ceil_div, divide_remainder, divisor
from ...device.rows import Dim, RowForm, make_row, make_row_offsets, row_arguments
from ...device.vec import advance, pin
from ...engine.constants import constants
from ...engine.cost import LAUNCH, Cost, memory_seconds, narrow_rate, occupied
from ...host.dtypes import ITEMSIZE
from ...host.launch import Argument, Launch
from .._moments import make_block_pool, make_inverses, make_merge, make_pool
from .._weights import make_weights
from ..block.forward import OFFSETS, make_config, pointers, vectors

COST = constants("norm/split_forward")

THREADS, LIMIT = 256, 2 ** 31 - 2 ** 20
BLOCKS = 8  # of a multiprocessor that are worth a piece


def config_of(problem):
    """How a block holds one round of a piece."""
    return make_config(problem, THREADS, 4 // (1 + (problem.compute == "float64")) // (1 + (problem.residual is not None)))


def pieces(problem, device):
    """(pieces of a row, vectors of a piece): whole rounds of a block, and no more pieces than a block has threads to merge them."""
    count, turn = vectors(problem), THREADS * config_of(problem).registers
    wanted = max(1, min(THREADS, ceil_div(BLOCKS * device.sms, problem.form.rows), ceil_div(count, turn)))
    size = ceil_div(ceil_div(count, wanted), turn) * turn
    return ceil_div(count, size), size


def workspace(problem, device, config):
    """Mean, squared distances and count of each piece."""
    return 3 * problem.form.rows * pieces(problem, device)[0] * ITEMSIZE[problem.compute]


def seconds(problem, device, config):
    """x twice (with a residual the sum the second time), from the L2 where it fits; two launches."""
    x, form = problem.x, problem.form
    again = COST.again if problem.bytes < device.l2_bytes // 2 else 1.0
    share = occupied(form.rows * pieces(problem, device)[0] * THREADS, COST.enough, device)
    config = config_of(problem)
    rate = narrow_rate(config.vector_bytes, x.itemsize) * (COST.single if config.has_single_weights else 1.0)
    idle = max(1.0, THREADS * config.registers / vectors(problem)) ** 0.5
    memory = Cost(memory=memory_seconds(problem.bytes + again * x.nbytes, device) / (COST.rate * rate))
    return 2 * LAUNCH + Cost(launch=COST.between) + memory.slowed(idle=idle / share)


@functools.cache
def moments_kernel(config):
    """Moments of a piece, and its sum with a residual."""
    layout, x_type = config.layout, element(config.dtype)
    vec, Real = make_row(layout), layout.real
    widen, narrow = x_type.widen, x_type.narrow
    E, WORDS, EDGE_SLOTS, EDGES = layout.elements, layout.words, layout.edge_slots, layout.edges
    REGISTERS, SCRATCH = config.registers, 3 * THREADS // 32
    LAYER, RESIDUAL, TURN = config.layer, config.residual, THREADS * config.registers
    hold, (inverse, _), merge = pin(WORDS), make_inverses(Real), make_merge(Real)
    in_warp, in_block = make_pool(Real, 32, LAYER), make_block_pool(Real, THREADS // 32, LAYER)
    row_offsets = make_row_offsets(config.dims, OFFSETS)

    @jit(launch_bounds=(THREADS, 3))
    def norm_fwd_pieces(x, residual, summed, partial, pieces, size, length, x_step, residual_step, summed_step, divisors, strides):
        scratch = cuda.shared.array(SCRATCH, Real)
        words, more = cuda.local.array(WORDS, u32), cuda.local.array(WORDS, u32)
        values, others = cuda.local.array(E, Real), cuda.local.array(E, Real)
        edges, extra = cuda.local.array(EDGE_SLOTS, Real), cuda.local.array(EDGE_SLOTS, Real)
        lane = cuda.threadIdx.x
        number, piece = divide_remainder(cuda.blockIdx.x, pieces)
        offsets = row_offsets(number, divisors, strides)
        x, residual, summed = advance(x, offsets.x), advance(residual, offsets.residual), advance(summed, offsets.summed)
        prologue, vectors = vec.split(x, length)
        a, b, n = Real(0), Real(0), Real(0)
        if piece == 0:
            vec.load_edges(edges, x, prologue, vectors, length, lane)
            if RESIDUAL:
                vec.load_edges(extra, residual, prologue, vectors, length, lane)
                for k in range(EDGES):
                    edges[k] = Real(widen(narrow(edges[k] + extra[k])))
                vec.store_edges(summed, edges, prologue, vectors, length, lane)
            for k in range(EDGES):
                j = lane + k * THREADS
                if (j if j < prologue else j + vectors * E) < length:
                    if LAYER:
                        a, b, n = merge(a, b, n, edges[k], Real(0), Real(1))
                    else:
                        b, n = b + edges[k] * edges[k], n + Real(1)
        for first in range(piece * size, min(vectors, piece * size + size), TURN):
            left = vectors - first
            vec.load(words, advance(x, first * E * x_step), prologue, left, lane, x_step)
            if RESIDUAL:
                vec.load(more, advance(residual, first * E * residual_step), prologue, left, lane, residual_step)
                for c in range(REGISTERS):
                    vec.unpack(values, words, c)
                    vec.unpack(others, more, c)
                    for e in range(E):
                        values[e] += others[e]
                    vec.pack(words, c, values)
                    vec.store(advance(summed, first * E * summed_step), words, c, prologue, left, lane, summed_step)
                hold(words)
            a2, b2, n2 = Real(0), Real(0), Real(0)
            for c in range(REGISTERS):
                vec.unpack(values, words, c)
                for e in range(E):
                    a2 += values[e]
                if lane + c * THREADS < left:
                    n2 += Real(E)
            a2 = a2 * inverse(n2) if LAYER and n2 > Real(0) else Real(0)
            hold(words)
            for c in range(REGISTERS):
                if lane + c * THREADS < left:
                    vec.unpack(values, words, c)
                    for e in range(E):
                        d = values[e] - a2
                        b2 += d * d
            a, b, n = merge(a, b, n, a2, b2, n2)
        a, b, n = in_warp(a, b, n)
        a, b, n = in_block(a, b, n, scratch)
        if lane == 0:
            at = 3 * i64(cuda.blockIdx.x)
            partial[at] = a
            partial[at + 1] = b
            partial[at + 2] = n
    return norm_fwd_pieces


@functools.cache
def apply_kernel(config):
    """y of a piece, from the moments that all pieces of the row left; the first one's block writes the statistics."""
    layout = config.layout
    vec, Real = make_row(layout), layout.real
    load_gamma, load_beta = element(config.gamma).load, element(config.beta).load
    E, WORDS, EDGE_SLOTS, EDGES = layout.elements, layout.words, layout.edge_slots, layout.edges
    REGISTERS, SCRATCH = config.registers, 3 * THREADS // 32
    LAYER, SCALED, SHIFTED, TURN = config.layer, config.scaled, config.shifted, THREADS * config.registers
    GAMMA, GAMMAS, fetch_gamma, unpack_gamma = make_weights(config.gamma, E, config.gamma_words)
    BETA, BETAS, fetch_beta, unpack_beta = make_weights(config.beta, E, config.beta_words)
    (inverse, inverse_root), row_offsets = make_inverses(Real), make_row_offsets(config.dims, OFFSETS)
    in_warp, in_block = make_pool(Real, 32, LAYER), make_block_pool(Real, THREADS // 32, LAYER)
    RESIDUAL = config.residual

    @jit(launch_bounds=(THREADS, 2))
    def norm_fwd_apply(source, gamma, beta, y, mean, rstd, partial, eps, pieces, size, length, x_step, y_step, gamma_step, beta_step,
                       divisors, strides):
        scratch = cuda.shared.array(SCRATCH, Real)
        words, values = cuda.local.array(WORDS, u32), cuda.local.array(E, Real)
        gammas, betas = cuda.local.array(GAMMAS, GAMMA), cuda.local.array(BETAS, BETA)
        scales, shifts = cuda.local.array(E, Real), cuda.local.array(E, Real)
        edges = cuda.local.array(EDGE_SLOTS, Real)
        lane = cuda.threadIdx.x
        number, piece = divide_remainder(cuda.blockIdx.x, pieces)
        count = i32(pieces[0])
        a, b, n = Real(0), Real(0), Real(0)
        if lane < count:
            at = 3 * (i64(number) * count + lane)
            a, b, n = partial[at], partial[at + 1], partial[at + 2]
        a, b, n = in_warp(a, b, n)
        a, b, n = in_block(a, b, n, scratch)
        scale = inverse_root(b * inverse(Real(length)) + eps)
        offsets = row_offsets(number, divisors, strides)
        if piece == 0 and lane == 0:
            if LAYER:
                mean[offsets.mean] = a
            rstd[offsets.rstd] = scale
        source, y = advance(source, offsets.summed if RESIDUAL else offsets.x), advance(y, offsets.y)
        prologue, vectors = vec.split(source, length)
        if piece == 0:
            vec.load_edges(edges, source, prologue, vectors, length, lane)
            for k in range(EDGES):
                j = lane + k * THREADS
                i = j if j < prologue else j + vectors * E
                if i < length:
                    value = (edges[k] - a) * scale
                    if SCALED:
                        value = value * load_gamma(gamma, i * gamma_step)
                    if SHIFTED:
                        value += load_beta(beta, i * beta_step)
                    edges[k] = value
            vec.write_edges(y, edges, prologue, vectors, length, lane)
        for first in range(piece * size, min(vectors, piece * size + size), TURN):
            left = vectors - first
            vec.load(words, advance(source, first * E * x_step), prologue, left, lane, x_step)
            for c in range(REGISTERS):
                i = lane + c * THREADS
                j = prologue + (first + i) * E
                vec.unpack(values, words, c)
                if SCALED:
                    fetch_gamma(gammas, 0, gamma, j, gamma_step, i < left)
                    unpack_gamma(scales, gammas, 0)
                if SHIFTED:
                    fetch_beta(betas, 0, beta, j, beta_step, i < left)
                    unpack_beta(shifts, betas, 0)
                for e in range(E):
                    value = (values[e] - a) * scale
                    if SCALED:
                        value = value * scales[e]
                    if SHIFTED:
                        value += shifts[e]
                    values[e] = value
                vec.write(advance(y, first * E * y_step), words, c, values, prologue, left, lane, y_step)
    return norm_fwd_apply


def build(problem, device, config):
    """Two launches."""
    p, form, config = problem, problem.form, config_of(problem)
    order = {name: k for k, (name, _, _) in enumerate(p.arrays)}
    outer = tuple(Dim(d.size, tuple(d.strides[order.get(n, 0)] for n in OFFSETS)) for d in form.outer)
    divisors, strides = row_arguments(RowForm((Dim(1, (0,) * len(OFFSETS)),), outer))
    last = Argument(f"uint32x{len(divisors)}", divisors), Argument(f"int64x{len(strides)}", strides)
    count, size = pieces(p, device)
    partial, source = Argument(f"{p.compute}*", "workspace"), "x" if p.residual is None else "summed"
    middle = Argument("uint32x3", divisor(count)), Argument("int32", size), Argument("int32", form.length)
    instead = {"gamma": "x", "beta": "x", "residual": "x", "mean": "rstd", "summed": "x"}

    def steps(*names):
        return tuple(Argument("int64", form.steps[order.get(name, 0)]) for name in names)
    grid, block = (form.rows * count, 1, 1), (THREADS, 1, 1)
    first = (*pointers(p, ("x", "residual", "summed"), instead), partial, *middle, *steps("x", "residual", "summed"), *last)
    second = (*pointers(p, (source, "gamma", "beta", "y", "mean", "rstd"), instead), partial, Argument(p.compute, "eps"), *middle,
              *steps(source, "y", "gamma", "beta"), *last)
    return Launch(moments_kernel(config), grid, block, first), Launch(apply_kernel(config), grid, block, second)

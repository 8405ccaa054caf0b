"""One thread a row for what a row gives, one a column for what all rows give; straight from the definition.

Forward a thread walks its row for the mean, for the squared distances to it, and for the results; backward for two averages and for dx. A
second launch sums dgamma and dbeta down the columns. With a residual the sum is stored first, and read back. Any strides, any number of
elements; each element costs divisions of 64-bit integers.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, f32, f64, i64, jit
from ..device.convert import element
from ..device.fastmath import sqrt
from ..device.rows import make_row_places64, row_arguments64
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, SECTOR, issue_seconds, memory_seconds, overlap
from ..host.launch import Argument, Launch

COST = constants("norm/naive")

THREADS = 128


@dataclass(frozen=True)
class Config:
    """Element types of x, gamma and beta (backward of dgamma and dbeta), whether there is a mean, each weight, a residual; dimensions."""
    dtype: str
    gamma: str
    beta: str
    layer: bool
    scaled: bool
    shifted: bool
    row_dims: int
    outer_dims: int
    residual: bool = False


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """A 32-byte sector a load; few rows, or few columns, keep few threads busy, each waiting for memory at every element."""
    form, walks = problem.form, COST.fwd if problem.op.endswith("fwd") else COST.bwd
    waves = max(1, -(-form.rows // (COST.resident * device.sms)))
    serial = waves * walks * form.length * COST.wait + (0 if problem.op.endswith("fwd") else form.rows * COST.wait_row)
    issue = issue_seconds(problem.x.size, COST.element * walks, device)
    return LAUNCH + overlap(memory=memory_seconds(walks * problem.x.size * SECTOR, device), issue=issue, waits=serial)


@functools.cache
def forward_kernel(config):
    """y, mean and rstd, a row a thread."""
    x_type, gamma_type, beta_type = element(config.dtype), element(config.gamma), element(config.beta)
    load, store, load_gamma, load_beta = x_type.load, x_type.store, gamma_type.load, beta_type.load
    Real = f64 if x_type.compute == "float64" else f32
    LAYER, SCALED, SHIFTED, RESIDUAL = config.layer, config.scaled, config.shifted, config.residual
    rows_at, elements_at = make_row_places64(config.outer_dims, 6), make_row_places64(config.row_dims, 6)
    SOURCE = 5 if RESIDUAL else 0

    @jit(launch_bounds=THREADS)
    def norm_fwd_naive(x, gamma, beta, residual, y, mean, rstd, summed, eps, rows, length, sizes, strides, row_sizes, row_strides):
        row = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if row < rows:
            # x, y, mean, rstd, residual, summed; x, y, gamma, beta, residual, summed
            first, at = cuda.local.array(6, i64), cuda.local.array(6, i64)
            rows_at(row, sizes, strides, first)
            source = x
            if RESIDUAL:
                source = summed
                for i in range(length):
                    elements_at(i, row_sizes, row_strides, at)
                    value = Real(load(x, first[0] + at[0]) + load(residual, first[4] + at[4]))
                    store(summed, first[5] + at[5], value)
            m, count = Real(0), Real(length)
            if LAYER:
                for i in range(length):
                    elements_at(i, row_sizes, row_strides, at)
                    m = Real(m + load(source, first[SOURCE] + at[SOURCE]))
                m = Real(m / count)
            total = Real(0)
            for i in range(length):
                elements_at(i, row_sizes, row_strides, at)
                d = Real(load(source, first[SOURCE] + at[SOURCE]) - m)
                total = Real(total + d * d)
            r = Real(Real(1) / sqrt(Real(total / count + eps)))
            if LAYER:
                mean[first[2]] = m
            rstd[first[3]] = r
            for i in range(length):
                elements_at(i, row_sizes, row_strides, at)
                value = Real(Real(load(source, first[SOURCE] + at[SOURCE]) - m) * r)
                if SCALED:
                    value = Real(value * load_gamma(gamma, at[2]))
                if SHIFTED:
                    value = Real(value + load_beta(beta, at[3]))
                store(y, first[1] + at[1], value)
    return norm_fwd_naive


@functools.cache
def backward_kernel(config):
    """dx, a row a thread."""
    x_type, gamma_type = element(config.dtype), element(config.gamma)
    load, store, load_gamma = x_type.load, x_type.store, gamma_type.load
    Real, LAYER, SCALED, ADDED = f64 if x_type.compute == "float64" else f32, config.layer, config.scaled, config.shifted
    rows_at, elements_at = make_row_places64(config.outer_dims, 6), make_row_places64(config.row_dims, 5)

    @jit(launch_bounds=THREADS)
    def norm_bwd_naive(dy, x, gamma, mean, rstd, dsummed, dx, rows, length, sizes, strides, row_sizes, row_strides):
        row = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if row < rows:
            # dy, x, dx, dsummed, mean, rstd; dy, x, dx, dsummed, gamma
            first, at = cuda.local.array(6, i64), cuda.local.array(5, i64)
            rows_at(row, sizes, strides, first)
            m, r, a, b = Real(0), Real(rstd[first[5]]), Real(0), Real(0)
            if LAYER:
                m = Real(mean[first[4]])
            for i in range(length):
                elements_at(i, row_sizes, row_strides, at)
                g = load(dy, first[0] + at[0])
                if SCALED:
                    g = Real(g * load_gamma(gamma, at[4]))
                a = Real(a + g)
                b = Real(b + g * Real(Real(load(x, first[1] + at[1]) - m) * r))
            a, b = Real(a / Real(length)), Real(b / Real(length))
            for i in range(length):
                elements_at(i, row_sizes, row_strides, at)
                g = load(dy, first[0] + at[0])
                if SCALED:
                    g = Real(g * load_gamma(gamma, at[4]))
                if LAYER:
                    g = Real(g - a)
                n = Real(Real(load(x, first[1] + at[1]) - m) * r)
                g = Real(r * Real(g - n * b))
                if ADDED:
                    g = Real(g + load(dsummed, first[3] + at[3]))
                store(dx, first[2] + at[2], g)
    return norm_bwd_naive


@functools.cache
def weights_kernel(config):
    """dgamma and dbeta, a column a thread."""
    x_type = element(config.dtype)
    load, store, store_beta = x_type.load, element(config.gamma).store, element(config.beta).store
    Real, LAYER, SHIFTED = f64 if x_type.compute == "float64" else f32, config.layer, config.shifted
    rows_at, elements_at = make_row_places64(config.outer_dims, 4), make_row_places64(config.row_dims, 4)

    @jit(launch_bounds=THREADS)
    def norm_bwd_weights_naive(dy, x, mean, rstd, dgamma, dbeta, rows, length, sizes, strides, row_sizes, row_strides):
        column = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if column < length:
            first, at = cuda.local.array(4, i64), cuda.local.array(4, i64)          # dy, x, mean, rstd; dy, x, dgamma, dbeta
            elements_at(column, row_sizes, row_strides, at)
            a, b = Real(0), Real(0)
            for row in range(rows):
                rows_at(row, sizes, strides, first)
                d, value = load(dy, first[0] + at[0]), load(x, first[1] + at[1])
                if LAYER:
                    value = Real(value - mean[first[2]])
                b = Real(b + d)
                a = Real(a + d * Real(value * rstd[first[3]]))
            store(dgamma, at[2], a)
            if SHIFTED:
                store_beta(dbeta, at[3], b)
    return norm_bwd_weights_naive


def build(problem, device, config):
    """One launch forward, two backward; a missing array has another's place in the arguments."""
    p, form = problem, problem.form
    order = {name: k for k, (name, _, _) in enumerate(p.arrays)}
    present = {name: t for name, t, _ in p.arrays if t is not None}
    layer = "mean" in present

    def pointer(name, instead):
        name = name if name in present else instead
        return Argument(element(present[name].dtype).pointer, name)

    def places(*wanted):
        found = []
        for names, dims in ((wanted[0], form.outer), (wanted[1], form.row)):
            picked = [type(d)(d.size, tuple(d.strides[order.get(n, 0)] for n in names)) for d in dims]
            sizes, strides = row_arguments64(picked, len(names))
            found += [Argument(f"int64x{len(sizes)}", sizes), Argument(f"int64x{len(strides)}", strides)]
        return tuple(found)

    def dtype(name):
        return present[name].dtype if name in present else p.dtype

    def grid(threads):
        return -(-threads // THREADS), 1, 1

    extents = Argument("int64", form.rows), Argument("int64", form.length)
    dims = len(form.row), max(1, len(form.outer))
    block = (THREADS, 1, 1)
    if p.op.endswith("fwd"):
        config = Config(p.dtype, dtype("gamma"), dtype("beta"), layer, "gamma" in present, "beta" in present, *dims, "summed" in present)
        arguments = (pointer("x", ""), pointer("gamma", "x"), pointer("beta", "x"), pointer("residual", "x"), pointer("y", ""),
                     pointer("mean", "rstd"), pointer("rstd", ""), pointer("summed", "y"), Argument(p.compute, "eps"), *extents,
                     *places(("x", "y", "mean", "rstd", "residual", "summed"), ("x", "y", "gamma", "beta", "residual", "summed")))
        return (Launch(forward_kernel(config), grid(form.rows), block, arguments),)
    config = Config(p.dtype, dtype("gamma"), p.dtype, layer, "gamma" in present, "dsummed" in present, *dims)
    arguments = (pointer("dy", ""), pointer("x", ""), pointer("gamma", "x"), pointer("mean", "rstd"), pointer("rstd", ""),
                 pointer("dsummed", "x"), pointer("dx", ""), *extents,
                 *places(("dy", "x", "dx", "dsummed", "mean", "rstd"), ("dy", "x", "dx", "dsummed", "gamma")))
    rows = (Launch(backward_kernel(config), grid(form.rows), block, arguments),) if form.rows else ()
    config = Config(p.dtype, dtype("dgamma"), dtype("dbeta"), layer, False, "dbeta" in present, *dims)
    arguments = (pointer("dy", ""), pointer("x", ""), pointer("mean", "rstd"), pointer("rstd", ""), pointer("dgamma", ""),
                 pointer("dbeta", "dgamma"), *extents, *places(("dy", "x", "mean", "rstd"), ("dy", "x", "dgamma", "dbeta")))
    return (*rows, Launch(weights_kernel(config), grid(form.length), block, arguments))


ALGORITHMS = tuple(Algorithm(op=op, name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build)
                   for op in ("layer_norm_fwd", "layer_norm_bwd", "rms_norm_fwd", "rms_norm_bwd"))

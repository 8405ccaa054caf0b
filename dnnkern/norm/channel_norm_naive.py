"""One thread a mean for what its values give, one a weight for sums, one an element for inference; straight from the definition.

Forward a thread walks the values of its mean three times: for the mean, for the squared distances to it,
and for the results. Backward it walks them for two averages and for dx; a second launch sums dgamma and dbeta. Any strides, any number of
elements; each element costs divisions of 64-bit integers. Sums keep what rounding took (Kahan): all others are measured by them.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, device_function, f32, f64, i64, jit
from ..device.convert import element
from ..device.activation import Activation, activation_function, activation_gradient
from ..device.fastmath import sqrt
from ..device.rows import make_row_places64, row_arguments64
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, SECTOR, issue_seconds, memory_seconds, overlap
from ..host.launch import Argument, Launch
from ._channel_problem import STATISTIC, WEIGHT, gradient_source

COST = constants("norm/channel_naive")

THREADS = 128
OPS = ("batch_norm_train_fwd", "batch_norm_infer", "batch_norm_bwd", "group_norm_fwd", "group_norm_bwd")


@dataclass(frozen=True)
class Config:
    """dtypes of the arrays that may differ from x's, "" where there is none; the activation; dimensions of rows and of what there are rows
    of."""
    dtype: str
    gamma: str
    beta: str
    third: str
    fourth: str
    residual: bool
    activation: Activation
    row_dims: int
    outer_dims: int

    @property
    def real(self):
        return f64 if self.dtype == "float64" else f32

    @property
    def compute(self):
        return "float64" if self.dtype == "float64" else "float32"


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """A 32-byte sector a load; few rows keep few threads busy, each waiting for memory at every element."""
    if problem.op == "batch_norm_infer":
        return LAUNCH + overlap(memory=memory_seconds(2 * problem.x.size * SECTOR, device),
                                issue=issue_seconds(problem.x.size, COST.infer, device))
    rows, walks = max(1, problem.row_count), COST.fwd if problem.op.endswith("fwd") else COST.bwd
    waves = max(1, -(-rows // (COST.resident * device.sms)))
    issue = issue_seconds(problem.x.size, COST.element * walks, device)
    return LAUNCH + overlap(memory=memory_seconds(walks * problem.x.size * SECTOR, device), issue=issue,
                            waits=waves * walks * problem.row_length * COST.wait)


def _load(dtype):
    return element(dtype or "float32").load


def _store(dtype):
    return element(dtype or "float32").store


@functools.cache
def make_sum(Real):
    """Device function ``add(total, lost, value) -> (total, lost)``: Kahan's sum, as exact as its result can be for a million values."""
    @device_function
    def add(total, lost, value):
        part = Real(value - lost)
        more = Real(total + part)
        return more, Real(Real(more - total) - part)
    return add


@functools.cache
def forward_kernel(config):
    """y, the statistics, and what runs along, a mean a thread."""
    load, store, Real = _load(config.dtype), _store(config.dtype), config.real
    load_gamma, load_beta = _load(config.gamma), _load(config.beta)
    load_mean, store_mean, load_var, store_var = _load(config.third), _store(config.third), _load(config.fourth), _store(config.fourth)
    SCALED, SHIFTED, RESIDUAL = config.gamma != "", config.beta != "", config.residual
    RUNNING_MEAN, RUNNING_VAR = config.third != "", config.fourth != ""
    rows_at, elements_at = make_row_places64(config.outer_dims, 9), make_row_places64(config.row_dims, 5)
    act = activation_function(config.activation, config.compute)
    add = make_sum(Real)

    @jit(launch_bounds=THREADS)
    def channel_norm_fwd_naive(x, gamma, beta, running_mean, running_var, residual, y, mean, rstd, eps, momentum, rows, length, sizes,
                               strides, row_sizes, row_strides):
        row = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if row < rows:
            # of a row: x, y, residual, gamma, beta, mean, rstd, running_mean, running_var; within it the first five
            first, at = cuda.local.array(9, i64), cuda.local.array(5, i64)
            rows_at(row, sizes, strides, first)
            m, total, count, lost = Real(0), Real(0), Real(length), Real(0)
            for i in range(length):
                elements_at(i, row_sizes, row_strides, at)
                m, lost = add(m, lost, Real(load(x, first[0] + at[0])))
            m, lost = Real(m / count), Real(0)
            for i in range(length):
                elements_at(i, row_sizes, row_strides, at)
                d = Real(load(x, first[0] + at[0]) - m)
                total, lost = add(total, lost, Real(d * d))
            r = Real(Real(1) / sqrt(Real(total / count + eps)))
            mean[first[5]] = m
            rstd[first[6]] = r
            if RUNNING_MEAN:
                old = Real(load_mean(running_mean, first[7]))
                store_mean(running_mean, first[7], Real(Real(Real(1) - momentum) * old + momentum * m))
            if RUNNING_VAR:
                others = Real(count - Real(1)) if length > 1 else Real(1)
                old = Real(load_var(running_var, first[8]))
                store_var(running_var, first[8], Real(Real(Real(1) - momentum) * old + momentum * Real(total / others)))
            for i in range(length):
                elements_at(i, row_sizes, row_strides, at)
                value = Real(Real(load(x, first[0] + at[0]) - m) * r)
                if SCALED:
                    value = Real(value * load_gamma(gamma, first[3] + at[3]))
                if SHIFTED:
                    value = Real(value + load_beta(beta, first[4] + at[4]))
                if RESIDUAL:
                    value = Real(value + load(residual, first[2] + at[2]))
                store(y, first[1] + at[1], act(value))
    return channel_norm_fwd_naive


@functools.cache
def inference_kernel(config):
    """y by given statistics, an element a thread."""
    load, store, Real = _load(config.dtype), _store(config.dtype), config.real
    load_gamma, load_beta, load_mean, load_var = _load(config.gamma), _load(config.beta), _load(config.third), _load(config.fourth)
    SCALED, SHIFTED, RESIDUAL = config.gamma != "", config.beta != "", config.residual
    rows_at, elements_at = make_row_places64(config.outer_dims, 7), make_row_places64(config.row_dims, 7)
    act = activation_function(config.activation, config.compute)

    @jit(launch_bounds=THREADS)
    def batch_norm_infer_naive(x, gamma, beta, mean, var, residual, y, eps, rows, length, sizes, strides, row_sizes, row_strides):
        k = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if k < rows * length:
            first, at = cuda.local.array(7, i64), cuda.local.array(7, i64)          # x, y, residual, gamma, beta, mean, var
            row = k // length
            rows_at(row, sizes, strides, first)
            elements_at(k - row * length, row_sizes, row_strides, at)
            r = Real(Real(1) / sqrt(Real(Real(load_var(var, first[6])) + eps)))
            value = Real(Real(load(x, first[0] + at[0]) - Real(load_mean(mean, first[5]))) * r)
            if SCALED:
                value = Real(value * load_gamma(gamma, first[3]))
            if SHIFTED:
                value = Real(value + load_beta(beta, first[4]))
            if RESIDUAL:
                value = Real(value + load(residual, first[2] + at[2]))
            store(y, first[1] + at[1], act(value))
    return batch_norm_infer_naive


def make_past(config, gamma_dtype, beta_dtype):
    """Device function ``past(dy, n, y, gamma, beta, first, at)``: the gradient past the activation of an element that was normalised to n;
    y, gamma and beta are places number 2, 3 and 4."""
    load, load_gamma, load_beta, Real = _load(config.dtype), _load(gamma_dtype), _load(beta_dtype), config.real
    source, SCALED, SHIFTED = gradient_source(config.activation), gamma_dtype != "", beta_dtype != ""
    BY_Y, BY_X, gradient = source == "y", source == "x", activation_gradient(config.activation, config.compute)

    @device_function
    def past(dy, n, y, gamma, beta, first, at):
        if BY_Y:
            dy = gradient(dy, load(y, first[2] + at[2]))
        if BY_X:
            if SCALED:
                n = Real(n * load_gamma(gamma, first[3] + at[3]))
            if SHIFTED:
                n = Real(n + load_beta(beta, first[4] + at[4]))
            dy = gradient(dy, n)
        return dy
    return past


@functools.cache
def backward_kernel(config):
    """dx and dresidual, a mean a thread."""
    load, store, load_gamma, Real = _load(config.dtype), _store(config.dtype), _load(config.gamma), config.real
    SCALED, RESIDUAL = config.gamma != "", config.residual
    rows_at, elements_at = make_row_places64(config.outer_dims, 9), make_row_places64(config.row_dims, 7)
    past, add = make_past(config, config.gamma, config.beta), make_sum(Real)

    @jit(launch_bounds=THREADS)
    def channel_norm_bwd_naive(dy, x, gamma, beta, mean, rstd, y, dx, dresidual, rows, length, sizes, strides, row_sizes, row_strides):
        row = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if row < rows:
            # of a row: dy, x, y, gamma, beta, dx, dresidual, mean, rstd; within it the first seven
            first, at = cuda.local.array(9, i64), cuda.local.array(7, i64)
            rows_at(row, sizes, strides, first)
            m, r, a, b, lost_a, lost_b = Real(mean[first[7]]), Real(rstd[first[8]]), Real(0), Real(0), Real(0), Real(0)
            for i in range(length):
                elements_at(i, row_sizes, row_strides, at)
                n = Real(Real(load(x, first[1] + at[1]) - m) * r)
                g = past(load(dy, first[0] + at[0]), n, y, gamma, beta, first, at)
                if SCALED:
                    g = Real(g * load_gamma(gamma, first[3] + at[3]))
                a, lost_a = add(a, lost_a, g)
                b, lost_b = add(b, lost_b, Real(g * n))
            a, b = Real(a / Real(length)), Real(b / Real(length))
            for i in range(length):
                elements_at(i, row_sizes, row_strides, at)
                n = Real(Real(load(x, first[1] + at[1]) - m) * r)
                g = past(load(dy, first[0] + at[0]), n, y, gamma, beta, first, at)
                if RESIDUAL:
                    store(dresidual, first[6] + at[6], g)
                if SCALED:
                    g = Real(g * load_gamma(gamma, first[3] + at[3]))
                store(dx, first[5] + at[5], Real(r * Real(Real(g - a) - n * b)))
    return channel_norm_bwd_naive


@functools.cache
def weights_kernel(config):
    """dgamma and dbeta, a weight a thread."""
    load, store_gamma, store_beta, Real = _load(config.dtype), _store(config.gamma), _store(config.beta), config.real
    rows_at, elements_at = make_row_places64(config.outer_dims, 9), make_row_places64(config.row_dims, 7)
    past, add = make_past(config, config.third, config.fourth), make_sum(Real)

    @jit(launch_bounds=THREADS)
    def channel_norm_bwd_weights_naive(dy, x, gamma, beta, mean, rstd, y, dgamma, dbeta, rows, length, sizes, strides, row_sizes,
                                       row_strides):
        row = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if row < rows:
            # of a row: dy, x, y, gamma, beta, mean, rstd, dgamma, dbeta; within it the first seven
            first, at = cuda.local.array(9, i64), cuda.local.array(7, i64)
            rows_at(row, sizes, strides, first)
            a, b, lost_a, lost_b = Real(0), Real(0), Real(0), Real(0)
            for i in range(length):
                elements_at(i, row_sizes, row_strides, at)
                n = Real(Real(load(x, first[1] + at[1]) - mean[first[5] + at[5]]) * rstd[first[6] + at[6]])
                g = past(load(dy, first[0] + at[0]), n, y, gamma, beta, first, at)
                a, lost_a = add(a, lost_a, Real(g * n))
                b, lost_b = add(b, lost_b, g)
            store_gamma(dgamma, first[7], a)
            store_beta(dbeta, first[8], b)
    return channel_norm_bwd_weights_naive


def build(problem, device, config):
    """One launch forward, two backward; a missing array has another's place in the arguments."""
    p = problem

    def rows(kind, names, within, differ, residual=""):
        form = p.form(kind, names)
        row = [type(d)(d.size, d.strides[:within]) for d in form.row]
        places = []
        for dims, arrays in ((form.outer, len(names)), (row, within)):
            sizes, strides = row_arguments64(dims, arrays)
            places += [Argument(f"int64x{len(sizes)}", sizes), Argument(f"int64x{len(strides)}", strides)]
        types = [p.dtype_of(name) for name in differ] + [""] * (4 - len(differ))
        known = Config(p.dtype, *types, residual != "" and p.tensor(residual) is not None, p.activation, len(form.row), len(form.outer))
        return known, form, (Argument("int64", form.rows), Argument("int64", form.length), *places)

    def launch(kernel, threads, *arguments):
        return Launch(kernel, (-(-threads // THREADS), 1, 1), (THREADS, 1, 1), arguments)

    eps = Argument(p.compute, "eps")
    if p.op == "batch_norm_infer":
        names = ("x", "y", "residual", "gamma", "beta", "mean", "var")
        known, form, places = rows(WEIGHT, names, 7, names[3:], "residual")
        arrays = [p.pointer(name) for name in ("x", "gamma", "beta", "mean", "var", "residual", "y")]
        return (launch(inference_kernel(known), form.rows * form.length, *arrays, eps, *places),)
    if p.op.endswith("fwd"):
        names = ("x", "y", "residual", "gamma", "beta", "mean", "rstd", "running_mean", "running_var")
        known, form, places = rows(STATISTIC, names, 5, ("gamma", "beta", "running_mean", "running_var"), "residual")
        arrays = [p.pointer(name) for name in ("x", "gamma", "beta", "running_mean", "running_var", "residual", "y", "mean", "rstd")]
        momentum = Argument(p.compute, "momentum") if p.op.startswith("batch") else Argument(p.compute, 0.0)
        return (launch(forward_kernel(known), form.rows, *arrays, eps, momentum, *places),)
    launches = []
    names = ("dy", "x", "y", "gamma", "beta", "dx", "dresidual", "mean", "rstd")
    known, form, places = rows(STATISTIC, names, 7, ("gamma", "beta"), "dresidual")
    if form.rows:
        arrays = [p.pointer(name) for name in ("dy", "x", "gamma", "beta", "mean", "rstd", "y", "dx", "dresidual")]
        launches.append(launch(backward_kernel(known), form.rows, *arrays, *places))
    names = ("dy", "x", "y", "gamma", "beta", "mean", "rstd", "dgamma", "dbeta")
    known, form, places = rows(WEIGHT, names, 7, ("dgamma", "dbeta", "gamma", "beta"))
    arrays = [p.pointer(name) for name in ("dy", "x", "gamma", "beta", "mean", "rstd", "y", "dgamma", "dbeta")]
    return (*launches, launch(weights_kernel(known), form.rows, *arrays, *places))


ALGORITHMS = tuple(Algorithm(op=op, name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build) for op in OPS)

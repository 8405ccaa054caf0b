"""One thread a mean for what its values give, one a weight for sums, one an element for inference; straight from the definition.

Forward a thread walks the values of its mean three times: for the mean, for the squared distances to it,
and for the results. Backward it walks them for two averages and for dx; a second launch sums dgamma and dbeta. Any strides, any number of
elements; each element costs divisions of 64-bit integers. Sums keep what rounding took (Kahan): all others are measured by them.
"""
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..device import cuda, device_function, f32, f64, i64, jit
from ..device.activation import Activation, activation_function, activation_gradient
from ..device.convert import element
from ..device.fastmath import sqrt
from ..device.program_batches import make_placed
from ..device.rows import make_row_offsets64, row_arguments64
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, SECTOR, issue_seconds, memory_seconds, overlap
from ..engine.row_program import make_functions
from ..host.launch import Argument, Launch
from ._channel_problem import STATISTIC, WEIGHT, gradient_source

if TYPE_CHECKING:
    from ..device.program import Program

COST = constants("norm/channel_naive")

THREADS = 128
OPS = ("batch_norm_train_fwd", "batch_norm_infer", "batch_norm_bwd", "batch_norm_bwd_apply", "group_norm_fwd", "group_norm_bwd")
# Names of the arrays that a row has offsets in; those of an element of a row are in the first of them.
FORWARD = "x", "y", "residual", "gamma", "beta", "mean", "rstd", "running_mean", "running_var", "next_mean", "next_var"
INFERENCE = "x", "y", "residual", "gamma", "beta", "mean", "var"
BACKWARD = "dy", "x", "y", "gamma", "beta", "dx", "dresidual", "mean", "rstd"
APPLIED = (*BACKWARD, "dgamma", "dbeta")
WEIGHTS = "dy", "x", "y", "gamma", "beta", "mean", "rstd", "dgamma", "dbeta"


@dataclass(frozen=True)
class Config:
    """dtypes of the arrays that may differ from x's, "" where there is none; the activation; dimensions of rows and of what there are rows
    of; dtypes of y, "" where it is x's, and of what the running statistics are written to; whether
    there is a y; whether the statistics are constants; the program, and whether its operands have 64-bit strides."""
    dtype: str
    gamma: str
    beta: str
    third: str
    fourth: str
    residual: bool
    activation: Activation
    row_dims: int
    outer_dims: int
    result: str = ""
    next_mean: str = ""
    next_var: str = ""
    written: bool = True
    frozen: bool = False
    program: "Program | None" = None
    wide: bool = False

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
    if problem.op in ("batch_norm_infer", "batch_norm_bwd_apply"):
        return LAUNCH + overlap(memory=memory_seconds(2 * problem.x.size * SECTOR, device),
                                issue=issue_seconds(problem.x.size, COST.infer, device))
    rows, walks = max(1, problem.row_count), COST.fwd if problem.op.endswith("fwd") else COST.bwd
    waves = max(1, -(-rows // (COST.resident * device.sms)))
    issue = issue_seconds(problem.x.size, COST.element * walks, device)
    return LAUNCH + overlap(memory=memory_seconds(walks * problem.x.size * SECTOR, device), issue=issue,
                            waits=waves * walks * problem.row_length * COST.wait)


def make_offsets(config, of_row, of_element):
    return make_row_offsets64(config.outer_dims, of_row), make_row_offsets64(config.row_dims, of_element)


def _program_of(config, result=None):
    """(whether there is a program, device functions: the operands moved to an element, and what becomes of its value, which is rounded to
    the dtype `result`, by default y's)."""
    function, _ = make_functions(config.program, config.compute, result or config.result or config.dtype, 1)
    return config.program is not None, make_placed(config.program, config.outer_dims + config.row_dims), function


def _load(dtype):
    return element(dtype or "float32").load


def _store(dtype):
    return element(dtype or "float32").store


@functools.cache
def make_sum(Real):
    """Device function ``add(total, lost, value) -> (total, lost)``: Kahan's sum, as exact as its result can be for a million values."""
    @device_function
    def add(total, lost, value):
        part = value - lost
        more = total + part
        return more, more - total - part
    return add


@functools.cache
def forward_kernel(config):
    """y, the statistics, and what runs along, a mean a thread."""
    load, store, Real = _load(config.dtype), _store(config.result or config.dtype), config.real
    load_gamma, load_beta = _load(config.gamma), _load(config.beta)
    load_mean, load_var = _load(config.third), _load(config.fourth)
    store_mean, store_var = _store(config.next_mean), _store(config.next_var)
    SCALED, SHIFTED, RESIDUAL = config.gamma != "", config.beta != "", config.residual
    RUNNING_MEAN, RUNNING_VAR = config.third != "", config.fourth != ""
    row_offsets, element_offsets = make_offsets(config, FORWARD, FORWARD[:5])
    act = activation_function(config.activation, config.compute)
    add, WRITTEN = make_sum(Real), config.written
    PROGRAM, placed, function = _program_of(config)

    @jit(launch_bounds=THREADS)
    def channel_norm_fwd_naive(x, gamma, beta, running_mean, running_var, residual, y, mean, rstd, next_mean, next_var, eps, momentum,
                               rows, length, sizes, strides, row_sizes, row_strides, shape, operands):
        thread = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if thread < rows:
            row = row_offsets(thread, sizes, strides)
            m, total, count, lost = Real(0), Real(0), Real(length), Real(0)
            for i in range(length):
                at = element_offsets(i, row_sizes, row_strides)
                m, lost = add(m, lost, Real(load(x, row.x + at.x)))
            m, lost = m / count, Real(0)
            for i in range(length):
                at = element_offsets(i, row_sizes, row_strides)
                d = load(x, row.x + at.x) - m
                total, lost = add(total, lost, d * d)
            r = Real(1) / sqrt(total / count + eps)
            mean[row.mean] = m
            rstd[row.rstd] = r
            if RUNNING_MEAN:
                old = Real(load_mean(running_mean, row.running_mean))
                store_mean(next_mean, row.next_mean, (Real(1) - momentum) * old + momentum * m)
            if RUNNING_VAR:
                others = count - Real(1) if length > 1 else Real(1)
                old = Real(load_var(running_var, row.running_var))
                store_var(next_var, row.next_var, (Real(1) - momentum) * old + momentum * (total / others))
            for i in range(length if WRITTEN else 0):
                at = element_offsets(i, row_sizes, row_strides)
                value = (load(x, row.x + at.x) - m) * r
                if SCALED:
                    value = value * load_gamma(gamma, row.gamma + at.gamma)
                if SHIFTED:
                    value += load_beta(beta, row.beta + at.beta)
                if RESIDUAL:
                    value += load(residual, row.residual + at.residual)
                if PROGRAM:
                    store(y, row.y + at.y, function(act(value), 0, 0, placed(operands, thread * length + i, shape)))
                else:
                    store(y, row.y + at.y, act(value))
    return channel_norm_fwd_naive


@functools.cache
def inference_kernel(config):
    """y by given statistics, an element a thread."""
    load, store, Real = _load(config.dtype), _store(config.result or config.dtype), config.real
    load_gamma, load_beta, load_mean, load_var = _load(config.gamma), _load(config.beta), _load(config.third), _load(config.fourth)
    SCALED, SHIFTED, RESIDUAL = config.gamma != "", config.beta != "", config.residual
    row_offsets, element_offsets = make_offsets(config, INFERENCE, INFERENCE)
    act = activation_function(config.activation, config.compute)
    PROGRAM, placed, function = _program_of(config)

    @jit(launch_bounds=THREADS)
    def batch_norm_infer_naive(x, gamma, beta, mean, var, residual, y, eps, rows, length, sizes, strides, row_sizes, row_strides, shape,
                               operands):
        k = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if k < rows * length:
            n = k // length
            row = row_offsets(n, sizes, strides)
            at = element_offsets(k - n * length, row_sizes, row_strides)
            r = Real(1) / sqrt(Real(load_var(var, row.var)) + eps)
            value = (load(x, row.x + at.x) - Real(load_mean(mean, row.mean))) * r
            if SCALED:
                value = value * load_gamma(gamma, row.gamma)
            if SHIFTED:
                value += load_beta(beta, row.beta)
            if RESIDUAL:
                value += load(residual, row.residual + at.residual)
            if PROGRAM:
                store(y, row.y + at.y, function(act(value), 0, 0, placed(operands, k, shape)))
            else:
                store(y, row.y + at.y, act(value))
    return batch_norm_infer_naive


def make_given(config):
    """Device function ``given(dy, offset, z, shape, operands)``: element z of dy, past the program if there is one."""
    load, (PROGRAM, placed, function) = _load(config.dtype), _program_of(config, config.compute)

    @device_function
    def given(dy, offset, z, shape, operands):
        if PROGRAM:
            return function(load(dy, offset), 0, 0, placed(operands, z, shape))
        return load(dy, offset)
    return given


def make_past(config, gamma_dtype, beta_dtype):
    """Device function ``past(dy, n, y, gamma, beta, row, at)``: the gradient past the activation of an element that was normalised to n;
    `row` and `at` are the offsets of the row and of the element."""
    load, load_gamma, load_beta = _load(config.dtype), _load(gamma_dtype), _load(beta_dtype)
    source, SCALED, SHIFTED = gradient_source(config.activation), gamma_dtype != "", beta_dtype != ""
    BY_Y, BY_X, gradient = source == "y", source == "x", activation_gradient(config.activation, config.compute)

    @device_function
    def past(dy, n, y, gamma, beta, row, at):
        if BY_Y:
            dy = gradient(dy, load(y, row.y + at.y))
        if BY_X:
            if SCALED:
                n = n * load_gamma(gamma, row.gamma + at.gamma)
            if SHIFTED:
                n = n + load_beta(beta, row.beta + at.beta)
            dy = gradient(dy, n)
        return dy
    return past


@functools.cache
def backward_kernel(config):
    """dx and dresidual, a mean a thread."""
    load, store, load_gamma, Real = _load(config.dtype), _store(config.dtype), _load(config.gamma), config.real
    SCALED, RESIDUAL = config.gamma != "", config.residual
    row_offsets, element_offsets = make_offsets(config, BACKWARD, BACKWARD[:7])
    past, add, FROZEN = make_past(config, config.gamma, config.beta), make_sum(Real), config.frozen
    given = make_given(config)

    @jit(launch_bounds=THREADS)
    def channel_norm_bwd_naive(dy, x, gamma, beta, mean, rstd, y, dx, dresidual, rows, length, sizes, strides, row_sizes, row_strides,
                               shape, operands):
        thread = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if thread < rows:
            row = row_offsets(thread, sizes, strides)
            m, r, a, b, lost_a, lost_b = Real(mean[row.mean]), Real(rstd[row.rstd]), Real(0), Real(0), Real(0), Real(0)
            for i in range(0 if FROZEN else length):
                at = element_offsets(i, row_sizes, row_strides)
                n = (load(x, row.x + at.x) - m) * r
                g = past(given(dy, row.dy + at.dy, thread * length + i, shape, operands), n, y, gamma, beta, row, at)
                if SCALED:
                    g = g * load_gamma(gamma, row.gamma + at.gamma)
                a, lost_a = add(a, lost_a, g)
                b, lost_b = add(b, lost_b, g * n)
            a, b = a / Real(length), b / Real(length)
            for i in range(length):
                at = element_offsets(i, row_sizes, row_strides)
                n = (load(x, row.x + at.x) - m) * r
                g = past(given(dy, row.dy + at.dy, thread * length + i, shape, operands), n, y, gamma, beta, row, at)
                if RESIDUAL:
                    store(dresidual, row.dresidual + at.dresidual, g)
                if SCALED:
                    g = g * load_gamma(gamma, row.gamma + at.gamma)
                store(dx, row.dx + at.dx, r * g if FROZEN else r * (g - a - n * b))
    return channel_norm_bwd_naive


@functools.cache
def given_kernel(config):
    """dx and dresidual from given sums, an element a thread."""
    load, store, load_gamma, Real = _load(config.dtype), _store(config.dtype), _load(config.gamma), config.real
    SCALED, RESIDUAL, past = config.gamma != "", config.residual, make_past(config, config.gamma, config.beta)
    row_offsets, element_offsets = make_offsets(config, APPLIED, APPLIED)

    @jit(launch_bounds=THREADS)
    def batch_norm_bwd_apply_naive(dy, x, gamma, beta, mean, rstd, y, dx, dresidual, dgamma, dbeta, counts, parts, count_step, per_block,
                                   rows, length, sizes, strides, row_sizes, row_strides):
        k = cuda.blockIdx.x * per_block + cuda.threadIdx.x
        if k < rows * length:
            number, count = k // length, Real(0)
            for part in range(parts):
                count += Real(counts[part * count_step])
            row, at = row_offsets(number, sizes, strides), element_offsets(k - number * length, row_sizes, row_strides)
            r = Real(rstd[row.rstd])
            n = (load(x, row.x + at.x) - Real(mean[row.mean])) * r
            g = past(load(dy, row.dy + at.dy), n, y, gamma, beta, row, at)
            if RESIDUAL:
                store(dresidual, row.dresidual + at.dresidual, g)
            g -= (dbeta[row.dbeta] + n * dgamma[row.dgamma]) / count
            if SCALED:
                g = g * load_gamma(gamma, row.gamma)
            store(dx, row.dx + at.dx, r * g)
    return batch_norm_bwd_apply_naive


@functools.cache
def weights_kernel(config):
    """dgamma and dbeta, a weight a thread."""
    load, store_gamma, store_beta, Real = _load(config.dtype), _store(config.gamma), _store(config.beta), config.real
    row_offsets, element_offsets = make_offsets(config, WEIGHTS, WEIGHTS[:7])
    past, add, given = make_past(config, config.third, config.fourth), make_sum(Real), make_given(config)

    @jit(launch_bounds=THREADS)
    def channel_norm_bwd_weights_naive(dy, x, gamma, beta, mean, rstd, y, dgamma, dbeta, rows, length, sizes, strides, row_sizes,
                                       row_strides, shape, operands):
        thread = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if thread < rows:
            row = row_offsets(thread, sizes, strides)
            a, b, lost_a, lost_b = Real(0), Real(0), Real(0), Real(0)
            for i in range(length):
                at = element_offsets(i, row_sizes, row_strides)
                n = (load(x, row.x + at.x) - mean[row.mean + at.mean]) * rstd[row.rstd + at.rstd]
                g = past(given(dy, row.dy + at.dy, thread * length + i, shape, operands), n, y, gamma, beta, row, at)
                a, lost_a = add(a, lost_a, g * n)
                b, lost_b = add(b, lost_b, g)
            store_gamma(dgamma, row.dgamma, a)
            store_beta(dbeta, row.dbeta, b)
    return channel_norm_bwd_weights_naive


def build(problem, device, config):
    """One launch forward, two backward; a missing array has another's place in the arguments."""
    p = problem

    def rows(kind, names, within, differ, residual="", moved=()):
        form = p.form(kind, names)
        offsets = []
        for dims, arrays in ((form.outer, len(names)), (form.row, within)):
            sizes, strides = row_arguments64([type(d)(d.size, d.strides[:arrays]) for d in dims], arrays)
            offsets += [Argument(f"int64x{len(sizes)}", sizes), Argument(f"int64x{len(strides)}", strides)]
        types = [p.dtype_of(name) for name in differ] + [""] * (4 - len(differ))
        program = {"program": p.program, "wide": p.wide} if p.program else {}
        known = Config(p.dtype, *types, residual != "" and p.tensor(residual) is not None, p.activation, len(form.row), len(form.outer),
                       p.result, *(p.dtype_of(name) for name in moved or ("", "")), p.dtype_of("y") != "" or not moved, p.frozen,
                       **program)
        return known, form, (Argument("int64", form.rows), Argument("int64", form.length), *offsets)

    def launch(kernel, threads, *arguments):
        return Launch(kernel, (-(-threads // THREADS), 1, 1), (THREADS, 1, 1), arguments)

    eps = Argument(p.compute, "eps")
    if p.op == "batch_norm_infer":
        known, form, offsets = rows(WEIGHT, INFERENCE, 7, INFERENCE[3:], "residual")
        arrays = [p.pointer(name) for name in ("x", "gamma", "beta", "mean", "var", "residual", "y")]
        return (launch(inference_kernel(known), form.rows * form.length, *arrays, eps, *offsets, *p.element_arguments(form)),)
    if p.op.endswith("fwd"):
        is_batch = p.op.startswith("batch")
        moved = (p.moved("mean"), p.moved("var")) if is_batch else FORWARD[-2:]
        known, form, offsets = rows(STATISTIC, (*FORWARD[:-2], *moved), 5, ("gamma", "beta", "running_mean", "running_var"), "residual",
                                    moved)
        arrays = [p.pointer(name) for name in (
            "x", "gamma", "beta", "running_mean", "running_var", "residual", "y", "mean", "rstd", *moved)]
        momentum = Argument(p.compute, "momentum" if is_batch else 0.0)
        return (launch(forward_kernel(known), form.rows, *arrays, eps, momentum, *offsets, *p.element_arguments(form)),)
    if p.op == "batch_norm_bwd_apply":
        known, form, offsets = rows(WEIGHT, APPLIED, 11, ("gamma", "beta"), "dresidual")
        arrays = [p.pointer(name) for name in ("dy", "x", "gamma", "beta", "mean", "rstd", "y", "dx", "dresidual", "dgamma", "dbeta")]
        counts = (Argument(f"{p.counts.dtype}*", "counts"), Argument("int64", p.counts.shape[0]), Argument("int64", p.counts.strides[0]),
                  Argument("int64", THREADS))
        return (launch(given_kernel(known), form.rows * form.length, *arrays, *counts, *offsets),)
    launches = []
    known, form, offsets = rows(STATISTIC, BACKWARD, 7, ("gamma", "beta"), "dresidual")
    if form.rows and p.tensor("dx") is not None:
        arrays = [p.pointer(name) for name in ("dy", "x", "gamma", "beta", "mean", "rstd", "y", "dx", "dresidual")]
        launches.append(launch(backward_kernel(known), form.rows, *arrays, *offsets, *p.element_arguments(form)))
    known, form, offsets = rows(WEIGHT, WEIGHTS, 7, ("dgamma", "dbeta", "gamma", "beta"))
    arrays = [p.pointer(name) for name in ("dy", "x", "gamma", "beta", "mean", "rstd", "y", "dgamma", "dbeta")]
    return (*launches, launch(weights_kernel(known), form.rows, *arrays, *offsets, *p.element_arguments(form)))


ALGORITHMS = tuple(Algorithm(op=op, name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build,
                             programs=op != "batch_norm_bwd_apply", bits=("loads",)) for op in OPS)

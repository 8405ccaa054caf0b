"""One thread per row for the outputs, one per column for the weights' gradients; straight from the definition.

Forward a thread reads its row three times: for the mean, for the squared distances to it, and for the results; both sums are sums of
sums, so that long rows lose no digits. Backward it reads it twice, for two means and for dx, and a second launch sums dgamma and dbeta over
the rows. With a residual the sum is stored first, and read back. Arbitrary strides and sizes; every element costs divisions of 64-bit
integers. Wins only where nothing else applies.
"""
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..device import cuda, f32, f64, i64, jit
from ..device.convert import element
from ..device.fastmath import sqrt
from ..device.program_batches import make_placed
from ..device.rows import make_row_offsets64, row_arguments64
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, SECTOR, issue_seconds, memory_seconds, overlap
from ..engine.row_program import make_functions
from ..host.launch import Argument, Launch

if TYPE_CHECKING:
    from ..device.program import Program

COST = constants("norm/naive")

THREADS = 128
PART = 512  # elements whose sum is added to the row's: a sum of 400,000, one by one, would be off by 1e-4 in float32
# Names of the arrays that a row has offsets in, and of those that an element of a row has.
FORWARD = ("x", "y", "mean", "rstd", "residual", "summed"), ("x", "y", "gamma", "beta", "residual", "summed")
BACKWARD = ("dy", "x", "dx", "dsummed", "mean", "rstd"), ("dy", "x", "dx", "dsummed", "gamma")
WEIGHTS = ("dy", "x", "mean", "rstd"), ("dy", "x", "dgamma", "dbeta")


@dataclass(frozen=True)
class Config:
    """Element types of x, gamma and beta (backward of dgamma and dbeta), whether there is a mean, each weight, a residual; dimensions; that
    of y, "" where it is x's; the program, all dimensions beside it, whether its operands have 64-bit strides."""
    dtype: str
    gamma: str
    beta: str
    layer: bool
    scaled: bool
    shifted: bool
    row_dims: int
    outer_dims: int
    residual: bool = False
    result: str = ""
    program: "Program | None" = None
    all_dims: int = 0
    wide: bool = False


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
    """y, mean and rstd, one thread per row."""
    x_type = element(config.dtype)
    load, store, load_gamma, load_beta = x_type.load, x_type.store, element(config.gamma).load, element(config.beta).load
    store_y = element(config.result or config.dtype).store
    Real = f64 if x_type.compute == "float64" else f32
    LAYER, SCALED, SHIFTED, RESIDUAL = config.layer, config.scaled, config.shifted, config.residual
    row_offsets, element_offsets = make_row_offsets64(config.outer_dims, FORWARD[0]), make_row_offsets64(config.row_dims, FORWARD[1])
    PROGRAM, placed = config.program is not None, make_placed(config.program, config.all_dims)
    function, _ = make_functions(config.program, x_type.compute, config.result or config.dtype, 1)

    @jit(launch_bounds=THREADS)
    def norm_fwd_naive(x, gamma, beta, residual, y, mean, rstd, summed, eps, rows, length, sizes, strides, row_sizes, row_strides,
                       shape, operands):
        n = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if n < rows:
            row, source, count = row_offsets(n, sizes, strides), x, Real(length)
            if RESIDUAL:
                source = summed
                for i in range(length):
                    at = element_offsets(i, row_sizes, row_strides)
                    store(summed, row.summed + at.summed, load(x, row.x + at.x) + load(residual, row.residual + at.residual))
            m = Real(0)
            if LAYER:
                for first in range(0, length, PART):
                    part = Real(0)
                    for i in range(first, min(first + PART, length)):
                        at = element_offsets(i, row_sizes, row_strides)
                        part += load(source, row.summed + at.summed if RESIDUAL else row.x + at.x)
                    m += part
                m = m / count
            squares = Real(0)
            for first in range(0, length, PART):
                part = Real(0)
                for i in range(first, min(first + PART, length)):
                    at = element_offsets(i, row_sizes, row_strides)
                    d = load(source, row.summed + at.summed if RESIDUAL else row.x + at.x) - m
                    part += d * d
                squares += part
            r = 1 / sqrt(squares / count + eps)
            if LAYER:
                mean[row.mean] = m
            rstd[row.rstd] = r
            for i in range(length):
                at = element_offsets(i, row_sizes, row_strides)
                value = (load(source, row.summed + at.summed if RESIDUAL else row.x + at.x) - m) * r
                if SCALED:
                    value = value * load_gamma(gamma, at.gamma)
                if SHIFTED:
                    value += load_beta(beta, at.beta)
                if PROGRAM:
                    value = function(value, 0, 0, placed(operands, n * length + i, shape))
                store_y(y, row.y + at.y, value)
    return norm_fwd_naive


@functools.cache
def backward_kernel(config):
    """dx, one thread per row."""
    x_type = element(config.dtype)
    load, store, load_gamma = x_type.load, x_type.store, element(config.gamma).load
    Real, LAYER, SCALED, ADDED = f64 if x_type.compute == "float64" else f32, config.layer, config.scaled, config.shifted
    row_offsets, element_offsets = make_row_offsets64(config.outer_dims, BACKWARD[0]), make_row_offsets64(config.row_dims, BACKWARD[1])

    @jit(launch_bounds=THREADS)
    def norm_bwd_naive(dy, x, gamma, mean, rstd, dsummed, dx, rows, length, sizes, strides, row_sizes, row_strides):
        n = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if n < rows:
            row = row_offsets(n, sizes, strides)
            m, r, mean_g, mean_gx = Real(0), Real(rstd[row.rstd]), Real(0), Real(0)
            if LAYER:
                m = Real(mean[row.mean])
            for i in range(length):
                at = element_offsets(i, row_sizes, row_strides)
                g = load(dy, row.dy + at.dy)
                if SCALED:
                    g = g * load_gamma(gamma, at.gamma)
                mean_g += g
                mean_gx += g * ((load(x, row.x + at.x) - m) * r)
            mean_g, mean_gx = mean_g / Real(length), mean_gx / Real(length)
            for i in range(length):
                at = element_offsets(i, row_sizes, row_strides)
                g = load(dy, row.dy + at.dy)
                if SCALED:
                    g = g * load_gamma(gamma, at.gamma)
                if LAYER:
                    g = g - mean_g
                normalised = (load(x, row.x + at.x) - m) * r
                g = r * (g - normalised * mean_gx)
                if ADDED:
                    g += load(dsummed, row.dsummed + at.dsummed)
                store(dx, row.dx + at.dx, g)
    return norm_bwd_naive


@functools.cache
def weights_kernel(config):
    """dgamma and dbeta, one thread per column."""
    load, store, store_beta = element(config.dtype).load, element(config.gamma).store, element(config.beta).store
    Real, LAYER, SHIFTED = f64 if element(config.dtype).compute == "float64" else f32, config.layer, config.shifted
    row_offsets, element_offsets = make_row_offsets64(config.outer_dims, WEIGHTS[0]), make_row_offsets64(config.row_dims, WEIGHTS[1])

    @jit(launch_bounds=THREADS)
    def norm_bwd_weights_naive(dy, x, mean, rstd, dgamma, dbeta, rows, length, sizes, strides, row_sizes, row_strides):
        column = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if column < length:
            at = element_offsets(column, row_sizes, row_strides)
            gamma_sum, beta_sum = Real(0), Real(0)
            for n in range(rows):
                row = row_offsets(n, sizes, strides)
                g, value = load(dy, row.dy + at.dy), load(x, row.x + at.x)
                if LAYER:
                    value = value - mean[row.mean]
                beta_sum += g
                gamma_sum += g * (value * rstd[row.rstd])
            store(dgamma, at.dgamma, gamma_sum)
            if SHIFTED:
                store_beta(dbeta, at.dbeta, beta_sum)
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

    def offset_arguments(of_row, of_element):
        found = []
        for names, dims in ((of_row, form.outer), (of_element, form.row)):
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
        config = Config(p.dtype, dtype("gamma"), dtype("beta"), layer, "gamma" in present, "beta" in present, *dims, "summed" in present,
                        p.result, p.program, p.element_dims, p.wide)
        arguments = (pointer("x", ""), pointer("gamma", "x"), pointer("beta", "x"), pointer("residual", "x"), pointer("y", ""),
                     pointer("mean", "rstd"), pointer("rstd", ""), pointer("summed", "x"), Argument(p.compute, "eps"), *extents,
                     *offset_arguments(*FORWARD), *p.element_arguments())
        return (Launch(forward_kernel(config), grid(form.rows), block, arguments),)
    config = Config(p.dtype, dtype("gamma"), p.dtype, layer, "gamma" in present, "dsummed" in present, *dims)
    arguments = (pointer("dy", ""), pointer("x", ""), pointer("gamma", "x"), pointer("mean", "rstd"), pointer("rstd", ""),
                 pointer("dsummed", "x"), pointer("dx", ""), *extents, *offset_arguments(*BACKWARD))
    rows = (Launch(backward_kernel(config), grid(form.rows), block, arguments),) if form.rows else ()
    config = Config(p.dtype, dtype("dgamma"), dtype("dbeta"), layer, False, "dbeta" in present, *dims)
    arguments = (pointer("dy", ""), pointer("x", ""), pointer("mean", "rstd"), pointer("rstd", ""), pointer("dgamma", ""),
                 pointer("dbeta", "dgamma"), *extents, *offset_arguments(*WEIGHTS))
    return (*rows, Launch(weights_kernel(config), grid(form.length), block, arguments))


ALGORITHMS = tuple(Algorithm(op=op, name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build,
                             programs=op.endswith("fwd"), bits=("loads",))
                   for op in ("layer_norm_fwd", "layer_norm_bwd", "rms_norm_fwd", "rms_norm_bwd"))

"""One thread per element.

Element i of the result, counted in the order in which it lies in memory, is computed on its own. Any strides, any dtype, any number of
elements; each coordinate costs a division of 64-bit integers.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, f32, f64, i64, jit
from ..device.convert import element
from ..device.pointwise import SCALED, Function, make_function
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, Cost, issue_seconds, memory_seconds, overlap
from ..host.launch import Argument, Launch
from ._estimate import instructions
from ._lanes import scalar_arguments
from ._offsets import ARRAYS, INPUTS, arrays_argument, make_offsets, offset_arguments
from ._slopes import slope_launches, slope_cost, slope_workspace

COST = constants("act/naive")

THREADS = 256
OPS = ("activation_fwd", "activation_bwd", "unary", "binary", "glu_fwd", "glu_bwd", *SCALED)


@dataclass(frozen=True)
class Config:
    """The function, what it is computed in, the arrays' element types, inputs first, and the number of dimensions."""
    function: Function
    compute: str
    dtypes: tuple
    inputs: int
    dims: int


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None but for the gradient of a slope."""
    return slope_workspace(problem, device, simple=True)


def estimate(problem, device, config):
    """A 32-byte sector a load where neighbours of the result are apart in an input, and the divisions."""
    form, total = problem.form, 0
    for k, a in enumerate(form.arrays):
        total += a.tensor.nbytes * min(32, max(abs(form.dims[-1].strides[k]), 1) * a.itemsize) // a.itemsize
    issue = issue_seconds(form.size, COST.thread + COST.dimension * len(form.dims) + instructions(problem), device)
    work = overlap(issue=issue, memory=memory_seconds(total, device) * (1 + COST.more * (form.inputs - 1)))
    return LAUNCH + Cost(waves=COST.start) + work + slope_cost(problem, device, simple=True)


def _element(dtype):
    return element("uint8" if dtype == "bool" else dtype)


@functools.cache
def kernel(config):
    """y[...], z[...] = f(a[...], b[...], c[...]), an element a thread."""
    inputs, T = config.inputs, {"float32": f32, "float64": f64}[config.compute]
    apply, offsets = make_function(config.function, config.compute), make_offsets(config.dims, True, any_size=True)
    loads = [_element(d).load for d in config.dtypes[:inputs]]
    load_a, load_b, load_c = (*loads, *loads[:1] * INPUTS)[:INPUTS]
    stores = [_element(d).store for d in config.dtypes[inputs:]]
    store_y, store_z = stores[0], stores[-1]
    R, S = ({"float32": f32, "float64": f64}[_element(d).compute] for d in (config.dtypes[inputs], config.dtypes[-1]))
    HAS_B, HAS_C, TWO, INDEX = inputs > 1, inputs > 2, len(stores) > 1, config.function.mode == "gen_index"
    NUMBERS = config.function.is_scaled

    @jit(launch_bounds=THREADS)
    def pointwise_naive(a, b, c, y, z, elements, firsts, sizes, strides, alpha, beta):
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < elements:
            a_at, b_at, c_at, y_at, z_at = offsets(i, sizes, strides)
            p, q = T(0), T(0)
            if HAS_B:
                p = T(load_b(b, firsts.b + b_at))
            if HAS_C:
                q = T(load_c(c, firsts.c + c_at))
            if INDEX:
                store_y(y, firsts.y + y_at, T(firsts.a + a_at))
            elif TWO:
                r, s = apply(T(load_a(a, firsts.a + a_at)), p, q)
                store_y(y, firsts.y + y_at, R(r))
                store_z(z, firsts.z + z_at, S(s))
            elif NUMBERS:
                store_y(y, firsts.y + y_at, R(apply(T(load_a(a, firsts.a + a_at)), p, (alpha, beta))))
            else:
                store_y(y, firsts.y + y_at, R(apply(T(load_a(a, firsts.a + a_at)), p, q)))
    return pointwise_naive


def build(problem, device, config):
    """One launch, and those of a slope's gradient."""
    form, more = problem.form, slope_launches(problem, device, simple=True)
    if not form.size:
        return more
    found = [Argument(_element(a.dtype).pointer, a.name) for a in form.arrays]
    inputs, outputs = found[:form.inputs], found[form.inputs:]
    arguments = (*inputs, *outputs[:1] * (INPUTS - len(inputs)), *outputs, *outputs[:1] * (ARRAYS - INPUTS - len(outputs)),
                 Argument("int64", form.size), arrays_argument((a.first for a in form.arrays), form.inputs),
                 *offset_arguments(form.dims, form.inputs, True, any_size=True), *scalar_arguments(problem))
    config = Config(problem.function, problem.compute, tuple(a.dtype for a in form.arrays), form.inputs, len(form.dims))
    return (Launch(kernel(config), (-(-form.size // THREADS), 1, 1), (THREADS, 1, 1), arguments), *more)


ALGORITHMS = tuple(Algorithm(op=op, name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build) for op in OPS)

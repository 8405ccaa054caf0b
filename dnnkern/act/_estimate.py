"""What functions of single elements cost, beside their bytes: the terms that the estimates of this family share."""
from ..transform._estimate import divisions_seconds, sector_waste
from ._functions import WITH_SLOPE

LIGHT, HEAVY = 5, 19
"""Instructions of an element, from its load to its store: a sum, a product, a bound; gelu, by either formula."""
OF_MODES = {**dict.fromkeys(("identity", "relu", "leaky_relu", "prelu", "hard_sigmoid", "hard_swish", "add", "sub", "mul", "max", "min",
                             "neg", "abs", "ceil", "floor", "add_square", "binary_select", "scale", "gen_index", WITH_SLOPE), LIGHT),
            **dict.fromkeys(("sigmoid", "swish", "exp", "sqrt", "rsqrt", "reciprocal", "div", "elu", "selu", "celu", "softsign"), 12),
            **dict.fromkeys(("gelu", "gelu_tanh"), HEAVY)}
WAITS = {1: 1.09, 2: 1.06, 4: 1.0}
"""Chunks of a thread -> times as long, where elements of two bytes or fewer are heavy: little is loaded while others compute."""


def instructions(problem):
    """Of an element."""
    function = problem.function
    if function.op == "glu_bwd":
        return 2 * OF_MODES.get(function.mode, 30)
    return LIGHT if function.mode.startswith(("cmp_", "logical_")) else OF_MODES.get(function.mode, 30)


def sector_bytes(problem, units):
    """Bytes that memory moves, with rows of the innermost dimension in accesses of `units` bytes; what is broadcast counts once."""
    form, total = problem.form, 0
    row = form.dims[-1].size
    for k, (a, unit) in enumerate(zip(form.arrays, units)):
        waste = sector_waste(row * a.itemsize, unit) if form.dims[-1].strides[k] and unit and len(form.dims) > 1 else 1.0
        total += a.tensor.nbytes * waste
    return total


def waiting(problem, work):
    """How much longer than its bytes a problem takes for want of loads under way: measured with gelu, bfloat16."""
    narrow = min(a.itemsize for a in problem.form.arrays) <= 2
    return WAITS.get(work.lanes, 1.0) if narrow and instructions(problem) >= HEAVY and problem.function.results == 1 else 1.0


def issue_seconds(problem, threads, work, dims, device):
    """Time to issue a kernel's instructions: those of threads with `work`, of its accesses, and of its elements."""
    accesses = sum(work.elements * a.itemsize / unit for a, unit in zip(problem.form.arrays, work.units) if unit)
    a_thread = 30 + 14 * dims + work.lanes * (4 * accesses + instructions(problem) * work.elements)
    return divisions_seconds(threads, a_thread, device)

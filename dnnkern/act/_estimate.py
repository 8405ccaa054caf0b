"""What functions of single elements cost, beside their bytes: the terms that the estimates of this family share."""
from ..engine.constants import constants
from ..engine.cost import issue_seconds, sector_waste
from ..engine.functions import instructions_of

COST = constants("act/elements")
WAITS = constants("act/waits")


def instructions(problem):
    """Of an element."""
    return instructions_of(problem.function)


def sector_bytes(problem, units):
    """Bytes that memory moves, with rows of the innermost dimension in accesses of `units` bytes; what is broadcast counts once."""
    form, total = problem.form, 0
    row = form.dims[-1].size
    for k, (a, unit) in enumerate(zip(form.arrays, units)):
        waste = sector_waste(row * a.itemsize, unit) if form.dims[-1].strides[k] and unit and len(form.dims) > 1 else 1.0
        total += a.tensor.nbytes * waste
    return total


def waiting(problem, work):
    """How much longer than its bytes a problem takes because few loads are in flight: measured with gelu, bfloat16."""
    narrow = min(a.itemsize for a in problem.form.arrays) <= 2
    heavy = instructions(problem) >= COST.heavy and problem.function.results == 1
    return getattr(WAITS, f"chunks_{work.lanes}", 1.0) if narrow and heavy else 1.0


def kernel_issue_seconds(problem, threads, work, dims, device):
    """Time to issue a kernel's instructions: those of threads with `work`, of its accesses, and of its elements."""
    accesses = sum(work.elements * a.itemsize / unit for a, unit in zip(problem.form.arrays, work.units) if unit)
    a_thread = COST.thread + COST.dimension * dims + work.lanes * (COST.access * accesses + instructions(problem) * work.elements)
    return issue_seconds(threads, a_thread, device)

"""What functions of single elements cost, beside their bytes: the terms that the estimates of this family share."""
from ..transform._estimate import divisions_seconds, sector_waste

INSTRUCTIONS = 24
"""Of an element, from its load to its store: an activation with an exponential."""


def sector_bytes(problem, units):
    """Bytes that memory moves, with rows of the innermost dimension in accesses of `units` bytes; what is broadcast counts once."""
    form, total = problem.form, 0
    row = form.dims[-1].size
    for k, (a, unit) in enumerate(zip(form.arrays, units)):
        waste = sector_waste(row * a.itemsize, unit) if form.dims[-1].strides[k] and unit and len(form.dims) > 1 else 1.0
        total += a.tensor.nbytes * waste
    return total


def issue_seconds(problem, threads, work, dims, device):
    """Time to issue a kernel's instructions: those of threads with `work`, of its accesses, and of its elements."""
    accesses = sum(work.elements * a.itemsize / unit for a, unit in zip(problem.form.arrays, work.units) if unit)
    a_thread = 30 + 14 * dims + work.lanes * (4 * accesses + INSTRUCTIONS * work.elements)
    return divisions_seconds(threads, a_thread, device)

"""Rows cut into pieces, for rows of any length and for few of them: every row is read twice.

Forward, blocks of a first launch leave in the workspace the mean, the squared distances to it and the count of a piece of a row each. Those
of the second merge what the pieces of their row left (Chan's formula, in the same order in every block), and write the results of a
piece. Backward, the first leave two sums of a piece each; blocks of a second launch have a strip of columns and a range of rows, write dx,
and leave the columns' sums, which a third launch adds. `block` and `cluster` read a row once, but hold it whole, and keep no more
multiprocessors busy than there are rows or clusters.
"""
from ...dispatch import Algorithm
from . import backward as _split_backward, forward as _split_forward
from .forward import LIMIT, THREADS


def supports(problem):
    """Rows of one dimension, and counters within 32 bits."""
    form = problem.form
    if len(form.row) != 1:
        return f"rows are {len(form.row)} dimensions; expected one that all arrays step evenly through"
    if form.length >= LIMIT or form.rows * THREADS >= LIMIT:
        return f"{form.rows} rows of {form.length} elements; expected rows of fewer than 2**31 - 2**20, fewer than 2**23 - 2**12 of them"
    return None


ALGORITHMS = (*(Algorithm(op=op, name="split", supports=supports, workspace=_split_forward.workspace, estimate=_split_forward.seconds,
                          build=_split_forward.build) for op in ("layer_norm_fwd", "rms_norm_fwd")),
              *(Algorithm(op=op, name="split", supports=supports, workspace=_split_backward.workspace, estimate=_split_backward.seconds,
                          build=_split_backward.build) for op in ("layer_norm_bwd", "rms_norm_bwd")))

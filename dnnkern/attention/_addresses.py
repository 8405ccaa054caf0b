"""Kernel parameters that tell where the rows of an array are found: by a stride of batches, by offsets of ragged sequences, by pages.

A kernel is given the strides of each array as one parameter, a `Strides`, or a class that has offsets or a page table besides, and asks the
functions of `_scores.Memory` for the elements before a row. So it is the same kernel for all of them.
"""
import functools
from collections import namedtuple

from ..device import i32
from ..device.index import Divisor, divisor
from ..host.launch import Argument
from ._parameters import RowStrides, Strides

NOT_RAGGED = -1


@functools.cache
def ragged_strides(dtype):
    """`Strides` of an array in a kernel where arrays may be ragged: `offsets`, `step` apart, at which its batches begin, and how many
    rows it has; a `limit` of `NOT_RAGGED`: this array has a stride of batches."""
    made = namedtuple("RaggedStrides", "batch head row column offsets step limit")
    made.__annotations__ = {**dict.fromkeys(made._fields, "int64"), "offsets": f"{dtype}*"}
    return made


PagedStrides = namedtuple("PagedStrides", "batch head row column table of_batch of_page page pages")
PagedStrides.__annotations__ = {**dict.fromkeys(PagedStrides._fields, "int64"), "table": "int32*", "page": Divisor, "pages": i32}
PagedStrides.__doc__ = """`Strides` of k or v in a kernel where they may lie in pages: the table, its strides, keys of a page, and how many
pages there are; no pages: this array has a stride of batches."""


# ---- kernel parameters

def _ragged(problem, name, t, strides):
    """Those of an array whose name is that of its offsets."""
    offsets, kind = problem.offsets(f"ragged_{name}"), ragged_strides(problem.ragged)
    step, limit = (0, NOT_RAGGED) if offsets is None else (offsets.strides[0], t.shape[-1 if t.ndim == 2 else 0])
    return Argument(kind, kind(*strides, Argument(f"{problem.ragged}*", f"ragged_{name}"), step, limit))


def strides_argument(problem, name):
    """The strides of an array, by its name in launches."""
    p, t = problem, problem.array(name)
    if name in ("k", "v") and p.paged != (False, False):
        table, (pages, _, keys, _) = getattr(p, f"page_table_{name}"), p.sizes(t)
        of_table, pages = ((0, 0), 0) if table is None else (table.strides, pages)
        page = Argument(Divisor, divisor(max(keys, 1)))
        return Argument(PagedStrides, PagedStrides(*p.strides(t), Argument("int32*", f"page_table_{name}"), *of_table, page, pages))
    return _ragged(p, name, t, p.strides(t)) if p.ragged else Argument(Strides, p.strides(t))


def row_strides_argument(problem, name="lse"):
    """Those of an array with a number for each row."""
    t = getattr(problem, name)
    strides = problem.row_strides(t)
    if not problem.ragged:
        return Argument(RowStrides, strides)
    if t is None:
        kind = ragged_strides(problem.ragged)
        return Argument(kind, kind(*strides, 0, Argument(f"{problem.ragged}*", f"ragged_{name}"), 0, NOT_RAGGED))
    return _ragged(problem, name, t, (*strides, 0))


def stats_arguments(problem):
    """Kernel parameters `score_max`, `max_strides`, `score_sum`, `sum_strides`."""
    found = ()
    for name in ("score_max", "score_sum_exp"):
        there = getattr(problem, name) is not None
        found += Argument(f"{problem.compute}*", name if there else "o"), row_strides_argument(problem, name)
    return found


def stats_of(problem):
    """Which of these there are."""
    return problem.score_max is not None, problem.score_sum_exp is not None

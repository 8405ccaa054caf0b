"""The gradient of prelu's slope, ``dslope = sum of dy x where x <= 0`` over what the slope is broadcast along.

The kernel that computes dx writes each element's part to the workspace, in the type that it computes in; an algorithm of `reduce` adds them
up, in a fixed order, and a slope of 16 bits is rounded once, at the end.
"""
from .. import dispatch
from ..engine.embed import Place, choices, cost, embedded, scratch_bytes
from ..engine.moves import cast_launches, cast_seconds
from ..host.tensor import Tensor
from ..reduce import ReduceProblem


def parts_of(problem) -> Tensor:
    """The elements' parts: without gaps, in the order of dx."""
    t, strides, step = problem.result, [0] * problem.x.ndim, 1
    for d in sorted(range(t.ndim), key=lambda d: (abs(t.strides[d]), -d)):
        strides[d], step = -step if t.strides[d] < 0 else step, step * max(t.shape[d], 1)
    return Tensor(t.shape, tuple(strides), problem.compute, 16)


def first_part(problem) -> int:
    """How many elements of the workspace lie before the first element's part."""
    t = parts_of(problem)
    return -t.extent[0] // t.itemsize


def slope_workspace(problem, device, simple=False) -> int:
    """Bytes that the gradient of the slope takes; 0 where it is not computed."""
    if problem.dslope is None:
        return 0
    total, _, scratch = _plan(problem)
    return scratch + scratch_bytes(_reduction(total, device, simple), total, device)


def slope_cost(problem, device, simple=False) -> float:
    """Predicted time of `slope_launches`."""
    if problem.dslope is None:
        return 0.0
    total, sums, _ = _plan(problem)
    return cost(_reduction(total, device, simple), total, device) + (0.0 if sums is total.y else cast_seconds(total.y, sums, device))


def slope_launches(problem, device, simple=False) -> tuple:
    """What follows the kernel that writes the parts; nothing where the gradient is not computed. `simple`: by the naive algorithm."""
    if problem.dslope is None:
        return ()
    total, sums, scratch = _plan(problem)
    wide = Place("workspace", _lines(total.x.nbytes))
    targets = {"x": Place("workspace", first_part(problem) * total.x.itemsize), "y": Place("dslope") if sums is total.y else wide,
               "workspace": Place("workspace", scratch)}
    found = embedded(_reduction(total, device, simple), total, device, targets)
    return found if sums is total.y else found + cast_launches(total.y, sums, device, wide, Place("dslope"))


def _plan(problem):
    """The sums as a problem of `reduce`; the slope's gradient without the dimensions that are added up, which is that problem's y unless
    it has 16 bits; and where in the workspace parts and sums end."""
    x, t = parts_of(problem), problem.dslope
    lead = x.ndim - t.ndim
    axes = tuple(d for d in range(x.ndim) if d < lead or t.shape[d - lead] == 1)
    kept = [d - lead for d in range(x.ndim) if d not in axes]
    sums = Tensor(tuple(t.shape[d] for d in kept), tuple(t.strides[d] for d in kept), t.dtype, t.alignment)
    y = sums if t.dtype == x.dtype else Tensor.packed(sums.shape, x.dtype)
    return ReduceProblem(x, y, "add", axes), sums, _lines(x.nbytes) + (0 if sums is y else _lines(y.nbytes))


def _reduction(total, device, simple):
    if simple:
        return next(a for a in dispatch.algorithms("reduce") if a.name == "naive")
    return choices(total, device)[0]


def _lines(nbytes):
    return -(-nbytes // 256) * 256

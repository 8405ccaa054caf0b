"""Reductions."""
from .._errors import Refused
from .._table import rule
from .._values import FLOATS
from .pointwise import number

MODES = {"ReduceSum": "add", "ReduceMean": "avg", "ReduceMax": "max", "ReduceMin": "min", "ReduceProd": "mul", "ReduceL1": "norm1",
         "ReduceL2": "norm2", "ReduceLogSum": "add", "ReduceLogSumExp": "logsumexp", "ReduceSumSquare": "sum_square"}


@rule("ReduceSum", (1, 11, 13), "`reduce`", moves=True)
@rule("ReduceMean ReduceL1 ReduceL2 ReduceSumSquare", (1, 11, 13, 18), "`reduce`")
@rule("ReduceProd", (1, 11, 13, 18), "`reduce`", moves=True)
@rule("ReduceLogSum", (1, 11, 13, 18, 28), "`reduce`, `unary`")
@rule("ReduceLogSumExp", (1, 11, 13, 18, 28), "`reduce`")
@rule("ReduceMax ReduceMin", (1, 11, 12, 13, 18, 20), "`reduce`", moves=True)
def reduction(node, x, axes=None):
    """Over the axes of the attribute or of the second input; none of them are all, unless `noop_with_empty_axes`."""
    axes = node.attribute("axes") if axes is None else axes.ints()
    if not axes:
        axes = () if node.attribute("noop_with_empty_axes", 0) else None
    mode, options = MODES[node.op], {}
    if x.dtype not in FLOATS:
        if node.op not in ("ReduceMax", "ReduceMin"):
            if x.dtype not in ("int32", "int64") or node.op == "ReduceLogSum":
                raise Refused(f"dtype {x.dtype}")
            options = {"out_dtype": x.dtype}
    y = node.call("reduce", x, mode, axes=axes, keepdims=bool(node.attribute("keepdims", 1)), **options)
    return node.call("unary", y, "log") if node.op == "ReduceLogSum" else y


@rule("ArgMax ArgMin", (1, 11, 12, 13), "`argreduce`, `reduce`")
def extreme_index(node, x):
    """The first or the last extremum's index; indices are int32 here, and converted."""
    axis = node.attribute("axis", 0) % x.ndim
    last = bool(node.attribute("select_last_index", 0))
    if last:
        steps = [1] * x.ndim
        steps[axis] = -1
        size = x.shape[axis]
        x = node.call("strided_slice", x, (None,) * x.ndim, (None,) * x.ndim, steps)
    _, index = node.call("argreduce", x, "max" if node.op == "ArgMax" else "min", axis=axis, keepdims=bool(node.attribute("keepdims", 1)))
    if last:
        index = node.call("binary", number(node, size - 1, "int32"), index, "sub")
    return node.call("reduce", index, "add", axes=())

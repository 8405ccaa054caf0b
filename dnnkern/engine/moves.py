"""Launches that move, convert or fill an array for another operation: between its operands, its output and places in its workspace.

An algorithm of another family that needs a transposition or the columns of a convolution puts these launches between its own::

    packed = Tensor.packed((n, p, q, c), "float16")
    launches = transpose_launches(problem.x, packed, (0, 2, 3, 1), device, source=("x", 0), target=("workspace", offset)) + ...

A source or target is the name of a dynamic pointer of the plan and a byte offset to it. In a workspace, which begins at a multiple of 16,
the offset is to be one too, or the tensor must say what alignment it has.
"""
from ..host.memo import kept
from ..transform import cast_naive, cast_vector
from ..transform._cast_problem import CastProblem
from ..transform._problem import TransposeProblem
from ..transform.layout import pad_naive, pad_rows
from ..transform.layout import transpose_copy, transpose_few, transpose_naive, transpose_planes, transpose_rows, transpose_tiled
from ..transform.layout._pad_problem import SetProblem
from ..transform.window import col2im_gather, col2im_naive, im2col_gather, im2col_naive, im2col_tiled
from ..transform.window._problem import WindowProblem

_TRANSPOSE = tuple(m.ALGORITHMS[0] for m in (transpose_copy, transpose_planes, transpose_tiled, transpose_few, transpose_rows,
                                             transpose_naive))
_WINDOW = {op: tuple(m.ALGORITHM for m in some) for op, some in (("im2col", (im2col_tiled, im2col_gather, im2col_naive)),
                                                                 ("col2im", (col2im_gather, col2im_naive)))}
_CAST = (cast_vector.ALGORITHM, cast_naive.ALGORITHM)
_SET = tuple(a for m in (pad_rows, pad_naive) for a in m.ALGORITHMS if a.op == SetProblem.op)


def transpose_launches(x, y, axes, device, source, target) -> tuple:
    """``y = transpose(x, axes)`` of two `Tensor`s, by the algorithm and configuration with the least estimate."""
    return _launches(_TRANSPOSE, TransposeProblem(x, y, tuple(axes)), device, source, target)


def im2col_launches(x, columns, window, stride, padding, dilation, layout, device, source, target) -> tuple:
    """``columns = im2col(x, ...)``; parameters have an entry, for `padding` a pair, for each spatial dimension."""
    return _launches(_WINDOW["im2col"], WindowProblem("im2col", x, columns, window, stride, padding, dilation, layout), device, source,
                     target)


def col2im_launches(columns, x, window, stride, padding, dilation, layout, device, source, target) -> tuple:
    """``x = col2im(columns, ...)``, the same."""
    return _launches(_WINDOW["col2im"], WindowProblem("col2im", x, columns, window, stride, padding, dilation, layout), device, source,
                     target)


def transpose_seconds(x, y, axes, device) -> float:
    """Predicted time of `transpose_launches`."""
    return _best(_TRANSPOSE, TransposeProblem(x, y, tuple(axes)), device)[1]


def im2col_seconds(x, columns, window, stride, padding, dilation, layout, device) -> float:
    """Predicted time of `im2col_launches`."""
    return _best(_WINDOW["im2col"], WindowProblem("im2col", x, columns, window, stride, padding, dilation, layout), device)[1]


def move_launches(problem, device, source, target) -> tuple:
    """Those of any problem whose result is elements of x in other places, such as a `Box`."""
    return _launches(_TRANSPOSE, problem, device, source, target)


def move_seconds(problem, device) -> float:
    """Predicted time of `move_launches`."""
    return _best(_TRANSPOSE, problem, device)[1]


def cast_launches(x, y, device, source, target) -> tuple:
    """``y[...] = x[...]`` in y's dtype."""
    return _launches(_CAST, CastProblem(x, y), device, source, target)


def cast_seconds(x, y, device) -> float:
    """Predicted time of `cast_launches`."""
    return _best(_CAST, CastProblem(x, y), device)[1]


def fill_launches(y, value, device, target) -> tuple:
    """``y[...] = value``, a number."""
    return _launches(_SET, SetProblem(y, y), device, target, target, value=value)


def fill_seconds(y, device) -> float:
    """Predicted time of `fill_launches`."""
    return _best(_SET, SetProblem(y, y), device)[1]


def _launches(algorithms, problem, device, source, target, **more):
    best, _ = _best(algorithms, problem, device)
    return best.build(problem, device, best.config, source=source, target=target, **more)


@kept(1024)
def _best(algorithms, problem, device):
    """(algorithm with the least estimate, that estimate)."""
    return min((a.least(problem, device) for a in algorithms if a.supports(problem) is None), key=lambda pair: pair[1])

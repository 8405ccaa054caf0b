"""Elements by index."""
import math

import numpy as np

from .._errors import ModelError
from .._table import rule
from .._values import FLOATS, Value
from .move import moved
from .pointwise import number


@rule("Gather", (1, 11, 13), "`embedding_fwd`, `move_rows`, `strided_slice`", moves=True)
def gather(node, x, indices):
    """Slices of x along an axis, as rows of a matrix; negative indices count from the end."""
    axis = node.attribute("axis", 0) % max(x.ndim, 1)
    n = x.shape[axis]
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1:])
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1:])
    if indices.on_host:
        chosen = _checked(node, indices, n)
        if not chosen.shape:
            first = int(chosen)
            return moved(node, "strided_slice", x, [first if k == axis else None for k in range(x.ndim)],
                         [first + 1 if k == axis else None for k in range(x.ndim)]).reshape(*shape)
        kept = node.once("indices", (indices,), dict)
        rows = kept.get((outer, n))
        if rows is None:
            flat = np.arange(outer, dtype=np.int64)[:, None] * n + chosen.reshape(1, -1)
            rows = kept[outer, n] = Value(flat.reshape(-1).astype(np.int32))
    else:
        rows = _on_device(node, indices, outer, n)
    if 0 in shape:
        return x.reshape(-1, *x.shape[1:]) if x.shape == shape else Value(np.zeros(shape, x.host().dtype))
    table = x.reshape(outer * n, inner)
    if x.dtype in FLOATS:
        return node.call("embedding_fwd", table, rows).reshape(*shape)
    return moved(node, "move_rows", table, rows).reshape(*shape)


def _checked(node, indices, n):
    """Indices from 0 to n - 1; ModelError where one is none."""
    chosen = np.asarray(indices.host()).astype(np.int64)
    wrong = (chosen < -n) | (chosen >= n)
    if wrong.any():
        raise ModelError(f"{node.label}: got index {chosen[wrong].reshape(-1)[0]} into {n} slices; expected {-n} to {n - 1}")
    return np.where(chosen < 0, chosen + n, chosen)


def _on_device(node, indices, outer, n):
    """Numbers of rows of indices that only the device has."""
    flat = indices.reshape(1, indices.size)
    if flat.dtype == "int64":
        flat = node.call("reduce", flat, "add", axes=(), out_dtype="int32")
    zero, count = number(node, 0, "int32"), number(node, n, "int32")
    flat = node.call("binary", node.call("binary", flat, count, "add"), flat, "binary_select",
                     mask=node.call("binary", flat, zero, "cmp_lt"))
    if outer > 1:
        firsts = node.once(("firsts", outer, n), (), lambda: Value((np.arange(outer, dtype=np.int32) * n).reshape(outer, 1)))
        flat = node.call("binary", firsts, flat, "add")
    return flat.reshape(flat.size)

"""Elements by index."""
import math

import numpy as np

from .._errors import ModelError, Refused
from .._table import rule
from .._values import FLOATS, Value, empty
from .move import moved
from .pointwise import number


@rule("Gather", (1, 11, 13), "`embedding_fwd`, `move_rows`, `strided_slice`", moves=True)
def gather(node, x, indices):
    """Slices of x along an axis, as rows of a matrix; negative indices count from the end."""
    return taken(node, x, node.attribute("axis", 0) % max(x.ndim, 1), indices)


def taken(node, x, axis, indices):
    """Slices of x along an axis."""
    n = x.shape[axis]
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1:])
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1:])
    if not indices.on_host:
        return _rows(node, x, (outer * n, inner), _on_device(node, indices, outer, n), shape)
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
    return _rows(node, x, (outer * n, inner), rows, shape)


def _rows(node, x, matrix, rows, shape):
    """Rows of x as a matrix, in a shape."""
    if 0 in shape:
        return Value(device=empty(shape, x.device().dtype))
    if matrix[0] > 2 ** 31 - 1:
        raise Refused(f"{matrix[0]} rows")
    table = x.reshape(*matrix)
    if x.dtype in FLOATS:
        return node.call("embedding_fwd", table, rows).reshape(*shape)
    return moved(node, "move_rows", table, rows).reshape(*shape)


@rule("GatherND", (11, 12, 13), "`embedding_fwd`, `move_rows`", moves=True)
def gather_nd(node, x, indices):
    """Slices of x by several indices each, which the host has."""
    if not indices.on_host:
        raise Refused("indices that only the device has")
    first, last = node.attribute("batch_dims", 0), node.attribute("batch_dims", 0) + indices.shape[-1]
    chosen, extents = np.asarray(indices.host()).astype(np.int64), np.array(x.shape[first:last])
    if ((chosen < -extents) | (chosen >= extents)).any():
        raise ModelError(f"{node.label}: got indices out of the extents {x.shape[first:last]} of x {x.shape}")
    chosen = np.where(chosen < 0, chosen + extents, chosen)
    flat = np.ravel_multi_index(tuple(np.moveaxis(chosen, -1, 0)), x.shape[first:last]).reshape(math.prod(x.shape[:first]), -1)
    rows = (flat + np.arange(len(flat))[:, None] * math.prod(x.shape[first:last])).reshape(-1).astype(np.int32)
    matrix = math.prod(x.shape[:last]), math.prod(x.shape[last:])
    return _rows(node, x, matrix, Value(rows), (*indices.shape[:-1], *x.shape[last:]))


@rule("Compress", (9, 11, 28), "`embedding_fwd`, `move_rows`")
def compress(node, x, condition):
    """Slices of x where the condition, read by the host, is true."""
    axis = node.attribute("axis")
    x, axis = (x.reshape(x.size), 0) if axis is None else (x, axis % x.ndim)
    return taken(node, x, axis, Value(np.flatnonzero(np.asarray(condition.host())[:x.shape[axis]])))


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

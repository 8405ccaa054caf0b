"""Nodes that move nothing: a transpose, a slice or a reshape whose result is no buffer of the caller's is its operand's memory, with other
dims and strides."""
from typing import NamedTuple

from ._infer import row_major


class View(NamedTuple):
    """A tensor that is part of another's memory: that one's uid, dims and strides, and how many elements the first one is from its."""
    source: int
    dim: tuple
    stride: tuple
    first: int


def views(spec) -> dict:
    """{uid: View} of the results that are views. The strides that such a result has in the graph are nobody's: they are not looked at."""
    found = {}
    for node in spec.nodes:
        if node.op not in _VIEWS:
            continue
        (_, source), (_, result) = node.inputs[0], node.outputs[0]
        t = spec.tensor(source)
        if not spec.tensor(result).virtual or t.by_value or t.ragged is not None or t.dtype != spec.tensor(result).dtype:
            continue
        view = _VIEWS[node.op](node, found.get(source) or View(source, t.dim, t.stride, 0), spec.tensor(result).dim)
        if view is not None:
            found[result] = view
    return found


def _transpose(node, of, dim):
    order = node.attribute("permutation")
    return of._replace(dim=tuple(of.dim[a] for a in order), stride=tuple(of.stride[a] for a in order))


def _slice(node, of, dim):
    if 0 in dim:
        return None
    starts, _, steps = zip(*node.attribute("slices"))
    return of._replace(dim=dim, stride=tuple(s * step for s, step in zip(of.stride, steps)),
                       first=of.first + sum(s * start for s, start in zip(of.stride, starts)))


def _reshape(node, of, dim):
    packed = all(s == p for n, s, p in zip(of.dim, of.stride, row_major(of.dim)) if n > 1)
    return of._replace(dim=dim, stride=row_major(dim)) if packed and 0 not in dim else None


_VIEWS = {"transpose": _transpose, "slice": _slice, "reshape": _reshape}

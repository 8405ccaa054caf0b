"""Nodes that move nothing: a transpose, a slice or a reshape whose result is no buffer of the caller's is its operand's memory, with other
dims and strides; what a concatenation takes is written into its result."""
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


def halved(spec, free) -> dict:
    """{uid: (slice, slice)} of the tensors whose columns two of the views `free` halve, the first columns first."""
    found, slices = {}, {}
    for node in spec.nodes:
        if node.op == "slice" and node.outputs[0][1] in free:
            slices.setdefault(node.input("X"), []).append(node)
    for uid, pair in slices.items():
        pair.sort(key=lambda node: node.attribute("slices")[-1])
        *others, n = spec.tensor(uid).dim
        whole, half = tuple((0, size, 1) for size in others), n // 2
        if [node.attribute("slices") for node in pair] == [(*whole, (0, half, 1)), (*whole, (half, 2 * half, 1))] and n == 2 * half:
            found[uid] = tuple(pair)
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


def placed(spec) -> dict:
    """{uid: View} of the results that are written where a concatenation has them, so that it need not copy them: no buffers of the
    caller's, and nothing that others view. An operand that is said to be in place is there already."""
    free = views(spec)
    viewed, made, found = {v.source for v in free.values()}, {uid for node in spec.nodes for _, uid in node.outputs}, {}
    for node in reversed(spec.nodes):  # a concatenation of a concatenation: the last one has its operands in place
        if node.op != "concatenate" or node.outputs[0][1] in found:
            continue
        y, axis, first = spec.tensor(node.outputs[0][1]), node.attribute("axis"), 0
        for k, (_, uid) in enumerate(node.inputs):
            t = spec.tensor(uid)
            written_there = t.virtual and uid in made and uid not in viewed and uid not in free and uid not in found
            if written_there or k == node.attribute("in_place_index") and not (t.virtual or y.virtual):
                found[uid] = View(y.uid, t.dim, y.stride, first * y.stride[axis])
            first += t.dim[axis]
    return found


_VIEWS = {"transpose": _transpose, "slice": _slice, "reshape": _reshape}

"""Concatenations without copies: what makes a piece writes it where the concatenation has it.

The gradient of queries, keys and values that one product has made is such a concatenation, or a sum of gradients of slices.
"""
import operator
from collections import Counter

import torch

from ..ops import attention
from ._draft import View
from ._shapes import are_same, in_dims

aten = torch.ops.aten


def concatenations(graph):
    """Make concatenations of stacks, and of sums of gradients of slices that are all of a tensor."""
    for node in list(graph.nodes):
        if node.target is aten.stack.default:
            pieces = [(x, True) for x in node.args[0]]
            _replace(graph, node, pieces, (*node.args[1:], 0)[0])
        elif node.target is aten.add.Tensor and not node.kwargs and not any(_is_part(user) for user in node.users):
            leaves = _leaves(node)
            if leaves and len(leaves) > 1 and (found := _slices(leaves, node.meta["val"].shape)):
                _replace(graph, node, *found)
    graph.eliminate_dead_code()


def _is_part(node):
    return node.target is aten.add.Tensor and not node.kwargs and bool(_leaves(node))


def _leaves(node):
    """The gradients of slices that a node adds up, which nothing else reads; None where it adds something else."""
    found = []
    for x in node.args:
        if not isinstance(x, torch.fx.Node) or len(x.users) != 1:
            return None
        if x.target in (aten.select_backward.default, aten.slice_backward.default):
            found.append(x)
        elif x.target is aten.add.Tensor and not x.kwargs and (more := _leaves(x)):
            found += more
        else:
            return None
    return found


def _slices(leaves, shape):
    """([(gradient, whether it lacks the axis)], the axis) in order, if these are all of a tensor."""
    found, axes = [], set()
    for leaf in leaves:
        gradient, sizes, axis, *where = leaf.args
        axes.add(axis % len(sizes))
        is_selected = leaf.target is aten.select_backward.default
        start, stop, step = (where[0], where[0] + 1, 1) if is_selected else where
        n = sizes[axis]
        if step != 1 or list(sizes) != list(shape):
            return None
        found.append((start % n if start < 0 else start, min(stop + n if stop < 0 else stop, n), gradient, is_selected))
    found.sort(key=lambda piece: piece[0])
    starts, stops = [start for start, *_ in found], [stop for _, stop, *_ in found]
    if len(axes) != 1 or starts != [0, *stops[:-1]] or stops[-1] != shape[min(axes)]:
        return None
    return [piece[2:] for piece in found], min(axes)


def _replace(graph, node, pieces, axis):
    """A concatenation instead of a node."""
    value = node.meta["val"]
    axis %= value.dim()
    with graph.inserting_before(node):
        some = []
        for x, lacks in pieces:
            if lacks:
                of, x = x, graph.call_function(aten.unsqueeze.default, (x, axis))
                x.meta["val"] = of.meta["val"].unsqueeze(axis)
            some.append(x)
        made = graph.call_function(aten.cat.default, (some, axis))
    made.meta.update(node.meta)
    node.replace_all_uses_with(made)
    graph.erase_node(node)


def joined(draft, graph, readers):
    """{a concatenation: [(the node of a piece, its first element's distance)] of the pieces that are copied}, of those with pieces that
    are written where the concatenation has them: their memory gets a `home`.

    `readers`: {memory: the operations and other nodes that read it}.
    """
    found = {}
    for node in graph.find_nodes(op="call_function", target=aten.cat.default):
        pieces, axis, value = node.args[0], (*node.args[1:], 0)[0] % node.meta["val"].dim(), node.meta["val"]
        if any(x.meta["val"].dtype is not value.dtype or x.meta["val"].dim() != value.dim() for x in pieces):
            continue
        view = _without_copy(draft, node, readers) or draft.values[node]
        step, at, homes, copied = view.strides[axis], 0, [], []
        times = Counter(draft.values[x].whole for x in pieces)
        for x in pieces:
            of = draft.values[x]
            strides = times[of.whole] == 1 and _own_strides(of, view.strides, readers, node)
            if strides:
                homes.append((of.whole, strides, at * step))
            else:
                copied.append((x, at * step))
            at += x.meta["val"].shape[axis]
        if homes:
            found[node] = copied
        for whole, strides, first in homes:
            whole.strides, whole.home = strides, (node, first)
    return found


def _without_copy(draft, node, readers):
    """How the program has a concatenation that is made in the order of its copy, if only that reads it."""
    view = draft.values[node]
    op, *more = readers[view.whole]
    if more or getattr(op, "method", None) != "identity":
        return None
    operand, (copy,) = op.inputs["input"], op.results
    strides = None if operand.first else moved(view.shape, view.strides, operand.dims, operand.strides, copy.strides)
    if strides is None or copy.dtype is not view.whole.dtype:
        return None
    draft.ops.remove(op)
    draft.aliases.update(op.nodes)
    copy.maker, copy.node = None, node
    draft.values[node] = View(copy, view.shape, strides)
    return draft.values[node]


def _own_strides(view, strides, readers, node):
    """The strides of a piece's memory so that the program has these; None where it cannot have them: only what an operation of the graph
    or attention's gradient makes, and nothing but the concatenation reads, can be anywhere."""
    if view.first or list(readers[view.whole]) != [node]:
        return None
    whole = view.whole
    is_movable = whole.maker or whole.node.target is operator.getitem and whole.node.args[0].target is attention.backward
    return moved(whole.dims, whole.strides, view.shape, view.strides, strides) if is_movable else None


def moved(dims, strides, shape, old, new):
    """The strides that memory of these dims and strides gets where a program, which has all of it with this shape and `old` strides, has
    `new` ones; None where one are no permutation, and no view, of the others."""
    if 0 in (n and s for n, s in zip(shape, old) if n != 1):
        return None
    found = in_dims(shape, old, dims)
    if found is not None and are_same(dims, found, strides):
        return in_dims(shape, new, dims)
    axes = sorted(((s, n, t) for n, s, t in zip(shape, old, new) if n != 1), reverse=True)
    found, left = [], {s: n for s, n, _ in axes}
    for n, s in zip(dims, strides):
        step, size, to = next(((step, size, to) for step, size, to in axes if step <= s), (1, 1, 0))
        if n != 1 and (s % step or s // step * n > size):
            return None
        if n != 1:
            left[step] //= n
        found.append(0 if n == 1 else s // step * to)
    return tuple(found) if all(n == 1 for n in left.values()) else None

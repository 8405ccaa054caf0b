"""A traced program in which parts are called instead of its nodes: which operations run together, and in which order."""
import contextlib
import heapq
from collections import defaultdict

import torch

from .._tensors import KEY
from ._draft import Draft, Operand, View
from ._emit import Emitted
from ._joined import concatenations, joined
from ._parts import Recipe, compiled
from ._rules import RULES, VIEWS

aten = torch.ops.aten


class Assembled:
    """A program of parts.

    Attributes
    ----------
    module : torch.fx.GraphModule
    parts : list of Part
    left : {node: (by whom, why)}
        What is no operation of the graph.
    """

    def __init__(self, gm):
        self.gm, self.device = gm, _device_of(gm)
        concatenations(gm.graph)
        self.draft, self.left = Draft(gm.graph, RULES, VIEWS, self.device), {}
        self.draft.fold(self._readers(self._reads()))
        self.joined = joined(self.draft, gm.graph, self._readers(self._reads()))
        self.reads = self._reads()
        self.stored = self._stored()
        self.updates = self._updates()
        with torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext():
            emitted = self._assembled(self._grouped())
            self.parts = emitted.parts
            compiled(self.parts)
        for node, part in zip(emitted.calls, self.parts):
            node.target = part.call
        self.module = torch.fx.GraphModule(gm, emitted.graph)

    # ---- memory

    def _is_computed(self, node):
        """Whether a node is computed by itself: not by operations of the graph, and no view."""
        is_given = node.op in ("output", "placeholder") or node in self.draft.aliases
        return not (is_given or _wholes(self.draft.values.get(node), True))

    def _reads(self):
        """{node that is computed by itself, or the output: memory that it reads}"""
        return {node: self._read_by(node) for node in self.gm.graph.nodes if self._is_computed(node) or node.op == "output"}

    def _read_by(self, node):
        """Memory that something other than an operation of the graph reads."""
        return {w for n in node.all_input_nodes for w in self._under(n)}

    def _readers(self, reads):
        """{memory: the operations and other nodes that read it}"""
        found = defaultdict(list)
        for op in self.draft.ops:
            for whole in {o.whole for o in op.inputs.values() if isinstance(o, Operand)}:
                found[whole].append(op)
        for node, wholes in reads.items():
            for whole in wholes:
                found[whole].append(node)
        return found

    def _under(self, node):
        return _wholes(self.draft.values.get(node))

    def _stored(self):
        """Results of operations that have to be in memory whatever runs together."""
        found = {w for some in self.reads.values() for w in some if w.maker is not None}
        return found | {o.whole for op in self.draft.ops for o in op.inputs.values()
                        if isinstance(o, Operand) and o.whole.maker is not None and not o.is_whole}

    def _updates(self):
        """{node that copies a result to a tensor that the program was given: (the result, the tensor's node)} of those that need no copy:
        nothing else reads the tensor but the operation that makes the result."""
        found, readers = {}, self._readers(self.reads)
        for node in self.gm.graph.find_nodes(op="call_function", target=aten.copy_.default):
            to, source = node.args[:2]
            view, value = self.draft.values.get(source), to.meta["val"]
            if to.op != "placeholder" or not isinstance(view, View) or view.whole.maker is None or node.users:
                continue
            like = tuple(value.shape), tuple(value.stride())
            alone = readers[self.draft.values[to].whole] == [view.whole.maker, node]
            if alone and (view.shape, view.strides) == like and view.whole.tensor == (*like, value.dtype):
                found[node] = view.whole, to
        return found

    # ---- which operations run together

    def _grouped(self):
        """Operations in parts, each in the program's order."""
        ops = self.draft.ops
        if not ops:
            return []
        recipe = Recipe(ops, self.stored)
        graph, known = recipe.graph()
        graph.validate()
        after, before = {}, self._made_before()
        for o in recipe.inputs:
            of = {o.whole} if o.whole.maker is not None else before.get(o.whole.node, ())
            after[known[recipe.names[o]]] = [known[recipe.names[w]] for w in of]
        return [[ops[k] for k in sorted(map(int, names))] for names in graph.largest_parts(after)]

    def _made_before(self):
        """{node that is computed by itself: results of operations that it waits for}, as far as no other operation lies between."""
        found = {}
        for node in self.gm.graph.nodes:
            if node in self.reads and node.op != "output":
                found[node] = frozenset().union(*[{w} if w.maker is not None else found.get(w.node, ()) for w in self.reads[node]],
                                                *[found.get(n, ()) for n in node.all_input_nodes])
        return found

    # ---- the new program

    def _assembled(self, groups):
        """Parts and what is left, in an order in which they can run that is close to the program's."""
        index = {node: k for k, node in enumerate(self.gm.graph.nodes)}
        of_op = {op: k for k, group in enumerate(groups) for op in group}
        items = [("part", k) for k in range(len(groups))] + [("node", node) for node in self.reads if node.op != "output"]
        waits, position = {}, {}
        for item in items:
            kind, what = item
            if kind == "part":
                wholes = {o.whole for op in groups[what] for o in op.inputs.values() if isinstance(o, Operand)}
                position[item] = max(index[n] for op in groups[what] for n in op.nodes)
                nodes = ()
            else:
                wholes, position[item], nodes = self.reads[what], index[what], what.all_input_nodes
            found = {("part", of_op[w.maker]) for w in wholes if w.maker is not None}
            found |= {("node", w.node) for w in wholes if w.maker is None} | {("node", n) for n in nodes}
            waits[item] = {other for other in found if other in position or other[0] == "part" or other[1] in self.reads} - {item}
        emitted = Emitted(self, groups)
        emitted.add(_in_order(items, waits, position))
        return emitted


def _device_of(gm):
    """The device of a program's tensors: a GPU, if any is on one."""
    found = {v.device for n in gm.graph.nodes for v in _tensors(n.meta.get("val"))}
    return next((d for d in sorted(found, key=str) if d.type == KEY.lower()), torch.device(KEY.lower()))


def _tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in _tensors(v)] if isinstance(value, (tuple, list)) else []


def _wholes(value, made=False):
    """Memory under a value of the draft; `made`: by operations alone."""
    if isinstance(value, View):
        return [value.whole] if value.whole.maker is not None or not made else []
    return [w for v in value for w in _wholes(v, made)] if isinstance(value, tuple) else []


def _in_order(items, waits, position):
    """Items in an order in which none waits for a later one, those that come first in the program first."""
    followers, left = {}, {}
    for item in items:
        left[item] = len(waits[item])
        for other in waits[item]:
            followers.setdefault(other, []).append(item)
    ready = [(position[item], k, item) for k, item in enumerate(items) if not left[item]]
    heapq.heapify(ready)
    order, number = [], {item: k for k, item in enumerate(items)}
    while ready:
        _, _, item = heapq.heappop(ready)
        order.append(item)
        for other in followers.get(item, ()):
            left[other] -= 1
            if not left[other]:
                heapq.heappush(ready, (position[other], number[other], other))
    if len(order) != len(items):
        raise RuntimeError("parts of a program wait for each other")
    return order

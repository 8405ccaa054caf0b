"""A traced program in which parts are called instead of its nodes."""
import contextlib
import functools
import heapq
import operator
from collections import defaultdict

import torch

from .._overrides import _caller
from .._table import table
from .._tensors import KEY
from ..ops import attention
from ._draft import Draft, Operand, View
from ._joined import concatenations, joined
from ._parts import Part, Recipe, compiled
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
        self.draft, self.left, self.parts = Draft(gm.graph, RULES, VIEWS, self.device), {}, []
        self.draft.fold(self._readers(self._reads()))
        self.joined = joined(self.draft, gm.graph, self._readers(self._reads()))
        self.reads = self._reads()
        self.stored = self._stored()
        self.updates = self._updates()
        with torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext():
            graph, calls = self._assembled(self._grouped())
            compiled(self.parts)
        for node, part in zip(calls, self.parts):
            node.target = part.call
        self.module = torch.fx.GraphModule(gm, graph)

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
            if alone and (view.shape, view.strides) == like and self._as_tensor(view.whole) == (*like, value.dtype):
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
        return self._emitted(_in_order(items, waits, position), groups, of_op)

    def _emitted(self, order, groups, of_op):
        """The program, in which parts are called."""
        graph, old = torch.fx.Graph(), self.gm.graph
        made, memory = {}, {}  # {node of the program: node}, {Whole: node}
        counters, calls = _counters(old), []
        for node in old.find_nodes(op="placeholder"):
            made[node] = graph.node_copy(node)
        outside = {w for k, group in enumerate(groups) for op in group for o in op.inputs.values()
                   if isinstance(o, Operand) and (w := o.whole).maker is not None and of_op[w.maker] != k} | self.stored

        def value(node):
            if node not in made:
                view = self.draft.values.get(node)
                if isinstance(view, View) and view.whole in memory:
                    made[node] = self._view_of(graph, memory[view.whole], view)
                else:  # a view of what is given or left
                    made[node] = graph.node_copy(node, value)
            return made[node]

        def base(whole):
            return memory[whole] if whole.maker is not None else value(whole.node)

        def joint(node):
            """The memory of a concatenation whose pieces are written to it."""
            if node not in made:
                view, like = self.draft.values[node], {"dtype": node.meta["val"].dtype, "device": node.meta["val"].device}
                made[node] = graph.call_function(torch.empty_strided, (view.shape, view.strides), like)
            return made[node]

        def left(node):
            """What a node becomes that is computed by itself."""
            homes = {user.args[1]: w for user in node.users if (w := self._at_home(user)) is not None}
            if homes:
                outs = [k in homes and graph.call_function(torch.as_strided, (
                    joint(homes[k].home[0]), homes[k].dims, homes[k].strides, homes[k].home[1])) or None for k in range(3)]
                self._note(node, True)
                return graph.call_function(attention.backward_into, (outs, *torch.fx.map_arg(node.args, value)))
            copied = graph.node_copy(node, value)
            by = overridden(node.target, self.device)
            if by is not None:
                copied.target = by
            self._note(node, by)
            return copied
        casts = self._casts(groups)
        for kind, what in order:
            if what in self.updates or what in counters or kind == "part" and groups[what][0].results[0] in memory:
                continue
            if kind == "part" and (together := casts.get(what)):
                call = graph.call_function(_cast, ([value(groups[k][0].inputs["input"].whole.node) for k in together],
                                                   groups[what][0].results[0].dtype))
                for n, k in enumerate(together):
                    op, = groups[k]
                    memory[op.results[0]] = graph.call_function(operator.getitem, (call, n))
                    self.left.update({node: ("PyTorch", "casts of what is given, all at once") for node in op.nodes})
                continue
            if what in self.joined:
                if self.joined[what]:
                    self.left[what] = "PyTorch", f"{len(self.joined[what])} of its pieces are copied"
                for x, first in self.joined[what]:
                    like = tuple(x.meta["val"].shape), self.draft.values[what].strides, first
                    graph.call_function(aten.copy_.default, (graph.call_function(torch.as_strided, (joint(what), *like)), value(x)))
                continue
            if kind == "node":
                made[what] = left(what)
                if self._has_strides_to_check(what):
                    made[what] = graph.call_function(_as_traced, (made[what], what.meta["val"].stride()))
                continue
            recipe = Recipe(groups[what], outside)
            part = Part(recipe, [self._as_tensor(w) for w in recipe.outputs], self.device, self._in_place(recipe))
            given = [base(o.whole) for o in recipe.inputs] + [joint(w.home[0]) for w in recipe.outputs if w.home]
            call = graph.create_node("call_function", _unbuilt, tuple(given), name=f"part{len(self.parts)}")
            self.parts.append(part)
            calls.append(call)
            for k, w in enumerate(recipe.outputs):
                memory[w] = call if part.single else graph.call_function(operator.getitem, (call, k))
        for step, tensors in _by_step(counters).items():
            graph.call_function(torch._foreach_add_, ([value(t) for t in tensors], step))
        graph.output(torch.fx.map_arg(old.output_node().args[0], value))
        return graph, calls

    def _casts(self, groups):
        """{a part that is no more than a cast of a tensor that is given: all such casts to its type}, where there are several."""
        found = {}
        for k, (op, *more) in enumerate(groups):
            o = op.inputs.get("input")
            if more or op.method != "identity" or not isinstance(o, Operand) or getattr(o.whole.node, "op", None) != "placeholder":
                continue
            whole, = op.results
            shape, strides, dtype = self._as_tensor(whole)
            given = o.whole.node.meta["val"]
            is_cast = (shape, strides) == (tuple(given.shape), tuple(given.stride())) and dtype is not given.dtype
            if is_cast and not whole.home and dtype.is_floating_point and given.dtype.is_floating_point:
                found.setdefault((dtype, given.dtype), []).append(k)
        return {k: some for some in found.values() if len(some) > 1 for k in some}

    def _has_strides_to_check(self, node):
        """Whether the strides of what an operator makes are not sure: kernels do not always keep to what was traced."""
        of = node.args[0] if node.target is operator.getitem else node
        is_operator = isinstance(of.target, torch._ops.OpOverload) and not of.target._schema.is_mutable and not of.target.is_view
        value = node.meta.get("val")
        return is_operator and isinstance(value, torch.Tensor) and value.dim() > 1 and self._at_home(node) is None

    def _at_home(self, node):
        """The memory of a node's value that lies in a concatenation's, or None."""
        view = self.draft.values.get(node)
        return view.whole if isinstance(view, View) and view.whole.node is node and view.whole.home else None

    def _in_place(self, recipe):
        """{index of an output: index of the input whose memory it is written to}"""
        at = {o.whole: k for k, o in enumerate(recipe.inputs)}
        targets = {whole: self.draft.values[to].whole for whole, to in self.updates.values()}
        return {k: at[targets[whole]] for k, whole in enumerate(recipe.outputs) if whole in targets}

    def _note(self, node, ours):
        """Tell who computes a node that is left; what only takes results apart is not told of."""
        if isinstance(node.target, torch._ops.OpOverload) and node in self.draft.left and node not in self.draft.numbers:
            is_ours = ours is not None or getattr(node.target, "namespace", "") == "dnnkern"
            self.left[node] = ("dnnkern" if is_ours else "PyTorch"), self.draft.left[node]

    @staticmethod
    def _as_tensor(whole):
        """(shape, strides, dtype) of the tensor that has memory."""
        node, index = whole.node if isinstance(whole.node, tuple) else (whole.node, None)
        if node is None:
            return whole.dims, whole.strides, whole.dtype
        value = node.meta["val"] if index is None else node.meta["val"][index]
        return tuple(value.shape), tuple(value.stride()), value.dtype

    def _view_of(self, graph, node, view):
        shape, strides, _ = self._as_tensor(view.whole)
        if (shape, strides) == (view.shape, view.strides) and not view.first:
            return node
        return graph.call_function(torch.as_strided, (node, view.shape, view.strides, view.first))


def _as_traced(x, strides):
    """A tensor with the strides that were traced."""
    if x.stride() == strides:
        return x
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)


def _cast(tensors, dtype):
    """Tensors in another type: weights, which are many and small."""
    made = [torch.empty_like(x, dtype=dtype) for x in tensors]
    torch._foreach_copy_(made, tensors)
    return made


def _unbuilt(*tensors):
    """Stands for a part's call while its kernels are not compiled."""


def _counters(graph):
    """{node: (tensor, number)} of the nodes that add a number to an integer which the program was given, such as a count of batches."""
    found = {}
    for node in graph.find_nodes(op="call_function", target=aten.copy_.default):
        to, source = node.args[:2]
        if source.target is aten.add.Tensor and source.args[0] is to and to.op == "placeholder" and isinstance(source.args[1], int) \
                and not source.kwargs and list(source.users) == [node] and len(to.users) == 2 and not node.users:
            found[node] = found[source] = to, source.args[1]
    return found


def _by_step(counters):
    """{number: tensors to which it is added}"""
    found = {}
    for to, step in dict.fromkeys(counters.values()):
        found.setdefault(step, []).append(to)
    return found


def _device_of(gm):
    """The device of a program's tensors: a GPU, if any is on one."""
    found = {v.device for n in gm.graph.nodes for v in _tensors(n.meta.get("val"))}
    return next((d for d in sorted(found, key=str) if d.type == KEY.lower()), torch.device(KEY.lower()))


def _tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in _tensors(v)] if isinstance(value, (tuple, list)) else []


@functools.cache
def overridden(target, device):
    """This library's override of an operator, which goes back to PyTorch's where it refuses; None where there is none."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten" or device.type != KEY.lower():
        return None
    name = target._schema.name.removeprefix("aten::") + f".{target._overloadname}" * (target._overloadname != "default")
    override = table().get(name)
    if override is None or override.composite or override.numbers:
        return None
    return _caller(override, target, False)


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

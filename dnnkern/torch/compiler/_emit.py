"""The graph in which parts are called, and what is left runs by itself."""
import functools
import operator

import torch

from .._overrides import _caller
from .._table import table
from .._tensors import KEY
from ..ops import attention
from ._draft import Operand, View
from ._parts import Part, Recipe

aten = torch.ops.aten


class Emitted:
    """A graph that `add` makes of a traced one.

    Parameters
    ----------
    of : Assembled
        Gets to know who computes what is `left`.
    groups : list of list of Op
        Operations that run together.

    Attributes
    ----------
    graph : torch.fx.Graph
    parts, calls : list of Part, of its nodes
        Nodes call `_unbuilt` until their kernels are compiled.
    """

    def __init__(self, of, groups):
        self.of, self.groups, self.draft, self.device = of, groups, of.draft, of.device
        self.graph, self.parts, self.calls = torch.fx.Graph(), [], []
        self.made, self.memory = {}, {}  # {node of the program: node}, {Whole: node}
        self.counters, self.casts = _counters(of.gm.graph), _casts(groups)
        of_op = {op: k for k, group in enumerate(groups) for op in group}
        self.outside = {w for k, group in enumerate(groups) for op in group for o in op.inputs.values()
                        if isinstance(o, Operand) and (w := o.whole).maker is not None and of_op[w.maker] != k} | of.stored

    def add(self, order):
        """Add the whole program: parts, by their numbers, and nodes."""
        for node in self.of.gm.graph.find_nodes(op="placeholder"):
            self.made[node] = self.graph.node_copy(node)
        for kind, what in order:
            if kind == "part":
                self._add_part(what)
            elif what in self.of.joined:
                self._add_pieces(what)
            elif what not in self.of.updates and what not in self.counters:
                self._add_node(what)
        for step, tensors in _by_step(self.counters).items():
            self._call(torch._foreach_add_, [self.value(t) for t in tensors], step)
        self.graph.output(torch.fx.map_arg(self.of.gm.graph.output_node().args[0], self.value))

    def _call(self, function, *args, **kwargs):
        return self.graph.call_function(function, args, kwargs)

    # ---- values

    def value(self, node):
        """What has the value of a node of the program."""
        if node not in self.made:
            view = self.draft.values.get(node)
            if isinstance(view, View) and view.whole in self.memory:
                self.made[node] = self._view_of(self.memory[view.whole], view)
            else:  # a view of what is given or left
                self.made[node] = self.graph.node_copy(node, self.value)
        return self.made[node]

    def _view_of(self, node, view):
        shape, strides, _ = view.whole.tensor
        if (shape, strides) == (view.shape, view.strides) and not view.first:
            return node
        return self._call(torch.as_strided, node, view.shape, view.strides, view.first)

    def _base(self, whole):
        """The tensor whose memory it is."""
        return self.memory[whole] if whole.maker is not None else self.value(whole.node)

    def _joint(self, node):
        """The memory of a concatenation whose pieces are written to it."""
        if node not in self.made:
            view, value = self.draft.values[node], node.meta["val"]
            self.made[node] = self._call(torch.empty_strided, view.shape, view.strides, dtype=value.dtype, device=value.device)
        return self.made[node]

    # ---- parts

    def _add_part(self, k):
        """A call of operations that run together."""
        if k in self.casts:
            self._add_casts(self.casts[k])
            return
        recipe = Recipe(self.groups[k], self.outside)
        part = Part(recipe, [w.tensor for w in recipe.outputs], self.device, self._in_place(recipe))
        given = [self._base(o.whole) for o in recipe.inputs] + [self._joint(w.home[0]) for w in recipe.outputs if w.home]
        call = self.graph.create_node("call_function", _unbuilt, tuple(given), name=f"part{len(self.parts)}")
        self.parts.append(part)
        self.calls.append(call)
        for k, w in enumerate(recipe.outputs):
            self.memory[w] = call if part.single else self._call(operator.getitem, call, k)

    def _in_place(self, recipe):
        """{index of an output: index of the input whose memory it is written to}"""
        at = {o.whole: k for k, o in enumerate(recipe.inputs)}
        targets = {whole: self.draft.values[to].whole for whole, to in self.of.updates.values()}
        return {k: at[targets[whole]] for k, whole in enumerate(recipe.outputs) if whole in targets}

    def _add_casts(self, together):
        """Casts of what is given, which the first of them brings along."""
        ops = [op for k in together for op in self.groups[k]]
        if ops[0].results[0] in self.memory:
            return
        call = self._call(_cast, [self.value(op.inputs["input"].whole.node) for op in ops], ops[0].results[0].dtype)
        for k, op in enumerate(ops):
            self.memory[op.results[0]] = self._call(operator.getitem, call, k)
            self.of.left.update({node: ("PyTorch", "casts of what is given, all at once") for node in op.nodes})

    # ---- what is left

    def _add_pieces(self, node):
        """Copies of the pieces of a concatenation that are not written where it has them."""
        pieces, strides = self.of.joined[node], self.draft.values[node].strides
        if pieces:
            self.of.left[node] = "PyTorch", f"{len(pieces)} of its pieces are copied"
        for x, first in pieces:
            there = self._call(torch.as_strided, self._joint(node), tuple(x.meta["val"].shape), strides, first)
            self._call(aten.copy_.default, there, self.value(x))

    def _add_node(self, node):
        """A node that is computed by itself."""
        homes = {user.args[1]: w for user in node.users if (w := self._at_home(user)) is not None}
        by = overridden(node.target, self.device)
        if homes:
            outs = [self._memory_of(homes[k]) if k in homes else None for k in range(3)]
            made = self._call(attention.backward_into, outs, *torch.fx.map_arg(node.args, self.value))
        else:
            made = self.graph.node_copy(node, self.value)
            made.target = by or node.target
        if self._has_strides_to_check(node):
            made = self._call(_as_traced, made, node.meta["val"].stride())
        self.made[node] = made
        self._note(node, by)

    def _at_home(self, node):
        """The memory of a node's value that lies in a concatenation's, or None."""
        view = self.draft.values.get(node)
        return view.whole if isinstance(view, View) and view.whole.node is node and view.whole.home else None

    def _memory_of(self, whole):
        """The tensor in a concatenation's memory."""
        node, first = whole.home
        return self._call(torch.as_strided, self._joint(node), whole.dims, whole.strides, first)

    def _has_strides_to_check(self, node):
        """Whether the strides of what an operator makes are not sure: kernels do not always keep to what was traced."""
        of = node.args[0] if node.target is operator.getitem else node
        is_operator = isinstance(of.target, torch._ops.OpOverload) and not of.target._schema.is_mutable and not of.target.is_view
        value = node.meta.get("val")
        return is_operator and isinstance(value, torch.Tensor) and value.dim() > 1 and self._at_home(node) is None

    def _note(self, node, by):
        """Tell who computes a node that is left; what only takes results apart is not told of."""
        if isinstance(node.target, torch._ops.OpOverload) and node in self.draft.left and node not in self.draft.numbers:
            is_ours = by is not None or getattr(node.target, "namespace", "") == "dnnkern"
            self.of.left[node] = ("dnnkern" if is_ours else "PyTorch"), self.draft.left[node]


# ---- what graphs call

def _unbuilt(*tensors):
    """Stands for a part's call while its kernels are not compiled."""


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


# ---- what is one call

def _casts(groups):
    """{a part that is no more than a cast of a tensor that is given: all such casts to its type}, where there are several."""
    found = {}
    for k, (op, *more) in enumerate(groups):
        o = op.inputs.get("input")
        if more or op.method != "identity" or not isinstance(o, Operand) or getattr(o.whole.node, "op", None) != "placeholder":
            continue
        whole, = op.results
        shape, strides, dtype = whole.tensor
        given = o.whole.node.meta["val"]
        is_cast = (shape, strides) == (tuple(given.shape), tuple(given.stride())) and dtype is not given.dtype
        if is_cast and not whole.home and dtype.is_floating_point and given.dtype.is_floating_point:
            found.setdefault((dtype, given.dtype), []).append(k)
    return {k: some for some in found.values() if len(some) > 1 for k in some}


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

"""Nodes that run inside an anchor, on its scores: what `score_mod` and `score_mod_bprop` of attention add.

A callback adds pointwise nodes to the graph, as any code does, from a tensor that the anchor has only inside. `trace` takes them out of the
graph again and keeps them with the anchor, whose ports the other tensors become that they read.
"""
from dataclasses import dataclass, field

from ._enums import data_type
from ._errors import InvalidValue, cudnnGraphNotSupportedError
from ._infer import broadcasts, row_major
from ._ir import Inner
from ._tensor import tensor

PASSING = {"identity": ("IN_0",), "add": ("IN_0", "IN_1"), "bias": ("IN_0", "IN_1"), "sub": ("IN_0",)}
"""Operations whose result has the derivative 1 by these inputs, where no other depends on the same."""


@dataclass
class InnerNodes:
    """The `GraphNode`s; the tensors that the anchor gives them, {name: tensor}; and those that it takes."""
    nodes: list = field(default_factory=list)
    given: dict = field(default_factory=dict)
    taken: dict = field(default_factory=dict)

    @property
    def tensors(self):
        """All that are the anchor's own."""
        return [*self.given.values(), *(t for node in self.nodes for t in node.outputs.values())]

    def spec(self, uid_of):
        """As plain data."""
        sides = (tuple((name, uid_of(t)) for name, t in side.items()) for side in (self.given, self.taken))
        return Inner(tuple(node.spec(uid_of) for node in self.nodes), *sides)


def trace(node, functions):
    """Run callbacks (graph, tensor) -> tensor, {name: (callback, name of the tensor that it is given)}, and keep with the anchor `node`
    what they add."""
    graph, inner = node.graph, InnerNodes()
    for name, (function, of) in functions.items():
        if not callable(function):
            raise TypeError(f"{node}: {name}: got {type(function).__name__}; expected a callable (graph, tensor) -> tensor")
        t = inner.given[of] = graph._new(f"{node.name}::{of}", node)
        t._inside = node
        count = len(graph.nodes)
        try:
            result = function(graph, t)
            added = graph.nodes[count:]
        finally:
            del graph.nodes[count:]
        for one in added:
            _adopt(node, name, one)
        inner.nodes += added
        if not isinstance(result, tensor):
            raise TypeError(f"{node}: {name}: got {type(result).__name__} of the callable; expected a tensor")
        graph._own(result, f"{node}: {name}")
        if all(result is not own for own in inner.tensors):
            raise InvalidValue(f"{node}: {name}: got tensor {result._label()} of the callable; expected one that it computes")
        inner.taken[name] = result
    _connect(node, inner)
    node.inner = inner


def _adopt(node, name, one):
    if one.operation.formula is None:
        raise cudnnGraphNotSupportedError(f"{node}: {name}: {one} is no pointwise operation")
    for port, t in one.outputs.items():
        if not t._virtual:
            raise cudnnGraphNotSupportedError(f"{node}: {name}: {one.where(port)} is an output; expected virtual tensors")
        t._inside = node


def _connect(node, inner):
    """What the nodes read from outside becomes inputs of the anchor."""
    own = {id(t) for t in inner.tensors}
    for one in inner.nodes:
        for port, t in one.inputs.items():
            if id(t) in own or any(t is other for name, other in node.inputs.items() if name.startswith("Operand_")):
                continue
            if t._producer is node:
                raise InvalidValue(f"{one.where(port)} is a result of {node}, which it runs inside; expected another tensor")
            node.inputs[f"Operand_{sum(name.startswith('Operand_') for name in node.inputs)}"] = t


def infer(node, dim, double):
    """Dims, strides and types of what is inside, of scores with these dims."""
    for t in node.inner.given.values():
        t._infer("dim", tuple(dim))
        t._infer("stride", row_major(dim))
        t._infer("type", data_type.DOUBLE if double else data_type.FLOAT)
    for one in node.inner.nodes:
        one.operation.infer_node(one)
        one.complete_types()
        for port in one.outputs:
            one.expect(broadcasts(one.dim(port), dim), port, f"dims {one.dim(port)}", f"some that broadcast to the scores' {tuple(dim)}")
            if not one.outputs[port]._virtual:
                one.refuse(port, f"an output inside {node}; expected virtual tensors")
    for name, t in node.inner.taken.items():
        if t._dim != tuple(dim):
            raise InvalidValue(f"{node}: {name}: got a tensor of dims {t._dim} of the callable; expected the scores' {tuple(dim)}")


def check_outside(node):
    """Raise where a node reads what another one has inside only."""
    for port, t in node.inputs.items():
        if t._inside is not None and t._inside is not node:
            raise InvalidValue(f"{node.where(port)} exists only inside {t._inside}; expected a tensor with memory, or a node's result")


def passes(node, result, source):
    """Whether `result` has the derivative 1 by `source` wherever it is no constant: what is added, and masks."""
    makers = {id(t): one for one in node.inner.nodes for t in one.outputs.values()}

    def depends(t):
        one = makers.get(id(t))
        reads = one is not None and one.operation.name != "gen_index"
        return t is source or reads and any(map(depends, one.inputs.values()))

    def derivative_is_one(t):
        if t is source:
            return True
        one = makers.get(id(t))
        if one is None:
            return False
        inputs, of = one.inputs, [port for port, i in one.inputs.items() if depends(i)]
        if one.operation.name == "binary_select":
            others = [t for port, t in inputs.items() if port not in of and port != "IN_2"]
            return len(of) == 1 and of[0] != "IN_2" and others[0]._by_value and derivative_is_one(inputs[of[0]])
        return len(of) == 1 and of[0] in PASSING.get(one.operation.name, ()) and derivative_is_one(inputs[of[0]])
    return derivative_is_one(result)

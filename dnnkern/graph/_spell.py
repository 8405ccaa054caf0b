"""Operations spelled out: nodes that say what another computes, where sums among them could be of an anchor's kernel."""
import math
from dataclasses import dataclass, replace

from ._ir import GraphSpec, Node, TensorSpec
from .ops import OPERATIONS


@dataclass(frozen=True)
class SpelledSpec(GraphSpec):
    """A graph with such nodes in place of those of `origin`."""
    origin: GraphSpec | None = None


class Spelling:
    """The nodes in place of one node. Values are uids of tensors; ``do(op, *values)`` is a pointwise node, in the node's compute type."""

    def __init__(self, spec, node, first):
        self.spec, self.node, self.tensors, self.nodes, self._next = spec, node, [], [], first

    def of(self, port):
        """An input of the node."""
        return self.node.input(port)

    def dim(self, value):
        """The dims of a value."""
        return self._tensor(value).dim

    def _tensor(self, value):
        return next((t for t in self.tensors if t.uid == value), None) or self.spec.tensor(value)

    def _made(self, dim, stride, **more):
        self.tensors.append(TensorSpec(self._next, "", tuple(dim), tuple(stride), self.node.compute, True, **more))
        self._next += 1
        return self.tensors[-1].uid

    def constant(self, number):
        """A number."""
        rank = len(self.spec.tensor(self.node.outputs[0][1]).dim)
        value = self._made((1,) * rank, (1,) * rank, by_value=True, value=float(number), constant=True)
        self.tensors[-1] = replace(self.tensors[-1], virtual=False)
        return value

    def __call__(self, op, *values):
        whole = max(map(self._tensor, values), key=lambda t: math.prod(t.dim))
        return self._add(op, [(f"IN_{k}", value) for k, value in enumerate(values)], "OUT_0", whole.dim, whole.stride)

    def sum(self, value, like):
        """Sums over the dims in which the tensor `like` has 1."""
        t = self.spec.tensor(like)
        return self._add("reduction", [("X", value)], "Y", t.dim, t.stride, (("mode", "ADD"),))

    def _add(self, op, inputs, port, dim, stride, attributes=()):
        out = self._made(dim, stride)
        self.nodes.append(Node(op, f"{self.node.label} {op}", tuple(inputs), ((port, out),), attributes, self.node.compute))
        return out

    def results(self, found):
        """Of {output port: value}: each value is that result of the node."""
        uids = {value: uid for port, value in found.items() if (uid := self.node.output(port)) is not None}

        def renamed(ports):
            return tuple((port, uids.get(uid, uid)) for port, uid in ports)
        self.nodes = [replace(n, inputs=renamed(n.inputs), outputs=renamed(n.outputs)) for n in self.nodes]
        self.tensors = [t for t in self.tensors if t.uid not in uids]


def spelled(spec):
    """The graph with all nodes spelled out that can be; None where it has none."""
    nodes, tensors, is_new = [], list(spec.tensors), False
    for node in spec.nodes:
        spell = OPERATIONS[node.op].spelled
        do = spell and Spelling(spec, node, 1 + max(t.uid for t in tensors))
        if do and spell(do):
            nodes += do.nodes
            tensors += do.tensors
            is_new = True
        else:
            nodes.append(node)
    return SpelledSpec(tuple(tensors), tuple(nodes), spec.io, spec.intermediate, spec.compute, spec.name, spec) if is_new else None

"""A graph as a program: its nodes in order, what is fused, and when values are no longer needed."""
import numpy as np
import onnx

from ._errors import ModelError
from ._fuse import Group, grouped
from ._node import Node
from ._values import FLOATS, Value

MOST_SHAPE = 64  # elements of a constant of integers that may be a shape
SUBGRAPH = onnx.AttributeProto.GRAPH


class Program:
    """A graph, or a subgraph of a node.

    Parameters
    ----------
    graph : onnx.GraphProto
    opsets : {domain: version}
    fuse : bool
    path : str
        Names of the graphs around it, for messages.

    Attributes
    ----------
    inputs, outputs : list of str
    constants : {name: Value}
    nodes : list of Node
    free : tuple of str
        Names that it takes from the graphs around it.
    """

    def __init__(self, graph, opsets, fuse=True, path=""):
        self.inputs, self.outputs = [i.name for i in graph.input], [o.name for o in graph.output]
        self.constants, self.nodes = {}, []
        for tensor in graph.initializer:
            self.constants[tensor.name] = _constant(onnx.numpy_helper.to_array(tensor))
        for sparse in graph.sparse_initializer:
            self.constants[sparse.values.name] = _constant(_dense(sparse))
        for proto in graph.node:
            value = _constant_of(proto)
            if value is not None:
                self.constants[proto.output[0]] = value
                continue
            programs = {a.name: Program(a.g, opsets, fuse, f"{path} of graph {a.g.name!r}") for a in proto.attribute if a.type == SUBGRAPH}
            self.nodes.append(Node(proto, opsets, programs, path))
        made = {*self.inputs, *self.constants, *(name for node in self.nodes for name in node.outputs)}
        self.free = tuple(dict.fromkeys(name for name in (*(n for node in self.nodes for n in node.reads), *self.outputs)
                                        if name not in made))
        self._check_order()
        self.units = grouped(self.nodes, self.outputs, self.constants) if fuse else list(self.nodes)
        self._plan()

    def _check_order(self):
        """ModelError where a node reads what a later one makes."""
        later = {name for node in self.nodes for name in node.outputs if name}
        for node in self.nodes:
            for name in node.reads:
                if name in later:
                    raise ModelError(f"{node.label}: reads {name!r}, which a later node makes; expected nodes in topological order")
            later.difference_update(node.outputs)

    def _plan(self):
        """Which values are freed after which unit: those that nobody reads any more."""
        last = {}
        for k, unit in enumerate(self.units):
            for name in (*unit.reads, *unit.outputs):
                if name:
                    last[name] = k
        kept = {*self.outputs, *self.constants}
        self.freed = [[] for _ in self.units]
        for name, k in last.items():
            if name not in kept and name not in self.free:
                self.freed[k].append(name)

    def everything(self):
        """All nodes, those of subgraphs included."""
        for node in self.nodes:
            yield node
            for program in node.programs.values():
                yield from program.everything()

    def upload(self):
        """Put the weights on the device: constants of floats, once."""
        wanted = {name for node in self.nodes if node.rule is not None for name in node.reads}
        for name, value in self.constants.items():
            if name in wanted and value.dtype in FLOATS:
                value.device()
                if value.size > MOST_SHAPE:
                    value.forget_host()
        for node in self.nodes:
            for program in node.programs.values():
                program.upload()

    def run(self, given, outer=None):
        """The outputs, a list of `Value`s, for ``{name: Value}`` of the inputs; `outer(name)` has what is free."""
        values = {**self.constants, **given}

        def scope(name):
            if name in values:
                return values[name]
            if outer is None:
                raise ModelError(f"a node reads {name!r}, which is no input, no initializer and no result of a node")
            return outer(name)
        for unit, freed in zip(self.units, self.freed):
            for name, value in zip(unit.outputs, unit.run(scope)):
                if name:
                    values[name] = value
            for name in freed:
                values.pop(name, None)
        return [scope(name) for name in self.outputs]

    def rows(self):
        """(node, nodes it is fused with, whether it is in a group) of all nodes, in order."""
        groups = {node: unit for unit in self.units if isinstance(unit, Group) for node in unit.nodes}
        for node in self.nodes:
            yield node, groups.get(node)
            for program in node.programs.values():
                yield from program.rows()


def _constant(array):
    is_shape = array.dtype.kind in "iub" and array.size <= MOST_SHAPE
    return Value(array, is_shape=is_shape)


def _constant_of(proto):
    """The value of a Constant, else None."""
    if proto.op_type != "Constant" or proto.domain not in ("", "ai.onnx") or len(proto.attribute) != 1:
        return None
    a = proto.attribute[0]
    value = onnx.helper.get_attribute_value(a)
    if a.name == "value":
        return _constant(onnx.numpy_helper.to_array(value))
    if a.name == "sparse_value":
        return _constant(_dense(value))
    kinds = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    if a.name in kinds:
        return _constant(np.array(value, kinds[a.name]))
    if a.name in ("value_string", "value_strings"):
        return Value(np.array(value.decode() if isinstance(value, bytes) else [v.decode() for v in value], object))
    return None


def _dense(sparse):
    """A sparse tensor's values among zeros."""
    values, indices = (onnx.numpy_helper.to_array(t) for t in (sparse.values, sparse.indices))
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    if indices.ndim == 2:
        dense[tuple(indices.T)] = values
    else:
        dense.reshape(-1)[indices] = values
    return dense

"""Nodes that run together: a convolution or a product with the pointwise nodes after it, and pointwise nodes among themselves, as one
`dnnkern.graph`.

A group has one result: everything else that its nodes make is read inside alone. So it runs where its last node is, and nothing outside
can depend on it before. A graph is built for each set of shapes; where none can be, the nodes run one after the other.
"""
import math

import numpy as np

from ._values import FLOATS, Value, empty
from .rules import product
from .rules.pointwise import EXPRESSIONS, GRAPH_NAMES, expression, names_in

MOST = 24  # nodes of a group: a part of a graph has 32 functions
MOST_PLANS = 64  # of a group, for as many sets of shapes
KINDS = {"float64": "DOUBLE", "float32": "FLOAT", "float16": "HALF", "bfloat16": "BFLOAT16"}
ANCHORS = {"Conv": product.draw_convolution, "MatMul": product.draw_product, "Gemm": product.draw_gemm}


class Group:
    """Nodes that run as one graph; has what a `Node` has for a program.

    Parameters
    ----------
    nodes : list of Node
        In order; the result is the last one's first.
    """

    def __init__(self, nodes):
        self.nodes = nodes
        made = {node.outputs[0] for node in nodes}
        self.reads = tuple(dict.fromkeys(name for node in nodes for name in node.reads if name not in made))
        self.outputs = [nodes[-1].outputs[0]]
        self.plans, self.reason = {}, None

    def run(self, scope):
        """The result for the values of a scope, a list of one."""
        values = [scope(name) for name in self.reads]
        key = tuple((v.shape, v.dtype) if v.is_tensor else None for v in values)
        if key not in self.plans:
            if len(self.plans) >= MOST_PLANS:
                self.plans.clear()
            self.plans[key] = self._planned(dict(zip(self.reads, values)))
        plan = self.plans[key]
        if plan is not None:
            for node in self.nodes:
                node.runs += 1
                node.fused = [other for other in self.nodes if other is not node]
                node.calls.setdefault("graph")
            return [plan.run(values)]
        made = {}
        for node in self.nodes:
            node.fused = []
            made[node.outputs[0]] = node.run(lambda name: made[name] if name in made else scope(name))[0]
        return [made[self.outputs[0]]]

    def _planned(self, values):
        """A `Plan`, or None where there is none: `reason` says why."""
        try:
            return Plan(self.nodes, values)
        except Exception as error:  # a graph's own errors are of many classes; the nodes by themselves say what is wrong with a model
            self.reason = str(error).split("\n")[0]
            return None


class Plan:
    """A graph for inputs of these shapes.

    Parameters
    ----------
    nodes : list of Node
    values : {name: Value}
        Of what the nodes read.
    """

    def __init__(self, nodes, values):
        from .. import graph as cudnn
        self.cudnn, self.values = cudnn, values
        self.dtype = next(values[name].dtype for node in nodes for name in node.inputs if name in values)
        if self.dtype not in FLOATS:
            raise TypeError(f"an operand is {self.dtype}; expected one of {', '.join(FLOATS)}")
        self.kind = cudnn.data_type[KINDS[self.dtype]]
        wide = cudnn.data_type.DOUBLE if self.dtype == "float64" else cudnn.data_type.FLOAT
        self.wide, self.graph, self.inputs = wide, cudnn.pygraph(io_data_type=self.kind, intermediate_data_type=wide,
                                                                 compute_data_type=wide), {}
        self.made_of, self.rank, made = {}, None, {}
        for node in nodes:
            draw = ANCHORS.get(node.op)
            made[node.outputs[0]] = draw(self, node) if draw else self._draw_pointwise(node, made)
        self.result, self.shape = made[nodes[-1].outputs[0]]
        self.result.set_output(True).set_data_type(self.kind)
        dims = self._dims(self.shape)
        self.result.set_dim(dims).set_stride(_packed(dims))
        self.graph.build([cudnn.heur_mode.A])
        self.workspace = self.graph.get_workspace_size()
        self.order = {name: k for k, name in enumerate(values)}
        self.values = None  # those of this run, which are not kept alive

    def run(self, values):
        """The result for values in the order of the inputs."""
        out = empty(self.shape, values[0].device().dtype)
        pack = {t: values[self.order[name]].device() for name, t, _ in self.inputs.values()}
        pack.update((t, v.device()) for t, v in self.made_of.items())
        pack[self.result] = out
        self.graph.execute(pack, empty((self.workspace,), np.uint8) if self.workspace else None)
        return Value(device=out)

    # ---- what nodes draw with

    def tensor(self, name, dims=None):
        """The graph's tensor of an input; `dims`: with other extents of the same memory."""
        dims = self._dims(self.values[name].shape) if dims is None else tuple(dims)
        if (name, dims) not in self.inputs:
            self._check(name)
            self.inputs[name, dims] = name, self.graph.tensor(dim=dims, stride=_packed(dims), data_type=self.kind), dims
        return self.inputs[name, dims][1]

    def _check(self, name):
        if self.values[name].dtype != self.dtype:
            raise TypeError(f"operands are {self.dtype} and {self.values[name].dtype}; expected one dtype")

    def transposed(self, name):
        """The graph's tensor of a matrix whose rows are its columns."""
        self._check(name)
        m, n = self.values[name].shape
        t = self.graph.tensor(dim=(1, n, m), stride=(m * n, 1, n), data_type=self.kind)
        self.inputs[name, "transposed"] = name, t, None
        return t

    def _dims(self, shape):
        """A shape with as many dims as the graph's tensors have."""
        return (1,) * (self.rank - len(shape)) + tuple(shape)

    def _draw_pointwise(self, node, made):
        if node.op == "BatchNormalization":
            return self._draw_normalization(node, made)
        shapes = [made[name][1] if name in made else self.values[name].shape for name in node.inputs if name]
        shape = np.broadcast_shapes(*shapes)
        if self.rank is None:
            self.rank = max(len(shape), 1)
        if len(shape) > self.rank or 0 in shape:
            raise ValueError(f"shape {shape}; expected {self.rank} dimensions with elements")
        operands = [(made[name][0] if name in made else self.tensor(name)) if name else None for name in node.inputs]
        return self.drawn(expression(node, operands)), tuple(shape)

    def _draw_normalization(self, node, made):
        """Batch normalization by constants: each channel minus its mean, times a factor, plus its bias."""
        name, shape = node.inputs[0], (made[node.inputs[0]][1] if node.inputs[0] in made else self.values[node.inputs[0]].shape)
        scale, bias, mean, variance = (self.values[n].host().astype(np.float64) for n in node.inputs[1:])
        if self.rank is None:
            self.rank = len(shape)
        if len(shape) != self.rank or 0 in shape or len(shape) < 2 or {v.shape for v in (scale, bias, mean, variance)} != {shape[1:2]}:
            raise ValueError(f"shape {shape}; expected {self.rank} dimensions, of which the second are {scale.shape} channels")
        dims = (1, shape[1], *[1] * (len(shape) - 2))
        y = made[name][0] if name in made else self.tensor(name)
        factor = scale / np.sqrt(variance + float(node.attribute("epsilon", 1e-5)))
        for method, vector in (("sub", mean), ("mul", factor), ("add", bias)):
            t = self.graph.tensor(dim=dims, stride=_packed(dims), data_type=self.wide)
            self.made_of[t] = Value(vector.astype(np.float64 if self.dtype == "float64" else np.float32))
            y = getattr(self.graph, method)(y, t)
        return y, tuple(shape)

    def drawn(self, e):
        """The tensor of an expression."""
        if isinstance(e, (int, float)):
            return self.graph.tensor_scalar(float(e), self.cudnn.scalar_type.COMPILE_TIME_CONST).set_data_type(self.wide)
        if not isinstance(e, tuple):
            return e
        name, *arguments = e
        options = arguments.pop() if isinstance(arguments[-1], dict) else {}
        method, options = GRAPH_NAMES[name](options)
        return getattr(self.graph, method)(*map(self.drawn, arguments), **options)


def _packed(dims):
    return [math.prod(dims[k + 1:]) for k in range(len(dims))]


def grouped(nodes, outputs, constants):
    """The nodes as units: groups of nodes that may run together, and nodes by themselves, in an order that computes the same."""
    readers = {}
    for node in nodes:
        for name in node.reads:
            readers.setdefault(name, []).append(node)
    of, taken = {}, set()
    pointwise = {node for node in nodes if _is_pointwise(node, constants)}
    for k, node in enumerate(nodes):
        if node not in taken and (node.op in ANCHORS and node.rule is not None or node in pointwise):
            members = _members(nodes, k, readers, outputs, pointwise - taken)
            if len(members) > 1:
                taken.update(members)
                of[members[-1]] = Group(members)
    return [of.get(node, node) for node in nodes if node in of or node not in taken]


def _members(nodes, k, readers, outputs, pointwise):
    """The largest group that begins with a node: it grows by pointwise nodes that read it, and ends where all but its last result are
    read inside."""
    members, best = [nodes[k]], [nodes[k]]
    for node in nodes[k + 1:]:
        made = {member.outputs[0] for member in members}
        if len(members) == MOST:
            break
        if not made & set(node.reads):
            continue
        if node not in pointwise:
            break  # nothing after it can close the group, or another way would have
        members.append(node)
        inside = set(members)
        if all(name not in outputs and all(r in inside for r in readers.get(name, ())) for name in made):
            best = list(members)
    return best


def _is_pointwise(node, constants):
    """Whether a node is a chain of the graph's pointwise operations: batch normalization is one, if only its image is no constant."""
    if node.rule is None or node.domain or len([name for name in node.outputs if name]) != 1:
        return False
    if node.op == "BatchNormalization":
        return not node.attribute("training_mode", 0) and all(name in constants for name in node.inputs[1:])
    return node.op in EXPRESSIONS and names_in(node) <= GRAPH_NAMES.keys()

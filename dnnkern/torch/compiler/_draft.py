"""A traced program as operations of the operation graph, and what is left to PyTorch's operators.

Each result of an operation is a `Whole`: memory with dims of the graph's. What the program has of it, with its own shape, through views,
is a `View`; a view moves nothing. So that neighbours find together, an operation takes the dims of an operand that another one makes, where
all of its operands have such dims.
"""
import math
import operator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from ...host.tensor import packed_strides
from ._shapes import are_same, expanded, in_dims, padded

RANK = 3
"""The least rank of operations' dims: products have a batch."""
DTYPES = {torch.float32: "FLOAT", torch.float16: "HALF", torch.bfloat16: "BFLOAT16", torch.float64: "DOUBLE", torch.bool: "BOOLEAN"}
"""Types of operations' tensors."""


class Left(Exception):
    """A node is no operation of the graph, and says why."""


@dataclass(eq=False)
class Whole:
    """Memory, as an operation or something else of the program has written it.

    `node` is the program's that it is the value of, None of what lies between operations of one node; `maker` the `Op`, None of what is
    given. `home`: (the concatenation in whose memory it lies, its first element there), None of what has memory of its own.
    """
    dims: tuple
    strides: tuple
    dtype: torch.dtype
    node: object = None
    maker: object = None
    home: tuple = None

    @property
    def tensor(self):
        """(shape, strides, dtype) of the tensor that has it."""
        node, index = self.node if isinstance(self.node, tuple) else (self.node, None)
        if node is None:
            return self.dims, self.strides, self.dtype
        value = node.meta["val"] if index is None else node.meta["val"][index]
        return tuple(value.shape), tuple(value.stride()), value.dtype


class View(NamedTuple):
    """How the program has memory: `first` is the first element's distance from the memory's, in elements."""
    whole: Whole
    shape: tuple
    strides: tuple
    first: int = 0


class Operand(NamedTuple):
    """What an operation reads: memory with dims and strides of its own."""
    whole: Whole
    dims: tuple
    strides: tuple
    first: int = 0

    @property
    def is_whole(self):
        """Whether it is just what another operation makes."""
        w = self.whole
        return w.maker is not None and w.dims == self.dims and not self.first and are_same(w.dims, w.strides, self.strides)


@dataclass(eq=False)
class Op:
    """One node of the operation graph: its method, {argument: Operand or number}, what else the method takes, and for each of its results
    a `Whole`, or None for what nobody wants."""
    method: str
    inputs: dict
    attributes: dict
    results: tuple
    nodes: list = field(default_factory=list)
    compute: str = "FLOAT"

    @property
    def wholes(self):
        return [w for w in self.results if w is not None]


class Draft:
    """The operations of a traced program, in its order.

    Attributes
    ----------
    ops : list of Op
    values : {node: View, number, or a tuple of them}
    left : {node: reason}
        Nodes that are no operations.
    aliases : set of nodes
        That move nothing: nothing is computed for them unless something that is left reads them.
    """

    def __init__(self, graph, rules, targets, device):
        self.ops, self.values, self.left, self.aliases, self.numbers = [], {}, {}, set(), {}
        self.device = device
        for node in graph.nodes:
            if node.op == "output":
                continue
            self._take(node, rules, targets)

    def _take(self, node, rules, targets):
        target = node.target
        if node.op == "call_function":
            if (target in targets or target is operator.getitem) and self._view(node):
                return
            rule = rules.get(target)
            if rule is not None:
                before = len(self.ops)
                try:
                    self.values[node] = rule(self, node)
                    for op in self.ops[before:]:
                        op.nodes.append(node)
                    return
                except Left as why:
                    del self.ops[before:]
                    self.left[node] = str(why)
            else:
                self.left[node] = "not an operation of the graph"
        self.values[node] = self._given(node, node.meta.get("val"))

    def _given(self, node, value):
        """What is not made by an operation of the graph."""
        if isinstance(value, torch.Tensor):
            whole = Whole(tuple(value.shape), tuple(value.stride()), value.dtype, node)
            return View(whole, tuple(value.shape), tuple(value.stride()))
        return None

    def _view(self, node):
        """Take a node that is a view of a tensor, or one of several results; False where it is none that is known."""
        source = self.values.get(node.args[0])
        if node.target is operator.getitem and isinstance(source, tuple) and not isinstance(source, View):
            self.values[node] = source[node.args[1]]
            self.aliases.add(node)
            return True
        of, value = self._tensor_under(node.args[0]), node.meta.get("val")
        if of is None or source is None and node.args[0] not in self.aliases:
            return False
        if isinstance(value, (list, tuple)):
            self.values[node] = tuple(self._view_through(of, v) for v in value)
        else:
            self.values[node] = self._view_through(of, value)
        self.aliases.add(node)
        return True

    def _tensor_under(self, node):
        view = self.values.get(node)
        return (view, node.meta["val"]) if isinstance(view, View) and isinstance(node.meta.get("val"), torch.Tensor) else None

    @staticmethod
    def _view_through(of, value):
        view, tensor = of
        first = view.first + value.storage_offset() - tensor.storage_offset()
        return View(view.whole, tuple(value.shape), tuple(value.stride()), first)

    def fold(self, readers):
        """Let operations make what a cast, or a copy of the same order, makes of their results, if nothing else reads those."""
        for op in [op for op in self.ops if op.method == "identity" and isinstance(op.inputs["input"], Operand)]:
            o, (copy,) = op.inputs["input"], op.results
            whole = o.whole
            is_same = o.is_whole and copy.dims == whole.dims and are_same(copy.dims, copy.strides, whole.strides)
            if is_same and readers[whole] == [op] and whole.dtype.is_floating_point and copy.dtype.is_floating_point:
                copy.maker = whole.maker
                copy.maker.results = tuple(copy if w is whole else w for w in copy.maker.results)
                copy.maker.nodes += op.nodes
                self.ops.remove(op)

    # ---- what rules ask for

    def view(self, node):
        """How the program has a node's value; `Left` where it is no tensor that operations take."""
        found = self.values.get(node)
        if not isinstance(found, View):
            raise Left("an argument is no tensor")
        if found.whole.dtype not in DTYPES:
            raise Left(f"an argument of {str(found.whole.dtype).removeprefix('torch.')}")
        if 0 in found.shape:
            raise Left("an argument without elements")
        if _is_elsewhere(node, self.device):
            raise Left("an argument on another device")
        return found

    def meta(self, node, index=None):
        """The traced value of a node, or one of several."""
        value = node.meta["val"] if index is None else node.meta["val"][index]
        if value.dtype not in DTYPES:
            raise Left(f"a result of {str(value.dtype).removeprefix('torch.')}")
        if 0 in value.shape:
            raise Left("a result without elements")
        return value

    def memory(self, view, dims=None):
        """An operand with the shape that the program has, or with other dims of as many elements in this order."""
        strides = view.strides if dims is None else in_dims(view.shape, view.strides, dims)
        if strides is None:
            raise Left(f"strides {view.strides} of {view.shape} as dims {dims}")
        return Operand(view.whole, tuple(dims or view.shape), strides, view.first)

    def broadcast(self, view, shape, dims):
        """An operand that broadcasts to a shape, whose elements have these dims in the operation; None where it has no such strides."""
        strides = in_dims(shape, expanded(view.shape, view.strides, shape), dims)
        if strides is None:
            return None
        own = tuple(n if s else 1 for n, s in zip(dims, strides))
        return Operand(view.whole, own, tuple(s if n != 1 else 0 for n, s in zip(own, strides)), view.first)

    def dims_for(self, views, shape, strides):
        """The dims in which operations on operands that broadcast to a shape, with a result of these strides, find their neighbours."""
        return next(self._dims_of(views, shape, strides), None) or padded(shape, strides, RANK)[0]

    def _dims_of(self, views, shape, strides):
        """Dims that other operations have, in which all of these can be."""
        candidates = [s.whole.dims for s in views if s.whole.maker is not None]
        if len(shape) == RANK and are_same(shape, strides, packed_strides(shape)):
            candidates.insert(0, (1, math.prod(shape[:-1]), shape[-1]))  # as products have them
        for dims in candidates:
            if len(dims) >= RANK and math.prod(dims) == math.prod(shape) and in_dims(shape, strides, dims) is not None \
                    and all(self.broadcast(s, shape, dims) is not None for s in views):
                yield dims

    def arranged(self, nodes, shape, strides):
        """(operands, dims, strides) of an operation on nodes that broadcast to a shape, with a result of these strides; operands are None
        where a node has no such dims.

        Axes are in the program's order, or in that of the result's memory, and dims those of an operand, so that most operands are just
        what operations make, above all those that nothing else reads: a product of images with channels last has rows of channels, which
        the program has permuted.
        """
        found, views = [], [self.view(n) for n in nodes]
        gains = [1 + self._is_read_once(n) for n in nodes]
        orders = [tuple(range(len(shape))), tuple(sorted(range(len(shape)), key=lambda k: -strides[k]))]
        spread = [expanded(v.shape, v.strides, shape) for v in views]
        for order in dict.fromkeys(orders):
            own, steps = tuple(shape[k] for k in order), tuple(strides[k] for k in order)
            moved = [View(v.whole, own, tuple(s[k] for k in order), v.first) for v, s in zip(views, spread)]
            for dims in dict.fromkeys([*self._dims_of(moved, own, steps), padded(own, steps, RANK)[0]]):
                found.append(([self.broadcast(v, own, dims) for v in moved], dims, in_dims(own, steps, dims)))
        return max(found, key=lambda of: sum(gain for gain, o in zip(gains, of[0]) if o is not None and o.is_whole))

    def _is_read_once(self, node):
        """Whether only one node reads a tensor, through whatever views."""
        while len(node.users) == 1 and node in self.aliases and node.target is not operator.getitem:
            node = node.args[0]
        return len(node.users) == 1

    def add(self, method, inputs, *results, **attributes):
        """Add an operation; its results are what `result` makes, or None."""
        wide = any(isinstance(o, Operand) and o.whole.dtype is torch.float64 for o in inputs.values())
        op = Op(method, inputs, attributes, results, compute="DOUBLE" if wide else "FLOAT")
        for whole in op.wholes:
            whole.maker = op
        self.ops.append(op)
        return op

    def result(self, node, dims, index=None, of=None):
        """(memory, how the program has it) of a node's result that an operation makes in these dims, with the strides `of` where the axes
        are in another order."""
        value = self.meta(node, index)
        shape, strides = tuple(value.shape), tuple(value.stride())
        of = of or in_dims(shape, strides, dims)
        if of is None:
            raise Left(f"a result of shape {shape}, strides {strides} as dims {dims}")
        whole = Whole(tuple(dims), of, value.dtype, node if index is None else (node, index))
        return whole, View(whole, shape, strides)


def _is_elsewhere(node, device):
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return device is not None and isinstance(value, torch.Tensor) and value.device != device

"""How an operation is defined: a signature, ports, inference, validation and lowering, together::

    @operation(outputs="C", tag="MATMUL")
    def matmul(A, B, padding=0.0):
        \"""Matrix product.\"""
        return {"A": A, "B": B}, {"padding": padding}

    @matmul.infer
    def _(node): ...

    @matmul.lower
    def _(node, part): ...

The function maps the arguments of a call to input ports and attributes, which are plain data. Every signature ends with
``compute_data_type=NOT_SET, name=""`` unless it has them elsewhere. Inference reads and completes the node's tensors. Lowering adds steps
to a `_part.Part`.
"""
import inspect

from .._enums import data_type

OPERATIONS = {}


class Operation:
    """One method of pygraph.

    Attributes
    ----------
    name : str
    outputs : tuple of str
        Ports.
    tag : str or callable(node) -> str
        cuDNN's name of the node, in logs.
    given : frozenset of str
        Those of the outputs that the caller makes, and that are not returned.
    listed : bool
        Results are a list even if there is one.
    formula : callable(node), optional
        Of a pointwise operation: the functions of a node, ((`device.pointwise.Function`, inputs), ...), the last of which is its result;
        an input is a port, or the number of an earlier one of them.
    lower_fused : callable(part), optional
        Of an anchor: the lowering of a part of it and pointwise nodes that run in its kernel.
    axes : callable(rank), optional
        Of an anchor whose kernel reduces values of its program: (the axes of its result that are rows, those that are columns).
    reduces : callable(node), optional
        Of a reduction of its input X: ((output port, mode), ...).
    makes : tuple of str
        Of an anchor: the input ports that its kernel can make by a program as it loads them.
    shares : tuple of str
        Of an anchor two of which one kernel can run: the input ports at which both must have the same tensor.
    levels : bool
        Of an anchor: whether the pointwise nodes after it may read reductions of its result's rows.
    keeps : tuple of str
        Those of `makes` whose tensors are results as well, where something else reads them.
    callbacks : callable(node, arguments), optional
        Of an anchor that runs callables of the caller's: keeps with the node what they add to the graph (`_inner`).
    spelled : callable(do), optional
        Adds nodes that compute the same to a `_spell.Spelling`; False where there are none.
    alone : str, optional
        Of an anchor that runs no program: why nothing else runs in its kernel.
    takes : callable(spec, node, others, outside), optional
        Of an anchor that runs some pointwise nodes and no program: why these others, in their order, are none that it runs after it, or
        None; `outside` tells whether a node besides them reads the tensor of a uid.
    """

    def __init__(self, function, outputs, tag, given, listed, tail):
        self.name, self.arguments, self.doc = function.__name__, function, inspect.getdoc(function)
        self.outputs, self.tag, self.listed = tuple(outputs.split()), tag or function.__name__.upper(), listed
        self.given, parameters = frozenset(given.split()), list(inspect.signature(function).parameters.values())
        for name, default in (("compute_data_type", data_type.NOT_SET), ("name", "")) if tail else ():
            if all(p.name != name for p in parameters):
                parameters.append(inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default))
        first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self.signature = inspect.Signature([first, *parameters])
        self.own = frozenset(inspect.signature(function).parameters)
        self.infer_node = self.lower_node = self.formula = self.lower_fused = self.takes = self.axes = self.reduces = None
        self.callbacks = self.alone = self.spelled = None
        self.makes = self.keeps = self.shares = ()
        self.levels = False

    def infer(self, function):
        """Decorate the inference."""
        self.infer_node = function
        return function

    def lower(self, function):
        """Decorate the lowering."""
        self.lower_node = function
        return function

    def spell(self, function):
        """Decorate what spells the operation out as nodes."""
        self.spelled = function
        return function

    def calls(self, function):
        """Decorate what runs the callables among the arguments."""
        self.callbacks = function
        return function

    def fuse(self, function, takes=None, makes=(), axes=None, keeps=(), shares=(), levels=False):
        """Decorate the lowering with pointwise neighbours."""
        self.lower_fused, self.takes, self.makes, self.axes, self.keeps, self.shares = function, takes, makes, axes, keeps, shares
        self.levels = levels
        return function


def operation(outputs="Y", tag=None, given="", listed=False, tail=True):
    """Decorate the function that maps arguments to ports and attributes; enters the operation into the table."""
    def define(function):
        made = Operation(function, outputs, tag, given, listed or len(outputs.split()) > 1, tail)
        OPERATIONS[made.name] = made
        return made
    return define

"""A node of a model: what computes it, and what became of it."""
import importlib

import numpy as np
import onnx

from .. import NotSupported
from ._errors import ModelError, Refused
from ._host import Evaluator
from ._table import rule_of
from ._values import Value, as_value

ERRORS = Refused, NotSupported, NotImplementedError, TypeError, ValueError


class Node:
    """One node.

    Parameters
    ----------
    proto : onnx.NodeProto
    opsets : {domain: version}
    programs : {attribute: Program}
        Of the subgraphs.
    what : str
        Where the node is, for messages: of a subgraph the graph's name.

    Attributes
    ----------
    inputs, outputs : list of str
        Names of values; "" for those left out.
    reads : tuple of str
        Names of all values that it needs, those that subgraphs take from outside included.
    calls : dict of str
        The functions that computed it, in order.
    reason : str or None
        Why ONNX's evaluator computed it, or would.
    runs, on_host : int
        How often it ran, and how often ONNX's evaluator did.
    fused : list of Node
        The nodes in whose kernel it ran.
    """

    def __init__(self, proto, opsets, programs, what=""):
        self.proto, self.opsets, self.programs = onnx.NodeProto(), opsets, programs
        self.proto.CopyFrom(proto)  # a part of a model would keep all of its weights
        self.op, self.domain = proto.op_type, "" if proto.domain == "ai.onnx" else proto.domain
        self.inputs, self.outputs = list(proto.input), list(proto.output)
        self.name = proto.name or (self.outputs[0] if self.outputs else self.op)
        self.label = f"node {self.name!r} ({self.domain + '.' if self.domain else ''}{self.op}){what}"
        self.attributes = {a.name: _attribute(a) for a in proto.attribute if a.name not in programs}
        free = [name for program in programs.values() for name in program.free]
        self.reads = tuple(dict.fromkeys([name for name in self.inputs if name] + free))
        self.version = _version(self)
        self.rule, self.reason = rule_of(self.domain, self.op, self.version)
        self.evaluator = Evaluator(self)
        if self.rule is None and not self.evaluator.exists:
            domain = self.domain or "ai.onnx"
            raise ModelError(f"{self.label}: there is no operator {self.op!r} in opset {self.opset} of domain {domain!r}; expected one of "
                             f"ONNX {onnx.__version__}, or a function of the model")
        self.calls, self.runs, self.on_host, self.fused = {}, 0, 0, []
        self._kept = {}

    @property
    def opset(self):
        """The version of its domain that the model imports; None where it imports none."""
        return self.opsets.get(self.domain)

    def attribute(self, name, default=None):
        """An attribute's value: numbers, lists, strings, NumPy arrays."""
        return self.attributes.get(name, default)

    def call(self, function, *args, **kwargs):
        """Call a public function of this library on `Value`s; returns a `Value`, or a tuple of them."""
        result = _public(function)(*map(_on_device, args), **{key: _on_device(value) for key, value in kwargs.items()})
        self.calls[function] = None
        if result is None or isinstance(result, list):  # in place
            return None
        if isinstance(result, tuple):
            return tuple(r if r is None else Value(device=r) for r in result)
        return Value(device=result)

    def is_wanted(self, k):
        """Whether the result of this index has a name."""
        return len(self.outputs) > k and bool(self.outputs[k])

    def once(self, key, values, make):
        """`make()`, kept as long as these are the same `Value`s: what is made of weights."""
        kept = self._kept.get(key)
        if kept is None or len(kept[0]) != len(values) or any(a is not b for a, b in zip(kept[0], values)):
            kept = self._kept[key] = tuple(values), make()
        return kept[1]

    def run(self, scope):
        """The results for the values of a scope, ``scope(name)``: a list of `Value`s.

        ModelError where neither this library nor ONNX's evaluator can compute it.
        """
        values = [scope(name) if name else None for name in self.inputs]
        self.runs += 1
        known = [v for v in values if v is not None]
        if self.rule is not None and not (self.rule.moves and known and all(v.is_shape for v in known)):
            try:
                return self._ours(values, scope)
            except ModelError:
                raise
            except ERRORS as error:
                self.reason = str(error).split("\n")[0]
        elif self.rule is not None:
            self.reason = "computes shapes"
        self.on_host += 1
        try:
            results = self.evaluator.run({name: scope(name).host() for name in self.reads})
        except ModelError:
            raise
        except Exception as error:  # whatever NumPy, or a check in ONNX, raises
            why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'without a message'}"
            ours = f" (dnnkern: {self.reason})" if self.rule is not None and self.reason else ""
            got = ", ".join(f"{name} {v.describe()}" for name, v in zip(self.inputs, values) if v is not None)
            raise ModelError(f"{self.label}: got {got or 'no inputs'}; ONNX's evaluator: {why}{ours}") from error
        is_shape = all(v.is_shape for v in known)
        return [as_value(r, is_shape and isinstance(r, np.ndarray) and r.dtype.kind in "iub") for r in results]

    def _ours(self, values, scope):
        results = self.rule.function(self, *values) if not self.programs else self.rule.function(self, scope, *values)
        results = list(results) if isinstance(results, (tuple, list)) else [results]
        return [None if r is None else as_value(r) for r in results]


def _attribute(a):
    value = onnx.helper.get_attribute_value(a)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    if a.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS):
        return list(value)
    if a.type == onnx.AttributeProto.STRINGS:
        return [v.decode(errors="replace") for v in value]
    return value


def _version(node):
    """The opset in which its operator was last changed; None where ONNX has no such operator."""
    if node.opset is None:
        return None
    try:
        return onnx.defs.get_schema(node.op, node.opset, node.domain).since_version
    except onnx.defs.SchemaError:
        return None


def _on_device(x):
    if isinstance(x, Value):
        return x.device()
    if isinstance(x, (list, tuple)) and any(isinstance(e, Value) for e in x):
        return [_on_device(e) for e in x]
    return x


def _public(name):
    from .. import _NAMES
    return getattr(importlib.import_module(_NAMES[name]), name)

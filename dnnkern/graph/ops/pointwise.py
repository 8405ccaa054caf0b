"""Pointwise operations: all modes of cuDNN, forward and backward.

Dims broadcast, aligned at the right. Inputs are converted to the compute type where they have several types, and the result is rounded once
to its own.
"""
import functools
import inspect
import math
import operator

from .._enums import data_type
from .._errors import InvalidValue, ShapeDeductionFailed
from .._infer import broadcast, broadcasts, ordered_like
from .._tensor import in_bits
from ._define import operation

FLOATS = ("float64", "float32", "float16", "bfloat16")
NUMBERS = (*FLOATS, "int8", "uint8", "int32")
TRUTH = ("cmp_eq", "cmp_neq", "cmp_gt", "cmp_ge", "cmp_lt", "cmp_le", "logical_and", "logical_or", "logical_not")


def infer(node):
    """Dims and strides of the result."""
    ports = list(node.inputs)
    dims = [node.dim(port) for port in ports]
    found = broadcast(dims) or _of_bits(node, ports)
    node.expect(found is not None, ports[0], "dims " + ", ".join(f"{port} {dim}" for port, dim in zip(ports, dims)),
                "dims that broadcast")
    out = node.outputs["OUT_0"]
    dim = out._dim or found
    if node.operation.name in TRUTH and _says_bits(out, found):
        first = next((port for port in ports if node.dim(port) == found), ports[0])
        node.result("OUT_0", dim, ordered_like(dim, node.stride(first)) if out._stride is None else out._stride, exact=False)
        axis = out._vector[1]
        node.expect(out._stride[axis] == 1, "OUT_0", f"strides {out._stride}", f"1 of dim {axis}, of which a byte has 8 elements")
        return
    if out._dim is not None:
        node.expect(broadcasts(found, dim), "OUT_0", f"dims {dim}", f"{found}, which the operands have, or what they broadcast to")
    same = [port for port in ports if node.dim(port) == tuple(dim) and not node.inputs[port]._by_value]
    if same:
        stride = node.stride(same[0])
    elif out._virtual:
        first = next((p for p in ports if len(node.dim(p)) == len(dim)), None)
        stride = ordered_like(dim, node.stride(first)) if first else None
    else:
        stride = None
    if stride is None and out._stride is None:
        if len(ports) == 1 or not out.get_is_virtual():
            raise ShapeDeductionFailed(f"{node.where('OUT_0')}: no operand has its dims {dim}, so its strides cannot be inferred; "
                                       "call set_stride")
        stride = ordered_like(dim, range(len(dim), 0, -1))
    if stride is not None and any(s == 0 for n, s in zip(dim, stride) if n > 1):
        stride = ordered_like(dim, stride)
    node.result("OUT_0", dim, stride or out._stride, exact=False)


def _says_bits(t, dim):
    """Whether a tensor's dims say that it has a bit for each element of these: UINT8, an eighth along one dim."""
    axes = range(len(dim)) if t._type is data_type.UINT8 and t._dim is not None else ()
    axis = next((k for k in axes if in_bits(t._dim, k) == tuple(dim)), None)
    if axis is not None:
        t._infer("vector", (8, axis))
    return axis is not None


def _of_bits(node, ports):
    """The dims of operands of which some have one bit per element; None where they do not fit."""
    whole = broadcast([node.dim(port) for port in ports if node.inputs[port]._type is not data_type.UINT8] or [()])
    fits = whole and all(node.inputs[port]._type is not data_type.UINT8 or node.dim(port) == whole or _says_bits(node.inputs[port], whole)
                         for port in ports)
    return whole if fits else None


def arranged(part, mode, dtypes, count):
    """(the first inputs, all of one dtype; where the result is written; the output). The dtype is their own where the operation computes
    from it to the output's without another rounding, else the compute type."""
    out = part.output("OUT_0")
    refs = [part.input(port) for port, _ in part.node.inputs[:count]]
    found, dtype = {r.dtype for r in refs}, refs[0].dtype
    wide = "float64" in (*found, out.dtype, part.compute)
    if len(found) > 1 or dtype not in dtypes or mode not in TRUTH and dtype != out.dtype or wide and dtype in FLOATS[1:]:
        dtype = "float64" if wide else "float32"
    result = "bool" if mode in TRUTH else "int32" if mode == "gen_index" else dtype
    return [part.converted(r.broadcast(out.shape), dtype) for r in refs], part.into(out, (result,), result), out


def lower_unary(part, mode):
    """A function of one array."""
    (x,), written, out = arranged(part, mode, (*NUMBERS, "bool") if mode in TRUTH else NUMBERS, 1)
    part.call("unary", (x,), (written,), mode, None)
    part.done(written, out)


def lower_binary(part, mode):
    """A function of two arrays."""
    refs, written, out = arranged(part, mode, (*NUMBERS, "bool") if mode in TRUTH else NUMBERS, 2)
    part.call("binary", refs, (written,), mode)
    part.done(written, out)


def lower_activation(part, mode):
    """An activation, with the node's attributes as its parameters."""
    (x,), written, out = arranged(part, mode, FLOATS, 1)
    part.call("activation_fwd", (x,), (written,), mode, part.node.attributes)
    part.done(written, out)


def lower_gradient(part, mode):
    """An activation's gradient, of the incoming gradient and the activation's input."""
    refs, written, out = arranged(part, mode, FLOATS, 2)
    part.call("activation_bwd", refs, (written,), mode, part.node.attributes)
    part.done(written, out)


def _define(name, arguments, lowering, mode, doc, attributes=None, tag=None):
    """A method whose arguments are its ports IN_0, IN_1, ...; `attributes` maps the others, {name: default}, to attributes. Those that are
    None are left out."""
    attributes = attributes or {}
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD

    def given(**values):
        inputs = {f"IN_{k}": values[argument] for k, argument in enumerate(arguments)}
        numbers = {}
        for key in attributes:
            if values[key] is not None:
                numbers[ATTRIBUTE.get(key, key)] = _number(name, key, values[key])
        return inputs, numbers
    given.__name__, given.__doc__ = name, doc
    given.__signature__ = inspect.Signature([inspect.Parameter(a, kind) for a in arguments]
                                            + [inspect.Parameter(a, kind, default=default) for a, default in attributes.items()])
    made = operation(outputs="OUT_0", tag=f"POINTWISE_{tag or name.upper()}")(given)
    made.infer(infer)
    made.lower(lambda part: lowering(part, mode))
    made.formula = functools.partial(formula_of, f"{mode}_backward" if lowering is lower_gradient else mode)
    return made


def formula_of(mode, node):
    """A node's function, of all its inputs."""
    from ...device.pointwise import Function
    f = Function.of(mode, **{key: value for key, value in node.attributes if key != "axis"})
    return (f, tuple(port for port, _ in node.inputs)),


ATTRIBUTE = {"swish_beta": "beta"}
"""Python's names of attributes -> those of `device.activation`, where they differ."""


def _number(function, key, value):
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{function}: {key} is {value!r}; expected a number")
    if math.isnan(value):
        raise InvalidValue(f"{function}: {key} is nan; expected a number")
    return float(value)


_CLIPS = {"negative_slope": None, "lower_clip": None, "upper_clip": None}
_REQUIRED = inspect.Parameter.empty

for _name in ("sqrt", "erf", "exp", "log", "neg", "abs", "ceil", "floor", "rsqrt", "reciprocal", "sin", "cos", "tan", "logical_not"):
    _define(_name, ("input",), lower_unary, _name, f"{_name} of every element.")
for _name in ("add", "mul", "sub", "div", "add_square", "logical_and", "logical_or"):
    _define(_name, ("a", "b"), lower_binary, _name, "a + b**2." if _name == "add_square" else f"{_name} of two tensors.")
for _name in ("max", "min", "mod", "pow"):
    _define(_name, ("input0", "input1"), lower_binary, _name, f"{_name} of two tensors.")
_define("bias", ("input", "bias"), lower_binary, "add", "input + bias.", tag="ADD")
_define("scale", ("input", "scale"), lower_binary, "mul", "input * scale.", tag="MUL")
for _name in ("cmp_eq", "cmp_neq", "cmp_gt", "cmp_ge", "cmp_lt", "cmp_le"):
    _define(_name, ("input", "comparison"), lower_binary, _name, "Whether the comparison holds: 1 or 0.")
for _name, _mode, _attributes in (("relu", "relu", _CLIPS), ("leaky_relu", "leaky_relu", {"negative_slope": _REQUIRED}),
                                  ("tanh", "tanh", {}), ("sigmoid", "sigmoid", {}), ("elu", "elu", {}), ("gelu", "gelu", {}),
                                  ("gelu_approx_tanh", "gelu_tanh", {}), ("swish", "swish", {"swish_beta": None}),
                                  ("softplus", "softplus", {})):
    _tag = {"leaky_relu": "RELU"}.get(_name, _name.upper())
    _define(_name, ("input",), lower_activation, _mode, f"{_name} of every element.", _attributes, f"{_tag}_FWD")
    if _name != "swish":
        _define(f"{_name}_backward", ("loss", "input"), lower_gradient, _mode, f"The gradient of {_name}: loss times its derivative.",
                {**_attributes}, f"{_tag}_BWD")


@operation(outputs="OUT_0", tag="POINTWISE_SWISH_BWD")
def swish_backward(loss, input, compute_data_type=data_type.NOT_SET, swish_beta=None, name=""):
    """The gradient of swish: loss times its derivative."""
    return {"IN_0": loss, "IN_1": input}, {} if swish_beta is None else {"beta": _number("swish_backward", "swish_beta", swish_beta)}


swish_backward.infer(infer)
swish_backward.lower(lambda part: lower_gradient(part, "swish"))
swish_backward.formula = functools.partial(formula_of, "swish_backward")


@operation(outputs="OUT_0", tag="POINTWISE_IDENTITY")
def identity(input):
    """The same values; a conversion where the types differ."""
    return {"IN_0": input}, {}


identity.infer(infer)
identity.formula = functools.partial(formula_of, "identity")


@identity.lower
def _(part):
    out = part.output("OUT_0")
    part.copy(part.input("IN_0").broadcast(out.shape), out)


@operation(outputs="OUT_0", tag="POINTWISE_BINARY_SELECT")
def binary_select(input0, input1, mask):
    """input0 where the mask is true, else input1."""
    return {"IN_0": input0, "IN_1": input1, "IN_2": mask}, {}


binary_select.infer(infer)
binary_select.formula = functools.partial(formula_of, "binary_select")


@binary_select.lower
def _(part):
    refs, written, out = arranged(part, "binary_select", (*NUMBERS, "bool"), 2)
    mask = part.input("IN_2")
    if mask.dtype not in ("bool", "uint8"):
        mask = part.converted(mask, "bool")
    part.call("binary", (*refs, mask.broadcast(out.shape)), (written,), "binary_select")
    part.done(written, out)


@operation(outputs="OUT_0", tag="POINTWISE_GEN_INDEX")
def gen_index(input, axis):
    """The index of every element along an axis."""
    return {"IN_0": input}, {"axis": operator.index(axis)}


@gen_index.infer
def _(node):
    infer(node)
    rank, axis = len(node.dim("IN_0")), node.attributes["axis"]
    node.expect(-rank <= axis < rank, "IN_0", f"axis {axis} of {rank} dims", f"{-rank} to {rank - 1}")


gen_index.formula = functools.partial(formula_of, "gen_index")


@gen_index.lower
def _(part):
    out = part.output("OUT_0")
    written, x = part.into(out, ("int32",), "int32"), part.input("IN_0").broadcast(out.shape)
    x = x if x.dtype in NUMBERS else x.view(x.shape, x.tensor.strides, dtype="uint8")  # which is not read
    part.call("unary", (x,), (written,), "gen_index", part.attribute("axis") % len(out.shape))
    part.done(written, out)

"""Activations, unary and binary functions, comparisons, casts.

Activations and arithmetic are expressions: a tensor, a number, or a tuple of a function and its arguments, expressions, with a dict of
parameters at the end. A node by itself evaluates one by `activation_fwd`, `unary` and `binary`; a group draws it in a graph.
"""
import math

import numpy as np
import onnx

from .._errors import Refused
from .._table import rule
from .._values import FLOATS, Value

UNARY = "neg abs sqrt reciprocal exp log erf sin cos tan ceil floor".split()
BINARY = "add sub mul div max min pow mod".split()
ACTIVATIONS = "relu leaky_relu elu selu celu sigmoid tanh softplus softsign gelu gelu_tanh swish identity".split()
INTEGERS = "int8", "uint8", "int32"

GRAPH_NAMES = {**{name: lambda o, name=name: (name, o)
                  for name in (*UNARY, *BINARY, "relu", "leaky_relu", "elu", "sigmoid", "tanh", "gelu", "softplus")},
               "gelu_tanh": lambda o: ("gelu_approx_tanh", o), "identity": lambda o: ("identity", {}),
               "swish": lambda o: ("swish", {"swish_beta": o.get("beta")})}
"""Function of an expression -> (the graph's method, its attributes) of its parameters; those that graphs have."""


def _folded(function):
    def made(node, *operands):
        e = operands[0]
        for x in operands[1:]:
            e = (function, e, x)
        return e if len(operands) > 1 else ("identity", e)
    return made


def _same(function, **parameters):
    """The function with parameters from attributes: ``parameter=(attribute, default)``."""
    def made(node, *operands):
        given = {p: float(node.attribute(attribute, default)) for p, (attribute, default) in parameters.items()}
        return (function, *operands, given) if given else (function, *operands)
    return made


def _elu(node, x):
    alpha = float(node.attribute("alpha", 1.0))
    return ("elu", x) if alpha == 1 else ("elu_of", x, {"alpha": alpha})


def _clip(node, x, low=None, high=None):
    if node.version < 11:
        low, high = node.attribute("min"), node.attribute("max")
    e = x
    for name, bound in (("max", low), ("min", high)):
        if bound is not None:
            e = (name, e, bound)
    return e if e is not x else ("identity", x)


def _hard_sigmoid(node, x):
    alpha, beta = float(node.attribute("alpha", 0.2)), float(node.attribute("beta", 0.5))
    return ("min", ("max", ("add", ("mul", x, alpha), beta), 0.0), 1.0)


def _hard_swish(node, x):
    return ("mul", x, ("min", ("max", ("add", ("mul", x, 1 / 6), 0.5), 0.0), 1.0))


def _mod(node, a, b):
    if not node.attribute("fmod", 0):
        raise Refused("Mod with the divisor's sign")
    return ("mod", a, b)


EXPRESSIONS = {
    "Relu": _same("relu"), "LeakyRelu": _same("leaky_relu", negative_slope=("alpha", 0.01)), "Elu": _elu, "Sigmoid": _same("sigmoid"),
    "Selu": _same("selu", alpha=("alpha", 1.67326319217681884765625), gamma=("gamma", 1.05070102214813232421875)),
    "Celu": _same("celu", alpha=("alpha", 1.0)), "HardSigmoid": _hard_sigmoid, "Tanh": _same("tanh"), "Softplus": _same("softplus"),
    "Softsign": _same("softsign"), "HardSwish": _hard_swish, "Mish": lambda node, x: ("mul", x, ("tanh", ("softplus", x))),
    "Gelu": lambda node, x: ("gelu_tanh" if node.attribute("approximate", "none") == "tanh" else "gelu", x),
    "Swish": _same("swish", beta=("alpha", 1.0)), "Clip": _clip, "Add": _same("add"), "Sub": _same("sub"), "Mul": _same("mul"),
    "SwiGLU": lambda node, a, b: ("mul", ("swish", a, {"beta": float(node.attribute("alpha", 1.0))}), b),
    "Div": _same("div"), "Pow": _same("pow"), "Mod": _mod, "Sum": _folded("add"), "Max": _folded("max"), "Min": _folded("min"),
    "Mean": lambda node, *xs: ("div", _folded("add")(node, *xs), float(len(xs))),
    **{name.capitalize(): _same(name) for name in UNARY}}
"""Operator -> its expression, of a node and its operands."""


def expression(node, operands):
    """The expression of a node."""
    return EXPRESSIONS[node.op](node, *operands)


def names_in(node):
    """The functions of a node's expression; those that it refuses are none of the graph's."""
    def names(e):
        return {e[0], *(name for x in e[1:] if isinstance(x, tuple) for name in names(x))} if isinstance(e, tuple) else set()
    try:
        return names(expression(node, [object() if name else None for name in node.inputs]))
    except (Refused, TypeError):
        return {"refused"}


def evaluated(node, e):
    """The `Value` of an expression of `Value`s."""
    if not isinstance(e, tuple):
        return e
    function, *arguments = e
    options = arguments.pop() if isinstance(arguments[-1], dict) else {}
    arguments = [evaluated(node, x) for x in arguments]
    if function == "elu_of":
        function = "elu"
    if function in ACTIVATIONS:
        return node.call("activation_fwd", *arguments, function, **options)
    if function in UNARY:
        return node.call("unary", *arguments, function)
    first = next(x for x in arguments if isinstance(x, Value))
    return node.call("binary", *(number(node, x, first.dtype) for x in arguments), function)


def number(node, x, dtype):
    """A number as a `Value` of this dtype, uploaded once; a `Value` as it is."""
    if isinstance(x, Value):
        return x
    from ...host.dtypes import numpy_dtype
    return node.once(("number", x, dtype), (), lambda: Value(np.array(x, numpy_dtype(dtype))))


def only(values, dtypes, what="dtype"):
    """Refuse values of other dtypes."""
    for v in values:
        if v is not None and v.dtype not in dtypes:
            raise Refused(f"{what} {v.dtype}")


@rule("Relu", (1, 6, 13, 14), "`activation_fwd`")
@rule("LeakyRelu", (1, 6, 16), "`activation_fwd`")
@rule("Elu Selu Softplus Softsign", (1, 6, 22), "`activation_fwd`")
@rule("Celu", (12, 28), "`activation_fwd`")
@rule("Sigmoid Tanh", (1, 6, 13), "`activation_fwd`")
@rule("Gelu", (20,), "`activation_fwd`")
@rule("Swish", (24,), "`activation_fwd`")
@rule("HardSigmoid", (1, 6, 22), "`binary`")
@rule("HardSwish", (14, 22), "`binary`")
@rule("Mish", (18, 22), "`activation_fwd`, `binary`")
@rule("SwiGLU", (28,), "`activation_fwd`, `binary`")
@rule("Neg Abs Sqrt Reciprocal Exp Log Ceil Floor", (1, 6, 13), "`unary`")
@rule("Erf", (9, 13), "`unary`")
@rule("Sin Cos Tan", (7, 22), "`unary`")
@rule("Add Sub Mul Div", (7, 13, 14), "`binary`", moves=True)
@rule("Mean", (6, 8, 13), "`binary`")
@rule("Sum", (6, 8, 13), "`binary`")
@rule("Mod", (10, 13, 28), "`binary`", moves=True)
def arithmetic(node, *operands):
    """Functions of floats: this library's saturate integers, where ONNX's wrap around."""
    only(operands, FLOATS)
    return evaluated(node, expression(node, operands))


@rule("Pow", (7, 12, 13, 15), "`binary`, `cast`")
def power(node, x, y):
    """The base's dtype holds."""
    only((x,), FLOATS)
    if y.dtype != x.dtype:
        y = Value(y.host().astype(x.host().dtype)) if y.on_host else node.call("cast", y, x.dtype)
    return node.call("binary", x, y, "pow")


@rule("Max Min", (6, 8, 12, 13), "`binary`", moves=True)
@rule("Clip", (6, 11, 12, 13), "`binary`", moves=True)
def extremes(node, *operands):
    """Functions that round nothing."""
    only(operands, (*FLOATS, *INTEGERS))
    return evaluated(node, expression(node, operands))


@rule("PRelu", (7, 9, 16), "`activation_fwd`")
def prelu(node, x, slope):
    """A slope that broadcasts."""
    return node.call("activation_fwd", x, "prelu", slope=slope)


@rule("ThresholdedRelu", (10, 22), "`binary`")
def thresholded_relu(node, x):
    """x where it is more than alpha."""
    only((x,), FLOATS)
    above = node.call("binary", x, number(node, float(node.attribute("alpha", 1.0)), x.dtype), "cmp_gt")
    return node.call("binary", x, number(node, 0.0, x.dtype), "binary_select", mask=above)


@rule("Shrink", (9,), "`binary`")
def shrink(node, x):
    """Towards 0 by a bias; 0 between -lambd and lambd."""
    only((x,), FLOATS)
    bias, lambd, zero = (number(node, float(v), x.dtype) for v in (node.attribute("bias", 0.0), node.attribute("lambd", 0.5), 0.0))
    minus = number(node, -float(node.attribute("lambd", 0.5)), x.dtype)
    above, below = node.call("binary", x, lambd, "cmp_gt"), node.call("binary", x, minus, "cmp_lt")
    y = node.call("binary", node.call("binary", x, bias, "sub"), zero, "binary_select", mask=above)
    return node.call("binary", node.call("binary", x, bias, "add"), y, "binary_select", mask=below)


@rule("Sign", (9, 13), "`binary`")
def sign(node, x):
    """-1, 0 or 1; NaN of NaN."""
    only((x,), FLOATS)
    zero, one, minus = (number(node, v, x.dtype) for v in (0.0, 1.0, -1.0))
    y = node.call("binary", minus, x, "binary_select", mask=node.call("binary", x, zero, "cmp_lt"))
    return node.call("binary", one, y, "binary_select", mask=node.call("binary", x, zero, "cmp_gt"))


# ---- comparisons

COMPARISONS = {"Equal": "cmp_eq", "Greater": "cmp_gt", "GreaterOrEqual": "cmp_ge", "Less": "cmp_lt", "LessOrEqual": "cmp_le"}


@rule("Equal", (7, 11, 13, 19), "`binary`", moves=True)
@rule("Greater Less", (7, 9, 13), "`binary`", moves=True)
@rule("GreaterOrEqual LessOrEqual", (12, 16), "`binary`", moves=True)
def comparison(node, a, b):
    """Booleans; booleans are compared as bytes."""
    if a.dtype == "bool":
        a, b = a.viewed("uint8"), b.viewed("uint8")
    return node.call("binary", a, b, COMPARISONS[node.op])


@rule("And Or Xor", (7,), "`binary`", moves=True)
def logical(node, a, b):
    """Of booleans."""
    if node.op == "Xor":
        return node.call("binary", a.viewed("uint8"), b.viewed("uint8"), "cmp_neq")
    return node.call("binary", a, b, f"logical_{node.op.lower()}")


@rule("Not", (1,), "`unary`", moves=True)
def logical_not(node, x):
    """Of booleans."""
    return node.call("unary", x, "logical_not")


@rule("Where", (9, 16), "`binary`", moves=True)
def where(node, mask, a, b):
    """a where the mask is true, else b."""
    if a.dtype == "bool":
        return node.call("binary", a.viewed("uint8"), b.viewed("uint8"), "binary_select", mask=mask).viewed("bool")
    return node.call("binary", a, b, "binary_select", mask=mask)


@rule("Trilu", (14,), "`binary`", moves=True)
def triangle(node, x, k=None):
    """The upper or the lower triangle of matrices, else 0."""
    k = 0 if k is None else k.ints()[0]
    mask = node.once(("triangle", x.shape[-2:], k), (), lambda: Value(
        np.triu(np.ones(x.shape[-2:], bool), k) if node.attribute("upper", 1) else np.tril(np.ones(x.shape[-2:], bool), k)))
    return node.call("binary", x, number(node, 0, x.dtype), "binary_select", mask=mask)


@rule("IsNaN", (9, 13, 20), "`binary`")
def is_nan(node, x):
    """What differs from itself."""
    only((x,), FLOATS)
    return node.call("binary", x, x, "cmp_neq")


@rule("IsInf", (10, 20), "`binary`, `unary`")
def is_inf(node, x):
    """Infinities of both signs, or of one."""
    only((x,), FLOATS)
    positive, negative = node.attribute("detect_positive", 1), node.attribute("detect_negative", 1)
    if positive and negative:
        return node.call("binary", node.call("unary", x, "abs"), number(node, math.inf, x.dtype), "cmp_eq")
    if not (positive or negative):
        return node.call("binary", x, x, "cmp_gt")
    return node.call("binary", x, number(node, math.inf if positive else -math.inf, x.dtype), "cmp_eq")


# ---- conversions

EIGHT = "float8_e4m3fn", "float8_e5m2"


@rule("Cast", (6, 9, 13, 19, 21, 23, 24, 25, 28), "`cast`, `binary`, `reduce`", moves=True)
def cast(node, x):
    """To the dtype of the attribute."""
    return converted(node, x, type_named(node, "to", None))


@rule("CastLike", (15, 19, 21, 23, 24, 25), "`cast`, `binary`, `reduce`", moves=True)
def cast_like(node, x, y):
    """To the dtype of y."""
    return converted(node, x, y.dtype)


def type_named(node, attribute, default):
    """The dtype's name of an attribute that has a number of ONNX's types; the default where it is missing or 0."""
    kind = node.attribute(attribute, 0)
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind)).name if kind else default


def converted(node, x, dtype):
    """x in another dtype, where this library converts as ONNX does: floats are cut off to integers there, and rounded here."""
    source = x.dtype
    if source == dtype:
        return x
    if dtype in EIGHT and not node.attribute("saturate", 1):
        raise Refused("saturate=0")
    if dtype == "bool" and source in (*FLOATS, *INTEGERS):
        return node.call("binary", x, number(node, 0, source), "cmp_neq")
    if source == "bool" and (dtype in FLOATS or dtype in INTEGERS):
        x = x.viewed("uint8")
        return x if dtype == "uint8" else node.call("cast", x, dtype)
    if source in (*FLOATS, *EIGHT) and dtype in (*FLOATS, *EIGHT) or source in INTEGERS and dtype in FLOATS:
        return node.call("cast", x, dtype)
    if source in INTEGERS and dtype == "int64" or source == "int64" and dtype == "int32":
        return node.call("reduce", x, "add", axes=(), out_dtype=dtype)
    raise Refused(f"{source} to {dtype}")

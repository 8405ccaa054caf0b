"""Pointwise operators of PyTorch as operations of the graph.

An expression is an operand, a number, or a tuple of an operation's name and its arguments, expressions or {attribute: number}.
"""
import math

import torch

from ._draft import Left, Operand, Whole
from ._shapes import packed_like

aten, prims = torch.ops.aten, torch.ops.prims

ARGUMENTS = {"relu_backward": ("loss", "input"), "tanh_backward": ("loss", "input"), "sigmoid_backward": ("loss", "input"),
             "gelu_backward": ("loss", "input"), "gelu_approx_tanh_backward": ("loss", "input"), "swish_backward": ("loss", "input"),
             "leaky_relu_backward": ("loss", "input"), "elu_backward": ("loss", "input"), "softplus_backward": ("loss", "input"),
             "binary_select": ("input0", "input1", "mask"), "max": ("input0", "input1"), "min": ("input0", "input1"),
             "mod": ("input0", "input1"), "pow": ("input0", "input1"),
             **{name: ("a", "b") for name in ("add", "mul", "sub", "div", "logical_and", "logical_or")},
             **{f"cmp_{c}": ("input", "comparison") for c in ("eq", "neq", "gt", "ge", "lt", "le")}}
"""Names of operations' arguments; others have ``input``."""


def _scaled(x, alpha):
    if alpha == 1:
        return x
    return x * alpha if isinstance(x, (int, float)) else ("mul", x, float(alpha))


def _gelu(x, approximate="none"):
    return ("gelu" if approximate == "none" else "gelu_approx_tanh", x)


def _gelu_backward(dy, x, approximate="none"):
    return ("gelu_backward" if approximate == "none" else "gelu_approx_tanh_backward", dy, x)


def _clamp(x, low=None, high=None):
    x = x if low is None else ("max", x, _number(low))
    return x if high is None else ("min", x, _number(high))


def _number(value):
    return float(value) if isinstance(value, (int, float)) else value


def _threshold_backward(dy, x, threshold):
    if threshold != 0:
        raise Left(f"threshold {threshold}")
    return ("relu_backward", dy, x)


def _threshold(x, threshold, value):
    return ("binary_select", x, float(value), ("cmp_gt", x, float(threshold)))


def _pow(x, exponent):
    if exponent == 2:
        return ("mul", x, x)
    if exponent == 3:
        return ("mul", ("mul", x, x), x)
    if exponent == 1:
        return ("identity", x)
    if exponent == 0.5:
        return ("sqrt", x)
    if exponent == -0.5:
        return ("rsqrt", x)
    if exponent == -1:
        return ("reciprocal", x)
    return ("pow", x, _number(exponent))


def _hardsigmoid(x):
    return ("div", _clamp(("add", x, 3.0), 0.0, 6.0), 6.0)


def _hardsigmoid_backward(dy, x):
    inside = ("logical_and", ("cmp_gt", x, -3.0), ("cmp_lt", x, 3.0))
    return ("binary_select", ("mul", dy, 1 / 6), 0.0, inside)


def _hardswish_backward(dy, x):
    middle = ("mul", dy, ("add", ("mul", x, 1 / 3), 0.5))
    return ("binary_select", ("binary_select", middle, dy, ("cmp_lt", x, 3.0)), 0.0, ("cmp_gt", x, -3.0))


def _hardtanh_backward(dy, x, low, high):
    return ("binary_select", dy, 0.0, ("logical_and", ("cmp_gt", x, float(low)), ("cmp_lt", x, float(high))))


def _elu(x, alpha=1.0, scale=1.0, input_scale=1.0):
    if alpha != 1 or scale != 1 or input_scale != 1:
        raise Left(f"elu of alpha {alpha}, scale {scale}, input_scale {input_scale}")
    return ("elu", x)


def _rounded_div(a, b, rounding_mode=None):
    if rounding_mode is not None:
        raise Left(f"rounding_mode {rounding_mode!r}")
    return ("div", a, b)


def _mse(x, y):
    d = ("sub", x, y)
    return ("mul", d, d)


def _same(name):
    return lambda *of: (name, *of)


TENSORS = {
    aten.add: lambda a, b, alpha=1: ("add", a, _scaled(b, alpha)), aten.sub: lambda a, b, alpha=1: ("sub", a, _scaled(b, alpha)),
    aten.rsub: lambda a, b, alpha=1: ("sub", b, _scaled(a, alpha)), aten.mul: _same("mul"), aten.div: _rounded_div, aten.neg: _same("neg"),
    aten.abs: _same("abs"), aten.exp: _same("exp"), aten.log: _same("log"), aten.sqrt: _same("sqrt"), aten.rsqrt: _same("rsqrt"),
    aten.reciprocal: _same("reciprocal"), aten.sin: _same("sin"), aten.cos: _same("cos"), aten.tan: _same("tan"), aten.erf: _same("erf"),
    aten.ceil: _same("ceil"), aten.floor: _same("floor"), aten.relu: _same("relu"), aten.sigmoid: _same("sigmoid"),
    aten.tanh: _same("tanh"), aten.silu: _same("swish"), aten.gelu: _gelu, aten.gelu_backward: _gelu_backward,
    aten.silu_backward: _same("swish_backward"), aten.threshold_backward: _threshold_backward, aten.threshold: _threshold,
    aten.leaky_relu: lambda x, slope=0.01: ("leaky_relu", x, {"negative_slope": float(slope)}),
    aten.leaky_relu_backward: lambda dy, x, slope, of_result: ("leaky_relu_backward", dy, x, {"negative_slope": float(slope)}),
    aten.elu: _elu, aten.pow: _pow, aten.square: lambda x: ("mul", x, x), aten.maximum: _same("max"), aten.minimum: _same("min"),
    aten.clamp: _clamp, aten.clamp_min: lambda x, low: ("max", x, _number(low)), aten.clamp_max: lambda x, high: ("min", x, _number(high)),
    aten.hardtanh: lambda x, low=-1.0, high=1.0: _clamp(x, low, high), aten.hardsigmoid: _hardsigmoid,
    aten.hardswish: lambda x: ("mul", x, _hardsigmoid(x)), aten.hardswish_backward: _hardswish_backward,
    aten.hardsigmoid_backward: _hardsigmoid_backward, aten.hardtanh_backward: _hardtanh_backward, aten.relu6: lambda x: _clamp(x, 0.0, 6.0),
    aten.sigmoid_backward: lambda dy, y: ("mul", dy, ("mul", y, ("sub", 1.0, y))),
    aten.tanh_backward: lambda dy, y: ("mul", dy, ("sub", 1.0, ("mul", y, y))),
    aten.addcmul: lambda x, a, b, value=1: ("add", x, _scaled(("mul", a, b), value)),
    aten.addcdiv: lambda x, a, b, value=1: ("add", x, _scaled(("div", a, b), value)),
    aten.lerp: lambda a, b, weight: ("add", a, ("mul", ("sub", b, a), weight)),
    aten.where: lambda mask, a, b: ("binary_select", a, b, mask), aten.logical_not: _same("logical_not"),
    aten.logical_and: _same("logical_and"), aten.logical_or: _same("logical_or"), aten.bitwise_and: _same("logical_and"),
    aten.bitwise_or: _same("logical_or"), aten.bitwise_not: _same("logical_not"),
    aten.eq: _same("cmp_eq"), aten.ne: _same("cmp_neq"), aten.gt: _same("cmp_gt"), aten.ge: _same("cmp_ge"), aten.lt: _same("cmp_lt"),
    aten.le: _same("cmp_le"), aten.masked_fill: lambda x, mask, value: ("binary_select", value, x, mask)}
"""Operators, whatever their overload, as expressions of their arguments."""


def _copied(draft, node):
    """A conversion, or the same values with other strides."""
    more = set(node.kwargs) - {"dtype", "memory_format", "layout", "device", "pin_memory", "non_blocking"}
    value, source = node.meta["val"], node.args[0].meta["val"]
    if more or value.device != source.device or node.kwargs.get("pin_memory"):
        raise Left("a copy to another device or layout")
    return ("identity", node.args[0])


def _filled(draft, node):
    """A number, which what reads it has among its instructions."""
    value = node.args[0] if node.target is aten.scalar_tensor.default else node.args[1] if len(node.args) > 1 else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or node.meta["val"].dtype not in FLOATS:
        raise Left("a tensor that is filled")
    if math.isnan(value):
        raise Left("a tensor of NaN")
    draft.numbers[node] = float(value)
    raise Left("a tensor that is filled")


FLOATS = {torch.float32, torch.float16, torch.bfloat16, torch.float64}


def rule_of(expression):
    """The rule of an operator whose arguments make an expression."""
    def rule(draft, node):
        value = draft.meta(node)
        of = expression(*node.args, **node.kwargs)
        return _evaluated(draft, node, of, value)
    return rule


def _evaluated(draft, node, of, value):
    leaves = []
    _leaves(draft, of, leaves)
    if not leaves:
        raise Left("no argument is a tensor")
    shape, strides = tuple(value.shape), tuple(value.stride())
    operands, dims, steps = draft.arranged(leaves, shape, strides)
    known = dict(zip(leaves, operands))
    for n, operand in known.items():
        if operand is None:
            raise Left(f"an argument of shape {draft.view(n).shape} as dims {dims}")
    whole, view = draft.result(node, dims, of=steps)
    inner = torch.float64 if any(o.whole.dtype is torch.float64 for o in known.values()) else torch.float32

    def made(e, target=None):
        if isinstance(e, torch.fx.Node):
            return draft.numbers[e] if e in draft.numbers else known[e]
        if not isinstance(e, tuple):
            return e
        name, *arguments = e
        attributes = arguments.pop() if isinstance(arguments[-1], dict) else {}
        inputs = dict(zip(ARGUMENTS.get(name, ("input",)), map(made, arguments)))
        if target is None:
            given = [o for o in inputs.values() if isinstance(o, Operand)]
            own = tuple(max(o.dims[k] for o in given) for k in range(len(dims)))
            target = Whole(own, packed_like(own, whole.strides), torch.bool if name in TRUTH else inner)
        draft.add(name, inputs, target, **attributes)
        return Operand(target, target.dims, target.strides)
    made(of if isinstance(of, tuple) else ("identity", of), whole)
    return view


TRUTH = {"cmp_eq", "cmp_neq", "cmp_gt", "cmp_ge", "cmp_lt", "cmp_le", "logical_and", "logical_or", "logical_not"}


def _leaves(draft, e, found):
    if isinstance(e, torch.fx.Node):
        if e not in found and e not in draft.numbers:
            found.append(e)
    elif isinstance(e, tuple):
        for argument in e[1:]:
            _leaves(draft, argument, found)
    elif not isinstance(e, (int, float, dict)) or isinstance(e, bool):
        raise Left(f"an argument {e!r}")


def rules():
    """{operator: rule}"""
    found = {}
    for packet, expression in TENSORS.items():
        rule = rule_of(expression)
        for name in packet.overloads():
            if "out" not in name.split("_"):
                found[getattr(packet, name)] = rule
    for target in (aten._to_copy.default, aten.clone.default, prims.convert_element_type.default):
        found[target] = lambda draft, node: _evaluated(draft, node, _copied(draft, node), draft.meta(node))
    for target in (aten.full.default, aten.scalar_tensor.default):
        found[target] = _filled
    return found

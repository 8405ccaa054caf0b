"""Functions of single elements in PyTorch, each of them one kernel."""
import torch
import torch.nn.functional as F

from ._torch_moves import NAME, make_peer  # noqa: F401

ATEN = torch.ops.aten
FORWARD = {
    "identity": lambda x, p: x.clone(), "relu": lambda x, p: torch.clamp(x, p["lower_clip"], p["upper_clip"]),
    "leaky_relu": lambda x, p: F.leaky_relu(x, p["negative_slope"]), "elu": lambda x, p: F.elu(x, p["alpha"]),
    "celu": lambda x, p: F.celu(x, p["alpha"]), "selu": lambda x, p: F.selu(x), "sigmoid": lambda x, p: torch.sigmoid(x),
    "hard_sigmoid": lambda x, p: F.hardsigmoid(x), "tanh": lambda x, p: torch.tanh(x), "softplus": lambda x, p: F.softplus(x, p["beta"]),
    "gelu": lambda x, p: F.gelu(x), "gelu_tanh": lambda x, p: F.gelu(x, approximate="tanh"), "swish": lambda x, p: F.silu(x),
    "hard_swish": lambda x, p: F.hardswish(x), "mish": lambda x, p: F.mish(x)}
BACKWARD = {
    "relu": lambda dy, x, p: ATEN.hardtanh_backward(dy, x, p["lower_clip"], p["upper_clip"]),
    "leaky_relu": lambda dy, x, p: ATEN.leaky_relu_backward(dy, x, p["negative_slope"], False),
    "gelu": lambda dy, x, p: ATEN.gelu_backward(dy, x), "gelu_tanh": lambda dy, x, p: ATEN.gelu_backward(dy, x, approximate="tanh"),
    "swish": lambda dy, x, p: ATEN.silu_backward(dy, x), "hard_swish": lambda dy, x, p: ATEN.hardswish_backward(dy, x),
    "hard_sigmoid": lambda dy, x, p: ATEN.hardsigmoid_backward(dy, x), "mish": lambda dy, x, p: ATEN.mish_backward(dy, x)}
UNARY = {"neg": torch.neg, "abs": torch.abs, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "reciprocal": torch.reciprocal, "exp": torch.exp,
         "log": torch.log, "erf": torch.erf, "sin": torch.sin, "cos": torch.cos, "tan": torch.tan, "ceil": torch.ceil,
         "floor": torch.floor, "logical_not": torch.logical_not}
BINARY = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "max": torch.maximum, "min": torch.minimum,
          "pow": torch.pow, "mod": torch.fmod, "atan2": torch.atan2, "cmp_eq": torch.eq, "cmp_neq": torch.ne, "cmp_gt": torch.gt,
          "cmp_ge": torch.ge, "cmp_lt": torch.lt, "cmp_le": torch.le, "logical_and": torch.logical_and, "logical_or": torch.logical_or}


def make_act_peer(output, case, operands, clock):
    """The peer of a case; None for what is no single kernel in PyTorch, prelu's gradients aside, which are two."""
    if bind(case.problem) is None:
        return None
    return make_peer(lambda p, t: bind(p)(t), output if case.problem.dslope is None else (output, "dslope"), case, operands, clock)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return bind(case.problem)(arrays)


def slope_gradient(t):
    """What autograd runs: both gradients element by element, then the sum of the slope's."""
    shape = t["slope"].shape

    def call():
        dx, parts = ATEN._prelu_kernel_backward(t["dy"], t["x"], t["slope"])
        return dx, parts.sum_to_size(shape)
    return call


def bind(p):
    """From tensors by name to the call of a problem; None where there is none."""
    if p.op == "unary":
        return UNARY.get(p.mode) and (lambda t: lambda: UNARY[p.mode](t["x"], out=t["y"]))
    if p.op == "binary":
        if p.mode == "binary_select":
            return lambda t: lambda: torch.where(t["mask"], t["a"], t["b"], out=t["y"])
        return BINARY.get(p.mode) and (lambda t: lambda: BINARY[p.mode](t["a"], t["b"], out=t["y"]))
    if p.op == "scale_tensor":
        return lambda t: lambda: t["y"].mul_(1.0)
    if p.op == "add_tensor":
        return (lambda t: lambda: t["y"].add_(t["a"])) if p.keeps else (lambda t: lambda: t["y"].copy_(t["a"]))
    if p.op.startswith("glu"):
        if p.gate != "sigmoid":
            return None
        if p.op == "glu_fwd":
            return lambda t: lambda: ATEN.glu.out(t["x"], p.axis, out=t["y"])
        return lambda t: lambda: ATEN.glu_backward(t["dy"], t["x"], p.axis)
    if p.dslope is not None:
        return slope_gradient
    if p.slope is not None:
        return (lambda t: lambda: torch.prelu(t["x"], t["slope"].reshape(-1))) if p.op == "activation_fwd" and p.x.ndim > 1 else None
    parameters = dict(p.activation.parameters)
    if parameters.get("negative_slope") and p.mode == "relu" or parameters.get("beta", 1.0) != 1.0 and p.mode == "swish":
        return None
    if p.op == "activation_fwd":
        return FORWARD.get(p.mode) and (lambda t: lambda: FORWARD[p.mode](t["x"], parameters))
    return BACKWARD.get(p.mode) and (lambda t: lambda: BACKWARD[p.mode](t["dy"], t["x"], parameters))

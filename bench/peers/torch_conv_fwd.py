"""conv1d, conv2d and conv3d of PyTorch, then its addition and its activation, each a kernel of its own, as a module would call them."""
import torch

from ._torch_conv import ACTIVATIONS, is_expressible, make_peer, plain, view, window
from ._torch_program import follow, is_known

NAME = "torch"


def make(case, operands, clock):
    """The case in PyTorch; None for what it lacks (8-bit types, other output dtypes)."""
    p = case.problem
    return make_peer(NAME, _bind, p, operands, clock) if plain(p) and is_expressible(p) and is_known(p.program) else None


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return _bind(case.problem, arrays)


def _bind(p, t):
    """The call on one set of tensors, everything looked up beforehand."""
    x, w, residual, bias = (view(p, t[name]) if name != "bias" else t["bias"] for name in ("x", "w", "residual", "bias"))
    stride, padding, dilation, cut = window(p)
    conv, activation, groups = {3: torch.conv1d, 4: torch.conv2d, 5: torch.conv3d}[x.ndim], ACTIVATIONS[p.activation.mode], p.groups
    fused, program = p.activation.mode != "identity", follow(p.program, {
        name: view(p, array) for name, array in t.items() if name[1:].isdecimal()})

    def call():
        y = conv(x, w, bias, stride, padding, dilation, groups)
        if cut is not None:
            y = y[cut]
        if residual is not None:
            y = y.add_(residual)
        return program(activation(y) if fused else y)
    return call

"""PyTorch's gradient of a convolution with respect to its filter."""
import torch

from ._torch_conv import is_expressible, make_peer, padded, plain, view, window

NAME = "torch"


def make(case, operands, clock):
    """The case in PyTorch; None for what it lacks (other output dtypes)."""
    p = case.problem
    return make_peer(NAME, _bind, p, operands, clock) if plain(p) and is_expressible(p) else None


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return _bind(case.problem, arrays)


def _bind(p, t):
    """The call on one set of tensors; of w only shape and layout are looked at."""
    dy, x, w = (view(p, t[name]) for name in "yxw")
    stride, padding, dilation, _ = window(p)
    backward, zeros, groups = torch.ops.aten.convolution_backward, [0] * len(stride), p.groups
    given = padded(p, dy)
    return lambda: backward(given(), x, w, None, stride, padding, dilation, False, zeros, groups, [False, True, False])[1]

"""PyTorch's gradient of a convolution with respect to its image; for a transposed convolution its own function for that."""
import torch
import torch.nn.functional as F

from ._torch_conv import ACTIVATIONS, is_expressible, make_peer, padded, plain, view, window

NAME = "torch"


def make(case, operands, clock):
    """The case in PyTorch; None for what it lacks (other output dtypes)."""
    p = case.problem
    if not plain(p) or not is_expressible(p) or case.transposed and window(p)[3] is not None:
        return None
    return make_peer(NAME, _transposed if case.transposed else _bind, p, operands, clock)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return (_transposed if case.transposed else _bind)(case.problem, arrays)


def _bind(p, t):
    """The call on one set of tensors; of x only shape and layout are looked at."""
    dy, x, w = (view(p, t[name]) for name in "yxw")
    stride, padding, dilation, _ = window(p)
    backward, zeros, groups = torch.ops.aten.convolution_backward, [0] * len(stride), p.groups
    given = padded(p, dy)
    return lambda: backward(given(), x, w, None, stride, padding, dilation, False, zeros, groups, [True, False, False])[0]


def _transposed(p, t):
    x, w, y, bias, residual = (view(p, t[name]) if name != "bias" else t["bias"] for name in ("y", "w", "x", "bias", "residual"))
    stride, padding, dilation, _ = window(p)
    conv = {3: F.conv_transpose1d, 4: F.conv_transpose2d, 5: F.conv_transpose3d}[x.ndim]
    rest = [n - ((size - 1) * s + d * (r - 1) + 1 - 2 * pad)
            for n, size, s, d, r, pad in zip(y.shape[2:], x.shape[2:], stride, dilation, w.shape[2:], padding)]
    activation, groups, fused = ACTIVATIONS[p.activation.mode], p.groups, p.activation.mode != "identity"

    def call():
        y = conv(x, w, bias, stride, padding, rest, groups, dilation)
        if residual is not None:
            y = y.add_(residual)
        return activation(y) if fused else y
    return call

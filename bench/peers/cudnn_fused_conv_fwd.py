"""cuDNN's own fusion of convolution, bias and ReLU, with or without a residual, which PyTorch has as operators of their own."""
import torch

from ._torch_conv import is_expressible, make_peer, plain, view, window

NAME = "cudnn fused"


def make(case, operands, clock):
    """The case where it is bias and ReLU, and one padding serves both sides; None otherwise."""
    p = case.problem
    if not plain(p) or p.activation.mode != "relu" or p.bias is None or not is_expressible(p) or window(p)[3] is not None:
        return None
    return make_peer(NAME, _bind, p, operands, clock)


def _bind(p, t):
    x, w, residual, bias = view(p, t["x"]), view(p, t["w"]), view(p, t["residual"]), t["bias"]
    stride, padding, dilation, _ = window(p)
    groups = p.groups
    if residual is None:
        return lambda: torch.cudnn_convolution_relu(x, w, bias, stride, padding, dilation, groups)
    return lambda: torch.cudnn_convolution_add_relu(x, w, residual, 1.0, bias, stride, padding, dilation, groups)

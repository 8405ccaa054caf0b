"""PyTorch's mse_loss."""
from dnnkern.host.operands import TOLERANCE

from ._torch_moves import NAME, make_peer  # noqa: F401


def make(case, operands, clock):
    """The case in PyTorch, whose loss is of the operands' dtype: of each element that is fewer bytes than a loss in float32."""
    p, peer = case.problem, make_peer(plain_call_on, "loss", case, operands, clock)
    if peer is not None:
        peer.tolerance = TOLERANCE[p.dtype]
        peer.is_exact = not p.each or p.loss_dtype == p.dtype
    return peer


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return plain_call_on(case.problem, arrays)


def plain_call_on(p, t):
    """The call of a problem."""
    import torch.nn.functional as F
    x, target = t["x"], t["target"]
    return lambda: F.mse_loss(x, target, reduction=p.reduction)

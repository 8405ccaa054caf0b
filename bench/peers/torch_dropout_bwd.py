"""PyTorch's gradient of dropout, whose mask has a byte an element."""
from ._torch_moves import NAME, make_peer  # noqa: F401


def make(case, operands, clock):
    """The case in PyTorch."""
    return make_peer(_bind, "dx", case, operands, clock)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return _bind(case.problem, arrays)


def _bind(p, t):
    import torch
    dy, bits = t["dy"], t["mask"]
    places = torch.arange(8, device=bits.device, dtype=torch.uint8)
    mask = (bits[:, None] >> places & 1).bool().view(-1)[:dy.numel()].view(dy.shape)
    factor = 2.0  # as `dnnkern.host.operands` has it
    return lambda: torch.ops.aten.native_dropout_backward(dy, mask, factor)

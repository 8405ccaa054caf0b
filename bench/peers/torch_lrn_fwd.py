"""PyTorch's local response normalisation, of several kernels; alpha, beta and k are 1, as the operands' scalars are."""
from ._torch_moves import NAME, make_peer  # noqa: F401


def make(case, operands, clock):
    """The case in PyTorch."""
    return make_peer(bind, "y", case, operands, clock)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return bind(case.problem, arrays)


def bind(p, t):
    """The call of a problem."""
    import torch
    last = p.layout == "NHWC"
    x = t["x"].movedim(-1, 1) if last else t["x"]

    def call():
        y = torch.nn.functional.local_response_norm(x, p.size, 1.0, 1.0, 1.0)
        return y.movedim(1, -1) if last else y
    return call

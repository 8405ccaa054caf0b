"""The backward pass of PyTorch's nll_loss: the operator that autograd runs."""
from ._torch_loss import nll_backward
from ._torch_moves import NAME, make_peer  # noqa: F401


def make(case, operands, clock):
    """The case in PyTorch."""
    return make_peer(into, "dlogp", case, operands, clock)


def into(p, t):
    """The operator with its result, where ours is: memory that a call gets anew is still in the L2."""
    return nll_backward(p, t, t["logp"], t["dlogp"] if t["dlogp"].is_contiguous() else None)[0]


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return plain_call_on(case.problem, arrays)


def plain_call_on(p, t):
    """The call of a problem."""
    return nll_backward(p, t, t["logp"])[0]

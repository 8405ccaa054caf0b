"""The backward pass of PyTorch's cross_entropy: the two operators that autograd runs, on the logarithms of all probabilities, which its
forward pass has written."""
from ._torch_loss import nll_backward
from ._torch_moves import NAME, make_peer  # noqa: F401


def make(case, operands, clock):
    """The case in PyTorch; None where several more operators are run, for smoothing and for probabilities."""
    p = case.problem
    return None if p.is_soft or p.label_smoothing else make_peer(plain_call_on, "dlogits", case, operands, clock)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return plain_call_on(case.problem, arrays)


def plain_call_on(p, t):
    """The call of a problem, into its result."""
    import torch
    logits, axis = t["logits"], p.axis
    backward, logp = nll_backward(p, t, (logits - t["lse"].unsqueeze(axis)).to(logits.dtype))
    softmax, dlogits = torch.ops.aten._log_softmax_backward_data, t["dlogits"].view(logp.shape)
    return lambda: softmax.out(backward(), logp, axis, logp.dtype, out=dlogits)

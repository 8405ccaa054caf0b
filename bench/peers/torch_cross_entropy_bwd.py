"""The backward pass of PyTorch's cross_entropy: the two operators that autograd runs, on the logarithms of all probabilities, which its
forward pass has written."""
from ._torch_moves import NAME, make_peer  # noqa: F401

_REDUCTION = {"none": 0, "mean": 1, "sum": 2}


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
    aten, logits, dlogits, weight, axis = torch.ops.aten, t["logits"], t["dlogits"], t.get("weight"), p.axis
    logp, targets, dloss = (logits - t["lse"].unsqueeze(axis)).to(logits.dtype), t["targets"].long(), t["dloss"].to(logits.dtype)
    forward, backward = aten.nll_loss_forward, aten.nll_loss_backward
    if logp.ndim > 2:
        forward, backward = aten.nll_loss2d_forward, aten.nll_loss2d_backward
        logp, targets = logp.reshape(*logp.shape[:2], 1, -1), targets.reshape(len(targets), 1, -1)
        dlogits, dloss = dlogits.view(logp.shape), dloss if p.reduction != "none" else dloss.reshape(targets.shape)
    how = targets, weight, _REDUCTION[p.reduction], p.ignore_index
    _, total = forward(logp, *how)

    def run():
        return aten._log_softmax_backward_data.out(backward(dloss, logp, *how, total), logp, axis, logp.dtype, out=dlogits)
    return run

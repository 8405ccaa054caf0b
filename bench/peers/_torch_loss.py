"""What the PyTorch peers of losses over classes share."""
import torch

REDUCTION = {"none": 0, "mean": 1, "sum": 2}


def nll_backward(p, t, logp, into=None):
    """(the gradient of nll_loss by `logp` as autograd computes it, a callable; logp as its operators want it: of 2 or 4 dimensions).

    `into`: a packed tensor that it is written to."""
    aten, targets, dloss = torch.ops.aten, t["targets"].long(), t["dloss"].to(logp.dtype)
    forward, backward = aten.nll_loss_forward, aten.nll_loss_backward
    if logp.ndim > 2:
        forward, backward = aten.nll_loss2d_forward, aten.nll_loss2d_backward
        logp, targets = logp.reshape(*logp.shape[:2], 1, -1), targets.reshape(len(targets), 1, -1)
        dloss = dloss if p.reduction != "none" else dloss.reshape(targets.shape)
    how = targets, t.get("weight"), REDUCTION[p.reduction], p.ignore_index
    _, total = forward(logp, *how)
    if into is not None:
        into = into.view(logp.shape)
        return lambda: backward.grad_input(dloss, logp, *how, total, grad_input=into), logp
    return lambda: backward(dloss, logp, *how, total), logp

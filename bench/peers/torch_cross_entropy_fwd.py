"""PyTorch's cross_entropy, which writes the logarithms of all probabilities."""
from dnnkern.host.operands import TOLERANCE

from ._torch_moves import NAME, make_peer  # noqa: F401


def make(case, operands, clock):
    """The case in PyTorch. It returns no sums of exponentials: for the check they are computed besides, before anything is timed; and its
    loss is of the logits' dtype. The weighted mean of smoothed labels is not captured: PyTorch waits for the device in it."""
    p = case.problem
    if p.weight is not None and p.label_smoothing and p.reduction == "mean" and not p.is_soft:
        return None
    peer = make_peer(plain_call_on, "loss", case, operands, clock)
    if peer is not None:
        from bench.torch_arrays import tensors
        arrays, write = tensors(operands, 0), peer.write

        def write_both():
            with peer.contender.on_stream():
                arrays["lse"].copy_(arrays["logits"].to(arrays["lse"].dtype).logsumexp(case.problem.axis))
            write()
        peer.write, peer.tolerance = write_both, TOLERANCE[case.problem.dtype]
    return peer


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return plain_call_on(case.problem, arrays)


def plain_call_on(p, t):
    """The call of a problem."""
    import torch.nn.functional as F
    logits, targets, weight = t["logits"], t["targets"], t.get("weight")
    targets = targets if p.is_soft else targets.long()
    return lambda: F.cross_entropy(logits, targets, weight, ignore_index=p.ignore_index, reduction=p.reduction,
                                   label_smoothing=p.label_smoothing)

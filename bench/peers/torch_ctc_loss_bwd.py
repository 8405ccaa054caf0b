"""The backward passes of PyTorch's ctc_loss and log_softmax, which take what its own forward pass saved."""
import torch

import dnnkern
from bench.peers import Peer
from bench.torch_arrays import TorchContender, tensors

NAME = "torch"


def make(case, operands, clock):
    """The case in PyTorch; None for 16-bit types, which it lacks.

    What ours is given as saved is made up, so that the results differ. PyTorch's is compared with ours after a forward pass of ours, and
    the result that the check expects is written only where they agree.
    """
    p = case.problem
    if p.logits.itemsize == 2:
        return None
    arrays = [tensors(operands, k) for k in range(len(operands))]
    calls = [plain_call_on(p, a) for a in arrays]
    contender = TorchContender(NAME, calls, clock, captured=False)

    def write():
        t, how = arrays[0], {"blank": p.blank, "zero_infinity": p.zero_infinity, "normalized": p.normalized, "algo": "naive"}
        with contender.on_stream():
            sequences = t["logits"], t["targets"], t["input_lengths"], t["target_lengths"]
            _, saved = dnnkern.ctc_loss_fwd(*sequences, **how)
            ours, theirs = dnnkern.ctc_loss_bwd(t["dloss"], *sequences, saved, **how), calls[0]()
            if (ours - theirs).abs().max() <= 1e-2 * ours.abs().max():
                case.call(t, algo="naive")
        clock.synchronize()
    return Peer(contender, write)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return plain_call_on(case.problem, arrays)


def plain_call_on(p, t):
    """The call of a problem, after a forward pass of PyTorch's own."""
    aten, targets = torch.ops.aten, t["targets"].long()
    logp = t["logits"] if p.normalized else t["logits"].log_softmax(2)
    lengths = t["input_lengths"].tolist(), t["target_lengths"].tolist()
    loss, alpha = aten._ctc_loss(logp, targets, *lengths, p.blank, p.zero_infinity)

    def run():
        gradient = aten._ctc_loss_backward(t["dloss"], logp, targets, *lengths, loss, alpha, p.blank, p.zero_infinity)
        return gradient if p.normalized else aten._log_softmax_backward_data(gradient, logp, 2, logp.dtype)
    return run

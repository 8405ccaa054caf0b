"""cuDNN's CTC loss through PyTorch, of log_softmax of the logits; it gives the gradients at once: what both passes of ours do."""
import torch

from .torch_ctc_loss_fwd import loss_peer

NAME = "cudnn"


def make(case, operands, clock):
    """The case in cuDNN; None where it has no such loss: only float32, blank 0, 32-bit targets, at most 255 labels, and it
    normalizes; with 400 labels it was seen to access what it may not."""
    p = case.problem
    if p.logits.dtype != "float32" or p.targets.dtype != "int32" or p.blank or p.labels > 255 or p.normalized:
        return None
    return loss_peer(bind, case, operands, clock, name=NAME)


def bind(p, t):
    """The call of a problem."""
    inputs, lengths = t["input_lengths"], t["target_lengths"]
    # as cuDNN wants them: one after another, without what pads them
    targets = torch.cat([row[:n] for row, n in zip(t["targets"], lengths.tolist())]).int()
    run = torch.ops.aten._cudnn_ctc_loss.Tensor
    return lambda: run(t["logits"].log_softmax(2), targets, inputs.int(), lengths.int(), p.blank, False, p.zero_infinity)[0]

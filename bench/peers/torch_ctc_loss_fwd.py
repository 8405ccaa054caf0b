"""PyTorch's log_softmax and ctc_loss, with its own kernels; its saved array has no column of sums, so that only the loss is compared."""
from ._torch_moves import NAME, make_peer  # noqa: F401


def make(case, operands, clock):
    """The case in PyTorch; None for 16-bit types, which it lacks. What it does not save is put beside its loss for the check."""
    if case.problem.logits.itemsize == 2:
        return None
    return loss_peer(plain_call_on, case, operands, clock, captured=False)


def loss_peer(bind, case, operands, clock, **how):
    """The peer that computes the loss alone as `bind` says; what ours saves is put beside it."""
    peer = make_peer(bind, "loss", case, operands, clock, **how)
    if peer is not None:
        from dnnkern import ctc_loss_fwd

        from bench.torch_arrays import tensors
        t, write = tensors(operands, 0), peer.write

        def write_both():
            with peer.contender.on_stream():
                sequences = t["logits"], t["targets"], t["input_lengths"], t["target_lengths"]
                _, saved = ctc_loss_fwd(*sequences, blank=case.problem.blank, normalized=case.problem.normalized, algo="naive")
                t["saved"].copy_(saved)
            write()
        peer.write = write_both
    return peer


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return plain_call_on(case.problem, arrays)


def plain_call_on(p, t):
    """The call of a problem; lengths that are on the host already spare it a copy."""
    import torch
    logits, targets = t["logits"], t["targets"].long()
    inputs, lengths = t["input_lengths"].tolist(), t["target_lengths"].tolist()
    run = torch.ops.aten._ctc_loss
    return lambda: run(logits if p.normalized else logits.log_softmax(2), targets, inputs, lengths, p.blank, p.zero_infinity)[0]

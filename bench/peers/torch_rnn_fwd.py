"""PyTorch's RNN, LSTM and GRU, which are cuDNN's; its reserve is its own, so that ours is put beside its results for the check."""
import torch

import dnnkern
from bench.torch_arrays import tensors

from ._torch_moves import NAME, make_peer  # noqa: F401

MODULES = {"relu": torch.nn.RNN, "tanh": torch.nn.RNN, "lstm": torch.nn.LSTM, "gru": torch.nn.GRU}


def make(case, operands, clock):
    """The case in PyTorch; None where it has no such network, or lengths, which it wants on the host and above zero."""
    p = case.problem
    spec = p.spec
    if p.lengths is not None or spec.input_mode == "skip" or spec.clip or spec.dropout or spec.bias not in ("double", "none"):
        return None
    peer = make_peer(plain_call_on, ("y", "hn", "cn") if spec.cell == "lstm" else ("y", "hn"), case, operands, clock)
    if peer is not None and p.training:
        t, write = tensors(operands, 0), peer.write

        def write_all():
            with peer.contender.on_stream():
                *_, reserve = dnnkern.rnn_fwd(spec, t["x"], t["h0"], t["c0"], t["weights"], layout=p.layout, training=True, algo="step")
                t["reserve"].copy_(reserve)
            write()
        peer.write = write_all
    return peer


def module_of(p, t):
    """The network with the weights of these operands."""
    spec = p.spec
    more = {"nonlinearity": spec.cell} if MODULES[spec.cell] is torch.nn.RNN else {}
    if spec.proj_size:
        more["proj_size"] = spec.proj_size
    found = MODULES[spec.cell](spec.input_size, spec.hidden_size, spec.num_layers, bias=spec.bias == "double",
                               bidirectional=spec.bidirectional, batch_first=p.layout == "NTC", device=t["x"].device, dtype=t["x"].dtype,
                               **more)
    parts = spec.views(t["weights"])
    with torch.no_grad():
        for name, parameter in found.named_parameters():
            parameter.copy_(parts[name.replace("weight_", "w_").replace("bias_", "b_")])
    return found


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return plain_call_on(case.problem, arrays)


def plain_call_on(p, t):
    """The call of a problem: with gradients where it keeps what they need."""
    module, states = module_of(p, t), t["h0"]
    if p.spec.cell == "lstm":
        states = t["h0"], t["c0"]

    def run():
        with torch.set_grad_enabled(p.training):
            y, last = module(t["x"], states)
        return (y.detach(), *(s.detach() for s in last)) if p.spec.cell == "lstm" else (y.detach(), last.detach())
    return run

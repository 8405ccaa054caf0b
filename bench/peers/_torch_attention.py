"""What the peers of attention share: PyTorch's scaled_dot_product_attention with one of its backends alone."""
import torch
import torch.nn.functional as F
from torch.nn.attention import sdpa_kernel

from bench.peers import Peer
from bench.torch_arrays import TorchContender, on_clock, tensors


def masked(p):
    """Whether PyTorch's attention has the options of a problem: one length; causal, a bias or a mask; no cap, no sink, no dropout, whose
    bits are its own."""
    causal = (p.left, p.right) == (-1, 0) and (p.align == "top_left" or p.rows == p.keys)
    plain = (p.left, p.right) == (-1, -1)
    added = [t for t in (p.bias, p.mask) if t is not None]
    lengths = p.packed or p.seq_len_q is not None or p.seq_len_kv is not None
    return (causal or plain) and not (lengths or p.alibi or p.softcap or p.dropout or p.sink is not None or len(added) + causal > 1)


def operands(p, t):
    """q, k, v as (batch, heads, rows, elements)."""
    return [x if p.layout == "BHSD" else x.transpose(1, 2) for x in (t["q"], t["k"], t["v"])]


def bias_of(t):
    """The mask, or the bias in the operands' dtype, as PyTorch takes it, or None."""
    if t.get("mask") is not None:
        return t["mask"]
    bias = t.get("bias")
    return None if bias is None else bias.to(t["q"].dtype)


def attend(p, q, k, v, bias):
    """The call."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=p.right == 0, scale=p.scale, enable_gqa=p.group > 1)


def forward_call(backend, p, t):
    """A callable that computes o."""
    q, k, v = operands(p, t)

    def call():
        with sdpa_kernel(backend):
            return attend(p, q, k, v, bias_of(t))
    return call


def backward_call(backend, p, t):
    """A callable that computes the gradients, the bias's where ours has it, from what a forward pass has left; its own, as it keeps more
    than ours. Gradients run on their forward pass's stream, which has to be the one that is captured."""
    q, k, v = (x.detach().requires_grad_() for x in operands(p, t))
    bias, wanted = bias_of(t), p.dbias is not None
    if wanted:
        bias = bias.detach().requires_grad_()
    do = t["do"] if p.layout == "BHSD" else t["do"].transpose(1, 2)
    with torch.enable_grad(), sdpa_kernel(backend):
        o = attend(p, q, k, v, bias)
    return lambda: torch.autograd.grad(o, (q, k, v, bias) if wanted else (q, k, v), do, retain_graph=True)


def make_peer(name, backend, case, given, clock):
    """The peer; None where the backend cannot do it. Gradients are of its own o, ours of the random one: they are not compared."""
    p = case.problem
    if not masked(p):
        return None
    arrays, bind = [tensors(given, k) for k in range(len(given))], forward_call if p.is_forward else backward_call
    try:
        with on_clock(clock):
            calls = [bind(backend, p, t) for t in arrays]
            calls[0]()
        clock.synchronize()
    except RuntimeError:  # no kernel of this backend
        return None
    contender = TorchContender(name, calls, clock)

    def write():
        with contender.on_stream():
            if p.is_forward:
                arrays[0]["o"].copy_(calls[0]() if p.layout == "BHSD" else calls[0]().transpose(1, 2))
            else:
                case.call(arrays[0])
        clock.synchronize()
    return Peer(contender, write, results=("o",) if p.is_forward else None)

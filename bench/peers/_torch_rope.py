"""PyTorch has no rotary embedding: what its users write, on a GPU compiled into one kernel."""
import torch

from dnnkern.device import HOST_MEMORY

from ._torch_moves import NAME, make_peer  # noqa: F401


def make(case, operands, clock):
    """The case in PyTorch; None in place, which what is compiled here is not."""
    return None if case.problem.in_place else make_peer(plain_call_on, case.problem.names[1], case, operands, clock)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return plain_call_on(case.problem, arrays)


def plain_call_on(p, t):
    """The call of a problem."""
    call, sign = turned if HOST_MEMORY else torch.compile(turned, dynamic=False), 1 if p.op == "rope_fwd" else -1
    return lambda: call(t[p.names[0]], t["cos"].float(), sign * t["sin"].float(), p.pairs, p.interleaved)


def turned(x, cos, sin, pairs, interleaved):
    """The definition."""
    first, second = (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)) if interleaved else (slice(0, pairs), slice(pairs, 2 * pairs))
    a, b = x[..., first].float(), x[..., second].float()
    both = [(a * cos - b * sin).to(x.dtype), (b * cos + a * sin).to(x.dtype)]
    return torch.cat([torch.stack(both, -1).flatten(-2) if interleaved else torch.cat(both, -1), x[..., 2 * pairs:]], -1)

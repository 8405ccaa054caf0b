"""PyTorch's minimum and maximum along a dimension, whose indices are int64."""
import torch

from bench.peers import Peer
from bench.torch_arrays import TorchContender, tensors

NAME = "torch"


def make(case, operands, clock):
    """The case in PyTorch."""
    arrays = [tensors(operands, k) for k in range(len(operands))]
    calls = [_bind(case.problem, a) for a in arrays]
    contender = TorchContender(NAME, calls, clock)

    def write():
        with contender.on_stream():
            _, index = calls[0]()
            arrays[0]["index"].copy_(index)
        clock.synchronize()
    return Peer(contender, write)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return _bind(case.problem, arrays)


def _bind(p, t):
    x, value = t["x"], t["value"]
    index, find = torch.empty(value.shape, dtype=torch.int64, device=value.device), getattr(torch, p.mode)
    return lambda: find(x, p.axis, keepdim=p.keepdims, out=(value, index))

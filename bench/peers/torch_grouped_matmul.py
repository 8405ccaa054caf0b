"""PyTorch's grouped product (CUTLASS) for bfloat16; elsewhere a torch.matmul for each group, which is told the sizes that ours reads.

float32 is exact: TF32 is off unless the case allows it.
"""
import torch
import torch.nn.functional as F

from bench.peers import Peer
from bench.torch_arrays import TorchContender, tensors

NAME = "torch"
_ACTIVATIONS = {"identity": lambda y: y, "relu": torch.relu_, "gelu": F.gelu, "gelu_tanh": lambda y: F.gelu(y, approximate="tanh"),
                "swish": lambda y: F.silu(y, inplace=True), "sigmoid": torch.sigmoid_, "tanh": torch.tanh_}


def make(case, operands, clock):
    """The case in PyTorch; None for what it lacks (8-bit types, another output dtype)."""
    p = case.problem
    if p.a.itemsize == 1 or p.y.dtype != p.a.dtype or p.activation.mode not in _ACTIVATIONS:
        return None
    arrays = [tensors(operands, k) for k in range(len(operands))]
    torch.backends.cuda.matmul.allow_tf32 = p.math is not None
    calls = [_bind(p, a) for a in arrays]
    contender = TorchContender(NAME, calls, clock)

    def write():
        with contender.on_stream():
            arrays[0]["y"].copy_(calls[0]())
        clock.synchronize()
    return Peer(contender, write)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return _bind(case.problem, arrays)


def _bind(p, t):
    """The call on one set of tensors, everything looked up beforehand."""
    a, b, y, bias, activation = t["a"], t["b"].mT if p.transpose_b else t["b"], t["y"], t["bias"], _ACTIVATIONS[p.activation.mode]
    grouped = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
    strides = a.stride(0), b.stride(2 if p.transpose_b else 1)
    if grouped is not None and p.a.dtype == "bfloat16" and bias is None and all(s % 8 == 0 for s in strides):  # rows of 16 bytes
        ends = t["group_offsets"][1:]
        return lambda: activation(grouped(a, b, offs=ends))
    offsets = p.operand_values("group_offsets").tolist()
    groups = [(a[first:end], b[g], y[first:end], None if bias is None else bias[g]) for g, (first, end) in
              enumerate(zip(offsets, offsets[1:])) if end > first]

    def loop():
        for rows, matrix, out, addend in groups:
            if addend is None:
                torch.matmul(rows, matrix, out=out)
            else:
                torch.addmm(addend, rows, matrix, out=out)
        return activation(y)
    return loop

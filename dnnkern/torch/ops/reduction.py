"""Sums and means over dimensions."""
import torch

from ... import reduce
from .._table import Refused, aten
from .._tensors import one_dtype

_SUM, _MEAN = torch.ops.aten.sum.dim_IntList, torch.ops.aten.mean.dim


def _reduced(x, mode, operator, dim, keepdim, dtype):
    one_dtype(x)
    if dtype is not None and dtype is not x.dtype:
        raise Refused(f"a result of {dtype}")
    if x.numel() == 0:
        raise Refused("no elements")
    out = None
    if not x.is_contiguous():  # PyTorch's result keeps the order of x's strides: its kernel without values has it
        like = operator(torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta"), dim, keepdim)
        out = torch.empty_strided(like.shape, like.stride(), dtype=x.dtype, device=x.device)
    return reduce(x, mode, axes=tuple(dim) if dim else None, keepdims=keepdim, out=out)


@aten("sum.dim_IntList", heavy=False)
def sum_of(x, dim, keepdim=False, *, dtype=None):
    """The sum over dimensions."""
    return _reduced(x, "add", _SUM, dim, keepdim, dtype)


@aten("mean.dim", heavy=False)
def mean_of(x, dim, keepdim=False, *, dtype=None):
    """The mean over dimensions."""
    return _reduced(x, "avg", _MEAN, dim, keepdim, dtype)

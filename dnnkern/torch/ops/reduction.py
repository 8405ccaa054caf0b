"""Sums and means over dimensions."""
from ... import reduce
from .._table import Refused, aten
from .._tensors import one_dtype


def _reduced(x, mode, dim, keepdim, dtype):
    one_dtype(x)
    if dtype is not None and dtype is not x.dtype:
        raise Refused(f"a result of {dtype}")
    if not x.is_contiguous() or x.numel() == 0:
        raise Refused("x is not packed, or has no elements")  # the strides of PyTorch's result depend on x's
    return reduce(x, mode, axes=tuple(dim) if dim else None, keepdims=keepdim)


@aten("sum.dim_IntList", heavy=False)
def sum_of(x, dim, keepdim=False, *, dtype=None):
    """The sum over dimensions."""
    return _reduced(x, "add", dim, keepdim, dtype)


@aten("mean.dim", heavy=False)
def mean_of(x, dim, keepdim=False, *, dtype=None):
    """The mean over dimensions."""
    return _reduced(x, "avg", dim, keepdim, dtype)

"""Rows of a table by index, and the table's gradient."""
import torch

import dnnkern

from ...device import HOST_MEMORY
from .._table import Refused, aten
from .._tensors import one_dtype

_INDICES = torch.int64, torch.int32


@aten("embedding")
def embedding(weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    """``embedding_fwd``."""
    one_dtype(weight)
    if weight.dim() != 2 or indices.dtype not in _INDICES or indices.numel() == 0:
        raise Refused(f"a table of shape {tuple(weight.shape)}, indices of shape {tuple(indices.shape)}")
    if HOST_MEMORY:
        least, most = (int(i) for i in indices.aminmax())
        if least < 0 or most >= weight.shape[0]:
            raise Refused("an index out of range")  # which PyTorch's kernel for the CPU reports
    return dnnkern.embedding_fwd(weight, indices)


@aten("embedding_dense_backward")
def embedding_backward(dy, indices, rows, padding_idx, scale_grad_by_freq):
    """``embedding_bwd``."""
    one_dtype(dy)
    if indices.dtype not in _INDICES or dy.numel() == 0:
        raise Refused(f"indices {indices.dtype} of shape {tuple(indices.shape)}")
    return dnnkern.embedding_bwd(dy, indices, rows, padding_idx=None if padding_idx < 0 else padding_idx,
                                 scale_grad_by_freq=scale_grad_by_freq)

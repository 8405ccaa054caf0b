"""Matrix products of groups, of which one dimension of one operand has all, one after another."""
import torch

import dnnkern

from .._table import Refused, aten
from .._tensors import math_of

_DTYPES = frozenset({torch.float32, torch.float16, torch.bfloat16})


def _check(a, b, offsets, bias, dtype):
    """Refuse what PyTorch's kernel refuses."""
    if a.dtype not in _DTYPES or b.dtype is not a.dtype or bias is not None or dtype not in (None, a.dtype):
        raise Refused(f"{a.dtype} and {b.dtype} to {dtype}")
    if not {a.dim(), b.dim()} <= {2, 3} or a.shape[-1] != b.shape[-2] or 0 in (*a.shape, *b.shape):
        raise Refused(f"operands of shapes {tuple(a.shape)} and {tuple(b.shape)}")
    if not is_aligned(a) or not is_aligned(b):
        raise Refused(f"operands with strides {a.stride()} and {b.stride()}")
    if a.dim() == b.dim() == 3:
        valid = offsets is None and a.shape[0] == b.shape[0]
    else:
        groups = b.shape[0] if b.dim() == 3 else a.shape[0]
        valid = offsets is not None and offsets.dtype is torch.int32 and offsets.shape == (groups,)
    if not valid:
        raise Refused(f"{'no' if offsets is None else tuple(offsets.shape)} offsets")


def is_aligned(matrices):
    """Whether PyTorch's grouped products take operands that lie so: one stride of 1, the other of rows of whole 16 bytes."""
    (m, n), (rows, columns), each = matrices.shape[-2:], matrices.stride()[-2:], 16 // matrices.element_size()
    wide = columns if rows == 1 and columns >= m else rows if columns == 1 and rows >= n else None
    return wide is not None and wide % each == 0 and matrices.data_ptr() % 16 == 0


def ends(offsets):
    """PyTorch's offsets are where groups end; and where the first begins."""
    found = offsets.new_zeros(len(offsets) + 1)
    found[1:] = offsets
    return found


def padded(like, shape, dtype=None):
    """Memory for a result, whose rows begin at multiples of 16 bytes."""
    dtype = dtype or like.dtype
    each = 16 // dtype.itemsize
    return like.new_empty((*shape[:-1], -(-shape[-1] // each) * each), dtype=dtype)[..., :shape[-1]]


@aten("_grouped_mm")
def grouped_mm(a, b, offs=None, bias=None, out_dtype=None):
    """``grouped_matmul``, where groups are of rows of a or of columns of b."""
    if a.dim() == b.dim() == 2:
        raise Refused("groups of what is summed")
    _check(a, b, offs, bias, out_dtype)
    math = math_of("matmul", a)
    if b.dim() == 2:
        y = padded(a, (a.shape[1], b.shape[1]))
        dnnkern.grouped_matmul(b.t(), a, ends(offs), transpose_b=True, math=math, out=y.t())
        return y
    if a.dim() == 2:
        return dnnkern.grouped_matmul(a, b, ends(offs), math=math, out=padded(a, (a.shape[0], b.shape[2])))
    return dnnkern.matmul(a, b, math=math, out=padded(a, (*a.shape[:2], b.shape[2])))

"""Products of 8-bit floats with scales: of whole operands, or of rows and columns."""
import torch

import dnnkern

from ...device import HOST_MEMORY
from .._table import Refused, aten
from .grouped_product import ends, is_aligned, padded

_EIGHT = frozenset({torch.float8_e4m3fn, torch.float8_e5m2})
_WIDE = frozenset({torch.float32, torch.float16, torch.bfloat16})
_PER_TENSOR, _PER_ROW = 0, 1  # recipes of scales


def _scaled(a, b, scale_a, scale_b, bias, dtype, out=None):
    dtype = dtype or a.dtype
    if not {a.dtype, b.dtype} <= _EIGHT or dtype not in _WIDE:
        raise Refused(f"{a.dtype} and {b.dtype} to {dtype}")
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0] or 0 in (*a.shape, *b.shape):
        raise Refused(f"operands of shapes {tuple(a.shape)} and {tuple(b.shape)}")
    per_row = scale_a.shape == (a.shape[0], 1) and scale_b.shape == (1, b.shape[1]) and scale_a.is_contiguous() and scale_b.is_contiguous()
    if scale_a.dtype is not torch.float32 or scale_b.dtype is not torch.float32 or not (
            per_row or scale_a.numel() == scale_b.numel() == 1):
        raise Refused(f"scales of shapes {tuple(scale_a.shape)} and {tuple(scale_b.shape)}")
    if bias is not None and (bias.shape != b.shape[1:] or bias.dtype not in _WIDE):
        raise Refused(f"a bias of shape {tuple(bias.shape)}")
    if not HOST_MEMORY and not _on_gpus(a, b, bias, dtype, per_row):
        raise Refused("what PyTorch's kernels for GPUs may not take")
    if out is not None and (out.dtype is not dtype or out.shape != (a.shape[0], b.shape[1])):
        raise Refused(f"out is {out.dtype} of shape {tuple(out.shape)}")
    return dnnkern.matmul(a, b, scale_a=scale_a, scale_b=scale_b, bias=None if bias is None else bias.float(), out_dtype=dtype, out=out)


def _on_gpus(a, b, bias, dtype, per_row):
    """Whether they take a call: more is an error there."""
    return (a.stride(1) == 1 == b.stride(0) and torch.float8_e4m3fn in (a.dtype, b.dtype) and a.shape[1] % 16 == b.shape[1] % 16 == 0
            and (bias is None or dtype is bias.dtype is not torch.float32) and (not per_row or dtype is torch.bfloat16))


@aten("_scaled_mm", "_scaled_mm.out")
def scaled_mm(a, b, scale_a, scale_b, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False, *, out=None):
    """``matmul`` with scales; that of a wider result has no effect, on the CPU, and is an error elsewhere."""
    if scale_result is not None and not HOST_MEMORY:
        raise Refused("a scale of the result")
    return _scaled(a, b, scale_a, scale_b, bias, out_dtype, out)


@aten("_scaled_mm_v2", "_scaled_mm_v2.out")
def scaled_mm_v2(a, b, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, bias, out_dtype, contraction_dim=(),
                 use_fast_accum=False, *, out=None):
    """`scaled_mm` with names for how operands are scaled."""
    recipes, plain = {*recipe_a, *recipe_b}, not (contraction_dim or any((*swizzle_a, *swizzle_b)))
    if not plain or len(scale_a) != 1 or len(scale_b) != 1 or recipes != {_PER_ROW if scale_a[0].numel() > 1 else _PER_TENSOR}:
        raise Refused(f"scales by recipes {list(recipe_a)} and {list(recipe_b)}")
    return _scaled(a, b, scale_a[0], scale_b[0], bias, out_dtype, out)


@aten("_scaled_grouped_mm")
def scaled_grouped_mm(a, b, scale_a, scale_b, offs=None, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False):
    """``grouped_matmul`` of groups of rows, with scales of rows and columns."""
    dtype = out_dtype or torch.bfloat16
    if a.dtype is not torch.float8_e4m3fn or b.dtype is not a.dtype or dtype is not torch.bfloat16 or bias is not None or (
            scale_result is not None):
        raise Refused(f"{a.dtype} and {b.dtype} to {dtype}")
    if a.dim() != 2 or b.dim() != 3 or a.shape[1] != b.shape[1] or 0 in (*a.shape, *b.shape):
        raise Refused(f"operands of shapes {tuple(a.shape)} and {tuple(b.shape)}")
    if a.stride(1) != 1 or b.stride(1) != 1 or not is_aligned(a) or not is_aligned(b):
        raise Refused(f"operands with strides {a.stride()} and {b.stride()}")
    if offs is None or offs.dtype is not torch.int32 or offs.shape != b.shape[:1]:
        raise Refused("other offsets than a row's for each group")
    if scale_a.dtype is not torch.float32 or scale_b.dtype is not torch.float32 or scale_a.shape != a.shape[:1] or (
            scale_b.shape != (b.shape[0], b.shape[2])):
        raise Refused(f"scales of shapes {tuple(scale_a.shape)} and {tuple(scale_b.shape)}")
    return dnnkern.grouped_matmul(a, b, ends(offs), scale_a=scale_a[:, None], scale_b=scale_b[:, None], out_dtype=dtype,
                                  out=padded(a, (a.shape[0], b.shape[2]), dtype))

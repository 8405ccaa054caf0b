"""What overrides ask of tensors: dtypes, and the memory formats that PyTorch's kernels would give their results."""
import functools

import torch

from ..device import HOST_MEMORY
from ._table import Refused

KEY = "CPU" if HOST_MEMORY else "CUDA"
"""The backend key of tensors that this library's kernels take."""
FLOATS = frozenset({torch.float32, torch.float16, torch.bfloat16, torch.float64})
fp32_precision = torch._C._get_fp32_precision_getter
PRECISIONS = {operator: functools.partial(fp32_precision, "cuda", operator) for operator in ("conv", "matmul", "rnn")}
"""How precisely PyTorch lets operators compute in float32: what calls on float32 depend on, and no others."""


def one_dtype(x, *others):
    """Refuse dtypes that are no floating-point numbers of 16 to 64 bits, and mixtures; None is no tensor."""
    dtype = x.dtype
    if dtype not in FLOATS:
        raise Refused(f"dtype {_name(dtype)}")
    for other in others:
        if other is not None and other.dtype is not dtype:
            raise Refused(f"dtypes {_name(dtype)} and {_name(other.dtype)}")


def wide_dtype(x, *weights):
    """As `one_dtype`, but float32 is taken beside 16 bits. Refuses what PyTorch's kernels for the CPU keep in 16 bits, statistics among
    them, which are float32 here."""
    _check_wide(x.dtype, *[w.dtype for w in weights if w is not None])


@functools.lru_cache(256)
def _check_wide(given, *weights):
    dtype = given
    if dtype not in FLOATS:
        raise Refused(f"dtype {_name(dtype)}")
    if dtype.itemsize == 2:
        wide = torch.float32 in weights
        if HOST_MEMORY and not wide:
            raise Refused(f"statistics in {_name(dtype)}")
        dtype = torch.float32 if wide else dtype
    for other in weights:
        if other is not dtype:
            raise Refused(f"dtypes {_name(given)} and {', '.join(map(_name, weights))}")


def computed(x):
    """The dtype that this library computes losses and statistics in."""
    return x.dtype if x.dtype is torch.float64 else torch.float32


def _name(dtype):
    return str(dtype).removeprefix("torch.")


def math_of(operator, x):
    """The library's word for what PyTorch allows for float32: "conv" by ``torch.backends.cudnn``, "matmul" by ``torch.backends.cuda``."""
    if HOST_MEMORY or x.dtype is not torch.float32:
        return None
    return "tf32" if PRECISIONS[operator]() == "tf32" else None


@functools.lru_cache(1 << 12)
def are_channels_last(shape, strides):
    """Whether PyTorch takes a tensor of images for one with channels last.

    It is PyTorch's own guess, of which every kernel's choice depends: the channels' stride is positive and the least, then those of the
    spatial dimensions from the last to the first, then the images'; what could be either is channels first.
    """
    least = 0
    if len(shape) not in (4, 5) or strides[1] == 0:
        return False
    for d in (1, *range(len(shape) - 1, 1, -1), 0):
        if shape[d] == 0 or strides[d] < least or d == 0 and least == strides[1]:
            return False
        least = strides[d] * max(shape[d], 1)
    return True


def is_channels_last(x):
    """`are_channels_last` of a tensor."""
    return are_channels_last(x.shape, x.stride())


def layout_of(x):
    """This library's word for how PyTorch takes a tensor of images to lie."""
    return "channels_last" if is_channels_last(x) else "NCHW"


def each(values, dims):
    """One entry a dimension, where PyTorch gives one for all at times."""
    return tuple(values) if len(values) == dims else tuple(values) * dims

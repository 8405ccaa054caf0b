"""Rotary embeddings of positions."""
import torch

import dnnkern

from .._above import needs_gradient
from .._operator import operator
from .._rules import leading
from .._table import Refused
from .._tensors import computed, one_dtype
from ._front import public


def _kernel(x, cos, sin, interleaved, inverse):
    return (dnnkern.rope_bwd if inverse else dnnkern.rope_fwd)(x, cos, sin, interleaved=interleaved, out=torch.empty_like(x))


def _gradient(dy, wanted, cos, sin, interleaved, inverse):
    return [rotated(dy, cos, sin, interleaved, not inverse)]


rotated = operator("rope(Tensor x, Tensor cos, Tensor sin, bool interleaved, bool inverse) -> Tensor", _kernel,
                   lambda x, *_: torch.empty_like(x), "rope", _gradient, batch=leading("x"))


def _composition(input, cos, sin, *, interleaved=False):
    x, count = input.to(computed(input)), 2 * cos.shape[-1]
    part, rest = x[..., :count], x[..., count:]
    a, b = (part[..., ::2], part[..., 1::2]) if interleaved else part.chunk(2, -1)
    pair = a * cos - b * sin, b * cos + a * sin
    done = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    return torch.cat([done, rest], -1).to(input.dtype)


@public(_composition)
def rope(input, cos, sin, *, interleaved=False):
    """Rotary embedding: rotates pairs of elements of each row, ``(a, b) -> (a * cos - b * sin, b * cos + a * sin)``.

    Parameters
    ----------
    input : Tensor (..., D)
        Queries or keys; float64, float32, float16 or bfloat16, arbitrary strides.
    cos, sin : Tensor (..., R / 2)
        Of the angles; they broadcast to the leading dimensions: (S, R / 2) for queries (B, H, S, D), (S, 1, R / 2) for (B, S, H, D). One
        number a pair, where some libraries have each twice. The first R elements of a row are rotated, the others copied.
    interleaved : bool
        Pairs are elements 2 k and 2 k + 1, instead of k and ``k + R / 2``.

    Returns
    -------
    Tensor
        As input, which alone has a gradient by this kernel, the inverse rotation; where cos or sin need one PyTorch's functions compute it.

    Raises
    ------
    ValueError
        cos and sin of different shapes, more pairs than a row has, shapes that do not broadcast.

    Examples
    --------
    >>> import torch
    >>> from dnnkern.torch import functional
    >>> functional.rope(torch.tensor([1.0, 2, 3, 4, 5]), torch.zeros(2), torch.ones(2))
    tensor([-3., -4.,  1.,  2.,  5.])
    >>> functional.rope(torch.tensor([1.0, 2, 3, 4, 5]), torch.zeros(2), torch.ones(2), interleaved=True)
    tensor([-2.,  1., -4.,  3.,  5.])
    """
    if cos.shape != sin.shape or not cos.dim() or cos.dim() > input.dim() or 2 * cos.shape[-1] > input.shape[-1]:
        raise ValueError(f"rope: cos has shape {tuple(cos.shape)}, sin {tuple(sin.shape)}; expected one shape (..., R / 2) with R up to "
                         f"{input.shape[-1] if input.dim() else 0}, that broadcasts to input's, {tuple(input.shape)}")
    one_dtype(input)
    if needs_gradient(cos, sin) or input.numel() == 0 or not cos.is_floating_point():
        raise Refused("cosines that need a gradient or are integers, or no elements")
    wide = torch.float32 if input.dtype.itemsize == 2 else input.dtype
    cos, sin = [t if t.dtype in (wide, input.dtype) and t.dtype is cos.dtype else t.to(wide) for t in (cos, sin)]
    return rotated(input, cos, sin, interleaved, False)

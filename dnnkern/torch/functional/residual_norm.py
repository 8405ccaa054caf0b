"""An addition and the normalisation of the sum in one kernel, and one backward."""
import torch
import torch.nn.functional as F

import dnnkern

from .._above import gradients
from .._operator import operator
from .._rules import FLOAT32, leading
from .._table import Refused
from .._tensors import KEY, computed, one_dtype, wide_dtype
from ._front import public

_WIDE = (FLOAT32, "x", "residual", "gamma", "beta") if KEY == "CUDA" else None
_CAST = FLOAT32 if KEY == "CUDA" else None


def _of_sum(function, dys, *tensors):
    """Gradients by PyTorch's functions, of the sum and the weights."""
    outputs = [i for i, dy in enumerate(dys) if dy is not None]

    def run(summed, *weights):
        both = function(summed, *weights), summed * 1
        return [both[i] for i in outputs]
    return gradients(run, tensors, [dys[i] for i in outputs])


def _summed(found, *tensors):
    """Gradients of x and residual, which are one, and of the weights, None where there are none."""
    return found[0], found[0], *[g if t is not None else None for g, t in zip(found[1:], tensors)]


# ---- layer normalisation

def _layer(x, residual, gamma, beta, dims, eps):
    y, mean, rstd, summed = dnnkern.layer_norm_fwd(x, gamma, beta, axis=x.dim() - dims, eps=eps, residual=residual)
    return y, summed, mean, rstd


def _fake_layer(x, residual, gamma, beta, dims, eps):
    return *_fake_rms(x, residual, gamma, dims, eps), x.new_empty(x.shape[:x.dim() - dims], dtype=computed(x))


def _fake_gradients(dy, x, gamma, *more):
    shape, weights = x.shape[x.dim() - more[-1]:], x if gamma is None else gamma
    return x.new_empty(x.shape), weights.new_empty(shape), weights.new_empty(shape)


_layer_gradients = operator(
    "residual_layer_norm_gradients(Tensor dy, Tensor x, Tensor? gamma, Tensor mean, Tensor rstd, Tensor? dsummed, int dims) "
    "-> (Tensor, Tensor, Tensor)", lambda dy, x, gamma, mean, rstd, dsummed, dims: dnnkern.layer_norm_bwd(
        dy, x, gamma, mean, rstd, axis=x.dim() - dims, dsummed=dsummed), _fake_gradients, "residual_layer_norm backward")


def _layer_gradient(dys, wanted, gamma, beta, dims, eps, y1, y2, y3):
    dy, dsummed = dys
    if torch.is_grad_enabled():
        return _summed(_of_sum(lambda s, g, b: F.layer_norm(s, s.shape[s.dim() - dims:], g, b, eps), dys, y1, gamma, beta), gamma, beta)
    if dy is None:
        return dsummed, dsummed, None, None
    return _summed(_layer_gradients(dy, y1, gamma, y2, y3, dsummed, dims), gamma, beta)


_layer_norm = operator("residual_layer_norm(Tensor x, Tensor residual, Tensor? gamma, Tensor? beta, int dims, float eps) "
                       "-> (Tensor, Tensor, Tensor, Tensor)", _layer, _fake_layer, "residual_layer_norm", _layer_gradient, differentiable=2,
                       cast=_WIDE, batch=leading("x", "residual"))


# ---- RMS normalisation

def _rms(x, residual, gamma, dims, eps):
    y, rstd, summed = dnnkern.rms_norm_fwd(x, gamma, axis=x.dim() - dims, eps=eps, residual=residual)
    return y, summed, rstd


def _fake_rms(x, residual, gamma, dims, eps):
    return x.new_empty(x.shape), x.new_empty(x.shape), x.new_empty(x.shape[:x.dim() - dims], dtype=computed(x))


_rms_gradients = operator(
    "residual_rms_norm_gradients(Tensor dy, Tensor x, Tensor? gamma, Tensor rstd, Tensor? dsummed, int dims) -> (Tensor, Tensor)",
    lambda dy, x, gamma, rstd, dsummed, dims: dnnkern.rms_norm_bwd(dy, x, gamma, rstd, axis=x.dim() - dims, dsummed=dsummed),
    lambda *given: _fake_gradients(*given)[:2], "residual_rms_norm backward")


def _rms_gradient(dys, wanted, gamma, dims, eps, y1, y2):
    dy, dsummed = dys
    if torch.is_grad_enabled():
        return _summed(_of_sum(lambda s, g: torch.rms_norm(s, s.shape[s.dim() - dims:], g, eps), dys, y1, gamma), gamma)
    if dy is None:
        return dsummed, dsummed, None
    return _summed(_rms_gradients(dy, y1, gamma, y2, dsummed, dims), gamma)


_rms_norm = operator("residual_rms_norm(Tensor x, Tensor residual, Tensor? gamma, int dims, float eps) -> (Tensor, Tensor, Tensor)", _rms,
                     _fake_rms, "residual_rms_norm", _rms_gradient, differentiable=2, cast=_WIDE and _WIDE[:4],
                     batch=leading("x", "residual"))


def _check(name, x, residual, shape, *weights):
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if not shape or len(shape) > x.dim() or tuple(x.shape[x.dim() - len(shape):]) != shape:
        raise ValueError(f"{name}: normalized_shape is {shape}; expected the last sizes of input's, {tuple(x.shape)}")
    if residual.shape != x.shape:
        raise ValueError(f"{name}: residual has shape {tuple(residual.shape)}; expected input's, {tuple(x.shape)}")
    for word, w in zip(("weight", "bias"), weights):
        if w is not None and tuple(w.shape) != shape:
            raise ValueError(f"{name}: {word} has shape {tuple(w.shape)}; expected normalized_shape, {shape}")
    one_dtype(x, residual)
    if weights[0] is not None:
        wide_dtype(x, *weights)
    if x.numel() == 0:
        raise Refused("no elements")
    return len(shape)


def _layer_composition(input, residual, normalized_shape, weight=None, bias=None, eps=1e-5):
    summed = input + residual
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else normalized_shape
    return F.layer_norm(summed, shape, weight, bias, eps), summed


@public(_layer_composition, _CAST)
def residual_layer_norm(input, residual, normalized_shape, weight=None, bias=None, eps=1e-5):
    """``summed = input + residual`` and ``y = layer_norm(summed)`` in one kernel; backward one, which adds the gradient of summed.

    Parameters
    ----------
    input, residual : Tensor (..., *normalized_shape)
        Of one shape: float64, float32, float16 or bfloat16. PyTorch's functions take two dtypes.
    normalized_shape : int or tuple of int
    weight, bias : Tensor of normalized_shape, optional
        Of input's dtype, or float32.
    eps : float

    Returns
    -------
    y, summed : Tensor
        As input; both have gradients. Under autocast on a GPU float32, as ``torch.nn.functional.layer_norm``'s.

    Raises
    ------
    ValueError
        Shapes that do not match.

    Examples
    --------
    >>> import torch
    >>> from dnnkern.torch import functional
    >>> y, summed = functional.residual_layer_norm(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 1.0]]), 2, eps=0.0)
    >>> y, summed
    (tensor([[-1.,  1.]]), tensor([[1., 3.]]))
    """
    dims = _check("residual_layer_norm", input, residual, normalized_shape, weight, bias)
    return _layer_norm(input, residual, weight, bias, dims, eps)[:2]


def _rms_composition(input, residual, normalized_shape, weight=None, eps=None):
    summed = input + residual
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else normalized_shape
    return F.rms_norm(summed, shape, weight, eps), summed


@public(_rms_composition, _CAST)
def residual_rms_norm(input, residual, normalized_shape, weight=None, eps=None):
    """``summed = input + residual`` and ``y = rms_norm(summed)`` in one kernel; backward one, which adds the gradient of summed.

    Parameters
    ----------
    input, residual, normalized_shape, weight
        As in `residual_layer_norm`.
    eps : float, optional
        Default: as ``torch.nn.functional.rms_norm``'s.

    Returns
    -------
    y, summed : Tensor
        As input; both have gradients.

    Raises
    ------
    ValueError
        Shapes that do not match.

    Examples
    --------
    >>> import torch
    >>> from dnnkern.torch import functional
    >>> y, summed = functional.residual_rms_norm(torch.tensor([[2.0, 3.0]]), torch.tensor([[1.0, 1.0]]), 2)
    >>> y, summed
    (tensor([[0.8485, 1.1314]]), tensor([[3., 4.]]))
    """
    dims = _check("residual_rms_norm", input, residual, normalized_shape, weight)
    return _rms_norm(input, residual, weight, dims, torch.finfo(computed(input)).eps if eps is None else eps)[:2]

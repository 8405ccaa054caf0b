"""Products with a weight."""
import torch
import torch.nn.functional as F

from ... import matmul, reduce
from .._above import gradients, needs_gradient
from .._operator import operator, twin
from .._rules import leading
from .._table import Refused
from .._tensors import math_of, one_dtype
from . import activation as act
from ._front import LOW, replaces


def _pytorchs(x, w, bias, residual, activation):
    y = F.linear(x, w, bias)
    return act.pytorchs(y if residual is None else y + residual, activation)


def _kernel(x, w, bias, residual, activation):
    n, k = w.shape
    rows = None if residual is None else residual.reshape(-1, n)
    y = matmul(x.reshape(-1, k), w.t(), bias=bias, c=rows, activation=act.parsed(activation), math=math_of("matmul", x))
    return y.view(*x.shape[:-1], n)


_sums = operator("column_sums(Tensor x) -> Tensor", lambda x: reduce(x, "add", axes=(0,)), lambda x: x.new_empty(x.shape[1:]),
                 "sum.dim_IntList")


def _gradient(dy, mask, x, w, bias, residual, activation, y0):
    if torch.is_grad_enabled():
        return gradients(lambda *tensors: _pytorchs(*tensors, activation), (x, w, bias, residual), dy)
    dz = act.gradient(dy, y0, activation) if activation else dy
    mm, rows = twin("mm"), dz.reshape(-1, w.shape[0])
    return (mm(rows, w).view(x.shape) if mask[0] else None, mm(rows.t(), x.reshape(-1, w.shape[1])) if mask[1] else None,
            _sums(rows) if mask[2] else None, dz if mask[3] else None)


_linear = operator("linear(Tensor x, Tensor w, Tensor? bias, Tensor? residual, str activation) -> Tensor", _kernel, _pytorchs, "linear",
                   _gradient, cast=LOW, batch=leading("x", "residual"))


def linear(input, weight, bias=None, *, residual=None, activation=""):
    """``activation(input @ weight.T + bias + residual)`` in one kernel."""
    one_dtype(input, weight, bias, residual)
    if weight.dim() != 2 or not input.dim() or input.shape[-1] != weight.shape[1] or not (input.numel() and weight.numel()) or (
            bias is not None and bias.shape != weight.shape[:1]):
        raise Refused(f"{tuple(input.shape)} by a weight of shape {tuple(weight.shape)}")
    return _linear(input, weight, bias, residual, activation)


def _ended(input, weight, bias=None, *, residual=None, activation=None):
    text = act.text_at_end("linear", activation)
    if residual is not None and residual.shape != (*input.shape[:-1], weight.shape[0]):
        raise ValueError(f"linear: residual has shape {tuple(residual.shape)}; expected {(*input.shape[:-1], weight.shape[0])}")
    last, after = act.parted(text, needs_gradient(input, weight, bias, residual))
    return act.then(linear(input, weight, bias, residual=residual, activation=last), after)


def _composition(input, weight, bias=None, *, residual=None, activation=None):
    return _pytorchs(input, weight, bias, residual, act.text_at_end("linear", activation))


_DOC = """``activation(input @ weight.T + bias + residual)`` in one kernel; otherwise as ``torch.nn.functional.linear``.

    Parameters
    ----------
    input : Tensor (..., K)
        float64, float32, float16 or bfloat16.
    weight : Tensor (N, K)
    bias : Tensor (N,), optional
    residual : Tensor (..., N), optional
        PyTorch's functions take other dtypes than the result's.
    activation : str, optional
        As in `conv2d`.

    Returns
    -------
    Tensor (..., N)

    Raises
    ------
    ValueError, TypeError
        A residual of another shape, an unknown activation; other errors are PyTorch's.

    Examples
    --------
    >>> import torch
    >>> from dnnkern.torch import functional
    >>> x, w = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
    >>> functional.linear(x, w, residual=torch.tensor([[1.0, 1.0]]), activation="relu")
    tensor([[4., 0.]])
    """
replaces(F.linear, LOW, composition=_composition, doc=_DOC)(_ended)

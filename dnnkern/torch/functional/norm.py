"""Normalisations."""
import torch
import torch.nn.functional as F

from .._above import gradients, needs_gradient
from .._operator import derived, is_eager, operator, twin
from .._rules import folded, leading
from .._table import Refused
from .._tensors import KEY, computed, is_channels_last, one_dtype
from ..ops import rms_norm as rms
from ..ops.norm import batch_backward, batch_forward
from . import activation as act
from ._front import FLOAT32, replaces

_WIDE = FLOAT32 if KEY == "CUDA" else None  # what autocast does on a GPU


def _fake(x, gamma, beta, *_):
    statistics = x.new_empty(x.shape[1], dtype=computed(x))
    return torch.empty_like(x), statistics, torch.empty_like(statistics)


def _ended(y, residual, activation):
    return act.pytorchs(y if residual is None else y + residual, activation)


# ---- batch normalisation in training. Its kernel also updates the running statistics, which a traced operator may not: they are arguments
# of the kernel after those of the operator, and what is traced updates them in operators of PyTorch.

def _train(x, gamma, beta, residual, eps, activation, running_mean=None, running_var=None, momentum=0.0):
    return batch_forward(x, gamma, beta, running_mean, running_var, True, momentum, eps, residual, act.parsed(activation))


_gradients = operator(
    "batch_norm_gradients(Tensor dy, Tensor x, Tensor? gamma, Tensor mean, Tensor rstd, Tensor? y, bool residual, str activation, "
    "bool frozen) -> Tensor[]", lambda dy, x, gamma, mean, rstd, y, residual, activation, frozen: list(batch_backward(
        dy, x, gamma, mean, rstd, (True,) * 4, frozen, y, None, residual, act.parsed(activation))),
    lambda dy, x, gamma, mean, rstd, y, residual, *_: [torch.empty_like(x), *(mean.new_empty(
        mean.shape, dtype=(x if gamma is None else gamma).dtype) for _ in range(2)), *([torch.empty_like(x)] if residual else [])],
    "batch_norm backward")


def _wanted(mask, found):
    return [grad if wanted else None for wanted, grad in zip(mask, found)]


def _gradient(dy, mask, x, gamma, beta, residual, eps, activation, y0, y1, y2):
    if torch.is_grad_enabled():
        return gradients(lambda x, gamma, beta, residual: _ended(
            F.batch_norm(x, None, None, gamma, beta, True, 0.0, eps), residual, activation), (x, gamma, beta, residual), dy)
    return _wanted(mask, _gradients(dy, x, gamma, y1, y2, y0, residual is not None, activation, False))


_training = operator(
    "batch_norm(Tensor x, Tensor? gamma, Tensor? beta, Tensor? residual, float eps, str activation) -> (Tensor, Tensor, Tensor)", _train,
    _fake, "batch_norm", _gradient)


# ---- batch normalisation by running statistics

def _infer_pytorchs(x, gamma, beta, residual, mean, var, eps, activation):
    return _ended(F.batch_norm(x, mean, var, gamma, beta, False, 0.0, eps), residual, activation)


def _gradient_infer(dy, mask, x, gamma, beta, residual, mean, var, eps, activation, y0):
    if torch.is_grad_enabled():
        return gradients(lambda *tensors: _infer_pytorchs(*tensors, mean, var, eps, activation), (x, gamma, beta, residual), dy)
    kind = computed(x)
    rstd = (var.to(kind) + eps).rsqrt()
    return _wanted(mask, _gradients(dy, x, gamma, mean.to(kind), rstd, y0, residual is not None, activation, True))


_infer = operator(
    "batch_norm_infer(Tensor x, Tensor? gamma, Tensor? beta, Tensor? residual, Tensor mean, Tensor var, float eps, str activation) "
    "-> Tensor",
    lambda x, gamma, beta, residual, mean, var, eps, activation: batch_forward(
        x, gamma, beta, mean, var, False, 0.0, eps, residual, act.parsed(activation))[0],
    lambda x, *_: torch.empty_like(x), "batch_norm", _gradient_infer, batch=folded("x", "residual"))


@torch.no_grad()
def _update(running_mean, running_var, mean, rstd, eps, momentum, count):
    """Running statistics from those of groups of so many values, on an average of all images' where there are more."""
    var = (rstd.square().reciprocal() - eps) * (count / (count - 1))
    for running, new in ((running_mean, mean), (running_var, var)):
        running.lerp_(new.view(-1, running.numel()).mean(0).to(running.dtype), momentum)


def batch_norm(input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5, *, residual=None,
               activation=""):
    """``activation(batch_norm(input) + residual)`` in one kernel."""
    if input.dim() < 2 or input.numel() == 0:
        raise Refused(f"a tensor of shape {tuple(input.shape)}")
    if not training:
        if running_mean is None or running_var is None:
            raise Refused("inference without running statistics")
        return _infer(input, weight, bias, residual, running_mean, running_var, eps, activation)
    count = input.numel() // input.shape[1]
    if count == 1:
        raise Refused("one value per channel")
    given = input, weight, bias, residual, eps, activation
    if is_eager(input):
        y = _training(*given, running_mean, running_var, momentum)[0]
        if running_mean is not None:
            torch.autograd.graph.increment_version((running_mean, running_var))
        return y
    y, mean, rstd = _training(*given)
    if running_mean is not None:
        _update(running_mean, running_var, mean, rstd, eps, momentum, count)
    return y


def _with_end(input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5, *, residual=None,
              activation=None):
    text = act.text_at_end("batch_norm", activation)
    if residual is not None:
        if residual.shape != input.shape:
            raise ValueError(f"batch_norm: residual has shape {tuple(residual.shape)}; expected input's, {tuple(input.shape)}")
        one_dtype(input, residual)
    last, after = act.parted(text, needs_gradient(input, weight, bias, residual))
    return act.then(batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps, residual=residual,
                               activation=last), after)


def _composition(*args, residual=None, activation=None, **more):
    return _ended(F.batch_norm(*args, **more), residual, act.text_at_end("batch_norm", activation))


_DOC = """``activation(batch_norm(input) + residual)`` in one kernel; otherwise as ``torch.nn.functional.batch_norm``.

    Parameters
    ----------
    input : Tensor (N, C, ...)
        float64, float32, float16 or bfloat16, also with channels last.
    running_mean, running_var : Tensor (C,) or None
        Updated in training, used otherwise.
    weight, bias : Tensor (C,), optional
        Of input's dtype, or float32.
    training : bool
    momentum, eps : float
    residual : Tensor, optional
        Of input's shape; PyTorch's functions take other dtypes.
    activation : str, optional
        As in `conv2d`.

    Returns
    -------
    Tensor (N, C, ...)

    Raises
    ------
    ValueError, TypeError
        A residual of another shape, an unknown activation; other errors are PyTorch's.

    Examples
    --------
    >>> import torch
    >>> from dnnkern.torch import functional
    >>> x, mean, var = torch.tensor([[1.0], [-3.0]]), torch.zeros(1), torch.ones(1)
    >>> functional.batch_norm(x, mean, var, residual=torch.ones(2, 1), activation="relu", eps=0.0)
    tensor([[2.],
            [0.]])
    """
replaces(F.batch_norm, composition=_composition, doc=_DOC)(_with_end)


def settings(norm):
    """(running statistics, whether the batch's are taken, weight of the new ones) for a module's next call, which it counts."""
    momentum = 0.0 if norm.momentum is None else norm.momentum
    if norm.training and norm.track_running_stats and norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        if norm.momentum is None:  # their average
            momentum = 1.0 / float(norm.num_batches_tracked)
    running = (norm.running_mean, norm.running_var) if not norm.training or norm.track_running_stats else (None, None)
    return running, norm.training or norm.running_mean is None and norm.running_var is None, momentum


# ---- the others

@derived("native_layer_norm", leading("input"), _WIDE)
def _layer_norm(dy, mask, input, normalized_shape, weight, bias, y1, y2):
    return twin("native_layer_norm_backward")(dy, input, normalized_shape, y1, y2, weight, bias, mask)


@replaces(F.layer_norm, _WIDE)
def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    return _layer_norm(input, tuple(normalized_shape), weight, bias, eps)[0]


@derived("native_group_norm", None, _WIDE)
def _group_norm(dy, mask, input, weight, bias, N, C, HxW, group, eps, y1, y2):
    if torch.is_grad_enabled():
        return gradients(lambda *tensors: F.group_norm(tensors[0], group, *tensors[1:], eps), (input, weight, bias), dy)
    return twin("native_group_norm_backward")(dy, input, y1, y2, weight, N, C, HxW, group, mask)


def _of_groups(input, num_groups, weight, bias, eps):
    """(y, mean, rstd), the latter for each image and group."""
    if input.dim() < 2 or input.numel() == 0 or num_groups < 1 or input.shape[1] % num_groups or (
            any(w is not None and w.shape != input.shape[1:2] for w in (weight, bias))):
        raise Refused(f"{num_groups} groups of a tensor of shape {tuple(input.shape)}")
    n, c = input.shape[:2]
    x = input if is_channels_last(input) and not input.is_cuda else input.contiguous()  # as PyTorch does
    return _group_norm(x, weight, bias, n, c, input.numel() // (n * c), num_groups, eps)


@replaces(F.group_norm, _WIDE)
def group_norm(input, num_groups, weight=None, bias=None, eps=1e-5):
    return _of_groups(input, num_groups, weight, bias, eps)[0]


@replaces(F.instance_norm)
def instance_norm(input, running_mean=None, running_var=None, weight=None, bias=None, use_input_stats=True, momentum=0.1, eps=1e-5):
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if input.dim() < 3 or input.numel() == 0 or input[0, 0].numel() < 2:
        raise Refused(f"a tensor of shape {tuple(input.shape)}")
    y, mean, rstd = _of_groups(input, input.shape[1], weight, bias, eps)
    if running_mean is not None:
        _update(running_mean, running_var, mean, rstd, eps, momentum, input[0, 0].numel())
    return y


@replaces(F.rms_norm, _WIDE)
def rms_norm(input, normalized_shape, weight=None, eps=None):
    return rms.rms_norm(input, tuple(normalized_shape), weight, eps)

"""Batch, layer and group normalisation, and their gradients."""
import torch

import dnnkern

from ...device import HOST_MEMORY
from .._above import needs_gradient
from .._table import Refused, aten, nothing
from .._tensors import computed, layout_of, one_dtype, wide_dtype


def _masked(mask, gradients):
    return tuple([gradient if wanted else None for wanted, gradient in zip(mask, gradients)])


# ---- batch normalisation

def batch_forward(x, gamma, beta, running_mean, running_var, training, momentum, eps, residual=None, activation=None):
    """(y, mean, rstd); the last two None in inference."""
    wide_dtype(x, gamma, beta, running_mean, running_var)
    options = {"eps": eps, "layout": layout_of(x), "residual": residual, "activation": activation}
    if training:
        y, *statistics = dnnkern.batch_norm_train_fwd(x, gamma, beta, running_mean, running_var, momentum=momentum, **options)
    else:
        if running_mean is None or running_var is None:
            raise Refused("inference without running statistics")
        y, statistics = dnnkern.batch_norm_infer(x, gamma, beta, running_mean, running_var, **options), (None, None)
    return y, *statistics


def _lying_like(x, y):
    """y with the strides that PyTorch's own kernel for GPUs gives it: those of x, also where neither channels nor pixels are last."""
    if HOST_MEMORY or y.stride() == x.stride():
        return y
    found = torch.empty_like(x)
    return y if found.stride() == y.stride() else found.copy_(y)


@aten("native_batch_norm", "_native_batch_norm_legit", state=torch.is_grad_enabled)
def batch_norm(x, gamma, beta, running_mean, running_var, training, momentum, eps):
    """``batch_norm_train_fwd`` or ``batch_norm_infer``."""
    y, mean, rstd = batch_forward(x, gamma, beta, running_mean, running_var, training, momentum, eps)
    y = _lying_like(x, y)
    if training:
        return y, mean, rstd
    if HOST_MEMORY or not needs_gradient(x, gamma, beta):
        return y, x.new_empty(0), x.new_empty(0)  # statistics are for the gradient; PyTorch's kernel for the CPU returns none either
    return y, running_mean.to(computed(x), copy=True), (running_var.to(computed(x)) + eps).rsqrt()


@aten("_native_batch_norm_legit.no_stats", state=nothing)
def batch_norm_of_batch(x, gamma, beta, training, momentum, eps):
    """`batch_norm` without running statistics."""
    return batch_norm(x, gamma, beta, None, None, training, momentum, eps)


@aten("cudnn_batch_norm", state=nothing)
def cudnn_batch_norm(x, gamma, beta, running_mean, running_var, training, momentum, eps):
    """`batch_norm` by cuDNN's name, which PyTorch calls on a GPU. The fourth result is what cuDNN keeps for its gradient: nothing."""
    y, mean, rstd = batch_forward(x, gamma, beta, running_mean, running_var, training, momentum, eps)
    none = x.new_empty(0, dtype=torch.uint8)
    return (y, mean, rstd, none) if training else (y, *(gamma.new_empty(0) for _ in range(2)), none)


@aten("_batch_norm_with_update", state=nothing)
def batch_norm_with_update(x, gamma, beta, running_mean, running_var, momentum, eps):
    """`batch_norm` of exported programs."""
    return *batch_forward(x, gamma, beta, running_mean, running_var, True, momentum, eps), x.new_empty(0, dtype=torch.uint8)


def batch_backward(dy, x, gamma, mean, rstd, mask, frozen=False, y=None, beta=None, residual=False, activation=None):
    """Gradients by x, gamma and beta, and with `residual` that of what was added."""
    one_dtype(x, dy)
    wide_dtype(x, gamma)
    found = dnnkern.batch_norm_bwd(dy, x, gamma, mean, rstd, layout=layout_of(x), frozen=frozen, y=y, beta=beta, residual=residual,
                                   activation=activation)
    return _masked(mask, found)


@aten("native_batch_norm_backward", state=nothing)
def batch_norm_backward(dy, x, gamma, running_mean, running_var, mean, rstd, training, eps, mask):
    """``batch_norm_bwd``; out of training of the running statistics, which are constants then."""
    if not training:
        mean, rstd = running_mean.to(computed(x)), (running_var.to(computed(x)) + eps).rsqrt()
    return batch_backward(dy, x, gamma, mean, rstd, mask, frozen=not training)


@aten("batch_norm_backward", state=nothing)
def batch_norm_backward_of_update(dy, x, gamma, running_mean, running_var, mean, rstd, training, eps, mask, reserve):
    """`batch_norm_backward` of exported programs."""
    return batch_norm_backward(dy, x, gamma, running_mean, running_var, mean, rstd, training, eps, mask)


@aten("cudnn_batch_norm_backward", state=nothing)
def cudnn_batch_norm_backward(x, dy, gamma, running_mean, running_var, mean, rstd, eps, reserve):
    """`batch_norm_backward` by cuDNN's name."""
    return batch_backward(dy, x, gamma, mean, rstd, (True, True, True))


# ---- layer and group normalisation

def _axis(x, shape):
    """The first dimension that is normalised."""
    axis = x.dim() - len(shape)
    if not shape or axis < 0 or tuple(x.shape[axis:]) != tuple(shape):
        raise Refused(f"normalized_shape {list(shape)} of a tensor of shape {tuple(x.shape)}")
    return axis


@aten("native_layer_norm", state=nothing)
def layer_norm(x, shape, gamma, beta, eps):
    """``layer_norm_fwd``."""
    wide_dtype(x, gamma, beta)
    axis = _axis(x, shape)
    y, mean, rstd = dnnkern.layer_norm_fwd(x, gamma, beta, axis=axis, eps=eps)
    kept = (*x.shape[:axis], *[1] * len(shape))
    return y, mean.view(kept), rstd.view(kept)


@aten("native_layer_norm_backward", state=nothing)
def layer_norm_backward(dy, x, shape, mean, rstd, gamma, beta, mask):
    """``layer_norm_bwd``."""
    one_dtype(x, dy)
    wide_dtype(x, gamma, beta)
    axis = _axis(x, shape)
    rows = x.shape[:axis]
    return _masked(mask, dnnkern.layer_norm_bwd(dy, x, gamma, mean.view(rows), rstd.view(rows), axis=axis))


@aten("native_group_norm", state=nothing)
def group_norm(x, gamma, beta, n, c, pixels, groups, eps):
    """``group_norm_fwd``."""
    wide_dtype(x, gamma, beta)
    layout = layout_of(x)
    if layout == "NCHW" and not x.is_contiguous():
        raise Refused("PyTorch's kernel takes packed tensors only")
    return dnnkern.group_norm_fwd(x, gamma, beta, groups, eps=eps, layout=layout)


@aten("native_group_norm_backward", state=nothing)
def group_norm_backward(dy, x, mean, rstd, gamma, n, c, pixels, groups, mask):
    """``group_norm_bwd``."""
    one_dtype(x, dy)
    wide_dtype(x, gamma)
    return _masked(mask, dnnkern.group_norm_bwd(dy, x, gamma, mean, rstd, groups, layout=layout_of(x)))

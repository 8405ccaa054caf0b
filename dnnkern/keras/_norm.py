"""Normalisations: Keras composes them of means, squares and products of single elements, in float32 even where x has 16 bits."""
import torch
import torch.nn.functional as F
from keras.src.layers import BatchNormalization
from keras.src.ops import cast

from ._replace import replaces
from ._tensors import channels_back, channels_second, not_floating, value, wide

_moments = BatchNormalization._moments


def _weights(layer, x, *names):
    """Weights in the dtype that PyTorch's kernels take beside x: on the CPU float32 beside 16 bits, so that statistics have it too."""
    dtype = torch.float32 if x.dtype.itemsize == 2 and x.device.type == "cpu" else x.dtype
    weights = [value(getattr(layer, name, None)) for name in names]
    return [None if weight is None else weight.to(dtype) for weight in weights]


# ---- batch normalisation

def _is_training(layer, training):
    return bool(training) and layer.trainable


def _batch_norm_unsupported(layer, inputs, training=None, mask=None):
    if why := not_floating(inputs):
        return why
    if not isinstance(layer.axis, int) or not 2 <= inputs.dim() <= 5:
        return f"axis {layer.axis} of a {inputs.dim()}-D tensor"
    if not _is_training(layer, training):
        return "a mask of another rank" if mask is not None and mask.ndim != inputs.dim() - 1 else None
    if mask is not None:
        return "a mask in training"
    for option in ("synchronized", "renorm"):
        if getattr(layer, option, False):
            return f"{option}=True"
    if type(layer)._moments is not _moments:
        return f"statistics of {type(layer).__name__}'s own"
    return None if inputs.numel() > inputs.shape[layer.axis] else "one element per channel"


@replaces("BatchNormalization.call", _batch_norm_unsupported)
def batch_norm(layer, inputs, training=None, mask=None):
    """``torch.batch_norm``. Keras' moving variances are biased, PyTorch's are not: the batch's come out of the kernel by a momentum of 1,
    and are added here."""
    axis, x, kind = layer.axis, inputs, wide(inputs)
    gamma, beta, mean, variance = (value(getattr(layer, name), kind) if has else None for name, has in (
        ("gamma", layer.scale), ("beta", layer.center), ("moving_mean", True), ("moving_variance", True)))
    image = channels_second(x, axis)
    if _is_training(layer, training):
        batch_mean, batch_variance = torch.zeros(2, len(mean), dtype=kind, device=x.device)
        y = _normalised(image, gamma, beta, batch_mean, batch_variance, True, layer.epsilon)
        count, momentum = x.numel() // len(mean), layer.momentum
        layer.moving_mean.assign(mean * momentum + batch_mean * (1 - momentum))
        layer.moving_variance.assign(variance * momentum + batch_variance * ((1 - momentum) * (count - 1) / count))
    else:
        if torch.is_grad_enabled():  # a step that comes between this call and its gradient writes them
            mean, variance = mean.clone(), variance.clone()
        y = _normalised(image, gamma, beta, mean, variance, False, layer.epsilon)
    return cast(channels_back(y, axis, x.dim()), layer.compute_dtype)


def _normalised(x, gamma, beta, mean, variance, training, epsilon):
    return torch.batch_norm(x, gamma, beta, mean, variance, training, 1.0, epsilon, torch.backends.cudnn.enabled)


# ---- layer, RMS and group normalisation

def _unsupported_axes(layer, x, *weights):
    if why := not_floating(x):
        return why
    axes = layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis]
    if sorted(axis % x.dim() for axis in axes) != list(range(x.dim() - len(axes), x.dim())):
        return f"axis {layer.axis} of a {x.dim()}-D tensor"
    shape = tuple(x.shape[-len(axes):])
    return None if all(w is None or tuple(w.shape) == shape for w in weights) else f"weights of another shape than {shape}"


def _layer_norm_unsupported(layer, inputs):
    return "rms_scaling=True" if getattr(layer, "rms_scaling", False) else _unsupported_axes(layer, inputs, layer.gamma, layer.beta)


@replaces("LayerNormalization.call", _layer_norm_unsupported)
def layer_norm(layer, inputs):
    """``layer_norm``, in x's dtype with statistics in float32."""
    y = F.layer_norm(inputs, _normalised_shape(layer, inputs), *_weights(layer, inputs, "gamma", "beta"), layer.epsilon)
    return cast(y, layer.compute_dtype)


def _rms_norm_unsupported(layer, x):
    return _unsupported_axes(layer, x, layer.scale)


@replaces("RMSNormalization.call", _rms_norm_unsupported)
def rms_norm(layer, x):
    """``rms_norm``, in x's dtype with the sum of squares in float32."""
    return cast(F.rms_norm(x, _normalised_shape(layer, x), value(layer.scale, x.dtype), layer.epsilon), layer.compute_dtype)


def _normalised_shape(layer, x):
    return x.shape[-len(layer.axis) if isinstance(layer.axis, (list, tuple)) else -1:]


def _group_norm_unsupported(layer, inputs):
    if why := not_floating(inputs):
        return why
    return None if 2 <= inputs.dim() <= 5 and layer.axis % inputs.dim() else f"axis {layer.axis} of a {inputs.dim()}-D tensor"


@replaces("GroupNormalization.call", _group_norm_unsupported)
def group_norm(layer, inputs):
    """``group_norm``."""
    image = channels_second(inputs, layer.axis)
    if not (image.is_contiguous() or _is_last(image)):
        image = image.contiguous()
    y = F.group_norm(image, layer.groups, *_weights(layer, inputs, "gamma", "beta"), layer.epsilon)
    return cast(channels_back(y, layer.axis, inputs.dim()), layer.compute_dtype)


def _is_last(image):
    return any(image.dim() == dims and image.is_contiguous(memory_format=form) for dims, form in (
        (4, torch.channels_last), (5, torch.channels_last_3d)))

"""What replacements ask of Keras' tensors and variables."""
import torch
from keras.src.backend.torch.core import convert_to_tensor


def value(variable, dtype=None):
    """The tensor of a variable, or of a tensor; None stays None."""
    return None if variable is None else convert_to_tensor(variable, dtype)


def not_floating(x):
    """Why x is no tensor of floating-point numbers, or None."""
    if not isinstance(x, torch.Tensor):
        return f"x is a {type(x).__name__}"
    return None if x.dtype.is_floating_point else f"x is {str(x.dtype).removeprefix('torch.')}"


def wide(x):
    """The dtype of statistics of x."""
    return x.dtype if x.dtype is torch.float64 else torch.float32


def channels_second(x, axis):
    """The view of x that PyTorch takes for images with channels first. A dimension is added to sequences, which have no memory format of
    their own: with channels last they are then images with channels last."""
    x = x.movedim(axis, 1)
    return x.unsqueeze(-1) if x.dim() == 3 else x


def channels_back(y, axis, dims):
    """A result of the form of `channels_second`, as Keras has it."""
    return (y.squeeze(-1) if dims == 3 else y).movedim(1, axis)

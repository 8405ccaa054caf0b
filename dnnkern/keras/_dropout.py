"""Dropout with a seed: Keras draws a mask of floats by a generator of its own, whose seed it reads back from the device."""
import torch
from keras.src.random.seed_generator import SeedGenerator, draw_seed

from ..torch import is_overridden
from ..torch.ops.dropout import Dropout
from ._replace import NOT_MEANT, replaces
from ._tensors import not_floating


def _unsupported(inputs, rate, noise_shape=None, seed=None):
    # Other numbers than Keras' are drawn: only where the program has asked for this library's dropout.
    if not is_overridden("dropout") or not 0 < rate < 1 or not isinstance(inputs, torch.Tensor) or not inputs.numel():
        return NOT_MEANT
    if seed is None or isinstance(seed, SeedGenerator) and seed._initial_seed is None:
        return NOT_MEANT if noise_shape is None else "noise_shape"  # Keras calls PyTorch's dropout
    return not_floating(inputs) or ("noise_shape" if noise_shape is not None else None)


@replaces("dropout", _unsupported, module="keras.src.backend.torch.random")
def dropout(inputs, rate, noise_shape=None, seed=None):
    """``dropout_fwd`` with a seed made of Keras', on the device."""
    first, second = draw_seed(seed).long()
    return Dropout.apply(inputs, (first << 32) ^ second, rate)[0]

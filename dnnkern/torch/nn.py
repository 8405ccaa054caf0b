"""Modules with PyTorch's names, arguments and state dicts that run on this library's kernels, whether or not overrides are on.

Each is a subclass of PyTorch's module of that name, and has its forward: the same code, which finds `dnnkern.torch.functional` where
PyTorch's finds ``torch.nn.functional``.

>>> import torch, dnnkern.torch
>>> layer = dnnkern.torch.nn.Linear(4, 2)
>>> isinstance(layer, torch.nn.Linear), sorted(layer.state_dict())
(True, ['bias', 'weight'])
>>> before = dnnkern.torch.status(reset=True)
>>> layer(torch.ones(3, 4)).shape
torch.Size([3, 2])
>>> [(row.op, row.ours) for row in dnnkern.torch.status(reset=True)]
[('linear', True)]
"""
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F

from . import functional
from ._rebind import methods, rebound
from ._sync import SyncBatchNorm

_NAMES = ("Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d Linear Embedding "
          "BatchNorm1d BatchNorm2d BatchNorm3d InstanceNorm1d InstanceNorm2d InstanceNorm3d LayerNorm GroupNorm RMSNorm "
          "MaxPool1d MaxPool2d MaxPool3d AvgPool1d AvgPool2d AvgPool3d AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d "
          "AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d LSTM GRU RNN MultiheadAttention CrossEntropyLoss NLLLoss Softmax "
          "LogSoftmax Dropout ReLU ReLU6 Hardtanh LeakyReLU ELU CELU SELU GELU SiLU Mish Hardswish Hardsigmoid Sigmoid Tanh Softplus "
          "Softsign TransformerEncoderLayer TransformerDecoderLayer TransformerEncoder").split()


class _Torch:
    """``torch`` to code that calls functions of it which this library computes, or which would take a whole layer away from it."""
    backends = SimpleNamespace(mha=SimpleNamespace(get_fastpath_enabled=lambda: False))
    bmm, sigmoid, tanh = (staticmethod(getattr(functional, name)) for name in ("bmm", "sigmoid", "tanh"))

    def __getattr__(self, name):
        return getattr(torch, name)


_TORCH = {"torch": _Torch()}


def _functional():
    """``torch.nn.functional`` with this library's functions, also inside of its functions that are written in Python."""
    names = {**functional.NAMES, **_TORCH}
    names |= {name: rebound(getattr(F, name), names) for name in ("_in_projection_packed", "_in_projection")}
    names["multi_head_attention_forward"] = rebound(F.multi_head_attention_forward, names)
    return SimpleNamespace(**{**vars(F), **names})


_OURS = {"F": _functional(), "_VF": functional}
_WITH_TORCH = {"Sigmoid", "Tanh", "MultiheadAttention", "TransformerEncoderLayer", "TransformerEncoder"}
LAYERS = {nn.SyncBatchNorm: SyncBatchNorm}
"""{PyTorch's class: this library's}."""


def _layer(name):
    theirs = getattr(nn, name)
    names = {**_OURS, **(_TORCH if name in _WITH_TORCH else {})}
    if name.startswith("Transformer"):  # which are made of layers
        names |= {part.__name__: ours for part, ours in LAYERS.items()}
    doc = f"`torch.nn.{name}` on this library's kernels."
    LAYERS[theirs] = type(name, (theirs,), {"__module__": __name__, "__doc__": doc, **methods(theirs, nn.Module, names)})


for _name in _NAMES:
    _layer(_name)
BACK = {ours: theirs for theirs, ours in LAYERS.items()}
"""{this library's class: PyTorch's}."""
globals().update({theirs.__name__: ours for theirs, ours in LAYERS.items()})
__all__ = ["BACK", "LAYERS", *sorted(theirs.__name__ for theirs in LAYERS)]

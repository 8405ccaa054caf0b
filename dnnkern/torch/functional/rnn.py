"""Recurrent networks: functions of ``torch._VF``, which PyTorch's modules call."""
import functools

import torch

from .._table import Refused
from .._tensors import KEY
from ..ops import rnn as ops
from ._front import replaces


def _network(function, input, states, params, *options):
    if KEY == "CPU" and torch.is_autocast_enabled("cpu"):
        raise Refused("autocast")  # of the parts of a network
    if not isinstance(params, (list, tuple)):
        raise Refused("a packed sequence")
    return function(input, states, params, *options)


for _name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
    replaces(getattr(torch, _name), name=_name)(functools.partial(_network, getattr(ops, _name)))

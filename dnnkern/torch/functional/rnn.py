"""Recurrent networks: functions of ``torch._VF``, which PyTorch's modules call."""
import functools

import torch

from .._table import Refused
from .._tensors import KEY
from ..ops import rnn as ops
from ._front import replaces


def _network(function, of_packed, *given):
    if KEY == "CPU" and torch.is_autocast_enabled("cpu"):
        raise Refused("autocast")  # of the parts of a network
    # The weights follow x and the states, or of packed sequences x, the sizes of batches and the states.
    return (of_packed if isinstance(given[3], (list, tuple)) else function)(*given)


for _name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
    replaces(getattr(torch, _name), name=_name)(functools.partial(_network, getattr(ops, _name), getattr(ops, f"{_name}_of_packed")))

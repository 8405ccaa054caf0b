"""PyTorch's RNN, LSTM and GRU, which are cuDNN's, without TF32."""
import functools

from ._torch_rnn import host_call as plain_call  # noqa: F401
from ._torch_rnn import make_peer

NAME = "torch"
make = functools.partial(make_peer, NAME, False)

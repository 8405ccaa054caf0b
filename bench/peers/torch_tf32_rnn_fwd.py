"""PyTorch's RNN, LSTM and GRU, which are cuDNN's, in TF32, its default."""
import functools

from ._torch_rnn import make_peer

NAME = "torch tf32"
make = functools.partial(make_peer, NAME, True)

"""cuDNN's gradients by data, through PyTorch, in TF32, its default."""
import functools

from ._torch_rnn import make_peer

NAME = "torch tf32"
make = functools.partial(make_peer, NAME, True)

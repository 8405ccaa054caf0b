"""cuDNN's gradients by weights, through PyTorch, which computes those by data with them, without TF32."""
import functools

from ._torch_rnn import host_call as plain_call  # noqa: F401
from ._torch_rnn import make_peer

NAME = "torch"
make = functools.partial(make_peer, NAME, False)

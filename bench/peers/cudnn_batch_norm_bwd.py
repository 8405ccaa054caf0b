"""cuDNN's gradients of batch normalisation, through PyTorch."""
from . import _torch_channel_norm as shared
from .cudnn_batch_norm_train_fwd import possible

NAME = "cudnn"


def make(case, operands, clock):
    """The case in cuDNN; None for what PyTorch does not give it."""
    return shared.make_with(shared.cudnn_gradients, NAME, case, operands, clock) if possible(case.problem) else None

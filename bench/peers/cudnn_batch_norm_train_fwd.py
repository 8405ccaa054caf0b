"""cuDNN's batch normalisation in training, through PyTorch."""
from . import _torch_channel_norm as shared

NAME = "cudnn"


def make(case, operands, clock):
    """The case in cuDNN; None for what PyTorch does not give it."""
    p = case.problem
    if p.mode != "spatial" or p.dtype == "float64" or p.gamma is None or p.gamma.dtype != "float32":
        return None
    return shared.make_with(train, NAME, case, operands, clock)


def train(p, t):
    """The call of a problem."""
    return shared.training(p, t, "cudnn_batch_norm")

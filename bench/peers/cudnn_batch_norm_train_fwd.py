"""cuDNN's batch normalisation in training, through PyTorch."""
from . import _torch_channel_norm as shared

NAME = "cudnn"


def possible(p):
    """Whether PyTorch gives a problem to cuDNN."""
    return p.mode == "spatial" and p.dtype != "float64" and not p.frozen and p.gamma is not None and p.gamma.dtype == "float32"


def make(case, operands, clock):
    """The case in cuDNN; None for what PyTorch does not give it."""
    return shared.make_with(train, NAME, case, operands, clock) if possible(case.problem) else None


def train(p, t):
    """The call of a problem."""
    return shared.training(p, t, "cudnn_batch_norm")

"""PyTorch's batch_norm_bwd, by its own kernels."""
from ._torch_channel_norm import NAME, make, plain_call  # noqa: F401

"""PyTorch's layer norm."""
from ._torch_norm import NAME, make, plain_call  # noqa: F401

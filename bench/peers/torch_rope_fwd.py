"""PyTorch's rotary embedding, as its users write it."""
from ._torch_rope import NAME, make, plain_call  # noqa: F401

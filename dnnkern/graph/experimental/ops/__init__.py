"""PyTorch operators, with autograd and for `torch.compile`, that call graphs: one is built for each form of a call, and kept."""
from .moe_grouped_matmul import moe_grouped_matmul
from .sdpa import scaled_dot_product_attention

__all__ = ["moe_grouped_matmul", "scaled_dot_product_attention"]

"""PyTorch programs on this library's kernels, unchanged: overrides of PyTorch's operators.

`enable` registers functions of this library for aten operators, for tensors on a GPU, or without one for tensors on the CPU. Autograd,
autocast, vmap, torch.compile and modules stay PyTorch's and call them. What this library cannot compute goes back to PyTorch's kernel, and
`status` says how often and why. ``python -m dnnkern run script.py`` does it for a program as it is.
"""
from ._overrides import disable, enable, enabled
from ._status import Row, status

__all__ = ["Row", "disable", "enable", "enabled", "status"]

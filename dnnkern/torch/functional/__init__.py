"""Functions with the names and arguments of ``torch.nn.functional`` that run on this library's kernels, whether or not overrides are on.

Gradients, second derivatives, autocast and torch.compile work as with PyTorch's. What this library cannot compute, tensors that are no
plain ones, tensors on another device, and calls under `torch.func` go to PyTorch's function, and `dnnkern.torch.status` tells why.

Besides there are functions that PyTorch has no name for, and further arguments: convolutions, `batch_norm` and `linear` end with
``residual=`` and ``activation=``; `residual_layer_norm`, `residual_rms_norm`, `swiglu`, `geglu`, `rope`, `attention`, `attention_decode`,
`grouped_matmul`, `linear_cross_entropy`.

>>> import torch, dnnkern.torch
>>> from dnnkern.torch import functional
>>> x, before = torch.ones(1, 1, 3, 3, requires_grad=True), dnnkern.torch.status(reset=True)
>>> functional.conv2d(x, torch.ones(1, 1, 2, 2)).sum().backward()
>>> x.grad[0, 0]
tensor([[1., 2., 1.],
        [2., 4., 2.],
        [1., 2., 1.]])
>>> sorted(row.op for row in dnnkern.torch.status(reset=True) if row.ours)
['convolution', 'convolution_backward']
"""
import importlib
import pkgutil

from ._front import NAMES, OWN

for _module in pkgutil.iter_modules(__path__):
    if not _module.name.startswith("_"):
        importlib.import_module(f"{__name__}.{_module.name}")
globals().update({**NAMES, **OWN})
__all__ = sorted({**NAMES, **OWN})

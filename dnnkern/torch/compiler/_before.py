"""A program before autograd: functions that PyTorch would take apart there, and those that the operation graph has no node for, become this
library's operators, which have gradients of their own."""
import functools

import torch

_NAMES = ("scaled_dot_product_attention", "cross_entropy", "nll_loss", "rms_norm", "group_norm", "instance_norm", "dropout", "embedding",
          *(f"{name}{dims}d" for name in ("max_pool", "adaptive_max_pool", "conv_transpose") for dims in (1, 2, 3)))
_ALSO = {torch.rms_norm: "rms_norm", torch._C._nn.scaled_dot_product_attention: "scaled_dot_product_attention",
         torch.group_norm: "group_norm", torch.conv_transpose1d: "conv_transpose1d", torch.conv_transpose2d: "conv_transpose2d",
         torch.conv_transpose3d: "conv_transpose3d"}
"""Functions of C++ by which programs, or Dynamo, call them."""


@functools.cache
def _ours():
    """{PyTorch's function: ours}"""
    from ..functional import NAMES
    return {**{NAMES[name].theirs: NAMES[name] for name in _NAMES}, **{theirs: NAMES[name] for theirs, name in _ALSO.items()}}


def with_operators(gm):
    """Replace the functions in a graph of Dynamo's, in position, by those of `dnnkern.torch.functional`."""
    ours = _ours()
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target in ours:
            node.target = ours[node.target]
    gm.recompile()
    return gm

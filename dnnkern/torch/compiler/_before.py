"""A program before autograd: functions that PyTorch would take apart there, and those that the operation graph has no node for, become this
library's operators, which have gradients of their own."""
import contextlib
import functools

import torch
import torch.nn.functional as F

from .._table import Refused
from .._tensors import KEY
from ..ops.cross_entropy import cross_entropy
from ..ops.loss import REDUCTIONS

_NAMES = ("scaled_dot_product_attention", "nll_loss", "rms_norm", "group_norm", "instance_norm", "dropout", "embedding",
          *(f"{name}{dims}d" for name in ("max_pool", "adaptive_max_pool", "conv_transpose") for dims in (1, 2, 3)))
_ALSO = {torch.rms_norm: "rms_norm", torch._C._nn.scaled_dot_product_attention: "scaled_dot_product_attention",
         torch.group_norm: "group_norm", torch.conv_transpose1d: "conv_transpose1d", torch.conv_transpose2d: "conv_transpose2d",
         torch.conv_transpose3d: "conv_transpose3d"}
"""Functions of C++ by which programs, or Dynamo, call them."""


def _adaptive_avg_pool(dims):
    """The mean of everything where one value is asked for: with channels last PyTorch's changes its result's strides in place, whose
    gradient is a copy to zeros."""
    theirs = getattr(F, f"adaptive_avg_pool{dims}d")

    def pool(x, output_size):
        if output_size in (1, (1,) * dims, [1] * dims) and x.dim() == dims + 2:
            return x.mean(tuple(range(2, dims + 2)), keepdim=True)
        return theirs(x, output_size)
    return pool


def _cross_entropy(input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean",
                   label_smoothing=0.0):
    """Of logits as they are: under autocast PyTorch converts them to float32, which this library's kernels compute in anyway."""
    if size_average is None and reduce is None and reduction in REDUCTIONS and torch.is_autocast_enabled(KEY.lower()):
        with contextlib.suppress(Refused):
            return cross_entropy(input, target, weight, REDUCTIONS.index(reduction), ignore_index, label_smoothing)
    from ..functional import NAMES
    return NAMES["cross_entropy"](input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing)


@functools.cache
def _ours():
    """{PyTorch's function: ours}"""
    from ..functional import NAMES
    means = {getattr(F, f"adaptive_avg_pool{dims}d"): _adaptive_avg_pool(dims) for dims in (1, 2, 3)}
    named = {**{NAMES[name].theirs: name for name in _NAMES}, **_ALSO}
    return {F.cross_entropy: _cross_entropy, **means, **{theirs: NAMES[name] for theirs, name in named.items()}}


def with_operators(gm):
    """Replace the functions in a graph of Dynamo's, in position, by those of `dnnkern.torch.functional`."""
    ours = _ours()
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target in ours:
            node.target = ours[node.target]
    gm.recompile()
    return gm

"""Batch normalisation over the batches of all processes of a group."""
import torch
import torch.distributed as dist
from torch import nn

from .. import batch_norm_bwd_apply, batch_norm_bwd_sums, batch_norm_infer, batch_norm_merge, batch_norm_stats
from . import functional
from ._above import counted
from ._tensors import KEY, computed, layout_of
from .functional.norm import settings


def _forward(x, gamma, beta, running_mean, running_var, eps, momentum, group):
    """(y, mean, rstd, counts): statistics and counts are those of all processes."""
    layout, channels, kind = layout_of(x), x.shape[1], computed(x)
    own = x.new_zeros((2 * channels + 1,), dtype=kind)  # mean, rstd and count travel together
    if x.numel():
        batch_norm_stats(x, eps=eps, layout=layout, out=(own[:channels], own[channels:-1]))
        own[-1] = x.numel() // channels
    parts = own.new_empty((dist.get_world_size(group), own.numel()))
    dist.all_gather(list(parts.unbind()), own, group)
    counts = parts[:, -1].contiguous()
    mean, var, rstd = batch_norm_merge(parts[:, :channels], parts[:, channels:-1], counts, running_mean, running_var, momentum=momentum,
                                       eps=eps)
    if not x.numel():
        return torch.empty_like(x), mean, rstd, counts
    weights = [t if t is None else t.to(kind) for t in (gamma, beta)]
    return batch_norm_infer(x, *weights, mean, var, eps=eps, layout=layout), mean, rstd, counts


def _backward(dy, x, gamma, mean, rstd, counts, group):
    """Gradients by x, gamma and beta; the latter two are this process's, which data-parallel training averages itself."""
    layout, sums = layout_of(x), mean.new_zeros((2, x.shape[1]))
    if x.numel():
        batch_norm_bwd_sums(dy, x, gamma, mean, rstd, layout=layout, out=(sums[0], sums[1]))
    own = sums.clone()
    dist.all_reduce(sums, group=group)
    if not x.numel():
        return torch.empty_like(x), *own
    dx = batch_norm_bwd_apply(dy, x, gamma, mean, rstd, sums[0], sums[1], counts, layout=layout)
    return dx, *own


_run, _derive = counted(_forward, "sync_batch_norm"), counted(_backward, "sync_batch_norm backward")


class _SyncBatchNorm(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x, gamma, beta, running_mean, running_var, eps, momentum, group):
        y, mean, rstd, counts = _run(x, gamma, beta, running_mean, running_var, eps, momentum, group)
        ctx.save_for_backward(x, gamma, beta, mean, rstd, counts)
        ctx.group = group
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy):
        x, gamma, beta, *statistics = ctx.saved_tensors
        dx, dgamma, dbeta = _derive(dy, x, gamma, *statistics, ctx.group)
        return (dx, None if gamma is None else dgamma.to(gamma.dtype), None if beta is None else dbeta.to(beta.dtype), *[None] * 5)


class SyncBatchNorm(nn.SyncBatchNorm):
    """`torch.nn.SyncBatchNorm` on this library's kernels, for processes with GPUs and for such without.

    Processes exchange two sums and a count for each channel, forward and backward; some may have no images. Without a process group, with
    one process, and out of training it is batch normalisation. Running statistics, gradients and their averaging by
    DistributedDataParallel are as with PyTorch's.

    Examples
    --------
    >>> import torch, dnnkern.torch
    >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4))
    >>> net = dnnkern.torch.nn.SyncBatchNorm.convert_sync_batchnorm(net)
    >>> type(net[1]).__module__, net(torch.ones(2, 3, 5, 5)).shape
    ('dnnkern.torch.nn', torch.Size([2, 4, 5, 5]))
    """

    def forward(self, input):
        self._check_input_dim(input)
        self._check_non_zero_input_channels(input)
        group = self.process_group or dist.group.WORLD if dist.is_available() and dist.is_initialized() else None
        alone = group is None or dist.get_world_size(group) == 1
        if input.device.type != KEY.lower():
            raise ValueError(f"SyncBatchNorm: input is on {input.device}; expected it on {KEY.lower()}, where this library's kernels run")
        running, of_batch, momentum = settings(self)
        if not self.training or alone:
            return functional.batch_norm(input, *running, self.weight, self.bias, of_batch, momentum, self.eps)
        y = _SyncBatchNorm.apply(input, self.weight, self.bias, *running, self.eps, momentum, group)
        if running[0] is not None:
            torch.autograd.graph.increment_version(running)
        return y

    @classmethod
    def convert_sync_batchnorm(cls, module, process_group=None):
        """A module with `SyncBatchNorm` in place of all batch normalisations in it, as of PyTorch's function of that name."""
        result = module
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            result = cls(module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats, process_group)
            result._parameters, result._buffers = dict(module._parameters), dict(module._buffers)
            result.training = module.training
        for name, child in module.named_children():
            result.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        return result


SyncBatchNorm.__module__ = "dnnkern.torch.nn"

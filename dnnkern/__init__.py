"""Deep-neural-network primitives as Numba CUDA kernels: what cuDNN does, in Python.

Public names are imported when they are first used; importing the package imports neither Numba nor NumPy and creates no CUDA context.
"""
import importlib
import sys
import types

__version__ = "0.1.0"

# Public name -> module that defines it.
_NAMES = {
    "Note": "dnnkern.dispatch",
    "NotSupported": "dnnkern.dispatch",
    "activation_bwd": "dnnkern.act",
    "activation_fwd": "dnnkern.act",
    "binary": "dnnkern.act",
    "add_tensor": "dnnkern.act",
    "adagrad_step": "dnnkern.optim",
    "adam_step": "dnnkern.optim",
    "adamw_step": "dnnkern.optim",
    "adaptive_avg_pool_bwd": "dnnkern.pool",
    "adaptive_avg_pool_fwd": "dnnkern.pool",
    "adaptive_max_pool_bwd": "dnnkern.pool",
    "adaptive_max_pool_fwd": "dnnkern.pool",
    "affine_grid_bwd": "dnnkern.transform",
    "affine_grid_fwd": "dnnkern.transform",
    "argreduce": "dnnkern.reduce",
    "avg_pool_bwd": "dnnkern.pool",
    "avg_pool_fwd": "dnnkern.pool",
    "batch_norm_bwd": "dnnkern.norm",
    "batch_norm_bwd_apply": "dnnkern.norm",
    "batch_norm_bwd_sums": "dnnkern.norm",
    "batch_norm_infer": "dnnkern.norm",
    "batch_norm_merge": "dnnkern.norm",
    "batch_norm_stats": "dnnkern.norm",
    "batch_norm_train_fwd": "dnnkern.norm",
    "block_scale_dequantize": "dnnkern.transform",
    "block_scale_quantize": "dnnkern.transform",
    "cast": "dnnkern.transform",
    "clip_grad_norm": "dnnkern.optim",
    "col2im": "dnnkern.transform",
    "concat": "dnnkern.transform",
    "conv_bwd_bias": "dnnkern.conv",
    "conv_bwd_data": "dnnkern.conv",
    "conv_bwd_filter": "dnnkern.conv",
    "conv_fwd": "dnnkern.conv",
    "conv_transpose_fwd": "dnnkern.conv",
    "convert_layout": "dnnkern.transform",
    "cross_entropy_bwd": "dnnkern.loss",
    "cross_entropy_fwd": "dnnkern.loss",
    "ctc_loss_bwd": "dnnkern.loss",
    "ctc_loss_fwd": "dnnkern.loss",
    "depth_to_space": "dnnkern.transform",
    "dropout_bwd": "dnnkern.dropout",
    "dropout_fwd": "dnnkern.dropout",
    "embedding_bwd": "dnnkern.embedding",
    "embedding_fwd": "dnnkern.embedding",
    "fused_pointwise": "dnnkern.fused",
    "fused_reduction": "dnnkern.fused",
    "glu_bwd": "dnnkern.act",
    "glu_fwd": "dnnkern.act",
    "grad_norm": "dnnkern.optim",
    "grid_sample_bwd": "dnnkern.transform",
    "grid_sample_fwd": "dnnkern.transform",
    "group_norm_bwd": "dnnkern.norm",
    "group_norm_fwd": "dnnkern.norm",
    "grouped_matmul": "dnnkern.matmul",
    "grouped_matmul_bwd_weights": "dnnkern.matmul",
    "im2col": "dnnkern.transform",
    "instance_norm_bwd": "dnnkern.norm",
    "instance_norm_fwd": "dnnkern.norm",
    "lamb_step": "dnnkern.optim",
    "layer_norm_bwd": "dnnkern.norm",
    "layer_norm_fwd": "dnnkern.norm",
    "lion_step": "dnnkern.optim",
    "lrn_bwd": "dnnkern.norm",
    "lrn_fwd": "dnnkern.norm",
    "matmul": "dnnkern.matmul",
    "max_pool_bwd": "dnnkern.pool",
    "max_pool_fwd": "dnnkern.pool",
    "problem": "dnnkern.sketch",
    "random_fill": "dnnkern.dropout",
    "recording": "dnnkern.warming",
    "reduce": "dnnkern.reduce",
    "resample_bwd": "dnnkern.transform",
    "resample_fwd": "dnnkern.transform",
    "RnnSpec": "dnnkern.rnn",
    "rms_norm_bwd": "dnnkern.norm",
    "rms_norm_fwd": "dnnkern.norm",
    "rmsprop_step": "dnnkern.optim",
    "rnn_bwd_data": "dnnkern.rnn",
    "rnn_bwd_weights": "dnnkern.rnn",
    "rnn_fwd": "dnnkern.rnn",
    "mse_loss_bwd": "dnnkern.loss",
    "mse_loss_fwd": "dnnkern.loss",
    "nll_loss_bwd": "dnnkern.loss",
    "nll_loss_fwd": "dnnkern.loss",
    "move_rows": "dnnkern.transform",
    "pad": "dnnkern.transform",
    "pad_bwd": "dnnkern.transform",
    "scale_tensor": "dnnkern.act",
    "set_tensor": "dnnkern.transform",
    "rope_bwd": "dnnkern.attention",
    "rope_fwd": "dnnkern.attention",
    "sdpa_bwd": "dnnkern.attention",
    "sdpa_decode": "dnnkern.attention",
    "sdpa_dropout_mask": "dnnkern.attention",
    "sdpa_fwd": "dnnkern.attention",
    "sgd_step": "dnnkern.optim",
    "softmax_bwd": "dnnkern.softmax",
    "softmax_fwd": "dnnkern.softmax",
    "space_to_depth": "dnnkern.transform",
    "strided_slice": "dnnkern.transform",
    "transpose": "dnnkern.transform",
    "unary": "dnnkern.act",
    "view": "dnnkern.host.arrays",
    "warm": "dnnkern.warming",
}
_MODULES = ("device", "dispatch", "host")

__all__ = sorted(_NAMES) + list(_MODULES)


class _Package(types.ModuleType):
    """A family and its function may share a name (matmul): ``dnnkern.matmul`` is the function, whoever imported the family first."""

    def __setattr__(self, name, value):
        if name in _NAMES and isinstance(value, types.ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name):
    if name in _NAMES:
        from .device._collections import no_collections
        with no_collections(stays=True):  # a tenth of a first call
            value = getattr(importlib.import_module(_NAMES[name]), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return importlib.import_module(f"dnnkern.{name}")
    raise AttributeError(f"module 'dnnkern' has no attribute {name!r}")


def __dir__():
    return sorted(set(globals()) | set(__all__))

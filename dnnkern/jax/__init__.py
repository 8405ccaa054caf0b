"""Programs of JAX on this library's kernels: its functions inside of jit, grad and vmap, and JAX's own operations replaced by them.

``dnnkern.jax.conv_fwd`` and the other functions have the arguments and results of `dnnkern`'s. They run on XLA's own stream, without
waiting for it. `enable` makes programs as they are compile convolutions, matrix products, pooling and attention to this library's kernels;
`status` says how often they ran, and what JAX compiled itself and why.
"""
from ._functions import NAMES, function
from ._overrides import disable, enable, enabled
from ._status import Row, status

__all__ = ["Row", "disable", "enable", "enabled", "status", *NAMES]


def __getattr__(name):
    return function(name)


def __dir__():
    return sorted({*globals(), *__all__})

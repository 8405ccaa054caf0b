"""PyTorch programs on this library's kernels: overrides of PyTorch's operators, modules and optimisers.

`enable` registers functions of this library for aten operators, for tensors on a GPU, or without one for tensors on the CPU. Autograd,
autocast, vmap, torch.compile and modules stay PyTorch's and call them. What this library cannot compute goes back to PyTorch's kernel, and
`status` says how often and why. ``python -m dnnkern run script.py`` does it for a program as it is.

`convert` gives single layers to this library, or a model's with neighbours that run in one kernel; `nn`, `optim` and `functional` are
named as PyTorch's. `apply_to_transformers` gives it what models of Hugging Face's transformers are made of; their ``attn_implementation``
may be "dnnkern".
"""
import importlib

from ._overrides import disable, enable, enabled, is_overridden
from ._status import Row, record, status  # noqa: F401 (`record` for dnnkern.keras)
from ._transformers_register import follow

_LAZY = {"Conversion": "._convert", "convert": "._convert", "restore": "._convert", "explain": ".compiler._explain",
         "Applied": "._transformers", "apply_to_transformers": "._transformers", "restore_transformers": "._transformers"}
_MODULES = "functional", "nn", "optim"

__all__ = ["Row", *_LAZY, "disable", "enable", "enabled", "is_overridden", *_MODULES, "status"]


def __getattr__(name):
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


follow()

"""The operation graph, with the names of the Python package `cudnn`: ``import dnnkern.graph as cudnn`` runs programs written for it.

Public names are imported when they are first used; importing this package imports neither Numba nor a framework.
"""
import importlib

__version__ = "1.23.0"  # of the frontend whose names these are

_NAMES = {
    **dict.fromkeys(("attention_implementation", "behavior_note", "build_plan_policy", "convolution_mode", "data_type",
                     "diagonal_alignment", "heur_mode", "knob_type", "moe_grouped_matmul_mode", "norm_forward_phase", "numerical_note",
                     "padding_mode", "reduction_mode", "resampling_mode", "reshape_mode", "rng_distribution", "scalar_type",
                     "tensor_reordering"), "_enums"),
    "cudnnGraphNotSupportedError": "_errors",
    **dict.fromkeys(("create_handle", "destroy_handle", "get_stream", "set_stream"), "_handle"),
    "create_device_properties": "_device", "create_kernel_cache": "_kernels", "knob": "_engines", "pygraph": "_pygraph",
    "tensor": "_tensor",
    **dict.fromkeys(("Graph", "graph", "graph_cache", "jit"), "_wrapper"),
}

__all__ = [*_NAMES, "backend_version", "backend_version_string", "get_last_error_string"]

_VERSION = 92200  # of the cuDNN whose features programs may expect: 9.22.0


def backend_version() -> int:
    """The version of cuDNN whose features there are: 10000 times the major, 100 times the minor one, and the patch level."""
    return _VERSION


def backend_version_string() -> str:
    """The same as text."""
    return f"{_VERSION // 10000}.{_VERSION // 100 % 100}.{_VERSION % 100}"


def get_last_error_string() -> str:
    """Empty: whatever goes wrong is an exception, whose message has it all."""
    return ""


def __getattr__(name):
    if name in _NAMES:
        value = getattr(importlib.import_module(f"{__name__}.{_NAMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__})

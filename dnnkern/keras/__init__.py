"""Keras 3 models on this library's kernels, unchanged: layers that Keras composes of many operators call one of PyTorch's instead.

Importing this module replaces some functions of Keras, of which `replaced` has a list; they compute what Keras' own do. PyTorch's
operators, which they and Keras' other functions call, run on this library's kernels once `dnnkern.torch.enable` has been called.
``python -m dnnkern run`` does both for a program as it is. `disable` puts Keras' own functions back.
"""
try:
    import keras as _keras
except ImportError as error:
    raise ImportError(f"dnnkern.keras: Keras cannot be imported ({error}); expected Keras 3: pip install keras", name="keras") from error
if not hasattr(_keras, "version") or int(_keras.version().split(".")[0]) < 3:
    raise ImportError(f"dnnkern.keras: this is Keras {_keras.__version__}; expected Keras 3", name="keras")
if _keras.config.backend() != "torch":
    raise ImportError(f"dnnkern.keras: Keras runs on {_keras.config.backend()!r}; expected the environment variable KERAS_BACKEND=torch",
                      name="keras")

from . import _attention, _dropout, _linear, _norm, _rnn  # noqa: E402, F401 (the table)
from ._replace import Replaced, disable, enable, replaced  # noqa: E402

__all__ = ["Replaced", "disable", "enable", "replaced"]

enable()

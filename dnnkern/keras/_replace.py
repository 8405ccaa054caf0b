"""Functions of Keras that are replaced, and how they are put back."""
import functools
import importlib
import threading
from dataclasses import dataclass
from typing import Callable, NamedTuple

import torch
from keras.src.backend.torch.core import get_device

from ..device._fork import in_forked_child
from ..torch import record

NOT_MEANT = ""
"""A reason of `supports` that counts nowhere: Keras' own function is as good."""
_table = []
_installed = {}  # {Replacement: (owner, what it had of that name or None, what it has now)}


class Replaced(NamedTuple):
    """A function of Keras in the table.

    Attributes
    ----------
    name : str
        Its module and name in Keras.
    found : bool
        Whether this version of Keras has it; if not, the layer runs on what it does have.
    active : bool
        Whether it is replaced now.
    """
    name: str
    found: bool
    active: bool


@dataclass(frozen=True)
class Replacement:
    """A function for one of Keras'.

    Attributes
    ----------
    module, attribute : str
        Where Keras has it: "keras.src.layers", "Dense.call".
    function : callable
        Takes what Keras' function takes and returns what it returns.
    supports : callable
        Takes the same; the reason why `function` cannot compute it, or None. Keras' own runs then.
    """
    module: str
    attribute: str
    function: Callable
    supports: Callable

    @property
    def name(self):
        """Of rows of `dnnkern.torch.status`."""
        return f"keras {self.attribute}"


def replaces(attribute, supports, *, module="keras.src.layers"):
    """Decorator: the function takes the place of one of Keras."""
    def add(function):
        _table.append(Replacement(module, attribute, function, supports))
        return function
    return add


def _unlock():
    global _lock
    _lock = threading.RLock()


_unlock()
in_forked_child(_unlock)


def enable():
    """Replace functions of Keras, in all threads, until `disable`; importing ``dnnkern.keras`` does it. What is replaced already stays.

    Notes
    -----
    Layers and models that exist already, loaded ones too, run the replacements as well: these belong to classes and modules. A call that a
    replacement cannot compute, such as a recurrent layer with other activations, runs Keras' own function; `dnnkern.torch.status` counts it
    with the reason.

    Examples
    --------
    >>> import numpy as np, keras, dnnkern.keras, dnnkern.torch
    >>> model = keras.Sequential([keras.layers.LSTM(4), keras.layers.Dense(1)])
    >>> model.compile("adam", "mse")
    >>> with dnnkern.torch.enabled():
    ...     history = model.fit(np.ones((8, 5, 3)), np.ones((8, 1)), verbose=0)
    >>> [row.calls for row in dnnkern.torch.status(reset=True) if row.op == "lstm.input"]
    [1]
    """
    with _lock:
        for replacement in _table:
            if replacement not in _installed:
                _install(replacement)


def disable():
    """Put back Keras' own functions, as they were. One that another library has replaced since stays as that library left it."""
    with _lock:
        for replacement, (owner, before, now) in list(_installed.items()):
            name = replacement.attribute.rpartition(".")[2]
            if vars(owner).get(name) is now:
                if before is None:
                    delattr(owner, name)
                else:
                    setattr(owner, name, before)
            del _installed[replacement]


def replaced() -> list:
    """The table of replacements: `Replaced` for each function.

    Examples
    --------
    >>> import dnnkern.keras
    >>> [row.name for row in dnnkern.keras.replaced() if "LSTM" in row.name]
    ['keras.src.layers.LSTM.inner_loop']
    """
    with _lock:
        return [Replaced(f"{r.module}.{r.attribute}", _find(r) is not None, r in _installed) for r in _table]


def _find(replacement):
    """(the class or module, its own function or None, the function that it or a base has); None if there is no such function."""
    path, _, name = replacement.attribute.rpartition(".")
    try:
        owner = importlib.import_module(replacement.module)
    except ModuleNotFoundError:
        return None
    if path:
        owner = getattr(owner, path, None)
    original = getattr(owner, name, None)
    return None if original is None else (owner, vars(owner).get(name), original)


def _install(replacement):
    found = _find(replacement)
    if found is None:
        return
    owner, before, original = found
    now = _caller(replacement, original)
    setattr(owner, replacement.attribute.rpartition(".")[2], now)
    _installed[replacement] = owner, before, now


def _caller(replacement, original):
    """What Keras calls instead of its own function."""
    supports, function, counts = replacement.supports, replacement.function, record(replacement.name)

    @functools.wraps(original)
    def call(*args, **kwargs):
        if get_device() == "meta":  # Keras asks for shapes only
            return original(*args, **kwargs)
        why = supports(*args, **kwargs)
        if why is None:
            return function(*args, **kwargs)
        if why and not torch.compiler.is_compiling():
            counts.refuse(why, 0)
        return original(*args, **kwargs)
    return call

"""The table of overrides: small functions with the arguments of aten operators, found in the files of `ops`."""
import functools
import importlib
import pkgutil
from dataclasses import dataclass
from typing import Callable

from ..host.suggest import nearest

_found = []
HEAVY, ALL = "heavy", "all"


class Refused(Exception):
    """What an override cannot compute; the message is the reason. PyTorch's kernel runs instead."""


@dataclass(frozen=True)
class Override:
    """A function of this library for one operator of PyTorch.

    Attributes
    ----------
    name : str
        The aten operator with its overload: "mm", "mm.out".
    function : callable
        Takes what the operator takes, and returns what it returns; raises `Refused` before it has changed anything.
    group : str
        The file that has it: "product".
    heavy : bool
        Whether it is one of the set "heavy".
    composite : bool
        Whether the operator is replaced above autograd: the function then brings its own gradient.
    numbers : callable or None
        Of an operator whose first two arguments are tensors or numbers: (arguments of a call) -> whether it is PyTorch's, and not counted.
    state : callable, tuple of them, or None
        () -> what a call depends on besides its arguments, where calls like earlier ones may be shortened (`_repeated`): then nothing but
        the library's functions may read or write memory.
    """
    name: str
    function: Callable
    group: str
    heavy: bool
    composite: bool
    numbers: Callable | None
    state: Callable | tuple | None

    @property
    def base(self):
        """The operator without its overload."""
        return self.name.partition(".")[0]


def nothing():
    """The state of overrides that depend on their arguments alone."""


def aten(*names, heavy=True, composite=False, numbers=None, state=None):
    """Decorator: the function overrides these operators. Several have one function if they take the same arguments."""
    def add(function):
        group = function.__module__.rpartition(".")[2]
        _found.extend(Override(name, function, group, heavy, composite, numbers, state) for name in names)
        return function
    return add


@functools.cache
def table() -> dict:
    """{name: Override}, of every file in `ops`."""
    from . import ops
    for module in sorted(m.name for m in pkgutil.iter_modules(ops.__path__) if not m.name.startswith("_")):
        importlib.import_module(f"{ops.__name__}.{module}")
    found = {}
    for override in _found:
        if override.name in found:
            raise ImportError(f"{override.group} and {found[override.name].group} both override {override.name}")
        found[override.name] = override
    return found


def selected(ops, exclude=()) -> frozenset:
    """Names of the overrides that "heavy", "all", or names of operators or groups select; ValueError for an unknown one.

    >>> sorted(selected("mm,softmax", exclude=["mm.out"]))[-2:]
    ['_softmax_backward_data', 'mm']
    """
    return _named("ops", ops) - _named("exclude", exclude)


def _named(argument, words):
    if isinstance(words, str):
        words = [word.strip() for word in words.split(",")]
    try:
        words = list(words)
    except TypeError:
        raise TypeError(f"enable: {argument} is {words!r}; expected {HEAVY!r}, {ALL!r}, or names of operators or groups") from None
    found, known = set(), table().values()
    for word in words:
        chosen = {o.name for o in known if word == ALL or word == HEAVY and o.heavy or word in (o.name, o.base, o.group)}
        if not chosen:
            names = {HEAVY, ALL, *(o.group for o in known), *(o.base for o in known)}
            raise ValueError(f"enable: {argument} has {word!r}, which is no operator that this library overrides, and no group of them"
                             f"{nearest(word, names)}")
        found |= chosen
    return found

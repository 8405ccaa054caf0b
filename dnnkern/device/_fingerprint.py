"""What kernels and device functions are, as texts: names of cubins, and functions of one process that need compiling once."""
import hashlib
import re
import sys
import types
import weakref

import numpy as np

from ._typed import Light, is_typed

# Modules whose version is in the key, or that have nothing of a kernel's but functions which the compiler knows by their names.
_VERSIONED = {"numba", "numpy", "llvmlite", *sys.stdlib_module_names}


class Fingerprint:
    """Texts equal for two values only if kernels that capture them compile to the same code; `files` are those their functions are from.

    Parameters
    ----------
    bytecode : bool
        Whether functions count by their bytecode, which each version of Python makes anew, or by where in their file they are.
    """

    def __init__(self, bytecode=True):
        self.files, self._done, self._bytecode = set(), {}, bytecode

    def of(self, value) -> str:
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.ModuleType):
            return value.__name__
        if isinstance(value, Light) and "py_func" not in vars(value):
            return repr(value.fingerprint)
        if hasattr(value, "py_func"):
            return self._function(value.py_func) + repr(sorted(value.targetoptions.items(), key=str))
        if isinstance(value, (int, float, complex, str, bytes, type(None))):
            return repr(value)
        if isinstance(value, (tuple, list)):
            return self._sequence(value) + "(" + ",".join(self.of(v) for v in value) + ")"
        if isinstance(value, (np.ndarray, np.generic)):
            return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
        if hasattr(value, "_defn"):  # an intrinsic written by hand
            return self.of(value._defn)
        return self._other(value)

    def _sequence(self, value):
        return type(value).__name__

    def _other(self, value):
        """Of Numba's intrinsics and types, and classes: their name or value; memory addresses in a repr would defeat the cache."""
        name = getattr(value, "_name", None) or getattr(value, "__qualname__", None) or repr(value)
        return f"{type(value).__qualname__}:{re.sub(r'0x[0-9a-f]+', '', str(name))}{getattr(value, '_fields', '')}"

    def _function(self, function):
        if function not in self._done:
            self._done[function] = function.__qualname__  # where it calls itself
            self.files.add(function.__code__.co_filename)
            text = [self._written(function.__code__), self.of(function.__defaults__), *map(self._cell, function.__closure__ or ())]
            text += ["typed"] * is_typed(function)
            names = set(_names(function.__code__))
            text += [f"{name}={self._global(function.__globals__[name], names)}" for name in sorted(names & function.__globals__.keys())]
            self._done[function] = (f"{function.__module__}.{function.__qualname__}:"
                                    f"{hashlib.sha256(repr(text).encode()).hexdigest()}")
        return self._done[function]

    def _written(self, code):
        return _code(code) if self._bytecode else code.co_firstlineno

    def _cell(self, cell):
        try:
            value = cell.cell_contents
        except ValueError:  # never set, since only a branch that the configuration rules out reads it
            return "unset"
        return self.of(value)

    def _global(self, value, names, outer=()):
        """A global by its value, which may come from any file; of a module, all that the code may name of it."""
        if not isinstance(value, types.ModuleType) or value in outer or value.__name__.partition(".")[0] in _VERSIONED:
            return self.of(value)
        held = vars(value)
        named = (f"{name}={self._global(held[name], names, (*outer, value))}" for name in sorted(names & held.keys()))
        return f"{value.__name__}({','.join(named)})"


def _names(code):
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _code(code) -> str:
    constants = [_code(c) if isinstance(c, types.CodeType) else sorted(map(repr, c)) if isinstance(c, frozenset) else repr(c)
                 for c in code.co_consts]
    return hashlib.sha256(repr((code.co_code, code.co_names, code.co_varnames, constants)).encode()).hexdigest()[:16]


def fingerprint(value) -> str:
    """A text equal for two kernels only if they compile to the same code, given the same sources."""
    return Fingerprint().of(value)


class _Shared(Fingerprint):
    """The same within a process, where a class is told from others with its name and fields. `functions` are the light ones it has met."""

    def __init__(self):
        super().__init__()
        self.functions = []

    def of(self, value):
        text = super().of(value)
        if isinstance(value, Light) and "py_func" in vars(value):
            self.functions.append((text, value))
        return text

    def _function(self, function):
        return super()._function(function) + (str(id(function)) if function.__kwdefaults__ else "")

    def _sequence(self, value):
        return str(id(type(value)))

    def _other(self, value):
        return str(id(value))


_shared = weakref.WeakValueDictionary()


def share_functions(kernel):
    """Let each device function that the kernel calls stand for the first one of this process that is equal to it, which may be compiled
    already: makers are asked anew for each kernel.

    An id in a text is of what the first one holds. A function that is in use already is no first one: what it names may have changed since.
    """
    found = _Shared()
    found.of(kernel)
    for text, function in found.functions:
        first = _shared.get(text)
        if first is not None:
            function.stand_for(first)
        elif function is not kernel and not function.is_made:
            _shared[text] = function

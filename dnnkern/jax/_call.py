"""A call of a public function without its arrays: what is computed, as a value that JAX can compare, and as the text that XLA keeps.

The text says everything, so that programs that XLA has kept on disk run in another process.
"""
import ast
import functools
import importlib
import math
import time
from typing import NamedTuple

import numpy as np

from ..host.dtypes import numpy_dtype
from ..host.scalars import shown
from ..preference import VARIABLE, value_of, within
from ._status import record


class Call(NamedTuple):
    """A function of this library with all arguments that are no arrays.

    Attributes
    ----------
    function : str
    arrays : tuple of str
        Names of the arguments that are arrays, in the order of the operands.
    static : tuple of (str, value)
        The others, sorted by name.
    counted : str
        The name under which `status` counts it.
    prefer : str or None
        What `dispatch.prefer` said where the call was traced: XLA calls from threads of its own.
    """
    function: str
    arrays: tuple
    static: tuple
    counted: str
    prefer: str | None

    def text(self):
        """The call as `parsed` reads it."""
        return _literal(tuple(self))

    def run(self, operands, results, stream):
        """Compute it into `results`."""
        start = time.perf_counter_ns()
        given = {**dict(zip(self.arrays, operands)), **dict(self.static), "out": results[0] if len(results) == 1 else tuple(results)}
        if self.prefer:
            with within(VARIABLE, self.prefer):
                public(self.function)(**given, stream=stream)
        else:
            public(self.function)(**given, stream=stream)
        record(self.counted).count(time.perf_counter_ns() - start)


def make_call(function, arrays, static, counted=None):
    """A `Call`; TypeError where an argument can be no part of it."""
    static = tuple(sorted((name, _plain(function, name, value)) for name, value in static.items()))
    return Call(function, tuple(arrays), static, counted or function, value_of(VARIABLE))


@functools.lru_cache(maxsize=4096)
def parsed(text) -> Call:
    """The call of a text, of bytes."""
    return Call(*ast.literal_eval(text.decode()))


@functools.lru_cache(maxsize=4096)
def results_of(call, described):
    """((shape, NumPy dtype), ...) of the results, by this library's own checks, for operands ``((shape, dtype name), ...)``.

    ValueError or TypeError of the function, as of a call with arrays.
    """
    from .. import problem
    found = problem(call.function, **dict(zip(call.arrays, described)), **dict(call.static))
    return tuple((tuple(t.shape), numpy_dtype(t.dtype)) for t in found.outputs)


@functools.cache
def public(name):
    """The public function of this name."""
    from .. import _NAMES
    return getattr(importlib.import_module(_NAMES[name]), name)


def _plain(function, name, value):
    """The value as one of Python's literals."""
    if isinstance(value, (tuple, list)):
        return tuple(_plain(function, name, v) for v in value)
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    try:
        return np.dtype(value).name
    except TypeError:
        raise TypeError(f"{function}: {name} is {shown(value)}; expected an array, or numbers, names and tuples of them") from None


def _literal(value):
    if isinstance(value, tuple):
        return f"({''.join(_literal(v) + ',' for v in value)})"
    if isinstance(value, float) and math.isinf(value):
        return "1e999" if value > 0 else "-1e999"
    return repr(value)

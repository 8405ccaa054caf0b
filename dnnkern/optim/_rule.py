"""Update rules: what one step does to one element, and what every step function checks."""
import functools
import importlib
from dataclasses import dataclass
from typing import Callable

import numpy as np

from ..device import device_function, f32
from ..device.fastmath import rcp, sqrt, sqrt_fast
from ..host.scalars import flag, integer

NUMBERS = 8
"""The most numbers of a rule; kernels have as many parameters."""
STATES = 3


@dataclass(frozen=True)
class Rule:
    """How an optimiser changes an element.

    Attributes
    ----------
    op : str
        The step function's name.
    states : tuple of str
        Names of its lists of states, in the order in which the step function takes them.
    numbers : tuple of str
        The run-time numbers, as messages name them.
    named : type
        The NamedTuple of these numbers, in this order, as the device functions have them.
    make : callable(given, flags, T) -> device function ``update(p, g, a, b, c, n) -> (p, a, b, c)``, or several (LAMB)
        `given` are the names of the given states, `flags` words that select another kernel, `T` casts to the type of everything:
        parameter, gradient, the states in their order, and the `named` numbers. A missing state is 0 and ignored.
    needed : int
        How many of the states, from the first on, cannot be missing.
    prepare : callable(T) -> device function ``prepare(n, step) -> n``, optional
        Computes the numbers from those given if the number of the step is on the device (the flag "counted").
    """
    op: str
    states: tuple
    numbers: tuple
    named: type
    make: Callable
    needed: int = 0
    prepare: Callable | None = None


_MODULES = {"sgd_step": "_sgd", "adam_step": "_adam", "adamw_step": "_adam", "rmsprop_step": "_rmsprop", "adagrad_step": "_adagrad",
            "lion_step": "_lion", "lamb_step": "_lamb"}
STEPS = tuple(_MODULES)
"""All step functions."""
OPS = STEPS[:-1]
"""Those that change each element by itself; LAMB needs norms."""


def rule_of(op) -> Rule:
    """The rule of a step function; it is in the module that has the function."""
    return importlib.import_module(f"dnnkern.optim.{_MODULES[op]}").RULES[op]


@functools.cache
def make_arithmetic(T):
    """``inverse(x)`` and ``root(x)`` in a type: one instruction each in float32, with an error of an ulp or two."""
    if T is f32:
        return rcp, sqrt_fast

    @device_function
    def inverse(x):
        return T(1) / x
    return inverse, sqrt


def upwards(function, maximize):
    """The flags of `maximize`."""
    return ("maximize",) if flag(function, "maximize", maximize) else ()


@device_function
def unprepared(n, step):
    """The numbers as they are."""
    return n


def is_array(step):
    """Whether the number of a step is on the device."""
    if type(step) is int:
        return False
    if isinstance(step, np.generic) or isinstance(step, np.ndarray) and step.shape == () and step.dtype.kind in "iu":
        return False
    return hasattr(step, "shape") and hasattr(step, "dtype") or hasattr(step, "__cuda_array_interface__")


def step_number(function, step):
    """The number of a step, from 1 on."""
    try:
        return integer(function, "step", step, 1)
    except TypeError as error:
        raise TypeError(f"{error}, or an array of one float32 number") from None

"""The arithmetic of both softmaxes: what all algorithms compute of an element, in float32 or float64."""
import functools
import math
from typing import Callable, NamedTuple

from ..device import device_function, f32, f64
from ..device.fastmath import exp, exp_fast, log, rcp


class Arithmetic(NamedTuple):
    """Device functions for one type.

    power(d)
        exp(d). In float32 two instructions: a difference to the maximum loses nothing in them that its rounding has not lost.
    shift(m)
        m, but 0 for -inf: what to subtract before exponentials where nothing is there yet to be summed.
    finish(total)
        Of the sum, what `result` takes: its reciprocal, or its logarithm.
    result(x, m, z)
        The element of softmax or of its logarithm.
    product(dy, y)
        What is summed for the gradient.
    gradient(dy, y, total)
    """
    power: Callable
    shift: Callable
    finish: Callable
    result: Callable
    product: Callable
    gradient: Callable


@functools.cache
def arithmetic(compute, logarithm) -> Arithmetic:
    """The arithmetic in "float32" or "float64", of softmax or of its logarithm."""
    Real = f64 if compute == "float64" else f32
    power, nothing = exp if compute == "float64" else exp_fast, -math.inf

    @device_function
    def shift(m):
        return Real(0) if m == Real(nothing) else m

    if logarithm:
        @device_function
        def finish(total):
            return log(total)

        @device_function
        def result(x, m, z):
            return Real(Real(x - m) - z)

        @device_function
        def product(dy, y):
            return dy

        @device_function
        def gradient(dy, y, total):
            return Real(dy - power(y) * total)
        return Arithmetic(power, shift, finish, result, product, gradient)

    if compute == "float64":
        @device_function
        def finish(total):
            return Real(1) / total
    else:
        @device_function
        def finish(total):
            return rcp(total)

    @device_function
    def result(x, m, z):
        return Real(power(Real(x - m)) * z)

    @device_function
    def product(dy, y):
        return Real(dy * y)

    @device_function
    def gradient(dy, y, total):
        return Real(y * Real(dy - total))
    return Arithmetic(power, shift, finish, result, product, gradient)

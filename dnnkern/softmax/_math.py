"""The arithmetic of both softmaxes: what all algorithms compute of an element, in float32 or float64."""
import functools
import math
from typing import Callable, NamedTuple

from ..device import device_function, f32, f64
from ..device.fastmath import exp, exp_fast, log, rcp


class Arithmetic(NamedTuple):
    """Device functions for one type.

    exp(d)
        In float32 two instructions: a difference to the maximum loses nothing in them that its rounding has not lost.
    finite_max(row_max)
        row_max, but 0 for -inf: what to subtract before exponentials of a part of a row that may be empty.
    normaliser(row_sum)
        What `result` takes of the sum: its reciprocal, or its logarithm.
    result(x, row_max, norm)
        The element of softmax or of its logarithm.
    product(dy, y)
        What is summed for the gradient.
    gradient(dy, y, row_sum)
    """
    exp: Callable
    finite_max: Callable
    normaliser: Callable
    result: Callable
    product: Callable
    gradient: Callable


@functools.cache
def arithmetic(compute, logarithm) -> Arithmetic:
    """The arithmetic in "float32" or "float64", of softmax or of its logarithm."""
    Real, instruction = (f64, exp) if compute == "float64" else (f32, exp_fast)
    NOTHING = -math.inf

    @device_function
    def power(d):
        return instruction(d)

    @device_function
    def finite_max(row_max):
        return Real(0) if row_max == Real(NOTHING) else row_max

    if logarithm:
        @device_function
        def log_normaliser(row_sum):
            return log(row_sum)

        @device_function
        def log_result(x, row_max, norm):
            return x - row_max - norm

        @device_function
        def log_product(dy, y):
            return dy

        @device_function
        def log_gradient(dy, y, row_sum):
            return dy - power(y) * row_sum
        return Arithmetic(power, finite_max, log_normaliser, log_result, log_product, log_gradient)

    if compute == "float64":
        @device_function
        def normaliser(row_sum):
            return 1 / row_sum
    else:
        @device_function
        def normaliser(row_sum):
            return rcp(row_sum)

    @device_function
    def result(x, row_max, norm):
        return power(x - row_max) * norm

    @device_function
    def product(dy, y):
        return dy * y

    @device_function
    def gradient(dy, y, row_sum):
        return y * (dy - row_sum)
    return Arithmetic(power, finite_max, normaliser, result, product, gradient)

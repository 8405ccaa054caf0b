"""What 8-bit attention does to its probabilities P and to its result besides (cuDNN's `sdpa_fp8`): factors, and the largest magnitudes, of
which a caller makes the factors of a later call.

    O = scale_s * descale_s * (P @ v)        o = scale_o * O, saturated where it is of 8 bits
    amax_s = max P, after dropout            amax_o = max abs(O)

P is rounded relative to its row's largest, not to P * scale_s: then no `scale_s` saturates, nor loses what is small. So the factors of P
are one factor of O. Rows, and keys, that do not exist have no part in the maxima.

Kernels raise the two numbers, which an earlier launch has set to zero, by atomic maxima: in any order the result is the same.
"""
import functools
from collections import namedtuple
from typing import Callable, NamedTuple

from ..device import cuda, device_function, f32, jit, u32
from ..device.atomic import raise_u32
from ..device.fastmath import fabs, maximum
from ..device.numeric import float_bits
from ..device.warp import make_reduce
from ..host.launch import Argument, Launch
from ._checks import AMAX, FACTORS

NAMES = (*FACTORS, *AMAX)


Quantization = namedtuple("Quantization", NAMES)
Quantization.__annotations__ = {**dict.fromkeys(FACTORS, "float32*"), **dict.fromkeys(AMAX, "uint32*")}
Quantization.__doc__ = "Kernel parameter: where the factors and the maxima are; what is not there points to o, and is not read."

Quantized = namedtuple("Quantized", NAMES, defaults=(False,) * len(NAMES))
Quantized.__doc__ = "Which of them there are."


def quantized(problem):
    """Of a problem."""
    return Quantized(*(getattr(problem, name) is not None for name in NAMES))


def quantization_argument(problem):
    """Kernel parameter `quantization`."""
    types, there = Quantization.__annotations__, quantized(problem)
    return Argument(Quantization, Quantization(*(Argument(types[name], name if of else "o") for name, of in zip(NAMES, there))))


class Factors(NamedTuple):
    """Device functions.

    of_result(quantization)
        What P @ v is multiplied by to be O.
    of_output(quantization)
        What O is multiplied by.
    raise_to(amax, value)
        An element of memory becomes the larger of it and the magnitude of a number.
    raise_by_warp(amax, value)
        The same of the numbers of a warp, all of whose lanes call it.
    reset(quantization)
        The maxima become zero.
    """
    of_result: Callable
    of_output: Callable
    raise_to: Callable
    raise_by_warp: Callable
    reset: Callable


@functools.cache
def make_factors(there) -> Factors:
    """The functions for the operands and results of a problem (`Quantized`)."""
    SCALE_S, DESCALE_S, SCALE_O, AMAX_S, AMAX_O = there
    warp_maximum = make_reduce(maximum)

    @device_function
    def of_result(quantization):
        factor = f32(1)
        if SCALE_S:
            factor = factor * quantization.scale_s[0]
        if DESCALE_S:
            factor = factor * quantization.descale_s[0]
        return factor

    @device_function
    def of_output(quantization):
        return quantization.scale_o[0] if SCALE_O else f32(1)

    @device_function
    def raise_to(amax, value):
        raise_u32(amax, float_bits(fabs(f32(value))))

    @device_function
    def raise_by_warp(amax, value):
        largest = warp_maximum(fabs(value))
        if cuda.threadIdx.x & 31 == 0:
            raise_to(amax, largest)

    @device_function
    def reset(quantization):
        if AMAX_S:
            quantization.amax_s[0] = u32(0)
        if AMAX_O:
            quantization.amax_o[0] = u32(0)
    return Factors(of_result, of_output, raise_to, raise_by_warp, reset)


@functools.cache
def reset_kernel(there):
    """One thread."""
    reset = make_factors(there).reset

    @jit(launch_bounds=32)
    def sdpa_reset_maxima(quantization):
        if cuda.threadIdx.x == 0:
            reset(quantization)
    return sdpa_reset_maxima


def reset_launches(problem):
    """The launch that sets the maxima to zero, if there are some."""
    there = quantized(problem)
    if not (there.amax_s or there.amax_o):
        return ()
    return (Launch(reset_kernel(there), (1, 1, 1), (32, 1, 1), (quantization_argument(problem),)),)

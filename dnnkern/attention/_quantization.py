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

from ..device import cuda, jit
from ..host.launch import Argument, Launch
from ._checks import AMAX, FACTORS
from ._fragments import make_factors

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

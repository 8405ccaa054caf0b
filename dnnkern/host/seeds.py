"""Seeds and offsets of random numbers: arguments of a call, or arrays of one int64 on the device, which kernels read.

A CUDA graph keeps the numbers that it was captured with; what it reads from memory may change from one replay to the next.
"""
import numpy as np

from ..device.philox import STREAMS
from .dtypes import compute_dtype
from .launch import Argument
from .scalars import word

ARRAYS = ("seed_array", "offset_array")
"""Names, among an operation's operands, of what its scalars `seed` and `offset` are read from."""


def in_memory(value):
    """Whether a seed or an offset is an array, which the kernel reads, and not a number."""
    return not isinstance(value, np.generic) and any(
        hasattr(value, name) for name in ("shape", "__cuda_array_interface__", "__dlpack__"))


def of_stream(seed, offset):
    """What `dnnkern.device.philox.stream_seed` makes of two unsigned numbers; `split` has it too, which no call of a function slows."""
    return (seed + offset * STREAMS) % 2 ** 64


def split(function, seed, offset, stream=False):
    """((seed array, offset array), or () where there is neither; (seed, offset) as unsigned numbers, 0 for what is read).

    `stream`: of numbers the first is what `dnnkern.device.philox.stream_seed` makes of both, and the second 0.
    """
    of_seed, of_offset = type(seed) is not int and in_memory(seed), type(offset) is not int and in_memory(offset)
    first, second = 0 if of_seed else word(function, "seed", seed), 0 if of_offset else word(function, "offset", offset)
    if of_seed or of_offset:
        return (seed if of_seed else None, offset if of_offset else None), (first, second)
    return (), ((first + second * STREAMS) % 2 ** 64, 0) if stream else (first, second)


def check(op, *arrays):
    """What an array with a seed, and one with an offset, must be."""
    for name, t in zip(("seed", "offset"), arrays):
        if t is not None and t.dtype != "int64":
            raise TypeError(f"{op}: {name} is an array of {t.dtype}; expected an integer, or an array of one int64")
        if t is not None and t.size != 1:
            raise ValueError(f"{op}: {name} has shape {t.shape}; expected an integer, or an array of one int64")


def in_words(problem):
    """What is read, for people."""
    return "".join(f" {name} in memory" for name, at_address in zip(("seed", "offset"), reads(problem)) if at_address)


def reads(problem):
    """Whether the seed and the offset of a problem are read from memory."""
    return tuple(getattr(problem, name) is not None for name in ARRAYS)


def arguments(problem):
    """Kernel parameters `seed` and `offset`: numbers, or where they are."""
    return tuple(Argument("int64*", array) if at_address else Argument("uint64", name)
                 for name, array, at_address in zip(("seed", "offset"), ARRAYS, reads(problem)))


class Drawn:
    """What problems share whose one result, y, is made of random words: numbers are made in float32."""

    @property
    def size(self):
        return self.y.size

    @property
    def dtype(self):
        return self.y.dtype

    @property
    def compute(self):
        """The widest type in kernels."""
        return compute_dtype(self.dtype)

    @property
    def outputs(self):
        return (self.y,)

    @property
    def is_empty(self):
        return self.size == 0

    @property
    def bytes(self):
        """Bytes that must move: each element written."""
        return self.y.nbytes

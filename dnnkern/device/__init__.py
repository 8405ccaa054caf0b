"""What kernels are made of: CUDA in Numba, one small function an instruction, each with a twin for the simulator.

``DEVICE`` is what kernels run on, "cuda", "cpu" or "simulator" (see `_mode`); ``SIMULATED`` says that it is the simulator, and
``HOST_MEMORY`` that it is no GPU, so that arrays are NumPy's. ``cuda`` is `numba.cuda`, or what stands for it in the simulator; Numba is
imported when something compiles (`_light`), or for what else is asked of it. On the processor its host functions need no GPU.
A kernel is written once::

    from dnnkern.device import cuda, jit

    @jit(launch_bounds=256)
    def scale(x, y, n, alpha):
        i = cuda.blockIdx.x * 256 + cuda.threadIdx.x
        if i < n:
            y[i] = alpha * x[i]

Kernel parameters are flat pointers, 32-bit integers and floats. ``i32 ... f64`` are casts: numba's types where kernels are
compiled, plain functions in the simulator. In functions of `jit` what is 32 bits wide stays so; in those of `cuda.jit` every literal
and every product of 32-bit integers widens unless it is cast back.
"""
import functools
import sys

from ._mode import DEVICE, HOST_MEMORY, SIMULATED
from ._typed import mark

if SIMULATED:
    from .sim import cuda, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, wrapping
    from .sim.integers import twin_of
else:
    from ._intrinsics import wrapping
    from ._light import Cast, cuda, numba_cuda
    i8, u8, i16, u16, i32, u32, i64, u64, f32, f64 = map(
        Cast, ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64"))
    if DEVICE == "cpu" and "numba.cuda" in sys.modules:
        numba_cuda()  # for programs that name Numba's module

__all__ = ["DEVICE", "HOST_MEMORY", "SIMULATED", "cuda", "device_function", "f32", "f64", "i8", "i16", "i32", "i64", "instruction", "jit",
           "u8", "u16", "u32", "u64", "wrapping"]


def jit(function=None, **options):
    """Decorator for a kernel: `cuda.jit` with all its options, and types of numbers as in the source.

    - int32 with int32 is int32, uint32 with uint32 is uint32, anything with int64 is int64; 8- and 16-bit integers count as int32.
    - int32 with uint32 is an error with file and line, in operations, comparisons and where one variable is assigned both. Cast one.
    - An integer literal, or an integer of the closure, takes the type of the other operand, which it must fit; int32 by itself.
    - A float literal is a float32 beside a float32, else a float64.
    - Integers meet floats only as literals; int / int is an error, so is a shift by the width or more.
    - Overflow of uint32 wraps; that of int32 is undefined, as in C, but in an expression that is the argument of `wrapping`.

    So are ``+ - * / // % << >> & | ^ ~``, comparisons, ``min max abs range``, and what branches and loops join; the rest is Numba's.
    Device functions that a kernel calls have the types of their own decorator.

    >>> @jit(launch_bounds=256)
    ... def scale(x, n, factor):
    ...     i = cuda.blockIdx.x * 256 + cuda.threadIdx.x
    ...     if i < n:
    ...         x[i] *= factor
    """
    if function is None:
        return functools.partial(jit, **options)
    return cuda.jit(mark(function), **options)


def device_function(function):
    """Decorator for a function that kernels call: always inlined, its numbers typed as in `jit`."""
    return cuda.jit(mark(function), device=True, forceinline=True)


def instruction(text, results, operands, *, twin, memory=False, pure=False, convergent=False):
    """A device function that is one PTX text on the hardware and `twin` in the simulator.

    Parameters
    ----------
    text : str
        Inline PTX; ``$0 ...`` number the results, then the operands.
    results, operands : tuple of str
        Scalar type names ("float32", "uint32", "uint64", ...). One result is returned plain, several as a tuple. A pointer passed for a
        "uint64" operand gives its generic address.
    twin : callable
        Same arguments, same result, in plain Python and NumPy.
    memory : bool
        The instruction reads or writes memory the compiler does not see.
    pure : bool
        The result depends on the operands alone: the compiler may merge, move and drop it.
    convergent : bool
        All lanes of a warp execute it together: the compiler may not put it under another condition.
    """
    if SIMULATED:
        return twin if convergent else twin_of(twin, tuple(results), tuple(operands))
    from ._intrinsics import instruction as light
    return light(text, tuple(results), tuple(operands), memory=memory, pure=pure, convergent=convergent)

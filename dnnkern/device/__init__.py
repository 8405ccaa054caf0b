"""What kernels are made of: CUDA in Numba, one small function an instruction, each with a twin for the simulator.

``DEVICE`` is what kernels run on, "cuda", "cpu" or "simulator" (see `_mode`); ``SIMULATED`` says that it is the simulator, and
``HOST_MEMORY`` that it is no GPU, so that arrays are NumPy's. ``cuda`` is `numba.cuda`, whose host functions need no GPU on the processor,
or what stands for it in the simulator. A kernel is written once::

    from dnnkern.device import cuda, f32, i32

    @cuda.jit(launch_bounds=256)
    def scale(x, y, n, alpha):
        i = i32(cuda.blockIdx.x * 256 + cuda.threadIdx.x)
        if i < n:
            y[i] = alpha * x[i]

Kernel parameters are flat pointers, 32-bit integers and floats. ``i32 ... f64`` are casts: numba's types where kernels are
compiled, and there every literal and every product of 32-bit integers widens unless it is cast back; plain functions in the simulator.
"""
from ._mode import DEVICE, HOST_MEMORY, SIMULATED

if SIMULATED:
    from .sim import cuda, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
else:
    from ._numba import SCALARS as _S
    from ._numba import cuda
    i8, u8, i16, u16, i32, u32, i64, u64, f32, f64 = (
        _S[n] for n in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64"))
    if DEVICE == "cpu":
        from .cpu import programs
        programs.install()

__all__ = ["DEVICE", "HOST_MEMORY", "SIMULATED", "cuda", "device_function", "f32", "f64", "i8", "i16", "i32", "i64", "instruction", "u8",
           "u16", "u32", "u64"]

device_function = cuda.jit(device=True, forceinline=True)
"""Decorator for a function that kernels call: always inlined, no call remains."""


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
        return twin
    from ._numba import instruction as emit
    return emit(text, results, operands, memory=memory, pure=pure, convergent=convergent)

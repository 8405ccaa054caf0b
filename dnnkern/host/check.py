"""DNNKERN_CHECK: checks of results, of index arrays before they are used, and of kernels' memory accesses.

``DNNKERN_CHECK=nan`` reports outputs that hold NaN or infinity, printed with the command that runs the same problem again; ``values``
arrays of indices out of range, before anything is launched; ``unwritten`` results that depend on memory that nothing has written (see
`unwritten`); ``bounds`` kernels on the processor that access what their launch was not given (`cpu` compiles them so); ``integers`` int32
that overflow in the simulator (its `config` looks for the word). A list of them, separated by commas, is possible. All wait for the device
at every call.
"""
import sys

import numpy as np

from ..device import HOST_MEMORY, SIMULATED
from . import driver
from .arrays import kind_of
from .dtypes import STORAGE, dtype_name, numpy_dtype
from .repeat import CHECKS, command

if "bounds" in CHECKS and not HOST_MEMORY:
    raise ValueError("DNNKERN_CHECK=bounds: accesses are checked on the processor (always in the simulator); expected DNNKERN_DEVICE=cpu")
if "integers" in CHECKS and not SIMULATED:
    raise ValueError("DNNKERN_CHECK=integers: integers are checked in the simulator; expected DNNKERN_DEVICE=simulator")


class CheckFailed(ArithmeticError):
    """A check of DNNKERN_CHECK failed."""


def to_host(a) -> np.ndarray:
    """A device array's values as a packed NumPy array of its own dtype."""
    kind = kind_of(a)
    tensor = kind.tensor(a)
    stored = kind.host_view(a) if HOST_MEMORY else download(kind.describe(a)[1], tensor)[1]
    return np.array(stored).view(numpy_dtype(tensor.dtype))


def download(address, tensor):
    """The bytes from an array's first to its last element, and the array as a view of them, in its storage dtype."""
    low, high = tensor.extent
    raw = np.empty(high - low, np.uint8)
    if raw.size:
        driver.cuMemcpyDtoH(raw.ctypes.data, address + low, raw.size)
    strides = tuple(s * tensor.itemsize for s in tensor.strides)
    return raw, np.ndarray(tensor.shape, np.dtype(STORAGE[tensor.dtype]), raw, -low, strides)


def wait(stream):
    """Synchronise the stream."""
    if not HOST_MEMORY:
        driver.cuStreamSynchronize(stream)


def check_indices(operation, bound, operands, stream):
    """Let the operation check the values of its operands, after synchronising the stream."""
    wait(stream)
    operation.check_values(bound.problem, dict(zip(operation.operands, operands)))


def check_outputs(bound, results, stream):
    """Raise `CheckFailed`, after printing a command that repeats the call, if a float output holds NaN or infinity."""
    wait(stream)
    for k, result in enumerate(results):
        if "float" not in dtype_name(kind_of(result).tensor(result).dtype):
            continue
        values = to_host(result).astype(np.float64)
        bad = int((~np.isfinite(values)).sum())
        if bad:
            first = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
            command = repro(bound.problem, bound.algorithm)
            print(f"dnnkern: {bound.problem}: {bad} of {values.size} values of output {k} are not finite, the first at {first}: "
                  f"{values[first]}\n  {command}", file=sys.stderr)
            raise CheckFailed(f"{bound.problem}: output {k} holds {bad} values that are not finite; {command}")


def repro(problem, algorithm) -> str:
    """The command that repeats a problem on random inputs."""
    return f"{command('check', problem)} --algo {algorithm.name}"

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


def check_outputs(bound, operands, results, stream):
    """Raise `CheckFailed` if a float output holds NaN or infinity, after printing which operands do, and a command for this one call."""
    wait(stream)
    for k, result in enumerate(results):
        bad, values = _not_finite(result)
        if not bad.any():
            continue
        first = tuple(int(i) for i in np.argwhere(bad)[0])
        written = {_address(x) for x in results}
        causes = {name: int(_not_finite(x)[0].sum()) for name, x in zip(bound.names, operands)
                  if x is not None and _address(x) not in written}
        causes = {name: count for name, count in causes.items() if count}
        of = ", ".join(f"{name} has {count}" for name, count in causes.items()) or "none has"
        command = repro(bound.problem, bound.algorithm)
        print(f"dnnkern: {bound.problem}: {bad.sum()} of {bad.size} values of output {k} are not finite, the first at {first}: "
              f"{values[first]}\n  of its operands {of} such values\n  the same call on random operands: {command}", file=sys.stderr)
        as_does = f", as does {' and '.join(causes)}" if causes else ""
        raise CheckFailed(f"{bound.problem}: output {k} holds {bad.sum()} values that are not finite{as_does}; {command}")


def _not_finite(a):
    """(where an array's elements are NaN or infinite, its values in float64); of integers nowhere, and None."""
    if "float" not in dtype_name(kind_of(a).tensor(a).dtype):
        return np.zeros((), bool), None
    values = to_host(a).astype(np.float64)
    return ~np.isfinite(values), values


def _address(a):
    return kind_of(a).describe(a)[1]


def repro(problem, algorithm) -> str:
    """The command that repeats a problem on random inputs."""
    return f"{command('check', problem)} --algo {algorithm.name}"

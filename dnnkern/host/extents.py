"""The memory of a launch's arguments on the processor: which one an address belongs to, for messages and DNNKERN_CHECK=bounds."""
from dataclasses import dataclass

import numpy as np


_NEAR = 1 << 30  # bytes: addresses farther off are unrelated to an array


@dataclass(frozen=True, order=True)
class Extent:
    """Addresses from `low` to before `high`, and their owner: "argument 'x'"."""
    low: int
    high: int
    name: str


def extent(array, name) -> Extent:
    """The extent of a NumPy array with arbitrary strides, from its first byte to its last."""
    facts = array.__array_interface__
    low = high = facts["data"][0]
    size, strides = int(facts["typestr"][2:]), facts.get("strides")
    if 0 in facts["shape"]:
        return Extent(low, low, name)
    if strides is None:
        for n in facts["shape"]:
            size *= n
    else:
        for n, stride in zip(facts["shape"], strides):
            low, high = low + min(0, (n - 1) * stride), high + max(0, (n - 1) * stride)
    return Extent(low, high + size, name)


def packed(extents):
    """Pairs of first and past-the-end addresses, for the check in a kernel."""
    return np.array([(e.low, e.high) for e in extents], np.uint64)


def argument(kernel, k) -> str:
    """Name of a kernel's parameter for a message."""
    return f"argument '{kernel.py_func.__code__.co_varnames[k]}'"


def describe(address, extents) -> str:
    """Describe an address by the extent that contains it, or the nearest one.

    >>> describe(1030, [Extent(1000, 1024, "argument 'x'"), Extent(4096, 8192, "argument 'y'")])
    "0x406, 6 bytes past the end of argument 'x' (24 bytes)"
    """
    def distance(e):
        return max(e.low - address, address - e.high + 1, 0)
    nearest = min(extents, key=distance, default=None)
    if nearest is None:
        return f"{address:#x}"
    if distance(nearest) > _NEAR:
        return f"{address:#x}, near none of its arguments"
    size = f"{nearest.name} ({nearest.high - nearest.low} bytes)"
    if address < nearest.low:
        return f"{address:#x}, {nearest.low - address} bytes before {size}"
    if address >= nearest.high:
        return f"{address:#x}, {address - nearest.high or 'no'} bytes past the end of {size}"
    return f"{address:#x}, byte {address - nearest.low} of {size}"

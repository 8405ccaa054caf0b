"""Offsets of an element in five arrays, from its flat index: what the kernels of this family share.

The arrays are three inputs and two outputs. Those that an operation lacks have strides 0, and what is computed for them is dropped.
"""
import functools
from typing import NamedTuple

from ..device import device_function, i64
from ..device.index import divide_remainder, divisor
from ..host.launch import Argument

INPUTS, ARRAYS = 3, 5


class Arrays(NamedTuple):
    """A number for each of the five arrays."""
    a: i64
    b: i64
    c: i64
    y: i64
    z: i64


@device_function
def _divide64(index, sizes, d):
    rest = index // sizes[d]
    return rest, index - rest * sizes[d]


@device_function
def _divide32(index, sizes, d):
    return divide_remainder(index, (sizes[3 * d], sizes[3 * d + 1], sizes[3 * d + 2]))


@functools.cache
def make_offsets(dims, wide, any_size=False):
    """``offsets(index, sizes, strides)``: the five element offsets of index `index` over `dims` dimensions, the last one fastest; int64
    if `wide`, else int32. The index is an int32; with `any_size` an int64, and each coordinate costs a division. `sizes` and `strides`
    are `offset_arguments`.
    """
    A, B, C, Y, Z = range(ARRAYS)

    @device_function
    def offsets(index, sizes, strides):
        return index * strides[A], index * strides[B], index * strides[C], index * strides[Y], index * strides[Z]
    for d in range(1, dims):
        offsets = _with_dimension(offsets, d, _divide64 if any_size else _divide32)
    return offsets


def _with_dimension(outer, d, divide):
    A, B, C, Y, Z = range(ARRAYS * d, ARRAYS * d + ARRAYS)

    @device_function
    def offsets(index, sizes, strides):
        rest, i = divide(index, sizes, d)
        a, b, c, y, z = outer(rest, sizes, strides)
        return a + i * strides[A], b + i * strides[B], c + i * strides[C], y + i * strides[Y], z + i * strides[Z]
    return offsets


def five(values, inputs):
    """Values of the inputs and the outputs in the order of the five arrays, 0 for those that are missing."""
    values = tuple(values)
    outputs = values[inputs:]
    return values[:inputs] + (0,) * (INPUTS - inputs) + outputs + (0,) * (ARRAYS - INPUTS - len(outputs))


def arrays_argument(values, inputs):
    """Kernel parameter: a number for each given array."""
    return Argument(Arrays, Arrays(*five(values, inputs)))


def offset_arguments(dims, inputs, wide, any_size=False):
    """Kernel parameters `sizes` and `strides` of `make_offsets`."""
    sizes = [d.size for d in dims] if any_size else [v for d in dims for v in divisor(d.size)]
    strides = [s for d in dims for s in five(d.strides, inputs)]
    return (Argument(f"{'int64' if any_size else 'uint32'}x{len(sizes)}", tuple(sizes)),
            Argument(f"int{64 if wide else 32}x{len(strides)}", tuple(strides)))

"""Where an element lies in five arrays, from its flat index: what the kernels of this family share.

The arrays are three inputs and two outputs; those that an operation lacks have the strides 0, and what is computed for them is dropped.
"""
import functools

from ..device import device_function, i32, i64
from ..device.index import divide_remainder, divisor
from ..host.launch import Argument

INPUTS, ARRAYS = 3, 5


@device_function
def _divide64(index, sizes, d):
    rest = index // sizes[d]
    return rest, index - rest * sizes[d]


@device_function
def _divide32(index, sizes, d):
    return divide_remainder(index, (sizes[3 * d], sizes[3 * d + 1], sizes[3 * d + 2]))


@functools.cache
def make_offsets(dims, wide, any_size=False):
    """Device function ``offsets(index, sizes, strides)``: the five element offsets of index `index` over `dims` dimensions, the last one
    fastest; int64 if `wide`, else int32. The index is an int32; with `any_size` an int64, and each coordinate costs a division.
    `sizes` and `strides` are `offset_arguments`.
    """
    Int = i64 if wide else i32

    @device_function
    def offsets(index, sizes, strides):
        i = Int(index)
        return Int(i * strides[0]), Int(i * strides[1]), Int(i * strides[2]), Int(i * strides[3]), Int(i * strides[4])
    for d in range(1, dims):
        offsets = _with_dimension(offsets, d, Int, _divide64 if any_size else _divide32)
    return offsets


def _with_dimension(outer, d, Int, divide):
    A, B, C, Y, Z = range(ARRAYS * d, ARRAYS * d + ARRAYS)

    @device_function
    def offsets(index, sizes, strides):
        rest, at = divide(index, sizes, d)
        i = Int(at)
        a, b, c, y, z = outer(rest, sizes, strides)
        return (Int(a + i * strides[A]), Int(b + i * strides[B]), Int(c + i * strides[C]), Int(y + i * strides[Y]),
                Int(z + i * strides[Z]))
    return offsets


def five(values, inputs):
    """Values of the inputs and the outputs in the order of the five arrays, 0 for those that are missing."""
    values = tuple(values)
    outputs = values[inputs:]
    return values[:inputs] + (0,) * (INPUTS - inputs) + outputs + (0,) * (ARRAYS - INPUTS - len(outputs))


def offset_arguments(dims, inputs, wide, any_size=False):
    """Kernel parameters `sizes` and `strides` of `make_offsets`."""
    sizes = [d.size for d in dims] if any_size else [v for d in dims for v in divisor(d.size)]
    strides = [s for d in dims for s in five(d.strides, inputs)]
    return (Argument(f"{'int64' if any_size else 'uint32'}x{len(sizes)}", tuple(sizes)),
            Argument(f"int{64 if wide else 32}x{len(strides)}", tuple(strides)))

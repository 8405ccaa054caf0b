"""Offsets of a batch index in each operand."""
import functools

from ..device import device_function, i64


@functools.cache
def make_batch_offsets(dims):
    """Device function ``offsets(z, sizes, strides) -> (a, b, c, y)``: element offsets of matrix z over `dims` merged batch dimensions.

    `sizes` and `strides` are the tuples of `MatmulProblem.batch_arguments`; without batch dimensions all offsets are 0.
    """
    if dims == 0:
        @device_function
        def offsets(z, sizes, strides):
            return i64(0), i64(0), i64(0), i64(0)
    elif dims == 1:
        @device_function
        def offsets(z, sizes, strides):
            z = i64(z)
            return z * strides[0], z * strides[1], z * strides[2], z * strides[3]
    else:
        @device_function
        def offsets(z, sizes, strides):
            rest = i64(z)
            a, b, c, y = i64(0), i64(0), i64(0), i64(0)
            for back in range(dims):
                d = dims - 1 - back
                size = sizes[d]
                i = rest % size
                rest = rest // size
                a = a + i * strides[4 * d]
                b = b + i * strides[4 * d + 1]
                c = c + i * strides[4 * d + 2]
                y = y + i * strides[4 * d + 3]
            return a, b, c, y
    return offsets

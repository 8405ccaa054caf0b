"""Products of register tiles: the four-way dot product of bytes, and the rank-one update every matrix product without tensor cores ends in.
"""
from . import SIMULATED, device_function, instruction

if SIMULATED:
    import numpy as np

    def _bytes(word):
        return [(int(word) >> s & 255 ^ 128) - 128 for s in (0, 8, 16, 24)]

    def _dot4(a, b, c):
        total = int(c) + sum(x * y for x, y in zip(_bytes(a), _bytes(b)))
        return (total + 2 ** 31) % 2 ** 32 - 2 ** 31

    def _values(array, dtype=None):
        """A local array as an ndarray over the same memory."""
        flat = array if isinstance(array, np.ndarray) else np.asarray(array.data)
        return flat if dtype is None else flat.view(dtype)
else:
    _dot4 = None

dot4 = instruction("dp4a.s32.s32 $0, $1, $2, $3;", ("int32",), ("uint32", "uint32", "int32"), twin=_dot4, pure=True)
"""``dot4(a, b, c)``: c plus the dot product of the four signed bytes of the words `a` and `b`; int32, wrapping."""


def make_outer(rows, columns, bytes4=False, first=0):
    """Device function ``outer(acc, a, i, b, j)``: acc[first + r*columns + c] += a[i + r] * b[j + c], the arrays being local.

    With `bytes4` the elements of a and b are words of four signed bytes, multiplied by `dot4`, and `acc` is int32.
    """
    if SIMULATED:  # the same arithmetic in one NumPy operation; looping over the tile would be most of a simulated matmul's time
        def outer(acc, a, i, b, j):
            tile = _values(acc)[first:first + rows * columns].reshape(rows, columns)
            if bytes4:
                x = _values(a, np.int8).reshape(-1, 4)[i:i + rows].astype(np.int32)
                tile += x @ _values(b, np.int8).reshape(-1, 4)[j:j + columns].astype(np.int32).T
            else:
                tile += _values(a)[i:i + rows, None] * _values(b)[None, j:j + columns]
        return outer
    if bytes4:
        def outer(acc, a, i, b, j):
            for r in range(rows):
                for c in range(columns):
                    acc[first + r * columns + c] = dot4(a[i + r], b[j + c], acc[first + r * columns + c])
    else:
        def outer(acc, a, i, b, j):
            for r in range(rows):
                for c in range(columns):
                    acc[first + r * columns + c] += a[i + r] * b[j + c]
    return device_function(outer)

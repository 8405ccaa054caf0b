"""Stores of accumulators: the epilogue, and one store for a group of neighbouring columns where y allows it."""
import functools

from ..device import device_function, i32, u32
from ..device.convert import element
from ..device.epilogue import make_epilogue
from ..device.unroll import unrolled
from ..device.vec import advance, as_u32, store2, store4


@functools.cache
def make_group_store(spec, group, vector):
    """Device function ``store(acc, k, row, column, n, y, at, column_stride, e)``: acc[k:k+group] to columns from `column` on, below `n`.

    `at` is the offset in y of the first. With `vector` the group is one store: y is contiguous and aligned there, and `group` divides n.
    """
    itemsize, halves = element(spec.output).storage.itemsize, spec.output in ("float16", "bfloat16")
    epilogue = make_epilogue(spec, "packed" if vector and halves and group > 1 else "storage")

    if not vector or group == 1:
        @device_function
        def store_one(j, s):
            acc, k, row, column, n, y, at, column_stride, e = s
            if column + j < n:
                y[at + j * column_stride] = epilogue(acc[k + j], row, column + j, e)
        store_all = unrolled(group, store_one)

        def store(acc, k, row, column, n, y, at, column_stride, e):
            store_all(0, (acc, k, row, column, n, y, at, column_stride, e))
    elif halves and group == 4:
        def store(acc, k, row, column, n, y, at, column_stride, e):
            if column < n:
                low = epilogue(acc[k], acc[k + 1], row, column, e)
                high = epilogue(acc[k + 2], acc[k + 3], row, column + 2, e)
                store2(as_u32(advance(y, at)), 0, (low, high))
    elif halves and group == 8:
        def store(acc, k, row, column, n, y, at, column_stride, e):
            if column < n:
                first, second = epilogue(acc[k], acc[k + 1], row, column, e), epilogue(acc[k + 2], acc[k + 3], row, column + 2, e)
                third = epilogue(acc[k + 4], acc[k + 5], row, column + 4, e)
                fourth = epilogue(acc[k + 6], acc[k + 7], row, column + 6, e)
                store4(as_u32(advance(y, at)), 0, (first, second, third, fourth))
    elif halves:
        def store(acc, k, row, column, n, y, at, column_stride, e):
            if column < n:
                as_u32(advance(y, at))[0] = epilogue(acc[k], acc[k + 1], row, column, e)
    elif group == 2:
        def store(acc, k, row, column, n, y, at, column_stride, e):
            if column < n:
                store2(advance(y, at), 0, (epilogue(acc[k], row, column, e), epilogue(acc[k + 1], row, column + 1, e)))
    elif itemsize == 4:
        def store(acc, k, row, column, n, y, at, column_stride, e):
            if column < n:
                first, second = epilogue(acc[k], row, column, e), epilogue(acc[k + 1], row, column + 1, e)
                third, fourth = epilogue(acc[k + 2], row, column + 2, e), epilogue(acc[k + 3], row, column + 3, e)
                store4(advance(y, at), 0, (first, second, third, fourth))
    else:  # four bytes of int8
        def store(acc, k, row, column, n, y, at, column_stride, e):
            if column < n:
                word = u32(0)
                for j in range(4):
                    byte = u32(u32(i32(epilogue(acc[k + j], row, i32(column + j), e))) & u32(255))
                    word = u32(word | u32(byte << u32(8 * j)))
                as_u32(advance(y, at))[0] = word
    return device_function(store)

"""Stores of accumulators: the epilogue, and one store for a group of neighbouring columns where y allows it."""
import functools

from ..device import device_function, i32, u32
from ..device.convert import element
from ..device.epilogue import make_epilogue
from ..device.program_operands import handed_over
from ..device.unroll import unrolled
from ..device.vec import advance, as_u32, store2, store4
from .sum_operands import make_epilogue_ahead


@functools.cache
def make_epilogue_of(spec, result, given=(), apart=0, boxed=None, aside=False):
    """Device function ``epilogue(acc, k, m, n, e)``: `make_epilogue`'s of accumulator number k, of this one and the next where results are
    "packed", and with what is `given` after `e`.

    `apart`: of a dual product, how far accumulators by one right operand are from those by the other.
    """
    epilogue = make_epilogue(spec, result, given, boxed, aside)
    if apart:
        of = device_function(lambda acc, k: (acc[k], acc[k + apart]))
    else:
        of = device_function(lambda acc, k: acc[k])
    if result != "packed" and given:
        return device_function(lambda acc, k, m, n, e, values: epilogue(of(acc, k), m, n, e, values))
    if result != "packed":
        return device_function(lambda acc, k, m, n, e: epilogue(of(acc, k), m, n, e))
    if handed_over(spec.program, given):
        return device_function(lambda acc, k, m, n, e, low, high: epilogue(of(acc, k), of(acc, k + 1), m, n, e, low, high))
    return device_function(lambda acc, k, m, n, e: epilogue(of(acc, k), of(acc, k + 1), m, n, e))


@functools.cache
def make_group_store(spec, group, vector, apart=0, ahead=None):
    """Device function ``store(acc, k, row, column, n, y, at, column_stride, e)``: acc[k:k+group] to columns from `column` on, below `n`.

    `at` is the offset in y of the first. With `vector` the group is one store: y is contiguous and aligned there, and `group` divides n.
    `apart`: see `make_epilogue_of`. `ahead`: names of what `sum_operands.make_ahead` has loaded, or of nothing; `e` is then a tuple of that
    and the words, k is 0.
    """
    itemsize, halves = element(spec.output).storage.itemsize, spec.output in ("float16", "bfloat16")
    result = "packed" if vector and halves and group > 1 else "storage"
    epilogue = make_epilogue_ahead(spec, result, ahead) if ahead is not None else make_epilogue_of(spec, result, apart=apart)

    if not vector or group == 1:
        @device_function
        def store_one(j, s):
            acc, k, row, column, n, y, at, column_stride, e = s
            if column + j < n:
                y[at + j * column_stride] = epilogue(acc, k + j, row, column + j, e)
        store_all = unrolled(group, store_one)

        def store(acc, k, row, column, n, y, at, column_stride, e):
            store_all(0, (acc, k, row, column, n, y, at, column_stride, e))
    elif halves and group == 4:
        def store(acc, k, row, column, n, y, at, column_stride, e):
            if column < n:
                low = epilogue(acc, k, row, column, e)
                high = epilogue(acc, k + 2, row, column + 2, e)
                store2(as_u32(advance(y, at)), 0, (low, high))
    elif halves and group == 8:
        def store(acc, k, row, column, n, y, at, column_stride, e):
            if column < n:
                first, second = epilogue(acc, k, row, column, e), epilogue(acc, k + 2, row, column + 2, e)
                third = epilogue(acc, k + 4, row, column + 4, e)
                fourth = epilogue(acc, k + 6, row, column + 6, e)
                store4(as_u32(advance(y, at)), 0, (first, second, third, fourth))
    elif halves:
        def store(acc, k, row, column, n, y, at, column_stride, e):
            if column < n:
                as_u32(advance(y, at))[0] = epilogue(acc, k, row, column, e)
    elif group == 2:
        def store(acc, k, row, column, n, y, at, column_stride, e):
            if column < n:
                store2(advance(y, at), 0, (epilogue(acc, k, row, column, e), epilogue(acc, k + 1, row, column + 1, e)))
    elif itemsize == 4:
        def store(acc, k, row, column, n, y, at, column_stride, e):
            if column < n:
                first, second = epilogue(acc, k, row, column, e), epilogue(acc, k + 1, row, column + 1, e)
                third, fourth = epilogue(acc, k + 2, row, column + 2, e), epilogue(acc, k + 3, row, column + 3, e)
                store4(advance(y, at), 0, (first, second, third, fourth))
    else:  # four bytes of int8
        def store(acc, k, row, column, n, y, at, column_stride, e):
            if column < n:
                word = u32(0)
                for j in range(4):
                    byte = u32(u32(i32(epilogue(acc, k + j, row, i32(column + j), e))) & u32(255))
                    word = u32(word | u32(byte << u32(8 * j)))
                as_u32(advance(y, at))[0] = word
    return device_function(store)


@functools.cache
def make_run_store(spec, run, width, apart=0):
    """The sink of `ampere.make_mma_product` for rows of y: ``sink(acc, e, row, column, (n, y, at, row_stride, column_stride, epilogue's))``
    stores `run` columns from acc[e] on, `width` of them at a time, or single ones where that is 0. `apart`: see `make_epilogue_of`."""
    GROUP = width or run
    store = make_group_store(spec, GROUP, width > 1, apart)

    @device_function
    def store_group(g, s):
        acc, e, row, column, n, y, at, column_stride, epilogue = s
        c = column + g * GROUP
        store(acc, e + g * GROUP, row, c, n, y, at + c * column_stride, column_stride, epilogue)
    store_groups = unrolled(run // GROUP, store_group)

    @device_function
    def sink(acc, e, row, column, s):
        n, y, at, row_stride, column_stride, epilogue = s
        store_groups(0, (acc, e, row, column, n, y, at + row * row_stride, column_stride, epilogue))
    return sink

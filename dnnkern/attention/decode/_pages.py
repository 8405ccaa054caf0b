"""Where a key lies in a cache, contiguous or in pages."""
import functools

from ...device import device_function, i32
from ...device.index import divide_remainder
from .._scores import between


@functools.cache
def make_place(paged):
    """Device function ``place(b, j, paging)`` -> (page, key in it) of key j of sequence b, of a `Paging`; out-of-range page indices are
    clamped. Without pages each sequence is one."""
    @device_function
    def place(b, j, paging):
        if paged:
            number, row = divide_remainder(j, paging.page)
            held = paging.table[b * paging.strides.batch + number * paging.strides.page]
            return between(held, 0, paging.pages - 1), row
        return i32(b), j
    return place

"""`cuda.atomic`: read-modify-write operations, each in one step, on pointers and arrays."""
import numpy as np

from . import engine, order
from .arrays import View
from .errors import Misuse
from .integers import tags


def _update(ary, index, change):
    """Replace the element by `change` of it and give the old value."""
    if not isinstance(ary, View):
        if not isinstance(ary, np.ndarray):
            raise Misuse(f"atomic operation on a {type(ary).__name__}: a shared array or a kernel argument is expected")
        old = ary[index]
        ary[index] = change(old)
        return old
    k = ary.locate(index)
    if not isinstance(k, int):
        raise Misuse(f"atomic operation on {ary.title}: index {index} selects more than one element")
    data = ary.buffer.elements(ary.dtype)
    old = data[k]
    new = ary.convert(change(old))
    thread = engine.CURRENT
    if ary.thread is thread:  # else the thread's own local array
        order.atomic(thread, ary.buffer, k * ary.dtype.itemsize, ary.dtype, bool(new != old))
    if new != old:
        data[k] = new
        thread.block.launch.idle = 0
    engine.pause(lambda: f"polls {ary.title}[{index}], which is {old}")
    return tags[ary.dtype.name](old) if ary.dtype.name in tags else old


class Atomic:
    """Namespace `cuda.atomic`. Every operation gives the old value."""

    @staticmethod
    def add(ary, idx, val):
        return _update(ary, idx, lambda old: old + val)

    @staticmethod
    def sub(ary, idx, val):
        return _update(ary, idx, lambda old: old - val)

    @staticmethod
    def and_(ary, idx, val):
        return _update(ary, idx, lambda old: old & val)

    @staticmethod
    def or_(ary, idx, val):
        return _update(ary, idx, lambda old: old | val)

    @staticmethod
    def xor(ary, idx, val):
        return _update(ary, idx, lambda old: old ^ val)

    @staticmethod
    def inc(ary, idx, val):
        """0 once `val` is reached, else one more."""
        return _update(ary, idx, lambda old: 0 if old >= val else old + 1)

    @staticmethod
    def dec(ary, idx, val):
        """`val` at 0 or above `val`, else one less."""
        return _update(ary, idx, lambda old: val if old == 0 or old > val else old - 1)

    @staticmethod
    def exch(ary, idx, val):
        return _update(ary, idx, lambda old: val)

    @staticmethod
    def max(ary, idx, val):
        """NaN in memory stays, as Numba's does."""
        return _update(ary, idx, lambda old: val if val > old else old)

    @staticmethod
    def min(ary, idx, val):
        return _update(ary, idx, lambda old: val if val < old else old)

    @staticmethod
    def nanmax(ary, idx, val):
        return _update(ary, idx, lambda old: val if val > old or old != old else old)

    @staticmethod
    def nanmin(ary, idx, val):
        return _update(ary, idx, lambda old: val if val < old or old != old else old)

    @staticmethod
    def cas(ary, idx, old, val):
        return _update(ary, idx, lambda now: val if now == old else now)

    @staticmethod
    def compare_and_swap(ary, old, val):
        """`cas` on element 0."""
        return Atomic.cas(ary, 0, old, val)

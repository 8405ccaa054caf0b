"""Tables of addresses in device memory: how one kernel receives hundreds of arrays.

A `Table` belongs to a plan. What in it is constant is known when the plan is made; addresses of operands come with each call. It is
made and sent to the device only for addresses that it has not been made for lately: a list that stays as it is costs a comparison.
"""
import collections
import functools
import operator
import struct
import threading
from dataclasses import dataclass, field

import numpy as np

from . import driver, raw
from .device import on_device
from .memory import allocate, free, is_capturing, outside_captures

REMEMBERED = 16
_LEGACY = 1  # the handle of the legacy default stream, which nobody can capture; 0 is another
_LEFT = collections.defaultdict(collections.deque)  # {device: tables that are freed once nothing runs that may read them}
_RELEASING = threading.Lock()


@dataclass(frozen=True, eq=False)
class Table:
    """64-bit words; to ``words[positions[k]]`` the address of operand ``names[k]`` is added.

    Attributes
    ----------
    words : ndarray of uint64
    positions : ndarray of int64
    names : tuple of str
        Dynamic values of the plan. Without any, the table is constant.
    """
    words: np.ndarray
    positions: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    names: tuple = ()

    def filled(self, addresses):
        """The words for these addresses, in the order of `names`."""
        words = self.words.copy()
        if self.names:
            words[self.positions] += np.array(addresses, np.uint64)
        return words

    def simulated(self, arrays):
        """What the simulator passes to a kernel; `arrays` are the operands' memory."""
        from ..device.sim.pointer import Addresses, Pointer
        pointers = [Pointer(a) for a in arrays]
        return Addresses(Pointer(self.filled([p.address for p in pointers])), pointers)


class _Sent:
    """A table on the device: its address, the streams that have read it, and the slots (their identities) that hold it."""
    __slots__ = "at", "streams", "slots"

    def __init__(self, at):
        self.at, self.streams, self.slots = at, set(), set()


class DeviceTable:
    """A `Table` on a device, once for each of the sets of addresses it was made for last. What a slot holds, and what a CUDA graph has
    captured, is not freed.

    `order` tells which of an execution's values an operand is.
    """

    def __init__(self, table, order, index):
        self.table, self.index, self.lock = table, index, threading.Lock()
        positions = [order[name] for name in table.names]
        self.addresses_in = operator.itemgetter(*positions) if len(positions) > 1 else lambda values: tuple(values[p] for p in positions)
        self.known, self.captured = {}, set()  # {addresses: _Sent}, the one used last at the end

    def of(self, addresses, stream, slot=None) -> int:
        """Address of the table for these addresses, complete whatever stream reads it; `slot` holds it from now on."""
        with self.lock, on_device(self.index):
            known = self.known.pop(addresses, None)
            found = self.known[addresses] = known or _Sent(self._send(addresses))
            found.streams.add(stream)
            if slot is not None:
                slot.hold(found)
            if is_capturing(stream):
                self.captured.add(addresses)
            elif known is None:
                self._forget(stream)
            return found.at

    def is_new_to_a_graph(self, addresses, stream):
        """Whether the stream is being captured, and no graph has this table yet."""
        if stream <= _LEGACY or self.captured and addresses in self.captured:
            return False
        with on_device(self.index):
            return is_capturing(stream)

    def _send(self, addresses):
        words = self.table.filled(addresses)
        with outside_captures():
            stream = _upload_stream(self.index)
            at = allocate(words.nbytes, self.index, stream)
            driver.cuMemcpyHtoDAsync(at, words.ctypes.data, words.nbytes, stream)
            driver.cuStreamSynchronize(stream)
        return at

    def _forget(self, stream):
        """Free the least recently used tables, after their readers. This call's stream is there; others, that have read a
        table, may have been destroyed, and nothing can be enqueued on them."""
        addresses = [a for a in self.known if a not in self.captured] if self.captured else list(self.known)  # to hash hundreds takes 5 us
        for old in addresses[:-REMEMBERED]:
            if self.known[old].slots:
                continue
            sent = self.known.pop(old)
            if sent.streams == {stream}:
                free(sent.at, self.index, stream)
            else:
                _LEFT[self.index].append(sent.at)
        _release(self.index, stream)

    def __del__(self):
        for addresses, sent in self.known.items():
            if addresses not in self.captured:
                _LEFT[self.index].append(sent.at)


def _release(index, stream):
    """Free the tables that are left on a device. Where a graph is being captured the device cannot be waited for: then another time."""
    left = _LEFT[index]
    if left:
        with _RELEASING:
            count = len(left)  # of those that come meanwhile nobody knows what reads them
            if count and _is_idle():
                for _ in range(count):
                    free(left.popleft(), index, stream)


def _is_idle():
    """Wait for the device; whether it could be waited for."""
    with outside_captures():
        return raw.cuCtxSynchronize() == 0


@functools.cache
def _upload_stream(index):
    """A stream that waits for no other."""
    return driver.cuStreamCreate(raw.CU_STREAM_NON_BLOCKING)


class Slot:
    """A table's slot in one thread's argument storage."""

    def __init__(self, offset, table):
        self.offset, self.table, self.addresses, self.sent, self.stream = offset, table, None, None, None

    def hold(self, sent):
        """Keep this table, and no longer the one before."""
        sent.slots.add(id(self))
        if self.sent is not None and self.sent is not sent:
            self.sent.slots.discard(id(self))
        self.sent = sent

    def __del__(self):
        if self.sent is not None:
            self.sent.slots.discard(id(self))

    def set(self, storage, values, stream):
        """Put the address of the table for an execution's values into the storage."""
        self._put(storage, self.table.addresses_in(values), stream)

    def renew(self, storage, stream):
        """The same for the values of the last execution, on another stream it may be."""
        self._put(storage, self.addresses, stream)

    def _put(self, storage, addresses, stream):
        if addresses is not self.addresses and addresses != self.addresses or stream != self.stream or \
                self.table.is_new_to_a_graph(addresses, stream):
            at = self.table.of(addresses, stream, self)
            self.addresses, self.stream = addresses, stream
            struct.pack_into("<Q", storage, self.offset, at)

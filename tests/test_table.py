"""Tables of addresses on the device, from which optimisers read their lists: what is in them, when they are sent, how long they live."""
import collections

import numpy as np
import pytest


def test_tables():
    from dnnkern.host.table import Table
    from dnnkern.optim._tables import address_table, chunk_words
    np.testing.assert_array_equal(chunk_words([5, 1, 8], 4), [0, 1 << 32, 1, 2, 2 | 1 << 32])
    table = address_table([(9, 0), (4, 3)], [("a", None, "b"), ("c", None, None)])
    assert table.names == ("a", "b", "c")
    np.testing.assert_array_equal(table.filled([100, 200, 2 ** 63 + 5]), [9, 0, 100, 0, 200, 4, 3, 2 ** 63 + 5, 0, 0])
    np.testing.assert_array_equal(table.words, [9, 0, 0, 0, 0, 4, 3, 0, 0, 0])
    np.testing.assert_array_equal(Table(np.arange(3, dtype=np.uint64)).filled([]), [0, 1, 2])


def test_a_pointer_made_of_a_wrong_address_is_an_error(simulated):
    from dnnkern.device import cuda
    from dnnkern.device.sim import Misuse, Pointer
    from dnnkern.device.sim.pointer import Addresses
    from dnnkern.device.vec import as_f32

    @cuda.jit
    def read(table, y):
        y[0] = as_f32(table[0])[table[1]]
    x, y = np.arange(4, dtype=np.float32), np.zeros(1, np.float32)
    table = np.array([Pointer(x).address + 4, 2], np.uint64)
    read.simulate(1, 1, [Addresses(Pointer(table), [Pointer(x)]), Pointer(y)])
    assert y[0] == 3
    with pytest.raises(Misuse, match="none of the arguments has memory there"):
        read.simulate(1, 1, [Addresses(Pointer(table), []), Pointer(y)])
    table[1] = 3
    with pytest.raises(Misuse, match=r"table \(by its address\): index 3 is read, its memory has the indices -1 .. 2"):
        read.simulate(1, 1, [Addresses(Pointer(table), [Pointer(x)]), Pointer(y)])


class Device:
    """Stands for the driver under a `DeviceTable`: what was sent, what was freed behind which stream, which stream is being captured."""

    def __init__(self, monkeypatch):
        from dnnkern.host import table as module
        self.sent, self.freed, self.capturing, self.idle, self.left = [], [], None, True, collections.defaultdict(collections.deque)
        monkeypatch.setattr(module, "is_capturing", lambda stream: stream == self.capturing)
        monkeypatch.setattr(module, "free", lambda at, index, stream: self.freed.append((at, stream)))
        monkeypatch.setattr(module, "_is_idle", lambda: self.idle)
        monkeypatch.setattr(module, "_LEFT", self.left)
        monkeypatch.setattr(module.DeviceTable, "_send", lambda table, addresses: self.sent.append(addresses) or 1000 + len(self.sent))


def _table(count=2):
    from dnnkern.host.table import DeviceTable, Table
    names = tuple(f"p{k}" for k in range(count))
    return DeviceTable(Table(np.zeros(count, np.uint64), np.arange(count), names), {name: k + 1 for k, name in enumerate(names)}, 0)


def test_tables_are_sent_once_for_each_set_of_addresses(monkeypatch, simulated):
    from dnnkern.host.table import Slot
    device, storage = Device(monkeypatch), bytearray(16)
    slot = Slot(8, _table())
    for values in ((9, 1, 2), (8, 1, 2), (9, 1, 3), (9, 1, 2)):
        slot.set(storage, values, 7)
    assert device.sent == [(1, 2), (1, 3)] and storage[8:] == (1001).to_bytes(8, "little")
    one = Slot(0, _table(1))
    one.set(storage, (9, 5), 7)
    assert device.sent[2:] == [(5,)]
    constant = Slot(0, _table(0))
    constant.set(storage, (9, 5), 7)
    constant.set(storage, (9, 6), 8)
    assert device.sent[3:] == [()]


def test_tables_that_were_not_used_for_long_are_freed_behind_their_stream(monkeypatch, simulated):
    from dnnkern.host.table import REMEMBERED
    device, table = Device(monkeypatch), _table()
    for k in range(REMEMBERED):
        assert table.of((k, k), 7) == 1001 + k
    assert table.of((0, 0), 7) == 1001 and not device.freed
    table.of((99, 99), 7)
    assert device.freed == [(1002, 7)] and (0, 0) in table.known


def test_only_the_stream_of_the_call_frees(monkeypatch, simulated):
    """Others may have been destroyed."""
    from dnnkern.host.table import REMEMBERED
    device, table = Device(monkeypatch), _table()
    table.of((0, 0), 6)
    table.of((1, 1), 6)
    table.of((1, 1), 7)
    for k in range(2, REMEMBERED + 1):
        table.of((k, k), 7)
    assert device.freed == [(1001, 7)]
    device.idle = False  # a graph is being captured elsewhere
    table.of((50, 50), 7)
    assert len(device.freed) == 1 and list(device.left[0]) == [1002]
    table.of((51, 51), 7)
    assert device.freed[1:] == [(1003, 7)] and list(device.left[0]) == [1002], "what this stream alone has read needs no waiting"
    device.idle = True
    table.of((51, 51), 7)
    assert len(device.freed) == 2, "a known list costs nothing"
    table.of((52, 52), 7)
    assert device.freed[2:] == [(1004, 7), (1002, 7)] and not device.left[0]


def test_what_a_thread_has_in_its_storage_is_not_freed(monkeypatch, simulated):
    """It launches with it again without asking."""
    from dnnkern.host.table import REMEMBERED, Slot
    device, table, storage = Device(monkeypatch), _table(), bytearray(8)
    idle, busy = Slot(0, table), Slot(0, table)
    idle.set(bytearray(8), (9, 1, 2), 6)
    for k in range(3 * REMEMBERED):
        busy.set(storage, (9, 100 + k, 2), 7)
    assert len(device.freed) == 2 * REMEMBERED and (1001, 7) not in device.freed and 1001 not in device.left[0]
    idle.renew(bytearray(8), 6)
    assert device.sent.count((1, 2)) == 1
    idle.set(bytearray(8), (9, 200, 2), 6)
    busy.set(storage, (9, 300, 2), 7)
    assert 1001 in [at for at, _ in device.freed] + list(device.left[0])
    del idle
    for k in range(REMEMBERED + 1):
        busy.set(storage, (9, 400 + k, 2), 7)
    assert (200, 2) not in table.known and len(table.known) == REMEMBERED


def test_nothing_is_freed_while_a_graph_is_captured(monkeypatch, simulated):
    from dnnkern.host.table import REMEMBERED
    device, table = Device(monkeypatch), _table()
    for k in range(REMEMBERED):
        table.of((k, k), 7)
    device.capturing = 7
    table.of((50, 50), 7)
    device.capturing = None
    assert not device.freed
    table.of((51, 51), 7)
    assert device.freed == [(1001, 7)]


def test_tables_of_a_plan_that_is_gone_are_freed_when_another_is_sent(monkeypatch, simulated):
    device, table = Device(monkeypatch), _table()
    table.of((1, 2), 7)
    device.capturing = 7
    table.of((3, 4), 7)
    device.capturing = None
    del table
    assert not device.freed and list(device.left[0]) == [1001], "what a graph has captured stays"
    _table().of((5, 6), 8)
    assert device.freed == [(1001, 8)]


def test_streams_come_and_go(on_gpu):
    """Tables and outputs outlive the stream on which they were made."""
    import gc

    import dnnkern
    from dnnkern.device import cuda
    from dnnkern.host.table import REMEMBERED
    kept = []
    for k in range(3 * REMEMBERED):
        stream = cuda.stream()
        p, g = ([cuda.to_device(np.full(8, x, np.float32)) for _ in range(2)] for x in (1, 2))
        kept.append(dnnkern.sgd_step(p, g, lr=0.25, stream=stream))
        kept.append(dnnkern.softmax_fwd(p[0], axis=0, stream=stream))
        stream.synchronize()
        np.testing.assert_array_equal(p[1].copy_to_host(), 0.5)
        del stream
        gc.collect()
    np.testing.assert_array_equal(kept[-1].copy_to_host(), 0.125)
    kept.clear()
    gc.collect()
    cuda.synchronize()


def test_tables_in_a_graph_stay(monkeypatch, simulated):
    from dnnkern.host.table import REMEMBERED, Slot
    device, storage = Device(monkeypatch), bytearray(8)
    table = _table()
    slot = Slot(0, table)
    slot.set(storage, (0, 1, 2), 7)
    device.capturing = 7
    slot.set(storage, (0, 1, 2), 7)
    slot.set(storage, (0, 3, 4), 7)
    assert table.captured == {(1, 2), (3, 4)} and len(device.sent) == 2
    device.capturing = None
    for k in range(2 * REMEMBERED):
        table.of((k, -1), 7)
    assert {1001, 1002}.isdisjoint(at for at, _ in device.freed) and len(device.freed) == REMEMBERED

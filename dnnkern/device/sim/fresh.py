"""Memory that nothing has written: what it holds, and where it is read."""
from ..host_memory import POISON
from .place import place
from .trace import located


class Fresh:
    """What memory that nothing has written holds in a launch: bytes `usual`, and `other` where `changed` specifies.

    Shared memory and local arrays start that way; who hands in memory from outside has filled it. With different bytes in one place only,
    a result that changes depends on that place.

    Parameters
    ----------
    usual, other : int
    changed : str, optional
        "shared" or "local": all such memory. With `looks`, a source line as `found` has them: what is read there, or the local arrays that
        are made there.
    looks : iterable of "shared", "local" and (address, bytes) of memory of the host, optional
        Where reads of bytes that are still `usual` are noted in `found`, as {source line: words}.
    """

    def __init__(self, usual=POISON, other=POISON, changed=None, looks=()):
        self.usual, self.other, self.changed, self.looks = usual, other, changed, tuple(looks)
        self.shared = other if changed == "shared" else usual
        self.ranges = [r for r in self.looks if not isinstance(r, str)]
        self.found, self.differ = {}, set()

    def local(self, name):
        """The byte that a local array starts with which is made now."""
        if "local" not in self.looks:
            return self.other if self.changed == "local" else self.usual
        where = place()
        self.found.setdefault(where, f"{name}, made")
        return self.other if where == self.changed else self.usual

    def look(self, log, entry):
        """An access is logged, before it is made (of atomic operations: afterwards)."""
        memory, byte, size = located(log.thread, entry)
        if log.kind == "write" or not self._covers(memory, byte):
            return
        cell, key = memory.raw[byte:byte + size], (memory, byte)
        if (cell == self.usual).all() or key in self.differ and (cell == self.other).all():
            where = place()
            self.found.setdefault(where, f"{memory.describe(byte)}, {'updated' if log.kind == 'update' else 'read'} by {log.thread}")
            if where == self.changed:
                cell[:] = self.other
                self.differ.add(key)
            elif key in self.differ:
                cell[:] = self.usual
                self.differ.discard(key)

    def _covers(self, memory, byte):
        if not memory.index:
            return "shared" in self.looks
        at = memory.raw.__array_interface__["data"][0] + byte
        return any(first <= at < first + size for first, size in self.ranges)

    def started(self, block, agent):
        """An asynchronous agent has been made; what it reads is in no thread's log."""

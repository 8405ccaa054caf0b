"""Why a kernel has ended early, read from the records in the arenas that it has left."""
import ctypes

from .._words import ranges
from . import runtime, waits

_BLOCKS = 4  # that are told of one by one
_WORDS = {"i32": ctypes.c_uint32, "i64": ctypes.c_uint64, "ptr": ctypes.c_uint64}


class Fault(RuntimeError):
    """A kernel has ended before its end."""


class Deadlock(Fault):
    """All threads that have not returned wait; the message lists who for what."""


class View:
    """A record in memory; its fields by name."""

    def __init__(self, record, at):
        self.record, self.at = record, at

    def __getitem__(self, name):
        return self.word(name, 0)

    def word(self, name, k):
        """One of several values of a field."""
        kind = _WORDS[self.record.type[name]]
        return kind.from_address(self.at + self.record.offset[name] + k * ctypes.sizeof(kind)).value


class Thread(View):
    """A thread's record, with those of its block and its warp."""

    def __init__(self, at):
        super().__init__(runtime.THREAD, at)
        arena = at >> runtime.ARENA_BITS << runtime.ARENA_BITS
        self.number = at - arena >> runtime.THREAD_BITS
        self.block = View(runtime.BLOCK_RECORD, arena + runtime.BLOCK)
        self.warp = View(runtime.WARP, self["warp"])

    @property
    def block_index(self):
        """Coordinates of the block."""
        return tuple(self.block[f"ctaid.{axis}"] for axis in "xyz")


def fault(name, base, place):
    """The exception for a kernel whose `cpu.run` with arenas from `base` on did not return 0; `place` makes an address words."""
    group = View(runtime.GROUP_RECORD, base + runtime.GROUP)
    return _REASONS[group["cause"]](name, group, place)


def _deadlock(name, group, place):
    blocks, first = {}, group["culprit"]
    at = first
    while True:
        thread = Thread(at)
        blocks.setdefault(thread.block.at, []).append(thread)
        at = thread["next"]
        if at == first:
            break
    lines = [f"kernel {name}: no thread can go on"]
    for _, threads in sorted(blocks.items())[:_BLOCKS]:
        stories = {}
        for thread in sorted(threads, key=lambda t: t.number):
            stories.setdefault(waits.told(thread, place), []).append(thread.number)
        lines.append(f"  block {threads[0].block_index}:")
        lines += [f"    {ranges(numbers)}: {story}" for story, numbers in stories.items()]
    if len(blocks) > _BLOCKS:
        lines.append(f"  and {len(blocks) - _BLOCKS} more blocks")
    return Deadlock("\n".join(lines))


_REASONS = {runtime.CAUSE["deadlock"]: _deadlock}

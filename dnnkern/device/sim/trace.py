"""Where in the source memory is accessed: a launch is run once more, on the same memory, with logs that look who appends to them.

Logs hold numbers alone, which is what makes them cheap; runs are repeatable, so the same race comes again.
"""
import contextlib

from .arrays import GLOBAL_SHIFT, SHARED_SHIFT
from .config import config
from .errors import Race
from .place import place

MOST_BYTES = 1 << 28  # of the memory behind a launch's arguments; larger is not copied, and its races come without lines
ACTIVE = None
"""What looks at the accesses of the launch that is running, a `Trace` or a `Fresh`; None but for a run to find out where they are."""
SCHEDULE = None
"""The `Schedule` of the launch that is running, or None."""


class Log(list):
    """A thread's log that remembers where accesses to the traced bytes are made."""
    __slots__ = "thread", "kind"

    def __init__(self, thread, kind):
        super().__init__()
        self.thread, self.kind = thread, kind

    def append(self, entry):
        ACTIVE.look(self, entry)
        super().append(entry)

    def extend(self, entries):
        entries = list(entries)
        for entry in entries:
            ACTIVE.look(self, entry)
        super().extend(entries)


class Trace:
    """Places of the latest access of each kind by each thread to the bytes that `race` is about, and of starts of asynchronous agents."""

    def __init__(self, race):
        self.memory, self.byte, self.size = race.memory, race.byte, race.size
        self.places = {}

    def look(self, log, entry):
        """An access is logged."""
        buffer, first, size = located(log.thread, entry)
        if first < self.byte + self.size and self.byte < first + size and key_of(buffer) == self.memory:
            self.places[log.thread.block.number, log.thread.tid, log.kind] = place()

    def started(self, block, agent):
        """An asynchronous agent of a block has been made."""
        self.places[block, agent, "started"] = place()

    def of(self, agent, kind):
        """Where the agent, (block, number), made its access, or was started; None if that is not known."""
        return self.places.get((*agent, kind)) or self.places.get((*agent, "started"))


def located(thread, entry):
    """(buffer, first byte, bytes) of an entry in a log of the thread."""
    if entry < 1 << GLOBAL_SHIFT:
        buffer, size_log, element = thread.block.shared, entry >> SHARED_SHIFT, entry & (1 << SHARED_SHIFT) - 1
    else:
        code = entry >> GLOBAL_SHIFT
        buffer, size_log, element = thread.block.launch.memories[code >> 3], code & 7, entry & (1 << GLOBAL_SHIFT) - 1
    return buffer, element << size_log, 1 << size_log


@contextlib.contextmanager
def looking(watch, schedule=None):
    """Within the block, what looks at the accesses of threads that start: `watch`, or a `Schedule`."""
    global ACTIVE, SCHEDULE
    ACTIVE, SCHEDULE = schedule or watch, schedule
    try:
        yield
    finally:
        ACTIVE = SCHEDULE = None


def key_of(buffer):
    """What names a buffer in another run of the same launch."""
    return ("shared", buffer.block.number) if hasattr(buffer, "block") else ("global", buffer.index)


def saved(launch):
    """Copies of the memory that the launch may change; None if it is too large, or lines are not asked for."""
    changeable = [m.raw for m in launch.memories[1:] if m.raw.flags.writeable]
    if not config.lines or sum(raw.size for raw in changeable) > MOST_BYTES:
        return None
    return [(raw, raw.copy()) for raw in changeable]


def locate(error, memory, again):
    """Add the lines of both accesses to the message of a `Race`; `again()` makes the launch it came from anew, `memory` was `saved`."""
    if memory is None or getattr(error, "memory", None) is None:
        return
    for raw, values in memory:
        raw[:] = values
    trace = Trace(error)
    try:
        with looking(trace):
            again().run()
    except Race as race:
        if race.args[0].split("\n")[0] == error.args[0].split("\n")[0]:
            head, *rest = error.args[0].split("\n")
            lines = [f"  {who} {verb} at {where}" for who, verb, agent, kind in error.accesses
                     if (where := trace.of(agent, kind)) is not None]
            error.args = ("\n".join([head, *lines, *rest]),)
    except Exception:  # a kernel that does something else the second time: what is known is the first message
        pass


def logs_of(thread):
    """New logs of a thread: reads, writes, atomic updates."""
    if ACTIVE is None:
        return [], [], []
    return Log(thread, "read"), Log(thread, "write"), Log(thread, "update")

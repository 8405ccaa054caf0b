"""What a simulated kernel can be guilty of."""


class SimError(RuntimeError):
    """Base class of everything the simulator raises about a kernel."""


class Misuse(SimError):
    """A launch, an index, an instruction or a collective used against its contract."""


class Race(SimError):
    """Two accesses to one place in memory, at least one of them a write, that nothing orders.

    Of accesses that were logged: the `memory`, the first `byte` and the `size` in bytes, and for each of the two `accesses` who, what it
    does, (block, agent), and the kind of log.
    """
    memory = None


class Deadlock(SimError):
    """Nothing can run any more, or only threads that poll; the message lists who waits for what."""


def annotate(error, text):
    """Add `text` to `error` where tracebacks print it."""
    if hasattr(error, "add_note"):
        error.add_note(text)
    else:  # Python 3.10
        error.__notes__ = [*getattr(error, "__notes__", ()), text]
        error.args = (f"{error.args[0]}\n{text}" if error.args else text, *error.args[1:])

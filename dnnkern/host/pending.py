"""Files of the cache that another process is making at this moment: who needs one waits for that one alone."""
import threading

from ..device._fork import in_forked_child

QUEUED, STARTED = "queued", "started"


def _renew():
    global _changed, _states
    _changed, _states = threading.Condition(), {}


_renew()
in_forked_child(_renew)  # the parent reads what the other process says


def announce(name, state):
    """Say that a file is queued, or started."""
    with _changed:
        _states[name] = state


def withdraw(names):
    """Say that files are done, or will not be made."""
    with _changed:
        for name in names:
            _states.pop(name, None)
        _changed.notify_all()


def awaited(name) -> bool:
    """Wait for a file that somebody has started; whether there was one. A file that is only queued is sooner made here."""
    if not _states:
        return False
    with _changed:
        if _states.get(name) != STARTED:
            return False
        _changed.wait_for(lambda: _states.get(name) != STARTED)
    return True

"""Handles: numbers that stand for a stream."""
import itertools
import threading

from ._errors import HandleError

_lock = threading.Lock()
_numbers = itertools.count(1)
_streams: dict[int, object] = {}


def create_handle() -> int:
    """A new handle, on the default stream."""
    with _lock:
        handle = next(_numbers)
        _streams[handle] = 0
    return handle


def destroy_handle(handle):
    """End a handle; graphs that have it can no longer be executed with it."""
    _known(handle)
    with _lock:
        _streams.pop(handle, None)


def set_stream(handle, stream):
    """Graphs that are executed with this handle run on this stream: an int, or a stream of any framework."""
    _known(handle)
    if not isinstance(stream, int):
        from ..host.front import stream_handle
        stream = stream_handle("set_stream", stream)
    with _lock:
        _streams[handle] = stream


def get_stream(handle) -> int:
    """The stream of a handle."""
    return _known(handle)


def _known(handle):
    try:
        return _streams[handle]
    except (KeyError, TypeError):
        raise HandleError(f"handle {handle!r} does not exist, or was destroyed; expected one of create_handle()") from None

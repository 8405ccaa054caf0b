"""Launches as CUDA graphs: a plan of hundreds of small kernels takes the host longer than the device, its replay one call of the driver."""
import ctypes

from . import driver, raw
from .device import on_device
from .memory import is_capturing

LEAST = 24       # launches that are worth a graph
REMEMBERED = 8   # graphs of a thread and plan


def captured(enqueue, stream):
    """Handle of an executable graph of what `enqueue` enqueues on the stream."""
    driver.cuStreamBeginCapture(stream, raw.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
    graph = ctypes.c_size_t()
    try:
        enqueue()
    except BaseException:
        raw.cuStreamEndCapture(stream, ctypes.byref(graph))  # a stream left in capture is of no more use to anyone
        raise
    driver.cuStreamEndCapture(stream, ctypes.byref(graph))
    try:
        return driver.cuGraphInstantiateWithFlags(graph.value, 0)
    finally:
        driver.cuGraphDestroy(graph.value)


def _captured_aside(enqueue):
    """The same on a stream of its own."""
    stream = driver.cuStreamCreate(raw.CU_STREAM_NON_BLOCKING)
    try:
        return captured(lambda: enqueue(stream), stream)
    finally:
        raw.cuStreamDestroy(stream)


def replay(graph, stream):
    """Enqueue an executable graph."""
    driver.cuGraphLaunch(graph, stream)


def destroy(graph):
    """Give an executable graph back; one that is running ends first."""
    try:
        raw.cuGraphExecDestroy(graph)
    except (TypeError, AttributeError):  # the interpreter is shutting down: the driver frees everything
        pass


class Replays:
    """Graphs of a plan's launches, for one thread: one for each set of values that came twice of late."""

    def __init__(self, index):
        self.index, self.known = index, {}  # {values: graph, or None after the first time}, the latest at the end

    def run(self, values, stream, enqueue) -> bool:
        """Enqueue the launches as a graph; False where there is none: values that are new, or a stream that is being captured itself.
        ``enqueue(stream)`` launches with these values."""
        with on_device(self.index):
            if is_capturing(stream):
                return False
            is_known = values in self.known
            graph = self.known.pop(values, None)
            if is_known and graph is None:
                graph = _captured_aside(enqueue)
            self.known[values] = graph
            if len(self.known) > REMEMBERED:
                old = self.known.pop(next(iter(self.known)))
                if old is not None:
                    destroy(old)
            if graph is None:
                return False
            replay(graph, stream)
            return True

    def __del__(self):
        for graph in self.known.values():
            if graph is not None:
                destroy(graph)

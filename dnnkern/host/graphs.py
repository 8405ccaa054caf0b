"""Launches as CUDA graphs: several kernels take the host longer one by one than as a graph, whose launch is one call of the driver."""
import ctypes
import math

from . import driver, raw
from .device import primary_context
from .driver import CudaError, failed
from .memory import outside_captures

MANY = 24        # launches that are captured as soon as their values come again: to launch them once more costs as much
SIGHTINGS = 16   # of the same values, before fewer launches are captured: what that costs is what graphs save in some 15 calls
KEPT = 192, 8    # kernels in the graphs that a thread and plan keep; graphs that it keeps in any case
IDLE = 32        # calls for each graph that is kept: one that was not launched in so many is given up for another
COUNTED = 256    # sets of values that are counted, until all counts are forgotten
REST = 4096      # calls that are only launched where most calls before had values that do not come again: to count costs 0.7 us


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
    """The same on a stream of its own, whatever else is being captured."""
    with outside_captures():
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


class _Graph:
    """An executable graph, and the number of the call that launched it last."""
    __slots__ = "handle", "used"

    def __init__(self, handle):
        self.handle, self.used = handle, 0


class Replays:
    """Graphs of a plan's launches, for one thread: one for each set of values that came often.

    A graph holds addresses, as a launch does, and not the memory there: it is launched for whatever arrays a call has at these addresses.
    A graph in use is never given up. Where more sets of values take turns than graphs are kept, the others are launched kernel by kernel,
    and nothing is captured in vain. `rest` is how many calls from here on are not for graphs.
    """

    def __init__(self, index, launches):
        kernels, least = KEPT
        self.index, self.limit, self.sightings = index, max(least, kernels // launches), 2 if launches >= MANY else SIGHTINGS
        self.graphs, self.counts, self.rest = {}, {}, 0
        self.calls, self.missed, self.since = 0, 0, 0  # calls; those without a graph, and calls before them, since `counts` was empty
        self.current, self.capture = ctypes.c_size_t(), ctypes.c_int()
        self.at_current, self.at_capture = ctypes.byref(self.current), ctypes.byref(self.capture)

    def run(self, plan, frame, stream) -> bool:
        """Enqueue the plan's launches, with the values in the frame, as a graph; False where that is for `plan.enqueue` to do."""
        values = frame.storage.raw
        self.calls += 1
        graph = self.graphs.get(values)
        if graph is None and not self._came_often(values) or not self._is_plain(stream):
            return False
        if graph is None:
            if not self._has_room():
                return False
            try:
                graph = self.graphs[values] = _Graph(_captured_aside(lambda aside: plan.enqueue(frame, aside)))
            except CudaError:  # what this driver does not capture is launched for ever
                self.rest = math.inf
                return False
        graph.used = self.calls
        status = raw.cuGraphLaunch(graph.handle, stream)
        if status:
            failed(status)
        return True

    def _came_often(self, values):
        """Count the values; whether they have come as often as is worth a graph, and are counted anew."""
        count = self.counts.pop(values, 0) + 1
        if count >= self.sightings:
            return True
        self.missed += 1
        if len(self.counts) >= COUNTED:
            if 2 * self.missed > self.calls - self.since:
                self.rest = REST
            self.counts.clear()
            self.missed, self.since = 0, self.calls
        self.counts[values] = count
        return False

    def _is_plain(self, stream):
        """Whether the device's context is the thread's, of whose streams one is the null stream, and the stream is not being captured."""
        return not (raw.cuCtxGetCurrent(self.at_current) or self.current.value != primary_context(self.index)
                    or raw.cuStreamIsCapturing(stream, self.at_capture) or self.capture.value != raw.CU_STREAM_CAPTURE_STATUS_NONE)

    def _has_room(self):
        """Whether another graph may be kept. If need be the one is given up that was launched longest ago, where that is long ago."""
        if len(self.graphs) >= self.limit:
            oldest = min(self.graphs, key=lambda values: self.graphs[values].used)
            if self.calls - self.graphs[oldest].used < IDLE * self.limit:
                return False
            destroy(self.graphs.pop(oldest).handle)
        return True

    def __del__(self):
        for graph in self.graphs.values():
            destroy(graph.handle)

"""Launches as CUDA graphs: several kernels take the host longer one by one than as a graph, whose launch is one call of the driver."""
import contextlib
import ctypes
import math

from ..device._parameters import kernel_name
from . import driver, raw
from .device import on_device, primary_context
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
    graph = _ended(enqueue, stream)
    try:
        return driver.cuGraphInstantiateWithFlags(graph, 0)
    finally:
        driver.cuGraphDestroy(graph)


def _ended(enqueue, stream):
    """Handle of the graph into which a stream is being captured, once `enqueue` has enqueued on it."""
    graph = ctypes.c_size_t()
    try:
        enqueue()
    except BaseException:
        raw.cuStreamEndCapture(stream, ctypes.byref(graph))  # a stream left in capture is of no more use to anyone
        raise
    driver.cuStreamEndCapture(stream, ctypes.byref(graph))
    return graph.value


@contextlib.contextmanager
def _aside():
    """A stream of its own, whatever else is being captured."""
    with outside_captures():
        stream = driver.cuStreamCreate(raw.CU_STREAM_NON_BLOCKING)
        try:
            yield stream
        finally:
            raw.cuStreamDestroy(stream)


def _captured_aside(enqueue):
    """`captured`, on a stream of its own."""
    with _aside() as stream:
        return captured(lambda: enqueue(stream), stream)


# ---- graphs of the caller's

class _KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS, the second: a function, or a kernel where that is null."""
    _fields_ = [("function", ctypes.c_void_p), ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
                ("parameters", ctypes.c_void_p), ("extra", ctypes.c_void_p), ("kernel", ctypes.c_void_p), ("context", ctypes.c_void_p)]


class OtherGraph(ValueError):
    """A graph is not of a plan's launches."""


def populate(plan, values, graph):
    """Add a plan's launches, with these values, to a graph: one after the other, the first after nothing. Nothing runs."""
    with on_device(plan.index), _aside() as stream:
        frame = plan.filled(values)
        driver.cuStreamBeginCaptureToGraph(stream, graph, None, None, 0, raw.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        _ended(lambda: plan.enqueue(frame, stream), stream)


def update(plan, values, graph):
    """Give the kernels of a graph that `populate` has filled, or of a copy of it, other values.

    Raises
    ------
    OtherGraph
        It has not the plan's kernels, one after the other, and nothing else: nothing is changed.
    """
    with on_device(plan.index):
        nodes, frame, updated = _in_order(graph), plan.filled(values), []
        if len(nodes) != len(plan.launches):
            raise OtherGraph(f"it has {len(nodes)} nodes; the plan has {len(plan.launches)} kernels")
        for k, (node, launch, function, call) in enumerate(zip(nodes, plan.launches, plan.functions, frame.calls)):
            found = _kernel_at(node)
            own = found is not None and {found.function, found.kernel} & {function.handle, function.kernel}
            if not own or (*found.grid, *found.block, found.shared) != (*launch.grid, *launch.block, launch.shared):
                raise OtherGraph(f"node {k} is not the launch of {kernel_name(launch.kernel)} with grid {launch.grid}, block "
                                 f"{launch.block} and {launch.shared} bytes of shared memory, which the plan has there")
            found.parameters, found.extra = call[2], None
            updated.append((node, found))
        for node, found in updated:
            driver.cuGraphKernelNodeSetParams(node, ctypes.byref(found))


def _in_order(graph):
    """The nodes of a graph, each of which depends on the one before; `OtherGraph` where they do not."""
    count = ctypes.c_size_t()
    driver.cuGraphGetNodes(graph, None, ctypes.byref(count))
    nodes = (ctypes.c_size_t * count.value)()
    if nodes:
        driver.cuGraphGetNodes(graph, nodes, ctypes.byref(count))
    driver.cuGraphGetEdges(graph, None, None, None, ctypes.byref(count))
    starts, ends, kinds = ((kind * count.value)() for kind in (ctypes.c_size_t, ctypes.c_size_t, ctypes.c_uint64))
    if starts:
        driver.cuGraphGetEdges(graph, starts, ends, kinds, ctypes.byref(count))
    edges = set(zip(starts, ends))
    before = {node: sum(end == node for _, end in edges) for node in nodes}
    order = []
    while before:
        ready = [node for node, waits in before.items() if not waits]
        if len(ready) != 1 or order and (order[-1], ready[0]) not in edges:
            raise OtherGraph("its nodes are not one after the other")
        order += ready
        del before[ready[0]]
        for end in {end for start, end in edges if start == ready[0]}:
            before[end] -= 1
    return order


def _kernel_at(node):
    """What a node launches; None where it is no kernel."""
    kind, found = ctypes.c_int(), _KernelNode()
    driver.cuGraphNodeGetType(node, ctypes.byref(kind))
    if kind.value != raw.CU_GRAPH_NODE_TYPE_KERNEL:
        return None
    driver.cuGraphKernelNodeGetParams(node, ctypes.byref(found))
    return found


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

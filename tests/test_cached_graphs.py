"""Plans of several launches as CUDA graphs, as on a GPU (`bench.pretend`): what is captured, when, and what a call asks of the driver."""
import functools
import gc
import itertools
import threading
from unittest import mock

import pytest
from cached import seen_fixture, tensors, torch  # noqa: F401 (fixtures)

import dnnkern
from dnnkern.device import SIMULATED
from dnnkern.host import graphs, guards, launch, raw
from dnnkern.host.driver import CudaError

pytestmark = pytest.mark.skipif(not SIMULATED, reason="host logic, tried where no GPU is used")

KERNELS = 3  # of a `Norm`
LIMIT = graphs.KEPT[0] // KERNELS
KERNEL_BY_KERNEL, A_GRAPH = {"cuLaunchKernelEx": KERNELS}, {"cuCtxGetCurrent": 1, "cuStreamIsCapturing": 1, "cuGraphLaunch": 1}


class Norm:
    """Batch normalizations of layers of one shape, which share a plan."""

    def __init__(self, seen):
        from dnnkern.norm._batch import BATCH_TRAIN
        self.seen, self.channels = seen, tensors((64,), (64,), (64,), (64,))
        for _ in range(3):
            self(self.layer())
        (bound,) = set(BATCH_TRAIN.calls.values())
        self.plan = bound.executable
        assert len(self.plan.launches) == KERNELS
        seen.clear()

    @staticmethod
    def layer():
        x, y, mean, rstd = tensors((32, 64, 56, 56), (32, 64, 56, 56), (64,), (64,))
        return x, y, mean, rstd

    def __call__(self, layer, **more):
        """Run a layer; what ran has to be it."""
        x, *out = layer
        count = len(self.seen.values)
        dnnkern.batch_norm_train_fwd(x, *self.channels, out=tuple(out), **more)
        ran = self.seen.values[count:]
        assert len(ran) == 1 and ran[0][:8] == tuple(t.data_ptr() for t in (x, *self.channels, *out))

    def asks(self, layer, **more):
        """What a call asks of the driver."""
        self.seen.driver.clear()
        self(layer, **more)
        return dict(self.seen.driver)

    @property
    def replays(self):
        """The thread's."""
        return self.plan.replays()

    @property
    def captured(self):
        """Graphs that were made since `seen.clear`."""
        return self.seen.driver["cuGraphInstantiateWithFlags"]


@pytest.fixture(name="norm")
def norm_fixture(seen, monkeypatch):
    """Its workspace is the same at each call."""
    make = guards.make_allocator

    def make_once(*given):
        return functools.partial(lambda one: one, make(*given)())
    monkeypatch.setattr(guards, "make_allocator", make_once)
    return Norm(seen)


def test_values_that_come_often_are_one_launch(norm):
    layer = norm.layer()
    for _ in range(graphs.SIGHTINGS - 1):
        assert norm.asks(layer) == KERNEL_BY_KERNEL
    asked = norm.asks(layer)
    assert asked["cuLaunchKernelEx"] == KERNELS and asked["cuGraphInstantiateWithFlags"] == asked["cuGraphLaunch"] == 1
    for _ in range(3):
        assert norm.asks(layer) == A_GRAPH
    assert len(norm.seen.graphs) == 1


def test_a_graph_is_for_all_streams(norm):
    call, streams = calls()["matmul"], []
    call = functools.partial(call, out=call())
    for _ in range(graphs.SIGHTINGS):
        call(stream=7)
    count = len(norm.seen.graphs)
    with mock.patch.dict(vars(raw), cuGraphLaunch=lambda graph, stream: streams.append(stream) or 0):
        for stream in (None, 5, 9, None):
            call(stream=stream)
    assert streams == [0, 5, 9, 0] and len(norm.seen.graphs) == count == 1


def calls():
    """{name: a call of several kernels, and its `out`}."""
    dy, x, scale, mean = tensors((4096, 1024), (4096, 1024), (1024,), (4096,))
    spec = dnnkern.RnnSpec("lstm", 8, 8)
    steps, state, weights = torch.ones(4, 2, 8), torch.ones(1, 2, 8), torch.ones(spec.weight_size)
    a, b = tensors((64, 4096), (4096, 64))
    return {"layer_norm_bwd": functools.partial(dnnkern.layer_norm_bwd, dy, x, scale, mean, mean),
            "rnn_fwd": functools.partial(dnnkern.rnn_fwd, spec, steps, state, state, weights, algo="step"),
            "matmul": functools.partial(dnnkern.matmul, a, b, algo="split_k", workspace=torch.ones(1 << 20))}


@pytest.mark.parametrize("name", ["layer_norm_bwd", "rnn_fwd", "matmul"])
@pytest.mark.parametrize("own", [True, False], ids=["out", "results"])
def test_cached_calls_of_several_kernels_are_one_launch(norm, name, own):
    """By sites and by the general path, to which a workspace leads; into results that lie where the last ones did."""
    seen, call = norm.seen, calls()[name]
    if own:
        found = call()
        call = functools.partial(call, out=tuple(x for x in found if x is not None) if isinstance(found, tuple) else found)
    elif name == "matmul":
        call.keywords["workspace"] = None
    seen.clear()
    call()
    assert seen.driver["cuLaunchKernelEx"] > 1 and not seen.driver["cuGraphLaunch"]
    for _ in range(graphs.SIGHTINGS + 1):
        call()
    values = seen.values[-1]
    seen.clear()
    call()
    assert dict(seen.driver) == A_GRAPH and seen.values == [values]


def test_one_kernel_is_no_graph(seen):
    found = tensors((4, 8), (8, 3), (4, 3))
    for _ in range(3 * graphs.SIGHTINGS):
        dnnkern.matmul(*found[:2], out=found[2])
    assert set(seen.driver) & set(A_GRAPH) <= {"cuStreamIsCapturing", "cuCtxGetCurrent"} and seen.driver["cuStreamIsCapturing"] <= 1


def test_layers_in_turn_have_a_graph_each(norm):
    layers = [norm.layer() for _ in range(24)]
    for _ in range(graphs.SIGHTINGS):
        for layer in layers:
            norm(layer)
    assert norm.captured == 24
    for layer in layers * 3:
        assert norm.asks(layer) == A_GRAPH


def test_more_layers_than_graphs_capture_nothing_in_vain(norm):
    """Those that have a graph keep it; the others are launched as ever."""
    layers = [norm.layer() for _ in range(LIMIT + 20)]
    for _ in range(6 * graphs.SIGHTINGS):
        for layer in layers:
            norm(layer)
    assert norm.captured == len(norm.seen.graphs) == LIMIT and not norm.seen.driver["cuGraphExecDestroy"]
    asked = [norm.asks(layer) for layer in layers]
    assert [asked.count(way) for way in (A_GRAPH, KERNEL_BY_KERNEL)] == [LIMIT, 20]


@pytest.mark.parametrize("many", [graphs.COUNTED + 50, 5000])
def test_values_that_do_not_come_again_are_soon_not_counted(norm, many):
    """Nothing is captured, and what is remembered is bounded."""
    layer, memory = norm.layer(), torch.ones(32 * 64 * 56 * 56 + 4 * many)
    places = itertools.cycle([memory[4 * k:][:32 * 64 * 56 * 56].view(32, 64, 56, 56) for k in range(many)])
    resting = 0
    for _ in range(3 * graphs.REST):
        norm((next(places), *layer[1:]))
        resting += norm.replays.rest > 0
        assert len(norm.replays.counts) <= graphs.COUNTED
    assert not norm.captured and resting > 2.5 * graphs.REST
    assert norm.asks((next(places), *layer[1:])) == KERNEL_BY_KERNEL


def test_graphs_go_where_others_come(norm):
    """The one that was launched longest ago, long ago, is given up: a program in another phase has its own graphs again."""
    first, second = ([norm.layer() for _ in range(LIMIT)] for _ in range(2))
    for layers, rounds in ((first, graphs.SIGHTINGS), (second, graphs.SIGHTINGS + graphs.IDLE)):
        for _ in range(rounds):
            for layer in layers:
                norm(layer)
    assert len(norm.seen.graphs) == LIMIT
    for _ in range(graphs.SIGHTINGS):
        for layer in second:
            norm(layer)
    assert norm.captured == 2 * LIMIT and norm.seen.driver["cuGraphExecDestroy"] == LIMIT == len(norm.seen.graphs)
    assert all(norm.asks(layer) == A_GRAPH for layer in second)
    assert all(norm.asks(layer) == KERNEL_BY_KERNEL for layer in first)


def test_numbers_that_change_are_no_graph(norm):
    layer = norm.layer()
    for k in range(3 * graphs.SIGHTINGS):
        norm(layer, eps=1e-5 * (k + 1))
    assert not norm.captured
    for k in range(3 * graphs.SIGHTINGS):
        norm(layer, momentum=(0.0, -0.0)[k % 2])
    assert norm.captured == 2 and str(norm.seen.values[-1]) != str(norm.seen.values[-2])


# ---- where no graph may be launched

@pytest.fixture(name="graphed")
def graphed_fixture(norm):
    """A layer that has a graph."""
    layer = norm.layer()
    for _ in range(graphs.SIGHTINGS):
        norm(layer)
    assert norm.asks(layer) == A_GRAPH
    return layer


def change(monkeypatch, name, function):
    monkeypatch.setitem(vars(raw), name, function)


def test_a_stream_that_is_being_captured(norm, graphed, monkeypatch):
    """Kernels go into the capture; what comes often there is not captured besides."""
    capturing, other = [1], norm.layer()
    change(monkeypatch, "cuStreamIsCapturing", lambda stream, at: setattr(at._obj, "value", capturing[0]) or 0)
    assert norm.asks(graphed) == KERNEL_BY_KERNEL | {"cuCtxGetCurrent": 1}
    for _ in range(3 * graphs.SIGHTINGS):
        assert not norm.asks(other).keys() - {"cuLaunchKernelEx", "cuCtxGetCurrent"}
    capturing[0] = 0
    assert norm.asks(graphed)["cuGraphLaunch"] == 1


@pytest.mark.parametrize("context", [0, 0x2000])
def test_another_context_is_current(norm, graphed, monkeypatch, context):
    """Its null stream is another one; the launches find out."""
    change(monkeypatch, "cuCtxGetCurrent", lambda at: setattr(at._obj, "value", context) or 0)
    assert norm.asks(graphed) == KERNEL_BY_KERNEL


def test_what_cannot_be_captured_is_launched(norm, monkeypatch):
    """And never tried again."""
    def fail(*given):
        raise CudaError("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED")
    layer = norm.layer()
    monkeypatch.setattr(graphs, "failed", fail)
    monkeypatch.setattr("dnnkern.host.driver.failed", fail)
    change(monkeypatch, "cuStreamEndCapture", lambda stream, at: 900)
    for _ in range(graphs.SIGHTINGS - 1):
        norm(layer)
    asked = norm.asks(layer)
    assert asked["cuStreamBeginCapture"] == asked["cuStreamDestroy"] == 1 and asked["cuLaunchKernelEx"] == 2 * KERNELS
    for _ in range(3 * graphs.SIGHTINGS):
        assert norm.asks(layer) == KERNEL_BY_KERNEL


def test_an_interrupt_in_a_capture(norm, monkeypatch):
    """The capture is ended, nothing is kept, and the next call runs."""
    layer = norm.layer()
    for _ in range(graphs.SIGHTINGS - 1):
        norm(layer)
    enqueue = launch.Executable.enqueue

    def interrupted(plan, frame, stream):
        enqueue(plan, frame, stream)
        raise KeyboardInterrupt
    norm.seen.driver.clear()
    with monkeypatch.context() as patch:
        patch.setattr(launch.Executable, "enqueue", interrupted)
        with pytest.raises(KeyboardInterrupt):
            norm(layer)
    assert norm.seen.driver["cuStreamEndCapture"] == norm.seen.driver["cuStreamDestroy"] == 1 and not norm.replays.graphs
    assert norm.asks(layer) == KERNEL_BY_KERNEL


def test_a_graph_that_the_driver_refuses(norm, graphed, monkeypatch):
    def fail(status):
        raise CudaError(f"status {status}")
    monkeypatch.setattr(graphs, "failed", fail)
    change(monkeypatch, "cuGraphLaunch", lambda graph, stream: 700)
    with pytest.raises(CudaError, match="status 700"):
        norm(graphed)


def test_threads_have_graphs_of_their_own(norm, graphed):
    """They go with the thread."""
    asked = []

    def work():
        for _ in range(graphs.SIGHTINGS + 1):
            asked.append(norm.asks(graphed))
        assert len(norm.seen.graphs) == 2
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert asked[0] == KERNEL_BY_KERNEL and asked[-1] == A_GRAPH
    del thread
    gc.collect()
    assert len(norm.seen.graphs) == 1 and norm.asks(graphed) == A_GRAPH


def test_plans_of_many_kernels_are_captured_when_their_values_come_again(norm):
    spec = dnnkern.RnnSpec("lstm", 8, 8)
    steps, state, weights = torch.ones(graphs.MANY, 2, 8), torch.ones(1, 2, 8), torch.ones(spec.weight_size)
    call = functools.partial(dnnkern.rnn_fwd, spec, steps, state, state, weights, algo="step")
    seen, call = norm.seen, functools.partial(call, out=call()[:3], workspace=torch.ones(1 << 20))
    seen.clear()
    for _ in range(4):
        call()
    assert seen.driver["cuGraphInstantiateWithFlags"] == 1 and seen.driver["cuGraphLaunch"] == 3
    assert seen.driver["cuLaunchKernelEx"] >= 2 * graphs.MANY and len(set(seen.values)) == 1

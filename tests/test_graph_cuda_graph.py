"""Plans in CUDA graphs of the caller's: what they get, and what changes in them; with a driver of graphs in memory (`bench.pretend`), and
on a GPU."""
import contextlib
import ctypes
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
from graphs import T, draw, new_graph

import dnnkern.graph as cudnn
from dnnkern.device import DEVICE, HOST_MEMORY, SIMULATED, cuda
from dnnkern.host import launch, raw

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.pretend import pretended_gpu  # noqa: E402

A = [cudnn.heur_mode.A]
pretended = pytest.mark.skipif(not SIMULATED, reason="host logic, tried where no GPU is used")
on_gpu = pytest.mark.skipif(HOST_MEMORY, reason="CUDA graphs on a GPU")


def chain(rows=64):
    """A product whose result a softmax reads, times a number that is passed by value: several kernels, a workspace."""
    graph = new_graph()
    a, b = graph.tensor([1, rows, 48], [rows * 48, 48, 1], uid=1), graph.tensor([1, 48, 32], [1536, 32, 1], uid=2)
    number = graph.tensor([1, 1, 1], [1, 1, 1], is_pass_by_value=True, uid=4)
    graph.mul(graph.softmax(graph.matmul(a, b), 2), number).set_output(True).set_uid(3)
    graph.build(A)
    return graph


# ---- a driver of graphs in memory

class Graphs:
    """CUDA graphs: {handle: [node]}, a node being [type, function, grid, block, shared, words of its parameters]; edges go from node to
    node. `sets` counts changes."""

    def __init__(self, monkeypatch, plan):
        self.handles, self.nodes, self.edges, self.into, self.sets = itertools.count(0x9000), {}, {}, None, 0
        self.executable = plan.executable(frozenset(), None)[0]
        for name in [name for name in dir(self) if name.startswith("cu")]:
            monkeypatch.setitem(vars(raw), name, getattr(self, name))

    def made(self):
        graph = next(self.handles)
        self.nodes[graph], self.edges[graph] = [], []
        return graph

    def of(self, graph):
        """[what its nodes are]"""
        return [vars(self)[node] for node in self.nodes[graph]]

    def _parameters(self, function, at):
        count = next(len(slots) for f, slots in zip(self.executable.functions, self.executable.slots) if f.handle == function)
        return [ctypes.c_uint64.from_address(ctypes.c_uint64.from_address(at + 8 * k).value).value for k in range(count)]

    def add(self, graph, *what):
        node = next(self.handles)
        vars(self)[node] = list(what)
        if self.nodes[graph] and self.nodes[graph][-1] in self.of_this_capture:
            self.edges[graph].append((self.nodes[graph][-1], node))
        self.nodes[graph].append(node)
        self.of_this_capture.add(node)
        return node

    of_this_capture = set()

    def cuStreamBeginCaptureToGraph(self, stream, graph, nodes, data, count, mode):
        assert nodes is data is None and not count and mode == raw.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self.into, self.of_this_capture = graph, set()
        return 0

    def cuStreamEndCapture(self, stream, at):
        at._obj.value, self.into = self.into, None
        return 0

    def cuLaunchKernelEx(self, config, function, parameters, extra):
        words = (ctypes.c_uint * 7).from_address(config)
        assert self.into is not None, "a launch outside of the graph"
        self.add(self.into, 0, function, words[:3], words[3:6], words[6], self._parameters(function, parameters))
        return 0

    def cuGraphGetNodes(self, graph, nodes, count):
        count._obj.value = len(self.nodes[graph])
        if nodes is not None:
            nodes[:] = list(reversed(self.nodes[graph]))  # no order is promised
        return 0

    def cuGraphGetEdges(self, graph, starts, ends, kinds, count):
        count._obj.value = len(self.edges[graph])
        if starts is not None:
            starts[:], ends[:] = map(list, zip(*self.edges[graph]))
        return 0

    def cuGraphNodeGetType(self, node, kind):
        kind._obj.value = vars(self)[node][0]
        return 0

    def cuGraphKernelNodeGetParams(self, node, at):
        _, at._obj.function, at._obj.grid[:], at._obj.block[:], at._obj.shared, _ = vars(self)[node]
        return 0

    def cuGraphKernelNodeSetParams(self, node, at):
        self.sets += 1
        assert vars(self)[node][1] == at._obj.function and not at._obj.extra
        vars(self)[node][5] = self._parameters(at._obj.function, at._obj.parameters)
        return 0


@pytest.fixture(name="drawn")
def drawn_fixture(monkeypatch):
    """(graph, driver of CUDA graphs); kernels are told apart by their handles."""
    handles = itertools.count(0x1000)

    class Function:
        def __init__(self, *ignored):
            self.handle, self.kernel = next(handles), next(handles)
    with pretended_gpu(), monkeypatch.context() as patch:
        patch.setattr(launch, "Function", Function)
        graph = chain()
        yield graph, Graphs(patch, graph._candidate)


def pack(base, number=2.0):
    return {1: base, 2: base + (1 << 20), 3: base + (2 << 20), 4: number}


@pretended
def test_the_launches_and_their_values(drawn):
    graph, driver = drawn
    cuda_graph = driver.made()
    graph.populate_cuda_graph(cudnn.create_handle(), pack(1 << 40), 3 << 40, cuda_graph)
    launches, nodes = driver.executable.launches, driver.of(cuda_graph)
    assert len(nodes) == len(launches) > 1 and len(driver.edges[cuda_graph]) == len(nodes) - 1
    for node, function, each in zip(nodes, driver.executable.functions, launches):
        assert node[:5] == [0, function.handle, [*each.grid], [*each.block], each.shared]
    given = {word for node in nodes for word in node[5]}
    assert {1 << 40, (1 << 40) + (1 << 20), (1 << 40) + (2 << 20), 3 << 40} <= given
    assert driver.into is None and graph.get_workspace_size() > 0


@pretended
def test_updates_change_parameters_alone(drawn):
    graph, driver = drawn
    one, other, later = driver.made(), driver.made(), (pack(1 << 41, 3.0), 3 << 41)
    graph.populate_cuda_graph(None, pack(1 << 40), 3 << 40, one)
    graph.populate_cuda_graph(None, *later, other)
    before = [node[5] for node in driver.of(one)]
    graph.update_cuda_graph(None, *later, one)
    assert driver.of(one) == driver.of(other) and [node[5] for node in driver.of(one)] != before
    assert driver.sets == len(driver.executable.launches)


def another_kernel(driver, graph):
    vars(driver)[driver.nodes[graph][-1]][1] += 0x100


def another_grid(driver, graph):
    vars(driver)[driver.nodes[graph][0]][2] = [7, 7, 7]


def no_kernel(driver, graph):
    vars(driver)[driver.nodes[graph][0]][0] = 1


def one_more(driver, graph):
    vars(driver)[new := next(driver.handles)] = [0, 0x1000, [1, 1, 1], [1, 1, 1], 0, []]
    driver.edges[graph].append((driver.nodes[graph][-1], new))
    driver.nodes[graph].append(new)


def one_beside(driver, graph):
    one_more(driver, graph)
    driver.edges[graph].pop()


def one_less(driver, graph):
    driver.nodes[graph].pop()
    driver.edges[graph].pop()


def nothing(driver, graph):
    driver.nodes[graph].clear()
    driver.edges[graph].clear()


def exchanged(driver, graph):
    driver.edges[graph][:] = [(end, start) for start, end in driver.edges[graph]]


@pretended
@pytest.mark.parametrize("change", [another_kernel, another_grid, no_kernel, one_more, one_beside, one_less, nothing, exchanged])
def test_other_graphs_are_refused(drawn, change):
    """And nothing is changed."""
    graph, driver = drawn
    cuda_graph = driver.made()
    graph.populate_cuda_graph(None, pack(1 << 40), 3 << 40, cuda_graph)
    change(driver, cuda_graph)
    before = [list(node) for node in driver.of(cuda_graph)]
    with pytest.raises(RuntimeError, match="INVALID_VALUE: update_cuda_graph: the CUDA graph is not what populate_cuda_graph makes for"):
        graph.update_cuda_graph(None, pack(1 << 41), 3 << 41, cuda_graph)
    assert not driver.sets and driver.of(cuda_graph) == before


@pretended
def test_bad_input(drawn):
    graph, driver = drawn
    cuda_graph = driver.made()
    for call in (graph.populate_cuda_graph, graph.update_cuda_graph):
        name = call.__name__
        for wrong, error, message in ((None, TypeError, f"{name}: cuda_graph is None; expected the handle"),
                                      (True, TypeError, f"{name}: cuda_graph is True"), ("7", TypeError, f"{name}: cuda_graph is '7'"),
                                      (0, RuntimeError, f"INVALID_VALUE: {name}: cuda_graph is null")):
            with pytest.raises(error, match=message):
                call(None, pack(1 << 40), 3 << 40, wrong)
        with pytest.raises(ValueError, match=f"INVALID_VARIANT_PACK: {name}: got list"):
            call(None, [1], 3 << 40, cuda_graph)
        with pytest.raises(ValueError, match=r"INVALID_VARIANT_PACK: tensor .* \(uid 3\) has no buffer"):
            call(None, {**pack(1 << 40), 3: None}, 3 << 40, cuda_graph)
        with pytest.raises(RuntimeError, match="INVALID_VALUE: execute: got no workspace"):
            call(None, pack(1 << 40), None, cuda_graph)
        with pytest.raises(RuntimeError, match="HANDLE_ERROR"):
            call(12345, pack(1 << 40), 3 << 40, cuda_graph)
        with pytest.raises(RuntimeError, match=f"GRAPH_EXECUTION_FAILED: {name}: the graph 'test_graph' has not been built"):
            getattr(new_graph(), name)(None, {}, None, cuda_graph)
    assert not driver.nodes[cuda_graph]


@pytest.mark.skipif(not HOST_MEMORY, reason="of processes without a GPU")
def test_without_a_gpu():
    graph = chain()
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match=f"populate_cuda_graph: kernels run on the {DEVICE}, and CUDA"):
        graph.populate_cuda_graph(None, {}, None, 1 << 40)
    assert cudnn.behavior_note.SUPPORTS_CUDA_GRAPH_NATIVE_API in graph.get_behavior_notes()


# ---- on a GPU

class Made:
    """A CUDA graph of cuda.bindings, and one that is instantiated of it."""

    def __init__(self):
        self.graph, self.ready = self.ask("cuGraphCreate", 0), None

    @staticmethod
    def ask(name, *given):
        from cuda.bindings import driver
        status, *found = getattr(driver, name)(*given)
        assert not status, (name, status)
        return found[0] if found else None

    def run(self):
        if self.ready is None:
            self.ready = self.ask("cuGraphInstantiate", self.graph, 0)
        else:
            self.ask("cuGraphExecUpdate", self.ready, self.graph)
        self.ask("cuGraphLaunch", self.ready, 0)
        self.ask("cuCtxSynchronize")

    def close(self):
        for name, handle in (("cuGraphExecDestroy", self.ready), ("cuGraphDestroy", self.graph)):
            if handle is not None:
                self.ask(name, handle)


class Buffers:
    """Arrays of `chain` on the device."""

    def __init__(self, graph, seed):
        a, b, y = draw((1, 64, 48), seed), draw((1, 48, 32), seed + 1), np.full((1, 64, 32), np.nan, np.float32)
        self.pack = {**dict(zip((1, 2, 3), map(cuda.to_device, (a, b, y)))), 4: 1.0 + seed}
        self.workspace = cuda.to_device(np.zeros(max(graph.get_workspace_size(), 1), np.uint8))

    @property
    def result(self):
        return self.pack[3].copy_to_host()

    def executed(self, graph):
        """What `execute` writes; the result is NaN again."""
        graph.execute(self.pack, self.workspace)
        cuda.synchronize()
        found = self.result
        self.pack[3].copy_to_device(np.full_like(found, np.nan))
        return found


@on_gpu
def test_a_graph_runs_what_execute_does():
    graph = chain()
    first, second = Buffers(graph, 1), Buffers(graph, 5)
    expected = [buffers.executed(graph) for buffers in (first, second)]
    with contextlib.closing(Made()) as made:
        graph.populate_cuda_graph(cudnn.create_handle(), first.pack, first.workspace, made.graph)
        made.run()
        assert np.array_equal(first.result, expected[0]) and np.isnan(second.result).all()
        graph.update_cuda_graph(None, second.pack, second.workspace, int(made.graph))
        made.run()
        assert np.array_equal(second.result, expected[1])


@on_gpu
def test_child_graphs_are_updated_too():
    """As NVIDIA's sample adds them: the node has a copy."""
    graph = chain()
    first, second = Buffers(graph, 1), Buffers(graph, 5)
    expected = second.executed(graph)
    with contextlib.closing(Made()) as made, contextlib.closing(Made()) as main:
        graph.populate_cuda_graph(None, first.pack, first.workspace, made.graph)
        node = main.ask("cuGraphAddChildGraphNode", main.graph, None, 0, made.graph)
        main.run()
        graph.update_cuda_graph(None, second.pack, second.workspace, main.ask("cuGraphChildGraphNodeGetGraph", node))
        main.run()
        assert np.array_equal(second.result, expected)


@on_gpu
@pytest.mark.parametrize("rows, dtype", [(4096, T.BFLOAT16), (64, T.FLOAT)])
def test_clusters_and_dependent_launches(rows, dtype):
    """Of kernels that Hopper has, twice, updated between."""
    graph = new_graph(dtype)
    a, b = graph.tensor([1, rows, 1024], [rows * 1024, 1024, 1], uid=1), graph.tensor([1, 1024, 1024], [2 ** 20, 1024, 1], uid=2)
    graph.relu(graph.matmul(graph.softmax(graph.relu(graph.matmul(a, b)), 2), b)).set_output(True).set_uid(3)
    graph.build(A)
    size = 4 if dtype is T.FLOAT else 2
    rng, bufs = np.random.default_rng(0), []
    for _ in range(2):
        x, w = (rng.integers(0x3C00, 0x3F80, n, np.uint16) if size == 2 else rng.standard_normal(n, np.float32)
                for n in (rows * 1024, 2 ** 20))
        bufs.append({1: cuda.to_device(x), 2: cuda.to_device(w), 3: cuda.to_device(np.zeros_like(x))})
    workspace = cuda.to_device(np.zeros(max(graph.get_workspace_size(), 1), np.uint8))
    expected = []
    for buffers in bufs:
        graph.execute(buffers, workspace)
        cuda.synchronize()
        expected.append(buffers[3].copy_to_host())
        buffers[3].copy_to_device(np.zeros_like(expected[-1]))
    assert not np.array_equal(*expected)
    with contextlib.closing(Made()) as made:
        graph.populate_cuda_graph(None, bufs[0], workspace, made.graph)
        for k, buffers in enumerate(bufs):
            if k:
                graph.update_cuda_graph(None, buffers, workspace, made.graph)
            for _ in range(2):
                made.run()
                assert np.array_equal(buffers[3].copy_to_host(), expected[k])


@on_gpu
@pytest.mark.parametrize("way", ["executed", "in a CUDA graph"])
def test_parts_and_runs_in_a_row(way):
    """Dependent launches after those of another part, and of the run before, which has the same workspace: bitwise what runs alone give."""
    graph, n = new_graph(T.BFLOAT16), 512
    tensors = [graph.tensor([1, n, n], [n * n, n, 1], uid=k) for k in (1, 2)]
    y = graph.matmul(*tensors)
    for k in range(4):
        y = graph.matmul(graph.softmax(y, 2) if k % 2 else y, tensors[1])
    y.set_output(True).set_uid(3)
    graph.build(A)
    executable = graph._candidate.executable(frozenset(), None)[0]
    rng, packs, expected = np.random.default_rng(0), [], []
    workspace = cuda.to_device(np.zeros(max(graph.get_workspace_size(), 1), np.uint8))
    for _ in range(2):
        x, w = (cuda.to_device(rng.integers(0x3C00, 0x3D80, (1, n, n), np.uint16)) for _ in range(2))
        packs.append({1: x, 2: w, 3: cuda.to_device(np.zeros((1, n, n), np.uint16))})
        graph.execute(packs[-1], workspace)
        cuda.synchronize()
        expected.append(packs[-1][3].copy_to_host())
    assert len(executable.launches) >= 6 and not np.array_equal(*expected)
    with contextlib.closing(Made()) as made:
        if way == "executed":
            for pack_of in packs * 100:
                graph.execute(pack_of, workspace)
            cuda.synchronize()
        else:
            parts = [Made(), Made()]
            node = None
            for part, pack_of in zip(parts * 20, packs * 20):
                if part.ready is None:
                    graph.populate_cuda_graph(None, pack_of, workspace, part.graph)
                    part.ready = part.ask("cuGraphInstantiate", part.graph, 0)
                before = ([node], 1) if node is not None else (None, 0)
                node = made.ask("cuGraphAddChildGraphNode", made.graph, *before, part.graph)
            made.run()
            for part in parts:
                part.close()
    for pack_of, y in zip(packs, expected):
        assert np.array_equal(pack_of[3].copy_to_host(), y)


@on_gpu
def test_another_topology_changes_nothing():
    graph, other = chain(), new_graph()
    x = other.tensor([1, 64, 48], [3072, 48, 1], uid=1)
    other.relu(x).set_output(True).set_uid(3)
    other.build(A)
    first, second = Buffers(graph, 1), Buffers(graph, 5)
    expected = first.executed(graph)
    with contextlib.closing(Made()) as made:
        graph.populate_cuda_graph(None, first.pack, first.workspace, made.graph)
        with pytest.raises(RuntimeError, match="INVALID_VALUE: update_cuda_graph: .*: it has [2-9] nodes; the plan has 1 kernels"):
            other.update_cuda_graph(None, {1: second.pack[1], 3: second.pack[1]}, None, made.graph)
        graph.populate_cuda_graph(None, second.pack, second.workspace, made.graph)
        with pytest.raises(RuntimeError, match="INVALID_VALUE: update_cuda_graph: .*: its nodes are not one after the other"):
            graph.update_cuda_graph(None, second.pack, second.workspace, made.graph)
        made.run()
        assert np.array_equal(first.result, expected) and not np.isnan(second.result).any()

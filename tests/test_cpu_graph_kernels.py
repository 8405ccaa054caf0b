"""Kernel caches on the processor, where kernels are compiled and run; and as on a GPU, up to the driver."""
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from graphs import T, close, execute

import dnnkern.graph as cudnn
from dnnkern import algorithm
from dnnkern.device.cpu import launch
from dnnkern.host import compile as compiling

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.pretend import pretended_gpu  # noqa: E402

A = [cudnn.heur_mode.A]


def linear(m, n, k, cache=None, dtype=T.FLOAT):
    graph = cudnn.pygraph(io_data_type=dtype, intermediate_data_type=T.FLOAT, compute_data_type=T.FLOAT, kernel_cache=cache)
    a, b = graph.tensor([1, m, k], [m * k, k, 1], uid=1), graph.tensor([1, k, n], [k * n, n, 1], uid=2)
    graph.relu(graph.bias(graph.matmul(a, b), graph.tensor([1, 1, n], [n, n, 1], uid=3))).set_output(True).set_uid(4)
    return graph


def check(graph, m, n, k):
    rng = np.random.default_rng(m)
    a, b, bias = (rng.standard_normal(shape, np.float32) for shape in ((1, m, k), (1, k, n), (1, 1, n)))
    y = np.full((1, m, n), np.nan, np.float32)
    execute(graph, {1: a, 2: b, 3: bias, 4: y})
    close(y, np.maximum(a.astype(float) @ b + bias, 0), factor=64, scale=8)


class Counts:
    """What happens in a block: kernels compiled, estimates asked for, modules imported."""

    def __init__(self, monkeypatch):
        self.compiled = self.estimates = 0
        make, anew, least = launch.cpu.compile_kernel, compiling.compile_anew, algorithm.Algorithm.least

        def counted(function):
            def count(*given, **more):
                self.compiled += 1
                return function(*given, **more)
            return count

        def asked(*given, **more):
            self.estimates += 1
            return least(*given, **more)
        monkeypatch.setattr(launch.cpu, "compile_kernel", counted(make))
        monkeypatch.setattr(compiling, "compile_anew", counted(lambda kernel, signature, arch: compiling.Binary(
            repr(signature).encode(), "entry", arch, 32, 0, 0)) if anew else None)
        monkeypatch.setattr(algorithm.Algorithm, "least", asked)

    def of(self, call):
        """(kernels compiled, estimates, modules) of a call."""
        self.compiled, self.estimates, modules = 0, 0, len(sys.modules)
        call()
        return self.compiled, self.estimates, len(sys.modules) - modules


@pytest.fixture(name="counts")
def counts_fixture(monkeypatch):
    return Counts(monkeypatch)


@pytest.fixture(name="no_disk")
def no_disk_fixture(monkeypatch):
    """Kernels are kept nowhere but in kernel caches."""
    monkeypatch.setattr(compiling, "cache_dir", lambda: None)
    monkeypatch.setattr(launch, "_functions", {})


def test_a_second_shape_compiles_nothing(counts, no_disk):
    cache = cudnn.create_kernel_cache()
    first, second = linear(24, 20, 16, cache), linear(56, 44, 28, cache)
    assert counts.of(lambda: first.build(A))[0] > 0 and len(cache) > 0
    assert counts.of(lambda: second.build(A))[::2] == (0, 0)
    check(first, 24, 20, 16)
    check(second, 56, 44, 28)


def test_kernels_in_memory_are_collected_too(no_disk):
    """Of a graph that was built before there was a cache, or by another one."""
    linear(24, 20, 16).build(A)
    cache = cudnn.create_kernel_cache()
    linear(24, 20, 16, cache).build(A)
    assert len(cache) > 0


def test_of_another_process(tmp_path):
    """With nothing on disk, and a compiler that must not be called."""
    cache = cudnn.create_kernel_cache()
    linear(24, 20, 16, cache).build(A)
    (tmp_path / "kernels").write_text(cache.serialize())
    code = """
import sys
sys.path[:0] = [{tests!r}, {root!r}]
import test_cpu_graph_kernels as t
cache = t.cudnn.create_kernel_cache()
cache.deserialize(open({file!r}).read())
t.launch.cpu.compile_kernel = None
graph = t.linear(40, 36, 12, cache)
graph.build(t.A)
t.check(graph, 40, 36, 12)
print("right")
""".format(tests=str(ROOT / "tests"), root=str(ROOT), file=str(tmp_path / "kernels"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          env={**os.environ, "DNNKERN_CACHE_DIR": str(tmp_path / "empty"), "DNNKERN_DEVICE": "cpu"})
    assert done.stdout == "right\n", done.stderr


def test_what_is_no_kernel_cache(tmp_path):
    cache = cudnn.create_kernel_cache()
    linear(24, 20, 16, cache).build(A)
    text = cache.serialize()
    with pytest.raises(RuntimeError, match=f"INVALID_VALUE: deserialize: the kernel cache has {len(cache)} kernels already"):
        cache.deserialize(text)
    assert cache.serialize() == text
    again = cudnn.create_kernel_cache()
    again.deserialize(text)
    assert again.serialize() == text
    data = json.loads(text)
    for wrong in ("", "[]", "{}", text[:-1], json.dumps({**data, "version": "9"}), json.dumps({**data, "format": 0}),
                  json.dumps({**data, "body": data["body"].replace("matmul", "mutmal")}), text.replace("A", "B", 1)):
        empty = cudnn.create_kernel_cache()
        with pytest.raises(RuntimeError, match="INVALID_VALUE: deserialize: no kernel cache, or a damaged one"):
            empty.deserialize(wrong)
        assert not len(empty)
    with pytest.raises(TypeError, match="deserialize: got bytes"):
        cudnn.create_kernel_cache().deserialize(text.encode())
    with pytest.raises(TypeError, match="pygraph: kernel_cache is 'kernels'; expected one of create_kernel_cache"):
        cudnn.pygraph(kernel_cache="kernels")
    assert cudnn.pygraph(kernel_cache=cache).is_dynamic_shape_enabled and not cudnn.pygraph().is_dynamic_shape_enabled


# ---- as on a GPU

SHAPES = (4096, 4096, 4096), (4096, 4096, 1024), (2048, 4096, 4096), (1024, 2048, 512), (640, 1152, 384)


def test_choices_of_a_gpu(counts, no_disk):
    """Five shapes, whose best configurations differ, run by the first one's kernel; one for which that is predicted to be
    far too slow gets its own."""
    cache = cudnn.create_kernel_cache()
    with pretended_gpu():
        plans = []
        for number, shape in enumerate(SHAPES):
            graph = linear(*shape, cache, T.BFLOAT16)
            compiled, estimates, modules = counts.of(lambda: graph.build(A))
            assert (compiled, estimates < 30, modules * number) == (number == 0, True, 0), (compiled, estimates, modules)
            plans.append(graph.get_plan_name_at_index(0))
        assert len(set(plans)) == 1
        alone = linear(*SHAPES[-1], None, T.BFLOAT16)
        alone.build(A)
        assert alone.get_plan_name_at_index(0) != plans[0]
        graph = linear(8, 64, 64, cache, T.BFLOAT16)
        assert counts.of(lambda: graph.build(A))[0] <= 1


def test_trap_14_an_execution_asks_the_driver_for_nothing_but_launches(no_disk, monkeypatch):
    """No memory, no synchronisation, no stream that was current before: of one kernel, and of several with a workspace."""
    torch = pytest.importorskip("torch")
    from dnnkern.host import raw
    with pretended_gpu():
        asked = []
        for name in raw.FUNCTIONS:
            def noted(*given, _name=name, _call=getattr(raw, name)):
                asked.append(_name)
                return _call(*given)
            monkeypatch.setattr(raw, name, noted)
        for last in ("relu", "softmax"):
            graph = cudnn.pygraph(io_data_type=T.FLOAT, intermediate_data_type=T.FLOAT, compute_data_type=T.FLOAT)
            a, b = graph.tensor([1, 64, 48], [3072, 48, 1]), graph.tensor([1, 48, 32], [1536, 32, 1])
            y = graph.matmul(a, b)
            y = (graph.relu(y) if last == "relu" else graph.softmax(y, 2)).set_output(True)
            graph.build(A)
            pack = {a: torch.ones(1, 64, 48), b: torch.ones(1, 48, 32), y: torch.ones(1, 64, 32)}
            workspace = torch.empty(graph.get_workspace_size(), dtype=torch.uint8)
            graph.execute(pack, workspace)
            asked.clear()
            graph.execute(pack, workspace)
            graph._execute_with_ptrs([pack[t].data_ptr() for t in (a, b, y)], workspace, cudnn.create_handle())
            assert set(asked) == {"cuLaunchKernelEx"} and len(asked) == 2 * len(graph._candidate.executable(frozenset(), None)[0].launches)


def test_repeated_calls_copy_what_overlaps(no_disk, monkeypatch):
    """Each call by itself: one whose buffers overlap has one more launch, needs its workspace, and leaves nothing for the next."""
    torch = pytest.importorskip("torch")
    from dnnkern.host import raw
    with pretended_gpu():
        graph = cudnn.pygraph(io_data_type=T.FLOAT, intermediate_data_type=T.FLOAT, compute_data_type=T.FLOAT)
        a = graph.tensor([6, 40], [40, 1], name="x")
        y, z = graph.neg(a).set_output(True), graph.softmax(a, 1).set_output(True)
        graph.build(A)
        launched, launch_one = [], raw.cuLaunchKernelEx
        monkeypatch.setattr(raw, "cuLaunchKernelEx", lambda *given: launched.append(1) or launch_one(*given))
        x, other, out = (torch.ones(6, 40) for _ in range(3))
        large, small = (torch.empty(size, dtype=torch.uint8) for size in (graph.get_workspace_size_with_copies(), 16))

        def count(over, workspace):
            launched.clear()
            graph.execute({a: x, y: over, z: out}, workspace)
            return len(launched)
        assert [count(other, large) for _ in range(3)] == [2, 2, 2] and [count(x, large) for _ in range(3)] == [3, 3, 3]
        for _ in range(3):
            with pytest.raises(RuntimeError, match="has 16 bytes; the plan needs"):
                count(x, small)
            assert not launched
        assert [count(other, small) for _ in range(3)] == [2, 2, 2]


def test_time_of_a_second_shape(counts, no_disk):
    """Under 10 ms of this process; the least of some, since others take its caches."""
    cache = cudnn.create_kernel_cache()
    with pretended_gpu():
        linear(*SHAPES[0], cache, T.BFLOAT16).build(A)
        times = []
        for rows in range(1024, 4096, 256):
            started = time.process_time()
            linear(rows, 4096, 4096, cache, T.BFLOAT16).build(A)
            times.append(time.process_time() - started)
    assert min(times) < 0.010, times

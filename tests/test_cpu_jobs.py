"""Kernels compiled side by side, in children of the process: `dnnkern.host.jobs`, and what the processor's plans and `find` ask of it."""
import os
import signal
import sys
import threading
import time
import types

import pytest
from test_cpu import counts, refused, reversed_by_barriers

import dnnkern
from dnnkern import dispatch, find
from dnnkern.device import cpu
from dnnkern.device.cpu import launch as cpu_launch
from dnnkern.host import compile as host_compile
from dnnkern.host import jobs
from dnnkern.host.cpu import CpuExecutable
from dnnkern.host.device import device as device_of
from dnnkern.host.launch import Argument, Launch


@pytest.fixture
def forks(monkeypatch):
    """This process has two cores, and may have a child whatever threads pytest has."""
    monkeypatch.setattr(jobs, "forks", lambda: True)
    monkeypatch.setattr(cpu_launch, "forks", lambda: True)
    monkeypatch.setattr(jobs, "cores", lambda: 2)


def noted(path, k, seconds=0.02):
    """A task that notes its number and its process, and takes its time."""
    def task():
        with open(path / f"{k}", "a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(seconds)
    return task


def processes(path):
    return [[int(line) for line in (path / name).read_text().splitlines()] for name in sorted(os.listdir(path), key=int)]


def no_child_is_left():
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    return True


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_each_task_runs_once(workers, forks, tmp_path):
    jobs.side_by_side([noted(tmp_path, k) for k in range(9)], workers)
    found = processes(tmp_path)
    assert [len(pids) for pids in found] == 9 * [1]
    pids = {pid for pid, in found}
    assert len(pids) == workers and os.getpid() in pids and no_child_is_left()


def test_nothing_to_do(forks):
    jobs.side_by_side([])


def test_a_child_that_dies_takes_one_task_with_it(forks, tmp_path):
    here = os.getpid()

    def deadly():
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.3)  # until the child has taken its one
    jobs.side_by_side([deadly, deadly, *(noted(tmp_path, k) for k in range(5))])
    assert [len(pids) for pids in processes(tmp_path)] == 5 * [1] and no_child_is_left()


def test_what_a_task_raises_and_prints_stays_with_it(forks, tmp_path, capfd):
    here = os.getpid()

    def loud():
        if os.getpid() != here:
            os.write(2, b"from the child")
            print("from the child", flush=True)
        time.sleep(0.2)
        raise RuntimeError("of a task")
    jobs.side_by_side([loud, loud, noted(tmp_path, 0)])
    assert len(processes(tmp_path)) == 1 and capfd.readouterr() == ("", "")


def test_a_child_that_does_not_end_is_ended(forks, monkeypatch):
    here = os.getpid()
    monkeypatch.setattr(jobs, "TIMEOUT", 0.1)
    started = time.monotonic()
    jobs.side_by_side(2 * [lambda: time.sleep(0.3 if os.getpid() == here else 60)])
    assert time.monotonic() - started < 20 and no_child_is_left()


def test_ctrl_c_ends_the_children(forks):
    def stopped(signum, frame):
        raise KeyboardInterrupt
    before = signal.signal(signal.SIGALRM, stopped)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            jobs.side_by_side(4 * [lambda: time.sleep(20)])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - started < 15 and no_child_is_left()
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {signal.SIGINT, signal.SIGTERM}


def test_where_a_child_is_not_safe_or_has_no_core_nothing_forks(monkeypatch, tmp_path):
    current = threading.current_thread()
    monkeypatch.setattr(threading, "enumerate", lambda: [current, types.SimpleNamespace(name="dnnkern_0")])
    monkeypatch.setattr(jobs, "cores", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (2.0, 9.0, 9.0))
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    assert jobs.forks()
    with monkeypatch.context() as busy:
        busy.setattr(os, "getloadavg", lambda: (4.0, 0.0, 0.0))
        assert not jobs.forks()
    monkeypatch.setitem(sys.modules, "jax", types.ModuleType("jax"))
    assert not jobs.forks()
    monkeypatch.delitem(sys.modules, "jax")
    monkeypatch.setattr(threading, "enumerate", lambda: [current, types.SimpleNamespace(name="Thread-1")])
    assert not jobs.forks()
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("forked"))
    jobs.side_by_side([noted(tmp_path, k) for k in range(3)])
    assert processes(tmp_path) == 3 * [[os.getpid()]]


# ---- kernels

def launches(*kernels):
    kinds = {reversed_by_barriers: ("float32*", "float32*", "int32"), counts: ("int32*", "uint32*"), refused: ("float32*",)}
    return [Launch(k, (1, 1, 1), (32, 1, 1), tuple(Argument(kind, kind) for kind in kinds[k])) for k in kernels]


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    monkeypatch.setattr(host_compile, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(cpu_launch, "_functions", {})
    return tmp_path


def kernels_in(folder):
    """The kernels on disk; the handler of signals, which a process keeps there once, is none."""
    return [path for path in folder.rglob("*.o") if not path.name.startswith("signals-")]


def test_kernels_of_a_plan_are_compiled_side_by_side(forks, fresh, monkeypatch, tmp_path_factory):
    plain, path, here = cpu.compile_kernel, tmp_path_factory.mktemp("who"), os.getpid()

    def slowly(kernel, signature, *how):
        noted(path, len(signature), 0.3)()
        return plain(kernel, signature, *how)
    monkeypatch.setattr(cpu, "compile_kernel", slowly)
    both = launches(reversed_by_barriers, counts)
    CpuExecutable(both, [(a.value, "pointer") for k in both for a in k.arguments], 0)
    (one,), (two,) = processes(path)
    assert here in (one, two) and one != two and len(kernels_in(fresh)) == 2
    assert {k.kernel for k in both} == {kernel for kernel, *_ in cpu_launch._functions}


@pytest.mark.parametrize("why", ["one is on disk", "one is in memory", "no cache", "no children"])
def test_where_there_is_nothing_to_share_nothing_is_forked(why, forks, fresh, monkeypatch):
    both = launches(reversed_by_barriers, counts)
    if why == "one is on disk":
        cpu_launch.compile_kernel(counts, both[1].signature)
    elif why == "one is in memory":
        cpu_launch._functions[counts, both[1].signature, cpu_launch.BOUNDS] = None
    elif why == "no cache":
        monkeypatch.setattr(host_compile, "cache_dir", lambda: None)
    else:
        monkeypatch.setattr(cpu_launch, "forks", lambda: False)
    monkeypatch.setattr(cpu_launch, "side_by_side", lambda tasks: pytest.fail("forked"))
    cpu_launch.compile_ahead(both)


def test_a_kernel_that_is_refused_is_refused_here(forks, fresh):
    both = launches(reversed_by_barriers, refused)
    with pytest.raises(cpu.Refused, match=r"refused \(.*the instruction 'unheard.of.f32"):
        CpuExecutable(both, [(a.value, "pointer") for k in both for a in k.arguments], 0)
    assert len(kernels_in(fresh)) == 1


def test_find_compiles_all_candidates_first(monkeypatch):
    given = []
    monkeypatch.setattr(cpu_launch, "compile_ahead", given.extend)
    problem, device = dnnkern.problem("softmax_fwd", x=((8, 64), "float32")), device_of(0)
    trials = [find.Trial(a.configured(problem, device), problem, device) for a in dispatch.algorithms("softmax_fwd")
              if dispatch.refusal(a, problem, device) is None]
    trials[0].algorithm = types.SimpleNamespace(build=lambda *_: 1 / 0, config=None)
    find._compile_ahead(trials)
    assert len({k.kernel for k in given}) >= len(trials) - 1 > 1

"""The simulator between threads, forks and interrupts: calls wait for each other, and none leaves anything behind."""
import contextlib
import gc
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import greenlet
import numpy as np
import pytest

import dnnkern
from dnnkern import dispatch, registry
from dnnkern.device.sim import Misuse, current, cuda, engine, order
from dnnkern.device.sim.block import Block
from dnnkern.device.sim.kernel import Launch

LIMIT = 60  # seconds after which something hangs

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


@pytest.fixture(autouse=True)
def interrupts():
    """Ctrl-C is KeyboardInterrupt, as in a terminal: processes in the background are started with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@cuda.jit
def reverse(x, y):
    i = cuda.threadIdx.x
    tile = cuda.shared.array(64, np.int32)
    tile[i] = x[i]
    cuda.syncthreads()
    y[i] = tile[63 - i]


def launch():
    """A launch whose result is checked."""
    x, y = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    reverse[1, 64](x, y)
    assert (y == x[::-1]).all()


@contextlib.contextmanager
def another_thread_in_a_kernel():
    """While the block runs, another thread is in the midst of a launch; gives the event that lets it end."""
    entered, leave = threading.Event(), threading.Event()

    def body(y):
        cuda.syncthreads()
        if cuda.threadIdx.x == 3:
            entered.set()
            assert leave.wait(LIMIT)
        cuda.syncthreads()
        y[cuda.threadIdx.x] = 1
    y = np.zeros(40, np.int32)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(lambda: cuda.jit(body)[1, 40](y))
        try:
            assert entered.wait(LIMIT)
            yield leave
        finally:
            leave.set()
        other.result(LIMIT)
    assert y.all()


def test_a_launch_waits_for_that_of_another_thread():
    with another_thread_in_a_kernel() as leave:
        with pytest.raises(Misuse, match="no simulated kernel is running"):
            current()
        with pytest.raises(Misuse, match="kernel reverse is called without a launch configuration"):
            reverse(None, None)
        threading.Timer(0.05, leave.set).start()
        launch()


def test_a_launch_inside_a_kernel_is_refused():
    def body(x, y):
        reverse[1, 64](x, y)
    with pytest.raises(Misuse, match="kernel reverse is launched from inside a kernel"):
        cuda.jit(body)[1, 1](np.zeros(64, np.int32), np.zeros(64, np.int32))
    launch()


def test_calls_from_eight_threads():
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-4, 5, (3 + k % 2, 4)).astype(np.float32) for k in range(8)]
    start = threading.Barrier(8)

    def calls(a):
        start.wait(LIMIT)
        for _ in range(3):
            assert (dnnkern.matmul(a, a, transpose_b=True, algo="naive") == a @ a.T).all()
            launch()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(calls, arrays))


def in_a_child(work):
    """Run `work()` in a forked child; its exit status."""
    child = os.fork()
    if not child:
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(LIMIT)
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def calls():
    a = np.ones((3, 4), np.float32)
    assert (dnnkern.matmul(a, a, transpose_b=True) == 4).all()
    launch()


@needs_fork
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_child_forked_while_another_thread_calls():
    dnnkern.matmul(np.ones((3, 4), np.float32), np.ones((3, 4), np.float32), transpose_b=True)
    with another_thread_in_a_kernel():
        assert in_a_child(calls) == 0


@needs_fork
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_child_forked_while_another_thread_prepares_a_call():
    held, leave = threading.Event(), threading.Event()

    def prepare():
        with sys.modules["dnnkern.matmul"].OPERATION.lock, registry._lock:
            held.set()
            assert leave.wait(LIMIT)

    def fresh():
        dispatch.choices_changed()
        calls()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(prepare)
        try:
            assert held.wait(LIMIT)
            assert in_a_child(fresh) == 0
        finally:
            leave.set()
        other.result(LIMIT)


@needs_fork
def test_a_child_forked_inside_a_kernel_ends_its_launch():
    def body(children):
        cuda.syncthreads()
        if cuda.threadIdx.x == 5:
            children.append(os.fork())
        cuda.syncthreads()
    children = []
    try:
        cuda.jit(lambda: body(children)).simulate(1, 40, [])
        calls()
    finally:
        if children and not children[0]:
            os._exit(0)
    assert os.waitpid(children[0], 0)[1] == 0


def workers():
    gc.collect()
    return sum(isinstance(o, engine.Worker) and not o.dead for o in gc.get_objects())


def work():
    cuda.syncthreads()
    if cuda.threadIdx.x == 7:
        signal.raise_signal(signal.SIGINT)
        for _ in range(1000):  # Python looks for signals now and then
            pass
    cuda.syncthreads()


def test_an_interrupt_in_a_kernel():
    before = workers()
    with pytest.raises(KeyboardInterrupt):
        cuda.jit(work).simulate(2, 40, [])
    launch()
    assert workers() == before


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("where, name", [(engine, "_leave"), (Block, "release"), (order, "examine"), (Launch, "admit"), (Launch, "finish"),
                                         (Launch, "new_worker"), (Launch, "end_workers"), (Launch, "_argument")],
                         ids=lambda x: getattr(x, "__name__", x).split(".")[-1])
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_an_interrupt_in_the_simulator(where, name, times, late, monkeypatch):
    inner, count = getattr(where, name), [0]

    def interrupted(*args, **options):
        count[0] += 1
        now = count[0] == times
        if now and not late:
            raise KeyboardInterrupt
        result = inner(*args, **options)
        if now:
            raise KeyboardInterrupt
        return result
    before = workers()
    monkeypatch.setattr(where, name, interrupted)
    x, y = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    try:
        for _ in range(3):
            reverse[1, 64](x, y)
    except KeyboardInterrupt:
        pass
    else:
        raise AssertionError(f"{name} ran {count[0]} times only")
    monkeypatch.undo()
    launch()
    if name != "end_workers" or late:
        assert workers() == before


def test_an_interrupt_while_workers_are_ended():
    """Those that come after the one in whose finally clause it arrives are ended as well."""
    left = []

    def body():
        try:
            cuda.syncthreads()
            if cuda.threadIdx.x == 9:
                raise ValueError
            cuda.syncthreads()
        except greenlet.GreenletExit:
            left.append(1)
            if len(left) == 5:
                raise KeyboardInterrupt from None
            raise
    before = workers()
    with pytest.raises(KeyboardInterrupt):
        cuda.jit(body).simulate(1, 40, [])
    assert len(left) > 30 and workers() == before
    launch()


def test_an_interrupt_while_waiting_for_another_thread():
    with another_thread_in_a_kernel():
        threading.Timer(0.05, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            launch()
            time.sleep(LIMIT)
    launch()

"""The processor as a device, of kernels that do wrong: what is said of them, and that the next launch is right."""
import ctypes
import mmap
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from kit import launch

from dnnkern.device import cpu, cuda, f32, i32, i64, u32, warp
from dnnkern.device.barrier import barrier_sync
from dnnkern.device.cluster import cluster_rank, cluster_sync
from dnnkern.device.cpu import launch as cpu_launch
from dnnkern.device.grid import announce, await_blocks
from dnnkern.device.mbarrier import fence_mbarrier_init, mbarrier_arrive_expect, mbarrier_init, mbarrier_test, mbarrier_wait
from dnnkern.device.vec import shared_address


@cuda.jit(launch_bounds=128)
def well(x):
    t = i32(cuda.threadIdx.x)
    v = warp.shuffle_xor_sync(u32(0xFFFFFFFF), t, i32(1))
    cuda.syncthreads()
    x[i32(cuda.blockIdx.x * 128) + t] = v


def goes_on():
    """Kernels run as ever."""
    x = np.zeros((64, 128), np.int32)
    launch(well, 64, 128, x.reshape(-1))
    np.testing.assert_array_equal(x, np.broadcast_to(np.arange(128) ^ 1, x.shape))


# ---- who waits for whom

@cuda.jit(launch_bounds=128)
def apart(x):
    t = i32(cuda.threadIdx.x)
    if t < 8:
        warp.shuffle_xor_sync(u32(0xFFFF), t, i32(1))
    elif t < 32 or 64 <= t < 96:
        cuda.syncthreads()
    elif t < 64:
        barrier_sync(2, 128)
    elif t < 127:
        while x[0] == 0:
            cuda.nanosleep(u32(100))


def test_who_waits_for_whom():
    with pytest.raises(cpu.Deadlock) as caught:
        launch(apart, (1, 2), 128, np.zeros(1, np.int32))
    assert str(caught.value).splitlines() == [
        "kernel apart: no thread can go on",
        "  block (0, 0, 0):",
        "    8 threads 0-7: collective of the lanes 0-15 of a warp: 8-15 missing",
        "    56 threads 8-31, 64-95: syncthreads: 56 of the 127 threads that have not returned have arrived",
        "    32 threads 32-63: barrier 2: 32 of 128 threads have arrived",
        "    31 threads 96-126: sleeps (nanosleep)"]
    goes_on()


@cuda.jit(launch_bounds=32)
def meets(came, n):
    announce(came)
    await_blocks(came, u32(n))


@pytest.mark.parametrize("blocks, more", [(2, 0), (6, 2)])
def test_who_waits_for_a_block_that_there_is_not(blocks, more):
    came = np.zeros(1, np.uint32)
    with pytest.raises(cpu.Deadlock) as caught:
        launch(meets, blocks, 32, came, blocks + 1, cooperative=True)
    lines = str(caught.value).splitlines()
    assert [line for line in lines if "polls" in line] == min(blocks, 4) * [
        f"    thread 0: polls {came.ctypes.data:#x}, byte 0 of argument 'came' (4 bytes): it holds {blocks}"]
    assert sum("31 threads 1-31: syncthreads: 31 of the 32" in line for line in lines) == min(blocks, 4)
    assert lines[-1] == f"  and {more} more blocks" if more else "more blocks" not in lines[-1]
    came[0] = 0
    launch(meets, blocks, 32, came, blocks, cooperative=True)
    assert came[0] == blocks


@cuda.jit(launch_bounds=64)
def lacks_an_arrival(y):
    bars = cuda.shared.array(2, i64)
    t, bar = i32(cuda.threadIdx.x), shared_address(bars, 1)
    if t == 0:
        mbarrier_init(bar, u32(3))
        fence_mbarrier_init()
    cuda.syncthreads()
    if t == 0:
        mbarrier_arrive_expect(bar, u32(96))
    if t < 32:
        mbarrier_wait(bar, u32(0))
    while not mbarrier_test(bar, u32(0)):
        y[0] += i32(1)


def test_who_waits_at_an_mbarrier():
    with pytest.raises(cpu.Deadlock) as caught:
        launch(lacks_an_arrival, 1, 64, np.zeros(1, np.int32))
    assert str(caught.value).splitlines()[2:] == [
        "    64 threads 0-63: mbarrier at byte 8 of shared memory, phase of parity 0: 2 of 3 arrivals and 96 bytes missing"]
    goes_on()


@cuda.jit(launch_bounds=32)
def not_all_of_a_cluster(y):
    t = i32(cuda.threadIdx.x)
    if cluster_rank() == 1 and t == 7:
        while y[0] == 0:
            cuda.nanosleep(u32(100))
    cluster_sync()


def test_who_waits_for_a_cluster():
    with pytest.raises(cpu.Deadlock) as caught:
        launch(not_all_of_a_cluster, 4, 32, np.zeros(1, np.int32), cluster=2)
    there = "barrier of the cluster: 63 of the 64 threads that have not returned have arrived"
    assert str(caught.value).splitlines()[1:] == [
        "  block (0, 0, 0):", f"    32 threads 0-31: {there}",
        "  block (1, 0, 0):", f"    31 threads 0-6, 8-31: {there}", "    thread 7: sleeps (nanosleep)"]
    goes_on()


# ---- wild accesses

@pytest.fixture(name="x")
def guarded():
    """Four floats between 64 KiB on either side that nobody may touch."""
    memory = mmap.mmap(-1, 3 << 16)
    at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for k in (0, 2):
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(at + (k << 16)), 1 << 16, 0) == 0
    return np.frombuffer(memory, np.float32, 1 << 14, 1 << 16)[-4:]


@cuda.jit(launch_bounds=32)
def writes(x, block, distance):
    if cuda.blockIdx.x == block and cuda.threadIdx.x == 5:
        x[distance] = f32(1)


@cuda.jit(launch_bounds=32)
def reads(x, block, distance):
    cuda.syncthreads()
    if cuda.blockIdx.x == block and cuda.threadIdx.x == 5:
        x[0] = x[distance]
    cuda.syncthreads()


@pytest.mark.parametrize("kernel, distance, words", [
    (writes, 8, "writes to 0x[0-9a-f]+, 16 bytes past the end of argument 'x'"),
    (reads, -(1 << 14), "reads from 0x[0-9a-f]+, 65536 bytes before argument 'x'")])
def test_a_wild_access(kernel, distance, words, x):
    message = rf"kernel {kernel.__name__}: thread \(5, 0, 0\) of block \(2, 0, 0\) {words} \(16 bytes\), .* \(DNNKERN_DEVICE=simulator\)"
    for _ in range(2):
        with pytest.raises(cpu.BadAccess, match=message):
            launch(kernel, 4, 32, x, 2, distance)
        goes_on()


@pytest.mark.parametrize("block", [0, 1, 500, 999])
def test_a_wild_access_on_any_thread_of_the_system(block, shared_out, x):
    with pytest.raises(cpu.BadAccess, match=rf"block \({block}, 0, 0\) writes"):
        launch(writes, 1000, 32, x, block, 8)
    goes_on()


def test_a_wild_access_in_a_worker(shared_out, monkeypatch, x):
    """The calling thread goes on when another one has run a chunk."""
    function, another, found = cpu_launch.function(writes, ("float32*", "int32", "int32")), threading.Event(), set()
    run = function.run

    def noted(*arguments):
        worker = threading.current_thread() is not threading.main_thread()
        if not worker:
            another.wait(10)
        cause = run(*arguments)
        if worker:
            another.set()
        if cause:
            found.add(worker)
        return cause
    monkeypatch.setattr(function, "run", noted)
    for _ in range(100):
        another.clear()
        with pytest.raises(cpu.BadAccess):
            launch(writes, 3, 32, x, 1, 8)
        if True in found:
            break
    assert True in found
    goes_on()


def test_threads_of_a_program_access_wildly_at_once(x):
    def work(k):
        for _ in range(10):
            try:
                launch(reads, 4, 32, x, k % 4, 8)
            except cpu.BadAccess as error:
                found[k] += f"block ({k % 4}, 0, 0) reads" in str(error)
    found = [0] * 8
    threads = [threading.Thread(target=work, args=(k,)) for k in range(len(found))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == [10] * len(found)
    goes_on()


def test_arenas_go_with_their_threads():
    def mapped():
        for _ in range(10):
            thread = threading.Thread(target=goes_on)
            thread.start()
            thread.join()
        with open("/proc/self/maps") as lines:
            return len(list(lines))
    mapped()
    assert mapped() < mapped() + 10


def test_signals_after_the_arenas_have_gone(monkeypatch):
    """The signal stack was in them; in a child process, which a handler without a stack would end."""
    monkeypatch.setattr(cpu_launch, "cores", lambda: 1)  # all blocks run in the thread that launches, however slow it is

    def work():
        goes_on()
        del cpu_launch._arenas.mapping
        cpu_launch._arenas.count = 0
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        goes_on()
        ended.append(True)
    child = os.fork()
    if not child:
        ended = []
        signal.signal(signal.SIGUSR1, lambda *_: None)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        os._exit(0 if ended else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_wild_access_in_a_child_process(x):
    goes_on()
    child = os.fork()
    if not child:
        try:
            launch(writes, 4, 32, x, 1, 8)
        except cpu.BadAccess:
            goes_on()
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.parametrize("crash, words", [
    ("faulthandler.enable(); ctypes.string_at(8)", "Fatal Python error: Segmentation fault"), ("ctypes.string_at(8)", ""),
    ("os.kill(os.getpid(), signal.SIGSEGV)", "")])
def test_other_crashes_are_as_before(crash, words):
    """Also in a process whose kernels have accessed wildly."""
    program = f"""
import ctypes, faulthandler, os, signal
import numpy as np
import test_cpu_faults as t
if "enable" in {crash!r}:
    faulthandler.enable()
t.test_a_wild_access(t.writes, 8, "writes to .* argument 'x'", t.guarded.__wrapped__())
print("alive", flush=True)
{crash.removeprefix("faulthandler.enable(); ")}
print("still alive")
"""
    ended = subprocess.run([sys.executable, "-c", program], cwd=os.path.dirname(__file__), capture_output=True, text=True, timeout=60,
                           env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert ended.stdout == "alive\n" and ended.returncode == -signal.SIGSEGV and words in ended.stderr, ended


# ---- stacks

def _with_local(floats):
    @cuda.jit(launch_bounds=128)
    def local(x, n):
        t = i32(cuda.threadIdx.x)
        a = cuda.local.array(floats, f32)
        for k in range(n):
            a[k * 13 % floats] = f32(t + k)
        cuda.syncthreads()
        for k in range(n):
            x[t] += a[k * 13 % floats]
    return local


def test_local_arrays_fit_or_are_an_error():
    x, n = np.zeros(128, np.float32), 100
    launch(_with_local(15000), 1, 128, x, n)
    np.testing.assert_array_equal(x, n * np.arange(128) + n * (n - 1) // 2)
    for floats, thread in ((25000, r"\d+"), (50000, "0"), (5_000_000, "0")):
        with pytest.raises(cpu.StackOverflow, match=rf"kernel local: .* thread \({thread}, 0, 0\) of .* take {4 * floats // 1000}\d* "
                                                    "bytes; its stack has 131072"):
            launch(_with_local(floats), 1, 128, x, n)
        goes_on()


@cuda.jit
def factorial(n):
    if n <= i32(1):
        return i32(1)
    return i32(n * factorial(i32(n - i32(1))))


@cuda.jit(launch_bounds=32)
def recursive(x, n):
    x[0] = factorial(n)


def test_recursion_that_does_not_end():
    x = np.zeros(1, np.int32)
    launch(recursive, 1, 1, x, 5)
    assert x[0] == 120
    with pytest.raises(cpu.StackOverflow, match=r"kernel recursive: the functions .* block \(0, 0, 0\) .* 131072 bytes"):
        launch(recursive, 1, 32, x, 1 << 30)
    goes_on()

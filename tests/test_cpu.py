"""The processor as a device: threads that wait for each other, algorithms against float64, what is refused, and the cache.

The building blocks themselves are tested in test_cpu_device.py.
"""
import importlib
import os
import pkgutil
import signal
import threading
import time

import cases
import contract
import numpy as np
import pytest
from kit import launch

import dnnkern
import dnnkern.device as device
from dnnkern import dispatch
from dnnkern.device import cpu, cuda, f32, i32, instruction, u32, warp
from dnnkern.device.atomic import fetch_add_u32
from dnnkern.device.cpu import forms, runtime
from dnnkern.device.cpu import launch as cpu_launch
from dnnkern.device.grid import add_released, announce, await_blocks, load_acquired
from dnnkern.device.vec import address
from dnnkern.host import compile as host_compile
from dnnkern.host.device import device as device_of

# (operation, algorithm), some of each family; together half a minute of CPU. With --full every algorithm of every operation.
ALGORITHMS = [
    ("activation_fwd", "vector"), ("softmax_fwd", "warp"), ("softmax_fwd", "split"), ("layer_norm_fwd", "block"), ("matmul", "naive"),
    ("matmul", "blocked"), ("matmul", "mma"), ("matmul", "split_k"), ("reduce", "rows"), ("max_pool_fwd", "naive"), ("conv_fwd", "naive"),
    ("sdpa_fwd", "naive"), ("dropout_fwd", "naive"), ("cross_entropy_fwd", "naive"), ("transpose", "naive"), ("adam_step", "naive"),
    ("rnn_fwd", "naive"), ("rnn_fwd", "persistent"),
    ("matmul", "wgmma"), ("conv_fwd", "implicit_gemm_wgmma"), ("sdpa_fwd", "flash_wgmma"), ("softmax_fwd", "cluster")]


def pytest_generate_tests(metafunc):
    if metafunc.definition.name == "test_algorithms":
        every = ((op, algorithm.name) for op in cases.modules() for algorithm in dispatch.algorithms(op))
        metafunc.parametrize("op, name", list(every) if metafunc.config.getoption("--full") else ALGORITHMS)


def test_algorithms(op, name):
    """As the contract: guards around all arrays, tolerances from the definition."""
    algorithm = next(a for a in dispatch.algorithms(op) if a.name == name)
    if (reason := device_of(0).supports(algorithm.arch)) is not None:
        pytest.skip(reason)
    case = next(c for c in cases.modules()[op].CASES if not c.problem().is_empty and contract.refusal(algorithm, c.problem()) is None)
    contract.check(algorithm, case, again=False)


# ---- threads that wait

@cuda.jit(launch_bounds=96)
def reversed_by_barriers(x, y, steps):
    tile = cuda.shared.array(96, f32)
    t = i32(cuda.threadIdx.x)
    v = x[t]
    for _ in range(steps):
        tile[t] = v
        cuda.syncthreads()
        v = tile[i32(cuda.blockDim.x) - 1 - t]
        cuda.syncthreads()
    y[i32(cuda.blockIdx.x * cuda.blockDim.x) + t] = v


@pytest.mark.parametrize("threads", [1, 31, 33, 96])
def test_barriers(threads):
    x, y = np.arange(threads, dtype=np.float32), np.zeros(3 * threads, np.float32)
    launch(reversed_by_barriers, 3, threads, x, y, 5)
    np.testing.assert_array_equal(y.reshape(3, threads), np.broadcast_to(x[::-1], (3, threads)))


@cuda.jit(launch_bounds=64)
def diverged(x, y, early):
    t = i32(cuda.threadIdx.x)
    lane = t & 31
    v = x[t]
    if lane < early:  # the lowest lane is in both masks
        for _ in range(3):
            v = warp.shuffle_xor_sync(u32(0xFF), v, i32(1)) + i32(1)
    elif lane < 2 * early:
        v = warp.shuffle_xor_sync(u32(0xFF00), v, i32(2))
    y[t] = v + warp.shuffle_xor_sync(u32(0xFFFFFFFF), lane, i32(16))


def test_lanes_that_diverge_meet_again():
    """Some wait with the whole warp while others, among them the lowest lane of both masks, are in collectives of their own."""
    x, y, lane = np.arange(64, dtype=np.int32) * 7, np.zeros(64, np.int32), np.arange(64) % 32
    launch(diverged, 1, 64, x, y, 8)
    v = np.where(lane < 8, x[np.arange(64) ^ 1] + 3, np.where(lane < 16, x[np.arange(64) ^ 2], x))
    np.testing.assert_array_equal(y, v + (lane ^ 16))


@cuda.jit(launch_bounds=64)
def some_return(y, left):
    t = i32(cuda.threadIdx.x)
    if t % 32 >= left:
        return
    count = warp.ballot(t >= 0)
    cuda.syncthreads()
    y[t] = i32(count)


@pytest.mark.parametrize("left", [1, 5, 31])
def test_lanes_that_have_returned_are_not_waited_for(left):
    y = np.zeros(64, np.int32)
    launch(some_return, 1, 64, y, left)
    np.testing.assert_array_equal(y.view(np.uint32), np.where(np.arange(64) % 32 < left, (1 << left) - 1, 0))


@cuda.jit(launch_bounds=32)
def sums_of_all_blocks(x, y, came, n):
    b, t = i32(cuda.blockIdx.x), i32(cuda.threadIdx.x)
    x[32 * b + t] = i32(b + t)
    announce(came)
    await_blocks(came, u32(n))
    total = i32(0)
    for k in range(n):
        total = i32(total + x[i32(32 * k + t)])
    y[32 * b + t] = total


def test_blocks_of_a_cooperative_launch_run_at_once():
    n = 7
    x, y, came = np.zeros(32 * n, np.int32), np.zeros(32 * n, np.int32), np.zeros(1, np.uint32)
    launch(sums_of_all_blocks, n, 32, x, y, came, n, cooperative=True)
    np.testing.assert_array_equal(y.reshape(n, 32), np.broadcast_to(n * np.arange(32) + n * (n - 1) // 2, (n, 32)))


# ---- bits

@cuda.jit
def bits(x, y):
    t = i32(cuda.threadIdx.x)
    y[4 * t] = cuda.ffs(x[t])
    y[4 * t + 1] = cuda.clz(x[t])
    y[4 * t + 2] = cuda.popc(x[t])
    y[4 * t + 3] = i32(cuda.brev(x[t]))


def test_functions_of_bits():
    x, y = np.array([0, 1, 6, 0x40000000, -1, -2 ** 31], np.int32), np.zeros((6, 4), np.int32)
    launch(bits, 1, 6, x, y.reshape(-1))
    words = [f"{int(v) & 0xFFFFFFFF:032b}" for v in x]
    expected = [(32 - w.rfind("1") if "1" in w else 0, (w + "1").find("1"), w.count("1")) for w in words]
    np.testing.assert_array_equal(y[:, :3], expected)
    np.testing.assert_array_equal(y[:, 3].view(np.uint32), [int(w[::-1], 2) for w in words])


# ---- programs

@cuda.jit
def scale(x, y, alpha):
    i, j = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        y[j, i] = alpha * x[i, j]


def test_a_program_on_numbas_arrays():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    given, made = cuda.to_device(x), cuda.device_array((4, 3), np.float64)
    assert np.isnan(made.copy_to_host()).all()
    stream, start, end = cuda.stream(), cuda.event(), cuda.event()
    start.record(stream)
    scale[(1, 1), (4, 4), stream](given, made, 2.5)
    end.record(stream)
    stream.synchronize(), cuda.synchronize(), end.synchronize()
    assert start.elapsed_time(end) >= 0 and cuda.is_available()
    np.testing.assert_array_equal(made.copy_to_host(), 2.5 * x.T)
    scale[1, (4, 4)](given[::2, ::-1], made[:, :2], np.float32(1))
    np.testing.assert_array_equal(made[:, :2].copy_to_host(), x[::2, ::-1].T)
    like, into = cuda.device_array_like(given), np.zeros((3, 4), np.float32)
    like.copy_to_device(x)
    assert like.copy_to_host(into) is into and (into == x).all() and like.dtype == np.float32
    cuda.to_device(7 * x, to=like)
    assert like[2, 3] == 77


@pytest.mark.parametrize("args, words", [
    ((np.zeros((2, 2), np.complex64), np.zeros((2, 2)), 1.0), "scale: argument 0 is an array of complex64; expected one of float32"),
    ((np.zeros((2, 2)), np.zeros((2, 2)), "1"), "scale: argument 2 is '1'; expected an array of")])
def test_arguments_that_no_kernel_takes(args, words):
    with pytest.raises(TypeError, match=words):
        scale[1, 1](*args)
    with pytest.raises(ValueError, match=r"scale\[...\]: expected \[grid, block\]"):
        scale[1]


def test_results_are_where_operands_are():
    x = np.ones((2, 3), np.float32)
    y = dnnkern.matmul(cuda.to_device(x), cuda.to_device(x.T))
    assert (y.copy_to_host() == 3).all() and type(y[0]) is type(y)
    assert type(dnnkern.matmul(x, x.T)) is np.ndarray
    torch = pytest.importorskip("torch")
    found = dnnkern.softmax_fwd(torch.zeros(2, 4))
    assert isinstance(found, torch.Tensor) and (found == 0.25).all()


# ---- all cores

@cuda.jit(launch_bounds=32)
def counts(y, total):
    b = i32(cuda.blockIdx.x)
    y[i32(b * 32) + i32(cuda.threadIdx.x)] = b
    cuda.syncthreads()
    fetch_add_u32(total, u32(1))


@pytest.mark.parametrize("blocks", [1, 2, 3, 7, 1000])
def test_blocks_are_shared_out(blocks, shared_out):
    y, total = np.full((blocks, 32), -1, np.int32), np.zeros(1, np.uint32)
    for _ in range(2):
        launch(counts, blocks, 32, y.reshape(-1), total)
    np.testing.assert_array_equal(y, np.broadcast_to(np.arange(blocks)[:, None], y.shape))
    assert total[0] == 2 * 32 * blocks


@cuda.jit(launch_bounds=32)
def in_turn(y, turn, n):
    b = i32(cuda.blockIdx.x)
    if cuda.threadIdx.x == 0:
        while load_acquired(address(turn, 0)) != u32(b):
            pass
        for k in range(n):  # so long that another core would call waiting for this one in vain
            y[b] = y[b] * i32(3) + i32(k)
        add_released(address(turn, 0), u32(1))


def test_who_waits_for_earlier_blocks_gets_on_whatever_they_take(shared_out):
    y, turn = np.zeros(6, np.int32), np.zeros(1, np.uint32)
    launch(in_turn, 6, 32, y, turn, 30_000_000)
    assert turn[0] == 6 and len(set(y)) == 1


def test_results_do_not_depend_on_the_cores(shared_out, monkeypatch):
    a = np.random.default_rng(0).standard_normal((300, 200)).astype(np.float32)
    found = dnnkern.matmul(a, a, transpose_b=True, algo="blocked")
    monkeypatch.setattr(cpu_launch, "cores", lambda: 1)
    np.testing.assert_array_equal(dnnkern.matmul(a, a, transpose_b=True, algo="blocked"), found)


def test_threads_of_a_program_call_at_once(shared_out):
    a = np.random.default_rng(0).standard_normal((64, 48)).astype(np.float32)
    expected, found = dnnkern.matmul(a, a, transpose_b=True, algo="naive"), [None] * 6

    def call(k):
        found[k] = dnnkern.matmul(a, a, transpose_b=True, algo="naive")
    threads = [threading.Thread(target=call, args=(k,)) for k in range(len(found))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(np.array_equal(y, expected) for y in found)


def test_a_child_process_has_threads_of_its_own(shared_out):
    y, total = np.zeros((64, 32), np.int32), np.zeros(1, np.uint32)
    launch(counts, 64, 32, y.reshape(-1), total)
    child = os.fork()
    if not child:
        launch(counts, 64, 32, y.reshape(-1), total)
        os._exit(0 if total[0] == 2 * 64 * 32 else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_ctrl_c_ends_a_launch_between_its_chunks(shared_out, monkeypatch):
    """The memory is the caller's again: no thread works on it any more."""
    started = threading.Event()

    def stopped(signum, frame):
        raise KeyboardInterrupt
    before = signal.signal(signal.SIGALRM, stopped)
    try:
        x, y, n = np.zeros(1, np.float32), np.zeros(20000, np.float32), 200_000
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            while True:
                launch(busy, 20000, 1, x, y, n)
                started.set()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    left = y.copy()
    time.sleep(0.05)
    np.testing.assert_array_equal(y, left)


@cuda.jit
def busy(x, y, n):
    b, total = i32(cuda.blockIdx.x), x[0]
    for k in range(n):
        total = total * f32(0.5) + f32(k)
    y[b] = total


# ---- what is chosen

def test_choices_count_the_time_to_compile():
    """What is large is worth a kernel that takes seconds to compile, the same one whether it is kept on disk or not."""
    with dispatch.prefer(None):
        small, large = (dnnkern.problem("matmul", a=((n, n), "float32"), b=((n, n), "float32")) for n in (32, 512))
        assert dispatch.get_algorithm("matmul", small).name == "naive"
        rows = {c.algo: c for c in dispatch.explain("matmul", large)}
    assert rows["blocked"].chosen and rows["blocked"].time_ms < rows["naive"].time_ms
    assert "dtype float32 without math='tf32'" in rows["wgmma"].reason  # it runs here, but not this
    halves = dnnkern.problem("matmul", a=((512, 512), "bfloat16"), b=((512, 512), "bfloat16"))
    with dispatch.prefer(None):
        assert dispatch.get_algorithm("matmul", halves).name == "wgmma"


# ---- what is refused

def test_every_instruction_has_a_form():
    """Of `dnnkern.device`: those made when a module is imported; no kernel is compiled."""
    missing = set()
    for found in pkgutil.iter_modules(device.__path__):
        if found.name in ("sim", "cpu", "_mode"):
            continue
        for value in vars(importlib.import_module(f"dnnkern.device.{found.name}")).values():
            text = getattr(value, "fingerprint", ("",))[0]
            if isinstance(text, str) and text.endswith(("; }", ";")):
                try:
                    forms.find(text)
                except cpu.Refused:
                    missing.add((found.name, text))
    assert not missing


unheard_of = instruction("unheard.of.f32 $0, $1;", ("float32",), ("float32",), twin=None)


@cuda.jit(launch_bounds=32)
def refused(x):
    x[0] = unheard_of(x[0])


def test_an_instruction_without_a_form_is_refused_by_name():
    with pytest.raises(cpu.Refused, match=r"refused \(.*test_cpu.py:\d+\) has no form .*: the instruction 'unheard.of.f32"):
        launch(refused, 1, 1, np.zeros(1, np.float32))


@pytest.mark.parametrize("keywords, message", [
    ({"grid": (0, 1, 1)}, r"grid \(0, 1, 1\) has 0 blocks; expected 1 to"),
    ({"block": (2048, 1, 1)}, "has 2048 threads; expected 1 to 1024"),
    ({"shared": 232449}, "bytes of shared memory; expected at most 232448"), ({"cluster": (2, 1, 1)}, "clusters of")])
def test_launches_that_no_gpu_takes(keywords, message):
    given = {"grid": (1, 1, 1), "block": (32, 1, 1), **keywords}
    with pytest.raises((ValueError, cpu.Refused), match="reversed_by_barriers.*" + message):
        cpu_launch.launch(reversed_by_barriers, ("float32*", "float32*", "int32"), packed=bytes(24), **given)


# ---- the cache

@pytest.fixture
def fresh(monkeypatch, tmp_path):
    monkeypatch.setattr(host_compile, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(cpu_launch, "_functions", {})
    return tmp_path


def test_code_is_kept_on_disk(fresh, monkeypatch):
    signature = ("float32*", "float32*", "int32")
    first = cpu_launch.compile_kernel(reversed_by_barriers, signature)
    path, = fresh.rglob("*.o")
    assert first.waits and first.shared >= 96 * 4 and path.parent.name == cpu_launch.machine.identity()
    monkeypatch.setattr(cpu, "compile_kernel", lambda *_: pytest.fail("compiled again"))
    assert cpu_launch.compile_kernel(reversed_by_barriers, signature) == first


def test_a_broken_file_is_compiled_again(fresh):
    signature = ("float32*", "float32*", "int32")
    first = cpu_launch.compile_kernel(reversed_by_barriers, signature)
    path, = fresh.rglob("*.o")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(RuntimeWarning, match="is broken"):
        assert cpu_launch.compile_kernel(reversed_by_barriers, signature) == first


def test_without_a_cache_it_is_compiled_in_every_process(fresh, monkeypatch):
    monkeypatch.setattr(host_compile, "cache_dir", lambda: None)
    x, y = np.arange(96, dtype=np.float32), np.zeros(96, np.float32)
    launch(reversed_by_barriers, 1, 96, x, y, 1)
    np.testing.assert_array_equal(y, x[::-1])
    assert not list(fresh.rglob("*"))


def test_code_of_another_processor_is_never_loaded(fresh, monkeypatch):
    """A folder that machines share: the same kernel, another processor's code."""
    signature, compiled = ("float32*", "float32*", "int32"), []
    plain = cpu.compile_kernel
    monkeypatch.setattr(cpu, "compile_kernel", lambda *given: compiled.append(given) or plain(*given))
    cpu_launch.compile_kernel(reversed_by_barriers, signature)
    monkeypatch.setattr(cpu_launch.machine, "identity", lambda: "another")
    cpu_launch.compile_kernel(reversed_by_barriers, signature)
    assert len(compiled) == 2 and len({path.parent.name for path in fresh.rglob("*.o")}) == 2


def test_the_key_knows_processor_and_sources(monkeypatch):
    signature = ("float32*", "float32*", "int32")
    keys = {cpu_launch.key(reversed_by_barriers, signature)}
    monkeypatch.setattr(cpu_launch.machine, "identity", lambda: "another processor")
    keys.add(cpu_launch.key(reversed_by_barriers, signature))
    monkeypatch.setattr(cpu_launch, "_sources", lambda: "other sources")
    keys.add(cpu_launch.key(reversed_by_barriers, signature))
    assert len(keys) == 3


def test_records_fit_their_places():
    for record in (runtime.THREAD, runtime.BLOCK_RECORD, runtime.GROUP_RECORD, runtime.WARP):
        ends = sorted((at, name) for name, at in record.offset.items())
        assert ends[0][0] == 0 and len({at for at, _ in ends}) == len(ends) and record.bytes > ends[-1][0]


def test_products_inside_of_others_are_chosen_by_the_processors_rates():
    """As calls are: the estimates of different algorithms are in different seconds there."""
    problem, device = dnnkern.problem("conv_fwd", x=((1, 64, 56, 56), "float32"), w=((64, 64, 3, 3), "float32"), padding=1), device_of(0)
    bound = dispatch.named("conv_fwd", "winograd_nonfused").configured(problem, device)
    assert "matmul_blocked" in [k.kernel.py_func.__name__ for k in bound.build(problem, device, bound.config)]

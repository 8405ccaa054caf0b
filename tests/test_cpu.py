"""The processor as a device: threads that wait for each other, algorithms against float64, what is refused, and the cache.

The building blocks themselves are tested in test_cpu_device.py.
"""
import importlib
import pkgutil

import cases
import contract
import numpy as np
import pytest
from kit import launch

import dnnkern.device as device
from dnnkern import dispatch
from dnnkern.device import cpu, cuda, f32, i32, instruction, u32, warp
from dnnkern.device.cpu import forms, runtime
from dnnkern.device.grid import announce, await_blocks
from dnnkern.host import compile as host_compile
from dnnkern.host import cpu as host
from dnnkern.host.device import device as device_of

# PTX that has no form yet, by the module of `dnnkern.device` that has it: what only the kernels for Hopper use.
REFUSED = {"cluster", "mbarrier", "tma", "wgmma"}
# (operation, algorithm), some of each family; together half a minute of CPU. With --full every algorithm of every operation.
ALGORITHMS = [
    ("activation_fwd", "vector"), ("softmax_fwd", "warp"), ("softmax_fwd", "split"), ("layer_norm_fwd", "block"), ("matmul", "naive"),
    ("matmul", "blocked"), ("matmul", "mma"), ("matmul", "split_k"), ("reduce", "rows"), ("max_pool_fwd", "naive"), ("conv_fwd", "naive"),
    ("sdpa_fwd", "naive"), ("dropout_fwd", "naive"), ("cross_entropy_fwd", "naive"), ("transpose", "naive"), ("adam_step", "naive"),
    ("rnn_fwd", "naive"), ("rnn_fwd", "persistent")]


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


def test_who_waits_for_ever_ends_with_an_error():
    came = np.zeros(1, np.uint32)
    x, y = np.zeros(64, np.int32), np.zeros(64, np.int32)
    with pytest.raises(RuntimeError, match="sums_of_all_blocks: its threads wait for each other for ever; the simulator says"):
        launch(sums_of_all_blocks, 2, 32, x, y, came, 3, cooperative=True)  # for a third block, which there is not
    came[0] = 0
    launch(sums_of_all_blocks, 2, 32, x, y, came, 2, cooperative=True)
    np.testing.assert_array_equal(y[:32], 2 * np.arange(32) + 1)


# ---- what is refused

def test_every_instruction_has_a_form_or_is_listed():
    """Of `dnnkern.device`: those made when a module is imported; no kernel is compiled."""
    missing = {}
    for found in pkgutil.iter_modules(device.__path__):
        if found.name in ("sim", "cpu", "_mode"):
            continue
        for value in vars(importlib.import_module(f"dnnkern.device.{found.name}")).values():
            text = getattr(value, "fingerprint", ("",))[0]
            if isinstance(text, str) and text.endswith(("; }", ";")):
                try:
                    forms.find(text)
                except cpu.Refused:
                    missing.setdefault(text, set()).add(found.name)
    unlisted = {text for text, modules in missing.items() if not modules & REFUSED}
    assert not unlisted, unlisted


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
        host.launch(reversed_by_barriers, ("float32*", "float32*", "int32"), packed=bytes(24), **given)


# ---- the cache

@pytest.fixture
def fresh(monkeypatch, tmp_path):
    monkeypatch.setattr(host_compile, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(host, "_functions", {})
    return tmp_path


def test_code_is_kept_on_disk(fresh, monkeypatch):
    signature = ("float32*", "float32*", "int32")
    first = host.compile_kernel(reversed_by_barriers, signature)
    path, = fresh.rglob("*.o")
    assert first.waits and first.shared >= 96 * 4 and path.parent.name == host.machine.identity()
    monkeypatch.setattr(cpu, "compile_kernel", lambda *_: pytest.fail("compiled again"))
    assert host.compile_kernel(reversed_by_barriers, signature) == first


def test_a_broken_file_is_compiled_again(fresh):
    signature = ("float32*", "float32*", "int32")
    first = host.compile_kernel(reversed_by_barriers, signature)
    path, = fresh.rglob("*.o")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(RuntimeWarning, match="is broken"):
        assert host.compile_kernel(reversed_by_barriers, signature) == first


def test_the_key_knows_processor_and_sources(monkeypatch):
    signature = ("float32*", "float32*", "int32")
    keys = {host.key(reversed_by_barriers, signature)}
    monkeypatch.setattr(host.machine, "identity", lambda: "another processor")
    keys.add(host.key(reversed_by_barriers, signature))
    monkeypatch.setattr(host, "_sources", lambda: "other sources")
    keys.add(host.key(reversed_by_barriers, signature))
    assert len(keys) == 3


def test_records_fit_their_places():
    for record in (runtime.THREAD, runtime.BLOCK_RECORD, runtime.GROUP_RECORD, runtime.WARP):
        ends = sorted((at, name) for name, at in record.offset.items())
        assert ends[0][0] == 0 and len({at for at, _ in ends}) == len(ends) and record.bytes > ends[-1][0]

"""DNNKERN_CHECK=bounds on the processor: accesses of what a launch was not given are found, and nothing else is."""
import os
import re
import subprocess
import sys

import cases
import contract
import numpy as np
import pytest
from kit import launch

from dnnkern import dispatch
from dnnkern.device import cpu, cuda, f32, i32, i64, u32
from dnnkern.device.atomic import fetch_add_u32
from dnnkern.device.cluster import cluster_sync, remote_address, store_remote_f32
from dnnkern.device.cp_async import copy_async16, copy_async16_if
from dnnkern.device.cpu import launch as cpu_launch
from dnnkern.device.grid import load_acquired
from dnnkern.device.mbarrier import fence_mbarrier_init, mbarrier_arrive_expect, mbarrier_init, mbarrier_wait
from dnnkern.device.tma import bulk_load
from dnnkern.device.vec import address, load4, load4_nc_if, load_shared_4f32, shared_address, store4, store_shared_f32
from dnnkern.host.extents import Extent, describe, extent

ALGORITHMS = [("matmul", "blocked"), ("matmul", "mma"), ("matmul", "wgmma"), ("layer_norm_fwd", "cluster"),
              ("conv_fwd", "implicit_gemm"), ("softmax_fwd", "warp"), ("sdpa_fwd", "flash_simt"),
              ("batch_norm_infer", "planes"), ("batch_norm_bwd", "columns"), ("rnn_fwd", "persistent"), ("adam_step", "chunks")]


@pytest.fixture(autouse=True)
def checked(monkeypatch):
    monkeypatch.setattr(cpu_launch, "BOUNDS", True)


@pytest.mark.parametrize("op, name", ALGORITHMS)
def test_algorithms_access_what_they_are_given(op, name):
    algorithm = next(a for a in dispatch.algorithms(op) if a.name == name)
    case = next(c for c in cases.modules()[op].CASES if not c.problem().is_empty and contract.refusal(algorithm, c.problem()) is None)
    contract.check(algorithm, case, again=False)


# ---- each way to access memory, `k` elements of 4 bytes from the beginning of 64 or 96 of them

@cuda.jit(launch_bounds=64)
def reads(x, count, k):
    count[0] = u32(x[k])


@cuda.jit(launch_bounds=64)
def writes(x, count, k):
    x[k] = f32(1)


@cuda.jit(launch_bounds=64)
def reads_vectors(x, count, k):
    a, b, c, d = load4(x, k)
    count[0] = u32(a + b + c + d)


@cuda.jit(launch_bounds=64)
def reads_if(x, count, k):
    count[0] = u32(load4_nc_if(x, k, i32(1))[3] + load4_nc_if(x, i32(1 << 20), i32(0))[3])


@cuda.jit(launch_bounds=64)
def writes_vectors(x, count, k):
    store4(x, k, (f32(1), f32(2), f32(3), f32(4)))


@cuda.jit(launch_bounds=64)
def adds(x, count, k):
    fetch_add_u32(address(count, k), u32(1))


@cuda.jit(launch_bounds=64)
def polls(x, count, k):
    count[0] = load_acquired(address(count, k))


@cuda.jit(launch_bounds=64)
def copies(x, count, k):
    tile = cuda.shared.array(96, f32, alignment=16)
    copy_async16(shared_address(tile, 0), address(x, k), 0, u32(16))
    count[0] = u32(tile[0])


@cuda.jit(launch_bounds=64)
def copies_a_part(x, count, k):
    tile = cuda.shared.array(96, f32, alignment=16)
    copy_async16(shared_address(tile, 0), address(x, k), 0, u32(8))
    count[0] = u32(tile[0])


@cuda.jit(launch_bounds=64)
def copies_to(x, count, k):
    tile = cuda.shared.array(96, f32, alignment=16)
    copy_async16_if(shared_address(tile, k), address(x, 0), 0, i32(1))


@cuda.jit(launch_bounds=64)
def copies_a_run(x, count, k):
    tile, bars = cuda.shared.array(96, f32, alignment=16), cuda.shared.array(1, i64)
    bar = shared_address(bars, 0)
    if cuda.threadIdx.x == 0 and cuda.threadIdx.y == 0:
        mbarrier_init(bar, u32(1))
        fence_mbarrier_init()
        mbarrier_arrive_expect(bar, u32(128))
        bulk_load(shared_address(tile, 0), address(x, k), u32(128), bar)
        mbarrier_wait(bar, u32(0))
        count[0] = u32(tile[31])


@cuda.jit(launch_bounds=64)
def stores_to_another(x, count, k):
    tile = cuda.shared.array(96, f32, alignment=16)
    cluster_sync()
    store_remote_f32(remote_address(shared_address(tile, k), u32(0)), f32(1))
    cluster_sync()


@cuda.jit(launch_bounds=64)
def reads_shared(x, count, k):
    tile = cuda.shared.array(96, f32, alignment=16)
    tile[cuda.threadIdx.x] = f32(0)
    cuda.syncthreads()
    count[0] = u32(tile[k])


@cuda.jit(launch_bounds=64)
def reads_shared_vectors(x, count, k):
    tile = cuda.shared.array(96, f32, alignment=16)
    tile[cuda.threadIdx.x] = f32(0)
    cuda.syncthreads()
    a, b, c, d = load_shared_4f32(shared_address(tile, k))
    count[0] = u32(a + b + c + d)


@cuda.jit(launch_bounds=64)
def writes_shared(x, count, k):
    tile = cuda.shared.array(96, f32, alignment=16)
    store_shared_f32(shared_address(tile, k), x[0])


_X, _COUNT = "argument 'x' (256 bytes)", "argument 'count' (256 bytes)"


@pytest.mark.parametrize("kernel, good, bad, words", [
    (reads, 63, 64, f"reads 4 bytes from ADDRESS, no bytes past the end of {_X}"),
    (reads, 0, -1, f"reads 4 bytes from ADDRESS, 4 bytes before {_X}"),
    (writes, 63, 66, f"writes 4 bytes to ADDRESS, 8 bytes past the end of {_X}"),
    (reads_vectors, 60, 64, f"reads 16 bytes from ADDRESS, no bytes past the end of {_X}"),
    (reads_if, 60, 63, f"reads 4 bytes from 0x[0-9a-f]+, no bytes past the end of {_X}"),
    (writes_vectors, 60, 61, f"writes 16 bytes to ADDRESS, byte 244 of {_X}"),
    (adds, 63, 64, f"writes 4 bytes to ADDRESS, no bytes past the end of {_COUNT}"),
    (polls, 63, 64, f"reads 4 bytes from ADDRESS, no bytes past the end of {_COUNT}"),
    (copies, 60, 64, f"reads 8 bytes from ADDRESS, no bytes past the end of {_X}"),
    (copies_a_part, 62, 63, f"reads 8 bytes from ADDRESS, byte 252 of {_X}"),
    (copies_a_run, 32, 36, f"reads 128 bytes from ADDRESS, byte 144 of {_X}"),
    (stores_to_another, 95, 96, "writes 4 bytes to shared memory, byte 384 of 384"),
    (copies_to, 92, 96, "writes 8 bytes to shared memory, byte 384 of 384"),
    (reads_shared, 95, 96, "reads 4 bytes from shared memory, byte 384 of 384"),
    (reads_shared, 0, -100, "reads 4 bytes from shared memory, byte -16 of 384"),
    (reads_shared_vectors, 92, 94, "reads 4 bytes from shared memory, byte 384 of 384"),
    (reads_shared_vectors, 92, -4, "reads 4 bytes from 0x[0-9a-f]+, near none of its arguments"),
    (writes_shared, 95, 97, "writes 4 bytes to shared memory, byte 388 of 384")])
def test_accesses(kernel, good, bad, words):
    memory = np.zeros(256, np.float32)  # the arguments in the middle: an access beyond them is one of memory that is there
    x, count = memory[16:80], memory[160:224].view(np.uint32)
    launch(kernel, (1, 2), (4, 16), x, count, good)
    before = memory.copy()
    with pytest.raises(cpu.BadAccess) as caught:
        launch(kernel, (1, 2), (4, 16), x, count, bad)
    base = {"x": x, "count": count}["count" if "'count'" in words else "x"].ctypes.data
    words = words.replace("ADDRESS", hex(base + 4 * bad)).replace("(256 bytes)", r"\(256 bytes\)")
    assert re.fullmatch(rf"kernel {kernel.__name__}: thread \(\d, \d+, 0\) of block \(0, \d, 0\) {words}; "
                        r"the simulator names the line \(DNNKERN_DEVICE=simulator\)", str(caught.value))
    outside = np.r_[0:16, 80:160, 224:256]
    np.testing.assert_array_equal(memory[outside], before[outside])
    launch(kernel, (1, 2), (4, 16), x, count, good)


@cuda.jit(launch_bounds=64)
def dynamic(y, k):
    tile = cuda.shared.array(0, f32)
    t = i32(cuda.threadIdx.x)
    tile[t] = f32(t)
    cuda.syncthreads()
    y[t] = tile[i32((t + k) % 64)]
    if t == 40:
        y[0] = tile[k]


def test_dynamic_shared_memory():
    y = np.zeros(64, np.float32)
    launch(dynamic, 1, 64, y, 63, shared=256)
    assert y[0] == 63
    with pytest.raises(cpu.BadAccess, match=r"thread \(40, 0, 0\) of block \(0, 0, 0\) reads 4 bytes from shared memory, byte 256 of 256"):
        launch(dynamic, 1, 64, y, 64, shared=256)
    launch(dynamic, 1, 64, y, 64, shared=512)


_TABLE = np.arange(100, dtype=np.float32)


@cuda.jit(launch_bounds=64)
def local_and_constant(x, n):
    t, held, table = i32(cuda.threadIdx.x), cuda.local.array(50, f32), cuda.const.array_like(_TABLE)
    for k in range(n):
        held[k % 50] = table[i32(2 * k) % 100]
    cuda.syncthreads()
    x[t] = held[t % n]


def test_local_arrays_and_constants_are_a_kernels_own():
    x = np.zeros(64, np.float32)
    launch(local_and_constant, 1, 64, x, 50)
    np.testing.assert_array_equal(x, 2 * (np.arange(64) % 50))


@cuda.jit
def of_arrays(x, y):
    i, j = cuda.grid(2)
    y[i, j] = x[j, i]


def test_a_programs_arrays():
    x, y = np.arange(12.0).reshape(3, 4), np.zeros((4, 3))
    of_arrays[1, (4, 3)](x, y)
    np.testing.assert_array_equal(y, x.T)
    whole = np.zeros((8, 6))
    of_arrays[1, (4, 3)](x[:, ::-1], whole[::2, ::2])
    np.testing.assert_array_equal(whole[::2, ::2], x.T[::-1])
    with pytest.raises(cpu.BadAccess, match=r"kernel of_arrays: thread \(.*\) of block .* reads 8 bytes .* past the end of argument 'x'"):
        of_arrays[1, (4, 4)](x, np.zeros((8, 8)))


def test_on_all_cores_and_beside_kernels_that_are_not_checked(monkeypatch):
    monkeypatch.setattr(cpu_launch, "WORTH_SHARING", 0.0)
    x, count = np.zeros(65, np.float32), np.zeros(64, np.uint32)
    for k in range(3):
        with pytest.raises(cpu.BadAccess, match="no bytes past the end of argument 'x'"):
            launch(reads, 100, 1, x[:64], count, 64)
        monkeypatch.setattr(cpu_launch, "BOUNDS", False)
        launch(reads, 100, 1, x[:64], count, 64)
        monkeypatch.setattr(cpu_launch, "BOUNDS", True)


def test_the_variable():
    program = """
import dnnkern, numpy as np
from dnnkern.device import cuda
@cuda.jit
def beyond(x):
    x[x.size] = 1
a = np.random.default_rng(0).standard_normal((40, 30)).astype(np.float32)
np.testing.assert_allclose(dnnkern.matmul(a, a, transpose_b=True, algo="naive"), a @ a.T, rtol=1e-4, atol=1e-4)
try:
    beyond[1, 1](a[0])
except RuntimeError as error:
    print(error)
"""
    for words, found in (("nan,bounds", "kernel beyond: thread (0, 0, 0) of block (0, 0, 0) writes 4 bytes to "), ("nan", "")):
        env = {**os.environ, "DNNKERN_CHECK": words, "PYTHONPATH": ":".join(sys.path)}
        printed = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True, timeout=60).stdout
        assert printed.startswith(found) and bool(printed) == bool(found)


def test_checked_code_is_kept_apart(monkeypatch):
    signature = ("float32*", "uint32*", "int32")
    checked = cpu_launch.key(reads, signature)
    monkeypatch.setattr(cpu_launch, "BOUNDS", False)
    assert cpu_launch.key(reads, signature) != checked


def test_extents():
    x = np.zeros((4, 6), np.int16)
    at = x.ctypes.data
    for view, low, high in ((x, 0, 48), (x[1:, ::2], 12, 46), (x[::-1, ::-1], 0, 48), (x.T[2], 4, 42), (x[:0], 0, 0),
                            (x[1, 1, ...], 14, 16)):
        assert extent(view, "x") == Extent(at + low, at + high, "x")
    given = [Extent(100, 200, "a"), Extent(300, 308, "b")]
    assert describe(150, given) == "0x96, byte 50 of a (100 bytes)" and describe(290, given) == "0x122, 10 bytes before b (8 bytes)"
    assert describe(1 << 40, given) == "0x10000000000, near none of its arguments"
    assert describe(210, given) == "0xd2, 10 bytes past the end of a (100 bytes)" and describe(7, []) == "0x7"

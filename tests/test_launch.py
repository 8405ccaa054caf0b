"""Launches: clusters, much shared memory, barriers of the grid, dependent launches, tensor maps, streams, threads, capture, devices."""
import threading

import numpy as np
import pytest

from dnnkern.device import SIMULATED, cuda, f32, i32, instruction, u32
from dnnkern.device.cluster import cluster_rank
from dnnkern.device.dependent import wait_for_previous_grid
from dnnkern.device.tma import prefetch_tensor_map, tensor_map_address
from dnnkern.device.vec import shared_address
from dnnkern.host import graphs
from dnnkern.host.launch import Argument, Executable, Launch, SimulatedExecutable
from dnnkern.host.tensormap import Im2colMap, TensorMap
from kit import launch

on_gpu = pytest.mark.skipif(SIMULATED, reason="needs the driver")
THREADS = 128

mbarrier_init = instruction("mbarrier.init.shared.b64 [$0], $1;", (), ("uint32", "uint32"), twin=None, memory=True)
mbarrier_expect = instruction("mbarrier.arrive.expect_tx.shared.b64 _, [$0], $1;", (), ("uint32", "uint32"), twin=None, memory=True)
mbarrier_wait = instruction("{ .reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p, [$0], $1; @!p bra again; }", (),
                            ("uint32", "uint32"), twin=None, memory=True)
load_box = instruction("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [$0], [$1, {$3, $4}], [$2];", (),
                       ("uint32", "uint64", "uint32", "int32", "int32"), twin=None, memory=True)


def test_shared_memory_above_48_kb():
    count = 100 * 1024 // 4

    @cuda.jit(launch_bounds=THREADS)
    def kernel(y):
        s = cuda.shared.array(0, f32)
        t = i32(cuda.threadIdx.x)
        for i in range(t, count, THREADS):
            s[i] = f32(i)
        cuda.syncthreads()
        for i in range(t, count, THREADS):
            y[i] = s[count - 1 - i]
    y = np.full(count, np.nan, np.float32)
    launch(kernel, 1, THREADS, y, shared=4 * count)
    np.testing.assert_array_equal(y, np.arange(count, dtype=np.float32)[::-1])


def test_static_and_dynamic_shared_memory_above_48_kb_together():
    static, count = 40 * 1024 // 4, 20 * 1024 // 4

    @cuda.jit(launch_bounds=THREADS)
    def kernel(y):
        a, b = cuda.shared.array(static, f32), cuda.shared.array(0, f32)
        t = i32(cuda.threadIdx.x)
        for i in range(t, static, THREADS):
            a[i] = f32(i)
        for i in range(t, count, THREADS):
            b[i] = f32(-i)
        cuda.syncthreads()
        for i in range(t, static, THREADS):
            y[i] = a[static - 1 - i]
        for i in range(t, count, THREADS):
            y[static + i] = b[count - 1 - i]
    y = np.full(static + count, np.nan, np.float32)
    launch(kernel, 1, THREADS, y, shared=4 * count)
    np.testing.assert_array_equal(y, np.concatenate([np.arange(static)[::-1], -np.arange(count)[::-1]]))


def test_cooperative_grid_barrier():
    blocks = 8

    @cuda.jit(launch_bounds=32)
    def kernel(x, y):
        if cuda.threadIdx.x == 0:
            x[cuda.blockIdx.x] = i32(cuda.blockIdx.x + 1)
        cuda.cg.this_grid().sync()
        if cuda.threadIdx.x == 0:
            total = i32(0)
            for b in range(blocks):
                total = i32(total + x[b])
            y[cuda.blockIdx.x] = total
    if not SIMULATED:
        pytest.skip("Numba's grid barrier links the device runtime, which the library's compile does not; kernels bring their own barrier")
    x, y = np.zeros(blocks, np.int32), np.zeros(blocks, np.int32)
    launch(kernel, blocks, 32, x, y, cooperative=True)
    assert (y == blocks * (blocks + 1) // 2).all()


def test_cluster_ranks():
    @cuda.jit(launch_bounds=32)
    def kernel(y):
        if cuda.threadIdx.x == 0:
            y[cuda.blockIdx.x] = i32(cluster_rank())
    y = np.full(8, -1, np.int32)
    launch(kernel, 8, 32, y, cluster=(4, 1, 1))
    np.testing.assert_array_equal(y, [0, 1, 2, 3] * 2)


@pytest.mark.skipif(not SIMULATED, reason="of the simulator: a GPU's values are packed by their number")
def test_values_are_counted():
    @cuda.jit(launch_bounds=1)
    def one(y):
        y[0] = f32(1)
    y = np.zeros(1, np.float32)
    plan = SimulatedExecutable([Launch(one, (1, 1, 1), (1, 1, 1), (Argument("float32*", "y"),))], [("y", "pointer"), ("eps", "null")], 0)
    plan.execute((y,), None)
    assert y[0] == 1
    for values in ((), (y, 0.5)):
        with pytest.raises(TypeError, match=f"{len(values)} values of a plan with 1: y"):
            plan.execute(values, None)


@on_gpu
def test_dependent_launch_sees_its_predecessor():
    from dnnkern.host.check import to_host
    from dnnkern.host.memory import numba_array

    @cuda.jit(launch_bounds=THREADS)
    def fill(y):
        y[i32(cuda.threadIdx.x)] = f32(cuda.threadIdx.x)

    @cuda.jit(launch_bounds=THREADS)
    def double(y):
        wait_for_previous_grid()
        t = i32(cuda.threadIdx.x)
        y[t] = f32(y[t] * f32(2))
    argument = (Argument("float32*", "y"),)
    y = numba_array((THREADS,), np.dtype(np.float32), 0, 0)
    launches = (Launch(fill, (1, 1, 1), (THREADS, 1, 1), argument), Launch(double, (1, 1, 1), (THREADS, 1, 1), argument, dependent=True))
    plan = Executable(launches, [("y", "pointer")], 0)
    plan.execute((y.device_ctypes_pointer.value,), 0)
    cuda.synchronize()
    np.testing.assert_array_equal(to_host(y), 2 * np.arange(THREADS, dtype=np.float32))


@on_gpu
@pytest.mark.parametrize("count", [2, 3, graphs.MANY])
@pytest.mark.parametrize("dependent", [False, True])
def test_replayed_plans_do_what_launches_do(count, dependent):
    """Plans of few and of many launches, on two arrays in turn: launched, captured, replayed; other numbers; captured by somebody else."""
    import torch

    @cuda.jit(launch_bounds=THREADS)
    def step(y, scale, k):
        wait_for_previous_grid()
        t = i32(cuda.threadIdx.x)
        y[t] = f32(f32(y[t] * scale) + f32(k))
    given = Argument("float32*", "y"), Argument("float32", "scale")
    launches = [Launch(step, (1, 1, 1), (THREADS, 1, 1), (*given, Argument("int32", k % 3)), dependent=dependent) for k in range(count)]
    plan = Executable(launches, [("y", "pointer"), ("scale", "float32")], 0)
    arrays, wanted = [torch.zeros(THREADS, device="cuda") for _ in range(2)], [np.zeros(THREADS, np.float32)] * 2

    def run(which, scale, stream=0):
        plan.execute((arrays[which].data_ptr(), scale), stream)
        for k in range(count):
            wanted[which] = np.float32(wanted[which] * np.float32(scale)) + np.float32(k % 3)
    turns = 2 * (graphs.SIGHTINGS + 4)
    for turn in range(turns):
        run(turn % 2, 0.5 if turn < turns - 2 else 0.25)
        if turn > turns - 8:
            np.testing.assert_array_equal(arrays[turn % 2].cpu().numpy(), wanted[turn % 2])
    assert len(plan.replays().graphs) == 2
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.execute((arrays[0].data_ptr(), 0.5), torch.cuda.current_stream().cuda_stream)
    graph.replay()
    run(0, 0.5)  # in turn with the other's
    for k in range(count):
        wanted[0] = np.float32(wanted[0] * np.float32(0.5)) + np.float32(k % 3)
    np.testing.assert_array_equal(arrays[0].cpu().numpy(), wanted[0])
    side = torch.cuda.Stream()
    run(0, 0.5, side.cuda_stream)
    side.synchronize()
    np.testing.assert_array_equal(arrays[0].cpu().numpy(), wanted[0])


def _box_kernel():
    @cuda.jit(launch_bounds=THREADS)
    def kernel(tensor_map, y, row, column):
        tile = cuda.shared.array(256, f32, alignment=128)
        barrier = cuda.shared.array(2, u32, alignment=16)
        t = i32(cuda.threadIdx.x)
        at = tensor_map_address(tensor_map)
        bar = shared_address(barrier, 0)
        if t == 0:
            prefetch_tensor_map(at)
            mbarrier_init(bar, u32(1))
        cuda.syncthreads()
        if t == 0:
            mbarrier_expect(bar, u32(8 * 32 * 4))
            load_box(shared_address(tile, 0), at, bar, column, row)
        mbarrier_wait(bar, u32(0))
        for i in range(t, 256, THREADS):
            y[i] = tile[i]
    return kernel


@on_gpu
def test_tensor_map_by_value_follows_the_address():
    """The map is a kernel parameter: no copy in device memory, and a plan may be executed on array after array."""
    from numba import cuda as nb

    spec = TensorMap("float32", (64, 96), (96, 1), (8, 32))
    launch_ = Launch(_box_kernel(), (1, 1, 1), (THREADS, 1, 1), (Argument("tensormap", "x", spec=spec), Argument("float32*", "y"),
                                                                 Argument("int32", 60), Argument("int32", 80)))
    plan = Executable([launch_], [("x", "pointer"), ("y", "pointer")], 0)
    assert plan.functions[0].binary.stack == 0  # a map that NVVM copied to local memory shows as a stack frame
    y = nb.device_array(256, np.float32)
    for k in range(20):
        x = np.random.default_rng(k).standard_normal((64, 96)).astype(np.float32)
        device = nb.to_device(x)
        plan.execute((device.device_ctypes_pointer.value, y.device_ctypes_pointer.value), 0)
        expected = np.zeros((8, 32), np.float32)
        expected[:4, :16] = x[60:64, 80:96]  # what lies outside the array reads as zero
        np.testing.assert_array_equal(y.copy_to_host().reshape(8, 32), expected)


@pytest.mark.parametrize("change,words", [
    (dict(strides=(97, 1)), "multiple of 16"), (dict(strides=(96, 2)), "innermost stride is 2"), (dict(box=(8, 257)), "1 to 256"),
    (dict(box=(8, 3)), "multiple of 16"), (dict(swizzle=64, box=(8, 32)), "wider than the swizzle"), (dict(swizzle=16), "0, 32, 64 or 128"),
    (dict(shape=(64,), strides=(1,)), "as many in each"), (dict(shape=(0, 96)), "1 to 2"), (dict(dtype="complex64"), "dtype 'complex64'"),
    (dict(swizzle=128, box=(8, 16)), "64 bytes is narrower than the swizzle's 128"), (dict(steps=(9, 1)), "1 to 8 along each"),
    (dict(steps=(1, 2)), "1 along the innermost"), (dict(steps=(1,)), "as many in each"), (dict(l2_promotion=32), "0, 64, 128 or 256"),
    (dict(strides=(-96, 1)), "below 2\\*\\*40"), (dict(shape=(), strides=(), box=()), "1 to 5 entries")])
def test_tensor_map_rules(change, words):
    good = dict(dtype="float32", shape=(64, 96), strides=(96, 1), box=(8, 32))
    TensorMap(**good)
    with pytest.raises(ValueError, match=words):
        TensorMap(**{**good, **change})


@pytest.mark.parametrize("change,words", [
    (dict(lower=(-129, 0)), "-128 to 127 in 2 dimensions"), (dict(upper=(0, 128)), "-128 to 127"), (dict(lower=(0,)), "2 entries in each"),
    (dict(upper=(-9, 0)), "leave no pixel"), (dict(channels=257), "1 to 256 of 1 to 1024"), (dict(pixels=1025), "1 to 256 of 1 to 1024"),
    (dict(channels=2), "a pixel of 8 bytes"), (dict(channels=32, swizzle=64), "wider than the swizzle"),
    (dict(steps=(2, 1, 1, 1)), "1 along the images"), (dict(steps=(1, 1, 1, 2)), "1 along the innermost"),
    (dict(shape=(2, 32), strides=(32, 1)), "3 to 5 entries"), (dict(strides=(2304, 288, 33, 1)), "multiple of 16")])
def test_im2col_map_rules(change, words):
    good = dict(dtype="float32", shape=(2, 8, 9, 32), strides=(2304, 288, 32, 1), lower=(-1, -1), upper=(-1, -1), channels=16, pixels=64)
    assert Im2colMap(**good).nbytes == 4 * 16 * 64
    Im2colMap(**{**good, "shape": (2, 8, 8, 9, 32), "strides": (18432, 2304, 288, 32, 1), "lower": (-16,) * 3, "upper": (15,) * 3})
    with pytest.raises(ValueError, match=words):
        Im2colMap(**{**good, **change})


def test_a_map_refuses_addresses_before_the_driver_is_asked():
    """Plans shift the array of a map by an offset: both together must be a multiple of 16."""
    from dnnkern.host.launch import _Map
    spec = TensorMap("float32", (64, 96), (96, 1), (8, 32))
    for address, offset, words in ((0x7F0000000004, 0, "4 bytes"), (0x7F0000000000, 8, "8 bytes"), (0x7F0000000004, 4, "8 bytes")):
        with pytest.raises(ValueError, match=f"{words}.*a tensor map takes multiples of 16 alone"):
            _Map(0, offset, spec, [None], 0).set(address)


@pytest.mark.parametrize("change,words", [(dict(block=(1025, 1, 1)), "1025 threads"), (dict(grid=(1, 70000, 1)), "y is 1 to 65535"),
                                          (dict(grid=(0, 1, 1)), "x is 1 to")])
def test_impossible_launches(change, words):
    with pytest.raises(ValueError, match=words):
        Launch(**{**dict(kernel=None, grid=(1, 1, 1), block=(32, 1, 1), arguments=()), **change})


@pytest.fixture
def operands():
    torch = pytest.importorskip("torch")
    generator = torch.Generator("cuda").manual_seed(0)
    return tuple(torch.randn(shape, device="cuda", generator=generator) for shape in ((65, 33), (33, 47)))


@on_gpu
def test_streams(operands):
    import torch

    from dnnkern import matmul
    a, b = operands
    expected = matmul(a, b)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        current = matmul(a, b)
    given = matmul(a, b, stream=side)
    side.synchronize()
    assert torch.equal(current, expected) and torch.equal(given, expected)


@on_gpu
def test_graph_capture(operands):
    import torch

    from dnnkern import matmul
    a, b = operands
    out = torch.zeros(65, 47, device="cuda")
    expected = matmul(a, b, out=out).clone()
    out.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        matmul(a, b, out=out)
        made = matmul(a, b)
        with pytest.raises(RuntimeError, match="no plan yet"):
            matmul(a[:7], b)
    assert not out.any()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, expected) and torch.equal(made, expected)


@on_gpu
def test_capture_without_memory(operands):
    import torch
    from numba import cuda as nb

    from dnnkern import matmul
    a, b = (nb.to_device(x.cpu().numpy()) for x in operands)
    out = matmul(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        stream = torch.cuda.current_stream()
        matmul(a, b, out=out, stream=stream)
        with pytest.raises(RuntimeError, match="pass out="):
            matmul(a, b, stream=stream)


@on_gpu
def test_threads_share_a_plan():
    import torch

    from dnnkern import matmul
    failed = []

    def work(k):
        try:
            a, b, out = (torch.full((16, 8), float(k), device="cuda"), torch.ones(8, 16, device="cuda"), torch.empty(16, 16, device="cuda"))
            for _ in range(200):
                matmul(a, b, out=out)
            torch.cuda.synchronize()
            assert float(out.min()) == 8 * k == float(out.max())
        except Exception as error:
            failed.append(error)
    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed


@on_gpu
def test_two_devices(operands):
    import torch

    from dnnkern import matmul
    if torch.cuda.device_count() < 2:
        pytest.skip("one device")
    a, b = operands
    for _ in range(3):
        here, there = matmul(a, b), matmul(a.to("cuda:1"), b.to("cuda:1"))
        assert torch.cuda.current_device() == 0 and there.get_device() == 1
        assert torch.equal(here.cpu(), there.cpu())
    with pytest.raises(ValueError, match="b is on device 1, a on device 0"):
        matmul(a, b.to("cuda:1"))

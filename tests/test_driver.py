"""The driver's functions through ctypes: their types as the driver's header has them, and calls of a driver that does nothing."""
import ctypes
import importlib.util
import pathlib
import re
import threading

import numpy as np
import pytest
import stub_gpu

from dnnkern.host import device, driver, graphs, launch, memory, raw, table, tensormap, timing
from dnnkern.host.compile import Binary
from dnnkern.host.driver import CudaError

HANDLE = stub_gpu.Library.HANDLE
# What the library has by its first name as well, which was meant before CUDA 13.
FIRST = {"cuEventElapsedTime"}


@pytest.fixture
def gpu(monkeypatch):
    """Two GPUs that do nothing."""
    known = {name: vars(raw)[name] for name in raw.FUNCTIONS if name in vars(raw)}
    monkeypatch.setattr(raw, "_library", raw._library)
    for module in (device, graphs, timing, memory):
        if hasattr(module, "HOST_MEMORY"):
            monkeypatch.setattr(module, "HOST_MEMORY", False)
    caches = (device.device, device.device_count, device.primary_context, memory._pool, table._upload_stream, launch._library,
              launch._most_shared)
    for cached in caches:
        cached.cache_clear()
    library = stub_gpu.install(stub_gpu.Library(devices=2))
    yield library
    for name in raw.FUNCTIONS:
        vars(raw).pop(name, None)
    vars(raw).update(known)
    for cached in caches:
        cached.cache_clear()
    assert not library.wrong


# ---- as the header has them

def declarations():
    """{name in the library: the types of its arguments as the header names them}."""
    spec = importlib.util.find_spec("cuda.bindings")
    path = pathlib.Path(spec.submodule_search_locations[0]) / "_internal" / "driver.pxd" if spec else None
    if path is None or not path.is_file():
        pytest.skip("cuda.bindings has no declarations")
    found = re.findall(r"^cdef CUresult _(cu\w+)\((.*?)\) except", path.read_text(), re.MULTILINE)
    return {name: [re.sub(r" ?\w+$", "", argument) for argument in arguments.split(", ") if argument] for name, arguments in found}


SCALARS = {"int": ctypes.c_int, "unsigned int": ctypes.c_uint, "cuuint32_t": ctypes.c_uint, "size_t": ctypes.c_size_t,
           "float": ctypes.c_float, "unsigned char": ctypes.c_ubyte, "unsigned long long": ctypes.c_uint64,
           "CUdevice": ctypes.c_int, "CUresult": ctypes.c_int,
           "CUstreamCaptureMode": ctypes.c_int, "CUstreamCaptureStatus": ctypes.c_int}


def is_as(kind, declared):
    """Whether a type is that of the header: handles and addresses are pointers or, as results, sizes."""
    declared = declared.replace("const ", "")
    if "*" in declared:
        return kind is ctypes.c_void_p
    if declared.endswith("_attribute") or declared.startswith("CUtensorMap"):  # enumerations
        return kind is ctypes.c_int
    if declared in SCALARS:
        return kind is SCALARS[declared]
    assert declared in ("CUcontext", "CUstream", "CUevent", "CUfunction", "CUkernel", "CUlibrary", "CUmemoryPool", "CUgraph", "CUgraphExec",
                        "CUgraphNode", "CUdeviceptr"), declared
    return kind in (ctypes.c_void_p, ctypes.c_size_t)


@pytest.mark.parametrize("name", raw.FUNCTIONS)
def test_types_are_those_of_the_header(name):
    known = declarations()
    declared = known[raw.symbol(name) + "_v2" * (name in FIRST)]
    kinds = raw.types_of(name)
    assert len(kinds) == len(declared) and all(map(is_as, kinds, declared)), declared
    result = raw.FUNCTIONS[name][0]
    if result is not None:
        pointee = declared[0].replace("*", "", 1).strip()
        assert declared[0].endswith("*") and is_as(result, "int" if pointee == "void" else pointee), declared[0]
    elif declared and re.fullmatch(r"CU\w+\*|int\*|size_t\*", declared[0]):
        assert name == "cuThreadExchangeStreamCaptureMode" or name.startswith("cuTensorMapEncode"), "it has a result"
    current = name in ("cuCtxSynchronize", "cuCtxGetDevice")  # of the current context; the later versions are given one
    assert name in raw._SECOND or name in FIRST or f"{name}_v2" not in known or current, "there is a later version"


def test_a_wrong_type_would_be_found():
    assert not is_as(ctypes.c_int, "CUdeviceptr") and not is_as(ctypes.c_uint, "size_t") and not is_as(ctypes.c_size_t, "void*")
    assert not is_as(ctypes.c_void_p, "CUdevice") and is_as(ctypes.c_size_t, "CUcontext")


def test_constants_are_those_of_the_header():
    from cuda.bindings import driver as real
    enumerations = [kind for name, kind in vars(real).items() if isinstance(kind, type) and hasattr(kind, "__members__")]
    members = {name: int(value) for kind in enumerations for name, value in kind.__members__.items()}
    ours = {name: value for name, value in vars(raw).items() if name.startswith("CU")}
    assert len(ours) > 20 and ours == {name: members[name] for name in ours}
    for dtype, number in tensormap._TYPES.items():
        name = {"int8": "uint8", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8", "int16": "uint16"}.get(dtype, dtype).upper()
        assert number == members["CU_TENSOR_MAP_DATA_TYPE_" + name]
    for nbytes, number in tensormap._SWIZZLES.items():
        assert number == members["CU_TENSOR_MAP_SWIZZLE_" + (f"{nbytes}B" if nbytes else "NONE")]
    for nbytes, number in tensormap._PROMOTIONS.items():
        assert number == members["CU_TENSOR_MAP_L2_PROMOTION_" + (f"L2_{nbytes}B" if nbytes else "NONE")]


# ---- errors

def test_errors_have_the_drivers_words(gpu):
    gpu.fails["cuMemAlloc"] = 1
    with pytest.raises(CudaError, match="^CUDA_ERROR_INVALID_VALUE: invalid argument$"):
        driver.cuMemAlloc(16)
    gpu.fails["cuMemAlloc"] = 12345
    with pytest.raises(CudaError, match="^12345: unknown error$"):
        driver.cuMemAlloc(16)
    del gpu.fails["cuMemAlloc"]
    assert driver.cuMemAlloc(16) == HANDLE
    with pytest.raises(AttributeError, match="cuNothing"):
        driver.cuNothing()
    with pytest.raises(ctypes.ArgumentError):
        driver.cuMemAlloc("16")


def test_no_driver_and_one_that_lacks_a_function(gpu, monkeypatch):
    monkeypatch.setattr(raw, "_library", lambda: ctypes.CDLL(None))
    with pytest.raises(CudaError, match="cuInit cannot be called: .*cuInit"):
        driver.cuInit(0)

    def none():
        raise OSError("libcuda.so.1: cannot open shared object file")
    monkeypatch.setattr(raw, "_library", none)
    with pytest.raises(CudaError, match="cuDeviceGetCount cannot be called: libcuda.so.1"):
        driver.cuDeviceGetCount()


# ---- what a first call needs

def test_a_device_is_described(gpu):
    found = device.device(1)
    assert (found.index, found.name, found.arch, found.sms, found.memory) == (1, stub_gpu.NAME, "sm_90a", 132, stub_gpu.MEMORY)
    assert found.bandwidth == 2.0 * 2619000e3 * 6144 / 8 and found.shared_per_block == 232448 and found.clock_hz == 1.98e9
    with pytest.raises(ValueError, match="device 2 does not exist; there are 2"):
        device.device(2)
    assert device.pointer_device(1 << 40) == device.pointer_device(np.int64(1 << 40)) == 0


def test_contexts_of_devices_and_threads(gpu):
    first, second = (device.primary_context(k) for k in range(2))
    assert first != second and min(first, second) > 1 << 32, "handles are not cut"
    assert device.set_current(0) == 0 and device.set_current(1) == first and device.set_current(1) == second
    with device.on_device(0):
        assert driver.cuCtxGetCurrent() == first
    assert driver.cuCtxGetCurrent() == second
    seen = []
    thread = threading.Thread(target=lambda: seen.extend([driver.cuCtxGetCurrent(), device.set_current(0), driver.cuCtxGetCurrent()]))
    thread.start()
    thread.join()
    assert seen == [0, 0, first] and driver.cuCtxGetCurrent() == second


def test_the_current_device_is_the_contexts(gpu, monkeypatch):
    monkeypatch.delenv("DNNKERN_DEVICE", raising=False)
    monkeypatch.setattr(device, "DEVICE", "cuda")
    assert device.current_device() == 0, "a thread without a context"
    device.set_current(1)
    assert device.current_device() == 1
    monkeypatch.setenv("DNNKERN_DEVICE", "cuda")
    assert device.current_device() == 1
    monkeypatch.setenv("DNNKERN_DEVICE", "0")
    assert device.current_device() == 0
    monkeypatch.setenv("DNNKERN_DEVICE", "2")
    with pytest.raises(ValueError, match="DNNKERN_DEVICE=2; expected a device from 0 to 1"):
        device.current_device()
    gpu.fails["cuCtxSetCurrent"] = 1
    with pytest.raises(CudaError, match="invalid argument"):
        device.set_current(0)
    assert gpu.calls.count("cuDevicePrimaryCtxRetain") == 2


def test_a_kernel_is_loaded_once_and_told_what_it_takes(gpu):
    binary = Binary(code=b"\x7fELF" + bytes(60), entry="kernel_1", arch="sm_90a", registers=32, shared=1024, stack=0)
    assert launch.Function(binary, 1, 47 * 1024 + 1, (4, 4, 1)).handle == launch.Function(binary, 0, 0, (1, 1, 1)).handle == HANDLE + 2
    assert gpu.loaded == [b"\x7fELF", "kernel_1", (8, 47 * 1024 + 1), (14, 1), "kernel_1"]


def test_plans_that_share_a_kernel_leave_it_what_the_others_take(gpu):
    """A launch with more than the attribute is an error, and that is the kernel's, not the plan's."""
    binary = Binary(code=b"\x7fELF" + bytes(60), entry="kernel_1", arch="sm_90a", registers=32, shared=0, stack=0)
    for kilobytes in (80, 160, 60, 160, 200):
        launch.Function(binary, 0, kilobytes << 10, (1, 1, 1))
    launch.Function(binary, 1, 60 << 10, (1, 1, 1))
    assert [value >> 10 for kind, value in (what for what in gpu.loaded if isinstance(what, tuple))] == [80, 160, 200, 60]


def test_tensor_maps_reach_the_driver(gpu):
    spec = tensormap.TensorMap("bfloat16", (5, 6, 64), (6 * 72, 72, 1), (2, 3, 64), swizzle=128, steps=(1, 2, 1))
    assert spec.encode(1 << 40) == b"\x5a" * 128
    column = tensormap.Im2colMap("float16", tuple(np.array([2, 9, 8, 32])), (9 * 8 * 32, 8 * 32, 32, 1), (-1, -2), (1, 2), np.int64(32), 64)
    assert column.encode(1 << 40) == b"\x5a" * 128
    assert gpu.maps == [(9, [64, 6, 5], [144, 6 * 144], [64, 3, 2], [1, 2, 1], (0, 3, 2, 0)),
                        (6, [32, 8, 9, 2], [64, 512, 4608], [-2, -1], [2, 1], 32, 64, [1, 1, 1, 1], (0, 0, 2, 0))]
    gpu.fails["cuTensorMapEncodeTiled"] = 1
    with pytest.raises(CudaError, match="the driver does not take TensorMap.*at address 0x10000000000: CUDA_ERROR_INVALID_VALUE"):
        spec.encode(1 << 40)


def test_memory_tables_and_graphs(gpu):
    assert memory.allocate(100, 0, 0) == HANDLE
    memory.free(HANDLE, 0, 0)
    words = table.Table(np.arange(4, dtype=np.uint64))
    assert table.DeviceTable(words, {}, 0).of((), 0) == HANDLE
    graph = graphs._captured_aside(lambda stream: gpu.calls.append(stream))
    graphs.replay(graph, 0)
    graphs.destroy(graph)
    at, mode = gpu.calls.index("cuStreamBeginCapture"), "cuThreadExchangeStreamCaptureMode"
    assert gpu.calls[at - 2:] == [mode, "cuStreamCreate", "cuStreamBeginCapture", HANDLE, "cuStreamEndCapture",
                                  "cuGraphInstantiateWithFlags", "cuGraphDestroy", "cuStreamDestroy", mode, "cuGraphLaunch",
                                  "cuGraphExecDestroy"]
    assert "cuMemcpyHtoDAsync" in gpu.calls[:at] and gpu.calls.count(mode) % 2 == 0


def test_a_capture_that_fails_is_ended(gpu):
    with pytest.raises(KeyError):
        graphs._captured_aside(lambda stream: {}["no"])
    assert gpu.calls[-3:] == ["cuStreamEndCapture", "cuStreamDestroy", "cuThreadExchangeStreamCaptureMode"]


def test_a_clock(gpu):
    with timing.Clock(1) as clock:
        assert clock.stream == HANDLE and clock.seconds(lambda: None) > 0
        clock.synchronize()
    assert gpu.calls[-3:] == ["cuEventDestroy", "cuEventDestroy", "cuStreamDestroy"]

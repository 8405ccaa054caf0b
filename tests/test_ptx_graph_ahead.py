"""Graphs that are built for a GPU which is not there: compiled, serialized with their kernels, and loaded by a process that must not
compile, with a driver that does nothing in the GPU's place (`stub_gpu`)."""
import hashlib
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from dnnkern.device import SIMULATED

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from graphs import T  # noqa: E402
from sass import disassembled  # noqa: E402

import dnnkern.graph as cudnn  # noqa: E402
from dnnkern.graph import _serial  # noqa: E402
from dnnkern.host.compile import Binary, parsed  # noqa: E402
from dnnkern.host.device import described  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
A = [cudnn.heur_mode.A]
START = _serial._HEADER.size + _serial._DIGEST
ARCHS = "sm_90a", "sm_80"

LOADED = """
import json, sys
import stub_gpu
from dnnkern.host import raw
from dnnkern.host import compile as compiling
from dnnkern.host.device import described
here = described(sys.argv[2])
stub_gpu.NAME, stub_gpu.MEMORY = here.name, here.memory
for name, value in (("COMPUTE_CAPABILITY_MAJOR", here.capability[0]), ("COMPUTE_CAPABILITY_MINOR", here.capability[1]),
                    ("MULTIPROCESSOR_COUNT", here.sms), ("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", here.shared_per_block),
                    ("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR", here.shared_per_sm)):
    stub_gpu._ATTRIBUTES[getattr(raw, "CU_DEVICE_ATTRIBUTE_" + name)] = value
gpu = stub_gpu.install()
import dnnkern.graph as cudnn
compiling.compile_anew = None
graph, found = cudnn.pygraph(), {"error": ""}
try:
    with open(sys.argv[1], "rb") as blob:
        data = blob.read()
    graph.deserialize(data)
    graph.execute({1: 1 << 40, 2: 2 << 40, 3: 3 << 40}, 4 << 40)
    found["again"] = graph.serialize() == data
    found["name"] = graph.get_plan_name_at_index(0)
except RuntimeError as error:
    found["error"] = str(error)
print(json.dumps({**found, "wrong": gpu.wrong, "launched": gpu.launched, "loaded": list(map(str, gpu.loaded)),
                  "compilers": [name for name in ("numba", "llvmlite", "cuda.core") if name in sys.modules]}))
"""


def product(device_property=None, **more):
    graph = cudnn.pygraph(io_data_type=T.BFLOAT16, intermediate_data_type=T.FLOAT, compute_data_type=T.FLOAT,
                          device_property=device_property, **more)
    a, b = graph.tensor([1, 256, 128], [256 * 128, 128, 1], uid=1), graph.tensor([1, 128, 192], [128 * 192, 192, 1], uid=2)
    graph.softmax(graph.relu(graph.matmul(a, b)), 2).set_output(True).set_uid(3)
    return graph


@pytest.fixture(scope="module", params=ARCHS)
def built(request):
    """(architecture, a graph built for it)"""
    graph = product(cudnn.create_device_properties(request.param))
    graph.build(A)
    return request.param, graph


def loaded(blob, folder, arch):
    """What a process says that loads a blob, with nothing in its cache, on a device of an architecture."""
    (folder / "graph").write_bytes(blob)
    done = subprocess.run([sys.executable, "-c", LOADED, str(folder / "graph"), arch], capture_output=True, text=True, cwd=ROOT, env={
        **{k: v for k, v in os.environ.items() if k != "DNNKERN_DEVICE"}, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
        "NUMBA_ENABLE_CUDASIM": "0", "DNNKERN_CACHE_DIR": str(folder / "cache")})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert not found["wrong"] and not found["compilers"] and not list(folder.glob("cache/cubin/*/*"))
    return found


def test_nothing_is_compiled_where_it_is_loaded(built, tmp_path):
    arch, graph = built
    found = loaded(graph.serialize(), tmp_path, arch)
    assert found["error"] == "" and found["name"] == graph.get_plan_name_at_index(0) and found["again"]
    launches = [launch for _, some in graph._candidate.launches() for launch in some]
    assert found["launched"] == [[*launch.grid, *launch.block, launch.shared] for launch in launches] and len(launches) >= 2
    assert found["loaded"].count(str(b"\x7fELF")) == len(graph._candidate.code)


def test_kernels_are_of_the_architecture(built):
    """Chosen for it, compiled for it: `wgmma` is Hopper's alone."""
    arch, graph = built
    kernels = [parsed(content, Binary) for content in graph._candidate.code.values()]
    assert {kernel.arch for kernel in kernels} == {arch} and len(kernels) >= 2
    code = "".join(line for kernel in kernels for line in disassembled(kernel.code))
    assert ("HGMMA" in code) == (arch == "sm_90a") == ("wgmma" in graph.get_plan_name_at_index(0))
    assert graph._candidate.device.name == described(arch).name and graph.get_workspace_size() == 256 * 192 * 4


def test_another_architecture_loads_nothing(built, tmp_path):
    arch, graph = built
    (other,) = {*ARCHS} - {arch}
    found = loaded(graph.serialize(), tmp_path, other)
    assert found["error"] == f"UNSUPPORTED_GRAPH_FORMAT: deserialize: the plan is for {arch}; the device is {other}"
    assert not found["launched"] and not found["loaded"]


def test_here_it_does_not_run(built):
    arch, graph = built
    message = f"GRAPH_EXECUTION_FAILED: execute: the plan of the graph 'test_graph' is for {described(arch).name} \\({arch}\\), which "
    y = np.empty((256, 192), np.uint16)
    for run in (lambda: graph.execute({1: y, 2: y, 3: y}, y), lambda: graph._execute_with_ptrs([256, 512, 768], 1024),
                lambda: graph.execute_plan_at_index({}, None, 0), lambda: graph.autotune({}, None)):
        with pytest.raises(RuntimeError, match=message):
            run()
    with pytest.raises(RuntimeError, match=f"UNSUPPORTED_GRAPH_FORMAT: deserialize: the plan is for {arch}; there is no GPU"):
        cudnn.pygraph().deserialize(graph.serialize())


def test_damage(built, monkeypatch):
    """Flipped bits of every region, kernels among them; and what a wrong list of them says, though the checksum be right."""
    arch, graph = built
    blob = graph.serialize()
    monkeypatch.setattr(_serial, "device_here", lambda: described(arch))
    magic, form, length, rest, version, target = _serial._HEADER.unpack_from(blob)
    assert rest == sum(map(len, graph._candidate.code.values())) > 10_000 and START + length + rest == len(blob)
    rng, edges = np.random.default_rng(0), [0, 8, 12, 20, 28, 44, 60, START, START + length, len(blob)]
    for k in range(300):
        low, high = edges[k % (len(edges) - 1)], edges[k % (len(edges) - 1) + 1]
        damaged = bytearray(blob)
        damaged[rng.integers(low, high)] ^= 1 << rng.integers(8)
        refused(damaged)
    for end in (START + length, START + length + 100, len(blob) - 1):
        refused(blob[:end])

    def signed(body, kernels):
        header = _serial._HEADER.pack(magic, form, len(body), len(kernels), version, target)
        return header + hashlib.sha256(header + body + kernels).digest() + body + kernels
    body, kernels = json.loads(blob[START:START + length]), blob[START + length:]
    assert signed(json.dumps(body).encode(), kernels) == blob
    listed = body["kernels"]
    for wrong in ([], listed[:1], [*listed, ["cubin/x", 0]], [[name, size - 1] for name, size in listed], [[name] for name, _ in listed],
                  [[7, size] for _, size in listed], None, [[name, -size] for name, size in listed]):
        refused(signed(json.dumps({**body, "kernels": wrong}).encode(), kernels))
    other = kernels.replace(f'"arch": "{arch}"'.encode(), f'"arch": "{arch[:-1]}x"'.encode())
    assert other != kernels
    refused(signed(json.dumps(body).encode(), other))


def refused(blob):
    with pytest.raises(RuntimeError, match="UNSUPPORTED_GRAPH_FORMAT: deserialize"):
        cudnn.pygraph().deserialize(bytes(blob))


def test_a_kernel_cache_takes_them():
    cache = cudnn.create_kernel_cache()
    graph = product(cudnn.create_device_properties("sm_80"), kernel_cache=cache)
    graph.build(A)
    assert len(cache) == len(graph._candidate.code) and all(name in cache for name in graph._candidate.code)


def test_versions_and_counts():
    """`sm_version` names a device by its data sheet, `sm_count` how much of one is planned for."""
    graph = product(sm_version=80, sm_count=20)
    graph.build(A)
    device = graph._candidate.device
    assert (device.arch, device.sms, device.is_here) == ("sm_80", 20, False) and graph._candidate.code
    with pytest.raises(RuntimeError, match="INVALID_VALUE: pygraph: sm_version is 71: arch is 'sm_71'; expected one of sm_70, "):
        product(sm_version=71).build(A)
    with pytest.raises(RuntimeError, match="INVALID_VALUE: pygraph: sm_version is 90, and device_property is of NVIDIA A100-SXM4-80GB"):
        product(cudnn.create_device_properties("sm_80"), sm_version=90).build(A)
    with pytest.raises(RuntimeError, match="INVALID_VALUE: sm_count is 109; expected 1 to 108"):
        product(cudnn.create_device_properties("sm_80"), sm_count=109).build(A)

"""Serialized graphs: round trips, other processes, and damage of every kind, which never runs."""
import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from graphs import T, close, execute

import dnnkern.graph as cudnn
from dnnkern.device import HOST_MEMORY
from dnnkern.graph import _kernels, _serial
from dnnkern.graph._ir import GraphSpec
from dnnkern.host.compile import Binary, parsed

START = _serial._HEADER.size + _serial._DIGEST


def linear(device_property=None):
    graph = cudnn.pygraph(io_data_type=T.FLOAT, intermediate_data_type=T.FLOAT, compute_data_type=T.FLOAT, device_property=device_property)
    a, b = graph.tensor([1, 12, 8], [96, 8, 1], name="a", uid=1), graph.tensor([1, 8, 10], [80, 10, 1], name="b", uid=2)
    y = graph.relu(graph.matmul(a, b), upper_clip=6.0).set_output(True).set_uid(3).set_name("y")
    graph.build([cudnn.heur_mode.A])
    return graph, y


def check(graph, keys=(1, 2, 3)):
    rng = np.random.default_rng(0)
    a, b, y = rng.standard_normal((1, 12, 8), np.float32), rng.standard_normal((1, 8, 10), np.float32), np.empty((1, 12, 10), np.float32)
    execute(graph, dict(zip(keys, (a, b, y))))
    close(y, np.clip(a.astype(float) @ b, 0, 6), factor=16, scale=10)


@pytest.fixture(scope="module")
def blob():
    return linear()[0].serialize()


@pytest.mark.parametrize("form", [bytes, list, bytearray, lambda data: data.decode("latin-1")])
def test_round_trip(blob, form):
    graph = cudnn.pygraph()
    graph.deserialize(form(blob))
    check(graph)
    assert graph.serialize() == blob and repr(graph) == repr(linear()[0])
    assert graph.query_tensor_attributes_of_uid(1).get_dim() == [1, 12, 8]


def test_with_a_handle_and_the_tensors_of_the_old_graph():
    old, y = linear()
    graph = cudnn.pygraph()
    graph.deserialize(cudnn.create_handle(), old.serialize())
    check(graph, (old.query_tensor_attributes_of_uid(1), old.query_tensor_attributes_of_uid(2), y))
    assert graph.get_workspace_size() == old.get_workspace_size()


def test_of_another_process(tmp_path):
    code = ("import sys, test_graph_serial as t; open(sys.argv[1], 'wb').write(t.linear()[0].serialize())")
    subprocess.run([sys.executable, "-c", "import sys; sys.path.insert(0, 'tests'); import conftest; " + code, str(tmp_path / "graph")],
                   check=True)
    graph = cudnn.pygraph()
    graph.deserialize((tmp_path / "graph").read_bytes())
    check(graph)


def refused(data):
    with pytest.raises(RuntimeError, match="UNSUPPORTED_GRAPH_FORMAT|GRAPH_NOT_SUPPORTED"):
        cudnn.pygraph().deserialize(data)


def test_truncated_and_lengthened(blob):
    for length in (0, 1, 8, START - 1, START, len(blob) - 1):
        refused(blob[:length])
    refused(blob + b"\0")
    refused(3.5)
    refused([1000])


def signed(blob, header=None, body=None):
    """A blob with a changed header or body, and the checksum that belongs to it."""
    header, body = header or blob[:_serial._HEADER.size], body if body is not None else blob[START:]
    magic, form, _, rest, version, arch = _serial._HEADER.unpack(header)
    header = _serial._HEADER.pack(magic, form, len(body), rest, version, arch)
    return header + hashlib.sha256(header + body).digest() + body


def test_another_version_architecture_or_algorithm(blob):
    magic, form, length, rest, version, arch = _serial._HEADER.unpack(blob[:_serial._HEADER.size])
    assert rest == 0
    for fields in ((b"DNNKWRNG", form, version, arch), (magic, form + 1, version, arch), (magic, form, b"9.9", arch),
                   (magic, form, version, b"sm_20")):
        refused(signed(blob, _serial._HEADER.pack(fields[0], fields[1], length, rest, *fields[2:])))
    refused(signed(blob, _serial._HEADER.pack(magic, form, length, 1, version, arch)))
    body = blob[START:]
    refused(signed(blob, body=body.replace(b'"steps": [', b'"steps": [null, ')))
    assert signed(blob) == blob


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_flipped_bits(blob, count):
    """Every region: magic, format, lengths, version, architecture, checksum, and the body."""
    rng = np.random.default_rng(count)
    edges = [0, 8, 12, 20, 28, 44, 60, START, len(blob)]
    for k in range(count):
        low, high = edges[k % (len(edges) - 1)], edges[k % (len(edges) - 1) + 1]
        damaged = bytearray(blob)
        damaged[rng.integers(low, high)] ^= 1 << rng.integers(8)
        refused(bytes(damaged))


@pytest.mark.skipif(HOST_MEMORY, reason="kernels of the GPU at hand")
def test_ahead_for_the_gpu_that_is_here(tmp_path):
    """The graph runs, and another process with nothing in its cache runs it without a compiler."""
    graph = linear(cudnn.create_device_properties(0))[0]
    check(graph)
    (tmp_path / "graph").write_bytes(graph.serialize())
    code = """
import sys
sys.path[:0] = ["tests", "."]
import test_graph_serial as t
from dnnkern.host import compile as compiling
compiling.compile_anew = None
graph = t.cudnn.pygraph()
graph.deserialize(open(sys.argv[1], "rb").read())
t.check(graph)
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "graph")], check=True,
                   env={**os.environ, "DNNKERN_CACHE_DIR": str(tmp_path / "empty")})


@pytest.mark.skipif(not HOST_MEMORY, reason="for processes without a GPU")
def test_ahead_for_a_gpu(monkeypatch):
    """Without one, by a process that compiles: the blob has the kernels, and is refused here, or runs as one without them."""
    for arch in ("sm_80", "sm_90a"):
        graph = linear(cudnn.create_device_properties(arch))[0]
        kernels = [parsed(content, Binary) for content in graph._candidate.code.values()]
        assert kernels and all(kernel.arch == arch and kernel.code[:4] == b"\x7fELF" for kernel in kernels)
        with pytest.raises(RuntimeError, match=f"GRAPH_EXECUTION_FAILED: execute: the plan .* \\({arch}\\), which is not here"):
            check(graph)
        again = cudnn.pygraph()
        if arch == "sm_80":
            refused(graph.serialize())
        else:  # what the simulator and the processor are planned as
            again.deserialize(graph.serialize())
            check(again)
            assert again.serialize() == graph.serialize()
    monkeypatch.setattr(_kernels, "cache_dir", lambda: None)
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="PLAN_CREATION_FAILED: .* for sm_80: there is no cache directory"):
        linear(cudnn.create_device_properties("sm_80"))


def test_nothing_but_data():
    assert GraphSpec.from_json(repr(linear()[0])) == linear()[0].spec
    assert T.FLOAT.name in repr(linear()[0])

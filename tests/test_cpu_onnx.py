"""`dnnkern.onnx` on the processor: its tests, models that PyTorch exports, and the command."""
import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
import test_onnx  # noqa: E402
from kit import sized  # noqa: E402
from onnx_models import parsed, small  # noqa: E402
from test_cpu_commands import check_fields, run  # noqa: E402
from test_onnx import simplest  # noqa: E402, F401 (a fixture)

import dnnkern.onnx  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
globals().update(sized(test_onnx))


# ---- models of PyTorch

@pytest.fixture(scope="module")
def exports():
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    import onnx_exports
    return {name: onnx_exports.exported(name) for name in onnx_exports.MODELS}


@pytest.mark.parametrize("name", ["resnet", "bert", "lstm", "unet"])
def test_models_exported_from_pytorch(name, exports):
    data, inputs, expected = exports[name]
    prepared = dnnkern.onnx.prepare(data)
    found = prepared.run(inputs)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.shape == theirs.shape and np.abs(theirs).max() > 0.1
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=2e-6 * np.abs(theirs).max())
    rows = prepared.report()
    on_host = {(row.op, row.reason) for row in rows if row.by == "host"}
    assert on_host <= {("Cast", "int64 to float32")}, on_host
    assert sum(row.by == "dnnkern" for row in rows) >= len(rows) - 1
    assert any(row.fused for row in rows)


def test_they_run_without_pytorch(exports, tmp_path):
    program = tmp_path / "run.py"
    program.write_text("""import sys
sys.modules["torch"] = None
import numpy as np, dnnkern.onnx
for name in sys.argv[1:]:
    given = np.load(name + ".npz")
    prepared = dnnkern.onnx.prepare(name + ".onnx")
    found = prepared.run({i.name: given[f"in{k}"] for k, i in enumerate(prepared.inputs)})
    for k, y in enumerate(found):
        theirs = given[f"out{k}"]
        np.testing.assert_allclose(y, theirs, rtol=1e-5, atol=2e-6 * np.abs(theirs).max())
        print(name, k)
""")
    for name, (data, inputs, expected) in exports.items():
        (tmp_path / f"{name}.onnx").write_bytes(data)
        np.savez(tmp_path / f"{name}.npz", **{f"in{k}": x for k, x in enumerate(inputs)}, **{f"out{k}": y for k, y in enumerate(expected)})
    process = subprocess.run([sys.executable, str(program), *exports], cwd=tmp_path, capture_output=True, text=True, timeout=300,
                             env=os.environ | {"PYTHONPATH": str(ROOT), "DNNKERN_PREFER": "naive"})
    assert process.returncode == 0, process.stderr
    assert process.stdout.split() == [word for name, of in exports.items() for k in range(len(of[2])) for word in (name, str(k))]


# ---- the command

@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("resnet", "bert"):
        onnx.save_model(small(name)[0], f"{name}.onnx")
    onnx.save_model(parsed("f (float[2, 2] x) => (float y) { a = Relu (x) y = Det (a) }"), "det.onnx")
    return tmp_path


def test_the_command(capsys, here):
    code, got = run(capsys, "onnx resnet.onnx --dim N=3")
    assert code == 0 and got.err == ""
    assert "y       float32  3x5    finite" in got.out and "12 of 12 nodes ran on this library's kernels, 0 on the host" in got.out
    code, got = run(capsys, "onnx resnet.onnx --dim N=1 --report")
    assert code == 0 and "b     BatchNormalization  dnnkern  graph" in got.out and "a, c" in got.out
    code, got = run(capsys, "onnx det.onnx --report --unfused")
    assert code == 0 and re.search("^y +Det +host +no call computes it$", got.out, re.MULTILINE) and "1 of 2 nodes" in got.out
    assert "activation_fwd" in got.out and "graph" not in got.out
    assert run(capsys, "onnx det.onnx --quiet")[1].out.count("\n") == 3


def test_inputs_and_outputs_in_files(capsys, here):
    model, inputs = small("bert")
    np.savez("in.npz", **inputs)
    assert run(capsys, "onnx bert.onnx --inputs in.npz --save out.npz")[0] == 0
    assert (np.load("out.npz")["y"] == dnnkern.onnx.run_model(model, inputs).y).all()
    np.savez("ids.npz", ids=inputs["ids"])
    assert run(capsys, "onnx bert.onnx --inputs ids.npz --dim N=2 --dim S=5 --seed 3")[0] == 0


def test_the_document(capsys, here):
    code, got = run(capsys, "onnx det.onnx --json")
    document = json.loads(got.out)
    check_fields(document)
    assert code == 0 and got.err == "" and document["model"] == "det.onnx" and document["device"] == "cpu"
    assert document["opsets"] == {"ai.onnx": 21}
    assert document["inputs"] == [{"name": "x", "dtype": "float32", "shape": [2, 2]}]
    assert document["outputs"] == [{"name": "y", "dtype": "float32", "shape": [], "finite": True}]
    assert document["nodes"] == [
        {"name": "a", "op": "Relu", "by": "dnnkern", "calls": ["activation_fwd"], "fused": [], "reason": None, "runs": 1},
        {"name": "y", "op": "Det", "by": "host", "calls": [], "fused": [], "reason": "no call computes it", "runs": 1}]


@pytest.mark.parametrize("words, message", [
    ("resnet.onnx", "onnx: resnet.onnx: got inputs with extents N that the model leaves open; expected --dim N=NUMBER, or arrays"),
    ("resnet.onnx --dim N", "onnx: got --dim N; expected NAME=NUMBER, such as batch=2"),
    ("resnet.onnx --dim N=-1", "onnx: got --dim N=-1; expected NAME=NUMBER"),
    ("resnet.onnx --seed -1 --dim N=1", "onnx: got --seed -1; expected 0 or more"),
    ("resnet.onnx --inputs no.npz", "onnx: --inputs no.npz: no such file; expected a file of numpy.savez"),
    ("resnet.onnx --inputs resnet.onnx", "onnx: --inputs resnet.onnx: it is no zip archive; expected a file of numpy.savez"),
    ("resnet.onnx --dim N=1 --save no/x.npz", "onnx: --save no/x.npz: there is no folder no; expected a file that can be written"),
    ("resnet.onnx --inputs other.npz", "onnx: other.npz: got an array 'z'; expected some of x"),
    ("resnet.onnx --inputs wrong.npz", "input 'x': got float64 (2,); expected float32 (N, 3, 9, 9)"),
    ("no.onnx", "no.onnx: No such file or directory; expected a file of an ONNX model"),
    ("damaged.onnx", "damaged.onnx: got 100 bytes that are no ONNX model, or a part of one"),
    ("empty.onnx", "empty.onnx: got a file without a graph; expected an ONNX model"),
    ("newer.onnx", "newer.onnx: got opset 999 of domain 'ai.onnx'; expected 1 to "),
    ("unknown.onnx", "node 'y' (Foo): there is no operator 'Foo' in opset 21 of domain 'ai.onnx'"),
    ("domain.onnx", "node 'y' (my.Foo): there is no operator 'Foo' in opset 1 of domain 'my'"),
    ("external.onnx", "external.onnx: got external data in w.bin, which is missing"),
    ("unsaid.onnx", "onnx: unsaid.onnx: input 'x' is float32 (?); expected an array for it (--inputs FILE.npz)"),
    ("wrong.onnx", "node 'y' (Reshape): got shape (7,) for x (2, 3); expected one of 6 elements"),
    ("resnet.onnx --dim N=0", ""), ("", "the following arguments are required: model")])
def test_mistakes_are_one_line(words, message, capsys, here):
    np.savez("other.npz", z=np.zeros(2))
    np.savez("wrong.npz", x=np.zeros(2))
    pathlib.Path("damaged.onnx").write_bytes(small("resnet")[0].SerializeToString()[:100])
    pathlib.Path("empty.onnx").write_bytes(b"")
    model = small("resnet")[0]
    model.opset_import[0].version = 999
    onnx.save_model(model, "newer.onnx")
    for name, domain in (("unknown", ""), ("domain", "my")):
        model = parsed("f (float[2] x) => (float[2] y) { y = Relu (x) }")
        model.graph.node[0].op_type, model.graph.node[0].domain = "Foo", domain
        if domain:
            model.opset_import.append(onnx.helper.make_opsetid(domain, 1))
        onnx.save_model(model, f"{name}.onnx")
    onnx.save_model(small("resnet")[0], "external.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    os.remove("w.bin")
    onnx.save_model(parsed("f (float[?] x) => (float[?] y) { y = Relu (x) }"), "unsaid.onnx")
    onnx.save_model(parsed("f (float[2, 3] x) => (float[7] y) { y = Reshape (x, s) }", weights={"s": np.array([7])}), "wrong.onnx")
    code, got = run(capsys, f"onnx {words}")
    if words.endswith("N=0"):  # no elements: it runs, or says why not
        assert code in (0, 2) and got.err.count("\n") <= 1
        return
    assert code == 2 and got.out == "" and got.err.count("\n") == 1 and message in got.err, got.err


def test_without_the_package(capsys, here, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    code, got = run(capsys, "onnx resnet.onnx")
    assert code == 2 and got.err.count("\n") == 1 and "onnx: the package onnx cannot be imported" in got.err

"""``python -m dnnkern bench jax``: what its rows say of small programs."""
import importlib.util
import json
import sys

import numpy as np
import pytest

jax = pytest.importorskip("jax")
from test_jax import alone, array  # noqa: E402, F401 (a fixture)
from test_jax_enable import program  # noqa: E402

import dnnkern.jax  # noqa: E402
from dnnkern import _bench  # noqa: E402
from dnnkern.device import HOST_MEMORY  # noqa: E402

_bench.load()  # makes the folder bench/ importable
from bench import jax_programs as programs  # noqa: E402

pytestmark = pytest.mark.sized


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """() -> exit code and rows of the command, with turns of one step, in the dtypes of a program."""
    if not HOST_MEMORY:
        pytest.skip("on a GPU the programs are large")
    monkeypatch.setattr(programs, "MOST", 1)
    jax.config.update("jax_enable_x64", False)

    def run(names):
        path = tmp_path / "rows.jsonl"
        code = programs.main(["--set", names, "--turns", "3", "--json", str(path)])
        return code, [json.loads(line) for line in path.read_text().splitlines()]
    return run


def test_programs(quick, capsys):
    code, (conv, attention) = quick("conv-norm-relu-train-64,attention-train-1x4096")
    assert code == 0 and conv["problem"] == "conv-norm-relu-train-64" and attention["problem"] == "attention-train-1x4096"
    for row in (conv, attention):
        assert row["status"] == "ok" and row["same_bits"] and 0 < row["error"] < 3e-2 and not row["back"]
        assert len(row["ours_turns"]) == len(row["xla_turns"]) == 3 and row["ours_ms"] == sorted(row["ours_turns"])[1]
        assert 0 < row["ours_host_ms"] <= row["ours_ms"] and row["of_xla"] == pytest.approx(row["xla_ms"] / row["ours_ms"])
        np.testing.assert_allclose(row["losses"], row["xla_losses"], rtol=0, atol=row["error"] * np.abs(row["xla_losses"]).max() * 2)
        assert row["jax"] == jax.__version__ and row["machine"]["versions"]["numba"]
    assert conv["calls"] == {"conv_general_dilated": 10 * 5, "dot_general": 10 * 3}  # the images have no gradient
    assert {op: calls for op, (us, calls) in conv["host_us"].items() if us > 0} == {"conv_general_dilated": 5, "dot_general": 3}
    assert len(conv["losses"]) == 10 and conv["losses"][-1] < conv["losses"][0]
    assert attention["calls"] == {"dot_product_attention": 2}
    assert "conv-norm-relu-train-64: ok error" in capsys.readouterr().out


def test_the_attention_is_causal_attention():
    """Its gradients are those of products and a softmax in float64."""
    step, (q, k, v), (given,) = programs.attention(True)

    def loss(q, k, v):
        scores = jax.numpy.einsum("bshd,bthd->bhst", q, k) / q.shape[-1] ** 0.5
        scores = jax.numpy.where(np.tri(scores.shape[-1], dtype=bool), scores, -np.inf)
        return (jax.numpy.einsum("bhst,bthd->bshd", jax.nn.softmax(scores), v) * given).sum()
    expected = jax.jit(jax.grad(loss, (0, 1, 2)))(*(x.astype("float64") for x in (q, k, v)))
    found = np.asarray(jax.jit(step)((q, k, v), given)[1], np.float64)
    np.testing.assert_allclose(found, np.stack(expected), rtol=0, atol=2e-2 * np.abs(expected[0]).max())


def test_what_is_wrong_has_no_times(quick, monkeypatch):
    def results(self, who, steps):
        if who == "ours":
            dnnkern.jax.matmul(*[array(2, 2, dtype="float32")] * 2).block_until_ready()
        return np.array([2.0, 1.0 + 0.07 * (who == "ours")]), 0.0
    monkeypatch.setattr(programs.Jitted, "results", results)
    code, (row,) = quick("attention-train-1x4096")
    assert code == 1 and row["status"] == "WRONG: the results differ by 0.035 of the largest" and "ours_ms" not in row


def test_what_runs_on_xla_alone_has_no_times(quick, monkeypatch):
    monkeypatch.setitem(programs.SETS, "outer", lambda: programs.Jitted(
        lambda small: (lambda state, x: (state, jax.numpy.vdot(x, x)), (), (jax.numpy.arange(4),))))
    code, (row,) = quick("outer")
    assert code == 1 and row["status"].startswith("nothing ran on this library's kernels: dot_general: ") and "ours_ms" not in row


def test_a_package_that_is_missing(quick, monkeypatch):
    monkeypatch.setitem(sys.modules, "keras", None)
    code, (row,) = quick("keras-train-128")
    assert code == 0 and row["status"] == "keras is not installed" and row["missing"] == "keras"


def test_an_unknown_program():
    with pytest.raises(ValueError, match="bench jax: --set conv; expected all, or of conv-norm-relu-train-64, attention-"):
        programs.main(["--set", "conv"])


KERAS = """
import sys
from dnnkern import __main__, _bench
_bench.load()
from bench import jax_programs
jax_programs.MOST = 2
sys.exit(__main__.main(["bench", "jax", "--set", "keras-train-128", "--turns", "1", "--steps", "3", "--json", sys.argv[1]]))
"""


def test_keras(tmp_path):
    if importlib.util.find_spec("keras") is None or not HOST_MEMORY:  # importing it would choose a backend
        pytest.skip("keras is not installed" if HOST_MEMORY else "on a GPU the program is large")
    program(KERAS, str(tmp_path / "rows.jsonl"))
    row = json.loads((tmp_path / "rows.jsonl").read_text())
    assert row["status"] == "ok" and row["same_bits"] and row["error"] < 1e-5 and not row["back"]
    assert row["calls"] == {"conv_general_dilated": 6, "reduce_window_max": 3, "select_and_scatter_add": 6, "dot_general": 9}
    assert row["losses"] == pytest.approx(row["xla_losses"], rel=1e-5) and row["losses"][2] < row["losses"][0]
    assert row["of_xla"] == pytest.approx(row["xla_ms"] / row["ours_ms"]) and "ours_host_ms" not in row

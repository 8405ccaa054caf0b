"""The programs of ``python -m dnnkern bench torch``, small: a ResNet, ConvNeXt, GPT, a block of a Llama, an LSTM and a 3-D U-Net."""
import json

import pytest

torch = pytest.importorskip("torch")

from test_torch_table import alone  # noqa: E402, F401 (a fixture)
from torch_calls import DEVICE  # noqa: E402

import dnnkern.torch  # noqa: E402
from bench import models  # noqa: E402
from dnnkern.device import HOST_MEMORY, SIMULATED  # noqa: E402

PARTS = {  # operators that must be ours, beside whatever else is
    "resnet50-train-64": {"convolution", "convolution_backward", "cross_entropy_loss"},
    "convnext-train-64": {"convolution", "native_layer_norm", "native_layer_norm_backward", "_fused_adamw_"},
    "gpt2-train-16": {"embedding", "scaled_dot_product_attention", "scaled_dot_product_attention backward", "native_layer_norm"},
    "llama-train-1": {"rms_norm", "rms_norm backward", "scaled_dot_product_attention", "mm"},
    "lstm-train-64": {"embedding"} if HOST_MEMORY else {"lstm.input", "lstm.input backward"},  # autocast, on the CPU PyTorch's
    "lstm-train-64-float32": {"lstm.input", "lstm.input backward", "embedding"},
    "unet3d-train-2": {"convolution", "convolution_backward", "max_pool3d_with_indices"}}


def losses(name, steps=4):
    program = models.made(name, DEVICE, small=True)
    return torch.stack([program.step() for _ in range(steps)]).double()


@pytest.mark.sized
@pytest.mark.skipif(SIMULATED, reason="takes minutes in the simulator; see test_torch_step")
@pytest.mark.parametrize("name", PARTS)
def test_a_program_trains_as_on_pytorch(name):
    theirs = losses(name)
    with dnnkern.torch.enabled("all"):
        ours, again = losses(name), losses(name)
    rows = dnnkern.torch.status(reset=True)
    assert {row.op for row in rows if row.ours} >= PARTS[name]
    assert torch.equal(ours, again)
    assert (ours - theirs).abs().max() <= 2e-2 * theirs.abs().max() and ours[-1] < ours[0]


@pytest.mark.sized
@pytest.mark.skipif(SIMULATED, reason="takes minutes in the simulator")
def test_a_long_training_says_what_becomes_of_it(tmp_path, capsys):
    from bench import programs
    assert programs.main(["--set", "gpt2-train-16", "--minutes", "0.02", "--json", str(tmp_path / "rows.jsonl")]) == 0
    row = json.loads((tmp_path / "rows.jsonl").read_text())
    times = [ms for ms, _, _ in row["windows"]]
    assert "drift" in capsys.readouterr().out and row["status"] == "ok" and row["minutes"] == 0.02
    assert min(times) <= row["ours_ms"] <= max(times) and row["drift"] >= 0 and sum(times) > 0 and row["eager_ms"] > 0
    assert ("joules" in row) is not HOST_MEMORY


@pytest.mark.sized
@pytest.mark.skipif(SIMULATED, reason="takes minutes in the simulator")
def test_compiled_programs_run_beside_plain_calls(tmp_path):
    from bench import compiled
    words = ["--set", "gpt2-train-16", "--against", "eager,calls,both", "--turns", "1", "--steps", "2", "--raises"]
    assert compiled.main([*words, "--json", str(tmp_path / "rows.jsonl")]) == 0
    row = json.loads((tmp_path / "rows.jsonl").read_text())
    assert row["status"] == "ok" and row["same_bits"] and row["eager_error"] == 0
    for who in ("calls", "both"):
        assert 0 < row[f"{who}_error"] <= 2e-2 and row[f"of_{who}"] == row[f"{who}_ms"] / row["ours_ms"]

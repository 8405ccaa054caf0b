"""examples/train_ddp.py: two ranks on the processor, checkpoints and restart, and ends with a message."""
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")

from test_examples import ENVIRONMENT, ROOT  # noqa: E402

from dnnkern import _bench  # noqa: E402

_bench.load()  # makes the folder bench/ importable
from bench import models  # noqa: E402

pytestmark = pytest.mark.sized
SMALL = "--size", "8", "--samples", "50", "--batch", "4", "--width", "3", "--epochs", "2"  # 6 steps an epoch
PROGRAM = "examples/train_ddp.py"


def environment():
    return {**ENVIRONMENT, "NUMBA_ENABLE_CUDASIM": "0", "DNNKERN_DEVICE": "cpu", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


class Ranks:
    """Processes, started as torchrun starts them: some of the ranks."""

    def __init__(self, *words, ranks=(0, 1), count=2, before=("",) * 2):
        at, self.ranks = port(), []
        for rank in ranks:
            code = f"{before[rank]}\nimport runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
            self.ranks.append(subprocess.Popen(
                [sys.executable, "-c", code, PROGRAM, *SMALL, *words], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env={**environment(), "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": at}))

    def ends(self):
        """(code, stdout, stderr) of each rank, in a bounded time."""
        try:
            return [(p.returncode, *said) for p in self.ranks for said in [p.communicate(timeout=120)]]
        finally:
            self.kill()

    def end_of(self, rank, seconds):
        """(code, stdout, stderr) of a rank, which has so many seconds; then the others are killed."""
        try:
            said = self.ranks[rank].communicate(timeout=seconds)
            return self.ranks[rank].returncode, *said
        finally:
            self.kill()

    def kill(self):
        """End what has not ended."""
        for p in self.ranks:
            p.kill()
            p.wait()


def trained(*words):
    """What a run prints on rank 0."""
    ends = Ranks(*words).ends()
    assert [code for code, *_ in ends] == [0, 0], ends
    return ends[0][1]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(checkpoint, what is printed) of a run of 12 steps."""
    path = tmp_path_factory.mktemp("whole") / "run.pt"
    return path, trained("--checkpoint", str(path))


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """Checkpoints of 8 steps and of 4, the one before: within the second epoch, and the first."""
    path = tmp_path_factory.mktemp("half") / "run.pt"
    trained("--checkpoint", str(path), "--every", "4", "--steps", "8")
    return path


@pytest.fixture
def copy(half, tmp_path):
    for end in ("", ".before"):
        (tmp_path / f"run.pt{end}").write_bytes(half.with_name(f"run.pt{end}").read_bytes())
    return tmp_path / "run.pt"


def flat(state, name=""):
    """{path: leaf} of nested dictionaries and lists."""
    if isinstance(state, (dict, list, tuple)):
        items = state.items() if isinstance(state, dict) else enumerate(state)
        return {k: v for key, value in items for k, v in flat(value, f"{name}/{key}").items()}
    return {name: state}


def assert_bitwise(ours, theirs):
    ours, theirs = (flat(torch.load(path, weights_only=True)) for path in (ours, theirs))
    assert ours.keys() == theirs.keys() and len(ours) > 50
    for name, value in theirs.items():
        assert torch.equal(ours[name], value) if isinstance(value, torch.Tensor) else ours[name] == value, name


def test_it_learns_and_says_so(whole):
    lines = whole[1].splitlines()
    losses = [float(line.split()[3].rstrip(",")) for line in lines[:2]]
    assert losses[1] < losses[0] < 3 and all(line.endswith("samples/s") for line in lines[:2]), lines
    assert lines[2].startswith("2 ranks on cpu; ") and int(lines[2].split()[4]) > 12 * 20, lines


def test_resnet50():
    """With the weights of another one its results, and as many parameters as torchvision's has."""
    network, theirs = runpy.run_path(PROGRAM)["network"], models.resnet(width=4)
    ours = network(3, "resnet50", 4, 0.5).eval()
    ours.load_state_dict(dict(zip(ours.state_dict(), theirs.state_dict().values(), strict=True)))
    x = torch.randn(2, 3, 40, 33)
    torch.testing.assert_close(ours(x), theirs.eval()(x), rtol=0, atol=0)
    with torch.device("meta"):
        assert sum(p.numel() for p in network(3, "resnet50", 64, 0).parameters()) == 25_557_032


def test_samples_a_second(tmp_path):
    """A line for a program to read; the losses are PyTorch's."""
    path, words = tmp_path / "rates.jsonl", ("--amp", "--epochs", "4", "--steps", "22", "--rate", "0.01", "--dropout", "0")
    ours, theirs = trained(*words, "--compile", "--json", str(path)), trained(*words, "--ops", "none")
    row, = map(json.loads, path.read_text().splitlines())
    assert row["ranks"] == 2 and row["batch"] == 4 and row["steps"] == 2 and row["ours"] >= 3 * 22 and row["device"] == "cpu"
    assert row["dtype"] == "bfloat16" and row["compile"] == "dnnkern" and row["samples_per_s"] == pytest.approx(8e3 / row["step_ms"])
    assert f"{row['samples_per_s']:.1f} samples/s by the median of 2 steps" in ours and "; 0 calls of rank 0 ran on dnnkern's" in theirs
    losses, expected = ([float(line.split()[3].rstrip(",")) for line in text.splitlines()[:4]] for text in (ours, theirs))
    assert losses == pytest.approx(expected, rel=1e-2)


def test_too_few_steps_for_a_rate(tmp_path):
    for code, _, said in Ranks("--json", str(tmp_path / "rates.jsonl")).ends():
        assert code == 1 and "--json: 12 steps; expected more than 20, since the first 20 are not timed" in said, said
    assert not any(tmp_path.iterdir())


def test_restart_is_bitwise_as_without(whole, copy):
    """Weights, statistics, momenta, generators of both ranks and the position; from within an epoch, with dropout."""
    trained("--checkpoint", str(copy), "--resume")
    assert_bitwise(copy, whole[0])
    assert not copy.with_name("run.pt.writing").exists()


def test_a_checkpoint_half_written(whole, copy):
    """The one before is taken, and leads to the same end."""
    copy.write_bytes(copy.read_bytes()[:-5000])
    said = trained("--checkpoint", str(copy), "--resume")
    assert f"{copy} is no whole checkpoint (" in said and "going on from the one before" in said
    assert_bitwise(copy, whole[0])


def test_checkpoints_that_are_refused(copy):
    copy.write_bytes(copy.read_bytes()[:1000])
    copy.with_name("run.pt.before").unlink()
    for code, _, said in Ranks("--checkpoint", str(copy), "--resume").ends():
        assert code == 1 and f"--resume: {copy} is no whole checkpoint (" in said and "run.pt.before does not exist" in said, said


def test_a_checkpoint_of_another_run(copy):
    for code, _, said in Ranks("--checkpoint", str(copy), "--resume", "--seed", "3").ends():
        assert code == 1 and "--resume: got seed 3, in the checkpoint 0. Expected the same" in said, said


def test_a_checkpoint_of_another_program(tmp_path):
    torch.save({"model": {}}, tmp_path / "other.pt")
    for code, _, said in Ranks("--checkpoint", str(tmp_path / "other.pt"), "--resume").ends():
        assert code == 1 and "is no checkpoint of this program: it lacks at, optimizer, random, settings" in said, said


def until_written(path, ranks):
    """Wait for a checkpoint."""
    end = time.monotonic() + 100
    while not path.exists():
        assert time.monotonic() < end and all(p.poll() is None for p in ranks.ranks), [p.communicate() for p in ranks.ranks]
        time.sleep(0.05)


@pytest.mark.parametrize("how, timeout", [(signal.SIGKILL, "60"), (signal.SIGSTOP, "3")], ids=("killed", "stopped"))
def test_a_rank_that_is_lost(tmp_path, how, timeout):
    """One that is killed is noticed at once, one that does not answer after the time limit."""
    path = tmp_path / "run.pt"
    ranks = Ranks("--checkpoint", str(path), "--every", "1", "--epochs", "5000", "--timeout", timeout)
    until_written(path, ranks)
    os.kill(ranks.ranks[1].pid, how)
    began = time.monotonic()
    code, _, said = ranks.end_of(0, 50)
    assert code == 1 and time.monotonic() - began < 50
    assert "rank 0: lost the other ranks: one has died, or did not answer within" in said and f"with --resume to go on from {path}" in said


def test_a_rank_that_is_told_to_end_while_it_waits(tmp_path):
    """At once, though its main thread waits for another rank."""
    path = tmp_path / "run.pt"
    ranks = Ranks("--checkpoint", str(path), "--every", "1", "--epochs", "5000", "--timeout", "90")
    until_written(path, ranks)
    os.kill(ranks.ranks[1].pid, signal.SIGSTOP)
    time.sleep(2)
    ranks.ranks[0].terminate()
    code, _, said = ranks.end_of(0, 20)
    assert code == 1 and "rank 0: ended by SIGTERM" in said and f"to go on from {path}" in said, said


def test_a_rank_that_never_comes():
    (code, _, said), = Ranks("--timeout", "2", ranks=(0,)).ends()
    assert code == 1 and "did not answer within --timeout 2 s" in said and "there is no checkpoint to go on from" in said, said


def test_ranks_of_different_versions():
    ends = Ranks(before=("", "import dnnkern; dnnkern.__version__ = '0.0.1'")).ends()
    for code, _, said in ends:
        assert code == 1 and "dnnkern has different versions: " in said, said
        assert "; 0.0.1 on rank 1. Expected the same on every rank" in said, said


@pytest.mark.parametrize("words, text", [
    ((), "expected to be started by torchrun"), (("--resume",), "got no --checkpoint"),
    (("--batch", "0"), "--batch: got 0; expected a positive number")])
def test_bad_command_lines(words, text):
    lacking = {k: v for k, v in environment().items() if k not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    done = subprocess.run([sys.executable, PROGRAM, *words], capture_output=True, text=True, cwd=ROOT, env=lacking, timeout=100)
    assert done.returncode and text in done.stderr, done.stderr


def test_torchrun_ends_when_a_rank_is_killed(tmp_path):
    path = tmp_path / "run.pt"
    code = "import os, signal, sys, runpy; rank = os.environ['RANK']; path = sys.argv[sys.argv.index('--checkpoint') + 1]\n" \
           "import threading, time\ndef end():\n    while not os.path.exists(path): time.sleep(0.05)\n    os.kill(os.getpid(), 9)\n" \
           "if rank == '1': threading.Thread(target=end, daemon=True).start()\n" \
           f"runpy.run_path({PROGRAM!r}, run_name='__main__')\n"
    program = tmp_path / "killed.py"
    program.write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", port(), str(program), *SMALL,
         "--checkpoint", str(path), "--every", "1", "--epochs", "5000"],
        capture_output=True, text=True, cwd=ROOT, env=environment(), timeout=120)
    assert done.returncode == 1 and "rank 0: " in done.stderr and "to go on from" in done.stderr, done.stderr
    assert "Signal 9 (SIGKILL)" in done.stderr

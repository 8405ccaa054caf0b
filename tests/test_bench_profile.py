"""``bench profile``: which rows it takes, what it reads of ncu's table, what it writes; ncu itself runs on a GPU alone."""
import json
import os
import stat
import sys

import pytest

from bench import profile, run
from dnnkern import dispatch
from dnnkern.device import SIMULATED
from dnnkern.report.rows import records

pytestmark = pytest.mark.skipif(not SIMULATED, reason="of the host alone")

NAMES = ("ID", "Kernel Name", "gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum", "lts__t_bytes.sum",
         "breakdown:sm__issue_active.avg.pct_of_peak_sustained_elapsed", "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
         "sm__inst_issued.avg.pct_of_peak_sustained_elapsed", "sm__throughput.avg.pct_of_peak_sustained_elapsed",
         "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",
         "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio", "launch__block_size")
UNITS = ("", "", "ns", "byte", "byte", "byte", "%", "%", "%", "inst", "inst", "")
LINES = [("0", "transpose[abi:v1](short*, int)", "2,500", "1,000,000", "5e5", "3e6", "12.5", "0", "12.5", "70", "8.25", "0.5", "256"),
         ("1", "matmul::matmul_wgmma[abi:v2](Map)", "1500", "4000", "n/a", "9000", "20", "81.5", "20", "81.5", "0.25", "1.5", "96")]


def table(*lines):
    return "\n".join(["==PROF== Connected to process 1", *(",".join(f'"{cell}"' for cell in line) for line in (NAMES, UNITS, *lines))])


def row(problem="8x8x8 bfloat16 nn", ratio=0.9, **changes):
    device = dispatch.device_of(0)
    return {"op": "matmul", "problem": problem, "record": {}, "algo": "naive", "config": "", "ratio": ratio, "time_us": 2.0, "roof": 0.5,
            "code": "c", "chosen": True, "is_peer": False, "status": "ok",
            "machine": {"device": device.name, "date": "2026-01-01", "commit": "a"}, **changes}


def test_what_is_read_of_kernels():
    first, second = profile.kernels_of(table(*LINES))
    assert first == {"name": "transpose", "us": 2.5, "dram_read": 1e6, "dram_written": 5e5, "l2": 3e6,
                     "busy": {"sm__issue_active": 12.5, "sm__pipe_tensor_cycles_active": 0.0},
                     "stalls": {"long_scoreboard": 8.25, "wait": 0.5}}
    assert second["name"] == "matmul_wgmma" and second["us"] == 1.5 and second["dram_written"] is None
    assert list(second["busy"]) == ["sm__pipe_tensor_cycles_active", "sm__issue_active"]
    assert list(second["stalls"]) == ["wait", "long_scoreboard"]
    assert profile.kernels_of("==ERROR== no permission") == []


def test_what_is_slow_and_not_stale_is_profiled(tmp_path, monkeypatch):
    monkeypatch.setattr(profile.code, "is_stale", lambda r: r["problem"] == "stale")
    other = {"device": "other", "date": "2026-01-01", "commit": "a"}
    some = [row("slow"), row("fast", 0.98), row("stale"), row("alone", None), row("tried", chosen=False), row("bad", status="WRONG"),
            row("elsewhere", machine=other), row("had", 0.5)]
    path, have = tmp_path / "rows.jsonl", tmp_path / "profiles.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in some))
    have.write_text(json.dumps(row("had")) + "\n")
    device = dispatch.device_of(0)

    def asked(*words):
        return [r["problem"] for r in profile.wanted(profile.parser().parse_args([str(path), *words]), device)]
    assert asked() == ["slow", "had"] and asked("--json", str(have)) == ["slow"] and asked("--below", "0.6") == ["had"]
    assert asked("--words", "matmul fast") == ["fast"] and asked("--words", "") == ["slow", "fast", "alone", "had"]


@pytest.fixture
def ncu(tmp_path, monkeypatch):
    """A program in place of ncu: it writes a table of three kernels, of which the first row had one, the second none."""
    program = tmp_path / "ncu"
    text = table(LINES[0], LINES[1], LINES[1])
    program.write_text(f"#!{sys.executable}\nimport json, pathlib, sys\n"
                       f"pathlib.Path(sys.argv[sys.argv.index('--log-file') + 1]).write_text({text!r})\n"
                       "pathlib.Path(sys.argv[sys.argv.index('--run') + 1]).write_text(json.dumps([1, 0, 2]))\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(profile.code, "is_stale", lambda r: False)


def test_kernels_go_to_their_rows(tmp_path, capsys, ncu):
    path, out = tmp_path / "rows.jsonl", tmp_path / "profiles.jsonl"
    path.write_text("".join(json.dumps(row(name)) + "\n" for name in "abc"))
    assert run.main(["profile", str(path), "--json", str(out)]) == 1  # b could not run
    found = list(records([out]))
    assert [(r["problem"], [k["name"] for k in r["kernels"]]) for r in found] == [
        ("a", ["transpose"]), ("c", ["matmul_wgmma", "matmul_wgmma"])]
    assert all(r["machine"]["device"] == dispatch.device_of(0).name and r["ratio"] == 0.9 for r in found)
    printed = capsys.readouterr().out
    assert run.main(["profile", str(out), "--show"]) == 0
    assert capsys.readouterr().out in printed and "sm pipe_tensor_cycles_active 82, sm issue_active 20" in printed
    assert "long_scoreboard 8.2, wait 0.5" in printed


def test_problems_are_profiled_some_at_a_time_and_shared(tmp_path, monkeypatch, ncu):
    monkeypatch.setattr(profile, "TOGETHER", 3)
    path, out, share = (tmp_path / name for name in ("rows.jsonl", "profiles.jsonl", "share"))
    path.write_text("".join(json.dumps(row(name)) + "\n" for name in "abcdefg"))
    words = ["profile", str(path), "--json", str(out), "--share", str(share)]
    assert not profile.is_taken("matmul d", share) and profile.is_taken("matmul d", share)  # by another process
    failing, really = [], profile.profiled

    def profiled(rows, *more):
        if rows[0]["problem"] == "e":
            failing.append(rows)
            raise RuntimeError("ncu")
        return really(rows, *more)
    monkeypatch.setattr(profile, "profiled", profiled)
    with pytest.raises(RuntimeError, match="ncu"):
        run.main(words)
    assert [[r["problem"] for r in rows] for rows in failing] == [["e", "f"]]
    assert [r["problem"] for r in records([out])] == ["a", "c", "g"]  # b could not run; g came after those that failed
    assert run.main(words) == 0 and len(list(records([out]))) == 3  # all have been taken


def test_a_profiler_that_fails_is_named(tmp_path, monkeypatch):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row()) + "\n")
    monkeypatch.setattr(profile.code, "is_stale", lambda r: False)
    monkeypatch.setattr(profile.shutil, "which", lambda name: None)
    with pytest.raises(ValueError, match="^bench profile: ncu, which measures, is not on the PATH"):
        run.main(["profile", str(path)])
    monkeypatch.setattr(profile.shutil, "which", lambda name: "/bin/false")
    with pytest.raises(RuntimeError, match="^bench profile: /bin/false ended with 1"):
        run.main(["profile", str(path)])

"""The command line: what it prints, and that what is wrong is one line and exit code 2."""
import configparser
import importlib
import os
import pathlib
import shlex
import subprocess
import sys

import pytest

import dnnkern
from dnnkern import dispatch, registry
from dnnkern.__main__ import main
from dnnkern.matmul._parse import FAMILY, parse_problem

ROOT = pathlib.Path(__file__).resolve().parent.parent


def run(capsys, *words):
    code = main(words)
    return code, capsys.readouterr()


def test_devices(capsys, simulated):
    code, got = run(capsys, "devices")
    assert code == 0 and "simulator" in got.out and "sm_90a" in got.out


def test_list_names_every_algorithm(capsys):
    code, got = run(capsys, "list")
    assert code == 0
    for algorithm in dispatch.algorithms():
        assert any(line.split()[:2] == [algorithm.op, algorithm.name] for line in got.out.splitlines()), algorithm
    assert run(capsys, "list", "matmul")[1].out == got.out or len({a.op for a in dispatch.algorithms()}) > 1


def test_list_gives_the_first_line_of_an_algorithms_file(capsys):
    """Wherever its functions are."""
    for op, file in (("rnn_fwd", "rnn.rnn_cluster"), ("group_norm_fwd", "norm.group_norm_fwd_shared")):
        line = importlib.import_module(f"dnnkern.{file}").__doc__.split("\n")[0].rstrip(".")
        assert any(row.split()[1:2] == [file.split("_")[-1]] and line in row for row in run(capsys, "list", op)[1].out.splitlines()), line


def test_explain_marks_what_get_chooses(capsys):
    words = "128x64x96 bf16 tn --bias --activation gelu".split()
    code, got = run(capsys, "explain", "matmul", *words)
    assert code == 0
    chosen = dispatch.get_algorithm("matmul", parse_problem(words))
    marked = [line for line in got.out.splitlines() if line.startswith("* ")]
    assert marked[0].split()[1] == chosen.name
    assert got.out.startswith("matmul 128x64x96 bfloat16 tn + bias by column, gelu on ")


def test_explain_gives_reasons(capsys):
    problem = parse_problem(["33x29x37", "int8"])
    refused = {c.algo: c.reason for c in dispatch.explain("matmul", problem) if c.reason}
    got = run(capsys, "explain", "matmul", "33x29x37", "int8")[1].out
    for name, reason in refused.items():
        assert [name, *reason.split()] in [line.split() for line in got.splitlines()], name


def test_find_and_then_explain_knows_the_time(capsys, tmp_path, monkeypatch, simulated):
    naive = next(a for a in dispatch.algorithms("matmul") if a.name == "naive")
    with monkeypatch.context() as m:  # one algorithm is enough here, and the simulator is slow
        m.setattr("dnnkern.find.STORES", True)  # as on a device
        m.setitem(registry._registry, "matmul", {"naive": naive})
        dispatch._chosen.cache_clear()
        code, got = run(capsys, "find", "matmul", "5x4x3", "f32")
        assert code == 0 and "naive" in got.out and "simulator" in got.out
        explained = run(capsys, "explain", "matmul", "5x4x3", "f32")[1].out
    dispatch._chosen.cache_clear()
    assert "the lowest measured time" in explained


def test_check_runs_one_problem(capsys, simulated):
    code, got = run(capsys, "check", "matmul", "5x4x3", "f32", "--bias", "--algo", "naive")
    assert code == 0 and "matmul 5x4x3 float32 nn + bias by column" in got.out
    assert [line.split() for line in got.out.splitlines()[3:4]] == [["1/1", "naive", "ok"]]


@pytest.mark.parametrize("words", ["5x4x3 f32 --activation relu --in-place", "2x5x4x3 bf16 tt --bias row --c --beta 0.5 --out-dtype f32"])
def test_check_takes_the_command_that_dnnkern_check_prints(words, capsys, simulated):
    from dnnkern.host.check import repro
    problem = parse_problem(words.split())
    assert FAMILY["matmul"][2](dispatch.problem_record(problem)) == problem
    naive = next(a for a in dispatch.algorithms("matmul") if a.name == "naive")
    command = shlex.split(repro(problem, naive))
    assert command[:3] == ["python", "-m", "dnnkern"]
    code, got = run(capsys, *command[3:])
    assert code == 0 and str(problem) in got.out and "ok" in got.out


@pytest.mark.parametrize("words, part", [
    ("check matmul {}", "not a record"),
    ("check matmul {", "argument record: invalid JSON: Expecting property name"),
    ("explain matmul 3x4 f32", "'3x4' is not MxNxK"),
    ("explain matmul 3x4x5 q9", "argument dtype: unknown dtype 'q9'; expected one of float64, "),
    ("explain matmul 3x4x5 f32 xy", "invalid choice: 'xy'"),
    ("explain matmul 3x4x5 f32 --activation relux", "did you mean 'relu'"),
    ("explain matmul 3x4x5 f32 --out-dtype int8", "out (or out_dtype) is int8; expected one of float32, "),
    ("explain matmul 3x4x5 f32 --exclude TENSOR_CORES", "'TENSOR_CORES' is not a note; did you mean 'tensor_core'"),
    ("find matmul 3x4x5 f32 --allow anything", "'anything' is not a note; expected one of TENSOR_CORE, "),
    ("explain conv 3x4x5 f32", "unknown operation 'conv'; did you mean 'conv_fwd'"),
    ("explain matmul", "required"),
    ("list nothing", "unknown operation 'nothing'; expected one of "),
    ("list convfwd", "unknown operation 'convfwd'; did you mean 'conv_fwd'"),
    ("explain relu 3x4 f32", "unknown operation 'relu'; did you mean 'activation_fwd'?"),
    ("explain GEMM 3x4 f32", "unknown operation 'GEMM'; did you mean 'matmul'?"),
    ("frobnicate", "invalid choice: 'frobnicate'; expected one of run, onnx, "),
    ("explian matmul", "invalid choice: 'explian'; did you mean 'explain'?"),
    ("cache cleer", "invalid choice: 'cleer'; did you mean 'clear'?"),
    ("devices --qiet", "dnnkern devices: unrecognized arguments: --qiet; did you mean '--quiet'?"),
    ("explain matmul 3x4x5 f32 --activaton=relu", "unrecognized arguments: --activaton=relu; did you mean '--activation'?"),
    ("explain", "the following arguments are required: op\n"),
    ("demo --epochs none", "invalid int value"),
    ("demo --epochs 0", "1 or more"),
    ("demo --plot /dev/null/x.png", "demo: --plot /dev/null/x.png: there is no folder /dev/null; expected a file that can be written"),
])
def test_mistakes_are_one_line(words, part, capsys):
    try:
        code = main(words.split())
    except SystemExit as stop:
        code = stop.code
    got = capsys.readouterr()
    assert code == 2 and got.out == ""
    assert part in got.err and got.err.count("\n") == 1


@pytest.mark.parametrize("words, text, shapes", [
    ("4x5x6 f32", "matmul 4x5x6 float32 nn", ((4, 6), (6, 5))),
    ("4x5x6 f16 tt", "matmul 4x5x6 float16 tt", ((6, 4), (5, 6))),
    ("2x4x5x6 f64 nt --c", "matmul 2x4x5x6 float64 nt + c", ((2, 4, 6), (2, 5, 6))),
    ("4x5x6 bf16 --bias row --out-dtype f32", "matmul 4x5x6 bfloat16 nn -> float32 + bias by row", ((4, 6), (6, 5))),
    ("4x5x6 i8 tn", "matmul 4x5x6 int8 tn -> int32", ((6, 4), (6, 5))),
    ("4x5x6 f32 --in-place --beta 0.5 --math tf32", "matmul 4x5x6 float32 nn + c math=tf32", ((4, 6), (6, 5))),
    ("4x5x6 f32 --c --beta 0", "matmul 4x5x6 float32 nn", ((4, 6), (6, 5))),
])
def test_problems_in_words(words, text, shapes):
    problem = parse_problem(words.split())
    assert str(problem) == text
    assert (problem.a.shape, problem.b.shape) == shapes
    assert problem.in_place == ("--in-place" in words)


def test_parse_problem_raises_in_one_line():
    with pytest.raises(ValueError, match="^matmul: .*required") as caught:
        parse_problem(["3x4x5"])
    assert "\n" not in str(caught.value)


def test_as_a_program_without_a_gpu_it_warns_of_nothing(simulated):
    done = subprocess.run([sys.executable, "-m", "dnnkern", "devices"], capture_output=True, text=True, cwd=ROOT,
                          env={k: v for k, v in os.environ.items() if k != "NUMBA_ENABLE_CUDASIM"} | {"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 0 and done.stderr == "" and "for the processor" in done.stdout


def test_check_finds_this_machine_well(capsys, simulated, monkeypatch):
    from dnnkern import selfcheck
    algorithms = len(dispatch.algorithms("matmul"))
    small = {"transform": {"transpose": ("3x5 f32 1,0",)}, "conv": {"conv_fwd": ("1x4x3x3 k5 2x2 f32",), "conv_bwd_bias": ("2x3x4x5 f16",)}}
    monkeypatch.setattr(selfcheck, "SIZES", (5, 7, 3))
    for family in dispatch.families():
        words = importlib.import_module(f"dnnkern.{family}._parse")
        monkeypatch.setattr(words, "SMALL", small.get(family, {}), raising=False)
    code, got = run(capsys, "check")
    assert code == 0 and "All are correct" in got.out and got.out.count("naive") == 8
    assert "conv_fwd 1x4x3x3 k5 2x2 s1 p0 float32 NCHW" in got.out and "conv_bwd_bias 2x3x4x5 float16 NCHW" in got.out
    assert "transpose 3x5 float32 1,0" in got.out
    total = 5 * algorithms + sum(len(dispatch.algorithms(op)) for op in ("transpose", "conv_fwd", "conv_bwd_bias"))
    counted = [line.split()[0] for line in got.out.splitlines() if line.strip()[:1].isdigit() and "/" in line.split()[0]]
    assert counted and all(int(c.split("/")[0]) <= total == int(c.split("/")[1]) for c in counted)


def test_notes_that_are_allowed_and_excluded(capsys):
    words = "explain", "sdpa_bwd", "1x2x128x64", "bf16"
    reasons = {line.split()[0]: line for line in run(capsys, *words)[1].out.splitlines() if line.strip()}
    assert "NONDETERMINISTIC, which the caller does not allow" in reasons["flash_wgmma_atomic"] and "*" in reasons
    allowed = run(capsys, *words, "--allow", "nondeterministic")[1].out
    assert "does not allow" not in allowed and "flash_wgmma_atomic" in allowed
    excluded = run(capsys, *words, "--exclude", "FFT,tensor_core")[1].out
    (chosen,) = [line.split()[1] for line in excluded.splitlines() if line.startswith("* ") and not line.startswith("* what")]
    problem = dnnkern.problem("sdpa_bwd", **{name: ("1x2x128x64", "bfloat16") for name in ("do", "q", "k", "v", "o")},
                              lse=("1x2x128", "float32"))
    assert chosen == dispatch.get_algorithm("sdpa_bwd", problem, exclude=dispatch.Note.TENSOR_CORE).name
    assert "flash_mma" in excluded and "is TENSOR_CORE, which the caller excludes" in excluded


def test_check_leaves_out_what_is_excluded(capsys, simulated):
    names = [a.name for a in dispatch.algorithms("matmul")]
    code, got = run(capsys, "check", "matmul", "5x4x3", "bf16", "--exclude", "TENSOR_CORE")
    kept = [line.split()[1] for line in got.out.splitlines() if "/" in line.split()[:1][0]] if code == 0 else []
    assert kept and set(kept) == {a.name for a in dispatch.algorithms("matmul") if not a.notes & dispatch.Note.TENSOR_CORE} < set(names)
    code, got = run(capsys, "check", "matmul", "5x4x3", "bf16", "--algo", "mma", "--exclude", "TENSOR_CORE")
    assert code == 2 and "is TENSOR_CORE, which the caller excludes" in got.err


def test_alone_it_prints_help(capsys):
    code, got = run(capsys)
    assert code == 0 and "explain" in got.out and "check" in got.out


def test_the_console_script_is_the_module(capsys, monkeypatch):
    """As `setup.cfg` has it; usages and messages name what was typed."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    name, _, where = config["options.entry_points"]["console_scripts"].strip().partition(" = ")
    module, _, function = where.partition(":")
    script = getattr(importlib.import_module(module), function)
    assert name == "dnnkern" and script is main
    for typed, expected in (("/usr/bin/dnnkern", "dnnkern"), (str(ROOT / "dnnkern" / "__main__.py"), "python -m dnnkern")):
        monkeypatch.setattr(sys, "argv", [typed, "list", "convfwd"])
        assert script() == 2 and capsys.readouterr().err.startswith(f"{expected}: unknown operation 'convfwd'")
        monkeypatch.setattr(sys, "argv", [typed, "explain", "--help"])
        with pytest.raises(SystemExit):
            script()
        assert capsys.readouterr().out.startswith(f"usage: {expected} explain ")


def test_list_needs_no_algorithm_of_what_an_earlier_process_has_listed(tmp_path):
    """It imports no file of a family then, and prints the same."""
    program = ("import sys; from dnnkern.__main__ import main; main(['list'])\n"
               "print(sorted(m for m in sys.modules if m.startswith('dnnkern.matmul') or m.startswith('numba')), file=sys.stderr)")
    first, second = (subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True,
                                    env=os.environ | {"DNNKERN_CACHE_DIR": str(tmp_path)}) for _ in range(2))
    assert first.stdout == second.stdout and "'dnnkern.matmul.matmul_naive'" in first.stderr
    if list(tmp_path.glob("manifest/*")):  # none is kept of files that have just changed
        assert second.stderr == "[]\n"


def test_listed_is_what_algorithms_are(monkeypatch):
    """Also those that a program has registered."""
    from dataclasses import replace

    def expected(op=None):
        return sorted((a.op, a.name, a.arch, a.math, a.notes, a.idea) for a in dispatch.algorithms(op))
    assert sorted(registry.listed()) == expected()
    mine = dispatch.register(replace(dispatch.algorithms("matmul")[0], name="mine"))
    try:
        assert sorted(registry.listed("matmul")) == expected("matmul") and "mine" in {row[1] for row in registry.listed("matmul")}
    finally:
        dispatch.unregister(mine)


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("words", ["explain conv_fwd 64x64x56x56 k64 3x3 p1 bf16 nhwc", "list", "devices"])
def test_tables_fit_the_terminal(words, columns, monkeypatch, capsys, simulated):
    monkeypatch.setenv("COLUMNS", str(columns))
    code, got = run(capsys, *words.split())
    assert code == 0 and max(map(len, got.out.splitlines())) <= columns


def test_in_a_pipe_a_row_is_a_line(monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert len(run(capsys, "list")[1].out.splitlines()) == len(dispatch.algorithms()) + 2


def test_explain_in_the_simulator_tells_what_runs_there(monkeypatch, capsys, simulated):
    monkeypatch.delenv("DNNKERN_PREFER")
    got = run(capsys, "explain", "matmul", "64x64x64", "f32")[1].out
    assert "* what a call runs" in got and "Here, in the simulator, naive runs" in got and "* naive" not in got
    monkeypatch.setenv("DNNKERN_PREFER", "naive")
    got = run(capsys, "explain", "matmul", "64x64x64", "f32")[1].out
    assert "preferred (DNNKERN_PREFER)" in got and "in the simulator" not in got
    monkeypatch.setenv("DNNKERN_PREFER", "wgmma")  # which does not multiply float64
    assert "* what a call runs: quick to simulate" in run(capsys, "explain", "matmul", "64x64x64", "f64")[1].out


def test_results_come_one_by_one(monkeypatch, capsys, simulated):
    """What was found is printed before the next one runs."""
    from dnnkern import selfcheck
    printed = []

    def results(problem, known, target):
        for name in ("first", "second"):
            printed.append(capsys.readouterr().out)
            yield name, "ok" if name == "first" else "WRONG: y"
    problem = parse_problem(["5x4x3", "f32"])
    assert selfcheck._report([(problem, dispatch.algorithms("matmul")[:2], results)], None) == 1
    assert "first" in printed[1] and "1/2" in printed[1] and "WRONG: y" in capsys.readouterr().out


@pytest.mark.parametrize("words, keywords", [
    ("6x5x7 f32", {}), ("6x5x7 f32 tn --activation relu", {"transpose_a": True, "activation": "relu"}),
    ("6x5x7 f32 --bias --alpha 2", {"bias": (5,), "alpha": 2.0}), ("6x5x7 f32 --c --beta 0.5", {"c": (6, 5), "beta": 0.5}),
    ("3x6x5x7 f32", {})])
def test_problems_in_words_are_those_of_calls(words, keywords, simulated):
    """Else what `find` measures would never be found again."""
    import numpy as np

    from dnnkern.matmul import OPERATION, matmul
    problem = parse_problem(words.split())
    arrays = {name: np.ones(shape, np.float32) for name, shape in keywords.items() if isinstance(shape, tuple)}
    OPERATION.forget()
    matmul(np.ones(problem.a.shape, np.float32), np.ones(problem.b.shape, np.float32), **{**keywords, **arrays})
    (bound,) = OPERATION.calls.values()
    assert bound.problem == problem

"""Commands on the processor: the examples of their help, their documents of JSON, exit codes, streams that end early, the cache."""
import io
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest

import dnnkern
from dnnkern import _table, dispatch, registry
from dnnkern.__main__ import EXAMPLES, main
from dnnkern.host import packs
from dnnkern.host.paths import cache_dir

ROOT = pathlib.Path(__file__).resolve().parent.parent
TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "list": list, "object": dict, "null": type(None)}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache directory; the current one is empty too."""
    monkeypatch.setenv("DNNKERN_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    cache_dir.cache_clear()
    packs.forget()
    yield tmp_path / "cache"
    cache_dir.cache_clear()
    packs.forget()


def run(capsys, text):
    try:
        code = main(shlex.split(text))
    except SystemExit as end:
        code = end.code
    return code, capsys.readouterr()


def start(*words, **options):
    """A process of its own."""
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    return subprocess.Popen([sys.executable, "-m", "dnnkern", *words], env=os.environ | {"PYTHONPATH": str(ROOT)}, **given)


# ---- help

def commands(capsys):
    return re.findall(r"^    (\w+)(?: |$)", run(capsys, "--help")[1].out, re.MULTILINE)


def test_every_command_has_an_example(capsys):
    assert set(commands(capsys)) == {*EXAMPLES, "bench", "demo"}
    for command, words in EXAMPLES.items():
        code, got = run(capsys, f"{command} --help")
        assert code == 0 and words.split()[0] == command
        assert f"Example: python -m dnnkern {words}" in " ".join(got.out.split())


@pytest.mark.parametrize("command", sorted(set(EXAMPLES) - {"pack", "run", "completion", "report", "onnx", "trace"}))
def test_examples(command, capsys, cache):
    code, got = run(capsys, EXAMPLES[command])
    expected = {"devices": "2 cores" if os.cpu_count() == 2 else "cores", "list": "blocked", "cache": str(cache), "warm": "are compiled",
                "explain": "* what a call runs", "find": "block", "check": "All are correct"}[command]
    assert code == 0 and got.err == "" and expected in got.out


def test_trace(cache):
    """In a process of its own, which simulates."""
    words = EXAMPLES["trace"].split()

    def said(*words):
        process = start(*words)
        out, error = process.communicate(timeout=300)
        return process.returncode, out, error

    code, out, error = said(*words, "--json")
    document = json.loads(out)
    check_fields(document)
    assert (code, error, document["algorithm"], document["file"]) == (0, "", "wgmma", "wgmma.json")
    events = [e for e in json.loads(pathlib.Path("wgmma.json").read_text())["traceEvents"] if e["ph"] == "X"]
    assert {e["cat"] for e in events} == {"thread", "copies", "products"} and max(e["ts"] + e["dur"] for e in events) == document["steps"]
    assert 0 < document["waited_steps"] and len({e["pid"] for e in events}) == document["blocks"]
    for more, message in ((("--out", "nowhere/t.json"), "there is no folder nowhere"), (("--algo", "wgma"), "did you mean 'wgmma'"),
                          (("--algo", "gemv"), "cannot solve")):
        code, out, error = said("trace", "matmul", "a=64x64:bf16", "b=64x64", *more)
        assert code in (1, 2) and out == "" and message in error and error.count("\n") == 1, error


def test_explain_tells_of_the_time_to_compile(capsys, cache):
    """On the processor a choice counts a share of it, and another algorithm may have the lowest predicted time."""
    code, got = run(capsys, "explain conv_fwd 1x3x224x224 k64 3x3 p1 f32 --json")
    told = json.loads(got.out)
    times = {a["name"]: a["predicted_ms"] for a in told["algorithms"] if a["reason"] is None}
    assert told["why"] == "predicted" and times[told["chosen"]] > min(times.values()), "choose another problem for this test"
    code, got = run(capsys, "explain conv_fwd 1x3x224x224 k64 3x3 p1 f32")
    assert code == 0 and "* what a call runs: the lowest predicted time where a 300th of the time to compile is added;" in got.out
    code, got = run(capsys, "explain matmul 4096x4096x4096 f32")
    assert code == 0 and "* what a call runs: the lowest predicted time; nothing has been measured" in got.out


def test_the_example_of_run(cache):
    pytest.importorskip("torch")
    (cache.parent / "train.py").write_text("import torch\na = torch.eye(3, device='cuda') * 2\nprint((a @ a).diagonal().tolist())\n")
    for quiet in ((), ("--quiet",)):
        words = EXAMPLES["run"].split()
        process = start(words[0], *quiet, *words[1:], cwd=cache.parent)
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0 and out == "[4.0, 4.0, 4.0]\n"
        assert (err == "") if quiet else ("1 calls of 1 operators ran on its kernels" in err)


def test_the_example_of_pack(capsys, cache, monkeypatch):
    """Of kernels that another function compiles; tests/test_ptx_packs.py compiles them."""
    from dnnkern import warming

    def compiled(jobs, *, workers, files, progress):
        assert len(jobs) > 3 and {(job.op, job.device.arch) for job in jobs} == {("rope_fwd", "sm_90a")}
        cache.joinpath("cubin").mkdir()
        for k in range(3):
            (cache / "cubin" / f"{k}.cubin").write_bytes(bytes([k]) * 100)
            files[f"cubin/{k}.cubin"] = f"{k:064x}"
        return type("Compiled", (), {"failed": {}})
    monkeypatch.setattr(warming, "compile_jobs", compiled)
    code, got = run(capsys, EXAMPLES["pack"] + " --json")
    document = json.loads(got.out)
    check_fields(document)
    assert code == 0 and document["kernels"] == 3 and document["bytes"] == os.path.getsize("rope.pack")
    code, got = run(capsys, "cache import rope.pack --json")
    document = json.loads(got.out)
    check_fields(document)
    assert code == 0 and document["kernels"] == 3 and document["archs"] == ["sm_90a"] and document["choices"] > 3
    assert run(capsys, "cache import rope.pack --quiet") == (0, ("", ""))


# ---- JSON

def documented():
    """{command: {field: types}} as docs/commands.md has them."""
    text = (ROOT / "docs" / "commands.md").read_text().split("## JSON")[1]

    def fields(section):
        found = re.findall(r"^\| `(\w+)` \| ([\w ]+) \|", section, re.MULTILINE)
        return {name: tuple(TYPES[kind] for kind in kinds.split(" or ")) for name, kinds in found}
    first, *sections = text.split("\n### ")
    return {section.split("\n")[0]: fields(first) | fields(section) for section in sections}


def entries(command, field):
    """The names that the documentation gives the entries of a list."""
    section = (ROOT / "docs" / "commands.md").read_text().split(f"\n### {command}\n")[1].split("\n### ")[0]
    (line,) = [line for line in section.split("\n") if line.startswith(f"| `{field}` |")]
    return set(re.findall(r"`(\w+)`", line.split("with ")[1]))


def check_fields(document):
    """Raise unless a document is as the documentation says."""
    expected = documented()[document["command"]]
    assert set(document) == set(expected)
    assert document["schema"] == 1 and document["dnnkern"] == dnnkern.__version__
    for name, value in document.items():
        assert isinstance(value, expected[name]) and not (isinstance(value, bool) and bool not in expected[name]), (name, value)
        if isinstance(value, list) and value and isinstance(value[0], dict):
            assert all(set(each) == entries(document["command"], name) for each in value), name


def test_devices_as_json(capsys):
    from dnnkern.host.device import device
    document = json.loads(run(capsys, "devices --json")[1].out)
    check_fields(document)
    assert document["runs_on"] == "processor" and document["devices"][0]["memory_bytes"] == device(0).memory


def test_list_as_json(capsys):
    document = json.loads(run(capsys, "list --json")[1].out)
    check_fields(document)
    assert sorted((a["op"], a["name"], tuple(a["notes"])) for a in document["algorithms"]) == sorted(
        (a.op, a.name, tuple(a.notes.names)) for a in dispatch.algorithms())


@pytest.mark.parametrize("words", ["--json matmul 64x96x32 bf16 --bias", "matmul 64x96x32 bf16 --bias --json"])
def test_explain_as_json(words, capsys):
    document = json.loads(run(capsys, f"explain {words}")[1].out)
    check_fields(document)
    problem = dnnkern.problem("matmul", a=("64x32", "bfloat16"), b=("32x96", "bfloat16"), bias=("96", "bfloat16"))
    rows = dispatch.explain("matmul", problem, prefer="device")
    assert [(a["name"], a["reason"], a["predicted_ms"], a["terms_ms"]) for a in document["algorithms"]] == [
        (c.algo, c.reason, c.time_ms, c.terms) for c in rows]
    assert document["chosen"] == rows[0].algo and document["problem"] == str(problem)
    code, got = run(capsys, f"check matmul {shlex.quote(json.dumps(document['record']))} --algo naive --json")
    assert code == 0 and json.loads(got.out)["results"][0]["problem"] == str(problem)


def test_find_warm_and_check_as_json(capsys, cache):
    found = json.loads(run(capsys, "find softmax_fwd 25x100 f32 --json")[1].out)
    check_fields(found)
    times = [a["time_ms"] for a in found["algorithms"] if a["status"] == "ok"]
    assert len(times) > 2 and times == sorted(times) and not found["simulated"]
    explained = json.loads(run(capsys, "explain softmax_fwd 25x100 f32 --json")[1].out)
    assert explained["why"] == "measured" and explained["chosen"] == found["algorithms"][0]["name"]
    assert min(a["measured_ms"] for a in explained["algorithms"] if a["measured_ms"]) == pytest.approx(times[0], rel=1e-4)
    checked = json.loads(run(capsys, "check softmax_fwd 25x100 f32 --json")[1].out)
    check_fields(checked)
    assert (checked["ran"], checked["wrong"]) == (sum(r["status"] == "ok" for r in checked["results"]), 0)
    for _ in range(2):
        warmed = json.loads(run(capsys, "warm softmax_fwd 25x100 f32 --json")[1].out)
        check_fields(warmed)
    assert warmed["targets"] == [{"target": "the processor", "problems": 1, "kernels": 1, "cached": 1, "compiled": 0}]


@pytest.mark.parametrize("turns", (0, 4))
def test_find_that_is_interrupted(turns, capsys, cache, monkeypatch):
    """Shows what was measured by then, and stores nothing: the others would be hidden."""
    from dnnkern.host.timing import _Runner
    taken, turn = [], _Runner.turn

    def interrupted(runner):
        if len(taken) == turns:
            raise KeyboardInterrupt
        taken.append(runner.contender.name.algorithm.name)
        turn(runner)
    monkeypatch.setattr(_Runner, "turn", interrupted)
    code, got = run(capsys, "find softmax_fwd 25x100 f32 --json")
    found = json.loads(got.out)
    check_fields(found)
    assert code == 130 and got.err.endswith("interrupted\n")
    timed = [a["name"] for a in found["algorithms"] if a["status"] == "ok"]
    assert len(timed) == turns and set(timed) == set(taken) and len(found["algorithms"]) > turns
    assert {a["status"] for a in found["algorithms"]} - {"ok"} == {"not measured"} and not list(cache.glob("find/**/*.json"))


def test_report_as_json(capsys, cache):
    row = {"op": "softmax_fwd", "problem": "25x100 float32", "algo": "block", "config": "", "status": "ok", "is_peer": False,
           "chosen": True, "ratio": 1.5, "roof": 0.5, "machine": {"device": "A", "date": "2026-01-01"}}
    for name, time_us in (("a.jsonl", 5.0), ("b.jsonl", 7.5)):
        pathlib.Path(name).write_text(json.dumps({**row, "time_us": time_us}) + "\n")
    code, got = run(capsys, "report --compare a.jsonl b.jsonl --json")
    document = json.loads(got.out)
    check_fields(document)
    assert code == 1 and [(r["before_ms"], r["after_ms"], r["change"]) for r in document["compared"]["slower"]] == [(0.005, 0.0075, 0.5)]
    section = (ROOT / "docs" / "commands.md").read_text().split("\n### report\n")[1].split("\n### ")[0]
    for name in (*document["compared"], *document["compared"]["slower"][0]):
        assert re.search(rf"\b{name}\b", section), name
    assert [f["family"] for f in document["families"]] == ["softmax"] and document["families"][0]["ratio"] == pytest.approx(1.5)


def test_what_a_program_prints_is_not_of_the_document(capsys, cache):
    pathlib.Path("train.py").write_text("print('hello')\nraise KeyError('no')\n")
    code, got = run(capsys, "warm --json train.py")
    document = json.loads(got.out)
    check_fields(document)
    assert code == 1 and document["failure"] == "KeyError: 'no'" and got.err.startswith("hello\n")


# ---- quiet, and exit codes

def test_quiet_leaves_tables_alone(capsys, cache):
    for words in ("devices", "explain softmax_fwd 25x100 f32"):
        loud, quiet = (run(capsys, f"{words}{option}")[1].out for option in ("", " --quiet"))
        lines = [line for line in quiet.splitlines() if line]
        assert lines and set(lines) < set(loud.splitlines())
        assert not any("No GPU is used" in line or line.startswith("* what") for line in lines)
    assert run(capsys, "warm softmax_fwd 25x100 f32 --quiet") == (0, ("", ""))
    assert run(capsys, "check softmax_fwd 25x100 f32 --quiet") == (0, ("", ""))


def test_a_wrong_algorithm_is_code_1_and_a_row_that_stays(capsys, monkeypatch):
    from dnnkern import selfcheck
    monkeypatch.setattr(selfcheck, "_against_naive", lambda problem, known, target: [("block", "WRONG: y"), ("warp", "ok")])
    code, got = run(capsys, "check softmax_fwd 25x100 f32 --quiet")
    assert code == 1 and "WRONG: y" in got.out and got.out.count("\n") == 1
    document = json.loads(run(capsys, "check softmax_fwd 25x100 f32 --json")[1].out)
    assert document["wrong"] == 1 and [r["status"] for r in document["results"]] == ["wrong", "ok"]


def test_a_problem_that_nothing_can_solve_is_code_1(capsys, monkeypatch):
    wgmma = next(a for a in dispatch.algorithms("matmul") if a.name == "wgmma")
    monkeypatch.setitem(registry._registry, "matmul", {"wgmma": wgmma})
    dispatch._chosen.cache_clear()
    code, got = run(capsys, "explain matmul 64x64x64 f64")
    assert code == 1 and "No algorithm can run within these limits." in got.out
    document = json.loads(run(capsys, "explain matmul 64x64x64 f64 --json")[1].out)
    assert document["chosen"] is None and document["algorithms"][0]["reason"]
    dispatch._chosen.cache_clear()


@pytest.mark.parametrize("words, part", [
    ("devices --jsn", "unrecognized arguments: --jsn"), ("cache clear cubins", "there is no part 'cubins'; did you mean 'cubin'"),
    ("cache show cubin", "'cubin' is not expected"), ("cache wipe", "invalid choice: 'wipe'; expected one of show, clear, "),
    ("cache import a b", "several files are given"), ("list nothing --json", "unknown operation 'nothing'"),
    ("explain matmul 3x4 f32 --json", "'3x4' is not MxNxK"),
    ("pack --arch sm_90a --out .", "--out .: it is a folder"),
    ("pack --arch sm_90a --out /dev/null/x.pack", "there is no folder /dev/null")])
def test_used_wrong(words, part, capsys, cache):
    code, got = run(capsys, words)
    assert code == 2 and got.out == "" and part in got.err and got.err.count("\n") == 1


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    done = subprocess.run([sys.executable, "-m", "dnnkern", "list", "matmul"], capture_output=True, text=True, cwd=ROOT, timeout=120,
                          env=os.environ | {"DNNKERN_CACHE_DIR": str(tmp_path / "file")})
    assert done.returncode == 0 and "blocked" in done.stdout
    assert done.stderr.startswith("dnnkern: no cache, ") and done.stderr.count("\n") == 1


def test_the_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0 and capsys.readouterr().out == f"dnnkern {dnnkern.__version__}\n"


@pytest.mark.parametrize("words", ["explain softmax_fwd 0x10 f32", "explain matmul 0x64x64 f32 --arch sm_90a",
                                   "find max_pool_fwd x=0x3x8x8:f32 window=2", "check conv_fwd x=0x3x8x8:f32 w=4x3x3x3"])
def test_a_problem_without_elements(words, capsys):
    code, got = run(capsys, words)
    assert code == 0 and got.out.endswith(" has no elements: nothing runs\n") and got.err == ""
    if words.startswith("explain"):
        assert json.loads(run(capsys, words + " --json")[1].out)["algorithms"] == []


def test_no_driver_is_one_line(tmp_path):
    """Where there is compilation alone (NUMBA_ENABLE_CUDASIM=0, no GPU), what has to run says so."""
    done = subprocess.run([sys.executable, "-m", "dnnkern", "check", "matmul", "3x3x3", "f32"], capture_output=True, text=True, cwd=ROOT,
                          timeout=120, env={name: value for name, value in os.environ.items() if name != "DNNKERN_DEVICE"}
                          | {"NUMBA_ENABLE_CUDASIM": "0", "DNNKERN_CACHE_DIR": str(tmp_path), "LD_LIBRARY_PATH": str(tmp_path)})
    if done.returncode == 0:
        pytest.skip("there is a driver")
    assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1 and "cuInit" in done.stderr


# ---- streams that end early

@pytest.mark.parametrize("words", [("list",), ("--help",), ("list", "--json"), ("explain", "matmul", "--help")])
def test_a_closed_pipe(words):
    reading, writing = os.pipe()
    os.close(reading)
    process = start(*words, stdout=writing)
    os.close(writing)
    err = process.communicate(timeout=120)[1]
    assert err == "" and process.returncode in ((0, 141) if "--help" in words else (141,))  # argparse ignores what it cannot write


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_disk_that_is_full():
    with open("/dev/full", "w") as full:
        process = start("list", stdout=full)
        err = process.communicate(timeout=120)[1]
    assert process.returncode == 1 and err == "python -m dnnkern: [Errno 28] No space left on device\n"


def test_without_any_stdout():
    done = subprocess.run(["sh", "-c", f'"{sys.executable}" -m dnnkern list >&-'], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c(cache):
    process = start("check", preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    for _ in range(6):
        process.stdout.readline()  # it is at its algorithms
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    err = process.communicate(timeout=120)[1]
    assert (process.returncode, err) == (130, "python -m dnnkern: interrupted\n")


# ---- terminals

class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_for_terminals_alone(monkeypatch):
    for stream, expected in ((Terminal(), "measuring, 1 s"), (io.StringIO(), "")):
        monkeypatch.setattr(sys, "stderr", stream)
        before = signal.getsignal(signal.SIGALRM)
        with _table.progress("measuring"):
            time.sleep(1.2)
        assert signal.getsignal(signal.SIGALRM) is before
        with _table.silenced(True), _table.progress("measuring"):
            _table.note("nothing")
        text = stream.getvalue()
        assert (expected in text and text.endswith("\r\033[K")) if expected else text == ""


@pytest.mark.parametrize("words", ["devices", "list matmul", "explain conv_fwd 8x64x56x56 k64 3x3 p1 bf16 nhwc --why", "cache",
                                   "check softmax_fwd 25x100 f32", "explain --help", "--help", "cache --help", "warm --help"])
def test_a_terminal_of_40_columns(words, capsys, monkeypatch, cache):
    def flat(text):
        return re.sub(r"[\s-]", "", text)
    monkeypatch.setenv("COLUMNS", "200")
    wide = run(capsys, words)[1].out
    monkeypatch.setenv("COLUMNS", "40")
    code, got = run(capsys, words)
    assert code == 0 and max(map(len, got.out.splitlines())) <= 40
    if words.startswith("list"):
        for algorithm in dispatch.algorithms("matmul"):
            assert flat(f"algorithm {algorithm.name}") in flat(got.out) and algorithm.name in wide


# ---- completion

@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """What bash completes, in which the script of the command was evaluated: f(line) -> words."""
    pytest.importorskip("argcomplete")
    folder = tmp_path_factory.mktemp("bin")
    script = folder / "dnnkern"
    script.write_text(f"#!{sys.executable}\nimport sys\nfrom dnnkern.__main__ import main\nsys.exit(main())\n")
    script.chmod(0o755)
    paths = {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}

    def completed(line):
        program = ('eval "$(dnnkern completion bash)"\n' + f"COMP_LINE={shlex.quote(line)} COMP_POINT={len(line)} COMP_TYPE=9\n"
                   'COMP_WORDS=($COMP_LINE); export COMP_LINE COMP_POINT COMP_TYPE\n_python_argcomplete dnnkern\n'
                   'printf "%s\\n" "${COMPREPLY[@]}"')
        done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, env=os.environ | paths, timeout=120, cwd=folder)
        assert done.stderr == ""
        return {word.strip() for word in done.stdout.splitlines() if word.strip()}
    return completed


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
@pytest.mark.parametrize("line, words", [
    ("dnnkern ca", {"cache"}), ("dnnkern explain conv_f", {"conv_fwd"}), ("dnnkern list sdpa_d", {"sdpa_decode", "sdpa_dropout_mask"}),
    ("dnnkern devices --", {"--help", "--json", "--quiet"}), ("dnnkern cache ", {"show", "clear", "path", "import"}),
    ("dnnkern cache clear c", {"cubin", "cpu", "chosen"}), ("dnnkern explain matmul 3x4x5 --act", {"--activation"}),
    ("dnnkern find matmul 3x4x5 --no-", {"--no-save"}), ("dnnkern completion z", {"zsh"})])
def test_a_shell_completes(line, words, shell):
    completed = shell(line)
    assert words <= completed and all(word.startswith(line.split(" ")[-1]) for word in completed)


def test_completion_without_argcomplete(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "argcomplete", None)
    code, got = run(capsys, "completion bash")
    assert code == 2 and got.out == "" and got.err.count("\n") == 1 and "pip install dnnkern[completion]" in got.err
    monkeypatch.setenv("_ARGCOMPLETE", "1")
    assert run(capsys, "list") == (1, ("", ""))


# ---- the cache

def test_the_cache_is_shown_and_cleared(capsys, cache):
    for part, files in (("cubin", 2), ("cpu/machine", 3), ("find/device/matmul", 1)):
        (cache / part).mkdir(parents=True)
        for k in range(files):
            (cache / part / f"{k}.o").write_bytes(b"x" * 1024)
    (cache / "mine").write_text("not of this library")
    outside = cache.parent / "outside"
    outside.write_text("stays")
    (cache / "cubin" / "link").symlink_to(outside)
    assert run(capsys, "cache path")[1].out == f"{cache}\n"
    document = json.loads(run(capsys, "cache show --json")[1].out)
    check_fields(document)
    sizes = {part["part"]: (part["files"], part["bytes"]) for part in document["parts"]}
    assert sizes["cpu"] == (3, 3072) and sizes["find"] == (1, 1024) and sizes["packs"] == (0, 0)
    document = json.loads(run(capsys, "cache clear cpu cubin --json")[1].out)
    check_fields(document)
    assert {part["part"]: part["files"] for part in document["removed"]} == {"cpu": 3, "cubin": 3}
    assert outside.read_text() == "stays" and not (cache / "cpu").exists() and (cache / "find/device/matmul/0.o").is_file()
    code, got = run(capsys, "cache clear")
    assert code == 0 and got.out.startswith("1 files are removed, 1.0 KiB") and os.listdir(cache) == ["mine"]
    check_fields(json.loads(run(capsys, "cache path --json")[1].out))


def test_kernels_are_compiled_again_after_the_cache_was_cleared(capsys, cache):
    first = run(capsys, "warm softmax_fwd 9x7 f32")[1].out
    again = run(capsys, "warm softmax_fwd 9x7 f32")[1].out
    assert run(capsys, "cache clear")[0] == 0
    assert run(capsys, "warm softmax_fwd 9x7 f32")[1].out == first != again


def test_no_cache_directory(capsys, cache):
    cache.write_text("a file")
    with pytest.warns(RuntimeWarning, match="no cache"):
        code, got = run(capsys, "cache path")
    assert code == 1 and got.out == "" and "there is no cache directory; DNNKERN_CACHE_DIR names one" in got.err
    assert run(capsys, "cache") == (0, ("There is no cache directory; DNNKERN_CACHE_DIR names one.\n", ""))
    assert json.loads(run(capsys, "cache clear --json")[1].out)["folder"] is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may remove anything")
def test_files_that_cannot_be_removed(capsys, cache):
    (cache / "cubin").mkdir(parents=True)
    (cache / "cubin" / "0.cubin").write_bytes(b"x")
    (cache / "cubin").chmod(0o500)
    code, got = run(capsys, "cache clear")
    (cache / "cubin").chmod(0o700)
    assert code == 1 and "0.cubin cannot be removed: Permission denied" in got.err

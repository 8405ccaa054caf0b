"""Kernels compiled ahead, by another process, for the processor: `dnnkern.warm`, `recording`, and the command."""
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import dnnkern
from dnnkern import __main__ as command
from dnnkern import dispatch
from dnnkern.host import ahead, compiler, executable, pending
from dnnkern.host import compile as host_compile
from dnnkern.host.device import device
from dnnkern.host.paths import cache_dir
from dnnkern.warming import Recorder

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache directory, of this process and those it starts."""
    monkeypatch.setenv("DNNKERN_CACHE_DIR", str(tmp_path))
    cache_dir.cache_clear()
    yield tmp_path
    cache_dir.cache_clear()


def kernels(folder):
    return sorted(path for path in folder.rglob("*.o") if not path.name.startswith("signals-"))


def rows(n):
    return np.ones((3, n), np.float32)


MODES = "relu", "gelu", "mish", "tanh", "elu", "swish", "softplus", "sigmoid", "celu"


def job(mode):
    """A job for a kernel of its own."""
    problem = dnnkern.problem("activation_fwd", x=((3, 8), "float32"), mode=mode)
    return compiler.Job("activation_fwd", problem, device(0), choice=(("algo", "naive"),))


def together(jobs):
    compilation = ahead.Compilation(device(0))
    compilation.compile(jobs)
    return compilation.wait()


def test_warm_compiles_what_a_call_needs_and_the_call_finds_it(cache):
    def step(x):
        return dnnkern.reduce(dnnkern.activation_fwd(x, "mish"), "add", axes=0)
    said = dnnkern.warm(step, rows(40))
    made = kernels(cache)
    assert said.kernels == said.missing == said.done == len(made) > 1 and said.failed == {}
    before = [path.stat().st_mtime_ns for path in made]
    assert np.allclose(step(rows(40)), 3 * 0.86509837)
    assert kernels(cache) == made and [path.stat().st_mtime_ns for path in made] == before, "the calls compiled nothing"


def test_what_is_kept_starts_no_process(cache, monkeypatch):
    assert dnnkern.warm(dnnkern.softmax_fwd, rows(24)).done == 1
    monkeypatch.setattr(ahead.subprocess, "Popen", lambda *_, **__: pytest.fail("started a process"))
    said = dnnkern.warm(dnnkern.softmax_fwd, rows(24))
    assert said.kernels == 1 and said.missing == 0


def test_a_recorded_calls_plan_is_built_once(cache):
    built, naive = [], dispatch.named("activation_fwd", "naive")
    mine = dispatch.register(dataclasses.replace(naive, name="mine", build=lambda *given: built.append(given) or naive.build(*given)))
    try:
        with dnnkern.recording(wait=False) as recorded:
            dnnkern.activation_fwd(rows(24), "mish", algo="mine")
        assert len(built) == 1
        y = dnnkern.activation_fwd(rows(24), "mish", algo="mine")
        assert len(built) == 1 and abs(y[0, 0] - 0.8650984) < 1e-6
        executable.make_executable(dispatch.operation_of("activation_fwd"), recorded.jobs[0].problem, mine, device(0))
        assert len(built) == 2, "it is not kept any longer"
    finally:
        dispatch.unregister(mine)


def test_an_error_while_it_is_recorded_ends_the_process(cache):
    with pytest.raises(ValueError, match="oh"):
        with dnnkern.recording() as recorded:
            dnnkern.softmax_fwd(rows(24))
            raise ValueError("oh")
    assert recorded._compilation._process.poll() == -signal.SIGKILL and kernels(cache) == []


def test_no_cache_directory_and_nothing_to_do(monkeypatch, cache):
    with dnnkern.recording() as recorded:
        pass
    assert recorded.compiled.kernels == 0
    monkeypatch.setattr("dnnkern.warming.cache_dir", lambda: None)
    assert dnnkern.warm(dnnkern.softmax_fwd, rows(8)).kernels == 0


def test_what_cannot_be_planned_or_sent_is_said_and_the_rest_is_compiled(cache):
    unknown = job("relu")._replace(algo="of-a-program", choice=())
    local = job("gelu")._replace(problem=type("Local", (), {"__str__": lambda self: "a problem of a program", "is_empty": False})())
    said = together([unknown, local, job("mish")])
    assert said.done == 1 and sorted(said.failed) == ["a problem of a program", str(unknown.problem)]
    assert "of-a-program" in said.failed[str(unknown.problem)]


def test_a_full_or_read_only_disk_is_said(cache, monkeypatch):
    (cache / "cpu").write_text("")  # root may write anywhere: no folder can be made where a file is
    said = together([job("relu")])
    assert said.done == 0 and list(said.failed.values()) == ["it could not be kept"]


def test_a_compiler_that_is_killed_loses_its_kernel_to_another(cache, tmp_path_factory):
    """The first child to compile a kernel kills itself; the process compiles the kernel again."""
    mark = tmp_path_factory.mktemp("mark") / "killed"
    jobs_of_it = [compiler.pickle.dumps(job(mode)) for mode in MODES[:3]]
    code = f"""
import os, signal
from dnnkern.host import compiler
plain, here = compiler._compile, os.getpid()
def dies(name, compile_it, *rest):
    if os.getpid() != here and not os.path.exists({str(mark)!r}):
        open({str(mark)!r}, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    plain(name, compile_it, *rest)
compiler._compile = dies
compiler.main()
"""
    given = compiler.pickle.dumps(device(0)) + compiler.pickle.dumps((jobs_of_it, 2))
    done = subprocess.run([sys.executable, "-c", code], input=given, capture_output=True, timeout=120, check=True,
                          env={**os.environ, "PYTHONPATH": ROOT, "DNNKERN_DEVICE": "cpu"})
    lines = [compiler.json.loads(line) for line in done.stdout.splitlines()]
    assert mark.exists() and len(kernels(cache)) == 3
    assert sorted(line["done"] for line in lines if "done" in line) == sorted(lines[0]["missing"]) and len(lines[0]["missing"]) == 3


def test_a_compiling_process_that_ends_leaves_the_calls_to_compile(cache, monkeypatch):
    monkeypatch.setattr(ahead, "_MAIN", "{root!r}; import sys; sys.exit(3)")
    said = dnnkern.warm(dnnkern.softmax_fwd, rows(32))
    assert said.done == 0 and list(said.failed.values()) == ["the process that compiles has ended (3)"]
    assert np.allclose(dnnkern.softmax_fwd(rows(32)), 1 / 32)


def test_ctrl_c_keeps_what_is_done_and_leaves_no_process(cache):
    first = []

    def interrupt(compiled):
        if compiled.done:
            first.append(compiled.done)
            raise KeyboardInterrupt
    compilation = ahead.Compilation(device(0), interrupt)
    compilation.compile(map(job, MODES), 1)
    with pytest.raises(KeyboardInterrupt):
        compilation.wait()
    made = len(kernels(cache))
    assert first == [1] and 1 <= made < 9 and compilation._process.poll() == -signal.SIGKILL
    time.sleep(0.5)
    assert len(kernels(cache)) == made and not pending._states


def test_a_call_waits_for_the_kernel_that_is_being_compiled_and_for_no_other(cache, monkeypatch):
    name = job("relu").kernels()[0].file
    compiled = []
    monkeypatch.setattr(host_compile, "_read", lambda path, kind: "from the other process" if compiled else None)

    def other():
        time.sleep(0.3)
        compiled.append(name)
        pending.withdraw([name])
    pending.announce(name, pending.STARTED)
    thread = threading.Thread(target=other)
    thread.start()
    try:
        assert host_compile.kept(host_compile.Binary, lambda: name, lambda: pytest.fail("compiled")) == "from the other process"
    finally:
        thread.join()
    pending.announce(name, pending.QUEUED)
    try:
        assert not pending.awaited(name) and not pending.awaited("another"), "what nobody has begun is not waited for"
    finally:
        pending.withdraw([name])


def test_the_program_goes_on_while_its_kernels_are_compiled(cache):
    with dnnkern.recording(wait=False) as recorded:
        dnnkern.softmax_fwd(rows(40))
    assert np.allclose(dnnkern.softmax_fwd(rows(40)), 1 / 40)
    for _ in range(600):
        if recorded.compiled.done or recorded.compiled.failed:
            break
        time.sleep(0.1)
    assert not recorded.compiled.failed and len(kernels(cache)) == 1


def test_after_a_fork_nothing_is_waited_for():
    pending.announce("x", pending.STARTED)
    try:
        child = os.fork()
        if not child:
            os._exit(int(pending.awaited("x")))
        assert os.waitpid(child, 0)[1] == 0
    finally:
        pending.withdraw(["x"])


# ---- the command

def run(*words):
    return command.main(["warm", *map(str, words)])


def test_the_command_compiles_a_problem_then_finds_it(cache, capsys):
    assert run("softmax_fwd", "3x56", "f32") == 0
    assert capsys.readouterr().out == "the processor: 1 kernels of 1 problems; 0 were in the cache, 1 are compiled\n"
    assert run("softmax_fwd", "3x56", "f32", "--jobs", 1) == 0
    assert capsys.readouterr().out == "the processor: 1 kernels of 1 problems; 1 were in the cache, 0 are compiled\n"


def test_the_command_compiles_for_gpus_that_are_not_here(cache, capsys):
    assert run("--arch", "sm_80,sm_90a", "softmax_fwd", "3x56", "f32") == 0
    assert capsys.readouterr().out.count("0 were in the cache, 1 are compiled") == 2
    assert sorted(path.parent.name for path in cache.rglob("*.cubin")) == ["sm_80", "sm_90a"]


SCRIPT = """
import sys
import numpy as np
import dnnkern
x = np.ones((3, int(sys.argv[1])), np.float32)
y = dnnkern.softmax_fwd(x)
print("sum", y.sum(), __name__)
if len(sys.argv) > 2:
    raise RuntimeError(sys.argv[2])
dnnkern.activation_fwd(y, "relu")
"""


def test_the_command_records_a_program(cache, capsys, tmp_path_factory):
    script = tmp_path_factory.mktemp("program") / "train.py"
    script.write_text(SCRIPT)
    assert run(script, 40) == 0
    out = capsys.readouterr().out
    assert "sum 0.0 __main__\n" in out and "2 kernels of 2 problems; 0 were in the cache, 2 are compiled" in out
    assert run(script, 48, "oh") == 1
    said = capsys.readouterr()
    assert "1 kernels of 1 problems" in said.out and "failed after 1 problems: RuntimeError: oh" in said.err


def test_a_program_without_calls_and_an_empty_problem_are_said(cache, capsys, tmp_path_factory):
    script = tmp_path_factory.mktemp("program") / "idle.py"
    script.write_text("import dnnkern")
    assert run(script) == 0 and capsys.readouterr().out == "Nothing to compile: no call of a public function was recorded.\n"
    assert run("softmax_fwd", "0x56", "f32") == 0 and capsys.readouterr().out == "Nothing to compile: the problem is empty.\n"


@pytest.mark.parametrize("words, message", [
    ((), "nothing to compile; expected a problem"),
    (("absent.py",), "there is no file absent.py"),
    (("--set", "absent"), "there is no set 'absent'"),
    (("--jobs", "0", "softmax_fwd", "3x8", "f32"), "--jobs 0; expected 1 or more"),
    (("--arch", "sm_1", "softmax_fwd", "3x8", "f32"), "arch is 'sm_1'; expected one of sm_70"),
])
def test_words_that_make_no_sense(words, message, capsys):
    assert run(*words) == 2
    assert message in capsys.readouterr().err


def test_a_set_of_one_operation(cache, capsys, monkeypatch):
    given = []
    monkeypatch.setattr("dnnkern.warming.compile_jobs", lambda jobs, **_: given.extend(jobs) or ahead.Compiled())
    assert run("rope_fwd", "--set", "small") == 0
    assert given and {job.op for job in given} == {"rope_fwd"} and len(set(given)) == len(given)


def test_a_recorder_of_nothing_for_other_devices():
    assert Recorder().for_devices([device(0)]) == []

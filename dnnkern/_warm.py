"""The command ``dnnkern warm``: kernels compiled ahead, into the cache."""
import contextlib
import runpy
import sys
from pathlib import Path

from . import _run
from ._output import add_outputs, document
from ._parser import Parser, family_words, program
from ._words import call_of, is_call
from ._table import note, progress, say, silenced

HELP = """Compile kernels into the cache, side by side: those of a problem (warm matmul 4096x4096x4096 bf16), of a named set of problems
(--set resnet50; needs a source checkout), or of a program, whose calls are recorded instead of run (warm train.py ...). Without a GPU they
are for the processor unless --arch says otherwise."""


_OPTIONS = "arch", "jobs", "set", "ops", "simulate", "json", "quiet"


def add_arguments(add):
    """The options, by a parser's ``add_argument``."""
    add("--arch", metavar="ARCH", help="compile for GPUs of these architectures, separated by commas: sm_80,sm_90a; no GPU is needed")
    add("--jobs", type=int, metavar="N", help="kernels compiled at once (default: the cores)")
    add("--set", metavar="NAME", help="the problems of a set of the benches, or common, all that are usual; with an operation, its own")
    add("--ops", metavar="NAMES", help="of a PyTorch program: what runs on this library's kernels, as run has it: heavy, all, or names")
    add("--simulate", action="store_true", help="of a PyTorch program, without a GPU: as run has it")
    add_outputs(add)


def main(arguments) -> int:
    """Warm what the arguments say; 1 if something could not be compiled, or the program failed."""
    given, words = arguments.op, arguments.words
    is_script = given is not None and given.endswith(".py")
    if not is_script and (arguments.ops or arguments.simulate):
        raise ValueError(f"warm: {'--ops' if arguments.ops else '--simulate'} is for programs; expected a file, train.py")
    if arguments.simulate:
        _run.simulate()
    if given is None and arguments.set is None:
        raise ValueError("warm: nothing to compile; expected a problem (matmul 4096x4096x4096 bf16), --set NAME, or a program (train.py)")
    if not is_script:
        arguments, problem = _with_words(arguments, given, words)
    if arguments.jobs is not None and arguments.jobs < 1:
        raise ValueError(f"warm: --jobs {arguments.jobs}; expected 1 or more")
    with silenced(arguments.quiet or arguments.json):  # also where that follows the operation
        return _compile(arguments, given, words, None if is_script else problem)


def _compile(arguments, given, words, problem):
    """Compile them, and say what was."""
    from .device import SIMULATED
    from .host.paths import cache_dir
    from .warming import compile_jobs
    is_script = given is not None and given.endswith(".py")
    devices = _devices(arguments.arch)
    if cache_dir() is None:
        raise ValueError("warm: there is no cache directory to compile into; set DNNKERN_CACHE_DIR to a folder that can be written")
    if SIMULATED and devices is None:
        raise ValueError("warm: the simulator compiles nothing; expected --arch, or DNNKERN_DEVICE=cpu")
    failure, before = None, set(sys.modules)
    if is_script:
        with _overrides(arguments.ops, arguments.simulate):
            recorder, failure = _recorded(given, words, devices is None, sys.stderr if arguments.json else sys.stdout)
        jobs = recorder.jobs if devices is None else recorder.for_devices(devices)
    else:
        with progress("planning"):
            jobs = _jobs(problem, given, arguments.set, devices)
    failed, targets = {}, []
    for share in _by_target(jobs):
        compiled = recorder.compile(workers=arguments.jobs) if is_script and devices is None else compile_jobs(
            share, workers=arguments.jobs, progress=_progress)
        note()
        failed |= compiled.failed
        target = share[0].device
        where = "the processor" if target.is_processor else target.arch
        targets.append({"target": where, "problems": len(share), "kernels": compiled.kernels,
                        "cached": compiled.kernels - compiled.missing, "compiled": compiled.done})
        say(f"{where}: {compiled.kernels} kernels of {len(share)} problems; "
            f"{compiled.kernels - compiled.missing} were in the cache, {compiled.done} are compiled")
    if not jobs:
        pytorch = "; PyTorch's are recorded with --ops heavy" if not arguments.ops and "torch" in set(sys.modules) - before else ""
        say(f"Nothing to compile: no call of a public function was recorded{pytorch}." if is_script else
            "Nothing to compile: the problem is empty.")
    failure = failure and f"{type(failure).__name__}: {failure}"
    if arguments.json:
        document("warm", targets=targets, failed=failed, failure=failure)
    for what, why in failed.items():
        print(f"{program()}: {what}: {why}", file=sys.stderr)
    if failure is not None:
        print(f"{program()}: {given} failed after {len(jobs)} problems: {failure}", file=sys.stderr)
    return int(bool(failed) or failure is not None)


def _with_words(arguments, op, words):
    """(the arguments, with options that follow the operation; its problem, None where it is given by `--set`)"""
    parser = Parser(prog=f"{program()} warm {op or ''}".strip(), description=HELP)
    add_arguments(parser.add_argument)
    parser.set_defaults(**{name: value for name, value in vars(arguments).items() if name in _OPTIONS})
    if op is None:
        return arguments, None
    if is_call(words):
        options, make = call_of(op, words)
        return parser.parse_args(options), make(None)
    words_of_family, make, _ = family_words(parser, op)
    known, _ = parser.parse_known_args([word for word in words if word not in ("-h", "--help")])
    if known.set is not None:
        return parser.parse_args(words), None
    words_of_family(parser)
    known = parser.parse_args(words)
    return known, make(known)


def _devices(archs):
    """Those of the architectures; None for the device of this process."""
    from .host.device import described
    return None if archs is None else [described(arch) for arch in archs.split(",")]


def _here():
    from .host.device import current_device, device
    return [device(current_device())]


def set_of(name, op=None) -> list:
    """The problems of a set of the benches, of one operation or of all."""
    from ._bench import load
    load()
    from bench import sets
    return sets.problems(name, op)


def _jobs(problem, op, set_name, devices):
    from .host.compiler import Job
    problems = set_of(set_name, op) if problem is None else [problem]
    return [Job(each.op, each, device) for device in devices or _here() for each in problems if not each.is_empty]


def _recorded(script, words, here, stdout):
    """(recorder of a program's calls, the exception that ended it or None); what it prints goes to `stdout`"""
    from .preference import RECORDING, within
    from .warming import Recorder
    if not Path(script).is_file():
        raise ValueError(f"warm: there is no file {script}")
    recorder, failure, before = Recorder(_progress, here), None, (sys.argv, sys.path[0])
    sys.argv, sys.path[0] = [script, *words], str(Path(script).resolve().parent)
    try:
        with within(RECORDING, recorder), contextlib.redirect_stdout(stdout):
            runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        failure = end if end.code not in (None, 0) else None
    except Exception as error:
        failure = error
    except BaseException:  # Ctrl-C
        recorder.end()
        raise
    finally:
        sys.argv, sys.path[0] = before
    return recorder, failure


def _overrides(ops, simulate):
    """PyTorch's operators as ``run`` has them."""
    if ops is None and not simulate:
        return contextlib.nullcontext()
    _run.need_pytorch("warm")
    from .torch import enabled
    stack = contextlib.ExitStack()
    stack.enter_context(enabled(ops or "heavy"))
    stack.enter_context(_run.devices(simulate))
    return stack


def _by_target(jobs):
    """The jobs of each architecture."""
    targets = {}
    for job in jobs:
        targets.setdefault((job.device.is_processor, job.device.arch), []).append(job)
    return targets.values()


def _progress(compiled):
    note(f"{compiled.done + len(compiled.failed)} of {compiled.missing} kernels compiled")

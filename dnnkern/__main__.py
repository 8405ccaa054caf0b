"""The command line, ``dnnkern`` or ``python -m dnnkern``: what its commands are, and what becomes of errors."""
import argparse
import json
import os
import sys
import warnings

from . import __version__
from ._output import FAILED, add_outputs, document, guarded
from ._parser import USAGE_ERROR, Parser, program
from ._table import bytes_text, progress, say, show, silenced, time_text
from ._words import call_of, empty_parser, is_call, words_parser

EXAMPLES = {"run": "run --simulate train.py", "devices": "devices", "list": "list matmul",
            "explain": "explain conv_fwd x=64x64x56x56:f16 w=64x64x3x3 padding=1 --arch sm_90a", "find": "find softmax_fwd 256x1000 f32",
            "warm": "warm softmax_fwd 256x1000 f32", "pack": "pack --arch sm_90a --op rope_fwd --out rope.pack",
            "onnx": "onnx model.onnx --report", "trace": "trace matmul a=128x128:bf16 b=128x128 --algo wgmma --out wgmma.json",
            "cache": "cache show", "completion": "completion bash", "check": "check matmul 33x29x37 bf16",
            "report": "report results.jsonl --out results.html"}
"""One of each command, for its help; those of `bench` and `demo` are theirs."""


def devices(arguments):
    """Print the devices that kernels run on."""
    from .device import HOST_MEMORY, SIMULATED
    from .host.device import device, device_count
    rows = []
    with progress("asking the devices"):
        known = [device(i) for i in range(device_count())]
    if arguments.json:
        names = {"index": "index", "name": "name", "arch": "arch", "sms": "sms", "clock_hz": "clock_hz", "memory_bytes": "memory",
                 "bandwidth_bytes_per_s": "bandwidth", "fp32_flop_per_s": "fp32_rate", "l2_bytes": "l2_bytes",
                 "shared_per_block_bytes": "shared_per_block"}
        document("devices", runs_on="simulator" if SIMULATED else "processor" if HOST_MEMORY else "gpu",
                 devices=[{name: getattr(d, field) for name, field in names.items()} for d in known])
        return 0
    for d in known:
        rows.append((d.index, d.name, d.arch, d.sms, f"{d.clock_hz / 1e6:.0f}", f"{d.memory / 2**30:.1f}", f"{d.bandwidth / 1e9:.0f}",
                     f"{d.fp32_rate / 1e12:.3g}", f"{d.l2_bytes / 2**20:.1f}", f"{d.shared_per_block / 2**10:.0f}"))
    show(("index", "name", "arch", "SMs", "clock (MHz)", "memory (GiB)", "bandwidth (GB/s)", "fp32 (TFLOP/s)", "L2 (MiB)",
          "shared (KiB)"), rows)
    if SIMULATED:
        say("\nNo GPU is used: kernels run in the simulator, which assumes an H200, so that dispatch predicts what it would choose there.")
    elif HOST_MEMORY:
        say("\nNo GPU is used: kernels are compiled for the processor. SMs are its cores; bandwidth and fp32 were measured, by a copy "
            "and by NumPy's product.")
    else:
        say("\nRates are nominal and used for predictions only.")
    return 0


def list_algorithms(arguments):
    """Print the algorithms of one operation, or of all."""
    from . import registry
    with progress("reading the algorithms"):
        found = registry.listed(arguments.op)
    if arguments.json:
        document("list", algorithms=[dict(zip(("op", "name", "arch", "math", "notes", "idea"), (*row[:4], row[4].names, row[5])))
                                     for row in found])
        return 0
    rows = [(*row[:4], _notes(row[4]), row[5]) for row in found]
    show(("operation", "algorithm", "runs on", "math", "notes", "idea"), rows)
    return 0


def explain(arguments):
    """Print every algorithm's answer for a problem: why it cannot solve it, or its predicted time."""
    from . import dispatch
    from .preference import DEVICE, VARIABLE
    problem, device = arguments.make(arguments), _device(arguments.arch)
    if problem.is_empty:
        if arguments.json:
            document("explain", **_about(problem, device), chosen=None, why=None, algorithms=[])
        say(f"{problem} has no elements: nothing runs")
        return 0
    limits = {"workspace_limit": arguments.workspace_limit, "allow": arguments.allow, "exclude": arguments.exclude}
    preferred = dispatch.preference() or DEVICE
    with progress("asking the algorithms"):
        rows = dispatch.explain(problem.op, problem, device=device, prefer=preferred, **limits)
        measured = dispatch.measured(problem.op, problem, device)
    able = [c for c in rows if c.reason is None]
    chosen = next((c for c in able if c.chosen), None)
    if arguments.json:
        document("explain", **_about(problem, device), chosen=chosen and chosen.algo, why=chosen and chosen.why, algorithms=[
            {"name": c.algo, "reason": c.reason, "predicted_ms": c.time_ms, "measured_ms": measured.get(c.algo),
             "workspace_bytes": c.memory, "notes": c.notes.names, "config": c.config, "terms_ms": c.terms, "hidden_ms": c.hidden}
            for c in rows])
        return FAILED if chosen is None else 0
    show(("", "algorithm", "predicted", "measured", "workspace", "notes", "config"),
         [("*" if c.chosen else "", c.algo, time_text(c.time_ms), time_text(measured.get(c.algo)), bytes_text(c.memory or None),
           _notes(c.notes), c.config) for c in able],
         title=f"{problem} on {device.name}", marked=[i for i, c in enumerate(able) if c.chosen])
    if arguments.why and able:
        _show_terms(able)
    if len(able) < len(rows):
        print()
        show(("cannot", "reason"), [(c.algo, c.reason) for c in rows if c.reason is not None])
    if chosen is None:
        say("\nNo algorithm can run within these limits.")
        return FAILED
    from .host.processor import CALLS
    lowest = "the lowest predicted time"
    if chosen.why == "predicted" and any(c.time_ms < chosen.time_ms for c in able):  # on the processor
        lowest += f" where a {CALLS}th of the time to compile is added"
    why = {"predicted": f"{lowest}; nothing has been measured ({program()} find {arguments.op} ...)",
           "measured": "the lowest measured time", "preferred": f"preferred ({VARIABLE})"}
    say(f"\n* what a call runs: {why.get(chosen.why, chosen.why)}")
    if device.is_simulated and dispatch.preference() is None and (
            quick := dispatch.get_algorithm(problem.op, problem, **limits).name) != chosen.algo:
        say(f"That is the choice on a GPU. Here, in the simulator, {quick} runs, because it is quick to simulate ({VARIABLE}).")
    return 0


def _show_terms(able):
    """Print the terms of the predicted times, and what each term means."""
    from .engine.cost import TERMS

    def sum_of(times):
        return " + ".join(f"{name} {time_text(times[name])}" for name in TERMS if times.get(name))
    print()
    show(("", "algorithm", "predicted", "sum of", "overlapped"),
         [("*" if c.chosen else "", c.algo, time_text(c.time_ms), sum_of(c.terms), sum_of(c.hidden).replace(" +", ",")) for c in able],
         marked=[i for i, c in enumerate(able) if c.chosen])
    print()
    show(("term", "meaning"), [(name, text) for name, text in TERMS.items() if any(c.terms.get(name) or c.hidden.get(name) for c in able)])


def find(arguments):
    """Measure every algorithm that can solve a problem; what was measured until Ctrl-C is shown, and not stored."""
    from . import dispatch
    from .host.timing import Interrupted
    problem = arguments.make(arguments)
    if problem.is_empty:
        if arguments.json:
            document("find", **_about(problem), simulated=_is_simulated(), algorithms=[])
        say(f"{problem} has no elements: nothing runs")
        return 0
    try:
        with progress("measuring"):
            perfs = dispatch.find_algorithms(problem.op, problem, workspace_limit=arguments.workspace_limit, allow=arguments.allow,
                                             exclude=arguments.exclude, save=not arguments.no_save)
    except Interrupted as stopped:
        _show_found(arguments, problem, stopped.found)
        raise
    return _show_found(arguments, problem, perfs)


def _show_found(arguments, problem, perfs):
    """Print what `find` has measured; the exit code."""
    code = 0 if any(p.status == "ok" for p in perfs) else FAILED
    if arguments.json:
        document("find", **_about(problem), simulated=_is_simulated(), algorithms=[
            {"name": p.algo, "status": p.status, "time_ms": p.time_ms if p.status == "ok" else None, "workspace_bytes": p.memory,
             "notes": p.notes.names, "config": p.config} for p in perfs])
        return code
    flops = getattr(problem, "flops", 0)
    rows = []
    for p in perfs:
        rate = f"{flops / p.time_ms / 1e9:.3g}" if flops and p.time_ms and not _is_simulated() else None
        rows.append((p.algo, time_text(p.time_ms) if p.status == "ok" else None, rate, bytes_text(p.memory or None), _notes(p.notes),
                     p.config, p.status))
    show(("algorithm", "time", "TFLOP/s", "workspace", "notes", "config", "status"), rows, title=f"{problem} on {_device().name}",
         marked=(0,))
    if _is_simulated():
        say("\nThese are simulator times; they do not predict times on a GPU.")
    return code


def _about(problem, device=None):
    """What documents say of a problem."""
    from .dispatch import problem_record
    return {"op": problem.op, "problem": str(problem), "record": problem_record(problem), "device": (device or _device()).name}


def run_program(arguments):
    """Run a program of PyTorch, Keras or JAX, as it is, on this library's kernels."""
    from ._run import main
    return main(arguments)


def onnx(arguments):
    """Run a model of ONNX on this library's kernels, and report what ran where."""
    from ._onnx import main
    return main(arguments)


def warm(arguments):
    """Compile kernels into the cache, before they are needed."""
    from ._warm import main
    return main(arguments)


def pack(arguments):
    """Compile the kernels of a set of problems into a file for other machines."""
    from ._pack import pack as write
    return write(arguments)


def cache(arguments):
    """Show, clear or locate the cache, or import a kernel pack into it."""
    from ._cache import main
    return main(arguments)


def completion(arguments):
    """Print what makes a shell complete the words of this command."""
    from ._completion import main
    return main(arguments)


def bench(arguments):
    """Compare with other libraries; needs a source checkout."""
    from ._bench import load
    return load().main(arguments.rest) or 0


def report(arguments):
    """Make a page of charts from results, or compare two sets of them."""
    from ._report import main
    return main(arguments)


def trace(arguments):
    """Write what the warps of a problem's kernels do when, on a GPU or as the simulator runs them, to a file that Perfetto opens."""
    from . import _trace
    from .device import DEVICE
    if DEVICE == "cpu":
        return _trace.elsewhere(arguments.argv)
    return _trace.trace(arguments.make(arguments), arguments.algo, arguments.out, arguments.json)


def demo(arguments):
    """Train the demo network."""
    from .demo import main
    return main(arguments.rest)


def check(arguments):
    """Print versions, and check every algorithm on small problems of each dtype against float64; or check one problem."""
    from .selfcheck import run, run_problem
    shown = {"as_json": arguments.json, "quiet": arguments.quiet}
    return run(**shown) if arguments.op is None else run_problem(arguments.make(arguments), arguments.algo, arguments.exclude, **shown)


def _notes(notes):
    return ", ".join(notes.names) or None


def _device(arch=None):
    """The device of this process, or one of an architecture."""
    from .host.device import current_device, described, device
    return described(arch) if arch else device(current_device())


def _is_simulated():
    from .device import SIMULATED
    return SIMULATED


def _parse_problem(parser, arguments):
    """Parse the words after `explain OP`, `find OP` or `check OP`: a call's arguments, a problem's record, or the family's short form."""
    given = {"op": arguments.op, "json": arguments.json, "quiet": arguments.quiet}  # also where they come before the operation
    if is_call(arguments.words):
        options, make = call_of(arguments.op, arguments.words)
        return empty_parser(parser, arguments.command, arguments.op).parse_args(options, argparse.Namespace(**given, make=make))
    words, make, from_record = words_parser(parser, arguments.command, arguments.op)
    if arguments.words and arguments.words[0].startswith("{"):
        words = empty_parser(parser, arguments.command, arguments.op)
        words.add_argument("record", type=_record)
        return words.parse_args(arguments.words, argparse.Namespace(**given, make=lambda words: from_record(words.record)))
    return words.parse_args(arguments.words, argparse.Namespace(**given, make=make))


def _record(text):
    """A problem's record of JSON."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"invalid JSON: {error}") from None


def make_parser():
    """The parser of everything but the problems' own words, and the parsers of the commands that take problems."""
    parser = Parser(prog=program(), description="Deep-learning primitives as Numba CUDA kernels.",
                    epilog="`%(prog)s COMMAND --help` has a command's options and an example.")
    parser.add_argument("--version", action="version", version=f"dnnkern {__version__}", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="command")
    with_problem = {}

    def add(name, run, **options):
        if name in EXAMPLES:
            options["epilog"] = f"Example: {program()} {EXAMPLES[name]}"
        command = commands.add_parser(name, help=run.__doc__.split("\n")[0].rstrip("."), description=run.__doc__, **options)
        command.set_defaults(run=run)
        return command

    from . import _completion, _run
    command = add("run", run_program)
    command.description = _run.HELP
    _run.add_arguments(command.add_argument)
    command.add_argument("words", nargs=argparse.REMAINDER, help="the program's arguments").required = False
    from . import _onnx
    command = add("onnx", onnx)
    command.description = _onnx.HELP
    _onnx.add_arguments(command.add_argument)
    add_outputs(command.add_argument)
    add_outputs(add("devices", devices).add_argument)
    command = add("list", list_algorithms)
    add_outputs(command.add_argument)
    command.add_argument("op", nargs="?", help="an operation; default: all").completer = _completion.operation_words
    for name, run in (("explain", explain), ("find", find), ("trace", trace)):
        with_problem[name] = add(name, run)
        add_outputs(with_problem[name].add_argument)
        with_problem[name].add_argument("op", help="an operation, such as matmul; `%(prog)s matmul --help` has its problems, and more "
                                        "options"
                                        ).completer = _completion.operation_words
        words = with_problem[name].add_argument("words", nargs=argparse.REMAINDER, help="the problem: a call's arguments, a=4096x4096:bf16 "
                                                "b=4096x4096 activation=gelu, or in short, 4096x4096x4096 bf16 --activation gelu")
        words.completer, words.required = _completion.problem_words, False  # what a problem lacks its own parser says
    from ._trace import HELP
    with_problem["trace"].description = HELP
    from ._warm import HELP, add_arguments
    command = add("warm", warm)
    command.description = HELP
    add_arguments(command.add_argument)
    command.add_argument("op", nargs="?", help="an operation, such as matmul, or a program: train.py")
    command.add_argument("words", nargs=argparse.REMAINDER, help="the problem, as for explain, or the program's arguments")
    from . import _pack
    command = add("pack", pack)
    command.description = _pack.HELP
    _pack.add_arguments(command.add_argument)
    add_outputs(command.add_argument)
    from . import _cache
    command = add("cache", cache)
    command.description = _cache.HELP
    _cache.add_arguments(command.add_argument).completer = _completion.cache_words
    add_outputs(command.add_argument)
    command = add("completion", completion)
    command.description = _completion.HELP
    _completion.add_arguments(command.add_argument)
    from . import _report
    command = add("report", report)
    command.description = _report.HELP
    _report.add_arguments(command.add_argument)
    add_outputs(command.add_argument)
    for name, run in (("bench", bench), ("demo", demo)):
        add(name, run, add_help=False).add_argument("rest", nargs=argparse.REMAINDER)
    with_problem["check"] = add("check", check)
    add_outputs(with_problem["check"].add_argument)
    with_problem["check"].add_argument("op", nargs="?", help="an operation, to check one problem of it"
                                       ).completer = _completion.operation_words
    with_problem["check"].add_argument("words", nargs=argparse.REMAINDER, help="the problem, as for explain, or its record in JSON"
                                       ).completer = _completion.problem_words
    return parser, with_problem


def main(argv=None) -> int:
    """Run one command; returns the exit code: 0, 1 where something was found wrong or could not be done, 2 (and one line on stderr) where
    the command was used wrong."""
    return guarded(lambda: _main(sys.argv[1:] if argv is None else list(argv)))


def _main(argv):
    warnings.filterwarnings("ignore", message="dnnkern: no CUDA device", category=RuntimeWarning)  # every command prints where it runs
    parser, with_problem = make_parser()
    if "_ARGCOMPLETE" in os.environ:
        from ._completion import complete
        complete(parser)
    # argparse would take options that come first in a REMAINDER as its own
    if argv and argv[0] in ("bench", "demo"):
        arguments = parser.parse_args(argv[:1])
        arguments.rest = argv[1:]
    else:
        arguments = parser.parse_args(argv)
    if arguments.command is None:
        parser.print_help()
        return 0
    run = arguments.run
    try:
        if arguments.command in with_problem and arguments.op is not None:
            arguments = _parse_problem(with_problem[arguments.command], arguments)
            arguments.argv = argv
        with silenced(getattr(arguments, "quiet", False) or getattr(arguments, "json", False)):
            return run(arguments)
    except (ValueError, TypeError, NotImplementedError) as error:
        return _fail(error)
    except RuntimeError as error:
        from .dispatch import NotSupported
        from .host.driver import NoDriver
        if isinstance(error, NotSupported):
            return _fail(error)
        if isinstance(error, NoDriver):
            return _fail(error, FAILED)
        raise


def _fail(error, code=USAGE_ERROR):
    print(f"{program()}: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())

"""One record of everything: every set of every operation, forward and backward, at one commit, over as many runs as it takes.

``python -m dnnkern bench record --json bench/results/h200-record.jsonl`` measures what the file does not have yet of this kind of device
and this version of PyTorch. ``--drop``, which needs no GPU, takes out what this checkout would not run any more. The first problems of all
sets come first, then the second ones: a run that is ended early has some of everything. Several GPUs share the work with ``--share
FOLDER``, each with a file of its own; ``--have`` names files of earlier runs.
"""
import argparse
import collections
import gzip
import json
import random
import sys
import time
from hashlib import sha256
from pathlib import Path

from dnnkern import dispatch
from dnnkern._table import note
from dnnkern.device import SIMULATED
from dnnkern.host.paths import replace
from dnnkern.report.rows import records

from . import code, drawn, run, shapes
from .case import is_lost

DTYPES = "bfloat16", "float16", "float32", "float8_e4m3fn"
CHUNK = 12  # problems whose kernels are compiled together
AHEAD = 3   # such chunks that are compiled beside each other, while the one before them is measured
ROOM = 0.85    # of a device's memory: what takes more is left to larger devices
TURNS = 5
WINDOW = 1e-3  # seconds of a timed batch: most of the time the device idles
WITHIN = 2.0  # times the best predicted time: what should take longer is not measured, but for what is drawn at random


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    p = argparse.ArgumentParser(prog="python -m dnnkern bench record", description="Measure all sets of all operations that a file lacks.")
    p.add_argument("--json", required=True, metavar="FILE", help="append the rows as JSON lines; the problems it has are left out")
    p.add_argument("--drop", action="store_true",
                   help="measure nothing: take out of the file the problems for which this checkout would choose or launch something else")
    p.add_argument("--have", action="append", default=[], metavar="FILE", help="another file whose problems are left out; repeatable")
    p.add_argument("--share", type=Path, default=None, metavar="FOLDER",
                   help="measure what no other process has taken that names this folder and the same arguments")
    p.add_argument("--ops", default="", metavar="NAMES", help="these operations alone, with commas")
    p.add_argument("--dtype", default=",".join(DTYPES), metavar="NAMES",
                   help=f"those of them that an operation has, else its own first one (default {','.join(DTYPES)})")
    p.add_argument("--first", type=int, default=None, metavar="N", help="the first N problems of each set alone")
    p.add_argument("--seconds", type=float, default=None, metavar="S", help="begin no problem later than S seconds after the start")
    p.add_argument("--random", type=int, default=drawn.COUNT, metavar="N",
                   help=f"problems drawn at random, of each operation and dtype (default {drawn.COUNT})")
    p.add_argument("--turns", type=int, default=TURNS, metavar="N", help=f"timed batches of each (default {TURNS})")
    p.add_argument("--sustained", type=float, default=3.0, metavar="S",
                   help="seconds of sustained load, of each operation's first problem (default 3)")
    p.add_argument("--jobs", type=int, default=1, metavar="N", help="compile in about N processes")
    return p


def wanted(args) -> list:
    """(set, case) of all that the arguments ask for: the first ones of all sets, in an order that is drawn, but always the same, then the
    second ones; each case once."""
    if SIMULATED:
        return [("tiny", shapes.tiny(op)) for op in (args.ops.split(",") if args.ops else shapes.operations())]
    dtypes, columns, found = args.dtype.split(","), [], {}
    for wished in dtypes:
        for op in args.ops.split(",") if args.ops else shapes.operations():
            module = shapes.of(op)
            dtype = wished if set(dtypes) & set(module.DTYPES) else module.DTYPES[0]  # of an operation that has none of them
            if dtype in module.DTYPES:
                columns += [(name, module.cases(name, (dtype,))[:args.first]) for name in module.SETS]
                columns.append((drawn.SET, drawn.cases(op, (dtype,), args.random)))
    random.Random(len(columns)).shuffle(columns)
    for k in range(max((len(cases) for _, cases in columns), default=0)):
        for name, cases in columns:
            if k < len(cases):
                found.setdefault((cases[k].op, str(cases[k])), (name, cases[k]))
    return list(found.values())


def done(paths, machine) -> set:
    """(operation, problem) of what files have of a kind of device, beside the same PyTorch."""
    def beside(machine):
        return machine["device"], machine.get("torch")
    return {(row["op"], row["problem"]) for row in records(paths) if row.get("chosen") and beside(row["machine"]) == beside(machine)}


def drop(path):
    """Take the stale problems out of a file, and say how many there were."""
    def problem_of(row):
        return row["machine"]["device"], row["op"], row["problem"]
    rows, stale = list(records([path])), set()
    chosen = [row for row in rows if row.get("chosen")]
    for number, row in enumerate(chosen, 1):
        note(f"planning {number} of {len(chosen)}")
        if code.is_stale(row):
            stale.add(problem_of(row))
    note()
    kept = "".join(json.dumps(row) + "\n" for row in rows if problem_of(row) not in stale).encode()
    replace(Path(path), gzip.compress(kept) if path.endswith(".gz") else kept)
    print(f"{len(stale)} of {len(chosen)} problems were stale and are no longer in {path}")


def parts_of(left, folder):
    """Parts of a list of (set, case), of CHUNK entries each; with a folder of what no other process has taken until then."""
    part = []
    for name, case in left:
        if is_taken(f"{case.op} {case}", folder):
            continue
        part.append((name, case))
        if len(part) == CHUNK:
            yield part
            part = []
    if part:
        yield part


def is_taken(name, folder) -> bool:
    """Whether another process that names this folder has taken a problem; else it is this one's from now on. Without a folder it is."""
    if folder is None:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _mark(name, folder).touch(exist_ok=False)
    except FileExistsError:
        return True
    return False


def _mark(name, folder):
    return folder / sha256(name.encode()).hexdigest()[:16]


def give_back(part, folder):
    """Let other processes take these (set, case)."""
    if folder is not None:
        for _, case in part:
            _mark(f"{case.op} {case}", folder).unlink(missing_ok=True)


def told(rows) -> list:
    """What the record keeps of a problem: what was chosen and predicted, the best of ours, what failed, the peers; no single turns."""
    best = next((row for row in rows if row["status"] == "ok" and not row["is_peer"]), None)
    return [{name: value for name, value in row.items() if name != "turns_us" and (name != "record" or not row["is_peer"])} for row in rows
            if row["is_peer"] or row["chosen"] or row["predicted"] or row is best or row["status"] != "ok"]


def end(begun, folder):
    """End compiling, and give back what has been taken."""
    for part, compilation in begun:
        give_back(part, folder)
        if compilation is not None:
            compilation.end()


def main(argv=None) -> int:
    """Measure; the exit status: 1 if a result of ours was wrong or a problem failed."""
    args = parser().parse_args(argv)
    if args.drop:
        drop(args.json)
        return 0
    device = dispatch.device_of(dispatch.current_device())
    started, failed = time.monotonic(), False
    options = run.parser().parse_args(["", "--json", args.json, "--configs", "2", "--within", str(WITHIN), "--turns", str(args.turns),
                                       "--window", str(WINDOW)])
    cases = [(name, case) for name, case in wanted(args) if case.problem.bytes <= ROOM * device.memory]

    def is_over():
        return args.seconds is not None and time.monotonic() - started > args.seconds
    with run.Session(options, device, [case for _, case in cases], host="chosen") as session:
        have = done(filter(Path.exists, map(Path, (args.json, *args.have))), session.machine)
        left = [(name, case) for name, case in cases if (case.op, str(case)) not in have]
        print(f"{len(left)} problems to measure, of {len(cases)}")
        parts, first, number = parts_of(left, args.share), {case.op: case for _, case in reversed(cases)}, 0

        begun = collections.deque()

        def begin():
            if not is_over() and (part := next(parts, [])):
                jobs = 1 if args.jobs == 1 else max(args.jobs // AHEAD, 2)  # 1: nothing is compiled ahead
                begun.append((part, run.compile_ahead(jobs, device, [(case, None) for _, case in part], options)))
        for _ in range(AHEAD):
            begin()
        while begun and not is_over():
            part, compilation = begun.popleft()
            if compilation is not None:
                compilation.wait()
            begin()
            for position, (name, case) in enumerate(part):
                if is_over():
                    give_back(part[position:], args.share)
                    break
                number += 1
                options.sustained = args.sustained if case is first[case.op] else 0.0
                try:
                    rows = session.rows(name, case, f"[{number}/{len(left)}] {case.op}", keep=told)
                    failed |= any(r["status"] != "ok" and not r["is_peer"] for r in rows)
                except Exception as error:  # what one problem meets must not end the run
                    failed = True
                    print(f"{case.op} {case}: {type(error).__name__}: {error}", file=sys.stderr)
                    if is_lost(session.clock):
                        give_back(part[position + 1:], args.share)
                        end(begun, args.share)
                        raise
        end(begun, args.share)
    return int(failed)

"""Measures algorithms, and stores the results in the find database.

The database has one small JSON file per device, versions, operation and problem: ``find/<device>/<op>/<hash>.json`` in the cache
directory. Files are written under a temporary name and renamed, so there is no lock, and the last writer wins.
"""
import contextlib
import datetime
import functools
import hashlib
import json
import math
from pathlib import Path

from .algorithm import Algorithm, problem_record
from .answers import Perf
from .device import HOST_MEMORY, SIMULATED
from .host.versions import versions
from .host.executable import make_executable
from .host.operands import Operands
from .host.paths import cache_dir, discard, read_json, write_atomically
from .host.scalars import integer, number, shown
from .host.sources import digest
from .host.timing import Clock, Contender, Interrupted, race

FORMAT = 1
STORES = not SIMULATED  # simulator times do not predict a device's
FIRST_ROUNDS, FINALISTS = 3, 4  # every candidate runs three rounds; the fastest four run against each other again


class Trial:
    """An algorithm bound to a configuration, prepared to run on `Operands`.

    Attributes
    ----------
    algorithm : Algorithm
    memory : int
        Bytes of workspace.
    error : str or None
        Why it cannot be timed: it did not compile or run, or its result is wrong.
    """

    def __init__(self, algorithm, problem, device):
        self.algorithm, self.problem, self.device = algorithm, problem, device
        self.memory, self.error, self.executable = algorithm.workspace(problem, device, algorithm.config), None, None

    def prepare(self, operation, operands, clock):
        """Compile, run once, and compare with the reference of `operands`; a failure becomes the trial's `error`."""
        try:
            self.executable = make_executable(operation, self.problem, self.algorithm, self.device)
            operands.values(0, self.memory)
            self.error = operands.wrong(lambda: self.run(operands, clock))
            if self.error:
                self.error = f"WRONG: {self.error}"
        except Exception as error:  # a failing candidate must not hide the measurements of the others
            self.error = f"{type(error).__name__}: {error}"
        return self.error is None

    def run(self, operands, clock):
        """One synchronous call on set 0."""
        self.executable.execute(operands.values(0, self.memory), clock.stream)
        clock.synchronize()

    def contender(self, operands, clock):
        """For `race`; named by this trial."""
        execute, stream = self.executable.execute, clock.stream
        values = [operands.values(k, self.memory) for k in range(len(operands))]
        return Contender(self, lambda k: execute(values[k], stream), len(values))


def set_reference(operation, problem, reference, operands, device, clock):
    """Compute the expected result of the operands by the algorithm `reference`."""
    trial = Trial(reference, problem, device)
    trial.executable = make_executable(operation, problem, trial.algorithm, device)
    operands.values(0, trial.memory)
    operands.set_reference(lambda: trial.run(operands, clock))


def measure(operation, problem, candidates, reference, device, *, arrays=None, workspace_limit=None) -> list[Perf]:
    """Measure algorithms bound to configurations. The public function is `dnnkern.dispatch.find_algorithms`.

    A candidate is timed only if its result agrees with that of `reference`. One that could not run, was wrong, or was skipped for its
    workspace comes last, with the reason as its `status` and an infinite `time_ms`. `Interrupted` has the list of what was measured until
    Ctrl-C.
    """
    perfs, trials, is_whole = [], [], True
    for algorithm in candidates:
        trial = Trial(algorithm, problem, device)
        if workspace_limit is not None and trial.memory > workspace_limit:
            perfs.append(_perf(trial, f"needs {trial.memory} bytes of workspace, the limit is {workspace_limit}"))
        else:
            trials.append(trial)
    if trials:
        with Clock(device.index) as clock, Operands(operation, problem, device, arrays) as operands:
            _compile_ahead(trials)
            set_reference(operation, problem, reference, operands, device, clock)
            good = [t for t in trials if t.prepare(operation, operands, clock)]
            try:
                times = heats([t.contender(operands, clock) for t in good], clock)
            except Interrupted as stopped:
                times, is_whole = stopped.found, False
        perfs += [_perf(t, t.error or ("ok" if t in times else "not measured"), times[t].median if t in times else None) for t in trials]
    perfs.sort(key=lambda p: (p.time_ms, p.memory))
    if not is_whole:
        raise Interrupted(perfs)
    return perfs


def heats(contenders, clock) -> dict:
    """{name: Sample}: all contenders in a few rounds, then the fastest against each other."""
    times = race(contenders, clock, rounds=FIRST_ROUNDS)
    finalists = sorted(contenders, key=lambda c: times[c.name].median)[:FINALISTS]
    if len(contenders) > 1 and not SIMULATED:
        clock.release()
        try:
            times.update(race(finalists, clock))
        except Interrupted as stopped:
            raise Interrupted(times | stopped.found) from None
    return times


def _compile_ahead(trials):
    """On the processor: compile the kernels of all candidates in parallel. Errors are reported by each trial."""
    if not HOST_MEMORY or SIMULATED:
        return
    from .device.cpu.launch import compile_ahead
    launches = []
    for trial in trials:
        with contextlib.suppress(Exception):
            launches += trial.algorithm.build(trial.problem, trial.device, trial.algorithm.config)
    compile_ahead(launches)


def _perf(trial, status, seconds=None):
    a = trial.algorithm
    return Perf(algo=a.name, status=status, time_ms=math.inf if seconds is None else 1e3 * seconds, memory=trial.memory,
                determinism=a.is_deterministic, math_type=a.math, notes=a.notes, config=a.config_text)


# ---- the database

def identity(op, problem, device, known) -> dict:
    """What a measurement is valid for: any difference here makes it another entry. `known` are all algorithms of the operation, a tuple."""
    return {"format": FORMAT, "device": device.name, "arch": device.arch, "sms": device.sms, "versions": versions(),
            "sources": _sources(known), "op": op, "problem": problem_record(problem)}


@functools.lru_cache(maxsize=256)
def _sources(known):
    """What the kernels of algorithms are made of, as one hash."""
    codes = (getattr(a.build, "__code__", None) for a in known)
    return digest(*{path for code in codes if code and (path := Path(code.co_filename).resolve()).is_file()})[:32]


def path_of(op, problem, device, known):
    """The entry's file; None where there is no cache directory."""
    folder = cache_dir()
    if folder is None:
        return None
    digest = hashlib.sha256(json.dumps(identity(op, problem, device, known), sort_keys=True).encode()).hexdigest()[:32]
    return folder / "find" / device.folder / op / f"{digest}.json"


def store(op, problem, device, known, perfs) -> bool:
    """Write an entry; whether it could be written."""
    path = path_of(op, problem, device, known)
    if path is None:
        return False
    results = [{"algo": p.algo, "config": p.config, "status": p.status, "time_ms": float(f"{p.time_ms:.6g}") if p.status == "ok" else None,
                "memory": p.memory, "determinism": p.determinism, "math_type": p.math_type, "notes": p.notes.names} for p in perfs]
    entry = {"title": str(problem), "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "results": results,
             **identity(op, problem, device, known)}
    return write_atomically(path, _readable(entry).encode())


def _readable(entry):
    """JSON with one line a field and one line a result."""
    lines = []
    for key, value in entry.items():
        text = "[\n" + ",\n".join("  " + json.dumps(r) for r in value) + "\n ]" if key == "results" else json.dumps(value)
        lines.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def load(op, problem, device, known) -> list:
    """The results of an entry, fastest first; [] where there is none. A file that makes no sense is removed, with a warning."""
    path = path_of(op, problem, device, known)
    entry = read_json(path) if path is not None else None
    if entry is None:
        return []
    try:
        if any(entry[key] != value for key, value in identity(op, problem, device, known).items()):
            return []
        return sorted(_row(r) for r in entry["results"] if r["status"] == "ok")
    except (KeyError, TypeError, ValueError) as error:
        discard(path, error)
        return []


def _row(result):
    """(milliseconds, bytes, algorithm, configuration) of a result; TypeError or ValueError where it is none."""
    time_ms, memory = number("find", "time_ms", result["time_ms"]), integer("find", "memory", result["memory"], 0)
    if not 0 <= time_ms < math.inf or not isinstance(result["algo"], str) or not isinstance(result["config"], str):
        raise ValueError(f"{shown(result)} is no result")
    return time_ms, memory, result["algo"], result["config"]


_load = functools.lru_cache(maxsize=4096)(load)


def best_known(op, problem, device, able, known, workspace_limit=None) -> Algorithm | None:
    """The fastest measured algorithm among `able` that still exists, bound to its measured configuration; None if nothing was measured.

    Entries with more workspace than the limit are passed over.
    """
    names = {a.name: a for a in able}
    for _, memory, name, config in _load(op, problem, device, known):
        algorithm = names.get(name)
        if algorithm is None or workspace_limit is not None and memory > workspace_limit:
            continue
        if algorithm.configs is None and not config:
            return algorithm
        bound = next((v for v in algorithm.variants(problem, device) if v.config_text == config), None)
        if bound is not None:
            return bound
    return None


def forget():
    """Read the database again."""
    _load.cache_clear()


__all__ = ["best_known", "forget", "load", "measure", "set_reference", "store"]

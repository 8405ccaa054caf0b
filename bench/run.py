"""Every algorithm against its peers on named problems: what ``python -m dnnkern bench`` prints and pytest-benchmark reports (test_ops.py).

A pair of algorithm and problem is timed only after its result on that very problem agreed with the naive algorithm's. Ours and the peers
take turns on the same memory; see README.md for the method.
"""
import argparse
import contextlib
import gc
import json
import sys
import time

from dnnkern import dispatch
from dnnkern._table import note
from dnnkern.device import HOST_MEMORY, SIMULATED
from dnnkern.host.paths import plain
from dnnkern.dispatch import candidates, operation_of, reference_of
from dnnkern.find import Trial, set_reference
from dnnkern.host.compiler import Job
from dnnkern.host.operands import Operands
from dnnkern.host.timing import ROUNDS, Clock, host_seconds, race
from dnnkern.host.words import add_notes
from dnnkern.warming import compile_jobs

from . import roof, shapes, table
from .machine import machine
from .peers import peers_of

CHOSEN = "chosen"  # in place of an algorithm's name: what get_algorithm answers
PEERS_MEMORY = 4 << 30  # bytes that PyTorch may keep from problem to problem
HOPELESS = 30.0  # algorithms predicted to be this many times slower than the best are timed only when asked for


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    p = argparse.ArgumentParser(prog="python -m dnnkern bench", description="Time every algorithm of an operation against its peers.")
    p.add_argument("op", help="an operation, say matmul; graph for operation graphs, torch for PyTorch programs, compile for "
                   "compiled ones, jax for JAX programs, with options of their own")
    p.add_argument("--problem", action="append", default=[], metavar="SIZES", help="a problem instead of a set, say 512x512x64; repeatable")
    add_options(p.add_argument)
    p.add_argument("--json", metavar="FILE", help="append the rows as JSON lines")
    p.add_argument("--device", type=int, default=None)
    return p


def add_options(add, *, configurations=3, dtype="float32"):
    """The options that pytest has too; `add`: a parser's ``add_argument``."""
    add("--set", default=None, metavar="NAMES", help="named sets of problems, with commas, or all (default: the first one)")
    add("--first", type=int, default=None, metavar="N", help="the first N problems of each set and dtype alone (0: all of them)")
    add("--dtype", default=dtype, help=f"one or several, with commas (default {dtype})")
    add("--layout", default="", help="nn, nt, tn, tt, nchw, nhwc, with commas; default: the set's own")
    add("--math", default=None, choices=("tf32", "fast"))
    add("--algo", default="", help="only these algorithms, with commas; chosen: only the one that get_algorithm answers")
    add("--configs", type=int, default=configurations, metavar="N",
        help=f"configurations of each algorithm, best estimate first (default {configurations})")
    add("--turns", type=int, default=ROUNDS, metavar="N",
        help=f"timed batches of each algorithm and peer, of which the median counts (default {ROUNDS})")
    add("--heuristic", action="store_true", help="print how much slower than the best measured the estimates' choice is")
    add("--jobs", type=int, default=1, metavar="N", help="compile everything first, in N processes, while the GPU waits")
    add("--all", action="store_true", help="time algorithms too that are predicted to be hopeless")
    add("--no-peers", action="store_true", help="dnnkern's algorithms alone")
    add_notes(add)


def main(argv=None) -> int:
    """Parse the arguments and run; the exit status: 1 if a result of ours was wrong or a kernel failed."""
    argv = sys.argv[1:] if argv is None else list(argv)
    if argv[:1] == ["graph"]:
        from . import graph
        return graph.main(argv[1:])
    if argv[:1] == ["compile"]:
        from . import compiled
        return compiled.main(argv[1:])
    if argv[:1] == ["jax"]:
        from . import jax_programs
        return jax_programs.main(argv[1:])
    if argv[:1] == ["torch"]:
        from . import programs
        return programs.main(argv[1:])
    return run(parser().parse_args(argv))


def run(args) -> int:
    """Run with parsed arguments, as `parser` makes them."""
    device = dispatch.device_of(dispatch.current_device() if args.device is None else args.device)
    rows = measure(args, device)
    print()
    for line in table.summary(rows, args.heuristic):
        print(line)
    if not rows:
        print("nothing was measured")
    return int(any(r["status"] != "ok" and not r["is_peer"] for r in rows))


def selected(args) -> list:
    """The cases that the arguments ask for, each with the name of its set ("" for one that is written in words)."""
    module = shapes.of(args.op)
    layouts, dtypes = tuple(filter(None, args.layout.split(","))), args.dtype.split(",")
    if args.problem:
        return [("", case) for text in args.problem for case in module.parse(text, tuple(dtypes), layouts, args.math)]
    if args.set is None and SIMULATED:
        return [("tiny", shapes.tiny(args.op))]
    names = list(module.SETS) if args.set == "all" else (args.set or next(iter(module.SETS))).split(",")
    return [(name, case) for name in names for dtype in dtypes
            for case in module.cases(name, (dtype,), layouts, args.math)[:args.first or None]]


def limits(args):
    """Which notes the arguments allow and exclude, as keywords."""
    return {"allow": args.allow, "exclude": args.exclude}


def compile_ahead(jobs, device, work, args):
    """Put every kernel that will be timed into the disk cache, in `jobs` processes: one compile takes a core, and a second or more.

    `work`: a case and the names of its algorithms, None for all of them, as often as there are cases.
    """
    if jobs > 1 and not SIMULATED:
        wanted = {}
        for case, names in work:
            with contextlib.suppress(Exception):  # what fails here fails again when timed
                algorithms = [t.algorithm for t in CaseBench(case, device, limits=limits(args)).trials(args, names)]
                for a in (*algorithms, reference_of(case.op, case.problem, device)):
                    wanted.setdefault((case.problem, str(a)), Job(case.op, case.problem, device, a.name, a.config))
        compile_jobs(list(wanted.values()), workers=jobs)


def measure(args, device) -> list:
    """Measure and print problem by problem; all rows."""
    cases, rows = list(dict.fromkeys(case for _, case in selected(args))), []
    wanted(args, args.op)
    compile_ahead(args.jobs, device, [(case, None) for case in cases], args)
    peers, missing = ([], {}) if args.no_peers else peers_of(args.op)
    record = machine(device)
    clocks = record["clocks"]
    print(f"{device.name}, {device.arch}; commit {record['commit']}" + (
        f"; driver {clocks['driver_version']}, SM clock {clocks['clocks.sm']} of {clocks['clocks.max.sm']} MHz, {clocks['power.draw']} of "
        f"{clocks['power.limit']} W" if clocks else ""))
    for name, reason in missing.items():
        print(f"no peer {name}: {reason}")
    if not (args.no_peers or peers or missing):
        print(f"no peer: no library here has {args.op}")
    with Clock(device.index) as clock:
        roofs = roof.measure_roofs(device, clock, sorted({roof.unit_of(c.problem) for c in cases} | {"fma"}))
        for line in table.roof_lines(roofs):
            print(line)
        for number, case in enumerate(cases, 1):
            started = time.perf_counter()
            bench = CaseBench(case, device, clock, peers, roofs, limits(args))
            found = bench.rows(args)
            release(clock)
            rows += found
            left = f", {len(bench.hopeless)} hopeless left out" if bench.hopeless else ""
            note()
            table.show(f"\n[{number}/{len(cases)}] {case}  [{time.perf_counter() - started:.1f} s{left}]", found)
            if args.json:
                with open(args.json, "a") as file:
                    file.writelines(json.dumps(plain({**r, "roofs": roofs, "machine": record})) + "\n" for r in found)
    return rows


def release(clock):
    """Let go of a problem's graphs, and of what PyTorch then keeps for later where it is much: the next problem's arrays need room."""
    clock.release()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.memory_reserved() > PEERS_MEMORY:
        gc.collect()
        torch.cuda.empty_cache()


def wanted(args, op) -> set:
    """The names of ``--algo``; ValueError where the operation lacks one of them."""
    names, known = set(filter(None, args.algo.split(","))), [a.name for a in dispatch.algorithms(op)]
    unknown = names - {*known, CHOSEN}
    if unknown:
        raise ValueError(f"bench: {op} has no algorithm {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return names


class CaseBench:
    """One case measured.

    Attributes
    ----------
    hopeless : dict
        Of the algorithms left out, by name and configuration: how many times the best one's time they are predicted to take.
    """

    def __init__(self, case, device, clock=None, peers=(), roofs=None, limits=None):
        self.case, self.problem, self.operation, self.device = case, case.problem, operation_of(case.op), device
        self.clock, self.peers, self.roofs, self.limits, self.hopeless = clock, peers, roofs or {}, limits or {}, {}

    def trials(self, args, names=None) -> list:
        """What to time, of `names` alone where they are given; the configuration that `get_algorithm` answers is always among it."""
        problem, device, named = self.problem, self.device, wanted(args, self.operation.op)
        found = candidates(self.operation.op, problem, device, configurations=args.configs, **self.limits)
        chosen = dispatch.get_algorithm(self.operation.op, problem, device=device, prefer="device", **self.limits)
        self.chosen = self._key(chosen)
        self.estimates = {self._key(a): a.seconds(problem, device) for a in found}
        self.predicted = min(self.estimates, key=self.estimates.get)
        if self.chosen not in self.estimates:
            found.append(chosen)
            self.estimates[self.chosen] = chosen.seconds(problem, device)
        if named:
            found = [a for a in found if a.name in named or CHOSEN in named and self._key(a) == self.chosen]
        elif not args.all:
            least = self.estimates[self.predicted]
            self.hopeless = {key: t / least for key, t in self.estimates.items() if t > HOPELESS * least and key != self.chosen}
            found = [a for a in found if self._key(a) not in self.hopeless]
        return [Trial(a, problem, device) for a in found if names is None or a.name in names or CHOSEN in names]

    @staticmethod
    def _key(algorithm):
        return algorithm.name, algorithm.config_text

    def rows(self, args, names=None, timed=True, host=True) -> list:
        """Gate, time, and describe every trial and peer: ours fastest first, then what failed, then the peers.

        Parameters
        ----------
        args : the parsed options
        names : collection of str, optional
            Of these algorithms and peers alone.
        timed : bool
            Whether they are timed once they have passed the gate.
        host : bool
            Whether the host's time is measured too.
        """
        trials, clock = self.trials(args, names), self.clock
        with Operands(self.operation, self.problem, self.device) as operands:
            reference = reference_of(self.case.op, self.problem, self.device)
            set_reference(self.operation, self.problem, reference, operands, self.device, clock)
            good = []
            for number, trial in enumerate(trials, 1):
                note(f"{self.case}: checking {trial.algorithm.name}, {number} of {len(trials)}")
                if trial.prepare(self.operation, operands, clock):
                    good.append(trial)
            note(f"{self.case}: measuring {len(good)} in turns")
            peers = self._peers(operands, names)
            right = [p for p, error in peers.values() if error is None]
            contenders = [t.contender(operands, clock) for t in good] + [c for p in right for c in (p.contender, p.less) if c is not None]
            times = race(contenders, clock, rounds=args.turns) if timed else {}
            for p in right:
                if p.less is not None and timed:
                    times[p.contender.name] = times[p.contender.name].less(times.pop(p.less.name).median)
            host = self._host_times(operands, good, times) if timed and host else {}
            best_peer = min((times[name].median for name in peers if name in times), default=None)
            ours = [self._row(t, times.get(t), best_peer, host.get(t.algorithm.name)) for t in trials]
            ours.sort(key=lambda r: (r["status"] != "ok", r["time_us"] or 0.0))
            return ours + [self._peer_row(name, times.get(name), error, host.get(name)) for name, (_, error) in peers.items()]

    def _peers(self, operands, names):
        """{name: (Peer, why it is not timed)}."""
        found = {}
        for module in self.peers:
            if names is not None and module.NAME not in names:
                continue
            try:
                peer = module.make(self.case, operands, self.clock)
                if peer is not None:
                    error = operands.wrong(peer.write, peer.tolerance, peer.results)
                    found[module.NAME] = peer, error and f"WRONG: {error}"
            except Exception as error:  # a library that fails must not hide what ours measure
                found[module.NAME] = None, f"{type(error).__name__}: {error}"
        return found

    def _host_times(self, operands, good, times):
        """{algorithm: seconds of host time of the public call}: on torch's tensors, beside torch's own calls, or on Numba arrays.

        A program after a product or a convolution is a graph's (`graph.py`): no public function takes one.
        """
        if HOST_MEMORY or getattr(self.problem, "program", None) is not None and self.case.op[:6] != "fused_":
            return {}
        try:
            import torch

            from .torch_arrays import tensors
            arrays, torch_peer = tensors(operands, 0), next((p for p in self.peers if p.NAME == "torch"), None)
            synchronize = torch.cuda.synchronize
        except ImportError:
            from numba import cuda
            arrays = {name: _numba_array(operands, name) for name in (*operands.tensors, *operands.outputs)}
            torch_peer, synchronize = None, cuda.synchronize
        found = {}
        for trial in good:
            name = trial.algorithm.name
            if name not in found:
                call = self.case.bind(arrays, algo=name, **self.limits) if hasattr(self.case, "bind") else (
                    lambda: self.case.call(arrays, algo=name, **self.limits))
                found[name] = host_seconds(call, synchronize, device_seconds=times[trial].median)
        if torch_peer is not None and times.get("torch"):
            found["torch"] = host_seconds(torch_peer.plain_call(self.case, arrays), synchronize, device_seconds=times["torch"].median)
        return found

    def _row(self, trial, sample, best_peer, host):
        algorithm = trial.algorithm
        key = self._key(algorithm)
        row = self._numbers(sample, trial.error)
        row.update(algo=key[0], config=key[1], is_peer=False, chosen=key == self.chosen, predicted=key == self.predicted,
                   estimate_us=1e6 * self.estimates[key], host_us=host and 1e6 * host, workspace=trial.memory,
                   notes=algorithm.notes.names + ([] if algorithm.math == "exact" else [algorithm.math]),
                   ratio=best_peer / sample.median if best_peer and sample else None)
        return row

    def _peer_row(self, name, sample, error, host):
        row = self._numbers(sample, error)
        row.update(algo=name, config="", is_peer=True, chosen=False, predicted=False, estimate_us=None, host_us=host and 1e6 * host,
                   workspace=0, notes=[], ratio=None)
        return row

    def _numbers(self, sample, error):
        problem = self.problem
        row = {"op": self.operation.op, "problem": str(self.case), "record": dispatch.problem_record(problem), "status": error or "ok"}
        names = ("time_us", "iqr_us", "tflops", "gbs", "roof")
        if sample is None:
            return {**row, **dict.fromkeys(names), "turns_us": (), "turns": 0, "calls": 0}
        seconds, floor = sample.median, roof.floor_seconds(problem, self.roofs)
        values = 1e6 * seconds, 1e6 * sample.iqr, problem.flops / seconds / 1e12, problem.bytes / seconds / 1e9, floor and floor / seconds
        return {**row, **dict(zip(names, values)), "turns_us": [1e6 * t for t in sample.times], "turns": len(sample.times),
                "calls": sample.calls}


def _numba_array(operands, name):
    from numba import cuda

    from dnnkern.host.arrays import view
    array = operands.array(0, name)
    return None if array is None else view(cuda.as_cuda_array(array), array.tensor.dtype)

"""Every algorithm against its peers on named problems: what ``python -m dnnkern bench`` runs.

A pair of algorithm and problem is timed only after its result on that very problem agreed with the naive algorithm's. Ours and the peers
take turns on the same memory; see README.md for the method.
"""
import argparse
import contextlib
import importlib
import json
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path

from dnnkern import dispatch
from dnnkern.device import SIMULATED
from dnnkern.dispatch import plain
from dnnkern.find import Trial, candidates, config_text, note_names, operation_of, reference_of, set_reference
from dnnkern.host.compile import cache_key, compile_kernel
from dnnkern.host.operands import Operands
from dnnkern.host.timing import Clock, host_seconds, race

from . import roof, table
from .machine import machine
from .peers import peers_of

HOPELESS = 30.0  # algorithms predicted to be this many times slower than the best are timed only when asked for


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    p = argparse.ArgumentParser(prog="python -m dnnkern bench", description="Time every algorithm of an operation against its peers.")
    p.add_argument("op", help="operation, say matmul")
    p.add_argument("--set", default=None, help="named set of problems, or all (default: the first one)")
    p.add_argument("--problem", action="append", default=[], metavar="SIZES", help="a problem instead of a set, say 512x512x64; repeatable")
    p.add_argument("--dtype", default="float32", help="one or several, with commas")
    p.add_argument("--layout", default="", help="nn, nt, tn, tt, with commas; default: the set's own")
    p.add_argument("--math", default=None, choices=("tf32", "fast"))
    p.add_argument("--algo", default="", help="only these algorithms, with commas")
    p.add_argument("--configs", type=int, default=3, help="configurations of each algorithm, the most promising first (default 3)")
    p.add_argument("--heuristic", action="store_true", help="print how much slower than the best measured the estimates' choice is")
    p.add_argument("--jobs", type=int, default=1, metavar="N", help="compile everything first, in N processes, while the GPU waits")
    p.add_argument("--all", action="store_true", help="time algorithms too that are predicted to be hopeless")
    p.add_argument("--no-peers", action="store_true")
    p.add_argument("--allow-nondeterministic", action="store_true")
    p.add_argument("--json", metavar="FILE", help="append the rows as JSON lines")
    p.add_argument("--device", type=int, default=None)
    return p


def main(argv=None) -> int:
    """Parse the arguments and run; the exit status: 1 if a result was wrong or a kernel failed."""
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
    return int(any(r["status"] != "ok" for r in rows))


def selected(args) -> list:
    """The cases that the arguments ask for."""
    known = sorted(p.stem for p in (Path(__file__).parent / "shapes").glob("[a-z]*.py"))
    if args.op not in known:
        raise ValueError(f"bench: no problems are named for {args.op!r}; there are some for {', '.join(known)}")
    shapes = importlib.import_module(f"bench.shapes.{args.op}")
    options = dict(dtypes=tuple(args.dtype.split(",")), layouts=tuple(filter(None, args.layout.split(","))), math=args.math)
    if args.problem:
        return [case for text in args.problem for case in shapes.parse(text, **options)]
    return shapes.cases(args.set or next(iter(shapes.SETS)), **options)


def compile_ahead(args, device):
    """Put every kernel that will be timed into the disk cache, in `args.jobs` processes: one compile takes a core, and a second or more."""
    if args.jobs > 1 and not SIMULATED:
        with ProcessPoolExecutor(args.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
            list(pool.map(compile_share, repeat(args), repeat(device), range(args.jobs)))


def compile_share(args, device, share) -> int:
    """Compile the kernels whose keys fall to one of `args.jobs` processes; how many there were. What fails here fails again when timed."""
    operation, done = operation_of(args.op), 0
    for case in selected(args):
        bench = CaseBench(case, operation, device, None, (), {})
        algorithms = [t.algorithm for t in bench.trials(set(filter(None, args.algo.split(","))), args.configs, args.all)]
        for algorithm in (*algorithms, reference_of(args.op, case.problem, device)):
            for launch in algorithm.build(case.problem, device, algorithm.config):
                if int(cache_key(launch.kernel, launch.signature, device.arch)[:8], 16) % args.jobs == share:
                    with contextlib.suppress(Exception):
                        compile_kernel(launch.kernel, launch.signature, device.arch)
                        done += 1
    return done


def measure(args, device) -> list:
    """Measure and print problem by problem; all rows."""
    compile_ahead(args, device)
    cases, rows, operation = selected(args), [], operation_of(args.op)
    peers, missing = ([], []) if args.no_peers else peers_of(args.op)
    record = machine(device)
    clocks = record["clocks"]
    print(f"{device.name}, {device.arch}; commit {record['commit']}" + (
        f"; driver {clocks['driver_version']}, SM clock {clocks['clocks.sm']} of {clocks['clocks.max.sm']} MHz, {clocks['power.draw']} of "
        f"{clocks['power.limit']} W" if clocks else ""))
    for reason in missing:
        print(f"no peer {reason}")
    allow = dispatch.Note.NONDETERMINISTIC if args.allow_nondeterministic else dispatch.Note.NONE
    wanted = set(filter(None, args.algo.split(",")))
    unknown = wanted - {a.name for a in dispatch.algorithms(args.op)}
    if unknown:
        raise ValueError(f"bench: {args.op} has no algorithm {', '.join(sorted(unknown))}; there are "
                         f"{', '.join(a.name for a in dispatch.algorithms(args.op))}")
    with Clock(device.index) as clock:
        roofs = roof.measure_roofs(device, clock, sorted({roof.unit_of(c.problem) for c in cases} | {"fma"}))
        for name, rate in roofs.items():
            print(f"roof {name}: {rate / 1e9:.0f} GB/s" if name == "copy" else f"roof {name}: {rate / 1e12:.1f} TFLOP/s")
        for case in cases:
            started = time.perf_counter()
            bench = CaseBench(case, operation, device, clock, peers, roofs, allow)
            found = bench.rows(wanted, args.configs, args.all)
            clock.release()
            rows += found
            left = f", {bench.left_out} hopeless left out" if bench.left_out else ""
            table.show(f"\n{case}  [{time.perf_counter() - started:.1f} s{left}]", found)
            if args.json:
                with open(args.json, "a") as file:
                    file.writelines(json.dumps(plain({**r, "roofs": roofs, "machine": record})) + "\n" for r in found)
    return rows


class CaseBench:
    """One case measured."""

    def __init__(self, case, operation, device, clock, peers, roofs, allow=dispatch.Note.NONE):
        self.case, self.problem, self.operation, self.device = case, case.problem, operation, device
        self.clock, self.peers, self.roofs, self.allow, self.left_out = clock, peers, roofs, allow, 0

    def trials(self, wanted, configurations, everything) -> list:
        """What to time; the configuration that `get_algorithm` answers is always among it."""
        problem, device = self.problem, self.device
        found = candidates(self.operation.op, problem, device, allow=self.allow, configurations=configurations)
        chosen = dispatch.get_algorithm(self.operation.op, problem, allow=self.allow, device=device)
        self.chosen = chosen.name, config_text(chosen)
        self.estimates = {(a.name, config_text(a)): a.estimate(problem, device, a.config) for a in found}
        self.predicted = min(self.estimates, key=self.estimates.get)
        if self.chosen not in self.estimates:
            found.append(chosen)
            self.estimates[self.chosen] = chosen.estimate(problem, device, chosen.config)
        if wanted:
            found = [a for a in found if a.name in wanted]
        elif not everything:
            limit = HOPELESS * self.estimates[self.predicted]
            kept = [a for a in found if self.estimates[a.name, config_text(a)] <= limit or (a.name, config_text(a)) == self.chosen]
            self.left_out, found = len(found) - len(kept), kept
        return [Trial(a, problem, device) for a in found]

    def rows(self, wanted=(), configurations=3, everything=False) -> list:
        """Gate, time, and describe every trial and peer: ours fastest first, then what failed, then the peers."""
        trials, clock = self.trials(wanted, configurations, everything), self.clock
        with Operands(self.operation, self.problem, self.device) as operands:
            set_reference(self.operation, self.problem, operands, self.device, clock)
            good = [t for t in trials if t.prepare(self.operation, operands, clock)]
            peers = self._peers(operands)
            right = [p for p, error in peers.values() if error is None]
            contenders = [t.contender(operands, clock) for t in good] + [c for p in right for c in (p.contender, p.less) if c is not None]
            times = race(contenders, clock)
            for p in right:
                if p.less is not None:
                    times[p.contender.name] = times[p.contender.name].less(times.pop(p.less.name).median)
            host = self._host_times(operands, good, times)
            best_peer = min((times[name].median for name in peers if name in times), default=None)
            ours = [self._row(t, times.get(t), best_peer, host.get(t.algorithm.name)) for t in trials]
            ours.sort(key=lambda r: (r["status"] != "ok", r["time_us"] or 0.0))
            return ours + [self._peer_row(name, times.get(name), error, host.get(name)) for name, (_, error) in peers.items()]

    def _peers(self, operands):
        """{name: (Peer, why it is not timed)}."""
        found = {}
        for module in self.peers:
            peer = module.make(self.case, operands, self.clock)
            if peer is not None:
                error = operands.wrong(peer.write, peer.tolerance, peer.results)
                found[module.NAME] = peer, error and f"WRONG: {error}"
        return found

    def _host_times(self, operands, good, times):
        """{algorithm: seconds of host time of the public call}: on torch's tensors, beside torch's own calls, or on Numba arrays."""
        if SIMULATED:
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
                found[name] = host_seconds(lambda: self.case.call(arrays, algo=name, allow=self.allow), synchronize,
                                           device_seconds=times[trial].median)
        if torch_peer is not None and times.get("torch"):
            found["torch"] = host_seconds(torch_peer.plain_call(self.case, arrays), synchronize, device_seconds=times["torch"].median)
        return found

    def _row(self, trial, sample, best_peer, host):
        algorithm = trial.algorithm
        key = algorithm.name, config_text(algorithm)
        row = self._numbers(sample, trial.error)
        row.update(algo=key[0], config=key[1], is_peer=False, chosen=key == self.chosen, predicted=key == self.predicted,
                   estimate_us=1e6 * self.estimates[key], host_us=host and 1e6 * host, workspace=trial.memory,
                   notes=note_names(algorithm.notes) + ([] if algorithm.math == "exact" else [algorithm.math]),
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
            return {**row, **dict.fromkeys(names), "turns": 0, "calls": 0}
        seconds, floor = sample.median, roof.floor_seconds(problem, self.roofs)
        values = 1e6 * seconds, 1e6 * sample.iqr, problem.flops / seconds / 1e12, problem.bytes / seconds / 1e9, floor and floor / seconds
        return {**row, **dict(zip(names, values)), "turns": len(sample.times), "calls": sample.calls}


def _numba_array(operands, name):
    from numba import cuda

    from dnnkern.host.arrays import view
    array = operands.array(0, name)
    return None if array is None else view(cuda.as_cuda_array(array), array.tensor.dtype)

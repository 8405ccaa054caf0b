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
from dnnkern.dispatch import reference_of
from dnnkern.host.ahead import Compilation
from dnnkern.host.compiler import Job
from dnnkern.host.paths import cache_dir, plain
from dnnkern.host.timing import ROUNDS, WINDOW, Clock
from dnnkern.host.words import add_notes
from dnnkern.report.rows import opened

from . import drawn, roof, sensors, shapes, table
from .case import HOPELESS, CaseBench, names_of
from .machine import machine
from .peers import peers_of

PEERS_MEMORY = 4 << 30  # bytes that PyTorch may keep from problem to problem


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    p = argparse.ArgumentParser(prog="python -m dnnkern bench", description="Time every algorithm of an operation against its peers.")
    p.add_argument("op", help="an operation, say matmul; graph for operation graphs, torch for PyTorch programs, compile for "
                   "compiled ones, jax for JAX programs, record for all sets of all operations, profile for what is slow, with options of "
                   "their own")
    p.add_argument("--problem", action="append", default=[], metavar="SIZES", help="a problem instead of a set, say 512x512x64; repeatable")
    add_options(p.add_argument)
    p.add_argument("--json", metavar="FILE", help="append the rows as JSON lines")
    p.add_argument("--device", type=int, default=None)
    return p


def add_options(add, *, configurations=3, drawn_configurations=2, dtype="float32"):
    """The options that pytest has too; `add`: a parser's ``add_argument``."""
    add("--set", default=None, metavar="NAMES", help="named sets of problems, with commas, or all (default: the first one); random: "
        f"problems near those of the sets, with other sizes; {drawn.COUNT} unless --first says how many")
    add("--first", type=int, default=None, metavar="N", help="the first N problems of each set and dtype alone (0: all of them)")
    add("--dtype", default=dtype, help=f"one or several, with commas (default {dtype})")
    add("--layout", default="", help="nn, nt, tn, tt, nchw, nhwc, with commas; default: the set's own")
    add("--math", default=None, choices=("tf32", "fast"))
    add("--algo", default="", help="only these algorithms, with commas; chosen: only the one that get_algorithm answers")
    add("--configs", type=int, default=configurations, metavar="N",
        help=f"configurations of each algorithm, best estimate first (default {configurations})")
    add("--turns", type=int, default=ROUNDS, metavar="N",
        help=f"timed batches of each algorithm and peer, of which the median counts (default {ROUNDS})")
    add("--window", type=float, default=WINDOW, metavar="SECONDS",
        help=f"device work of a timed batch; before each batch the device idles five times as long (default {WINDOW:g})")
    add("--random", type=int, default=drawn_configurations, metavar="N",
        help=f"time N configurations too that the estimates would not try, drawn at random (default {drawn_configurations})")
    add("--sustained", type=float, default=0.0, metavar="SECONDS",
        help="run what is chosen and the fastest peer that long without a pause too, and record the energy of a call")
    add("--heuristic", action="store_true", help="print how much slower than the best measured the estimates' choice is")
    add("--jobs", type=int, default=1, metavar="N", help="compile everything first, in N processes, while the GPU waits")
    add("--all", action="store_true", help="time algorithms too that are predicted to be hopeless")
    add("--within", type=float, default=HOPELESS, metavar="TIMES",
        help=f"which are those that should take this many times as long as the best (default {HOPELESS:g}, the most)")
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
    if argv[:1] == ["record"]:
        from . import record
        return record.main(argv[1:])
    if argv[:1] == ["profile"]:
        from . import profile
        return profile.main(argv[1:])
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
            for case in (drawn.cases(args.op, (dtype,), args.first or drawn.COUNT) if name == drawn.SET
                         else module.cases(name, (dtype,), layouts, args.math)[:args.first or None])]


def limits(args):
    """Which notes the arguments allow and exclude, as keywords."""
    return {"allow": args.allow, "exclude": args.exclude}


def compile_ahead(jobs, device, work, args):
    """Begin to put every kernel that will be timed into the disk cache, in `jobs` processes: one compile takes a core, and a second or
    more. This process goes on until it waits for it; a `Compilation`, None where nothing is compiled.

    `work`: a case and the names of its algorithms, None for all of them, as often as there are cases.
    """
    if jobs == 1 or SIMULATED or cache_dir() is None:
        return None
    wanted = {}
    for case, names in work:
        with contextlib.suppress(Exception):  # what fails here fails again when timed
            algorithms = [t.algorithm for t in CaseBench(case, device, limits=limits(args)).trials(args, names)]
            for a in (*algorithms, reference_of(case.op, case.problem, device)):
                wanted.setdefault((case.problem, str(a)), Job(case.op, case.problem, device, a.name, a.config))
    if not wanted:
        return None
    compilation = Compilation(device)
    compilation.compile(list(wanted.values()), jobs)
    compilation.go_on()
    return compilation


def measure(args, device) -> list:
    """Measure and print the problems that the arguments ask for; all rows."""
    sets = {case: name for name, case in reversed(selected(args))}  # of a case in several sets, the first
    names_of(args, args.op)
    cases = [(sets[case], case) for case in reversed(sets)]
    compilation = compile_ahead(args.jobs, device, [(case, None) for _, case in cases], args)
    if compilation is not None:
        compilation.wait()
    with Session(args, device, [case for _, case in cases]) as session:
        return [row for number, (name, case) in enumerate(cases, 1) for row in session.rows(name, case, f"[{number}/{len(cases)}]")]


class Session:
    """What all problems of a run share: the device, its clock and rates, the peers. A context manager.

    Attributes
    ----------
    machine : dict
        What goes with every row.
    roofs : dict
        Rates of the device, measured at the beginning.
    """

    def __init__(self, args, device, cases, host="all"):
        self.args, self.device, self.host, self.clock = args, device, host, Clock(device.index)
        self._units = sorted({roof.unit_of(case.problem) for case in cases} | {"fma"})
        self.machine, self._readings, self._peers = machine(device), sensors.of(device), {}
        if args.json and str(self.machine["commit"]).endswith("+") and not HOST_MEMORY:
            print("the tree has changes: the rows name no commit, and no page shows them", file=sys.stderr)

    def __enter__(self):
        clocks = self.machine["clocks"]
        print(f"{self.device.name}, {self.device.arch}; commit {self.machine['commit']}" + (
            f"; driver {clocks['driver_version']}, SM clock {clocks['clocks.sm']} of {clocks['clocks.max.sm']} MHz, "
            f"{clocks['power.draw']} of {clocks['power.limit']} W" if clocks else ""))
        self.clock.__enter__()
        self.roofs = roof.measure_roofs(self.device, self.clock, self._units)
        for line in table.roof_lines(self.roofs):
            print(line)
        return self

    def __exit__(self, *error):
        return self.clock.__exit__(*error)

    def peers(self, op):
        """Modules of the peers of an operation, and why others are missing; said once."""
        if op not in self._peers:
            self._peers[op] = found, missing = ([], {}) if self.args.no_peers else peers_of(op)
            for name, reason in missing.items():
                print(f"no peer {name}: {reason}")
            if not (self.args.no_peers or found or missing):
                print(f"no peer: no library here has {op}")
        return self._peers[op]

    def rows(self, name, case, number="", keep=lambda rows: rows) -> list:
        """Measure, print and write a case of the set of this name; of its rows what `keep` leaves is written."""
        started = time.perf_counter()
        peers, missing = self.peers(case.op)
        bench = CaseBench(case, self.device, self.clock, peers, self.roofs, limits(self.args), self._readings)
        try:
            found = [{**row, "set": name} for row in bench.rows(self.args, host=self.host)]
        finally:
            release(self.clock)
        for row in found:
            row["marks"] += [f"no {peer}" for peer in missing] * row["chosen"]
        left = f", {len(bench.hopeless)} hopeless left out" if bench.hopeless else ""
        note()
        table.show(f"\n{number} {case}  [{time.perf_counter() - started:.1f} s{left}]", found)
        if self.args.json:
            with opened(self.args.json, "at") as file:
                file.writelines(json.dumps(plain({**r, "roofs": self.roofs, "machine": self.machine})) + "\n" for r in keep(found))
        return found


def release(clock):
    """Let go of a problem's graphs, and of what PyTorch then keeps for later where it is much: the next problem's arrays need room."""
    clock.release()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.memory_reserved() > PEERS_MEMORY:
        gc.collect()
        torch.cuda.empty_cache()

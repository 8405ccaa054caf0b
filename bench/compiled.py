"""Compiled PyTorch programs: ``python -m dnnkern bench compile --set resnet50-train-64``.

The same program takes turns as it is, compiled by this library's backend, and by Inductor, in one process. First each has to give
PyTorch's results, and this library's the same bits twice. The seconds of a first step are those of a process of its own in which a
program has run as it is, with what earlier processes have left in caches on disk (``--cold``). Without a GPU programs are small.
With ``--against eager,inductor,calls,both`` two more ways take turns: "calls", the program as it is within `dnnkern.torch.enabled`, each
operator a plain call of this library; "both", compiled by this library's backend within it, so that losses and optimizers are its own too.

``--losses 200`` trains instead of timing: as it is, on PyTorch's kernels in other orders of additions, and compiled
by both.
"""
import argparse
import contextlib
import functools
import json
import statistics
import subprocess
import sys
import time

from dnnkern import _table, dispatch

from .machine import machine
from .programs import ROOT, SECONDS, TOLERANCE, TOP, WARM, Bench, kernels_of, losses_beside, print_kernels

WHOS = "eager", "ours", "inductor", "calls", "both"
COMPILED = "ours", "inductor", "both"


def parser(sets):
    """The command's arguments."""
    p = argparse.ArgumentParser(prog="python -m dnnkern bench compile", description="Time compiled PyTorch programs.")
    p.add_argument("--set", default="all", metavar="NAMES", help=f"programs, with commas: {', '.join(sets)} (default: all)")
    p.add_argument("--against", default="eager,inductor", metavar="NAMES", help=f"of {', '.join(WHOS)} (default eager,inductor)")
    p.add_argument("--mode", default=None, help="torch.compile's: reduce-overhead")
    p.add_argument("--turns", type=int, default=7, metavar="N", help="turns of each, of which the median counts (default 7)")
    p.add_argument("--steps", type=int, default=10, metavar="N", help="steps whose losses are compared (default 10)")
    p.add_argument("--losses", type=int, metavar="N", help="compare the losses of N steps instead of timing")
    p.add_argument("--cold", action="store_true", help="a first step in processes of their own, too")
    p.add_argument("--ops", default="heavy", metavar="NAMES", help="what is overridden in calls and both, as run has it (default heavy)")
    p.add_argument("--exclude", default="", metavar="NAMES", help="operators or groups that stay PyTorch's there")
    p.set_defaults(convert=False, find=False)
    p.add_argument("--first", choices=WHOS, help="only print the seconds of a first step")
    p.add_argument("--kernels", action="store_true", help="print the kernels that took longest")
    p.add_argument("--raises", action="store_true", help="let what fails raise")
    p.add_argument("--json", metavar="FILE", help="append the rows as JSON lines")
    return p


class Compiled(Bench):
    """One program, in each of the ways."""

    def by(self, who):
        """() -> the program, whose model is compiled."""
        def make():
            torch, program = self.torch, self.made()
            if who in COMPILED:
                from dnnkern.torch.compiler import backend
                # `model.compile()` would leave the frame of an `nn.Sequential` to Python, and compile its layers one by one
                program.model.forward = torch.compile(program.model.forward, fullgraph=True, mode=self.args.mode,
                                                      backend="inductor" if who == "inductor" else backend)
            return program
        return make

    def within(self, who):
        """What a program of this way runs in, a context manager."""
        return self.overrides() if who in ("calls", "both") else contextlib.nullcontext()


def first_step(args):
    """Print the seconds of a first step, compiled, after one as it is."""
    bench = Compiled(args.set, args)
    bench.made().step()
    program = bench.by(args.first)()
    bench.wait()
    started = time.perf_counter()
    with bench.within(args.first):
        program.step()
        bench.wait()
    print(time.perf_counter() - started)
    return 0


def first_seconds(name, who, args):
    """What `first_step` prints, in a process of its own."""
    words = ["--set", name, "--first", who, *(["--mode", args.mode] if args.mode else [])]
    done = subprocess.run([sys.executable, "-m", "dnnkern", "bench", "compile", *words], capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise RuntimeError((done.stderr.splitlines() or ["a first step failed"])[-1])
    return float(done.stdout.splitlines()[-1])


def trained(name, args):
    """A row: losses of trainings, ours, Inductor's, which leaves out roundings as ours does, and PyTorch's; and whether another one of ours
    gives the same bits."""
    bench = Compiled(name, args)

    def by(who):
        bench.torch._dynamo.reset()
        with bench.within(who):
            return bench.results(args.losses, bench.by(who))[0]
    row = losses_beside(bench, **{who: functools.partial(by, who) for who in ("ours", *args.against.split(",")) if who != "eager"})
    return {"op": "compile", "problem": name, "mode": args.mode, **row,
            "same_bits": bool((by("ours") == bench.torch.tensor(row["losses"], dtype=bench.torch.float64)).all())}


def measured(name, args):
    """A row: times, share of the device's time that is ours, results, memory."""
    import torch
    bench, whos = Compiled(name, args), ["ours", *args.against.split(",")]
    torch._dynamo.config.recompile_limit = 64
    theirs, _, _ = bench.results(args.steps)
    spread = (bench.results(args.steps)[0] - theirs).abs().max().item()
    size, row = theirs.abs().max().item(), {"op": "compile", "problem": name, "mode": args.mode, "status": "ok"}
    if "calls" in whos:
        with bench.overrides():
            bench.compiled()
    for who in whos:
        torch._dynamo.reset()
        with bench.within(who):
            found, row[f"{who}_warm_first_s"], row[f"{who}_memory"] = bench.results(args.steps, bench.by(who))
        row[f"{who}_error"] = (found - theirs).abs().max().item() / size
        if who == "ours":
            row.update(same_bits=bool((bench.results(args.steps, bench.by(who))[0] == found).all()), losses=found.flatten()[:20].tolist())
    row.update(eager_spread=spread / size, eager_losses=theirs.flatten()[:20].tolist())
    for who in whos:
        if who not in ("eager", "inductor") and not row[f"{who}_error"] <= TOLERANCE:
            return {**row, "status": f"WRONG: the results ({who}) differ by {row[f'{who}_error']:.3g} of the largest"}
    row.update({f"{who}_first_s": first_seconds(name, who, args) for who in whos if who != "eager" and args.cold})
    torch._dynamo.reset()
    made, turns = {who: bench.by(who)() for who in whos}, {who: [] for who in whos}
    for who, program in made.items():
        with bench.within(who):
            bench.turn(program, 3)
    ms = bench.turn(made["ours"], 2)[0]
    steps, before = (max(1, min(64, round(1e3 * seconds / ms))) for seconds in (SECONDS, WARM))
    for _ in range(args.turns):
        for who, program in made.items():
            with bench.within(who):
                bench.turn(program, before)
                turns[who].append(bench.turn(program, steps))
    for who, found in turns.items():
        row[f"{who}_ms"] = statistics.median(ms for ms, _ in found)
        row[f"{who}_host_ms"] = statistics.median(host for _, host in found)
        row[f"{who}_turns"] = [ms for ms, _ in found]
    row.update({f"of_{who}": row[f"{who}_ms"] / row["ours_ms"] for who in whos[1:]})
    for who, program in made.items():
        with bench.within(who):
            kernels, _ = bench.kernels(program)
        if kernels:
            row.update(kernels_of(kernels, who, 3 * TOP))
            if args.kernels:
                print_kernels(who, kernels)
    return row


def main(argv) -> int:
    """Measure the programs that the arguments name; 1 if one gave wrong results or failed."""
    import torch

    from . import models
    args = parser(models.SETS).parse_args(argv)
    if args.first:
        return first_step(args)
    names = list(models.SETS) if args.set == "all" else args.set.split(",")
    for name in names:
        if name not in models.SETS:
            raise ValueError(f"bench compile: --set {name}; expected all, or of {', '.join(models.SETS)}")
    for who in args.against.split(","):
        if who not in WHOS:
            raise ValueError(f"bench compile: --against {who}; expected of {', '.join(WHOS)}")
    torch.backends.cudnn.benchmark = True
    device, rows = dispatch.device_of(dispatch.current_device()), []
    for name in names:
        try:
            row = (trained if args.losses else measured)(name, args)
        except Exception as error:
            if args.raises:
                raise
            row = {"op": "compile", "problem": name, "status": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}
        rows.append(row)
        shown = ("difference", "inductor_difference", "spread", "same_bits") if args.losses else ()
        print(f"{name}: {row['status']}", *(f"{what} {row[what]:.3g}" for what in shown if what in row), flush=True)
        if args.json:
            with open(args.json, "a", encoding="utf-8") as file:
                file.write(json.dumps({**row, "machine": machine(device)}) + "\n")
    if args.losses:
        return int(any(row["status"] != "ok" for row in rows))
    print()
    _table.show(("program", "ours (ms)", "eager (ms)", "Inductor (ms)", "x eager", "x Inductor", "host, ours", "device, ours", "share",
                 "memory", "first (s)", "Inductor's"), [_shown(row) for row in rows])
    return int(any(row["status"] != "ok" for row in rows))


def _shown(row):
    def number(key, digits=3):
        return f"{row[key]:.{digits}g}" if row.get(key) is not None else None
    memory = row.get("eager_memory") and row["ours_memory"] / row["eager_memory"]
    return (row["problem"], *(number(f"{who}_ms", 4) for who in ("ours", "eager", "inductor")), number("of_eager"), number("of_inductor"),
            number("ours_host_ms"), number("ours_device_ms"), number("share"), memory and f"{memory:.2f}", number("ours_first_s"),
            number("inductor_first_s"))

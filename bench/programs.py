"""PyTorch programs, with overrides and without: ``python -m dnnkern bench torch --set resnet50-train-64``.

The same program takes turns with and without overrides, in one process. Before it is timed its kernels are compiled side by side
(`dnnkern.recording`), a first run of it has to give PyTorch's results, and a second the same bits. Without a GPU it is small.

With ``--convert`` layers are swapped (`dnnkern.torch.convert`) instead of operators overridden. ``--losses 200`` trains instead of
timing: with PyTorch, with PyTorch and other orders of additions, and with this library. ``--minutes 9`` trains that long without a pause,
and 15 s with PyTorch: what becomes of the step's time and of the memory, and the energy of a step.
"""
import argparse
import contextlib
import gc
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from dnnkern import _table, dispatch
from dnnkern.device import HOST_MEMORY
from dnnkern.host.paths import plain

from . import sensors
from .machine import machine

ROOT = Path(__file__).resolve().parent.parent
SECONDS, WARM = 0.2, 0.5  # of one turn, and before it: what is repeated is launched as graphs from the 17th time on
TOP = 12  # kernels that a row names
ENERGY = 15  # seconds with PyTorch beside it: its time and energy alone are asked for
WINDOWS = 54  # of a long training, ten seconds of nine minutes each
SHUFFLES = 3  # orders of a batch's samples whose losses are compared
TOLERANCE = 3e-2  # of the first losses, relative: they are computed in 16 bits


def main(argv) -> int:
    """Measure the programs that the arguments name; 1 if one gave wrong results or failed."""
    import torch

    import dnnkern.torch  # noqa: F401

    from . import models
    args = parser(models.SETS).parse_args(argv)
    if args.first:
        return first_step(args)
    names = list(models.SETS) if args.set == "all" else args.set.split(",")
    for name in names:
        if name not in models.SETS:
            raise ValueError(f"bench torch: --set {name}; expected all, or of {', '.join(models.SETS)}")
    torch.backends.cudnn.benchmark = True
    device = dispatch.device_of(dispatch.current_device())
    rows = []
    for name in names:
        try:
            row = (trained if args.losses else endured if args.minutes else measured)(name, args)
        except Exception as error:
            if args.raises:
                raise
            row = {"op": "torch", "problem": name, "status": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
        rows.append(row)
        shown = "ours_ms", "eager_ms", "of_eager", "share", "difference", "spread", "drift", "growth", "joules_of_eager"
        numbers = (f"{what} {row[what]:.3g}" for what in shown if what in row)
        print(f"{name}: {row['status']}", *numbers, flush=True)
        if args.json:
            with open(args.json, "a", encoding="utf-8") as file:
                file.write(json.dumps(plain({**row, "machine": machine(device)})) + "\n")
        gc.collect()
        if not HOST_MEMORY:
            torch.cuda.empty_cache()
    if not (args.losses or args.minutes):
        show(rows)
    return int(any(row["status"] != "ok" for row in rows))


def parser(sets):
    """The command's arguments."""
    p = argparse.ArgumentParser(prog="python -m dnnkern bench torch", description="Time PyTorch programs with overrides and without.")
    p.add_argument("--set", default="all", metavar="NAMES", help=f"programs, with commas: {', '.join(sets)} (default: all)")
    p.add_argument("--ops", default="heavy", metavar="NAMES", help="what is overridden, as run has it (default heavy)")
    p.add_argument("--exclude", default="", metavar="NAMES", help="operators or groups that stay PyTorch's")
    p.add_argument("--turns", type=int, default=7, metavar="N", help="turns of each, of which the median counts (default 7)")
    p.add_argument("--steps", type=int, default=10, metavar="N", help="steps whose losses are compared (default 10)")
    p.add_argument("--find", action="store_true", help="measure this library's convolutions too, as cudnn.benchmark does")
    p.add_argument("--kernels", action="store_true", help="print the kernels that took longest")
    p.add_argument("--convert", action="store_true", help="swap layers instead of overriding operators")
    p.add_argument("--losses", type=int, metavar="N", help="compare the losses of N steps instead of timing")
    p.add_argument("--minutes", type=float, metavar="N", help="train N minutes without a pause instead, and a while with PyTorch")
    p.add_argument("--first", action="store_true", help="only run one step, and print what a process that finds its kernels waits for")
    p.add_argument("--raises", action="store_true", help="let what fails raise")
    p.add_argument("--json", metavar="FILE", help="append the rows as JSON lines")
    return p


class Bench:
    """One program, with and without overrides."""

    def __init__(self, name, args):
        import torch
        self.torch, self.name, self.args = torch, name, args
        self.device = "cpu" if HOST_MEMORY else "cuda"

    def made(self):
        from . import models
        return models.made(self.name, self.device, small=HOST_MEMORY)

    def ours(self):
        """The program that runs on this library within `overrides`."""
        import dnnkern.torch
        program = self.made()
        if self.args.convert:
            dnnkern.torch.convert(program.model)
        return program

    @contextlib.contextmanager
    def overrides(self):
        import dnnkern.torch
        on = contextlib.nullcontext() if self.args.convert else dnnkern.torch.enabled(
            self.args.ops, exclude=tuple(filter(None, self.args.exclude.split(","))))
        with self.torch.backends.cudnn.flags(enabled=True, benchmark=self.args.find), on:
            yield

    def wait(self):
        if not HOST_MEMORY:
            self.torch.cuda.synchronize()

    def in_other_orders(self, steps):
        """[losses] of PyTorch where additions are in other orders: by its other kernels, of convolutions, products that are split, and
        attention; and with the samples of the batch in other orders."""
        matmul, kernel = self.torch.backends.cuda.matmul, self.torch.nn.attention
        allowed = matmul.allow_bf16_reduced_precision_reduction
        matmul.allow_bf16_reduced_precision_reduction = False
        try:
            with self.torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True), kernel.sdpa_kernel(
                    [kernel.SDPBackend.EFFICIENT_ATTENTION, kernel.SDPBackend.MATH]):
                found = [self.results(steps)[0]]
        finally:
            matmul.allow_bf16_reduced_precision_reduction = allowed
        return found + [self.results(steps, lambda: self.shuffled(seed))[0] for seed in range(SHUFFLES)]

    def shuffled(self, seed):
        """The program with its samples in another order."""
        program = self.made()
        order = self.torch.randperm(len(program.inputs[0]), generator=self.torch.Generator().manual_seed(seed)).to(self.device)
        program.inputs[:] = [self.torch.empty_like(x).copy_(x[order]) for x in program.inputs]
        return program

    def results(self, steps, make=None):
        """The losses of the first steps, or what is inferred; the seconds of the first step; the peak of memory in bytes."""
        program = (make or self.made)()
        self.wait()
        if not HOST_MEMORY:
            self.torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        found = [program.step()]
        self.wait()
        first = time.perf_counter() - started
        is_loss = found[0].dim() == 0
        found += [program.step() for _ in range(steps - 1 if is_loss else 0)]
        values = self.torch.stack(found).double().cpu() if is_loss else found[0].double().cpu()
        return values, first, 0 if HOST_MEMORY else self.torch.cuda.max_memory_allocated()

    def compiled(self):
        """Compile the kernels of a step, side by side."""
        import dnnkern
        started = time.perf_counter()
        program = self.ours()
        with dnnkern.recording() as recorded:
            program.step()
        self.wait()
        return {"kernels": recorded.compiled.kernels, "missing": recorded.compiled.missing, "compiled": recorded.compiled.done,
                "compile_failed": dict(recorded.compiled.failed), "compile_s": time.perf_counter() - started}

    def turn(self, program, steps):
        """(milliseconds a step, of which the host was busy)"""
        self.wait()
        started = time.perf_counter()
        for _ in range(steps):
            program.step()
        enqueued = time.perf_counter() - started
        self.wait()
        return 1e3 * (time.perf_counter() - started) / steps, 1e3 * enqueued / steps

    def endure(self, program, seconds, readings):
        """Step without a pause: [(milliseconds a step, bytes allocated, MHz)] of `WINDOWS` windows, and joules a step, None if not
        known."""
        found, count, steps = [], 0, 1
        self.turn(program, 3)
        before, started = readings.joules(), time.perf_counter()
        while time.perf_counter() - started < seconds:
            ms, _ = self.turn(program, steps)
            count += steps
            steps = max(1, round(1e3 * seconds / WINDOWS / ms))
            found.append((ms, 0 if HOST_MEMORY else self.torch.cuda.memory_allocated(), readings.read()["sm_mhz"]))
            print(f"{time.perf_counter() - started:6.1f} s: {ms:.2f} ms a step, {found[-1][1]} bytes", flush=True)
        after = readings.joules()
        return found, None if before is None else (after - before) / count

    def kernels(self, program):
        """[(name, milliseconds a step, calls a step)] of kernels, the longest first, and {operator: milliseconds a step}; empty without a
        GPU."""
        if HOST_MEMORY:
            return [], {}
        from torch.profiler import ProfilerActivity, profile
        self.wait()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
            program.step()
            program.step()
            self.wait()
        found = {}
        for event in profiled.events():
            if event.device_type.name == "CUDA" and not event.name.startswith("ProfilerStep"):
                ms, calls = found.get(event.name, (0.0, 0))
                found[event.name] = ms + event.device_time_total / 2e3, calls + 0.5
        operators = {average.key: average.self_device_time_total / 2e3 for average in profiled.key_averages()
                     if average.device_type.name == "CPU" and average.self_device_time_total}
        return sorted(((name, ms, calls) for name, (ms, calls) in found.items()), key=lambda row: -row[1]), operators


def first_step(args):
    """Print, as JSON, the seconds of ``enable()`` and of a program's first step."""
    import dnnkern.torch
    bench = Bench(args.set, args)
    program = bench.made()
    bench.wait()
    times = [time.perf_counter()]
    dnnkern.torch.enable(args.ops, exclude=tuple(filter(None, args.exclude.split(","))))
    times.append(time.perf_counter())
    program.step()
    bench.wait()
    times.append(time.perf_counter())
    print(json.dumps({"enable_s": times[1] - times[0], "from_disk_s": times[2] - times[1]}))
    return 0


def in_a_process(name, args):
    """What `first_step` prints, in a process of its own."""
    words = ["--set", name, "--ops", args.ops, "--exclude", args.exclude, "--first", *["--convert"] * args.convert]
    done = subprocess.run([sys.executable, "-m", "bench.programs", *words], capture_output=True, text=True, cwd=ROOT)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"no_first": done.stderr.splitlines()[-1:]}


def measured(name, args):
    """A row: times, share of the device's time that is ours, results, memory."""
    import dnnkern.torch
    bench = Bench(name, args)
    theirs, eager_first, eager_memory = bench.results(args.steps)
    spread = (bench.results(args.steps)[0] - theirs).abs().max().item()
    dnnkern.torch.status(reset=True)
    with bench.overrides():
        row = {"op": "torch", "problem": name, "ops": "convert" if args.convert else args.ops, "status": "ok", **bench.compiled()}
        ours, first, memory = bench.results(args.steps, bench.ours)
        again = bench.results(args.steps, bench.ours)[0]
    calls = dnnkern.torch.status(reset=True)
    size = theirs.abs().max().item()
    row.update(first_s=first, eager_first_s=eager_first, **in_a_process(name, args), memory=memory, eager_memory=eager_memory,
               error=(ours - theirs).abs().max().item() / size, eager_spread=spread / size, same_bits=bool((ours == again).all()),
               losses=ours.flatten()[:20].tolist(), eager_losses=theirs.flatten()[:20].tolist(),
               back=sorted({f"{c.op}: {c.why}" for c in calls if not c.ours}), calls={c.op: c.calls for c in calls if c.ours})
    if not row["error"] <= TOLERANCE:
        return {**row, "status": f"WRONG: the results differ by {row['error']:.3g} of the largest"}
    program, turns = bench.made(), {"eager": [], "ours": []}
    mine = bench.ours() if args.convert else program
    bench.turn(program, 2)
    ms = bench.turn(program, 2)[0]
    steps, before = (max(1, min(64, round(1e3 * seconds / ms))) for seconds in (SECONDS, WARM))
    for _ in range(args.turns):
        bench.turn(program, before)
        turns["eager"].append(bench.turn(program, steps))
        with bench.overrides():
            bench.turn(mine, before)
            dnnkern.torch.status(reset=True)
            turns["ours"].append(bench.turn(mine, steps))
    row["host_us"] = {c.op: (1e6 * c.seconds / c.calls, c.calls / steps) for c in dnnkern.torch.status(reset=True) if c.ours}
    for who, found in turns.items():
        row[f"{who}_ms"] = statistics.median(ms for ms, _ in found)
        row[f"{who}_host_ms"] = statistics.median(host for _, host in found)
        row[f"{who}_turns"] = [ms for ms, _ in found]
    row.update(of_eager=row["eager_ms"] / row["ours_ms"], steps=steps)
    eager_kernels, eager_operators = bench.kernels(program)
    with bench.overrides():
        kernels, operators = bench.kernels(mine)
    if kernels:
        row.update(share=share_of(kernels), device_ms=sum(ms for _, ms, _ in kernels),
                   eager_device_ms=sum(ms for _, ms, _ in eager_kernels), top=kernels[:3 * TOP], eager_top=eager_kernels[:2 * TOP],
                   by_op={op: (operators.get(op, 0), eager_operators.get(op, 0)) for op in sorted({*operators, *eager_operators})})
        if args.kernels:
            print_operators(row["by_op"])
            for op, (microseconds, n) in row["host_us"].items():
                print(f"{microseconds:9.1f} us {n:6.1f}  {op}")
            for title, found in (("ours", kernels), ("eager", eager_kernels)):
                print_kernels(title, found)
    return row


def trained(name, args):
    """A row: losses of trainings, ours and PyTorch's."""
    bench = Bench(name, args)

    def ours():
        with bench.overrides():
            bench.compiled()
            return bench.results(args.losses, bench.ours)[0]
    return {"op": "torch", "problem": name, "ops": args.ops, **losses_beside(bench, ours=ours)}


def endured(name, args):
    """A row: what becomes of a step's time and of the memory in a long training, and the energy of a step, beside PyTorch's."""
    bench, readings = Bench(name, args), sensors.of(dispatch.device_of(dispatch.current_device()))
    eager, eager_joules = bench.endure(bench.made(), min(ENERGY, 60 * args.minutes), readings)
    with bench.overrides():
        bench.compiled()
        ours, joules = bench.endure(bench.ours(), 60 * args.minutes, readings)
    times, minute = [ms for ms, _, _ in ours], max(1, len(ours) // max(1, round(args.minutes)))
    late = [statistics.median(times[at:at + minute]) for at in range(minute, len(times) - minute + 1, minute)] or times  # after the first
    row = {"op": "torch", "problem": name, "ops": args.ops, "status": "ok", "minutes": args.minutes, "windows": ours,
           "eager_windows": eager, "ours_ms": statistics.median(times), "eager_ms": statistics.median(ms for ms, _, _ in eager),
           "drift": max(late) / min(late) - 1, "growth": ours[-1][1] - ours[min(1, len(ours) - 1)][1]}
    return row if joules is None else {**row, "joules": joules, "eager_joules": eager_joules, "joules_of_eager": joules / eager_joules}


def losses_beside(bench, **ways):
    """Losses of PyTorch, of PyTorch in other orders of additions, and of each of the ways, {name: () -> losses}. Of the means of twenty
    losses each, the largest difference from the first, relative, of the others."""
    steps = bench.args.losses
    eager, found = bench.results(steps)[0], {who: way() for who, way in ways.items()}
    others = bench.in_other_orders(steps)

    def difference(losses):
        means, theirs = (x[:len(x) // 20 * 20].view(-1, 20).mean(1) for x in (losses, eager))
        return ((means - theirs).abs() / theirs.abs()).max().item()
    return {"status": "ok", "difference": difference(found["ours"]), "spread": max(map(difference, others)),
            **{f"{who}_difference": difference(losses) for who, losses in found.items() if who != "ours"},
            "losses": found.pop("ours").tolist(), **{f"{who}_losses": losses.tolist() for who, losses in found.items()},
            "eager_losses": eager.tolist(), "other_losses": [x.tolist() for x in others]}


def kernels_of(kernels, who, most):
    """What a row has of the kernels of one way to run a program: their time, and the longest."""
    return {f"{who}_device_ms": sum(ms for _, ms, _ in kernels), f"{who}_kernels": sum(calls for *_, calls in kernels),
            f"{who}_top": kernels[:most], "share" if who == "ours" else f"{who}_share": share_of(kernels)}


def share_of(kernels):
    """The share of kernels' time that is this library's."""
    return sum(ms for kernel, ms, _ in kernels if "dnnkern" in kernel) / sum(ms for _, ms, _ in kernels)


def print_kernels(title, kernels):
    """The kernels that take longest."""
    print(f"-- {title}")
    for kernel, ms, calls in kernels[:TOP]:
        print(f"{ms:9.3f} ms {calls:6.1f}  {kernel[:150]}")


def print_operators(by_op):
    """The operators that take longest, on this library and on PyTorch."""
    for op, (ours, eager) in sorted(by_op.items(), key=lambda item: -max(item[1]))[:2 * TOP]:
        print(f"{ours:9.3f} ms {eager:9.3f} ms  {op}")


def show(rows):
    """The table."""
    print()
    _table.show(("program", "ours (ms)", "eager (ms)", "x eager", "host, ours", "host, eager", "share", "memory", "compile (s)",
                 "first step (s)"),
                [_shown(row) for row in rows])


def _shown(row):
    if row["status"] != "ok":
        return row["problem"], row["status"], *[""] * 8
    times = [f"{row[what]:.3f}" for what in ("ours_ms", "eager_ms", "of_eager", "ours_host_ms", "eager_host_ms")]
    more = [f"{row['share']:.3f}", f"{row['memory'] / row['eager_memory']:.3f}"] if "share" in row else ["", ""]
    return row["problem"], *times, *more, f"{row['compile_s']:.1f}", f"{row.get('from_disk_s', 0):.2f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

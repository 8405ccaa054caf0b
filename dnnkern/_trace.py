"""``dnnkern trace``: what an algorithm's kernels do when, as a file that Perfetto opens."""
import json
import os
import statistics
import subprocess
import sys

from ._output import FAILED, document
from ._table import say

HELP = """Run a problem and write what each warp of its kernels waits for and how long, and when copies by TMA and products by wgmma are in
flight: on a GPU the stamps of its clock, in nanoseconds (see dnnkern.host.stamps), else the schedule of the simulator, in its steps (see
dnnkern.device.sim.schedule), which DNNKERN_DEVICE=simulator asks for on any machine. The file is Chrome's trace format:
https://ui.perfetto.dev opens it."""
OUT = "trace.json"
OPENS = "https://ui.perfetto.dev opens it."


def elsewhere(argv) -> int:
    """The command in a process that simulates."""
    environment = {**os.environ, "DNNKERN_DEVICE": "simulator"}
    environment.pop("NUMBA_ENABLE_CUDASIM", None)
    return subprocess.run([sys.executable, "-m", "dnnkern", *argv], env=environment).returncode


def trace(problem, algo, path, as_json) -> int:
    """Run, and write the file."""
    from . import dispatch
    from .device import SIMULATED
    from .host.operands import Operands
    from .host.paths import check_target
    from .host.timing import Clock
    from .preference import DEVICE
    if problem.is_empty:
        raise ValueError(f"{problem} has no elements: nothing runs")
    check_target("trace", path)
    device = dispatch.device_of(dispatch.current_device())
    prefer = None if algo else dispatch.preference() or (DEVICE if SIMULATED else None)
    algorithm = dispatch.get_algorithm(problem.op, problem, algo=algo, prefer=prefer)
    operation = dispatch.operation_of(problem.op)
    with Clock(device.index) as clock, Operands(operation, problem, device, None) as operands:
        wrong, told, events, other = (_simulated if SIMULATED else _stamped)(operation, problem, algorithm, device, operands, clock)
    if wrong:
        print(f"trace: {wrong}", file=sys.stderr)
        return FAILED
    about = {"problem": str(problem), "algorithm": str(algorithm)} | other
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"traceEvents": events, "displayTimeUnit": "ns", "otherData": about}, file)
    fields = dict.fromkeys(("steps", "waited_steps", "time_ms", "stamped_ms", "waited_ns", "dropped")) | told
    if as_json:
        document("trace", problem=str(problem), algorithm=algorithm.name, config=algorithm.config_text, file=str(path), unit=other["unit"],
                 **fields)
    took = f"{told['steps']} steps" if SIMULATED else f"{1e3 * told['time_ms']:.1f} µs, with stamps {1e3 * told['stamped_ms']:.1f} µs"
    dropped = f"; {told['dropped']} stamps had no room" if told.get("dropped") else ""
    say(f"{problem} by {algorithm}: {took}, {told['blocks']} blocks, {told['slices']} slices in {path}{dropped}\n{OPENS}")
    return 0


def _simulated(operation, problem, algorithm, device, operands, _):
    """(what is wrong, fields of the document, events, what else the file says)"""
    from .device.sim.schedule import RUNS, Schedule
    from .host.executable import make_executable
    schedule, scratch = Schedule(), algorithm.workspace(problem, device, algorithm.config)
    make_executable(operation, problem, algorithm, device).execute(operands.values(0, scratch), 0, schedule=schedule)
    events = schedule.close().events()
    waits = sum(end - begin for _, (kind, _), begin, end, text, _ in schedule.slices if kind == "thread" and text != RUNS)
    return None, {"steps": schedule.end, "blocks": len(schedule.blocks), "slices": len(schedule.slices), "waited_steps": waits}, events, {
        "unit": "steps"}


def _stamped(operation, problem, algorithm, device, operands, clock):
    """The same of a GPU."""
    from .host.executable import make_executable
    from .host.stamps import StampedExecutable, events_of
    from .host.timing import ROUNDS
    values = operands.values(0, algorithm.workspace(problem, device, algorithm.config))
    plain = make_executable(operation, problem, algorithm, device)
    parameters = operation.of(problem).parameters(problem, None)
    with StampedExecutable(plain.launches, parameters, device.index) as executable:
        def run(each):
            each.execute(values, clock.stream)
            clock.synchronize()
        operands.set_reference(lambda: run(plain))
        wrong = operands.wrong(lambda: run(executable))
        if wrong:
            return f"with stamps the result is another one: {wrong}", {}, [], {}
        times = plain_times, stamped_times = [], []
        for _ in range(ROUNDS):
            for each, seconds in zip((plain, executable), times):
                executable.clear()
                seconds.append(clock.seconds(lambda: each.execute(values, clock.stream), lead=lambda: plain.execute(values, clock.stream)))
        told, events, other = events_of(executable, device)
    told |= {"time_ms": 1e3 * statistics.median(plain_times), "stamped_ms": 1e3 * statistics.median(stamped_times)}
    return None, told, events, other | {"unit": "ns"}

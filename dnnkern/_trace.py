"""``dnnkern trace``: the schedule of an algorithm's kernels, as a file that Perfetto opens."""
import json
import os
import subprocess
import sys

from ._output import document
from ._table import say

HELP = """Run a problem in the simulator and write the schedule of its kernels: what each warp waits for, and when copies by TMA and
products by wgmma are in flight, in steps of the simulator (see dnnkern.device.sim.schedule). The file is Chrome's trace format:
https://ui.perfetto.dev opens it."""
OUT = "trace.json"


def elsewhere(argv) -> int:
    """The command in a process that simulates."""
    environment = {**os.environ, "DNNKERN_DEVICE": "simulator"}
    environment.pop("NUMBA_ENABLE_CUDASIM", None)
    return subprocess.run([sys.executable, "-m", "dnnkern", *argv], env=environment).returncode


def trace(problem, algo, path, as_json) -> int:
    """Simulate, and write the file."""
    from . import dispatch
    from .device.sim.schedule import RUNS, Schedule
    from .host.executable import make_executable
    from .host.operands import Operands
    from .host.paths import check_target
    from .preference import DEVICE
    if problem.is_empty:
        raise ValueError(f"{problem} has no elements: nothing runs")
    check_target("trace", path)
    device, schedule = dispatch.device_of(dispatch.current_device()), Schedule()
    algorithm = dispatch.get_algorithm(problem.op, problem, algo=algo, prefer=None if algo else dispatch.preference() or DEVICE)
    operation, scratch = dispatch.operation_of(problem.op), algorithm.workspace(problem, device, algorithm.config)
    executable = make_executable(operation, problem, algorithm, device)
    with Operands(operation, problem, device, None) as operands:
        executable.execute(operands.values(0, scratch), 0, schedule=schedule)
    events = schedule.close().events()
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"traceEvents": events, "otherData": {"problem": str(problem), "algorithm": str(algorithm), "unit": "steps"}}, file)
    waits = sum(end - begin for _, (kind, _), begin, end, text, _ in schedule.slices if kind == "thread" and text != RUNS)
    if as_json:
        document("trace", problem=str(problem), algorithm=algorithm.name, config=algorithm.config_text, file=str(path), steps=schedule.end,
                 blocks=len(schedule.blocks), slices=len(schedule.slices), waited_steps=waits)
    say(f"{problem} by {algorithm}: {schedule.end} steps, {len(schedule.blocks)} blocks, {len(schedule.slices)} slices in {path}\n"
        "https://ui.perfetto.dev opens it.")
    return 0

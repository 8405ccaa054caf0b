"""Why what was chosen takes the time it takes, by Nsight Compute: ``python -m dnnkern bench profile FILE... --json PROFILES``.

Of the problems in files of ``bench --json`` whose choice is slower than its peer (``--below``), or of those with ``--words``, it runs the
choice once under ``ncu``, and writes a row for each: of every kernel the time, the bytes of memory and of the L2, the units that were
busiest, and what warps waited for. Rows that are stale are passed over. ``--show`` prints such rows, and needs no GPU.

Times are those under the profiler, with the caches emptied before each kernel; clocks are left alone.
"""
import argparse
import csv
import ctypes
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from dnnkern import dispatch
from dnnkern._table import note, show
from dnnkern.dispatch import operation_of, reference_of
from dnnkern.find import Trial, set_reference
from dnnkern.host.ahead import Compilation
from dnnkern.host.compiler import Job
from dnnkern.host.operands import Operands
from dnnkern.host.paths import plain
from dnnkern.host.timing import Clock
from dnnkern.report.rows import read, records

from . import code
from .machine import machine
from .record import is_taken

SECTIONS = "SpeedOfLight", "MemoryWorkloadAnalysis", "ComputeWorkloadAnalysis", "SchedulerStats", "WarpStateStats"
BYTES = {"dram_read": "dram__bytes_read.sum", "dram_written": "dram__bytes_write.sum", "l2": "lts__t_bytes.sum"}
TIME = "gpu__time_duration.sum"
NS = {"s": 1e9, "second": 1e9, "ms": 1e6, "msecond": 1e6, "us": 1e3, "usecond": 1e3, "ns": 1.0, "nsecond": 1.0}
UNIT = re.compile(r"(?:breakdown:)?((?:sm|l1tex|lts|dram|idc)__\w+?)(?:\.avg)?\.pct_of_peak_sustained_elapsed")
SAME = "sm__inst_issued", "sm__inst_executed"  # as sm__issue_active
STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")
KEPT = "op", "problem", "record", "algo", "config", "ratio", "time_us", "roof", "code"  # of the bench's row
MOST_UNITS, MOST_STALLS = 8, 5
TOGETHER = 12  # problems of a process, whose rows are written at its end


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    p = argparse.ArgumentParser(prog="python -m dnnkern bench profile", description="Profile what was chosen and is slower than its peer.")
    p.add_argument("files", nargs="+", metavar="FILE", help="rows of bench --json; with --show, of this command")
    p.add_argument("--below", type=float, default=0.97, metavar="RATIO", help="those whose ratio to the peer is less (default 0.97)")
    p.add_argument("--words", default=None, metavar="WORDS", help="instead those that have all these words")
    p.add_argument("--json", metavar="FILE", help="append the rows as JSON lines; the problems it has are left out")
    p.add_argument("--share", type=Path, default=None, metavar="FOLDER",
                   help="profile what no other process has taken that names this folder")
    p.add_argument("--jobs", type=int, default=1, metavar="N", help="compile in N processes")
    p.add_argument("--show", action="store_true", help="print rows of this command")
    p.add_argument("--run", metavar="COUNTS", help=argparse.SUPPRESS)  # the process that ncu watches: kernels of each row go to this file
    return p


def wanted(args, device) -> list:
    """The rows to profile: of the same kind of device, and not stale."""
    have = set()
    if args.json and Path(args.json).exists():
        have = {(r["op"], r["problem"], r["machine"]["device"]) for r in records([args.json])}

    def is_asked(row):
        if args.words is not None:
            return all(word in f"{row['op']} {row['problem']}".split() for word in args.words.split())
        return bool(row["ratio"]) and row["ratio"] < args.below
    found = [r for r in read(args.files) if r["chosen"] and r["status"] == "ok" and r["machine"]["device"] == device.name and is_asked(r)]
    return [r for r in found if (r["op"], r["problem"], device.name) not in have and not code.is_stale(r)]


def run_each(rows, counts, device):
    """What ncu watches: the choice of each row, once, between calls that begin and end the profile. Writes how many kernels each has."""
    profiler, found = ctypes.CDLL("libcuda.so.1"), []
    with Clock(device.index) as clock:
        for number, row in enumerate(rows, 1):
            note(f"profiling {number} of {len(rows)}")
            problem, operation = code.problem_of(row), operation_of(row["op"])
            trial = Trial(dispatch.get_algorithm(row["op"], problem, device=device, prefer="device"), problem, device)
            with Operands(operation, problem, device, memory=0) as operands:
                set_reference(operation, problem, reference_of(row["op"], problem, device), operands, device, clock)
                good = trial.prepare(operation, operands, clock)
                if good:
                    profiler.cuProfilerStart()
                    trial.run(operands, clock)
                    profiler.cuProfilerStop()
            found.append(len(trial.executable.launches) if good else 0)
            Path(counts).write_text(json.dumps(found))


def kernels_of(text) -> list:
    """The kernels of ncu's table of raw metrics: dictionaries of what rows keep."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    if len(lines) < 2:
        return []
    names, units, *values = csv.reader(lines)
    return [_kernel(dict(zip(names, v)), dict(zip(names, units))) for v in values]


def _number(text):
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def _kernel(values, units):
    numbers = {name: n for name, text in values.items() if (n := _number(text)) is not None}
    busy, stalls = {}, {}
    for name, n in numbers.items():
        if (unit := UNIT.fullmatch(name)) and unit[1] not in SAME and "throughput" not in name and "internal" not in name:
            busy[unit[1]] = max(n, busy.get(unit[1], 0.0))
        elif stall := STALL.fullmatch(name):
            stalls[stall[1]] = n
    most = sorted(busy, key=busy.get, reverse=True)[:MOST_UNITS]
    waits = sorted(stalls, key=stalls.get, reverse=True)[:MOST_STALLS]
    return {"name": re.split(r"[\[(<]", values["Kernel Name"])[0].rpartition("::")[2], "us": 1e-3 * NS[units[TIME]] * numbers[TIME],
            **{name: numbers.get(metric) for name, metric in BYTES.items()},
            "busy": {name: busy[name] for name in most}, "stalls": {name: stalls[name] for name in waits}}


def profiled(rows, device, program) -> list:
    """Rows of this command for rows of the bench; those that could not run are left out."""
    with tempfile.TemporaryDirectory() as folder:
        asked, counts, log = (Path(folder, name) for name in ("rows.jsonl", "counts.json", "log.csv"))
        asked.write_text("".join(json.dumps(row) + "\n" for row in rows))
        sections = [word for name in SECTIONS for word in ("--section", name)]
        options = ["--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none", "--profile-from-start", "off", *sections,
                   "--metrics", ",".join((TIME, *BYTES.values())), "--log-file", str(log)]
        command = [sys.executable, "-m", "dnnkern", "bench", "profile", str(asked), "--run", str(counts)]
        done = subprocess.run([program, *options, *command], capture_output=True, text=True)
        if not log.exists() or not counts.exists():
            raise RuntimeError(f"bench profile: {program} ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
        kernels, here, found = iter(kernels_of(log.read_text())), machine(device), []
        for row, count in zip(rows, json.loads(counts.read_text())):
            some = [k for _, k in zip(range(count), kernels)]
            if some:
                found.append({**{name: row[name] for name in KEPT}, "kernels": some, "machine": here})
        return found


def print_rows(rows):
    """A table, a kernel a line."""
    def texts(row, kernel):
        moved = sum(kernel[name] or 0 for name in ("dram_read", "dram_written"))
        busy, waits = (", ".join(f"{name.replace('__', ' ')} {value:.{digits}f}" for name, value in list(kernel[which].items())[:most])
                       for which, most, digits in (("busy", 4, 0), ("stalls", 3, 1)))
        ratio = row["ratio"] and f"{row['ratio']:.2f}"
        return [row["op"], row["problem"], ratio, kernel["name"], f"{kernel['us']:.1f}", f"{1e-6 * moved:.1f}", busy, waits]
    columns = "op", "problem", "ratio", "kernel", "us", "MB", "busiest units, %", "warps wait for"
    show(columns, [texts(row, kernel) for row in rows for kernel in row["kernels"]])


def main(argv=None) -> int:
    """Profile, or print; the exit status: 1 if a row could not be profiled."""
    args = parser().parse_args(argv)
    if args.show:
        print_rows(records(args.files))
        return 0
    device = dispatch.device_of(dispatch.current_device())
    if args.run:
        run_each(list(records(args.files)), args.run, device)
        return 0
    program = shutil.which("ncu")
    if program is None:
        raise ValueError("bench profile: ncu, which measures, is not on the PATH; it comes with CUDA's toolkit")
    rows = wanted(args, device)
    print(f"{len(rows)} problems to profile")
    is_short, failure = False, None
    for k in range(0, len(rows), TOGETHER):
        part = [row for row in rows[k:k + TOGETHER] if not is_taken(f"{row['op']} {row['problem']}", args.share)]
        if part and args.jobs > 1:
            _compile(part, device, args.jobs)
        try:
            found = profiled(part, device, program) if part else []
        except RuntimeError as error:  # the others are profiled first
            failure = error
            continue
        if args.json and found:
            with open(args.json, "a", encoding="utf-8") as file:
                file.writelines(json.dumps(plain(row)) + "\n" for row in found)
        print_rows(found)
        is_short |= len(found) < len(part)
    if failure is not None:
        raise failure
    return int(is_short)


def _compile(rows, device, jobs):
    """Put the kernels into the disk cache."""
    wanted = []
    for row in rows:
        problem = code.problem_of(row)
        for a in (dispatch.get_algorithm(row["op"], problem, device=device, prefer="device"), reference_of(row["op"], problem, device)):
            wanted.append(Job(row["op"], problem, device, a.name, a.config))
    compilation = Compilation(device)
    compilation.compile(wanted, jobs)
    compilation.wait()

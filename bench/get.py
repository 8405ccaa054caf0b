"""What choosing an algorithm costs where the shape was never seen: ``python -m bench.get [OP...]``; no GPU needed. With ``--many 100000``
what it costs after so many problems.

Every operation chooses for some problems from all of its sets, in a warm process: on this machine's GPU, or as on an H200. Beside the time
stand the estimates that were asked for and the calls of Python functions, which are the same on every machine.
"""
import argparse
import contextlib
import json
import os
import re
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from dnnkern import dispatch
from dnnkern.device import DEVICE
from dnnkern.host import chosen
from dnnkern.host import device as host

from . import shapes
from .machine import machine

DTYPES, MOST = ("float16", "bfloat16", "float32"), 24


class Cold(NamedTuple):
    """A `get` of problems never seen: medians of milliseconds (of the process), of estimates asked for, those of embedded products among
    them, and of calls; and the most milliseconds."""
    operation: str
    problem: str
    ms: float
    estimated: float
    calls: float
    most_ms: float


def target():
    """This machine's GPU, or the H200 that the simulator describes."""
    return host.device(0) if DEVICE == "cuda" and host.device_count() else replace(host._SIMULATOR, name="NVIDIA H200")


def problems(op) -> tuple:
    """(what they are, the problems) that stand for an operation; new objects each time."""
    module = shapes.of(op)
    dtype = next((d for d in DTYPES if d in module.DTYPES), module.DTYPES[0])
    every = list(dict.fromkeys(case.problem for name in module.SETS for case in module.cases(name, (dtype,), (), None)))
    some = every[::max(1, len(every) // MOST)][:MOST]
    return f"{len(some)} of {len(every)} {dtype}", some


def get(op, problem, device):
    """The algorithm as on a GPU; None where there is none."""
    try:
        return dispatch.get_algorithm(op, problem, device=device, prefer="device")
    except dispatch.NotSupported:
        return None


@contextlib.contextmanager
def nothing_kept():
    """In the block no choice is remembered, or read from the disk."""
    before, chosen.KEEPS = chosen.KEEPS, False
    dispatch.choices_changed()
    try:
        yield
    finally:
        chosen.KEEPS = before


def counts(op, some, device) -> list:
    """(estimates asked for, calls of Python functions) of the choice for each problem that has one, all but the first, which imports.
    Within `nothing_kept`."""
    codes = {getattr(a.estimate, "func", a.estimate).__code__ for a in dispatch.algorithms()}
    get(op, some[0], device)
    found, asked, calls = [], 0, 0

    def count(frame, event, _):
        nonlocal asked, calls
        if event == "call":
            calls += 1
            asked += frame.f_code in codes
    for problem in some[1:]:
        asked = calls = 0
        before = sys.getprofile()
        sys.setprofile(count)
        try:
            able = get(op, problem, device)
        finally:
            sys.setprofile(before)
        if able is not None:
            found.append((asked, calls))
    return found


def get_cold(ops=None) -> list:
    """A `Cold` for every operation, or for those named."""
    device, rows = target(), []
    for op in ops or shapes.operations():
        words, some = problems(op)
        with nothing_kept():
            found = counts(op, some, device)
        times = []
        with nothing_kept():
            for problem in problems(op)[1][1:]:
                start = time.process_time()
                if get(op, problem, device) is not None:
                    times.append(1e3 * (time.process_time() - start))
        if times:
            rows.append(Cold(op, words, statistics.median(times), *(statistics.median(some) for some in zip(*found)), max(times)))
    return rows


class Many(NamedTuple):
    """After `problems` of an operation: milliseconds of a `get` of a new one and microseconds of one asked for again, medians of the last
    ones; MB of the process, and of what is kept on disk."""
    op: str
    problems: int
    new_ms: float
    again_us: float
    process_mb: float
    disk_mb: float


def get_many(op, count) -> list:
    """A `Many` for every power of ten up to `count`, in a cache directory of its own."""
    device, found, clock = target(), [], time.perf_counter
    (_, case), *_ = [(name, case) for name in shapes.of(op).SETS for case in shapes.of(op).cases(name, ("float32",))]
    sizes = re.search(r"\d+(x\d+)*", case.words)
    words = [case.words[:sizes.start()] + f"{1 + k % 977}x{1 + k // 977}" + case.words[sizes.end():] for k in range(count)]
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, DNNKERN_CACHE_DIR=folder):
        dispatch.choices_changed()
        times = []
        for number, text in enumerate(words, 1):
            problem = replace(case, words=text).problem
            start = clock()
            dispatch.get_algorithm(op, problem, device=device, prefer="device")
            times.append(clock() - start)
            if number >= 100 and number in {10 ** e for e in range(2, 10)} | {count}:
                recent, again = [replace(case, words=text).problem for text in words[max(0, number - 1000):number]], []
                for problem in recent:
                    start = clock()
                    dispatch.get_algorithm(op, problem, device=device, prefer="device")
                    again.append(clock() - start)
                disk = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
                found.append(Many(op, number, 1e3 * statistics.median(times[-1000:]), 1e6 * statistics.median(again),
                                  _process_bytes() / 1e6, disk / 1e6))
    dispatch.choices_changed()
    return found


def _process_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(argv=None) -> int:
    """Print the rows."""
    parser = argparse.ArgumentParser(prog="python -m bench.get", description="Time `get` for shapes never seen.")
    parser.add_argument("op", nargs="*", metavar="OP", help="operations; default: all")
    parser.add_argument("--many", type=int, metavar="N", help="choose for N problems of each operation that is named, one after the other")
    parser.add_argument("--json", metavar="FILE", help="append the rows of --many as JSON lines")
    args = parser.parse_args(argv)
    if args.many:
        print("| operation | problems | new, ms | again, us | process, MB | disk, MB |\n|---|--:|--:|--:|--:|--:|")
        for op in args.op or ["scale_tensor"]:
            for row in get_many(op, args.many):
                print(f"| {row.op} | {row.problems} | {row.new_ms:.3f} | {row.again_us:.2f} | {row.process_mb:.0f} | {row.disk_mb:.2f} |")
                if args.json:
                    with open(args.json, "a") as file:
                        row = {"bench": "get", **row._asdict(), "for": target().name, "machine": machine(host.device(0))}
                        file.write(json.dumps(row) + "\n")
        return 0
    print("| operation | problems | get, ms | estimates | calls | most ms |\n|---|---|--:|--:|--:|--:|")
    for row in get_cold(args.op):
        print(f"| {row.operation} | {row.problem} | {row.ms:.2f} | {row.estimated:g} | {row.calls:g} | {row.most_ms:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Every operation's algorithms and peers through pytest-benchmark: ``python -m pytest bench/ --benchmark-group-by=param:problem``.

Generated from the registry, ``shapes/`` and ``peers/``; measured by `CaseBench`, as by the command line. What pytest-benchmark reports
is device time per call: its timer is a clock that `Stage` has measured before.
"""
import argparse
import re

import pytest

from bench import peers, shapes
from bench.case import CHOSEN, names_of
from bench.run import limits, selected
from bench.table import mark
from dnnkern import dispatch
from dnnkern.device import SIMULATED


class DeviceTime:
    """A timer for pytest-benchmark that stands still but for what `advance` adds."""
    __name__ = "DeviceTime"  # in saved results

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def advance(self, seconds):
        """Move it on."""
        self.now += seconds


DEVICE_TIME = DeviceTime()


class Problem(str):
    """A case by its text, the operation in front: what results are grouped by."""

    def __new__(cls, case):
        self = super().__new__(cls, f"{case.op} {case}")
        self.case = case
        return self


def pytest_generate_tests(metafunc):
    """One test for each algorithm that can solve a problem, and for each peer."""
    options = metafunc.config.option
    by_name = options.keyword or any("::" in argument for argument in metafunc.config.args)
    changes = {"set": options.set or ("all" if by_name and not SIMULATED else None), "problem": [],
               "first": (0 if by_name or options.set else 1) if options.first is None else options.first}
    rows, refused = [], []
    for op in shapes.operations():
        for dtype in options.dtype.split(","):
            args = argparse.Namespace(**{**vars(options), **changes, "op": op, "dtype": dtype})
            try:
                rows += _rows(args)
            except ValueError as error:  # a set, dtype, layout or algorithm that other operations have
                refused.append(str(error))
    if refused and not rows:
        raise pytest.UsageError("no operation has such problems: " + "; ".join(list(dict.fromkeys(refused))[:3]))
    metafunc.parametrize("op, set_name, problem, algorithm", list({row.id: row for row in rows}.values()))


def _rows(args):
    device, names, rows = dispatch.device_of(dispatch.current_device()), names_of(args, args.op), []
    others = [] if args.no_peers else peers.names_of(args.op)
    for set_name, case in selected(args):
        if CHOSEN in names:
            able = [CHOSEN]
        else:
            able = [a.name for a in dispatch.algorithms(args.op) if (not names or a.name in names)
                    and dispatch.refusal(a, case.problem, device, **limits(args)) is None]
        text = str(case).removesuffix(f" ({set_name})")
        name = f"{args.op}-{set_name}-" + re.sub(r"[^\w.:=]+", "_", text).strip("_")
        rows += [pytest.param(args.op, set_name, Problem(case), algorithm, id=f"{name}-{algorithm.replace(' ', '_')}")
                 for algorithm in (*able, *others)]
    return rows


@pytest.mark.benchmark(timer=DEVICE_TIME)
def test_ops(benchmark, op, set_name, problem, algorithm, stage):
    """Device time per call. The name is the algorithm's: * is what get_algorithm answers, ~ what the estimates alone would."""
    row, reason = stage.row(problem, algorithm, timed=benchmark.enabled)
    if row is None:
        pytest.skip(reason)
    if row["status"] != "ok":
        text = f"{row['algo']}: {row['status']}"
        pytest.skip(text) if row["is_peer"] else pytest.fail(text, pytrace=False)
    benchmark.group, benchmark.name = str(problem), f"{row['algo']} {mark(row)}".strip()
    benchmark.extra_info.update({name: row[name] for name in stage.REPORTED}, regret=stage.regret(problem, row))
    turns = iter(row["turns_us"])
    benchmark.pedantic(lambda: DEVICE_TIME.advance(1e-6 * next(turns, 0.0)), rounds=max(1, row["turns"]))

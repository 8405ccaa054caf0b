"""The benches' options in pytest, what is measured once for all tests of a problem, and what is reported at the end."""
import contextlib

import pytest

from bench import roof, table
from bench.machine import machine
from bench.peers import names_of, peers_of
from bench.case import CHOSEN, CaseBench
from bench.run import add_options, compile_ahead, limits, release
from dnnkern import dispatch
from dnnkern.host.paths import plain
from dnnkern.host.timing import Clock

STAGE = pytest.StashKey()


def pytest_addoption(parser):
    add_options(parser.getgroup("dnnkern", "dnnkern's benches").addoption, configurations=1, drawn_configurations=0,
                dtype="float32,bfloat16")


class Stage:
    """Measures a problem when its first test is due: all its selected algorithms and peers in turns, as the command line does.

    Attributes
    ----------
    measured : dict
        What was found, by problem.
    roofs : dict
        Rates of the device, measured before the first problem.
    """

    REPORTED = ("config", "chosen", "predicted", "estimate_us", "gbs", "tflops", "roof", "ratio", "workspace", "notes", "calls")

    def __init__(self, session, clock):
        self.args, self.clock, self.device = session.config.option, clock, dispatch.device_of(clock.index)
        self.names, self.measured, self.peers, self.roofs = {}, {}, {}, None
        for item in session.items:
            given = getattr(getattr(item, "callspec", None), "params", {})
            if "problem" in given and "algorithm" in given:
                self.names.setdefault(given["problem"], set()).add(given["algorithm"])

    def row(self, problem, algorithm, timed=True):
        """The row of an algorithm or peer, and why there is none."""
        if problem not in self.measured:
            try:
                self.measured[problem] = self._measure(problem, timed)
            except Exception as error:  # said once in full; not tried again for each algorithm
                self.measured[problem] = [], {}, f"{problem}: {type(error).__name__}: {error}"
                raise
        rows, hopeless, failure = self.measured[problem]
        if failure:
            pytest.fail(failure, pytrace=False)
        found = [r for r in rows if r["algo"] == algorithm or algorithm == CHOSEN and r["chosen"]]
        if found:
            return max(found, key=lambda r: r["chosen"]), None
        if algorithm in names_of(problem.case.op):
            missing = self._peers_of(problem.case.op)[1].get(algorithm)
            return None, f"no peer {algorithm}: {missing}" if missing else f"{algorithm} cannot do it"
        return None, f"predicted to take {hopeless[algorithm]:.0f} times as long as the best; --all times it, and so does --algo"

    def regret(self, problem, row):
        """What was chosen, over the best of ours; None for the others."""
        best = table.timed(self.measured[problem][0])
        return row["time_us"] / best[0]["time_us"] if row["chosen"] and row["time_us"] else None

    def rows(self):
        """Of all problems."""
        return [row for rows, _, _ in self.measured.values() for row in rows]

    def _peers_of(self, op):
        if op not in self.peers:
            self.peers[op] = ([], {}) if self.args.no_peers else peers_of(op)
        return self.peers[op]

    def _measure(self, problem, timed):
        """(rows, {algorithm that was left out: how much slower it should be}, None)."""
        if self.roofs is None:
            self.roofs = {}
            compile_ahead(self.args.jobs, self.device, [(p.case, names) for p, names in self.names.items()], self.args)
            units = {roof.unit_of(p.case.problem) for p in self.names} | {"fma"}
            self.roofs = roof.measure_roofs(self.device, self.clock, sorted(units)) if timed else {}
        bench = CaseBench(problem.case, self.device, self.clock, self._peers_of(problem.case.op)[0], self.roofs, limits(self.args))
        try:
            rows = bench.rows(self.args, self.names[problem], timed=timed, host=None)
        finally:
            release(self.clock)
        return rows, {name: times for (name, _), times in bench.hopeless.items()}, None


@pytest.fixture(scope="session")
def stage(request):
    """What all tests share."""
    with contextlib.ExitStack() as stack:
        clock = stack.enter_context(Clock(dispatch.current_device()))
        yield request.config.stash.setdefault(STAGE, Stage(request.session, clock))


def pytest_report_collectionfinish(items):
    """How much there is to do, before it is done."""
    problems = {item.callspec.params["problem"] for item in items if hasattr(item, "callspec") and "problem" in item.callspec.params}
    return f"dnnkern: {len(problems)} problems, measured one after the other" if problems else []


def _record():
    record = machine(dispatch.device_of(dispatch.current_device()))
    return {**record, "driver": record["clocks"].get("driver_version")}


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(config, machine_info):
    """What must agree for two runs to be comparable; a difference is a warning."""
    machine_info["dnnkern"] = {name: value for name, value in _record().items() if name not in ("clocks", "commit", "date")}


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_json(config, output_json):
    """What a number was measured on, clocks and roofs of the run included."""
    stage = config.stash.get(STAGE, None)
    output_json["dnnkern"] = plain({**_record(), "roofs": stage.roofs if stage else {}})


def pytest_terminal_summary(terminalreporter, config):
    """Ratios to the peers, what the estimates cost, and which operations have nothing to be compared with."""
    stage = config.stash.get(STAGE, None)
    if stage is None or not stage.rows():
        return
    lines = [*table.roof_lines(stage.roofs), *table.summary(stage.rows(), config.option.heuristic)]
    alone = sorted({problem.case.op for problem in stage.measured if not names_of(problem.case.op)})
    if alone and not config.option.no_peers:
        lines.append(f"no library here has {', '.join(alone)}: there is no peer")
    if lines:
        terminalreporter.section("dnnkern")
        for line in lines:
            terminalreporter.line(line)

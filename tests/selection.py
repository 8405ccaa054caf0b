"""What `make test` runs: what has changed in full, and of the rest what is cheap or covers what nothing cheaper does.

`make test-full` runs everything and writes `green.json`: the commit at which all tests passed, under which versions, and what each took.
Changed is what differs from there (or from --since). Of the tests, in this order, as many as `BUDGET` CPU seconds hold:

1. the cheapest test of each algorithm, of each dtype of an operation and of each test function; of what is compiled, of each file,
   operation and architecture; on the processor, of each file and family, and of each of PyTorch's functions that is overridden. They run
   whatever they take, as do those marked `always`;
2. what depends on a changed file, by the imports between them: the fewer, the sooner, and first what runs an algorithm with another dtype;
3. the contract's problems that none of these has, the cheapest first; then all others, the cheapest first.

What was left out is printed at the end. `selection.py --add` gives green.json the costs of tests that are newer, of a run with --record.
"""
import collections
import functools
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import subprocess
import sys

import pytest
import sample

from dnnkern import dispatch
from dnnkern.host import sources

TESTS = pathlib.Path(__file__).resolve().parent
ROOT, PACKAGE = TESTS.parent, sources.PACKAGE
GREEN = TESTS / "green.json"
BUDGET = {"simulator": 310, "compile": 110, "cpu": 60}  # CPU seconds of the machine on which green.json was written
UNKNOWN = {"simulator": 0.1, "compile": 3.0, "cpu": 1.5}  # of a test of a function that green.json does not have
LISTED = 0.25  # what takes longer is listed test by test, the others by function
# Tests of files that no test imports.
READ_BY = {"docs": ("test_docs.py", "test_examples.py", "test_site.py"), "mkdocs.yml": ("test_site.py",),
           "README.md": ("test_examples.py",),
           "examples": ("test_examples.py", "test_ptx_examples.py", "test_cpu_examples.py", "test_site.py"),
           ".ci": ("test_pythons.py", "test_site.py", "test_words.py")}
EVERYTHING = ("setup.cfg", "pyproject.toml", "tests/conftest.py")
TOOLS = ("numba", "numba-cuda", "llvmlite", "numpy", "nvidia-nvvm", "nvidia-nvjitlink", "nvidia-cuda-nvcc", "greenlet", "pytest",
         "hypothesis")


def versions():
    """Versions of what the tests run on."""
    found = {"python": platform.python_version()}
    for name in TOOLS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "none"
    return found


def git(*words):
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


def changed(since):
    """(files that differ from a commit, those that git does not know yet too; why that is everything, or None)."""
    try:
        found = {*git("diff", "--name-only", since), *git("ls-files", "--others", "--exclude-standard")}
    except (OSError, subprocess.CalledProcessError):
        return {*EVERYTHING}, f"git knows no commit {since}"
    whole = sorted(found & {*EVERYTHING})
    return found, f"{', '.join(whole)} changed" if whole else None


# ---- what a test is made of

@functools.cache
def mentions(path):
    """What a file imports, and the front ends of the families whose functions it calls as `dnnkern.<name>`."""
    found = set(sources.imports(path))
    if PACKAGE not in path.parents:
        text = path.read_text()
        names = {*re.findall(r"\bdnnkern\.(\w+)", text)}
        names.update(word for line in re.findall(r"from dnnkern import ([^\n]*)", text) for word in re.findall(r"\w+", line))
        found.update(PACKAGE / sample.family_of(name) / "__init__.py" for name in names & sample.OPS.keys())
    return found


@functools.cache
def algorithms_of(path):
    """The files that a family's front end finds when it is first used."""
    is_family = path.name == "__init__.py" and path.parent.parent == PACKAGE and (path.parent / "_problem.py").is_file()
    return tuple({PACKAGE.parent / a.source for op, family in families().items() if family == path.parent.name
                  for a in dispatch.algorithms(op) if a.source}) if is_family else ()


@functools.cache
def families():
    """{operation: its family}."""
    return {op: sample.family_of(op) for op in sample.OPS}


@functools.cache
def distances(roots, dispatched=True):
    """{file: imports that lead to it from the nearest root}; with `dispatched` a front end leads to all algorithms of its family."""
    found, front = dict.fromkeys(roots, 0), list(roots)
    while front:
        reached = set()
        for path in front:
            reached.update(mentions(path), algorithms_of(path) if dispatched else ())
        distance = found[front[0]] + 1
        front = [path for path in sorted(reached) if path not in found]
        found.update(dict.fromkeys(front, distance))
    return found


def roots_of(item):
    """Where `made_of` begins, as `distances` takes it: a run of the contract at its algorithm, front end and case; else at its file."""
    parameters = getattr(item, "callspec", None)
    parameters = parameters.params if parameters else {}
    row = parameters.get("pair") or parameters.get("refused") or parameters.get("algorithm")
    op, name = getattr(row, "op", None), getattr(row, "algo", None) or getattr(row, "name", None)
    if op is None or name is None:
        return (item.path,), True
    family = PACKAGE / sample.family_of(op)
    own = [PACKAGE.parent / a.source for a in dispatch.algorithms(op) if a.name == name and a.source]
    return (*own, family / "__init__.py", TESTS / "cases" / f"{op}.py", item.path), not own


def made_of(item):
    """`distances` of a test."""
    return distances(*roots_of(item))


def hops(item, files, whole):
    """How far a test is from the nearest changed file; None if none of them concerns it."""
    nearest = _nearest(roots_of(item), frozenset(files))
    return 9 if nearest is None and whole else nearest


@functools.cache
def _nearest(roots, files):
    reached = distances(*roots)
    return min((reached[path] for path in files if path in reached), default=None)


def files_of(names):
    """Paths of changed files, and of the tests that read those that nothing imports."""
    found = {ROOT / name for name in names}
    for name in names:
        found.update(TESTS / test for test in READ_BY.get(name.split("/")[0], ()))
    return found


# ---- what a test takes, and what it covers

class Costs:
    """CPU seconds of tests, as green.json has them."""

    def __init__(self, known, mode):
        self.known, self.mode = known, mode

    def of(self, item):
        function = item.nodeid.split("[")[0]
        row = getattr(item, "callspec", None) and item.callspec.params.get("pair")
        for name in (item.nodeid, row and f"{function}[{row.op}-{row.algo}]", function, None if row else function.split("::")[0]):
            if name in self.known:
                return self.known[name]
        if row and self.mode != "cpu":  # guessed for the simulator
            return (row.seconds or 0.02) * (1 if row.only else 4)
        return UNKNOWN[self.mode]


def covers(item, mode):
    """What a test covers: (what is never left out, what comes first among tests of changed files, what comes first among all others)."""
    parameters = getattr(item, "callspec", None)
    parameters = parameters.params if parameters else {}
    if any(mark.name == "always" for mark in getattr(item, "own_markers", ())):
        return {item.nodeid}, set(), set()
    if (row := parameters.get("pair")) is not None:
        if mode == "cpu":  # the simulator has had every algorithm: here the families count, compiling is most of a test
            return {sample.family_of(row.op)}, {(row.op, row.algo)}, {(row.op, row.algo), (row.op, row.dtype)}
        return {(row.op, row.algo), (row.op, "", row.dtype)}, {(row.op, row.algo, row.dtype)}, {(row.op, row.case)}
    if mode == "compile":
        operation = getattr(parameters.get("algorithm"), "op", None)
        return {item.path.name, (item.path.name, operation), parameters.get("arch")}, set(), set()
    if mode == "cpu":  # of building blocks the files, which are imported, and of operations the families
        op, function = parameters.get("op"), {item.nodeid.split("[")[0]}
        if hasattr(parameters.get("call"), "ops"):  # conv2d-grouped
            return {str(parameters["call"]).partition("-")[0]}, function, function
        part = sample.family_of(op) if op in sample.OPS else getattr(getattr(item, "function", None), "__module__", "")
        return {(item.path.name, part)}, function, function
    return {item.nodeid.split("[")[0]}, set(), set()


def select(items, mode, names=frozenset(), whole=False, known=None, budget=None):
    """[(kept, affected, CPU seconds)] of the tests, in their order."""
    costs = [Costs(known or {}, mode).of(item) for item in items]
    files = frozenset(files_of(names))
    far = [hops(item, files, whole) if names or whole else None for item in items]
    features = [covers(item, mode) for item in items]
    covered, kept, spent = set(), set(), 0.0
    budget = BUDGET[mode] if budget is None else budget

    def take(some, level, limit):
        """Tests that cover something new, the cheapest first, while they fit; at the last level all."""
        nonlocal spent
        for k in sorted(some, key=lambda k: (costs[k], k)):
            fresh = level is None or features[k][level] - covered
            if fresh and k not in kept and spent + costs[k] <= limit:
                kept.add(k)
                spent += costs[k]
                covered.update(*features[k])

    everything = range(len(items))
    take(everything, 0, float("inf"))
    for distance in sorted({d for d in far if d is not None}):
        near = [k for k in everything if far[k] == distance]
        take(near, 1, budget)
        take(near, None, budget)
    take(everything, 2, budget)
    take(everything, None, budget)
    return [(k in kept, far[k] is not None, costs[k]) for k in everything]


class Selection:
    """pytest's plugin of --select; see the module."""

    def __init__(self, mode, since):
        self.mode, self.left, self.why = mode, None, ""
        self.green = json.loads(GREEN.read_text()) if GREEN.is_file() else {}
        self.since = since or self.green.get("commit", "HEAD")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config, items):
        names, why = changed(self.since)
        moved = [f"{name} {self.green['versions'].get(name)} -> {version}" for name, version in versions().items()
                 if self.green and self.green["versions"].get(name) != version]
        self.why = "; ".join(filter(None, (why, ", ".join(moved))))
        chosen = select(items, self.mode, names, bool(self.why), self.green.get("costs"))
        self.left = collections.defaultdict(lambda: [0, 0, 0.0])
        for item, (kept, affected, cost) in zip(items, chosen):
            if not kept:
                row = self.left[item.path.name]
                row[:] = row[0] + 1, row[1] + affected, row[2] + cost
        config.hook.pytest_deselected(items=[item for item, (kept, *_) in zip(items, chosen) if not kept])
        # What has changed fails first; and the long ones come first, so that no worker is alone with one at the end.
        kept = [(not affected, cost < 5, item) for item, (kept, affected, cost) in zip(items, chosen) if kept]
        items[:] = [item for *_, item in sorted(kept, key=lambda row: row[:2])]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node, error):
        self.left, self.why = getattr(node, "workeroutput", {}).get("left_out", (self.left, self.why))

    def pytest_sessionfinish(self, session):
        if hasattr(session.config, "workeroutput") and self.left is not None:
            session.config.workeroutput["left_out"] = dict(self.left), self.why

    def pytest_terminal_summary(self, terminalreporter):
        if self.left is None:
            return
        write = terminalreporter.write_line
        terminalreporter.section("left out")
        write(f"first what has changed since {self.since[:12]}, then the cheapest; `make test-full` runs everything")
        if self.why:
            write(f"everything counts as changed: {self.why}")
        for name, (count, affected, seconds) in sorted(self.left.items(), key=lambda row: -row[1][2]):
            concerned = f", {affected} of them of changed files" if affected else ""
            write(f"{name}: {count} tests, {seconds:.0f} CPU s{concerned}")
        total = [sum(column) for column in zip(*self.left.values())] or [0, 0, 0.0]
        write(f"in all {total[0]} tests, {total[2]:.0f} CPU s, {total[1]} of them of changed files")


# ---- what the full run writes

class Recorder:
    """pytest's plugin of --record FILE: the CPU seconds of every test, those of the processes it starts too."""

    def __init__(self, path):
        self.path, self.costs = path, {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item):
        item.stash[STARTED] = cpu_seconds()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        try:
            return (yield)
        finally:
            item.user_properties.append(("cpu", cpu_seconds() - item.stash[STARTED]))

    def pytest_runtest_logreport(self, report):
        if report.when == "call":
            self.costs[report.nodeid] = dict(report.user_properties).get("cpu", 0.0)

    def pytest_sessionfinish(self, session):
        if not hasattr(session.config, "workeroutput"):
            pathlib.Path(self.path).write_text(json.dumps(self.costs))


STARTED = pytest.StashKey()


def cpu_seconds():
    """User and system time of this process and of its children that have ended."""
    return sum(os.times()[:4])


def condensed(costs):
    """{test: seconds} of the long ones, {function or file: mean seconds} of the others; of the contract by operation and algorithm."""
    groups, found = collections.defaultdict(list), {}
    for name, seconds in costs.items():
        if seconds >= LISTED:
            found[name] = round(seconds, 2)
            continue
        function, _, parameters = name.partition("[")
        groups[function].append(seconds)
        groups[function.split("::")[0]].append(seconds)
        if function.endswith("::test_contract"):
            op = next((op for op in sorted(sample.OPS, key=len, reverse=True) if parameters.startswith(f"{op}-")), None)
            algorithm = parameters[len(op) + 1:].split("-")[0] if op else None
            groups[f"{function}[{op}-{algorithm}]"].append(seconds)
    found.update((name, round(sum(some) / len(some), 3)) for name, some in groups.items())
    return dict(sorted(found.items()))


def write_green(tiers):
    """Write green.json after a full run that passed: `tiers` {name: file that --record has written}."""
    if dirty := git("status", "--porcelain"):
        sys.exit(f"green.json is not written: the working tree differs from its commit ({len(dirty) // 2} files)")
    costs = {name: json.loads(pathlib.Path(path).read_text()) for name, path in tiers.items()}
    entry = {"commit": git("rev-parse", "HEAD")[0], "date": git("log", "-1", "--format=%cs")[0], "versions": versions(),
             "tiers": {name: {"tests": len(some), "cpu_s": round(sum(some.values()))} for name, some in costs.items()},
             "costs": condensed({test: cost for some in costs.values() for test, cost in some.items()})}
    GREEN.write_text(json.dumps(entry, indent=0) + "\n")
    print(f"wrote {GREEN.relative_to(ROOT)}: {entry['tiers']}")


def add_costs(tiers):
    """Add to green.json what tests took that it does not know, which are newer than it; its commit stays, so they count as changed."""
    green = json.loads(GREEN.read_text())
    costs = {test: cost for path in tiers.values() for test, cost in json.loads(pathlib.Path(path).read_text()).items()}
    found = {name: cost for name, cost in condensed(costs).items() if name not in green["costs"]}
    green["costs"] = dict(sorted({**green["costs"], **found}.items()))
    GREEN.write_text(json.dumps(green, indent=0) + "\n")
    print(f"added {len(found)} costs to {GREEN.relative_to(ROOT)}")


if __name__ == "__main__":
    adds, files = "--add" in sys.argv, [argument.split("=", 1) for argument in sys.argv[1:] if "=" in argument]
    (add_costs if adds else write_green)(dict(files))

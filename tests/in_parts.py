"""Runs that are as long as a machine is there: ``--within`` ends one with its report, ``--resume`` goes on where the one before ended.

    python3 -m pytest -m gpu -n 16 --dist worksteal --within 280 --resume passed.txt tests

again and again, until nothing is left. Of several GPUs each process of xdist has one.
"""
import hashlib
import os
import pathlib
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
GPUS = pathlib.Path("/proc/driver/nvidia/gpus")  # a folder each


def add_options(parser):
    parser.addoption("--within", type=float, metavar="SECONDS", help="begin no test after so many seconds, and report what ran")
    parser.addoption("--resume", metavar="FILE",
                     help="leave out the tests that FILE says passed, of the same sources, and add to it those that pass now")


def configure(config):
    if seconds := config.getoption("--within"):
        config.pluginmanager.register(Within(config, seconds))
    if path := config.getoption("--resume"):
        config.pluginmanager.register(Resume(path, digest(ROOT / "dnnkern", ROOT / "tests"), hasattr(config, "workerinput")))


def share_gpus(environment):
    """Let a process of xdist see one of the GPUs, before anything asks for them."""
    worker, given = environment.get("PYTEST_XDIST_WORKER", ""), environment.get("CUDA_VISIBLE_DEVICES")
    every = given.split(",") if given else [str(k) for k in range(len(list(GPUS.iterdir())))] if GPUS.is_dir() else []
    if worker.startswith("gw") and len(every) > 1:
        environment["CUDA_VISIBLE_DEVICES"] = every[int(worker.removeprefix("gw")) % len(every)]


def digest(*folders) -> str:
    """Of all Python files in folders."""
    found = hashlib.sha256()
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        found.update(f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name}\0".encode() + path.read_bytes())
    return found.hexdigest()


class Within:
    """`--within`."""

    def __init__(self, config, seconds):
        self.config, self.seconds, self.started, self.session = config, seconds, time.monotonic(), None

    def pytest_sessionstart(self, session):
        self.session = session

    def pytest_runtest_logreport(self, report):
        if not hasattr(self.config, "workerinput") and time.monotonic() - self.started > self.seconds:  # xdist's processes are told
            stopped = self.config.pluginmanager.getplugin("dsession") or self.session
            stopped.shouldstop = f"{self.seconds:g} s are over"


class Resume:
    """`--resume`; a line each, so that a run that is killed loses none."""

    def __init__(self, path, sources, is_worker):
        self.path, self.sources, self.is_worker = pathlib.Path(path), sources, is_worker
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        self.passed = set(lines[1:]) if lines[:1] == [sources] else None
        if self.passed is None:
            self.passed = set()
            if not is_worker:
                self.path.write_text(sources + "\n")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config, items):
        left = [item for item in items if item.nodeid not in self.passed]
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in self.passed])
        items[:] = left

    def pytest_runtest_logreport(self, report):
        if not self.is_worker and (report.when == "call" and report.passed or report.skipped):
            with self.path.open("a") as file:
                file.write(report.nodeid + "\n")


share_gpus(os.environ)

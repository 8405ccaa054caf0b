"""Runs of tests in parts: one ends in time with its report, the next one goes on, and one of other sources begins anew."""
import os
import pathlib
import subprocess
import sys

import in_parts
import pytest

CONFTEST = """
import in_parts

def pytest_addoption(parser):
    in_parts.add_options(parser)

def pytest_configure(config):
    in_parts.configure(config)
"""
TESTS = """
import time
import pytest

@pytest.mark.parametrize("n", range(8))
def test_slow(n):
    time.sleep(0.5)
    assert n != 1

def test_skipped():
    pytest.skip("always")
"""


@pytest.mark.parametrize("processes", [0, 2])
def test_a_run_goes_on(tmp_path, processes):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(TESTS)
    passed = tmp_path / "passed.txt"

    def run(*words):
        options = "-q", "-n", str(processes), "-p", "no:cacheprovider", "--resume", str(passed)
        done = subprocess.run([sys.executable, "-m", "pytest", *options, *words], cwd=tmp_path, capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parent)})
        return done.returncode, done.stdout.replace(", 0 passed", "")
    code, first = run("--within", "1.4")
    names = passed.read_text().splitlines()[1:]
    assert code == 2 and "1.4 s are over" in first and "FAILED test_some.py::test_slow[1]" in first and 1 <= len(names) < 8
    code, rest = run()
    assert code == 1 and f"1 failed, {7 - len(names)} passed, 1 skipped" in rest  # what failed runs again
    code, again = run()
    assert code == 1 and "1 failed" in again and "passed" not in again and "skipped" not in again
    passed.write_text("other sources\n" + "\n".join(names))
    code, anew = run("-k", "slow and 3")
    assert code == 0 and "1 passed" in anew and len(passed.read_text().splitlines()) == 2


def test_each_process_has_a_gpu():
    def shared(**environment):
        in_parts.share_gpus(environment)
        return environment.get("CUDA_VISIBLE_DEVICES")
    assert [shared(PYTEST_XDIST_WORKER=f"gw{n}", CUDA_VISIBLE_DEVICES="2,5,7") for n in range(4)] == ["2", "5", "7", "2"]
    assert shared(CUDA_VISIBLE_DEVICES="2,5") == "2,5" and shared(PYTEST_XDIST_WORKER="gw1", CUDA_VISIBLE_DEVICES="3") == "3"

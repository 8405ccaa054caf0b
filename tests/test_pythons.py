"""The Pythons of the smoke part: which `.ci/pythons.py` finds."""
import os
import pathlib
import subprocess
import sys

import pytest

PROGRAM = pathlib.Path(__file__).resolve().parents[1] / ".ci" / "pythons.py"
SHIM = '#!/bin/sh\n[ "$1" = -c ] && exit {}\n'


def pythons(path, pyenv):
    """(what is printed, what is said besides) with no more than these directories to look into."""
    done = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True, check=True,
                          env={"PATH": str(path), "PYENV_ROOT": str(pyenv)})
    return done.stdout.split(), done.stderr


@pytest.fixture
def put(tmp_path):
    """Makes a file that stands for an interpreter: `works` or cannot make environments."""
    def put(name, works=True):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SHIM.format(int(not works)))
        path.chmod(0o755)
        return str(path)
    return put


@pytest.fixture
def versions():
    """The claimed versions, the oldest first, without that of the tests."""
    text = (PROGRAM.parents[1] / "setup.cfg").read_text()
    found = [line.rsplit(" ", 1)[1] for line in text.splitlines() if "Python :: 3." in line]
    assert len(found) >= 4
    return [version for version in found if version != "%d.%d" % sys.version_info[:2]]


def test_the_oldest_and_the_newest_of_path_and_pyenv(put, versions, tmp_path):
    wanted = [put(f"bin/python{versions[0]}"), put(f"pyenv/versions/{versions[-1]}.7/bin/python{versions[-1]}")]
    put(f"bin/python{versions[1]}"), put("bin/python3.7"), put("bin/python3.99"), put("bin/python%d.%d" % sys.version_info[:2])
    assert pythons(tmp_path / "bin", tmp_path / "pyenv") == (wanted, "")


def test_those_that_can_make_no_environment_are_passed_over(put, versions, tmp_path):
    put(f"bin/python{versions[0]}", works=False)
    wanted = put(f"bin/python{versions[1]}")
    assert pythons(tmp_path / "bin", tmp_path) == ([wanted], "")


def test_the_one_at_hand_where_there_is_no_other(versions, tmp_path):
    found, said = pythons(tmp_path, tmp_path)
    assert found == [sys.executable] and "no other Python of" in said and versions[0] in said
    assert os.access(found[0], os.X_OK)

"""Print interpreters for `make smoke`: the oldest and the newest Python of setup.cfg's classifiers that this machine has, on PATH or from
pyenv, other than the one that runs this; that one where there is no other."""
import configparser
import glob
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def claimed():
    """The versions of the classifiers, the oldest first."""
    config = configparser.ConfigParser()
    config.read(os.path.join(ROOT, "setup.cfg"))
    found = re.findall(r"Python :: (\d+)\.(\d+)", config["metadata"]["classifiers"])
    return sorted((int(major), int(minor)) for major, minor in found)


def interpreter(major, minor):
    """Path of one that can make environments; None where there is none."""
    name = f"python{major}.{minor}"
    pyenv = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    for path in (shutil.which(name), *glob.glob(f"{pyenv}/versions/{major}.{minor}.*/bin/{name}")):
        # pyenv's shims are on PATH for versions that are not in use, too, and distributions leave ensurepip out.
        if path and subprocess.run([path, "-c", "import ensurepip, venv"], capture_output=True).returncode == 0:
            return path
    return None


def main():
    others = [version for version in claimed() if version != sys.version_info[:2]]
    found = [path for version in others if (path := interpreter(*version))]
    if not found:
        print("smoke: this machine has no other Python of " + ", ".join("%d.%d" % version for version in claimed()), file=sys.stderr)
        found = [sys.executable]
    print(*dict.fromkeys((found[0], found[-1])))


if __name__ == "__main__":
    main()

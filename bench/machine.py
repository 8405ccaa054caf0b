"""What a number was measured on: device, clocks, driver, versions, commit, date. Everything is read, nothing is set."""
import datetime
import functools
import importlib.metadata
import os
import subprocess
from pathlib import Path

from dnnkern.host.compile import versions
from dnnkern.report.rows import SCHEMA

from . import sensors

# What estimates know of a device.
FACTS = "l2_bytes", "clock_hz", "bandwidth", "memory", "shared_per_block", "shared_per_sm", "registers_per_sm"
_QUERY = ("clocks.sm", "clocks.mem", "clocks.max.sm", "power.draw", "power.limit", "temperature.gpu", "driver_version")


def _output(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, cwd=Path(__file__).parent)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def clocks(device) -> dict:
    """Clocks, power and temperature at this moment, as nvidia-smi says; {} without it."""
    line = _output("nvidia-smi", f"--id={sensors.of(device).uuid or device.index}", f"--query-gpu={','.join(_QUERY)}",
                   "--format=csv,noheader,nounits")
    return dict(zip(_QUERY, (v.strip() for v in line.split(",")))) if line else {}


@functools.cache
def _commit():
    if os.environ.get("DNNKERN_COMMIT"):  # a copy of the tree without its history
        return os.environ["DNNKERN_COMMIT"]
    commit = _output("git", "rev-parse", "--short=12", "HEAD")
    if commit and _output("git", "status", "--porcelain", "--untracked-files=no", "--", ".."):
        commit += "+"
    return commit


@functools.cache
def _torch():
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def machine(device) -> dict:
    """The record that goes with every result; a "+" behind the commit says that tracked files differed from it."""
    return {"schema": SCHEMA, "device": device.name, "arch": device.arch, "sms": device.sms, "clocks": clocks(device),
            "facts": {name: getattr(device, name) for name in FACTS},
            "versions": versions(), "torch": _torch(), "commit": _commit(),
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}

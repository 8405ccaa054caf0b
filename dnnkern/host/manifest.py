"""What was found out about the package's files, kept between processes as long as no file changes: hashes, names of algorithms.

A file is as it was if its size and times are. Reading the sources of a kernel, or importing all algorithms of a family to learn their
names, would be most of the first call of a process whose kernels are compiled. Whatever is wrong with the manifest costs time alone:
what is not in it is found out again.
"""
import functools
import hashlib
import json
import os
import sys
import threading
import time
from pathlib import Path

from ..device._fork import in_forked_child
from .paths import cache_dir, read_json, write_atomically

PACKAGE = Path(__file__).resolve().parent.parent
FORMAT = 1
SETTLED = 2.0  # seconds after which another change of a file shows in its times, on every file system


def _unlock():
    global _lock
    _lock = threading.Lock()


_unlock()
in_forked_child(_unlock)


def _files(folder, name):
    """(name, size, times) of the Python files below a folder."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                about = entry.stat()
                yield f"{name}/{entry.name}", about.st_size, about.st_mtime_ns, about.st_ctime_ns
            elif "." not in entry.name and entry.name != "__pycache__" and entry.is_dir():
                yield from _files(entry.path, f"{name}/{entry.name}")


def _stamp():
    """What a manifest is of: these files as they are, and this Python. None while the latest change is so fresh that another one might not
    show."""
    files = sorted(_files(PACKAGE, PACKAGE.name))
    if time.time() - max(max(modified, changed) for _, _, modified, changed in files) / 1e9 < SETTLED:
        return None
    return hashlib.sha256(repr((FORMAT, sys.version, str(PACKAGE), files)).encode()).hexdigest()


@functools.cache
def _open():
    """(file, stamp, {part: {key: value}}) of this process's manifest; None where none can be kept."""
    folder = cache_dir()
    try:
        stamp = None if folder is None else _stamp()
    except OSError:  # a package that is no folder, or changes at this moment
        stamp = None
    if stamp is None:
        return None
    path = folder / "manifest" / f"{hashlib.sha256(str(PACKAGE).encode()).hexdigest()[:16]}.json"
    return path, stamp, _stored(path, stamp)


def _stored(path, stamp):
    found = read_json(path)
    try:
        parts = found["parts"] if found is not None and found["stamp"] == stamp else {}
        return {part: dict(values) for part, values in parts.items()}
    except (TypeError, KeyError, ValueError, AttributeError):  # JSON, but none of ours
        return {}


def stamp() -> str | None:
    """A hash that changes with any file of the package; None where nothing can be kept."""
    manifest = _open()
    return None if manifest is None else manifest[1]


def recall(part, key):
    """What `remember` was given, by this process or an earlier one; None where nothing is known."""
    manifest = _open()
    return None if manifest is None else manifest[2].get(part, {}).get(key)


def remember(part, key, value):
    """Keep what JSON can hold: a fact about the package's files, until one of them changes."""
    manifest = _open()
    if manifest is None:
        return
    path, stamp, parts = manifest
    with _lock:
        for name, values in _stored(path, stamp).items():  # others write too; what is lost between two of them is found again
            parts.setdefault(name, {}).update(values)
        parts.setdefault(part, {})[key] = value
        write_atomically(path, json.dumps({"stamp": stamp, "parts": parts}).encode())

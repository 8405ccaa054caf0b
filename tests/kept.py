"""What one run of the tests keeps for the next: made again wherever it is missing, and never needed."""
import json
import os
import pathlib
import time

from dnnkern.host.paths import write_atomically

DAYS = 14  # what was not used for so long is removed


def folder():
    """Where it is kept: DNNKERN_TESTS_CACHE_DIR, or a folder of the user's cache that only tests use."""
    given = os.environ.get("DNNKERN_TESTS_CACHE_DIR")
    if given:
        return pathlib.Path(given)
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "dnnkern-tests"


def json_of(name, make):
    """The value kept under a name, or what `make()` returns, which is kept from then on. Lists, dictionaries, strings and numbers."""
    path = folder() / f"{name}.json"
    try:
        value = json.loads(path.read_bytes())
        os.utime(path)
        return value
    except (OSError, ValueError):
        value = make()
    write_atomically(path, json.dumps(value).encode())
    return value


def forget_the_old():
    """Remove what no run has used for `DAYS`."""
    oldest = time.time() - 86400 * DAYS
    for path in folder().rglob("*"):
        try:
            if path.is_file() and path.stat().st_mtime < oldest:
                path.unlink()
        except OSError:
            pass  # another run has removed it

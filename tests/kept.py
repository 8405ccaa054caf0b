"""What one run of the tests keeps for the next: made again wherever it is missing or damaged, and never needed."""
import json
import os
import pathlib
import zlib

from parts import part

LIMIT = 1 << 30  # bytes


def folder():
    """Where it is kept: DNNKERN_TESTS_CACHE_DIR, or a folder of the user's cache that only tests use."""
    given = os.environ.get("DNNKERN_TESTS_CACHE_DIR")
    if given:
        return pathlib.Path(given)
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "dnnkern-tests"


def json_of(name, make):
    """The value kept under a name, or what `make()` returns, which is kept from then on. Lists, dictionaries, strings and numbers."""
    path = folder() / f"{name}.json.z"
    try:
        value = json.loads(zlib.decompress(path.read_bytes()))
        os.utime(path)
        return value
    except (OSError, ValueError, zlib.error):
        value = make()
    part("write_atomically")(path, zlib.compress(json.dumps(value).encode(), 1))
    return value


def prune(limit=LIMIT):
    """Remove what was used longest ago, until no more than `limit` bytes are left."""
    files = []
    for path in folder().rglob("*"):
        try:
            about = path.stat()
        except OSError:
            continue  # another run has removed it
        if path.is_file():
            files.append((max(about.st_atime, about.st_mtime), about.st_size, path))
    for _, size, path in sorted(files, reverse=True):
        limit -= size
        if limit < 0:
            path.unlink(missing_ok=True)

"""The cache directory: DNNKERN_CACHE_DIR, or the user's cache directory; none if neither is writable."""
import contextlib
import functools
import json
import math
import os
import tempfile
import warnings
from pathlib import Path


@functools.cache
def cache_dir() -> Path | None:
    """The cache directory, made if need be; None, with one warning, where it cannot be written."""
    given = os.environ.get("DNNKERN_CACHE_DIR")
    if given:
        path = Path(given)
    else:
        try:
            import platformdirs
            path = Path(platformdirs.user_cache_dir("dnnkern"))
        except ImportError:
            path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dnnkern"
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        warnings.warn(f"dnnkern: no cache, {path} cannot be written ({error}); kernels are compiled again in every process", RuntimeWarning,
                      stacklevel=2)
        return None
    return path


def replace(path: Path, data: bytes):
    """Write under a temporary name and rename: readers see the old file or the new one, writers need no lock. OSError where it fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def write_atomically(path: Path, data: bytes) -> bool:
    """As `replace`; False, with a warning, where it fails."""
    try:
        replace(path, data)
    except OSError as error:
        warnings.warn(f"dnnkern: could not write {path}: {error}", RuntimeWarning, stacklevel=2)
        return False
    return True


def read_json(path: Path):
    """Parsed file, or None where it is missing or broken (a broken one is removed, with a warning)."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        discard(path, error)
        return None


def discard(path: Path, error):
    """Warn of a broken file, once, and remove it where that is possible: a directory, or a file that is read-only, stays and is ignored."""
    if path not in _DISCARDED:
        _DISCARDED.add(path)
        warnings.warn(f"dnnkern: {path} is broken ({type(error).__name__}: {error}) and is ignored", RuntimeWarning, stacklevel=3)
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


_DISCARDED = set()


def plain(value):
    """The value as data every JSON reader takes: infinities and NaN become text."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value) or not isinstance(value, (int, float, str, type(None))):
        return str(value)
    return value


def check_target(command, path, makes_folders=False, option="--out"):
    """ValueError where a file could not be written in the end: of an option, before anything is computed."""
    folder = path.parent
    while makes_folders and not folder.exists():
        folder = folder.parent
    why = ("it is a folder" if path.is_dir() else f"there is no folder {folder}" if not folder.is_dir() else
           None if os.access(path if path.exists() else folder, os.W_OK) else "it may not be written")
    if why:
        raise ValueError(f"{command}: {option} {path}: {why}; expected a file that can be written")

"""The command ``dnnkern cache``: what the cache directory has, and what becomes of it."""
import contextlib
import os
import sys
from pathlib import Path

from . import _pack
from ._output import FAILED, document
from ._parser import program
from ._table import bytes_text, progress, say, show

PARTS = {"cubin": "kernels for GPUs", "cpu": "kernels for the processor", "packs": "imported kernel packs", "find": "measurements",
         "chosen": "choices of algorithms", "manifest": "facts about the package's files"}

HELP = """Show what the cache directory has, by part; print its path; clear it, or some of its parts; import a kernel pack, whose kernels
are served from then on."""


def add_arguments(add):
    """The words of the command, by a parser's ``add_argument``; what comes of the last is the action's."""
    add("action", nargs="?", default="show", choices=("show", "clear", "path", "import"), help="default: show")
    return add("what", nargs="*", help=f"of import: the pack; of clear: {', '.join(PARTS)}, default all of them")


def main(arguments) -> int:
    """Run the action."""
    from .host.paths import cache_dir
    action, what = arguments.action, arguments.what
    if what and action in ("show", "path"):
        raise ValueError(f"cache {action}: {what[0]!r} is not expected")
    if action == "import":
        return _import(what, arguments.json)
    unknown = [part for part in what if part not in PARTS]
    if unknown:
        from .host.suggest import nearest
        raise ValueError(f"cache clear: there is no part {unknown[0]!r}{nearest(unknown[0], PARTS) or '; expected ' + ', '.join(PARTS)}")
    folder = cache_dir()
    if action == "path":
        return _path(folder, arguments.json)
    return (_clear if action == "clear" else _show)(folder, what or list(PARTS), arguments.json)


def _path(folder, as_json):
    if as_json:
        document("cache path", folder=folder and str(folder))
    elif folder is None:
        print(f"{program()}: there is no cache directory; DNNKERN_CACHE_DIR names one", file=sys.stderr)
    else:
        print(folder)
    return FAILED if folder is None else 0


def _show(folder, parts, as_json):
    rows = [] if folder is None else [(part, PARTS[part], *_counted(folder / part)) for part in parts]
    if as_json:
        document("cache show", folder=folder and str(folder),
                 parts=[dict(zip(("part", "meaning", "files", "bytes"), row)) for row in rows])
    elif folder is None:
        say("There is no cache directory; DNNKERN_CACHE_DIR names one.")
    else:
        show(("folder", "what", "files", "size"), [(*row[:3], bytes_text(row[3])) for row in rows], title=str(folder), right=(2, 3))
    return 0


def _counted(folder):
    """(files, bytes) of a part."""
    files = total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # another process clears too
            if path.is_file():
                files, total = files + 1, total + path.stat().st_size
    return files, total


def _clear(folder, parts, as_json):
    """Remove files alone, one by one: a process that runs finds out again what it does not find."""
    removed, failed = dict.fromkeys(parts, (0, 0)), {}
    with progress("clearing"):
        for part in parts if folder is not None else ():
            count = size = 0
            for where, folders, names in os.walk(folder / part, topdown=False):
                for name in names:
                    path = Path(where) / name
                    try:
                        nbytes = path.lstat().st_size
                        path.unlink()
                        count, size = count + 1, size + nbytes
                    except FileNotFoundError:
                        pass
                    except OSError as error:
                        failed[str(path)] = error.strerror
                with contextlib.suppress(OSError):  # another process has written into it meanwhile
                    os.rmdir(where)
            removed[part] = count, size
    if as_json:
        document("cache clear", folder=folder and str(folder), failed=failed,
                 removed=[{"part": part, "files": count, "bytes": size} for part, (count, size) in removed.items()])
    else:
        say(f"{sum(count for count, _ in removed.values())} files are removed, {bytes_text(sum(size for _, size in removed.values()))}")
    for path, why in failed.items():
        print(f"{program()}: {path} cannot be removed: {why}", file=sys.stderr)
    return FAILED if failed else 0


def _import(what, as_json):
    from .host import packs
    from .host.sources import package
    if len(what) != 1:
        raise ValueError(f"cache import: {'several files are' if what else 'no file is'} given; expected a kernel pack, as `dnnkern pack` "
                         "writes")
    try:
        with progress("checking"):
            header = packs.install(Path(what[0]), _pack.sources(), _archs_here()).header
    except (OSError, ValueError) as error:
        raise ValueError(f"cache import: {what[0]} is refused: {error}") from None
    package()  # which is kept: the first call has not to read all files
    if as_json:
        document("cache import", file=what[0], **{name: header[name] for name in ("kernels", "choices", "archs")})
    else:
        say(f"{header['kernels']} kernels and {header['choices']} choices for {', '.join(header['archs'])} are imported")
    return 0


def _archs_here():
    """Architectures of the GPUs of this machine; None where there are none."""
    from .device import HOST_MEMORY
    from .host.device import device, device_count
    from .host.driver import CudaError
    try:
        return None if HOST_MEMORY else {device(index).arch for index in range(device_count())}
    except CudaError:  # compilation only: there is no driver
        return None

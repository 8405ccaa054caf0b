"""Which algorithms were chosen, kept from one process to the next: they depend on the problem, the device and the package's files alone.

There is one file for each operation and device, whose first line is the `manifest.stamp` of the files that chose; one that is of other
files begins anew. Every other line is a choice. It is added by a single write, so that processes need no lock, and begins with a checksum:
a line that is torn, or was changed, is not there. Whatever is wrong with a file, or cannot be written, costs time alone.

Kernel packs have such lines as well, those of an operation as one entry. Its key has what they depend on: the kind of device, and all
sources of the package. They are asked where there is no choice of the user's own.
"""
import contextlib
import hashlib
import os
import zlib

from ..device import SIMULATED
from . import manifest, packs, sources
from .paths import cache_dir, replace

KEEPS = not SIMULATED  # what a simulator chooses is not a device's
MOST = 1 << 20         # bytes of a file, some thousand choices
_files = {}            # path, or (operation, device) of a pack's: {question: line}


def question(problem, *settings) -> str:
    """The name of what was asked: every field of the problem, and what else the choice depends on."""
    return hashlib.sha256(repr((problem, settings)).encode()).hexdigest()[:32]


def recall(op, device, asked):
    """(algorithm's name, why, its configuration's text, its source) as an earlier process chose, or who made a kernel pack; None where
    nothing is known."""
    file = _file(op, device)
    return file and _read_line(file[1].get(asked.encode())) or _read_line(_packed(op, device).get(asked.encode()))


def _read_line(line):
    if not line:
        return None
    checksum, _, rest = line.partition(b" ")
    fields = rest.decode(errors="replace").split("\t")
    return tuple(fields[1:]) if checksum == _checksum(rest) and len(fields) == 5 else None


def line_of(asked, name, why, config, source) -> bytes:
    """A choice as it is written."""
    rest = "\t".join((asked, name, why, config, source)).encode()
    return _checksum(rest) + b" " + rest


def keep(op, device, asked, *choice):
    """Keep a choice, as `recall` returns it; nothing where that is not possible."""
    file = _file(op, device)
    if file is None:
        return
    (path, stamp), lines = file
    line = line_of(asked, *choice)
    if b"\n" in line or lines.get(asked.encode()) == line:
        return
    lines[asked.encode()] = line
    with contextlib.suppress(OSError):
        if _is_current(path, stamp):
            handle = os.open(path, os.O_WRONLY | os.O_APPEND)
            try:
                os.write(handle, b"\n" + line)  # after whatever an earlier writer left unfinished
            finally:
                os.close(handle)
        else:
            replace(path, stamp + b"\n" + line)


def forget():
    """Read the files again."""
    _files.clear()


def _file(op, device):
    """((path, stamp), {question: line}); None where nothing can be kept."""
    folder, stamp = cache_dir() if KEEPS else None, manifest.stamp() if KEEPS else None
    if folder is None or stamp is None:
        return None
    of = hashlib.sha256(repr((str(manifest.PACKAGE), device)).encode()).hexdigest()[:16]
    path, stamp = folder / "chosen" / f"{device.folder}-{of}" / f"{op}.txt", stamp.encode()
    if path not in _files:
        _files[path] = _read(path, stamp)
    return (path, stamp), _files[path]


def pack_key(op, device) -> bytes:
    """What the choices of an operation for such devices are called in kernel packs. Devices are alike that have as many multiprocessors of
    the same architecture: their rates may differ, but kernels that a pack has are not compiled."""
    return hashlib.sha256("\0".join(("choices", op, device.arch, str(device.sms), sources.package())).encode()).digest()


def _packed(op, device):
    """{question: line} of a pack."""
    if (op, device) not in _files:
        content = None if device.is_processor else packs.get(lambda: pack_key(op, device))
        _files[op, device] = _by_question((content or b"").split(b"\n"))
    return _files[op, device]


def _by_question(lines):
    return {line[9:41]: line for line in lines}


def _read(path, stamp):
    try:
        first, *lines = path.read_bytes().split(b"\n")
    except OSError:
        return {}
    return _by_question(lines) if first == stamp else {}


def _is_current(path, stamp):
    """Whether a line can be added to the file."""
    try:
        with open(path, "rb") as file:
            return file.readline(len(stamp) + 1).rstrip() == stamp and os.fstat(file.fileno()).st_size < MOST
    except FileNotFoundError:
        return False


def _checksum(data):
    return b"%08x" % zlib.crc32(data)

"""Kernel to cubin: Numba's LTO-IR through the CUDA linker, kept on disk.

Not its PTX: that the linker compiles as one of several units, in which it ignores setmaxnreg and makes a kernel live with the registers it
is launched with. LTO-IR it compiles as a whole.

The key of a cubin is a hash of everything its code depends on: the kernel's bytecode with its closure (configs are closure integers) and
the globals it names, the same of the functions it calls, the sources that the files of all these import (`sources`), the parameter types,
the architecture and the versions of the compilers.
"""
import contextlib
import contextvars
import functools
import hashlib
import json
import os
import re
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

from ..device._fingerprint import Fingerprint
from ..device._parameters import described
from . import packs
from .paths import cache_dir, write_atomically
from .pending import awaited
from .sources import PACKAGE, digest
from .versions import versions

FORMAT = 4
COMPILER = "host/compile.py", "device/_numba_compile.py", "device/_numba_typing.py"  # what compiles every kernel, with all it imports
_HOLDER = contextvars.ContextVar("holder", default=None)


@dataclass(frozen=True)
class Binary:
    """A compiled kernel: code, entry name, and what ptxas says it takes."""
    code: bytes
    entry: str
    arch: str
    registers: int
    shared: int
    stack: int


def cache_key(kernel, signature, arch) -> str:
    """Name of the kernel's cubin in the cache."""
    found = Fingerprint()
    text = found.of(kernel)
    types_of = ",".join(map(described, signature))
    parts = [str(FORMAT), text, types_of, arch, json.dumps(versions(), sort_keys=True), _sources(frozenset(found.files))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def pack_key(kernel, signature, arch) -> bytes | None:
    """The part of the key that is the kernel's own, whatever compiles it: what it is called in kernel packs. None where a function of it is
    in no file."""
    found = Fingerprint(bytecode=False)
    text = found.of(kernel)
    if not all(map(os.path.isfile, found.files)):
        return None
    parts = [text, ",".join(map(described, signature)), arch, _sources(frozenset(found.files))]
    return hashlib.sha256("\0".join(parts).encode()).digest()


@functools.cache
def _sources(files):
    """Hash of the sources that functions of these files can depend on, and of what compiles them."""
    return digest(*(PACKAGE / name for name in COMPILER), *(path for name in files if (path := Path(name).resolve()).is_file()))


@functools.lru_cache(maxsize=4096)
def file_of(kernel, signature, arch) -> str:
    """Name of the kernel's file in the cache directory."""
    return f"cubin/{arch}/{cache_key(kernel, signature, arch)}.cubin"


def compile_kernel(kernel, signature, arch) -> Binary:
    """The kernel for these parameter types ("float32*", "int32", ...) and architecture, from the disk cache or compiled."""
    return kept(Binary, lambda: file_of(kernel, signature, arch), lambda: compile_anew(kernel, signature, arch),
                lambda: packed(kernel, signature, arch))


def packed(kernel, signature, arch) -> Binary | None:
    """The kernel of a pack; None where no pack has it."""
    content = packs.get(lambda: pack_key(kernel, signature, arch))
    return None if content is None else parsed(content, Binary)


def is_packed(kernel, signature, arch) -> bool:
    """Whether a pack has the kernel."""
    return packs.has(lambda: pack_key(kernel, signature, arch))


def is_missing(name) -> bool:
    """Whether `kept` would make and keep what has this name; it keeps nothing where there is no cache directory."""
    folder, holder = cache_dir(), _HOLDER.get()
    return folder is not None and not (folder / name).exists() and (holder is None or name not in holder)


@contextlib.contextmanager
def held_by(holder):
    """In the block, what `kept` is asked for is in `holder` too, or comes from there: it has ``get(name, kind)``, which is None for what it
    lacks, and ``put(name, object)``."""
    token = _HOLDER.set(holder)
    try:
        yield
    finally:
        _HOLDER.reset(token)


def kept(kind, name, make, elsewhere=lambda: None):
    """An object of this dataclass, with its machine code as `code`: from the disk cache under `name()`, else what `elsewhere` finds, else
    made and kept in the cache. `held_by` goes before all of them."""
    holder = _HOLDER.get()
    if holder is None:
        return _kept(kind, name, make, elsewhere)
    found = holder.get(name(), kind)
    if found is None:
        found = _kept(kind, name, make, elsewhere)
        holder.put(name(), found)
    return found


def _kept(kind, name, make, elsewhere):
    folder = cache_dir()
    if folder is None:
        return elsewhere() or make()
    name = name()
    path = folder / name
    found = _read(path, kind)
    if found is None and awaited(name):
        found = _read(path, kind)
    if found is None:
        found = elsewhere()
    if found is None:
        found = make()
        write_atomically(path, content_of(found))
    return found


def _read(path, kind):
    try:
        return parsed(path.read_bytes(), kind)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        warnings.warn(f"dnnkern: cached kernel {path.name} is broken ({error}); compiling it again", RuntimeWarning, stacklevel=3)
        return None


def content_of(made) -> bytes:
    """An object as `kept` writes it: a line of JSON, with the code's checksum, and the code."""
    head = asdict(made)
    del head["code"]
    head["sha256"] = hashlib.sha256(made.code).hexdigest()
    return json.dumps(head).encode() + b"\n" + made.code


def parsed(content, kind):
    """The object of such content; an error, of any kind, where it is something else."""
    head, code = content.split(b"\n", 1)
    head = json.loads(head)
    if hashlib.sha256(code).hexdigest() != head.pop("sha256"):
        raise ValueError("checksum does not match")
    return kind(code=code, **head)


def link(ltoir, arch) -> tuple:
    """Machine code of a kernel's LTO-IR, and what the linker's ptxas -v says of it; needs no GPU."""
    from cuda.core import Linker, LinkerOptions, ObjectCode
    options = LinkerOptions(arch=arch, link_time_optimization=True, ptxas_options=["-v"])
    linker = Linker(ObjectCode.from_ltoir(ltoir), options=options)
    return bytes(linker.link("cubin").code), linker.get_info_log() or ""


def compile_anew(kernel, signature, arch) -> Binary:
    """The kernel, compiled, whatever the cache has."""
    from ..device._numba_compile import compile_ltoir
    ltoir, entry = compile_ltoir(kernel, signature, arch)
    code, log = link(ltoir, arch)
    for line in log.splitlines():
        if "Performance Loss" in line:
            warnings.warn(f"dnnkern: {kernel.py_func.__name__} for {arch}: {line}", RuntimeWarning, stacklevel=3)
    return Binary(code=code, entry=entry, arch=arch, registers=_number(r"Used (\d+) registers", log),
                  shared=_number(r"(\d+) bytes smem", log), stack=_number(r"(\d+) bytes (?:cumulative )?stack", log))


def _number(pattern, text):
    found = re.search(pattern, text)
    return int(found.group(1)) if found else 0

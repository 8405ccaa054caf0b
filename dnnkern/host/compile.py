"""Kernel to cubin: Numba's LTO-IR through the CUDA linker, kept on disk.

Not its PTX: that the linker compiles as one of several units, in which it ignores setmaxnreg and makes a kernel live with the registers it
is launched with. LTO-IR it compiles as a whole.

The key of a cubin is a hash of everything its code depends on: the kernel's bytecode with its closure (configs are closure integers),
the sources of `dnnkern.device` and of the family that holds the kernel, the parameter types, the architecture and the versions of the
compilers.
"""
import functools
import hashlib
import importlib.metadata
import inspect
import json
import re
import types
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

from .paths import cache_dir, write_atomically

PACKAGE = Path(__file__).resolve().parent.parent
FORMAT = 2


@dataclass(frozen=True)
class Binary:
    """A compiled kernel: code, entry name, and what ptxas says it takes."""
    code: bytes
    entry: str
    arch: str
    registers: int
    shared: int
    stack: int


@functools.cache
def versions() -> dict:
    """Versions that a cubin, or a measured time, depends on."""
    found = {}
    for name in ("dnnkern", "numba-cuda", "numba", "llvmlite", "nvidia-nvvm", "nvidia-nvjitlink", "cuda-core"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "source" if name == "dnnkern" else "system"
    return found


@functools.cache
def source_hash(folder: Path) -> str:
    """Hash of a folder's Python files."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@functools.cache
def _file_hash(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def fingerprint(value) -> str:
    """A text equal for two kernels only if they compile to the same code, given the same sources."""
    function = getattr(value, "py_func", value)
    if isinstance(function, types.FunctionType):
        code = function.__code__
        cells = [_cell(c) for c in function.__closure__ or ()]
        return f"{function.__module__}.{function.__qualname__}({_code(code)};{','.join(cells)};{function.__defaults__!r})"
    if isinstance(value, (int, float, str, bytes, bool, type(None))):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return "(" + ",".join(fingerprint(v) for v in value) + ")"
    if isinstance(value, types.ModuleType):
        return value.__name__
    if hasattr(value, "fingerprint"):
        return repr(value.fingerprint)
    if hasattr(value, "_defn"):  # an intrinsic written by hand
        return fingerprint(value._defn)
    if isinstance(value, types.CodeType):
        return _code(value)
    # Intrinsics, numba types and NumPy scalars: their name or value; memory addresses in a repr would defeat the cache.
    name = getattr(value, "_name", None) or getattr(value, "__qualname__", None) or repr(value)
    return f"{type(value).__qualname__}:{re.sub(r'0x[0-9a-f]+', '', str(name))}"


def _cell(cell) -> str:
    try:
        value = cell.cell_contents
    except ValueError:  # never set, since only a branch that the configuration rules out reads it
        return "unset"
    return fingerprint(value)


def _code(code) -> str:
    constants = [_code(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    return hashlib.sha256(repr((code.co_code, code.co_names, code.co_varnames, constants)).encode()).hexdigest()[:16]


def cache_key(kernel, signature, arch) -> str:
    """Name of the kernel's cubin in the cache."""
    source = Path(inspect.getsourcefile(kernel.py_func) or "").resolve()
    parts = [str(FORMAT), fingerprint(kernel), repr(sorted(kernel.targetoptions.items(), key=str)), ",".join(signature), arch,
             json.dumps(versions(), sort_keys=True), source_hash(PACKAGE / "device")]
    if PACKAGE in source.parents:
        parts += [source_hash(source.parent), source_hash(PACKAGE / "matmul")]
    elif source.is_file():
        parts.append(_file_hash(str(source)))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def compile_kernel(kernel, signature, arch) -> Binary:
    """The kernel for these parameter types ("float32*", "int32", ...) and architecture, from the disk cache or compiled."""
    folder = cache_dir()
    path = folder / "cubin" / arch / f"{cache_key(kernel, signature, arch)}.cubin" if folder else None
    if path is not None:
        cached = _read(path)
        if cached is not None:
            return cached
    binary = _compile(kernel, signature, arch)
    if path is not None:
        head = asdict(binary)
        del head["code"]
        head["sha256"] = hashlib.sha256(binary.code).hexdigest()
        write_atomically(path, json.dumps(head).encode() + b"\n" + binary.code)
    return binary


def _read(path) -> Binary | None:
    try:
        head, code = path.read_bytes().split(b"\n", 1)
        head = json.loads(head)
        if hashlib.sha256(code).hexdigest() != head.pop("sha256"):
            raise ValueError("checksum does not match")
        return Binary(code=code, **head)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        warnings.warn(f"dnnkern: cached kernel {path.name} is broken ({error}); compiling it again", RuntimeWarning, stacklevel=3)
        return None


def link(ltoir, arch) -> tuple:
    """Machine code of a kernel's LTO-IR, and what the linker's ptxas -v says of it; needs no GPU."""
    from cuda.core import Linker, LinkerOptions, ObjectCode
    options = LinkerOptions(arch=arch, link_time_optimization=True, ptxas_options=["-v"])
    linker = Linker(ObjectCode.from_ltoir(ltoir), options=options)
    return bytes(linker.link("cubin").code), linker.get_info_log() or ""


def _compile(kernel, signature, arch) -> Binary:
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

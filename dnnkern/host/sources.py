"""What a Python file is made of: the source files that it imports, found by reading them, nothing is imported.

Compiled kernels, measured times and the choice of tests rest on it: a change in a file concerns those whose closure holds the file.
"""
import functools
import hashlib
import re
from pathlib import Path

from . import manifest
from .manifest import PACKAGE

# What runs launches, chooses algorithms, simulates and runs on the processor. No kernel is made of it: of what it computes only values that
# a kernel captures or names reach its machine code, and those are in its fingerprint. A device function written there counts with its file.
HOST = ("dnnkern/algorithm.py", "dnnkern/dispatch.py", "dnnkern/registry.py", "dnnkern/find.py", "dnnkern/host/", "dnnkern/device/sim/",
        "dnnkern/device/cpu/", "dnnkern/device/host_memory.py")

_IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)|import[ \t]+([^\n]*))", re.MULTILINE)


@functools.cache
def imports(path: Path) -> frozenset:
    """The files that a file imports anywhere in it: of this package, of its own, and for a file below the folder that holds this package
    of any folder there. Modules it names, not the packages above them, unless it takes a name from one.

    >>> {p.name for p in imports(PACKAGE / "host" / "paths.py")} <= {p.name for p in PACKAGE.rglob("*.py")}
    True
    """
    top = _top(path)
    package = path.parent.relative_to(top).parts
    own = {PACKAGE.name, *package[:1]} if top == PACKAGE.parent else None  # what lies beside them may be all that is installed
    found = set()
    for source, names, modules in _IMPORT.findall(_content(path)[0].replace("\\\n", " ")):
        if source:
            level = len(source) - len(source.lstrip("."))
            base = [*package[:len(package) - level + 1]] if level else []
            base += [part for part in source[level:].split(".") if part]
            wanted = [[*base, name] for name in _names(names)]
        else:
            base, wanted = [], [name.split(".") for name in _names(modules)]
        files = [_file(top, tuple(name)) for name in wanted if own is None or name[0] in own]
        if base and None in files:
            files.append(_file(top, tuple(base)))
        found.update(files)
    return frozenset(found - {None, path})


@functools.cache
def _content(path):
    """Text and hash of a file."""
    data = path.read_bytes()
    return data.decode(errors="replace"), hashlib.sha256(data).hexdigest()


@functools.cache
def _top(path):
    """The folder that holds the package of a file, or the file."""
    top = path.parent
    while (top / "__init__.py").is_file():
        top = top.parent
    return top


def _names(text):
    """Of "(a, b as c)  # why": a, b."""
    text = re.sub(r"#[^\n]*", "", text).strip(" ()\n\t;")
    return [words[0] for words in map(str.split, text.split(",")) if words]


@functools.cache
def _file(top, parts):
    roots = (top, PACKAGE.parent) if parts[0] == PACKAGE.name or PACKAGE.parent in top.parents else (top,)
    for root in roots:
        path = root.joinpath(*parts)
        for found in (path.with_suffix(".py"), path / "__init__.py"):
            if found.is_file():
                return found
    return None


@functools.cache
def distances(paths: frozenset) -> dict:
    """{file: how many imports lead to it from the nearest of `paths`}, of all files that they are made of, themselves with 0."""
    found, front = dict.fromkeys(paths, 0), list(paths)
    while front:
        reached = {other for path in front for other in imports(path)} - found.keys()
        distance = found[front[0]] + 1
        found.update(dict.fromkeys(reached, distance))
        front = sorted(reached)
    return found


def closure(*paths: Path) -> frozenset:
    """The files and all that they import, directly or not."""
    return frozenset(distances(frozenset(paths)))


def digest(*paths: Path) -> str:
    """Hash of the files and of all that they import, as far as a kernel's machine code can depend on it: without `HOST`.

    Of names only those below the folder that holds the package: it is the same in every checkout.
    """
    if not all(PACKAGE in path.parents for path in paths):
        return _digest(paths)
    key = hashlib.sha256("\n".join(sorted(map(str, paths))).encode()).hexdigest()[:16]
    found = manifest.recall("digests", key)
    if found is None:
        found = _digest(paths)
        manifest.remember("digests", key, found)
    return found


def package() -> str:
    """Hash of all sources of the package."""
    found = manifest.recall("digests", "package")
    if found is None:
        files = sorted((path.relative_to(PACKAGE).as_posix(), path) for path in PACKAGE.rglob("*.py"))
        lines = (f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}" for name, path in files)
        found = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        manifest.remember("digests", "package", found)
    return found


def _digest(paths):
    found, left = set(), set(paths)
    while left:
        path = left.pop()
        found.add(path)
        left |= {other for other in imports(path) - found if not _name(other).startswith(HOST)}
    return hashlib.sha256("\n".join(sorted(f"{_name(path)} {_content(path)[1]}" for path in found)).encode()).hexdigest()


def _name(path):
    return path.relative_to(_top(path)).as_posix()

"""What a Python file is made of: the source files that it imports, found by reading them, nothing is imported.

Compiled kernels, measured times and the choice of tests rest on it: a change in a file concerns those whose closure holds the file.
"""
import functools
import re
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent

_IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)|import[ \t]+([^\n]*))", re.MULTILINE)


@functools.cache
def imports(path: Path) -> frozenset:
    """The files that a file imports anywhere in it: of this package, of its own, and for a file below the folder that holds this package
    of any folder there. Modules it names, not the packages above them.

    >>> {p.name for p in imports(PACKAGE / "host" / "paths.py")} <= {p.name for p in PACKAGE.rglob("*.py")}
    True
    """
    top = path.parent
    while (top / "__init__.py").is_file():
        top = top.parent
    package = path.parent.relative_to(top).parts
    own = {PACKAGE.name, *package[:1]} if top == PACKAGE.parent else None  # what lies beside them may be all that is installed
    found = set()
    for source, names, modules in _IMPORT.findall(path.read_text().replace("\\\n", " ")):
        if source:
            level = len(source) - len(source.lstrip("."))
            base = [*package[:len(package) - level + 1]] if level else []
            base += [part for part in source[level:].split(".") if part]
            wanted = [base, *([*base, name] for name in _names(names))]
        else:
            wanted = [name.split(".") for name in _names(modules)]
        found.update(_file(top, tuple(name)) for name in wanted if name and (own is None or name[0] in own))
    return frozenset(found - {None, path})


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

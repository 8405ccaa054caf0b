"""The algorithms that exist, by operation and name, and the files that hold them.

An algorithm is a file ``dnnkern/<family>/<op>_<name>.py`` that binds `ALGORITHM`, or `ALGORITHMS` if one idea serves several
directions of an operation; or a folder ``<name>/`` whose `__init__.py` does. A folder that binds neither is a group of algorithms. A
family's algorithms are discovered when one of its operations is first used; there is no list. `Algorithm.source` is the file. Which file
binds which algorithm is kept (`host.manifest`), so that another process which knows the name imports that file alone.
"""
import importlib
import threading
from dataclasses import replace
from pathlib import Path
from typing import Callable

from .algorithm import Algorithm, Note, NotSupported
from .device._fork import in_forked_child
from .host import manifest
from .host.scalars import shown
from .host.suggest import nearest

PACKAGE = Path(__file__).resolve().parent

# What operations are called in BLAS and in PyTorch.
ELSEWHERE = {"matmul": "gemm mm bmm addmm baddbmm linear dense", "conv_fwd": "conv1d conv2d conv3d convolution",
             "sdpa_fwd": "attention mha", "activation_fwd": "relu gelu silu swish elu sigmoid tanh mish", "rnn_fwd": "lstm gru",
             "reduce": "sum mean prod amax amin norm", "binary": "add sub mul div maximum minimum",
             "unary": "exp log sqrt rsqrt abs neg", "concat": "cat stack"}

_registry: dict[str, dict[str, Algorithm]] = {}
_discovered: set[str] = set()
_operations: dict[str, object] = {}
_family_of: dict[str, str] = {}
_listeners: list[Callable] = []
_users: set = set()  # what users registered, or removed of the library's own


def _unlock():
    global _lock
    _lock = threading.RLock()


_unlock()
in_forked_child(_unlock)


def when_choices_change(forget: Callable):
    """Call `forget()` whenever an earlier answer of `get_algorithm` may be outdated."""
    _listeners.append(forget)


def choices_changed():
    """There is a new algorithm or measurement: whoever keeps choices drops them."""
    for forget in _listeners:
        forget()


def declare(operation, family):
    """Register a front end (`host.front.Operation`) and its family, so that other families need no search."""
    _operations.setdefault(operation.op, operation)  # the first: those it creates for lists of other lengths have the same name
    _family_of[operation.op] = family


def operation_of(op):
    """The front end of an operation."""
    if op in _operations:
        return _operations[op]
    for family in sorted(families(), key=lambda f: not op.startswith(f)):
        if op not in _operations:
            importlib.import_module(f"{__package__}.{family}")
    if op not in _operations:
        raise ValueError(f"no family has an operation {op!r}")
    return _operations[op]


def families() -> list[str]:
    """Names of the families that exist: folders with a `_problem.py`."""
    return sorted(p.parent.name for p in PACKAGE.glob("*/_problem.py"))


def _discover(family):
    with _lock:
        if family in _discovered:
            return
        whole = list(_found(PACKAGE / family))  # registered together: an error in any file of a family is raised at every use
        found: dict[str, dict[str, Algorithm]] = {}
        for algorithm in sorted(whole, key=lambda a: (a.op, a.name)):
            same = found.setdefault(algorithm.op, {})
            if algorithm.name in same:
                raise ValueError(f"{algorithm.source} and {same[algorithm.name].source} both bind {algorithm}")
            same[algorithm.name] = _registry.get(algorithm.op, {}).get(algorithm.name, algorithm)  # the one that `_known` has given out
        _registry.update(found)
        _discovered.add(family)
        where = {f"{a.op}/{a.name}": a.source for a in whole}
        if manifest.recall("algorithms", family) != where:
            manifest.remember("algorithms", family, where)


def _known(op, name, source):
    """The algorithm of this name, of whose family only the file that binds it has to be imported; None where neither `source` nor the
    manifest says which that is."""
    family = _family_of.get(op)
    with _lock:
        if family is None or family in _discovered or name in _registry.get(op, {}):
            return _registry.get(op, {}).get(name)
        source = source or (manifest.recall("algorithms", family) or {}).get(f"{op}/{name}")
        if source and (path := PACKAGE.parent / source).is_file():
            for algorithm in _bound_by(path.parent if path.name == "__init__.py" else path):
                _registry.setdefault(algorithm.op, {}).setdefault(algorithm.name, algorithm)
        return _registry.get(op, {}).get(name)


def _found(folder):
    """The algorithms in a family's folder, or in a group of it."""
    for path in sorted(folder.glob("[a-z]*")):
        is_folder = (path / "__init__.py").is_file()
        if not is_folder and path.suffix != ".py":
            if any(path.glob("*.py")):
                raise ImportError(f"{path.name}/ in {path.parent.name}/ has no __init__.py")
            continue
        bound = _bound_by(path)
        if bound:
            yield from bound
        elif is_folder:
            yield from _found(path)
        else:
            raise ImportError(f"{path.name} in {path.parent.name}/ binds neither ALGORITHM nor ALGORITHMS (a helper's name starts with an "
                              "underscore)")


def _bound_by(path):
    """The algorithms that a file, or a folder's `__init__.py`, binds."""
    where = path.relative_to(PACKAGE)
    module = importlib.import_module(".".join((__package__, *where.with_suffix("").parts)))
    bound = getattr(module, "ALGORITHMS", None) or (getattr(module, "ALGORITHM", None),)
    if bound == (None,):
        return []
    for algorithm in bound:
        _check_name(path, algorithm, single=len(bound) == 1)
    return [replace(a, idea=(module.__doc__ or "").strip().split("\n")[0].rstrip("."),
                    source=f"{__package__}/{where.as_posix()}" + "/__init__.py" * (path.suffix != ".py")) for a in bound]


def _check_name(path, algorithm, single):
    """Raise unless a file is named after its operation and algorithm, a folder after its algorithm."""
    if path.suffix != ".py":
        if path.name != algorithm.name:
            raise ImportError(f"{path.name}/ holds {algorithm}; its name must be {algorithm.name}")
    elif single and path.stem != f"{algorithm.op}_{algorithm.name}" or not path.stem.endswith(f"_{algorithm.name}"):
        raise ImportError(f"{path.name} holds {algorithm}; its name must be {algorithm.op}_{algorithm.name}.py")


def register(algorithm: Algorithm) -> Algorithm:
    """Add an algorithm, which then competes in `get_algorithm` and `find_algorithms`.

    Raises
    ------
    TypeError
        The argument is not an `Algorithm`.
    ValueError
        Unknown operation, or it already has an algorithm of that name.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from dnnkern import dispatch
    >>> naive = dispatch.algorithms("matmul")[0]
    >>> mine = dispatch.register(replace(naive, name="mine"))
    >>> dispatch.unregister(mine)
    """
    if not isinstance(algorithm, Algorithm):
        raise TypeError(f"register: algorithm is {shown(algorithm)}; expected a dispatch.Algorithm")
    try:
        algorithms(algorithm.op)  # the library's own come first
    except ValueError as error:
        raise ValueError(f"register: {error}") from None
    _add(algorithm)
    return algorithm


def _add(algorithm):
    with _lock:
        known = _registry.setdefault(algorithm.op, {})
        if algorithm.name in known:
            raise ValueError(f"register: {algorithm.op} already has an algorithm {algorithm.name!r}")
        known[algorithm.name] = algorithm
        _users.symmetric_difference_update([algorithm])
    choices_changed()


def unregister(algorithm: Algorithm):
    """Remove an algorithm."""
    algorithms(algorithm.op)  # which would bring it back later
    with _lock:
        removed = _registry.get(algorithm.op, {}).pop(algorithm.name, None)
        if removed is not None:
            _users.symmetric_difference_update([removed])
    choices_changed()


def is_as_installed() -> bool:
    """Whether there are the library's own algorithms, and no others, in all operations."""
    return not _users


def no_operation(op, known):
    """The message for an unknown operation."""
    name = op.lower() if isinstance(op, str) else ""
    meant = next((f"; did you mean {ours!r}?" for ours, theirs in ELSEWHERE.items() if name in theirs.split()), None)
    return f"unknown operation {shown(op)}{meant or nearest(op, known) or f'; expected one of {len(known)}: python -m dnnkern list'}"


def algorithms(op: str | None = None) -> list[Algorithm]:
    """The algorithms of an operation, or all of them."""
    if op is not None and not isinstance(op, str):
        raise TypeError(f"op={shown(op)}; expected the name of an operation")
    for family in [_family_of[op]] if op in _family_of else families():
        _discover(family)
    if op is None:
        return [a for known in _registry.values() for a in known.values()]
    if op not in _registry:
        raise ValueError(no_operation(op, _registry))
    return list(_registry[op].values())


def listed(op: str | None = None) -> list[tuple]:
    """(operation, name, what it runs on, math, notes, idea) of `algorithms`. Nothing is imported of families that an earlier process has
    listed, as long as their files are as they were."""
    rows = []
    for family in families():
        known = None if family in _discovered else manifest.recall("listed", family)
        if known is None:
            _discover(family)
            known = [(a.op, a.name, a.arch, a.math, a.notes.value, a.idea) for a in _of_family(family)]
            if not _users:
                manifest.remember("listed", family, known)
        rows += known
    known = {row[0] for row in rows}
    if op is not None and op not in known:
        raise ValueError(no_operation(op, known))
    return [(*row[:4], Note(row[4]), row[5]) for row in rows if op in (None, row[0])]


def _of_family(family):
    return [a for op, known in _registry.items() if _family_of.get(op) == family for a in known.values()]


def named(op, algo, source=None) -> Algorithm:
    """The algorithm of an operation that has this name; NotSupported if none has. `source` is its file, where that is known."""
    found = _known(op, algo, source)
    if found is not None:
        return found
    known = {a.name: a for a in algorithms(op)}
    if algo not in known:
        raise NotSupported(f"{op}: algo={shown(algo)}; expected one of {', '.join(map(repr, known))}{nearest(algo, known)}")
    return known[algo]

"""What a row measured, as one text: kernels, as they are written, and how they are launched, with which arguments.

Rows keep it, and pages compare it with what this checkout would launch for the same problem on the same device: a row of other
kernels, or of another choice, is stale. It depends on no version of Python and on no compiler, and no comment, docstring or line number is
in it: it can be computed where there is no GPU, and a change that leaves the kernels as they are leaves it as it is.
"""
import ast
import dataclasses
import functools
import hashlib
import numbers
from pathlib import Path

import numpy as np

from dnnkern import dispatch
from dnnkern._parser import Parser, family_words
from dnnkern.device._fingerprint import Fingerprint
from dnnkern.device._parameters import described as type_text
from dnnkern.host.device import described
from dnnkern.host.compile import COMPILER
from dnnkern.host.sources import PACKAGE


class _Written(Fingerprint):
    """Functions count by their source, without its comments and docstrings."""

    def __init__(self):
        super().__init__(bytecode=False)

    def _written(self, code):
        return _functions(code.co_filename)[code.co_firstlineno]


@functools.cache
def _functions(path) -> dict:
    """{first line: what is written} of the functions in a file; lambdas of one line count together."""
    found = {}
    for node in ast.walk(ast.parse(Path(path).read_text())):
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
            found[first] = found.get(first, "") + _text(node)
    return found


def _text(node) -> str:
    """A syntax tree as text, the same in each version of Python: without fields that are empty, and without docstrings."""
    if isinstance(node, list):
        return "[" + ",".join(map(_text, node)) + "]"
    if not isinstance(node, ast.AST):
        return repr(node)
    parts = []
    for name, value in ast.iter_fields(node):
        if name == "body" and isinstance(value, list):
            value = [v for v in value if not (isinstance(v, ast.Expr) and isinstance(v.value, ast.Constant))]
        if value is not None and value != [] and name not in ("ctx", "kind", "type_comment"):
            parts.append(f"{name}={_text(value)}")
    return f"{type(node).__name__}({','.join(parts)})"


@functools.cache
def _compiler() -> str:
    return _hash(*(_text(ast.parse((PACKAGE / name).read_text())) for name in COMPILER))


def _hash(*parts) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]


def of(algorithm, problem, device) -> str | None:
    """What an algorithm, bound to a configuration, launches for a problem; None where a kernel is written as a program runs, in no file."""
    built = algorithm.build(problem, device, algorithm.config)
    try:
        launches = [(text, ",".join(map(type_text, k.signature)), k.grid, k.block, k.shared, k.cluster, [_plain(a) for a in k.arguments])
                    for text, k in zip(_texts(*(k.kernel for k in built)), built)]
    except (KeyError, OSError):
        return None
    return _hash(_compiler(), *launches)


@functools.cache
def _texts(*kernels) -> list:
    """What is written in kernels; functions that they share count once, as those of the first."""
    written = _Written()
    return [written.of(kernel) for kernel in kernels]


def _plain(value):
    """An argument as text, sizes, strides and places in the workspace too; the same with each version of NumPy."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and (not value.size or -2 ** 63 < value.min() <= value.max() < 2 ** 63):
        return value.tolist()  # as below, at once: tables of arrays' parts have a million words
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [_plain(getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, (tuple, list)):
        return [*map(_plain, value)]
    if isinstance(value, numbers.Number):
        return int(value) if value == value and abs(value) < 2 ** 63 and value == int(value) else repr(complex(value))
    return value.__qualname__ if isinstance(value, type) else str(value)


def device_of(machine):
    """The device that a row was measured on, to plan for; None where the row does not say enough."""
    if "facts" not in machine:
        return None
    return dataclasses.replace(described(machine["arch"]), name=machine["device"], sms=machine["sms"], **machine["facts"])


def problem_of(row):
    """The problem of a row; ValueError where its record is of another version."""
    return _problem_maker(row["op"])(row["record"])


@functools.cache
def _problem_maker(op):
    return family_words(Parser(), op)[2]


def is_stale(row) -> bool:
    """Whether this checkout would choose or launch something else for what a row measured as chosen, or the row does not say what it
    was."""
    device = device_of(row["machine"])
    if device is None or not row.get("code"):
        return True
    try:
        problem = problem_of(row)
        algorithm = dispatch.get_algorithm(row["op"], problem, device=device, prefer="device")
    except (ValueError, dispatch.NotSupported):  # of another version
        return True
    return (algorithm.name, algorithm.config_text, of(algorithm, problem, device)) != (row["algo"], row["config"], row["code"])

"""The public names and their signatures, as text: what a release promises, and what type checkers read.

    python tests/public_api.py              fails if a name or a keyword of tests/public_api.txt has gone
    python tests/public_api.py --record     writes tests/public_api.txt; after a release, or when names were added
    python tests/public_api.py --stub       writes dnnkern/__init__.pyi and dnnkern/_signatures.pyi

Griffe compares. What cannot be imported, such as dnnkern.torch without PyTorch, is not compared, and kept as it is when recorded.
"""
import ast
import enum
import importlib
import inspect
import os
import pathlib
import re
import sys
import textwrap

HERE = pathlib.Path(__file__).resolve().parent
SNAPSHOT, PACKAGE = HERE / "public_api.txt", HERE.parent / "dnnkern"
STUB, SIGNATURES = PACKAGE / "__init__.pyi", PACKAGE / "_signatures.pyi"
MODULES = ("dnnkern", "dnnkern.device", "dnnkern.dispatch", "dnnkern.graph", "dnnkern.jax", "dnnkern.keras", "dnnkern.onnx",
           "dnnkern.torch", "dnnkern.torch.functional", "dnnkern.torch.nn", "dnnkern.torch.optim")
ABOUT = '''"""Public names, for type checkers, which cannot follow names that are imported when they are first used.

Written by ``python tests/public_api.py --stub``.
"""'''
TYPES = {"number": "SupportsFloat", "integer": "SupportsIndex", "flag": "bool", "word": "str"}  # others may be many things


def public(name) -> str:
    """A module's names, as the source of a stub."""
    module = importlib.import_module(name)
    names = getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]
    return "".join(f"{line}\n" for n in sorted(names) for line in described(n, getattr(module, n)))


def described(name, value, indent="", ours=None):
    """A name's lines. Signatures are shown where they are this library's: those of PyTorch change with its version."""
    ours = getattr(value, "__module__", None) or "" if ours is None else ours
    if inspect.isclass(value):
        if inherited(value, "__init__") and inherited(value, "__new__") or issubclass(value, (enum.Enum, Exception)):
            lines = []
        else:
            lines = [f"{indent}    def __init__({text(inspect.signature(value), 'self')}): ..."]
        for member in sorted({n for c in value.__mro__ if c.__module__.startswith("dnnkern") for n in vars(c) if not n.startswith("_")}):
            given = inspect.getattr_static(value, member)
            given = given.__func__ if isinstance(given, (classmethod, staticmethod)) else given
            lines += described(member, given, indent + "    ", ours) if inspect.isfunction(given) else [f"{indent}    {member} = ..."]
        return [f"{indent}class {name}:", *(lines or [f"{indent}    pass"])]
    if not callable(value) or inspect.ismodule(value):
        return [f"{indent}{name} = ..."]
    theirs = hasattr(value, "theirs") or not ours.startswith("dnnkern")
    return [f"{indent}def {name}({'*args, **kwargs' if theirs else text(inspect.signature(value))}): ..."]


def inherited(value, method):
    """Whether a class has this method of a class of another library, or of Python."""
    return not next((c for c in value.__mro__ if method in vars(c)), object).__module__.startswith("dnnkern")


def text(signature, first=None, kinds=None):
    """Parameters without annotations, or with those of their kinds. Defaults that are no literals are dots."""
    parts, star = [first] if first else [], False
    for parameter in signature.parameters.values():
        kind, written = parameter.kind, parameter.name
        star = star or kind is parameter.VAR_POSITIONAL
        if kind is parameter.KEYWORD_ONLY and not star:
            parts, star = [*parts, "*"], True
        annotation = "" if kinds is None else ": " + annotated(parameter, kinds)
        default = parameter.default
        if default is not parameter.empty:
            written += f"{annotation}{' = ' if annotation else '='}{repr(default) if literal(default) else '...'}"
        else:
            written += annotation
        parts.append({parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(kind, "") + written)
    return ", ".join(parts)


def literal(value):
    try:
        return ast.literal_eval(repr(value)) == value
    except (ValueError, SyntaxError):
        return False


def annotated(parameter, kinds):
    if parameter.name in ("allow", "exclude"):
        return "Note"
    kind = {"algo": "str", "workspace_limit": "SupportsIndex"}.get(parameter.name) or TYPES.get(kinds.get(parameter.name), "Any")
    # Words may be objects that have one, such as device.activation.Activation.
    kind = "Any" if kind == "str" and parameter.name == "activation" else kind
    return f"{kind} | None" if parameter.default is None and kind != "Any" else kind


def stubs() -> dict:
    """{path: text}: functions with every keyword, since those that select the algorithm are ``**choice`` in the sources.

    They have a file of their own, from which the package's imports them: what reads both sources and stubs, as Griffe does, would else take
    the function `dnnkern.matmul` for the module of that name.
    """
    import calls

    import dnnkern
    classes, functions = [], {}
    for name in sorted(dnnkern._NAMES):
        value = getattr(dnnkern, name)
        if inspect.isclass(value):
            classes.append(f"from {value.__module__.replace('dnnkern', '', 1)} import {name} as {name}")
        else:
            kinds = calls.kinds(name) if name in calls.CALLS else {}
            functions[name] = wrapped(f"def {name}({text(inspect.signature(value), kinds=kinds)}) -> Any: ...")
    imports = [*classes, *(f"from . import {name} as {name}" for name in dnnkern._MODULES),
               *(f"from ._signatures import {name} as {name}" for name in functions)]
    needed = ["from typing import Any, SupportsFloat, SupportsIndex", "", "from .algorithm import Note"]
    return {STUB: "\n".join([ABOUT, *sorted(imports), "", "__version__: str", ""]),
            SIGNATURES: "\n".join([ABOUT, *needed, "", *functions.values(), ""])}


def wrapped(line):
    """A function's line in lines of at most 140 characters, which continue under its first parameter."""
    whole = line.replace(" ", "\0").replace(",\0", ", ")  # lines end after commas alone
    lines = textwrap.wrap(whole, 140, subsequent_indent=" " * (line.index("(") + 1), break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\0", " ")


def sections(written) -> dict:
    """{module: its stub} of the snapshot's text."""
    parts = re.split(r"^# (\S+)\n", written, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


def current():
    """({module: its stub}, {module: why it cannot be imported})"""
    found, missing = {}, {}
    for name in MODULES:
        try:
            found[name] = public(name)
        except ImportError as error:
            missing[name] = str(error).split("\n")[0]
    return found, missing


def broken(old, new) -> list:
    """What programs that used `old` would notice of `new`, {module: its stub}, a line each."""
    import griffe

    def load(name, code):
        return griffe.visit(name.replace(".", "_"), pathlib.Path(f"{name}.pyi"), code)
    lines = []
    for name, code in old.items():
        for breakage in griffe.find_breaking_changes(load(name, code), load(name, new[name])):
            told = re.sub(r"\x1b\[\d+m", "", breakage.explain(griffe.ExplanationStyle.ONE_LINE))  # without colours
            lines.append(f"{name}." + told.split(": ", 1)[1])  # without file and line
    return lines


def main(arguments):
    os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")  # names and signatures are the same everywhere
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    if "--stub" in arguments:
        for path, written in stubs().items():
            path.write_text(written)
        return 0
    old = sections(SNAPSHOT.read_text()) if SNAPSHOT.exists() else {}
    found, missing = current()
    for name, why in missing.items():
        print(f"{name}: not compared: {why}")
    if "--record" in arguments:
        new = {name: found.get(name, old.get(name, "")) for name in MODULES}
        SNAPSHOT.write_text("".join(f"# {name}\n{code}" for name, code in new.items()))
        return 0
    lines = broken({name: code for name, code in old.items() if name not in missing}, found)
    print(*lines or ["no public name or keyword has gone"], sep="\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

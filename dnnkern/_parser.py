"""Parsing of the command line."""
import argparse
import importlib
import os
import sys

USAGE_ERROR = 2


def program() -> str:
    """What the command line was started by, for usages and messages: ``dnnkern`` or ``python -m dnnkern``."""
    return "dnnkern" if os.path.basename(sys.argv[0]) == "dnnkern" else "python -m dnnkern"


class Parser(argparse.ArgumentParser):
    """Prints errors as one line, without the usage."""

    def error(self, message):
        print(f"{self.prog}: {message}", file=sys.stderr)
        raise SystemExit(USAGE_ERROR)


def family_words(parser, op):
    """(add_arguments, make, from_record) of an operation, from its family's `_parse` module."""
    from . import dispatch
    family = operations().get(op)
    if family is None:
        parser.error(dispatch.no_operation(op, operations()))
    return importlib.import_module(f"dnnkern.{family}._parse").FAMILY[op]


def operations() -> dict:
    """{operation: family}, without importing any family where an earlier process has."""
    from . import registry
    from .host import manifest
    known = manifest.recall("words", "operations")
    if known is None:
        known = {op: family for family in registry.families() for op in importlib.import_module(f"dnnkern.{family}._parse").FAMILY}
        manifest.remember("words", "operations", known)
    return known

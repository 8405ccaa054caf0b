"""Parsing of the command line."""
import argparse
import importlib
import os
import re
import sys

USAGE_ERROR = 2


def program() -> str:
    """What the command line was started by, for usages and messages: ``dnnkern`` or ``python -m dnnkern``."""
    return "dnnkern" if os.path.basename(sys.argv[0]) == "dnnkern" else "python -m dnnkern"


class Parser(argparse.ArgumentParser):
    """Prints errors as one line, without the usage, and with what may have been meant."""

    def parse_args(self, args=None, namespace=None):
        namespace, rest = self.parse_known_args(args, namespace)
        if rest:
            from .host.suggest import nearest
            commands = next((action.choices for action in self._actions if isinstance(action.choices, dict)), {})
            parser = commands.get(getattr(namespace, "command", None), self)
            options = [name for action in parser._actions for name in action.option_strings]
            meant = next(filter(None, (nearest(word.split("=")[0], options, 1) for word in rest if word.startswith("-"))), "")
            parser.error(f"unrecognized arguments: {' '.join(rest)}{meant}")
        return namespace

    def error(self, message):
        choice = re.fullmatch(r"(.*invalid choice: '(.*)') \(choose from (.*)\)", message, re.DOTALL)
        if choice:
            from .host.suggest import nearest
            known = re.findall(r"[\w-]+", choice[3])  # quoted or not, as Python's version has it
            message = choice[1] + (nearest(choice[2], known) or f"; expected one of {', '.join(known)}")
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

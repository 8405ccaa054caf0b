"""Parsing of the command line."""
import argparse
import importlib
import sys

USAGE_ERROR = 2


class Parser(argparse.ArgumentParser):
    """Prints errors as one line, without the usage."""

    def error(self, message):
        print(f"{self.prog}: {message}", file=sys.stderr)
        raise SystemExit(USAGE_ERROR)


def family_words(parser, op):
    """(add_arguments, make, from_record) of an operation, from its family's `_parse` module."""
    from . import dispatch
    known = {}
    for family in dispatch.families():
        known.update(importlib.import_module(f"dnnkern.{family}._parse").FAMILY)
    if op not in known:
        parser.error(dispatch.no_operation(op, known))
    return known[op]

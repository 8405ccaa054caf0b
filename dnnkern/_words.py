"""Parsers of what follows an operation: ``explain OP``, ``find OP``, ``check OP``."""
import argparse

from ._output import add_outputs
from ._parser import Parser, family_words


def empty_parser(parser, command, op):
    """A parser of no words but the command's limits and outputs."""
    return Parser(prog=f"{parser.prog} {op}", description=parser.description, parents=[_limits(command)])


def words_parser(parser, command, op):
    """(the parser of the words after `explain OP` and the like, what makes a problem of its namespace, what makes one of a record)"""
    add_arguments, make, from_record = family_words(parser, op)
    words = empty_parser(parser, command, op)
    add_arguments(words)
    return words, make, from_record


def _limits(command):
    from .host.words import add_notes
    limits = argparse.ArgumentParser(add_help=False)
    add_outputs(limits.add_argument)
    if command == "check":
        limits.add_argument("--algo", help="check only this algorithm")
        add_notes(limits.add_argument, allow=False)  # all are checked
        return limits
    limits.add_argument("--workspace-limit", type=int, metavar="BYTES", help="most bytes of scratch memory that an algorithm may use")
    add_notes(limits.add_argument)
    if command == "explain":
        limits.add_argument("--why", action="store_true", help="print the terms of each predicted time")
    if command == "find":
        limits.add_argument("--no-save", action="store_true", help="do not write the results to the database")
    return limits

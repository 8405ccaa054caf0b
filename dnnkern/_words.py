"""Parsers of what follows an operation: ``explain OP``, ``find OP``, ``check OP``."""
import argparse
from pathlib import Path

from ._output import add_outputs
from ._parser import Parser, family_words


def empty_parser(parser, command, op):
    """A parser of no words but the command's limits and outputs."""
    return Parser(prog=f"{parser.prog} {op}", description=parser.description, parents=[_limits(command)])


def is_call(words):
    """Whether the words after an operation are a call's arguments, ``x=64x32:f32``, instead of the family's short form."""
    from .call_words import ASSIGNED
    return any(ASSIGNED.fullmatch(word) for word in words)


def call_of(op, words):
    """(the words that are options of the command, what makes the problem of the call)"""
    from .call_words import ASSIGNED, problem_of
    given = [word for word in words if ASSIGNED.fullmatch(word)]
    return [word for word in words if not ASSIGNED.fullmatch(word)], lambda _: problem_of(op, given)


def words_parser(parser, command, op):
    """(the parser of the words after `explain OP` and the like, what makes a problem of its namespace, what makes one of a record)"""
    add_arguments, make, from_record = family_words(parser, op)
    words = empty_parser(parser, command, op)
    words.epilog = "Or the arguments of the call itself: x=64x32:float32 axis=0. An array is its shape, dtype and, if not packed, strides."
    add_arguments(words)
    return words, make, from_record


def _limits(command):
    from .host.words import add_notes
    limits = argparse.ArgumentParser(add_help=False)
    add_outputs(limits.add_argument)
    if command == "trace":
        from ._trace import OUT
        limits.add_argument("--algo", help="its kernels; default: what a call runs on the GPU, or would run on the simulated one")
        limits.add_argument("--out", metavar="FILE", type=Path, default=Path(OUT), help="default: %(default)s")
        return limits
    if command == "check":
        limits.add_argument("--algo", help="check only this algorithm")
        add_notes(limits.add_argument, allow=False)  # all are checked
        return limits
    limits.add_argument("--workspace-limit", type=int, metavar="BYTES", help="most bytes of scratch memory that an algorithm may use")
    add_notes(limits.add_argument)
    if command == "explain":
        limits.add_argument("--why", action="store_true", help="print the terms of each predicted time")
        limits.add_argument("--arch", help="what a GPU of this architecture would answer, by its data sheet: sm_80, sm_90a; none is needed")
    if command == "find":
        limits.add_argument("--no-save", action="store_true", help="do not write the results to the database")
    return limits

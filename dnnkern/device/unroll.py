"""Loops that leave no loop behind, however long their body.

The compiler unrolls a loop of constants itself as long as its body is short. Behind a limit it does not, and arrays that the body indexes
leave their registers for local memory.
"""
from . import device_function


def unrolled(n, body):
    """Device function that calls ``body(k, s)`` for k = first, ..., first + n - 1, each k a constant: ``run(first, s)``. Host function.

    It is made of few functions, since each is compiled by itself, however short: four parts, three of which are the same one.
    """
    return _made(n, {1: body})


def _made(n, known):
    """The function of n calls; `known` has those that were made on the way."""
    if n not in known:
        known[n] = _of_two(n, known) if n < 4 else _of_four(n, known)
    return known[n]


def _of_two(n, known):
    first, rest = _made(1, known), _made(n - 1, known)

    @device_function
    def run(k, s):
        first(k, s)
        rest(k + 1, s)
    return run


def _of_four(n, known):
    quarter = n // 4
    part, rest = _made(quarter, known), _made(n - 3 * quarter, known)

    @device_function
    def run(k, s):
        part(k, s)
        part(k + quarter, s)
        part(k + 2 * quarter, s)
        rest(k + 3 * quarter, s)
    return run

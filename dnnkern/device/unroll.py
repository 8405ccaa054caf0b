"""Loops that leave no loop behind, however long their body.

The compiler unrolls a loop of constants itself as long as its body is short. Behind a limit it does not, and arrays that the body indexes
leave their registers for local memory.
"""
from . import device_function


def unrolled(n, body):
    """Device function that calls ``body(k, s)`` for k = first, ..., first + n - 1, each k a constant: ``run(first, s)``. Host function."""
    if n == 1:
        return body
    half = n // 2
    first = unrolled(half, body)
    second = first if n == 2 * half else unrolled(n - half, body)  # the same function is compiled once

    @device_function
    def run(k, s):
        first(k, s)
        second(k + half, s)
    return run

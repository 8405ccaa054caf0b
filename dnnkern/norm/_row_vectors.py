"""Operands of a program that lie as rows do: a thread moves those of a vector together, where vectors begin at multiples of their size."""
import functools

from ..device import cuda, device_function, u32
from ..engine.row_program import make_functions
from ._program_vectors import make_vector_rows, vectors_among


def vectors_of(problem, count):
    """The `Vector`s of a problem's program, where a thread has vectors of `count` elements of a row."""
    if problem.program is None or count < 2:
        return ()
    return vectors_among(problem.program, problem.extras, problem.row_steps, count, lambda steps: (steps.row, *steps.batch), columns=True)


@functools.cache
def make_run(program, vectors, compute, result, elements):
    """Device function ``run(values, m, n, operands)``: what becomes of an array of so many neighbours, from element n of row m on, in
    place, for a result that is rounded to the dtype `result`; None without a program."""
    if not vectors:
        _, of_vector = make_functions(program, compute, result, elements)
        if program is None:
            return None

        @device_function
        def run_each(values, m, n, operands):
            of_vector(0, (values, m, n, operands))
        return run_each
    length, fetch, run_all = make_vector_rows(program, vectors, compute, result, elements, 1, 0, 0)

    @device_function
    def run(values, m, n, operands):
        buffer = cuda.local.array(length, u32)
        fetch(buffer, 0, m, n, m + 1, operands)
        run_all(values, buffer, 0, 0, m, n, operands, 0)
    return run

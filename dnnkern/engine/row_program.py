"""The program of an operation on rows in its kernels: rows are the rows, the elements of a row the columns."""
import functools

from ..device import device_function


@functools.cache
def make_functions(program, compute, result, elements):
    """Device functions of a program, for a result that is rounded to the dtype `result`; None without one.

    ``function(value, m, n, operands)``
        What becomes of element n of row m, of the type that is computed in.
    ``of_vector(0, (values, m, n, operands))``
        The same of an array of so many neighbours, in place, each by a constant index: a loop with a long body would not be unrolled.
    """
    if program is None:
        return None, None
    from ..device.program import make_cast, make_program
    from ..device.unroll import unrolled
    run = make_program(program, compute, short=result in ("float16", "bfloat16"))
    cast = make_cast(program.types(compute)[program.result], compute)

    @device_function
    def function(value, m, n, operands):
        return cast(run(value, m, n, operands))

    @device_function
    def of_one(k, s):
        values, m, n, operands = s
        values[k] = function(values[k], m, n + k, operands)
    return function, unrolled(elements, of_one)

"""The program of an operation on rows in its kernels: rows are the rows, the elements of a row the columns."""
import functools

from ..device import device_function
from ..device.index import divide_remainder
from ..device.program_batches import make_moved


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


@functools.cache
def make_row_operands(program, dims):
    """Device function ``of_row(row, operands, divisors) -> (m, operands)``: a program's operands as row m of them is row number `row` of
    the arrays. Where rows are along several dimensions, whose `divisors` are those of `row_arguments`, it moves them to the row."""
    if program is None or dims == 1:
        @device_function
        def of_row(row, operands, divisors):
            return row, operands
        return of_row
    moved, coordinates = make_moved(program, dims), make_coordinates(dims)

    @device_function
    def of_row(row, operands, divisors):
        return 0, moved(operands, coordinates(row, divisors))
    return of_row


@functools.cache
def make_coordinates(dims, first=0):
    """Device function ``coordinates(m, divisors)``: the indices along each of `dims` dimensions; `divisors` are those of the dimensions
    from number `first` on, of which the first one's is not used."""
    @device_function
    def coordinates(m, divisors):
        return (m,)
    for d in range(1, dims):
        coordinates = _with_coordinate(coordinates, 3 * (d - first))
    return coordinates


def _with_coordinate(outer, D):
    E, F = D + 1, D + 2

    @device_function
    def coordinates(m, divisors):
        rest, i = divide_remainder(m, (divisors[D], divisors[E], divisors[F]))
        return outer(rest, divisors) + (i,)
    return coordinates

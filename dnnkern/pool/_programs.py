"""The program of a forward problem in its kernels: what becomes of the value of a window before it is rounded."""
import functools

from ..device import device_function
from ..device.program_batches import make_moved
from ..device.unroll import unrolled
from ..engine.programs import NOTHING, Steps, operands_argument

DIMS = 5  # n, c, and three spatial ones


@functools.cache
def make_functions(program, compute, result, count):
    """Device functions ``of_one(value, operands, position)`` and ``of_channels(values, operands, position)``, the latter in place of so
    many channels from that of `position`, (n, c, o, p, q), on; None without a program."""
    if program is None:
        return None, None
    from ..engine.row_program import make_functions as make
    function, _ = make(program, compute, result, 1)
    moved = make_moved(program, DIMS)

    @device_function
    def of_one(value, operands, position):
        return function(value, 0, 0, moved(operands, position))

    @device_function
    def of_channel(v, s):
        values, operands, position = s
        n, c, o, p, q = position
        values[v] = of_one(values[v], operands, (n, c + v, o, p, q))
    of_all = unrolled(count, of_channel)

    @device_function
    def of_channels(values, operands, position):
        of_all(0, (values, operands, position))
    return of_one, of_channels


def program_argument(problem):
    """The kernel parameter with the program's operands."""
    if problem.program is None:
        return NOTHING
    return operands_argument(problem, [Steps(0, 0, strides) for strides in problem.extra_strides], 1, 1, DIMS)
